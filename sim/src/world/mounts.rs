//! Programs that make system calls, through mounts and without, and what they are told.
//!
//! Rounds of calls ([`crate::system_calls`]) are held against POSIX ([`crate::history`]) when all calls have returned.
//! The faults are those of the network and of data connections; kernels lose dentries and pages to memory pressure;
//! clients stand still, for longer than a term too, and die; disks are full for seconds.
//!
//! Not here: what is lost then (`losses.rs`); nodes that are gone.

use super::{Message, World};
use crate::history::{Fate, History, Recorded};
use crate::kernel::requests::Errno;
use crate::kernel::{CallId, CallResult};
use crate::mount::MountMode;
use crate::system_calls::{CLIENTS, GROWS, NATIVE, Programs, RACES, THEMES, Theme};

/// Rounds of one run.
const ROUNDS: u64 = 200;
/// A round that lasts for longer hangs.
const ROUND_MS_MAX: u64 = 120_000;
/// Longest time between the beginnings of two calls of one round.
const OVERLAP_MS: u64 = 12;
/// Longest pause of a client that is shorter than its term, and longest of all.
const PAUSE_MS_MAX: u64 = 3000;
const LONG_PAUSE_MS_MAX: u64 = 25_000;
/// Longest time until a client dies, so that it does so in the middle of a round.
const DEATH_MS_MAX: u64 = 30;
/// Longest time for which a disk is full.
const FULL_MS_MAX: u64 = 4000;
/// How long a client that stood still is waited for to hear again.
const AWAKE_MS: u64 = 50;
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
    pub(super) programs: Programs,
    pub(super) history: History,
    pub(super) round: Vec<Recorded>,
    rounds: u64,
    calls: u64,
    phase: Phase,
    /// Programs are slow, so that leases are granted again between what they do.
    is_calm: bool,
    pub is_over: bool,
    pub(super) losses: super::losses::Losses,
}

impl MountRun {
    pub fn new(theme: Theme, is_calm: bool) -> Self {
        let (programs, history) = (Programs::new(theme), History::default());
        let (round, rounds, calls, phase) = (Vec::new(), 0, 0, Phase::Working);
        let losses = super::losses::Losses::default();
        Self { programs, history, round, rounds, calls, phase, is_calm, is_over: false, losses }
    }
}

impl World {
    /// Has clients make system calls from now on. Mounts differ in how they treat their kernel.
    pub(super) fn mount_all(&mut self) {
        let theme = THEMES[self.random.below(THEMES.len() as u64) as usize];
        let is_race = self.setting.one_in(5);
        let theme = match is_race {
            true if self.setting.one_in(3) => GROWS,
            true => RACES,
            false => theme,
        };
        self.mounts = Some(MountRun::new(theme, self.random.one_in(2)));
        for index in 0..CLIENTS {
            self.mount(index);
        }
        self.network.after(1, Message::NextRound);
    }

    pub(super) fn mount(&mut self, index: usize) {
        let mode = MountMode { direct: self.random.one_in(5), has_epoch: !self.random.one_in(4) };
        let seed = self.random.next();
        self.note(&format!("client {index}: {mode:?}"));
        self.clients[index].make_system_calls((index != NATIVE).then_some((mode, seed)));
        self.poll(index);
    }

    /// Chooses the calls of the next round.
    pub(super) fn next_round(&mut self) {
        let Some(run) = &mut self.mounts else { return };
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
        if calls.is_empty() {
            // What was to come belonged to a client that has died meanwhile.
            return self.network.after(1, Message::NextRound);
        }
        for (place, (client, call)) in calls.into_iter().enumerate() {
            run.calls += 1;
            let delay_ms = if place == 0 { 0 } else { self.random.below(OVERLAP_MS) };
            let (id, begun_ms) = (run.calls, self.network.now_ms + delay_ms);
            let (unheard, sessions, fate, pieces) = (0, 0, Fate::default(), Vec::new());
            run.round.push(Recorded { id, client, call, begun_ms, unheard, sessions, fate, pieces, returned: None });
            self.network.after(delay_ms, Message::BeginCall(id));
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
                let longest_ms = if self.random.one_in(4) { LONG_PAUSE_MS_MAX } else { PAUSE_MS_MAX };
                let pause_ms = self.random.below(longest_ms);
                self.note(&format!("client {index} pauses for {pause_ms} ms"));
                self.clients[index].paused_until_ms = self.network.now_ms + pause_ms;
            }
            4 if self.random.one_in(5) => {
                let delay_ms = self.random.below(DEATH_MS_MAX);
                self.network.after(delay_ms, Message::MountDies(index));
            }
            5 => {
                let node = self.clients[index].process.home;
                let until_ms = self.network.now_ms + self.random.below(FULL_MS_MAX);
                self.disk_is_full(node, until_ms);
            }
            _ => {}
        }
    }

    /// A call of the present round begins.
    pub(super) fn begin_call(&mut self, id: u64) {
        let Some(run) = &mut self.mounts else { return };
        let waits = |recorded: &&mut Recorded| recorded.id == id && recorded.returned.is_none();
        let Some(recorded) = run.round.iter_mut().find(waits) else { return };
        recorded.begun_ms = self.network.now_ms;
        recorded.unheard = self.unheard.get(&recorded.client).copied().unwrap_or(0);
        recorded.sessions = run.losses.sessions(recorded.client);
        let (client, call) = (recorded.client, recorded.call.clone());
        recorded.fate.is_owed = self.clients[client].owes_error(&call);
        if let Some(wait_ms) = self.asleep_ms(client) {
            return self.network.after(wait_ms, Message::BeginCall(id));
        }
        self.tally.operations += 1;
        self.note(&format!("client {client}: call {id}: {call:?}"));
        self.clients[client].call(CallId(id), call);
        self.poll(client);
    }

    /// How long a program of this client waits before it makes a call: while it stands still, and until it has heard
    /// again. Until then its kernel has pages that may be old.
    fn asleep_ms(&self, index: usize) -> Option<u64> {
        let (client, now_ms) = (&self.clients[index], self.network.now_ms);
        if client.paused_until_ms > now_ms {
            return Some(client.paused_until_ms - now_ms);
        }
        let woke_ms = client.process.clock.boot_ms(client.paused_until_ms);
        (client.paused_until_ms > 0 && client.asked_ms < woke_ms).then_some(AWAKE_MS)
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
            let broke_ms = self.connections.broke_ms(recorded.client);
            let is_lately = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| now_ms < at_ms + BROKEN_MS);
            recorded.pieces = self.clients[recorded.client].take_pieces(id);
            recorded.fate = Fate {
                may_fail: recorded.fate.is_owed
                    || is_lately(broke_ms)
                    || is_lately(run.losses.session_ended_ms(recorded.client)),
                may_be_full: run.losses.was_full,
                loses_session: run.losses.sessions(recorded.client) > recorded.sessions,
                // It gave up, as it must, and nobody knows what became of its call.
                is_unknown: result == Err(Errno::EIO) && (unheard >= UNHEARD_MIN || is_split),
                ..recorded.fate
            };
            recorded.returned = Some((now_ms, result));
            self.round_may_have_returned();
        }
    }

    /// Goes on if all calls of the round have returned.
    pub(super) fn round_may_have_returned(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        if run.round.is_empty() || run.round.iter().any(|recorded| recorded.returned.is_none()) {
            return;
        }
        self.begin_loss();
        let Some(run) = &mut self.mounts else { return };
        let checked = run.history.check_round(&run.round);
        run.round.clear();
        self.tally.ambiguous = run.history.ambiguous;
        if let Err(what) = checked {
            self.fail(&what);
        }
        self.losses_of_round_are_over();
        let Some(run) = &self.mounts else { return };
        let calm = run.is_calm;
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
