//! Nodes that join, drain and leave while the file system is in use.

use super::away::mounted;
use super::shards::directories_of_shards;
use super::{Ground, can_mount};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Writes, reads and renames files of its own until it is told to stop. Answers how many are there.
fn work(directory: &Path, stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let inner = directory.join(format!("d{}", count / 20));
        if count % 20 == 0 {
            fs::create_dir(&inner).unwrap_or_else(|error| panic!("make {}: {error}", inner.display()));
        }
        let (new, file) = (inner.join("new"), inner.join(format!("f{count}")));
        fs::write(&new, content(count)).unwrap_or_else(|error| panic!("write {}: {error}", new.display()));
        fs::rename(&new, &file).unwrap_or_else(|error| panic!("rename to {}: {error}", file.display()));
        assert_eq!(fs::read(&file).expect("read"), content(count), "{}", file.display());
        count += 1;
    }
    count
}

fn content(number: usize) -> Vec<u8> {
    format!("{number} ").repeat(1 + number % 3000).into_bytes()
}

/// Stops what works in a test, also when the test fails.
struct StopsAtLast<'a>(&'a AtomicBool);

impl Drop for StopsAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two mounts, with a program that works in a directory of each while the nodes change. Then each mount sees what the
/// other one's program has made. Returns where the mounts are, and these directories.
fn two_mounts_in_use(ground: &Ground, change: impl FnOnce()) -> [[PathBuf; 2]; 2] {
    let points = ["one", "two"].map(|name| ground.path(name));
    for point in &points {
        fs::create_dir_all(point).expect("made");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
        fs::create_dir(point.join(point.file_name().expect("a name"))).expect("made");
    }
    let directories = [points[0].join("one"), points[1].join("two")];
    let stop = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let (flag, stop) = (&stop, StopsAtLast(&stop));
        let working: Vec<_> = directories.iter().map(|path| scope.spawn(move || work(path, flag))).collect();
        change();
        drop(stop);
        working.into_iter().map(|work| work.join().expect("every file was as written")).collect::<Vec<_>>()
    });
    for (count, path) in counts.iter().zip([points[1].join("one"), points[0].join("two")]) {
        for number in 0..*count {
            let file = path.join(format!("d{}/f{number}", number / 20));
            assert_eq!(fs::read(&file).expect("read"), content(number), "{}", file.display());
        }
    }
    [points, directories]
}

#[test]
fn nodes_join_under_two_mounts_that_are_in_use() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("node-add");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [_, directories] = two_mounts_in_use(&ground, || {
        let said = ground.weft(&["node", "add", "e2e"]);
        assert!(said.starts_with("n01 joined e2e: 2 nodes, 2 shards"), "{said}");
        let said = ground.weft(&["node", "add", "e2e", "--nodes", "2", "--shards-per-node", "2"]);
        assert!(said.starts_with("n02, n03 joined e2e: 4 nodes, 6 shards"), "{said}");
        thread::sleep(Duration::from_secs(2));
    });
    // New files go to new nodes, of mounts that were there before.
    let nodes: Value = ground.json(&["df", "--json", "e2e"])["nodes"].take();
    assert_eq!(nodes.as_array().map(Vec::len), Some(4), "{nodes}");
    let status = ground.status();
    assert_eq!((status["epoch"].as_u64(), status["healthy"].as_bool()), (Some(3), Some(true)), "{status}");
    // With each map a mount picks the node where it makes directories by chance: sooner or later a new one.
    for turn in 0.. {
        if has_inodes_on_new_nodes(&ground.status()) {
            break;
        }
        assert!(turn < 6, "no mount has made a directory on a new node: {}", ground.status());
        ground.weft(&["node", "add", "e2e"]);
        for (number, path) in (0..10).flat_map(|number| directories.iter().map(move |path| (number, path))) {
            fs::create_dir(path.join(format!("late{turn}-{number}"))).expect("made");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether shards of other nodes than the first have inodes.
fn has_inodes_on_new_nodes(status: &Value) -> bool {
    let nodes = &status["nodes"].as_array().expect("nodes")[1..];
    let mut shards = nodes.iter().flat_map(|node| node["shards"].as_array().expect("shards"));
    shards.any(|shard| shard["inodes"].as_u64().expect("a number") > 0)
}

#[test]
fn nodes_drain_and_leave_under_two_mounts_that_are_in_use() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("node-drain");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    let [points, _] = two_mounts_in_use(&ground, || {
        // With n00 the root shard moves, twice; then all shards, and all bytes, are at one node.
        let said = ground.weft(&["node", "drain", "e2e", "n00"]);
        assert!(said.starts_with("shard 0: n00 to n01 in "), "{said}");
        let said = ground.weft(&["node", "drain", "e2e", "n01"]);
        assert!(said.contains("shard 0: n01 to n02 in ") && said.contains("shard 1: n01 to n02 in "), "{said}");
        assert_eq!(drains(&ground.status()), [true, true, false]);
        for node in ["n00", "n01"] {
            let said = ground.weft(&["node", "remove", "e2e", node]);
            assert!(said.ends_with(&format!("{node} left e2e\n")), "{said}");
        }
        thread::sleep(Duration::from_secs(1));
    });
    let said = ground.weft_fails(2, &["node", "drain", "e2e", "n02"]);
    assert!(said.contains("no other node"), "{said}");
    let said = ground.weft_fails(2, &["node", "remove", "e2e", "n07"]);
    assert!(said.contains("no node n07"), "{said}");
    let status = ground.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    assert_eq!((nodes.len(), status["healthy"].as_bool()), (1, Some(true)), "{status}");
    // Its number is not used again, and the root shard's new node takes joins.
    let said = ground.weft(&["node", "add", "e2e"]);
    assert!(said.starts_with("n03 joined e2e: 2 nodes, 4 shards"), "{said}");
    fs::write(points[1].join("last"), "last").expect("written");
    assert_eq!(fs::read(points[0].join("last")).expect("read"), b"last");
}

/// Of each node, whether it drains.
fn drains(status: &Value) -> Vec<bool> {
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["drains"].as_bool().expect("told")).collect()
}

#[test]
fn a_node_that_does_not_join_leaves_nothing() {
    let ground = Ground::new("node-refused");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let said = ground.weft_fails(2, &["node", "add", "e2e", "--nodes", "5000"]);
    assert!(said.contains("nodes"), "{said}");
    let said = ground.weft_fails(1, &["node", "add", "other"]);
    assert!(said.contains("other"), "{said}");
    let status = ground.status();
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(1), "{status}");
    ground.weft(&["down", "e2e"]);
}

/// What the command prints, and says, whether it does all that it is asked or not.
fn said(ground: &Ground, words: &[&str]) -> String {
    let output = ground.command(words).output().expect("weft starts");
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).concat()
}

/// Milliseconds for which calls waited for each shard that moved, as `weft node` and `weft balance` have told.
fn pauses(said: &str) -> Vec<f64> {
    let moves = said.lines().filter(|line| line.starts_with("shard "));
    let time = |line: &str| {
        let (number, unit) = line.rsplit_once(" in ").and_then(|(_, span)| span.split_once(' ')).expect("a span");
        let number: f64 = number.parse().expect("a number");
        match unit {
            "ms" => number,
            "s" => number * 1000.0,
            other => panic!("{other}: a unit of time"),
        }
    };
    moves.map(time).collect()
}

#[test]
#[ignore = "takes a minute; part of make test-long"]
fn one_node_becomes_sixteen_and_one_again_under_two_mounts_that_are_in_use() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("node-sixteen");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mut waited = Vec::new();
    two_mounts_in_use(&ground, || {
        for _ in 1..16 {
            ground.weft(&["node", "add", "e2e"]);
            waited.extend(pauses(&said(&ground, &["balance", "e2e", "--share", "100"])));
        }
        assert_eq!(ground.status()["nodes"].as_array().map(Vec::len), Some(16));
        ground.weft(&["mkdir", "-p", "--placement", "hash", "e2e:/one"]);
        for node in 0..15 {
            // What is in use for a moment stays, and is moved the next time.
            let remove = || said(&ground, &["node", "remove", "e2e", "--share", "100", &format!("n{node:02}")]);
            let left = (0..20).map(|_| remove()).any(|said| {
                waited.extend(pauses(&said));
                said.contains("left e2e")
            });
            assert!(left, "n{node:02} does not leave");
        }
    });
    let status = ground.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    assert_eq!((nodes.len(), status["healthy"].as_bool()), (1, Some(true)), "{status}");
    waited.sort_by(f64::total_cmp);
    let at = |percent| percentile(&waited, percent);
    println!("{} shards moved; calls waited for {:.0} ms (median), {:.0} ms (p99)", waited.len(), at(50), at(99));
}

/// The smallest of the values, which ascend, that at least so many percent of them do not exceed (nearest rank).
fn percentile(values: &[f64], percent: usize) -> f64 {
    values[(values.len() * percent).div_ceil(100).max(1) - 1]
}

#[test]
fn a_percentile_is_the_value_of_the_nearest_rank() {
    let up_to = |last: u32| (1..=last).map(f64::from).collect::<Vec<_>>();
    let of_45 = [1, 50, 98, 99, 100].map(|percent| percentile(&up_to(45), percent));
    assert_eq!(of_45, [1.0, 23.0, 45.0, 45.0, 45.0], "99 of 100 do not exceed the largest of 45");
    assert_eq!([50, 99].map(|percent| percentile(&up_to(200), percent)), [100.0, 198.0]);
    assert_eq!(percentile(&[7.0], 99), 7.0);
}

/// The shards of each node.
fn shards_of(status: &Value) -> Vec<Vec<u64>> {
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    let shards = nodes.map(|node| node["shards"].as_array().expect("shards").iter());
    shards.map(|shards| shards.map(|shard| shard["shard"].as_u64().expect("a number")).collect()).collect()
}

/// Calls that shards have been sent.
fn calls_of(status: &Value) -> u64 {
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    let shards = nodes.flat_map(|node| node["shards"].as_array().expect("shards"));
    shards.map(|shard| shard["calls"].as_u64().expect("a number")).sum()
}

/// A call for each time, of several threads, until they are told to stop.
fn keep_busy<'a>(scope: &'a thread::Scope<'a, '_>, files: &'a [PathBuf], stop: &'a AtomicBool) {
    for (file, _) in files.iter().flat_map(|file| (0..4).map(move |thread| (file, thread))) {
        scope.spawn(move || {
            for mode in [0o600, 0o640].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("a call");
            }
        });
    }
}

/// How long a machine may take to make a thousand calls a second, below which nothing moves for its calls.
const LOAD_PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn one_of_two_busy_shards_of_a_node_moves_to_an_idle_node() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("balance-load");
    ground.weft(&["up", "e2e", "--nodes", "2", "--shards-per-node", "2"]);
    let names = directories_of_shards(&ground);
    let point = mounted(&ground, &[]);
    let busy = shards_of(&ground.status())[1].clone();
    let shard = |name: &String| ground.json(&["stat", "--json", &format!("e2e:/{name}")])[0]["shard"].as_u64();
    let names = names.iter().filter(|name| busy.contains(&shard(name).expect("a number")));
    let files: Vec<PathBuf> = names.map(|name| point.join(name).join("file")).collect();
    assert_eq!((busy.len(), files.len()), (2, 2), "{busy:?} {files:?}");
    files.iter().for_each(|file| fs::write(file, "").expect("written"));
    let stop = AtomicBool::new(false);
    let has_moved = thread::scope(|scope| {
        let _stops = StopsAtLast(&stop);
        keep_busy(scope, &files, &stop);
        let (begun, before) = (Instant::now(), calls_of(&ground.status()));
        let moves = || ground.weft(&["balance", "e2e"]).contains(" calls a second: shard ");
        while !moves() {
            if begun.elapsed() > LOAD_PATIENCE {
                let rate = (calls_of(&ground.status()) - before) / begun.elapsed().as_secs();
                assert!(rate < 1000, "nothing has moved, with {rate} calls a second");
                eprintln!("skipped: this machine makes {rate} calls a second, and shards move for 1000 and more");
                return false;
            }
        }
        true
    });
    if has_moved {
        let now = shards_of(&ground.status());
        let counts: Vec<usize> =
            now.iter().map(|shards| shards.iter().filter(|shard| busy.contains(shard)).count()).collect();
        assert_eq!(counts, [1, 1], "each node has one of {busy:?}: {now:?}");
        assert!(now.iter().all(|shards| shards.len() == 2), "{now:?}");
    }
}
