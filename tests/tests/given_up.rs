//! Writes that a client gave up, since the node did not answer within the soft time: when their bytes arrive at last,
//! they land behind nothing that the client has done since.

use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::AttributeChanges;
use weft_client::protocol::message::shard::Access;
use weft_client::{Client, ClientOptions, File, OpenOptions, Way};
use weft_protocol::{Error, InodeNumber, NodeId};
use weft_tests::{FileSystem, Link, Wanted, contents, file_with_object_at};

const STORAGE: NodeId = NodeId(1);
const SOFT: Duration = Duration::from_secs(2);
const SLOWLY: Duration = Duration::from_secs(30);
/// Less than a socket takes while nobody reads.
const BYTES: usize = 200_000;
/// Bytes of the write that is given up, those of the next, and those that the file had.
const LATE: u8 = b'S';
const NEXT: u8 = b'Z';
const OLD: u8 = b'o';

/// A file whose object is at a node behind a link.
struct Scene {
    fs: FileSystem,
    link: Link,
    client: Client,
    inode: InodeNumber,
    file: File,
}

impl Scene {
    fn new(options: OpenOptions) -> Self {
        let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
        let inode = file_with_object_at(&fs, STORAGE, Way::Tcp, &[OLD; BYTES]);
        let mut instance = fs.instance.clone();
        let record = instance.map.nodes.iter_mut().find(|node| node.id == STORAGE).expect("it is in the map");
        let link = Link::start(record.address.tcp.parse().expect("an address"));
        record.address.tcp = link.address.to_string();
        let options_of_client = ClientOptions { way: Way::Tcp, soft: Some(SOFT), ..ClientOptions::default() };
        let client = Client::connect(&instance, &options_of_client).expect("client");
        let file = client.open(&FileSystem::me(), inode, options).expect("opened");
        // There is a connection for data before the link is cut.
        file.write_at(&[OLD], 0).expect("written");
        file.sync().expect("synced");
        Self { fs, link, client, inode, file }
    }

    /// Writes while the link is cut, which fails. Then the link is good for new connections alone.
    fn give_up(&self) {
        self.link.cut(true);
        let written = self.file.write_at(&[LATE; BYTES], 0).and_then(|_| self.file.flush());
        assert_eq!(written, Err(Error::Unreachable));
        self.link.heal_for_new();
    }

    /// What was sent over the former connections arrives.
    fn arrive(&self) {
        let ended = self.link.ended();
        self.link.cut(false);
        let deadline = Instant::now() + SLOWLY;
        while self.link.ended() == ended {
            assert!(Instant::now() < deadline, "no connection has ended");
            thread::sleep(Duration::from_millis(5));
        }
        // As long as a node takes to write that many times over.
        thread::sleep(Duration::from_millis(300));
    }
}

fn each_way(test: impl Fn(&Scene)) {
    for direct in [false, true] {
        test(&Scene::new(OpenOptions { direct, ..OpenOptions::of(Access::ReadWrite) }));
    }
}

#[test]
fn a_write_that_was_given_up_does_not_land_behind_the_next_one() {
    each_way(|scene| {
        scene.give_up();
        scene.file.write_at(&[NEXT; BYTES], 0).expect("the node answers");
        scene.file.sync().expect("synced");
        scene.arrive();
        let found = contents(&scene.fs.client(Way::Tcp), scene.inode);
        assert_eq!(found.iter().position(|byte| *byte != NEXT), None, "bytes of the write that was given up");
        assert_eq!(found.len(), BYTES);
    });
}

#[test]
fn a_write_that_was_given_up_does_not_land_behind_what_its_client_has_read_since() {
    each_way(|scene| {
        scene.give_up();
        let mut read = vec![0; BYTES];
        assert_eq!(scene.file.read_at(&mut read, 0), Ok(BYTES));
        scene.arrive();
        assert_eq!(contents(&scene.fs.client(Way::Tcp), scene.inode), read);
    });
}

#[test]
fn a_write_that_was_given_up_does_not_land_behind_a_cut() {
    each_way(|scene| {
        scene.give_up();
        let shorter = AttributeChanges { size: Some(10), ..AttributeChanges::default() };
        scene.client.set_attributes(&FileSystem::me(), scene.inode, &shorter).expect("cut");
        scene.arrive();
        assert_eq!(contents(&scene.fs.client(Way::Tcp), scene.inode).len(), 10);
    });
}

/// Of a file that was written under a lease: one that is open directly is under none.
#[test]
fn a_write_that_was_given_up_does_not_land_behind_those_of_a_client_that_opens_the_file() {
    let scene = Scene::new(OpenOptions::of(Access::ReadWrite));
    scene.give_up();
    // The recall asks the node how long the file is, and so has the write revoked.
    let next = scene.fs.client(Way::Tcp);
    let file = next.open(&FileSystem::me(), scene.inode, OpenOptions::of(Access::Write)).expect("opened");
    file.write_at(&[NEXT; BYTES], 0).expect("written");
    file.close().expect("closed");
    scene.arrive();
    let found = contents(&scene.fs.client(Way::Tcp), scene.inode);
    assert_eq!(found.iter().position(|byte| *byte != NEXT), None, "bytes of the write that was given up");
}
