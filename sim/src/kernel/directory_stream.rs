//! Listings: streams with cookies, READDIRPLUS that makes dentries, and the listing cache.
//!
//! - One getdents is at most one READDIR from the stream's position; what does not fit is dropped and asked for again
//!   by its cookie (`fuse_readdir_uncached`, `parse_dirfile`).
//! - READDIRPLUS makes a dentry of each entry of a reply, also of those that did not fit, and counts a lookup each
//!   (`parse_dirplusfile`, `fuse_direntplus_link`).
//! - With `readdirplus_auto` it is used at the beginning and after a lookup in the directory
//!   (`fuse_use_readdirplus`).
//! - An entry of READDIRPLUS gets the epoch of its reply, not of its request (`fuse_direntplus_link`).
//! - A cached listing is in pages: dropping them, another mtime, or a change of names here makes it void at the next
//!   beginning (`fuse_readdir_cached`).
//!
//! Not here: OPENDIR (`calls/open.rs`).

use super::attributes::{Asked, Stale};
use super::executor::Context;
use super::open_file::FileKey;
use super::requests::{Errno, Kind, Listed, NodeId, Operation, Reply, entry_bytes};
use super::state::{InodeKey, LockKind, Mount};

/// The listing that a directory inode keeps (`fuse_inode.rdc`).
#[derive(Debug, Default)]
pub struct ListingCache {
    complete: bool,
    /// Bytes in pages, and the cookie where they end.
    size: u64,
    position: u64,
    version: u64,
    mtime: u64,
    directory_version: u64,
    /// Entries with the offset where each begins.
    entries: Vec<(u64, Listed)>,
}

/// Where an open directory stands in the cached listing (`fuse_file.readdir`).
#[derive(Debug, Default, Clone, Copy)]
pub struct Stream {
    position: u64,
    offset: u64,
    version: u64,
}

/// One entry as getdents returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    pub ino: NodeId,
    pub kind: Kind,
    pub name: String,
    /// Position after it, for seekdir.
    pub next: u64,
}

/// The buffer of a getdents call.
struct Buffer {
    left: usize,
    position: u64,
    entries: Vec<DirectoryEntry>,
    too_small: bool,
}

impl Buffer {
    /// False: it does not fit (`dir_emit`, `filldir64`).
    fn emit(&mut self, entry: &Listed) -> bool {
        let bytes = (20 + entry.name.len()).next_multiple_of(8);
        if bytes > self.left {
            self.too_small = self.entries.is_empty();
            return false;
        }
        self.left -= bytes;
        let (ino, kind, name, next) = (entry.ino, entry.kind, entry.name.clone(), entry.next);
        self.entries.push(DirectoryEntry { ino, kind, name, next });
        true
    }
}

/// What the cached listing can do for a call.
enum Cached {
    Done,
    Uncached,
    Again,
}

impl Mount {
    fn reset_listing(&mut self, key: InodeKey) {
        let listing = &mut self.inode_mut(key).listing;
        *listing = ListingCache { version: listing.version + 1, ..ListingCache::default() };
    }

    /// Appends an entry that was read at `position` (`fuse_add_dirent_to_cache`).
    fn cache_entry(&mut self, key: InodeKey, entry: &Listed, position: u64) {
        let page_bytes = self.page_bytes();
        let bytes = entry_bytes(entry.name.len()) as u64;
        let listing = &self.inode(key).listing;
        if bytes > page_bytes || listing.complete || listing.position != position {
            return;
        }
        let mut at = listing.size;
        if at % page_bytes + bytes > page_bytes {
            at = at.next_multiple_of(page_bytes);
        }
        let index = at / page_bytes;
        let present = self.inode(key).pages.get(index).is_some();
        if at.is_multiple_of(page_bytes) {
            if !present {
                let id = self.add_locked_page(key, index);
                self.unlock_page(key, index, id);
            }
            if let Some(page) = self.inode_mut(key).pages.get_mut(index) {
                page.uptodate = true;
            }
        } else if !present {
            return;
        }
        let listing = &mut self.inode_mut(key).listing;
        listing.entries.push((at, entry.clone()));
        listing.size = at + bytes;
        listing.position = entry.next;
    }

    /// One look at the cached listing (`fuse_readdir_cached`).
    fn list_cached(&mut self, file: FileKey, buffer: &mut Buffer) -> Cached {
        let key = self.file(file).inode;
        let page_bytes = self.page_bytes();
        if !self.inode(key).listing.complete {
            let inode = self.inode_mut(key);
            if buffer.position == 0 && inode.listing.size == 0 {
                inode.listing.mtime = inode.attributes.mtime;
                inode.listing.directory_version = inode.version;
                inode.version_queried = true;
            }
            return Cached::Uncached;
        }
        let inode = self.inode(key);
        let changed = inode.version != inode.listing.directory_version || inode.attributes.mtime != inode.listing.mtime;
        if buffer.position == 0 && changed {
            self.reset_listing(key);
            return Cached::Again;
        }
        let (version, size) = (self.inode(key).listing.version, self.inode(key).listing.size);
        let mut stream = self.file(file).stream;
        if stream.version != version {
            stream = Stream { version: stream.version, ..Stream::default() };
        }
        if stream.position == 0 {
            stream.version = version;
        }
        let index = stream.offset / page_bytes;
        let in_page = if index == size / page_bytes { size % page_bytes } else { page_bytes };
        if stream.offset % page_bytes == in_page {
            self.file_mut(file).stream = stream;
            return Cached::Done;
        }
        if self.inode(key).pages.get(index).is_none() {
            self.file_mut(file).stream = stream;
            self.reset_listing(key);
            return Cached::Again;
        }
        let (found, full) = self.parse_page(key, &mut stream, buffer, index);
        if !full && in_page == page_bytes {
            stream.offset = (index + 1) * page_bytes;
            self.file_mut(file).stream = stream;
            return Cached::Again;
        }
        self.file_mut(file).stream = stream;
        if full || found { Cached::Done } else { Cached::Uncached }
    }

    /// Emits from one page of the cached listing (`fuse_parse_cache`). Returns whether something was found, and whether
    /// the buffer is full.
    fn parse_page(&self, key: InodeKey, stream: &mut Stream, buffer: &mut Buffer, index: u64) -> (bool, bool) {
        let page_bytes = self.page_bytes();
        let mut found = false;
        for (at, entry) in &self.inode(key).listing.entries {
            if at / page_bytes != index || *at < stream.offset {
                continue;
            }
            if stream.position == buffer.position {
                found = true;
                if !buffer.emit(entry) {
                    return (true, true);
                }
                buffer.position = entry.next;
            }
            stream.position = entry.next;
            stream.offset = at + entry_bytes(entry.name.len()) as u64;
        }
        (found, false)
    }

    /// `fuse_use_readdirplus`.
    fn use_plus(&mut self, key: InodeKey, position: u64) -> bool {
        if !self.config.readdirplus || !self.config.readdirplus_auto {
            return self.config.readdirplus;
        }
        std::mem::take(&mut self.inode_mut(key).advise_plus) || position == 0
    }
}

impl Context {
    /// getdents64 with a buffer of this many bytes.
    pub async fn getdents(&self, file: FileKey, bytes: usize) -> Result<Vec<DirectoryEntry>, Errno> {
        let (key, position) = {
            let mount = self.mount();
            (mount.file(file).inode, mount.file(file).position)
        };
        let _lock = self.lock_shared(key).await;
        if self.mount().inode(key).dead {
            return Err(Errno::ENOENT);
        }
        if self.mount().inode(key).bad {
            return Err(Errno::EIO);
        }
        let mut buffer = Buffer { left: bytes, position, entries: Vec::new(), too_small: false };
        let result = self.list(file, key, &mut buffer, bytes).await;
        self.mount().file_mut(file).position = buffer.position;
        if !buffer.entries.is_empty() {
            return Ok(buffer.entries);
        }
        result?;
        if buffer.too_small { Err(Errno::EINVAL) } else { Ok(Vec::new()) }
    }

    /// `fuse_readdir`.
    async fn list(&self, file: FileKey, key: InodeKey, buffer: &mut Buffer, bytes: usize) -> Result<(), Errno> {
        if self.mount().file(file).opened.cache_dir {
            {
                let mut mount = self.mount();
                if mount.file(file).stream.position != buffer.position {
                    let stream = &mut mount.file_mut(file).stream;
                    *stream = Stream { version: stream.version, ..Stream::default() };
                }
            }
            if buffer.position == 0 && self.mount().config.auto_inval_data {
                self.attributes(key, Stale::MTIME, None).await?;
            }
            loop {
                let step = self.mount().list_cached(file, buffer);
                match step {
                    Cached::Done => return Ok(()),
                    Cached::Uncached => break,
                    Cached::Again => {}
                }
            }
        }
        self.list_uncached(file, key, buffer, bytes).await
    }

    /// `fuse_readdir_uncached`.
    async fn list_uncached(
        &self,
        file: FileKey,
        key: InodeKey,
        buffer: &mut Buffer,
        bytes: usize,
    ) -> Result<(), Errno> {
        let (plus, node, fh, cache, size, parallel) = {
            let mut mount = self.mount();
            let plus = mount.use_plus(key, buffer.position);
            let opened = mount.file(file).opened;
            let limits = mount.config;
            let size = (bytes as u32).clamp(limits.page_bytes, limits.max_read_bytes.max(limits.page_bytes));
            (plus, mount.inode(key).node, opened.fh, opened.cache_dir, size, limits.parallel_dirops)
        };
        let asked = self.asked();
        let serial = if parallel { None } else { Some(self.lock(key, LockKind::Serial, true).await) };
        let offset = buffer.position;
        let answer = self.ask(node, Operation::Readdir { fh, offset, size, plus }).await;
        drop(serial);
        let result = match answer {
            Ok(Reply::Listing(entries)) if entries.is_empty() => {
                if cache {
                    self.end_listing(key, buffer.position).await;
                }
                Ok(())
            }
            Ok(Reply::Listing(entries)) => {
                self.take_entries(file, &entries, buffer, plus.then_some(asked)).await;
                Ok(())
            }
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(error),
        };
        self.mount().make_stale(key, Stale::ATIME);
        result
    }

    /// The listing is complete if it was read up to here (`fuse_readdir_cache_end`).
    async fn end_listing(&self, key: InodeKey, position: u64) {
        let end = {
            let mut mount = self.mount();
            let page_bytes = mount.page_bytes();
            let listing = &mut mount.inode_mut(key).listing;
            if listing.position != position {
                return;
            }
            listing.complete = true;
            listing.size.next_multiple_of(page_bytes)
        };
        self.truncate_pages(key, end).await;
    }

    /// Emits a reply's entries, and links those of READDIRPLUS.
    async fn take_entries(&self, file: FileKey, entries: &[Listed], buffer: &mut Buffer, plus: Option<Asked>) {
        let mut over = false;
        for entry in entries {
            if !over {
                let mut mount = self.mount();
                let open = mount.file(file);
                if open.opened.cache_dir {
                    let key = open.inode;
                    mount.cache_entry(key, entry, buffer.position);
                }
                over = !buffer.emit(entry);
                if !over {
                    buffer.position = entry.next;
                }
            }
            match plus {
                Some(asked) => self.link_entry(file, entry, asked).await,
                None if over => return,
                None => {}
            }
        }
    }

    /// Makes a dentry of an entry (`fuse_direntplus_link`); what fails is forgotten.
    async fn link_entry(&self, file: FileKey, listed: &Listed, asked: Asked) {
        let Some(entry) = &listed.entry else { return };
        if entry.node == 0 || listed.name == "." || listed.name == ".." {
            return;
        }
        let (parent, epoch, auto) = {
            let mount = self.mount();
            (mount.file(file).dentry, mount.epoch, mount.config.readdirplus_auto)
        };
        let dentry = loop {
            let (dentry, is_new) = self.allocate_parallel(parent, &listed.name).await;
            if is_new {
                let kept = self.clone_ref(&dentry);
                let inode = self.inode_of_entry(entry, asked).await;
                let key = inode.key;
                let spliced = self.splice(Some(inode), dentry);
                let mut mount = self.mount();
                if mount.dentries.get(kept.id).in_lookup {
                    mount.end_lookup(kept.id);
                }
                match spliced {
                    Ok(dentry) => break dentry,
                    Err(_) => {
                        if let Some(inode) = mount.find_node(entry.node).filter(|inode| inode.key == key) {
                            mount.inode_mut(inode.key).lookups -= 1;
                        }
                        mount.send(entry.node, Operation::Forget { lookups: 1 });
                        return;
                    }
                }
            }
            let same = {
                let mount = self.mount();
                let inode = mount.dentries.get(dentry.id).inode;
                inode.filter(|inode| mount.inode(*inode).node == entry.node)
            };
            let Some(key) = same else {
                self.mount().invalidate_dentry(dentry.id);
                continue;
            };
            if self.mount().inode(key).bad {
                self.mount().send(entry.node, Operation::Forget { lookups: 1 });
                return;
            }
            self.mount().inode_mut(key).lookups += 1;
            let asked = Asked { evictions: 0, ..asked };
            self.change_attributes(key, &entry.attributes, entry.attributes_ms, asked).await;
            break dentry;
        };
        let mut mount = self.mount();
        let inode = mount.dentries.get(dentry.id).inode;
        if let Some(inode) = inode.filter(|_| auto) {
            mount.inode_mut(inode).init_plus = true;
        }
        mount.dentries.get_mut(dentry.id).epoch = epoch;
        mount.set_entry_timeout(dentry.id, entry.entry_ms);
    }
}
