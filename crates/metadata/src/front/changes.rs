//! Calls that change something: judged, applied, answered with what they grant.

use super::data::stat_of;
use super::park::{Call, Wait};
use super::plan::Plan;
use super::{Pause, Shard, Verdict};
use crate::back::{Aftermath, Answer, Command, Context, Seen};
use crate::kv::KeyValue;
use crate::placement;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::message::storage::StorageRequest;
use weft_protocol::{Error, FileKind, Grants, InodeNumber, LeaseKey, LeaseMode, ShardId};

use super::leases::{Holder, Leases};

impl<K: KeyValue> Shard<K> {
    /// What to do with a change that may have come before. `None`: it is new. `Some(None)`: it waits already, and its
    /// reply will go to the new token.
    pub(super) fn repeated(&mut self, call: &Call) -> Option<Option<Result<ShardAnswer, Error>>> {
        let session = call.session();
        if let Some(waiting) = self.parking.in_slot(session, call.origin.slot) {
            return Some(match waiting.origin.sequence.cmp(&call.origin.sequence) {
                std::cmp::Ordering::Equal => {
                    waiting.token = call.token;
                    None
                }
                std::cmp::Ordering::Less => Some(Err(Error::Busy)),
                std::cmp::Ordering::Greater => Some(Err(Error::Invalid)),
            });
        }
        let last = match self.back.seen(call.origin) {
            Seen::New => return None,
            Seen::Old => return Some(Some(Err(Error::Invalid))),
            Seen::Again(last) => last,
        };
        let access = last.access;
        let mut result = last.result.clone();
        if let Ok(ShardAnswer::Opened { attributes, capability, grants, .. }) = &mut result {
            let Some(access) = access else {
                return Some(Some(result));
            };
            // The open holds, and is told again; what it was granted beside may have been recalled since.
            let key = LeaseKey::Data(attributes.inode);
            let stamp = self.next_grant_stamp();
            let holder = match self.leases.holder(&key, session) {
                Some(holder) => Holder { stamp, ..holder },
                None if self.back.inode(attributes.inode).is_none() => return Some(Some(Err(Error::Stale))),
                None => Holder { session, mode: LeaseMode::Open, writing: access.writes(), stamp },
            };
            self.leases.set(key, holder);
            *grants = Grants::OPEN;
            *capability = self.capability(attributes, access, session);
        }
        Some(Some(result))
    }

    pub(super) fn change(
        &mut self,
        call: &mut Call,
        asked: &[(LeaseKey, weft_protocol::SessionId)],
        number: Option<u64>,
        out: &mut Vec<super::Effect>,
    ) -> Verdict {
        let plan = match self.plan(call) {
            Ok(plan) => plan,
            Err(pause) => return Verdict::Park(pause),
        };
        if let Some(pause) = self.conflicts(&plan, Some(call.session()), asked) {
            return Verdict::Park(pause);
        }
        if let Some(pause) = self.storage_first(call, &plan, number) {
            return Verdict::Park(pause);
        }
        if let (ShardRequest::SetAttributes { changes, .. }, Some(Err(error))) = (&call.request, &call.object)
            && changes.size.is_some()
        {
            return Verdict::Reply(Err(error.clone()));
        }
        if let Some(to) = self.other_shard(call) {
            return self.begin_intent(call, to, plan.keys(), out);
        }
        Verdict::Reply(self.carry_out(call, &plan))
    }

    /// Applies a change that nothing is in the way of.
    fn carry_out(&mut self, call: &mut Call, plan: &Plan) -> Result<ShardAnswer, Error> {
        let context = self.context(call, plan);
        // The command borrows what the call is made of for a moment.
        let credentials = std::mem::take(&mut call.credentials);
        let request = std::mem::replace(&mut call.request, ShardRequest::Ping);
        let command = Command::Change { origin: call.origin, credentials, request, context };
        let outcome = self.apply(&command);
        let Command::Change { credentials, request, .. } = command else {
            unreachable!("it was made a change above");
        };
        call.credentials = credentials;
        call.request = request;
        let Answer::Client(mut result) = outcome.answer else {
            panic!("a change is answered to the client, not by {:?}", outcome.answer);
        };
        if let Ok(answer) = &mut result {
            self.grant_all(call, answer);
        }
        result
    }

    fn context(&self, call: &Call, plan: &Plan) -> Context {
        let keep = plan.target.is_some_and(|inode| self.leases.holders(&LeaseKey::Data(inode)).next().is_some());
        let own = match &call.request {
            ShardRequest::Commit { inode, .. } | ShardRequest::SetAttributes { inode, .. } => {
                self.leases.holder(&LeaseKey::Data(*inode), call.session())
            }
            _ => None,
        };
        let actual = match (&call.object, &call.request) {
            (Some(Ok(actual)), _) => Some(*actual),
            // The server did not answer: the client's word, which can only be too small.
            (Some(Err(_)), ShardRequest::Commit { size, mtime, .. }) => Some((*size, *mtime)),
            _ => None,
        };
        Context { keep, is_writer: own.is_some_and(|own| own.writing), actual }
    }

    /// Fills in what an answer grants, each on the key that follows from the request.
    fn grant_all(&mut self, call: &Call, answer: &mut ShardAnswer) {
        let session = call.session();
        match answer {
            ShardAnswer::Entry { attributes, grants } => {
                *grants = self.grant_name(call) | self.grant_attributes(session, attributes);
                if let ShardRequest::MakeDirectory { .. } = call.request {
                    // It is empty, and that is all there is to know of it.
                    *grants |= self.grant(session, LeaseKey::Directory(attributes.inode), Grants::DIRECTORY);
                }
            }
            ShardAnswer::RemoteDirectory { grants, .. } | ShardAnswer::Absent { grants } => {
                *grants = self.grant_name(call);
            }
            ShardAnswer::Opened { attributes, capability, grants, .. } => {
                if let ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. } = &call.request {
                    *grants = self.grant_name(call)
                        | self.grant_data(session, attributes.inode, *flags)
                        | self.grant_attributes(session, attributes);
                    *capability = self.capability(attributes, flags.access, session);
                }
            }
            ShardAnswer::Done
            | ShardAnswer::Target(_)
            | ShardAnswer::Page(_)
            | ShardAnswer::Removed { .. }
            | ShardAnswer::Renamed { .. } => {}
        }
    }

    pub(super) fn grant_name(&mut self, call: &Call) -> Grants {
        match &call.request {
            ShardRequest::OpenAt { parent, name, .. }
            | ShardRequest::MakeDirectory { parent, name, .. }
            | ShardRequest::MakeSymlink { parent, name, .. }
            | ShardRequest::Link { parent, name, .. } => self.grant_entry(call.session(), *parent, name),
            _ => Grants::empty(),
        }
    }

    /// What a storage server must do, or tell, before the change.
    fn storage_first(&self, call: &Call, plan: &Plan, number: Option<u64>) -> Option<Pause> {
        match &call.request {
            ShardRequest::SetAttributes { inode, changes } => {
                let size = changes.size.filter(|size| *size > 0)?;
                let own = self.leases.holder(&LeaseKey::Data(*inode), call.session());
                let is_writer = own.is_some_and(|own| own.writing);
                // What will be refused cuts nothing.
                let record = self.back.check_set_attributes(&call.credentials, *inode, changes, is_writer).ok()?;
                let object = record.layout.object()?;
                if call.object.is_some() {
                    return None;
                }
                if self.cuts.get(inode).is_some_and(|other| Some(*other) != number) {
                    return Some(Pause::until(Wait::Cut(*inode), plan.keys()));
                }
                let request = StorageRequest::Truncate { inode: *inode, object, size };
                let mut claims = plan.keys();
                claims.push(LeaseKey::Data(*inode));
                Some(Pause { storage: Some((object.node(), request)), ..Pause::until(Wait::Storage, claims) })
            }
            ShardRequest::Commit { inode, .. } if call.object.is_none() => {
                let own = self.leases.holder(&LeaseKey::Data(*inode), call.session())?;
                if own.mode == LeaseMode::Exclusive || !own.writing {
                    return None;
                }
                let object = self.back.inode(*inode)?.layout.object()?;
                Some(stat_of(*inode, object, plan.keys()))
            }
            _ => None,
        }
    }

    /// A cut is over, whatever came of it: the next one may go.
    pub(super) fn end_cut(&mut self, call: &Call, number: u64) {
        if let ShardRequest::SetAttributes { inode, .. } = &call.request
            && self.cuts.get(inode) == Some(&number)
        {
            self.cuts.remove(inode);
            self.wake(Wait::Cut(*inode));
        }
    }

    /// The shard that has, or gets, the inode of a directory, when it is another one.
    fn other_shard(&self, call: &Call) -> Option<ShardId> {
        let here = self.back.shard();
        let shard = match &call.request {
            ShardRequest::MakeDirectory { parent, name, home, .. } => {
                placement::shard_for(&self.map, here, *home, *parent, name)
            }
            ShardRequest::RemoveDirectory { parent, name } => {
                let dentry = self.back.dentry(*parent, name)?;
                if dentry.kind != FileKind::Directory {
                    return None;
                }
                dentry.inode.shard()
            }
            _ => return None,
        };
        (shard != here).then_some(shard)
    }

    /// What a command did beside its answer.
    pub(super) fn take_aftermath(&mut self, aftermath: &Aftermath) {
        if let Some((inode, object)) = aftermath.removed {
            self.removals.entry(object.node()).or_default().push((inode, object));
        }
        if let Some(inode) = aftermath.orphaned {
            self.orphans.insert(inode);
        }
        if let Some(inode) = aftermath.gone {
            self.drop_keys_of(inode);
        }
    }

    /// The leases on an inode end with it.
    fn drop_keys_of(&mut self, inode: InodeNumber) {
        for key in Leases::keys_of(inode) {
            loop {
                let holder = self.leases.holders(&key).next().map(|holder| holder.session);
                let Some(session) = holder else { break };
                self.weaken(session, key, LeaseMode::None);
            }
        }
    }
}
