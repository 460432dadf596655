//! Pages of kernels above clients that no lease covers, as a client sees them.
//!
//! A file that a kernel has open cached stays so when its lease is recalled. What it reads and writes from then on is
//! marked in the requests to its storage server, which has the pages dropped before another client changes them.
//!
//! Invariant: a drop is answered on a thread that serves nothing else, and waits for no lock of this client. It may
//! wait for pages that are locked by reads of the kernel, which this client is serving: so nothing here waits for a
//! drop with a lock held that a read takes. What other kernels' pages are in the way of is refused by the server
//! after a moment, and sent again ([`weft_protocol::Error::PagesCached`]).
//!
//! A client that has heard of no renewal of a node for half a term drops the pages that the node has noted by itself
//! ([`Files::drop_unheard`]; `noted_pages.rs` says why).

use crate::files::Files;
use crate::shell::Shell;
use std::collections::BTreeSet;
use weft_protocol::message::recall::{DropPages, PagesDropped};
use weft_protocol::{InodeNumber, NodeId};

/// What vouches for bytes that a kernel keeps in its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coverage {
    /// A lease: its recall drops them.
    Lease,
    /// The storage server has noted them, and has them dropped.
    Noted,
    /// Nothing: they have to be dropped once they have been used.
    Nothing,
}

impl<S: Shell> Files<S> {
    /// Takes the files whose pages are not to be believed any more, by the node that noted them. To be called about
    /// as often as the session is renewed, and followed by [`Files::drop_unheard`].
    pub fn take_unheard(&self) -> Vec<(NodeId, BTreeSet<InodeNumber>)> {
        self.calls().session.noted_pages.take_unheard(self.calls().shell.now_ms())
    }

    /// Has the kernel drop all pages of these files.
    pub async fn drop_unheard(&self, inodes: &BTreeSet<InodeNumber>) {
        for inode in inodes {
            self.calls().shell.invalidate_pages(*inode, 0, u64::MAX).await;
        }
    }

    /// Has the kernel drop pages that another client is about to change; of a striped file all that it has. Returns the
    /// answer for the storage server.
    pub async fn drop_pages(&self, drop: &DropPages) -> PagesDropped {
        let is_striped = self.calls().session.noted_pages.is_striped(drop.inode);
        let (offset, bytes) = if is_striped { (0, u64::MAX) } else { (drop.offset, drop.bytes) };
        self.calls().shell.invalidate_pages(drop.inode, offset, bytes).await;
        PagesDropped { object: drop.object, number: drop.number }
    }
}
