//! Extended attributes: names, values and what a change asks for.
//!
//! Weft keeps the namespaces `user` and `trusted`. Others are refused by the client, without a message.

use crate::error::Error;
use crate::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

const USER_PREFIX: &[u8] = b"user.";
const TRUSTED_PREFIX: &[u8] = b"trusted.";

/// Namespace of an extended attribute: decides who may use it (xattr(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrNamespace {
    /// Of regular files and directories, for whoever may read or write these.
    User,
    /// Of any inode, for user 0.
    Trusted,
}

impl XattrNamespace {
    /// How its names begin.
    pub fn prefix(self) -> &'static [u8] {
        match self {
            XattrNamespace::User => USER_PREFIX,
            XattrNamespace::Trusted => TRUSTED_PREFIX,
        }
    }
}

/// Name of an extended attribute, its namespace included: at most 255 bytes without zero.
///
/// Valid by construction: a malformed name is refused when it is made or decoded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Box<[u8]>);

impl XattrName {
    /// Checks and copies the bytes. [`Error::OutOfRange`]: too long; [`Error::NotSupported`]: of another namespace;
    /// [`Error::Invalid`]: nothing after the prefix.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > XATTR_NAME_BYTES_MAX {
            return Err(Error::OutOfRange);
        }
        let namespace = namespace_of(bytes).ok_or(Error::NotSupported)?;
        if bytes.len() == namespace.prefix().len() || bytes.contains(&0) {
            return Err(Error::Invalid);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes of the name, with the prefix of its namespace.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The namespace of the name.
    pub fn namespace(&self) -> XattrNamespace {
        namespace_of(&self.0).expect("a name begins with the prefix of a namespace")
    }

    /// The bytes after the prefix of the namespace.
    pub fn suffix(&self) -> &[u8] {
        &self.0[self.namespace().prefix().len()..]
    }
}

fn namespace_of(bytes: &[u8]) -> Option<XattrNamespace> {
    [XattrNamespace::User, XattrNamespace::Trusted].into_iter().find(|namespace| bytes.starts_with(namespace.prefix()))
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for XattrName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for XattrName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&serde_bytes::Bytes>::deserialize(deserializer)?;
        XattrName::new(bytes).map_err(serde::de::Error::custom)
    }
}

/// Value of an extended attribute: any bytes, at most 64 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XattrValue(Box<[u8]>);

impl XattrValue {
    /// Checks and copies the bytes. [`Error::TooBig`]: more than [`XATTR_VALUE_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > XATTR_VALUE_BYTES_MAX { Err(Error::TooBig) } else { Ok(Self(bytes.into())) }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for XattrValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for XattrValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&serde_bytes::Bytes>::deserialize(deserializer)?;
        XattrValue::new(bytes).map_err(serde::de::Error::custom)
    }
}

/// An extended attribute, as a shard tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Xattr {
    pub name: XattrName,
    /// `None`: the caller may not read it.
    pub value: Option<XattrValue>,
}

/// What a change of an extended attribute expects (`XATTR_CREATE`, `XATTR_REPLACE`). Linux takes both at once, which
/// never succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct XattrExpectation {
    /// The attribute is not there, else [`Error::Exists`].
    pub absent: bool,
    /// The attribute is there, else [`Error::NoXattr`].
    pub present: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace_and_a_length() {
        let name = XattrName::new(b"user.a").expect("a name");
        assert_eq!((name.namespace(), name.suffix()), (XattrNamespace::User, &b"a"[..]));
        let name = XattrName::new(b"trusted.x.y").expect("a name");
        assert_eq!((name.namespace(), name.suffix()), (XattrNamespace::Trusted, &b"x.y"[..]));
        let long = [b"user.".as_slice(), &[b'x'; 250]].concat();
        assert!(XattrName::new(&long).is_ok());
        assert_eq!(XattrName::new(&[&long[..], b"x"].concat()), Err(Error::OutOfRange));
        for bad in [&b"user."[..], b"trusted.", b"user.a\0b"] {
            assert_eq!(XattrName::new(bad), Err(Error::Invalid), "{bad:?}");
        }
        for other in [&b"security.capability"[..], b"system.posix_acl_access", b"", b"user", b"User.a"] {
            assert_eq!(XattrName::new(other), Err(Error::NotSupported), "{other:?}");
        }
    }

    #[test]
    fn values_have_64_kib() {
        assert!(XattrValue::new(&vec![1; 65_536]).is_ok());
        assert_eq!(XattrValue::new(&vec![1; 65_537]), Err(Error::TooBig));
    }
}
