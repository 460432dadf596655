//! The store in memory: a B+ tree of packed pages.
//!
//! Leaves hold keys and values, inner pages hold a lower bound of each child's keys and its number. At a few million
//! keys the tree is four levels deep, and each costs a search few cache misses ([`page`](super::page)); a file (an
//! inode and a dentry) takes about a hundred bytes in all.
//!
//! Invariant: all leaves are at the same depth; the key of a child in an inner page is not above the child's lowest key
//! and above all keys of the child before it. The first child of an inner page has an empty key: it takes all that is
//! below.
//! On a crash: gone, as the contract of an ephemeral shard says.

use super::page::{PAGE_BYTES_MAX, Page};
use super::{KEY_BYTES_MAX, KeyValue};
use std::ops::ControlFlow;

/// A page with less than this in it is joined with a neighbour.
const PAGE_BYTES_MIN: usize = PAGE_BYTES_MAX / 4;
/// Levels that no tree of ours reaches: an inner page has at least two children.
const LEVELS_MAX: usize = 24;

/// See the module.
pub struct MemoryStore {
    pages: Vec<Page>,
    /// Numbers of pages that are not in use.
    free: Vec<u32>,
    root: u32,
    /// Levels of inner pages above the leaves.
    inner_levels: usize,
    keys: u64,
    bytes: u64,
}

/// The way from the root to a leaf: inner pages and the index taken in each.
#[derive(Clone, Copy)]
struct Path {
    steps: [(u32, u16); LEVELS_MAX],
    length: usize,
}

impl Path {
    fn new() -> Self {
        Self { steps: [(0, 0); LEVELS_MAX], length: 0 }
    }

    fn push(&mut self, page: u32, index: usize) {
        self.steps[self.length] = (page, u16::try_from(index).expect("a page has fewer than 65,536 records"));
        self.length += 1;
    }

    fn pop(&mut self) -> Option<(u32, usize)> {
        self.length = self.length.checked_sub(1)?;
        let (page, index) = self.steps[self.length];
        Some((page, usize::from(index)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        let root = Page::default();
        let bytes = root.footprint() as u64;
        Self { pages: vec![root], free: Vec::new(), root: 0, inner_levels: 0, keys: 0, bytes }
    }

    /// Number of keys.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn page(&self, number: u32) -> &Page {
        &self.pages[number as usize]
    }

    /// Changes a page and keeps the account of bytes.
    fn change<R>(&mut self, number: u32, change: impl FnOnce(&mut Page) -> R) -> R {
        let page = &mut self.pages[number as usize];
        let before = page.footprint() as u64;
        let result = change(page);
        self.bytes = self.bytes + page.footprint() as u64 - before;
        result
    }

    fn add_page(&mut self, page: Page) -> u32 {
        self.bytes += page.footprint() as u64;
        if let Some(number) = self.free.pop() {
            self.pages[number as usize] = page;
            return number;
        }
        let number = u32::try_from(self.pages.len()).expect("four thousand million pages do not fit in memory");
        self.pages.push(page);
        number
    }

    fn drop_page(&mut self, number: u32) {
        let page = std::mem::take(&mut self.pages[number as usize]);
        self.bytes -= page.footprint() as u64;
        self.free.push(number);
    }

    /// Index of the child that a key belongs to.
    fn child_index(page: &Page, key: &[u8]) -> usize {
        match page.find(key) {
            Ok(index) => index,
            // The first key of an inner page is empty, so nothing is before it.
            Err(index) => index - 1,
        }
    }

    fn child(page: &Page, index: usize) -> u32 {
        let value = page.value(index).try_into().expect("the value of an inner record is a page number");
        u32::from_le_bytes(value)
    }

    fn leaf_of(&self, key: &[u8]) -> u32 {
        let mut number = self.root;
        for _ in 0..self.inner_levels {
            let page = self.page(number);
            number = Self::child(page, Self::child_index(page, key));
        }
        number
    }

    fn path_to(&self, key: &[u8]) -> (Path, u32) {
        let mut path = Path::new();
        let mut number = self.root;
        for _ in 0..self.inner_levels {
            let page = self.page(number);
            let index = Self::child_index(page, key);
            path.push(number, index);
            number = Self::child(page, index);
        }
        (path, number)
    }

    fn insert_at(&mut self, (path, leaf): (Path, u32), index: usize, key: &[u8], value: &[u8]) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        self.keys += 1;
        self.change(leaf, |page| page.insert(index, key, value));
        self.split_if_large(path, leaf, index);
    }

    /// Cuts a page that has become too large, and tells the page above of the new one. `inserted`: where its newest
    /// record is.
    fn split_if_large(&mut self, mut path: Path, mut number: u32, mut inserted: usize) {
        let mut is_inner = false;
        while self.page(number).used() > PAGE_BYTES_MAX && self.page(number).count() > 1 {
            let mut right = self.change(number, |page| page.split_off(page.cut_for(inserted), inserted));
            let key: Box<[u8]> = right.key(0).into();
            if is_inner {
                right.clear_first_key();
            }
            is_inner = true;
            let right_number = self.add_page(right);
            let Some((above, at)) = path.pop() else {
                self.grow_root(number, &key, right_number);
                return;
            };
            inserted = at + 1;
            self.change(above, |page| page.insert(inserted, &key, &right_number.to_le_bytes()));
            number = above;
        }
    }

    fn grow_root(&mut self, left: u32, right_key: &[u8], right: u32) {
        let mut root = Page::default();
        root.insert(0, &[], &left.to_le_bytes());
        root.insert(1, right_key, &right.to_le_bytes());
        self.root = self.add_page(root);
        self.inner_levels += 1;
        assert!(self.inner_levels < LEVELS_MAX, "a tree of {} levels", self.inner_levels);
    }

    /// After a removal: an empty page leaves the tree, a small one is joined with a neighbour.
    fn tidy(&mut self, mut path: Path, mut number: u32) {
        while let Some((above, at)) = path.pop() {
            if self.page(number).used() >= PAGE_BYTES_MIN {
                return;
            }
            if self.page(number).count() == 0 && self.page(above).count() > 1 {
                self.drop_page(number);
                self.change(above, |page| {
                    if at == 0 {
                        // The next child is the first one now, and takes what is below it.
                        let next: [u8; 4] = page.value(1).try_into().expect("the value is a page number");
                        page.replace(0, &next);
                    }
                    page.remove(at.max(1));
                });
            } else {
                let left_index = if at > 0 { at - 1 } else { at };
                if left_index + 1 >= self.page(above).count() {
                    return;
                }
                let left = Self::child(self.page(above), left_index);
                let right = Self::child(self.page(above), left_index + 1);
                if self.page(left).used() + self.page(right).used() > PAGE_BYTES_MAX * 3 / 4 {
                    return;
                }
                let taken = std::mem::take(&mut self.pages[right as usize]);
                self.bytes -= (taken.footprint() - Page::default().footprint()) as u64;
                // The first child of an inner page has no key: joined, it needs its bound.
                let bound: Box<[u8]> = self.page(above).key(left_index + 1).into();
                let is_inner = path.length + 1 < self.inner_levels;
                self.change(left, |page| page.append(&taken, is_inner.then_some(&*bound)));
                self.drop_page(right);
                self.change(above, |page| page.remove(left_index + 1));
            }
            number = above;
        }
        while self.inner_levels > 0 && self.page(self.root).count() == 1 {
            let only = Self::child(self.page(self.root), 0);
            self.drop_page(self.root);
            self.root = only;
            self.inner_levels -= 1;
        }
    }
}

impl KeyValue for MemoryStore {
    fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let page = self.page(self.leaf_of(key));
        page.find(key).ok().map(|index| read(page.value(index)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let (path, leaf) = self.path_to(key);
        match self.page(leaf).find(key) {
            Ok(index) => {
                self.change(leaf, |page| page.replace(index, value));
                self.split_if_large(path, leaf, 0);
                true
            }
            Err(index) => {
                self.insert_at((path, leaf), index, key, value);
                false
            }
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        let (path, leaf) = self.path_to(key);
        let place = self.page(leaf).find(key);
        if let Err(index) = place {
            self.insert_at((path, leaf), index, key, value);
        }
        place.is_err()
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let (path, leaf) = self.path_to(key);
        let Ok(index) = self.page(leaf).find(key) else {
            return false;
        };
        self.keys -= 1;
        self.change(leaf, |page| page.remove(index));
        if self.page(leaf).used() < PAGE_BYTES_MIN {
            self.tidy(path, leaf);
        }
        true
    }

    fn scan(&self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        let (mut path, mut leaf) = self.path_to(from);
        let mut index = self.page(leaf).find(from).unwrap_or_else(|index| index);
        loop {
            let page = self.page(leaf);
            for at in index..page.count() {
                if visit(page.key(at), page.value(at)).is_break() {
                    return;
                }
            }
            index = 0;
            let Some(next) = self.next_leaf(&mut path) else {
                return;
            };
            leaf = next;
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl MemoryStore {
    /// Moves the path to the leaf behind it.
    fn next_leaf(&self, path: &mut Path) -> Option<u32> {
        loop {
            let (page, index) = path.pop()?;
            if index + 1 < self.page(page).count() {
                path.push(page, index + 1);
                let mut number = Self::child(self.page(page), index + 1);
                while path.length < self.inner_levels {
                    path.push(number, 0);
                    number = Self::child(self.page(number), 0);
                }
                return Some(number);
            }
        }
    }
}

#[cfg(test)]
mod tests;
