//! Files of which storage servers have noted pages of the kernel above this client, by node.
//!
//! A storage server that is not answered takes pages for dropped two terms after it has asked, and refuses to renew
//! the session after one. So pages are believed for half a term after the last renewal that their node has answered.
//!
//! Not here: what is done with those that are believed no longer (`page_drops.rs`).

use crate::lock::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{InodeNumber, NodeId};

/// How long noted pages are believed without a renewal at their node, milliseconds: with the time until that is
/// noticed, well below two terms.
const UNHEARD_MS_MAX: u64 = SESSION_TERM_MS / 2;

/// Files of which pages are noted.
#[derive(Default)]
pub(crate) struct NotedPages {
    /// By the node that noted them.
    by_node: Mutex<BTreeMap<NodeId, Noted>>,
    /// Those that are striped: ranges of their objects are not ranges of the files.
    striped: Mutex<BTreeSet<InodeNumber>>,
}

struct Noted {
    /// When the last renewal was sent that the node has answered, or the first page was asked for.
    heard_ms: u64,
    inodes: BTreeSet<InodeNumber>,
}

impl NotedPages {
    /// A page of the file is about to be noted.
    pub fn note(&self, node: NodeId, inode: InodeNumber, now_ms: u64) {
        let mut noted = lock(&self.by_node);
        noted.entry(node).or_insert(Noted { heard_ms: now_ms, inodes: BTreeSet::new() }).inodes.insert(inode);
    }

    /// Pages of a striped file are about to be noted.
    pub fn note_striped(&self, inode: InodeNumber) {
        lock(&self.striped).insert(inode);
    }

    /// Whether ranges that nodes noted are not ranges of the file.
    pub fn is_striped(&self, inode: InodeNumber) -> bool {
        lock(&self.striped).contains(&inode)
    }

    /// The node has answered a renewal that was sent then.
    pub fn heard(&self, node: NodeId, sent_ms: u64) {
        if let Some(noted) = lock(&self.by_node).get_mut(&node) {
            noted.heard_ms = noted.heard_ms.max(sent_ms);
        }
    }

    /// The session is over, and everything is dropped with it.
    pub fn clear(&self) {
        lock(&self.by_node).clear();
        lock(&self.striped).clear();
    }

    /// Takes the files whose pages are believed no longer, by the node that noted them.
    pub fn take_unheard(&self, now_ms: u64) -> Vec<(NodeId, BTreeSet<InodeNumber>)> {
        let is_unheard = |noted: &mut Noted| now_ms >= noted.heard_ms + UNHEARD_MS_MAX;
        let taken = lock(&self.by_node).extract_if(.., |_, noted| is_unheard(noted)).collect::<Vec<_>>();
        taken.into_iter().map(|(node, noted)| (node, noted.inodes)).collect()
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
