//! `weft store scrub` and `dump`: all that is on a store, compared or told.

use super::{failed, output};
use crate::failure::{Ending, Outcome};
use crate::output::{Answer, story_is_watched};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use weft_region::{Device, DumpOptions, FileDevice, Scrubbed, Shadow, Store, dump};

const SCRUB_HELP: &str = "\
Reads every block that is in use, and compares what has checksums: pages of the
map and the index, super blocks, commits with their data, and all other data in
a store that was made with `--checksums all`. Nothing is changed. Exit code 1:
something is damaged.

--json prints an object:
  place, clean (true or false), blocks, blocks_compared (with a checksum of
  their own), commits, commits_in_part (a cleaner has taken some of their
  data), damaged (how much is), told (what, the first 100)

Examples:
  weft store scrub /dev/nvme1n1
  weft store scrub /scratch/objects --json";

const DUMP_HELP: &str = "\
For a look inside, and for what is left of a damaged store: each part is told
of, whatever is wrong with the others. Nothing is changed.

Examples:
  weft store dump /dev/nvme1n1
  weft store dump /scratch/objects --scan | grep 'object 7,'";

/// Read all of a store and compare it with its checksums
#[derive(clap::Args, Debug)]
#[command(after_long_help = SCRUB_HELP)]
pub struct Scrub {
    /// Block device or file
    place: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print what is on a store, also on a damaged one
#[derive(clap::Args, Debug)]
#[command(after_long_help = DUMP_HELP)]
pub struct Dump {
    /// Block device or file
    place: PathBuf,
    /// The changes in each record of the log, too
    #[arg(long)]
    entries: bool,
    /// Look at all blocks for objects and versions, whatever the map says
    #[arg(long)]
    scan: bool,
}

#[derive(Serialize)]
struct Report {
    place: String,
    clean: bool,
    blocks: u64,
    blocks_compared: u64,
    commits: u64,
    commits_in_part: u64,
    damaged: u64,
    told: Vec<String>,
}

pub fn scrub(args: &Scrub) -> Outcome {
    let place = &args.place;
    let device = Shadow::new(Arc::new(FileDevice::open(place).map_err(failed(place))?));
    let bar = story_is_watched().then(|| {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
        match ProgressStyle::with_template("{bar:30} {pos}/{len} blocks  {eta} left") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    });
    let mut progress = |done, total| {
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    };
    let scrubbed = Store::open_verified(device).and_then(|store| {
        let mut scrubbed = store.scrub(&mut progress)?;
        store.check()?.told().into_iter().for_each(|text| scrubbed.tell(text));
        Ok(scrubbed)
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let Scrubbed { blocks, compared: blocks_compared, commits, commits_in_part, damaged, told } =
        scrubbed.map_err(failed(place))?;
    let (place, clean) = (place.display().to_string(), damaged == 0);
    let report = Report { place, clean, blocks, blocks_compared, commits, commits_in_part, damaged, told };
    output::print_either(args.json, &report, || text(&report))?;
    Ok(if clean { Ending::Done } else { Ending::No })
}

fn text(report: &Report) -> String {
    let state = if report.clean { "in order" } else { "damaged" };
    let mut text = format!(
        "{}: {state}; {} blocks read, {} of them and {} commits compared\n",
        report.place, report.blocks, report.blocks_compared, report.commits
    );
    report.told.iter().for_each(|told| text.push_str(&format!("  {told}\n")));
    let more = report.damaged - report.told.len() as u64;
    if more > 0 {
        text.push_str(&format!("  and {more} more\n"));
    }
    text
}

pub fn dump_all(args: &Dump) -> Outcome {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&args.place).map_err(failed(&args.place))?);
    let mut answer = Answer::new();
    let mut written = Ok(());
    let options = DumpOptions { entries: args.entries, scan: args.scan };
    let mut tell = |line: String| {
        if written.is_ok() {
            written = answer.line(format_args!("{line}"));
        }
    };
    dump(&device, options, &mut tell).map_err(failed(&args.place))?;
    written?;
    answer.finish()?;
    Ok(Ending::Done)
}
