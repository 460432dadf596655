//! Identifiers of objects: each once, also after a crash.
//!
//! Threads take them from ranges of their own. How far ranges have been handed out stands in region 0, and is safe
//! there before the first identifier of a range is given to anybody: one write and one sync for each range.

use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::sealed::{seal, seal_of, u64_at};
use crate::{BLOCK, BLOCK_BYTES, lock};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const MAGIC: &[u8; 8] = b"WEFTIDS\0";
const BYTES: usize = 32;
const CHECKSUM_AT: usize = 8;
/// Identifiers of a range, unless it is said otherwise.
pub(crate) const RANGE: u64 = 1024;
/// Ranges in use at a time: no two of so many threads wait for each other.
const SLOTS: usize = 128;

thread_local! {
    static SLOT: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS
    };
}

/// See the module.
pub(crate) struct Ids {
    slots: Vec<Mutex<Range<u64>>>,
    next: Mutex<Next>,
    /// The first that no region has.
    end: u64,
    range: u64,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    /// The first identifier that was never in a range.
    first: u64,
    /// Of the last writing.
    number: u64,
}

impl Ids {
    /// As the store was left; in a new one nothing is there.
    pub fn open(layer: &Layer, range: u64) -> Result<Self> {
        let mut newest = Next { first: 1, number: 0 };
        for block in 0..2 {
            let mut bytes = vec![0; BLOCK_BYTES];
            layer.read(block * BLOCK, &mut bytes)?;
            if let Some(found) = decode(&bytes).filter(|found| found.number > newest.number) {
                newest = found;
            }
        }
        let slots = (0..SLOTS).map(|_| Mutex::default()).collect();
        let end = 1 << (63 - u32::from(layer.region_shift()));
        Ok(Self { slots, next: Mutex::new(newest), end, range })
    }

    /// The next one of this thread.
    pub fn take(&self, layer: &Layer) -> Result<u64> {
        let slot = SLOT.with(|slot| self.slots.get(*slot)).ok_or(Error::Beyond)?;
        let mut range = lock(slot);
        if range.is_empty() {
            *range = self.next_range(layer)?;
        }
        let id = range.start;
        range.start += 1;
        Ok(id)
    }

    fn next_range(&self, layer: &Layer) -> Result<Range<u64>> {
        let mut next = lock(&self.next);
        let after = Next { first: (next.first + self.range).min(self.end), number: next.number + 1 };
        if next.first >= self.end {
            return Err(Error::NoSpace);
        }
        layer.write((after.number % 2) * BLOCK, &encode(after))?;
        layer.sync()?;
        let range = next.first..after.first;
        *next = after;
        Ok(range)
    }
}

fn encode(next: Next) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &[0; 8], &next.first.to_le_bytes(), &next.number.to_le_bytes()].concat();
    seal(&mut bytes, CHECKSUM_AT);
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}

fn decode(block: &[u8]) -> Option<Next> {
    let bytes = block.first_chunk::<BYTES>()?;
    let next = Next { first: u64_at(bytes, 16)?, number: u64_at(bytes, 24)? };
    (bytes.starts_with(MAGIC) && seal_of(bytes, CHECKSUM_AT).is_some()).then_some(next)
}
