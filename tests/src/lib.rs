//! A whole file system inside the test's process: real nodes, sockets and files, started and stopped by a value.
//!
//! Nodes run as threads. Each has an identity of its own if the test wants its data to go over TCP.

pub mod command;
mod cut;
mod files;
mod proxy;
mod raw;
mod stuck;

pub use cut::Link;
pub use files::{Random, contents, eventually, file_with_object_at, objects, open, pattern, status};
pub use proxy::{Held, Proxy};
pub use raw::{RawSession, enter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
pub use stuck::Stuck;
use weft_client::{Client, ClientOptions, Instance, Way};
use weft_node::{NodeConfig, StoreConfig, StorePlace};
use weft_protocol::message::node::NodeRequest;
use weft_protocol::{ClusterMap, Credentials, MapEpoch, NodeId, NodeIdentity, NodeKey, NodeRecord, ShardRecord};
use weft_region::{FileDevice, Format, Store};
use weft_store_io::region::REGION_SHIFT;

/// A running file system. Dropping it stops the nodes and removes their files.
pub struct FileSystem {
    pub instance: Instance,
    pub key: NodeKey,
    /// By node; `None`: it was stopped.
    threads: Vec<Option<JoinHandle<()>>>,
    /// With [`Wanted::links`]: those from other nodes to each node.
    pub links: Vec<Link>,
}

/// What a test wants.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub nodes: u16,
    pub shards_per_node: u16,
    pub stored: Stored,
    /// Cap of each store, bytes; of regions, the size of the file.
    pub store_bytes: Option<u64>,
    /// All nodes on this machine's identity, or each on another.
    pub near: bool,
    /// Everything in the temporary directory, which mostly is on a disk, and not in memory.
    pub on_disk: bool,
    /// Nodes reach one another through [`FileSystem::links`]. They are not on one identity then.
    pub links: bool,
    /// The file system lies over [`FileSystem::below`], and the last node alone is on this machine's identity.
    pub over: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            nodes: 2,
            shards_per_node: 2,
            stored: Stored::Files,
            store_bytes: None,
            near: true,
            on_disk: false,
            links: false,
            over: false,
        }
    }
}

/// What objects are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Files of a directory.
    Files,
    /// Regions of a region store in a file.
    Regions,
    /// Files in memory, of which descriptors are passed for writing also if there is a cap. Not everywhere to be had.
    Memory,
}

impl Stored {
    /// Bytes of a region store where a test says nothing. More than it fills.
    const REGIONS_BYTES: u64 = 8 << 30;

    /// Where [`with_each_store`] puts tests.
    pub fn module(self) -> &'static str {
        match self {
            Self::Files => "in_files",
            Self::Regions => "in_regions",
            Self::Memory => "in_memory",
        }
    }

    /// The store of one node.
    fn config(self, directory: &Path, node: u16, bytes: Option<u64>) -> StoreConfig {
        match self {
            Self::Files => {
                let place = StorePlace::Directory(directory.join(format!("store{node}")));
                StoreConfig { place, below: None, size: bytes }
            }
            Self::Memory => StoreConfig { place: StorePlace::Memory, below: None, size: bytes },
            Self::Regions => {
                let path = directory.join(format!("regions{node}"));
                // With holes: a node would set all of it aside.
                let file = std::fs::File::create(&path).expect("the store's file");
                file.set_len(bytes.unwrap_or(Self::REGIONS_BYTES)).expect("the store's size");
                drop(file);
                let device = FileDevice::open(&path).expect("a device");
                let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
                Store::format(Arc::new(device), format).and_then(|store| store.close()).expect("a region store");
                StoreConfig { place: StorePlace::File(path), below: None, size: None }
            }
        }
    }
}

/// Both ends of every connection of every test are in one process: the usual limit of 1024 descriptors is soon reached.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With a lower limit the tests with many connections say so themselves.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Runs test functions that take a [`Stored`] with each.
#[macro_export]
macro_rules! with_each_store {
    ($($test:ident),* $(,)?) => {
        mod in_files {
            $(#[test] fn $test() { super::$test($crate::Stored::Files) })*
        }
        mod in_regions {
            $(#[test] fn $test() { super::$test($crate::Stored::Regions) })*
        }
    };
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl FileSystem {
    /// Starts the nodes and gives them the map. Panics with the reason when that fails: it is a test.
    pub fn start(wanted: Wanted) -> Self {
        raise_descriptor_limit();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() && !wanted.on_disk { memory } else { std::env::temp_dir() };
        let directory = base.join(format!("weft-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("random bytes");
        std::fs::write(directory.join("node.key"), key).expect("the key's file");
        let below = wanted.over.then(|| directory.join("below"));
        below.iter().for_each(|below| std::fs::create_dir(below).expect("a directory below"));
        let here = weft_client::instance::local_identity().expect("identity");
        let name = format!("test{number}");
        let mut threads = Vec::new();
        let mut nodes = Vec::new();
        for id in 0..wanted.nodes {
            let is_near = if wanted.over { id + 1 == wanted.nodes } else { wanted.near && !wanted.links };
            let identity = if is_near { here } else { NodeIdentity(here.0 ^ (u64::from(id) + 1)) };
            let config = NodeConfig {
                name: name.clone(),
                node: NodeId(id),
                identity,
                node_key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
                owner_uid: Self::me().uid,
                owner_gid: Self::me().gid,
                store: Some(wanted.stored.config(&directory, id, wanted.store_bytes)),
                over: below.clone(),
                runtime_directory: directory.clone(),
                listen: "127.0.0.1:0".parse().expect("an address"),
            };
            let (sender, receiver) = channel();
            threads.push(Some(std::thread::spawn(move || {
                weft_node::run(&config, |address| sender.send(address.clone()).expect("the test waits")).expect("node");
            })));
            let address = receiver.recv().expect("the node's address");
            let (host, site) = (format!("host{id}"), "here".to_owned());
            nodes.push(NodeRecord { id: NodeId(id), host, site, identity, address, stores: true, drains: false });
        }
        let shards = 0..wanted.nodes * wanted.shards_per_node;
        let shards = shards.map(|shard| ShardRecord::new(NodeId(shard % wanted.nodes), MapEpoch(1))).collect();
        let map = ClusterMap { name, epoch: MapEpoch(1), nodes, shards, removed_max: None };
        let instance = Instance { map: map.clone(), processes: Vec::new(), over: None, directory, user_key: None };
        let address = |node: &NodeRecord| node.address.tcp.parse().expect("an address");
        let relayed = map.nodes.iter().filter(|_| wanted.links);
        let links = relayed.map(|node| Link::start(address(node))).collect();
        let file_system = Self { instance, key: NodeKey::new(key), threads, links };
        let client = file_system.client(Way::Auto);
        for node in &map.nodes {
            let mut map = map.clone();
            for (other, link) in map.nodes.iter_mut().zip(&file_system.links) {
                if other.id != node.id {
                    other.address.tcp = link.address.to_string();
                }
            }
            client.node_request(node.id, NodeRequest::SetMap(map)).expect("map");
        }
        client.close().expect("close");
        file_system
    }

    /// The directory that it lies over, if so wanted. Empty at first.
    pub fn below(&self) -> PathBuf {
        self.instance.directory.join("below")
    }

    /// A client of its own session.
    pub fn client(&self, way: Way) -> Client {
        Client::connect(&self.instance, &ClientOptions { way, ..ClientOptions::default() }).expect("client")
    }

    /// What a client is to know of the file system to reach the first node through a relay, by TCP.
    pub fn instance_behind(&self, proxy: &Proxy) -> Instance {
        let mut instance = self.instance.clone();
        let first = instance.map.nodes.first_mut().expect("there is a node");
        first.address.tcp = proxy.address.to_string();
        instance
    }

    /// A client that reaches the first node through a relay, by TCP.
    pub fn client_behind(&self, proxy: &Proxy) -> Client {
        let options = ClientOptions { way: Way::Tcp, ..ClientOptions::default() };
        Client::connect(&self.instance_behind(proxy), &options).expect("client")
    }

    /// Ends one node: it answers nobody from now on.
    pub fn stop_node(&mut self, node: NodeId) {
        let client = self.client(Way::Auto);
        client.node_request(node, NodeRequest::Shutdown).expect("the node answers");
        let thread = self.threads[usize::from(node.0)].take().expect("the node runs");
        thread.join().expect("the node ends well");
    }

    /// The credentials of whoever runs the test.
    pub fn me() -> Credentials {
        let file = std::fs::metadata("/proc/self").expect("/proc");
        use std::os::unix::fs::MetadataExt;
        Credentials { uid: file.uid(), gid: file.gid(), groups: Box::default() }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if let Ok(client) = Client::connect(&self.instance, &ClientOptions::default()) {
            for node in &self.instance.map.nodes {
                // A node that the test has stopped already does not answer.
                let _ = client.node_request(node.id, NodeRequest::Shutdown);
            }
        }
        for thread in self.threads.drain(..).flatten() {
            if thread.join().is_err() && !std::thread::panicking() {
                eprintln!("a node panicked");
            }
        }
        let _ = std::fs::remove_dir_all(&self.instance.directory);
    }
}
