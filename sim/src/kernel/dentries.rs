//! The dentry cache: which name of which directory is which inode, until when, and from which epoch.
//!
//! - A timeout belongs to the dentry (`d_fsdata`), so it moves with it on rename (`d_move`, `d_exchange`).
//! - Unlink leaves a negative dentry with timeout 0 if nobody else uses it, else none (`d_delete`).
//! - Invalidation unhashes, and frees what is unused below (`d_invalidate`).
//! - A directory has one dentry; found under a second name it is moved there (`d_splice_alias`).
//! - Lookups of one name at the same time are one (`d_alloc_parallel`).
//!
//! Not here: when a dentry is believed (`walk.rs`), requests.

use super::state::{InodeKey, Mount};
use std::collections::BTreeMap;

/// Names a dentry. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DentryId(pub u64);

/// One cached name.
#[derive(Debug)]
pub struct Dentry {
    pub name: String,
    /// `None` for the root.
    pub parent: Option<DentryId>,
    /// `None`: negative.
    pub inode: Option<InodeKey>,
    /// Found by lookups.
    pub hashed: bool,
    /// A lookup of it is on its way, and others wait for that one.
    pub in_lookup: bool,
    /// Believed until then; 0 is never.
    pub valid_until: u64,
    /// Epoch of the connection when the lookup was sent.
    pub epoch: u64,
    /// Users: children, open files, walks.
    pub refs: u32,
}

/// All dentries of a mount.
#[derive(Default)]
pub struct Dentries {
    all: BTreeMap<DentryId, Dentry>,
    hashed: BTreeMap<(DentryId, String), DentryId>,
    in_lookup: BTreeMap<(DentryId, String), DentryId>,
    next: u64,
}

impl Dentries {
    pub const ROOT: DentryId = DentryId(0);

    pub fn set_root(&mut self, inode: InodeKey) {
        let root = Dentry {
            name: String::new(),
            parent: None,
            inode: Some(inode),
            hashed: true,
            in_lookup: false,
            valid_until: u64::MAX,
            epoch: u64::MAX,
            refs: 1,
        };
        self.all.insert(Self::ROOT, root);
    }

    /// A dentry that somebody holds a reference to.
    pub fn get(&self, id: DentryId) -> &Dentry {
        self.all.get(&id).expect("a referenced dentry is in memory")
    }

    pub fn get_mut(&mut self, id: DentryId) -> &mut Dentry {
        self.all.get_mut(&id).expect("a referenced dentry is in memory")
    }

    pub fn ids(&self) -> Vec<DentryId> {
        self.all.keys().copied().collect()
    }

    /// The hashed dentry of a name (`d_lookup`).
    pub fn find(&self, parent: DentryId, name: &str) -> Option<DentryId> {
        self.hashed.get(&(parent, name.to_owned())).copied()
    }

    /// The dentry of a name that is being looked up.
    pub fn find_in_lookup(&self, parent: DentryId, name: &str) -> Option<DentryId> {
        self.in_lookup.get(&(parent, name.to_owned())).copied()
    }

    /// Some dentry of a directory inode (`d_find_alias`).
    pub fn alias_of(&self, inode: InodeKey) -> Option<DentryId> {
        self.all.iter().find(|(_, dentry)| dentry.inode == Some(inode)).map(|(id, _)| *id)
    }

    /// A new dentry, not hashed. Its parent's count is the caller's.
    fn allocate(&mut self, parent: DentryId, name: &str) -> DentryId {
        self.next += 1;
        let id = DentryId(self.next);
        let dentry = Dentry {
            name: name.to_owned(),
            parent: Some(parent),
            inode: None,
            hashed: false,
            in_lookup: false,
            valid_until: 0,
            epoch: 0,
            refs: 0,
        };
        self.all.insert(id, dentry);
        self.get_mut(parent).refs += 1;
        id
    }

    pub fn remove(&mut self, id: DentryId) -> Dentry {
        self.unhash(id);
        self.all.remove(&id).expect("a dentry is freed once")
    }

    fn key(&self, id: DentryId) -> Option<(DentryId, String)> {
        let dentry = self.get(id);
        dentry.parent.map(|parent| (parent, dentry.name.clone()))
    }

    /// Lookups find it no more (`__d_drop`).
    pub fn unhash(&mut self, id: DentryId) {
        if let Some(key) = self.key(id) {
            if self.hashed.get(&key) == Some(&id) {
                self.hashed.remove(&key);
            }
            self.get_mut(id).hashed = false;
        }
    }

    /// Lookups find it.
    pub fn hash(&mut self, id: DentryId) {
        if let Some(key) = self.key(id) {
            self.hashed.insert(key, id);
            self.get_mut(id).hashed = true;
        }
    }

    /// Whether `above` is the dentry or one of its parents.
    pub fn is_below(&self, id: DentryId, above: DentryId) -> bool {
        let mut at = Some(id);
        while let Some(dentry) = at {
            if dentry == above {
                return true;
            }
            at = self.get(dentry).parent;
        }
        false
    }

    fn hashed_children(&self, parent: DentryId) -> Vec<DentryId> {
        let from = (parent, String::new());
        self.hashed.range(from..).take_while(|((of, _), _)| *of == parent).map(|(_, id)| *id).collect()
    }

    /// Whether a directory has a cached positive child (`!simple_empty`).
    pub fn has_positive_child(&self, parent: DentryId) -> bool {
        self.hashed_children(parent).iter().any(|id| self.get(*id).inode.is_some())
    }
}

impl Mount {
    /// A new dentry for a lookup, which others wait for. It counts no user yet.
    pub fn begin_lookup(&mut self, parent: DentryId, name: &str) -> DentryId {
        let id = self.dentries.allocate(parent, name);
        self.dentries.get_mut(id).in_lookup = true;
        self.dentries.in_lookup.insert((parent, name.to_owned()), id);
        id
    }

    /// The lookup is over (`d_lookup_done`). What it did not hash vanishes with its last user.
    pub fn end_lookup(&mut self, id: DentryId) {
        let dentry = self.dentries.get_mut(id);
        dentry.in_lookup = false;
        if let Some(key) = self.dentries.key(id) {
            self.dentries.in_lookup.remove(&key);
        }
        self.progress = true;
    }

    /// A new dentry under the parent's exclusive lock (`d_alloc`).
    pub fn new_dentry(&mut self, parent: DentryId, name: &str) -> DentryId {
        self.dentries.allocate(parent, name)
    }

    /// Gives a dentry its inode, whose counted reference goes over to it, and hashes it (`d_add`).
    pub fn instantiate(&mut self, id: DentryId, inode: Option<InodeKey>) {
        if let Some(old) = std::mem::replace(&mut self.dentries.get_mut(id).inode, inode) {
            self.put_inode(old);
        }
        self.dentries.hash(id);
    }

    /// Gives a dentry its inode and leaves it hashed or not (`d_instantiate`): one that was invalidated while its file
    /// was being created stays out of sight.
    pub fn give_inode(&mut self, id: DentryId, inode: InodeKey) {
        if let Some(old) = self.dentries.get_mut(id).inode.replace(inode) {
            self.put_inode(old);
        }
    }

    /// Until when the name is believed (`fuse_change_entry_timeout`).
    pub fn set_entry_timeout(&mut self, id: DentryId, entry_ms: u64) {
        let until = self.deadline(entry_ms);
        self.dentries.get_mut(id).valid_until = until;
    }

    /// The name is looked up again next time (`fuse_invalidate_entry_cache`).
    pub fn expire_entry(&mut self, id: DentryId) {
        self.dentries.get_mut(id).valid_until = 0;
    }

    /// When something that was told to be valid for a time ends (`fuse_time_to_jiffies`).
    pub fn deadline(&self, valid_ms: u64) -> u64 {
        if valid_ms == 0 { 0 } else { self.now_ms.saturating_add(valid_ms) }
    }

    /// Whether a deadline has passed.
    pub fn has_passed(&self, deadline: u64) -> bool {
        deadline < self.now_ms
    }

    /// Unhashes a dentry and frees what is unused below it, and it too if nobody uses it (`d_invalidate`).
    pub fn invalidate_dentry(&mut self, id: DentryId) {
        if !self.dentries.get(id).hashed || self.dentries.get(id).parent.is_none() {
            return;
        }
        self.dentries.unhash(id);
        self.shrink_below(id);
        if self.dentries.get(id).refs == 0 {
            self.kill_dentry(id);
        }
    }

    /// Frees all unused dentries below one (`shrink_dcache_parent`).
    pub fn shrink_below(&mut self, id: DentryId) {
        for child in self.dentries.hashed_children(id) {
            self.shrink_below(child);
            if self.dentries.get(child).refs == 0 {
                self.kill_dentry(child);
            }
        }
    }

    /// The name is gone (`d_delete`): a dentry that only the caller uses becomes negative, another is unhashed.
    pub fn delete_dentry(&mut self, id: DentryId) {
        if self.dentries.get(id).refs == 1 {
            if let Some(inode) = self.dentries.get_mut(id).inode.take() {
                self.put_inode(inode);
            }
        } else {
            self.dentries.unhash(id);
        }
    }

    /// The first dentry takes the name of the second, which is unhashed (`d_move`). Timeout and epoch stay its own.
    pub fn move_dentry(&mut self, id: DentryId, onto: DentryId) {
        let (parent, name) = (self.dentries.get(onto).parent, self.dentries.get(onto).name.clone());
        self.dentries.unhash(onto);
        self.dentries.unhash(id);
        let dentry = self.dentries.get_mut(id);
        let old_parent = std::mem::replace(&mut dentry.parent, parent);
        dentry.name = name;
        self.dentries.hash(id);
        if let Some(parent) = parent {
            self.dentries.get_mut(parent).refs += 1;
        }
        if let Some(parent) = old_parent {
            self.put_dentry(parent);
        }
    }

    /// Two dentries take each other's names (`d_exchange`).
    pub fn exchange_dentries(&mut self, one: DentryId, other: DentryId) {
        self.dentries.unhash(one);
        self.dentries.unhash(other);
        let place = |dentry: &Dentry| (dentry.parent, dentry.name.clone());
        let (first, second) = (place(self.dentries.get(one)), place(self.dentries.get(other)));
        for (id, (parent, name)) in [(one, second), (other, first)] {
            let dentry = self.dentries.get_mut(id);
            dentry.parent = parent;
            dentry.name = name;
            self.dentries.hash(id);
        }
    }

    /// Memory pressure: frees all dentries that nobody uses, and with them inodes.
    pub fn drop_unused_dentries(&mut self) {
        loop {
            let unused: Vec<_> =
                self.dentries.ids().into_iter().filter(|id| self.dentries.get(*id).refs == 0).collect();
            if unused.is_empty() {
                return;
            }
            for id in unused {
                self.kill_dentry(id);
            }
        }
    }
}
