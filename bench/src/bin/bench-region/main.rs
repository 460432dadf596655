//! One workload on a region store, in the files of a file system, or on the bare device; prints a line of JSON.
//!
//! All three past the page cache, and each write safe before the next (but for creations that are not to be durable).

mod churn;
mod data;
mod find;
mod versions;

use clap::{Parser, Subcommand, ValueEnum};
use rustix::fs::{Mode, OFlags, open};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_bench::{Explain, Outcome, clock, conclude, quantity};
use weft_region::{BLOCK_BYTES, Checksums, Device, FileDevice, Format, Kind, Owner, Store};

/// Measure a region store, files, or a device
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    workload: Workload,
    /// What is measured
    #[arg(long, global = true, default_value = "store")]
    on: On,
    /// The device; of `files` the directory. A store is made on it, and whatever was there is lost
    #[arg(long, global = true, default_value = "/dev/zram0")]
    place: PathBuf,
    /// Of a store: data of all objects have checksums
    #[arg(long, global = true)]
    sums: bool,
    /// Of a store: the place is a sparse file, which is made
    #[arg(long, global = true, conflicts_with = "sums")]
    sparse: bool,
}

#[derive(Subcommand)]
enum Workload {
    /// Make objects or files
    Create {
        #[arg(long, default_value_t = 1)]
        threads: u64,
        /// By all threads together
        #[arg(long, default_value_t = 20_000)]
        count: u64,
        /// Each is safe before the next is made
        #[arg(long)]
        durable: bool,
        /// Identifiers that are taken at once
        #[arg(long, default_value_t = 1024)]
        range: u64,
    },
    /// Write and read an object, the bare device and others, by turns: first, again, in order and at random
    Data {
        #[arg(long, value_parser = quantity::bytes)]
        request: u64,
        #[arg(long, value_parser = quantity::bytes, default_value = "256MiB")]
        size: u64,
        /// A device for another store, with an object that keeps versions
        #[arg(long)]
        versions: Option<PathBuf>,
        /// A directory, for a file
        #[arg(long)]
        files: Vec<PathBuf>,
    },
    /// Read an object that was written with so many commits, and one in direct mode, by turns; list its versions, read
    /// old ones, clean them away
    Versions {
        #[arg(long, default_value_t = 100_000)]
        commits: u64,
        #[arg(long, value_parser = quantity::bytes, default_value = "256MiB")]
        size: u64,
        /// A device for the store of the one in direct mode
        #[arg(long)]
        direct: PathBuf,
    },
    /// Open the store that is there: as it was left, and once it was closed in order
    Open,
    /// Read the first blocks of objects at random, in the store that is there
    Find {
        #[arg(long, default_value_t = 300_000)]
        reads: u64,
    },
    /// Write over, remove and make objects in a store that is nearly full, and check all of it
    Churn {
        /// Percent of the space that objects have
        #[arg(long, default_value_t = 80)]
        fill: u64,
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    Store,
    /// Objects that keep versions
    Versions,
    Files,
}

impl On {
    fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Versions => "versions",
            Self::Files => "files",
        }
    }
}

#[derive(Serialize)]
struct Row<'a> {
    /// `store`, `versions`, `files`, `raw`, or the name of a directory.
    on: &'a str,
    operation: &'static str,
    /// Threads, or bytes of a request.
    by: u64,
    per_second: f64,
    /// Processor seconds per million operations, or per GiB.
    cpu: f64,
    /// Of a store: what its device was asked for, for each operation.
    writes: f64,
    reads: f64,
    flushes: f64,
    /// What the process has of the machine's memory afterwards, bytes, where that is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.workload {
        Workload::Create { threads, count, durable, range } => create(&args, threads, count, durable, range),
        Workload::Data { request, size, ref versions, ref files } => {
            data::data(&args, (request, size), versions.as_deref(), files)
        }
        Workload::Versions { commits, size, ref direct } => versions::versions(&args, commits, size, direct),
        Workload::Open => open_store(&args),
        Workload::Find { reads } => find::find(&args, reads),
        Workload::Churn { fill, seconds } => churn::churn(&args, fill, Duration::from_secs(seconds)),
    };
    conclude("bench-region", outcome)
}

fn new_store(args: &Args, place: &Path, range: u64) -> Outcome<(Arc<FileDevice>, Store)> {
    let opened = if args.sparse { FileDevice::create_sparse(place) } else { FileDevice::open(place) };
    let device = Arc::new(opened.explain(place.display())?);
    let checksums = if args.sums { Checksums::All } else { Checksums::Metadata };
    let format = Format { overwrite: true, checksums, ..Format::default() };
    let file = Arc::clone(&device) as Arc<dyn Device>;
    let made = match args.sparse {
        // ext4 has no room for more of a larger size.
        true => Store::format_sparse(file, Format { region_shift: 33, ..format }),
        false => Store::format(file, format),
    };
    made.and_then(|store| store.close()).explain("format")?;
    let store = Store::open_with_range(Arc::clone(&device) as Arc<dyn Device>, range).explain("open")?;
    Ok((device, store))
}

/// What this process has of the machine's memory.
fn resident_bytes() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").explain("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or("/proc/self/statm says nothing")? * rustix::param::page_size() as u64)
}

/// A line for each opening: openings per second, by blocks that are in use.
fn open_store(args: &Args) -> Outcome {
    for operation in ["open, not closed before", "open"] {
        let (cpu, begun) = (clock::cpu(), Instant::now());
        let device = Arc::new(FileDevice::open(&args.place).explain(args.place.display())?);
        let store = Store::open(Arc::clone(&device) as Arc<dyn Device>).explain("open")?;
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), clock::cpu() - cpu);
        let (asked, memory) = (device.operations(), Some(resident_bytes()?));
        let usage = store.usage();
        print(&Row {
            on: args.on.name(),
            operation,
            by: (usage.total - usage.free) / BLOCK_BYTES as u64,
            per_second: 1.0 / seconds,
            cpu,
            writes: asked.writes as f64,
            reads: asked.reads as f64,
            flushes: asked.flushes as f64,
            memory,
        })?;
        store.close().explain("close")?;
    }
    Ok(())
}

/// What some work took, added up over parts of it.
#[derive(Default)]
struct Meter {
    seconds: f64,
    cpu: f64,
    writes: u64,
    reads: u64,
    flushes: u64,
}

impl Meter {
    fn add(&mut self, device: Option<&FileDevice>, does: impl FnOnce() -> Outcome) -> Outcome {
        let asked = || device.map(FileDevice::operations).unwrap_or_default();
        let (before, cpu, begun) = (asked(), clock::cpu(), Instant::now());
        does()?;
        self.seconds += begun.elapsed().as_secs_f64();
        self.cpu += clock::cpu() - cpu;
        let after = asked();
        self.writes += after.writes - before.writes;
        self.reads += after.reads - before.reads;
        self.flushes += after.flushes - before.flushes;
        Ok(())
    }

    fn row<'a>(&self, on: &'a str, operation: &'static str, (by, work, unit): (u64, u64, f64)) -> Row<'a> {
        let (amount, each) = (work as f64 * unit, |count: u64| count as f64 / work as f64);
        Row {
            on,
            operation,
            by,
            per_second: amount / self.seconds,
            cpu: self.cpu / amount * if unit > 1.0 { f64::from(1 << 30) } else { 1e6 },
            writes: each(self.writes),
            reads: each(self.reads),
            flushes: each(self.flushes),
            memory: None,
        }
    }
}

/// Does something, and says what it took.
fn measured(
    on: &str,
    operation: &'static str,
    amount: (u64, u64, f64),
    device: Option<&FileDevice>,
    does: impl FnOnce() -> Outcome,
) -> Outcome {
    let mut meter = Meter::default();
    meter.add(device, does)?;
    print(&meter.row(on, operation, amount))
}

fn print(row: &Row<'_>) -> Outcome {
    println!("{}", serde_json::to_string(row).explain("JSON")?);
    Ok(())
}

fn create(args: &Args, threads: u64, count: u64, durable: bool, range: u64) -> Outcome {
    let operation = if durable { "create, durable" } else { "create" };
    let each = count / threads;
    let by_threads = |make: &(dyn Fn(u64, u64) -> Outcome + Sync)| {
        std::thread::scope(|scope| {
            let work = |thread| move || (0..each).try_for_each(|number| make(thread, number));
            let all: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
            all.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread failed".to_owned())))
        })
    };
    let amount = (threads, each * threads, 1.0);
    match args.on {
        On::Store | On::Versions => {
            let (device, store) = new_store(args, &args.place, range)?;
            let make = |_, _| {
                let made = match (args.on, durable) {
                    (On::Versions, false) => store.create_versioned().map(drop),
                    (On::Versions, true) => store.create_versioned().and_then(|_| store.sync()),
                    (_, false) => store.create(Kind::Direct).map(drop),
                    (_, true) => store.create_durable(Owner::default()).map(drop),
                };
                made.explain("create")
            };
            measured(args.on.name(), operation, amount, Some(&device), || by_threads(&make))
        }
        On::Files => {
            let directory = |thread: u64| args.place.join(format!("bench-region-{thread}"));
            for thread in 0..threads {
                let _ = std::fs::remove_dir_all(directory(thread));
                std::fs::create_dir(directory(thread)).explain("make a directory")?;
            }
            let make = |thread, number| {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let path = directory(thread).join(format!("{number:08}"));
                let file = open(path, flags, Mode::RUSR | Mode::WUSR).explain("make a file")?;
                if durable { rustix::fs::fsync(&file).explain("fsync") } else { Ok(()) }
            };
            measured(args.on.name(), operation, amount, None, || by_threads(&make))?;
            (0..threads).try_for_each(|thread| std::fs::remove_dir_all(directory(thread)).explain("remove"))
        }
    }
}

/// Memory that a device can use, with what compresses to nothing less.
struct Memory {
    memory: Vec<u8>,
    bytes: usize,
}

impl Memory {
    fn new(bytes: u64, random: &mut Random) -> Outcome<Self> {
        let bytes = usize::try_from(bytes).explain("the size of a request")?;
        let mut made = Self { memory: vec![0x5a; bytes + 4096], bytes };
        made.bytes().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        Ok(made)
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.memory.as_ptr().align_offset(4096);
        self.memory.get_mut(at..at + self.bytes).unwrap_or_default()
    }
}

struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn shuffled(&mut self, numbers: &[u64]) -> Vec<u64> {
        let mut shuffled = numbers.to_vec();
        for index in (1..shuffled.len()).rev() {
            shuffled.swap(index, usize::try_from(self.next() % (index as u64 + 1)).unwrap_or(0));
        }
        shuffled
    }
}

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
