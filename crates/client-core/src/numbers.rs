//! Inode numbers that the cache above, a kernel, may use although this client has lost its lease on them.
//!
//! A kernel opens files and directories by their number alone, and what it has open or is about to open it does not
//! forget. So when the lease on an inode's attributes is recalled, or its last name is removed here, the shard is told
//! whether the kernel still knows the number: for one term it can then be opened also without a name. As soon as the
//! kernel forgets it, the number is given back, and the shard frees the inode.
//!
//! A kernel that does not know a number may be about to: the reply that tells it may be on its way from the shard, or
//! be looked at here, when the recall comes or the kernel forgets the number that it had been told before. So a number
//! counts as known while requests are in flight that began before the question, and is given back with the stamp up to
//! which replies had come then: what later ones tell stays with the shard.
//!
//! A directory that the kernel knows for longer is open, or somebody's working directory: it is held at the shard until
//! the kernel forgets it.
//!
//! Not here: the calls (`forgetting.rs`).

use std::collections::BTreeMap;
use weft_protocol::InodeNumber;
use weft_protocol::limits::SESSION_TERM_MS;

/// Numbers noted at most. Beyond it an inode may go while the kernel is about to open it, which it then tries again.
const NUMBERS_MAX: usize = 65_536;
/// A directory is held when the kernel has not forgotten it for so long: most are forgotten at once.
const HOLD_AFTER_MS: u64 = SESSION_TERM_MS / 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Numbers(BTreeMap<InodeNumber, Number>);

pub(crate) struct Number {
    since_ms: u64,
    pub directory: Directory,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Directory {
    /// It is not one.
    No,
    Perhaps,
    /// It is held, by a grant with this stamp.
    Held(u64),
}

impl Numbers {
    /// The session is over, and with it all that it held.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes a number. `false`: there is no room.
    pub fn note(&mut self, inode: InodeNumber, directory: Directory, now_ms: u64) -> bool {
        if self.0.len() >= NUMBERS_MAX && !self.0.contains_key(&inode) {
            return false;
        }
        let number = self.0.entry(inode).or_insert(Number { since_ms: now_ms, directory });
        number.since_ms = now_ms;
        if number.directory == Directory::No {
            number.directory = directory;
        }
        true
    }

    /// Whether the number is noted.
    pub fn contains(&self, inode: InodeNumber) -> bool {
        self.0.contains_key(&inode)
    }

    /// A number that is noted.
    pub fn get_mut(&mut self, inode: InodeNumber) -> Option<&mut Number> {
        self.0.get_mut(&inode)
    }

    /// Forgets a number.
    pub fn remove(&mut self, inode: InodeNumber) -> Option<Number> {
        self.0.remove(&inode)
    }

    /// Drops what the shard does not count any more. Returns the directories to be held.
    pub fn look_through(&mut self, now_ms: u64) -> Vec<InodeNumber> {
        let age_ms = |number: &Number| now_ms.saturating_sub(number.since_ms);
        self.0.retain(|_, number| number.directory != Directory::No || age_ms(number) < SESSION_TERM_MS);
        let unheld = |number: &Number| number.directory == Directory::Perhaps && age_ms(number) >= HOLD_AFTER_MS;
        self.0.iter().filter(|(_, number)| unheld(number)).map(|(inode, _)| *inode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber::from_raw(7);

    #[test]
    fn the_number_of_a_file_is_noted_for_a_term_and_that_of_a_directory_until_it_is_forgotten() {
        let mut numbers = Numbers::default();
        let directory = InodeNumber::from_raw(8);
        assert!(numbers.note(INODE, Directory::No, 5) && numbers.note(directory, Directory::Perhaps, 5));
        assert_eq!(numbers.look_through(6), []);
        assert_eq!(numbers.look_through(5 + HOLD_AFTER_MS), [directory]);
        numbers.0.get_mut(&directory).unwrap().directory = Directory::Held(3);
        assert!(numbers.note(directory, Directory::No, 6), "its attributes are recalled once more");
        assert_eq!(numbers.look_through(SESSION_TERM_MS + 4), []);
        assert_eq!(numbers.0.len(), 2);
        assert_eq!(numbers.look_through(2 * SESSION_TERM_MS), []);
        assert!(numbers.0.get(&directory).is_some_and(|number| number.directory == Directory::Held(3)));
        assert_eq!(numbers.0.len(), 1);
    }

    #[test]
    fn numbers_are_bounded() {
        let mut numbers = Numbers::default();
        for number in 0..NUMBERS_MAX as u64 {
            assert!(numbers.note(InodeNumber::from_raw(number), Directory::No, 0));
        }
        assert!(!numbers.note(InodeNumber::from_raw(u64::MAX), Directory::No, 0));
        assert!(numbers.note(INODE, Directory::No, 1), "it is among them");
    }
}
