//! A connection to the kernel that is mounted somewhere.
//!
//! Root opens `/dev/fuse` and mounts by the system call. Others ask `fusermount3`, which does both and passes the
//! descriptor back over a socket. (The kernel crate could do this too, but when it lets go it unmounts whatever is
//! mounted at that path then, also a mount that came after.)
//!
//! Invariant: [`Attachment`] undoes its own mount only, and only while the connection lives; it never touches a later
//! one.
//! Not here: what is agreed over the connection (`mount.rs`).

use crate::mount::MountOptions;
use crate::mount_table::{self, KIND};
use crate::unmount;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DEVICE: &str = "/dev/fuse";
/// The helpers that may mount for a user, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// A mount that this process made.
#[derive(Debug)]
pub struct Attachment {
    /// Absolute, without symbolic links.
    pub mount_point: PathBuf,
    /// Its device number.
    pub device: (u32, u32),
}

impl Attachment {
    /// Takes the mount away, busy or not. To be called while its connection lives: afterwards another mount may have
    /// its device number.
    pub fn detach(&self) {
        let is_own = |entry: &mount_table::MountEntry| entry.kind == KIND && entry.device == self.device;
        match mount_table::at(&self.mount_point) {
            Ok(Some(entry)) if is_own(&entry) => {
                if let Err(error) = unmount::detach(&self.mount_point, true) {
                    tracing::warn!("{} stays mounted: {error}", self.mount_point.display());
                }
            }
            _ => {}
        }
    }
}

/// Mounts at a directory. The descriptor is that of the connection.
pub fn attach(mount_point: &Path, name: &str, options: &MountOptions) -> io::Result<(OwnedFd, Attachment)> {
    let mount_point = check(mount_point)?;
    if name.is_empty() || name.contains([',', '\\', '\0', '\n']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a file system")));
    }
    let connection = match attach_by_system_call(&mount_point, name, options) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => attach_by_helper(&mount_point, name, options)?,
        result => result?,
    };
    let device = match mount_table::at(&mount_point)? {
        Some(entry) if entry.kind == KIND => entry.device,
        _ => return Err(io::Error::other(format!("{} was unmounted at once", mount_point.display()))),
    };
    Ok((connection, Attachment { mount_point, device }))
}

/// The mount point as the kernel will list it.
fn check(mount_point: &Path) -> io::Result<PathBuf> {
    let shown = mount_point.display();
    let path = mount_point.canonicalize().map_err(|error| {
        let remedy = if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) {
            " (left over from a mount whose process was killed: unmount it first)"
        } else {
            ""
        };
        io::Error::new(error.kind(), format!("mount point {shown}: {error}{remedy}"))
    })?;
    if !path.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("mount point {shown} is not a directory")));
    }
    Ok(path)
}

fn attach_by_system_call(mount_point: &Path, name: &str, options: &MountOptions) -> io::Result<OwnedFd> {
    let connection = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        let remedy = if error == Errno::NOENT { ": the kernel module fuse is not there" } else { "" };
        io::Error::new(io::Error::from(error).kind(), format!("{DEVICE}: {error}{remedy}"))
    })?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={user},group_id={group}", connection.as_raw_fd());
    // Only root may use a mount of root's own, and root may do everything: the kernel's check would cost it a message
    // for each change in a directory (it forgets the directory's attributes with every change) and find nothing.
    if user != 0 || options.allow_other {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount(format!("weft:{name}"), mount_point, KIND, flags, data.as_c_str()).map_err(|error| {
        io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", mount_point.display()))
    })?;
    Ok(connection)
}

fn attach_by_helper(mount_point: &Path, name: &str, options: &MountOptions) -> io::Result<OwnedFd> {
    let mut words = format!("fsname=weft:{name},subtype=weft,default_permissions,nodev,nosuid");
    words.push_str(if options.read_only { ",ro" } else { ",rw" });
    if options.allow_other {
        words.push_str(",allow_other");
    }
    for helper in HELPERS {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(helper);
        command.arg("-o").arg(&words).arg("--").arg(mount_point);
        // The socket on which it answers is its standard input: no descriptor has to survive an exec by chance.
        command.env("_FUSE_COMMFD", "0").env("LC_ALL", "C").stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = match command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // The command keeps their end too; the answer's end is only seen when all are closed.
        drop(command);
        let connection = receive_descriptor(&ours);
        let output = child.wait_with_output()?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return match connection? {
            Some(connection) if output.status.success() => Ok(connection),
            _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, complaint)),
        };
    }
    let text = format!("{} is not installed; it mounts for users (package fuse3)", HELPERS[0]);
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// The descriptor that comes over a socket; `None`: it was closed without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    #[test]
    fn mount_points_that_cannot_be() {
        let options = MountOptions::default();
        let error = attach(Path::new("/nothing/of/this/name"), "a", &options).expect_err("not there");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = attach(Path::new("/proc/self/status"), "a", &options).expect_err("a file");
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        let error = attach(Path::new("/"), "a,suid", &options).expect_err("an option in disguise");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_helper_passes_a_descriptor() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let passed = std::fs::File::open("/proc/self/comm").unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [passed.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(&theirs, &[IoSlice::new(b"\0")], &mut control, SendFlags::empty()).unwrap();
        assert!(receive_descriptor(&ours).unwrap().is_some());
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none(), "the helper failed");
    }
}
