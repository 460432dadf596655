//! Blocks of sectors that each carry a stamp and a checksum.
//!
//! A sector is what a device writes wholly or not at all, so a write that a power failure cut off leaves sectors of two
//! kinds: those of the write, with its stamp, and those from before, with an earlier one. A sector that matches no
//! checksum is neither: it is damaged. The checksum is also of a salt and of the place of the block, so that blocks of
//! another kind, or of another place, match nothing.

use crate::BLOCK_BYTES;
use crate::sealed::{u32_at, u64_at};

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
/// Sectors of a block.
pub(crate) const PER_BLOCK: usize = BLOCK_BYTES / SECTOR;
/// Where the stamp stands, behind the checksum and the number of the sector; and what the sector holds.
pub(crate) const STAMP_AT: usize = 8;
pub(crate) const PAYLOAD_AT: usize = FRAME;
const FRAME: usize = 16;
/// Bytes that a block holds beside that.
pub(crate) const PAYLOAD: usize = PER_BLOCK * (SECTOR - FRAME);

/// What a sector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sector<'a> {
    /// As it was written: its stamp, its number in what was written together, and what it holds.
    Whole { stamp: u64, number: u32, payload: &'a [u8] },
    /// Its checksum does not match.
    Wrong,
}

impl Sector<'_> {
    /// Returns true if it is the sector with this number of what has this stamp.
    pub fn is_of(&self, wanted: u64, index: usize) -> bool {
        matches!(*self, Self::Whole { stamp, number, .. } if stamp == wanted && number as usize == index)
    }

    /// Returns true if it was written later than what has this stamp.
    pub fn is_later_than(&self, wanted: u64) -> bool {
        matches!(*self, Self::Whole { stamp, .. } if stamp > wanted)
    }
}

/// Cuts a payload into sectors of whole blocks; the rest of the last one is zeros. `place_of` tells the place of each
/// block.
pub(crate) fn framed(payload: &[u8], salt: u64, stamp: u64, place_of: impl Fn(u64) -> u64) -> Vec<u8> {
    let blocks = payload.len().div_ceil(PAYLOAD).max(1);
    let mut bytes = vec![0; blocks * BLOCK_BYTES];
    let mut rest = payload.chunks(SECTOR - FRAME);
    for (number, sector) in (0u32..).zip(bytes.chunks_mut(SECTOR)) {
        let (frame, into) = sector.split_at_mut(FRAME);
        let some = rest.next().unwrap_or_default();
        into.get_mut(..some.len()).unwrap_or_default().copy_from_slice(some);
        frame.get_mut(4..8).unwrap_or_default().copy_from_slice(&number.to_le_bytes());
        frame.get_mut(STAMP_AT..).unwrap_or_default().copy_from_slice(&stamp.to_le_bytes());
        let checksum = checksum(salt, place_of(u64::from(number) / PER_BLOCK as u64), sector);
        sector.get_mut(..4).unwrap_or_default().copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

/// The sectors of whole blocks.
pub(crate) fn sectors(bytes: &[u8], salt: u64, place_of: impl Fn(u64) -> u64) -> impl Iterator<Item = Sector<'_>> {
    (0u64..).zip(bytes.chunks(SECTOR)).map(move |(number, sector)| {
        let found = u32_at(sector, 0) == Some(checksum(salt, place_of(number / PER_BLOCK as u64), sector));
        let frame = u32_at(sector, 4).zip(u64_at(sector, STAMP_AT)).filter(|_| found);
        frame.map_or(Sector::Wrong, |(number, stamp)| Sector::Whole {
            stamp,
            number,
            payload: sector.get(FRAME..).unwrap_or_default(),
        })
    })
}

/// What sectors hold together. `None`: one of them is not as it was written, or not with this stamp.
pub(crate) fn unframed<'a>(sectors: impl Iterator<Item = Sector<'a>>, stamp: u64) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    for (index, sector) in sectors.enumerate() {
        match sector {
            Sector::Whole { payload: some, .. } if sector.is_of(stamp, index) => payload.extend_from_slice(some),
            _ => return None,
        }
    }
    Some(payload)
}

fn checksum(salt: u64, place: u64, sector: &[u8]) -> u32 {
    let seed = crc32c::crc32c([salt.to_le_bytes(), place.to_le_bytes()].as_flattened());
    crc32c::crc32c_append(seed, sector.get(4..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_payload_comes_back_and_no_wrong_bit_is_taken(
            payload in prop::collection::vec(any::<u8>(), 0..3 * PAYLOAD), bit in any::<prop::sample::Index>(),
        ) {
            let place_of = |block: u64| 70 + block * 3;
            let mut bytes = framed(&payload, 5, 9, place_of);
            let found = unframed(sectors(&bytes, 5, place_of), 9).unwrap();
            prop_assert!(found.starts_with(&payload) && found[payload.len()..].iter().all(|byte| *byte == 0));
            prop_assert!(unframed(sectors(&bytes, 5, place_of), 8).is_none(), "another stamp");
            prop_assert!(unframed(sectors(&bytes, 6, place_of), 9).is_none(), "another salt");
            prop_assert!(unframed(sectors(&bytes, 5, |block| block), 9).is_none(), "another place");
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let wrong = sectors(&bytes, 5, place_of).filter(|sector| *sector == Sector::Wrong).count();
            prop_assert_eq!(wrong, 1);
        }
    }
}
