//! Extended attributes: section "Extended attributes" of `docs/formats/metadata-keys.md`.
//!
//! Each is stored under keys of its own, beside the inode that it belongs to and gone with it; a value longer than the
//! store's pages take well is cut into parts. The inode's record has the sum of their bytes, so that an inode without
//! any costs nothing.
//!
//! Invariant: `Inode::xattr_bytes` is the sum of the bytes of names and values under the inode's number.
//! Not here: which namespaces there are (`weft_protocol::xattr`).

use super::Back;
use super::inode::{Inode, STICKY};
#[cfg(test)]
use super::keys::Tag;
use super::keys::{Key, XATTR_PART_BYTES, xattr_of};
use super::permission::{READ, WRITE, check_access, is_owner};
use crate::kv::KeyValue;
use std::ops::ControlFlow;
use weft_protocol::limits::{XATTRS_BYTES_MAX, XATTRS_MAX};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{
    Credentials, Error, FileKind, Grants, InodeNumber, Result, Timestamp, Xattr, XattrExpectation, XattrName,
    XattrNamespace, XattrValue,
};

/// Whether the caller may set or remove this attribute (xattr(7)).
fn check_change(inode: &Inode, caller: &Credentials, name: &XattrName) -> Result<()> {
    match name.namespace() {
        XattrNamespace::Trusted if caller.uid == 0 => Ok(()),
        XattrNamespace::Trusted => Err(Error::NotPermitted),
        XattrNamespace::User if inode.kind == FileKind::Symlink => Err(Error::NotPermitted),
        XattrNamespace::User => {
            let sticky = inode.kind == FileKind::Directory && inode.mode & STICKY != 0;
            if sticky && !is_owner(inode, caller) {
                return Err(Error::NotPermitted);
            }
            check_access(inode, caller, WRITE)
        }
    }
}

impl<K: KeyValue> Back<K> {
    /// All attributes that the caller may know of: the names of the namespace `user` are everybody's who knows the
    /// inode, their values are his who may read it; those of `trusted` are user 0's.
    pub fn xattrs(&self, caller: &Credentials, number: InodeNumber) -> Result<Vec<Xattr>> {
        let inode = self.present(number)?;
        let readable = check_access(&inode, caller, READ).is_ok();
        let mut xattrs = self.all_xattrs(number, &inode);
        xattrs.retain(|(name, _)| name.namespace() == XattrNamespace::User || caller.uid == 0);
        let told = |(name, value): (XattrName, Vec<u8>)| {
            let value = readable.then(|| XattrValue::new(&value).expect("a value was checked when it was set"));
            Xattr { name, value }
        };
        Ok(xattrs.into_iter().map(told).collect())
    }

    /// The attributes in the order of their keys, which is that of their names.
    fn all_xattrs(&self, number: InodeNumber, inode: &Inode) -> Vec<(XattrName, Vec<u8>)> {
        let mut xattrs: Vec<(XattrName, Vec<u8>)> = Vec::new();
        if inode.xattr_bytes == 0 {
            return xattrs;
        }
        self.store.scan(&Key::xattrs(number), |key, part| {
            let Some(name) = xattr_of(key, number) else { return ControlFlow::Break(()) };
            match xattrs.last_mut() {
                Some((last, value)) if *last == name => value.extend_from_slice(part),
                _ => xattrs.push((name, part.to_vec())),
            }
            ControlFlow::Continue(())
        });
        xattrs
    }

    pub(super) fn set_xattr(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        (name, value): (&XattrName, &XattrValue),
        expects: XattrExpectation,
    ) -> Result<ShardAnswer> {
        let mut inode = self.present(number)?;
        check_change(&inode, caller, name)?;
        let before = self.xattr_bytes(&inode, number, name);
        match before {
            Some(_) if expects.absent => return Err(Error::Exists),
            None if expects.present => return Err(Error::NoXattr),
            _ => {}
        }
        let bytes = name.as_bytes().len() + value.as_bytes().len();
        let others = inode.xattr_bytes as usize - before.unwrap_or(0);
        if others + bytes > XATTRS_BYTES_MAX {
            return Err(Error::NoXattrSpace);
        }
        if before.is_none() && self.all_xattrs(number, &inode).len() >= XATTRS_MAX {
            return Err(Error::NoXattrSpace);
        }
        if before.is_some() {
            self.drop_parts(number, name);
        }
        let value = value.as_bytes();
        // An empty value has one part, an empty one.
        for part in 0..value.len().div_ceil(XATTR_PART_BYTES).max(1) {
            let at = part * XATTR_PART_BYTES;
            let bytes = &value[at..value.len().min(at + XATTR_PART_BYTES)];
            self.store.put(&Key::xattr(number, name, part), bytes);
        }
        Ok(self.xattrs_changed(time, number, &mut inode, others + bytes))
    }

    pub(super) fn remove_xattr(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        name: &XattrName,
    ) -> Result<ShardAnswer> {
        let mut inode = self.present(number)?;
        check_change(&inode, caller, name)?;
        let before = self.xattr_bytes(&inode, number, name).ok_or(Error::NoXattr)?;
        self.drop_parts(number, name);
        let left = inode.xattr_bytes as usize - before;
        Ok(self.xattrs_changed(time, number, &mut inode, left))
    }

    fn xattrs_changed(&mut self, time: Timestamp, number: InodeNumber, inode: &mut Inode, bytes: usize) -> ShardAnswer {
        inode.xattr_bytes = u32::try_from(bytes).expect("the sum has a limit");
        inode.ctime = time.after(inode.ctime);
        self.put_inode(number, inode);
        ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() }
    }

    /// Bytes of the attribute's name and value. `None`: it is not there.
    fn xattr_bytes(&self, inode: &Inode, number: InodeNumber, name: &XattrName) -> Option<usize> {
        if inode.xattr_bytes == 0 {
            return None;
        }
        let mut bytes = None;
        self.store.scan(&Key::xattr(number, name, 0), |key, part| {
            if xattr_of(key, number).as_ref() != Some(name) {
                return ControlFlow::Break(());
            }
            *bytes.get_or_insert(name.as_bytes().len()) += part.len();
            ControlFlow::Continue(())
        });
        bytes
    }

    fn drop_parts(&mut self, number: InodeNumber, name: &XattrName) {
        let mut part = 0;
        while self.store.delete(&Key::xattr(number, name, part)) {
            part += 1;
        }
    }

    /// The inode ends, and its attributes with it.
    pub(super) fn drop_xattrs(&mut self, number: InodeNumber, inode: &Inode) {
        for (name, _) in self.all_xattrs(number, inode) {
            self.drop_parts(number, &name);
        }
    }

    /// Keys of extended attributes in the store; for tests.
    #[cfg(test)]
    pub fn xattr_keys(&self) -> usize {
        let mut count = 0;
        self.store.scan(&[Tag::Xattr as u8], |key, _| {
            if key[0] != Tag::Xattr as u8 {
                return ControlFlow::Break(());
            }
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }
}
