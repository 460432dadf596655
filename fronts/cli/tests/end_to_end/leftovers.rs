//! What ends leaves nothing, and what is in the way is named.

use super::{Ground, can_mount, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn the_log_of_a_failed_start_is_kept_until_down() {
    let ground = Ground::new("failed-log");
    let up = ["up", "e2e", "--nodes", "1", "--store", "device:/dev/null"];
    let log = ground.path("run/weft/e2e-n00.failed.log");
    let said = ground.weft_fails(2, &up);
    assert!(said.contains(&log.display().to_string()) && log.exists(), "{said}");
    ground.weft(&["down", "--force", "--dry-run", "e2e"]);
    assert!(log.exists());
    ground.weft(&["down", "--force", "e2e"]);
    assert!(!ground.path("run/weft").exists());
    // Also when one was started since.
    ground.weft_fails(2, &up);
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    ground.weft(&["down", "e2e"]);
    assert!(!ground.path("run/weft").exists());
}

#[test]
fn a_file_in_place_of_a_runtime_directory_is_named() {
    let ground = Ground::new("in-the-way");
    fs::create_dir(ground.path("run")).expect("made");
    for name in ["run/weft", "run/weft/e2e"] {
        let path = ground.path(name);
        fs::write(&path, "a file").expect("written");
        let said = ground.weft_fails(2, &["up", "e2e", "--nodes", "1"]);
        let path_text = path.display().to_string();
        assert!(said.contains(&format!("{path_text}: a file of uid")), "{said}");
        assert!(said.contains(&format!("remedy: remove {path_text}")), "{said}");
        fs::remove_file(&path).expect("removed");
        let _ = fs::create_dir(&path);
    }
}

/// The files about mounts below a directory.
fn files_of_mounts(directory: PathBuf) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn the_log_of_a_mount_ends_with_it() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("mount-log");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    ground.weft(&["user", "add", "ann", "--uid", "424242", "--gid", "424243", "-o", "ann.key"]);
    fs::create_dir(ground.path("mnt")).expect("made");
    for (key, directory) in [(&[][..], "run/weft/e2e/mounts"), (&["--key", "ann.key"], "run/weft/.user/e2e/mounts")] {
        for killed in [false, true] {
            ground.weft(&[&["mount", "e2e", "mnt"], key].concat());
            let files = files_of_mounts(ground.path(directory));
            assert_eq!(files.len(), 2, "a record and a log: {files:?}");
            if killed {
                let record = files.iter().find(|file| file.extension().is_some_and(|kind| kind == "json"));
                let text = fs::read_to_string(record.expect("a record")).expect("read");
                let pid = serde_json::from_str::<Value>(&text).expect("JSON")["pid"].as_u64().expect("a number");
                assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
                wait_until("the end of the mount", || fs::metadata(ground.path("mnt")).is_err());
            }
            ground.weft(&["umount", "mnt"]);
            assert_eq!(files_of_mounts(ground.path(directory)), Vec::<PathBuf>::new(), "{key:?} {killed}");
        }
    }
    assert!(!ground.path("run/weft/.user").exists());
}

#[test]
fn strangers_do_not_fill_the_log() {
    const STRANGERS: u64 = 200;
    let ground = Ground::new("strangers");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let rejected = || ground.status()["nodes"][0]["counters"]["peers_rejected"].as_u64().expect("a number");
    let address = ground.status()["nodes"][0]["tcp"].as_str().expect("an address").to_owned();
    for _ in 0..STRANGERS {
        let mut stranger = TcpStream::connect(&address).expect("connected");
        // The node may close before it has all of it.
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\nHost: weft\r\n\r\n");
    }
    wait_until("the refusal of all", || rejected() >= STRANGERS);
    let log = fs::read_to_string(ground.path("run/weft/e2e/n00.log")).expect("read");
    let lines = log.lines().filter(|line| line.contains("refused")).count();
    assert!((1..=20).contains(&lines), "{lines} lines:\n{log}");
}
