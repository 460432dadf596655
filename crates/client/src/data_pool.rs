//! Data connections to one node, shared by all files of this client.
//!
//! Each is a thread at the node, so there are at most [`DATA_CONNECTIONS_PER_SESSION_MAX`]: whoever needs one when all
//! are in use waits until one comes back. So that this wait ends, a file keeps one from call to call (for bytes on
//! their way) only while at most half of them are in use: the other half is in the hands of calls, which end.
//! A node that has no room for more answers "busy"; then, too, one that comes back is waited for, or tried again.
//!
//! Those that nobody used for a while are closed: the node may need their places for others.

use crate::block_on::lock;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use weft_client_core::{BUSY_MS_MAX, BUSY_WAIT_US};
use weft_protocol::limits::DATA_CONNECTIONS_PER_SESSION_MAX;
use weft_protocol::{ConnectionId, Error, Result};
use weft_transport::BulkConnection;
use weft_transport::before_wait::{Waiting, before_wait};

/// How long a node may be busy before the caller is told, and how long one waits before asking again.
const BUSY_MAX: Duration = Duration::from_millis(BUSY_MS_MAX);
const BUSY_WAIT: Duration = Duration::from_micros(BUSY_WAIT_US);
/// Connections kept when nobody uses them.
const IDLE_MAX: usize = 8;
/// As many may be in use when one is kept from call to call.
const IN_USE_TO_KEEP_MAX: usize = DATA_CONNECTIONS_PER_SESSION_MAX / 2;

/// See the module.
#[derive(Default)]
pub(crate) struct DataPool {
    /// Rank 3: held to take and give back.
    state: Mutex<State>,
    /// One came back, or was closed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The one used last at the end.
    idle: Vec<Pooled>,
    /// Idle, in use, and being made.
    made: usize,
    /// Fewest that were idle since [`DataPool::close_unused`] looked last.
    unused: usize,
}

impl State {
    fn in_use(&self) -> usize {
        self.made - self.idle.len()
    }

    fn pop(&mut self) -> Option<Pooled> {
        let idle = self.idle.pop();
        self.unused = self.unused.min(self.idle.len());
        idle
    }
}

/// A new connection, and its name at the node.
pub(crate) type NewData = (ConnectionId, Box<dyn BulkConnection>);

/// A connection of the pool, counted as long as it is there.
pub(crate) struct Pooled {
    bulk: Box<dyn BulkConnection>,
    /// Its name at the node.
    pub id: ConnectionId,
    pool: Weak<DataPool>,
}

impl DataPool {
    /// Takes a connection, or makes one, or waits for one.
    pub fn take(self: &Arc<Self>, make: impl Fn() -> Result<NewData>) -> Result<Pooled> {
        let since = Instant::now();
        loop {
            {
                let mut state = lock(&self.state);
                while state.idle.is_empty() && state.made >= DATA_CONNECTIONS_PER_SESSION_MAX {
                    let left = BUSY_MAX.checked_sub(since.elapsed()).ok_or(Error::Busy)?;
                    state = self.wait(state, left);
                }
                if let Some(idle) = state.pop() {
                    return Ok(idle);
                }
                state.made += 1;
            }
            match self.made(make()) {
                Err(Error::Busy) if since.elapsed() < BUSY_MAX => {
                    let state = lock(&self.state);
                    if state.idle.is_empty() {
                        drop(self.wait(state, BUSY_WAIT));
                    }
                }
                result => return result,
            }
        }
    }

    /// Takes or makes a connection that may be kept from call to call. `None`: too many are in use.
    pub fn take_to_keep(self: &Arc<Self>, make: impl Fn() -> Result<NewData>) -> Result<Option<Pooled>> {
        {
            let mut state = lock(&self.state);
            if state.in_use() >= IN_USE_TO_KEEP_MAX {
                return Ok(None);
            }
            if let Some(idle) = state.pop() {
                return Ok(Some(idle));
            }
            state.made += 1;
        }
        match self.made(make()) {
            Err(Error::Busy) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Counts a connection that was made, or does not any more when it could not be.
    fn made(self: &Arc<Self>, result: Result<NewData>) -> Result<Pooled> {
        match result {
            Ok((id, bulk)) => Ok(Pooled { bulk, id, pool: Arc::downgrade(self) }),
            Err(error) => {
                self.one_less();
                Err(error)
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        before_wait(Waiting::Sleeps);
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn one_less(&self) {
        lock(&self.state).made -= 1;
        self.changed.notify_one();
    }

    /// Whether so many are in use that none is to be kept from call to call.
    pub fn is_crowded(&self) -> bool {
        lock(&self.state).in_use() > IN_USE_TO_KEEP_MAX
    }

    /// Gives a connection back that has nothing outstanding. One that failed is dropped instead.
    pub fn give_back(&self, connection: Pooled) {
        assert_eq!(connection.outstanding(), 0, "a connection is given back with transfers on their way");
        let mut state = lock(&self.state);
        let surplus = if state.idle.len() < IDLE_MAX {
            state.idle.push(connection);
            None
        } else {
            Some(connection)
        };
        // Closed without the lock, which its end takes.
        drop(state);
        drop(surplus);
        self.changed.notify_one();
    }

    /// Closes all that nobody uses now: one of them turned out to be dead.
    pub fn close_idle(&self) {
        let idle = std::mem::take(&mut lock(&self.state).idle);
        drop(idle);
    }

    /// Closes those that nobody needed since it was called last.
    pub fn close_unused(&self) {
        let unused: Vec<_> = {
            let mut state = lock(&self.state);
            let count = state.unused.min(state.idle.len());
            let unused = state.idle.drain(..count).collect();
            state.unused = state.idle.len();
            unused
        };
        drop(unused);
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.one_less();
        }
    }
}

impl Deref for Pooled {
    type Target = dyn BulkConnection;

    fn deref(&self) -> &Self::Target {
        &*self.bulk
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.bulk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use weft_transport::{Socket, SocketBulk};

    fn make() -> Result<NewData> {
        let (socket, _) = UnixStream::pair().unwrap();
        Ok((ConnectionId(0), Box::new(SocketBulk::new(Socket::from_unix(socket)))))
    }

    #[test]
    fn whoever_finds_all_in_use_waits_for_one() {
        let pool = Arc::new(DataPool::default());
        let mut in_use: Vec<_> = (0..DATA_CONNECTIONS_PER_SESSION_MAX).map(|_| pool.take(make).unwrap()).collect();
        let waiting = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.take(|| panic!("there are enough")).is_ok())
        };
        pool.give_back(in_use.pop().unwrap());
        assert!(waiting.join().unwrap());
        drop(in_use);
        assert_eq!(lock(&pool.state).made, 0, "those that were dropped are not counted");
    }

    #[test]
    fn only_half_are_kept_from_call_to_call() {
        let pool = Arc::new(DataPool::default());
        let take = || pool.take_to_keep(make).unwrap();
        let kept: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(kept.len(), DATA_CONNECTIONS_PER_SESSION_MAX / 2);
        assert!(!pool.is_crowded());
        let call = pool.take(make).unwrap();
        assert!(pool.is_crowded(), "a call gets one and gives it back when it ends");
        drop((call, kept));
        assert!(!pool.is_crowded());
    }

    #[test]
    fn a_busy_node_is_asked_again() {
        let pool = Arc::new(DataPool::default());
        let asked = std::cell::Cell::new(0);
        let taken = pool.take(|| {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Err(Error::Busy) } else { make() }
        });
        assert_eq!((taken.is_ok(), asked.get()), (true, 3));
        assert!(pool.take_to_keep(|| Err(Error::Busy)).unwrap().is_none());
        assert_eq!(pool.take(|| Err(Error::Unreachable)).err(), Some(Error::Unreachable));
        assert_eq!(lock(&pool.state).made, 1);
    }

    #[test]
    fn what_nobody_used_for_a_while_is_closed() {
        let pool = Arc::new(DataPool::default());
        let in_use: Vec<_> = (0..IDLE_MAX + 2).map(|_| pool.take(make).unwrap()).collect();
        in_use.into_iter().for_each(|connection| pool.give_back(connection));
        assert_eq!(lock(&pool.state).made, IDLE_MAX);
        pool.close_unused();
        assert_eq!(lock(&pool.state).made, IDLE_MAX, "they came back only now");
        let one = pool.take(make).unwrap();
        pool.give_back(one);
        pool.close_unused();
        assert_eq!(lock(&pool.state).made, 1, "one was used");
        pool.close_idle();
        assert_eq!(lock(&pool.state).made, 0);
    }
}
