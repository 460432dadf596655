//! Which part of a `hash` directory serves a name.
//!
//! Such a directory has *parts*, each at another shard: directories without a name of their own, of which each has the
//! dentries of a range of buckets. The directory itself is the first part. A name is asked for of its part, under the
//! part's number; which one that is follows from the name alone. Ranges of buckets are ranges of cookies, so a listing
//! goes through the parts in their order, and goes on where it was when the directory got its parts.
//!
//! Invariant: a directory gets its parts once, and keeps them.
//! Not here: which shard has a part ([`crate::routing`]: that of its number).

use crate::cookie::{BUCKETS, Cookie};
use crate::ids::InodeNumber;
use crate::limits::DIRECTORY_PARTS_MAX;
use serde::{Deserialize, Serialize};

/// The parts of a directory, in the order of their buckets: see the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<InodeNumber>", into = "Vec<InodeNumber>")]
pub struct Parts(Box<[InodeNumber]>);

impl Parts {
    /// `None`: not 2 to [`DIRECTORY_PARTS_MAX`] parts.
    pub fn new(parts: Vec<InodeNumber>) -> Option<Self> {
        (2..=DIRECTORY_PARTS_MAX).contains(&parts.len()).then(|| Self(parts.into()))
    }

    /// The directory that has these parts, which is the first of them.
    pub fn directory(&self) -> InodeNumber {
        self.0[0]
    }

    /// All parts, the directory itself first.
    pub fn all(&self) -> &[InodeNumber] {
        &self.0
    }

    /// The parts beside the directory itself.
    pub fn others(&self) -> &[InodeNumber] {
        &self.0[1..]
    }

    /// The part that has the names of a cookie's bucket.
    pub fn of(&self, cookie: Cookie) -> InodeNumber {
        self.0[usize::from(cookie.bucket()) * self.0.len() / usize::from(BUCKETS)]
    }

    /// Where a listing goes on after a cookie: the part that has the next one, and a cookie before all others of that
    /// part if it begins there. `None`: no part comes after it.
    pub fn after(&self, after: Cookie) -> Option<(InodeNumber, Cookie)> {
        let next = after.next()?;
        let part = self.of(next);
        let begins = next.is_first_of_bucket() && after != Cookie::START && self.of(after) != part;
        Some((part, if begins { Cookie::START } else { after }))
    }

    /// The last cookie that a name of this part may have, unless that is the last part.
    pub fn last_cookie(&self, part: InodeNumber) -> Option<Cookie> {
        let index = self.0.iter().position(|other| *other == part)?;
        let next = (index + 1 < self.0.len()).then(|| self.first_bucket(index + 1))?;
        Some(Cookie::last_of_bucket(next - 1))
    }

    /// The buckets of this part: the first, and the one after the last. `None`: it is none of these parts.
    pub fn buckets(&self, part: InodeNumber) -> Option<(u16, u16)> {
        let index = self.0.iter().position(|other| *other == part)?;
        Some((self.first_bucket(index), self.first_bucket(index + 1)))
    }

    fn first_bucket(&self, index: usize) -> u16 {
        let bucket = (index * usize::from(BUCKETS)).div_ceil(self.0.len());
        u16::try_from(bucket).expect("an index is no more than the number of parts, and gives a bucket or their number")
    }
}

impl TryFrom<Vec<InodeNumber>> for Parts {
    type Error = &'static str;

    fn try_from(parts: Vec<InodeNumber>) -> Result<Self, Self::Error> {
        Self::new(parts).ok_or("a number of parts that no directory has")
    }
}

impl From<Parts> for Vec<InodeNumber> {
    fn from(parts: Parts) -> Self {
        parts.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use proptest::prelude::*;

    fn parts(count: usize) -> Parts {
        let shards = 0..u16::try_from(count).unwrap();
        Parts::new(shards.map(|shard| InodeNumber::new(ShardId(shard), 7)).collect()).unwrap()
    }

    proptest! {
        #[test]
        fn each_bucket_has_one_part_and_their_ranges_follow_one_another(count in 2..=DIRECTORY_PARTS_MAX) {
            let parts = parts(count);
            let mut next = 0;
            for part in parts.all() {
                let (first, end) = parts.buckets(*part).unwrap();
                prop_assert!(first == next && end > first);
                for bucket in first..end {
                    prop_assert_eq!(parts.of(Cookie::last_of_bucket(bucket)), *part);
                }
                let last = parts.last_cookie(*part);
                prop_assert_eq!(last, (end < BUCKETS).then(|| Cookie::last_of_bucket(end - 1)));
                next = end;
            }
            prop_assert_eq!(next, BUCKETS);
        }

        #[test]
        fn a_listing_goes_on_in_the_part_of_the_next_cookie(count in 2..=DIRECTORY_PARTS_MAX, raw in 0..1u64 << 63) {
            let (parts, after) = (parts(count), Cookie::from_raw(raw));
            match parts.after(after) {
                Some((part, from)) => {
                    prop_assert_eq!(part, parts.of(after.next().unwrap()));
                    prop_assert!(from == after || from == Cookie::START);
                }
                None => prop_assert_eq!(after.bucket(), BUCKETS - 1),
            }
        }
    }

    #[test]
    fn a_listing_goes_from_part_to_part() {
        let parts = parts(3);
        let [first, second, third] = parts.all() else { panic!("three parts") };
        assert_eq!(parts.after(Cookie::START), Some((*first, Cookie::START)));
        let end = parts.last_cookie(*first).unwrap();
        assert_eq!(parts.after(end), Some((*second, Cookie::START)));
        assert_eq!(parts.after(parts.last_cookie(*second).unwrap()), Some((*third, Cookie::START)));
        assert_eq!(parts.last_cookie(*third), None);
        assert_eq!(parts.after(Cookie::last_of_bucket(BUCKETS - 1)), None);
    }
}
