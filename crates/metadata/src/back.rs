//! The back machine: the namespace over a key-value store.
//!
//! [`Back::apply`] takes the time and a command and changes the store: nothing else changes it, and the same commands
//! make the same bytes, so commands are what a log records and replicas exchange. It knows inodes, dentries,
//! permissions, the last reply of each slot, and the intents of operations over several shards. It knows nothing of
//! leases: whoever calls it has asked first.
//!
//! Invariant: link counts, sizes of directories and `..` agree with the dentries after each command; an inode number is
//! never used again.
//! Not here: leases, sessions, waiting (`front`); cutting and removing objects: the outcome says which, the caller has
//! it done.
//! On a crash: the state is the store's after some prefix of the commands. What is kept beside the store (last replies,
//! intents, the next numbers) has to be recorded with it when a durable store comes.

mod across;
mod attributes;
mod below;
mod create;
mod dentry;
mod image;
mod inode;
mod intent;
mod keys;
mod listing;
mod locks;
mod permission;
mod permit;
mod probe;
mod remove;
mod rename;
mod slots;
pub mod split;
mod spread;
#[cfg(test)]
mod tests;
mod xattrs;

pub use dentry::Dentry;
pub use inode::{Inode, NO_OBJECT_MTIME, SET_GID, SET_UID};
pub use listing::{Listed, Listing};
pub use slots::{LastReply, Origin, Seen, Slot};

use crate::kv::{CopiedStore, KeyValue};
use weft_protocol::message::peer::{IntentId, PeerAnswer, PeerStep};
use weft_protocol::message::shard::{Access, ShardAnswer, ShardRequest};
use weft_protocol::{
    BelowName, BelowStamp, Cookie, Credentials, Error, FileKind, InodeNumber, Name, ObjectId, Result, SessionId,
    ShardId, Timestamp, routing,
};

/// Owner and mode of the directory `/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootDirectory {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// What the front knows and a change depends on: part of the command, so that followers decide the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context {
    /// The inode that loses a name is open somewhere, or may be opened by its number: it stays as an orphan if that was
    /// the last one.
    pub keep: bool,
    /// The caller's session has the file open for writing.
    pub is_writer: bool,
    /// Nobody else has used the file since the caller's session got the lease that it names; for a change of objects.
    pub is_alone: bool,
    /// Size and time of the object, as its storage server tells; for the commit of one of several writers.
    pub actual: Option<(u64, Timestamp)>,
    /// Modification time of the object, as its storage server told just now; for a change of size or times.
    pub object_mtime: Option<Timestamp>,
    /// The object of the file that is cut to nothing was cut in its place, and stays the file's.
    pub cut_in_place: bool,
    /// A session has the file open, or a group; for a cut.
    pub is_open: bool,
    /// The open repeats one that has made the file: it goes to who made it, whatever the file's mode.
    pub made: bool,
}

/// Everything that changes a shard's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A client's change, inside the shard.
    Change { origin: Origin, credentials: Credentials, request: ShardRequest, context: Context },
    /// A client's removal of names in one directory, up to one that is refused. Of each whether its inode stays, as in
    /// [`Context::keep`].
    UnlinkBatch { origin: Origin, credentials: Credentials, parent: InodeNumber, names: Vec<(Name, bool)> },
    /// A client's mkdir of a directory whose inode is to be at the shard `to`.
    BeginMake { origin: Origin, credentials: Credentials, request: ShardRequest, to: ShardId },
    /// The directory gets parts at these shards: see `spread.rs`. `origin`: the client's call that asks for it, if one
    /// does.
    BeginSpread { origin: Option<Origin>, credentials: Credentials, directory: InodeNumber, shards: Vec<ShardId> },
    /// A client's change that needs other shards, too.
    BeginAcross { origin: Origin, credentials: Credentials, request: ShardRequest },
    /// A shard's answer to the present step of an intent.
    AnswerIntent { number: u64, answer: Result<PeerAnswer> },
    /// A step of another shard's intent. `keep`: as in [`Context`].
    PeerStep { intent: IntentId, step: PeerStep, keep: bool },
    /// What the storage server says of a file of which writers have not reported.
    Observe { inode: InodeNumber, size: u64, object_mtime: Timestamp },
    /// Some objects of a file were cut, and others were not: how long it is, is told by the next `Observe`.
    ForgetSize { inode: InodeNumber },
    /// Nobody has this file open any more: parts without extents go.
    DropEmptyParts { inode: InodeNumber },
    /// Nobody has this orphan open, or may open it, any more.
    Reap { inode: InodeNumber },
    /// A directory gets the names that were read from below.
    ImportNames { directory: InodeNumber, names: Vec<BelowName> },
    /// A file gets the object to which its contents were copied from below.
    FillFile { inode: InodeNumber, object: ObjectId, stamp: BelowStamp, object_mtime: Timestamp },
    /// A client's change that repeats `of`, which was made in a session that has ended since.
    Repeat { origin: Origin, of: Origin },
    /// The session was ended: its client may repeat its last changes in the next one.
    EndSession { session: SessionId },
    /// The session will not ask again: its last replies are not needed.
    ForgetSession { session: SessionId },
}

/// What a command answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nobody waits for one.
    None,
    /// To the client. Without grants and capability.
    Client(Result<ShardAnswer>),
    /// An intent with this number was recorded (in place of the present one, if it is about one): ask what
    /// [`Back::question`] says.
    Intent(u64),
    /// The intent has got further: ask what [`Back::question`] says, if anything.
    Next,
    /// To the other shard.
    Peer(Result<PeerAnswer>),
}

/// What a command did beside its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Aftermath {
    /// These objects are not needed any more.
    pub removed: Vec<(InodeNumber, ObjectId)>,
    /// This inode is gone.
    pub gone: Option<InodeNumber>,
    /// This inode has lost its last name, and stays until it is reaped.
    pub orphaned: Option<InodeNumber>,
}

/// Result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub answer: Answer,
    pub aftermath: Aftermath,
    /// Of each further name that the command has removed.
    pub more: Vec<Aftermath>,
}

/// See the module.
pub struct Back<K> {
    store: CopiedStore<K>,
    shard: ShardId,
    next_sequence: u64,
    next_intent: u64,
    inodes: u64,
    dentries: u64,
    /// The cookie that a name has without collisions.
    cookie_of: fn(&Name) -> Cookie,
    /// Dentries and tombstones that are followed by others of a collision run.
    continued: u64,
    /// The directory that was put last, as it is in the store: most changes are in the directory of the one before.
    latest_directory: Option<(InodeNumber, Inode)>,
    /// Inodes from below of which names or contents were not read.
    unread: u64,
    replies: slots::Replies,
    intents: intent::Intents,
    locks: locks::Locks,
}

impl<K: KeyValue> Back<K> {
    /// A new shard over an empty store. `root`: of the root shard, which gets `/`.
    pub fn new(shard: ShardId, store: K, time: Timestamp, root: RootDirectory) -> Self {
        let mut back = Self {
            store: CopiedStore::new(store),
            shard,
            // Sequence 1 is the root's, at every shard, so that it is never anything else.
            next_sequence: 2,
            next_intent: 1,
            inodes: 0,
            dentries: 0,
            cookie_of: Cookie::of,
            continued: 0,
            latest_directory: None,
            unread: 0,
            replies: slots::Replies::default(),
            intents: intent::Intents::default(),
            locks: locks::Locks::default(),
        };
        if shard == ShardId::ROOT {
            let owner = create::NewOwner { uid: root.uid, gid: root.gid, mode: root.mode & inode::MODE_BITS };
            let inode = Inode::new(FileKind::Directory, &owner, InodeNumber::ROOT, time);
            back.put_inode(InodeNumber::ROOT, &inode);
            back.inodes = 1;
        }
        back
    }

    /// The shard's number.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Whether this shard serves the inode.
    pub fn is_here(&self, inode: InodeNumber) -> bool {
        routing::of_inode(inode) == self.shard
    }

    /// Whether this shard serves the name.
    pub(crate) fn serves(&self, directory: InodeNumber, name: &Name) -> bool {
        routing::of_name(directory, name) == self.shard
    }

    /// Inodes, orphans included.
    pub fn inodes(&self) -> u64 {
        self.inodes
    }

    /// Names.
    pub fn dentries(&self) -> u64 {
        self.dentries
    }

    /// Bytes of the store.
    pub fn store_bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Applies a command. Costs a few searches in the store.
    pub fn apply(&mut self, time: Timestamp, command: &Command) -> Outcome {
        let mut aftermath = Aftermath::default();
        let mut more = Vec::new();
        let answer = match command {
            Command::Change { origin, credentials, request, context } => {
                let result = match request {
                    ShardRequest::Publish { inode, parts, appends_to, .. } => {
                        self.publish((time, credentials), *inode, (parts, *appends_to), context)
                    }
                    request => self.change(time, credentials, request, context, &mut aftermath),
                };
                self.keep_reply((*origin, credentials.uid), &result, access_of(request));
                Answer::Client(result)
            }
            Command::UnlinkBatch { origin, credentials, parent, names } => {
                let (result, aftermaths) = self.unlink_batch(time, credentials, *parent, names);
                self.keep_reply((*origin, credentials.uid), &result, None);
                more = aftermaths;
                Answer::Client(result)
            }
            Command::BeginAcross { origin, credentials, request } => {
                Answer::Intent(self.begin_across(*origin, credentials, request))
            }
            Command::BeginSpread { origin, credentials, directory, shards } => {
                Answer::Intent(self.begin_spread(*origin, credentials, *directory, shards))
            }
            Command::BeginMake { origin, credentials, request, to } => {
                match self.begin_make(time, *origin, credentials, request, *to) {
                    Ok(number) => Answer::Intent(number),
                    Err(error) => {
                        let result = Err(error);
                        self.keep_reply((*origin, credentials.uid), &result, None);
                        Answer::Client(result)
                    }
                }
            }
            Command::AnswerIntent { number, answer } => self.answer_intent(time, *number, answer),
            Command::PeerStep { intent, step, keep } => {
                Answer::Peer(self.peer_step(time, (*intent, step), *keep, &mut aftermath))
            }
            Command::Observe { inode, size, object_mtime } => {
                self.observe(*inode, *size, *object_mtime);
                Answer::None
            }
            Command::ForgetSize { inode } => {
                self.forget_size(*inode);
                Answer::None
            }
            Command::DropEmptyParts { inode } => {
                self.drop_empty_parts(*inode, &mut aftermath);
                Answer::None
            }
            Command::Reap { inode } => {
                self.reap(*inode, &mut aftermath);
                Answer::None
            }
            Command::ImportNames { directory, names } => {
                self.import_names(*directory, names);
                Answer::None
            }
            Command::FillFile { inode, object, stamp, object_mtime } => {
                if !self.fill_file(*inode, *object, stamp, *object_mtime) {
                    aftermath.removed.push((*inode, *object));
                }
                Answer::None
            }
            Command::Repeat { origin, of } => Answer::Client(self.repeat(*origin, *of)),
            Command::EndSession { session } => {
                self.end_session(*session);
                Answer::None
            }
            Command::ForgetSession { session } => {
                self.forget_session(*session);
                Answer::None
            }
        };
        Outcome { answer, aftermath, more }
    }

    fn change(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        request: &ShardRequest,
        context: &Context,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        match request {
            ShardRequest::SetAttributes { inode, changes } => {
                self.set_attributes(time, caller, *inode, changes, context, aftermath)
            }
            ShardRequest::OpenAt { parent, name, flags, create, objects } => {
                let how = (*flags, *create, objects.as_ref());
                self.open_at(time, caller, (*parent, name), how, context, aftermath)
            }
            ShardRequest::Open { inode, flags } => self.open(time, caller, *inode, *flags, context, aftermath),
            ShardRequest::Commit { inode, object, others, size, mtime, object_mtime, .. } => {
                let (object, size, mtime, object_mtime) = (*object, *size, *mtime, *object_mtime);
                let report = attributes::Report { object, others, size, mtime, object_mtime };
                self.commit(caller, *inode, &report, context, aftermath)
            }
            ShardRequest::MakeDirectory { parent, name, mode, .. } => {
                self.make_directory(time, caller, *parent, name, *mode)
            }
            ShardRequest::MakeSymlink { parent, name, target } => {
                self.make_symlink(time, caller, *parent, name, target)
            }
            ShardRequest::Link { inode, parent, name } => self.link(time, caller, *inode, *parent, name),
            ShardRequest::Unlink { parent, name } => {
                self.unlink(time, caller, (*parent, name), context.keep, aftermath)
            }
            ShardRequest::RemoveDirectory { parent, name } => {
                self.remove_directory(time, caller, (*parent, name), context.keep, aftermath)
            }
            ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } => {
                let way = rename::Move { parent: *parent, name, new_parent: *new_parent, new_name };
                self.rename(time, caller, way, *mode, context.keep, aftermath)
            }
            ShardRequest::SetXattr { inode, name, value, expects } => {
                self.set_xattr(time, caller, *inode, (name, value), *expects)
            }
            ShardRequest::RemoveXattr { inode, name } => self.remove_xattr(time, caller, *inode, name),
            ShardRequest::SetInherited { inode, change } => self.set_inherited(time, caller, *inode, *change),
            ShardRequest::Relocate { inode, plan, objects, object_mtime, .. } => {
                self.relocate(*inode, (*plan, objects), *object_mtime, context.is_alone, aftermath)
            }
            ShardRequest::NoteBelow { directory, notes } => self.note_below(*directory, notes),
            ShardRequest::Lookup { .. }
            | ShardRequest::ReadBelow { .. }
            | ShardRequest::GetXattrs { .. }
            | ShardRequest::GetAttributes { .. }
            | ShardRequest::ReadLink { .. }
            | ShardRequest::ReadDirectory { .. }
            | ShardRequest::HoldDirectory { .. }
            | ShardRequest::OpenGroup { .. }
            | ShardRequest::Publish { .. }
            | ShardRequest::GetParts { .. }
            | ShardRequest::UnlinkBatch { .. }
            | ShardRequest::Lock { .. }
            | ShardRequest::Unlock { .. }
            | ShardRequest::TakeLocks { .. }
            | ShardRequest::CancelLock { .. }
            | ShardRequest::TestLock { .. }
            | ShardRequest::Spread { .. }
            | ShardRequest::Release { .. }
            | ShardRequest::EndSession
            | ShardRequest::Ping => Err(Error::Invalid),
        }
    }
}

fn access_of(request: &ShardRequest) -> Option<Access> {
    match request {
        ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. } => Some(flags.access),
        _ => None,
    }
}
