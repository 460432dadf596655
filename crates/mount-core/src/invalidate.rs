//! The kernel's caches follow the recall of leases.
//!
//! The client calls [`KernelCaches`] with no lock held, before it answers a recall. Why none of this waits for itself
//! is argued in the header of `weft-fuse`.
//!
//! # Names
//! The record of what the kernel was told (`weft_client_core::KernelView`) says which names it has to drop. A
//! FUSE_NOTIFY_INVAL_ENTRY takes the directory's lock, which an operation of this mount may hold that itself waits for
//! another client, perhaps for this very recall to be answered. One that has not returned after [`ENTRY_WAIT`] is left
//! to itself, and the kernel's *epoch* is incremented instead (Linux 6.16), which drops every name of the mount and
//! takes no lock. An older kernel is told of names in directories that other sessions use with no time, so that there
//! is nothing to drop; only names told before the directory was found to be shared have to be waited for.
//!
//! # Counts of links
//! When a name is removed, the kernel takes one from the count of links of its inode, also if it has been told the new
//! count already (`weft_client_core`, `kernel_view/link_counts.rs`). So before the reply to the removal of a name that
//! is not the last one, the attributes are marked as old, and they are told with no time until a notification about the
//! name, which waits for the lock that the removal holds, has returned. link(2) refuses an inode whose count is zero
//! without asking; so if the kernel may have counted twice, or begun at a count from before another client gave the
//! inode more names, all names are dropped (without epochs, those of the inode): the next look at one tells the count.
//!
//! # Contents
//! A file that was opened cached stays so for the kernel until it is closed, also when its lease was recalled, and any
//! file may be mapped. Pages that are read or written then are noted by the storage server, which has them dropped
//! before another client changes them (`weft_client_core`, `page_drops.rs`). Only the zeros of a file that has no
//! object yet, and no lease, are noted by nobody: they are dropped after the reply ([`KernelCaches::drop_pages`]).
//!
//! Invariant: when a recall of a name or of attributes has been answered, the kernel believes nothing that it was told
//! under the lease. When a recall of contents has been answered, no page of the file that was read under the lease is
//! in memory: the kernel locks a page from before it asks for it until after the answer, and waits for that lock when
//! it drops pages. Assumed: `OpenInode::may_cache` is false from before the invalidator is called. Not here: who may
//! cache what (the client), page cache modes (`open_modes.rs`).

use crate::kernel_inodes::KernelInodes;
use crate::kernel_sizes::KernelSizes;
use crate::lock::lock;
use crate::open_modes::{OpenModes, Phase};
use crate::shell::{Kernel, MountNotice, MountShell, Notified, Refused};
use crate::short_reads::{ShortReads, WriteNumber};
use crate::writer::{Thread, WrittenBy};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use weft_client_core::{Dropped, KernelView};
use weft_protocol::{InodeNumber, LeaseKey, Name};

/// How long a recall of a name waits for the directory's lock. The notification takes microseconds, except while an
/// operation on the same directory is in progress.
pub const ENTRY_WAIT: Duration = Duration::from_millis(10);
/// How much longer for each name that is recalled with it.
const ENTRY_WAIT_EACH: Duration = Duration::from_micros(20);
/// How long it waits where the epoch does not help: on a kernel without, and for the reply to a listing that the kernel
/// may still be processing.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How long a notification about an inode waits for READs in flight, so that the kernel believes where they end.
/// Another client may wait for it, and a READ for that one; or the READ itself, which has opened the file again and got
/// no answer.
const READ_WAIT: Duration = Duration::from_millis(100);
/// The same where no other client waits.
const OWN_WAIT: Duration = Duration::from_secs(10);
/// How often it looks whether that listing has been processed.
const LISTING_LOOK: Duration = Duration::from_millis(1);

/// What the kernel keeps of this mount.
pub struct KernelCaches<M: MountShell> {
    /// Rank 3. `None` before the mount is ready and after its end: then the kernel keeps nothing. Holding it keeps the
    /// connection open, which is why it is taken away at the end.
    kernel: Mutex<Option<Arc<M::Kernel>>>,
    /// Whether the kernel has epochs.
    has_epoch: AtomicBool,
    pub(crate) modes: OpenModes<M::Backing>,
    /// Rank 3.
    view: Arc<Mutex<KernelView>>,
    pub(crate) inodes: KernelInodes,
    pub(crate) sizes: KernelSizes,
    pub(crate) short_reads: ShortReads<M::Signal>,
    pub shell: M,
}

/// A write or truncation of the kernel in flight.
pub(crate) struct BegunWrite {
    inode: InodeNumber,
    pages: Range<u64>,
    /// Who has written pages.
    thread: Option<Thread>,
    /// If it is recorded.
    number: Option<WriteNumber>,
}

/// Names to be dropped, where waiting for the lock of their directory holds up nobody.
pub struct Job<M: MountShell> {
    kernel: Arc<M::Kernel>,
    /// The record, if it is to be told of.
    recorded: Option<Recorded<M>>,
    parent: InodeNumber,
    names: Vec<Name>,
    /// An inode that has lost one of these names, and has others.
    counted: Option<Counted>,
}

struct Counted {
    view: Arc<Mutex<KernelView>>,
    inode: InodeNumber,
    /// Its names have to be dropped in any case.
    is_wrong: bool,
    /// By the epoch, or each by a notification.
    has_epoch: bool,
}

impl Counted {
    /// The kernel has processed the removal.
    async fn processed(self, kernel: &impl Kernel) -> Notified {
        let (mark, names) = {
            let mut view = lock(&self.view);
            let was_told = view.link_counts.processed(self.inode);
            if !was_told && !self.is_wrong {
                return Ok(());
            }
            (view.mark(), if self.has_epoch { Vec::new() } else { view.names_of(self.inode) })
        };
        if self.has_epoch {
            kernel.increment_epoch().await?;
            lock(&self.view).epoch_incremented(mark);
        }
        let mut notified = Ok(());
        for (parent, name) in names {
            let dropped = kernel.entry(parent, &name).await;
            notified = notified.and(dropped);
        }
        notified
    }
}

struct Recorded<M: MountShell> {
    view: Arc<Mutex<KernelView>>,
    done: Arc<M::Signal>,
}

impl<M: MountShell> Job<M> {
    /// Does it. What the kernel refuses is told to `shell`.
    pub async fn run(self, notice: impl Fn(MountNotice)) {
        let report = |what, notified| report(&notice, what, notified);
        let Self { kernel, recorded, parent, names, counted } = self;
        let Some(Recorded { view, done }) = recorded else {
            for name in &names {
                report("unleased entry", kernel.entry(parent, name).await);
            }
            if let Some(counted) = counted {
                report("count of links", counted.processed(&*kernel).await);
            }
            return;
        };
        for name in &names {
            let mark = lock(&view).mark();
            report("entry", kernel.entry(parent, name).await);
            lock(&view).dropped(parent, name, mark);
        }
        // A listing that was in progress has been added to the pages of the directory by now.
        report("listing", kernel.contents(parent, 0, 0).await);
        M::set(&done);
    }
}

impl<M: MountShell> KernelCaches<M> {
    pub fn new(shell: M) -> Self {
        let (kernel, has_epoch, view) = (Mutex::default(), AtomicBool::new(false), Arc::default());
        let (modes, inodes, sizes) = (OpenModes::default(), KernelInodes::default(), KernelSizes::default());
        let short_reads = ShortReads::default();
        Self { kernel, has_epoch, modes, view, inodes, sizes, short_reads, shell }
    }

    /// The mount is ready. `use_epoch`: increment the kernel's epoch where it has one. Returns whether it has.
    pub async fn connect(&self, kernel: Arc<M::Kernel>, use_epoch: bool) -> bool {
        let has_epoch = use_epoch && kernel.increment_epoch().await.is_ok();
        self.has_epoch.store(has_epoch, Ordering::Relaxed);
        *lock(&self.kernel) = Some(kernel);
        has_epoch
    }

    /// The mount has ended.
    pub fn disconnect(&self) {
        *lock(&self.kernel) = None;
    }

    /// Whether the kernel has epochs.
    pub fn has_epoch(&self) -> bool {
        self.has_epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn kernel(&self) -> Option<Arc<M::Kernel>> {
        lock(&self.kernel).clone()
    }

    /// The record of what the kernel was told.
    pub fn view(&self) -> MutexGuard<'_, KernelView> {
        lock(&self.view)
    }

    /// The record's time.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.shell.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn report(&self, what: &'static str, notified: Notified) {
        report(&|notice| self.shell.notice(notice), what, notified);
    }

    /// Drops pages (`bytes` `u64::MAX`: to the end), and marks the attributes as old. Waits for reads and writes of
    /// these pages under way.
    pub async fn drop_pages(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        if let Some(kernel) = self.kernel() {
            let bytes = if bytes == u64::MAX { 0 } else { bytes.max(1) };
            let dropped = self.contents(&kernel, inode, (offset, bytes)).await;
            self.report("contents", dropped);
        }
    }

    /// Drops pages of a file (`bytes` 0: to the end).
    async fn contents(&self, kernel: &M::Kernel, inode: InodeNumber, (offset, bytes): (u64, u64)) -> Notified {
        self.may_change(inode);
        let pages = self.pages(if bytes == 0 { offset..u64::MAX } else { offset..offset.saturating_add(bytes) });
        self.settle(inode, &pages, READ_WAIT).await;
        let dropping = self.short_reads.drop_begins(inode, pages, self.shell.now());
        self.inodes.disregards_replies(inode, self.shell.now());
        let dropped = kernel.contents(inode, offset, bytes).await;
        self.short_reads.drop_ends(inode, dropping);
        dropped
    }

    /// Tells the kernel that an inode has changed.
    async fn tell(&self, kernel: &M::Kernel, inode: InodeNumber, data: bool) -> Notified {
        if data {
            return self.contents(kernel, inode, (0, 0)).await;
        }
        self.may_change(inode);
        self.settle(inode, &(0..0), READ_WAIT).await;
        self.short_reads.changed(inode, self.shell.now());
        self.inodes.disregards_replies(inode, self.shell.now());
        kernel.attributes(inode).await
    }

    /// Others may change an inode: if it is open, it is recorded what makes the kernel disregard replies.
    pub(crate) fn may_change(&self, inode: InodeNumber) {
        if self.modes.phase(inode) == Phase::Other {
            self.short_reads.begin(inode, self.shell.now());
        }
    }

    /// Pages in which a range lies.
    pub(crate) fn pages(&self, range: Range<u64>) -> Range<u64> {
        let page_bytes = self.shell.page_bytes();
        let end = if range.end == u64::MAX { u64::MAX } else { range.end.div_ceil(page_bytes) };
        range.start / page_bytes..end
    }

    /// A reply is about to tell this size.
    pub(crate) fn told_size(&self, inode: InodeNumber, size: u64) {
        self.sizes.told(inode, size);
        self.short_reads.told(inode, size, self.shell.now());
    }

    /// The kernel has begun to truncate.
    pub(crate) fn truncation_begins(&self, inode: InodeNumber) -> BegunWrite {
        let number = self.short_reads.write_begins(inode, 0, (0..0, [None, None]), self.shell.now());
        BegunWrite { inode, pages: 0..0, thread: None, number }
    }

    /// The kernel has begun to write.
    pub(crate) fn write_begins(&self, inode: InodeNumber, (offset, bytes): (u64, u64), by: WrittenBy) -> BegunWrite {
        let page_bytes = self.shell.page_bytes();
        let end = offset.saturating_add(bytes);
        let in_pages = !matches!(by, WrittenBy::Program { pages: false, .. });
        let torn = |at: u64| (in_pages && !at.is_multiple_of(page_bytes)).then_some(at / page_bytes);
        let torn = [torn(offset), torn(end)];
        let pages = if in_pages { self.pages(offset..end) } else { 0..0 };
        // Pages that the kernel writes back it keeps from being dropped.
        let loose = if by == WrittenBy::PageCache { 0..0 } else { pages.clone() };
        let number = self.short_reads.write_begins(inode, end, (loose, torn), self.shell.now());
        let thread = match by {
            WrittenBy::Program { pages: true, thread, .. } => thread,
            WrittenBy::Program { pages: false, .. } | WrittenBy::PageCache => None,
        };
        BegunWrite { inode, pages, thread, number }
    }

    /// That has landed: drops what has been read into its pages meanwhile. Each of these pages has been locked for the
    /// READ after the kernel sent the write, so that the kernel does not keep it locked until the reply.
    pub(crate) async fn drop_overtaken(&self, begun: &BegunWrite) {
        let Some(number) = begun.number else { return };
        let page_bytes = self.shell.page_bytes();
        for page in self.short_reads.overtaken(begun.inode, number) {
            self.drop_pages(begun.inode, page * page_bytes, page_bytes).await;
        }
    }

    /// That ended; its reply comes next.
    pub(crate) fn write_ends(&self, begun: BegunWrite, has_failed: bool) {
        if let Some(number) = begun.number {
            let failed = has_failed.then_some(begun.pages);
            self.short_reads.write_ends(begun.inode, number, (begun.thread, failed), self.shell.now());
        }
    }

    /// Returns when the READs in flight have been answered, and processed as far as that matters. Waits for those for
    /// which some of `pages` are locked, and for the others, and what follows on one, for `limit` at most.
    async fn settle(&self, inode: InodeNumber, pages: &Range<u64>, limit: Duration) {
        let (mut start, mut began) = (self.shell.now(), None);
        loop {
            let now = self.shell.now();
            let left = limit.saturating_sub(now.saturating_sub(start));
            let Some(read) = self.short_reads.unsettled(inode, pages, began, now) else { return };
            if left.is_zero() && !read.locks {
                return;
            }
            began = Some(read.began);
            let left = if read.locks { LOCK_WAIT } else { left };
            let is_set = self.shell.wait(&read.answered, read.time.map_or(left, |time| time.min(left))).await;
            if read.locks || is_set && read.time.is_none() && !read.later {
                start = self.shell.now();
            }
        }
    }

    /// The same before what no other client waits for: the reply to a write, or a notification after one.
    pub(crate) async fn settle_reads(&self, inode: InodeNumber) {
        self.settle(inode, &(0..0), OWN_WAIT).await;
    }

    /// Drops what the kernel keeps of a directory's listing, for those who have it open and begin anew. Call it before
    /// the reply that would have it used.
    pub async fn drop_listing(&self, directory: InodeNumber) {
        if let Some(kernel) = self.kernel() {
            self.report("listing", kernel.contents(directory, 0, 0).await);
        }
    }

    /// Drops names that the kernel is about to get by a rename, and that no lease covers. Its directories are locked:
    /// on a kernel without epochs they are dropped as soon as it has moved them.
    pub async fn drop_moved(&self, names: &[(InodeNumber, &Name)]) {
        let Some(kernel) = self.kernel() else { return };
        if self.has_epoch() {
            return self.increment_epoch(&kernel).await;
        }
        for (parent, name) in names {
            self.submit(&kernel, *parent, vec![(*name).clone()]);
        }
    }

    async fn increment_epoch(&self, kernel: &M::Kernel) {
        let mark = self.view().mark();
        match kernel.increment_epoch().await {
            Ok(()) => self.view().epoch_incremented(mark),
            Err(refused) => self.shell.notice(MountNotice::EpochStays(refused)),
        }
    }

    /// Has the kernel drop these names, beside this procedure, which must not wait for the directory's lock. `None`:
    /// too many wait.
    fn submit(&self, kernel: &Arc<M::Kernel>, parent: InodeNumber, names: Vec<Name>) -> Option<Arc<M::Signal>> {
        let done = Arc::new(M::Signal::default());
        let recorded = Some(Recorded { view: self.view.clone(), done: done.clone() });
        self.shell.submit(Job { kernel: kernel.clone(), recorded, parent, names, counted: None }).then_some(done)
    }

    async fn has_returned(&self, done: Option<&Arc<M::Signal>>, time: Duration) -> bool {
        match done {
            Some(done) => self.shell.wait(done, time).await,
            None => false,
        }
    }

    /// The kernel may use no name of the directory under these leases any more: returns when it does not.
    async fn drop_names(&self, parent: InodeNumber, keys: &[LeaseKey]) {
        let names: Vec<Name> = {
            let mut view = self.view();
            keys.iter().for_each(|key| view.recall(*key));
            keys.iter().flat_map(|key| view.names_under(*key)).collect()
        };
        self.drop_these(parent, names).await;
    }

    /// The kernel may use none of these names any more: returns when it does not, and has processed the replies that
    /// told of them.
    async fn drop_these(&self, parent: InodeNumber, names: Vec<Name>) {
        let Some(kernel) = self.kernel().filter(|_| !names.is_empty()) else { return };
        let start = self.shell.now();
        let wait = ENTRY_WAIT + ENTRY_WAIT_EACH * u32::try_from(names.len()).unwrap_or(u32::MAX);
        let done = self.submit(&kernel, parent, names);
        if self.has_returned(done.as_ref(), wait).await {
            return;
        }
        if !self.has_epoch() {
            if !self.has_returned(done.as_ref(), LOCK_WAIT).await {
                self.shell.notice(MountNotice::NamesDroppedLater(parent));
            }
            return;
        }
        while !self.view().is_settled(parent) && self.shell.now().saturating_sub(start) < LOCK_WAIT {
            if self.has_returned(done.as_ref(), LISTING_LOOK).await {
                return;
            }
        }
        self.shell.notice(MountNotice::AllNamesDropped(parent));
        self.increment_epoch(&kernel).await;
    }

    /// Drops what a recall or an eviction took.
    pub async fn dropped(&self, dropped: &Dropped) {
        if let Some(key) = dropped.recalled {
            self.recalled(key).await;
        }
        for (parent, names) in dropped.names_by_directory() {
            self.entries(parent, names).await;
        }
        for directory in &dropped.directories {
            self.drop_listing(*directory).await;
        }
        for inode in &dropped.inodes {
            self.inode(*inode, false).await;
        }
    }

    /// This lease on names or attributes is recalled.
    pub async fn recalled(&self, key: LeaseKey) {
        let (LeaseKey::Entry(parent, _) | LeaseKey::Directory(parent) | LeaseKey::Names(parent)) = key else { return };
        // For those who have the directory open and begin anew.
        self.drop_listing(parent).await;
        // Without epochs nothing may be left for a later recall, which may come while the directory is locked.
        let key = if self.has_epoch() { key } else { LeaseKey::Directory(parent) };
        self.drop_names(parent, &[key]).await;
    }

    /// These names in a directory may mean something else now.
    pub async fn entries(&self, parent: InodeNumber, names: Vec<Name>) {
        let keys: Vec<_> = names.iter().map(|name| LeaseKey::Entry(parent, name.hash64())).collect();
        self.drop_names(parent, &keys).await;
    }

    /// Attributes of the inode may be others now; with `data`, its contents too.
    pub async fn inode(&self, inode: InodeNumber, data: bool) {
        if data {
            self.modes.recalled(inode);
            self.sizes.forget(inode);
        }
        self.view().recall(LeaseKey::Attributes(inode));
        let Some(kernel) = self.kernel() else { return };
        let told = self.tell(&kernel, inode, data).await;
        self.report("inode", told);
        // Bound first: the record is not locked while names are dropped.
        let place = self.view().place(inode).filter(|_| told == Err(Refused::NOT_FOUND));
        if let Some((parent, name)) = place {
            // The reply that makes it known may be in flight, with attributes of before; also where it told the name
            // with no time.
            self.view().recall(LeaseKey::Entry(parent, name.hash64()));
            self.drop_these(parent, vec![name]).await;
            let told = self.tell(&kernel, inode, data).await;
            self.report("inode", told);
        }
        self.view().attributes_dropped(inode);
        if !self.has_epoch() {
            // Of a directory: others are changing names in it.
            self.drop_names(inode, &[LeaseKey::Directory(inode)]).await;
        }
    }

    /// The shard has taken this name from an inode that has others. To be called before the reply.
    pub(crate) async fn name_lost(&self, inode: InodeNumber, (parent, name): (InodeNumber, &Name)) {
        let Some(kernel) = self.kernel() else { return };
        let has_none = self.inodes.loses_link(inode);
        let was_told = {
            let mut view = self.view();
            view.recall(LeaseKey::Attributes(inode));
            view.link_counts.lost(inode, self.now_ms())
        };
        let may_be_wrong = was_told || has_none;
        // A reply in flight does not count any more.
        let told = self.tell(&kernel, inode, false).await;
        self.report("inode", told);
        self.view().attributes_dropped(inode);
        let has_epoch = self.has_epoch();
        if may_be_wrong && has_epoch {
            self.increment_epoch(&kernel).await;
        }
        let is_wrong = may_be_wrong && !has_epoch;
        let counted = Some(Counted { view: self.view.clone(), inode, is_wrong, has_epoch });
        let job = Job { kernel, recorded: None, parent, names: vec![name.clone()], counted };
        if !self.shell.submit(job) {
            self.shell.notice(MountNotice::StaysKnown(inode));
        }
    }

    /// Whether the kernel may still use the inode's number, or be about to: the reply to a request in flight may tell
    /// it. Such a number that was not told after all is given back with the stamp.
    pub fn knows(&self, inode: InodeNumber, stamp: u64) -> bool {
        if self.kernel().is_none() {
            return false;
        }
        // Asked last once more: what was told in between is known then.
        self.was_told(inode) || self.view().may_tell(inode, stamp) || self.was_told(inode)
    }

    /// Whether the kernel was told of an inode that is removed or changed by others, and has not forgotten it.
    pub(crate) fn was_told(&self, inode: InodeNumber) -> bool {
        let (Some(kernel), Some(unleased)) = (self.kernel(), self.inodes.known(inode)) else { return false };
        if let Some((parent, name)) = unleased {
            // Of no use any more; without it the kernel forgets an inode that nobody has open. Not waited for.
            if !self.shell.submit(Job { kernel, recorded: None, parent, names: vec![name], counted: None }) {
                self.shell.notice(MountNotice::StaysKnown(inode));
            }
        }
        true
    }
}

fn report(notice: &impl Fn(MountNotice), what: &'static str, notified: Notified) {
    if let Err(refused) = notified {
        notice(MountNotice::NotInvalidated(what, refused));
    }
}
