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
}

/// Bytes of the whole blocks that a payload of so many bytes needs.
pub(crate) fn framed_bytes(payload: usize) -> usize {
    payload.div_ceil(PAYLOAD).max(1) * BLOCK_BYTES
}

/// Frames a payload as the sectors of these blocks, and zeros what it does not fill. `place_of` returns the place of
/// each block.
pub(crate) fn frame(blocks: &mut [u8], payload: &[u8], salt: u64, stamp: u64, place_of: impl Fn(u64) -> u64) {
    let mut rest = payload.chunks(SECTOR - FRAME);
    let mut numbers = 0u32..;
    for (place, block) in (0u64..).map(place_of).zip(blocks.chunks_mut(BLOCK_BYTES)) {
        let seed = seed(salt, place);
        let first_blank = blank_checksum(seed, stamp);
        for (sector, number) in block.chunks_mut(SECTOR).zip(&mut numbers) {
            let (frame, into) = sector.split_at_mut(FRAME);
            let some = rest.next().unwrap_or_default();
            let (filled, blank) = into.split_at_mut(some.len());
            filled.copy_from_slice(some);
            blank.fill(0);
            let units = blank.len() / UNIT;
            frame[4..STAMP_AT].copy_from_slice(&number.to_le_bytes());
            frame[STAMP_AT..].copy_from_slice(&stamp.to_le_bytes());
            let checksum =
                if filled.is_empty() { first_blank ^ NUMBERED.after(number) } else { checksum(seed, sector, units) };
            sector[..4].copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// The sectors of whole blocks.
pub(crate) fn sectors(bytes: &[u8], salt: u64, place_of: impl Fn(u64) -> u64) -> impl Iterator<Item = Sector<'_>> {
    (0u64..).map(place_of).zip(bytes.chunks(BLOCK_BYTES)).flat_map(move |(place, block)| {
        let seed = seed(salt, place);
        block.chunks(SECTOR).map(move |sector| sector_of(seed, sector))
    })
}

/// Returns true if one of the sectors of whole blocks was written later than what has this stamp.
pub(crate) fn has_later(bytes: &[u8], salt: u64, place_of: impl Fn(u64) -> u64, wanted: u64) -> bool {
    (0u64..).zip(bytes.chunks(BLOCK_BYTES)).any(|(number, block)| {
        let mut claims = block.chunks(SECTOR).filter(|sector| u64_at(sector, STAMP_AT) > Some(wanted)).peekable();
        // Most blocks have no such sector, and no checksum of theirs is wanted.
        claims.peek().is_some() && {
            let seed = seed(salt, place_of(number));
            claims.any(|sector| sector_of(seed, sector) != Sector::Wrong)
        }
    })
}

fn sector_of(seed: u32, sector: &[u8]) -> Sector<'_> {
    // A decoder may be given a part of one.
    let payload = sector.get(FRAME..).unwrap_or_default();
    let units = payload.as_chunks::<UNIT>().0.iter().rev().take_while(|unit| **unit == [0; UNIT]).count();
    let found = u32_at(sector, 0) == Some(checksum(seed, sector, units));
    let frame = u32_at(sector, 4).zip(u64_at(sector, STAMP_AT)).filter(|_| found);
    frame.map_or(Sector::Wrong, |(number, stamp)| Sector::Whole { stamp, number, payload })
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

/// Checksum of the salt and the place of a block, which those of its sectors go on from.
fn seed(salt: u64, place: u64) -> u32 {
    crc32c::crc32c([salt.to_le_bytes(), place.to_le_bytes()].as_flattened())
}

/// Checksum of a sector that ends with so many units of zeros, which are appended in one step.
fn checksum(seed: u32, sector: &[u8], units: usize) -> u32 {
    let filled = sector.get(4..SECTOR - units * UNIT).unwrap_or_default();
    let checksum = crc32c::crc32c_append(seed, filled);
    units.checked_sub(1).and_then(|at| ZEROS.get(at)).map_or(checksum, |zeros| zeros.append_to(checksum))
}

/// Checksum of the sector number 0 that holds only zeros. That of number `n` differs by `NUMBERED.after(n)`: a CRC is
/// linear. Most records fill a part of one sector of eight, so most sectors need no other checksum.
fn blank_checksum(seed: u32, stamp: u64) -> u32 {
    let frame = (u128::from(stamp) << 32).to_le_bytes();
    let checksum = crc32c::crc32c_append(seed, &frame[..FRAME - 4]);
    ZEROS.last().map_or(checksum, |zeros| zeros.append_to(checksum))
}

/// Bytes that zeros are counted in.
const UNIT: usize = 16;

/// What appending 1, 2, … units of zeros does to a checksum.
static ZEROS: [Zeros; (SECTOR - FRAME) / UNIT] = zeros(UNIT);
/// What the number of a sector that holds only zeros does to its checksum.
static NUMBERED: Zeros = zeros::<1>(SECTOR - 4)[0];

/// Advances the register of a CRC-32C over a number of zeros, with a table for each four bits of it. A CRC is linear:
/// the result is the exclusive or of what the tables have.
#[derive(Clone, Copy)]
struct Zeros([[u32; 16]; 8]);

impl Zeros {
    fn append_to(&self, checksum: u32) -> u32 {
        !self.after(!checksum)
    }

    fn after(&self, mut register: u32) -> u32 {
        let mut after = 0;
        for became in &self.0 {
            after ^= became[(register & 15) as usize];
            register >>= 4;
        }
        after
    }
}

/// Returns tables for `step` zeros, twice as many, three times, and so on.
const fn zeros<const COUNT: usize>(step: usize) -> [Zeros; COUNT] {
    let mut all = [Zeros([[0; 16]; 8]); COUNT];
    let mut bit = 0;
    while bit < 32 {
        let mut register = 1u32 << bit;
        let mut number = 0;
        while number < COUNT {
            register = after_zeros(register, step);
            let mut bits = 0;
            while bits < 16 {
                if bits >> (bit % 4) & 1 == 1 {
                    all[number].0[bit / 4][bits] ^= register;
                }
                bits += 1;
            }
            number += 1;
        }
        bit += 1;
    }
    all
}

const fn after_zeros(mut register: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < bytes * 8 {
        // The polynomial of CRC-32C, its lowest power in the highest bit.
        register = (register >> 1) ^ ((register & 1) * 0x82f6_3b78);
        bit += 1;
    }
    register
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(payload: &[u8], salt: u64, stamp: u64, place_of: impl Fn(u64) -> u64) -> Vec<u8> {
        // What was in the memory before does not matter.
        let mut blocks = vec![0xa5; framed_bytes(payload.len())];
        frame(&mut blocks, payload, salt, stamp, place_of);
        blocks
    }

    proptest! {
        #[test]
        fn zeros_count_as_other_bytes_do(
            payload in prop::collection::vec(any::<u8>(), 0..2 * PAYLOAD),
            stamp in any::<u64>(),
            wanted in any::<u64>(),
        ) {
            let blocks = framed(&payload, 5, stamp, |block| 70 + block);
            for (number, sector) in (0u64..).zip(blocks.chunks(SECTOR)) {
                let seed = [5u64.to_le_bytes(), (70 + number / 8).to_le_bytes()].concat();
                let all = [&seed, &sector[4..]].concat();
                prop_assert_eq!(u32_at(sector, 0), Some(crc32c::crc32c(&all)));
            }
            let is_later = has_later(&blocks, 5, |block| 70 + block, wanted);
            prop_assert_eq!(is_later, stamp > wanted);
            prop_assert!(!has_later(&blocks, 5, |block| block, wanted), "another place");
        }

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
