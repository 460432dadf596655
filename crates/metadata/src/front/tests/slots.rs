//! Exactly once.

use super::harness::*;
use crate::back::{Origin, Slot};
use weft_protocol::message::shard::*;
use weft_protocol::*;

const SLOT: SlotIndex = SlotIndex(3);

#[test]
fn a_repeated_change_gets_the_first_answer_without_grants() {
    let mut world = World::new();
    let exclusive = ShardRequest::OpenAt {
        parent: ROOT,
        name: name("f"),
        flags: flags(Access::ReadWrite),
        create: Some(CreateFile { mode: 0o600, exclusive: true, plan: None }),
        objects: None,
    };
    let first = world.call_in(A, user(0), (SLOT, 5), exclusive.clone());
    let again = world.call_in(A, user(0), (SLOT, 5), exclusive);
    let (first, again) = (world.done(first), world.done(again));
    let ShardAnswer::Opened { attributes, created: true, .. } = &again else { panic!("{again:?}") };
    assert_eq!(attributes, super::harness::attributes(&first));
    assert_eq!(grants(&again), Grants::OPEN | Grants::DATA_EXCLUSIVE, "what it holds, and nothing beside");
    let removed = world.call_in(A, user(0), (SLOT, 6), unlink("f"));
    let again = world.call_in(A, user(0), (SLOT, 6), unlink("f"));
    assert_eq!(world.done(removed), world.done(again));
    let old = world.call_in(A, user(0), (SLOT, 5), unlink("f"));
    assert_eq!(world.result(old), Some(Err(Error::Invalid)));
    assert_eq!(world.shard.status().dentries, 0);
}

#[test]
fn an_error_is_repeated_too() {
    let mut world = World::new();
    let missing = world.call_in(A, user(0), (SLOT, 1), unlink("f"));
    assert_eq!(world.result(missing), Some(Err(Error::NotFound)));
    world.file("f", 1);
    let again = world.call_in(A, user(0), (SLOT, 1), unlink("f"));
    assert_eq!(world.result(again), Some(Err(Error::NotFound)));
}

#[test]
fn a_change_that_waits_is_found_by_its_slot() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, stat(inode));
    let first = world.call_in(A, user(0), (SLOT, 1), chmod(inode, 0o600));
    let again = world.call_in(A, user(0), (SLOT, 1), chmod(inode, 0o600));
    assert_eq!(world.result(first), Some(Err(Error::Busy)), "its token has ended, as its connection has");
    let other = world.call_in(A, user(0), (SLOT, 2), chmod(inode, 0o644));
    assert_eq!(world.result(other), Some(Err(Error::Busy)));
    world.answer_recalls(LeaseMode::None);
    world.done(again);
}

#[test]
fn a_repeated_open_has_a_new_capability() {
    let mut world = World::new();
    let inode = world.file("f", 7);
    let first = world.call_in(A, user(0), (SLOT, 1), open(inode, Access::Read));
    world.pass(5_000, &[A]);
    world.now.wall = Timestamp::from_parts(2_000_000, 0);
    // Another request under the same sequence is the same call: no right to write comes of it.
    let again = world.call_in(A, user(0), (SLOT, 1), open(inode, Access::ReadWrite));
    let capability = |answer: &ShardAnswer| match answer {
        ShardAnswer::Opened { capability: Some(capability), .. } => *capability,
        other => panic!("{other:?}"),
    };
    let (first, again) = (capability(&world.done(first)), capability(&world.done(again)));
    assert_eq!((first.object, again.object), (object(7), object(7)));
    assert_eq!((first.rights, again.rights), (Rights::READ, Rights::READ));
    assert_eq!((first.expires_seconds, again.expires_seconds), (1_003_600, 2_003_600));
    assert_eq!(NodeKey::new([9; 32]).verify(&again, 2_000_000), Ok(()));
}

#[test]
fn slots_of_two_nodes_are_apart() {
    let mut world = World::new();
    let first = world.file("f", 1);
    let second = world.file("g", 2);
    let origin = |of, sequence| Origin { session: A, slot: Slot { of: NodeId(of), index: SLOT }, sequence };
    let call = |world: &mut World, origin, request| world.call_of(origin, user(0), request);
    // The shard was at node 2 before, where the session has used the same slot more often.
    let there = call(&mut world, origin(2, 9), unlink("f"));
    let here = call(&mut world, origin(1, 1), unlink("g"));
    let (there, here) = (world.done(there), world.done(here));
    let again = call(&mut world, origin(2, 9), unlink("f"));
    assert_eq!(world.done(again), there, "the reply that was kept for the other node's slot");
    let again = call(&mut world, origin(1, 1), unlink("g"));
    assert_eq!(world.done(again), here);
    assert!(matches!(there, ShardAnswer::Removed { inode, .. } if inode == first));
    assert!(matches!(here, ShardAnswer::Removed { inode, .. } if inode == second));
    // A change that waits in the one is not in the way of the other.
    let inode = world.file("h", 3);
    world.ok(B, stat(inode));
    call(&mut world, origin(2, 10), chmod(inode, 0o600));
    let other = call(&mut world, origin(1, 2), mkdir(ROOT, "d"));
    world.done(other);
}
