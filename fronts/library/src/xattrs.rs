//! Extended attributes.

use crate::failure::{Explain, Failure, Outcome};
use crate::file_system::FileSystem;
use crate::place::Place;
use std::ffi::c_int;
use weft_client::XattrKey;
use weft_protocol::{InodeNumber, Result, XattrExpectation, XattrValue};

/// What the flags of `setxattr` expect: `XATTR_CREATE`, `XATTR_REPLACE`, or none.
pub fn expectation(flags: c_int) -> Outcome<XattrExpectation> {
    match flags {
        0 => Ok(XattrExpectation::default()),
        libc::XATTR_CREATE => Ok(XattrExpectation { absent: true, present: false }),
        libc::XATTR_REPLACE => Ok(XattrExpectation { absent: false, present: true }),
        _ => Err(Failure::invalid(format!("flags {flags:#x}: XATTR_CREATE or XATTR_REPLACE"))),
    }
}

impl Place<'_> {
    /// Makes a call about an extended attribute of what is there.
    fn of_xattr<T>(&self, name: &[u8], mut call: impl FnMut(InodeNumber, &XattrKey) -> Result<T>) -> Outcome<T> {
        let verb = format!("{} of", String::from_utf8_lossy(name));
        let key = XattrKey::new(name).explain(|| format!("{verb} {self}"))?;
        self.call(&verb, || call(self.inode(true)?, &key))
    }

    /// A value.
    pub fn xattr(&self, name: &[u8]) -> Outcome<Vec<u8>> {
        self.of_xattr(name, |inode, key| self.fs.client.value_of(&self.fs.who, inode, key))
    }

    /// Sets a value.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], expects: XattrExpectation) -> Outcome {
        let FileSystem { client, who, .. } = &**self.fs;
        self.of_xattr(name, |inode, key| client.set_value(who, inode, (key, &XattrValue::new(value)?), expects))
    }

    /// The names of those that have a value.
    pub fn xattrs(&self) -> Outcome<Vec<Vec<u8>>> {
        let list = || self.fs.client.list_xattrs(&self.fs.who, self.inode(true)?);
        let names = self.call("list the extended attributes of", list)?;
        Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    /// Removes a value.
    pub fn remove_xattr(&self, name: &[u8]) -> Outcome {
        self.of_xattr(name, |inode, key| self.fs.client.remove_value(&self.fs.who, inode, key))
    }
}
