//! Split files: which sessions may publish a part, and which are told of parts.
//!
//! A session has a split file open by itself, or by a group that it has joined: then the group holds the lease. Nobody
//! caches contents, so that a publication recalls no more than attributes; a session that holds a lease on these knows
//! that nothing was published since.

use super::Shard;
use super::park::Call;
use crate::back::Command;
use crate::back::split::{Page, Part, Wanted};
use crate::kv::KeyValue;
use weft_protocol::message::shard::{Access, OpenFlags, PageCache, ShardAnswer, ShardRequest};
use weft_protocol::{Error, Extent, FileKind, Generation, InodeNumber, LeaseKey, ObjectId, SessionId, SplitPart};

/// Of all parts: they are made once.
const PART_GENERATION: Generation = Generation(1);

impl<K: KeyValue> Shard<K> {
    /// The holder of the lease on the file that a session uses: itself, or this group if it has joined that.
    fn opened_by(&self, session: SessionId, group: Option<SessionId>) -> Option<SessionId> {
        match group {
            None => Some(session),
            Some(group) => self.groups.joined(session).find(|joined| *joined == group),
        }
    }

    /// Whether the session may write a part of the file.
    fn writes_part(&self, session: SessionId, inode: InodeNumber, group: Option<SessionId>) -> bool {
        let holder = self.opened_by(session, group).and_then(|by| self.leases.holder(&LeaseKey::Data(inode), by));
        holder.is_some_and(|holder| holder.writing)
    }

    /// Whether the call publishes parts that its session, or others of its group that live, may write. What another one
    /// has written counts as long as that lives: then its part may be collected.
    pub(super) fn may_publish(&self, call: &Call) -> bool {
        let ShardRequest::Publish { inode, group, ref parts, .. } = call.request else { return false };
        let others = parts.iter().map(|part| part.writer).filter(|writer| *writer != call.session());
        let may = |writer| group.is_some() && self.sessions.is_alive(writer) && self.writes_part(writer, inode, group);
        self.writes_part(call.session(), inode, group) && others.into_iter().all(may)
    }

    /// A session has closed the file. Parts in which no byte counts go with the last one. Until then a client might go
    /// on with its part, also one that only reads now: it knows the part from its writes before.
    pub(super) fn tidy_parts(&mut self, inode: InodeNumber) {
        if !self.is_open(inode) && self.back.has_empty_parts(inode) {
            self.apply(&Command::DropEmptyParts { inode });
        }
    }

    /// The parts that the session has published of files that it, or a group that it has joined, has open.
    pub(super) fn parts_written_by(&self, session: SessionId) -> Vec<(InodeNumber, ObjectId)> {
        let holders = std::iter::once(session).chain(self.groups.joined(session));
        let keys = holders.flat_map(|holder| self.leases.log(holder));
        let mut parts = Vec::new();
        for key in keys {
            let LeaseKey::Data(inode) = *key else { continue };
            if self.back.inode(inode).is_some_and(|record| record.layout.epoch().is_some()) {
                parts.extend(self.back.parts_of_writer(inode, session).into_iter().map(|object| (inode, object)));
            }
        }
        parts
    }

    /// The answer to [`weft_protocol::message::shard::ShardRequest::GetParts`].
    pub(super) fn parts(
        &mut self,
        call: &Call,
        (inode, group): (InodeNumber, Option<SessionId>),
        wanted: &Wanted,
        own: bool,
    ) -> Result<ShardAnswer, Error> {
        let record = self.back.inode(inode).ok_or(Error::Stale)?;
        let epoch = record.layout.epoch().filter(|_| record.kind == FileKind::Regular).ok_or(Error::Invalid)?;
        let opened_by = self.opened_by(call.session(), group);
        if opened_by.and_then(|by| self.leases.holder(&LeaseKey::Data(inode), by)).is_none() {
            let (access, page_cache) = (Access::Read, PageCache::None);
            self.back.check_open(
                &call.credentials,
                inode,
                OpenFlags { access, truncate: false, direct: true, page_cache, group: None },
            )?;
        }
        let attributes = record.attributes(inode);
        let Page { mut parts, cut, end, strided_whole, strided_next } = self.back.extents_within(inode, wanted);
        let own = if own { self.back.parts_of_writer(inode, call.session()) } else { Vec::new() };
        for object in own {
            if !parts.iter().any(|(part, _)| part.object == object) {
                parts.extend(self.back.split_part(inode, object).map(|part| (part, Vec::new())));
            }
        }
        let told = |(part, extents): (Part, Vec<Extent>)| {
            let access = if part.writer == call.session() { Access::ReadWrite } else { Access::Read };
            let of = (part.object, PART_GENERATION);
            SplitPart {
                object: part.object,
                capability: self.capability(of, &attributes, access, call.session()),
                extents,
            }
        };
        let parts = parts.into_iter().map(told).collect();
        Ok(ShardAnswer::Parts { epoch, size: record.size, cut, parts, end, strided_whole, strided_next })
    }
}
