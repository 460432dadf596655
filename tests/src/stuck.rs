//! A client that lives and does not answer a recall.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use weft_client::{Client, Invalidator};
use weft_protocol::{InodeNumber, Name};

/// Holds up the recalls of a client at its cache above, which does not drop the names that it is told to.
pub struct Stuck(Arc<Barrier>);

struct Holding {
    released: Arc<Barrier>,
    /// It held one up: later ones go on.
    has_held: Mutex<bool>,
}

impl Invalidator for Holding {
    fn entries(&self, _: InodeNumber, _: Vec<Name>) {
        if !std::mem::replace(&mut *self.has_held.lock().unwrap_or_else(PoisonError::into_inner), true) {
            self.released.wait();
        }
    }

    fn inode(&self, _: InodeNumber, _: bool) {}
}

impl Stuck {
    /// The next recall of names to this client is not answered before [`Stuck::release`].
    pub fn new(client: &Client) -> Self {
        let released = Arc::new(Barrier::new(2));
        client.set_invalidator(Arc::new(Holding { released: Arc::clone(&released), has_held: Mutex::new(false) }));
        Self(released)
    }

    /// The recall is answered. Waits for it, if there was none so far.
    pub fn release(self) {
        self.0.wait();
    }
}
