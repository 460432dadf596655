//! Directories whose names are spread over shards, through two mounts.

use super::{Ground, can_mount};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A mount that reads objects itself, and one that does not.
pub fn mounts(ground: &Ground) -> [PathBuf; 2] {
    [("one", None), ("two", Some("-onopassthrough"))].map(|(name, option)| {
        let point = ground.path(name);
        fs::create_dir(&point).expect("a mount point");
        let text = point.display().to_string();
        let arguments: Vec<&str> = ["mount", "e2e", &text].into_iter().chain(option).collect();
        ground.weft(&arguments);
        point
    })
}

fn names(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).expect("it can be listed") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        assert_eq!(entry.ino(), fs::symlink_metadata(entry.path()).expect("it is there").ino(), "{name}");
        assert!(names.insert(name.clone()), "{name} is listed twice");
    }
    names
}

/// At how many shards the names of a directory are.
pub fn shards(ground: &Ground, path: &str) -> usize {
    ground.json(&["stat", "--json", path])[0]["shards"].as_array().expect("a list").len()
}

#[test]
fn a_spread_directory_is_like_any_other() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("spread");
    ground.weft(&["up", "e2e", "--nodes", "4"]);
    ground.weft(&["mkdir", "--placement", "hash", "e2e:/many"]);
    assert!(shards(&ground, "e2e:/many") >= 4);
    let both = mounts(&ground).map(|point| point.join("many"));
    let [one, two] = &both;
    for number in 0..200 {
        let directory = &both[number % 2];
        fs::write(directory.join(format!("f{number}")), format!("{number}")).expect("written");
        if number % 20 == 0 {
            fs::create_dir_all(directory.join(format!("d{number}/below"))).expect("made");
        }
    }
    for directory in &both {
        assert_eq!(names(directory).len(), 210);
        let stat = fs::metadata(directory).expect("it is there");
        assert_eq!((stat.nlink(), stat.size()), (12, 210));
        for number in 0..200 {
            let text = fs::read_to_string(directory.join(format!("f{number}"))).expect("read");
            assert_eq!(text, format!("{number}"));
        }
        for number in (0..200).step_by(20) {
            let above = fs::metadata(directory.join(format!("d{number}/.."))).expect("it is there");
            assert_eq!(above.ino(), stat.ino());
        }
    }
    // What one mount changes, the other sees at once.
    for number in 0..100 {
        let (old, new) = (format!("f{number}"), format!("moved{number}"));
        fs::rename(one.join(&old), one.join(&new)).expect("moved");
        assert!(!two.join(&old).exists() && two.join(&new).exists(), "{new}");
        fs::hard_link(two.join(&new), two.join(&old)).expect("linked");
        assert_eq!(fs::metadata(one.join(&old)).expect("it is there").nlink(), 2);
        fs::remove_file(two.join(&new)).expect("removed");
        assert!(fs::metadata(one.join(&new)).is_err());
    }
    fs::rename(one.join("d0"), one.join("d20/below/d0")).expect("moved");
    assert_eq!(fs::metadata(two).expect("it is there").nlink(), 11);
    let cycle = fs::rename(two, two.join("d40/many")).expect_err("it would be in itself");
    assert_eq!(cycle.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
    fs::set_permissions(one, fs::Permissions::from_mode(0o1711)).expect("changed");
    assert_eq!(fs::metadata(two).expect("it is there").mode() & 0o7777, 0o1711);
    let full = fs::remove_dir(two).expect_err("it has names");
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOTEMPTY.raw_os_error()));
    ground.weft(&["rm", "-r", "e2e:/many"]);
    assert!(!one.exists() && !two.exists());
    fs::create_dir(one).expect("the name is free");
    assert_eq!(names(two), BTreeSet::new());
}

#[test]
fn a_directory_is_spread_while_it_is_in_use() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("spread-in-use");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    let [one, two] = mounts(&ground).map(|point| point.join("d"));
    fs::create_dir(&one).expect("made");
    let lasting: BTreeSet<String> = (0..3000).map(|number| format!("s{number:04}")).collect();
    for name in &lasting {
        File::create(one.join(name)).expect("made");
    }
    assert_eq!(shards(&ground, "e2e:/d"), 1);
    let open = fs::OpenOptions::new().read(true).write(true).open(two.join("s0007")).expect("opened");
    let mut listing = fs::read_dir(&two).expect("it can be listed");
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string().expect("UTF-8");
    let mut seen: Vec<String> = listing.by_ref().take(85).map(name).collect();
    ground.weft(&["mkdir", "-p", "--placement", "hash", "e2e:/d"]);
    assert_eq!(shards(&ground, "e2e:/d"), 3);
    for number in 0..50 {
        File::create(one.join(format!("new{number}"))).expect("made");
        fs::remove_file(one.join(format!("s{:04}", 1000 + number))).expect("removed");
    }
    seen.extend(listing.map(name));
    let counted: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(counted.len(), seen.len(), "each name is listed once");
    let lasting: Vec<String> =
        lasting.into_iter().filter(|name| !("s1000".."s1050").contains(&name.as_str())).collect();
    assert_eq!(lasting.iter().find(|name| !counted.contains(name)), None);
    open.write_all_at(b"still open", 0).expect("written");
    drop(open);
    assert_eq!(fs::read(one.join("s0007")).expect("read"), b"still open");
    for directory in [&one, &two] {
        assert_eq!(names(directory).len(), 3000);
    }
}
