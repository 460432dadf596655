//! Open directories: opening, listing.
//!
//! Not here: offsets (`listing.rs`), which listings the kernel keeps (`kernel_listings.rs`).

use crate::kernel_listings::Reading;
use crate::listing::{Item, Listing, PageSource};
use crate::operations::{Answer, Mount};
use crate::shell::{MonitorOf, MountShell};
use crate::telling::Telling;
use std::sync::Arc;
use std::time::Duration;
use weft_client_core::{DirectoryListing, Entry, Monitor};
use weft_protocol::message::shard::DirectoryCursor;
use weft_protocol::{Attributes, Credentials, FileKind, InodeNumber, Result};

/// An open directory.
pub struct OpenDirectory<M: MountShell> {
    inode: InodeNumber,
    who: Credentials,
    /// Held while a page is fetched, against the rule: only readers of the same open directory wait for it, they need
    /// that page too, and no recall takes it.
    listing: MonitorOf<M, Listing>,
    reading: Reading,
}

/// One entry of a reply to a listing.
pub struct Shown<'a> {
    pub name: &'a [u8],
    pub inode: InodeNumber,
    pub kind: FileKind,
    /// The offset to go on with.
    pub next: u64,
    /// How long the name and its attributes may be kept.
    pub valid: Duration,
    /// `None`: not known, or not asked for; nothing of them is kept.
    pub attributes: Option<&'a Attributes>,
}

impl<M: MountShell> Mount<M> {
    /// Permission to list was checked by the kernel, and is again by the shard with the first page.
    /// The number, and whether the listing that the kernel may have is good.
    pub fn open_directory(&self, who: Credentials, inode: InodeNumber) -> Result<(u64, bool)> {
        let keep = self.listings.may_keep(inode, self.client.directory_hold(inode));
        let (listing, reading) = (Monitor::new(Listing::default()), Reading::default());
        let handle = self.directories.insert(Arc::new(OpenDirectory { inode, who, listing, reading }))?;
        Ok((handle, keep))
    }

    pub fn close_directory(&self, handle: u64) -> Result<()> {
        self.directories.remove(handle).map(drop)
    }

    /// Goes through an open directory from an offset, until `add` says that the reply is full, or what comes next
    /// would take another message while there is something to answer already.
    pub async fn list(&self, handle: u64, offset: u64, mut add: impl FnMut(&Shown<'_>) -> bool) -> Result<()> {
        let directory = self.directories.get(handle)?;
        let pages = Pages { mount: self, directory: &directory };
        let mut listing = directory.listing.lock().await;
        let mut next = offset;
        while next == offset || listing.is_ready(next) {
            let Some((item, behind)) = listing.at(next, &pages, false).await? else {
                self.listing_ended(&directory);
                break;
            };
            if add(&pages.shown(&item, behind)) {
                break;
            }
            next = behind;
        }
        Ok(())
    }

    /// As [`Mount::list`], with attributes.
    pub async fn list_with_attributes(
        &self,
        inode: InodeNumber,
        handle: u64,
        offset: u64,
        mut add: impl FnMut(&Shown<'_>) -> bool,
    ) -> Answer<'_, M, ()> {
        let telling = self.telling(&[inode]).await;
        let listed = self.list_telling(&telling, handle, offset, &mut add).await;
        Answer::new(telling, listed)
    }

    async fn list_telling(
        &self,
        telling: &Telling<'_, M>,
        handle: u64,
        offset: u64,
        add: &mut impl FnMut(&Shown<'_>) -> bool,
    ) -> Result<()> {
        let directory = self.directories.get(handle)?;
        let pages = Pages { mount: self, directory: &directory };
        let mut listing = directory.listing.lock().await;
        let mut is_told = false;
        let mut next = offset;
        while next == offset || listing.is_ready(next) {
            let Some((item, behind)) = listing.at(next, &pages, true).await? else {
                self.listing_ended(&directory);
                break;
            };
            let is_full = match &item {
                Item::Entry(entry, valid) => {
                    // The page may have come before a recall, or a change of this mount's own.
                    let (named, known) = self.client.holds_as_listed(directory.inode, entry);
                    let is_missing = !known && entry.kind == FileKind::Regular;
                    // What was told is not to wait for a message: a recall of it may come meanwhile.
                    if is_told && is_missing {
                        break;
                    }
                    let asked = if is_missing { pages.attributes(entry.inode).await } else { None };
                    let listed = entry.attributes.as_ref().filter(|_| known);
                    let attributes = listed.or(asked.as_ref().map(|asked| &asked.attributes));
                    let valid = match &asked {
                        _ if !named || attributes.is_none() => Duration::ZERO,
                        Some(asked) => asked.attributes_valid.min(*valid),
                        None => *valid,
                    };
                    let valid = telling.listed(directory.inode, &entry.name, entry.inode, valid);
                    is_told |= !valid.is_zero();
                    let is_full = add(&Shown { valid, attributes, ..pages.shown(&item, behind) });
                    if is_full {
                        telling.not_listed(entry.inode);
                    }
                    is_full
                }
                Item::Itself | Item::Parent(_) => add(&pages.shown(&item, behind)),
            };
            if is_full {
                break;
            }
            next = behind;
        }
        Ok(())
    }

    /// The end of a listing was shown.
    fn listing_ended(&self, directory: &OpenDirectory<M>) {
        self.listings.ended(directory.inode, &directory.reading, self.client.directory_hold(directory.inode));
    }
}

/// Pages of one open directory.
struct Pages<'a, M: MountShell> {
    mount: &'a Mount<M>,
    directory: &'a OpenDirectory<M>,
}

impl<M: MountShell> PageSource for Pages<'_, M> {
    async fn page(
        &self,
        cursor: &DirectoryCursor,
        entries_max: u32,
        with_attributes: bool,
    ) -> Result<DirectoryListing> {
        let (directory, client) = (self.directory, &self.mount.client);
        let page = client.read_directory(&directory.who, directory.inode, cursor, entries_max, with_attributes).await?;
        directory.reading.page(cursor.after.is_none(), client.directory_hold(directory.inode));
        Ok(page)
    }

    fn now(&self) -> Duration {
        self.mount.caches.shell.now()
    }
}

impl<M: MountShell> Pages<'_, M> {
    /// What is shown of an item without attributes.
    fn shown<'b>(&self, item: &Item<'b>, next: u64) -> Shown<'b> {
        let (name, inode, kind) = match item {
            Item::Itself => (&b"."[..], self.directory.inode, FileKind::Directory),
            Item::Parent(parent) => (&b".."[..], *parent, FileKind::Directory),
            Item::Entry(entry, _) => (entry.name.as_bytes(), entry.inode, entry.kind),
        };
        Shown { name, inode, kind, next, valid: Duration::ZERO, attributes: None }
    }

    /// Attributes of a file of which the page does not tell, or not any more: the kernel would cut its pages to the
    /// size that it is told, so that has to be the true one. A name whose server is away is listed too.
    async fn attributes(&self, inode: InodeNumber) -> Option<Entry> {
        self.mount.client.attributes(&self.directory.who, inode).await.ok()
    }
}
