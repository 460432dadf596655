//! Open files: opening, reading, writing, closing.
//!
//! The client buffers, and holds the leases. Here it is chosen through which cache the kernel takes the file
//! (`open_modes.rs`), and two things of the kernel are put right:
//! - A write that the kernel sends from its page cache (of a mapped file) has an offset of its
//!   own and comes with *some* open file of the inode. When that was opened with O_APPEND, the write must not go to the
//!   end: it goes through another handle ([`Mount::write`]).
//! - What the kernel reads and writes by its pages (any file may be mapped, and one that was opened cached stays so
//!   after its lease was recalled) is said to the client, which has somebody vouch for the pages
//!   (`weft_client_core::Coverage`).
//!
//! Not here: numbers of open files (`handles.rs`).
//! Cost of a read or write: no message beyond the client's, one copy between its buffers and the kernel's.

use crate::open_modes::{Mode, Phase, Stamp, Wish};
use crate::operations::{Answer, Mount};
use crate::shell::{DescriptorOf, Kernel, MountNotice, MountShell, NotTaken, OpenOptionsOf};
use crate::short_reads::{End, ShortRead};
use crate::writer::{ReadBy, WrittenBy};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weft_client_core::{Coverage, Entry, FlushFor, Handle, LentFile, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile, PageCache};
use weft_protocol::{Credentials, Error, InodeNumber, LockOwner, Name, Result};

/// An open file.
pub struct OpenFile<M: MountShell> {
    pub inode: InodeNumber,
    /// In passthrough mode.
    lent: Option<Lent<M>>,
    pub(crate) file: Handle<M::Client>,
    options: OpenOptionsOf<M>,
    mode: Mode<M::Backing>,
    /// Of an append handle: opened at the first write that has an offset of its own.
    positional: OnceLock<Handle<M::Client>>,
    /// Where it is, if it had no object when it was opened for writing.
    new_in: Option<InodeNumber>,
    who: Credentials,
}

/// An object's file in the hands of a kernel. To be given back when the kernel has closed it.
type Lent<M> = LentFile<DescriptorOf<M>>;

/// Pages that are to be dropped after a reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Drops {
    Nothing,
    Read,
    All,
}

/// What is asked of an open.
struct Asked<M: MountShell> {
    who: Credentials,
    options: OpenOptionsOf<M>,
    /// Directory in which it is made.
    place: InodeNumber,
}

/// On whose behalf a released file is flushed: the kernel tells no program of the result, so that an error is left for
/// the next one.
const RELEASED: FlushFor = FlushFor::Drop;

/// The directory of a file that is opened by its inode, for the guess whether it stays empty.
const ANYWHERE: InodeNumber = InodeNumber::from_raw(0);

/// What is told of an open.
pub struct Opened<B> {
    pub handle: u64,
    pub mode: Mode<B>,
    pub access: Access,
}

impl<M: MountShell> Mount<M> {
    /// Opens an inode. `register` gives the kernel a file to read and write by itself.
    pub async fn open(
        &self,
        who: Credentials,
        inode: InodeNumber,
        options: OpenOptionsOf<M>,
        register: impl Fn(&DescriptorOf<M>) -> std::result::Result<M::Backing, NotTaken>,
    ) -> Result<Opened<M::Backing>> {
        let options = OpenOptions { page_cache: self.page_cache(), ..options };
        let file = self.client.open(&who, inode, options).await?;
        let asked = Asked { who, options, place: ANYWHERE };
        self.opened(file, asked, None, register).await
    }

    /// Opens a name, and makes it as `create` says.
    pub async fn create(
        &self,
        who: Credentials,
        (parent, name): (InodeNumber, &Name),
        options: OpenOptionsOf<M>,
        create: CreateFile,
        register: impl Fn(&DescriptorOf<M>) -> std::result::Result<M::Backing, NotTaken>,
    ) -> Answer<'_, M, (Entry, Opened<M::Backing>)> {
        let telling = self.telling_change(&[parent]).await;
        let options = OpenOptions { page_cache: self.page_cache(), ..options };
        let created = match self.client.open_at(&who, parent, name, options, Some(create)).await {
            Ok((file, entry)) => {
                let asked = Asked { who, options, place: parent };
                let opened = self.opened(file, asked, Some(Stamp::of(&entry.attributes)), register).await;
                opened.map(|opened| (telling.entry(parent, name, entry), opened))
            }
            Err(error) => Err(error),
        };
        Answer::new(telling, created)
    }

    /// Which files the kernel may keep pages of: any may be mapped.
    fn page_cache(&self) -> PageCache {
        match self.settings().passthrough {
            Some(machine) if !self.passthrough_refused.load(Ordering::Relaxed) => PageCache::ExceptAt(machine),
            _ => PageCache::All,
        }
    }

    /// Contents as they are now. Under a data lease the client knows, with no message.
    async fn stamp(&self, who: &Credentials, inode: InodeNumber) -> Option<Stamp> {
        self.client.attributes(who, inode).await.ok().map(|entry| Stamp::of(&entry.attributes))
    }

    /// Chooses the mode of a file that the client opened, and gives it a number.
    async fn opened(
        &self,
        file: Handle<M::Client>,
        asked: Asked<M>,
        stamp: Option<Stamp>,
        register: impl Fn(&DescriptorOf<M>) -> std::result::Result<M::Backing, NotTaken>,
    ) -> Result<Opened<M::Backing>> {
        let inode = file.open.inode;
        let is_new = asked.options.access.writes()
            && self.settings().passthrough.is_some()
            && !file.open.has_object(&self.client.objects).await;
        let new_in = is_new.then_some(asked.place);
        let (mode, lent) = self.choose_mode(&file, &asked, new_in, stamp, register).await;
        let Asked { who, options, .. } = asked;
        if options.truncate {
            // The kernel sets it by itself when it has the reply.
            self.caches.told_size(inode, 0);
        }
        let (told, access) = (mode.clone(), options.access);
        let positional = OnceLock::new();
        let open_file = Arc::new(OpenFile { inode, lent, file, options, mode, positional, new_in, who });
        match self.files.insert(open_file.clone()) {
            Ok(handle) => Ok(Opened { handle, mode: told, access }),
            Err(error) => {
                self.caches.modes.end(inode, &open_file.mode);
                self.close(&open_file).await.and(Err(error))
            }
        }
    }

    /// The mode, and with passthrough the kernel's use of the object.
    async fn choose_mode(
        &self,
        file: &Handle<M::Client>,
        asked: &Asked<M>,
        new_in: Option<InodeNumber>,
        stamp: Option<Stamp>,
        register: impl Fn(&DescriptorOf<M>) -> std::result::Result<M::Backing, NotTaken>,
    ) -> (Mode<M::Backing>, Option<Lent<M>>) {
        let (inode, modes) = (file.open.inode, &self.caches.modes);
        let phase = modes.phase(inode);
        // Its writes have to be seen: they clear the bits.
        let keeps_writes = asked.options.access.writes() && file.open.may_have_set_id();
        let lent = if self.may_pass(asked, new_in, phase) && !keeps_writes { self.lend(file).await } else { None };
        let writes = asked.options.access.writes();
        let passed = lent.as_ref().filter(|lent| !writes || lent.may_write).map(|lent| lent.number);
        let backing = match &lent {
            Some(lent) if passed.is_some() && phase == Phase::Closed => self.registered(register(&lent.file)),
            _ => None,
        };
        // Of an append the kernel's pages would make several requests, between which another client's may come.
        let buffered = !self.settings().direct && !asked.options.direct && !asked.options.append;
        let cached = buffered && file.open.may_cache(&self.client.objects).await;
        // Of no use to a file that begins in passthrough mode, and it may cost a message.
        let stamp = if backing.is_some() || phase == Phase::Passthrough {
            None
        } else if stamp.is_none() && cached {
            self.stamp(&asked.who, inode).await
        } else {
            stamp
        };
        let wish = Wish { cached, stamp, lent: passed };
        let mode = match backing {
            Some(backing) => modes.begin_with_backing(inode, wish, backing),
            None => modes.begin(inode, wish),
        };
        match lent {
            Some(lent) if !matches!(mode, Mode::Passthrough(_)) => {
                self.give_back(file, &lent).await;
                (mode, None)
            }
            Some(lent) => {
                file.open.passed().await;
                (mode, Some(lent))
            }
            None => (mode, None),
        }
    }

    /// Lends the object's file to the kernel, where a descriptor of it is passed to this process. A file without an
    /// object gets one if the handle writes.
    async fn lend(&self, file: &Handle<M::Client>) -> Option<Lent<M>> {
        let Handle { open, options, .. } = file;
        open.lend(&self.client.objects, options.access.writes(), options.direct).await
    }

    async fn give_back(&self, file: &Handle<M::Client>, lent: &Lent<M>) {
        file.open.lent_back(&self.client.objects, lent.may_write).await;
    }

    /// Whether the object's descriptor is to be asked for.
    fn may_pass(&self, asked: &Asked<M>, new_in: Option<InodeNumber>, phase: Phase) -> bool {
        let possible = self.settings().passthrough.is_some() && !self.passthrough_refused.load(Ordering::Relaxed);
        possible
            && !asked.options.direct
            && match phase {
                Phase::Closed => {
                    new_in.is_none_or(|place| self.new_files.will_be_written(place, self.caches.shell.now()))
                }
                Phase::Passthrough => true,
                Phase::Other => false,
            }
    }

    fn registered(&self, taken: std::result::Result<M::Backing, NotTaken>) -> Option<M::Backing> {
        match taken {
            Ok(backing) => Some(backing),
            Err(not_taken) => {
                if not_taken == NotTaken::Never && !self.passthrough_refused.swap(true, Ordering::Relaxed) {
                    self.caches.shell.notice(MountNotice::NothingPassed);
                }
                None
            }
        }
    }

    /// Reads and hands the bytes to `reply`, which runs before anything is dropped from the kernel's pages. `memory` is
    /// where they are put on the way, if they have to be; it grows to the largest read, which the kernel limits.
    pub async fn read(
        &self,
        handle: u64,
        (offset, bytes): (u64, u32),
        ReadBy { pages, thread }: ReadBy,
        memory: &mut Vec<u8>,
        reply: impl FnOnce(Result<&[u8]>),
    ) {
        let open_file = match self.files.get(handle) {
            Ok(open_file) => open_file,
            Err(error) => return reply(Err(error)),
        };
        let (io, length) = (&self.client.objects, bytes as usize);
        let caches = &self.caches;
        let received = if pages { caches.shell.now() } else { Duration::ZERO };
        let begun = match pages && caches.short_reads.is_used() {
            true => {
                let pages = caches.pages(offset..offset + u64::from(bytes));
                caches.short_reads.read_begins(open_file.inode, pages, thread, received).map(|(_, answered)| answered)
            }
            false => None,
        };
        let mut reply = Some(reply);
        let mut drops = Drops::Nothing;
        let mut give = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                drops = match pages {
                    true => {
                        self.reply_pages(&open_file, (offset, length), (received, begun.as_ref()), Ok(bytes), reply)
                    }
                    false => {
                        reply(Ok(bytes));
                        Drops::Nothing
                    }
                };
            }
        };
        open_file.file.read_in_place(io, length, offset, &mut give).await;
        if let Some(reply) = reply {
            if memory.len() < length {
                memory.resize(length, 0);
            }
            let memory = &mut memory[..length];
            if !pages {
                let read = open_file.file.read_at(io, memory, offset).await;
                return reply(read.map(|count| &memory[..count]));
            }
            let read = open_file.file.read_pages(io, memory, offset).await;
            let coverage = read.as_ref().map_or(Coverage::Lease, |(_, coverage)| *coverage);
            if coverage != Coverage::Lease {
                caches.may_change(open_file.inode);
            }
            let read = read.map(|(count, _)| &memory[..count]);
            drops = self.reply_pages(&open_file, (offset, length), (received, begun.as_ref()), read, reply);
            if coverage == Coverage::Nothing {
                drops = drops.max(Drops::Read);
            }
        }
        if let Some(begun) = begun {
            caches.short_reads.read_ends(open_file.inode, &begun);
            M::set(&begun);
        }
        if drops > Drops::Nothing {
            caches.settle_reads(open_file.inode).await;
        }
        match drops {
            Drops::Nothing => {}
            Drops::Read => caches.drop_pages(open_file.inode, offset, u64::from(bytes)).await,
            Drops::All => caches.drop_pages(open_file.inode, 0, u64::MAX).await,
        }
    }

    /// Answers a READ into pages that was received then; with an error where the kernel has to ask again
    /// (`short_reads.rs`). Returns what is to be dropped after the reply.
    fn reply_pages(
        &self,
        open_file: &OpenFile<M>,
        (offset, length): (u64, usize),
        (received, begun): (Duration, Option<&Arc<M::Signal>>),
        read: Result<&[u8]>,
        reply: impl FnOnce(Result<&[u8]>),
    ) -> Drops {
        let (caches, inode) = (&self.caches, open_file.inode);
        let is_short = read.as_ref().is_ok_and(|bytes| bytes.len() < length);
        let end = read.as_ref().ok().map(|bytes| {
            let at = offset + bytes.len() as u64;
            let is_cut = is_short && caches.sizes.told(inode, at);
            End { at, is_empty: bytes.is_empty(), is_cut }
        });
        let pages = || caches.pages(offset..offset + length as u64);
        if !caches.short_reads.is_used() {
            reply(read);
            return Drops::Nothing;
        }
        if read.is_ok() && !is_short {
            caches.short_reads.read_whole(inode, pages(), begun, caches.shell.now());
            reply(read);
            return Drops::Nothing;
        }
        let times = (received, caches.shell.now());
        let answered = caches.short_reads.answer(inode, pages(), end, (times, begun), |short| match short {
            // Mostly of readahead, of which nobody hears. After EINTR the runtimes of programs call again.
            ShortRead::AskedAgain => reply(Err(Error::Interrupted)),
            ShortRead::Taken | ShortRead::Dropped { .. } => reply(read),
        });
        match answered {
            ShortRead::Dropped { all: true } => Drops::All,
            ShortRead::Dropped { all: false } => Drops::Read,
            ShortRead::Taken | ShortRead::AskedAgain => Drops::Nothing,
        }
    }

    /// Before the reply to a request for attributes of a file that the kernel has open: makes it know of bytes that
    /// others have added, whatever it makes of the reply. Should the file have been cut since, the kernel learns it as
    /// if it had been cut after the reply.
    pub(crate) async fn tell_size(&self, inode: InodeNumber, size: u64) {
        let caches = &self.caches;
        if caches.modes.phase(inode) != Phase::Other
            || caches.sizes.knows(inode, size, self.client.may_cache(inode).await)
        {
            return;
        }
        let Some(kernel) = caches.kernel() else { return };
        caches.short_reads.grows(inode, size, caches.pages(size - 1..size), caches.shell.now());
        caches.inodes.disregards_replies(inode, caches.shell.now());
        if kernel.grow(inode, size).await.is_ok() {
            caches.sizes.grew(inode, size);
        }
    }

    /// Writes all bytes.
    pub async fn write(&self, handle: u64, offset: u64, bytes: &[u8], by: WrittenBy) -> Result<()> {
        let open_file = self.files.get(handle)?;
        let begun = self.caches.write_begins(open_file.inode, (offset, bytes.len() as u64), by);
        let written = self.write_via(&open_file, offset, bytes, by).await;
        self.caches.settle_reads(open_file.inode).await;
        self.caches.drop_overtaken(&begun).await;
        self.caches.write_ends(begun, written.is_err());
        written
    }

    async fn write_via(&self, open_file: &OpenFile<M>, offset: u64, bytes: &[u8], by: WrittenBy) -> Result<()> {
        let io = &self.client.objects;
        let clears = matches!(by, WrittenBy::Program { clears_set_id: true, .. });
        if clears && open_file.file.open.may_have_set_id() {
            open_file.file.open.clear_set_id_now(io, &open_file.who).await?;
        }
        match by {
            WrittenBy::PageCache if open_file.options.append => {
                self.positional(open_file).await?.write_pages(io, bytes, offset).await?;
            }
            WrittenBy::PageCache | WrittenBy::Program { pages: true, .. } => {
                open_file.file.write_pages(io, bytes, offset).await?;
            }
            WrittenBy::Program { pages: false, synced, .. } => {
                open_file.file.write_at(io, bytes, offset).await?;
                if self.caches.modes.is_cached(open_file.inode) {
                    self.caches.settle_reads(open_file.inode).await;
                    // The kernel has dropped them before, not what another program has read meanwhile.
                    self.caches.drop_pages(open_file.inode, offset, bytes.len() as u64).await;
                }
                if synced {
                    open_file.file.open.sync(io).await?;
                }
            }
        }
        Ok(())
    }

    /// The handle of an append handle's writes that have an offset of their own.
    async fn positional<'a>(&self, open_file: &'a OpenFile<M>) -> Result<&'a Handle<M::Client>> {
        if let Some(file) = open_file.positional.get() {
            return Ok(file);
        }
        let options = OpenOptions { access: Access::Write, truncate: false, append: false, ..open_file.options };
        let file = self.client.open(&open_file.who, open_file.inode, options).await?;
        if let Err(second) = open_file.positional.set(file) {
            let flushed = self.flush_handle(&second, FlushFor::Program).await;
            self.client.close_handle(&second).await;
            flushed?;
        }
        open_file.positional.get().ok_or(Error::BadHandle)
    }

    /// A descriptor of the open file is closed, by the process whose locks have this owner.
    pub async fn flush(&self, handle: u64, owner: LockOwner) -> Result<()> {
        let open_file = self.files.get(handle)?;
        let lost = open_file.file.check_locks(self.client.calls());
        let flushed = self.flush_both(&open_file, FlushFor::Program).await;
        let unlocked = self.unlock_closed(handle, owner).await;
        flushed.and(lost).and(unlocked)
    }

    pub async fn sync(&self, handle: u64) -> Result<()> {
        let open_file = self.files.get(handle)?;
        let mut result = open_file.file.check_locks(self.client.calls());
        for file in open_file.both() {
            result = result.and(file.open.sync(&self.client.objects).await);
        }
        result
    }

    pub async fn release(&self, handle: u64) -> Result<()> {
        let open_file = self.files.remove(handle)?;
        self.finish(&open_file).await
    }

    /// Closes what is still open at the end of a mount.
    pub async fn release_all(&self) {
        for open_file in self.files.drain() {
            if let Err(error) = self.finish(&open_file).await {
                self.caches.shell.notice(MountNotice::NotClosed(open_file.inode, error));
            }
        }
        drop(self.directories.drain());
    }

    async fn finish(&self, open_file: &OpenFile<M>) -> Result<()> {
        let OpenFile { inode, mode, file, .. } = open_file;
        let io = &self.client.objects;
        let keeps_pages = matches!(mode, Mode::Cached { .. }) && open_file.options.access.writes();
        if keeps_pages && file.open.may_cache(io).await && self.flush_handle(file, RELEASED).await.is_ok() {
            // The pages hold what was written here: after this, they are good for the next open.
            if let Some(stamp) = self.stamp(&open_file.who, *inode).await {
                self.caches.modes.written(*inode, stamp);
            }
        }
        if let Some(place) = open_file.new_in {
            // With a kernel's writes the size costs no message.
            let size = if open_file.lent.is_some() { file.size(io).await } else { Ok(1) };
            let is_empty = size == Ok(0) || !file.open.has_object(io).await;
            self.new_files.closed(place, is_empty, self.caches.shell.now());
        }
        let flushed = self.flush_both(open_file, RELEASED).await;
        self.caches.sizes.forget(*inode);
        self.caches.modes.end(*inode, mode);
        if self.caches.modes.phase(*inode) == Phase::Closed {
            self.caches.short_reads.forget(*inode);
        }
        self.close_both(open_file).await;
        flushed
    }

    /// What a program sends with `close`, of one handle.
    pub(crate) async fn flush_handle(&self, file: &Handle<M::Client>, by: FlushFor) -> Result<()> {
        file.open.flush(&self.client.objects, by).await
    }

    /// Does it for each of the one or two handles; the first error counts.
    async fn flush_both(&self, open_file: &OpenFile<M>, by: FlushFor) -> Result<()> {
        let mut result = Ok(());
        for file in open_file.both() {
            result = result.and(self.flush_handle(file, by).await);
        }
        result
    }

    /// Gives up both handles, and the object's file before: with the handle the kernel has closed its own.
    async fn close_both(&self, open_file: &OpenFile<M>) {
        if let Some(lent) = &open_file.lent {
            self.give_back(&open_file.file, lent).await;
        }
        for file in open_file.both() {
            self.client.close_handle(file).await;
        }
    }

    async fn close(&self, open_file: &OpenFile<M>) -> Result<()> {
        let flushed = self.flush_both(open_file, RELEASED).await;
        self.close_both(open_file).await;
        flushed
    }
}

impl<M: MountShell> OpenFile<M> {
    /// Its one or two handles.
    fn both(&self) -> impl Iterator<Item = &Handle<M::Client>> {
        std::iter::once(&self.file).chain(self.positional.get())
    }
}
