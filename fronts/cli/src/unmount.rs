//! Taking mounts away, also those whose process was killed.

use crate::failure::{Explain, Failure, Outcome};
use crate::mounts::{self, Mount};
use crate::output::note;
use crate::processes::{self, State};
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use weft_client::Instance;
use weft_fuse::Connection;
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
    let instance =
        Instance { map, processes: Vec::new(), over: None, directory: Instance::directory_of(name), user_key: None };
    let mounts = mounts::of_instance(&instance);
    let released = mounts.iter().map(|(_, mount)| release(mount, force)).collect::<Outcome<Vec<_>>>()?;
    let processes: Vec<_> = mounts.iter().map(|(_, mount)| mount.process).collect();
    let alone = if force { FORCED_PATIENCE } else { LAST_PATIENCE };
    processes::end_all(&processes, alone, FORCED_PATIENCE);
    for ((file, mount), connection) in mounts.iter().zip(released) {
        require_end(mount, connection)?;
        clear(mount, file)?;
    }
    Ok(())
}

/// Unmounts one mount, waits for its process to end, and removes its file.
pub fn one(mount: &Mount, file: &Path, force: bool) -> Outcome<()> {
    let connection = release(mount, force)?;
    end_process(mount, force)?;
    require_end(mount, connection)?;
    clear(mount, file)
}

/// Unmounts one of which no record tells the process.
pub fn unrecorded(mount_point: &Path, force: bool) -> Outcome<()> {
    if !mounts::is_mounted(mount_point) {
        return Ok(());
    }
    match unmount_soon(mount_point) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && force => match by_force(mount_point)? {
            Connection::Aborted => Ok(()),
            Connection::Left(file, error) => Err(not_aborted(mount_point, &file, &error)),
        },
        done => explain(mount_point, done),
    }
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

/// Has the kernel take the mount away, when it is there. Of one whose process was killed, or by force, the connection
/// is aborted: else programs, or a thread of the killed process itself, would wait for answers for ever.
fn release(mount: &Mount, force: bool) -> Outcome<Connection> {
    let mount_point = &mount.mount_point;
    if !mounts::is_mounted(mount_point) {
        return Ok(Connection::Aborted);
    }
    if mount.process.state() == State::Killed {
        return by_force(mount_point);
    }
    match unmount_soon(mount_point) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => match mount.process.state() {
            _ if force => by_force(mount_point),
            State::Killed => by_force(mount_point),
            State::Stopped => {
                let pid = mount.process.pid;
                let failure = Failure::of_io("unmount", &error).failed();
                Err(Failure::new(format!("{}; its own process {pid} is stopped", failure.text())).remedy(format!(
                    "`kill -CONT {pid}`, or add --force: programs that wait get an error, and what the process has not \
                     written back is lost"
                )))
            }
            _ => explain(mount_point, Err(error)).map(|()| Connection::Aborted),
        },
        done => explain(mount_point, done).map(|()| Connection::Aborted),
    }
}

fn explain(mount_point: &Path, unmounted: io::Result<()>) -> Outcome<()> {
    match unmounted {
        Ok(()) => Ok(()),
        Err(_) if !mounts::is_mounted(mount_point) => Ok(()),
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

/// Takes a mount away, busy or not, and ends its connection, which fails what waits for an answer.
fn by_force(mount_point: &Path) -> Outcome<Connection> {
    match weft_fuse::unmount_by_force(mount_point) {
        Err(_) if !mounts::is_mounted(mount_point) => Ok(Connection::Aborted),
        done => done.map_err(|error| Failure::of_io("unmount", &error).failed()),
    }
}

/// Waits for the mount's process; one that was told to let go by force and does not end is ended.
fn end_process(mount: &Mount, force: bool) -> Outcome<()> {
    let patience = if force { FORCED_PATIENCE } else { END_PATIENCE };
    let (mount_point, pid) = (mount.mount_point.display(), mount.process.pid);
    if !force && mount.process.state() == State::Stopped {
        return Err(Failure::new(format!("{mount_point}: unmounted, but its process {pid} is stopped"))
            .remedy(format!("`kill -CONT {pid}`, or add --force: what the process has not written back is lost")));
    }
    if processes::wait_for_end(&[mount.process], patience) {
        return Ok(());
    }
    if force {
        processes::end_all(&[mount.process], Duration::ZERO, FORCED_PATIENCE);
        return Ok(());
    }
    Err(Failure::new(format!("{mount_point}: unmounted, but its process {pid} goes on")).remedy(format!(
        "it writes back, which `weft debug stuck` shows, or the mount is used in another mount namespace (a container, \
         unshare -m): wait for process {pid} to end, or end what has that"
    )))
}

/// A connection that could not be aborted ends with its process, unless a thread of that waits for the process itself.
fn require_end(mount: &Mount, connection: Connection) -> Outcome<()> {
    let Connection::Left(file, error) = connection else { return Ok(()) };
    let deadline = Instant::now() + FORCED_PATIENCE;
    while mount.process.state() != State::Ended {
        if Instant::now() > deadline {
            return Err(not_aborted(&mount.mount_point, &file, &error));
        }
        thread::sleep(BUSY_PAUSE);
    }
    Ok(())
}

fn not_aborted(mount_point: &Path, file: &Path, error: &io::Error) -> Failure {
    let text = format!("{}: unmounted, but programs may still wait for it", mount_point.display());
    let file = file.display();
    Failure::of_io(format_args!("{text}: {file}"), error).failed().remedy(format!(
        "as root: `mount -t fusectl none /sys/fs/fuse/connections` (once on this machine), then `echo 1 > {file}`"
    ))
}
