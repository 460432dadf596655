//! Pages that a device reads into, registered for transfers too: what it has filled is put into a client's memory from
//! where it is.
//!
//! Each is registered at the first transfer out of it, and as long as the store is there. A device has a page for two
//! of its rings, so there are few, and what is locked in memory is bounded. Processes that may not lock memory as they
//! like while there are adapters register none: what they may lock is for connections.

use crate::store::lock;
use std::sync::{Arc, Mutex};
use weft_sys::huge::HugePage;
use weft_ucx::{PageWindow, may_lock_files};

/// Pages of one device's rings.
#[derive(Debug, Default)]
pub struct RingPages {
    /// `None`: it could not be registered, and is not tried again.
    known: Mutex<Vec<(HugePage, Option<Arc<PageWindow>>)>>,
}

impl RingPages {
    /// The page as transfers know it. `None`: they do not.
    pub fn at(&self, page: &HugePage) -> Option<Arc<PageWindow>> {
        let mut known = lock(&self.known);
        if let Some((_, window)) = known.iter().find(|(other, _)| other == page) {
            return window.clone();
        }
        let window = if may_lock_files() { register(page) } else { None };
        known.push((page.clone(), window.clone()));
        window
    }
}

fn register(page: &HugePage) -> Option<Arc<PageWindow>> {
    let made = PageWindow::new(page.clone());
    made.inspect_err(|error| tracing::debug!(%error, "a ring's memory is not registered for transfers"))
        .ok()
        .map(Arc::new)
}
