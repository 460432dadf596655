//! Extended attributes.

use crate::border::{Explain, Failure, Outcome, count, status};
use crate::connection::{FileSystem, FsHandle};
use crate::open_file::Place;
use crate::raw;
use std::ffi::{c_char, c_int, c_void};
use weft_client::XattrKey;
use weft_protocol::{InodeNumber, XattrExpectation, XattrValue};

/// The inode at a path, and the attribute's name.
struct Named<'a> {
    fs: &'a FileSystem,
    inode: InodeNumber,
    key: XattrKey,
    text: String,
}

impl<'a> Named<'a> {
    /// # Safety
    /// Path and name are as `weft.h` says.
    unsafe fn new(fs: &'a FileSystem, path: *const c_char, name: *const c_char) -> Outcome<Self> {
        // SAFETY: as above.
        let (path, name) = unsafe { (raw::text(path, "path")?, raw::text(name, "name")?) };
        let text = format!("{} of {}", String::from_utf8_lossy(name), String::from_utf8_lossy(path));
        let inode = fs.client.walk(&fs.who, path, true).explain(|| text.clone())?.attributes.inode;
        let key = XattrKey::new(name).explain(|| text.clone())?;
        Ok(Self { fs, inode, key, text })
    }
}

/// Stores a value, or tells its length where there is no room.
fn store(value: &[u8], into: &mut [u8], what: &str) -> Outcome<usize> {
    if !into.is_empty() {
        let text = || format!("{what}: has {} bytes, more than {}", value.len(), into.len());
        if value.len() > into.len() {
            return Err(Failure::new(libc::ERANGE, text()));
        }
        into[..value.len()].copy_from_slice(value);
    }
    Ok(value.len())
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_getxattr(
    fs: FsHandle,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    length: usize,
) -> isize {
    count(|| {
        let fs = fs.get()?;
        // SAFETY: all are as `weft.h` says.
        let (named, into) =
            unsafe { (Named::new(&fs, path, name)?, raw::slice_mut(value.cast::<u8>(), length, "value")?) };
        let Named { fs, inode, key, text } = named;
        match key {
            XattrKey::Kept(name) => {
                let value = fs.client.get_xattr(&fs.who, inode, &name).explain(|| &text)?;
                store(value.as_bytes(), into, &text)
            }
            XattrKey::Setting(setting) => {
                let value = fs.client.setting(&fs.who, inode, setting).explain(|| &text)?;
                store(value.as_bytes(), into, &text)
            }
        }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_setxattr(
    fs: FsHandle,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: all are as `weft.h` says.
        let (named, value) =
            unsafe { (Named::new(&fs, path, name)?, raw::slice(value.cast::<u8>(), length, "value")?) };
        let expects = match flags {
            0 => XattrExpectation::default(),
            libc::XATTR_CREATE => XattrExpectation { absent: true, present: false },
            libc::XATTR_REPLACE => XattrExpectation { absent: false, present: true },
            _ => return Err(Failure::invalid(format!("flags {flags:#x}: XATTR_CREATE or XATTR_REPLACE"))),
        };
        let Named { fs, inode, key, text } = named;
        let set = match key {
            XattrKey::Kept(name) => {
                XattrValue::new(value).and_then(|value| fs.client.set_xattr(&fs.who, inode, &name, &value, expects))
            }
            XattrKey::Setting(setting) => fs.client.change_setting(&fs.who, inode, (setting, value), expects),
        };
        set.explain(|| text)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_listxattr(fs: FsHandle, path: *const c_char, names: *mut c_char, length: usize) -> isize {
    count(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (path, into) = unsafe { (raw::text(path, "path")?, raw::slice_mut(names.cast::<u8>(), length, "names")?) };
        let place = Place::new(&fs, path);
        let what = format!("list the extended attributes of {place}");
        let inode = place.inode("list the extended attributes of")?;
        let mut list = Vec::new();
        for name in fs.client.list_xattrs(&fs.who, inode).explain(|| &what)? {
            list.extend_from_slice(name.as_bytes());
            list.push(0);
        }
        store(&list, into, &what)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_removexattr(fs: FsHandle, path: *const c_char, name: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let Named { fs, inode, key, text } = unsafe { Named::new(&fs, path, name) }?;
        match key {
            XattrKey::Kept(name) => fs.client.remove_xattr(&fs.who, inode, &name).explain(|| text),
            XattrKey::Setting(_) => Err(Failure::new(libc::EPERM, format!("{text} is a setting: it can only be set"))),
        }
    })
}
