//! `weft mv`: gives things other names.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::Answer;
use crate::session::{Session, Sessions};
use crate::target::{Target, WeftPath};
use std::ffi::OsString;
use std::sync::Arc;
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{Error, FileKind};

const HELP: &str = "\
Several sources need a directory as target. No bytes are copied, whichever
nodes the names are at. Between file systems, use `weft cp` and `weft rm`.

Examples:
  weft mv weft:/a weft:/b
  weft mv job42:/part-0 job42:/part-1 job42:/done
  weft mv -n --dry-run job42:/a job42:/b";

/// Rename or move inside a file system
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// What to move: NAME:/path
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// New name, or the directory to move into
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Do not replace what is there
    #[arg(short, long)]
    no_clobber: bool,
    /// Only say what would be moved
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &Args) -> Outcome {
    let sources: Vec<WeftPath> = args.sources.iter().map(|path| Target::in_weft(path, "mv")).collect::<Outcome<_>>()?;
    let target = Target::in_weft(&args.target, "mv")?;
    let mut sessions = Sessions::default();
    let session = sessions.of(&target)?;
    let into = match session.client.walk(&session.who, &target.path, true) {
        Ok(entry) => entry.attributes.kind == FileKind::Directory,
        Err(Error::NotFound) => false,
        Err(error) => return Err(Failure::of_weft(format_args!("mv to {target}"), &error)),
    };
    if !into && (sources.len() > 1 || target.path.ends_with(b"/")) {
        return Err(
            Failure::new(format!("mv to {target}: is not a directory")).remedy(format!("`weft mkdir {target}`"))
        );
    }
    let mut answer = Answer::new();
    for source in &sources {
        let of_source = sessions.of(source)?;
        if !Arc::ptr_eq(&of_source, &session) {
            return Err(Failure::new(format!("mv {source} to {target}: are two file systems"))
                .remedy("`weft cp -r`, then `weft rm -r`"));
        }
        let name = source.base_name().ok_or_else(|| Failure::new(format!("mv {source}: has no name of its own")))?;
        let target = if into { target.join(name) } else { target.clone() };
        if args.dry_run {
            session.walk(source, false, "mv")?;
            answer.line(format_args!("would move {source} to {target}"))?;
        } else {
            rename(args, &session, source, &target)?;
        }
    }
    answer.finish()?;
    drop(session);
    sessions.close()?;
    Ok(Ending::Done)
}

fn rename(args: &Args, session: &Session, source: &WeftPath, target: &WeftPath) -> Outcome<()> {
    let (parent, name) = session.parent(source, "mv")?;
    let (new_parent, new_name) = session.parent(target, "mv")?;
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    match session.client.rename(&session.who, parent, &name, new_parent, &new_name, mode) {
        Err(Error::Exists) if args.no_clobber => {
            Err(Failure::new(format!("mv {source} to {target}: is there already")).remedy("leave out -n to replace it"))
        }
        // The names are valid, so that one reason is left.
        Err(Error::Invalid) => Err(into_itself(source, target)),
        renamed => renamed.explain(|| format!("mv {source} to {target}")),
    }
}

fn into_itself(source: &WeftPath, target: &WeftPath) -> Failure {
    Failure::new(format!("mv {source} to {target}: cannot move a directory into itself"))
        .remedy(format!("name a target that is not below {source}"))
}
