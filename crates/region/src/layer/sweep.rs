//! Much of the address space goes at once: the map is made anew, with what is to stay, in one transaction.
//!
//! What this costs depends on what stays, but for the pages of the old map, which are given back, and the discards.
//!
//! On a crash: the map is the old one, or the new one.

use super::{Layer, read, write};
use crate::error::{Result, at};
use crate::lock;
use crate::overlay::{Overlay, Piece};
use crate::space::Space;
use std::ops::Range;

impl Layer {
    /// Takes away all that is mapped in a range of virtual blocks. Its space is free when this returns, and all that
    /// was written elsewhere before is safe. A block that somebody begins to write there meanwhile stays.
    pub(crate) fn sweep(&self, gone: &Range<u64>) -> Result<()> {
        // Nobody is about to have a run of blocks that are free now.
        let _alone = lock(&self.opening_run);
        self.in_turn(|log| {
            log.forget_failed(&*self.device)?;
            // Nothing is on its way to be mapped until this ends. Whoever has stripes waits neither for the turn nor to
            // place.
            let mut placing: Vec<_> = self.placing.iter().map(lock).collect();
            let _stripes = self.stripes.take(std::slice::from_ref(&(0..u64::MAX)));
            let _gathered = self.stop_gathering();
            write(&self.state).end_runs(&self.ready);
            placing.first_mut().map_or(Ok(()), |buffer| self.place_batch(buffer))?;
            let kept = self.all_but(gone)?;
            let mut space = Space::new(self.geometry.data_blocks());
            space.keep_away(self.geometry.not_for_data());
            kept.iter().for_each(|piece| space.restore(piece.mapped_at(), piece.count, true));
            self.device.flush().map_err(at("flush the device"))?;
            let sums = write(&self.state).sums.freeze();
            let replaced = self.base.replace(&kept, &sums, &space.take_changed(), log.head());
            write(&self.state).sums.thaw(replaced.is_ok());
            replaced?;
            self.known_sums.note(&sums);
            let freed = self.forget_all_but_the_map(&space);
            log.release();
            let discarded = self.discard(&freed);
            // Only now somebody may get them.
            write(&self.state).space = space;
            discarded
        })
    }

    /// What is mapped outside of a range.
    fn all_but(&self, gone: &Range<u64>) -> Result<Vec<Piece>> {
        let state = read(&self.state);
        let mut kept = self.mapped(&state, 0..gone.start)?;
        kept.extend(self.mapped(&state, gone.end..u64::MAX)?);
        Ok(kept)
    }

    /// The map is all there is, and what was looked up before is of no more use to anybody. Blocks that are in use, and
    /// not in this space.
    fn forget_all_but_the_map(&self, space: &Space) -> Vec<(u64, u64)> {
        let _gate = write(&self.gate);
        self.reuses.note();
        let mut state = write(&self.state);
        state.active = Overlay::default();
        state.begin_recording();
        state.recording.clear();
        self.known.forget();
        self.epochs.change_all();
        state.space.not_in(space)
    }
}
