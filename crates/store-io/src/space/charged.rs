//! The bytes of an object that are charged: a dense prefix, and granules written beyond the first hole.
//!
//! A part of a split file has the file's own offsets, so most of it may be a hole. What lies behind one is charged by
//! granules: of small pieces with small gaps the gaps are charged, too.
//!
//! Invariant: no granule ends within the dense bytes.

use std::collections::BTreeMap;

/// Bytes of a granule.
pub const GRANULE_BYTES: u64 = 64 << 10;
/// Granules of a word.
const WORD: u64 = 64;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Charged {
    /// All bytes before this.
    dense: u64,
    /// Granules, by 64: a bit for each.
    behind: BTreeMap<u64, u64>,
    /// Number of them.
    granules: u64,
}

impl Charged {
    /// All bytes of an object without holes.
    pub fn dense(bytes: u64) -> Self {
        Self { dense: bytes, ..Self::default() }
    }

    /// Bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.dense + self.granules * GRANULE_BYTES
    }

    /// Whether there is more than the object's length tells.
    pub fn has_holes(&self) -> bool {
        self.granules > 0
    }

    fn has(&self, granule: u64) -> bool {
        self.behind.get(&(granule / WORD)).is_some_and(|word| word >> (granule % WORD) & 1 == 1)
    }

    /// Bytes to be charged for a write.
    pub fn missing(&self, start: u64, end: u64) -> u64 {
        if end <= self.dense {
            return 0;
        }
        if start <= self.dense {
            return (end - self.dense).saturating_sub(self.count_before(end / GRANULE_BYTES) * GRANULE_BYTES);
        }
        let granules = start / GRANULE_BYTES..end.div_ceil(GRANULE_BYTES);
        granules.filter(|granule| !self.has(*granule)).count() as u64 * GRANULE_BYTES
    }

    /// Number of granules before this one.
    fn count_before(&self, granule: u64) -> u64 {
        let before = |(word, bits): (&u64, &u64)| match granule.checked_sub(word * WORD) {
            Some(first @ 0..WORD) => (bits & ((1 << first) - 1)).count_ones(),
            _ => bits.count_ones(),
        };
        self.behind.range(..=granule / WORD).map(before).map(u64::from).sum()
    }

    /// A write is charged.
    pub fn add(&mut self, start: u64, end: u64) {
        if end <= self.dense {
            return;
        }
        if start > self.dense {
            for granule in start / GRANULE_BYTES..end.div_ceil(GRANULE_BYTES) {
                if !self.has(granule) {
                    *self.behind.entry(granule / WORD).or_default() |= 1 << (granule % WORD);
                    self.granules += 1;
                }
            }
            return;
        }
        self.dense = end;
        self.retain(end / GRANULE_BYTES..u64::MAX);
    }

    /// The object ends here now.
    pub fn cut(&mut self, end: u64) {
        self.dense = self.dense.min(end);
        self.retain(0..end.div_ceil(GRANULE_BYTES));
    }

    /// Drops all granules but these.
    fn retain(&mut self, granules: std::ops::Range<u64>) {
        self.behind.retain(|word, bits| {
            let first = word * WORD;
            for bit in 0..WORD {
                if !granules.contains(&(first + bit)) {
                    *bits &= !(1 << bit);
                }
            }
            *bits != 0
        });
        self.granules = self.behind.values().map(|bits| u64::from(bits.count_ones())).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_charged_covers_what_was_written_and_no_more_than_the_granules_of_it() {
        let (mut seed, length) = (7_u64, 40 * GRANULE_BYTES);
        for _ in 0..200 {
            let (mut charged, mut written, mut granules) = (Charged::default(), vec![false; 40 * 64], BTreeSet::new());
            for _ in 0..30 {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let start = (seed >> 33) % length / 1024 * 1024;
                let end = (start + 1024 * (1 + (seed >> 20) % 150)).min(length);
                let before = charged.bytes();
                if seed.is_multiple_of(9) {
                    charged.cut(start);
                    written[(start / 1024) as usize..].fill(false);
                    granules.retain(|granule| granule * GRANULE_BYTES < start);
                    assert!(charged.bytes() <= before);
                    continue;
                }
                let missing = charged.missing(start, end);
                charged.add(start, end);
                written[(start / 1024) as usize..(end / 1024) as usize].fill(true);
                granules.extend(start / GRANULE_BYTES..end.div_ceil(GRANULE_BYTES));
                assert!(charged.bytes() <= before + missing, "{charged:?}");
                assert_eq!(charged.missing(start, end), 0);
                let has = written.iter().filter(|is| **is).count() as u64 * 1024;
                // Of the first granule behind the dense bytes some may be counted twice.
                let most = (granules.len() as u64 + 1) * GRANULE_BYTES;
                assert!(charged.bytes() >= has && charged.bytes() <= most, "{has} {charged:?} {most}");
            }
        }
    }

    #[test]
    fn an_object_without_holes_is_charged_by_its_bytes() {
        let mut charged = Charged::dense(100);
        assert_eq!((charged.missing(0, 50), charged.missing(100, 150)), (0, 50));
        charged.add(80, 150);
        assert_eq!((charged.bytes(), charged.has_holes()), (150, false));
        assert_eq!(charged.missing(10 * GRANULE_BYTES, 10 * GRANULE_BYTES + 1), GRANULE_BYTES);
        charged.add(10 * GRANULE_BYTES, 10 * GRANULE_BYTES + 1);
        assert_eq!((charged.bytes(), charged.has_holes()), (150 + GRANULE_BYTES, true));
        charged.add(150, 11 * GRANULE_BYTES);
        assert_eq!((charged.bytes(), charged.has_holes()), (11 * GRANULE_BYTES, false));
    }
}
