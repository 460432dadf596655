//! Extended attributes, as the kernel asks for them: it keeps none, and checks before who may use which.
//!
//! Not here: the namespaces that no inode of Weft has. A mount refuses them where it parses the name.

use crate::operations::Mount;
use crate::shell::MountShell;
use weft_client_core::XattrKey;
use weft_protocol::{Credentials, Error, InodeNumber, Result, XattrExpectation, XattrValue};

/// What a program asks for: the length alone (it gave no room), or the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XattrReply {
    Length(u32),
    Bytes(Vec<u8>),
}

impl XattrReply {
    /// `room`: as the kernel tells it, 0: the length is asked for. [`Error::OutOfRange`]: the bytes do not fit.
    fn of(bytes: Vec<u8>, room: u32) -> Result<Self> {
        let length = u32::try_from(bytes.len()).map_err(|_| Error::TooBig)?;
        match room {
            0 => Ok(Self::Length(length)),
            room if room < length => Err(Error::OutOfRange),
            _ => Ok(Self::Bytes(bytes)),
        }
    }
}

impl<M: MountShell> Mount<M> {
    pub async fn get_xattr(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        name: &XattrKey,
        room: u32,
    ) -> Result<XattrReply> {
        XattrReply::of(self.client.value_of(who, inode, name).await?, room)
    }

    /// Names, each with a zero after it.
    pub async fn list_xattrs(&self, who: &Credentials, inode: InodeNumber, room: u32) -> Result<XattrReply> {
        let mut bytes = Vec::new();
        for name in self.client.list_xattrs(who, inode).await? {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        XattrReply::of(bytes, room)
    }

    /// The kernel asks for the time of change by itself when somebody wants to know.
    pub async fn set_xattr(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        name_and_value: (&XattrKey, &XattrValue),
        expects: XattrExpectation,
    ) -> Result<()> {
        self.client.set_value(who, inode, name_and_value, expects).await
    }

    pub async fn remove_xattr(&self, who: &Credentials, inode: InodeNumber, name: &XattrKey) -> Result<()> {
        self.client.remove_value(who, inode, name).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_told_without_room_and_too_little_room_is_refused() {
        assert_eq!(XattrReply::of(b"abc".to_vec(), 0), Ok(XattrReply::Length(3)));
        assert_eq!(XattrReply::of(b"abc".to_vec(), 2), Err(Error::OutOfRange));
        assert_eq!(XattrReply::of(b"abc".to_vec(), 3), Ok(XattrReply::Bytes(b"abc".to_vec())));
        assert_eq!(XattrReply::of(Vec::new(), 7), Ok(XattrReply::Bytes(Vec::new())));
    }
}
