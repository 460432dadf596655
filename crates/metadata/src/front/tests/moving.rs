//! Shards that are frozen, and move. `random.rs` moves them at any moment.

use super::harness::*;
use crate::front::{Effect, Event, Shard};
use crate::kv::MemoryStore;
use crate::shipping::{Arrival, Departing, Departure};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::node::{ShardPart, ShardPartKind};
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
    let shard = ship(&mut world.shard, &mut Departure::default(), &mut Arrival::default()).expect("a quiet shard");
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

/// The parts of a frozen shard, in order.
fn parts_of(shard: &mut Shard<MemoryStore>, part_bytes_max: usize) -> Vec<ShardPart> {
    let (mut departure, mut parts) = (Departure::default(), Vec::new());
    loop {
        match departure.next(shard, part_bytes_max) {
            Departing::Send(part) => {
                assert!(departure.taken(part.number) && !departure.taken(part.number));
                parts.push(part);
            }
            Departing::Complete => departure.complete(shard, &Vec::new()),
            Departing::Done => return parts,
            other => panic!("{other:?} of a quiet shard"),
        }
    }
}

#[test]
fn parts_of_something_else_are_refused() {
    let mut world = World::new();
    world.file("f", 1);
    world.shard.freeze(world.now);
    let [keys, rest] = parts_of(&mut world.shard, usize::MAX).try_into().expect("two parts");
    let taken = |shard, rest: &[u8]| {
        let mut arrival = Arrival::<MemoryStore>::default();
        assert!(arrival.take(&keys, || config_of(shard)).expect("keys").is_none());
        let rest = ShardPart { number: 2, kind: ShardPartKind::LastRest, bytes: rest.to_vec() };
        arrival.take(&rest, || config_of(shard)).map(|arrived| assert!(arrived.is_some()))
    };
    assert_eq!(taken(0, &rest.bytes), Ok(()));
    assert_eq!(taken(1, &rest.bytes), Err(Error::Malformed), "another shard");
    assert_eq!(taken(0, &rest.bytes[..rest.bytes.len() - 1]), Err(Error::Malformed));
    assert_eq!(taken(0, &[&rest.bytes[..], &[0]].concat()), Err(Error::Malformed));
    assert_eq!(taken(0, &[]), Err(Error::Malformed));
    world.event(Event::Tick);
}

#[test]
fn parts_that_come_twice_late_or_not_at_all_do_no_harm() {
    let mut world = World::new();
    for number in 0..20 {
        world.file(&format!("f{number}"), number);
    }
    world.shard.freeze(world.now);
    let parts = parts_of(&mut world.shard, 200);
    assert!(parts.len() > 10, "{}", parts.len());
    let mut arrival = Arrival::<MemoryStore>::default();
    let mut take = |part| arrival.take(part, || config_of(0)).map(|arrived| arrived.map(|arrived| arrived.shard));
    assert_eq!(take(&parts[1]).err(), Some(Error::Invalid), "the first one is missing");
    for (at, part) in parts.iter().enumerate() {
        if let Some(part) = parts.get(at + 1) {
            assert_eq!(take(part).err(), Some(Error::Invalid), "one is missing");
        }
        let arrived = take(part).expect("the next one");
        assert_eq!(arrived.is_some(), at + 1 == parts.len());
        if let Some(arrived) = arrived {
            assert_eq!(state_of(&arrived), state_of(&world.shard));
        }
        assert!(
            parts[..=at].iter().all(|part| matches!(take(part), Ok(None))),
            "what came before part {at} comes again"
        );
    }
}

#[test]
fn a_shard_serves_while_its_store_is_copied_and_little_is_left_then() {
    let mut world = World::new();
    for number in 0..400 {
        world.ok(A, mkdir(ROOT, &format!("d{number}")));
    }
    let (mut departure, mut arrival) = (Departure::default(), Arrival::default());
    let mut parts = 0u32;
    while let Departing::Send(part) = departure.next(&mut world.shard, 500) {
        assert_eq!(departure.next(&mut world.shard, 500), Departing::Send(part.clone()), "until it is answered");
        assert!(arrival.take(&part, || config_of(0)).expect("the next part").is_none());
        departure.taken(part.number);
        world.ok(A, rmdir(ROOT, &format!("d{parts}")));
        world.ok(A, mkdir(ROOT, &format!("e{parts}")));
        parts += 1;
    }
    assert_eq!(departure.next(&mut world.shard, 500), Departing::Freeze);
    assert!(departure.volume().bytes > 10_000 && departure.volume().bytes_frozen == 0, "{:?}", departure.volume());
    world.shard.freeze(world.now);
    let arrived = ship(&mut world.shard, &mut departure, &mut arrival).expect("a quiet shard");
    assert_eq!(state_of(&arrived), state_of(&world.shard));
    let rest = world.shard.append_rest(Vec::new()).len() as u64;
    assert!(departure.volume().bytes_frozen < rest + 2000, "{:?}, {rest} of them beside the store", departure.volume());
}

#[test]
fn a_copy_that_the_target_has_lost_begins_anew_with_the_frozen_shard() {
    let mut world = World::new();
    world.file("f", 1);
    world.copy_some(usize::MAX);
    world.file("g", 2);
    let (mut departure, mut arrival) = (Departure::default(), Arrival::default());
    let Departing::Send(first) = departure.next(&mut world.shard, 100) else { panic!("the first part") };
    assert!(arrival.take(&first, || config_of(0)).is_ok_and(|arrived| arrived.is_none()));
    assert!(departure.taken(first.number));
    departure.refused();
    world.shard.freeze(world.now);
    let arrived = ship(&mut world.shard, &mut departure, &mut arrival).expect("a quiet shard");
    assert_eq!(state_of(&arrived), state_of(&world.shard));
    assert_eq!(arrived.back().dentries(), 2);
}

#[test]
fn the_store_of_a_shard_that_stays_is_not_copied_any_more() {
    let mut world = World::new();
    world.file("f", 1);
    let mut departure = Departure::default();
    assert!(matches!(departure.next(&mut world.shard, 100), Departing::Send(_)));
    world.shard.resume(world.now, &mut Vec::new());
    assert!(!world.shard.back().store().is_being_copied());
}
