//! An object that keeps versions beside one in direct mode: read in turn, after so many commits; and what only versions
//! have.

use crate::data::{Pass, Side, Target};
use crate::{Args, BLOCK, MIB, Memory, Random, measured};
use std::path::Path;
use std::time::Duration;
use weft_bench::{Explain, Outcome};
use weft_region::{FileDevice, Keep, Store, Versioned};

pub fn versions(args: &Args, commits: u64, size: u64, direct: &Path) -> Outcome {
    let mut sides = [Side::versions(args, &args.place)?, Side::object(args, direct)?];
    for side in &sides {
        fill(&side.target, commits, size)?;
        side.store.as_ref().map_or(Ok(()), Store::close).explain("close")?;
    }
    let [Side { target: Target::Versions(object), device: Some(device), .. }, _] = &sides else { return Ok(()) };
    let (object, device) = (object.clone(), device.clone());
    let mut pass = |operation, request: u64, at_random: bool| {
        let mut random = Random::default();
        let in_order: Vec<u64> = (0..size / request).map(|number| number * request).collect();
        let offsets = if at_random { random.shuffled(&in_order) } else { in_order };
        let mut memory = Memory::new(request, &mut random)?;
        Pass { operation, offsets: &offsets, reads: true }.run(&mut sides, memory.bytes(), commits)
    };
    pass("first read, 1 MiB", MIB, false)?;
    // Reads have what lies in many places put together, in the background.
    wait_for_background(&device);
    pass("read, 1 MiB", MIB, false)?;
    pass("random read, 4 KiB", BLOCK, true)?;
    pass("random read, 64 KiB", 16 * BLOCK, true)?;
    look_back(&object, &device, commits)
}

/// Writes all of an object with the first commits; more are single blocks of it.
fn fill(target: &Target, commits: u64, size: u64) -> Outcome {
    let first = size.div_ceil(commits.min(size / MIB)).next_multiple_of(BLOCK);
    let mut random = Random::default();
    let mut memory = Memory::new(first, &mut random)?;
    for offset in (0..size).step_by(usize::try_from(first).explain("--size")?) {
        let bytes = memory.bytes().get(..usize::try_from(first.min(size - offset)).unwrap_or(0));
        target.write(offset, bytes.unwrap_or_default())?;
    }
    for _ in 0..commits.saturating_sub(size.div_ceil(first)) {
        target.write(random.next() % (size / BLOCK) * BLOCK, memory.bytes().get(..4096).unwrap_or_default())?;
    }
    Ok(())
}

/// Lists versions, reads old ones, and takes them away.
fn look_back(object: &Versioned, device: &FileDevice, commits: u64) -> Outcome {
    let measured = |operation, work: u64, does: &mut dyn FnMut() -> Outcome| {
        measured("versions", operation, (commits, work, 1.0), Some(device), does)
    };
    let mut listed = Vec::new();
    measured("list", commits, &mut || {
        listed = object.versions(0, usize::MAX).explain("list")?;
        Ok(())
    })?;
    let count = 20_000;
    let mut random = Random::default();
    measured("as of a version", count, &mut || {
        let mut memory = Memory::new(BLOCK, &mut random)?;
        (0..count).try_for_each(|_| {
            let stat = usize::try_from(random.next()).ok().and_then(|any| listed.get(any % listed.len()));
            let version = object.at_time(stat.ok_or("no version")?.time).explain("find")?;
            let offset = random.next() % (version.stat().size / BLOCK).max(1) * BLOCK;
            version.read(offset, memory.bytes()).map(drop).explain("read")
        })
    })?;
    measured("clean", commits, &mut || object.clean(&Keep::default()).map(drop).explain("clean"))
}

/// Until nothing is written for a while.
fn wait_for_background(device: &FileDevice) {
    let mut before = None;
    while before != Some(device.operations().writes) {
        before = Some(device.operations().writes);
        std::thread::sleep(Duration::from_secs(1));
    }
}
