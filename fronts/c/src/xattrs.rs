//! Extended attributes.

use crate::border::{count, status};
use crate::connection::FsHandle;
use crate::raw;
use std::ffi::{c_char, c_int, c_void};
use weft_library::{Place, expectation};

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
        let (place, name, into) = unsafe {
            let place = Place::new(&fs, raw::text(path, "path")?);
            (place, raw::text(name, "name")?, raw::slice_mut(value.cast::<u8>(), length, "value")?)
        };
        raw::store(&place.xattr(name)?, into, || format!("{} of {place}", String::from_utf8_lossy(name)))
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
        let (place, name, value) = unsafe {
            let place = Place::new(&fs, raw::text(path, "path")?);
            (place, raw::text(name, "name")?, raw::slice(value.cast::<u8>(), length, "value")?)
        };
        place.set_xattr(name, value, expectation(flags)?)
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
        let mut list = Vec::new();
        for name in place.xattrs()? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        raw::store(&list, into, || format!("the extended attributes of {place}"))
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_removexattr(fs: FsHandle, path: *const c_char, name: *const c_char) -> c_int {
    status(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (path, name) = unsafe { (raw::text(path, "path")?, raw::text(name, "name")?) };
        Place::new(&fs, path).remove_xattr(name)
    })
}
