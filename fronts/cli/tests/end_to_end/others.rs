//! Other users of the machine who may write where stores and runtime directories stand.

use super::Ground;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Another user than root, who runs the tests.
const STRANGER: u32 = 65534;

/// A directory in which anybody may make and replace entries, and one with objects that are not of this run.
struct Shared<'a> {
    ground: &'a Ground,
    /// What `--store` names.
    store: PathBuf,
    /// Of another file system: nothing in it may be removed.
    precious: PathBuf,
}

impl<'a> Shared<'a> {
    /// `None`: this test cannot be run here.
    fn new(ground: &'a Ground) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give a directory to another user");
            return None;
        }
        let shared = Self { ground, store: ground.path("shared"), precious: ground.path("precious") };
        fs::create_dir(&shared.store).expect("made");
        fs::set_permissions(&shared.store, fs::Permissions::from_mode(0o777)).expect("set");
        fs::create_dir_all(shared.precious.join("objects/00")).expect("made");
        fs::write(shared.precious.join("objects/00/file"), "precious").expect("written");
        fs::write(shared.precious.join("regions"), "precious").expect("written");
        Some(shared)
    }

    /// The directory of this user in it.
    fn of_user(&self) -> PathBuf {
        self.store.join("weft-0")
    }

    fn up(&self, kind: &str) -> [String; 6] {
        let store = format!("{kind}{}:64MiB", self.store.display());
        ["up", "e2e", "--nodes", "1", "--store", &store].map(str::to_owned)
    }

    fn require_untouched(&self) {
        assert_eq!(fs::read_to_string(self.precious.join("objects/00/file")).expect("there"), "precious");
        assert_eq!(fs::read_to_string(self.precious.join("regions")).expect("there"), "precious");
    }

    /// A command is refused, and names the path, the owner and what to do.
    fn require_refusal(&self, words: &[String], path: &Path) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = self.ground.weft_fails(2, &words);
        let names_all = said.contains(&path.display().to_string()) && said.contains("uid 65534");
        assert!(names_all && said.contains("remedy:"), "{words:?}: {said}");
        self.require_untouched();
    }
}

/// Gives a path, and not what it points to, to another user.
fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER)).expect("given");
}

fn link(target: &Path, at: &Path) {
    symlink(target, at).expect("linked");
    give(at);
}

#[test]
fn up_refuses_store_directories_that_another_user_made() {
    let ground = Ground::new("foreign-up");
    let Some(shared) = Shared::new(&ground) else { return };
    for kind in ["", "file:"] {
        fs::create_dir(shared.of_user()).expect("made");
        give(&shared.of_user());
        shared.require_refusal(&shared.up(kind), &shared.of_user());
        fs::remove_dir(shared.of_user()).expect("nothing is in it");

        link(&shared.precious, &shared.of_user());
        shared.require_refusal(&shared.up(kind), &shared.of_user());
        fs::remove_file(shared.of_user()).expect("removed");

        fs::create_dir_all(shared.of_user().join("e2e")).expect("made");
        fs::set_permissions(shared.of_user(), fs::Permissions::from_mode(0o755)).expect("set");
        link(&shared.precious, &shared.of_user().join("e2e/store"));
        shared.require_refusal(&shared.up(kind), &shared.of_user().join("e2e/store"));
        fs::remove_dir_all(shared.of_user()).expect("removed");
        assert!(!ground.path("run/weft/e2e").exists());
    }
}

#[test]
fn down_removes_nothing_behind_a_directory_that_was_swapped() {
    let ground = Ground::new("foreign-down");
    let Some(shared) = Shared::new(&ground) else { return };
    for kind in ["", "file:"] {
        let up = shared.up(kind);
        ground.weft(&up.each_ref().map(String::as_str));
        // Whoever may write `shared` may rename what is in it.
        let away = shared.store.join("away");
        fs::rename(shared.of_user(), &away).expect("renamed");
        let theirs = shared.of_user().join("e2e/store");
        fs::create_dir_all(&theirs).expect("made");
        link(&shared.precious, &theirs.join("n00"));
        give(&shared.of_user());
        shared.require_refusal(&["down".to_owned(), "e2e".to_owned()], &shared.of_user());
        assert!(ground.path("run/weft/e2e").exists(), "the record stays, so that `down` can be repeated");

        fs::remove_dir_all(shared.of_user()).expect("removed");
        link(&shared.precious, &shared.of_user());
        shared.require_refusal(&["down", "--force", "e2e"].map(str::to_owned), &shared.of_user());

        fs::remove_file(shared.of_user()).expect("removed");
        fs::rename(&away, shared.of_user()).expect("renamed");
        ground.weft(&["down", "--force", "e2e"]);
        assert_eq!(fs::read_dir(&shared.store).expect("listed").count(), 0, "what up made is removed");
        shared.require_untouched();
    }
}

#[test]
fn a_node_follows_no_link_that_appears_after_up_has_looked() {
    let ground = Ground::new("foreign-node");
    let Some(shared) = Shared::new(&ground) else { return };
    let runtime = ground.path("run");
    fs::create_dir(&runtime).expect("made");
    for (place, name) in [("directory", "n00"), ("file", "n00/regions")] {
        fs::create_dir_all(shared.of_user().join("e2e/store")).expect("made");
        let empty = ground.path("empty");
        fs::create_dir(&empty).expect("made");
        link(&empty, &shared.of_user().join("e2e/store/n00"));
        let path = shared.of_user().join("e2e/store").join(name);
        let config = serde_json::json!({
            "name": "e2e", "node": 0, "identity": 1, "node_key": "00".repeat(32), "owner_uid": 0, "owner_gid": 0,
            "store": {"place": {place: path}, "below": shared.store, "size": 64 << 20},
            "runtime_directory": runtime, "listen": "127.0.0.1:0",
        });
        fs::write(ground.path("config"), config.to_string()).expect("written");
        let mut command = ground.command(&["serve", "--name", "e2e"]);
        command.stdin(fs::File::open(ground.path("config")).expect("open"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft starts");
        // The line of a node that listens, or the end of one that refuses.
        let line = child.stdout.as_mut().expect("piped").read(&mut [0; 1]).expect("read");
        child.kill().expect("killed, if it has not ended");
        let output = child.wait_with_output().expect("ended");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(line == 0 && said.contains("n00: a symbolic link of uid 65534"), "{place}: {said}");
        assert_eq!(fs::read_dir(&empty).expect("listed").count(), 0, "{place}");
        fs::remove_dir(&empty).expect("removed");
        fs::remove_dir_all(shared.of_user()).expect("removed");
    }
}

#[test]
fn a_host_obeys_no_records_in_a_runtime_directory_of_another_user() {
    let ground = Ground::new("foreign-host");
    let Some(shared) = Shared::new(&ground) else { return };
    let theirs = ground.path("run/weft/e2e");
    fs::create_dir_all(&theirs).expect("made");
    link(&shared.precious.join("objects/00"), &theirs.join("mounts"));
    chown(ground.path("run/weft"), Some(STRANGER), None).expect("given");
    let stop = r#"{"Stop":{"name":"e2e","processes":[],"alone_ms":0,"asked_ms":0,"runtime_files":"Remove"}}"#;
    for order in [stop, r#"{"Unmount":{"name":"e2e","force":true}}"#] {
        fs::write(ground.path("order"), order).expect("written");
        let mut command = ground.command(&["host"]);
        command.stdin(fs::File::open(ground.path("order")).expect("open"));
        let output = command.output().expect("weft starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("uid 65534") && said.contains("Failed"), "{order}: {said}");
        shared.require_untouched();
    }
    fs::remove_dir_all(ground.path("run/weft")).expect("removed");
}

#[test]
fn a_copy_follows_no_link_at_the_name_of_its_part() {
    let ground = Ground::new("foreign-copy");
    let Some(shared) = Shared::new(&ground) else { return };
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::write(ground.path("word"), "hello").expect("written");
    ground.weft(&["cp", "-q", "word", "e2e:/word"]);
    link(&shared.precious.join("regions"), &shared.store.join(".word.weft-part"));
    ground.weft(&["cp", "-q", "e2e:/word", "shared/word"]);
    assert_eq!(fs::read_to_string(shared.store.join("word")).expect("read"), "hello");
    shared.require_untouched();
}
