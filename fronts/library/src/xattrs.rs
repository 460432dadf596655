//! Extended attributes.

use crate::failure::{Explain, Failure, Outcome};
use crate::place::Place;
use std::ffi::c_int;
use weft_client::XattrKey;
use weft_protocol::{InodeNumber, XattrExpectation, XattrValue};

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
    fn named(&self, name: &[u8]) -> Outcome<(InodeNumber, XattrKey)> {
        let inode = self.found(true, "xattr")?.inode;
        Ok((inode, XattrKey::new(name).explain(|| self.of(name))?))
    }

    /// For the texts of failures.
    fn of(&self, name: &[u8]) -> String {
        format!("{} of {self}", String::from_utf8_lossy(name))
    }

    /// A value.
    pub fn xattr(&self, name: &[u8]) -> Outcome<Vec<u8>> {
        let (inode, key) = self.named(name)?;
        self.fs.client.value_of(&self.fs.who, inode, &key).explain(|| self.of(name))
    }

    /// Sets a value.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], expects: XattrExpectation) -> Outcome {
        let (inode, key) = self.named(name)?;
        let value = XattrValue::new(value).explain(|| self.of(name))?;
        self.fs.client.set_value(&self.fs.who, inode, (&key, &value), expects).explain(|| self.of(name))
    }

    /// The names of those that have a value.
    pub fn xattrs(&self) -> Outcome<Vec<Vec<u8>>> {
        const VERB: &str = "list the extended attributes of";
        let inode = self.found(true, VERB)?.inode;
        let names = self.fs.client.list_xattrs(&self.fs.who, inode).explain(|| format!("{VERB} {self}"))?;
        Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    /// Removes a value.
    pub fn remove_xattr(&self, name: &[u8]) -> Outcome {
        let (inode, key) = self.named(name)?;
        self.fs.client.remove_value(&self.fs.who, inode, &key).explain(|| self.of(name))
    }
}
