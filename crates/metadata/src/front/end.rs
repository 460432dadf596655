//! The end of a session: its term passed, or the client said so.
//!
//! A client that is heard of, but does not answer a recall, believes in its leases until the term has passed that it
//! counts from its last answer. Its session is *refused* first: it gets no other answer any more than that the session
//! has ended, and ends with that term.
//!
//! With the session its leases go; files that it had open for writing are asked about at their storage servers, so that
//! the shard knows their size; orphans that only it had open go with their objects; its calls that wait are not carried
//! out, unless another party has begun them already.

use super::park::{Wait, Work};
use super::storage::StorageWait;
use super::{Effect, Shard};
use crate::back::Command;
use crate::kv::KeyValue;
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Error, InodeNumber, LeaseKey, SessionId};

impl<K: KeyValue> Shard<K> {
    /// Ends a session. `fenced`: the client did not ask for it, and is told when it comes back.
    pub(super) fn end_session(&mut self, session: SessionId, fenced: bool, out: &mut Vec<Effect>) {
        // Who was refused could not write back what he had, also when he says goodbye.
        let fenced = fenced || self.sessions.refuses(session);
        if !self.sessions.end(session, fenced) {
            return;
        }
        self.drop_work_of(session, out);
        for key in self.leases.take_log(session) {
            if let Some(holder) = self.drop_holder(&key, session)
                && let (true, LeaseKey::Data(inode)) = (fenced && holder.writing, key)
            {
                // A client that says goodbye has committed before.
                self.recover(inode, out);
            }
        }
        self.leases.drop_session(session);
        for number in self.recalls.of_session(session) {
            self.end_recall(number);
        }
        self.apply(&Command::ForgetSession { session });
        if fenced {
            out.push(Effect::EndSession { session });
        }
    }

    /// The session did not answer a recall in its time. What it holds it keeps for as long as its client may believe in
    /// it; what it asked for it does not get.
    pub(super) fn refuse_session(&mut self, session: SessionId, out: &mut Vec<Effect>) {
        self.sessions.refuse(session);
        self.drop_work_of(session, out);
    }

    fn drop_work_of(&mut self, session: SessionId, out: &mut Vec<Effect>) {
        let is_of = |work: &Work| matches!(work, Work::Call(call) if call.session() == session);
        let works = self.parking.iter().filter(|(_, parked)| is_of(&parked.work));
        // What a storage server or another shard may have done already is carried through.
        let idle = works.filter(|(_, parked)| !matches!(parked.wait, Wait::Storage | Wait::Peer(_)));
        let numbers: Vec<u64> = idle.map(|(number, _)| number).collect();
        for number in numbers {
            if let Some(parked) = self.parking.take(number)
                && let Work::Call(call) = parked.work
            {
                self.reply(call.token, Err(Error::SessionEnded), out);
            }
        }
    }

    /// Asks for the size of a file whose writer is gone.
    fn recover(&mut self, inode: InodeNumber, out: &mut Vec<Effect>) {
        let Some(object) = self.back.inode(inode).and_then(|record| record.layout.object()) else {
            return;
        };
        *self.recovering.entry(inode).or_default() += 1;
        let token = self.ask_storage(StorageWait::Recovery { inode, object });
        let request = StorageRequest::Stat { inode, object };
        out.push(Effect::Storage { token: Some(token), node: object.node(), request });
    }
}
