//! Sizes of files of which the kernel keeps pages, and how it learns of bytes that other clients have added.
//!
//! A read through pages that goes beyond the size that the kernel knows asks for the attributes, and ends at the size
//! that the kernel knows after the reply. But it disregards the size of a reply while a write that makes the file
//! longer, or a truncation, is in flight (`FUSE_I_SIZE_UNSTABLE`), and that of a reply to a request from before the end
//! of such a call or from before a notification (`attr_version`). The read would end before bytes that another client
//! has written, and a mount cannot know: the write may be on its way to it, or its reply not be processed. So before
//! such a reply the last byte of the file is stored into its page: FUSE_NOTIFY_STORE makes the size that large in any
//! case (`files.rs`).
//!
//! What must not be undone by that byte:
//! - Stores of a mapping, and writes of this mount: the page is dropped before, which writes it back, and after.
//! - A change by another client: the byte is read as a page is, so that the storage server has it dropped before the
//!   change, and that waits for a byte that is on its way ([`KernelSizes::on_their_way`]).
//!
//! A size that the kernel was made to know so is remembered, and not told again ([`KernelSizes::knows`]).
//!
//! Not here: sizes that become smaller: a reply to a READ that ends before the pages that were asked for tells them.

use crate::lock::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// See the module. `S`: a signal of the shell.
pub(crate) struct KernelSizes<S> {
    /// Rank 3. Held for one look.
    state: Mutex<State<S>>,
    /// How many sizes are remembered: most of the time none, and nobody has to lock.
    known: AtomicUsize,
}

struct State<S> {
    known: FixedMap<InodeNumber, Known>,
    /// Bytes on their way into pages.
    stored: Vec<Stored<S>>,
}

#[derive(Clone, Copy)]
struct Known {
    /// The kernel knows of at least so many bytes.
    size: u64,
    /// Others may have changed the file since.
    is_shared: bool,
}

struct Stored<S> {
    inode: InodeNumber,
    offset: u64,
    done: Arc<S>,
}

impl<S> Default for KernelSizes<S> {
    fn default() -> Self {
        let state = State { known: FixedMap::default(), stored: Vec::new() };
        Self { state: Mutex::new(state), known: AtomicUsize::new(0) }
    }
}

impl<S> KernelSizes<S> {
    fn change<T>(&self, change: impl FnOnce(&mut State<S>) -> T) -> T {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        self.known.store(state.known.len(), Ordering::Release);
        result
    }

    /// Whether the kernel need not be told that the file has so many bytes. `is_leased`: nobody else can have made it
    /// longer since. A smaller size is for the reply to tell: what is stored before it would make the kernel disregard
    /// it.
    pub fn knows(&self, inode: InodeNumber, size: u64, is_leased: bool) -> bool {
        let known = lock(&self.state).known.get(&inode).copied();
        size == 0
            || known.is_some_and(|known| match known.is_shared {
                true => known.size > size,
                false => is_leased || known.size >= size,
            })
    }

    /// The kernel will be told this size. If it is smaller, it may believe it.
    pub fn told(&self, inode: InodeNumber, size: u64) {
        if self.known.load(Ordering::Acquire) > 0 {
            self.change(|state| {
                if state.known.get(&inode).is_some_and(|known| known.size > size) {
                    state.known.remove(&inode);
                }
            });
        }
    }

    /// Others may change the file.
    pub fn shared(&self, inode: InodeNumber) {
        if self.known.load(Ordering::Acquire) > 0 {
            self.change(|state| {
                if let Some(known) = state.known.get_mut(&inode) {
                    known.is_shared = true;
                }
            });
        }
    }

    /// An open file was closed.
    pub fn forget(&self, inode: InodeNumber) {
        self.told(inode, 0);
    }

    /// A byte is about to be read, and stored then.
    pub fn begin(&self, inode: InodeNumber, offset: u64) -> Arc<S>
    where
        S: Default,
    {
        let done = Arc::new(S::default());
        let stored = Stored { inode, offset, done: done.clone() };
        self.change(|state| state.stored.push(stored));
        done
    }

    /// It was stored, or not. `size`: what the kernel knows now, if it does.
    pub fn end(&self, inode: InodeNumber, done: &Arc<S>, size: Option<u64>) {
        self.change(|state| {
            state.stored.retain(|stored| !Arc::ptr_eq(&stored.done, done));
            if let Some(size) = size {
                state.known.insert(inode, Known { size, is_shared: false });
            }
        });
    }

    /// Bytes of a range that are on their way into pages. They are to be waited for before pages of it are dropped.
    pub fn on_their_way(&self, inode: InodeNumber, offset: u64, bytes: u64) -> Vec<Arc<S>> {
        let end = offset.saturating_add(bytes);
        let is_in_range = |stored: &&Stored<S>| stored.inode == inode && (offset..end).contains(&stored.offset);
        lock(&self.state).stored.iter().filter(is_in_range).map(|stored| stored.done.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber::from_raw(7);

    fn tell(sizes: &KernelSizes<()>, size: u64) {
        let done = sizes.begin(INODE, size - 1);
        sizes.end(INODE, &done, Some(size));
    }

    #[test]
    fn a_size_is_told_once_until_the_kernel_may_know_a_smaller_one() {
        let sizes = KernelSizes::default();
        assert!(sizes.knows(INODE, 0, false), "there is no byte to be stored");
        assert!(!sizes.knows(INODE, 10, true), "others may have made it longer before the lease");
        tell(&sizes, 10);
        assert!(sizes.knows(INODE, 10, false) && sizes.knows(INODE, 9, false));
        assert!(!sizes.knows(INODE, 11, false));
        assert!(sizes.knows(INODE, 11, true), "only this mount has made it longer");
        sizes.told(INODE, 10);
        assert!(sizes.knows(INODE, 10, false));
        sizes.told(INODE, 9);
        assert!(!sizes.knows(INODE, 9, false));
        tell(&sizes, 10);
        sizes.shared(INODE);
        assert!(!sizes.knows(INODE, 10, true), "it may have been shorter, and be longer again");
        assert!(sizes.knows(INODE, 9, false), "the reply tells of a cut");
        sizes.forget(INODE);
        assert!(!sizes.knows(INODE, 1, true));
    }
}
