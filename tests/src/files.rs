//! What many tests do with files and nodes. They panic with the reason when it fails.

use crate::FileSystem;
use weft_client::{Client, File, OpenOptions};
use weft_protocol::message::node::{NodeAnswer, NodeRequest, NodeStatus};
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{InodeNumber, Name, NodeId};

/// Opens a file of the root directory, and makes it if it is not there.
pub fn open(client: &Client, text: &str, options: OpenOptions) -> File {
    let name = Name::new(text.as_bytes()).expect("a name");
    let create = Some(CreateFile { mode: 0o644, exclusive: false });
    client.open_at(&FileSystem::me(), InodeNumber::ROOT, &name, options, create).expect("opened").0
}

/// Bytes of which no two pages, and no two seeds, are alike.
pub fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index * 31 + index / 4096 + seed) % 251) as u8).collect()
}

/// What the first node says of itself.
pub fn status(client: &Client) -> NodeStatus {
    match client.node_request(NodeId(0), NodeRequest::Status).expect("the node answers") {
        NodeAnswer::Status(status) => *status,
        other => panic!("no status: {other:?}"),
    }
}
