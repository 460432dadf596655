//! The bounds of the cache: what is too much is dropped, and its leases are given back.

use super::{ATTRIBUTES_MAX, Cache, DIRECTORIES_MAX, Dropped, ENTRIES_MAX};
use crate::memory::{name_bytes, queue_bytes, table_bytes};
use weft_protocol::{LeaseKey, ShardId, routing};

impl Cache {
    /// Drops the oldest of what is too much.
    pub(super) fn make_room(&mut self) {
        while self.names.len() > ENTRIES_MAX {
            let Some(key) = self.name_order.pop_front() else { break };
            if let Some(known) = self.names.remove(&key) {
                self.changes += 1;
                self.unlisted += usize::from(known.by_directory);
                self.not_all_known(key.0);
                if !known.by_directory {
                    self.surplus.insert(LeaseKey::Entry(key.0, key.1), known.stamp);
                }
                self.evicted.names.push((key.0, known.name));
            }
        }
        while self.attributes.len() > ATTRIBUTES_MAX {
            let Some(inode) = self.attribute_order.pop_front() else { break };
            if let Some(known) = self.attributes.remove(&inode) {
                self.changes += 1;
                self.surplus.insert(LeaseKey::Attributes(inode), known.stamp);
                if known.permissions {
                    self.surplus.insert(LeaseKey::Permissions(inode), known.stamp);
                }
                self.evicted.inodes.push(inode);
            }
        }
        while self.directories.len() > DIRECTORIES_MAX {
            let Some(directory) = self.directory_order.pop_front() else { break };
            if let Some(held) = self.directories.remove(&directory) {
                self.changes += 1;
                self.surplus.insert(LeaseKey::Directory(directory), held.stamp);
                let dropped = self.drop_listed(directory, &held);
                self.evicted.names.extend(dropped);
                self.evicted.directories.push(directory);
            }
        }
        // Names that made room are still among those listed of their directories.
        if self.unlisted > ENTRIES_MAX {
            self.unlisted = 0;
            let names = &self.names;
            for (directory, held) in &mut self.directories {
                held.listed.retain(|hash| names.contains_key(&(*directory, *hash)));
                held.listed.shrink_to_fit();
            }
        }
        // Keys removed otherwise stay in the order queues: keep those short too.
        if self.name_order.len() > 2 * ENTRIES_MAX {
            self.name_order.retain(|key| self.names.contains_key(key));
        }
        if self.attribute_order.len() > 2 * ATTRIBUTES_MAX {
            self.attribute_order.retain(|inode| self.attributes.contains_key(inode));
        }
        if self.directory_order.len() > 2 * DIRECTORIES_MAX {
            self.directory_order.retain(|directory| self.directories.contains_key(directory));
        }
    }

    /// Bytes that it takes; what is to be given back and recalls that are remembered apart.
    pub fn bytes(&self) -> usize {
        let names = table_bytes(&self.names) + queue_bytes(&self.name_order);
        let attributes = table_bytes(&self.attributes) + queue_bytes(&self.attribute_order);
        let directories = table_bytes(&self.directories) + queue_bytes(&self.directory_order);
        let name_texts: usize = self.names.values().map(|known| name_bytes(&known.name)).sum();
        let listed: usize = self.directories.values().map(|held| held.listed.capacity() * size_of::<u64>()).sum();
        names + attributes + directories + name_texts + listed
    }

    /// How many leases are to be given back.
    pub fn surplus_count(&self) -> usize {
        self.surplus.len()
    }

    /// A shard at which there are such.
    pub fn surplus_shard(&self) -> Option<ShardId> {
        self.surplus.first_key_value().map(|(key, _)| routing::of_lease(key))
    }

    /// Leases to be given back at a shard, at most `count`, with the stamps of their grants.
    pub fn take_surplus(&mut self, shard: ShardId, count: usize) -> Vec<(LeaseKey, u64)> {
        let of_shard = self.surplus.iter().filter(|(key, _)| routing::of_lease(key) == shard);
        let leases: Vec<(LeaseKey, u64)> = of_shard.take(count).map(|(key, stamp)| (*key, *stamp)).collect();
        for (key, _) in &leases {
            self.surplus.remove(key);
        }
        leases
    }

    /// What was dropped to make room since this was asked last: to be dropped by caches above before
    /// [`Cache::take_surplus`].
    pub fn take_evicted(&mut self) -> Dropped {
        let evicted = std::mem::take(&mut self.evicted);
        self.above(evicted)
    }
}
