//! Object identifiers in batches, and the collection of objects that nobody will ever ask for.
//!
//! A client leases a batch of identifiers and makes objects under them without asking; a shard learns of an object with
//! the first commit of its file. A client that dies in between leaves an *orphan*. The rule: an object is collected
//! only when the lease holder of its identifier is gone, *and* its shard, asked in its present epoch, does not know it.
//!
//! ```text
//! lease_objects          ->  capability for a batch
//! session_ended          ->  List(first, count) for each batch of the session
//! listed(objects)        ->  AskShard(inode, object) for each
//! shard_says(known)      ->  Remove(inode, object), or nothing; not answered: asked again later
//! ```

use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::capability::CapabilityClaims;
use weft_protocol::limits::{CAPABILITY_TERM_SECONDS, OBJECT_BATCH_COUNT, OBJECT_RUNS_PER_SESSION_MAX};
use weft_protocol::{
    Capability, Error, Generation, InodeNumber, MapEpoch, NodeId, NodeKey, ObjectId, Result, Rights, SessionId,
};

/// What the node has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectorEffect {
    /// Look up which objects exist under these identifiers, and tell [`Collector::listed`].
    List { first: ObjectId, count: u32 },
    /// Ask the inode's shard whether the object is the file's, and tell [`Collector::shard_says`].
    AskShard { inode: InodeNumber, object: ObjectId },
    /// Remove the object.
    Remove { inode: InodeNumber, object: ObjectId },
}

/// Identifiers of one storage server.
#[derive(Debug)]
pub struct Collector {
    node: NodeId,
    next_sequence: u64,
    /// Identifiers leased to each session that lives, in runs: the first one and their number.
    leases: BTreeMap<SessionId, Vec<(ObjectId, u32)>>,
    /// Objects whose lease holder is gone, and whose shard has not answered yet.
    suspects: BTreeSet<(InodeNumber, ObjectId)>,
}

impl Collector {
    /// `next_sequence`: above every identifier that the store has ever held.
    pub fn new(node: NodeId, next_sequence: u64) -> Self {
        Self { node, next_sequence, leases: BTreeMap::new(), suspects: BTreeSet::new() }
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
        let follows = |(start, length): &&mut (ObjectId, u32)| {
            start.raw() + u64::from(*length) == first.raw() && length.checked_add(count).is_some()
        };
        // What follows the session's latest identifiers makes their run longer: a client that is alone has one.
        if let Some((_, length)) = runs.last_mut().filter(follows) {
            *length += count;
        } else if runs.len() < OBJECT_RUNS_PER_SESSION_MAX {
            runs.push((first, count));
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
            expires_seconds: now_seconds.saturating_add(CAPABILITY_TERM_SECONDS),
            owner_uid,
            rights: Rights::READ | Rights::WRITE | Rights::CREATE,
            session,
        }))
    }

    /// The session has ended everywhere: its term has passed without a message.
    pub fn session_ended(&mut self, session: SessionId, out: &mut Vec<CollectorEffect>) {
        for (first, count) in self.leases.remove(&session).unwrap_or_default() {
            out.push(CollectorEffect::List { first, count });
        }
    }

    /// These objects of an ended session exist.
    pub fn listed(&mut self, objects: &[(InodeNumber, ObjectId)], out: &mut Vec<CollectorEffect>) {
        for (inode, object) in objects {
            self.suspects.insert((*inode, *object));
            out.push(CollectorEffect::AskShard { inode: *inode, object: *object });
        }
    }

    /// The shard's answer: whether the file has this object. An error other than "no such inode" proves nothing: the
    /// suspect stays.
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
            Err(_) => return,
        };
        if self.suspects.remove(&(inode, object)) && orphan {
            out.push(CollectorEffect::Remove { inode, object });
        }
    }

    /// Asks again for the suspects whose shard did not answer.
    pub fn ask_again(&self, out: &mut Vec<CollectorEffect>) {
        out.extend(
            self.suspects.iter().map(|(inode, object)| CollectorEffect::AskShard { inode: *inode, object: *object }),
        );
    }

    /// Objects that wait for their shard's answer.
    pub fn suspects(&self) -> usize {
        self.suspects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(4);

    fn leased() -> (Collector, Capability) {
        let mut collector = Collector::new(NodeId(2), 100);
        let key = NodeKey::new([1; 32]);
        let capability = collector.lease_objects(SESSION, 0, 8, &key, MapEpoch(1), 0).unwrap();
        (collector, capability)
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
        let mut out = Vec::new();
        collector.session_ended(SESSION, &mut out);
        assert_eq!(out.len(), OBJECT_RUNS_PER_SESSION_MAX);
        let alone = OBJECT_RUNS_PER_SESSION_MAX as u32 + 10 + 8;
        assert!(matches!(out[0], CollectorEffect::List { count, .. } if count == alone), "{:?}", out[0]);
        assert!(collector.lease_objects(SESSION, 0, 1, &key, MapEpoch(1), 0).is_ok());
    }

    #[test]
    fn an_object_is_collected_only_when_holder_is_gone_and_shard_does_not_know_it() {
        let (mut collector, capability) = leased();
        let (inode, object) = (InodeNumber::ROOT, capability.object);
        let mut out = Vec::new();
        // The holder lives: whatever a shard says, nothing happens.
        collector.shard_says(inode, object, &Ok(false), &mut out);
        assert_eq!(out, []);
        collector.session_ended(SESSION, &mut out);
        assert_eq!(out, [CollectorEffect::List { first: object, count: 8 }]);
        for (answer, collected, left) in [
            (Err(Error::Unreachable), false, 1),
            (Ok(true), false, 0),
            (Ok(false), true, 0),
            (Err(Error::NotFound), true, 0),
        ] {
            out.clear();
            collector.listed(&[(inode, object)], &mut out);
            assert_eq!(out, [CollectorEffect::AskShard { inode, object }]);
            out.clear();
            collector.shard_says(inode, object, &answer, &mut out);
            assert_eq!(out.contains(&CollectorEffect::Remove { inode, object }), collected, "{answer:?}");
            assert_eq!(collector.suspects(), left, "{answer:?}");
            collector.shard_says(inode, object, &Ok(true), &mut out);
        }
    }

    #[test]
    fn a_session_ends_once() {
        let (mut collector, _) = leased();
        let mut out = Vec::new();
        collector.session_ended(SESSION, &mut out);
        collector.session_ended(SESSION, &mut out);
        assert_eq!(out.len(), 1);
    }
}
