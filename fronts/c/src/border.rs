//! What every call from C passes through.

use crate::forks;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weft_protocol::Error;

/// Why a call fails.
#[derive(Debug)]
pub struct Failure {
    /// As of errno(3).
    pub errno: i32,
    /// What was tried, on what, why it failed.
    pub text: String,
}

/// Result of a call, or of a step of it.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this text.
    pub fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// An argument that cannot be.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }
}

/// Adds to an error what was being done.
pub trait Explain<T> {
    /// `what` names the operation and its object: `open /a/b`.
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T> Explain<T> for weft_protocol::Result<T> {
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error: Error| Failure::new(error.to_errno(), format!("{}: {error}", what())))
    }
}

thread_local! {
    /// What `weft_strerror` tells of the thread's last failure.
    static LAST: RefCell<(i32, CString)> = RefCell::default();
}

/// Runs a call. Returns the count, or -errno.
pub fn count(call: impl FnOnce() -> Outcome<usize>) -> isize {
    // What a panic left half done belongs to the client library, whose locks and tables stand a panic.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Failure::new(libc::EIO, "a defect of libweft: what it says stands on standard error; please report it"))
    });
    match outcome {
        Ok(count) => isize::try_from(count).expect("no call moves more bytes than a slice can have"),
        Err(failure) => {
            let errno = failure.errno;
            remember(errno, &failure.text);
            -(errno as isize)
        }
    }
}

/// As [`count`], of a call that returns 0.
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
pub fn check_not_forked(made_in: forks::Process) -> Outcome {
    if made_in == forks::this_process() {
        return Ok(());
    }
    let text = "the handle was made before fork(): the connection is the parent's; call weft_connect() in the child";
    Err(Failure::new(libc::ENOTCONN, text))
}
