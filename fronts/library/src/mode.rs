//! File types and permissions as in `st_mode`.

use weft_protocol::{Attributes, FileKind};

/// Permissions of user, group and others, set-user-ID, set-group-ID and the sticky bit.
const PERMISSION_BITS: u32 = 0o7777;

/// File type bits: one of `S_IFREG`, `S_IFDIR`, `S_IFLNK`.
pub fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
    }
}

/// `st_mode`: file type and permissions.
pub fn mode(attributes: &Attributes) -> u32 {
    file_type(attributes.kind) | u32::from(attributes.mode) & PERMISSION_BITS
}

/// Permission bits of a mode that a program passes. Like Linux, ignores file type bits: programs pass `st_mode`.
pub fn permission_bits(mode: libc::mode_t) -> u16 {
    u16::try_from(mode & PERMISSION_BITS).expect("12 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_of_st_mode_are_those_that_were_set() {
        for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink] {
            assert_eq!(permission_bits(file_type(kind) | 0o6751), 0o6751);
        }
        assert_eq!(permission_bits(u32::MAX), 0o7777);
    }
}
