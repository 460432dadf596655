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
//! A storage server that is not answered takes pages for dropped two terms after it has asked, and refuses to renew
//! the session after one. So a client that has heard of no renewal of a node for half a term has the pages dropped
//! that the node has noted ([`Files::drop_unheard`]).

use crate::files::Files;
use crate::lock::lock;
use crate::shell::Shell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::recall::{DropPages, PagesDropped};
use weft_protocol::{InodeNumber, NodeId};

/// How long noted pages are believed without a renewal at their node, milliseconds: with the time until that is
/// noticed, well below two terms.
const UNHEARD_MS_MAX: u64 = SESSION_TERM_MS / 2;

/// Files of which pages are noted, by the node that noted them.
#[derive(Default)]
pub(crate) struct NotedPages(Mutex<BTreeMap<NodeId, Noted>>);

struct Noted {
    /// When the last renewal was sent that the node has answered, or the first page was asked for.
    heard_ms: u64,
    inodes: BTreeSet<InodeNumber>,
}

impl NotedPages {
    /// A page of the file is about to be noted.
    pub fn note(&self, node: NodeId, inode: InodeNumber, now_ms: u64) {
        let mut noted = lock(&self.0);
        noted.entry(node).or_insert(Noted { heard_ms: now_ms, inodes: BTreeSet::new() }).inodes.insert(inode);
    }

    /// The node has answered a renewal that was sent then.
    pub fn heard(&self, node: NodeId, sent_ms: u64) {
        if let Some(noted) = lock(&self.0).get_mut(&node) {
            noted.heard_ms = noted.heard_ms.max(sent_ms);
        }
    }

    /// The session is over, and everything is dropped with it.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    fn take_unheard(&self, now_ms: u64) -> Vec<(NodeId, BTreeSet<InodeNumber>)> {
        let is_unheard = |noted: &mut Noted| now_ms >= noted.heard_ms + UNHEARD_MS_MAX;
        let taken = lock(&self.0).extract_if(.., |_, noted| is_unheard(noted)).collect::<Vec<_>>();
        taken.into_iter().map(|(node, noted)| (node, noted.inodes)).collect()
    }
}

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

    /// Has the kernel drop pages that another client is about to change. Returns the answer for the storage server.
    pub async fn drop_pages(&self, drop: &DropPages) -> PagesDropped {
        self.calls().shell.invalidate_pages(drop.inode, drop.offset, drop.bytes).await;
        PagesDropped { object: drop.object, number: drop.number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_node_that_is_not_heard_are_believed_for_half_a_term() {
        let noted = NotedPages::default();
        let (near, away, inode) = (NodeId(1), NodeId(2), InodeNumber::from_raw(7));
        for node in [near, away] {
            noted.note(node, inode, 1000);
        }
        noted.heard(near, 4000);
        noted.heard(near, 3000);
        assert_eq!(noted.take_unheard(999 + UNHEARD_MS_MAX), []);
        noted.note(away, inode, 2000);
        assert_eq!(
            noted.take_unheard(1000 + UNHEARD_MS_MAX),
            [(away, BTreeSet::from([inode]))],
            "reading is no renewal"
        );
        noted.note(away, inode, 9000);
        assert_eq!(noted.take_unheard(4000 + UNHEARD_MS_MAX), [(near, BTreeSet::from([inode]))]);
        noted.clear();
        assert_eq!(noted.take_unheard(u64::MAX), []);
    }
}
