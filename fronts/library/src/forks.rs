//! Which process this is: a forked child has its parent's memory, and nothing of its connections.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the memory was copied to a child, from the first connection on.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

/// A process, as far as this library can tell: a child differs from its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

/// The process that asks.
#[inline]
pub fn this_process() -> Process {
    Process(FORKS.load(Ordering::Relaxed))
}

/// Begins to tell children from their parent. To be called before the first connection is made.
pub fn watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded: its threads run in it.
        let error = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert!(error == 0, "pthread_atfork: errno {error}");
    });
}
