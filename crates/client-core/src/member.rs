//! An open file of a group, in one of the processes that use it.
//!
//! Bytes go by the group's rights, without a word to the shard. When these turn out to be void, because the group has
//! ended or the file's objects have moved, the file is opened as any other is for direct I/O, and used so from then on;
//! also when it is locked, or appended to while it is striped: an append to a striped file is made under a lock, and
//! what is written under a lock has to end with the session that holds it.

use crate::files::Files;
use crate::group::GroupHandle;
use crate::handle::Handle;
use crate::lists::ReadList;
use crate::objects::Registration;
use crate::open_inode::{FlushFor, Written};
use crate::open_options::{JoinOptions, OpenOptions};
use crate::shell::Shell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_protocol::{Credentials, Error, GroupOpen, InodeNumber, Plan, Publication, Result};

/// See the module. To be closed with [`Member::close`].
pub struct Member<S: Shell> {
    pub inode: InodeNumber,
    pub options: OpenOptions<Registration<S>>,
    pub who: Credentials,
    /// How the file was laid out when it was opened.
    pub plan: Plan,
    /// `None`: there were no rights to begin with.
    group: Option<GroupHandle<S>>,
    /// The rights are void.
    is_over: AtomicBool,
    own: OnceLock<Handle<S>>,
}

impl<S: Shell> Member<S> {
    /// Joins a group. Without rights the file is opened at once.
    pub async fn join(
        files: &Files<S>,
        who: &Credentials,
        open: GroupOpen,
        options: JoinOptions<Registration<S>>,
    ) -> Result<Self> {
        let member = Self::new(files, who, open, options)?;
        if member.group.is_none() {
            member.own(files).await?;
        }
        Ok(member)
    }

    /// Joins a group. No message is awaited.
    pub(crate) fn new(
        files: &Files<S>,
        who: &Credentials,
        open: GroupOpen,
        JoinOptions { registration, spill, spread }: JoinOptions<Registration<S>>,
    ) -> Result<Self> {
        let (inode, append, plan) = (open.inode, open.append, open.layout.plan());
        let options = OpenOptions { append, registration, spill, spread, direct: true, ..OpenOptions::of(open.access) };
        let group = files.join_group(open, who)?;
        let (is_over, own) = (AtomicBool::new(group.is_none()), OnceLock::new());
        Ok(Self { inode, options, who: who.clone(), plan, group, is_over, own })
    }

    /// The open that others may join. `None`: the rights are void.
    pub fn exported(&self) -> Option<&GroupOpen> {
        self.in_use().map(|group| &group.open)
    }

    /// What bytes go by. Once this process has opened the file itself, they go by that: what is written under a lock
    /// has to end with the session that holds it.
    fn in_use(&self) -> Option<&GroupHandle<S>> {
        self.group.as_ref().filter(|_| !self.is_over.load(Ordering::Acquire) && self.own.get().is_none())
    }

    /// Does something by the group's rights. `None`: they are void, and not used again.
    async fn by_group<T>(&self, operation: impl AsyncFnOnce(&GroupHandle<S>) -> Result<T>) -> Option<Result<T>> {
        match operation(self.in_use()?).await {
            Err(Error::NoObject | Error::CapabilityRejected) => {
                self.is_over.store(true, Ordering::Release);
                None
            }
            result => Some(result),
        }
    }

    /// As [`Member::by_group`], for writes. `None` also of an append that takes a lock.
    async fn write_by_group<T>(&self, write: impl AsyncFnOnce(&GroupHandle<S>) -> Result<T>) -> Option<Result<T>> {
        if self.in_use()?.appends_under_lock() { None } else { self.by_group(write).await }
    }

    /// The file as this process has opened it itself, if it has.
    pub fn opened(&self) -> Option<&Handle<S>> {
        self.own.get()
    }

    /// The file as this process has opened it itself; it does so now, if it has not before.
    pub async fn own(&self, files: &Files<S>) -> Result<&Handle<S>> {
        if let Some(own) = self.own.get() {
            return Ok(own);
        }
        if let Some(group) = &self.group {
            // From now on bytes go by this handle, which is to see those that were written before.
            group.publish(&files.objects).await?;
        }
        let opened = files.open(&self.who, self.inode, self.options).await?;
        if let Err(second) = self.own.set(opened) {
            files.close_handle(&second).await;
        }
        Ok(self.own.get().expect("it was set above, by this thread or another"))
    }

    pub async fn read_at(&self, files: &Files<S>, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(result) = self
            .by_group(async |group| group.read_at(&files.objects, buffer, offset, self.options.registration).await)
            .await
        {
            return result;
        }
        self.own(files).await?.read_at(&files.objects, buffer, offset).await
    }

    pub async fn write_at(&self, files: &Files<S>, bytes: &[u8], offset: u64) -> Result<Written> {
        self.write_at_with(files, bytes, offset, self.options.registration).await
    }

    /// As [`Member::write_at`], with this registration for this write.
    pub async fn write_at_with(
        &self,
        files: &Files<S>,
        bytes: &[u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<Written> {
        let options = OpenOptions { registration, ..self.options };
        if let Some(result) =
            self.write_by_group(async |group| group.write_at(&files.objects, bytes, offset, &options).await).await
        {
            return result;
        }
        self.own(files).await?.write_at_with(&files.objects, bytes, offset, registration).await
    }

    pub async fn read_list(&self, files: &Files<S>, list: &mut dyn ReadList) -> Result<usize> {
        if let Some(result) =
            self.by_group(async |group| group.read_list(&files.objects, list, self.options.registration).await).await
        {
            return result;
        }
        self.own(files).await?.read_list(&files.objects, list).await
    }

    pub async fn write_list(&self, files: &Files<S>, list: &[(&[u8], u64)]) -> Result<()> {
        if let Some(result) =
            self.write_by_group(async |group| group.write_list(&files.objects, list, &self.options).await).await
        {
            return result;
        }
        self.own(files).await?.write_list(&files.objects, list).await
    }

    pub async fn size(&self, files: &Files<S>) -> Result<u64> {
        if let Some(result) = self.by_group(async |group| group.size(&files.objects).await).await {
            return result;
        }
        self.own(files).await?.size(&files.objects).await
    }

    /// What is written by the group's rights is at the servers already; of a split file it is published.
    pub async fn flush(&self, files: &Files<S>) -> Result<()> {
        if let Some(group) = &self.group {
            group.publish(&files.objects).await?;
        }
        match self.own.get() {
            Some(own) => {
                own.open.flush(&files.objects, FlushFor::Program).await?;
                own.check_locks(&files.objects.calls)
            }
            None => Ok(()),
        }
    }

    /// Returns what this member has written to a split file since its last publication, for another member of the group
    /// to publish ([`Member::publish_for`]). `None`: nothing. Once it is published, call
    /// [`Member::published_by_other`]; until then [`Member::flush`], and whatever else needs it, publishes it.
    pub async fn hand_out(&self, files: &Files<S>) -> Result<Option<Publication>> {
        match self.by_group(async |group| group.hand_out(&files.objects).await).await {
            Some(result) => result,
            None => Ok(None),
        }
    }

    /// Another member has published what was handed out.
    pub async fn published_by_other(&self) {
        if let Some(group) = &self.group {
            group.published_by_other().await;
        }
    }

    /// Publishes what members of the group have handed out, with one message for as much as that may have. Returns for
    /// each whether that was done; after an error its member publishes by itself.
    pub async fn publish_for(&self, files: &Files<S>, publications: Vec<Publication>) -> Vec<Result<()>> {
        match &self.group {
            Some(group) => group.publish_for(&files.objects, publications).await,
            None => vec![Err(Error::BadHandle); publications.len()],
        }
    }

    pub async fn sync(&self, files: &Files<S>) -> Result<()> {
        let synced = self.by_group(async |group| group.sync(&files.objects).await).await;
        if let Some(result) = synced {
            result?;
            if self.in_use().is_some() {
                return Ok(());
            }
        }
        // The client's own handle also syncs what was written with the group's rights.
        let own = self.own(files).await?;
        own.open.sync(&files.objects).await?;
        own.check_locks(&files.objects.calls)
    }

    /// Closes the handle. Losses of what was not flushed are told to nobody.
    pub async fn close(&self, files: &Files<S>) {
        if let Some(own) = self.own.get() {
            files.close_handle(own).await;
        }
        if let Some(group) = &self.group {
            // Who wants to know of losses flushes before.
            drop(group.publish(&files.objects).await);
            files.leave_group(group.open.group);
        }
    }
}
