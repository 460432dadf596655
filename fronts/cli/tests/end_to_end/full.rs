//! A store that is full: after a program was told, every mount and client sees the same size and contents, a copy is a
//! copy of that, and a program that waits for space and writes on loses nothing.

use super::{Ground, can_mount};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Bytes that `dd` copies, into stores of 32 MiB.
const BYTES: usize = 40 * MIB;
const STORES: [&str; 2] = ["store:32MiB", "file:store:32MiB"];
const MODES: [&str; 3] = ["rw", "nopassthrough", "direct"];
/// Space of a removed file is free within a moment; machines differ.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of which no two blocks are the same.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(u64::to_le_bytes).collect()
}

/// Runs a program of the system. Returns whether it went well.
fn run(program: &str, words: &[&str]) -> bool {
    let status = Command::new(program).args(words).stderr(Stdio::null()).status();
    status.unwrap_or_else(|error| panic!("{program}: {error}")).success()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

/// Mounts twice, in each mode, over each kind of store.
fn in_each_mode(test: &str, check: impl Fn(&Ground, [&Path; 2])) {
    if !can_mount() {
        return;
    }
    for store in STORES {
        let ground = Ground::new(test);
        let points = ["one", "two"].map(|name| ground.path(name));
        for point in &points {
            fs::create_dir_all(point).expect("made");
        }
        for mode in MODES {
            eprintln!("{store}, {mode}");
            ground.weft(&["up", "e2e", "--nodes", "1", "--store", store]);
            for point in &points {
                ground.weft(&["mount", "e2e", text(point), "-o", mode]);
            }
            check(&ground, points.each_ref().map(PathBuf::as_path));
            for point in &points {
                ground.weft(&["umount", text(point)]);
            }
            ground.weft(&["down", "e2e"]);
        }
    }
}

#[test]
fn after_enospc_all_mounts_and_copies_agree() {
    in_each_mode("full-agree", |ground, [one, two]| {
        let (source, copy) = (ground.path("source"), ground.path("copy"));
        let expected = pattern(BYTES);
        fs::write(&source, &expected).expect("written");
        let from = format!("if={}", text(&source));
        let to = format!("of={}", text(&one.join("file")));
        assert!(!run("dd", &[&from, &to, "bs=1M"]), "there is no space for all of it");

        let sizes = [one, two].map(|point| fs::metadata(point.join("file")).expect("there").size());
        let size = usize::try_from(sizes[0]).expect("small");
        assert_eq!(sizes[0], sizes[1]);
        assert_eq!(ground.json(&["stat", "--json", "e2e:/file"])[0]["size"], sizes[0]);
        assert!((16 * MIB..BYTES).contains(&size), "{size}");
        for point in [one, two] {
            let path = point.join("file");
            assert!(fs::read(&path).expect("read") == expected[..size], "through {}", point.display());
            assert!(run("cp", &[text(&path), text(&copy)]));
            assert!(fs::read(&copy).expect("read") == expected[..size], "a copy through {}", point.display());
        }
        ground.weft(&["cp", "-q", "e2e:/file", text(&copy)]);
        assert!(fs::read(&copy).expect("read") == expected[..size], "a copy past the mounts");
    });
}

#[test]
fn a_program_that_waits_for_space_and_writes_on_loses_nothing() {
    in_each_mode("full-wait", |_, [one, two]| {
        let expected = pattern(BYTES);
        fs::write(one.join("big"), &expected[..20 * MIB]).expect("written");
        let mut file = fs::File::create(one.join("file")).expect("made");
        let (mut written, mut refused, start) = (0, 0, Instant::now());
        while written < 24 * MIB {
            match file.write(&expected[written..written + MIB]) {
                Ok(count) => written += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                    assert!(start.elapsed() < PATIENCE, "there is no space at {written}");
                    if refused == 0 {
                        fs::remove_file(two.join("big")).expect("removed");
                    }
                    refused += 1;
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        assert!(refused > 0);
        file.sync_all().expect("synced");
        drop(file);
        for point in [one, two] {
            let found = fs::read(point.join("file")).expect("read");
            let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!((found.len(), differs), (written, None), "through {}", point.display());
        }
        fs::remove_file(one.join("file")).expect("removed");
    });
}
