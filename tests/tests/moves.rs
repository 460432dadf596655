//! Shards that move between real nodes while a client changes what is in them.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::thread;
use weft_client::protocol::message::node::NodeRequest;
use weft_client::protocol::message::shard::RenameMode;
use weft_client::protocol::{Error, InodeNumber, Name, NodeId};
use weft_client::{Client, Way};
use weft_protocol::limits::SHARD_PART_BYTES_MAX;
use weft_protocol::{ShardId, routing};
use weft_tests::{FileSystem, Wanted, eventually};

/// Bytes of each symbolic link's target.
const TARGET_BYTES: usize = 3000;
/// So many of them are several parts of a shard.
const LINKS: usize = 4 * SHARD_PART_BYTES_MAX / TARGET_BYTES;
const MOVES: usize = 6;

fn name(number: usize) -> Name {
    Name::new(format!("link-{number}").as_bytes()).unwrap()
}

fn target(number: usize) -> Vec<u8> {
    format!("{number:0TARGET_BYTES$}").into_bytes()
}

/// The names of a directory, and which link each of them has.
struct Links<'a> {
    client: &'a Client,
    directory: InodeNumber,
    known: BTreeMap<usize, usize>,
    next: usize,
}

impl Links<'_> {
    fn make(&mut self) {
        let number = self.next;
        self.client.make_symlink(&FileSystem::me(), self.directory, &name(number), &target(number)).unwrap();
        self.known.insert(number, number);
        self.next += 1;
    }

    /// Makes a link, removes the first one, and gives the last one a new name.
    fn change(&mut self) {
        let (who, directory) = (FileSystem::me(), self.directory);
        self.make();
        let (first, _) = self.known.pop_first().unwrap();
        self.client.unlink(&who, directory, &name(first)).unwrap();
        let (last, of) = self.known.pop_last().unwrap();
        let new = self.next;
        self.client.rename(&who, directory, &name(last), directory, &name(new), RenameMode::Replace).unwrap();
        self.known.insert(new, of);
        self.next += 1;
    }

    /// What another client sees.
    fn check(&self, other: &Client) {
        let who = FileSystem::me();
        for number in 0..self.next {
            let found = other.lookup(&who, self.directory, &name(number));
            match self.known.get(&number) {
                Some(of) => {
                    let inode = found.unwrap().attributes.inode;
                    assert!(other.read_link(&who, inode).unwrap() == target(*of), "link {number}, once {of}");
                }
                None => assert_eq!(found.err(), Some(Error::NotFound), "link {number}"),
            }
        }
    }
}

fn move_shard(client: &Client, shard: ShardId, to: NodeId) {
    // The root shard's node decides, which may be either. On a slow machine a move may be given up.
    eventually("the shard moves", 120, || {
        [0, 1].iter().any(|node| client.node_request(NodeId(*node), NodeRequest::Move { shard, to }).is_ok())
    });
}

#[test]
fn what_changes_while_a_shard_moves_moves_with_it() {
    let fs = FileSystem::start(Wanted { shards_per_node: 1, ..Wanted::default() });
    let (owner, user, other) = (fs.client(Way::Auto), fs.client(Way::Auto), fs.client(Way::Auto));
    let directory = Name::new(b"d").unwrap();
    let directory = owner.make_directory(&FileSystem::me(), InodeNumber::ROOT, &directory, 0o755).unwrap();
    let directory = directory.attributes.inode;
    let mut links = Links { client: &user, directory, known: BTreeMap::new(), next: 0 };
    (0..LINKS).for_each(|_| links.make());
    let shard = routing::of_inode(directory);
    let at = owner.map().node_of(shard).unwrap();
    thread::scope(|scope| {
        let moves = scope.spawn(|| {
            for count in 1..=MOVES {
                move_shard(&owner, shard, if count % 2 == 0 { at } else { NodeId(1 - at.0) });
            }
        });
        while !moves.is_finished() {
            links.change();
        }
        moves.join().unwrap();
    });
    links.change();
    links.check(&other);
}
