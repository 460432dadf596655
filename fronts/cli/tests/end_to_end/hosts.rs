//! Nodes on other hosts, with a stand-in for ssh: each host is this machine with directories of its own.

use super::{Ground, runs};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Installs the stand-in. A host named `own` is this machine itself, with its very directories; a host for which there
/// is a file `away-HOST` cannot be reached.
pub fn install_ssh(ground: &Ground) {
    let script = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n\
         export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\necho 'Welcome!'\n\
         [ -e '{run}'/away-$2 ] && {{ echo 'No route to host' >&2; exit 255; }}\n\
         [ \"$2\" = own ] || export XDG_RUNTIME_DIR='{run}'/run-$2 TMPDIR='{run}'/tmp-$2\n\
         mkdir -p \"$XDG_RUNTIME_DIR\"\nshift 3\nexec '{weft}' \"$@\"\n",
        run = ground.directory.display(),
        weft = env!("CARGO_BIN_EXE_weft")
    );
    let ssh = ground.path("ssh");
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
}

/// Whether a host can be reached.
pub fn set_away(ground: &Ground, host: &str, away: bool) {
    let mark = ground.path(&format!("away-{host}"));
    if away { fs::write(mark, "").expect("written") } else { fs::remove_file(mark).expect("removed") }
}

fn run(ground: &Ground, words: &[&str]) -> (Option<i32>, String) {
    let output = ground.command(words).output().expect("weft starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn pids(ground: &Ground) -> Nodes {
    let status = ground.status();
    Nodes(status["nodes"].as_array().expect("nodes").iter().filter_map(|node| node["pid"].as_u64()).collect())
}

pub fn signal(pid: u64, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(std::thread::panicking() || sent.expect("kill").success());
}

/// Kills nodes when a test fails that has stopped one: no command would end it.
pub struct Nodes(Vec<u64>);

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|pid| signal(*pid, "-KILL"));
        }
    }
}

impl std::ops::Deref for Nodes {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

#[test]
fn hosts_are_started_and_ended_over_ssh() {
    let ground = Ground::new("ssh");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "a site=east\nb site=west\na\n").expect("written");
    assert_eq!(run(&ground, &["up", "e2e", "--hosts", "hosts"]), (Some(0), String::new()));
    fs::write(ground.path("word"), "hello").expect("written");
    ground.weft(&["cp", "-q", "word", "e2e:/"]);
    assert_eq!(ground.weft(&["cat", "e2e:/word"]), "hello");
    let hosts: Vec<String> = ground.status()["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| format!("{} {}", node["host"].as_str().unwrap_or(""), node["site"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(hosts, ["a east", "b west", "a local"]);
    assert!(ground.path("run-b/weft/e2e/instance.json").exists(), "clients on that host find it");
    assert_eq!(run(&ground, &["down", "e2e"]), (Some(0), String::new()));
    for left in ["run/weft", "run-a/weft", "run-b/weft", "tmp-a/weft-0", "tmp-b/weft-0"] {
        assert!(!ground.path(left).exists(), "{left}");
    }
    // When one host cannot be reached, nothing is left on the others.
    fs::write(ground.path("hosts"), "a\ndown\n").expect("written");
    set_away(&ground, "down", true);
    let (code, said) = run(&ground, &["up", "e2e", "--hosts", "hosts"]);
    assert!(code == Some(2) && said.contains("down: ssh down weft host: No route to host"), "{said}");
    assert!(!ground.path("run-a/weft").exists() && !ground.path("run/weft").exists());
}

#[test]
fn this_machine_may_be_a_host_by_its_own_name() {
    let ground = Ground::new("own-name");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "own\nown store=/proc/nothing\n").expect("written");
    let (code, said) = run(&ground, &["up", "e2e", "--hosts", "hosts"]);
    assert!(code == Some(2) && said.contains("/proc/nothing") && !said.contains("not empty"), "{said}");
    assert!(!ground.path("run/weft").exists(), "nothing is left of what could not be started");

    fs::write(ground.path("hosts"), "own\na\nown\n").expect("written");
    for number in 0..4 {
        assert_eq!(run(&ground, &["up", "e2e", "--hosts", "hosts"]), (Some(0), String::new()), "{number}");
        let pids = pids(&ground);
        assert_eq!(run(&ground, &["down", "e2e"]), (Some(0), String::new()), "{number}");
        assert!(!pids.iter().any(|pid| runs(*pid)) && !ground.path("run/weft").exists(), "{number}");
    }
    // A failure after nodes were started by that name.
    fs::write(ground.path("hosts"), "own\ndown\nown\n").expect("written");
    set_away(&ground, "down", true);
    let (code, said) = run(&ground, &["up", "e2e", "--hosts", "hosts"]);
    assert!(code == Some(2) && said.matches("weft:").count() == 1, "{said}");
    assert!(!ground.path("run/weft").exists());
}

#[test]
fn down_ends_what_it_reaches_and_names_what_it_does_not() {
    let ground = Ground::new("away");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "a\nb\nown\n").expect("written");
    assert_eq!(run(&ground, &["up", "e2e", "--hosts", "hosts"]), (Some(0), String::new()));
    let pids = pids(&ground);
    // As if the host were off: its node does not answer either.
    set_away(&ground, "b", true);
    signal(pids[1], "-STOP");
    let begun = Instant::now();
    let (code, said) = run(&ground, &["down", "e2e"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    let store = ground.path("tmp-b/weft-0/e2e/store/n01");
    let left = format!("n01, process {}, store {}", pids[1], store.display());
    assert!(code == Some(2) && said.contains(&left) && said.contains("No route to host"), "{said}");
    assert!(said.contains("remedy: `weft down e2e` again"), "{said}");
    assert_eq!(pids.iter().map(|pid| runs(*pid)).collect::<Vec<_>>(), [false, true, false]);
    assert!(!ground.path("run-a/weft").exists() && store.exists());

    // The record of what is left lets it be ended later.
    let (code, said) = run(&ground, &["down", "e2e"]);
    assert!(code == Some(2) && said.contains(&left), "{said}");
    set_away(&ground, "b", false);
    signal(pids[1], "-CONT");
    assert_eq!(run(&ground, &["down", "e2e"]).0, Some(0));
    assert!(!runs(pids[1]) && !store.exists());
    assert!(!ground.path("run-b/weft").exists() && !ground.path("run/weft").exists());
}

#[test]
fn down_by_force_forgets_a_host_that_is_away() {
    let ground = Ground::new("forgotten");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "a\nb\n").expect("written");
    assert_eq!(run(&ground, &["up", "e2e", "--hosts", "hosts"]), (Some(0), String::new()));
    let pids = pids(&ground);
    set_away(&ground, "b", true);
    signal(pids[1], "-STOP");
    let (code, said) = run(&ground, &["down", "--force", "e2e"]);
    assert!(code == Some(2) && said.contains(&format!("n01, process {}", pids[1])), "{said}");
    assert!(!ground.path("run/weft").exists() && runs(pids[1]));
    // As the message says: the same there.
    signal(pids[1], "-CONT");
    let mut there = ground.command(&["down", "--force", "e2e"]);
    there.env("XDG_RUNTIME_DIR", ground.path("run-b")).env("TMPDIR", ground.path("tmp-b"));
    set_away(&ground, "a", true);
    let output = there.output().expect("weft starts");
    assert_eq!(output.status.code(), Some(2), "it names what it does not reach from there");
    assert!(!runs(pids[1]) && !ground.path("run-b/weft").exists());
}
