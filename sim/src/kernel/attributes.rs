//! The attribute cache: when a reply's attributes count, and what follows for the pages.
//!
//! - A reply counts only if nothing changed the inode since its request (`attr_version`), nor a size is in the making
//!   (`FUSE_I_SIZE_UNSTABLE`) (`fuse_change_attributes_i`).
//! - stat returns what the reply says even when the cache ignores it (`fuse_do_getattr`, `fuse_fillattr`).
//! - Another size drops the pages behind it; with `auto_inval_data` another mtime, and without `explicit_inval_data`
//!   another size, drops all (`fuse_change_attributes_i`).
//! - Single attributes are stale on their own (`inval_mask`) (`fuse_update_get_attr`).
//! - With write-back, size, mtime and ctime of files are the kernel's (`fuse_get_cache_mask`).
//!
//! Not here: SETATTR (`calls/attributes.rs`), short reads (`read.rs`).

use super::executor::Context;
use super::requests::{Attributes, Errno, Kind, NodeId, Operation, Reply};
use super::state::{InodeKey, Mount};
use std::ops::BitOr;

/// Attributes that are stale though their time has not passed (`fuse_inode.inval_mask`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale(u16);

impl Stale {
    pub const MODE: Self = Self(1);
    pub const LINKS: Self = Self(1 << 1);
    pub const OWNER: Self = Self(1 << 2);
    pub const ATIME: Self = Self(1 << 3);
    pub const MTIME: Self = Self(1 << 4);
    pub const CTIME: Self = Self(1 << 5);
    pub const SIZE: Self = Self(1 << 6);
    pub const BLOCKS: Self = Self(1 << 7);
    pub const NONE: Self = Self(0);
    /// `STATX_BASIC_STATS`.
    pub const ALL: Self = Self(0xff);
    /// `FUSE_STATX_MODIFY`.
    pub const MODIFY: Self = Self(1 << 4 | 1 << 5 | 1 << 7);
    /// `FUSE_STATX_MODSIZE`.
    pub const MODIFY_SIZE: Self = Self(1 << 4 | 1 << 5 | 1 << 6 | 1 << 7);

    pub fn touches(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Stale {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Mount {
    /// Marks attributes as stale (`fuse_invalidate_attr_mask`).
    pub fn make_stale(&mut self, key: InodeKey, mask: Stale) {
        let inode = self.inode_mut(key);
        inode.stale = inode.stale | mask;
    }

    /// The inode changed here: replies to earlier requests do not count for it.
    pub fn advance_version(&mut self, key: InodeKey) {
        self.attr_version += 1;
        self.inode_mut(key).attr_version = self.attr_version;
    }

    /// Names in a directory changed (`fuse_dir_changed`).
    pub fn directory_changed(&mut self, key: InodeKey) {
        self.make_stale(key, Stale::ALL);
        let inode = self.inode_mut(key);
        if inode.version_queried {
            inode.version += 1;
            inode.version_queried = false;
        }
    }

    /// Attributes of which the kernel has the truth (`fuse_get_cache_mask`).
    pub fn own_attributes(&self, key: InodeKey) -> Stale {
        let is_own = self.config.writeback_cache && self.inode(key).kind == Kind::Regular;
        if is_own { Stale::MTIME | Stale::CTIME | Stale::SIZE } else { Stale::NONE }
    }

    /// Sets a size that the kernel found by itself.
    pub fn set_size(&mut self, key: InodeKey, size: u64) {
        self.inode_mut(key).attributes.size = size;
    }

    /// A write ended at `end` (`fuse_write_update_attr`). Returns true if the file grew.
    pub fn wrote(&mut self, key: InodeKey, end: u64, written: u64) -> bool {
        self.advance_version(key);
        let grew = written > 0 && end > self.inode(key).size();
        if grew {
            self.set_size(key, end);
        }
        self.make_stale(key, Stale::MODIFY_SIZE);
        grew
    }

    /// All but the size (`fuse_change_attributes_common`). `evictions`: the count when the request of a lookup was
    /// sent; 0: not a lookup.
    pub fn store_attributes(&mut self, key: InodeKey, attributes: &Attributes, valid_until: u64, evictions: u64) {
        let own = self.own_attributes(key);
        let current = self.evictions;
        self.attr_version += 1;
        let version = self.attr_version;
        let inode = self.inode_mut(key);
        if evictions == 0 || inode.attr_version != 0 || evictions == current {
            inode.stale = Stale::NONE;
        }
        inode.attr_version = version;
        inode.valid_until = valid_until;
        let old = &inode.attributes;
        let keep = |mask, old, new| if own.touches(mask) { old } else { new };
        inode.attributes = Attributes {
            size: old.size,
            kind: old.kind,
            mtime: keep(Stale::MTIME, old.mtime, attributes.mtime),
            ctime: keep(Stale::CTIME, old.ctime, attributes.ctime),
            ..attributes.clone()
        };
    }

    /// The attributes of a reply as the kernel corrects them before anything else.
    fn corrected(&self, key: InodeKey, mut attributes: Attributes) -> Attributes {
        let own = self.own_attributes(key);
        let cached = &self.inode(key).attributes;
        if own.touches(Stale::SIZE) {
            attributes.size = cached.size;
            attributes.mtime = cached.mtime;
            attributes.ctime = cached.ctime;
        }
        attributes
    }
}

/// What was current when a request was sent whose reply has attributes.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// 0: the reply counts in any case (creates).
    pub version: u64,
    pub evictions: u64,
}

impl Asked {
    pub const CREATE: Self = Self { version: 0, evictions: 0 };
}

impl Context {
    /// To be called before a request is sent.
    pub fn asked(&self) -> Asked {
        let mount = self.mount();
        Asked { version: mount.attr_version, evictions: mount.evictions }
    }

    /// Takes in a reply's attributes (`fuse_change_attributes_i`), and returns them as corrected for the caller.
    pub async fn change_attributes(
        &self,
        key: InodeKey,
        attributes: &Attributes,
        valid_ms: u64,
        asked: Asked,
    ) -> Attributes {
        let (attributes, resized, drop_all) = {
            let mut mount = self.mount();
            let attributes = mount.corrected(key, attributes.clone());
            let inode = mount.inode(key);
            if (asked.version != 0 && inode.attr_version > asked.version) || inode.size_unstable {
                return attributes;
            }
            let (old_size, old_mtime) = (inode.size(), inode.attributes.mtime);
            let valid_until = mount.deadline(valid_ms);
            mount.store_attributes(key, &attributes, valid_until, asked.evictions);
            let own = mount.own_attributes(key) != Stale::NONE;
            if !own {
                mount.set_size(key, attributes.size);
            }
            let is_file = mount.inode(key).kind == Kind::Regular;
            let resized = !own && is_file && old_size != attributes.size;
            let other_time = mount.config.auto_inval_data && old_mtime != attributes.mtime;
            let drop_all = if resized { !mount.config.explicit_inval_data } else { !own && is_file && other_time };
            (attributes, resized, drop_all)
        };
        if resized {
            self.truncate_pages(key, attributes.size).await;
        }
        if drop_all {
            // A page that stays is not looked at again.
            let _ = self.invalidate_pages(key, 0, u64::MAX).await;
        }
        attributes
    }

    /// Asks for attributes (`fuse_do_getattr`) and returns what the server says.
    pub async fn getattr(&self, key: InodeKey, fh: Option<u64>) -> Result<Attributes, Errno> {
        let asked = Asked { evictions: 0, ..self.asked() };
        let (node, kind) = self.node_and_kind(key);
        let Reply::Attributes { attributes, valid_ms } = self.ask(node, Operation::Getattr { fh }).await? else {
            return Err(Errno::EIO);
        };
        if attributes.kind != kind {
            self.mount().inode_mut(key).bad = true;
            return Err(Errno::EIO);
        }
        Ok(self.change_attributes(key, &attributes, valid_ms, asked).await)
    }

    pub fn node_and_kind(&self, key: InodeKey) -> (NodeId, Kind) {
        let mount = self.mount();
        let inode = mount.inode(key);
        (inode.node, inode.kind)
    }

    /// Attributes for a caller that needs these of them (`fuse_update_get_attr`).
    pub async fn attributes(&self, key: InodeKey, wanted: Stale, fh: Option<u64>) -> Result<Attributes, Errno> {
        let cached = {
            let mount = self.mount();
            let inode = mount.inode(key);
            if inode.bad {
                return Err(Errno::EIO);
            }
            let stale = inode.stale.without(mount.own_attributes(key));
            (!stale.touches(wanted) && !mount.has_passed(inode.valid_until)).then(|| inode.attributes.clone())
        };
        match cached {
            Some(attributes) => Ok(attributes),
            None => self.getattr(key, fh).await,
        }
    }
}
