//! A client and a node that both have much to say on one data connection: neither may wait for the other to read.
//!
//! The stores have a cap, so that no descriptor for writing is passed and each write is a request.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use weft_client::protocol::data::{DataOperation, DataRequest};
use weft_client::protocol::handshake::{KeyName, Purpose};
use weft_client::protocol::message::node::{NodeAnswer, NodeRequest, RequestInFlight};
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{NodeId, SessionId, UserKey};
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, open};
use weft_transport::{Peer, Socket, connect};

weft_tests::with_each_store!(tiny_scattered_writes_do_not_block_client_and_node_in_each_other);

const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const THREADS: usize = 4;
/// Replies to so many writes fit no socket buffer.
const WRITES_PER_THREAD: usize = 20_000;
/// Bytes from one write to the next: none continues the one before.
const STRIDE: usize = 64;
const WORD: usize = 8;
/// What takes longer hangs. It takes about a second.
const DEADLINE: Duration = Duration::from_secs(40);

fn word(index: usize) -> [u8; WORD] {
    (index as u64 + 1).to_le_bytes()
}

/// Each thread writes every fourth word, all through one handle.
fn scatter(client: &Client) {
    let file = open(client, "file", BOTH);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                for index in (thread..THREADS * WRITES_PER_THREAD).step_by(THREADS) {
                    file.write_at(&word(index), (index * STRIDE) as u64).unwrap();
                }
            });
        }
    });
    file.flush().unwrap();
    expect_words(&file);
    file.close().unwrap();
}

fn expect_words(file: &File) {
    let mut found = vec![0; THREADS * WRITES_PER_THREAD * STRIDE];
    let count = file.read_at(&mut found, 0).unwrap();
    assert_eq!(count, found.len() - STRIDE + WORD);
    for (index, bytes) in found.chunks(STRIDE).enumerate() {
        assert!(bytes[..WORD] == word(index) && bytes[WORD..].iter().all(|byte| *byte == 0), "word {index}");
    }
}

fn tiny_scattered_writes_do_not_block_client_and_node_in_each_other(stored: Stored) {
    for way in [Way::Unix, Way::Tcp] {
        let store_bytes = Some(1 << 30);
        let fs = Arc::new(FileSystem::start(Wanted { nodes: 1, stored, store_bytes, ..Wanted::default() }));
        let (ended, end) = channel();
        let others = Arc::clone(&fs);
        let writing = std::thread::spawn(move || {
            let client = others.client(way);
            scatter(&client);
            client.close().unwrap();
            drop(others);
            ended.send(()).unwrap();
        });
        match end.recv_timeout(DEADLINE) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => writing.join().unwrap(),
            Err(RecvTimeoutError::Timeout) => panic!("{way:?}: client and node wait for each other"),
        }
    }
}

/// Waits until `weft debug stuck` shows a request with these words.
fn stuck(client: &Client, request: &str, state: &str) -> RequestInFlight {
    let end = Instant::now() + DEADLINE;
    loop {
        let answer = client.node_request(NodeId(0), NodeRequest::Stuck).unwrap();
        let NodeAnswer::InFlight(requests) = answer else { panic!("{answer:?}") };
        let is_wanted = |one: &&RequestInFlight| one.request.starts_with(request) && one.state == state;
        if let Some(found) = requests.iter().find(is_wanted) {
            return found.clone();
        }
        assert!(Instant::now() < end, "no {request} waits for {state}: {requests:?}");
        std::thread::yield_now();
    }
}

#[test]
fn data_requests_that_wait_for_their_client_are_shown() {
    let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
    let asking = fs.client(Way::Unix);
    let client = fs.client(Way::Unix);
    let file = open(&client, "file", BOTH);
    file.write_at(&vec![1; 64 << 20], 0).unwrap();
    file.flush().unwrap();
    // More is asked for ahead than the socket holds, and nobody takes it.
    let mut buffer = vec![0; 1 << 20];
    for piece in 0..4 {
        file.read_at(&mut buffer, piece << 20).unwrap();
    }
    let shown = stuck(&asking, "read", "socket: send to a client that does not read");
    assert!(shown.request.contains(&format!("inode {}", file.inode())), "{shown:?}");
    let older = || stuck(&asking, "read", "socket: send to a client that does not read").age_ms;
    let end = Instant::now() + DEADLINE;
    while older() < shown.age_ms + 50 {
        assert!(Instant::now() < end, "it grows older");
    }

    // A write of which only the header has come.
    let record = &fs.instance.map.nodes[0];
    let socket = Socket::connect_tcp(&record.address.tcp).unwrap();
    let (session, identity) = (SessionId(7), record.identity);
    let peer = Peer { key_name: KeyName::Owner, purpose: Purpose::Data, session, identity };
    connect(&socket, &peer, &UserKey::derive(&fs.key, &KeyName::Owner)).unwrap();
    socket.send_all(&DataRequest::about_nothing(DataOperation::Write, 1000).encode()).unwrap();
    let shown = stuck(&asking, "write 1000 bytes at 0", "socket: receive the rest from the client");
    assert_eq!(shown.peer, format!("owner, session {session}"));
}
