//! The answering side of operations over several shards. Steps of own intents come here, too, without a message.

use super::park::{NOBODY, Wait, Work};
use super::plan::Plan;
use super::{Effect, Pause, Shard};
use crate::back::{Answer, Command};
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::PARKED_REQUESTS_MAX;
use weft_protocol::message::peer::{IntentId, NameChange, PeerAnswer, PeerCall, PeerReply, PeerStep};
use weft_protocol::{Error, FileKind, LeaseKey, LeaseMode, SessionId};

/// How long a shard waits for the end of another shard's intent before it asks, milliseconds.
const ASK_MS: u64 = 3000;
/// Set in the numbers of such questions, so that they are not those of intents.
const IS_QUESTION: u64 = 1 << 63;

/// What intents have locked here.
#[derive(Default, Serialize, Deserialize)]
pub struct Locked {
    /// Keys that nobody is granted until the intent ends.
    keys: BTreeMap<IntentId, Vec<LeaseKey>>,
    /// When other shards are asked what became of theirs.
    due: BTreeSet<(u64, IntentId)>,
    /// Questions in flight.
    asked: BTreeMap<u64, IntentId>,
    latest: u64,
    /// Intents whose shards were not reached when they were asked last.
    cut_off: BTreeSet<IntentId>,
}

impl Locked {
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Whether what waits for this intent may wait for long.
    pub fn is_cut_off(&self, intent: IntentId) -> bool {
        self.cut_off.contains(&intent)
    }
}

impl<K: KeyValue> Shard<K> {
    pub(super) fn receive_step(&mut self, token: u64, call: PeerCall, out: &mut Vec<Effect>) {
        if let Some((number, waiting)) = self.parking.of_intent(call.intent) {
            let earlier = std::mem::replace(waiting, token);
            if earlier != NOBODY {
                // The reply goes to the later sending alone.
                let reply = PeerReply { intent: call.intent, result: Ok(PeerAnswer::Open) };
                out.push(Effect::PeerReply { token: earlier, reply });
            }
            if call.step != PeerStep::Undo {
                return;
            }
            // It was given up before it has locked anything here.
            self.parking.take(number);
        }
        self.locked.cut_off.remove(&call.intent);
        let intent = call.intent;
        let result = if call.to != self.back.shard() {
            Err(Error::WrongShard(call.to))
        } else {
            match self.judge_step(&call, &[]) {
                Ok(result) => result,
                Err(_) if self.parking.count() >= PARKED_REQUESTS_MAX => Err(Error::Busy),
                Err(pause) => {
                    let number = self.parking.next_number();
                    let work = Work::Peer { token, call };
                    self.park(number, work, Vec::new(), pause, self.now.boot_ms, out);
                    return;
                }
            }
        };
        self.answer_step(token, PeerReply { intent, result }, out);
    }

    pub(super) fn answer_step(&mut self, token: u64, reply: PeerReply, out: &mut Vec<Effect>) {
        if reply.intent.shard == self.back.shard() {
            self.peer_replied(reply, out);
        } else {
            out.push(Effect::PeerReply { token, reply });
        }
    }

    /// The answer to a step, or what it waits for.
    pub(super) fn judge_step(
        &mut self,
        call: &PeerCall,
        asked: &[(LeaseKey, SessionId)],
    ) -> Result<Result<PeerAnswer, Error>, Pause> {
        let intent = call.intent;
        if let Some(pause) = self.read_before_step(&call.step) {
            return Err(pause);
        }
        let mut plan = Plan::new();
        match &call.step {
            PeerStep::Lock { session: requester, round, waits, locks } if !self.back.has_locked(intent, locks) => {
                if let Some(by) = self.back.blocker(intent, locks) {
                    if self.locked.is_cut_off(by) {
                        return Ok(Err(Error::Unreachable));
                    }
                    if !waits {
                        return Ok(Ok(PeerAnswer::Blocked { shard: self.back.shard(), round: *round }));
                    }
                    return Err(Pause::until(Wait::Lock(by), Vec::new()));
                }
                self.plan_locks(&mut plan, locks);
                let spread = self.back.spreads(intent);
                // Names that the client itself knows go to other parts, too.
                let requester = Some(*requester).filter(|_| spread.is_none());
                let mut pause = self.conflicts(&plan, requester, asked);
                if let Some(directory) = spread {
                    let of_names = self.leases.holders_of_names(directory);
                    let recalls = of_names.into_iter().map(|of| (LeaseKey::Names(directory), of, LeaseMode::None));
                    for recall in recalls {
                        let pause = pause.get_or_insert_with(|| Pause::until(Wait::Recalls, plan.keys()));
                        pause.recalls.push(recall);
                    }
                }
                if let Some(pause) = pause {
                    return Err(pause);
                }
                self.contention.changed(plan.keys_alone(), requester, self.now.boot_ms);
            }
            // The shard of the intent that is in the way may be gone for good: what it may have decided is not known.
            PeerStep::Ancestors { of }
                if let Some(by) = self.back.lock_on_way_up(intent, *of)
                    && self.locked.is_cut_off(by) =>
            {
                return Ok(Err(Error::Unreachable));
            }
            PeerStep::Carry { changes } if self.back.lock_session(intent).is_some() => {
                for change in changes {
                    self.plan_change(&mut plan, change);
                }
            }
            _ => {}
        }
        // A client may have a directory open without a lease on it.
        let is_directory =
            plan.target.and_then(|inode| self.back.inode(inode)).is_some_and(|inode| inode.kind == FileKind::Directory);
        let keep = is_directory || self.keeps_target(&plan);
        let command = Command::PeerStep { intent, step: call.step.clone(), keep };
        let answer = self.apply(&command).answer;
        let Answer::Peer(mut result) = answer else { panic!("a step is answered to its shard, not by {answer:?}") };
        match &mut result {
            Ok(PeerAnswer::Locked { stamp, .. }) => {
                self.hold(intent, plan.keys());
                // Later than all that was told of what is locked, and earlier than all that will be once it is not.
                self.stamp += 1;
                *stamp = self.stamp;
            }
            Ok(PeerAnswer::Carried { .. } | PeerAnswer::Forgotten { .. }) => self.released(intent),
            Ok(PeerAnswer::Open) => {
                // It waits for a step that is due, now that its shard can be reached.
                if let PeerStep::AskOutcome { of } = call.step {
                    self.intents.hurry(of.number, self.now.boot_ms);
                }
            }
            _ => {}
        }
        Ok(result)
    }

    fn plan_change(&self, plan: &mut Plan, change: &NameChange) {
        match change {
            NameChange::Set { directory, name, .. } => plan.name(*directory, name),
            NameChange::Gain { inode, .. } | NameChange::Move { inode, .. } => plan.alone(LeaseKey::Attributes(*inode)),
            NameChange::Lose { inode } | NameChange::Become { inode, .. } => self.plan_loss(plan, *inode),
        }
    }

    /// An intent has locked what these keys are on.
    fn hold(&mut self, intent: IntentId, keys: Vec<LeaseKey>) {
        self.parking.claim(&keys);
        if let Some(held) = self.locked.keys.get_mut(&intent) {
            return held.extend(keys);
        }
        self.locked.keys.insert(intent, keys);
        if intent.shard != self.back.shard() {
            self.locked.due.insert((self.now.boot_ms + ASK_MS, intent));
        }
    }

    /// An intent has locked nothing here any more, and will not.
    pub(super) fn released(&mut self, intent: IntentId) {
        if let Some((number, _)) = self.parking.of_intent(intent) {
            self.parking.take(number);
        }
        if let Some(keys) = self.locked.keys.remove(&intent) {
            self.parking.unclaim(&keys);
        }
        self.locked.due.retain(|(_, due)| *due != intent);
        self.locked.cut_off.remove(&intent);
        self.wake(Wait::Lock(intent));
    }

    /// Asks shards what became of intents of which nothing was heard.
    pub(super) fn ask_outcomes(&mut self, out: &mut Vec<Effect>) {
        while let Some((due_ms, intent)) = self.locked.due.first().copied() {
            if due_ms > self.now.boot_ms {
                return;
            }
            self.locked.due.remove(&(due_ms, intent));
            self.locked.due.insert((self.now.boot_ms + ASK_MS, intent));
            self.locked.asked.retain(|_, asked| *asked != intent);
            self.locked.latest += 1;
            let number = self.locked.latest | IS_QUESTION;
            self.locked.asked.insert(number, intent);
            let (to, own) = (intent.shard, IntentId { shard: self.back.shard(), number });
            let step = PeerStep::AskOutcome { of: intent };
            out.push(Effect::PeerCall(PeerCall { to, epoch: self.map.epoch, intent: own, step }));
        }
    }

    /// What a shard says of its intent. Returns false if this answers no such question.
    pub(super) fn outcome_told(&mut self, reply: &PeerReply) -> bool {
        if reply.intent.number & IS_QUESTION == 0 {
            return false;
        }
        let Some(intent) = self.locked.asked.remove(&reply.intent.number) else { return true };
        match &reply.result {
            Ok(PeerAnswer::Forgotten { .. }) => {
                self.apply(&Command::PeerStep { intent, step: PeerStep::Undo, keep: false });
                self.released(intent);
            }
            Err(Error::Unreachable | Error::WrongShard(_)) if self.back.lock_session(intent).is_some() => {
                self.locked.cut_off.insert(intent);
                self.wake(Wait::Lock(intent));
            }
            _ => {
                self.locked.cut_off.remove(&intent);
            }
        }
        true
    }
}
