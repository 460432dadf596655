//! Tells what is on a device, part by part, and goes on past what is damaged.

use crate::base::{Applied, Base};
use crate::buffer::AlignedBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::{COPIES, Format, Geometry};
use crate::layer::Layer;
use crate::log::Log;
use crate::record::Entry;
use crate::sectors::Sector;
use crate::shadow::Shadow;
use crate::sparse::{self, Sparse};
use crate::{BLOCK, BLOCK_BYTES, OWN_START, as_index, object, sectors, versions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a dump tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DumpOptions {
    /// The changes in each record of the log.
    pub entries: bool,
    /// All data blocks are looked at for objects and commits, whatever the map says: for when it is lost.
    pub scan: bool,
}

/// Tells what is on a device in lines. Nothing is written. An error: the device cannot be read at all.
pub fn dump(device: &Arc<dyn Device>, options: DumpOptions, tell: &mut dyn FnMut(String)) -> Result<()> {
    if Sparse::is_on(&**device) {
        return sparse::dump(Shadow::new(Arc::clone(device)), options.scan, tell);
    }
    let mut geometry = None;
    for copy in COPIES {
        match Geometry::read_copy(&**device, copy) {
            Ok(found) => {
                tell(format!("super block {copy}: {}", found.describe()));
                geometry = geometry.or(Some(found));
            }
            Err(error @ Error::Device { .. }) => return Err(error),
            Err(error) => tell(format!("super block {copy}: {error}")),
        }
    }
    let geometry = match geometry {
        Some(geometry) => geometry,
        None => {
            let assumed = Geometry::of(device.bytes(), [0; 16], Format::default())?;
            tell(format!("as if it were a store of this size: {}", assumed.describe()));
            assumed
        }
    };
    dump_log(&**device, &geometry, options.entries, tell);
    let shadow: Arc<dyn Device> = Shadow::new(Arc::clone(device));
    if let Err(error) = dump_map(&shadow, &geometry, tell) {
        tell(format!("map: {error}"));
    }
    if let Err(error) = dump_objects(shadow, tell) {
        tell(format!("objects: {error}"));
    }
    if options.scan {
        scan(&**device, &geometry, tell);
    }
    Ok(())
}

/// Records, wherever they are in the ring, and damaged sectors.
fn dump_log(device: &dyn Device, geometry: &Geometry, entries: bool, tell: &mut dyn FnMut(String)) {
    let log = Log::new(geometry, Applied::default());
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
    for block in 0..geometry.log_blocks {
        if let Err(error) = device.read_at((geometry.log_start + block) * BLOCK, &mut buffer) {
            tell(format!("log, block {block}: {error}"));
            continue;
        }
        let wrong = log.sectors(block, &buffer).filter(|sector| *sector == Sector::Wrong).count();
        if wrong > 0 {
            tell(format!("log, block {block}: {wrong} sectors do not match their checksums"));
        }
        match log.at(device, block) {
            Ok(Some((sequence, Some((record, checksum))))) => {
                let count = record.entries.len();
                let chain = record.chain;
                tell(format!(
                    "log, block {block}: record {sequence}, {count} changes, {checksum:08x}, behind {chain:08x}"
                ));
                record.entries.iter().filter(|_| entries).for_each(|entry| tell(format!("  {}", describe(entry))));
            }
            Ok(Some((sequence, None))) => tell(format!("log, block {block}: record {sequence} is not whole")),
            Ok(None) => {}
            Err(error) => tell(format!("log, block {block}: {error}")),
        }
    }
}

fn describe(entry: &Entry) -> String {
    match entry {
        Entry::Map { first, block, count } => {
            format!("{count} virtual blocks from {first:#x} on are at block {block}")
        }
        Entry::Unmap { first, count } => format!("{count} virtual blocks from {first:#x} on are nowhere"),
        Entry::Ready { block, count, .. } => format!("objects may begin in {count} blocks from block {block} on"),
        Entry::Confirmed { object, sequence: 0, .. } => format!("nothing is known of commits of object {object}"),
        Entry::Confirmed { object, sequence, .. } => {
            format!("commits of object {object} up to version {} are on the device", versions::version_of(*sequence))
        }
        Entry::Sums { block, sums } => format!("checksums of {} blocks from block {block} on", sums.len()),
    }
}

fn dump_map(device: &Arc<dyn Device>, geometry: &Geometry, tell: &mut dyn FnMut(String)) -> Result<()> {
    let base = Base::open(Arc::clone(device), geometry, false)?;
    let applied = base.applied()?;
    tell(format!("map: it has the records before {}, at position {}", applied.sequence, applied.position));
    Ok(())
}

/// Objects as the map and the log have them.
fn dump_objects(device: Arc<dyn Device>, tell: &mut dyn FnMut(String)) -> Result<()> {
    let (layer, cut) = Layer::open_before_damage(device)?;
    if let Some(cut) = cut {
        tell(format!("objects as they were before this: {cut}"));
    }
    let shift = layer.region_shift();
    let mut regions: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    let walked = layer.each_piece(|piece| {
        let mut next = piece.first;
        while next < piece.end() {
            let region = (next * BLOCK) >> shift;
            let end = piece.end().min(((region + 1) << shift) / BLOCK);
            let summed = layer.count_sums(next..end)?;
            let [blocks, pieces, sums] = regions.entry(region).or_default();
            (*blocks, *pieces, *sums) = (*blocks + (end - next), *pieces + 1, *sums + summed);
            next = end;
        }
        Ok(())
    });
    for (region, [blocks, pieces, sums]) in regions.iter().filter(|(region, _)| **region < OWN_START >> shift) {
        let mut block = vec![0; BLOCK_BYTES];
        let text = match layer.read(region << shift, &mut block) {
            _ if *region == 0 => "identifiers".to_owned(),
            Ok(()) => describe_block(&block).unwrap_or_else(|| "an object without super block".to_owned()),
            Err(error) => error.to_string(),
        };
        let sums = if *sums > 0 { format!(", {sums} with checksums") } else { String::new() };
        tell(format!("region {region}: {text}; {blocks} blocks in {pieces} pieces{sums}"));
    }
    walked
}

pub(crate) fn describe_block(block: &[u8]) -> Option<String> {
    object::describe(block).or_else(|| versions::describe(block))
}

/// Everything that looks like an object's super block, or a commit.
fn scan(device: &dyn Device, geometry: &Geometry, tell: &mut dyn FnMut(String)) {
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES * 256);
    let mut block = geometry.data_start;
    let end = geometry.blocks.min(device.bytes() / BLOCK);
    while block < end {
        let count = (end - block).min(256);
        let bytes = as_index(count) * BLOCK_BYTES;
        let some = &mut buffer[..bytes];
        // Of what cannot be read together, what can be read alone.
        let read = device.read_at(block * BLOCK, some);
        for (offset, one) in (0..count).zip(some.chunks_mut(BLOCK_BYTES)) {
            if read.is_err()
                && let Err(error) = device.read_at((block + offset) * BLOCK, one)
            {
                tell(format!("block {}: {error}", block + offset));
                continue;
            }
            if let Some(text) = describe_block(one) {
                tell(format!("block {}: {text}", block + offset));
            } else if [0, sectors::PAYLOAD_AT].iter().any(|at| one[*at..].starts_with(b"WEFT")) {
                tell(format!("block {}: a super block or commit that is not whole", block + offset));
            }
        }
        block += count;
    }
}
