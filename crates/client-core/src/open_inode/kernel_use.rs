//! An object that a kernel reads and writes by itself.
//!
//! A mount can pass the object's descriptor to its kernel (FUSE passthrough). From then on programs' bytes bypass
//! this process, and nothing takes the descriptor back before the last close: no recall, no end of a session. So it
//! is lent under any lease or none, and these rules hold instead:
//! - The object stays the file's while anybody has the file open: the shard truncates it in place.
//! - Nothing is gathered or read ahead here beside a kernel; other handles read and write the same object at once.
//! - Size and time are the object's: they are looked up whenever they are told or reported.
//!
//! Only when the session was lost, the kernel is left with what is no file's any more: an object that somebody
//! truncated away before the file was opened anew, or a file that the storage server has abandoned. Then the next flush
//! fails if the kernel has written to it.

use super::OpenInode;
use super::state::{KernelUse, State};
use crate::notice::Notice;
use crate::objects::Objects;
use crate::shell::{Monitor, Shell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::{Error, ObjectId, Result};

/// An object's file for a handle of a kernel.
pub struct LentFile<D> {
    /// The file.
    pub file: Arc<D>,
    /// Whether the handle, if it writes at all, may do so through it. Otherwise its writes have to come here.
    pub may_write: bool,
    /// Which one of the files that kernels had of the inode, while it is open. Who still has a former one, and does not
    /// count as a handle here, has a file that may be the object's no more.
    pub number: u64,
}

impl<S: Shell> OpenInode<S> {
    /// The object's file for one more handle of a kernel. `None`: it is on another machine, not passed, or not there
    /// and not to be made (`writes` is false); or the kernel, which has one file for all handles of an inode, was left
    /// with one that is no longer the object's. Costs a data request for the first handle.
    pub async fn lend(&self, io: &Objects<S>, writes: bool, direct: bool) -> Option<LentFile<S::Descriptor>> {
        let mut state = self.lock(io).await.ok()?;
        // What a kernel writes past the storage server drops nobody's pages.
        let may_write = writes && !state.known.has_pages_elsewhere();
        if writes && !may_write && state.kernel.is_none() {
            return None;
        }
        if state.kernel.as_ref().is_none_or(|kernel| writes && !kernel.writable)
            && let Err(error) = state.pass_to_kernel(io, writes, direct).await
        {
            // The next write or close tells of it, if it lasts.
            io.calls.shell.notice(Notice::NotLent(self.inode, error));
        }
        state.look(io);
        state.kernel_file()?;
        let kernel = state.kernel.as_mut()?;
        let may_write = may_write && kernel.writable;
        kernel.handles += 1;
        kernel.writers += u32::from(may_write);
        Some(LentFile { file: Arc::clone(&kernel.file), may_write, number: kernel.number })
    }

    /// The kernel has taken the file that was lent: it had no pages of the inode in use, and gets none before it has
    /// closed all such handles.
    pub async fn passed(&self) {
        if let Some(kernel) = &mut self.state.lock().await.kernel {
            kernel.passed = true;
        }
    }

    /// A kernel has closed such a handle.
    pub async fn lent_back(&self, io: &Objects<S>, may_write: bool) {
        let mut state = self.state.lock().await;
        state.look(io);
        let Some(kernel) = &mut state.kernel else { return };
        kernel.handles -= 1;
        kernel.writers -= u32::from(may_write);
        if kernel.handles == 0 {
            state.kernel = None;
        }
        drop(state);
        // What readers had at hand from before the kernel wrote is stale.
        self.changed();
    }
}

impl<S: Shell> State<S> {
    /// The object's file, with the object made and all gathered bytes in it. `direct`: what is written survives this
    /// client, so the shard has to know the object first.
    pub async fn pass_to_kernel(&mut self, io: &Objects<S>, writes: bool, direct: bool) -> Result<()> {
        if writes {
            self.known.doubt_open_to_write();
        }
        self.regain(io).await?;
        if self.known.is_striped() || self.known.is_split() {
            return Ok(());
        }
        let is_made_here = self.known.held().is_none();
        let is_extended = self.last_byte_of_first_object().is_some();
        if is_made_here {
            if !writes || !io.is_near(io.home()) || io.home_passes_none.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.ensure_object(io).await?;
        }
        self.send_all(io).await?;
        let mut file = self.descriptor(io, self.known.writes()).await?;
        if self.known.object_is_new() {
            if file.is_none() {
                // Its store has a size limit, and keeps it.
                io.home_passes_none.store(true, Ordering::Relaxed);
                if is_made_here && !is_extended {
                    self.known.object_was_not_made();
                }
            } else if self.known.reports_object(direct) && !self.commit(io).await? {
                // Another client's object came first.
                self.regain(io).await?;
                file = self.descriptor(io, self.known.writes()).await?;
            }
        }
        if let Some((file, object)) = file.zip(self.known.object()) {
            self.kernel_got(io, file, object);
        }
        Ok(())
    }

    fn kernel_got(&mut self, io: &Objects<S>, file: Arc<S::Descriptor>, object: ObjectId) {
        let writable = self.descriptor_to_write().is_some();
        let stat = io.calls.shell.stat_file(&file);
        let seen = stat.map_or(self.known.attributes().mtime, |(_, mtime)| mtime);
        match &mut self.kernel {
            // One file for all handles: the kernel keeps the first that it got.
            Some(kernel) => kernel.writable |= writable && kernel.object == object,
            None => {
                self.kernel_uses += 1;
                self.kernel = Some(Box::new(KernelUse {
                    file,
                    number: self.kernel_uses,
                    object,
                    writable,
                    handles: 0,
                    writers: 0,
                    seen,
                    others_may_have_written: false,
                    abandoned: false,
                    passed: false,
                }));
            }
        }
    }

    /// The file in the kernel's hands, as long as its object is the file's object.
    pub fn kernel_file(&self) -> Option<&Arc<S::Descriptor>> {
        let held = self.known.object();
        let is_current = |kernel: &&KernelUse<S>| held == Some(kernel.object) && !kernel.abandoned;
        self.kernel.as_deref().filter(is_current).map(|kernel| &kernel.file)
    }

    /// Whether a kernel may change size and time at any moment.
    pub fn kernel_writes(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.writers > 0)
    }

    /// Looks up what a kernel has made of size and time.
    pub fn look(&mut self, io: &Objects<S>) {
        let held = self.known.object();
        let Some(kernel) = &mut self.kernel else { return };
        // An open file of this machine: fstat fails only when its device does, and then the next write tells.
        let Ok((size, mtime)) = io.calls.shell.stat_file(&kernel.file) else { return };
        kernel.abandoned |= io.calls.shell.is_abandoned(&kernel.file);
        let is_current = held == Some(kernel.object) && !kernel.abandoned;
        let is_changed = mtime != kernel.seen || (is_current && size != self.known.size());
        let is_written = is_changed && kernel.writers > 0;
        let may_be_of_others = kernel.others_may_have_written;
        kernel.seen = mtime;
        if is_current {
            kernel.others_may_have_written = false;
            self.known.looked_up(size, mtime);
        }
        if is_written && is_current && may_be_of_others && !self.known.is_dirty() {
            self.known.written_by_somebody();
        } else if is_written && is_current {
            self.known.written_by_kernel(mtime);
        } else if is_written {
            self.fail(io, Error::SessionEnded);
        }
    }

    /// The shard has changed the attributes on our behalf: the modification time that a truncate gave the object is no
    /// write of the kernel's.
    pub fn kernel_sees_change(&mut self, io: &Objects<S>) {
        let Some(kernel) = &mut self.kernel else { return };
        if let Ok((size, mtime)) = io.calls.shell.stat_file(&kernel.file)
            && size == self.known.size()
        {
            kernel.seen = mtime;
        }
    }
}
