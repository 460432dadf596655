//! Open directories: opening, listing.
//!
//! Not here: offsets (`listing.rs`), which listings the kernel keeps (`kernel_listings.rs`).

use crate::kernel_listings::{KeptListing, Reading};
use crate::listing::{Item, Listing, Origin, PageSource};
use crate::operations::{Answer, Mount};
use crate::shell::{MonitorOf, MountShell};
use crate::telling::Telling;
use std::borrow::Cow;
use std::collections::BTreeMap;
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
    /// It uses the listing that the kernel keeps.
    uses_kept: bool,
}

/// Entries whose attributes are asked for at once: as many as the smallest reply has room for.
const ASKED_AT_ONCE: usize = 24;

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
    /// Permission to list was checked by the kernel, and is again by the shard with the first page. Returns the number,
    /// and what it may do with the listing that the kernel keeps.
    pub fn open_directory(&self, who: Credentials, inode: InodeNumber) -> Result<(u64, KeptListing)> {
        let kept = self.listings.open(inode, self.client.directory_hold(inode));
        let (listing, reading) = (Monitor::new(Listing::default()), Reading::default());
        let directory = OpenDirectory { inode, who, listing, reading, uses_kept: kept.is_used };
        let handle = self.directories.insert(Arc::new(directory)).inspect_err(|_| {
            if kept.is_used {
                self.listings.close(inode);
            }
        })?;
        Ok((handle, kept))
    }

    pub fn close_directory(&self, handle: u64) -> Result<()> {
        let directory = self.directories.remove(handle)?;
        if directory.uses_kept {
            self.listings.close(directory.inode);
        }
        Ok(())
    }

    /// Goes through an open directory from an offset, until `add` says that the reply is full, or what comes next
    /// would take another message while there is something to answer already.
    pub async fn list(&self, handle: u64, offset: u64, mut add: impl FnMut(&Shown<'_>) -> bool) -> Result<()> {
        let directory = self.directories.get(handle)?;
        let pages = Pages { mount: self, directory: &directory, changes: self.client.changes() };
        let mut listing = directory.listing.lock().await;
        self.begin_request(&directory, &mut listing, offset).await;
        let mut next = offset;
        while next == offset || listing.is_ready(next) {
            let Some((item, behind)) = listing.at(next, &pages, false).await? else {
                self.at_end(&directory, next == offset).await;
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
        let pages = Pages { mount: self, directory: &directory, changes: self.client.changes() };
        let mut listing = directory.listing.lock().await;
        self.begin_request(&directory, &mut listing, offset).await;
        let (mut asked, mut asked_at) = (Asked::new(), None);
        let mut is_told = false;
        let mut next = offset;
        while next == offset || listing.is_ready(next) {
            let Some((item, behind)) = listing.at(next, &pages, true).await? else {
                self.at_end(&directory, next == offset).await;
                break;
            };
            let known = match &item {
                Item::Entry(entry, origin) => pages.known(entry, *origin, &asked),
                Item::Itself | Item::Parent(_) => Some((None, Duration::ZERO)),
            };
            if known.is_none() && asked_at != Some(next) {
                // What was told is not to wait for a message: a recall of it may come meanwhile.
                if is_told {
                    break;
                }
                if !matches!(item, Item::Entry(_, Origin { is_new: true, .. })) {
                    listing.refresh(next, &pages).await?;
                }
                asked = pages.ask(listing.at_hand(next)).await;
                asked_at = Some(next);
                continue;
            }
            let (attributes, valid) = known.unwrap_or((None, Duration::ZERO));
            let is_full = match &item {
                Item::Entry(entry, _) => {
                    let valid = telling.listed(directory.inode, &entry.name, entry.inode, valid);
                    if let Some(attributes) = attributes.as_deref() {
                        telling.listed_attributes(attributes);
                    }
                    is_told |= !valid.is_zero();
                    let is_full =
                        add(&Shown { valid, attributes: attributes.as_deref(), ..pages.shown(&item, behind) });
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

    /// A reader that begins anew must not go on with what the kernel keeps of its first pass without the lease.
    async fn begin_request(&self, directory: &OpenDirectory<M>, listing: &mut Listing, offset: u64) {
        let is_rewound = offset == 0 && listing.is_begun();
        if is_rewound && directory.uses_kept && !directory.reading.is_under(self.client.directory_hold(directory.inode))
        {
            self.caches.drop_listing(directory.inode).await;
        }
        listing.begin_request();
    }

    /// The end of a listing was reached; `is_told`: the reply says so, and the kernel uses what it keeps from now on.
    async fn at_end(&self, directory: &OpenDirectory<M>, is_told: bool) {
        if !is_told || !directory.uses_kept {
            return;
        }
        let hold = self.client.directory_hold(directory.inode);
        if !self.listings.ended(directory.inode, &directory.reading, hold) {
            self.caches.drop_listing(directory.inode).await;
        }
    }
}

/// Whether a message may be needed to tell of the entry.
fn needs_message(entry: &DirectoryEntry) -> bool {
    entry.attributes.is_none() && entry.kind == FileKind::Regular
}

/// Attributes and how long they may be kept.
type Known<'a> = (Option<Cow<'a, Attributes>>, Duration);
/// What was asked for, of each entry. `None`: it could not be told.
type Asked = BTreeMap<Cookie, Option<Entry>>;

/// Pages of one open directory.
struct Pages<'a, M: MountShell> {
    mount: &'a Mount<M>,
    directory: &'a OpenDirectory<M>,
    /// [`weft_client_core::Files::changes`] at the request's beginning: what is recalled from then on is not told.
    changes: u64,
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

    /// What is known of an entry without a message, and how long it may be kept. A page that is not new tells what was
    /// true when it came: it counts while nothing has changed since. `None`: a message may be needed.
    fn known<'b>(&self, entry: &'b DirectoryEntry, origin: Origin, asked: &Asked) -> Option<Known<'b>> {
        let client = &self.mount.client;
        if let Some(answer) = asked.get(&entry.cookie) {
            let valid = answer.as_ref().map_or(Duration::ZERO, |asked| asked.attributes_valid.min(origin.valid));
            return Some((answer.as_ref().map(|asked| Cow::Owned(asked.attributes.clone())), valid));
        }
        let is_current = !origin.valid.is_zero() && origin.seen == self.changes && !client.is_open(entry.inode);
        if origin.is_new || is_current {
            let attributes = entry.attributes.as_ref().map(Cow::Borrowed);
            let valid = if attributes.is_some() { origin.valid } else { Duration::ZERO };
            return (!needs_message(entry)).then_some((attributes, valid));
        }
        if entry.kind == FileKind::Directory && entry.attributes.is_none() {
            // Its inode is at another shard.
            return Some((None, Duration::ZERO));
        }
        let known = client.known_entry(self.directory.inode, &entry.name, entry.inode)?;
        Some((Some(Cow::Owned(known.attributes)), known.name_valid.min(known.attributes_valid)))
    }

    /// Asks for the attributes of entries that the listing came without, where they have to be known: the kernel would
    /// cut a file's pages to the size it is told, so that has to be the true one. A name whose server is away is listed
    /// too.
    async fn ask(&self, entries: &[DirectoryEntry]) -> Asked {
        let mut asked = Asked::new();
        for entry in entries.iter().take(ASKED_AT_ONCE).filter(|entry| needs_message(entry)) {
            let answer = self.mount.client.attributes(&self.directory.who, entry.inode).await.ok();
            asked.insert(entry.cookie, answer);
        }
        asked
    }
}
