//! One member of a group publishes what several have written: those of a node, so that the shard has one call of each
//! node.
//!
//! Each member tells what it has to publish, and keeps it (*handed out*) until it knows what has become of it. If that
//! is not known, or it was refused, the member publishes it by itself, with the same number: the shard makes a
//! publication once, so a call of the other one that comes later changes nothing.
//!
//! Not here: how members are told (`fronts/mpi/driver`), which writers the shard takes (weft-metadata's
//! `front/split.rs`).
//! On a crash: of the member that publishes for others, these publish by themselves. Of another one, the shard refuses
//! all that it was part of, or makes it, and the others publish by themselves or do not have to.

use super::{SplitFile, State};
use crate::calls::AttributesAnswer;
use crate::link::SlotFor;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use weft_protocol::limits::{SPLIT_PATTERNS_MAX, SPLIT_PUBLISHED_MAX};
use weft_protocol::message::shard::{RangeUse, ShardRequest};
use weft_protocol::{Error, Publication, PublishedPart, Result, SessionId};

impl<S: Shell> SplitFile<S> {
    /// What this member has written and not published, as another one may publish it. It stays here until
    /// [`SplitFile::published_by_other`]; whatever needs it published before does that. `None`: there is nothing.
    pub(crate) async fn hand_out(&self, io: &Objects<S>) -> Result<Option<Publication>> {
        let (inode, Some(group)) = (self.inode, self.group) else { return Ok(None) };
        let mut state = self.state.lock().await;
        let landed = self.land(io, &mut state).await;
        state.tell(landed)?;
        state.notice_session(io);
        state.check(self.group)?;
        if !state.unpublished.is_empty() {
            let settled = self.settle_handed_out(io, &mut state).await;
            state.tell(settled)?;
        }
        if state.unpublished.count() > SPLIT_PATTERNS_MAX {
            let published = self.publish_unpublished(io, &mut state).await;
            state.tell(published)?;
        }
        let object = state.own.as_ref().map(|own| own.held.object);
        if let (Some(object), false) = (object, state.unpublished.is_empty()) {
            let (writer, number) = (state.session, io.parts_in_use.next_publication());
            let patterns = state.unpublished.take();
            state.handed_out = Some(PublishedPart { writer, object, number, patterns });
        }
        Ok(state.handed_out.clone().map(|part| Publication { inode, group, part }))
    }

    /// Another member has published what was handed out.
    pub(crate) async fn published_by_other(&self) {
        let mut state = self.state.lock().await;
        (state.handed_out, state.is_fresh) = (None, false);
    }

    /// Publishes what was handed out, if it is not known to be published.
    pub(super) async fn settle_handed_out(&self, io: &Objects<S>, state: &mut State<S>) -> Result<()> {
        let Some(part) = state.handed_out.clone() else { return Ok(()) };
        let range = RangeUse { given_up: state.range_stamp, wanted: None };
        match self.publish_parts(io, part.writer, vec![part], None, range).await {
            Ok(answer) => {
                // Since when it is published is not known: the next answer tells.
                (state.handed_out, state.is_fresh) = (None, false);
                if self.group.is_none() {
                    self.note_reported(io);
                }
                state.size = state.size.max(answer.map_or(0, |answer| answer.attributes.size));
                Ok(())
            }
            Err(error) => {
                if self.group.is_none() && !is_unanswered(&error) && state.handed_out.take().is_some() {
                    state.note_lost(io);
                }
                Err(self.publication_failed(io, state, error))
            }
        }
    }

    /// Publishes what members of the group have handed out, this one too, in as few calls as it fits into. Returns for
    /// each whether that was done; after an error its member publishes by itself.
    pub(crate) async fn publish_for(&self, io: &Objects<S>, publications: Vec<Publication>) -> Vec<Result<()>> {
        let session = self.state.lock().await.session;
        let mut results = Vec::with_capacity(publications.len());
        let mut parts = Vec::new();
        let mut left = publications.into_iter().peekable();
        while let Some(Publication { inode, group, part }) = left.next() {
            if inode != self.inode || Some(group) != self.group {
                return vec![Err(Error::Invalid); results.len() + parts.len() + 1 + left.len()];
            }
            parts.push(part);
            if left.peek().is_none_or(|next| !fits(&parts, &next.part)) {
                let count = parts.len();
                let result = self
                    .publish_parts(io, session, std::mem::take(&mut parts), None, RangeUse::default())
                    .await
                    .map(drop);
                results.extend(std::iter::repeat_n(result, count));
            }
        }
        results
    }

    /// Publishes parts at the shard. `session` must be alive: for a handle's own part, the one that wrote it, since the
    /// shard may collect the part once that session has ended.
    pub(super) async fn publish_parts(
        &self,
        io: &Objects<S>,
        session: SessionId,
        parts: Vec<PublishedPart>,
        appends_to: Option<u64>,
        range: RangeUse,
    ) -> Result<Option<AttributesAnswer>> {
        let (inode, group) = (self.inode, self.group);
        let request = ShardRequest::Publish { inode, group, parts, appends_to, range };
        // Callers' slots may be taken by calls that wait for the range.
        let slot = if self.held(io).is_some() { SlotFor::Recall } else { SlotFor::Caller };
        io.calls.report_once(Some(session), slot, &self.who, inode, request).await
    }
}

/// Whether a publication that failed with this error may be made all the same.
pub(super) fn is_unanswered(error: &Error) -> bool {
    matches!(error, Error::Unreachable | Error::Busy)
}

/// Whether one more part fits into a call with these.
fn fits(parts: &[PublishedPart], next: &PublishedPart) -> bool {
    let patterns: usize = parts.iter().chain([next]).map(|part| part.patterns.len()).sum();
    parts.len() < SPLIT_PUBLISHED_MAX && patterns <= SPLIT_PATTERNS_MAX
}
