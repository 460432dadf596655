//! Listing a directory, page by page.

use super::keys::{Key, cookie_of};
use super::permission::{READ, check_access};
use super::probe::Record;
use super::{Back, Dentry};
use crate::kv::KeyValue;
use std::ops::ControlFlow;
use weft_protocol::limits::{DIRECTORY_PAGE_BYTES_MAX, DIRECTORY_PAGE_ENTRIES_MAX};
use weft_protocol::{Cookie, Credentials, Error, InodeNumber, Name, Result};

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
    /// After which cookie it goes on; `None`: the last name is among them.
    pub next: Option<Cookie>,
    /// `..` of the directory.
    pub parent: InodeNumber,
}

impl<K: KeyValue> Back<K> {
    /// Names after a cookie. Costs a search and the entries listed. Of a directory with parts this is one part, and the
    /// listing goes on in the next one.
    pub fn list(&self, caller: &Credentials, number: InodeNumber, after: Cookie, entries_max: u32) -> Result<Listing> {
        let directory = self.directory(number)?;
        check_access(&directory, caller, READ)?;
        let entries_max = entries_max.clamp(1, DIRECTORY_PAGE_ENTRIES_MAX) as usize;
        let expected = usize::try_from(directory.size).map_or(entries_max, |size| size.min(entries_max));
        let mut listing = Listing { entries: Vec::with_capacity(expected), next: None, parent: directory.parent };
        let Some(first) = after.raw().checked_add(1) else { return Ok(listing) };
        if let Some(parts) = &directory.parts
            && directory.links > 0
        {
            if after != Cookie::START && parts.after(after).is_some_and(|(part, _)| part != number) {
                return Err(Error::Split);
            }
            listing.next = parts.last_cookie(number);
        }
        let mut bytes = 0;
        self.store.scan(&Key::dentry(number, Cookie::from_raw(first)), |key, value| {
            let Some(cookie) = cookie_of(key, number) else { return ControlFlow::Break(()) };
            let record = Record::decode(value);
            let Some(dentry) = record.dentry else { return ControlFlow::Continue(()) };
            bytes += record.name.len();
            if listing.entries.len() == entries_max || bytes > DIRECTORY_PAGE_BYTES_MAX {
                listing.next = listing.entries.last().map(|last| last.cookie);
                return ControlFlow::Break(());
            }
            let name = Name::new(record.name).expect("only valid names are put in");
            listing.entries.push(Listed { cookie, name, dentry });
            ControlFlow::Continue(())
        });
        Ok(listing)
    }
}
