//! Names of directory entries: bytes, not text, as in every file system of Unix.

use crate::error::Error;
use crate::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// One component of a path: 1 to 255 bytes without `/` and zero, neither `.` nor `..`.
///
/// Valid by construction: a malformed name is refused when it is made or decoded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks and copies the bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| *b == b'/' || *b == 0) {
            return Err(Error::Invalid);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A 64-bit hash (FNV-1a, mixed), the same on every machine.
    ///
    /// Leases on entries are kept by this hash; two names that share it only cost a needless recall.
    pub fn hash64(&self) -> u64 {
        // A name is short, and nothing but the spread matters here.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in &self.0 {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash ^= hash >> 32;
        hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&serde_bytes::Bytes>::deserialize(deserializer)?;
        Name::new(bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_directory_can_hold_is_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad), Err(Error::Invalid), "{bad:?}");
        }
        assert_eq!(Name::new(&[b'x'; 256]), Err(Error::NameTooLong));
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert!(Name::new(b"\xff\xfe ...").is_ok());
    }
}
