//! What is peculiar to region stores behind nodes: space, and what is refused. The rest of what files do runs with both
//! stores (`weft_tests::with_each_store`).

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{Error, InodeNumber, Name, Plan};
use weft_client::{Client, JoinOptions, OpenOptions, Way};
use weft_region::{FileDevice, FilePart, Kind, Store};
use weft_tests::{FileSystem, Stored, Wanted, open, pattern, status};

const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const MIB: usize = 1 << 20;
/// Bytes of the store's own record, which is there from the first object on.
const RECORD: u64 = 8192;

fn one_node(store_bytes: Option<u64>) -> FileSystem {
    FileSystem::start(Wanted { stored: Stored::Regions, nodes: 1, store_bytes, ..Wanted::default() })
}

fn remove(client: &Client, text: &str) {
    client.unlink(&FileSystem::me(), InodeNumber::ROOT, &Name::new(text.as_bytes()).unwrap()).unwrap();
}

/// Waits until so much is free: what was removed is, soon after it was.
fn wait_for_free(client: &Client, bytes: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while client.space().unwrap().free < bytes - RECORD {
        assert!(Instant::now() < end, "{:?}", client.space());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_store_refuses_by_every_way_and_has_room_after_a_removal() {
    let fs = one_node(Some(40 << 20));
    for way in [Way::Auto, Way::Unix, Way::Stream, Way::Tcp] {
        let client = fs.client(way);
        let free = client.space().unwrap().free;
        let kept = pattern(4 * MIB, 1);
        let file = open(&client, "kept", OpenOptions::WRITE);
        file.write_at(&kept, 0).unwrap();
        file.close().unwrap();
        for direct in [true, false] {
            let appending = OpenOptions { append: true, ..BOTH };
            // Of the largest a piece comes while the one before is written.
            for (options, mib) in [(OpenOptions::WRITE, 3), (OpenOptions::WRITE, 7), (appending, 3)] {
                let file = open(&client, "large", OpenOptions { direct, ..options });
                let piece = pattern(mib * MIB + 5, 2);
                let write = |number: usize| file.write_at(&piece, (number * piece.len()) as u64);
                let refused = (0..20).find_map(|number| write(number).err()).or_else(|| file.flush().err());
                assert_eq!(refused, Some(Error::NoSpace), "{way:?}, direct: {direct}");
                drop(file);
                remove(&client, "large");
            }
        }
        let mut found = vec![0; kept.len()];
        open(&client, "kept", OpenOptions::READ).read_at(&mut found, 0).unwrap();
        assert!(found == kept, "{way:?}");
        remove(&client, "kept");
        // A client has files open for a while after they were closed.
        client.close().unwrap();
        wait_for_free(&fs.client(way), free);
    }
}

#[test]
fn space_is_that_of_all_nodes_and_comes_back() {
    let wanted = Wanted { stored: Stored::Regions, nodes: 3, store_bytes: Some(32 << 20), ..Wanted::default() };
    let fs = FileSystem::start(wanted);
    let client = fs.client(Way::Auto);
    let before = client.space().unwrap();
    assert!(before.total > 3 * (24 << 20) && before.total <= 3 * (32 << 20), "{before:?}");
    let file = open(&client, "file", OpenOptions::WRITE);
    file.write_at(&pattern(8 * MIB, 1), 0).unwrap();
    file.sync().unwrap();
    let during = client.space().unwrap();
    assert!((8 << 20..9 << 20).contains(&(before.free - during.free)), "{during:?}");
    assert_eq!(during.files, 1);
    file.truncate(MIB as u64).unwrap();
    wait_for_free(&client, before.free - (2 << 20));
    file.close().unwrap();
    remove(&client, "file");
    client.close().unwrap();
    let client = fs.client(Way::Auto);
    wait_for_free(&client, before.free);
    assert_eq!(client.space().unwrap().files, 0);
}

#[test]
fn a_file_goes_over_several_regions_and_holes_take_no_space() {
    let fs = one_node(Some(32 << 20));
    let free = fs.client(Way::Auto).space().unwrap().free;
    for way in [Way::Unix, Way::Tcp] {
        let client = fs.client(way);
        let file = open(&client, &format!("{way:?}"), OpenOptions { direct: true, ..BOTH });
        // One block of a region is its super block's.
        let end = (1u64 << weft_store_io::region::REGION_SHIFT) - 4096;
        let bytes = pattern(3 * MIB + 5, 1);
        file.write_at(&bytes, end - 5000).unwrap();
        assert_eq!(file.size(), Ok(end - 5000 + bytes.len() as u64));
        file.write_at(b"far away", 5 * end).unwrap();
        assert_eq!(file.size(), Ok(5 * end + 8));
        let mut found = vec![9; bytes.len() + 2000];
        assert_eq!(file.read_at(&mut found, end - 6000).unwrap(), found.len());
        assert!(found == [vec![0; 1000], bytes, vec![0; 1000]].concat(), "{way:?}");
        file.truncate(end + 7).unwrap();
        let appending = open(&client, &format!("{way:?}"), OpenOptions { direct: true, append: true, ..BOTH });
        appending.write_at(b"behind", 0).unwrap();
        appending.close().unwrap();
        let mut found = vec![9; 12_000];
        assert_eq!(file.read_at(&mut found, end).unwrap(), 13);
        assert!(found[..7] == pattern(5007, 1)[5000..] && &found[7..13] == b"behind");
        assert_eq!(file.write_at(b"12", (1 << 63) - 2), Err(Error::FileTooLarge));
        // The client's: a node counts what it has sent a little later.
        let before = client.counters();
        assert_eq!(file.read_at(&mut found, 1 << 30).unwrap(), 12_000);
        assert!(found.iter().all(|byte| *byte == 0));
        let after = client.counters();
        let (unix, tcp) =
            (after.unix_read_bytes - before.unix_read_bytes, after.tcp_read_bytes - before.tcp_read_bytes);
        assert_eq!((unix, tcp), if way == Way::Unix { (12_000, 0) } else { (0, 12_000) });
        file.sync().unwrap();
        file.close().unwrap();
    }
    let client = fs.client(Way::Auto);
    assert!(client.space().unwrap().free > 20 << 20);
    [Way::Unix, Way::Tcp].iter().for_each(|way| remove(&client, &format!("{way:?}")));
    client.close().unwrap();
    wait_for_free(&fs.client(Way::Auto), free);
}

#[test]
fn what_was_synced_is_on_the_device() {
    let fs = one_node(Some(32 << 20));
    let client = fs.client(Way::Auto);
    let file = open(&client, "file", OpenOptions::WRITE);
    let bytes = pattern(3 * MIB + 5, 1);
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    // As the device is now.
    let copy = fs.instance.directory.join("copy");
    std::fs::copy(fs.instance.directory.join("regions0"), &copy).unwrap();
    let store = Store::open(Arc::new(FileDevice::open(&copy).unwrap())).unwrap();
    let id = (1..2000).find(|id| store.exists(*id).unwrap()).unwrap();
    let object = store.object(id, Kind::Direct).unwrap();
    let mut found = vec![0; bytes.len() + 1];
    assert_eq!(object.read(0, &mut found).unwrap(), bytes.len());
    assert!(found[..bytes.len()] == bytes);
    assert_eq!(object.owner()[..8], file.inode().raw().to_le_bytes());
    file.close().unwrap();
}

/// What a writer has in its part of a split file and did not publish: no metadata server has it, the store's log does.
#[test]
fn what_was_not_published_is_found_in_the_store() {
    let fs = one_node(Some(32 << 20));
    let client = fs.client(Way::Auto);
    client.set_directory_plan(&FileSystem::me(), InodeNumber::ROOT, Plan::Split).unwrap();
    let exported = open(&client, "split", BOTH).export(false).unwrap();
    let member = client.import(&FileSystem::me(), &exported, JoinOptions::default()).unwrap().0;
    // Too large to be buffered.
    let bytes = pattern(4 * MIB, 1);
    member.write_at(&bytes, 5 << 20).unwrap();
    let name = Name::new(b"split").unwrap();
    let size = fs.client(Way::Auto).lookup(&FileSystem::me(), InodeNumber::ROOT, &name).unwrap().attributes.size;
    assert_eq!(size, 0, "nothing is published");
    // A sync of any file writes the log.
    let other = open(&client, "other", OpenOptions::WRITE);
    other.write_at(b"other", 0).unwrap();
    other.sync().unwrap();

    // As the device is now.
    let copy = fs.instance.directory.join("copy");
    std::fs::copy(fs.instance.directory.join("regions0"), &copy).unwrap();
    let store = Store::open(Arc::new(FileDevice::open(&copy).unwrap())).unwrap();
    let objects = store.list().unwrap().into_iter().map(|id| store.object(id, Kind::Direct).unwrap());
    let is_of_file = |part: FilePart| part.inode == member.inode().raw();
    let parts: Vec<_> = objects.filter(|object| FilePart::of(object.owner()).is_some_and(is_of_file)).collect();
    let [part] = &parts[..] else { panic!("{} parts", parts.len()) };
    let ranges = part.data_ranges().unwrap();
    assert_eq!(ranges.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>(), [(5 << 20, 9 << 20)]);
    assert_eq!(part.stat().unwrap().size, 0, "no sync of the part");
    let mut found = vec![0; bytes.len()];
    part.read_unsized(5 << 20, &mut found).unwrap();
    assert!(found == bytes);
    [member, other].into_iter().for_each(|file| file.close().unwrap());
}

#[test]
fn no_descriptor_is_asked_for_twice() {
    let fs = one_node(None);
    let client = fs.client(Way::Auto);
    let requests = || client.counters().data_requests;
    let mut costs = Vec::new();
    for number in 0..3 {
        let file = open(&client, &format!("{number}"), BOTH);
        let before = requests();
        file.write_at(&pattern(100, 1), 0).unwrap();
        file.flush().unwrap();
        assert!(file.lend().is_none());
        file.close().unwrap();
        costs.push(requests() - before);
    }
    assert_eq!((costs[1], costs[2]), (1, 1), "{costs:?}");
    assert_eq!(status(&client).counters.descriptors_passed, 0);
}
