//! How much memory the cache and the record of the kernel's take: by the sizes of their tables, not by measuring.
//!
//! What a client keeps of names and attributes is bounded by their number ([`crate::cache`], [`crate::kernel_view`]).
//! The tests here fill both as a mount does that lists very large directories, and hold the sum against
//! [`LISTING_BYTES_MAX`].

use std::collections::VecDeque;
use weft_protocol::Name;
use weft_protocol::hash::FixedMap;

/// Most bytes that the lease cache and the record of what the kernel was told take together, with names of the greatest
/// length; with names of up to 24 bytes, three quarters of that.
pub const LISTING_BYTES_MAX: usize = 128 << 20;

/// Bytes of a table, its unused places included, without what its entries point to.
pub(crate) fn table_bytes<K, V>(table: &FixedMap<K, V>) -> usize {
    // Seven of eight places are used at most; each has a byte that tells what is there.
    table.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}

/// Bytes of a queue, without what its entries point to.
pub(crate) fn queue_bytes<T>(queue: &VecDeque<T>) -> usize {
    queue.capacity() * size_of::<T>()
}

/// Bytes that a name takes outside of where it stands, as common allocators round them.
pub(crate) fn name_bytes(name: &Name) -> usize {
    (name.as_bytes().len() + 8).next_multiple_of(16).max(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::examples;
    use crate::kernel_view::KernelView;
    use weft_protocol::message::shard::{DirectoryEntry, DirectoryPage};
    use weft_protocol::{Cookie, FileKind, Grants, InodeNumber, ShardId};

    fn page(directory: u64, from: u64, count: u64, name_length: usize) -> DirectoryPage {
        let entry = |number: u64| {
            let name = Name::new(format!("{number:0name_length$}").as_bytes()).unwrap();
            let inode = InodeNumber::from_raw((directory << 24) + number + 2);
            let (cookie, attributes) = (Cookie::of(&name), Some(examples::attributes(inode, FileKind::Regular, 1)));
            DirectoryEntry { name, cookie, inode, kind: FileKind::Regular, attributes }
        };
        let entries = (from..from + count).map(entry).collect();
        let grants = Grants::DIRECTORY | Grants::ATTRIBUTES;
        DirectoryPage { entries, next: None, grants, parent: InodeNumber::ROOT }
    }

    /// Lists directories through a mount; the most bytes of the cache, and of the record.
    fn listed(directories: u64, names: u64, name_length: usize) -> (usize, usize) {
        let (mut cache, mut view) = (Cache::new(), KernelView::new());
        cache.renewed(ShardId::ROOT, 0, 1);
        let (mut most, mut most_told, mut stamp, mut unmeasured) = (0, 0, 1, 0);
        for directory in 2..directories + 2 {
            let parent = InodeNumber::from_raw(directory);
            for from in (0..names).step_by(4096) {
                let page = page(directory, from, (names - from).min(4096), name_length);
                cache.learn_page(parent, Cookie::START, &page, stamp);
                stamp += 1;
                let ticket = view.begin();
                for entry in &page.entries {
                    view.tell_listed(&ticket, parent, &entry.name, 1000, 1);
                    view.tell_attributes(&ticket, entry.inode, Some((parent, &entry.name)), 1000, 1);
                }
                view.end(ticket);
                unmeasured += page.entries.len();
                if unmeasured >= 4096 {
                    (most, most_told) = (most.max(cache.bytes()), most_told.max(view.bytes()));
                    unmeasured = 0;
                }
                // The shell gives back what was dropped, after the kernel has dropped it.
                for (parent, name) in cache.take_evicted().names {
                    let mark = view.mark();
                    view.dropped(parent, &name, mark);
                }
                while let Some(shard) = cache.surplus_shard() {
                    cache.take_surplus(shard, 4096);
                }
            }
        }
        (most, most_told)
    }

    #[test]
    fn listings_of_any_size_take_bounded_memory() {
        for (directories, names, name_length, bound) in [
            (1, 200_000, 255, LISTING_BYTES_MAX),
            (1, 200_000, 24, LISTING_BYTES_MAX / 4 * 3),
            (4, 70_000, 24, LISTING_BYTES_MAX / 4 * 3),
            (20_000, 10, 24, LISTING_BYTES_MAX / 4 * 3),
        ] {
            let (kept, told) = listed(directories, names, name_length);
            let what = format!("{directories} directories of {names} names of {name_length} bytes");
            println!("{what}: cache {} KiB, record {} KiB", kept >> 10, told >> 10);
            assert!(kept + told <= bound, "{what}: {kept} + {told} bytes");
        }
    }
}
