//! Reading in sequence: what is asked for ahead, by each way, and what becomes of it when the reader jumps, the file
//! changes or the connection dies. Writing in sequence: what is sent behind the writer.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_client::{Client, File, OpenOptions, Way};
use weft_protocol::message::node::Counters;
use weft_tests::{FileSystem, Proxy, Stored, Wanted, open, pattern, status};

const DIRECT: OpenOptions = OpenOptions { direct: true, ..OpenOptions::READ };
const CHANGE: OpenOptions = OpenOptions { truncate: false, ..OpenOptions::WRITE };
/// Bytes at both ends of the file, and of the hole between.
const PART: usize = (2 << 20) + 1234;
const HOLE: usize = (1 << 20) + 77;

weft_tests::with_each_store!(
    a_sequential_reader_gets_every_byte_by_every_way,
    readers_may_jump_and_overtake_each_other,
    what_was_asked_for_ahead_is_forgotten_when_another_changes_the_file,
    what_is_at_hand_is_forgotten_when_this_client_changes_the_file,
    a_reader_goes_on_when_its_connection_dies,
    a_direct_reader_gets_the_same_and_nothing_is_asked_for_ahead,
    a_writer_loses_nothing_when_its_connection_dies,
);

/// Two parts with a hole between, and one behind them, that the object does not have.
fn make(client: &Client) -> Vec<u8> {
    let file = open(client, "file", OpenOptions::WRITE);
    file.write_at(&pattern(PART, 1), 0).unwrap();
    file.write_at(&pattern(PART, 2), (PART + HOLE) as u64).unwrap();
    file.truncate((2 * PART + 2 * HOLE) as u64).unwrap();
    file.close().unwrap();
    [pattern(PART, 1), vec![0; HOLE], pattern(PART, 2), vec![0; HOLE]].concat()
}

fn read(file: &File, offset: usize, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![9; bytes];
    let count = file.read_at(&mut buffer, offset as u64).unwrap();
    buffer.truncate(count);
    buffer
}

/// What was read from the node since, by TCP and Unix sockets. A node counts a reply's bytes when they are sent,
/// so that a reader may be a little ahead of it.
fn read_since(client: &Client, before: &Counters, all: usize) -> (u64, u64) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = status(client).counters;
        let tcp = now.read_tcp_bytes - before.read_tcp_bytes;
        let unix = now.read_unix_bytes - before.read_unix_bytes;
        if tcp + unix >= all as u64 || Instant::now() > end {
            return (tcp, unix);
        }
    }
}

fn one_node(stored: Stored) -> FileSystem {
    FileSystem::start(Wanted { stored, nodes: 1, ..Wanted::default() })
}

fn a_sequential_reader_gets_every_byte_by_every_way(stored: Stored) {
    let fs = one_node(stored);
    let writer = fs.client(Way::Unix);
    let expected = make(&writer);
    for way in [Way::Tcp, Way::Stream, Way::Unix] {
        let before = status(&writer).counters;
        for request in [4096, 5000, 70_001, 1 << 20, (3 << 20) + 5] {
            // A client of its own: nothing is known or on its way.
            let client = fs.client(way);
            let file = open(&client, "file", OpenOptions::READ);
            let mut offset = 0;
            while offset < expected.len() {
                let found = read(&file, offset, request);
                let end = (offset + request).min(expected.len());
                assert!(found == expected[offset..end], "{way:?}, {request} at {offset}");
                offset += found.len();
            }
            assert!(read(&file, offset, request).is_empty(), "the file has ended");
            file.close().unwrap();
            client.close().unwrap();
        }
        let object = 5 * expected.len() as u64;
        let read = read_since(&writer, &before, 5 * expected.len());
        assert_eq!(read, if way == Way::Tcp { (object, 0) } else { (0, object) }, "{way:?}");
    }
    writer.close().unwrap();
}

fn readers_may_jump_and_overtake_each_other(stored: Stored) {
    let fs = one_node(stored);
    let writer = fs.client(Way::Unix);
    let expected = make(&writer);
    for way in [Way::Tcp, Way::Unix] {
        let client = fs.client(way);
        let file = open(&client, "file", OpenOptions::READ);
        // Runs of requests from anywhere, of any length.
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        };
        for _ in 0..60 {
            let mut offset = if random(4) == 0 { 0 } else { random(expected.len()) };
            for _ in 0..=random(8) {
                let most = [100, 20_000, 300_000, 2 << 20][random(4)];
                let bytes = 1 + random(most);
                let end = (offset + bytes).min(expected.len());
                assert!(read(&file, offset, bytes) == expected[offset..end], "{way:?}, {bytes} at {offset}");
                // A little is left out, or read again.
                offset = (end + random(3) * 5000).saturating_sub(5000).min(expected.len());
            }
        }
        // Threads with one handle, as a kernel reads ahead: each takes the next piece.
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let offset = usize::try_from(next.fetch_add(50_000, Ordering::Relaxed)).unwrap();
                        if offset >= expected.len() {
                            break;
                        }
                        let end = (offset + 50_000).min(expected.len());
                        assert!(read(&file, offset, 50_000) == expected[offset..end], "{way:?} at {offset}");
                    }
                });
            }
        });
        file.close().unwrap();
        client.close().unwrap();
    }
    writer.close().unwrap();
}

fn what_was_asked_for_ahead_is_forgotten_when_another_changes_the_file(stored: Stored) {
    let fs = one_node(stored);
    let other = fs.client(Way::Tcp);
    let mut expected = make(&other);
    for way in [Way::Tcp, Way::Unix] {
        let client = fs.client(way);
        let file = open(&client, "file", OpenOptions::READ);
        assert!(read(&file, 0, 50_000) == expected[..50_000]);
        assert!(read(&file, 50_000, 5000) == expected[50_000..55_000]);
        let writing = open(&other, "file", CHANGE);
        let changed = pattern(100_000, 5);
        writing.write_at(&changed, 55_000).unwrap();
        writing.close().unwrap();
        expected[55_000..155_000].copy_from_slice(&changed);
        // By a request that is small enough to be served from what is at hand, and a larger one.
        assert!(read(&file, 55_000, 5000) == expected[55_000..60_000], "{way:?}, at hand");
        assert!(read(&file, 60_000, 395_000) == expected[60_000..455_000], "{way:?}");
        let writing = open(&other, "file", CHANGE);
        writing.truncate(500_000).unwrap();
        writing.close().unwrap();
        expected.truncate(500_000);
        assert!(read(&file, 455_000, 400_000) == expected[455_000..], "{way:?}, cut");
        file.close().unwrap();
        client.close().unwrap();
        expected = make(&other);
    }
    other.close().unwrap();
}

fn what_is_at_hand_is_forgotten_when_this_client_changes_the_file(stored: Stored) {
    let fs = one_node(stored);
    for way in [Way::Auto, Way::Unix, Way::Tcp] {
        let client = fs.client(way);
        let mut expected = make(&client);
        let (reading, writing) = (open(&client, "file", OpenOptions::READ), open(&client, "file", CHANGE));
        for offset in (0..200_000).step_by(4000) {
            assert!(read(&reading, offset, 4000) == expected[offset..offset + 4000], "{way:?} at {offset}");
            // Into what was read ahead, gathered, or in place.
            let changed = pattern(if offset % 3 == 0 { 3000 } else { 20_000 }, offset);
            writing.write_at(&changed, offset as u64 + 5000).unwrap();
            expected[offset + 5000..offset + 5000 + changed.len()].copy_from_slice(&changed);
        }
        writing.truncate(210_000).unwrap();
        assert_eq!(read(&reading, 208_000, 4000).len(), 2000, "{way:?}");
        reading.close().unwrap();
        writing.close().unwrap();
        client.close().unwrap();
    }
}

fn a_reader_goes_on_when_its_connection_dies(stored: Stored) {
    let fs = one_node(stored);
    let expected = make(&fs.client(Way::Unix));
    let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
    let client = fs.client_behind(&proxy);
    let file = open(&client, "file", OpenOptions::READ);
    assert!(read(&file, 0, 100_000) == expected[..100_000]);
    proxy.hold_next_reply();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&file, 100_000, expected.len()));
        drop(proxy.held());
        assert!(reading.join().unwrap() == expected[100_000..]);
    });
    file.close().unwrap();
    client.close().unwrap();
}

fn a_direct_reader_gets_the_same_and_nothing_is_asked_for_ahead(stored: Stored) {
    let fs = one_node(stored);
    let writer = fs.client(Way::Unix);
    let expected = make(&writer);
    let before = status(&writer).counters;
    let client = fs.client(Way::Tcp);
    let file = open(&client, "file", DIRECT);
    for offset in [0, 10_000, 20_000, PART - 5, 2 * PART + HOLE - 5] {
        assert!(read(&file, offset, 10_000) == expected[offset..offset + 10_000], "{offset}");
    }
    assert_eq!(read_since(&writer, &before, 50_000), (50_000, 0));
    file.close().unwrap();
    client.close().unwrap();
    writer.close().unwrap();
}

fn a_writer_loses_nothing_when_its_connection_dies(stored: Stored) {
    let fs = one_node(stored);
    let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
    let client = fs.client_behind(&proxy);
    let file = open(&client, "file", OpenOptions::WRITE);
    let bytes = pattern(4 << 20, 1);
    let write = |range: std::ops::Range<usize>| {
        for offset in range.step_by(64 << 10) {
            file.write_at(&bytes[offset..offset + (64 << 10)], offset as u64).unwrap();
        }
    };
    write(0..1 << 20);
    file.flush().unwrap();
    proxy.hold_next_reply();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(1 << 20..bytes.len()));
        // Runs are on their way that the node has written, and has not.
        drop(proxy.held());
        writing.join().unwrap();
    });
    file.close().unwrap();
    client.close().unwrap();
    let other = fs.client(Way::Unix);
    assert!(read(&open(&other, "file", OpenOptions::READ), 0, bytes.len() + 1) == bytes);
    other.close().unwrap();
}
