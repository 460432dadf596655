//! What a client has to do although nobody called it: answering recalls, renewing the session, giving leases back.
//!
//! Three threads for all nodes, and one for each that has pages dropped (`page_drops.rs`). The *listener* waits on the
//! recall connections and renews the session. It waits for nothing else, so that recalls are always read (docs/flow-
//! control.md). The *releaser* gets newer maps, gives surplus leases back and ends lock waits at nodes that are gone:
//! its calls wait for slots, whose holders may wait for a recall. The *worker* answers recalls: it may have to write
//! data back first, and the kernel's cache above may have to write back to us. A refused renewal ends the session here:
//! recalls were not answered in time, and the shard grants what others wait for once the term that this client counted
//! last has passed.

use crate::block_on::{block_on, lock};
use crate::native::NativeShell;
use crate::page_drops::PageDrops;
use crate::recall_connections::Listened;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use weft_client_core::{Files, Shell};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::Message;
use weft_protocol::message::recall::{LockGrantTaken, Recall, RecallAnswer};
use weft_protocol::{SessionId, ShardId};
use weft_transport::ControlConnection;

/// How often the session is renewed and leases are given back, milliseconds.
const RENEW_MS: u64 = SESSION_TERM_MS / 4;

/// How long leases wait that somebody's space waits for, milliseconds: others come with them in one message.
const RELEASE_SOON_MS: u64 = 5;

/// A recall to be answered.
struct Job {
    recall: Recall,
    /// The session that it was sent to.
    session: SessionId,
    answer_on: Arc<Mutex<ControlConnection>>,
}

/// The recalls that the worker has: one that is sent again is not answered twice.
type Working = Arc<Mutex<BTreeSet<(ShardId, u64)>>>;

/// Starts the threads. They end with the client.
pub(crate) fn start(files: &Arc<Files<NativeShell>>) -> io::Result<()> {
    let (jobs, receiver) = channel();
    let working = Working::default();
    let (weak, in_work) = (Arc::downgrade(files), Arc::clone(&working));
    std::thread::Builder::new().name("weft-recall".to_owned()).spawn(move || work(&weak, &receiver, &in_work))?;
    let (weak, (releases, due)) = (Arc::downgrade(files), sync_channel(1));
    std::thread::Builder::new().name("weft-release".to_owned()).spawn(move || release(&weak, &due))?;
    let (wake, stopping) = files.calls().shell.recalls.signals();
    let (files, listened) = (Arc::downgrade(files), Vec::new());
    let (release_ms, last_renewal_ms) = (None, 0);
    let page_drops = PageDrops::new(Weak::clone(&files));
    let listener = Listener {
        files,
        wake,
        stopping,
        listened,
        jobs,
        page_drops,
        releases,
        release_ms,
        working,
        last_renewal_ms,
        awaits: false,
    };
    std::thread::Builder::new().name("weft-listen".to_owned()).spawn(move || listener.run())?;
    Ok(())
}

struct Listener {
    files: Weak<Files<NativeShell>>,
    wake: Arc<OwnedFd>,
    stopping: Arc<AtomicBool>,
    listened: Vec<Listened>,
    jobs: Sender<Job>,
    page_drops: PageDrops,
    /// To the releaser: when it is busy, what it misses comes with the next renewal.
    releases: SyncSender<()>,
    /// When leases are given back before the next renewal.
    release_ms: Option<u64>,
    working: Working,
    last_renewal_ms: u64,
    /// A program waits for a lock, or has joined a group: a wait at a node that is gone has to be ended, and the
    /// group's shard told, though no connection is left.
    awaits: bool,
}

impl Listener {
    fn run(mut self) {
        while !self.stopping.load(Ordering::Acquire) {
            let ready = self.wait();
            // Held only while there is work, so that the last handle of the client can go.
            let Some(files) = self.files.upgrade() else { return };
            if ready.first() == Some(&true) {
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8][..]);
                self.listened.append(&mut files.calls().shell.recalls.take_new());
            }
            for (index, ready) in ready.iter().skip(1).enumerate() {
                if *ready {
                    self.receive(&files, index);
                }
            }
            self.listened.retain(|one| one.live.load(Ordering::Acquire));
            self.awaits = files.calls().locks.has_waits() || !files.calls().groups.is_empty();
            let due = self.renew(&files) | self.release_is_due(&files);
            if due || files.calls().session.has_release_batch() {
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
        // Without connections there is nothing to renew: only a wake-up changes that.
        let renew_ms = (!self.listened.is_empty() || self.awaits).then_some(RENEW_MS);
        let timeout = self.release_ms.map_or(renew_ms, |_| Some(RELEASE_SOON_MS)).map(time_of);
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Whether it is time to give back the leases that somebody's space waits for.
    fn release_is_due(&mut self, files: &Files<NativeShell>) -> bool {
        let shell = &files.calls().shell;
        let now_ms = shell.now_ms();
        if shell.recalls.is_release_soon() {
            self.release_ms.get_or_insert(now_ms + RELEASE_SOON_MS);
        }
        let is_due = self.release_ms.take_if(|release_ms| *release_ms <= now_ms).is_some();
        if is_due {
            shell.recalls.release_begins();
        }
        is_due
    }

    fn receive(&mut self, files: &Files<NativeShell>, index: usize) {
        let calls = files.calls();
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
                Ok(Some((_, Message::DropPages(drop)))) => {
                    self.page_drops.asked(one.node, drop, Arc::clone(&connection));
                }
                Ok(Some((_, Message::LockGranted(granted)))) => {
                    files.lock_granted(&granted, one.session);
                    let taken = LockGrantTaken { shard: granted.shard, wait: granted.wait };
                    // What is left of it goes when there is room. On a dead connection it is told again.
                    let _ = lock(&connection).post(0, &Message::LockGrantTaken(taken));
                }
                Ok(Some((_, Message::RenewReply { refused: true, .. }))) => calls.begin_new_session(one.session),
                Ok(Some((_, Message::RenewReply { refused: false, epoch, shards }))) => {
                    // They are answered in their order.
                    if let Some(sent_ms) = one.renewals_sent_ms.pop_front() {
                        let now_ms = calls.shell.now_ms();
                        if calls.renewed((one.node, epoch), &shards, one.session, (sent_ms, now_ms)) {
                            let _ = self.releases.try_send(());
                        }
                    }
                }
                Ok(None) => return,
                // The server is gone, or malformed: leases end with the term, or are asked for on a new connection.
                Ok(Some(_)) | Err(_) => {
                    one.live.store(false, Ordering::Release);
                    return;
                }
            }
        }
    }

    /// Renews the session, if it is time. Returns whether it was.
    fn renew(&mut self, files: &Files<NativeShell>) -> bool {
        let shell = &files.calls().shell;
        let now_ms = shell.now_ms();
        let (is_asked, is_due) = (shell.recalls.take_renewal(), now_ms >= self.last_renewal_ms + RENEW_MS);
        if is_due {
            self.last_renewal_ms = now_ms;
        } else if !is_asked {
            return false;
        }
        let renew = Message::Renew { groups: files.calls().groups.all() };
        for one in &mut self.listened {
            one.renewals_sent_ms.push_back(now_ms);
            if lock(&one.connection).post(0, &renew).is_err() {
                one.live.store(false, Ordering::Release);
            }
        }
        if !is_due {
            return false;
        }
        for (node, inodes) in files.take_unheard() {
            tracing::warn!("node {node} has not answered for some seconds: pages of its files are dropped");
            self.page_drops.unheard(node, inodes);
        }
        shell.close_unused();
        true
    }
}

fn time_of(ms: u64) -> Timespec {
    let ms = i64::try_from(ms).expect("what the listener waits for is seconds");
    Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
}

fn release(files: &Weak<Files<NativeShell>>, due: &Receiver<()>) {
    while due.recv().is_ok() {
        let Some(files) = files.upgrade() else { return };
        block_on(files.calls().catch_up());
        block_on(files.release_surplus());
        block_on(files.hold_directories());
        block_on(files.tend_locks());
        block_on(files.attend_groups());
    }
}

fn work(files: &Weak<Files<NativeShell>>, jobs: &Receiver<Job>, working: &Working) {
    while let Ok(Job { recall, session, answer_on }) = jobs.recv() {
        let Some(files) = files.upgrade() else { return };
        let kept = block_on(files.answer_recall(&recall, session));
        lock(working).remove(&(recall.shard, recall.number));
        let Some(kept) = kept else { continue };
        let answer = RecallAnswer { shard: recall.shard, number: recall.number, kept };
        // On a dead connection the shard asks again, or the session's term ends.
        let mut connection = lock(&answer_on);
        let _ = connection.post(0, &Message::RecallAnswer(answer));
        if connection.has_posted() {
            files.calls().shell.recalls.wake();
        }
    }
}
