//! The commits that the index does not have, as an opening finds them, and what of them is damaged.
//!
//! Commits are not flushed one by one, so a power failure leaves any part of those behind the last flush: the list ends
//! at the first one that is not whole. It is damaged, and the object is not opened, if it was on the device before: a
//! sector of its block has its stamp and does not match its checksum, its data differ in one bit, or a later commit or
//! a record of the log says that it was safe.

use super::commit::{Commit, is_damaged, is_one_bit, version_of};
use super::index::State;
use super::object::{Inner, read, write};
use super::{Shared, Versions};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::{BLOCK_BYTES, as_index, lock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that are read with one call.
const CHUNK: u64 = 256;

/// A commit with its position and its checksum.
type At = (u64, Commit, u32);

struct Damage {
    what: String,
    /// Position of the damaged commit.
    position: u64,
    /// Commits behind it that say that it was safe.
    later: Vec<At>,
}

impl Versions {
    /// Cuts off commits that are damaged, and those behind them. Tells what that costs. Returns false if nothing was
    /// done.
    pub fn repair(&self, id: u64, tell: &mut dyn FnMut(String)) -> Result<bool> {
        let shared: &Arc<Shared> = &self.0;
        if Inner::super_block(shared, id)?.is_none() {
            return Ok(false);
        }
        let inner = Inner::as_indexed(shared, id)?;
        let head = read(&inner.state).head;
        let end = inner.mapped_end(&head)?;
        let Some(damage) = inner.find_new(head, end)?.1 else { return Ok(false) };
        tell(damage.what.clone());
        let last = damage.later.last().map_or(0, |(_, commit, _)| commit.sequence);
        let last = version_of(last.max(shared.layer.confirmed(id, head.nonce)));
        let last = if last > 0 { format!(", up to version {last} as far as is known") } else { String::new() };
        tell(format!("object {id}: versions from there on are lost{last}; their numbers are given again"));
        let zeros = AlignedBuffer::new(BLOCK_BYTES);
        let later = damage.later.iter().map(|(position, ..)| *position);
        for position in std::iter::once(damage.position).chain(later).filter(|position| *position < end) {
            for range in inner.addresses(position..position + 1) {
                shared.layer.write_over(range.start, &[&zeros[..]], false)?;
            }
        }
        shared.layer.forget_confirmed(id);
        shared.layer.sync()?;
        Ok(true)
    }
}

impl Inner {
    /// Finds the commits that the index does not have.
    pub fn recover(&self) -> Result<()> {
        let mut log = lock(&self.log);
        let head = read(&self.state).head;
        log.mapped_to = self.mapped_end(&head)?;
        let (found, damage) = self.find_new(head, log.mapped_to)?;
        if let Some(damage) = damage {
            return Err(Error::Damaged(damage.what));
        }
        self.shared.layer.settle_confirmed(self.id, head.sequence);
        if found.last().is_some_and(|(_, commit, _)| commit.sequence > safe_of(&found, &head)) {
            // It was read, but the device may have it in its cache only.
            self.shared.layer.sync()?;
        }
        let is_new = !found.is_empty();
        for (position, commit, _) in &found {
            self.adopt(*position, commit)?;
        }
        let mut now = write(&self.state);
        for (position, commit, checksum) in found {
            self.note(&mut now, position, &commit, checksum);
        }
        self.shared.note_recent(now.active.len());
        self.safe.store(now.head.sequence, Ordering::Relaxed);
        let State { position: head, sequence, .. } = now.head;
        drop(now);
        if is_new {
            self.shared.layer.note_written(&self.written, sequence);
        }
        self.abandon_checked(&mut log, head);
        Ok(())
    }

    /// Behind the last position that is mapped without a gap.
    fn mapped_end(&self, head: &State) -> Result<u64> {
        self.mapped_from(head.position, head.tail + self.ring)
    }

    /// The commits behind a head that a power failure has left, and the damage that they end at.
    fn find_new(&self, head: State, end: u64) -> Result<(Vec<At>, Option<Damage>)> {
        let (mut found, mut damage) = self.follow(head, end)?;
        if damage.as_ref().is_some_and(|damage| !damage.later.is_empty()) {
            return Ok((found, damage));
        }
        let confirmed = self.shared.layer.confirmed(self.id, head.nonce);
        let safe = safe_of(&found, &head);
        let unsafe_ones = found.iter().position(|(_, commit, _)| commit.sequence > safe).unwrap_or(found.len());
        for number in unsafe_ones..found.len() {
            let Some((position, commit, _)) = found.get(number) else { break };
            let of = |what: &str| {
                let text = format!("object {}, version {}: {what}", self.id, version_of(commit.sequence));
                Some(Damage { what: text, position: *position, later: Vec::new() })
            };
            let ended = match self.checksum_of_data(*position, commit) {
                Ok(checksum) if checksum == commit.data_checksum => continue,
                Ok(checksum) => {
                    let bytes = u64::from(commit.blocks - 1) * BLOCK_BYTES as u64;
                    // Else it is what was there before a write that was cut off.
                    let is_wrong = commit.sequence <= confirmed || is_one_bit(checksum, commit.data_checksum, bytes);
                    if is_wrong { of("its data do not match their checksum") } else { None }
                }
                Err(Error::Damaged(text)) => of(&text),
                Err(error) => return Err(error),
            };
            damage = ended;
            found.truncate(number);
            break;
        }
        let (reached, position) = found.last().map_or((head.sequence, head.position), |(position, commit, _)| {
            (commit.sequence, position + u64::from(commit.blocks))
        });
        if damage.is_none() && reached < confirmed {
            let (id, last, lost) = (self.id, version_of(reached), version_of(confirmed));
            let what = format!("object {id}, behind version {last}: version {lost} is not there, and was synced");
            damage = Some(Damage { what, position, later: Vec::new() });
        }
        Ok((found, damage))
    }

    /// The commits behind a head that name each other, and what is damaged behind them.
    fn follow(&self, head: State, end: u64) -> Result<(Vec<At>, Option<Damage>)> {
        let (mut found, mut head) = (Vec::new(), head);
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        while head.position < end {
            let position = head.position;
            let damaged = |what: String, later| {
                let text = format!("object {}, behind version {}: {what}", self.id, version_of(head.sequence));
                Some(Damage { what: text, position, later })
            };
            match self.read_positions(position, &mut block) {
                Err(Error::Damaged(text)) => {
                    let damage = damaged(text, self.later(&head, end));
                    return Ok((found, damage));
                }
                read => read?,
            }
            let Some((commit, checksum)) = Commit::decode(&block).filter(|(next, _)| self.is_next(&head, next, end))
            else {
                let later = self.later(&head, end);
                let damage = if is_damaged(&block, head.nonce, position) {
                    damaged("a sector of a commit does not match its checksum".to_owned(), later)
                } else if let Some((_, commit, _)) = later.first() {
                    let text =
                        format!("a commit is not there that was safe before version {}", version_of(commit.sequence));
                    damaged(text, later)
                } else {
                    None
                };
                return Ok((found, damage));
            };
            head.parent = position;
            head.position += u64::from(commit.blocks);
            (head.sequence, head.chain) = (commit.sequence, checksum);
            found.push((position, commit, checksum));
        }
        Ok((found, None))
    }

    fn is_next(&self, head: &State, commit: &Commit, end: u64) -> bool {
        commit.nonce == head.nonce
            && commit.position == head.position
            && commit.sequence > head.sequence
            && commit.parent == head.parent
            && commit.chain == head.chain
            && head.position + u64::from(commit.blocks) <= end
            && commit.entries.iter().all(|entry| entry.first + entry.count <= self.ring)
    }

    /// Commits behind a head that say that one behind it was safe when they were written.
    fn later(&self, head: &State, end: u64) -> Vec<At> {
        let mut found = Vec::new();
        let mut look = |position: u64, block: &[u8]| {
            let commit = Commit::decode(block).filter(|(commit, _)| {
                (commit.nonce, commit.position) == (head.nonce, position) && commit.safe > head.sequence
            });
            found.extend(commit.map(|(commit, checksum)| (position, commit, checksum)));
        };
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES * as_index(CHUNK));
        for first in (head.position + 1..end).step_by(as_index(CHUNK)) {
            let positions = first..end.min(first + CHUNK);
            let bytes = as_index(positions.end - first) * BLOCK_BYTES;
            let some = &mut buffer[..bytes];
            if self.read_positions(first, some).is_ok() {
                positions.zip(some.chunks(BLOCK_BYTES)).for_each(|(position, block)| look(position, block));
                continue;
            }
            // Of what cannot be read together, what can be read alone.
            for (position, block) in positions.zip(some.chunks_mut(BLOCK_BYTES)) {
                if self.read_positions(position, block).is_ok() {
                    look(position, block);
                }
            }
        }
        found
    }

    /// Has checksums noted of the blocks of a commit, in a store that has some of all data, if a crash came before
    /// their record. If the commit's data do not match its checksum, no block of them matches its own either.
    fn adopt(&self, position: u64, commit: &Commit) -> Result<()> {
        let positions = position..position + u64::from(commit.blocks);
        let ranges: Vec<Range<u64>> = self.addresses(positions).collect();
        let layer = &self.shared.layer;
        if !ranges.iter().map(|range| layer.lacks_sums(range.clone())).collect::<Result<Vec<_>>>()?.contains(&true) {
            return Ok(());
        }
        let is_right = self.has_its_data(position, commit)?;
        ranges.into_iter().try_for_each(|range| layer.note_sums(range, is_right))
    }
}

/// The sequence up to which commits were safe, as the last one of those behind a head says.
fn safe_of(found: &[At], head: &State) -> u64 {
    found.last().map_or(head.sequence, |(_, commit, _)| commit.safe.max(head.sequence))
}
