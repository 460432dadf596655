//! Making, removing and renaming.

use crate::border::{count, status};
use crate::connection::FsHandle;
use crate::handles::FileHandle;
use crate::raw;
use std::ffi::{c_char, c_int, c_uint};
use weft_library::{Failure, Place};
use weft_protocol::message::shard::RenameMode;

const RENAME_NOREPLACE: c_uint = libc::RENAME_NOREPLACE;
const RENAME_EXCHANGE: c_uint = libc::RENAME_EXCHANGE;

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
        Place::new(&fs, from).link(&Place::new(&fs, to))
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_symlink(fs: FsHandle, target: *const c_char, path: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (target, path) = unsafe { (raw::text(target, "target")?, raw::text(path, "path")?) };
        Place::new(&fs, path).make_symlink(target)
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
        let target = Place::new(&fs, path).read_link()?;
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
            _ => return Err(Failure::invalid(format!("rename with flags {flags:#x}"))),
        };
        Place::at(&directory, from)?.rename(&Place::at(&to_directory, to)?, mode)
    })
}
