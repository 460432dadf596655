//! What goes from one copy of an object that keeps versions to another.
//!
//! Pieces go in the order of their versions, as far as they are there still, and behind those of a version that can be
//! read the version itself. So what one copy has of another is all before a place in that order, a [`Cursor`]; nothing
//! else is asked of a copy to go on from there, also when either was cleaned meanwhile: what a cleaner takes away no
//! version needs that is sent later.
//!
//! What is not here: bytes of a stream, which is `crate::feed`.

mod receive;
mod send;

use super::commit::version_of;
use super::object::{Inner, read};
use super::{VersionStat, Versions};
use crate::error::{Error, Result};
use crate::{BLOCK, BLOCK_BYTES};
use std::time::SystemTime;

pub(crate) use receive::Incoming;

/// Version and block. All that comes before is there.
pub(crate) type Cursor = (u64, u64);

/// Blocks of data that go at once.
pub(crate) const DATA_MAX: u64 = 256;
/// Extents that do.
pub(crate) const EXTENTS_MAX: usize = 1024;

/// What a copy is made of, and from where on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    /// The same in all copies of an object.
    pub lineage: u64,
    pub made: SystemTime,
    /// What comes before is not sent.
    pub from: Cursor,
    /// The newest version that can be read and is not sent. Number 0: there is none.
    pub base: VersionStat,
}

impl Origin {
    /// Whether nothing has to be there already.
    pub fn is_from_the_first(&self) -> bool {
        self.from <= (1, 0)
    }
}

/// Blocks that a version wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub version: u64,
    pub first: u64,
    pub count: u64,
    /// Otherwise they are a hole.
    pub has_data: bool,
}

impl Extent {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        if self.has_data { self.count.saturating_mul(BLOCK) } else { 0 }
    }

    /// The part of it that is not before a place, and the bytes of data that go with what is.
    fn after(self, place: Cursor) -> Option<(Self, u64)> {
        let skipped = match self.version.cmp(&place.0) {
            std::cmp::Ordering::Less => self.count,
            std::cmp::Ordering::Equal => place.1.saturating_sub(self.first).min(self.count),
            std::cmp::Ordering::Greater => 0,
        };
        let rest = Self { first: self.first + skipped, count: self.count - skipped, ..self };
        (rest.count > 0).then_some((rest, Self { count: skipped, ..self }.bytes()))
    }

    fn end(&self) -> Cursor {
        (self.version, self.first + self.count)
    }
}

/// What is sent of an object, in order.
pub(crate) enum Outgoing<'a> {
    Begin(Origin),
    Pieces(&'a [Extent], &'a [u8]),
    Version(VersionStat),
    /// Of the version that came last: it has it before anybody could clean it away.
    Name(&'a str, u64),
    /// All names, in order, behind the versions.
    HasName(&'a str, u64),
}

impl Inner {
    /// Before which place all is there.
    fn cursor(&self) -> Cursor {
        let now = read(&self.state);
        match now.head.parts {
            (0, _) => (version_of(now.newest) + 1, 0),
            (sequence, block) => (version_of(sequence), block),
        }
    }
}

impl Versions {
    /// The objects, with their lineages, and how far each goes.
    pub fn cursors(&self) -> Result<Vec<(u64, u64, Cursor)>> {
        self.checkpoint()?;
        let mut found = Vec::new();
        for id in self.ids()? {
            match self.object(id) {
                Ok(object) => found.push((id, object.0.lineage, object.0.cursor())),
                // Removed: the index may have it still.
                Err(Error::NoObject) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

fn bytes_of(blocks: u64) -> Result<usize> {
    usize::try_from(blocks).ok().and_then(|blocks| blocks.checked_mul(BLOCK_BYTES)).ok_or(Error::Beyond)
}
