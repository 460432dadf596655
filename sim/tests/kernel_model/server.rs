//! A file system in memory that answers requests, the same for the model and for the real kernel.
//!
//! Its times are a counter in seconds. Replies can be held back, fail or be cut short, as the script says.

use crate::script::{Change, Fate, Kind};
use crate::trace::is_only_times;
use std::collections::{BTreeMap, VecDeque};
use weft_sim::kernel::requests::{
    Answer, Attributes, Entry, Errno, Kind as FileKind, Listed, NodeId, Opened, Operation, ROOT, RenameMode, Reply,
    Request, entry_bytes, entry_plus_bytes,
};

struct Node {
    attributes: Attributes,
    content: Vec<u8>,
    /// Names with their cookies and inodes.
    entries: BTreeMap<String, (u64, NodeId)>,
    cookies: u64,
}

/// Settings that replies carry.
struct Settings {
    entry_ms: u64,
    attributes_ms: u64,
    negative_ms: Option<u64>,
    opened: Opened,
    passthrough: bool,
}

/// See the module.
pub struct Server {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
    handles: u64,
    clock: u64,
    settings: Settings,
    fates: BTreeMap<Kind, VecDeque<Fate>>,
}

/// What becomes of a request.
pub enum Outcome {
    Answer(Answer),
    HoldReply(Answer),
    HoldRequest,
}

/// The kind of a request, for scripts.
pub fn kind(operation: &Operation) -> Kind {
    match operation {
        Operation::Lookup { .. } => "lookup",
        Operation::Forget { .. } => "forget",
        Operation::Getattr { .. } => "getattr",
        Operation::Setattr(_) => "setattr",
        Operation::Mkdir { .. } => "mkdir",
        Operation::Unlink { .. } => "unlink",
        Operation::Rmdir { .. } => "rmdir",
        Operation::Rename { .. } => "rename",
        Operation::Link { .. } => "link",
        Operation::Open { .. } => "open",
        Operation::Create { .. } => "create",
        Operation::Read { .. } => "read",
        Operation::Write { .. } => "write",
        Operation::Flush { .. } => "flush",
        Operation::Release { .. } => "release",
        Operation::Fsync { .. } => "fsync",
        Operation::Opendir => "opendir",
        Operation::Readdir { .. } => "readdir",
        Operation::Releasedir { .. } => "releasedir",
        _ => "backing",
    }
}

impl Server {
    pub fn new() -> Self {
        let mut server = Self {
            nodes: BTreeMap::new(),
            next: ROOT,
            handles: 0,
            clock: 1000,
            settings: Settings {
                entry_ms: 0,
                attributes_ms: 0,
                negative_ms: None,
                opened: Opened::default(),
                passthrough: false,
            },
            fates: BTreeMap::new(),
        };
        server.make(FileKind::Directory, 0o755);
        server
    }

    fn make(&mut self, kind: FileKind, mode: u16) -> NodeId {
        let ino = self.next;
        self.next += 1;
        let now = self.tick();
        let attributes = Attributes {
            ino,
            kind,
            mode,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
        };
        self.nodes.insert(ino, Node { attributes, content: Vec::new(), entries: BTreeMap::new(), cookies: 0 });
        ino
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn set_fate(&mut self, kind: Kind, fate: Fate) {
        self.fates.entry(kind).or_default().push_back(fate);
    }

    /// Decides what becomes of a request, and carries it out unless it is to wait.
    pub fn receive(&mut self, request: &Request) -> Outcome {
        if is_only_times(&request.operation) {
            return Outcome::Answer(self.answer(request));
        }
        let fate = self.fates.get_mut(kind(&request.operation)).and_then(VecDeque::pop_front);
        match fate {
            None => Outcome::Answer(self.answer(request)),
            Some(Fate::HoldReply) => Outcome::HoldReply(self.answer(request)),
            Some(Fate::HoldRequest) => Outcome::HoldRequest,
            Some(Fate::Fail(error)) => Outcome::Answer(Err(error)),
            Some(Fate::HoldFailure(error)) => Outcome::HoldReply(Err(error)),
            Some(Fate::Short(bytes)) => Outcome::Answer(self.answer_short(request, bytes)),
        }
    }

    fn answer_short(&mut self, request: &Request, bytes: u32) -> Answer {
        let mut request = request.clone();
        match &mut request.operation {
            Operation::Read { size, .. } => *size = bytes.min(*size),
            Operation::Write { data, .. } => data.truncate(bytes as usize),
            _ => {}
        }
        self.answer(&request)
    }

    /// Carries a request out.
    pub fn answer(&mut self, request: &Request) -> Answer {
        let node = request.node;
        match request.operation.clone() {
            Operation::Lookup { name } => self.lookup(node, &name),
            Operation::Forget { .. } => Ok(Reply::Done),
            Operation::Getattr { .. } => self.attributes(node),
            Operation::Setattr(_) if is_only_times(&request.operation) => self.attributes(node),
            Operation::Setattr(change) => {
                let now = self.tick();
                let found = self.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
                if let Some(mode) = change.mode {
                    found.attributes.mode = mode;
                }
                if let Some(size) = change.size {
                    found.content.resize(size as usize, 0);
                    found.attributes.mtime = now;
                }
                found.attributes.ctime = now;
                self.settle(node);
                self.attributes(node)
            }
            Operation::Mkdir { name, mode } => {
                self.check_free(node, &name)?;
                let made = self.make(FileKind::Directory, mode);
                self.add(node, &name, made)?;
                self.entry(made).map(Reply::Entry)
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => self.remove(node, &name),
            Operation::Rename { name, new_parent, new_name, mode } => {
                self.rename((node, &name), (new_parent, &new_name), mode)
            }
            Operation::Link { inode, new_name } => {
                self.check_free(node, &new_name)?;
                self.nodes.get_mut(&inode).ok_or(Errno::ENOENT)?.attributes.nlink += 1;
                self.add(node, &new_name, inode)?;
                self.entry(inode).map(Reply::Entry)
            }
            Operation::Open { flags } => {
                let now = self.tick();
                let found = self.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
                if flags.truncate {
                    found.content.clear();
                    found.attributes.mtime = now;
                    self.settle(node);
                }
                Ok(Reply::Opened(self.opened(node)))
            }
            Operation::Create { name, mode, .. } => {
                self.check_free(node, &name)?;
                let made = self.make(FileKind::Regular, mode);
                self.add(node, &name, made)?;
                Ok(Reply::Created(self.entry(made)?, self.opened(made)))
            }
            Operation::Read { offset, size, .. } => {
                let content = &self.nodes.get(&node).ok_or(Errno::ESTALE)?.content;
                let from = (offset as usize).min(content.len());
                Ok(Reply::Data(content[from..(from + size as usize).min(content.len())].to_vec()))
            }
            Operation::Write { offset, data, .. } => {
                self.write(node, offset, &data)?;
                Ok(Reply::Written(data.len() as u32))
            }
            Operation::Opendir => Ok(Reply::Opened(self.opened_directory())),
            Operation::Readdir { offset, size, plus, .. } => self.list(node, offset, size, plus),
            Operation::BackingRead { offset, size, .. } => {
                let content = &self.nodes.get(&node).ok_or(Errno::ESTALE)?.content;
                let from = (offset as usize).min(content.len());
                Ok(Reply::Data(content[from..(from + size as usize).min(content.len())].to_vec()))
            }
            Operation::BackingWrite { offset, data, .. } => {
                let mut content = self.content(node);
                let end = offset as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(&data);
                self.set_content(node, content);
                Ok(Reply::Written(data.len() as u32))
            }
            Operation::BackingSize { .. } => {
                Ok(Reply::Size(self.nodes.get(&node).ok_or(Errno::ESTALE)?.content.len() as u64))
            }
            _ => Ok(Reply::Done),
        }
    }

    /// The contents of a backing file.
    pub fn content(&self, node: NodeId) -> Vec<u8> {
        self.nodes.get(&node).map(|node| node.content.clone()).unwrap_or_default()
    }

    /// A backing file changed; its times are nobody's affair.
    pub fn set_content(&mut self, node: NodeId, content: Vec<u8>) {
        if let Some(found) = self.nodes.get_mut(&node) {
            found.content = content;
        }
        self.settle(node);
    }

    fn settle(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.attributes.size = node.content.len() as u64;
            node.attributes.blocks = node.attributes.size.div_ceil(512);
        }
    }

    fn write(&mut self, node: NodeId, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let now = self.tick();
        let found = self.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
        let end = offset as usize + data.len();
        if found.content.len() < end {
            found.content.resize(end, 0);
        }
        found.content[offset as usize..end].copy_from_slice(data);
        found.attributes.mtime = now;
        found.attributes.ctime = now;
        self.settle(node);
        Ok(())
    }

    fn opened(&mut self, node: NodeId) -> Opened {
        self.handles += 1;
        let passthrough = self.settings.passthrough.then_some(node as u32);
        Opened { fh: self.handles, cache_dir: false, passthrough, ..self.settings.opened }
    }

    fn opened_directory(&mut self) -> Opened {
        self.handles += 1;
        let (keep_cache, cache_dir) = (self.settings.opened.keep_cache, self.settings.opened.cache_dir);
        Opened { fh: self.handles, keep_cache, cache_dir, ..Opened::default() }
    }

    fn attributes(&self, node: NodeId) -> Answer {
        let attributes = self.nodes.get(&node).ok_or(Errno::ESTALE)?.attributes.clone();
        Ok(Reply::Attributes { attributes, valid_ms: self.settings.attributes_ms })
    }

    fn entry(&self, node: NodeId) -> Result<Entry, Errno> {
        let attributes = self.nodes.get(&node).ok_or(Errno::ENOENT)?.attributes.clone();
        let (entry_ms, attributes_ms) = (self.settings.entry_ms, self.settings.attributes_ms);
        Ok(Entry { node, generation: 1, entry_ms, attributes_ms, attributes })
    }

    fn find(&self, parent: NodeId, name: &str) -> Option<NodeId> {
        self.nodes.get(&parent)?.entries.get(name).map(|(_, node)| *node)
    }

    fn lookup(&mut self, parent: NodeId, name: &str) -> Answer {
        match (self.find(parent, name), self.settings.negative_ms) {
            (Some(node), _) => self.entry(node).map(Reply::Entry),
            (None, None) => Err(Errno::ENOENT),
            (None, Some(entry_ms)) => {
                let entry = self.entry(ROOT)?;
                Ok(Reply::Entry(Entry { node: 0, entry_ms, ..entry }))
            }
        }
    }

    fn check_free(&self, parent: NodeId, name: &str) -> Result<(), Errno> {
        if self.find(parent, name).is_some() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    fn add(&mut self, parent: NodeId, name: &str, node: NodeId) -> Result<(), Errno> {
        let now = self.tick();
        let directory = self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?;
        directory.cookies += 1;
        directory.entries.insert(name.to_owned(), (directory.cookies, node));
        directory.attributes.mtime = now;
        directory.attributes.ctime = now;
        Ok(())
    }

    fn remove(&mut self, parent: NodeId, name: &str) -> Answer {
        let now = self.tick();
        let node = self.find(parent, name).ok_or(Errno::ENOENT)?;
        let found = self.nodes.get_mut(&node).ok_or(Errno::ENOENT)?;
        if !found.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let is_directory = found.attributes.kind == FileKind::Directory;
        found.attributes.nlink = if is_directory { 0 } else { found.attributes.nlink.saturating_sub(1) };
        found.attributes.ctime = now;
        let directory = self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?;
        directory.entries.remove(name);
        directory.attributes.mtime = now;
        Ok(Reply::Done)
    }

    fn rename(&mut self, from: (NodeId, &str), to: (NodeId, &str), mode: RenameMode) -> Answer {
        let source = self.find(from.0, from.1).ok_or(Errno::ENOENT)?;
        let target = self.find(to.0, to.1);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Replace, Some(_)) => {
                self.remove(to.0, to.1)?;
            }
            _ => {}
        }
        if let Some(directory) = self.nodes.get_mut(&from.0) {
            directory.entries.remove(from.1);
        }
        self.add(to.0, to.1, source)?;
        match target {
            Some(target) if mode == RenameMode::Exchange => self.add(from.0, from.1, target)?,
            _ => {
                let now = self.tick();
                if let Some(directory) = self.nodes.get_mut(&from.0) {
                    directory.attributes.mtime = now;
                }
            }
        }
        Ok(Reply::Done)
    }

    fn list(&self, node: NodeId, offset: u64, size: u32, plus: bool) -> Answer {
        let directory = self.nodes.get(&node).ok_or(Errno::ENOENT)?;
        let mut entries: Vec<_> = directory.entries.iter().filter(|(_, (cookie, _))| *cookie > offset).collect();
        entries.sort_by_key(|(_, (cookie, _))| *cookie);
        let mut left = size as usize;
        let mut listed = Vec::new();
        for (name, (cookie, ino)) in entries {
            let bytes = if plus { entry_plus_bytes(name.len()) } else { entry_bytes(name.len()) };
            if bytes > left {
                break;
            }
            left -= bytes;
            let kind = self.nodes.get(ino).map_or(FileKind::Regular, |node| node.attributes.kind);
            let entry = if plus { Some(self.entry(*ino)?) } else { None };
            listed.push(Listed { ino: *ino, next: *cookie, kind, name: name.clone(), entry });
        }
        Ok(Reply::Listing(listed))
    }

    /// Somebody else changes something. What cannot be done is left out.
    pub fn change(&mut self, change: &Change) {
        match change {
            Change::Write { node, offset, data } => {
                let _ = self.write(*node, *offset, data);
            }
            Change::Truncate { node, size } => {
                let now = self.tick();
                if let Some(node) = self.nodes.get_mut(node) {
                    node.content.resize(*size as usize, 0);
                    node.attributes.mtime = now;
                }
                self.settle(*node);
            }
            Change::Chmod { node, mode } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.attributes.mode = *mode;
                }
            }
            Change::Create { parent, name, content } if self.check_free(*parent, name).is_ok() => {
                let made = self.make(FileKind::Regular, 0o644);
                let _ = self.add(*parent, name, made);
                let _ = self.write(made, 0, content);
            }
            Change::Mkdir { parent, name } if self.check_free(*parent, name).is_ok() => {
                let made = self.make(FileKind::Directory, 0o755);
                let _ = self.add(*parent, name, made);
            }
            Change::Create { .. } | Change::Mkdir { .. } => {}
            Change::Unlink { parent, name } => {
                let _ = self.remove(*parent, name);
            }
            Change::Rename { parent, name, new_parent, new_name } => {
                let _ = self.rename((*parent, name), (*new_parent, new_name), RenameMode::Replace);
            }
            Change::Timeouts { entry_ms, attributes_ms } => {
                self.settings.entry_ms = *entry_ms;
                self.settings.attributes_ms = *attributes_ms;
            }
            Change::Negative { entry_ms } => self.settings.negative_ms = *entry_ms,
            Change::Opens { direct_io, keep_cache, cache_dir, parallel, passthrough } => {
                self.settings.opened = Opened {
                    direct_io: *direct_io,
                    keep_cache: *keep_cache,
                    cache_dir: *cache_dir,
                    parallel_direct_writes: *parallel,
                    ..Opened::default()
                };
                self.settings.passthrough = *passthrough;
            }
        }
    }
}
