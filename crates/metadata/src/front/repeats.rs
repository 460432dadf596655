//! Calls that come again: in the same session, or in the next one after the shard has ended theirs.
//!
//! A client whose session is refused does not know what became of its call. It makes it in its next session, and names
//! those that it repeats. What was done for one of them is not done again: its reply is given once more, after it
//! where another party is still about to carry it through. Calls of a refused session that arrive later are dropped,
//! so that one of which nothing is found never happens.
//!
//! The leases of that reply are gone with its session. An open that has made or cut its file is therefore repeated as
//! an open of this inode, which grants what is free now; if the inode is gone, its name counts again. If there is no
//! name either, an open that has cut its file fails with EIO: others have seen the file cut, and to say that there is
//! none would deny that it was. Everything else is answered without grants. A call that has changed nothing is made as
//! if it were the first.
//!
//! Limit: of the latest [`weft_protocol::limits::ENDED_REPLIES_MAX`] changes in ended sessions.

use super::changes::client_answer;
use super::leases::Holder;
use super::park::{Call, Wait};
use super::{Effect, Pause, Shard, Verdict};
use crate::back::{Command, Seen};
use crate::kv::KeyValue;
use weft_protocol::error::errno;
use weft_protocol::message::shard::{OpenFlags, ShardAnswer, ShardRequest};
use weft_protocol::{Error, Grants, LeaseKey, LeaseMode};

impl<K: KeyValue> Shard<K> {
    /// What to do with a change that may have come before. `None`: it is new. `Some(None)`: it waits already, and its
    /// reply will go to the new token; the earlier one, whose connection is gone, is answered here.
    pub(super) fn repeated(
        &mut self,
        call: &Call,
        out: &mut Vec<Effect>,
    ) -> Option<Option<Result<ShardAnswer, Error>>> {
        let session = call.session();
        if let Some(waiting) = self.parking.in_slot(session, call.origin.slot) {
            return Some(match waiting.origin.sequence.cmp(&call.origin.sequence) {
                std::cmp::Ordering::Equal => {
                    let earlier = std::mem::replace(&mut waiting.token, call.token);
                    self.reply(earlier, Err(Error::Busy), out);
                    None
                }
                std::cmp::Ordering::Less => Some(Err(Error::Busy)),
                std::cmp::Ordering::Greater => Some(Err(Error::Invalid)),
            });
        }
        if self.locks.is_old(call.origin) {
            return Some(Some(Err(Error::Invalid)));
        }
        let last = match self.back.seen(call.origin) {
            Seen::New => return None,
            Seen::Old => return Some(Some(Err(Error::Invalid))),
            Seen::Again(last) => last,
        };
        let access = last.access;
        let mut result = last.result.clone();
        if let Ok(answer) = &mut result
            && access.is_some()
            && self.tell_again_for_group(call, answer)
        {
            return Some(Some(result));
        }
        if let Ok(ShardAnswer::Opened { attributes, capability, others, grants, .. }) = &mut result {
            let Some(access) = access else {
                return Some(Some(result));
            };
            // The open holds, and is told again with what is left of its lease; what it was granted beside may have
            // been recalled since.
            let key = LeaseKey::Data(attributes.inode);
            let stamp = self.next_grant_stamp();
            let holder = match self.leases.holder(&key, session) {
                Some(holder) => Holder { stamp, ..holder },
                None if self.back.inode(attributes.inode).is_none() => return Some(Some(Err(Error::Stale))),
                None => Holder { writing: access.writes(), ..Holder::new(session, LeaseMode::Open, stamp) },
            };
            self.leases.set(key, holder);
            *grants = self.told_of_data(session, key, holder.mode);
            grants.set(Grants::PAGES_ELSEWHERE, self.has_pages_elsewhere(&key, session));
            if let Some(record) = self.back.inode(attributes.inode) {
                // What is granted now is what is there now.
                *attributes = record.attributes(attributes.inode);
            }
            (*capability, *others) = self.capabilities(attributes, access, session);
        }
        Some(Some(result))
    }

    /// The answer to a change that an ended session has made, or its end to wait for. `None`: it is to be made, perhaps
    /// as another request than before.
    pub(super) fn made_in_ended_session(&mut self, call: &mut Call) -> Option<Verdict> {
        let mut earlier = call.repeats.iter();
        if let Some(of) =
            earlier.find(|of| self.parking.in_slot(of.session, of.slot).is_some_and(|it| it.origin == **of))
        {
            return Some(Verdict::Park(Pause::until(Wait::Repeated(*of), Vec::new())));
        }
        for of in std::mem::take(&mut call.repeats) {
            let Seen::Again(last) = self.back.seen(of) else { continue };
            // Session identifiers are no secret.
            let Some(answer) = last.result.as_ref().ok().filter(|_| last.uid == call.credentials.uid) else { continue };
            match (answer, &call.request) {
                (
                    ShardAnswer::Opened { attributes, created, .. },
                    ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. },
                ) if *created || flags.truncate => {
                    let is_gone = self.back.inode(attributes.inode).is_none();
                    if is_gone && !*created && !self.may_open_another(&call.request) {
                        return Some(Verdict::Repeated(Err(Error::Device(errno::EIO))));
                    }
                    let flags = OpenFlags { truncate: false, ..*flags };
                    let by_inode = ShardRequest::Open { inode: attributes.inode, flags };
                    call.made = *created;
                    call.by_name = Some(std::mem::replace(&mut call.request, by_inode));
                    return None;
                }
                // The open has changed nothing.
                (_, ShardRequest::OpenAt { .. } | ShardRequest::Open { .. }) => {}
                _ => {
                    let result = client_answer(self.apply(&Command::Repeat { origin: call.origin, of }));
                    if let Ok(ShardAnswer::Entry { attributes, .. }) = &result {
                        self.note_told(attributes.inode, call.session(), self.next_grant_stamp());
                    }
                    return Some(Verdict::Repeated(result));
                }
            }
        }
        None
    }

    /// Whether the name of an open may lead to a file, or makes one.
    fn may_open_another(&self, request: &ShardRequest) -> bool {
        match request {
            ShardRequest::OpenAt { parent, name, create, .. } => {
                create.is_some() || self.back.dentry(*parent, name).is_some()
            }
            _ => false,
        }
    }
}
