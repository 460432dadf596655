//! Cuts to nothing of files that somebody has open: the object stays, for a kernel may be reading and writing it.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

const CUT: OpenFlags =
    OpenFlags { access: Access::Write, truncate: true, direct: false, page_cache: PageCache::None, group: None };

fn open_cut(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Open { inode, flags: CUT }
}

fn open_at_cut(text: &str, exclusive: bool) -> ShardRequest {
    let create = Some(CreateFile { mode: 0o644, exclusive, plan: None });
    ShardRequest::OpenAt { parent: ROOT, name: name(text), flags: CUT, create, objects: None }
}

fn truncate(inode: InodeNumber, sequence: u64, by: SessionId) -> StorageRequest {
    StorageRequest::Truncate { inode, object: object(sequence), size: 0, by }
}

fn release(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] }
}

/// A call that waits for a storage server after the others have given up what they know of the file.
fn waits(world: &mut World, session: SessionId, request: ShardRequest) -> u64 {
    let token = world.waits(session, request);
    world.answer_recalls(LeaseMode::Open);
    token
}

#[test]
fn a_cut_to_nothing_keeps_the_object_while_anybody_has_the_file_open() {
    let requests = |inode| [resize(inode, 0), open_cut(inode), open_at_cut("f", false)];
    for holder in [A, B] {
        for number in 0..3 {
            let mut world = World::new();
            let inode = world.file("f", 1);
            world.ok(holder, open_direct(inode, Access::ReadWrite));
            let token = waits(&mut world, A, requests(inode)[number].clone());
            let (asked, request) = world.asked_storage();
            assert_eq!(request, truncate(inode, 1, A));
            world.storage_answers(asked, 0, 5);
            let answer = world.done(token);
            assert_eq!((attributes(&answer).size, attributes(&answer).layout.object()), (0, Some(object(1))));
            assert_eq!(world.storage, [], "nothing is removed");
            // When all have closed it, the next cut removes it.
            for session in [A, B] {
                world.ok(session, release(inode));
            }
            let token = world.call(C, requests(inode)[number].clone());
            world.answer_recalls(LeaseMode::None);
            assert_eq!(attributes(&world.done(token)).layout, Layout::Empty);
            assert_eq!(world.removed_objects(), [object(1)]);
        }
    }
}

#[test]
fn the_file_gets_another_object_when_the_storage_server_is_away() {
    // While another session has the file open, only if nobody uses the object: it is not there.
    for (holder, error) in [(A, Error::Unreachable), (A, Error::NoObject), (B, Error::NoObject)] {
        let mut world = World::new();
        let inode = world.file("f", 1);
        world.ok(holder, open_direct(inode, Access::Read));
        let token = waits(&mut world, A, open_cut(inode));
        let (asked, _) = world.asked_storage();
        world.event(Event::StorageAnswer { token: asked, result: Err(error) });
        assert_eq!((attributes(&world.done(token)).size, &attributes(&world.done(token)).layout), (0, &Layout::Empty));
        assert_eq!(world.removed_objects(), [object(1)]);
    }
}

#[test]
fn a_cut_that_pages_are_in_the_way_of_changes_nothing_and_is_sent_again() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, open_direct(inode, Access::Read));
    for request in [open_cut(inode), resize(inode, 0), resize(inode, 7)] {
        let token = waits(&mut world, A, request.clone());
        let (asked, _) = world.asked_storage();
        world.event(Event::StorageAnswer { token: asked, result: Err(Error::PagesCached) });
        assert_eq!(world.result(token), Some(Err(Error::PagesCached)));
        assert_eq!(world.removed_objects(), [], "the object stays");
        let token = waits(&mut world, A, request);
        let (asked, _) = world.asked_storage();
        world.storage_answers(asked, 0, 5);
        world.done(token);
    }
}

#[test]
fn an_open_that_is_refused_cuts_nothing() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, open_direct(inode, Access::Read));
    for request in [open_cut(inode), open_at_cut("f", false)] {
        let token = world.call_as(A, user(7), request);
        world.answer_recalls(LeaseMode::Open);
        assert_eq!(world.result(token), Some(Err(Error::AccessDenied)));
    }
    assert_eq!(world.refused(A, open_at_cut("f", true)), Error::Exists);
    assert_eq!(world.storage, []);
}

/// The bytes are gone: an open that failed, or opened another file, would have taken them for nothing.
#[test]
fn an_open_that_has_cut_a_file_opens_it_whatever_becomes_of_its_name() {
    let away = [rename("f", "h"), rename("g", "f"), unlink("f"), chmod(ROOT, 0o700)];
    for change in away {
        let mut world = World::new();
        let (inode, other) = (world.file("f", 1), world.file("g", 2));
        world.ok(B, chmod(inode, 0o666));
        world.ok(B, chmod(ROOT, 0o777));
        world.ok(B, open_direct(inode, Access::Read));
        world.ok(B, open_direct(other, Access::Read));
        let token = world.call_as(A, user(7), open_at_cut("f", false));
        world.answer_recalls(LeaseMode::Open);
        let (asked, request) = world.asked_storage();
        assert_eq!(request, truncate(inode, 1, A));
        let changed = world.call(B, change.clone());
        world.answer_recalls(LeaseMode::Open);
        world.done(changed);
        let refuses = waits(&mut world, B, chmod(inode, 0o600));
        world.storage_answers(asked, 0, 5);
        let ShardAnswer::Opened { attributes, grants, .. } = world.done(token) else { panic!("not opened") };
        assert_eq!((attributes.inode, attributes.size), (inode, 0), "{change:?}");
        assert!(!grants.contains(Grants::ENTRY), "the name may be another file's");
        world.answer_recalls(LeaseMode::Open);
        world.done(refuses);
        // The cut is over: others of the same file do not wait for it.
        let token = waits(&mut world, B, resize(inode, 0));
        let (asked, _) = world.asked_storage();
        world.storage_answers(asked, 0, 5);
        world.done(token);
        assert_eq!(world.shard.status().parked, 0);
    }
}

#[test]
fn the_end_of_a_session_whose_open_has_cut_one_file_and_waits_for_another_ends_the_cut() {
    let mut world = World::new();
    let (inode, other) = (world.file("f", 1), world.file("g", 2));
    world.ok(B, open_direct(inode, Access::Read));
    world.ok(C, open_direct(other, Access::Read));
    waits(&mut world, A, open_at_cut("f", false));
    let (asked, _) = world.asked_storage();
    let next = world.waits(B, resize(inode, 10));
    let renamed = world.call(C, rename("g", "f"));
    world.answer_recalls(LeaseMode::Open);
    world.done(renamed);
    // A term later nobody has a use for the first file any more. What A opens is another one, which C has to give up
    // first.
    world.ok(B, release(inode));
    world.expire(&[A, B, C]);
    world.storage_answers(asked, 0, 5);
    assert_eq!(world.shard.status().parked, 2);
    world.event(Event::Lost { session: A });
    assert_eq!(world.result(next), Some(Err(Error::Stale)));
    assert_eq!(world.shard.status().parked, 0);
}

#[test]
fn a_cut_to_nothing_waits_for_the_cut_before_it() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, open_direct(inode, Access::Read));
    let first = waits(&mut world, A, resize(inode, 10));
    let (asked, _) = world.asked_storage();
    let second = waits(&mut world, C, open_cut(inode));
    assert_eq!(world.storage, []);
    world.storage_answers(asked, 10, 5);
    world.done(first);
    let (asked, request) = world.asked_storage();
    assert_eq!(request, truncate(inode, 1, C));
    world.storage_answers(asked, 0, 6);
    assert_eq!(attributes(&world.done(second)).size, 0);
}

#[test]
fn a_size_that_was_asked_for_before_a_cut_is_asked_for_again() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    let commit = waits(&mut world, A, commit(inode, 1, 100));
    let (before, _) = world.asked_storage();
    let look = waits(&mut world, B, stat(inode));
    let (also_before, _) = world.asked_storage();
    let cut = waits(&mut world, C, resize(inode, 0));
    let (asked, request) = world.asked_storage();
    assert_eq!(request, truncate(inode, 1, C));
    world.storage_answers(asked, 0, 5);
    assert_eq!(attributes(&world.done(cut)).size, 0);
    for (asked, call) in [(before, commit), (also_before, look)] {
        world.storage_answers(asked, 100, 4);
        let (again, _) = world.asked_storage();
        world.storage_answers(again, 3, 6);
        assert_eq!(attributes(&world.done(call)).size, 3, "written after the cut");
    }
}

#[test]
fn the_size_of_a_dead_writers_file_is_that_of_a_later_cut() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    world.ok(B, open_direct(inode, Access::Read));
    world.expire(&[B, C]);
    assert_eq!(world.ended, [A]);
    let (before, _) = world.asked_storage();
    let cut = waits(&mut world, C, resize(inode, 0));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 0, 5);
    world.done(cut);
    world.storage_answers(before, 900, 4);
    let (again, request) = world.asked_storage();
    assert_eq!(request, StorageRequest::Stat { inode, object: object(1) });
    world.storage_answers(again, 0, 5);
    assert_eq!(attributes(&world.ok(C, stat(inode))).size, 0);
}

/// The answer that was asked for before is not believed, and the one that is asked for later is.
#[test]
fn the_size_of_a_writer_that_dies_after_a_cut_is_believed_while_a_size_from_before_it_is_awaited() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    let both = world.waits(B, open_direct(inode, Access::Write));
    world.answer_recalls(LeaseMode::Open);
    world.done(both);
    world.expire(&[B, C]);
    let (before, _) = world.asked_storage();
    let cut = waits(&mut world, B, resize(inode, 0));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 0, 5);
    world.done(cut);
    world.expire(&[C]);
    assert_eq!(world.ended, [A, B]);
    let (since, _) = world.asked_storage();
    world.storage_answers(since, 212, 6);
    world.storage_answers(before, 900, 4);
    let (again, _) = world.asked_storage();
    world.storage_answers(again, 212, 6);
    assert_eq!(attributes(&world.ok(C, stat(inode))).size, 212);
}

#[test]
fn the_size_of_a_dead_writers_file_is_asked_for_again_when_a_cut_has_failed() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open_direct(inode, Access::Write));
    world.ok(B, open_direct(inode, Access::Read));
    world.expire(&[B, C]);
    let (before, _) = world.asked_storage();
    let cut = waits(&mut world, C, resize(inode, 0));
    let (asked, _) = world.asked_storage();
    world.event(Event::StorageAnswer { token: asked, result: Err(Error::PagesCached) });
    assert_eq!(world.result(cut), Some(Err(Error::PagesCached)));
    world.storage_answers(before, 900, 4);
    let (again, _) = world.asked_storage();
    world.storage_answers(again, 900, 4);
    assert_eq!(attributes(&world.ok(C, stat(inode))).size, 900);
}

/// The storage server may have told of a write before the cut, or of one after it.
#[test]
fn a_size_that_was_reported_while_a_file_was_cut_is_asked_for_again() {
    for (size, sizes) in [(0, [0, 21]), (10, [10, 21])] {
        for told in sizes {
            let mut world = World::new();
            let inode = world.file("f", 1);
            world.ok(B, open_direct(inode, Access::Write));
            let cut = waits(&mut world, A, if size == 0 { open_cut(inode) } else { resize(inode, size) });
            let (cutting, _) = world.asked_storage();
            let report = world.waits(B, commit(inode, 1, 21));
            let (asked, _) = world.asked_storage();
            world.storage_answers(asked, 21, 92);
            world.done(report);
            world.storage_answers(cutting, size, 91);
            assert!(!grants(&world.done(cut)).intersects(Grants::DATA_EXCLUSIVE | Grants::ATTRIBUTES));
            for session in [A, B] {
                world.ok(session, release(inode));
            }
            let (asked, request) = world.asked_storage();
            assert_eq!(request, StorageRequest::Stat { inode, object: object(1) });
            world.storage_answers(asked, told, 92);
            assert_eq!(attributes(&world.ok(C, stat(inode))).size, told);
        }
    }
}
