//! The beginning of a run: nodes, shards and clients, and what programs do first.

use super::*;

/// Directories are small here, and so is one that gets parts by itself.
const GROWTH: Growth = Growth { entries: 5, entries_shared: 3, users: 3, step: 1, entries_inherited: 1 };

impl World {
    pub(super) fn begin(kind: Kind, faults: Faults, source: (u64, &Tape), trace: bool) -> Self {
        let mut world = Self::with_clients(kind, faults, source, trace);
        if kind == Kind::Partitions {
            // A size that was not reported is missing when leases are given back (docs/simulation.md, 3794243685068).
            world.forgetting = super::end::Forgetting::Looked;
        }
        if kind == Kind::Locks {
            world.clients.iter().for_each(|client| client.process.locks_files.set(true));
        }
        if kind.has_mounts() {
            world.mount_all();
        } else {
            world.begin_to_wake();
        }
        if kind.stripes() {
            world.stripe_root();
            if let Some(run) = &mut world.mounts {
                run.history.stripe();
            }
        }
        if kind.splits() {
            world.splits = true;
            world.clients.iter().for_each(|client| client.process.scatters.set(true));
            if world.setting.decide(format_args!("parts"), true, |random| !random.one_in(8)) {
                world.plan_root(Plan::Split);
            }
            // By the seed's number: earlier seeds that have found something do what they did.
            let spills = if kind == Kind::PartGroups { source.0 % 2 == 1 } else { [3, 6].contains(&(source.0 % 7)) };
            let spills = world.setting.decide(format_args!("spill"), false, |_| spills);
            world.clients.iter().for_each(|client| client.process.spills.set(spills));
            let takes_turns =
                if kind == Kind::PartGroups { source.0 % 4 >= 2 } else { [3, 13].contains(&(source.0 % 14)) };
            let takes_turns = world.setting.decide(format_args!("turns"), false, |_| takes_turns);
            world.clients.iter().for_each(|client| client.process.takes_turns.set(takes_turns));
        }
        if kind == Kind::Xattrs {
            let seed = world.setting.decide(format_args!("extended attributes"), 0, Random::next);
            world.uses_xattrs = Some(seed);
        }
        if matches!(kind, Kind::Mounts | Kind::MoveMounts) {
            let seed = world.setting.decide(format_args!("extended attributes"), 0, |random| match random.below(4) {
                0 => random.next(),
                _ => 0,
            });
            world.uses_xattrs = (seed != 0).then_some(seed);
        }
        let moves_parts =
            kind == Kind::Parts && world.setting.decide(format_args!("moves"), false, |random| random.one_in(4));
        if kind.relocates() || moves_parts {
            world.relocates = Some(world.setting.decide(format_args!("relocations"), 0, Random::next));
        }
        if kind.spreads() {
            world.spreads = Some(world.setting.decide(format_args!("spreads"), 0, Random::next));
        }
        if kind.has_groups() {
            world.uses_groups = true;
            if kind.splits() {
                world.offers = Rc::new(Offers::with_board());
            }
            if !kind.splits() && world.setting.decide(format_args!("striped"), false, |random| random.one_in(4)) {
                world.stripe_root();
            }
        }
        if kind == Kind::Parts {
            // By the seed's number: earlier seeds that have found something do what they did.
            world.uses_groups = world.setting.decide(format_args!("groups"), false, |_| source.0 % 7 == 6);
        }
        (0..CLIENTS).for_each(|index| world.start_programs_beside(index));
        let loses_node = kind == Kind::Gone || kind == Kind::MoveMounts && source.0 % 3 == 2;
        if loses_node && !world.choices.tape.is_playing() {
            world.choose_node_to_die(source.0);
        }
        world
    }

    fn with_clients(kind: Kind, faults: Faults, (seed, tape): (u64, &Tape), trace: bool) -> Self {
        let nodes = (0..NODES).map(|id| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: identity(NodeId(id)),
            address: NodeAddress::default(),
            stores: true,
            drains: false,
        });
        let shards = (0..SHARDS).map(|shard| ShardRecord::new(NodeId(shard % NODES), FIRST_EPOCH)).collect();
        let map = ClusterMap {
            name: "sim".to_owned(),
            epoch: FIRST_EPOCH,
            nodes: nodes.collect(),
            shards,
            removed_max: None,
        };
        let mut world = Self {
            choices: Choices::new(seed, tape),
            setting: Choices::new(seed ^ 0x5e77, tape),
            round_ms: 0,
            wakes: Vec::new(),
            faults,
            growth: if kind.spreads() { GROWTH } else { Growth::USUAL },
            clocks: BTreeMap::new(),
            partitions: Default::default(),
            network: Network::new(),
            key: NodeKey::new([7; 32]),
            shards: BTreeMap::new(),
            storage: (0..NODES).map(|id| (NodeId(id), Storage::new(NodeId(id), map.clone()))).collect(),
            grants: BTreeMap::new(),
            joins: joins::Joins::new(&map),
            moves: Default::default(),
            clients: Vec::new(),
            model: Model::new(),
            files: Rc::default(),
            xattrs: Rc::default(),
            uses_xattrs: None,
            relocates: None,
            splits: false,
            relocations: Default::default(),
            spreads: None,
            spread: Rc::default(),
            uses_groups: false,
            offers: Rc::default(),
            groups: groups::Groups::default(),
            tokens: BTreeMap::new(),
            superseded: BTreeSet::new(),
            to_remove: BTreeSet::new(),
            latest_in_slot: BTreeMap::new(),
            next_token: 1,
            applied: BTreeMap::new(),
            received: BTreeMap::new(),
            sessions: Rc::new(Cell::new(1)),
            unheard: BTreeMap::new(),
            connections: data::Connections::default(),
            mounts: None,
            ending: false,
            doubled: BTreeSet::new(),
            idle_since_ms: None,
            forgetting: super::end::Forgetting::Working,
            history: VecDeque::new(),
            trace,
            fingerprint: 0,
            tally: Tally::default(),
            map,
        };
        for node in (0..NODES).map(NodeId) {
            let clock = world.new_clock(format_args!("clock node{node}"));
            world.clocks.insert(node, clock);
        }
        for id in (0..SHARDS).map(ShardId) {
            world.start_shard(id, world.map.shards[usize::from(id.0)].node);
            world.step(id, Event::SetMap(world.map.clone()));
        }
        if !kind.has_mounts() {
            world.begin_joins();
            world.begin_moves();
        }
        if faults.partitions {
            world.network.after(1, Message::Cut);
        }
        if faults.fences_cut {
            world.network.after(1, Message::CutNodes);
        }
        for index in 0..CLIENTS {
            let home = world.home(index);
            let process = world.process(index, home);
            world.clients.push(Client::new(process, world.map.clone()));
            world.network.after(SESSION_TERM_MS / 4, Message::Renew { client: index });
        }
        world
    }
}
