//! A connected client.
//!
//! Lock order: an open inode's state (1), `links` (2), a link's pools and the cache (3). None of rank 2 or 3 is held
//! across a send or a receive.

use crate::data_way::DataWay;
use crate::home::{Batch, Home};
use crate::identity::Identity;
use crate::instance::Instance;
use crate::link::{Link, lock};
use crate::open_inode::{FlushFor, OpenInode};
use crate::open_table::OpenTable;
use crate::opens::Opens;
use crate::recalls::{self, RecallThread};
use crate::terms::Terms;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use weft_client_core::{Cache, Dropped, LookAhead};
use weft_protocol::limits::{HANDLE_BUFFER_BYTES, RELEASE_KEYS_MAX};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{ClusterMap, Credentials, Error, InodeNumber, LeaseKey, Name, NodeId, Result, SessionId, ShardId};
use weft_transport::RdmaSettings;

/// Which way file data takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// The shortest: a descriptor of the object where the server is on this node, else a Unix socket there, else TCP.
    #[default]
    Auto,
    /// Unix socket to servers of this node, no descriptors; TCP to others. Where the server may read our
    /// memory, it takes large writes out of that, and only their headers go through the socket.
    Unix,
    /// As `Unix`, with all bytes through the socket.
    Stream,
    /// TCP only.
    Tcp,
    /// The server moves the bytes through UCX, or nothing does.
    Ucx,
}

impl Way {
    /// From `auto`, `sockets`, `tcp` or `ucx`.
    pub fn of_transport(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "sockets" => Some(Self::Unix),
            "tcp" => Some(Self::Tcp),
            "ucx" => Some(Self::Ucx),
            _ => None,
        }
    }
}

/// How a client is connected.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    pub way: Way,
    /// Where the server moves the bytes.
    pub rdma: RdmaSettings,
    /// Writes of fewer bytes are gathered and sent behind, those from 1 MiB on only when they come in order; 0: 1 MiB.
    pub buffer_bytes: usize,
}

impl ClientOptions {
    /// The defaults, and what the variables of the environment say: `WEFT_TRANSPORT` is `auto`, `sockets`, `tcp` or
    /// `ucx`; those of RDMA are in [`RdmaSettings::from_environment`]. An error names the variable and what it may
    /// say.
    pub fn from_environment() -> std::result::Result<Self, String> {
        let way = match std::env::var("WEFT_TRANSPORT") {
            Ok(text) => Way::of_transport(&text)
                .ok_or_else(|| format!("WEFT_TRANSPORT is '{text}', not auto, sockets, tcp or ucx"))?,
            Err(_) => Way::Auto,
        };
        Ok(Self { way, rdma: RdmaSettings::from_environment()?, buffer_bytes: 0 })
    }
}

/// What the client has done, for `weft bench` and tests: bytes by the way they went, and messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientCounters {
    pub descriptor_read_bytes: u64,
    pub descriptor_write_bytes: u64,
    pub unix_read_bytes: u64,
    pub unix_write_bytes: u64,
    pub tcp_read_bytes: u64,
    pub tcp_write_bytes: u64,
    /// Moved by the server into and out of our memory.
    pub rdma_read_bytes: u64,
    pub rdma_write_bytes: u64,
    /// Requests whose bytes the server moved: a message each way.
    pub rdma_requests: u64,
    /// Messages that told servers of memory.
    pub rdma_shown: u64,
    /// Bytes copied into and out of connections' registered buffers.
    pub rdma_copied_bytes: u64,
    /// Requests whose memory could not be registered.
    pub rdma_not_registered: u64,
    /// Calls to shards that were awaited.
    pub shard_calls: u64,
    /// Data requests.
    pub data_requests: u64,
    pub recalls: u64,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub descriptor_read_bytes: AtomicU64,
    pub descriptor_write_bytes: AtomicU64,
    pub unix_read_bytes: AtomicU64,
    pub unix_write_bytes: AtomicU64,
    pub tcp_read_bytes: AtomicU64,
    pub tcp_write_bytes: AtomicU64,
    pub rdma_read_bytes: AtomicU64,
    pub rdma_write_bytes: AtomicU64,
    pub shard_calls: AtomicU64,
    pub data_requests: AtomicU64,
    pub recalls: AtomicU64,
}

/// Told when a lease is recalled, so that another cache above (the kernel's) drops what it keeps. Called on the recall
/// thread with no lock held; may block.
pub trait Invalidator: Send + Sync {
    /// These names in a directory may mean something else now.
    fn entries(&self, parent: InodeNumber, names: Vec<Name>);
    /// Attributes of the inode may be others now; with `data`, its contents too.
    fn inode(&self, inode: InodeNumber, data: bool);
}

/// A client of one file system.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub identity: Identity,
    pub data_way: DataWay,
    pub buffer_bytes: usize,
    map: RwLock<Arc<ClusterMap>>,
    session: AtomicU64,
    /// Rank 2.
    pub links: Mutex<HashMap<NodeId, Arc<Link>>>,
    /// Rank 3. The session ends, and its terms, with this held.
    pub cache: Mutex<Cache>,
    pub terms: Terms,
    /// Own reports and changes of files to shards, over all.
    reports: AtomicU64,
    /// Rank 3: held for one look.
    pub look_ahead: Mutex<LookAhead>,
    /// Inodes that are open. Rank 0.
    pub open: Mutex<OpenTable>,
    /// Object identifiers, per storage server. Rank 2.
    pub batches: Mutex<HashMap<NodeId, Batch>>,
    /// Data leases of closed files with the stamps of their grants, to be given back together. Rank 3.
    pub closed_leases: Mutex<Vec<(LeaseKey, u64)>>,
    /// Opens on their way: their files may be open at the shard already. Rank 3.
    pub opens: Opens,
    /// Who opened a file last. Rank 3: held to look.
    opener: Mutex<Arc<Credentials>>,
    pub counters: AtomicCounters,
    pub invalidator: RwLock<Option<Arc<dyn Invalidator>>>,
    pub recall_thread: RecallThread,
    pub closed: AtomicBool,
    /// Where files of this client are made.
    pub home: Home,
    /// A home has refused to pass the descriptor of a new object.
    pub home_passes_none: AtomicBool,
    /// Nodes here that pass no descriptors, for writing (`true`) or at all.
    pub passes_none: Mutex<BTreeSet<(NodeId, bool)>>,
}

impl Client {
    /// Connects to a running file system. Fails when none of its nodes answers or the key is refused.
    pub fn connect(instance: &Instance, options: &ClientOptions) -> Result<Client> {
        let inner = Arc::new(Inner::new(instance, options)?);
        recalls::start(&inner).map_err(|error| Error::Device(error.raw_os_error().unwrap_or(11)))?;
        Ok(Client(inner))
    }

    /// The credentials of the key that the client connected with.
    pub fn credentials(&self) -> Credentials {
        self.0.identity.credentials.clone()
    }

    /// Whether the key speaks for one user only: whoever calls, the servers take it as his.
    pub fn is_for_one_user(&self) -> bool {
        self.0.identity.is_user()
    }

    /// The map as last seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.0.map()
    }

    /// Asks a node as such (status, stuck, shutdown).
    pub fn node_request(&self, node: NodeId, request: NodeRequest) -> Result<NodeAnswer> {
        self.0.node_call(node, request)
    }

    /// Does nothing at the shard of `/`, and waits for it: the limit of what any call can reach.
    pub fn ping(&self) -> Result<()> {
        let request = ShardRequest::Ping;
        self.0.call(&self.0.identity.credentials, InodeNumber::ROOT.shard(), request).map(|_| ())
    }

    /// Who is told of recalls. At most one; set it before the first operation.
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        *self.0.invalidator.write().unwrap_or_else(PoisonError::into_inner) = Some(invalidator);
    }

    /// Makes sure that file data goes to the client's home by UCX where that was asked for. An error says in words why
    /// it cannot.
    pub fn require_ucx(&self) -> std::result::Result<(), String> {
        if self.0.way() != Way::Ucx {
            return Ok(());
        }
        let take = |node| self.0.data_connection(node).map(|(link, connection)| link.return_data(connection));
        self.0.at_home(take).map_err(|error| match self.0.data_way.refusal() {
            reason if reason.is_empty() => error.to_string(),
            reason => reason,
        })
    }

    /// What was done so far.
    pub fn counters(&self) -> ClientCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (counters, rdma) = (&self.0.counters, &self.0.data_way.counters);
        ClientCounters {
            descriptor_read_bytes: value(&counters.descriptor_read_bytes),
            descriptor_write_bytes: value(&counters.descriptor_write_bytes),
            unix_read_bytes: value(&counters.unix_read_bytes),
            unix_write_bytes: value(&counters.unix_write_bytes),
            tcp_read_bytes: value(&counters.tcp_read_bytes),
            tcp_write_bytes: value(&counters.tcp_write_bytes),
            rdma_read_bytes: value(&counters.rdma_read_bytes),
            rdma_write_bytes: value(&counters.rdma_write_bytes),
            rdma_requests: value(&rdma.requests),
            rdma_shown: value(&rdma.shown),
            rdma_copied_bytes: value(&rdma.copied_bytes),
            rdma_not_registered: value(&rdma.not_registered),
            shard_calls: value(&counters.shard_calls),
            data_requests: value(&counters.data_requests),
            recalls: value(&counters.recalls),
        }
    }

    /// Has the servers end this client's session, as they do when it was not heard of for a term: what it then loses,
    /// and how
    /// it goes on, can be tried out without the wait.
    pub fn forget_session(&self) {
        let links: Vec<_> = lock(&self.0.links).values().cloned().collect();
        for link in links {
            for shard in self.map().shards_at(link.node()) {
                self.0.end_session(&link, shard);
            }
        }
        self.0.begin_new_session(self.0.session());
    }

    /// Writes back what is buffered and ends the session at every node. Further operations fail.
    pub fn close(&self) -> Result<()> {
        let open = lock(&self.0.open).all();
        let mut result = Ok(());
        for inode in open {
            result = result.and(inode.flush(&self.0, FlushFor::Program));
        }
        self.0.end_sessions();
        result
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end_sessions();
    }
}

impl Inner {
    fn new(instance: &Instance, options: &ClientOptions) -> Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| Error::Device(5))?;
        let (a, b) = (u64_of(&random[..8]), u64_of(&random[8..]));
        let (identity, map) = Identity::of(instance, SessionId(a))?;
        let home = Home::pick(&map, identity.node, b).ok_or(Error::Unreachable)?;
        Ok(Self {
            identity,
            data_way: DataWay::of(options),
            buffer_bytes: if options.buffer_bytes == 0 { HANDLE_BUFFER_BYTES } else { options.buffer_bytes },
            map: RwLock::new(Arc::new(map)),
            session: AtomicU64::new(a),
            links: Mutex::default(),
            cache: Mutex::default(),
            terms: Terms::default(),
            reports: AtomicU64::new(0),
            look_ahead: Mutex::default(),
            open: Mutex::new(OpenTable::new()),
            batches: Mutex::default(),
            closed_leases: Mutex::default(),
            opens: Opens::default(),
            opener: Mutex::default(),
            counters: AtomicCounters::default(),
            invalidator: RwLock::default(),
            recall_thread: RecallThread::new().map_err(device)?,
            closed: AtomicBool::new(false),
            home,
            home_passes_none: AtomicBool::new(false),
            passes_none: Mutex::default(),
        })
    }

    /// Milliseconds since boot, sleep included: what leases count on.
    pub fn clock_ms(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
    }

    pub fn way(&self) -> Way {
        self.data_way.way
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set_map(&self, map: Arc<ClusterMap>) {
        let mut present = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch > present.epoch {
            *present = map;
        }
    }

    pub fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire))
    }

    /// Credentials for a handle to keep: all files that one user opens in a row share them.
    pub fn kept(&self, who: &Credentials) -> Arc<Credentials> {
        let mut opener = lock(&self.opener);
        if **opener != *who {
            *opener = Arc::new(who.clone());
        }
        Arc::clone(&opener)
    }

    /// How many reports and changes of files were answered so far.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Acquire)
    }

    /// Number of a report or change that was just answered.
    pub fn next_report(&self) -> u64 {
        self.reports.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The link to a node, whose recalls are listened to.
    pub fn link(&self, node: NodeId) -> Result<Arc<Link>> {
        let link = self.link_without_recalls(node)?;
        self.recall_thread.attend(self, &link)?;
        Ok(link)
    }

    /// The link to a node that grants no leases: nothing is recalled.
    pub fn link_without_recalls(&self, node: NodeId) -> Result<Arc<Link>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::BadHandle);
        }
        let mut links = lock(&self.links);
        if let Some(link) = links.get(&node) {
            return Ok(Arc::clone(link));
        }
        let record = self.map().node(node).cloned().ok_or(Error::Unreachable)?;
        let link = Arc::new(Link::new(record, self.session()));
        links.insert(node, Arc::clone(&link));
        Ok(link)
    }

    /// The session that these links had is over. A new one is begun; nothing cached holds any more.
    pub fn begin_new_session(&self, ended: SessionId) {
        let mut links = lock(&self.links);
        if self.session() != ended {
            return;
        }
        let mut random = [0; 8];
        let is_filled = getrandom::fill(&mut random).is_ok();
        let dropped = {
            let mut cache = lock(&self.cache);
            if is_filled {
                self.session.store(u64::from_le_bytes(random), Ordering::Release);
            }
            self.terms.end_all();
            cache.clear()
        };
        links.clear();
        drop(links);
        tracing::warn!("session {ended} has ended at a server: beginning a new one");
        self.recall_thread.forget_all();
        lock(&self.batches).clear();
        lock(&self.closed_leases).clear();
        let open = lock(&self.open).all();
        self.tell_all_dropped(dropped, &open);
    }

    /// Tells the cache above what is not known any more.
    pub fn tell_dropped(&self, dropped: &Dropped) {
        if let Some(invalidator) = self.invalidator() {
            tell(&*invalidator, dropped);
        }
    }

    /// Who is told of recalls.
    pub fn invalidator(&self) -> Option<Arc<dyn Invalidator>> {
        self.invalidator.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the cache above that all is lost, on a thread of its own: this one may be serving that very cache.
    fn tell_all_dropped(&self, dropped: Dropped, open: &[Arc<OpenInode>]) {
        let Some(invalidator) = self.invalidator() else { return };
        let open: Vec<InodeNumber> = open.iter().map(|inode| inode.inode).collect();
        let told = std::thread::Builder::new().name("weft-invalidate".to_owned()).spawn(move || {
            for inode in open {
                invalidator.inode(inode, true);
            }
            tell(&*invalidator, &dropped);
        });
        if let Err(error) = told {
            tracing::error!("no thread to drop the caches above: {error}; they hold for up to a session's term");
        }
    }

    /// Ends the session at every node, so that nobody waits for its leases.
    fn end_sessions(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.recall_thread.stop();
        let links: Vec<_> = lock(&self.links).drain().map(|(_, link)| link).collect();
        let map = self.map();
        for link in links {
            for shard in map.shards_at(link.node()) {
                self.end_session(&link, shard);
            }
        }
    }

    fn end_session(&self, link: &Link, shard: ShardId) {
        use weft_protocol::message::Message;
        use weft_protocol::message::shard::ShardCall;
        let mut slot = link.take_slot(crate::link::SlotFor::Caller);
        // A slot that was never connected has nothing to end, unless others of this link have.
        slot.sequence += 1;
        if let Some(connection) = &mut slot.connection {
            let call = ShardCall {
                shard,
                epoch: self.map().epoch,
                slot: slot.index,
                sequence: slot.sequence,
                credentials: None,
                request: ShardRequest::EndSession,
            };
            // A server that is away ends the session by itself after its term.
            let _ = connection.call(&Message::Shard(call));
        }
        link.return_slot(slot);
    }

    /// Puts the data lease of a closed file with those that are given back together.
    pub fn give_back(&self, inode: InodeNumber, stamp: u64) {
        let mut closed = lock(&self.closed_leases);
        closed.push((LeaseKey::Data(inode), stamp));
        let enough = closed.len() >= recalls::RELEASE_BATCH;
        drop(closed);
        if enough {
            self.recall_thread.wake();
        }
    }

    /// How many leases are to be given back.
    pub fn surplus_count(&self) -> usize {
        let closed = lock(&self.closed_leases).len();
        closed + lock(&self.cache).surplus_count()
    }

    /// Leases to be given back at one shard: of closed files, and those that the cache had no room for.
    pub fn take_surplus(&self) -> Option<(ShardId, Vec<(LeaseKey, u64)>)> {
        let mut closed = lock(&self.closed_leases);
        let shard = closed.first().map(|(key, _)| key.inode().shard());
        let mut taken = Vec::new();
        closed.retain(|lease| {
            let take = Some(lease.0.inode().shard()) == shard && taken.len() < RELEASE_KEYS_MAX;
            if take {
                taken.push(*lease);
            }
            !take
        });
        drop(closed);
        let mut cache = lock(&self.cache);
        let shard = shard.or_else(|| cache.surplus_shard())?;
        taken.extend(cache.take_surplus(shard, RELEASE_KEYS_MAX - taken.len()));
        Some((shard, taken))
    }
}

fn tell(invalidator: &dyn Invalidator, dropped: &Dropped) {
    let mut names: BTreeMap<InodeNumber, Vec<Name>> = BTreeMap::new();
    for (parent, name) in &dropped.names {
        names.entry(*parent).or_default().push(name.clone());
    }
    for (parent, names) in names {
        invalidator.entries(parent, names);
    }
    for inode in &dropped.inodes {
        invalidator.inode(*inode, false);
    }
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub(crate) fn device(error: io::Error) -> Error {
    Error::Device(error.raw_os_error().unwrap_or(weft_protocol::error::errno::EIO))
}
