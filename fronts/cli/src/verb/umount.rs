//! `weft umount`: takes mounts away.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::mounts;
use crate::output;
use crate::unmount;
use std::path::{Path, PathBuf};

const HELP: &str = "\
Waits until the mount's process has written back what it buffers and has ended.
A mount whose process was killed is cleared away too; with --force, one that
does not answer: programs that wait for it get an error.

Examples:
  weft umount /mnt/w
  weft umount --force /mnt/w";

/// Unmount file systems
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Directories that something is mounted on
    #[arg(value_name = "MOUNTPOINT", required = true)]
    mount_points: Vec<PathBuf>,
    /// Also when programs still use it: they lose it
    #[arg(long, short)]
    force: bool,
}

pub fn run(args: &Args) -> Outcome {
    let mut failed = None;
    for mount_point in &args.mount_points {
        if let Err(failure) = take_away(mount_point, args.force) {
            failed.replace(failure).iter().for_each(output::warn);
        }
    }
    failed.map_or(Ok(Ending::Done), Err)
}

fn take_away(path: &Path, force: bool) -> Outcome<()> {
    let mount_point = mounts::absolute(path).explain(|| path.display())?;
    match mounts::at(&mount_point) {
        Some((file, mount)) => unmount::one(&mount, &file, force),
        None if mounts::is_mounted(&mount_point) => unmount::unrecorded(&mount_point, force),
        None => Err(Failure::no(format!("{}: nothing is mounted there", path.display()))
            .remedy("`weft status` lists the mounts of this user")),
    }
}
