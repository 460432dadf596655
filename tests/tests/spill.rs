//! Split files whose writers chose to go on at another node when their own is full: nothing is lost, and no part stays
//! that has no bytes. Without that choice there is no space.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use std::thread;
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{Error, InodeNumber, Name, NodeId, Plan, Result};
use weft_client::{Client, File, JoinOptions, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, contents, eventually, objects, open, pattern, with_each_store};

with_each_store! {
    writes_go_on_at_another_node_if_that_was_chosen,
    members_go_on_at_another_node_if_that_was_chosen,
    what_was_acknowledged_is_there_when_all_nodes_are_full,
    appends_and_lists_go_on_at_another_node,
    threads_of_one_handle_go_on_together,
}

/// By descriptors the kernel refuses what is too much.
#[test]
fn writes_by_descriptor_go_on_at_another_node() {
    if let Err(error) = weft_store_io::DirectoryStore::in_memory(Some(1 << 20)) {
        eprintln!("skip: {error}");
        return;
    }
    writes_go_on_at_another_node_if_that_was_chosen(Stored::Memory);
    members_go_on_at_another_node_if_that_was_chosen(Stored::Memory);
    appends_and_lists_go_on_at_another_node(Stored::Memory);
    threads_of_one_handle_go_on_together(Stored::Memory);
    what_was_acknowledged_is_there_when_all_nodes_are_full(Stored::Memory);
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const SPILL: OpenOptions = OpenOptions { spill: true, ..BOTH };
const MIB: usize = 1 << 20;
/// Of a node's store, and bytes for which one has no space, but two have.
const STORE_BYTES: u64 = 32 << 20;
const MUCH: usize = 36 * MIB;

fn me() -> weft_client::protocol::Credentials {
    FileSystem::me()
}

/// Two nodes on this machine, or on others, and new files that are split.
fn in_each_way(stored: Stored, check: impl Fn(&FileSystem, Way)) {
    for (near, way) in [(true, Way::Auto), (true, Way::Tcp), (false, Way::Auto)] {
        eprintln!("{stored:?}, near {near}, {way:?}");
        let wanted = Wanted { stored, near, store_bytes: Some(STORE_BYTES), ..Wanted::default() };
        let fs = FileSystem::start(wanted);
        fs.client(way).set_directory_plan(&me(), ROOT, Plan::Split).unwrap();
        check(&fs, way);
    }
}

fn inode(client: &Client, text: &str) -> InodeNumber {
    client.lookup(&me(), ROOT, &Name::new(text.as_bytes()).unwrap()).unwrap().attributes.inode
}

/// Nodes that have bytes of a file.
fn nodes(client: &Client, text: &str) -> BTreeSet<NodeId> {
    let located = client.locate(&me(), inode(client, text)).unwrap();
    located.iter().filter_map(|piece| piece.node).collect()
}

/// Writes pieces of a file, which are like a pattern, until one is refused. Returns how many bytes were written.
fn fill(file: &File, piece: usize, most: usize) -> (usize, Result<()>) {
    let bytes = pattern(most, 5);
    for (index, part) in bytes.chunks(piece).enumerate() {
        if let Err(error) = file.write_at(part, (index * piece) as u64) {
            return (index * piece, Err(error));
        }
    }
    (most, Ok(()))
}

/// A client that comes later, by another way, reads a file that begins with a pattern.
fn has(fs: &FileSystem, text: &str, bytes: usize) {
    for way in [Way::Auto, Way::Tcp] {
        let client = fs.client(way);
        let found = contents(&client, inode(&client, text));
        assert!(found.len() >= bytes && found[..bytes] == pattern(bytes, 5), "{text}: {} bytes", found.len());
    }
}

/// With the file gone, and its clients, all space is there again.
fn leaves_nothing(fs: &FileSystem, client: &Client, text: &str) {
    client.unlink(&me(), ROOT, &Name::new(text.as_bytes()).unwrap()).unwrap();
    let other = fs.client(Way::Auto);
    eventually("no part is left", 20, || objects(&other) == 0);
}

fn writes_go_on_at_another_node_if_that_was_chosen(stored: Stored) {
    in_each_way(stored, |fs, way| {
        for piece in [47_008, 5 * MIB] {
            let client = fs.client(way);
            let file = open(&client, "here", BOTH);
            let (written, refused) = fill(&file, piece, MUCH);
            assert_eq!(refused, Err(Error::NoSpace), "{piece}");
            has(fs, "here", written);
            assert_eq!(nodes(&client, "here").len(), 1);
            file.close().unwrap();
            client.unlink(&me(), ROOT, &Name::new(b"here").unwrap()).unwrap();
            drop(client);
            eventually("its part is gone", 20, || objects(&fs.client(Way::Auto)) == 0);

            let client = fs.client(way);
            let file = open(&client, "f", SPILL);
            assert_eq!(fill(&file, piece, MUCH), (MUCH, Ok(())), "{piece}");
            assert_eq!(nodes(&client, "f").len(), 2);
            assert!(contents(&client, inode(&client, "f")) == pattern(MUCH, 5));
            // What lies at the full node is written over where the handle is now.
            file.write_at(&pattern(piece, 5), 0).unwrap();
            file.sync().unwrap();
            file.close().unwrap();
            has(fs, "f", MUCH);
            assert_eq!(objects(&client), 2, "{piece}");
            leaves_nothing(fs, &client, "f");
        }
    });
}

fn members_go_on_at_another_node_if_that_was_chosen(stored: Stored) {
    in_each_way(stored, |fs, way| {
        for piece in [47_008, MIB] {
            let clients = [fs.client(way), fs.client(way)];
            let exported = open(&clients[0], "f", BOTH).export(false).unwrap();
            let join = |client: &Client, spill| {
                client.import(&me(), &exported, JoinOptions { spill, ..JoinOptions::default() }).unwrap().0
            };
            let (chosen, other) = (join(&clients[0], true), join(&clients[1], false));
            other.write_at(b"by another", MUCH as u64).unwrap();
            other.sync().unwrap();
            assert_eq!(fill(&chosen, piece, MUCH), (MUCH, Ok(())), "{piece}");
            let mut back = vec![0; MUCH];
            assert_eq!(chosen.read_at(&mut back, 0).unwrap(), MUCH);
            assert!(back == pattern(MUCH, 5), "{piece}: read back before it is synchronized");
            chosen.sync().unwrap();
            // Both nodes have little space now, and the first has none.
            let refused = (0..40).find_map(|index| {
                let written = other.write_at(&pattern(MIB, 9), (MUCH + (1 + index) * MIB) as u64);
                written.and_then(|()| other.flush()).err()
            });
            assert_eq!(refused, Some(Error::NoSpace));
            other.sync().unwrap();
            drop((chosen, other));
            has(fs, "f", MUCH);
            assert_eq!(nodes(&clients[0], "f").len(), 2);
            leaves_nothing(fs, &clients[0], "f");
        }
    });
}

fn what_was_acknowledged_is_there_when_all_nodes_are_full(stored: Stored) {
    in_each_way(stored, |fs, way| {
        let client = fs.client(way);
        let file = open(&client, "f", SPILL);
        let (written, refused) = fill(&file, 300_000, 3 * MUCH);
        assert_eq!(refused, Err(Error::NoSpace));
        assert!(written > MUCH, "{written} bytes fit");
        assert_eq!(file.write_at(&pattern(MIB, 7), (4 * MUCH) as u64), Err(Error::NoSpace), "and again");
        file.sync().unwrap();
        has(fs, "f", written);
        file.close().unwrap();
        has(fs, "f", written);
        assert_eq!(objects(&client), 2);
        leaves_nothing(fs, &client, "f");
    });
}

fn appends_and_lists_go_on_at_another_node(stored: Stored) {
    in_each_way(stored, |fs, way| {
        let client = fs.client(way);
        let file = open(&client, "appended", OpenOptions { append: true, ..SPILL });
        pattern(MUCH, 5).chunks(MIB).for_each(|piece| file.write_at(piece, 0).unwrap());
        file.close().unwrap();
        has(fs, "appended", MUCH);
        leaves_nothing(fs, &client, "appended");

        let file = open(&client, "listed", SPILL);
        let bytes = pattern(MUCH, 5);
        for (index, part) in bytes.chunks(4 * MIB).enumerate() {
            let pieces = part.chunks(100_000).enumerate();
            let list: Vec<_> =
                pieces.map(|(place, piece)| (piece, (index * 4 * MIB + place * 100_000) as u64)).collect();
            file.write_list(&list).unwrap();
        }
        file.close().unwrap();
        has(fs, "listed", MUCH);
        leaves_nothing(fs, &client, "listed");
    });
}

fn threads_of_one_handle_go_on_together(stored: Stored) {
    in_each_way(stored, |fs, way| {
        let client = fs.client(way);
        let file = open(&client, "f", SPILL);
        let bytes = pattern(MUCH, 5);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    for (index, piece) in bytes.chunks(MIB / 2).enumerate().skip(thread).step_by(4) {
                        file.write_at(piece, (index * MIB / 2) as u64).unwrap();
                    }
                });
            }
        });
        file.close().unwrap();
        has(fs, "f", MUCH);
        assert_eq!(objects(&client), 2);
        leaves_nothing(fs, &client, "f");
    });
}
