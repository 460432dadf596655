//! The plain model: what a file system with no caches, messages or faults would be.

use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::{Cookie, FileKind, InodeNumber, Name, Parts, ShardId, routing};

/// An inode of the model.
#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: FileKind,
    pub links: u32,
    pub size: u64,
    pub mode: u16,
    pub entries: BTreeMap<Name, InodeNumber>,
}

/// The tree. Inodes are known by the numbers that the shards gave them.
pub struct Model {
    pub inodes: BTreeMap<InodeNumber, Inode>,
    /// Shards whose node has crashed: nothing is said of what was there.
    pub lost: BTreeSet<ShardId>,
    /// When a request between two nodes that were cut off from each other was lost last.
    pub split_ms: Option<u64>,
    /// A storage server is gone for good, perhaps without a shard.
    pub store_gone: bool,
    /// Directories with parts: of each its parts, itself first. What a part has is in `inodes` under its number.
    parts: BTreeMap<InodeNumber, Parts>,
    /// The names that files had when their shard asked for a cut of them, each with the time of the latest such cut.
    cuts: BTreeMap<InodeNumber, BTreeMap<(InodeNumber, Name), u64>>,
}

impl Model {
    pub fn new() -> Self {
        let root = Inode { kind: FileKind::Directory, links: 2, size: 0, mode: 0o755, entries: BTreeMap::new() };
        let inodes = BTreeMap::from([(InodeNumber::ROOT, root)]);
        Self {
            inodes,
            lost: BTreeSet::new(),
            split_ms: None,
            store_gone: false,
            parts: BTreeMap::new(),
            cuts: BTreeMap::new(),
        }
    }

    /// Whether the model speaks of this inode.
    pub fn knows(&self, inode: InodeNumber) -> bool {
        !self.lost.contains(&routing::of_inode(inode))
    }

    pub fn entry(&self, parent: InodeNumber, name: &Name) -> Option<InodeNumber> {
        self.inodes.get(&parent).and_then(|directory| directory.entries.get(name)).copied()
    }

    /// A directory has these parts from now on.
    pub fn spread(&mut self, parts: &Parts) {
        if self.parts.insert(parts.directory(), parts.clone()).is_some() {
            return;
        }
        let directory = self.inodes.get_mut(&parts.directory()).expect("a directory that is spread is in the model");
        let (mode, entries) = (directory.mode, std::mem::take(&mut directory.entries));
        (directory.links, directory.size) = (2, 0);
        for part in parts.others() {
            let kind = FileKind::Directory;
            self.inodes.insert(*part, Inode { kind, links: 2, size: 0, mode, entries: BTreeMap::new() });
        }
        for (name, inode) in entries {
            let kind = self.inodes.get(&inode).map_or(FileKind::Regular, |inode| inode.kind);
            self.put(parts.of(Cookie::of(&name)), &name, inode, kind);
        }
    }

    /// The parts of a directory; of one that was not spread, itself.
    pub fn parts_of(&self, directory: InodeNumber) -> Vec<InodeNumber> {
        self.parts.get(&directory).map_or_else(|| vec![directory], |parts| parts.all().to_vec())
    }

    /// Whether another part serves the name.
    pub fn is_elsewhere(&self, directory: InodeNumber, name: &Name) -> bool {
        let mut all = self.parts.values().filter(|parts| parts.all().contains(&directory));
        all.any(|parts| parts.of(Cookie::of(name)) != directory)
    }

    /// All entries of a directory.
    pub fn entries(&self, directory: InodeNumber) -> impl Iterator<Item = InodeNumber> {
        let parts = self.parts_of(directory).into_iter();
        parts.filter_map(|part| self.inodes.get(&part)).flat_map(|inode| inode.entries.values().copied())
    }

    /// A directory has another mode.
    pub fn change_mode(&mut self, directory: InodeNumber, mode: u16) {
        for part in self.parts_of(directory) {
            if let Some(inode) = self.inodes.get_mut(&part) {
                inode.mode = mode;
            }
        }
    }

    /// A shard asks for a cut of this file: by now an open has found it.
    pub fn cut_asked(&mut self, inode: InodeNumber, now_ms: u64) {
        let names = self.inodes.iter().flat_map(|(parent, directory)| {
            let names = directory.entries.iter().filter(move |(_, named)| **named == inode);
            names.map(move |(name, _)| ((*parent, name.clone()), now_ms))
        });
        self.cuts.entry(inode).or_default().extend(names);
    }

    /// Whether the file had this name when a cut of it was asked for, at this time or later. An open keeps to the file
    /// that it has found, and cuts it again where it has another object since, under whatever name.
    pub fn was_cut_as(&self, inode: InodeNumber, parent: InodeNumber, name: &Name, since_ms: u64) -> bool {
        let cut_ms = self.cuts.get(&inode).and_then(|names| names.get(&(parent, name.clone())));
        cut_ms.is_some_and(|cut_ms| *cut_ms >= since_ms)
    }

    /// A new inode under a name.
    pub fn make(&mut self, parent: InodeNumber, name: &Name, inode: InodeNumber, kind: FileKind, mode: u16) {
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        self.inodes.insert(inode, Inode { kind, links, size: 0, mode, entries: BTreeMap::new() });
        self.put(parent, name, inode, kind);
    }

    /// One more name.
    pub fn put(&mut self, parent: InodeNumber, name: &Name, inode: InodeNumber, kind: FileKind) {
        let directory = self.inodes.get_mut(&parent).unwrap_or_else(|| panic!("{parent} is not in the model"));
        let before = directory.entries.insert(name.clone(), inode);
        assert!(before.is_none(), "{name} is in {parent} already: {before:?}");
        directory.size += 1;
        if kind == FileKind::Directory {
            directory.links += 1;
        }
    }

    /// A name less. The inode it named.
    pub fn take(&mut self, parent: InodeNumber, name: &Name) -> Option<InodeNumber> {
        let inode = self.entry(parent, name)?;
        let kind = self.inodes.get(&inode).map(|inode| inode.kind);
        let directory = self.inodes.get_mut(&parent)?;
        directory.entries.remove(name);
        directory.size -= 1;
        if kind == Some(FileKind::Directory) {
            directory.links -= 1;
        }
        Some(inode)
    }

    /// A name of an inode is gone; with the last one the inode.
    pub fn drop_link(&mut self, inode: InodeNumber) -> u32 {
        let Some(record) = self.inodes.get_mut(&inode) else { return 0 };
        record.links = if record.kind == FileKind::Directory { 0 } else { record.links - 1 };
        let links = record.links;
        if links == 0 {
            self.parts_of(inode).iter().for_each(|part| drop(self.inodes.remove(part)));
        }
        links
    }
}
