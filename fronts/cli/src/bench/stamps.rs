//! Contents that tell where they belong: the first 8 bytes of each page are a mix of its offset in the file, the worker
//! and the run. Stamping costs a write per page, so it hardly shows in what is measured.

/// A stamp per so many bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Stamps of one file in one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    seed: u64,
}

impl Stamps {
    /// Stamps of a worker's file in a run.
    pub fn new(seed: u64, worker: usize) -> Self {
        Self { seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (worker as u64) << 40 }
    }

    fn stamp(self, page: u64) -> [u8; 8] {
        (page ^ self.seed).wrapping_mul(0xd6e8_feb8_6659_fd93).to_le_bytes()
    }

    /// Stamps a buffer that begins at this offset of the file.
    pub fn put(self, buffer: &mut [u8], offset: u64) {
        self.each(buffer.len(), offset, |at, stamp| {
            buffer[at..at + stamp.len()].copy_from_slice(stamp);
            true
        });
    }

    /// The offset of the first page in the buffer that does not have its stamp.
    pub fn first_wrong(self, buffer: &[u8], offset: u64) -> Option<u64> {
        let mut wrong = None;
        self.each(buffer.len(), offset, |at, stamp| {
            let right = buffer[at..at + stamp.len()] == *stamp;
            if !right {
                wrong = Some(offset + at as u64);
            }
            right
        });
        wrong
    }

    /// Calls for each stamp, or the part of one, that lies in the buffer, until told not to go on.
    fn each(self, length: usize, offset: u64, mut visit: impl FnMut(usize, &[u8]) -> bool) {
        let end = offset + length as u64;
        let mut page = offset / PAGE_BYTES;
        while page * PAGE_BYTES < end {
            let stamp = self.stamp(page);
            let begin = (page * PAGE_BYTES).max(offset);
            let from = begin - page * PAGE_BYTES;
            if from < stamp.len() as u64 {
                let to = (stamp.len() as u64).min(end - page * PAGE_BYTES);
                // All three are within the buffer's length, a usize.
                let (at, from, to) = ((begin - offset) as usize, from as usize, to as usize);
                if !visit(at, &stamp[from..to]) {
                    return;
                }
            }
            page += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_of_a_file_is_recognised() {
        let stamps = Stamps::new(3, 1);
        let mut file = vec![0xee; 20_000];
        stamps.put(&mut file, 0);
        for request in [1, 7, 8, 100, 4095, 4096, 4097, 20_000] {
            let mut written = vec![0xee; file.len()];
            for (index, piece) in written.chunks_mut(request).enumerate() {
                stamps.put(piece, (index * request) as u64);
            }
            assert!(written == file, "written in pieces of {request}");
            for (index, piece) in file.chunks(request).enumerate() {
                assert_eq!(stamps.first_wrong(piece, (index * request) as u64), None, "read in pieces of {request}");
            }
        }
    }

    #[test]
    fn a_wrong_page_is_named() {
        let stamps = Stamps::new(3, 1);
        let mut file = vec![0; 20_000];
        stamps.put(&mut file, 0);
        assert_eq!(Stamps::new(4, 1).first_wrong(&file, 0), Some(0), "of another run");
        assert_eq!(Stamps::new(3, 2).first_wrong(&file, 0), Some(0), "of another worker");
        file[8195] ^= 1;
        assert_eq!(stamps.first_wrong(&file, 0), Some(8192));
        assert_eq!(stamps.first_wrong(&file[4096..], 0), Some(0), "of another place");
    }
}
