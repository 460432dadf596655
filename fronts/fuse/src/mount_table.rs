//! What is mounted, as the kernel lists it in `/proc/self/mountinfo`.
//!
//! Reading this list touches no mounted file system, so it works beside one whose process is dead or stopped.
//!
//! Not here: mounting (`attach.rs`) and unmounting (`unmount.rs`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Type of Weft's mounts.
pub const KIND: &str = "fuse.weft";

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub mount_point: PathBuf,
    /// Major and minor number of its device, as `st_dev` of what is below it.
    pub device: (u32, u32),
    /// Type, as `ext4` or `fuse.weft`.
    pub kind: String,
}

/// What is mounted at exactly this path; of several, the one on top.
pub fn at(mount_point: &Path) -> io::Result<Option<MountEntry>> {
    let entries = parse(&fs::read("/proc/self/mountinfo")?);
    Ok(entries.into_iter().rfind(|entry| entry.mount_point == mount_point))
}

/// An absolute path, symbolic links resolved in all but the last component. That one is not looked at, so that a mount
/// point at which every system call fails has a path too.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// See proc_pid_mountinfo(5): `36 35 98:0 /root /mount/point options fields... - type source options`.
fn parse(text: &[u8]) -> Vec<MountEntry> {
    let line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let mount_point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
        fields.find(|field| *field == b"-")?;
        let kind = String::from_utf8_lossy(fields.next()?).into_owned();
        Some(MountEntry { mount_point, device: (major.parse().ok()?, minor.parse().ok()?), kind })
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// Undoes the octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let octal = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_kernel_is_read() {
        let text = b"21 1 0:20 / /proc rw,relatime shared:5 - proc proc rw\n\
            40 1 0:44 / /home/u/my\\040data rw,nosuid,nodev - fuse.weft weft:lab rw,user_id=1000\n\
            41 40 8:1 /sub /mnt/a\\134b rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
            broken\n\n";
        let entries = parse(text);
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].mount_point, Path::new("/home/u/my data"));
        assert_eq!((entries[1].device, entries[1].kind.as_str()), ((0, 44), KIND));
        assert_eq!(entries[2].mount_point, Path::new("/mnt/a\\b"));
        assert_eq!(entries[2].kind, "ext4");
    }

    #[test]
    fn this_machine_has_proc() {
        let entry = at(Path::new("/proc")).expect("readable").expect("mounted");
        assert_eq!(entry.kind, "proc");
        assert_eq!(at(Path::new("/proc/nothing/here")).expect("readable"), None);
    }

    #[test]
    fn the_last_component_is_not_looked_at() {
        assert_eq!(
            absolute(Path::new("/tmp/../tmp/nothing-of-this-name/")).unwrap(),
            Path::new("/tmp/nothing-of-this-name")
        );
        assert_eq!(absolute(Path::new("/")).unwrap(), Path::new("/"));
        assert!(absolute(Path::new("/nothing-of-this-name/below")).is_err());
    }
}
