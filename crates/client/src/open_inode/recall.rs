//! A lease is given up: what the recall thread does with an open inode before it answers.
//!
//! Invariant: when a recall is answered, nothing that was begun under the lease is under way any more.

use super::{Descriptor, OpenInode, State};
use crate::link::lock;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use weft_protocol::SessionId;

/// How long a recall waits for reads that are using a passed descriptor.
const DESCRIPTOR_USE_MAX: Duration = Duration::from_secs(1);

impl OpenInode {
    /// A recall to this session, with its stamp: from now on nothing is gathered or believed, no descriptor is used;
    /// [`OpenInode::flush`] follows. Waits for writes in flight. No message.
    pub fn weaken(&self, session: SessionId, stamp: u64) {
        let mut state = lock(&self.state);
        if state.known.weaken(session, stamp) {
            let descriptor = std::mem::replace(&mut state.descriptor, Descriptor::NotAsked);
            let kernel_has_it = state.kernel.is_some();
            drop(self.await_flights(state));
            // A kernel goes on using it: the shard asks the storage server for size and time.
            if let Descriptor::Passed(file, _) = descriptor
                && !kernel_has_it
            {
                await_reads(&file);
            }
        }
        self.changed();
    }

    /// Waits until no write is in flight, and lets none begin meanwhile.
    pub(super) fn await_flights<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.awaiting += 1;
        while state.in_flight > 0 {
            state = self.landed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.awaiting -= 1;
        self.landed.notify_all();
        state
    }
}

fn await_reads(file: &Arc<OwnedFd>) {
    let mut waited = Duration::ZERO;
    let pause = Duration::from_micros(50);
    while Arc::strong_count(file) > 1 && waited < DESCRIPTOR_USE_MAX {
        std::thread::sleep(pause);
        waited += pause;
    }
}
