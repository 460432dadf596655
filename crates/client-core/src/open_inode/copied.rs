//! A file whose bytes are copied to other objects, and then gets these.
//!
//! The copy is made without the lock, under an exclusive lease. It counts only if nothing has changed the file since:
//! no other client, which the shard sees by the lease's stamp, or of a split file by what was published since; and
//! nobody here, which the version of the data tells.

use super::OpenInode;
use super::state::{Descriptor, State};
use crate::file_objects::FileObjects;
use crate::link::SlotFor;
use crate::objects::Objects;
use crate::shell::Shell;
use std::sync::atomic::Ordering;
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{Credentials, Error, InodeNumber, ObjectId, Plan, Result, SessionId, Timestamp};

/// What a copy is made from.
pub(crate) struct CopySource {
    /// `None`: it has parts.
    pub objects: Option<FileObjects>,
    pub plan: Plan,
    pub size: u64,
    session: SessionId,
    granted: u64,
    version: u64,
    kernel_uses: u64,
}

/// What the file is to have.
pub(crate) struct Copied {
    pub plan: Plan,
    pub objects: Vec<ObjectId>,
    /// Of the objects.
    pub mtime: Timestamp,
}

impl Copied {
    fn request(self, inode: InodeNumber, granted: u64) -> ShardRequest {
        let Self { plan, objects, mtime } = self;
        ShardRequest::Relocate { inode, granted, plan, objects, object_mtime: mtime }
    }
}

impl<S: Shell> OpenInode<S> {
    /// Before a copy: writes back and reports. [`Error::WouldBlock`]: somebody else uses the file, or a kernel.
    /// `None`: it has no object, and no parts.
    pub(crate) async fn begin_copy(&self, io: &Objects<S>) -> Result<Option<CopySource>> {
        let mut state = self.drain(self.lock(io).await?).await;
        state.hold(io).await?;
        self.publish_held_back(io, 0).await?;
        state.flush(io).await?;
        state.regain(io).await?;
        if state.known.held().is_none() && !state.known.attributes().layout.has_bytes() {
            return Ok(None);
        }
        if !state.is_alone() {
            return Err(Error::WouldBlock);
        }
        // Else this client would be who has the object's file open.
        state.descriptor = Descriptor::NotAsked;
        // No lease vouches for the size of a split file.
        let size = match state.opener.clone().filter(|_| state.known.is_split()) {
            Some(who) => self.split(io, &state.known.attributes().layout, &who).size(io).await?,
            None => state.known.size(),
        };
        let known = &state.known;
        Ok(Some(CopySource {
            objects: known.objects().cloned(),
            plan: known.attributes().layout.plan(),
            size,
            session: known.session(),
            granted: known.grant_stamp(),
            version: self.data_version.load(Ordering::Acquire),
            kernel_uses: state.kernel_uses,
        }))
    }

    /// Gives a file that has no object this plan. [`Error::NotEmpty`]: it has some. [`Error::WouldBlock`]: somebody
    /// else uses it.
    pub(crate) async fn set_plan(&self, io: &Objects<S>, who: &Credentials, plan: Plan) -> Result<()> {
        let mut state = self.drain(self.lock(io).await?).await;
        state.hold(io).await?;
        self.publish_held_back(io, 0).await?;
        state.flush(io).await?;
        state.regain(io).await?;
        if state.known.held().is_some() {
            return Err(Error::NotEmpty);
        }
        if state.known.attributes().layout.plan() == plan {
            return Ok(());
        }
        // The first write of somebody here would make objects by the plan of before, and waits for the lock.
        if !state.is_alone() {
            return Err(Error::WouldBlock);
        }
        let (session, granted) = (state.known.session(), state.known.grant_stamp());
        let request = Copied { plan, objects: Vec::new(), mtime: Timestamp::default() }.request(self.inode, granted);
        match io.calls.report(Some(session), SlotFor::Caller, who, self.inode, request).await {
            Ok((attributes, stamp)) => {
                io.calls.session.opens.reported(self.inode, stamp);
                state.known.changed(&attributes, stamp, io.calls.session.next_report());
                self.parts_replaced().await;
                Ok(())
            }
            Err(error) => {
                if error != Error::WouldBlock {
                    // It may have been done.
                    state.known.right_is_void();
                    self.parts_replaced().await;
                }
                Err(error)
            }
        }
    }

    /// Parts of the file may be others, or gone. To be called with the lock: whoever writes next is not to go on with
    /// the part that he had.
    async fn parts_replaced(&self) {
        if let Some(split) = self.split.get() {
            split.parts_replaced().await;
        }
    }

    /// Gives the file the objects to which `source` was copied. [`Error::WouldBlock`]: it was used meanwhile.
    pub(crate) async fn end_copy(
        &self,
        io: &Objects<S>,
        who: &Credentials,
        source: &CopySource,
        copied: Copied,
    ) -> Result<()> {
        let mut state = self.drain(self.lock(io).await?).await;
        let is_same = state.known.session() == source.session
            && state.known.grant_stamp() == source.granted
            && self.data_version.load(Ordering::Acquire) == source.version
            && state.kernel_uses == source.kernel_uses;
        if !(is_same && state.is_alone()) {
            drop(state);
            self.drop_copy(io, who, source, copied).await;
            return Err(Error::WouldBlock);
        }
        let request = copied.request(self.inode, source.granted);
        let answer = io.calls.report(Some(source.session), SlotFor::Caller, who, self.inode, request).await;
        // Whoever reads here meanwhile has the old objects, and finds out when they are gone.
        state.descriptor = Descriptor::NotAsked;
        match &answer {
            Ok((attributes, stamp)) => {
                io.calls.session.opens.reported(self.inode, *stamp);
                state.known.relocated(attributes, *stamp, io.calls.session.next_report());
            }
            Err(Error::WouldBlock) => {}
            // It may have been done.
            Err(_) => state.known.right_is_void(),
        }
        self.parts_replaced().await;
        drop(state);
        self.changed();
        answer.map(drop)
    }

    /// Has objects removed that the file does not get. What cannot be told is removed when the session ends.
    pub(crate) async fn drop_copy(&self, io: &Objects<S>, who: &Credentials, source: &CopySource, copied: Copied) {
        // The shard has granted nothing with this stamp.
        let request = copied.request(self.inode, 0);
        let _ = io.calls.report(Some(source.session), SlotFor::Caller, who, self.inode, request).await;
    }
}

impl<S: Shell> State<S> {
    /// Whether nobody but those who use this state uses the file, and the shard and the objects know all of it.
    fn is_alone(&self) -> bool {
        // Of a split file the shard knows whether others have it open.
        let is_alone = self.known.is_exclusive() || self.known.is_split();
        is_alone && self.known.writes() && self.kernel.is_none() && self.is_certain()
    }

    /// Whether the shard and the objects know all of the file.
    fn is_certain(&self) -> bool {
        !self.is_unsettled && !self.size_in_doubt && self.is_done()
    }
}
