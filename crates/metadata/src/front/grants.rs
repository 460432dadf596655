//! What a reply grants.
//!
//! Names and attributes are granted whenever nothing speaks against it: work that waits for the key, a recall of it
//! not long ago, attributes of a file that another session may be writing, too many leases.
//!
//! Not here: leases on contents (`data.rs`); how long a key rests after a recall (`contention.rs`).

use super::leases::Holder;
use super::{Shard, data};
use crate::kv::KeyValue;
use weft_protocol::{Attributes, FileKind, Grants, InodeNumber, LeaseKey, LeaseMode, Name, SessionId};

impl<K: KeyValue> Shard<K> {
    /// Grants a shared lease on a key of names or attributes, if that may be. Returns `bit` or nothing.
    pub(super) fn grant(&mut self, session: SessionId, key: LeaseKey, bit: Grants) -> Grants {
        let rests = self.contention.rests(&key, session, self.now.boot_ms);
        if rests { Grants::empty() } else { self.grant_at_once(session, key, bit) }
    }

    /// As [`Shard::grant`], also of a key that rests.
    fn grant_at_once(&mut self, session: SessionId, key: LeaseKey, bit: Grants) -> Grants {
        // A call that waited may be carried out after its session has ended: nobody would give the lease back.
        let may_hold = self.sessions.is_alive(session) && self.leases.has_room(session, 1);
        if self.parking.is_claimed(&key) || !may_hold {
            return Grants::empty();
        }
        let stamp = self.next_grant_stamp();
        self.leases.set(key, Holder::new(session, LeaseMode::Shared, stamp));
        bit
    }

    /// The stamp that the reply will carry by which something is granted now.
    pub(super) fn next_grant_stamp(&self) -> u64 {
        self.stamp + 1
    }

    /// A name, there or not there. A name that an intent is about is not granted, nor is one that the session's lease
    /// on the whole directory covers. Says too whether others use the directory.
    pub(super) fn grant_entry(&mut self, session: SessionId, parent: InodeNumber, name: &Name) -> Grants {
        let shared = self.shared_directory(session, parent);
        if !self.needs_entry_lease(session, parent, name) {
            return shared;
        }
        shared | self.grant(session, LeaseKey::Entry(parent, name.hash64()), Grants::ENTRY)
    }

    /// As [`Shard::grant_entry`], of a name that the session's own rename has given to another inode: also of a
    /// name that rests. Its kernel may use the dentry that it has moved there for the rest of its time, and only a
    /// lease has it dropped.
    pub(super) fn grant_renamed(&mut self, session: SessionId, parent: InodeNumber, name: &Name) -> Grants {
        let shared = self.shared_directory(session, parent);
        if !self.needs_entry_lease(session, parent, name) {
            return shared;
        }
        shared | self.grant_at_once(session, LeaseKey::Entry(parent, name.hash64()), Grants::ENTRY)
    }

    fn needs_entry_lease(&self, session: SessionId, parent: InodeNumber, name: &Name) -> bool {
        let covered = self.leases.holder(&LeaseKey::Directory(parent), session).is_some();
        // A directory that is about to get parts gives up all of its names.
        let changes = self.parking.is_claimed(&LeaseKey::Permissions(parent));
        !covered && !changes && self.back.locked(parent, name).is_none()
    }

    /// Whether another session uses the directory: one that has its permissions.
    pub(super) fn shared_directory(&self, session: SessionId, directory: InodeNumber) -> Grants {
        let key = LeaseKey::Permissions(directory);
        let mut holders = self.leases.holders(&key);
        if holders.any(|holder| holder.session != session) { Grants::SHARED_DIRECTORY } else { Grants::empty() }
    }

    /// Attributes, unless another session's writing can change them at any moment; of a directory also the permissions
    /// alone, which hold while others make names in it. The session is told of the inode in any case.
    pub(super) fn grant_attributes(&mut self, session: SessionId, attributes: &Attributes) -> Grants {
        let granted = self.grant_known_attributes(session, attributes);
        if !granted.contains(Grants::ATTRIBUTES) {
            self.note_told(attributes.inode, session, self.next_grant_stamp());
        }
        granted
    }

    fn grant_known_attributes(&mut self, session: SessionId, attributes: &Attributes) -> Grants {
        let inode = attributes.inode;
        // Of a split file they change with each publication, which may be late, and with nothing else.
        if self.has_ranges(inode) {
            return Grants::empty();
        }
        if attributes.kind == FileKind::Regular && attributes.layout.epoch().is_none() {
            let key = LeaseKey::Data(inode);
            let mut others = self.leases.holders(&key).filter(|holder| holder.session != session);
            if others.any(|holder| data::may_change(*holder)) || self.recovering.contains_key(&inode) {
                return Grants::empty();
            }
        }
        let mut granted = self.grant(session, LeaseKey::Attributes(inode), Grants::ATTRIBUTES);
        if attributes.kind == FileKind::Directory {
            granted |= self.grant(session, LeaseKey::Permissions(inode), Grants::PERMISSIONS);
        }
        granted
    }
}
