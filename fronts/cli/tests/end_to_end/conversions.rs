//! One file gets another layout: several threads copy it, programs read it meanwhile, and what goes wrong changes
//! nothing.

use super::{Ground, can_mount, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Several pieces of a copy.
const BYTES: usize = 40 * MIB;
/// A session that has ended without a word has its objects collected some time after its term.
const PATIENCE: Duration = Duration::from_secs(120);

fn pattern() -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|word| (word * 0x9E37_79B9).to_le_bytes()).collect()
}

/// A file system of three nodes with a split file of several parts, `split/f`. Returns what is in it.
fn with_split_file(ground: &Ground, store: &str) -> Vec<u8> {
    ground.weft(&["up", "e2e", "--nodes", "3", "--identity-per-node", "--store", store]);
    ground.weft(&["mkdir", "--split", "e2e:/split"]);
    let bytes = pattern();
    for (index, segment) in bytes.chunks(BYTES / 4).enumerate() {
        let point = mounted(ground, &format!("writer-{index}"), &["-ospill"]);
        let file = File::options().write(true).create(true).truncate(false).open(point.join("split/f"));
        file.expect("opened").write_all_at(segment, (index * BYTES / 4) as u64).expect("written");
        ground.weft(&["umount", &point.display().to_string()]);
    }
    assert!(ground.weft(&["layout", "e2e:/split/f"]).contains("split"));
    bytes
}

fn mounted(ground: &Ground, name: &str, options: &[&str]) -> PathBuf {
    let point = ground.path(name);
    fs::create_dir(&point).expect("a mount point");
    ground.weft(&[&["mount", "e2e", &point.display().to_string()], options].concat());
    point
}

fn objects(ground: &Ground) -> u64 {
    let told = ground.json(&["df", "--json", "e2e"]);
    let nodes = told["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["objects"].as_u64().expect("told")).sum()
}

fn is_whole(ground: &Ground) -> bool {
    ground.weft(&["layout", "e2e:/split/f"]).contains("whole")
}

/// Reads here and there, until told to stop; at least once after that.
fn read_on(path: &Path, bytes: &[u8], (stops, reads): (&AtomicBool, &AtomicUsize)) {
    let file = File::open(path).expect("opened");
    let (mut place, mut is_last) = (7, false);
    while !is_last {
        is_last = stops.load(Ordering::Acquire);
        place = (place * 1_103_515_245 + 12_345) % BYTES;
        let (end, mut seen) = (BYTES.min(place + 300_000), vec![0; 300_000]);
        let count = file.read_at(&mut seen, place as u64).expect("read");
        assert!(count > 0 && seen[..count] == bytes[place..end][..count], "{count} bytes at {place}");
        reads.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn programs_read_a_split_file_while_it_becomes_whole_and_afterwards() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("convert-readers");
    let bytes = with_split_file(&ground, "memory:200MiB");
    let points = [mounted(&ground, "one", &[]), mounted(&ground, "other", &["-onopassthrough"])];
    let (stops, reads) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
    thread::scope(|scope| {
        for (point, reads) in points.iter().zip(&reads) {
            let (bytes, stops, path) = (&bytes, &stops, point.join("split/f"));
            scope.spawn(move || read_on(&path, bytes, (stops, reads)));
        }
        wait_until("a read of each", || reads.iter().all(|reads| reads.load(Ordering::Acquire) > 0));
        let said = ground.weft(&["convert", "--whole", "--share", "100", "e2e:/split/f"]);
        assert!(said.starts_with("converted 1 files"), "{said}");
        stops.store(true, Ordering::Release);
    });
    assert!(is_whole(&ground));
    wait_until("the end of the parts", || objects(&ground) == 1);
    // What one writes, the other one reads, which has had no reason to ask.
    let [one, other] = points.map(|point| point.join("split/f"));
    let reader = File::open(&other).expect("opened");
    File::options().write(true).open(&one).expect("opened").write_all_at(b"new", 5).expect("written");
    let mut seen = [0; 3];
    reader.read_exact_at(&mut seen, 5).expect("read");
    assert_eq!(&seen, b"new");
}

#[test]
fn a_conversion_that_is_killed_changes_nothing_and_is_made_again() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("convert-killed");
    let bytes = with_split_file(&ground, "memory:200MiB");
    let before = objects(&ground);
    // As long as it is open for writing, no copy becomes the file's.
    let point = mounted(&ground, "one", &[]);
    let writer = File::options().write(true).open(point.join("split/f")).expect("opened");
    // After a tenth of a second it rests for ten.
    let slowly = ["convert", "--whole", "--share", "1", "e2e:/split/f"];
    let mut killed = ground.command(&slowly).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until("the copy", || objects(&ground) > before);
    killed.kill().expect("killed");
    killed.wait().expect("it has ended");
    drop(writer);
    ground.weft(&["umount", &point.display().to_string()]);
    assert!(!is_whole(&ground));
    let deadline = Instant::now() + PATIENCE;
    while objects(&ground) != before {
        assert!(Instant::now() < deadline, "the copy stays: {} objects", objects(&ground));
        thread::sleep(Duration::from_millis(100));
    }
    ground.weft(&["cp", "-q", "e2e:/split/f", "out"]);
    assert!(fs::read(ground.path("out")).expect("copied") == bytes);
    ground.weft(&["convert", "--whole", "e2e:/split"]);
    ground.weft(&["cp", "-q", "e2e:/split/f", "again"]);
    assert!(is_whole(&ground) && fs::read(ground.path("again")).expect("copied") == bytes);
}

#[test]
fn a_conversion_for_which_there_is_no_space_says_so_and_changes_nothing() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("convert-full");
    // A third of it for each node: less than the file.
    let bytes = with_split_file(&ground, "memory:96MiB");
    let before = objects(&ground);
    let said = ground.weft_fails(2, &["convert", "--whole", "--share", "100", "e2e:/split/f"]);
    assert!(said.contains("no space left on node"), "{said}");
    wait_until("the end of the copy", || objects(&ground) == before);
    assert!(!is_whole(&ground));
    ground.weft(&["cp", "-q", "e2e:/split/f", "out"]);
    assert!(fs::read(ground.path("out")).expect("copied") == bytes);
}
