//! The copy of one file: whole by one worker, or in chunks by several.

use super::part::{self, Record};
use super::place::{Item, Place, Reader, Writer};
use super::{Copy, Job, Over};
use crate::failure::{Failure, Outcome};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes read and written at once: enough to go past every buffer on the way.
pub const BUFFER_BYTES: usize = 4 << 20;
/// A piece of a large file that one worker copies.
const CHUNK_BYTES: u64 = 32 << 20;
/// Files of more are copied in chunks.
const LARGE_BYTES: u64 = 2 * CHUNK_BYTES;
/// How often the record of a large copy is written.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Bytes of the next read: what is left of a range, as far as the buffer has room.
pub(super) fn step_bytes(left: u64, buffer_bytes: usize) -> usize {
    usize::try_from(left.min(buffer_bytes as u64)).expect("at most the length of a buffer")
}

/// A large file that several workers copy.
pub struct LargeCopy {
    job: Job,
    part: Place,
    record: Place,
    reader: Reader,
    writer: Writer,
    /// Where the next chunk begins.
    next: AtomicU64,
    /// Something failed: no more chunks are begun.
    failed: AtomicBool,
    /// Rank 1; held across the writing of the record, which only one may do at a time.
    state: Mutex<State>,
}

/// How far it is.
struct State {
    record: Record,
    recorded_at: Instant,
    /// Chunks behind `record.done` that are copied already.
    ahead: BTreeSet<u64>,
    /// Workers that are at it.
    workers: usize,
    finished: bool,
}

impl Copy<'_> {
    /// Copies a file, or opens a large one and calls for help.
    pub(super) fn copy_file(&self, job: &Job, buffer: &mut [u8]) -> Outcome<()> {
        let Job { target, item, .. } = job;
        let verb = self.choices.verb;
        // Of what takes the place of something, more is known than size and time.
        let may_be_there = self.choices.resume && job.over == Over::Anything;
        if may_be_there && is_whole(target, item)? && self.is_equal(job, target)? {
            self.progress.kept_file(item.size);
            return Ok(());
        }
        let name = target.base_name().ok_or_else(|| Failure::new(format!("{verb} to {target}: has no name")))?;
        let part = target.beside(&part::part_name(&name));
        if item.size > LARGE_BYTES {
            return self.begin_large(job, part, target.beside(&part::record_name(&name)), buffer);
        }
        let copied = self.copy_small(job, &part, buffer).and_then(|()| self.finish(job, &part));
        match copied {
            Ok(()) => {
                self.progress.file_done(target);
                Ok(())
            }
            Err(failure) => {
                // Half a small file is of no use to anybody.
                let _ = part.remove();
                Err(failure)
            }
        }
    }

    /// Copies to the end of the source, wherever that is by now. An end before the size that was seen is an error. A
    /// copy that a drain looks for afterwards has that size, as it has the time that was seen.
    fn copy_small(&self, job: &Job, part: &Place, buffer: &mut [u8]) -> Outcome<()> {
        let Job { source, item, over, .. } = job;
        let end = if *over == Over::Anything { u64::MAX } else { item.size };
        let reader = source.open()?;
        let writer = part.create(true, self.choices.plan)?;
        let mut offset = 0;
        loop {
            let left = step_bytes(end - offset, buffer.len());
            let count = reader.read_at(source, &mut buffer[..left], offset)?;
            if count > 0 {
                writer.write_at(part, &buffer[..count], offset)?;
                self.progress.copied(count as u64);
                offset += count as u64;
            }
            if count == 0 && offset < item.size {
                return Err(self.ends_early(source, offset, item.size));
            }
            // A file of the size that was seen needs no further read to show its end; one of size 0 may be of /proc.
            if count == 0 || offset == end || (offset == item.size && count < left) {
                return writer.close(part);
            }
        }
    }

    fn begin_large(&self, job: &Job, part: Place, record_place: Place, buffer: &mut [u8]) -> Outcome<()> {
        let Job { source, target, item, over } = job;
        let mut record = Record::new(item);
        if self.choices.resume {
            record.done = Record::resume_at(item, &part, &record_place);
            self.progress.kept(record.done);
        }
        let begin = record.done;
        let reader = source.open()?;
        let writer = part.create(begin == 0, self.choices.plan)?;
        record.write(&record_place)?;
        let state = State { record, recorded_at: Instant::now(), ahead: BTreeSet::new(), workers: 0, finished: false };
        let large = Arc::new(LargeCopy {
            job: Job { source: source.clone(), target: target.clone(), item: item.clone(), over: *over },
            part,
            record: record_place,
            reader,
            writer,
            next: AtomicU64::new(begin),
            failed: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        let chunks = (item.size - begin).div_ceil(CHUNK_BYTES);
        let helpers = usize::try_from(chunks).unwrap_or(usize::MAX).min(self.choices.jobs).saturating_sub(1);
        self.queue.push_help(&large, helpers);
        self.copy_chunks(&large, buffer)
    }

    /// Copies chunks of a large file until there are none left. Whoever leaves last finishes the file.
    pub(super) fn copy_chunks(&self, large: &LargeCopy, buffer: &mut [u8]) -> Outcome<()> {
        {
            let mut state = large.lock();
            if state.finished {
                return Ok(());
            }
            state.workers += 1;
        }
        let mut copied = Ok(());
        while let (Ok(()), Some((begin, end))) = (&copied, large.next_chunk()) {
            copied = self.copy_chunk(large, begin, end, buffer).and_then(|()| large.chunk_done(begin));
        }
        if copied.is_err() {
            large.failed.store(true, Ordering::Relaxed);
        }
        let mut state = large.lock();
        state.workers -= 1;
        if state.workers > 0 || state.finished {
            return copied;
        }
        state.finished = true;
        let record = state.record;
        drop(state);
        if large.failed.load(Ordering::Relaxed) {
            // The next copy goes on from here.
            let closed = large.writer.close(&large.part);
            let recorded = record.write(&large.record);
            return copied.and(closed).and(recorded);
        }
        assert_eq!(record.done, record.size, "a large copy whose last worker leaves without failure is whole");
        large.writer.close(&large.part)?;
        let finished = self.finish(&large.job, &large.part);
        // What differs is not gone on with.
        large.record.remove()?;
        finished?;
        self.progress.file_done(&large.job.target);
        Ok(())
    }

    fn copy_chunk(&self, large: &LargeCopy, begin: u64, end: u64, buffer: &mut [u8]) -> Outcome<()> {
        let source = &large.job.source;
        let mut offset = begin;
        while offset < end {
            let left = step_bytes(end - offset, buffer.len());
            let count = large.reader.read_at(source, &mut buffer[..left], offset)?;
            if count == 0 {
                return Err(self.ends_early(source, offset, large.job.item.size));
            }
            large.writer.write_at(&large.part, &buffer[..count], offset)?;
            self.progress.copied(count as u64);
            offset += count as u64;
        }
        Ok(())
    }

    /// A source that has fewer bytes than its size says: a copy of it would look whole and lack the rest.
    fn ends_early(&self, source: &Place, read: u64, size: u64) -> Failure {
        Failure::new(format!("{} {source}: only {read} of {size} bytes can be read", self.choices.verb))
            .remedy("it became shorter while it was copied, or bytes of it were lost: compare it with its source")
    }

    /// Compares the part if that is wanted, and gives it its attributes and then its name.
    fn finish(&self, job: &Job, part: &Place) -> Outcome<()> {
        if !self.is_equal(job, part)? {
            let (verb, source, target) = (self.choices.verb, &job.source, &job.target);
            return Err(Failure::new(format!("{verb} {source} to {target}: what was written differs from the source"))
                .remedy("it changed while it was copied, or a device damages data: copy it again"));
        }
        self.keep_xattrs(&job.source, part, false)?;
        part.set_mode_and_time(job.item.mode, job.item.mtime, false)?;
        job.over.check(&job.target)?;
        part.rename_to(&job.target)
    }

    /// Whether a copy has the bytes of its source, or nobody wants to know.
    fn is_equal(&self, job: &Job, copy: &Place) -> Outcome<bool> {
        let Some(verifier) = &self.verifier else { return Ok(true) };
        let equal = verifier.compare(&job.source, copy, job.item.size, self.choices.jobs)?;
        if equal {
            self.progress.verified_file();
        }
        Ok(equal)
    }
}

impl LargeCopy {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next piece that nobody has taken.
    fn next_chunk(&self) -> Option<(u64, u64)> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let size = self.job.item.size;
        let begin = self.next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        (begin < size).then(|| (begin, size.min(begin.saturating_add(CHUNK_BYTES))))
    }

    /// Notes that a chunk is copied; writes the record when it is time.
    fn chunk_done(&self, begin: u64) -> Outcome<()> {
        let size = self.job.item.size;
        let mut state = self.lock();
        state.ahead.insert(begin);
        while let Some(first) = state.ahead.first().copied()
            && first == state.record.done
        {
            state.ahead.pop_first();
            state.record.done = size.min(first + CHUNK_BYTES);
        }
        if state.recorded_at.elapsed() < RECORD_EVERY {
            return Ok(());
        }
        // What the record tells of has to be there first, size included.
        self.writer.flush(&self.part)?;
        state.record.write(&self.record)?;
        state.recorded_at = Instant::now();
        Ok(())
    }
}

/// Whether the target is a whole copy already: same size and time, which a copy gets last.
fn is_whole(target: &Place, item: &Item) -> Outcome<bool> {
    let found = target.look(false)?;
    Ok(found.is_some_and(|found| found.kind == item.kind && found.size == item.size && found.mtime == item.mtime))
}
