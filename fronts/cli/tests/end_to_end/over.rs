//! A file system over a directory of another one: what is below is seen and read, and changes are written back.

use super::hosts::install_ssh;
use super::{Ground, away, wait_until, xattrs};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Paths below a directory, with what they stand for.
fn contents(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(inner) = directories.pop() {
        for entry in fs::read_dir(&inner).expect("listed") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("there");
            let what = if metadata.is_dir() {
                directories.push(path.clone());
                "directory".to_owned()
            } else if metadata.is_symlink() {
                format!("link to {}", fs::read_link(&path).expect("read").display())
            } else {
                let bytes = fs::read(&path).expect("read");
                format!("{:o} {}", metadata.permissions().mode() & 0o777, String::from_utf8_lossy(&bytes))
            };
            let name = path.strip_prefix(directory).expect("below").display().to_string();
            found.insert(name, what);
        }
    }
    found
}

/// A small tree in the directory `below`.
fn tree(ground: &Ground) {
    for directory in ["below/d/deep", "below/e"] {
        fs::create_dir_all(ground.path(directory)).expect("made");
    }
    for (path, text) in [
        ("below/a", "a of below"),
        ("below/b", "b of below"),
        ("below/c", "c of below"),
        ("below/empty", ""),
        ("below/d/x", "x of below"),
        ("below/d/deep/y", "y of below"),
        ("below/e/z", "z of below"),
    ] {
        fs::write(ground.path(path), text).expect("written");
    }
    std::os::unix::fs::symlink("d/x", ground.path("below/link")).expect("made");
}

#[test]
fn a_directory_is_seen_and_read_and_changes_are_written_back() {
    let ground = Ground::new("over");
    tree(&ground);
    let told = ground.weft(&["up", "e2e", "--nodes", "2", "--over", "below"]);
    let end = format!("write changes back to {} and end it", ground.path("below").display());
    assert!(told.contains(&end) && !told.contains("what is in it goes"), "{told}");
    assert_eq!(ground.weft(&["ls", "e2e:/"]), "a\nb\nc\nd\ne\nempty\nlink\n");
    assert_eq!(ground.json(&["stat", "--json", "e2e:/d/x"])[0]["size"], 10);
    assert_eq!(ground.weft(&["cat", "e2e:/d/x"]), "x of below");
    assert_eq!(ground.weft(&["cat", "e2e:/link"]), "x of below");
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "", "what was only read is not written");
    ground.weft(&["down", "e2e"]);

    ground.weft(&["up", "e2e", "--nodes", "2", "--over", "below"]);
    let before = contents(&ground.path("below"));
    let mount = away::mounted(&ground, &[]);
    assert_eq!(contents(&mount), before);
    fs::write(mount.join("a"), "a of weft").expect("written");
    fs::remove_file(mount.join("b")).expect("removed");
    fs::rename(mount.join("c"), mount.join("d/c2")).expect("renamed");
    fs::rename(mount.join("d/deep"), mount.join("moved")).expect("renamed");
    fs::remove_dir_all(mount.join("e")).expect("removed");
    fs::create_dir(mount.join("e")).expect("made again");
    fs::write(mount.join("e/new"), "new").expect("written");
    fs::remove_file(mount.join("empty")).expect("removed");
    fs::remove_file(mount.join("link")).expect("removed");
    std::os::unix::fs::symlink("a", mount.join("link")).expect("made");
    let mut file = fs::OpenOptions::new().append(true).open(mount.join("d/x")).expect("opened");
    file.write_all(b" and more").expect("appended");
    drop(file);
    let ours = contents(&mount);
    assert_eq!(contents(&ground.path("below")), before, "nothing is written by itself");

    let said = ground.weft_fails(2, &["down", "e2e"]);
    assert!(said.contains("were not written back") && said.contains("below/a"), "{said}");
    assert!(said.contains("weft down --discard e2e"), "{said}");
    let drained = ground.json(&["drain", "--json", "--verify", "e2e"]);
    assert_eq!((drained["files"].as_u64(), drained["verified_files"].as_u64()), (Some(5), Some(5)), "{drained}");
    assert!(drained["conflicts"].as_array().is_some_and(Vec::is_empty), "{drained}");
    assert_eq!(contents(&ground.path("below")), ours);
    assert_eq!(contents(&mount), ours);
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "", "all is known to be there");

    // What was written back is a beginning like any other.
    fs::write(mount.join("e/new"), "newer").expect("written");
    fs::rename(mount.join("moved"), mount.join("d/back")).expect("renamed");
    let ours = contents(&mount);
    ground.weft(&["drain", "e2e"]);
    assert_eq!(contents(&ground.path("below")), ours);
    ground.weft(&["down", "e2e"]);
    assert_eq!(contents(&ground.path("below")), ours, "nothing of Weft is left there");
}

#[test]
fn files_and_directories_that_are_marked_stay_out_of_the_directory_below() {
    let ground = Ground::new("over-never");
    tree(&ground);
    ground.weft(&["up", "e2e", "--nodes", "2", "--over", "below"]);
    let before = contents(&ground.path("below"));
    let mount = away::mounted(&ground, &[]);
    let mark = |path: &str| xattrs::set(&mount.join(path), "user.weft.drain", b"never").expect("marked");
    fs::create_dir_all(mount.join("scratch/deep")).expect("made");
    for path in ["scratch/deep/f", "temporary", "a", "d/x"] {
        fs::write(mount.join(path), "of weft").expect("written");
    }
    ["scratch", "temporary", "a", "d"].into_iter().for_each(mark);
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "");
    ground.weft(&["drain", "e2e"]);
    assert_eq!(contents(&ground.path("below")), before, "what is there by their names stays as it is");
    // Without the mark, or with another value, it is as any other file.
    rustix::fs::removexattr(mount.join("a"), "user.weft.drain").expect("removed");
    xattrs::set(&mount.join("temporary"), "user.weft.drain", b"background").expect("changed");
    ground.weft(&["drain", "e2e"]);
    let below = contents(&ground.path("below"));
    assert!(below["a"].ends_with("of weft") && below["temporary"].ends_with("of weft"), "{below:?}");
    assert!(!below.contains_key("scratch") && below["d/x"].ends_with("x of below"), "{below:?}");
    // A marked file that is removed is removed below, too; what is left of marked ones dies with the file system.
    xattrs::set(&mount.join("b"), "user.weft.drain", b"never").expect("marked");
    fs::remove_file(mount.join("b")).expect("removed");
    ground.weft(&["drain", "e2e"]);
    assert!(!ground.path("below/b").exists());
    ground.weft(&["down", "e2e"]);
}

#[test]
fn what_others_have_changed_below_is_kept() {
    let ground = Ground::new("over-conflict");
    tree(&ground);
    ground.weft(&["up", "e2e", "--nodes", "1", "--over", "below"]);
    let mount = away::mounted(&ground, &[]);
    contents(&mount);
    for name in ["a", "new"] {
        fs::write(mount.join(name), "ours").expect("written");
        fs::write(ground.path(&format!("below/{name}")), "of others").expect("written");
    }
    fs::remove_file(mount.join("b")).expect("removed");
    fs::write(ground.path("below/b"), "b of others").expect("written");
    fs::remove_dir_all(mount.join("d")).expect("removed");
    fs::write(ground.path("below/d/theirs"), "theirs").expect("written");
    fs::write(ground.path("below/c"), "c of others, which is not ours to change").expect("written");
    let drained = ground.json(&["drain", "--json", "e2e"]);
    assert_eq!(drained["conflicts"].as_array().map(Vec::len), Some(4), "{drained}");
    let below = contents(&ground.path("below"));
    let text = |name: &str| below.get(name).map(|what| what.split_once(' ').map_or("", |(_, text)| text));
    for (name, expected) in [
        ("a", Some("of others")),
        ("a~weft", Some("ours")),
        ("new", Some("of others")),
        ("new~weft", Some("ours")),
        ("b", Some("b of others")),
        ("d/x", None),
        ("d/theirs", Some("theirs")),
        ("c", Some("c of others, which is not ours to change")),
    ] {
        assert_eq!(text(name), expected, "{name}: {below:?}");
    }
    let status = ground.weft(&["status", "e2e"]);
    assert!(status.contains("a~weft"), "{status}");
    // Once written, it is not written again; a later change goes beside it too.
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "");
    fs::write(mount.join("a"), "ours again").expect("written");
    ground.weft(&["drain", "-q", "e2e"]);
    let below = contents(&ground.path("below"));
    assert!(below["a"].ends_with("of others") && below["a~weft-2"].ends_with("ours again"), "{below:?}");
    let output = ground.weft_code(0, &["down", "e2e"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a~weft") && said.contains("was changed below"), "{said}");
}

#[test]
fn a_file_that_has_changed_below_before_it_is_read_is_read_as_it_is() {
    let ground = Ground::new("over-late");
    tree(&ground);
    ground.weft(&["up", "e2e", "--nodes", "1", "--over", "below"]);
    let mount = away::mounted(&ground, &[]);
    assert_eq!(fs::metadata(mount.join("a")).expect("there").len(), 10);
    fs::write(ground.path("below/a"), "longer than it was").expect("written");
    assert_eq!(fs::read_to_string(mount.join("a")).expect("read"), "longer than it was");
    assert_eq!(fs::metadata(mount.join("a")).expect("there").len(), 18);
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "");
    // One that cannot be read says so, and the next open tries again.
    fs::rename(ground.path("below/b"), ground.path("aside")).expect("renamed");
    assert!(fs::read(mount.join("b")).is_err());
    fs::rename(ground.path("aside"), ground.path("below/b")).expect("renamed");
    assert_eq!(fs::read_to_string(mount.join("b")).expect("read"), "b of below");
    // Cut to nothing, it needs not to be read; renamed, it is found where it was.
    fs::rename(mount.join("c"), mount.join("c2")).expect("renamed");
    fs::write(mount.join("c"), "new").expect("written");
    ground.weft(&["drain", "-q", "e2e"]);
    assert_eq!(fs::read_to_string(ground.path("below/c2")).expect("read"), "c of below");
    assert_eq!(fs::read_to_string(ground.path("below/c")).expect("read"), "new");
    assert_eq!(contents(&mount), contents(&ground.path("below")));
}

#[test]
fn large_files_are_read_by_all_nodes_and_written_by_the_hosts_that_hold_them() {
    let ground = Ground::new("over-hosts");
    install_ssh(&ground);
    fs::create_dir(ground.path("below")).expect("made");
    for number in 0..8u8 {
        let file = fs::File::create(ground.path(&format!("below/f{number}"))).expect("made");
        file.write_all_at(&[number; 5], 70 << 20).expect("written");
    }
    fs::write(ground.path("hosts"), "a\nb\n").expect("written");
    ground.weft(&["up", "e2e", "--hosts", "hosts", "--identity-per-node", "--over", "below"]);
    let mount = away::mounted(&ground, &[]);
    for number in 0..8u8 {
        let file = fs::OpenOptions::new().write(true).read(true).open(mount.join(format!("f{number}")));
        let file = file.expect("opened");
        let mut end = [0; 5];
        file.read_exact_at(&mut end, 70 << 20).expect("read");
        assert_eq!(end, [number; 5]);
        file.write_all_at(b"weft", 1 << 20).expect("written");
    }
    let drained = ground.json(&["drain", "--json", "--verify", "e2e"]);
    let hosts = drained["hosts"].as_array().expect("hosts");
    let written: u64 = hosts.iter().map(|host| host["files"].as_u64().expect("a number")).sum();
    assert_eq!((hosts.len(), written, drained["files"].as_u64()), (2, 8, Some(8)), "{drained}");
    for number in 0..8u8 {
        let bytes = fs::read(ground.path(&format!("below/f{number}"))).expect("read");
        assert_eq!(
            (bytes.len(), &bytes[1 << 20..(1 << 20) + 4], bytes[70 << 20]),
            ((70 << 20) + 5, &b"weft"[..], number)
        );
    }
    ground.weft(&["down", "e2e"]);
}

#[test]
fn a_drain_in_the_background_writes_what_is_quiet_and_ends_with_the_file_system() {
    let ground = Ground::new("over-every");
    tree(&ground);
    ground.weft(&["up", "e2e", "--nodes", "1", "--over", "below"]);
    let mount = away::mounted(&ground, &[]);
    let mut every = ground.command(&["drain", "--every", "1s", "--quiet", "e2e"]).spawn().expect("weft starts");
    fs::write(mount.join("a"), "ours").expect("written");
    fs::rename(mount.join("b"), mount.join("b2")).expect("renamed");
    let below = |name: &str| fs::read_to_string(ground.path(&format!("below/{name}"))).unwrap_or_default();
    wait_until("the files are written", || below("a") == "ours" && below("b2") == "b of below");
    wait_until("the old name is removed", || !ground.path("below/b").exists());
    // A file that is always being written is written back too.
    let mut log = fs::File::create(mount.join("log")).expect("made");
    wait_until("a file that changes is below", || {
        log.write_all(b"line\n").expect("appended");
        below("log").starts_with("line\n")
    });
    let lines = below("log").len();
    wait_until("it is written again", || {
        log.write_all(b"line\n").expect("appended");
        below("log").len() > lines
    });
    drop(log);
    fs::write(mount.join("a"), "ours again").expect("written");
    ground.weft(&["down", "--drain", "e2e"]);
    assert_eq!(below("a"), "ours again");
    let names = contents(&ground.path("below")).into_keys().collect::<Vec<_>>();
    assert!(!names.iter().any(|name| name.ends_with("~weft")), "its own copies are no conflicts: {names:?}");
    let ended = away::has_ended(&mut every, std::time::Duration::from_secs(20));
    if !ended {
        every.kill().expect("killed");
    }
    assert!(every.wait().expect("ended").success() && ended);
}

#[test]
fn a_drain_that_was_killed_is_run_again_and_leaves_no_part() {
    let ground = Ground::new("over-killed");
    tree(&ground);
    ground.weft(&["up", "e2e", "--nodes", "1", "--over", "below"]);
    let mount = away::mounted(&ground, &[]);
    fs::write(mount.join("a"), "ours").expect("written");
    fs::remove_file(mount.join("b")).expect("removed");
    let large = fs::File::create(mount.join("large")).expect("made");
    large.write_all_at(b"end", 400 << 20).expect("written");
    drop(large);
    let mut draining = ground.command(&["drain", "-q", "e2e"]).spawn().expect("weft starts");
    wait_until("the drain begins", || ground.path("below/.large.weft-part").exists());
    draining.kill().expect("killed");
    assert!(!draining.wait().expect("ended").success());
    let drained = ground.json(&["drain", "--json", "e2e"]);
    assert!(drained["conflicts"].as_array().is_some_and(Vec::is_empty), "{drained}");
    assert_eq!(contents(&ground.path("below")).keys().collect::<Vec<_>>(), contents(&mount).keys().collect::<Vec<_>>());
    assert_eq!(fs::metadata(ground.path("below/large")).expect("there").len(), (400 << 20) + 3);
    assert_eq!(fs::read_to_string(ground.path("below/a")).expect("read"), "ours");
    assert_eq!(ground.weft(&["drain", "--dry-run", "e2e"]), "");
    ground.weft(&["down", "e2e"]);
}

/// A small generator of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

/// Makes one change in a tree. Whether it succeeds depends on the tree alone.
fn change(root: &Path, what: usize, paths: (&str, &str), text: &str) -> bool {
    let (one, other) = (root.join(paths.0), root.join(paths.1));
    match what {
        0 | 1 => fs::write(one, text).is_ok(),
        2 => fs::remove_file(one).is_ok(),
        3 | 4 => fs::rename(one, other).is_ok(),
        5 => fs::create_dir(one).is_ok(),
        6 => fs::remove_dir(one).is_ok(),
        7 => fs::remove_dir_all(one).is_ok(),
        8 => fs::OpenOptions::new().append(true).open(one).and_then(|mut file| file.write_all(text.as_bytes())).is_ok(),
        9 => std::os::unix::fs::symlink(paths.1, one).is_ok(),
        10 => fs::OpenOptions::new().write(true).open(one).and_then(|file| file.set_len(3)).is_ok(),
        _ => fs::metadata(&one)
            .is_ok_and(|found| found.is_file() && fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).is_ok()),
    }
}

#[test]
fn whatever_is_done_the_drained_directory_equals_the_file_system() {
    let ground = Ground::new("over-random");
    let names = ["a", "b", "d", "d/a", "d/x", "d/deep", "d/deep/y", "e", "e/z", "e/d", "e/d/a"];
    for seed in 0..12 {
        let mut choices = Choices(seed);
        let _ = fs::remove_dir_all(ground.path("below"));
        tree(&ground);
        let plain = ground.path(&format!("plain-{seed}"));
        assert!(std::process::Command::new("cp").arg("-a").arg(ground.path("below")).arg(&plain).status().is_ok());
        ground.weft(&["up", "e2e", "--nodes", "2", "--shards-per-node", "2", "--over", "below"]);
        let _ = fs::remove_dir(ground.path("m"));
        let mount = away::mounted(&ground, &[]);
        for round in 0..3 {
            for step in 0..25 {
                let what = choices.below(12);
                let paths = (names[choices.below(names.len())], names[choices.below(names.len())]);
                let text = format!("{seed} {round} {step}");
                let expected = change(&plain, what, paths, &text);
                let done = change(&mount, what, paths, &text);
                assert_eq!(done, expected, "seed {seed}, round {round}, step {step}: {what} {paths:?}");
            }
            ground.weft(&["drain", "-q", "e2e"]);
            let below = contents(&ground.path("below"));
            assert_eq!(below, contents(&plain), "seed {seed}, round {round}: below");
            assert_eq!(contents(&mount), below, "seed {seed}, round {round}: the mount");
        }
        ground.weft(&["down", "e2e"]);
    }
}
