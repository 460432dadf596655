//! Who writes to a file through a mount.

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrittenBy {
    /// The kernel, from its page cache: it chose the handle; only inode and offset count.
    PageCache,
    /// A program. `pages`: the bytes are in the kernel's pages too. `synced`: it wants the bytes on the device when
    /// its write returns (O_SYNC, O_DSYNC, `RWF_DSYNC`), for which the kernel asks by itself only where it caches.
    /// `clears_set_id`: it is not allowed to leave set-id bits (without CAP_FSETID).
    Program { pages: bool, synced: bool, clears_set_id: bool },
}
