//! Where scripts run: a file system, and the worker processes that make calls in it.

use crate::call::{Call, WorkerId};
use crate::file_system::{FileSystem, end, wait};
use crate::mode::Mode;
use crate::model::Allowances;
use crate::outcome::Reply;
use crate::stop::{Stop, is_interrupted};
use crate::violation::Wrong;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a call may take in a run without faults. A term of a lease is 10 s; several may pass one after another.
pub const CALL_PATIENCE: Duration = Duration::from_secs(45);
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// A process that makes calls.
pub struct Worker {
    id: WorkerId,
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Worker {
    fn start(id: WorkerId, file_system: &FileSystem) -> Result<Self, Stop> {
        let cannot = |error: std::io::Error| Stop::CannotRun(format!("start worker {id}: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.arg("worker");
        if id.is_native() {
            command.args(["--native", file_system.name()]);
        }
        command.env("XDG_RUNTIME_DIR", file_system.runtime_directory());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/").spawn().map_err(cannot)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| Stop::CannotRun(format!("worker {id} has no output")))?;
        let (sender, replies) = channel();
        // Not joined: it ends with the worker's output, which a worker in a hung call closes once its mount is killed.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { id, child, input, replies })
    }

    fn exchange(&mut self, line: &str, patience: Duration) -> Result<Reply, Stop> {
        let died = |id: WorkerId| Stop::Violated(format!("worker {id} died in `{line}`"));
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(died(self.id));
        }
        let deadline = Instant::now() + patience;
        loop {
            match self.replies.recv_timeout(SIGNAL_POLL) {
                Ok(reply) => {
                    return serde_json::from_str(&reply)
                        .map_err(|error| Stop::CannotRun(format!("reply of worker {}: {error}: {reply}", self.id)));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(if is_interrupted() { Stop::Interrupted } else { died(self.id) });
                }
                Err(RecvTimeoutError::Timeout) if is_interrupted() => return Err(Stop::Interrupted),
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    return Err(Stop::Violated(format!(
                        "`{line}` of worker {} did not return in {patience:?}",
                        self.id
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Makes a call and waits for it.
    pub fn call(&mut self, call: &Call, patience: Duration) -> Result<Reply, Stop> {
        self.exchange(&call.to_string(), patience)
    }
}

/// A file system with its workers.
pub struct Ground {
    pub mode: Mode,
    pub allowances: Allowances,
    weft: PathBuf,
    mounts: Vec<char>,
    pub file_system: FileSystem,
    workers: BTreeMap<WorkerId, Worker>,
    run: u64,
}

impl Ground {
    /// Starts a file system with these mounts.
    pub fn start(weft: &Path, mode: &Mode, mounts: &[char]) -> Result<Self, Stop> {
        let file_system = FileSystem::start(weft, mode, mounts)?;
        let (mode, mounts) = (mode.clone(), mounts.to_vec());
        let allowances = mode.allowances();
        Ok(Self { mode, allowances, weft: weft.to_owned(), mounts, file_system, workers: BTreeMap::new(), run: 0 })
    }

    /// Tells who waits for what, after a call that did not return, and starts anew.
    pub fn restart_after_hang(&mut self) -> Result<(), Stop> {
        println!("{}", self.file_system.describe_waits());
        self.restart()
    }

    /// Ends everything and starts anew.
    fn restart(&mut self) -> Result<(), Stop> {
        self.end_workers();
        self.file_system = FileSystem::start(&self.weft, &self.mode, &self.mounts)?;
        Ok(())
    }

    /// Prepares a run of these workers in a new, empty directory, and removes the previous run's. A file system that
    /// does not answer since the previous run is replaced.
    pub fn begin(&mut self, workers: &[WorkerId]) -> Result<(), Stop> {
        match self.prepare(workers) {
            // No script can be blamed for the state that the one before left.
            Err(Stop::Violated(text)) => {
                println!("before a script: {text}");
                self.restart_after_hang()?;
                self.prepare(workers)
            }
            other => other,
        }
    }

    fn prepare(&mut self, workers: &[WorkerId]) -> Result<(), Stop> {
        for id in workers {
            if !self.workers.contains_key(id) {
                let worker = Worker::start(*id, &self.file_system)?;
                self.workers.insert(*id, worker);
            }
        }
        self.clear()?;
        self.run += 1;
        let next = format!("run{}", self.run);
        let Some(first) = workers.first() else { return Ok(()) };
        let made = self.exchange(*first, &format!("mkdir {next}"), CALL_PATIENCE)?;
        if let Some(errno) = made.outcome.errno() {
            return Err(Stop::Violated(format!("mkdir {next} in the root: {errno}")));
        }
        self.file_system.spread(&next)?;
        for id in workers {
            let directory = format!("{}/{next}", self.root(*id));
            self.exchange(*id, &format!("reset {directory}"), CALL_PATIENCE)?;
        }
        Ok(())
    }

    /// Closes all handles of the latest run, since an open file keeps its space, and removes its directory.
    fn clear(&mut self) -> Result<(), Stop> {
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            let root = self.root(id);
            self.exchange(id, &format!("reset {root}"), CALL_PATIENCE)?;
        }
        let by_mount = self.workers.keys().copied().find(|id| !id.is_native());
        if let Some(id) = by_mount.filter(|_| self.run > 0) {
            self.exchange(id, &format!("clear {}/run{}", self.root(id), self.run), CALL_PATIENCE)?;
        }
        Ok(())
    }

    /// Ends a run: removes its files, and returns what is wrong when their space is not free then.
    pub fn end(&mut self) -> Result<Option<Wrong>, Stop> {
        self.clear()?;
        let in_use = self.file_system.space_in_use()?;
        if in_use.is_some() {
            self.restart()?;
        }
        Ok(in_use.map(Wrong::space_in_use))
    }

    /// What a worker's paths begin with.
    fn root(&self, id: WorkerId) -> String {
        if id.is_native() { String::new() } else { self.file_system.root(id.mount).display().to_string() }
    }

    fn exchange(&mut self, id: WorkerId, line: &str, patience: Duration) -> Result<Reply, Stop> {
        let worker = self.workers.get_mut(&id).ok_or_else(|| Stop::CannotRun(format!("worker {id} is not there")))?;
        worker.exchange(line, patience)
    }

    /// Makes a call and waits for it.
    pub fn call(&mut self, id: WorkerId, call: &Call) -> Result<Reply, Stop> {
        self.exchange(id, &call.to_string(), CALL_PATIENCE)
    }

    /// Takes workers out, for threads that use them at the same time.
    pub fn take_workers(&mut self, ids: impl Iterator<Item = WorkerId>) -> BTreeMap<WorkerId, Worker> {
        ids.filter_map(|id| self.workers.remove_entry(&id)).collect()
    }

    /// Takes workers back.
    pub fn give_back_workers(&mut self, workers: BTreeMap<WorkerId, Worker>) {
        self.workers.extend(workers);
    }

    /// Kills all workers, and mounts that would hold them.
    fn end_workers(&mut self) {
        let mut ended: Vec<Worker> = std::mem::take(&mut self.workers).into_values().collect();
        for worker in &mut ended {
            worker.input = None;
            // One in a call of a hung mount dies when that does.
            let _ = worker.child.kill();
        }
        let is_stuck = |worker: &mut Worker| wait(&mut worker.child, Duration::from_secs(1)).is_none();
        if ended.iter_mut().any(is_stuck) {
            self.mounts.iter().for_each(|letter| self.file_system.signal_mount(*letter, Signal::KILL));
        }
        ended.iter_mut().for_each(|worker| end(&mut worker.child));
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.end_workers();
    }
}
