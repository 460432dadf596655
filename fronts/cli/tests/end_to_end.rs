//! The real command with real nodes on this machine: what a user does in the first ten minutes.
//!
//! Each test has a runtime directory and stores of its own, and ends what it started also when it fails.

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "end_to_end/away.rs"]
mod away;
#[path = "end_to_end/batch.rs"]
mod batch;
#[path = "end_to_end/conversions.rs"]
mod conversions;
#[path = "end_to_end/copies.rs"]
mod copies;
#[path = "end_to_end/damage.rs"]
mod damage;
#[path = "end_to_end/descriptors.rs"]
mod descriptors;
#[path = "end_to_end/extract.rs"]
mod extract;
#[path = "end_to_end/flow_control.rs"]
mod flow_control;
#[path = "end_to_end/full.rs"]
mod full;
#[path = "end_to_end/hosts.rs"]
mod hosts;
#[path = "end_to_end/hung.rs"]
mod hung;
#[path = "end_to_end/kernel_names.rs"]
mod kernel_names;
#[path = "end_to_end/killed.rs"]
mod killed;
#[path = "end_to_end/layout.rs"]
mod layout;
#[path = "end_to_end/leftovers.rs"]
mod leftovers;
#[path = "end_to_end/listings.rs"]
mod listings;
#[path = "end_to_end/locks.rs"]
mod locks;
#[path = "end_to_end/names.rs"]
mod names;
#[path = "end_to_end/nodes.rs"]
mod nodes;
#[path = "end_to_end/others.rs"]
mod others;
#[path = "end_to_end/over.rs"]
mod over;
#[path = "end_to_end/posix.rs"]
mod posix;
#[path = "end_to_end/regions.rs"]
mod regions;
#[path = "end_to_end/relocations.rs"]
mod relocations;
#[path = "end_to_end/removal.rs"]
mod removal;
#[path = "end_to_end/settings.rs"]
mod settings;
#[path = "end_to_end/shards.rs"]
mod shards;
#[path = "end_to_end/spread.rs"]
mod spread;
#[path = "end_to_end/stage.rs"]
mod stage;
#[path = "end_to_end/two_mounts.rs"]
mod two_mounts;
#[path = "end_to_end/ucx.rs"]
mod ucx;
#[path = "end_to_end/xattrs.rs"]
mod xattrs;

/// A place for one test: a runtime directory, and the file system `e2e` in it.
struct Ground {
    directory: PathBuf,
}

impl Ground {
    /// A new directory, short enough for sockets.
    fn new(test: &str) -> Self {
        let directory = PathBuf::from(format!("/tmp/weft-e2e-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a temporary directory");
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(words).current_dir(&self.directory).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.path("tmp"));
        command.env("WEFT_SSH", self.path("ssh"));
        // A test may run in a batch job, and starts what it says all the same.
        let of_jobs = "SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_NODELIST PBS_JOBID PBS_NODEFILE HYDRA_HOST_FILE";
        for variable in of_jobs.split(' ') {
            command.env_remove(variable);
        }
        command
    }

    /// Runs the command; fails the test when its exit code is another one.
    fn weft_code(&self, code: i32, words: &[&str]) -> Output {
        let output = self.command(words).output().expect("weft starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "weft {}: {said}{}", words.join(" "), self.logs());
        output
    }

    /// Runs the command, which has to do what it is asked; answers its standard output.
    fn weft(&self, words: &[&str]) -> String {
        String::from_utf8(self.weft_code(0, words).stdout).expect("text")
    }

    /// Runs the command, which has to fail; answers its standard error.
    fn weft_fails(&self, code: i32, words: &[&str]) -> String {
        String::from_utf8(self.weft_code(code, words).stderr).expect("text")
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.weft(words)).expect("JSON")
    }

    fn status(&self) -> Value {
        let output = self.command(&["status", "--json", "e2e"]).output().expect("weft starts");
        let mut status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        status["file_systems"][0].take()
    }

    /// What the nodes said, for a test that fails.
    fn logs(&self) -> String {
        let entries = fs::read_dir(self.path("run/weft/e2e")).into_iter().flatten().flatten();
        let logs = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "log"));
        logs.map(|path| format!("\n{}:\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default())).collect()
    }

    fn mount_is_there(&self, mount_point: &Path) -> bool {
        let listed = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        listed.contains(&format!(" {} ", mount_point.display()))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let ended = self.command(&["down", "--force", "--all"]).output();
        if !ended.is_ok_and(|output| output.status.success()) && !std::thread::panicking() {
            panic!("weft down --force failed");
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Whether this machine lets its users mount; says why not.
fn can_mount() -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    opened.inspect_err(|error| eprintln!("mounts are skipped: /dev/fuse: {error}")).is_ok()
}

/// Waits for something that happens soon.
fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has not ended; one that only waits for its parent has.
fn runs(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Names, permissions, sizes, times and contents below a directory.
fn picture(directory: &Path) -> Vec<String> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    let mut lines = Vec::new();
    for path in names {
        let metadata = fs::symlink_metadata(&path).expect("there");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if metadata.is_symlink() {
            lines.push(format!("{name} -> {:?}", fs::read_link(&path).expect("a link")));
            continue;
        }
        let contents = if metadata.is_dir() { picture(&path).join(", ") } else { contents_hash(&path) };
        let (mode, time) = (metadata.permissions().mode() & 0o777, (metadata.mtime(), metadata.mtime_nsec()));
        lines.push(format!("{name} {mode:o} {time:?} {contents}"));
    }
    lines
}

fn contents_hash(path: &Path) -> String {
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("read");
    let hash = bytes.iter().fold(7_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{} bytes {hash:x}", bytes.len())
}

fn make_tree(directory: &Path) {
    fs::create_dir_all(directory.join("below/empty")).expect("made");
    fs::write(directory.join("small"), "a few words\n").expect("written");
    fs::write(directory.join("nothing"), "").expect("written");
    let large: Vec<u8> =
        (0..(70_u32 << 20) / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(directory.join("below/large"), large).expect("written");
    fs::write(directory.join("below/straße [1]"), "odd name").expect("written");
    for number in 0..200 {
        fs::write(directory.join(format!("below/file-{number}")), number.to_string()).expect("written");
    }
    fs::set_permissions(directory.join("small"), fs::Permissions::from_mode(0o750)).expect("set");
    std::os::unix::fs::symlink("below/large", directory.join("link")).expect("made");
}

#[test]
fn a_file_system_is_started_used_and_ended() {
    let ground = Ground::new("use");
    let begun = Instant::now();
    let said = ground.weft(&["up", "e2e", "--nodes", "2"]);
    assert!(begun.elapsed() < Duration::from_secs(3), "two nodes are up in {:?}", begun.elapsed());
    for word in ["weft mount e2e", "weft cp -r", "weft status e2e", "weft down e2e"] {
        assert!(said.contains(word), "{said}");
    }
    let refused = ground.weft_fails(2, &["up", "e2e"]);
    assert!(refused.contains("running already") && refused.contains("remedy:"), "{refused}");

    make_tree(&ground.path("in"));
    ground.weft(&["cp", "-r", "in", "e2e:/"]);
    assert_eq!(ground.weft(&["ls", "e2e:/in"]), "below\nlink\nnothing\nsmall\n");
    assert_eq!(ground.weft(&["ls", "e2e:/in/below"]).lines().count(), 203);
    let long = ground.weft(&["ls", "-l", "weft:/in"]);
    assert!(long.contains("-rwxr-x---") && long.contains("link -> below/large"), "{long}");
    assert_eq!(ground.weft(&["cat", "e2e:/in/small", "e2e:/in/below/file-7"]), "a few words\n7");
    ground.weft(&["cp", "-r", "e2e:/in", "out"]);
    assert_eq!(picture(&ground.path("out")), picture(&ground.path("in")));

    let stat = ground.json(&["stat", "--json", "e2e:/in/below/large"]);
    assert_eq!((stat[0]["size"].as_u64(), stat[0]["kind"].as_str()), (Some(70 << 20), Some("regular")));
    let located = ground.json(&["locate", "--json", "e2e:/in/below/large"]);
    let ranges = located[0]["ranges"].as_array().expect("ranges");
    assert_eq!(ranges.iter().filter_map(|range| range["bytes"].as_u64()).sum::<u64>(), 70 << 20);
    assert!(ranges.iter().all(|range| range["node"].as_u64().is_some_and(|node| node < 2)), "{located}");

    ground.weft(&["mkdir", "-p", "e2e:/a/b/c"]);
    ground.weft(&["cp", "-r", "e2e:/in/below", "e2e:/a/b"]);
    ground.weft(&["mv", "e2e:/a/b/below/large", "e2e:/moved"]);
    ground.weft(&["mv", "e2e:/a/b/below/file-1", "e2e:/a/b/below/file-2", "e2e:/a"]);
    assert_eq!(ground.weft(&["cat", "e2e:/a/file-2"]), "2");
    ground.weft(&["cp", "e2e:/moved", "moved"]);
    assert_eq!(contents_hash(&ground.path("moved")), contents_hash(&ground.path("in/below/large")));
    let refused = ground.weft_fails(2, &["rm", "e2e:/a"]);
    assert!(refused.contains("is a directory"), "{refused}");
    assert!(ground.weft(&["rm", "-r", "--dry-run", "e2e:/a"]).contains("would remove e2e:/a/b/c\n"));
    ground.weft(&["rm", "-r", "e2e:/a", "e2e:/moved"]);
    assert_eq!(ground.weft(&["ls", "e2e:/"]), "in\n");
    ground.weft_fails(1, &["stat", "e2e:/a"]);
    ground.weft_fails(1, &["ls", "nothing:/"]);

    let status = ground.status();
    assert_eq!((status["healthy"].as_bool(), status["state"].as_str()), (Some(true), Some("running")));
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2));
    assert!(ground.weft(&["status"]).starts_with("e2e: running"));
    assert_eq!(ground.json(&["debug", "stuck", "--json"])["nodes"].as_array().map(Vec::len), Some(2));
    assert_eq!(ground.json(&["df", "--json"])["nodes"].as_array().map(Vec::len), Some(2));

    ground.weft(&["down", "e2e"]);
    assert!(!ground.path("run/weft/e2e").exists());
    assert!(!ground.path("tmp").exists(), "no store is left, and not the directory that was made for it");
    ground.weft_fails(1, &["status"]);
    ground.weft_fails(1, &["down", "e2e"]);
}

#[test]
fn leftovers_of_a_killed_run_are_named_and_removed() {
    let ground = Ground::new("kill");
    ground.weft(&["up", "e2e", "--nodes", "2", "--store", "store:1GiB"]);
    let pids: Vec<u64> =
        ground.status()["nodes"].as_array().expect("nodes").iter().filter_map(|n| n["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 2);
    for pid in &pids {
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    }
    wait_until("the end of the nodes", || !pids.iter().any(|pid| runs(*pid)));
    for (code, words) in [(2, &["up", "e2e"][..]), (2, &["ls", "e2e:/"]), (2, &["down", "e2e"])] {
        let said = ground.weft_fails(code, words);
        assert!(said.contains("weft down --force e2e"), "{words:?}: {said}");
    }
    assert_eq!(ground.command(&["status"]).output().expect("weft starts").status.code(), Some(1));
    ground.weft(&["down", "--force", "e2e"]);
    assert!(!ground.path("run/weft/e2e").exists());
    assert!(!ground.path("store").exists(), "what up made is removed");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
}

#[test]
fn what_is_new_goes_to_living_nodes() {
    let ground = Ground::new("living");
    ground.weft(&["up", "e2e", "--nodes", "3", "--store", "store"]);
    let pid = ground.status()["nodes"][2]["pid"].as_u64().expect("a number");
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    fs::write(ground.path("word"), "hello").expect("written");
    for number in 0..12 {
        ground.weft(&["mkdir", &format!("e2e:/d{number}")]);
        let file = format!("e2e:/d{number}/f");
        ground.weft(&["cp", "-q", "word", &file]);
        assert_eq!(ground.weft(&["cat", &file]), "hello");
    }
}

#[test]
fn a_node_that_cannot_start_leaves_nothing() {
    let ground = Ground::new("start");
    let uid = fs::metadata(&ground.directory).expect("there").uid();
    let stores = ground.path(&format!("store/weft-{uid}/e2e/store"));
    fs::create_dir_all(stores.join("n01")).expect("made");
    fs::write(stores.join("n01/precious"), "of somebody").expect("written");
    let said = ground.weft_fails(2, &["up", "e2e", "--nodes", "3", "--store", "store"]);
    assert!(said.contains("n01") && said.contains("holds precious") && said.contains("remedy:"), "{said}");
    assert!(stores.join("n01/precious").exists());
    assert!(!stores.join("n00").exists() && !ground.path("run/weft/e2e").exists());
}

#[test]
fn a_store_among_other_files_touches_none_of_them() {
    let ground = Ground::new("among");
    fs::create_dir_all(ground.path("scratch/objects")).expect("made");
    fs::write(ground.path("scratch/objects/mine"), "of the user").expect("written");
    fs::write(ground.path("scratch/n00"), "of the user").expect("written");
    let before = picture(&ground.path("scratch"));
    ground.weft(&["up", "e2e", "--nodes", "2", "--store", "scratch"]);
    // Another one there has directories of its own.
    ground.weft(&["up", "second", "--nodes", "2", "--store", "scratch"]);
    fs::write(ground.path("word"), "hello").expect("written");
    ground.weft(&["cp", "-q", "word", "e2e:/"]);
    ground.weft(&["down", "e2e"]);
    ground.weft(&["down", "second"]);
    assert_eq!(picture(&ground.path("scratch")), before);
}

#[test]
fn a_store_in_memory_keeps_to_its_size_and_goes_with_its_node() {
    let ground = Ground::new("memory");
    let report = ground.json(&["doctor", "--json"]);
    let check = report["checks"].as_array().expect("checks").iter().find(|check| check["name"] == "stores in memory");
    if check.expect("checked")["state"] != "ok" {
        return println!("skipped: no stores in memory here: {}", check.expect("checked")["found"]);
    }
    let said = ground.weft(&["up", "e2e", "--nodes", "2", "--store", "memory:64MiB"]);
    assert!(said.contains("stores: memory\n"), "{said}");
    fs::write(ground.path("fits"), vec![7; 9 << 20]).expect("written");
    fs::write(ground.path("does-not"), vec![7; 70 << 20]).expect("written");
    ground.weft(&["cp", "-q", "fits", "e2e:/"]);
    let said = ground.weft_fails(2, &["cp", "-q", "does-not", "e2e:/"]);
    assert!(said.contains("no space left"), "{said}");
    ground.weft(&["cp", "-q", "e2e:/fits", "back"]);
    assert!(contents_hash(&ground.path("back")) == contents_hash(&ground.path("fits")));
    let free = ground.json(&["df", "--json", "e2e"])["nodes"].as_array().expect("nodes").clone();
    assert_eq!(free.len(), 2);
    assert!(free.iter().all(|node| node["total"] == 32 << 20), "{free:?}");
    ground.weft(&["down", "e2e"]);
    assert!(!ground.path("tmp").exists(), "nothing of the stores was in a directory");
}

#[test]
fn a_region_store_is_made_looked_at_and_not_overwritten() {
    let ground = Ground::new("store");
    let place = ground.directory.join("objects").display().to_string();
    assert!(ground.weft_fails(2, &["store", "format", &place]).contains("--size"));
    assert!(ground.weft_fails(2, &["store", "format", &place, "--size", "1MiB"]).contains("at least 16777216"));
    assert!(!Path::new(&place).exists(), "nothing is left of what could not be made");
    ground.weft(&["store", "format", &place, "--size", "64MiB", "--region", "1GiB"]);
    assert!(ground.weft_fails(2, &["store", "format", &place]).contains("a region store is on it"));
    let stat = ground.json(&["store", "stat", &place, "--json"]);
    // Two blocks say which identifiers were given out.
    let free = stat["total"].as_u64().map(|total| total - 8192);
    assert_eq!((stat["region_bytes"].as_u64(), stat["free"].as_u64()), (Some(1 << 30), free));
    assert_eq!(ground.json(&["store", "check", &place, "--json"])["clean"], true);
    let scrubbed = ground.json(&["store", "scrub", &place, "--json"]);
    assert_eq!((scrubbed["clean"].as_bool(), scrubbed["damaged"].as_u64()), (Some(true), Some(0)));
    assert!(ground.weft_fails(2, &["store", "versions", &place, "7"]).contains("no such object"));
    assert!(ground.weft_fails(2, &["store", "name", &place, "7"]).contains("<VERSION>"));
    assert_eq!(ground.json(&["store", "clean", &place, "--keep-younger", "7d", "--json"])["versions"], 0);
    assert!(ground.weft_fails(2, &["store", "clean", &place, "--share", "2"]).contains("share of 2"));
    assert!(ground.weft(&["store", "dump", &place]).contains("regions of 2^30 bytes"));
    assert_eq!(stat["checksums"], "metadata");
    let resize =
        |bytes| fs::File::options().write(true).open(&place).and_then(|file| file.set_len(bytes)).expect("set");
    resize(32 << 20);
    let said = ground.weft_fails(2, &["store", "stat", &place]);
    assert!(said.contains("has 33554432 bytes") && said.contains("make it as large as it was (67108864"), "{said}");
    resize(96 << 20);
    assert_eq!(ground.json(&["store", "stat", &place, "--json"])["unused"].as_u64(), Some(32 << 20));
    assert!(ground.weft(&["store", "stat", &place]).contains("32 MiB larger: `weft store grow`"));
    let grown = ground.json(&["store", "grow", &place, "--json"]);
    let more = grown["total"].as_u64().zip(stat["total"].as_u64()).map(|(now, before)| now - before);
    assert_eq!((more, grown["unused"].as_u64()), (Some(32 << 20), Some(0)));
    assert_eq!(ground.json(&["store", "check", &place, "--json"])["clean"], true);
    ground.weft(&["store", "format", &place, "--overwrite", "--checksums", "all"]);
    assert_eq!(ground.json(&["store", "stat", &place, "--json"])["checksums"], "all");
    assert_eq!(ground.json(&["store", "scrub", &place, "--json"])["blocks_compared"], 2);
    fs::write(&place, vec![0; 64 << 20]).expect("it is overwritten");
    assert!(ground.weft(&["store", "dump", &place, "--scan"]).contains("super block 1: there is no region store"));
    assert!(ground.weft_fails(2, &["store", "check", &place]).contains("weft store format"));
}

#[test]
fn a_benchmark_measures_and_leaves_nothing() {
    let ground = Ground::new("bench");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let words = ["bench", "data", "--json", "--size", "3MiB", "--request", "64KiB,1MiB", "-p", "2", "--runs", "1"];
    let data = ground.json(&[&words[..], &["--way", "auto,tcp"]].concat());
    let rows = data["results"].as_array().expect("results");
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["bytes"].as_u64(), Some(6 << 20), "{row}");
        if row["way"] == "tcp" {
            assert_eq!((row["descriptor_bytes"].as_u64(), row["unix_bytes"].as_u64()), (Some(0), Some(0)), "{row}");
        }
    }
    let meta = ground.json(&["bench", "meta", "--json", "--files", "50", "-p", "2", "--runs", "1", "--shared"]);
    let operations: Vec<&str> =
        meta["results"].as_array().expect("results").iter().filter_map(|row| row["operation"].as_str()).collect();
    assert_eq!(operations, ["create", "stat", "unlink", "ping"]);
    assert_eq!(ground.weft(&["ls", "-a", "e2e:/"]), "");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let ground = Ground::new("pipe");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::write(ground.path("large"), vec![b'x'; 8 << 20]).expect("written");
    ground.weft(&["cp", "-q", "large", "e2e:/"]);
    let mut cat =
        ground.command(&["cat", "e2e:/large"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft");
    let mut some = [0; 10];
    cat.stdout.take().expect("piped").read_exact(&mut some).expect("read");
    let output = cat.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_mount_is_made_used_and_taken_away() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("mount");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    let mount_point = ground.path("mnt");
    fs::create_dir(&mount_point).expect("made");
    ground.weft(&["mount", "e2e", "mnt"]);
    assert!(ground.mount_is_there(&mount_point));
    fs::write(mount_point.join("file"), "through the mount").expect("written");
    fs::create_dir(mount_point.join("directory")).expect("made");
    fs::File::open(mount_point.join("directory")).and_then(|made| made.sync_all()).expect("fsync of a directory");
    let cut = fs::OpenOptions::new().write(true).open(mount_point.join("file")).expect("open");
    cut.set_len(40).and_then(|()| cut.set_len(17)).expect("cut by its handle");
    drop(cut);
    assert_eq!(ground.weft(&["cat", "e2e:/file"]), "through the mount");
    assert_eq!(ground.weft(&["ls", "mnt"]), "directory\nfile\n", "a path below a mount is taken as what it is");
    fs::write(ground.path("word"), "by the command").expect("written");
    ground.weft(&["cp", "-q", "word", "e2e:/directory"]);
    assert_eq!(fs::read_to_string(mount_point.join("directory/word")).expect("read"), "by the command");
    let mounts = ground.status()["mounts"].take();
    assert_eq!(mounts[0]["mount_point"].as_str(), mount_point.to_str());
    assert!(mounts[0]["negotiated"].is_object(), "{mounts}");
    let refused = ground.weft_fails(2, &["mount", "e2e", "mnt"]);
    assert!(refused.contains("mounted there") && refused.contains("remedy:"), "{refused}");

    let held = fs::File::open(mount_point.join("file")).expect("open");
    let refused = ground.weft_fails(2, &["umount", "mnt"]);
    assert!(refused.contains("busy"), "{refused}");
    drop(held);
    ground.weft(&["umount", "mnt"]);
    assert!(!ground.mount_is_there(&mount_point));
    ground.weft_fails(1, &["umount", "mnt"]);

    // Killed: the mount is dead, and is cleared away.
    ground.weft(&["mount", "e2e", "mnt", "-o", "direct"]);
    let pid = ground.status()["mounts"][0]["pid"].as_u64().expect("a pid");
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    wait_until("the end of the mount", || fs::metadata(&mount_point).is_err());
    ground.weft(&["umount", "mnt"]);
    assert!(!ground.mount_is_there(&mount_point));

    // The end of the file system takes its mounts along.
    ground.weft(&["mount", "e2e", "mnt"]);
    ground.weft(&["down"]);
    assert!(!ground.mount_is_there(&mount_point));
}

/// Another user than the one who runs the tests, with a home and a key there.
struct Guest<'a> {
    ground: &'a Ground,
    program: PathBuf,
    uid: u32,
}

impl<'a> Guest<'a> {
    /// `None`: why it cannot be tried here.
    fn new(ground: &'a Ground) -> Result<Self, String> {
        let (program, uid) = (ground.path("weft"), 4242);
        if fs::metadata("/proc/self").expect("/proc").uid() != 0 {
            return Err("only root can run a command as another user".to_owned());
        }
        // Where the tests are built may be closed to others.
        fs::copy(env!("CARGO_BIN_EXE_weft"), &program).expect("copied");
        for directory in ["home", "home/run", "home/.config", "home/.config/weft"] {
            fs::create_dir(ground.path(directory)).expect("made");
            std::os::unix::fs::chown(ground.path(directory), Some(uid), Some(4343)).expect("given");
        }
        Ok(Self { ground, program, uid })
    }

    fn command(&self, words: &[&str]) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.program);
        command.args(words).uid(self.uid).gid(4343).stdin(Stdio::null()).current_dir(self.ground.path("home"));
        command.env_remove("WEFT_KEY").env_remove("XDG_CONFIG_HOME").env("HOME", self.ground.path("home"));
        command.env("XDG_RUNTIME_DIR", self.ground.path("home/run"));
        command
    }

    /// Runs the command; answers what it printed and what it said.
    fn weft_code(&self, code: i32, words: &[&str]) -> (String, String) {
        let output = self.command(words).output().expect("weft starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "weft {}: {said}{}", words.join(" "), self.ground.logs());
        (printed, said)
    }

    fn weft(&self, words: &[&str]) -> String {
        self.weft_code(0, words).0
    }

    fn weft_fails(&self, code: i32, words: &[&str]) -> String {
        self.weft_code(code, words).1
    }

    /// Puts a text into his home.
    fn write(&self, name: &str, text: &str) {
        let path = self.ground.path("home").join(name);
        fs::write(&path, text).expect("written");
        std::os::unix::fs::chown(&path, Some(self.uid), Some(4343)).expect("given");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    }
}

#[test]
fn a_user_works_with_a_key_of_his_own_until_it_is_revoked() {
    let ground = Ground::new("user");
    let guest = match Guest::new(&ground) {
        Ok(guest) => guest,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    fs::write(ground.path("secret"), "of the owner").expect("written");
    fs::set_permissions(ground.path("secret"), fs::Permissions::from_mode(0o600)).expect("set");
    ground.weft(&["cp", "-q", "secret", "e2e:/"]);
    ground.weft(&["mkdir", "-m", "1777", "e2e:/shared"]);
    let refused = guest.weft_fails(1, &["ls", "e2e:/"]);
    assert!(refused.contains("no file system \"e2e\"") && refused.contains("--key"), "{refused}");

    // The file is his, and all that he needs.
    let add = ["user", "add", "ann", "e2e", "--uid", "4242", "--gid", "4343,4444", "--output", "home/ann.key"];
    ground.weft(&add);
    assert!(ground.weft_fails(2, &add).contains("remove it"), "a key is not overwritten");
    let metadata = fs::metadata(ground.path("home/ann.key")).expect("there");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (4242, 4343, 0o600));
    guest.write("word", "by ann");
    guest.weft(&["--key", "ann.key", "cp", "-q", "word", "e2e:/shared/"]);
    assert_eq!(guest.weft(&["--key", "ann.key", "cat", "weft:/shared/word"]), "by ann");
    let stat = ground.json(&["stat", "--json", "e2e:/shared/word"]);
    assert_eq!((stat[0]["uid"].as_u64(), stat[0]["gid"].as_u64()), (Some(4242), Some(4343)));
    for (words, why) in [
        (&["cat", "e2e:/secret"][..], "permission denied"),
        (&["mkdir", "e2e:/mine"], "permission denied"),
        (&["rm", "e2e:/secret"], "permission denied"),
        (&["status"], "only the owner"),
        (&["status", "e2e"], "only the owner"),
        (&["down", "--force", "e2e"], "only the owner"),
        (&["debug", "stuck"], "only the owner"),
        (&["user", "list"], "only the owner"),
        (&["user", "add", "root"], "only the owner"),
        (&["user", "remove", "ann"], "only the owner"),
    ] {
        let said = guest.weft_fails(2, &[&["--key", "ann.key"], words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert_eq!(guest.weft(&["--key", "ann.key", "df"]).lines().count(), 4);

    // Found in its standard place, or by the variable; not when others could have read or changed it.
    let text = fs::read_to_string(ground.path("home/ann.key")).expect("read");
    guest.write(".config/weft/e2e.key", &text);
    assert_eq!(guest.weft(&["ls", "e2e:/shared"]), "word\n");
    assert_eq!(guest.weft(&["ls", "weft:/shared"]), "word\n");
    let listed = guest.command(&["ls", "e2e:/shared"]).env("WEFT_KEY", "ann.key").output().expect("weft starts");
    assert_eq!(listed.stdout, b"word\n");
    guest.write("altered.key", &text.replace("\"uid\": 4242", "\"uid\": 0"));
    assert!(guest.weft_fails(2, &["--key", "altered.key", "ls", "e2e:/"]).contains("refuse the key"));
    guest.write("open.key", &text);
    fs::set_permissions(ground.path("home/open.key"), fs::Permissions::from_mode(0o640)).expect("set");
    assert!(guest.weft_fails(2, &["--key", "open.key", "ls", "e2e:/"]).contains("chmod 600"));

    // A second key of his, and its end; then the end of all of them.
    let printed = ground.weft(&["user", "add", "ann", "--uid", "4242", "--gid", "4343"]);
    guest.write("second.key", &printed);
    let second: Value = serde_json::from_str(&printed).expect("JSON");
    let users = ground.json(&["user", "list", "--json"])["users"].take();
    assert_eq!(users.as_array().map(Vec::len), Some(2), "{users}");
    ground.weft(&["user", "remove", second["id"].as_str().expect("an id")]);
    assert!(guest.weft_fails(2, &["--key", "second.key", "ls", "e2e:/"]).contains("refuse the key"));
    assert_eq!(guest.weft(&["--key", "ann.key", "ls", "e2e:/shared"]), "word\n");
    assert!(ground.weft(&["user", "remove", "ann"]).contains("1 key revoked"));
    assert!(guest.weft_fails(2, &["ls", "e2e:/"]).contains("refuse the key"));
    assert!(ground.weft_fails(1, &["user", "remove", "ann"]).contains("weft user list"));
    assert_eq!(ground.weft(&["cat", "e2e:/secret", "e2e:/shared/word"]), "of the ownerby ann");
    ground.weft(&["down"]);
    assert!(!ground.path("run/weft/e2e").exists());
}

#[test]
fn a_mount_with_a_key_is_that_user_for_whoever_uses_it() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("guest");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    ground.weft(&["mkdir", "-m", "1777", "e2e:/shared"]);
    ground.weft(&["mkdir", "-m", "700", "e2e:/closed"]);
    // Nobody here, and certainly not the user who runs this test.
    ground.weft(&["user", "add", "ann", "--uid", "424242", "--gid", "424243", "-o", "ann.key"]);
    let mount_point = ground.path("mnt");
    fs::create_dir(&mount_point).expect("made");
    let refused = ground.weft_fails(2, &["--key", "ann.key", "mount", "e2e", "mnt", "-o", "allow_other"]);
    assert!(refused.contains("allow_other") && refused.contains("remedy:"), "{refused}");
    ground.weft(&["mount", "e2e", "mnt", "--key", "ann.key"]);
    assert!(ground.mount_is_there(&mount_point));
    assert!(fs::write(mount_point.join("file"), "").is_err(), "only the owner may write there");
    let first = fs::read_dir(mount_point.join("closed")).and_then(|mut entries| entries.next().transpose());
    assert!(first.is_err(), "{first:?}");
    fs::write(mount_point.join("shared/file"), "through the mount").expect("written");
    let stat = ground.json(&["stat", "--json", "e2e:/shared/file"]);
    assert_eq!((stat[0]["uid"].as_u64(), stat[0]["gid"].as_u64()), (Some(424_242), Some(424_243)));
    assert_eq!(ground.weft(&["--key", "ann.key", "ls", "mnt/shared"]), "file\n");
    ground.weft(&["user", "remove", "ann"]);
    // What it knew of names is forgotten with its leases; nothing new is to be had at once.
    assert!(fs::write(mount_point.join("shared/another"), "").is_err(), "the key is revoked");
    ground.weft(&["umount", "mnt"]);
    assert!(!ground.mount_is_there(&mount_point) && !ground.path("run/weft/.user").exists());
}
