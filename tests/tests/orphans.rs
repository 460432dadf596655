//! Objects that no shard knows: those of clients that are gone are collected, and no others.

use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::limits::SESSION_TERM_MS;
use weft_client::{Client, ClientOptions, File, OpenOptions, Way};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::{InodeNumber, NodeId};
use weft_tests::{FileSystem, Link, Wanted, contents, open, pattern};

const STORAGE: usize = 1;
/// Several runs of what a client gathers: most of it is sent before the file is flushed.
const BYTES: usize = 3_000_000;
const SLOWLY: Duration = Duration::from_secs(90);

/// A file of the shard at node 0, written and not flushed, with its new object at another node. The client reaches both
/// through links.
struct Scene {
    fs: FileSystem,
    links: Vec<Link>,
    file: File,
    inode: InodeNumber,
}

impl Scene {
    fn new() -> Self {
        let fs = FileSystem::start(Wanted { nodes: 2, shards_per_node: 1, ..Wanted::default() });
        let mut instance = fs.instance.clone();
        let mut links = Vec::new();
        for record in &mut instance.map.nodes {
            let link = Link::start(record.address.tcp.parse().expect("an address"));
            record.address.tcp = link.address.to_string();
            links.push(link);
        }
        let options = ClientOptions { way: Way::Tcp, ..ClientOptions::default() };
        for number in 0..1000 {
            let client = Client::connect(&instance, &options).expect("client");
            let file = open(&client, &format!("f{number}"), OpenOptions::WRITE);
            file.write_at(&pattern(BYTES, 7), 0).expect("written");
            if objects(&fs) > 0 {
                let inode = file.inode();
                return Self { fs, links, file, inode };
            }
        }
        panic!("every client chose another node");
    }
}

/// The number of objects at the storage server.
fn objects(fs: &FileSystem) -> u64 {
    let node = NodeId(u16::try_from(STORAGE).expect("a node"));
    match fs.client(Way::Auto).node_request(node, NodeRequest::Status) {
        Ok(NodeAnswer::Status(status)) => status.space.expect("it has a store").objects,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_client_wrote_stays_while_it_is_cut_off_from_the_storage_server_alone() {
    let Scene { fs, links, file, inode } = Scene::new();
    links[STORAGE].sever();
    // The storage server takes the session for ended, and asks the shard: that hears of the client.
    thread::sleep(Duration::from_millis(SESSION_TERM_MS + 3_000));
    assert_eq!(objects(&fs), 1, "the object of a client that lives");
    links[STORAGE].cut(false);
    file.close().expect("closed");
    assert!(contents(&fs.client(Way::Tcp), inode) == pattern(BYTES, 7), "bytes are lost");
}

#[test]
fn the_object_of_a_client_that_is_gone_is_collected() {
    let Scene { fs, links, file, .. } = Scene::new();
    links.iter().for_each(Link::sever);
    // It ends without a goodbye.
    std::mem::forget(file);
    let deadline = Instant::now() + SLOWLY;
    while objects(&fs) > 0 {
        assert!(Instant::now() < deadline, "it is still there");
        thread::sleep(Duration::from_millis(200));
    }
}
