//! Extents of split files: which runs of bytes each writer's part has, as writers publish them and readers are told.
//!
//! A part holds bytes at the file's own offsets. What of them counts is told by its extents, each with the *epoch* of
//! its publication, which the file's shard counts: of two extents with one byte, the one with the higher epoch has it.
//! A program that writes in strides makes many equal runs at equal distances; they are one [`Pattern`].

use crate::capability::Capability;
use crate::ids::{ObjectId, SessionId};
use crate::limits::FILE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Equal runs of bytes of a file at equal distances. Runs do not touch: those that do are one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64, u64, u64)", into = "(u64, u64, u64, u64)")]
pub struct Pattern {
    start: u64,
    bytes: u64,
    stride: u64,
    count: u64,
}

impl Pattern {
    /// All bytes that a file may have.
    pub const WHOLE_FILE: Self = Self { start: 0, bytes: FILE_BYTES_MAX, stride: FILE_BYTES_MAX, count: 1 };

    /// `count` runs of `bytes`, the first at `start`, each `stride` after the one before. `None`: there are no bytes,
    /// they end beyond the longest file, or runs touch. The stride of a single run does not count.
    pub fn new(start: u64, bytes: u64, stride: u64, count: u64) -> Option<Self> {
        let stride = if count == 1 { bytes } else { stride };
        let before_last = count.checked_sub(1)?.checked_mul(stride)?;
        let end = start.checked_add(before_last)?.checked_add(bytes)?;
        let holds = bytes > 0 && end <= FILE_BYTES_MAX && (count == 1 || stride > bytes);
        holds.then_some(Self { start, bytes, stride, count })
    }

    /// One run.
    pub fn run(start: u64, bytes: u64) -> Option<Self> {
        Self::new(start, bytes, bytes, 1)
    }

    /// Where the first run begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of each run.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From the beginning of one run to that of the next.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Number of runs.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Where the last run ends.
    pub fn end(&self) -> u64 {
        self.start + (self.count - 1) * self.stride + self.bytes
    }
}

impl TryFrom<(u64, u64, u64, u64)> for Pattern {
    type Error = &'static str;

    fn try_from((start, bytes, stride, count): (u64, u64, u64, u64)) -> Result<Self, Self::Error> {
        Self::new(start, bytes, stride, count).ok_or("runs of bytes out of range")
    }
}

impl From<Pattern> for (u64, u64, u64, u64) {
    fn from(pattern: Pattern) -> Self {
        (pattern.start, pattern.bytes, pattern.stride, pattern.count)
    }
}

/// Runs of bytes of a part, and when they were published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    pub pattern: Pattern,
    /// The file's epoch from this publication on.
    pub epoch: u64,
}

/// A part of a split file, as it is published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PublishedPart {
    /// The session that writes it. A part that is not known yet becomes this session's.
    pub writer: SessionId,
    pub object: ObjectId,
    /// Its writer numbers what it publishes. A number that is not higher than the part's last one changes nothing: a
    /// publication that two clients ask for, since one does not know what has become of the other, is made once.
    pub number: u64,
    pub patterns: Vec<Pattern>,
}

/// A part of a split file, as a reader is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SplitPart {
    pub object: ObjectId,
    /// The right to read it; to its writer also to write it.
    pub capability: Capability,
    /// Those with bytes in the range that was asked for, and perhaps others.
    pub extents: Vec<Extent>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn patterns_have_limits_also_on_the_wire() {
        assert!(Pattern::new(0, 1, 2, 3).is_some());
        assert_eq!(Pattern::new(5, 7, 100, 1), Pattern::run(5, 7), "the stride of one run says nothing");
        let bad =
            [(0, 0, 1, 1), (0, 1, 2, 0), (0, 4, 4, 2), (0, 4, 3, 2), (FILE_BYTES_MAX, 1, 1, 1), (u64::MAX, 2, 2, 1)];
        for of in [(0, 1, u64::MAX, 3), (0, 1, 2, u64::MAX)].into_iter().chain(bad) {
            let (start, bytes, stride, count) = of;
            assert_eq!(Pattern::new(start, bytes, stride, count), None, "{of:?}");
            assert!(codec::from_bytes::<Pattern>(&codec::to_bytes(&of)).is_err(), "{of:?}");
        }
        assert_eq!(Pattern::new(10, 2, 5, 3).map(|pattern| pattern.end()), Some(22));
    }
}
