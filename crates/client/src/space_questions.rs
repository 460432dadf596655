//! Questions for a server's space in flight: one for each server at most, whose answer all callers share.

use crate::block_on::lock;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, NodeId, Result};
use weft_transport::before_wait::{Waiting, before_wait};

/// Questions in flight, one for each server at most.
pub(crate) type SpaceQuestions = Mutex<HashMap<NodeId, Arc<Question>>>;

/// A question to a server, and its answer.
#[derive(Default)]
pub(crate) struct Question {
    answer: Mutex<Option<Result<Space>>>,
    answered: Condvar,
}

impl Question {
    /// Waits for the answer until the deadline.
    pub fn wait(&self, deadline: Instant) -> Result<Space> {
        let mut answer = lock(&self.answer);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = answer.as_ref() {
                return answer.clone();
            }
            if left.is_zero() {
                return Err(Error::Unreachable);
            }
            before_wait(Waiting::Sleeps);
            answer = self.answered.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The server has answered, or could not be asked.
    pub fn answer(&self, answer: Result<Space>) {
        *lock(&self.answer) = Some(answer);
        self.answered.notify_all();
    }
}
