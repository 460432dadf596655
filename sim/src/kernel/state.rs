//! The state of one mount: its inodes, dentries and open files, who refers to them, and what goes to the server.
//!
//! References are counted as in the kernel, since counts decide: a dentry without users becomes negative when it is
//! unlinked and vanishes when it is invalidated; an inode without users is evicted, which sends FORGET
//! (`fuse_evict_inode`; `drop_inode` of FUSE keeps none that is unused).
//!
//! Invariant: an inode's count is that of its dentries, its open files and the guards that are alive.
//! Not here: what any of it means (`dentries.rs`, `attributes.rs`, `pages.rs`, `open_file.rs`).

use super::Config;
use super::attributes::Stale;
use super::dentries::{Dentries, DentryId};
use super::directory_stream::ListingCache;
use super::executor::{Context, Puts};
use super::locks::{InodeLock, Ticket};
use super::open_file::{FileKey, OpenFile};
use super::pages::Pages;
use super::readahead::LATE;
use super::requests::{Answer, Attributes, Errno, Kind, NodeId, Operation, ROOT, Request};
use super::{CallResult, Output};
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Names an inode in memory. Never used again, unlike a node identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InodeKey(pub u64);

/// Which lock of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// `i_rwsem`.
    Main,
    /// `fuse_inode.mutex`: lookups and listings of servers without `FUSE_PARALLEL_DIROPS`.
    Serial,
}

/// A guard that was dropped.
#[derive(Clone, Copy, Debug)]
pub enum Put {
    Inode(InodeKey),
    Dentry(DentryId),
    /// A descriptor or a mapping of an open file.
    File(FileKey),
    /// Another user of its FUSE handle: a request in flight.
    Handle(FileKey),
    Lock(InodeKey, LockKind, Ticket),
    RenameMutex(Ticket),
    Position(FileKey, Ticket),
}

/// Keeps an inode in memory.
#[derive(Debug)]
pub struct InodeRef {
    pub key: InodeKey,
    puts: Puts,
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.puts.borrow_mut().push(Put::Inode(self.key));
    }
}

/// Keeps a dentry in memory, and with it its inode and its parents.
#[derive(Debug)]
pub struct DentryRef {
    pub id: DentryId,
    puts: Puts,
}

impl Drop for DentryRef {
    fn drop(&mut self) {
        self.puts.borrow_mut().push(Put::Dentry(self.id));
    }
}

/// Keeps a file open.
#[derive(Debug)]
pub struct FileRef {
    pub key: FileKey,
    /// Only its handle, for a request in flight (`fuse_file_get`).
    handle_only: bool,
    puts: Puts,
}

impl Drop for FileRef {
    fn drop(&mut self) {
        let put = if self.handle_only { Put::Handle(self.key) } else { Put::File(self.key) };
        self.puts.borrow_mut().push(put);
    }
}

/// A lock that is held, with what keeps its inode.
#[derive(Debug)]
pub struct LockGuard {
    put: Option<Put>,
    puts: Puts,
    _inode: Option<InodeRef>,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(put) = self.put.take() {
            self.puts.borrow_mut().push(put);
        }
    }
}

/// An inode in memory (`struct inode`, `struct fuse_inode`).
pub struct Inode {
    pub node: NodeId,
    pub generation: u64,
    pub kind: Kind,
    refs: u32,
    /// Lookups that the server counts.
    pub lookups: u64,
    /// What stat answers while it is valid; its size is `i_size`.
    pub attributes: Attributes,
    pub attr_version: u64,
    /// When the attributes end; which of them are stale before.
    pub valid_until: u64,
    pub stale: Stale,
    pub size_unstable: bool,
    pub bad: bool,
    /// A removed directory.
    pub dead: bool,
    pub lock: InodeLock,
    pub serial: InodeLock,
    pub pages: Pages,
    /// `fuse_inode.iocachectr`: cached opens above zero, uncached ones below.
    pub io_mode: i64,
    pub cache_io_mode: bool,
    pub backing: Option<u32>,
    pub advise_plus: bool,
    pub init_plus: bool,
    pub listing: ListingCache,
    /// `i_version` of a directory, and whether somebody looked at it since it grew.
    pub version: u64,
    pub version_queried: bool,
    pub write_files: Vec<FileKey>,
    pub writeback_error: Option<Errno>,
    /// Write-back requests in flight, and whether new ones wait (`FUSE_NOWRITE`).
    pub writing: u32,
    pub no_write: u32,
    /// Times were changed here and are not told to the server (write-back mode).
    pub times_dirty: bool,
}

/// See the module.
pub struct Mount {
    pub config: Config,
    pub now_ms: u64,
    pub puts: Puts,
    inodes: BTreeMap<InodeKey, Inode>,
    by_node: BTreeMap<NodeId, InodeKey>,
    pub dentries: Dentries,
    pub files: BTreeMap<FileKey, OpenFile>,
    pub handles: BTreeMap<super::Handle, FileRef>,
    pub mappings: BTreeMap<super::Handle, super::calls::mapping::Mapping>,
    pub attr_version: u64,
    pub evictions: u64,
    pub epoch: u64,
    next: u64,
    uniques: u64,
    rename_mutex: InodeLock,
    pub outgoing: Vec<Request>,
    pub outputs: Vec<Output>,
    pub answers: BTreeMap<u64, Answer>,
    /// Requests in flight whose answer is processed while the server writes it (`FR_ASYNC`).
    background: BTreeSet<u64>,
    /// Writes in progress: where the parts end that were sent so far, from the beginning of each.
    pub pieces: BTreeMap<FileKey, Vec<u64>>,
    /// The same of calls that have returned.
    pub call_pieces: BTreeMap<super::CallId, Vec<u64>>,
    /// Inodes that a RELEASE keeps until it is answered.
    releasing: BTreeMap<u64, InodeKey>,
    pub progress: bool,
    /// Says who is held up; `None`: nobody.
    pub late: Option<Random>,
}

impl Mount {
    /// A mount whose root directory has these attributes, which are not yet valid (`fuse_get_root_inode`).
    pub fn new(config: Config) -> Self {
        let attributes = Attributes {
            ino: ROOT,
            kind: Kind::Directory,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
        };
        // `process_init_reply` takes the second only without the first.
        let explicit_inval_data = config.explicit_inval_data && !config.auto_inval_data;
        let mut mount = Self {
            config: Config { explicit_inval_data, ..config },
            now_ms: 1,
            puts: Puts::default(),
            inodes: BTreeMap::new(),
            by_node: BTreeMap::new(),
            dentries: Dentries::default(),
            files: BTreeMap::new(),
            handles: BTreeMap::new(),
            mappings: BTreeMap::new(),
            attr_version: 1,
            evictions: 1,
            epoch: 1,
            next: 1,
            uniques: 0,
            rename_mutex: InodeLock::default(),
            outgoing: Vec::new(),
            outputs: Vec::new(),
            answers: BTreeMap::new(),
            background: BTreeSet::new(),
            pieces: BTreeMap::new(),
            call_pieces: BTreeMap::new(),
            releasing: BTreeMap::new(),
            progress: false,
            late: config.seed.map(|seed| Random::new(seed ^ LATE)),
        };
        let (root, _) = mount.inode_of(ROOT, 0, &attributes);
        mount.inode_mut(root).lookups = 1;
        mount.dentries.set_root(root);
        mount
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn new_file_key(&mut self) -> FileKey {
        FileKey(self.fresh())
    }

    /// A number for a page or a lock's holder.
    pub fn new_ticket(&mut self) -> Ticket {
        self.fresh()
    }

    /// An inode that somebody holds a reference to.
    pub fn inode(&self, key: InodeKey) -> &Inode {
        self.inodes.get(&key).expect("a referenced inode is in memory")
    }

    pub fn inode_mut(&mut self, key: InodeKey) -> &mut Inode {
        self.inodes.get_mut(&key).expect("a referenced inode is in memory")
    }

    /// An inode by its node identifier (`fuse_ilookup`).
    pub fn find_node(&mut self, node: NodeId) -> Option<InodeRef> {
        let key = *self.by_node.get(&node)?;
        Some(self.hold(key))
    }

    /// All inodes, for memory pressure and checks.
    pub fn inode_keys(&self) -> Vec<InodeKey> {
        self.inodes.keys().copied().collect()
    }

    /// The inode of this identifier, made if it is not in memory, and whether it was made (`iget5_locked`). It counts
    /// one reference for the caller.
    pub fn inode_of(&mut self, node: NodeId, generation: u64, attributes: &Attributes) -> (InodeKey, bool) {
        if let Some(key) = self.by_node.get(&node).copied() {
            let inode = self.inode_mut(key);
            if inode.generation == generation && inode.kind == attributes.kind || node == ROOT {
                inode.refs += 1;
                return (key, false);
            }
            // The server uses the number for something else: the old inode fails from now on (`fuse_make_bad`).
            inode.bad = true;
            self.by_node.remove(&node);
        }
        let key = InodeKey(self.fresh());
        self.inodes.insert(key, Inode::new(node, generation, attributes));
        self.by_node.insert(node, key);
        (key, true)
    }

    /// A guard for an inode that is in memory.
    pub fn hold(&mut self, key: InodeKey) -> InodeRef {
        self.inode_mut(key).refs += 1;
        self.adopt(key)
    }

    /// Counts one more reference, which the caller gives to a dentry.
    pub fn count_inode(&mut self, key: InodeKey) {
        self.inode_mut(key).refs += 1;
    }

    /// A guard for a reference that was counted already.
    pub fn adopt(&self, key: InodeKey) -> InodeRef {
        InodeRef { key, puts: self.puts.clone() }
    }

    /// A guard for a dentry.
    pub fn pin(&mut self, id: DentryId) -> DentryRef {
        self.dentries.get_mut(id).refs += 1;
        DentryRef { id, puts: self.puts.clone() }
    }

    /// A guard for a file that was made or found.
    pub fn hold_file(&mut self, key: FileKey) -> FileRef {
        let file = self.files.get_mut(&key).expect("a referenced file is open");
        file.users += 1;
        FileRef { key, handle_only: false, puts: self.puts.clone() }
    }

    /// A guard for the handle of a file.
    pub fn hold_handle(&mut self, key: FileKey) -> FileRef {
        let file = self.files.get_mut(&key).expect("a referenced file is open");
        file.handle_users += 1;
        FileRef { key, handle_only: true, puts: self.puts.clone() }
    }

    /// Undoes a guard.
    pub fn put(&mut self, put: Put) {
        match put {
            Put::Inode(key) => self.put_inode(key),
            Put::Dentry(id) => self.put_dentry(id),
            Put::File(key) => self.put_file(key),
            Put::Handle(key) => self.put_handle(key),
            Put::Lock(key, kind, ticket) => {
                if let Some(inode) = self.inodes.get_mut(&key) {
                    inode.lock_of(kind).release(ticket);
                    self.progress = true;
                }
            }
            Put::Position(key, ticket) => {
                if let Some(file) = self.files.get_mut(&key) {
                    file.position_lock.release(ticket);
                    self.progress = true;
                }
            }
            Put::RenameMutex(ticket) => {
                self.rename_mutex.release(ticket);
                self.progress = true;
            }
        }
    }

    /// Gives up a reference; the last one evicts.
    pub fn put_inode(&mut self, key: InodeKey) {
        let inode = self.inode_mut(key);
        inode.refs -= 1;
        if inode.refs > 0 {
            return;
        }
        let Some(inode) = self.inodes.remove(&key) else { return };
        if self.by_node.get(&inode.node) == Some(&key) {
            self.by_node.remove(&inode.node);
        }
        if inode.lookups > 0 {
            self.send(inode.node, Operation::Forget { lookups: inode.lookups });
        }
        if inode.attributes.nlink > 0 {
            self.evictions += 1;
        }
    }

    /// Gives up a reference to a dentry; an unhashed one without users is freed.
    pub fn put_dentry(&mut self, id: DentryId) {
        let dentry = self.dentries.get_mut(id);
        dentry.refs -= 1;
        if dentry.refs == 0 && !dentry.hashed && !dentry.in_lookup {
            self.kill_dentry(id);
        }
    }

    /// Frees an unused dentry, and then its parent if that was only kept by it.
    pub fn kill_dentry(&mut self, id: DentryId) {
        let dentry = self.dentries.remove(id);
        if let Some(inode) = dentry.inode {
            self.put_inode(inode);
        }
        if let Some(parent) = dentry.parent {
            self.put_dentry(parent);
        }
    }

    /// Queues a request and returns its number.
    pub fn send(&mut self, node: NodeId, operation: Operation) -> u64 {
        self.uniques += 1;
        let unique = self.uniques;
        self.outgoing.push(Request { unique, node, operation });
        self.progress = true;
        unique
    }

    /// Queues a request whose sender does not sleep: its answer is processed while it is written
    /// (`fuse_simple_background`, `fuse_request_end`).
    pub fn send_background(&mut self, node: NodeId, operation: Operation) -> u64 {
        let unique = self.send(node, operation);
        self.background.insert(unique);
        unique
    }

    /// See [`Mount::send_background`].
    pub fn is_background(&self, unique: u64) -> bool {
        self.background.contains(&unique)
    }

    /// Bytes up to here were sent by a write in progress.
    pub fn note_piece(&mut self, file: FileKey, end: u64) {
        self.pieces.entry(file).or_default().push(end);
    }

    /// Sends a RELEASE, which keeps the inode until it is answered.
    pub fn send_release(&mut self, inode: InodeKey, operation: Operation) {
        let node = self.inode(inode).node;
        let unique = self.send_background(node, operation);
        self.inode_mut(inode).refs += 1;
        self.releasing.insert(unique, inode);
    }

    /// Takes in the answer to a request.
    pub fn take_answer(&mut self, unique: u64, answer: Answer) {
        self.background.remove(&unique);
        match self.releasing.remove(&unique) {
            Some(inode) => self.put_inode(inode),
            None => {
                self.answers.insert(unique, answer);
            }
        }
    }

    pub fn finish_call(&mut self, call: super::CallId, result: CallResult) {
        self.outputs.push(Output::Returned { call, result });
    }
}

impl Inode {
    fn new(node: NodeId, generation: u64, attributes: &Attributes) -> Self {
        Self {
            node,
            generation,
            kind: attributes.kind,
            refs: 1,
            lookups: 0,
            attributes: attributes.clone(),
            attr_version: 0,
            valid_until: 0,
            stale: Stale::ALL,
            size_unstable: false,
            bad: false,
            dead: false,
            lock: InodeLock::default(),
            serial: InodeLock::default(),
            pages: Pages::default(),
            io_mode: 0,
            cache_io_mode: false,
            backing: None,
            advise_plus: false,
            init_plus: false,
            listing: ListingCache::default(),
            version: 1,
            version_queried: false,
            write_files: Vec::new(),
            writeback_error: None,
            writing: 0,
            no_write: 0,
            times_dirty: false,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// `i_size`.
    pub fn size(&self) -> u64 {
        self.attributes.size
    }

    fn lock_of(&mut self, kind: LockKind) -> &mut InodeLock {
        match kind {
            LockKind::Main => &mut self.lock,
            LockKind::Serial => &mut self.serial,
        }
    }
}

impl Context {
    /// A guard for an inode that is in memory.
    pub fn hold(&self, key: InodeKey) -> InodeRef {
        self.mount().hold(key)
    }

    /// Waits for a lock of an inode.
    pub async fn lock(&self, key: InodeKey, kind: LockKind, exclusive: bool) -> LockGuard {
        let guard = {
            let mut mount = self.mount();
            let ticket = mount.new_ticket();
            let fair = mount.config.seed.is_none();
            mount.inode_mut(key).lock_of(kind).request(ticket, exclusive, fair);
            let inode = mount.hold(key);
            // From here on: a wait that is given up leaves the queue.
            LockGuard { put: Some(Put::Lock(key, kind, ticket)), puts: mount.puts.clone(), _inode: Some(inode) }
        };
        let Some(Put::Lock(_, _, ticket)) = guard.put else { return guard };
        self.wait(|mount| {
            let fair = mount.config.seed.is_none();
            let lock = mount.inode_mut(key).lock_of(kind);
            (if fair { lock.is_held_by(ticket) } else { lock.steal(ticket) }).then_some(())
        })
        .await;
        guard
    }

    pub async fn lock_exclusive(&self, key: InodeKey) -> LockGuard {
        self.lock(key, LockKind::Main, true).await
    }

    pub async fn lock_shared(&self, key: InodeKey) -> LockGuard {
        self.lock(key, LockKind::Main, false).await
    }

    /// A shared lock if it is free now.
    pub fn try_lock_shared(&self, key: InodeKey) -> Option<LockGuard> {
        let mut mount = self.mount();
        let ticket = mount.new_ticket();
        if !mount.inode_mut(key).lock.try_acquire(ticket, false) {
            return None;
        }
        let inode = mount.hold(key);
        let put = Some(Put::Lock(key, LockKind::Main, ticket));
        Some(LockGuard { put, puts: mount.puts.clone(), _inode: Some(inode) })
    }

    /// Waits for the position of an open file (`fdget_pos`).
    pub async fn lock_position(&self, key: FileKey) -> LockGuard {
        let (guard, ticket) = {
            let mut mount = self.mount();
            let ticket = mount.new_ticket();
            mount.file_mut(key).position_lock.request(ticket, true, true);
            let put = Some(Put::Position(key, ticket));
            (LockGuard { put, puts: mount.puts.clone(), _inode: None }, ticket)
        };
        self.wait(|mount| mount.file(key).position_lock.is_held_by(ticket).then_some(())).await;
        guard
    }

    /// `s_vfs_rename_mutex`.
    pub async fn lock_renames(&self) -> LockGuard {
        let guard = {
            let mut mount = self.mount();
            let ticket = mount.new_ticket();
            mount.rename_mutex.request(ticket, true, true);
            LockGuard { put: Some(Put::RenameMutex(ticket)), puts: mount.puts.clone(), _inode: None }
        };
        let Some(Put::RenameMutex(ticket)) = guard.put else { return guard };
        self.wait(|mount| mount.rename_mutex.is_held_by(ticket).then_some(())).await;
        guard
    }

    /// The rename mutex if it is free now.
    pub fn try_lock_renames(&self) -> Option<LockGuard> {
        let mut mount = self.mount();
        let ticket = mount.new_ticket();
        let taken = mount.rename_mutex.try_acquire(ticket, true);
        taken.then(|| LockGuard { put: Some(Put::RenameMutex(ticket)), puts: mount.puts.clone(), _inode: None })
    }
}
