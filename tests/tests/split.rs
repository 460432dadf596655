//! Files with a part for each writer, over real nodes: what others see and when, and what takes space.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::protocol::{AttributeChanges, InodeNumber, Layout, Name, Plan};
use weft_client::{Client, File, JoinOptions, OpenOptions, Way};
use weft_protocol::Credentials;
use weft_tests::{
    FileSystem, Proxy, Random, Stored, Wanted, eventually, objects, open, pattern, status, with_each_store,
};

with_each_store! {
    clients_see_what_others_have_written,
    members_publish_when_they_synchronize,
    what_is_removed_or_cut_takes_no_space,
    a_member_that_dies_takes_only_what_it_had_not_published,
    appends_of_several_clients_do_not_mix,
    parts_on_this_machine_are_read_by_their_files,
    writers_without_a_pattern_are_read_right,
    a_rank_that_reads_its_own_bytes_is_told_of_few_parts,
    strides_and_scattered_writes_lie_over_each_other,
    pieces_of_a_read_are_under_way_together,
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);

fn me() -> Credentials {
    FileSystem::me()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// All files of the file system are split from now on.
fn split_all(client: &Client) {
    let told = client.set_directory_plan(&me(), ROOT, Plan::Split).unwrap().attributes;
    assert_eq!(told.layout, Layout::Split { epoch: 0 });
}

fn read(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0xEE; bytes];
    let count = file.read_at(&mut buffer, offset).unwrap();
    buffer.truncate(count);
    buffer
}

/// All bytes of a file, as a client finds them that opens it now.
fn contents(client: &Client, text: &str) -> Vec<u8> {
    weft_tests::contents(client, client.lookup(&me(), ROOT, &name(text)).unwrap().attributes.inode)
}

/// Clients that write, cut and read a file one call after another, against a flat file.
fn clients_see_what_others_have_written(stored: Stored) {
    const BYTES: usize = 300_000;
    for way in [Way::Auto, Way::Unix, Way::Tcp] {
        let fs = FileSystem::start(Wanted { nodes: 3, stored, ..Wanted::default() });
        let clients: Vec<_> = (0..3).map(|_| fs.client(way)).collect();
        split_all(&clients[0]);
        let files: Vec<_> = clients.iter().map(|client| open(client, "f", BOTH)).collect();
        let (mut model, mut random): (Vec<u8>, _) = (Vec::new(), Random(0x5EED + way as u64));
        for round in 0..400 {
            let (index, at, bytes) = (random.below(3), random.below(BYTES), 1 + random.below(20_000));
            match random.below(10) {
                0 => {
                    let size = Some(at as u64);
                    let changes = AttributeChanges { size, ..AttributeChanges::default() };
                    clients[index].set_attributes(&me(), files[index].inode(), &changes).unwrap();
                    model.resize(at, 0);
                }
                1..=4 => {
                    let written = pattern(bytes, round);
                    files[index].write_at(&written, at as u64).unwrap();
                    model.resize(model.len().max(at + bytes), 0);
                    model[at..at + bytes].copy_from_slice(&written);
                }
                _ => {
                    let expected = &model[at.min(model.len())..(at + bytes).min(model.len())];
                    assert!(
                        read(&files[index], at as u64, bytes) == expected,
                        "{way:?} round {round}: {bytes} at {at}"
                    );
                    assert_eq!(files[index].size().unwrap(), model.len() as u64, "{way:?} round {round}");
                }
            }
        }
        let other = fs.client(Way::Tcp);
        assert!(contents(&other, "f") == model, "{way:?}: by a client that comes later");
        assert_eq!(other.lookup(&me(), ROOT, &name("f")).unwrap().attributes.size, model.len() as u64);
        let located: u64 = other.locate(&me(), files[0].inode()).unwrap().iter().map(|piece| piece.bytes).sum();
        assert_eq!(located, model.len() as u64);
    }
}

/// Handles of one group open of a new file, one of each client.
fn group(clients: &[Client], text: &str) -> Vec<File> {
    let exported = open(&clients[0], text, BOTH).export(false).unwrap();
    clients.iter().map(|client| client.import(&me(), &exported, JoinOptions::default()).unwrap().0).collect()
}

fn members_publish_when_they_synchronize(stored: Stored) {
    const RECORD: usize = 47_008;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..3).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    let members = group(&clients, "f");
    let calls = |client: &Client| client.counters().shard_calls;
    let before: Vec<_> = clients.iter().map(calls).collect();
    let record = |turn: usize, rank: usize| (((turn * 3 + rank) * RECORD) as u64, pattern(RECORD, turn * 3 + rank));
    for turn in 0..20 {
        for (rank, member) in members.iter().enumerate() {
            let (offset, bytes) = record(turn, rank);
            member.write_at(&bytes, offset).unwrap();
        }
    }
    // One call for all object identifiers of a client's objects aside, the shard has heard of nothing.
    let spent = |index: usize| calls(&clients[index]) - before[index];
    assert!((0..3).all(|index| spent(index) == 0), "{:?}", (0..3).map(spent).collect::<Vec<_>>());
    assert_eq!(clients[2].lookup(&me(), ROOT, &name("f")).unwrap().attributes.size, 0);
    for member in &members {
        member.sync().unwrap();
    }
    let synced: Vec<_> = (0..3).map(spent).collect();
    assert!(synced[0] == 1 && synced[1] == 1, "{synced:?}");
    // MPI: sync, barrier, sync.
    for member in &members {
        member.sync().unwrap();
    }
    for (rank, member) in members.iter().enumerate() {
        for turn in 0..20 {
            for of in 0..3 {
                let (offset, bytes) = record(turn, of);
                assert!(read(member, offset, RECORD) == bytes, "{rank} reads what {of} wrote in turn {turn}");
            }
        }
    }
    assert_eq!((0..2).map(spent).collect::<Vec<_>>(), [2, 2], "one more, for what others have published");
    let other = fs.client(Way::Tcp);
    let all: Vec<u8> = (0..60).flat_map(|index| pattern(RECORD, index)).collect();
    assert!(contents(&other, "f") == all);
    // Others write beside the members, and see them.
    let plain = open(&other, "f", BOTH);
    plain.write_at(b"by another", 10).unwrap();
    members[1].sync().unwrap();
    assert_eq!(read(&members[1], 10, 10), b"by another");
    members[1].write_at(b"by a member", 10).unwrap();
    assert_eq!(read(&members[1], 10, 11), b"by a member");
    assert_eq!(read(&plain, 10, 10), b"by another");
    members[1].flush().unwrap();
    assert_eq!(read(&plain, 10, 11), b"by a member");
}

fn what_is_removed_or_cut_takes_no_space(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..2).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    for round in 0..5 {
        // The same file again and again, as checkpoints are.
        let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
        let options = OpenOptions { truncate: true, ..BOTH };
        let first = clients[0].open_at(&me(), ROOT, &name("f"), options, create).unwrap().0;
        let exported = first.export(false).unwrap();
        let members: Vec<_> =
            clients.iter().map(|client| client.import(&me(), &exported, JoinOptions::default()).unwrap().0).collect();
        for (rank, member) in members.iter().enumerate() {
            member.write_at(&pattern(100_000, rank + round), rank as u64 * 100_000).unwrap();
            // Written twice: nothing grows.
            member.write_at(&pattern(100_000, rank + round + 1), rank as u64 * 100_000).unwrap();
            member.flush().unwrap();
        }
        drop((members, first));
        eventually("only the objects of this round are there", 10, || objects(&clients[0]) == 2);
        let all: Vec<u8> = (0..2).flat_map(|rank| pattern(100_000, rank + round + 1)).collect();
        assert!(contents(&clients[1], "f") == all, "round {round}");
    }
    clients[1].unlink(&me(), ROOT, &name("f")).unwrap();
    eventually("nothing is left", 10, || objects(&clients[0]) == 0);
}

fn a_member_that_dies_takes_only_what_it_had_not_published(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..2).map(|_| fs.client(Way::Auto)).collect();
    let other = fs.client(Way::Auto);
    split_all(&clients[0]);
    let members = group(&clients, "f");
    for (rank, member) in members.iter().enumerate() {
        member.write_at(&pattern(1000, rank), rank as u64 * 1000).unwrap();
        member.flush().unwrap();
    }
    members[1].write_at(&pattern(1000, 7), 5000).unwrap();
    members[0].write_at(&pattern(1000, 8), 3000).unwrap();
    // It never comes back to publish.
    std::mem::forget(members.into_iter().nth(1).unwrap());
    let file = open(&other, "f", OpenOptions::READ);
    assert_eq!(file.size().unwrap(), 4000);
    assert!(read(&file, 0, 1000) == pattern(1000, 0) && read(&file, 1000, 1000) == pattern(1000, 1));
    assert!(read(&file, 2000, 1000) == vec![0; 1000] && read(&file, 3000, 1000) == pattern(1000, 8));
}

fn appends_of_several_clients_do_not_mix(stored: Stored) {
    const ROUNDS: usize = 50;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..3).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    drop(open(&clients[0], "f", OpenOptions::WRITE));
    thread::scope(|scope| {
        for (writer, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let file = open(client, "f", OpenOptions { append: true, ..BOTH });
                for round in 0..ROUNDS {
                    let written = file.write_at(&pattern(100 + writer, writer * ROUNDS + round), 0);
                    written.unwrap();
                }
            });
        }
    });
    assert_eq!(objects(&clients[0]), 3);
    for _ in 0..10 {
        // A client goes on with the part that it has.
        let file = open(&clients[0], "f", BOTH);
        file.write_at(&contents(&clients[1], "f")[..100], 0).unwrap();
    }
    assert_eq!(objects(&clients[0]), 3);
    let bytes = contents(&clients[2], "f");
    assert_eq!(bytes.len(), ROUNDS * (100 + 101 + 102));
    let (mut at, mut next) = (0, [0; 3]);
    while at < bytes.len() {
        // After a writer's last append would come what the next writer began with.
        let is_of = |writer: &usize| {
            let (writer, round) = (*writer, next[*writer]);
            round < ROUNDS && bytes[at..].starts_with(&pattern(100 + writer, writer * ROUNDS + round))
        };
        let writer = (0..3).find(is_of).unwrap_or_else(|| panic!("something else at {at}"));
        (at, next[writer]) = (at + 100 + writer, next[writer] + 1);
    }
}

/// Whoever reads a part, its writer anew or another client, asks its node for the file once, where the store has files.
fn parts_on_this_machine_are_read_by_their_files(stored: Stored) {
    const BYTES: usize = 100_000;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..2).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    for (writer, client) in clients.iter().enumerate() {
        open(client, "f", BOTH).write_at(&pattern(BYTES, writer), (writer * BYTES) as u64).unwrap();
    }
    let expected = [pattern(BYTES, 0), pattern(BYTES, 1)].concat();
    for client in &clients {
        let file = open(client, "f", OpenOptions::READ);
        let before = client.counters();
        for _ in 0..3 {
            assert!(read(&file, 0, 2 * BYTES) == expected);
        }
        let after = client.counters();
        let by_files = after.descriptor_read_bytes - before.descriptor_read_bytes;
        match stored {
            Stored::Files | Stored::Memory => {
                assert_eq!(by_files, 6 * BYTES as u64);
                assert_eq!(after.data_requests - before.data_requests, 2, "one for each part");
            }
            Stored::Regions => assert_eq!(by_files, 0),
        }
    }
    // The file is cut and written again: nothing of before is read.
    let file = open(&clients[0], "f", BOTH);
    let reader = open(&clients[1], "f", OpenOptions::READ);
    assert!(read(&reader, 0, 2 * BYTES) == expected);
    file.truncate(0).unwrap();
    assert!(read(&reader, 0, 2 * BYTES).is_empty());
    file.write_at(&pattern(BYTES, 7), 50).unwrap();
    assert!(read(&reader, 0, 2 * BYTES) == [vec![0; 50], pattern(BYTES, 7)].concat());
}

/// Two clients write more than 20,000 runs of any length at any place, one as a member of a group, the other one write
/// after the other. Others read them, all and here and there, at the end and meanwhile.
fn writers_without_a_pattern_are_read_right(stored: Stored) {
    const BYTES: usize = 12 << 20;
    const WRITES: usize = 24_000;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..3).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    let members = group(&clients[..2], "f");
    let plain = open(&clients[1], "f", BOTH);
    let reader = open(&clients[2], "f", OpenOptions::READ);
    let (mut model, mut random) = (vec![0; BYTES], Random(0xD1CE));
    let mut end = 0;
    for round in 0..WRITES {
        let (at, bytes) = (random.below(BYTES - 300), 1 + random.below(300));
        let written = pattern(bytes, round);
        members[0].write_at(&written, at as u64).unwrap();
        model[at..at + bytes].copy_from_slice(&written);
        end = end.max(at + bytes);
        if round % 40 == 0 {
            // It publishes at once, so what the member has written before has to be published first.
            members[0].flush().unwrap();
            let (at, bytes) = (random.below(BYTES - 5000), 1 + random.below(5000));
            let written = pattern(bytes, round + 1);
            plain.write_at(&written, at as u64).unwrap();
            model[at..at + bytes].copy_from_slice(&written);
            end = end.max(at + bytes);
            let (at, bytes) = (random.below(end), random.below(20_000));
            assert!(
                read(&reader, at as u64, bytes) == model[at..(at + bytes).min(end)],
                "round {round}: {bytes} at {at}"
            );
        }
    }
    members[0].sync().unwrap();
    members[1].sync().unwrap();
    model.truncate(end);
    for (of, file) in [("a member", &members[1]), ("another", &reader), ("its writer", &members[0])] {
        for round in 0..200 {
            let (at, bytes) = (random.below(end), random.below(50_000));
            let expected = &model[at..(at + bytes).min(end)];
            assert!(read(file, at as u64, bytes) == expected, "{of}, round {round}: {bytes} at {at}");
        }
    }
    let later = fs.client(Way::Tcp);
    assert!(contents(&later, "f") == model, "a client that comes later");
    let extents: usize = later.locate(&me(), reader.inode()).unwrap().len();
    assert!(extents > 20_000, "{extents}");
    // The file is cut, and made longer again.
    let size = Some(5_000_000);
    clients[1]
        .set_attributes(&me(), reader.inode(), &AttributeChanges { size, ..AttributeChanges::default() })
        .unwrap();
    let size = Some(6_000_000);
    clients[1]
        .set_attributes(&me(), reader.inode(), &AttributeChanges { size, ..AttributeChanges::default() })
        .unwrap();
    model.truncate(5_000_000);
    model.resize(6_000_000, 0);
    assert!(read(&reader, 4_900_000, 200_000) == model[4_900_000..5_100_000]);
    assert!(contents(&later, "f") == model);
}

/// After a sync each of many writers reads its own segment back with one question.
fn a_rank_that_reads_its_own_bytes_is_told_of_few_parts(stored: Stored) {
    const SEGMENT: usize = 10_000;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..12).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    let members = group(&clients, "f");
    for (rank, member) in members.iter().enumerate() {
        for piece in [1, 0] {
            // Two runs, so that a segment is an extent of its own.
            let offset = rank * SEGMENT + piece * SEGMENT / 2;
            member.write_at(&pattern(SEGMENT / 2, 2 * rank + piece), offset as u64).unwrap();
        }
    }
    members.iter().for_each(|member| member.sync().unwrap());
    members.iter().for_each(|member| member.sync().unwrap());
    for (rank, (client, member)) in clients.iter().zip(&members).enumerate() {
        let before = client.counters().shard_calls;
        for _ in 0..3 {
            let expected = [pattern(SEGMENT / 2, 2 * rank), pattern(SEGMENT / 2, 2 * rank + 1)].concat();
            assert!(read(member, (rank * SEGMENT) as u64, SEGMENT) == expected, "{rank}");
        }
        assert_eq!(client.counters().shard_calls, before + 1);
    }
}

/// Members write strides and scattered runs over each other's, publishing after each turn, while the file is cut now
/// and then. Members and others read ranges, and so know different ranges as of different publications.
fn strides_and_scattered_writes_lie_over_each_other(stored: Stored) {
    const BYTES: usize = 100_000;
    let fs = FileSystem::start(Wanted { nodes: 2, stored, ..Wanted::default() });
    let clients: Vec<_> = (0..4).map(|_| fs.client(Way::Auto)).collect();
    split_all(&clients[0]);
    let members = group(&clients[..3], "f");
    let reader = open(&clients[3], "f", OpenOptions::READ);
    let (mut model, mut random): (Vec<u8>, _) = (Vec::new(), Random(0xFACADE));
    for round in 0..600 {
        let member = &members[random.below(3)];
        let (start, bytes, gap) = (random.below(BYTES / 2), 1 + random.below(40), 1 + random.below(300));
        let most = [4, 60][random.below(2)];
        let count = 1 + random.below(most);
        let is_regular = random.below(4) > 0;
        let mut at = start;
        for turn in 0..count {
            let written = pattern(bytes, round + turn);
            member.write_at(&written, at as u64).unwrap();
            model.resize(model.len().max(at + bytes), 0);
            model[at..at + bytes].copy_from_slice(&written);
            at += bytes + if is_regular { gap } else { 1 + random.below(300) };
        }
        member.sync().unwrap();
        if random.below(20) == 0 {
            let at = random.below(BYTES);
            let changes = AttributeChanges { size: Some(at as u64), ..AttributeChanges::default() };
            clients[3].set_attributes(&me(), reader.inode(), &changes).unwrap();
            model.resize(at, 0);
        }
        for _ in 0..3 {
            let (at, bytes) = (random.below(BYTES), random.below(3000));
            let expected = &model[at.min(model.len())..(at + bytes).min(model.len())];
            assert!(read(&reader, at as u64, bytes) == expected, "round {round}: {bytes} at {at}");
            let member = &members[random.below(3)];
            member.sync().unwrap();
            assert!(read(member, at as u64, bytes) == expected, "round {round}, a member: {bytes} at {at}");
        }
    }
    assert!(contents(&fs.client(Way::Tcp), "f") == model);
}

/// Of a read of many pieces several come from the node while the reply to the first one is held. Then that comes, or
/// the connection breaks.
fn pieces_of_a_read_are_under_way_together(stored: Stored) {
    const RECORD: usize = 4096;
    const RECORDS: usize = 60;
    for is_lost in [false, true] {
        let fs = FileSystem::start(Wanted { nodes: 1, stored, ..Wanted::default() });
        let writers: Vec<_> = (0..2).map(|_| fs.client(Way::Unix)).collect();
        split_all(&writers[0]);
        let members = group(&writers, "f");
        let mut model = vec![0; RECORDS * RECORD];
        for index in (0..RECORDS).filter(|index| index % 3 < 2) {
            let written = pattern(RECORD, index);
            members[index % 3].write_at(&written, (index * RECORD) as u64).unwrap();
            model[index * RECORD..][..RECORD].copy_from_slice(&written);
        }
        members.iter().for_each(|member| member.sync().unwrap());
        model.truncate((RECORDS - 1) * RECORD);

        let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
        let client = fs.client_behind(&proxy);
        let reader = open(&client, "f", OpenOptions::READ);
        assert!(read(&reader, 0, 10) == model[..10], "from now on it knows the extents");
        let sent = || status(&writers[0]).counters.read_tcp_bytes;
        let before = sent();
        proxy.hold_next_reply();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&reader, 0, RECORDS * RECORD));
            let held = proxy.held();
            let end = Instant::now() + Duration::from_secs(30);
            while sent() < before + 8 * RECORD as u64 {
                assert!(Instant::now() < end, "{} bytes of other pieces", sent() - before);
            }
            match is_lost {
                true => drop(held),
                false => held.pass_on(),
            }
            assert!(reading.join().unwrap() == model, "lost: {is_lost}");
        });
    }
}
