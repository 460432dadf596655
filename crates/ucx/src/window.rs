//! Memory of others that transfers use: bytes of a file, and pages that a device fills.

use crate::region::Region;
use crate::{Error, Result};
use std::os::fd::BorrowedFd;
use weft_sys::huge::HugePage;
use weft_sys::mapped::MappedFile;

/// A range of a file, mapped and registered. Only transfers touch it: what they put is in no other memory before, and
/// what they get is in the file when it is there. Others may read and write the file meanwhile.
#[derive(Debug)]
pub struct FileWindow {
    // In this order: a registration ends before its memory goes.
    region: Region,
    mapped: MappedFile,
}

// SAFETY: what is shared is where it is and under which handle, which do not change; the context, whose handle it is,
// is made for several threads. Bytes are touched by transfers alone.
unsafe impl Sync for FileWindow {}

impl FileWindow {
    /// Maps bytes of a file, from a page's begin on, all of which it has. With adapters its pages are locked in memory:
    /// it is for files that are in memory anyhow.
    pub fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self> {
        let mapped = MappedFile::new(file, offset, bytes)
            .map_err(|errno| Error::Failed { call: "mmap", reason: errno.to_string() })?;
        // SAFETY: mapped as long as this is there, longer than the region; no reference to it is ever made.
        let region = unsafe { Region::of_memory(mapped.address(), bytes) }?;
        Ok(Self { region, mapped })
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.mapped.bytes()
    }

    /// Whether all that was moved so far was the file's: it was not cut meanwhile.
    pub fn is_whole(&self) -> bool {
        self.mapped.is_whole()
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// A huge page, registered: once, for all who put bytes of it. It tells of no byte whose it is: only what is shared
/// with a mover is put ([`crate::Mover::put_shared`]).
#[derive(Debug)]
pub struct PageWindow {
    // In this order: a registration ends before its memory goes.
    region: Region,
    page: HugePage,
}

// SAFETY: what is shared is where it is and under which handle, which do not change; the context, whose handle it is,
// is made for several threads.
unsafe impl Sync for PageWindow {}

impl PageWindow {
    /// Registers a page. With adapters it is locked in memory.
    pub fn new(page: HugePage) -> Result<Self> {
        // SAFETY: mapped as long as `page` is there, longer than the region. Nobody else gets its key, so that nothing
        // but transfers of ours use it, which `put_shared` begins.
        let region = unsafe { Region::of_memory(page.address(), page.bytes()) }?;
        Ok(Self { region, page })
    }

    /// The page.
    pub fn page(&self) -> &HugePage {
        &self.page
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}
