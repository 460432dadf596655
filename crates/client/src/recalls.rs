//! Recalls and renewals: what a client has to do although nobody called it.
//!
//! Three threads for all nodes. The *listener* waits on the recall connections and renews the session. It waits for
//! nothing else, so that recalls are always read (docs/flow-control.md). The *releaser* gives leases back that are not
//! needed any more: its calls wait for slots, and whoever has those may wait for a recall. The *worker* answers recalls:
//! it may have to write data back first, and the kernel's cache above may have to write back to us. A renewal that is
//! refused ends the session here: recalls were not answered in time, and what others wait for is given to them when the
//! term has passed that this client counted last.
//!
//! A recall never waits for a caller of this client: the worker has a slot of its own, and the one lock that it takes,
//! an open inode's state, is never held by a call that the server keeps waiting for a recall.

use crate::client::Inner;
use crate::link::{Link, SlotFor, lock};
use crate::open_inode::FlushFor;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use weft_protocol::handshake::Purpose;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::Message;
use weft_protocol::message::recall::{Recall, RecallAnswer};
use weft_protocol::message::shard::ShardRequest;
use weft_protocol::{LeaseKey, LeaseMode, NodeId, Result, SessionId, ShardId};
use weft_transport::ControlConnection;

/// Closed files whose leases are gathered before they are given back at once.
pub(crate) const RELEASE_BATCH: usize = 512;
/// How often the session is renewed and leases are given back, milliseconds.
const RENEW_MS: u64 = SESSION_TERM_MS / 4;

/// The way to the listener.
pub(crate) struct RecallThread {
    wake: Arc<OwnedFd>,
    /// Nodes whose recalls are listened to. Rank 3.
    attended: Mutex<HashMap<NodeId, Arc<AtomicBool>>>,
    new: Mutex<Vec<Listened>>,
    stopping: Arc<AtomicBool>,
}

/// A recall connection.
struct Listened {
    node: NodeId,
    session: SessionId,
    connection: Arc<Mutex<ControlConnection>>,
    /// A descriptor of the same socket, to wait on without the lock.
    socket: weft_transport::Socket,
    live: Arc<AtomicBool>,
    /// When the oldest renewal on its way was sent.
    renewal_sent_ms: Option<u64>,
}

/// A recall to be answered.
struct Job {
    recall: Recall,
    /// The session that it is of.
    session: SessionId,
    answer_on: Arc<Mutex<ControlConnection>>,
}

/// Starts the threads. They end with the client.
pub(crate) fn start(inner: &Arc<Inner>) -> io::Result<()> {
    let (jobs, receiver) = channel();
    let working = Arc::new(Mutex::new(BTreeSet::new()));
    let (weak, in_work) = (Arc::downgrade(inner), Arc::clone(&working));
    std::thread::Builder::new().name("weft-recall".to_owned()).spawn(move || work(&weak, &receiver, &in_work))?;
    let (weak, (releases, due)) = (Arc::downgrade(inner), sync_channel(1));
    std::thread::Builder::new().name("weft-release".to_owned()).spawn(move || release(&weak, &due))?;
    let (weak, wake) = (Arc::downgrade(inner), Arc::clone(&inner.recall_thread.wake));
    let (stopping, listened) = (Arc::clone(&inner.recall_thread.stopping), Vec::new());
    let listener = Listener { inner: weak, wake, stopping, listened, jobs, releases, working, last_renewal_ms: 0 };
    std::thread::Builder::new().name("weft-listen".to_owned()).spawn(move || listener.run())?;
    Ok(())
}

impl RecallThread {
    pub fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { wake, attended: Mutex::default(), new: Mutex::default(), stopping: Arc::default() })
    }

    pub fn wake(&self) {
        // Written at most 2^64 times between two reads.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes sure that recalls of a node are listened to, before anything is asked that may grant a lease.
    pub fn attend(&self, inner: &Inner, link: &Link) -> Result<()> {
        let mut attended = lock(&self.attended);
        if attended.get(&link.node()).is_some_and(|live| live.load(Ordering::Acquire)) {
            return Ok(());
        }
        // Connected under the lock: a second caller waits here rather than making a second connection.
        let socket = link.connect(&inner.identity, Purpose::Recall, inner.way())?;
        let duplicate = socket.try_clone().map_err(weft_transport::TransportError::Io)?;
        let live = Arc::new(AtomicBool::new(true));
        let connection = Arc::new(Mutex::new(ControlConnection::new(socket)));
        attended.insert(link.node(), Arc::clone(&live));
        lock(&self.new).push(Listened {
            node: link.node(),
            session: link.session,
            connection,
            socket: duplicate,
            live,
            renewal_sent_ms: None,
        });
        drop(attended);
        self.wake();
        Ok(())
    }

    /// The session is over: its recall connections are not used any more.
    pub fn forget_all(&self) {
        for (_, live) in lock(&self.attended).drain() {
            live.store(false, Ordering::Release);
        }
        self.wake();
    }
}

impl Drop for RecallThread {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Listener {
    inner: Weak<Inner>,
    wake: Arc<OwnedFd>,
    stopping: Arc<AtomicBool>,
    listened: Vec<Listened>,
    jobs: Sender<Job>,
    /// To the releaser: when it is busy, what it misses comes with the next renewal.
    releases: SyncSender<()>,
    /// Recalls in work: one that is sent again is not done twice.
    working: Arc<Mutex<BTreeSet<(ShardId, u64)>>>,
    last_renewal_ms: u64,
}

impl Listener {
    fn run(mut self) {
        while !self.stopping.load(Ordering::Acquire) {
            let ready = self.wait();
            // Held only while there is work, so that the last handle of the client can go.
            let Some(inner) = self.inner.upgrade() else { return };
            if ready.first() == Some(&true) {
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8][..]);
                self.listened.append(&mut lock(&inner.recall_thread.new));
            }
            for (index, ready) in ready.iter().skip(1).enumerate() {
                if *ready {
                    self.receive(&inner, index);
                }
            }
            self.listened.retain(|one| one.live.load(Ordering::Acquire));
            let due = self.renew(&inner);
            if due || lock(&inner.closed_leases).len() >= RELEASE_BATCH {
                let _ = self.releases.try_send(());
            }
        }
    }

    /// Waits for a message, a wake-up, or the time of the next renewal. First the eventfd, then the connections.
    fn wait(&self) -> Vec<bool> {
        let mut polled = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        polled.extend(self.listened.iter().map(|one| {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, lock(&one.connection).has_posted());
            PollFd::from_borrowed_fd(one.socket.as_fd(), wanted)
        }));
        let renew = Timespec { tv_sec: 0, tv_nsec: i64::try_from(RENEW_MS).unwrap_or(1000) * 1_000_000 };
        let renew = Timespec { tv_sec: renew.tv_nsec / 1_000_000_000, tv_nsec: renew.tv_nsec % 1_000_000_000 };
        // Without connections nothing is to be renewed: only a wake-up changes that.
        let timeout = (!self.listened.is_empty()).then_some(&renew);
        match poll(&mut polled, timeout) {
            Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn receive(&mut self, inner: &Inner, index: usize) {
        let Some(one) = self.listened.get_mut(index) else { return };
        let connection = Arc::clone(&one.connection);
        let mut sent = lock(&connection).send_posted();
        loop {
            let next = sent.and_then(|()| lock(&connection).receive_now());
            sent = Ok(());
            match next {
                Ok(Some((_, Message::Recall(recall)))) => {
                    if lock(&self.working).insert((recall.shard, recall.number)) {
                        // The worker ends only after this thread.
                        let _ =
                            self.jobs.send(Job { recall, session: one.session, answer_on: Arc::clone(&connection) });
                    }
                }
                Ok(Some((_, Message::RenewReply { refused: true }))) => inner.begin_new_session(one.session),
                Ok(Some((_, Message::RenewReply { refused: false }))) => {
                    if let Some(sent_ms) = one.renewal_sent_ms.take() {
                        inner.renewed(inner.map().shards_at(one.node), one.session, sent_ms);
                    }
                }
                Ok(None) => return,
                // The server is gone, or talks nonsense: leases are lost with the term, or asked for on a new
                // connection.
                Ok(Some(_)) | Err(_) => {
                    one.live.store(false, Ordering::Release);
                    return;
                }
            }
        }
    }

    /// Renews the session, if it is time. Returns whether it was.
    fn renew(&mut self, inner: &Inner) -> bool {
        let now_ms = inner.clock_ms();
        if now_ms < self.last_renewal_ms + RENEW_MS {
            return false;
        }
        self.last_renewal_ms = now_ms;
        for one in &mut self.listened {
            // Answers do not tell which one they are to: the first is to the oldest.
            one.renewal_sent_ms.get_or_insert(now_ms);
            if lock(&one.connection).post(0, &Message::Renew).is_err() {
                one.live.store(false, Ordering::Release);
            }
        }
        let links: Vec<_> = lock(&inner.links).values().cloned().collect();
        links.iter().for_each(|link| link.data.close_unused());
        true
    }
}

/// Gives leases back that are not needed any more: in batches, and what is left when the session is renewed. Those that
/// are added meanwhile wait: a program that goes on making files would have its leases go back by twos and threes.
fn release_surplus(inner: &Inner) {
    let evicted = lock(&inner.cache).take_evicted();
    inner.tell_dropped(&evicted);
    let mut left = inner.surplus_count();
    while left > 0 {
        let Some((shard, leases)) = inner.take_surplus() else { return };
        left = left.saturating_sub(leases.len());
        let who = &inner.identity.credentials;
        if let Err(error) = inner.call_in(SlotFor::Caller, who, shard, ShardRequest::Release { leases }) {
            // They end with the session's term at the latest.
            tracing::debug!("leases not given back at shard {shard}: {error}");
            return;
        }
    }
}

fn release(inner: &Weak<Inner>, due: &Receiver<()>) {
    while due.recv().is_ok() {
        let Some(inner) = inner.upgrade() else { return };
        release_surplus(&inner);
    }
}

fn work(inner: &Weak<Inner>, jobs: &Receiver<Job>, working: &Mutex<BTreeSet<(ShardId, u64)>>) {
    while let Ok(Job { recall, session, answer_on }) = jobs.recv() {
        let Some(inner) = inner.upgrade() else { return };
        inner.counters.recalls.fetch_add(1, Ordering::Relaxed);
        let kept = give_up(&inner, &recall, session);
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept };
        lock(working).remove(&(recall.shard, recall.number));
        // On a dead connection the shard asks again, or the session's term ends.
        let mut connection = lock(&answer_on);
        let _ = connection.post(0, &Message::RecallAnswer(answer));
        if connection.has_posted() {
            inner.recall_thread.wake();
        }
    }
}

/// Drops what the recall takes, after writing back what must not be lost with it. Returns what is kept.
fn give_up(inner: &Inner, recall: &Recall, session: SessionId) -> LeaseMode {
    if let LeaseKey::Data(inode) = recall.key {
        lock(&inner.cache).note_data_recall(inode, recall.stamp);
        let may_open = inner.opens.may_open(inode, recall.stamp);
        let open = lock(&inner.open).get(inode).cloned();
        if let Some(open) = &open {
            open.weaken(session, recall.stamp);
        }
        if let Some(invalidator) = inner.invalidator() {
            // The kernel writes its dirty pages back to us before this returns.
            invalidator.inode(inode, true);
        }
        let mut is_open = may_open;
        if let Some(open) = open {
            if let Err(error) = open.flush(inner, FlushFor::Recall) {
                tracing::warn!("inode {inode}: buffered data could not be written back on recall: {error}");
            }
            if open.is_dirty() {
                // As long as it counts as open, the shard asks the storage server what was written.
                is_open = true;
            } else {
                lock(&inner.open).drop_idle(inode);
                is_open |= open.is_open();
            }
        }
        // What was written under a session that is over here was not reported: the shard asks for it now, and at the
        // session's end.
        is_open |= session != inner.session();
        return if is_open { LeaseMode::Open } else { LeaseMode::None };
    }
    let dropped = lock(&inner.cache).recall(recall.key, recall.stamp);
    inner.tell_dropped(&dropped);
    LeaseMode::None
}
