//! Extended attributes: believed under the lease on an inode's attributes, which say whether there are any.
//!
//! Invariant: what is kept was told under the lease that the attributes beside it are held by.

use super::{ATTRIBUTES_MAX, Cache, Changing, KnownXattrs};
use std::sync::Arc;
use weft_protocol::{Attributes, Grants, InodeNumber, Xattr};

/// Inodes whose extended attributes are kept. Beyond it the oldest are dropped.
const INODES_MAX: usize = 1024;
/// Bytes of names and values that are kept of one inode. Larger ones are asked for each time.
const BYTES_MAX: usize = 16 << 10;

const _: () = assert!(INODES_MAX <= ATTRIBUTES_MAX);

impl Cache {
    /// What is known of an inode's extended attributes, with the attributes that decide who may read them. `Some` with
    /// `None`: it has none.
    pub fn xattrs(&self, inode: InodeNumber, now_ms: u64) -> Option<(&Attributes, Option<Arc<KnownXattrs>>)> {
        if self.is_changing(Changing::Xattrs(inode)) {
            return None;
        }
        let attributes = self.attributes(inode, now_ms)?;
        if !attributes.has_xattrs() {
            return Some((attributes, None));
        }
        let known = self.attributes.get(&inode)?.xattrs.clone()?;
        Some((attributes, Some(known)))
    }

    /// A reply told of all extended attributes of an inode, and granted its attributes.
    pub fn learn_xattrs(&mut self, known: KnownXattrs, attributes: &Attributes, grants: Grants, stamp: u64) {
        let inode = attributes.inode;
        let is_current = self.take_attributes(attributes, grants, stamp);
        let bytes =
            |xattr: &Xattr| xattr.name.as_bytes().len() + xattr.value.as_ref().map_or(0, |v| v.as_bytes().len());
        let is_whole = known.xattrs.iter().all(|xattr| xattr.value.is_some());
        let total: usize = known.xattrs.iter().map(bytes).sum();
        if is_current
            && is_whole
            && total <= BYTES_MAX
            && let Some(cached) = self.attributes.get_mut(&inode)
        {
            cached.xattrs = Some(Arc::new(known));
            self.xattr_order.push_back(inode);
            if self.xattr_order.len() > INODES_MAX
                && let Some(oldest) = self.xattr_order.pop_front()
                && oldest != inode
                && let Some(cached) = self.attributes.get_mut(&oldest)
            {
                cached.xattrs = None;
            }
        }
        self.make_room();
    }
}
