//! Advisory locks between clients of real nodes.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::limits::SESSION_TERM_MS;
use weft_client::protocol::lock::LOCK_END;
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{Error, InodeNumber, LockMode, LockRange, Name, NodeId, RangeLock};
use weft_client::{File, OpenOptions, Way};
use weft_tests::{FileSystem, Stuck, Wanted, open};

const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const LONG: Duration = Duration::from_secs(20);

fn exclusive(start: u64, end: u64) -> RangeLock {
    RangeLock { range: LockRange { start, end }, mode: LockMode::Exclusive }
}

fn shared(start: u64, end: u64) -> RangeLock {
    RangeLock { range: LockRange { start, end }, mode: LockMode::Shared }
}

fn unlock_all(file: &File) {
    file.unlock(&[LockRange::ALL]).unwrap();
}

#[test]
fn a_lock_of_a_shared_file_costs_one_message_and_is_in_the_way_of_other_clients() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let (file, other) = (open(&a, "f", BOTH), open(&b, "f", BOTH));
    let same = open(&a, "f", BOTH);
    let calls = a.counters().shard_calls;
    file.try_lock(&[exclusive(0, 9), shared(20, LOCK_END)]).unwrap();
    assert_eq!(a.counters().shard_calls, calls + 1);
    for held in [&other, &same] {
        assert_eq!(held.try_lock(&[exclusive(30, 30)]), Err(Error::WouldBlock));
        assert_eq!(held.try_lock(&[exclusive(12, 12), shared(9, 9)]), Err(Error::WouldBlock));
        held.try_lock(&[exclusive(10, 19), shared(100, 200)]).unwrap();
        unlock_all(held);
    }
    let in_way = other.test_lock(exclusive(5, 100)).unwrap().unwrap();
    assert_eq!((in_way.lock, in_way.pid), (exclusive(0, 9), 0));
    assert_eq!(same.test_lock(shared(20, 30)).unwrap(), None);
    let calls = a.counters().shard_calls;
    unlock_all(&file);
    assert_eq!(a.counters().shard_calls, calls + 1);
    unlock_all(&file);
    assert_eq!(a.counters().shard_calls, calls + 1, "who holds nothing asks nobody");
    other.try_lock(&[exclusive(0, LOCK_END)]).unwrap();
    other.close().unwrap();
    file.lock(&[exclusive(0, LOCK_END)]).unwrap();
    assert_eq!(file.try_lock(&[exclusive(1, 0)]), Err(Error::Invalid));
}

#[test]
fn locks_of_a_file_that_one_client_uses_cost_no_message_until_another_opens_it() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let (file, same) = (open(&a, "f", BOTH), open(&a, "f", BOTH));
    let calls = a.counters().shard_calls;
    for _ in 0..100 {
        file.try_lock(&[exclusive(0, 9), shared(20, LOCK_END)]).unwrap();
        assert_eq!(same.try_lock(&[shared(0, 0)]), Err(Error::WouldBlock));
        assert_eq!(same.test_lock(exclusive(5, 100)).unwrap().map(|held| held.lock), Some(exclusive(0, 9)));
        same.lock(&[exclusive(10, 19), shared(30, 30)]).unwrap();
        file.unlock(&[LockRange { start: 0, end: 4 }]).unwrap();
        same.lock(&[exclusive(0, 4)]).unwrap();
        unlock_all(&same);
    }
    assert_eq!(file.try_lock(&[exclusive(1, 0)]), Err(Error::Invalid));
    assert_eq!(a.counters().shard_calls, calls);
    let other = open(&b, "f", BOTH);
    let in_way = other.test_lock(exclusive(0, 100)).unwrap().unwrap();
    assert_eq!(in_way.lock, exclusive(5, 9), "the shard was told of it");
    assert_eq!(other.try_lock(&[exclusive(30, 30)]), Err(Error::WouldBlock));
    other.try_lock(&[exclusive(0, 4)]).unwrap();
    assert_eq!(same.try_lock(&[shared(0, 0)]), Err(Error::WouldBlock));
    unlock_all(&file);
    other.try_lock(&[exclusive(0, LOCK_END)]).unwrap();
    assert_eq!(file.try_lock(&[shared(7, 7)]), Err(Error::WouldBlock));
}

#[test]
fn a_lock_that_has_to_wait_waits_at_the_shard_behind_those_that_were_kept() {
    let fs = FileSystem::start(Wanted::default());
    let a = fs.client(Way::Auto);
    let (file, same, third) = (open(&a, "f", BOTH), open(&a, "f", BOTH), open(&a, "f", BOTH));
    file.lock(&[exclusive(0, 9)]).unwrap();
    let wait = same.begin_lock(&[exclusive(5, 15)]).unwrap();
    assert_eq!(wait.wait_for(Duration::from_millis(100)), None);
    assert_eq!(third.try_lock(&[shared(15, 15)]), Err(Error::WouldBlock), "who waits is not overtaken");
    third.try_lock(&[shared(16, 16)]).unwrap();
    unlock_all(&file);
    assert_eq!(wait.wait_for(LONG), Some(Ok(())));
    unlock_all(&same);
    unlock_all(&third);
    let calls = a.counters().shard_calls;
    file.lock(&[exclusive(0, 9)]).unwrap();
    unlock_all(&file);
    assert_eq!(a.counters().shard_calls, calls, "it is kept here again");
}

#[test]
fn many_waiting_locks_hold_up_no_other_call_and_are_granted_in_their_order() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&a, "f", BOTH);
    file.lock(&[exclusive(0, 0)]).unwrap();
    // More than the client has slots.
    let waiting: Vec<File> = (0..100).map(|_| open(&b, "f", BOTH)).collect();
    let (done, granted) = channel();
    let waits: Vec<_> = waiting.iter().map(|file| file.begin_lock(&[exclusive(0, 0)]).unwrap()).collect();
    let threads: Vec<_> = waits
        .into_iter()
        .zip(waiting)
        .enumerate()
        .map(|(number, (wait, file))| {
            let done = done.clone();
            thread::spawn(move || {
                wait.wait().unwrap();
                done.send(number).unwrap();
                unlock_all(&file);
            })
        })
        .collect();
    assert_eq!(granted.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    for number in 0..100 {
        open(&b, &format!("other{number}"), BOTH).close().unwrap();
    }
    unlock_all(&file);
    let order: Vec<usize> = (0..100).map(|_| granted.recv_timeout(LONG).unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_wait_for_a_lock_can_be_given_up() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let (file, other, third) = (open(&a, "f", BOTH), open(&b, "f", BOTH), open(&b, "f", BOTH));
    file.lock(&[exclusive(0, 9)]).unwrap();
    let wait = Arc::new(other.begin_lock(&[exclusive(5, 5)]).unwrap());
    let waiting = {
        let wait = Arc::clone(&wait);
        thread::spawn(move || wait.wait())
    };
    let behind = third.begin_lock(&[exclusive(5, 15)]).unwrap();
    wait.cancel();
    assert_eq!(waiting.join().unwrap(), Err(Error::Interrupted));
    unlock_all(&file);
    behind.wait().unwrap();
    behind.cancel();
    assert_eq!(file.try_lock(&[exclusive(15, 15)]), Err(Error::WouldBlock), "what was granted is not given up");
    let dropped = file.begin_lock(&[exclusive(0, 20)]).unwrap();
    drop(dropped);
    unlock_all(&third);
    other.try_lock(&[exclusive(0, 20)]).unwrap();
}

#[test]
fn a_wait_at_a_node_that_is_gone_ends() {
    let mut fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let (file, other) = (open(&a, "f", BOTH), open(&b, "f", BOTH));
    file.lock(&[exclusive(0, 9)]).unwrap();
    let wait = other.begin_lock(&[exclusive(5, 5)]).unwrap();
    fs.stop_node(NodeId(0));
    let (ended, result) = channel();
    let waiting = thread::spawn(move || ended.send(wait.wait()));
    assert_eq!(result.recv_timeout(LONG), Ok(Err(Error::Unreachable)));
    waiting.join().unwrap().unwrap();
}

#[test]
fn who_loses_a_lock_with_its_session_is_told_until_it_unlocks() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let (stuck, other, me) = (fs.client(Way::Tcp), fs.client(Way::Tcp), FileSystem::me());
    let held = Stuck::new(&stuck);
    let (file, beside) = (open(&stuck, "f", BOTH), open(&stuck, "f", BOTH));
    file.write_at(b"mine", 0).unwrap();
    file.flush().unwrap();
    file.lock(&[exclusive(0, 9)]).unwrap();
    open(&other, "recalled", OpenOptions::WRITE).close().unwrap();
    stuck.lookup(&me, InodeNumber::ROOT, &Name::new(b"recalled").unwrap()).unwrap();
    let theirs = open(&other, "f", BOTH);
    let since = Instant::now();
    let unlink = {
        let (other, me) = (other.clone(), me.clone());
        thread::spawn(move || other.unlink(&me, InodeNumber::ROOT, &Name::new(b"recalled").unwrap()))
    };
    theirs.lock(&[exclusive(0, 9)]).unwrap();
    // A term without an answer to the recall, and the term that was left.
    assert!(since.elapsed() > Duration::from_millis(SESSION_TERM_MS * 3 / 2), "{:?}", since.elapsed());
    unlink.join().unwrap().unwrap();
    held.release();
    let end = Instant::now() + LONG;
    while file.read_at(&mut [0; 4], 0).is_ok() {
        assert!(Instant::now() < end, "it reads on as if it had the lock");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(file.write_at(b"late", 0), Err(Error::SessionEnded));
    assert_eq!(file.try_lock(&[exclusive(20, 20)]).unwrap_err().to_errno(), 5);
    assert_eq!(beside.read_at(&mut [0; 4], 0), Ok(4), "it locked nothing");
    assert_eq!(file.unlock(&[LockRange::ALL]), Err(Error::SessionEnded));
    assert_eq!(file.read_at(&mut [0; 4], 0), Ok(4));
    assert_eq!(file.try_lock(&[exclusive(9, 9)]), Err(Error::WouldBlock));
    unlock_all(&theirs);
    file.try_lock(&[exclusive(9, 9)]).unwrap();
}
