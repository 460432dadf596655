//! Layout and placement as extended attributes, through two mounts, and on the command line.

use super::spread::{mounts, shards};
use super::{Ground, can_mount, xattrs};
use rustix::fs::{XattrFlags, fsetxattr, removexattr};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const LAYOUT: &str = "weft.layout";
const PLACEMENT: &str = "weft.placement";

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    xattrs::get(path, name).map(|value| String::from_utf8(value).expect("text"))
}

fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    xattrs::set(path, name, value.as_bytes())
}

/// What another mount has closed, it gives back some seconds later.
fn set_soon(path: &Path, layout: &str) {
    let begun = Instant::now();
    while let Err(error) = set(path, LAYOUT, layout) {
        assert!(error == Errno::BUSY && begun.elapsed() < Duration::from_secs(20), "{error}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Over how many nodes a file is.
fn nodes(ground: &Ground, path: &str) -> usize {
    ground.json(&["layout", "--json", path])[0]["nodes"].as_array().expect("a list").len()
}

#[test]
fn the_layout_of_one_file_is_said_before_it_is_written() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("settings");
    ground.weft(&["up", "e2e", "--nodes", "4"]);
    let [one, two] = mounts(&ground);
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for (point, other, name) in [(&one, &two, "f1"), (&two, &one, "f2")] {
        let (path, there) = (point.join(name), other.join(name));
        let mut file = File::create(&path).expect("made");
        assert_eq!(get(&path, LAYOUT).as_deref(), Ok("whole"));
        let elsewhere = File::open(&there).expect("opened");
        assert_eq!(set(&path, LAYOUT, "width=3"), Err(Errno::BUSY), "another mount has it open");
        drop(elsewhere);
        if point == &one {
            let said = fsetxattr(&file, LAYOUT, b"width=3", XattrFlags::empty());
            assert_eq!(said, Err(Errno::BUSY), "its kernel has the object");
            drop(file);
            set_soon(&path, "width=3 stripe=256KiB");
            file = File::options().write(true).open(&path).expect("opened");
        } else {
            set_soon(&path, "width=3 stripe=256KiB");
            fsetxattr(&file, LAYOUT, b"width=3 stripe=256KiB", XattrFlags::empty()).expect("set");
        }
        for of in [&path, &there] {
            assert_eq!(get(of, LAYOUT).as_deref(), Ok("width=3 stripe=262144"));
            assert_eq!(xattrs::list(of), [""; 0], "no list has it");
        }
        file.write_all(&bytes).expect("written");
        assert!(fs::read(&there).expect("read") == bytes);
        drop(file);
        assert_eq!(nodes(&ground, &format!("e2e:/{name}")), 3);
        assert_eq!(set(&path, LAYOUT, "whole"), Err(Errno::NOTEMPTY), "it has bytes");
        assert_eq!(set(&there, LAYOUT, "width=3 stripe=262144"), Err(Errno::NOTEMPTY));
        assert!(fs::read(&there).expect("read") == bytes);
    }
    let path = one.join("f3");
    File::create(&path).expect("made");
    for bad in ["", "wide", "width=1", "width=2 stripe=1000"] {
        assert_eq!(set(&path, LAYOUT, bad), Err(Errno::INVAL), "{bad}");
    }
    assert_eq!(set(&path, PLACEMENT, "hash"), Err(Errno::INVAL), "it is no directory");
    assert_eq!(get(&path, PLACEMENT), Err(Errno::NODATA));
    assert_eq!(set(&path, "weft.other", "1"), Err(Errno::OPNOTSUPP));
    assert_eq!(removexattr(&path, LAYOUT), Err(Errno::PERM));
    ground.weft(&["layout", "--width", "2", "e2e:/f3"]);
    assert_eq!(get(&path, LAYOUT).as_deref(), Ok("width=2 stripe=1048576"));

    fs::write(ground.path("in"), &bytes).expect("written");
    ground.weft(&["cp", "-q", "--width", "4", "in", "e2e:/copy"]);
    assert_eq!(nodes(&ground, "e2e:/copy"), 4);
    assert!(fs::read(two.join("copy")).expect("read") == bytes);
    let said = ground.weft_fails(2, &["cp", "--width", "2", "e2e:/copy", "out"]);
    assert!(said.contains("not in a file system"), "{said}");
    let said = ground.weft_fails(2, &["layout", "--width", "2", "e2e:/copy"]);
    assert!(said.contains("weft convert"), "{said}");
}

#[test]
fn directories_hand_down_layout_and_placement() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("inherited");
    ground.weft(&["up", "e2e", "--nodes", "4"]);
    let [one, two] = mounts(&ground);
    let top = one.join("top");
    fs::create_dir(&top).expect("made");
    assert_eq!(get(&top, PLACEMENT).as_deref(), Ok("home"));
    set(&top, PLACEMENT, "hash").expect("set");
    set(&two.join("top"), LAYOUT, "width=2").expect("set");
    assert!(shards(&ground, "e2e:/top") >= 4);
    // Some of these are made by another shard than that of the directory.
    for number in 0..6 {
        let below = [&one, &two][number % 2].join(format!("top/d{number}"));
        fs::create_dir(&below).expect("made");
        assert_eq!(get(&below, PLACEMENT).as_deref(), Ok("hash"));
        assert_eq!(get(&below, LAYOUT).as_deref(), Ok("width=2 stripe=1048576"));
        let path = format!("e2e:/top/d{number}");
        assert_eq!(shards(&ground, &path), 1, "it has no names");
        let mut files = 0;
        while shards(&ground, &path) < 4 {
            assert!(files < 2000, "{path} has {files} names at one shard");
            // While others use it, it may take until it has so many more.
            for file in files..files + 32 {
                File::create([&one, &two][file % 2].join(format!("top/d{number}/f{file}"))).expect("made");
            }
            files += 32;
        }
        assert_eq!(fs::read_dir(two.join(format!("top/d{number}"))).expect("listed").count(), files);
    }
    ground.weft(&["mkdir", "-p", "--placement", "home", "e2e:/top"]);
    let last = two.join("top/last");
    fs::create_dir(&last).expect("made");
    assert_eq!(get(&last, PLACEMENT).as_deref(), Ok("home"));
    assert_eq!(get(&top, PLACEMENT).as_deref(), Ok("hash"), "what is spread stays so");
}
