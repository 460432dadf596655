//! Native runs: when clients do something, what, and the faults of processes and disks.
//!
//! A seed has each client wake again and again, some milliseconds after it did before. A script says when.

use super::{Message, NODES, World};
use crate::choices::Choices;
use crate::program::NamesOperation;
use crate::script::programs::{Doing, Fault};
use crate::script::{Key, WINDOW_MS, Word};
use std::collections::VecDeque;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{InodeNumber, Name, NodeId, routing};

/// Names that clients fight over.
pub(super) const NAMES: u64 = 6;
/// Longest time for which a disk is full.
const FULL_MS_MAX: u64 = 4000;
/// Bad sectors: where the first one may begin, how long they are, and for how long.
const BAD_FROM_MAX: u64 = 200;
const BAD_BYTES_MAX: u64 = 40;
const BAD_MS_MAX: u64 = 4000;
/// Longest time for which a client hears of no recall, though it goes on: beyond a term its sessions are refused.
const DEAF_MS_MAX: u64 = 3 * SESSION_TERM_MS;

/// A wake of a script.
pub(super) struct Wake {
    at_ms: u64,
    fault: Option<(Key, Fault)>,
    doing: Option<(Key, Doing)>,
}

fn at<T: Word>(text: &str) -> Option<(u64, T)> {
    let (at_ms, word) = text.strip_prefix("at ")?.split_once(' ')?;
    Some((at_ms.parse().ok()?, T::read(word)?))
}

impl World {
    /// Has clients wake from now on.
    pub(super) fn begin_to_wake(&mut self) {
        let cuts = self.choices.tape.lines("cut");
        if let Some((last, _)) = cuts.last() {
            (0..=last.step).for_each(|step| self.cuts_of_step(step));
        }
        for index in 0..self.clients.len() {
            if self.choices.tape.is_playing() {
                let wakes = self.wakes_of(index);
                self.wakes.push(wakes);
                self.wake_as_told(index);
            } else {
                self.network.after(1, Message::Wake(index));
            }
        }
    }

    /// The wakes of a client that a script has, in their order.
    fn wakes_of(&self, index: usize) -> VecDeque<Wake> {
        let mut wakes: Vec<Wake> = Vec::new();
        for (key, text) in self.choices.tape.lines(&format!("client{index}")) {
            match at(&text) {
                Some((at_ms, doing)) => wakes.push(Wake { at_ms, fault: None, doing: Some((key, doing)) }),
                None => self.choices.tape.followed(&key, false),
            }
        }
        for (key, text) in self.choices.tape.lines(&format!("fault client{index}")) {
            let Some((at_ms, fault)) = at(&text) else {
                self.choices.tape.followed(&key, false);
                continue;
            };
            match wakes.iter_mut().find(|wake| wake.at_ms == at_ms) {
                Some(wake) => wake.fault = Some((key, fault)),
                None => wakes.push(Wake { at_ms, fault: Some((key, fault)), doing: None }),
            }
        }
        wakes.sort_by_key(|wake| wake.at_ms);
        wakes.into()
    }

    /// The next wake of a client that a script has will come.
    fn wake_as_told(&mut self, index: usize) {
        if let Some(wake) = self.wakes[index].front() {
            let delay_ms = wake.at_ms.saturating_sub(self.network.now_ms);
            self.network.after(delay_ms, Message::Wake(index));
        }
    }

    /// Whether a script has nothing more to do.
    pub(super) fn has_played_all(&self) -> bool {
        self.choices.tape.is_playing() && self.wakes.iter().all(VecDeque::is_empty)
    }

    pub(super) fn wake(&mut self, index: usize) {
        if self.ending {
            return;
        }
        if self.choices.tape.is_playing() {
            let wake = self.wakes[index].pop_front();
            self.wake_as_told(index);
            return wake.into_iter().for_each(|wake| self.play_wake(index, wake));
        }
        self.network.after(20 + self.choices.stream().below(200), Message::Wake(index));
        if self.is_busy(index) {
            return self.record(index, "", &Doing::Nothing);
        }
        let fault = self.choose_fault();
        if fault != Fault::None {
            self.record(index, "fault ", &fault);
        }
        self.inject(index, fault);
        let doing = self.choose_doing(index);
        self.record(index, "", &doing);
        self.perform_doing(index, &doing);
    }

    fn record(&self, index: usize, about: &str, word: &impl Word) {
        let at_ms = self.network.now_ms;
        self.choices.tape.record(format_args!("{about}client{index}"), || format!("at {at_ms} {}", word.write()));
    }

    /// Whether a client has no time for anything new.
    fn is_busy(&self, index: usize) -> bool {
        self.clients[index].paused_until_ms > self.network.now_ms || self.clients[index].is_using_names()
    }

    fn play_wake(&mut self, index: usize, wake: Wake) {
        let is_busy = self.is_busy(index);
        if let Some((key, fault)) = wake.fault {
            self.choices.tape.followed(&key, !is_busy);
            if !is_busy {
                self.inject(index, fault);
            }
        }
        if let Some((key, doing)) = wake.doing {
            let fits = doing == Doing::Nothing || !is_busy && self.perform_doing(index, &doing);
            self.choices.tape.followed(&key, fits);
        }
    }

    fn choose_doing(&mut self, index: usize) -> Doing {
        let directories = self.clients[index].process.directories.borrow().len() as u64;
        let random = self.choices.stream();
        let (directory, name) = (random.below(directories), random.below(NAMES));
        if (8..=15).contains(&random.below(24)) {
            return Doing::Use { directory: random.one_in(4).then_some(directory), name };
        }
        match random.below(16) {
            0..=5 => Doing::Lookup { directory, name },
            6 | 7 => Doing::Attributes { directory },
            8 | 9 => Doing::MakeDirectory { directory, name },
            10 => Doing::Unlink { directory, name },
            11 => Doing::UnlinkBatch { directory, names: [name, random.below(NAMES), random.below(NAMES)] },
            12 => Doing::RemoveDirectory { directory, name },
            13 => {
                let parent = if random.one_in(2) { directory } else { random.below(directories) };
                let (from, to) = ((directory, name), (parent, random.below(NAMES)));
                match random.below(6) {
                    0 => Doing::Link { from, to },
                    1 => Doing::Rename { from, to, mode: RenameMode::Exchange },
                    2 => Doing::Rename { from, to, mode: RenameMode::NoReplace },
                    _ => Doing::Rename { from, to, mode: RenameMode::Replace },
                }
            }
            14 => Doing::List { directory, with_attributes: random.one_in(2) },
            _ => Doing::Release,
        }
    }

    /// Returns false if the client does not know so many directories.
    fn perform_doing(&mut self, index: usize, doing: &Doing) -> bool {
        if *doing == Doing::Nothing {
            return true;
        }
        self.tally.operations += 1;
        if let Doing::Use { directory, name } = doing {
            let parent = directory.map_or(Some(InodeNumber::ROOT), |directory| self.directory(index, directory));
            let Some(parent) = parent else { return false };
            if !self.model.lost.contains(&routing::of_inode(parent)) {
                self.clients[index].start_program(parent, name_of(*name));
            }
        } else {
            let Some(operation) = self.operation(index, doing) else { return false };
            if !self.answer_from_cache(index, &operation) {
                self.clients[index].start_names(operation);
            }
        }
        self.poll(index);
        true
    }

    /// One of the directories that a client knows.
    fn directory(&self, index: usize, place: u64) -> Option<InodeNumber> {
        let known = self.clients[index].process.directories.borrow();
        known.get(usize::try_from(place).ok()?).copied()
    }

    fn operation(&self, index: usize, doing: &Doing) -> Option<NamesOperation> {
        let of = |place: u64| self.directory(index, place);
        let named = |(place, name): (u64, u64)| Some((of(place)?, name_of(name)));
        Some(match doing {
            Doing::Nothing | Doing::Use { .. } => return None,
            Doing::Lookup { directory, name } => {
                NamesOperation::Lookup { parent: of(*directory)?, name: name_of(*name) }
            }
            Doing::Attributes { directory } => NamesOperation::Attributes { inode: of(*directory)? },
            Doing::MakeDirectory { directory, name } => {
                NamesOperation::MakeDirectory { parent: of(*directory)?, name: name_of(*name) }
            }
            Doing::Unlink { directory, name } => {
                NamesOperation::Unlink { parent: of(*directory)?, name: name_of(*name) }
            }
            Doing::UnlinkBatch { directory, names } => {
                NamesOperation::UnlinkBatch { parent: of(*directory)?, names: names.map(name_of).to_vec() }
            }
            Doing::RemoveDirectory { directory, name } => {
                NamesOperation::RemoveDirectory { parent: of(*directory)?, name: name_of(*name) }
            }
            Doing::Rename { from, to, mode } => {
                NamesOperation::Rename { from: named(*from)?, to: named(*to)?, mode: *mode }
            }
            Doing::Link { from, to } => NamesOperation::Link { from: named(*from)?, to: named(*to)? },
            Doing::List { directory, with_attributes } => {
                NamesOperation::List { inode: of(*directory)?, with_attributes: *with_attributes }
            }
            Doing::Release => NamesOperation::Release,
        })
    }

    fn choose_fault(&mut self) -> Fault {
        let all_nodes = self.storage.len() == usize::from(NODES);
        let random = self.choices.stream();
        match random.below(300) {
            0 => Fault::Dies,
            1 => Fault::Pause(random.below(15_000)),
            2 if random.one_in(4) && all_nodes => Fault::NodeDies(1 + random.below(u64::from(NODES) - 1)),
            3..=5 => Fault::Full(random.below(FULL_MS_MAX)),
            6 => Fault::Deaf(random.below(DEAF_MS_MAX)),
            7..=10 if self.faults.bad_sectors => choose_bad_sectors(&mut self.setting),
            _ => Fault::None,
        }
    }

    /// A client stands still.
    pub(super) fn pause(&mut self, index: usize, pause_ms: u64) {
        self.tally.pauses += 1;
        self.note(&format!("client {index} pauses for {pause_ms} ms"));
        self.clients[index].paused_until_ms = self.network.now_ms + pause_ms;
    }

    /// Faults of processes and disks.
    fn inject(&mut self, index: usize, fault: Fault) {
        match fault {
            Fault::None => {}
            Fault::Dies => self.crash_client(index),
            Fault::Pause(pause_ms) => self.pause(index, pause_ms),
            // That of the root stays, and one more.
            Fault::NodeDies(node) if self.storage.len() == usize::from(NODES) && !self.may_have_root(node_of(node)) => {
                self.crash_node(node_of(node));
            }
            Fault::NodeDies(_) => {}
            Fault::Full(full_ms) => {
                let home = self.clients[index].process.home;
                self.disk_is_full(home, self.network.now_ms + full_ms);
            }
            Fault::Deaf(deaf_ms) => {
                self.tally.deaf += 1;
                self.note(&format!("client {index} hears of no recall for {deaf_ms} ms"));
                self.clients[index].deaf_until_ms = self.network.now_ms + deaf_ms;
            }
            Fault::BadSectors([node, first, bytes, bad_ms]) => {
                self.damage_device(node_of(node), (first, bytes), bad_ms);
            }
        }
    }

    /// Some bytes of the objects of a node cannot be read or written for a while.
    fn damage_device(&mut self, node: NodeId, (first, bytes): (u64, u64), bad_ms: u64) {
        let until_ms = self.network.now_ms + bad_ms;
        self.note(&format!("node {node} has {bytes} bad bytes from {first} on until {until_ms} ms"));
        let at = |byte: u64| usize::try_from(byte).expect("files are short");
        if let Some(storage) = self.storage.get_mut(&node) {
            storage.set_bad_sectors(at(first)..at(first + bytes), self.clocks[&node].boot_ms(until_ms));
        }
    }
}

fn choose_bad_sectors(setting: &mut Choices) -> Fault {
    let random = setting.stream();
    let node = random.below(u64::from(NODES));
    let (first, bytes) = (random.below(BAD_FROM_MAX), 1 + random.below(BAD_BYTES_MAX));
    Fault::BadSectors([node, first, bytes, random.below(BAD_MS_MAX)])
}

pub(super) fn name_of(number: u64) -> Name {
    Name::new(format!("n{number}").as_bytes()).expect("a letter and a digit make a name")
}

/// A node by its number; beyond the last one, the last one.
fn node_of(number: u64) -> NodeId {
    NodeId(u16::try_from(number).unwrap_or(u16::MAX).min(NODES - 1))
}

/// The step of a native run to which a time belongs.
pub(super) fn window(now_ms: u64) -> u64 {
    now_ms / WINDOW_MS
}
