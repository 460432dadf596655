//! Files that are made with their objects: a collective open makes the file and opens it for a group by one call.
//!
//! The client names objects whose identifiers it has leased. Their storage servers make them when a member of the group
//! uses them first, since the group's rights say so ([`Rights::CREATE`]). Until something was heard of them, which the
//! inode says ([`Inode::awaits_objects`]), some may not be there. So whatever is asked about them makes
//! them, and nobody else gets rights to them before that was asked: the client may be gone that has made the file.
//!
//! A write that comes late, when the group has ended and the file is gone, makes no object again: the end of the group
//! is a fence at their storage servers. What a late question makes is collected with the session that has leased its
//! identifier.
//!
//! Not here: which objects a file gets (the client), what their storage servers say (`storage.rs`).

use super::data::stat_of;
use super::park::Call;
use super::plan::Plan;
use super::storage::Answers;
use super::{Pause, Shard};
use crate::back::{Command, Inode};
use crate::kv::KeyValue;
use weft_protocol::capability::seconds_of;
use weft_protocol::limits::STRIPE_WIDTH_MAX;
use weft_protocol::message::shard::{GroupLayouts, LeasedObject, ShardRequest};
use weft_protocol::{InodeNumber, LeaseKey, Rights, SessionId};

impl<K: KeyValue> Shard<K> {
    pub(super) fn awaits_objects(&self, inode: InodeNumber) -> bool {
        self.back.inode(inode).is_some_and(|record| record.awaits_objects())
    }

    /// Takes objects from an open that does not open the file for a group if it makes it, or that names some which the
    /// session has not leased.
    pub(super) fn check_first_objects(&self, call: &mut Call) {
        let session = call.session();
        let ShardRequest::OpenAt { flags, create, objects, .. } = &mut call.request else { return };
        let Some(first) = objects else { return };
        let wish = create.and_then(|create| self.group_wished(session, flags, create.mode));
        let is_for_group = wish.is_some_and(|wish| wish.layouts != GroupLayouts::Split);
        let are_few = first.objects.len() <= usize::from(STRIPE_WIDTH_MAX);
        if !is_for_group || !are_few || !first.objects.iter().all(|leased| self.has_leased(session, leased)) {
            *objects = None;
        }
    }

    fn has_leased(&self, session: SessionId, LeasedObject { object, capability }: &LeasedObject) -> bool {
        // A right to identifiers, and not to an object of some file.
        let of_no_file = InodeNumber::from_raw(0);
        capability.session == session
            && capability.rights.contains(Rights::CREATE)
            && capability.covers(of_no_file, *object)
            && self.node_key.verify(capability, seconds_of(self.now.wall)).is_ok()
    }

    /// Plans an open of a file whose size may be another one once its storage servers have made its objects.
    pub(super) fn plan_first_objects(&self, plan: &mut Plan, inode: InodeNumber) {
        if self.awaits_objects(inode) {
            plan.alone(LeaseKey::Attributes(inode));
        }
    }

    /// Has the objects of a file made before a call gets rights to them, or sets its size. Where that fails the call
    /// goes on, and later uses of the object fail.
    pub(super) fn objects_to_make(&self, call: &Call, plan: &Plan) -> Option<Pause> {
        let inode = match &call.request {
            ShardRequest::OpenAt { parent, name, .. } if plan.opens => self.back.dentry(*parent, name)?.inode,
            ShardRequest::Open { inode, .. } | ShardRequest::OpenGroup { inode, .. } => *inode,
            ShardRequest::SetAttributes { inode, changes } if changes.size.is_some() => *inode,
            _ => return None,
        };
        let record = self.back.inode(inode).filter(Inode::awaits_objects)?;
        let is_asked = call.told(inode, record.layout.object()?).is_some();
        (!is_asked).then(|| stat_of(inode, &record, plan.keys()))
    }

    /// Takes the answers of storage servers that have made the objects of a file. Returns true if there are some.
    pub(super) fn objects_were_made(&mut self, call: &Call) -> bool {
        let made = call.answers.as_ref().and_then(Answers::have_made);
        let (Some((inode, object)), Some((size, object_mtime))) = (call.asked, made) else { return false };
        let record = self.back.inode(inode).filter(Inode::awaits_objects);
        if record.is_some_and(|record| record.layout.object() == Some(object)) {
            self.apply(&Command::Observe { inode, size, object_mtime });
        }
        true
    }
}
