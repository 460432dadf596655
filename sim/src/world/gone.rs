//! Runs of mounts in which a node is gone for good, with its shards and objects.
//!
//! It goes between two rounds, when it is known what there is: so it is known what was on it. Of what is lost with it,
//! programs may be told anything ([`crate::history::Gone`]); all else has to go on as before.

use super::{NODES, World};
use crate::choices::Choices;
use crate::history::{Gone, Kind, ROOT, State};
use crate::script::Word;
use crate::system_calls::pick;
use std::collections::BTreeMap;
use weft_protocol::{InodeNumber, Name, NodeId, routing};

/// What a script calls it.
pub(super) const DIES: &str = "node-dies";

impl World {
    /// Some node other than that of the root will be gone in some round.
    pub(super) fn choose_node_to_die(&mut self, seed: u64) {
        let mut choices = Choices::new(seed ^ 0x60e0, &self.choices.tape);
        let random = choices.stream();
        let round = 1 + random.below(super::mounts::ROUNDS * 3 / 4);
        let place = pick(random, usize::from(NODES) - 1);
        if let Some(run) = &mut self.mounts {
            run.dies = Some((round, place));
        }
    }

    /// The node dies that a seed has chosen, if its time has come and all is known.
    pub(super) fn node_may_die(&mut self, round: u64) {
        let Some((first, place)) = self.mounts.as_ref().and_then(|run| run.dies) else { return };
        let nodes = self.nodes_that_may_die();
        if round < first || nodes.is_empty() {
            return;
        }
        let node = nodes[place % nodes.len()];
        if let Some(run) = &mut self.mounts {
            run.dies = None;
        }
        self.choices.tape.record(format_args!("{DIES}"), || u64::from(node.0).write());
        self.node_dies(node);
    }

    /// The same, as a script says.
    pub(super) fn node_dies_as_told(&mut self, round: u64) {
        for (key, text) in self.choices.tape.lines_of(round, DIES) {
            let node = u64::read(&text).and_then(|node| u16::try_from(node).ok()).map(NodeId);
            let node = node.filter(|node| self.tally.nodes_gone == 0 && self.nodes_that_may_die().contains(node));
            self.choices.tape.followed(&key, node.is_some());
            if let Some(node) = node {
                self.node_dies(node);
            }
        }
    }

    /// Nodes without the root's shard, if it is known what is on each: what programs have done, and where shards and
    /// files that move are.
    fn nodes_that_may_die(&self) -> Vec<NodeId> {
        let is_certain = self.mounts.as_ref().is_some_and(|run| run.history.is_certain());
        if !is_certain || self.moves.is_any_on_its_way() || self.joins.is_changing() {
            return Vec::new();
        }
        let nodes = self.root_map().nodes.iter().map(|node| node.id);
        nodes.filter(|node| self.storage.contains_key(node) && !self.may_have_root(*node)).collect()
    }

    fn node_dies(&mut self, node: NodeId) {
        let Some(run) = &self.mounts else { return };
        let gone = self.gone_with(node, run.history.state());
        self.note(&format!("gone with node {node}: {gone:?}"));
        if let Some(run) = &mut self.mounts {
            run.history.forget(&gone);
        }
        self.tally.nodes_gone += 1;
        self.crash_node(node);
    }

    /// What is on a node.
    fn gone_with(&self, node: NodeId, state: &State) -> BTreeMap<u64, Gone> {
        let mut gone = BTreeMap::new();
        let mut paths = state.paths();
        paths.sort_by_key(|(path, _)| path.len());
        // The root's shard stays.
        let mut known = vec![ROOT];
        for (path, kind) in &paths {
            let Ok(id) = state.find(path) else { continue };
            known.push(id);
            let above = state.find(&path[..path.len() - 1]).ok().and_then(|above| gone.get(&above).copied());
            let of = self.inode_of(path).map_or(Gone::All, |inode| self.is_gone_with(node, inode, *kind));
            // By another name it may have been found before.
            let of = of.max(above.unwrap_or(Gone::Nothing)).max(gone.get(&id).copied().unwrap_or(Gone::Nothing));
            gone.insert(id, of);
        }
        let unnamed = state.in_use().filter(|id| !known.contains(id)).map(|id| (id, Gone::All));
        gone.extend(unnamed.collect::<Vec<_>>());
        gone.retain(|_, of| *of != Gone::Nothing);
        gone
    }

    /// The inode that a path has at the shards.
    fn inode_of(&self, path: &[String]) -> Option<InodeNumber> {
        path.iter().try_fold(InodeNumber::ROOT, |inode, name| {
            let name = Name::new(name.as_bytes()).ok()?;
            self.shards.get(&routing::of_inode(inode))?.back().dentry(inode, &name).map(|dentry| dentry.inode)
        })
    }

    /// How much of an inode is gone with a node. A file of which its shard knows no object may have one there.
    fn is_gone_with(&self, node: NodeId, inode: InodeNumber, kind: Kind) -> Gone {
        if self.node_of(routing::of_inode(inode)) == node {
            return Gone::All;
        }
        let objects = self.objects_of(inode);
        let is_elsewhere = !objects.is_empty() && objects.iter().all(|object| object.node() != node);
        match kind {
            Kind::Directory => Gone::Nothing,
            Kind::Regular if is_elsewhere => Gone::Nothing,
            Kind::Regular => Gone::Bytes,
        }
    }
}
