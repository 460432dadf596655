//! Names to dentries: lookups, revalidation, walks along a path.
//!
//! - A cached name counts if its epoch is the present one and its time has not passed; an exclusive create and a
//!   rename's target ask in any case (`fuse_dentry_revalidate`).
//! - A negative name that has expired is looked up anew, a positive one asked for with LOOKUP; another inode there
//!   invalidates it (`fuse_dentry_revalidate`).
//! - A lookup holds the directory's lock, shared; one on the way to a change of names, exclusive (`lookup_slow`,
//!   `lookup_one_qstr_excl`).
//! - Any call that fails with ESTALE is repeated once and asks for each name then (`retry_estale`, `LOOKUP_REVAL`).
//!
//! Not here: symbolic links, permissions (the mount is one without `default_permissions`, used by its owner).

use super::attributes::Asked;
use super::dentries::{Dentries, DentryId};
use super::executor::Context;
use super::requests::{Entry, Errno, Kind, NAME_BYTES_MAX, Operation, ROOT, Reply};
use super::state::{DentryRef, InodeKey, InodeRef, LockGuard, LockKind};

/// How a name is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Intent {
    /// `LOOKUP_REVAL`: after ESTALE.
    pub revalidate: bool,
    /// `LOOKUP_EXCL` or `LOOKUP_RENAME_TARGET`: for these the server is asked.
    pub ask: bool,
}

/// A directory to change, and the last component of the path.
pub struct Place {
    pub directory: DentryRef,
    pub inode: InodeKey,
    pub name: String,
}

impl Context {
    /// The inode of a dentry; `None` if it is negative.
    pub fn inode_of(&self, dentry: &DentryRef) -> Option<InodeKey> {
        self.mount().dentries.get(dentry.id).inode
    }

    /// A guard for the same dentry.
    pub fn clone_ref(&self, dentry: &DentryRef) -> DentryRef {
        self.mount().pin(dentry.id)
    }

    /// A counted reference of the inode that an entry names (`fuse_iget`), with its attributes taken in.
    pub async fn inode_of_entry(&self, entry: &Entry, asked: Asked) -> InodeRef {
        let inode = {
            let mut mount = self.mount();
            let (key, made) = mount.inode_of(entry.node, entry.generation, &entry.attributes);
            mount.inode_mut(key).lookups += 1;
            if made && mount.config.writeback_cache {
                mount.set_size(key, entry.attributes.size);
            }
            mount.adopt(key)
        };
        self.change_attributes(inode.key, &entry.attributes, entry.attributes_ms, asked).await;
        inode
    }

    /// Whether a cached name may be used (`fuse_dentry_revalidate`).
    async fn revalidate(&self, directory: InodeKey, dentry: &DentryRef, intent: Intent) -> Result<bool, Errno> {
        let (inode, name) = {
            let mut mount = self.mount();
            let entry = mount.dentries.get(dentry.id);
            if entry.parent.is_none() {
                return Ok(true);
            }
            if entry.epoch < mount.epoch {
                return Ok(false);
            }
            let (inode, name) = (entry.inode, entry.name.clone());
            if inode.is_some_and(|inode| mount.inode(inode).bad) {
                return Ok(false);
            }
            if !mount.has_passed(entry.valid_until) && !intent.revalidate && !intent.ask {
                if let Some(inode) = inode {
                    let advised = std::mem::take(&mut mount.inode_mut(inode).init_plus);
                    mount.inode_mut(directory).advise_plus |= advised;
                }
                return Ok(true);
            }
            let Some(inode) = inode else { return Ok(false) };
            (mount.hold(inode), name)
        };
        let asked = Asked { evictions: 0, ..self.asked() };
        let (node, _) = self.node_and_kind(directory);
        let entry = match self.ask(node, Operation::Lookup { name }).await {
            Ok(Reply::Entry(entry)) if entry.node != 0 => entry,
            Err(Errno::EINTR) => return Err(Errno::EINTR),
            _ => return Ok(false),
        };
        {
            let mut mount = self.mount();
            if entry.node != mount.inode(inode.key).node {
                mount.send(entry.node, Operation::Forget { lookups: 1 });
                return Ok(false);
            }
            let found = mount.inode_mut(inode.key);
            found.lookups += 1;
            if found.generation != entry.generation || found.kind != entry.attributes.kind {
                return Ok(false);
            }
        }
        self.change_attributes(inode.key, &entry.attributes, entry.attributes_ms, asked).await;
        self.mount().set_entry_timeout(dentry.id, entry.entry_ms);
        Ok(true)
    }

    /// Looks a name up at the server, for a new dentry (`fuse_lookup`). Returns the dentry to use.
    async fn lookup_new(&self, directory: InodeKey, dentry: DentryRef) -> Result<DentryRef, Errno> {
        let (name, epoch, parallel) = {
            let mount = self.mount();
            (mount.dentries.get(dentry.id).name.clone(), mount.epoch, mount.config.parallel_dirops)
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno(36));
        }
        let asked = self.asked();
        let (node, _) = self.node_and_kind(directory);
        let serial = if parallel { None } else { Some(self.lock(directory, LockKind::Serial, true).await) };
        let answer = self.ask(node, Operation::Lookup { name }).await;
        let (inode, timeout) = match answer {
            Ok(Reply::Entry(entry)) if entry.node == 0 => (None, Some(entry.entry_ms)),
            Ok(Reply::Entry(entry)) => (Some(self.inode_of_entry(&entry, asked).await), Some(entry.entry_ms)),
            Ok(_) => return Err(Errno::EIO),
            Err(Errno::ENOENT) => (None, None),
            Err(error) => return Err(error),
        };
        drop(serial);
        if inode.as_ref().is_some_and(|inode| self.mount().inode(inode.key).node == ROOT) {
            return Err(Errno::EIO);
        }
        let found = inode.is_some();
        let dentry = self.splice(inode, dentry)?;
        let mut mount = self.mount();
        mount.dentries.get_mut(dentry.id).epoch = epoch;
        match timeout {
            Some(entry_ms) => mount.set_entry_timeout(dentry.id, entry_ms),
            None => mount.expire_entry(dentry.id),
        }
        if found {
            mount.inode_mut(directory).advise_plus = true;
        }
        drop(mount);
        Ok(dentry)
    }

    /// Joins an inode to a new dentry (`d_splice_alias`): a directory that has one already moves there.
    pub fn splice(&self, inode: Option<InodeRef>, dentry: DentryRef) -> Result<DentryRef, Errno> {
        let Some(inode) = inode else {
            self.mount().instantiate(dentry.id, None);
            return Ok(dentry);
        };
        let alias = {
            let mount = self.mount();
            let is_directory = mount.inode(inode.key).kind == Kind::Directory;
            is_directory.then(|| mount.dentries.alias_of(inode.key)).flatten()
        };
        let Some(alias) = alias else {
            let mut mount = self.mount();
            mount.count_inode(inode.key);
            mount.instantiate(dentry.id, Some(inode.key));
            return Ok(dentry);
        };
        if self.mount().dentries.is_below(dentry.id, alias) {
            return Err(Errno::ELOOP);
        }
        let (renames, parent) = {
            let mut mount = self.mount();
            let parent_of = |mount: &mut super::state::Mount, id| mount.dentries.get(id).parent;
            let (old, new) = (parent_of(&mut mount, alias), parent_of(&mut mount, dentry.id));
            let other = if old == new { None } else { old.and_then(|id| mount.dentries.get(id).inode) };
            (old != new, other)
        };
        let _mutex = if renames { Some(self.try_lock_renames().ok_or(Errno::ESTALE)?) } else { None };
        let _lock = match parent {
            Some(parent) => Some(self.try_lock_shared(parent).ok_or(Errno::ESTALE)?),
            None => None,
        };
        let mut mount = self.mount();
        let alias = mount.pin(alias);
        if mount.dentries.get(dentry.id).in_lookup {
            mount.end_lookup(dentry.id);
        }
        mount.move_dentry(alias.id, dentry.id);
        drop(mount);
        Ok(alias)
    }

    /// The dentry of a name under the directory's shared lock, which the caller holds (`__lookup_slow`).
    pub async fn lookup_parallel(
        &self,
        directory: &DentryRef,
        inode: InodeKey,
        name: &str,
        intent: Intent,
    ) -> Result<DentryRef, Errno> {
        if self.mount().inode(inode).dead {
            return Err(Errno::ENOENT);
        }
        loop {
            match self.allocate_parallel(directory.id, name).await {
                (dentry, false) => {
                    if self.revalidate(inode, &dentry, intent).await? {
                        return Ok(dentry);
                    }
                    self.mount().invalidate_dentry(dentry.id);
                }
                (dentry, true) => {
                    let id = dentry.id;
                    let kept = self.clone_ref(&dentry);
                    let result = self.lookup_new(inode, dentry).await;
                    let mut mount = self.mount();
                    if mount.dentries.get(id).in_lookup {
                        mount.end_lookup(id);
                    }
                    drop(mount);
                    drop(kept);
                    return result;
                }
            }
        }
    }

    /// The cached dentry of a name, or a new one to be looked up (`d_alloc_parallel`); true if it is new.
    pub async fn allocate_parallel(&self, parent: DentryId, name: &str) -> (DentryRef, bool) {
        self.wait(|mount| {
            if let Some(id) = mount.dentries.find(parent, name) {
                return Some((mount.pin(id), false));
            }
            if mount.dentries.find_in_lookup(parent, name).is_some() {
                return None;
            }
            let id = mount.begin_lookup(parent, name);
            Some((mount.pin(id), true))
        })
        .await
    }

    /// The cached dentry of a name, if it may be used (`lookup_fast`).
    pub async fn lookup_cached(
        &self,
        directory: &DentryRef,
        inode: InodeKey,
        name: &str,
        intent: Intent,
    ) -> Result<Option<DentryRef>, Errno> {
        let found = {
            let mut mount = self.mount();
            mount.dentries.find(directory.id, name).map(|id| mount.pin(id))
        };
        let Some(dentry) = found else { return Ok(None) };
        if self.revalidate(inode, &dentry, intent).await? {
            return Ok(Some(dentry));
        }
        self.mount().invalidate_dentry(dentry.id);
        Ok(None)
    }

    /// One step of a walk. The dentry may be negative.
    pub async fn lookup(&self, directory: &DentryRef, name: &str, intent: Intent) -> Result<DentryRef, Errno> {
        let inode = self.directory_inode(directory)?;
        if let Some(dentry) = self.lookup_cached(directory, inode.key, name, intent).await? {
            return Ok(dentry);
        }
        let _lock = self.lock_shared(inode.key).await;
        self.lookup_parallel(directory, inode.key, name, intent).await
    }

    /// The dentry of a name under the directory's exclusive lock, which the caller holds (`lookup_one_qstr_excl`).
    pub async fn lookup_locked(&self, place: &Place, intent: Intent) -> Result<DentryRef, Errno> {
        if let Some(dentry) = self.lookup_cached(&place.directory, place.inode, &place.name, intent).await? {
            return Ok(dentry);
        }
        if self.mount().inode(place.inode).dead {
            return Err(Errno::ENOENT);
        }
        let dentry = {
            let mut mount = self.mount();
            let id = mount.new_dentry(place.directory.id, &place.name);
            mount.pin(id)
        };
        self.lookup_new(place.inode, dentry).await
    }

    /// The inode of a directory's dentry.
    pub fn directory_inode(&self, dentry: &DentryRef) -> Result<InodeRef, Errno> {
        let mut mount = self.mount();
        let key = mount.dentries.get(dentry.id).inode.ok_or(Errno::ENOENT)?;
        if !mount.inode(key).is_directory() {
            return Err(Errno::ENOTDIR);
        }
        Ok(mount.hold(key))
    }

    /// Walks along all components but the last (`filename_parentat`).
    pub async fn walk_to_parent(&self, path: &[String], revalidate: bool) -> Result<Place, Errno> {
        let (name, above) = path.split_last().ok_or(Errno::EBUSY)?;
        let directory = self.walk(above, revalidate).await?;
        let inode = self.directory_inode(&directory)?.key;
        Ok(Place { directory, inode, name: name.clone() })
    }

    /// Walks along a path to what is there (`filename_lookup`).
    pub async fn walk(&self, path: &[String], revalidate: bool) -> Result<DentryRef, Errno> {
        let intent = Intent { revalidate, ask: false };
        let mut at = self.mount().pin(Dentries::ROOT);
        for name in path {
            let next = self.lookup(&at, name, intent).await?;
            if self.inode_of(&next).is_none() {
                return Err(Errno::ENOENT);
            }
            at = next;
        }
        Ok(at)
    }

    /// Locks the directory of a place for changes of names.
    pub async fn lock_place(&self, place: &Place) -> LockGuard {
        self.lock_exclusive(place.inode).await
    }
}
