//! Staging: trees go into a file system and out again, by commands that can be run again until all is there.

use super::hosts::{install_ssh, set_away};
use super::{Ground, contents_hash, make_tree, picture, wait_until};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// All files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn trees_are_staged_in_and_out_and_what_is_there_is_kept() {
    let ground = Ground::new("stage");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    make_tree(&ground.path("in"));
    let first = ground.json(&["stage", "in", "-q", "--json", "in", "e2e:/a/b"]);
    assert_eq!((first["files"].as_u64(), first["kept_files"].as_u64()), (Some(204), Some(0)), "{first}");
    assert!(first["bytes"].as_u64() > Some(70 << 20) && first["failures"].as_array().is_some_and(Vec::is_empty));
    // The same command means the same names, and has nothing to do.
    let again = ground.json(&["stage", "in", "-q", "--json", "in", "e2e:/a/b"]);
    assert_eq!((again["files"].as_u64(), again["kept_files"].as_u64()), (Some(0), Some(204)), "{again}");
    assert_eq!(again["kept_bytes"], first["bytes"]);
    assert_eq!(ground.weft(&["ls", "e2e:/a/b"]), "in\n");

    let words = ["stage", "out", "-q", "--json", "--verify", "e2e:/a/b/in", "out/deep"];
    let out = ground.json(&words);
    assert_eq!((out["files"].as_u64(), out["verified_files"].as_u64()), (Some(204), Some(204)), "{out}");
    assert_eq!(picture(&ground.path("out/deep/in")), picture(&ground.path("in")));
    // What is missing or another one is copied, and nothing else.
    fs::remove_file(ground.path("out/deep/in/small")).expect("removed");
    fs::write(ground.path("out/deep/in/below/file-7"), "another").expect("written");
    let out = ground.json(&words);
    assert_eq!((out["files"].as_u64(), out["kept_files"].as_u64()), (Some(2), Some(202)), "{out}");
    assert_eq!(picture(&ground.path("out/deep/in")), picture(&ground.path("in")));

    // The contents of a directory, without its name.
    ground.weft(&["stage", "in", "-q", "in/.", "e2e:/flat"]);
    ground.weft(&["stage", "out", "-q", "e2e:/flat/.", "flat"]);
    assert_eq!(picture(&ground.path("flat")), picture(&ground.path("in")));
    ground.weft(&["stage", "out", "-q", "e2e:/", "all"]);
    assert_eq!(picture(&ground.path("all/flat")), picture(&ground.path("in")));
}

#[test]
fn staging_that_was_killed_goes_on_and_leaves_no_part() {
    let ground = Ground::new("stage-killed");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    make_tree(&ground.path("in"));
    let large = ground.path("in/below/large");
    fs::File::options().write(true).open(&large).and_then(|file| file.set_len(400 << 20)).expect("grown");
    for words in [["stage", "in", "in", "e2e:/"], ["stage", "out", "e2e:/in", "out"]] {
        let mut staging = ground.command(&words).stderr(Stdio::null()).spawn().expect("weft starts");
        let part = ".large.weft-part";
        wait_until("the copy begins", || match words[1] {
            "in" => {
                ground.command(&["stat", &format!("e2e:/in/below/{part}")]).output().is_ok_and(|o| o.status.success())
            }
            _ => ground.path(&format!("out/in/below/{part}")).exists(),
        });
        staging.kill().expect("killed");
        assert!(!staging.wait().expect("ended").success());
        ground.weft(&[&words[..2], &["-q"], &words[2..]].concat());
    }
    assert_eq!(picture(&ground.path("out/in")), picture(&ground.path("in")));
    let parts = |list: &str| list.contains(".weft-");
    assert!(!parts(&ground.weft(&["ls", "-a", "e2e:/in/below"])));
    assert!(!files_below(&ground.path("out")).iter().any(|path| parts(&path.display().to_string())));
}

#[test]
fn a_copy_that_was_damaged_is_found_and_copied_again() {
    let ground = Ground::new("stage-damage");
    ground.weft(&["up", "e2e", "--nodes", "1", "--store", "store"]);
    fs::write(ground.path("file"), vec![7; 3 << 20]).expect("written");
    ground.weft(&["stage", "in", "-q", "file", "e2e:/"]);
    let objects = files_below(&ground.path("store"));
    assert_eq!(objects.len(), 1);
    let store = fs::File::options().write(true).open(&objects[0]).expect("an object");
    store.write_all_at(b"damage", 2 << 20).expect("written");
    let unseen = ground.json(&["stage", "in", "-q", "--json", "file", "e2e:/"]);
    assert_eq!((unseen["files"].as_u64(), unseen["kept_files"].as_u64()), (Some(0), Some(1)), "{unseen}");
    let seen = ground.json(&["stage", "in", "-q", "--json", "--verify", "file", "e2e:/"]);
    assert_eq!((seen["files"].as_u64(), seen["verified_files"].as_u64()), (Some(1), Some(1)), "{seen}");
    ground.weft(&["cp", "-q", "--verify", "e2e:/file", "back"]);
    assert_eq!(contents_hash(&ground.path("back")), contents_hash(&ground.path("file")));
}

#[test]
fn sparse_striped_and_split_files_arrive_whole() {
    let ground = Ground::new("stage-kinds");
    ground.weft(&["up", "e2e", "--nodes", "3"]);
    fs::create_dir(ground.path("in")).expect("made");
    let sparse = fs::File::create(ground.path("in/sparse")).expect("made");
    sparse.write_all_at(b"begin", 5000).and_then(|()| sparse.write_all_at(b"end", 80 << 20)).expect("written");
    sparse.set_len(100 << 20).expect("grown");
    fs::write(ground.path("in/dense"), vec![3; (9 << 20) + 1]).expect("written");
    for (kind, options) in [("whole", &[][..]), ("striped", &["--width", "3"]), ("split", &["--split"])] {
        let target = format!("e2e:/{kind}");
        ground.weft(&[&["stage", "in", "-q"][..], options, &["in", &target]].concat());
        let layout = ground.json(&["layout", "--json", &format!("{target}/in/dense")]);
        assert_eq!(layout[0]["layout"], kind, "{layout}");
        ground.weft(&["stage", "out", "-q", "--verify", &format!("{target}/in"), kind]);
        assert_eq!(picture(&ground.path(&format!("{kind}/in"))), picture(&ground.path("in")), "{kind}");
    }
}

#[test]
fn what_cannot_be_staged_is_named() {
    let ground = Ground::new("stage-errors");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::create_dir(ground.path("in")).expect("made");
    fs::write(ground.path("in/a"), "a").expect("written");
    // A directory where a file is to be.
    ground.weft(&["mkdir", "-p", "e2e:/in/a/below"]);
    let output = ground.weft_code(2, &["stage", "in", "--json", "in", "e2e:/"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("e2e:/in/a") && said.contains("stage in: 1 could not be copied"), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(answer["failures"][0].as_str().is_some_and(|text| text.contains("e2e:/in/a")), "{answer}");
    for (words, text) in [
        (["stage", "in", "in", "out"], "stage in: out is a path of this machine"),
        (["stage", "in", "e2e:/in", "e2e:/x"], "stage in: e2e:/in is in a file system of Weft"),
        (["stage", "out", "in", "out"], "stage out: in is a path of this machine"),
        (["stage", "out", "e2e:/in", "e2e:/x"], "stage out: e2e:/x is in a file system of Weft"),
        (["stage", "out", "e2e:/gone", "out"], "stage out e2e:/gone: no such file or directory"),
        (["stage", "out", "e2e:/in", "/proc/nothing"], "make directory /proc/nothing"),
    ] {
        let output = ground.command(&words).output().expect("weft starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code().is_some_and(|code| code > 0) && said.contains(text), "{words:?}: {said}");
    }
}

#[test]
fn the_hosts_of_nodes_copy_what_they_hold() {
    let ground = Ground::new("stage-hosts");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "a\nb\n").expect("written");
    ground.weft(&["up", "e2e", "--hosts", "hosts", "--identity-per-node"]);
    make_tree(&ground.path("in"));
    for number in 200..700 {
        fs::write(ground.path(&format!("in/below/file-{number}")), number.to_string()).expect("written");
    }
    let share = |answer: &serde_json::Value| {
        let hosts = answer["hosts"].as_array().expect("hosts").clone();
        let copied = |host: &serde_json::Value| host["files"].as_u64().expect("a number");
        assert!(hosts.iter().all(|host| copied(host) > 0), "{answer}");
        (hosts.len(), hosts.iter().map(copied).sum::<u64>(), answer["files"].as_u64().expect("a number"))
    };
    let staged = ground.json(&["stage", "in", "-q", "--json", "--verify", "in", "e2e:/"]);
    assert_eq!(share(&staged), (2, 704, 704), "{staged}");
    assert_eq!(staged["verified_files"], 704);
    let again = ground.json(&["stage", "in", "-q", "--json", "in", "e2e:/"]);
    assert_eq!((again["files"].as_u64(), again["kept_files"].as_u64()), (Some(0), Some(704)), "{again}");
    let out = ground.json(&["stage", "out", "-q", "--json", "e2e:/in", "out"]);
    assert_eq!(share(&out), (2, 704, 704), "{out}");
    assert_eq!(picture(&ground.path("out/in")), picture(&ground.path("in")));
    assert_eq!(files_below(&ground.path("out")).len(), 705, "nothing but these and the link is there");

    // A failure over there is named here.
    fs::remove_file(ground.path("out/in/below/file-9")).expect("removed");
    fs::create_dir_all(ground.path("out/in/below/file-9/below")).expect("made");
    let said = ground.weft_fails(2, &["stage", "out", "-q", "e2e:/in", "out"]);
    assert!(said.contains("out/in/below/file-9") && said.contains("1 could not be copied"), "{said}");

    // A host that is away is left out, and with --here all are.
    set_away(&ground, "b", true);
    let output = ground.weft_code(0, &["stage", "out", "--json", "e2e:/in", "second"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("stage out: left out: b: ssh b weft host: No route to host"), "{said}");
    assert_eq!(share(&serde_json::from_slice(&output.stdout).expect("JSON")), (1, 704, 704));
    set_away(&ground, "b", false);
    let here = ground.json(&["stage", "out", "-q", "--json", "--here", "e2e:/in", "third"]);
    assert_eq!(share(&here), (0, 0, 704));
    assert_eq!(picture(&ground.path("third/in")), picture(&ground.path("in")));
}

#[test]
fn a_host_that_does_not_share_the_directory_copies_nothing() {
    let ground = Ground::new("stage-blind");
    install_ssh(&ground);
    fs::write(ground.path("hosts"), "a\nb\n").expect("written");
    fs::create_dir(ground.path("out")).expect("made");
    ground.weft(&["up", "e2e", "--hosts", "hosts", "--identity-per-node"]);
    make_tree(&ground.path("in"));
    ground.weft(&["stage", "in", "-q", "in", "e2e:/"]);
    // From here on, host b has a directory of its own under the target's name.
    let out = ground.path("out").display().to_string();
    let own_mount = ["-m", "mount", "-t", "tmpfs", "none", &out];
    if !Command::new("unshare").args(own_mount).status().is_ok_and(|status| status.success()) {
        return println!("skipped: this user cannot mount in a namespace of his own");
    }
    let ssh = fs::read_to_string(ground.path("ssh")).expect("the stand-in");
    let blind = format!(
        "for word; do [ \"$word\" = b ] && [ -z \"$BLIND\" ] && BLIND=1 exec unshare -m sh -c \
         'mount -t tmpfs none {out} && exec \"$0\" \"$@\"' \"$0\" \"$@\"; done\n"
    );
    fs::write(ground.path("ssh"), ssh.replacen('\n', &format!("\n{blind}"), 1)).expect("written");
    let output = ground.weft_code(0, &["stage", "out", "--json", "e2e:/in", "out"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("stage out: left out: b: ") && said.contains("is not the same there"), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let hosts: Vec<&str> =
        answer["hosts"].as_array().expect("hosts").iter().filter_map(|h| h["host"].as_str()).collect();
    assert_eq!(hosts, ["a"], "{answer}");
    assert_eq!(picture(&ground.path("out/in")), picture(&ground.path("in")));
}
