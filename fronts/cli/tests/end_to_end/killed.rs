//! Mounts whose process is killed: programs get an error, whatever its threads wait for, and the mount point stays
//! until it is taken away.

use super::away::{LONG, Stopped, has_ended};
use super::hosts::signal;
use super::{Ground, can_mount, wait_until};
use serde_json::Value;
use signal_hook::consts::SIGHUP;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a notification may take to wait for a directory's lock. Until then the stopped mount keeps its lease.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Number of the capability that mounting takes.
const CAP_SYS_ADMIN: u32 = 21;
/// Rounds on a machine that is too slow for one in a lease term.
const ROUNDS: usize = 20;

/// A mount, and the process that serves it.
struct Mounted {
    point: PathBuf,
    pid: u64,
}

impl Mounted {
    fn new(ground: &Ground, name: &str) -> Self {
        let point = ground.path(name);
        fs::create_dir(&point).expect("made");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
        let mounts = ground.status()["mounts"].take();
        let is_it = |mount: &&Value| mount["mount_point"].as_str() == point.to_str();
        let mount = mounts.as_array().expect("mounts").iter().find(is_it).expect("listed");
        Self { pid: mount["pid"].as_u64().expect("a number"), point }
    }

    fn has_epoch(&self, ground: &Ground) -> bool {
        let mounts = ground.status()["mounts"].take();
        let is_it = |mount: &&Value| mount["mount_point"].as_str() == self.point.to_str();
        let mount = mounts.as_array().expect("mounts").iter().find(is_it).expect("listed");
        mount["negotiated"]["epoch"].as_bool().expect("whether it has")
    }

    /// Whether a thread of it waits in the kernel for a directory that a program has locked.
    fn waits_for_lock(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let mut stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        stats.any(|stat| stat.contains("(weft-fuse-inval) D"))
    }

    /// The process that guards it, once it no longer ends by a signal.
    fn wait_for_guard(&self) -> u64 {
        wait_until("the start of the guard", || self.guard().is_some_and(catches_signals));
        self.guard().expect("it stays")
    }

    /// The process that guards it, if there is one.
    fn guard(&self) -> Option<u64> {
        let watches = ["guard".to_owned(), "--process".to_owned(), self.pid.to_string()];
        let processes = fs::read_dir("/proc").expect("listed").flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &u64| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').skip(1).take(3).eq(watches.iter().map(String::as_str))
        })
    }
}

/// A program that makes a file.
fn make(path: &Path) -> Child {
    Command::new("touch").arg(path).stderr(Stdio::null()).spawn().expect("touch")
}

/// Has a thread of `mount` wait for the lock of a directory that a program holds, which waits for `mount`, which waits
/// for `other`. `None`: `other` lost its leases before.
fn entangle(ground: &Ground, mount: &Mounted, other: &Mounted, round: usize) -> Option<(Stopped, [Child; 2])> {
    let directory = format!("d{round}");
    let [here, there] = [&mount.point, &other.point].map(|point| point.join(&directory));
    fs::create_dir(&here).expect("made");
    fs::write(here.join("old"), "").expect("written");
    fs::metadata(here.join("old")).expect("the kernel knows the name");
    assert!(fs::metadata(there.join("new")).is_err(), "the other mount knows that there is none");
    let stopped = Stopped::new(other.pid);
    let program = make(&here.join("new"));
    thread::sleep(Duration::from_millis(200));
    let [old, renamed] = ["old", "renamed"].map(|name| format!("e2e:/{directory}/{name}"));
    let renamer = ground.command(&["mv", &old, &renamed]).stderr(Stdio::null()).spawn().expect("weft starts");
    let deadline = Instant::now() + LOCK_PATIENCE;
    while Instant::now() < deadline {
        if mount.waits_for_lock() {
            return Some((stopped, [program, renamer]));
        }
        thread::sleep(Duration::from_millis(10));
    }
    drop(stopped);
    for mut child in [program, renamer] {
        child.wait().expect("ended");
    }
    None
}

/// A mount that can only end when its connection is aborted, and the programs that wait for it.
struct Entangled {
    ground: Ground,
    mount: Mounted,
    other: Mounted,
    stopped: Option<Stopped>,
    program: Child,
    renamer: Child,
}

impl Entangled {
    fn new(name: &str) -> Self {
        let ground = Ground::new(name);
        ground.weft(&["up", "e2e", "--nodes", "1"]);
        let [mount, other] = ["one", "two"].map(|name| Mounted::new(&ground, name));
        let entangled = (0..ROUNDS).find_map(|round| entangle(&ground, &mount, &other, round));
        let (stopped, [program, renamer]) = entangled.expect("its thread waits for the lock");
        Self { ground, mount, other, stopped: Some(stopped), program, renamer }
    }

    /// The other mount does not go on before: nobody but the kernel can end the program's wait.
    fn assert_programs_get_an_error(&mut self) {
        assert!(has_ended(&mut self.program, LONG), "the program hangs");
        assert!(!self.program.wait().expect("ended").success(), "it gets an error");
        wait_until("the end of the mount", || self.mount.guard().is_none() && !is_running(self.mount.pid));
        self.stopped = None;
        assert!(has_ended(&mut self.renamer, LONG));
    }
}

#[test]
fn programs_get_an_error_when_a_mount_is_killed_that_waits_for_their_lock() {
    if !can_mount() {
        return;
    }
    let mut entangled = Entangled::new("killed");
    signal(entangled.mount.pid, "-KILL");
    entangled.assert_programs_get_an_error();
    let Entangled { ground, mount, other, .. } = entangled;
    let stat = Command::new("stat").arg(&mount.point).output().expect("stat");
    assert!(String::from_utf8_lossy(&stat.stderr).contains("not connected"), "{stat:?}");
    ground.weft(&["umount", mount.point.to_str().expect("a path")]);
    assert!(!ground.mount_is_there(&mount.point));
    assert!(fs::metadata(other.point.join("d0")).is_ok(), "the other mount goes on");
}

#[test]
fn programs_get_an_error_when_a_killed_mount_is_detached_before_its_guard_acts() {
    if !can_mount() {
        return;
    }
    if !can_abort_by_number() {
        return eprintln!("skipped: only root, or fusectl, aborts the connection of a mount that is detached");
    }
    let mut entangled = Entangled::new("detached");
    let guard = Stopped::new(entangled.mount.wait_for_guard());
    signal(entangled.mount.pid, "-KILL");
    let point = &entangled.mount.point;
    let detached = ["umount -l", "fusermount3 -u -z"].iter().any(|command| {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).arg(point).status().is_ok_and(|status| status.success())
    });
    assert!(detached && !entangled.ground.mount_is_there(point));
    drop(guard);
    entangled.assert_programs_get_an_error();
}

/// Others may change them at once: no lease protects them any more.
#[test]
fn names_that_the_kernel_of_a_killed_mount_knows_are_not_found() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("names");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mount = Mounted::new(&ground, "m");
    if !mount.has_epoch(&ground) {
        return eprintln!("skipped: the kernel has no epoch");
    }
    mount.wait_for_guard();
    let file = mount.point.join("file");
    fs::write(&file, "written").expect("written");
    fs::metadata(&file).expect("the kernel knows the name");
    signal(mount.pid, "-KILL");
    wait_until("the end of the guard", || mount.guard().is_none() && !is_running(mount.pid));
    let error = fs::metadata(&file).expect_err("others may have removed it by now");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    ground.weft(&["umount", mount.point.to_str().expect("a path")]);
}

/// Whether this process may abort a connection that has no mount point.
fn can_abort_by_number() -> bool {
    let is_shown = fs::read_dir("/sys/fs/fuse/connections").is_ok_and(|mut shown| shown.next().is_some());
    let in_first_namespace = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
    let capabilities = status_set("self", "CapEff:").expect("/proc");
    is_shown || capabilities & 1 << CAP_SYS_ADMIN != 0 && in_first_namespace
}

/// Whether a guard handles SIGHUP, the last of its signals.
fn catches_signals(pid: u64) -> bool {
    status_set(&pid.to_string(), "SigCgt:").is_some_and(|caught| caught & 1 << (SIGHUP - 1) != 0)
}

/// A set of bits that the kernel shows of a process that runs.
fn status_set(process: &str, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let set = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(u64::from_str_radix(set.trim(), 16).expect("a set in hexadecimal"))
}

fn is_running(pid: u64) -> bool {
    fs::exists(format!("/proc/{pid}")).expect("/proc")
}

#[test]
fn a_guard_leaves_a_mount_alone_that_is_stopped_and_ends_with_it() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("guard");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mount = Mounted::new(&ground, "m");
    let guard = mount.wait_for_guard();
    let stopped = Stopped::new(mount.pid);
    // It looks at the mount after any signal.
    for word in ["-TERM", "-INT", "-HUP", "-USR1"] {
        signal(guard, word);
    }
    thread::sleep(Duration::from_secs(2));
    drop(stopped);
    fs::write(mount.point.join("file"), "written").expect("it goes on");
    assert_eq!(mount.guard(), Some(guard));
    // A mount goes on without, too.
    signal(guard, "-KILL");
    wait_until("the end of the guard", || !is_running(guard));
    assert_eq!(fs::read(mount.point.join("file")).expect("read"), b"written");
    ground.weft(&["umount", mount.point.to_str().expect("a path")]);
    let mount = Mounted::new(&ground, "n");
    let guard = mount.wait_for_guard();
    ground.weft(&["umount", mount.point.to_str().expect("a path")]);
    assert!(!is_running(guard), "it ends before the mount");
}
