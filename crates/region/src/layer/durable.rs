//! How changes become durable: the log, the checkpoint, and what is read of both when a store is opened.
//!
//! Threads that sync at the same time share records and flushes: one does it for all.

use super::{Layer, piece_of, write};
use crate::error::{Error, Result, at};
use crate::log::Log;
use crate::record::{ENTRIES_MAX, Entry, RECORD_BLOCKS_MAX};
use crate::{BLOCK, lock};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Who syncs, and what for.
pub(super) struct Turns {
    turn: Mutex<Turn>,
    /// For whoever has the turn.
    log: Mutex<Log>,
    /// Signalled when a sync has ended.
    ended: Condvar,
}

impl Turns {
    pub fn new(log: Log) -> Self {
        Self { turn: Mutex::default(), log: Mutex::new(log), ended: Condvar::new() }
    }
}

#[derive(Default)]
struct Turn {
    /// Counts what was asked to be synced, and how much of it has been.
    asked: u64,
    done: u64,
    is_taken: bool,
}

impl Layer {
    /// Does what the log's records say.
    pub(super) fn replay(&self) -> Result<()> {
        let (mut state, mut log) = (write(&self.state), lock(&self.turns.log));
        while let Some(record) = log.next(&*self.device)? {
            for entry in record.entries {
                let new = piece_of(entry);
                let is_inside = new.block.is_none_or(|block| state.space.has(block, new.count));
                if !is_inside || new.first.checked_add(new.count).is_none() {
                    return Err(Error::Damaged(format!("record {} maps what is not there", record.sequence)));
                }
                for old in self.mapped(&state, new.first..new.end())? {
                    if let Some(block) = old.block {
                        state.space.restore(block, old.count, false);
                    }
                }
                if let Some(block) = new.block {
                    state.space.restore(block, new.count, true);
                }
                state.active.set(new);
            }
        }
        Ok(())
    }

    /// All that was written before is safe when this returns.
    pub fn sync(&self) -> Result<()> {
        self.sync_by(Self::sync_now)
    }

    fn sync_by(&self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let mut turn = lock(&self.turns.turn);
        turn.asked += 1;
        let mine = turn.asked;
        while turn.is_taken {
            turn = self.turns.ended.wait(turn).unwrap_or_else(PoisonError::into_inner);
            if turn.done >= mine {
                return Ok(());
            }
        }
        turn.is_taken = true;
        let all = turn.asked;
        drop(turn);
        let result = work(self);
        let mut turn = lock(&self.turns.turn);
        turn.is_taken = false;
        if result.is_ok() {
            turn.done = all;
        }
        drop(turn);
        self.turns.ended.notify_all();
        result
    }

    fn sync_now(&self) -> Result<()> {
        self.place_fresh()?;
        let mut log = lock(&self.turns.log);
        let (records, pending, freed) = {
            let mut state = write(&self.state);
            let records = grouped(&state.pending);
            if records.len() as u64 * RECORD_BLOCKS_MAX > log.room() {
                drop(state);
                return self.checkpoint(&mut log);
            }
            (records, std::mem::take(&mut state.pending), std::mem::take(&mut state.freed))
        };
        if let Err(error) = self.record(&mut log, records) {
            write(&self.state).take_back(pending, freed);
            return Err(error);
        }
        self.give_back(freed)?;
        if log.is_half_full() { self.checkpoint(&mut log) } else { Ok(()) }
    }

    /// Flushes data, and writes the records of changes. After an error some may be there already: to have them twice
    /// changes nothing, as long as all come again.
    fn record(&self, log: &mut Log, records: Vec<Vec<Entry>>) -> Result<()> {
        self.device.flush().map_err(at("flush the device"))?;
        records.into_iter().try_for_each(|entries| log.append(&*self.device, entries))
    }

    /// Frees blocks whose record is durable, when nobody uses them any more.
    fn give_back(&self, freed: Vec<(u64, u64)>) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        drop(write(&self.gate));
        for &(block, count) in &freed {
            let place = (self.geometry.data_start + block) * BLOCK;
            self.device.discard(place, count * BLOCK).map_err(at("discard"))?;
        }
        let mut state = write(&self.state);
        for (block, count) in freed {
            state.space.give_back(block, count);
        }
        Ok(())
    }

    /// Brings all changes to the map, also those that no record has: then the log is free.
    fn checkpoint(&self, log: &mut Log) -> Result<()> {
        let (frozen, groups, pending, freed) = {
            let mut state = write(&self.state);
            let frozen = Arc::new(std::mem::take(&mut state.active));
            state.frozen = Some(Arc::clone(&frozen));
            let (pending, freed) = (std::mem::take(&mut state.pending), std::mem::take(&mut state.freed));
            (frozen, state.space.take_changed(), pending, freed)
        };
        // What the map has is durable, so its data have to be.
        let flushed = self.device.flush().map_err(at("flush the device"));
        let done = flushed.and_then(|()| self.base.checkpoint(&frozen, &groups, log.head()));
        let mut state = write(&self.state);
        state.frozen = None;
        if let Err(error) = done {
            let later = std::mem::replace(&mut state.active, (*frozen).clone());
            later.pieces().for_each(|piece| state.active.set(piece));
            state.take_back(pending, freed);
            groups.iter().for_each(|(group, _)| state.space.note_group(*group));
            return Err(error);
        }
        log.release();
        self.known.note(&frozen);
        drop(state);
        self.give_back(freed)
    }

    /// Syncs, and brings the log to the map: opening is then as fast as it can be.
    pub fn close(&self) -> Result<()> {
        self.sync_by(|layer| {
            layer.place_fresh()?;
            layer.checkpoint(&mut lock(&layer.turns.log))
        })
    }
}

/// Changes put together to records, none of them over two.
fn grouped(pending: &[Vec<Entry>]) -> Vec<Vec<Entry>> {
    let mut records: Vec<Vec<Entry>> = Vec::new();
    for entries in pending {
        match records.last_mut().filter(|record| record.len() + entries.len() <= ENTRIES_MAX) {
            Some(record) => record.extend(entries),
            None => records.push(entries.clone()),
        }
    }
    records
}
