//! Programs that make system calls, through mounts and without, and what they are told.
//!
//! Rounds of calls ([`crate::system_calls`]) are held against POSIX ([`crate::history`]) when all calls have returned.
//! The faults are those of the network and of data connections; kernels lose dentries and pages to memory pressure,
//! and clients stand still for less than a term. A client that lost its session all the same may lose what it
//! has written, by the rules: then the run ends without a verdict.
//!
//! Not here: clients that die, full disks, nodes that are gone.

use super::{Message, World};
use crate::history::{History, Recorded};
use crate::kernel::requests::Errno;
use crate::kernel::{CallId, CallResult};
use crate::mount::MountMode;
use crate::system_calls::{CLIENTS, NATIVE, Programs, RACES, THEMES, Theme};

/// Rounds of one run.
const ROUNDS: u64 = 200;
/// A round that lasts for longer hangs.
const ROUND_MS_MAX: u64 = 120_000;
/// Longest time between the beginnings of two calls of one round.
const OVERLAP_MS: u64 = 12;
/// Longest pause of a client: shorter than its term.
const PAUSE_MS_MAX: u64 = 3000;
/// A broken connection explains that a transfer fails within this time.
const BROKEN_MS: u64 = 20_000;
/// A shard that does not reach another one says so within this time.
const SPLIT_MS: u64 = 2 * super::partitions::TIMEOUT_MS;
/// A call is given up when its connection has broken so often.
const UNHEARD_MIN: u64 = 3;
/// Longest time between two rounds of slow programs: a name rests for a second after its lease was recalled.
const CALM_MS_MAX: u64 = 2500;
/// A long time between two rounds: beyond terms and timeouts.
const IDLE_MS_MAX: u64 = 15_000;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Working,
    /// Everything is looked at once more, without faults.
    Looking,
}

/// What the programs of one run did.
pub struct MountRun {
    programs: Programs,
    history: History,
    round: Vec<Recorded>,
    rounds: u64,
    calls: u64,
    phase: Phase,
    /// Programs are slow, so that leases are granted again between what they do.
    is_calm: bool,
    pub is_over: bool,
}

impl MountRun {
    pub fn new(theme: Theme, is_calm: bool) -> Self {
        let (programs, history) = (Programs::new(theme), History::default());
        let (round, rounds, calls, phase) = (Vec::new(), 0, 0, Phase::Working);
        Self { programs, history, round, rounds, calls, phase, is_calm, is_over: false }
    }
}

impl World {
    /// Has clients make system calls from now on. Mounts differ in how they treat their kernel.
    pub(super) fn mount_all(&mut self) {
        let theme = THEMES[self.random.below(THEMES.len() as u64) as usize];
        let theme = if self.setting.one_in(5) { RACES } else { theme };
        self.mounts = Some(MountRun::new(theme, self.random.one_in(2)));
        for index in 0..CLIENTS {
            let mode = MountMode { direct: self.random.one_in(5), has_epoch: !self.random.one_in(4) };
            let seed = self.random.next();
            self.note(&format!("client {index}: {mode:?}"));
            self.clients[index].make_system_calls((index != NATIVE).then_some((mode, seed)));
            self.poll(index);
        }
        self.network.after(1, Message::NextRound);
    }

    /// Chooses the calls of the next round.
    pub(super) fn next_round(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        if self.clients.iter().any(|client| client.process.is_cut_off.get()) {
            self.tally.undecided += 1;
            run.is_over = true;
            return self.begin_to_end();
        }
        if !run.programs.is_in_the_middle() {
            match run.phase {
                Phase::Working if run.rounds < ROUNDS => self.disturb(),
                Phase::Working => {
                    run.phase = Phase::Looking;
                    self.network.faults = false;
                    run.programs.look_at_all(run.history.state());
                }
                Phase::Looking => {
                    run.is_over = true;
                    return self.begin_to_end();
                }
            }
        }
        let Some(run) = &mut self.mounts else { return };
        run.rounds += 1;
        let calls = run.programs.next_round(&mut self.random, run.history.state());
        run.round.clear();
        for (place, (client, call)) in calls.into_iter().enumerate() {
            run.calls += 1;
            let delay_ms = if place == 0 { 0 } else { self.random.below(OVERLAP_MS) };
            let (id, begun_ms) = (run.calls, self.network.now_ms + delay_ms);
            let (pieces, returned) = (Vec::new(), None);
            run.round.push(Recorded { id, client, call, begun_ms, unheard: 0, may_fail: false, pieces, returned });
            self.network.after(delay_ms, Message::BeginCall(place));
        }
        let round = run.rounds;
        self.network.after(ROUND_MS_MAX, Message::RoundLasts(round));
    }

    /// Memory pressure and pauses.
    fn disturb(&mut self) {
        let index = usize::try_from(self.random.below(CLIENTS as u64)).expect("there are few clients");
        match self.random.below(40) {
            0..=2 => {
                let pages = self.random.one_in(2);
                self.tally.shrunk += 1;
                self.clients[index].shrink(pages);
                self.poll(index);
            }
            3 => {
                self.tally.pauses += 1;
                let pause_ms = self.random.below(PAUSE_MS_MAX);
                self.note(&format!("client {index} pauses for {pause_ms} ms"));
                self.clients[index].paused_until_ms = self.network.now_ms + pause_ms;
            }
            _ => {}
        }
    }

    /// A call of the present round begins.
    pub(super) fn begin_call(&mut self, place: usize) {
        let Some(recorded) = self.mounts.as_mut().and_then(|run| run.round.get_mut(place)) else { return };
        recorded.begun_ms = self.network.now_ms;
        recorded.unheard = self.unheard.get(&recorded.client).copied().unwrap_or(0);
        let (id, client, call) = (recorded.id, recorded.client, recorded.call.clone());
        recorded.may_fail = self.clients[client].owes_error(&call);
        if self.clients[client].paused_until_ms > self.network.now_ms {
            let wait_ms = self.clients[client].paused_until_ms - self.network.now_ms;
            return self.network.after(wait_ms, Message::BeginCall(place));
        }
        self.tally.operations += 1;
        self.note(&format!("client {client}: call {id}: {call:?}"));
        self.clients[client].call(CallId(id), call);
        self.poll(client);
    }

    /// Calls of a client have returned.
    pub(super) fn returned(&mut self, returned: Vec<(CallId, CallResult)>) {
        for (id, result) in returned {
            self.note(&format!("call {} returned {result:?}", id.0));
            let now_ms = self.network.now_ms;
            let Some(run) = &mut self.mounts else { return };
            let recorded = run.round.iter_mut().find(|recorded| recorded.id == id.0);
            let recorded = recorded.expect("a call returns in its round");
            let unheard = self.unheard.get(&recorded.client).copied().unwrap_or(0) - recorded.unheard;
            let is_split = self.model.split_ms.is_some_and(|split_ms| split_ms + SPLIT_MS >= recorded.begun_ms);
            if result == Err(Errno::EIO) && (unheard >= UNHEARD_MIN || is_split) {
                // It gave up, as it must, and nobody knows what became of its call.
                self.clients[recorded.client].process.is_cut_off.set(true);
            }
            recorded.pieces = self.clients[recorded.client].take_pieces(id);
            recorded.returned = Some((now_ms, result));
            let broke_ms = self.connections.broke_ms(recorded.client);
            recorded.may_fail |= broke_ms.is_some_and(|broke_ms| now_ms < broke_ms + BROKEN_MS);
            if run.round.iter().all(|recorded| recorded.returned.is_some()) {
                self.round_returned();
            }
        }
    }

    fn round_returned(&mut self) {
        let cut_off = self.clients.iter().any(|client| client.process.is_cut_off.get());
        let Some(run) = &mut self.mounts else { return };
        let checked = if cut_off { Ok(()) } else { run.history.check_round(&run.round) };
        run.round.clear();
        self.tally.ambiguous = run.history.ambiguous;
        let calm = run.is_calm;
        if let Err(what) = checked {
            self.fail(&what);
        }
        let think_ms = match self.random.below(30) {
            0 => self.random.below(IDLE_MS_MAX),
            1..=8 => self.random.below(300),
            _ if calm => self.random.below(CALM_MS_MAX),
            _ => self.random.below(5),
        };
        self.network.after(think_ms, Message::NextRound);
    }

    /// A round that has lasted for long must have ended.
    pub(super) fn round_lasts(&self, round: u64) {
        if let Some(run) = &self.mounts
            && run.rounds == round
            && !run.is_over
        {
            self.fail(&format!("calls do not return: {:?}", run.round));
        }
    }
}
