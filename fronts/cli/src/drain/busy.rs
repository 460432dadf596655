//! Files that drains in the background leave while they are being written.
//!
//! A file that has just changed is probably not whole: the drain leaves it to the next one. That one writes it whether
//! or not it has changed again, so that each change is below at most two drains after it was closed or synced.

use super::decide::Ours;
use crate::failure::{Failure, Outcome};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use weft_protocol::{InodeNumber, Timestamp};

/// See the module.
pub struct Busy {
    /// How long a file has to be unchanged to be written at once.
    quiet: Duration,
    /// A file that was changed after this is left.
    until: Timestamp,
    left_before: BTreeSet<InodeNumber>,
    left: BTreeSet<InodeNumber>,
}

impl Busy {
    pub fn new(quiet: Duration) -> Self {
        Self { quiet, until: Timestamp(0), left_before: BTreeSet::new(), left: BTreeSet::new() }
    }

    /// Begins a drain.
    pub fn begin(&mut self) -> Outcome<()> {
        self.until = SystemTime::now()
            .checked_sub(self.quiet)
            .and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok())
            .and_then(|since| Some(Timestamp::from_parts(i64::try_from(since.as_secs()).ok()?, since.subsec_nanos())))
            .ok_or_else(|| Failure::new("drain: the clock of this machine is wrong"))?;
        self.left_before = std::mem::take(&mut self.left);
        Ok(())
    }

    /// Returns true if this drain leaves a file that differs from the one below.
    pub fn leaves(&mut self, ours: &Ours) -> bool {
        let leaves = ours.ctime > self.until && !self.left_before.contains(&ours.inode);
        if leaves {
            self.left.insert(ours.inode);
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::FileKind;

    #[test]
    fn a_file_that_changes_is_left_every_other_time() {
        let mut busy = Busy::new(Duration::from_secs(60));
        let file = |ctime| {
            let inode = InodeNumber::from_raw(7);
            Ours { kind: FileKind::Regular, inode, size: 1, mtime: Timestamp(0), ctime }
        };
        let changes = file(Timestamp(i64::MAX));
        let mut left = Vec::new();
        for _ in 0..4 {
            busy.begin().expect("the clock is right");
            left.push(busy.leaves(&changes));
        }
        assert_eq!(left, [true, false, true, false]);
        busy.begin().expect("the clock is right");
        assert!(!busy.leaves(&file(Timestamp(0))), "an old change is written at once");
    }
}
