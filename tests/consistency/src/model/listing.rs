//! Listings in steps: an entry that lasts from the opening or rewinding to the end is told exactly once.

use super::{Id, Model};
use crate::call::{HandleId, WorkerId};
use crate::outcome::{Entry, Outcome};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// One pass over a directory.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    /// Names that were there all the time.
    lasting: BTreeSet<String>,
    /// Names that were there at some time, with what they named: directories (`true`) or files.
    possible: BTreeMap<String, BTreeSet<bool>>,
    told: BTreeSet<String>,
    has_changed: bool,
    has_ended: bool,
}

impl Listing {
    fn begin(entries: impl Iterator<Item = (String, bool)>) -> Self {
        let possible: BTreeMap<_, _> = entries.map(|(name, kind)| (name, BTreeSet::from([kind]))).collect();
        Self {
            lasting: possible.keys().cloned().collect(),
            possible,
            told: BTreeSet::new(),
            has_changed: false,
            has_ended: false,
        }
    }

    fn tell(&mut self, entry: &Entry, is_unstable: bool) -> Result<(), String> {
        let Entry { name, is_directory } = entry;
        let Some(kinds) = self.possible.get(name) else {
            return Err(format!("got entry {name}, which was never there during the listing"));
        };
        if !kinds.contains(is_directory) {
            let told = if *is_directory { "a directory" } else { "a file" };
            return Err(format!("got entry {name} as {told}, which it never was during the listing"));
        }
        if !self.told.insert(name.clone()) && self.lasting.contains(name) && !is_unstable {
            return Err(format!("got entry {name} twice, which was there all the time"));
        }
        Ok(())
    }
}

impl Model {
    /// Begins a listing of a directory, which has to be one.
    pub(super) fn begin_listing(&self, directory: Id) -> Result<Listing, Errno> {
        let entries = self.entries(directory)?.iter();
        Ok(Listing::begin(entries.map(|(name, id)| (name.clone(), self.is_directory(*id)))))
    }

    /// An entry of a directory was set. `has_changed`: the name appeared or disappeared.
    pub(super) fn touch_listings(&mut self, directory: Id, name: &str, kind: Option<bool>, has_changed: bool) {
        let handles = self.handles.values_mut().filter(|handle| handle.inode == directory);
        for listing in handles.filter_map(|handle| handle.listing.as_mut()) {
            listing.has_changed = true;
            if has_changed {
                listing.lasting.remove(name);
            }
            if let Some(kind) = kind {
                listing.possible.entry(name.to_owned()).or_default().insert(kind);
            }
        }
    }

    /// Compares what one step of a listing told.
    pub(super) fn check_listing(&mut self, key: (WorkerId, HandleId), outcome: &Outcome) -> Result<(), String> {
        let is_unstable = self.allowances.unstable_listings;
        let Some(handle) = self.handles.get_mut(&key) else { return Ok(()) };
        let is_removed = self.inodes.get(&handle.inode).is_none_or(|inode| inode.links == 0);
        let Some(listing) = handle.listing.as_mut() else { return Ok(()) };
        let entries = match outcome {
            Outcome::Entries(entries) => entries,
            Outcome::Failed(errno) if is_removed && *errno == Errno::NOENT.raw_os_error() => return Ok(()),
            _ => return Err(format!("got {outcome}, expected entries")),
        };
        if listing.has_ended {
            // What is told after the end is not defined.
            return Ok(());
        }
        let is_unstable = is_unstable && listing.has_changed;
        let is_own = |entry: &&Entry| !matches!(entry.name.as_str(), "." | "..");
        entries.iter().filter(is_own).try_for_each(|entry| listing.tell(entry, is_unstable))?;
        if !entries.is_empty() {
            return Ok(());
        }
        listing.has_ended = true;
        let missing: Vec<&str> = listing.lasting.difference(&listing.told).map(String::as_str).collect();
        match missing.is_empty() || is_unstable {
            true => Ok(()),
            false => Err(format!("the listing ended without {}, there all the time", missing.join(" "))),
        }
    }
}
