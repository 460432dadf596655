//! Reads all that a store has, and compares it with the checksums that there are.

use crate::BLOCK_BYTES;
use crate::buffer::AlignedBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::overlay::Piece;
use crate::store::Store;
use std::sync::Arc;

/// Blocks that are read with one call.
const CHUNK: u64 = 256;
/// Sentences about damage that are kept; more are counted.
const TOLD_MAX: usize = 100;

/// What a scrub has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks that were read.
    pub blocks: u64,
    /// Commits whose data fit their checksum.
    pub commits: u64,
    /// Commits of whose data a part is gone, with the rest of which nothing can be compared.
    pub commits_in_part: u64,
    /// How much is damaged, and what, as sentences: the first hundred.
    pub damaged: u64,
    pub told: Vec<String>,
}

impl Scrubbed {
    pub(crate) fn tell(&mut self, text: String) {
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

    /// Reads all blocks that are mapped, checks what contradicts itself, and compares what has checksums. `progress` is
    /// told how many blocks were read, and of how many.
    pub fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Scrubbed> {
        let mut scrubbed = Scrubbed::default();
        let usage = self.usage();
        let total = (usage.total - usage.free) / BLOCK_BYTES as u64;
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES * usize::try_from(CHUNK).unwrap_or(1));
        self.layer().each_piece(|piece| {
            let mut done = 0;
            while done < piece.count {
                let count = (piece.count - done).min(CHUNK);
                let part = Piece { first: piece.first + done, count, block: piece.block.map(|block| block + done) };
                self.read_piece(part, &mut buffer, &mut scrubbed)?;
                done += count;
                scrubbed.blocks += count;
                progress(scrubbed.blocks, total);
            }
            Ok(())
        })?;
        self.check()?.told().into_iter().for_each(|text| scrubbed.tell(text));
        self.versions().scrub(&mut scrubbed)?;
        Ok(scrubbed)
    }

    /// Reads blocks; one by one, if they cannot be read together.
    fn read_piece(&self, piece: Piece, buffer: &mut [u8], scrubbed: &mut Scrubbed) -> Result<()> {
        let bytes = usize::try_from(piece.count).map_err(|_| Error::Beyond)? * BLOCK_BYTES;
        match self.layer().read_piece(piece, buffer.get_mut(..bytes).unwrap_or_default()) {
            Err(Error::Device { source, .. }) if piece.count == 1 => {
                let (object, offset) = self.where_is(piece.first);
                scrubbed.tell(format!("object {object}, byte {offset} of its region: {source}"));
                Ok(())
            }
            Err(Error::Device { .. }) => (0..piece.count).try_for_each(|offset| {
                let block = piece.block.map(|block| block + offset);
                self.read_piece(Piece { first: piece.first + offset, count: 1, block }, buffer, scrubbed)
            }),
            read => read,
        }
    }
}
