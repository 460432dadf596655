//! Object identifiers in batches, and the collection of objects that nobody will ever ask for.
//!
//! A client leases a batch of identifiers and makes objects under them without asking; a shard learns of an object with
//! the first commit of its file. A client that dies in between leaves an *orphan*. The rule: an object is collected
//! only when the lease holder of its identifier is gone, *and* its shard, asked in its present epoch, does not know it.
//!
//! That a session has no connection to this node any more does not say that it is gone: the client may be cut off from
//! this node alone, and have bytes here that no shard knows yet. So the shard is asked about both, the session and the
//! object. Nor does it say that nothing comes any more: a write that was late may still make an object, until the
//! capability of the batch has expired. So the identifiers are looked through once more then.
//!
//! ```text
//! lease_objects          ->  capability for a batch
//! session_ended          ->  List(run) for each run of the session, and again when its capabilities have expired
//! listed(objects)        ->  AskShard(session, inode, object) for each
//! shard_says(known)      ->  Remove(inode, object), or nothing; undecided or not answered: asked again later
//! due                    ->  what has to be done again
//! ```

use std::collections::{BTreeMap, VecDeque};
use weft_protocol::capability::{CapabilityClaims, expiry};
use weft_protocol::limits::{
    CAPABILITY_TERM_SECONDS, OBJECT_BATCH_COUNT, OBJECT_RUNS_PER_SESSION_MAX, SESSION_TERM_MS,
};
use weft_protocol::{
    Capability, Error, Generation, InodeNumber, MapEpoch, NodeId, NodeKey, ObjectId, Result, Rights, SessionId,
};

/// How long after a session's end its identifiers are looked through again: by then its capabilities have expired, and
/// requests that came before have ended.
pub const LAST_LOOK_MS: u64 = (CAPABILITY_TERM_SECONDS as u64 + 60) * 1_000;
/// Runs that become due within so long are looked through together: a store walks over all of its objects for that.
const LOOK_TOGETHER_MS: u64 = 60_000;
/// Runs of ended sessions kept for their last look. Beyond it the oldest are looked through early.
const ENDED_RUNS_MAX: usize = 4 * OBJECT_RUNS_PER_SESSION_MAX;
/// Time after which a shard that did not decide is asked again. It doubles each time, up to the second value.
const ASK_AGAIN_MS: u64 = SESSION_TERM_MS;
const ASK_AGAIN_MS_MAX: u64 = 16 * SESSION_TERM_MS;

/// Identifiers that follow each other, leased to one session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    pub first: ObjectId,
    pub count: u32,
    pub session: SessionId,
}

impl Run {
    fn end(&self) -> u64 {
        self.first.raw() + u64::from(self.count)
    }
}

/// What the node has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectorEffect {
    /// Look up which objects exist under these identifiers, and tell [`Collector::listed`].
    List(Run),
    /// Ask the inode's shard whether the object is the file's, or may become it, and tell [`Collector::shard_says`].
    AskShard { session: SessionId, inode: InodeNumber, object: ObjectId },
    /// Remove the object.
    Remove { inode: InodeNumber, object: ObjectId },
}

/// An object whose shard has not decided.
#[derive(Debug)]
struct Suspect {
    session: SessionId,
    /// A question about it is on its way.
    is_asked: bool,
}

/// Identifiers of one storage server.
#[derive(Debug)]
pub struct Collector {
    node: NodeId,
    next_sequence: u64,
    /// Identifiers leased to each session that has connections here.
    leases: BTreeMap<SessionId, Vec<Run>>,
    /// Runs of sessions that have ended here, and when they are looked through for the last time; in that order.
    ended: VecDeque<(u64, Run)>,
    suspects: BTreeMap<(InodeNumber, ObjectId), Suspect>,
    /// When shards are asked about suspects again, and how long after that the next time.
    ask_ms: u64,
    ask_again_ms: u64,
}

impl Collector {
    /// `next_sequence`: above every identifier that the store has ever held.
    pub fn new(node: NodeId, next_sequence: u64) -> Self {
        Self {
            node,
            next_sequence,
            leases: BTreeMap::new(),
            ended: VecDeque::new(),
            suspects: BTreeMap::new(),
            ask_ms: 0,
            ask_again_ms: ASK_AGAIN_MS,
        }
    }

    /// Leases a batch and signs the right to make and write its objects.
    pub fn lease_objects(
        &mut self,
        session: SessionId,
        owner_uid: u32,
        count: u32,
        key: &NodeKey,
        epoch: MapEpoch,
        now_seconds: u32,
    ) -> Result<Capability> {
        if count == 0 || count > OBJECT_BATCH_COUNT {
            return Err(Error::Invalid);
        }
        let first = ObjectId::new(self.node, self.next_sequence);
        let runs = self.leases.entry(session).or_default();
        let follows = |run: &&mut Run| run.end() == first.raw() && run.count.checked_add(count).is_some();
        // What follows the session's latest identifiers makes their run longer: a client that is alone has one.
        if let Some(run) = runs.last_mut().filter(follows) {
            run.count += count;
        } else if runs.len() < OBJECT_RUNS_PER_SESSION_MAX {
            runs.push(Run { first, count, session });
        } else {
            return Err(Error::Busy);
        }
        self.next_sequence += u64::from(count);
        Ok(key.sign(&CapabilityClaims {
            object: first,
            count,
            inode: InodeNumber::from_raw(0),
            generation: Generation(1),
            epoch,
            expires_seconds: expiry(now_seconds),
            owner_uid,
            rights: Rights::READ | Rights::WRITE | Rights::CREATE,
            session,
        }))
    }

    /// The session has had no connection to this node for a term.
    pub fn session_ended(&mut self, session: SessionId, now_ms: u64, out: &mut Vec<CollectorEffect>) {
        let last_look_ms = (now_ms + LAST_LOOK_MS).next_multiple_of(LOOK_TOGETHER_MS);
        for run in self.leases.remove(&session).unwrap_or_default() {
            out.push(CollectorEffect::List(run));
            self.ended.push_back((last_look_ms, run));
        }
        let surplus = self.ended.len().saturating_sub(ENDED_RUNS_MAX);
        out.extend(self.ended.drain(..surplus).map(|(_, run)| CollectorEffect::List(run)));
    }

    /// These objects exist under the identifiers of these runs.
    pub fn listed(
        &mut self,
        runs: &[Run],
        objects: &[(InodeNumber, ObjectId)],
        now_ms: u64,
        out: &mut Vec<CollectorEffect>,
    ) {
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        for (inode, object) in objects {
            let before = runs.partition_point(|run| run.first <= *object);
            let run = before.checked_sub(1).and_then(|index| runs.get(index)).filter(|run| object.raw() < run.end());
            // The store may list more than it was asked for.
            let Some(Run { session, .. }) = run.copied() else { continue };
            if !self.suspects.contains_key(&(*inode, *object)) {
                self.ask_again_ms = ASK_AGAIN_MS;
                self.ask_ms = now_ms + ASK_AGAIN_MS;
                self.suspects.insert((*inode, *object), Suspect { session, is_asked: true });
                out.push(CollectorEffect::AskShard { session, inode: *inode, object: *object });
            }
        }
    }

    /// The shard's answer: whether the file has this object. An error other than "no such inode" proves nothing, also
    /// [`Error::Busy`], which says that the session may still give the object to the file: the suspect stays.
    pub fn shard_says(
        &mut self,
        inode: InodeNumber,
        object: ObjectId,
        known: &Result<bool>,
        out: &mut Vec<CollectorEffect>,
    ) {
        let orphan = match known {
            Ok(known) => !known,
            Err(Error::NotFound | Error::Stale) => true,
            Err(_) => {
                if let Some(suspect) = self.suspects.get_mut(&(inode, object)) {
                    suspect.is_asked = false;
                }
                return;
            }
        };
        if self.suspects.remove(&(inode, object)).is_some() && orphan {
            out.push(CollectorEffect::Remove { inode, object });
        }
    }

    /// When [`Collector::due`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        let ask_ms = (!self.suspects.is_empty()).then_some(self.ask_ms);
        let look_ms = self.ended.front().map(|(look_ms, _)| *look_ms);
        ask_ms.into_iter().chain(look_ms).min()
    }

    /// Asks again about the suspects whose shard has not decided, and looks through the identifiers of sessions whose
    /// capabilities have expired.
    pub fn due(&mut self, now_ms: u64, out: &mut Vec<CollectorEffect>) {
        while let Some((_, run)) = self.ended.pop_front_if(|(look_ms, _)| *look_ms <= now_ms) {
            out.push(CollectorEffect::List(run));
        }
        if self.suspects.is_empty() || self.ask_ms > now_ms {
            return;
        }
        self.ask_again_ms = (2 * self.ask_again_ms).min(ASK_AGAIN_MS_MAX);
        self.ask_ms = now_ms + self.ask_again_ms;
        for ((inode, object), suspect) in self.suspects.iter_mut().filter(|(_, suspect)| !suspect.is_asked) {
            suspect.is_asked = true;
            let session = suspect.session;
            out.push(CollectorEffect::AskShard { session, inode: *inode, object: *object });
        }
    }

    /// Objects that wait for their shard's decision.
    pub fn suspects(&self) -> usize {
        self.suspects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(4);
    const INODE: InodeNumber = InodeNumber::ROOT;

    fn leased() -> (Collector, Capability) {
        let mut collector = Collector::new(NodeId(2), 100);
        let key = NodeKey::new([1; 32]);
        let capability = collector.lease_objects(SESSION, 0, 8, &key, MapEpoch(1), 0).unwrap();
        (collector, capability)
    }

    /// The effects of one step.
    fn effects(step: impl FnOnce(&mut Vec<CollectorEffect>)) -> Vec<CollectorEffect> {
        let mut out = Vec::new();
        step(&mut out);
        out
    }

    #[test]
    fn batches_do_not_overlap_and_are_bounded() {
        let (mut collector, first) = leased();
        let key = NodeKey::new([1; 32]);
        let second = collector.lease_objects(SessionId(5), 0, 8, &key, MapEpoch(1), 0).unwrap();
        assert_eq!(second.object.raw(), first.object.raw() + 8);
        for count in [0, OBJECT_BATCH_COUNT + 1] {
            let refused = collector.lease_objects(SESSION, 0, count, &key, MapEpoch(1), 0);
            assert_eq!(refused, Err(Error::Invalid));
        }
    }

    #[test]
    fn what_a_session_leases_takes_bounded_memory() {
        let (mut collector, _) = leased();
        let key = NodeKey::new([1; 32]);
        let mut lease = |session| collector.lease_objects(session, 0, 1, &key, MapEpoch(1), 0).map(|_| ());
        // Alone: one run, however long.
        for _ in 0..OBJECT_RUNS_PER_SESSION_MAX + 10 {
            lease(SESSION).unwrap();
        }
        // In turns: each batch is a run of its own.
        for _ in 1..OBJECT_RUNS_PER_SESSION_MAX {
            lease(SessionId(5)).unwrap();
            lease(SESSION).unwrap();
        }
        lease(SessionId(5)).unwrap();
        assert_eq!(lease(SESSION), Err(Error::Busy));
        lease(SessionId(6)).unwrap();
        let out = effects(|out| collector.session_ended(SESSION, 0, out));
        assert_eq!(out.len(), OBJECT_RUNS_PER_SESSION_MAX);
        let alone = OBJECT_RUNS_PER_SESSION_MAX as u32 + 10 + 8;
        assert!(matches!(out[0], CollectorEffect::List(Run { count, .. }) if count == alone), "{:?}", out[0]);
        assert!(collector.lease_objects(SESSION, 0, 1, &key, MapEpoch(1), 0).is_ok());
    }

    #[test]
    fn what_ended_sessions_leave_takes_bounded_memory() {
        let (mut collector, _) = leased();
        let key = NodeKey::new([1; 32]);
        let mut looked_early = 0;
        for session in (10..20 + ENDED_RUNS_MAX as u64).map(SessionId) {
            collector.lease_objects(session, 0, 1, &key, MapEpoch(1), 0).unwrap();
            looked_early += effects(|out| collector.session_ended(session, 0, out)).len() - 1;
        }
        assert_eq!((collector.ended.len(), looked_early), (ENDED_RUNS_MAX, 10));
    }

    #[test]
    fn an_object_is_collected_only_when_holder_is_gone_and_shard_does_not_know_it() {
        let (mut collector, capability) = leased();
        let object = capability.object;
        // The holder lives: whatever a shard says, nothing happens.
        assert_eq!(effects(|out| collector.shard_says(INODE, object, &Ok(false), out)), []);
        let run = Run { first: object, count: 8, session: SESSION };
        assert_eq!(effects(|out| collector.session_ended(SESSION, 0, out)), [CollectorEffect::List(run)]);
        for (answer, collected, left) in [
            (Err(Error::Unreachable), false, 1),
            (Err(Error::Busy), false, 1),
            (Ok(true), false, 0),
            (Ok(false), true, 0),
            (Err(Error::NotFound), true, 0),
        ] {
            let asked = effects(|out| collector.listed(&[run], &[(INODE, object)], 0, out));
            assert_eq!(asked, [CollectorEffect::AskShard { session: SESSION, inode: INODE, object }]);
            let out = effects(|out| collector.shard_says(INODE, object, &answer, out));
            assert_eq!(out.contains(&CollectorEffect::Remove { inode: INODE, object }), collected, "{answer:?}");
            assert_eq!(collector.suspects(), left, "{answer:?}");
            collector.shard_says(INODE, object, &Ok(true), &mut Vec::new());
        }
    }

    #[test]
    fn a_shard_that_has_not_decided_is_asked_again_and_one_question_is_on_its_way_at_a_time() {
        let (mut collector, capability) = leased();
        let object = capability.object;
        let run = Run { first: object, count: 8, session: SESSION };
        let ask = CollectorEffect::AskShard { session: SESSION, inode: INODE, object };
        assert_eq!(effects(|out| collector.listed(&[run], &[(INODE, object)], 0, out)), [ask]);
        assert_eq!(collector.deadline(), Some(ASK_AGAIN_MS));
        assert_eq!(effects(|out| collector.due(ASK_AGAIN_MS, out)), [], "the first question has no answer yet");
        collector.shard_says(INODE, object, &Err(Error::Busy), &mut Vec::new());
        assert_eq!(effects(|out| collector.due(ASK_AGAIN_MS, out)), [], "it is not due again");
        let mut now_ms = 0;
        for _ in 0..10 {
            let due_ms = collector.deadline().unwrap();
            assert!(due_ms <= now_ms + 3 * ASK_AGAIN_MS_MAX, "{due_ms}");
            now_ms = due_ms;
            assert_eq!(effects(|out| collector.due(now_ms, out)), [ask]);
            collector.shard_says(INODE, object, &Err(Error::Unreachable), &mut Vec::new());
        }
        let removed = effects(|out| collector.shard_says(INODE, object, &Ok(false), out));
        assert_eq!(removed, [CollectorEffect::Remove { inode: INODE, object }]);
        assert_eq!(collector.deadline(), None);
    }

    #[test]
    fn an_object_that_a_late_write_makes_is_collected_when_the_right_to_make_it_has_expired() {
        let (mut collector, capability) = leased();
        let (first, late) = (capability.object, ObjectId::new(NodeId(2), 103));
        let run = Run { first, count: 8, session: SESSION };
        assert_eq!(effects(|out| collector.session_ended(SESSION, 5, out)), [CollectorEffect::List(run)]);
        assert_eq!(effects(|out| collector.listed(&[run], &[], 5, out)), []);
        // Meanwhile a write makes it, which lay in a socket.
        let due_ms = collector.deadline().unwrap();
        assert!(due_ms >= 5 + u64::from(CAPABILITY_TERM_SECONDS) * 1_000);
        assert_eq!(effects(|out| collector.due(due_ms - 1, out)), []);
        assert_eq!(effects(|out| collector.due(due_ms, out)), [CollectorEffect::List(run)]);
        let asked = effects(|out| collector.listed(&[run], &[(INODE, late)], due_ms, out));
        assert_eq!(asked, [CollectorEffect::AskShard { session: SESSION, inode: INODE, object: late }]);
        let removed = effects(|out| collector.shard_says(INODE, late, &Ok(false), out));
        assert_eq!(removed, [CollectorEffect::Remove { inode: INODE, object: late }]);
        assert_eq!(collector.deadline(), None);
    }

    #[test]
    fn each_object_is_asked_about_with_the_session_that_leased_its_identifier() {
        let (mut collector, first) = leased();
        let key = NodeKey::new([1; 32]);
        let other = collector.lease_objects(SessionId(5), 0, 8, &key, MapEpoch(1), 0).unwrap();
        let run = |capability: &Capability, session| Run { first: capability.object, count: 8, session };
        let runs = [run(&other, SessionId(5)), run(&first, SESSION)];
        let objects = [99, 100, 107, 108, 115, 116].map(|sequence| (INODE, ObjectId::new(NodeId(2), sequence)));
        let asked = effects(|out| collector.listed(&runs, &objects, 0, out));
        let sessions = asked.iter().map(|effect| match effect {
            CollectorEffect::AskShard { session, object, .. } => (session.0, object.sequence()),
            other => panic!("{other:?}"),
        });
        assert_eq!(sessions.collect::<Vec<_>>(), [(4, 100), (4, 107), (5, 108), (5, 115)]);
    }

    #[test]
    fn a_session_ends_once() {
        let (mut collector, _) = leased();
        let out = effects(|out| {
            collector.session_ended(SESSION, 0, out);
            collector.session_ended(SESSION, 0, out);
        });
        assert_eq!(out.len(), 1);
    }
}
