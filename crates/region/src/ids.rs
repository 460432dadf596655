//! Identifiers of objects: each of one object at a time, also after a crash.
//!
//! Threads take them in batches of their own. How far fresh ones have been handed out stands in region 0, and is safe
//! there before the first of a batch is given to anybody: one durable write for each batch.
//!
//! One whose object was removed is given again when the removal is durable: before that, a crash would bring the
//! earlier object back under the later one's name. Each is given with a **generation**, higher than of any object that
//! had the region before. What generations there may be is in region 0, too.
//!
//! Where free identifiers come from, in this order: those removed since the store was opened; fresh ones; those removed
//! a moment ago, by a sync; those that an earlier run left free, which are found by looking at the mapping; what other
//! threads have at hand.

use crate::address_space::AddressSpace;
use crate::decoder::{Decoder, sealed_block};
use crate::error::{Error, Result};
use crate::sealed::{seal, seal_of, u64_at};
use crate::{BLOCK, BLOCK_BYTES, as_index, lock};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const MAGIC: &[u8; 8] = b"WEFTIDS\0";
const BYTES: usize = 48;
const CHECKSUM_AT: usize = 8;
/// Identifiers of a batch, unless it is said otherwise.
pub(crate) const RANGE: u64 = 1024;
/// Batches in use at a time: no two of so many threads wait for each other.
const SLOTS: usize = 128;
/// Where there are few identifiers, all batches together have at most this part of them.
const PART_IN_SLOTS: u64 = 4;
/// No store counts so far, neither writings nor generations.
const COUNTED_MAX: u64 = u64::MAX / 2;
/// Generations that one writing allows.
const GENERATIONS: u64 = 4096;

thread_local! {
    static SLOT: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS
    };
}

/// What an object is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub id: u64,
    /// 0: no object had the region before.
    pub generation: u64,
}

/// See the module.
pub(crate) struct Ids {
    slots: Vec<Mutex<Vec<Identity>>>,
    next: Mutex<Next>,
    again: Mutex<Again>,
    /// The first that no region has.
    end: u64,
    range: u64,
}

/// What region 0 has.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// The first identifier that was never in a batch.
    first: u64,
    /// Of the last writing.
    number: u64,
    /// The first generation that no object has.
    generations: u64,
    /// Whether objects without a superblock were ever made here. Else each object has one.
    has_plain: bool,
}

/// Further than a store can have given out since a damaged block was written.
const GENERATIONS_AFTER_DAMAGE: u64 = 1 << 32;

/// Identifiers that had an object.
struct Again {
    /// Removed; the removal may not be durable.
    removed: Vec<u64>,
    /// To be given.
    free: Vec<u64>,
    /// Given out before the store was opened, and not yet looked at. Those among them that are removed are found there.
    unknown: Range<u64>,
    /// Of the next batch.
    generation: u64,
    /// Those of objects that were made elsewhere, and are or were received: not to be given.
    received: HashSet<u64>,
}

impl Ids {
    /// As the store was left; in a new one nothing is there.
    pub fn open(layer: &dyn AddressSpace, range: u64) -> Result<Self> {
        let own = layer.own();
        let mut newest = match read_both(layer)? {
            Some((newest, true)) => newest,
            Some((_, false)) => {
                return Err(Error::Damaged(
                    "one of the two blocks that say which identifiers were given out".to_owned(),
                ));
            }
            None => Next { first: 1, number: 0, generations: 1, has_plain: false },
        };
        if newest.number == 0 {
            newest.begin(layer)?;
        }
        let slots = (0..SLOTS).map(|_| Mutex::default()).collect();
        let end = own.regions_end >> layer.region_shift();
        if newest.first > end {
            return Err(Error::Damaged(format!("identifiers: {} are given out, and there are {end}", newest.first)));
        }
        let range = range.min(end / PART_IN_SLOTS / SLOTS as u64).max(1);
        let unknown = 1..newest.first;
        let again = Again {
            removed: Vec::new(),
            free: Vec::new(),
            unknown,
            generation: newest.generations,
            received: HashSet::new(),
        };
        Ok(Self { slots, next: Mutex::new(newest), again: Mutex::new(again), end, range })
    }

    /// Makes what is damaged of the two blocks anew, from the other one and from the objects that are there: `highest`
    /// is the last of those. Returns false if they are in order.
    pub fn repair(layer: &dyn AddressSpace, highest: u64) -> Result<bool> {
        let Some((mut newest, false)) = read_both(layer)? else { return Ok(false) };
        let generations = newest.generations.saturating_add(GENERATIONS_AFTER_DAMAGE);
        let first = newest.first.max(highest.saturating_add(1));
        // The number of the damaged one may have been higher.
        newest.number += 1;
        for _ in 0..2 {
            newest.advance(layer, Next { first, generations, ..newest })?;
        }
        Ok(true)
    }

    /// Whether objects without a superblock may be there.
    pub fn has_plain(&self) -> bool {
        lock(&self.next).has_plain
    }

    /// An object without a superblock is about to be made: the store is to know for certain that there may be some.
    pub fn note_plain(&self, layer: &dyn AddressSpace) -> Result<()> {
        let mut next = lock(&self.next);
        if next.has_plain {
            return Ok(());
        }
        let after = Next { has_plain: true, ..*next };
        next.advance(layer, after)
    }

    /// The next one of this thread.
    pub fn take(&self, layer: &dyn AddressSpace) -> Result<Identity> {
        let slot = SLOT.with(|slot| self.slots.get(*slot)).ok_or(Error::Beyond)?;
        if let Some(identity) = lock(slot).pop() {
            return Ok(identity);
        }
        // Without the slot: whoever finds nothing looks into all of them.
        let mut batch = match self.batch(layer) {
            Err(Error::NoSpace) => return self.slots.iter().find_map(|slot| lock(slot).pop()).ok_or(Error::NoSpace),
            batch => batch?,
        };
        batch.reverse();
        let first = batch.pop().ok_or(Error::NoSpace)?;
        lock(slot).extend(batch);
        Ok(first)
    }

    /// Asked before an object is removed. `true`: [`Ids::note_removed`] is to be told when it was. `false`: its
    /// identifier is found in the mapping; at the next opening, if that is looked through at this very moment.
    pub fn is_known(&self, id: u64) -> bool {
        !lock(&self.again).unknown.contains(&id)
    }

    /// The mapping does not have it any more, or never had.
    pub fn note_removed(&self, id: u64) {
        let mut again = lock(&self.again);
        again.received.remove(&id);
        again.removed.push(id);
    }

    /// No object is there any more, and none comes back. Which identifiers are free is found in the mapping.
    pub fn forget_all(&self) {
        self.slots.iter().for_each(|slot| lock(slot).clear());
        let end = lock(&self.next).first;
        let mut again = lock(&self.again);
        again.removed.clear();
        again.free.clear();
        again.received.clear();
        again.unknown = 1..end;
    }

    /// Gives an identifier to nobody, and later generations than this one only, also after a crash. For objects that
    /// were made elsewhere.
    pub fn reserve(&self, layer: &dyn AddressSpace, id: u64, generation: u64) -> Result<()> {
        let too_high = || Error::OtherObject(format!("object {id}: its generation is too high"));
        let generations = generation.checked_add(1).filter(|next| *next < COUNTED_MAX).ok_or_else(too_high)?;
        {
            let mut again = lock(&self.again);
            again.received.insert(id);
            again.generation = again.generation.max(generations);
        }
        self.slots.iter().for_each(|slot| lock(slot).retain(|identity| identity.id != id));
        let mut next = lock(&self.next);
        // Fresh ones that are passed over are found free at the next opening.
        let first = if id < next.first { next.first } else { id.saturating_add(self.range).min(self.end) };
        let generations = if generations <= next.generations { next.generations } else { generations + GENERATIONS };
        let after = Next { first, generations, ..*next };
        if (after.first, after.generations) == (next.first, next.generations) {
            return Ok(());
        }
        next.advance(layer, after)
    }

    /// Syncs, after which what was removed before can be given again.
    pub fn sync(&self, layer: &dyn AddressSpace) -> Result<()> {
        let removed = std::mem::take(&mut lock(&self.again).removed);
        let synced = layer.sync();
        let mut again = lock(&self.again);
        if synced.is_ok() {
            again.free.extend(removed);
        } else {
            again.removed.extend(removed);
        }
        synced
    }

    /// Some that are nobody's, in the order in which they are to be given.
    fn batch(&self, layer: &dyn AddressSpace) -> Result<Vec<Identity>> {
        if let Some(batch) = self.used_before(layer)? {
            return Ok(batch);
        }
        match self.fresh(layer) {
            Err(Error::NoSpace) => {}
            batch => return batch,
        }
        self.sync(layer)?;
        loop {
            if let Some(batch) = self.used_before(layer)? {
                return Ok(batch);
            }
            if !self.look_at_some(layer)? {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Fresh ones.
    fn fresh(&self, layer: &dyn AddressSpace) -> Result<Vec<Identity>> {
        let mut next = lock(&self.next);
        let first = (next.first + self.range).min(self.end);
        if next.first >= self.end {
            return Err(Error::NoSpace);
        }
        let range = next.first..first;
        let after = Next { first, ..*next };
        next.advance(layer, after)?;
        Ok(range.map(|id| Identity { id, generation: 0 }).collect())
    }

    /// Those that had an object, if there are any.
    fn used_before(&self, layer: &dyn AddressSpace) -> Result<Option<Vec<Identity>>> {
        let (ids, generation) = {
            let mut again = lock(&self.again);
            if again.free.is_empty() {
                return Ok(None);
            }
            let kept = again.free.len().saturating_sub(as_index(self.range));
            let mut ids = again.free.split_off(kept);
            ids.retain(|id| !again.received.contains(id));
            if ids.is_empty() {
                return Ok(None);
            }
            again.generation += 1;
            (ids, again.generation - 1)
        };
        let allowed = {
            let mut next = lock(&self.next);
            if generation < next.generations {
                Ok(())
            } else {
                let after = Next { generations: generation + GENERATIONS, ..*next };
                next.advance(layer, after)
            }
        };
        if let Err(error) = allowed {
            lock(&self.again).free.extend(ids);
            return Err(error);
        }
        Ok(Some(ids.into_iter().map(|id| Identity { id, generation }).collect()))
    }

    /// Looks which of some that an earlier run has given out have no object. `false`: all were looked at.
    fn look_at_some(&self, layer: &dyn AddressSpace) -> Result<bool> {
        let (free, has_more) = {
            // Held while it looks: removals that are noted from now on are of objects that it has seen.
            let mut again = lock(&self.again);
            let end = again.unknown.end.min(again.unknown.start.saturating_add(RANGE));
            let mut free = Vec::new();
            for id in again.unknown.start..end {
                let first = id << layer.region_shift();
                if !layer.is_mapped(first)? && !again.received.contains(&id) {
                    // What is left of one that was not received wholly.
                    layer.trim(first..first + (1 << layer.region_shift()))?;
                    free.push(id);
                }
            }
            let has_more = !again.unknown.is_empty();
            again.unknown.start = end;
            (free, has_more)
        };
        if !free.is_empty() {
            layer.sync()?;
            lock(&self.again).free.extend(free);
        }
        Ok(has_more)
    }
}

impl Next {
    /// Has both blocks mapped for certain: from then on each writing is one call of the device, whatever else waits.
    fn begin(&mut self, layer: &dyn AddressSpace) -> Result<()> {
        for block in 0..2 {
            // Given out identifiers are on the device before anybody has one.
            if layer.is_mapped(layer.own().identifiers + block * BLOCK)? {
                return Err(Error::Damaged("what says which identifiers were given out".to_owned()));
            }
        }
        for _ in 0..2 {
            self.advance(layer, *self)?;
        }
        layer.close()
    }

    /// Has the device know it, and then takes it.
    fn advance(&mut self, layer: &dyn AddressSpace, after: Self) -> Result<()> {
        let after = Self { number: self.number + 1, ..after };
        layer.write_durable(layer.own().identifiers + (after.number % 2) * BLOCK, &encode(after))?;
        *self = after;
        Ok(())
    }
}

/// The newest of the two blocks, and whether both are as they were written. `None`: nothing was ever written. A block
/// is written within one sector, so it is never torn.
fn read_both(layer: &dyn AddressSpace) -> Result<Option<(Next, bool)>> {
    let mut found = [None; 2];
    for (block, place) in (0u64..).zip(&mut found) {
        let mut bytes = vec![0; BLOCK_BYTES];
        match layer.read(layer.own().identifiers + block * BLOCK, &mut bytes) {
            // As one that is not whole.
            Err(Error::Damaged(_)) => {}
            read => {
                read?;
                *place = decode(&bytes).filter(|next| next.number % 2 == block);
            }
        }
    }
    Ok(match found {
        [Some(one), Some(other)] => {
            let newest = if one.number > other.number { one } else { other };
            Some((newest, one.number.abs_diff(other.number) == 1))
        }
        // The second is written after the first, which has number 1.
        [Some(one), None] | [None, Some(one)] => Some((one, one.number == 1)),
        [None, None] => None,
    })
}

fn encode(next: Next) -> Vec<u8> {
    let numbers = [next.first, next.number, next.generations, u64::from(next.has_plain)];
    let mut bytes = [&MAGIC[..], &[0; 8], numbers.map(u64::to_le_bytes).as_flattened()].concat();
    seal(&mut bytes, CHECKSUM_AT);
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}

fn decode(block: &[u8]) -> Option<Next> {
    let bytes = block.first_chunk::<BYTES>()?;
    let next = Next {
        first: u64_at(bytes, 16)?,
        number: u64_at(bytes, 24)?,
        generations: u64_at(bytes, 32)?,
        has_plain: u64_at(bytes, 40)? == 1,
    };
    let is_whole = bytes.starts_with(MAGIC) && seal_of(bytes, CHECKSUM_AT).is_some();
    let is_possible = next.first > 0 && next.number.max(next.generations) < COUNTED_MAX;
    (is_whole && is_possible).then_some(next)
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_identifiers",
    example: || encode(Next { first: 1025, number: 3, generations: 4096, has_plain: true }),
    seal: |bytes| sealed_block(bytes, BYTES, CHECKSUM_AT),
    decode: |block| decode(block).map(encode),
};
