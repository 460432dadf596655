//! Mounts of this user on this machine: a file per mount in the runtime directory, of his own file systems and of those
//! that he opens with a key.
//!
//! On a crash: the file of a mount that was killed stays; its process is not alive, and `weft umount` cleans both up.

use crate::failure::{Explain, Outcome};
use crate::processes::Process;
use crate::target::WeftPath;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use weft_client::Instance;

/// One mount, as its file in `mounts/` tells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute, without symbolic links.
    pub mount_point: PathBuf,
    #[serde(flatten)]
    pub process: Process,
    /// What the kernel agreed to: `weft_fuse::Negotiated`, kept as text for people and scripts.
    pub negotiated: serde_json::Value,
}

impl Mount {
    /// Writes the file of a mount that is ready; answers its path.
    pub fn record(&self, instance: &Instance) -> Outcome<PathBuf> {
        let directory = instance.mounts_directory();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).explain(|| directory.display())?;
        let path = directory.join(format!("{}.json", self.process.pid));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from).explain(|| path.display())?;
        fs::write(&path, text).explain(|| path.display())?;
        Ok(path)
    }
}

/// The mounts of a file system, each with its file. Files that cannot be read are passed over: they are being written.
pub fn of_instance(instance: &Instance) -> Vec<(PathBuf, Mount)> {
    in_directory(&instance.mounts_directory())
}

fn in_directory(directory: &Path) -> Vec<(PathBuf, Mount)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let read = |path: PathBuf| {
        let path = path.extension().is_some_and(|extension| extension == "json").then_some(path)?;
        Some((path.clone(), serde_json::from_slice(&fs::read(&path).ok()?).ok()?))
    };
    let mut mounts: Vec<(PathBuf, Mount)> = entries.filter_map(|entry| read(entry.ok()?.path())).collect();
    mounts.sort_by(|(_, a), (_, b)| a.mount_point.cmp(&b.mount_point));
    mounts
}

/// All mounts, each with the name of its file system and its file; none where the runtime directory is not this user's.
fn all() -> Vec<(String, PathBuf, Mount)> {
    if !Instance::check_runtime_directory().unwrap_or(false) {
        return Vec::new();
    }
    let with_key = fs::read_dir(Instance::user_directory()).into_iter().flatten().flatten();
    let with_key = with_key.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let own = Instance::all().unwrap_or_default().into_iter().map(|own| (own.map.name, own.directory));
    own.chain(with_key)
        .flat_map(|(name, directory)| {
            let mounts = in_directory(&directory.join("mounts")).into_iter();
            mounts.map(move |(file, mount)| (name.clone(), file, mount))
        })
        .collect()
}

/// The mount at this mount point: its file, and what that says.
pub fn at(mount_point: &Path) -> Option<(PathBuf, Mount)> {
    let (_, file, mount) = all().into_iter().find(|(_, _, mount)| mount.mount_point == mount_point)?;
    Some((file, mount))
}

/// Clears up after a mount whose file this was: logs of mounts with a key that were killed, of which nobody is told any
/// more, and, when they are empty, the directories that only such mounts have.
pub fn clear_directories(file: &Path) {
    let user_directory = Instance::user_directory();
    if !file.starts_with(&user_directory) {
        return;
    }
    if let Some(directory) = file.parent() {
        remove_dead_logs(directory);
    }
    for directory in file.ancestors().skip(1).take_while(|directory| directory.starts_with(&user_directory)) {
        // What is not empty stays.
        let _ = fs::remove_dir(directory);
    }
    let _ = Instance::remove_empty_runtime_directory();
}

/// Removes logs without a record whose process does not run.
fn remove_dead_logs(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if is_log && !path.with_extension("json").exists() && pid.and_then(Process::of).is_none() {
            // One that cannot be removed is left for the next time.
            let _ = fs::remove_file(&path);
        }
    }
}

/// What a path of this machine names in a file system, when it lies below a living mount.
pub fn path_below(path: &Path) -> Option<WeftPath> {
    let path = absolute(path).ok()?;
    all().into_iter().find_map(|(name, _, mount)| {
        let below = path.strip_prefix(&mount.mount_point).ok()?;
        let path = crate::target::join(b"/", below.as_os_str().as_bytes());
        Some(WeftPath { file_system: Some(name), path })
    })
}

/// The path as mounts are recorded: absolute, symbolic links resolved in all but the last component. That one is not
/// looked at, so that the mount point of a killed mount, at which every system call fails, has a path too.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(path),
    }
}

/// Whether a FUSE file system is mounted at exactly this path, by what the kernel lists.
pub fn is_mounted(mount_point: &Path) -> bool {
    let listed = fs::read("/proc/self/mountinfo").unwrap_or_default();
    listed.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = fields.nth(4).map(unescape);
        let kind = line.windows(3).position(|three| three == b" - ").map(|start| &line[start + 3..]);
        at.as_deref() == Some(mount_point.as_os_str().as_bytes()) && kind.is_some_and(|kind| kind.starts_with(b"fuse"))
    })
}

/// Undoes the octal escapes of /proc/self/mountinfo.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.first_chunk::<3>().and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_mount_list_are_undone() {
        assert_eq!(unescape(br"/a\040b\134c\x"), b"/a b\\c\\x");
        assert_eq!(unescape(br"\04"), br"\04");
    }

    #[test]
    fn the_last_component_need_not_be_there() {
        let directory = std::env::temp_dir().canonicalize().expect("temporary directory");
        let odd = directory.join("not-there").join("..").join("dead");
        assert!(absolute(&odd).is_err());
        assert_eq!(absolute(&directory.join("dead")).expect("path"), directory.join("dead"));
        assert_eq!(absolute(Path::new("/")).expect("path"), Path::new("/"));
        assert!(!is_mounted(&directory.join("dead")));
    }
}
