//! Points in time as files carry them.

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970, as a file's times are. Reaches from 1677 to 2262.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From the two fields of a `timespec`; clamps what 64 bits of nanoseconds cannot hold.
    pub fn from_parts(seconds: i64, nanoseconds: u32) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds)))
    }

    /// Whole seconds, rounded towards the past, and nanoseconds within that second.
    pub fn parts(self) -> (i64, u32) {
        let nanoseconds = self.0.rem_euclid(1_000_000_000);
        (self.0.div_euclid(1_000_000_000), u32::try_from(nanoseconds).unwrap_or(0))
    }

    /// This time, if it is later than `earlier`; else the first that is.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        self.max(Self(earlier.0.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        for (seconds, nanoseconds) in [(0, 0), (-1, 999_999_999), (1_700_000_000, 1), (-3, 5)] {
            assert_eq!(Timestamp::from_parts(seconds, nanoseconds).parts(), (seconds, nanoseconds));
        }
    }
}
