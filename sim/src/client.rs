//! A simulated client: one call at a time, production lease cache, exactly-once repetition.

use crate::random::Random;
use std::collections::BTreeMap;
use weft_client_core::{Cache, Cached, DirectoryChange};
use weft_protocol::message::shard::{
    Access, CreateFile, DirectoryCursor, OpenFlags, RenameMode, ShardAnswer, ShardReply, ShardRequest,
};
use weft_protocol::{Error, FileKind, Grants, InodeNumber, LeaseKey, Name, NodeId, SessionId, ShardId};

/// Names that clients fight over.
const NAMES: u64 = 6;
/// Directories that a client remembers.
const DIRECTORIES_MAX: usize = 12;

/// A call on its way.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: u64,
    pub shard: ShardId,
    pub sequence: u32,
    pub request: ShardRequest,
    /// When it was sent last: the term of its answer's leases counts from the first time.
    pub sent_ms: u64,
}

/// A client.
pub struct Client {
    pub session: SessionId,
    pub cache: Cache,
    pub call: Option<Call>,
    pub sequence: u32,
    pub calls: u64,
    pub paused_until_ms: u64,
    pub home: NodeId,
    directories: Vec<InodeNumber>,
    /// Files that were opened and closed, whose leases are still held: stamps of their grants.
    pub held: BTreeMap<InodeNumber, u64>,
    /// A file that is open for writing now: committed by the next call.
    pub writing: Option<InodeNumber>,
}

impl Client {
    pub fn new(session: u64, home: NodeId) -> Self {
        Self {
            session: SessionId(session),
            cache: Cache::new(),
            call: None,
            sequence: 0,
            calls: 0,
            paused_until_ms: 0,
            home,
            directories: vec![InodeNumber::ROOT],
            held: BTreeMap::new(),
            writing: None,
        }
    }

    /// A new session after the old one ended: nothing is known any more.
    pub fn begin_again(&mut self, session: u64) {
        self.session = SessionId(session);
        self.cache.clear();
        self.sequence = 0;
        self.call = None;
        self.held.clear();
        self.writing = None;
    }

    fn directory(&self, random: &mut Random) -> InodeNumber {
        let index = random.below(self.directories.len() as u64);
        self.directories[usize::try_from(index).unwrap_or(0)]
    }

    /// What to do next. Some of it is answered from the cache: see [`Client::believes`].
    pub fn choose(&mut self, random: &mut Random) -> ShardRequest {
        let name = |random: &mut Random| {
            Name::new(format!("n{}", random.below(NAMES)).as_bytes()).expect("a letter and a digit make a name")
        };
        let (inode, wanted) = (self.directory(random), name(random));
        match random.below(20) {
            0..=5 => ShardRequest::Lookup { parent: inode, name: wanted },
            6 | 7 => ShardRequest::GetAttributes { inode },
            8..=11 => {
                let access = if random.one_in(2) { Access::Write } else { Access::Read };
                let create = Some(CreateFile { mode: 0o644, exclusive: random.one_in(3) });
                let flags = OpenFlags { access, truncate: false, direct: false };
                ShardRequest::OpenAt { parent: inode, name: wanted, flags, create }
            }
            12 | 13 => {
                let home = if random.one_in(4) { None } else { Some(self.home) };
                ShardRequest::MakeDirectory { parent: inode, name: wanted, mode: 0o755, home }
            }
            14 | 15 => ShardRequest::Unlink { parent: inode, name: wanted },
            16 => ShardRequest::RemoveDirectory { parent: inode, name: wanted },
            17 => {
                let new_parent = if random.one_in(2) { inode } else { self.directory(random) };
                let (new_name, mode) = (name(random), RenameMode::Replace);
                if new_parent.shard() == inode.shard() {
                    ShardRequest::Rename { parent: inode, name: wanted, new_parent, new_name, mode }
                } else {
                    ShardRequest::Lookup { parent: new_parent, name: new_name }
                }
            }
            18 => ShardRequest::ReadDirectory {
                inode,
                cursor: DirectoryCursor::default(),
                entries_max: 100,
                with_attributes: random.one_in(2),
            },
            _ => match self.held.pop_first() {
                Some((inode, stamp)) => ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), stamp)] },
                None => ShardRequest::GetAttributes { inode },
            },
        }
    }

    /// What the cache says of a name.
    pub fn believes(&self, parent: InodeNumber, name: &Name, now_ms: u64) -> Cached {
        self.cache.lookup(parent, name, now_ms)
    }

    /// Takes an answer in, as the client library does.
    pub fn learn(&mut self, call: &Call, reply: &ShardReply, now_ms: u64) {
        if reply.result != Err(Error::SessionEnded) {
            self.cache.renewed(call.shard, call.sent_ms, now_ms);
        }
        let Ok(answer) = &reply.result else { return };
        let stamp = reply.stamp;
        match (&call.request, answer) {
            (ShardRequest::Lookup { parent, name }, ShardAnswer::Entry { attributes, grants }) => {
                self.learn_name(*parent, name, (attributes.inode, attributes.kind), *grants, stamp);
                self.cache.learn_attributes(attributes, *grants, stamp);
            }
            (ShardRequest::Lookup { parent, name }, ShardAnswer::RemoteDirectory { inode, grants }) => {
                self.learn_name(*parent, name, (*inode, FileKind::Directory), *grants, stamp);
            }
            (ShardRequest::Lookup { parent, name }, ShardAnswer::Absent { grants }) => {
                self.cache.learn_name(*parent, name, None, *grants, stamp);
            }
            (ShardRequest::GetAttributes { .. }, ShardAnswer::Entry { attributes, grants }) => {
                self.cache.learn_attributes(attributes, *grants, stamp);
            }
            (ShardRequest::OpenAt { parent, name, .. }, ShardAnswer::Opened { attributes, created, grants, .. }) => {
                if *created {
                    let change = DirectoryChange { entries: 1, directories: 0, time: attributes.ctime };
                    self.cache.directory_became(*parent, change, stamp);
                }
                self.learn_name(*parent, name, (attributes.inode, attributes.kind), *grants, stamp);
                self.cache.learn_attributes(attributes, *grants, stamp);
                self.held.insert(attributes.inode, stamp);
            }
            (ShardRequest::MakeDirectory { parent, name, .. }, ShardAnswer::Entry { attributes, grants }) => {
                let change = DirectoryChange { entries: 1, directories: 1, time: attributes.ctime };
                self.cache.directory_became(*parent, change, stamp);
                if grants.contains(Grants::DIRECTORY) {
                    self.cache.learn_complete(attributes.inode, stamp);
                }
                self.learn_name(*parent, name, (attributes.inode, attributes.kind), *grants, stamp);
                self.cache.learn_attributes(attributes, *grants, stamp);
            }
            (
                ShardRequest::Unlink { parent, name } | ShardRequest::RemoveDirectory { parent, name },
                ShardAnswer::Removed { time, inode, .. },
            ) => {
                let directories = -i32::from(matches!(call.request, ShardRequest::RemoveDirectory { .. }));
                let change = DirectoryChange { entries: -1, directories, time: *time };
                self.cache.directory_became(*parent, change, stamp);
                self.cache.name_removed(*parent, name, stamp);
                self.cache.forget_attributes(*inode);
            }
            (
                ShardRequest::Rename { parent, name, new_parent, new_name, .. },
                ShardAnswer::Renamed { inode, replaced },
            ) => {
                for directory in [*parent, *new_parent] {
                    self.cache.directory_changed(directory);
                }
                self.cache.forget_name(*parent, name, stamp);
                self.cache.forget_name(*new_parent, new_name, stamp);
                self.cache.forget_attributes(*inode);
                if let Some((replaced, _)) = replaced {
                    self.cache.forget_attributes(*replaced);
                }
            }
            (ShardRequest::ReadDirectory { inode, cursor, .. }, ShardAnswer::Page(page)) => {
                self.cache.learn_page(*inode, cursor, page, stamp);
            }
            (ShardRequest::Commit { .. }, ShardAnswer::Entry { attributes, grants }) => {
                self.cache.learn_attributes(attributes, *grants, stamp);
            }
            _ => {}
        }
    }

    fn learn_name(
        &mut self,
        parent: InodeNumber,
        name: &Name,
        target: (InodeNumber, FileKind),
        grants: Grants,
        stamp: u64,
    ) {
        self.cache.learn_name(parent, name, Some(target), grants, stamp);
        if target.1 == FileKind::Directory && !self.directories.contains(&target.0) {
            if self.directories.len() == DIRECTORIES_MAX {
                self.directories.remove(1);
            }
            self.directories.push(target.0);
        }
    }

    /// A directory is gone, or was never there: it is not asked for again.
    pub fn forget_directory(&mut self, inode: InodeNumber) {
        self.directories.retain(|known| *known != inode || *known == InodeNumber::ROOT);
    }
}
