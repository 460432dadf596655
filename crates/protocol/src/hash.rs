//! Hash tables that behave the same in every run, for keys that are numbers of ours.
//!
//! Inode numbers are given in sequence and used in sequence: eight neighbours share a place in the table, so that work
//! on files made one after the other finds them in one stretch of memory. Without a secret: whoever chooses the keys
//! could make a table slow; names enter by their hash, numbers are given by the shards.

use std::hash::{BuildHasherDefault, Hasher};

/// A table that is never iterated where the order would show in what is decided.
#[expect(clippy::disallowed_types, reason = "a fixed hasher: the same order in each run")]
pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<BlockHasher>>;

/// Spreads all bits over all bits (the finalizer of MurmurHash3).
pub fn spread(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// Numbers that differ in their lowest three bits only get the same place (the lower bits), and differ in the topmost
/// seven bits, by which the table tells neighbours apart without a look at the keys.
#[derive(Clone, Copy, Default, Debug)]
pub struct BlockHasher {
    place: u64,
    tag: u64,
}

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.place >> 7 | (self.tag ^ self.place) << 57
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.place = spread(self.place ^ number >> 3);
        self.tag = self.tag << 3 | number & 7;
    }

    /// The kind of an enumeration's value.
    fn write_isize(&mut self, number: isize) {
        self.tag = self.tag << 2 ^ number as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InodeNumber, LeaseKey};
    use std::collections::BTreeSet;
    use std::hash::Hash;

    fn hash(key: impl Hash) -> u64 {
        let mut hasher = BlockHasher::default();
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn place(key: impl Hash) -> u64 {
        hash(key) & 0xffff_ffff
    }

    #[test]
    fn neighbours_are_together_and_told_apart() {
        let inode = InodeNumber::from_raw;
        assert_eq!(place(inode(8)), place(inode(15)));
        assert_eq!(place(LeaseKey::Data(inode(8))), place(LeaseKey::Attributes(inode(15))));
        assert_ne!(place(inode(15)), place(inode(16)));
        let keys = (8..16).flat_map(|n| [LeaseKey::Data(inode(n)), LeaseKey::Attributes(inode(n))]);
        let tags: BTreeSet<u64> = keys.map(|key| hash(key) >> 57).collect();
        assert_eq!(tags.len(), 16);
    }

    #[test]
    fn blocks_are_spread_evenly() {
        let mut counts = [0_u32; 64];
        for number in 0..64_000 {
            counts[(place(InodeNumber::from_raw(number * 8)) % 64) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
