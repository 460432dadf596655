//! Nodes whose objects are in region stores: files that `weft up` makes, and devices (here a file in place of one).

use super::{Ground, can_mount, make_tree, picture, wait_until};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use weft_region::{FileDevice, Kind, Store};

fn used(ground: &Ground) -> u64 {
    let space = ground.json(&["df", "e2e", "--json"]);
    let number = |field: &str| space[field].as_u64().unwrap_or_else(|| panic!("{field}: {space}"));
    number("total") - number("free")
}

#[test]
fn files_of_regions_are_made_used_and_removed() {
    let ground = Ground::new("regions");
    let said = ground.weft_fails(2, &["up", "e2e", "--nodes", "2", "--store", "file:spool"]);
    assert!(said.contains("file:DIR:SIZE"), "{said}");
    let said = ground.weft_fails(2, &["up", "e2e", "--nodes", "2", "--store", "file:spool:4MiB"]);
    assert!(said.contains("too few for a store") && !ground.path("spool").exists(), "{said}");

    ground.weft(&["up", "e2e", "--nodes", "2", "--identity-per-node", "--store", "file:spool:512MiB"]);
    let stores = ground.path("spool").join(format!("weft-{}/e2e/store", rustix::process::getuid().as_raw()));
    for node in ["n00", "n01"] {
        assert_eq!(fs::metadata(stores.join(node).join("regions")).expect("there").len(), 256 << 20);
    }
    make_tree(&ground.path("tree"));
    let empty = used(&ground);
    ground.weft(&["cp", "-q", "-r", "tree", "e2e:/"]);
    assert!(used(&ground) - empty > 70 << 20);
    ground.weft(&["cp", "-q", "-r", "e2e:/tree", "back"]);
    assert_eq!(picture(&ground.path("tree")), picture(&ground.path("back")));
    ground.weft(&["rm", "-r", "e2e:/tree"]);
    wait_until("free space", || used(&ground) <= empty + (1 << 20));

    let large = ground.path("large");
    fs::File::create(&large).and_then(|file| file.set_len(600 << 20)).expect("made");
    let said = ground.weft_fails(2, &["cp", "-q", "large", "e2e:/large"]);
    assert!(said.to_lowercase().contains("no space"), "{said}");
    ground.weft(&["rm", "-f", "e2e:/.large.weft-part"]);
    wait_until("free space", || used(&ground) <= empty + (1 << 20));
    ground.weft(&["down", "e2e"]);
    assert!(!ground.path("spool").exists(), "it was made, and goes");
}

#[test]
fn a_mount_reads_and_writes_regions() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("regions-mount");
    ground.weft(&["up", "e2e", "--nodes", "1", "--store", "file:spool:128MiB"]);
    fs::create_dir(ground.path("mnt")).expect("made");
    let (one, two): (Vec<u8>, Vec<u8>) = (vec![1; 3_000_001], vec![2; 4097]);
    for options in ["", "nopassthrough", "direct"] {
        let mount = ["mount", "e2e", "mnt", "-o", options];
        ground.weft(if options.is_empty() { &mount[..3] } else { &mount });
        let path = ground.path("mnt").join(format!("file-{options}"));
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("made");
        file.write_all_at(&one, 0).expect("written");
        file.write_all_at(&two, 5_000_000).expect("written behind a hole");
        file.write_all_at(&two, 100).expect("written over");
        file.sync_all().expect("synced");
        drop(file);
        ground.weft(&["umount", "mnt"]);
        ground.weft(if options.is_empty() { &mount[..3] } else { &mount });
        let mut expected = [&one[..], &vec![0; 5_000_000 - one.len()], &two].concat();
        expected[100..100 + two.len()].copy_from_slice(&two);
        assert!(fs::read(&path).expect("read") == expected, "{options}");
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(50)).expect("cut");
        assert!(fs::read(&path).expect("read") == [1; 50], "{options}");
        let full = fs::write(ground.path("mnt/full"), vec![3; 200 << 20]).expect_err("full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
        fs::remove_file(ground.path("mnt/full")).expect("removed");
        ground.weft(&["umount", "mnt"]);
        wait_until("free space", || used(&ground) < 16 << 20);
    }
}

#[test]
fn a_device_is_used_whole_and_what_is_on_it_stays() {
    let ground = Ground::new("device");
    let store = format!("device:{}", ground.path("device").display());
    let up = ["up", "e2e", "--nodes", "1", "--store", &store];
    fs::File::create(ground.path("device")).and_then(|file| file.set_len(64 << 20)).expect("made");
    let said = ground.weft_fails(2, &up);
    assert!(said.contains("no region store") && said.contains("weft store format"), "{said}");
    let said = ground.weft_fails(2, &["up", "e2e", "--nodes", "2", "--store", &store]);
    assert!(said.contains("one node") && said.contains("remedy"), "{said}");

    ground.weft(&["store", "format", "device"]);
    fs::write(ground.path("file"), vec![7; 5_000_000]).expect("written");
    for _ in 0..2 {
        assert!(ground.weft(&up).contains(&ground.path("device").display().to_string()), "where the store is");
        ground.weft(&["cp", "-q", "file", "e2e:/file"]);
        ground.weft(&["cp", "-q", "e2e:/file", "back"]);
        assert!(fs::read(ground.path("back")).expect("read") == vec![7; 5_000_000]);
        let said = ground.weft_fails(2, &["store", "stat", "device"]);
        assert!(said.contains("another process has it"), "{said}");
        ground.weft(&["down", "e2e"]);
        let left = ground.json(&["store", "check", "device", "--json"]);
        assert_eq!((left["clean"].as_bool(), left["objects"].as_u64()), (Some(true), Some(0)), "{left}");
    }

    // One that was killed leaves objects, which nobody touches but who says so.
    ground.weft(&up);
    let empty = used(&ground);
    ground.weft(&["cp", "-q", "file", "e2e:/file"]);
    ground.weft(&["cp", "-q", "file", "e2e:/gone"]);
    ground.weft(&["rm", "e2e:/gone"]);
    // Freed by a sync, so that the other is on the device, too.
    wait_until("free space", || used(&ground) < empty + (6 << 20));
    let pid = ground.status()["nodes"][0]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    ground.weft(&["down", "--force", "e2e"]);
    let said = ground.weft_fails(2, &up);
    assert!(said.contains("objects of an earlier run") && said.contains("--overwrite"), "{said}");
    let left = ground.json(&["store", "check", "device", "--json"]);
    assert_eq!((left["clean"].as_bool(), left["objects"].as_u64()), (Some(true), Some(1)), "{left}");
    ground.weft(&["store", "format", "--overwrite", "device"]);
    ground.weft(&up);
}

/// Also what a node does on one.
#[test]
fn a_sparse_file_is_a_store_that_takes_space_as_it_is_written() {
    let ground = Ground::new("sparse");
    let said = ground.weft_fails(2, &["store", "format", "file", "--sparse", "--checksums", "all", "--region", "1GiB"]);
    assert!(said.contains("cannot have checksums") && !ground.path("file").exists(), "{said}");
    assert!(ground.weft_fails(2, &["store", "format", "file", "--sparse", "--size", "1GiB"]).contains("--size"));
    // Where the file system has files of 16 TiB at most.
    let made = ground.command(&["store", "format", "file", "--sparse"]).output().expect("weft");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success() || said.contains("--region 8GiB or less") && !ground.path("file").exists(), "{said}");
    ground.weft(&["store", "format", "file", "--sparse", "--region", "4GiB", "--overwrite"]);
    let said = ground.weft_fails(2, &["store", "format", "file", "--sparse"]);
    assert!(said.contains("is there") && said.contains("--overwrite"), "{said}");
    let said = ground.weft_fails(2, &["store", "format", "file"]);
    assert!(said.contains("a region store in a sparse file is on it"), "{said}");
    assert!(ground.weft_fails(2, &["store", "grow", "file"]).contains("not made larger"));
    let taken = || fs::metadata(ground.path("file")).expect("there").blocks() * 512;
    assert!(taken() < 1 << 20, "{}", taken());
    let stat = ground.json(&["store", "stat", "file", "--json"]);
    assert_eq!((stat["region_bytes"].as_u64(), stat["unused"].as_u64()), (Some(4 << 30), Some(0)));
    assert!(stat["total"].as_u64() > stat["free"].as_u64(), "{stat}");

    fs::write(ground.path("data"), vec![7; 5_000_000]).expect("written");
    let store = format!("device:{}", ground.path("file").display());
    for _ in 0..2 {
        ground.weft(&["up", "e2e", "--nodes", "1", "--store", &store]);
        ground.weft(&["cp", "-q", "data", "e2e:/data"]);
        ground.weft(&["cp", "-q", "e2e:/data", "back"]);
        assert!(fs::read(ground.path("back")).expect("read") == vec![7; 5_000_000] && taken() > 4_000_000);
        ground.weft(&["down", "e2e"]);
        assert!(taken() < 1 << 20, "{}", taken());
    }

    let other = open(&ground, "file");
    let object = other.create(Kind::Direct).expect("made");
    object.write(1 << 30, b"far behind").expect("written");
    let versioned = other.create_versioned().expect("made");
    versioned.write(0, b"a version").expect("written");
    other.close().expect("closed");
    let id = versioned.id().to_string();
    drop((object, versioned, other));
    assert!(ground.weft(&["store", "dump", "file"]).contains("in a sparse file of"));
    assert!(ground.weft(&["store", "versions", "file", &id]).contains("9 B"));
    let found = ground.json(&["store", "check", "file", "--json"]);
    assert_eq!((found["clean"].as_bool(), found["objects"].as_u64()), (Some(true), Some(2)), "{found}");
    assert_eq!(ground.json(&["store", "scrub", "file", "--json"])["commits"], 1);
    assert_eq!(ground.json(&["store", "clean", "file", "--json"])["versions"], 0);
}

fn open(ground: &Ground, place: &str) -> Store {
    Store::open(Arc::new(FileDevice::open(&ground.path(place)).expect("there"))).expect("a store")
}

/// Receives a stream.
fn receive(ground: &Ground, words: &[&str], stream: &str) -> Output {
    let stream = fs::File::open(ground.path(stream)).expect("sent");
    ground.command(&[&["store", "receive"], words].concat()).stdin(stream).output().expect("weft")
}

/// Sends to a file.
fn send(ground: &Ground, words: &[&str], stream: &str) {
    let into = fs::File::create(ground.path(stream)).expect("made");
    let sent = ground.command(&[&["store", "send"], words].concat()).stdout(into).status().expect("weft");
    assert!(sent.success());
}

#[test]
fn objects_are_sent_from_one_store_to_another() {
    let ground = Ground::new("feed");
    for place in ["a", "b"] {
        ground.weft(&["store", "format", place, "--size", "64MiB", "--region", "1GiB"]);
    }
    let store = open(&ground, "a");
    let (object, plain) = (store.create_versioned().expect("made"), store.create(Kind::Direct).expect("made"));
    (1..=5).for_each(|tag| assert_eq!(object.write(tag * 5000, &[7; 9000]).expect("written"), tag));
    plain.write(1 << 20, &[8; 300_000]).expect("written");
    store.close().expect("closed");
    drop((object, plain, store));

    // Through a pipe.
    let mut send_all = ground.command(&["store", "send", "a"]).stdout(Stdio::piped()).spawn().expect("weft");
    let pipe = send_all.stdout.take().expect("piped");
    let received = ground.command(&["store", "receive", "b"]).stdin(pipe).output().expect("weft");
    assert!(received.status.success() && send_all.wait().expect("ended").success(), "{received:?}");
    assert!(String::from_utf8_lossy(&received.stderr).contains("b: 2 objects, 5 new versions"), "{received:?}");
    let versions = |place| ground.weft(&["store", "versions", place, "1", "--json"]);
    assert_eq!(versions("a"), versions("b"));

    // What is new, by what the copy has; a stream that breaks off says what to do.
    let store = open(&ground, "a");
    store.versioned(1).expect("there").write(0, &[9; 200_000]).expect("written");
    store.close().expect("closed");
    drop(store);
    fs::write(ground.path("have"), ground.weft(&["store", "have", "b"])).expect("written");
    send(&ground, &["a", "1", "--have", "have"], "news");
    let news = fs::read(ground.path("news")).expect("sent");
    assert!(news.len() < 210_000, "{} bytes", news.len());
    fs::write(ground.path("part"), &news[..150_000]).expect("written");
    let said = String::from_utf8_lossy(&receive(&ground, &["b"], "part").stderr).into_owned();
    assert!(said.contains("breaks off") && said.contains("weft store have"), "{said}");
    assert!(receive(&ground, &["b"], "news").status.success());
    assert_eq!(versions("a"), versions("b"));
    assert!(open(&ground, "b").object(2, Kind::Direct).expect("there").stat().expect("kept").size > 1 << 20);
    assert_eq!(ground.json(&["store", "scrub", "b", "--json"])["clean"], true);

    // What was removed is kept, or goes when that is asked for.
    let store = open(&ground, "a");
    assert!(store.remove(2).expect("removed"));
    store.close().expect("closed");
    drop(store);
    send(&ground, &["a"], "all");
    for (words, said) in [(&["b"][..], "1 that the source has not (--remove"), (&["b", "--remove"], "; 1 removed")] {
        assert!(open(&ground, "b").exists(2).expect("read"), "{words:?}");
        let received = receive(&ground, words, "all");
        assert!(String::from_utf8_lossy(&received.stderr).contains(said), "{received:?}");
    }
    assert!(!open(&ground, "b").exists(2).expect("read"));
    assert_eq!(receive(&ground, &["b", "--remove"], "news").status.code(), Some(2), "of some objects");

    // A file that is none, and an object that is not there.
    assert!(ground.weft_fails(2, &["store", "send", "a", "--have", "news"]).contains("weft store have"));
    assert!(ground.weft_fails(2, &["store", "send", "a", "17"]).contains("no object 17"));
}
