//! Striped files: what is asked of one storage server of other files is asked of each of theirs.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

const STRIPE: u32 = 100;

/// The objects of a striped file, each at another node.
fn objects(first: u64) -> Vec<ObjectId> {
    (0..3u16).map(|index| ObjectId::new(NodeId(4 + index), first + u64::from(index))).collect()
}

fn plan() -> StripePlan {
    StripePlan::new(3, STRIPE).expect("a plan")
}

/// The first report of a file: with these objects, and this size.
fn report(inode: InodeNumber, objects: &[ObjectId], size: u64) -> ShardRequest {
    let (object, others) = (objects.first().copied(), objects[1..].to_vec());
    let (mtime, object_mtime) = (Some(Timestamp(77)), Timestamp(77));
    let (known, number, passed) = (u64::MAX, 0, false);
    ShardRequest::Commit { inode, object, others, size, mtime, object_mtime, known, number, passed }
}

/// A shard whose files are striped, and one of 450 bytes that nobody has open.
fn with_file() -> (World, InodeNumber) {
    let mut world = World::new();
    let maker = SessionId(99);
    world.ok(maker, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(plan().into()) });
    let made = world.ok(maker, create("f"));
    assert_eq!(attributes(&made).layout, Layout::Planned(plan()));
    let inode = attributes(&made).inode;
    let told = world.ok(maker, report(inode, &objects(10), 450));
    assert_eq!(attributes(&told).layout.objects(), objects(10));
    world.ok(maker, ShardRequest::EndSession);
    (world, inode)
}

/// The questions that storage servers were asked.
fn asked(world: &mut World) -> Vec<(u64, StorageRequest)> {
    let asked = std::mem::take(&mut world.storage).into_iter();
    let asked = asked.map(|(token, node, request)| {
        assert_eq!(request.object().map(|(_, object)| object.node()), Some(node));
        (token.expect("a question with a token"), request)
    });
    asked.collect()
}

fn stats(inode: InodeNumber) -> Vec<StorageRequest> {
    objects(10).into_iter().map(|object| StorageRequest::Stat { inode, object }).collect()
}

fn requests(asked: &[(u64, StorageRequest)]) -> Vec<StorageRequest> {
    asked.iter().map(|(_, request)| request.clone()).collect()
}

#[test]
fn an_open_tells_a_right_to_each_object() {
    let (mut world, inode) = with_file();
    let ShardAnswer::Opened { capability: Some(first), others, .. } = world.ok(A, open(inode, Access::Read)) else {
        panic!("not opened");
    };
    let covered: Vec<ObjectId> = std::iter::once(first).chain(others).map(|right| right.object).collect();
    assert_eq!(covered, objects(10));
}

#[test]
fn a_cut_reaches_each_object_before_anybody_is_told() {
    let (mut world, inode) = with_file();
    let token = world.waits(A, resize(inode, 250));
    let cut = |index: usize, size| StorageRequest::Truncate { inode, object: objects(10)[index], size, by: A };
    let (first, request) = asked_once(&mut world);
    assert_eq!(request, cut(2, 50), "the one with the last byte comes first");
    world.storage_answers(first, 50, 90);
    let asked = asked(&mut world);
    assert_eq!(requests(&asked), [cut(1, 100), cut(0, 100)]);
    for (asked, _) in asked {
        assert_eq!(world.result(token), None);
        world.storage_answers(asked, 100, 90);
    }
    assert_eq!(attributes(&world.done(token)).size, 250);
}

#[test]
fn a_cut_that_one_server_refuses_fails_and_the_objects_tell_the_size() {
    let (mut world, inode) = with_file();
    let token = world.waits(A, resize(inode, 250));
    let (first, _) = asked_once(&mut world);
    world.event(Event::StorageAnswer { token: first, result: Err(Error::NoSpace) });
    assert_eq!((world.result(token), world.storage.len()), (Some(Err(Error::NoSpace)), 0), "nothing was cut");
    assert_eq!(attributes(&world.ok(A, stat(inode))).size, 450);
    let token = world.waits(A, resize(inode, 250));
    let (first, _) = asked_once(&mut world);
    world.storage_answers(first, 50, 90);
    let asked = asked(&mut world);
    world.event(Event::StorageAnswer { token: asked[0].0, result: Err(Error::Unreachable) });
    world.storage_answers(asked[1].0, 100, 90);
    assert_eq!(world.result(token), Some(Err(Error::Unreachable)));
    // The others have done it: the objects tell what the file has now.
    world.event(Event::Tick);
    for size in [100, 150, 50] {
        let (token, _) = asked_once(&mut world);
        world.storage_answers(token, size, 95);
    }
    assert_eq!(attributes(&world.ok(A, stat(inode))).size, 450, "stripe 4 is there still");
}

fn asked_once(world: &mut World) -> (u64, StorageRequest) {
    let mut asked = asked(world);
    assert_eq!(asked.len(), 1);
    asked.remove(0)
}

#[test]
fn the_size_while_several_write_is_where_the_last_object_ends() {
    let (mut world, inode) = with_file();
    world.ok(A, open_direct(inode, Access::ReadWrite));
    let token = world.waits(B, stat(inode));
    let asked = asked(&mut world);
    assert_eq!(requests(&asked), stats(inode));
    // Stripes 0 and 3, 1 and 4, 2: byte 449 is the last of stripe 4, and a writer has added to stripe 5.
    for (index, (size, mtime)) in [(200, 80), (150, 95), (103, 90)].into_iter().enumerate() {
        world.storage_answers(asked[index].0, size, mtime);
    }
    let told = attributes(&world.done(token)).clone();
    assert_eq!(told.size, 503);
}

#[test]
fn objects_of_a_dead_writer_are_asked_one_after_the_other() {
    let (mut world, inode) = with_file();
    world.ok(A, open_direct(inode, Access::ReadWrite));
    world.expire(&[B]);
    assert_eq!(world.ended, [A]);
    let mut storage = Vec::new();
    for (index, size) in [200, 150, 103].into_iter().enumerate() {
        let (token, request) = asked(&mut world).remove(0);
        storage.push(request);
        if index == 1 {
            // It is asked again until it answers.
            world.event(Event::StorageAnswer { token, result: Err(Error::Unreachable) });
            world.pass(2000, &[B]);
            let (token, request) = asked(&mut world).remove(0);
            assert_eq!(Some(&request), storage.last());
            world.storage_answers(token, size, 90);
        } else {
            world.storage_answers(token, size, 90);
        }
    }
    assert_eq!(storage, stats(inode));
    assert_eq!(attributes(&world.ok(B, stat(inode))).size, 503);
}

#[test]
fn every_node_of_a_written_file_confirms_a_fence() {
    let (mut world, inode) = with_file();
    world.ok(A, open(inode, Access::Write));
    world.keeps_fences = true;
    world.expire(&[B]);
    let nodes: Vec<NodeId> = world.fences.iter().map(|(_, node)| *node).collect();
    assert_eq!(nodes, [NodeId(4), NodeId(5), NodeId(6)]);
    let abandoned: Vec<ObjectId> = world.abandoned.iter().map(|(_, object)| *object).collect();
    assert_eq!(abandoned, objects(10));
}

#[test]
fn all_objects_go_with_the_file_or_with_its_bytes() {
    let (mut world, inode) = with_file();
    for object in objects(10) {
        assert_eq!(world.shard.uses_object(SessionId(99), inode, object), Ok(true));
    }
    let told = world.ok(A, resize(inode, 0));
    assert_eq!(attributes(&told).layout, Layout::Planned(plan()), "it will be striped again");
    assert_eq!(world.removed_objects(), objects(10));
    world.ok(A, open(inode, Access::Write));
    world.ok(A, report(inode, &objects(20), 10));
    world.ok(A, ShardRequest::EndSession);
    world.ok(B, unlink("f"));
    assert_eq!(world.removed_objects(), objects(20));
}

#[test]
fn of_two_first_writers_one_has_its_objects_removed() {
    let mut world = World::new();
    world.ok(A, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(plan().into()) });
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.waits(B, open(inode, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    world.ok(A, report(inode, &objects(10), 10));
    let token = world.call(B, report(inode, &objects(20), 10));
    let told = match world.result(token) {
        Some(Ok(answer)) => answer,
        _ => {
            for (token, _) in asked(&mut world) {
                let result = Ok(StorageAnswer::Object { size: 4, mtime: Timestamp(9) });
                world.event(Event::StorageAnswer { token, result });
            }
            world.done(token)
        }
    };
    assert_eq!(attributes(&told).layout.objects(), objects(10));
    assert_eq!(world.removed_objects(), objects(20));
}

#[test]
fn a_file_keeps_its_size_when_objects_that_it_does_not_get_were_extended_in_part() {
    let mut world = World::new();
    world.ok(A, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(plan().into()) });
    let inode = attributes(&world.ok(A, create("f"))).inode;
    world.ok(A, resize(inode, 450));
    let token = world.call(A, report(inode, &objects(10), 10));
    while world.result(token).is_none() {
        for (token, request) in asked(&mut world) {
            let is_full = request.object().is_some_and(|(_, object)| object == objects(10)[2]);
            let told = StorageAnswer::Object { size: 200, mtime: Timestamp(9) };
            let result = if is_full { Err(Error::NoSpace) } else { Ok(told) };
            world.event(Event::StorageAnswer { token, result });
        }
    }
    assert_eq!(world.result(token), Some(Err(Error::NoSpace)));
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(attributes(&world.ok(B, stat(inode))).size, 450);
}

#[test]
fn what_does_not_fit_the_plan_is_refused() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("whole"))).inode;
    assert_eq!(world.refused(A, report(inode, &objects(10), 0)), Error::Invalid);
    assert_eq!(attributes(&world.ok(A, stat(inode))).layout, Layout::Empty);
    assert_eq!(
        world.refused(A, ShardRequest::SetInherited { inode, change: InheritedChange::Plan(plan().into()) }),
        Error::NotDirectory
    );
    let token = world.call_as(
        A,
        user(5),
        ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(plan().into()) },
    );
    assert_eq!(world.result(token), Some(Err(Error::NotPermitted)));
}

#[test]
fn a_search_for_the_size_that_was_put_off_begins_anew_after_a_cut() {
    let (mut world, inode) = with_file();
    world.ok(A, open_direct(inode, Access::ReadWrite));
    world.expire(&[B]);
    let (token, _) = asked_once(&mut world);
    world.storage_answers(token, 200, 90);
    let (token, _) = asked_once(&mut world);
    world.event(Event::StorageAnswer { token, result: Err(Error::Unreachable) });
    let cut = world.waits(B, resize(inode, 250));
    let (token, _) = asked_once(&mut world);
    world.event(Event::StorageAnswer { token, result: Err(Error::NoSpace) });
    assert_eq!(world.result(cut), Some(Err(Error::NoSpace)));
    for (index, size) in [200, 150, 103].into_iter().enumerate() {
        let (token, request) = asked_once(&mut world);
        assert_eq!(request, stats(inode)[index]);
        world.storage_answers(token, size, 90);
        world.pass(1_000, &[B]);
    }
    assert_eq!(attributes(&world.ok(B, stat(inode))).size, 503);
}
