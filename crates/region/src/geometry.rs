//! The super block: where everything else is.

use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::{BLOCK, BLOCK_BYTES};

const MAGIC: &[u8; 8] = b"WEFTREGS";
/// Without features, and with some.
const VERSIONS: [u32; 2] = [1, 2];
/// Data have checksums.
const SUMS_FEATURE: u32 = 1;
const FEATURES_AT: usize = 92;
/// Bytes that the checksum is of.
const CHECKED: usize = 512;
/// Where that stands.
const CHECKSUM_AT: usize = 12;
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

/// What has checksums in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksums {
    /// What the store keeps itself, and objects that keep versions. A write over other data is the device's own.
    #[default]
    Metadata,
    /// All data, too: no write goes over what is there.
    All,
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
}

impl Geometry {
    /// Cuts a device of so many bytes into parts.
    pub fn of(bytes: u64, identity: [u8; 16], format: Format) -> Result<Self> {
        let Format { region_shift, checksums, .. } = format;
        if !(16..=48).contains(&region_shift) {
            let text = format!("regions of 2^{region_shift} bytes: 2^16 to 2^48 are possible");
            return Err(Error::Setting(text));
        }
        let blocks = bytes / BLOCK;
        if blocks < BLOCKS_MIN {
            return Err(Error::TooSmall(bytes, BLOCKS_MIN * BLOCK));
        }
        let log_blocks = (blocks / 256).clamp(*LOG_BLOCKS.start(), *LOG_BLOCKS.end());
        let map_start = LOG_START + log_blocks;
        let data_blocks_per_map_block = match checksums {
            Checksums::Metadata => DATA_BLOCKS_PER_MAP_BLOCK,
            Checksums::All => DATA_BLOCKS_PER_MAP_BLOCK_WITH_SUMS,
        };
        let map_blocks = (blocks / data_blocks_per_map_block).max(MAP_BLOCKS_MIN);
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
        })
    }

    /// Blocks for data.
    pub fn data_blocks(&self) -> u64 {
        self.blocks - self.data_start
    }

    /// The version, and the features.
    fn told(&self) -> (u32, u32) {
        let [plain, with_features] = VERSIONS;
        match self.checksums {
            Checksums::Metadata => (plain, 0),
            Checksums::All => (with_features, SUMS_FEATURE),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (version, features) = self.told();
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&version.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&self.identity);
        let places = [self.log_start, self.log_blocks, self.map_start, self.map_blocks, self.data_start];
        for number in [self.generation, self.blocks].into_iter().chain(places) {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.push(self.region_shift);
        block.resize(FEATURES_AT, 0);
        block.extend_from_slice(&features.to_le_bytes());
        block.resize(CHECKED, 0);
        seal(&mut block, CHECKSUM_AT);
        block.resize(BLOCK_BYTES, 0);
        block
    }

    fn decode(block: &[u8]) -> Result<Self> {
        let block = block.get(..CHECKED).unwrap_or_default();
        let no_store = |text: &str| Error::NoStore(text.to_owned());
        if block.get(..8) != Some(MAGIC) {
            return Err(no_store("the first blocks are of something else"));
        }
        let too_short = || no_store("the super block is too short");
        let number = |at: usize| u64_at(block, at).ok_or_else(too_short);
        let version = u32_at(block, 8).ok_or_else(too_short)?;
        if !VERSIONS.contains(&version) {
            return Err(Error::NoStore(format!("it has version {version}, and this program knows {VERSIONS:?}")));
        }
        if seal_of(block, CHECKSUM_AT).is_none() {
            return Err(Error::Damaged("the checksum of a super block".to_owned()));
        }
        let features = u32_at(block, FEATURES_AT).ok_or_else(too_short)?;
        let identity = block.get(16..32).and_then(|bytes| bytes.try_into().ok());
        let geometry = Self {
            identity: identity.ok_or_else(too_short)?,
            generation: number(32)?,
            blocks: number(40)?,
            log_start: number(48)?,
            log_blocks: number(56)?,
            map_start: number(64)?,
            map_blocks: number(72)?,
            data_start: number(80)?,
            region_shift: block.get(88).copied().unwrap_or(0),
            checksums: if features & SUMS_FEATURE == 0 { Checksums::Metadata } else { Checksums::All },
        };
        if geometry.told() != (version, features) {
            return Err(Error::NoStore(format!("version {version} with features {features:#x} is not known here")));
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
        if fits { Ok(geometry) } else { Err(Error::Damaged("the places in the super block".to_owned())) }
    }

    /// Writes both copies, one after the other.
    pub fn write(&self, device: &dyn Device) -> Result<()> {
        let block = self.encode();
        for copy in COPIES {
            device.write_at(copy * BLOCK, &block).map_err(at("write a super block"))?;
            device.flush().map_err(at("flush a super block"))?;
        }
        Ok(())
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
        format!(
            "store {identity}, generation {}, {} blocks: log from {} to {log_end}, map from {} to {map_end}, \
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

    /// The copy that counts.
    pub fn read(device: &dyn Device) -> Result<Self> {
        if device.bytes() < BLOCKS_MIN * BLOCK {
            return Err(Error::NoStore(format!("{} bytes are too few for one", device.bytes())));
        }
        let [first, second] = COPIES.map(|copy| Self::read_copy(device, copy));
        let geometry = match (first, second) {
            (Ok(first), Ok(second)) => Ok(if second.generation > first.generation { second } else { first }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        }?;
        if geometry.blocks * BLOCK > device.bytes() {
            let text = format!("the device has {} bytes, and had {}", device.bytes(), geometry.blocks * BLOCK);
            return Err(Error::Damaged(text));
        }
        Ok(geometry)
    }
}

/// What a device begins with, if it carries something that people would miss.
pub(crate) fn what_is_there(device: &dyn Device) -> Result<Option<&'static str>> {
    let mut start = vec![0; 32 * BLOCK_BYTES];
    let length = usize::try_from(device.bytes()).unwrap_or(usize::MAX).min(start.len()) / BLOCK_BYTES * BLOCK_BYTES;
    let start = start.get_mut(..length).unwrap_or_default();
    device.read_at(0, start).map_err(at("look at the device"))?;
    let has = |place: usize, bytes: &[u8]| start.get(place..place + bytes.len()) == Some(bytes);
    let known: &[(&str, usize, &[u8])] = &[
        ("a region store", 0, MAGIC),
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
    fn no_bit_of_a_super_block_can_be_wrong_unseen() {
        for checksums in BOTH {
            let block = of(1 << 30, checksums).encode();
            for bit in 0..CHECKED * 8 {
                let mut wrong = block.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(Geometry::decode(&wrong).is_err(), "bit {bit}");
            }
        }
        assert!(Geometry::decode(&[]).is_err());
    }

    /// A program that knows no features looks at the version only.
    #[test]
    fn what_is_not_known_is_refused() {
        let with_sums = of(1 << 30, Checksums::All).encode();
        assert_ne!(u32_at(&with_sums, 8), u32_at(&of(1 << 30, Checksums::Metadata).encode(), 8));
        for (at, value) in [(8, 1u32), (8, 3), (FEATURES_AT, 0), (FEATURES_AT, 2), (FEATURES_AT, 3)] {
            let mut other = with_sums.clone();
            other[at..at + 4].copy_from_slice(&value.to_le_bytes());
            seal(&mut other[..CHECKED], CHECKSUM_AT);
            assert!(matches!(Geometry::decode(&other), Err(Error::NoStore(_))), "{value} at {at}");
        }
    }
}
