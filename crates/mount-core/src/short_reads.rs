//! READs that end before the pages that they ask for, and whether the kernel takes that end for the file's.
//!
//! That another client has cut a file a kernel learns by such a reply: reads within the size that it knows ask for no
//! attributes. But it disregards the reply if the inode has changed since the READ was sent (`attr_version`): by a
//! notification, by a write or truncation of this mount, by a size that another reply told. The reader, and later ones
//! in the same pages, would find zeros up to the size that the kernel knows. So where that may be, the READ is answered
//! with an error. The kernel tells nobody of an error in readahead: it asks for each page that somebody wants again,
//! alone, and nothing has changed the inode since *that* READ was sent.
//!
//! A page that is in memory without being up to date (a part of it was written, or its READ failed) is asked for alone,
//! without readahead, and an error is the program's. The same may be so of any READ of one page: the kernel asks so for
//! a page that a notification took away between readahead and its use. If the file ends before the page, it was cut,
//! and the READ gets the error: EINTR, after which programs call again; an access to a mapping gets SIGBUS there in any
//! case. If the file ends in the page, the kernel may know its size, so that the READ is answered short. Only where the
//! kernel was made to know of more (`kernel_sizes.rs`) is it an error, too, once: a fault reads its page twice.
//!
//! One order is known: a thread whose write into pages has ended sends nothing before the kernel has processed the
//! reply to it. So a READ of that thread which was received afterwards crosses neither the write nor what was before
//! it. (The kernel does not say who asks for readahead. Not looked for: a write in several requests whose bytes come
//! from a mapping of the same file, and that has to read a page for it between two of them.)
//!
//! Pages that may not be up to date are recorded. When a READ of one of them alone is answered short, its pages are
//! dropped after the reply, so that only this reader finds zeros.
//!
//! So that this hardly happens, what changes the inode by this mount's doing waits for READs in flight: replies to
//! writes, and notifications ([`ShortReads::unsettled`]). A notification for which another client waits does so for a
//! short time only, but for READs of pages that the kernel has locked: for these it would wait in the kernel.
//!
//! Recorded is what is open while others change it: an inode gets its record with the first notification, or the first
//! READ that no lease covers, and loses it at the last close. Where nothing is recorded, a READ costs one look at a
//! counter.
//!
//! Recorded as well: which pages are read while a write of this mount into them is in flight. The kernel keeps the
//! bytes of a write in pages that are up to date without locking them; should a notification take such a page away, a
//! READ brings it back, and may overtake the write. These pages are dropped when the write has landed
//! ([`ShortReads::overtaken`]).
//!
//! Not here: sizes that become larger (`kernel_sizes.rs`).

use crate::lock::lock;
use crate::writer::Thread;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// How long a READ waits at most for a thread of the mount: it may have been sent before what happened so long ago.
/// After a longer wait one reader may find zeros.
pub(crate) const QUEUED_MAX: Duration = Duration::from_millis(20);
/// How long a thread that waits for a reply may take until it has processed it.
const PROCESSED_MAX: Duration = Duration::from_millis(5);
/// How long a reader may be busy with other pages before it comes to one whose READ has failed.
const RESUMED_MAX: Duration = Duration::from_secs(1);
/// Pages of a file that are recorded; beyond it, all count as recorded.
const RECORDED_PAGES_MAX: u64 = 1 << 10;

/// Where a reply to a READ ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub at: u64,
    /// It brings no byte.
    pub is_empty: bool,
    /// The kernel was made to know of more.
    pub is_cut: bool,
}

/// How a READ is to be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShortRead {
    /// As it is.
    Taken,
    /// With an error, after which the kernel asks again.
    AskedAgain,
    /// As it is; the kernel may disregard where it ends, and is to drop the pages: all of the file, so that what is
    /// recorded of them is known again, or those that were read.
    Dropped { all: bool },
}

/// See the module.
pub(crate) struct ShortReads<S> {
    /// Rank 3. Held for one look, and while a short READ of a recorded inode is answered: a reply that the kernel
    /// processes while it is written is then before or after every change that is recorded.
    records: Mutex<FixedMap<InodeNumber, Record<S>>>,
    count: AtomicUsize,
}

/// Of an inode. `S`: a signal of the shell.
struct Record<S> {
    /// The kernel knows of at most so many bytes; `None`: of any number.
    largest: Option<u64>,
    /// When the inode was last changed for the kernel.
    changed: Duration,
    /// The thread whose write of pages this was.
    changed_by: Option<Thread>,
    /// Truncations and writes of this mount in flight.
    in_flight: u32,
    /// Those that are in pages which are not locked.
    writes: Vec<Write>,
    /// Pages that may be in memory without being up to date.
    pages: BTreeMap<u64, Recorded>,
    /// Any page may be, since this was recorded.
    all: Option<u64>,
    /// Counts up with what is recorded of pages.
    sequence: u64,
    reads: Vec<InFlight<S>>,
}

/// A write that is in flight.
struct Write {
    number: WriteNumber,
    pages: Range<u64>,
    /// Of its pages those that were read meanwhile.
    read: BTreeSet<u64>,
}

/// Tells writes of an inode from one another.
pub(crate) type WriteNumber = u64;

/// A READ.
struct InFlight<S> {
    /// Of the READ that was answered with an error before it, if there was one.
    began: u64,
    pages: Range<u64>,
    thread: Option<Thread>,
    /// Set when it has been answered.
    answered: Arc<S>,
    /// The kernel retries with it: what waits for earlier READs waits for this one, too.
    again: bool,
    /// It is expected, or its reply is being processed, until then. `None`: it has no reply.
    until: Option<Duration>,
}

/// A moment in the life of a record.
pub(crate) type Began = u64;

/// A READ to be waited for.
pub(crate) struct Unsettled<S> {
    pub began: Began,
    pub answered: Arc<S>,
    /// For so long; `None`: until it is answered.
    pub time: Option<Duration>,
    /// It came later.
    pub later: bool,
    /// The kernel has pages locked for it, so that a notification about them waits for it in any case.
    pub locks: bool,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[derive(Clone, Copy)]
struct Recorded {
    sequence: u64,
    /// READs of this page are sent after this time.
    failed: Option<Duration>,
}

/// Pages that are about to be dropped, as they were recorded before.
pub(crate) struct Dropping {
    pages: Range<u64>,
    /// `None`: nothing was.
    sequence: Option<u64>,
}

impl<S> Record<S> {
    fn new(now: Duration) -> Self {
        let (largest, all, pages, reads) = (None, Some(0), BTreeMap::new(), Vec::new());
        Self {
            largest,
            changed: now,
            changed_by: None,
            in_flight: 0,
            writes: Vec::new(),
            pages,
            all,
            sequence: 0,
            reads,
        }
    }

    /// The kernel takes the inode for changed. `by`: the thread that has had its pages written.
    fn changes(&mut self, now: Duration, by: Option<Thread>) {
        self.changed = now;
        self.changed_by = by;
    }

    fn record(&mut self, pages: Range<u64>, failed: Option<Duration>) {
        self.sequence += 1;
        let sequence = self.sequence;
        if (self.pages.len() as u64).saturating_add(pages.end - pages.start) > RECORDED_PAGES_MAX {
            self.all = Some(sequence);
            return self.pages.clear();
        }
        self.pages.extend(pages.map(|page| (page, Recorded { sequence, failed })));
    }

    /// Pages become up to date with a reply. A reader may go on with one whose READ has failed.
    fn is_read(&mut self, pages: Range<u64>, answered: Option<&Arc<S>>, now: Duration)
    where
        S: Default,
    {
        for write in &mut self.writes {
            write.read.extend(write.pages.start.max(pages.start)..write.pages.end.min(pages.end));
        }
        let count = self.pages.len();
        let is_resumed = self.pages.range(pages.clone()).any(|(_, page)| page.failed.is_some());
        self.pages.retain(|page, _| !pages.contains(page));
        let has_failed = |page: &Recorded| page.failed.is_some_and(|failed| is_resumed || failed + RESUMED_MAX > now);
        if let Some((page, _)) = self.pages.iter().find(|(_, page)| has_failed(page)) {
            let page = *page;
            self.expect(answered, (page..page + 1, true), now + QUEUED_MAX);
        } else if self.pages.len() < count {
            self.expect(answered, (pages, false), now + PROCESSED_MAX);
        }
    }

    /// The kernel asks for these pages until then, or processes a reply.
    fn expect(&mut self, answered: Option<&Arc<S>>, (pages, again): (Range<u64>, bool), until: Duration)
    where
        S: Default,
    {
        let read =
            answered.and_then(|answered| self.reads.iter_mut().find(|read| Arc::ptr_eq(&read.answered, answered)));
        if let Some(read) = read {
            // Of its own: the signal of the READ is set when it has been answered.
            read.answered = Arc::new(S::default());
            read.pages = pages;
            read.again = again;
            read.until = Some(until);
        }
    }

    /// Who sent a READ, if the kernel says.
    fn reader(&self, answered: Option<&Arc<S>>) -> Option<Thread> {
        let read =
            self.reads.iter().find(|read| answered.is_some_and(|answered| Arc::ptr_eq(&read.answered, answered)));
        read.and_then(|read| read.thread)
    }

    /// Whether a READ of an earlier page is in flight, or will be sent after an error: the file ends there or before.
    /// The kernel would disregard its reply after an empty one of later pages, which tells of a larger size.
    fn awaits_before(&self, page: u64, now: Duration) -> bool {
        let in_flight = |read: &InFlight<S>| read.pages.start < page && read.until.is_none_or(|until| until > now);
        let will_be_sent = |recorded: &Recorded| recorded.failed.is_some_and(|failed| failed + RESUMED_MAX > now);
        self.reads.iter().any(in_flight) || self.pages.range(..page).any(|(_, recorded)| will_be_sent(recorded))
    }

    /// Decides about a READ that ends at `end`, and was received at `received`.
    fn decide(
        &mut self,
        pages: Range<u64>,
        end: End,
        reader: Option<Thread>,
        (received, now): (Duration, Duration),
    ) -> ShortRead {
        if self.largest.is_some_and(|largest| largest <= end.at) {
            return ShortRead::Taken;
        }
        let is_recorded = self.all.is_some() || self.pages.range(pages.clone()).next().is_some();
        let is_alone = pages.end - pages.start == 1;
        let failed = match self.pages.get(&pages.start) {
            Some(recorded) if is_alone => recorded.failed,
            _ => None,
        };
        let sent = failed.unwrap_or(received.saturating_sub(QUEUED_MAX));
        let crosses = end.is_empty && !is_recorded && self.awaits_before(pages.start, now);
        let follows = reader.is_some() && reader == self.changed_by && self.changed < received;
        if (self.changed < sent || follows) && !crosses {
            if self.in_flight == 0 {
                self.largest = Some(end.at);
            }
            self.changes(now, None);
            // The readers of what lies behind go on no more.
            self.pages.range_mut(pages.start..).for_each(|(_, page)| page.failed = None);
            return ShortRead::Taken;
        }
        if is_alone && !end.is_empty && (failed.is_some() || !end.is_cut) {
            let all = self.all.is_some();
            return if is_recorded { ShortRead::Dropped { all } } else { ShortRead::Taken };
        }
        self.record(pages, Some(now));
        ShortRead::AskedAgain
    }
}

impl<S> Default for ShortReads<S> {
    fn default() -> Self {
        Self { records: Mutex::default(), count: AtomicUsize::new(0) }
    }
}

impl<S> ShortReads<S> {
    fn change<T>(&self, change: impl FnOnce(&mut FixedMap<InodeNumber, Record<S>>) -> T) -> T {
        let mut records = lock(&self.records);
        let result = change(&mut records);
        self.count.store(records.len(), Ordering::Release);
        result
    }

    fn with(&self, inode: InodeNumber, change: impl FnOnce(&mut Record<S>)) {
        if self.count.load(Ordering::Acquire) > 0
            && let Some(record) = lock(&self.records).get_mut(&inode)
        {
            change(record);
        }
    }

    /// An inode that is open may change without this mount from now on.
    pub fn begin(&self, inode: InodeNumber, now: Duration) {
        self.change(|records| {
            records.entry(inode).or_insert_with(|| Record::new(now));
        });
    }

    /// The kernel is about to take the inode for changed.
    pub fn changed(&self, inode: InodeNumber, now: Duration) {
        self.with(inode, |record| record.changes(now, None));
    }

    /// The kernel is about to be told a size.
    pub fn told(&self, inode: InodeNumber, size: u64, now: Duration) {
        self.with(inode, |record| {
            record.largest = record.largest.map(|largest| largest.max(size));
            record.changes(now, None);
        });
    }

    /// The kernel is about to be made to know of so many bytes, and to add this page where it is not there.
    pub fn grows(&self, inode: InodeNumber, size: u64, pages: Range<u64>, now: Duration) {
        self.with(inode, |record| {
            record.largest = record.largest.map(|largest| largest.max(size));
            record.changes(now, None);
            record.record(pages, None);
        });
    }

    /// A truncation of this mount begins, or a write, which ends at `end`. `torn`: pages of which it has a part.
    /// `pages`: those that may be up to date, and not locked. Returns a number if it was recorded.
    pub fn write_begins(
        &self,
        inode: InodeNumber,
        end: u64,
        (pages, torn): (Range<u64>, [Option<u64>; 2]),
        now: Duration,
    ) -> Option<WriteNumber> {
        let mut begun = None;
        self.with(inode, |record| {
            record.sequence += 1;
            let number = record.sequence;
            begun = Some(number);
            record.in_flight += 1;
            if !pages.is_empty() {
                record.writes.push(Write { number, pages, read: BTreeSet::new() });
            }
            record.largest = record.largest.map(|largest| largest.max(end));
            record.changes(now, None);
            torn.into_iter().flatten().for_each(|page| record.record(page..page + 1, None));
        });
        begun
    }

    /// Pages of a write that were read while it was in flight: what was read may be from before.
    pub fn overtaken(&self, inode: InodeNumber, number: WriteNumber) -> BTreeSet<u64> {
        let mut read = BTreeSet::new();
        self.with(inode, |record| {
            if let Some(write) = record.writes.iter_mut().find(|write| write.number == number) {
                read = std::mem::take(&mut write.read);
            }
        });
        read
    }

    /// One that was recorded ended. `by`: whose pages it wrote. `failed`: pages that it did not write.
    pub fn write_ends(
        &self,
        inode: InodeNumber,
        number: WriteNumber,
        (by, failed): (Option<Thread>, Option<Range<u64>>),
        now: Duration,
    ) {
        self.with(inode, |record| {
            record.writes.retain(|write| write.number != number);
            // The record may be a new one, after the last close.
            record.in_flight = record.in_flight.saturating_sub(1);
            record.changes(now, by.filter(|_| failed.is_none()));
            if let Some(pages) = failed {
                record.record(pages, None);
            }
        });
    }

    /// Pages are about to be dropped.
    pub fn drop_begins(&self, inode: InodeNumber, pages: Range<u64>, now: Duration) -> Dropping {
        let mut sequence = None;
        self.with(inode, |record| {
            record.changes(now, None);
            record.sequence += 1;
            sequence = Some(record.sequence);
        });
        Dropping { pages, sequence }
    }

    /// They were dropped.
    pub fn drop_ends(&self, inode: InodeNumber, dropped: Dropping) {
        let Dropping { pages, sequence: Some(sequence) } = dropped else { return };
        self.with(inode, |record| {
            if pages == (0..u64::MAX) {
                record.all = record.all.filter(|all| *all > sequence);
            }
            record.pages.retain(|page, recorded| recorded.sequence > sequence || !pages.contains(page));
        });
    }

    /// A READ of these pages was received. `None`: nothing is recorded of the inode.
    pub fn read_begins(
        &self,
        inode: InodeNumber,
        pages: Range<u64>,
        thread: Option<Thread>,
        now: Duration,
    ) -> Option<(Began, Arc<S>)>
    where
        S: Default,
    {
        let mut begun = None;
        self.with(inode, |record| {
            record.sequence += 1;
            record.reads.retain(|read| read.until.is_none_or(|until| until > now));
            let is_expected = |read: &InFlight<S>| read.until.is_some() && overlap(&read.pages, &pages);
            let expected = record.reads.iter().position(is_expected);
            let expected = expected.map(|at| record.reads.swap_remove(at));
            let (began, again) = expected.map_or((record.sequence, false), |read| (read.began, read.again));
            let answered = Arc::new(S::default());
            begun = Some((began, answered.clone()));
            record.reads.push(InFlight { began, pages, thread, answered, again, until: None });
        });
        begun
    }

    /// It was answered.
    pub fn read_ends(&self, inode: InodeNumber, answered: &Arc<S>) {
        self.with(inode, |record| {
            record.reads.retain(|read| read.until.is_some() || !Arc::ptr_eq(&read.answered, answered));
        });
    }

    /// A READ that began before and is in flight. `began`: that of the first one that was returned. READs of `pages`
    /// come first.
    pub fn unsettled(
        &self,
        inode: InodeNumber,
        pages: &Range<u64>,
        began: Option<Began>,
        now: Duration,
    ) -> Option<Unsettled<S>> {
        let mut found = None;
        self.with(inode, |record| {
            let began = began.unwrap_or(record.sequence);
            record.reads.retain(|read| read.until.is_none_or(|until| until > now));
            let locks = |read: &InFlight<S>| read.until.is_none() && overlap(&read.pages, pages);
            let unsettled = || record.reads.iter().filter(|read| read.began <= began || read.again);
            let first = unsettled().find(|read| locks(read)).or_else(|| unsettled().next());
            found = first.map(|read| Unsettled {
                began,
                answered: read.answered.clone(),
                time: read.until.map(|until| until.saturating_sub(now)),
                locks: locks(read),
                later: read.began > began,
            });
        });
        found
    }

    /// Answers a READ of these pages with `reply`. `end`: where the reply ends; `None`: it fails.
    pub fn answer(
        &self,
        inode: InodeNumber,
        pages: Range<u64>,
        end: Option<End>,
        (times, answered): ((Duration, Duration), Option<&Arc<S>>),
        reply: impl FnOnce(ShortRead),
    ) -> ShortRead
    where
        S: Default,
    {
        let mut records = lock(&self.records);
        let Some(record) = records.get_mut(&inode) else {
            drop(records);
            reply(ShortRead::Taken);
            return ShortRead::Taken;
        };
        let decided = match end {
            Some(end) => record.decide(pages.clone(), end, record.reader(answered), times),
            None => ShortRead::Taken,
        };
        match (end, decided) {
            (None, _) => {
                record.record(pages.clone(), Some(times.1));
                record.expect(answered, (pages, true), times.1 + QUEUED_MAX);
            }
            (_, ShortRead::AskedAgain) => record.expect(answered, (pages, true), times.1 + QUEUED_MAX),
            _ => record.is_read(pages, answered, times.1),
        }
        reply(decided);
        decided
    }

    /// A READ is about to be answered that brings all of these pages.
    pub fn read_whole(&self, inode: InodeNumber, pages: Range<u64>, answered: Option<&Arc<S>>, now: Duration)
    where
        S: Default,
    {
        self.with(inode, |record| record.is_read(pages, answered, now));
    }

    /// Whether anything is recorded.
    pub fn is_used(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Nobody has the inode open any more.
    pub fn forget(&self, inode: InodeNumber) {
        if self.is_used() {
            self.change(|records| records.remove(&inode));
        }
    }
}

#[cfg(test)]
mod tests;
