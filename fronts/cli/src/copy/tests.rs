//! Copies on this machine: the same code moves bytes in and out of file systems.

use super::*;
use crate::copy::file::BUFFER_BYTES;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A directory of its own for one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("weft-copy-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a temporary directory");
        Self(directory)
    }

    fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, contents).expect("written");
        path
    }

    fn place(&self, name: &str) -> Place {
        Place::Local(self.0.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn choices() -> Choices {
    Choices { recursive: true, jobs: 4, ..Choices::default() }
}

/// Bytes in which each 8 tell their own place.
fn stamped(size: usize) -> Vec<u8> {
    (0..size.div_ceil(8) as u64).flat_map(|word| (word * 0x9e37_79b9).to_le_bytes()).take(size).collect()
}

/// Names, permissions, times and contents below a directory.
fn picture(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut names: Vec<_> =
        fs::read_dir(directory).expect("listed").map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    for path in names {
        let metadata = fs::symlink_metadata(&path).expect("there");
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let time = if metadata.is_symlink() { 0 } else { metadata.mtime() };
        let contents = match (metadata.is_file(), metadata.is_symlink()) {
            (true, _) => format!("{:?}", fs::read(&path).expect("read")),
            (_, true) => format!("{:?}", fs::read_link(&path).expect("link")),
            _ => picture(&path).join("\n"),
        };
        lines.push(format!("{name} {:o} {time} {contents}", metadata.mode()));
    }
    lines
}

#[test]
fn a_tree_arrives_with_modes_times_and_links() {
    let scratch = Scratch::new("tree");
    let file = scratch.file("from/a/b/file", b"contents");
    scratch.file("from/empty", b"");
    scratch.file("from/a/.old.weft-part", b"of an earlier copy: not copied");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).expect("set");
    std::os::unix::fs::symlink("a/b/file", scratch.0.join("from/link")).expect("link");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for name in ["from/a/b/file", "from/a"] {
        fs::File::open(scratch.0.join(name)).expect("open").set_modified(long_ago).expect("set");
    }
    fs::set_permissions(scratch.0.join("from/a"), fs::Permissions::from_mode(0o555)).expect("set");
    copy(&[scratch.place("from")], &scratch.place("to"), &choices()).expect("copied");
    fs::set_permissions(scratch.0.join("from/a"), fs::Permissions::from_mode(0o755)).expect("set");
    fs::set_permissions(scratch.0.join("to/a"), fs::Permissions::from_mode(0o755)).expect("set");
    fs::remove_file(scratch.0.join("from/a/.old.weft-part")).expect("removed");
    fs::File::open(scratch.0.join("from/a")).expect("open").set_modified(long_ago).expect("set");
    assert_eq!(picture(&scratch.0.join("to")), picture(&scratch.0.join("from")));
    // The second time it goes into the directory that is there now.
    copy(&[scratch.place("from")], &scratch.place("to"), &choices()).expect("copied");
    assert_eq!(picture(&scratch.0.join("to/from")), picture(&scratch.0.join("from")));
}

#[test]
fn a_large_file_is_copied_by_several_and_is_the_same() {
    let scratch = Scratch::new("large");
    let contents = stamped((70 << 20) + 12_345);
    scratch.file("from", &contents);
    copy(&[scratch.place("from")], &scratch.place("to"), &choices()).expect("copied");
    assert!(fs::read(scratch.0.join("to")).expect("read") == contents);
    assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 2, "nothing else is left");
}

#[test]
fn a_partial_copy_goes_on_where_it_was_left() {
    let scratch = Scratch::new("resume");
    let size = 70 << 20;
    let contents = stamped(size);
    let path = scratch.file("from", &contents);
    let item = Item::from(&fs::metadata(&path).expect("there"));
    // What was copied differs from the source, so that it shows whether it was kept.
    scratch.file(".to.weft-part", &vec![7; 48 << 20]);
    let record = part::Record { done: 32 << 20, ..part::Record::new(&item) };
    record.write(&scratch.place(".to.weft-resume")).expect("recorded");
    let resume = Choices { resume: true, ..choices() };
    copy(&[scratch.place("from")], &scratch.place("to"), &resume).expect("copied");
    let copied = fs::read(scratch.0.join("to")).expect("read");
    assert!(copied[..32 << 20].iter().all(|byte| *byte == 7), "what was recorded is kept");
    assert!(copied[32 << 20..] == contents[32 << 20..], "the rest is copied");
    // With another time the part is not of this source.
    scratch.file(".again.weft-part", &vec![7; 48 << 20]);
    let record = part::Record { mtime_ns: record.mtime_ns + 1, ..record };
    record.write(&scratch.place(".again.weft-resume")).expect("recorded");
    copy(&[scratch.place("from")], &scratch.place("again"), &resume).expect("copied");
    assert!(fs::read(scratch.0.join("again")).expect("read") == contents);
}

#[test]
fn what_is_whole_already_is_passed_over() {
    let scratch = Scratch::new("whole");
    scratch.file("from/a", b"1234");
    copy(&[scratch.place("from")], &scratch.place("to"), &choices()).expect("copied");
    let inode = fs::metadata(scratch.0.join("to/a")).expect("there").ino();
    let resume = Choices { resume: true, ..choices() };
    copy(&[scratch.place("from/a")], &scratch.place("to"), &resume).expect("copied");
    assert_eq!(fs::metadata(scratch.0.join("to/a")).expect("there").ino(), inode);
    copy(&[scratch.place("from/a")], &scratch.place("to"), &choices()).expect("copied");
    assert_ne!(fs::metadata(scratch.0.join("to/a")).expect("there").ino(), inode);
}

#[test]
fn sizes_around_the_buffer_arrive_whole() {
    let scratch = Scratch::new("edges");
    for size in [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1] {
        let contents = stamped(size);
        scratch.file("from", &contents);
        copy(&[scratch.place("from")], &scratch.place("to"), &choices()).expect("copied");
        assert!(fs::read(scratch.0.join("to")).expect("read") == contents, "{size}");
    }
}

#[test]
fn mistakes_are_refused() {
    let scratch = Scratch::new("mistakes");
    scratch.file("d/a", b"1");
    let flat = Choices { recursive: false, ..choices() };
    assert!(copy(&[scratch.place("d")], &scratch.place("e"), &flat).is_err(), "a directory without -r");
    assert!(copy(&[scratch.place("d")], &scratch.place("d/inner"), &choices()).is_err(), "into itself");
    assert!(copy(&[scratch.place("d/a")], &scratch.place("d"), &choices()).is_err(), "onto itself");
    assert!(copy(&[scratch.place("d/a"), scratch.place("d")], &scratch.place("none"), &choices()).is_err());
    assert!(copy(&[scratch.place("d/a")], &scratch.place("none/"), &choices()).is_err());
    assert!(copy(&[scratch.place("gone")], &scratch.place("x"), &choices()).is_err());
    assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 1);
}

/// What another machine would be told.
fn told() -> Batch {
    common_batch("none", false, &Choices { jobs: 2, ..choices() })
}

#[test]
fn what_a_machine_that_fails_was_given_is_copied_by_others() {
    let scratch = Scratch::new("crew");
    for number in 0..300 {
        scratch.file(&format!("from/{number}"), &stamped(number));
    }
    let asked = AtomicUsize::new(0);
    let helper = |name: &str| Helper {
        name: name.to_owned(),
        nodes: Vec::new(),
        perform: Box::new(|batch| {
            asked.fetch_add(batch.files.len(), Ordering::Relaxed);
            Err(Failure::unreachable("no route to host"))
        }),
    };
    let crew = Crew { helpers: vec![helper("a"), helper("b")], here: false, nodes_here: Vec::new() };
    let (from, to) = (scratch.place("from/."), scratch.place("to"));
    to.make_directories().expect("made");
    let (report, shares) = copy_into(&[from], &to, &choices(), &crew, &told()).expect("copied");
    assert_eq!((report.files, report.failures), (300, Vec::new()));
    assert!(asked.load(Ordering::Relaxed) > 0 && shares.iter().all(|share| share.files == 0), "{shares:?}");
    assert_eq!(picture(&scratch.0.join("to")), picture(&scratch.0.join("from")));
}

#[test]
fn a_machine_that_sees_other_files_is_left_out() {
    let scratch = Scratch::new("witness");
    scratch.file("d/a", b"1");
    let witness = Witness::of(scratch.0.join("d")).expect("looked at").expect("there");
    let perform = |batch: &Batch| batch.perform();
    let helper = |name: &str, perform| Helper { name: name.to_owned(), nodes: Vec::new(), perform };
    let mut crew = Crew {
        helpers: vec![helper("same", Box::new(perform)), helper("gone", Box::new(|_| Err(Failure::new("no"))))],
        here: false,
        nodes_here: Vec::new(),
    };
    crew.check(&told(), std::slice::from_ref(&witness));
    assert_eq!(crew.helpers.iter().map(|helper| helper.name.as_str()).collect::<Vec<_>>(), ["same"]);
    assert!(!crew.here);
    fs::write(scratch.0.join("d/b"), b"2").expect("written");
    crew.check(&told(), &[witness]);
    assert!(crew.helpers.is_empty() && crew.here, "somebody has to copy");
}
