//! File data that the node moves itself into and out of the client's memory.
//!
//! UCX takes its transports once for each process, so every case is this program again with a choice of them. Where
//! there is no UCX the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::process::Command;
use weft_client::{Client, ClientOptions, File, OpenOptions, RdmaSettings, Registration, Way};
use weft_protocol::message::node::RdmaCounters;
use weft_tests::{FileSystem, Wanted, open, pattern, status};

const DIRECT_READ: OpenOptions = OpenOptions { direct: true, ..OpenOptions::READ };
const DIRECT_WRITE: OpenOptions = OpenOptions { direct: true, ..OpenOptions::WRITE };
/// Lengths of requests: none, odd ones, around what is cut, and more than a connection's buffer has.
const SIZES: &[usize] =
    &[0, 1, 511, 4096, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 3, (32 << 20) + 5];

/// Transports of UCX on one machine: its shared memory, and TCP.
const TRANSPORTS: &[&[(&str, &str)]] =
    &[&[("WEFT_UCX_TLS", "posix,sysv,cma,self")], &[("WEFT_UCX_TLS", "tcp"), ("WEFT_UCX_NET_DEVICES", "lo")]];

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
}

#[test]
fn every_size_goes_both_ways_with_each_registration() {
    if !is_one_of("every_size_goes_both_ways_with_each_registration") {
        return;
    }
    for near in [true, false] {
        let fs = FileSystem::start(Wanted { nodes: 1, near, ..Wanted::default() });
        for registration in [Registration::Static, Registration::Dynamic, Registration::Auto] {
            exchange(&fs, with(registration), &format!("{registration:?}-{near}"));
        }
        let small = RdmaSettings { buffer_bytes_max: 256 << 10, ..with(Registration::Static) };
        exchange(&fs, small, &format!("small-{near}"));
        exchange(&fs, RdmaSettings { dynamic_beyond: true, ..small }, &format!("beyond-{near}"));
    }
}
