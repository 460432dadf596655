//! What is to be done about one name: the decision alone.
//!
//! Three things are compared: what the name is here, what was below when it was read or written back, and what is below
//! now. What is the same here and then was not changed here; what is the same then and now was not changed below.
//! Nothing that others have changed below is written over or removed.

use weft_protocol::{BelowEntry, BelowStamp, FileKind, InodeNumber, Timestamp};

/// What the name is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ours {
    pub kind: FileKind,
    pub inode: InodeNumber,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// What is below now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theirs {
    /// `None`: neither a file, nor a directory, nor a symbolic link.
    pub kind: Option<FileKind>,
    pub stamp: BelowStamp,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing has changed here.
    Nothing,
    /// What is below is ours already: that is to be known.
    Know,
    /// It is gone at both places.
    Forget,
    /// What was read from below is gone here.
    Remove,
    /// As `Remove`, but others have changed it: it stays.
    Leave,
    /// A file or symbolic link is written. `removes`: what is below goes first, since it is of another kind.
    Write { removes: bool },
    /// As `Write`, under another name: what is below was changed by others.
    WriteBeside,
    /// The directory is the one that was read or written: look into it.
    Enter,
    /// A directory is made, unless there is one, and all that is in it written. `removes`: as above.
    Make { removes: bool },
    /// As `Make`, under another name.
    MakeBeside,
}

impl Theirs {
    /// Whether it is what was there.
    pub fn is_as(&self, before: &BelowEntry) -> bool {
        self.kind == Some(before.kind) && (before.kind == FileKind::Directory || self.stamp == before.stamp)
    }
}

impl Ours {
    /// Whether it is what was read or written, and has not changed since.
    fn is_as(&self, before: &BelowEntry) -> bool {
        let is_it = self.kind == before.kind && self.inode == before.inode;
        is_it && (self.kind == FileKind::Directory || self.ctime == before.ctime)
    }

    /// Whether a file below is a copy that was made of it. A copy gets its time when it is whole.
    fn is_copied_to(&self, theirs: &Theirs) -> bool {
        let is_file = self.kind == FileKind::Regular && theirs.kind == Some(FileKind::Regular);
        is_file && theirs.stamp.size == self.size && is_time_of(theirs.stamp.mtime, self.mtime)
    }
}

/// Whether a file below that was given this time of ours has it: some file systems keep microseconds or seconds.
pub fn is_time_of(theirs: Timestamp, ours: Timestamp) -> bool {
    let kept = |unit: i64| ours.0.checked_sub(ours.0.rem_euclid(unit));
    [1, 1_000, 1_000_000_000].into_iter().any(|unit| kept(unit) == Some(theirs.0))
}

/// Decides. `before`: what was below.
pub fn decide(ours: Option<&Ours>, before: Option<&BelowEntry>, theirs: Option<&Theirs>) -> Step {
    let is_unchanged = matches!((before, theirs), (Some(before), Some(theirs)) if theirs.is_as(before));
    let differs = before.is_some_and(|before| before.differs);
    let is_directory = theirs.is_some_and(|theirs| theirs.kind == Some(FileKind::Directory));
    let Some(ours) = ours else {
        return match (before, theirs) {
            (None, _) => Step::Nothing,
            (Some(_), None) => Step::Forget,
            (Some(_), Some(_)) if differs || !is_unchanged => Step::Leave,
            (Some(_), Some(_)) => Step::Remove,
        };
    };
    let is_same = before.is_some_and(|before| ours.is_as(before));
    match (ours.kind, theirs) {
        (FileKind::Directory, _) if is_same && differs => Step::MakeBeside,
        // One that others have removed comes back with what is written into it.
        (FileKind::Directory, None) if is_same => Step::Enter,
        (FileKind::Directory, Some(_)) if is_same && is_directory => Step::Enter,
        (FileKind::Directory, None) => Step::Make { removes: false },
        (FileKind::Directory, Some(_)) if is_unchanged && !differs => Step::Make { removes: true },
        (FileKind::Directory, Some(_)) if is_directory => Step::Make { removes: false },
        (FileKind::Directory, Some(_)) => Step::MakeBeside,
        _ if is_same => Step::Nothing,
        (_, None) => Step::Write { removes: false },
        (_, Some(_)) if differs => Step::WriteBeside,
        (_, Some(_)) if is_unchanged => Step::Write { removes: is_directory },
        (_, Some(theirs)) if ours.is_copied_to(theirs) => Step::Know,
        (_, Some(_)) => Step::WriteBeside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(number: u64) -> BelowStamp {
        BelowStamp { size: number, mtime: Timestamp(7), inode: number }
    }

    fn ours(kind: FileKind, inode: u64, ctime: i64) -> Ours {
        let inode = InodeNumber::from_raw(inode);
        Ours { kind, inode, size: 5, mtime: Timestamp(5), ctime: Timestamp(ctime) }
    }

    fn before(kind: FileKind) -> BelowEntry {
        let (inode, ctime) = (InodeNumber::from_raw(1), Timestamp(1));
        BelowEntry { kind, stamp: stamp(1), inode, ctime, differs: false }
    }

    fn theirs(kind: FileKind, number: u64) -> Theirs {
        Theirs { kind: Some(kind), stamp: stamp(number) }
    }

    const FILE: FileKind = FileKind::Regular;
    const DIRECTORY: FileKind = FileKind::Directory;

    #[test]
    fn nothing_of_others_is_written_over_or_removed() {
        let (clean, dirty, new) = (ours(FILE, 1, 1), ours(FILE, 1, 2), ours(FILE, 2, 1));
        let (base, same, other) = (before(FILE), theirs(FILE, 1), theirs(FILE, 2));
        for (ours, before, theirs, expected) in [
            (None, None, Some(other), Step::Nothing),
            (None, Some(base), None, Step::Forget),
            (None, Some(base), Some(same), Step::Remove),
            (None, Some(base), Some(other), Step::Leave),
            (Some(clean), Some(base), Some(same), Step::Nothing),
            (Some(clean), Some(base), Some(other), Step::Nothing),
            (Some(clean), Some(base), None, Step::Nothing),
            (Some(dirty), Some(base), Some(same), Step::Write { removes: false }),
            (Some(dirty), Some(base), Some(other), Step::WriteBeside),
            (Some(dirty), Some(base), None, Step::Write { removes: false }),
            (Some(new), Some(base), Some(same), Step::Write { removes: false }),
            (Some(new), Some(base), Some(other), Step::WriteBeside),
            (Some(new), None, None, Step::Write { removes: false }),
            (Some(new), None, Some(other), Step::WriteBeside),
            (Some(new), None, Some(theirs(DIRECTORY, 2)), Step::WriteBeside),
            (Some(new), Some(before(DIRECTORY)), Some(theirs(DIRECTORY, 1)), Step::Write { removes: true }),
        ] {
            assert_eq!(
                decide(ours.as_ref(), before.as_ref(), theirs.as_ref()),
                expected,
                "{ours:?} {before:?} {theirs:?}"
            );
        }
        let known = BelowEntry { differs: true, ..base };
        assert_eq!(decide(Some(&dirty), Some(&known), Some(&same)), Step::WriteBeside, "also when it is seen again");
        assert_eq!(decide(None, Some(&known), Some(&same)), Step::Leave);
        let copied = Theirs { kind: Some(FILE), stamp: BelowStamp { size: 5, mtime: Timestamp(5), inode: 9 } };
        assert_eq!(decide(Some(&dirty), Some(&base), Some(&copied)), Step::Know, "a drain was interrupted");
        assert!(is_time_of(Timestamp(7_000_000_000), Timestamp(7_123_456_789)));
        assert!(!is_time_of(Timestamp(7_123_456_788), Timestamp(7_123_456_789)));
    }

    #[test]
    fn directories_are_entered_made_or_replaced() {
        let (same, new) = (ours(DIRECTORY, 1, 9), ours(DIRECTORY, 2, 1));
        let base = before(DIRECTORY);
        let there = theirs(DIRECTORY, 7);
        for (ours, before, theirs, expected) in [
            (same, Some(base), Some(there), Step::Enter),
            (same, Some(base), None, Step::Enter),
            (same, Some(base), Some(theirs(FILE, 1)), Step::MakeBeside),
            (new, Some(base), Some(there), Step::Make { removes: true }),
            (new, Some(before(FILE)), Some(theirs(FILE, 1)), Step::Make { removes: true }),
            (new, Some(before(FILE)), Some(theirs(FILE, 2)), Step::MakeBeside),
            (new, None, Some(there), Step::Make { removes: false }),
            (new, None, None, Step::Make { removes: false }),
        ] {
            assert_eq!(
                decide(Some(&ours), before.as_ref(), theirs.as_ref()),
                expected,
                "{ours:?} {before:?} {theirs:?}"
            );
        }
        assert_eq!(decide(None, Some(&base), Some(&there)), Step::Remove);
    }
}
