//! Scripts: what programs, the server and others do, step by step.

use weft_sim::kernel::requests::{Access, Errno, NodeId, Notification, OpenFlags, RenameMode};
use weft_sim::kernel::{Call, Config, Handle};

/// Names a kind of request.
pub type Kind = &'static str;

/// How the server is to answer the next request of a kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is carried out at once, and its reply waits for [`Step::Release`].
    HoldReply,
    /// It is carried out at [`Step::Release`].
    HoldRequest,
    Fail(Errno),
    /// It fails, and its reply waits for [`Step::Release`].
    HoldFailure(Errno),
    /// A read or write moves at most this many bytes.
    Short(u32),
}

/// What somebody else changes at the server, or a setting of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Write {
        node: NodeId,
        offset: u64,
        data: Vec<u8>,
    },
    Truncate {
        node: NodeId,
        size: u64,
    },
    Chmod {
        node: NodeId,
        mode: u16,
    },
    Create {
        parent: NodeId,
        name: String,
        content: Vec<u8>,
    },
    Mkdir {
        parent: NodeId,
        name: String,
    },
    Unlink {
        parent: NodeId,
        name: String,
    },
    Rename {
        parent: NodeId,
        name: String,
        new_parent: NodeId,
        new_name: String,
    },
    /// Validity of names and attributes in replies from now on, in milliseconds: 0, or long.
    Timeouts {
        entry_ms: u64,
        attributes_ms: u64,
    },
    /// Unknown names get a negative entry of this validity.
    Negative {
        entry_ms: Option<u64>,
    },
    Opens {
        direct_io: bool,
        keep_cache: bool,
        cache_dir: bool,
        parallel: bool,
        passthrough: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A program, which is not in a call, begins one.
    Call {
        program: usize,
        call: Call,
    },
    Fate {
        kind: Kind,
        fate: Fate,
    },
    /// The reply that waits longest goes out.
    Release,
    Notify(Notification),
    Outside(Change),
}

/// A script, with what is agreed in INIT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub config: Config,
    pub steps: Vec<Step>,
}

/// Validity that does not end within a test.
pub const LONG: u64 = 3_600_000;

/// Pages of the real kernel, few of them in a request, so that small files need several.
pub const CONFIG: Config =
    Config { max_read_bytes: 8 * 4096, max_write_bytes: 4 * 4096, max_readahead_bytes: 4 * 4096, ..Config::WEFT };

/// Builds a script.
pub struct Builder {
    script: Script,
}

pub fn path(text: &str) -> Vec<String> {
    text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

pub const READ: OpenFlags =
    OpenFlags { access: Access::Read, create: false, exclusive: false, truncate: false, append: false, direct: false };
pub const BOTH: OpenFlags = OpenFlags { access: Access::ReadWrite, ..READ };
pub const CREATE: OpenFlags = OpenFlags { create: true, ..BOTH };

impl Builder {
    pub fn new() -> Self {
        Self { script: Script { config: CONFIG, steps: Vec::new() } }
    }

    pub fn with(config: Config) -> Self {
        Self { script: Script { config, steps: Vec::new() } }
    }

    pub fn step(mut self, step: Step) -> Self {
        self.script.steps.push(step);
        self
    }

    pub fn call(self, program: usize, call: Call) -> Self {
        self.step(Step::Call { program, call })
    }

    pub fn outside(self, change: Change) -> Self {
        self.step(Step::Outside(change))
    }

    pub fn fate(self, kind: Kind, fate: Fate) -> Self {
        self.step(Step::Fate { kind, fate })
    }

    pub fn hold(self, kind: Kind) -> Self {
        self.fate(kind, Fate::HoldReply)
    }

    pub fn release(self) -> Self {
        self.step(Step::Release)
    }

    pub fn notify(self, notification: Notification) -> Self {
        self.step(Step::Notify(notification))
    }

    pub fn timeouts(self, entry_ms: u64, attributes_ms: u64) -> Self {
        self.outside(Change::Timeouts { entry_ms, attributes_ms })
    }

    pub fn stat(self, program: usize, at: &str) -> Self {
        self.call(program, Call::Stat { path: path(at) })
    }

    pub fn open(self, program: usize, at: &str, flags: OpenFlags, handle: u64) -> Self {
        self.call(program, Call::Open { path: path(at), flags, mode: 0o644, handle: Handle(handle) })
    }

    pub fn close(self, program: usize, handle: u64) -> Self {
        self.call(program, Call::Close { handle: Handle(handle) })
    }

    pub fn pread(self, program: usize, handle: u64, offset: u64, size: u64) -> Self {
        self.call(program, Call::Pread { handle: Handle(handle), offset, size })
    }

    pub fn pwrite(self, program: usize, handle: u64, offset: u64, data: Vec<u8>) -> Self {
        self.call(program, Call::Pwrite { handle: Handle(handle), offset, data })
    }

    pub fn fstat(self, program: usize, handle: u64) -> Self {
        self.call(program, Call::Fstat { handle: Handle(handle) })
    }

    pub fn list(self, program: usize, handle: u64, bytes: usize) -> Self {
        self.call(program, Call::Getdents { handle: Handle(handle), bytes })
    }

    pub fn rename(self, program: usize, from: &str, to: &str, mode: RenameMode) -> Self {
        self.call(program, Call::Rename { from: path(from), to: path(to), mode })
    }

    pub fn map(self, program: usize, handle: u64, mapping: u64) -> Self {
        self.call(program, Call::Map { handle: Handle(handle), mapping: Handle(mapping), writable: true })
    }

    pub fn load(self, program: usize, mapping: u64, offset: u64, size: u64) -> Self {
        self.call(program, Call::Load { mapping: Handle(mapping), offset, size })
    }

    pub fn store(self, program: usize, mapping: u64, offset: u64, data: Vec<u8>) -> Self {
        self.call(program, Call::Store { mapping: Handle(mapping), offset, data })
    }

    pub fn invalidate(self, node: NodeId, offset: i64, bytes: i64) -> Self {
        self.notify(Notification::InvalidateInode { node, offset, bytes })
    }

    pub fn store_in_pages(self, node: NodeId, offset: u64, data: Vec<u8>) -> Self {
        self.notify(Notification::Store { node, offset, data })
    }

    pub fn grow(self, node: NodeId, size: u64) -> Self {
        self.notify(Notification::Grow { node, size })
    }

    pub fn invalidate_entry(self, parent: NodeId, name: &str, expire_only: bool) -> Self {
        self.notify(Notification::InvalidateEntry { parent, name: name.to_owned(), expire_only })
    }

    pub fn create_outside(self, name: &str, content: Vec<u8>) -> Self {
        self.outside(Change::Create { parent: 1, name: name.to_owned(), content })
    }

    pub fn build(self) -> Script {
        self.script
    }
}
