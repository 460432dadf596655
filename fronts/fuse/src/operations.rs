//! What each request on names and inodes does.
//!
//! [`Front`] holds what all requests share. Its methods take Weft's types and answer Weft's results; `filesystem.rs`
//! stands between them and the kernel.
//!
//! Not here: open files (`files.rs`), the kernel's types (`convert.rs`).

use crate::credentials::{Caller, Callers};
use crate::files::OpenFile;
use crate::handles::Handles;
use crate::invalidate::KernelCaches;
use crate::kernel_listings::{KernelListings, Reading};
use crate::listing::{Listing, PageSource};
use crate::new_files::NewFiles;
use crate::open_modes::OpenModes;
use fuser::BackingId;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use weft_client::{Client, DirectoryListing, Entry, FileSystemSpace, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_protocol::{AttributeChanges, Cookie, Credentials, InodeNumber, Name, Result};

/// How this mount treats files; fixed when the kernel has agreed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// All files bypass the kernel's page cache.
    pub direct: bool,
    /// The kernel writes back on its own.
    pub writeback: bool,
    /// The kernel may read and write an object's file itself.
    pub passthrough: bool,
}

/// What all requests of a mount share.
pub struct Front {
    pub client: Client,
    pub callers: Callers,
    pub settings: OnceLock<Settings>,
    pub files: Handles<OpenFile>,
    pub directories: Handles<OpenDirectory>,
    listings: KernelListings,
    pub modes: Arc<OpenModes<BackingId>>,
    pub new_files: NewFiles,
    /// The kernel does not let this process pass files through: it is not asked again.
    pub passthrough_refused: AtomicBool,
    pub caches: Arc<KernelCaches>,
}

/// An open directory.
pub struct OpenDirectory {
    pub inode: InodeNumber,
    who: Credentials,
    /// Held while a page is fetched, against the rule: only readers of the same open directory wait for it, they need
    /// that page too, and no recall takes it.
    pub listing: Mutex<Listing>,
    reading: Reading,
}

/// The answer to a lookup.
pub enum Found {
    Entry(Entry),
    /// The name is not there, and this is known for a while.
    Absent(Duration),
}

impl Front {
    pub fn new(client: Client) -> Self {
        let modes = Arc::new(OpenModes::new());
        let caches = Arc::new(KernelCaches::new(modes.clone()));
        let callers = Callers::new(client.credentials(), client.is_for_one_user());
        let (files, directories) = (Handles::new(), Handles::new());
        let (settings, passthrough_refused) = (OnceLock::new(), AtomicBool::new(false));
        let (new_files, listings) = (NewFiles::new(), KernelListings::default());
        Self { listings, client, callers, settings, files, directories, modes, new_files, passthrough_refused, caches }
    }

    pub fn settings(&self) -> Settings {
        self.settings.get().copied().unwrap_or_default()
    }

    pub fn who(&self, caller: Caller) -> Credentials {
        self.callers.credentials(caller)
    }

    pub fn lookup(&self, caller: Caller, parent: InodeNumber, name: &Name) -> Result<Found> {
        match self.client.lookup(&self.who(caller), parent, name) {
            Ok(entry) => Ok(Found::Entry(entry)),
            Err(error @ weft_protocol::Error::NotFound) => match self.client.absent_valid(parent, name) {
                Duration::ZERO => Err(error),
                valid => Ok(Found::Absent(valid)),
            },
            Err(error) => Err(error),
        }
    }

    pub fn attributes(&self, caller: Caller, inode: InodeNumber) -> Result<Entry> {
        self.client.attributes(&self.who(caller), inode)
    }

    pub fn set_attributes(&self, caller: Caller, inode: InodeNumber, changes: &AttributeChanges) -> Result<Entry> {
        self.client.set_attributes(&self.who(caller), inode, changes)
    }

    pub fn read_link(&self, caller: Caller, inode: InodeNumber) -> Result<Vec<u8>> {
        self.client.read_link(&self.who(caller), inode)
    }

    /// `mknod` of a plain file: makes it, and leaves it closed.
    pub fn make_file(&self, caller: Caller, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        let options = OpenOptions { direct: true, ..OpenOptions::of(Access::Write) };
        let create = CreateFile { mode, exclusive: true };
        let (file, entry) = self.client.open_at(&self.who(caller), parent, name, options, Some(create))?;
        file.close()?;
        Ok(entry)
    }

    pub fn make_directory(&self, caller: Caller, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        self.client.make_directory(&self.who(caller), parent, name, mode)
    }

    pub fn make_symlink(&self, caller: Caller, parent: InodeNumber, name: &Name, target: &[u8]) -> Result<Entry> {
        self.client.make_symlink(&self.who(caller), parent, name, target)
    }

    pub fn link(&self, caller: Caller, inode: InodeNumber, parent: InodeNumber, name: &Name) -> Result<Entry> {
        self.client.link(&self.who(caller), inode, parent, name)
    }

    pub fn unlink(&self, caller: Caller, parent: InodeNumber, name: &Name) -> Result<()> {
        self.client.unlink(&self.who(caller), parent, name)
    }

    pub fn remove_directory(&self, caller: Caller, parent: InodeNumber, name: &Name) -> Result<()> {
        self.client.remove_directory(&self.who(caller), parent, name)
    }

    pub fn rename(
        &self,
        caller: Caller,
        from: &(InodeNumber, Name),
        to: &(InodeNumber, Name),
        mode: RenameMode,
    ) -> Result<Duration> {
        self.client.rename_name(&self.who(caller), (from.0, &from.1), (to.0, &to.1), mode)
    }

    pub fn space(&self) -> Result<FileSystemSpace> {
        self.client.space()
    }

    /// Permission to list was checked by the kernel, and is again by the shard with the first page.
    /// The number, and whether the listing that the kernel may have is good.
    pub fn open_directory(&self, caller: Caller, inode: InodeNumber) -> Result<(u64, bool)> {
        let who = self.who(caller);
        let keep = self.listings.may_keep(inode, self.client.directory_hold(inode));
        let (listing, reading) = (Mutex::default(), Reading::default());
        let handle = self.directories.insert(Arc::new(OpenDirectory { inode, who, listing, reading }))?;
        Ok((handle, keep))
    }

    /// The end of a listing was shown.
    pub fn listing_ended(&self, directory: &OpenDirectory) {
        self.listings.ended(directory.inode, &directory.reading, self.client.directory_hold(directory.inode));
    }
}

/// Pages of one open directory.
pub struct Pages<'a> {
    pub front: &'a Front,
    pub directory: &'a OpenDirectory,
}

impl PageSource for Pages<'_> {
    fn page(&self, after: Cookie, entries_max: u32, with_attributes: bool) -> Result<DirectoryListing> {
        let (directory, client) = (self.directory, &self.front.client);
        let page = client.read_directory(&directory.who, directory.inode, after, entries_max, with_attributes)?;
        directory.reading.page(after == Cookie::START, client.directory_hold(directory.inode));
        Ok(page)
    }
}

impl Pages<'_> {
    /// Attributes of an entry that the listing came without.
    pub fn attributes(&self, inode: InodeNumber) -> Result<Entry> {
        self.front.client.attributes(&self.directory.who, inode)
    }
}
