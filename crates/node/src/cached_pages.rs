//! Pages that kernels keep without a lease, at this node's storage server.
//!
//! [`weft_storage::CachedRanges`] decides; here requests wait for it, and its effects are carried out. The thread of a
//! data connection waits in place, before it reads the body of its request; a cut waits with nobody's thread. A change
//! that is not admitted within [`CHANGE_WAIT`] is refused (`Error::PagesCached`).
//!
//! Lock order: the locks of the parts are leaves. Nothing is sent, and no pass is made or dropped, with one held.

use crate::clock;
use crate::locks::lock;
use crate::mailbox::{Loops, Sink};
use crate::sessions::Sessions;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};
use weft_protocol::message::Message;
use weft_protocol::message::recall::PagesDropped;
use weft_protocol::{Error, ObjectId, Result, SessionId, ShardId};
use weft_storage::{CachedRanges, RangeRequest, RangesEffect};

/// Requests for objects of different parts do not contend.
const PARTS: u64 = 16;
/// How long a change waits. Whoever waits holds up others of its own client.
const CHANGE_WAIT: Duration = Duration::from_millis(20);
/// Kernels drop whole pages of this size.
const PAGE_BYTES: u64 = 4096;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// See the module.
pub struct CachedPages {
    parts: Vec<Part>,
    sessions: Arc<Sessions>,
    loops: Arc<Loops>,
}

struct Part {
    state: Mutex<State>,
    /// When [`CachedPages::tick`] is due here, milliseconds since boot. Read without the lock.
    deadline_ms: AtomicU64,
}

struct State {
    ranges: CachedRanges,
    /// Requests that are not admitted, by number.
    waiting: HashMap<u64, Waiting>,
}

/// Who waits.
enum Waiting {
    Thread(Thread),
    Cut { object: ObjectId, until_ms: u64, proceed: Proceed },
}

/// Called once when a cut is admitted or refused, with no lock held.
type Proceed = Box<dyn FnOnce(Result<Pass>) + Send>;

/// An admitted change. It has landed, or failed, when this is dropped.
pub struct Pass {
    pages: Arc<CachedPages>,
    object: ObjectId,
    number: u64,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Self { pages, object, number } = self;
        pages.step(pages.part(*object), |ranges, now_ms, out| ranges.end(*object, *number, now_ms, out));
    }
}

impl State {
    fn deadline_ms(&self) -> u64 {
        let cuts = self.waiting.values().filter_map(|waiting| match waiting {
            Waiting::Thread(_) => None,
            Waiting::Cut { until_ms, .. } => Some(*until_ms),
        });
        self.ranges.deadline_ms().into_iter().chain(cuts).min().unwrap_or(NEVER)
    }

    /// Gives up the cuts that have waited too long.
    fn take_late_cuts(&mut self, now_ms: u64, out: &mut Vec<RangesEffect>) -> Vec<Proceed> {
        let is_late =
            |_: &u64, waiting: &mut Waiting| matches!(waiting, Waiting::Cut { until_ms, .. } if now_ms >= *until_ms);
        let late: Vec<_> = self.waiting.extract_if(is_late).collect();
        let given_up = late.into_iter().filter_map(|(number, waiting)| match waiting {
            Waiting::Thread(_) => None,
            Waiting::Cut { object, proceed, .. } => {
                self.ranges.end(object, number, now_ms, out);
                Some(proceed)
            }
        });
        given_up.collect()
    }
}

impl CachedPages {
    /// Nothing is cached.
    pub fn new(sessions: Arc<Sessions>, loops: Arc<Loops>) -> Self {
        let part = |number| {
            let ranges = CachedRanges::new(PAGE_BYTES, number, PARTS);
            let state = Mutex::new(State { ranges, waiting: HashMap::new() });
            Part { state, deadline_ms: AtomicU64::new(NEVER) }
        };
        Self { parts: (0..PARTS).map(part).collect(), sessions, loops }
    }

    fn part(&self, object: ObjectId) -> &Part {
        &self.parts[(object.raw() % PARTS) as usize]
    }

    /// Waits until a request may go. A change returns a pass.
    pub fn admit(self: &Arc<Self>, request: RangeRequest) -> Result<Option<Pass>> {
        let (object, changes) = (request.object, request.changes);
        let (number, unused) = self.begin(request, Waiting::Thread(std::thread::current()));
        if unused.is_none() && !self.wait(object, number, changes) {
            return Err(Error::PagesCached);
        }
        Ok(changes.then(|| Pass { pages: Arc::clone(self), object, number }))
    }

    /// Waits in place for a request to be admitted, a change for [`CHANGE_WAIT`]. Returns whether it was.
    fn wait(self: &Arc<Self>, object: ObjectId, number: u64, changes: bool) -> bool {
        let part = self.part(object);
        let until = Instant::now() + CHANGE_WAIT;
        loop {
            if !lock(&part.state).waiting.contains_key(&number) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            match changes {
                false => std::thread::park(),
                true if !left.is_zero() => std::thread::park_timeout(left),
                true => break,
            }
        }
        let gives_up = lock(&part.state).waiting.remove(&number).is_some();
        if gives_up {
            self.step(part, |ranges, now_ms, out| ranges.end(object, number, now_ms, out));
        }
        !gives_up
    }

    /// Has `proceed` called when a cut may go, or has waited for [`CHANGE_WAIT`].
    pub fn admit_cut(self: &Arc<Self>, request: RangeRequest, proceed: Proceed) {
        let object = request.object;
        let until_ms = clock::boot_ms() + u64::from(CHANGE_WAIT.subsec_millis());
        let (number, unused) = self.begin(request, Waiting::Cut { object, until_ms, proceed });
        if let Some(Waiting::Cut { proceed, .. }) = unused {
            proceed(Ok(Pass { pages: Arc::clone(self), object, number }));
        }
    }

    /// Returns the number of a request, and, if it is admitted at once, who would have waited.
    fn begin(self: &Arc<Self>, request: RangeRequest, waiting: Waiting) -> (u64, Option<Waiting>) {
        let part = self.part(request.object);
        let mut waiting = Some(waiting);
        let number = self.step_state(part, |state, now_ms, out| {
            let (number, is_admitted) = state.ranges.begin(request, now_ms, out);
            if !is_admitted {
                state.waiting.extend(waiting.take().map(|waiting| (number, waiting)));
            }
            number
        });
        (number, waiting)
    }

    /// A session has dropped pages.
    pub fn dropped(self: &Arc<Self>, session: SessionId, PagesDropped { object, number }: PagesDropped) {
        let part = self.part(object);
        self.step(part, |ranges, now_ms, out| ranges.dropped(session, (object, number), now_ms, out));
    }

    /// A session is over, at one shard or (`None`) altogether.
    pub fn session_over(self: &Arc<Self>, session: SessionId, shard: Option<ShardId>) {
        for part in &self.parts {
            self.step(part, |ranges, now_ms, out| ranges.session_over(session, shard, now_ms, out));
        }
    }

    /// An object was removed.
    pub fn removed(self: &Arc<Self>, object: ObjectId) {
        self.step(self.part(object), |ranges, now_ms, out| ranges.removed(object, now_ms, out));
    }

    /// Returns true if a session has not answered for a term: it is not to be renewed.
    pub fn is_overdue(&self, session: SessionId) -> bool {
        let now_ms = clock::boot_ms();
        let has_drops = |part: &&Part| part.deadline_ms.load(Ordering::Relaxed) != NEVER;
        self.parts.iter().filter(has_drops).any(|part| lock(&part.state).ranges.is_overdue(session, now_ms))
    }

    /// Returns when [`CachedPages::tick`] is due, milliseconds since boot.
    pub fn deadline_ms(&self) -> Option<u64> {
        let deadlines = self.parts.iter().map(|part| part.deadline_ms.load(Ordering::Relaxed));
        deadlines.min().filter(|deadline_ms| *deadline_ms != NEVER)
    }

    /// Sends drops again, and refuses cuts that have waited too long.
    pub fn tick(self: &Arc<Self>, now_ms: u64) {
        for part in self.parts.iter().filter(|part| part.deadline_ms.load(Ordering::Relaxed) <= now_ms) {
            let late = self.step_state(part, |state, now_ms, out| {
                state.ranges.tick(now_ms, out);
                state.take_late_cuts(now_ms, out)
            });
            late.into_iter().for_each(|proceed| proceed(Err(Error::PagesCached)));
        }
    }

    fn step(self: &Arc<Self>, part: &Part, step: impl FnOnce(&mut CachedRanges, u64, &mut Vec<RangesEffect>)) {
        self.step_state(part, |state, now_ms, out| step(&mut state.ranges, now_ms, out));
    }

    /// Steps the machine of a part, and carries out its effects.
    fn step_state<T>(
        self: &Arc<Self>,
        part: &Part,
        step: impl FnOnce(&mut State, u64, &mut Vec<RangesEffect>) -> T,
    ) -> T {
        let (mut out, mut admitted) = (Vec::new(), Vec::new());
        let mut state = lock(&part.state);
        let result = step(&mut state, clock::boot_ms(), &mut out);
        for effect in &out {
            if let RangesEffect::Admit(number) = effect {
                // Not there: given up at this moment.
                admitted.extend(state.waiting.remove(number).map(|waiting| (*number, waiting)));
            }
        }
        let deadline_ms = state.deadline_ms();
        let former_ms = part.deadline_ms.swap(deadline_ms, Ordering::Relaxed);
        drop(state);
        if deadline_ms < former_ms {
            // The first loop serves deadlines.
            self.loops.all().iter().take(1).for_each(|mailbox| mailbox.look());
        }
        for (number, waiting) in admitted {
            self.go_on(number, waiting);
        }
        for effect in out {
            if let RangesEffect::Drop { session, drop } = effect
                // Without a recall connection it is lost, and sent again.
                && let Some(to) = self.sessions.recall_connection(session)
            {
                Sink::remote(&self.loops).send(to, 0, Message::DropPages(drop));
            }
        }
        result
    }

    fn go_on(self: &Arc<Self>, number: u64, waiting: Waiting) {
        match waiting {
            Waiting::Thread(thread) => thread.unpark(),
            Waiting::Cut { object, proceed, .. } => proceed(Ok(Pass { pages: Arc::clone(self), object, number })),
        }
    }
}
