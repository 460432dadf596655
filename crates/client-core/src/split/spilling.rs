//! Writes for which the own part's node has no space, and whose writer has chosen to go on at another node.
//!
//! The handle gets another part there. What it has written before is published and synced first, so of the bytes that
//! both parts have, those of the other one are newer. The write that was refused is made again as a whole: what of it
//! is in the part that is left is named by no extent.
//!
//! Invariant: the shard knows every part that a handle has left, so a part without extents goes with the last close.
//! Not here: where runs that were refused are kept (`behind.rs`), which nodes have space (`new_objects.rs`).
//! On a crash: as of any part, what was not published is lost.

use super::{OwnPart, SplitFile, State};
use crate::file_objects::Held;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::shell::Shell;
use std::sync::Arc;
use weft_protocol::{Error, NodeId, Result};

impl<S: Shell> SplitFile<S> {
    /// Brings runs for which a node had no space to parts at other nodes. They are lost if none has space
    /// ([`State::tell`]); with any other error they stay.
    pub(super) async fn spill_runs(&self, io: &Objects<S>, state: &mut State<S>) -> Result<()> {
        let mut full = Vec::new();
        while let Some(refused_by) = state.behind.refused_by() {
            let own = self.ensure_own(io, state).await?;
            if own.held.object == refused_by {
                full.push(refused_by.node());
                match self.spill(io, state, &full).await {
                    Err(Error::NoSpace) => state.behind.lose_refused(),
                    spilled => spilled?,
                }
            } else {
                state.behind.send_refused(io, (self.inode, own.held)).await;
            }
            state.settle_behind(io);
            state.notice_session(io);
        }
        Ok(())
    }

    /// Leaves the own part, whose node is full, for one at a node that is not among these, which have refused what is
    /// written now. [`Error::NoSpace`]: there is none.
    pub(super) async fn spill(&self, io: &Objects<S>, state: &mut State<S>, full: &[NodeId]) -> Result<()> {
        self.land_in_flight(io, state).await;
        let Some(left) = state.own.clone() else { return Ok(()) };
        let session = state.session;
        self.publish_part(io, state, None).await?;
        let Some(next) = self.part_elsewhere(io, full).await? else { return Err(Error::NoSpace) };
        self.sync_part(io, &left).await?;
        state.notice_session(io);
        if state.session != session {
            return Err(Error::SessionEnded);
        }
        if state.has_own(&left) {
            let (full, node) = (left.held.object.node(), next.held.object.node());
            io.calls.shell.notice(Notice::Spilled { inode: self.inode, full, node });
            state.own = Some(next);
            // The right to read what is in the part that is left.
            state.forget();
        }
        Ok(())
    }

    /// A part of this session that no handle uses, or a new one, at a node that is not among these.
    async fn part_elsewhere(&self, io: &Objects<S>, full: &[NodeId]) -> Result<Option<OwnPart<S>>> {
        let asked_ms = io.calls.shell.now_ms();
        let Some(new) = io.new_object_elsewhere(full).await else { return Ok(None) };
        let is_there = |held: &Held| held.object.node() == new.object.node();
        let known = self.ask_own_parts(io).await?.into_iter().filter(is_there);
        let known = known.filter_map(|held| Some((held, io.parts_in_use.take(held.object)?))).next();
        let has_bytes = known.is_some();
        let (held, in_use, until_ms) = match known {
            Some((held, in_use)) => (held, in_use, asked_ms + super::RIGHTS_MS),
            None => {
                let in_use = io.parts_in_use.take(new.object).expect("a new object is nobody's part");
                (new, in_use, asked_ms + super::NEW_RIGHTS_MS)
            }
        };
        let file = self.own_file(io, held).await;
        Ok(Some(OwnPart { held, file, until_ms, has_bytes, in_use: Arc::new(in_use) }))
    }
}
