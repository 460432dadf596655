//! Which node is this client's *home*: the node with storage, on this machine if there is one, where its files and
//! directories are made.
//!
//! The first home is picked at random, so that clients spread over several nodes, and without a message: a client
//! that only reads needs none. When a creation finds it away, the next node that answers becomes the home, so that a
//! node that ends costs its clients what was on it, and nothing new. A new map has the home picked anew.
//!
//! Here is the choice alone; `objects.rs` asks the nodes.

use crate::shell::Shell;
use weft_protocol::{ClusterMap, NodeId, NodeRecord};

/// All nodes with storage: those of this machine, then the others, each group rotated by a random number.
pub(crate) fn candidates<S: Shell>(shell: &S, map: &ClusterMap) -> Vec<NodeId> {
    let (kept, drained): (Vec<_>, Vec<_>) = map.nodes.iter().filter(|node| node.stores).partition(|node| !node.drains);
    // With nothing but nodes that are to be emptied, files are made there.
    let storing = if kept.is_empty() { drained } else { kept }.into_iter();
    let (near, far): (Vec<_>, Vec<_>) = storing.partition(|node| shell.is_local(node));
    let ids = |group: Vec<&NodeRecord>| group.iter().map(|node| node.id).collect();
    rotated(ids(near), ids(far), shell.random())
}

fn rotated(mut near: Vec<NodeId>, mut far: Vec<NodeId>, random: u64) -> Vec<NodeId> {
    for group in [&mut near, &mut far] {
        let turn = random % group.len().max(1) as u64;
        group.rotate_left(usize::try_from(turn).expect("a remainder of a length fits usize"));
    }
    near.append(&mut far);
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_this_machine_come_first_and_each_has_its_turn() {
        let chosen = |random| {
            let (near, far) = (vec![NodeId(0), NodeId(2)], vec![NodeId(1), NodeId(4)]);
            rotated(near, far, random).iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(chosen(0), [0, 2, 1, 4]);
        assert_eq!(chosen(1), [2, 0, 4, 1]);
        assert_eq!(rotated(Vec::new(), vec![NodeId(3)], u64::MAX), [NodeId(3)], "none here: any");
        assert!(rotated(Vec::new(), Vec::new(), 3).is_empty());
    }
}
