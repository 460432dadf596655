//! Keys of users that open nothing any more.
//!
//! A key is good without anybody having to know it ([`weft_protocol::UserKey::derive`]); what nodes keep is which ones
//! the owner has taken back. It is asked in each handshake, and again with each message of a user's connection, so that
//! a connection made before ends with the next thing that it asks.
//!
//! On a crash: the list is gone with the node, which is not started again.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::REVOKED_KEYS_MAX;
use weft_protocol::{Error, KeyId, Result};

/// The list. Its lock is a leaf: held for one look.
#[derive(Default)]
pub struct Revoked(RwLock<BTreeSet<KeyId>>);

impl Revoked {
    /// From now on the key opens nothing. May be repeated.
    pub fn revoke(&self, key: KeyId) -> Result<()> {
        let mut revoked = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if revoked.len() >= REVOKED_KEYS_MAX && !revoked.contains(&key) {
            return Err(Error::Busy);
        }
        revoked.insert(key);
        Ok(())
    }

    /// Refuses a name whose key was revoked. Owner and nodes have no key of their own that could be.
    pub fn check(&self, name: &KeyName) -> Result<()> {
        match name {
            KeyName::User { key, .. } if self.0.read().unwrap_or_else(PoisonError::into_inner).contains(key) => {
                Err(Error::AccessDenied)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{Credentials, NodeId};

    #[test]
    fn a_key_is_refused_and_no_other() {
        let revoked = Revoked::default();
        let name = |number| KeyName::User { key: KeyId(number), credentials: Credentials::default() };
        assert_eq!(revoked.check(&name(1)), Ok(()));
        for _ in 0..2 {
            assert_eq!(revoked.revoke(KeyId(1)), Ok(()));
            assert_eq!(revoked.check(&name(1)), Err(Error::AccessDenied));
        }
        for other in [name(2), KeyName::Owner, KeyName::Node(NodeId(1))] {
            assert_eq!(revoked.check(&other), Ok(()));
        }
    }

    #[test]
    fn the_list_has_an_end() {
        let revoked = Revoked::default();
        for number in 0..REVOKED_KEYS_MAX as u64 {
            assert_eq!(revoked.revoke(KeyId(number)), Ok(()));
        }
        assert_eq!(revoked.revoke(KeyId(u64::MAX)), Err(Error::Busy));
        assert_eq!(revoked.revoke(KeyId(7)), Ok(()), "known already");
    }
}
