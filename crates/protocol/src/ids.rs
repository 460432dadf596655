//! Identifiers. Each is a type of its own, so that an inode number is never taken for an object identifier.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bits of an inode number or object identifier that hold its sequence; the 16 above name the holder.
const SEQUENCE_BITS: u32 = 48;
/// Largest sequence in an inode number or object identifier.
pub const SEQUENCE_MAX: u64 = (1 << SEQUENCE_BITS) - 1;

macro_rules! plain_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

plain_id!(
    /// A part of the namespace with one authority. Shard 0 is the root shard: it holds `/` and the map.
    ShardId(u16)
);
plain_id!(
    /// A logical node of one file system: the process `weft serve` with this number.
    NodeId(u16)
);
plain_id!(
    /// Number of the map that assigns shards to nodes; grows by one with each change.
    MapEpoch(u32)
);
/// One client's session, the same at every node, or a group open, which stands where a session does. Chosen at random
/// by the client; the topmost bit tells which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl SessionId {
    const GROUP: u64 = 1 << 63;

    /// A session, of random bits.
    pub const fn of_client(random: u64) -> Self {
        Self(random & !Self::GROUP)
    }

    /// A group, of random bits.
    pub const fn of_group(random: u64) -> Self {
        Self(random | Self::GROUP)
    }

    /// Whether it is a group. No connection is of one.
    pub const fn is_group(self) -> bool {
        self.0 & Self::GROUP != 0
    }
}

impl fmt::Display for SessionId {
    /// A random number: hexadecimal and of one width wherever it is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Names a connection within its session: the first bytes of the nonce with which the client opened it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

plain_id!(
    /// Number of a slot in a session: one request at a time is outstanding in each.
    SlotIndex(u16)
);
plain_id!(
    /// Distinguishes successive uses of one object identifier by a store that uses identifiers again.
    Generation(u32)
);
plain_id!(
    /// Tells whether two processes are on the same node: given at `weft up`, else made of boot id and network
    /// namespace.
    NodeIdentity(u64)
);

/// Names a user's key, also to those who do not have it: chosen at random when the key is made. What is revoked is
/// named by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct KeyId(pub u64);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for KeyId {
    type Err = crate::error::Error;

    /// The 16 digits that [`KeyId`] is shown as.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(crate::error::Error::Invalid)
    }
}

impl ShardId {
    /// The shard that holds `/`.
    pub const ROOT: ShardId = ShardId(0);
}

macro_rules! holder_and_sequence {
    ($(#[$doc:meta])* $name:ident, $holder:ident, $visible:vis $holder_method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(u64);

        impl $name {
            /// Joins holder and sequence. Panics when the sequence needs more than 48 bits: sequences are handed out by
            /// counters of our own, and 2^48 of them take centuries.
            pub fn new(holder: $holder, sequence: u64) -> Self {
                assert!(sequence <= SEQUENCE_MAX, "sequence {sequence} needs more than 48 bits");
                Self(u64::from(holder.0) << SEQUENCE_BITS | sequence)
            }

            /// From the number that stands on the wire, in a file name, or in the kernel's tables.
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The number as it stands on the wire.
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Who holds it. No lookup is needed. (Of inodes: [`crate::routing`] says who serves what.)
            $visible const fn $holder_method(self) -> $holder {
                $holder((self.0 >> SEQUENCE_BITS) as u16)
            }

            /// The number within its holder.
            pub const fn sequence(self) -> u64 {
                self.0 & SEQUENCE_MAX
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:{}", self.0 >> SEQUENCE_BITS, self.sequence())
            }
        }
    };
}

holder_and_sequence!(
    /// Shard (16 bits) and sequence (48 bits, never used again).
    InodeNumber,
    ShardId,
    pub(crate) shard
);
holder_and_sequence!(
    /// Logical storage node (16 bits) and sequence (48 bits): the identifier names the holder.
    ObjectId,
    NodeId,
    pub node
);

impl InodeNumber {
    /// The directory `/`: sequence 1 of the root shard, which is also what the kernel calls a mount's root.
    pub const ROOT: InodeNumber = InodeNumber(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_and_sequence_come_back() {
        let inode = InodeNumber::new(ShardId(65535), SEQUENCE_MAX);
        assert_eq!((inode.shard(), inode.sequence()), (ShardId(65535), SEQUENCE_MAX));
        assert_eq!(InodeNumber::ROOT, InodeNumber::new(ShardId::ROOT, 1));
        assert_eq!(ObjectId::new(NodeId(3), 7).to_string(), "3:7");
        assert_eq!(SessionId(0xab).to_string(), "00000000000000ab");
    }

    #[test]
    fn a_key_id_is_16_digits() {
        for id in [KeyId(0), KeyId(0x1234), KeyId(u64::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "12", "00000000000000000", "000000000000000g", "+00000000000000f", "000000000000000F"] {
            assert!(bad.parse::<KeyId>().is_err(), "{bad}");
        }
    }

    #[test]
    #[should_panic(expected = "48 bits")]
    fn a_sequence_of_49_bits_is_a_bug() {
        let _ = ObjectId::new(NodeId(0), SEQUENCE_MAX + 1);
    }
}
