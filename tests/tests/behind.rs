//! Small writes of a group's members to their own parts of a split file, where no descriptor is passed: buffered until
//! the member publishes, several under way, and never published before they have landed.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{Error, InodeNumber, Name, NodeId, Plan};
use weft_client::{Client, File, JoinOptions, OpenOptions, Way};
use weft_tests::{FileSystem, Held, Proxy, Stored, Wanted, contents, open, pattern};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const RECORD: usize = 47_008;

fn split_all(client: &Client) {
    client.set_directory_plan(&FileSystem::me(), ROOT, Plan::Split).unwrap();
}

/// Handles of one group open of a new file, one of each client.
fn group(clients: &[Client], text: &str) -> Vec<File> {
    let exported = open(&clients[0], text, BOTH).export(false).unwrap();
    clients
        .iter()
        .map(|client| client.import(&FileSystem::me(), &exported, JoinOptions::default()).unwrap().0)
        .collect()
}

/// What a client sees that opens the file now.
fn seen(client: &Client, text: &str) -> Vec<u8> {
    let name = Name::new(text.as_bytes()).unwrap();
    contents(client, client.lookup(&FileSystem::me(), ROOT, &name).unwrap().attributes.inode)
}

fn read(file: &File, offset: usize, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0xEE; bytes];
    let count = file.read_at(&mut buffer, offset as u64).unwrap();
    buffer.truncate(count);
    buffer
}

/// Where a record of a rank lies, of so many ranks.
fn at(record: usize, rank: usize, ranks: usize) -> usize {
    (record * ranks + rank) * RECORD
}

fn write(file: &File, record: usize, (rank, ranks): (usize, usize)) -> Result<(), Error> {
    let offset = at(record, rank, ranks);
    file.write_at(&pattern(RECORD, offset / RECORD), offset as u64)
}

/// Every way without a descriptor: regions, other machines, a store with a cap.
fn in_each_way(check: impl Fn(&FileSystem, Way)) {
    let regions = Wanted { stored: Stored::Regions, ..Wanted::default() };
    let far = Wanted { near: false, ..Wanted::default() };
    let capped = Wanted { store_bytes: Some(1 << 30), ..Wanted::default() };
    for (wanted, way) in [
        (regions, Way::Auto),
        (regions, Way::Tcp),
        (far, Way::Auto),
        (Wanted { stored: Stored::Regions, ..far }, Way::Auto),
        (capped, Way::Auto),
        (capped, Way::Unix),
    ] {
        eprintln!("{:?}, near {}, cap {:?}, {way:?}", wanted.stored, wanted.near, wanted.store_bytes);
        check(&FileSystem::start(wanted), way);
    }
}

#[test]
fn members_read_what_they_buffer_and_others_what_is_published() {
    const RECORDS: usize = 100;
    in_each_way(|fs, way| {
        let clients: Vec<_> = (0..2).map(|_| fs.client(way)).collect();
        let other = fs.client(Way::Tcp);
        split_all(&clients[0]);
        let members = group(&clients, "f");
        for record in 0..RECORDS {
            for (rank, member) in members.iter().enumerate() {
                write(member, record, (rank, 2)).unwrap();
                // The one that is being gathered, or one that may be in flight.
                let back = at(record - record.min(record % 7), rank, 2);
                assert!(read(member, back, RECORD) == pattern(RECORD, back / RECORD));
            }
        }
        assert_eq!(other.lookup(&FileSystem::me(), ROOT, &Name::new(b"f").unwrap()).unwrap().attributes.size, 0);
        for (rank, member) in members.iter().enumerate() {
            assert_eq!(member.size().unwrap(), (at(RECORDS - 1, rank, 2) + RECORD) as u64);
            // Over what is in flight, also by a write that is too large to be gathered.
            member.write_at(&pattern(100, 7), at(3, rank, 2) as u64).unwrap();
            member.write_at(&pattern(RECORD, at(3, rank, 2) / RECORD), at(3, rank, 2) as u64).unwrap();
        }
        members.iter().for_each(|member| member.sync().unwrap());
        let all: Vec<u8> = (0..2 * RECORDS).flat_map(|index| pattern(RECORD, index)).collect();
        assert!(seen(&other, "f") == all);
        let large = pattern(3 << 20, 9);
        write(&members[0], 0, (0, 2)).unwrap();
        members[0].write_at(&large, 1000).unwrap();
        members[0].write_at(b"small", 500_000).unwrap();
        assert!(read(&members[0], 1000, 499_000) == large[..499_000]);
        members[0].flush().unwrap();
        let expected = [&pattern(RECORD, 0)[..1000], &large[..499_000], &b"small"[..], &large[499_005..]].concat();
        assert!(seen(&other, "f")[..expected.len()] == expected[..]);
    });
}

#[test]
fn small_writes_are_gathered() {
    in_each_way(|fs, way| {
        let client = fs.client(way);
        split_all(&client);
        let member = group(std::slice::from_ref(&client), "f").remove(0);
        member.write_at(b"its part is made", 0).unwrap();
        member.flush().unwrap();
        let before = client.counters().data_requests;
        let bytes = pattern(1000 * 4096, 5);
        for (index, piece) in bytes.chunks(4096).enumerate() {
            member.write_at(piece, (index * 4096) as u64).unwrap();
        }
        member.flush().unwrap();
        let requests = client.counters().data_requests - before;
        assert!(requests < 20, "{requests} requests for 1000 writes");
        assert!(seen(&client, "f") == bytes);
    });
}

/// An ordinary handle's list is there when it returns, a member's when it is published; pieces land in their order.
#[test]
fn lists_are_their_pieces_one_after_the_other() {
    const PIECES: usize = 300;
    in_each_way(|fs, way| {
        let client = fs.client(way);
        split_all(&client);
        let member = group(std::slice::from_ref(&client), "f").remove(0);
        let plain = open(&client, "f", BOTH);
        let mut model = vec![0; PIECES * 3000 + 4000];
        for (file, shift) in [(&plain, 0), (&member, 1500), (&plain, 700)] {
            let pieces: Vec<_> =
                (0..PIECES).map(|piece| (pattern(1000, piece + shift), piece * 3000 + shift)).collect();
            // Over the one before, and none.
            let more = [(pattern(3000, 5), 900 + shift), (Vec::new(), 0), (pattern(100, 6), 950 + shift)];
            let all = [pieces, more.to_vec()].concat();
            for (bytes, offset) in &all {
                model[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            let list: Vec<_> = all.iter().map(|(bytes, offset)| (&bytes[..], *offset as u64)).collect();
            file.write_list(&list).unwrap();
            if shift == 1500 {
                file.flush().unwrap();
            }
            let found = seen(&fs.client(Way::Tcp), "f");
            assert!(found == model[..found.len()] && found.len() >= PIECES * 3000 - 2000 + shift, "{shift}");
        }
    });
}

/// Writes return while the node's replies to those before are held. Then they come, or the connection breaks, and what
/// was in flight is written again.
#[test]
fn several_writes_are_under_way() {
    for (is_lost, stored) in [(false, Stored::Files), (true, Stored::Files), (true, Stored::Regions)] {
        let fs = FileSystem::start(Wanted { nodes: 1, near: false, stored, ..Wanted::default() });
        let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
        let client = fs.client_behind(&proxy);
        split_all(&client);
        let member = group(std::slice::from_ref(&client), "f").remove(0);
        write(&member, 0, (0, 2)).unwrap();
        member.flush().unwrap();
        proxy.hold_next_reply();
        for record in 1..20 {
            write(&member, record, (0, 2)).unwrap();
        }
        let held = proxy.held();
        if is_lost {
            drop(held);
        } else {
            Held::pass_on(held);
        }
        member.flush().unwrap();
        let bytes = seen(&fs.client(Way::Tcp), "f");
        for record in 0..20 {
            assert!(bytes[at(record, 0, 2)..][..RECORD] == pattern(RECORD, 2 * record), "lost: {is_lost}, {record}");
        }
    }
}

/// What others see of records that a member has written with gaps: each wholly or not at all. Returns how many there
/// are.
fn there(client: &Client, records: usize) -> usize {
    let bytes = seen(client, "f");
    let is_there = |record: &usize| {
        let record_bytes = bytes.get(at(*record, 0, 2)..).unwrap_or_default();
        let record_bytes = &record_bytes[..RECORD.min(record_bytes.len())];
        let is_there = record_bytes == pattern(RECORD, 2 * *record);
        assert!(is_there || record_bytes.iter().all(|byte| *byte == 0), "a part of record {record}");
        is_there
    };
    (0..records).filter(is_there).count()
}

#[test]
fn a_full_store_is_told_once_and_nothing_is_published_that_has_not_landed() {
    for stored in [Stored::Files, Stored::Regions] {
        for way in [Way::Auto, Way::Unix, Way::Tcp] {
            // The error comes at a write; or at the flush, since few bytes are written.
            for few in [false, true] {
                eprintln!("{stored:?} {way:?} {few}");
                let wanted = Wanted { nodes: 1, stored, store_bytes: Some(32 << 20), ..Wanted::default() };
                let fs = FileSystem::start(wanted);
                let (client, other) = (fs.client(way), fs.client(way));
                let big = open(&other, "big", BOTH);
                big.write_at(&pattern(8 << 20, 1), 0).unwrap();
                if few {
                    for piece in 1.. {
                        if other.space().unwrap().free < 1 << 20 {
                            break;
                        }
                        big.write_at(&pattern(256 << 10, 1), (8 << 20) + piece * (256 << 10)).unwrap();
                        big.sync().unwrap();
                    }
                }
                split_all(&client);
                let member = group(std::slice::from_ref(&client), "f").remove(0);
                let written = (0..if few { 28 } else { 2000 }).map_while(|record| {
                    write(&member, record, (0, 2)).inspect_err(|error| assert_eq!(*error, Error::NoSpace)).ok()
                });
                let written = written.count();
                assert!(few == (written == 28), "{written}");
                let flushed = member.flush();
                assert_eq!(flushed, if few { Err(Error::NoSpace) } else { Ok(()) });
                member.flush().unwrap();
                member.sync().unwrap();
                let count = there(&other, written + 1);
                assert!(count < written && (few || count > 100), "{count} of {written}");
                // There is room again.
                drop(big);
                other.unlink(&FileSystem::me(), ROOT, &Name::new(b"big").unwrap()).unwrap();
                weft_tests::eventually("room", 20, || other.space().unwrap().free > 6 << 20);
                for record in 0..28 {
                    write(&member, record, (0, 2)).unwrap();
                }
                member.sync().unwrap();
                assert!(there(&other, 28) == 28);
            }
        }
    }
}

#[test]
fn a_node_that_is_gone_is_told_once_and_takes_only_its_part() {
    for stored in [Stored::Files, Stored::Regions] {
        let mut fs =
            FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, near: false, stored, ..Wanted::default() });
        let other = fs.client(Way::Tcp);
        split_all(&other);
        // Far from all nodes a client takes one after the other: a member whose part is not at the node of `/`.
        let client = fs.client(Way::Tcp);
        let elsewhere = |number: usize| {
            let text = format!("f{number}");
            let member = group(std::slice::from_ref(&client), &text).remove(0);
            write(&member, 0, (0, 2)).unwrap();
            member.flush().unwrap();
            let node = other.locate(&FileSystem::me(), member.inode()).unwrap()[0].node;
            (node == Some(NodeId(1))).then_some((member, text))
        };
        let (member, text) = (0..100).find_map(elsewhere).unwrap();
        let published = at(0, 0, 2) + RECORD;
        for record in 1..10 {
            write(&member, record, (0, 2)).unwrap();
        }
        fs.stop_node(NodeId(1));
        assert!(write(&member, 10, (0, 2)).and_then(|()| member.flush()).is_err());
        assert_eq!(member.flush(), Ok(()), "it was told");
        let name = Name::new(text.as_bytes()).unwrap();
        let size = other.lookup(&FileSystem::me(), ROOT, &name).unwrap().attributes.size;
        // Replies that had come before the node ended were of records that had landed.
        let size = usize::try_from(size).unwrap();
        assert!(size >= published && (size - RECORD).is_multiple_of(2 * RECORD), "{size}");
        let plain = open(&other, "g", BOTH);
        plain.write_at(b"elsewhere", 0).unwrap();
        assert_eq!(read(&plain, 0, 9), b"elsewhere");
    }
}

#[test]
fn a_writer_that_is_killed_takes_what_it_has_buffered_and_nothing_else() {
    in_each_way(|fs, way| {
        let (client, other) = (fs.client(way), fs.client(Way::Tcp));
        split_all(&client);
        let member = group(std::slice::from_ref(&client), "f").remove(0);
        for record in 0..40 {
            write(&member, record, (0, 2)).unwrap();
            if record == 19 {
                member.flush().unwrap();
            }
        }
        // It neither flushes nor closes.
        std::mem::forget(member);
        assert_eq!(seen(&other, "f").len(), at(19, 0, 2) + RECORD);
        assert_eq!(there(&other, 40), 20);
    });
}
