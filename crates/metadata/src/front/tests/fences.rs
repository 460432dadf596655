//! Sessions that are ended against their will: what they held is granted once they are fenced.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

const NODE: NodeId = NodeId(4);

/// A session has a file open for writing, and ends with its term. Its fence is not confirmed yet.
fn writer_gone(world: &mut World) -> InodeNumber {
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    world.keeps_fences = true;
    world.expire(&[B, C]);
    assert_eq!((world.ended.as_slice(), world.fences.as_slice()), ([A].as_slice(), [(A, NODE)].as_slice()));
    inode
}

#[test]
fn what_a_writer_held_is_granted_when_its_fence_is_confirmed() {
    let mut world = World::new();
    let inode = writer_gone(&mut world);
    let token = world.waits(B, open(inode, Access::Write));
    assert_eq!(world.storage, [], "bytes may still land: the size is not asked for yet");
    world.pass(60_000, &[B, C]);
    assert_eq!(world.result(token), None, "no time is as good as the confirmation");
    world.confirm_fences();
    assert!(grants(&world.done(token)).contains(Grants::OPEN));
    assert!(matches!(world.asked_storage().1, StorageRequest::Stat { .. }));
    assert_eq!(world.ended, [A], "it is ended once");
}

#[test]
fn a_session_that_is_being_ended_is_refused() {
    let mut world = World::new();
    let inode = writer_gone(&mut world);
    assert_eq!(world.refused(A, stat(inode)), Error::SessionEnded);
    assert!(world.shard.refuses(A));
    world.event(Event::Lost { session: A });
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.ended, [A], "it is ended once");
    assert!(world.shard.status().leases > 0, "what it held is kept from others");
    world.confirm_fences();
    assert_eq!(world.shard.status().leases, 0);
    assert!(world.shard.refuses(A));
}

#[test]
fn a_session_that_writes_nothing_is_ended_at_once() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    world.keeps_fences = true;
    world.expire(&[B]);
    assert_eq!((world.ended.as_slice(), world.fences.as_slice()), ([A].as_slice(), [].as_slice()));
    assert_eq!(world.shard.status().leases, 0);
}

#[test]
fn who_says_goodbye_is_not_fenced() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    world.ok(A, ShardRequest::EndSession);
    assert_eq!((world.ended.as_slice(), world.shard.status().leases), ([].as_slice(), 0));
}

#[test]
fn an_object_is_abandoned_unless_others_have_the_file_open() {
    let mut world = World::new();
    let (shared, alone) = (world.file("f", 1), world.file("g", 2));
    world.ok(B, open_direct(shared, Access::Read));
    let token = world.waits(A, open_direct(shared, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    world.ok(A, open(alone, Access::Write));
    world.expire(&[B]);
    assert_eq!((world.ended.as_slice(), world.abandoned.as_slice()), ([A].as_slice(), [(alone, object(2))].as_slice()));
}

#[test]
fn nobody_gets_at_an_object_that_may_be_being_abandoned() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    // It holds no more than Open, which is in nobody's way while it lives.
    world.ok(A, open_direct(inode, Access::Write));
    world.keeps_fences = true;
    world.expire(&[B]);
    let waiting = [open_direct(inode, Access::Read), open_direct(inode, Access::Write), resize(inode, 7), unlink("f")];
    for request in waiting {
        world.waits(B, request);
    }
    assert_eq!(world.storage, []);
}

#[test]
fn the_size_of_a_file_whose_writer_is_gone_is_asked_for_until_its_storage_server_answers() {
    let mut world = World::new();
    let inode = writer_gone(&mut world);
    world.confirm_fences();
    let mut asked = 0;
    for _ in 0..8 {
        let (token, request) = world.asked_storage();
        assert!(matches!(request, StorageRequest::Stat { .. }));
        world.event(Event::StorageAnswer { token, result: Err(Error::Unreachable) });
        asked += 1;
        assert_eq!(world.storage, [], "not at once");
        world.pass(64_000, &[B, C]);
    }
    assert_eq!(asked, 8);
    let (token, _) = world.asked_storage();
    let later = world.now.wall.0 + 1000;
    world.storage_answers(token, 7_000, later);
    world.pass(200_000, &[B, C]);
    assert_eq!(world.storage, [], "it is known");
    assert_eq!(attributes(&world.ok(B, stat(inode))).size, 7_000);
}

#[test]
fn an_object_is_no_orphan_before_the_session_that_made_it_has_ended_and_is_fenced() {
    let mut world = World::new();
    world.ok(A, create("f"));
    let inode = attributes(&world.ok(A, lookup("f"))).inode;
    let uses = |world: &World, sequence| world.shard.uses_object(A, inode, object(sequence));
    assert_eq!(uses(&world, 1), Err(Error::Busy), "it may be reported");
    world.ok(A, commit(inode, 1, 100));
    assert_eq!(uses(&world, 1), Err(Error::Busy));
    world.keeps_fences = true;
    world.expire(&[B]);
    assert_eq!((uses(&world, 1), uses(&world, 2)), (Err(Error::Busy), Err(Error::Busy)), "it is being ended");
    world.confirm_fences();
    assert_eq!((uses(&world, 1), uses(&world, 2)), (Ok(true), Ok(false)));
    assert_eq!(world.shard.uses_object(C, inode, object(2)), Ok(false), "a session that never was here");
    assert_eq!(world.shard.uses_object(A, InodeNumber::new(ShardId(0), 999), object(1)), Ok(false));
}
