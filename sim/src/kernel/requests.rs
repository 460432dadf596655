//! The FUSE protocol as plain values: requests of the kernel, replies and notifications of the server.
//!
//! Close to `include/uapi/linux/fuse.h`, without its encoding. Times are milliseconds of the simulation; names are
//! text.
//! Not here: what the kernel does with them.

/// A node identifier of the protocol, and an inode number.
pub type NodeId = u64;
/// The root directory's (`FUSE_ROOT_ID`).
pub const ROOT: NodeId = 1;
/// Longest name, bytes (`FUSE_NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 1024;

/// An error number of Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Errno(pub i32);

impl Errno {
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const EINTR: Self = Self(4);
    pub const EIO: Self = Self(5);
    pub const EBADF: Self = Self(9);
    pub const EAGAIN: Self = Self(11);
    pub const EBUSY: Self = Self(16);
    pub const EEXIST: Self = Self(17);
    pub const EXDEV: Self = Self(18);
    pub const ENODEV: Self = Self(19);
    pub const ENOTDIR: Self = Self(20);
    pub const EISDIR: Self = Self(21);
    pub const EFAULT: Self = Self(14);
    pub const EINVAL: Self = Self(22);
    pub const ENOTEMPTY: Self = Self(39);
    pub const ELOOP: Self = Self(40);
    pub const ENOSPC: Self = Self(28);
    pub const ESTALE: Self = Self(116);
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Kind {
    Regular,
    Directory,
}

/// Attributes of an inode (`struct fuse_attr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    pub ino: NodeId,
    pub kind: Kind,
    /// Permission bits, including set-user-ID, set-group-ID and sticky.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
}

/// `struct fuse_entry_out`. Node 0 is a negative entry with a timeout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub node: NodeId,
    pub generation: u64,
    pub entry_ms: u64,
    pub attributes_ms: u64,
    pub attributes: Attributes,
}

/// Flags and identifiers of `struct fuse_open_out`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    pub fh: u64,
    pub direct_io: bool,
    pub keep_cache: bool,
    pub cache_dir: bool,
    pub no_flush: bool,
    pub parallel_direct_writes: bool,
    /// `FOPEN_PASSTHROUGH`, with the backing file.
    pub passthrough: Option<u32>,
}

/// An entry of a listing; `entry` is there in a READDIRPLUS (`struct fuse_direntplus`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub ino: NodeId,
    /// Cookie of the position after this entry.
    pub next: u64,
    pub kind: Kind,
    pub name: String,
    pub entry: Option<Entry>,
}

/// Bytes of a `struct fuse_dirent` with its name, padded.
pub const fn entry_bytes(name: usize) -> usize {
    (24 + name).next_multiple_of(8)
}

/// Bytes of a `struct fuse_direntplus` with its name, padded.
pub const fn entry_plus_bytes(name: usize) -> usize {
    (152 + name).next_multiple_of(8)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Access {
    #[default]
    Read,
    Write,
    ReadWrite,
}

impl Access {
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// Flags of open(2), and of the requests that carry them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct OpenFlags {
    pub access: Access,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub direct: bool,
}

/// Modes of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// What SETATTR changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    pub fh: Option<u64>,
    pub mode: Option<u16>,
    pub size: Option<u64>,
    pub mtime: Option<u64>,
    pub ctime: Option<u64>,
    /// `FATTR_KILL_SUIDGID`.
    pub kill_privileges: bool,
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Lookup {
        name: String,
    },
    Forget {
        lookups: u64,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(Change),
    Mkdir {
        name: String,
        mode: u16,
    },
    Unlink {
        name: String,
    },
    Rmdir {
        name: String,
    },
    Rename {
        name: String,
        new_parent: NodeId,
        new_name: String,
        mode: RenameMode,
    },
    Link {
        inode: NodeId,
        new_name: String,
    },
    Open {
        flags: OpenFlags,
    },
    Create {
        name: String,
        mode: u16,
        flags: OpenFlags,
    },
    /// `has_owner`: `FUSE_READ_LOCKOWNER`, of reads that pass the page cache by.
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        has_owner: bool,
    },
    /// `cached`: write-back of pages (`FUSE_WRITE_CACHE`); `has_owner`: `FUSE_WRITE_LOCKOWNER`, of writes that pass the
    /// page cache by; `kill_privileges`: `FUSE_WRITE_KILL_SUIDGID`.
    Write {
        fh: u64,
        offset: u64,
        data: Vec<u8>,
        cached: bool,
        has_owner: bool,
        kill_privileges: bool,
    },
    Flush {
        fh: u64,
    },
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
        data_only: bool,
    },
    Opendir,
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    /// I/O of a passed-through file: answered by the backing file, never seen by the server.
    BackingRead {
        backing: u32,
        offset: u64,
        size: u32,
    },
    BackingWrite {
        backing: u32,
        offset: u64,
        data: Vec<u8>,
        append: bool,
    },
    BackingSync {
        backing: u32,
    },
    /// A page fault in a mapping of the backing file is a read or a write of it.
    BackingSize {
        backing: u32,
    },
}

impl Operation {
    /// Whether the backing file answers it.
    pub fn is_backing(&self) -> bool {
        use Operation::{BackingRead, BackingSize, BackingSync, BackingWrite};
        matches!(self, BackingRead { .. } | BackingWrite { .. } | BackingSync { .. } | BackingSize { .. })
    }

    /// Whether nobody waits for a reply.
    pub fn is_one_way(&self) -> bool {
        matches!(self, Operation::Forget { .. })
    }
}

/// A request. `node` is the inode that the header names, for names the parent directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub unique: u64,
    pub node: NodeId,
    pub operation: Operation,
}

/// What a server answers with success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Done,
    Entry(Entry),
    Attributes {
        attributes: Attributes,
        valid_ms: u64,
    },
    Opened(Opened),
    Created(Entry, Opened),
    Data(Vec<u8>),
    Written(u32),
    Listing(Vec<Listed>),
    /// Of a backing file.
    Size(u64),
}

pub type Answer = Result<Reply, Errno>;

/// What a server tells the kernel unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notification {
    /// `FUSE_NOTIFY_INVAL_ENTRY`; `expire_only`: `FUSE_EXPIRE_ONLY`.
    InvalidateEntry { parent: NodeId, name: String, expire_only: bool },
    /// `FUSE_NOTIFY_DELETE`.
    Delete { parent: NodeId, child: NodeId, name: String },
    /// `FUSE_NOTIFY_INVAL_INODE`. A negative offset means attributes only; a length of 0 or less, to the end.
    InvalidateInode { node: NodeId, offset: i64, bytes: i64 },
    /// `FUSE_NOTIFY_INC_EPOCH`.
    IncrementEpoch,
    /// `FUSE_NOTIFY_STORE`.
    Store { node: NodeId, offset: u64, data: Vec<u8> },
    /// `FUSE_NOTIFY_STORE` of the last byte of a file of this size, in whose place is unreadable memory: EFAULT.
    Grow { node: NodeId, size: u64 },
}
