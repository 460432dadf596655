//! `weft store versions`, `name` and `clean`: what objects were like, and for how long that is kept.

use super::{failed, open, open_shadow, output, rfc3339};
use crate::failure::{Ending, Failure, Outcome};
use crate::quantity::{Span, bytes_text};
use crate::table::Table;
use serde::Serialize;
use std::path::PathBuf;
use weft_region::{Cleaned, Keep};

const VERSIONS_HELP: &str = "\
--json prints an array of objects, the oldest version first:
  version, size, time, names

Examples:
  weft store versions /dev/nvme1n1 7
  weft store versions /scratch/objects 7 --json";

const NAME_HELP: &str = "\
A version with a name is kept, whatever else `weft store clean` takes away.

Examples:
  weft store name /dev/nvme1n1 7 120 before-the-upgrade
  weft store name /dev/nvme1n1 7 --remove before-the-upgrade";

const CLEAN_HELP: &str = "\
The newest version of an object is always kept, and those with names.

--json prints an object: place, versions (that are gone), freed_blocks,
  moved_blocks

Examples:
  weft store clean /dev/nvme1n1 --keep-last 10
  weft store clean /scratch/objects --keep-younger 7d --share 0.2";

/// List the versions of an object
#[derive(clap::Args, Debug)]
#[command(after_long_help = VERSIONS_HELP)]
pub struct Versions {
    /// Block device or file
    place: PathBuf,
    /// Number of the object
    object: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Give a version of an object a name, with which it is kept
#[derive(clap::Args, Debug)]
#[command(after_long_help = NAME_HELP)]
pub struct Name {
    /// Block device or file
    place: PathBuf,
    /// Number of the object
    object: u64,
    /// Number of the version
    #[arg(required_unless_present = "remove")]
    version: Option<u64>,
    /// The name
    #[arg(required_unless_present = "remove")]
    name: Option<String>,
    /// Take this name away
    #[arg(long, value_name = "NAME", conflicts_with_all = ["version", "name"])]
    remove: Option<String>,
}

/// Take away versions that need not be kept, and free their space
#[derive(clap::Args, Debug)]
#[command(after_long_help = CLEAN_HELP)]
pub struct Clean {
    /// Block device or file
    place: PathBuf,
    /// Keep so many of the newest versions of each object
    #[arg(long, default_value_t = 1)]
    keep_last: u64,
    /// Keep what could be read at some time since then ago: 12h, 7d
    #[arg(long)]
    keep_younger: Option<Span>,
    /// The part of the time that it works, above 0 and up to 1
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    version: u64,
    size: u64,
    time: String,
    names: Vec<String>,
}

pub fn list(args: &Versions) -> Outcome {
    let explain = failed(&args.place);
    let store = open_shadow(&args.place)?;
    let object = store.versioned(args.object).map_err(&explain)?;
    let names = object.names().map_err(&explain)?;
    let named = |version: u64| names.iter().filter(move |(_, named)| *named == version).map(|(name, _)| name.clone());
    let versions = object.versions(0, usize::MAX).map_err(&explain)?;
    let lines: Vec<Line> = versions
        .iter()
        .map(|stat| {
            let names = named(stat.version).collect();
            Line { version: stat.version, size: stat.size, time: rfc3339(stat.time), names }
        })
        .collect();
    output::print_either(args.json, &lines, || {
        let mut table = Table::new(&[">VERSION", ">SIZE", "TIME", "NAMES"]);
        for line in &lines {
            table.row([line.version.to_string(), bytes_text(line.size), line.time.clone(), line.names.join(", ")]);
        }
        table.to_string()
    })?;
    Ok(Ending::Done)
}

pub fn name(args: &Name) -> Outcome {
    let explain = failed(&args.place);
    let store = open(&args.place)?;
    let object = store.versioned(args.object).map_err(&explain)?;
    if let Some(name) = &args.remove {
        if !object.remove_name(name).map_err(&explain)? {
            return Err(Failure::new(format!("object {}: no version has the name \"{name}\"", args.object)));
        }
    } else if let (Some(version), Some(name)) = (args.version, &args.name) {
        object.set_name(name, version).map_err(&explain)?;
    }
    store.close().map_err(&explain)?;
    Ok(Ending::Done)
}

#[derive(Serialize)]
struct Report {
    place: String,
    versions: u64,
    freed_blocks: u64,
    moved_blocks: u64,
}

pub fn clean(args: &Clean) -> Outcome {
    let explain = failed(&args.place);
    let keep = Keep { newest: args.keep_last, younger_than: args.keep_younger.map(|span| span.0), share: args.share };
    let store = open(&args.place)?;
    let Cleaned { versions, freed_blocks, moved_blocks } = store.clean(&keep).map_err(&explain)?;
    store.close().map_err(&explain)?;
    let report = Report { place: args.place.display().to_string(), versions, freed_blocks, moved_blocks };
    output::print_either(args.json, &report, || {
        let freed = bytes_text(freed_blocks * weft_region::BLOCK_BYTES as u64);
        format!("{}: {versions} versions are gone, {freed} are free\n", report.place)
    })?;
    Ok(Ending::Done)
}
