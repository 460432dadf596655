//! The calls that shards are sent, and which of them are to change places for it.

use super::STATUS_PATIENCE;
use super::drain::move_shard;
use crate::failure::Outcome;
use crate::output;
use crate::session::{self, Session};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{ClusterMap, NodeId, ShardId};

/// How long calls are counted.
const COUNTED: Duration = Duration::from_secs(2);
/// Calls a second of all shards together below which no node has much to do.
const CALLS_LEAST: u64 = 1000;
/// The busiest node's calls have to become less by this part for shards to move.
const GAIN: u64 = 10;

/// Calls a second of each shard that was at the same node all the time.
type Rates = BTreeMap<ShardId, u64>;

/// Moves shards until no move, and no exchange of two, makes the busiest node's calls less by a tenth. The numbers of
/// shards at the nodes stay as even as they are.
pub fn balance(session: &Session, instance: &Instance, mut map: ClusterMap) -> Outcome<()> {
    let rates = measure(session, &map);
    if rates.values().sum::<u64>() < CALLS_LEAST {
        return Ok(());
    }
    for _ in 0..map.shards.len() {
        let moves = improvement(&map, &rates);
        if moves.is_empty() {
            break;
        }
        for (shard, to) in moves {
            output::print(&format!("{} calls a second: ", rates[&shard]))?;
            map = move_shard(session, instance, &map, (shard, to))?;
        }
    }
    Ok(())
}

fn measure(session: &Session, map: &ClusterMap) -> Rates {
    let (begun, before) = (Instant::now(), calls(session, map));
    std::thread::sleep(COUNTED);
    let (after, milliseconds) = (calls(session, map), begun.elapsed().as_millis());
    let rate = |(place, calls): ((NodeId, ShardId), u64)| {
        // It began anew if it has come back meanwhile.
        let more = calls.checked_sub(*before.get(&place)?)?;
        let rate = u128::from(more) * 1000 / milliseconds.max(1);
        Some((place.1, u64::try_from(rate).expect("fewer than there were calls")))
    };
    after.into_iter().filter_map(rate).collect()
}

fn calls(session: &Session, map: &ClusterMap) -> BTreeMap<(NodeId, ShardId), u64> {
    let nodes = map.nodes.iter().map(|node| node.id);
    let answers = session::ask_nodes(&session.client, nodes, &NodeRequest::Status, STATUS_PATIENCE);
    let mut calls = BTreeMap::new();
    for (node, answer) in answers {
        if let Ok(NodeAnswer::Status(status)) = answer {
            calls.extend(status.shards.iter().map(|shard| ((node, shard.shard), shard.calls)));
        }
    }
    calls
}

/// The move of a shard from the busiest node to the idlest, or the exchange of two, that leaves these most alike.
/// Empty: none makes the busiest one's calls less by a tenth. A node with a shard of which nothing is known stays as it
/// is, and so does the shard of `/`.
fn improvement(map: &ClusterMap, rates: &Rates) -> Vec<(ShardId, NodeId)> {
    let load = |node: NodeId| map.shards_at(node).map(|shard| rates.get(&shard).copied()).sum::<Option<u64>>();
    let kept = map.nodes.iter().filter(|node| !node.drains);
    let loads: Vec<(u64, NodeId)> = kept.filter_map(|node| Some((load(node.id)?, node.id))).collect();
    let (Some((most, from)), Some((least, to))) = (loads.iter().max(), loads.iter().min()) else { return Vec::new() };
    let gap = most - least;
    let movable = |node: NodeId| map.shards_at(node).filter(|shard| *shard != ShardId::ROOT);
    let count = |node: NodeId| map.shards_at(node).count();
    let in_return = || movable(*to).map(Some).chain((count(*to) < count(*from)).then_some(None));
    let rate = |shard: ShardId| rates[&shard];
    let pairs = movable(*from).flat_map(|shard| in_return().map(move |other| (shard, other)));
    let gains = pairs.filter_map(|(shard, other)| {
        let shift = rate(shard).checked_sub(other.map_or(0, rate))?;
        Some((shift.min(gap.checked_sub(shift)?), (shard, other)))
    });
    match gains.max_by_key(|(gain, _)| *gain) {
        Some((gain, (shard, other))) if gain > most / GAIN => {
            std::iter::once((shard, *to)).chain(other.map(|other| (other, *from))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record_of;
    use super::*;
    use weft_protocol::MapEpoch;

    /// Nodes with two shards each; `/` is at the first.
    fn map_of(nodes: u16) -> ClusterMap {
        (0..nodes)
            .fold(ClusterMap::default(), |map, id| map.with_nodes(&[record_of(id)], 2, MapEpoch(u32::from(id) + 1)))
    }

    fn rates_of(map: &ClusterMap, calls: &[u64]) -> Rates {
        (0..map.shards.len() as u16).map(ShardId).zip(calls.iter().copied()).collect()
    }

    #[test]
    fn busy_shards_change_places_with_idle_ones() {
        let map = map_of(2);
        let at = |node| map.shards_at(NodeId(node)).collect::<Vec<_>>();
        let (first, second) = (at(0), at(1));
        assert_eq!(first[0], ShardId::ROOT);
        let rates: Rates =
            [(first[0], 5000), (first[1], 4000), (second[0], 100), (second[1], 900)].into_iter().collect();
        assert_eq!(improvement(&map, &rates), [(first[1], NodeId(1)), (second[0], NodeId(0))]);
        let even: Rates = first.iter().chain(&second).map(|shard| (*shard, 1000)).collect();
        assert!(improvement(&map, &even).is_empty());
        let of_root: Rates = [(first[0], 9000), (first[1], 10), (second[0], 10), (second[1], 10)].into_iter().collect();
        assert!(improvement(&map, &of_root).is_empty(), "only that of `/` is busy");
    }

    #[test]
    fn a_node_with_fewer_shards_gets_one_and_gives_none() {
        let map = map_of(1).with_nodes(&[record_of(1)], 1, MapEpoch(7));
        let rates = rates_of(&map, &[3000, 2000, 10]);
        let shard = map.shards_at(NodeId(0)).find(|shard| *shard != ShardId::ROOT).expect("two");
        assert_eq!(improvement(&map, &rates), [(shard, NodeId(1))]);
        let unknown: Rates = rates.into_iter().filter(|(of, _)| *of != shard).collect();
        assert!(improvement(&map, &unknown).is_empty(), "nothing is known of one at the first node");
    }
}
