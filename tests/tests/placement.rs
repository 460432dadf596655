//! Parts of split files that go to any node, and not to the writer's own, where the writer has said so.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{InodeNumber, NodeId, Plan};
use weft_client::{Client, File, JoinOptions, OpenOptions, Way};
use weft_tests::{FileSystem, Wanted, contents, open, pattern};

const NODES: u16 = 3;
const OWN: OpenOptions = OpenOptions::of(Access::ReadWrite);
const SPREAD: OpenOptions = OpenOptions { spread: true, ..OWN };

/// Writes to as many files as there are nodes. Returns where their parts are.
fn nodes_of(client: &Client, files: &[File]) -> BTreeSet<NodeId> {
    let mut nodes = BTreeSet::new();
    for file in files {
        let bytes = pattern(100_000, 7);
        bytes.chunks(47_008).enumerate().for_each(|(index, part)| {
            file.write_at(part, index as u64 * 47_008).unwrap();
        });
        file.sync().unwrap();
        assert!(contents(client, file.inode()) == bytes);
        let located = client.locate(&FileSystem::me(), file.inode()).unwrap();
        nodes.extend(located.iter().filter_map(|piece| piece.node));
    }
    nodes
}

#[test]
fn parts_go_to_one_node_after_the_other_if_their_writer_has_said_so() {
    let fs = FileSystem::start(Wanted { nodes: NODES, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let me = FileSystem::me();
    client.set_directory_plan(&me, InodeNumber::ROOT, Plan::Split).unwrap();
    for (options, count) in [(OWN, 1), (SPREAD, NODES as usize)] {
        let name = |kind: &str, index| format!("{kind}-{}-{index}", options.spread);
        let files: Vec<_> = (0..NODES).map(|index| open(&client, &name("opened", index), options)).collect();
        assert_eq!(nodes_of(&client, &files).len(), count, "{options:?}");
        let join = JoinOptions { spread: options.spread, ..JoinOptions::default() };
        let joined = |index| {
            let exported = open(&client, &name("joined", index), OWN).export(false).unwrap();
            client.import(&me, &exported, join).unwrap().0
        };
        let files: Vec<_> = (0..NODES).map(joined).collect();
        assert_eq!(nodes_of(&client, &files).len(), count, "{join:?}");
    }
}
