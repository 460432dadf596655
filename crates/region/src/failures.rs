//! Work that the store does by itself, and that failed: nobody waits for it who could be told.
//!
//! It changes nothing when it fails, and is done again, in the end by a caller who gets the error. So a failure is
//! logged and counted, for whoever looks after the store.

use crate::error::Error;
use crate::lock;
use std::sync::Mutex;

/// How often work in the background has failed since the store was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// Checkpoints of the index of versions.
    pub checkpoints: u64,
    /// Defragmentations.
    pub defragmentations: u64,
    /// Cleanings; who asked for one was told, too.
    pub cleanings: u64,
    /// The last of them, in words.
    pub last: Option<String>,
}

impl Failures {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.checkpoints + self.defragmentations + self.cleanings
    }
}

/// Kinds of such work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Checkpoint,
    Defragmentation,
    Cleaning,
}

/// What has failed in a store.
#[derive(Default)]
pub(crate) struct Noted(Mutex<Failures>);

impl Noted {
    /// Takes note of a failure, and logs it; of many of one kind the first, second, fourth, and so on.
    pub fn note(&self, work: Work, error: &Error) {
        // That there is no room now, or that the object has gone, is no failure.
        if matches!(error, Error::NoSpace | Error::RingFull(_) | Error::NoObject | Error::PartOfVersion(_)) {
            return;
        }
        let mut noted = lock(&self.0);
        let (what, count) = match work {
            Work::Checkpoint => ("checkpoint of the index", &mut noted.checkpoints),
            Work::Defragmentation => ("defragmentation", &mut noted.defragmentations),
            Work::Cleaning => ("cleaner", &mut noted.cleanings),
        };
        *count += 1;
        let times = *count;
        noted.last = Some(format!("{what}: {error}"));
        drop(noted);
        if times.is_power_of_two() {
            tracing::warn!(%error, times, "region store: {what} failed");
        }
    }

    pub fn so_far(&self) -> Failures {
        lock(&self.0).clone()
    }
}
