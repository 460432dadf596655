//! Mounts for a benchmark: one that writes, one that reads, so that what is read is in no page cache of its own.

use super::column::Column;
use crate::bench::phase::Mounted;
use crate::failure::{Explain, Failure, Outcome};
use crate::verb::bench::{Front, WayName};
use crate::{keys, mounts, processes};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_client::Instance;

/// Both are unmounted, and their directories removed, when this ends.
pub struct MountPair {
    writes: PathBuf,
    reads: PathBuf,
    processes: Vec<processes::Process>,
}

impl MountPair {
    /// Mounts the file system as a column says, in new directories; `number` is the column's.
    pub fn new(instance: &Instance, column: &Column, number: usize) -> Outcome<Self> {
        let base = std::env::temp_dir().join(format!("weft-bench-{}-{number}", std::process::id()));
        let mut pair = Self { writes: base.join("writes"), reads: base.join("reads"), processes: Vec::new() };
        let options = options_of(column);
        // New, and with nobody else in it: others know the name beforehand.
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path).explain(|| path.display());
        make(&base)?;
        for point in [pair.writes.clone(), pair.reads.clone()] {
            make(&point)?;
            run(&["mount", &instance.map.name, &point.to_string_lossy(), "-o", &options])?;
            let (_, mount) = mounts::at(&mounts::absolute(&point).explain(|| point.display())?)
                .ok_or_else(|| Failure::new(format!("{} was not mounted", point.display())))?;
            pair.processes.push(mount.process);
        }
        Ok(pair)
    }

    /// Where a worker finds them.
    pub fn mounted(&self) -> Mounted {
        Mounted { writes: self.writes.clone(), reads: self.reads.clone() }
    }

    /// CPU time that they have used so far.
    pub fn cpu_time(&self) -> Duration {
        self.processes.iter().filter_map(processes::Process::cpu_time).sum()
    }
}

impl Drop for MountPair {
    fn drop(&mut self) {
        for point in [&self.writes, &self.reads] {
            if mounts::is_mounted(point) {
                // It is said by the command itself.
                let _ = run(&["umount", &point.to_string_lossy()]);
            }
            let _ = fs::remove_dir(point);
        }
        let _ = fs::remove_dir(self.writes.parent().unwrap_or(Path::new("/")));
    }
}

/// What `weft mount` is told.
fn options_of(column: &Column) -> String {
    let transport = match column.way().0 {
        WayName::Tcp => "tcp",
        WayName::Ucx => "ucx",
        WayName::Auto | WayName::Unix | WayName::Stream => "sockets",
    };
    let mut options = format!("transport={transport}");
    if column.front == Front::MountDirect {
        options.push_str(",direct");
    }
    if column.transport.is_ucx() {
        options.push_str(&format!(",registration={}", column.transport.word()));
    }
    if let Some(rpc) = column.rpc {
        options.push_str(&format!(",rpc={}", rpc.word()));
    }
    options
}

/// Runs our own program with these words.
fn run(words: &[&str]) -> Outcome<()> {
    let program = processes::own_program()?;
    let mut command = Command::new(program);
    let output = command.args(keys::words()).args(words).stdin(Stdio::null()).output().explain(|| "start weft")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!("weft {}: {said}", words.join(" "))))
}
