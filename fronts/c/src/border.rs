//! What every call from C passes through.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weft_library::{Failure, Outcome, Process, this_process};

thread_local! {
    /// What `weft_strerror` tells of the thread's last failure.
    static LAST: RefCell<(i32, CString)> = RefCell::default();
}

/// Runs a call. Returns the count, or -errno.
#[inline(always)]
pub fn count(call: impl FnOnce() -> Outcome<usize>) -> isize {
    // What a panic left half done belongs to the client library, whose locks and tables stand a panic.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Failure::new(libc::EIO, "a defect of libweft: what it says stands on standard error; please report it"))
    });
    match outcome {
        Ok(count) => isize::try_from(count).expect("no call moves more bytes than a slice can have"),
        Err(failure) => {
            let errno = failure.errno();
            remember(errno, failure.text());
            -(errno as isize)
        }
    }
}

/// As [`count`], of a call that returns 0.
#[inline(always)]
pub fn status(call: impl FnOnce() -> Outcome) -> c_int {
    let result = count(|| call().map(|()| 0));
    c_int::try_from(result).expect("an errno is a small number")
}

fn remember(errno: i32, text: &str) {
    let text = CString::new(text.replace('\0', "?")).expect("there is no 0 byte left in it");
    // While the thread ends it has nowhere to keep the text any more.
    let _ = LAST.try_with(|last| last.replace((errno, text)));
}

/// See `weft.h`. The text stays until the thread's next failure.
#[unsafe(no_mangle)]
extern "C" fn weft_strerror(error: c_int) -> *const c_char {
    let errno = error.checked_abs().unwrap_or(0);
    let own = |last: &RefCell<(i32, CString)>| {
        let last = last.borrow();
        (last.0 == errno && errno != 0).then(|| last.1.as_ptr())
    };
    match LAST.try_with(own) {
        Ok(Some(text)) => text,
        // SAFETY: it takes any number; glibc's texts are constant, or the thread's own.
        _ => unsafe { libc::strerror(errno) },
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no 0 byte"),
    };
    VERSION.as_ptr()
}

/// Refuses what a forked child does with its parent's connection.
#[inline]
pub fn check_not_forked(made_in: Process) -> Outcome {
    if made_in == this_process() {
        return Ok(());
    }
    let text = "the handle was made before fork(): the connection is the parent's; call weft_connect() in the child";
    Err(Failure::new(libc::ENOTCONN, text))
}
