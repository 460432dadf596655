//! Steps to one other node that have no reply yet, and the decision that the node is away.
//!
//! The reply to a `Lock` may take as long as the session of a client that was killed, and `Carry`, which ends the wait
//! of another `Lock`, goes to the same node: so no step waits for the reply to another one. A step that is sent again
//! replaces its earlier sending, which the node forgets as well.
//!
//! A node that is silent is asked for a sign of life, and is away if it gives none in time. When the connection breaks,
//! its steps are sent once more over another one: all steps are idempotent.
//!
//! Not here: sockets and clock (`step_line.rs`); when a shard repeats a step (`front/intents.rs` of weft-metadata).

use std::collections::{BTreeMap, VecDeque};
use weft_protocol::message::peer::PeerCall;

/// Silence after which the node is asked for a sign of life, milliseconds.
const SILENT_MS: u64 = 2500;
/// Longest wait for the sign of life, milliseconds.
const ANSWER_MS_MAX: u64 = 7500;

struct Step {
    call: PeerCall,
    /// The connection on which it was sent first has broken.
    is_resent: bool,
}

impl Step {
    /// Whether the other is a later sending of the same step.
    fn is_repeated_by(&self, other: &PeerCall) -> bool {
        (self.call.intent, self.call.to) == (other.intent, other.to) && self.call.step == other.step
    }
}

/// What a node's silence asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// Nothing for so many milliseconds.
    Wait(u64),
    /// A ping with this identifier.
    Ping(u64),
    /// The node is away.
    Away,
}

/// See the module.
#[derive(Default)]
pub struct StepsInFlight {
    unsent: VecDeque<Step>,
    /// By identifier of the request.
    sent: BTreeMap<u64, Step>,
    latest_id: u64,
    /// When the last message came. Before it: when the connection was made, or the first step queued.
    heard_ms: u64,
    /// When the node was asked for a sign of life, since the last message came.
    pinged_ms: Option<u64>,
}

impl StepsInFlight {
    /// Returns true if no step waits for anything.
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty()
    }

    /// Queues a step.
    pub fn add(&mut self, call: PeerCall, now_ms: u64) {
        if self.is_empty() {
            self.connected(now_ms);
        }
        self.unsent.retain(|step| !step.is_repeated_by(&call));
        self.sent.retain(|_, step| !step.is_repeated_by(&call));
        self.unsent.push_back(Step { call, is_resent: false });
    }

    /// A connection was made: the node's silence counts from now.
    pub fn connected(&mut self, now_ms: u64) {
        (self.heard_ms, self.pinged_ms) = (now_ms, None);
    }

    /// Returns the next step to send, with its identifier.
    pub fn next(&mut self) -> Option<(u64, &PeerCall)> {
        let step = self.unsent.pop_front()?;
        let id = self.next_id();
        Some((id, &self.sent.entry(id).or_insert(step).call))
    }

    fn next_id(&mut self) -> u64 {
        self.latest_id += 1;
        self.latest_id
    }

    /// A message came. Returns the step whose reply it is: none for that to a ping, or to an earlier sending.
    pub fn received(&mut self, id: u64, now_ms: u64) -> Option<PeerCall> {
        self.connected(now_ms);
        self.sent.remove(&id).map(|step| step.call)
    }

    /// Judges the node's silence. All messages that have come by now must have been given to
    /// [`StepsInFlight::received`].
    pub fn silence(&mut self, now_ms: u64) -> Silence {
        if self.is_empty() {
            return Silence::Wait(SILENT_MS);
        }
        // From the ping on: this node may have been stopped itself before it.
        let due_ms = self.pinged_ms.map_or(self.heard_ms + SILENT_MS, |pinged_ms| pinged_ms + ANSWER_MS_MAX);
        if now_ms < due_ms {
            return Silence::Wait(due_ms - now_ms);
        }
        if self.pinged_ms.is_some() {
            return Silence::Away;
        }
        self.pinged_ms = Some(now_ms);
        Silence::Ping(self.next_id())
    }

    /// The connection has broken. Returns the steps for which that was the second one: their node is away.
    pub fn connection_broken(&mut self) -> Vec<PeerCall> {
        let (failed, again): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.sent).into_values().partition(|step| step.is_resent);
        for step in again.into_iter().rev() {
            self.unsent.push_front(Step { is_resent: true, ..step });
        }
        failed.into_iter().map(|step| step.call).collect()
    }

    /// The node is away: returns all steps.
    pub fn take_all(&mut self) -> Vec<PeerCall> {
        let sent = std::mem::take(&mut self.sent).into_values();
        sent.chain(std::mem::take(&mut self.unsent)).map(|step| step.call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::message::peer::{IntentId, PeerStep};
    use weft_protocol::{MapEpoch, SessionId, ShardId};

    fn step(number: u64, step: PeerStep) -> PeerCall {
        PeerCall { to: ShardId(1), epoch: MapEpoch(1), intent: IntentId { shard: ShardId(0), number }, step }
    }

    fn lock(number: u64) -> PeerCall {
        step(number, PeerStep::Lock { session: SessionId(7), round: 0, waits: true, locks: Vec::new() })
    }

    fn send_all(steps: &mut StepsInFlight) -> Vec<(u64, PeerCall)> {
        std::iter::from_fn(|| steps.next().map(|(id, call)| (id, call.clone()))).collect()
    }

    #[test]
    fn no_step_waits_for_the_reply_to_another() {
        let mut steps = StepsInFlight::default();
        let calls: Vec<_> = (0..100).map(lock).chain([step(0, PeerStep::Undo)]).collect();
        calls.iter().for_each(|call| steps.add(call.clone(), 0));
        let sent = send_all(&mut steps);
        assert_eq!(sent.iter().map(|(_, call)| call.clone()).collect::<Vec<_>>(), calls);
        for (id, call) in sent.into_iter().rev() {
            assert_eq!(steps.received(id, 1), Some(call));
        }
        assert!(steps.is_empty());
    }

    #[test]
    fn a_step_that_is_sent_again_replaces_its_earlier_sending() {
        let mut steps = StepsInFlight::default();
        steps.add(lock(1), 0);
        let first = send_all(&mut steps);
        (0..10).for_each(|_| steps.add(lock(1), 1000));
        steps.add(step(1, PeerStep::Undo), 1000);
        let again = send_all(&mut steps);
        assert_eq!(again.len(), 2, "one lock, and the other step of the same intent");
        assert_eq!(steps.received(first[0].0, 1001), None);
        assert_eq!(steps.received(again[0].0, 1002), Some(lock(1)));
    }

    #[test]
    fn a_node_that_gives_signs_of_life_may_take_its_time() {
        let mut steps = StepsInFlight::default();
        steps.add(lock(1), 50_000);
        let sent = send_all(&mut steps);
        for round in 0..10 {
            let now_ms = 50_000 + round * SILENT_MS;
            assert_eq!(steps.silence(now_ms), Silence::Wait(SILENT_MS));
            let Silence::Ping(id) = steps.silence(now_ms + SILENT_MS) else { panic!("it is asked") };
            assert_eq!(steps.received(id, now_ms + SILENT_MS), None);
        }
        assert_eq!(steps.received(sent[0].0, 90_000), Some(lock(1)));
    }

    #[test]
    fn a_silent_node_is_away_although_its_steps_are_sent_again() {
        let mut steps = StepsInFlight::default();
        let mut pings = 0;
        for now_ms in (0..).step_by(1000) {
            steps.add(lock(1), now_ms);
            send_all(&mut steps);
            match steps.silence(now_ms) {
                Silence::Wait(wait_ms) => assert!(wait_ms <= ANSWER_MS_MAX),
                Silence::Ping(_) => pings += 1,
                Silence::Away => break,
            }
            assert!(now_ms <= SILENT_MS + ANSWER_MS_MAX + 1000, "it is away by now");
        }
        assert_eq!(pings, 1);
        assert_eq!(steps.take_all(), [lock(1)]);
        assert!(steps.is_empty());
    }

    #[test]
    fn the_time_for_which_this_node_was_stopped_is_not_silence_of_the_other() {
        let mut steps = StepsInFlight::default();
        steps.add(lock(1), 0);
        send_all(&mut steps);
        let Silence::Ping(id) = steps.silence(3_600_000) else { panic!("it is asked") };
        assert_eq!(steps.silence(3_600_000), Silence::Wait(ANSWER_MS_MAX));
        // Stopped again: the sign of life is there when it goes on.
        assert_eq!(steps.received(id, 7_200_000), None);
        assert_eq!(steps.silence(7_200_000), Silence::Wait(SILENT_MS));
    }

    #[test]
    fn steps_on_a_broken_connection_are_sent_once_more() {
        let mut steps = StepsInFlight::default();
        (1..=2).for_each(|number| steps.add(lock(number), 0));
        send_all(&mut steps);
        steps.add(lock(3), 0);
        assert_eq!(steps.connection_broken(), []);
        let sent: Vec<_> = send_all(&mut steps).into_iter().map(|(_, call)| call).collect();
        assert_eq!(sent, [lock(1), lock(2), lock(3)]);
        assert_eq!(steps.connection_broken(), [lock(1), lock(2)]);
        assert_eq!(steps.take_all(), [lock(3)]);
    }
}
