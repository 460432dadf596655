//! Extended attributes through two mounts: who sees what at once, the errors of Linux, and programs that copy them.

use super::posix::{as_user, in_each_mode};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const USER: u32 = 65534;

pub fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let length = getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

pub fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

pub fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 65_536];
    let length = listxattr(path, &mut names[..]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names = String::from_utf8(names[..length].to_vec()).expect("text");
    names.split_terminator('\0').map(str::to_owned).collect()
}

fn ctime(path: &Path) -> (i64, i64) {
    let stat = fs::metadata(path).expect("stat");
    (stat.ctime(), stat.ctime_nsec())
}

/// What one mount changes the other one sees at once, with the time of the change.
fn changes_are_seen(here: &Path, there: &Path) {
    let [one, other] = [here, there].map(|directory| directory.join("f"));
    fs::write(&one, "text").expect("made");
    assert_eq!((list(&one), list(&other), get(&other, "user.a")), (vec![], vec![], Err(Errno::NODATA)));
    for (from, to, value) in [(&one, &other, "first"), (&other, &one, "second"), (&one, &other, "")] {
        let before = ctime(to);
        set(from, "user.a", value.as_bytes()).expect("set");
        assert_eq!((get(to, "user.a").as_deref(), list(to)), (Ok(value.as_bytes()), vec!["user.a".to_owned()]));
        assert!(ctime(to) > before && ctime(to) == ctime(from));
    }
    // Also of a file that is open and being written.
    let file = OpenOptions::new().write(true).open(&one).expect("open");
    file.write_all_at(b"more text", 4).expect("written");
    set(&one, "user.open", b"1").expect("set");
    file.write_all_at(b"end", 13).expect("written");
    set(&other, "user.open", b"2").expect("set");
    assert_eq!(get(&one, "user.open").as_deref(), Ok(&b"2"[..]));
    drop(file);
    assert_eq!(fs::read(&other).expect("read"), b"textmore textend");
    let moved = here.join("moved");
    fs::rename(&other, there.join("moved")).expect("moved");
    assert_eq!(list(&moved), ["user.a", "user.open"]);
    removexattr(&moved, "user.a").expect("removed");
    assert_eq!(list(&there.join("moved")), ["user.open"]);
    assert_eq!(removexattr(there.join("moved"), "user.a"), Err(Errno::NODATA));
    fs::remove_file(&moved).expect("removed");
}

/// The errors and limits of xattr(7).
fn errors_are_those_of_linux(here: &Path, there: &Path) {
    let path = here.join("errors");
    fs::write(&path, "").expect("made");
    assert_eq!(setxattr(&path, "user.a", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(setxattr(&path, "user.a", b"value", XattrFlags::CREATE), Ok(()));
    assert_eq!(setxattr(there.join("errors"), "user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    let mut little = [0; 3];
    assert_eq!(getxattr(&path, "user.a", &mut little[..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut little[..]), Err(Errno::RANGE));
    for name in ["security.a", "system.posix_acl_access", "other.a"] {
        assert_eq!(set(&path, name, b""), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(get(&path, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    let large = vec![7; 65_536];
    assert_eq!(set(&path, "user.large", &large), Ok(()));
    assert_eq!(get(&there.join("errors"), "user.large"), Ok(large.clone()));
    assert_eq!(set(&path, "user.larger", &[&large[..], b"x"].concat()), Err(Errno::TOOBIG));
    assert_eq!(set(&path, "user.second", &large), Err(Errno::NOSPC));
    assert_eq!(set(&path, &format!("user.{}", "n".repeat(250)), b""), Ok(()));
    assert_eq!(set(&path, &format!("user.{}", "n".repeat(251)), b""), Err(Errno::RANGE));
    let link = here.join("link");
    symlink("errors", &link).expect("made");
    assert_eq!(rustix::fs::lsetxattr(&link, "user.a", b"", XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(rustix::fs::lsetxattr(&link, "trusted.a", b"", XattrFlags::empty()), Ok(()));
}

/// Attributes of users need the rights of the contents; trusted ones are root's.
fn users_have_the_rights_of_the_contents(here: &Path, there: &Path) {
    let (path, directory) = (here.join("rights"), here.join("sticky"));
    fs::write(&path, "").expect("made");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).expect("chmod");
    set(&path, "trusted.a", b"root's").expect("set");
    set(&path, "user.a", b"one").expect("set");
    let there = there.join("rights");
    as_user(USER, || {
        assert_eq!(set(&path, "user.a", b"two"), Err(Errno::ACCESS));
        assert_eq!((get(&there, "user.a").as_deref(), get(&there, "trusted.a")), (Ok(&b"one"[..]), Err(Errno::NODATA)));
        assert_eq!(set(&there, "trusted.a", b""), Err(Errno::PERM));
        assert_eq!(list(&there), ["user.a"]);
        assert_eq!(set(&directory, "user.a", b""), Err(Errno::PERM), "a sticky directory of somebody else");
    });
    assert_eq!(list(&there), ["trusted.a", "user.a"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    as_user(USER, || assert_eq!(get(&there, "user.a"), Err(Errno::ACCESS)));
}

/// `cp -a` brings them along; it asks for the length of each first.
fn programs_copy_them(here: &Path, there: &Path) {
    let path = here.join("copied");
    fs::write(&path, "text").expect("made");
    set(&path, "user.a", b"value").expect("set");
    set(&path, "trusted.a", &[1; 3000]).expect("set");
    let copied = Command::new("cp").arg("-a").arg(there.join("copied")).arg(there.join("copy")).status();
    assert!(copied.expect("cp").success());
    let copy = here.join("copy");
    assert_eq!((get(&copy, "user.a").as_deref(), get(&copy, "trusted.a")), (Ok(&b"value"[..]), Ok(vec![1; 3000])));
}

#[test]
fn extended_attributes_are_seen_through_every_mount_at_once_and_fail_as_on_linux() {
    in_each_mode("xattrs", |here, there| {
        changes_are_seen(here, there);
        errors_are_those_of_linux(here, there);
        users_have_the_rights_of_the_contents(here, there);
        programs_copy_them(here, there);
    });
}

#[test]
fn a_mount_without_extended_attributes_has_none() {
    if !super::can_mount() {
        return;
    }
    let ground = super::Ground::new("noxattr");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let point = ground.path("mnt");
    fs::create_dir(&point).expect("made");
    ground.weft(&["mount", "e2e", "mnt", "-o", "noxattr"]);
    fs::write(point.join("f"), "").expect("made");
    for _ in 0..2 {
        assert_eq!(set(&point.join("f"), "user.a", b""), Err(Errno::OPNOTSUPP));
        assert_eq!(get(&point.join("f"), "user.a"), Err(Errno::OPNOTSUPP));
        assert_eq!(listxattr(point.join("f"), &mut [0u8; 9][..]), Err(Errno::OPNOTSUPP));
    }
}

/// A tree with extended attributes on two files and two directories, one of which may not be written to. `None`: this
/// machine's file system supports none.
fn tree_with_xattrs(directory: &Path) -> Option<()> {
    let below = directory.join("below");
    fs::create_dir_all(&below).expect("made");
    for name in ["plain", "one", "below/two"] {
        fs::write(directory.join(name), name).expect("written");
    }
    match set(directory, "user.of-directory", b"1") {
        Err(Errno::OPNOTSUPP) => {
            println!("skipped: {} supports no extended attributes", directory.display());
            return None;
        }
        done => done.expect("set"),
    }
    set(&directory.join("one"), "user.empty", b"").expect("set");
    set(&directory.join("one"), "user.binary", &[0, 255, 1]).expect("set");
    set(&directory.join("below/two"), "user.long", &[7; 3000]).expect("set");
    set(&below, "user.of-directory", b"2").expect("set");
    fs::set_permissions(&below, fs::Permissions::from_mode(0o555)).expect("set");
    Some(())
}

/// Names and values of such a tree.
fn xattrs_of_tree(directory: &Path) -> Vec<(String, String, Vec<u8>)> {
    let of = |name: &str| {
        let path = directory.join(name);
        let values = list(&path).into_iter().map(move |key| {
            let value = get(&path, &key).expect("a value");
            (name.to_owned(), key, value)
        });
        values.collect::<Vec<_>>()
    };
    let mut found: Vec<_> = [".", "plain", "one", "below", "below/two"].into_iter().flat_map(of).collect();
    found.sort();
    found
}

#[test]
fn copies_keep_extended_attributes_of_files_and_directories() {
    let ground = super::Ground::new("xattr-copies");
    if tree_with_xattrs(&ground.path("in")).is_none() {
        return;
    }
    let wanted = xattrs_of_tree(&ground.path("in"));
    assert_eq!(wanted.len(), 5, "{wanted:?}");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    ground.weft(&["cp", "-r", "-q", "in", "e2e:/"]);
    ground.weft(&["cp", "-r", "-q", "e2e:/in", "e2e:/copy"]);
    ground.weft(&["cp", "-r", "-q", "e2e:/copy", "out"]);
    assert_eq!(xattrs_of_tree(&ground.path("out")), wanted);
    // Directories that are there and may not be written to have theirs already.
    let again = ground.json(&["stage", "out", "-q", "--json", "e2e:/copy/.", "out"]);
    assert_eq!((again["kept_files"].as_u64(), again["without_xattrs"].as_u64()), (Some(3), Some(0)), "{again}");
    ground.weft(&["stage", "in", "-q", "in", "e2e:/staged"]);
    ground.weft(&["stage", "out", "-q", "e2e:/staged/in", "staged"]);
    assert_eq!(xattrs_of_tree(&ground.path("staged/in")), wanted);
    ground.weft(&["cp", "-r", "-q", "--no-xattrs", "e2e:/copy", "without"]);
    ground.weft(&["stage", "out", "-q", "--no-xattrs", "e2e:/staged/in", "without"]);
    for without in ["without", "without/in"] {
        assert_eq!(xattrs_of_tree(&ground.path(without)), [], "{without}");
    }
    for tree in ["in", "out", "staged/in", "without", "without/in"] {
        let below = ground.path(tree).join("below");
        fs::set_permissions(below, fs::Permissions::from_mode(0o755)).expect("set");
    }
    if !super::can_mount() {
        return;
    }
    fs::create_dir(ground.path("mnt")).expect("made");
    ground.weft(&["mount", "e2e", "mnt", "-o", "noxattr"]);
    let told = ground.weft_code(0, &["stage", "out", "-q", "--json", "e2e:/copy/.", "mnt/none"]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    let warning = "supports no extended attributes: 4 copies lack those of their sources";
    assert!(said.contains(warning) && said.lines().count() == 1, "{said}");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!((told["files"].as_u64(), told["without_xattrs"].as_u64()), (Some(3), Some(4)), "{told}");
    // Nobody is warned of what has none.
    let told = ground.weft_code(0, &["cp", "-q", "mnt/none/one", "e2e:/copy/plain", "mnt"]);
    assert_eq!(String::from_utf8_lossy(&told.stderr), "");
}

#[test]
fn an_attribute_without_room_is_an_error_with_a_way_out() {
    let ground = super::Ground::new("xattr-room");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    if !super::can_mount() {
        return;
    }
    fs::create_dir(ground.path("mnt")).expect("made");
    ground.weft(&["mount", "e2e", "mnt"]);
    let file = ground.path("mnt/file");
    fs::write(&file, "text").expect("written");
    set(&file, "user.large", &[7; 60_000]).expect("set");
    let small = ground.path("small");
    fs::write(&small, "").expect("written");
    match set(&small, "user.large", &[7; 60_000]) {
        Err(Errno::NOSPC) => {}
        other => return println!("skipped: this machine's file system keeps large attributes, or none: {other:?}"),
    }
    let said = ground.weft_fails(2, &["cp", "-q", "e2e:/file", "copy"]);
    assert!(said.contains("set extended attribute user.large of") && said.contains("--no-xattrs"), "{said}");
    assert!(!ground.path("copy").exists());
    ground.weft(&["cp", "-q", "--no-xattrs", "e2e:/file", "copy"]);
    assert_eq!(fs::read(ground.path("copy")).expect("read"), b"text");
}
