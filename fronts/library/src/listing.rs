//! Listings.

use crate::failure::{Explain, Outcome};
use crate::open_file::OpenFile;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Cookie, Error};

/// Entries that are asked for at a time.
const PAGE_ENTRIES_MAX: usize = 1024;
/// What no name is after.
const COOKIES_END: u64 = 1 << 63;

/// Names whose cookies are above `next`, up to `end`: `struct weft_cursor`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    next: u64,
    end: u64,
}

impl Cursor {
    /// All names.
    pub const ALL: Self = Self { next: 0, end: u64::MAX };
    /// No names.
    pub const NONE: Self = Self { next: 0, end: 0 };

    /// As many parts: names are spread evenly over cookies, which are hashes of them.
    pub fn split(self, parts: &mut [Cursor]) {
        let (first, end) = (self.next, self.end.min(COOKIES_END).max(self.next));
        let total = u128::from(end - first);
        let count = parts.len() as u128;
        let at = |index: u128| first + u64::try_from(total * index / count).expect("it is no more than the total");
        for (index, part) in (0..).zip(parts) {
            *part = Cursor { next: at(index), end: at(index + 1) };
        }
    }

    /// Passes the next entries, up to `wanted`, to `store`, with attributes if asked for. Returns how many; 0 at the
    /// end. An error after some of them is left to the next call.
    pub fn read(
        &mut self,
        directory: &OpenFile,
        with_attributes: bool,
        wanted: usize,
        store: &mut dyn FnMut(DirectoryEntry),
    ) -> Outcome<usize> {
        let mut stored = 0;
        while stored < wanted && self.next < self.end {
            let before = stored;
            let mut count = |entry| {
                store(entry);
                stored += 1;
            };
            match self.read_page(directory, with_attributes, wanted - before, &mut count) {
                Err(failure) if stored == 0 => return Err(failure),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(stored)
    }

    /// Passes entries of one page. After an error it stands behind those that were passed before.
    fn read_page(
        &mut self,
        directory: &OpenFile,
        with_attributes: bool,
        wanted: usize,
        store: &mut dyn FnMut(DirectoryEntry),
    ) -> Outcome {
        let (fs, inode) = (&directory.fs, directory.directory()?);
        let limit = u32::try_from(wanted.min(PAGE_ENTRIES_MAX)).expect("a page has few entries");
        let after = Cookie::from_raw(self.next);
        let page = fs.client.read_directory(&fs.who, inode, after, limit, with_attributes).explain(|| "readdir")?;
        let mut room = wanted;
        for mut entry in page.entries {
            if room == 0 {
                return Ok(());
            }
            let cookie = entry.cookie.raw();
            if cookie > self.end {
                self.next = self.end;
                return Ok(());
            }
            if with_attributes && entry.attributes.is_none() {
                match fs.client.attributes(&fs.who, entry.inode) {
                    Ok(told) => entry.attributes = Some(told.attributes),
                    // It is gone.
                    Err(Error::Stale | Error::NotFound) => {
                        self.next = cookie;
                        continue;
                    }
                    Err(error) => return Err(error).explain(|| "readdir: attributes"),
                }
            }
            store(entry);
            room -= 1;
            self.next = cookie;
        }
        self.next = page.next.map_or(self.end, Cookie::raw);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_cursor_touch_and_are_the_whole() {
        for (whole, count) in [
            (Cursor::ALL, 7),
            (Cursor::ALL, 1),
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
