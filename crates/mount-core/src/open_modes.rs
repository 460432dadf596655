//! Through which cache the kernel takes an open file, per inode.
//!
//! | mode | when | the kernel |
//! | --- | --- | --- |
//! | passthrough | the object's descriptor is passed | reads and writes the object itself; no pages of ours |
//! | cached | otherwise, a data lease is held | keeps pages; a recall drops them (`invalidate.rs`) |
//! | direct | no lease, or asked for (O_DIRECT, `direct` mount) | keeps nothing; each read and write comes here |
//!
//! Only O_DIRECT keeps the client library, too, from reading ahead and gathering.
//!
//! The kernel wants one thing of us: while an inode is open in passthrough mode, every other open of it has the same
//! backing file, and no cached one is open when the first of them begins. Otherwise `open` fails with EIO. One whose
//! bytes have to come here nevertheless (O_DIRECT; writes under a cap) is told to the kernel as both
//! ([`Mode::Joined`]).
//!
//! Pages stay in memory when a file is closed. They may be used at the next open if nobody else changed the file
//! meanwhile: no recall dropped them, and size and modification time are those that were seen last.
//!
//! Invariant: the counts are those of the open files, from before the kernel is told of an open until after it told of
//! the release; so they are never smaller than the kernel's.
//! Not here: the open files themselves (`files.rs`).

use crate::lock::lock;
use std::sync::{Arc, Mutex, MutexGuard};
use weft_protocol::hash::FixedMap;
use weft_protocol::{Attributes, InodeNumber, Timestamp};

/// Inodes that are remembered after their last close. Beyond it all are forgotten: their next open drops their pages.
const CLOSED_INODES_MAX: usize = 1 << 18;

/// What tells a change of contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    size: u64,
    mtime: Timestamp,
}

impl Stamp {
    pub fn of(attributes: &Attributes) -> Self {
        Self { size: attributes.size, mtime: attributes.mtime }
    }
}

/// How a file could be opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// A data lease is held and nobody asked for direct I/O.
    pub cached: bool,
    /// Contents as they are at this open; `None`: not known.
    pub stamp: Option<Stamp>,
    /// The kernel may read and write the object through the file of this number, should the inode be in passthrough
    /// mode with it.
    pub lent: Option<u64>,
}

/// How a file is opened. `B` is the kernel's backing file.
#[derive(Debug)]
pub enum Mode<B> {
    Direct,
    /// `keep`: the pages of this inode that are in memory are good.
    Cached {
        keep: bool,
    },
    Passthrough(Arc<B>),
    /// Open beside others in passthrough mode; reads and writes come here.
    Joined(Arc<B>),
}

impl<B> Clone for Mode<B> {
    fn clone(&self) -> Self {
        match self {
            Mode::Direct => Mode::Direct,
            Mode::Cached { keep } => Mode::Cached { keep: *keep },
            Mode::Passthrough(backing) => Mode::Passthrough(backing.clone()),
            Mode::Joined(backing) => Mode::Joined(backing.clone()),
        }
    }
}

/// How an inode is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Closed,
    Passthrough,
    /// Without a backing file, and it is too late to begin with one. A file that is open in direct mode counts too: it
    /// may be mapped, which makes it a cached one for the kernel.
    Other,
}

/// The modes of all inodes.
pub struct OpenModes<B> {
    /// Rank 1. Held for one look.
    inodes: Mutex<FixedMap<InodeNumber, Inode<B>>>,
}

struct Inode<B> {
    direct: u32,
    cached: u32,
    passthrough: u32,
    /// There while `passthrough` is not 0, with the number of the file that was lent. Files that are open beside others
    /// may keep one that was given back, and the next one that is lent is another.
    backing: Option<(Arc<B>, u64)>,
    /// What the pages in memory were read from; `None`: there are none worth keeping.
    pages: Option<Stamp>,
}

impl<B> Default for Inode<B> {
    fn default() -> Self {
        Self { direct: 0, cached: 0, passthrough: 0, backing: None, pages: None }
    }
}

impl<B> Inode<B> {
    fn is_open(&self) -> bool {
        self.direct + self.cached + self.passthrough > 0
    }

    fn open(&mut self, wish: Wish) -> Mode<B> {
        if let Some((backing, number)) = &self.backing {
            self.passthrough += 1;
            let backing = backing.clone();
            return if wish.lent == Some(*number) { Mode::Passthrough(backing) } else { Mode::Joined(backing) };
        }
        if !wish.cached {
            self.direct += 1;
            return Mode::Direct;
        }
        self.cached += 1;
        let keep = wish.stamp.is_some() && wish.stamp == self.pages;
        self.pages = wish.stamp;
        Mode::Cached { keep }
    }
}

impl<B> Default for OpenModes<B> {
    fn default() -> Self {
        Self { inodes: Mutex::default() }
    }
}

impl<B> OpenModes<B> {
    fn lock(&self) -> MutexGuard<'_, FixedMap<InodeNumber, Inode<B>>> {
        lock(&self.inodes)
    }

    /// How the inode is open by now.
    pub fn phase(&self, inode: InodeNumber) -> Phase {
        match self.lock().get(&inode) {
            Some(entry) if entry.backing.is_some() => Phase::Passthrough,
            Some(entry) if entry.is_open() => Phase::Other,
            _ => Phase::Closed,
        }
    }

    /// Returns true if the kernel has the inode open cached.
    pub fn is_cached(&self, inode: InodeNumber) -> bool {
        self.lock().get(&inode).is_some_and(|entry| entry.cached > 0)
    }

    /// Chooses the mode of one more open file and counts it.
    pub fn begin(&self, inode: InodeNumber, wish: Wish) -> Mode<B> {
        let mut inodes = self.lock();
        if inodes.len() >= CLOSED_INODES_MAX && !inodes.contains_key(&inode) {
            inodes.retain(|_, inode| inode.is_open());
        }
        inodes.entry(inode).or_default().open(wish)
    }

    /// The same with a backing file that the kernel knows, of the file that was lent. It is dropped when the inode was
    /// opened meanwhile.
    pub fn begin_with_backing(&self, inode: InodeNumber, wish: Wish, backing: B) -> Mode<B> {
        let mut unused = None;
        let mut inodes = self.lock();
        let entry = inodes.entry(inode).or_default();
        if entry.is_open() {
            unused = Some(backing);
        } else {
            let number = wish.lent.expect("a backing file is made of one that was lent");
            entry.backing = Some((Arc::new(backing), number));
            // The kernel writes past its own pages now.
            entry.pages = None;
        }
        let mode = entry.open(wish);
        drop(inodes);
        // Outside of the lock: it tells the kernel.
        drop(unused);
        mode
    }

    /// An open file was released, or its open failed after all.
    pub fn end(&self, inode: InodeNumber, mode: &Mode<B>) {
        let mut inodes = self.lock();
        let Some(entry) = inodes.get_mut(&inode) else { return };
        match mode {
            Mode::Direct => entry.direct -= 1,
            Mode::Cached { .. } => entry.cached -= 1,
            Mode::Passthrough(_) | Mode::Joined(_) => entry.passthrough -= 1,
        }
        let last_backing = if entry.passthrough == 0 { entry.backing.take() } else { None };
        if !entry.is_open() && entry.pages.is_none() {
            inodes.remove(&inode);
        }
        drop(inodes);
        // Outside of the lock: it may tell the kernel.
        drop(last_backing);
    }

    /// The own writes made this of the contents: pages stay good.
    pub fn written(&self, inode: InodeNumber, stamp: Stamp) {
        if let Some(entry) = self.lock().get_mut(&inode)
            && entry.pages.is_some()
        {
            entry.pages = Some(stamp);
        }
    }

    /// Somebody else changes the contents.
    pub fn recalled(&self, inode: InodeNumber) {
        let mut inodes = self.lock();
        if let Some(entry) = inodes.get_mut(&inode) {
            entry.pages = None;
            if !entry.is_open() {
                inodes.remove(&inode);
            }
        }
    }

    /// The kernel dropped the inode, with its pages.
    pub fn forgotten(&self, inode: InodeNumber) {
        // An open file's inode is not forgotten: this tells of an older life of the number. No pages, to be safe.
        self.recalled(inode);
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber::from_raw(7);

    fn stamp(size: u64) -> Option<Stamp> {
        Some(Stamp { size, mtime: Timestamp(3) })
    }

    fn open(modes: &OpenModes<u32>, stamp: Option<Stamp>) -> Mode<u32> {
        modes.begin(INODE, Wish { cached: true, stamp, lent: None })
    }

    fn keeps(mode: &Mode<u32>) -> bool {
        matches!(mode, Mode::Cached { keep: true })
    }

    #[test]
    fn pages_are_kept_while_nobody_else_changes_the_file() {
        let modes = OpenModes::default();
        let first = open(&modes, stamp(10));
        assert!(!keeps(&first), "what is in memory from before is not known");
        modes.end(INODE, &first);
        let second = open(&modes, stamp(10));
        assert!(keeps(&second));
        modes.recalled(INODE);
        modes.end(INODE, &second);
        let third = open(&modes, stamp(10));
        assert!(!keeps(&third), "a recall dropped them");
        modes.written(INODE, stamp(20).unwrap());
        modes.end(INODE, &third);
        assert!(keeps(&open(&modes, stamp(20))), "own writes are in the pages");
        assert!(!keeps(&open(&modes, stamp(21))), "a change that nobody told of");
        assert!(!keeps(&open(&modes, None)), "contents are not known");
        assert!(!keeps(&open(&modes, None)));
    }

    #[test]
    fn what_is_not_cached_leaves_no_trace() {
        let modes = OpenModes::default();
        let direct = modes.begin(INODE, Wish::default());
        assert!(matches!(direct, Mode::Direct));
        modes.end(INODE, &direct);
        assert_eq!(modes.count(), 0);
        let cached = open(&modes, stamp(1));
        modes.end(INODE, &cached);
        assert_eq!(modes.count(), 1);
        modes.forgotten(INODE);
        assert_eq!(modes.count(), 0);
    }

    #[test]
    fn passthrough_begins_alone_and_then_is_for_all() {
        let modes = OpenModes::default();
        let wish = Wish { cached: true, stamp: None, lent: Some(7) };
        let cached = open(&modes, stamp(1));
        assert_eq!(modes.phase(INODE), Phase::Other);
        let late = modes.begin_with_backing(INODE, wish, 0);
        assert!(matches!(late, Mode::Cached { .. }), "a cached one was faster");
        modes.end(INODE, &cached);
        modes.end(INODE, &late);
        assert_eq!(modes.phase(INODE), Phase::Closed);
        let first = modes.begin_with_backing(INODE, wish, 1);
        let raced = modes.begin_with_backing(INODE, wish, 2);
        for mode in [&first, &raced] {
            assert!(matches!(mode, Mode::Passthrough(backing) if **backing == 1), "{mode:?}");
        }
        let direct = modes.begin(INODE, Wish::default());
        assert!(matches!(&direct, Mode::Joined(backing) if **backing == 1), "{direct:?}");
        let other = modes.begin(INODE, Wish { lent: Some(8), ..wish });
        assert!(matches!(&other, Mode::Joined(_)), "it was lent another file than the kernel has: {other:?}");
        assert_eq!(modes.phase(INODE), Phase::Passthrough);
        let Mode::Passthrough(backing) = &first else { unreachable!() };
        let backing = Arc::downgrade(backing);
        for mode in [first, raced, direct, other] {
            assert!(backing.upgrade().is_some());
            modes.end(INODE, &mode);
        }
        assert!(backing.upgrade().is_none(), "given back after the last release");
        assert!(matches!(open(&modes, stamp(1)), Mode::Cached { keep: false }));
    }
}
