//! How long a call waits for a node that does not answer, and what ends its wait before.
//!
//! A call to a node that is stopped, or whose link is cut, waits in a socket. Before the *soft* time is over (half of
//! it, 5 s at most) the node is asked once more over a new connection, by a thread of its own. An answer means that the
//! node lives and something else holds the call up (a lease of another client, a slow device): the wait starts anew.
//! Without one the call fails with [`Error::Unreachable`] when the soft time has passed, and so do the calls that began
//! before and queue behind it. Without a soft time (a *hard* client) calls wait until the node answers or is gone.
//! A thread counts its own sleeps: what the client itself was stopped for is not held against a node.
//!
//! A front may name the program that a thread works for ([`work_for`]): when that is killed, the thread's waits end.

use crate::block_on::lock;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft_protocol::limits::HANDSHAKE_MS_MAX;
use weft_protocol::{Error, NodeId, Result};
use weft_transport::TransportError;
use weft_transport::before_wait::{Waiting, before_wait};
use weft_transport::patience::{Patience, Waited};

/// Default of [`crate::ClientOptions::soft`].
pub const SOFT_DEFAULT: Duration = Duration::from_secs(10);
/// Longest wait for a handshake and for the answer of a node that is asked once more.
const ANSWER_MAX: Duration = Duration::from_millis(HANDSHAKE_MS_MAX);
/// A wait is this long before the first look at the program: looking costs ten system calls.
const LOOK_AFTER: Duration = Duration::from_millis(400);
/// Delay before a connection is tried again to a network that is unreachable now.
const RETRY_REST: Duration = Duration::from_millis(200);

/// Number of times that a node of this process's clients was found hung.
static FOUND_HUNG: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// [`FOUND_HUNG`] when this thread's current procedure began.
    static BEGAN: Cell<u64> = const { Cell::new(0) };
    static WORK: Cell<Option<Work>> = const { Cell::new(None) };
}

/// The program that a thread works for.
#[derive(Clone, Copy)]
pub struct Program {
    /// Identifier of the program's waiting thread.
    pub thread: u32,
    /// Returns true if that thread is about to be killed.
    pub is_killed: fn(u32) -> bool,
    /// Waits for written bytes end too: those that the node has not confirmed are lost then, as after a node's end.
    pub loses_writes: bool,
}

/// What a thread does for a program, and since when.
#[derive(Clone, Copy)]
struct Work {
    program: Program,
    began: Instant,
}

/// Restores the previous program on drop.
pub struct Working(Option<Work>);

impl Drop for Working {
    fn drop(&mut self) {
        WORK.set(self.0);
    }
}

/// From now on this thread works for a program (or for none), until the result is dropped.
pub fn work_for(program: Option<Program>) -> Working {
    Working(WORK.replace(program.map(|program| Work { program, began: Instant::now() })))
}

/// Suspends the program for a transfer whose interruption would lose written bytes that it did not write.
pub(crate) fn keep_writes() -> Working {
    Working(WORK.replace(WORK.get().filter(|work| work.program.loses_writes)))
}

/// A procedure begins on this thread.
pub(crate) fn begin() {
    BEGAN.set(FOUND_HUNG.load(Ordering::Relaxed));
}

/// Returns true if the program that this thread works for was killed.
fn is_killed() -> bool {
    WORK.get().is_some_and(|work| (work.program.is_killed)(work.program.thread))
}

/// Returns true if the work for a program has lasted so long that it may be one wait after another.
fn may_have_waited() -> bool {
    WORK.get().is_some_and(|work| work.began.elapsed() >= LOOK_AFTER)
}

/// Asks a node for an answer over a new connection, within this time.
type Ask = Box<dyn Fn(Duration) -> Result<()> + Send + Sync>;

/// The soft time of a client in milliseconds; 0: there is none.
#[derive(Clone, Debug)]
struct Soft(Arc<AtomicU64>);

impl Soft {
    fn new(soft: Option<Duration>) -> Self {
        Self(Arc::new(AtomicU64::new(milliseconds(soft))))
    }

    fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ms| *ms > 0).map(Duration::from_millis)
    }
}

fn milliseconds(soft: Option<Duration>) -> u64 {
    soft.map_or(0, |soft| u64::try_from(soft.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// Waits for all nodes.
pub(crate) struct Waits {
    soft: Soft,
    nodes: Mutex<HashMap<NodeId, Arc<NodeWaits>>>,
}

impl Waits {
    /// `soft`: `None` for a hard client.
    pub fn new(soft: Option<Duration>) -> Self {
        Self { soft: Soft::new(soft), nodes: Mutex::default() }
    }

    /// The client ends: from now on a hard one waits no longer than any other.
    pub fn client_ends(&self) {
        let hard = milliseconds(None);
        let soft = milliseconds(Some(SOFT_DEFAULT));
        // Unchanged, if the client has a soft time.
        let _ = self.soft.0.compare_exchange(hard, soft, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the waits for a node; `ask` asks it once more.
    pub fn of(&self, node: NodeId, ask: impl FnOnce() -> Ask) -> Arc<NodeWaits> {
        let mut nodes = lock(&self.nodes);
        let new = || {
            let (soft, hung) = (self.soft.clone(), AtomicU64::new(0));
            NodeWaits { node, soft, ask: ask(), hung, asked: Mutex::default() }
        };
        Arc::clone(nodes.entry(node).or_insert_with(|| Arc::new(new())))
    }
}

/// Waits for one node.
pub(crate) struct NodeWaits {
    node: NodeId,
    soft: Soft,
    ask: Ask,
    /// [`FOUND_HUNG`] after this node was last found hung.
    hung: AtomicU64,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    in_flight: bool,
    answered: Option<Instant>,
}

impl fmt::Debug for NodeWaits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeWaits").field("node", &self.node).field("soft", &self.soft).finish_non_exhaustive()
    }
}

impl NodeWaits {
    /// Longest wait for one handshake.
    pub fn handshake_time(&self) -> Duration {
        self.soft.get().map_or(ANSWER_MAX, |soft| ANSWER_MAX.min(soft / 2))
    }

    /// Fails if a call of this thread is not to wait for the node: the node was found hung since the call began, or the
    /// program was killed.
    pub fn check(&self) -> Result<()> {
        let fails = self.was_found_hung() || (may_have_waited() && is_killed());
        if fails { Err(Error::Unreachable) } else { Ok(()) }
    }

    /// Returns true if connecting is to be tried again after a timeout. `waited`: for its timeouts so far; those are
    /// counted, and not the clock read, since a client that is stopped itself meets timeouts, too.
    pub fn tries_again(&self, waited: &mut Duration) -> bool {
        *waited += self.handshake_time();
        self.goes_on(*waited)
    }

    /// The same after an error, which comes at once: rests first.
    pub fn tries_again_later(&self, waited: &mut Duration) -> bool {
        *waited += RETRY_REST;
        before_wait(Waiting::Sleeps);
        std::thread::sleep(RETRY_REST);
        self.goes_on(*waited)
    }

    fn goes_on(&self, waited: Duration) -> bool {
        let is_over = self.soft.get().is_some_and(|soft| waited >= soft);
        if is_over {
            self.found_hung();
        }
        !is_over && self.check().is_ok()
    }

    fn was_found_hung(&self) -> bool {
        self.soft.get().is_some() && self.hung.load(Ordering::Acquire) > BEGAN.get()
    }

    fn found_hung(&self) {
        tracing::warn!("node {} does not answer: calls that wait for it fail", self.node);
        self.hung.fetch_max(FOUND_HUNG.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
    }

    /// Asks the node once more, on a thread of its own, unless that is under way.
    fn ask(self: &Arc<Self>, time: Duration) {
        if std::mem::replace(&mut lock(&self.asked).in_flight, true) {
            return;
        }
        let waits = Arc::clone(self);
        let ask = move || {
            let answered = (waits.ask)(time).is_ok();
            let mut asked = lock(&waits.asked);
            asked.in_flight = false;
            if answered {
                asked.answered = Some(Instant::now());
            }
        };
        if let Err(error) = std::thread::Builder::new().name("weft-ask".to_owned()).spawn(ask) {
            tracing::warn!("cannot start a thread to ask node {}: {error}", self.node);
            lock(&self.asked).in_flight = false;
        }
    }
}

/// The patience of a node's sockets.
#[derive(Debug)]
pub(crate) struct SocketPatience(pub Arc<NodeWaits>);

impl Patience for SocketPatience {
    fn waited(&self, since: Instant, time: Duration) -> weft_transport::Result<Waited> {
        let waits = &self.0;
        let is_over = waits.was_found_hung() || (time >= LOOK_AFTER && is_killed());
        let Some(soft) = waits.soft.get().filter(|_| !is_over) else { return ended(is_over) };
        if lock(&waits.asked).answered.is_some_and(|answered| answered > since) {
            return Ok(Waited::Lives);
        }
        let answer = waits.handshake_time();
        if time >= soft {
            waits.found_hung();
            return ended(true);
        }
        if time >= soft.saturating_sub(answer) {
            waits.ask(answer);
        }
        Ok(Waited::GoOn)
    }
}

fn ended(is_over: bool) -> weft_transport::Result<Waited> {
    if is_over { Err(TransportError::Io(io::Error::from(Errno::TIMEDOUT))) } else { Ok(Waited::GoOn) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const SOFT: Duration = Duration::from_secs(20);
    /// More than a call waits for anything.
    const LONG: Duration = Duration::from_secs(3600);

    fn patience(soft: Option<Duration>, asked: &Arc<AtomicUsize>, lives: bool) -> SocketPatience {
        let asked = Arc::clone(asked);
        let ask: Ask = Box::new(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            if lives { Ok(()) } else { Err(Error::Unreachable) }
        });
        SocketPatience(Waits::new(soft).of(NodeId(0), || ask))
    }

    fn waits_on(patience: &SocketPatience, time: Duration) -> bool {
        patience.waited(Instant::now(), time).is_ok()
    }

    /// Waits for what another thread does soon.
    fn wait_until(mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !happened() {
            assert!(Instant::now() < deadline, "it did not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_call_fails_when_the_node_is_silent_and_goes_on_when_it_answers() {
        begin();
        let asked = Arc::default();
        let silent = patience(Some(SOFT), &asked, false);
        assert!(waits_on(&silent, SOFT - ANSWER_MAX));
        wait_until(|| asked.load(Ordering::Relaxed) == 1);
        assert!(waits_on(&silent, SOFT - Duration::from_millis(1)));
        assert!(!waits_on(&silent, SOFT), "it was asked once more, and is silent");
        begin();
        let living = patience(Some(SOFT), &asked, true);
        let since = Instant::now();
        wait_until(|| living.waited(since, SOFT - ANSWER_MAX).unwrap() == Waited::Lives);
        assert!(waits_on(&patience(Some(SOFT), &asked, true), SOFT / 4), "too early to ask");
    }

    #[test]
    fn a_hard_client_waits_until_it_ends() {
        begin();
        let waits = Waits::new(None);
        let patience = SocketPatience(waits.of(NodeId(0), || Box::new(|_| Err(Error::Unreachable))));
        assert!(waits_on(&patience, LONG));
        waits.client_ends();
        assert!(!waits_on(&patience, LONG));
    }

    #[test]
    fn calls_that_began_before_a_node_was_found_hung_fail_with_it() {
        let patience = patience(Some(SOFT), &Arc::default(), false);
        begin();
        assert_eq!(patience.0.check(), Ok(()));
        patience.0.found_hung();
        assert_eq!(patience.0.check(), Err(Error::Unreachable));
        assert!(!waits_on(&patience, Duration::ZERO));
        begin();
        assert_eq!(patience.0.check(), Ok(()), "a later call asks for itself");
        assert!(waits_on(&patience, Duration::ZERO));
    }

    #[test]
    fn connecting_is_tried_again_for_as_long_as_a_call_waits() {
        begin();
        let (soft, hard) = (patience(Some(SOFT), &Arc::default(), false), patience(None, &Arc::default(), false));
        let tries = |patience: &SocketPatience| {
            let mut waited = Duration::ZERO;
            (0..100).take_while(|_| patience.0.tries_again(&mut waited)).count()
        };
        assert_eq!(tries(&soft), 3);
        assert_eq!(tries(&hard), 100);
    }

    #[test]
    fn the_end_of_a_program_ends_the_waits_for_it() {
        begin();
        let patience = patience(None, &Arc::default(), true);
        let killed = Program { thread: 7, is_killed: |thread| thread == 7, loses_writes: false };
        let _working = work_for(Some(killed));
        assert!(waits_on(&patience, LOOK_AFTER / 2), "too early to look");
        assert!(!waits_on(&patience, LOOK_AFTER));
        assert_eq!(patience.0.check(), Ok(()), "nor does a call look that waits for nothing");
        let began = Instant::now() - LOOK_AFTER;
        WORK.set(Some(Work { program: killed, began }));
        {
            let _kept = keep_writes();
            assert!(waits_on(&patience, LONG), "others' bytes are not lost for it");
        }
        assert_eq!(patience.0.check(), Err(Error::Unreachable));
        let _other = work_for(Some(Program { thread: 8, ..killed }));
        assert!(waits_on(&patience, LONG));
    }
}
