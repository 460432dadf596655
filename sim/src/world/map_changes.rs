//! Changes of the map in runs of mounts: each round of system calls may have some begin.
//!
//! Not here: what becomes of it (`joins.rs`, `moves.rs`, `leaves.rs`).

use super::joins::Message;
use super::{Message as Any, World};
use crate::random::Random;
use crate::script::{Word, numbers};
use crate::system_calls::{CLIENTS, pick};

/// As many changes may begin in a round.
const CHANGES_MAX: u64 = 2;
/// One of so many has nodes join, as long as there are not so many nodes; one of so many has a node leave.
const JOINS: u64 = 100;
const LEAVES: u64 = 80;
const NODES_MAX: u64 = 8;
/// One of so many has a shard move; one in so many of these is the root shard, which programs use most.
const MOVES: u64 = 4;
const ROOTS: u64 = 2;
/// Longest time from the beginning of the round, milliseconds, and of one change in so many.
const DELAY_MS_MAX: u64 = 60;
const LATER_MS_MAX: u64 = 3000;
const LATER: u64 = 4;

/// What changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MapChange {
    Nothing,
    /// So many nodes join, with so many shards each.
    Join {
        nodes: u64,
        shards: u64,
        in_ms: u64,
    },
    /// A shard moves to a node, which is given by its place in the map.
    Move {
        shard: u64,
        node: u64,
        in_ms: u64,
    },
    /// A client has a node leave, given as above.
    Leave {
        node: u64,
        client: usize,
        in_ms: u64,
    },
}

impl Word for MapChange {
    fn write(&self) -> String {
        match self {
            Self::Nothing => "stays".to_owned(),
            Self::Join { nodes, shards, in_ms } => format!("join {nodes} {shards} {in_ms}"),
            Self::Move { shard, node, in_ms } => format!("move {shard} {node} {in_ms}"),
            Self::Leave { node, client, in_ms } => format!("leave {node} {client} {in_ms}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.split(' ').next()? {
            "stays" => Some(Self::Nothing),
            "join" => {
                let [nodes, shards, in_ms] = numbers(text, "join")?;
                let is_some = |count: u64| (1..=2).contains(&count);
                (is_some(nodes) && is_some(shards)).then_some(Self::Join { nodes, shards, in_ms })
            }
            "move" => {
                let [shard, node, in_ms] = numbers(text, "move")?;
                Some(Self::Move { shard, node, in_ms })
            }
            "leave" => {
                let [node, client, in_ms] = numbers(text, "leave")?;
                let client = usize::try_from(client).ok().filter(|client| *client < CLIENTS)?;
                Some(Self::Leave { node, client, in_ms })
            }
            _ => None,
        }
    }
}

fn choose(random: &mut Random, (shards, nodes): (u64, u64)) -> MapChange {
    let most_ms = if random.one_in(LATER) { LATER_MS_MAX } else { DELAY_MS_MAX };
    let in_ms = random.below(most_ms);
    if random.one_in(JOINS) && nodes < NODES_MAX {
        return MapChange::Join { nodes: 1 + random.below(2), shards: 1 + random.below(2), in_ms };
    }
    if random.one_in(MOVES) {
        let shard = if random.one_in(ROOTS) { 0 } else { random.below(shards) };
        return MapChange::Move { shard, node: random.below(nodes), in_ms };
    }
    if random.one_in(LEAVES) {
        return MapChange::Leave { node: random.below(nodes), client: pick(random, CLIENTS), in_ms };
    }
    MapChange::Nothing
}

impl World {
    /// A round begins: the map may change in it, in a run of that kind.
    pub(super) fn map_may_change(&mut self) {
        if !self.faults.moves {
            return;
        }
        let map = self.root_map();
        let counts = (map.shards.len() as u64, map.nodes.len() as u64);
        for _ in 0..CHANGES_MAX {
            let change = self.setting.decide(format_args!("map"), MapChange::Nothing, |random| choose(random, counts));
            let (MapChange::Join { in_ms, .. } | MapChange::Move { in_ms, .. } | MapChange::Leave { in_ms, .. }) =
                change
            else {
                continue;
            };
            self.network.after(in_ms, Any::Joins(Message::Change(change)));
        }
    }

    pub(super) fn change_map(&mut self, change: MapChange) {
        match change {
            MapChange::Nothing => {}
            MapChange::Join { nodes, shards, .. } => self.join(nodes, shards),
            MapChange::Move { shard, node, .. } => self.move_shard(shard, node),
            MapChange::Leave { node, client, .. } => self.begin_leaving(node, client),
        }
    }
}
