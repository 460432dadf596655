//! A client and a node that both have much to say on one data connection: neither may wait for the other to read.
//!
//! The stores have a cap, so that no descriptor for writing is passed and each write is a request.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use weft_client::protocol::message::shard::Access;
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, open};

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
