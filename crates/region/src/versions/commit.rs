//! Bytes of commits, and of the super blocks of objects that keep versions: docs/formats/region-store.md.

use crate::BLOCK_BYTES;
use crate::decoder::{Decoder, framed, sealed_block};
use crate::error::{Error, Result};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::sectors::{PAYLOAD, PAYLOAD_AT as SECTOR_PAYLOAD_AT, SECTOR, STAMP_AT, Sector, frame, sectors, unframed};

const SUPER_MAGIC: &[u8; 8] = b"WEFTOBJ\0";
const SUPER_BYTES: usize = 64;
const MODE_VERSIONS: u32 = 2;
const MAGIC: &[u8; 8] = b"WEFTCMT\0";
const CHECKSUM_AT: usize = 8;
const ENTRIES_AT: usize = 96;
const ENTRY_BYTES: usize = 32;
/// Entries of a commit at most.
pub(super) const ENTRIES_MAX: usize = (PAYLOAD - ENTRIES_AT) / ENTRY_BYTES;
/// Of the checksums of a commit's sectors.
const SEED: u64 = 0x57_43_4d_54;
/// A sector with a stamp that differs from the right one in so few bits was written with that one. Of other bytes one
/// in 2^31 has such a stamp.
const STAMP_BITS_WRONG_MAX: u32 = 8;

/// Low bits of a sequence, in which commits between two versions are numbered. What is above them is the version.
const BETWEEN_BITS: u32 = 20;

/// The version that a commit is, or that it follows.
pub(crate) fn version_of(sequence: u64) -> u64 {
    sequence >> BETWEEN_BITS
}

/// The sequence of a version's commit. An error: no version can have this number.
pub(super) fn sequence_of(version: u64) -> Result<u64> {
    version.checked_mul(1 << BETWEEN_BITS).ok_or(Error::NoVersion)
}

/// What the super block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Super {
    pub id: u64,
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub made: u64,
    /// The same in all copies of an object: the nonce of the one that was made first.
    pub lineage: u64,
}

impl Super {
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.id, self.nonce, self.made, self.lineage].map(u64::to_le_bytes).concat();
        let mut bytes = [&SUPER_MAGIC[..], &[0; 4], &MODE_VERSIONS.to_le_bytes(), &numbers].concat();
        bytes.resize(SUPER_BYTES, 0);
        seal(&mut bytes, CHECKSUM_AT);
        bytes.resize(BLOCK_BYTES, 0);
        bytes
    }

    /// `None`: these are not the super block of this object, or it keeps no versions.
    pub fn decode(block: &[u8], id: u64) -> Option<Self> {
        Self::decode_any(block).filter(|found| found.id == id)
    }

    /// The same, of any object.
    pub fn decode_any(block: &[u8]) -> Option<Self> {
        let bytes = block.first_chunk::<SUPER_BYTES>()?;
        let [id, nonce, made, lineage] =
            [u64_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?, u64_at(bytes, 40)?];
        let found = Self { id, nonce, made, lineage };
        let is_ours = bytes.starts_with(SUPER_MAGIC) && u32_at(bytes, 12)? == MODE_VERSIONS;
        (is_ours && seal_of(bytes, CHECKSUM_AT).is_some()).then_some(found)
    }
}

/// Why a commit is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Written = 1,
    /// Data of older commits, brought here by the cleaner.
    Moved = 2,
    /// A part of a version that was received: what it has can be read when that is there.
    Part = 3,
}

/// Blocks of the object that a commit has, in the order of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub first: u64,
    pub version: u64,
    pub count: u64,
    /// Otherwise they are a hole, and no data are there.
    pub has_data: bool,
}

/// A commit's block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Commit {
    pub kind: Kind,
    pub nonce: u64,
    pub opening: u64,
    pub sequence: u64,
    pub parent: u64,
    pub chain: u32,
    pub data_checksum: u32,
    /// With the commit's own.
    pub blocks: u32,
    pub size: u64,
    pub time: u64,
    pub safe: u64,
    /// Where the commit is.
    pub position: u64,
    pub entries: Vec<Entry>,
}

/// The stamp of the sectors of a commit's block. No two commits of an object have the same position.
fn stamp_of(nonce: u64, position: u64) -> u64 {
    nonce.wrapping_add(position)
}

/// Returns true if a block that has no whole commit has a sector that was written with one at this position, and is
/// not as it was written. Sectors of anything else are what was there before a write that a power failure cut off.
pub(super) fn is_damaged(block: &[u8], nonce: u64, position: u64) -> bool {
    let stamp = stamp_of(nonce, position);
    let is_near = |sector: &[u8]| {
        u64_at(sector, STAMP_AT).is_some_and(|found| (found ^ stamp).count_ones() <= STAMP_BITS_WRONG_MAX)
    };
    block
        .chunks(SECTOR)
        .zip(sectors(block, SEED, |_| 0))
        .any(|(bytes, sector)| sector == Sector::Wrong && is_near(bytes))
}

/// Returns true if two checksums are of bytes of this length that differ in one bit.
pub(super) fn is_one_bit(one: u32, other: u32, bytes: u64) -> bool {
    /// Of CRC-32C, the lowest bit first.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let (wrong, mut effect) = (one ^ other, POLYNOMIAL);
    // From the last bit to the first.
    (0..bytes * 8).any(|_| {
        let found = effect == wrong;
        effect = effect >> 1 ^ if effect & 1 == 1 { POLYNOMIAL } else { 0 };
        found
    })
}

impl Commit {
    /// Fills a block, and returns the checksum of what it says.
    pub fn encode(&self, block: &mut [u8]) -> u32 {
        let mut bytes = Vec::with_capacity(ENTRIES_AT + self.entries.len() * ENTRY_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(self.kind as u32).to_le_bytes());
        for number in [self.nonce, self.opening, self.sequence, self.parent] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let entries = u32::try_from(self.entries.len()).expect("a commit has few entries");
        for number in [self.chain, self.data_checksum, self.blocks, entries] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.size, self.time, self.safe, self.position] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for entry in &self.entries {
            for number in [entry.first, entry.version, entry.count, u64::from(entry.has_data)] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        let checksum = seal(&mut bytes, CHECKSUM_AT);
        frame(block, &bytes, SEED, stamp_of(self.nonce, self.position), |_| 0);
        checksum
    }

    /// For people.
    pub fn describe(&self) -> String {
        let what = match self.kind {
            Kind::Written => "version",
            Kind::Moved => "data moved behind version",
            Kind::Part => "a part received behind version",
        };
        let (data, entries) = (self.blocks - 1, self.entries.len());
        format!(
            "{what} {} of an object with nonce {:016x}: {data} blocks in {entries} pieces, size {}",
            version_of(self.sequence),
            self.nonce,
            self.size
        )
    }

    /// The commit in a block, and its checksum. `None`: there is no whole one, or it contradicts itself.
    pub fn decode(block: &[u8]) -> Option<(Self, u32)> {
        if block.get(SECTOR_PAYLOAD_AT..)?.get(..MAGIC.len())? != MAGIC || block.len() != BLOCK_BYTES {
            return None;
        }
        let stamp = u64_at(block, STAMP_AT)?;
        let block = &unframed(sectors(block, SEED, |_| 0), stamp)?[..];
        let count = usize::try_from(u32_at(block, 60)?).ok().filter(|count| *count <= ENTRIES_MAX)?;
        let checksum = seal_of(block.get(..ENTRIES_AT + count * ENTRY_BYTES)?, CHECKSUM_AT)?;
        let kind = match u32_at(block, 12)? {
            1 => Kind::Written,
            2 => Kind::Moved,
            3 => Kind::Part,
            _ => return None,
        };
        let entry = |number: usize| {
            let at = ENTRIES_AT + number * ENTRY_BYTES;
            Some(Entry {
                first: u64_at(block, at)?,
                version: u64_at(block, at + 8)?,
                count: u64_at(block, at + 16)?,
                has_data: u64_at(block, at + 24)? == 1,
            })
        };
        let commit = Self {
            kind,
            nonce: u64_at(block, 16)?,
            opening: u64_at(block, 24)?,
            sequence: u64_at(block, 32)?,
            parent: u64_at(block, 40)?,
            chain: u32_at(block, 48)?,
            data_checksum: u32_at(block, 52)?,
            blocks: u32_at(block, 56)?,
            size: u64_at(block, 64)?,
            time: u64_at(block, 72)?,
            safe: u64_at(block, 80)?,
            position: u64_at(block, 88)?,
            entries: (0..count).map(entry).collect::<Option<_>>()?,
        };
        let sum = |sum: u64, entry: &Entry| {
            entry.first.checked_add(entry.count)?;
            sum.checked_add(if entry.has_data { entry.count } else { 0 })
        };
        let data = commit.entries.iter().try_fold(0, sum)?;
        let fits = Some(u64::from(commit.blocks)) == data.checked_add(1);
        (fits && stamp == stamp_of(commit.nonce, commit.position)).then_some((commit, checksum))
    }
}

/// See [`crate::decoders`].
pub(crate) const SUPER_DECODER: Decoder = Decoder {
    name: "region_versioned",
    example: || Super { id: 7, nonce: 8, made: 9, lineage: 10 }.encode(),
    seal: |bytes| sealed_block(bytes, SUPER_BYTES, CHECKSUM_AT),
    decode: |block| Super::decode_any(block).map(|found| found.encode()),
};

/// See [`crate::decoders`].
pub(crate) const COMMIT_DECODER: Decoder = Decoder {
    name: "region_commit",
    example: || {
        let entries = vec![Entry { first: 3, version: 1 << BETWEEN_BITS, count: 2, has_data: true }];
        let (nonce, opening, sequence, parent) = (8, 9, 1 << BETWEEN_BITS, 0);
        let (chain, data_checksum, blocks) = (0, 1, 3);
        let (size, time, safe, position) = (20_000, 5, 0, 6);
        let kind = Kind::Written;
        let commit = Commit {
            kind,
            nonce,
            opening,
            sequence,
            parent,
            chain,
            data_checksum,
            blocks,
            size,
            time,
            safe,
            position,
            entries,
        };
        let mut block = vec![0; BLOCK_BYTES];
        commit.encode(&mut block);
        block.chunks(SECTOR).flat_map(|sector| sector[SECTOR_PAYLOAD_AT..].to_vec()).collect()
    },
    seal: |payload| {
        let mut payload = payload.to_vec();
        payload.resize(PAYLOAD, 0);
        let entries = u32_at(&payload, 60).map_or(0, |count| count as usize);
        let checked = entries.saturating_mul(ENTRY_BYTES).saturating_add(ENTRIES_AT);
        // More entries than there is room for are refused without it.
        if let Some(checked) = payload.get_mut(..checked) {
            seal(checked, CHECKSUM_AT);
        }
        let number = |at| u64_at(&payload, at).unwrap_or(0);
        framed(&payload, SEED, stamp_of(number(16), number(88)), |_| 0)
    },
    decode: |block| {
        let nearly = |at| u64_at(block, at).unwrap_or(0);
        let _ = is_damaged(block, nearly(SECTOR_PAYLOAD_AT + 16), nearly(SECTOR_PAYLOAD_AT + 88));
        let (commit, _) = Commit::decode(block)?;
        let _ = commit.describe();
        let mut again = vec![0; BLOCK_BYTES];
        commit.encode(&mut again);
        Some(again)
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn commit(entries: Vec<(u64, u64, u64, bool)>, numbers: [u64; 8]) -> Commit {
        let [nonce, opening, sequence, parent, chain, size, time, safe] = numbers;
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|(first, version, count, has_data)| Entry { first, version, count, has_data })
            .collect();
        let data: u64 = entries.iter().filter(|entry| entry.has_data).map(|entry| entry.count).sum();
        Commit {
            kind: [Kind::Written, Kind::Moved, Kind::Part][usize::try_from(sequence % 3).unwrap()],
            nonce,
            opening,
            sequence,
            parent,
            chain: u32::try_from(chain & 0xffff_ffff).unwrap(),
            data_checksum: u32::try_from(size & 0xffff_ffff).unwrap(),
            blocks: u32::try_from(data).unwrap() + 1,
            size,
            time,
            safe,
            position: opening ^ parent,
            entries,
        }
    }

    proptest! {
        #[test]
        fn a_commit_is_read_as_it_was_written_and_no_wrong_bit_is_taken(
            entries in prop::collection::vec(
                (0..1u64 << 52, any::<u64>(), 0..1u64 << 20, any::<bool>()), 0..=ENTRIES_MAX
            ),
            numbers in any::<[u64; 8]>(),
            bit in 0..BLOCK_BYTES * 8,
        ) {
            let commit = commit(entries, numbers);
            let mut block = vec![7; BLOCK_BYTES];
            let (checksum, nonce, position) = (commit.encode(&mut block), commit.nonce, commit.position);
            prop_assert_eq!(Commit::decode(&block), Some((commit, checksum)));
            prop_assert!(!is_damaged(&block, nonce, position));
            // What was there before, in a sector that a power failure kept from being written.
            let mut torn = block.clone();
            torn[bit / 8 / SECTOR * SECTOR..][..SECTOR].fill(7);
            prop_assert!(Commit::decode(&torn).is_none() && !is_damaged(&torn, nonce, position));
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Commit::decode(&block), None);
            prop_assert!(is_damaged(&block, nonce, position));
        }

        #[test]
        fn any_bytes_are_no_commit_and_no_panic(
            mut payload in prop::collection::vec(any::<u8>(), 0..200),
            fits in any::<bool>(),
            stamp in any::<u64>(),
        ) {
            payload.resize(PAYLOAD, 0);
            payload[..8].copy_from_slice(MAGIC);
            if fits {
                let count = usize::try_from(u32_at(&payload, 60).unwrap()).unwrap() % (ENTRIES_MAX + 1);
                payload[60..64].copy_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
                seal(&mut payload[..ENTRIES_AT + count * ENTRY_BYTES], CHECKSUM_AT);
            }
            let mut block = [0; BLOCK_BYTES];
            frame(&mut block, &payload, SEED, stamp, |_| 0);
            let _ = Commit::decode(&block);
            let _ = Commit::decode(&payload);
        }

        #[test]
        fn one_wrong_bit_is_told_from_others(
            bytes in prop::collection::vec(any::<u8>(), 1..3000),
            bits in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        ) {
            let mut wrong = bytes.clone();
            for bit in &bits {
                let bit = bit.index(bytes.len() * 8);
                wrong[bit / 8] ^= 1 << (bit % 8);
            }
            let differs = bytes.iter().zip(&wrong).map(|(one, other)| (one ^ other).count_ones()).sum::<u32>();
            let checksums = [&bytes, &wrong].map(|bytes| crc32c::crc32c(bytes));
            prop_assert_eq!(is_one_bit(checksums[0], checksums[1], bytes.len() as u64), differs == 1);
        }
    }

    #[test]
    fn a_super_block_is_of_one_object() {
        let written = Super { id: 7, nonce: 8, made: 9, lineage: 10 };
        let mut block = written.encode();
        assert_eq!(Super::decode(&block, 7), Some(written));
        assert_eq!(Super::decode(&block, 8), None);
        block[30] ^= 1;
        assert_eq!(Super::decode(&block, 7), None);
    }
}
