//! Keys, and the signed rights to objects that they make.
//!
//! The *node key* is known to servers only. It signs capabilities, and all other keys are derived from it, so that a
//! server keeps no list of users: whoever names himself in the handshake is asked to prove that he has the key derived
//! for exactly that name ([`UserKey::derive`]).
//!
//! All are keyed BLAKE3 hashes (256-bit keys; <https://github.com/BLAKE3-team/BLAKE3-specs>, section 6.2: keyed mode is
//! a MAC and a PRF).

use crate::bits::serialize_bits;
use crate::error::Error;
use crate::handshake::KeyName;
use crate::ids::{Generation, InodeNumber, MapEpoch, ObjectId, SessionId};
use crate::limits::CAPABILITY_TERM_SECONDS;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a key and of a proof.
pub const KEY_BYTES: usize = 32;
/// Bytes of a capability's signature: 128 bits.
const SIGNATURE_BYTES: usize = 16;
/// Bytes of a capability in a data header.
pub const CAPABILITY_BYTES: usize = 64;

bitflags::bitflags! {
    /// What a capability allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rights: u8 {
        const READ = 1;
        const WRITE = 2;
        /// Make the object by the first write to it; a group, which has several users, by any access.
        const CREATE = 4;
        /// Of a group open: any session may use it, until the group has ended.
        const GROUP = 8;
    }
}

serialize_bits!(Rights, u8, "unknown rights");

/// A signed right to one object, or to a batch of object identifiers that were leased together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capability {
    /// The object, or the first of a batch.
    pub object: ObjectId,
    /// Identifiers in the batch; 1 for a single object.
    pub count: u32,
    /// The file that the object belongs to; zero in the right to a batch, whose objects are of any file of its holder.
    /// An object is stored under both numbers, so whoever has another file's object committed to his own gets nothing
    /// by it.
    pub inode: InodeNumber,
    pub generation: Generation,
    /// Epoch of the map when it was signed.
    pub epoch: MapEpoch,
    /// When it ends, seconds since 1970.
    pub expires_seconds: u32,
    /// Owner of the file: a descriptor of the object is passed to him only.
    pub owner_uid: u32,
    pub rights: Rights,
    /// The session it was made for; of a group open the group.
    pub session: SessionId,
    signature: [u8; SIGNATURE_BYTES],
}

/// Returns the time of day as capabilities carry it: seconds since 1970.
///
/// Panics at a time before 1970 or after 2106, when neither can be said which capabilities have expired nor when new
/// ones do.
pub fn seconds_of(wall: Timestamp) -> u32 {
    let (seconds, _) = wall.parts();
    u32::try_from(seconds)
        .unwrap_or_else(|_| panic!("the clock of this machine is wrong: {seconds} seconds since 1970; set it"))
}

/// Returns when capabilities that are signed at `now_seconds` expire, at the latest.
///
/// Panics in the last hour before 2106, as [`seconds_of`] then does.
pub fn expiry(now_seconds: u32) -> u32 {
    let expires_seconds = now_seconds.checked_add(CAPABILITY_TERM_SECONDS);
    expires_seconds.unwrap_or_else(|| panic!("the clock of this machine is wrong: {now_seconds} seconds since 1970"))
}

impl Capability {
    /// The 64 bytes that stand in a data header.
    pub fn to_bytes(&self) -> [u8; CAPABILITY_BYTES] {
        let mut bytes = [0u8; CAPABILITY_BYTES];
        bytes[0..8].copy_from_slice(&self.object.raw().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.expires_seconds.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.owner_uid.to_le_bytes());
        bytes[28] = self.rights.bits();
        bytes[32..40].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.inode.raw().to_le_bytes());
        bytes[48..64].copy_from_slice(&self.signature);
        bytes
    }

    /// A capability that no key has signed: for requests that need none.
    pub fn void() -> Self {
        Self {
            object: ObjectId::from_raw(0),
            count: 0,
            generation: Generation(0),
            epoch: MapEpoch(0),
            expires_seconds: 0,
            owner_uid: 0,
            rights: Rights::default(),
            session: SessionId(0),
            inode: InodeNumber::from_raw(0),
            signature: [0; SIGNATURE_BYTES],
        }
    }

    /// Takes the 64 bytes apart. Nothing is believed before [`NodeKey::verify`].
    pub fn from_bytes(bytes: &[u8; CAPABILITY_BYTES]) -> Result<Self, Error> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let mut signature = [0u8; SIGNATURE_BYTES];
        signature.copy_from_slice(&bytes[48..64]);
        if bytes[29..32] != [0, 0, 0] {
            return Err(Error::Malformed);
        }
        Ok(Self {
            object: ObjectId::from_raw(u64_at(0)),
            count: u32_at(8),
            generation: Generation(u32_at(12)),
            epoch: MapEpoch(u32_at(16)),
            expires_seconds: u32_at(20),
            owner_uid: u32_at(24),
            rights: Rights::from_bits(bytes[28]).ok_or(Error::Malformed)?,
            session: SessionId(u64_at(32)),
            inode: InodeNumber::from_raw(u64_at(40)),
            signature,
        })
    }

    /// Whether the capability speaks of this object of this file.
    pub fn covers(&self, inode: InodeNumber, object: ObjectId) -> bool {
        (self.inode == inode || self.inode.raw() == 0)
            && object.node() == self.object.node()
            && object.raw().checked_sub(self.object.raw()).is_some_and(|index| index < u64::from(self.count))
    }
}

/// What a capability is to say, before it is signed. Fields as in [`Capability`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapabilityClaims {
    pub object: ObjectId,
    pub count: u32,
    pub inode: InodeNumber,
    pub generation: Generation,
    pub epoch: MapEpoch,
    pub expires_seconds: u32,
    pub owner_uid: u32,
    pub rights: Rights,
    pub session: SessionId,
}

/// The servers' key.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey([u8; KEY_BYTES]);

impl NodeKey {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the key's file (mode 0600).
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Signs a capability.
    pub fn sign(&self, claims: &CapabilityClaims) -> Capability {
        let CapabilityClaims { object, count, inode, generation, epoch, expires_seconds, owner_uid, rights, session } =
            *claims;
        let mut capability = Capability {
            object,
            count,
            inode,
            generation,
            epoch,
            expires_seconds,
            owner_uid,
            rights,
            session,
            signature: [0; SIGNATURE_BYTES],
        };
        capability.signature = self.signature(&capability);
        capability
    }

    /// Whether this key signed the capability, and it still holds at `now_seconds` (since 1970).
    pub fn verify(&self, capability: &Capability, now_seconds: u32) -> Result<(), Error> {
        // Compared without a data-dependent exit: the time taken must not tell how much of a forgery was right.
        let expected = self.signature(capability);
        let difference = expected.iter().zip(&capability.signature).fold(0, |all, (a, b)| all | (a ^ b));
        if difference == 0 && now_seconds <= capability.expires_seconds {
            Ok(())
        } else {
            Err(Error::CapabilityRejected)
        }
    }

    fn signature(&self, capability: &Capability) -> [u8; SIGNATURE_BYTES] {
        let bytes = capability.to_bytes();
        let hash = blake3::keyed_hash(&self.0, &bytes[..48]);
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(&hash.as_bytes()[..SIGNATURE_BYTES]);
        signature
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(secret)")
    }
}

/// The key that proves a name in the handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct UserKey([u8; KEY_BYTES]);

impl UserKey {
    /// The key that belongs to a name: a function of the node key and the whole name, groups included.
    pub fn derive(node_key: &NodeKey, name: &KeyName) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&node_key.0);
        hasher.update(b"weft user key v1");
        hasher.update(&crate::codec::to_bytes(name));
        Self(*hasher.finalize().as_bytes())
    }

    /// From the key's file.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the key's file (mode 0600).
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Proof of having this key, over everything said in the handshake so far.
    pub fn prove(&self, label: &[u8], transcript: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label);
        hasher.update(&(transcript.len() as u64).to_le_bytes());
        hasher.update(transcript);
        hasher.finalize()
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn claims() -> CapabilityClaims {
        CapabilityClaims {
            object: ObjectId::new(NodeId(2), 1000),
            count: 16,
            inode: InodeNumber::ROOT,
            generation: Generation(1),
            epoch: MapEpoch(3),
            expires_seconds: 5000,
            owner_uid: 1000,
            rights: Rights::READ | Rights::WRITE,
            session: SessionId(77),
        }
    }

    #[test]
    fn a_signed_capability_verifies_until_it_ends() {
        let key = NodeKey::new([7; 32]);
        let capability = key.sign(&claims());
        assert_eq!(Capability::from_bytes(&capability.to_bytes()), Ok(capability));
        assert_eq!(key.verify(&capability, 5000), Ok(()));
        assert_eq!(key.verify(&capability, 5001), Err(Error::CapabilityRejected));
        assert_eq!(NodeKey::new([8; 32]).verify(&capability, 1), Err(Error::CapabilityRejected));
    }

    #[test]
    fn a_capability_expires_a_term_after_its_second() {
        let wall = |seconds| Timestamp::from_parts(seconds, 999_999_999);
        assert_eq!((seconds_of(wall(0)), seconds_of(wall(1_700_000_000))), (0, 1_700_000_000));
        assert_eq!(seconds_of(wall(i64::from(u32::MAX))), u32::MAX);
        assert_eq!(expiry(1_700_000_000), 1_700_003_600);
    }

    #[test]
    fn no_time_stands_for_one_that_capabilities_cannot_carry() {
        for seconds in [-1, i64::from(u32::MAX) + 1] {
            let wall = Timestamp::from_parts(seconds, 0);
            assert!(std::panic::catch_unwind(|| seconds_of(wall)).is_err(), "{seconds}");
        }
        assert!(std::panic::catch_unwind(|| expiry(u32::MAX)).is_err());
    }

    #[test]
    fn no_changed_bit_passes() {
        let key = NodeKey::new([7; 32]);
        let bytes = key.sign(&claims()).to_bytes();
        for bit in 0..CAPABILITY_BYTES * 8 {
            let mut forged = bytes;
            forged[bit / 8] ^= 1 << (bit % 8);
            let refused = Capability::from_bytes(&forged).and_then(|capability| key.verify(&capability, 1));
            assert!(refused.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_batch_covers_its_identifiers_only() {
        let capability = NodeKey::new([7; 32]).sign(&claims());
        for (sequence, covered) in [(999, false), (1000, true), (1015, true), (1016, false)] {
            assert_eq!(capability.covers(InodeNumber::ROOT, ObjectId::new(NodeId(2), sequence)), covered, "{sequence}");
        }
        assert!(!capability.covers(InodeNumber::ROOT, ObjectId::new(NodeId(3), 1000)));
        assert!(!capability.covers(InodeNumber::from_raw(2), ObjectId::new(NodeId(2), 1000)), "another file");
    }
}
