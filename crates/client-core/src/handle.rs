//! An open file's handle: reads and writes.
//!
//! Ways that bytes take, the shortest that is open first: gathered bytes in this process; a descriptor of the
//! object's file (same machine, under a lease); prefetched bytes; straight between the caller's memory and the
//! server.
//!
//! Lock order: `reader` (0) is taken before the inode's state, and held across this handle's own prefetch requests
//! and while bytes are handed out.

use crate::lists::{ReadList, read_one_by_one};
use crate::objects::{Objects, Registration};
use crate::open_inode::{OpenInode, ReadVia, Written};
use crate::open_options::OpenOptions;
use crate::page_drops::Coverage;
use crate::reader::Reader;
use crate::shell::{Monitor, Shell};
use crate::transfers::within;
use std::sync::{Arc, Mutex, OnceLock};
use weft_protocol::{Credentials, Error, LockOwner, Result};

/// A handle. To be closed with `Files::close_handle`.
pub struct Handle<S: Shell> {
    pub open: Arc<OpenInode<S>>,
    pub options: OpenOptions<Registration<S>>,
    /// Who opened it.
    pub who: Arc<Credentials>,
    pub(crate) reader: S::Monitor<Reader<S>>,
    /// Number of the owner of its own locks.
    pub(crate) owner: OnceLock<u64>,
    /// Owners that have locked something by this handle, and have not closed it. A leaf.
    pub(crate) lock_owners: Mutex<Vec<LockOwner>>,
}

impl<S: Shell> Handle<S> {
    pub(crate) fn new(open: Arc<OpenInode<S>>, options: OpenOptions<Registration<S>>, who: Arc<Credentials>) -> Self {
        let (reader, owner, lock_owners) = (S::Monitor::new(Reader::new()), OnceLock::new(), Mutex::default());
        Self { open, options, who, reader, owner, lock_owners }
    }

    /// Fills a small buffer, if all of it is at hand and still good: what a sequential reader does most of the time,
    /// without the state of a procedure.
    pub fn read_at_hand(&self, io: &Objects<S>, buffer: &mut [u8], offset: u64) -> bool {
        self.options.access.reads()
            && !io.calls.locks.has_lost()
            && buffer.len() <= io.tuning.small_bytes
            && self.reader.try_lock().is_some_and(|mut reader| {
                reader.has(offset) && reader.read_at_hand(self.open.version_now(io), buffer, offset)
            })
    }

    /// Writes a small buffer into the run that is being gathered, if it continues the run and the lease covers it:
    /// what a sequential writer does most of the time, without the state of a procedure.
    pub fn write_at_hand(&self, io: &Objects<S>, bytes: &[u8], offset: u64) -> bool {
        let OpenOptions { access, append, direct, .. } = self.options;
        let writes = access.writes() && !io.calls.locks.has_lost() && !self.open.has_set_id(&self.who);
        writes && !append && !direct && self.open.write_at_hand(io, bytes, offset)
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub async fn read_at(&self, io: &Objects<S>, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_into(io, buffer, offset, false).await.map(|(count, _)| count)
    }

    /// As [`Handle::read_at`], into pages of a kernel; also returns what vouches for them.
    pub async fn read_pages(&self, io: &Objects<S>, buffer: &mut [u8], offset: u64) -> Result<(usize, Coverage)> {
        self.read_into(io, buffer, offset, true).await
    }

    async fn read_into(
        &self,
        io: &Objects<S>,
        buffer: &mut [u8],
        offset: u64,
        pages: bool,
    ) -> Result<(usize, Coverage)> {
        if !self.options.access.reads() {
            return Err(Error::BadHandle);
        }
        if self.read_at_hand(io, buffer, offset) {
            return Ok((buffer.len(), Coverage::Lease));
        }
        self.check_locks(&io.calls)?;
        let began = io.calls.session.id();
        let mut result = self.read(io, buffer, offset, pages).await;
        if let Err(Error::NoObject | Error::CapabilityRejected) = result {
            self.open.right_is_void().await;
            result = self.read(io, buffer, offset, pages).await;
        }
        self.open.with_cause(io, began, result).await
    }

    /// Reads pieces, in their order, until the end of the file cuts one. Returns the sum of bytes.
    pub async fn read_list(&self, io: &Objects<S>, list: &mut dyn ReadList) -> Result<usize> {
        let ranges = list.ranges();
        match self.read_list_together(io, &ranges, list).await {
            Some(count) => Ok(count),
            None => read_one_by_one(&ranges, list, async |memory, offset| self.read_at(io, memory, offset).await).await,
        }
    }

    /// Reads pieces from the storage server with several requests under way. `None`: they come by another way, or one
    /// after the other.
    async fn read_list_together(
        &self,
        io: &Objects<S>,
        ranges: &[(u64, usize)],
        list: &mut dyn ReadList,
    ) -> Option<usize> {
        let OpenOptions { access, registration, .. } = self.options;
        // The caller's memory is registered for a request at a time.
        if ranges.len() < 2 || !access.reads() || registration.is_some() || io.calls.locks.has_lost() {
            return None;
        }
        let first = ranges[0].0;
        if self.reader.try_lock().is_none_or(|reader| reader.has(first)) {
            return None;
        }
        let (via, _) = self.open.read_via(io, &mut [], first).await.ok()?;
        let ReadVia::Server { objects, size } = via else { return None };
        let of = (self.open.inode, &objects);
        let size = match size {
            Some(size) => size,
            None => io.stat_objects(of.0, of.1).await.ok()?.size,
        };
        io.read_list(of, size, ranges, list).await
    }

    /// Writes all bytes at an offset (of an append handle: at the end). Errors of earlier buffered writes may show
    /// here.
    pub async fn write_at(&self, io: &Objects<S>, bytes: &[u8], offset: u64) -> Result<Written> {
        self.write_from(io, &[(bytes, offset)], self.options.registration, false).await
    }

    /// As [`Handle::write_at`], with this registration for this write.
    pub async fn write_at_with(
        &self,
        io: &Objects<S>,
        bytes: &[u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<Written> {
        self.write_from(io, &[(bytes, offset)], registration, false).await
    }

    /// Writes pieces, each its bytes and an offset, in their order, with several requests under way. Those of a split
    /// file are published together.
    pub async fn write_list(&self, io: &Objects<S>, list: &[(&[u8], u64)]) -> Result<()> {
        let may_be_together = list.len() > 1 && self.options.access.writes() && !self.options.append;
        if may_be_together && self.open.writes_together(io, &self.options).await? {
            return self.write_from(io, list, self.options.registration, false).await.map(drop);
        }
        for (bytes, offset) in list {
            if !self.write_at_hand(io, bytes, *offset) {
                self.write_at(io, bytes, *offset).await?;
            }
        }
        Ok(())
    }

    /// As [`Handle::write_at`], of bytes that stay in pages of a kernel.
    pub async fn write_pages(&self, io: &Objects<S>, bytes: &[u8], offset: u64) -> Result<Written> {
        self.write_from(io, &[(bytes, offset)], self.options.registration, true).await
    }

    async fn write_from(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        registration: Option<Registration<S>>,
        pages: bool,
    ) -> Result<Written> {
        if !self.options.access.writes() {
            return Err(Error::BadHandle);
        }
        if let &[(bytes, offset)] = list
            && self.write_at_hand(io, bytes, offset)
        {
            return Ok(Written { offset, is_safe: false });
        }
        self.check_locks(&io.calls)?;
        self.open.clear_set_id(io, &self.who).await?;
        let options = OpenOptions { registration, ..self.options };
        let began = io.calls.session.id();
        let result = self.open.write(io, list, &options, pages).await;
        let result = self.open.with_cause(io, began, result).await;
        if result.is_err() {
            self.open.writer_is_told().await;
        }
        result
    }

    /// Passes bytes at an offset to `give` where they lie: in memory of a connection, to which they were prefetched;
    /// waits for those in flight. As many as [`Handle::read_at`] would read. `false`: they lie nowhere in one piece;
    /// `give` was not called, and `read_at` has to get them. `give` must not use this handle.
    pub async fn read_in_place(&self, io: &Objects<S>, bytes: usize, offset: u64, give: &mut dyn FnMut(&[u8])) -> bool {
        // A small read may find its bytes at hand; it does not wait for another reader.
        let reader =
            if bytes > io.tuning.small_bytes { Some(self.reader.lock().await) } else { self.reader.try_lock() };
        let Some(mut reader) = reader else { return false };
        if !self.options.access.reads() || io.calls.locks.has_lost() || !reader.is_next(offset) {
            return false;
        }
        let via = self.open.read_via(io, &mut [], offset).await;
        let Ok((ReadVia::Server { objects, size: Some(size) }, version)) = via else { return false };
        let bytes = within(size, offset, bytes);
        let source = self.open.source(objects, size, version, self.options.registration);
        reader.hand(io, &source, (offset, bytes), give).await
    }

    /// Current size of the file, as this handle sees it.
    pub async fn size(&self, io: &Objects<S>) -> Result<u64> {
        match self.open.known_size(io).await {
            Some(size) => Ok(size),
            None => {
                let asked = self.open.ask_attributes(io, &io.calls.caller.credentials).await?;
                if asked.size_in_doubt { Err(Error::Unreachable) } else { Ok(asked.attributes.size) }
            }
        }
    }

    async fn read(&self, io: &Objects<S>, buffer: &mut [u8], offset: u64, pages: bool) -> Result<(usize, Coverage)> {
        let Self { open, options, reader, .. } = self;
        let (via, version) = open.read_via(io, buffer, offset).await?;
        if let Some(mut reader) = reader.try_lock() {
            // Also where the file is read by other ways now: others need the connection.
            reader.at_version(io, version).await;
        }
        let lease_if = |leased| if leased { Coverage::Lease } else { Coverage::Nothing };
        let (count, coverage) = match via {
            ReadVia::Done(count) => (count, Coverage::Lease),
            ReadVia::Zeros { size, leased } => {
                let count = within(size, offset, buffer.len());
                buffer[..count].fill(0);
                (count, lease_if(leased))
            }
            ReadVia::Split(layout) => {
                let split = open.split(io, &layout, &self.who);
                (split.read_at(io, buffer, offset, options.registration).await?, Coverage::Nothing)
            }
            ReadVia::Descriptor { file, leased: true } if !options.direct && buffer.len() <= io.tuning.small_bytes => {
                (reader.lock().await.read_descriptor(io, &file, version, buffer, offset).await?, Coverage::Lease)
            }
            ReadVia::Descriptor { file, leased } => {
                (io.calls.shell.read_file(&file, buffer, offset).await?, lease_if(leased))
            }
            ReadVia::Server { objects, size: None } => {
                let from = (open.inode, &objects, pages);
                (io.read_objects(from, buffer, offset, options.registration).await?, Coverage::Noted)
            }
            ReadVia::Server { objects, size: Some(size) } => {
                let wanted = within(size, offset, buffer.len());
                let buffer = &mut buffer[..wanted];
                let have = if options.direct {
                    0
                } else {
                    let source = open.source(objects.clone(), size, version, options.registration);
                    let mut reader = match reader.try_lock() {
                        Some(reader) => reader,
                        None => {
                            let mut reader = reader.lock().await;
                            reader.note_shared();
                            reader
                        }
                    };
                    reader.read(io, &source, buffer, offset).await?
                };
                let rest = &mut buffer[have..];
                let position = offset + have as u64;
                io.read_within((open.inode, &objects), rest, position, options.registration).await?;
                (wanted, Coverage::Lease)
            }
        };
        Ok((count, coverage))
    }
}
