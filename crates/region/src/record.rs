//! Records of the log, as bytes.

use crate::error::{Error, Result};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::{BLOCK, BLOCK_BYTES};

const MAGIC: &[u8; 4] = b"WLOG";
const HEADER_BYTES: usize = 40;
/// Where some of its fields stand.
const CHECKSUM_AT: usize = 4;
const LENGTH_AT: usize = 24;
const CHAIN_AT: usize = 32;
/// Of the larger entry.
const ENTRY_BYTES_MAX: usize = 21;
/// Blocks of a record at most: a quarter of the smallest log.
pub(crate) const RECORD_BLOCKS_MAX: u64 = 64;
/// Entries that fit in one record for certain.
pub(crate) const ENTRIES_MAX: usize = (RECORD_BLOCKS_MAX as usize * BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES_MAX;

/// A change of the mapping. Virtual and physical blocks, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Map { first: u64, block: u64, count: u32 },
    Unmap { first: u64, count: u32 },
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
    /// The bytes of the record, whole blocks, and its checksum. `salt`: of the store.
    pub fn encode(&self, salt: [u8; 8]) -> (Vec<u8>, u32) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES_MAX);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&salt);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(self.entries.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&self.chain.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for entry in &self.entries {
            let (tag, first, block, count) = match *entry {
                Entry::Map { first, block, count } => (1, first, Some(block), count),
                Entry::Unmap { first, count } => (2, first, None, count),
            };
            bytes.push(tag);
            bytes.extend_from_slice(&first.to_le_bytes());
            if let Some(block) = block {
                bytes.extend_from_slice(&block.to_le_bytes());
            }
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if let Some(field) = bytes.get_mut(LENGTH_AT..LENGTH_AT + 4) {
            field.copy_from_slice(&length.to_le_bytes());
        }
        let checksum = seal(&mut bytes, CHECKSUM_AT);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        (bytes, checksum)
    }

    /// Blocks of the record that begins with this block, if it is one of ours with this sequence, behind the record
    /// with this checksum.
    pub fn blocks_of(first: &[u8], salt: [u8; 8], sequence: u64, chain: u32) -> Option<u64> {
        let field = |at: usize, bytes: usize| first.get(at..at + bytes);
        let is_ours = field(0, 4) == Some(MAGIC)
            && field(8, 8) == Some(&salt)
            && u64_at(first, 16) == Some(sequence)
            && u32_at(first, CHAIN_AT) == Some(chain);
        let length = u32_at(first, LENGTH_AT)?;
        let blocks = u64::from(length).div_ceil(BLOCK);
        (is_ours && length as usize >= HEADER_BYTES && blocks <= RECORD_BLOCKS_MAX).then_some(blocks)
    }

    /// The sequence and the blocks of a record of any store that seems to begin with this block.
    pub fn begins(first: &[u8]) -> Option<(u64, u64)> {
        let length = u64::from(u32_at(first, LENGTH_AT)?);
        let fits = first.starts_with(MAGIC) && (HEADER_BYTES as u64..=RECORD_BLOCKS_MAX * BLOCK).contains(&length);
        fits.then_some((u64_at(first, 16)?, length.div_ceil(BLOCK)))
    }

    /// The record in these blocks, as [`Record::blocks_of`] counted them, and its checksum. `None`: it is not whole. An
    /// error: it is, and makes no sense.
    pub fn decode(blocks: &[u8], sequence: u64) -> Result<Option<(Self, u32)>> {
        let whole = || {
            let bytes = blocks.get(..u32_at(blocks, LENGTH_AT)? as usize)?;
            Some((bytes.get(HEADER_BYTES..)?, u32_at(bytes, CHAIN_AT)?, seal_of(bytes, CHECKSUM_AT)?))
        };
        let Some((mut rest, chain, checksum)) = whole() else { return Ok(None) };
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, behind) =
                entry_of(rest).ok_or_else(|| Error::Damaged(format!("an entry of log record {sequence}")))?;
            entries.push(entry);
            rest = behind;
        }
        Ok(Some((Self { sequence, chain, entries }, checksum)))
    }
}

fn entry_of(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first_chunk::<8>()?;
    let first = u64::from_le_bytes(*first);
    match tag {
        1 => {
            let (block, rest) = rest.split_first_chunk::<8>()?;
            let (count, rest) = rest.split_first_chunk::<4>()?;
            let (block, count) = (u64::from_le_bytes(*block), u32::from_le_bytes(*count));
            Some((Entry::Map { first, block, count }, rest))
        }
        2 => {
            let (count, rest) = rest.split_first_chunk::<4>()?;
            Some((Entry::Unmap { first, count: u32::from_le_bytes(*count) }, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(count: u64) -> Record {
        let entry = |number: u64| {
            let count = u32::try_from(number % 7 + 1).unwrap();
            if number.is_multiple_of(3) {
                Entry::Unmap { first: number << 40, count }
            } else {
                Entry::Map { first: number * 1000, block: number, count }
            }
        };
        Record { sequence: 5, chain: 9, entries: (0..count).map(entry).collect() }
    }

    #[test]
    fn a_record_comes_back_and_a_part_of_it_does_not() {
        for count in [0, 1, 300, ENTRIES_MAX as u64] {
            let record = record(count);
            let (bytes, checksum) = record.encode([3; 8]);
            let blocks = Record::blocks_of(&bytes, [3; 8], 5, 9).unwrap();
            assert_eq!(bytes.len() as u64, blocks * BLOCK);
            assert_eq!(Record::decode(&bytes, 5).unwrap(), Some((record, checksum)));
            assert_eq!(Record::blocks_of(&bytes, [4; 8], 5, 9), None, "of another store");
            assert_eq!(Record::blocks_of(&bytes, [3; 8], 6, 9), None, "of another time");
            assert_eq!(Record::blocks_of(&bytes, [3; 8], 5, 8), None, "behind another record");
            if count > 0 {
                let mut torn = bytes.clone();
                let last = torn.iter().rposition(|byte| *byte != 0).unwrap();
                torn[last] = 0;
                assert_eq!(Record::decode(&torn, 5).unwrap(), None);
            }
        }
    }

    proptest! {
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
            let _ = Record::blocks_of(&bytes, [0; 8], 1, 0);
        }
    }
}
