//! Changes of the mapping that are made together, and the checksums of what was written for them.

use crate::record::Entry;
use crate::sums::NO_SUM;

/// See the module. Checksums stand behind all that is mapped, since mapping a block takes away the one that it had.
#[derive(Default)]
pub(super) struct Changes {
    entries: Vec<Entry>,
    sums: Vec<Entry>,
}

impl Changes {
    /// Virtual blocks are mapped there.
    pub fn map(&mut self, first: u64, block: u64, count: u64) {
        let more = u32::try_from(count).expect("blocks are taken by few");
        if let Some(Entry::Map { first: before, block: place, count }) = self.entries.last_mut()
            && *before + u64::from(*count) == first
            && *place + u64::from(*count) == block
            && let Some(sum) = count.checked_add(more)
        {
            *count = sum;
        } else {
            self.entries.push(Entry::Map { first, block, count: more });
        }
    }

    /// A virtual block is mapped there, and has this checksum, if any.
    pub fn map_one(&mut self, block: u64, place: u64, sum: u32) {
        self.map(block, place, 1);
        if sum != NO_SUM {
            self.sums(place, std::iter::once(sum));
        }
    }

    /// Blocks that are mapped have these checksums, one behind the other.
    pub fn sums(&mut self, block: u64, new: impl Iterator<Item = u32>) {
        match self.sums.last_mut() {
            Some(Entry::Sums { block: before, sums }) if *before + sums.len() as u64 == block => sums.extend(new),
            _ => self.sums.push(Entry::Sums { block, sums: new.collect() }),
        }
    }

    /// Bytes that they take in a record.
    pub fn bytes(&self) -> usize {
        Entry::bytes_of(&self.entries) + Entry::bytes_of(&self.sums)
    }

    /// All of them, as a record has them.
    pub fn into_entries(mut self) -> Vec<Entry> {
        self.entries.append(&mut self.sums);
        self.entries
    }
}
