//! Faults of mounts by which bytes and calls may be lost, told to the history.
//!
//! A loss is open while anything of it is on its way; then what somebody sees of it is so for all.

use super::{Message, World};
use crate::bytes::Moment;
use crate::client::Client;
use crate::history::Recorded;
use crate::kernel::requests::Errno;
use crate::kernel::{Call, Value};
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::{NodeId, SessionId};

/// After this nothing is in flight of what failed.
const SETTLE_MS: u64 = 500;
/// After this nothing is in flight of a session that has ended, and of a client that has died.
const ENDED_MS: u64 = SESSION_TERM_MS + 2000;
const DIED_MS: u64 = 2 * SESSION_TERM_MS + 5000;

/// What is known of losses.
#[derive(Default)]
pub struct Losses {
    /// The number of the latest.
    latest: u64,
    /// Those of which something may be on its way.
    open: BTreeSet<u64>,
    /// How many sessions of each client have ended, and when the latest did.
    sessions: BTreeMap<usize, (u64, u64)>,
    /// Clients that lost something during this round: of an inode, or of all, also by their death.
    lossy: BTreeSet<(usize, Option<u64>)>,
    dead: Vec<usize>,
    /// Clients of which a session ended during this round.
    over: BTreeSet<usize>,
    /// Those that settled during this round.
    settled: Vec<u64>,
    pub was_full: bool,
}

impl Losses {
    /// How many sessions of a client have ended.
    pub fn sessions(&self, client: usize) -> u64 {
        self.sessions.get(&client).map_or(0, |(count, _)| *count)
    }

    /// When the latest session of a client ended.
    pub fn session_ended_ms(&self, client: usize) -> Option<u64> {
        self.sessions.get(&client).map(|(_, at_ms)| *at_ms)
    }
}

fn has_failed(recorded: &Recorded) -> bool {
    match (&recorded.call, &recorded.returned) {
        (Call::Write { data, .. } | Call::Pwrite { data, .. }, Some((_, Ok(Value::Count(count))))) => {
            *count < data.len() as u64
        }
        (_, Some((_, Err(errno)))) => recorded.fate.is_unknown || [Errno::EIO, Errno::ENOSPC].contains(errno),
        _ => false,
    }
}

impl World {
    /// A shard has ended a session. What its client had not flushed of an earlier one was lost when it began the next,
    /// and nothing that it has written since.
    pub(super) fn session_lost(&mut self, session: SessionId) {
        let has_given_up = |client: &Client| client.process.given_up.borrow().contains_key(&session);
        if let Some(index) = self.clients.iter().position(|client| client.session() == session) {
            self.lose(index, None);
        } else if let Some(index) = self.clients.iter().position(has_given_up) {
            self.note_session_end(index);
        }
    }

    fn note_session_end(&mut self, client: usize) {
        let now_ms = self.network.now_ms;
        let Some(run) = self.mounts.as_mut().filter(|run| !run.is_over) else { return };
        self.tally.sessions += 1;
        let ended = run.losses.sessions.entry(client).or_default();
        *ended = (ended.0 + 1, now_ms);
    }

    /// A client has lost what it had not flushed, of an inode or with its session.
    pub(super) fn lose(&mut self, client: usize, of: Option<u64>) {
        if of.is_none() {
            self.note_session_end(client);
        }
        let Some(run) = self.mounts.as_mut().filter(|run| !run.is_over) else { return };
        let losses = &mut run.losses;
        losses.latest += 1;
        self.tally.losses += 1;
        if !run.round.is_empty() {
            losses.lossy.insert((client, of));
            if of.is_none() {
                losses.over.insert(client);
            }
        }
        let loss = losses.latest;
        run.history.lose(client, of, loss);
        self.settle_loss(loss, if of.is_none() { ENDED_MS } else { SETTLE_MS });
    }

    fn settle_loss(&mut self, loss: u64, delay_ms: u64) {
        if let Some(run) = &mut self.mounts {
            run.losses.open.insert(loss);
        }
        let since = self.files.borrow_mut().moment();
        self.network.after(delay_ms, Message::LossSettled { loss, since });
    }

    pub(super) fn loss_settled(&mut self, loss: u64, since: Moment) {
        if self.may_land(since) {
            return self.network.after(SETTLE_MS, Message::LossSettled { loss, since });
        }
        let Some(run) = &mut self.mounts else { return };
        if run.round.is_empty() {
            run.losses.open.remove(&loss);
            run.history.settle(loss, &run.losses.open);
        } else {
            // What was begun before may not have seen it.
            run.losses.settled.push(loss);
        }
    }

    /// What failed in the round that has returned belongs to a loss.
    pub(super) fn begin_loss(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        run.losses.latest += 1;
        let loss = run.losses.latest;
        run.history.begin_loss(loss);
        for recorded in &mut run.round {
            let of_client = run.losses.lossy.iter().filter(|(client, _)| *client == recorded.client);
            recorded.lost = of_client.map(|(_, of)| *of).collect();
        }
        if run.round.iter().any(has_failed) || !run.losses.lossy.is_empty() {
            let was_session = !run.losses.dead.is_empty() || run.round.iter().any(|recorded| recorded.fate.is_unknown);
            let delay_ms = if was_session { DIED_MS } else { ENDED_MS };
            self.settle_loss(loss, delay_ms);
        }
    }

    /// The round was checked.
    pub(super) fn losses_of_round_are_over(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        run.losses.lossy.clear();
        for client in std::mem::take(&mut run.losses.over) {
            run.history.session_over(client);
        }
        for client in std::mem::take(&mut run.losses.dead) {
            run.history.died(client, run.losses.latest);
        }
        for loss in std::mem::take(&mut run.losses.settled) {
            run.losses.open.remove(&loss);
            run.history.settle(loss, &run.losses.open);
        }
    }

    /// A mount's process dies, and with it its kernel's caches; another one begins. Its programs get errors.
    pub(super) fn mount_dies(&mut self, index: usize) {
        let now_ms = self.network.now_ms;
        let Some(run) = self.mounts.as_mut().filter(|run| !run.is_over) else { return };
        let begun = |recorded: &Recorded| recorded.begun_ms <= now_ms;
        for recorded in run.round.iter_mut().filter(|recorded| recorded.client == index && recorded.returned.is_none())
        {
            (recorded.fate.is_unknown, recorded.fate.is_void) = (begun(recorded), !begun(recorded));
            recorded.returned = Some((now_ms, Err(Errno::EIO)));
        }
        run.programs.died(index);
        run.losses.dead.push(index);
        self.lose(index, None);
        self.crash_client(index);
        self.mount(index);
        let Some(run) = &mut self.mounts else { return };
        if run.round.is_empty() {
            self.begin_loss();
            self.losses_of_round_are_over();
        } else {
            self.round_may_have_returned();
        }
    }

    /// The disk of a node is full for a while.
    pub(super) fn disk_is_full(&mut self, node: NodeId, until_ms: u64) {
        self.note(&format!("the disk of node {node} is full until {until_ms} ms"));
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.device.full_until_ms.set(self.clocks[&node].boot_ms(until_ms));
        }
        if let Some(run) = &mut self.mounts {
            run.losses.was_full = true;
        }
    }
}
