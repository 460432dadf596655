//! Listings.

use crate::attributes::statx_of;
use crate::border::{Explain, Failure, Outcome, count, status};
use crate::connection::FileSystem;
use crate::open_file::{FileHandle, OpenFile};
use crate::raw;
use std::ffi::{c_int, c_uint};
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Cookie, Error, FileKind, InodeNumber};

/// Entries that are asked for at a time.
const PAGE_ENTRIES_MAX: usize = 1024;
/// What no name is after.
const COOKIES_END: u64 = 1 << 63;

/// `struct weft_cursor`: names whose cookies are above `next`, up to `end`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    next: u64,
    end: u64,
}

/// `struct weft_dirent`.
#[repr(C)]
pub struct Dirent {
    ino: u64,
    kind: u32,
    spare: [u32; 5],
    attributes: libc::statx,
    name: [u8; 256],
}

impl Cursor {
    /// As many parts: names are spread evenly over cookies, which are hashes of them.
    fn split(self, parts: &mut [Cursor]) {
        let (first, end) = (self.next, self.end.min(COOKIES_END).max(self.next));
        let total = u128::from(end - first);
        let count = parts.len() as u128;
        let at = |index: u128| first + u64::try_from(total * index / count).expect("it is no more than the total");
        for (index, part) in (0..).zip(parts) {
            *part = Cursor { next: at(index), end: at(index + 1) };
        }
    }
}

/// Stores the next entries. An error after some of them is left to the next call.
fn read(directory: &OpenFile, cursor: &mut Cursor, with_attributes: bool, entries: &mut [Dirent]) -> Outcome<usize> {
    let (inode, mut stored) = (directory.directory()?, 0);
    while stored < entries.len() && cursor.next < cursor.end {
        match read_page((&directory.fs, inode), cursor, with_attributes, &mut entries[stored..]) {
            Ok(count) => stored += count,
            Err((count, _)) if stored + count > 0 => return Ok(stored + count),
            Err((_, failure)) => return Err(failure),
        }
    }
    Ok(stored)
}

/// Stores entries of one page. An error comes with how many were stored before it; the cursor stands behind them.
fn read_page(
    (fs, directory): (&FileSystem, InodeNumber),
    cursor: &mut Cursor,
    with_attributes: bool,
    entries: &mut [Dirent],
) -> Result<usize, (usize, Failure)> {
    let mut stored = 0;
    let wanted = u32::try_from(entries.len().min(PAGE_ENTRIES_MAX)).expect("a page has few entries");
    let after = Cookie::from_raw(cursor.next);
    let page = fs.client.read_directory(&fs.who, directory, after, wanted, with_attributes);
    let page = page.explain(|| "readdir").map_err(|failure| (0, failure))?;
    for entry in page.entries {
        if stored == entries.len() {
            return Ok(stored);
        }
        if entry.cookie.raw() > cursor.end {
            cursor.next = cursor.end;
            return Ok(stored);
        }
        let is_there = store(fs, &entry, with_attributes, &mut entries[stored]);
        stored += usize::from(is_there.map_err(|failure| (stored, failure))?);
        cursor.next = entry.cookie.raw();
    }
    cursor.next = page.next.map_or(cursor.end, Cookie::raw);
    Ok(stored)
}

/// Returns false if the entry is gone.
fn store(fs: &FileSystem, entry: &DirectoryEntry, with_attributes: bool, into: &mut Dirent) -> Outcome<bool> {
    // SAFETY: integers, of which any are values.
    *into = unsafe { std::mem::zeroed() };
    into.ino = entry.inode.raw();
    into.kind = u32::from(match entry.kind {
        FileKind::Regular => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
    });
    let name = entry.name.as_bytes();
    into.name[..name.len()].copy_from_slice(name);
    if with_attributes {
        into.attributes = match &entry.attributes {
            Some(attributes) => statx_of(fs, attributes),
            None => match fs.client.attributes(&fs.who, entry.inode) {
                Ok(told) => statx_of(fs, &told.attributes),
                Err(Error::Stale | Error::NotFound) => return Ok(false),
                Err(error) => return Err(error).explain(|| "readdir: attributes"),
            },
        };
    }
    Ok(true)
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_readdir(
    directory: FileHandle,
    cursor: Option<&mut Cursor>,
    mask: c_uint,
    entries: *mut Dirent,
    length: usize,
) -> isize {
    count(|| {
        let (directory, cursor) = (directory.get()?, raw::required(cursor, "cursor")?);
        // SAFETY: they are as `weft.h` says.
        let entries = unsafe { raw::slice_mut(entries, length, "entries") }?;
        if entries.is_empty() {
            return Err(Failure::invalid("readdir of 0 entries"));
        }
        read(&directory, cursor, mask != 0, entries)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_cursor_split(whole: Option<&Cursor>, parts: *mut Cursor, length: usize) -> c_int {
    status(|| {
        let whole = *raw::required(whole, "whole")?;
        // SAFETY: they are as `weft.h` says.
        let parts = unsafe { raw::slice_mut(parts, length, "parts") }?;
        if parts.is_empty() {
            return Err(Failure::invalid("a cursor in 0 parts"));
        }
        whole.split(parts);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_cursor_touch_and_are_the_whole() {
        for (whole, count) in [
            (Cursor { next: 0, end: u64::MAX }, 7),
            (Cursor { next: 0, end: u64::MAX }, 1),
            (Cursor { next: 10, end: 12 }, 5),
            (Cursor { next: 10, end: 10 }, 3),
            (Cursor { next: COOKIES_END - 1, end: u64::MAX }, 2),
        ] {
            let mut parts = vec![Cursor { next: 0, end: 0 }; count];
            whole.split(&mut parts);
            assert_eq!(parts[0].next, whole.next);
            assert_eq!(parts[count - 1].end, whole.end.min(COOKIES_END));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].next), "{parts:?}");
        }
    }
}
