//! Records of the log, as bytes.

use crate::error::{Error, Result};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::sectors::PAYLOAD;

const MAGIC: &[u8; 4] = b"WLOG";
const HEADER_BYTES: usize = 40;
/// Where some of its fields stand.
const CHECKSUM_AT: usize = 4;
pub(crate) const SEQUENCE_AT: usize = 16;
const LENGTH_AT: usize = 24;
const CHAIN_AT: usize = 32;
/// Of the larger entry that maps blocks.
const ENTRY_BYTES_MAX: usize = 21;
/// Blocks of a record at most: a quarter of the smallest log.
pub(crate) const RECORD_BLOCKS_MAX: u64 = 64;
/// Bytes of entries that fit in one record.
pub(crate) const ENTRIES_BYTES_MAX: usize = RECORD_BLOCKS_MAX as usize * PAYLOAD - HEADER_BYTES;
/// Entries that map blocks, so many of which fit for certain.
pub(crate) const ENTRIES_MAX: usize = ENTRIES_BYTES_MAX / ENTRY_BYTES_MAX;

/// A change of the mapping. Virtual and physical blocks, and how many; or checksums of physical ones; or physical ones
/// in which objects may begin from now on, and the number that they are marked with; or the last commit of an object
/// that was on the device before the record, with sequence 0 if nothing is known of one any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Map { first: u64, block: u64, count: u32 },
    Unmap { first: u64, count: u32 },
    Sums { block: u64, sums: Vec<u32> },
    Ready { block: u64, count: u32, number: u64 },
    Confirmed { object: u64, nonce: u64, sequence: u64 },
}

impl Entry {
    /// Bytes that it has in a record.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Map { .. } | Self::Ready { .. } => ENTRY_BYTES_MAX,
            Self::Unmap { .. } => 13,
            Self::Confirmed { .. } => 25,
            Self::Sums { sums, .. } => 13 + 4 * sums.len(),
        }
    }

    /// Bytes of several.
    pub fn bytes_of(entries: &[Self]) -> usize {
        entries.iter().map(Self::bytes).sum()
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        let (tag, first) = match *self {
            Self::Map { first, .. } => (1, first),
            Self::Unmap { first, .. } => (2, first),
            Self::Sums { block, .. } => (3, block),
            Self::Ready { number, .. } => (4, number),
            Self::Confirmed { object, .. } => (5, object),
        };
        bytes.push(tag);
        bytes.extend_from_slice(&first.to_le_bytes());
        match self {
            Self::Map { block, count, .. } | Self::Ready { block, count, .. } => {
                bytes.extend_from_slice(&block.to_le_bytes());
                bytes.extend_from_slice(&count.to_le_bytes());
            }
            Self::Unmap { count, .. } => bytes.extend_from_slice(&count.to_le_bytes()),
            Self::Confirmed { nonce, sequence, .. } => {
                bytes.extend_from_slice(&nonce.to_le_bytes());
                bytes.extend_from_slice(&sequence.to_le_bytes());
            }
            Self::Sums { sums, .. } => {
                bytes.extend_from_slice(&u32::try_from(sums.len()).expect("a record is short").to_le_bytes());
                bytes.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
            }
        }
    }

    /// The entry that these bytes begin with, and those behind it.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (tag, rest) = bytes.split_first()?;
        let (first, mut rest) = number(rest)?;
        if *tag == 5 {
            let (nonce, rest) = number(rest)?;
            let (sequence, rest) = number(rest)?;
            return Some((Self::Confirmed { object: first, nonce, sequence }, rest));
        }
        let mut block = 0;
        if matches!(tag, 1 | 4) {
            (block, rest) = number(rest)?;
        }
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count);
        match tag {
            1 => Some((Self::Map { first, block, count }, rest)),
            2 => Some((Self::Unmap { first, count }, rest)),
            3 => {
                let (sums, rest) = rest.split_at_checked((count as usize).checked_mul(4)?)?;
                let sums = sums.chunks_exact(4).filter_map(|sum| u32_at(sum, 0)).collect();
                Some((Self::Sums { block: first, sums }, rest))
            }
            4 => Some((Self::Ready { block, count, number: first }, rest)),
            _ => None,
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// Changes that count together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub sequence: u64,
    /// The checksum of the record before.
    pub chain: u32,
    pub entries: Vec<Entry>,
}

impl Record {
    /// Replaces `bytes` by those of the record, which go into sectors, and returns its checksum. `salt`: of the store.
    pub fn encode(&self, salt: [u8; 8], bytes: &mut Vec<u8>) -> u32 {
        bytes.clear();
        bytes.reserve(HEADER_BYTES + Entry::bytes_of(&self.entries));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&salt);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(self.entries.len()).expect("a record is short").to_le_bytes());
        bytes.extend_from_slice(&self.chain.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        self.entries.iter().for_each(|entry| entry.encode(bytes));
        let length = u32::try_from(bytes.len()).expect("a record is short");
        if let Some(field) = bytes.get_mut(LENGTH_AT..LENGTH_AT + 4) {
            field.copy_from_slice(&length.to_le_bytes());
        }
        seal(bytes, CHECKSUM_AT)
    }

    /// Any bytes with a length that is theirs and the checksum of that.
    pub fn sealed(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().max(HEADER_BYTES), 0);
        let length = bytes.len();
        if let Some(field) = bytes.get_mut(LENGTH_AT..LENGTH_AT + 4) {
            field.copy_from_slice(&u32::try_from(length).expect("a record is short").to_le_bytes());
        }
        seal(&mut bytes, CHECKSUM_AT);
        bytes
    }

    /// Blocks of the record whose first sector holds this. `None`: no record of this store can begin so, or of any
    /// store if none is given.
    pub fn blocks_of(first: &[u8], salt: Option<[u8; 8]>, sequence: u64) -> Option<u64> {
        let field = |at: usize, bytes: usize| first.get(at..at + bytes);
        let is_ours = field(0, 4) == Some(MAGIC)
            && salt.is_none_or(|salt| field(8, 8) == Some(&salt))
            && u64_at(first, SEQUENCE_AT) == Some(sequence);
        let length = u32_at(first, LENGTH_AT)? as usize;
        let blocks = length.div_ceil(PAYLOAD) as u64;
        (is_ours && length >= HEADER_BYTES && blocks <= RECORD_BLOCKS_MAX).then_some(blocks)
    }

    /// The record in these bytes, of as many blocks as [`Record::blocks_of`] counted, and its checksum. `None`: its
    /// sectors are not of one record. An error: they are, and it makes no sense.
    pub fn decode(blocks: &[u8], sequence: u64) -> Result<Option<(Self, u32)>> {
        let whole = || {
            let bytes = blocks.get(..u32_at(blocks, LENGTH_AT)? as usize)?;
            Some((bytes.get(HEADER_BYTES..)?, u32_at(bytes, CHAIN_AT)?, seal_of(bytes, CHECKSUM_AT)?))
        };
        let Some((mut rest, chain, checksum)) = whole() else { return Ok(None) };
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, behind) =
                Entry::decode(rest).ok_or_else(|| Error::Damaged(format!("an entry of log record {sequence}")))?;
            entries.push(entry);
            rest = behind;
        }
        Ok(Some((Self { sequence, chain, entries }, checksum)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(count: u64) -> Record {
        let entry = |number: u64| {
            let count = u32::try_from(number % 7 + 1).unwrap();
            match number % 6 {
                0 => Entry::Unmap { first: number << 40, count },
                1 => Entry::Sums { block: number, sums: (0..count % 3).collect() },
                2 => Entry::Ready { block: number, count, number: number << 50 },
                3 => Entry::Confirmed { object: number, nonce: number << 50, sequence: number << 20 },
                _ => Entry::Map { first: number * 1000, block: number, count },
            }
        };
        Record { sequence: 5, chain: 9, entries: (0..count).map(entry).collect() }
    }

    fn encoded(record: &Record, salt: [u8; 8]) -> (Vec<u8>, u32) {
        let mut bytes = vec![1; 100];
        let checksum = record.encode(salt, &mut bytes);
        (bytes, checksum)
    }

    #[test]
    fn a_record_comes_back_and_a_part_of_it_does_not() {
        for count in [0, 1, 300, ENTRIES_MAX as u64 / 2] {
            let record = record(count);
            let (bytes, checksum) = encoded(&record, [3; 8]);
            assert_eq!(bytes.len(), HEADER_BYTES + Entry::bytes_of(&record.entries));
            let blocks = Record::blocks_of(&bytes, Some([3; 8]), 5).unwrap();
            assert_eq!(bytes.len().div_ceil(PAYLOAD) as u64, blocks);
            assert_eq!(Record::decode(&bytes, 5).unwrap(), Some((record, checksum)));
            assert_eq!(Record::blocks_of(&bytes, Some([4; 8]), 5), None, "of another store");
            assert_eq!(Record::blocks_of(&bytes, Some([3; 8]), 6), None, "of another time");
            if count > 0 {
                let mut torn = bytes.clone();
                let last = torn.iter().rposition(|byte| *byte != 0).unwrap();
                torn[last] = 0;
                assert_eq!(Record::decode(&torn, 5).unwrap(), None);
            }
        }
    }

    #[test]
    fn a_record_of_checksums_can_be_full() {
        let sums: Vec<u32> = (0..63_474).collect();
        let record = Record { sequence: 5, chain: 9, entries: vec![Entry::Sums { block: 3, sums }] };
        let bytes = Entry::bytes_of(&record.entries);
        assert!(bytes <= ENTRIES_BYTES_MAX && bytes + 4 > ENTRIES_BYTES_MAX);
        let (bytes, checksum) = encoded(&record, [3; 8]);
        assert_eq!(Record::blocks_of(&bytes, Some([3; 8]), 5), Some(RECORD_BLOCKS_MAX));
        assert_eq!(Record::decode(&bytes, 5).unwrap(), Some((record, checksum)));
    }

    proptest! {
        /// Entries with whatever numbers, in a record that is whole: they come back or are refused.
        #[test]
        fn any_entries_are_taken_without_a_panic(
            entries in prop::collection::vec((0..7u8, any::<u64>(), any::<u64>(), 0..70u32, 0..70usize), 0..6),
        ) {
            let mut bytes = encoded(&Record { sequence: 1, chain: 0, entries: Vec::new() }, [0; 8]).0;
            bytes.truncate(HEADER_BYTES);
            for (tag, first, block, count, have) in entries {
                bytes.push(tag);
                bytes.extend_from_slice(&first.to_le_bytes());
                if tag == 1 || tag == 4 {
                    bytes.extend_from_slice(&block.to_le_bytes());
                }
                if tag == 5 {
                    bytes.extend_from_slice(&[block.to_le_bytes(), first.to_le_bytes()].concat());
                    continue;
                }
                bytes.extend_from_slice(&count.to_le_bytes());
                // Mostly as many as it says.
                let have = if have % 4 == 0 { have } else { count as usize };
                bytes.extend((0..have * usize::from(tag == 3) * 4).map(|at| u8::try_from(at % 256).unwrap()));
            }
            let length = u32::try_from(bytes.len()).unwrap();
            bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
            seal(&mut bytes, CHECKSUM_AT);
            if let Ok(found) = Record::decode(&bytes, 1) {
                let (record, _) = found.unwrap();
                prop_assert_eq!(Entry::bytes_of(&record.entries), bytes.len() - HEADER_BYTES);
                let again = encoded(&record, [0; 8]).0;
                prop_assert_eq!(&again[HEADER_BYTES..bytes.len()], &bytes[HEADER_BYTES..]);
            }
        }

        #[test]
        fn any_bytes_are_taken_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), seal: bool) {
            let mut bytes = bytes;
            if seal && bytes.len() >= HEADER_BYTES {
                let length = u32::try_from(bytes.len()).unwrap();
                bytes[24..28].copy_from_slice(&length.to_le_bytes());
                bytes[4..8].fill(0);
                let checksum = crc32c::crc32c(&bytes);
                bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
            }
            let _ = Record::decode(&bytes, 1);
            let _ = Record::blocks_of(&bytes, Some([0; 8]), 1);
        }
    }
}
