//! Modification and change times: of whose clock they are, and that everybody is told the same.

use super::harness::*;
use weft_protocol::message::shard::{Access, ShardRequest};
use weft_protocol::{AttributeChanges, InodeNumber, LeaseMode, TimeChange, Timestamp};

/// Of the node of the object: it may be far from the others.
const NODE_TIME: i64 = 77_000;

/// mtime and ctime, as B is told by the shard, which asks the storage server.
fn times(world: &mut World, inode: InodeNumber, object_mtime: i64) -> (Timestamp, Timestamp) {
    let token = world.waits(B, stat(inode));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 300, object_mtime);
    let answer = world.done(token);
    let told = attributes(&answer);
    (told.mtime, told.ctime)
}

/// A file that A has written under its exclusive lease, at this time, and writes on without.
fn written_at(world: &mut World, time: Timestamp, object_mtime: i64) -> InodeNumber {
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.waits(B, open(inode, Access::Read));
    world.ok(A, commit_at(inode, 5, 300, (time, Timestamp(object_mtime))));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    inode
}

#[test]
fn a_write_has_the_time_that_its_writer_was_told_whatever_the_objects_time_is() {
    for object_mtime in [NODE_TIME, i64::MAX - 1000] {
        let mut world = World::new();
        let time = Timestamp(world.now.wall.0 + 500);
        let inode = written_at(&mut world, time, object_mtime);
        assert_eq!(times(&mut world, inode, object_mtime), (time, time));
        world.now.wall = Timestamp(time.0 + 1_000_000);
        assert_eq!(times(&mut world, inode, object_mtime), (time, time), "nobody has written since");
    }
}

#[test]
fn a_write_through_the_storage_server_is_later_than_what_was_before_and_keeps_its_time() {
    for (object_mtime, is_ahead) in [(NODE_TIME, false), (i64::MAX - 1000, true)] {
        let mut world = World::new();
        let time = Timestamp(world.now.wall.0 + 500);
        let inode = written_at(&mut world, time, object_mtime);
        let first = times(&mut world, inode, object_mtime + 1);
        assert_eq!(first.0, if is_ahead { Timestamp(object_mtime + 1) } else { Timestamp(time.0 + 1) });
        assert_eq!(times(&mut world, inode, object_mtime + 1), first);
        // A question from before the write is answered late.
        assert_eq!(times(&mut world, inode, object_mtime), first);
        let second = times(&mut world, inode, object_mtime + 2);
        assert_eq!(second, (Timestamp(first.0.0 + 1), Timestamp(first.0.0 + 1)));
        // The report of a writer has nothing new.
        let token = world.waits(A, commit_at(inode, 5, 300, (Timestamp(1), Timestamp(1))));
        let (asked, _) = world.asked_storage();
        world.storage_answers(asked, 300, object_mtime + 2);
        assert_eq!(attributes(&world.done(token)).mtime, second.0);
    }
}

#[test]
fn a_time_that_is_set_is_not_undone_by_a_write_before_it() {
    let mut world = World::new();
    let time = Timestamp(world.now.wall.0 + 500);
    let inode = written_at(&mut world, time, NODE_TIME);
    // A has written, and nobody knows of it but the storage server.
    let changes = AttributeChanges { mtime: Some(TimeChange::To(Timestamp(5))), ..AttributeChanges::default() };
    let token = world.waits(B, ShardRequest::SetAttributes { inode, changes });
    world.answer_recalls(LeaseMode::None);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 300, NODE_TIME + 1);
    assert_eq!(attributes(&world.done(token)).mtime, Timestamp(5));
    assert_eq!(times(&mut world, inode, NODE_TIME + 1).0, Timestamp(5));
    assert!(times(&mut world, inode, NODE_TIME + 2).0 > time, "and one after it counts");
}

#[test]
fn a_cut_is_one_change_though_the_object_changes_with_it() {
    let mut world = World::new();
    let time = Timestamp(world.now.wall.0 + 500);
    let inode = written_at(&mut world, time, NODE_TIME);
    let token = world.waits(B, resize(inode, 300));
    world.answer_recalls(LeaseMode::None);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 300, NODE_TIME + 1);
    let answer = world.done(token);
    let cut = attributes(&answer);
    assert_eq!((cut.mtime, cut.ctime), (Timestamp(time.0 + 1), Timestamp(time.0 + 1)), "the shard's clock is behind");
    assert_eq!(times(&mut world, inode, NODE_TIME + 1), (cut.mtime, cut.ctime));
}
