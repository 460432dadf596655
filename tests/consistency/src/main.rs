//! `weft-consistency run | replay | worker`: the checker by hand. Exit codes: 0 no violation, 1 a violation, 2 it could
//! not run.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weft_consistency::campaign::{self, Plan, Schedule, Tally};
use weft_consistency::ground::Ground;
use weft_consistency::mode::Mode;
use weft_consistency::script::Script;
use weft_consistency::stop::{Stop, note_signals};
use weft_consistency::{generate, worker};

/// Check the consistency of several mounts with random system calls
#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run random scripts until time is up or a violation is found
    Run(RunArgs),
    /// Run scripts from files
    Replay(ReplayArgs),
    /// Serve calls on standard input
    #[command(hide = true)]
    Worker {
        /// Use the client library, with this file system
        #[arg(long)]
        native: Option<String>,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// The program `weft` [default: beside this program]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Modes, separated by commas, or all
    #[arg(long, default_value = "all")]
    mode: String,
    /// First seed [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds for each mode
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Whether calls of different workers overlap
    #[arg(long, value_enum, default_value = "both")]
    schedule: Schedule,
    /// No pauses and no kills beside concurrent calls
    #[arg(long)]
    no_faults: bool,
    /// Scripts for each mode, instead of --seconds
    #[arg(long, conflicts_with = "seconds")]
    scripts: Option<u64>,
    /// Calls of each script
    #[arg(long, default_value_t = 200)]
    calls: usize,
    #[arg(long, default_value_t = 2)]
    mounts: u8,
    #[arg(long, default_value_t = 2)]
    workers_per_mount: u8,
    /// Workers that use the client library instead of a mount
    #[arg(long, default_value_t = 1)]
    natives: u8,
    /// Groups of calls to leave out, separated by commas
    #[arg(long, value_delimiter = ',', help = format!("Groups of calls to leave out: {}", generate::GROUPS.join(",")))]
    without: Vec<String>,
    /// Lock files too
    #[arg(long)]
    locks: bool,
    /// Longest time for shortening a script that fails, seconds
    #[arg(long, default_value_t = 120)]
    minimize_seconds: u64,
    /// Directory for the shortest scripts that fail
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Go on with the next mode after a violation
    #[arg(long)]
    go_on: bool,
}

#[derive(clap::Args)]
struct ReplayArgs {
    /// Files with scripts
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The program `weft` [default: beside this program]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Modes, separated by commas, or all
    #[arg(long, default_value = "default")]
    mode: String,
    /// Runs of each script [default: what it says]
    #[arg(long)]
    times: Option<u64>,
    /// Print the calls of scripts that hold, too
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    let done = match Line::parse().verb {
        Verb::Worker { native: None } => worker::serve_kernel().map_err(Stop::CannotRun).map(|()| false),
        Verb::Worker { native: Some(name) } => worker::serve_native(&name).map_err(Stop::CannotRun).map(|()| false),
        Verb::Run(args) => run(args),
        Verb::Replay(args) => replay(&args),
    };
    match done {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) | Err(Stop::Violated(_)) => ExitCode::from(1),
        Err(stop) => {
            eprintln!("weft-consistency: {stop}");
            ExitCode::from(2)
        }
    }
}

/// The program beside this one, which cargo builds into the same directory.
fn weft(given: Option<&PathBuf>) -> Result<PathBuf, Stop> {
    let beside = || std::env::current_exe().ok().map(|path| path.with_file_name("weft"));
    let path = given.cloned().or_else(beside).filter(|path| path.is_file());
    let path = path.ok_or_else(|| Stop::CannotRun("there is no program weft: build it, or use --weft PATH".to_owned()));
    path.and_then(|path| std::path::absolute(path).map_err(|error| Stop::CannotRun(error.to_string())))
}

/// Returns true after a violation.
fn run(args: RunArgs) -> Result<bool, Stop> {
    note_signals()?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| Stop::CannotRun(format!("random numbers: {error}")))?;
    let plan = Plan {
        weft: weft(args.weft.as_ref())?,
        modes: Mode::of_word(&args.mode).map_err(Stop::CannotRun)?,
        seed: args.seed.unwrap_or(u64::from_le_bytes(random) >> 16),
        time: Duration::from_secs(args.seconds),
        scripts: args.scripts,
        schedule: args.schedule,
        faults: !args.no_faults,
        calls: args.calls,
        mounts: args.mounts,
        workers_per_mount: args.workers_per_mount,
        natives: args.natives,
        without: args.without,
        locks: args.locks,
        minimize: Duration::from_secs(args.minimize_seconds),
        keep: args.keep,
        go_on: args.go_on,
    };
    println!("seed {}", plan.seed);
    let mut tallies = Vec::new();
    let result = campaign::run(&plan, &mut tallies);
    print!("\n{}", campaign::table(&tallies));
    result?;
    Ok(tallies.iter().any(|tally| tally.violations > 0))
}

/// Returns true after a violation.
fn replay(args: &ReplayArgs) -> Result<bool, Stop> {
    note_signals()?;
    let weft = weft(args.weft.as_ref())?;
    let mut tallies = Vec::new();
    for mode in Mode::of_word(&args.mode).map_err(Stop::CannotRun)? {
        let mut ground: Option<(Vec<char>, Ground)> = None;
        for path in &args.files {
            let cannot = |error: String| Stop::CannotRun(format!("{}: {error}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
            let script: Script = text.parse().map_err(cannot)?;
            if !script.modes.is_empty() && !script.modes.contains(&mode.name) {
                continue;
            }
            let mut mounts: Vec<char> =
                script.workers().iter().filter(|id| !id.is_native()).map(|id| id.mount).collect();
            mounts.dedup();
            let (_, ground) = match ground.take().filter(|(has, _)| *has == mounts) {
                Some(started) => ground.insert(started),
                None => ground.insert((mounts.clone(), Ground::start(&weft, &mode, &mounts)?)),
            };
            let (operations, report) = campaign::replay(ground, &script, args.times)?;
            match &report.violation {
                Some(violation) => println!("{} in {}: VIOLATION: {}", path.display(), mode.name, violation.wrong.text),
                None => println!("{} in {}: holds", path.display(), mode.name),
            }
            if args.verbose || report.violation.is_some() {
                report.trace.iter().for_each(|line| println!("    {line}"));
            }
            let violations = u64::from(report.violation.is_some());
            tallies.push(Tally { mode: mode.name.clone(), scripts: 1, operations, violations, ..Tally::default() });
        }
    }
    Ok(tallies.iter().any(|tally| tally.violations > 0))
}
