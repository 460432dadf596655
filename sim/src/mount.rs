//! A mount of the simulation: the production machine of mounts (`weft-mount-core`) over the client machine, under the
//! model of the kernel.
//!
//! Programs make system calls of the kernel model. Its requests are served by tasks of the client's process, each on
//! its own, as threads do; a reply that was written is processed by the kernel some time later. Notifications return
//! when the kernel has carried them out.
//!
//! Not here: how requests and replies look (`serve.rs`), what programs do (`system_calls.rs`).

mod backing;
pub mod serve;

use crate::kernel::requests::{Answer as KernelAnswer, Errno, Notification, Request};
use crate::kernel::{Call, CallId, CallResult, Config, Handle, Kernel, Output};
use crate::object_file::Descriptor;
use crate::process::{Ask, Process};
use crate::random::Random;
use crate::script::Word;
use crate::shell::{SimShell, released};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use weft_client_core::Files;
use weft_mount_core::{Job, Mount, MountNotice, MountShell, Notified, Refused, Settings};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{Error, InodeNumber, Name, NodeId, NodeIdentity};

/// What the kernel is agreed with, and small pages, so that small files have many. A page of a kept listing has one
/// name; a listing with attributes has room for three.
const CONFIG: Config =
    Config { page_bytes: 32, max_read_bytes: 512, max_write_bytes: 64, max_readahead_bytes: 64, ..Config::WEFT };
/// For how long the number of an inode can be used at least, milliseconds; two clocks differ by up to 400 in a term.
const OPENABLE_MS: u64 = SESSION_TERM_MS - 500;
/// Longest time that a request or a job waits for a thread, and that a reply waits to be processed, milliseconds.
const THREAD_MS_MAX: u64 = 3;

/// A kernel and how it is told.
pub struct SimKernel {
    process: Rc<Process>,
    model: RefCell<Kernel>,
    has_epoch: bool,
    notified: RefCell<BTreeMap<CallId, Result<(), Errno>>>,
    notifications: Cell<u64>,
    /// When a request was begun by which the kernel was last told of each inode.
    told: RefCell<BTreeMap<u64, u64>>,
    /// Files that it reads and writes by itself.
    backings: RefCell<BTreeMap<u32, Descriptor>>,
    latest_backing: Cell<u32>,
}

/// A file that the kernel reads and writes by itself, until this is dropped.
pub struct SimBacking {
    kernel: Arc<SimKernel>,
    pub id: u32,
}

impl Drop for SimBacking {
    fn drop(&mut self) {
        self.kernel.backings.borrow_mut().remove(&self.id);
    }
}

impl SimKernel {
    /// Sends a notification, and waits until it was carried out.
    async fn notify(&self, notification: Notification) -> Notified {
        let id = CallId(self.notifications.get());
        self.notifications.set(id.0 + 1);
        self.process.note(|| format!("notification {}: {notification:?}", id.0));
        self.model.borrow_mut().notify(id, notification);
        self.process.progressed();
        let result = poll_fn(|_| self.notified.borrow_mut().remove(&id).map_or(Poll::Pending, Poll::Ready)).await;
        self.process.progressed();
        result.map_err(|errno| Refused(errno.0))
    }

    /// An inode that the kernel was told of by a request that began less than a term ago can be opened, whatever became
    /// of its names.
    fn check_opened<T>(&self, node: u64, result: &Result<T, Error>) {
        let told_ms = self.told.borrow().get(&node).copied();
        let is_known = told_ms.is_some_and(|told_ms| {
            self.process.now_ms() < told_ms + OPENABLE_MS && told_ms > self.process.session_ended_ms.get()
        });
        let is_stale = matches!(result, Err(Error::Stale));
        if is_stale && is_known {
            self.process.check(Err(format!("inode {node} is told to the kernel and cannot be opened")));
        }
    }

    /// Registers a file to be read and written past the mount.
    fn back(self: &Arc<Self>, descriptor: &Descriptor) -> SimBacking {
        let id = self.latest_backing.get() + 1;
        self.latest_backing.set(id);
        self.backings.borrow_mut().insert(id, descriptor.clone());
        SimBacking { kernel: Arc::clone(self), id }
    }

    fn reply(&self, unique: u64, answer: KernelAnswer) {
        self.process.note(|| format!("reply to {unique}: {answer:?}"));
        self.model.borrow_mut().reply(unique, answer);
        self.process.progressed();
    }
}

impl weft_mount_core::Kernel for SimKernel {
    async fn entry(&self, parent: InodeNumber, name: &Name) -> Notified {
        let name = serve::text(name.as_bytes());
        let dropped = Notification::InvalidateEntry { parent: parent.raw(), name, expire_only: false };
        match self.notify(dropped).await {
            Err(Refused::NOT_FOUND) => Ok(()),
            result => result,
        }
    }

    async fn attributes(&self, inode: InodeNumber) -> Notified {
        self.notify(Notification::InvalidateInode { node: inode.raw(), offset: -1, bytes: 0 }).await
    }

    async fn contents(&self, inode: InodeNumber, offset: u64, bytes: u64) -> Notified {
        let signed = |number: u64| i64::try_from(number).expect("files of the simulation are small");
        let (offset, bytes) = (signed(offset), signed(bytes));
        self.notify(Notification::InvalidateInode { node: inode.raw(), offset, bytes }).await
    }

    async fn grow(&self, inode: InodeNumber, size: u64) -> Notified {
        match self.notify(Notification::Grow { node: inode.raw(), size }).await {
            Err(refused) if refused.0 == Errno::EFAULT.0 => Ok(()),
            result => result,
        }
    }

    async fn increment_epoch(&self) -> Notified {
        if !self.has_epoch {
            return Err(Refused(Errno::EINVAL.0));
        }
        self.notify(Notification::IncrementEpoch).await
    }
}

/// The mount's shell.
pub struct SimMount(Rc<Process>);

/// Set once.
#[derive(Default)]
pub struct SimSignal(Cell<bool>);

impl MountShell for SimMount {
    type Client = SimShell;
    type Kernel = SimKernel;
    type Backing = SimBacking;
    type Signal = SimSignal;

    fn page_bytes(&self) -> u64 {
        u64::from(CONFIG.page_bytes)
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.0.now_ms())
    }

    fn set(signal: &SimSignal) {
        signal.0.set(true);
        released();
    }

    async fn wait(&self, signal: &SimSignal, time: Duration) -> bool {
        let ms = u64::try_from(time.as_millis()).expect("waits are seconds");
        let ticket = self.0.ask(Ask::Sleep(ms.max(1)));
        poll_fn(|_| match (signal.0.get(), self.0.is_told(ticket)) {
            (true, _) => Poll::Ready(true),
            (false, true) => Poll::Ready(false),
            (false, false) => Poll::Pending,
        })
        .await
    }

    fn submit(&self, job: Job<Self>) -> bool {
        let process = Rc::clone(&self.0);
        self.0.spawn(async move {
            let what = format_args!("job client{}", process.index);
            let is_late = |random: &mut Random| if random.one_in(4) { 1 + random.below(THREAD_MS_MAX) } else { 0 };
            let ms = process.decide(what, 0, is_late);
            if ms > 0 {
                let ticket = process.ask(Ask::Sleep(ms));
                process.told(ticket).await;
            }
            let notes = Rc::clone(&process);
            job.run(move |notice| notes.note(|| format!("{notice:?}"))).await;
        });
        true
    }

    fn notice(&self, notice: MountNotice) {
        self.0.note(|| format!("{notice:?}"));
    }
}

/// How a mount treats its kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MountMode {
    /// All files bypass the kernel's pages.
    pub direct: bool,
    /// The kernel has epochs.
    pub has_epoch: bool,
    /// The kernel reads and writes objects of its own machine by itself.
    pub passes: bool,
}

impl Word for MountMode {
    fn write(&self) -> String {
        let word = |is: bool, word| if is { format!(" {word}") } else { String::new() };
        format!(
            "mode{}{}{}",
            word(self.direct, "direct"),
            word(self.has_epoch, "epochs"),
            word(self.passes, "passthrough")
        )
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_prefix("mode")?.split_whitespace().collect();
        let is_known = words.iter().all(|word| ["direct", "epochs", "passthrough"].contains(word));
        let has = |word| words.contains(&word);
        is_known.then(|| Self { direct: has("direct"), has_epoch: has("epochs"), passes: has("passthrough") })
    }
}

/// The identity of a node's machine.
pub fn identity(node: NodeId) -> NodeIdentity {
    NodeIdentity(u64::from(node.0))
}

/// A mount.
pub struct Mounted {
    process: Rc<Process>,
    kernel: Arc<SimKernel>,
    mount: Rc<Mount<SimMount>>,
}

impl Mounted {
    /// Mounts a client that has opened nothing. Its kernel settles races by `order`.
    pub fn new(process: &Rc<Process>, machine: Arc<Files<SimShell>>, mode: MountMode, order: Option<u64>) -> Self {
        let mount = Rc::new(Mount::new(machine, SimMount(Rc::clone(process))));
        let settings = Settings { direct: mode.direct, passthrough: mode.passes.then(|| identity(process.home)) };
        mount.settings.set(settings).expect("it is set once");
        #[expect(clippy::arc_with_non_send_sync, reason = "the mount machine shares it so; here all is one thread")]
        let kernel = Arc::new(SimKernel {
            process: Rc::clone(process),
            model: RefCell::new(Kernel::new(Config { seed: order, passthrough: mode.passes, ..CONFIG })),
            has_epoch: mode.has_epoch,
            notified: RefCell::default(),
            notifications: Cell::new(0),
            told: RefCell::default(),
            backings: RefCell::default(),
            latest_backing: Cell::new(0),
        });
        process.mount.replace(Arc::downgrade(&mount.caches));
        let (caches, connected) = (Arc::clone(&mount.caches), Arc::clone(&kernel));
        process.spawn(async move {
            caches.connect(connected, true).await;
        });
        Self { process: Rc::clone(process), kernel, mount }
    }

    /// A program makes a call.
    pub fn call(&self, id: CallId, call: Call) {
        self.kernel.model.borrow_mut().call(id, call);
    }

    /// Whether the kernel has an error to tell of pages of the call's file.
    pub fn owes_error(&self, call: &Call) -> bool {
        let handle = match call {
            Call::Read { handle, .. } | Call::Pread { handle, .. } => handle,
            Call::Write { handle, .. } | Call::Pwrite { handle, .. } => handle,
            _ => return false,
        };
        self.kernel.model.borrow().owes_error(*handle)
    }

    /// Where the parts end in which a write that has returned was sent.
    pub fn take_pieces(&self, id: CallId) -> Vec<u64> {
        self.kernel.model.borrow_mut().take_pieces(id)
    }

    /// Number of the inode that is open under this handle.
    pub fn inode_of(&self, handle: Handle) -> Option<u64> {
        self.kernel.model.borrow().inode_of(handle)
    }

    /// Memory pressure in the kernel.
    pub fn shrink(&self, pages: bool) {
        let mut model = self.kernel.model.borrow_mut();
        if pages { model.drop_pages() } else { model.drop_dentries() }
    }

    /// Takes what the kernel did: starts tasks for its requests, and returns what calls returned.
    pub fn take_returned(&self) -> Vec<(CallId, CallResult)> {
        let mut model = self.kernel.model.borrow_mut();
        model.set_time(self.process.now_ms());
        let outputs = model.take_outputs();
        drop(model);
        let mut returned = Vec::new();
        for output in outputs {
            self.process.progressed();
            match output {
                Output::Request(request) => self.serve(request),
                Output::Returned { call, result } => returned.push((call, result)),
                Output::Notified { id, result } => {
                    self.kernel.notified.borrow_mut().insert(id, result);
                }
            }
        }
        returned
    }

    fn serve(&self, request: Request) {
        self.process.note(|| format!("request {request:?}"));
        if request.operation.is_backing() {
            return self.process.spawn(backing::serve(Rc::clone(&self.process), Arc::clone(&self.kernel), request));
        }
        let served = serve::Served::new(&self.process, &self.kernel, &self.mount, request.unique);
        self.process.spawn(served.serve(request));
    }
}
