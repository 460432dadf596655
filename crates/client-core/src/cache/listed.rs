//! What listings tell the cache: names that are known by the lease on their directory.

use super::{Cache, Cached, CachedName, HeldDirectory, KnownNames, known_apart};
use weft_protocol::message::shard::DirectoryPage;
use weft_protocol::{Cookie, Grants, InodeNumber, LeaseKey, Name, routing};

impl Cache {
    /// A reply granted a new directory as a whole: that it is empty is all there is to know of it.
    pub fn learn_complete(&mut self, directory: InodeNumber, stamp: u64) {
        if self.hold(directory, stamp)
            && let Some(held) = self.directories.get_mut(&directory)
        {
            held.known = KnownNames::All;
        }
    }

    /// A page of a listing, with the names and attributes that it grants. Whether all of it is known now: nothing was
    /// recalled since.
    pub fn learn_page(&mut self, directory: InodeNumber, after: Cookie, page: &DirectoryPage, stamp: u64) -> bool {
        self.changes += 1;
        self.shared.told(directory, page.grants, stamp);
        let listed = page.grants.contains(Grants::DIRECTORY) && self.hold(directory, stamp);
        let mut all = true;
        for entry in &page.entries {
            let target = Cached::Found(entry.inode, entry.kind);
            if listed {
                self.learn_listed(directory, &entry.name, target, stamp);
            } else {
                self.learn_name(directory, &entry.name, Some((entry.inode, entry.kind)), page.grants, stamp);
            }
            let name = self.names.get(&(directory, entry.name.hash64()));
            all &= name.is_some_and(|known| known.name == entry.name && known.target == target);
            if let Some(attributes) = &entry.attributes {
                self.learn_attributes(attributes, page.grants, stamp);
                all &= self.attributes.get(&entry.inode).is_some_and(|known| !known.times_stale);
            }
        }
        if let Some(held) = self.directories.get_mut(&directory).filter(|_| listed) {
            let reached = match held.known {
                KnownNames::Some => Some(Cookie::START),
                KnownNames::UpTo(reached) => Some(reached),
                KnownNames::All => None,
            };
            if reached.is_some_and(|reached| after <= reached && page.next.is_none_or(|next| next > reached)) {
                held.known = page.next.map_or(KnownNames::All, KnownNames::UpTo);
            }
        }
        self.make_room();
        all
    }

    /// A reply granted the directory. `false`: it was recalled since.
    fn hold(&mut self, directory: InodeNumber, stamp: u64) -> bool {
        if self.recalled(LeaseKey::Directory(directory), stamp) {
            return false;
        }
        let age = self.age(routing::of_inode(directory));
        match self.directories.get_mut(&directory) {
            Some(held) if held.age == age => {
                held.stamp = held.stamp.max(stamp);
                held.since <= stamp
            }
            known => {
                let new = known.is_none();
                let held = HeldDirectory { age, since: stamp, stamp, known: KnownNames::Some, listed: Vec::new() };
                self.directories.insert(directory, held);
                if new {
                    self.directory_order.push_back(directory);
                }
                true
            }
        }
    }

    /// A name that is known by the lease on its directory.
    fn learn_listed(&mut self, directory: InodeNumber, name: &Name, target: Cached, stamp: u64) {
        let key = (directory, name.hash64());
        let age = self.age(routing::of_name(directory, name));
        let known = self.known(key, name, age);
        if known_apart(known, target) || known.is_some_and(|known| known.stamp > stamp) {
            return;
        }
        self.keep_name(key, CachedName { name: name.clone(), target, age, stamp, by_directory: true });
    }

    /// Drops the names that were known by the lease on their directory.
    pub(super) fn drop_listed(&mut self, directory: InodeNumber, held: &HeldDirectory) -> Vec<(InodeNumber, Name)> {
        let mut dropped = Vec::new();
        for hash in &held.listed {
            let key = (directory, *hash);
            if self.names.get(&key).is_some_and(|known| known.by_directory)
                && let Some(known) = self.names.remove(&key)
            {
                dropped.push((directory, known.name));
            }
        }
        dropped
    }
}
