//! The bytes of files move to other nodes, and to other layouts; and new files go where there is room.

use super::{Ground, can_mount};
use serde_json::Value;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use weft_sys::shared_mapping::SharedMapping;

/// Bytes of which no two files have the same.
fn content(number: usize) -> Vec<u8> {
    format!("{number} ").repeat(10 + number * 500).into_bytes()
}

/// Makes files of several kinds below a mount; the last one is sparse.
fn make_files(point: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(point.join("a/b")).expect("made");
    let mut files: Vec<PathBuf> = (0..40).map(|number| point.join(format!("a/b/f{number}"))).collect();
    for (number, file) in files.iter().enumerate() {
        fs::write(file, content(number)).expect("written");
    }
    fs::hard_link(&files[3], point.join("a/linked")).expect("linked");
    let sparse = point.join("sparse");
    File::create(&sparse).expect("made").write_all_at(b"in the middle", 9 << 20).expect("written");
    fs::OpenOptions::new().write(true).open(&sparse).expect("opened").set_len(20 << 20).expect("extended");
    files.push(sparse);
    files
}

/// Contents and times, as another mount sees them.
fn seen(files: &[PathBuf], from: &Path, to: &Path) -> Vec<(Vec<u8>, i64, i64, u64)> {
    let there = |file: &PathBuf| to.join(file.strip_prefix(from).expect("below the mount"));
    let look = |file: PathBuf| {
        let stat = fs::metadata(&file).expect("a file");
        (fs::read(&file).expect("read"), stat.mtime(), stat.mtime_nsec(), stat.nlink())
    };
    files.iter().map(there).map(look).collect()
}

/// A mount that reads objects itself, and one that does not.
fn mounts(ground: &Ground) -> [PathBuf; 2] {
    [("one", None), ("two", Some("-onopassthrough"))].map(|(name, option)| {
        let point = ground.path(name);
        fs::create_dir(&point).expect("a mount point");
        let text = point.display().to_string();
        let arguments: Vec<&str> = ["mount", "e2e", &text].into_iter().chain(option).collect();
        ground.weft(&arguments);
        point
    })
}

/// Objects at each node.
fn objects(ground: &Ground) -> Vec<u64> {
    let nodes: Value = ground.json(&["df", "--json", "e2e"])["nodes"].take();
    nodes.as_array().expect("nodes").iter().map(|node| node["objects"].as_u64().expect("told")).collect()
}

#[test]
fn a_node_gives_its_files_away_but_for_those_in_use() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("relocate-drain");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, two] = mounts(&ground);
    let files = make_files(&one);
    let before = seen(&files, &one, &two);
    ground.weft(&["node", "add", "e2e"]);
    let mut open = fs::OpenOptions::new();
    let open = open.read(true).write(true).open(two.join("a/b/f7")).expect("opened");
    let said = ground.weft_fails(2, &["node", "drain", "e2e", "n00"]);
    assert!(said.contains("e2e:/a/b/f7 is in use") && said.contains("1 files in use stay"), "{said}");
    assert_eq!(objects(&ground), [1, 40]);
    open.write_all_at(b"new", 1).expect("written");
    assert!(seen(&files[7..8], &one, &one)[0].0.starts_with(b"7new"), "it is still one file for both");
    drop(open);
    let said = ground.weft(&["node", "remove", "e2e", "n00"]);
    assert!(said.contains("moved 1 files") && said.ends_with("n00 left e2e\n"), "{said}");
    assert_eq!(objects(&ground), [41]);
    for point in [&one, &two] {
        let now = seen(&files, &one, point);
        for (number, (before, now)) in before.iter().zip(&now).enumerate().filter(|(number, _)| *number != 7) {
            assert!(before == now, "{}", files[number].display());
        }
    }
    fs::write(two.join("a/b/f1"), "anew").expect("written");
    assert_eq!(fs::read(&files[1]).expect("read"), b"anew");
}

#[test]
fn bytes_are_spread_over_new_nodes() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("relocate-balance");
    ground.weft(&["up", "e2e", "--nodes", "1", "--store", "memory:40MiB"]);
    let [one, two] = mounts(&ground);
    let files: Vec<PathBuf> = (0..20).map(|number| one.join(format!("f{number}"))).collect();
    for (number, file) in files.iter().enumerate() {
        fs::write(file, content(number).repeat(1 << 20 >> (number + 1).ilog2() >> 10)).expect("written");
    }
    let before = seen(&files, &one, &two);
    ground.weft(&["node", "add", "e2e", "--nodes", "3", "--store", "memory:120MiB", "--shards-per-node", "2"]);
    ground.weft(&["balance", "e2e", "--share", "100"]);
    let spread = objects(&ground);
    assert!(spread.iter().sum::<u64>() == 20 && spread.iter().all(|count| *count > 0), "{spread:?}");
    assert!(seen(&files, &one, &two) == before && seen(&files, &one, &one) == before);
    let said = ground.weft(&["balance", "e2e"]);
    assert!(said.contains("no node uses much more") || said.starts_with("moved"), "{said}");
}

#[test]
fn files_get_another_layout_and_keep_their_bytes() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("relocate-convert");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    let [one, two] = mounts(&ground);
    let files = make_files(&one);
    let before = seen(&files, &one, &two);
    ground.weft(&["convert", "--width", "3", "--stripe", "64KiB", "e2e:/a", "e2e:/sparse"]);
    for path in ["e2e:/a/b/f9", "e2e:/sparse"] {
        let said = ground.weft(&["layout", path]);
        assert!(said.contains("striped over 3 nodes, 64 KiB in turns"), "{said}");
    }
    assert!(seen(&files, &one, &two) == before && seen(&files, &one, &one) == before);
    let said = ground.weft(&["convert", "--width", "3", "--stripe", "64KiB", "e2e:/"]);
    assert!(said.starts_with("converted 0 files"), "{said}");
    ground.weft(&["convert", "--whole", "e2e:/"]);
    assert!(ground.weft(&["layout", "e2e:/sparse"]).contains("whole"));
    assert!(seen(&files, &one, &two) == before && seen(&files, &one, &one) == before);
    assert_eq!(objects(&ground).iter().sum::<u64>(), 41);
    ground.weft_fails(2, &["convert", "e2e:/"]);
}

#[test]
fn new_files_go_where_there_is_room_and_everywhere_without_a_near_node() {
    let ground = Ground::new("relocate-new");
    ground.weft(&["up", "e2e", "--nodes", "2", "--store", "memory:40MiB"]);
    // Each command is a client of its own: one that fills its home, and one that goes to the other node then.
    fs::write(ground.path("in"), vec![7; (19 << 20) + (512 << 10)]).expect("written");
    ground.weft(&["cp", "-q", "in", "e2e:/first"]);
    ground.weft(&["mkdir", "e2e:/small"]);
    fs::create_dir(ground.path("small")).expect("made");
    for number in 0..6 {
        fs::write(ground.path(&format!("small/f{number}")), "small").expect("written");
    }
    let first = ground.json(&["locate", "--json", "e2e:/first"])[0]["ranges"][0]["node"].clone();
    for _ in 0..4 {
        ground.weft(&["cp", "-q", "-r", "small", "e2e:/small"]);
        let located = ground.json(&["locate", "--json", "e2e:/small/small/f0"])[0]["ranges"][0]["node"].clone();
        assert_ne!(located, first, "{:?}", ground.json(&["df", "--json", "e2e"]));
        ground.weft(&["rm", "-r", "e2e:/small/small"]);
    }
    ground.weft(&["down", "e2e"]);
    ground.weft(&["up", "e2e", "--nodes", "3", "--identity-per-node"]);
    ground.weft(&["cp", "-q", "-r", "small", "e2e:/"]);
    assert_eq!(objects(&ground), [2, 2, 2]);
}

/// Maps a new file, and closes it.
fn mapped(path: &Path) -> SharedMapping {
    fs::write(path, content(1)).expect("written");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    SharedMapping::new(file.as_fd(), content(1).len(), true).expect("mapped")
}

/// What a mapping begins with.
fn first(mapping: &SharedMapping) -> [u8; 3] {
    let mut bytes = [0; 3];
    mapping.load(0, &mut bytes).expect("the pages are there");
    bytes
}

#[test]
fn a_mapping_of_a_closed_file_outlives_its_name_and_keeps_it_from_moving() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("relocate-mapped");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, _] = mounts(&ground);
    let removed = mapped(&one.join("removed"));
    fs::remove_file(one.join("removed")).expect("removed");
    while objects(&ground) != [0] {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(&first(&removed), b"1 1");
    removed.store(0, b"new").expect("stored");
    assert_eq!(&first(&removed), b"new");
    let kept = mapped(&one.join("kept"));
    ground.weft(&["node", "add", "e2e"]);
    let said = ground.weft_fails(2, &["node", "drain", "e2e", "n00"]);
    assert!(said.contains("e2e:/kept is in use"), "{said}");
    kept.store(0, b"new").expect("stored");
    assert!(fs::read(one.join("kept")).expect("read").starts_with(b"new"));
    drop(kept);
    ground.weft(&["node", "drain", "e2e", "n00"]);
    assert!(fs::read(one.join("kept")).expect("read").starts_with(b"new"));
    // The node removes what has moved after its shard has answered.
    while objects(&ground) != [0, 1] {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_file_with_many_names_moves_once() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("relocate-links");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, _] = mounts(&ground);
    // A listing has names of the same file next to each other, so that all workers would get it.
    for file in 0..8 {
        let first = one.join(format!("{file}-first"));
        fs::write(&first, content(300)).expect("written");
        for name in 0..40 {
            fs::hard_link(&first, one.join(format!("{file}-{name:02}"))).expect("linked");
        }
    }
    ground.weft(&["node", "add", "e2e"]);
    let said = ground.weft(&["node", "drain", "e2e", "n00"]);
    assert!(said.contains("moved 8 files, "), "{said}");
    assert_eq!(fs::read(one.join("7-39")).expect("read"), content(300));
}
