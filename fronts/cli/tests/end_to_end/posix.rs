//! What programs without privileges may do through a mount, and what an open file keeps when its name goes, as on a
//! local file system of Linux.

use super::{Ground, can_mount, wait_until};
use rustix::fs::{Gid, Uid};
use rustix::process::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Ids of a user without privileges, and of another one.
const USER: u32 = 65534;
const OTHER: u32 = 65533;
/// How a file system is mounted, in each mode in which the kernel treats files in another way.
const MODES: [&str; 3] = ["allow_other", "allow_other,direct", "allow_other,nopassthrough"];

/// Does something as a user without privileges, on a thread of its own: Linux has credentials per thread.
pub fn as_user<T: Send>(uid: u32, job: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            rustix::thread::set_thread_groups(&[]).expect("no groups");
            rustix::thread::set_thread_res_gid(group, group, group).expect("setresgid");
            rustix::thread::set_thread_res_uid(user, user, user).expect("setresuid");
            job()
        });
        worker.join().expect("the user's thread")
    })
}

/// Mounts in each mode, and hands the test a directory in which anybody may make names, through two mounts.
pub fn in_each_mode(test: &str, check: impl Fn(&Path, &Path)) {
    if !can_mount() {
        return;
    }
    if !geteuid().is_root() {
        eprintln!("skipped: only root can act as other users");
        return;
    }
    let ground = Ground::new(test);
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    for (number, options) in MODES.into_iter().enumerate() {
        let points = ["one", "two"].map(|name| ground.path(name));
        for point in &points {
            fs::create_dir_all(point).expect("made");
            ground.weft(&["mount", "e2e", &point.display().to_string(), "-o", options]);
        }
        let [here, there] = points.each_ref().map(|point| point.join(format!("d{number}")));
        fs::create_dir(&here).expect("made");
        set_mode(&here, 0o777);
        eprintln!("mounted with {options}");
        check(&here, &there);
        for point in &points {
            ground.weft(&["umount", &point.display().to_string()]);
        }
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").ino()
}

/// A file of root with this mode, and three bytes in it.
fn file_of_root(path: PathBuf, mode: u32) -> PathBuf {
    fs::write(&path, "abc").expect("written");
    set_mode(&path, mode);
    path
}

#[test]
fn writing_to_a_set_id_file_of_somebody_else_clears_the_bits() {
    in_each_mode("set-id", |here, there| {
        type Change = fn(&Path) -> io::Result<()>;
        let changes: [(&str, Change); 5] = [
            ("write", |path| OpenOptions::new().write(true).open(path)?.write_all(b"x")),
            ("append", |path| OpenOptions::new().append(true).open(path)?.write_all(b"x")),
            ("ftruncate", |path| OpenOptions::new().write(true).open(path)?.set_len(1)),
            ("O_TRUNC", |path| OpenOptions::new().write(true).truncate(true).open(path).map(drop)),
            ("truncate", |path| {
                let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
                nix::unistd::truncate(path.as_c_str(), 2).map_err(io::Error::from)
            }),
        ];
        for (what, change) in changes {
            for set_id in [0o4777, 0o2777, 0o6777] {
                let name = format!("{what}-{set_id:o}");
                let file = file_of_root(here.join(&name), set_id);
                assert_eq!(mode(&there.join(&name)), set_id, "{name}");
                as_user(USER, || change(&file)).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!((mode(&file), mode(&there.join(&name))), (0o777, 0o777), "{name}");
            }
        }
        let file = file_of_root(here.join("open"), 0o6777);
        let seen = as_user(USER, || {
            let mut open = OpenOptions::new().read(true).write(true).open(&file)?;
            open.write_all(b"x")?;
            open.metadata()
        });
        assert_eq!(seen.expect("written").mode() & 0o7777, 0o777, "while it is open");
        let path = file_of_root(here.join("inherited"), 0o6777);
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        as_user(USER, || file.write_all_at(b"x", 0)).expect("written");
        assert_eq!((mode(&path), mode(&there.join("inherited"))), (0o777, 0o777), "whoever opened it");
        let path = file_of_root(here.join("later"), 0o777);
        let file = as_user(USER, || OpenOptions::new().write(true).open(&path)).expect("open");
        set_mode(&path, 0o6777);
        as_user(USER, || file.write_all_at(b"x", 0)).expect("written");
        drop(file);
        // A kernel that writes the object's file by itself does not clear them: the report of the write does.
        assert_eq!((mode(&path), mode(&there.join("later"))), (0o777, 0o777), "set while it was open");
        let file = file_of_root(here.join("root"), 0o6777);
        OpenOptions::new().append(true).open(&file).and_then(|mut file| file.write_all(b"x")).expect("written");
        assert_eq!(mode(&file), 0o6777, "root's writes clear nothing");
        chown(&file, Some(OTHER), Some(OTHER)).expect("given away");
        assert_eq!(mode(&file), 0o777, "a change of the owner clears them");
        let refused = as_user(USER, || fs::set_permissions(&file, fs::Permissions::from_mode(0o700)));
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::PermissionDenied), "chmod is the owner's");
    });
}

/// Runs a program as a user without privileges. What another test has just forked has this test's open files until it
/// calls `execve`: a copy that was written meanwhile is busy.
fn run(program: &Path) -> io::Result<ExitStatus> {
    let mut ran = None;
    wait_until("the end of all writing to a program", || {
        let now = Command::new(program).uid(USER).gid(USER).status();
        let is_busy = matches!(&now, Err(error) if error.kind() == ErrorKind::ExecutableFileBusy);
        ran = Some(now);
        !is_busy
    });
    ran.expect("it was tried")
}

#[test]
fn a_program_that_cannot_be_read_can_be_run() {
    in_each_mode("run", |here, there| {
        // (mode, may run, may read)
        for (number, (mode, runs, reads)) in
            [(0o711, true, false), (0o755, true, true), (0o744, false, true), (0o700, false, false)]
                .into_iter()
                .enumerate()
        {
            let name = format!("true{number}");
            fs::copy("/bin/true", here.join(&name)).expect("copied");
            set_mode(&here.join(&name), mode);
            for path in [here.join(&name), there.join(&name)] {
                for round in 0..2 {
                    let ran = run(&path);
                    match ran {
                        Ok(status) => assert!(status.success() && runs, "{mode:o}, round {round}"),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{mode:o}, round {round}");
                            assert!(!runs, "{mode:o}, round {round}: {error}");
                        }
                    }
                    let read = as_user(USER, || fs::read(&path));
                    assert_eq!(read.is_ok(), reads, "{mode:o}, round {round}: {:?}", read.err());
                }
            }
        }
    });
}

#[test]
fn a_directory_of_somebody_else_is_replaced_by_rename_unless_its_parent_is_sticky() {
    in_each_mode("rename-over", |here, _| {
        // (owner of the sticky parent, owner of the directory in it, whether it may be replaced)
        let cases = [(USER, USER, true), (USER, 0, true), (USER, OTHER, true), (0, USER, true), (OTHER, USER, true)];
        for (parent, target, allowed) in cases.into_iter().chain([(0, 0, false), (OTHER, OTHER, false)]) {
            let (from, sticky) = (here.join("from"), here.join("sticky"));
            as_user(USER, || fs::create_dir_all(from.join("d"))).expect("made");
            fs::create_dir(&sticky).expect("made");
            set_mode(&sticky, 0o1777);
            as_user(target, || fs::create_dir(sticky.join("d"))).expect("made");
            chown(&sticky, Some(parent), Some(parent)).expect("given away");
            let moved = inode(&from.join("d"));
            let done = as_user(USER, || fs::rename(from.join("d"), sticky.join("d")));
            let expected = if allowed { Ok(()) } else { Err(ErrorKind::PermissionDenied) };
            assert_eq!(done.map_err(|error| error.kind()), expected, "sticky of {parent}, target of {target}");
            assert_eq!(inode(&sticky.join("d")) == moved, allowed, "sticky of {parent}, target of {target}");
            fs::remove_dir_all(&from).and_then(|()| fs::remove_dir_all(&sticky)).expect("removed");
        }
        // A directory that moves changes its own `..`.
        for (mode, allowed) in [(0o555, false), (0o755, true)] {
            let (from, to) = (here.join("from"), here.join("to"));
            as_user(USER, || fs::create_dir_all(from.join("d")).and_then(|()| fs::create_dir(&to))).expect("made");
            set_mode(&from.join("d"), mode);
            let done = as_user(USER, || fs::rename(from.join("d"), to.join("d")));
            assert_eq!(done.is_ok(), allowed, "{mode:o}: {done:?}");
            fs::remove_dir_all(&from).and_then(|()| fs::remove_dir_all(&to)).expect("removed");
        }
    });
}

/// A directory that is open, has no name any more, and is as Linux has such directories.
fn check_removed(open: &File, what: &str) {
    let stat = open.metadata().unwrap_or_else(|error| panic!("fstat, {what}: {error}"));
    assert_eq!(stat.nlink(), 0, "{what}");
    let names = rustix::fs::Dir::read_from(open).and_then(|mut names| names.read().transpose());
    match names {
        // Linux finds nothing at all, or the directory and its parent.
        Ok(None) => {}
        Ok(Some(entry)) => assert!(entry.file_name().to_bytes().starts_with(b"."), "{what}: {entry:?}"),
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => panic!("readdir, {what}: {error}"),
    }
    open.set_permissions(fs::Permissions::from_mode(0o711)).unwrap_or_else(|error| panic!("fchmod, {what}: {error}"));
    assert_eq!(open.metadata().expect("fstat").mode() & 0o7777, 0o711, "{what}");
    let made = rustix::fs::mkdirat(open, "below", rustix::fs::Mode::RWXU);
    assert_eq!(made, Err(rustix::io::Errno::NOENT), "{what}");
}

#[test]
fn an_open_directory_stays_when_it_is_removed() {
    in_each_mode("open-directory", |here, there| {
        let open_all = |name: &str| {
            fs::create_dir(here.join(name)).expect("made");
            [here, there].map(|mount| File::open(mount.join(name)).expect("open"))
        };
        for by in [here, there] {
            let removed = open_all("removed");
            fs::remove_dir(by.join("removed")).expect("removed");
            let replaced = open_all("replaced");
            fs::create_dir(by.join("next"))
                .and_then(|()| fs::rename(by.join("next"), by.join("replaced")))
                .expect("over");
            for (number, open) in removed.iter().chain(&replaced).enumerate() {
                check_removed(open, &format!("directory {number}, by {}", by.display()));
            }
            fs::remove_dir(by.join("replaced")).expect("removed");
        }
    });
}

#[test]
fn an_open_directory_outlives_a_lease_term_without_a_name() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("long-open");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    let [one, two] = ["one", "two"].map(|name| {
        let point = ground.path(name);
        fs::create_dir(&point).expect("made");
        ground.weft(&["mount", "e2e", name]);
        point
    });
    let open: Vec<File> = ["a", "b", "c"]
        .iter()
        .flat_map(|name| {
            fs::create_dir(one.join(name)).expect("made");
            [&one, &two].map(|mount| File::open(mount.join(name)).expect("open"))
        })
        .collect();
    fs::remove_dir(one.join("a")).and_then(|()| fs::remove_dir(two.join("b"))).expect("removed");
    ground.weft(&["rm", "-r", "e2e:/c"]);
    let inodes = || -> u64 {
        let nodes = ground.status()["nodes"].take();
        let shards = nodes.as_array().into_iter().flatten().flat_map(|node| node["shards"].as_array().cloned());
        shards.flatten().filter_map(|shard| shard["inodes"].as_u64()).sum()
    };
    // Longer than a term, in which any inode that a kernel was told of stays.
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        for (number, open) in open.iter().enumerate() {
            let stat = open.metadata().unwrap_or_else(|error| panic!("directory {number}: {error}"));
            assert_eq!(stat.nlink(), 0, "directory {number}");
        }
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(inodes(), 4, "the root and three without a name");
    drop(open);
    wait_until("the end of the directories", || inodes() == 1);
}

#[test]
fn an_open_file_that_was_renamed_over_has_no_links() {
    in_each_mode("renamed-over", |here, there| {
        for (by, reader) in [(here, here), (here, there), (there, here)] {
            for (name, text) in [("old", "old"), ("new", "new")] {
                fs::write(by.join(name), text).expect("written");
            }
            let mut open = File::open(reader.join("old")).expect("open");
            fs::rename(by.join("new"), by.join("old")).expect("renamed");
            assert_eq!(open.metadata().expect("fstat").nlink(), 0);
            let mut text = String::new();
            open.read_to_string(&mut text).expect("read");
            assert_eq!(text, "old");
            assert_eq!(fs::read_to_string(by.join("old")).expect("read"), "new");
        }
    });
}

/// Opens in a row that one reader makes of a name that is replaced all the time. Where inodes could not be opened any
/// more once their name was gone, 1 in 270 failed.
const OPENS: usize = 1000;

#[test]
fn a_name_that_is_replaced_all_the_time_can_always_be_opened() {
    in_each_mode("always-there", |here, there| {
        // By one mount, then by both.
        for writers in [&[here][..], &[here, there]] {
            replace_and_read(here, there, writers);
        }
    });
}

fn replace_and_read(here: &Path, there: &Path, writers: &[&Path]) {
    let version = |number: usize| vec![b'a' + (number % 26) as u8; 1000 + 37 * (number % 100)];
    fs::write(here.join("name"), version(0)).expect("written");
    let done = AtomicBool::new(false);
    let read_all = |mount: &Path| {
        for round in 0..OPENS {
            let bytes = fs::read(mount.join("name"));
            let bytes = bytes.unwrap_or_else(|error| panic!("open {round} in {}: {error}", mount.display()));
            let first = bytes.first().copied().unwrap_or(b'?');
            let whole = bytes.len() >= 1000 && bytes.iter().all(|byte| *byte == first);
            assert!(whole, "read {round} in {}: {} bytes of {first}", mount.display(), bytes.len());
        }
    };
    let renames = thread::scope(|scope| {
        let replace = |index: usize, mount: &Path| {
            let next = mount.join(format!("next{index}"));
            let mut number = 0;
            while !done.load(Ordering::Acquire) {
                number += 1;
                fs::write(&next, version(number)).expect("written");
                fs::rename(&next, mount.join("name")).expect("renamed");
            }
            number
        };
        let spawn = |(index, mount): (usize, &&Path)| {
            let mount = mount.to_path_buf();
            scope.spawn(move || replace(index, &mount))
        };
        let writers: Vec<_> = writers.iter().enumerate().map(spawn).collect();
        let readers = [here, there].map(|mount| scope.spawn(move || read_all(mount)));
        let results = readers.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Release);
        assert!(results.iter().all(Result::is_ok), "a reader failed");
        writers.into_iter().map(|writer| writer.join().expect("a writer")).sum::<usize>()
    });
    eprintln!("{renames} renames over the name");
    assert!(renames > 20, "only {renames} renames");
}

#[test]
fn the_space_of_a_removed_file_is_free_at_once() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("space");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, two] = ["one", "two"].map(|name| {
        let point = ground.path(name);
        fs::create_dir(&point).expect("made");
        ground.weft(&["mount", "e2e", name]);
        point
    });
    let objects = || ground.status()["nodes"][0]["space"]["objects"].as_u64().expect("a count");
    type Remove = fn(&Path, &Path);
    let ways: [(&str, Remove); 8] = [
        ("by the mount that wrote it", |one, _| fs::remove_file(one.join("f")).expect("removed")),
        ("by another mount", |_, two| fs::remove_file(two.join("f")).expect("removed")),
        ("by another mount that has read it", |_, two| {
            fs::read(two.join("f")).expect("read");
            fs::remove_file(two.join("f")).expect("removed");
        }),
        ("while it is open", |one, _| {
            let open = File::open(one.join("f")).expect("open");
            fs::remove_file(one.join("f")).expect("removed");
            drop(open);
        }),
        // Who has it open is granted the lease once more after the name is gone.
        ("by another mount while it is open, cut and written", |one, two| {
            let open = File::options().read(true).write(true).open(one.join("f")).expect("open");
            open.read_at(&mut [0; 10], 200_000).expect("read");
            fs::remove_file(two.join("f")).expect("removed");
            open.set_len(27_559).expect("cut");
            open.read_at(&mut [0; 10], 0).expect("read");
            open.write_all_at(&[8; 12_288], 4096).expect("written");
        }),
        ("by a rename over it", |one, _| {
            symlink("target", one.join("link"))
                .and_then(|()| fs::rename(one.join("link"), one.join("f")))
                .expect("over");
        }),
        // The other mount is told of it, but gets no lease while it is being written.
        ("after another mount has looked at it while it was written", |one, two| {
            let mut writer = File::options().append(true).open(one.join("f")).expect("open");
            writer.write_all(b"more").expect("written");
            assert_eq!(fs::metadata(two.join("f")).expect("looked at").len(), 100_004);
            drop(writer);
            fs::remove_file(one.join("f")).expect("removed");
        }),
        ("after another mount has had it open while it was written", |one, two| {
            let mut reader = File::open(two.join("f")).expect("open");
            let mut writer = File::options().append(true).open(one.join("f")).expect("open");
            writer.write_all(b"more").expect("written");
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("read");
            assert_eq!(read.len(), 100_004);
            drop((reader, writer));
            fs::remove_file(one.join("f")).expect("removed");
        }),
    ];
    for (how, remove) in ways {
        // What is given back with a renewal only is so after 1.25 s on average.
        for round in 0..3 {
            fs::write(one.join("f"), [7; 100_000]).expect("written");
            assert_eq!(objects(), 1, "{how}, round {round}");
            let begun = Instant::now();
            remove(&one, &two);
            wait_until(&format!("the end of the object, removed {how}, round {round},"), || objects() == 0);
            let took = begun.elapsed();
            assert!(took < Duration::from_millis(900), "removed {how}, free after {took:?}, round {round}");
            let _ = fs::remove_file(one.join("f"));
        }
    }
}
