//! Sizes of files of which the kernel keeps pages, and how it learns of bytes that other clients have added.
//!
//! A read through pages that goes beyond the size that the kernel knows asks for the attributes, and ends at the size
//! that the kernel knows after the reply. But it disregards the size of a reply while a write that makes the file
//! longer, or a truncation, is in flight (`FUSE_I_SIZE_UNSTABLE`), and that of a reply to a request from before the end
//! of such a call or from before a notification (`attr_version`). The read would end before bytes that another client
//! has written, and a mount cannot know: the write may be on its way to it, or its reply not be processed. A mapping,
//! for which nobody asks, would end there, too, although its program has asked for the size. So before the reply to any
//! request for attributes the kernel is made to know of at least so many bytes ([`crate::Kernel::grow`]), which it
//! takes in any case.
//!
//! That must not keep the reply from telling it of a smaller size, after a cut by another client: of which of the two
//! it has to hear nobody can tell, for the mount does not know the kernel's size. So no page is dropped beside it, and
//! no byte stored; where the kernel's size is large enough, it changes nothing.
//!
//! A size that the kernel was made to know so is remembered, and not told again ([`KernelSizes::knows`]).
//!
//! Not here: sizes that become smaller: a reply to a READ that ends before the pages that were asked for tells them.

use crate::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_protocol::InodeNumber;
use weft_protocol::hash::FixedMap;

/// See the module.
#[derive(Default)]
pub(crate) struct KernelSizes {
    /// The kernel knows of at least so many bytes. Rank 3, held for one look.
    known: Mutex<FixedMap<InodeNumber, u64>>,
    /// How many sizes are remembered: most of the time none, and nobody has to lock.
    count: AtomicUsize,
}

impl KernelSizes {
    fn change(&self, change: impl FnOnce(&mut FixedMap<InodeNumber, u64>)) {
        let mut known = lock(&self.known);
        change(&mut known);
        self.count.store(known.len(), Ordering::Release);
    }

    /// Whether the kernel need not be told that the file has so many bytes. `is_leased`: nobody else can have made it
    /// longer since.
    pub fn knows(&self, inode: InodeNumber, size: u64, is_leased: bool) -> bool {
        size == 0 || lock(&self.known).get(&inode).is_some_and(|known| is_leased || *known >= size)
    }

    /// The kernel was made to know this size.
    pub fn grew(&self, inode: InodeNumber, size: u64) {
        self.change(|known| {
            known.insert(inode, size);
        });
    }

    /// The kernel will be told this size. If it is smaller, it may believe it. Returns whether it was made to know of
    /// more.
    pub fn told(&self, inode: InodeNumber, size: u64) -> bool {
        let mut knows_more = false;
        if self.count.load(Ordering::Acquire) > 0 {
            self.change(|known| {
                knows_more = known.get(&inode).is_some_and(|known| *known > size);
                if knows_more {
                    known.remove(&inode);
                }
            });
        }
        knows_more
    }

    /// Others may change the file, or it was closed.
    pub fn forget(&self, inode: InodeNumber) {
        self.told(inode, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber::from_raw(7);

    #[test]
    fn a_size_is_told_once_until_the_kernel_may_know_a_smaller_one() {
        let sizes = KernelSizes::default();
        assert!(sizes.knows(INODE, 0, false), "any size is as large");
        assert!(!sizes.knows(INODE, 10, true), "others may have made it longer before the lease");
        sizes.grew(INODE, 10);
        assert!(sizes.knows(INODE, 10, false) && sizes.knows(INODE, 9, false));
        assert!(!sizes.knows(INODE, 11, false));
        assert!(sizes.knows(INODE, 11, true), "only this mount has made it longer");
        assert!(!sizes.told(INODE, 10));
        assert!(sizes.knows(INODE, 10, false));
        assert!(sizes.told(INODE, 9), "it was made to know of more");
        assert!(!sizes.knows(INODE, 9, false));
        sizes.grew(INODE, 10);
        sizes.forget(INODE);
        assert!(!sizes.knows(INODE, 1, true));
    }
}
