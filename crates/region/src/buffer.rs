//! Memory that begins at a block's boundary, as devices want it that are read and written past the page cache.

use crate::BLOCK_BYTES;
use std::ops::{Deref, DerefMut};

/// Zeros at first. A device takes whole blocks of it as they are.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// So many bytes.
    pub fn new(bytes: usize) -> Self {
        let memory = vec![0u8; bytes + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start, bytes }
    }
}

/// Whether a device can use this memory as it is.
pub(crate) fn is_aligned(memory: &[u8]) -> bool {
    memory.as_ptr().align_offset(BLOCK_BYTES) == 0
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}
