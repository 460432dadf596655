//! Large reads that go out while further pieces of them come: by every kind of stream, to clients that go away or take
//! nothing, and from a device that fails in the middle.

use crate::blocks::Loans;
use crate::executor::{Moved, Pipe};
use crate::region::RegionStore;
use crate::region::tests::{BYTES, Ground, object, write};
use crate::store::{ObjectHandle, ObjectStore, Segment};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weft_protocol::{Error, InodeNumber};
use weft_transport::Socket;

pub(super) const FILE_BYTES: usize = 16 << 20;
/// More than there are rings for one device.
pub(super) const ROUNDS: usize = 40;
const HEADER: &[u8] = b"header";

pub(super) fn contents() -> Vec<u8> {
    (0..FILE_BYTES).map(|at| u8::try_from((at * 31 + (at >> 12)) % 251).unwrap()).collect()
}

/// A file in a store of its own, which has it at the device.
pub(super) fn stored(ground: &Ground) -> (RegionStore, Arc<dyn ObjectHandle>) {
    let store = ground.store();
    let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
    contents().chunks(1 << 20).zip(0..).for_each(|(bytes, number)| write(&*handle, number << 20, bytes).unwrap());
    handle.sync().unwrap();
    (store, handle)
}

pub(super) fn unix() -> (Socket, Socket) {
    let (client, server) = UnixStream::pair().unwrap();
    (Socket::from_unix(client), Socket::from_unix(server))
}

fn tcp() -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (Socket::from_tcp(client).unwrap(), Socket::from_tcp(server).unwrap())
}

fn send(handle: &dyn ObjectHandle, server: &Socket, offset: usize, bytes: usize) -> weft_transport::Result<Moved> {
    let (segment, _) = handle.read_plan(offset as u64, u32::try_from(bytes).unwrap()).unwrap();
    Pipe::new().send(server, HEADER, segment)
}

/// Whether large reads of it go out while they come. `false`: the kernel cannot do so here.
pub(super) fn is_streamed(handle: &dyn ObjectHandle) -> bool {
    let Segment::Blocks { object, .. } = handle.read_plan(0, 1 << 20).unwrap().0 else { panic!("no blocks") };
    let is_streamed = object.stream(0, 1 << 20).is_some();
    if !is_streamed {
        println!("skipped: the kernel reads this file only when it is waited for");
    }
    is_streamed
}

#[test]
fn bytes_are_in_order_by_every_stream() {
    let ground = Ground::new("sent");
    let (_store, handle) = stored(&ground);
    let contents = contents();
    for (offset, bytes) in [(0, 1 << 20), (4097, 5 << 20), (1, (256 << 10) + 1), (777, FILE_BYTES - 777), (9, 70_000)] {
        for (client, server) in [unix(), tcp()] {
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| send(&*handle, &server, offset, bytes));
                let mut found = vec![0; HEADER.len() + bytes];
                client.receive_exact(&mut found).unwrap();
                assert!(&found[..HEADER.len()] == HEADER, "{offset}, {bytes}");
                assert!(found[HEADER.len()..] == contents[offset..offset + bytes], "{offset}, {bytes}");
                assert!(matches!(sent.join().unwrap(), Ok(Moved::Done)));
            });
        }
    }
}

#[test]
fn whether_a_read_is_streamed_or_lent_is_known_without_a_stream() {
    let ground = Ground::new("known");
    let (_store, handle) = stored(&ground);
    if !is_streamed(&*handle) {
        return;
    }
    let Segment::Blocks { object, .. } = handle.read_plan(0, 1 << 20).unwrap().0 else { panic!("no blocks") };
    let (mut loans, mut streams) = (Loans::new().unwrap(), Vec::new());
    assert_eq!(loans.lend(object, 0, 1 << 20), Ok(None), "it is better sent");
    assert!(!object.streams(u64::MAX, 1), "the first part has no such bytes");
    loop {
        let is_known = object.streams(0, 1 << 20);
        let stream = object.stream(0, 1 << 20);
        assert_eq!(is_known, stream.is_some(), "beside {} streams", streams.len());
        let Some(stream) = stream else { break };
        streams.push(stream);
    }
    assert!(loans.lend(object, 0, 1 << 20).unwrap().is_some());
    loans.take_back();
    drop(streams);
    assert_eq!(loans.lend(object, 0, 1 << 20), Ok(None), "the rings came back");
}

#[test]
fn clients_that_go_away_in_the_middle_take_nothing_with_them() {
    let ground = Ground::new("gone");
    let (store, handle) = stored(&ground);
    if !is_streamed(&*handle) {
        return;
    }
    for round in 0..ROUNDS {
        for (client, server) in [unix(), tcp()] {
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| send(&*handle, &server, round, 15 << 20));
                client.receive_exact(&mut vec![0; round * 10_000]).unwrap();
                drop(client);
                assert!(sent.join().unwrap().is_err(), "round {round}");
            });
        }
    }
    assert!(is_streamed(&*handle), "all memory came back");
    assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
    store.settle();
    assert_eq!(store.space().unwrap().objects, 0);
}

#[test]
fn a_device_that_fails_in_the_middle_breaks_the_connection_behind_what_it_had() {
    let ground = Ground::new("failing");
    let (_store, handle) = stored(&ground);
    if !is_streamed(&*handle) {
        return;
    }
    let (contents, file) = (contents(), std::fs::OpenOptions::new().write(true).open(&ground.0).unwrap());
    file.set_len(BYTES / 4).unwrap();
    for round in 0..ROUNDS {
        let (client, server) = if round % 2 == 0 { unix() } else { tcp() };
        std::thread::scope(|scope| {
            let handle = &*handle;
            let sent = scope.spawn(move || send(handle, &server, 0, FILE_BYTES));
            let (mut found, mut have) = (vec![0; FILE_BYTES], 0);
            client.receive_exact(&mut [0; HEADER.len()]).unwrap();
            while let Ok(count) = client.receive_some(&mut found[have..]) {
                have += count;
            }
            assert!(sent.join().unwrap().is_err(), "round {round}");
            assert!(have >= 1 << 20 && found[..have] == contents[..have], "round {round}: {have} bytes");
        });
        // Where not even the first piece can be read, nothing was sent.
        let (_client, server) = unix();
        let refused = send(&*handle, &server, FILE_BYTES - (1 << 20), 1 << 20);
        assert!(matches!(refused, Ok(Moved::Failed(Error::Device(_)))), "round {round}");
    }
    assert!(is_streamed(&*handle), "all memory came back");
    file.set_len(BYTES).unwrap();
}

#[test]
fn a_client_that_takes_nothing_keeps_nobody_from_blocks_that_are_free() {
    let ground = Ground::new("slow");
    let (store, handle) = stored(&ground);
    let free = store.space().unwrap().free;
    for (client, server) in [unix(), tcp()] {
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send(&*handle, &server, 0, FILE_BYTES));
            client.receive_exact(&mut vec![0; HEADER.len() + 1]).unwrap();
            // It is in the midst of it, and waits for the client, or soon will.
            let other = store.open(InodeNumber::ROOT, object(2), true).unwrap();
            for _ in 0..10 {
                write(&*other, 0, &[9; 1 << 20]).unwrap();
                other.truncate(0).unwrap();
                store.settle();
            }
            assert!(!sent.is_finished(), "the client has not taken all of it");
            assert_eq!(store.remove(InodeNumber::ROOT, object(2)), Ok(true));
            store.settle();
            drop(client);
            assert!(sent.join().unwrap().is_err());
        });
        assert!(store.space().unwrap().free >= free - (1 << 20));
    }
}
