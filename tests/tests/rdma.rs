//! File data that the node moves itself into and out of the client's memory.
//!
//! UCX takes its transports once for each process, so every case is this program again with a choice of them. Where
//! there is no UCX the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::{Client, ClientOptions, File, OpenOptions, RdmaSettings, Registration, Rpc, Way};
use weft_protocol::message::node::RdmaCounters;
use weft_protocol::message::shard::Access;
use weft_region::{FileDevice, Format, Kind, Store};
use weft_tests::{FileSystem, Stored, Wanted, open, pattern, status};
use weft_ucx::may_lock_files;

const DIRECT_READ: OpenOptions = OpenOptions { direct: true, ..OpenOptions::READ };
const DIRECT_WRITE: OpenOptions = OpenOptions { direct: true, ..OpenOptions::WRITE };
/// Lengths of requests: none, odd ones, around what is cut, and more than a connection's buffer has.
const SIZES: &[usize] =
    &[0, 1, 511, 4096, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 3, (32 << 20) + 5];

/// Transports of UCX on one machine: its shared memory, and TCP.
const TRANSPORTS: &[&[(&str, &str)]] =
    &[&[("WEFT_UCX_TLS", "posix,sysv,self")], &[("WEFT_UCX_TLS", "tcp"), ("WEFT_UCX_NET_DEVICES", "lo")]];

weft_tests::with_each_store!(
    a_request_costs_what_was_sketched,
    every_size_goes_both_ways_with_each_registration,
    a_handle_chooses_whose_memory_is_registered,
    mapped_pages_follow_what_becomes_of_the_file,
);

fn client(fs: &FileSystem, rdma: RdmaSettings) -> Client {
    Client::connect(&fs.instance, &ClientOptions { way: Way::Ucx, rdma, ..ClientOptions::default() }).unwrap()
}

fn with(registration: Registration) -> RdmaSettings {
    RdmaSettings { registration, ..RdmaSettings::default() }
}

fn moved(client: &Client) -> RdmaCounters {
    status(client).counters.rdma
}

/// Runs this test again with each choice of transports; `true`: this is such a run.
fn is_one_of(test: &str) -> bool {
    if std::env::var_os("WEFT_UCX_TLS").is_some() {
        return true;
    }
    if let Err(error) = weft_ucx::Library::get() {
        println!("skipped: {error}");
        return false;
    }
    for settings in TRANSPORTS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).envs(settings.iter().copied());
        assert!(command.status().unwrap().success(), "{settings:?}");
    }
    false
}

/// The same of a test that runs with each store.
fn is_one_with(stored: Stored, test: &str) -> bool {
    is_one_of(&format!("{}::{test}", stored.module()))
}

fn write_at(file: &File, bytes: &[u8], offset: u64) {
    file.write_at(bytes, offset).unwrap();
}

fn read_at(file: &File, bytes: usize, offset: u64) -> Vec<u8> {
    let mut into = vec![9; bytes];
    let count = file.read_at(&mut into, offset).unwrap();
    into.truncate(count);
    into
}

/// One request of each size in each direction, unbuffered, and everything once more through buffers.
fn exchange(fs: &FileSystem, rdma: RdmaSettings, name: &str) {
    let writer = client(fs, rdma);
    let reader = client(fs, rdma);
    let messages = moved(&writer).messages;
    for (number, &bytes) in SIZES.iter().enumerate() {
        let (name, offset) = (format!("{name}-{number}"), [0, 77, 4095][number % 3]);
        let expected = pattern(bytes, number);
        let file = open(&writer, &name, DIRECT_WRITE);
        write_at(&file, &expected, offset);
        file.close().unwrap();
        let file = open(&reader, &name, DIRECT_READ);
        assert!(read_at(&file, bytes + 100, offset) == expected, "{name}: {bytes} bytes at {offset}");
        assert!(read_at(&file, bytes, offset + 1) == expected[bytes.min(1)..], "{name}: a read that the end cuts");
    }
    let expected = pattern((9 << 20) + 77, 5);
    let file = open(&writer, name, OpenOptions::WRITE);
    for (number, part) in expected.chunks(100_001).enumerate() {
        write_at(&file, part, number as u64 * 100_001);
    }
    file.truncate(expected.len() as u64 + 100).unwrap();
    file.close().unwrap();
    let file = open(&reader, name, OpenOptions::READ);
    let mut found = Vec::new();
    loop {
        let part = read_at(&file, 70_001, found.len() as u64);
        if part.is_empty() {
            break;
        }
        found.extend(part);
    }
    assert!(found == [&expected[..], &[0; 100]].concat(), "{name}: through buffers");
    let counters = [writer.counters(), reader.counters()];
    assert!(counters.iter().all(|counters| counters.unix_read_bytes + counters.tcp_read_bytes == 0), "{counters:?}");
    assert!(counters[0].rdma_write_bytes > 40 << 20 && counters[1].rdma_read_bytes > 40 << 20, "{counters:?}");
    assert_eq!(moved(&writer).messages > messages, rdma.rpc == Rpc::Am, "requests went as they were to go");
}

fn every_size_goes_both_ways_with_each_registration(stored: Stored) {
    if !is_one_with(stored, "every_size_goes_both_ways_with_each_registration") {
        return;
    }
    for near in [true, false] {
        let fs = FileSystem::start(Wanted { stored, nodes: 1, near, ..Wanted::default() });
        for rpc in [Rpc::Socket, Rpc::Am] {
            for registration in [Registration::Static, Registration::Dynamic, Registration::Auto] {
                let settings = RdmaSettings { rpc, ..with(registration) };
                exchange(&fs, settings, &format!("{registration:?}-{rpc:?}-{near}"));
            }
            let small = RdmaSettings { buffer_bytes_max: 256 << 10, rpc, ..with(Registration::Static) };
            exchange(&fs, small, &format!("small-{rpc:?}-{near}"));
            exchange(&fs, RdmaSettings { dynamic_beyond: true, ..small }, &format!("beyond-{rpc:?}-{near}"));
        }
    }
}

/// What one request cost: the node's transfers, and of the client requests, messages that showed memory, and bytes
/// copied.
#[derive(PartialEq, Eq, Debug)]
struct Cost {
    puts: u64,
    gets: u64,
    flushes: u64,
    requests: u64,
    shown: u64,
    copied_bytes: u64,
    /// Of the node, into memory that both share.
    placed_bytes: u64,
    /// Of the node, from pages of files and into them.
    mapped_bytes: u64,
    /// Messages of UCX that came to the node: requests, and what showed memory.
    messages: u64,
}

fn cost_of(client: &Client, request: impl FnOnce()) -> Cost {
    let (node, own) = (moved(client), client.counters());
    request();
    let (node_now, now) = (moved(client), client.counters());
    assert_eq!(node_now.regions - node.regions, now.rdma_shown - own.rdma_shown);
    Cost {
        puts: node_now.puts - node.puts,
        gets: node_now.gets - node.gets,
        flushes: node_now.flushes - node.flushes,
        requests: now.rdma_requests - own.rdma_requests,
        shown: now.rdma_shown - own.rdma_shown,
        copied_bytes: now.rdma_copied_bytes - own.rdma_copied_bytes,
        placed_bytes: node_now.placed_bytes - node.placed_bytes,
        mapped_bytes: node_now.mapped_bytes - node.mapped_bytes,
        messages: node_now.messages - node.messages,
    }
}

/// docs/rdma.md has the table that these are the rows of.
fn a_request_costs_what_was_sketched(stored: Stored) {
    if !is_one_with(stored, "a_request_costs_what_was_sketched") {
        return;
    }
    const BYTES: usize = 4 << 20;
    // Pieces of 256 KiB at the node, parts of 128 KiB through a connection's buffer: a piece each.
    let (pieces, parts) = (16, 32);
    let is_shared = std::env::var("WEFT_UCX_TLS").unwrap().contains("posix");
    // Regions have no pages: all of their bytes go through slots.
    let is_memory = Path::new("/dev/shm").is_dir() && stored == Stored::Files;
    let fs = FileSystem::start(Wanted { stored, nodes: 1, ..Wanted::default() });
    let bytes = pattern(BYTES, 1);
    for (registration, is_static, rpc) in [
        (Registration::Static, true, Rpc::Socket),
        (Registration::Dynamic, false, Rpc::Socket),
        (Registration::Static, true, Rpc::Am),
        (Registration::Dynamic, false, Rpc::Am),
    ] {
        let client = client(&fs, RdmaSettings { rpc, ..with(registration) });
        let messages = |count| if rpc == Rpc::Am { count } else { 0 };
        // A connection is made and probed.
        client.require_ucx().unwrap();
        let name = format!("{registration:?}-{rpc:?}");
        let file = open(&client, &name, DIRECT_WRITE);
        let write = || write_at(&file, &bytes, 0);
        let requests = if is_static { parts } else { 1 };
        let copied_bytes = if is_static { BYTES as u64 } else { 0 };
        // A buffer that both share needs no transfer.
        let in_place = is_static && is_shared && stored == Stored::Files;
        let pieces = if is_static { parts } else { pieces };
        let (placed_bytes, pieces) = if in_place { (BYTES as u64, 0) } else { (0, pieces) };
        // The first write shows memory: the caller's, or a larger buffer, for which the smaller is hidden.
        let (shown, hidden) = (1, u64::from(is_static));
        let written = Cost {
            puts: 0,
            gets: pieces,
            flushes: 0,
            requests,
            shown,
            copied_bytes,
            placed_bytes,
            mapped_bytes: 0,
            messages: 0,
        };
        // What the file has already goes into its pages, and comes out of them, if they are memory.
        let mapped_bytes = if in_place || !is_memory { 0 } else { BYTES as u64 };
        let first = Cost { messages: messages(requests + shown + hidden), ..written };
        assert_eq!(cost_of(&client, write), first, "{name}");
        let next = Cost { shown: 0, messages: messages(requests), mapped_bytes, ..written };
        assert_eq!(cost_of(&client, write), next, "{name}: known memory");
        file.close().unwrap();
        let file = open(&client, &name, DIRECT_READ);
        let mut into = vec![0; BYTES];
        let mut read = || assert_eq!(file.read_at(&mut into, 0).unwrap(), BYTES);
        let shown = u64::from(!is_static);
        let flushes = if in_place { 0 } else { requests };
        let messages_sent = messages(requests + shown);
        let was_read = Cost { puts: pieces, gets: 0, flushes, shown, messages: messages_sent, mapped_bytes, ..written };
        assert_eq!(cost_of(&client, &mut read), was_read, "{name}: read");
        let next = Cost { shown: 0, messages: messages(requests), ..was_read };
        assert_eq!(cost_of(&client, &mut read), next, "{name}: read again");
        file.close().unwrap();
    }
}

/// On a disk whose reads can be begun without waiting. Elsewhere the same bytes go through slots of the connection.
/// Whether a region store in a file beside those of the nodes is read by rings.
fn can_stream() -> bool {
    let path = std::env::temp_dir().join(format!("weft-can-stream-{}", std::process::id()));
    let device = Arc::new(FileDevice::create(&path, 64 << 20).unwrap());
    let store = Store::format(device, Format::default()).unwrap();
    let object = store.create(Kind::Direct).unwrap();
    object.write(0, &[1; 4096]).unwrap();
    let can = store.stream(&object, 0, 4096).is_some() && may_lock_files();
    std::fs::remove_file(&path).unwrap();
    can
}

#[test]
fn large_reads_of_regions_are_put_from_where_the_device_has_filled_them() {
    if !is_one_of("large_reads_of_regions_are_put_from_where_the_device_has_filled_them") {
        return;
    }
    const BYTES: usize = 4 << 20;
    let fs = FileSystem::start(Wanted { stored: Stored::Regions, nodes: 1, on_disk: true, ..Wanted::default() });
    exchange(&fs, with(Registration::Dynamic), "dynamic");
    exchange(&fs, RdmaSettings { rpc: Rpc::Am, ..with(Registration::Static) }, "static");
    let client = client(&fs, with(Registration::Dynamic));
    let bytes = pattern(BYTES, 1);
    let file = open(&client, "file", DIRECT_WRITE);
    write_at(&file, &bytes, 0);
    file.close().unwrap();
    let streamed = || moved(&client).streamed_bytes;
    if !can_stream() {
        println!("skipped: reads of this disk cannot be begun without waiting");
        return;
    }
    assert!(streamed() > 0);
    let file = open(&client, "file", DIRECT_READ);
    // The last one goes through the connection's buffer.
    for (offset, count, puts, flushes) in [(0, BYTES, 16, 1), (4095, 1 << 20, 5, 1), (8192, 256 << 10, 2, 2)] {
        let before = streamed();
        let cost = cost_of(&client, || assert!(read_at(&file, count, offset) == bytes[offset as usize..][..count]));
        assert_eq!((cost.puts, cost.gets, cost.flushes), (puts, 0, flushes), "{count} bytes at {offset}");
        assert_eq!(streamed() - before, count as u64, "{count} bytes at {offset}");
    }
    file.close().unwrap();
}

/// Whose memory a handle registers is its own choice.
fn a_handle_chooses_whose_memory_is_registered(stored: Stored) {
    if !is_one_with(stored, "a_handle_chooses_whose_memory_is_registered") {
        return;
    }
    const BYTES: usize = 2 << 20;
    let fs = FileSystem::start(Wanted { stored, nodes: 1, ..Wanted::default() });
    let bytes = pattern(BYTES, 1);
    for (told, chosen, copied_bytes) in [
        (Registration::Static, Some(Registration::Dynamic), 0),
        (Registration::Static, None, BYTES as u64),
        (Registration::Dynamic, Some(Registration::Static), BYTES as u64),
        (Registration::Dynamic, None, 0),
    ] {
        let client = client(&fs, with(told));
        let options = OpenOptions { registration: chosen, ..DIRECT_WRITE };
        let file = open(&client, "file", options);
        let cost = cost_of(&client, || write_at(&file, &bytes, 0));
        assert_eq!(cost.copied_bytes, copied_bytes, "write, {told:?}, {chosen:?}");
        file.close().unwrap();
        for direct in [true, false] {
            let file = open(&client, "file", OpenOptions { registration: chosen, direct, ..OpenOptions::READ });
            let cost = cost_of(&client, || assert!(read_at(&file, BYTES, 0) == bytes));
            assert_eq!(cost.copied_bytes, copied_bytes, "read, {told:?}, {chosen:?}, {direct}");
            file.close().unwrap();
        }
    }
}

/// Bytes that are handed out where they lie, if they are.
fn in_place(file: &File, bytes: usize, offset: u64) -> Option<Vec<u8>> {
    let mut found = None;
    let handed = file.read_in_place(bytes, offset, &mut |bytes| found = Some(bytes.to_vec()));
    assert_eq!(handed, found.is_some());
    found
}

/// What a sequential reader will want waits in the connection's buffer, and needs no copy for whoever hands it on.
#[test]
fn what_was_asked_for_ahead_is_handed_out_where_it_lies() {
    if !is_one_of("what_was_asked_for_ahead_is_handed_out_where_it_lies") {
        return;
    }
    let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
    let (writer, reader) = (client(&fs, with(Registration::Static)), client(&fs, with(Registration::Static)));
    let (old, new) = (pattern((9 << 20) + 77, 1), pattern(9 << 20, 2));
    let size = old.len();
    let file = open(&writer, "file", OpenOptions::WRITE);
    write_at(&file, &old, 0);
    file.close().unwrap();
    // Also who registers callers' memory: theirs is of no use to whoever hands on.
    let dynamic = OpenOptions { registration: Some(Registration::Dynamic), ..OpenOptions::READ };
    for (request, options) in
        [(128 << 10, OpenOptions::READ), (100_001, OpenOptions::READ), (1 << 20, OpenOptions::READ), (1 << 20, dynamic)]
    {
        let file = open(&reader, "file", options);
        let (mut found, mut handed) = (Vec::new(), 0);
        assert_eq!(in_place(&file, request, 0), None, "nothing was asked for yet");
        let copied = reader.counters().rdma_copied_bytes;
        while found.len() < size {
            let offset = found.len() as u64;
            assert_eq!(in_place(&file, request, offset + 1), None, "it is not what comes next");
            let part = in_place(&file, request, offset);
            handed += part.as_ref().map_or(0, Vec::len);
            found.extend(part.unwrap_or_else(|| read_at(&file, request, offset)));
        }
        assert!(found == old, "requests of {request}");
        assert_eq!(in_place(&file, request, size as u64), None, "behind the end");
        assert!(handed >= size / 2, "{handed} bytes of requests of {request}");
        assert_eq!(reader.counters().rdma_copied_bytes - copied, (size - handed) as u64, "each is copied once or not");
        file.close().unwrap();
    }

    // What waits is of no more use when somebody else writes.
    let file = open(&reader, "file", OpenOptions::READ);
    assert!(read_at(&file, 1 << 20, 0) == old[..1 << 20]);
    assert!(in_place(&file, 1 << 20, 1 << 20).is_some_and(|bytes| bytes == old[1 << 20..2 << 20]));
    let other = open(&writer, "file", OpenOptions::of(Access::Write));
    write_at(&other, &new, 0);
    assert_eq!(in_place(&file, 1 << 20, 2 << 20), None);
    assert!(read_at(&file, 1 << 20, 2 << 20) == new[2 << 20..3 << 20]);
    other.close().unwrap();
    file.close().unwrap();
    // Nor when this client writes and cuts; and bytes that the object does not have are none of the buffer's.
    let own = open(&reader, "own", OpenOptions { access: Access::ReadWrite, ..OpenOptions::WRITE });
    write_at(&own, &new, 0);
    own.flush().unwrap();
    // As much is asked for ahead as was taken.
    for at in (0..3).map(|megabyte| megabyte << 20) {
        assert!(read_at(&own, 1 << 20, at as u64) == new[at..at + (1 << 20)]);
    }
    assert!(in_place(&own, 1 << 20, 3 << 20).is_some_and(|bytes| bytes == new[3 << 20..4 << 20]));
    let written = (4 << 20) + 100;
    write_at(&own, &[7; 5000], written as u64);
    own.flush().unwrap();
    let next = in_place(&own, 4096, 4 << 20).unwrap_or_else(|| read_at(&own, 4096, 4 << 20));
    assert!(next[..100] == new[4 << 20..written] && next[100..] == [7; 3996], "what waited is from before");
    own.truncate(6 << 20).unwrap();
    own.truncate(9 << 20).unwrap();
    let cut = [&new[..written], &[7; 5000], &new[written + 5000..6 << 20], &vec![0; 3 << 20]].concat();
    let mut found = Vec::new();
    while found.len() < cut.len() {
        let offset = found.len() as u64;
        found.extend(in_place(&own, 1 << 20, offset).unwrap_or_else(|| read_at(&own, 1 << 20, offset)));
    }
    assert!(found == cut);
    own.close().unwrap();
    // An unbuffered handle asks for nothing ahead.
    let file = open(&reader, "file", DIRECT_READ);
    assert!(read_at(&file, 1 << 20, 0) == new[..1 << 20]);
    assert_eq!(in_place(&file, 1 << 20, 1 << 20), None);
    file.close().unwrap();
}

/// What the nodes have mapped follows the file: its times, its cuts, and what it is made longer by.
fn mapped_pages_follow_what_becomes_of_the_file(stored: Stored) {
    if !is_one_with(stored, "mapped_pages_follow_what_becomes_of_the_file") {
        return;
    }
    const BYTES: usize = 1 << 20;
    let fs = FileSystem::start(Wanted { stored, nodes: 1, ..Wanted::default() });
    let client = client(&fs, with(Registration::Dynamic));
    let (old, new) = (pattern(BYTES, 1), pattern(BYTES, 2));
    let file = open(&client, "file", OpenOptions { access: Access::ReadWrite, ..DIRECT_WRITE });
    let modified = || client.attributes(&FileSystem::me(), file.inode()).unwrap().attributes.mtime;
    write_at(&file, &old, 0);
    let before = modified();
    assert!(read_at(&file, BYTES, 0) == old);
    std::thread::sleep(Duration::from_millis(20));
    write_at(&file, &new, 0);
    assert!(modified() > before, "written through its pages");
    assert!(read_at(&file, BYTES, 0) == new);
    file.truncate(100_000).unwrap();
    file.truncate(BYTES as u64).unwrap();
    let cut = [&new[..100_000], &vec![0; BYTES - 100_000]].concat();
    assert!(read_at(&file, BYTES, 0) == cut, "what was cut off does not come back");
    write_at(&file, &old, BYTES as u64);
    assert!(read_at(&file, 2 * BYTES, 0) == [cut, old].concat());
    file.close().unwrap();
}

/// Somebody may cut an object's file behind a node's back: nobody dies of it, and no byte is of another place.
#[test]
fn a_file_that_is_cut_while_it_is_sent_harms_nobody() {
    if !is_one_of("a_file_that_is_cut_while_it_is_sent_harms_nobody") {
        return;
    }
    const BYTES: usize = 2 << 20;
    let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
    let client = client(&fs, with(Registration::Dynamic));
    let bytes = pattern(BYTES, 3);
    let file = open(&client, "file", OpenOptions { access: Access::ReadWrite, ..DIRECT_WRITE });
    write_at(&file, &bytes, 0);
    let object = std::fs::OpenOptions::new().write(true).open(object_of(&fs)).unwrap();
    let stop = AtomicBool::new(false);
    let cuts = std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            let mut cuts = 0;
            while !stop.load(Ordering::Relaxed) {
                object.set_len(4096).unwrap();
                object.set_len(BYTES as u64).unwrap();
                object.write_all_at(&bytes, 0).unwrap();
                cuts += 1;
            }
            cuts
        });
        let mut into = vec![0; BYTES];
        for round in 0..300 {
            let count = file.read_at(&mut into, 0).unwrap();
            let right =
                into.iter().zip(&bytes).take(count).filter(|(found, byte)| found == byte || **found == 0).count();
            assert_eq!(right, count, "round {round}");
            if round % 10 == 0 {
                write_at(&file, &bytes[..BYTES / 2], 0);
            }
        }
        stop.store(true, Ordering::Relaxed);
        cutter.join().unwrap()
    });
    assert!(cuts > 0);
    write_at(&file, &bytes, 0);
    assert!(read_at(&file, BYTES, 0) == bytes, "all is well when nobody cuts any more");
    file.close().unwrap();
}

/// The file of the only object.
fn object_of(fs: &FileSystem) -> PathBuf {
    let directories = std::fs::read_dir(fs.instance.directory.join("store0/objects")).unwrap();
    let mut files = directories.flat_map(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap());
    files.next().unwrap().unwrap().path()
}
