//! Writes to a split file, and their publication.
//!
//! On the way to the part's file, or to its node, nothing is locked but the ranges that are written. Where a member of
//! a group has no file of its part, its small writes are buffered (`behind.rs`), and the file's state is locked while
//! they are sent.

use super::together::is_unanswered;
use super::{OwnPart, SplitFile, State, UNPUBLISHED_MAX};
use crate::calls::AttributesAnswer;
use crate::notice::Notice;
use crate::objects::{ObjectWrite, Objects, Registration};
use crate::open_inode::Written;
use crate::open_options::OpenOptions;
use crate::shell::{Monitor, Shell};
use crate::transfers::end_of;
use std::ops::Range;
use weft_protocol::data::DataOperation;
use weft_protocol::limits::SPLIT_PATTERNS_MAX;
use weft_protocol::message::shard::RangeUse;
use weft_protocol::{Error, ObjectId, Pattern, PublishedPart, Result, SessionId};

/// The lock of a split file's state.
type Guard<'a, S> = <<S as Shell>::Monitor<State<S>> as Monitor<State<S>>>::Guard<'a>;

impl<S: Shell> State<S> {
    /// Everything that was not published is lost. Returns whether there was any.
    pub(super) fn drop_unpublished(&mut self, io: &Objects<S>) -> bool {
        let lost = (!self.unpublished.take().is_empty(), self.handed_out.take().is_some(), self.behind.clear());
        let has_lost = lost != (false, false, false);
        if has_lost {
            self.note_lost(io);
        }
        has_lost
    }

    /// What a program takes for written is lost. It is told ([`State::tell`]).
    pub(super) fn note_lost(&self, io: &Objects<S>) {
        io.calls.shell.notice(match self.is_members {
            true => Notice::UnpublishedLost(self.inode),
            false => Notice::BytesLost(self.inode),
        });
    }

    /// Bytes are in the own part, and not published.
    pub(super) fn landed(&mut self, offset: u64, bytes: u64) {
        self.part_has_bytes();
        self.unpublished.add(offset, bytes);
    }

    fn part_has_bytes(&mut self) {
        self.own.iter_mut().for_each(|own| own.has_bytes = true);
    }

    /// Takes note of what has become of buffered writes.
    pub(super) fn settle_behind(&mut self, io: &Objects<S>) {
        let (landed, error) = self.behind.take_outcome();
        landed.into_iter().for_each(|(offset, bytes)| self.landed(offset, bytes));
        if let Some(error) = error {
            self.error.get_or_insert(error);
            self.note_lost(io);
        }
    }

    /// The outcome of a write, sync or flush. If bytes are lost which the program takes for written, it is told so,
    /// once.
    pub(super) fn tell<T>(&mut self, outcome: Result<T>) -> Result<T> {
        self.error.take().map_or(outcome, Err)
    }
}

impl<S: Shell> SplitFile<S> {
    /// Writes all bytes at an offset, or at the end of the file (an append handle).
    pub(crate) async fn write(
        &self,
        io: &Objects<S>,
        bytes: &[u8],
        offset: u64,
        options: &OpenOptions<Registration<S>>,
    ) -> Result<Written> {
        if options.append {
            return self.append(io, bytes, options).await.map(|offset| Written { offset, is_safe: true });
        }
        self.write_list(io, &[(bytes, offset)], options).await.map(|is_safe| Written { offset, is_safe })
    }

    /// Writes pieces, each its bytes and an offset. Returns whether they are published.
    pub(crate) async fn write_list(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<bool> {
        let ranges = list.iter().map(|(bytes, offset)| Ok(*offset..end_of(*offset, bytes.len())?));
        let ranges = ranges.filter(|range| range.as_ref().map_or(true, |range| !range.is_empty()));
        let ranges = ranges.collect::<Result<Vec<_>>>()?;
        if ranges.is_empty() {
            return Ok(true);
        }
        let is_small = list.iter().all(|(bytes, _)| bytes.len() < io.tuning.gathered_below);
        let may_gather = self.group.is_some() && is_small && options.registration.is_none();
        if may_gather && self.gather(io, list, &ranges, options).await? {
            return Ok(false);
        }
        self.claim(io, &ranges).await?;
        let result = self.write_claimed(io, list, options).await;
        self.state.lock().await.claimed.retain(|claimed| !ranges.contains(claimed));
        self.state.notify_all();
        result
    }

    /// The state, once nobody here writes these ranges past what is buffered. Two writes to the same bytes of the part
    /// would publish each other's: if the file is cut between the two publications, the second shows what was cut.
    async fn unclaimed(&self, ranges: &[Range<u64>]) -> Guard<'_, S> {
        let mut state = self.state.lock().await;
        while ranges.iter().any(|range| state.is_claimed(range)) {
            state = self.state.wait(state).await;
        }
        state
    }

    /// Lets nobody else begin to write these ranges. What was buffered before is at the node then.
    async fn claim(&self, io: &Objects<S>, ranges: &[Range<u64>]) -> Result<()> {
        let mut state = self.unclaimed(ranges).await;
        let landed = self.land(io, &mut state).await;
        state.tell(landed)?;
        state.claimed.extend_from_slice(ranges);
        Ok(())
    }

    /// Buffers pieces. `false`: they go to the part's file.
    async fn gather(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        ranges: &[Range<u64>],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<bool> {
        let mut state = self.unclaimed(ranges).await;
        let mut own = self.own_to_write(io, &mut state, options.spread).await?;
        if own.file.is_some() {
            return Ok(false);
        }
        state.behind.keeps_refused = options.spill;
        for (bytes, offset) in list {
            state.behind.gather(io, (self.inode, own.held), bytes, *offset).await;
            if state.behind.refused_by().is_some() {
                let spilled = self.spill_runs(io, &mut state).await;
                state.tell(spilled)?;
                own = self.own_to_write(io, &mut state, options.spread).await?;
            }
        }
        state.settle_behind(io);
        state.notice_session(io);
        state.tell(Ok(()))?;
        if state.unpublished.count() >= UNPUBLISHED_MAX {
            let published = self.publish_unpublished(io, &mut state).await;
            state.tell(published)?;
        }
        Ok(true)
    }

    /// Brings what is buffered to the part's node. What is lost of it is told later ([`State::tell`]). If this
    /// fails, everything is still here.
    pub(super) async fn land(&self, io: &Objects<S>, state: &mut State<S>) -> Result<()> {
        state.notice_session(io);
        if !state.behind.is_empty() {
            let own = self.ensure_own(io, state).await?;
            state.behind.send_all(io, (self.inode, own.held)).await;
            state.settle_behind(io);
            state.notice_session(io);
            self.spill_runs(io, state).await?;
        }
        Ok(())
    }

    /// Waits for what is in flight, before the right to the part changes.
    pub(super) async fn land_in_flight(&self, io: &Objects<S>, state: &mut State<S>) {
        state.behind.finish(io).await;
        state.settle_behind(io);
        state.notice_session(io);
    }

    /// The own part, which is made when there is none; or what the writer is told.
    async fn own_to_write(&self, io: &Objects<S>, state: &mut State<S>, spread: bool) -> Result<OwnPart<S>> {
        state.notice_session(io);
        state.spreads = spread;
        state.tell(Ok(()))?;
        let own = self.ensure_own(io, state).await;
        state.tell(own)
    }

    async fn write_claimed(
        &self,
        io: &Objects<S>,
        mut list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<bool> {
        let mut full = Vec::new();
        let (mut state, written, result) = loop {
            let mut state = self.state.lock().await;
            let (own, session) = (self.own_to_write(io, &mut state, options.spread).await?, state.session);
            drop(state);
            let (written, result) = self.write_pieces(io, &own, list, options.registration).await;
            let mut state = self.state.lock().await;
            state.notice_session(io);
            if state.session != session {
                return state.tell(Err(Error::SessionEnded));
            }
            // The part may have been replaced, with all others, in which these bytes are not; or left.
            if !state.has_own(&own) {
                continue;
            }
            if result != Err(Error::NoSpace) || !options.spill {
                break (state, written, result);
            }
            full.push(own.held.object.node());
            if self.group.is_some() {
                // Others see the pieces of an ordinary handle's write at the same time.
                list[..written].iter().for_each(|(bytes, offset)| state.landed(*offset, bytes.len() as u64));
                list = &list[written..];
            }
            let spilled = self.spill(io, &mut state, &full).await;
            if let Err(error) = state.tell(spilled) {
                break (state, 0, Err(error));
            }
        };
        let list = &list[..written];
        let published = match self.group {
            None => self.publish_written(io, &mut state, list).await,
            Some(_) => self.note_written(io, &mut state, list).await,
        };
        let is_published = state.tell(published)?;
        result.map(|()| is_published)
    }

    /// Pieces of a member's write are in the part. Returns whether they are published.
    async fn note_written(&self, io: &Objects<S>, state: &mut State<S>, list: &[(&[u8], u64)]) -> Result<bool> {
        list.iter().for_each(|(bytes, offset)| state.landed(*offset, bytes.len() as u64));
        let publishes = state.unpublished.count() >= UNPUBLISHED_MAX;
        if publishes {
            self.publish_unpublished(io, state).await?;
        }
        Ok(publishes)
    }

    /// Returns how many pieces are in the part for certain.
    async fn write_pieces(
        &self,
        io: &Objects<S>,
        own: &OwnPart<S>,
        list: &[(&[u8], u64)],
        registration: Option<Registration<S>>,
    ) -> (usize, Result<()>) {
        if own.file.is_none() && list.len() > 1 && registration.is_none() {
            let mut write = ObjectWrite::new((self.inode, own.held.into()), DataOperation::Write, false);
            let result = io.write_list_together(&mut write, list).await.map(drop);
            return (if result.is_ok() { list.len() } else { 0 }, result);
        }
        for (index, (bytes, offset)) in list.iter().enumerate() {
            if let Err(error) = self.write_piece(io, own, bytes, *offset, registration).await {
                return (index, Err(error));
            }
        }
        (list.len(), Ok(()))
    }

    async fn write_piece(
        &self,
        io: &Objects<S>,
        own: &OwnPart<S>,
        bytes: &[u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match &own.file {
            Some((file, call_bytes)) => io.calls.shell.write_file(file, bytes, offset, *call_bytes).await,
            None => {
                let mut write = ObjectWrite::new((self.inode, own.held.into()), DataOperation::Write, false);
                io.write_part(&mut write, own.held, bytes, offset, registration).await.map(drop)
            }
        }
    }

    pub(super) async fn publish_unpublished(&self, io: &Objects<S>, state: &mut State<S>) -> Result<()> {
        self.settle_handed_out(io, state).await?;
        if state.unpublished.is_empty() { Ok(()) } else { self.publish_part(io, state, None).await }
    }

    /// Publishes the unpublished extents of the own part, gives up the range that is held, and asks for this one.
    /// Without any extents, it still makes the part known to the shard.
    pub(super) async fn publish_part(
        &self,
        io: &Objects<S>,
        state: &mut State<S>,
        wanted: Option<(u64, u64)>,
    ) -> Result<()> {
        self.settle_handed_out(io, state).await?;
        let Some(object) = state.own.as_ref().map(|own| own.held.object) else { return Ok(()) };
        let mut patterns = state.unpublished.take();
        // Programs were told that what is in the range is written. The error of a write that is not is its program's.
        let is_owed = self.held(io).is_some() && !patterns.is_empty();
        loop {
            let rest = patterns.split_off(patterns.len().min(SPLIT_PATTERNS_MAX));
            let range = match rest.is_empty() {
                true => RangeUse { given_up: state.range_stamp, wanted },
                false => RangeUse::default(),
            };
            let (writer, number) = (state.session, io.parts_in_use.next_publication());
            let part = PublishedPart { writer, object, number, patterns };
            match self.publish_parts(io, writer, vec![part.clone()], None, range).await {
                Ok(answer) => {
                    state.published(answer.as_ref(), object, &part.patterns);
                    if rest.is_empty() {
                        if is_owed {
                            self.note_reported(io);
                        }
                        self.take_answer(io, state, answer.as_ref(), wanted);
                        return Ok(());
                    }
                }
                Err(error) => {
                    if self.group.is_some() {
                        patterns = part.patterns;
                        patterns.extend(rest);
                        state.unpublished.add_back(patterns);
                    } else if is_owed && is_unanswered(&error) {
                        state.handed_out = Some(part);
                        state.unpublished.add_back(rest);
                    } else if is_owed {
                        state.note_lost(io);
                    }
                    return Err(self.publication_failed(io, state, error));
                }
            }
            patterns = rest;
        }
    }

    /// Returns the error to report for a failed publication. If the group has ended, what was not published is lost.
    pub(super) fn publication_failed(&self, io: &Objects<S>, state: &mut State<S>, error: Error) -> Error {
        state.notice_session(io);
        if error != Error::BadHandle || self.group.is_none() {
            return error;
        }
        (state.is_over, state.own) = (true, None);
        if state.drop_unpublished(io) {
            state.error.get_or_insert(Error::SessionEnded);
        }
        Error::SessionEnded
    }

    /// Publishes an append to a part at the end of the file.
    async fn publish_append(
        &self,
        io: &Objects<S>,
        (writer, object): (SessionId, ObjectId),
        run: Pattern,
    ) -> Result<Option<AttributesAnswer>> {
        let (number, patterns) = (io.parts_in_use.next_publication(), vec![run]);
        let part = PublishedPart { writer, object, number, patterns };
        self.publish_parts(io, writer, vec![part], Some(run.start()), RangeUse::default()).await
    }

    /// Writes all bytes at the end of the file, and publishes them. Returns where they begin. If others have made the
    /// file longer before the shard hears of them, they are written once more behind that: nobody was told of the first
    /// place, in which nobody else has bytes.
    async fn append(&self, io: &Objects<S>, bytes: &[u8], options: &OpenOptions<Registration<S>>) -> Result<u64> {
        let mut state = self.state.lock().await;
        let mut full = Vec::new();
        loop {
            let landed = self.land(io, &mut state).await;
            state.tell(landed)?;
            let published = self.publish_unpublished(io, &mut state).await;
            state.tell(published)?;
            let own = self.own_to_write(io, &mut state, options.spread).await?;
            let session = state.session;
            state.is_fresh = false;
            self.refresh(io, &mut state, 0..0).await?;
            let offset = state.size;
            let end = end_of(offset, bytes.len())?;
            if state.is_claimed(&(offset..end)) {
                state = self.state.wait(state).await;
                continue;
            }
            match self.write_piece(io, &own, bytes, offset, options.registration).await {
                Err(Error::NoSpace) if options.spill => {
                    full.push(own.held.object.node());
                    self.spill(io, &mut state, &full).await?;
                    continue;
                }
                written => written?,
            }
            state.notice_session(io);
            if state.session != session {
                return Err(Error::SessionEnded);
            }
            state.part_has_bytes();
            let Some(run) = Pattern::run(offset, bytes.len() as u64) else { return Ok(offset) };
            match self.publish_append(io, (session, own.held.object), run).await {
                Ok(answer) => {
                    state.published(answer.as_ref(), own.held.object, &[run]);
                    return Ok(offset);
                }
                Err(Error::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Publishes all writes so far, once their bytes are at the part's node; those that have got there also when others
    /// are lost.
    pub(crate) async fn publish(&self, io: &Objects<S>) -> Result<()> {
        let mut state = self.state.lock().await;
        let landed = self.land(io, &mut state).await;
        let landed = state.tell(landed);
        let settled = self.settle_handed_out(io, &mut state).await;
        let published = match state.unpublished.is_empty() {
            true => settled,
            false => {
                let kept = self.to_keep(io);
                settled.and(self.publish_part(io, &mut state, kept).await)
            }
        };
        state.is_fresh = false;
        landed.and(state.tell(published))
    }

    /// Publishes what was written, and brings it to the node's device. From now on what others have published before is
    /// seen.
    pub(crate) async fn sync(&self, io: &Objects<S>) -> Result<()> {
        self.publish(io).await?;
        let own = self.state.lock().await.own.clone();
        match own {
            Some(own) => self.sync_part(io, &own).await,
            None => Ok(()),
        }
    }

    pub(super) async fn sync_part(&self, io: &Objects<S>, own: &OwnPart<S>) -> Result<()> {
        match &own.file {
            Some((file, _)) => io.calls.shell.sync_file(file).await,
            None if own.has_bytes => io.sync_objects(self.inode, &own.held.into()).await,
            // The node may have no such object.
            None => Ok(()),
        }
    }
}
