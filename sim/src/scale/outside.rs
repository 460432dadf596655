//! A rank's process as its client machine sees it: each effect asks the cluster and waits, in virtual time, for the
//! answer. Nothing is lost or late here; what is asked is counted where it arrives (`cluster.rs`).

use super::part_file::PartFile;
use crate::shell::SimMonitor;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::{ControlConnection, DataConnection, Dropped, Notice, PassedDescriptor, Shell};
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::message::Message;
use weft_protocol::message::recall::RecallAnswer;
use weft_protocol::{ConnectionId, Error, InodeNumber, NodeId, NodeRecord, Result, SessionId, Timestamp};

/// What a task asks of the cluster.
pub enum Ask {
    /// A connection to a node.
    Connect(NodeId),
    Control {
        session: SessionId,
        node: NodeId,
        message: Box<Message>,
    },
    Data {
        session: SessionId,
        request: DataRequest,
        bytes: Vec<u8>,
    },
    Sleep(u64),
    /// Answered when all ranks have asked.
    Barrier,
}

/// The cluster's answer.
pub enum Told {
    Done,
    Reply(Box<Message>),
    Data(DataReply, Vec<u8>, Option<Rc<PartFile>>),
}

/// See the module.
pub struct Outside {
    pub home: NodeId,
    pub now_ms: Cell<u64>,
    sessions: Rc<Cell<u64>>,
    random: Cell<u64>,
    tickets: Cell<u64>,
    asked: RefCell<Vec<(u64, Ask)>>,
    told: RefCell<BTreeMap<u64, Told>>,
    /// Nodes with a connection for recalls.
    pub attended: RefCell<BTreeSet<NodeId>>,
    /// The session is to be renewed at once, and leases to be given back.
    pub renews: Cell<bool>,
    pub releases: Cell<bool>,
    /// Bytes that the program takes for written are lost.
    pub lost: Cell<bool>,
    /// Answers to recalls, to be sent.
    pub answers: RefCell<Vec<(SessionId, RecallAnswer)>>,
}

impl Outside {
    /// A process that has asked nothing. `number`: which of all it is.
    pub fn new(number: u64, home: NodeId, sessions: &Rc<Cell<u64>>) -> Rc<Self> {
        Rc::new(Self {
            home,
            now_ms: Cell::new(1),
            sessions: Rc::clone(sessions),
            random: Cell::new(number << 32),
            tickets: Cell::new(0),
            asked: RefCell::default(),
            told: RefCell::default(),
            attended: RefCell::default(),
            renews: Cell::new(false),
            releases: Cell::new(false),
            lost: Cell::new(false),
            answers: RefCell::default(),
        })
    }

    /// What was asked since the last call.
    pub fn take_asked(&self) -> Vec<(u64, Ask)> {
        self.asked.take()
    }

    /// An answer has come.
    pub fn tell(&self, ticket: u64, told: Told) {
        self.told.borrow_mut().insert(ticket, told);
    }

    fn ask(&self, ask: Ask) -> u64 {
        let ticket = self.tickets.get() + 1;
        self.tickets.set(ticket);
        self.asked.borrow_mut().push((ticket, ask));
        ticket
    }

    async fn told(&self, ticket: u64) -> Told {
        poll_fn(|_| self.told.borrow_mut().remove(&ticket).map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn done(&self, ask: Ask) {
        let ticket = self.ask(ask);
        self.told(ticket).await;
    }

    /// Waits for all ranks.
    pub async fn barrier(&self) {
        self.done(Ask::Barrier).await;
    }

    fn seconds_of(ms: u64) -> i64 {
        i64::try_from(ms / 1000).expect("a run lasts some virtual minutes")
    }
}

/// The shell of one process.
pub struct ScaleShell(pub Rc<Outside>);

/// A control connection.
pub struct ScaleControl {
    outside: Rc<Outside>,
    session: SessionId,
    node: NodeId,
    /// Of the message whose reply is awaited.
    started: Option<u64>,
}

impl ControlConnection for ScaleControl {
    async fn start(&mut self, message: &Message) -> Result<()> {
        let message = Box::new(message.clone());
        self.started = Some(self.outside.ask(Ask::Control { session: self.session, node: self.node, message }));
        Ok(())
    }

    async fn finish(&mut self) -> Result<Message> {
        let ticket = self.started.take().expect("a reply is awaited after its message was started");
        match self.outside.told(ticket).await {
            Told::Reply(reply) => Ok(*reply),
            Told::Done | Told::Data(..) => unreachable!("a message is answered by a message"),
        }
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// A data connection: one request at a time, as descriptors and direct reads need it.
pub struct ScaleData {
    outside: Rc<Outside>,
    session: SessionId,
    number: u64,
}

impl ScaleData {
    async fn exchange(&self, request: &DataRequest, bytes: &[u8]) -> (DataReply, Vec<u8>, Option<Rc<PartFile>>) {
        let (session, request, bytes) = (self.session, *request, bytes.to_vec());
        let ticket = self.outside.ask(Ask::Data { session, request, bytes });
        match self.outside.told(ticket).await {
            Told::Data(reply, bytes, passed) => (reply, bytes, passed),
            Told::Done | Told::Reply(_) => unreachable!("a data request is answered by data"),
        }
    }
}

/// Why a request is not there.
const ONE_BY_ONE: &str = "members of a split file whose parts have files read directly, and write by descriptors";

impl DataConnection for ScaleData {
    type Registration = ();

    async fn read(&mut self, request: &DataRequest, into: &mut [u8], _registration: Option<()>) -> Result<DataReply> {
        let (reply, bytes, _) = self.exchange(request, &[]).await;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(reply)
    }

    async fn write(&mut self, request: &DataRequest, from: &[u8], _registration: Option<()>) -> Result<DataReply> {
        Ok(self.exchange(request, from).await.0)
    }

    async fn start_write(&mut self, _: &DataRequest, _: Vec<u8>) -> std::result::Result<(), Vec<u8>> {
        unreachable!("{ONE_BY_ONE}")
    }

    async fn start_lent(&mut self, _: &DataRequest, _: &[u8]) -> Result<()> {
        unreachable!("{ONE_BY_ONE}")
    }

    async fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        None
    }

    async fn ask(&mut self, _: &DataRequest) -> Result<()> {
        unreachable!("{ONE_BY_ONE}")
    }

    async fn receive(&mut self, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn met_end(&self) -> bool {
        false
    }

    async fn receive_in_place(&mut self, _: usize, _: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(false)
    }

    async fn discard(&mut self) -> Result<()> {
        Ok(())
    }

    fn prefetch_window(&self) -> (u32, u64) {
        (0, 0)
    }

    fn may_start(&self, _: usize) -> bool {
        false
    }

    fn registers_memory(&self) -> bool {
        false
    }

    fn is_crowded(&self) -> bool {
        false
    }

    fn id(&self) -> ConnectionId {
        ConnectionId(self.number)
    }
}

impl Shell for ScaleShell {
    type Monitor<T> = SimMonitor<T>;
    type Control = ScaleControl;
    type Data = ScaleData;
    type Descriptor = Rc<PartFile>;
    type LockWaiter = ();

    fn now_ms(&self) -> u64 {
        self.0.now_ms.get()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_parts(Outside::seconds_of(self.0.now_ms.get()), 0)
    }

    fn new_session(&self) -> SessionId {
        self.0.sessions.set(self.0.sessions.get() + 1);
        SessionId::of_client(self.0.sessions.get())
    }

    fn random(&self) -> u64 {
        self.0.random.set(self.0.random.get() + 1);
        self.0.random.get()
    }

    async fn sleep_us(&self, time_us: u64) {
        self.0.done(Ask::Sleep(time_us.div_ceil(1000))).await;
    }

    async fn connect(&self, node: &NodeRecord, session: SessionId) -> Result<ScaleControl> {
        self.0.done(Ask::Connect(node.id)).await;
        Ok(ScaleControl { outside: Rc::clone(&self.0), session, node: node.id, started: None })
    }

    async fn attend_recalls(&self, node: &NodeRecord, _session: SessionId) -> Result<()> {
        if !self.0.attended.borrow().contains(&node.id) {
            self.0.done(Ask::Connect(node.id)).await;
            self.0.attended.borrow_mut().insert(node.id);
        }
        Ok(())
    }

    fn session_ended(&self, ended: SessionId, _dropped: Dropped) {
        unreachable!("nothing is lost or late, and yet session {ended} has ended")
    }

    fn wake_release(&self) {
        self.0.releases.set(true);
    }

    fn release_soon(&self) {
        self.0.releases.set(true);
    }

    fn renew_soon(&self) {
        self.0.renews.set(true);
    }

    fn knows_number(&self, _inode: InodeNumber, _stamp: u64) -> bool {
        false
    }

    async fn take_data(&self, node: &NodeRecord, session: SessionId) -> Result<ScaleData> {
        self.0.done(Ask::Connect(node.id)).await;
        let number = self.random();
        Ok(ScaleData { outside: Rc::clone(&self.0), session, number })
    }

    async fn take_data_to_keep(&self, node: &NodeRecord, session: SessionId) -> Result<Option<ScaleData>> {
        self.take_data(node, session).await.map(Some)
    }

    async fn replace_data(&self, _dead: ScaleData) -> Result<ScaleData> {
        Err(Error::Unreachable)
    }

    fn return_data(&self, _connection: ScaleData) {}

    fn reads_directly(&self, _into: &[u8], _registration: Option<()>) -> bool {
        true
    }

    fn uses_descriptors(&self) -> bool {
        true
    }

    async fn ask_descriptor(
        &self,
        connection: &mut ScaleData,
        request: &DataRequest,
    ) -> Result<PassedDescriptor<Rc<PartFile>>> {
        assert_eq!(request.operation, DataOperation::Descriptor);
        let (reply, _, passed) = connection.exchange(request, &[]).await;
        Ok((reply, passed))
    }

    async fn read_file(&self, file: &Rc<PartFile>, into: &mut [u8], offset: u64) -> Result<usize> {
        Ok(file.read(into, offset))
    }

    async fn write_file(&self, file: &Rc<PartFile>, bytes: &[u8], offset: u64, _call_bytes: usize) -> Result<()> {
        file.write(bytes, offset);
        Ok(())
    }

    async fn sync_file(&self, _file: &Rc<PartFile>) -> Result<()> {
        Ok(())
    }

    fn stat_file(&self, file: &Rc<PartFile>) -> Result<(u64, Timestamp)> {
        Ok((file.size(), Timestamp::from_parts(0, 0)))
    }

    fn is_abandoned(&self, _file: &Rc<PartFile>) -> bool {
        false
    }

    fn lock_ended(&self, (): (), _result: Result<()>) {}

    async fn invalidate_inode(&self, _inode: InodeNumber, _data: bool) {}

    async fn invalidate_pages(&self, _inode: InodeNumber, _offset: u64, _bytes: u64) {}

    fn contents_lost(&self, _inode: InodeNumber) {}

    async fn invalidate(&self, _dropped: &Dropped) {}

    fn notice(&self, notice: Notice) {
        if let Notice::BytesLost(_) | Notice::UnpublishedLost(_) = notice {
            self.0.lost.set(true);
        }
    }

    fn is_local(&self, node: &NodeRecord) -> bool {
        node.id == self.0.home
    }
}
