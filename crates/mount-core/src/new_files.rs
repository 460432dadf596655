//! Which new files will stay empty.
//!
//! A file that the kernel is to write by itself needs its object when it is made: a message that an empty file does not
//! pay otherwise, as many programs make them (lock files, markers, benchmarks). Nobody says at `create` what will be
//! written, so it is guessed from what was made in the same directory just before. Wrong guesses cost time only: an
//! empty file gets an object, or a file with contents is written through user space.
//!
//! Only a rush is worth guessing in: among few files the message is not noticed, and a large file that is wrongly taken
//! for an empty one is. So a guess holds for a moment.
//!
//! Not here: everything else about modes (`open_modes.rs`).

use crate::lock::lock;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use weft_protocol::InodeNumber;

/// This many empty files in a row make the next one be taken for empty.
const ROW: u32 = 4;
/// How long after the last of them.
const MOMENT: Duration = Duration::from_millis(50);
/// Directories that are remembered. Two that meet in one place forget each other.
const PLACES: usize = 64;

/// What was made lately.
pub struct NewFiles {
    /// Held for one look.
    places: Mutex<[Option<Recent>; PLACES]>,
}

#[derive(Clone, Copy)]
struct Recent {
    directory: InodeNumber,
    empty_in_a_row: u32,
    last: Duration,
}

fn place(directory: InodeNumber) -> usize {
    // A remainder of PLACES fits.
    (directory.raw() % PLACES as u64) as usize
}

impl Default for NewFiles {
    fn default() -> Self {
        Self { places: Mutex::new([None; PLACES]) }
    }
}

impl NewFiles {
    fn lock(&self) -> MutexGuard<'_, [Option<Recent>; PLACES]> {
        lock(&self.places)
    }

    /// Whether a file that is made in this directory now will probably be written.
    pub fn will_be_written(&self, directory: InodeNumber, now: Duration) -> bool {
        let recent = self.lock()[place(directory)];
        !recent.is_some_and(|recent| {
            recent.directory == directory && recent.empty_in_a_row >= ROW && now < recent.last + MOMENT
        })
    }

    /// A new file was closed.
    pub fn closed(&self, directory: InodeNumber, is_empty: bool, now: Duration) {
        let recent = &mut self.lock()[place(directory)];
        let before = recent.filter(|recent| recent.directory == directory).map_or(0, |recent| recent.empty_in_a_row);
        let empty_in_a_row = if is_empty { before.saturating_add(1) } else { 0 };
        *recent = Some(Recent { directory, empty_in_a_row, last: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_some_empty_files_the_next_is_taken_for_empty_for_a_moment() {
        let files = NewFiles::default();
        let (directory, other) = (InodeNumber::from_raw(5), InodeNumber::from_raw(6));
        let start = Duration::from_secs(7);
        for _ in 0..ROW {
            assert!(files.will_be_written(directory, start));
            files.closed(directory, true, start);
        }
        assert!(!files.will_be_written(directory, start + MOMENT / 2));
        assert!(files.will_be_written(other, start), "another directory");
        assert!(files.will_be_written(directory, start + MOMENT), "the rush is over");
        files.closed(directory, false, start);
        assert!(files.will_be_written(directory, start), "one was written");
    }
}
