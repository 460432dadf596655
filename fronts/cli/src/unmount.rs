//! Taking mounts away, also those whose process was killed.

use crate::failure::{Explain, Failure, Outcome};
use crate::mounts::{self, Mount};
use crate::output::note;
use crate::processes;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_protocol::ClusterMap;

/// How long a mount process may take to write back what it buffers after it was unmounted.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take when the file system ends, too.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// How long one whose mount was taken away by force may take before it is ended.
const FORCED_PATIENCE: Duration = Duration::from_secs(2);
/// How long a busy mount point is tried again, and how often.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Unmounts all mounts of a file system that ends, on this machine. `force`: busy ones vanish from the tree at once.
///
/// Their processes are ended if they do not end by themselves: what they have not written back would be gone with the
/// file system anyway, and they may wait for a node that does not answer.
pub fn all_of(name: &str, force: bool) -> Outcome<()> {
    // Records of another user would name mounts and processes that are none of this one's.
    if !Instance::check_runtime_directory().explain(|| "runtime directory")? {
        return Ok(());
    }
    let map = ClusterMap { name: name.to_owned(), ..ClusterMap::default() };
    let instance = Instance { map, processes: Vec::new(), directory: Instance::directory_of(name), user_key: None };
    let mounts = mounts::of_instance(&instance);
    mounts.iter().try_for_each(|(_, mount)| release(&mount.mount_point, force))?;
    let processes: Vec<_> = mounts.iter().map(|(_, mount)| mount.process).collect();
    let alone = if force { FORCED_PATIENCE } else { LAST_PATIENCE };
    processes::end_all(&processes, alone, FORCED_PATIENCE);
    mounts.iter().try_for_each(|(file, mount)| clear(mount, file))
}

/// Unmounts one mount, waits for its process to end, and removes its file.
pub fn one(mount: &Mount, file: &Path, force: bool) -> Outcome<()> {
    release(&mount.mount_point, force)?;
    end_process(mount, force)?;
    clear(mount, file)
}

/// Removes the record and the log of a mount whose process has ended. The process removes both itself, unless it was
/// killed or something went wrong: then its last words are said here.
fn clear(mount: &Mount, file: &Path) -> Outcome<()> {
    let log = file.with_extension("log");
    let text = fs::read_to_string(&log).unwrap_or_default();
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    if let Some(last) = last {
        let (mount_point, pid) = (mount.mount_point.display(), mount.process.pid);
        note(format_args!("{mount_point}: the last words of its process {pid}: {last}"));
    }
    for path in [file, &log] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::of_io("remove the record of the mount", &error).failed());
            }
            _ => {}
        }
    }
    mounts::clear_directories(file);
    Ok(())
}

/// Has the kernel take the mount away, when it is there.
pub fn release(mount_point: &Path, force: bool) -> Outcome<()> {
    if !mounts::is_mounted(mount_point) {
        return Ok(());
    }
    match unmount_soon(mount_point) {
        Ok(()) => Ok(()),
        Err(_) if !mounts::is_mounted(mount_point) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && force => detach(mount_point),
        Err(error) => {
            let failure = Failure::of_io("unmount", &error).failed();
            Err(match error.kind() {
                io::ErrorKind::ResourceBusy => failure.remedy("end the programs that use it, or add --force"),
                io::ErrorKind::NotFound => failure.remedy("`weft doctor` checks what mounting needs"),
                _ => failure,
            })
        }
    }
}

/// Unmounts; a mount that is busy is tried again for a moment. A program that is just ending, or a process that has
/// just been forked and not yet become another program, holds files that nobody uses any more.
fn unmount_soon(mount_point: &Path) -> io::Result<()> {
    let deadline = Instant::now() + BUSY_PATIENCE;
    loop {
        match weft_fuse::unmount(mount_point) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(BUSY_PAUSE);
            }
            done => return done,
        }
    }
}

/// Takes a busy mount out of the tree; what is open in it stays open until it is closed or its process ends.
fn detach(mount_point: &Path) -> Outcome<()> {
    let mut command = Command::new("fusermount3");
    command.args(["-u", "-z", "--"]).arg(mount_point).stdin(Stdio::null());
    let output = command.output().explain(|| "fusermount3").map_err(Failure::failed)?;
    if output.status.success() || !mounts::is_mounted(mount_point) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("unmount {}: {}", mount_point.display(), said.trim())))
}

/// Waits for the mount's process; one that was told to let go by force and does not end is ended.
fn end_process(mount: &Mount, force: bool) -> Outcome<()> {
    let patience = if force { FORCED_PATIENCE } else { END_PATIENCE };
    if processes::wait_for_end(&[mount.process], patience) {
        return Ok(());
    }
    if force {
        processes::end_all(&[mount.process], Duration::ZERO, FORCED_PATIENCE);
        return Ok(());
    }
    let pid = mount.process.pid;
    Err(Failure::new(format!("{}: unmounted, but its process {pid} still writes back", mount.mount_point.display()))
        .remedy(format!("wait for process {pid} to end; `weft debug stuck` shows what it waits for")))
}
