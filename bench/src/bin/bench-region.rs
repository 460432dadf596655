//! One workload on a region store, in the files of a file system, or on the bare device; prints a line of JSON.
//!
//! All three past the page cache, and each write safe before the next (but for creations that are not to be durable).

use clap::{Parser, Subcommand, ValueEnum};
use rustix::fs::{Mode, OFlags, open};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use weft_bench::{Explain, Outcome, clock, conclude, quantity};
use weft_region::{Device, FileDevice, Format, Kind, Object, Store};

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
    /// Write and read one object, file or device: first, again, in order and at random
    Data {
        #[arg(long, value_parser = quantity::bytes)]
        request: u64,
        #[arg(long, value_parser = quantity::bytes, default_value = "256MiB")]
        size: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum On {
    Store,
    Files,
    Raw,
}

#[derive(Serialize)]
struct Row {
    on: On,
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
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.workload {
        Workload::Create { threads, count, durable, range } => create(&args, threads, count, durable, range),
        Workload::Data { request, size } => data(&args, request, size),
    };
    conclude("bench-region", outcome)
}

fn new_store(place: &Path, range: u64) -> Outcome<(Arc<FileDevice>, Store)> {
    let device = Arc::new(FileDevice::open(place).explain(place.display())?);
    let format = Format { overwrite: true, ..Format::default() };
    Store::format(Arc::clone(&device) as Arc<dyn Device>, format).and_then(|store| store.close()).explain("format")?;
    let store = Store::open_with_range(Arc::clone(&device) as Arc<dyn Device>, range).explain("open")?;
    Ok((device, store))
}

/// Does something, and says what it took.
fn measured(
    on: On,
    operation: &'static str,
    (by, work, unit): (u64, u64, f64),
    device: Option<&FileDevice>,
    does: impl FnOnce() -> Outcome,
) -> Outcome {
    let asked = || device.map(FileDevice::operations).unwrap_or_default();
    let (before, cpu, begun) = (asked(), clock::cpu(), Instant::now());
    does()?;
    let (seconds, cpu, after) = (begun.elapsed().as_secs_f64(), clock::cpu() - cpu, asked());
    let each = |after: u64, before: u64| (after - before) as f64 / work as f64;
    let amount = work as f64 * unit;
    let row = Row {
        on,
        operation,
        by,
        per_second: amount / seconds,
        cpu: cpu / amount * if unit > 1.0 { f64::from(1 << 30) } else { 1e6 },
        writes: each(after.writes, before.writes),
        reads: each(after.reads, before.reads),
        flushes: each(after.flushes, before.flushes),
    };
    println!("{}", serde_json::to_string(&row).explain("JSON")?);
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
        On::Store => {
            let (device, store) = new_store(&args.place, range)?;
            let make = |_, _| {
                store.create(Kind::Direct).explain("create")?;
                if durable { store.sync().explain("sync") } else { Ok(()) }
            };
            measured(args.on, operation, amount, Some(&device), || by_threads(&make))
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
            measured(args.on, operation, amount, None, || by_threads(&make))?;
            (0..threads).try_for_each(|thread| std::fs::remove_dir_all(directory(thread)).explain("remove"))
        }
        On::Raw => Err("a bare device has nothing to make".to_owned()),
    }
}

/// What reads and writes go to.
enum Target {
    /// With the store that it is of.
    Object(Box<Store>, Object),
    File(OwnedFd),
}

impl Target {
    fn write(&self, offset: u64, bytes: &[u8]) -> Outcome {
        match self {
            Self::Object(store, object) => object.write(offset, bytes).and_then(|()| store.sync()).explain("write"),
            Self::File(file) => {
                let count = rustix::io::pwrite(file, bytes, offset).explain("write")?;
                (count == bytes.len()).then_some(()).ok_or_else(|| "a short write".to_owned())
            }
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Outcome {
        let (count, wanted) = match self {
            Self::Object(_, object) => (object.read(offset, into).explain("read")?, into.len()),
            Self::File(file) => (rustix::io::pread(file, &mut *into, offset).explain("read")?, into.len()),
        };
        (count == wanted).then_some(()).ok_or_else(|| "a short read".to_owned())
    }
}

fn data(args: &Args, request: u64, size: u64) -> Outcome {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::DSYNC;
    let (device, target) = match args.on {
        On::Store => {
            let (device, store) = new_store(&args.place, 1024)?;
            let object = store.create(Kind::Plain).explain("create")?;
            (Some(device), Target::Object(Box::new(store), object))
        }
        On::Files => {
            let path = args.place.join("bench-region-data");
            let _ = std::fs::remove_file(&path);
            let file = open(path, flags | OFlags::CREATE, Mode::RUSR | Mode::WUSR).explain("make a file")?;
            (None, Target::File(file))
        }
        On::Raw => (None, Target::File(open(&args.place, flags, Mode::empty()).explain("open the device")?)),
    };
    let bytes = usize::try_from(request).explain("--request")?;
    let mut memory = vec![0x5a; bytes + 4096];
    let at = memory.as_ptr().align_offset(4096);
    let buffer = memory.get_mut(at..at + bytes).ok_or("no memory")?;
    // Not what compresses to nothing.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    buffer.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
    let count = size / request;
    let in_order: Vec<u64> = (0..count).map(|number| number * request).collect();
    let mut at_random = in_order.clone();
    for index in (1..at_random.len()).rev() {
        at_random.swap(index, usize::try_from(next() % (index as u64 + 1)).unwrap_or(0));
    }
    let amount = (request, count, request as f64);
    let device = device.as_deref();
    for (operation, offsets, reads) in [
        ("first write", &in_order, false),
        ("write", &in_order, false),
        ("random write", &at_random, false),
        ("read", &in_order, true),
        ("random read", &at_random, true),
    ] {
        measured(args.on, operation, amount, device, || {
            offsets
                .iter()
                .try_for_each(|offset| if reads { target.read(*offset, buffer) } else { target.write(*offset, buffer) })
        })?;
    }
    if args.on == On::Files {
        std::fs::remove_file(args.place.join("bench-region-data")).explain("remove")?;
    }
    Ok(())
}
