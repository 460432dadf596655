//! Files that a group has open: one open at the shard, used by any number of clients with the same rights.
//!
//! A client that has such a handle knows the file's objects, or its parts, and nothing else: it holds no lease, so it
//! reads nothing ahead, and buffers nothing but what it writes to its own part of a split file. Its session keeps the
//! group alive, by naming it whenever it is renewed. All that is more than bytes (truncation, locks, attributes) is the
//! client's own business at the shard.

use crate::file_objects::FileObjects;
use crate::files::Files;
use crate::handle::Handle;
use crate::lists::{ReadList, read_one_by_one};
use crate::objects::{ObjectWrite, Objects, Registration};
use crate::open_inode::{FlushFor, Written, write_failed};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use crate::split::SplitFile;
use crate::transfers::end_of;
use std::sync::Arc;
use weft_protocol::data::DataOperation;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, GroupOpen, Publication, Result, SessionId, ShardId, routing};

/// A handle of a file that a group has open. To be closed with [`Files::leave_group`].
pub struct GroupHandle<S: Shell> {
    pub open: GroupOpen,
    bytes: Bytes<S>,
}

/// Where the bytes of a file are that a group has open.
enum Bytes<S: Shell> {
    /// In these objects.
    Objects(FileObjects),
    /// In parts of its writers: what this one has written is published when it synchronizes or closes.
    Split(SplitFile<S>),
}

impl<S: Shell> Files<S> {
    /// Opens the file of a handle for a group, which this client has joined then. The file gets its objects, if the
    /// handle writes: all members have to write to the same. One message, and those of buffered writes.
    pub async fn open_group(&self, handle: &Handle<S>) -> Result<GroupOpen> {
        let (calls, inode) = (self.calls(), handle.open.inode);
        let access = handle.options.access;
        if access.writes() {
            handle.open.clear_set_id(&self.objects, &handle.who).await?;
            handle.open.give_objects(&self.objects).await?;
        }
        // Write back first: its errors are the caller's, and a recall of this client's own lease could only log them.
        handle.open.flush(&self.objects, FlushFor::Program).await?;
        let group = SessionId::of_group(calls.shell.random());
        let request = ShardRequest::OpenGroup { inode, access, group };
        let answer = calls.call(&handle.who, routing::of_inode(inode), request).await?.answer;
        let ShardAnswer::Opened { attributes, capability, others, .. } = answer else { return Err(Error::Malformed) };
        calls.groups.join(group, routing::of_inode(inode))?;
        calls.shell.renew_soon();
        let (append, synced, layout) = (handle.options.append, false, attributes.layout);
        let rights = capability.into_iter().chain(others).collect();
        Ok(GroupOpen { inode, group, access, append, synced, layout, rights })
    }

    /// A handle of a file that a group has open. No message is awaited. `None`: the file had no object then, so that
    /// there are no rights.
    pub fn join_group(&self, open: GroupOpen, who: &Credentials) -> Result<Option<GroupHandle<S>>> {
        let bytes = match open.rights.split_first() {
            Some((first, others)) => {
                Bytes::Objects(FileObjects::told(&open.layout, Some(*first), others).ok_or(Error::Malformed)?)
            }
            None if open.layout.epoch().is_some() => Bytes::Split(SplitFile::new(
                &self.objects,
                (open.inode, &open.layout),
                Some(open.group),
                Arc::new(who.clone()),
            )),
            None => return Ok(None),
        };
        self.calls().groups.join(open.group, routing::of_inode(open.inode))?;
        self.calls().shell.renew_soon();
        Ok(Some(GroupHandle { open, bytes }))
    }

    /// A handle is closed, or the client that has opened the file for the group has no use for it any more.
    pub fn leave_group(&self, group: SessionId) {
        self.calls().groups.leave(group);
        self.calls().shell.renew_soon();
    }

    /// Makes sure that the nodes of the joined groups can be told that this session lives. Nobody waits for one that
    /// has not answered for a term: this session has ended there, and with it its part in the groups.
    pub async fn attend_groups(&self) {
        let (calls, map) = (self.calls(), self.calls().map());
        // Of a shard that nothing was asked of no term is known.
        let is_there = |shard: &ShardId| calls.hears(*shard) || !calls.session.has_term(*shard);
        for shard in calls.groups.shards().into_iter().filter(is_there) {
            if let Some(node) = map.node_of(shard) {
                // Tried again with the next renewal.
                drop(calls.link(node).await);
            }
        }
    }
}

/// All fail with [`Error::CapabilityRejected`] or [`Error::NoObject`] when the rights are void: the group has ended, or
/// they are too old.
impl<S: Shell> GroupHandle<S> {
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub async fn read_at(
        &self,
        io: &Objects<S>,
        buffer: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<usize> {
        if !self.open.access.reads() {
            return Err(Error::BadHandle);
        }
        match &self.bytes {
            Bytes::Objects(objects) => {
                io.read_objects((self.open.inode, objects, false), buffer, offset, registration).await
            }
            Bytes::Split(split) => split.read_at(io, buffer, offset, registration).await,
        }
    }

    /// Reads pieces, in their order, until the end of the file cuts one. Returns the sum of bytes.
    pub async fn read_list(
        &self,
        io: &Objects<S>,
        list: &mut dyn ReadList,
        registration: Option<Registration<S>>,
    ) -> Result<usize> {
        let ranges = list.ranges();
        if let Bytes::Objects(objects) = &self.bytes
            && self.open.access.reads()
            && ranges.len() > 1
            && registration.is_none()
        {
            let size = self.size(io).await?;
            if let Some(count) = io.read_list((self.open.inode, objects), size, &ranges, list).await {
                return Ok(count);
            }
        }
        if let Bytes::Split(split) = &self.bytes
            && ranges.len() > 1
        {
            split.expect(&ranges).await;
        }
        let read = async |memory: &mut [u8], offset| self.read_at(io, memory, offset, registration).await;
        read_one_by_one(&ranges, list, read).await
    }

    /// Whether it appends to a striped file: that takes a lock of a session, and the group has none.
    pub fn appends_under_lock(&self) -> bool {
        self.open.append && matches!(&self.bytes, Bytes::Objects(objects) if objects.is_striped())
    }

    /// Writes all bytes at an offset (of an append handle: at the end). They are at the servers when this returns;
    /// those for the own part of a split file when they are published ([`GroupHandle::publish`]), which also tells if
    /// some are lost, unless a write has told it before. Not for appends under a lock.
    pub async fn write_at(
        &self,
        io: &Objects<S>,
        bytes: &[u8],
        offset: u64,
        options: &OpenOptions<Registration<S>>,
    ) -> Result<Written> {
        let GroupOpen { access, append, inode, .. } = self.open;
        if !access.writes() {
            return Err(Error::BadHandle);
        }
        end_of(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(Written { offset, is_safe: true });
        }
        let objects = match &self.bytes {
            Bytes::Split(split) => {
                let Written { offset, .. } = split.write(io, bytes, offset, options).await?;
                // What is appended is published at once.
                return Ok(Written { offset, is_safe: append });
            }
            Bytes::Objects(objects) => objects,
        };
        assert!(!self.appends_under_lock(), "an append to a striped file is its session's");
        let operation = if append { DataOperation::Append } else { DataOperation::Write };
        let mut write = ObjectWrite::new((inode, objects.clone()), operation, false);
        let written = io.write_past_pages(&mut write, &[(bytes, offset)], options.registration).await;
        let reply = written.map_err(|error| write_failed(error, append, write.may_have_landed))?;
        let offset = if append { reply.size - bytes.len() as u64 } else { offset };
        Ok(Written { offset, is_safe: true })
    }

    /// As [`GroupHandle::write_at`], of pieces, each its bytes and an offset.
    pub async fn write_list(
        &self,
        io: &Objects<S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<()> {
        let objects = match &self.bytes {
            Bytes::Split(split) if self.open.access.writes() && !self.open.append => {
                return split.write_list(io, list, options).await.map(drop);
            }
            Bytes::Objects(objects) if !self.open.append => objects,
            Bytes::Objects(_) | Bytes::Split(_) => {
                for (bytes, offset) in list {
                    self.write_at(io, bytes, *offset, options).await?;
                }
                return Ok(());
            }
        };
        if !self.open.access.writes() {
            return Err(Error::BadHandle);
        }
        list.iter().try_for_each(|(bytes, offset)| end_of(*offset, bytes.len()).map(drop))?;
        let mut write = ObjectWrite::new((self.open.inode, objects.clone()), DataOperation::Write, false);
        io.write_past_pages(&mut write, list, options.registration).await.map(drop)
    }

    /// Brings writes to a split file to its own part, and publishes them. Writes to other files are at the servers
    /// already.
    pub async fn publish(&self, io: &Objects<S>) -> Result<()> {
        match &self.bytes {
            Bytes::Objects(_) => Ok(()),
            Bytes::Split(split) => split.publish(io).await,
        }
    }

    /// What another member is to publish for this one, which learns what has become of it by
    /// [`GroupHandle::published_by_other`], or publishes it by itself. `None`: nothing, or the file is not split.
    pub async fn hand_out(&self, io: &Objects<S>) -> Result<Option<Publication>> {
        match &self.bytes {
            Bytes::Objects(_) => Ok(None),
            Bytes::Split(split) => split.hand_out(io).await,
        }
    }

    /// What was handed out is published.
    pub async fn published_by_other(&self) {
        if let Bytes::Split(split) = &self.bytes {
            split.published_by_other().await;
        }
    }

    /// Publishes what members have handed out. Returns for each whether that was done.
    pub async fn publish_for(&self, io: &Objects<S>, publications: Vec<Publication>) -> Vec<Result<()>> {
        match &self.bytes {
            Bytes::Objects(_) => vec![Err(Error::Invalid); publications.len()],
            Bytes::Split(split) => split.publish_for(io, publications).await,
        }
    }

    /// Flushes the objects to the servers' devices. A read-only handle has nothing to flush, and no right to.
    pub async fn sync(&self, io: &Objects<S>) -> Result<()> {
        match &self.bytes {
            // A reader sees from now on what was published.
            Bytes::Split(split) => split.sync(io).await,
            Bytes::Objects(objects) if self.open.access.writes() => io.sync_objects(self.open.inode, objects).await,
            Bytes::Objects(_) => Ok(()),
        }
    }

    /// Size of the file, as its objects or parts tell.
    pub async fn size(&self, io: &Objects<S>) -> Result<u64> {
        match &self.bytes {
            Bytes::Objects(objects) => io.stat_objects(self.open.inode, objects).await.map(|told| told.size),
            Bytes::Split(split) => split.size(io).await,
        }
    }
}
