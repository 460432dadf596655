//! The file of an object, of which each write has one value in all its bytes: so a record costs a few words here,
//! however long it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// See the module.
#[derive(Default)]
pub struct PartFile {
    /// Where each begins: its length, and what its bytes are. None touch a byte of another.
    records: RefCell<BTreeMap<u64, (u64, u8)>>,
}

impl PartFile {
    /// Writes a record, over one that was written at the same place or where none was.
    pub fn write(&self, bytes: &[u8], offset: u64) {
        let Some(first) = bytes.first() else { return };
        assert!(bytes.iter().all(|byte| byte == first), "the bytes of a record are one value");
        let length = bytes.len() as u64;
        let mut records = self.records.borrow_mut();
        let is_free = records.range(..offset + length).next_back().is_none_or(|(at, (bytes, _))| at + bytes <= offset);
        let is_same = records.get(&offset).is_some_and(|(bytes, _)| *bytes == length);
        assert!(is_free || is_same, "records do not overlap");
        records.insert(offset, (length, *first));
    }

    /// Reads up to the end; zeros where nothing was written.
    pub fn read(&self, into: &mut [u8], offset: u64) -> usize {
        let count = self.size().saturating_sub(offset).min(into.len() as u64);
        let count = usize::try_from(count).expect("at most the buffer's length");
        into.fill(0);
        let end = offset + count as u64;
        for (at, (length, value)) in self.records.borrow().range(..end).rev() {
            if at + length <= offset {
                break;
            }
            let place = |position: u64| usize::try_from(position - offset).expect("within the buffer");
            into[place((*at).max(offset))..place((at + length).min(end))].fill(*value);
        }
        count
    }

    /// Where the last record ends.
    pub fn size(&self) -> u64 {
        self.records.borrow().last_key_value().map_or(0, |(at, (length, _))| at + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_it_was_written() {
        let file = PartFile::default();
        file.write(&[1; 4], 8);
        file.write(&[2; 4], 0);
        file.write(&[3; 4], 8);
        let mut read = [9; 16];
        assert_eq!(file.read(&mut read, 2), 10);
        assert_eq!(read[..10], [2, 2, 0, 0, 0, 0, 3, 3, 3, 3]);
        assert_eq!((file.size(), file.read(&mut read, 20)), (12, 0));
    }
}
