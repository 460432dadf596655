//! Whose an object is: what its super block says about that (docs/formats/region-store.md).

use crate::sealed::u64_at;
use std::fmt;

/// Whose an object is, as whoever uses the store sees it. Zeros: nobody said.
pub type Owner = [u8; 24];

/// What a node writes there: the object has bytes of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// Inode number of the file.
    pub inode: u64,
    /// Identifier under which the file's layout has the object.
    pub object: u64,
    /// The first of the file's bytes that the object may have.
    pub start: u64,
}

impl FilePart {
    /// `None`: nobody said.
    pub fn of(owner: Owner) -> Option<Self> {
        let number = |at| u64_at(&owner, at).expect("an owner is three numbers");
        let part = Self { inode: number(0), object: number(8), start: number(16) };
        (owner != Owner::default()).then_some(part)
    }

    /// As the super block has it.
    pub fn owner(self) -> Owner {
        let numbers = [self.inode, self.object, self.start].map(u64::to_le_bytes);
        numbers.as_flattened().try_into().expect("three numbers are an owner")
    }
}

impl fmt::Display for FilePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, object, start } = self;
        write!(f, "of {inode:x}/{object:x}")?;
        if *start > 0 { write!(f, " from byte {start} on") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_says_which_bytes_of_which_file_an_object_has() {
        let part = FilePart { inode: 0x1_2345, object: 77, start: 1 << 40 };
        assert_eq!(FilePart::of(part.owner()), Some(part));
        assert_eq!(FilePart::of(Owner::default()), None);
        assert_eq!(part.owner()[..2], [0x45, 0x23]);
    }
}
