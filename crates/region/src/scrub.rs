//! Reads all that a store has, and compares it with the checksums that there are.

use crate::buffer::AlignedBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::store::Store;
use crate::{BLOCK_BYTES, as_index};
use std::sync::Arc;

/// Blocks that are read with one call.
const CHUNK: u64 = 256;
/// Sentences about damage that are kept; more are counted.
const TOLD_MAX: usize = 100;

/// What a scrub has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks that were read, and those among them that were compared with a checksum of their own.
    pub blocks: u64,
    pub compared: u64,
    /// Commits whose data fit their checksum.
    pub commits: u64,
    /// Commits of whose data a part is gone, with the rest of which nothing can be compared.
    pub commits_in_part: u64,
    /// How much is damaged, and what, as sentences: the first hundred.
    pub damaged: u64,
    pub told: Vec<String>,
}

impl Scrubbed {
    /// Takes note of something that is damaged.
    pub fn tell(&mut self, text: String) {
        self.damaged += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(text);
        }
    }
}

impl Store {
    /// Opens the store on a device, after all pages of its trees were compared with their checksums.
    pub fn open_verified(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_as(device, true)
    }

    /// Reads all blocks that are mapped, and compares what has checksums, beside whoever uses the store. `progress` is
    /// told how many blocks were read, and of how many.
    pub fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Scrubbed> {
        let mut scrubbed = Scrubbed::default();
        let usage = self.usage();
        let total = (usage.total - usage.free) / BLOCK_BYTES as u64;
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES * as_index(CHUNK));
        if let Some(layer) = self.layer().mapped()
            && !layer.verify_own(&mut |text| scrubbed.tell(text))?
        {
            return Ok(scrubbed);
        }
        // First, since it notes checksums of what was written before a crash.
        self.versions().open_all(&mut scrubbed)?;
        self.layer().each_range(&mut |range| {
            for first in range.clone().step_by(as_index(CHUNK)) {
                let blocks = first..range.end.min(first + CHUNK);
                let (read, compared) = self.layer().verify(blocks, &mut buffer, &mut |text| scrubbed.tell(text))?;
                scrubbed.blocks += read;
                scrubbed.compared += compared;
                progress(scrubbed.blocks, total);
            }
            Ok(())
        })?;
        self.versions().scrub(&mut scrubbed)?;
        Ok(scrubbed)
    }
}
