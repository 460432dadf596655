//! A device that is made of parts of another one, one behind the other: the map's room.

use crate::BLOCK;
use crate::device::Device;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// See the module.
pub(crate) struct Joined {
    device: Arc<dyn Device>,
    /// Bytes of the device.
    parts: Vec<Range<u64>>,
}

impl Joined {
    /// Of ranges of blocks.
    pub fn new(device: Arc<dyn Device>, parts: impl Iterator<Item = Range<u64>>) -> Arc<Self> {
        let parts = parts.map(|part| part.start * BLOCK..part.end * BLOCK).collect();
        Arc::new(Self { device, parts })
    }

    /// Tells where the pieces of a range lie on the device, and at which of the range's bytes each begins and ends.
    fn each(
        &self,
        place: u64,
        bytes: u64,
        mut tell: impl FnMut(u64, Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut before, end) = (0, place + bytes);
        if end > self.bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for part in &self.parts {
            let behind = before + (part.end - part.start);
            let (from, to) = (place.max(before), end.min(behind));
            if from < to {
                let of = |at: u64| usize::try_from(at - place).map_err(io::Error::other);
                tell(part.start + (from - before), of(from)?..of(to)?)?;
            }
            before = behind;
        }
        Ok(())
    }
}

impl Device for Joined {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.each(place, into.len() as u64, |at, range| self.device.read_at(at, &mut into[range]))
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.each(place, from.len() as u64, |at, range| self.device.write_at(at, &from[range]))
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        self.each(place, bytes, |at, range| self.device.discard(at, range.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK_BYTES;
    use crate::base::{Applied, Base, Changed};
    use crate::confirmed::Changes;
    use crate::geometry::{Format, Geometry};
    use crate::overlay::{Overlay, Piece};
    use crate::shadow::{Shadow, Zeros};
    use crate::sums::Sums;

    #[test]
    fn a_range_may_begin_and_end_in_any_part() {
        let device = Shadow::new(Arc::new(Zeros(100 * BLOCK)));
        let joined = Joined::new(device.clone(), [10..12, 40..41, 50..53].into_iter());
        assert_eq!(joined.bytes(), 6 * BLOCK);
        let block_of = |number: u8| [number; BLOCK_BYTES];
        for first in 0..6u8 {
            for end in first + 1..=6 {
                let bytes: Vec<u8> = (first..end).flat_map(|number| block_of(first * 10 + end + number)).collect();
                joined.write_at(u64::from(first) * BLOCK, &bytes).unwrap();
                let mut found = vec![0; bytes.len()];
                joined.read_at(u64::from(first) * BLOCK, &mut found).unwrap();
                assert!(found == bytes, "{first} to {end}");
            }
        }
        // What was written last over each block.
        for (number, place) in (0..6u8).zip([10, 11, 40, 50, 51, 52u64]) {
            let mut found = block_of(0);
            device.read_at(place * BLOCK, &mut found).unwrap();
            assert!(found == block_of(number * 10 + 6 + number), "{number}");
        }
        assert!(joined.write_at(5 * BLOCK, &[0; 2 * BLOCK_BYTES]).is_err(), "beyond the end");
    }

    #[test]
    fn a_map_that_has_filled_its_first_part_goes_on_in_the_next() {
        let small = Geometry::of(16 << 20, [7; 16], Format::default()).unwrap();
        let geometry = small.grown(1 << 30).unwrap().unwrap();
        let device: Arc<dyn Device> = Shadow::new(Arc::new(Zeros(1 << 30)));
        let mut changes = Overlay::default();
        // As many pieces as there can be.
        (0..geometry.data_blocks())
            .for_each(|block| changes.set(Piece { first: block * 2, count: 1, block: Some(block) }));
        let base = Base::create(Arc::clone(&device), &geometry).unwrap();
        let changed = Changed { extents: &changes, sums: &Sums::default(), groups: &[], confirmed: &Changes::new() };
        base.checkpoint(&changed, Applied::default()).unwrap();
        drop(base);
        let mut block = [0; BLOCK_BYTES];
        let (in_data, _) = geometry.not_for_data().next().unwrap();
        device.read_at((geometry.data_start + in_data) * BLOCK, &mut block).unwrap();
        assert!(block.iter().any(|byte| *byte != 0), "the second part is in use");
        let base = Base::open(device, &geometry, true).unwrap();
        let (found, _) = base.within(&(0..u64::MAX)).unwrap();
        assert!(found.into_iter().eq(changes.pieces()));
    }
}
