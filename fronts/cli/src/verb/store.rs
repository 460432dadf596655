//! `weft store`: region stores on devices and in files, while no node has them.

mod feed;
mod get;
mod look;
mod parts;
mod repair;
mod versions;

use crate::calendar;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output;
use crate::quantity::{ByteSize, bytes_text};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use weft_protocol::Timestamp;
use weft_region::{Checksums, Error, FileDevice, Format, Shadow, Store};
use weft_sys::own_directory;

const FORMAT_HELP: &str = "\
A file that is not there is made, with --size bytes, all of which its file
system sets aside. Of a block device all is used. What carries a file system,
or anything else, is refused unless --overwrite is given.

--sparse: a file as long as its file system lets it be, which takes space as
it is written, and shares that with whatever else is there. The file system
finds the blocks: no updates of several extents at once, no checksums of data
(docs/region.md says when it is of use). Files of ext4 have 16 TiB at most,
enough for 1919 objects with --region 8GiB; those of XFS, Btrfs and tmpfs are
longer.

--checksums all: data of every object have checksums, which each read compares.
A write over what is there goes to new blocks then, and costs what a first one
does (docs/region.md has measurements). It cannot be changed later.

Examples:
  weft store format /dev/nvme1n1
  weft store format /dev/nvme1n1 --checksums all
  weft store format /scratch/objects --size 100GiB
  weft store format /scratch/objects --sparse --region 8GiB";

const STAT_HELP: &str = "\
--json prints an object (sizes in bytes): place, total, free, region_bytes,
checksums (metadata or all), unused (of a device that has become larger:
`weft store grow` takes them)

Examples:
  weft store stat /dev/nvme1n1
  weft store stat /scratch/objects --json";

const GROW_HELP: &str = "\
First make the device larger, or the file (fallocate --length 200G FILE). All
of it is then taken into the store. A power failure meanwhile leaves the store
as it was or as it is to be. Nothing is moved; a store cannot become smaller.

--json prints what `weft store stat` prints

Examples:
  weft store grow /dev/vg0/objects
  weft store grow /scratch/objects --json";

const CHECK_HELP: &str = "\
Looks through the whole mapping, and at the super block of each object. Nothing
is changed. Exit code 1: something is not in order.

--json prints an object:
  place, clean (true or false), pieces, mapped_blocks, lost_blocks,
  shared_blocks, outside_blocks, objects, damaged_objects

Examples:
  weft store check /dev/nvme1n1
  weft store check /scratch/objects --json";

/// Make and look after region stores, on devices or in files, while no node has them
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Format(MakeNew),
    #[command(after_long_help = STAT_HELP)]
    Stat(Look),
    Grow(Grow),
    #[command(after_long_help = CHECK_HELP)]
    Check(Inspect),
    Scrub(look::Scrub),
    Dump(look::Dump),
    Get(get::Get),
    Parts(parts::Parts),
    Repair(repair::Repair),
    Versions(versions::Versions),
    Name(versions::Name),
    Clean(versions::Clean),
    Send(feed::Send),
    Receive(feed::Receive),
    Have(feed::HaveArgs),
}

/// Make an empty store on a device or in a file
#[derive(clap::Args, Debug)]
#[command(after_long_help = FORMAT_HELP)]
struct MakeNew {
    /// Block device or file
    place: PathBuf,
    /// Bytes of a file that is to be made
    #[arg(long)]
    size: Option<ByteSize>,
    /// A file that takes space as it is written
    #[arg(long, conflicts_with = "size")]
    sparse: bool,
    /// Bytes of a region, the most that an object can have; a power of two
    #[arg(long, default_value = "1TiB")]
    region: ByteSize,
    /// What has checksums
    #[arg(long, value_enum, default_value_t = Summed::Metadata)]
    checksums: Summed,
    /// Whatever is there is lost
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Summed {
    /// What the store keeps itself, and objects that keep versions
    Metadata,
    /// Data of all objects, too
    All,
}

impl From<Summed> for Checksums {
    fn from(summed: Summed) -> Self {
        match summed {
            Summed::Metadata => Self::Metadata,
            Summed::All => Self::All,
        }
    }
}

/// Show the space of a store
#[derive(clap::Args, Debug)]
struct Look {
    /// Block device or file
    place: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Take into a store what its device has become larger by
#[derive(clap::Args, Debug)]
#[command(after_long_help = GROW_HELP)]
struct Grow {
    /// Block device or file
    place: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Look for what contradicts itself in a store
#[derive(clap::Args, Debug)]
struct Inspect {
    /// Block device or file
    place: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Format(args) => format(args),
        What::Stat(args) => stat(args),
        What::Grow(args) => grow(args),
        What::Check(args) => check(args),
        What::Scrub(args) => look::scrub(args),
        What::Dump(args) => look::dump_all(args),
        What::Get(args) => get::get(args),
        What::Parts(args) => parts::list(args),
        What::Repair(args) => repair::repair(args),
        What::Versions(args) => versions::list(args),
        What::Name(args) => versions::name(args),
        What::Clean(args) => versions::clean(args),
        What::Send(args) => feed::send(args),
        What::Receive(args) => feed::receive(args),
        What::Have(args) => feed::have(args),
    }
}

/// Says on which store something failed, and what to do.
fn failed(place: &Path) -> impl Fn(Error) -> Failure {
    move |error| {
        let failure = Failure::new(format!("{}: {error}", place.display()));
        match error {
            Error::NotEmpty(_) => failure.remedy("--overwrite, if nobody misses it"),
            Error::NoStore(_) => failure.remedy("`weft store format` makes one"),
            Error::OldFormat(_) => failure.remedy(
                "send its objects to a new store: `weft store send` of the Weft that made it, `weft store receive` of \
                 this one",
            ),
            Error::InUse => failure.remedy("end the process that has it (`fuser` names it)"),
            Error::Damaged(_) => failure.remedy("`weft store dump` says what is there still"),
            Error::LogDamaged { .. } => failure.remedy("`weft store repair` says what a repair costs"),
            Error::Stream { .. } => failure.remedy("`weft store have` says what came: send the rest with --have"),
            Error::OtherObject(_) => failure.remedy(
                "another store, or other objects, if both are needed; if the source has removed it: receive --remove",
            ),
            Error::Shrunk(_, bytes) => failure.remedy(format!(
                "make it as large as it was ({bytes} bytes); if that cannot be, `weft store format --overwrite` makes \
                 an empty store"
            )),
            Error::MapInParts(_) => failure.remedy("`weft store send` brings the objects to a new store"),
            Error::TooSmall(..) => failure.remedy("a larger --size, or another device"),
            Error::HostLimit { bytes, .. } => {
                // As an option takes it: a power of two, without a fraction.
                let region =
                    bytes_text(1 << (bytes / 16 * 15 / 1024).max(1).ilog2()).replace(".0", "").replace(' ', "");
                failure.remedy(format!(
                    "--region {region} or less, or a file system with longer files, such as XFS (also: `ulimit -f`)"
                ))
            }
            _ => failure,
        }
    }
}

/// A time of the store as RFC 3339.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    calendar::rfc3339(Timestamp::from_parts(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()))
}

fn open(place: &Path) -> Outcome<Store> {
    let device = FileDevice::open(place).map_err(failed(place))?;
    Store::open(Arc::new(device)).map_err(failed(place))
}

/// Opens a store to look at, and changes nothing of it.
fn open_shadow(place: &Path) -> Outcome<Store> {
    let device = FileDevice::open(place).map_err(failed(place))?;
    Store::open(Shadow::new(Arc::new(device))).map_err(failed(place))
}

#[derive(Serialize)]
struct Space {
    place: String,
    total: u64,
    free: u64,
    region_bytes: u64,
    checksums: String,
    unused: u64,
}

impl Space {
    fn of(place: &Path, store: &Store) -> Self {
        let usage = store.usage();
        let place = place.display().to_string();
        let (region_bytes, checksums) = (store.region_bytes(), store.checksums().to_string());
        Self { place, total: usage.total, free: usage.free, region_bytes, checksums, unused: usage.unused }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} for data, {} free; objects of up to {}; checksums: {}\n",
            self.place,
            bytes_text(self.total),
            bytes_text(self.free),
            bytes_text(self.region_bytes),
            self.checksums
        );
        if self.unused > 0 {
            let unused = bytes_text(self.unused);
            text.push_str(&format!("  the device is {unused} larger: `weft store grow` takes them into the store\n"));
        }
        text
    }
}

fn format(args: &MakeNew) -> Outcome {
    let place = &args.place;
    if !args.region.0.is_power_of_two() {
        return Err(Failure::new(format!("--region {}: not a power of two", bytes_text(args.region.0))));
    }
    let is_there = place.exists();
    // The same directory at the end as at the beginning: others may put another one in its place meanwhile.
    let above = place.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = std::fs::File::open(above).explain(|| place.display()).map_err(Failure::failed)?;
    let new = own_directory::path_in(&above, place.file_name().unwrap_or_default());
    let made = make(args, (!is_there).then_some(&new));
    if made.is_err() && !is_there {
        // Nothing is left of a file that could not become a store.
        let _ = std::fs::remove_file(&new);
    }
    let store = made?;
    store.close().map_err(failed(place))?;
    output::print(&Space::of(place, &store).text())?;
    Ok(Ending::Done)
}

/// `new`: reaches the place, at which nothing is yet.
fn make(args: &MakeNew, new: Option<&PathBuf>) -> Outcome<Store> {
    let place = &args.place;
    let region_shift = u8::try_from(args.region.0.ilog2()).unwrap_or(u8::MAX);
    let format = Format { region_shift, overwrite: args.overwrite, checksums: args.checksums.into() };
    if args.sparse {
        if new.is_none() && !args.overwrite {
            let text = format!("{}: is there", place.display());
            return Err(Failure::new(text).remedy("--overwrite, if nobody misses it, or another name"));
        }
        let file = FileDevice::create_sparse(new.unwrap_or(place));
        return file.and_then(|file| Store::format_sparse(Arc::new(file), format)).map_err(failed(place));
    }
    let device = match (args.size, new) {
        (Some(_), None) => {
            let text = format!("{}: is there, and has its size", place.display());
            return Err(Failure::new(text).remedy("leave --size out, or choose another name"));
        }
        (None, Some(_)) => {
            let text = format!("{}: is not there", place.display());
            return Err(Failure::new(text).remedy("--size BYTES makes a file, --sparse one that takes space later"));
        }
        (Some(size), Some(new)) => FileDevice::create(new, size.0),
        (None, None) => FileDevice::open(place),
    };
    device.and_then(|device| Store::format(Arc::new(device), format)).map_err(failed(place))
}

fn stat(args: &Look) -> Outcome {
    let space = Space::of(&args.place, &open_shadow(&args.place)?);
    output::print_either(args.json, &space, || space.text())?;
    Ok(Ending::Done)
}

fn grow(args: &Grow) -> Outcome {
    let place = &args.place;
    let grown = FileDevice::open(place).and_then(|device| Store::grow(Arc::new(device)));
    let store = grown.map_err(failed(place))?;
    store.close().map_err(failed(place))?;
    let space = Space::of(place, &store);
    output::print_either(args.json, &space, || space.text())?;
    Ok(Ending::Done)
}

#[derive(Serialize)]
struct Report {
    place: String,
    clean: bool,
    pieces: u64,
    mapped_blocks: u64,
    lost_blocks: u64,
    shared_blocks: u64,
    outside_blocks: u64,
    objects: u64,
    damaged_objects: u64,
}

fn check(args: &Inspect) -> Outcome {
    let found = open_shadow(&args.place)?.check().map_err(failed(&args.place))?;
    let report = Report {
        place: args.place.display().to_string(),
        clean: found.is_clean(),
        pieces: found.pieces,
        mapped_blocks: found.mapped_blocks,
        lost_blocks: found.lost_blocks,
        shared_blocks: found.shared_blocks,
        outside_blocks: found.outside_blocks,
        objects: found.objects,
        damaged_objects: found.damaged_objects,
    };
    output::print_either(args.json, &report, || text(&report, &found.told()))?;
    Ok(if report.clean { Ending::Done } else { Ending::No })
}

fn text(report: &Report, told: &[String]) -> String {
    let mut text = format!(
        "{}: {}; {} objects, {} blocks in {} pieces\n",
        report.place,
        if report.clean { "in order" } else { "not in order" },
        report.objects,
        report.mapped_blocks,
        report.pieces
    );
    told.iter().for_each(|told| text.push_str(&format!("  {told}\n")));
    text
}
