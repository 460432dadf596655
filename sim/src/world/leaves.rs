//! Nodes that leave: a client's program empties one ([`crate::leaves`]), and it ends when it is in no map any more.
//!
//! Nothing may be lost with it: it has no shard then, and no object of a file.

use super::joins::Message;
use super::{Message as Any, World};
use crate::leaves::Program;
use crate::relocations::UnderWay;
use std::rc::Rc;
use std::sync::Arc;
use weft_protocol::NodeId;

/// Longest time until a node ends that was removed, milliseconds.
const END_MS_MAX: u64 = 100;
/// So many nodes stay.
const NODES_LEAST: usize = 3;

impl World {
    /// A program of a client has a node leave, which is given by its place in the map, unless one does so already.
    pub(super) fn begin_leaving(&mut self, node: u64, client: usize) {
        let map = self.root_map();
        let place = usize::try_from(node).expect("few nodes");
        let (count, node) = (map.nodes.len(), map.nodes.get(place).map(|node| node.id));
        let Some(node) = node.filter(|_| count > NODES_LEAST && self.joins.leaving.get() == 0 && !self.ending) else {
            return;
        };
        self.note(&format!("client {client} has node {node} leave"));
        let process = Rc::clone(&self.clients[client].process);
        let program =
            Program { machine: Arc::clone(&self.clients[client].machine), process: Rc::clone(&process), node };
        // It uses files; and another one is not begun meanwhile, as with the command.
        let counted = [&self.relocations.under_way, &self.joins.leaving].map(UnderWay::begin);
        process.spawn(program.run(counted));
        self.poll(client);
    }

    /// A node is in no map any more: it ends soon.
    pub(super) fn node_was_removed(&mut self, node: NodeId) {
        let objects = self.storage.get(&node).into_iter().flat_map(crate::store::Storage::objects);
        for (object, inode) in objects {
            if self.objects_of(inode).contains(&object) {
                self.fail(&format!("node {node} was removed with object {object} of inode {inode}"));
            }
        }
        let end_ms = self.setting.decide(format_args!("node{node} ends"), 1, |random| 1 + random.below(END_MS_MAX));
        self.network.after(end_ms, Any::Joins(Message::Ends(node)));
    }

    /// A node that was removed ends.
    pub(super) fn node_ends(&mut self, node: NodeId) {
        self.tally.removed += 1;
        self.note(&format!("node {node} has left"));
        self.joins.left.insert(node);
        self.stop_storage(node);
        self.break_callers(node);
    }

    /// Whether what was at a node is lost. What was at one that has left is not.
    pub(super) fn is_lost_with(&self, node: NodeId) -> bool {
        !self.storage.contains_key(&node) && !self.joins.left.contains(&node)
    }
}
