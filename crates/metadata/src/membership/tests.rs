use super::*;
use weft_protocol::{NodeAddress, NodeIdentity};

fn record(id: u16) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        host: format!("h{id}"),
        site: String::new(),
        identity: NodeIdentity(1),
        address: NodeAddress::default(),
        stores: true,
        drains: false,
    }
}

/// The machine at node 0 of a file system of these nodes, each with a shard.
fn membership(nodes: u16) -> Membership {
    let records: Vec<_> = (0..nodes).map(record).collect();
    let map = ClusterMap::default().with_nodes(&records, 1, MapEpoch(1));
    let mut machine = Membership::new(NodeId(0));
    assert!(step(&mut machine, 0, MembershipEvent::Installed(map)).is_empty());
    machine
}

fn step(machine: &mut Membership, now_ms: u64, event: MembershipEvent) -> Vec<MembershipEffect> {
    let mut out = Vec::new();
    machine.step(now_ms, event, &mut out);
    out
}

fn join(machine: &mut Membership, now_ms: u64, token: u64, nodes: &[u16]) -> Vec<String> {
    let nodes = nodes.iter().map(|id| record(*id)).collect();
    words(&step(machine, now_ms, MembershipEvent::Join { token, nodes, shards_per_node: 1 }))
}

fn told(machine: &mut Membership, now_ms: u64, node: u16, epoch: u32, taken: bool) -> Vec<String> {
    let event = MembershipEvent::Told { node: NodeId(node), epoch: MapEpoch(epoch), taken };
    words(&step(machine, now_ms, event))
}

fn words(effects: &[MembershipEffect]) -> Vec<String> {
    let word = |effect: &MembershipEffect| match effect {
        MembershipEffect::Tell { to, map } => format!("tell {} {}", to.id, map.epoch),
        MembershipEffect::Ship { from, shard, to, epoch } => format!("ship {shard} {}>{} {epoch}", from.id, to.id),
        MembershipEffect::Install(map) => format!("install {}", map.epoch),
        MembershipEffect::Answer { token, result: Ok(map) } => format!("answer {token} {}", map.epoch),
        MembershipEffect::Answer { token, result: Err(error) } => format!("answer {token} {error:?}"),
    };
    effects.iter().map(word).collect()
}

#[test]
fn the_others_hear_of_a_map_when_all_that_join_have_it() {
    let mut machine = membership(3);
    assert_eq!(join(&mut machine, 0, 7, &[3, 4]), ["tell 3 2", "tell 4 2"]);
    assert!(told(&mut machine, 1, 4, 2, true).is_empty());
    assert_eq!(told(&mut machine, 2, 3, 2, true), ["install 2", "answer 7 2", "tell 1 2", "tell 2 2"]);
    assert!(told(&mut machine, 3, 1, 2, true).is_empty());
    assert!(told(&mut machine, 3, 2, 2, false).is_empty());
    assert_eq!(machine.deadline(), Some(3 + TELL_MS));
    assert_eq!(words(&step(&mut machine, 3 + TELL_MS, MembershipEvent::Tick)), ["tell 2 2"]);
    assert!(told(&mut machine, 2000, 2, 2, true).is_empty());
    assert_eq!(machine.deadline(), None);
}

#[test]
fn an_abandoned_change_uses_up_its_epoch() {
    let mut machine = membership(1);
    assert_eq!(join(&mut machine, 0, 7, &[1]), ["tell 1 2"]);
    assert!(told(&mut machine, 1, 1, 2, false).is_empty());
    assert_eq!(words(&step(&mut machine, 1 + JOIN_RETRY_MS, MembershipEvent::Tick)), ["tell 1 2"]);
    assert_eq!(words(&step(&mut machine, JOIN_MS_MAX, MembershipEvent::Tick)), ["answer 7 Unreachable"]);
    assert_eq!((machine.deadline(), machine.map.epoch), (None, MapEpoch(1)));
    assert!(told(&mut machine, JOIN_MS_MAX + 1, 1, 2, true).is_empty(), "too late");
    assert_eq!(join(&mut machine, JOIN_MS_MAX + 2, 8, &[1]), ["tell 1 3"]);
}

#[test]
fn a_join_is_safe_to_repeat() {
    let mut machine = membership(1);
    assert_eq!(join(&mut machine, 0, 7, &[1]), ["tell 1 2"]);
    assert!(join(&mut machine, 0, 8, &[1]).is_empty());
    assert_eq!(join(&mut machine, 0, 9, &[2]), ["answer 9 Busy"]);
    assert_eq!(told(&mut machine, 1, 1, 2, true), ["install 2", "answer 7 2", "answer 8 2"]);
    assert!(told(&mut machine, 1, 1, 2, true).is_empty());
    assert_eq!(join(&mut machine, 2, 10, &[1]), ["answer 10 2"]);
}

#[test]
fn a_number_is_never_used_again_and_only_the_roots_node_decides() {
    let mut machine = membership(2);
    let elsewhere = NodeRecord { host: "other".to_owned(), ..record(1) };
    let event = MembershipEvent::Join { token: 1, nodes: vec![elsewhere], shards_per_node: 1 };
    assert_eq!(words(&step(&mut machine, 0, event)), ["answer 1 Invalid"]);
    assert_eq!(join(&mut machine, 0, 2, &[4, 3]), ["answer 2 Invalid"], "out of order");
    let mut other = Membership::new(NodeId(1));
    step(&mut other, 0, MembershipEvent::Installed(machine.map.clone()));
    assert_eq!(join(&mut other, 0, 3, &[2]), ["answer 3 WrongShard(ShardId(0))"]);
}

fn move_shard(machine: &mut Membership, now_ms: u64, token: u64, shard: u16, to: u16) -> Vec<String> {
    words(&step(machine, now_ms, MembershipEvent::Move { token, shard: ShardId(shard), to: NodeId(to) }))
}

fn shipped(machine: &mut Membership, now_ms: u64, epoch: u32, done: bool) -> Vec<String> {
    words(&step(machine, now_ms, MembershipEvent::Shipped { epoch: MapEpoch(epoch), done }))
}

#[test]
fn a_shard_is_at_its_target_before_anybody_is_told_so() {
    let mut machine = membership(4);
    assert_eq!(move_shard(&mut machine, 0, 7, 1, 2), ["ship 1 1>2 2"]);
    assert!(move_shard(&mut machine, 1, 8, 1, 2).is_empty(), "asked again");
    assert_eq!(move_shard(&mut machine, 2, 9, 3, 2), ["answer 9 Busy"]);
    assert_eq!(join(&mut machine, 2, 10, &[4]), ["answer 10 Busy"]);
    let done = shipped(&mut machine, 3, 2, true);
    assert_eq!(done, ["tell 2 2", "install 2", "answer 7 2", "answer 8 2", "tell 1 2", "tell 3 2"]);
    let record = ShardRecord { node: NodeId(2), born: MapEpoch(1), arrived: MapEpoch(2) };
    assert!(machine.map.check() && machine.map.shards[1] == record);
    assert!(shipped(&mut machine, 4, 2, true).is_empty());
    assert_eq!(move_shard(&mut machine, 5, 11, 1, 2), ["answer 11 2"], "it is there");
    told(&mut machine, 6, 2, 2, true);
    told(&mut machine, 6, 1, 2, true);
    told(&mut machine, 6, 3, 2, false);
    assert_eq!(machine.deadline(), Some(6 + TELL_MS));
}

#[test]
fn all_learn_that_an_abandoned_move_has_not_been() {
    let mut machine = membership(3);
    assert_eq!(move_shard(&mut machine, 0, 7, 1, 2), ["ship 1 1>2 2"]);
    assert!(shipped(&mut machine, 1, 2, false).is_empty());
    assert_eq!(words(&step(&mut machine, 1 + SHIP_RETRY_MS, MembershipEvent::Tick)), ["ship 1 1>2 2"]);
    let abandoned = words(&step(&mut machine, MOVE_MS_MAX, MembershipEvent::Tick));
    assert_eq!(abandoned, ["install 2", "answer 7 Unreachable", "tell 1 2", "tell 2 2"]);
    assert_eq!(machine.map.shards[1], ShardRecord::new(NodeId(1), MapEpoch(1)));
    assert!(shipped(&mut machine, MOVE_MS_MAX + 1, 2, true).is_empty(), "too late");
    assert_eq!(move_shard(&mut machine, MOVE_MS_MAX + 2, 8, 1, 0), ["ship 1 1>0 3"]);
    assert_eq!(shipped(&mut machine, MOVE_MS_MAX + 3, 3, true), ["install 3", "answer 8 3", "tell 1 3", "tell 2 3"]);
}

#[test]
fn moves_that_cannot_be_are_refused() {
    let mut machine = membership(2);
    assert_eq!(move_shard(&mut machine, 0, 2, 9, 1), ["answer 2 Invalid"]);
    assert_eq!(move_shard(&mut machine, 0, 3, 1, 9), ["answer 3 Invalid"]);
    let mut other = Membership::new(NodeId(1));
    step(&mut other, 0, MembershipEvent::Installed(machine.map.clone()));
    assert_eq!(move_shard(&mut other, 0, 4, 1, 0), ["answer 4 WrongShard(ShardId(0))"]);
}

#[test]
fn with_the_root_shard_the_decisions_move() {
    let (mut source, mut target) = (membership(3), Membership::new(NodeId(2)));
    step(&mut target, 0, MembershipEvent::Installed(source.map.clone()));
    assert_eq!(move_shard(&mut source, 0, 1, 0, 2), ["ship 0 0>2 2"]);
    assert_eq!(shipped(&mut source, 1, 2, true), ["tell 2 2", "install 2", "answer 1 2", "tell 1 2"]);
    assert_eq!(join(&mut source, 2, 3, &[3]), ["answer 3 WrongShard(ShardId(0))"]);
    let installed = step(&mut target, 2, MembershipEvent::Installed(source.map.clone()));
    assert_eq!(words(&installed), ["tell 0 2", "tell 1 2"], "the source may be gone");
    assert_eq!(join(&mut target, 3, 4, &[3]), ["tell 3 3"]);
    assert_eq!(told(&mut target, 4, 3, 3, true), ["install 3", "answer 4 3", "tell 0 3", "tell 1 3"]);
}

fn change(machine: &mut Membership, token: u64, node: u16, change: NodeChange) -> Vec<String> {
    words(&step(machine, 0, MembershipEvent::Change { token, node: NodeId(node), change }))
}

#[test]
fn a_node_leaves_without_shards_and_its_number_is_never_used_again() {
    let mut machine = membership(3);
    assert_eq!(change(&mut machine, 1, 2, NodeChange::Drain), ["install 2", "tell 1 2", "tell 2 2", "answer 1 2"]);
    assert_eq!(change(&mut machine, 2, 2, NodeChange::Drain), ["answer 2 2"], "it drains");
    assert_eq!(change(&mut machine, 3, 2, NodeChange::Remove), ["answer 3 Invalid"], "it has a shard");
    assert_eq!(change(&mut machine, 4, 9, NodeChange::Keep), ["answer 4 Invalid"]);
    move_shard(&mut machine, 0, 5, 2, 1);
    assert_eq!(change(&mut machine, 6, 2, NodeChange::Remove), ["answer 6 Busy"], "a shard is on its way");
    shipped(&mut machine, 0, 3, true);
    assert_eq!(change(&mut machine, 7, 2, NodeChange::Remove), ["install 4", "tell 1 4", "answer 7 4"]);
    assert_eq!(join(&mut machine, 1, 8, &[2]), ["answer 8 Invalid"]);
    assert_eq!(join(&mut machine, 1, 9, &[3]), ["tell 3 5"]);
}
