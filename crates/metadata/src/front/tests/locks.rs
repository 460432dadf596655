//! Calls about locks: exactly once, the end of waits, the end of sessions.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const SLOT: SlotIndex = SlotIndex(3);

fn process(number: u64) -> LockOwner {
    LockOwner { kind: LockKind::Process, number }
}

fn lock(inode: InodeNumber, number: u64, wait: Option<u64>) -> ShardRequest {
    let locks = vec![RangeLock { range: LockRange { start: 0, end: 9 }, mode: LockMode::Exclusive }];
    ShardRequest::Lock { inode, owner: process(number), pid: 40 + number as u32, locks, wait }
}

fn unlock(inode: InodeNumber, number: u64) -> ShardRequest {
    ShardRequest::Unlock { inode, owner: process(number), ranges: vec![LockRange::ALL] }
}

fn test(inode: InodeNumber, number: u64) -> ShardRequest {
    let lock = RangeLock { range: LockRange::ALL, mode: LockMode::Shared };
    ShardRequest::TestLock { inode, owner: process(number), lock }
}

/// A file that three sessions have open.
fn opened() -> (World, InodeNumber) {
    let mut world = World::new();
    let inode = world.file("f", 1);
    for session in [A, B, C] {
        let opened = world.call(session, open_direct(inode, Access::ReadWrite));
        world.answer_recalls(LeaseMode::Open);
        world.done(opened);
    }
    (world, inode)
}

impl World {
    fn granted(&mut self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.locks_granted).into_iter().map(|(session, granted)| (session, granted.wait)).collect()
    }
}

#[test]
fn a_lock_that_is_waited_for_is_granted_over_the_recall_connection_until_that_is_known() {
    let (mut world, inode) = opened();
    assert_eq!(world.ok(A, lock(inode, 1, None)), ShardAnswer::Lock(LockAnswer::Granted));
    assert_eq!(world.refused(B, lock(inode, 1, None)), Error::WouldBlock, "an owner of another session");
    assert_eq!(world.ok(B, lock(inode, 1, Some(7))), ShardAnswer::Lock(LockAnswer::Queued));
    assert_eq!(world.ok(C, lock(inode, 1, Some(7))), ShardAnswer::Lock(LockAnswer::Queued));
    assert_eq!(world.granted(), []);
    world.ok(A, unlock(inode, 1));
    assert_eq!(world.granted(), [(B, 7)], "in the order of the requests");
    world.pass(2500, &[A, B, C]);
    assert_eq!(world.granted(), [(B, 7), (B, 7)], "again each second");
    world.event(Event::LockGrantTaken { session: B, wait: 7 });
    world.pass(2500, &[A, B, C]);
    assert_eq!(world.granted(), []);
    let held = HeldLock {
        lock: RangeLock { range: LockRange { start: 0, end: 9 }, mode: LockMode::Exclusive },
        kind: LockKind::Process,
        pid: 41,
    };
    assert_eq!(world.ok(B, test(inode, 2)), ShardAnswer::LockTested(Some(held)));
    assert_eq!(world.ok(A, test(inode, 2)), ShardAnswer::LockTested(Some(HeldLock { pid: 0, ..held })));
    assert_eq!(world.ok(B, test(inode, 1)), ShardAnswer::LockTested(None), "its own is in nobody's way");
}

#[test]
fn a_repeated_lock_call_gets_the_first_answer_again() {
    let (mut world, inode) = opened();
    let first = world.call_in(A, user(0), (SLOT, 5), lock(inode, 1, None));
    world.ok(A, unlock(inode, 1));
    world.ok(B, lock(inode, 2, None));
    let again = world.call_in(A, user(0), (SLOT, 5), lock(inode, 1, None));
    assert_eq!(world.done(first), world.done(again), "though another has it now");
    let queued = world.call_in(A, user(0), (SLOT, 6), lock(inode, 1, Some(1)));
    world.ok(B, unlock(inode, 2));
    assert_eq!(world.granted(), [(A, 1)]);
    let again = world.call_in(A, user(0), (SLOT, 6), lock(inode, 1, Some(1)));
    assert_eq!(world.done(queued), world.done(again), "it is not locked, or waited for, twice");
    let unlocked = world.call_in(A, user(0), (SLOT, 7), unlock(inode, 1));
    world.ok(B, lock(inode, 2, None));
    let again = world.call_in(A, user(0), (SLOT, 7), unlock(inode, 1));
    assert_eq!(world.done(unlocked), world.done(again));
    let refused = world.call_in(A, user(0), (SLOT, 8), lock(inode, 1, None));
    world.ok(B, unlock(inode, 2));
    let again = world.call_in(A, user(0), (SLOT, 8), lock(inode, 1, None));
    assert_eq!(
        (world.result(refused), world.result(again)),
        (Some(Err(Error::WouldBlock)), Some(Err(Error::WouldBlock)))
    );
    // Calls of other kinds in the same slot, late.
    for late in [lock(inode, 1, None), chmod(inode, 0o600)] {
        let late = world.call_in(A, user(0), (SLOT, 4), late);
        assert_eq!(world.result(late), Some(Err(Error::Invalid)));
    }
    let next = world.call_in(A, user(0), (SLOT, 9), chmod(inode, 0o600));
    world.answer_recalls(LeaseMode::None);
    world.done(next);
    let late = world.call_in(A, user(0), (SLOT, 8), lock(inode, 1, None));
    assert_eq!(world.result(late), Some(Err(Error::WouldBlock)));
    assert_eq!(world.ok(B, lock(inode, 2, None)), ShardAnswer::Lock(LockAnswer::Granted));
}

#[test]
fn a_wait_that_is_given_up_is_cancelled_or_was_granted() {
    let (mut world, inode) = opened();
    world.ok(A, lock(inode, 1, None));
    world.ok(B, lock(inode, 1, Some(1)));
    world.ok(C, lock(inode, 1, Some(1)));
    let cancel = ShardRequest::CancelLock { inode, wait: 1 };
    assert_eq!(world.ok(B, cancel.clone()), ShardAnswer::Lock(LockAnswer::Cancelled));
    world.ok(A, unlock(inode, 1));
    assert_eq!(world.granted(), [(C, 1)]);
    assert_eq!(world.ok(C, cancel), ShardAnswer::Lock(LockAnswer::Granted), "the grant was on its way");
    world.pass(2500, &[A, B, C]);
    assert_eq!(world.granted(), [], "it is not told again");
}

#[test]
fn locks_that_a_client_has_kept_under_its_exclusive_lease_are_taken_before_that_ends() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let opened = world.call(A, open(inode, Access::ReadWrite));
    world.answer_recalls(LeaseMode::None);
    world.done(opened);
    let locks = vec![RangeLock { range: LockRange { start: 0, end: 9 }, mode: LockMode::Exclusive }];
    let held = |numbers: &[u64]| -> Vec<_> {
        numbers.iter().map(|number| OwnerLocks { owner: process(*number), pid: 9, locks: locks.clone() }).collect()
    };
    let take = |numbers: &[u64]| ShardRequest::TakeLocks { inode, held: held(numbers) };
    assert_eq!(world.refused(B, take(&[1])), Error::BadHandle, "it has not opened the file");
    assert_eq!(world.refused(A, take(&[1, 2])), Error::Invalid, "they conflict");
    let waiting = world.call(B, open(inode, Access::Read));
    world.ok(A, take(&[1]));
    world.ok(A, take(&[2]));
    world.answer_recalls(LeaseMode::Open);
    world.done(waiting);
    let in_way = world.ok(B, test(inode, 2));
    let lock = RangeLock { range: LockRange { start: 0, end: 9 }, mode: LockMode::Exclusive };
    assert_eq!(in_way, ShardAnswer::LockTested(Some(HeldLock { lock, kind: LockKind::Process, pid: 0 })));
    assert_eq!(world.refused(A, take(&[1])), Error::Invalid, "it came late");
    world.ok(A, unlock(inode, 2));
    assert_eq!(world.ok(B, test(inode, 2)), ShardAnswer::LockTested(None), "the last word counts, as a whole");
}

#[test]
fn locks_of_a_client_that_died_are_free_when_its_session_has_ended_and_is_fenced() {
    let (mut world, inode) = opened();
    world.keeps_fences = true;
    world.ok(A, lock(inode, 1, None));
    world.ok(B, lock(inode, 1, Some(7)));
    world.pass(limits::SESSION_TERM_MS - 1000, &[B, C]);
    assert_eq!(world.granted(), []);
    world.pass(1500, &[B, C]);
    assert_eq!((world.granted(), world.ended.as_slice()), (vec![], &[A][..]), "its bytes may still land");
    world.confirm_fences();
    assert_eq!(world.granted(), [(B, 7)]);
}

#[test]
fn a_client_that_is_gone_or_says_goodbye_leaves_no_lock_behind() {
    let (mut world, inode) = opened();
    world.ok(A, lock(inode, 1, None));
    world.ok(B, lock(inode, 1, Some(7)));
    world.ok(C, lock(inode, 1, Some(8)));
    world.event(Event::Lost { session: B });
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.granted(), [(C, 8)]);
}

#[test]
fn a_file_that_is_not_open_cannot_be_locked_and_closing_it_unlocks_it() {
    let (mut world, inode) = opened();
    let other = world.file("g", 2);
    assert_eq!(world.refused(A, lock(other, 1, None)), Error::BadHandle);
    assert_eq!(world.refused(A, lock(InodeNumber::new(ShardId(0), 999), 1, None)), Error::Stale);
    world.ok(A, lock(inode, 1, None));
    world.ok(B, lock(inode, 1, Some(7)));
    let leases = vec![(LeaseKey::Data(inode), u64::MAX)];
    world.ok(A, ShardRequest::Release { leases });
    assert_eq!(world.granted(), [(B, 7)]);
    let wrong = LockRange { start: 5, end: 4 };
    let owner = LockOwner { kind: LockKind::Flock, number: 1 };
    for (owner, ranges) in
        [(process(1), vec![wrong]), (process(1), vec![]), (owner, vec![LockRange { start: 0, end: 4 }])]
    {
        assert_eq!(world.refused(B, ShardRequest::Unlock { inode, owner, ranges }), Error::Invalid);
    }
}
