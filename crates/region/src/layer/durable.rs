//! How changes become durable: the log, the checkpoint, and what is read of both when a store is opened.
//!
//! Threads that sync at the same time share records and flushes: one does it for all.

use super::ready::Unmapped;
use super::{Freed, Layer, State, piece_of, write};
use crate::base::Changed;
use crate::confirmed::{Changes, Mark, Taken};
use crate::error::{Error, Result, at};
use crate::log::Log;
use crate::overlay::Piece;
use crate::record::{ENTRIES_BYTES_MAX, Entry, RECORD_BLOCKS_MAX, Record};
use crate::{BLOCK, lock};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Who syncs. Syncs are *rounds*, one at a time: whoever comes during one waits for the next, which one of those who
/// wait then does for all of them.
pub(super) struct Turns {
    turn: Mutex<Turn>,
    /// For whoever has the turn.
    pub(super) log: Mutex<Log>,
    /// For those who wait for an even round, and an odd one.
    waiting: [Condvar; 2],
}

#[derive(Default)]
struct Turn {
    /// The round that was begun last, and the last that ended well.
    begun: u64,
    done: u64,
    is_taken: bool,
}

impl Turns {
    pub fn new(log: Log) -> Self {
        Self { turn: Mutex::default(), log: Mutex::new(log), waiting: Default::default() }
    }

    /// Waits for a round that begins now or later, or for one's own turn to do it: its number, or `None` when it was
    /// done.
    fn join(&self) -> Option<u64> {
        let mut turn = lock(&self.turn);
        let round = turn.begun + 1;
        loop {
            if turn.done >= round {
                return None;
            }
            if !turn.is_taken {
                turn.is_taken = true;
                turn.begun = turn.begun.max(round);
                return Some(turn.begun);
            }
            let waiting = self.waiting_for(round);
            turn = waiting.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether somebody syncs.
    pub fn is_taken(&self) -> bool {
        lock(&self.turn).is_taken
    }

    fn waiting_for(&self, round: u64) -> &Condvar {
        let [even, odd] = &self.waiting;
        if round.is_multiple_of(2) { even } else { odd }
    }

    /// Ends a round. One of those who wait for the next one wakes to do it.
    fn end(&self, round: u64, is_done: bool) {
        let mut turn = lock(&self.turn);
        turn.is_taken = false;
        // After one that failed, some wait for it still, beside those of the next one.
        let are_mixed = !is_done || turn.done + 1 < round;
        if is_done {
            turn.done = round;
        }
        drop(turn);
        self.waiting_for(round).notify_all();
        if are_mixed {
            self.waiting_for(round + 1).notify_all();
        } else {
            self.waiting_for(round + 1).notify_one();
        }
    }
}

impl Layer {
    /// The last commits of an object are given up: no mark of them counts from the next sync on.
    pub(crate) fn forget_confirmed(&self, object: u64) {
        self.confirmed.forget(object);
        write(&self.state).add_pending(vec![Entry::Confirmed { object, nonce: 0, sequence: 0 }]);
    }

    /// Does what the log's records say. [`Error::LogDamaged`]: it has done what those before the damage say.
    pub(super) fn replay(&self) -> Result<()> {
        let (mut state, mut log) = (write(&self.state), lock(&self.turns.log));
        let (begin, mut unmapped) = (log.head(), Unmapped::default());
        let ended = loop {
            match log.next(&*self.device) {
                Ok(Some(record)) => self.redo(&mut state, &mut unmapped, &record)?,
                Ok(None) => break Ok(()),
                Err(error @ Error::LogDamaged { .. }) => break Err(error),
                Err(error) => return Err(error),
            }
        };
        self.map_marked(&mut state, &unmapped)?;
        if log.head() != begin {
            // It was read, but the device may have it in its cache only.
            self.device.flush().map_err(at("flush the device"))?;
        }
        ended
    }

    fn redo(&self, state: &mut State, unmapped: &mut Unmapped, record: &Record) -> Result<()> {
        for entry in &record.entries {
            let is_inside = match entry {
                Entry::Map { block, count, .. } | Entry::Ready { block, count, .. } => {
                    state.space.has(*block, u64::from(*count))
                }
                Entry::Sums { block, sums } => self.sums_end() > 0 && state.space.has(*block, sums.len() as u64),
                Entry::Unmap { .. } | Entry::Confirmed { .. } => true,
            };
            let new = piece_of(entry);
            let is_address = |new: Piece| new.first.checked_add(new.count).is_some_and(|end| end <= u64::MAX / BLOCK);
            if !is_inside || !new.is_none_or(is_address) {
                return Err(Error::Damaged(format!("record {} maps what is not there", record.sequence)));
            }
            if let Some(new) = new {
                for old in self.mapped(state, new.first..new.end())? {
                    if let Some(block) = old.block {
                        state.space.restore(block, old.count, false);
                    }
                }
                if let Some(block) = new.block {
                    state.space.restore(block, new.count, true);
                }
            }
            match *entry {
                Entry::Map { block, count, .. } => unmapped.remove(block, count),
                Entry::Ready { block, count, number } => unmapped.add(block, count, number)?,
                Entry::Unmap { .. } => {
                    let unmapped = new.into_iter().flat_map(|new| self.regions_begun(new));
                    unmapped.for_each(|object| self.confirmed.forget(object));
                }
                Entry::Confirmed { object, nonce, sequence } => {
                    self.confirmed.redo(object, Mark { nonce, sequence });
                }
                Entry::Sums { .. } => {}
            }
            self.apply(state, entry);
        }
        Ok(())
    }

    /// All that was written before is safe when this returns.
    pub fn sync(&self) -> Result<()> {
        let Some(round) = self.turns.join() else { return Ok(()) };
        let result = self.sync_now();
        self.turns.end(round, result.is_ok());
        result
    }

    fn sync_now(&self) -> Result<()> {
        let is_wanted = self.confirmed.is_wanted.swap(false, Ordering::Relaxed);
        let confirmed = self.confirmed.take();
        let done = self.sync_with(&confirmed, is_wanted);
        if !matches!(done, Ok(true)) {
            self.confirmed.put_back(&confirmed);
        }
        if done.is_err() && is_wanted {
            self.confirmed.is_wanted.store(true, Ordering::Relaxed);
        }
        done.map(drop)
    }

    /// Returns true if the marks are in the log. `is_wanted`: also if there is nothing else for it.
    fn sync_with(&self, confirmed: &Taken, is_wanted: bool) -> Result<bool> {
        self.place_fresh()?;
        let mut log = lock(&self.turns.log);
        let (records, freed) = {
            let mut state = write(&self.state);
            let is_any = !state.pending.is_empty() || is_wanted;
            let marks = if is_any { confirmed.entries() } else { Vec::new() };
            let records = grouped(state.pending.iter().chain(&marks));
            if records.len() as u64 * RECORD_BLOCKS_MAX > log.room() {
                drop(state);
                self.confirmed.put_back(confirmed);
                return self.checkpoint(&mut log).map(|()| true);
            }
            (records, state.begin_recording())
        };
        let is_recorded = !records.is_empty();
        if let Err(error) = self.record(&mut log, records) {
            write(&self.state).take_back(freed);
            return Err(error);
        }
        if is_recorded {
            self.confirmed.note(confirmed);
        }
        write(&self.state).recording.clear();
        self.give_back(&freed)?;
        if log.is_half_full() {
            self.checkpoint(&mut log)?;
        }
        Ok(is_recorded)
    }

    /// Flushes data, and writes the records of changes. After an error some may be there already: to have them twice
    /// changes nothing, as long as all come again.
    fn record(&self, log: &mut Log, records: Vec<Vec<Entry>>) -> Result<()> {
        self.device.flush().map_err(at("flush the device"))?;
        records.into_iter().try_for_each(|entries| log.append(&*self.device, entries))
    }

    /// Frees blocks whose record is durable, when nobody uses them any more.
    fn give_back(&self, freed: &[Freed]) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        drop(write(&self.gate));
        self.reuses.note();
        let discarded = freed.iter().filter(|old| old.is_discarded).map(|old| (old.block, old.count));
        let discarded = self.discard(&discarded.collect::<Vec<_>>());
        // Free they are in any case.
        let mut state = write(&self.state);
        freed.iter().for_each(|old| state.space.give_back(old.block, old.count));
        discarded
    }

    /// Tells the device of blocks that have nothing any more.
    pub(super) fn discard(&self, freed: &[(u64, u64)]) -> Result<()> {
        freed.iter().try_for_each(|(block, count)| {
            self.device.discard((self.geometry.data_start + block) * BLOCK, count * BLOCK).map_err(at("discard"))
        })
    }

    /// Brings all changes to the map, also those that no record has: then the log is free.
    pub(super) fn checkpoint(&self, log: &mut Log) -> Result<()> {
        log.forget_failed(&*self.device)?;
        let confirmed = self.confirmed.take();
        let marks = self.confirmed.freeze(&confirmed);
        let done = self.bring_to_map(log, &marks);
        self.confirmed.thaw(&marks, &confirmed, done.is_ok());
        done
    }

    fn bring_to_map(&self, log: &mut Log, confirmed: &Changes) -> Result<()> {
        // First, so that who has a block of a run maps it before the others are brought to the map, or syncs.
        write(&self.state).end_runs(&self.ready);
        self.bring_all_gathered();
        let (frozen, sums, groups, freed) = {
            let mut state = write(&self.state);
            state.end_runs(&self.ready);
            let frozen = Arc::new(std::mem::take(&mut state.active));
            state.frozen = Some(Arc::clone(&frozen));
            let freed = state.begin_recording();
            (frozen, state.sums.freeze(), state.space.take_changed(), freed)
        };
        // What the map has is durable, so its data have to be.
        let flushed = self.device.flush().map_err(at("flush the device"));
        let changed = Changed { extents: &frozen, sums: &sums, groups: &groups, confirmed };
        let done = flushed.and_then(|()| self.base.checkpoint(&changed, log.head()));
        let mut state = write(&self.state);
        state.frozen = None;
        state.sums.thaw(done.is_ok());
        if let Err(error) = done {
            let later = std::mem::replace(&mut state.active, (*frozen).clone());
            later.pieces().for_each(|piece| state.active.set(piece));
            state.take_back(freed);
            groups.iter().for_each(|(group, _)| state.space.note_group(*group));
            return Err(error);
        }
        state.recording.clear();
        log.release();
        self.known.note(&frozen);
        self.known_sums.note(&sums);
        drop(state);
        self.give_back(&freed)
    }

    /// Syncs, and brings the log to the map: opening is then as fast as it can be.
    pub fn close(&self) -> Result<()> {
        self.in_turn(|log| {
            self.place_fresh()?;
            self.checkpoint(log)?;
            log.blank_head(&*self.device)
        })
    }

    /// Has the turn for what makes everything durable that was written before.
    pub(super) fn in_turn(&self, work: impl FnOnce(&mut Log) -> Result<()>) -> Result<()> {
        // A round that somebody else did was a sync only.
        let round = loop {
            if let Some(round) = self.turns.join() {
                break round;
            }
        };
        let result = work(&mut lock(&self.turns.log));
        self.turns.end(round, result.is_ok());
        result
    }
}

/// Changes put together to records, none of them over two.
fn grouped<'a>(pending: impl Iterator<Item = &'a Vec<Entry>>) -> Vec<Vec<Entry>> {
    let (mut records, mut bytes): (Vec<Vec<Entry>>, usize) = (Vec::new(), 0);
    for entries in pending {
        let more = Entry::bytes_of(entries);
        match records.last_mut().filter(|_| bytes + more <= ENTRIES_BYTES_MAX) {
            Some(record) => {
                record.extend_from_slice(entries);
                bytes += more;
            }
            None => {
                records.push(entries.clone());
                bytes = more;
            }
        }
    }
    records
}
