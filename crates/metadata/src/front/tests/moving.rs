//! Shards that are frozen, and move. `random.rs` moves them at any moment.

use super::harness::*;
use crate::front::{Effect, Event, Shard};
use crate::kv::MemoryStore;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::shard::*;
use weft_protocol::*;

#[test]
fn a_frozen_shard_answers_nobody_and_goes_on_when_the_move_is_abandoned() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    let waits = world.waits(B, chmod(inode, 0o600));
    world.shard.freeze(world.now);
    assert_eq!(world.refused(A, stat(inode)), Error::Busy);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(world.result(waits), None, "the answer to the recall was not heard");
    assert_eq!(world.shard.deadline(), None);
    // More than a term, in which nobody could renew his.
    world.now.boot_ms += 2 * SESSION_TERM_MS;
    let mut out = Vec::new();
    world.shard.resume(world.now, &mut out);
    assert_eq!(out, []);
    world.pass(1_500, &[A, B]);
    world.answer_recalls(LeaseMode::None);
    world.done(waits);
    assert_eq!(world.ended, []);
}

#[test]
fn terms_go_on_at_the_target_from_where_they_stood() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    world.pass(SESSION_TERM_MS - 1_000, &[B]);
    world.move_shard();
    world.pass(500, &[B]);
    assert!(world.ended.is_empty());
    world.pass(1_000, &[B]);
    assert_eq!(world.ended, [A]);
}

#[test]
fn a_cut_on_its_way_is_waited_for() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::ReadWrite));
    world.call(A, resize(inode, 10));
    world.shard.freeze(world.now);
    assert!(!world.shard.is_quiet());
    let (token, _) = world.asked_storage();
    world.storage_answers(token, 10, 5);
    assert!(world.shard.is_quiet());
    let image = world.shard.image();
    let shard = Shard::restore(config_of(0), MemoryStore::new(), &image).expect("an image");
    assert_eq!(shard.back().inode(inode).expect("it is there").size, 10);
}

#[test]
fn a_call_that_waits_is_carried_out_once_whoever_asks_again() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, stat(inode));
    let before = world.waits(A, unlink("f"));
    let mut away = Vec::new();
    world.shard.send_callers_away(&mut away);
    assert!(matches!(&away[..], [Effect::Reply { token, reply }]
        if *token == before && reply.result == Err(Error::WrongShard(ShardId(0)))));
    assert_eq!(world.move_shard(), [before]);
    world.pass(1_000, &[A, B]);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(world.shard.back().dentries(), 0, "it was carried out without its caller");
    let (origin, credentials) = world.callers[&before].clone();
    let again = world.call_of(origin, credentials, unlink("f"));
    assert!(matches!(world.done(again), ShardAnswer::Removed { .. }));
}

#[test]
fn fences_are_sent_again_by_the_target() {
    let mut world = World::new();
    world.keeps_fences = true;
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::ReadWrite));
    world.expire(&[B]);
    assert_eq!(std::mem::take(&mut world.ended), [A]);
    let fences = std::mem::take(&mut world.fences);
    world.move_shard();
    assert_eq!((&world.ended, &world.fences), (&vec![A], &fences));
    let waits = world.waits(B, open(inode, Access::ReadWrite));
    world.confirm_fences();
    let (token, _) = world.asked_storage();
    world.storage_answers(token, 100, 5);
    world.done(waits);
}

#[test]
fn an_image_of_something_else_is_refused() {
    let mut world = World::new();
    world.file("f", 1);
    world.shard.freeze(world.now);
    let image = world.shard.image();
    let restored = |shard, image: &[u8]| Shard::restore(config_of(shard), MemoryStore::new(), image).err();
    assert_eq!(restored(0, &image), None);
    assert_eq!(restored(1, &image), Some(Error::Malformed), "another shard");
    assert_eq!(restored(0, &image[..image.len() - 1]), Some(Error::Malformed));
    assert_eq!(restored(0, &[]), Some(Error::Malformed));
    world.event(Event::Tick);
}
