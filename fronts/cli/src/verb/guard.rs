//! `weft guard`: watches one mount of this machine. Started by `weft mount`.

use crate::failure::{Ending, Explain, Outcome};
use crate::output::note;
use crate::processes;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_fuse::Connection;
use weft_fuse::guard::{PARENT_DEATH_SIGNAL, THREAD_END_WAIT, Watched};

const HELP: &str = "\
Standard input: the mount's connection to the kernel (/dev/fuse).

Waits until the process of the mount has ended. When that was killed, aborts
the connection: programs that wait for the mount get an error, and the mount
point stays until `weft umount`. Sleeps all the time, and leaves a mount alone
that is slow or stopped. SIGTERM, SIGINT and SIGHUP do not end it.

Examples:
  weft guard --process 4711 --thread 4720 --device 0:44 /mnt/w";

/// How long the mount is looked at in the beginning.
const START_WAIT: Duration = Duration::from_secs(1);

/// Fail the programs of a killed mount (started by `weft mount`)
#[derive(clap::Args, Debug)]
#[command(hide = true, after_long_help = HELP)]
pub struct Args {
    /// Process of the mount, which is this one's parent
    #[arg(long, value_name = "PID")]
    process: u32,
    /// Thread of that process which waits for this one
    #[arg(long, value_name = "TID")]
    thread: u32,
    /// Device number of the mount
    #[arg(long, value_name = "MAJOR:MINOR", value_parser = parse_device)]
    device: (u32, u32),
    /// Where it is mounted
    mount_point: PathBuf,
}

fn parse_device(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| "is not MAJOR:MINOR".to_owned())
}

/// The command that watches this mount.
pub fn command(program: PathBuf, watched: &Watched) -> Command {
    let Watched { process, thread, mount_point, device: (major, minor) } = watched;
    let mut command = Command::new(program);
    command.args(["guard", "--process", &process.to_string(), "--thread", &thread.to_string()]);
    command.args(["--device", &format!("{major}:{minor}"), "--"]).arg(mount_point);
    command.current_dir("/").stdout(Stdio::null());
    command
}

pub fn run(args: &Args) -> Outcome {
    let Args { process, thread, ref mount_point, device } = *args;
    let watched = Watched { process, thread, mount_point: mount_point.clone(), device };
    processes::leave_starter()?;
    // Before the signal is requested: it would end this process.
    let signals = Signals::new([PARENT_DEATH_SIGNAL.as_raw(), SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.explain(|| "listen for signals")?;
    watched.request_signal().explain(|| "ask for the parent-death signal")?;
    // It may have ended before the signal was requested.
    let mut wait = START_WAIT;
    while !watched.has_ended(wait) {
        let came = signals.wait().any(|signal| signal == PARENT_DEATH_SIGNAL.as_raw());
        wait = if came { THREAD_END_WAIT } else { Duration::ZERO };
    }
    let shown = mount_point.display();
    match watched.abort(io::stdin()) {
        None => {}
        Some(Connection::Aborted) => note(format_args!("{shown}: process {process} was killed, connection aborted")),
        Some(Connection::Left(file, error)) => {
            note(format_args!(
                "{shown}: process {process} was killed, programs may wait for it: {}: {error}",
                file.display()
            ));
        }
    }
    Ok(Ending::Done)
}
