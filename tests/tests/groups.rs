//! Handles that one client exports and others import, over real nodes: what they cost, what others see, what ends them.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::message::node::NodeRequest;
use weft_client::protocol::message::shard::{Access, CreateFile, GroupLayouts};
use weft_client::protocol::{
    Error, GroupOpen, InodeNumber, LockMode, LockRange, Name, NodeId, Plan, RangeLock, StripePlan,
};
use weft_client::{Client, File, GroupWish, JoinOptions, OpenOptions, Way};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::{Credentials, SessionId, UserKey, routing};
use weft_tests::{FileSystem, Stored, Wanted, contents, eventually, objects, open, pattern, with_each_store};
use weft_transport::{Peer, Socket, connect};

with_each_store! {
    members_use_a_file_without_a_word_to_its_shard,
    the_file_outlives_its_exporter_and_its_name,
    all_of_a_striped_file_is_shared,
    a_file_that_a_group_open_makes_has_its_objects,
    appends_of_members_do_not_mix,
    appends_of_members_to_a_striped_file_do_not_mix,
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);

fn me() -> Credentials {
    FileSystem::me()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// The bytes that another process imports.
fn passed(file: &File) -> Vec<u8> {
    file.export(false).unwrap()
}

fn import(client: &Client, exported: &[u8]) -> File {
    client.import(&me(), exported, JoinOptions::default()).unwrap().0
}

fn read(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    let count = file.read_at(&mut buffer, offset).unwrap();
    buffer.truncate(count);
    buffer
}

fn members_use_a_file_without_a_word_to_its_shard(stored: Stored) {
    for (way, near) in [(Way::Auto, true), (Way::Unix, true), (Way::Tcp, false)] {
        let fs = FileSystem::start(Wanted { stored, near, ..Wanted::default() });
        let (exporter, member, other) = (fs.client(way), fs.client(way), fs.client(way));
        let file = open(&exporter, "f", BOTH);
        // Gathered: it has to be written back for the others.
        file.write_at(&pattern(10_000, 1), 0).unwrap();
        let passed = passed(&file);
        let before = member.counters().shard_calls;
        let shared = import(&member, &passed);
        assert_eq!((read(&shared, 0, 20_000), shared.size().unwrap()), (pattern(10_000, 1), 10_000));
        let seen_by = open(&other, "f", OpenOptions::READ);
        for round in 0..50usize {
            let bytes = pattern(3000 + round, round);
            shared.write_at(&bytes, 5000 + round as u64).unwrap();
            assert_eq!(read(&seen_by, 5000 + round as u64, bytes.len()), bytes, "round {round}");
            file.write_at(&bytes, 20_000).unwrap();
            assert_eq!(read(&shared, 20_000, bytes.len()), bytes, "round {round}");
        }
        shared.sync().unwrap();
        assert_eq!(member.counters().shard_calls, before, "{way:?}");
        // Others are told the size that it has by now.
        let size = 40_000;
        shared.write_at(b"end", size - 3).unwrap();
        assert_eq!(other.lookup(&me(), ROOT, &name("f")).unwrap().attributes.size, size);
        drop((file, shared));
        assert_eq!(other.lookup(&me(), ROOT, &name("f")).unwrap().attributes.size, size);
        drop(seen_by);
        let again = open(&other, "f", OpenOptions::READ);
        assert_eq!(again.size().unwrap(), size);
    }
}

fn the_file_outlives_its_exporter_and_its_name(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
    let (exporter, member, other) = (fs.client(Way::Auto), fs.client(Way::Auto), fs.client(Way::Tcp));
    let file = open(&exporter, "f", BOTH);
    file.write_at(b"first", 0).unwrap();
    let shared = import(&member, &passed(&file));
    // The second is told of it by the first member's handle, as by the exporter's.
    let second = import(&other, &passed(&shared));
    drop(file);
    exporter.close().unwrap();
    other.unlink(&me(), ROOT, &name("f")).unwrap();
    shared.write_at(b"later", 5).unwrap();
    assert_eq!(read(&second, 0, 99), b"firstlater");
    drop(shared);
    // Longer than a term: the group is heard with its last member.
    thread::sleep(Duration::from_secs(12));
    second.write_at(b"last!", 10).unwrap();
    assert_eq!(read(&second, 0, 99), b"firstlaterlast!");
    assert_eq!(objects(&other), 1);
    drop(second);
    eventually("the file's bytes are gone with the last handle", 5, || objects(&other) == 0);
}

fn all_of_a_striped_file_is_shared(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: 4, stored, ..Wanted::default() });
    let (exporter, member) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let plan = StripePlan::new(4, 64 << 10).unwrap().into();
    let directory = exporter.make_directory(&me(), ROOT, &name("striped"), 0o755).unwrap().attributes.inode;
    exporter.set_directory_plan(&me(), directory, plan).unwrap();
    let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
    let (file, _) = exporter.open_at(&me(), directory, &name("f"), BOTH, create).unwrap();
    let shared = import(&member, &passed(&file));
    let before = member.counters().shard_calls;
    let bytes = pattern(1 << 20, 3);
    shared.write_at(&bytes[500_000..], 500_000).unwrap();
    assert_eq!(file.size().unwrap(), 1 << 20);
    file.write_at(&bytes[..500_000], 0).unwrap();
    assert_eq!((read(&shared, 0, 2 << 20), shared.size().unwrap()), (bytes.clone(), 1 << 20));
    assert_eq!(member.counters().shard_calls, before);
}

/// One call makes the file with its objects; members and others find them, also if nobody has used them before.
fn a_file_that_a_group_open_makes_has_its_objects(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: 4, stored, ..Wanted::default() });
    let (maker, member, other) = (fs.client(Way::Auto), fs.client(Way::Auto), fs.client(Way::Tcp));
    let make = |text: &str, plan| {
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: Some(plan) });
        let wish = GroupWish { layouts: GroupLayouts::All, synced: false };
        let before = maker.counters().shard_calls;
        let file = maker.open_for_group(&me(), (ROOT, &name(text)), BOTH, create, wish).unwrap();
        let exported = passed(&file);
        assert_eq!(maker.counters().shard_calls, before + 1, "{text} {plan:?}");
        (file, exported)
    };
    maker.lookup(&me(), ROOT, &name("none")).unwrap_err();
    let striped = StripePlan::new(3, 64 << 10).unwrap().into();
    let bytes = pattern(300_000, 3);
    for (text, plan) in [("whole", Plan::Whole), ("striped", striped)] {
        let (file, exported) = make(text, plan);
        let shared = import(&member, &exported);
        assert_eq!((read(&shared, 0, 99), shared.size().unwrap()), (Vec::new(), 0));
        shared.write_at(&bytes[100_000..], 100_000).unwrap();
        file.write_at(&bytes[..100_000], 0).unwrap();
        assert_eq!(read(&shared, 0, 400_000), bytes, "{text}");
        assert_eq!(read(&open(&other, text, OpenOptions::READ), 0, 400_000), bytes, "{text}");
        let unused = format!("unused-{text}");
        let made = maker.lookup(&me(), ROOT, &name(text)).unwrap().attributes;
        drop(make(&unused, plan));
        // Others find them while the group has the file open, and when it has ended.
        let found = open(&other, &unused, BOTH);
        assert_eq!((found.size().unwrap(), read(&found, 0, 99)), (0, Vec::new()));
        found.write_at(&bytes, 0).unwrap();
        assert_eq!(read(&found, 0, 400_000), bytes, "{unused}");
        let (kept, _) = make(&format!("kept-{text}"), plan);
        assert!(read(&open(&other, &format!("kept-{text}"), BOTH), 0, 99).is_empty());
        kept.write_at(&bytes, 0).unwrap();
        assert_eq!(other.lookup(&me(), ROOT, &name(&format!("kept-{text}"))).unwrap().attributes.size, 300_000);
        assert_eq!(made.layout.plan(), plan);
    }
}

/// Members that each have a connection of their own, the opener, and a client without the group.
fn appends_of_members_to_a_striped_file_do_not_mix(stored: Stored) {
    const ROUNDS: u32 = 25;
    let fs = FileSystem::start(Wanted { nodes: 4, stored, ..Wanted::default() });
    let exporter = fs.client(Way::Auto);
    let directory = exporter.make_directory(&me(), ROOT, &name("striped"), 0o755).unwrap().attributes.inode;
    exporter.set_directory_plan(&me(), directory, StripePlan::new(4, 64 << 10).unwrap().into()).unwrap();
    let appending = OpenOptions { append: true, ..BOTH };
    let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
    let (file, _) = exporter.open_at(&me(), directory, &name("log"), appending, create).unwrap();
    let passed = passed(&file);
    let record = |writer: u32, round: u32| {
        let bytes = [100, 9_000, 150_000][(writer + round) as usize % 3];
        [&[writer, round, bytes].map(u32::to_le_bytes).concat()[..], &pattern(bytes as usize, writer as usize)].concat()
    };
    thread::scope(|scope| {
        for writer in 0..4u32 {
            let (fs, passed, exporter) = (&fs, &passed, &exporter);
            scope.spawn(move || {
                let client = fs.client(if writer == 0 { Way::Tcp } else { Way::Auto });
                let file = match writer {
                    0 | 1 => import(&client, passed),
                    2 => exporter.open_at(&me(), directory, &name("log"), appending, None).unwrap().0,
                    _ => client.open_at(&me(), directory, &name("log"), appending, None).unwrap().0,
                };
                for round in 0..ROUNDS {
                    match round % 2 {
                        0 => file.write_at(&record(writer, round), 0).unwrap(),
                        _ => file.write_list(&[(&record(writer, round), 0)]).unwrap(),
                    }
                }
                file.close().unwrap();
            });
        }
    });
    let bytes = contents(&exporter, file.inode());
    let (mut left, mut found) = (&bytes[..], BTreeSet::new());
    while !left.is_empty() {
        let number = |at: usize| u32::from_le_bytes(left[at..at + 4].try_into().unwrap());
        let (writer, round) = (number(0), number(4));
        left = left.strip_prefix(&record(writer, round)[..]).expect("each record is whole");
        assert!(found.insert((writer, round)), "{writer} has appended {round} once");
    }
    assert_eq!(found.len(), 4 * ROUNDS as usize);
}

fn appends_of_members_do_not_mix(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
    let exporter = fs.client(Way::Auto);
    let file = open(&exporter, "log", OpenOptions { append: true, ..BOTH });
    let passed = passed(&file);
    let lines = 200;
    thread::scope(|scope| {
        for number in 0..3u8 {
            let (fs, passed) = (&fs, &passed);
            scope.spawn(move || {
                let client = fs.client(if number == 0 { Way::Tcp } else { Way::Auto });
                let shared = import(&client, passed);
                for _ in 0..lines {
                    shared.write_at(&[b'a' + number; 100], 0).unwrap();
                }
            });
        }
    });
    let all = contents(&exporter, file.inode());
    assert_eq!(all.len(), 3 * lines * 100);
    assert!(all.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
}

#[test]
fn a_handle_allows_what_the_exported_one_does() {
    let fs = FileSystem::start(Wanted::default());
    let (exporter, member) = (fs.client(Way::Auto), fs.client(Way::Auto));
    open(&exporter, "f", BOTH).write_at(b"bytes", 0).unwrap();
    let reads = import(&member, &passed(&open(&exporter, "f", OpenOptions::READ)));
    assert_eq!(read(&reads, 0, 9), b"bytes");
    assert_eq!(reads.write_at(b"x", 0), Err(Error::BadHandle));
    assert_eq!(reads.truncate(0), Err(Error::BadHandle));
    // Also for who says otherwise, and has the key: the rights are signed.
    let key = UserKey::derive(&fs.key, &KeyName::Owner);
    let mut forged = GroupOpen::from_bytes(&passed(&open(&exporter, "f", OpenOptions::READ)), &key).unwrap();
    forged.access = Access::ReadWrite;
    let writes = import(&member, &forged.to_bytes(&key));
    assert_eq!(writes.write_at(b"by the file's own mode", 0), Ok(()), "opened anew, as its user may");
}

#[test]
fn a_handle_is_good_for_its_file_system_and_its_key_alone() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Auto);
    let file = open(&client, "f", BOTH);
    let exported = passed(&file);
    let refused = |client: &Client, exported: &[u8]| client.import(&me(), exported, JoinOptions::default()).err();
    for place in [5, exported.len() / 2, exported.len() - 1] {
        let mut damaged = exported.clone();
        damaged[place] ^= 1;
        assert!(refused(&client, &damaged).is_some(), "byte {place}");
    }
    let other = FileSystem::start(Wanted::default());
    let of_other = open(&other.client(Way::Auto), "f", BOTH);
    assert_eq!(of_other.inode(), file.inode(), "inode numbers begin again in each");
    assert_eq!(refused(&other.client(Way::Auto), &exported), Some(Error::CapabilityRejected));
}

#[test]
fn no_connection_is_of_a_group() {
    let fs = FileSystem::start(Wanted::default());
    let key = UserKey::derive(&fs.key, &KeyName::Owner);
    let record = fs.instance.map.node(NodeId(0)).unwrap();
    for purpose in [Purpose::Control, Purpose::Recall, Purpose::Data] {
        let is_admitted = |session| {
            let socket = Socket::connect_tcp(&record.address.tcp).unwrap();
            connect(&socket, &Peer { key_name: KeyName::Owner, purpose, session, identity: record.identity }, &key)
                .is_ok()
        };
        assert!(is_admitted(SessionId::of_client(7)) && !is_admitted(SessionId::of_group(7)), "{purpose:?}");
    }
}

#[test]
fn what_is_more_than_bytes_goes_to_the_shard() {
    let fs = FileSystem::start(Wanted::default());
    let (exporter, member) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&exporter, "f", BOTH);
    file.write_at(b"0123456789", 0).unwrap();
    let shared = import(&member, &passed(&file));
    shared.truncate(4).unwrap();
    assert_eq!((read(&file, 0, 99), read(&shared, 0, 99)), (b"0123".to_vec(), b"0123".to_vec()));
    let range = LockRange { start: 0, end: 9 };
    shared.lock(&[RangeLock { range, mode: LockMode::Exclusive }]).unwrap();
    let refused = file.try_lock(&[RangeLock { range, mode: LockMode::Shared }]);
    assert_eq!(refused, Err(Error::WouldBlock));
    shared.unlock(&[range]).unwrap();
    file.try_lock(&[RangeLock { range, mode: LockMode::Shared }]).unwrap();
    file.truncate(0).unwrap();
    assert_eq!(shared.size().unwrap(), 0);
    shared.write_at(b"again", 0).unwrap();
    assert_eq!(read(&file, 0, 99), b"again");
}

#[test]
fn a_file_without_bytes_can_be_exported_too() {
    let fs = FileSystem::start(Wanted::default());
    let (exporter, member) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&exporter, "written", OpenOptions { truncate: false, ..OpenOptions::WRITE });
    let shared = import(&member, &passed(&file));
    shared.write_at(b"by a member", 0).unwrap();
    assert_eq!(contents(&exporter, file.inode()), b"by a member");
    // To be read only: there is nothing that it could have a right to.
    let created = open(&exporter, "read", BOTH);
    let shared = import(&member, &passed(&open(&exporter, "read", OpenOptions::READ)));
    assert_eq!(read(&shared, 0, 9), b"");
    created.write_at(b"now", 0).unwrap();
    assert_eq!(read(&shared, 0, 9), b"now");
}

#[test]
fn a_group_that_is_over_leaves_a_file_as_any_other() {
    let fs = FileSystem::start(Wanted { shards_per_node: 1, ..Wanted::default() });
    let (exporter, member) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&exporter, "f", BOTH);
    file.write_at(b"bytes", 0).unwrap();
    let passed = passed(&file);
    let shared = import(&member, &passed);
    drop(file);
    drop(shared);
    eventually("the group ends with its last handle", 5, || {
        // Who imports at once is in the group before the shard has heard that he left.
        thread::sleep(Duration::from_millis(100));
        let calls = member.counters().shard_calls;
        let late = import(&member, &passed);
        read(&late, 0, 9) == b"bytes" && member.counters().shard_calls > calls
    });
    let late = import(&member, &passed);
    late.write_at(b"BYTES", 0).unwrap();
    late.sync().unwrap();
    assert_eq!(contents(&exporter, late.inode()), b"BYTES");
    exporter.unlink(&me(), ROOT, &name("f")).unwrap();
    drop(late);
    eventually("it is removed", 5, || objects(&exporter) == 0);
    let gone = import(&member, &passed);
    assert_eq!(gone.read_at(&mut [0; 9], 0), Err(Error::Stale));
}

#[test]
fn members_go_on_when_the_shard_moves() {
    let fs = FileSystem::start(Wanted { shards_per_node: 1, ..Wanted::default() });
    let (exporter, member, other) = (fs.client(Way::Auto), fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&exporter, "f", BOTH);
    file.write_at(b"bytes", 0).unwrap();
    let shared = import(&member, &passed(&file));
    drop(file);
    let shard = routing::of_inode(shared.inode());
    let from = other.map().node_of(shard).unwrap();
    other.node_request(NodeId(0), NodeRequest::Move { shard, to: NodeId(1 - from.0) }).unwrap();
    other.unlink(&me(), ROOT, &name("f")).unwrap();
    let end = Instant::now() + Duration::from_secs(13);
    while Instant::now() < end {
        assert_eq!(read(&shared, 0, 9), b"bytes");
        shared.write_at(b"bytes", 0).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    drop(shared);
    eventually("it is removed", 5, || objects(&other) == 0);
}
