//! Attributes.

use crate::border::status;
use crate::connection::FsHandle;
use crate::handles::FileHandle;
use crate::raw;
use std::ffi::{c_char, c_int, c_uint};
use weft_library::{BLOCK_BYTES, Failure, FileSystem, Outcome, PREFERRED_IO_BYTES, Place, mode, permission_bits};
use weft_protocol::{AttributeChanges, Attributes, TimeChange, Timestamp};

/// In a second.
const NANOSECONDS: u32 = 1_000_000_000;
/// Means an owner or group that stays.
const UNCHANGED: u32 = u32::MAX;

/// As `statx` tells them.
pub fn tell(told: &mut libc::statx, fs: &FileSystem, attributes: &Attributes) {
    // SAFETY: integers, of which any are values.
    *told = unsafe { std::mem::zeroed() };
    told.stx_mask = libc::STATX_BASIC_STATS;
    told.stx_blksize = PREFERRED_IO_BYTES;
    told.stx_nlink = attributes.links;
    (told.stx_uid, told.stx_gid) = (attributes.uid, attributes.gid);
    told.stx_mode = u16::try_from(mode(attributes)).expect("types are the upper 4 of 16 bits");
    told.stx_ino = attributes.inode.raw();
    told.stx_size = attributes.size;
    told.stx_blocks = attributes.size.div_ceil(BLOCK_BYTES);
    told.stx_atime = time(attributes.atime);
    told.stx_mtime = time(attributes.mtime);
    told.stx_ctime = time(attributes.ctime);
    told.stx_dev_minor = fs.number;
}

fn time(time: Timestamp) -> libc::statx_timestamp {
    // SAFETY: integers, of which any are values.
    let mut told: libc::statx_timestamp = unsafe { std::mem::zeroed() };
    (told.tv_sec, told.tv_nsec) = time.parts();
    told
}

fn statx(place: &Place<'_>, flags: c_int, told: Option<&mut libc::statx>) -> Outcome {
    let told = raw::required(told, "attributes")?;
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT) != 0 {
        return Err(Failure::invalid(format!("flags {flags:#x}: only AT_SYMLINK_NOFOLLOW is known")));
    }
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    tell(told, place.fs, &place.attributes(follows, "statx")?);
    Ok(())
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_statx(
    fs: FsHandle,
    path: *const c_char,
    flags: c_int,
    _mask: c_uint,
    told: Option<&mut libc::statx>,
) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| statx(&Place::new(&*fs.get()?, unsafe { raw::text(path, "path") }?), flags, told))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_statxat(
    directory: FileHandle,
    path: *const c_char,
    flags: c_int,
    _mask: c_uint,
    told: Option<&mut libc::statx>,
) -> c_int {
    // SAFETY: it is as `weft.h` says.
    status(|| statx(&Place::at(&*directory.get()?, unsafe { raw::text(path, "path") }?)?, flags, told))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_fstatx(file: FileHandle, _mask: c_uint, told: Option<&mut libc::statx>) -> c_int {
    status(|| {
        let (file, told) = (file.get()?, raw::required(told, "attributes")?);
        tell(told, &file.fs, &file.attributes()?);
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_access(fs: FsHandle, path: *const c_char, mode: c_int) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: it is as `weft.h` says.
        let place = Place::new(&fs, unsafe { raw::text(path, "path") }?);
        let bits = u16::try_from(mode).ok().filter(|bits| bits & !0o7 == 0);
        place.check_access(bits.ok_or_else(|| Failure::invalid(format!("access {place}: mode is {mode}")))?)
    })
}

/// Changes attributes of what a path leads to.
fn change(fs: FsHandle, path: *const c_char, verb: &str, changes: &AttributeChanges) -> Outcome {
    let fs = fs.get()?;
    // SAFETY: it is as `weft.h` says.
    Place::new(&fs, unsafe { raw::text(path, "path") }?).change(true, verb, changes)
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_chmod(fs: FsHandle, path: *const c_char, mode: libc::mode_t) -> c_int {
    let mode = Some(permission_bits(mode));
    status(|| change(fs, path, "chmod", &AttributeChanges { mode, ..AttributeChanges::default() }))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_chown(fs: FsHandle, path: *const c_char, owner: libc::uid_t, group: libc::gid_t) -> c_int {
    status(|| {
        let changed = |id: u32| (id != UNCHANGED).then_some(id);
        let changes = AttributeChanges { uid: changed(owner), gid: changed(group), ..AttributeChanges::default() };
        change(fs, path, "chown", &changes)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_truncate(fs: FsHandle, path: *const c_char, length: i64) -> c_int {
    status(|| {
        let size = Some(raw::unsigned(length, "the length")?);
        change(fs, path, "truncate", &AttributeChanges { size, ..AttributeChanges::default() })
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_utimens(fs: FsHandle, path: *const c_char, times: Option<&[libc::timespec; 2]>) -> c_int {
    status(|| {
        let (atime, mtime) = match times {
            None => (Some(TimeChange::Now), Some(TimeChange::Now)),
            Some([atime, mtime]) => (time_change(atime)?, time_change(mtime)?),
        };
        change(fs, path, "utimens", &AttributeChanges { atime, mtime, ..AttributeChanges::default() })
    })
}

fn time_change(time: &libc::timespec) -> Outcome<Option<TimeChange>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(TimeChange::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds => match u32::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds < NANOSECONDS) {
            Some(nanoseconds) => Ok(Some(TimeChange::To(Timestamp::from_parts(time.tv_sec, nanoseconds)))),
            None => Err(Failure::invalid(format!("{nanoseconds} nanoseconds"))),
        },
    }
}
