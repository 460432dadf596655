//! Two mounts of one file system change names in one directory: what one has done, the other one sees at once, in every
//! mode, on kernels with and without the epoch of names.

use super::{Ground, can_mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How files are read and written, and whether names are dropped by the epoch.
const MODES: [&str; 6] = ["rw", "direct", "nopassthrough", "rw,noepoch", "direct,noepoch", "nopassthrough,noepoch"];

/// Mounts the file system twice in each mode.
fn in_each_mode(test: &str, check: impl Fn(&Path, &Path, &str)) {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(test);
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let points = ["one", "two"].map(|name| ground.path(name));
    for (number, mode) in MODES.iter().enumerate() {
        for point in &points {
            fs::create_dir_all(point).expect("made");
            ground.weft(&["mount", "e2e", &point.display().to_string(), "-o", mode]);
        }
        let mounts = ground.status()["mounts"].take();
        assert_eq!(mounts.as_array().map(Vec::len), Some(2), "{mounts}");
        if mode.contains("noepoch") {
            assert_eq!(mounts[0]["negotiated"]["epoch"].as_bool(), Some(false), "{mode}");
        }
        let directory = format!("d{number}");
        fs::create_dir(points[0].join(&directory)).expect("made");
        check(&points[0].join(&directory), &points[1].join(&directory), mode);
        for point in &points {
            ground.weft(&["umount", &point.display().to_string()]);
        }
    }
}

/// Writes a file and renames it over `r`. Its inode.
fn replace(directory: &Path, text: &str) -> u64 {
    let (new, name) = (directory.join(format!("tmp-{text}")), directory.join("r"));
    fs::write(&new, text).expect("written");
    fs::rename(&new, &name).expect("renamed");
    fs::metadata(&name).expect("stat").ino()
}

fn inode(path: &Path) -> Option<u64> {
    match fs::symlink_metadata(path) {
        Ok(found) => Some(found.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn a_name_that_two_mounts_rename_over_is_never_stale() {
    in_each_mode("rename-over", |one, two, mode| {
        for round in 0..100 {
            for (here, there) in [(one, two), (two, one), (one, two)] {
                let text = format!("{round}-{}", here.display()).replace('/', "+");
                let replaced = replace(here, &text);
                let name = there.join("r");
                assert_eq!(fs::read_to_string(&name).expect("read"), text, "{}", there.display());
                assert_eq!(inode(&name), Some(replaced), "round {round}, {mode}");
                // Changed by its name through one mount, seen through the other one at once.
                let bits = if round % 2 == 0 { 0o600 } else { 0o644 };
                fs::set_permissions(&name, fs::Permissions::from_mode(bits)).expect("changed");
                let seen = fs::metadata(here.join("r")).expect("stat");
                assert_eq!((seen.ino(), seen.mode() & 0o777), (replaced, bits), "round {round}, {mode}");
            }
        }
    });
}

#[test]
fn a_file_made_private_through_one_mount_is_private_through_the_other_at_once() {
    if !rustix::process::geteuid().is_root() || !can_mount() {
        eprintln!("skipped: root only can be another user");
        return;
    }
    let ground = Ground::new("private");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let points = ["one", "two"].map(|name| ground.path(name));
    for point in &points {
        fs::create_dir_all(point).expect("made");
        ground.weft(&["mount", "e2e", &point.display().to_string(), "-o", "allow_other"]);
        fs::set_permissions(point, fs::Permissions::from_mode(0o755)).expect("changed");
    }
    let [one, two] = &points;
    let can_read = |path: PathBuf| {
        let mut cat = Command::new("cat");
        cat.arg(path).uid(65_534).gid(65_534).stdin(Stdio::null());
        cat.output().expect("cat starts").status.success()
    };
    for round in 0..20 {
        replace(one, &format!("a{round}"));
        replace(two, &format!("b{round}"));
        replace(one, &format!("c{round}"));
        fs::set_permissions(one.join("r"), fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(can_read(one.join("r")) && can_read(two.join("r")), "round {round}");
        fs::set_permissions(two.join("r"), fs::Permissions::from_mode(0o600)).expect("changed");
        assert!(!can_read(one.join("r")), "round {round}");
    }
    points.iter().for_each(|point| drop(ground.weft(&["umount", &point.display().to_string()])));
}

#[test]
fn exchanged_names_moved_directories_and_absent_names_are_never_stale() {
    in_each_mode("exchange", |one, two, mode| {
        for name in ["x", "y"] {
            fs::write(one.join(name), name).expect("written");
            fs::create_dir(one.join(format!("dir-{name}"))).expect("made");
            fs::write(one.join(format!("dir-{name}/in")), name).expect("written");
        }
        let names = ["x", "y", "dir-x", "dir-y", "dir-x/in", "dir-y/in", "n", "moved"];
        let agree = |what: &str, round: usize| {
            for name in names {
                assert_eq!(inode(&one.join(name)), inode(&two.join(name)), "{name}: {what}, round {round}, {mode}");
            }
        };
        for round in 0..40 {
            let (here, there) = if round % 2 == 0 { (one, two) } else { (two, one) };
            agree("before", round);
            for (a, b) in [("x", "y"), ("dir-x", "dir-y")] {
                let before = [inode(&here.join(a)), inode(&here.join(b))];
                renameat_with(CWD, here.join(a), CWD, here.join(b), RenameFlags::EXCHANGE).expect("exchanged");
                assert_eq!([inode(&there.join(b)), inode(&there.join(a))], before, "{a}, round {round}");
            }
            agree("exchanged", round);
            fs::rename(here.join("dir-x"), here.join("moved")).expect("renamed");
            agree("a directory was moved", round);
            fs::rename(there.join("moved"), there.join("dir-x")).expect("renamed");
            agree("and moved back", round);
            // Both know that it is not there, by looking or by its removal.
            assert_eq!((inode(&here.join("n")), inode(&there.join("n"))), (None, None));
            fs::write(there.join("n"), "new").expect("written");
            agree("made", round);
            fs::rename(here.join("n"), here.join("moved")).expect("renamed");
            agree("renamed", round);
            fs::remove_file(there.join("moved")).expect("removed");
            agree("removed", round);
        }
    });
}

/// An operation took so long that it must have waited for a lock that waits for it.
const TOO_LONG: Duration = Duration::from_millis(100);
/// Operations in a thousand that may take longer for other reasons: the machine does other things too, and may be busy
/// with them. Waiting for locks shows in most operations.
const SLOW_MAX: usize = 100;

/// Makes files, renames them over names of its own, and looks through the other mount. The time of each operation.
fn make_and_rename(here: &Path, there: &Path, tag: &str) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut timed = |operation: &mut dyn FnMut()| {
        let start = Instant::now();
        operation();
        times.push(start.elapsed());
    };
    for round in 0..150 {
        let (new, name) = (format!("{tag}-new-{round}"), format!("{tag}-{}", round % 3));
        assert_eq!(inode(&there.join(&new)), None, "{new}");
        timed(&mut || fs::write(here.join(&new), &new).expect("written"));
        let made = inode(&here.join(&new));
        assert!(made.is_some() && inode(&there.join(&new)) == made, "{new} was made");
        timed(&mut || fs::rename(here.join(&new), here.join(&name)).expect("renamed"));
        assert_eq!(inode(&there.join(&new)), None, "{new} was renamed");
        assert_eq!(inode(&there.join(&name)), made, "{name} is what {new} was");
        assert_eq!(inode(&here.join(&name)), made, "{name} here");
        // Now and then the other mount replaces it.
        if round % 4 == 3 {
            timed(&mut || fs::write(there.join(&new), "other").expect("written"));
            timed(&mut || fs::rename(there.join(&new), there.join(&name)).expect("renamed"));
            assert_eq!(fs::read_to_string(here.join(&name)).expect("read"), "other", "{name}");
        }
    }
    times
}

#[test]
fn two_mounts_that_create_and_rename_in_one_directory_wait_for_no_lock_of_each_other() {
    in_each_mode("one-directory", |one, two, mode| {
        // The root: unlike others, a kernel uses it without looking it up.
        let [one, two] = [one, two].map(|directory| directory.parent().expect("a mount point"));
        let times: Vec<Duration> = thread::scope(|scope| {
            let ways = [(one, two, "a"), (two, one, "b"), (one, two, "c"), (two, one, "d")];
            let threads = ways.map(|(here, there, tag)| scope.spawn(move || make_and_rename(here, there, tag)));
            threads.into_iter().flat_map(|thread| thread.join().expect("no stale name")).collect()
        });
        let slow: Vec<_> = times.iter().filter(|time| **time >= TOO_LONG).collect();
        assert!(slow.len() * 1000 <= SLOW_MAX * times.len(), "{mode}: of {} operations: {slow:?}", times.len());
    });
}
