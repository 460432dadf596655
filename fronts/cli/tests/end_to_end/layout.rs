//! Striped files on the command line, and through two mounts.

use super::{Ground, can_mount};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const STRIPE: usize = 64 << 10;

/// Bytes of which no two stripes are alike.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index * 7 + index / STRIPE) % 251) as u8).collect()
}

#[test]
fn a_directory_says_how_its_new_files_are_striped() {
    let ground = Ground::new("layout");
    ground.weft(&["up", "e2e", "--nodes", "4"]);
    let bytes = pattern(5 * STRIPE + 99);
    fs::write(ground.path("in"), &bytes).expect("written");
    ground.weft(&["mkdir", "-p", "--width", "3", "--stripe", "64KiB", "e2e:/a/wide"]);
    ground.weft(&["cp", "-q", "in", "e2e:/a/wide/file"]);
    ground.weft(&["cp", "-q", "in", "e2e:/a/whole"]);
    ground.weft(&["cp", "-q", "e2e:/a/wide/file", "out"]);
    assert!(fs::read(ground.path("out")).expect("copied") == bytes);

    let layout = ground.json(&["layout", "--json", "e2e:/a/wide", "e2e:/a/wide/file", "e2e:/a/whole"]);
    let told = |index: usize| (layout[index]["layout"].as_str(), layout[index]["width"].as_u64());
    assert_eq!(
        [told(0), told(1), told(2)],
        [(Some("striped"), Some(3)), (Some("striped"), Some(3)), (Some("whole"), None)]
    );
    let nodes = |file: &serde_json::Value| {
        file["nodes"].as_array().expect("nodes").iter().map(ToString::to_string).collect::<BTreeSet<_>>()
    };
    assert_eq!((nodes(&layout[0]).len(), nodes(&layout[1]).len(), nodes(&layout[2]).len()), (0, 3, 1));
    let located = ground.json(&["locate", "--json", "e2e:/a/wide/file"]);
    let ranges = located[0]["ranges"].as_array().expect("ranges");
    assert_eq!((ranges.len(), ranges[5]["bytes"].as_u64()), (6, Some(99)));
    assert_eq!(ranges[0]["node"], ranges[3]["node"]);
    let said = ground.weft(&["layout", "e2e:/a/wide", "e2e:/a"]);
    assert_eq!(said, "e2e:/a/wide: new files are striped over 3 nodes, 64 KiB in turns\ne2e:/a: new files are whole\n");
    assert!(ground.weft(&["stat", "e2e:/a/wide/file"]).contains("striped over 3 nodes, 64 KiB in turns"));

    let said = ground.weft_fails(2, &["layout", "--width", "2", "e2e:/a/whole"]);
    assert!(said.contains("weft convert"), "{said}");
    let said = ground.weft_fails(2, &["layout", "--width", "2", "--stripe", "1000", "e2e:/a"]);
    assert!(said.contains("multiple of 64 KiB"), "{said}");
    ground.weft(&["layout", "--whole", "e2e:/a/wide"]);
    ground.weft(&["cp", "-q", "in", "e2e:/a/wide/next"]);
    assert!(ground.weft(&["layout", "e2e:/a/wide/next"]).starts_with("e2e:/a/wide/next: whole, on n0"));
}

/// What one mount has written, the other reads, also while both have the file open.
fn share(one: &Path, other: &Path) {
    let (here, there) = (one.join("wide/shared"), other.join("wide/shared"));
    let bytes = pattern(4 * STRIPE + 1000);
    fs::write(&here, &bytes).expect("written");
    assert!(fs::read(&there).expect("read") == bytes);
    let open = |path: &Path| fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let (a, b) = (open(&here), open(&there));
    for round in 0..3u8 {
        let at = (STRIPE - 100 + usize::from(round) * 70_000) as u64;
        a.write_all_at(&[round + 1; 200], at).expect("written");
        let mut found = [0; 200];
        b.read_exact_at(&mut found, at).expect("read");
        assert_eq!(found, [round + 1; 200]);
        b.write_all_at(&[round + 101; 200], at).expect("written");
        a.read_exact_at(&mut found, at).expect("read");
        assert_eq!(found, [round + 101; 200]);
    }
    b.write_all_at(b"end", 9 * STRIPE as u64).expect("written");
    assert_eq!(a.metadata().expect("stat").len(), 9 * STRIPE as u64 + 3);
    a.set_len(STRIPE as u64 + 1).expect("cut");
    assert_eq!(b.metadata().expect("stat").len(), STRIPE as u64 + 1);
    a.set_len(3 * STRIPE as u64).expect("extended");
    let mut found = vec![9; STRIPE];
    b.read_exact_at(&mut found, STRIPE as u64 + 1).expect("read");
    assert!(found.iter().all(|byte| *byte == 0), "nothing of before comes back");
    drop((a, b));
    assert_eq!(fs::read(&there).expect("read").len(), 3 * STRIPE);
}

#[test]
fn two_mounts_share_striped_files() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("layout-mounts");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    ground.weft(&["mkdir", "--width", "3", "--stripe", "64KiB", "e2e:/wide"]);
    let points = ["one", "other"].map(|name| ground.path(name));
    for point in &points {
        fs::create_dir(point).expect("a mount point");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
    }
    share(&points[0], &points[1]);
    for point in &points {
        ground.weft(&["umount", &point.display().to_string()]);
    }
}
