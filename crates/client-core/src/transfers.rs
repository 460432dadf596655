//! Reads and writes of a file's bytes, cut into requests: to the object that has them, and none too long.

use crate::data_line::DataLine;
use crate::file_objects::{FileObjects, Held};
use crate::notice::Notice;
use crate::objects::{ObjectWrite, Objects, Registration, request, void_with_session};
use crate::shell::Shell;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::limits::{BULK_BYTES_MAX, FILE_BYTES_MAX};
use weft_protocol::{Error, InodeNumber, Result};

/// How often the objects of a file are looked at until they stay the same.
const LOOKS_MAX: usize = 8;

/// How many of `bytes` at `offset` lie within a file of this size.
pub(crate) fn within(size: u64, offset: u64, bytes: usize) -> usize {
    let left = size.saturating_sub(offset);
    usize::try_from(left).map_or(bytes, |left| left.min(bytes))
}

/// The end of a write, if a file may be that long.
pub(crate) fn end_of(offset: u64, bytes: usize) -> Result<u64> {
    offset.checked_add(bytes as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)
}

impl<S: Shell> Objects<S> {
    /// Reads from the storage servers straight into memory; `pages`: and into pages that no lease covers. Returns how
    /// many bytes the file has of it.
    pub(crate) async fn read_objects(
        &self,
        (inode, objects, pages): (InodeNumber, &FileObjects, bool),
        into: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<usize> {
        if !objects.is_striped() {
            return self.read_object((inode, objects.first(), pages), into, offset, registration).await;
        }
        if pages {
            self.calls.session.noted_pages.note_striped(inode);
        }
        if self.read_pieces((inode, objects, pages), into, offset, registration).await? {
            return Ok(into.len());
        }
        // What is missing is a hole, or behind the file's end.
        let size = self.stat_objects(inode, objects).await?.size;
        Ok(within(size, offset, into.len()))
    }

    /// Reads bytes that lie within the file, as a lease vouches for its size: what no object has of them is a hole.
    pub(crate) async fn read_within(
        &self,
        (inode, objects): (InodeNumber, &FileObjects),
        into: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<()> {
        if registration.is_none() && self.read_together((inode, objects), into, offset).await {
            return Ok(());
        }
        self.read_pieces((inode, objects, false), into, offset, registration).await.map(drop)
    }

    /// Reads what each object has of a range, and zeros for the rest. Returns whether they had all of it.
    async fn read_pieces(
        &self,
        (inode, objects, pages): (InodeNumber, &FileObjects, bool),
        into: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<bool> {
        let mut has_all = true;
        for piece in objects.stripes().pieces(offset, into.len()) {
            let from = (inode, objects.at(piece.index), pages);
            let part = &mut into[piece.start..piece.end()];
            let have = self.read_object(from, part, piece.object_offset, registration).await?;
            has_all &= have == part.len();
            part[have..].fill(0);
        }
        Ok(has_all)
    }

    /// Returns how many bytes the object has of it.
    pub(crate) async fn read_object(
        &self,
        (inode, held, pages): (InodeNumber, Held, bool),
        into: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<usize> {
        let mut have = 0;
        for part in into.chunks_mut(BULK_BYTES_MAX as usize) {
            let request = request(inode, DataOperation::Read, held, offset + have as u64, part.len());
            let request = DataRequest { pages, ..request };
            let count = self.data_read(&request, part, registration).await?.bulk_bytes as usize;
            have += count;
            if count < part.len() {
                break;
            }
        }
        Ok(have)
    }

    /// Writes straight from memory. Returns the last reply; of several objects size and time of the file, as far as
    /// their replies tell.
    pub(crate) async fn write_object(
        &self,
        write: &mut ObjectWrite,
        bytes: &[u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        let objects = write.objects.clone();
        if !objects.is_striped() {
            return self.write_part(write, objects.first(), bytes, offset, registration).await;
        }
        assert!(write.operation == DataOperation::Write, "{:?} to a striped file", write.operation);
        if write.pages {
            self.calls.session.noted_pages.note_striped(write.inode);
        } else if registration.is_none()
            && let Some(file) = self.write_together(write, bytes, offset).await?
        {
            return Ok(file);
        }
        let mut file = DataReply::default();
        for piece in objects.stripes().pieces(offset, bytes.len()) {
            let part = &bytes[piece.start..piece.end()];
            let held = objects.at(piece.index);
            let reply = self.write_part(write, held, part, piece.object_offset, registration).await?;
            file = together(&file, &objects, piece.index, &reply);
        }
        Ok(file)
    }

    /// As [`Objects::write_object`], of ranges, each its bytes and an offset.
    pub(crate) async fn write_ranges(
        &self,
        write: &mut ObjectWrite,
        list: &[(&[u8], u64)],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        if list.len() > 1 && registration.is_none() {
            return self.write_list_together(write, list).await;
        }
        let mut file = DataReply::default();
        for (bytes, offset) in list {
            let reply = self.write_object(write, bytes, *offset, registration).await?;
            file = DataReply { size: file.size.max(reply.size), mtime: file.mtime.max(reply.mtime), ..reply };
        }
        Ok(file)
    }

    /// As [`Objects::write_ranges`], made again as it is for as long as pages are in its way: where an append goes is
    /// decided. They are of files that are closed, and dropping them waits for nobody.
    pub(crate) async fn write_past_pages(
        &self,
        write: &mut ObjectWrite,
        list: &[(&[u8], u64)],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        loop {
            match self.write_ranges(write, list, registration).await {
                // Of an append that is several requests some may have landed: it is not made again.
                Err(Error::PagesCached) if write.operation == DataOperation::Append && write.may_have_landed => {
                    return Err(Error::PagesCached);
                }
                Err(Error::PagesCached) => self.calls.wait_for_pages().await,
                result => return result,
            }
        }
    }

    pub(crate) async fn write_part(
        &self,
        write: &mut ObjectWrite,
        held: Held,
        bytes: &[u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        let (inode, operation) = (write.inode, write.operation);
        let pages = write.pages && operation == DataOperation::Write;
        let mut position = offset;
        let mut last = DataReply::default();
        for part in bytes.chunks(BULK_BYTES_MAX as usize) {
            let request = request(inode, operation, held, position, part.len());
            let request = DataRequest { pages, ..request };
            last = self.data_write_once(&request, part, registration, &mut write.may_have_landed).await?;
            write.may_have_landed |= !part.is_empty();
            position += part.len() as u64;
        }
        Ok(last)
    }

    /// Size and modification time that a file's objects give it.
    pub(crate) async fn stat_objects(&self, inode: InodeNumber, objects: &FileObjects) -> Result<DataReply> {
        let mut before = Vec::new();
        // While another client cuts the file, some of its objects have their old size, and some the new one: together
        // they may be those of no moment. Once two looks find the same, all were so between these (a double collect:
        // Afek et al., Atomic Snapshots of Shared Memory, 1993). Writers that go on only make the file longer.
        for _ in 0..LOOKS_MAX {
            let seen = self.ask_each(inode, objects, DataOperation::Stat).await?;
            if !objects.is_striped() || seen == before {
                before = seen;
                break;
            }
            before = seen;
        }
        let replies = before.iter().enumerate();
        Ok(replies.fold(DataReply::default(), |file, (index, reply)| together(&file, objects, index, reply)))
    }

    /// Brings the objects' bytes to their devices.
    pub(crate) async fn sync_objects(&self, inode: InodeNumber, objects: &FileObjects) -> Result<()> {
        self.ask_each(inode, objects, DataOperation::Sync).await.map(drop)
    }

    /// Sends each of a file's objects a request without bytes, and returns their replies. Those of a striped file work
    /// on it at the same time.
    async fn ask_each(
        &self,
        inode: InodeNumber,
        objects: &FileObjects,
        operation: DataOperation,
    ) -> Result<Vec<DataReply>> {
        let requests: Vec<_> = objects.iter().map(|held| request(inode, operation, held, 0, 0)).collect();
        let mut lines = Vec::new();
        for request in &requests {
            lines.push(if objects.is_striped() { self.ask_one(request).await } else { None });
        }
        let mut told = Vec::new();
        for line in lines {
            told.push(match line {
                Some(line) => self.reply_of_one(line).await,
                None => None,
            });
        }
        let mut replies = Vec::new();
        for (request, reply) in requests.iter().zip(told) {
            replies.push(match reply {
                Some(reply) => reply.result().copied().map_err(void_with_session)?,
                // A connection was not to be had without waiting for it, or has failed. None is held now.
                None => self.data_write(request, &[], None).await?,
            });
        }
        Ok(replies)
    }

    /// Sends a request without bytes. `None`: it has to be sent otherwise.
    async fn ask_one(&self, request: &DataRequest) -> Option<DataLine<S>> {
        let mut line = self.data_connection_to_keep(request.object.node()).await.ok().flatten()?;
        if line.registers_memory() {
            line.give_back(&self.calls.shell);
            return None;
        }
        self.calls.shell.notice(Notice::DataRequest);
        line.start_write(request, Vec::new()).await.is_ok().then_some(line)
    }

    async fn reply_of_one(&self, mut line: DataLine<S>) -> Option<DataReply> {
        let (_, reply) = line.finish().await.expect("a request was sent");
        let reply = reply.ok()?;
        line.give_back(&self.calls.shell);
        Some(reply)
    }
}

/// What is known of a file when one more of its objects has replied.
pub(crate) fn together(file: &DataReply, objects: &FileObjects, index: usize, reply: &DataReply) -> DataReply {
    DataReply {
        size: file.size.max(objects.stripes().file_end(index, reply.size)),
        mtime: file.mtime.max(reply.mtime),
        ..*file
    }
}
