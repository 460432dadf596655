//! One value of every message, and of every variant inside them.

use weft_protocol::capability::CapabilityClaims;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, LentBytes, LentPart, SharedMemory};
use weft_protocol::handshake::{ClientHello, ClientProof, KeyName, Purpose, ServerHello, Welcome};
use weft_protocol::message::Message;
use weft_protocol::message::node::{
    Counters, NodeAnswer, NodeRequest, NodeStatus, RdmaCounters, RequestInFlight, ShardPart, ShardPartKind, ShardStatus,
};
use weft_protocol::message::peer::{
    Fate, IntentId, Lock, LockedName, MovedDentry, NameChange, PartAttributes, PeerAnswer, PeerCall, PeerReply,
    PeerStep,
};
use weft_protocol::message::recall::{DropPages, LockGrantTaken, LockGranted, PagesDropped, Recall, RecallAnswer};
use weft_protocol::message::shard::{
    Access, CreateFile, DirectoryEntry, DirectoryPage, FirstObjects, ForGroup, GroupLayouts, LeasedObject, LockAnswer,
    OpenFlags, Origin, PageCache, RangeUse, RenameMode, ShardAnswer, ShardCall, ShardReply, ShardRequest, Slot,
    StridedQuestion, SymlinkTarget,
};
use weft_protocol::message::storage::{ServingAnswer, SessionFence, Space, StorageAnswer, StorageRequest};
use weft_protocol::{
    AttributeChanges, Attributes, BelowEntry, BelowName, BelowNote, BelowPage, BelowStamp, Capability, ClusterMap,
    Cookie, Credentials, Error, Extent, FileKind, Generation, Grants, GroupOpen, HeldLock, Inherited, InheritedChange,
    InodeFlags, InodeNumber, KeyId, Layout, LeaseKey, LeaseMode, LockKind, LockMode, LockOwner, LockRange, MapEpoch,
    Name, NodeAddress, NodeChange, NodeId, NodeIdentity, NodeKey, NodeRecord, ObjectId, OwnerLocks, Parts, Pattern,
    Plan, PublishedPart, RangeLock, Rights, SessionId, ShardId, ShardRecord, SlotIndex, SplitPart, StripePlan,
    TimeChange, Timestamp, Xattr, XattrExpectation, XattrName, XattrValue,
};

fn inode() -> InodeNumber {
    InodeNumber::new(ShardId(3), 1_000_001)
}

fn object() -> ObjectId {
    ObjectId::new(NodeId(2), 77)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a valid name")
}

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("a valid name")
}

fn time() -> Timestamp {
    Timestamp(1_700_000_000_123_456_789)
}

pub fn credentials() -> Credentials {
    Credentials { uid: 1000, gid: 100, groups: Box::new([4, 24, 65_534]) }
}

fn attributes(kind: FileKind, layout: Layout) -> Attributes {
    Attributes {
        inode: inode(),
        kind,
        mode: 0o2755,
        links: 2,
        uid: 1000,
        gid: 100,
        size: 1 << 33,
        atime: Timestamp(-1),
        mtime: time(),
        ctime: Timestamp(0),
        layout,
        flags: if kind == FileKind::Directory { InodeFlags::all() } else { InodeFlags::empty() },
        parts: (kind == FileKind::Directory).then(parts),
    }
}

fn inherited() -> Inherited {
    Inherited { plan: plan().into(), spreads: true }
}

fn parts() -> Parts {
    Parts::new(vec![inode(), InodeNumber::new(ShardId(4), 9)]).expect("two parts")
}

fn file() -> Attributes {
    attributes(FileKind::Regular, Layout::Whole { object: object(), generation: Generation(1) })
}

pub fn capability() -> Capability {
    NodeKey::new([7; 32]).sign(&CapabilityClaims {
        object: object(),
        count: 1,
        inode: InodeNumber::ROOT,
        generation: Generation(1),
        epoch: MapEpoch(5),
        expires_seconds: 1_700_003_600,
        owner_uid: 1000,
        rights: Rights::READ | Rights::WRITE,
        session: SessionId(0x0123_4567_89ab_cdef),
    })
}

fn space() -> Space {
    Space { total: 1 << 40, free: 1 << 39, reserve: 1 << 30, objects: 12, device: 2049, device_free: 1 << 38 }
}

fn map() -> ClusterMap {
    let node = |id: u16, stores| NodeRecord {
        id: NodeId(id),
        host: format!("host{id}"),
        site: "lab".to_owned(),
        identity: NodeIdentity(0xfeed_0000 + u64::from(id)),
        address: NodeAddress { tcp: format!("10.0.0.{id}:7000"), unix: format!("/run/{id}.sock") },
        stores,
        drains: !stores,
    };
    ClusterMap {
        removed_max: Some(NodeId(1)),
        name: "scratch".to_owned(),
        epoch: MapEpoch(5),
        nodes: vec![node(0, true), node(2, false)],
        shards: vec![
            ShardRecord::new(NodeId(0), MapEpoch(1)),
            ShardRecord { node: NodeId(2), born: MapEpoch(1), arrived: MapEpoch(4) },
            ShardRecord::new(NodeId(0), MapEpoch(5)),
        ],
    }
}

fn intent() -> IntentId {
    IntentId { shard: ShardId(3), number: 9 }
}

pub fn lease_keys() -> Vec<LeaseKey> {
    vec![
        LeaseKey::Attributes(inode()),
        LeaseKey::Entry(inode(), name("file").hash64()),
        LeaseKey::Directory(InodeNumber::ROOT),
        LeaseKey::Data(inode()),
        LeaseKey::Permissions(inode()),
        LeaseKey::Inode(inode()),
        LeaseKey::Names(inode()),
        LeaseKey::Ranges(inode()),
    ]
}

pub fn lease_modes() -> Vec<LeaseMode> {
    vec![LeaseMode::None, LeaseMode::Open, LeaseMode::Shared, LeaseMode::Exclusive]
}

pub fn access() -> Vec<Access> {
    vec![Access::Read, Access::Write, Access::ReadWrite, Access::Execute]
}

pub fn rename_modes() -> Vec<RenameMode> {
    vec![RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
}

pub fn file_kinds() -> Vec<FileKind> {
    vec![FileKind::Regular, FileKind::Directory, FileKind::Symlink]
}

pub fn lock_kinds() -> Vec<LockKind> {
    vec![LockKind::Flock, LockKind::Process, LockKind::Description, LockKind::Append]
}

pub fn lock_modes() -> Vec<LockMode> {
    vec![LockMode::Shared, LockMode::Exclusive]
}

pub fn lock_answers() -> Vec<LockAnswer> {
    vec![LockAnswer::Granted, LockAnswer::Queued, LockAnswer::Cancelled]
}

fn lock_owner(kind: LockKind) -> LockOwner {
    LockOwner { kind, number: 0x1234_5678 }
}

fn range() -> LockRange {
    LockRange { start: 512, end: 1023 }
}

fn plan() -> StripePlan {
    StripePlan::new(2, 1 << 20).expect("a plan")
}

fn stamp() -> BelowStamp {
    BelowStamp { size: 4096, mtime: time(), inode: 0x1234_5678_9abc }
}

fn below() -> BelowEntry {
    BelowEntry { kind: FileKind::Regular, stamp: stamp(), inode: inode(), ctime: time(), differs: true }
}

fn path() -> Vec<Name> {
    vec![name("directory"), name("file")]
}

fn pattern() -> Pattern {
    Pattern::new(1 << 20, 47_008, 188_032, 1000).expect("a pattern")
}

fn planned() -> Layout {
    Layout::Planned(plan())
}

fn striped() -> Layout {
    planned().given(object(), &[ObjectId::new(NodeId(7), 4097)]).expect("as planned")
}

pub fn layouts() -> Vec<Layout> {
    vec![
        Layout::Empty,
        Layout::Whole { object: object(), generation: Generation(1) },
        planned(),
        striped(),
        Layout::Split { epoch: 9 },
    ]
}

pub fn group_opens() -> Vec<GroupOpen> {
    let of = |layout: Layout| {
        let rights = layout.objects().iter().map(|_| capability()).collect();
        let (inode, group, access) = (inode(), SessionId::of_group(78), Access::ReadWrite);
        GroupOpen { inode, group, access, append: false, synced: true, layout, rights }
    };
    layouts().into_iter().map(of).collect()
}

pub fn time_changes() -> Vec<TimeChange> {
    vec![TimeChange::Now, TimeChange::To(time())]
}

pub fn errors() -> Vec<Error> {
    vec![
        Error::NotFound,
        Error::Exists,
        Error::NotDirectory,
        Error::IsDirectory,
        Error::NotEmpty,
        Error::AccessDenied,
        Error::NotPermitted,
        Error::NameTooLong,
        Error::Invalid,
        Error::SymlinkLoop,
        Error::TooManyLinks,
        Error::FileTooLarge,
        Error::NoSpace,
        Error::CrossShard,
        Error::Stale,
        Error::NoObject,
        Error::BadHandle,
        Error::NotSupported,
        Error::Busy,
        Error::StaleMap(MapEpoch(6)),
        Error::WrongShard(ShardId(3)),
        Error::SessionEnded,
        Error::CapabilityRejected,
        Error::Unreachable,
        Error::Device(28),
        Error::Malformed,
        Error::PagesCached,
        Error::WouldBlock,
        Error::InUse,
        Error::Deadlock,
        Error::NoLocks,
        Error::Interrupted,
        Error::NoXattr,
        Error::OutOfRange,
        Error::TooBig,
        Error::NoXattrSpace,
        Error::Split,
    ]
}

fn part_requests() -> Vec<ShardRequest> {
    vec![
        ShardRequest::Publish {
            inode: inode(),
            group: None,
            parts: vec![PublishedPart {
                writer: SessionId(0x1122_3344),
                object: object(),
                number: 12,
                patterns: vec![pattern()],
            }],
            appends_to: Some(1 << 20),
            range: RangeUse { given_up: Some(17), wanted: Some((1 << 20, 1 << 22)) },
        },
        ShardRequest::GetParts {
            inode: inode(),
            group: Some(SessionId::of_group(78)),
            since: 9,
            start: 1 << 20,
            end: 1 << 21,
            extra: 64,
            strided: StridedQuestion { within: pattern(), since: 7, after: Some((pattern(), object())), few: 32 },
            own: true,
        },
    ]
}

fn open_request(parent: InodeNumber, flags: OpenFlags) -> ShardRequest {
    let for_group = ForGroup { group: SessionId::of_group(77), layouts: GroupLayouts::Unsplit };
    ShardRequest::OpenAt {
        parent,
        name: name("file"),
        flags: OpenFlags { group: Some(for_group), ..flags },
        create: Some(CreateFile { mode: 0o644, exclusive: true, plan: Some(Plan::Split) }),
        objects: Some(FirstObjects {
            plan: Plan::Whole,
            objects: vec![LeasedObject { object: object(), capability: capability() }],
        }),
    }
}

pub fn shard_requests() -> Vec<ShardRequest> {
    let parent = InodeNumber::ROOT;
    let flags = |access| OpenFlags { access, truncate: true, direct: false, page_cache: PageCache::None, group: None };
    let mut requests = vec![
        ShardRequest::Lookup { parent, name: name("file") },
        ShardRequest::GetAttributes { inode: inode() },
        open_request(parent, flags(Access::ReadWrite)),
        ShardRequest::Commit {
            inode: inode(),
            object: Some(object()),
            others: vec![ObjectId::new(NodeId(7), 4097)],
            size: 4096,
            mtime: Some(time()),
            object_mtime: time(),
            known: 300,
            number: 400,
            passed: true,
        },
        ShardRequest::MakeDirectory { parent, name: name("directory"), mode: 0o755, home: Some(NodeId(2)) },
        ShardRequest::MakeSymlink { parent, name: name("link"), target: SymlinkTarget(b"../file".to_vec()) },
        ShardRequest::ReadLink { inode: inode() },
        ShardRequest::Link { inode: inode(), parent, name: name("other") },
        ShardRequest::Unlink { parent, name: name("file") },
        ShardRequest::UnlinkBatch { parent, names: vec![name("file"), name("other")] },
        ShardRequest::RemoveDirectory { parent, name: name("directory") },
        ShardRequest::ReadDirectory {
            inode: parent,
            after: Cookie::of(&name("file")),
            entries_max: 4096,
            with_attributes: true,
        },
        ShardRequest::Release { leases: lease_keys().into_iter().map(|key| (key, 300)).collect() },
        ShardRequest::EndSession,
        ShardRequest::Ping,
        ShardRequest::HoldDirectory { inode: InodeNumber::ROOT },
        ShardRequest::SetXattr {
            inode: inode(),
            name: xattr("user.note"),
            value: XattrValue::new(b"text").expect("a short value"),
            expects: XattrExpectation { absent: true, present: false },
        },
        ShardRequest::RemoveXattr { inode: inode(), name: xattr("trusted.note") },
        ShardRequest::GetXattrs { inode: inode() },
        ShardRequest::SetInherited { inode: inode(), change: InheritedChange::Plan(plan().into()) },
        ShardRequest::SetInherited { inode: inode(), change: InheritedChange::Spreads(true) },
        ShardRequest::Relocate {
            inode: inode(),
            granted: 7,
            plan: plan().into(),
            objects: vec![ObjectId::new(NodeId(1), 5), ObjectId::new(NodeId(2), 6)],
            object_mtime: Timestamp(8),
        },
        ShardRequest::Spread { inode: inode() },
        ShardRequest::OpenGroup { inode: inode(), access: Access::ReadWrite, group: SessionId::of_group(78) },
    ];
    requests.push(ShardRequest::ReadBelow { directory: parent, after: Some(name("file")) });
    let notes = [Some(below()), None].map(|entry| BelowNote { name: name("file"), entry });
    requests.push(ShardRequest::NoteBelow { directory: parent, notes: notes.into() });
    requests.extend(part_requests());
    requests.extend(lock_kinds().into_iter().map(|kind| ShardRequest::Lock {
        inode: inode(),
        owner: lock_owner(kind),
        pid: 4242,
        locks: lock_modes().into_iter().map(|mode| RangeLock { range: range(), mode }).collect(),
        wait: (kind == LockKind::Process).then_some(9),
    }));
    let owner = lock_owner(LockKind::Process);
    let lock = RangeLock { range: range(), mode: LockMode::Shared };
    requests.push(ShardRequest::Unlock { inode: inode(), owner, ranges: vec![LockRange::ALL] });
    requests.push(ShardRequest::CancelLock { inode: inode(), wait: 9 });
    requests.push(ShardRequest::TestLock { inode: inode(), owner, lock });
    let held = vec![OwnerLocks { owner, pid: 4242, locks: vec![lock] }];
    requests.push(ShardRequest::TakeLocks { inode: inode(), held });
    requests.extend(access().into_iter().map(|access| ShardRequest::Open { inode: inode(), flags: flags(access) }));
    requests.extend(rename_modes().into_iter().map(|mode| ShardRequest::Rename {
        parent,
        name: name("file"),
        new_parent: inode(),
        new_name: name("other"),
        mode,
        guess: (mode != RenameMode::NoReplace).then_some((inode(), FileKind::Regular)),
    }));
    requests.extend(time_changes().into_iter().map(|change| ShardRequest::SetAttributes {
        inode: inode(),
        changes: AttributeChanges {
            mode: Some(0o600),
            uid: Some(0),
            gid: None,
            size: Some(0),
            atime: Some(change),
            mtime: None,
        },
    }));
    requests
}

pub fn shard_answers() -> Vec<ShardAnswer> {
    let grants = Grants::all();
    let entry = |text: &str, kind, attributes| {
        let name = name(text);
        DirectoryEntry { cookie: Cookie::of(&name), name, inode: inode(), kind, attributes }
    };
    let mut answers = vec![
        ShardAnswer::Done,
        ShardAnswer::Remote { inode: inode(), kind: FileKind::Regular, grants },
        ShardAnswer::Absent { grants: Grants::ENTRY },
        ShardAnswer::Opened {
            attributes: attributes(FileKind::Regular, striped()),
            capability: Some(capability()),
            others: vec![capability()],
            created: true,
            grants,
        },
        ShardAnswer::Target(SymlinkTarget(b"../file".to_vec())),
        ShardAnswer::Page(DirectoryPage {
            entries: vec![
                entry("file", FileKind::Regular, Some(file())),
                entry("directory", FileKind::Directory, None),
                entry("link", FileKind::Symlink, None),
            ],
            next: Some(Cookie::of(&name("link"))),
            grants: Grants::DIRECTORY,
            parent: InodeNumber::ROOT,
        }),
        ShardAnswer::Removed { time: Timestamp(1_700_000_000_000_000_009), inode: inode(), links: 1 },
        ShardAnswer::RemovedBatch { time: Timestamp(1_700_000_000_000_000_009), removed: vec![(inode(), 1)] },
        ShardAnswer::Renamed {
            inode: inode(),
            kind: FileKind::Regular,
            replaced: Some((InodeNumber::ROOT, 0)),
            exchanged: None,
            grants: Grants::ENTRY | Grants::SHARED_DIRECTORY,
        },
        ShardAnswer::Renamed {
            inode: inode(),
            kind: FileKind::Directory,
            replaced: None,
            exchanged: Some((InodeNumber::ROOT, FileKind::Regular)),
            grants: Grants::ENTRY,
        },
        ShardAnswer::Xattrs {
            xattrs: vec![
                Xattr { name: xattr("trusted.note"), value: Some(XattrValue::new(b"text").expect("a short value")) },
                Xattr { name: xattr("user.note"), value: None },
            ],
            attributes: Some(attributes(FileKind::Directory, Layout::Empty)),
            grants: Grants::ATTRIBUTES,
        },
    ];
    answers.extend(
        file_kinds()
            .into_iter()
            .map(|kind| ShardAnswer::Entry { attributes: attributes(kind, Layout::Empty), grants: Grants::ATTRIBUTES }),
    );
    answers.push(ShardAnswer::Parts {
        epoch: 9,
        size: 1 << 40,
        cut: 3,
        parts: vec![SplitPart {
            object: object(),
            capability: capability(),
            extents: vec![Extent { pattern: pattern(), epoch: 8 }],
        }],
        end: 3 << 20,
        strided_whole: true,
        strided_next: Some((pattern(), object())),
    });
    let entries = vec![(name("file"), below())];
    answers.push(ShardAnswer::Below(BelowPage { is_unread: true, entries, next: Some(name("file")) }));
    answers.extend(lock_answers().into_iter().map(ShardAnswer::Lock));
    let lock = RangeLock { range: range(), mode: LockMode::Exclusive };
    let held = HeldLock { lock, kind: LockKind::Process, pid: 4242 };
    answers.extend([None, Some(held)].map(ShardAnswer::LockTested));
    answers
}

pub fn storage_requests() -> Vec<StorageRequest> {
    vec![
        StorageRequest::LeaseObjects { count: 1024 },
        StorageRequest::Stat { inode: inode(), object: object() },
        StorageRequest::Make { inode: inode(), object: object() },
        StorageRequest::Truncate { inode: inode(), object: object(), size: 4096, by: SessionId(7) },
        StorageRequest::Remove { objects: vec![(inode(), object())] },
        StorageRequest::Space,
        StorageRequest::Fence {
            session: SessionId(7),
            shard: ShardId(3),
            objects: vec![(InodeNumber::ROOT, object())],
        },
        StorageRequest::ListBelow { path: path(), after: Some(name("file")) },
        StorageRequest::FillFromBelow { inode: inode(), object: Some(object()), path: path(), offset: 1 << 26 },
    ]
}

fn session_fence() -> SessionFence {
    SessionFence { session: SessionId(7), shard: ShardId(3), objects: vec![(InodeNumber::ROOT, object())] }
}

pub fn storage_answers() -> Vec<StorageAnswer> {
    vec![
        StorageAnswer::Done,
        StorageAnswer::Batch { capability: capability(), is_low: true },
        StorageAnswer::Object { size: 4096, mtime: time() },
        StorageAnswer::Space(space()),
        StorageAnswer::NamesBelow {
            names: vec![BelowName {
                name: name("link"),
                kind: FileKind::Symlink,
                mode: 0o777,
                uid: 1000,
                gid: 100,
                stamp: stamp(),
                target: Some(SymlinkTarget(b"../file".to_vec())),
            }],
            is_more: true,
        },
        StorageAnswer::Filled { object: object(), end: 1 << 26, stamp: stamp(), object_mtime: time() },
    ]
}

pub fn node_requests() -> Vec<NodeRequest> {
    vec![
        NodeRequest::Ping,
        NodeRequest::GetMap,
        NodeRequest::SetMap(map()),
        NodeRequest::Status,
        NodeRequest::Stuck,
        NodeRequest::Shutdown,
        NodeRequest::RevokeKey(KeyId(0x0fed_cba9_8765_4321)),
        NodeRequest::AskToServe { epoch: MapEpoch(5), settled: vec![session_fence()] },
        NodeRequest::AskOfObject { session: SessionId(7), inode: inode(), object: object() },
        NodeRequest::Join { nodes: map().nodes, shards_per_node: 2 },
        NodeRequest::Move { shard: ShardId(300), to: NodeId(2) },
        NodeRequest::Change { node: NodeId(2), change: NodeChange::Remove },
        NodeRequest::Ship { shard: ShardId(300), to: NodeId(2), epoch: MapEpoch(6) },
        NodeRequest::Take {
            shard: ShardId(300),
            epoch: MapEpoch(6),
            part: ShardPart { number: 200, kind: ShardPartKind::Keys, bytes: vec![7, 0, 255] },
        },
    ]
}

pub fn node_answers() -> Vec<NodeAnswer> {
    let shard = ShardStatus {
        shard: ShardId(3),
        inodes: 1,
        dentries: 2,
        sessions: 3,
        leases: 4,
        recalls: 5,
        parked: 6,
        store_bytes: 70_000,
        calls: 80_000,
        renames: 90,
        renames_across: 10,
        failed: Some("assertion failed".to_owned()),
    };
    let counters = Counters {
        requests: 1,
        read_tcp_bytes: 2,
        read_unix_bytes: 3,
        write_tcp_bytes: 4,
        write_unix_bytes: 5,
        write_memory_bytes: 9,
        read_memory_bytes: 10,
        read_memory_lost_bytes: 11,
        rdma: RdmaCounters {
            read_bytes: 11,
            write_bytes: 12,
            puts: 13,
            gets: 14,
            flushes: 15,
            regions: 16,
            placed_bytes: 17,
            mapped_bytes: 19,
            streamed_bytes: 20,
            messages: 18,
        },
        descriptors_passed: 6,
        capabilities_rejected: 7,
        peers_rejected: 8,
    };
    vec![
        NodeAnswer::Done,
        NodeAnswer::Map(map()),
        NodeAnswer::Status(Box::new(NodeStatus {
            node: NodeId(2),
            pid: 4242,
            uptime_seconds: 3600,
            shards: vec![shard],
            space: Some(space()),
            store: "/scratch/store".to_owned(),
            rdma: "UCX 1.13.1".to_owned(),
            counters,
            connections: 9,
        })),
        NodeAnswer::Serving(ServingAnswer { granted: true, fences: vec![session_fence()] }),
        NodeAnswer::OfObject { is_used: true },
        NodeAnswer::InFlight(vec![RequestInFlight {
            peer: "uid 1000, session 0000000000000001".to_owned(),
            request: "unlink".to_owned(),
            state: "waits for a recall".to_owned(),
            age_ms: 250,
        }]),
    ]
}

pub fn peer_steps() -> Vec<PeerStep> {
    vec![
        PeerStep::MakeDirectoryInode {
            parent: InodeNumber::ROOT,
            mode: 0o755,
            uid: 1000,
            gid: 100,
            time: time(),
            inherited: inherited(),
        },
        PeerStep::Forget,
        PeerStep::Undo,
        PeerStep::Lock {
            session: SessionId(0x1234),
            round: 2,
            waits: true,
            locks: vec![
                Lock::Name { directory: InodeNumber::ROOT, name: name("dentry"), fate: Fate::Stays },
                Lock::Inode { inode: inode(), fate: Fate::Loses },
                Lock::Tree,
            ],
        },
        PeerStep::Carry { changes: name_changes() },
        PeerStep::AskOutcome { of: intent() },
        PeerStep::Ancestors { of: inode() },
        PeerStep::FillPart {
            part: InodeNumber::new(ShardId(4), 9),
            parts: parts(),
            dentries: vec![MovedDentry { cookie: Cookie::of(&name("dentry")), record: vec![1, 2, 3] }],
        },
    ]
}

fn name_changes() -> Vec<NameChange> {
    vec![
        NameChange::Lose { inode: inode() },
        NameChange::Gain { inode: inode(), time: time() },
        NameChange::Set {
            directory: InodeNumber::ROOT,
            name: name("dentry"),
            entry: Some((inode(), FileKind::Symlink)),
        },
        NameChange::Move { inode: inode(), directory: InodeNumber::ROOT },
        NameChange::Become {
            inode: inode(),
            attributes: Box::new(PartAttributes {
                mode: 0o2755,
                uid: 1000,
                gid: 100,
                inherited: inherited(),
                atime: Timestamp(-1),
                mtime: Some(time()),
                ctime: time(),
            }),
        },
    ]
}

pub fn peer_answers() -> Vec<PeerAnswer> {
    let locked = LockedName {
        directory: attributes(FileKind::Directory, Layout::Empty),
        entry: Some((inode(), FileKind::Regular)),
        attributes: None,
    };
    vec![
        PeerAnswer::Made(attributes(FileKind::Directory, Layout::Empty)),
        PeerAnswer::Forgotten { shard: ShardId(3) },
        PeerAnswer::Locked { shard: ShardId(1), round: 2, stamp: 300, names: vec![locked], inodes: vec![None] },
        PeerAnswer::Blocked { shard: ShardId(1), round: 2 },
        PeerAnswer::Carried { shard: ShardId(1) },
        PeerAnswer::Open,
        PeerAnswer::Filled { shard: ShardId(1), last: Some(Cookie::of(&name("dentry"))) },
        PeerAnswer::Above { directories: vec![inode()], next: Some(InodeNumber::ROOT) },
        PeerAnswer::Above { directories: vec![InodeNumber::ROOT], next: None },
    ]
}

/// Every control message.
pub fn messages() -> Vec<Message> {
    let call = |request| {
        Message::Shard(ShardCall {
            shard: ShardId(3),
            epoch: MapEpoch(5),
            slots_of: NodeId(2),
            slot: SlotIndex(7),
            sequence: 300,
            credentials: Some(credentials()),
            request,
            repeats: vec![Origin {
                session: SessionId(21),
                slot: Slot { of: NodeId(2), index: SlotIndex(7) },
                sequence: 299,
            }],
        })
    };
    let reply = |result| Message::ShardReply(ShardReply { stamp: 301, result, others: vec![(ShardId(1), 300)] });
    let step = |step| Message::Peer(PeerCall { to: ShardId(1), epoch: MapEpoch(5), intent: intent(), step });
    let recall = |key, to| Message::Recall(Recall { shard: ShardId(3), number: 11, key, to, stamp: 302 });
    let mut all: Vec<Message> = shard_requests().into_iter().map(call).collect();
    all.extend(shard_answers().into_iter().map(|answer| reply(Ok(answer))));
    all.extend(errors().into_iter().map(|error| reply(Err(error))));
    all.extend(storage_requests().into_iter().map(Message::Storage));
    all.extend(storage_answers().into_iter().map(|answer| Message::StorageReply(Ok(answer))));
    all.push(Message::StorageReply(Err(Error::NoObject)));
    all.extend(node_requests().into_iter().map(Message::Node));
    all.extend(node_answers().into_iter().map(|answer| Message::NodeReply(Box::new(Ok(answer)))));
    all.push(Message::NodeReply(Box::new(Err(Error::NotPermitted))));
    all.extend(peer_steps().into_iter().map(step));
    let answered = |result| Message::PeerReply(PeerReply { intent: intent(), result });
    all.extend(peer_answers().into_iter().map(|answer| answered(Ok(answer))));
    all.push(answered(Err(Error::NotEmpty)));
    all.extend(lease_keys().into_iter().map(|key| recall(key, LeaseMode::None)));
    all.extend(lease_modes().into_iter().map(|mode| recall(LeaseKey::Data(inode()), mode)));
    all.push(Message::RecallAnswer(RecallAnswer { shard: ShardId(3), number: 11, kept: LeaseMode::Open }));
    all.push(Message::Renew { groups: Vec::new() });
    all.push(Message::Renew {
        groups: vec![(ShardId(3), SessionId::of_group(78)), (ShardId(300), SessionId::of_group(u64::MAX))],
    });
    let renewed = |refused| Message::RenewReply { refused, epoch: MapEpoch(5), shards: vec![ShardId(0), ShardId(300)] };
    all.extend([false, true].map(renewed));
    let dropped = DropPages { inode: inode(), object: object(), number: 12, offset: 8192, bytes: 4096 };
    all.push(Message::DropPages(dropped));
    all.push(Message::PagesDropped(PagesDropped { object: object(), number: 12 }));
    all.push(Message::LockGranted(LockGranted { shard: ShardId(3), wait: 9, result: Ok(()) }));
    all.push(Message::LockGrantTaken(LockGrantTaken { shard: ShardId(3), wait: 9 }));
    all
}

pub fn key_names() -> Vec<KeyName> {
    vec![
        KeyName::Node(NodeId(2)),
        KeyName::Owner,
        KeyName::User { key: KeyId(0x0fed_cba9_8765_4321), credentials: credentials() },
    ]
}

pub fn purposes() -> Vec<Purpose> {
    vec![Purpose::Control, Purpose::Data, Purpose::Recall]
}

pub fn client_hello(key_name: KeyName, purpose: Purpose) -> ClientHello {
    ClientHello {
        key_name,
        purpose,
        session: SessionId(0x0123_4567_89ab_cdef),
        identity: NodeIdentity(0xfeed_0002),
        nonce: [0xc1; 32],
    }
}

pub fn server_hello() -> ServerHello {
    ServerHello { node: NodeId(2), identity: NodeIdentity(0xfeed_0002), nonce: [0x5e; 32], proof: [0xa5; 32] }
}

pub fn client_proof() -> ClientProof {
    ClientProof { proof: [0x5a; 32] }
}

pub fn welcomes() -> Vec<Welcome> {
    vec![Welcome { result: Ok(MapEpoch(5)) }, Welcome { result: Err(Error::AccessDenied) }]
}

pub fn data_operations() -> Vec<DataOperation> {
    vec![
        DataOperation::Read,
        DataOperation::Write,
        DataOperation::Append,
        DataOperation::Sync,
        DataOperation::Stat,
        DataOperation::IsHeld,
        DataOperation::Descriptor,
        DataOperation::Share,
        DataOperation::Lend,
        DataOperation::OpenRdma,
        DataOperation::ShowMemory,
        DataOperation::ProbeMemory,
        DataOperation::Revoke,
    ]
}

pub fn data_request(operation: DataOperation) -> DataRequest {
    DataRequest {
        operation,
        pages: operation == DataOperation::Read,
        bytes: match operation {
            DataOperation::Share => 24,
            DataOperation::ProbeMemory => 16,
            DataOperation::Revoke | DataOperation::Lend => 0,
            DataOperation::OpenRdma | DataOperation::ShowMemory => 100,
            _ => 65_536,
        },
        id: 12,
        object: object(),
        inode: inode(),
        offset: 1 << 32,
        memory: BulkDescriptor::default(),
        capability: capability(),
    }
}

pub fn shared_memory() -> SharedMemory {
    SharedMemory { seal: [7; 16], seal_address: 0x7f00_0000_1000 }
}

pub fn lent_bytes() -> LentBytes {
    let parts = vec![
        LentPart { address: 0x7f00_0000_2000, bytes: 65_536 },
        LentPart { address: 0x7f00_0010_0000, bytes: 4096 },
    ];
    LentBytes { word_address: 0x7f00_0000_1010, word: 3, parts }
}

/// A reply to a read whose bytes are these.
pub fn lending_reply() -> DataReply {
    DataReply { id: 12, lent_parts: 2, bulk_bytes: 69_632, size: 1 << 33, mtime: time(), ..DataReply::default() }
}

pub fn data_replies() -> Vec<DataReply> {
    let done = DataReply {
        status: 0,
        id: 12,
        lent_parts: 0,
        bulk_bytes: 65_536,
        written_bytes: 0,
        size: 1 << 33,
        mtime: time(),
    };
    let failed = [Error::NoSpace, Error::CapabilityRejected, Error::SessionEnded, Error::Busy, Error::PagesCached];
    std::iter::once(done).chain(failed.iter().map(|error| DataReply::failed(12, error))).collect()
}
