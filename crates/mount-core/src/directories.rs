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
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Attributes, Cookie, Credentials, FileKind, InodeNumber, Result};

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
                // What was told is not to wait for a message: a recall of it may come meanwhile.
                Item::Entry(entry, _) if is_told && needs_message(entry) => true,
                Item::Entry(entry, valid) => {
                    let asked = pages.missing_attributes(entry).await;
                    let attributes = entry.attributes.as_ref().or(asked.as_ref().map(|asked| &asked.attributes));
                    let valid = match &asked {
                        Some(asked) => asked.attributes_valid.min(*valid),
                        None if attributes.is_none() => Duration::ZERO,
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

/// Whether a message may be needed to tell of the entry.
fn needs_message(entry: &DirectoryEntry) -> bool {
    entry.attributes.is_none() && entry.kind == FileKind::Regular
}

/// Pages of one open directory.
struct Pages<'a, M: MountShell> {
    mount: &'a Mount<M>,
    directory: &'a OpenDirectory<M>,
}

impl<M: MountShell> PageSource for Pages<'_, M> {
    async fn page(&self, after: Cookie, entries_max: u32, with_attributes: bool) -> Result<DirectoryListing> {
        let (directory, client) = (self.directory, &self.mount.client);
        let page = client.read_directory(&directory.who, directory.inode, after, entries_max, with_attributes).await?;
        directory.reading.page(after == Cookie::START, client.directory_hold(directory.inode));
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

    /// Attributes of an entry that the listing came without, where they have to be known: the kernel would cut a file's
    /// pages to the size it is told, so that has to be the true one. A name whose server is away is listed too.
    async fn missing_attributes(&self, entry: &DirectoryEntry) -> Option<Entry> {
        if !needs_message(entry) {
            return None;
        }
        self.mount.client.attributes(&self.directory.who, entry.inode).await.ok()
    }
}
