//! Operations over several shards: four of them, wired together so that each message can be lost, doubled or late.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::peer::{Fate, IntentId, Lock, PeerAnswer, PeerCall, PeerReply, PeerStep};
use weft_protocol::message::shard::*;
use weft_protocol::*;

const SHARDS: u16 = 4;

/// Shards 0 to 3, each with a directory that clients use: `/` and what it has below.
pub(super) struct Several {
    pub(super) worlds: Vec<World>,
    pub(super) directories: Vec<InodeNumber>,
    token: u64,
}

type Place<'a> = (InodeNumber, &'a str);

impl Several {
    pub(super) fn new() -> Self {
        let map = map_of(SHARDS);
        let mut worlds: Vec<World> = (0..SHARDS).map(World::of_shard).collect();
        worlds.iter_mut().for_each(|world| world.event(Event::SetMap(map.clone())));
        let mut several = Self { worlds, directories: vec![ROOT], token: 0 };
        for shard in 1..SHARDS {
            let home = Some(NodeId(shard + 1));
            let request =
                ShardRequest::MakeDirectory { parent: ROOT, name: name(&format!("d{shard}")), mode: 0o777, home };
            let made = several.ok(A, request);
            several.directories.push(attributes(&made).inode);
        }
        several
    }

    pub(super) fn at(&mut self, shard: ShardId) -> &mut World {
        &mut self.worlds[usize::from(shard.0)]
    }

    pub(super) fn begin(&mut self, session: SessionId, request: ShardRequest) -> (ShardId, u64) {
        let shard = routing::of_request(&request).expect("a request about something");
        (shard, self.at(shard).call(session, request))
    }

    pub(super) fn result(&mut self, (shard, token): (ShardId, u64)) -> Option<Result<ShardAnswer>> {
        self.at(shard).result(token)
    }

    pub(super) fn deliver(&mut self, call: PeerCall) {
        self.token += 1;
        let token = self.token;
        self.at(call.to).event(Event::PeerCall { token, call });
    }

    pub(super) fn unreachable(&mut self, call: &PeerCall) {
        let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
        self.at(call.intent.shard).event(Event::PeerReply(reply));
    }

    pub(super) fn take_calls(&mut self) -> Vec<PeerCall> {
        self.worlds.iter_mut().flat_map(|world| std::mem::take(&mut world.peer_calls)).collect()
    }

    pub(super) fn deliver_replies(&mut self) {
        let replies: Vec<_> =
            self.worlds.iter_mut().flat_map(|world| std::mem::take(&mut world.peer_replies)).collect();
        for (_, reply) in replies {
            self.at(reply.intent.shard).event(Event::PeerReply(reply));
        }
    }

    /// Carries all messages, and has all recalls answered, until nothing is on its way.
    pub(super) fn settle(&mut self) {
        loop {
            let calls = self.take_calls();
            let is_quiet = calls.is_empty()
                && self.worlds.iter().all(|world| world.peer_replies.is_empty() && world.recalls.is_empty());
            if is_quiet {
                return;
            }
            calls.into_iter().for_each(|call| self.deliver(call));
            self.deliver_replies();
            self.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
        }
    }

    pub(super) fn call(&mut self, session: SessionId, request: ShardRequest) -> Result<ShardAnswer> {
        let call = self.begin(session, request);
        self.settle();
        self.result(call).expect("all that it waits for has come")
    }

    pub(super) fn ok(&mut self, session: SessionId, request: ShardRequest) -> ShardAnswer {
        let words = format!("{request:?}");
        self.call(session, request).unwrap_or_else(|error| panic!("{words}: {error:?}"))
    }

    pub(super) fn make(&mut self, (parent, text): Place<'_>) -> InodeNumber {
        let request = ShardRequest::OpenAt {
            parent,
            name: name(text),
            flags: flags(Access::Read),
            create: Some(CreateFile { mode: 0o644, exclusive: true, plan: None }),
            objects: None,
        };
        let maker = SessionId(99);
        let inode = attributes(&self.ok(maker, request)).inode;
        self.at(routing::of_inode(inode)).ok(maker, ShardRequest::EndSession);
        inode
    }

    /// What a name means. The inode's shard has to have it.
    pub(super) fn names(&mut self, (parent, text): Place<'_>) -> Option<InodeNumber> {
        match self.ok(B, ShardRequest::Lookup { parent, name: name(text) }) {
            ShardAnswer::Absent { .. } => None,
            ShardAnswer::Entry { attributes, .. } => Some(attributes.inode),
            ShardAnswer::Remote { inode, .. } => Some(inode),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn links(&mut self, inode: InodeNumber) -> u32 {
        attributes(&self.ok(B, stat(inode))).links
    }

    pub(super) fn has_no_locks(&self) -> bool {
        self.worlds.iter().all(|world| world.shard.back().has_no_locks() && world.shard.status().parked == 0)
    }
}

pub(super) fn mv(from: Place<'_>, to: Place<'_>, mode: RenameMode) -> ShardRequest {
    let guess = None;
    ShardRequest::Rename { parent: from.0, name: name(from.1), new_parent: to.0, new_name: name(to.1), mode, guess }
}

/// The same with something that the client takes the new name for.
pub(super) fn with_guess(mut request: ShardRequest, entry: (InodeNumber, FileKind)) -> ShardRequest {
    if let ShardRequest::Rename { guess, .. } = &mut request {
        *guess = Some(entry);
    }
    request
}

pub(super) fn ln(inode: InodeNumber, (parent, text): Place<'_>) -> ShardRequest {
    ShardRequest::Link { inode, parent, name: name(text) }
}

pub(super) fn rm((parent, text): Place<'_>) -> ShardRequest {
    ShardRequest::Unlink { parent, name: name(text) }
}

#[test]
fn renames_of_files_are_counted_by_the_shard_of_the_caller_inside_and_across() {
    let mut several = Several::new();
    let [root, one, ..] = several.directories[..] else { panic!("four directories") };
    let counts = |several: &mut Several, shard| {
        let status = several.at(ShardId(shard)).shard.status();
        (status.renames, status.renames_across)
    };
    several.make((one, "f"));
    several.make((one, "temporary"));
    several.ok(A, mv((one, "temporary"), (one, "f"), RenameMode::Replace));
    assert_eq!(several.call(A, mv((one, "none"), (one, "f"), RenameMode::Replace)), Err(Error::NotFound));
    assert_eq!((counts(&mut several, 1), counts(&mut several, 0)), ((1, 0), (0, 0)));
    let (shard, _) = several.begin(A, mv((one, "f"), (root, "f"), RenameMode::Replace));
    several.settle();
    let other = ShardId(1 - shard.0);
    assert_eq!(counts(&mut several, shard.0).1, 1, "at the shard that was called");
    assert_eq!(counts(&mut several, other.0).1, 0);
    make_directory(&mut several, (one, "directory"), 1);
    several.ok(A, mv((one, "directory"), (one, "renamed"), RenameMode::Replace));
    assert_eq!(counts(&mut several, 1).0, 1, "of files alone");
}

#[test]
fn a_file_moves_between_shards_in_each_mode() {
    let mut several = Several::new();
    let [root, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d1, "f"));
    several.ok(A, mv((d1, "f"), (d3, "g"), RenameMode::Replace));
    assert_eq!((several.names((d1, "f")), several.names((d3, "g"))), (None, Some(file)));
    several.ok(A, mv((d3, "g"), (root, "h"), RenameMode::NoReplace));
    assert_eq!((several.names((d3, "g")), several.names((root, "h")), several.links(file)), (None, Some(file), 1));
    let other = several.make((d2, "o"));
    assert_eq!(several.call(A, mv((d2, "o"), (root, "h"), RenameMode::NoReplace)), Err(Error::Exists));
    several.ok(A, mv((d2, "o"), (root, "h"), RenameMode::Exchange));
    assert_eq!((several.names((d2, "o")), several.names((root, "h"))), (Some(file), Some(other)));
    assert_eq!(several.call(A, mv((d2, "nothing"), (root, "h"), RenameMode::Replace)), Err(Error::NotFound));
    assert_eq!(several.call(A, mv((d2, "o"), (root, "nothing"), RenameMode::Exchange)), Err(Error::NotFound));
    assert!(several.has_no_locks());
}

pub(super) fn make_directory(several: &mut Several, (parent, text): Place<'_>, shard: u16) -> InodeNumber {
    let home = Some(NodeId(shard + 1));
    let made = several.ok(A, ShardRequest::MakeDirectory { parent, name: name(text), mode: 0o755, home });
    attributes(&made).inode
}

#[test]
fn a_directory_gets_a_parent_at_another_shard_in_each_mode() {
    for born in 0..SHARDS {
        let mut several = Several::new();
        let [root, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
        let moved = make_directory(&mut several, (d1, "m"), born);
        let below = make_directory(&mut several, (moved, "below"), 2);
        let of_d1 = several.links(d1);
        several.ok(A, mv((d1, "m"), (d2, "m"), RenameMode::Replace));
        assert_eq!((several.names((d1, "m")), several.names((d2, "m"))), (None, Some(moved)), "born at {born}");
        assert_eq!((several.links(d1), several.links(d2)), (of_d1 - 1, 3), "born at {born}");
        for cycle in [moved, below] {
            assert_eq!(several.call(A, mv((d2, "m"), (cycle, "x"), RenameMode::Replace)), Err(Error::Invalid));
        }
        assert_eq!(several.call(A, mv((root, "d2"), (below, "x"), RenameMode::Replace)), Err(Error::Invalid));
        let empty = make_directory(&mut several, (d3, "empty"), 1);
        assert_eq!(several.call(A, mv((d2, "m"), (d3, "empty"), RenameMode::NoReplace)), Err(Error::Exists));
        several.ok(A, mv((d2, "m"), (d3, "empty"), RenameMode::Exchange));
        assert_eq!((several.names((d2, "m")), several.names((d3, "empty"))), (Some(empty), Some(moved)));
        assert_eq!(several.call(A, mv((d2, "m"), (root, "d3"), RenameMode::Replace)), Err(Error::NotEmpty));
        several.ok(A, mv((d3, "empty"), (d2, "m"), RenameMode::Replace));
        assert_eq!((several.names((d2, "m")), several.names((d3, "empty"))), (Some(moved), None));
        assert_eq!((several.links(d2), several.links(d3), several.has_no_locks()), (3, 2, true), "born at {born}");
    }
}

#[test]
fn opposite_moves_of_directories_close_no_cycle() {
    for (born_a, born_b, order) in [(1, 2, 0), (2, 1, 0), (0, 3, 1), (3, 0, 1), (3, 3, 0), (1, 1, 1)] {
        let mut several = Several::new();
        let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
        let (a, b) = (make_directory(&mut several, (d1, "a"), born_a), make_directory(&mut several, (d2, "b"), born_b));
        make_directory(&mut several, (a, "in"), 1);
        make_directory(&mut several, (b, "in"), 2);
        let mut moves = [mv((d1, "a"), (b, "x"), RenameMode::Replace), mv((d2, "b"), (a, "x"), RenameMode::Replace)];
        moves.rotate_left(order);
        let calls = moves.map(|request| several.begin(A, request));
        several.settle();
        let results = calls.map(|call| several.result(call).expect("nothing waits for ever"));
        let done = results.iter().filter(|result| result.is_ok()).count();
        let is_refusal = |error: &Error| matches!(error, Error::Invalid | Error::Busy);
        let refused = results.iter().filter_map(|result| result.as_ref().err()).all(is_refusal);
        assert!(done <= 1 && refused, "{results:?}");
        assert_eq!(done, 1, "{results:?}");
        assert!(several.has_no_locks());
    }
}

#[test]
fn what_is_replaced_goes_at_its_own_shard_whichever_that_is() {
    for (born, from, to) in [(0, 1, 2), (1, 2, 3), (3, 1, 2), (2, 3, 1), (3, 2, 2), (0, 2, 2), (1, 1, 3), (3, 1, 3)] {
        let mut several = Several::new();
        let directories = several.directories.clone();
        let (source, target) = ((directories[from], "f"), (directories[to], "g"));
        let replaced = several.make((directories[born], "r"));
        several.ok(A, ln(replaced, (directories[born], "kept")));
        several.ok(A, mv((directories[born], "r"), target, RenameMode::Replace));
        let file = several.make(source);
        let answer = several.ok(A, mv(source, target, RenameMode::Replace));
        let ShardAnswer::Renamed { inode, replaced: gone, .. } = answer else { panic!("{answer:?}") };
        assert_eq!((inode, gone), (file, Some((replaced, 1))), "born at {born}");
        assert_eq!((several.names(source), several.names(target)), (None, Some(file)), "born at {born}");
        assert_eq!((several.links(replaced), several.has_no_locks()), (1, true), "born at {born}");
    }
}

#[test]
fn a_link_and_its_removal_count_at_the_shard_of_the_inode() {
    let mut several = Several::new();
    let [root, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d2, "f"));
    for directory in [root, d1, d3] {
        let linked = several.ok(A, ln(file, (directory, "l")));
        assert_eq!(attributes(&linked).inode, file);
    }
    assert_eq!((several.links(file), several.names((d3, "l"))), (4, Some(file)));
    assert_eq!(several.call(A, ln(file, (d3, "l"))), Err(Error::Exists));
    assert_eq!(several.call(A, ln(root, (d3, "x"))), Err(Error::NotPermitted));
    for (directory, left) in [(root, 3), (d3, 2), (d1, 1)] {
        let removed = several.ok(A, rm((directory, "l")));
        assert!(matches!(removed, ShardAnswer::Removed { inode, links, .. } if (inode, links) == (file, left)));
        assert_eq!((several.names((directory, "l")), several.links(file)), (None, left));
    }
    // Two names of one file: nothing happens, and both stay.
    several.ok(A, ln(file, (d3, "l")));
    several.ok(A, mv((d3, "l"), (d2, "f"), RenameMode::Replace));
    assert_eq!((several.names((d3, "l")), several.names((d2, "f")), several.links(file)), (Some(file), Some(file), 2));
    let removed = several.ok(A, ShardRequest::UnlinkBatch { parent: d3, names: vec![name("l"), name("other")] });
    assert!(matches!(&removed, ShardAnswer::RemovedBatch { removed, .. } if removed[..] == [(file, 1)]), "{removed:?}");
    assert!(several.has_no_locks());
}

#[test]
fn opposite_renames_and_exchanges_do_not_wait_for_each_other() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    for (directory, text) in [(d1, "a"), (d2, "a"), (d3, "a"), (d1, "b"), (d2, "b"), (d3, "b")] {
        several.make((directory, text));
    }
    let ring = [(d1, d2), (d2, d3), (d3, d1), (d2, d1), (d3, d2), (d1, d3)];
    let mut calls = Vec::new();
    for (index, (from, to)) in ring.into_iter().enumerate() {
        let mode = if index % 2 == 0 { RenameMode::Exchange } else { RenameMode::Replace };
        calls.push(several.begin(A, mv((from, "a"), (to, "b"), mode)));
        calls.push(several.begin(B, mv((to, "b"), (from, "a"), mode)));
    }
    several.settle();
    for call in calls {
        let result = several.result(call).expect("none waits for ever");
        assert!(matches!(result, Ok(_) | Err(Error::NotFound)), "{result:?}");
    }
    assert!(several.has_no_locks());
}

#[test]
fn leases_of_others_at_each_shard_go_before_the_effect_and_own_ones_stay() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    several.make((d1, "f"));
    several.make((d2, "g"));
    // Contended keys are not granted for a second.
    several.worlds.iter_mut().for_each(|world| world.pass(1500, &[A, B, C]));
    for session in [A, B] {
        for place in [(d1, "f"), (d2, "g")] {
            let found = several.ok(session, ShardRequest::Lookup { parent: place.0, name: name(place.1) });
            assert!(grants(&found).contains(Grants::ENTRY | Grants::ATTRIBUTES), "{found:?}");
        }
    }
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let recalled = several.worlds[1].recalled();
    assert!(!recalled.is_empty() && recalled.iter().all(|(session, ..)| *session == B), "{recalled:?}");
    several.take_calls().into_iter().for_each(|call| several.deliver(call));
    let recalled = several.worlds[2].recalled();
    assert!(recalled.iter().any(|(_, key, _)| matches!(key, LeaseKey::Entry(parent, _) if *parent == d2)));
    assert!(recalled.iter().all(|(session, ..)| *session == B), "{recalled:?}");
    assert_eq!(several.result(call), None);
    several.settle();
    let (shard, token) = call;
    let reply = several.at(shard).replies[&token].clone();
    assert!(reply.result.is_ok());
    assert_eq!(reply.others.iter().map(|(shard, _)| shard.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn nothing_is_told_of_what_may_have_been_told_of_elsewhere() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let replaced = several.make((d3, "r"));
    several.ok(A, ln(replaced, (d2, "g")));
    several.make((d1, "f"));
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    // The coordinator tells of the names as they are, until it has decided.
    let found = several.worlds[1].ok(B, ShardRequest::Lookup { parent: d1, name: name("f") });
    assert!(matches!(found, ShardAnswer::Entry { .. }), "{found:?}");
    let mut waiting = Vec::new();
    loop {
        let calls = several.take_calls();
        if calls.iter().any(|call| matches!(call.step, PeerStep::Carry { .. })) {
            let found = several.worlds[1].ok(B, ShardRequest::Lookup { parent: d1, name: name("f") });
            assert!(matches!(found, ShardAnswer::Absent { .. }), "it is decided, and done here: {found:?}");
            waiting.push(several.begin(B, ShardRequest::Lookup { parent: d2, name: name("g") }));
            waiting.push(several.begin(B, stat(replaced)));
            waiting.push(several.begin(
                B,
                ShardRequest::ReadDirectory {
                    inode: d2,
                    after: Cookie::START,
                    entries_max: 10,
                    with_attributes: false,
                },
            ));
            assert!(waiting.iter().all(|call| several.result(*call).is_none()));
            calls.into_iter().for_each(|call| several.deliver(call));
            break;
        }
        calls.into_iter().for_each(|call| several.deliver(call));
        several.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
        several.deliver_replies();
    }
    several.settle();
    for call in waiting.into_iter().chain([call]) {
        assert!(several.result(call).is_some_and(|result| result.is_ok()));
    }
}

#[test]
fn a_shard_that_is_away_while_others_lock_ends_the_operation() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d1, "f"));
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let lock = several.take_calls().remove(0);
    // It has locked, and its answer is lost.
    several.deliver(lock.clone());
    several.worlds[2].peer_replies.clear();
    several.unreachable(&lock);
    assert_eq!(several.result(call), Some(Err(Error::Unreachable)));
    assert_eq!(several.names((d1, "f")), Some(file));
    // The next one is not held up by what the other shard has not heard of.
    several.take_calls();
    several.ok(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    several.deliver(lock);
    several.settle();
    assert_eq!((several.names((d1, "f")), several.names((d2, "g")), several.has_no_locks()), (None, Some(file), true));
}

#[test]
fn a_lock_that_waits_and_is_sent_again_is_answered_once_and_leaves_no_call_open() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d1, "f"));
    several.make((d2, "g"));
    several.ok(B, ShardRequest::Lookup { parent: d2, name: name("g") });
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let lock = several.take_calls().remove(0);
    (0..3).for_each(|_| several.deliver(lock.clone()));
    let earlier = std::mem::take(&mut several.worlds[2].peer_replies);
    assert_eq!(earlier.len(), 2, "B has not answered its recall");
    for (_, reply) in earlier {
        assert_eq!(reply.result, Ok(PeerAnswer::Open));
        several.at(ShardId(1)).event(Event::PeerReply(reply));
    }
    assert_eq!(several.result(call), None, "the operation is not over");
    several.settle();
    assert!(several.result(call).is_some_and(|result| result.is_ok()));
    assert_eq!((several.names((d1, "f")), several.names((d2, "g"))), (None, Some(file)));
}

#[test]
fn of_an_operation_that_was_given_up_each_shard_hears_by_itself() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let (file, replaced) = (several.make((d1, "f")), several.make((d3, "r")));
    several.ok(A, ln(replaced, (d2, "g")));
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let lock = several.take_calls().remove(0);
    several.deliver(lock);
    several.deliver_replies();
    // Shard 2 has locked the name. That of the replaced inode has, too, and its answer is lost.
    let lock = several.take_calls().remove(0);
    several.deliver(lock.clone());
    several.worlds[3].peer_replies.clear();
    several.unreachable(&lock);
    assert_eq!(several.result(call), Some(Err(Error::Unreachable)));
    let undone: Vec<_> = several.take_calls().into_iter().map(|call| (call.to.0, call.step)).collect();
    assert_eq!(undone, [(2, PeerStep::Undo), (3, PeerStep::Undo)]);
    // Both were lost. One participant asks and learns the outcome, although the other has not heard it yet.
    several.worlds[3].pass(3000, &[A, B]);
    let asks = several.worlds[3].peer_calls.remove(0);
    assert!(matches!(asks.step, PeerStep::AskOutcome { .. }), "{asks:?}");
    several.deliver(asks);
    several.deliver_replies();
    assert!(several.worlds[3].shard.back().has_no_locks());
    assert!(!several.worlds[2].shard.back().has_no_locks());
    several.worlds[1].pass(3000, &[A, B]);
    several.settle();
    assert_eq!(
        (several.names((d1, "f")), several.names((d2, "g")), several.has_no_locks()),
        (Some(file), Some(replaced), true)
    );
}

#[test]
fn what_is_decided_is_carried_out_where_a_shard_is_away() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d1, "f"));
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let lock = several.take_calls().remove(0);
    several.deliver(lock);
    several.deliver_replies();
    let carry = several.take_calls().remove(0);
    assert!(matches!(carry.step, PeerStep::Carry { .. }));
    assert!(several.result(call).is_some_and(|result| result.is_ok()), "who asked does not wait for the other shard");
    several.unreachable(&carry);
    let looks = several.begin(B, ShardRequest::Lookup { parent: d2, name: name("g") });
    assert_eq!(several.result(looks), None);
    several.worlds[1].pass(3000, &[A, B]);
    several.settle();
    assert!(several.result(looks).is_some());
    assert_eq!((several.names((d1, "f")), several.names((d2, "g")), several.has_no_locks()), (None, Some(file), true));
}

#[test]
fn who_waits_for_a_coordinator_that_is_gone_is_told_so() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    several.make((d1, "f"));
    several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    let lock = several.take_calls().remove(0);
    several.deliver(lock.clone());
    let looks = several.begin(B, ShardRequest::Lookup { parent: d2, name: name("g") });
    several.worlds[2].pass(4000, &[A, B]);
    let ask = several.worlds[2].peer_calls.remove(0);
    assert_eq!(ask.step, PeerStep::AskOutcome { of: lock.intent });
    several.unreachable(&ask);
    assert_eq!(several.result(looks), Some(Err(Error::Unreachable)));
    let again = several.begin(B, ShardRequest::Lookup { parent: d2, name: name("g") });
    assert_eq!(several.result(again), Some(Err(Error::Unreachable)));
    // It is back, and goes on.
    several.worlds[1].pass(3000, &[A, B]);
    several.settle();
    assert!(several.names((d2, "g")).is_some() && several.has_no_locks());
}

#[test]
fn a_move_below_what_a_shard_that_is_gone_has_locked_is_told_so() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let below = |parent, node| ShardRequest::MakeDirectory { parent, name: name("d"), mode: 0o755, home: Some(node) };
    let inside = attributes(&several.ok(A, below(d1, NodeId(2)))).inode;
    several.ok(A, below(d2, NodeId(3)));
    // It was to replace the directory, which it has locked.
    let intent = IntentId { shard: routing::of_inode(d3), number: 9 };
    let locks = vec![Lock::Inode { inode: d1, fate: Fate::Loses }];
    let step = PeerStep::Lock { session: A, round: 0, waits: true, locks };
    several.deliver(PeerCall { to: routing::of_inode(d1), epoch: MapEpoch(1), intent, step });
    several.worlds[1].peer_replies.clear();
    let moves = || mv((d2, "d"), (inside, "d"), RenameMode::Replace);
    assert_eq!(several.call(B, moves()), Err(Error::Busy), "it may be decided, and is asked for");
    several.worlds[1].pass(4000, &[A, B]);
    let ask = several.worlds[1].peer_calls.remove(0);
    assert_eq!(ask.step, PeerStep::AskOutcome { of: intent });
    several.unreachable(&ask);
    assert_eq!(several.call(B, moves()), Err(Error::Unreachable));
    several.worlds[1].pass(3000, &[A, B]);
    several.settle();
    several.ok(B, moves());
}

/// A file of 50 bytes in a directory of another shard, which A has open.
fn opened_elsewhere(several: &mut Several) -> InodeNumber {
    let inode = several.make((several.directories[1], "f"));
    let world = &mut several.worlds[1];
    world.ok(A, open(inode, Access::ReadWrite));
    world.ok(A, commit(inode, 1, 50));
    inode
}

/// An operation of a third shard asks that one for a lock.
fn locks_elsewhere(several: &mut Several, lock: Lock) {
    let [_, to, of, _] = several.directories[..] else { panic!("four directories") };
    let intent = IntentId { shard: routing::of_inode(of), number: 9 };
    let step = PeerStep::Lock { session: B, round: 0, waits: true, locks: vec![lock] };
    several.deliver(PeerCall { to: routing::of_inode(to), epoch: MapEpoch(1), intent, step });
    several.worlds[1].answer_recalls(LeaseMode::Open);
}

#[test]
fn an_open_that_has_cut_its_file_waits_for_no_shard_that_locks_its_name_meanwhile() {
    let mut several = Several::new();
    let inode = opened_elsewhere(&mut several);
    let (d1, world) = (several.directories[1], &mut several.worlds[1]);
    let flags = OpenFlags { truncate: true, ..flags(Access::Write) };
    let cut = world.waits(B, ShardRequest::OpenAt { parent: d1, name: name("f"), flags, create: None, objects: None });
    world.answer_recalls(LeaseMode::Open);
    let (asked, _) = world.asked_storage();
    locks_elsewhere(&mut several, Lock::Name { directory: d1, name: name("f"), fate: Fate::Stays });
    let world = &mut several.worlds[1];
    assert_eq!(world.peer_replies.len(), 1, "the name is locked");
    world.storage_answers(asked, 0, 90);
    assert_eq!(attributes(&world.done(cut)).size, 0);
    // The other session has the file open still.
    let report = world.waits(A, commit(inode, 1, 21));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 21, 91);
    assert_eq!(attributes(&world.done(report)).size, 21);
    assert_eq!(world.shard.back().inode(inode).map(|record| record.size), Some(21));
}

#[test]
fn a_truncation_that_a_storage_server_has_made_waits_for_no_shard_that_locks_the_file_meanwhile() {
    let mut several = Several::new();
    let inode = opened_elsewhere(&mut several);
    let world = &mut several.worlds[1];
    let cut = world.waits(A, resize(inode, 0));
    let (asked, _) = world.asked_storage();
    locks_elsewhere(&mut several, Lock::Inode { inode, fate: Fate::Loses });
    let world = &mut several.worlds[1];
    world.storage_answers(asked, 0, 90);
    assert_eq!(attributes(&world.done(cut)).size, 0);
    world.waits(A, chmod(inode, 0o600));
}

#[test]
fn a_repeated_rename_gets_the_first_answer() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    several.make((d1, "f"));
    let request = mv((d1, "f"), (d2, "g"), RenameMode::Replace);
    let slot = (SlotIndex(63), 1000);
    several.worlds[1].call_in(A, user(0), slot, request.clone());
    let second = several.worlds[1].call_in(A, user(0), slot, request.clone());
    several.settle();
    let first = several.worlds[1].replies[&second].clone();
    let third = several.worlds[1].call_in(A, user(0), slot, request);
    let again = several.worlds[1].replies[&third].clone();
    assert_eq!((&again.result, &again.others), (&first.result, &first.others));
    assert_eq!(again.others.len(), 1);
}

#[test]
fn a_sticky_directory_guards_files_of_other_shards() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    several.ok(A, chmod(d1, 0o1777));
    let file = several.make((d2, "f"));
    several.ok(A, ln(file, (d1, "l")));
    for request in
        [rm((d1, "l")), mv((d1, "l"), (d1, "m"), RenameMode::Replace), mv((d1, "l"), (d3, "m"), RenameMode::Replace)]
    {
        let shard = routing::of_request(&request).expect("a name");
        let token = several.at(shard).call_as(B, user(6), request);
        several.settle();
        assert_eq!(several.at(shard).result(token), Some(Err(Error::NotPermitted)));
    }
    assert!(several.has_no_locks());
}
