//! Leases that a client gives back without being asked.

use std::time::{Duration, Instant};
use weft_client::protocol::limits::SESSION_TERM_MS;
use weft_client::protocol::message::shard::CreateFile;
use weft_client::protocol::{InodeNumber, Name};
use weft_client::{OpenOptions, Way};
use weft_tests::{FileSystem, Wanted};

#[test]
fn a_client_that_goes_on_making_files_gives_leases_back_in_batches() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    // Past the next renewal, at which all that is there is given back.
    let (since, time) = (Instant::now(), Duration::from_millis(SESSION_TERM_MS / 4 + 500));
    let mut files = 0;
    while since.elapsed() < time || files < 10_000 {
        let name = Name::new(format!("f{files}").as_bytes()).unwrap();
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        client.open_at(&FileSystem::me(), InodeNumber::ROOT, &name, OpenOptions::WRITE, create).unwrap();
        files += 1;
    }
    let calls = client.counters().shard_calls;
    assert!(calls < files + files / 50, "{calls} calls for {files} files");
}
