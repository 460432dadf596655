//! An object that a kernel reads and writes by itself.
//!
//! A mount can hand the object's descriptor to its kernel (FUSE passthrough). From then on programs' bytes go past this
//! process, and nothing takes the descriptor back before the last close: no recall, no end of a session. So it is given
//! under any lease or none, and what holds instead is this:
//! - The object stays the file's while anybody has the file open: the shard cuts it in place.
//! - Nothing is gathered or read ahead here beside a kernel; other handles read and write the same object at once.
//! - Size and time are the object's: they are looked up whenever they are told or reported.
//!
//! Only when the session was lost and somebody cut the file before it was opened anew, the kernel is left with an
//! object that is no file's any more: then the next flush fails if the kernel has written to it.

use super::{OpenInode, State};
use crate::client::{Inner, Way};
use crate::data_calls::of_errno;
use crate::link::lock;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::{Error, NodeId, ObjectId, Result, Timestamp};

/// What a kernel has of an inode.
pub(super) struct KernelUse {
    pub file: Arc<OwnedFd>,
    object: ObjectId,
    /// The descriptor was passed for writing too.
    writable: bool,
    handles: u32,
    /// Those of the handles that write.
    writers: u32,
    /// Modification time of the object when it was looked at last.
    seen: Timestamp,
}

impl OpenInode {
    /// The object's file for one more handle of a kernel, and whether the handle may write through it. `None`: it is on
    /// another node, not passed, or not there and not to be made (`writes` is false). `direct`: what is written
    /// survives this client, so the shard has to know the object first. Costs a data request at the first handle.
    pub fn lend(&self, inner: &Inner, writes: bool, direct: bool) -> Option<(Arc<OwnedFd>, bool)> {
        let mut state = self.lock(inner).ok()?;
        if state.kernel.as_ref().is_none_or(|kernel| writes && !kernel.writable) {
            match state.pass(inner, writes, direct) {
                Ok(Some((file, object))) => state.kernel_got(file, object),
                Ok(None) => {}
                // Whoever writes next, or closes, is told if it lasts.
                Err(error) => tracing::debug!("inode {} is not passed to the kernel: {error}", self.inode),
            }
        }
        let kernel = state.kernel.as_mut()?;
        let may_write = writes && kernel.writable;
        kernel.handles += 1;
        kernel.writers += u32::from(may_write);
        Some((Arc::clone(&kernel.file), may_write))
    }

    /// A kernel has closed such a handle.
    pub fn lent_back(&self, may_write: bool) {
        let mut state = lock(&self.state);
        state.look();
        let Some(kernel) = &mut state.kernel else { return };
        kernel.handles -= 1;
        kernel.writers -= u32::from(may_write);
        if kernel.handles == 0 {
            state.kernel = None;
        }
        drop(state);
        // What readers had at hand from before the kernel wrote is old.
        self.changed();
    }
}

impl Inner {
    /// Whether a node is on this machine, so that it passes descriptors.
    pub fn is_near(&self, node: NodeId) -> bool {
        self.way() == Way::Auto && self.map().node(node).is_some_and(|node| node.identity == self.identity.node)
    }

    /// Whether a node may pass a descriptor.
    pub fn may_pass(&self, node: NodeId, for_writing: bool) -> bool {
        self.is_near(node) && !lock(&self.passes_none).contains(&(node, for_writing))
    }

    /// A node has no descriptor of an object. To the owner's key that is so for all objects: its store has none to
    /// give, or counts what is written.
    pub fn note_passes_none(&self, node: NodeId, for_writing: bool) {
        if !self.identity.is_user() {
            lock(&self.passes_none).insert((node, for_writing));
        }
    }
}

impl State {
    /// The object's file, with the object made and all gathered bytes in it.
    fn pass(&mut self, inner: &Inner, writes: bool, direct: bool) -> Result<Option<(Arc<OwnedFd>, ObjectId)>> {
        self.regain(inner)?;
        if self.known.held().is_none() {
            if !writes || !inner.is_near(inner.home()) || inner.home_passes_none.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.ensure_object(inner)?;
        }
        self.send_all(inner)?;
        let mut file = self.descriptor(inner, self.known.writes())?;
        if self.known.object_is_new() {
            if file.is_none() {
                // Its store has a cap: that stays so.
                inner.home_passes_none.store(true, Ordering::Relaxed);
            } else if self.known.reports_object(direct) && !self.commit(inner)? {
                // Another client's object came first.
                self.regain(inner)?;
                file = self.descriptor(inner, self.known.writes())?;
            }
        }
        Ok(file.zip(self.known.object()))
    }

    fn kernel_got(&mut self, file: Arc<OwnedFd>, object: ObjectId) {
        let writable = self.descriptor_to_write().is_some();
        let seen = stat_of(&file).map_or(self.known.attributes().mtime, |(_, mtime)| mtime);
        match &mut self.kernel {
            // One file for all: the kernel goes on with the one that it got first.
            Some(kernel) => kernel.writable |= writable && kernel.object == object,
            None => self.kernel = Some(Box::new(KernelUse { file, object, writable, handles: 0, writers: 0, seen })),
        }
    }

    /// The object's file in the kernel's hands, as long as it is the file's object.
    pub(super) fn kernel_file(&self) -> Option<&Arc<OwnedFd>> {
        let held = self.known.object();
        self.kernel.as_ref().filter(|kernel| held == Some(kernel.object)).map(|kernel| &kernel.file)
    }

    /// Whether a kernel may change size and time at any moment.
    pub(super) fn kernel_writes(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.writers > 0)
    }

    /// Takes over what a kernel has made of size and time.
    pub(super) fn look(&mut self) {
        let held = self.known.object();
        let Some(kernel) = &mut self.kernel else { return };
        // An open file of this machine: it has a size.
        let Ok((size, mtime)) = stat_of(&kernel.file) else { return };
        let is_current = held == Some(kernel.object);
        let is_changed = mtime != kernel.seen || (is_current && size != self.known.size());
        let is_written = is_changed && kernel.writers > 0;
        kernel.seen = mtime;
        if is_current {
            self.known.looked_up(size, if is_written { mtime } else { self.known.attributes().mtime });
        }
        if is_written && is_current {
            self.known.changed_unseen();
        } else if is_written {
            self.known.fail(Error::SessionEnded);
        }
    }

    /// The shard has changed the attributes on our behalf: what a cut did to the object's time is no write.
    pub(super) fn kernel_sees_change(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        if let Ok((size, mtime)) = stat_of(&kernel.file)
            && size == self.known.size()
        {
            kernel.seen = mtime;
        }
    }
}

/// Size and modification time of an object's file.
pub(super) fn stat_of(file: &OwnedFd) -> Result<(u64, Timestamp)> {
    let stat = rustix::fs::fstat(file).map_err(of_errno)?;
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Ok((stat.st_size.cast_unsigned(), Timestamp::from_parts(stat.st_mtime, nanoseconds)))
}
