//! What a reply grants.
//!
//! Names and attributes are granted whenever nothing speaks against it: work that waits for the key, a recall of it
//! within the last second (or two clients that take turns in one directory would spend their time on recalls),
//! attributes of a file that another session may be writing, too many leases.
//!
//! Not here: leases on contents (`data.rs`).

use super::leases::Holder;
use super::{Shard, data};
use crate::kv::KeyValue;
use weft_protocol::{Attributes, FileKind, Grants, InodeNumber, LeaseKey, LeaseMode, Name, SessionId};

/// How long a key of a name or of attributes is not granted after a recall, milliseconds.
pub(super) const CONTENTION_MS: u64 = 1000;

impl<K: KeyValue> Shard<K> {
    /// Grants a shared lease on a key of names or attributes, if that may be. Returns `bit` or nothing.
    pub(super) fn grant(&mut self, session: SessionId, key: LeaseKey, bit: Grants) -> Grants {
        let contended =
            !self.contended.is_empty() && self.contended.get(&key).is_some_and(|until_ms| *until_ms > self.now.boot_ms);
        // A call that waited may be carried out after its session has ended: nobody would give the lease back.
        let may_hold = self.sessions.is_alive(session) && self.leases.has_room(session, 1);
        if contended || self.parking.is_claimed(&key) || !may_hold {
            return Grants::empty();
        }
        let stamp = self.next_grant_stamp();
        self.leases.set(key, Holder { session, mode: LeaseMode::Shared, writing: false, wrote_through: false, stamp });
        bit
    }

    /// The stamp that the reply will carry by which something is granted now.
    pub(super) fn next_grant_stamp(&self) -> u64 {
        self.stamp + 1
    }

    /// A name, there or not there. A name that an intent is about is not granted, nor is one that the session's lease
    /// on the whole directory covers.
    pub(super) fn grant_entry(&mut self, session: SessionId, parent: InodeNumber, name: &Name) -> Grants {
        let covered = self.leases.holder(&LeaseKey::Directory(parent), session).is_some();
        if covered || self.back.locked(parent, name).is_some() {
            return Grants::empty();
        }
        self.grant(session, LeaseKey::Entry(parent, name.hash64()), Grants::ENTRY)
    }

    /// Attributes, unless another session's writing can change them at any moment; of a directory also the permissions
    /// alone, which hold while others make names in it.
    pub(super) fn grant_attributes(&mut self, session: SessionId, attributes: &Attributes) -> Grants {
        let inode = attributes.inode;
        if attributes.kind == FileKind::Regular {
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
