//! What passes each other: answers to recalls and opens, ends of sessions and storage servers, repeated calls. Each was
//! found by the simulation.

use super::harness::*;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

fn bits(answer: &ShardAnswer) -> Grants {
    grants(answer) & (Grants::OPEN | Grants::DATA_SHARED | Grants::DATA_EXCLUSIVE)
}

#[test]
fn an_answer_to_a_recall_from_before_an_open_does_not_end_that_open() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    let reader = world.waits(B, open(inode, Access::Read));
    // A had closed it, and says so; then opens it again, and that call is faster.
    let again = world.ok(A, open(inode, Access::Write));
    assert_eq!(bits(&again), Grants::OPEN, "it is asked to give up what is more");
    world.answer_recalls(LeaseMode::None);
    assert_eq!(bits(&world.done(reader)), Grants::OPEN, "A writes");
}

#[test]
fn a_session_that_has_ended_is_granted_nothing_by_what_still_waits() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    world.waits(B, lookup("f"));
    let (asked, _) = world.asked_storage();
    world.expire(&[A, C]);
    assert_eq!(world.ended, [B]);
    world.storage_answers(asked, 10, 5);
    let before = world.shard.status();
    let removed = world.call(C, unlink("f"));
    world.answer_recalls(LeaseMode::Open);
    world.done(removed);
    assert_eq!((before.sessions, world.shard.status().parked), (2, 0));
}

#[test]
fn the_size_of_a_dead_writers_file_is_not_vouched_for_before_it_is_known() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    let waiting = world.waits(B, open(inode, Access::Read));
    world.recalls.clear();
    world.expire(&[B, C]);
    assert_eq!(world.ended, [A]);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode, object: object(1) });
    assert_eq!(bits(&world.done(waiting)), Grants::OPEN, "B reads at the server");
    world.storage_answers(asked, 900, 4);
    assert_eq!(attributes(&world.ok(C, open(inode, Access::Read))).size, 900);
}

#[test]
fn who_may_have_given_up_a_file_already_is_told_its_true_size() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    world.waits(B, open(inode, Access::Read));
    // A has given it up and writes through the server; its answer to the recall was lost.
    let asking = world.waits(A, stat(inode));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 170, 5);
    assert_eq!(attributes(&world.done(asking)).size, 170);
}

/// A report of the first object of a file, of this size.
fn first_object(inode: InodeNumber, size: u64, mtime: Option<Timestamp>) -> ShardRequest {
    let (object, object_mtime, others) = (Some(object(1)), Timestamp(4), Vec::new());
    let (known, number, passed) = (u64::MAX, 0, false);
    ShardRequest::Commit { inode, object, others, size, mtime, object_mtime, known, number, passed }
}

/// A new file without an object that A and B have open for writing, and that B has extended to 120 bytes.
fn extended_by_another() -> (World, InodeNumber) {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("new"))).inode;
    let both = world.call(B, open(inode, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    world.done(both);
    let token = world.call(B, resize(inode, 120));
    world.answer_recalls(LeaseMode::None);
    assert_eq!(attributes(&world.done(token)).size, 120);
    (world, inode)
}

#[test]
fn the_first_object_of_a_file_does_not_undo_its_extension() {
    let (mut world, inode) = extended_by_another();
    let token = world.call(A, commit(inode, 1, 19));
    world.answer_recalls(LeaseMode::None);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size: 120, by: A });
    world.storage_answers(asked, 120, 5);
    assert_eq!(attributes(&world.done(token)).size, 120);
}

#[test]
fn a_size_that_is_set_while_a_first_object_is_extended_is_the_objects_in_the_end() {
    let cut = || OpenFlags { truncate: true, ..flags(Access::Write) };
    let by_name = ShardRequest::OpenAt {
        parent: InodeNumber::ROOT,
        name: name("new"),
        flags: cut(),
        create: None,
        objects: None,
    };
    let changes: [&dyn Fn(InodeNumber) -> (ShardRequest, u64); 3] =
        [&|inode| (resize(inode, 60), 60), &|inode| (ShardRequest::Open { inode, flags: cut() }, 0), &|_| {
            (by_name.clone(), 0)
        }];
    for change in changes {
        let (mut world, inode) = extended_by_another();
        let reported = world.waits(A, commit(inode, 1, 19));
        world.answer_recalls(LeaseMode::None);
        let (asked, _) = world.asked_storage();
        let (request, size) = change(inode);
        let changed = world.waits(B, request);
        world.storage_answers(asked, 120, 5);
        world.done(reported);
        world.answer_recalls(LeaseMode::None);
        let (asked, request) = world.asked_storage();
        assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size, by: B });
        world.storage_answers(asked, size, 6);
        assert_eq!(attributes(&world.done(changed)).size, size);
    }
}

#[test]
fn the_first_object_of_a_file_that_is_reported_late_does_not_undo_its_extension() {
    let (mut world, inode) = extended_by_another();
    world.ok(B, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] });
    // A is alone by now, and reports the object that it had made before.
    assert!(bits(&world.ok(A, open(inode, Access::Write))).contains(Grants::DATA_EXCLUSIVE));
    let token = world.waits(A, first_object(inode, 0, None));
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size: 120, by: A });
    world.storage_answers(asked, 120, 5);
    assert_eq!(attributes(&world.done(token)).size, 120);
}

#[test]
fn the_first_object_that_is_reported_while_its_lease_is_recalled_does_not_undo_an_extension() {
    // With the time of the client's own write, or without.
    for mtime in [Some(Timestamp(1_000)), None] {
        let mut world = World::new();
        let inode = attributes(&world.ok(A, create("new"))).inode;
        world.ok(A, resize(inode, 120));
        let other = world.waits(B, open(inode, Access::Write));
        // A has weakened its lease, so that it looks the object's size up and does not extend it.
        let token = world.waits(A, first_object(inode, 19, mtime));
        let (asked, request) = world.asked_storage();
        assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size: 120, by: A });
        world.storage_answers(asked, 120, 5);
        assert_eq!(attributes(&world.done(token)).size, 120);
        world.answer_recalls(LeaseMode::Open);
        world.done(other);
    }
}

#[test]
fn a_repeated_open_tells_what_the_file_is_now() {
    const SLOT: SlotIndex = SlotIndex(3);
    let mut world = World::new();
    let inode = world.file("f", 1);
    let first = world.call_in(A, user(0), (SLOT, 1), open(inode, Access::Write));
    world.done(first);
    world.ok(A, commit(inode, 1, 5000));
    let again = world.call_in(A, user(0), (SLOT, 1), open(inode, Access::Write));
    let again = world.done(again);
    assert_eq!((attributes(&again).size, bits(&again)), (5000, Grants::OPEN | Grants::DATA_EXCLUSIVE));
}

#[test]
fn each_answer_has_a_stamp_of_its_own() {
    let mut world = World::new();
    world.file("f", 1);
    world.ok(A, list(ROOT, None, 10));
    // A holds the directory, so that none of these grants anything.
    let tokens: Vec<u64> = [unlink("f"), lookup("f")].into_iter().map(|request| world.call(A, request)).collect();
    let stamps: Vec<u64> = tokens.iter().map(|token| world.replies[token].stamp).collect();
    assert!(stamps[0] < stamps[1], "{stamps:?}");
}
