//! Bounds a wait for a peer that keeps its connection but makes no progress.
//!
//! A socket with a [`Patience`] blocks for at most [`TICK`] at a time, and asks it then whether to go on. A wait with
//! progress costs nothing more than one without a patience.

use crate::{Result, Socket};
use rustix::io::Errno;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Interval at which a waiting thread asks.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Longest time between two looks of a wait that counts: that of a sleep (`weft-ucx`).
const LOOKS_APART_MAX: Duration = Duration::from_secs(1);

/// Decides whether a wait goes on.
pub trait Patience: Send + Sync + Debug {
    /// The calling thread has waited without progress since `since`, for `time`: its own sleeps, without what it was
    /// stopped for. An error ends the wait; the connection is of no more use then.
    fn waited(&self, since: Instant, time: Duration) -> Result<Waited>;
}

/// Verdict of a [`Patience`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The wait goes on.
    GoOn,
    /// The peer lives: the wait counts from now.
    Lives,
}

/// One wait for progress.
#[derive(Default)]
pub(crate) struct Wait {
    /// `None`: nothing was waited for yet.
    since: Option<Instant>,
    time: Duration,
    /// Last call of [`Wait::looked`] that counted.
    looked: Option<Instant>,
}

impl Wait {
    /// A blocking call of the socket has timed out, or a sleep has ended without progress. Without a patience that is
    /// an error: the socket's own timeout ([`Socket::set_timeout`]) has passed.
    pub fn timed_out(&mut self, socket: &Socket) -> Result<()> {
        let patience = socket.patience().ok_or(Errno::AGAIN)?;
        self.ask(patience, TICK)
    }

    /// As [`Wait::timed_out`] after a sleep of at most `time`, where a socket without a patience waits without bound.
    pub fn slept(&mut self, socket: &Socket, time: Duration) -> Result<()> {
        socket.patience().map_or(Ok(()), |patience| self.ask(patience, time))
    }

    /// To be called again and again by a wait that the socket does not bound. Asks at most once in [`TICK`].
    pub fn looked(&mut self, socket: &Socket) -> Result<()> {
        let now = Instant::now();
        let time = now.duration_since(*self.looked.get_or_insert(now));
        if time < TICK {
            return Ok(());
        }
        self.looked = Some(now);
        // A longer gap is time for which this process was stopped itself.
        self.slept(socket, time.min(LOOKS_APART_MAX))
    }

    fn ask(&mut self, patience: &dyn Patience, time: Duration) -> Result<()> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.time += time;
        if patience.waited(since, self.time)? == Waited::Lives {
            *self = Self { since: Some(now), time: Duration::ZERO, ..*self };
        }
        Ok(())
    }
}
