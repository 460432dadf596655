//! Who reads and writes files through a mount.

use std::num::NonZeroU32;

/// A thread of a program, as the kernel names it: by a number that no other thread of its PID namespace has at that
/// time.
pub type Thread = NonZeroU32;

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadBy {
    /// The bytes get into the kernel's pages.
    pub pages: bool,
    /// `None`: the kernel does not say, as in readahead and of other PID namespaces.
    pub thread: Option<Thread>,
}

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrittenBy {
    /// The kernel, from its page cache: it chose the handle; only inode and offset count.
    PageCache,
    /// A program. `pages`: the bytes are in the kernel's pages too. `synced`: it wants the bytes on the device when
    /// its write returns (O_SYNC, O_DSYNC, `RWF_DSYNC`), for which the kernel asks by itself only where it caches.
    /// `clears_set_id`: it is not allowed to leave set-id bits (without CAP_FSETID). `thread`: if the kernel says.
    Program { pages: bool, synced: bool, clears_set_id: bool, thread: Option<Thread> },
}
