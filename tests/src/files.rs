//! What many tests do with files and nodes. They panic with the reason when it fails.

use crate::FileSystem;
use std::thread;
use std::time::{Duration, Instant};
use weft_client::{Client, File, OpenOptions, Way};
use weft_protocol::message::node::{NodeAnswer, NodeRequest, NodeStatus};
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{InodeNumber, Name, NodeId};

/// Opens a file of the root directory, and makes it if it is not there.
pub fn open(client: &Client, text: &str, options: OpenOptions) -> File {
    let name = Name::new(text.as_bytes()).expect("a name");
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    client.open_at(&FileSystem::me(), InodeNumber::ROOT, &name, options, create).expect("opened").0
}

/// Makes a file of the root shard, which is at node 0, with these bytes and its object at this node.
pub fn file_with_object_at(fs: &FileSystem, node: NodeId, way: Way, bytes: &[u8]) -> InodeNumber {
    let me = FileSystem::me();
    for number in 0..1000 {
        let client = fs.client(way);
        let name = Name::new(format!("f{number}").as_bytes()).expect("a name");
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        let (file, _) = client.open_at(&me, InodeNumber::ROOT, &name, OpenOptions::WRITE, create).expect("made");
        file.write_at(bytes, 0).expect("written");
        file.close().expect("closed");
        let attributes = client.lookup(&me, InodeNumber::ROOT, &name).expect("it is there").attributes;
        client.close().expect("closed");
        if attributes.layout.object().is_some_and(|object| object.node() == node) {
            return attributes.inode;
        }
    }
    panic!("every client chose another node");
}

/// All bytes of a file, as this client reads them.
pub fn contents(client: &Client, inode: InodeNumber) -> Vec<u8> {
    let file = client.open(&FileSystem::me(), inode, OpenOptions::READ).expect("opened");
    let mut bytes = vec![0; usize::try_from(file.size().expect("a size")).expect("small")];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Bytes of which no two pages, and no two seeds, are alike.
pub fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index * 31 + index / 4096 + seed) % 251) as u8).collect()
}

/// Objects on all nodes.
pub fn objects(client: &Client) -> u64 {
    let spaces = client.space().expect("the nodes tell").nodes.into_iter();
    spaces.map(|(_, space)| space.expect("each node tells").objects).sum()
}

/// Waits until it is so; `what` is to be.
pub fn eventually(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What the first node says of itself.
pub fn status(client: &Client) -> NodeStatus {
    match client.node_request(NodeId(0), NodeRequest::Status).expect("the node answers") {
        NodeAnswer::Status(status) => *status,
        other => panic!("no status: {other:?}"),
    }
}

/// A small random number generator (xorshift64*, Vigna 2016). Not from 0.
pub struct Random(pub u64);

impl Random {
    /// The next number, below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}
