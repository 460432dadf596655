//! Range leases of split files: who is granted one, and who makes the shard recall it.

use super::harness::*;
use crate::front::Event;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_protocol::message::shard::*;
use weft_protocol::*;

const GROUP: SessionId = SessionId::of_group(0x6000);

fn publish_pattern(writer: SessionId, inode: InodeNumber, pattern: Pattern, range: RangeUse) -> ShardRequest {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let parts = vec![PublishedPart { writer, object: object(writer.0), number, patterns: vec![pattern] }];
    ShardRequest::Publish { inode, group: None, parts, appends_to: None, range }
}

fn publish_parts(writer: SessionId, inode: InodeNumber, (start, end): (u64, u64), range: RangeUse) -> ShardRequest {
    publish_pattern(writer, inode, Pattern::run(start, end - start).expect("a run"), range)
}

fn publish(writer: SessionId, inode: InodeNumber, range: (u64, u64)) -> ShardRequest {
    publish_parts(writer, inode, range, RangeUse::default())
}

fn wanting(writer: SessionId, inode: InodeNumber, range: (u64, u64), wanted: (u64, u64)) -> ShardRequest {
    publish_parts(writer, inode, range, RangeUse { given_up: None, wanted: Some(wanted) })
}

fn get_parts(inode: InodeNumber, own: bool) -> ShardRequest {
    let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since: 0, after: None, few: 0 };
    let end = if own { 0 } else { u64::MAX };
    ShardRequest::GetParts { inode, group: None, since: 0, start: 0, end, extra: 0, strided, own }
}

/// A split file that A and B have open for writing.
fn with_file() -> (World, InodeNumber) {
    let mut world = World::with_twin();
    world.ok(A, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(Plan::Split) });
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.call(B, open(inode, Access::ReadWrite));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    (world, inode)
}

fn done(world: &mut World, session: SessionId, request: ShardRequest) -> ShardAnswer {
    let token = world.call(session, request);
    world.answer_recalls(LeaseMode::None);
    world.done(token)
}

/// The session publishes twice, and asks for the range by the second publication. Whether it gets it.
fn gets(world: &mut World, session: SessionId, inode: InodeNumber, range: (u64, u64)) -> bool {
    done(world, session, publish(session, inode, (range.0, range.0 + 1)));
    let told = done(world, session, wanting(session, inode, (range.0 + 1, range.0 + 2), range));
    grants(&told).contains(Grants::RANGE)
}

#[test]
fn a_second_publication_gets_a_range_that_nobody_is_in_the_way_of() {
    let (mut world, inode) = with_file();
    let first = done(&mut world, A, wanting(A, inode, (0, 10), (0, 100)));
    assert!(!grants(&first).contains(Grants::RANGE), "somebody may be watching");
    let second = done(&mut world, A, wanting(A, inode, (10, 20), (10, 100)));
    assert_eq!(grants(&second), Grants::RANGE, "and no attributes");
    // While it holds one it gets no other; ranges of two sessions are disjoint.
    assert!(!grants(&done(&mut world, A, wanting(A, inode, (200, 210), (200, 300)))).contains(Grants::RANGE));
    done(&mut world, B, publish(B, inode, (300, 310)));
    let told = done(&mut world, B, wanting(B, inode, (310, 320), (90, 200)));
    assert!(!grants(&told).contains(Grants::RANGE), "part of it is A's");
    assert!(world.recalls.is_empty());
    let stamp = world.stamp();
    let given_up = RangeUse { given_up: Some(stamp), wanted: Some((10, 50)) };
    let told = done(&mut world, A, publish_parts(A, inode, (20, 30), given_up));
    assert!(grants(&told).contains(Grants::RANGE), "for the one that it gives up");
    assert!(gets(&mut world, B, inode, (100, 200)), "which leaves this one");
    assert_eq!(world.recalled(), []);
    let nothing = RangeUse { given_up: Some(world.stamp()), wanted: Some((7, 7)) };
    assert!(!grants(&done(&mut world, A, publish_parts(A, inode, (30, 31), nothing))).contains(Grants::RANGE));
}

#[test]
fn whoever_asks_has_ranges_recalled_and_watches_the_file() {
    type Ask = fn(InodeNumber) -> ShardRequest;
    let asks: [(&str, Ask, bool); 9] = [
        ("attributes", stat, true),
        ("a name", |_| lookup("f"), true),
        ("parts", |inode| get_parts(inode, false), true),
        ("an open", |inode| open(inode, Access::Read), true),
        ("an open to write", |inode| open(inode, Access::ReadWrite), true),
        ("a cut", |inode| resize(inode, 5), true),
        ("a change of the mode", |inode| chmod(inode, 0o600), true),
        ("a removal", |_| unlink("f"), true),
        ("a question for own parts", |inode| get_parts(inode, true), false),
    ];
    for (what, request, recalls) in asks {
        let (mut world, inode) = with_file();
        assert!(gets(&mut world, A, inode, (0, 100)), "{what}");
        let key = LeaseKey::Ranges(inode);
        let token = world.call(B, request(inode));
        assert_eq!(world.recalled().contains(&(A, key, LeaseMode::None)), recalls, "{what}: {:?}", world.recalls);
        if !recalls {
            assert!(world.result(token).is_some_and(|result| result.is_ok()), "{what}");
            continue;
        }
        assert_eq!(world.result(token), None, "{what} waits");
        // What A has written is published before it answers, and in what B is told then.
        let stamp = world.stamp();
        let given_up = RangeUse { given_up: Some(stamp), wanted: Some((0, 100)) };
        let flush = world.ok(A, publish_parts(A, inode, (2, 50), given_up));
        assert!(!grants(&flush).contains(Grants::RANGE), "{what}: B waits for it");
        world.recalls.retain(|(_, recall)| recall.key != key);
        world.answer_recalls(LeaseMode::None);
        let answer = world.done(token);
        if let ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. } = &answer {
            let expected = if what == "a cut" { 5 } else { 50 };
            assert_eq!(attributes.size, expected, "{what}");
        }
        if let ShardAnswer::Parts { size, .. } = answer {
            assert_eq!(size, 50, "{what}");
        }
        if what != "a removal" {
            let again = done(&mut world, A, wanting(A, inode, (50, 60), (50, 100)));
            assert!(!grants(&again).contains(Grants::RANGE), "{what}: the file is watched");
        }
    }
}

#[test]
fn a_publication_recalls_the_ranges_that_it_overlaps() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (1000, 1100)));
    world.ok(B, publish(B, inode, (1100, 1110)));
    // Runs on both sides of the range.
    let around = Pattern::new(200, 10, 1000, 9).expect("a pattern");
    world.ok(B, publish_pattern(B, inode, around, RangeUse::default()));
    let token = world.waits(B, publish(B, inode, (1099, 1101)));
    assert_eq!(world.recalled(), [(A, LeaseKey::Ranges(inode), LeaseMode::None)]);
    // A's own is not in its way.
    let size = attributes(&world.ok(A, publish(A, inode, (50, 60)))).size;
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    // An append has to know of all bytes.
    assert!(gets(&mut world, A, inode, (10_000, 11_000)));
    let append = |at| ShardRequest::Publish {
        inode,
        group: None,
        parts: vec![PublishedPart {
            writer: B,
            object: object(B.0),
            number: 1 << 50,
            patterns: vec![Pattern::run(at, 5).expect("a run")],
        }],
        appends_to: Some(at),
        range: RangeUse::default(),
    };
    let token = world.waits(B, append(size));
    world.answer_recalls(LeaseMode::None);
    assert_eq!(world.result(token), Some(Err(Error::WouldBlock)), "the file ends elsewhere");
}

#[test]
fn nobody_is_granted_attributes_beside_a_range() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (0, 100)));
    // The session itself is told what is published.
    let own = world.ok(A, stat(inode));
    assert!(!grants(&own).contains(Grants::ATTRIBUTES));
    let page = world.ok(B, list(ROOT, None, 10));
    let ShardAnswer::Page(page) = page else { panic!("no page") };
    assert!(page.entries.iter().all(|entry| entry.attributes.is_none()), "a listing does not wait");
    assert!(world.recalls.is_empty());
}

#[test]
fn publishers_beside_others_hold_no_attributes_so_that_readers_get_them_at_once() {
    let (mut world, inode) = with_file();
    world.pass(1500, &[A, B, C]);
    for place in 0..3 {
        for session in [A, B] {
            let told = world.ok(session, publish(session, inode, (place * 100, place * 100 + 10)));
            assert_eq!(grants(&told), Grants::empty());
        }
    }
    for session in [A, B, C] {
        assert!(grants(&world.ok(session, stat(inode))).contains(Grants::ATTRIBUTES));
    }
}

#[test]
fn an_open_of_the_holders_own_recalls_the_range_too() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (0, 100)));
    let flags = OpenFlags { truncate: true, ..flags(Access::ReadWrite) };
    let token = world.waits(A, ShardRequest::Open { inode, flags });
    assert_eq!(world.recalled(), [(A, LeaseKey::Ranges(inode), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn a_group_has_no_ranges_beside_it() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (0, 100)));
    let token = world.waits(B, ShardRequest::OpenGroup { inode, access: Access::ReadWrite, group: GROUP });
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert!(!gets(&mut world, A, inode, (200, 300)));
}

#[test]
fn a_range_ends_with_its_session_or_its_file() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (0, 100)));
    let token = world.waits(B, stat(inode));
    world.event(Event::Lost { session: A });
    assert_eq!(attributes(&world.done(token)).size, 2, "what A had not published is lost");
    assert!(gets(&mut world, B, inode, (0, 50)));
    let stamp = world.stamp();
    world.ok(B, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), stamp)] });
    world.ok(C, stat(inode));
    assert!(world.recalls.is_empty(), "who has closed the file has no range");
}

#[test]
fn a_range_that_is_given_up_by_an_older_stamp_stays() {
    let (mut world, inode) = with_file();
    let before = world.stamp();
    assert!(gets(&mut world, A, inode, (0, 100)));
    let given_up = RangeUse { given_up: Some(before), wanted: None };
    world.ok(A, publish_parts(A, inode, (5, 6), given_up));
    world.waits(B, stat(inode));
    assert_eq!(world.recalled(), [(A, LeaseKey::Ranges(inode), LeaseMode::None)]);
}

#[test]
fn ranges_move_with_their_shard() {
    let (mut world, inode) = with_file();
    assert!(gets(&mut world, A, inode, (0, 100)));
    world.move_shard();
    assert!(gets(&mut world, B, inode, (100, 200)), "B is unwatched as before");
    world.waits(C, stat(inode));
    let key = LeaseKey::Ranges(inode);
    assert_eq!(world.recalled(), [(A, key, LeaseMode::None), (B, key, LeaseMode::None)]);
}
