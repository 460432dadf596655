//! Threads of one client that change the same names: who was told of a change finds it, though the reply to the thread
//! that made it may still be on its way.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use weft_client::protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_client::protocol::{InodeNumber, Name};
use weft_client::{Client, OpenOptions, Way};
use weft_tests::{FileSystem, Wanted};

const ROUNDS: u32 = 100;
const THREADS: usize = 4;

/// Has threads do the same at the same time, round by round. Each is given the round's name, and returns whether what
/// it was told was true.
fn race(act: impl Fn(&Name) -> bool + Sync) {
    let together = Barrier::new(THREADS);
    let misled = AtomicU32::new(0);
    let work = || {
        for round in 0..ROUNDS {
            let name = Name::new(format!("name-{round}").as_bytes()).unwrap();
            together.wait();
            if !act(&name) {
                misled.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    assert_eq!(
        misled.into_inner(),
        0,
        "calls told something that was not so any more, after another call had told of it"
    );
}

fn is_there(client: &Client, parent: InodeNumber, name: &Name) -> bool {
    client.lookup(&FileSystem::me(), parent, name).is_ok()
}

#[test]
fn whoever_is_told_of_a_change_of_another_thread_finds_it() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Auto);
    let me = FileSystem::me();
    // Of a new directory it is known that there is nothing in it: nobody is asked for its names.
    let directory = Name::new(b"directory").unwrap();
    let parent = client.make_directory(&me, InodeNumber::ROOT, &directory, 0o755).unwrap().attributes.inode;
    let there = |name: &Name| is_there(&client, parent, name);
    race(|name| {
        there(name);
        client.make_directory(&me, parent, name, 0o755).is_ok() || there(name)
    });
    race(|name| {
        there(name);
        client.remove_directory(&me, parent, name).is_ok() || !there(name)
    });
    race(|name| {
        there(name);
        let create = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        client.open_at(&me, parent, name, OpenOptions::of(Access::Write), create).is_ok() || there(name)
    });
    let renamed = |name: &Name| Name::new(&[name.as_bytes(), b"-new"].concat()).unwrap();
    race(|name| {
        let to = renamed(name);
        there(name);
        client.rename(&me, parent, name, parent, &to, RenameMode::Replace).is_ok() || !there(name) && there(&to)
    });
    race(|name| {
        let name = renamed(name);
        there(&name);
        client.unlink(&me, parent, &name).is_ok() || !there(&name)
    });
}
