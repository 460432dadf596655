//! A file system in memory for this process alone, without privileges.
//!
//! It has no place in anybody's tree: it is there as long as the descriptor of its root, or of a file in it, is open
//! somewhere. Whoever may mount makes it at once. Anybody else makes it in a child process that has a user namespace of
//! its own, in which it may (user_namespaces(7)); the child shares the table of descriptors, so that what it makes is
//! the caller's when it has ended. The caller stays in its namespaces, and in possession of its rights.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// What the child needs, made before it is: it must not allocate.
struct Settings {
    size: Option<CString>,
    uid_map: String,
    gid_map: String,
}

impl Settings {
    /// In the child's namespace this user and his group are who they are here.
    fn new(size: Option<u64>) -> io::Result<Self> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(Self {
            size: size.map(|bytes| CString::new(bytes.to_string())).transpose()?,
            uid_map: format!("{uid} {uid} 1"),
            gid_map: format!("{gid} {gid} 1"),
        })
    }
}

/// Makes it, in huge pages where the kernel has them; `size`: bytes that fit in, by default half of the machine's
/// memory. Returns its root, which only this user may enter. Errors: the kernel lets users have no namespaces, or is
/// older than Linux 5.2.
pub fn mount_private(size: Option<u64>) -> io::Result<OwnedFd> {
    let settings = Settings::new(size)?;
    match mount(&settings) {
        Err(Errno::PERM) => mount_in_namespace(&settings),
        result => Ok(result?),
    }
}

fn mount(settings: &Settings) -> Result<OwnedFd, Errno> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(size) = &settings.size {
        fsconfig_set_string(&context, c"size", size.as_c_str())?;
    }
    fsconfig_set_string(&context, c"mode", c"700")?;
    // A kernel without huge pages does not know it.
    let _ = fsconfig_set_string(&context, c"huge", c"within_size");
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn mount_in_namespace(settings: &Settings) -> io::Result<OwnedFd> {
    let (output, input) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: without a stack and without CLONE_VM this is fork(2): the child has a copy of all memory. Of this
    // process's threads it has only this one, so whatever lock another one holds stays held there: until `_exit` it
    // makes system calls on memory that is there already, takes no lock, allocates nothing and cannot panic. It shares
    // the table of descriptors and closes none but those that it opens.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
    if child == 0 {
        let answer: RawFd = match enter_namespaces(settings).and_then(|()| mount(settings)) {
            Ok(root) => root.into_raw_fd(),
            Err(errno) => -errno.raw_os_error(),
        };
        let _ = rustix::io::write(&input, &answer.to_ne_bytes());
        // SAFETY: it ends this process at once, and runs nothing of ours.
        unsafe { libc::_exit(0) };
    }
    let Ok(child @ 1..) = libc::pid_t::try_from(child) else { return Err(io::Error::last_os_error()) };
    // SAFETY: `child` is our child, of whom nobody else knows. No status is asked for.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    drop(input);
    let mut answer = [0; size_of::<RawFd>()];
    if rustix::io::read(&output, &mut answer)? != answer.len() {
        return Err(io::Error::other("the process that was to make it was killed"));
    }
    let answer = RawFd::from_ne_bytes(answer);
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    // SAFETY: the child has opened it in the table that it shared with us, and left it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

/// Puts this process into namespaces of its own, in which it is who it was, and may mount.
fn enter_namespaces(settings: &Settings) -> Result<(), Errno> {
    // SAFETY: it concerns this process alone, which has one thread and shares no working directory.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } == -1 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::PERM));
    }
    write_file(c"/proc/self/uid_map", settings.uid_map.as_bytes())?;
    // Without this an unprivileged user may not map a group.
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/gid_map", settings.gid_map.as_bytes())
}

fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fstatvfs, mkdirat, openat};

    /// Works in the root as a store does.
    fn check(root: &OwnedFd) {
        let space = fstatvfs(root).unwrap();
        assert_eq!(space.f_blocks * space.f_frsize, 8 << 20);
        mkdirat(root, "00", Mode::RWXU).unwrap();
        let file = openat(root, "00/x", OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(rustix::io::pwrite(&file, b"bytes", 7), Ok(5));
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let again = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        let mut found = [0; 5];
        assert_eq!(rustix::io::pread(&again, &mut found, 7), Ok(5));
        assert_eq!(&found, b"bytes");
        let full = std::iter::repeat_with(|| rustix::io::write(&file, &[1; 1 << 20])).find(Result::is_err);
        assert_eq!(full, Some(Err(Errno::NOSPC)));
    }

    #[test]
    fn it_holds_files_up_to_its_size_and_is_nowhere_to_be_seen() {
        let before = std::fs::read_to_string("/proc/self/mounts").unwrap();
        match mount_private(Some(8 << 20)) {
            Ok(root) => check(&root),
            Err(error) => {
                return println!("skipped: this machine lets this user have no file system of his own: {error}");
            }
        }
        assert_eq!(std::fs::read_to_string("/proc/self/mounts").unwrap(), before);
    }

    #[test]
    fn a_user_without_privileges_makes_it_in_a_namespace_and_stays_outside() {
        let namespace = || std::fs::read_link("/proc/self/ns/user").unwrap();
        let before = namespace();
        match mount_in_namespace(&Settings::new(Some(8 << 20)).unwrap()) {
            Ok(root) => check(&root),
            Err(error) => return println!("skipped: this machine lets this user have no namespaces: {error}"),
        }
        assert_eq!(namespace(), before);
    }
}
