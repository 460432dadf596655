//! Operations over shards of several nodes, while a client is in their way.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{CreateFile, RenameMode};
use weft_client::protocol::{InodeNumber, Name, NodeId, routing};
use weft_client::{Client, OpenOptions, Way};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_tests::{FileSystem, Stuck, Wanted};

const ROOT: InodeNumber = InodeNumber::ROOT;
/// More than the threads with which a node makes its other requests to another one.
const FILES: usize = 9;

fn make_file(client: &Client, directory: InodeNumber, name: &Name) {
    let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
    client.open_at(&FileSystem::me(), directory, name, OpenOptions::WRITE, create).unwrap().0.close().unwrap();
}

/// A directory in `/` that is not at the node of `/`.
fn directory_elsewhere(fs: &FileSystem) -> InodeNumber {
    for number in 0..1000 {
        let name = Name::new(format!("search{number}").as_bytes()).unwrap();
        let client = fs.client(Way::Tcp);
        let made = client.make_directory(&FileSystem::me(), ROOT, &name, 0o755).unwrap().attributes.inode;
        if client.map().node_of(routing::of_inode(made)) != Some(NodeId(0)) {
            return made;
        }
    }
    panic!("every directory is at node 0");
}

#[test]
fn renames_to_another_node_wait_for_a_client_longer_than_for_a_node() {
    let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
    let (stuck, maker, me) = (fs.client(Way::Tcp), fs.client(Way::Tcp), FileSystem::me());
    let directory = directory_elsewhere(&fs);
    let names: Vec<_> = (0..FILES).map(|number| Name::new(format!("f{number}").as_bytes()).unwrap()).collect();
    for name in &names {
        make_file(&maker, ROOT, name);
        make_file(&maker, directory, name);
    }
    let held = Stuck::new(&stuck);
    for name in &names {
        stuck.lookup(&me, directory, name).unwrap();
    }
    // It does not know what it replaces: a guess of that would be tried twice.
    let (other, since) = (fs.client(Way::Tcp), Instant::now());
    std::thread::scope(|scope| {
        let rename = |name| other.rename(&me, ROOT, name, directory, name, RenameMode::Replace);
        let renames: Vec<_> = names.iter().map(|name| scope.spawn(move || rename(name))).collect();
        for (rename, name) in renames.into_iter().zip(&names) {
            assert_eq!(rename.join().unwrap(), Ok(()), "{name:?}");
        }
    });
    assert!(since.elapsed() > Duration::from_millis(SESSION_TERM_MS), "nothing was in the way");
    held.release();
}
