//! Threads of the library leave the program's signals to the program's threads.

use std::mem::MaybeUninit;

/// Runs something with all signals blocked: threads that it starts keep them so.
pub fn blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initializes the set, pthread_sigmask stores the mask that was; both succeed with these.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: the mask was stored above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
