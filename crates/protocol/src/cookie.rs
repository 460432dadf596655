//! Cookies: positions of names in their directory.
//!
//! A dentry's cookie is a 63-bit hash of its name whose top 12 bits are its bucket. The shard settles collisions when
//! it creates the dentry (the next free value of the bucket) and stores the cookie with it, so that a cookie stays what
//! it is for as long as its name is there. Listings run in the order of cookies in every placement of a directory, and
//! go on after a cookie, whether or not its name is still there.
//!
//! The hash is SipHash-2-4 with a key that all versions share: it decides the order of stored dentries. Its quality
//! keeps users from choosing names that collide; FNV-1a ([`Name::hash64`]) would not.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Buckets of a directory.
pub const BUCKETS: u16 = 4096;
/// Bits of a cookie below its bucket.
const BUCKET_SHIFT: u32 = 51;
/// Cookies within one bucket.
const BUCKET_MASK: u64 = (1 << BUCKET_SHIFT) - 1;
/// Key of the hash: the bytes of "weft dentry hash".
const KEY: [u64; 2] = [u64::from_le_bytes(*b"weft den"), u64::from_le_bytes(*b"try hash")];

/// A position in a directory: see the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Cookie(u64);

impl Cookie {
    /// Before all names. A listing that goes on after it begins anew.
    pub const START: Cookie = Cookie(0);
    /// The smallest cookie of a name. Mounts give some of those below to `.` and `..`.
    pub const FIRST: Cookie = Cookie(16);

    /// The cookie that a name has in a directory without collisions.
    pub fn of(name: &Name) -> Self {
        let hash = siphash_2_4(KEY, name.as_bytes()) >> 1;
        Self(if hash < Self::FIRST.0 { hash + Self::FIRST.0 } else { hash })
    }

    /// From the number that stands on the wire or is the kernel's offset. One above 63 bits is after all names.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number as it stands on the wire.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The bucket: 0 to 4095.
    pub const fn bucket(self) -> u16 {
        (self.0 >> BUCKET_SHIFT) as u16
    }

    /// The highest cookie in a bucket.
    pub const fn last_of_bucket(bucket: u16) -> Self {
        Self((bucket as u64) << BUCKET_SHIFT | BUCKET_MASK)
    }

    /// The lowest cookie in a bucket.
    pub const fn first_of_bucket(bucket: u16) -> Self {
        Self((bucket as u64) << BUCKET_SHIFT)
    }

    /// The cookie after this one. `None`: it is the last that a name may have, or after that.
    pub fn next(self) -> Option<Self> {
        (self < Self::last_of_bucket(BUCKETS - 1)).then_some(Self(self.0 + 1))
    }

    /// Whether no cookie of the same bucket comes before it.
    pub const fn is_first_of_bucket(self) -> bool {
        self.0 & BUCKET_MASK == 0
    }

    /// Lowest cookie of a name in this one's bucket.
    fn bucket_start(self) -> u64 {
        (self.0 & !BUCKET_MASK).max(Self::FIRST.0)
    }

    /// The cookie to try when this one is taken: the next in the bucket, whose first follows its last.
    #[must_use]
    pub fn next_in_bucket(self) -> Self {
        let is_last = self.0 & BUCKET_MASK == BUCKET_MASK;
        Self(if is_last { self.bucket_start() } else { self.0 + 1 })
    }

    /// The cookie whose [`Cookie::next_in_bucket`] this is.
    #[must_use]
    pub fn previous_in_bucket(self) -> Self {
        let is_first = self.0 == self.bucket_start();
        Self(if is_first { self.0 | BUCKET_MASK } else { self.0 - 1 })
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// SipHash-2-4 (Aumasson, Bernstein 2012).
fn siphash_2_4(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The length's lowest byte stands in the topmost of the last word.
    last[7] = bytes.len() as u8;
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        state[3] ^= word;
        sip_rounds(&mut state, 2);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    sip_rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn sip_rounds([a, b, c, d]: &mut [u64; 4], rounds: u32) {
    for _ in 0..rounds {
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the paper's appendix, and the reference implementation's table of vectors.
    #[test]
    fn the_hash_is_siphash_2_4() {
        let bytes: Vec<u8> = (0..64).collect();
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash_2_4(key, &bytes[..15]), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash_2_4(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash_2_4(key, &bytes[..8]), 0x93f5_f579_9a93_2462);
    }

    /// What stands in stores and on the wire: a change of these is a change of the format.
    #[test]
    fn cookies_of_names_never_change() {
        let cookie = |text: &str| Cookie::of(&Name::new(text.as_bytes()).unwrap()).raw();
        let expected = [1_155_135_604_533_774_661, 2_800_863_688_535_904_102, 7_036_895_752_615_381_234];
        assert_eq!(["a", "file", "s0001"].map(cookie), expected);
    }

    #[test]
    fn cookies_of_names_have_63_bits_and_fill_the_buckets() {
        let mut counts = vec![0_u32; 4096];
        for number in 0..409_600 {
            let cookie = Cookie::of(&Name::new(format!("f{number}").as_bytes()).unwrap());
            assert!(cookie >= Cookie::FIRST && cookie.raw() >> 63 == 0);
            counts[usize::from(cookie.bucket())] += 1;
        }
        assert!(counts.iter().all(|count| (40..180).contains(count)), "about 100 each");
    }

    #[test]
    fn a_collision_stays_in_its_bucket() {
        for bucket in [0, 1, 4095_u64] {
            let first = Cookie((bucket << 51).max(16));
            let last = Cookie((bucket << 51) + BUCKET_MASK);
            assert_eq!((last.next_in_bucket(), first.previous_in_bucket()), (first, last));
            assert_eq!(first.next_in_bucket().previous_in_bucket(), first);
            assert_eq!((u64::from(first.bucket()), u64::from(last.bucket())), (bucket, bucket));
        }
    }
}
