//! Nodes that end while clients go on.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use weft_client::protocol::message::shard::CreateFile;
use weft_client::protocol::{Error, InodeNumber, Name, NodeId, routing};
use weft_client::{Client, OpenOptions, Way};
use weft_tests::{FileSystem, Wanted};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: Option<CreateFile> = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Makes a file with contents and a directory. Where the file's bytes and the directory's inode are.
fn make(client: &Client, text: &str) -> (NodeId, NodeId) {
    let me = FileSystem::me();
    let (file, entry) = client.open_at(&me, ROOT, &name(text), OpenOptions::WRITE, NEW).unwrap();
    file.write_at(text.as_bytes(), 0).unwrap();
    file.close().unwrap();
    let location = client.locate(&me, entry.attributes.inode).unwrap().remove(0);
    let directory = client.make_directory(&me, ROOT, &name(&format!("{text}.d")), 0o755).unwrap();
    (location.node.unwrap(), client.map().node_of(routing::of_inode(directory.attributes.inode)).unwrap())
}

/// A client whose home is not at the node of `/`.
fn client_elsewhere(fs: &FileSystem, way: Way) -> (Client, NodeId) {
    for number in 0..1000 {
        let client = fs.client(way);
        let (home, _) = make(&client, &format!("search{number}"));
        if home != NodeId(0) {
            return (client, home);
        }
    }
    panic!("every client chose node 0");
}

#[test]
fn a_client_whose_home_ended_makes_files_elsewhere() {
    let mut fs = FileSystem::start(Wanted { nodes: 3, shards_per_node: 1, ..Wanted::default() });
    let (client, home) = client_elsewhere(&fs, Way::Auto);
    assert_eq!(make(&client, "before"), (home, home), "files and directories are made at the client's home");
    fs.stop_node(home);
    let (file_at, directory_at) = make(&client, "after");
    assert!(file_at != home && directory_at != home, "the client has another home now");
    assert_eq!(make(&client, "later"), (file_at, file_at), "and stays there");
    // Others come by chance to any node, also to the one that has ended.
    for number in 0..8 {
        let (file_at, directory_at) = make(&fs.client(Way::Auto), &format!("new{number}"));
        assert!(file_at != home && directory_at != home, "{file_at} {directory_at}");
    }
}

#[test]
fn a_client_without_a_node_on_its_machine_makes_files_at_all_that_live() {
    let mut fs = FileSystem::start(Wanted { nodes: 3, shards_per_node: 1, near: false, ..Wanted::default() });
    let client = fs.client(Way::Tcp);
    let made = |text: &str| (0..6).map(|number| make(&client, &format!("{text}{number}"))).collect::<Vec<_>>();
    let files = |made: &[(NodeId, NodeId)]| made.iter().map(|(file, _)| *file).collect::<BTreeSet<_>>();
    assert_eq!(files(&made("before")), [NodeId(0), NodeId(1), NodeId(2)].into());
    let ended = NodeId(2);
    fs.stop_node(ended);
    let after = made("after");
    assert_eq!(files(&after), [NodeId(0), NodeId(1)].into());
    assert!(after.iter().all(|(_, directory)| *directory != ended), "{after:?}");
    // Others begin with any node, also with the one that has ended.
    for number in 0..8 {
        let (file_at, directory_at) = make(&fs.client(Way::Tcp), &format!("new{number}"));
        assert!(file_at != ended && directory_at != ended, "{file_at} {directory_at}");
    }
}

#[test]
fn a_directory_comes_first_as_well() {
    let mut fs = FileSystem::start(Wanted { nodes: 3, shards_per_node: 1, ..Wanted::default() });
    let (client, home) = client_elsewhere(&fs, Way::Auto);
    fs.stop_node(home);
    let entry = client.make_directory(&FileSystem::me(), ROOT, &name("d"), 0o755).unwrap();
    assert_ne!(client.map().node_of(routing::of_inode(entry.attributes.inode)), Some(home));
}

/// The node may have had bytes that the shard has not heard of.
#[test]
fn a_file_in_use_at_a_node_that_has_ended_has_no_size_and_can_be_removed() {
    let mut fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
    let (writer, home) = client_elsewhere(&fs, Way::Auto);
    let me = FileSystem::me();
    let direct = OpenOptions { direct: true, ..OpenOptions::WRITE };
    let (file, entry) = writer.open_at(&me, ROOT, &name("log"), direct, NEW).unwrap();
    file.write_at(b"one", 0).unwrap();
    let inode = entry.attributes.inode;
    let other = fs.client(Way::Auto);
    assert_eq!(other.attributes(&me, inode).unwrap().attributes.size, 3);
    fs.stop_node(home);
    assert_eq!(other.attributes(&me, inode), Err(Error::Unreachable));
    assert!(other.lookup(&me, ROOT, &name("log")).unwrap().size_in_doubt);
    other.unlink(&me, ROOT, &name("log")).unwrap();
    assert_eq!(other.lookup(&me, ROOT, &name("log")), Err(Error::NotFound));
}
