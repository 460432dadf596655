//! Who may do what: the rules of POSIX, user 0 may all.
//!
//! Not here: who a caller is. The connection's key fixed that before.

use super::inode::{Inode, STICKY};
use weft_protocol::{Credentials, Error, Result};

/// Read: list a directory.
pub const READ: u16 = 4;
/// Write: change a directory's names.
pub const WRITE: u16 = 2;
/// Execute: pass through a directory.
pub const SEARCH: u16 = 1;
/// Execute: run a program.
pub const EXECUTE: u16 = 1;

/// Whether the caller has all these rights to the inode: those of the first class (owner, group, others) that he is in.
pub fn check_access(inode: &Inode, caller: &Credentials, rights: u16) -> Result<()> {
    if caller.uid == 0 {
        return Ok(());
    }
    let class = if caller.uid == inode.uid {
        inode.mode >> 6
    } else if caller.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if class & rights == rights { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the caller may make names in the directory.
pub fn check_change_names(directory: &Inode, caller: &Credentials) -> Result<()> {
    check_access(directory, caller, WRITE | SEARCH)
}

/// Whether a sticky directory lets the caller remove a name of this inode, given that he may change names.
pub fn check_sticky(directory: &Inode, target: &Inode, caller: &Credentials) -> Result<()> {
    let free = directory.mode & STICKY == 0 || is_owner(target, caller) || is_owner(directory, caller);
    if free { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Whether the caller is the owner, or user 0.
pub fn is_owner(inode: &Inode, caller: &Credentials) -> bool {
    caller.uid == 0 || caller.uid == inode.uid
}
