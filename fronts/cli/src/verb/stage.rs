//! `weft stage`: trees of the site's file system into a job's, and back, again and again until all is there.
//!
//! The copying is that of `weft cp` (`copy.rs`). What is added: names that do not depend on what is there already, so
//! that the same command goes on where it was interrupted; hosts of the nodes that copy the files which they hold;
//! copies that are on their device when it ends; and an answer for programs.

use crate::copy::{self, Batch, Choices, Crew, Helper, Place, Report, Share, Witness};
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::{Machine, Order, Reply};
use crate::output;
use crate::session::Sessions;
use crate::verb::copying::{Copying, Keeping, OnHosts};
use crate::verb::layout::Striping;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use weft_client::Instance;
use weft_protocol::NodeId;

const NAMES_HELP: &str = "\
Each source gets its own name in the directory, which is made if it is not
there; of DIR/. and of NAME:/ the contents get there. The same command can be
run again: files that are there with the same size and time are passed over,
and a large file goes on where it was left.

Each file is written as .NAME.weft-part, and gets its name when it is whole.
Permissions (without set-user-id), modification times and extended attributes
of users (`user.*`) are kept; the owner is you. Symbolic links are copied as
such.
Sparse, striped and split files arrive whole. --verify reads each copy again
from where it is stored, and compares it with its source: each byte is read
twice more.

Hosts of the file system's nodes that see the same directory copy too, each
what its nodes hold; they are reached as by `weft up`, which has to have run
here, and for the owner only. --here leaves them out.

--json prints an object: files and bytes (copied), kept_files and kept_bytes
(there already), verified_files, without_xattrs (files and directories whose
target supports no extended attributes), seconds, failures (an array of texts),
hosts (an array of {host, files, bytes}: what others than this have copied).
";

const IN_EXAMPLES: &str = "
Examples:
  weft stage in /project/input weft:/
  weft stage in --verify /project/input/. job42:/data
  weft stage in --width 4 /project/model.bin job42:/models";

const OUT_EXAMPLES: &str = "\
When it ends, all that was copied is on the device below the target (syncfs).

Examples:
  weft stage out weft:/results /project/run42
  weft stage out --verify --json job42:/ /project/run42";

/// Copy trees into a job's file system and back, to be run again when interrupted
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(clap::Subcommand, Debug)]
enum Direction {
    In(In),
    Out(Out),
}

/// Copy files and trees into a directory of a file system
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{NAMES_HELP}{IN_EXAMPLES}"))]
struct In {
    /// Files and directories of this machine
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// Directory to copy into
    #[arg(value_name = "NAME:DIR")]
    target: OsString,
    #[command(flatten)]
    striping: Striping,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    copying: Copying,
    #[command(flatten)]
    on: OnHosts,
}

/// Copy files and trees out of a file system into a directory
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{NAMES_HELP}{OUT_EXAMPLES}"))]
struct Out {
    /// Files and directories of a file system
    #[arg(value_name = "NAME:PATH", required = true)]
    sources: Vec<OsString>,
    /// Directory of this machine to copy into
    #[arg(value_name = "DIR")]
    target: OsString,
    #[command(flatten)]
    keeping: Keeping,
    #[command(flatten)]
    copying: Copying,
    #[command(flatten)]
    on: OnHosts,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    report: Report,
    hosts: Vec<Share>,
    seconds: f64,
}

pub fn run(args: &Args) -> Outcome {
    match &args.direction {
        Direction::In(args) => {
            let (plan, xattrs) = (args.striping.plan()?, args.keeping.xattrs());
            let choices = Choices { plan, xattrs, ..args.copying.choices("stage in")? };
            stage(&args.sources, &args.target, &choices, args.on)
        }
        Direction::Out(args) => {
            let choices = Choices { xattrs: args.keeping.xattrs(), ..args.copying.choices("stage out")? };
            stage(&args.sources, &args.target, &choices, args.on)
        }
    }
}

fn stage(sources: &[OsString], target: &OsString, choices: &Choices, on: OnHosts) -> Outcome {
    let begun = Instant::now();
    let mut sessions = Sessions::default();
    let sources = sources.iter().map(|source| Place::parse(source, &mut sessions)).collect::<Outcome<Vec<_>>>()?;
    let target = Place::parse(target, &mut sessions)?;
    check_sides(&sources, &target, choices.verb)?;
    target.make_directories()?;
    let sessions_of = |place: &Place| match place {
        Place::Weft(session, _) => Some(Arc::clone(session)),
        Place::Local(_) => None,
    };
    let inside = sources.iter().chain([&target]).find_map(sessions_of);
    let session = inside.ok_or_else(|| Failure::new(format!("{}: names no file system", choices.verb)))?;
    let goes_in = sessions_of(&target).is_some();
    let name = &session.instance.map.name;
    let common = copy::common_batch(name, goes_in, choices);
    let mut crew = if on.here { Crew::alone() } else { crew_of(&session.instance, &sources) };
    if !crew.helpers.is_empty() {
        check_crew(&mut crew, &common, &sources, &target)?;
    }
    let (report, shares) = copy::copy_into(&sources, &target, choices, &crew, &common)?;
    drop(crew);
    target.sync().map_err(|failure| failure.within(choices.verb))?;
    let hosts = merged(shares);
    drop((sources, target, session));
    sessions.close()?;
    let outcome = report.outcome(choices.verb, "see the errors above; the same command copies what is missing");
    if on.json {
        output::print_json(&Answer { report, hosts, seconds: begun.elapsed().as_secs_f64() })?;
    }
    outcome.map(|()| Ending::Done)
}

/// The machines of a file system that can be asked to copy. This one copies too when it has a node.
pub fn crew_of(instance: &Instance, sources: &[Place]) -> Crew<'static> {
    let of_one = sources.iter().all(|source| match source {
        Place::Weft(session, _) => session.instance.map.name == instance.map.name,
        Place::Local(_) => true,
    });
    if instance.user_key.is_some() || !of_one {
        return Crew::alone();
    }
    let mut machines: BTreeMap<Machine, Vec<NodeId>> = BTreeMap::new();
    for process in &instance.processes {
        machines.entry(process.ssh_host.clone().into()).or_default().push(process.node);
    }
    let nodes_here = machines.remove(&Machine::Here);
    let here = nodes_here.is_some() || machines.is_empty();
    let helper = |(machine, nodes): (Machine, Vec<NodeId>)| {
        let name = machine.ssh_host().unwrap_or_default();
        let perform = Box::new(move |batch: &Batch| copy_on(&machine, batch));
        Helper { name, nodes, perform }
    };
    Crew { helpers: machines.into_iter().map(helper).collect(), here, nodes_here: nodes_here.unwrap_or_default() }
}

fn copy_on(machine: &Machine, batch: &Batch) -> Outcome<Report> {
    match machine.perform(&Order::Copy(Box::new(batch.clone())))? {
        Reply::Copied(report) => Ok(report),
        other => {
            Err(Failure::new(format!("unexpected reply {other:?}")).remedy("use the same version of weft on all hosts"))
        }
    }
}

/// Leaves out the hosts that do not share the directory of this machine: of sources, all have to be the same there; in
/// a target, they have to see a file that was just made.
pub fn check_crew(crew: &mut Crew<'_>, common: &Batch, sources: &[Place], target: &Place) -> Outcome<()> {
    if let Place::Local(directory) = target {
        let token = Token::make(directory)?;
        let witness = Witness::of(token.0.clone())?;
        crew.check(common, &witness.into_iter().collect::<Vec<_>>());
        return Ok(());
    }
    let mut witnesses = Vec::new();
    for source in sources {
        if let Place::Local(path) = source {
            witnesses.extend(Witness::of(std::path::absolute(path).explain(|| source)?)?);
        }
    }
    crew.check(common, &witnesses);
    Ok(())
}

/// A file with a new name, there until this is dropped.
struct Token(PathBuf);

impl Token {
    fn make(directory: &Path) -> Outcome<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| Failure::new(format!("random numbers: {error}")))?;
        let name = format!(".stage-{}.weft-part", output::hexadecimal(&random));
        let directory = std::path::absolute(directory).explain(|| directory.display())?;
        let path = directory.join(name);
        File::create_new(&path).explain(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        // An empty hidden file, which no copy takes along.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One share per machine.
pub fn merged(shares: Vec<Share>) -> Vec<Share> {
    let mut merged: Vec<Share> = Vec::new();
    for share in shares {
        match merged.iter_mut().find(|known| known.host == share.host) {
            Some(known) => {
                known.files += share.files;
                known.bytes += share.bytes;
            }
            None => merged.push(share),
        }
    }
    merged
}

/// Refuses what would stay on one side.
fn check_sides(sources: &[Place], target: &Place, verb: &str) -> Outcome<()> {
    let goes_in = verb == "stage in";
    let is_in = |place: &Place| matches!(place, Place::Weft(..));
    let wrong = sources.iter().find(|source| is_in(source) == goes_in);
    match wrong.or(Some(target).filter(|target| is_in(target) != goes_in)) {
        None => Ok(()),
        Some(place) => {
            let where_it_is = if is_in(place) { "in a file system of Weft" } else { "a path of this machine" };
            Err(Failure::new(format!("{verb}: {place} is {where_it_is}")).remedy(
                "`weft stage in SOURCE... NAME:DIR`, `weft stage out NAME:PATH... DIR`; `weft cp` copies in any way",
            ))
        }
    }
}
