//! Opening, reading and writing.

use crate::border::{count, status};
use crate::connection::FsHandle;
use crate::extents::{self, Extent, Strided};
use crate::handles::FileHandle;
use crate::raw;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use weft_library::{Explain, Failure, Hints, OpenFile, Outcome, Place};

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_open(
    fs: FsHandle,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    file: Option<&mut FileHandle>,
) -> c_int {
    status(|| {
        let file = out(file)?;
        let fs = fs.get()?;
        // SAFETY: it is as `weft.h` says.
        let place = Place::new(&fs, unsafe { raw::text(path, "path") }?);
        *file = FileHandle::new(Arc::new(OpenFile::open(&place, flags, mode, &Hints::default())?))?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_openat(
    directory: FileHandle,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    hints: *const c_char,
    file: Option<&mut FileHandle>,
) -> c_int {
    status(|| {
        let file = out(file)?;
        let directory = directory.get()?;
        // SAFETY: both are as `weft.h` says.
        let (path, hints) = unsafe { (raw::text(path, "path")?, raw::optional_text(hints)) };
        let hints = hints.map(Hints::parse).transpose()?.unwrap_or_default();
        let place = Place::at(&directory, path)?;
        *file = FileHandle::new(Arc::new(OpenFile::open(&place, flags, mode, &hints)?))?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_root(fs: FsHandle, directory: Option<&mut FileHandle>) -> c_int {
    status(|| {
        let directory = out(directory)?;
        *directory = FileHandle::new(Arc::new(OpenFile::root(&*fs.get()?)))?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_layout(file: FileHandle, text: *mut c_char, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let into = unsafe { raw::slice_mut(text.cast::<u8>(), length, "text") }?;
        raw::store(file.layout()?.as_bytes(), into, || "the layout".to_owned())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_export(file: FileHandle, handle: *mut c_void, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let into = unsafe { raw::slice_mut(handle.cast::<u8>(), length, "handle") }?;
        raw::store(&file.export()?, into, || "the exported handle".to_owned())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_import(
    fs: FsHandle,
    handle: *const c_void,
    length: usize,
    hints: *const c_char,
    file: Option<&mut FileHandle>,
) -> c_int {
    status(|| {
        let file = out(file)?;
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (exported, hints) =
            unsafe { (raw::slice(handle.cast::<u8>(), length, "handle")?, raw::optional_text(hints)) };
        let hints = hints.map(Hints::parse).transpose()?.unwrap_or_default();
        *file = FileHandle::new(Arc::new(OpenFile::import(&fs, exported, &hints)?))?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_hand_out(file: FileHandle, bytes: *mut c_void, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let into = unsafe { raw::slice_mut(bytes.cast::<u8>(), length, "bytes") }?;
        raw::store(&file.hand_out()?, into, || "what is handed out".to_owned())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_publish_for(
    file: FileHandle,
    bytes: *const c_void,
    length: usize,
    results: *mut c_int,
    max: usize,
) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: both are as `weft.h` says.
        let (bytes, results) =
            unsafe { (raw::slice(bytes.cast::<u8>(), length, "bytes")?, raw::slice_mut(results, max, "results")?) };
        let told = file.publish_for(bytes)?;
        for (result, told) in results.iter_mut().zip(&told) {
            *result = told.as_ref().map_or_else(|error| -error.to_errno(), |()| 0);
        }
        Ok(told.len())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_published(file: FileHandle, result: c_int) -> c_int {
    status(|| file.get()?.published(result == 0))
}

/// Where a handle goes: none, as long as the call has not succeeded.
fn out(file: Option<&mut FileHandle>) -> Outcome<&mut FileHandle> {
    let file = raw::required(file, "the place for the handle")?;
    *file = FileHandle::NONE;
    Ok(file)
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_close(file: FileHandle) -> c_int {
    status(|| file.take()?.flush("close"))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_pread(file: FileHandle, memory: *mut c_void, length: usize, offset: i64) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let memory = unsafe { raw::slice_mut(memory.cast(), length, "memory") }?;
        file.read(memory, raw::offset(offset)?)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_pwrite(file: FileHandle, memory: *const c_void, length: usize, offset: i64) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let memory = unsafe { raw::slice(memory.cast(), length, "memory") }?;
        file.write(memory, raw::offset(offset)?)?;
        Ok(length)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_preadv(file: FileHandle, vector: *const libc::iovec, pieces: c_int, offset: i64) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let extents = extents::of_vector(unsafe { raw::slice(vector, pieces_of(pieces)?, "vector") }?, offset)?;
        // SAFETY: it is as `weft.h` says.
        unsafe { extents::read(&file, &extents) }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_pwritev(file: FileHandle, vector: *const libc::iovec, pieces: c_int, offset: i64) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let extents = extents::of_vector(unsafe { raw::slice(vector, pieces_of(pieces)?, "vector") }?, offset)?;
        // SAFETY: it is as `weft.h` says.
        unsafe { extents::write_together(&file, &extents) }
    })
}

fn pieces_of(count: c_int) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| Failure::invalid(format!("count is {count}")))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_read(file: FileHandle, memory: *mut c_void, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let memory = unsafe { raw::slice_mut(memory.cast(), length, "memory") }?;
        file.read_on(memory)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_write(file: FileHandle, memory: *const c_void, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: it is as `weft.h` says.
        let memory = unsafe { raw::slice(memory.cast(), length, "memory") }?;
        file.write_on(memory)?;
        Ok(length)
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_lseek(file: FileHandle, offset: i64, whence: c_int) -> i64 {
    let result = count(|| {
        let position = file.get()?.seek(offset, whence)?;
        Ok(usize::try_from(position).expect("offsets and memory have 64 bits"))
    });
    result as i64
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_read_list(file: FileHandle, list: *const Extent, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: the list and its extents are as `weft.h` says.
        unsafe { extents::read(&file, raw::slice(list, length, "extents")?) }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_write_list(file: FileHandle, list: *const Extent, length: usize) -> isize {
    count(|| {
        let file = file.get()?;
        // SAFETY: the list and its extents are as `weft.h` says.
        unsafe { extents::write(&file, raw::slice(list, length, "extents")?) }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_read_strided(file: FileHandle, pattern: Option<&Strided>) -> isize {
    count(|| {
        let file = file.get()?;
        let extents = raw::required(pattern, "pattern")?.extents()?;
        // SAFETY: they are as `weft.h` says.
        unsafe { extents::read(&file, &extents) }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_write_strided(file: FileHandle, pattern: Option<&Strided>) -> isize {
    count(|| {
        let file = file.get()?;
        let extents = raw::required(pattern, "pattern")?.extents()?;
        // SAFETY: they are as `weft.h` says.
        unsafe { extents::write(&file, &extents) }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_fsync(file: FileHandle) -> c_int {
    status(|| file.get()?.file()?.sync().explain(|| "fsync"))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_flush(file: FileHandle) -> c_int {
    status(|| file.get()?.file()?.flush().explain(|| "flush"))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_ftruncate(file: FileHandle, length: i64) -> c_int {
    status(|| {
        let length = raw::unsigned(length, "the length")?;
        file.get()?.file()?.truncate(length).explain(|| format!("ftruncate to {length}"))
    })
}
