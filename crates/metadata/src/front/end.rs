//! The end of a session: its term passed, or the client said so.
//!
//! A client that is heard of, but does not answer a recall, believes in its leases until the term has passed that it
//! counts from its last answer. Its session is *refused* first: it gets no other answer any more than that the session
//! has ended, and ends with that term.
//!
//! A session that is ended against its will is *fenced* first: its leases stay until no byte of it can land any more at
//! the storage servers of the files that it may write ([`Event::FenceConfirmed`]). So a fence always comes before the
//! grant of what conflicts.
//!
//! With the session its leases and locks go; files that it had open for writing are asked about at their storage
//! servers, so that the shard knows their size; orphans that only it had open go with their objects; its calls that
//! wait are not carried out, unless another party has begun them already. What it has changed last stays known, for its
//! client may make these calls again (`repeats.rs`).

use super::leases::Holder;
use super::park::{Parked, Wait, Work};
use super::storage::Recovery;
use super::{Effect, Fences, Shard};
use crate::back::Command;
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_protocol::{Error, InodeNumber, LeaseKey, LeaseMode, NodeId, ObjectId, SessionId};

/// Storage servers of which a session's end waits for the confirmation of its fence.
#[derive(Serialize, Deserialize)]
pub(super) struct Fencing {
    waiting: BTreeSet<NodeId>,
    confirmed: BTreeSet<NodeId>,
}

impl Fencing {
    /// Storage servers that have not confirmed the fence.
    pub fn waiting(&self) -> impl Iterator<Item = NodeId> {
        self.waiting.iter().copied()
    }
}

impl<K: KeyValue> Shard<K> {
    /// Ends a session. `fenced`: the client did not ask for it, and is told when it comes back.
    pub(super) fn end_session(&mut self, session: SessionId, fenced: bool, out: &mut Vec<Effect>) {
        // Who was refused could not write back what he had, also when he says goodbye.
        if !fenced && !self.sessions.refuses(session) {
            return self.finish_session(session, false, out);
        }
        if !self.sessions.begin_end(session) {
            return;
        }
        self.drop_work_of(session, out);
        let fences = self.fences_of(session);
        let waiting: BTreeSet<NodeId> = fences.keys().copied().collect();
        out.push(Effect::EndSession { session, fences });
        if waiting.is_empty() {
            self.finish_session(session, true, out);
        } else {
            self.fencing.insert(session, Fencing { waiting, confirmed: BTreeSet::new() });
        }
    }

    /// Nothing that the session writes can land at this storage server any more.
    pub(super) fn fence_confirmed(&mut self, session: SessionId, node: NodeId, out: &mut Vec<Effect>) {
        let mut fences = self.fences_of(session);
        let Some(fencing) = self.fencing.get_mut(&session) else { return };
        if fencing.waiting.remove(&node) {
            fencing.confirmed.insert(node);
        }
        if !fencing.waiting.is_empty() {
            return;
        }
        // What was carried through meanwhile may have given a file its first object.
        fences.retain(|node, _| !fencing.confirmed.contains(node));
        fencing.waiting = fences.keys().copied().collect();
        if fencing.waiting.is_empty() {
            self.fencing.remove(&session);
            self.finish_session(session, true, out);
        } else {
            out.push(Effect::EndSession { session, fences });
        }
    }

    /// The storage servers of the files that the session may write, with those objects of which it may have descriptors
    /// that nobody else shares. A session that only reads believes in no more than its client's count of the term. Of a
    /// group nobody counts it: its rights are good until servers refuse them, also those to read. It has no
    /// descriptors.
    pub(super) fn fences_of(&self, session: SessionId) -> Fences {
        let is_group = session.is_group();
        let mut fences = Fences::new();
        for key in self.leases.log(session) {
            let LeaseKey::Data(inode) = *key else { continue };
            let counts = is_group || self.leases.holder(key, session).is_some_and(|holder| holder.writing);
            let (true, Some(record)) = (counts, self.back.inode(inode)) else { continue };
            // While others have the file open, no client writes by its descriptor; only kernels do, and on one object
            // they all see each other's writes.
            let is_shared = is_group || self.leases.holders(key).any(|holder| holder.session != session);
            for object in record.layout.objects() {
                let objects = fences.entry(object.node()).or_default();
                if !is_shared {
                    objects.insert((inode, *object));
                }
            }
        }
        for (inode, object) in self.parts_written_by(session) {
            fences.entry(object.node()).or_default().insert((inode, object));
        }
        fences
    }

    /// Whether the holder's session is being ended, and bytes that it writes may still land.
    pub(super) fn is_being_fenced(&self, holder: &Holder) -> bool {
        holder.writing && self.fencing.contains_key(&holder.session)
    }

    /// The session is over, and with it all that it held.
    fn finish_session(&mut self, session: SessionId, fenced: bool, out: &mut Vec<Effect>) {
        if !self.sessions.end(session, fenced) {
            return;
        }
        self.drop_work_of(session, out);
        for group in self.groups.end(session) {
            self.end_session(group, true, out);
        }
        for key in self.leases.take_log(session) {
            if let Some(holder) = self.drop_holder(&key, session)
                && let LeaseKey::Data(inode) = key
            {
                // A client that says goodbye has reported before what it wrote under a lease of its own. What it wrote
                // through the server it may not have been able to.
                let has_reported = !fenced && holder.mode == LeaseMode::Exclusive && !holder.wrote_through;
                if holder.writing && !has_reported {
                    self.recover(inode, out);
                }
            }
        }
        self.leases.drop_session(session);
        self.numbers_of_ended(session);
        for number in self.recalls.of_session(session) {
            self.end_recall(number);
        }
        self.locks.end_session(session);
        let command = if fenced { Command::EndSession { session } } else { Command::ForgetSession { session } };
        self.apply(&command);
    }

    /// The session did not answer a recall in its time. What it holds it keeps for as long as its client may believe in
    /// it; what it asked for it does not get.
    pub(super) fn refuse_session(&mut self, session: SessionId, out: &mut Vec<Effect>) {
        self.sessions.refuse(session);
        self.drop_work_of(session, out);
    }

    fn drop_work_of(&mut self, session: SessionId, out: &mut Vec<Effect>) {
        self.locks.table.drop_waits(session);
        let is_of = |work: &Work| matches!(work, Work::Call(call) if call.session() == session);
        let works = self.parking.iter().filter(|(_, parked)| is_of(&parked.work));
        // What a storage server or another shard may have done already is carried through.
        let is_begun = |number: u64, parked: &Parked| {
            matches!(parked.wait, Wait::Storage | Wait::Peer(_)) || self.has_cut(number, &parked.work)
        };
        let numbers: Vec<u64> = works.filter(|(number, it)| !is_begun(*number, it)).map(|(number, _)| number).collect();
        for number in numbers {
            if let Some(parked) = self.parking.take(number)
                && let Work::Call(call) = parked.work
            {
                // It may have cut a file that is gone by now.
                self.end_cuts(number);
                self.reply(call.token, Err(Error::SessionEnded), out);
                self.wake(Wait::Repeated(call.origin));
            }
        }
    }

    /// Whether this work has cut a file that is still there, and waits for something else. The call that repeats it
    /// must not cut the file again: others may have written to it since.
    fn has_cut(&self, number: u64, work: &Work) -> bool {
        let Work::Call(call) = work else { return false };
        call.asked.is_some_and(|(inode, object)| {
            self.cuts.get(&inode).is_some_and(|cutting| cutting.by == number)
                && matches!(call.told(inode, object), Some(Ok(_)))
                && self.back.inode(inode).is_some_and(|record| record.layout.object() == Some(object))
        })
    }

    /// Returns whether a file has this object, which the session has made at a storage server that has no connection of
    /// the session any more. [`Error::Busy`]: the session may still give it to the file. It was cut off from that
    /// storage server alone, is being ended, or has ended with a call that is carried through.
    pub fn uses_object(&self, session: SessionId, inode: InodeNumber, object: ObjectId) -> Result<bool, Error> {
        let is_of = |work: &Work| matches!(work, Work::Call(call) if call.session() == session);
        if self.sessions.knows(session) || self.parking.iter().any(|(_, parked)| is_of(&parked.work)) {
            return Err(Error::Busy);
        }
        let is_part = self.back.split_part(inode, object).is_some();
        Ok(is_part || self.back.inode(inode).is_some_and(|record| record.layout.objects().contains(&object)))
    }

    /// Asks for the size of a file whose writer is gone.
    fn recover(&mut self, inode: InodeNumber, out: &mut Vec<Effect>) {
        let Some(object) = self.back.inode(inode).and_then(|record| record.layout.object()) else {
            return;
        };
        *self.recovering.entry(inode).or_default() += 1;
        self.ask_size(Recovery::new(inode, object), out);
    }
}
