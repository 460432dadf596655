//! Storage servers that do not answer the shard, though clients may reach them: sizes that are in doubt, and objects
//! that are to be removed.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

fn unanswered(world: &mut World, token: u64) {
    world.event(Event::StorageAnswer { token, result: Err(Error::Unreachable) });
}

/// The one question that is open has no answer.
fn asked_in_vain(world: &mut World) -> StorageRequest {
    let (token, request) = world.asked_storage();
    unanswered(world, token);
    request
}

fn is_in_doubt(answer: &ShardAnswer) -> bool {
    grants(answer).contains(Grants::SIZE_IN_DOUBT)
}

fn release(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] }
}

fn question(inode: InodeNumber, sequence: u64) -> StorageRequest {
    StorageRequest::Stat { inode, object: object(sequence) }
}

#[test]
fn a_size_that_a_storage_server_may_know_better_is_told_as_one_in_doubt() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    for request in [stat(inode), lookup("f")] {
        let token = world.waits(B, request.clone());
        asked_in_vain(&mut world);
        let answer = world.done(token);
        assert!(is_in_doubt(&answer) && !grants(&answer).contains(Grants::ATTRIBUTES));
        // Whether the server answers is found out by each who asks.
        let token = world.waits(B, request);
        let (asked, _) = world.asked_storage();
        world.storage_answers(asked, 300, 5);
        let answer = world.done(token);
        assert_eq!((attributes(&answer).size, is_in_doubt(&answer)), (300, false));
    }
}

#[test]
fn a_report_to_which_the_storage_server_has_not_answered_leaves_the_size_in_doubt() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    for session in [A, B] {
        let token = world.call(session, open_direct(inode, Access::Write));
        world.answer_recalls(LeaseMode::Open);
        world.done(token);
    }
    let report = world.call(A, commit(inode, 1, 150));
    world.answer_recalls(LeaseMode::Open);
    asked_in_vain(&mut world);
    world.done(report);
    assert_eq!(asked_in_vain(&mut world), question(inode, 1), "for what B has written");
    for session in [A, B] {
        world.ok(session, release(inode));
    }
    world.move_shard();
    let look = world.waits(C, stat(inode));
    asked_in_vain(&mut world);
    assert!(is_in_doubt(&world.done(look)));
    world.pass(1_000, &[A, B, C]);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, question(inode, 1));
    world.storage_answers(asked, 900, 5);
    let answer = world.ok(C, stat(inode));
    assert_eq!((attributes(&answer).size, grants(&answer)), (900, Grants::ATTRIBUTES));
}

#[test]
fn a_cut_to_which_the_storage_server_has_not_answered_leaves_the_size_in_doubt() {
    for is_cut in [true, false] {
        let mut world = World::new();
        let inode = world.file("f", 1);
        world.ok(A, open(inode, Access::Read));
        let token = world.waits(A, resize(inode, 10));
        asked_in_vain(&mut world);
        assert_eq!(world.result(token), Some(Err(Error::Unreachable)));
        // The session that asked for it does not know either.
        let recalled = world.recalled();
        assert!(recalled.contains(&(A, LeaseKey::Data(inode), LeaseMode::Open)), "{recalled:?}");
        let (asked, request) = world.asked_storage();
        assert_eq!(request, question(inode, 1));
        let answer = world.ok(A, open(inode, Access::Read));
        assert_eq!(grants(&answer) - Grants::SHARED_DIRECTORY, Grants::OPEN, "no lease on a size in doubt");
        world.answer_recalls(LeaseMode::Open);
        let size = if is_cut { 10 } else { 100 };
        world.storage_answers(asked, size, 5);
        assert_eq!(attributes(&world.ok(B, stat(inode))).size, size);
    }
}

/// They would go on with the old one.
#[test]
fn a_file_gets_no_other_object_in_place_of_a_cut_while_others_have_it_open() {
    for access in [Access::Read, Access::Write] {
        let mut world = World::new();
        let inode = world.file("f", 1);
        world.ok(B, open_direct(inode, access));
        let cut = OpenFlags { truncate: true, ..flags(Access::Write) };
        for request in [resize(inode, 0), ShardRequest::Open { inode, flags: cut }] {
            let token = world.waits(A, request);
            world.answer_recalls(LeaseMode::Open);
            asked_in_vain(&mut world);
            assert_eq!(world.result(token), Some(Err(Error::Unreachable)));
            let (asked, _) = world.asked_storage();
            world.storage_answers(asked, 100, 5);
        }
        assert_eq!(world.removed_objects(), []);
        let answer = world.ok(A, open(inode, Access::Read));
        assert_eq!(attributes(&answer).layout.object(), Some(object(1)));
    }
}

/// Removes these files; their objects are one node's.
fn remove(world: &mut World, names: &[&str]) {
    for name in names {
        world.ok(B, unlink(name));
    }
}

fn removal(world: &mut World) -> (u64, usize) {
    let (token, request) = world.asked_storage();
    let StorageRequest::Remove { objects } = request else { panic!("{request:?}") };
    (token, objects.len())
}

#[test]
fn objects_are_removed_when_their_storage_server_answers_again() {
    let mut world = World::with_twin();
    for (name, sequence) in [("f", 1), ("g", 2), ("h", 3)] {
        world.file(name, sequence);
    }
    remove(&mut world, &["f"]);
    let (token, 1) = removal(&mut world) else { panic!("one object") };
    unanswered(&mut world, token);
    remove(&mut world, &["g", "h"]);
    assert_eq!(world.storage, [], "it does not answer");
    world.move_shard();
    // One of them is tried now and then, less often each time, but not seldom.
    for wait_ms in [1_000, 2_000, 4_000, 8_000, 8_000] {
        world.pass(wait_ms - 500, &[B]);
        assert_eq!(world.storage, []);
        world.pass(500, &[B]);
        let (token, 1) = removal(&mut world) else { panic!("one object") };
        world.pass(20_000, &[B]);
        assert_eq!(world.storage, [], "one at a time");
        unanswered(&mut world, token);
    }
    world.pass(8_000, &[B]);
    let (token, 1) = removal(&mut world) else { panic!("one object") };
    world.event(Event::StorageAnswer { token, result: Ok(StorageAnswer::Done) });
    let (token, 2) = removal(&mut world) else { panic!("the others") };
    world.event(Event::StorageAnswer { token, result: Ok(StorageAnswer::Done) });
    world.pass(100_000, &[B]);
    assert_eq!(world.storage, [], "they are removed");
}

#[test]
fn any_answer_of_a_storage_server_has_all_asked_that_was_put_off() {
    let mut world = World::new();
    let (first, second) = (world.file("f", 1), world.file("g", 2));
    for inode in [first, second] {
        world.ok(A, open_direct(inode, Access::Write));
    }
    world.expire(&[B]);
    for (token, _, _) in std::mem::take(&mut world.storage) {
        unanswered(&mut world, token.expect("a question"));
    }
    let look = world.waits(B, stat(first));
    let (token, _) = world.asked_storage();
    world.storage_answers(token, 300, 5);
    assert_eq!(attributes(&world.done(look)).size, 300);
    let asked = std::mem::take(&mut world.storage);
    let requests: Vec<_> = asked.iter().map(|(_, _, request)| request.clone()).collect();
    assert_eq!(requests, [question(first, 1), question(second, 2)]);
    for (token, _, _) in asked {
        world.storage_answers(token.expect("a question"), 400, 6);
    }
    for inode in [first, second] {
        assert_eq!(attributes(&world.ok(B, stat(inode))).size, 400);
    }
}

#[test]
fn a_storage_server_that_has_left_is_asked_nothing_more() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.file("g", 2);
    world.ok(A, open_direct(inode, Access::Write));
    world.expire(&[B]);
    asked_in_vain(&mut world);
    remove(&mut world, &["g"]);
    let removed_max = Some(NodeId(4));
    world.event(Event::SetMap(ClusterMap { removed_max, epoch: MapEpoch(9), ..map_of(1) }));
    world.pass(100_000, &[B]);
    assert_eq!(world.storage, []);
    assert_eq!(attributes(&world.ok(B, stat(inode))).size, 100, "nobody knows better any more");
}

/// As `split` 1661 of the simulation: the search that began anew was never sent.
#[test]
fn a_probe_that_fails_after_the_file_was_cut_again_is_followed_by_others() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let token = world.waits(A, resize(inode, 10));
    asked_in_vain(&mut world);
    assert_eq!(world.result(token), Some(Err(Error::Unreachable)));
    asked_in_vain(&mut world);
    world.pass(1_000, &[A]);
    let (probe, _) = world.asked_storage();
    let token = world.waits(A, resize(inode, 20));
    asked_in_vain(&mut world);
    assert_eq!(world.result(token), Some(Err(Error::Unreachable)));
    unanswered(&mut world, probe);
    world.pass(2_000, &[A]);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, question(inode, 1));
    world.storage_answers(asked, 20, 5);
    assert_eq!(attributes(&world.ok(A, stat(inode))).size, 20);
}

#[test]
fn a_shard_that_has_moved_to_a_storage_server_waits_for_no_answer_of_it() {
    let mut world = World::new();
    for (name, sequence) in [("f", 1), ("g", 2)] {
        world.file(name, sequence);
    }
    remove(&mut world, &["f"]);
    let (token, 1) = removal(&mut world) else { panic!("one object") };
    unanswered(&mut world, token);
    remove(&mut world, &["g"]);
    world.move_shard();
    let shards = vec![ShardRecord::new(NodeId(4), MapEpoch(9))];
    world.event(Event::SetMap(ClusterMap { epoch: MapEpoch(9), shards, ..map_of(4) }));
    world.pass(1_000, &[B]);
    assert!(world.storage.iter().all(|(token, node, _)| token.is_none() && *node == NodeId(4)), "{:?}", world.storage);
    assert_eq!(world.removed_objects(), [object(1), object(2)]);
    world.pass(100_000, &[B]);
    assert_eq!(world.storage, []);
}
