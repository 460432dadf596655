//! Nodes whose objects are in region stores: files that `weft up` makes, and devices (here a file in place of one).

use super::{Ground, make_tree, picture, wait_until};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

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
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        eprintln!("skipped: /dev/fuse: {error}");
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
