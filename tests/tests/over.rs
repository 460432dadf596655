//! A file system over a directory: where its files are.

use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{InodeNumber, Layout, Name, NodeId};
use weft_client::{OpenOptions, Way};
use weft_tests::{FileSystem, Wanted};

#[test]
fn a_file_is_read_to_the_node_on_the_machine_that_opens_it_first() {
    let file_system = FileSystem::start(Wanted { nodes: 3, over: true, ..Wanted::default() });
    let names: Vec<String> = (0..9).map(|number| format!("file{number}")).collect();
    for name in &names {
        std::fs::write(file_system.below().join(name), name).unwrap();
    }
    let (client, me) = (file_system.client(Way::Auto), FileSystem::me());
    for name in &names {
        let found = client.lookup(&me, InodeNumber::ROOT, &Name::new(name.as_bytes()).unwrap()).unwrap();
        let file = client.open(&me, found.attributes.inode, OpenOptions::of(Access::Read)).unwrap();
        let mut bytes = [0; 5];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, name.as_bytes()[..5]);
        file.close().unwrap();
        let Layout::Whole { object, .. } = client.attributes(&me, found.attributes.inode).unwrap().attributes.layout
        else {
            panic!("{name} has no object");
        };
        assert_eq!(object.node(), NodeId(2), "{name}");
    }
    client.close().unwrap();
}
