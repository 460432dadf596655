//! Striped files over four real nodes: where their bytes lie, and that they are files like others.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::protocol::{
    AttributeChanges, Attributes, Credentials, Error, InodeNumber, Layout, Name, NodeId, Plan, StripePlan,
};
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, contents, eventually, objects, pattern, with_each_store};

with_each_store! {
    bytes_lie_on_all_nodes_in_turns,
    a_size_reaches_every_object,
    writers_that_share_a_file_see_one_another,
    appends_of_several_clients_do_not_mix,
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const STRIPE: u32 = 64 << 10;
const STRIPE_BYTES: u64 = STRIPE as u64;

fn me() -> Credentials {
    FileSystem::me()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn four_nodes(stored: Stored) -> FileSystem {
    FileSystem::start(Wanted { nodes: 4, stored, ..Wanted::default() })
}

/// A directory whose files are striped over four nodes.
fn striped_directory(client: &Client) -> InodeNumber {
    let directory = client.make_directory(&me(), ROOT, &name("striped"), 0o755).unwrap().attributes.inode;
    let plan = stripes(4);
    let told = client.set_directory_plan(&me(), directory, plan).unwrap().attributes;
    assert_eq!(told.layout.plan(), plan);
    directory
}

fn open_in(client: &Client, directory: InodeNumber, text: &str, options: OpenOptions) -> File {
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    client.open_at(&me(), directory, &name(text), options, create).unwrap().0
}

fn attributes(client: &Client, inode: InodeNumber) -> Attributes {
    client.attributes(&me(), inode).unwrap().attributes
}

fn bytes_lie_on_all_nodes_in_turns(stored: Stored) {
    for way in [Way::Auto, Way::Tcp] {
        let fs = four_nodes(stored);
        let client = fs.client(way);
        let directory = striped_directory(&client);
        let bytes = pattern(9 * STRIPE as usize + 1234, 1);
        for (text, request) in [("small", 5000), ("stripe", STRIPE as usize), ("large", 3 << 20)] {
            let file = open_in(&client, directory, text, OpenOptions::WRITE);
            let mut offset = 0;
            for part in bytes.chunks(request) {
                file.write_at(part, offset).unwrap();
                offset += part.len() as u64;
            }
            let inode = file.inode();
            file.close().unwrap();

            let reader = fs.client(way);
            assert!(contents(&reader, inode) == bytes, "{text}, {way:?}");
            let file = reader.open(&me(), inode, OpenOptions::READ).unwrap();
            for (offset, length) in [(0, 10), (STRIPE_BYTES - 3, 6), (3 * STRIPE_BYTES + 7, 5 * STRIPE as usize)] {
                let mut found = vec![0; length];
                assert_eq!(file.read_at(&mut found, offset), Ok(length));
                let start = usize::try_from(offset).unwrap();
                assert!(found == bytes[start..start + length], "{length} bytes at {offset}");
            }
            let told = attributes(&reader, inode);
            assert_eq!((told.size, told.layout.objects().len()), (bytes.len() as u64, 4));
            let places = reader.locate(&me(), inode).unwrap();
            assert_eq!(places.len(), 10);
            let nodes: Vec<NodeId> = places.iter().map(|place| place.node.unwrap()).collect();
            assert_eq!(nodes[..4].iter().collect::<BTreeSet<_>>().len(), 4);
            assert_eq!((&nodes[..4], &nodes[..2]), (&nodes[4..8], &nodes[8..]));
            assert_eq!((places[9].offset, places[9].bytes), (9 * STRIPE_BYTES, 1234));
        }
        assert_eq!(objects(&client), 12);
        for text in ["small", "stripe", "large"] {
            client.unlink(&me(), directory, &name(text)).unwrap();
        }
        eventually("all objects go with their files", 10, || objects(&client) == 0);
    }
}

fn a_size_reaches_every_object(stored: Stored) {
    let fs = four_nodes(stored);
    let client = fs.client(Way::Auto);
    let directory = striped_directory(&client);
    let bytes = pattern(8 * STRIPE as usize, 2);
    let file = open_in(&client, directory, "file", BOTH);
    file.write_at(&bytes, 0).unwrap();
    let inode = file.inode();
    for size in [6 * STRIPE_BYTES + 5, 2 * STRIPE_BYTES, STRIPE_BYTES - 1] {
        // Cut while it is open here, or by a client that has it not open.
        if size == 2 * STRIPE_BYTES {
            let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
            fs.client(Way::Tcp).set_attributes(&me(), inode, &changes).unwrap();
        } else {
            file.truncate(size).unwrap();
        }
        assert_eq!(file.size(), Ok(size));
        file.truncate(8 * STRIPE_BYTES).unwrap();
        let mut found = contents(&fs.client(Way::Tcp), inode);
        let kept = usize::try_from(size).unwrap();
        assert!(found[..kept] == bytes[..kept], "{size}");
        assert!(found.split_off(kept).iter().all(|byte| *byte == 0), "nothing of before comes back: {size}");
    }
    file.close().unwrap();

    let file = open_in(&client, directory, "file", OpenOptions::WRITE);
    file.write_at(b"new", 5 * STRIPE_BYTES).unwrap();
    file.close().unwrap();
    let found = contents(&fs.client(Way::Tcp), inode);
    assert_eq!((found.len() as u64, &found[found.len() - 3..]), (5 * STRIPE_BYTES + 3, &b"new"[..]));
    assert!(found[..found.len() - 3].iter().all(|byte| *byte == 0));
    assert_eq!(attributes(&client, inode).layout.objects().len(), 4);

    let file = open_in(&client, directory, "extended", BOTH);
    file.truncate(3 * STRIPE_BYTES + 1).unwrap();
    file.write_at(b"x", 0).unwrap();
    file.close().unwrap();
    assert_eq!(
        contents(&fs.client(Way::Auto), file_of(&client, directory, "extended")).len() as u64,
        3 * STRIPE_BYTES + 1
    );
}

fn file_of(client: &Client, directory: InodeNumber, text: &str) -> InodeNumber {
    client.lookup(&me(), directory, &name(text)).unwrap().attributes.inode
}

fn writers_that_share_a_file_see_one_another(stored: Stored) {
    let fs = four_nodes(stored);
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Tcp));
    let directory = striped_directory(&a);
    let file_a = open_in(&a, directory, "shared", BOTH);
    file_a.write_at(b"gathered", 2 * STRIPE_BYTES - 4).unwrap();
    let file_b = open_in(&b, directory, "shared", BOTH);
    let mut found = [9; 12];
    assert_eq!(file_b.read_at(&mut found, 2 * STRIPE_BYTES - 8), Ok(12));
    assert_eq!(&found, b"\0\0\0\0gathered");
    // Each writes its part, as the processes of a parallel program do.
    let bytes = pattern(12 * STRIPE as usize, 3);
    std::thread::scope(|scope| {
        for (number, file) in [&file_a, &file_b].into_iter().enumerate() {
            let bytes = &bytes;
            scope.spawn(move || {
                for (index, part) in bytes.chunks(40_000).enumerate().filter(|(index, _)| index % 2 == number) {
                    file.write_at(part, index as u64 * 40_000).unwrap();
                }
            });
        }
    });
    for (client, file) in [(&a, &file_a), (&b, &file_b)] {
        assert_eq!(file.size(), Ok(bytes.len() as u64));
        assert_eq!(attributes(client, file.inode()).size, bytes.len() as u64);
        let mut found = vec![0; bytes.len() + 10];
        assert_eq!(file.read_at(&mut found, 0), Ok(bytes.len()), "no more than the file has");
        assert!(found[..bytes.len()] == bytes);
    }
    file_a.close().unwrap();
    file_b.close().unwrap();
    let inode = file_of(&a, directory, "shared");
    a.close().unwrap();
    b.close().unwrap();
    let reader = fs.client(Way::Auto);
    assert!(contents(&reader, inode) == bytes);
    reader.close().unwrap();
    let alone = fs.client(Way::Auto);
    let appending = open_in(&alone, directory, "shared", OpenOptions { append: true, ..BOTH });
    appending.write_at(b"end", 0).unwrap();
    assert_eq!(appending.size(), Ok(bytes.len() as u64 + 3));
    appending.close().unwrap();
}

/// What a writer appends: who it is, how often it has, how long this is, and bytes of that.
fn record(writer: u32, round: u32) -> Vec<u8> {
    let bytes = [100, 9_000, 150_000, 700_000][(writer + round) as usize % 4];
    let head = [writer, round, bytes].map(u32::to_le_bytes).concat();
    [head, pattern(bytes as usize, (writer * 1000 + round) as usize)].concat()
}

fn appends_of_several_clients_do_not_mix(stored: Stored) {
    const ROUNDS: u32 = 30;
    for way in [Way::Auto, Way::Tcp] {
        let fs = four_nodes(stored);
        let clients: Vec<_> = (0..3).map(|_| fs.client(way)).collect();
        let directory = striped_directory(&clients[0]);
        std::thread::scope(|scope| {
            for (writer, client) in (0..).zip(&clients) {
                // Two programs of one client, and one of each other.
                for half in if writer == 0 { vec![0, 1] } else { vec![2] } {
                    scope.spawn(move || {
                        let file = open_in(client, directory, "log", OpenOptions { append: true, ..BOTH });
                        for round in (0..ROUNDS).filter(|round| half == 2 || round % 2 == half) {
                            file.write_at(&record(writer, round), 0).unwrap();
                        }
                        file.close().unwrap();
                    });
                }
            }
        });
        let bytes = contents(&clients[2], file_of(&clients[2], directory, "log"));
        let mut found = BTreeSet::new();
        let mut left = &bytes[..];
        while !left.is_empty() {
            let number = |at: usize| u32::from_le_bytes(left[at..at + 4].try_into().unwrap());
            let (writer, round) = (number(0), number(4));
            left = left.strip_prefix(&record(writer, round)[..]).expect("each record is whole");
            assert!(found.insert((writer, round)), "{writer} has appended {round} once");
        }
        assert_eq!(found.len(), 3 * ROUNDS as usize, "by {way:?}");
    }
}

fn stripes(width: u16) -> Plan {
    StripePlan::new(width, STRIPE).expect("a plan").into()
}

#[test]
fn plans_are_inherited_and_may_be_taken_back() {
    let fs = FileSystem::start(Wanted { nodes: 3, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let directory = striped_directory(&client);
    let below = client.make_directory(&me(), directory, &name("below"), 0o755).unwrap().attributes;
    assert_eq!(below.layout.plan(), stripes(4));
    let file = open_in(&client, below.inode, "wide", OpenOptions::WRITE);
    assert_eq!(attributes(&client, file.inode()).layout.plan(), stripes(4));
    file.write_at(b"bytes", 0).unwrap();
    let inode = file.inode();
    file.close().unwrap();
    assert_eq!(attributes(&client, inode).layout.objects().len(), 3, "as many as there are nodes");

    assert_eq!(client.set_directory_plan(&me(), below.inode, Plan::Whole).unwrap().attributes.layout, Layout::Empty);
    let file = open_in(&client, below.inode, "whole", OpenOptions::WRITE);
    file.write_at(b"bytes", 0).unwrap();
    let inode = file.inode();
    file.close().unwrap();
    assert_eq!(attributes(&client, inode).layout.objects().len(), 1);
    let refused = client.set_directory_plan(&me(), inode, stripes(2));
    assert_eq!(refused.map(|entry| entry.attributes), Err(Error::NotDirectory));
}

#[test]
fn a_writer_that_ends_leaves_what_it_wrote_directly() {
    let fs = four_nodes(Stored::Files);
    let (writer, reader) = (fs.client(Way::Tcp), fs.client(Way::Tcp));
    let directory = striped_directory(&reader);
    let bytes = pattern(6 * STRIPE as usize + 77, 4);
    let file = open_in(&writer, directory, "direct", OpenOptions { direct: true, ..BOTH });
    file.write_at(&bytes, 0).unwrap();
    writer.forget_session();
    assert!(contents(&reader, file.inode()) == bytes);
}
