//! Nodes that do not answer.

use super::hosts::{pids, signal};
use super::{Ground, can_mount};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Input/output error.
const EIO: i32 = 5;

#[test]
fn df_waits_once_for_all_nodes_that_do_not_answer() {
    let ground = Ground::new("df-away");
    ground.weft(&["up", "e2e", "--nodes", "9", "--identity-per-node"]);
    let pids = pids(&ground);
    pids[1..8].iter().for_each(|pid| signal(*pid, "-STOP"));
    let begun = Instant::now();
    let output = ground.command(&["df", "--json", "e2e"]).output().expect("weft starts");
    let took = begun.elapsed();
    pids[1..8].iter().for_each(|pid| signal(*pid, "-CONT"));
    assert_eq!(output.status.code(), Some(1));
    // Each waits for 3 s.
    assert!(took < Duration::from_secs(18), "it took {took:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = report["nodes"].as_array().expect("nodes");
    let answered: Vec<bool> = nodes.iter().map(|node| node["error"].is_null() && node["total"].is_u64()).collect();
    let expected: Vec<bool> = (0..9).map(|index| index == 0 || index == 8).collect();
    assert_eq!(answered, expected, "{report}");
}

/// Longest time that anything here may take: many times what it takes.
pub const LONG: Duration = Duration::from_secs(120);

/// Stops a node, and lets it go on when it is dropped.
pub struct Stopped(u64);

impl Stopped {
    pub fn new(pid: u64) -> Self {
        signal(pid, "-STOP");
        let stopped = Self(pid);
        // The signal goes to one thread, which stops the others when it runs.
        let deadline = Instant::now() + LONG;
        while !stopped.is_stopped() {
            assert!(Instant::now() < deadline, "the node does not stop");
            thread::sleep(Duration::from_millis(10));
        }
        stopped
    }

    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the node's threads");
        let mut states = threads.map(|thread| {
            let stat = fs::read_to_string(thread.expect("a thread").path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        });
        states.all(|is_stopped| is_stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "-CONT");
    }
}

pub fn mounted(ground: &Ground, options: &[&str]) -> PathBuf {
    let mount_point = ground.path("m");
    fs::create_dir(&mount_point).expect("made");
    ground.weft(&[&["mount", "e2e", mount_point.to_str().expect("a path")], options].concat());
    mount_point
}

/// Waits until a program has ended, or says that it has not.
pub fn has_ended(program: &mut Child, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if program.try_wait().expect("a child").is_some() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn calls_to_a_stopped_node_fail_after_the_soft_time_and_work_when_it_goes_on() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("soft");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mount_point = mounted(&ground, &["--soft", "5s", "-o", "nopassthrough"]);
    let mut file = fs::File::create(mount_point.join("written")).expect("made");
    file.write_all(&[1; 4096]).expect("written");
    file.sync_all().expect("synced");
    let stopped = Stopped::new(pids(&ground)[0]);
    let begun = Instant::now();
    let made = |number| mount_point.join(format!("made-{number}"));
    let asking: Vec<_> = (0..4).map(made).map(|path| thread::spawn(move || fs::File::create(path).map(drop))).collect();
    let synced = file.write_all(&[2; 4096]).and_then(|()| file.sync_all());
    assert_eq!(synced.expect_err("the node is stopped").raw_os_error(), Some(EIO));
    for asked in asking {
        let failed = asked.join().expect("asked").expect_err("the node is stopped");
        assert_eq!(failed.raw_os_error(), Some(EIO));
    }
    assert!(begun.elapsed() < LONG, "it took {:?}", begun.elapsed());
    drop(stopped);
    let after = mount_point.join("after");
    let works = || {
        let written = fs::write(&after, "after").and_then(|()| fs::read(&after));
        written.is_ok_and(|bytes| bytes == b"after") && fs::File::create(made(0)).is_ok()
    };
    let deadline = Instant::now() + LONG;
    while !works() {
        assert!(Instant::now() < deadline, "the node goes on, and calls still fail");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The soft times of nodes that hang do not add up: a call that waits for one asks nodes for a newer map that were
/// heard within a term, which is shorter.
#[test]
fn a_call_waits_for_one_of_two_nodes_that_hang() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("two-hang");
    ground.weft(&["up", "e2e", "--nodes", "4", "--identity-per-node"]);
    // A client makes directories at a node of its own choice.
    (0..16).for_each(|number| drop(ground.weft(&["mkdir", &format!("e2e:/d{number}")])));
    let mount_point = mounted(&ground, &["--soft", "12s"]);
    for number in 0..16 {
        fs::write(mount_point.join(format!("d{number}/f")), "known").expect("written");
    }
    let pids = pids(&ground);
    let stopped: Vec<_> = pids[..2].iter().map(|pid| Stopped::new(*pid)).collect();
    let failed = fs::File::create(mount_point.join("new")).expect_err("the shard of / is at a stopped node");
    assert_eq!(failed.raw_os_error(), Some(EIO));
    let logs = fs::read_dir(ground.path("run/weft/e2e/mounts")).expect("records of mounts");
    let logs =
        logs.map(|entry| entry.expect("an entry").path()).filter(|path| path.extension() == Some("log".as_ref()));
    let said: String = logs.map(|log| fs::read_to_string(log).expect("a log")).collect();
    let is_said = |number| said.contains(&format!("node {number} does not answer"));
    assert!(is_said(0) && !is_said(1), "{said}");
    drop(stopped);
}

#[test]
fn a_killed_program_does_not_wait_for_a_stopped_node() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("hard");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mount_point = mounted(&ground, &["--soft", "off"]);
    let stopped = Stopped::new(pids(&ground)[0]);
    let start = |name| {
        let mut stat = Command::new("stat");
        stat.arg(mount_point.join(name)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat starts")
    };
    let (mut killed, mut waiting) = (start("killed"), start("waiting"));
    assert!(!has_ended(&mut killed, Duration::from_secs(1)), "it waits for the node");
    killed.kill().expect("killed");
    assert!(has_ended(&mut killed, LONG), "it waits although it was killed");
    assert!(!has_ended(&mut waiting, Duration::ZERO), "the other one waits on");
    drop(stopped);
    assert!(has_ended(&mut waiting, LONG), "the node goes on");
    assert_eq!(waiting.wait().expect("ended").code(), Some(1), "there is no such file");
}

#[test]
fn a_listing_goes_on_behind_what_is_at_a_node_that_has_ended() {
    let ground = Ground::new("ls-away");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    // Each command makes its directory at a node that it chooses by chance.
    let names: Vec<String> = (0..24).map(|number| format!("d{number}")).collect();
    for name in &names {
        ground.weft(&["mkdir", &format!("e2e:/{name}")]);
    }
    signal(pids(&ground)[1], "-KILL");
    let output = ground.command(&["ls", "-l", "e2e:/"]).output().expect("weft starts");
    assert!(!output.status.success(), "what could not be listed is told");
    let listing = String::from_utf8(output.stdout).expect("text");
    let of_name = |name: &String| listing.lines().find(|line| line.split(' ').next_back() == Some(name));
    let lines: Vec<&str> = names.iter().filter_map(of_name).collect();
    assert_eq!(lines.len(), names.len(), "{listing}");
    let unknown = lines.iter().filter(|line| line.starts_with("d?????????")).count();
    assert!((1..lines.len()).contains(&unknown), "{listing}");
}

#[test]
fn what_is_at_nodes_that_answer_leaves_a_node_and_what_is_at_one_that_has_ended_is_named() {
    let ground = Ground::new("drain-away");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    fs::write(ground.path("file"), "of a node").expect("written");
    let last = ground.status()["nodes"][2]["shards"][0]["shard"].clone();
    // Each command makes its directory, and the bytes of its file, at a node that it chooses by chance.
    let names: Vec<String> = (0..18).map(|number| format!("e2e:/d{number:02}")).collect();
    for name in &names {
        ground.weft(&["mkdir", name]);
        ground.weft(&["cp", "-q", "file", &format!("{name}/f")]);
    }
    let is_lost = |name: &&String| ground.json(&["stat", "--json", name])[0]["shard"] == last;
    let (lost, kept): (Vec<&String>, Vec<&String>) = names.iter().partition(is_lost);
    assert!(!lost.is_empty() && !kept.is_empty(), "{lost:?} {kept:?}");
    signal(pids(&ground)[2], "-KILL");
    let said = ground.weft_fails(2, &["node", "remove", "e2e", "n02"]);
    assert!(said.contains(&format!("n02 does not answer, and what is there cannot be moved: shard {last}")), "{said}");
    let said = ground.weft_fails(2, &["node", "drain", "e2e", "n01"]);
    assert!(said.contains(&format!("{} directories or files could not be reached", lost.len())), "{said}");
    for name in lost {
        assert!(said.contains(&format!("move {name}: ")), "{name}: {said}");
    }
    for name in kept {
        let located = ground.json(&["locate", "--json", &format!("{name}/f")]);
        assert_ne!(located[0]["ranges"][0]["node"], 1, "{located}");
    }
}
