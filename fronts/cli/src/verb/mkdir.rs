//! `weft mkdir`: makes directories.

use crate::failure::{Ending, Failure, Outcome};
use crate::session::{Session, Sessions};
use crate::target::{Target, WeftPath};
use crate::tree;
use crate::verb::layout::{self, Striping};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::ffi::OsString;
use weft_client::Placement;
use weft_protocol::{Error, FileKind, InodeNumber};

const HELP: &str = "\
Examples:
  weft mkdir weft:/results
  weft mkdir -p job42:/a/b/c
  weft mkdir -m 1777 job42:/shared
  weft mkdir --width 4 job42:/checkpoints
  weft mkdir --placement hash job42:/outputs";

/// Make directories
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Directories: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Those above it too; one that is there is no error
    #[arg(short)]
    parents: bool,
    /// Permissions, octal [default: 777 without the umask's]
    #[arg(short, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u16>,
    /// Which nodes have its names: one, or all of them, for directories in which many clients make files, and for those
    /// made in it once they have some; with -p also of a directory that is there [default: as the directory it is in;
    /// one that gets very large is spread by itself]
    #[arg(long, value_name = "WHERE", value_parser = placements())]
    placement: Option<Placement>,
    #[command(flatten)]
    striping: Striping,
}

fn placements() -> impl TypedValueParser<Value = Placement> {
    let names = Placement::ALL.map(Placement::text);
    PossibleValuesParser::new(names).map(|name| Placement::parse(&name).expect("only these are let through"))
}

/// Octal permissions.
fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("\"{text}\" is not an octal number up to 7777")),
    }
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "mkdir")).collect::<Outcome<_>>()?;
    let plan = args.striping.plan()?;
    let mode = args.mode.unwrap_or_else(|| tree::with_umask(0o777));
    let mut sessions = Sessions::default();
    for path in &paths {
        let session = sessions.of(path)?;
        let inode = if args.parents {
            tree::make_directories(&session, path, mode)?
        } else {
            let (parent, name) = session.parent(path, "mkdir").map_err(|failure| match failure.is_no() {
                true => failure.remedy("-p makes the directories above it, too"),
                false => failure,
            })?;
            let made = session.client.make_directory(&session.who, parent, &name, mode).map_err(|error| {
                let failure = Failure::of_weft(format_args!("mkdir {path}"), &error);
                if error == Error::Exists {
                    failure.remedy("choose another name; -p takes one that is there")
                } else {
                    failure
                }
            })?;
            made.attributes.inode
        };
        if let Some(plan) = plan {
            layout::set(&session, path, (inode, FileKind::Directory), plan)?;
        }
        if let Some(placement) = args.placement {
            place(&session, path, inode, placement)?;
        }
    }
    sessions.close()?;
    Ok(Ending::Done)
}

/// Sets where the names of a directory are, and of those that are made in it.
fn place(session: &Session, path: &WeftPath, inode: InodeNumber, placement: Placement) -> Outcome<()> {
    session.client.set_placement(&session.who, inode, placement).map_err(|error| {
        let failure = Failure::of_weft(format_args!("mkdir --placement {path}"), &error);
        match error {
            Error::NotPermitted => failure.remedy("only the directory's owner may say where its names are"),
            _ => failure,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        for bad in ["8", "", "17777", "u+x"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}
