//! Names looked up one after the other in an order: pages of the directory are asked for beside them.
//!
//! A program that looks at many files of a directory without listing it pays a message for each. It goes in the order
//! of names (a shell's pattern, an archive), or in that of listings. After some such look-ups that the cache could not
//! answer, the directory is listed with attributes, page by page, and what was listed answers the rest. The entries
//! listed stay in proportion to the look-ups: a program that stops early has not paid for the whole of a large
//! directory, and one that goes on has all of it after few look-ups. One that makes files looks at names that are not
//! there: once all of the directory is known, these need no message either. Of a directory that is too large for that,
//! no more is listed for such names.
//!
//! Not here: the page itself, which the cache takes in (`cache.rs`), and the look-up when the page has no answer.

use std::collections::VecDeque;
use weft_protocol::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_protocol::{Cookie, InodeNumber, Name};

/// Directories watched: those of a few programs at work.
const SCANS_MAX: usize = 16;
/// Look-ups in order, not answered by the cache, before a page is asked for.
const RUN_MIN: u32 = 6;
/// Entries listed for each look-up in order: they cost a few times as much as its message.
const ENTRIES_PER_LOOK_UP: u32 = 256;

/// Entries listed for names that were not there, after which the directory counts as too large: half of what the cache
/// keeps.
const LISTED_FOR_ABSENT_MAX: u32 = 32 << 10;

/// How one directory is being looked through.
#[derive(Debug)]
struct Scan {
    directory: InodeNumber,
    last: Name,
    /// Look-ups in a row that each came after the one before, in the order of names and in that of cookies.
    run_by_name: u32,
    run_by_cookie: u32,
    /// Entries listed during this run.
    listed: u32,
    /// Where the listing goes on.
    after: Cookie,
    /// The user may not list it, or it cannot be listed.
    refused: bool,
    /// Too large to know which names are not there.
    is_vast: bool,
}

/// A page to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageAhead {
    pub after: Cookie,
    pub entries: u32,
}

/// The directories that are being looked through.
#[derive(Debug, Default)]
pub struct LookAhead {
    /// Most recent last.
    scans: VecDeque<Scan>,
}

impl Scan {
    fn new(directory: InodeNumber, name: &Name) -> Self {
        let (run_by_name, run_by_cookie, listed, refused, is_vast) = (0, 0, 0, false, false);
        let (last, after) = (name.clone(), Cookie::START);
        Self { directory, last, run_by_name, run_by_cookie, listed, after, refused, is_vast }
    }

    fn begin_anew(&mut self) {
        (self.run_by_name, self.run_by_cookie, self.listed, self.after) = (0, 0, 0, Cookie::START);
    }
}

impl LookAhead {
    /// Nothing looked up yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn scan(&mut self, directory: InodeNumber) -> Option<&mut Scan> {
        self.scans.iter_mut().find(|scan| scan.directory == directory)
    }

    /// The cache does not know this name. Returns a page to ask for first, if that is worth while.
    pub fn missed(&mut self, directory: InodeNumber, name: &Name) -> Option<PageAhead> {
        let Some(scan) = self.scan(directory) else {
            if self.scans.len() == SCANS_MAX {
                self.scans.pop_front();
            }
            self.scans.push_back(Scan::new(directory, name));
            return None;
        };
        let (cookie, previous) = (Cookie::of(name), Cookie::of(&scan.last));
        let next_run = |run: u32, in_order| if in_order { run.saturating_add(1) } else { 0 };
        scan.run_by_name = next_run(scan.run_by_name, *name > scan.last);
        scan.run_by_cookie = next_run(scan.run_by_cookie, cookie > previous);
        scan.last = name.clone();
        let run = scan.run_by_name.max(scan.run_by_cookie);
        if run < RUN_MIN || scan.refused {
            (scan.listed, scan.after) = (0, Cookie::START);
            return None;
        }
        let budget = run.saturating_mul(ENTRIES_PER_LOOK_UP).saturating_sub(scan.listed);
        let entries = if scan.run_by_cookie < RUN_MIN {
            // Each page as large as all before it: few look-ups wait for one.
            Some(budget).filter(|budget| *budget >= scan.listed.min(DIRECTORY_PAGE_ENTRIES_MAX))
        } else {
            // All that was listed has been used.
            let is_used_up = cookie > scan.after;
            scan.after = scan.after.max(previous);
            is_used_up.then_some(budget.max(scan.listed))
        };
        let entries = entries?.min(DIRECTORY_PAGE_ENTRIES_MAX);
        Some(PageAhead { after: scan.after, entries })
    }

    /// A page of this many entries has come; `next`: where the listing goes on. `is_known`: they are known now.
    pub fn page_came(&mut self, directory: InodeNumber, entries: usize, next: Option<Cookie>, is_known: bool) {
        let Some(scan) = self.scan(directory) else { return };
        if is_known {
            scan.listed = scan.listed.saturating_add(u32::try_from(entries).unwrap_or(u32::MAX));
            scan.after = next.unwrap_or(Cookie::START);
        } else {
            scan.begin_anew();
        }
    }

    /// A name that was looked up is not there, as the shard has said.
    pub fn not_there(&mut self, directory: InodeNumber) {
        if let Some(scan) = self.scan(directory) {
            scan.is_vast |= scan.listed >= LISTED_FOR_ABSENT_MAX;
            if scan.is_vast {
                // Of those that are there, pages are asked for after a few more.
                (scan.run_by_name, scan.run_by_cookie) = (scan.run_by_name / 2, scan.run_by_cookie / 2);
            }
        }
    }

    /// The directory cannot be listed: it is not tried again.
    pub fn refused(&mut self, directory: InodeNumber) {
        if let Some(scan) = self.scan(directory) {
            scan.refused = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const DIRECTORY: InodeNumber = InodeNumber::ROOT;

    fn name(number: u32) -> Name {
        Name::new(format!("f{number:05}").as_bytes()).unwrap()
    }

    /// Looks names up in a directory of so many names, which has them all; messages sent, and entries listed.
    fn scan(ahead: &mut LookAhead, names: impl IntoIterator<Item = Name>, count: u32) -> (u32, u32) {
        let directory: BTreeMap<Cookie, Name> = (0..count).map(name).map(|name| (Cookie::of(&name), name)).collect();
        let (mut known, mut messages, mut listed) = (std::collections::BTreeSet::new(), 0, 0);
        for name in names {
            if known.contains(&name) {
                continue;
            }
            if let Some(page) = ahead.missed(DIRECTORY, &name) {
                let after = (std::ops::Bound::Excluded(page.after), std::ops::Bound::Unbounded);
                let entries: Vec<_> = directory.range(after).take(page.entries as usize).collect();
                let is_last = entries.last().map(|(cookie, _)| **cookie) == directory.keys().last().copied();
                let next = entries.last().map(|(cookie, _)| **cookie).filter(|_| !is_last);
                known.extend(entries.iter().map(|(_, name)| (*name).clone()));
                ahead.page_came(DIRECTORY, entries.len(), next, true);
                messages += 1;
                listed += entries.len() as u32;
            }
            messages += u32::from(!known.contains(&name));
        }
        (messages, listed)
    }

    #[test]
    fn look_ups_in_the_order_of_names_are_answered_by_few_pages() {
        // Six alone, then the directory.
        assert_eq!(scan(&mut LookAhead::new(), (0..1000).map(name), 1000), (6 + 1, 1000));
        let (messages, listed) = scan(&mut LookAhead::new(), (0..8000).map(name), 8000);
        assert!(messages < 45 && listed <= 8000, "{messages} messages, {listed} entries");
    }

    #[test]
    fn look_ups_in_the_order_of_listings_are_answered_by_few_pages() {
        let mut names: Vec<_> = (0..8000).map(name).collect();
        names.sort_by_key(Cookie::of);
        let (messages, listed) = scan(&mut LookAhead::new(), names, 8000);
        assert!(messages < 20 && listed <= 8000, "{messages} messages, {listed} entries");
    }

    #[test]
    fn look_ups_in_no_order_are_made_one_by_one() {
        let mut ahead = LookAhead::new();
        // A run comes by chance about once in 2500 look-ups.
        let names = (0..1000).map(|number| name(number * 617 % 1000));
        let (messages, listed) = scan(&mut ahead, names, 100_000);
        assert!(
            messages >= 950 && listed <= 2 * RUN_MIN * ENTRIES_PER_LOOK_UP,
            "{messages} messages, {listed} entries"
        );
    }

    #[test]
    fn for_names_that_are_not_there_no_more_is_listed_than_is_kept() {
        let mut ahead = LookAhead::new();
        let (mut listed, mut after) = (0, Cookie::START);
        for number in 0..10_000 {
            if let Some(page) = ahead.missed(DIRECTORY, &name(number)) {
                listed += page.entries;
                after = Cookie::from_raw(after.raw() + 1);
                ahead.page_came(DIRECTORY, page.entries as usize, Some(after), true);
            }
            ahead.not_there(DIRECTORY);
        }
        assert!((1000..2 * LISTED_FOR_ABSENT_MAX).contains(&listed), "{listed} entries");
        // Names that are there are another matter.
        let pages = (10_000..11_000).filter(|number| ahead.missed(DIRECTORY, &name(*number)).is_some());
        assert!(pages.count() > 0);
    }

    #[test]
    fn few_look_ups_do_not_list_a_large_directory() {
        let (_, listed) = scan(&mut LookAhead::new(), (0..20).map(name), 100_000);
        assert!(listed <= 20 * ENTRIES_PER_LOOK_UP, "{listed} entries");
    }

    #[test]
    fn pages_that_tell_nothing_end_the_run() {
        let mut ahead = LookAhead::new();
        let pages = |ahead: &mut LookAhead| {
            let asked = (0..100).filter(|number| {
                let page = ahead.missed(DIRECTORY, &name(number * 50));
                if page.is_some() {
                    ahead.page_came(DIRECTORY, 100, None, false);
                }
                page.is_some()
            });
            asked.count()
        };
        assert!(pages(&mut ahead) <= 100 / RUN_MIN as usize);
        ahead.refused(DIRECTORY);
        assert_eq!(pages(&mut ahead), 0);
    }

    #[test]
    fn few_directories_are_watched() {
        let mut ahead = LookAhead::new();
        for number in 1..1000 {
            ahead.missed(InodeNumber::from_raw(number), &name(1));
        }
        assert_eq!(ahead.scans.len(), SCANS_MAX);
    }
}
