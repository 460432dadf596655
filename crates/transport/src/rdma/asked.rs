//! Bytes that were asked for ahead: they wait in the connection's buffer until somebody takes them.

use super::line::Wire;
use super::{RdmaBulk, part_of};
use crate::{Result, TransportError};
use std::collections::VecDeque;
use weft_protocol::data::DataRequest;

/// A part of what was asked for.
#[derive(Debug)]
struct Part {
    request: DataRequest,
    /// Its place in the buffer; `None`: there was none yet, and it was not sent.
    at: Option<usize>,
}

/// A part whose reply has come.
#[derive(Debug)]
struct Current {
    at: usize,
    /// Bytes that it has, and how many of them were taken.
    bytes: usize,
    taken: usize,
    /// Bytes behind them that the object does not have.
    hole: usize,
}

/// What was asked for and was not taken.
#[derive(Debug, Default)]
pub(super) struct Asked {
    waiting: VecDeque<Part>,
    current: Option<Current>,
    /// Whether what was taken last lay behind the object's end.
    met_end: bool,
}

impl Asked {
    /// Adds a request, in parts of at most so many bytes.
    pub fn push(&mut self, request: &DataRequest, part_bytes: usize) {
        let total = request.bytes as usize;
        let step = part_bytes.max(1);
        let parts = (0..total).step_by(step).map(|at| part_of(request, at, (total - at).min(step)));
        self.waiting.extend(parts.map(|request| Part { request, at: None }));
    }

    pub fn met_end(&self) -> bool {
        self.met_end
    }

    pub fn outstanding(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }
}

impl RdmaBulk {
    /// Sends what there are places for, in order.
    pub(super) fn send_asked(&mut self) -> Result<()> {
        let wire = Wire { socket: self.sockets.socket(), receiver: &self.receiver };
        for part in self.asked.waiting.iter_mut().filter(|part| part.at.is_none()) {
            let Some(at) = self.staging.take(part.request.bytes as usize) else { break };
            self.line.send(wire, &part.request, self.staging.descriptor(at))?;
            part.at = Some(at);
        }
        Ok(())
    }

    /// Takes of the oldest part; waits for it. 0: there is none.
    pub(super) fn receive_asked(&mut self, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.begin_asked()?;
        let Some(current) = &mut self.asked.current else { return Ok(0) };
        let left = current.bytes - current.taken;
        self.asked.met_end = left == 0;
        let count = into.len().min(if left > 0 { left } else { current.hole });
        let place = into.get_mut(..count).unwrap_or_default();
        if left > 0 {
            if !self.staging.copy_out(current.at + current.taken, place) {
                return Err(TransportError::Malformed);
            }
            current.taken += count;
        } else {
            place.fill(0);
            current.hole -= count;
        }
        if left > 0 {
            self.note_copied(count);
        }
        self.end_taken()?;
        Ok(count)
    }

    /// Hands the next bytes out where they lie; waits for them. `false`: so many of one part are not there.
    pub(super) fn hand_asked(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.begin_asked()?;
        let Some(current) = self.asked.current.as_mut().filter(|current| current.bytes - current.taken >= bytes) else {
            return Ok(false);
        };
        if !self.staging.hand_out(current.at + current.taken, bytes, give) {
            return Err(TransportError::Malformed);
        }
        current.taken += bytes;
        // They were handed out: what fails from here on is for whoever comes next.
        let ended = self.end_taken();
        let _ = self.settled(ended);
        Ok(true)
    }

    /// Gives the place of a part back when all of it was taken.
    fn end_taken(&mut self) -> Result<()> {
        let is_taken = |current: &Current| current.taken == current.bytes && current.hole == 0;
        if self.asked.current.as_ref().is_some_and(is_taken) { self.end_current() } else { Ok(()) }
    }

    /// Waits for the reply to the oldest part, unless one is being taken.
    fn begin_asked(&mut self) -> Result<()> {
        if self.asked.current.is_some() {
            return Ok(());
        }
        let Some(part) = self.asked.waiting.pop_front() else { return Ok(()) };
        let at = part.at.ok_or(TransportError::Malformed)?;
        let reply = self.line.reply(self.wire())?;
        reply.result().map_err(TransportError::Refused)?;
        let bytes = reply.bulk_bytes as usize;
        let hole = (part.request.bytes as usize).checked_sub(bytes).ok_or(TransportError::Malformed)?;
        self.asked.current = Some(Current { at, bytes, taken: 0, hole });
        Ok(())
    }

    fn end_current(&mut self) -> Result<()> {
        self.asked.current = None;
        self.staging.give_back();
        self.send_asked()
    }

    /// Takes everything and forgets it.
    pub(super) fn discard_asked(&mut self) -> Result<()> {
        // What was not sent is not wanted.
        self.asked.waiting.retain(|part| part.at.is_some());
        while self.asked.outstanding() > 0 {
            self.begin_asked()?;
            self.end_current()?;
        }
        Ok(())
    }
}
