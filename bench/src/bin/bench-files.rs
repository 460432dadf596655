//! `bench-files`: the workloads of `weft bench`, with system calls, in any directory: plain tmpfs or a mount.
//!
//! Sketch: one `pwrite`, `pread`, `open` + `close`, `lstat` or `unlink` per request, nothing else in the loop but
//! stamps.

use clap::Parser;
use rustix::fs::{Advice, Mode, OFlags};
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use weft_bench::crew::{self, Measured};
use weft_bench::{Explain, Outcome, conclude, quantity, stamps};

/// Contents of pages beside their stamps.
const FILLING: u8 = 0x5a;

/// Measure a directory with system calls; prints JSON
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Each process writes a file, reads it, and reads it again
    Data(Data),
    /// Each process makes, looks up and removes empty files
    Meta(Meta),
}

#[derive(clap::Args)]
struct Common {
    #[arg(long)]
    directory: PathBuf,
    #[arg(short, long, default_value_t = 1)]
    processes: usize,
    /// Number of this worker; none: the starting process
    #[arg(long, hide = true)]
    worker: Option<usize>,
}

#[derive(clap::Args)]
struct Data {
    #[command(flatten)]
    common: Common,
    /// Bytes of the file of each process
    #[arg(long, value_parser = quantity::bytes, default_value = "256MiB")]
    size: u64,
    /// Bytes of a request
    #[arg(long, value_parser = quantity::bytes, default_value = "1MiB")]
    request: u64,
    /// Open with O_DIRECT
    #[arg(long)]
    direct: bool,
    /// All processes in one file, with requests in turns
    #[arg(long)]
    one_file: bool,
}

#[derive(clap::Args)]
struct Meta {
    #[command(flatten)]
    common: Common,
    /// Files of each process
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// All processes in one directory
    #[arg(long)]
    shared: bool,
    /// Milliseconds between creation and look-ups, so that caches of attributes expire
    #[arg(long, default_value_t = 0)]
    settle_ms: u64,
}

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    #[serde(flatten)]
    measured: Measured,
}

fn main() -> ExitCode {
    let outcome = match Args::parse().what {
        What::Data(data) => match data.common.worker {
            Some(index) => data.work(index),
            None => report(data.common.processes, &["write", "read", "reread"]),
        },
        What::Meta(meta) => match meta.common.worker {
            Some(index) => meta.work(index),
            None => meta.lead(),
        },
    };
    conclude("bench-files", outcome)
}

fn report(processes: usize, operations: &[&'static str]) -> Outcome {
    let measured = crew::lead(processes, operations.len())?;
    let rows = operations.iter().zip(measured).map(|(operation, measured)| Row { operation, measured });
    println!("{}", serde_json::to_string(&rows.collect::<Vec<_>>()).explain("print")?);
    Ok(())
}

fn open(path: &Path, flags: OFlags) -> Outcome<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)).explain(path.display())
}

impl Data {
    fn work(&self, index: usize) -> Outcome {
        let name = if self.one_file { "bench-data".to_owned() } else { format!("bench-data-{index}") };
        let path = self.common.directory.join(name);
        let direct = if self.direct { OFlags::DIRECT } else { OFlags::empty() };
        let seed = (index as u64) << 40 | u64::from(std::process::id());
        // One page more, so that the request can begin at a page: O_DIRECT wants that of some file systems.
        let page = stamps::PAGE_BYTES as usize;
        let length = usize::try_from(self.request.min(self.size)).explain("request")?;
        let mut memory = vec![FILLING; length + page];
        let begin = memory.as_ptr().align_offset(page);
        let buffer = &mut memory[begin..begin + length];

        let mut written = Some(open(&path, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | direct)?);
        crew::phase(|| {
            let file = written.take().ok_or("written twice")?;
            self.each(index, buffer, |piece, offset| {
                stamps::put(seed, piece, offset);
                write_all(&file, piece, offset)
            })?;
            // Closing is part of it: what was buffered goes out. What fails there shows when the file is read.
            drop(file);
            Ok(self.size)
        })?;
        for cold in [true, false] {
            let file = open(&path, OFlags::RDONLY | direct)?;
            if cold {
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).explain("drop the page cache")?;
            }
            crew::phase(|| {
                self.each(index, buffer, |piece, offset| {
                    read_all(&file, piece, offset)?;
                    match stamps::first_wrong(seed, piece, offset) {
                        Some(wrong) => Err(format!("{}: wrong contents at offset {wrong}", path.display())),
                        None => Ok(()),
                    }
                })?;
                Ok(self.size)
            })?;
        }
        match fs::remove_file(&path) {
            // Of one file, by whoever comes first.
            Err(error) if self.one_file && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.explain(path.display()),
        }
    }

    /// One request after the other, to the end of the file.
    fn each(&self, index: usize, buffer: &mut [u8], mut request: impl FnMut(&mut [u8], u64) -> Outcome) -> Outcome {
        let (turns, turn) = if self.one_file { (self.common.processes as u64, index as u64) } else { (1, 0) };
        let (mut done, mut number) = (0, 0);
        while done < self.size {
            let length = usize::try_from(self.size - done).unwrap_or(usize::MAX).min(buffer.len());
            request(&mut buffer[..length], (number * turns + turn) * self.request)?;
            done += length as u64;
            number += 1;
        }
        Ok(())
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Outcome {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, offset).explain("write")?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

fn read_all(file: &OwnedFd, mut bytes: &mut [u8], mut offset: u64) -> Outcome {
    while !bytes.is_empty() {
        match rustix::io::pread(file, &mut *bytes, offset).explain("read")? {
            0 => return Err(format!("the file ends at offset {offset}, in a request")),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

impl Meta {
    fn directory(&self, index: usize) -> PathBuf {
        let number = if self.shared { "shared".to_owned() } else { index.to_string() };
        self.common.directory.join(format!("bench-meta-{number}"))
    }

    fn lead(&self) -> Outcome {
        let count = if self.shared { 1 } else { self.common.processes };
        let directories: Vec<PathBuf> = (0..count).map(|index| self.directory(index)).collect();
        directories.iter().try_for_each(|directory| fs::create_dir(directory).explain(directory.display()))?;
        let outcome = report(self.common.processes, &["create", "stat", "unlink"]);
        directories.iter().try_for_each(|directory| fs::remove_dir_all(directory).explain(directory.display()))?;
        outcome
    }

    fn paths(&self, index: usize) -> Vec<PathBuf> {
        let directory = self.directory(index);
        (0..self.files).map(|file| directory.join(format!("{index}-{file:08}"))).collect()
    }

    fn work(&self, index: usize) -> Outcome {
        let own = self.paths(index);
        // Another process's files, as `weft bench meta` does.
        let others = self.paths((index + 1) % self.common.processes);
        crew::phase(|| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            own.iter().try_for_each(|path| open(path, flags).map(drop)).map(|()| self.files)
        })?;
        std::thread::sleep(Duration::from_millis(self.settle_ms));
        crew::phase(|| {
            others.iter().try_for_each(|path| rustix::fs::lstat(path).map(drop).explain(path.display()))?;
            Ok(self.files)
        })?;
        crew::phase(|| {
            own.iter().try_for_each(|path| rustix::fs::unlink(path).explain(path.display()))?;
            Ok(self.files)
        })
    }
}
