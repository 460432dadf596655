//! `weft cp`: copies files and trees in, out and within.

use crate::copy::{self, Choices, Place};
use crate::failure::{Ending, Failure, Outcome};
use crate::session::Sessions;
use crate::verb::copying::{Copying, Keeping};
use crate::verb::layout::Striping;
use std::ffi::OsString;

const HELP: &str = "\
Paths are NAME:/path in a file system, and paths of this machine. Permissions
(without set-user-id), modification times and extended attributes of users
(`user.*`) are kept; the owner is you. Several sources need a directory as
target.

A file is written as .NAME.weft-part and gets its name when it is whole. With
--resume, files that are there with the same size and time are passed over, and
a large file goes on where it was left, as .NAME.weft-resume beside it tells,
if the source has not changed since.

Examples:
  weft cp -r input weft:/
  weft cp job42:/results/a.h5 job42:/results/b.h5 .
  weft cp --width 4 model.bin job42:/models/
  weft cp -r --resume -j 8 job42:/results /archive/job42";

/// Copy files and directories in, out and within
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// What to copy
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// New name, or the directory to copy into
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Directories with all that is in them; symbolic links as such
    #[arg(short, long)]
    recursive: bool,
    /// Go on with a copy that was interrupted
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    striping: Striping,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    copying: Copying,
}

pub fn run(args: &Args) -> Outcome {
    let (recursive, resume, plan) = (args.recursive, args.resume, args.striping.plan()?);
    let xattrs = args.keeping.xattrs();
    let choices = Choices { recursive, resume, plan, xattrs, ..args.copying.choices("cp")? };
    let mut sessions = Sessions::default();
    let sources = args.sources.iter().map(|source| Place::parse(source, &mut sessions)).collect::<Outcome<Vec<_>>>()?;
    let target = Place::parse(&args.target, &mut sessions)?;
    if let (Place::Local(_), Some(_)) = (&target, choices.plan) {
        return Err(Failure::new(format!("--width: {target} is not in a file system of Weft"))
            .remedy("leave it out, or copy to NAME:/path"));
    }
    copy::copy(&sources, &target, &choices)?;
    drop((sources, target));
    sessions.close()?;
    Ok(Ending::Done)
}
