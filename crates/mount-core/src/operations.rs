//! What each request on names and inodes does.
//!
//! [`Mount`] holds what all requests share. A request that tells of names or attributes answers with an [`Answer`],
//! which is to be kept until the reply has been written.
//!
//! Not here: open files (`files.rs`), open directories (`directories.rs`), the kernel's types (`weft-fuse`).

use crate::directories::OpenDirectory;
use crate::files::OpenFile;
use crate::handles::Handles;
use crate::invalidate::KernelCaches;
use crate::kernel_listings::KernelListings;
use crate::new_files::NewFiles;
use crate::shell::{MountShell, OpenOptionsOf};
use crate::telling::Telling;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weft_client_core::{Entry, Files, FlushFor, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_protocol::{AttributeChanges, Credentials, Error, InodeNumber, Name, NodeIdentity, Result};

/// How this mount treats files; fixed when the kernel has agreed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// All files bypass the kernel's page cache.
    pub direct: bool,
    /// The kernel may read and write the files of objects on its own machine, which is this one, itself.
    pub passthrough: Option<NodeIdentity>,
}

/// What all requests of a mount share.
pub struct Mount<M: MountShell> {
    pub client: Arc<Files<M::Client>>,
    /// Set once: the kernel agrees once per mount.
    pub settings: OnceLock<Settings>,
    pub(crate) files: Handles<OpenFile<M>>,
    pub(crate) directories: Handles<OpenDirectory<M>>,
    pub(crate) listings: KernelListings,
    pub(crate) new_files: NewFiles,
    /// The kernel does not let this process pass files through: it is not asked again.
    pub(crate) passthrough_refused: AtomicBool,
    pub caches: Arc<KernelCaches<M>>,
}

/// What a request tells, to be dropped when the reply has been written.
#[must_use]
pub struct Answer<'a, M: MountShell, T> {
    pub result: Result<T>,
    _telling: Telling<'a, M>,
}

impl<'a, M: MountShell, T> Answer<'a, M, T> {
    pub(crate) fn new(telling: Telling<'a, M>, result: Result<T>) -> Self {
        Self { result, _telling: telling }
    }
}

/// The answer to a lookup.
pub enum Found {
    Entry(Entry),
    /// The name is not there, and this is known for a while.
    Absent(Duration),
}

/// What is to get a name.
#[derive(Clone, Debug)]
pub enum Make {
    /// `mknod` of a plain file, which is left closed. Modes have the umask applied.
    File(u16),
    Directory(u16),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// One more name for an inode.
    Link(InodeNumber),
}

impl<M: MountShell> Mount<M> {
    /// The mount of a client that has opened nothing yet.
    pub fn new(client: Arc<Files<M::Client>>, shell: M) -> Self {
        Self {
            client,
            settings: OnceLock::new(),
            files: Handles::default(),
            directories: Handles::default(),
            listings: KernelListings::default(),
            new_files: NewFiles::default(),
            passthrough_refused: AtomicBool::new(false),
            caches: Arc::new(KernelCaches::new(shell)),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.get().copied().unwrap_or_default()
    }

    /// A request begins that changes no names, and may tell of some in these directories.
    pub(crate) async fn telling(&self, directories: &[InodeNumber]) -> Telling<'_, M> {
        self.use_directories(directories).await;
        Telling::new(&self.client, &self.caches, self.caches.view().begin())
    }

    /// A request begins that changes names in these directories.
    pub(crate) async fn telling_change(&self, directories: &[InodeNumber]) -> Telling<'_, M> {
        self.use_directories(directories).await;
        Telling::new(&self.client, &self.caches, self.caches.view().begin_change(directories))
    }

    /// As [`Mount::telling_change`], of a request that may take a name from an inode that has others.
    async fn telling_removal(&self, directories: &[InodeNumber]) -> Telling<'_, M> {
        self.use_directories(directories).await;
        let ticket = self.caches.view().begin_change(directories);
        Telling::of_removal(&self.client, &self.caches, ticket)
    }

    /// A kernel without epochs keeps names of directories only that no other mount uses: each says that it does.
    async fn use_directories(&self, directories: &[InodeNumber]) {
        if !self.caches.has_epoch() {
            for directory in directories {
                self.client.use_directory(&self.client.calls().caller.credentials, *directory).await;
            }
        }
    }

    pub async fn lookup(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Answer<'_, M, Found> {
        let telling = self.telling(&[parent]).await;
        let found = match self.client.lookup(who, parent, name).await {
            Ok(entry) => Ok(Found::Entry(telling.entry(parent, name, entry))),
            Err(error @ Error::NotFound) => match self.client.absent_valid(parent, name) {
                Duration::ZERO => Err(error),
                valid => Ok(Found::Absent(telling.absent(parent, name, valid))),
            },
            Err(error) => Err(error),
        };
        Answer::new(telling, found)
    }

    /// The kernel has forgotten an inode that it was told of so many times.
    pub fn forget(&self, inode: InodeNumber, lookups: u64) {
        self.caches.modes.forgotten(inode);
        if self.caches.inodes.forgotten(inode, lookups) {
            self.caches.view().forgotten(inode);
            self.client.forgotten(inode);
        }
    }

    /// Attributes for the kernel to keep.
    pub async fn get_attributes(&self, who: &Credentials, inode: InodeNumber) -> Answer<'_, M, Entry> {
        let telling = self.telling(&[]).await;
        let known = self.client.attributes(who, inode).await;
        if let Ok(entry) = &known {
            self.tell_size(inode, entry.attributes.size).await;
        }
        let told = known.map(|entry| telling.attributes(entry));
        Answer::new(telling, told)
    }

    /// The kernel takes these attributes also when it was told to drop them while the reply was in flight: it is told
    /// of no time, and asks again, which costs no message.
    pub async fn set_attributes(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        changes: &AttributeChanges,
    ) -> Result<Entry> {
        let begun = changes.size.is_some().then(|| self.caches.truncation_begins(inode));
        let changed = self.client.set_attributes(who, inode, changes).await;
        if let Ok(entry) = &changed {
            self.caches.told_size(inode, entry.attributes.size);
        }
        if let Some(begun) = begun {
            self.caches.write_ends(begun, false);
        }
        let entry = changed?;
        self.caches.view().link_counts.told(inode, self.caches.now_ms());
        Ok(Entry { attributes_valid: Duration::ZERO, ..entry })
    }

    /// Gives something a name that was not there.
    pub async fn make(&self, who: &Credentials, parent: InodeNumber, name: &Name, what: &Make) -> Answer<'_, M, Entry> {
        let telling = self.telling_change(&[parent]).await;
        let made = match what {
            Make::File(mode) => self.make_file(who, parent, name, *mode).await,
            Make::Directory(mode) => self.client.make_directory(who, parent, name, *mode).await,
            Make::Symlink(target) => self.client.make_symlink(who, parent, name, target).await,
            // As in `set_attributes`.
            Make::Link(inode) => {
                let linked = self.client.link(who, *inode, parent, name).await;
                linked.map(|entry| Entry { attributes_valid: Duration::ZERO, ..entry })
            }
        };
        let told = made.map(|entry| telling.entry(parent, name, entry));
        Answer::new(telling, told)
    }

    /// Makes a plain file, and leaves it closed.
    async fn make_file(&self, who: &Credentials, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        let options: OpenOptionsOf<M> = OpenOptions { direct: true, ..OpenOptions::of(Access::Write) };
        let create = CreateFile { mode, exclusive: true, plan: None };
        let (handle, entry) = self.client.open_at(who, parent, name, options, Some(create)).await?;
        let flushed = self.flush_handle(&handle, FlushFor::Program).await;
        self.client.close_handle(&handle).await;
        flushed.map(|()| entry)
    }

    /// Removes a name: of a directory, or of anything else.
    pub async fn remove(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        is_directory: bool,
    ) -> Answer<'_, M, ()> {
        let telling = self.telling_removal(&[parent]).await;
        let removed = if is_directory {
            self.client.remove_directory(who, parent, name).await.map(|()| None)
        } else {
            self.client.unlink(who, parent, name).await.map(Some)
        };
        let removed = match removed {
            Ok(lost) => {
                telling.removed(parent, name);
                telling.name_lost(lost, (parent, name)).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        Answer::new(telling, removed)
    }

    pub async fn rename(
        &self,
        who: &Credentials,
        from: (InodeNumber, &Name),
        to: (InodeNumber, &Name),
        mode: RenameMode,
    ) -> Answer<'_, M, ()> {
        let telling = self.telling_removal(&[from.0, to.0]).await;
        let renamed = match self.client.rename(who, from, to, mode).await {
            Ok(renamed) => {
                telling.renamed(from, to, mode, renamed).await;
                telling.name_lost(renamed.replaced, to).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        Answer::new(telling, renamed)
    }
}
