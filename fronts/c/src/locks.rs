//! Advisory locks of byte ranges.

use crate::border::status;
use crate::handles::FileHandle;
use crate::raw;
use std::ffi::c_int;
use weft_library::{Explain, Failure, Outcome, lock_range, range_lock};
use weft_protocol::{LockRange, RangeLock};

const NOWAIT: c_int = 1;

/// `struct weft_lock`.
#[repr(C)]
pub struct Lock {
    start: i64,
    length: i64,
    exclusive: c_int,
}

impl Lock {
    fn range(&self) -> Outcome<LockRange> {
        lock_range(raw::unsigned(self.start, "the start")?, raw::unsigned(self.length, "the length")?)
    }

    fn lock(&self) -> Outcome<RangeLock> {
        let (start, length) = (raw::unsigned(self.start, "the start")?, raw::unsigned(self.length, "the length")?);
        range_lock(start, length, self.exclusive != 0)
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_lock(file: FileHandle, locks: *const Lock, length: usize, flags: c_int) -> c_int {
    status(|| {
        let file = file.get()?;
        // SAFETY: they are as `weft.h` says.
        let locks = unsafe { raw::slice(locks, length, "locks") }?;
        let locks = locks.iter().map(Lock::lock).collect::<Outcome<Vec<_>>>()?;
        let what = || format!("lock {} ranges", locks.len());
        match flags {
            0 => file.file()?.lock(&locks).explain(what),
            NOWAIT => file.file()?.try_lock(&locks).explain(what),
            _ => Err(Failure::invalid(format!("flags {flags:#x}: only WEFT_LOCK_NOWAIT is known"))),
        }
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_unlock(file: FileHandle, ranges: *const Lock, length: usize) -> c_int {
    status(|| {
        let file = file.get()?;
        // SAFETY: they are as `weft.h` says.
        let ranges = unsafe { raw::slice(ranges, length, "ranges") }?;
        let ranges = ranges.iter().map(Lock::range).collect::<Outcome<Vec<_>>>()?;
        file.file()?.unlock(&ranges).explain(|| format!("unlock {} ranges", ranges.len()))
    })
}
