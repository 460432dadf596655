//! Names of unfinished copies, and the record of how far a large one is.

use super::place::{Item, Place};
use crate::failure::Outcome;
use serde::{Deserialize, Serialize};
use weft_protocol::limits::NAME_BYTES_MAX;

const PART_SUFFIX: &[u8] = b".weft-part";
const RESUME_SUFFIX: &[u8] = b".weft-resume";

/// What is known of an unfinished large copy. It is written after the bytes that it tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Bytes of the source.
    pub size: u64,
    /// Modification time of the source, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Bytes from the beginning that are in the part.
    pub done: u64,
}

/// Name under which a file is written until it is whole.
pub fn part_name(name: &[u8]) -> Vec<u8> {
    hidden_name(name, PART_SUFFIX)
}

/// Name of the record beside it.
pub fn record_name(name: &[u8]) -> Vec<u8> {
    hidden_name(name, RESUME_SUFFIX)
}

/// Whether a name is one of these: not to be copied along.
pub fn is_own_name(name: &[u8]) -> bool {
    name.starts_with(b".") && (name.ends_with(PART_SUFFIX) || name.ends_with(RESUME_SUFFIX))
}

/// `.NAME.suffix`; of a name that would become too long, the first part and a hash of the whole.
fn hidden_name(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    let room = NAME_BYTES_MAX - 1 - suffix.len();
    if name.len() <= room {
        return [b".", name, suffix].concat();
    }
    // FNV-1a: only names with the same beginning in the same directory must differ.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = format!("~{hash:016x}");
    [b".", &name[..room - hash.len()], hash.as_bytes(), suffix].concat()
}

impl Record {
    /// The record of a copy that has just begun.
    pub fn new(item: &Item) -> Self {
        Self { size: item.size, mtime_ns: item.mtime.0, done: 0 }
    }

    /// How far an unfinished copy is: zero unless it is one of this very source.
    pub fn resume_at(item: &Item, part: &Place, record: &Place) -> u64 {
        let (Ok(Some(found)), Ok(bytes)) = (part.look(false), record.read_small()) else { return 0 };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.size == item.size && record.mtime_ns == item.mtime.0 => {
                record.done.min(found.size).min(item.size)
            }
            _ => 0,
        }
    }

    /// Writes the record.
    pub fn write(&self, place: &Place) -> Outcome<()> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        place.write_small(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_names_fit_and_differ() {
        assert_eq!(part_name(b"a.h5"), b".a.h5.weft-part");
        assert_eq!(record_name(b"a.h5"), b".a.h5.weft-resume");
        let (long, other) = ([b'x'; 255], [&[b'x'; 254][..], b"y"].concat());
        assert_eq!(part_name(&long).len(), NAME_BYTES_MAX);
        assert_ne!(part_name(&long), part_name(&other));
        assert_ne!(part_name(&long), record_name(&long));
        for name in [part_name(&long), record_name(b"b")] {
            assert!(is_own_name(&name));
        }
        assert!(!is_own_name(b"a.weft-part"));
    }
}
