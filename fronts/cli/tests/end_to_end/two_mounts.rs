//! Two mounts of one file system on one machine: each other's writes, cuts and appends, while the kernel reads and
//! writes the objects by itself.

use super::{Ground, can_mount, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

/// What `read` of a file gives, opened anew.
fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Contents and size of an open file.
fn seen(file: &fs::File) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; 100];
    let count = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(count);
    (bytes, file.metadata().expect("stat").len())
}

fn open_options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    options
}

/// A file that one mount has open is written and cut through another one.
fn share_a_file(one: &Path, other: &Path) {
    for name in ["truncate", "open", "create"] {
        let cut = |path: &Path| match name {
            "truncate" => open_options().open(path).and_then(|file| file.set_len(0)).expect("cut"),
            "open" => drop(open_options().truncate(true).open(path).expect("cut")),
            _ => drop(fs::File::create(path).expect("cut")),
        };
        let (here, there) = (one.join(name), other.join(name));
        let file = open_options().create_new(true).open(&here).expect("made");
        file.write_all_at(&[b'a'; 10_000], 0).expect("written");
        assert_eq!((contents(&there).len(), fs::metadata(&there).expect("stat").len()), (10_000, 10_000), "{name}");
        cut(&there);
        assert_eq!(seen(&file), (Vec::new(), 0), "{name}");
        file.write_all_at(b"after", 1).expect("written");
        assert_eq!((contents(&there), fs::metadata(&there).expect("stat").len()), (b"\0after".to_vec(), 6), "{name}");
        let second = open_options().open(&there).expect("open");
        second.write_all_at(b"more", 6).expect("written");
        assert_eq!((seen(&file), seen(&second)), ((b"\0aftermore".to_vec(), 10), (b"\0aftermore".to_vec(), 10)));
        // The own mount cuts too, while both have it open.
        file.set_len(3).expect("cut");
        drop(open_options().truncate(true).open(&here).expect("cut"));
        second.write_all_at(b"end", 0).expect("written");
        assert_eq!(seen(&file), (b"end".to_vec(), 3), "{name}");
        drop((file, second));
        for path in [here, there] {
            assert_eq!((contents(&path), fs::metadata(&path).expect("stat").len()), (b"end".to_vec(), 3), "{name}");
        }
    }
}

/// Files that are new, appended to, removed while they are open; times.
fn make_and_append(one: &Path, other: &Path) {
    let (here, there) = (one.join("both"), other.join("both"));
    let [a, b] = [&here, &there].map(|path| open_options().create(true).open(path).expect("made"));
    a.write_all_at(b"aa", 0).expect("written");
    b.write_all_at(b"bb", 2).expect("written");
    assert_eq!((seen(&a), seen(&b)), ((b"aabb".to_vec(), 4), (b"aabb".to_vec(), 4)), "one object for both");
    fs::remove_file(&there).expect("removed");
    a.set_len(0).expect("cut");
    b.write_all_at(b"gone", 0).expect("written");
    assert_eq!(seen(&a), (b"gone".to_vec(), 4));
    drop((a, b));

    let (here, there) = (one.join("log"), other.join("log"));
    thread::scope(|scope| {
        for (path, tag) in [(&here, "x"), (&there, "y")] {
            scope.spawn(move || {
                let mut log = fs::OpenOptions::new().append(true).create(true).open(path).expect("open");
                for line in 0..100 {
                    log.write_all(format!("{tag} {line} {}\n", tag.repeat(3000)).as_bytes()).expect("appended");
                }
            });
        }
    });
    let log = String::from_utf8(contents(&here)).expect("text");
    for tag in ["x", "y"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with(tag)).collect();
        let expected: Vec<String> = (0..100).map(|line| format!("{tag} {line} {}", tag.repeat(3000))).collect();
        assert!(lines == expected, "an append of {tag} is lost or torn: {} lines in {}", lines.len(), here.display());
    }

    let path = one.join("times");
    let file = open_options().create(true).open(&path).expect("made");
    file.write_all_at(b"x", 0).expect("written");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    file.set_modified(long_ago).expect("set");
    drop(file);
    for directory in [one, other] {
        let time = fs::metadata(directory.join("times")).and_then(|stat| stat.modified()).expect("stat");
        assert_eq!(time, long_ago, "closing is no change");
    }
    let file = open_options().open(&path).expect("open");
    file.write_all_at(b"y", 0).expect("written");
    drop(file);
    let time = fs::metadata(other.join("times")).and_then(|stat| stat.modified()).expect("stat");
    assert!(time.elapsed().is_ok_and(|age| age < Duration::from_secs(60)), "the write of the other mount shows");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("entry").file_name().into_string().expect("name")).collect();
    names.sort();
    names
}

/// A directory that one mount lists again and again, so that its kernel keeps the listing, changes through another one.
fn list_a_directory(one: &Path, other: &Path) {
    let (here, there) = (one.join("listed"), other.join("listed"));
    fs::create_dir(&here).expect("made");
    let mut expected: Vec<String> = (0..300).map(|number| format!("f{number:03}")).collect();
    for name in &expected {
        fs::write(here.join(name), "").expect("made");
    }
    let mut open = rustix::fs::Dir::new(fs::File::open(&here).expect("open")).expect("open");
    for round in 0..3 {
        // What others change is not granted for a second: after it, the kernel may keep the listing again.
        thread::sleep(Duration::from_millis(1100));
        for _ in 0..3 {
            assert_eq!(names(&here), expected, "round {round}");
        }
        let (made, removed) = (format!("new{round}"), expected.remove(round));
        fs::write(there.join(&made), "x").expect("made");
        expected.extend([made, removed.clone()]);
        expected.sort();
        assert_eq!(names(&here), expected, "round {round}");
        fs::remove_file(there.join(&removed)).expect("removed");
        expected.retain(|name| *name != removed);
        assert_eq!(names(&here), expected, "round {round}");
        open.rewind();
        let count =
            open.by_ref().filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_bytes()[0] != b'.'));
        assert_eq!(count.count(), expected.len(), "begun anew, round {round}");
    }
}

#[test]
fn two_mounts_see_each_others_writes_and_cuts_through_the_kernel() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("two-mounts");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    let points = ["one", "two"].map(|name| ground.path(name));
    // A mount that caches pages may show what was true microseconds ago: see the guide.
    for (first, second) in [("rw", "rw"), ("direct", "rw"), ("direct,nopassthrough", "rw")] {
        for (point, options) in points.iter().zip([first, second]) {
            fs::create_dir_all(point).expect("made");
            ground.weft(&["mount", "e2e", &point.display().to_string(), "-o", options]);
        }
        let mounts = ground.status()["mounts"].take();
        let passes = |index: usize| mounts[index]["negotiated"]["passthrough"].as_bool() == Some(true);
        if !passes(0) && !passes(1) {
            eprintln!("skipped: the kernel passes no files through: it needs CAP_SYS_ADMIN and Linux 6.9");
            return;
        }
        let [one, two] = &points;
        if first == "rw" {
            list_a_directory(one, two);
        }
        for (here, there, directory) in [(one, two, "d1"), (two, one, "d2"), (one, one, "d3")] {
            fs::create_dir(one.join(directory)).expect("made");
            share_a_file(&here.join(directory), &there.join(directory));
            make_and_append(&here.join(directory), &there.join(directory));
            fs::remove_dir_all(two.join(directory)).expect("removed");
        }
        for point in &points {
            ground.weft(&["umount", &point.display().to_string()]);
        }
    }
}

// As Linux has them; rustix takes both for the first.
const O_SYNC: i32 = 0o4_010_000;
const O_DSYNC: i32 = 0o10_000;

#[test]
fn what_is_written_with_o_sync_needs_its_mount_no_more() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("o-sync");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let point = ground.path("mnt");
    fs::create_dir(&point).expect("made");
    for (number, options) in ["direct,nopassthrough", "nopassthrough"].into_iter().enumerate() {
        ground.weft(&["mount", "e2e", "mnt", "-o", options]);
        let pid = ground.status()["mounts"][0]["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // No process is started while they are open: its closing of them would bring their bytes to the node.
        let names = [(O_SYNC, false), (O_DSYNC, false), (O_DSYNC, true)].map(|(flags, append)| {
            let name = format!("f{number}-{flags:o}-{append}");
            let mut options = fs::OpenOptions::new();
            options.write(true).append(append).create_new(true).custom_flags(flags);
            let mut file = options.open(point.join(&name)).expect("made");
            file.write_all(b"synced").expect("written");
            (name, file)
        });
        kill_process(pid.expect("a pid"), Signal::KILL).expect("killed");
        wait_until("the end of the mount", || fs::metadata(&point).is_err());
        for (name, _) in &names {
            assert_eq!(ground.weft(&["cat", &format!("e2e:/{name}")]), "synced", "{options}");
        }
        drop(names);
        ground.weft(&["umount", "mnt"]);
    }
}
