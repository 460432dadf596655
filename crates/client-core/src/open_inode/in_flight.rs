//! Writes under an exclusive lease that are made without the lock.

use super::writes::{Target, write_failed};
use super::{Guard, OpenInode, Written};
use crate::link::SlotFor;
use crate::objects::{Objects, Registration};
use crate::open_options::OpenOptions;
use crate::shell::{Monitor, Shell};
use std::sync::atomic::Ordering;
use weft_protocol::{Error, Result};

/// A write in flight. Counted until it is dropped, also by a panic.
pub(super) struct Flight<'a, S: Shell>(pub &'a OpenInode<S>);

impl<S: Shell> Drop for Flight<'_, S> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.0.state.notify_all();
    }
}

impl<S: Shell> OpenInode<S> {
    /// Makes a write under an exclusive lease without the lock. `end`: of the last range in the file.
    pub(super) async fn write_in_flight(
        &self,
        io: &Objects<S>,
        mut state: Guard<'_, S>,
        (list, end): (&[(&[u8], u64)], u64),
        options: &OpenOptions<Registration<S>>,
        mut target: Target<S>,
    ) -> Result<Written> {
        if options.direct {
            state.known.direct_write_begins(end);
        } else {
            state.note_written(io, end);
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        state.in_flight += 1;
        let session = state.known.session();
        drop(state);
        let flight = Flight(self);
        let written = target.write(io, list, options.direct).await;
        let mut state = self.state.lock().await;
        state.in_flight -= 1;
        drop(flight);
        state.slot = SlotFor::Caller;
        // Whoever read while the bytes were in flight may have others at hand.
        self.changed();
        // If the session ended meanwhile, the write may have raced the next holder; and where that has taken the object
        // away, this is what to say. Who else held the lock may have noticed the end.
        state.hold_since(io, session).await?;
        match written {
            Ok(Some(object_mtime)) if options.direct => state.known.direct_write_landed(end, object_mtime),
            Ok(object_mtime) => object_mtime.into_iter().for_each(|time| state.known.object_written(time)),
            Err(error) => {
                // It was counted into the size when it began, and a part of it may be there.
                state.is_unsettled = true;
                if options.direct {
                    state.note_written(io, end);
                }
                return Err(write_failed(error, options.append, target.may_have_landed()));
            }
        }
        state.known.arrived();
        // Somebody may have reported the size from before the bytes were there.
        state.known.landed(end);
        if state.known.reports_object(options.direct) && !state.commit(io).await? {
            return Err(Error::NoObject);
        }
        Ok(Written { offset: list[0].1, is_safe: options.direct })
    }
}
