//! The table of locks by itself.

use super::*;
use proptest::prelude::*;
use weft_protocol::{LockMode, LockOwner};

const FILE: InodeNumber = InodeNumber::from_raw(7);
const OTHER: InodeNumber = InodeNumber::from_raw(8);

fn owner(number: u64) -> Owner {
    (SessionId(number % 3), LockOwner { kind: LockKind::Process, number })
}

fn of_kind(kind: LockKind, number: u64) -> Owner {
    (SessionId(number % 3), LockOwner { kind, number })
}

fn lock(start: u64, end: u64, mode: LockMode) -> RangeLock {
    RangeLock { range: LockRange { start, end }, mode }
}

fn exclusive(start: u64, end: u64) -> RangeLock {
    lock(start, end, LockMode::Exclusive)
}

fn shared(start: u64, end: u64) -> RangeLock {
    lock(start, end, LockMode::Shared)
}

impl Locks {
    fn ask(&mut self, inode: InodeNumber, owner: Owner, locks: &[RangeLock], wait: Option<u64>) -> Result<LockAnswer> {
        self.request(inode, Request { owner, pid: 1, locks: locks.to_vec() }, wait)
    }

    fn take(&mut self, inode: InodeNumber, owner: Owner, lock: RangeLock) {
        assert_eq!(self.ask(inode, owner, &[lock], None), Ok(LockAnswer::Granted), "{owner:?} {lock:?}");
    }

    fn queue(&mut self, inode: InodeNumber, owner: Owner, lock: RangeLock, wait: u64) {
        assert_eq!(self.ask(inode, owner, &[lock], Some(wait)), Ok(LockAnswer::Queued), "{owner:?} {lock:?}");
    }

    fn all_granted(&mut self) -> Vec<u64> {
        self.take_granted().into_iter().map(|(_, wait)| wait).collect()
    }

    fn free(&mut self, inode: InodeNumber, owner: Owner) {
        self.unlock(inode, owner, &[LockRange::ALL]).expect("room");
    }
}

#[test]
fn no_later_request_for_a_lock_overtakes_an_earlier_one() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), shared(0, 9));
    locks.queue(FILE, owner(2), exclusive(5, 5), 2);
    locks.queue(FILE, owner(3), shared(0, 9), 3);
    assert_eq!(locks.ask(FILE, owner(4), &[shared(5, 5)], None), Err(Error::WouldBlock), "not past 2");
    locks.take(FILE, owner(4), shared(6, 6));
    locks.free(FILE, owner(1));
    assert_eq!(locks.all_granted(), [2]);
    locks.free(FILE, owner(2));
    assert_eq!(locks.all_granted(), [3]);
}

#[test]
fn an_owner_for_whose_lock_others_wait_may_overtake_them() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), shared(0, 9));
    locks.queue(FILE, owner(2), exclusive(5, 5), 2);
    locks.queue(FILE, owner(3), exclusive(5, 20), 3);
    // 3 waits behind 2, which waits for 1: behind 3 there would be a cycle.
    locks.take(FILE, owner(1), shared(5, 15));
    locks.free(FILE, owner(1));
    assert_eq!(locks.all_granted(), [2]);
}

#[test]
fn a_wait_for_fairness_alone_ends_when_it_would_close_a_cycle() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), shared(0, 9));
    locks.take(OTHER, owner(3), exclusive(0, 0));
    locks.queue(FILE, owner(2), exclusive(0, 9), 2);
    locks.queue(FILE, owner(3), shared(0, 9), 3);
    // 1 waits for 3, which waits behind 2 only, which waits for 1.
    locks.queue(OTHER, owner(1), exclusive(0, 0), 1);
    assert_eq!(locks.all_granted(), [3]);
    locks.free(OTHER, owner(3));
    assert_eq!(locks.all_granted(), [1]);
}

#[test]
fn a_wait_that_closes_a_cycle_of_processes_is_refused() {
    let mut locks = Locks::default();
    for number in 1..=4 {
        locks.take(FILE, owner(number), exclusive(number, number));
    }
    for number in 1..=3 {
        locks.queue(FILE, owner(number), exclusive(number + 1, number + 1), number);
    }
    assert_eq!(locks.ask(FILE, owner(4), &[exclusive(1, 1)], Some(9)), Err(Error::Deadlock));
    assert_eq!(locks.ask(FILE, owner(4), &[exclusive(1, 1)], None), Err(Error::WouldBlock));
    locks.free(FILE, owner(4));
    assert_eq!(locks.all_granted(), [3]);
    // Of descriptions another thread may unlock.
    let mut locks = Locks::default();
    let [a, b] = [1, 2].map(|number| of_kind(LockKind::Description, number));
    locks.take(FILE, a, exclusive(1, 1));
    locks.take(FILE, b, exclusive(2, 2));
    locks.queue(FILE, a, exclusive(2, 2), 1);
    locks.queue(FILE, b, exclusive(1, 1), 2);
}

#[test]
fn a_group_of_ranges_is_locked_whole_or_not_at_all() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), exclusive(10, 19));
    let group = [exclusive(0, 4), exclusive(15, 30)];
    assert_eq!(locks.ask(FILE, owner(2), &group, None), Err(Error::WouldBlock));
    assert_eq!(locks.test(FILE, owner(1), exclusive(0, 4)), None, "nothing of it");
    assert_eq!(locks.ask(FILE, owner(2), &group, Some(1)), Ok(LockAnswer::Queued));
    locks.unlock(FILE, owner(1), &[LockRange { start: 15, end: 15 }]).unwrap();
    assert_eq!(locks.all_granted(), []);
    locks.unlock(FILE, owner(1), &[LockRange { start: 12, end: 100 }]).unwrap();
    assert_eq!(locks.all_granted(), [1]);
    let held = locks.test(FILE, owner(1), shared(0, 100)).unwrap();
    assert_eq!((held.lock, held.pid), (exclusive(0, 4), 0), "the pid of another session says nothing here");
}

#[test]
fn two_that_share_a_flock_and_both_want_it_alone_get_it_one_after_the_other() {
    let mut locks = Locks::default();
    let [a, b] = [1, 2].map(|number| of_kind(LockKind::Flock, number));
    let all = |mode| RangeLock { range: LockRange::ALL, mode };
    locks.take(FILE, a, all(LockMode::Shared));
    locks.take(FILE, b, all(LockMode::Shared));
    // An fcntl lock is in nobody's way.
    locks.take(FILE, owner(3), all(LockMode::Exclusive));
    locks.queue(FILE, a, all(LockMode::Exclusive), 1);
    assert_eq!(locks.ask(FILE, b, &[all(LockMode::Exclusive)], Some(2)), Ok(LockAnswer::Queued));
    assert_eq!(locks.all_granted(), [1]);
    locks.free(FILE, a);
    assert_eq!(locks.all_granted(), [2]);
}

#[test]
fn a_lock_that_becomes_weaker_lets_others_in() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), exclusive(0, 9));
    locks.queue(FILE, owner(2), shared(0, 9), 2);
    locks.take(FILE, owner(1), shared(0, 9));
    assert_eq!(locks.all_granted(), [2]);
}

#[test]
fn what_a_session_locked_ends_with_it() {
    let mut locks = Locks::default();
    locks.take(FILE, owner(1), exclusive(0, 9));
    locks.take(OTHER, owner(4), exclusive(0, 9));
    locks.queue(FILE, owner(2), exclusive(0, 9), 2);
    locks.queue(FILE, owner(3), exclusive(0, 9), 3);
    assert!(locks.cancel(SessionId(2), 2));
    assert!(!locks.cancel(SessionId(2), 2));
    locks.drop_session(SessionId(1));
    assert_eq!(locks.all_granted(), [3]);
    locks.drop_waits(SessionId(0));
    locks.drop_session(SessionId(0));
    assert_eq!(locks.counts(), (0, 0));
    let empty = (locks.files.len(), locks.sessions.len(), locks.waits_of.len(), locks.holding.len());
    assert_eq!(empty, (0, 0, 0, 0));
}

#[test]
fn a_session_has_a_bounded_number_of_locks_and_waits() {
    let mut locks = Locks::default();
    let mut granted = 0;
    while locks.ask(FILE, owner(1), &[exclusive(2 * granted, 2 * granted)], None).is_ok() {
        granted += 1;
    }
    assert!((LOCKS_PER_SESSION_MAX - 2..=LOCKS_PER_SESSION_MAX).contains(&(granted as usize)));
    assert_eq!(locks.ask(FILE, owner(1), &[exclusive(1, 1)], None), Err(Error::NoLocks));
    for wait in 0..LOCK_WAITS_PER_SESSION_MAX as u64 {
        locks.queue(FILE, owner(2), exclusive(0, 0), wait);
    }
    assert_eq!(locks.ask(FILE, owner(2), &[exclusive(0, 0)], Some(1 << 40)), Err(Error::NoLocks));
    locks.free(FILE, owner(1));
    locks.take(FILE, owner(4), exclusive(2, 2));
}

#[derive(Clone, Debug)]
enum Step {
    Ask { file: bool, number: u64, flock: bool, locks: Vec<RangeLock>, waits: bool },
    Unlock { file: bool, number: u64, flock: bool, range: LockRange },
    Cancel(usize),
    End(u64),
}

const BYTES: u64 = 6;

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..BYTES, 0..BYTES).prop_map(|(a, b)| LockRange { start: a.min(b), end: a.max(b) });
    let mode = prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)];
    let lock = (range(), mode).prop_map(|(range, mode)| RangeLock { range, mode });
    let locks = proptest::collection::vec(lock, 1..3);
    prop_oneof![
        6 => (any::<bool>(), 0..6u64, proptest::bool::weighted(0.2), locks, any::<bool>())
            .prop_map(|(file, number, flock, locks, waits)| Step::Ask { file, number, flock, locks, waits }),
        4 => (any::<bool>(), 0..6u64, proptest::bool::weighted(0.2), range())
            .prop_map(|(file, number, flock, range)| Step::Unlock { file, number, flock, range }),
        1 => (0..4usize).prop_map(Step::Cancel),
        1 => (0..3u64).prop_map(Step::End),
    ]
}

/// Each byte of each file by itself: which owners have it, in which mode.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(InodeNumber, u64), BTreeMap<Owner, LockMode>>,
    /// Requests that wait, in their order.
    queue: Vec<(u64, InodeNumber, Owner, Vec<RangeLock>)>,
}

impl Model {
    fn set(&mut self, inode: InodeNumber, owner: Owner, range: LockRange, mode: Option<LockMode>) {
        for byte in range.start..=range.end.min(BYTES) {
            let holders = self.bytes.entry((inode, byte)).or_default();
            match mode {
                Some(mode) => holders.insert(owner, mode),
                None => holders.remove(&owner),
            };
        }
    }

    fn is_free(&self, inode: InodeNumber, owner: Owner, locks: &[RangeLock]) -> bool {
        let in_way = |lock: &RangeLock| {
            (lock.range.start..=lock.range.end.min(BYTES)).any(|byte| {
                self.bytes.get(&(inode, byte)).into_iter().flatten().any(|(other, mode)| {
                    *other != owner && other.1.kind.meets(owner.1.kind) && mode.conflicts(lock.mode)
                })
            })
        };
        !locks.iter().any(in_way)
    }

    fn granted(&mut self, wait: u64) {
        let at = self.queue.iter().position(|waiting| waiting.0 == wait).expect("only what waits is granted");
        let (_, inode, owner, locks) = self.queue.remove(at);
        assert!(self.is_free(inode, owner, &locks), "granted to {owner:?} over another's lock");
        for lock in locks {
            self.set(inode, owner, lock.range, Some(lock.mode));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Against a model that has each byte: nothing is granted twice, nothing is lost, what can be granted is, and an
    /// owner that holds nothing overtakes nobody.
    #[test]
    fn random_locks_are_exclusive_fair_and_whole(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut locks, mut model) = (Locks::default(), Model::default());
        for (number, step) in steps.into_iter().enumerate() {
            let wait = number as u64;
            let inode = |file| if file { FILE } else { OTHER };
            let of = |number: u64, flock| if flock { of_kind(LockKind::Flock, number) } else { owner(number) };
            match step {
                Step::Ask { file, number, flock, locks: mut asked, waits } => {
                    let (inode, owner) = (inode(file), of(number, flock));
                    if flock {
                        asked.truncate(1);
                        asked[0].range = LockRange::ALL;
                        let held = model.bytes.get(&(inode, 0)).and_then(|holders| holders.get(&owner)).copied();
                        if held.is_some_and(|held| held != asked[0].mode) {
                            model.set(inode, owner, LockRange::ALL, None);
                        }
                    }
                    let answer = locks.ask(inode, owner, &asked, waits.then_some(wait));
                    // A conversion lets others in first.
                    let (granted, own): (Vec<_>, Vec<_>) =
                        locks.all_granted().into_iter().partition(|granted| *granted != wait);
                    if flock {
                        granted.iter().for_each(|wait| model.granted(*wait));
                    }
                    let is_free = model.is_free(inode, owner, &asked);
                    match answer {
                        Ok(LockAnswer::Granted) => {
                            prop_assert!(is_free);
                            asked.iter().for_each(|lock| model.set(inode, owner, lock.range, Some(lock.mode)));
                        }
                        Ok(LockAnswer::Queued) => model.queue.push((wait, inode, owner, asked)),
                        Err(Error::Deadlock) => prop_assert!(waits && !is_free),
                        Err(Error::WouldBlock) => prop_assert!(!waits),
                        other => panic!("{other:?}"),
                    }
                    if !flock {
                        granted.iter().for_each(|wait| model.granted(*wait));
                    }
                    own.iter().for_each(|wait| model.granted(*wait));
                }
                Step::Unlock { file, number, flock, range } => {
                    let (inode, owner) = (inode(file), of(number, flock));
                    let range = if flock { LockRange::ALL } else { range };
                    locks.unlock(inode, owner, &[range]).unwrap();
                    model.set(inode, owner, range, None);
                }
                Step::Cancel(index) => {
                    if let Some((wait, _, owner, _)) = model.queue.get(index).cloned() {
                        prop_assert!(locks.cancel(owner.0, wait));
                        model.queue.remove(index);
                    }
                }
                Step::End(session) => {
                    locks.drop_session(SessionId(session));
                    model.queue.retain(|waiting| waiting.2.0 != SessionId(session));
                    let lives = |owner: &Owner| owner.0 != SessionId(session);
                    model.bytes.values_mut().for_each(|holders| holders.retain(|owner, _| lives(owner)));
                }
            }
            locks.all_granted().into_iter().for_each(|wait| model.granted(wait));
            // Who is first and whose way is free waits no longer.
            for (at, (_, inode, owner, asked)) in model.queue.iter().enumerate() {
                let is_first = !model.queue[..at].iter().any(|earlier| earlier.1 == *inode);
                prop_assert!(!(is_first && model.is_free(*inode, *owner, asked)), "{owner:?} waits for nothing");
            }
        }
        for session in 0..3 {
            locks.drop_session(SessionId(session));
        }
        prop_assert_eq!(locks.counts(), (0, 0));
        prop_assert!(locks.files.is_empty() && locks.sessions.is_empty() && locks.holding.is_empty());
        prop_assert!(locks.waits_of.is_empty());
    }
}
