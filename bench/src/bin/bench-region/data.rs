//! Writes and reads of one object beside those of others: they take turns, slice by slice, so that all have the same
//! moments of the machine, and the same memory. (Processes one after the other differ by a tenth and more.)

use crate::{Args, BLOCK, Memory, Meter, Random, new_store, print};
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_bench::{Explain, Outcome};
use weft_region::{Device, FileDevice, Kind, Object, Store, Versioned};

/// Bytes that one side does before the others have their turn.
const SLICE_BYTES: u64 = 4 << 20;

/// What reads and writes go to.
pub enum Target {
    Object(Object),
    Versions(Versioned),
    File(OwnedFd),
}

impl Target {
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Outcome {
        match self {
            Self::Object(object) => object.write_durable(offset, bytes).explain("write"),
            Self::Versions(object) => object.write_durable(offset, bytes).map(drop).explain("write"),
            Self::File(file) => {
                let count = rustix::io::pwrite(file, bytes, offset).explain("write")?;
                (count == bytes.len()).then_some(()).ok_or_else(|| "a short write".to_owned())
            }
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Outcome {
        let (count, wanted) = match self {
            Self::Object(object) => (object.read(offset, into).explain("read")?, into.len()),
            Self::Versions(object) => (object.read(offset, into).explain("read")?, into.len()),
            Self::File(file) => (rustix::io::pread(file, &mut *into, offset).explain("read")?, into.len()),
        };
        (count == wanted).then_some(()).ok_or_else(|| "a short read".to_owned())
    }
}

/// One of those that take turns.
pub struct Side {
    pub name: String,
    pub target: Target,
    pub device: Option<Arc<FileDevice>>,
    pub store: Option<Store>,
    /// Where its bytes begin.
    base: u64,
}

impl Side {
    /// An object of a new store.
    pub fn object(args: &Args, place: &Path) -> Outcome<Self> {
        let (device, store) = new_store(args, place, 1024)?;
        let target = Target::Object(store.create(Kind::Plain).explain("create")?);
        Ok(Self { name: "store".to_owned(), target, device: Some(device), store: Some(store), base: 0 })
    }

    /// One that keeps versions.
    pub fn versions(args: &Args, place: &Path) -> Outcome<Self> {
        let (device, store) = new_store(args, place, 1024)?;
        let target = Target::Versions(store.create_versioned().explain("create")?);
        Ok(Self { name: "versions".to_owned(), target, device: Some(device), store: Some(store), base: 0 })
    }

    /// The half of a device that its store does not use.
    fn raw(place: &Path, device: &FileDevice, size: u64) -> Outcome<Self> {
        let base = device.bytes() / 2 / BLOCK * BLOCK;
        if size > base / 2 {
            return Err("the device has to have room for four times --size".to_owned());
        }
        let file = open(place, flags(), Mode::empty()).explain("open the device")?;
        Ok(Self { name: "raw".to_owned(), target: Target::File(file), device: None, store: None, base })
    }

    /// A file that is removed already.
    fn file(directory: &Path) -> Outcome<Self> {
        let path = directory.join("bench-region-data");
        let create = OFlags::CREATE | OFlags::EXCL;
        let file = open(&path, flags() | create, Mode::RUSR | Mode::WUSR).explain(path.display())?;
        std::fs::remove_file(&path).explain(path.display())?;
        let name = directory.file_name().map_or_else(|| "files".to_owned(), |name| name.display().to_string());
        Ok(Self { name, target: Target::File(file), device: None, store: None, base: 0 })
    }
}

fn flags() -> OFlags {
    OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::DSYNC
}

/// What is done at each of some places.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    pub operation: &'static str,
    pub offsets: &'a [u64],
    pub reads: bool,
}

impl Pass<'_> {
    /// Has all sides do it in turn, and prints what it took each. `by`: for the table.
    pub fn run(&self, sides: &mut [Side], buffer: &mut [u8], by: u64) -> Outcome {
        let request = buffer.len() as u64;
        let slice = usize::try_from(SLICE_BYTES / request).explain("a request")?.max(1);
        let mut meters: Vec<Meter> = sides.iter().map(|_| Meter::default()).collect();
        for offsets in self.offsets.chunks(slice) {
            for (side, meter) in sides.iter().zip(&mut meters) {
                meter.add(side.device.as_deref(), || {
                    offsets.iter().try_for_each(|offset| {
                        let at = side.base + offset;
                        if self.reads { side.target.read(at, buffer) } else { side.target.write(at, buffer) }
                    })
                })?;
            }
            // Nobody is always the first.
            sides.reverse();
            meters.reverse();
        }
        sides.iter().zip(&meters).try_for_each(|(side, meter)| {
            print(&meter.row(&side.name, self.operation, (by, self.offsets.len() as u64, request as f64)))
        })
    }
}

pub fn data(args: &Args, (request, size): (u64, u64), versions: Option<&Path>, files: &[PathBuf]) -> Outcome {
    let mut sides = vec![Side::object(args, &args.place)?];
    if let Some(device) = sides.first().and_then(|side| side.device.clone()).filter(|_| !args.sparse) {
        sides.push(Side::raw(&args.place, &device, size)?);
    }
    if let Some(place) = versions {
        sides.push(Side::versions(args, place)?);
    }
    for directory in files {
        sides.push(Side::file(directory)?);
    }
    let mut random = Random::default();
    let mut memory = Memory::new(request, &mut random)?;
    let in_order: Vec<u64> = (0..size / request).map(|number| number * request).collect();
    let at_random = random.shuffled(&in_order);
    for (operation, offsets, reads) in [
        ("first write", &in_order, false),
        ("write", &in_order, false),
        ("random write", &at_random, false),
        ("read", &in_order, true),
        ("random read", &at_random, true),
    ] {
        Pass { operation, offsets, reads }.run(&mut sides, memory.bytes(), request)?;
    }
    Ok(())
}
