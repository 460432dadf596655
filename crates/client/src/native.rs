//! The client machine's shell on a real machine: sockets, threads, clocks and files.
//!
//! Lock order: `ends`, `invalidator` and the recall threads' own locks are leaves.

use crate::block_on::{NativeMonitor, lock};
use crate::connection::{NativeControl, NativeData};
use crate::counters::AtomicCounters;
use crate::data_pool::Pooled;
use crate::data_way::DataWay;
use crate::descriptor;
use crate::identity::Identity;
use crate::invalidator::{Invalidators, tell};
use crate::node_end::{NodeEnd, Reached, ask, connect_to};
use crate::options::Way;
use crate::recall_connections::RecallConnections;
use crate::space_questions::SpaceQuestions;
use crate::waits::{NodeWaits, Waits};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_client_core::{Dropped, Notice, PassedDescriptor, Shell};
use weft_protocol::data::DataRequest;
use weft_protocol::handshake::Purpose;
use weft_protocol::{InodeNumber, NodeId, NodeRecord, Result, SessionId, Timestamp};
use weft_transport::before_wait::{Waiting, before_wait};
use weft_transport::{Registration, Socket};

/// See the module.
pub struct NativeShell {
    pub(crate) identity: Arc<Identity>,
    pub(crate) data_way: DataWay,
    pub(crate) counters: Arc<AtomicCounters>,
    pub(crate) invalidators: Arc<Invalidators>,
    pub(crate) recalls: RecallConnections,
    pub(crate) space: SpaceQuestions,
    ends: Mutex<HashMap<NodeId, Arc<NodeEnd>>>,
    pub(crate) waits: Waits,
}

/// Is called with the result of a wait for a lock, on whatever thread learns of it. Must not block.
pub type LockWaiter = Box<dyn FnOnce(Result<()>) + Send>;

/// A socket whose handshake is done, and the waits for its node.
struct NewSocket {
    socket: Socket,
    waits: Arc<NodeWaits>,
}

impl NativeShell {
    /// A shell that has connected to nothing.
    pub(crate) fn new(identity: Identity, data_way: DataWay, recalls: RecallConnections, waits: Waits) -> Self {
        let identity = Arc::new(identity);
        let (counters, invalidators) = (Arc::default(), Arc::default());
        let (space, ends) = (Mutex::default(), Mutex::default());
        Self { identity, data_way, counters, invalidators, recalls, space, ends, waits }
    }

    /// A node as this session reaches it.
    fn end(&self, record: &NodeRecord, session: SessionId) -> Arc<NodeEnd> {
        let mut ends = lock(&self.ends);
        match ends.get(&record.id).filter(|end| end.session == session) {
            Some(end) => Arc::clone(end),
            None => {
                let end = Arc::new(NodeEnd::new(record.clone(), session, self.waits(record)));
                ends.insert(record.id, Arc::clone(&end));
                end
            }
        }
    }

    fn waits(&self, record: &NodeRecord) -> Arc<NodeWaits> {
        self.waits.of(record.id, || {
            let (record, identity, way) = (record.clone(), Arc::clone(&self.identity), self.data_way.way);
            Box::new(move |time| ask(&record, &identity, way, time))
        })
    }

    fn connect(&self, record: &NodeRecord, session: SessionId, purpose: Purpose) -> Result<NewSocket> {
        let waits = self.waits(record);
        let node = Reached { record, identity: &self.identity, way: self.data_way.way, waits: &waits };
        let (socket, _) = connect_to(node, session, purpose)?;
        Ok(NewSocket { socket, waits })
    }

    fn data(&self, end: Arc<NodeEnd>, bulk: Pooled) -> NativeData {
        NativeData { bulk, end, counters: Arc::clone(&self.counters) }
    }

    /// Closes data connections that nobody has needed for a while: the nodes may need their places for others.
    pub(crate) fn close_unused(&self) {
        let ends: Vec<_> = lock(&self.ends).values().cloned().collect();
        ends.iter().for_each(|end| end.pool.close_unused());
    }
}

impl Shell for NativeShell {
    type Monitor<T> = NativeMonitor<T>;
    type Control = NativeControl;
    type Data = NativeData;
    type Descriptor = OwnedFd;
    type LockWaiter = LockWaiter;

    fn now_ms(&self) -> u64 {
        let time = clock_gettime(ClockId::Boottime);
        time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
    }

    fn wall(&self) -> Timestamp {
        let time = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp::from_parts(time.tv_sec, u32::try_from(time.tv_nsec).expect("nanoseconds are below 10^9"))
    }

    fn new_session(&self) -> SessionId {
        SessionId::of_client(self.random())
    }

    fn random(&self) -> u64 {
        getrandom::u64().expect("getrandom(2) does not fail once the system has booted")
    }

    async fn sleep_us(&self, time_us: u64) {
        before_wait(Waiting::Sleeps);
        std::thread::sleep(Duration::from_micros(time_us));
    }

    async fn connect(&self, node: &NodeRecord, session: SessionId) -> Result<NativeControl> {
        let NewSocket { socket, waits } = NativeShell::connect(self, node, session, Purpose::Control)?;
        Ok(NativeControl { connection: weft_transport::ControlConnection::new(socket), waits, started: None })
    }

    async fn attend_recalls(&self, node: &NodeRecord, session: SessionId) -> Result<()> {
        let connect = || NativeShell::connect(self, node, session, Purpose::Recall).map(|new| new.socket);
        self.recalls.attend((node.id, session), || self.waits(node).check(), connect)
    }

    fn session_ended(&self, _ended: SessionId, dropped: Dropped) {
        self.recalls.forget_all();
        lock(&self.ends).clear();
        self.invalidators.tell_all(dropped);
    }

    fn wake_release(&self) {
        self.recalls.wake();
    }

    fn release_soon(&self) {
        self.recalls.release_soon();
    }

    fn renew_soon(&self) {
        self.recalls.renew_soon();
    }

    fn knows_number(&self, inode: InodeNumber, stamp: u64) -> bool {
        self.invalidators.get().is_some_and(|above| above.knows(inode, stamp))
    }

    async fn take_data(&self, node: &NodeRecord, session: SessionId) -> Result<NativeData> {
        let end = self.end(node, session);
        let bulk = end.take_data(&self.identity, &self.data_way)?;
        Ok(self.data(end, bulk))
    }

    async fn take_data_to_keep(&self, node: &NodeRecord, session: SessionId) -> Result<Option<NativeData>> {
        let end = self.end(node, session);
        let bulk = end.take_data_to_keep(&self.identity, &self.data_way)?;
        Ok(bulk.map(|bulk| self.data(end, bulk)))
    }

    async fn replace_data(&self, dead: NativeData) -> Result<NativeData> {
        let end = Arc::clone(&dead.end);
        drop(dead);
        end.pool.close_idle();
        let bulk = end.take_data(&self.identity, &self.data_way)?;
        Ok(self.data(end, bulk))
    }

    fn return_data(&self, connection: NativeData) {
        connection.end.pool.give_back(connection.bulk);
    }

    fn reads_directly(&self, into: &[u8], registration: Option<Registration>) -> bool {
        self.data_way.reads_directly(into, registration)
    }

    fn uses_descriptors(&self) -> bool {
        self.data_way.way == Way::Auto
    }

    async fn ask_descriptor(
        &self,
        connection: &mut NativeData,
        request: &DataRequest,
    ) -> Result<PassedDescriptor<OwnedFd>> {
        connection.ask_descriptor(request)
    }

    async fn read_file(&self, file: &OwnedFd, into: &mut [u8], offset: u64) -> Result<usize> {
        let count = descriptor::read(file, into, offset)?;
        AtomicCounters::add(&self.counters.descriptor_read_bytes, count as u64);
        Ok(count)
    }

    async fn write_file(&self, file: &OwnedFd, bytes: &[u8], offset: u64, call_bytes: usize) -> Result<()> {
        AtomicCounters::add(&self.counters.descriptor_write_bytes, bytes.len() as u64);
        descriptor::write(file, bytes, offset, call_bytes)
    }

    async fn sync_file(&self, file: &OwnedFd) -> Result<()> {
        descriptor::sync(file)
    }

    fn stat_file(&self, file: &OwnedFd) -> Result<(u64, Timestamp)> {
        descriptor::stat(file)
    }

    fn is_abandoned(&self, file: &OwnedFd) -> bool {
        descriptor::has_no_name(file)
    }

    fn lock_ended(&self, waiter: LockWaiter, result: Result<()>) {
        waiter(result);
    }

    async fn invalidate_inode(&self, inode: InodeNumber, data: bool) {
        if let Some(invalidator) = self.invalidators.get() {
            invalidator.inode(inode, data);
        }
    }

    fn contents_lost(&self, inode: InodeNumber) {
        self.invalidators.tell_contents_lost(inode);
    }

    async fn invalidate_pages(&self, inode: InodeNumber, offset: u64, bytes: u64) {
        if let Some(invalidator) = self.invalidators.get() {
            invalidator.pages(inode, offset, bytes);
        }
    }

    async fn invalidate(&self, dropped: &Dropped) {
        if let Some(invalidator) = self.invalidators.get() {
            tell(&*invalidator, dropped);
        }
    }

    fn notice(&self, notice: Notice) {
        let counters = &self.counters;
        match notice {
            Notice::ShardCall => AtomicCounters::add(&counters.shard_calls, 1),
            Notice::DataRequest => AtomicCounters::add(&counters.data_requests, 1),
            Notice::Recall => AtomicCounters::add(&counters.recalls, 1),
            Notice::Flushed(_) | Notice::GivenUp(_) | Notice::HeldBack(_) | Notice::RangeRecalled(_) => {}
            Notice::SessionEnded(session) => {
                tracing::warn!("session {session} has ended at a server; beginning a new one");
            }
            Notice::BytesLost(inode) | Notice::UnpublishedLost(inode) => {
                tracing::debug!("inode {inode}: written bytes are lost; the program is told");
            }
            Notice::NotSettled(inode, error) => tracing::debug!("inode {inode}: seen after bytes were lost: {error}"),
            Notice::WritebackOnRecallFailed(inode, error) => {
                tracing::warn!("inode {inode}: writeback error when its lease was recalled: {error}");
            }
            Notice::WritebackOnCloseFailed(inode, error) => {
                tracing::warn!("inode {inode}: writeback error when it was closed: {error}");
            }
            Notice::NotLent(inode, error) => {
                tracing::debug!("inode {inode}: no descriptor for the kernel: {error}");
            }
            Notice::HomeMoved { away, home } => {
                tracing::warn!("node {away} is away: new files are made on node {home}");
            }
            Notice::Spilled { inode, full, node } => {
                tracing::info!("inode {inode}: no space left on node {full}: writes go on at node {node}");
            }
            Notice::NotReleased(shard, error) => tracing::debug!("leases not given back at shard {shard}: {error}"),
        }
    }

    fn is_local(&self, node: &NodeRecord) -> bool {
        node.identity == self.identity.node
    }
}
