//! `weft store repair`: makes a damaged store usable, at a cost that is told first.

use super::failed;
use crate::failure::{Ending, Outcome};
use crate::output::Answer;
use std::path::PathBuf;
use std::sync::Arc;
use weft_region::{Device, FileDevice, Store};

const HELP: &str = "\
A store with a damaged log record is not opened, because the next write would
make the loss of what follows permanent. This command prints what is damaged
and what a repair costs, and changes nothing unless --yes is given. Copy the
device first if its data matter (`dd`, a snapshot).

With --yes the log is cut before its first damaged record. Exit code 1: a
repair is needed and --yes was not given.

Examples:
  weft store repair /dev/nvme1n1
  weft store repair /dev/nvme1n1 --yes";

/// Print what a damaged store has lost, and repair it with --yes
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Repair {
    /// Block device or file
    place: PathBuf,
    /// Repair it: what is printed as lost is lost for good
    #[arg(long)]
    yes: bool,
}

pub fn repair(args: &Repair) -> Outcome {
    let explain = failed(&args.place);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&args.place).map_err(&explain)?);
    let mut answer = Answer::new();
    let (mut damage, mut written) = (0, Ok(()));
    let mut tell = |line: String| {
        damage += 1;
        if written.is_ok() {
            written = answer.line(format_args!("{line}"));
        }
    };
    Store::repair(device, args.yes, &mut tell).map_err(&explain)?;
    written?;
    let place = args.place.display();
    match (damage, args.yes) {
        (0, _) => answer.line(format_args!("{place}: needs no repair"))?,
        (_, true) => answer.line(format_args!("{place}: repaired"))?,
        (_, false) => answer.line(format_args!("{place}: nothing was changed (repair it with --yes)"))?,
    }
    answer.finish()?;
    Ok(if damage == 0 || args.yes { Ending::Done } else { Ending::No })
}
