//! The header of a sparse file: where everything else is.

use crate::decoder::{Decoder, sealed_block};
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::geometry::{CHECKED, CHECKSUM_AT, COPIES, Checksums, Format, checked, region_shift_of};
use crate::sealed::{seal, u64_at};
use crate::{BLOCK, BLOCK_BYTES};
use std::ops::Range;

pub(crate) const MAGIC: &[u8; 8] = b"WEFTSPRS";
const VERSION: u32 = 2;
/// Fewer objects are of no use.
const REGIONS_MIN: u64 = 1024;
/// More are not looked through at an opening.
const REGIONS_MAX: u64 = 1 << 28;
/// The part of the addresses behind all regions.
const OWN_PART: u64 = 16;
/// Bits of a block.
pub(super) const GROUP: u64 = BLOCK * 8;
/// Where identifiers stand, blocks.
const IDENTIFIERS: u64 = 2;

/// See docs/formats/region-store.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub identity: [u8; 16],
    /// Bytes of the file: the most that the host lets a file have, in whole blocks.
    pub bytes: u64,
    /// Behind the last region. The bits begin here.
    pub regions_end: u64,
    pub region_shift: u8,
}

impl Header {
    /// Cuts a file of so many bytes into parts.
    pub fn of(bytes: u64, identity: [u8; 16], format: Format) -> Result<Self> {
        let region_shift = region_shift_of(&format)?;
        if format.checksums == Checksums::All {
            let text = "data in a sparse file cannot have checksums: what is written lies where it was, and a power \
                        failure in the middle of a write leaves bytes that fit no checksum";
            return Err(Error::Setting(text.to_owned()));
        }
        let bytes = bytes / BLOCK * BLOCK;
        let regions = ((bytes - bytes / OWN_PART) >> region_shift).min(REGIONS_MAX);
        if regions < REGIONS_MIN {
            let needed = (REGIONS_MIN << region_shift).div_ceil(OWN_PART - 1).saturating_mul(OWN_PART);
            return Err(Error::HostLimit { bytes, needed: needed.next_multiple_of(BLOCK) });
        }
        Ok(Self { identity, bytes, regions_end: regions << region_shift, region_shift })
    }

    /// Blocks of bits, a bit for each region.
    pub fn groups(&self) -> u64 {
        self.regions().div_ceil(GROUP)
    }

    /// Regions, with that of the header.
    pub fn regions(&self) -> u64 {
        self.regions_end >> self.region_shift
    }

    /// Where a block of bits is.
    pub fn group_place(&self, group: u64) -> u64 {
        self.regions_end + group * BLOCK
    }

    /// Where it is said what identifiers were given out.
    pub fn identifiers(&self) -> u64 {
        IDENTIFIERS * BLOCK
    }

    /// The index of versions.
    pub fn index(&self) -> Range<u64> {
        self.group_place(self.groups())..self.bytes
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&self.identity);
        block.extend_from_slice(&self.bytes.to_le_bytes());
        block.extend_from_slice(&self.regions_end.to_le_bytes());
        block.push(self.region_shift);
        block.resize(CHECKED, 0);
        seal(&mut block, CHECKSUM_AT);
        block.resize(BLOCK_BYTES, 0);
        block
    }

    fn decode(block: &[u8]) -> Result<Self> {
        let too_short = || Error::NoStore("the header is too short".to_owned());
        let block = checked(block, MAGIC, VERSION, "header")?;
        let header = Self {
            identity: block.get(16..32).and_then(|bytes| bytes.try_into().ok()).ok_or_else(too_short)?,
            bytes: u64_at(block, 32).ok_or_else(too_short)?,
            regions_end: u64_at(block, 40).ok_or_else(too_short)?,
            region_shift: block[48],
        };
        if header.fits() { Ok(header) } else { Err(Error::Damaged("the places in the header".to_owned())) }
    }

    fn fits(&self) -> bool {
        let is_shift = (16..=48).contains(&self.region_shift);
        is_shift
            && self.bytes.is_multiple_of(BLOCK)
            && self.regions_end <= self.bytes
            && (self.regions_end >> self.region_shift) << self.region_shift == self.regions_end
            && (REGIONS_MIN..=REGIONS_MAX).contains(&self.regions())
            && (self.bytes - self.regions_end) / BLOCK > self.groups()
    }

    /// Writes both copies, one after the other.
    pub fn write(&self, file: &dyn Device) -> Result<()> {
        COPIES.into_iter().try_for_each(|copy| {
            file.write_at(copy * BLOCK, &self.encode()).map_err(at("write a header"))?;
            file.flush().map_err(at("flush a header"))
        })
    }

    /// One of the copies.
    pub fn read_copy(file: &dyn Device, copy: u64) -> Result<Self> {
        let mut block = vec![0; BLOCK_BYTES];
        file.read_at(copy * BLOCK, &mut block).map_err(at("read a header"))?;
        Self::decode(&block)
    }

    /// A copy that is whole. Both are the same.
    pub fn read(file: &dyn Device) -> Result<Self> {
        let [first, second] = COPIES;
        let header = Self::read_copy(file, first).or_else(|error| Self::read_copy(file, second).map_err(|_| error))?;
        if header.bytes > file.bytes() { Err(Error::Shrunk(file.bytes(), header.bytes)) } else { Ok(header) }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let identity: String = self.identity.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "store {identity} in a sparse file of {} bytes: {} regions of 2^{} bytes, what is no region's from {} on",
            self.bytes,
            self.regions(),
            self.region_shift,
            self.regions_end
        )
    }
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_sparse_header",
    example: || Header::of(1 << 62, [7; 16], Format::default()).map_or_else(|_| Vec::new(), |of| of.encode()),
    seal: |bytes| sealed_block(bytes, CHECKED, CHECKSUM_AT),
    decode: |block| {
        let header = Header::decode(block).ok()?;
        // What reads it counts with these.
        let _ = (header.describe(), header.index(), header.identifiers());
        Some(header.encode())
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    /// What the largest file of ext4 with blocks of 4 KiB has, and that of XFS, Btrfs and tmpfs.
    const EXT4: u64 = (16 << 40) - 4096;
    const XFS: u64 = i64::MAX as u64;

    fn of(bytes: u64, region_shift: u8) -> Result<Header> {
        Header::of(bytes, [7; 16], Format { region_shift, ..Format::default() })
    }

    #[test]
    fn parts_follow_each_other() {
        for (bytes, shift) in [(XFS, 16), (XFS, 40), (XFS, 48), (EXT4, 16), (EXT4, 30), (EXT4, 33), (1 << 31, 20)] {
            let header = of(bytes, shift).unwrap();
            assert_eq!(Header::decode(&header.encode()).unwrap(), header);
            assert!((REGIONS_MIN..=REGIONS_MAX).contains(&header.regions()), "{header:?}");
            assert_eq!(header.index().start, header.regions_end + header.groups() * BLOCK);
            assert!(header.index().end <= bytes && header.groups() * GROUP >= header.regions());
            assert!(header.index().end - header.index().start >= bytes / 20, "{header:?}");
        }
        assert_eq!(of(XFS, 40).unwrap().regions(), 15 * (1 << 19) - 1);
    }

    #[test]
    fn a_host_with_a_limit_that_is_too_small_is_refused() {
        let Err(Error::HostLimit { bytes, needed }) = of(EXT4, 40) else { panic!("16 regions") };
        assert_eq!(bytes, EXT4);
        of(needed, 40).unwrap();
        assert!(matches!(of(needed - (1 << 40), 40), Err(Error::HostLimit { .. })));
        assert!(matches!(of(XFS, 49), Err(Error::Setting(_))));
        let format = Format { checksums: Checksums::All, ..Format::default() };
        assert!(Header::of(XFS, [7; 16], format).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn any_bytes_are_a_header_that_fits_or_an_error() {
        let (whole, mut state) = (of(XFS, 40).unwrap().encode(), 1u64);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut decoded = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 3 {
                let place = usize::try_from(next() % 64).unwrap();
                bytes[place] = u8::try_from(next() % 256).unwrap();
            }
            if next() % 8 > 0 {
                seal(&mut bytes[..CHECKED], CHECKSUM_AT);
            }
            bytes.truncate(if next() % 50 == 0 { usize::try_from(next() % 600).unwrap() } else { BLOCK_BYTES });
            if let Ok(header) = Header::decode(&bytes) {
                decoded += 1;
                assert!(header.fits() && header.index().start < header.index().end);
            }
        }
        assert!(decoded > 100, "{decoded}");
    }
}
