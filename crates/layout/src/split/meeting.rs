//! Which patterns have bytes in common, and which of many in an order may have some in common with one.

use super::{class_of, ends_within};
use weft_protocol::Pattern;

/// Returns true if the patterns may have a byte in common. That is exact if one of them is a single run, or both have
/// the same stride; of others their bounds and their places within the largest common divisor of the strides count.
pub fn meets(pattern: &Pattern, other: &Pattern) -> bool {
    if other.end() <= pattern.start() || pattern.end() <= other.start() {
        return false;
    }
    let (stride, of_other) = (distance(pattern), distance(other));
    let step = i128::from(common_divisor(stride, of_other));
    if step == 0 {
        return true;
    }
    // Runs of both are shifted against each other by multiples of the step. One of `other` overlaps one of `pattern` if
    // its shift lies between these two.
    let behind = i128::from(pattern.start()) - i128::from(other.start());
    let (above, below) = (behind - i128::from(other.bytes()), behind + i128::from(pattern.bytes()));
    let shift = above.div_euclid(step) + 1;
    let is_exact = stride == of_other || stride == 0 || of_other == 0;
    if !is_exact {
        return shift * step < below;
    }
    let (first, last) = (1 - i128::from(pattern.count()), i128::from(other.count()) - 1);
    let shift = shift.max(first);
    shift <= last && shift * step < below
}

/// Patterns of one size class, with the same run length and stride (that of a single run is its length).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alike {
    pub class: u8,
    pub bytes: u64,
    pub stride: u64,
}

impl Alike {
    /// What is common to patterns like this one.
    pub fn of(pattern: &Pattern) -> Self {
        Self { class: class_of(pattern), bytes: pattern.bytes(), stride: pattern.stride() }
    }

    /// The first position from `end` on where one of these patterns may end that meets `pattern`. `None`: there is
    /// none. So a walk through those that are ordered by their ends leaves out most that do not meet it.
    pub fn next_end(&self, pattern: &Pattern, end: u64) -> Option<u64> {
        let (above, below) = ends_within(self.class, (pattern.start(), pattern.end()));
        let end = end.max(above.saturating_add(1));
        let stride = if self.stride == self.bytes { 0 } else { self.stride };
        let step = common_divisor(distance(pattern), stride);
        let next = if step == 0 { end } else { end.checked_add(self.distance_to_next(pattern, end, step))? };
        (next < below).then_some(next)
    }

    /// Distance from `end` to the next end of a run that overlaps the pattern's last one, if either is shifted by some
    /// multiple of the step.
    fn distance_to_next(&self, pattern: &Pattern, end: u64, step: u64) -> u64 {
        // A run overlaps another one if it ends behind that one's start, by less than their lengths together. Of a
        // shift, 1 is the least, and `step` as much as 0.
        let last = pattern.end() - pattern.bytes();
        let behind = (end % step + (step - last % step)) % step;
        let behind = if behind == 0 { step } else { behind };
        if behind < self.bytes.saturating_add(pattern.bytes()) { 0 } else { step - behind + 1 }
    }
}

/// From one run to the next; 0: there is none.
fn distance(pattern: &Pattern) -> u64 {
    if pattern.count() == 1 { 0 } else { pattern.stride() }
}

/// The largest divisor of both; of 0 and another number that number.
fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
