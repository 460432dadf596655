//! Which shard serves what: the one place that says so.
//!
//! Everybody who sends to a shard, or asks whether something is served here, asks these functions. An inode is served
//! by the shard where it was born, which its number names. A name is served by the shard of its directory, as are the
//! leases on it; the functions take all that a `hash` directory (the name's bucket) and a union (its branch) will need.
//!
//! Invariant: two parties with the same map agree. No other crate can take the shard out of an inode number.
//! Not here: which node holds a shard ([`crate::ClusterMap::node_of`]), where a new inode is made (placement).

use crate::ids::{InodeNumber, ShardId};
use crate::lease::LeaseKey;
use crate::message::shard::ShardRequest;
use crate::name::Name;

/// The shard that serves an inode: attributes, contents, link count.
pub const fn of_inode(inode: InodeNumber) -> ShardId {
    inode.shard()
}

/// The shard that serves a name of a directory: its dentry, and the leases on it.
pub const fn of_name(directory: InodeNumber, _name: &Name) -> ShardId {
    of_inode(directory)
}

/// The shard that serves a name whose hash ([`Name::hash64`]) alone is known.
pub const fn of_name_hash(directory: InodeNumber, _hash: u64) -> ShardId {
    of_inode(directory)
}

/// The shard that grants and recalls a lease.
pub const fn of_lease(key: &LeaseKey) -> ShardId {
    match key {
        LeaseKey::Entry(directory, hash) => of_name_hash(*directory, *hash),
        LeaseKey::Attributes(inode)
        | LeaseKey::Directory(inode)
        | LeaseKey::Data(inode)
        | LeaseKey::Inode(inode)
        | LeaseKey::Names(inode)
        | LeaseKey::Ranges(inode)
        | LeaseKey::Permissions(inode) => of_inode(*inode),
    }
}

/// The shard that serves a request; `None`: any.
pub fn of_request(request: &ShardRequest) -> Option<ShardId> {
    match request {
        ShardRequest::Lookup { parent, name }
        | ShardRequest::OpenAt { parent, name, .. }
        | ShardRequest::MakeDirectory { parent, name, .. }
        | ShardRequest::MakeSymlink { parent, name, .. }
        | ShardRequest::Link { parent, name, .. }
        | ShardRequest::Unlink { parent, name }
        | ShardRequest::RemoveDirectory { parent, name }
        | ShardRequest::Rename { parent, name, .. } => Some(of_name(*parent, name)),
        // All names of a batch are served by one shard: the caller sees to it.
        ShardRequest::UnlinkBatch { parent, names } => {
            Some(names.first().map_or(of_inode(*parent), |name| of_name(*parent, name)))
        }
        ShardRequest::GetAttributes { inode }
        | ShardRequest::SetAttributes { inode, .. }
        | ShardRequest::Open { inode, .. }
        | ShardRequest::Commit { inode, .. }
        | ShardRequest::ReadLink { inode }
        | ShardRequest::SetXattr { inode, .. }
        | ShardRequest::RemoveXattr { inode, .. }
        | ShardRequest::GetXattrs { inode }
        | ShardRequest::SetInherited { inode, .. }
        | ShardRequest::Relocate { inode, .. }
        | ShardRequest::Spread { inode }
        | ShardRequest::ReadDirectory { inode, .. }
        | ShardRequest::HoldDirectory { inode }
        | ShardRequest::OpenGroup { inode, .. }
        | ShardRequest::Publish { inode, .. }
        | ShardRequest::GetParts { inode, .. }
        | ShardRequest::Lock { inode, .. }
        | ShardRequest::Unlock { inode, .. }
        | ShardRequest::TakeLocks { inode, .. }
        | ShardRequest::CancelLock { inode, .. }
        | ShardRequest::TestLock { inode, .. }
        | ShardRequest::ReadBelow { directory: inode, .. }
        | ShardRequest::NoteBelow { directory: inode, .. } => Some(of_inode(*inode)),
        ShardRequest::Release { .. } | ShardRequest::EndSession | ShardRequest::Ping => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_served_with_its_directory_and_an_inode_where_it_was_born() {
        let (directory, inode) = (InodeNumber::new(ShardId(3), 7), InodeNumber::new(ShardId(9), 7));
        let name = Name::new(b"name").expect("a valid name");
        assert_eq!(of_name(directory, &name), ShardId(3));
        assert_eq!(of_lease(&LeaseKey::Entry(directory, name.hash64())), of_name(directory, &name));
        assert_eq!((of_inode(inode), of_lease(&LeaseKey::Data(inode))), (ShardId(9), ShardId(9)));
        let link = ShardRequest::Link { inode, parent: directory, name };
        assert_eq!((of_request(&link), of_request(&ShardRequest::Ping)), (Some(ShardId(3)), None));
        assert_eq!(of_request(&ShardRequest::GetAttributes { inode }), Some(ShardId(9)));
    }
}
