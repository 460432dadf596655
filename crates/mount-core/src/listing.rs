//! An open directory: running numbers over pages of names.
//!
//! The kernel goes through a directory by offsets. Here an offset is a running number within this open directory: 0 is
//! `.`, 1 is `..`, then the names in the order in which the file system lists them. Pages of names are fetched as they
//! are needed; the newest ones are kept, of older ones only where they began, so that going back (`seekdir`) fetches
//! one again. Offset 0 (`rewinddir`) begins anew.
//!
//! Invariant: an offset means the same name for as long as its page is kept. Of a page that is fetched again, names
//! that were made meanwhile beyond its old length are not shown, as POSIX allows.
//! Not here: the kernel's reply buffers (`weft-fuse`).
//! Cost: one message per page of at most [`DIRECTORY_PAGE_ENTRIES_MAX`] names.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;
use weft_client_core::DirectoryListing;
use weft_protocol::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_protocol::message::shard::{DirectoryCursor, DirectoryEntry};
use weft_protocol::{InodeNumber, Result};

/// Pages kept. With [`DIRECTORY_PAGE_ENTRIES_MAX`] that is some megabytes in a very large directory.
const PAGES_KEPT_MAX: usize = 8;
/// Offset of the first name, after `.` and `..`.
const FIRST_NAME: u64 = 2;

/// Where pages come from. An interface so that offsets are tested without a file system.
pub trait PageSource {
    /// The page at a cursor.
    fn page(
        &self,
        cursor: &DirectoryCursor,
        entries_max: u32,
        with_attributes: bool,
    ) -> impl Future<Output = Result<DirectoryListing>>;

    /// The time.
    fn now(&self) -> Duration;
}

/// One thing to show.
#[derive(Debug)]
pub enum Item<'a> {
    /// `.`
    Itself,
    /// `..`
    Parent(InodeNumber),
    /// A name, and how long what is told of it may be kept.
    Entry(&'a DirectoryEntry, Duration),
}

/// State of an open directory.
#[derive(Default)]
pub struct Listing {
    /// Where each page began, with the offset of its first name, in order. Pages without names are left out.
    starts: Vec<(u64, DirectoryCursor)>,
    /// Where to go on behind the last of them; `None`: that was the end.
    next: Option<DirectoryCursor>,
    /// Offset behind the last name seen.
    end: u64,
    /// Directory's `..`, told by the first page.
    parent: Option<InodeNumber>,
    /// The newest at the back.
    kept: VecDeque<Page>,
}

struct Page {
    first: u64,
    entries: Vec<DirectoryEntry>,
    valid_until: Duration,
}

impl Page {
    fn new(first: u64, listing: DirectoryListing, now: Duration) -> Self {
        // Counted from now: a little more than from the request, far less than the margin of a lease's term.
        Self { first, entries: listing.entries, valid_until: now + listing.valid }
    }

    fn holds(&self, offset: u64) -> bool {
        (self.first..self.first + self.entries.len() as u64).contains(&offset)
    }
}

impl Listing {
    /// Whether an offset can be shown without a message.
    pub fn is_ready(&self, offset: u64) -> bool {
        let known = self.parent.is_some() && offset != 0;
        known && (offset < FIRST_NAME || self.kept.iter().any(|page| page.holds(offset)) || self.is_end(offset))
    }

    fn is_end(&self, offset: u64) -> bool {
        self.next.is_none() && offset >= self.end
    }

    /// What stands at this offset, or next behind it, and the offset to go on with; `None`: the end.
    pub async fn at(
        &mut self,
        offset: u64,
        source: &impl PageSource,
        with_attributes: bool,
    ) -> Result<Option<(Item<'_>, u64)>> {
        // An offset from before this directory was opened (`seekdir` with another's): all names, from the beginning.
        if offset == 0 || self.parent.is_none() {
            *self = Self { next: Some(DirectoryCursor::default()), end: FIRST_NAME, ..Self::default() };
            self.fetch_next(source, with_attributes).await?;
        }
        if offset == 0 {
            return Ok(Some((Item::Itself, 1)));
        }
        if let (1, Some(parent)) = (offset, self.parent) {
            return Ok(Some((Item::Parent(parent), FIRST_NAME)));
        }
        let Some((page, offset)) = self.find(offset, source, with_attributes).await? else { return Ok(None) };
        let page = &self.kept[page];
        let valid = page.valid_until.saturating_sub(source.now());
        Ok(Some((Item::Entry(&page.entries[(offset - page.first) as usize], valid), offset + 1)))
    }

    /// Index of the kept page with this offset or the next one that there is, and that offset.
    async fn find(
        &mut self,
        offset: u64,
        source: &impl PageSource,
        with_attributes: bool,
    ) -> Result<Option<(usize, u64)>> {
        let mut offset = offset;
        loop {
            if let Some(index) = self.kept.iter().position(|page| page.holds(offset)) {
                return Ok(Some((index, offset)));
            }
            if offset < self.end {
                match self.fetch_again(offset, source, with_attributes).await? {
                    // Names at its end were removed meanwhile: go on with the page behind.
                    Some(behind) => offset = behind,
                    None => continue,
                }
            } else if self.next.is_some() {
                self.fetch_next(source, with_attributes).await?;
            } else {
                return Ok(None);
            }
        }
    }

    /// Fetches the page behind the last one.
    async fn fetch_next(&mut self, source: &impl PageSource, with_attributes: bool) -> Result<()> {
        let Some(cursor) = self.next.clone() else { return Ok(()) };
        let mut listing = source.page(&cursor, DIRECTORY_PAGE_ENTRIES_MAX, with_attributes).await?;
        self.parent = Some(listing.parent);
        self.next = listing.next.take();
        if !listing.entries.is_empty() {
            let page = Page::new(self.end, listing, source.now());
            self.starts.push((self.end, cursor));
            self.end += page.entries.len() as u64;
            self.keep(page);
        }
        Ok(())
    }

    /// Fetches a page that was there before. Answers the first offset behind it when it does not reach the wanted one
    /// now.
    async fn fetch_again(
        &mut self,
        offset: u64,
        source: &impl PageSource,
        with_attributes: bool,
    ) -> Result<Option<u64>> {
        let behind = self.starts.partition_point(|(first, _)| *first <= offset);
        let (first, cursor) = &self.starts[behind - 1];
        let page_end = self.starts.get(behind).map_or(self.end, |(first, _)| *first);
        let mut listing = source.page(cursor, DIRECTORY_PAGE_ENTRIES_MAX, with_attributes).await?;
        listing.entries.truncate((page_end - first) as usize);
        let page = Page::new(*first, listing, source.now());
        if !page.holds(offset) {
            return Ok(Some(page_end));
        }
        self.keep(page);
        Ok(None)
    }

    fn keep(&mut self, page: Page) {
        if self.kept.len() >= PAGES_KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use weft_protocol::{FileKind, Name};

    const PARENT: InodeNumber = InodeNumber::from_raw(99);

    /// A directory whose pages hold a few names.
    struct Directory {
        names: RefCell<BTreeSet<Vec<u8>>>,
        page_entries: usize,
        fetched: Cell<usize>,
    }

    impl Directory {
        fn new(names: usize, page_entries: usize) -> Self {
            let names = (0..names).map(|number| format!("{number:05}").into_bytes()).collect();
            Self { names: RefCell::new(names), page_entries, fetched: Cell::new(0) }
        }
    }

    impl PageSource for Directory {
        async fn page(&self, cursor: &DirectoryCursor, entries_max: u32, _: bool) -> Result<DirectoryListing> {
            self.fetched.set(self.fetched.get() + 1);
            let names = self.names.borrow();
            let after = |name: &&Vec<u8>| cursor.after.as_ref().is_none_or(|after| name.as_slice() > after.as_bytes());
            let page: Vec<_> = names.iter().filter(after).take(self.page_entries.min(entries_max as usize)).collect();
            let is_last = page.last().is_none_or(|last| Some(*last) == names.last());
            let next = page
                .last()
                .filter(|_| !is_last)
                .map(|last| DirectoryCursor { bucket: 0, after: Some(Name::new(last).unwrap()) });
            let entry = |name: &Vec<u8>| DirectoryEntry {
                name: Name::new(name).unwrap(),
                inode: InodeNumber::from_raw(1000),
                kind: FileKind::Regular,
                attributes: None,
            };
            let entries = page.into_iter().map(entry).collect();
            Ok(DirectoryListing { entries, next, parent: PARENT, valid: Duration::from_secs(60) })
        }

        fn now(&self) -> Duration {
            Duration::from_secs(1)
        }
    }

    /// What a procedure answers whose effects are ready.
    fn ready<T>(procedure: impl Future<Output = Result<T>>) -> T {
        let polled = pin!(procedure).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(result) = polled else { unreachable!("pages are at hand") };
        result.unwrap()
    }

    /// Shows from an offset on: what comes, and the offset behind each.
    fn show(listing: &mut Listing, directory: &Directory, offset: u64, count: usize) -> Vec<(String, u64)> {
        let mut shown = Vec::new();
        let mut offset = offset;
        while shown.len() < count
            && let Some((item, next)) = ready(listing.at(offset, directory, false))
        {
            let name = match item {
                Item::Itself => ".".into(),
                Item::Parent(parent) => format!("..={}", parent.raw()),
                Item::Entry(entry, _) => entry.name.to_string(),
            };
            shown.push((name, next));
            offset = next;
        }
        shown
    }

    fn names(shown: &[(String, u64)]) -> Vec<&str> {
        shown.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_directory_is_shown_once_and_in_order() {
        for (count, page_entries) in [(0, 3), (1, 3), (3, 3), (7, 3), (100, 3), (100, 1000)] {
            let directory = Directory::new(count, page_entries);
            let shown = show(&mut Listing::default(), &directory, 0, usize::MAX);
            let mut expected = vec![".".to_string(), "..=99".to_string()];
            expected.extend((0..count).map(|number| format!("{number:05}")));
            assert_eq!(names(&shown), expected, "{count} names, {page_entries} a page");
            assert_eq!(
                shown.iter().map(|(_, next)| *next).collect::<Vec<_>>(),
                (1..=count as u64 + 2).collect::<Vec<_>>()
            );
            assert_eq!(directory.fetched.get(), count.div_ceil(page_entries).max(1));
        }
    }

    #[test]
    fn pages_are_fetched_when_they_are_needed() {
        let directory = Directory::new(100, 10);
        let mut listing = Listing::default();
        assert!(!listing.is_ready(0) && !listing.is_ready(5));
        let _ = show(&mut listing, &directory, 0, 12);
        assert_eq!(directory.fetched.get(), 1);
        assert!(listing.is_ready(1) && listing.is_ready(11) && !listing.is_ready(12));
        let _ = show(&mut listing, &directory, 12, 1);
        assert_eq!(directory.fetched.get(), 2);
        let _ = show(&mut listing, &directory, 13, usize::MAX);
        assert!(listing.is_ready(102), "the end is known");
    }

    #[test]
    fn seekdir_goes_back_to_any_offset() {
        let directory = Directory::new(500, 10);
        let mut listing = Listing::default();
        let all = show(&mut listing, &directory, 0, usize::MAX);
        for offset in [1_u64, 2, 3, 15, 250, 499, 501] {
            let again = show(&mut listing, &directory, offset, 30);
            assert_eq!(again, all[offset as usize..(offset as usize + 30).min(all.len())], "from {offset}");
        }
        assert!(show(&mut listing, &directory, 502, 30).is_empty());
        assert!(show(&mut listing, &directory, u64::MAX, 30).is_empty());
    }

    #[test]
    fn rewinddir_shows_what_is_there_now() {
        let directory = Directory::new(3, 10);
        let mut listing = Listing::default();
        let _ = show(&mut listing, &directory, 0, usize::MAX);
        directory.names.borrow_mut().insert(b"zz".to_vec());
        assert!(show(&mut listing, &directory, 5, usize::MAX).is_empty());
        assert_eq!(names(&show(&mut listing, &directory, 0, usize::MAX)).last(), Some(&"zz"));
    }

    /// What is there the whole time is shown once, also while names are removed on the way, as `rm -r` does.
    #[test]
    fn removing_while_reading_misses_nothing() {
        let directory = Directory::new(200, 7);
        let mut listing = Listing::default();
        let (mut offset, mut seen) = (0, Vec::new());
        while let Some((item, next)) = ready(listing.at(offset, &directory, false)) {
            if let Item::Entry(entry, _) = item {
                seen.push(entry.name.to_string());
                directory.names.borrow_mut().remove(entry.name.as_bytes());
            }
            offset = next;
        }
        assert_eq!(seen, (0..200).map(|number| format!("{number:05}")).collect::<Vec<_>>());
    }

    #[test]
    fn a_page_that_shrank_is_passed_over() {
        let directory = Directory::new(500, 10);
        let mut listing = Listing::default();
        let _ = show(&mut listing, &directory, 0, usize::MAX);
        directory.names.borrow_mut().retain(|name| name.as_slice() >= b"00400");
        // The page of offsets 12 to 21 now lists names from 00400 on; its 10 places are used for them, as far as they
        // go.
        let shown = show(&mut listing, &directory, 12, 3);
        assert_eq!(names(&shown), ["00400", "00401", "00402"]);
        directory.names.borrow_mut().clear();
        assert!(show(&mut Listing::default(), &directory, 5, 3).is_empty());
        let gone = show(&mut listing, &directory, 30, usize::MAX);
        assert!(gone.len() <= 80, "only what is still kept");
    }

    #[test]
    fn an_offset_of_another_open_directory_begins_anew() {
        let directory = Directory::new(5, 10);
        let shown = show(&mut Listing::default(), &directory, 3, usize::MAX);
        assert_eq!(names(&shown), ["00001", "00002", "00003", "00004"]);
    }
}
