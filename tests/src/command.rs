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

/// A file system that `weft up` has started, for one test. It ends with this.
pub struct Up {
    directory: PathBuf,
    name: String,
}

impl Up {
    /// One of two nodes. `test` tells those of different tests apart.
    pub fn start(name: &str, test: &str) -> Self {
        Self::of_nodes(name, test, 2, "")
    }

    /// One of so many nodes, whose stores have the size that `size` says (`:1GiB`; empty: as the disk has room).
    pub fn of_nodes(name: &str, test: &str, nodes: u32, size: &str) -> Self {
        Self::with(name, test, (nodes, size), &[])
    }

    /// One of so many nodes that lies over a directory, `below` in its own.
    pub fn over_a_directory(name: &str, test: &str, nodes: u32) -> Self {
        Self::with(name, test, (nodes, ""), &["--over", "below"])
    }

    fn with(name: &str, test: &str, (nodes, size): (u32, &str), words: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("{name}-{test}-{}", std::process::id()));
        for inner in ["store", "below"] {
            std::fs::create_dir_all(directory.join(inner)).expect("made");
        }
        let started = Self { directory, name: name.to_owned() };
        let store = format!("{}{size}", started.directory.join("store").display());
        let nodes = nodes.to_string();
        let mut command = started.command(&binaries().join("weft"));
        command.args(["up", name, "--nodes", &nodes, "--store", &store]).args(words);
        run(command.current_dir(&started.directory));
        started
    }

    /// A folder of this file system's own on this machine.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs `weft` with these words, which has to succeed. Returns what it answers.
    pub fn weft(&self, words: &[&str]) -> String {
        let told = run(self.command(&binaries().join("weft")).args(words));
        String::from_utf8_lossy(&told.stdout).into_owned()
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

/// The environment of a program whose file data go by UCX over TCP on this machine; says so if there is no UCX.
pub fn by_ucx() -> Option<[(&'static str, &'static str); 3]> {
    match weft_ucx::Library::get() {
        Ok(_) => Some([("WEFT_TRANSPORT", "ucx"), ("WEFT_UCX_TLS", "tcp"), ("WEFT_UCX_NET_DEVICES", "lo")]),
        Err(error) => {
            eprintln!("skip: file data by UCX: {error}");
            None
        }
    }
}
