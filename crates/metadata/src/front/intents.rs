//! The asking side of mkdir and rmdir over two shards: sending the steps, and sending them again.
//!
//! Not here: what a step means (`back/intent.rs`).

use super::park::{Call, Wait};
use super::{Effect, Pause, Shard, Verdict};
use crate::back::{Answer, Command};
use crate::kv::KeyValue;
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::message::peer::{PeerAnswer, PeerCall, PeerReply};
use weft_protocol::message::shard::ShardAnswer;
use weft_protocol::{Error, LeaseKey, ShardId};

/// A step without an answer is sent again after this time, milliseconds.
const RESEND_MS: u64 = 1000;
/// Steps that nobody waits for are sent at longer and longer intervals, up to this, milliseconds.
const RESEND_MS_MAX: u64 = 60_000;

/// When each intent's step is sent again.
#[derive(Default)]
pub struct Asking {
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

    fn clear(&mut self, number: u64) {
        if let Some((due_ms, _)) = self.times.remove(&number) {
            self.due.remove(&(due_ms, number));
        }
    }
}

impl<K: KeyValue> Shard<K> {
    pub(super) fn begin_intent(
        &mut self,
        call: &Call,
        to: ShardId,
        claims: Vec<LeaseKey>,
        out: &mut Vec<Effect>,
    ) -> Verdict {
        let command = Command::BeginIntent {
            origin: call.origin,
            credentials: call.credentials.clone(),
            request: call.request.clone(),
            to,
        };
        match self.apply(&command).answer {
            Answer::Intent(number) => {
                self.ask(number, RESEND_MS, out);
                Verdict::Park(Pause::until(Wait::Peer(number), claims))
            }
            Answer::Client(result) => Verdict::Reply(result),
            other => panic!("an intent is begun or refused, not {other:?}"),
        }
    }

    fn ask(&mut self, number: u64, interval_ms: u64, out: &mut Vec<Effect>) {
        match self.back.question(number) {
            Some((to, intent, step)) => {
                out.push(Effect::PeerCall(PeerCall { to, epoch: self.map.epoch, intent, step }));
                self.intents.set(number, self.now.boot_ms + interval_ms, interval_ms);
            }
            None => self.intents.clear(number),
        }
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
        let number = reply.intent.number;
        // The other shard is to forget, and is away, or answers an earlier sending: asked again in its time.
        if self.back.is_closing(number) && reply.result != Ok(PeerAnswer::Forgotten) {
            return;
        }
        let outcome = self.apply(&Command::AnswerIntent { number, answer: reply.result });
        match outcome.answer {
            Answer::Client(result) => {
                self.ask(number, RESEND_MS, out);
                self.finish(number, result, out);
            }
            _ if self.back.question(number).is_none() => self.intents.clear(number),
            _ => {}
        }
    }

    /// The operation is over: its caller is answered, and who waited for the name goes on.
    fn finish(&mut self, number: u64, mut result: Result<ShardAnswer, Error>, out: &mut Vec<Effect>) {
        let waiting = self.parking.waiting_for(Wait::Peer(number));
        if let Some(parked) = waiting.first().and_then(|place| self.parking.take(*place))
            && let super::park::Work::Call(call) = parked.work
        {
            if let (Ok(ShardAnswer::Entry { grants, .. }), true) = (&mut result, self.sessions.is_alive(call.session()))
            {
                *grants = self.grant_name(&call);
            }
            self.reply(call.token, result, out);
        }
        self.wake(Wait::Lock(number));
    }
}
