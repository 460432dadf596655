//! An open directory: positions over pages of names.
//!
//! The kernel goes through a directory by offsets. The offset after a name is the name's cookie, which the shard stores
//! with it: it means the same place in every open directory, every mount and after every change. 1 is after `.`, 2
//! after `..`. Pages of names are fetched as they are needed; a page is kept while the reader is in it. Offset 0
//! (`rewinddir`) begins anew.
//!
//! Invariant: each kept page has all names of its range of cookies that were there when it was fetched. So a name that
//! is there all the time is shown exactly once.
//! Not here: the kernel's reply buffers (`weft-fuse`).
//! Cost: one message per page of at most [`DIRECTORY_PAGE_ENTRIES_MAX`] names.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;
use weft_client_core::DirectoryListing;
use weft_protocol::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Cookie, InodeNumber, Result};

/// Pages kept: the one that is shown, and the one before it, whose last entries may not have fit into a reply.
const PAGES_KEPT_MAX: usize = 2;
/// Entries that are fetched again when what a page told is not known any more: about a reply.
const FRESH_ENTRIES: u32 = 256;
/// Offset after `.`.
const AFTER_ITSELF: u64 = 1;
/// Offset after `..`: names follow.
const AFTER_PARENT: u64 = 2;

/// Where pages come from. An interface so that offsets are tested without a file system.
pub trait PageSource {
    /// The page after a cookie.
    fn page(
        &self,
        after: Cookie,
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
    /// A name, and the page that it is of.
    Entry(&'a DirectoryEntry, Origin),
}

/// The page of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// How long what is told of its names may be kept.
    pub valid: Duration,
    /// [`DirectoryListing::seen`].
    pub seen: u64,
    /// It was fetched for the present request.
    pub is_new: bool,
}

/// State of an open directory.
#[derive(Default)]
pub struct Listing {
    /// Directory's `..`, told with the first page.
    parent: Option<InodeNumber>,
    /// A page was fetched.
    is_begun: bool,
    /// The newest at the back.
    kept: VecDeque<Page>,
    /// Counts requests.
    request: u64,
}

/// The names after a cookie, up to where the next page begins.
struct Page {
    after: Cookie,
    entries: Vec<DirectoryEntry>,
    next: Option<Cookie>,
    valid_until: Duration,
    seen: u64,
    request: u64,
}

impl Page {
    fn new(after: Cookie, listing: DirectoryListing, now: Duration, request: u64) -> Self {
        // Counted from now: a little more than from the request, far less than the margin of a lease's term.
        let valid_until = now + listing.valid;
        let DirectoryListing { entries, next, seen, .. } = listing;
        Self { after, entries, next, valid_until, seen, request }
    }

    /// Whether it has what comes after the position.
    fn covers(&self, position: Cookie) -> bool {
        self.after <= position && self.next.is_none_or(|next| position < next)
    }

    fn index_after(&self, position: Cookie) -> usize {
        self.entries.partition_point(|entry| entry.cookie <= position)
    }
}

/// The position that an offset stands for. `.` and `..` come before all names.
fn position(offset: u64) -> Cookie {
    if offset <= AFTER_PARENT { Cookie::START } else { Cookie::from_raw(offset) }
}

impl Listing {
    /// A request begins: pages from before it are not new.
    pub fn begin_request(&mut self) {
        self.request += 1;
    }

    /// Whether it was read before.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// The entries after an offset that are at hand.
    pub fn at_hand(&self, offset: u64) -> &[DirectoryEntry] {
        let position = position(offset);
        let page = self.kept.iter().find(|page| page.covers(position));
        page.map_or(&[], |page| &page.entries[page.index_after(position)..])
    }

    /// Drops what is at hand after an offset, and has the next few entries fetched anew.
    pub async fn refresh(&mut self, offset: u64, source: &impl PageSource) -> Result<()> {
        let position = position(offset);
        self.kept.retain(|page| !page.covers(position));
        self.fetch(position, source, true, FRESH_ENTRIES).await.map(drop)
    }

    /// Whether what comes after an offset can be shown without a message.
    pub fn is_ready(&self, offset: u64) -> bool {
        let position = position(offset);
        let knows_parent = self.parent.is_some() && offset == AFTER_ITSELF;
        self.is_begun && offset != 0 && (knows_parent || self.kept.iter().any(|page| page.covers(position)))
    }

    /// What comes after this offset, and the offset to go on with; `None`: the end.
    pub async fn at(
        &mut self,
        offset: u64,
        source: &impl PageSource,
        with_attributes: bool,
    ) -> Result<Option<(Item<'_>, u64)>> {
        if offset == 0 {
            *self = Self { request: self.request, ..Self::default() };
            self.fetch(Cookie::START, source, with_attributes, DIRECTORY_PAGE_ENTRIES_MAX).await?;
            return Ok(Some((Item::Itself, AFTER_ITSELF)));
        }
        let mut position = position(offset);
        if !self.is_begun || offset == AFTER_ITSELF && self.parent.is_none() {
            // Not read from the beginning: `seekdir` to an offset of another open directory.
            self.fetch(position, source, with_attributes, DIRECTORY_PAGE_ENTRIES_MAX).await?;
        }
        if let (AFTER_ITSELF, Some(parent)) = (offset, self.parent) {
            return Ok(Some((Item::Parent(parent), AFTER_PARENT)));
        }
        loop {
            let page = match self.kept.iter().position(|page| page.covers(position)) {
                Some(page) => page,
                None => self.fetch(position, source, with_attributes, DIRECTORY_PAGE_ENTRIES_MAX).await?,
            };
            let page = &self.kept[page];
            let index = page.index_after(position);
            if index < page.entries.len() {
                break;
            }
            // All of the page's other names come before the position, or it has none.
            let Some(next) = page.next else { return Ok(None) };
            position = next;
        }
        let page = self.kept.iter().find(|page| page.covers(position)).expect("found right above");
        let entry = &page.entries[page.index_after(position)];
        let valid = page.valid_until.saturating_sub(source.now());
        let origin = Origin { valid, seen: page.seen, is_new: page.request == self.request };
        Ok(Some((Item::Entry(entry, origin), entry.cookie.raw())))
    }

    /// Fetches the page after a position, and keeps it. Returns its index.
    async fn fetch(
        &mut self,
        after: Cookie,
        source: &impl PageSource,
        with_attributes: bool,
        entries_max: u32,
    ) -> Result<usize> {
        let listing = source.page(after, entries_max, with_attributes).await?;
        (self.parent, self.is_begun) = (listing.parent.or(self.parent), true);
        if self.kept.len() >= PAGES_KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Page::new(after, listing, source.now(), self.request));
        Ok(self.kept.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use weft_protocol::{FileKind, Name};

    const PARENT: InodeNumber = InodeNumber::from_raw(99);

    /// A directory whose pages hold a few names.
    struct Directory {
        names: RefCell<BTreeMap<Cookie, Name>>,
        page_entries: usize,
        fetched: Cell<usize>,
    }

    fn text(number: usize) -> String {
        format!("{number:05}")
    }

    impl Directory {
        fn new(names: usize, page_entries: usize) -> Self {
            let directory = Self { names: RefCell::default(), page_entries, fetched: Cell::new(0) };
            (0..names).for_each(|number| directory.make(&text(number)));
            directory
        }

        fn make(&self, text: &str) {
            let name = Name::new(text.as_bytes()).unwrap();
            self.names.borrow_mut().insert(Cookie::of(&name), name);
        }

        fn remove(&self, text: &str) {
            self.names.borrow_mut().retain(|_, name| name.as_bytes() != text.as_bytes());
        }

        fn in_order(&self) -> Vec<String> {
            self.names.borrow().values().map(ToString::to_string).collect()
        }
    }

    impl PageSource for Directory {
        async fn page(&self, after: Cookie, entries_max: u32, _: bool) -> Result<DirectoryListing> {
            self.fetched.set(self.fetched.get() + 1);
            let names = self.names.borrow();
            let mut rest = names.iter().filter(|(cookie, _)| **cookie > after);
            let entry = |(cookie, name): (&Cookie, &Name)| DirectoryEntry {
                name: name.clone(),
                cookie: *cookie,
                inode: InodeNumber::from_raw(1000),
                kind: FileKind::Regular,
                attributes: None,
            };
            let count = self.page_entries.min(entries_max as usize);
            let entries: Vec<DirectoryEntry> = rest.by_ref().take(count).map(entry).collect();
            let next = entries.last().map(|last| last.cookie).filter(|_| rest.next().is_some());
            Ok(DirectoryListing { entries, next, parent: Some(PARENT), valid: Duration::from_secs(60), seen: 0 })
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

    /// Shows from an offset on: what comes, and the offset after each.
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
            expected.extend(directory.in_order());
            assert_eq!(names(&shown), expected, "{count} names, {page_entries} a page");
            assert!(shown.is_sorted_by(|(_, one), (_, next)| one < next));
            assert_eq!(directory.fetched.get(), count.div_ceil(page_entries).max(1));
        }
    }

    #[test]
    fn pages_are_fetched_when_they_are_needed() {
        let directory = Directory::new(100, 10);
        let mut listing = Listing::default();
        assert!(!listing.is_ready(0) && !listing.is_ready(5));
        let shown = show(&mut listing, &directory, 0, 12);
        assert_eq!(directory.fetched.get(), 1);
        let (before_last, last) = (shown[10].1, shown[11].1);
        assert!(listing.is_ready(1) && listing.is_ready(2) && listing.is_ready(before_last) && !listing.is_ready(last));
        let shown = show(&mut listing, &directory, last, 1);
        assert_eq!(directory.fetched.get(), 2);
        let shown = show(&mut listing, &directory, shown[0].1, usize::MAX);
        assert!(listing.is_ready(shown[shown.len() - 1].1), "the end is known");
    }

    #[test]
    fn seekdir_goes_to_any_offset_also_of_another_open_directory() {
        let directory = Directory::new(500, 10);
        let mut listing = Listing::default();
        let all = show(&mut listing, &directory, 0, usize::MAX);
        for listing in [&mut listing, &mut Listing::default()] {
            for index in [0_usize, 1, 2, 15, 250, 499, 500] {
                let again = show(listing, &directory, all[index].1, 30);
                assert_eq!(again, all[index + 1..(index + 31).min(all.len())], "after {index}");
            }
            assert!(show(listing, &directory, all[501].1, 30).is_empty());
            assert!(show(listing, &directory, u64::MAX, 30).is_empty());
        }
    }

    #[test]
    fn rewinddir_shows_what_is_there_now() {
        let directory = Directory::new(3, 10);
        let mut listing = Listing::default();
        let _ = show(&mut listing, &directory, 0, usize::MAX);
        directory.make("zz");
        directory.remove(&text(1));
        assert_eq!(names(&show(&mut listing, &directory, 0, usize::MAX))[2..], directory.in_order());
    }

    /// What is there the whole time is shown once, whatever comes and goes on the way.
    #[test]
    fn changes_while_reading_hide_and_repeat_no_lasting_name() {
        for (step, page_entries) in [(1, 7), (3, 7), (85, 7), (85, 100)] {
            let directory = Directory::new(300, page_entries);
            let mut listing = Listing::default();
            let (mut offset, mut seen, mut shown) = (0, Vec::new(), 0_usize);
            while let Some((item, next)) = ready(listing.at(offset, &directory, false)) {
                if let Item::Entry(entry, _) = item {
                    seen.push(entry.name.to_string());
                }
                offset = next;
                shown += 1;
                if shown.is_multiple_of(step) {
                    directory.remove(&format!("a{}", shown - step));
                    directory.make(&format!("a{shown}"));
                }
            }
            seen.retain(|name| !name.starts_with('a'));
            seen.sort();
            assert_eq!(seen, (0..300).map(text).collect::<Vec<_>>(), "changed every {step} names");
        }
    }

    /// As `rm -r` does, which may also go back to where it was.
    #[test]
    fn removing_while_reading_misses_nothing() {
        let directory = Directory::new(200, 7);
        let mut listing = Listing::default();
        let (mut offset, mut seen) = (0, Vec::new());
        while let Some((item, next)) = ready(listing.at(offset, &directory, false)) {
            if let Item::Entry(entry, _) = item {
                let name = entry.name.to_string();
                directory.remove(&name);
                seen.push(name);
            }
            if seen.len() % 20 == 10 {
                listing = Listing::default();
            }
            offset = next;
        }
        seen.sort();
        assert_eq!(seen, (0..200).map(text).collect::<Vec<_>>());
    }
}
