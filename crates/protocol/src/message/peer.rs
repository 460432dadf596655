//! What one shard asks of another: the steps of operations that touch several shards (docs/decisions, "Operations over
//! several shards").
//!
//! The asking shard, the *coordinator*, has recorded an *intent*. Each step carries the intent's number and may be
//! repeated. `Lock` comes first, to all shards at once, or to one after the other in ascending order; then either
//! `Carry` or `Undo`, to all at once. A new directory's inode needs no lock: `MakeDirectoryInode`, then `Forget` or
//! `Undo`.

use crate::attributes::{Attributes, FileKind};
use crate::cookie::Cookie;
use crate::error::Error;
use crate::ids::{InodeNumber, MapEpoch, SessionId, ShardId};
use crate::layout::Inherited;
use crate::name::Name;
use crate::parts::Parts;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Names an intent: the shard that recorded it, and its number there (never used again).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct IntentId {
    pub shard: ShardId,
    pub number: u64,
}

/// A step, from the shard in `intent` to the shard `to`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerCall {
    pub to: ShardId,
    pub epoch: MapEpoch,
    pub intent: IntentId,
    pub step: PeerStep,
}

/// The steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerStep {
    /// Make the inode of a directory whose dentry will stand at the asking shard. Answer: `Made`.
    MakeDirectoryInode { parent: InodeNumber, mode: u16, uid: u32, gid: u32, time: Timestamp, inherited: Inherited },
    /// The asking shard has finished: forget the intent. Answer: `Forgotten`.
    Forget,
    /// The asking shard has given up: take back an inode that was made, release all locks, and forget the intent.
    /// Answer: `Forgotten`.
    Undo,
    /// Recall what sessions other than this one hold on these names and inodes, and lock them all at once. Answer:
    /// `Locked`. Until `Carry` or `Undo` nothing is told of them. While another intent has locked one of them: wait, or
    /// unless `waits`, answer `Blocked`. `round`: the answer repeats it.
    Lock { session: SessionId, round: u32, waits: bool, locks: Vec<Lock> },
    /// All shards have locked: make these changes, release the locks and forget the intent. Answer: `Carried`.
    Carry { changes: Vec<NameChange> },
    /// From a shard that has locked something for the intent `of` and has heard nothing of it for a while, to the
    /// coordinator. Answer: `Open`, or `Forgotten`: it was given up, and its locks are to be released.
    AskOutcome { of: IntentId },
    /// Dentries of a part that was made by `MakeDirectoryInode`, and what it is a part of. Answer: `Filled`.
    FillPart { part: InodeNumber, parts: Parts, dentries: Vec<MovedDentry> },
    /// What this directory is in, as far as the shard knows. Asked with `Lock::Tree` held. Answer: `Above`.
    Ancestors { of: InodeNumber },
}

/// A dentry as it is stored: section "Dentry" of `docs/formats/metadata-keys.md`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedDentry {
    pub cookie: Cookie,
    #[serde(with = "serde_bytes")]
    pub record: Vec<u8>,
}

/// What becomes of the inode that a lock is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// It keeps its names, gets one more, or has one of them moved.
    Stays,
    /// It loses a name: a directory goes, a file perhaps. Or a directory with parts is changed as a whole.
    Loses,
}

/// What an intent locks at a shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Lock {
    /// A name, there or not, and the inode that it names if the shard serves that too.
    Name {
        directory: InodeNumber,
        name: Name,
        fate: Fate,
    },
    Inode {
        inode: InodeNumber,
        fate: Fate,
    },
    /// Which directories are in which: over several shards, no other intent gives a directory another parent. At the
    /// root shard.
    Tree,
}

/// What a locked name is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedName {
    /// Of its directory.
    pub directory: Attributes,
    pub entry: Option<(InodeNumber, FileKind)>,
    /// Of the inode that it names, if it is served here.
    pub attributes: Option<Attributes>,
}

/// A change of what is locked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameChange {
    /// From now on the name means this inode. `None`: it is gone.
    Set { directory: InodeNumber, name: Name, entry: Option<(InodeNumber, FileKind)> },
    /// The inode has one name more, and this change time unless it has a later one.
    Gain { inode: InodeNumber, time: Timestamp },
    /// The inode has one name less.
    Lose { inode: InodeNumber },
    /// A name of the inode has moved to this directory.
    Move { inode: InodeNumber, directory: InodeNumber },
    /// A directory, or a part of one, has these attributes from now on.
    Become { inode: InodeNumber, attributes: Box<PartAttributes> },
}

/// What all parts of a directory have of its attributes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartAttributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub inherited: Inherited,
    pub atime: Timestamp,
    /// `None`: it stays.
    pub mtime: Option<Timestamp>,
    /// Unless it has a later one.
    pub ctime: Timestamp,
}

/// Answer to a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerReply {
    pub intent: IntentId,
    pub result: Result<PeerAnswer, Error>,
}

/// What a step answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerAnswer {
    Made(Attributes),
    /// By this shard.
    Forgotten {
        shard: ShardId,
    },
    /// What was locked, in the order of the step; `None`: an inode that is gone. `stamp`: the shard's, later than all
    /// that it has told of what is locked.
    Locked {
        shard: ShardId,
        round: u32,
        stamp: u64,
        names: Vec<LockedName>,
        inodes: Vec<Option<Attributes>>,
    },
    /// Nothing was locked: another intent has a part of it.
    Blocked {
        shard: ShardId,
        round: u32,
    },
    /// The changes are made.
    Carried {
        shard: ShardId,
    },
    /// The intent is not over. Also to a step that waits and was sent again, whose reply goes to the later sending.
    Open,
    /// Up to the dentry with this cookie.
    Filled {
        shard: ShardId,
        last: Option<Cookie>,
    },
    /// The directory that was asked about and those above it at this shard, from below. `next`: where it goes on;
    /// `None`: at the root.
    Above {
        directories: Vec<InodeNumber>,
        next: Option<InodeNumber>,
    },
}
