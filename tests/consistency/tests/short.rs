//! A short run of the checker, part of `make test`: the checker against plain directories, several modes one call
//! after another, and the scripts that once showed a violation.
//!
//! The program `weft` is the one beside the checker, which `cargo build --workspace` makes. Without it, or where
//! nothing can be mounted, the tests of Weft are skipped and say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Modes in which `make test` runs random scripts.
const MODES: &str = "default,default-4,direct,limited,memory-4,nopassthrough,nopassthrough-4,tcp";

/// Modes in which scripts run; those that name their modes run only in these.
const SCRIPT_MODES: &str = "default,nopassthrough,tcp,limited";
/// Of the first random script.
const SEED: &str = "1";
/// Random scripts in each mode: the same ones on a slow machine.
const SCRIPTS: &str = "12";

/// Runs the checker. It must not find a violation.
fn check(words: &[&str]) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_weft-consistency")).args(words).output().expect("the checker starts");
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "weft-consistency {}: {status}\n{said}{errors}", words.join(" "));
    println!("{said}");
}

/// The program under test; says why not.
fn weft() -> Option<PathBuf> {
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        eprintln!("mounts are skipped: /dev/fuse: {error}");
        return None;
    }
    let weft = Path::new(env!("CARGO_BIN_EXE_weft-consistency")).with_file_name("weft");
    if !weft.is_file() {
        eprintln!("mounts are skipped: there is no {}; `cargo build --workspace` makes it", weft.display());
        return None;
    }
    Some(weft)
}

#[test]
fn plain_directories_behave_as_the_model_says() {
    let run = |mode: &str| check(&["run", "--mode", mode, "--seed", SEED, "--scripts", "50", "--locks"]);
    run("local");
    match fs::metadata("/dev/shm") {
        Ok(_) => run("tmpfs"),
        Err(error) => eprintln!("tmpfs is skipped: /dev/shm: {error}"),
    }
}

#[test]
fn mounts_behave_as_one_posix_file_system_one_call_after_another() {
    if weft().is_none() {
        return;
    }
    let words = ["run", "--mode", MODES, "--schedule", "sequential", "--seed", SEED, "--scripts", SCRIPTS];
    check(&words);
}

#[test]
fn what_once_was_a_violation_is_none_any_more() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let listed = fs::read_dir(&directory).expect("scripts").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = listed.collect();
    paths.sort();
    if weft().is_none() || paths.is_empty() {
        return;
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut words = vec!["replay", "--mode", SCRIPT_MODES];
    words.extend(paths.iter().map(String::as_str));
    check(&words);
}
