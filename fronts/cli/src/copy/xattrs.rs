//! Extended attributes that a copy keeps: those of the namespace `user`, as `cp -a` and `rsync -X` do.
//!
//! Attributes that the target has and the source has not stay, as `cp -a` leaves them.
//! Not here: other namespaces, which belong to the system or need root.
//!
//! Cost: a call for each file and directory that has none; in a file system of Weft, a message for each that is set.

use super::{Copy, Place};
use crate::failure::{Explain, Failure, Outcome};
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, getxattr, listxattr, listxattr_query, lsetxattr, setxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use weft_client::XattrKey;
use weft_protocol::{Error, XattrExpectation, XattrNamespace, XattrValue};

/// Longest value, and longest list of names, of Linux (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const BYTES_MAX: usize = 64 << 10;

/// Values by their names, which begin with `user.`.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

impl Copy<'_> {
    /// Gives a copy the extended attributes of its source. A copy in a file system that supports none is counted, and
    /// goes without. `follow`: the target may be a symbolic link.
    pub(super) fn keep_xattrs(&self, source: &Place, target: &Place, follow: bool) -> Outcome<()> {
        if !self.choices.xattrs {
            return Ok(());
        }
        let wanted = source.xattrs()?;
        if wanted.is_empty() {
            return Ok(());
        }
        // A directory that was copied before may not be written to any more.
        let there = target.xattrs()?;
        for (name, value) in wanted.iter().filter(|(name, value)| there.get(*name) != Some(value)) {
            if !target.set_xattr(name, value, follow).map_err(remedied)? {
                self.progress.left_xattrs();
                break;
            }
        }
        Ok(())
    }
}

fn remedied(failure: Failure) -> Failure {
    match failure.remedy_text() {
        Some(_) => failure,
        None => failure.remedy("`--no-xattrs` copies without extended attributes"),
    }
}

impl Place {
    /// Extended attributes of users. A file system that supports none has none.
    fn xattrs(&self) -> Outcome<Xattrs> {
        let place = || format!("extended attributes of {self}");
        match self {
            Place::Local(path) => local_xattrs(path).explain(place),
            Place::Weft(session, path) => {
                let (client, who) = (&session.client, &session.who);
                let inode = client.walk(who, path, true).explain(place)?.attributes.inode;
                let mut found = Xattrs::new();
                for name in client.list_xattrs(who, inode).explain(place)? {
                    if name.namespace() != XattrNamespace::User {
                        continue;
                    }
                    let bytes = name.as_bytes().to_vec();
                    match client.value_of(who, inode, &XattrKey::Kept(name)) {
                        // Others have removed it.
                        Err(Error::NoXattr) => {}
                        value => {
                            found.insert(bytes, value.explain(place)?);
                        }
                    }
                }
                Ok(found)
            }
        }
    }

    /// Sets one. Returns whether the file system supports them.
    fn set_xattr(&self, name: &[u8], value: &[u8], follow: bool) -> Outcome<bool> {
        let place = || format!("set extended attribute {} of {self}", crate::output::printable(name));
        match self {
            Place::Local(path) => {
                let none = XattrFlags::empty();
                let set = if follow { setxattr(path, name, value, none) } else { lsetxattr(path, name, value, none) };
                match set {
                    Err(Errno::OPNOTSUPP) => Ok(false),
                    set => set.explain(place).map(|()| true),
                }
            }
            Place::Weft(session, path) => {
                let (client, who) = (&session.client, &session.who);
                let inode = client.walk(who, path, follow).explain(place)?.attributes.inode;
                let (key, value) = (XattrKey::new(name).explain(place)?, XattrValue::new(value).explain(place)?);
                client.set_value(who, inode, (&key, &value), XattrExpectation::default()).explain(place)?;
                Ok(true)
            }
        }
    }
}

fn local_xattrs(path: &Path) -> rustix::io::Result<Xattrs> {
    match listxattr_query(path) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        length => length?,
    };
    let mut names = Vec::with_capacity(BYTES_MAX);
    listxattr(path, spare_capacity(&mut names))?;
    let mut found = Xattrs::new();
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(XattrNamespace::User.prefix())) {
        let mut value = Vec::with_capacity(BYTES_MAX);
        match getxattr(path, name, spare_capacity(&mut value)) {
            // Others have removed it.
            Err(Errno::NODATA) => {}
            got => {
                got?;
                found.insert(name.to_vec(), value);
            }
        }
    }
    Ok(found)
}
