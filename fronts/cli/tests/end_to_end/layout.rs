//! Striped files on the command line, and through two mounts.

use super::{Ground, can_mount};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

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
fn share(one: &Path, other: &Path, directory: &str) {
    let [here, there] = [one, other].map(|mount| mount.join(directory).join("shared"));
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
    append_together(&here, &there);
}

/// Programs of both mounts append to one log at the same time: each line is whole.
fn append_together(here: &Path, there: &Path) {
    const LINES: usize = 40;
    fs::write(here, "").expect("cut");
    std::thread::scope(|scope| {
        for (path, letter) in [(here, 'a'), (there, 'b')] {
            scope.spawn(move || {
                let mut log = fs::OpenOptions::new().append(true).open(path).expect("opened");
                for line in 0..LINES {
                    let text = format!("{letter}{line} {}\n", letter.to_string().repeat(5000));
                    log.write_all(text.as_bytes()).expect("appended");
                }
            });
        }
    });
    let [text, same] = [here, there].map(|path| fs::read_to_string(path).expect("read"));
    assert!(text == same);
    let mut lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().all(|line| line.len() > 5000 && line.ends_with(&line[..1].repeat(5000))));
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 2 * LINES);
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// What programs do with files, one mount after the other: append, map, run.
fn use_by_turns(one: &Path, other: &Path) {
    let [here, there] = [one, other].map(|mount| mount.join("split/turns"));
    for round in 0..6 {
        let path = if round % 2 == 0 { &here } else { &there };
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("opened");
        writeln!(file, "line {round}").expect("appended");
    }
    let lines: String = (0..6).map(|round| format!("line {round}\n")).collect();
    assert_eq!(fs::read_to_string(&here).expect("read"), lines);
    let script =
        "import mmap, sys\nf = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:4] = b'LINE'; m.flush()";
    run(Command::new("python3").args(["-c", script]).arg(&here));
    assert!(fs::read_to_string(&there).expect("read").starts_with("LINE 0\nline 1"));
    let program = one.join("split/true");
    fs::copy("/bin/true", &program).expect("copied");
    run(&mut Command::new(other.join("split/true")));
}

#[test]
fn two_mounts_share_files_with_parts() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("split-mounts");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    ground.weft(&["mkdir", "--split", "e2e:/split"]);
    assert_eq!(ground.weft(&["layout", "e2e:/split"]), "e2e:/split: new files are split into a part for each writer\n");
    let points = ["one", "other"].map(|name| ground.path(name));
    for point in &points {
        fs::create_dir(point).expect("a mount point");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
    }
    share(&points[0], &points[1], "split");
    use_by_turns(&points[0], &points[1]);
    let bytes = fs::read(points[0].join("split/shared")).expect("read");
    // Each mount has a part, and together they have all bytes.
    let told = ground.json(&["stat", "--json", "e2e:/split/shared"]);
    let parts = told[0]["parts"].as_array().expect("parts");
    let sum: u64 = parts.iter().map(|part| part["bytes"].as_u64().expect("bytes")).sum();
    assert!(parts.len() == 2 && sum <= bytes.len() as u64 && sum > 0, "{told}");
    assert_eq!(ground.weft(&["stat", "e2e:/split/shared"]).matches(" pieces\n").count(), 2);
    for point in &points {
        ground.weft(&["umount", &point.display().to_string()]);
    }
    // Another layout, with the same bytes, and back.
    for (layout, told) in
        [(&["--whole"][..], "whole, on n0"), (&["--width", "3"], "striped over 3"), (&["--split"], "split")]
    {
        ground.weft(&[&["convert"], layout, &["e2e:/split/shared"]].concat());
        let said = ground.weft(&["layout", "e2e:/split/shared"]);
        assert!(said.contains(told), "{layout:?}: {said}");
        ground.weft(&["cp", "-q", "e2e:/split/shared", "out"]);
        assert!(fs::read(ground.path("out")).expect("copied") == bytes, "{layout:?}");
        fs::remove_file(ground.path("out")).expect("removed");
    }
    // No part stays at a node that is to go.
    let located = ground.json(&["locate", "--json", "e2e:/split/shared"]);
    let node = located[0]["ranges"][0]["node"].as_u64().expect("a node");
    ground.weft(&["node", "drain", "e2e", &format!("n{node:02}")]);
    ground.weft(&["cp", "-q", "e2e:/split/shared", "out"]);
    assert!(fs::read(ground.path("out")).expect("copied") == bytes);
    let located = ground.json(&["locate", "--json", "e2e:/split/shared"]);
    let nodes: Vec<_> =
        located[0]["ranges"].as_array().expect("ranges").iter().map(|range| range["node"].as_u64()).collect();
    assert!(!nodes.contains(&Some(node)), "{located}");
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
    share(&points[0], &points[1], "wide");
    for point in &points {
        ground.weft(&["umount", &point.display().to_string()]);
    }
}
