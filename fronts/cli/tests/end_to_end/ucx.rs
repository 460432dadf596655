//! File data by UCX through the fronts: copies, mounts, benchmarks, and what is said where it cannot be.

use super::away::{LONG, Stopped, has_ended};
use super::hosts::pids;
use super::{Ground, can_mount, wait_until};
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

/// More than a connection's buffer has at first, and no whole number of anything.
const BYTES: usize = (9 << 20) + 12_345;

fn contents() -> Vec<u8> {
    (0..BYTES).map(|at| u8::try_from((at * 31 + at / 4096) % 251).expect("a byte")).collect()
}

/// Runs a command with a variable.
fn weft_with(ground: &Ground, variable: (&str, &str), words: &[&str]) -> Output {
    ground.command(words).env(variable.0, variable.1).output().expect("weft starts")
}

#[test]
fn files_go_by_ucx_through_copies_mounts_and_benchmarks() {
    if let Err(error) = weft_ucx::Library::get() {
        eprintln!("skipped: {error}");
        return;
    }
    let ground = Ground::new("ucx");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::write(ground.path("file"), contents()).expect("written");
    let ucx = ("WEFT_TRANSPORT", "ucx");
    for words in [["cp", "-q", "file", "e2e:/file"], ["cp", "-q", "e2e:/file", "back"]] {
        let output = weft_with(&ground, ucx, &words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(fs::read(ground.path("back")).expect("read") == contents());
    let counters = || ground.status()["nodes"][0]["counters"].take();
    let moved = |counter: &str| counters()["rdma"][counter].as_u64().expect("a number");
    assert_eq!((moved("read_bytes"), moved("write_bytes")), (BYTES as u64, BYTES as u64));
    assert!(ground.weft(&["status", "-v", "e2e"]).contains("UCX 1."), "what moves the data is said");

    let thput = ["bench", "thput", "--size", "4MiB", "--request", "1MiB", "--runs", "1", "--json", "-p", "1,2"];
    let report = ground.json(&thput);
    let results = report["results"].as_array().expect("results");
    assert_eq!(results.len(), 2 * 2 * 3, "{report}");
    assert!(results.iter().all(|row| row["bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0)), "{report}");

    if !can_mount() {
        return;
    }
    fs::create_dir(ground.path("mnt")).expect("made");
    for (number, options) in
        ["registration=static", "registration=dynamic,direct", "registration=static,rpc=am", "rpc=am,direct"]
            .into_iter()
            .enumerate()
    {
        let before = (moved("read_bytes"), moved("write_bytes"));
        ground.weft(&["mount", "e2e", "mnt", "-o", &format!("transport=ucx,nopassthrough,{options}")]);
        let path = ground.path("mnt").join(format!("mounted{number}"));
        fs::write(&path, contents()).expect("written");
        ground.weft(&["umount", "mnt"]);
        ground.weft(&["mount", "e2e", "mnt", "-o", &format!("transport=ucx,nopassthrough,{options}")]);
        let mut found = vec![0; BYTES];
        fs::File::open(&path).and_then(|file| file.read_exact_at(&mut found, 0)).expect("read");
        assert!(found == contents(), "{options}");
        ground.weft(&["umount", "mnt"]);
        let after = (moved("read_bytes"), moved("write_bytes"));
        assert!(after.0 - before.0 >= BYTES as u64 && after.1 - before.1 >= BYTES as u64, "{before:?} {after:?}");
    }
    let thput = ["bench", "thput", "--size", "4MiB", "--request", "128KiB,1MiB", "--runs", "1", "--json", "--posix"];
    let columns = ["--transport", "tcp,static", "--rpc", "socket,am", "--plot", "figures.svg"];
    let report = ground.json(&[&thput[..], &columns].concat());
    let results = report["results"].as_array().expect("results");
    assert_eq!(results.len(), 2 * 2 * 3 * 3, "{report}");
    let fronts = |front: &str| results.iter().filter(|row| row["front"] == front).count();
    assert_eq!((fronts("native"), fronts("mount"), fronts("mount_direct")), (12, 12, 12), "{report}");
    let drawn = fs::read_to_string(ground.path("figures.svg")).expect("a picture");
    assert!(drawn.contains("static am, mount direct") && drawn.contains("read, 1 process"));
}

#[test]
fn where_ucx_cannot_be_used_sockets_are_or_the_reason_is_said() {
    let ground = Ground::new("no-ucx");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::write(ground.path("file"), "by sockets").expect("written");
    let gone = ("WEFT_UCX_LIBRARY", "/nowhere/libucp.so");
    let output = weft_with(&ground, gone, &["cp", "-q", "file", "e2e:/file"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ground.weft(&["cat", "e2e:/file"]), "by sockets");
    let forced = ground.command(&["cat", "e2e:/file"]).env("WEFT_TRANSPORT", "ucx").env(gone.0, gone.1).output();
    let forced = forced.expect("weft starts");
    let said = String::from_utf8_lossy(&forced.stderr);
    assert!(!forced.status.success() && said.contains("/nowhere/libucp.so") && said.contains("remedy:"), "{said}");
    for (variable, value) in [("WEFT_TRANSPORT", "carrier pigeon"), ("WEFT_RDMA_REGISTRATION", "lazy")] {
        let refused = weft_with(&ground, (variable, value), &["cat", "e2e:/file"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(variable) && said.contains(value), "{said}");
    }
}

/// Data connections of the node: `status` has one of another kind.
fn connections(ground: &Ground) -> u64 {
    ground.status()["nodes"][0]["connections"].as_u64().expect("a number")
}

#[test]
fn clients_that_are_killed_in_the_middle_cost_the_node_nothing() {
    if let Err(error) = weft_ucx::Library::get() {
        eprintln!("skipped: {error}");
        return;
    }
    for transports in ["posix,sysv,self", "tcp"] {
        let ground = Ground::new(&format!("killed-{}", &transports[..3]));
        let tls = ("WEFT_UCX_TLS", transports);
        assert!(weft_with(&ground, tls, &["up", "e2e", "--nodes", "1"]).status.success());
        let quiet = connections(&ground);
        for (registration, rpc) in [("static", "socket"), ("dynamic", "socket"), ("dynamic", "am")] {
            let mut command = ground.command(&["bench", "data", "e2e", "--way", "ucx", "-p", "3", "--runs", "1000"]);
            command.args(["--size", "16MiB", "--request", "1MiB"]).stdout(Stdio::null()).stderr(Stdio::null());
            command
                .env(tls.0, tls.1)
                .env("WEFT_RDMA_REGISTRATION", registration)
                .env("WEFT_RDMA_RPC", rpc)
                .process_group(0);
            let mut bench = command.spawn().expect("weft starts");
            let moved = || ground.status()["nodes"][0]["counters"]["rdma"]["write_bytes"].as_u64().unwrap_or(0);
            let before = moved();
            wait_until("bytes on their way", || moved() > before + (64 << 20));
            // The command and its workers at once: nobody says farewell.
            let group = format!("-{}", bench.id());
            assert!(Command::new("kill").args(["-9", "--", &group]).status().expect("kill").success());
            bench.wait().expect("it ended");
            wait_until("the end of their connections", || connections(&ground) <= quiet);
        }
        fs::write(ground.path("file"), contents()).expect("written");
        for words in [["cp", "-q", "file", "e2e:/file"], ["cp", "-q", "e2e:/file", "back"]] {
            let output = ground.command(&words).env(tls.0, tls.1).env("WEFT_TRANSPORT", "ucx").output();
            let output = output.expect("weft starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(fs::read(ground.path("back")).expect("read") == contents());
    }
}

#[test]
fn programs_get_an_error_when_the_node_stops_in_their_transfers() {
    if let Err(error) = weft_ucx::Library::get() {
        eprintln!("skipped: {error}");
        return;
    }
    if !can_mount() {
        return;
    }
    for (transports, options) in [
        ("posix,sysv,self", "registration=static"),
        ("posix,sysv,self", "registration=static,rpc=am"),
        ("tcp", "registration=dynamic"),
        ("tcp", "registration=static,rpc=am"),
    ] {
        let ground = Ground::new(&format!("stops-{}", &transports[..3]));
        let tls = ("WEFT_UCX_TLS", transports);
        assert!(weft_with(&ground, tls, &["up", "e2e", "--nodes", "1"]).status.success());
        fs::create_dir(ground.path("mnt")).expect("made");
        let options = format!("transport=ucx,nopassthrough,direct,{options}");
        let mounted = weft_with(&ground, tls, &["mount", "e2e", "mnt", "--soft", "2s", "-o", &options]);
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        fs::write(ground.path("mnt/file"), contents()).expect("written");
        let moved = || ground.status()["nodes"][0]["counters"]["rdma"]["write_bytes"].as_u64().expect("a number");
        let before = moved();
        // One after the other into the same place, for as long as it goes well.
        let path = ground.path("mnt/file");
        let script = "while dd if=/dev/zero of=\"$0\" bs=1M count=8 conv=notrunc 2> /dev/null; do :; done";
        let mut writer = Command::new("sh").args(["-c", script]).arg(&path).spawn().expect("sh");
        wait_until("bytes on their way", || moved() > before + (64 << 20));
        let stopped = Stopped::new(pids(&ground)[0]);
        assert!(has_ended(&mut writer, LONG), "{transports}, {options}: it waits for the node");
        drop(stopped);
        let read = || fs::read(&path).is_ok_and(|found| found.len() == BYTES);
        wait_until("the node's answers", read);
        ground.weft(&["umount", "mnt"]);
        ground.weft(&["down", "e2e"]);
    }
}
