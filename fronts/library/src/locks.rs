//! Advisory locks of byte ranges.

use crate::failure::{Failure, Outcome};
use weft_protocol::{LockMode, LockRange, RangeLock};

/// A range: a length of 0 goes to the end of all offsets.
pub fn lock_range(start: u64, length: u64) -> Outcome<LockRange> {
    let text = || format!("{length} bytes from {start} end beyond what an offset can tell");
    let end = match length.checked_sub(1) {
        None => Some(LockRange::ALL.end),
        Some(rest) => start.checked_add(rest),
    };
    let range = LockRange { start, end: end.ok_or_else(|| Failure::invalid(text()))? };
    if range.is_valid() { Ok(range) } else { Err(Failure::invalid(text())) }
}

/// A lock of a range.
pub fn range_lock(start: u64, length: u64, exclusive: bool) -> Outcome<RangeLock> {
    let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
    Ok(RangeLock { range: lock_range(start, length)?, mode })
}
