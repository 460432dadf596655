//! Large reads by RDMA, which are put from where the device has filled them: their bytes, what they cost, clients that
//! go away in the middle and a device that fails there. Where there is no UCX, or reads cannot be begun without
//! waiting, the tests say so and pass.

use super::sent::{FILE_BYTES, ROUNDS, contents, is_streamed, stored, unix};
use crate::executor::Moved;
use crate::rdma::{ClientMemory, Transfers};
use crate::region::tests::{BYTES, Ground, object, write};
use crate::store::{BlockObject, ObjectHandle, ObjectStore, Segment};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_protocol::data::BulkDescriptor;
use weft_protocol::{Error, InodeNumber};
use weft_transport::Socket;
use weft_ucx::{Lent, Library, Receiver, may_lock_files};

const LOOK: Duration = Duration::from_micros(50);
/// What one put has at most.
const PIECE: usize = 256 << 10;
/// Messages that fill the queues to a client.
const MESSAGES: usize = 500;
/// Rings of one device.
const RINGS: usize = 16;

/// Both ends of a connection.
struct Ends {
    receiver: Receiver,
    client: Socket,
    memory: ClientMemory,
    server: Socket,
}

impl Ends {
    fn connect() -> Self {
        let (client, server) = unix();
        let mut receiver = Receiver::new().unwrap();
        let memory = ClientMemory::open(&receiver.address().unwrap(), &server).unwrap();
        let (address, liveness) = memory.address().unwrap();
        receiver.connect(&address, liveness).unwrap();
        Self { receiver, client, memory, server }
    }

    /// Has the server do something with memory that is lent to it, while the client lets it.
    fn serve<T: Send>(
        &mut self,
        bytes: &mut [u8],
        act: impl FnOnce(&mut ClientMemory, &Socket, BulkDescriptor) -> T + Send,
    ) -> T {
        let Self { receiver, client, memory, server } = self;
        let lent = receiver.lend(bytes, |receiver, lent| {
            let shown = show(memory, server, lent);
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let acting = scope.spawn(|| {
                    // Also when `act` panics: this thread waits without an end.
                    let done = catch_unwind(AssertUnwindSafe(|| act(memory, server, shown)));
                    is_done.store(true, Ordering::Release);
                    server.send_all(b"!").unwrap();
                    done.unwrap_or_else(|panic| resume_unwind(panic))
                });
                let ended = || Ok(is_done.load(Ordering::Acquire).then_some(()));
                receiver.until(client.as_fd(), LOOK, ended).unwrap();
                client.receive_exact(&mut [0]).unwrap();
                Ok::<_, weft_ucx::Error>(acting.join().unwrap())
            })
        });
        lent.unwrap().unwrap()
    }
}

fn show(memory: &mut ClientMemory, server: &Socket, lent: &Lent) -> BulkDescriptor {
    let shown = BulkDescriptor { address: lent.address(), key: 3, memory_type: 0 };
    memory.show(server, shown, lent.bytes() as u64, &lent.packed_key().unwrap()).unwrap();
    shown
}

fn has_ucx() -> bool {
    let found = Library::get();
    match &found {
        Err(error) => println!("skipped: {error}"),
        Ok(_) if !may_lock_files() => println!("skipped: this process may not lock memory as it likes"),
        Ok(_) => return true,
    }
    false
}

fn segment(handle: &dyn ObjectHandle, offset: usize, bytes: usize) -> Segment<'_> {
    handle.read_plan(offset as u64, u32::try_from(bytes).unwrap()).unwrap().0
}

fn blocks(handle: &dyn ObjectHandle) -> &dyn BlockObject {
    let Segment::Blocks { object, .. } = segment(handle, 0, 1) else { panic!("no blocks") };
    object
}

/// Puts bytes of the file into memory that has as many and some more, which stay.
fn put(ends: &mut Ends, handle: &dyn ObjectHandle, offset: usize, bytes: usize) -> (Moved, Vec<u8>, Transfers) {
    let mut found = vec![9; bytes + 100];
    let moved = ends.serve(&mut found, |memory, server, shown| {
        let shown = BulkDescriptor { address: shown.address + 50, ..shown };
        memory.put(server, segment(handle, offset, bytes), None, shown).unwrap()
    });
    assert!(found[..50] == [9; 50] && found[bytes + 50..] == [9; 50], "{offset}, {bytes}: nothing beside them");
    (moved, found[50..bytes + 50].to_vec(), ends.memory.take_transfers())
}

#[test]
fn large_reads_are_put_from_where_the_device_has_filled_them() {
    let ground = Ground::new("put");
    let (_store, handle) = stored(&ground);
    if !has_ucx() || !is_streamed(&*handle) {
        return;
    }
    let (mut ends, contents) = (Ends::connect(), contents());
    for (offset, bytes) in [
        (0, 4 << 20),
        (4097, 5 << 20),
        (1, PIECE + 1),
        (4095, PIECE + 1),
        (777, FILE_BYTES - 777),
        (9, 70_000),
        (0, PIECE),
        (3, 60_000),
    ] {
        let (moved, found, transfers) = put(&mut ends, &*handle, offset, bytes);
        assert!(matches!(moved, Moved::Done) && found == contents[offset..offset + bytes], "{offset}, {bytes}");
        let is_large = bytes >= 64 << 10;
        let puts = if is_large { (offset % 4096 + bytes).div_ceil(PIECE) } else { 1 };
        let streamed_bytes = if is_large { bytes as u64 } else { 0 };
        let expected = Transfers { puts: puts as u64, flushes: 1, streamed_bytes, ..Transfers::default() };
        assert_eq!(transfers, expected, "{offset}, {bytes}");
    }
}

#[test]
fn a_device_that_fails_in_the_middle_is_told_and_nothing_is_on_its_way_then() {
    let ground = Ground::new("put-failing");
    let (_store, handle) = stored(&ground);
    if !has_ucx() || !is_streamed(&*handle) {
        return;
    }
    let (mut ends, contents) = (Ends::connect(), contents());
    let file = std::fs::OpenOptions::new().write(true).open(&ground.0).unwrap();
    let mut found = vec![9; FILE_BYTES];
    for round in 0..ROUNDS {
        file.set_len(BYTES / 4).unwrap();
        let moved = ends.serve(&mut found, |memory, server, shown| {
            memory.put(server, segment(&*handle, round, FILE_BYTES - round), None, shown).unwrap()
        });
        assert!(matches!(moved, Moved::Failed(Error::Device(_))), "round {round}");
        assert!(ends.memory.take_transfers().streamed_bytes >= 1 << 20, "round {round}: in the middle");
        // The memory is the client's again.
        found.fill(9);
        file.set_len(BYTES).unwrap();
        let (moved, after, _) = put(&mut ends, &*handle, round, 1 << 20);
        assert!(matches!(moved, Moved::Done) && after == contents[round..round + (1 << 20)], "round {round}");
        assert!(found.iter().all(|byte| *byte == 9), "round {round}: what was refused comes no more");
    }
    assert!(is_streamed(&*handle), "all memory came back");
}

/// What is put to a client that takes nothing any more is nobody else's before the way to it is gone.
#[test]
fn clients_that_go_away_in_the_middle_keep_their_slots_until_nothing_can_be_on_its_way() {
    let ground = Ground::new("put-gone");
    let (_store, handle) = stored(&ground);
    if !has_ucx() || !is_streamed(&*handle) {
        return;
    }
    let (contents, mut gone) = (contents(), Vec::new());
    for round in 0..RINGS + 3 {
        let Ends { mut receiver, client, mut memory, server } = {
            let mut ends = Ends::connect();
            ends.serve(&mut [1; 8], |memory, server, shown| memory.probe(server, shown).unwrap());
            ends
        };
        let is_free = blocks(&*handle).stream(0, 1 << 20).is_some();
        assert_eq!(is_free, round < RINGS, "round {round}: rings whose memory is put from are given to nobody");
        let mut found = vec![0; FILE_BYTES];
        let ended = receiver.lend(&mut found, |_, lent| {
            let shown = show(&mut memory, &server, lent);
            drop(client);
            let put = memory.put(&server, segment(&*handle, round, FILE_BYTES - round), None, shown);
            assert!(put.is_err(), "round {round}");
            Err::<(), _>(weft_ucx::Error::PeerGone)
        });
        assert!(ended.unwrap().is_err());
        gone.push(memory);
    }
    // Others read without.
    let (mut ends, bytes) = (Ends::connect(), 3 << 20);
    let (moved, found, transfers) = put(&mut ends, &*handle, 5, bytes);
    assert!(matches!(moved, Moved::Done) && found == contents[5..bytes + 5] && transfers.streamed_bytes == 0);
    drop(gone);
    let streams: Vec<_> = (0..RINGS).map_while(|_| blocks(&*handle).stream(0, 1 << 20)).collect();
    assert_eq!(streams.len(), RINGS, "all memory came back");
    drop(streams);
    let (moved, found, transfers) = put(&mut ends, &*handle, 5, bytes);
    assert!(matches!(moved, Moved::Done) && found == contents[5..bytes + 5]);
    assert_eq!(transfers.streamed_bytes, bytes as u64);
}

#[test]
fn a_client_that_lets_nothing_through_keeps_nobody_from_blocks_that_are_free() {
    let ground = Ground::new("put-slow");
    let (store, handle) = stored(&ground);
    if !has_ucx() {
        return;
    }
    let mut ends = Ends::connect();
    ends.serve(&mut [1; 8], |memory, server, shown| memory.probe(server, shown).unwrap());
    let Ends { mut receiver, client, mut memory, server } = ends;
    let mut found = vec![0; FILE_BYTES];
    let ended = receiver.lend(&mut found, |_, lent| {
        let shown = show(&mut memory, &server, lent);
        // The queues to it are full: not even the first put ends, and reads are on their way when that is waited for.
        (0..MESSAGES).for_each(|_| memory.tell(&[0; 1000]).unwrap());
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| memory.put(&server, segment(&*handle, 0, FILE_BYTES), None, shown));
            // It is in the midst of it, and waits for the client, or soon will.
            let other = store.open(InodeNumber::ROOT, object(2), true).unwrap();
            for _ in 0..20 {
                write(&*other, 0, &[9; 1 << 20]).unwrap();
                other.truncate(0).unwrap();
                store.settle();
            }
            assert!(!putting.is_finished(), "the client has not taken all of it");
            drop(client);
            assert!(putting.join().unwrap().is_err());
        });
        Err::<(), _>(weft_ucx::Error::PeerGone)
    });
    assert!(ended.unwrap().is_err());
}
