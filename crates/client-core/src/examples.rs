//! Values that tests of several modules use.

use weft_protocol::{Attributes, FileKind, InodeFlags, InodeNumber, Layout, Timestamp};

/// Attributes of an inode without data, all times of which are this one.
pub fn attributes(inode: InodeNumber, kind: FileKind, time: i64) -> Attributes {
    let time = Timestamp(time);
    let (mode, links) = if kind == FileKind::Directory { (0o755, 2) } else { (0o644, 1) };
    Attributes {
        inode,
        kind,
        mode,
        links,
        uid: 0,
        gid: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        layout: Layout::Empty,
        flags: InodeFlags::empty(),
        parts: None,
    }
}
