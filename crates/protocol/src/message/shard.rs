//! What a client asks of a shard.
//!
//! A call that changes something is made exactly once: session, slot and sequence name it, and the shard keeps the last
//! reply of each slot. A client that got no reply sends the same call again, with the same sequence. If the shard has
//! ended the session meanwhile, the client makes the call in its next session, and names those that it repeats.

use crate::attributes::{AttributeChanges, Attributes, FileKind};
use crate::below::{BelowNote, BelowPage};
use crate::capability::Capability;
use crate::cookie::Cookie;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::ids::{InodeNumber, MapEpoch, NodeId, NodeIdentity, ObjectId, SessionId, ShardId, SlotIndex};
use crate::layout::{InheritedChange, Layout, Plan};
use crate::lease::{Grants, LeaseKey};
use crate::lock::{HeldLock, LockOwner, LockRange, OwnerLocks, RangeLock};
use crate::name::Name;
use crate::split::{Pattern, PublishedPart, SplitPart};
use crate::time::Timestamp;
use crate::xattr::{Xattr, XattrExpectation, XattrName, XattrValue};
use serde::{Deserialize, Serialize};

/// A request with all that a shard needs to judge and to repeat it. The session is that of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardCall {
    pub shard: ShardId,
    /// Epoch of the caller's map. Another one than the node's is answered with [`Error::StaleMap`].
    pub epoch: MapEpoch,
    /// The node whose slots number the call: that to which it was sent first. A call that is sent again after its shard
    /// has moved keeps it.
    pub slots_of: NodeId,
    /// One call at a time is outstanding in a slot.
    pub slot: SlotIndex,
    /// Grows by one with each new call in the slot (over all shards); the same again means the same call.
    pub sequence: u32,
    /// On whose behalf, when the connection's key may speak for others; `None`: for the key's own user.
    pub credentials: Option<Credentials>,
    pub request: ShardRequest,
    /// The same change as this client has sent it in sessions that the shard has ended: if the shard has made it
    /// for one of these, it answers with that reply. At most [`crate::limits::REPEATED_CALLS_MAX`].
    pub repeats: Vec<Origin>,
}

/// Names a change: who asked, in which slot, as which call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub session: SessionId,
    pub slot: Slot,
    /// Grows with each new call in the slot.
    pub sequence: u32,
}

/// A slot of a session. A client numbers its slots for each node by itself; a shard that has moved knows those of the
/// nodes where it was, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Slot {
    pub of: NodeId,
    pub index: SlotIndex,
}

impl Slot {
    /// All slots that a session can have.
    pub const ALL: std::ops::RangeInclusive<Self> =
        Self { of: NodeId(0), index: SlotIndex(0) }..=Self { of: NodeId(u16::MAX), index: SlotIndex(u16::MAX) };
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
    /// To run it: needs permission to execute instead of to read, and the handle reads.
    Execute,
}

impl Access {
    /// Whether the handle may read.
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether the handle may write.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }
}

/// How to make a file that an open does not find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CreateFile {
    /// Permission bits, the caller's umask already applied.
    pub mode: u16,
    /// Fail with [`Error::Exists`] when the name is there (O_EXCL).
    pub exclusive: bool,
    /// Layout of the file; `None`: what the directory hands down.
    pub plan: Option<Plan>,
}

/// Objects for a file that an open makes for a group, so that no call has to give it some. The storage servers make
/// them when they are used first. The shard takes them if the file is made, with this layout, for the group, and the
/// caller's session has leased all of their identifiers; otherwise nobody uses them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirstObjects {
    pub plan: Plan,
    /// As many as the plan says, or fewer.
    pub objects: Vec<LeasedObject>,
}

/// An object's identifier, with the right by which it was leased.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeasedObject {
    pub object: ObjectId,
    pub capability: Capability,
}

/// Options of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenFlags {
    pub access: Access,
    /// Cut to size 0.
    pub truncate: bool,
    /// Take no data lease: each read and write goes to the storage server (O_DIRECT).
    pub direct: bool,
    pub page_cache: PageCache,
    /// Open the file for a group instead of the session, if it is a file for one.
    pub group: Option<ForGroup>,
}

/// A wish to have a file opened for a group by the call that opens it. The shard grants it ([`Grants::FOR_GROUP`]) as
/// [`ShardRequest::OpenGroup`] would, and the session gets no lease on the contents. It opens the file for the session
/// instead, as if there were no wish, if the layout is another one; if the file is truncated, or has no objects yet; if
/// it is opened for writing and has set-id bits, which go before a group writes; and where `OpenGroup` would answer
/// [`Error::Invalid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForGroup {
    pub group: SessionId,
    pub layouts: GroupLayouts,
}

/// Which files an open is to open for a group, by their layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GroupLayouts {
    All,
    Split,
    /// Whole and striped ones.
    Unsplit,
}

impl GroupLayouts {
    /// Returns true if a file of this layout is to be opened for the group. Without objects it is not, unless it is
    /// split: there is nothing that members could have rights to.
    pub fn include(self, layout: &Layout) -> bool {
        match (self, layout.epoch()) {
            (Self::All | Self::Split, Some(_)) => true,
            (Self::All | Self::Unsplit, None) => layout.object().is_some(),
            (Self::Split, None) | (Self::Unsplit, Some(_)) => false,
        }
    }
}

/// Whether a kernel above the client may keep pages of a file that it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PageCache {
    /// It keeps none.
    #[default]
    None,
    /// It keeps some unless the file has an object on this machine, which it then reads and writes itself.
    ExceptAt(NodeIdentity),
    /// It may keep some.
    All,
}

impl PageCache {
    /// Returns true if pages are kept of a file whose object is on this machine; `None`: it has no object.
    pub fn keeps(self, object_at: Option<NodeIdentity>) -> bool {
        match self {
            Self::None => false,
            Self::ExceptAt(machine) => object_at != Some(machine),
            Self::All => true,
        }
    }
}

/// What `rename` does when the target is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail with [`Error::Exists`] (RENAME_NOREPLACE).
    NoReplace,
    /// Exchange the two (RENAME_EXCHANGE).
    Exchange,
}

/// A request to a shard. *Reads* may be repeated at will; *changes* go by slot and sequence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShardRequest {
    /// Read. Answer: `Entry`, `Remote` or `Absent`.
    Lookup { parent: InodeNumber, name: Name },
    /// Read. Answer: `Entry`.
    GetAttributes { inode: InodeNumber },
    /// Change. Answer: `Entry`. A change of size cuts or extends the object first.
    SetAttributes { inode: InodeNumber, changes: AttributeChanges },
    /// Change. Opens the name, or makes it when `create` says so. Answer: `Opened`, or `Absent` (not there, no
    /// `create`), `Entry` (it is a directory or a symbolic link: nothing was opened), `Remote`.
    OpenAt {
        parent: InodeNumber,
        name: Name,
        flags: OpenFlags,
        create: Option<CreateFile>,
        /// What a file that is made for a group gets.
        objects: Option<FirstObjects>,
    },
    /// Change (it may cut, and it takes a lease). Answer: `Opened`.
    Open { inode: InodeNumber, flags: OpenFlags },
    /// Change. The writer reports size, times and, the first time, the object. Sent at fsync, close and recall by a
    /// session that has the file open for writing (else [`Error::BadHandle`]). Answer: `Entry`. Has the file another
    /// object already, nothing is changed, and the answer's layout tells which. From a session that does not hold
    /// `Data` exclusively the size is a lower bound: the shard asks the storage server.
    Commit {
        inode: InodeNumber,
        object: Option<ObjectId>,
        /// Of a file that is to be striped: the further objects.
        others: Vec<ObjectId>,
        size: u64,
        /// When the file was last written, as the client has told its programs under its exclusive lease. `None`: it
        /// has none, and the object decides.
        mtime: Option<Timestamp>,
        /// The object's own modification time, as far as the client has heard of it.
        object_mtime: Timestamp,
        /// Stamp of the latest reply about the file that the size takes into account. It knows nothing of a cut by the
        /// same session since: the shard then asks the storage server.
        known: u64,
        /// Counts the client's reports: one with a higher number that the shard has taken knows more of the file.
        number: u64,
        /// The kernel above the client reads and writes the object directly and caches no pages of the file. The file
        /// had no object when it was opened, so the shard assumed that some would be cached ([`PageCache::ExceptAt`]).
        passed: bool,
    },
    /// Change. The new directory's inode is made on a shard of `home` when that node has one. Answer: `Entry`.
    MakeDirectory { parent: InodeNumber, name: Name, mode: u16, home: Option<NodeId> },
    /// Change. Answer: `Entry`.
    MakeSymlink { parent: InodeNumber, name: Name, target: SymlinkTarget },
    /// Read. Answer: `Target`.
    ReadLink { inode: InodeNumber },
    /// Change. Answer: `Entry`.
    Link { inode: InodeNumber, parent: InodeNumber, name: Name },
    /// Change. A file that some session holds `Data` of, the caller's included, stays until all have given it back.
    /// Answer: `Removed`.
    Unlink { parent: InodeNumber, name: Name },
    /// Change. As many `Unlink`s of names in one directory, in their order: it ends before a name that cannot
    /// be removed, or not without a recall, unless that is the first one. 1 to
    /// [`crate::limits::UNLINK_NAMES_MAX`] names. Answer: `RemovedBatch`.
    UnlinkBatch { parent: InodeNumber, names: Vec<Name> },
    /// Change. Answer: `Removed`.
    RemoveDirectory { parent: InodeNumber, name: Name },
    /// Change. Answer: `Renamed`. `guess`: what the new name may name, as far as the client knows; a right one saves a
    /// round trip where that inode is at a third shard, a wrong one changes nothing.
    Rename {
        parent: InodeNumber,
        name: Name,
        new_parent: InodeNumber,
        new_name: Name,
        mode: RenameMode,
        guess: Option<(InodeNumber, FileKind)>,
    },
    /// Read. Answer: `Page`, of the entries after this cookie ([`Cookie::START`]: of all), in the order of cookies. An
    /// entry that is there during the whole listing comes exactly once, whatever is made or removed meanwhile.
    ReadDirectory { inode: InodeNumber, after: Cookie, entries_max: u32, with_attributes: bool },
    /// Change, safe to repeat. The session gives leases back, each with the stamp of the last reply that granted it as
    /// far as the client knows; one that was granted again since is kept. At most [`crate::limits::RELEASE_KEYS_MAX`].
    /// Answer: `Done`.
    Release { leases: Vec<(LeaseKey, u64)> },
    /// Change, safe to repeat. The client is going. Answer: `Done`.
    EndSession,
    /// Read. Does nothing: the limit of what a call can reach. Answer: `Done`.
    Ping,
    /// Read. The session has the directory open: it gets `Data` of it, `Open`, and a removed directory stays until that
    /// is given back. Answer: `Entry`.
    HoldDirectory { inode: InodeNumber },
    /// Change. Locks all these ranges of a file that the session has open (else [`Error::BadHandle`]), or none; what
    /// the owner holds of them takes the new mode. 1 to [`crate::limits::LOCK_RANGES_MAX`] ranges; of a `flock` owner
    /// the one is [`LockRange::ALL`]. Answer: `Lock`. What is in the way is waited for if `wait` names the wait, with a
    /// number that the session has not used at the shard; else [`Error::WouldBlock`].
    Lock { inode: InodeNumber, owner: LockOwner, pid: u32, locks: Vec<RangeLock>, wait: Option<u64> },
    /// Change. The owner holds nothing of these ranges any more. Its waits go on. Answer: `Done`.
    Unlock { inode: InodeNumber, owner: LockOwner, ranges: Vec<LockRange> },
    /// Change. The session gives up a wait. Answer: `Lock`, `Granted` if the lock had been granted before.
    CancelLock { inode: InodeNumber, wait: u64 },
    /// Read. Whether the owner could lock the range. Answer: `LockTested`.
    TestLock { inode: InodeNumber, owner: LockOwner, lock: RangeLock },
    /// Change. The client has kept the locks of a file itself, under its exclusive lease on the contents, and does so
    /// no more: these are all that the session holds of it. At most [`crate::limits::LOCK_RANGES_MAX`] ranges. Answer:
    /// `Done`.
    TakeLocks { inode: InodeNumber, held: Vec<OwnerLocks> },
    /// Change. Sets an extended attribute. Answer: `Entry`, with the new time of change.
    SetXattr { inode: InodeNumber, name: XattrName, value: XattrValue, expects: XattrExpectation },
    /// Change. Removes an extended attribute. Answer: `Entry`, with the new time of change.
    RemoveXattr { inode: InodeNumber, name: XattrName },
    /// Read. All extended attributes that the caller may know of. Answer: `Xattrs`.
    GetXattrs { inode: InodeNumber },
    /// Change, by the directory's owner. What is made in it from now on begins with this, and what is made in
    /// directories that are made in it. Answer: `Entry`.
    SetInherited { inode: InodeNumber, change: InheritedChange },
    /// Change. The file has these objects from now on (with a plan: as many as it says, or fewer), to which the session
    /// has copied what is not in objects that it keeps. Without objects: an empty file has none from now on, and this
    /// plan; one with bytes refuses it with [`Error::NotEmpty`]. Refused with [`Error::WouldBlock`] if others may have
    /// used the file since the grant with this stamp of an exclusive lease on `Data`, or of a split file, have it open
    /// for writing or have written it since: then those of the objects that are not the file's are removed. Answer:
    /// `Entry`.
    Relocate {
        inode: InodeNumber,
        granted: u64,
        plan: Plan,
        objects: Vec<ObjectId>,
        /// Latest modification time of these objects, which is none of the file's.
        object_mtime: Timestamp,
    },
    /// Change, by the directory's owner. Spreads its names over all shards: see [`crate::Parts`]. Answer: `Entry`.
    Spread { inode: InodeNumber },
    /// Read. Opens a file for a *group*: all sessions that are told of the rights may use these, without asking the
    /// shard. The group has a lease of its own, `Open`, for as long as a session that has joined it lives
    /// ([`crate::message::Message::Renew`]): the caller's, which makes it, and others. [`Error::Invalid`]: `group` is
    /// the number of a session, or of a group that has ended; or the caller has joined
    /// [`crate::limits::GROUPS_PER_SESSION_MAX`] groups. Answer: `Opened`.
    OpenGroup { inode: InodeNumber, access: Access, group: SessionId },
    /// Change. Of a split file: these parts have these bytes now, one after another as if by as many calls, or none of
    /// them. At most [`crate::limits::SPLIT_PUBLISHED_MAX`] parts, each once, and [`crate::limits::SPLIT_PATTERNS_MAX`]
    /// patterns of all. The session has the file open for writing, or has joined `group`, which has; so have the
    /// writers of parts that are not its own (else [`Error::BadHandle`]). Answer: `Entry`, whose layout has a new epoch
    /// for each part; a part without patterns becomes known, so that it is removed with others in which no byte counts,
    /// and the epoch stays.
    Publish {
        inode: InodeNumber,
        group: Option<SessionId>,
        parts: Vec<PublishedPart>,
        /// Of an append: where the file ends. [`Error::WouldBlock`]: it ends elsewhere by now.
        appends_to: Option<u64>,
        range: RangeUse,
    },
    /// Read. Of a split file: the runs with bytes in a range that were published after the epoch `since`, and strided
    /// extents, to a session that has the file open, has joined `group`, which has, or may read it. Answer: `Parts`.
    GetParts {
        inode: InodeNumber,
        group: Option<SessionId>,
        /// The caller knows the range as of this epoch; 0: not at all.
        since: u64,
        /// The range begins here, and ends before `end`.
        start: u64,
        end: u64,
        /// Beyond the range, the answer goes on for about as many runs.
        extra: u32,
        strided: StridedQuestion,
        /// The answer names the parts that the session writes, even without extents in the range.
        own: bool,
    },
    /// Read, by the owner of the file system. What is known of the names of a directory below, after this one. Answer:
    /// `Below`.
    ReadBelow { directory: InodeNumber, after: Option<Name> },
    /// Change, by the owner of the file system. This is below a directory from now on. At most
    /// [`crate::limits::NAMES_BELOW_MAX`] notes. Answer: `Done`.
    NoteBelow { directory: InodeNumber, notes: Vec<BelowNote> },
}

/// What a session that publishes does with its lease on a range of the file ([`LeaseKey::Ranges`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RangeUse {
    /// Gives up what replies up to this stamp have granted. What was written under it is in this publication.
    pub given_up: Option<u64>,
    /// Asks for a range that begins here, and ends before there. Granted as a whole ([`Grants::RANGE`]) or not at all,
    /// and to a session that holds none.
    pub wanted: Option<(u64, u64)>,
}

/// A strided extent of a file, and its part: strided extents have an order.
pub type StridedCursor = (Pattern, ObjectId);

/// A question for strided extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StridedQuestion {
    /// Those that may have bytes in the runs of this pattern: of a range, that is one run.
    pub within: Pattern,
    /// The caller knows them as of this epoch; 0: not at all.
    pub since: u64,
    /// Those after this one; `None`: from the first one on.
    pub after: Option<StridedCursor>,
    /// If the file has no more than these, the answer names those of the whole file.
    pub few: u32,
}

/// What became of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAnswer {
    /// The owner holds it.
    Granted,
    /// It waits; [`crate::message::recall::LockGranted`] ends the wait.
    Queued,
    /// The wait is over, and nothing was locked.
    Cancelled,
}

/// Target of a symbolic link: 1 to 4095 bytes without zero, refused otherwise when applied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SymlinkTarget(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// Answer to a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardReply {
    /// The shard's stamp when it granted what the answer grants: see [`crate::lease`].
    pub stamp: u64,
    pub result: Result<ShardAnswer, Error>,
    /// Of an operation over several shards, the stamp of each of the others when it made its changes: what that shard
    /// has told of them before is untrue.
    pub others: Vec<(ShardId, u64)>,
}

/// What a shard answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShardAnswer {
    Done,
    /// An inode of this shard.
    Entry {
        attributes: Attributes,
        grants: Grants,
    },
    /// The name means an inode of another shard: ask there for its attributes, or open it there.
    Remote {
        inode: InodeNumber,
        kind: FileKind,
        grants: Grants,
    },
    /// The name is not there.
    Absent {
        grants: Grants,
    },
    /// The file is open.
    Opened {
        attributes: Attributes,
        /// Right to the first object; `None` while there is none.
        capability: Option<Capability>,
        /// Of a striped file: the rights to the further objects, in their order.
        others: Vec<Capability>,
        /// Whether this call made the file.
        created: bool,
        grants: Grants,
    },
    /// Target of a symbolic link.
    Target(SymlinkTarget),
    Page(DirectoryPage),
    /// The name is gone. `inode`: what it named; `links`: names that are left of it.
    Removed {
        /// When: the new time of the directory.
        time: Timestamp,
        inode: InodeNumber,
        links: u32,
    },
    /// The first of the names are gone: of each, what it named and the names left of that. At least one.
    RemovedBatch {
        /// When: the new time of the directory.
        time: Timestamp,
        removed: Vec<(InodeNumber, u32)>,
    },
    /// `inode` has the new name.
    Renamed {
        inode: InodeNumber,
        kind: FileKind,
        /// What the new name named before, and the names left of it. `None` after an exchange.
        replaced: Option<(InodeNumber, u32)>,
        /// What the old name names now, after an exchange.
        exchanged: Option<(InodeNumber, FileKind)>,
        /// `ENTRY`: on the new name, and after an exchange on both. Granted even soon after a recall: the kernel of a
        /// mount moves the dentry, with the time for which it may be used, and a lease has to cover it.
        grants: Grants,
    },
    Lock(LockAnswer),
    /// A lock that is in the way, the one that begins first; `None`: none is.
    LockTested(Option<HeldLock>),
    /// The extended attributes of an inode, in the order of their names; those of the namespace `trusted` for user 0
    /// only.
    Xattrs {
        xattrs: Vec<Xattr>,
        /// When a lease on them is granted with this reply: the attributes of the inode. It covers the extended
        /// attributes too.
        attributes: Option<Attributes>,
        grants: Grants,
    },
    /// Extents of a split file, by parts.
    Parts {
        /// The file's epoch.
        epoch: u64,
        /// Size of the file.
        size: u64,
        /// Epoch of the latest cut. If the request's `since` is lower, the extents are all that the range has;
        /// otherwise they come on top of those published until then.
        cut: u64,
        parts: Vec<SplitPart>,
        /// The runs are complete from the beginning of the request's range up to here. Below the range's end: an answer
        /// has a limit, and the caller goes on from here.
        end: u64,
        /// The strided extents are those of the whole file, also where the question was for fewer.
        strided_whole: bool,
        /// After which strided extent to go on; `None`: there are no more.
        strided_next: Option<StridedCursor>,
    },
    /// What is known of a directory below.
    Below(BelowPage),
}

/// One page of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryPage {
    pub entries: Vec<DirectoryEntry>,
    /// After which cookie to go on; `None`: this was the last page.
    pub next: Option<Cookie>,
    /// `DIRECTORY`: see [`Grants::DIRECTORY`]. `ENTRY`: where that cannot be, each name of a page that was asked for
    /// with attributes. `ATTRIBUTES`: of each entry that has attributes; `PERMISSIONS`: of each directory that has.
    pub grants: Grants,
    /// `..` of the directory.
    pub parent: InodeNumber,
}

/// One entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryEntry {
    pub name: Name,
    /// Its position: the same for as long as the name is there.
    pub cookie: Cookie,
    pub inode: InodeNumber,
    pub kind: FileKind,
    /// When they were asked for, the inode is at this shard, and a lease on them could be granted at once (no other
    /// session is writing the file).
    pub attributes: Option<Attributes>,
}

impl ShardRequest {
    /// Whether the call only reads: then it needs no slot, and no reply of it is kept.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            ShardRequest::Lookup { .. }
                | ShardRequest::GetAttributes { .. }
                | ShardRequest::ReadLink { .. }
                | ShardRequest::ReadDirectory { .. }
                | ShardRequest::HoldDirectory { .. }
                | ShardRequest::TestLock { .. }
                | ShardRequest::GetXattrs { .. }
                | ShardRequest::OpenGroup { .. }
                | ShardRequest::GetParts { .. }
                | ShardRequest::ReadBelow { .. }
                | ShardRequest::Ping
        )
    }

    /// Returns true if the call is about locks, which are no part of the namespace.
    pub fn is_about_locks(&self) -> bool {
        matches!(
            self,
            ShardRequest::Lock { .. }
                | ShardRequest::Unlock { .. }
                | ShardRequest::TakeLocks { .. }
                | ShardRequest::CancelLock { .. }
                | ShardRequest::TestLock { .. }
        )
    }

    /// Returns true if the shard keeps the reply, and gives it again to a call that is sent again.
    pub fn is_made_once(&self) -> bool {
        let may_be_repeated = matches!(self, ShardRequest::Release { .. } | ShardRequest::EndSession);
        !(self.is_read() || self.is_about_locks() || may_be_repeated)
    }

    /// Whether carrying it out makes names or attributes untrue that a client may know.
    pub fn changes_what_is_known(&self) -> bool {
        let tells =
            matches!(self, ShardRequest::NoteBelow { .. } | ShardRequest::Release { .. } | ShardRequest::EndSession);
        !self.is_read() && !tells
    }

    /// How the call opens a file, if it does.
    pub fn open_flags(&self) -> Option<OpenFlags> {
        match self {
            ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. } => Some(*flags),
            _ => None,
        }
    }

    /// The inode that the call is about: that of the directory, when it is about a name.
    pub fn target(&self) -> Option<InodeNumber> {
        match self {
            ShardRequest::Lookup { parent: inode, .. }
            | ShardRequest::GetAttributes { inode }
            | ShardRequest::SetAttributes { inode, .. }
            | ShardRequest::OpenAt { parent: inode, .. }
            | ShardRequest::Open { inode, .. }
            | ShardRequest::Commit { inode, .. }
            | ShardRequest::MakeDirectory { parent: inode, .. }
            | ShardRequest::MakeSymlink { parent: inode, .. }
            | ShardRequest::ReadLink { inode }
            | ShardRequest::Link { parent: inode, .. }
            | ShardRequest::Unlink { parent: inode, .. }
            | ShardRequest::UnlinkBatch { parent: inode, .. }
            | ShardRequest::RemoveDirectory { parent: inode, .. }
            | ShardRequest::Rename { parent: inode, .. }
            | ShardRequest::ReadDirectory { inode, .. }
            | ShardRequest::SetXattr { inode, .. }
            | ShardRequest::RemoveXattr { inode, .. }
            | ShardRequest::GetXattrs { inode }
            | ShardRequest::SetInherited { inode, .. }
            | ShardRequest::Relocate { inode, .. }
            | ShardRequest::Spread { inode }
            | ShardRequest::HoldDirectory { inode }
            | ShardRequest::OpenGroup { inode, .. }
            | ShardRequest::Publish { inode, .. }
            | ShardRequest::GetParts { inode, .. }
            | ShardRequest::Lock { inode, .. }
            | ShardRequest::Unlock { inode, .. }
            | ShardRequest::TakeLocks { inode, .. }
            | ShardRequest::CancelLock { inode, .. }
            | ShardRequest::TestLock { inode, .. }
            | ShardRequest::ReadBelow { directory: inode, .. }
            | ShardRequest::NoteBelow { directory: inode, .. } => Some(*inode),
            ShardRequest::Release { .. } | ShardRequest::EndSession | ShardRequest::Ping => None,
        }
    }
}
