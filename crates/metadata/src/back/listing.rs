//! Listing a directory, page by page.

use super::keys::{Key, cookie_of};
use super::permission::{READ, check_access};
use super::probe::Record;
use super::{Back, Dentry};
use crate::kv::KeyValue;
use std::ops::ControlFlow;
use weft_protocol::limits::{DIRECTORY_PAGE_BYTES_MAX, DIRECTORY_PAGE_ENTRIES_MAX};
use weft_protocol::{Cookie, Credentials, InodeNumber, Name, Result};

/// A name, and where it stands.
#[derive(Debug)]
pub struct Listed {
    pub cookie: Cookie,
    pub name: Name,
    pub dentry: Dentry,
}

/// Names of a directory, in the order of their cookies.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Listed>,
    /// There are more after the last one.
    pub has_more: bool,
    /// `..` of the directory.
    pub parent: InodeNumber,
}

impl<K: KeyValue> Back<K> {
    /// Names after a cookie. Costs a search and the entries listed.
    pub fn list(&self, caller: &Credentials, number: InodeNumber, after: Cookie, entries_max: u32) -> Result<Listing> {
        let directory = self.directory(number)?;
        check_access(&directory, caller, READ)?;
        let entries_max = entries_max.clamp(1, DIRECTORY_PAGE_ENTRIES_MAX) as usize;
        let expected = usize::try_from(directory.size).map_or(entries_max, |size| size.min(entries_max));
        let mut listing = Listing { entries: Vec::with_capacity(expected), has_more: false, parent: directory.parent };
        let Some(first) = after.raw().checked_add(1) else { return Ok(listing) };
        let mut bytes = 0;
        self.store.scan(&Key::dentry(number, Cookie::from_raw(first)), |key, value| {
            let Some(cookie) = cookie_of(key, number) else { return ControlFlow::Break(()) };
            let record = Record::decode(value);
            let Some(dentry) = record.dentry else { return ControlFlow::Continue(()) };
            bytes += record.name.len();
            if listing.entries.len() == entries_max || bytes > DIRECTORY_PAGE_BYTES_MAX {
                listing.has_more = true;
                return ControlFlow::Break(());
            }
            let name = Name::new(record.name).expect("only valid names are put in");
            listing.entries.push(Listed { cookie, name, dentry });
            ControlFlow::Continue(())
        });
        Ok(listing)
    }
}
