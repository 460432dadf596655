//! Making, removing and renaming.

use crate::border::{Explain, Failure, Outcome, count, status};
use crate::connection::FsHandle;
use crate::open_file::{FileHandle, Place};
use crate::raw;
use std::ffi::{c_char, c_int, c_uint};
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{Error, InodeNumber, Name};

const RENAME_NOREPLACE: c_uint = libc::RENAME_NOREPLACE;
const RENAME_EXCHANGE: c_uint = libc::RENAME_EXCHANGE;

impl Place<'_> {
    /// The directory and the name in it.
    fn parent(&self, verb: &str) -> Outcome<(InodeNumber, Name)> {
        self.fs.client.walk_to_parent_from(&self.fs.who, self.directory, self.path).explain(|| format!("{verb} {self}"))
    }

    fn make_directory(&self, mode: libc::mode_t) -> Outcome {
        let (parent, name) = self.parent("mkdir")?;
        let made = self.fs.client.make_directory(&self.fs.who, parent, &name, self.fs.permissions(mode));
        made.map(drop).explain(|| format!("mkdir {self}"))
    }

    fn unlink(&self) -> Outcome {
        let (parent, name) = self.parent("unlink")?;
        self.fs.client.unlink(&self.fs.who, parent, &name).explain(|| format!("unlink {self}"))
    }

    fn remove_directory(&self) -> Outcome {
        let (parent, name) = self.parent("rmdir")?;
        self.fs.client.remove_directory(&self.fs.who, parent, &name).explain(|| format!("rmdir {self}"))
    }

    fn rename(&self, to: &Place<'_>, mode: RenameMode) -> Outcome {
        if !std::ptr::eq(&**self.fs, &**to.fs) {
            return Err(Failure::new(libc::EXDEV, format!("rename {self} to {to}: they are in two file systems")));
        }
        let ((parent, name), (new_parent, new_name)) = (self.parent("rename")?, to.parent("rename to")?);
        let renamed = self.fs.client.rename(&self.fs.who, parent, &name, new_parent, &new_name, mode);
        renamed.explain(|| format!("rename {self} to {to}"))
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_mkdir(fs: FsHandle, path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| Place::new(&*fs.get()?, unsafe { raw::text(path, "path") }?).make_directory(mode))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_unlink(fs: FsHandle, path: *const c_char) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| Place::new(&*fs.get()?, unsafe { raw::text(path, "path") }?).unlink())
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_rmdir(fs: FsHandle, path: *const c_char) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| Place::new(&*fs.get()?, unsafe { raw::text(path, "path") }?).remove_directory())
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_rename(fs: FsHandle, from: *const c_char, to: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (from, to) = unsafe { (raw::text(from, "from")?, raw::text(to, "to")?) };
        Place::new(&fs, from).rename(&Place::new(&fs, to), RenameMode::Replace)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_link(fs: FsHandle, from: *const c_char, to: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (from, to) = unsafe { (raw::text(from, "from")?, raw::text(to, "to")?) };
        let what = || format!("link {} as {}", String::from_utf8_lossy(from), String::from_utf8_lossy(to));
        // As Linux does, a symbolic link at its end is linked itself.
        let inode = fs.client.walk(&fs.who, from, false).explain(what)?.attributes.inode;
        let (parent, name) = Place::new(&fs, to).parent("link to")?;
        fs.client.link(&fs.who, inode, parent, &name).map(drop).explain(what)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_symlink(fs: FsHandle, target: *const c_char, path: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (target, path) = unsafe { (raw::text(target, "target")?, raw::text(path, "path")?) };
        let place = Place::new(&fs, path);
        let (parent, name) = place.parent("symlink")?;
        let made = fs.client.make_symlink(&fs.who, parent, &name, target);
        made.map(drop).explain(|| format!("symlink {place}"))
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_readlink(fs: FsHandle, path: *const c_char, target: *mut c_char, length: usize) -> isize {
    count(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (path, into) =
            unsafe { (raw::text(path, "path")?, raw::slice_mut(target.cast::<u8>(), length, "target")?) };
        if into.is_empty() {
            return Err(Failure::invalid("readlink into 0 bytes"));
        }
        let link = fs.client.walk(&fs.who, path, false);
        let target = link.and_then(|link| fs.client.read_link(&fs.who, link.attributes.inode));
        let target = target.explain(|| format!("readlink {}", String::from_utf8_lossy(path)))?;
        let fits = target.len().min(into.len());
        into[..fits].copy_from_slice(&target[..fits]);
        Ok(fits)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_mkdirat(directory: FileHandle, path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| Place::at(&*directory.get()?, unsafe { raw::text(path, "path") }?)?.make_directory(mode))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_unlinkat(directory: FileHandle, path: *const c_char, flags: c_int) -> c_int {
    status(|| {
        let directory = directory.get()?;
        // SAFETY: it is as `weft.h` says.
        let place = Place::at(&directory, unsafe { raw::text(path, "path") }?)?;
        match flags {
            0 => place.unlink(),
            libc::AT_REMOVEDIR => place.remove_directory(),
            _ => Err(Failure::invalid(format!("flags {flags:#x}: only AT_REMOVEDIR is known"))),
        }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_renameat2(
    directory: FileHandle,
    from: *const c_char,
    to_directory: FileHandle,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    status(|| {
        let (directory, to_directory) = (directory.get()?, to_directory.get()?);
        // SAFETY: both are as `weft.h` says.
        let (from, to) = unsafe { (raw::text(from, "from")?, raw::text(to, "to")?) };
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Error::Invalid).explain(|| format!("rename with flags {flags:#x}")),
        };
        Place::at(&directory, from)?.rename(&Place::at(&to_directory, to)?, mode)
    })
}
