//! `weft drain`: writes changes back to the directory that a file system lies over.

use crate::copy::Share;
use crate::drain::{self, Busy, Drained, How};
use crate::failure::{Ending, Failure, Outcome};
use crate::output;
use crate::quantity::{Span, bytes_text, span_text};
use crate::session::{self, Session};
use crate::verb::copying::{Copying, OnHosts};
use serde::Serialize;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use weft_client::Instance;

const HELP: &str = "\
For file systems of `weft up --over DIR`. What was written, made, renamed or
removed in them since they were started, or drained last, is done in DIR, with
your rights: a file is written as .NAME.weft-part and renamed when it is whole.
Hosts of the nodes that share DIR write the files that their nodes hold.

A file that others have changed in DIR since it was read is not written over:
it stays, and ours becomes NAME~weft beside it. One that was removed here stays
too. Both are named, also by `weft status`.

The same command can be run again, also while the file system is in use: what
is changed meanwhile is written by the next one. Set-user-id bits, owners,
extended attributes, hard links and times of directories are not written.

With --every TIME it goes on until the file system ends. What was closed or
synced is in DIR at most TIME later, plus the time that a drain takes. A file
that goes on changing is written as it is then; while one was left that has
just changed, nothing is removed. Run it in the background of a job, and
`weft down --drain` at the end.

--json prints an object: files, bytes (written), removed, verified_files,
conflicts (an array of [path, path of ours or null]), failures (an array of
texts), seconds, hosts (an array of {host, files, bytes}: what others than this
one have written).

Examples:
  weft drain
  weft drain --dry-run job42
  weft drain --verify --json job42
  weft drain --quiet --every 60s job42 &";

/// Write changes back to the directory that a file system lies over
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Go on until the file system ends: write what was closed or synced at most so long after
    #[arg(long, value_name = "TIME", conflicts_with = "dry_run")]
    every: Option<Span>,
    #[command(flatten)]
    copying: Copying,
    #[command(flatten)]
    on: OnHosts,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    drained: &'a Drained,
    hosts: Vec<Share>,
    seconds: f64,
}

pub fn run(args: &Args) -> Outcome {
    let instance = session::find_own(args.name.as_deref(), "drain")?;
    drain::directory_of(&instance)?;
    // Wrong options are refused also where nothing is to be written.
    args.copying.choices("drain")?;
    if let Some(every) = args.every {
        return drain_every(args, &instance, every.0);
    }
    let begun = Instant::now();
    let session = Arc::new(Session::open(Some(&instance.map.name))?);
    if args.dry_run {
        for (what, path) in drain::pending(&session)? {
            output::print(&format!("{what} {}\n", drain::printable(&path)))?;
        }
        session.close()?;
        return Ok(Ending::Done);
    }
    let (drained, hosts) = drain::drain(&session, how(args), None)?;
    drain::record(&instance, &drained)?;
    session.close()?;
    tell(args, &drained, hosts, begun)?;
    match drained.failures.len() {
        0 => Ok(Ending::Done),
        count => Err(Failure::new(format!("drain: {count} changes were not written back"))
            .remedy("see the errors above; the same command writes what is missing")),
    }
}

fn how(args: &Args) -> How {
    let quiet = args.copying.quiet || args.on.json;
    How { copying: Copying { quiet, ..args.copying }, here: args.on.here }
}

fn tell(args: &Args, drained: &Drained, hosts: Vec<Share>, begun: Instant) -> Outcome<()> {
    for conflict in &drained.conflicts {
        output::note(format_args!("{}", drain::conflict_text(conflict)));
    }
    if args.on.json {
        output::print_json(&Answer { drained, hosts, seconds: begun.elapsed().as_secs_f64() })?;
    } else if !args.copying.quiet {
        let Drained { files, bytes, removed, .. } = drained;
        let (bytes, took) = (bytes_text(*bytes), span_text(begun.elapsed()));
        output::print(&format!("wrote {files} files, {bytes}, and removed {removed} names in {took}\n"))?;
    }
    Ok(())
}

/// Drains repeatedly until the file system has ended, and retries what failed.
///
/// Two drains in `every`: a file that the first one leaves because it has just changed, the second one writes.
fn drain_every(args: &Args, instance: &Instance, every: Duration) -> Outcome {
    let name = &instance.map.name;
    let session = Arc::new(Session::open(Some(name))?);
    let pause = every / 2;
    let mut busy = Busy::new(pause);
    loop {
        thread::sleep(pause);
        if !is_running(instance) {
            // Its nodes are gone: there is nothing to be closed.
            return Ok(Ending::Done);
        }
        let begun = Instant::now();
        match drain::drain(&session, how(args), Some(&mut busy)) {
            Ok((drained, hosts)) => {
                drain::record(instance, &drained)?;
                if drained.files > 0 || drained.removed > 0 || !drained.conflicts.is_empty() {
                    tell(args, &drained, hosts, begun)?;
                }
            }
            Err(failure) if is_running(instance) => output::warn(&failure),
            Err(_) => return Ok(Ending::Done),
        }
    }
}

/// Whether the file system is still the one that ran when the command began.
fn is_running(instance: &Instance) -> bool {
    let now = session::find_own(Some(&instance.map.name), "drain");
    now.is_ok_and(|now| now.processes.first() == instance.processes.first() && now.is_alive())
}
