//! File systems and programs as a user starts them: for tests of what stands outside this process.
//!
//! They need what `cargo build --workspace` has built: `weft`, and the libraries.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where cargo puts what it builds: `target/debug`.
pub fn binaries() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its program");
    own.ancestors().nth(2).expect("it is in the folder deps").to_owned()
}

/// Runs a program that has to succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Whether a program is installed; says so if not.
pub fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skip: {program} is not installed");
    }
    is_there
}

/// A file system of two nodes that `weft up` has started, for one test. It ends with this.
pub struct Up {
    directory: PathBuf,
    name: String,
}

impl Up {
    /// `test` tells those of different tests apart.
    pub fn start(name: &str, test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("{name}-{test}-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("store")).expect("made");
        let started = Self { directory, name: name.to_owned() };
        let store = started.directory.join("store");
        run(started.command(&binaries().join("weft")).args(["up", name, "--nodes", "2", "--store"]).arg(store));
        started
    }

    /// A command that finds the file system.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("XDG_RUNTIME_DIR", &self.directory).env_remove("WEFT_KEY");
        command
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let ended = self.command(&binaries().join("weft")).args(["down", "--force", &self.name]).output();
        let removed = std::fs::remove_dir_all(&self.directory);
        if !std::thread::panicking() {
            assert!(ended.expect("started").status.success() && removed.is_ok());
        }
    }
}
