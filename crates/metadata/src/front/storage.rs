//! Answers of storage servers.
//!
//! A file has the size and time that its objects give it: each is asked, and the answers are put together.
//!
//! The size of a file whose writer is gone, or of which a storage server has not told a size or the end of a cut, is
//! asked for until its storage servers answer: one that cannot be reached now may have bytes that the shard has not
//! heard of. Until then the size that the shard knows is told to nobody as the file's.
//!
//! Not here: when a server is asked that does not answer (`backlog.rs`).

use super::park::{Wait, Work};
use super::{Effect, Shard};
use crate::back::{Command, Inode, NO_OBJECT_MTIME};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use weft_layout::Stripes;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Error, InodeNumber, Layout, LeaseKey, LeaseMode, NodeId, ObjectId, SessionId, Timestamp};

/// What the storage servers of a file are asked: each about its object.
#[derive(Debug)]
pub struct Questions {
    /// The file, and its first object.
    of: (InodeNumber, ObjectId),
    stripes: Stripes,
    /// Each with the index of its object.
    requests: Vec<(usize, StorageRequest)>,
    /// The others are asked when the first of these has done what it was asked.
    one_first: bool,
    /// See [`Answers::have_made`].
    makes: bool,
}

impl Questions {
    /// Size and time of a file. Objects that are still to come are made.
    pub fn stat(inode: InodeNumber, record: &Inode) -> Self {
        let makes = record.awaits_objects();
        let stat = |object: ObjectId, _| stat_request(inode, object, makes);
        Self { makes, ..Self::about(inode, &record.layout, stat) }
    }

    /// Cut or extend the file to this size, for a session. The object with the last byte comes first: if the others
    /// cannot be cut or extended, nothing is lost of what the file keeps.
    pub fn truncate(inode: InodeNumber, layout: &Layout, size: u64, by: SessionId) -> Self {
        let stripes = Stripes::of(layout);
        let truncate = |object: ObjectId, index| StorageRequest::Truncate {
            inode,
            object,
            size: stripes.object_bytes(index, size),
            by,
        };
        let mut questions = Self { one_first: true, ..Self::about(inode, layout, truncate) };
        let last = size.checked_sub(1).and_then(|last| stripes.pieces(last, 1).next());
        questions.requests.swap(0, last.map_or(0, |last| last.index));
        questions
    }

    fn about(inode: InodeNumber, layout: &Layout, request: impl Fn(ObjectId, usize) -> StorageRequest) -> Self {
        let first = layout.object().expect("a file that is asked about has an object");
        let objects = layout.objects().iter().enumerate();
        let requests = objects.map(|(index, object)| (index, request(*object, index))).collect();
        Self { of: (inode, first), stripes: Stripes::of(layout), requests, one_first: false, makes: false }
    }

    /// The file, and its first object.
    pub fn of(&self) -> (InodeNumber, ObjectId) {
        self.of
    }

    /// Whether they cut the file.
    pub fn cut(&self) -> bool {
        matches!(self.requests.first(), Some((_, StorageRequest::Truncate { .. })))
    }

    /// Takes what is to be asked now, and where the answers are gathered.
    pub fn begin(self) -> (Answers, Vec<(usize, StorageRequest)>) {
        let Self { stripes, mut requests, one_first, makes, .. } = self;
        let missing = requests.len();
        let later = requests.split_off(if one_first { 1 } else { missing });
        let so_far = Ok((0, NO_OBJECT_MTIME));
        (Answers { stripes, missing, so_far, any_done: false, later, makes }, requests)
    }
}

/// Answers to [`Questions`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Answers {
    stripes: Stripes,
    missing: usize,
    /// Of those that have come.
    so_far: Result<(u64, Timestamp), Error>,
    /// A server has done what it was asked.
    any_done: bool,
    /// What is asked when the first one has.
    later: Vec<(usize, StorageRequest)>,
    /// They were asked to make objects that are not there.
    makes: bool,
}

impl Answers {
    /// The size and time of a file all of whose objects are there now, if that was asked for.
    pub fn have_made(&self) -> Option<(u64, Timestamp)> {
        self.all()?.as_ref().ok().filter(|_| self.makes).copied()
    }

    /// Size and time of the file, or why one of its objects has none; `None`: answers are missing.
    pub fn all(&self) -> Option<&Result<(u64, Timestamp), Error>> {
        (self.missing == 0).then_some(&self.so_far)
    }

    /// Whether some servers have done what they were asked, and others have not.
    pub fn are_mixed(&self) -> bool {
        self.any_done && self.so_far.is_err()
    }

    /// Takes an answer. Returns what is to be asked now.
    fn take(&mut self, index: usize, answer: Result<(u64, Timestamp), Error>) -> Vec<(usize, StorageRequest)> {
        self.missing -= 1;
        self.any_done |= answer.is_ok();
        if let Ok(so_far) = &mut self.so_far {
            match answer {
                Ok(answer) => *so_far = together(*so_far, &self.stripes, index, answer),
                Err(error) => self.so_far = Err(error),
            }
        }
        let later = std::mem::take(&mut self.later);
        if self.so_far.is_ok() {
            return later;
        }
        self.missing -= later.len();
        Vec::new()
    }
}

/// Size and time of a file of which one more object was told.
fn together(
    so_far: (u64, Timestamp),
    stripes: &Stripes,
    index: usize,
    (bytes, mtime): (u64, Timestamp),
) -> (u64, Timestamp) {
    (so_far.0.max(stripes.file_end(index, bytes)), so_far.1.max(mtime))
}

/// Who waits for an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorageWait {
    /// Parked work of this number, about the object of this index.
    Work { number: u64, index: usize },
    /// The shard itself: the file's size is not known. `stale`: a cut of the file has ended since.
    Recovery { of: Recovery, stale: bool },
    /// Nobody: these objects are to be removed.
    Removal { objects: Vec<(InodeNumber, ObjectId)> },
    /// Work that waits for an inode to be read from below.
    Below { inode: InodeNumber },
}

/// The search for the size of a file: one object after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Recovery {
    inode: InodeNumber,
    /// The file's first object.
    first: ObjectId,
    /// Of the object that is asked about.
    index: usize,
    /// Size and time, as far as those before it tell.
    found: (u64, Timestamp),
}

impl Recovery {
    /// Of a file with this first object.
    pub fn new(inode: InodeNumber, first: ObjectId) -> Self {
        Self { inode, first, index: 0, found: (0, NO_OBJECT_MTIME) }
    }

    /// The file.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// The same search from its beginning.
    pub fn anew(&self) -> Self {
        Self::new(self.inode, self.first)
    }
}

impl<K: KeyValue> Shard<K> {
    /// A token for a request to a storage server.
    pub(super) fn token_for(&mut self, node: NodeId, wait: StorageWait) -> u64 {
        self.latest_storage_token += 1;
        self.storage_waits.insert(self.latest_storage_token, (node, wait));
        self.latest_storage_token
    }

    /// Asks storage servers, for parked work of this number.
    pub(super) fn ask_storage(&mut self, number: u64, requests: Vec<(usize, StorageRequest)>, out: &mut Vec<Effect>) {
        for (index, request) in requests {
            let node = node_of(&request);
            let token = self.token_for(node, StorageWait::Work { number, index });
            out.push(Effect::Storage { token: Some(token), node, request });
        }
    }

    pub(super) fn storage_answered(&mut self, token: u64, result: Result<StorageAnswer, Error>, out: &mut Vec<Effect>) {
        let Some((node, wait)) = self.storage_waits.remove(&token) else {
            return;
        };
        let is_away = result == Err(Error::Unreachable);
        if !is_away {
            self.send_backlog(node, out);
        }
        if let StorageWait::Below { inode } = wait {
            return self.below_answered((inode, token), result, out);
        }
        let answer = match result {
            Ok(StorageAnswer::Object { size, mtime }) => Ok((size, mtime)),
            Ok(_) => Err(Error::Malformed),
            Err(error) => Err(error),
        };
        match wait {
            StorageWait::Work { number, index } => {
                let waiting = self.parking.get_mut(number).filter(|parked| parked.wait == Wait::Storage);
                if let Some(parked) = waiting
                    && let Work::Call(call) = &mut parked.work
                    && let Some(answers) = &mut call.answers
                {
                    let now = answers.take(index, answer);
                    if answers.all().is_some() {
                        self.ready.push_back(number);
                    }
                    self.ask_storage(number, now, out);
                }
            }
            StorageWait::Recovery { of, stale } if is_away => self.size_unanswered(node, (of, stale), out),
            StorageWait::Recovery { of, stale: true } => self.ask_size(of.anew(), out),
            StorageWait::Recovery { of, .. } => match answer {
                Ok(answer) => self.recovery_goes_on(of, answer, out),
                Err(_) => self.recovered(of, None),
            },
            StorageWait::Removal { objects } if is_away => self.removal_unanswered(node, objects),
            // What the store could not remove it has said in its log.
            StorageWait::Removal { .. } => {}
            StorageWait::Below { .. } => unreachable!("its answers are taken above"),
        }
    }

    /// The objects of the file whose size is being asked for, if it has them still.
    fn layout_of(&self, of: &Recovery) -> Option<Layout> {
        let layout = self.back.inode(of.inode)?.layout;
        (layout.object() == Some(of.first)).then_some(layout)
    }

    /// The object that is asked about next.
    pub(super) fn object_of(&self, of: &Recovery) -> Option<ObjectId> {
        self.layout_of(of).map(|layout| layout.objects()[of.index])
    }

    /// Searches for the size of a file that the shard does not know.
    pub(super) fn ask_size(&mut self, of: Recovery, out: &mut Vec<Effect>) {
        match self.object_of(&of) {
            Some(object) => self.ask_or_put_off(object, of, out),
            // Cut to nothing meanwhile: the objects may be no longer the file's.
            None => self.recovered(of, None),
        }
    }

    fn recovery_goes_on(&mut self, of: Recovery, answer: (u64, Timestamp), out: &mut Vec<Effect>) {
        let Some(layout) = self.layout_of(&of) else { return self.recovered(of, None) };
        let found = together(of.found, &Stripes::of(&layout), of.index, answer);
        let next = of.index + 1;
        if next < layout.objects().len() {
            self.ask_size(Recovery { index: next, found, ..of }, out);
        } else {
            self.recovered(of, Some(found));
        }
    }

    /// A cut of the file has ended: sizes that were asked for before may be from before it.
    pub(super) fn sizes_are_stale(&mut self, inode: InodeNumber) {
        for (_, wait) in self.storage_waits.values_mut() {
            if let StorageWait::Recovery { of, stale } = wait {
                *stale |= of.inode == inode;
            }
        }
        let put_off = self.backlogs.take_searches(inode);
        self.doubted.extend(put_off.iter().map(Recovery::anew));
    }

    /// It is not known how far the objects of a file were cut: they are asked how long it is.
    pub(super) fn doubt_cut(&mut self, inode: InodeNumber, first: ObjectId) {
        self.apply(&Command::ForgetSize { inode });
        self.doubt_size(inode, first);
    }

    /// The shard's size of a file may be too small: its objects are asked, with the next step's end at first.
    pub(super) fn doubt_size(&mut self, inode: InodeNumber, first: ObjectId) {
        *self.recovering.entry(inode).or_default() += 1;
        self.doubted.push(Recovery::new(inode, first));
    }

    /// Nobody believes in a size that is in doubt, the session included whose cut has failed.
    pub(super) fn recall_size(&mut self, inode: InodeNumber, out: &mut Vec<Effect>) {
        for (key, to) in [(LeaseKey::Data(inode), LeaseMode::Open), (LeaseKey::Attributes(inode), LeaseMode::None)] {
            let holders = self.leases.holders(&key).filter(|holder| holder.mode > to);
            for session in holders.map(|holder| holder.session).collect::<Vec<_>>() {
                self.recall(key, session, to, out);
            }
        }
    }

    /// The search for a file's size has ended.
    pub(super) fn recovered(&mut self, of: Recovery, found: Option<(u64, Timestamp)>) {
        let inode = of.inode;
        if let Some(count) = self.recovering.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.recovering.remove(&inode);
            }
        }
        if let Some((size, object_mtime)) = found {
            self.apply(&Command::Observe { inode, size, object_mtime });
        }
    }
}

/// Asks for size and time of an object. `makes`: it is made if it is not there.
pub(super) fn stat_request(inode: InodeNumber, object: ObjectId, makes: bool) -> StorageRequest {
    if makes { StorageRequest::Make { inode, object } } else { StorageRequest::Stat { inode, object } }
}

/// The storage server that is asked.
fn node_of(request: &StorageRequest) -> NodeId {
    let (_, object) = request.object().expect("questions are about objects");
    object.node()
}
