//! Mounts whose kernel makes many small writes, which go to the node as requests: the store has a cap, so that no
//! descriptor for writing is passed.

use super::{Ground, can_mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use weft_sys::mapped::MappedFile;

const THREADS: usize = 4;
const PAGE: usize = 4096;
/// Enough requests that their replies fit no socket buffer.
const PAGES: usize = 3000;
/// What takes longer hangs. It takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);

fn word(page: usize, thread: usize) -> [u8; 8] {
    ((page * THREADS + thread + 1) as u64).to_le_bytes()
}

/// Where a thread's word is: in every second page, and none beside another.
fn place(page: usize, thread: usize) -> usize {
    2 * page * PAGE + thread * 64
}

/// Each thread writes its word of every page.
fn by_all_threads(write: impl Fn(&[u8], usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let write = &write;
            scope.spawn(move || (0..PAGES).for_each(|page| write(&word(page, thread), place(page, thread))));
        }
    });
}

fn write_words(path: &Path, is_mapped: bool) {
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("made");
    let bytes = 2 * PAGES * PAGE;
    file.set_len(bytes as u64).expect("extended");
    if is_mapped {
        let mapped = MappedFile::new(file.as_fd(), 0, bytes).expect("mapped");
        // Stores into the mapping, without unsafe code.
        let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem").expect("own memory");
        let start = mapped.address() as usize;
        by_all_threads(|word, place| memory.write_all_at(word, (start + place) as u64).expect("stored"));
        file.sync_all().expect("synced");
        drop(mapped);
    } else {
        by_all_threads(|word, place| file.write_all_at(word, place as u64).expect("written"));
    }
    drop(file);
    let found = fs::read(path).expect("read");
    assert_eq!(found.len(), bytes);
    for page in 0..PAGES {
        for thread in 0..THREADS {
            let place = place(page, thread);
            assert_eq!(found[place..place + 8], word(page, thread), "page {page}, thread {thread}");
        }
    }
}

#[test]
fn many_small_writes_through_a_mount_do_not_block_it() {
    if !can_mount() {
        return;
    }
    for (connection, options) in [("unix", &[][..]), ("tcp", &["--identity-per-node"][..])] {
        let ground = Ground::new(&format!("small-writes-{connection}"));
        ground.weft(&[&["up", "e2e", "--nodes", "1", "--store", "store:1GiB"], options].concat());
        fs::create_dir(ground.path("mnt")).expect("made");
        ground.weft(&["mount", "e2e", "mnt", "-o", "nopassthrough"]);
        let mount =
            ground.status()["mounts"][0]["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        for is_mapped in [false, true] {
            let path = ground.path("mnt").join(if is_mapped { "mapped" } else { "written" });
            let (ended, end) = channel();
            let writing = std::thread::spawn(move || {
                write_words(&path, is_mapped);
                ended.send(()).expect("the test waits");
            });
            if end.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                // Its end frees the writers, whom no signal reaches, and whoever looks at the mount.
                kill_process(mount.expect("the mount's process"), Signal::KILL).expect("killed");
                panic!("{connection}, mapped: {is_mapped}: mount and node wait for each other");
            }
            writing.join().expect("written");
        }
        ground.weft(&["umount", "mnt"]);
        ground.weft(&["down", "e2e"]);
    }
}
