//! File locks of programs between mounts (the programs are in `locks.py`), and what becomes of those of a killed mount.

use super::{Ground, can_mount};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A lease term, and time for a machine that is busy.
const TERM_MAX: Duration = Duration::from_secs(30);

fn mounted<const N: usize>(ground: &Ground, names: [&str; N], options: &[&str]) -> [PathBuf; N] {
    names.map(|name| {
        let point = ground.path(name);
        fs::create_dir(&point).expect("made");
        ground.weft(&[&["mount"], options, &["e2e", &point.display().to_string()]].concat());
        point
    })
}

#[test]
fn programs_lock_files_across_mounts() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("locks");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    // As a rule the kernel reads and writes the objects itself; once it does not, and keeps no pages.
    for (names, options) in [(["a", "b"], &[][..]), (["c", "d"], &["-o", "direct"])] {
        let points = mounted(&ground, names, options);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/locks.py");
        let output = Command::new("python3").arg(script).args(&points).output().expect("python3 runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options:?}: {said}{}", ground.logs());
        for entry in fs::read_dir(&points[0]).expect("listed") {
            fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
    }
    ground.weft(&["down", "e2e"]);
}

#[test]
fn a_mount_with_local_locks_keeps_them_to_itself() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("locks-local");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [local] = mounted(&ground, ["local"], &["-o", "local_lock"]);
    let [other] = mounted(&ground, ["other"], &[]);
    let open = |point: &PathBuf| fs::File::options().create(true).append(true).open(point.join("f")).expect("open");
    let (held, beside, elsewhere) = (open(&local), open(&local), open(&other));
    flock(&held, FlockOperation::LockExclusive).expect("locked");
    assert!(flock(&beside, FlockOperation::NonBlockingLockExclusive).is_err());
    flock(&elsewhere, FlockOperation::NonBlockingLockExclusive).expect("it does not see the other one");
    drop(held);
    flock(&beside, FlockOperation::NonBlockingLockExclusive).expect("free");
    drop((beside, elsewhere));
    ground.weft(&["down", "e2e"]);
}

#[test]
fn locks_of_a_killed_mount_are_free_within_a_term() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("locks-killed");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, other] = mounted(&ground, ["a", "b"], &[]);
    let held = fs::File::create(one.join("f")).expect("made");
    flock(&held, FlockOperation::LockExclusive).expect("locked");
    let waiting = fs::File::open(other.join("f")).expect("open");
    assert!(flock(&waiting, FlockOperation::NonBlockingLockShared).is_err());
    let mounts = ground.status()["mounts"].take();
    let is_it = |mount: &&serde_json::Value| mount["mount_point"].as_str() == one.to_str();
    let mount = mounts.as_array().expect("mounts").iter().find(is_it).expect("listed");
    let pid = i32::try_from(mount["pid"].as_u64().expect("a number")).ok().and_then(Pid::from_raw).expect("a process");
    let since = Instant::now();
    kill_process(pid, Signal::KILL).expect("killed");
    flock(&waiting, FlockOperation::LockExclusive).expect("granted");
    assert!(since.elapsed() < TERM_MAX, "{:?}", since.elapsed());
    drop((held, waiting));
    ground.weft(&["down", "e2e", "--force"]);
}
