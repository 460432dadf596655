//! What a client keeps in memory. A test alone in its process, whose memory is looked at.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::message::shard::CreateFile;
use weft_client::protocol::{InodeNumber, Name};
use weft_client::{OpenOptions, Way};
use weft_tests::{FileSystem, Wanted};

/// Resident memory of this process that is no file's, bytes: nodes keep file data in files.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn closed_files_keep_no_buffers() {
    const FILES: u64 = 100;
    let fs = FileSystem::start(Wanted { nodes: 1, near: false, ..Wanted::default() });
    let client = fs.client(Way::Tcp);
    let piece = vec![1; 100_000];
    let write = |number: u64| {
        let name = Name::new(format!("f{number}").as_bytes()).unwrap();
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        let (file, _) =
            client.open_at(&FileSystem::me(), InodeNumber::ROOT, &name, OpenOptions::WRITE, create).unwrap();
        // Several runs of a mebibyte.
        for index in 0..35 {
            file.write_at(&piece, index * 100_000).unwrap();
        }
        file.close().unwrap();
    };
    write(0);
    let before = memory_bytes();
    (1..=FILES).for_each(write);
    let each = memory_bytes().saturating_sub(before) / FILES;
    assert!(each < 300_000, "{each} bytes are kept for each closed file");
}
