//! Ranges of split files that one writer holds: what a write costs, and that others see each that was acknowledged.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{AttributeChanges, InodeNumber, Name, Plan};
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, contents, open, pattern, with_each_store};

with_each_store! {
    a_writer_that_nobody_watches_publishes_seldom,
    writers_of_segments_publish_seldom,
    a_reader_sees_each_acknowledged_write,
    strided_and_watched_writers_cost_a_call_per_write,
    a_cut_takes_what_was_written_before,
    handles_of_one_client_see_each_other,
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const RECORD: usize = 4096;

/// Clients of a file system of split files, and a handle of one file for each.
fn opened(stored: Stored, count: usize) -> (FileSystem, Vec<Client>, Vec<File>) {
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..count).map(|_| fs.client(Way::Auto)).collect();
    clients[0].set_directory_plan(&FileSystem::me(), ROOT, Plan::Split).unwrap();
    let files = clients.iter().map(|client| open(client, "f", BOTH)).collect();
    (fs, clients, files)
}

fn calls(client: &Client) -> u64 {
    client.counters().shard_calls
}

fn write(file: &File, record: usize) {
    file.write_at(&pattern(RECORD, record), (record * RECORD) as u64).unwrap();
}

fn read(file: &File, record: usize) -> Vec<u8> {
    let mut buffer = vec![0; RECORD];
    let count = file.read_at(&mut buffer, (record * RECORD) as u64).unwrap();
    buffer.truncate(count);
    buffer
}

fn expected(records: usize) -> Vec<u8> {
    (0..records).flat_map(|record| pattern(RECORD, record)).collect()
}

fn a_writer_that_nobody_watches_publishes_seldom(stored: Stored) {
    let (fs, clients, files) = opened(stored, 1);
    let before = calls(&clients[0]);
    (0..1000).for_each(|record| write(&files[0], record));
    let spent = calls(&clients[0]) - before;
    assert!(spent < 30, "{spent} calls for 1000 writes");
    // What it has written itself it reads without a call.
    let before = calls(&clients[0]);
    assert!((0..1000).all(|record| read(&files[0], record) == pattern(RECORD, record)));
    assert!(calls(&clients[0]) - before < 10);
    (1000..1100).for_each(|record| write(&files[0], record));
    let other = fs.client(Way::Tcp);
    let told = other.lookup(&FileSystem::me(), ROOT, &Name::new(b"f").unwrap()).unwrap().attributes;
    assert_eq!(told.size, (1100 * RECORD) as u64);
    assert!(contents(&other, told.inode) == expected(1100));
}

fn writers_of_segments_publish_seldom(stored: Stored) {
    const RECORDS: usize = 300;
    let (fs, clients, files) = opened(stored, 3);
    let before: Vec<_> = clients.iter().map(calls).collect();
    for turn in 0..RECORDS {
        files.iter().enumerate().for_each(|(rank, file)| write(file, rank * RECORDS + turn));
    }
    for (client, before) in clients.iter().zip(before) {
        let spent = calls(client) - before;
        assert!(spent < 60, "{spent} calls for {RECORDS} writes");
    }
    files.iter().for_each(|file| file.sync().unwrap());
    assert!(contents(&fs.client(Way::Tcp), files[0].inode()) == expected(3 * RECORDS));
}

fn a_reader_sees_each_acknowledged_write(stored: Stored) {
    let (_fs, clients, files) = opened(stored, 2);
    for record in 0..200 {
        write(&files[0], record);
        // Rarely enough that the writer gets ranges again.
        if record % 23 == 0 || record == 199 {
            let size = clients[1].attributes(&FileSystem::me(), files[1].inode()).unwrap().attributes.size;
            assert_eq!(size, ((record + 1) * RECORD) as u64);
        }
        if record % 37 == 0 {
            assert!(read(&files[1], record) == pattern(RECORD, record), "{record}");
            // The reader writes over what the writer has in its range.
            files[1].write_at(&pattern(RECORD, 5000 + record), (record * RECORD) as u64).unwrap();
            assert!(read(&files[0], record) == pattern(RECORD, 5000 + record), "{record}");
        }
    }
    assert!(clients[0].counters().recalls > 0);
}

/// What has no range costs what it did: a call for each write, and no recalls of ranges.
fn strided_and_watched_writers_cost_a_call_per_write(stored: Stored) {
    const WRITES: usize = 100;
    let (_fs, clients, files) = opened(stored, 3);
    for (rank, file) in files.iter().enumerate() {
        write(file, rank);
    }
    let before: Vec<_> = clients.iter().map(|client| (calls(client), client.counters().recalls)).collect();
    for turn in 1..=WRITES {
        files.iter().enumerate().for_each(|(rank, file)| write(file, turn * 3 + rank));
    }
    for (client, (calls_before, _)) in clients.iter().zip(&before) {
        assert_eq!(calls(client) - calls_before, WRITES as u64);
    }
    let strided: u64 = clients.iter().zip(&before).map(|(client, of)| client.counters().recalls - of.1).sum();
    // Of attributes, which the last publisher holds.
    assert!(strided <= 3 * WRITES as u64, "{strided} recalls");
    let before = (calls(&clients[0]), clients[0].counters().recalls);
    for turn in 0..WRITES {
        write(&files[0], 1000 + turn);
        let size = clients[1].attributes(&FileSystem::me(), files[1].inode()).unwrap().attributes.size;
        assert_eq!(size, ((1001 + turn) * RECORD) as u64);
    }
    assert_eq!(calls(&clients[0]) - before.0, WRITES as u64);
    assert_eq!(clients[0].counters().recalls, before.1, "the writer's range would have been recalled");
}

fn a_cut_takes_what_was_written_before(stored: Stored) {
    let (fs, clients, files) = opened(stored, 2);
    let cut = |client: &Client, records: usize| {
        let size = Some((records * RECORD) as u64);
        let changes = AttributeChanges { size, ..AttributeChanges::default() };
        client.set_attributes(&FileSystem::me(), files[0].inode(), &changes).unwrap();
    };
    for (client, from, kept) in [(&clients[1], 0, 30), (&clients[0], 30, 40)] {
        (from..60).for_each(|record| write(&files[0], record));
        cut(client, kept);
        assert!(read(&files[0], kept).is_empty());
    }
    assert!(contents(&fs.client(Way::Tcp), files[0].inode()) == expected(40));
    // By an open of the writer's own client.
    (40..60).for_each(|record| write(&files[0], record));
    drop(open(&clients[0], "f", OpenOptions { truncate: true, ..BOTH }));
    files[0].sync().unwrap();
    assert!(contents(&fs.client(Way::Tcp), files[0].inode()).is_empty());
}

fn handles_of_one_client_see_each_other(stored: Stored) {
    let (_fs, clients, files) = opened(stored, 1);
    let other = open(&clients[0], "f", BOTH);
    for record in 0..100 {
        write(&files[0], record);
        assert!(read(&other, record) == pattern(RECORD, record));
        let size = clients[0].attributes(&FileSystem::me(), other.inode()).unwrap().attributes.size;
        assert_eq!(size, ((record + 1) * RECORD) as u64);
        if record % 10 == 0 {
            other.write_at(&pattern(RECORD, 7), (record * RECORD) as u64).unwrap();
            assert!(read(&files[0], record) == pattern(RECORD, 7));
        }
    }
}
