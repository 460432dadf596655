//! Unmounting what is no mount, what is not Weft's, and what a killed process left behind.
//!
//! A dead mount is made here as a crash leaves it: the kernel's connection is closed while the mount is there. That
//! takes root and `/dev/fuse`; without them these tests print why they are skipped.

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory of one test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weft-fuse-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Self(path.canonicalize().expect("it is there"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Fails when a failed test left a mount, which is then to be seen.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Mounts as `weft mount` does; `None`, with the reason printed, where that is not possible.
fn mount(path: &Path, kind: &str) -> Option<OwnedFd> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting without a helper takes root");
        return None;
    }
    let connection = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(connection) => connection,
        Err(error) => {
            println!("skipped: /dev/fuse: {error}");
            return None;
        }
    };
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", connection.as_raw_fd());
    let data = CString::new(data).expect("no zero in it");
    match rustix::mount::mount("weft:test", path, kind, MountFlags::NODEV | MountFlags::NOSUID, data.as_c_str()) {
        Ok(()) => Some(connection),
        Err(error) => {
            println!("skipped: mount: {error}");
            None
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    let listed = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    listed.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn what_is_not_mounted_is_told() {
    let directory = Directory::new("plain");
    let error = weft_fuse::unmount(&directory.0).expect_err("nothing is mounted there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("nothing is mounted at"), "{error}");
    let error = weft_fuse::unmount(&directory.0.join("no/such/path")).expect_err("no such path");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn other_file_systems_are_left_alone() {
    let error = weft_fuse::unmount(Path::new("/proc")).expect_err("not Weft's");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("proc"), "{error}");
    assert!(is_mounted(Path::new("/proc")));
    let directory = Directory::new("other");
    let Some(connection) = mount(&directory.0, "fuse.other") else { return };
    assert!(weft_fuse::unmount(&directory.0).is_err());
    assert!(is_mounted(&directory.0));
    rustix::mount::unmount(&directory.0, rustix::mount::UnmountFlags::DETACH).expect("mounted here");
    drop(connection);
}

#[test]
fn a_mount_whose_process_was_killed_is_taken_away() {
    let directory = Directory::new("dead");
    let Some(connection) = mount(&directory.0, "fuse.weft") else { return };
    drop(connection);
    assert!(is_mounted(&directory.0));
    weft_fuse::unmount(&directory.0).expect("nothing stands in the way");
    assert!(!is_mounted(&directory.0));
    assert_eq!(weft_fuse::unmount(&directory.0).expect_err("it is gone").kind(), ErrorKind::NotFound);
}

#[test]
fn a_dead_mount_is_taken_away_also_when_it_is_busy() {
    let directory = Directory::new("dead-busy");
    let Some(connection) = mount(&directory.0, "fuse.weft") else { return };
    let held = rustix::fs::open(&directory.0, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("asks nobody");
    drop(connection);
    let plain = rustix::mount::unmount(&directory.0, rustix::mount::UnmountFlags::NOFOLLOW);
    assert_eq!(plain, Err(rustix::io::Errno::BUSY), "the test holds it");
    weft_fuse::unmount(&directory.0).expect("lazily");
    assert!(!is_mounted(&directory.0));
    drop(held);
}

#[test]
fn a_living_mount_that_is_busy_stays_and_the_holder_is_named() {
    let directory = Directory::new("busy");
    let Some(connection) = mount(&directory.0, "fuse.weft") else { return };
    let held = rustix::fs::open(&directory.0, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("asks nobody");
    let error = weft_fuse::unmount(&directory.0).expect_err("busy");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    assert!(is_mounted(&directory.0));
    drop(held);
    // The question whether it is alive still waits for an answer, and holds it: nobody ever gives one here.
    drop(connection);
    weft_fuse::unmount(&directory.0).expect("dead now");
    assert!(!is_mounted(&directory.0));
}

#[test]
fn programs_that_wait_for_a_mount_that_answers_nothing_are_let_go_by_force() {
    let directory = Directory::new("hung");
    let Some(connection) = mount(&directory.0, "fuse.weft") else { return };
    let path = directory.0.clone();
    let program = std::thread::spawn(move || rustix::fs::statfs(&path).map(drop));
    let done = weft_fuse::unmount_by_force(&directory.0).expect("by the system call");
    assert!(matches!(done, weft_fuse::Connection::Aborted), "{done:?}");
    assert!(!is_mounted(&directory.0));
    // It may have come too late, and then looks at the directory below.
    let _ = program.join().expect("it returns");
    // The kernel tells who serves it that it is over.
    let read = rustix::io::read(&connection, &mut vec![0; 1 << 20]);
    assert_eq!(read, Err(rustix::io::Errno::NODEV));
}
