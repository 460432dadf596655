//! `weft rm`: removes names.

use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, Answer};
use crate::removal::{self, Victim};
use crate::session::{Session, Sessions};
use crate::target::{Target, WeftPath};
use std::ffi::OsString;
use weft_protocol::FileKind;

const HELP: &str = "\
A symbolic link is removed, not what it points to. With -r many names are
removed at a time, directories after what is in them; what cannot be removed is
said and does not hinder the rest.

Examples:
  weft rm weft:/old.txt
  weft rm -r --dry-run job42:/tmp
  weft rm -rf job42:/tmp";

/// Remove files, and with -r directories
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// What to remove: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short)]
    recursive: bool,
    /// What is not there is no error
    #[arg(short)]
    force: bool,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Say what is removed
    #[arg(short)]
    verbose: bool,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "rm")).collect::<Outcome<_>>()?;
    let mut sessions = Sessions::default();
    let mut answer = Answer::new();
    let mut failed = None;
    for path in &paths {
        let removed = sessions.of(path).and_then(|session| remove(args, &session, path, &mut answer));
        match removed {
            Err(failure) if failure.is_closed_pipe() => return Err(failure),
            Err(failure) => failed.replace(failure).iter().for_each(output::warn),
            Ok(()) => {}
        }
    }
    answer.finish()?;
    sessions.close()?;
    failed.map_or(Ok(Ending::Done), Err)
}

fn remove(args: &Args, session: &Session, path: &WeftPath, answer: &mut Answer) -> Outcome<()> {
    let entry = match session.walk(path, false, "rm") {
        Err(failure) if args.force && failure.is_no() => return Ok(()),
        entry => entry?,
    };
    let (parent, name) = session.parent(path, "rm")?;
    let (inode, kind) = (entry.attributes.inode, entry.attributes.kind);
    if kind == FileKind::Directory && !args.recursive {
        return Err(
            Failure::new(format!("rm {path}: is a directory")).remedy("add -r to remove it and all that is in it")
        );
    }
    if args.dry_run {
        let mut tell = |path: &WeftPath| answer.line(format_args!("would remove {path}"));
        return removal::describe(session, path, inode, kind, &mut tell);
    }
    let mut tell = |path: &WeftPath| match args.verbose {
        true => answer.line(format_args!("removed {path}")),
        false => Ok(()),
    };
    removal::remove(session, &Victim { path, parent, name: &name, inode, kind }, &mut tell)
}
