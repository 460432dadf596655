//! chmod, chown, utimens, truncate; and what a writer reports.
//!
//! Invariant: each change of a file is later than its ctime before, whatever the clocks of clients and nodes show
//! (docs/semantics.md, "Times").
//! Not here: cutting the object. The front has it cut by the storage server before a change of size is applied.

use super::inode::{Inode, MODE_BITS, SET_GID};
use super::permission::{WRITE, check_access, is_owner};
use super::remove::objects_of;
use super::{Aftermath, Back, Context};
use crate::kv::KeyValue;
use weft_protocol::limits::FILE_BYTES_MAX;
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    AttributeChanges, Credentials, Error, FileKind, Grants, InheritedChange, InodeNumber, Layout, ObjectId, Plan,
    Result, TimeChange, Timestamp,
};

impl Inode {
    /// Makes the changes, if the caller may make all of them. `is_writer`: his session has the file open for writing.
    pub(super) fn change(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        changes: &AttributeChanges,
        is_writer: bool,
    ) -> Result<()> {
        let owns = is_owner(self, caller);
        let time = time.after(self.ctime);
        if let Some(size) = changes.size {
            self.check_size(caller, size, is_writer)?;
        }
        for change in [changes.atime, changes.mtime].into_iter().flatten() {
            match change {
                TimeChange::To(_) if !owns => return Err(Error::NotPermitted),
                TimeChange::Now if !owns => check_access(self, caller, WRITE)?,
                _ => {}
            }
        }
        self.change_owner(caller, changes)?;
        if let Some(mode) = changes.mode {
            if !owns {
                self.check_clears_set_id(caller, mode & MODE_BITS, is_writer)?;
            }
            self.mode = mode & MODE_BITS;
            if owns && caller.uid != 0 && !caller.in_group(self.gid) {
                self.mode &= !SET_GID;
            }
        }
        if let Some(size) = changes.size {
            if caller.uid != 0 {
                self.drop_set_id();
            }
            self.size = size;
            self.mtime = time;
        }
        let at = |change| match change {
            TimeChange::Now => time,
            TimeChange::To(at) => at,
        };
        self.atime = changes.atime.map_or(self.atime, at);
        self.mtime = changes.mtime.map_or(self.mtime, at);
        self.ctime = time;
        Ok(())
    }

    /// Changes what the directory hands down, if the caller may say that.
    pub(super) fn set_inherited(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        change: InheritedChange,
    ) -> Result<()> {
        if !is_owner(self, caller) {
            return Err(Error::NotPermitted);
        }
        self.check_has_name()?;
        match change {
            InheritedChange::Plan(plan) => self.layout = Layout::planned(plan),
            InheritedChange::Spreads(spreads) => self.spreads = spreads,
        }
        self.ctime = time.after(self.ctime);
        Ok(())
    }

    fn check_size(&self, caller: &Credentials, size: u64, is_writer: bool) -> Result<()> {
        match self.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            FileKind::Symlink => return Err(Error::Invalid),
        }
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        // A handle that was opened for writing may cut the file even if its mode forbids writing by now.
        if is_writer && caller.uid == self.uid { Ok(()) } else { check_access(self, caller, WRITE) }
    }

    /// Allows a writer who does not own the file to take its set-id bits away, and nothing else. Linux does so with a
    /// change of mode of its own before a write, which a mount cannot tell from `chmod`.
    fn check_clears_set_id(&self, caller: &Credentials, mode: u16, is_writer: bool) -> Result<()> {
        let mut cleared = self.clone();
        cleared.drop_set_id();
        let may_write = is_writer || check_access(self, caller, WRITE).is_ok();
        let only_clears = self.kind == FileKind::Regular && mode == cleared.mode;
        if only_clears && may_write { Ok(()) } else { Err(Error::NotPermitted) }
    }

    fn change_owner(&mut self, caller: &Credentials, changes: &AttributeChanges) -> Result<()> {
        if changes.uid.is_none() && changes.gid.is_none() {
            return Ok(());
        }
        let uid = changes.uid.unwrap_or(self.uid);
        let gid = changes.gid.unwrap_or(self.gid);
        if caller.uid != 0 {
            let may_give = uid == self.uid && (gid == self.gid || caller.in_group(gid));
            if caller.uid != self.uid || !may_give {
                return Err(Error::NotPermitted);
            }
        }
        self.uid = uid;
        self.gid = gid;
        self.drop_set_id();
        Ok(())
    }
}

/// What a writer reports: see [`weft_protocol::message::shard::ShardRequest::Commit`].
pub(super) struct Report<'a> {
    pub object: Option<ObjectId>,
    pub others: &'a [ObjectId],
    pub size: u64,
    pub mtime: Option<Timestamp>,
    pub object_mtime: Timestamp,
}

impl<K: KeyValue> Back<K> {
    /// Whether [`weft_protocol::message::shard::ShardRequest::SetAttributes`] would succeed; changes nothing. The inode
    /// as it is now.
    pub fn check_set_attributes(
        &self,
        caller: &Credentials,
        number: InodeNumber,
        changes: &AttributeChanges,
        is_writer: bool,
    ) -> Result<Inode> {
        let inode = self.present(number)?;
        inode.clone().change(Timestamp::default(), caller, changes, is_writer)?;
        Ok(inode)
    }

    pub(super) fn set_attributes(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        changes: &AttributeChanges,
        context: &Context,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let mut inode = self.present(number)?;
        if let (Some(object_mtime), None) = (context.object_mtime, changes.size) {
            // Writes that were not reported come before this change.
            inode.observe(inode.size, object_mtime);
        }
        let size_before = inode.size;
        inode.change(time, caller, changes, context.is_writer)?;
        self.cut_parts(number, &mut inode, (size_before, changes.size), context, aftermath);
        inode.note_object_mtime(context.object_mtime);
        if changes.size == Some(0) {
            drop_object(number, &mut inode, context, aftermath);
            self.forget_unread(number);
        }
        self.put_inode(number, &inode);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// Size 0, no object, unless that was cut in its place: what O_TRUNC does.
    pub(super) fn cut_to_nothing(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        inode: &mut Inode,
        context: &Context,
        aftermath: &mut Aftermath,
    ) {
        drop_object(number, inode, context, aftermath);
        self.forget_unread(number);
        self.cut_parts(number, inode, (inode.size, Some(0)), context, aftermath);
        if caller.uid != 0 {
            inode.drop_set_id();
        }
        inode.size = 0;
        inode.ctime = time.after(inode.ctime);
        inode.mtime = inode.ctime;
        inode.note_object_mtime(context.object_mtime);
    }

    /// A writer's report. A first object is entered; when another one is there already, the answer tells which, and
    /// nothing is changed: what was written to the one that is reported is not the file's, and it is removed.
    pub(super) fn commit(
        &mut self,
        caller: &Credentials,
        number: InodeNumber,
        report: &Report<'_>,
        context: &Context,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let Report { object, others, size, mtime, object_mtime } = *report;
        let mut inode = self.present(number)?;
        if inode.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        if !context.is_writer {
            return Err(Error::BadHandle);
        }
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        let present = inode.layout.object();
        if object.is_none() || present.is_none() || present == object {
            let is_made = present.is_none();
            if let (true, Some(object)) = (is_made, object) {
                inode.set_layout(inode.layout.given(object, others).ok_or(Error::Invalid)?);
            }
            match (context.actual, mtime) {
                // An open has made the object, and nobody has written it: its time is none of the file's.
                (Some((0, object_mtime)), _) if is_made => inode.note_object_mtime(Some(object_mtime)),
                // Several may write: then the storage server knows size and time, and what the shard knows of the size
                // is a lower bound.
                (Some((size, object_mtime)), _) => _ = inode.observe(size, object_mtime),
                (None, mtime) => {
                    // Without an object a file has the size of a truncation, which the first object keeps.
                    inode.size = if is_made { inode.size.max(size) } else { size };
                    match mtime {
                        // As its programs were told, so that nobody sees another time of the same write.
                        Some(mtime) => {
                            inode.mtime = mtime;
                            inode.ctime = inode.ctime.max(mtime);
                            inode.note_object_mtime(Some(object_mtime));
                        }
                        // As above, of a client whose exclusive lease was just recalled.
                        None if is_made && size == 0 => inode.note_object_mtime(Some(object_mtime)),
                        None => _ = inode.observe(size, object_mtime),
                    }
                }
            }
            inode.note_object_mtime(context.object_mtime);
            if caller.uid != 0 {
                inode.drop_set_id();
            }
            self.put_inode(number, &inode);
        } else {
            aftermath.removed = object.iter().chain(others).map(|object| (number, *object)).collect();
        }
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// Changes what a directory hands down.
    pub(super) fn set_inherited(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        change: InheritedChange,
    ) -> Result<ShardAnswer> {
        let mut directory = self.directory(number)?;
        directory.set_inherited(time, caller, change)?;
        self.put_inode(number, &directory);
        Ok(ShardAnswer::Entry { attributes: directory.attributes(number), grants: Grants::empty() })
    }

    /// The file gets other objects with the same bytes. What goes is removed: objects that it had, or those that it
    /// does not get.
    pub(super) fn relocate(
        &mut self,
        number: InodeNumber,
        (plan, objects): (Plan, &[ObjectId]),
        object_mtime: Timestamp,
        is_alone: bool,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let planned = Layout::planned(plan.of_objects());
        let layout = match objects.split_first() {
            Some((first, others)) => planned.given(*first, others).ok_or(Error::Invalid)?,
            None => Layout::planned(plan),
        };
        let has_parts = self.has_parts(number);
        let inode = self.inode(number);
        let before = inode.as_ref().map_or(Layout::Empty, |inode| inode.layout.clone());
        let going = |from: &Layout, kept: &Layout| {
            let goes = |object: &&ObjectId| !kept.objects().contains(object);
            from.objects().iter().filter(goes).map(|object| (number, *object)).collect()
        };
        let has_object = before.object().is_some() || has_parts;
        let is_copy = layout.object().is_some();
        if !is_copy && has_object && inode.as_ref().is_some_and(|inode| inode.size > 0) {
            return Err(Error::NotEmpty);
        }
        let Some(mut inode) = inode.filter(|_| is_alone && (has_object || !is_copy)) else {
            aftermath.removed = going(&layout, &before);
            return Err(Error::WouldBlock);
        };
        aftermath.removed = going(&before, &layout);
        aftermath.removed.append(&mut self.drop_split(number, &inode));
        match objects.first() {
            Some(part) if plan == Plan::Split => self.become_split(number, &mut inode, *part),
            _ => inode.set_layout(layout),
        }
        inode.note_object_mtime(Some(object_mtime));
        self.put_inode(number, &inode);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// Nothing is known of the file's size.
    pub(super) fn forget_size(&mut self, number: InodeNumber) {
        if let Some(mut inode) = self.inode(number) {
            inode.size = 0;
            self.put_inode(number, &inode);
        }
    }

    /// What the storage server says of a file of which writers have not reported.
    pub(super) fn observe(&mut self, number: InodeNumber, size: u64, object_mtime: Timestamp) {
        if let Some(mut inode) = self.inode(number) {
            if inode.observe(size, object_mtime) {
                // It is not known who wrote.
                inode.drop_set_id();
            }
            self.put_inode(number, &inode);
        }
    }
}

/// A file that nobody has open needs no object to be empty.
fn drop_object(number: InodeNumber, inode: &mut Inode, context: &Context, aftermath: &mut Aftermath) {
    if !context.cut_in_place && inode.layout.object().is_some() {
        aftermath.removed = objects_of(number, &inode.layout);
        inode.set_layout(inode.layout.without_objects());
    }
}
