//! The connection's registered buffer, a ring: places are given back in the order in which they were taken.

use std::collections::VecDeque;
use weft_protocol::data::BulkDescriptor;
use weft_ucx::Region;

/// The least that is registered.
const BYTES_MIN: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Staging {
    region: Option<Region>,
    /// The number under which the server knows it.
    pub number: u32,
    ring: Ring,
}

impl Staging {
    /// Whether a buffer for so many bytes at once has to be made.
    pub fn is_to_grow(&self, bytes: usize, bytes_max: usize) -> bool {
        self.ring.is_empty() && self.ring.bytes < bytes.min(bytes_max)
    }

    /// The length of the buffer that is to be made then.
    pub fn grown_bytes(bytes: usize, bytes_max: usize) -> usize {
        bytes.max(BYTES_MIN).checked_next_power_of_two().unwrap_or(bytes_max).min(bytes_max)
    }

    /// Has this buffer, which the server knows under this number, from now on. Nothing is in the old one.
    pub fn replace(&mut self, region: Region, number: u32) {
        self.ring = Ring { bytes: region.bytes(), taken: VecDeque::new() };
        (self.region, self.number) = (Some(region), number);
    }

    /// Most bytes of one place.
    pub fn bytes(&self) -> usize {
        self.ring.bytes
    }

    /// Takes a place of so many bytes.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        self.ring.take(bytes)
    }

    /// Gives the place back that was taken first.
    pub fn give_back(&mut self) {
        self.ring.taken.pop_front();
    }

    /// What the server is told of a place.
    pub fn descriptor(&self, at: usize) -> BulkDescriptor {
        let address = self.region.as_ref().map_or(0, |region| region.address() + at as u64);
        BulkDescriptor { address, key: self.number, memory_type: 0 }
    }

    /// Copies bytes to a place.
    #[must_use]
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> bool {
        self.region.as_mut().is_some_and(|region| region.copy_in(at, from))
    }

    /// Copies bytes from a place.
    #[must_use]
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> bool {
        self.region.as_ref().is_some_and(|region| region.copy_out(at, into))
    }

    /// Hands bytes that have come to a place out, where they lie.
    #[must_use]
    pub fn hand_out(&self, at: usize, bytes: usize, give: impl FnOnce(&[u8])) -> bool {
        self.region.as_ref().is_some_and(|region| region.hand_out(at, bytes, give))
    }
}

/// Which places are taken: starts and ends, the oldest first.
#[derive(Debug, Default)]
struct Ring {
    bytes: usize,
    taken: VecDeque<(usize, usize)>,
}

impl Ring {
    fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        let at = match (self.taken.front(), self.taken.back()) {
            (Some(&(oldest, _)), Some(&(newest, end))) if newest >= oldest => {
                // Free: behind the newest, and before the oldest.
                if self.bytes - end >= bytes { Some(end) } else { (oldest >= bytes).then_some(0) }
            }
            (Some(&(oldest, _)), Some(&(_, end))) => (oldest - end >= bytes).then_some(end),
            _ => (self.bytes >= bytes).then_some(0),
        }?;
        self.taken.push_back((at, at + bytes));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_never_overlap_and_an_empty_ring_takes_all() {
        let mut ring = Ring { bytes: 1000, taken: VecDeque::new() };
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((random >> 33) % below).unwrap()
        };
        let mut wrapped = 0;
        for _ in 0..100_000 {
            if next(2) == 0 {
                ring.taken.pop_front();
            } else if let Some(at) = ring.take(next(400) + 1) {
                let (last, rest) = (*ring.taken.back().unwrap(), ring.taken.len() - 1);
                assert!(last.0 == at && last.1 <= ring.bytes);
                let apart = |&(start, end): &(usize, usize)| end <= last.0 || last.1 <= start;
                assert!(ring.taken.iter().take(rest).all(apart), "{:?}", ring.taken);
                wrapped += usize::from(at == 0 && rest > 0);
            }
        }
        assert!(wrapped > 100);
        ring.taken.clear();
        assert_eq!((ring.take(1000), ring.take(1)), (Some(0), None));
    }

    #[test]
    fn a_buffer_grows_in_powers_of_two_to_its_most() {
        let most = 16 << 20;
        let grown = |bytes| Staging::grown_bytes(bytes, most) >> 20;
        assert_eq!([1, 1 << 20, (1 << 20) + 1, 9 << 20, 40 << 20].map(grown), [1, 1, 2, 16, 16]);
        let staging = Staging::default();
        assert!(staging.is_to_grow(1, most) && !staging.is_to_grow(0, most));
    }
}
