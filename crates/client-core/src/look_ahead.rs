//! Names looked up one after the other in their order: a page of the directory is asked for instead of each.
//!
//! A program that looks at files in the order of their names, without listing the directory, pays a message for each.
//! After some such look-ups that the cache could not answer, the next one asks for a page that begins with it, with
//! attributes; as long as pages answer, they grow.
//!
//! Not here: the page itself, which the cache takes in (`cache.rs`), and the look-up when the page has no answer.

use std::collections::VecDeque;
use weft_protocol::{InodeNumber, Name};

/// Directories watched: those of a few programs at work.
const SCANS_MAX: usize = 16;
/// Look-ups in order, not answered by the cache, before a page is asked for.
const RUN_MIN: u32 = 6;
/// Entries of the first page.
const PAGE_ENTRIES_MIN: u32 = 32;
/// Entries of the largest page.
const PAGE_ENTRIES_MAX: u32 = 256;

/// How one directory is being looked through.
#[derive(Debug)]
struct Scan {
    directory: InodeNumber,
    /// The last name looked up, or the last of the page that answered.
    last: Name,
    /// Look-ups in order, in a row.
    run: u32,
    page_entries: u32,
    /// The user may not list it, or it cannot be listed.
    refused: bool,
}

/// A page to ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageAhead {
    /// It begins behind this name.
    pub after: Name,
    pub entries: u32,
}

/// The directories that are being looked through.
#[derive(Debug, Default)]
pub struct LookAhead {
    /// Most recent last.
    scans: VecDeque<Scan>,
}

impl LookAhead {
    /// Nothing looked up yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn scan(&mut self, directory: InodeNumber) -> Option<&mut Scan> {
        self.scans.iter_mut().find(|scan| scan.directory == directory)
    }

    /// The cache does not know this name. A page to ask for instead of it, if that is worth while.
    pub fn missed(&mut self, directory: InodeNumber, name: &Name) -> Option<PageAhead> {
        let Some(scan) = self.scan(directory) else {
            if self.scans.len() == SCANS_MAX {
                self.scans.pop_front();
            }
            let last = name.clone();
            self.scans.push_back(Scan { directory, last, run: 0, page_entries: PAGE_ENTRIES_MIN, refused: false });
            return None;
        };
        let in_order = *name > scan.last;
        scan.run = if in_order { scan.run.saturating_add(1) } else { 0 };
        let after = std::mem::replace(&mut scan.last, name.clone());
        (scan.run >= RUN_MIN && !scan.refused).then_some(PageAhead { after, entries: scan.page_entries })
    }

    /// A page has come; `last` is its last name, `answered` whether it had what was looked up.
    pub fn page_came(&mut self, directory: InodeNumber, last: Option<&Name>, answered: bool) {
        let Some(scan) = self.scan(directory) else { return };
        match last {
            Some(last) if answered => {
                scan.last = last.clone();
                scan.page_entries = (scan.page_entries * 2).min(PAGE_ENTRIES_MAX);
            }
            _ => {
                scan.run = 0;
                scan.page_entries = PAGE_ENTRIES_MIN;
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

    const DIRECTORY: InodeNumber = InodeNumber::ROOT;

    fn name(number: u32) -> Name {
        Name::new(format!("f{number:05}").as_bytes()).unwrap()
    }

    /// Looks names up in order against a directory that has them all; messages sent.
    fn scan(ahead: &mut LookAhead, numbers: std::ops::Range<u32>) -> u32 {
        let (mut messages, mut known_to) = (0, 0);
        for number in numbers {
            if number < known_to {
                continue;
            }
            messages += 1;
            if let Some(page) = ahead.missed(DIRECTORY, &name(number)) {
                assert_eq!(page.after, name(number - 1), "the page begins with the name that is looked for");
                known_to = number + page.entries;
                ahead.page_came(DIRECTORY, Some(&name(known_to - 1)), true);
            }
        }
        messages
    }

    #[test]
    fn look_ups_in_order_come_in_growing_pages() {
        let mut ahead = LookAhead::new();
        // Six alone, pages of 32, 64, 128, and then 256.
        assert_eq!(scan(&mut ahead, 0..6 + 32 + 64 + 128 + 256 * 10), 6 + 13);
    }

    #[test]
    fn look_ups_in_no_order_are_made_one_by_one() {
        let mut ahead = LookAhead::new();
        for number in 0..1000 {
            let looked_up = name(number * 617 % 1000);
            if ahead.missed(DIRECTORY, &looked_up).is_some() {
                panic!("{looked_up} is not next to the one before");
            }
        }
    }

    #[test]
    fn a_page_without_the_answer_ends_the_run() {
        let mut ahead = LookAhead::new();
        let pages = |ahead: &mut LookAhead| {
            let asked = (0..100).filter(|number| {
                let page = ahead.missed(DIRECTORY, &name(number * 50));
                if page.is_some() {
                    ahead.page_came(DIRECTORY, Some(&name(number * 50)), false);
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
