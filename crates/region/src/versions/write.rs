//! Writing commits.

use super::commit::{Commit, ENTRIES_MAX, Entry, Kind, sequence_of, version_of};
use super::compact::Placed;
use super::index::State;
use super::nanoseconds;
use super::object::{AHEAD, Inner, Log, read, write};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::layer::take_front;
use crate::{BLOCK, BLOCK_BYTES, as_index, lock};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// The part of the free blocks that one object maps ahead at most.
const SPARE_PART: u64 = 64;

/// Why there is a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A write: the next version, of now.
    Write,
    /// The cleaner moves data.
    Move,
    /// A part of a version comes.
    Part,
    /// The rest of it comes: sequence and time.
    Receive(u64, u64),
}

/// What a commit is to say.
pub(super) struct Change<'a> {
    pub cause: Cause,
    /// Those of a write have no version yet.
    pub entries: Vec<Entry>,
    /// Whole blocks, those of all entries that have data.
    pub data: Vec<&'a [u8]>,
    pub size: u64,
    /// Those that are moved, block by block.
    pub moved: &'a [Placed],
}

impl Inner {
    /// Bytes that an object can have: what is in its ring, and some for each commit, is less.
    pub fn capacity(&self) -> u64 {
        self.ring * BLOCK
    }

    /// Blocks of data that one commit can have, so that there is room to move it.
    pub fn commit_max(&self) -> u64 {
        self.ring / 16
    }

    /// The right to commit.
    pub fn log(&self) -> Result<MutexGuard<'_, Log>> {
        let log = lock(&self.log);
        self.there()?;
        Ok(log)
    }

    /// Writes ranges of bytes, none of which overlap, as one version.
    pub fn write(&self, parts: &[(u64, &[u8])], durable: bool) -> Result<u64> {
        self.shared.checkpoint_if_much()?;
        let parts: Vec<(u64, &[u8])> = parts.iter().copied().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let mut log = self.log()?;
        let head = read(&self.state).head;
        let (mut entries, mut whole, mut size) = (Vec::new(), Vec::new(), head.size);
        for (offset, bytes) in &parts {
            let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.capacity());
            let end = end.ok_or(Error::Beyond)?;
            let blocks = offset / BLOCK..end.div_ceil(BLOCK);
            whole.push(self.completed(*offset, bytes, &blocks)?);
            let count = blocks.end - blocks.start;
            entries.push(Entry { first: blocks.start, version: 0, count, has_data: true });
            size = size.max(end);
        }
        let data = parts.iter().zip(&whole).map(|((_, bytes), whole)| whole.as_deref().unwrap_or(bytes)).collect();
        self.append(&mut log, Change { cause: Cause::Write, entries, data, size, moved: &[] }, durable).map(version_of)
    }

    /// Whole blocks of what a write has parts of: the rest is as it is now. `None`: they are whole.
    fn completed(&self, offset: u64, bytes: &[u8], blocks: &Range<u64>) -> Result<Option<AlignedBuffer>> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        if offset == start && offset + bytes.len() as u64 == end {
            return Ok(None);
        }
        let mut buffer = AlignedBuffer::new(usize::try_from(end - start).map_err(|_| Error::Beyond)?);
        let last = buffer.len() - BLOCK_BYTES;
        self.read_now(start, &mut buffer[..BLOCK_BYTES])?;
        if last > 0 {
            self.read_now(end - BLOCK, &mut buffer[last..])?;
        }
        let at = usize::try_from(offset - start).map_err(|_| Error::Beyond)?;
        let place = buffer.get_mut(at..at + bytes.len()).ok_or(Error::Beyond)?;
        place.copy_from_slice(bytes);
        Ok(Some(buffer))
    }

    /// A version in which a range is zeros, and the size is another.
    pub fn clear(&self, range: Range<u64>, size_of: impl FnOnce(u64) -> u64) -> Result<u64> {
        self.shared.checkpoint_if_much()?;
        let mut log = self.log()?;
        let head = read(&self.state).head;
        let size = size_of(head.size);
        if size > self.capacity() {
            return Err(Error::Beyond);
        }
        let range = range.start.min(head.size)..range.end.min(head.size);
        let inner = range.start.div_ceil(BLOCK)..range.end.max(range.start).div_ceil(BLOCK);
        // What is behind the end reads zeros: the last block goes as a whole.
        let inner_end = if range.end == head.size { inner.end } else { range.end / BLOCK };
        let edges = [range.start..range.end.min(inner.start * BLOCK), (inner_end * BLOCK).max(range.start)..range.end];
        let (mut entries, mut blocks) = (Vec::new(), Vec::new());
        for edge in edges.into_iter().filter(|edge| edge.start < edge.end) {
            let first = edge.start / BLOCK;
            if entries.iter().any(|entry: &Entry| entry.first == first) {
                continue;
            }
            let zeros = vec![0; usize::try_from(edge.end - edge.start).map_err(|_| Error::Beyond)?];
            blocks.extend(self.completed(edge.start, &zeros, &(first..first + 1))?);
            entries.push(Entry { first, version: 0, count: 1, has_data: true });
        }
        if inner.start < inner_end {
            let count = inner_end - inner.start;
            entries.push(Entry { first: inner.start, version: 0, count, has_data: false });
        }
        let data = blocks.iter().map(|block| &block[..]).collect();
        self.append(&mut log, Change { cause: Cause::Write, entries, data, size, moved: &[] }, false).map(version_of)
    }

    /// Kind, sequence and time of the next commit.
    fn next(&self, head: &State, cause: Cause, entries: &[Entry]) -> Result<(Kind, u64, u64)> {
        let between = head.sequence.checked_add(1).ok_or(Error::NoVersion)?;
        let (kind, sequence, time) = match cause {
            Cause::Write => {
                let time = nanoseconds(SystemTime::now()).max(head.time);
                (Kind::Written, sequence_of(version_of(head.sequence) + 1)?, time)
            }
            // Times ascend with sequences, also when versions come that were written elsewhere, and earlier.
            Cause::Move => (Kind::Moved, between, head.time),
            Cause::Part => (Kind::Part, between, head.time),
            Cause::Receive(sequence, time) => (Kind::Written, sequence, time),
        };
        let newest = entries.iter().map(|entry| entry.version).max().unwrap_or(0);
        match cause {
            // Later versions would have what the parts have.
            Cause::Write if head.parts.0 != 0 => Err(Error::PartOfVersion(self.id)),
            // The version that it is a part of is to come behind it.
            Cause::Part if sequence >= newest => Err(self.not_next(newest)),
            Cause::Receive(..)
                if sequence <= head.sequence || newest.max(head.parts.0) > sequence || time < head.time =>
            {
                Err(self.not_next(sequence))
            }
            _ => Ok((kind, sequence, time)),
        }
    }

    fn not_next(&self, sequence: u64) -> Error {
        let (id, version) = (self.id, version_of(sequence));
        Error::OtherObject(format!("version {version} of object {id} does not go on from what is there"))
    }

    /// Writes a commit behind all others. Its sequence.
    pub fn append(&self, log: &mut Log, change: Change<'_>, durable: bool) -> Result<u64> {
        let head = read(&self.state).head;
        let mut entries = change.entries;
        let (kind, sequence, time) = self.next(&head, change.cause, &entries)?;
        if change.cause == Cause::Write {
            check_entries(&entries)?;
            entries.iter_mut().for_each(|entry| entry.version = sequence);
        }
        let data_blocks: u64 = entries.iter().filter(|entry| entry.has_data).map(|entry| entry.count).sum();
        let blocks = u32::try_from(data_blocks + 1).ok().filter(|_| data_blocks <= self.commit_max());
        let blocks = blocks.ok_or(Error::TooLarge(self.commit_max() * BLOCK))?;
        // The rest is for the cleaner, which makes more of it.
        let limit = head.tail + if kind == Kind::Moved { self.ring } else { self.ring / 8 * 7 };
        self.map_ahead(log, head.position + u64::from(blocks), limit)?;
        let commit = Commit {
            kind,
            nonce: head.nonce,
            opening: self.shared.opening,
            sequence,
            parent: head.parent,
            chain: head.chain,
            data_checksum: change.data.iter().fold(0, |checksum, part| crc32c::crc32c_append(checksum, part)),
            blocks,
            size: change.size,
            time,
            safe: self.safe.load(Ordering::Relaxed),
            position: head.position,
            entries,
        };
        let checksum = commit.encode(&mut log.block);
        let mut parts = vec![&log.block[..]];
        parts.extend(change.data);
        // It counts only if all before it do: the device's own durable write says nothing of those.
        // Before the first one the object itself may be in memory only.
        let is_alone = head.sequence > 0 && self.safe.load(Ordering::Relaxed) == head.sequence;
        let written = self.write_positions(head.position, parts, durable && is_alone);
        let written = written.and_then(|()| if durable && !is_alone { self.shared.layer.sync() } else { Ok(()) });
        written.inspect_err(|_| self.abandon_checked(log, head.position))?;
        let before = {
            let mut now = write(&self.state);
            let before = now.active.len();
            self.note(&mut now, head.position, &commit, checksum);
            Self::move_leaves(&mut now, change.moved, head.position + 1);
            now.active.len() - before
        };
        self.shared.note_recent(before);
        self.shared.layer.note_written(&self.written, sequence);
        if durable {
            self.note_safe(sequence);
        }
        Ok(sequence)
    }

    fn write_positions(&self, position: u64, mut parts: Vec<&[u8]>, durable: bool) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        for range in self.addresses(position..position + bytes as u64 / BLOCK) {
            let bytes = as_index(range.end - range.start);
            let some = take_front(&mut parts, bytes);
            self.shared.layer.write_over(range.start, &some, durable)?;
        }
        Ok(())
    }

    /// Maps positions up to `end`, and some more.
    fn map_ahead(&self, log: &mut Log, end: u64, limit: u64) -> Result<()> {
        if end > limit {
            return Err(Error::RingFull(self.id));
        }
        if end <= log.mapped_to {
            return Ok(());
        }
        let from = log.mapped_to;
        // Many objects may do so.
        let spare = self.shared.layer.usage().free / BLOCK / SPARE_PART;
        let far = end.max(from + log.ahead.min(spare)).min(limit);
        let mapped = match self.map(log, from..far) {
            Err(Error::NoSpace | Error::TooManyPieces) if far > end => {
                // What lies before the ring's end may be mapped already.
                let from = log.mapped_to;
                self.map(log, from..end.max(from))
            }
            mapped => mapped,
        };
        log.ahead = (log.ahead * 2).min(AHEAD.end);
        mapped
    }

    fn map(&self, log: &mut Log, positions: Range<u64>) -> Result<()> {
        for range in self.addresses(positions) {
            self.shared.layer.reserve(range.start / BLOCK..range.end / BLOCK)?;
            log.mapped_to += (range.end - range.start) / BLOCK;
        }
        Ok(())
    }

    /// Takes back what is mapped ahead. `true`: there was some, which is free after the next sync.
    pub fn unmap_ahead(&self) -> Result<bool> {
        let mut log = self.log()?;
        let head = read(&self.state).head.position;
        let ahead = head..log.mapped_to.max(head);
        // Also when not all of it can be unmapped: what is mapped anew may be mapped.
        (log.mapped_to, log.ahead) = (head, AHEAD.start);
        if ahead.is_empty() {
            return Ok(false);
        }
        self.addresses(ahead).try_for_each(|range| self.shared.layer.trim(range))?;
        Ok(true)
    }

    /// Lets go of the blocks mapped from the head on if one of them has a checksum: of a commit that does not count,
    /// since its write failed or a crash cut it off. Another commit written over it would not match that checksum until
    /// its own is durable, and a crash before that would look like damage.
    pub fn abandon_checked(&self, log: &mut Log, head: u64) {
        let ahead = head..log.mapped_to.max(head);
        let has_sums = |range: Range<u64>| self.shared.layer.has_sums(range);
        // What cannot be told may have some.
        if !self.addresses(ahead.clone()).any(|range| has_sums(range).unwrap_or(true)) {
            return;
        }
        // The next commit maps blocks anew. Those that cannot be unmapped now are replaced then.
        (log.mapped_to, log.ahead) = (head, AHEAD.start);
        for range in self.addresses(ahead) {
            if let Err(error) = self.shared.layer.trim(range) {
                tracing::warn!(object = self.id, %error, "blocks of a commit that was not written stay mapped");
            }
        }
    }

    /// All commits are safe when this returns.
    pub fn sync(&self) -> Result<()> {
        let sequence = {
            let _log = self.log()?;
            read(&self.state).head.sequence
        };
        self.shared.layer.sync()?;
        self.note_safe(sequence);
        Ok(())
    }
}

fn check_entries(entries: &[Entry]) -> Result<()> {
    if entries.len() > ENTRIES_MAX {
        return Err(Error::TooManyPieces);
    }
    let mut ranges: Vec<Range<u64>> = entries.iter().map(|entry| entry.first..entry.first + entry.count).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    if ranges.windows(2).any(|pair| matches!(pair, [one, next] if next.start < one.end)) {
        return Err(Error::Setting("two parts of one version in the same block".to_owned()));
    }
    Ok(())
}
