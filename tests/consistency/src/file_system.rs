//! The file system under test: nodes and mounts in a private directory, started and ended by their process ids.

use crate::mode::{Mode, Store, WeftMode};
use crate::stop::{Stop, is_interrupted};
use rustix::fs::statvfs;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::instance::process_start_time;

/// How long a command of `weft`, or a mount, may take.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);
/// How long a mount process may take to end after its mount is gone, before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long the space of removed files may be in use after their last close: what another mount may still open keeps it
/// for a lease term.
const SPACE_PATIENCE: Duration = Duration::from_secs(25);
/// The same so long after a mount was killed: what it has made and told nobody of is collected once its session has
/// ended everywhere. While that is not so, the storage server asks again after one, two and four lease terms.
const SPACE_PATIENCE_AFTER_KILL: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// Running nodes and mounts. Dropping it ends them and removes everything.
pub struct FileSystem {
    mode: Mode,
    weft: PathBuf,
    directory: PathBuf,
    name: String,
    mounts: BTreeMap<char, Child>,
    /// Nodes, each with its start time: a number alone may be another process by now.
    nodes: Vec<(u32, u64)>,
    /// Of a store with a limit.
    used_at_start: Option<u64>,
    /// When a killed mount was last replaced.
    replaced: Option<Instant>,
}

impl FileSystem {
    /// Starts nodes and mounts.
    pub fn start(weft: &Path, mode: &Mode, mounts: &[char]) -> Result<Self, Stop> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cc-{}-{number}", std::process::id());
        let directory = mode.above.join(format!("weft-consistency-{}-{number}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| cannot(format_args!("create {}", directory.display()), error))?;
        let mut started = Self {
            mode: mode.clone(),
            weft: weft.to_owned(),
            directory,
            name,
            mounts: BTreeMap::new(),
            nodes: Vec::new(),
            used_at_start: None,
            replaced: None,
        };
        if let Some(weft_mode) = mode.weft.clone() {
            started.up(&weft_mode)?;
            for letter in mounts {
                started.mount(*letter)?;
            }
            started.used_at_start = started.used()?;
        }
        Ok(started)
    }

    /// Its name, for native clients.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The private directory that its sockets are in: XDG_RUNTIME_DIR of whoever connects.
    pub fn runtime_directory(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// The directory that shows the file system through a mount.
    pub fn root(&self, letter: char) -> PathBuf {
        match self.mode.weft {
            Some(_) => self.directory.join(letter.to_string()),
            None => self.directory.clone(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.weft);
        command.args(words).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.env("XDG_RUNTIME_DIR", self.runtime_directory()).env("TMPDIR", self.directory.join("tmp"));
        command
    }

    fn run(&self, words: &[&str]) -> Result<(), Stop> {
        let text = format!("weft {}", words.join(" "));
        let mut child = self.command(words).spawn().map_err(|error| cannot(&text, error))?;
        let status = wait(&mut child, COMMAND_PATIENCE);
        let said = child.stderr.take().map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default();
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(cannot(&text, format!("{status}: {said}"))),
            None => {
                end(&mut child);
                Err(cannot(&text, format!("it did not end in {COMMAND_PATIENCE:?}: {said}")))
            }
        }
    }

    fn up(&mut self, mode: &WeftMode) -> Result<(), Stop> {
        for name in ["run", "tmp"] {
            fs::create_dir(self.directory.join(name)).map_err(|error| cannot("create a directory", error))?;
        }
        let store = match mode.store {
            Store::Directory => self.directory.join("tmp").display().to_string(),
            Store::Limited(size) => format!("{}:{size}", self.directory.join("tmp").display()),
            Store::Memory => "memory:256MiB".to_owned(),
        };
        let (name, nodes) = (self.name.clone(), mode.nodes.to_string());
        let mut words = vec!["up", &name, "--nodes", &nodes, "--store", &store];
        words.extend(mode.identity_per_node.then_some("--identity-per-node"));
        words.extend(["--shards-per-node", "3"].iter().filter(|_| mode.spread));
        self.run(&words)?;
        self.nodes = self.read_nodes();
        if self.nodes.len() != usize::from(mode.nodes) {
            return Err(cannot("weft up", format!("{} processes of {nodes} nodes are recorded", self.nodes.len())));
        }
        Ok(())
    }

    /// Spreads the names of a directory, if the mode says so.
    pub fn spread(&self, directory: &str) -> Result<(), Stop> {
        if self.mode.weft.as_ref().is_none_or(|mode| !mode.spread) {
            return Ok(());
        }
        self.run(&["mkdir", "-p", "--placement", "hash", &format!("{}:/{directory}", self.name)])
    }

    fn read_nodes(&self) -> Vec<(u32, u64)> {
        let path = self.runtime_directory().join("weft").join(&self.name).join("instance.json");
        let text = fs::read_to_string(path).unwrap_or_default();
        let instance: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let processes = instance["processes"].as_array().cloned().unwrap_or_default();
        let process = |process: &serde_json::Value| {
            let pid = process["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())?;
            Some((pid, process["start_time"].as_u64()?))
        };
        processes.iter().filter_map(process).collect()
    }

    /// Mounts at the directory of this letter, and waits until programs can use it.
    fn mount(&mut self, letter: char) -> Result<(), Stop> {
        let Some(mode) = self.mode.weft.clone() else { return Ok(()) };
        let point = self.root(letter);
        fs::create_dir_all(&point).map_err(|error| cannot("create a mount point", error))?;
        let log = self.directory.join(format!("mount-{letter}.log"));
        // What the guard of a mount that was killed has said stays.
        let file = fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(|error| cannot("create a log", error))?;
        let said_before = file.metadata().map_err(|error| cannot("look at a log", error))?.len();
        let shown = point.display().to_string();
        let mut command = self.command(&["mount", &self.name, &shown, "--foreground", "-o", mode.options]);
        let child = command.stderr(file).spawn().map_err(|error| cannot("start weft mount", error))?;
        let child = self.mounts.entry(letter).insert_entry(child).into_mut();
        let deadline = Instant::now() + COMMAND_PATIENCE;
        loop {
            let said = fs::read(&log).map_err(|error| cannot("read a log", error))?;
            let said = String::from_utf8_lossy(&said[said_before as usize..]);
            if said.contains("is mounted at") {
                return Ok(());
            }
            if let Ok(Some(status)) = child.try_wait() {
                return Err(cannot("weft mount", format!("{status}: {said}")));
            }
            if Instant::now() > deadline || is_interrupted() {
                return Err(if is_interrupted() { Stop::Interrupted } else { cannot("weft mount", said) });
            }
            thread::sleep(POLL);
        }
    }

    /// Returns the bytes in use in a store with a limit, by one of its mounts.
    fn used(&self) -> Result<Option<u64>, Stop> {
        let is_limited = self.mode.weft.as_ref().is_some_and(|mode| matches!(mode.store, Store::Limited(_)));
        let Some(letter) = self.mounts.keys().next().filter(|_| is_limited) else { return Ok(None) };
        let space = statvfs(self.root(*letter)).map_err(|error| cannot("ask for the free space", error))?;
        Ok(Some((space.f_blocks - space.f_bfree) * space.f_frsize))
    }

    /// Waits until a store with a limit has as much free as when it was started: its reserve is in use all the time.
    /// Returns what is in use when it does not come to that in time.
    pub fn space_in_use(&self) -> Result<Option<String>, Stop> {
        let is_after_kill = self.replaced.is_some_and(|at| at.elapsed() < SPACE_PATIENCE_AFTER_KILL);
        let patience = if is_after_kill { SPACE_PATIENCE_AFTER_KILL } else { SPACE_PATIENCE };
        let deadline = Instant::now() + patience;
        while let Some(used) = self.used()?.filter(|used| Some(*used) != self.used_at_start) {
            if is_interrupted() {
                return Err(Stop::Interrupted);
            }
            if Instant::now() > deadline {
                return Ok(Some(format!("{used} bytes are in use {patience:?} after all files were removed")));
            }
            thread::sleep(POLL);
        }
        Ok(None)
    }

    /// Sends a signal to the process of a mount.
    pub fn signal_mount(&self, letter: char, signal: Signal) {
        if let Some(pid) = self.mounts.get(&letter).and_then(pid_of) {
            // One that has ended is waited for at the end.
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends a signal to a node.
    pub fn signal_node(&self, index: usize, signal: Signal) {
        if let Some((pid, start_time)) = self.nodes.get(index) {
            signal_process(*pid, *start_time, signal);
        }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Mounts again what was killed. Its workers must have been ended: their handles are dead.
    pub fn mount_again(&mut self, letter: char) -> Result<(), Stop> {
        self.unmount(letter);
        self.replaced = Some(Instant::now());
        self.mount(letter)
    }

    /// Takes a mount away, also one whose process is dead, stopped, or hangs.
    pub fn unmount(&mut self, letter: char) {
        let Some(mut child) = self.mounts.remove(&letter) else { return };
        if let Some(pid) = pid_of(&child) {
            let _ = kill_process(pid, Signal::CONT);
        }
        detach(&self.root(letter));
        if wait(&mut child, END_PATIENCE).is_none() {
            end(&mut child);
        }
    }

    /// Describes who waits for what, after a call that did not return: the requests at the nodes, and in which system
    /// call each thread of the mounts and nodes is.
    pub fn describe_waits(&self) -> String {
        let asked = self.command(&["debug", "stuck", &self.name]).stdout(Stdio::piped()).spawn();
        let mut text = match asked {
            Ok(mut child) => {
                let ended = wait(&mut child, END_PATIENCE).is_some();
                if !ended {
                    end(&mut child);
                }
                child.stdout.take().map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default()
            }
            Err(error) => format!("weft debug stuck: {error}\n"),
        };
        let mounts = self.mounts.iter().map(|(letter, child)| (format!("mount {letter}"), child.id()));
        let nodes = self.nodes.iter().enumerate().map(|(index, (pid, _))| (format!("node {index}"), *pid));
        for (what, pid) in mounts.chain(nodes) {
            text.push_str(&format!("{what}:\n{}", threads(pid)));
        }
        text + &self.logs()
    }

    /// Returns what the mounts and nodes have logged.
    pub fn logs(&self) -> String {
        let runtime = self.runtime_directory().join("weft").join(&self.name);
        let entries = [&self.directory, &runtime].into_iter().filter_map(|directory| fs::read_dir(directory).ok());
        let paths = entries.flatten().flatten().map(|entry| entry.path());
        let logs = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let text = |path: PathBuf| fs::read_to_string(&path).map(|text| format!("{}:\n{text}", path.display()));
        logs.filter_map(|path| text(path).ok()).collect()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        for (pid, start_time) in &self.nodes {
            signal_process(*pid, *start_time, Signal::CONT);
        }
        for letter in self.mounts.keys().copied().collect::<Vec<_>>() {
            self.unmount(letter);
        }
        if self.mode.weft.is_some() {
            if let Err(stop) = self.run(&["down", "--force", &self.name]) {
                eprintln!("{stop}");
            }
            for (pid, start_time) in &self.nodes {
                signal_process(*pid, *start_time, Signal::KILL);
            }
        }
        // Never through a mount: that would remove what others see.
        let is_mounted = |mounts: String| mounts.contains(&format!("{}/", self.directory.display()));
        match fs::read_to_string("/proc/self/mountinfo").map(is_mounted) {
            Ok(false) => {
                if let Err(error) = fs::remove_dir_all(&self.directory) {
                    eprintln!("remove {}: {error}", self.directory.display());
                }
            }
            _ => eprintln!("{} is left: something is still mounted in it", self.directory.display()),
        }
    }
}

fn cannot(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Stop {
    Stop::CannotRun(format!("{what}: {why}"))
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn signal_process(pid: u32, start_time: u64, signal: Signal) {
    if process_start_time(pid) == Some(start_time)
        && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, signal);
    }
}

/// A line for each thread of a process: its name, the function of the kernel that it waits in, and its system call.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default().trim().to_owned();
    let line = |task: &Path| format!("    {} {} {}\n", read(task, "comm"), read(task, "wchan"), read(task, "syscall"));
    tasks.map(|task| line(&task.path())).collect()
}

fn detach(point: &Path) {
    if unmount(point, UnmountFlags::DETACH).is_err() {
        // Without CAP_SYS_ADMIN it takes the set-user-id program.
        let mut command = Command::new("fusermount3");
        let _ = command.args(["-u", "-z"]).arg(point).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Waits for a process to end.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(POLL);
    }
}

/// Kills a process of ours. One that the kernel does not let go is left behind.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    if wait(child, END_PATIENCE).is_none() {
        eprintln!("process {} does not end after SIGKILL", child.id());
    }
}
