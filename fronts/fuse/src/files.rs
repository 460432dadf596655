//! Open files: opening, reading, writing, closing.
//!
//! The client library buffers, and holds the leases. Here it is chosen through which cache the kernel takes the file
//! (`open_modes.rs`), and two things of the kernel are put right:
//! - A write that the kernel sends from its page cache (of a mapped file; with write-back, all) has an offset of its
//!   own and comes with *some* open file of the inode. When that was opened with O_APPEND, the write must not go to the
//!   end: it goes through another handle ([`OpenFile::write`]).
//! - A file that was opened cached stays so for the kernel after its lease was recalled. What such reads and writes
//!   leave in the kernel's pages is dropped again.
//!
//! Not here: numbers of open files (`handles.rs`).
//! Cost of a read or write: no message beyond the client library's, one copy between its buffers and the kernel's.

use crate::convert::{self, WrittenBy};
use crate::credentials::Caller;
use crate::open_modes::{Mode, Phase, Stamp, Wish};
use crate::operations::Front;
use fuser::{BackingId, FopenFlags, OpenAccMode, OpenFlags};
use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use weft_client::{Entry, File, Lent, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Credentials, Error, InodeNumber, Name, Result};

thread_local! {
    /// Where a read puts its bytes on the way to the kernel. Grows to the largest read, which the kernel limits.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An open file.
pub struct OpenFile {
    pub inode: InodeNumber,
    /// In passthrough mode. Dropped before the file: with the handle the kernel has closed its own.
    lent: Option<Lent>,
    file: File,
    options: OpenOptions,
    mode: Mode<BackingId>,
    /// Of an append handle: opened at the first write that has an offset of its own.
    positional: OnceLock<File>,
    /// Where it is, if it had no object when it was opened for writing.
    new_in: Option<InodeNumber>,
    who: Credentials,
}

/// What is asked of an open.
struct Asked {
    who: Credentials,
    options: OpenOptions,
    /// Directory in which it is made.
    place: InodeNumber,
}

/// The directory of a file that is opened by its inode, for the guess whether it stays empty.
const ANYWHERE: InodeNumber = InodeNumber::from_raw(0);

/// What is told of an open.
pub struct Opened {
    pub handle: u64,
    pub flags: FopenFlags,
    /// There when the kernel reads and writes the object itself.
    pub backing: Option<Arc<BackingId>>,
}

/// Registers a descriptor with the kernel.
pub type RegisterBacking<'a> = &'a dyn Fn(BorrowedFd<'_>) -> io::Result<BackingId>;

impl Front {
    pub fn open(
        &self,
        caller: Caller,
        inode: InodeNumber,
        flags: OpenFlags,
        register: RegisterBacking<'_>,
    ) -> Result<Opened> {
        let who = self.who(caller);
        let mut options = self.options(flags);
        let file = match self.client.open(&who, inode, options) {
            // Readable to nobody but the kernel's wish above.
            Err(Error::AccessDenied)
                if options.access == Access::ReadWrite && flags.acc_mode() == OpenAccMode::O_WRONLY =>
            {
                options.access = Access::Write;
                self.client.open(&who, inode, options)?
            }
            result => result?,
        };
        let asked = Asked { who, options, place: ANYWHERE };
        self.opened(file, asked, None, register)
    }

    pub fn create(
        &self,
        caller: Caller,
        parent: InodeNumber,
        name: &Name,
        mode: u16,
        flags: i32,
        register: RegisterBacking<'_>,
    ) -> Result<(Entry, Opened)> {
        let who = self.who(caller);
        let flags = OpenFlags(flags);
        let options = self.options(flags);
        let create = CreateFile { mode, exclusive: convert::exclusive(flags.0) };
        let (file, entry) = self.client.open_at(&who, parent, name, options, Some(create))?;
        let asked = Asked { who, options, place: parent };
        let opened = self.opened(file, asked, Some(Stamp::of(&entry.attributes)), register)?;
        Ok((entry, opened))
    }

    /// What `open` asks for. A kernel that writes back on its own also reads through handles that are for writing only:
    /// it fills up pages that were written in part.
    fn options(&self, flags: OpenFlags) -> OpenOptions {
        let mut options = convert::open_options(flags);
        if self.settings().writeback && options.access == Access::Write {
            options.access = Access::ReadWrite;
        }
        options
    }

    /// Contents as they are now. Under a data lease the client knows, with no message.
    fn stamp(&self, who: &Credentials, inode: InodeNumber) -> Option<Stamp> {
        self.client.attributes(who, inode).ok().map(|entry| Stamp::of(&entry.attributes))
    }

    /// Chooses the mode of a file that the client opened, and gives it a number.
    fn opened(&self, file: File, asked: Asked, stamp: Option<Stamp>, register: RegisterBacking<'_>) -> Result<Opened> {
        let inode = file.inode();
        let is_new = asked.options.access.writes() && self.settings().passthrough && !file.has_object();
        let new_in = is_new.then_some(asked.place);
        let (mode, lent) = self.choose_mode(&file, &asked, new_in, stamp, register);
        let Asked { who, options, .. } = asked;
        let flags = open_flags(&mode, options.access);
        let backing = match &mode {
            Mode::Passthrough(backing) | Mode::Joined(backing) => Some(backing.clone()),
            Mode::Direct | Mode::Cached { .. } => None,
        };
        let positional = OnceLock::new();
        let open_file = Arc::new(OpenFile { inode, lent, file, options, mode, positional, new_in, who });
        match self.files.insert(open_file.clone()) {
            Ok(handle) => Ok(Opened { handle, flags, backing }),
            Err(error) => {
                self.modes.end(inode, &open_file.mode);
                open_file.close().and(Err(error))
            }
        }
    }

    /// The mode, and with passthrough the kernel's use of the object.
    fn choose_mode(
        &self,
        file: &File,
        asked: &Asked,
        new_in: Option<InodeNumber>,
        stamp: Option<Stamp>,
        register: RegisterBacking<'_>,
    ) -> (Mode<BackingId>, Option<Lent>) {
        let inode = file.inode();
        let phase = self.modes.phase(inode);
        let mut lent = if self.may_pass(asked, new_in, phase) { file.lend() } else { None };
        let writes = asked.options.access.writes();
        let is_lent = lent.as_ref().is_some_and(|lent| !writes || lent.may_write());
        let backing = match &lent {
            Some(lent) if is_lent && phase == Phase::Closed => self.register(lent, register),
            _ => None,
        };
        // Of an append the kernel's pages would make several requests, between which another client's may come.
        let buffered = !self.settings().direct && !asked.options.direct && !asked.options.append;
        let cached = buffered && file.may_cache();
        // Of no use to a file that begins in passthrough mode, and it may cost a message.
        let ask_stamp = || stamp.or_else(|| if cached { self.stamp(&asked.who, inode) } else { None });
        let stamp = if backing.is_some() || phase == Phase::Passthrough { None } else { ask_stamp() };
        let wish = Wish { cached, stamp, lent: is_lent };
        let mode = match backing {
            Some(backing) => self.modes.begin_with_backing(inode, wish, backing),
            None => self.modes.begin(inode, wish),
        };
        if !matches!(mode, Mode::Passthrough(_)) {
            lent = None;
        }
        (mode, lent)
    }

    /// Whether the object's descriptor is to be asked for.
    fn may_pass(&self, asked: &Asked, new_in: Option<InodeNumber>, phase: Phase) -> bool {
        let possible = self.settings().passthrough && !self.passthrough_refused.load(Ordering::Relaxed);
        possible
            && !asked.options.direct
            && match phase {
                Phase::Closed => new_in.is_none_or(|place| self.new_files.will_be_written(place, Instant::now())),
                Phase::Passthrough => true,
                Phase::Other => false,
            }
    }

    fn register(&self, lent: &Lent, register: RegisterBacking<'_>) -> Option<BackingId> {
        match register(lent.descriptor()) {
            Ok(backing) => Some(backing),
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied
                    && !self.passthrough_refused.swap(true, Ordering::Relaxed)
                {
                    tracing::info!("files are not passed through: the kernel does not allow it to this process");
                }
                tracing::debug!("a file is not passed through: {error}");
                None
            }
        }
    }

    /// Reads and hands the bytes to `reply`, which runs before anything is dropped from the kernel's pages.
    pub fn read(&self, handle: u64, offset: u64, bytes: u32, reply: impl FnOnce(Result<&[u8]>)) {
        let open_file = match self.files.get(handle) {
            Ok(open_file) => open_file,
            Err(error) => return reply(Err(error)),
        };
        let mut reply = Some(reply);
        let mut give = |bytes: &[u8]| {
            if let Some(reply) = reply.take() {
                reply(Ok(bytes));
            }
        };
        open_file.file.read_in_place(bytes as usize, offset, &mut give);
        if let Some(reply) = reply {
            read_by_copy(&open_file, offset, bytes as usize, reply);
        }
        self.after_transfer(&open_file, offset, u64::from(bytes));
    }

    /// Writes all bytes.
    pub fn write(&self, handle: u64, offset: u64, bytes: &[u8], by: WrittenBy) -> Result<Arc<OpenFile>> {
        let open_file = self.files.get(handle)?;
        open_file.write(self, offset, bytes, by)?;
        let is_cached = matches!(open_file.mode, Mode::Cached { .. });
        if by == (WrittenBy::Program { synced: true }) && !is_cached {
            open_file.file.sync()?;
        }
        Ok(open_file)
    }

    /// Call it after the reply to a read or write: drops what it left in the kernel's pages without a lease.
    pub fn after_transfer(&self, open_file: &OpenFile, offset: u64, bytes: u64) {
        if matches!(open_file.mode, Mode::Cached { .. }) && !open_file.file.may_cache() {
            self.caches.drop_range(open_file.inode, offset, bytes);
        }
    }

    pub fn flush(&self, handle: u64) -> Result<()> {
        let open_file = self.files.get(handle)?;
        open_file.each(File::flush)
    }

    pub fn sync(&self, handle: u64) -> Result<()> {
        let open_file = self.files.get(handle)?;
        open_file.each(File::sync)
    }

    pub fn release(&self, handle: u64) -> Result<()> {
        let open_file = self.files.remove(handle)?;
        self.finish(&open_file)
    }

    /// Closes what is still open at the end of a mount.
    pub fn release_all(&self) {
        for open_file in self.files.drain() {
            if let Err(error) = self.finish(&open_file) {
                tracing::warn!("inode {}, which was still open: {error}", open_file.inode);
            }
        }
        drop(self.directories.drain());
    }

    fn finish(&self, open_file: &OpenFile) -> Result<()> {
        let keeps_pages = matches!(open_file.mode, Mode::Cached { .. }) && open_file.options.access.writes();
        if keeps_pages && open_file.file.may_cache() && open_file.file.flush().is_ok() {
            // The pages hold what was written here: after this, they are good for the next open.
            if let Some(stamp) = self.stamp(&open_file.who, open_file.inode) {
                self.modes.written(open_file.inode, stamp);
            }
        }
        if let Some(place) = open_file.new_in {
            // With a kernel's writes the size costs no message.
            let size = if open_file.lent.is_some() { open_file.file.size() } else { Ok(1) };
            let is_empty = size == Ok(0) || !open_file.file.has_object();
            self.new_files.closed(place, is_empty, Instant::now());
        }
        let closed = open_file.close();
        self.modes.end(open_file.inode, &open_file.mode);
        closed
    }
}

impl OpenFile {
    fn write(&self, front: &Front, offset: u64, bytes: &[u8], by: WrittenBy) -> Result<()> {
        if self.options.append && by == WrittenBy::PageCache {
            self.positional(front)?.write_at(bytes, offset)
        } else {
            self.file.write_at(bytes, offset)
        }
    }

    fn positional(&self, front: &Front) -> Result<&File> {
        if let Some(file) = self.positional.get() {
            return Ok(file);
        }
        let options = OpenOptions { access: Access::Write, truncate: false, append: false, ..self.options };
        let file = front.client.open(&self.who, self.inode, options)?;
        if let Err(second) = self.positional.set(file) {
            second.close()?;
        }
        self.positional.get().ok_or(Error::BadHandle)
    }

    /// Does it on each of the one or two handles; the first error counts.
    fn each(&self, operation: impl Fn(&File) -> Result<()>) -> Result<()> {
        let first = operation(&self.file);
        let second = self.positional.get().map_or(Ok(()), operation);
        first.and(second)
    }

    fn close(&self) -> Result<()> {
        self.each(|file| file.clone().close())
    }
}

/// Reads into memory of this thread.
fn read_by_copy(open_file: &OpenFile, offset: u64, bytes: usize, reply: impl FnOnce(Result<&[u8]>)) {
    READ_BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let buffer = &mut buffer[..bytes];
        let count = open_file.file.read_at(buffer, offset);
        reply(count.map(|count| &buffer[..count]));
    });
}

/// What the kernel is told of a mode.
fn open_flags(mode: &Mode<BackingId>, access: Access) -> FopenFlags {
    let mut flags = match mode {
        Mode::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        Mode::Cached { keep: true } => FopenFlags::FOPEN_KEEP_CACHE,
        Mode::Cached { keep: false } | Mode::Passthrough(_) => FopenFlags::empty(),
        // Beside the flag of passthrough, this one counts.
        Mode::Joined(_) => FopenFlags::FOPEN_DIRECT_IO,
    };
    if !access.writes() {
        // Nothing to flush: one message less at each close. Linux ignores it on a mount with write-back.
        flags |= FopenFlags::FOPEN_NOFLUSH;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_the_kernel_knows_them() {
        let check = |mode, access, expected: FopenFlags| assert_eq!(open_flags(&mode, access), expected);
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        check(Mode::Direct, Access::ReadWrite, direct);
        check(Mode::Direct, Access::Read, direct | FopenFlags::FOPEN_NOFLUSH);
        check(Mode::Cached { keep: true }, Access::Write, FopenFlags::FOPEN_KEEP_CACHE);
        check(Mode::Cached { keep: false }, Access::Write, FopenFlags::empty());
    }
}
