//! The answering side of operations over two shards.

use super::park::{Wait, Work};
use super::plan::Plan;
use super::{Effect, Pause, Shard};
use crate::back::{Answer, Command};
use crate::kv::KeyValue;
use weft_protocol::limits::PARKED_REQUESTS_MAX;
use weft_protocol::message::peer::{PeerAnswer, PeerCall, PeerReply, PeerStep};
use weft_protocol::{Error, LeaseKey, SessionId};

impl<K: KeyValue> Shard<K> {
    pub(super) fn receive_step(&mut self, token: u64, call: PeerCall, out: &mut Vec<Effect>) {
        if let Some(waiting) = self.parking.of_intent(call.intent) {
            *waiting = token;
            return;
        }
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
        out.push(Effect::PeerReply { token, reply: PeerReply { intent, result } });
    }

    /// The answer to a step, or what it waits for.
    pub(super) fn judge_step(
        &mut self,
        call: &PeerCall,
        asked: &[(LeaseKey, SessionId)],
    ) -> Result<Result<PeerAnswer, Error>, Pause> {
        // A directory that opens again was told of without links meanwhile.
        let changed = match &call.step {
            PeerStep::RemoveDirectoryInode { inode, .. } => Some(*inode),
            PeerStep::Undo => self.back.closed_by(call.intent),
            PeerStep::MakeDirectoryInode { .. } | PeerStep::Forget => None,
        };
        if let Some(inode) = changed {
            let mut plan = Plan::new();
            plan.directory_goes(inode);
            if let Some(pause) = self.conflicts(&plan, None, asked) {
                return Err(pause);
            }
        }
        let decided = match call.step {
            PeerStep::Undo | PeerStep::Forget => self.back.closed_by(call.intent),
            _ => None,
        };
        // Who asks is not known here, and may have the directory open without a lease on it.
        let command = Command::PeerStep { intent: call.intent, step: call.step.clone(), keep: true };
        let answer = self.apply(&command).answer;
        if let Some(directory) = decided {
            self.wake(Wait::Closed(directory));
        }
        match answer {
            Answer::Peer(result) => Ok(result),
            other => panic!("a step is answered to its shard, not by {other:?}"),
        }
    }
}
