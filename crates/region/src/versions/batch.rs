//! Cleans objects, several at a time: each step is one transaction of the index for all of them, and after that the
//! unmapping of what the index does not name any more, and one sync. What is to be unmapped is in the index until it
//! was, so that a crash between loses nothing. A version that goes away cannot be read any more before anything of it
//! goes.
//!
//! Locks, in this order: `cleaning` of all of the objects, the store's turn to write the index, `gate` of all of them,
//! `state`. Who has one `cleaning` waits for no other; who wants several gates has the turn.

use super::clean::{Cleaned, Keep, Kept, Pace, STEP, Work};
use super::index::{Index, TRIMS, TreeResult, set_state};
use super::object::{Inner, read, write};
use super::{Shared, Versions};
use crate::error::{Error, Result};
use crate::lock;
use redb::WriteTransaction;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard};

/// Objects that are cleaned at a time, and by whoever works ahead.
const OBJECTS_MAX: usize = 256;
const OBJECTS_OF_STEP: usize = 32;

/// A cleaning of many objects.
struct Run<'a> {
    keep: &'a Keep,
    /// For objects that somebody else cleans, or sends. Otherwise they are passed over.
    waits: bool,
    pace: Pace,
    cleaned: Cleaned,
    /// The first error. The other objects can be cleaned.
    failed: Option<Error>,
}

impl<'a> Run<'a> {
    fn new(keep: &'a Keep, waits: bool) -> Result<Self> {
        keep.check()?;
        Ok(Self { keep, waits, pace: Pace::new(keep.share), cleaned: Cleaned::default(), failed: None })
    }

    fn done(self) -> Result<Cleaned> {
        self.failed.map_or(Ok(self.cleaned), Err)
    }
}

impl Versions {
    /// Cleans all objects.
    pub fn clean(&self, keep: &Keep) -> Result<Cleaned> {
        let mut run = Run::new(keep, true)?;
        self.0.checkpoint()?;
        let mut ids = self.ids()?.into_iter();
        while self.clean_next(&mut ids, OBJECTS_MAX, &mut run).is_some() {}
        run.done()
    }

    /// Cleans objects by turns, until so many blocks were freed. Those that somebody else cleans, or sends, have their
    /// turn another time.
    pub fn clean_some(&self, keep: &Keep, blocks: u64) -> Result<Cleaned> {
        let mut run = Run::new(keep, false)?;
        self.0.checkpoint()?;
        let mut next = lock(&self.0.next_to_clean);
        let ids = self.ids()?;
        let first = ids.partition_point(|id| *id < *next);
        let mut ids = ids.iter().cycle().skip(first).take(ids.len()).copied();
        while run.cleaned.freed_blocks < blocks
            && let Some(last) = self.clean_next(&mut ids, OBJECTS_OF_STEP, &mut run)
        {
            *next = last + 1;
        }
        run.done()
    }

    /// Cleans the next objects that have something to be cleaned, so many at most. The last of them. `None`: there are
    /// no more.
    fn clean_next(&self, ids: &mut impl Iterator<Item = u64>, count: usize, run: &mut Run<'_>) -> Option<u64> {
        let some: Vec<u64> = ids.filter(|id| !self.is_settled(*id, run.keep)).take(count).collect();
        let last = some.last().copied()?;
        let mut objects = Vec::new();
        for object in some.into_iter().map(|id| self.object(id)) {
            match object {
                Ok(object) => objects.push(object.0),
                // Removed meanwhile, or a crash has left what the index says of it.
                Err(Error::NoObject) => {}
                Err(error) => run.failed = run.failed.take().or(Some(error)),
            }
        }
        self.0.clean_some(&objects, run);
        run.pace.rest();
        Some(last)
    }

    fn is_settled(&self, id: u64, keep: &Keep) -> bool {
        let open = lock(&self.0.open);
        let at_hand = open.objects.get(&id).map(|object| object.settled());
        let newest = at_hand.unwrap_or_else(|| open.settled.get(&id).copied());
        newest.is_some_and(|newest| newest <= keep.newest.max(1))
    }
}

impl Shared {
    /// Cleans some objects at once, but those alone that somebody else cleans, or sends.
    fn clean_some(&self, objects: &[Arc<Inner>], run: &mut Run<'_>) {
        let (mut held, mut guards) = (Vec::new(), Vec::new());
        let (mut had, mut alone) = (Vec::new(), Vec::new());
        for object in objects {
            match object.cleaning.try_lock() {
                Ok(guard) => {
                    held.push(&**object);
                    guards.push(guard);
                    had.push(object);
                }
                Err(_) if run.waits => alone.push(object),
                Err(_) => {}
            }
        }
        let done = self.clean_held(held, run.keep, &mut run.pace, &mut run.cleaned);
        drop(guards);
        if done.is_err() {
            // It may be one of them.
            alone.append(&mut had);
        }
        if alone.is_empty() {
            return;
        }
        // Each of them has a pace of its own.
        run.pace.rest();
        for object in alone {
            match object.clean(run.keep) {
                Ok(more) => run.cleaned.add(&more),
                Err(Error::NoObject) => {}
                Err(error) => run.failed = run.failed.take().or(Some(error)),
            }
        }
        run.pace = Pace::new(run.keep.share);
    }

    /// Cleans objects whose `cleaning` the caller has.
    pub(super) fn clean_held(
        &self,
        held: Vec<&Inner>,
        keep: &Keep,
        pace: &mut Pace,
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        // What is new is asked of all objects: not where nothing is of these.
        if held.iter().any(|object| object.has_recent()) {
            self.checkpoint()?;
        }
        let Some(index) = self.index() else { return Ok(()) };
        Batch::new(self, index, held, cleaned).clean(keep, pace)
    }
}

/// Objects whose `cleaning` is held.
pub(super) struct Batch<'a> {
    shared: &'a Shared,
    pub index: &'a Index,
    pub objects: Vec<&'a Inner>,
    pub cleaned: &'a mut Cleaned,
    /// Objects of which all has been unmapped that is to be; the index does not know.
    unmapped: Vec<u64>,
}

impl<'a> Batch<'a> {
    pub fn new(shared: &'a Shared, index: &'a Index, objects: Vec<&'a Inner>, cleaned: &'a mut Cleaned) -> Self {
        Self { shared, index, objects, cleaned, unmapped: Vec::new() }
    }

    /// A batch of one.
    pub fn one(object: &'a Inner, index: &'a Index, cleaned: &'a mut Cleaned) -> Self {
        Self::new(&object.shared, index, vec![object], cleaned)
    }

    fn clean(mut self, keep: &Keep, pace: &mut Pace) -> Result<()> {
        self.objects.iter().for_each(|object| *lock(&object.settled) = None);
        // What is written from now on has not been looked at.
        let state_of = |object: &&Inner| self.index.state(object.id);
        let states: Vec<_> = self.objects.iter().map(state_of).collect::<Result<_>>()?;
        // What a crash, or an error, left.
        self.unmap()?;
        let (mut all, mut going, mut to_sweep) = (Vec::new(), Vec::new(), Vec::new());
        for object in &self.objects {
            all.push(object.kept(self.index, keep)?);
        }
        for (object, kept) in self.objects.iter().copied().zip(&all) {
            if kept.lets_go(self.index, object.id)? {
                object.needs_sweep.store(true, Ordering::Relaxed);
                going.push((object, kept));
            }
            if object.needs_sweep.load(Ordering::Relaxed) {
                object.needs_together.store(true, Ordering::Relaxed);
                to_sweep.push((object, kept));
            }
        }
        // Others may wait for one of many: it is rested when none is held.
        let mut at_once = Pace::new(1.0);
        let pace = if self.objects.len() > 1 { &mut at_once } else { pace };
        self.steps(&going, pace, |work, kept, from| work.unlist(from, kept))?;
        // Whoever has found one of them listed reads on while all of it is there.
        to_sweep.iter().for_each(|(object, _)| drop(write(&object.gate)));
        self.steps(&to_sweep, pace, |work, kept, from| work.sweep(from, kept))?;
        to_sweep.iter().for_each(|(object, _)| object.needs_sweep.store(false, Ordering::Relaxed));
        self.move_tails()?;
        self.put_small_together(pace)?;
        let mut is_all = true;
        // Of those that could not be put together, the index may not have all that was moved.
        for object in self.objects.clone().into_iter().filter(|object| !object.needs_together.load(Ordering::Relaxed)) {
            match object.compact(self.index, pace, &mut *self.cleaned) {
                // What is moved takes room before it gives any.
                Err(Error::NoSpace) => is_all = false,
                // Removed meanwhile.
                Err(Error::NoObject) => {}
                done => done?,
            }
        }
        self.unmap_ahead()?;
        if is_all {
            for ((object, kept), state) in self.objects.iter().zip(&all).zip(states) {
                let head = state.map_or(0, |state| state.sequence);
                // What is kept by its age goes later.
                *lock(&object.settled) = (!kept.by_age).then_some((head, keep.newest.max(1)));
            }
        }
        Ok(())
    }

    /// Those that are there, and what keeps others from removing them, so that these are not another's rows. For
    /// whoever has the turn.
    fn there(&self) -> (Vec<RwLockReadGuard<'a, ()>>, Vec<&'a Inner>) {
        let held = self.objects.iter().map(|object| (read(&object.gate), *object));
        held.filter(|(_, object)| object.there().is_ok()).unzip()
    }

    /// Transactions, each on as many objects as it gets to. `work`: on an object, from somewhere on; where it is to go
    /// on.
    fn steps(
        &mut self,
        objects: &[(&'a Inner, &Kept)],
        pace: &mut Pace,
        work: impl Fn(&mut Work<'_>, &Kept, u64) -> TreeResult<Option<u64>>,
    ) -> Result<()> {
        let (mut number, mut from) = (0, 0);
        while number < objects.len() {
            (number, from) = self.step(|step| {
                let mut looked_at = 0;
                while let Some((object, kept)) = objects.get(number).filter(|_| looked_at < STEP) {
                    let next = step.on(object, |one| {
                        let next = work(one, kept, from);
                        looked_at += one.looked_at;
                        next
                    })?;
                    (number, from) = next.flatten().map_or((number + 1, 0), |next| (number, next));
                }
                Ok((number, from))
            })?;
            pace.rest();
        }
        Ok(())
    }

    /// A transaction, and then the unmapping of what it took away.
    pub fn step<T>(&mut self, work: impl FnOnce(&mut Step<'_>) -> TreeResult<T>) -> Result<T> {
        let turn = lock(&self.shared.turn);
        let (gates, there) = self.there();
        let (done, versions) = self.index.write(|transaction| {
            self.forget_trims(transaction, &there)?;
            let mut step = Step { transaction, there: &there, versions: 0 };
            let done = work(&mut step)?;
            Ok((done, step.versions))
        })?;
        drop((turn, gates));
        self.unmapped.clear();
        self.cleaned.versions += versions;
        self.unmap()?;
        Ok(done)
    }

    fn forget_trims(&self, transaction: &WriteTransaction, there: &[&Inner]) -> TreeResult<()> {
        let mut trims = transaction.open_table(TRIMS)?;
        for object in there.iter().filter(|object| self.unmapped.contains(&object.id)) {
            trims.retain_in((object.id, 0)..=(object.id, u64::MAX), |_, _| false)?;
        }
        Ok(())
    }

    /// Unmaps what the index says is to be. The next transaction has it say so no more.
    pub fn unmap(&mut self) -> Result<()> {
        let mut is_any = false;
        for object in &self.objects {
            let trims = self.index.trims(object.id)?;
            if trims.is_empty() {
                continue;
            }
            // Whoever reads has found its place in what the index was before.
            drop(write(&object.gate));
            let _gate = read(&object.gate);
            if object.there().is_err() {
                continue;
            }
            for (position, blocks) in &trims {
                object.addresses(*position..position + blocks).try_for_each(|range| self.shared.layer.trim(range))?;
                self.cleaned.freed_blocks += blocks;
            }
            self.unmapped.push(object.id);
            is_any = true;
        }
        if is_any { self.shared.layer.sync() } else { Ok(()) }
    }

    /// The rings may go on up to the first position that is in use, everything before which is unmapped.
    pub fn move_tails(&mut self) -> Result<()> {
        let _turn = lock(&self.shared.turn);
        let (_gates, there) = self.there();
        let mut moved = Vec::new();
        for object in &there {
            let Some(state) = self.index.state(object.id)? else { continue };
            let first = self.index.first_in_ring(object.id, state.oldest)?;
            let (oldest, tail) =
                first.map_or((state.sequence + 1, state.position), |(sequence, row)| (sequence, row.position));
            if (oldest, tail) != (state.oldest, state.tail) {
                moved.push((object, oldest, tail));
            }
        }
        if moved.is_empty() && self.unmapped.is_empty() {
            return Ok(());
        }
        self.index.write(|transaction| {
            self.forget_trims(transaction, &there)?;
            moved.iter().try_for_each(|(object, oldest, tail)| {
                set_state(transaction, object.id, |state| (state.oldest, state.tail) = (*oldest, *tail))
            })
        })?;
        self.unmapped.clear();
        for (object, oldest, tail) in moved {
            let mut now = write(&object.state);
            (now.head.oldest, now.head.tail) = (oldest, tail);
        }
        Ok(())
    }

    /// Has the index know what was moved, and unmaps the former places.
    pub fn settle_moved(&mut self) -> Result<()> {
        self.shared.checkpoint()?;
        self.unmap()
    }

    /// Takes back what is mapped ahead. It is free when this returns.
    fn unmap_ahead(&self) -> Result<()> {
        let mut is_any = false;
        for object in &self.objects {
            match object.unmap_ahead() {
                Err(Error::NoObject) => {}
                done => is_any |= done?,
            }
        }
        if is_any { self.shared.layer.sync() } else { Ok(()) }
    }
}

/// A transaction on a batch.
pub(super) struct Step<'t> {
    transaction: &'t WriteTransaction,
    there: &'t [&'t Inner],
    /// That cannot be read any more.
    versions: u64,
}

impl Step<'_> {
    /// Works on one of the objects. `None`: it is not there any more.
    pub fn on<T>(
        &mut self,
        object: &Inner,
        work: impl FnOnce(&mut Work<'_>) -> TreeResult<T>,
    ) -> TreeResult<Option<T>> {
        if !self.there.iter().any(|there| there.id == object.id) {
            return Ok(None);
        }
        let mut one = Work::new(object.id, self.transaction)?;
        let done = work(&mut one)?;
        let (versions, levels) = one.finish()?;
        self.versions += versions;
        if levels != 0 {
            set_state(self.transaction, object.id, |state| state.levels |= levels)?;
            object.note_levels(levels);
        }
        Ok(Some(done))
    }
}
