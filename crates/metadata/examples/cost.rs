//! What one step of a shard costs.
//!
//! `cargo run --release -p weft-metadata --example cost [FILES_MAX]`
//!
//! Two tables: one file system of a thousand files to five million (in directories of a thousand), and one directory of
//! ten entries to a million. Each operation goes through `Shard::step` as a client's call: create (an open that makes
//! the file), getattr and lookup (of files in random order), unlink. The client gives its leases back in between, so
//! that their number does not reach its limit. The bound to compare with: the target is 2,000 ns per step, flat.

use std::hint::black_box;
use std::time::Duration;
use weft_metadata::back::{Origin, Slot};
use weft_metadata::{Effect, Event, Growth, MemoryStore, Now, RootDirectory, Shard, ShardConfig};
use weft_protocol::limits::RELEASE_KEYS_MAX;
use weft_protocol::message::shard::{Access, CreateFile, OpenFlags, PageCache, ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::{
    Credentials, InodeNumber, LeaseKey, Name, NodeId, NodeKey, Result, SessionId, ShardId, SlotIndex, Timestamp,
};

/// Operations of each kind that are timed.
const SAMPLES: u64 = 100_000;

struct Client {
    shard: Shard<MemoryStore>,
    out: Vec<Effect>,
    sequence: u32,
    held: Vec<(LeaseKey, u64)>,
    now: Now,
}

#[expect(clippy::disallowed_methods, reason = "an example that measures; the shard itself reads no clock")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

impl Client {
    fn new() -> Self {
        let config = ShardConfig {
            shard: ShardId(0),
            node_key: NodeKey::new([1; 32]),
            growth: Growth::USUAL,
            root: RootDirectory { mode: 0o755, uid: 1000, gid: 1000 },
        };
        let now = Now { boot_ms: 1, wall: Timestamp::from_parts(1_700_000_000, 0) };
        let shard = Shard::new(config, MemoryStore::new(), now);
        Self { shard, out: Vec::new(), sequence: 0, held: Vec::new(), now }
    }

    fn call(&mut self, request: ShardRequest) -> Result<ShardAnswer> {
        self.sequence += 1;
        self.now.wall.0 += 1000;
        let slot = SlotIndex(u16::try_from(self.sequence % 16).expect("below 16"));
        let credentials = Credentials { uid: 1000, gid: 1000, groups: Box::default() };
        let (session, sequence, repeats) = (SessionId(1), self.sequence, Vec::new());
        let origin = Origin { session, slot: Slot { of: NodeId(0), index: slot }, sequence };
        let event = Event::Call { token: u64::from(sequence), origin, credentials, request, repeats };
        self.shard.step(self.now, event, &mut self.out);
        match self.out.pop() {
            Some(Effect::Reply { reply: ShardReply { result, .. }, .. }) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Runs the operation for each number and returns the time per call. Names are made before the clock starts.
    fn time(&mut self, numbers: &[u64], make: impl Fn(u64) -> ShardRequest) -> u64 {
        let mut spent = Duration::ZERO;
        for batch in numbers.chunks(4000) {
            let requests: Vec<_> = batch.iter().map(|number| make(*number)).collect();
            let begin = clock();
            for request in requests {
                black_box(self.call(request)).expect("the operation is allowed");
            }
            spent += begin.elapsed();
        }
        u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX) / numbers.len() as u64
    }

    fn give_back(&mut self) {
        for batch in std::mem::take(&mut self.held).chunks(RELEASE_KEYS_MAX) {
            self.call(ShardRequest::Release { leases: batch.to_vec() }).expect("a release");
        }
    }
}

/// Files are spread over directories of `per_directory`.
struct Tree {
    client: Client,
    directories: Vec<InodeNumber>,
    inodes: Vec<InodeNumber>,
    per_directory: u64,
}

fn name(number: u64) -> Name {
    Name::new(format!("file-{:08}", number.wrapping_mul(0x9e37_79b1) % 100_000_000).as_bytes()).expect("a valid name")
}

fn create(parent: InodeNumber, number: u64) -> ShardRequest {
    let flags =
        OpenFlags { access: Access::Write, truncate: false, direct: false, page_cache: PageCache::None, group: None };
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    ShardRequest::OpenAt { parent, name: name(number), flags, create, objects: None }
}

impl Tree {
    fn new(files: u64, per_directory: u64) -> Self {
        let mut tree = Self { client: Client::new(), directories: Vec::new(), inodes: Vec::new(), per_directory };
        for number in 0..files {
            tree.add(number);
        }
        tree.client.give_back();
        tree
    }

    fn directory(&mut self, number: u64) -> InodeNumber {
        let index = usize::try_from(number / self.per_directory).expect("small");
        while self.directories.len() <= index {
            let text = format!("d{}", self.directories.len());
            let name = Name::new(text.as_bytes()).expect("a valid name");
            let request = ShardRequest::MakeDirectory { parent: InodeNumber::ROOT, name, mode: 0o755, home: None };
            match self.client.call(request) {
                Ok(ShardAnswer::Entry { attributes, .. }) => self.directories.push(attributes.inode),
                other => panic!("{other:?}"),
            }
        }
        self.directories[index]
    }

    fn add(&mut self, number: u64) {
        let parent = self.directory(number);
        let Ok(ShardAnswer::Opened { attributes, .. }) = self.client.call(create(parent, number)) else {
            panic!("create {number}");
        };
        self.inodes.push(attributes.inode);
        self.client.held.push((LeaseKey::Entry(parent, name(number).hash64()), u64::MAX));
        self.client.held.push((LeaseKey::Attributes(attributes.inode), u64::MAX));
        self.client.held.push((LeaseKey::Data(attributes.inode), u64::MAX));
        if self.client.held.len() > 100_000 {
            self.client.give_back();
        }
    }

    fn measure(mut self) {
        let files = self.inodes.len() as u64;
        let bytes = self.client.shard.status().store_bytes;
        let samples: Vec<u64> = (0..SAMPLES).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % files).collect();
        let fresh: Vec<u64> = (files..files + SAMPLES.min(files)).collect();
        // New files beside the old ones, each directory in turn: the working set is the whole file system.
        let directories = self.directories.clone();
        let old = |number: u64| directories[usize::try_from(number / self.per_directory).expect("small")];
        let spread = |number: u64| {
            let index = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % directories.len() as u64;
            directories[usize::try_from(index).expect("small")]
        };
        let inodes = self.inodes.clone();
        let getattr = self.client.time(&samples, |number| ShardRequest::GetAttributes {
            inode: inodes[usize::try_from(number).expect("small")],
        });
        let lookup =
            self.client.time(&samples, |number| ShardRequest::Lookup { parent: old(number), name: name(number) });
        let made = self.client.time(&fresh, |number| create(spread(number), number));
        for number in &fresh {
            self.client.held.push((LeaseKey::Entry(spread(*number), name(*number).hash64()), u64::MAX));
        }
        let first = InodeNumber::new(ShardId(0), self.inodes.last().expect("files").sequence() + 1);
        for index in 0..fresh.len() as u64 {
            let inode = InodeNumber::new(ShardId(0), first.sequence() + index);
            self.client.held.push((LeaseKey::Data(inode), u64::MAX));
            self.client.held.push((LeaseKey::Attributes(inode), u64::MAX));
        }
        self.client.give_back();
        let unlinked =
            self.client.time(&fresh, |number| ShardRequest::Unlink { parent: spread(number), name: name(number) });
        println!("{files:>9} {made:>8} {getattr:>8} {lookup:>8} {unlinked:>8} {:>11}", bytes / files);
    }
}

fn main() {
    let files_max: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5_000_000);
    println!("ns per step (target: 2000)");
    println!("    files   create  getattr   lookup   unlink  bytes/file");
    for files in [1_000, 1_000_000, 5_000_000].into_iter().filter(|files| *files <= files_max) {
        Tree::new(files, 1000).measure();
    }
    println!("entries in one directory");
    for files in [10, 1_000, 100_000, 1_000_000].into_iter().filter(|files| *files <= files_max) {
        Tree::new(files, u64::MAX).measure();
    }
}
