//! Calls that are made again in the next session, since the shard has ended the one in which they were sent.

use super::harness::*;
use crate::front::Event;
use weft_protocol::error::errno;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::*;

const SLOT: SlotIndex = SlotIndex(3);
/// The next session of the client of `A`.
const NEXT: SessionId = SessionId(11);
/// The one after it.
const LATER: SessionId = SessionId(12);

/// The first call of a session's slot.
fn first(session: SessionId) -> Origin {
    call_number(session, 1)
}

fn call_number(session: SessionId, sequence: u32) -> Origin {
    Origin { session, slot: Slot { of: NodeId(1), index: SLOT }, sequence }
}

fn send(world: &mut World, session: SessionId, request: ShardRequest) -> u64 {
    world.call_in(session, user(0), (SLOT, 1), request)
}

/// The client of `A` makes its call again.
fn again(world: &mut World, request: ShardRequest) -> u64 {
    world.repeat(first(NEXT), user(0), request, &[first(A)])
}

fn create_exclusive(text: &str, mode: u16) -> ShardRequest {
    let create = Some(CreateFile { mode, exclusive: true, plan: None });
    ShardRequest::OpenAt { parent: ROOT, name: name(text), flags: flags(Access::ReadWrite), create, objects: None }
}

fn open_at_cut(text: &str) -> ShardRequest {
    let flags = OpenFlags { truncate: true, ..flags(Access::Write) };
    ShardRequest::OpenAt { parent: ROOT, name: name(text), flags, create: None, objects: None }
}

#[test]
fn what_an_ended_session_has_changed_is_answered_and_not_changed_again() {
    let mut world = World::new();
    world.file("f", 1);
    let removed = send(&mut world, A, unlink("f"));
    world.expire(&[B]);
    let other = world.file("f", 2);
    let repeated = again(&mut world, unlink("f"));
    assert_eq!(world.done(repeated), world.done(removed));
    assert_eq!(attributes(&world.ok(B, lookup("f"))).inode, other, "another file has the name by now");
    let once_more = again(&mut world, unlink("f"));
    assert_eq!(world.done(once_more), world.done(removed), "a duplicate request in the next session");
    let new = world.call_in(NEXT, user(0), (SLOT, 2), unlink("f"));
    world.answer_recalls(LeaseMode::None);
    assert_ne!(world.done(new), world.done(removed));
}

#[test]
fn a_call_of_which_an_ended_session_has_done_nothing_is_made() {
    let mut world = World::new();
    let missing = send(&mut world, A, unlink("f"));
    assert_eq!(world.result(missing), Some(Err(Error::NotFound)));
    world.expire(&[B]);
    world.file("f", 1);
    let removed = again(&mut world, unlink("f"));
    assert!(matches!(world.done(removed), ShardAnswer::Removed { .. }), "the error has changed nothing");
    let never_sent = world.repeat(call_number(NEXT, 2), user(0), mkdir(ROOT, "d"), &[first(SessionId(77))]);
    world.done(never_sent);
    let late = send(&mut world, A, mkdir(ROOT, "e"));
    assert_eq!(world.result(late), Some(Err(Error::SessionEnded)), "it never happens");
}

#[test]
fn a_client_whose_next_session_has_ended_too_names_both_calls() {
    let mut world = World::new();
    let made = send(&mut world, A, mkdir(ROOT, "d"));
    world.expire(&[]);
    let made = attributes(&world.done(made)).inode;
    // The reply is lost, as that of the first time.
    again(&mut world, mkdir(ROOT, "d"));
    world.expire(&[]);
    let repeated = world.repeat(first(LATER), user(0), mkdir(ROOT, "d"), &[first(A), first(NEXT)]);
    assert_eq!(attributes(&world.done(repeated)).inode, made);
}

#[test]
fn a_file_that_an_ended_session_has_made_is_opened() {
    let mut world = World::new();
    let made = world.call_of(first(A), user(5), create_exclusive("f", 0o400));
    let made = attributes(&world.done(made)).inode;
    world.expire(&[B]);
    let of_another = world.repeat(first(B), user(6), create_exclusive("f", 0o400), &[first(A)]);
    assert_eq!(world.result(of_another), Some(Err(Error::Exists)), "users are told of their own calls only");
    for _ in 0..2 {
        // Its maker may write to it, as with the descriptor of the first time.
        let opened = world.repeat(first(NEXT), user(5), create_exclusive("f", 0o400), &[first(A)]);
        let opened = world.done(opened);
        assert!(matches!(opened, ShardAnswer::Opened { created: true, .. }), "{opened:?}");
        assert_eq!(attributes(&opened).inode, made);
        assert!(grants(&opened).contains(Grants::OPEN | Grants::DATA_EXCLUSIVE), "in the new session");
    }
}

#[test]
fn a_file_that_an_ended_session_has_made_and_that_is_gone_is_made_anew() {
    let mut world = World::new();
    let made = send(&mut world, A, create_exclusive("f", 0o600));
    world.expire(&[B]);
    world.ok(B, unlink("f"));
    let opened = again(&mut world, create_exclusive("f", 0o600));
    let opened = world.done(opened);
    assert!(matches!(opened, ShardAnswer::Opened { created: true, .. }), "{opened:?}");
    assert_ne!(attributes(&opened).inode, attributes(&world.done(made)).inode);
}

#[test]
fn an_open_waits_for_what_the_ended_session_holds() {
    let mut world = World::new();
    world.ok(A, create("f"));
    let inode = world.file("g", 1);
    world.ok(A, open(inode, Access::Write));
    let made = send(&mut world, A, create_exclusive("h", 0o600));
    world.done(made);
    world.keeps_fences = true;
    world.expire(&[]);
    let opened = again(&mut world, create_exclusive("h", 0o600));
    assert_eq!(world.result(opened), None, "its bytes may land");
    world.confirm_fences();
    assert!(grants(&world.done(opened)).contains(Grants::DATA_EXCLUSIVE));
}

#[test]
fn a_file_is_cut_once() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, open_direct(inode, Access::ReadWrite));
    let cut = send(&mut world, A, open_at_cut("f"));
    world.answer_recalls(LeaseMode::Open);
    let (asked, request) = world.asked_storage();
    assert!(matches!(request, StorageRequest::Truncate { size: 0, .. }));
    world.expire(&[B]);
    assert_eq!(world.result(cut), None, "the storage server may have cut it");
    let repeated = again(&mut world, open_at_cut("f"));
    assert_eq!(world.result(repeated), None);
    world.storage_answers(asked, 0, 5);
    let opened = world.done(repeated);
    assert!(matches!(opened, ShardAnswer::Opened { created: false, capability: Some(_), .. }), "{opened:?}");
    assert_eq!(world.storage, [], "nothing is cut again");
}

#[test]
fn an_open_that_has_cut_a_file_does_not_say_that_there_is_none() {
    let by_inode = |inode| ShardRequest::Open { inode, flags: OpenFlags { truncate: true, ..flags(Access::Write) } };
    let by_name = |_| open_at_cut("f");
    let opens: [fn(InodeNumber) -> ShardRequest; 2] = [by_inode, by_name];
    for open in opens {
        let mut world = World::new();
        let inode = world.file("f", 1);
        let cut = send(&mut world, A, open(inode));
        assert!(matches!(world.done(cut), ShardAnswer::Opened { created: false, .. }));
        world.expire(&[B]);
        world.ok(B, unlink("f"));
        world.expire(&[B]);
        let repeated = again(&mut world, open(inode));
        assert_eq!(world.result(repeated), Some(Err(Error::Device(errno::EIO))));
        let never_made = world.repeat(call_number(NEXT, 2), user(0), open(inode), &[first(SessionId(77))]);
        let refused = world.result(never_made);
        assert!(
            matches!(refused, Some(Err(Error::NotFound | Error::Stale)) | Some(Ok(ShardAnswer::Absent { .. }))),
            "{refused:?}"
        );
    }
    let mut world = World::new();
    world.file("f", 1);
    let cut = send(&mut world, A, open_at_cut("f"));
    world.done(cut);
    world.expire(&[B]);
    world.ok(B, unlink("f"));
    let other = world.file("f", 2);
    world.expire(&[B]);
    let repeated = again(&mut world, open_at_cut("f"));
    assert_eq!(attributes(&world.done(repeated)).inode, other, "the name counts again");
}

#[test]
fn a_file_that_is_opened_for_a_refused_session_counts_as_open() {
    let mut world = World::new();
    let (inode, other) = (world.file("f", 1), world.file("g", 2));
    world.ok(B, open_direct(inode, Access::Read));
    world.ok(A, stat(other));
    let cut = send(&mut world, A, open_at_cut("f"));
    world.answer_recalls(LeaseMode::Open);
    let (asked, _) = world.asked_storage();
    // It answers no recall, and is refused before its term is over.
    world.call(B, chmod(other, 0o600));
    world.pass(SESSION_TERM_MS - 1000, &[A, B]);
    world.pass(1500, &[A, B]);
    assert!(world.shard.refuses(A));
    world.storage_answers(asked, 0, 5);
    assert_eq!(grants(&world.done(cut)) & Grants::DATA_EXCLUSIVE, Grants::empty(), "a refused session caches nothing");
    // It may write by the right that it was told of.
    let looked = world.waits(NEXT, stat(inode));
    let (asked, request) = world.asked_storage();
    assert!(matches!(request, StorageRequest::Stat { .. }), "{request:?}");
    world.storage_answers(asked, 142, 6);
    assert_eq!(attributes(&world.done(looked)).size, 142);
    world.keeps_fences = true;
    world.event(Event::Lost { session: A });
    let opened = world.call(NEXT, open(inode, Access::Write));
    assert_eq!(world.result(opened), None, "its bytes may land until its storage server has confirmed the fence");
    world.confirm_fences();
    assert!(world.result(opened).is_some());
}

#[test]
fn a_file_that_is_cut_is_not_cut_again_when_its_open_waits_for_something_else() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, open_direct(inode, Access::ReadWrite));
    let opened = world.call(C, open_direct(inode, Access::ReadWrite));
    world.answer_recalls(LeaseMode::Open);
    world.done(opened);
    let cut = send(&mut world, A, open_at_cut("f"));
    world.answer_recalls(LeaseMode::Open);
    let (asked, _) = world.asked_storage();
    // Bytes of B may still land when the object has been cut.
    world.keeps_fences = true;
    world.event(Event::Lost { session: B });
    world.storage_answers(asked, 0, 5);
    assert_eq!(world.result(cut), None, "it waits for the fence");
    world.event(Event::Lost { session: A });
    let repeated = again(&mut world, open_at_cut("f"));
    assert_eq!((world.result(repeated), world.storage.len()), (None, 0), "C may have written since");
    world.confirm_fences();
    let (_, _, recover) = world.storage.remove(0);
    assert!(matches!(recover, StorageRequest::Stat { .. }), "{recover:?}");
    assert!(matches!(world.done(repeated), ShardAnswer::Opened { created: false, .. }));
    assert_eq!(world.storage, [], "nothing is cut again");
}

#[test]
fn a_call_that_is_carried_through_is_waited_for() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let first_time = send(&mut world, A, resize(inode, 10));
    let (asked, _) = world.asked_storage();
    world.expire(&[B]);
    let refused = send(&mut world, A, resize(inode, 10));
    assert_eq!(world.result(refused), Some(Err(Error::SessionEnded)));
    let repeated = again(&mut world, resize(inode, 10));
    assert_eq!(world.shard.stuck()[1].waits_for, "the same call of session 0000000000000001, which has ended");
    world.storage_answers(asked, 10, 5);
    assert_eq!(attributes(&world.done(first_time)).size, 10);
    assert_eq!(attributes(&world.done(repeated)).size, 10);
    assert_eq!(world.storage, [], "it is cut once");
}

#[test]
fn a_session_that_says_goodbye_leaves_no_replies() {
    let mut world = World::new();
    let made = send(&mut world, A, mkdir(ROOT, "d"));
    world.done(made);
    world.ok(A, ShardRequest::EndSession);
    let repeated = again(&mut world, mkdir(ROOT, "d"));
    assert_eq!(world.result(repeated), Some(Err(Error::Exists)));
}

#[test]
fn a_session_whose_process_is_gone_leaves_its_replies() {
    let mut world = World::new();
    let made = send(&mut world, A, mkdir(ROOT, "d"));
    // Its last connection has been closed: it may have another session by now.
    world.event(Event::Lost { session: A });
    let repeated = again(&mut world, mkdir(ROOT, "d"));
    assert_eq!(attributes(&world.done(repeated)).inode, attributes(&world.done(made)).inode);
}
