//! Parts of an object's file that are kept mapped, so that transfers take bytes from its pages and put them there.
//!
//! Only of files on a tmpfs, whose pages are memory anyhow, and only of parts without holes: to look at a hole through
//! a mapping, or to register one, fills it. A part is mapped at the first transfer that lies in it, and kept, since
//! mapping, registering and touching pages anew costs more than copying them (docs/rdma.md).
//!
//! Whoever cuts the file calls [`Windows::close`] after that: no later transfer meets pages that the file had before.
//! One that is under way then moves bytes from before the cut, or zeros ([`FileWindow::is_whole`]), and harms nobody.

use crate::store::lock;
use rustix::fs::{SeekFrom, fstat, seek};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use weft_ucx::{FileWindow, may_lock_files};

/// Bytes of a window, but for the last one of a file. With adapters so much is locked in memory at once.
const WINDOW_BYTES: u64 = 32 << 20;

/// Windows of one file.
#[derive(Debug, Default)]
pub struct Windows {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By number, ascending.
    open: Vec<(u64, Arc<FileWindow>)>,
    /// A range of the file without holes. To find the next hole takes as long as it is far.
    whole: Range<u64>,
}

/// A part of a window, and where it begins in what was asked for.
pub type WindowPart = (Arc<FileWindow>, Range<usize>);

impl Windows {
    /// Whether files on this file system may have windows in this process.
    pub fn are_for(directory: BorrowedFd<'_>) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        rustix::fs::fstatfs(directory).is_ok_and(|found| found.f_type == TMPFS) && may_lock_files()
    }

    /// The windows that a range of the file lies in, in order. `None`: it has holes there, or not so many bytes, or it
    /// cannot be mapped.
    pub fn at(&self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Option<Vec<WindowPart>> {
        let end = offset.checked_add(bytes).filter(|_| bytes > 0)?;
        let mut known = lock(&self.known);
        if !known.is_whole(file, offset..end) {
            return None;
        }
        (offset / WINDOW_BYTES..end.div_ceil(WINDOW_BYTES))
            .map(|number| known.part(file, number, offset..end))
            .collect()
    }

    /// Forgets all: the file was cut, or its pages are to be free.
    pub fn close(&self) {
        *lock(&self.known) = Known::default();
    }
}

impl Known {
    /// Whether the file has no hole there; its end counts as one.
    fn is_whole(&mut self, file: BorrowedFd<'_>, range: Range<u64>) -> bool {
        let covers = |whole: &Range<u64>| whole.start <= range.start && range.end <= whole.end;
        if covers(&self.whole) {
            return true;
        }
        let Ok(stat) = fstat(file) else { return false };
        let (size, stored) = (stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned().saturating_mul(512));
        if range.end > size {
            return false;
        }
        if stored >= size {
            self.whole = 0..size;
            return true;
        }
        let from = if self.whole.contains(&range.start) { self.whole.end } else { range.start };
        let Ok(hole) = seek(file, SeekFrom::Hole(from)) else { return false };
        self.whole = if from == range.start { from..hole } else { self.whole.start..hole };
        covers(&self.whole)
    }

    /// The part of a window that a range without holes has of it.
    fn part(&mut self, file: BorrowedFd<'_>, number: u64, range: Range<u64>) -> Option<WindowPart> {
        let first = number * WINDOW_BYTES;
        let wanted = range.start.saturating_sub(first)..(range.end - first).min(WINDOW_BYTES);
        let wanted = usize::try_from(wanted.start).ok()?..usize::try_from(wanted.end).ok()?;
        let place = self.open.binary_search_by_key(&number, |(number, _)| *number);
        let open = place.ok().and_then(|index| self.open.get(index)).map(|(_, window)| window);
        if let Some(window) = open.filter(|window| window.bytes() >= wanted.end && window.is_whole()) {
            return Some((Arc::clone(window), wanted));
        }
        // From its begin, if that is no hole: to register one fills it.
        if !self.is_whole(file, first..range.end) {
            return None;
        }
        let bytes = usize::try_from((self.whole.end - first).min(WINDOW_BYTES)).ok()?;
        let opened = FileWindow::new(file, first, bytes);
        let window = opened.inspect_err(|error| tracing::debug!(%error, "a file is not mapped for transfers")).ok()?;
        let window = Arc::new(window);
        match place {
            Ok(index) => self.open.get_mut(index)?.1 = Arc::clone(&window),
            Err(index) => self.open.insert(index, (number, Arc::clone(&window))),
        }
        Some((window, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    fn file(bytes: usize) -> OwnedFd {
        let file = memfd_create("windows", MemfdFlags::CLOEXEC).unwrap();
        let mut at = 0;
        while at < bytes {
            at += rustix::io::write(&file, &vec![1; (bytes - at).min(1 << 20)]).unwrap();
        }
        file
    }

    fn has_ucx() -> bool {
        let found = weft_ucx::Library::get();
        if let Err(error) = &found {
            println!("skipped: {error}");
        }
        found.is_ok()
    }

    #[test]
    fn a_range_lies_in_windows_that_are_kept_until_they_are_closed() {
        if !has_ucx() {
            return;
        }
        let windows = Windows::default();
        let bytes = usize::try_from(WINDOW_BYTES).unwrap();
        let file = file(bytes + 100_000);
        let at = |offset: u64, bytes: u64| windows.at(file.as_fd(), offset, bytes);
        let parts = at(WINDOW_BYTES - 10, 30).unwrap();
        assert_eq!(parts.iter().map(|(_, range)| range.clone()).collect::<Vec<_>>(), [bytes - 10..bytes, 0..20]);
        assert_eq!(parts[1].0.bytes(), 100_000);
        let again = at(5, 7).unwrap();
        assert!(again.len() == 1 && again[0].1 == (5..12) && Arc::ptr_eq(&again[0].0, &parts[0].0));
        assert!(at(WINDOW_BYTES + 99_999, 2).is_none(), "more than there is");
        assert!(at(u64::MAX - 1, 2).is_none() && at(7, 0).is_none());
        assert_eq!(rustix::io::pwrite(&file, &[2; 100_000], WINDOW_BYTES + 100_000), Ok(100_000));
        assert_eq!(at(WINDOW_BYTES + 99_999, 2).unwrap()[0].0.bytes(), 200_000, "it has grown");
        windows.close();
        assert!(!Arc::ptr_eq(&at(5, 7).unwrap()[0].0, &again[0].0));
    }

    #[test]
    fn a_window_has_no_hole_and_looking_for_one_fills_none() {
        if !has_ucx() {
            return;
        }
        let windows = Windows::default();
        let file = file(1 << 20);
        ftruncate(&file, 3 << 20).unwrap();
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
        let before = blocks();
        assert!(windows.at(file.as_fd(), 1 << 20, 1).is_none());
        assert!(windows.at(file.as_fd(), 0, (1 << 20) + 1).is_none());
        let found = windows.at(file.as_fd(), 0, 1 << 20).unwrap();
        assert_eq!((found[0].0.bytes(), blocks()), (1 << 20, before));
    }
}
