//! The coordinator's side of operations over several shards: sending the steps, and sending them again.
//!
//! Not here: what the steps are (`back/across.rs`, `back/intent.rs`).

use super::park::{Call, Parked, Wait};
use super::{Effect, Pause, Shard, Verdict};
use crate::back::{Answer, Command};
use crate::kv::KeyValue;
use crate::placement;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::PARKED_REQUESTS_MAX;
use weft_protocol::message::peer::{IntentId, PeerCall, PeerReply, PeerStep};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Error, LeaseKey, ShardId};

/// A step without an answer is sent again after this time, milliseconds.
const RESEND_MS: u64 = 1000;
/// Steps that nobody waits for are sent at longer and longer intervals, up to this, milliseconds.
const RESEND_MS_MAX: u64 = 60_000;

/// When each intent's step is sent again.
#[derive(Default, Serialize, Deserialize)]
pub struct Asking {
    /// Intents of which nothing was asked yet.
    begun: Vec<u64>,
    due: BTreeSet<(u64, u64)>,
    /// Time of the next sending, and the interval behind it.
    times: BTreeMap<u64, (u64, u64)>,
}

impl Asking {
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    fn set(&mut self, number: u64, due_ms: u64, interval_ms: u64) {
        self.clear(number);
        self.due.insert((due_ms, number));
        self.times.insert(number, (due_ms, interval_ms));
    }

    /// An intent was recorded: its first step is asked for soon.
    pub fn begin(&mut self, number: u64) {
        self.begun.push(number);
    }

    /// The step of an intent, if there is one, is sent again at once.
    pub fn hurry(&mut self, number: u64, now_ms: u64) {
        if self.times.contains_key(&number) {
            self.set(number, now_ms, RESEND_MS);
        }
    }

    fn clear(&mut self, number: u64) {
        if let Some((due_ms, _)) = self.times.remove(&number) {
            self.due.remove(&(due_ms, number));
        }
    }
}

impl<K: KeyValue> Shard<K> {
    /// Returns the wait for the intent that hides what the request asks for, if there is one.
    pub(super) fn hidden_by(&self, request: &ShardRequest) -> Option<Pause> {
        let intent = match request {
            ShardRequest::Lookup { parent, name } | ShardRequest::OpenAt { parent, name, .. } => {
                self.back.hidden_name(*parent, name)
            }
            ShardRequest::GetAttributes { inode }
            | ShardRequest::GetXattrs { inode }
            | ShardRequest::HoldDirectory { inode }
            | ShardRequest::ReadDirectory { inode, .. } => self.back.hidden_inode(*inode),
            _ => None,
        };
        intent.map(|intent| Pause::until(Wait::Lock(intent), Vec::new()))
    }

    /// Has another shard make the inode of a directory (`to`), or does what needs other shards. `claims`: keys that
    /// nobody is granted meanwhile.
    pub(super) fn begin_intent(&mut self, call: &Call, to: Option<ShardId>, claims: Vec<LeaseKey>) -> Verdict {
        if self.parking.count() >= PARKED_REQUESTS_MAX {
            return Verdict::Reply(Err(Error::Busy));
        }
        let (origin, credentials, request) = (call.origin, call.credentials.clone(), call.request.clone());
        let command = match (to, request) {
            (Some(to), request) => Command::BeginMake { origin, credentials, request, to },
            (None, ShardRequest::Spread { inode: directory }) => {
                let shards = placement::shards_for_parts(&self.map, self.back.shard());
                Command::BeginSpread { origin: Some(origin), credentials, directory, shards }
            }
            (None, request) => Command::BeginAcross { origin, credentials, request },
        };
        match self.apply(&command).answer {
            Answer::Intent(number) => {
                // Asked for when the call is parked: the first answer may come at once, and be the last.
                self.intents.begin(number);
                Verdict::Park(Pause::until(Wait::Peer(number), claims))
            }
            Answer::Client(result) => Verdict::Reply(result),
            other => panic!("an intent is begun or refused, not {other:?}"),
        }
    }

    /// Asks for the first step of an intent that was begun. Returns false if there is none.
    pub(super) fn ask_begun(&mut self, out: &mut Vec<Effect>) -> bool {
        let begun = self.intents.begun.pop();
        if let Some(number) = begun {
            self.ask(number, RESEND_MS, out);
        }
        begun.is_some()
    }

    fn ask(&mut self, number: u64, interval_ms: u64, out: &mut Vec<Effect>) {
        let questions = self.back.questions(number);
        if questions.is_empty() {
            return self.intents.clear(number);
        }
        self.intents.set(number, self.now.boot_ms + interval_ms, interval_ms);
        let (here, others): (Vec<_>, Vec<_>) = questions.into_iter().partition(|(to, ..)| *to == self.back.shard());
        let epoch = self.map.epoch;
        for (to, intent, step) in here {
            self.receive_step(0, PeerCall { to, epoch, intent, step }, out);
        }
        // By its answer the others may be needless, or be asked already.
        let still = self.back.questions(number);
        for (to, intent, step) in others.into_iter().filter(|question| still.contains(question)) {
            self.ask_one(to, intent, step, out);
        }
    }

    fn ask_one(&mut self, to: ShardId, intent: IntentId, step: PeerStep, out: &mut Vec<Effect>) {
        let epoch = self.map.epoch;
        if let PeerStep::Lock { .. } = step {
            // What it has not heard of may be what it would wait for.
            for intent in self.back.given_up_at(to) {
                out.push(Effect::PeerCall(PeerCall { to, epoch, intent, step: PeerStep::Undo }));
            }
        }
        out.push(Effect::PeerCall(PeerCall { to, epoch, intent, step }));
    }

    /// Sends again what is due.
    pub(super) fn ask_again(&mut self, out: &mut Vec<Effect>) {
        while let Some((due_ms, number)) = self.intents.due.first().copied() {
            if due_ms > self.now.boot_ms {
                return;
            }
            let interval_ms = self.intents.times.get(&number).map_or(RESEND_MS, |(_, interval_ms)| *interval_ms);
            let interval_ms =
                if self.back.is_closing(number) { (interval_ms * 2).min(RESEND_MS_MAX) } else { interval_ms };
            self.ask(number, interval_ms, out);
        }
    }

    pub(super) fn peer_replied(&mut self, reply: PeerReply, out: &mut Vec<Effect>) {
        if reply.intent.shard != self.back.shard() {
            return;
        }
        if self.outcome_told(&reply) {
            return;
        }
        let (intent, number) = (reply.intent, reply.intent.number);
        let outcome = self.apply(&Command::AnswerIntent { number, answer: reply.result });
        match outcome.answer {
            Answer::Client(result) => {
                self.ask(number, RESEND_MS, out);
                self.finish(number, result, out);
                self.released(intent);
            }
            Answer::Intent(next) => {
                self.released(intent);
                for place in self.parking.waiting_for(Wait::Peer(number)) {
                    if let Some(parked) = self.parking.take(place) {
                        self.parking.insert(place, Parked { wait: Wait::Peer(next), ..parked });
                    }
                }
                self.ask(number, RESEND_MS, out);
                self.ask(next, RESEND_MS, out);
            }
            Answer::Next => self.ask(number, RESEND_MS, out),
            _ => {}
        }
    }

    /// The operation is over: its caller is answered.
    fn finish(&mut self, number: u64, mut result: Result<ShardAnswer, Error>, out: &mut Vec<Effect>) {
        let waiting = self.parking.waiting_for(Wait::Peer(number));
        if let Some(parked) = waiting.first().and_then(|place| self.parking.take(*place))
            && let super::park::Work::Call(call) = parked.work
        {
            if let Ok(answer) = &mut result {
                self.counts.renamed(answer, true);
                if self.sessions.is_alive(call.session()) {
                    self.grant_after_intent(&call, answer);
                }
            }
            self.reply_again(&call, result, out);
            self.wake(Wait::Repeated(call.origin));
        }
    }

    /// Fills in what the answer to an operation over several shards grants: names of this shard.
    fn grant_after_intent(&mut self, call: &Call, answer: &mut ShardAnswer) {
        match (answer, &call.request) {
            (ShardAnswer::Entry { grants, .. }, _) => *grants = self.grant_name(call),
            (
                ShardAnswer::Renamed { exchanged, grants, .. },
                ShardRequest::Rename { parent, name, new_parent, new_name, .. },
            ) if self.back.serves(*new_parent, new_name) => {
                *grants =
                    self.grant_both(call.session(), (*parent, name), (*new_parent, new_name), exchanged.is_some());
            }
            _ => {}
        }
    }
}
