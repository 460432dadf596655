//! Two mounts of one file system of four nodes: names and inodes of different shards.

use super::away::mounted;
use super::{Ground, can_mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Makes directories, each by a client of its own, until four shards have one; a name for each shard.
pub fn directories_of_shards(ground: &Ground) -> Vec<String> {
    let mut directories = BTreeMap::new();
    for number in 0..200 {
        let name = format!("d{number}");
        ground.weft(&["mkdir", &format!("e2e:/{name}")]);
        let told = ground.json(&["stat", "--json", &format!("e2e:/{name}")]);
        let shard = told[0]["shard"].as_u64().unwrap_or_else(|| panic!("{told}"));
        directories.entry(shard).or_insert(name);
        if directories.len() == 4 {
            break;
        }
    }
    assert_eq!(directories.len(), 4, "{directories:?}");
    directories.into_values().collect()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn names_move_and_link_between_shards_through_two_mounts() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("shards");
    ground.weft(&["up", "e2e", "--nodes", "4", "--store", "store"]);
    let names = directories_of_shards(&ground);
    let (one, other) = (ground.path("one"), ground.path("other"));
    for place in [&one, &other] {
        fs::create_dir(place).expect("a directory");
        ground.weft(&["mount", "e2e", &place.display().to_string()]);
    }
    for from in &names {
        for to in names.iter().filter(|to| *to != from) {
            let at = |mount: &Path, directory: &str, name: &str| mount.join(directory).join(name);
            // Through one mount, with `mv`, onto nothing; seen by the other.
            write(&at(&one, from, "f"), "first");
            assert!(at(&other, from, "f").exists() && !at(&other, to, "f").exists());
            fs::rename(at(&one, from, "f"), at(&one, to, "f")).expect("renamed");
            assert!(!at(&other, from, "f").exists());
            assert_eq!(
                (read(&at(&other, to, "f")), read(&at(&one, to, "f"))),
                ("first".to_owned(), "first".to_owned())
            );
            // Replaced by the other one, while its file has another name.
            fs::hard_link(at(&one, to, "f"), at(&one, from, "kept")).expect("linked");
            assert_eq!(fs::metadata(at(&other, from, "kept")).expect("stat").nlink(), 2);
            write(&at(&other, from, "g"), "second");
            fs::rename(at(&other, from, "g"), at(&other, to, "f")).expect("replaced");
            assert_eq!(
                (read(&at(&one, to, "f")), read(&at(&one, from, "kept"))),
                ("second".to_owned(), "first".to_owned())
            );
            assert_eq!(fs::metadata(at(&one, from, "kept")).expect("stat").nlink(), 1);
            renameat_with(CWD, at(&one, from, "kept"), CWD, at(&one, to, "f"), RenameFlags::EXCHANGE)
                .expect("exchanged");
            assert_eq!(
                (read(&at(&other, to, "f")), read(&at(&other, from, "kept"))),
                ("first".to_owned(), "second".to_owned())
            );
            let refused = renameat_with(CWD, at(&one, from, "kept"), CWD, at(&one, to, "f"), RenameFlags::NOREPLACE);
            assert_eq!(refused, Err(rustix::io::Errno::EXIST));
            // What was opened by a name of another shard is written where its inode is.
            write(&at(&other, to, "f"), "third");
            assert_eq!(read(&at(&one, to, "f")), "third");
            fs::remove_file(at(&one, to, "f")).expect("removed");
            fs::remove_file(at(&other, from, "kept")).expect("removed");
            for mount in [&one, &other] {
                assert_eq!(fs::read_dir(mount.join(from)).expect("listed").count(), 0);
                assert_eq!(fs::read_dir(mount.join(to)).expect("listed").count(), 0);
            }
        }
    }
    // Directories and what is in them.
    let [a, b, ..] = &names[..] else { panic!("four directories") };
    fs::create_dir(one.join(a).join("sub")).expect("made");
    write(&one.join(a).join("sub/file"), "kept");
    let moved =
        Command::new("mv").args([one.join(a).join("sub"), one.join(b).join("sub")]).status().expect("mv starts");
    assert!(moved.success());
    assert_eq!(read(&other.join(b).join("sub/file")), "kept");
    assert!(!other.join(a).join("sub").exists());
    for place in [&one, &other] {
        ground.weft(&["umount", &place.display().to_string()]);
    }
}

/// Renames of files that all shards have made so far: alone, and with other shards.
fn renames(ground: &Ground) -> [u64; 2] {
    let status = ground.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let shards = || nodes.iter().flat_map(|node| node["shards"].as_array().expect("shards"));
    ["renames", "renames_across"].map(|field| shards().map(|shard| shard[field].as_u64().expect("a number")).sum())
}

/// How most programs replace a file: they write a temporary one and give it the other one's name, ten times.
fn replace(temporary: &Path, target: &Path) {
    for round in 0..10 {
        write(temporary, &format!("{round}"));
        fs::rename(temporary, target).unwrap_or_else(|error| panic!("to {}: {error}", target.display()));
    }
    assert_eq!(read(target), "9");
}

#[test]
fn replacing_a_file_crosses_shards_only_from_a_directory_of_another_one() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("crossing");
    ground.weft(&["up", "e2e", "--nodes", "4", "--store", "store"]);
    let names = directories_of_shards(&ground);
    let mount = mounted(&ground, &[]);
    let mut before = [0, 0];
    let mut done = || {
        let now = renames(&ground);
        let done = [now[0] - before[0], now[1] - before[1]];
        before = now;
        done
    };
    for name in &names {
        replace(&mount.join(name).join("temporary"), &mount.join(name).join("target"));
    }
    assert_eq!(done(), [40, 0], "in the same directory");
    for name in ["own", "own/temporary", "own/target"] {
        fs::create_dir(mount.join(name)).expect("made");
    }
    replace(&mount.join("own/temporary/file"), &mount.join("own/target/file"));
    assert_eq!(done(), [10, 0], "between directories that one mount has made");
    for from in &names {
        for to in &names {
            replace(&mount.join(from).join("temporary"), &mount.join(to).join(format!("from-{from}")));
        }
    }
    assert_eq!(done(), [40, 120], "between any two of four directories at different shards");
    ground.weft(&["umount", &mount.display().to_string()]);
}
