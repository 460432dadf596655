//! Listings.

use crate::attributes::tell;
use crate::border::{count, status};
use crate::handles::FileHandle;
use crate::raw;
use std::ffi::{c_int, c_uint};
use weft_library::{Cursor, Failure, FileSystem, file_type};
use weft_protocol::message::shard::DirectoryEntry;

/// Where the file type begins in `st_mode`: `d_type` is without the bits below, as by `IFTODT`.
const FILE_TYPE_SHIFT: u32 = libc::S_IFMT.trailing_zeros();

/// `struct weft_dirent`.
#[repr(C)]
pub struct Dirent {
    ino: u64,
    kind: u32,
    spare: [u32; 5],
    attributes: libc::statx,
    name: [u8; 256],
}

/// Stores an entry.
fn store(fs: &FileSystem, entry: &DirectoryEntry, into: &mut Dirent) {
    // SAFETY: integers, of which any are values.
    *into = unsafe { std::mem::zeroed() };
    into.ino = entry.inode.raw();
    into.kind = file_type(entry.kind) >> FILE_TYPE_SHIFT;
    let name = entry.name.as_bytes();
    into.name[..name.len()].copy_from_slice(name);
    if let Some(attributes) = &entry.attributes {
        tell(&mut into.attributes, fs, attributes);
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_readdir(
    directory: FileHandle,
    cursor: Option<&mut Cursor>,
    mask: c_uint,
    entries: *mut Dirent,
    length: usize,
) -> isize {
    count(|| {
        let (directory, cursor) = (directory.get()?, raw::required(cursor, "cursor")?);
        // SAFETY: they are as `weft.h` says.
        let entries = unsafe { raw::slice_mut(entries, length, "entries") }?;
        if entries.is_empty() {
            return Err(Failure::invalid("readdir of 0 entries"));
        }
        let (wanted, mut places) = (entries.len(), entries.iter_mut());
        cursor.read(&directory, mask != 0, wanted, &mut |entry| {
            store(&directory.fs, &entry, places.next().expect("no more are passed than wanted"));
        })
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_cursor_split(whole: Option<&Cursor>, parts: *mut Cursor, length: usize) -> c_int {
    status(|| {
        let whole = *raw::required(whole, "whole")?;
        // SAFETY: they are as `weft.h` says.
        let parts = unsafe { raw::slice_mut(parts, length, "parts") }?;
        if parts.is_empty() {
            return Err(Failure::invalid("a cursor in 0 parts"));
        }
        whole.split(parts);
        Ok(())
    })
}
