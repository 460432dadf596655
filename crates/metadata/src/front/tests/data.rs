//! Leases on contents: opens, sizes of files under writing, cuts, orphans, the death of writers.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

fn data_bits(answer: &ShardAnswer) -> Grants {
    grants(answer) & (Grants::OPEN | Grants::DATA_SHARED | Grants::DATA_EXCLUSIVE)
}

const OPEN: Grants = Grants::OPEN;
const SHARED: Grants = Grants::OPEN.union(Grants::DATA_SHARED);
const EXCLUSIVE: Grants = Grants::OPEN.union(Grants::DATA_EXCLUSIVE);

fn release(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] }
}

/// It is closed, and no kernel above can open it by its number.
fn forget(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX), (LeaseKey::Inode(inode), u64::MAX)] }
}

fn open_cut(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Open { inode, flags: CUT }
}

const CUT: OpenFlags =
    OpenFlags { access: Access::Write, truncate: true, direct: false, page_cache: PageCache::None, group: None };

#[test]
fn a_lone_writer_is_exclusive_and_readers_share() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Read))), SHARED);
    assert_eq!(data_bits(&world.ok(B, open(inode, Access::Read))), SHARED);
    assert_eq!(data_bits(&world.ok(A, create("new"))), EXCLUSIVE);
    assert_eq!(data_bits(&world.ok(C, open_direct(inode, Access::Read))), OPEN);
    assert_eq!(world.recalls, []);
}

const MACHINE: NodeIdentity = NodeIdentity(7);

/// The node that has all objects is on this machine.
fn map_of(identity: NodeIdentity) -> ClusterMap {
    let (host, site, address) = (String::new(), String::new(), NodeAddress::default());
    let node = NodeRecord { id: object(1).node(), host, site, identity, address, stores: true, drains: false };
    ClusterMap {
        name: "test".to_owned(),
        epoch: MapEpoch(1),
        shards: vec![ShardRecord::new(node.id, MapEpoch(1))],
        nodes: vec![node],
        removed_max: None,
    }
}

#[test]
fn a_writer_is_told_of_pages_that_a_kernel_elsewhere_may_have() {
    let elsewhere = |answer: &ShardAnswer| grants(answer).contains(Grants::PAGES_ELSEWHERE);
    let open_with = |inode, page_cache| {
        let flags = OpenFlags { page_cache, ..flags(Access::ReadWrite) };
        ShardRequest::Open { inode, flags }
    };
    for (page_cache, has_object, told) in [
        (PageCache::None, true, false),
        (PageCache::All, true, true),
        (PageCache::ExceptAt(MACHINE), true, false),
        (PageCache::ExceptAt(MACHINE), false, true),
        (PageCache::ExceptAt(NodeIdentity(99)), true, true),
    ] {
        let mut world = World::new();
        world.event(Event::SetMap(map_of(MACHINE)));
        let inode = if has_object { world.file("f", 1) } else { attributes(&world.ok(C, create("new"))).inode };
        world.ok(C, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] });
        let token = world.call(A, open_with(inode, page_cache));
        world.answer_recalls(LeaseMode::None);
        assert!(!elsewhere(&world.done(token)), "A itself is not elsewhere");
        let token = world.call(B, open_with(inode, PageCache::None));
        world.answer_recalls(LeaseMode::Open);
        assert_eq!(elsewhere(&world.done(token)), told, "{page_cache:?}");
        let in_slot = (SlotIndex(63), 1);
        for _ in ["sent", "sent again, since its reply was lost"] {
            let token = world.call_in(B, user(0), in_slot, open_with(inode, PageCache::None));
            world.answer_recalls(LeaseMode::Open);
            assert_eq!(elsewhere(&world.done(token)), told, "{page_cache:?}");
        }
        // When A has closed it, nobody has pages.
        world.ok(A, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] });
        assert!(!elsewhere(&world.ok(B, open_with(inode, PageCache::None))));
    }
}

#[test]
fn a_new_file_that_its_makers_kernel_writes_itself_has_no_pages_elsewhere() {
    for passed in [true, false] {
        let mut world = World::new();
        world.event(Event::SetMap(map_of(MACHINE)));
        let flags = OpenFlags { page_cache: PageCache::ExceptAt(MACHINE), ..flags(Access::ReadWrite) };
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        let make = ShardRequest::OpenAt { parent: InodeNumber::ROOT, name: name("new"), flags, create, objects: None };
        let inode = attributes(&world.ok(A, make)).inode;
        let opening = world.waits(B, ShardRequest::Open { inode, flags });
        let ShardRequest::Commit { object, others, size, mtime, object_mtime, known, number, .. } = commit(inode, 1, 9)
        else {
            unreachable!("it is a report");
        };
        let report = ShardRequest::Commit { inode, object, others, size, mtime, object_mtime, known, number, passed };
        world.ok(A, report);
        world.answer_recalls(LeaseMode::Open);
        assert_eq!(grants(&world.done(opening)).contains(Grants::PAGES_ELSEWHERE), !passed);
    }
}

#[test]
fn the_same_session_upgrades_by_opening_again() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Read))), SHARED);
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Write))), EXCLUSIVE);
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Read))), EXCLUSIVE);
}

#[test]
fn a_writer_waits_for_readers_and_caches_alone_when_they_are_gone() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    world.ok(B, open(inode, Access::Read));
    let token = world.waits(C, open(inode, Access::Write));
    let key = LeaseKey::Data(inode);
    let recalled: Vec<_> = world.recalled().into_iter().filter(|(_, other, _)| *other == key).collect();
    assert_eq!(recalled, [(A, key, LeaseMode::None), (B, key, LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(data_bits(&world.done(token)), EXCLUSIVE);
}

#[test]
fn when_a_reader_keeps_the_file_open_nobody_caches() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    let token = world.waits(B, open(inode, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    assert_eq!(data_bits(&world.done(token)), OPEN);
    assert_eq!(data_bits(&world.ok(C, open(inode, Access::Read))), OPEN, "B writes");
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Write))), OPEN, "B and C have it open");
    assert_eq!(world.recalls, [], "who holds no more than Open is in the way of nobody");
    // All others close: the next open has it alone again.
    world.ok(B, release(inode));
    world.ok(C, release(inode));
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Write))), EXCLUSIVE);
}

#[test]
fn a_reader_waits_for_a_writer_to_write_back() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.waits(B, open(inode, Access::Read));
    assert_eq!(world.recalled(), [(A, LeaseKey::Data(inode), LeaseMode::Open)]);
    // The writer commits first: nothing of the reader's is in its way.
    world.ok(A, commit(inode, 5, 300));
    world.answer_recalls(LeaseMode::Open);
    let answer = world.done(token);
    assert_eq!((data_bits(&answer), attributes(&answer).size), (OPEN, 300));
    assert!(matches!(answer, ShardAnswer::Opened { capability: Some(_), .. }));
    assert!(!grants(&answer).contains(Grants::ATTRIBUTES), "its writer can change them at any moment");
}

#[test]
fn a_stat_of_a_file_under_writing_asks_writer_and_storage_server() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    assert_eq!(attributes(&world.ok(A, stat(inode))).size, 0, "the writer itself knows best");
    let token = world.waits(B, stat(inode));
    assert_eq!(world.recalled(), [(A, LeaseKey::Data(inode), LeaseMode::Open)]);
    world.ok(A, commit(inode, 5, 300));
    world.answer_recalls(LeaseMode::Open);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode, object: object(5) });
    let later = world.now.wall.0 + 1000;
    world.storage_answers(asked, 400, later);
    let answer = world.done(token);
    assert_eq!((attributes(&answer).size, attributes(&answer).mtime), (400, Timestamp(later)));
    assert_eq!(grants(&answer), Grants::empty());
    // A listing does not wait.
    let ShardAnswer::Page(page) = world.ok(B, list(ROOT, None, 10)) else { panic!("a page") };
    assert_eq!((page.entries.len(), page.entries[0].attributes.as_ref()), (1, None));
    // The server is away: the name is found with what the shard knows.
    let token = world.waits(B, lookup("f"));
    let (asked, _) = world.asked_storage();
    world.event(Event::StorageAnswer { token: asked, result: Err(Error::Unreachable) });
    let answer = world.done(token);
    assert_eq!((attributes(&answer).size, grants(&answer) & Grants::SIZE_IN_DOUBT), (300, Grants::SIZE_IN_DOUBT));
}

#[test]
fn a_closed_writer_gives_up_and_the_attributes_can_be_kept() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.waits(B, stat(inode));
    world.ok(A, commit(inode, 5, 300));
    world.answer_recalls(LeaseMode::None);
    let answer = world.done(token);
    assert_eq!((attributes(&answer).size, grants(&answer)), (300, Grants::ATTRIBUTES));
}

#[test]
fn an_open_for_writing_recalls_the_attributes_of_others() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    let token = world.waits(B, open(inode, Access::Write));
    assert_eq!(world.recalled(), [(A, LeaseKey::Attributes(inode), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(data_bits(&world.done(token)), EXCLUSIVE);
}

/// A file that A has open for writing, and B has opened since. Neither has more than `OPEN`.
fn file_of_a_writer_that_b_opened(world: &mut World, access: Access) -> InodeNumber {
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    let token = world.waits(B, open(inode, access));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    inode
}

#[test]
fn a_commit_of_one_of_several_writers_takes_the_size_from_the_storage_server() {
    let mut world = World::new();
    let inode = file_of_a_writer_that_b_opened(&mut world, Access::Write);
    let token = world.waits(A, commit(inode, 1, 50));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 700, 5);
    assert_eq!(attributes(&world.done(token)).size, 700);
}

#[test]
fn a_writer_who_may_not_know_that_he_is_alone_is_told_what_the_storage_server_has() {
    let mut world = World::new();
    let inode = file_of_a_writer_that_b_opened(&mut world, Access::Read);
    world.ok(B, release(inode));
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Write))), EXCLUSIVE);
    // While that reply is on its way, A reports what it has written through the server, and writes on.
    world.ok(A, commit(inode, 1, 50));
    let token = world.waits(A, stat(inode));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 70, world.now.wall.0 + 1000);
    assert_eq!(attributes(&world.done(token)).size, 70);
}

#[test]
fn a_late_report_of_a_writer_who_is_alone_by_now_takes_the_size_from_the_storage_server() {
    let mut world = World::new();
    let inode = file_of_a_writer_that_b_opened(&mut world, Access::Write);
    // A looks the size up to report it; before it does, B cuts the file and is gone, and A opens it again.
    let token = world.waits(B, resize(inode, 2));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 2, 5);
    world.done(token);
    world.ok(B, release(inode));
    assert_eq!(data_bits(&world.ok(A, open(inode, Access::Write))), EXCLUSIVE);
    let object_mtime = Timestamp(4);
    let (known, number) = (u64::MAX, 0);
    let token = world.waits(
        A,
        ShardRequest::Commit {
            inode,
            object: None,
            others: Vec::new(),
            size: 217,
            mtime: None,
            object_mtime,
            known,
            number,
            passed: false,
        },
    );
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 2, 5);
    assert_eq!(attributes(&world.done(token)).size, 2);
}

#[test]
fn a_report_from_before_an_own_cut_that_comes_after_it_takes_the_size_from_the_storage_server() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    let report = |known| {
        let (object_mtime, mtime) = (Timestamp(4), Some(Timestamp(4)));
        ShardRequest::Commit {
            inode,
            object: None,
            others: Vec::new(),
            size: 217,
            mtime,
            object_mtime,
            known,
            number: 0,
            passed: false,
        }
    };
    let opened = world.shard.stamp;
    assert_eq!(attributes(&world.ok(A, report(opened))).size, 217);
    // Another open of the same client cuts the file, and overtakes a report.
    let token = world.waits(A, open_cut(inode));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 0, 5);
    let cut = attributes(&world.done(token)).mtime;
    let token = world.waits(A, report(opened + 1));
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode, object: object(1) });
    world.storage_answers(asked, 3, 5);
    let told = world.done(token);
    assert_eq!((attributes(&told).size, attributes(&told).mtime), (3, cut));
    // What it reports when it knows of the cut is believed; and nothing is kept of it when nobody has the file open.
    let known = world.shard.stamp;
    assert_eq!(attributes(&world.ok(A, report(known))).size, 217);
    world.ok(A, release(inode));
    assert!(world.shard.cut_at.is_empty());
}

#[test]
fn of_two_reports_of_one_client_the_later_one_holds_whichever_comes_first() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let report = |number, size| {
        let time = Timestamp(i64::try_from(size).unwrap());
        let (object, mtime, object_mtime, known, passed) = (Some(object(1)), Some(time), time, u64::MAX, false);
        ShardRequest::Commit { inode, object, others: Vec::new(), size, mtime, object_mtime, known, number, passed }
    };
    let told = attributes(&world.ok(A, report(8, 144))).mtime;
    let later = world.ok(A, report(7, 29));
    assert_eq!((attributes(&later).size, attributes(&later).mtime), (144, told));
    // An open, and a lease that is weakened, forget nothing of it.
    world.ok(A, open(inode, Access::Write));
    assert_eq!(attributes(&world.ok(A, report(7, 29))).size, 144);
    assert_eq!(attributes(&world.ok(A, report(9, 50))).size, 50);
}

#[test]
fn the_first_object_stays_and_the_second_writer_is_told() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let token = world.waits(B, open(inode, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    world.ok(A, commit(inode, 5, 10));
    let token = world.waits(B, commit(inode, 6, 99));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 10, 5);
    let answer = world.done(token);
    assert_eq!((attributes(&answer).layout.object(), attributes(&answer).size), (Some(object(5)), 10));
    assert_eq!(world.removed_objects(), [object(6)], "nobody would ask for it");
}

#[test]
fn who_has_not_opened_a_file_for_writing_commits_nothing() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    assert_eq!(world.refused(A, commit(inode, 1, 7)), Error::BadHandle);
    world.ok(A, open(inode, Access::Read));
    assert_eq!(world.refused(A, commit(inode, 1, 7)), Error::BadHandle);
}

#[test]
fn a_cut_goes_to_the_storage_server_first() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let first = world.waits(A, resize(inode, 10));
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size: 10, by: A });
    // Meanwhile nobody gets to cache anything of it, and another cut waits.
    assert_eq!(data_bits(&world.ok(B, open(inode, Access::Read))), OPEN);
    assert_eq!(grants(&world.ok(B, stat(inode))), Grants::empty());
    let second = world.waits(C, resize(inode, 20));
    assert_eq!(world.storage, []);
    world.storage_answers(asked, 10, 5);
    assert_eq!(attributes(&world.done(first)).size, 10);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Truncate { inode, object: object(1), size: 20, by: C });
    world.storage_answers(asked, 20, 5);
    assert_eq!(attributes(&world.done(second)).size, 20);
    assert_eq!(world.shard.status().parked, 0);
}

#[test]
fn a_cut_that_fails_changes_nothing_and_one_that_is_forbidden_is_not_sent() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let token = world.waits(A, resize(inode, 10));
    let (asked, _) = world.asked_storage();
    world.event(Event::StorageAnswer { token: asked, result: Err(Error::NoSpace) });
    assert_eq!(world.result(token), Some(Err(Error::NoSpace)));
    assert_eq!(attributes(&world.ok(A, stat(inode))).size, 100);
    let token = world.call_as(A, user(7), resize(inode, 10));
    assert_eq!(world.result(token), Some(Err(Error::AccessDenied)));
    assert_eq!(world.storage, []);
}

#[test]
fn a_cut_to_nothing_drops_the_object_without_waiting() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let answer = world.ok(A, resize(inode, 0));
    assert_eq!((attributes(&answer).size, &attributes(&answer).layout), (0, &Layout::Empty));
    assert_eq!(world.removed_objects(), [object(1)]);
    // All hole from here on.
    assert_eq!(attributes(&world.ok(A, resize(inode, 5000))).size, 5000);
    world.ok(A, open(inode, Access::Write));
    assert_eq!(attributes(&world.ok(A, commit(inode, 2, 5000))).layout.object(), Some(object(2)));
    world.ok(A, release(inode));
    assert_eq!(attributes(&world.ok(A, open_cut(inode))).size, 0);
    assert_eq!(world.removed_objects(), [object(2)]);
}

#[test]
fn a_cut_to_nothing_in_the_middle_of_a_cut() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let first = world.waits(A, resize(inode, 10));
    let (asked, _) = world.asked_storage();
    world.ok(B, resize(inode, 0));
    assert_eq!(world.removed_objects(), [object(1)]);
    world.event(Event::StorageAnswer { token: asked, result: Err(Error::NoObject) });
    assert_eq!((attributes(&world.done(first)).size, &attributes(&world.done(first)).layout), (10, &Layout::Empty));
}

#[test]
fn an_unlinked_file_lives_while_somebody_has_it_open() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    world.ok(B, open(inode, Access::Read));
    let token = world.waits(C, unlink("f"));
    assert_eq!(world.recalls.len(), 4); // contents and attributes of each
    world.answer_recalls(LeaseMode::Open);
    assert!(matches!(world.done(token), ShardAnswer::Removed { inode: gone, links: 0, .. } if gone == inode));
    assert_eq!(world.removed_objects(), []);
    assert_eq!(attributes(&world.ok(B, stat(inode))).links, 0);
    world.ok(B, forget(inode));
    assert_eq!(world.removed_objects(), []);
    world.ok(A, forget(inode));
    assert_eq!(world.removed_objects(), [object(1)]);
    assert_eq!(world.refused(A, stat(inode)), Error::Stale);
}

#[test]
fn a_file_that_was_only_kept_is_removed_at_once() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    let token = world.waits(B, unlink("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert_eq!(world.removed_objects(), [object(1)]);
    assert_eq!(world.shard.back().orphans(), []);
}

#[test]
fn the_requesters_own_open_keeps_the_file() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    world.ok(A, unlink("f"));
    world.ok(A, commit(inode, 5, 10));
    assert_eq!(world.shard.back().orphans(), [inode]);
    world.ok(A, forget(inode));
    assert_eq!((world.removed_objects(), world.shard.status().inodes), (vec![object(5)], 1));
}

#[test]
fn rename_over_an_open_file_keeps_it_too() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let other = world.file("g", 2);
    world.ok(A, open(inode, Access::Read));
    let token = world.waits(B, rename("g", "f"));
    world.answer_recalls(LeaseMode::Open);
    let renamed = world.done(token);
    let ShardAnswer::Renamed { inode: moved, replaced, .. } = renamed else { panic!("{renamed:?}") };
    assert_eq!((moved, replaced), (other, Some((inode, 0))));
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.removed_objects(), [object(1)]);
}

#[test]
fn the_death_of_the_last_holder_removes_an_orphan() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Read));
    let token = world.waits(B, unlink("f"));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    world.expire(&[B]);
    assert_eq!(world.removed_objects(), [object(1)]);
    assert_eq!(world.ended, [A]);
}

#[test]
fn the_size_of_a_dead_writers_file_is_asked_from_the_storage_server() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    world.expire(&[B]);
    assert_eq!(world.ended, [A]);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode, object: object(1) });
    // Who asks meanwhile gets no old size.
    let token = world.waits(B, stat(inode));
    world.storage_answers(asked, 900, 5);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 900, 5);
    assert_eq!(attributes(&world.done(token)).size, 900);
    let answer = world.ok(B, stat(inode));
    assert_eq!((attributes(&answer).size, grants(&answer)), (900, Grants::ATTRIBUTES));
}

#[test]
fn the_size_of_a_file_that_was_written_through_its_server_is_asked_for_when_its_writer_says_goodbye() {
    let mut world = World::new();
    let (shared, own) = (world.file("f", 1), world.file("g", 2));
    world.ok(A, open_direct(shared, Access::Write));
    world.ok(A, open(own, Access::Write));
    let goodbye = world.call(A, ShardRequest::EndSession);
    world.done(goodbye);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode: shared, object: object(1) }, "the other one it has reported");
    world.storage_answers(asked, 900, 5);
    assert_eq!(attributes(&world.ok(B, stat(shared))).size, 900);
}

#[test]
fn leases_on_an_inode_end_with_it() {
    let mut world = World::new();
    world.ok(A, create("f"));
    world.ok(A, unlink("f"));
    world.ok(A, forget(InodeNumber::from_raw(2)));
    assert_eq!(world.shard.status().leases, 1, "only that the name is not there");
}

#[test]
fn a_file_opened_again_survives_the_release_that_was_on_its_way() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let first = world.call(A, open(inode, Access::Read));
    let stamp = world.replies[&first].stamp;
    world.ok(A, open(inode, Access::Read));
    world.ok(A, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), stamp)] });
    world.ok(A, unlink("f"));
    assert_eq!(world.shard.back().orphans(), [inode]);
}
