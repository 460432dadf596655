//! Files that get another layout while they are in use: who reads a split file goes on, who writes it is not overtaken.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{Error, InodeNumber, Layout, Name, NodeId, Plan, Result};
use weft_client::{Client, Destination, File, JoinOptions, OpenOptions, Way, stripe_plan};
use weft_protocol::Credentials;
use weft_tests::{FileSystem, Random, Stored, Wanted, contents, eventually, objects, open, pattern, with_each_store};

with_each_store! {
    readers_go_on_while_a_split_file_is_converted,
    a_split_file_that_is_written_keeps_its_parts,
    nothing_changes_if_the_target_has_no_space,
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const NODES: u16 = 3;
/// Of a writer. Together they make several pieces of a copy.
const SEGMENT: usize = 7 << 20;
const BYTES: usize = NODES as usize * SEGMENT;
/// Reads of each reader before a conversion begins, and after it has ended.
const READS: usize = 10;
/// Copiers of one file.
const COPIERS: usize = 3;

fn me() -> Credentials {
    FileSystem::me()
}

fn inode(client: &Client) -> InodeNumber {
    client.lookup(&me(), ROOT, &Name::new(b"f").unwrap()).unwrap().attributes.inode
}

/// A file `f` with a part at each node, which all writers have closed.
fn written(fs: &FileSystem, way: Way) -> Vec<u8> {
    let (bytes, client) = (pattern(BYTES, 5), fs.client(way));
    client.set_directory_plan(&me(), ROOT, Plan::Split).unwrap();
    let exported = open(&client, "f", BOTH).export(false).unwrap();
    let options = JoinOptions { spread: true, ..JoinOptions::default() };
    // Members that are open at the same time have a part each.
    let members: Vec<_> = (0..NODES).map(|_| client.import(&me(), &exported, options).unwrap().0).collect();
    for (index, segment) in bytes.chunks(SEGMENT).enumerate() {
        members[index].write_at(segment, (index * SEGMENT) as u64).unwrap();
    }
    members.into_iter().for_each(|member| member.close().unwrap());
    assert_eq!(objects(&client), u64::from(NODES));
    bytes
}

fn to(plan: Plan) -> Destination {
    let to = (0..NODES).map(NodeId).collect();
    Destination { layout: Some(Layout::planned(plan)), from: BTreeSet::new(), to }
}

/// Converts the file, by several threads. `between`: when the copy is made, and is not the file's yet.
fn convert(client: &Client, plan: Plan, between: impl FnOnce()) -> Result<u64> {
    let who = me();
    let moving = client.begin_relocation(&who, inode(client), &to(plan))?.expect("it has another layout");
    let made = thread::scope(|scope| {
        let copy = || moving.copy_pieces(&mut |_| {});
        let copiers: Vec<_> = (0..COPIERS).map(|_| scope.spawn(copy)).collect();
        copiers.into_iter().try_for_each(|copier| copier.join().unwrap())
    });
    between();
    moving.end(made)
}

fn read_somewhere(file: &File, bytes: &[u8], random: &mut Random) {
    let (offset, mut buffer) = (random.below(bytes.len()), vec![0xEE; 1 + random.below(100_000)]);
    let count = file.read_at(&mut buffer, offset as u64).unwrap();
    assert!(buffer[..count] == bytes[offset..(offset + buffer.len()).min(bytes.len())], "{count} bytes at {offset}");
}

/// Clients that have it open by themselves, and members of a group.
fn readers(fs: &FileSystem, way: Way) -> Vec<(Client, File)> {
    let clients = [way, Way::Tcp, way, way].map(|way| fs.client(way));
    let exported = open(&clients[2], "f", OpenOptions::READ).export(false).unwrap();
    let opened = |(index, client): (usize, Client)| {
        let file = match index {
            0 | 1 => open(&client, "f", OpenOptions::READ),
            _ => client.import(&me(), &exported, JoinOptions::default()).unwrap().0,
        };
        (client, file)
    };
    clients.into_iter().enumerate().map(opened).collect()
}

fn readers_go_on_while_a_split_file_is_converted(stored: Stored) {
    for (way, plan) in [(Way::Auto, Plan::Whole), (Way::Tcp, Plan::Striped(stripe_plan(2, Some(64 << 10)).unwrap()))] {
        let fs = FileSystem::start(Wanted { nodes: NODES, stored, ..Wanted::default() });
        let bytes = written(&fs, way);
        let (readers, converter) = (readers(&fs, way), fs.client(way));
        let (is_converted, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for (index, (_, file)) in readers.iter().enumerate() {
                let (bytes, is_converted, reads) = (&bytes, &is_converted, &reads);
                scope.spawn(move || {
                    let mut random = Random(0x5EED + index as u64);
                    for _ in 0..READS {
                        read_somewhere(file, bytes, &mut random);
                        reads.fetch_add(1, Ordering::AcqRel);
                    }
                    while !is_converted.load(Ordering::Acquire) {
                        read_somewhere(file, bytes, &mut random);
                    }
                    (0..READS).for_each(|_| read_somewhere(file, bytes, &mut random));
                });
            }
            eventually("all have read", 60, || reads.load(Ordering::Acquire) == readers.len() * READS);
            // The writers' clients let go of what they have closed a moment later.
            eventually("it is converted", 60, || match convert(&converter, plan, || ()) {
                Err(Error::WouldBlock) => false,
                moved => moved.unwrap() == BYTES as u64,
            });
            is_converted.store(true, Ordering::Release);
        });
        let told = converter.attributes(&me(), inode(&converter)).unwrap().attributes;
        assert_eq!(told.layout.plan(), plan, "{way:?}");
        // A writer is seen by those who have had it open since before.
        let writer = fs.client(way);
        open(&writer, "f", BOTH).write_at(b"by a writer", 1000).unwrap();
        for (_, file) in &readers {
            // Members of a group see then what others have written.
            file.sync().unwrap();
            let mut seen = [0; 11];
            assert_eq!((file.read_at(&mut seen, 1000).unwrap(), &seen), (11, b"by a writer"), "{way:?}");
        }
        drop(readers);
        let wanted = plan.stripes().map_or(1, |stripes| u64::from(stripes.width()));
        eventually("its parts are gone", 20, || objects(&converter) == wanted);
    }
}

fn a_split_file_that_is_written_keeps_its_parts(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: NODES, stored, ..Wanted::default() });
    let mut bytes = written(&fs, Way::Auto);
    let (writer, converter) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let is_split = || converter.attributes(&me(), inode(&converter)).unwrap().attributes.layout.epoch().is_some();
    let file = open(&writer, "f", BOTH);
    assert_eq!(convert(&converter, Plan::Whole, || ()), Err(Error::WouldBlock), "it is open for writing");
    file.close().unwrap();
    // Between copy and switch somebody writes, and has closed the file by then.
    bytes[5..8].copy_from_slice(b"new");
    let overtakes = || {
        let other = fs.client(Way::Auto);
        let file = open(&other, "f", BOTH);
        file.write_at(b"new", 5).unwrap();
        file.close().unwrap();
    };
    assert_eq!(convert(&converter, Plan::Whole, overtakes), Err(Error::WouldBlock), "the copy is an old one");
    assert!(is_split() && contents(&writer, inode(&writer)) == bytes);
    eventually("copies are gone", 20, || objects(&converter) <= u64::from(NODES) + 1);
    eventually("it is converted", 60, || convert(&converter, Plan::Whole, || ()).is_ok());
    assert!(!is_split() && contents(&writer, inode(&writer)) == bytes);
}

fn nothing_changes_if_the_target_has_no_space(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: NODES, stored, store_bytes: Some(20 << 20), ..Wanted::default() });
    let bytes = written(&fs, Way::Auto);
    let converter = fs.client(Way::Auto);
    eventually("there is no space", 60, || match convert(&converter, Plan::Whole, || ()) {
        Err(Error::WouldBlock) => false,
        moved => moved == Err(Error::NoSpace),
    });
    assert!(contents(&converter, inode(&converter)) == bytes);
    eventually("the copy is gone", 20, || objects(&converter) == u64::from(NODES));
    let stripes = Plan::Striped(stripe_plan(3, None).unwrap());
    eventually("it is converted", 60, || convert(&converter, stripes, || ()) == Ok(BYTES as u64));
    assert!(contents(&converter, inode(&converter)) == bytes);
}
