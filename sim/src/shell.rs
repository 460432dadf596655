//! The client machine's shell in the simulation: each effect asks the world and waits, in virtual time, for its answer.

use crate::bytes::OperationId;
use crate::data_connection::SimData;
use crate::object_file::Descriptor;
use crate::process::{Ask, Process, Ticket, Told};
use crate::random::Random;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::{ControlConnection, Dropped, IdleLimits, Monitor, Notice, PassedDescriptor, Shell, Tuning};
use weft_protocol::data::DataRequest;
use weft_protocol::message::Message;
use weft_protocol::{Error, InodeNumber, NodeId, NodeRecord, Result, SessionId, Timestamp};

/// Sizes so small that short files meet every limit.
pub const TUNING: Tuning = Tuning {
    buffer_bytes: 64,
    gathered_below: 64,
    run_bytes: 64,
    small_bytes: 10,
    block_bytes: 20,
    first_bytes: 16,
    alone_bytes: 64,
    copy_bytes: 24,
    few_strided: 0,
    idle: IdleLimits { inodes: 3, descriptors: 2 },
};

/// Longest time of a system call on a descriptor, milliseconds.
const DESCRIPTOR_USE_MS_MAX: u64 = 5;

thread_local! {
    /// Grows whenever a lock is released or notified: a task that waits for one may get further.
    static RELEASES: Cell<u64> = const { Cell::new(0) };
}

/// How often locks were released, in this thread.
pub fn releases() -> u64 {
    RELEASES.get()
}

/// A task may get further now.
pub fn released() {
    RELEASES.set(RELEASES.get() + 1);
}

/// A lock that tasks wait for by being polled again.
pub struct SimMonitor<T> {
    /// Not there while it is locked.
    value: Cell<Option<Box<T>>>,
    notified: Cell<u64>,
}

/// A locked value.
pub struct SimGuard<'a, T> {
    monitor: &'a SimMonitor<T>,
    value: Option<Box<T>>,
}

impl<T> Deref for SimGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard has the value until it is dropped")
    }
}

impl<T> DerefMut for SimGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a guard has the value until it is dropped")
    }
}

impl<T> Drop for SimGuard<'_, T> {
    fn drop(&mut self) {
        self.monitor.value.set(self.value.take());
        released();
    }
}

impl<T> Monitor<T> for SimMonitor<T> {
    type Guard<'a>
        = SimGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: Cell::new(Some(Box::new(value))), notified: Cell::new(0) }
    }

    async fn lock<'a>(&'a self) -> SimGuard<'a, T>
    where
        T: 'a,
    {
        let value = poll_fn(|_| self.value.take().map_or(Poll::Pending, Poll::Ready)).await;
        SimGuard { monitor: self, value: Some(value) }
    }

    fn try_lock<'a>(&'a self) -> Option<SimGuard<'a, T>>
    where
        T: 'a,
    {
        self.value.take().map(|value| SimGuard { monitor: self, value: Some(value) })
    }

    async fn wait<'a>(&'a self, guard: SimGuard<'a, T>) -> SimGuard<'a, T>
    where
        T: 'a,
    {
        let seen = self.notified.get();
        drop(guard);
        poll_fn(|_| if self.notified.get() == seen { Poll::Pending } else { Poll::Ready(()) }).await;
        self.lock().await
    }

    fn notify_all(&self) {
        self.notified.set(self.notified.get() + 1);
        released();
    }
}

/// The shell of one process.
pub struct SimShell(pub Rc<Process>);

/// A control connection.
pub struct SimControl {
    process: Rc<Process>,
    session: SessionId,
    node: NodeId,
    /// Of the message whose reply is awaited.
    started: Option<Ticket>,
}

impl ControlConnection for SimControl {
    async fn start(&mut self, message: &Message) -> Result<()> {
        let (session, node, message) = (self.session, self.node, Box::new(message.clone()));
        self.started = Some(self.process.ask(Ask::Send { session, node, message }));
        Ok(())
    }

    async fn finish(&mut self) -> Result<Message> {
        let ticket = self.started.take().expect("a reply is awaited after its message was started");
        match self.process.told(ticket).await {
            Told::Reply(reply) => Ok(*reply),
            Told::Broken => Err(Error::Unreachable),
            Told::Data(..) | Told::Time => unreachable!("a message is answered by a message"),
        }
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// Where the result of a wait for a lock is put.
pub type LockWaiter = Rc<RefCell<Option<Result<()>>>>;

impl SimShell {
    fn new_data(&self, node: NodeId, session: SessionId) -> SimData {
        SimData::new(&self.0, node, session)
    }

    /// A system call on a descriptor takes a while.
    async fn sometimes_wait(&self) {
        let what = format_args!("descriptor client{}", self.0.index);
        let choose = |random: &mut Random| if random.one_in(3) { 1 + random.below(DESCRIPTOR_USE_MS_MAX) } else { 0 };
        let ms = self.0.decide(what, 0, choose);
        if ms > 0 {
            let ticket = self.0.ask(Ask::Sleep(ms));
            self.0.told(ticket).await;
        }
    }
}

impl Shell for SimShell {
    type Monitor<T> = SimMonitor<T>;
    type Control = SimControl;
    type Data = SimData;
    type Descriptor = Descriptor;
    type LockWaiter = LockWaiter;

    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn wall(&self) -> Timestamp {
        self.0.clock.wall(self.0.true_ms.get())
    }

    fn new_session(&self) -> SessionId {
        self.0.sessions.set(self.0.sessions.get() + 1);
        SessionId(self.0.sessions.get())
    }

    fn random(&self) -> u64 {
        self.0.decide(format_args!("chance client{}", self.0.index), 0, Random::next)
    }

    async fn sleep_us(&self, time_us: u64) {
        let ticket = self.0.ask(Ask::Sleep(time_us.div_ceil(1000)));
        self.0.told(ticket).await;
    }

    async fn connect(&self, node: &NodeRecord, session: SessionId) -> Result<SimControl> {
        Ok(SimControl { process: Rc::clone(&self.0), session, node: node.id, started: None })
    }

    async fn attend_recalls(&self, _node: &NodeRecord, _session: SessionId) -> Result<()> {
        Ok(())
    }

    fn session_ended(&self, ended: SessionId, dropped: Dropped) {
        let until = self.0.files.borrow_mut().moment();
        self.0.given_up.borrow_mut().insert(ended, until);
        self.0.session_ended_ms.set(self.0.now_ms());
        self.0.ask(Ask::SessionOver(ended));
        if let Some(caches) = self.0.caches() {
            let machine = self.0.machine.borrow().upgrade();
            self.0.spawn(async move {
                for inode in machine.map_or_else(Vec::new, |machine| machine.open_inodes()) {
                    caches.inode(inode, true).await;
                }
                caches.dropped(&dropped).await;
            });
        }
    }

    fn wake_release(&self) {
        self.0.release_soon();
    }

    fn release_soon(&self) {
        self.0.release_soon();
    }

    fn renew_soon(&self) {
        self.0.ask(Ask::RenewSoon);
    }

    fn knows_number(&self, inode: InodeNumber, stamp: u64) -> bool {
        if let Some(caches) = self.0.caches() {
            return caches.knows(inode, stamp);
        }
        // A kernel above knows every other inode, and forgets none: their numbers can be used for a term.
        inode.sequence().is_multiple_of(2)
    }

    async fn take_data(&self, node: &NodeRecord, session: SessionId) -> Result<SimData> {
        Ok(self.new_data(node.id, session))
    }

    async fn take_data_to_keep(&self, node: &NodeRecord, session: SessionId) -> Result<Option<SimData>> {
        Ok(Some(self.new_data(node.id, session)))
    }

    async fn replace_data(&self, dead: SimData) -> Result<SimData> {
        Ok(self.new_data(dead.node, dead.session))
    }

    fn return_data(&self, connection: SimData) {
        assert!(connection.is_free(), "returned with requests outstanding");
    }

    fn reads_directly(&self, _into: &[u8], _registration: Option<OperationId>) -> bool {
        false
    }

    fn uses_descriptors(&self) -> bool {
        self.0.has_descriptors
    }

    async fn ask_descriptor(
        &self,
        connection: &mut SimData,
        request: &DataRequest,
    ) -> Result<PassedDescriptor<Descriptor>> {
        connection.ask_descriptor(request).await
    }

    async fn read_file(&self, file: &Descriptor, into: &mut [u8], offset: u64) -> Result<usize> {
        self.sometimes_wait().await;
        let bytes = file.read(offset, into.len());
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    async fn write_file(&self, file: &Descriptor, bytes: &[u8], offset: u64, _call_bytes: usize) -> Result<()> {
        self.sometimes_wait().await;
        let written = file.write(offset, bytes, self.0.now())?;
        if written == bytes.len() { Ok(()) } else { Err(Error::NoSpace) }
    }

    async fn sync_file(&self, _file: &Descriptor) -> Result<()> {
        Ok(())
    }

    fn stat_file(&self, file: &Descriptor) -> Result<(u64, Timestamp)> {
        Ok(file.file.stat())
    }

    fn is_abandoned(&self, file: &Descriptor) -> bool {
        !file.file.has_name()
    }

    fn lock_ended(&self, waiter: LockWaiter, result: Result<()>) {
        waiter.replace(Some(result));
        self.0.progressed();
    }

    async fn invalidate_inode(&self, inode: InodeNumber, data: bool) {
        if let Some(caches) = self.0.caches() {
            caches.inode(inode, data).await;
        }
    }

    async fn invalidate_pages(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        if let Some(caches) = self.0.caches() {
            caches.drop_pages(inode, offset, bytes).await;
        }
    }

    fn contents_lost(&self, inode: InodeNumber) {
        if let Some(caches) = self.0.caches() {
            self.0.spawn(async move { caches.inode(inode, true).await });
        }
    }

    async fn invalidate(&self, dropped: &Dropped) {
        if let Some(caches) = self.0.caches() {
            caches.dropped(dropped).await;
        }
    }

    fn notice(&self, notice: Notice) {
        let process = &self.0;
        match notice {
            Notice::BytesLost(_) | Notice::SessionEnded(_) if process.makes_system_calls.get() => {
                process.note(|| format!("{notice:?}"));
                let of = if let Notice::BytesLost(inode) = notice { Some(inode.raw()) } else { None };
                process.losses.borrow_mut().push(of);
            }
            Notice::Flushed(_) | Notice::GivenUp(_) if process.makes_system_calls.get() => {}
            Notice::GivenUp(inode) => {
                process.files.borrow_mut().gave_up_buffers(process.id.get(), inode);
                process.ask(Ask::Settle);
            }
            Notice::BytesLost(inode) => {
                process.files.borrow_mut().lost_buffers(process.id.get(), inode);
                process.ask(Ask::Settle);
            }
            Notice::UnpublishedLost(inode) => {
                process.files.borrow_mut().lost_unpublished(process.id.get(), inode);
                process.ask(Ask::Settle);
            }
            Notice::Flushed(inode) => {
                let mut files = process.files.borrow_mut();
                // Nothing of this inode was acknowledged while its flush held the lock.
                let since = files.moment();
                files.flushed(process.id.get(), inode, since);
            }
            Notice::NotSettled(inode, _) => process.files.borrow_mut().not_settled(inode),
            Notice::Spilled { .. } => {
                process.note(|| format!("{notice:?}"));
                process.files.borrow_mut().spilled += 1;
            }
            Notice::HeldBack(_) => process.files.borrow_mut().within_ranges += 1,
            Notice::RangeRecalled(_) => {
                process.note(|| format!("{notice:?}"));
                process.files.borrow_mut().ranges_recalled += 1;
            }
            Notice::ShardCall | Notice::DataRequest | Notice::Recall => {}
            other => process.note(|| format!("{other:?}")),
        }
    }

    fn is_local(&self, node: &NodeRecord) -> bool {
        node.id == self.0.home
    }
}
