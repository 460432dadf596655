//! Programs that make system calls, through mounts and without, and what they are told.
//!
//! Rounds of calls ([`crate::system_calls`]) are held against POSIX ([`crate::history`]) when all calls have returned.
//! The faults are those of the network and of data connections; kernels lose dentries and pages to memory pressure;
//! clients stand still, for longer than a term too, and die; disks are full for seconds.
//!
//! Not here: what is lost then (`losses.rs`); nodes that are gone (`gone.rs`).

use super::{Message, World};
use crate::choices::Tape;
use crate::history::{Fate, History, Recorded};
use crate::kernel::requests::Errno;
use crate::kernel::{Call, CallId, CallResult};
use crate::mount::MountMode;
use crate::random::Random;
use crate::script::Word;
use crate::script::calls::{Disturbance, Timed};
use crate::system_calls::{CLIENTS, CUTS, GROWS, NATIVE, Programs, RACES, THEMES, Theme, pick};
use weft_client_core::BUSY_MS_MAX;
use weft_protocol::limits::SESSION_TERM_MS;

/// Rounds of one run.
pub(super) const ROUNDS: u64 = 200;
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
/// A shard that does not reach another one says so within this time, and until an answer comes to what it asks next,
/// which may be lost.
const SPLIT_MS: u64 = 3 * super::partitions::TIMEOUT_MS;
/// A call that is refused since a shard moves is given up after this time, by any client's clock.
const REFUSED_MS: u64 = BUSY_MS_MAX * 49 / 50;
/// A call is given up when its connection has broken so often.
const UNHEARD_MIN: u64 = 3;
/// Longest time between two rounds of slow programs: a name rests for a second after its lease was recalled.
const CALM_MS_MAX: u64 = 2500;
/// A long time between two rounds: beyond terms and timeouts.
const IDLE_MS_MAX: u64 = 15_000;

/// What has a round of a script begin.
const PLAYED: [&str; 5] = ["call", "before", "then wait", "pause", super::gone::DIES];

/// From this round on everything is looked at.
const LOOKS: &str = "look";

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Working,
    /// Everything is looked at once more, without faults.
    Looking,
}

fn choose_disturbance(random: &mut Random) -> Disturbance {
    let client = pick(random, CLIENTS);
    match random.below(40) {
        0..=2 => Disturbance::Shrink { client, pages: random.one_in(2) },
        3 => {
            let longest_ms = if random.one_in(4) { LONG_PAUSE_MS_MAX } else { PAUSE_MS_MAX };
            Disturbance::Pause { client, ms: random.below(longest_ms) }
        }
        4 if random.one_in(5) => Disturbance::Dies { client, in_ms: random.below(DEATH_MS_MAX) },
        5 => Disturbance::Full { client, ms: random.below(FULL_MS_MAX) },
        _ => Disturbance::None,
    }
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
    /// A node is gone from this round on, which is given by its place among those that may be.
    pub(super) dies: Option<(u64, usize)>,
}

impl MountRun {
    pub fn new(theme: Theme, is_calm: bool, races: bool) -> Self {
        let (programs, history) = (Programs::new(theme, races), History::default());
        let (round, rounds, calls, phase) = (Vec::new(), 0, 0, Phase::Working);
        let losses = super::losses::Losses::default();
        Self { programs, history, round, rounds, calls, phase, is_calm, is_over: false, losses, dies: None }
    }

    fn is_looking(&self) -> bool {
        self.phase == Phase::Looking
    }

    /// The next round in which a script has something to do.
    fn next_to_play(&self, tape: &Tape) -> Option<u64> {
        let looks_at = tape.lines(LOOKS).first().map(|(key, _)| key.step);
        let steps = PLAYED.iter().flat_map(|what| tape.lines(what)).map(|(key, _)| key.step);
        let later = steps.filter(|step| *step > self.rounds && looks_at.is_none_or(|looks_at| *step < looks_at));
        later.min()
    }
}

impl World {
    /// Has clients make system calls from now on. Mounts differ in how they treat their kernel.
    pub(super) fn mount_all(&mut self) {
        let theme = THEMES[pick(self.choices.stream(), THEMES.len())];
        let setting = self.setting.stream();
        let is_race = setting.one_in(5);
        let theme = match is_race {
            true if setting.one_in(3) => GROWS,
            true if setting.one_in(4) => CUTS,
            true => RACES,
            false => theme,
        };
        let is_calm = self.choices.stream().one_in(2);
        let races = self.choices.tape.set_races(theme.has_races());
        let mut run = MountRun::new(theme, is_calm, races);
        if self.faults.descriptors {
            run.history.reopen();
        }
        self.mounts = Some(run);
        for index in 0..CLIENTS {
            self.mount(index);
        }
        self.cuts_of_step(0);
        self.network.after(1, Message::NextRound);
    }

    pub(super) fn mount(&mut self, index: usize) {
        let passes = self.faults.descriptors;
        let usual = MountMode { direct: false, has_epoch: true, passes };
        let mode = self.choices.decide(format_args!("mount client{index}"), usual, |random| MountMode {
            direct: random.one_in(5),
            has_epoch: !random.one_in(4),
            passes: passes && !random.one_in(4),
        });
        let order = format_args!("order of tasks client{index}");
        let order = self.choices.decide(order, Vec::new(), |random| vec![random.next()]);
        self.note(&format!("client {index}: {mode:?}"));
        self.clients[index].make_system_calls((index != NATIVE).then_some((mode, order.first().copied())));
        self.poll(index);
    }

    /// Chooses the calls of the next round.
    pub(super) fn next_round(&mut self) {
        let is_played = self.choices.tape.is_playing();
        let Some(run) = &mut self.mounts else { return };
        let mut disturbs = false;
        if !run.programs.is_in_the_middle() {
            match run.phase {
                Phase::Working if is_played => return self.play_round(),
                Phase::Working if run.rounds < ROUNDS => disturbs = true,
                Phase::Working => {
                    self.choices.tape.set_step(run.rounds + 1);
                    self.choices.tape.record(format_args!("{LOOKS}"), || "yes".to_owned());
                    self.begin_to_look();
                }
                Phase::Looking => {
                    run.is_over = true;
                    return self.begin_to_end();
                }
            }
        }
        let Some(run) = &mut self.mounts else { return };
        let round = run.rounds + 1;
        self.begin_round(round);
        if disturbs {
            self.node_may_die(round);
            self.disturb();
        }
        let Some(run) = &mut self.mounts else { return };
        let calls = match run.phase {
            Phase::Looking if is_played => run.programs.next_looks(),
            _ => run.programs.next_round(self.choices.stream(), run.history.state()),
        };
        let timed = calls.into_iter().enumerate().map(|(place, (client, call))| {
            let delay_ms = if place == 0 { 0 } else { self.choices.stream().below(OVERLAP_MS) };
            Timed { client, delay_ms, call }
        });
        let timed: Vec<Timed> = timed.collect();
        if !run.is_looking() {
            timed.iter().for_each(|call| self.choices.tape.record(format_args!("call"), || call.write()));
            if timed.is_empty() {
                self.choices.tape.record(format_args!("pause"), || "yes".to_owned());
            }
        }
        self.begin_calls(timed);
    }

    /// From now on everything is looked at.
    fn begin_to_look(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        run.phase = Phase::Looking;
        self.network.faults = false;
        run.programs.look_at_all(run.history.state());
    }

    fn begin_round(&mut self, round: u64) {
        let Some(run) = &mut self.mounts else { return };
        run.rounds = round;
        run.round.clear();
        self.choices.tape.set_step(round);
        self.round_ms = self.network.now_ms;
        self.cuts_of_step(round);
    }

    /// Plays the next round that a script has.
    fn play_round(&mut self) {
        let Some(run) = &mut self.mounts else { return };
        let round = run.next_to_play(&self.choices.tape);
        let lines = round.map_or_else(Vec::new, |round| self.choices.tape.lines_of(round, "call"));
        let told: Vec<Timed> = lines.iter().filter_map(|(_, text)| Timed::read(text)).collect();
        if let Some(unmap) = run.programs.unmap_before(&told) {
            return self.begin_calls(vec![unmap]);
        }
        let Some(round) = round else {
            for (key, _) in self.choices.tape.lines(LOOKS) {
                self.choices.tape.followed(&key, true);
            }
            self.begin_to_look();
            return self.next_round();
        };
        self.begin_round(round);
        self.node_dies_as_told(round);
        self.disturb();
        let Some(run) = &mut self.mounts else { return };
        let mut calls: Vec<Timed> = Vec::new();
        for (key, text) in lines {
            let call = Timed::read(&text).filter(|call| run.programs.fits(run.history.state(), &calls, call));
            self.choices.tape.followed(&key, call.is_some());
            calls.extend(call);
        }
        if calls.is_empty() {
            return self.wait_for_next_round();
        }
        self.begin_calls(calls);
    }

    fn begin_calls(&mut self, calls: Vec<Timed>) {
        let Some(run) = &mut self.mounts else { return };
        if calls.is_empty() {
            // What was to come belonged to a client that has died meanwhile.
            return self.network.after(1, Message::NextRound);
        }
        for Timed { client, delay_ms, call } in calls {
            run.calls += 1;
            let (id, begun_ms) = (run.calls, self.network.now_ms + delay_ms);
            run.round.push(Recorded::begun(id, client, call, begun_ms));
            self.network.after(delay_ms, Message::BeginCall(id));
        }
        let round = run.rounds;
        self.network.after(ROUND_MS_MAX, Message::RoundLasts(round));
    }

    /// Memory pressure, pauses, deaths and full disks; and changes of the map.
    fn disturb(&mut self) {
        self.map_may_change();
        let disturbance = self.choices.decide(format_args!("before"), Disturbance::None, choose_disturbance);
        match disturbance {
            Disturbance::None => {}
            Disturbance::Shrink { client, pages } => {
                self.tally.shrunk += 1;
                self.clients[client].shrink(pages);
                self.poll(client);
            }
            // Beyond its term in the middle of its calls.
            Disturbance::Pause { client, ms } if ms >= SESSION_TERM_MS => {
                self.network.after(1 + ms % OVERLAP_MS, Message::Pauses(client, ms));
            }
            Disturbance::Pause { client, ms } => self.pause(client, ms),
            Disturbance::Dies { client, in_ms } => self.network.after(in_ms, Message::MountDies(client)),
            Disturbance::Full { client, ms } => {
                let node = self.clients[client].process.home;
                self.disk_is_full(node, self.network.now_ms + ms);
            }
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
            // The node of a shard that moves, or the shard's new one, does not hear of the map.
            let is_moving = self.faults.moves && self.partitions.has_cut_nodes_since(recorded.begun_ms);
            let is_refused = is_moving && recorded.begun_ms + REFUSED_MS <= now_ms && result == Err(Errno::EAGAIN);
            let broke_ms = self.connections.broke_ms(recorded.client);
            let is_lately = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| now_ms < at_ms + BROKEN_MS);
            recorded.pieces = self.clients[recorded.client].take_pieces(id);
            if let Call::Open { handle, .. } = recorded.call {
                recorded.opened = self.clients[recorded.client].inode_of(handle);
            }
            recorded.fate = Fate {
                may_fail: recorded.fate.is_owed
                    || is_lately(broke_ms)
                    || is_lately(run.losses.session_ended_ms(recorded.client)),
                may_be_full: run.losses.was_full,
                loses_session: run.losses.sessions(recorded.client) > recorded.sessions,
                // It gave up, as it must, and nobody knows what became of its call.
                is_unknown: is_refused || result == Err(Errno::EIO) && (unheard >= UNHEARD_MIN || is_split),
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
        match checked {
            Ok(true) => {}
            Ok(false) => {
                run.is_over = true;
                self.tally.unjudged = 1;
                return self.begin_to_end();
            }
            Err(what) => self.fail(&what),
        }
        self.losses_of_round_are_over();
        self.wait_for_next_round();
    }

    fn wait_for_next_round(&mut self) {
        let Some(run) = &self.mounts else { return };
        let calm = run.is_calm;
        let think_ms = self.choices.decide(format_args!("then wait"), 1, |random| match random.below(30) {
            0 => random.below(IDLE_MS_MAX),
            1..=8 => random.below(300),
            _ if calm => random.below(CALM_MS_MAX),
            _ => random.below(5),
        });
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
