//! Split files: which sessions may publish, what a publication recalls, what readers are told, what a cut leaves.

use super::harness::*;
use crate::back::split::{Part, Wanted};
use crate::front::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_layout::SplitIndex;
use weft_protocol::limits::{SPLIT_EXTENTS_MAX, SPLIT_PATTERNS_MAX};
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

const GROUP: SessionId = SessionId::of_group(0x6000);

fn run(start: u64, bytes: u64) -> Pattern {
    Pattern::run(start, bytes).expect("a run")
}

/// What a session publishes of its part, numbered in the order of the calls.
fn publish(writer: SessionId, inode: InodeNumber, part: u64, patterns: &[Pattern]) -> ShardRequest {
    ShardRequest::Publish {
        inode,
        group: None,
        parts: vec![published(writer, part, patterns)],
        appends_to: None,
        range: RangeUse::default(),
    }
}

fn published(writer: SessionId, part: u64, patterns: &[Pattern]) -> PublishedPart {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
    PublishedPart { writer, object: object(part), number, patterns: patterns.to_vec() }
}

fn get_parts(inode: InodeNumber, since: u64) -> ShardRequest {
    get_range(inode, since, (0, u64::MAX), 0)
}

fn get_range(inode: InodeNumber, since: u64, (start, end): (u64, u64), extra: u32) -> ShardRequest {
    let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since, after: None, few: 0 };
    ShardRequest::GetParts { inode, group: None, since, start, end, extra, strided, own: false }
}

/// A split file that A has open for writing.
fn with_file() -> (World, InodeNumber) {
    let mut world = World::with_twin();
    world.ok(A, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(Plan::Split) });
    let made = world.ok(A, create("f"));
    assert_eq!(attributes(&made).layout, Layout::Split { epoch: 0 });
    assert!(!grants(&made).contains(Grants::DATA_EXCLUSIVE), "nobody caches its contents");
    let inode = attributes(&made).inode;
    (world, inode)
}

/// A change for which others give up what they know of the file.
fn done(world: &mut World, session: SessionId, request: ShardRequest) -> ShardAnswer {
    let token = world.call(session, request);
    world.answer_recalls(LeaseMode::Open);
    world.done(token)
}

/// What a reader is told that knows all up to an epoch. Whole: the file was cut since, and these are all extents.
fn told(world: &mut World, reader: SessionId, inode: InodeNumber, since: u64) -> (u64, u64, bool, Vec<SplitPart>) {
    match world.ok(reader, get_parts(inode, since)) {
        ShardAnswer::Parts { epoch, size, cut, parts, end: u64::MAX, strided_next: None, .. } => {
            (epoch, size, cut > since, parts)
        }
        other => panic!("{other:?}"),
    }
}

/// All of a file, in as many answers as it takes. Returns the extents by parts, and the number of answers.
fn told_in_pages(world: &mut World, reader: SessionId, inode: InodeNumber) -> (Vec<SplitPart>, usize) {
    let (mut start, mut all, mut pages) = (0, Vec::new(), 0);
    while start < u64::MAX {
        let ShardAnswer::Parts { parts, end, .. } = world.ok(reader, get_range(inode, 0, (start, u64::MAX), 0)) else {
            panic!("no parts")
        };
        assert!(codec::to_bytes(&parts).len() < limits::CONTROL_BODY_BYTES_MAX);
        assert!(end > start, "an answer that says nothing");
        all.extend(parts);
        (start, pages) = (end, pages + 1);
    }
    (all, pages)
}

/// Whose part each byte is; of holes 0.
fn bytes_of(parts: &[SplitPart], size: usize) -> Vec<u64> {
    let mut index = SplitIndex::default();
    parts.iter().for_each(|part| index.add(part.object, &part.extents));
    let pieces = index.pieces(0, size, None).into_iter();
    pieces.flat_map(|piece| vec![piece.part.map_or(0, ObjectId::sequence); piece.bytes]).collect()
}

/// Whose part each byte of a range is, as a reader is told that asks for the range.
fn bytes_in(world: &mut World, inode: InodeNumber, range: Range<u64>) -> Vec<u64> {
    let mut index = SplitIndex::default();
    let mut start = range.start;
    while start < range.end {
        match world.ok(C, get_range(inode, 0, (start, range.end), 0)) {
            ShardAnswer::Parts { parts, end, .. } if end > start => {
                parts.iter().for_each(|part| index.add(part.object, &part.extents));
                start = end;
            }
            other => panic!("{other:?}"),
        }
    }
    let bytes = usize::try_from(range.end - range.start).expect("small");
    let pieces = index.pieces(range.start, bytes, None).into_iter();
    pieces.flat_map(|piece| vec![piece.part.map_or(0, ObjectId::sequence); piece.bytes]).collect()
}

#[test]
fn each_publication_is_an_epoch_and_readers_are_told_what_is_new() {
    let (mut world, inode) = with_file();
    done(&mut world, B, open(inode, Access::ReadWrite));
    let first = done(&mut world, A, publish(A, inode, 7, &[run(0, 10)]));
    assert_eq!((attributes(&first).layout.epoch(), attributes(&first).size), (Some(1), 10));
    done(&mut world, B, publish(B, inode, 8, &[run(5, 10), Pattern::new(20, 1, 3, 4).expect("a pattern")]));
    let (epoch, size, _, parts) = told(&mut world, C, inode, 0);
    assert_eq!((epoch, size, parts.len()), (2, 30, 2));
    let seen = bytes_of(&parts, 30);
    assert_eq!(seen[..15], [[7; 5].as_slice(), &[8; 10]].concat());
    assert_eq!(seen[15..], [0, 0, 0, 0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 0, 8]);
    // Only a part's writer may write it.
    let rights: BTreeMap<_, _> = parts.iter().map(|part| (part.object, part.capability.rights)).collect();
    assert_eq!(rights[&object(7)], Rights::READ);
    let (.., parts) = told(&mut world, A, inode, 1);
    assert_eq!(parts.iter().map(|part| part.object).collect::<Vec<_>>(), [object(8)], "A knows the first epoch");
    let (.., parts) = told(&mut world, A, inode, 0);
    assert_eq!(parts[0].capability.rights, Rights::READ | Rights::WRITE);
    assert!(told(&mut world, A, inode, 2).3.is_empty());
}

#[test]
fn a_publication_recalls_attributes_which_vouch_for_what_readers_know() {
    let (mut world, inode) = with_file();
    world.ok(A, publish(A, inode, 7, &[run(0, 10)]));
    assert!(grants(&world.ok(B, stat(inode))).contains(Grants::ATTRIBUTES), "though A has it open for writing");
    let token = world.waits(A, publish(A, inode, 7, &[run(10, 10)]));
    let (session, recall) = world.recalls.pop().expect("a recall");
    assert_eq!((session, recall.key), (B, LeaseKey::Attributes(inode)));
    world.event(Event::RecallAnswer { session, number: recall.number, kept: LeaseMode::None });
    assert_eq!(attributes(&world.done(token)).layout, Layout::Split { epoch: 2 });
}

#[test]
fn only_who_has_the_file_open_for_writing_publishes_and_only_his_part() {
    let (mut world, inode) = with_file();
    assert_eq!(world.refused(B, publish(B, inode, 8, &[run(0, 1)])), Error::BadHandle);
    world.ok(B, open(inode, Access::Read));
    assert_eq!(world.refused(B, publish(B, inode, 8, &[run(0, 1)])), Error::BadHandle);
    done(&mut world, A, publish(A, inode, 7, &[run(0, 1)]));
    done(&mut world, B, open(inode, Access::ReadWrite));
    assert_eq!(world.refused(B, publish(B, inode, 7, &[run(0, 1)])), Error::BadHandle, "another's part");
    let many = vec![run(0, 1); SPLIT_PATTERNS_MAX + 1];
    assert_eq!(world.refused(A, publish(A, inode, 7, &many)), Error::Invalid);
    assert_eq!(world.refused(B, publish(B, inode, 7, &[])), Error::BadHandle, "another's part");
    assert_eq!(world.refused(C, get_parts(ROOT, 0)), Error::Invalid);
    let private = ShardRequest::SetAttributes {
        inode,
        changes: AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() },
    };
    done(&mut world, A, private);
    let token = world.call_as(C, user(5), get_parts(inode, 0));
    assert_eq!(world.result(token), Some(Err(Error::AccessDenied)));
}

#[test]
fn a_part_without_bytes_is_known_and_goes_with_the_last_close() {
    let (mut world, inode) = with_file();
    done(&mut world, A, publish(A, inode, 7, &[run(0, 10)]));
    let answer = done(&mut world, A, publish(A, inode, 8, &[]));
    assert_eq!((attributes(&answer).layout.epoch(), attributes(&answer).size), (Some(1), 10));
    done(&mut world, A, publish(A, inode, 7, &[]));
    let parts = |world: &World| {
        world.shard.back().split_parts(inode).into_iter().map(|part| (part.object, part.extents)).collect::<Vec<_>>()
    };
    assert_eq!(parts(&world), [(object(7), 1), (object(8), 0)]);
    check_counts(&world, inode, 10);
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(parts(&world), [(object(7), 1)]);
    let removed = world.storage.drain(..).any(
        |(_, _, request)| matches!(request, StorageRequest::Remove { objects } if objects == [(inode, object(8))]),
    );
    assert!(removed);
}

#[test]
fn members_of_a_group_publish_by_it() {
    let (mut world, inode) = with_file();
    done(&mut world, A, ShardRequest::OpenGroup { inode, access: Access::ReadWrite, group: GROUP });
    world.event(Event::Heard { session: B, groups: [GROUP].into() });
    let by_group = |writer, part, group| ShardRequest::Publish {
        inode,
        group,
        parts: vec![published(writer, part, &[run(part * 10, 10)])],
        appends_to: None,
        range: RangeUse::default(),
    };
    world.ok(C, stat(inode));
    assert_eq!(world.refused(C, by_group(C, 3, Some(GROUP))), Error::BadHandle, "no member");
    world.ok(B, stat(ROOT));
    world.event(Event::Heard { session: B, groups: [GROUP].into() });
    assert_eq!(world.refused(B, by_group(B, 2, None)), Error::BadHandle, "not open by itself");
    let told = done(&mut world, B, by_group(B, 2, Some(GROUP)));
    assert_eq!(attributes(&told).size, 30);
}

/// A file that A has opened for a group, of which B is a member, too.
fn with_members() -> (World, InodeNumber) {
    let (mut world, inode) = with_file();
    done(&mut world, A, ShardRequest::OpenGroup { inode, access: Access::ReadWrite, group: GROUP });
    world.ok(B, stat(ROOT));
    world.event(Event::Heard { session: A, groups: [GROUP].into() });
    world.event(Event::Heard { session: B, groups: [GROUP].into() });
    (world, inode)
}

fn together(inode: InodeNumber, parts: &[PublishedPart]) -> ShardRequest {
    ShardRequest::Publish {
        inode,
        group: Some(GROUP),
        parts: parts.to_vec(),
        appends_to: None,
        range: RangeUse::default(),
    }
}

#[test]
fn a_member_publishes_what_others_of_its_group_have_written() {
    let (mut world, inode) = with_members();
    let parts = [published(A, 7, &[run(0, 10)]), published(B, 8, &[run(5, 10)])];
    let told = attributes(&done(&mut world, A, together(inode, &parts))).clone();
    assert_eq!((told.size, told.layout), (15, Layout::Split { epoch: 2 }), "an epoch for each part");
    assert_eq!(
        told_of(&mut world, B, inode),
        [(object(7), vec![(0, 5)]), (object(8), vec![(5, 15)])],
        "the later one has the bytes of both"
    );
    // The part is B's, which may go on by itself.
    done(&mut world, B, together(inode, &[published(B, 8, &[run(20, 5)])]));
    assert_eq!(world.shard.back().parts_of_writer(inode, B), [object(8)]);
    check_counts(&world, inode, 25);
}

#[test]
fn nothing_is_published_for_strangers_nor_for_sessions_that_have_ended() {
    let (mut world, inode) = with_members();
    world.ok(C, stat(ROOT));
    let own = published(A, 7, &[run(0, 10)]);
    let of_stranger = [own.clone(), published(C, 9, &[run(10, 10)])];
    assert_eq!(world.refused(A, together(inode, &of_stranger)), Error::BadHandle);
    let of_both = [own.clone(), published(B, 8, &[run(10, 10)])];
    assert_eq!(world.refused(C, together(inode, &of_both)), Error::BadHandle, "no member asks");
    let without_group = ShardRequest::Publish {
        inode,
        group: None,
        parts: of_both.to_vec(),
        appends_to: None,
        range: RangeUse::default(),
    };
    assert_eq!(world.refused(A, without_group), Error::BadHandle);
    let twice = [own.clone(), published(A, 7, &[run(10, 10)])];
    assert_eq!(world.refused(A, together(inode, &twice)), Error::Invalid);
    world.ok(B, ShardRequest::EndSession);
    assert_eq!(world.refused(A, together(inode, &of_both)), Error::BadHandle, "B's part may be collected");
    assert!(world.shard.back().split_parts(inode).is_empty(), "a refused one publishes nothing");
}

#[test]
fn what_two_clients_publish_is_published_once() {
    let (mut world, inode) = with_members();
    let late = published(B, 8, &[run(0, 10)]);
    // B does not know whether A has published it, and does so by itself. A's call comes when all has changed.
    done(&mut world, B, together(inode, std::slice::from_ref(&late)));
    done(&mut world, A, together(inode, &[published(A, 7, &[run(0, 10)])]));
    let told = attributes(&done(&mut world, A, together(inode, &[late]))).clone();
    assert_eq!(told.layout, Layout::Split { epoch: 2 });
    assert_eq!(told_of(&mut world, B, inode), [(object(7), vec![(0, 10)])]);
}

/// The runs of each part that has some.
fn told_of(world: &mut World, reader: SessionId, inode: InodeNumber) -> Vec<(ObjectId, Vec<(u64, u64)>)> {
    let runs = |part: &SplitPart| part.extents.iter().map(|of| (of.pattern.start(), of.pattern.end())).collect();
    let mut parts = told(world, reader, inode, 0).3;
    parts.sort_by_key(|part| part.object);
    parts.iter().map(|part| (part.object, runs(part))).collect()
}

#[test]
fn an_append_is_refused_if_the_file_ends_elsewhere() {
    let (mut world, inode) = with_file();
    let append = |at| ShardRequest::Publish {
        inode,
        group: None,
        parts: vec![published(A, 7, &[run(at, 10)])],
        appends_to: Some(at),
        range: RangeUse::default(),
    };
    done(&mut world, A, append(0));
    assert_eq!(world.refused(A, append(0)), Error::WouldBlock);
    assert_eq!(attributes(&done(&mut world, A, append(10))).size, 20);
}

#[test]
fn a_cut_clips_what_was_published_and_nothing_comes_back() {
    let (mut world, inode) = with_file();
    done(&mut world, A, publish(A, inode, 7, &[Pattern::new(0, 4, 10, 5).expect("a pattern")]));
    done(&mut world, A, resize(inode, 22));
    done(&mut world, A, resize(inode, 60));
    let (_, size, is_whole, parts) = told(&mut world, C, inode, 1);
    assert_eq!((size, is_whole), (60, true));
    let kept: Vec<_> = bytes_of(&parts, 60).iter().enumerate().filter(|(_, of)| **of > 0).map(|(at, _)| at).collect();
    assert_eq!(kept, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21]);
    assert!(world.storage.is_empty(), "no object is cut");
    // With nothing left the part stays its writer's, until that closes the file.
    done(&mut world, A, resize(inode, 0));
    assert!(world.shard.back().split_part(inode, object(7)).is_some());
    done(&mut world, A, publish(A, inode, 7, &[run(0, 3)]));
    done(&mut world, A, resize(inode, 0));
    world.ok(A, ShardRequest::EndSession);
    let removed = world.storage.drain(..).any(
        |(_, _, request)| matches!(request, StorageRequest::Remove { objects } if objects == [(inode, object(7))]),
    );
    assert!(removed && world.shard.back().split_part(inode, object(7)).is_none());
}

#[test]
fn parts_that_are_cut_off_or_written_over_go() {
    let (mut world, inode) = with_file();
    let there = |world: &World| {
        let parts = world.shard.back().split_parts(inode).into_iter();
        parts.map(|part| part.object.sequence()).collect::<Vec<_>>()
    };
    done(&mut world, B, open(inode, Access::ReadWrite));
    done(&mut world, A, publish(A, inode, 7, &[run(0, 10)]));
    done(&mut world, B, publish(B, inode, 8, &[run(10, 10)]));
    done(&mut world, A, resize(inode, 10));
    world.ok(C, open(inode, Access::Read));
    world.ok(B, ShardRequest::EndSession);
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(there(&world), [7, 8], "a client that has the file open may know one as its own");
    world.ok(C, ShardRequest::EndSession);
    assert_eq!(there(&world), [7]);
    // Nobody has it open.
    let (third, other, cutter) = (SessionId(49), SessionId(50), SessionId(51));
    done(&mut world, third, open(inode, Access::ReadWrite));
    done(&mut world, third, publish(third, inode, 9, &[run(10, 10)]));
    world.ok(third, ShardRequest::EndSession);
    done(&mut world, cutter, resize(inode, 10));
    assert_eq!(there(&world), [7]);
    // All of a part is written over by another one.
    done(&mut world, other, open(inode, Access::ReadWrite));
    done(&mut world, other, publish(other, inode, 10, &[run(0, 12)]));
    assert_eq!(there(&world), [7, 10]);
    world.storage.clear();
    world.ok(other, ShardRequest::EndSession);
    assert_eq!(there(&world), [10]);
    let removed = world.storage.drain(..).any(
        |(_, _, request)| matches!(request, StorageRequest::Remove { objects } if objects == [(inode, object(7))]),
    );
    assert!(removed);
}

#[test]
fn a_part_has_a_limit_and_what_is_written_again_takes_no_room() {
    let (mut world, inode) = with_file();
    // None is like those near it.
    let irregular = |index: u64| run(index * 20_000, 1 + index % 9973);
    let mut index = 0;
    while index < SPLIT_EXTENTS_MAX {
        let patterns: Vec<_> = (index..index + 1024).map(irregular).collect();
        done(&mut world, A, publish(A, inode, 7, &patterns));
        index += 1024;
    }
    assert_eq!(world.refused(A, publish(A, inode, 7, &[irregular(index)])), Error::NoSpace);
    let extents = |world: &World| world.shard.back().split_part(inode, object(7)).expect("a part").extents;
    assert_eq!(extents(&world), SPLIT_EXTENTS_MAX);
    done(&mut world, A, publish(A, inode, 7, &[irregular(5), irregular(9)]));
    // What cuts a run in two is refused as a whole, and what joins others is not.
    let (before, split) = (bytes_in(&mut world, inode, 0..60_000), [irregular(3), run(30_000, 1)]);
    assert_eq!(world.refused(A, publish(A, inode, 7, &split)), Error::NoSpace);
    assert!(bytes_in(&mut world, inode, 0..60_000) == before);
    done(&mut world, A, publish(A, inode, 7, &[run(20_000, 30_000), run(90_000, 1)]));
    done(&mut world, A, publish(A, inode, 7, &[run(0, 40_001 * SPLIT_EXTENTS_MAX)]));
    let (.., parts) = told(&mut world, C, inode, 0);
    assert_eq!((parts[0].extents.len(), extents(&world)), (1, 1));
}

#[test]
fn who_writes_in_order_has_one_extent_as_long_as_nobody_else_writes_there() {
    const PUBLICATIONS: u64 = 8202;
    let (mut world, inode) = with_file();
    done(&mut world, B, open(inode, Access::ReadWrite));
    // Two writers in turns, each in its own half.
    for index in 0..PUBLICATIONS {
        done(&mut world, A, publish(A, inode, 7, &[run(index * 10, 10)]));
        if index < 1000 {
            done(&mut world, B, publish(B, inode, 8, &[run((1 << 20) + index * 30, 10)]));
        }
    }
    let (.., parts) = told(&mut world, C, inode, 0);
    assert_eq!(parts.iter().map(|part| part.extents.len()).collect::<Vec<_>>(), [1, 1]);
    done(&mut world, B, publish(B, inode, 8, &[run(20, 10)]));
    done(&mut world, A, publish(A, inode, 7, &[run(10 * PUBLICATIONS, 10)]));
    let (.., parts) = told(&mut world, C, inode, 0);
    assert_eq!(bytes_of(&parts, 40)[15..35], [[7; 5].as_slice(), &[8; 10], &[7; 5]].concat(), "B wrote there last");
}

/// The numbers of extents that are kept are those that there are.
fn check_counts(world: &World, inode: InodeNumber, bytes: usize) {
    let end = bytes as u64;
    let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since: 0, after: None, few: 0 };
    let wanted = Wanted { since: 0, start: 0, end, extra: 0, strided };
    let told: BTreeMap<_, _> =
        world.shard.back().extents_within(inode, &wanted).parts.into_iter().map(counted).collect();
    for part in world.shard.back().split_parts(inode) {
        assert_eq!(part.extents, told.get(&part.object).copied().unwrap_or(0));
    }
    let is_empty = |part: &Part| part.extents == 0;
    assert_eq!(world.shard.back().has_empty_parts(inode), world.shard.back().split_parts(inode).iter().any(is_empty));
}

fn counted((part, extents): (Part, Vec<Extent>)) -> (ObjectId, u64) {
    (part.object, extents.len() as u64)
}

/// Random publications and cuts against the file byte by byte, as a reader sees it that is told of changes only.
#[test]
fn random_publications_and_cuts_are_those_of_a_flat_file() {
    const BYTES: usize = 300;
    for seed in 0..60u64 {
        let (mut world, inode) = with_file();
        done(&mut world, B, open(inode, Access::ReadWrite));
        let mut state = seed * 2 + 1;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let (mut model, mut known, mut since): (Vec<u64>, _, _) = (Vec::new(), SplitIndex::default(), 0);
        for round in 0..60 {
            let who = if random(2) == 0 { A } else { B };
            let (start, bytes, gap, count) = (random(100), 1 + random(20), 1 + random(5), 1 + random(9));
            if random(8) == 0 {
                done(&mut world, who, resize(inode, start));
                model.resize(usize::try_from(start).expect("small"), 0);
            } else {
                let patterns = match random(4) {
                    0 => vec![run(start, bytes), run(start + bytes, gap)],
                    1 => vec![run(start, bytes)],
                    2 => (0..count).map(|index| run(start + index * (2 + gap), 2)).collect(),
                    _ => vec![Pattern::new(start, bytes, bytes + gap, count).expect("a pattern")],
                };
                done(&mut world, who, publish(who, inode, who.0, &patterns));
                for pattern in patterns {
                    for at in (0..pattern.count()).map(|index| pattern.start() + index * pattern.stride()) {
                        let range =
                            usize::try_from(at).expect("small")..usize::try_from(at + pattern.bytes()).expect("small");
                        model.resize(model.len().max(range.end), 0);
                        model[range].fill(who.0);
                    }
                }
            }
            let from = random(BYTES as u64);
            let to = from + random(BYTES as u64 - from);
            let mut seen = bytes_in(&mut world, inode, from..to);
            let below = |at: u64| usize::try_from(at).expect("small").min(model.len());
            seen.truncate(below(to).saturating_sub(below(from)));
            assert_eq!(seen, model[below(from)..below(to)], "seed {seed} round {round}: {from} to {to}");
            check_counts(&world, inode, BYTES);
            if random(3) > 0 {
                continue;
            }
            let (epoch, size, is_whole, parts) = told(&mut world, C, inode, since);
            if is_whole {
                known = SplitIndex::default();
            }
            parts.iter().for_each(|part| known.add(part.object, &part.extents));
            since = epoch;
            assert_eq!(size, model.len() as u64, "seed {seed} round {round}");
            let pieces = known.pieces(0, BYTES, None).into_iter();
            let seen: Vec<u64> =
                pieces.flat_map(|piece| vec![piece.part.map_or(0, ObjectId::sequence); piece.bytes]).collect();
            assert_eq!(seen[..model.len()], model, "seed {seed} round {round}");
        }
    }
}

#[test]
fn parts_come_in_pages_and_go_with_the_file() {
    let (mut world, inode) = with_file();
    let writers: Vec<_> = (100..130).map(SessionId).collect();
    for writer in &writers {
        done(&mut world, *writer, open(inode, Access::ReadWrite));
        // Each writer's runs are between those of the others.
        let patterns: Vec<_> =
            (0..1000).map(|index| run(index * 60_000 + (writer.0 - 100) * 2000, 1 + index)).collect();
        done(&mut world, *writer, publish(*writer, inode, writer.0, &patterns));
    }
    let (parts, pages) = told_in_pages(&mut world, C, inode);
    let found: BTreeSet<_> = parts.iter().map(|part| part.object.sequence()).collect();
    assert_eq!(found, writers.iter().map(|writer| writer.0).collect::<BTreeSet<_>>());
    assert!(pages > 1);
    done(&mut world, A, unlink("f"));
    let clients = [A, C].into_iter().chain(writers);
    clients.for_each(|client| drop(world.ok(client, ShardRequest::EndSession)));
    let gone: usize = world
        .storage
        .drain(..)
        .map(|(_, _, request)| match request {
            StorageRequest::Remove { objects } => objects.len(),
            _ => 0,
        })
        .sum();
    assert_eq!((gone, world.shard.back().split_parts(inode).len()), (30, 0));
}

#[test]
fn a_session_that_is_cut_off_is_fenced_where_its_parts_are() {
    let (mut world, inode) = with_file();
    done(&mut world, B, open(inode, Access::ReadWrite));
    done(&mut world, A, publish(A, inode, 7, &[run(0, 10)]));
    done(&mut world, B, publish(B, inode, 8, &[run(5, 10)]));
    let objects: Vec<_> = world.shard.fences_of(A).into_values().flatten().collect();
    assert_eq!(objects, [(inode, object(7))]);
    world.keeps_fences = true;
    world.event(Event::Lost { session: A });
    assert_eq!(world.fences, [(A, object(7).node())]);
    world.confirm_fences();
    // What it has published stays.
    let parts = told(&mut world, C, inode, 0).3;
    assert_eq!(bytes_of(&parts, 15), [[7; 5].as_slice(), &[8; 10]].concat());
}
