//! The super block: where everything else is.

use crate::decoder::{Decoder, sealed_block};
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::sparse;
use crate::{BLOCK, BLOCK_BYTES, as_index};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"WEFTREGS";
/// Version of the format. Earlier versions lack checksums that are verified on reads of the map (before 3), or marks of
/// commits that a sync has confirmed (3), and are refused.
const VERSION: u32 = 4;
/// Data have checksums.
const SUMS_FEATURE: u32 = 1;
/// Objects may begin in blocks that no record maps.
const RUNS_FEATURE: u32 = 2;
const FEATURES_AT: usize = 92;
/// Bytes that the checksum is of.
pub(crate) const CHECKED: usize = 512;
/// Where that stands.
pub(crate) const CHECKSUM_AT: usize = 12;
/// Where its copies are, blocks.
pub(crate) const COPIES: [u64; 2] = [0, 1];
/// Before this block nothing but super blocks.
const LOG_START: u64 = 16;
/// No more than can be replayed in a fraction of a second.
const LOG_BLOCKS: std::ops::RangeInclusive<u64> = 256..=4096;
/// A map of so many blocks is enough where each data block is mapped by itself: an entry is 20 bytes, a tree's pages
/// are half full, what changes is written beside what was there, and a file that is too short becomes twice as long.
const DATA_BLOCKS_PER_MAP_BLOCK: u64 = 24;
/// The same with checksums of the blocks.
const DATA_BLOCKS_PER_MAP_BLOCK_WITH_SUMS: u64 = 20;
const MAP_BLOCKS_MIN: u64 = 1024;
/// The least that makes sense.
const BLOCKS_MIN: u64 = 4096;
/// Where the further parts of the map stand in the super block, and how many there can be.
const MAP_MORE_AT: usize = 96;
const MAP_MORE_MAX: usize = 24;
const MAP_PART_BYTES: usize = 16;

const _: () = assert!(FEATURES_AT + 4 <= MAP_MORE_AT && MAP_MORE_AT + MAP_MORE_MAX * MAP_PART_BYTES <= CHECKED);

/// What a checksum is of in the first block of a store, if that begins with this, has this version and the right
/// checksum. `what`: for people.
pub(crate) fn checked<'a>(block: &'a [u8], magic: &[u8; 8], known: u32, what: &str) -> Result<&'a [u8]> {
    let block = block.get(..CHECKED).unwrap_or_default();
    if block.get(..8) != Some(magic) {
        return Err(Error::NoStore("the first blocks are of something else".to_owned()));
    }
    let version = u32_at(block, 8).ok_or_else(|| Error::NoStore(format!("the {what} is too short")))?;
    if version > known {
        return Err(Error::NoStore(format!("it has format version {version}, and this program knows {known}")));
    }
    if seal_of(block, CHECKSUM_AT).is_none() {
        return Err(Error::Damaged(format!("the checksum of a {what}")));
    }
    if version < known { Err(Error::OldFormat(version)) } else { Ok(block) }
}

/// What has checksums in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksums {
    /// What the store keeps itself, and objects that keep versions. A write over other data is the device's own.
    #[default]
    Metadata,
    /// All data, too: no write goes over what is there.
    All,
}

impl Checksums {
    /// Blocks that a map has for a device of so many.
    fn map_blocks_for(self, blocks: u64) -> u64 {
        let data_blocks_per_map_block = match self {
            Self::Metadata => DATA_BLOCKS_PER_MAP_BLOCK,
            Self::All => DATA_BLOCKS_PER_MAP_BLOCK_WITH_SUMS,
        };
        (blocks / data_blocks_per_map_block).max(MAP_BLOCKS_MIN)
    }
}

impl std::fmt::Display for Checksums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Metadata => "metadata",
            Self::All => "all",
        })
    }
}

/// How a store is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Bytes of a region are 2 to the power of this, 16 to 48.
    pub region_shift: u8,
    /// Whatever is on the device may be overwritten.
    pub overwrite: bool,
    pub checksums: Checksums,
}

impl Default for Format {
    /// Regions of 64 GiB; only on an empty device; data in direct mode without checksums.
    fn default() -> Self {
        Self { region_shift: 36, overwrite: false, checksums: Checksums::Metadata }
    }
}

/// What the super block says. See docs/formats/region-store.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub identity: [u8; 16],
    pub generation: u64,
    pub blocks: u64,
    pub log_start: u64,
    pub log_blocks: u64,
    pub map_start: u64,
    pub map_blocks: u64,
    pub data_start: u64,
    pub region_shift: u8,
    pub checksums: Checksums,
    /// Whether the log may have runs of blocks in which objects begin.
    pub has_runs: bool,
    /// Further parts of the map, among the data blocks, ascending; behind the last one zeros.
    map_more: [Part; MAP_MORE_MAX],
}

/// Blocks of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Part {
    start: u64,
    blocks: u64,
}

impl Geometry {
    /// Cuts a device of so many bytes into parts.
    pub fn of(bytes: u64, identity: [u8; 16], format: Format) -> Result<Self> {
        let (region_shift, checksums) = (region_shift_of(&format)?, format.checksums);
        let blocks = bytes / BLOCK;
        if blocks < BLOCKS_MIN {
            return Err(Error::TooSmall(bytes, BLOCKS_MIN * BLOCK));
        }
        let log_blocks = (blocks / 256).clamp(*LOG_BLOCKS.start(), *LOG_BLOCKS.end());
        let map_start = LOG_START + log_blocks;
        let map_blocks = checksums.map_blocks_for(blocks);
        let data_start = map_start + map_blocks;
        let (generation, log_start) = (1, LOG_START);
        Ok(Self {
            identity,
            generation,
            blocks,
            log_start,
            log_blocks,
            map_start,
            map_blocks,
            data_start,
            region_shift,
            checksums,
            has_runs: true,
            map_more: Default::default(),
        })
    }

    /// The same store with all of a device of so many bytes. `None`: it has all that is of use.
    pub fn grown(&self, bytes: u64) -> Result<Option<Self>> {
        let blocks = bytes / BLOCK;
        let more = blocks.saturating_sub(self.blocks);
        let map_now = self.map_parts().map(|part| part.end - part.start).sum::<u64>();
        let needed = self.checksums.map_blocks_for(blocks).saturating_sub(map_now);
        // Some ahead, so that a device that grows in small steps does not use up the parts.
        let ahead = self.checksums.map_blocks_for(blocks + blocks / 4).saturating_sub(map_now);
        let part = if needed == 0 { 0 } else { ahead.min(more / 4).max(needed) };
        if more <= part {
            return Ok(None);
        }
        let generation = self.generation.checked_add(1);
        let generation = generation.ok_or_else(|| Error::Damaged("the generation of a super block".to_owned()))?;
        let mut grown = Self { blocks, generation, ..*self };
        if part > 0 {
            let unused = grown.map_more.iter_mut().find(|part| part.blocks == 0);
            *unused.ok_or(Error::MapInParts(MAP_MORE_MAX + 1))? = Part { start: self.blocks, blocks: part };
        }
        Ok(Some(grown))
    }

    /// Blocks behind the log and the map: for data, but for those that further parts of the map have.
    pub fn data_blocks(&self) -> u64 {
        self.blocks - self.data_start
    }

    /// Of them, those that data can have.
    pub fn blocks_for_data(&self) -> u64 {
        self.data_blocks() - self.not_for_data().map(|(_, count)| count).sum::<u64>()
    }

    /// Where the map lies, blocks of the device.
    pub fn map_parts(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.map_start..self.map_start + self.map_blocks).chain(self.map_more())
    }

    /// Of it, what lies among the data.
    fn map_more(&self) -> impl Iterator<Item = Range<u64>> {
        self.map_more.iter().filter(|part| part.blocks > 0).map(|part| part.start..part.start + part.blocks)
    }

    /// Data blocks that data cannot have: first ones, counted from the first data block, and how many.
    pub fn not_for_data(&self) -> impl Iterator<Item = (u64, u64)> {
        self.map_more().map(|part| (part.start - self.data_start, part.end - part.start))
    }

    fn features(&self) -> u32 {
        let of_sums = match self.checksums {
            Checksums::Metadata => 0,
            Checksums::All => SUMS_FEATURE,
        };
        of_sums | if self.has_runs { RUNS_FEATURE } else { 0 }
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&self.identity);
        let places = [self.log_start, self.log_blocks, self.map_start, self.map_blocks, self.data_start];
        for number in [self.generation, self.blocks].into_iter().chain(places) {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.push(self.region_shift);
        block.resize(FEATURES_AT, 0);
        block.extend_from_slice(&self.features().to_le_bytes());
        block.resize(MAP_MORE_AT, 0);
        for number in self.map_more.iter().flat_map(|part| [part.start, part.blocks]) {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.resize(CHECKED, 0);
        seal(&mut block, CHECKSUM_AT);
        block.resize(BLOCK_BYTES, 0);
        block
    }

    fn decode(block: &[u8]) -> Result<Self> {
        let too_short = || Error::NoStore("the super block is too short".to_owned());
        let block = checked(block, MAGIC, VERSION, "super block")?;
        let number = |at: usize| u64_at(block, at).ok_or_else(too_short);
        let features = u32_at(block, FEATURES_AT).ok_or_else(too_short)?;
        let identity = block.get(16..32).and_then(|bytes| bytes.try_into().ok());
        let mut map_more = [Part::default(); MAP_MORE_MAX];
        for (at, part) in (MAP_MORE_AT..).step_by(MAP_PART_BYTES).zip(&mut map_more) {
            *part = Part { start: number(at)?, blocks: number(at + 8)? };
        }
        let geometry = Self {
            identity: identity.ok_or_else(too_short)?,
            generation: number(32)?,
            blocks: number(40)?,
            log_start: number(48)?,
            log_blocks: number(56)?,
            map_start: number(64)?,
            map_blocks: number(72)?,
            data_start: number(80)?,
            region_shift: block[88],
            checksums: if features & SUMS_FEATURE == 0 { Checksums::Metadata } else { Checksums::All },
            has_runs: features & RUNS_FEATURE != 0,
            map_more,
        };
        if geometry.features() != features {
            return Err(Error::NoStore(format!("features {features:#x} are not known here")));
        }
        let ends = [
            (COPIES[1] + 1, geometry.log_start),
            (geometry.log_start.saturating_add(geometry.log_blocks), geometry.map_start),
            (geometry.map_start.saturating_add(geometry.map_blocks), geometry.data_start),
            (geometry.data_start.saturating_add(1), geometry.blocks),
            (*LOG_BLOCKS.start(), geometry.log_blocks),
            (2, geometry.map_blocks),
        ];
        let fits = ends.iter().all(|(end, start)| end <= start) && (16..=48).contains(&geometry.region_shift);
        if fits && geometry.has_room_for_its_map() {
            Ok(geometry)
        } else {
            Err(Error::Damaged("the places in the super block".to_owned()))
        }
    }

    /// Whether the further parts of the map lie one behind the other among the data, with none left out.
    fn has_room_for_its_map(&self) -> bool {
        let parts = self.map_more.iter().filter(|part| part.blocks > 0).count();
        let (used, unused) = self.map_more.split_at(parts);
        let mut free_from = self.data_start;
        let follow = used.iter().all(|part| {
            let begins = std::mem::replace(&mut free_from, part.start.saturating_add(part.blocks));
            part.blocks > 0 && begins <= part.start
        });
        follow && free_from <= self.blocks && unused.iter().all(|part| *part == Part::default())
    }

    /// Writes both copies, one after the other. A copy that is not whole is the first: the other one counts meanwhile.
    pub fn write(&self, device: &dyn Device) -> Result<()> {
        let [first, second] = COPIES;
        let order = if Self::read_copy(device, first).is_ok() { [second, first] } else { COPIES };
        order.into_iter().try_for_each(|copy| self.write_copy(device, copy))
    }

    fn write_copy(&self, device: &dyn Device, copy: u64) -> Result<()> {
        device.write_at(copy * BLOCK, &self.encode()).map_err(at("write a super block"))?;
        device.flush().map_err(at("flush a super block"))
    }

    /// One of the copies.
    pub fn read_copy(device: &dyn Device, copy: u64) -> Result<Self> {
        let mut block = vec![0; BLOCK_BYTES];
        device.read_at(copy * BLOCK, &mut block).map_err(at("read a super block"))?;
        Self::decode(&block)
    }

    /// For people.
    pub fn describe(&self) -> String {
        let identity: String = self.identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let (log_end, map_end) = (self.log_start + self.log_blocks, self.map_start + self.map_blocks);
        let more: String = self.map_more().map(|part| format!(" and {} to {}", part.start, part.end)).collect();
        format!(
            "store {identity}, generation {}, {} blocks: log from {} to {log_end}, map from {} to {map_end}{more}, \
             data from {}; regions of 2^{} bytes; checksums: {}",
            self.generation,
            self.blocks,
            self.log_start,
            self.map_start,
            self.data_start,
            self.region_shift,
            self.checksums
        )
    }

    /// The copy that counts. The other one is made the same again, if what was to make it so was cut off.
    pub fn open(device: &dyn Device) -> Result<Self> {
        let geometry = Self::read(device)?;
        let is_older =
            |copy: &u64| Self::read_copy(device, *copy).is_ok_and(|found| found.generation < geometry.generation);
        COPIES.into_iter().filter(is_older).try_for_each(|copy| geometry.write_copy(device, copy))?;
        Ok(geometry)
    }

    fn read(device: &dyn Device) -> Result<Self> {
        if device.bytes() < LOG_START * BLOCK {
            return Err(Error::NoStore(format!("{} bytes are too few for one", device.bytes())));
        }
        let [first, second] = COPIES.map(|copy| Self::read_copy(device, copy));
        let geometry = match (first, second) {
            (Ok(first), Ok(second)) => Ok(if second.generation > first.generation { second } else { first }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        }?;
        let bytes = geometry.blocks.saturating_mul(BLOCK);
        if bytes > device.bytes() { Err(Error::Shrunk(device.bytes(), bytes)) } else { Ok(geometry) }
    }
}

/// Bytes of a region, as a power of two, if there can be such.
pub(crate) fn region_shift_of(format: &Format) -> Result<u8> {
    let shift = format.region_shift;
    if (16..=48).contains(&shift) {
        return Ok(shift);
    }
    Err(Error::Setting(format!("regions of 2^{shift} bytes: 2^16 to 2^48 are possible")))
}

/// What a device begins with, if it carries something that people would miss.
pub(crate) fn what_is_there(device: &dyn Device) -> Result<Option<&'static str>> {
    let mut start = vec![0; 32 * BLOCK_BYTES];
    let length = as_index(device.bytes()).min(start.len()) / BLOCK_BYTES * BLOCK_BYTES;
    let start = &mut start[..length];
    device.read_at(0, start).map_err(at("look at the device"))?;
    let has = |place: usize, bytes: &[u8]| start.get(place..place + bytes.len()) == Some(bytes);
    let known: &[(&str, usize, &[u8])] = &[
        ("a region store", 0, MAGIC),
        ("a region store in a sparse file", 0, sparse::MAGIC),
        ("XFS", 0, b"XFSB"),
        ("ext2, ext3 or ext4", 1080, &[0x53, 0xef]),
        ("Btrfs", 65_600, b"_BHRfS_M"),
        ("a partition table", 510, &[0x55, 0xaa]),
        ("LVM", 536, b"LVM2 001"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("a ZFS or RAID label", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ];
    let found = known.iter().find(|(_, place, bytes)| has(*place, bytes)).map(|(name, ..)| *name);
    let is_empty = start.iter().all(|byte| *byte == 0);
    Ok(found.or(if is_empty { None } else { Some("something unknown") }))
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_superblock",
    example: || {
        Geometry::of(BLOCKS_MIN * BLOCK, [7; 16], Format::default()).map_or_else(|_| Vec::new(), |of| of.encode())
    },
    seal: |bytes| sealed_block(bytes, CHECKED, CHECKSUM_AT),
    decode: |block| {
        let geometry = Geometry::decode(block).ok()?;
        // What reads it counts with these.
        let _ = (geometry.describe(), geometry.blocks_for_data(), geometry.grown(u64::MAX));
        Some(geometry.encode())
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Checksums; 2] = [Checksums::Metadata, Checksums::All];

    fn of(bytes: u64, checksums: Checksums) -> Geometry {
        Geometry::of(bytes, [7; 16], Format { checksums, ..Format::default() }).unwrap()
    }

    #[test]
    fn parts_follow_each_other_and_leave_most_to_data() {
        for (gib, checksums) in [1u64, 100, 4000].into_iter().flat_map(|gib| BOTH.map(|checksums| (gib, checksums))) {
            let geometry = of(gib << 30, checksums);
            assert!(geometry.data_blocks() * 100 > geometry.blocks * 94, "{geometry:?}");
            assert_eq!(Geometry::decode(&geometry.encode()).unwrap(), geometry);
        }
        assert!(matches!(Geometry::of(1 << 20, [7; 16], Format::default()), Err(Error::TooSmall(..))));
        let format = Format { region_shift: 49, ..Format::default() };
        assert!(matches!(Geometry::of(1 << 40, [7; 16], format), Err(Error::Setting(_))));
    }

    #[test]
    fn a_map_grows_with_its_device() {
        let steps = [3 << 20, 1 << 30, 50 << 30, 3000 << 30];
        for (step, checksums) in steps.into_iter().flat_map(|step| BOTH.map(|checksums| (step, checksums))) {
            let mut geometry = of(1 << 30, checksums);
            let mut bytes: u64 = 1 << 30;
            let refused = loop {
                bytes += step;
                let grown = match geometry.grown(bytes) {
                    Ok(grown) => grown.unwrap(),
                    Err(error) => break error,
                };
                assert!(grown.blocks == bytes / BLOCK && grown.generation == geometry.generation + 1);
                let map: u64 = grown.map_parts().map(|part| part.end - part.start).sum();
                assert!(map >= of(bytes, checksums).map_blocks, "as much as one that is made so large: {grown:?}");
                assert!(grown.blocks_for_data() > geometry.blocks_for_data());
                assert!(grown.blocks_for_data() * 100 > grown.blocks * 90, "{grown:?}");
                assert_eq!(Geometry::decode(&grown.encode()).unwrap(), grown);
                assert!(grown.grown(bytes).unwrap().is_none());
                geometry = grown;
            };
            assert!(matches!(refused, Error::MapInParts(25)), "{refused}");
            assert!(bytes / step >= 95, "{step}, {checksums}: {bytes}");
        }
    }

    #[test]
    fn no_bit_of_a_super_block_can_be_wrong_unseen() {
        for checksums in BOTH {
            let plain = of(1 << 30, checksums);
            for geometry in [plain, plain.grown(2 << 30).unwrap().unwrap()] {
                let block = geometry.encode();
                for bit in 0..CHECKED * 8 {
                    let mut wrong = block.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    assert!(Geometry::decode(&wrong).is_err(), "bit {bit}");
                }
            }
        }
        assert!(Geometry::decode(&[]).is_err());
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for geometry in BOTH.map(|checksums| of(1 << 30, checksums)) {
            for told in (0..6u32).flat_map(|version| (0..8u32).map(move |features| (version, features))) {
                let mut other = geometry.encode();
                other[8..12].copy_from_slice(&told.0.to_le_bytes());
                other[FEATURES_AT..FEATURES_AT + 4].copy_from_slice(&told.1.to_le_bytes());
                seal(&mut other[..CHECKED], CHECKSUM_AT);
                match (Geometry::decode(&other), told) {
                    (Ok(found), (VERSION, 0..4)) => assert_eq!(found.features(), told.1),
                    (Err(Error::OldFormat(version)), (0..VERSION, _)) => assert_eq!(version, told.0),
                    (Err(Error::NoStore(_)), (VERSION, 4..) | (5.., _)) => {}
                    (found, _) => panic!("{told:?}: {found:?}"),
                }
            }
        }
    }
}
