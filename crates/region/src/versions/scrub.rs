//! Compares commits with their checksums.

use super::Versions;
use super::commit::{Commit, version_of};
use super::index::Row;
use super::object::{Inner, read};
use crate::BLOCK_BYTES;
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::scrub::Scrubbed;

impl Versions {
    /// Opens all objects that keep versions, so that those are known that the index does not have. Tells of damage that
    /// keeps one from being opened.
    pub fn open_all(&self, scrubbed: &mut Scrubbed) -> Result<()> {
        let mut ids = Vec::new();
        self.0.layer.each_region(&mut |id| {
            ids.push(id);
            Ok(())
        })?;
        for id in ids {
            let opened = match Inner::super_block(&self.0, id) {
                Ok(Some(_)) => self.object(id).map(drop),
                // Told of with the blocks.
                Ok(None) | Err(Error::Damaged(_)) => Ok(()),
                Err(error) => Err(error),
            };
            match opened {
                // Of blocks that cannot be read it is told elsewhere.
                Ok(()) | Err(Error::NoObject | Error::Device { .. }) => {}
                Err(Error::Damaged(text)) => scrubbed.tell(text),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// All commits that are in a ring.
    pub fn scrub(&self, scrubbed: &mut Scrubbed) -> Result<()> {
        self.checkpoint()?;
        let mut tell = |text| scrubbed.tell(format!("the index of versions: {text}"));
        if !self.0.index().map_or(Ok(true), |index| index.verify(&mut tell))? {
            return Ok(());
        }
        for id in self.ids()? {
            match self.object(id) {
                Ok(object) => object.0.scrub(scrubbed)?,
                // What is damaged was told of when all were opened.
                Err(Error::NoObject | Error::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Inner {
    fn scrub(&self, scrubbed: &mut Scrubbed) -> Result<()> {
        let _cleaning = crate::lock(&self.cleaning);
        let Some(index) = self.shared.index() else { return Ok(()) };
        let mut from = 0;
        while let Some((sequence, row)) = index.first_in_ring(self.id, from)? {
            match self.scrub_commit(sequence, &row) {
                Ok(true) => scrubbed.commits += 1,
                Ok(false) => scrubbed.commits_in_part += 1,
                Err(Error::Damaged(text)) => scrubbed.tell(text),
                // A block that cannot be read was told of before.
                Err(Error::Device { .. }) => {}
                Err(error) => return Err(error),
            }
            from = sequence + 1;
        }
        Ok(())
    }

    /// `false`: not all of its data are there any more.
    fn scrub_commit(&self, sequence: u64, row: &Row) -> Result<bool> {
        if !row.has_block() {
            return Ok(false);
        }
        let damaged =
            |what: &str| Error::Damaged(format!("object {}, version {}: {what}", self.id, version_of(sequence)));
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        self.read_positions(row.position, &mut block)?;
        let nonce = read(&self.state).head.nonce;
        let is_it = |found: &Commit| (found.nonce, found.position, found.sequence) == (nonce, row.position, sequence);
        let found = Commit::decode(&block).filter(|(found, _)| is_it(found));
        let (commit, _) = found.ok_or_else(|| damaged("its commit"))?;
        if !row.is_whole() {
            return Ok(false);
        }
        if self.has_its_data(row.position, &commit)? { Ok(true) } else { Err(damaged("its data")) }
    }
}
