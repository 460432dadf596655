//! Listing a directory, page by page.

use super::keys::{DENTRY_PREFIX_BYTES, Key};
use super::permission::{READ, check_access};
use super::{Back, Dentry};
use crate::kv::KeyValue;
use std::ops::ControlFlow;
use weft_protocol::limits::{DIRECTORY_PAGE_BYTES_MAX, DIRECTORY_PAGE_ENTRIES_MAX};
use weft_protocol::{Credentials, InodeNumber, Name, Result};

/// Names of a directory, in the order of their bytes.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<(Name, Dentry)>,
    /// There are more behind the last one.
    pub has_more: bool,
    /// `..` of the directory.
    pub parent: InodeNumber,
}

impl<K: KeyValue> Back<K> {
    /// Names behind `after`. Costs a search and the entries listed.
    pub fn list(
        &self,
        caller: &Credentials,
        number: InodeNumber,
        after: Option<&Name>,
        entries_max: u32,
    ) -> Result<Listing> {
        let directory = self.directory(number)?;
        check_access(&directory, caller, READ)?;
        let entries_max = entries_max.clamp(1, DIRECTORY_PAGE_ENTRIES_MAX) as usize;
        let expected = usize::try_from(directory.size).map_or(entries_max, |size| size.min(entries_max));
        let mut listing = Listing { entries: Vec::with_capacity(expected), has_more: false, parent: directory.parent };
        let mut bytes = 0;
        let prefix = Key::dentry(number, &[]);
        let from = Key::dentry(number, after.map_or(&[], |name| name.as_bytes()));
        self.store.scan(&from, |key, value| {
            if !key.starts_with(&prefix) {
                return ControlFlow::Break(());
            }
            let name = &key[DENTRY_PREFIX_BYTES..];
            if after.is_some_and(|after| after.as_bytes() == name) {
                return ControlFlow::Continue(());
            }
            bytes += name.len();
            if listing.entries.len() == entries_max || bytes > DIRECTORY_PAGE_BYTES_MAX {
                listing.has_more = true;
                return ControlFlow::Break(());
            }
            let name = Name::new(name).expect("only valid names are put in");
            let dentry = Dentry::decode(value).expect("a record of the store is what was put in");
            listing.entries.push((name, dentry));
            ControlFlow::Continue(())
        });
        Ok(listing)
    }
}
