//! A simulated client: its process, the calls on their way, and what it does with names.
//!
//! One call about names at a time, the production lease cache, exactly-once repetition. What it does with files are
//! tasks beside that: see `program.rs`.

use crate::bytes::ProcessId;
use crate::process::{Io, Process, Ticket};
use crate::program::{answer_recalls, use_file};
use crate::random::Random;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use weft_client_core::{Cache, DirectoryChange};
use weft_protocol::message::shard::{DirectoryCursor, RenameMode, ShardAnswer, ShardReply, ShardRequest};
use weft_protocol::{FileKind, Grants, InodeNumber, Name, SessionId, ShardId, SlotIndex};

/// Names that clients fight over.
const NAMES: u64 = 6;
/// Directories that a client remembers.
const DIRECTORIES_MAX: usize = 12;
/// Slots: of the calls about names, of programs that use files, of the thread that answers recalls.
pub const NAMES_SLOT: SlotIndex = SlotIndex(0);
const PROGRAM_SLOTS: std::ops::RangeInclusive<u16> = 1..=2;
const RECALL_SLOT: SlotIndex = SlotIndex(3);

/// A call on its way.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: Ticket,
    pub session: SessionId,
    pub shard: ShardId,
    pub slot: SlotIndex,
    pub sequence: u32,
    pub request: ShardRequest,
    /// When it was sent first: the term of its answer's leases counts from then.
    pub sent_ms: u64,
    /// Whether it was sent again: the answer may be of the first time, and older than it looks.
    pub resent: bool,
}

/// What a client does next.
pub enum Chosen {
    Ask(ShardRequest),
    /// A program opens this name.
    Use {
        parent: InodeNumber,
        name: Name,
    },
}

/// A future that is polled whenever something came in.
struct Task {
    slot: SlotIndex,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// A client.
pub struct Client {
    pub process: Rc<Process>,
    pub calls: BTreeMap<Ticket, Call>,
    sequences: BTreeMap<SlotIndex, u32>,
    tasks: Vec<Task>,
    pub paused_until_ms: u64,
    /// Until then no recall reaches it.
    pub deaf_until_ms: u64,
    directories: Vec<InodeNumber>,
}

impl Client {
    pub fn new(process: Process) -> Self {
        let process = Rc::new(process);
        let recalls = answer_recalls(Io { process: Rc::clone(&process), slot: RECALL_SLOT });
        Self {
            process,
            calls: BTreeMap::new(),
            sequences: BTreeMap::new(),
            tasks: vec![Task { slot: RECALL_SLOT, future: Box::pin(recalls) }],
            paused_until_ms: 0,
            deaf_until_ms: 0,
            directories: vec![InodeNumber::ROOT],
        }
    }

    pub fn session(&self) -> SessionId {
        self.process.session.get()
    }

    pub fn is_process(&self, id: ProcessId) -> bool {
        self.process.id == id
    }

    /// Whether a call about names is on its way.
    pub fn is_asking(&self) -> bool {
        self.calls.values().any(|call| call.slot == NAMES_SLOT)
    }

    /// Whether a call that may change a name is on its way.
    pub fn is_changing_names(&self) -> bool {
        self.calls.values().any(|call| !call.request.is_read())
    }

    /// Whether a program uses a file.
    pub fn is_using_files(&self) -> bool {
        self.tasks.len() > 1
    }

    /// The next sequence of a slot.
    pub fn sequence(&mut self, slot: SlotIndex) -> u32 {
        let sequence = self.sequences.entry(slot).or_default();
        *sequence += 1;
        *sequence
    }

    /// Starts a program, if there is room for one more.
    pub fn start(&mut self, parent: InodeNumber, name: Name) {
        let free = PROGRAM_SLOTS.map(SlotIndex).find(|slot| self.tasks.iter().all(|task| task.slot != *slot));
        if let Some(slot) = free {
            let io = Io { process: Rc::clone(&self.process), slot };
            self.tasks.push(Task { slot, future: Box::pin(use_file(io, parent, name)) });
        }
    }

    /// Polls the tasks until none gets further.
    pub fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let changes = self.process.changes.get();
            self.tasks.retain_mut(|task| task.future.as_mut().poll(&mut context).is_pending());
            if self.process.changes.get() == changes {
                return;
            }
        }
    }

    fn directory(&self, random: &mut Random) -> InodeNumber {
        let index = random.below(self.directories.len() as u64);
        self.directories[usize::try_from(index).unwrap_or(0)]
    }

    /// What to do next.
    pub fn choose(&mut self, random: &mut Random) -> Chosen {
        let name = |random: &mut Random| {
            Name::new(format!("n{}", random.below(NAMES)).as_bytes()).expect("a letter and a digit make a name")
        };
        let (inode, wanted) = (self.directory(random), name(random));
        Chosen::Ask(match random.below(24) {
            0..=5 => ShardRequest::Lookup { parent: inode, name: wanted },
            6 | 7 => ShardRequest::GetAttributes { inode },
            8..=15 => {
                let parent = if random.one_in(4) { inode } else { InodeNumber::ROOT };
                return Chosen::Use { parent, name: wanted };
            }
            16 | 17 => {
                let home = if random.one_in(4) { None } else { Some(self.process.home) };
                ShardRequest::MakeDirectory { parent: inode, name: wanted, mode: 0o755, home }
            }
            18 | 19 => ShardRequest::Unlink { parent: inode, name: wanted },
            20 => ShardRequest::RemoveDirectory { parent: inode, name: wanted },
            21 => {
                let new_parent = if random.one_in(2) { inode } else { self.directory(random) };
                let (new_name, mode) = (name(random), RenameMode::Replace);
                if new_parent.shard() == inode.shard() {
                    ShardRequest::Rename { parent: inode, name: wanted, new_parent, new_name, mode }
                } else {
                    ShardRequest::Lookup { parent: new_parent, name: new_name }
                }
            }
            22 => ShardRequest::ReadDirectory {
                inode,
                cursor: DirectoryCursor::default(),
                entries_max: 100,
                with_attributes: random.one_in(2),
            },
            _ => match self.process.take_closed() {
                Some(leases) => ShardRequest::Release { leases },
                None => ShardRequest::GetAttributes { inode },
            },
        })
    }

    /// Takes an answer in, as the client library does.
    pub fn learn(&mut self, call: &Call, reply: &ShardReply, now_ms: u64) {
        let process = Rc::clone(&self.process);
        let mut cache = process.cache.borrow_mut();
        cache.renewed(call.shard, call.sent_ms, now_ms);
        let Ok(answer) = &reply.result else { return };
        let stamp = reply.stamp;
        if let (true, ShardRequest::MakeDirectory { parent, name, .. }) = (call.resent, &call.request) {
            cache.directory_changed(*parent, stamp);
            cache.forget_name(*parent, name, stamp);
            return;
        }
        match (&call.request, answer) {
            (ShardRequest::Lookup { parent, name }, ShardAnswer::Entry { attributes, grants }) => {
                self.learn_name(&mut cache, *parent, name, (attributes.inode, attributes.kind), *grants, stamp);
                cache.learn_attributes(attributes, *grants, stamp);
            }
            (ShardRequest::Lookup { parent, name }, ShardAnswer::RemoteDirectory { inode, grants }) => {
                self.learn_name(&mut cache, *parent, name, (*inode, FileKind::Directory), *grants, stamp);
            }
            (ShardRequest::Lookup { parent, name }, ShardAnswer::Absent { grants }) => {
                cache.learn_name(*parent, name, None, *grants, stamp);
            }
            (ShardRequest::GetAttributes { .. }, ShardAnswer::Entry { attributes, grants }) => {
                cache.learn_attributes(attributes, *grants, stamp);
            }
            (ShardRequest::MakeDirectory { parent, name, .. }, ShardAnswer::Entry { attributes, grants }) => {
                let change = DirectoryChange { entries: 1, directories: 1, time: attributes.ctime };
                cache.directory_became(*parent, change, stamp);
                if grants.contains(Grants::DIRECTORY) {
                    cache.learn_complete(attributes.inode, stamp);
                }
                self.learn_name(&mut cache, *parent, name, (attributes.inode, attributes.kind), *grants, stamp);
                cache.learn_attributes(attributes, *grants, stamp);
            }
            (
                ShardRequest::Unlink { parent, name } | ShardRequest::RemoveDirectory { parent, name },
                ShardAnswer::Removed { time, inode, links },
            ) => {
                process.name_gone(*inode, *links);
                cache.forget_attributes(*inode, stamp);
                if call.resent {
                    cache.directory_changed(*parent, stamp);
                    cache.forget_name(*parent, name, stamp);
                    return;
                }
                let directories = -i32::from(matches!(call.request, ShardRequest::RemoveDirectory { .. }));
                let change = DirectoryChange { entries: -1, directories, time: *time };
                cache.directory_became(*parent, change, stamp);
                cache.name_removed(*parent, name, stamp);
            }
            (
                ShardRequest::Rename { parent, name, new_parent, new_name, .. },
                ShardAnswer::Renamed { inode, replaced },
            ) => {
                for directory in [*parent, *new_parent] {
                    cache.directory_changed(directory, stamp);
                }
                cache.forget_name(*parent, name, stamp);
                cache.forget_name(*new_parent, new_name, stamp);
                cache.forget_attributes(*inode, stamp);
                if let Some((replaced, links)) = replaced {
                    process.name_gone(*replaced, *links);
                    cache.forget_attributes(*replaced, stamp);
                }
            }
            (ShardRequest::ReadDirectory { inode, cursor, .. }, ShardAnswer::Page(page)) => {
                cache.learn_page(*inode, cursor, page, stamp);
            }
            _ => {}
        }
    }

    fn learn_name(
        &mut self,
        cache: &mut Cache,
        parent: InodeNumber,
        name: &Name,
        target: (InodeNumber, FileKind),
        grants: Grants,
        stamp: u64,
    ) {
        cache.learn_name(parent, name, Some(target), grants, stamp);
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
