//! Who keeps a mount busy: processes with their current directory, an open file, their program or a mapped file below
//! it.
//!
//! Found by the paths that `/proc` shows, which touches nothing below the mount. Processes of other users are seen by
//! root only, and a file that was opened before its directory was renamed shows the new path.
//!
//! Not here: what is done about them (`unmount.rs`).

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Holders that are named in a message; of more, the number.
const NAMED_MAX: usize = 8;

/// A process that keeps a mount busy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    pub pid: u32,
    /// Name of its program.
    pub command: String,
    /// What it holds.
    pub holds: Vec<&'static str>,
    pub open_files: usize,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}: {}", self.command, self.pid, self.holds.join(", "))?;
        if self.open_files > 0 {
            let before = if self.holds.is_empty() { "" } else { ", " };
            let plural = if self.open_files == 1 { "" } else { "s" };
            write!(f, "{before}{} open file{plural}", self.open_files)?;
        }
        f.write_str(")")
    }
}

/// All processes that hold something below a mount point and may be looked at.
pub fn holders(mount_point: &Path) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut holders: Vec<_> = processes.flatten().filter_map(pid).filter_map(|pid| holder(pid, mount_point)).collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

/// The list for a message.
pub fn describe(holders: &[Holder]) -> String {
    let mut named: Vec<_> = holders.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if holders.len() > NAMED_MAX {
        named.push(format!("and {} more", holders.len() - NAMED_MAX));
    }
    if named.is_empty() { "a process of another user, or another mount below it".into() } else { named.join(", ") }
}

fn holder(pid: u32, mount_point: &Path) -> Option<Holder> {
    let process = Path::new("/proc").join(pid.to_string());
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(mount_point));
    let mut holds = Vec::new();
    for (link, what) in [("cwd", "current directory"), ("root", "root directory"), ("exe", "program")] {
        if is_below(&process.join(link)) {
            holds.push(what);
        }
    }
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let open_files = files.filter(|file| is_below(&file.path())).count();
    if fs::read(process.join("maps")).is_ok_and(|maps| maps_below(&maps, mount_point)) {
        holds.push("mapped file");
    }
    if holds.is_empty() && open_files == 0 {
        return None;
    }
    let command = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_string();
    Some(Holder { pid, command, holds, open_files })
}

/// Whether a line of `/proc/PID/maps` names a file below the mount point: the path is all from its first `/` on.
fn maps_below(maps: &[u8], mount_point: &Path) -> bool {
    maps.split(|byte| *byte == b'\n').any(|line| {
        let path = line.iter().position(|byte| *byte == b'/').map(|start| &line[start..]);
        path.is_some_and(|path| Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(mount_point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_name_files_by_whole_components() {
        let maps = b"7f00-7f01 r--p 00000000 00:2b 7   /mnt/weft/lib.so\n7fff-8000 rw-p 0 00:00 0 [stack]\n";
        assert!(maps_below(maps, Path::new("/mnt/weft")));
        assert!(!maps_below(maps, Path::new("/mnt/we")));
    }

    #[test]
    fn this_process_holds_its_current_directory() {
        let here = std::env::current_dir().unwrap();
        let found = holders(&here);
        let own = found.iter().find(|holder| holder.pid == std::process::id()).expect("this process");
        assert!(own.holds.contains(&"current directory"));
        assert!(describe(&found).contains(&format!("pid {}", own.pid)) || found.len() > NAMED_MAX);
    }

    #[test]
    fn many_holders_are_counted() {
        let holder = |pid| Holder { pid, command: "sh".into(), holds: vec!["program"], open_files: 2 };
        assert_eq!(holder(7).to_string(), "sh (pid 7: program, 2 open files)");
        assert!(describe(&(1..=20).map(holder).collect::<Vec<_>>()).ends_with("and 12 more"));
        assert!(describe(&[]).starts_with("a process of another user"));
    }
}
