//! A model of the Linux kernel's FUSE client for one mount: system calls in, requests out.
//!
//! It is deterministic, has no clock and no I/O: programs' calls, the server's replies and notifications, memory
//! pressure and time come in; requests and results go out. Each call is a task that takes the locks which the kernel
//! takes. `docs/kernel-model.md` says which rule comes from where in the kernel; `sim/tests/kernel_model.rs` runs the
//! same scripts against the model and the real kernel.
//!
//! Invariant: one order of inputs gives one order of outputs.
//! Not here: the server; programs; signals; symbolic links, special files, locks of files, extended attributes,
//! permission checks, large folios, splice, DAX.

pub mod attributes;
pub mod calls;
mod dentries;
mod direct;
pub mod directory_stream;
mod executor;
mod locks;
mod notifications;
mod open_file;
mod pages;
mod read;
mod readahead;
pub mod requests;
mod state;
mod walk;
mod write;
mod write_back;

pub use calls::{Call, CallResult, Value};
use executor::Executor;
use requests::{Answer, Errno, Notification, Request};
use state::Mount;

/// Names a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u64);

/// A program's name for a descriptor or a mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Handle(pub u64);

/// What was agreed in INIT, and limits of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// 4096 on most machines; smaller here for small files.
    pub page_bytes: u32,
    /// Most bytes of a READ, and of pages in a WRITE (`max_pages`).
    pub max_read_bytes: u32,
    pub max_write_bytes: u32,
    /// Largest readahead window.
    pub max_readahead_bytes: u32,
    pub async_read: bool,
    pub async_dio: bool,
    pub atomic_o_trunc: bool,
    pub auto_inval_data: bool,
    pub explicit_inval_data: bool,
    pub parallel_dirops: bool,
    pub readdirplus: bool,
    pub readdirplus_auto: bool,
    pub direct_io_allow_mmap: bool,
    pub passthrough: bool,
    pub writeback_cache: bool,
    pub handle_killpriv_v2: bool,
    /// Settles races between calls that go on at the same time; `None`: the oldest goes first.
    pub seed: Option<u64>,
    /// The programs have no CAP_FSETID: their writes clear set-user-ID bits.
    pub kills_privileges: bool,
}

impl Config {
    /// What Weft asks for (`fronts/fuse/src/mount.rs`) of Linux 6.18, with its largest transfers.
    pub const WEFT: Self = Self {
        page_bytes: 4096,
        max_read_bytes: 1 << 20,
        max_write_bytes: 1 << 20,
        max_readahead_bytes: 1 << 20,
        async_read: true,
        async_dio: true,
        atomic_o_trunc: true,
        auto_inval_data: false,
        explicit_inval_data: true,
        parallel_dirops: true,
        readdirplus: true,
        readdirplus_auto: true,
        direct_io_allow_mmap: true,
        passthrough: false,
        writeback_cache: false,
        handle_killpriv_v2: true,
        seed: None,
        kills_privileges: false,
    };
}

/// What the kernel did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// For the server, or for a backing file ([`requests::Operation::is_backing`]).
    Request(Request),
    Returned {
        call: CallId,
        result: CallResult,
    },
    /// A notification was carried out; the server's write to the device returns.
    Notified {
        id: CallId,
        result: Result<(), Errno>,
    },
}

/// The kernel of one mount.
pub struct Kernel {
    executor: Executor,
}

impl Kernel {
    pub fn new(config: Config) -> Self {
        Self { executor: Executor::new(Mount::new(config)) }
    }

    /// Starts a call. The name is the caller's, to know the result by.
    pub fn call(&mut self, id: CallId, call: Call) {
        let context = self.executor.context.clone();
        self.executor.context.spawn(context.run_call(id, call));
        self.executor.run();
    }

    /// Takes in the answer to a request.
    pub fn reply(&mut self, unique: u64, answer: Answer) {
        self.executor.context.mount().take_answer(unique, answer);
        self.executor.run();
    }

    /// Whether the answer to a request is processed while the server writes it, so that no notification that comes
    /// after it overtakes it: the kernel does not wake a caller for it, as for others, but carries on itself.
    pub fn is_background(&self, unique: u64) -> bool {
        self.executor.context.mount().is_background(unique)
    }

    /// Whether pages of the file could not be written back, and nobody was told: the next call that writes pages of it
    /// back fails (`filemap_check_errors`).
    pub fn owes_error(&self, handle: Handle) -> bool {
        let mount = self.executor.context.mount();
        let file = mount.handles.get(&handle);
        file.is_some_and(|file| mount.inode(mount.file(file.key).inode).writeback_error.is_some())
    }

    /// Number of the inode that is open under this handle.
    pub fn inode_of(&self, handle: Handle) -> Option<u64> {
        let mount = self.executor.context.mount();
        mount.handles.get(&handle).map(|file| mount.inode(mount.file(file.key).inode).attributes.ino)
    }

    /// Where the parts end in which a write that has returned was sent.
    pub fn take_pieces(&mut self, id: CallId) -> Vec<u64> {
        self.executor.context.mount().call_pieces.remove(&id).unwrap_or_default()
    }

    /// Starts a notification, which may wait for locks.
    pub fn notify(&mut self, id: CallId, notification: Notification) {
        let context = self.executor.context.clone();
        self.executor.context.spawn(async move {
            let result = context.notified(notification).await;
            context.mount().outputs.push(Output::Notified { id, result });
        });
        self.executor.run();
    }

    /// Time goes on.
    pub fn set_time(&mut self, now_ms: u64) {
        let mut mount = self.executor.context.mount();
        mount.now_ms = mount.now_ms.max(now_ms);
    }

    /// Memory pressure: unused dentries and their inodes go.
    pub fn drop_dentries(&mut self) {
        self.executor.context.mount().drop_unused_dentries();
        self.executor.run();
    }

    /// Memory pressure: clean pages go.
    pub fn drop_pages(&mut self) {
        let mut mount = self.executor.context.mount();
        for key in mount.inode_keys() {
            mount.inode_mut(key).pages.drop_clean();
        }
    }

    /// What the kernel did since the last time: requests in the order of their sending, then what returned.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        // Guards that were dropped may send something still.
        self.executor.run();
        let requests = self.executor.take_requests();
        let done = std::mem::take(&mut self.executor.context.mount().outputs);
        requests.into_iter().map(Output::Request).chain(done).collect()
    }
}
