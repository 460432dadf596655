//! Bytes of files under concurrent calls: each byte is a register, and so is whether the file is that long.
//!
//! A write or a cut is an operation with a begin and an end. A read may return what an operation put there, unless
//! another one began after that had ended, and had ended itself (or been read by somebody) before the read began. What
//! overlaps in time may be seen or not, byte by byte. The same model as in the simulation (`sim/src/bytes.rs`).
//!
//! A kernel copies what is written into pages that it has before it sends it. So until a write through a mount returns,
//! programs of that mount may have read its bytes already, and others not yet.
//!
//! An operation is *doubtful* if the promises allow its loss: it failed, or its mount was killed, or paused beyond its
//! session's end, before it was flushed, or it went to a handle from before that. It may be there or not, and what it
//! overwrote may show again.
//!
//! Files are told apart by their inode numbers, which must not be used again during a run. (Those of ext4 are.)

use super::history::{Fault, History, Moment, Opened, Record};
use crate::call::{Call, OpenFlags, WorkerId};
use crate::outcome::{Outcome, Runs};
use crate::violation::{Rule, Wrong};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Write { offset: u64, bytes: u64, value: u8 },
    Cut { size: u64 },
}

#[derive(Clone, Debug)]
struct Operation {
    effect: Effect,
    by: Option<WorkerId>,
    begun: Moment,
    /// `None`: it may take effect at any time.
    ended: Option<Moment>,
    is_doubtful: bool,
    /// Ranges of it that were read.
    seen: Vec<Seen>,
}

/// A range that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    start: u64,
    end: u64,
    /// When the read had ended.
    at: Moment,
    /// The mount of the reader and the writer, which had not returned: others may not see it yet.
    only_by: Option<char>,
}

impl Operation {
    fn new(effect: Effect, record: &Record) -> Self {
        let is_doubtful = !record.is_done() || record.is_stale;
        let ended = (!is_doubtful).then_some(record.ended);
        Self { effect, by: Some(record.who), begun: record.begun, ended, is_doubtful, seen: Vec::new() }
    }

    fn value_at(&self, place: u64) -> Option<u8> {
        match self.effect {
            Effect::Write { offset, bytes, value } => (offset <= place && place < offset + bytes).then_some(value),
            Effect::Cut { size } => (place >= size).then_some(0),
        }
    }

    fn presence_at(&self, place: u64) -> Option<bool> {
        match self.effect {
            Effect::Write { offset, bytes, .. } => (place < offset + bytes).then_some(true),
            Effect::Cut { size } => Some(place < size),
        }
    }

    /// When it is certain to have taken effect at a place, for this mount.
    fn certain_at(&self, place: u64, mount: char) -> Option<Moment> {
        let is_it = |seen: &&Seen| seen.start <= place && place < seen.end && seen.only_by.is_none_or(|by| by == mount);
        let seen = self.seen.iter().filter(is_it).map(|seen| seen.at);
        if self.is_doubtful { None } else { seen.chain(self.ended).min() }
    }

    /// The mount whose kernel alone may have shown it to a reader that ended then.
    fn shown_only_by(&self, reader: WorkerId, at: Moment) -> Option<char> {
        let is_own = self.by.is_some_and(|by| by.mount == reader.mount && !reader.is_native());
        (is_own && self.ended.is_some_and(|ended| ended >= at)).then_some(reader.mount)
    }
}

/// Who looks, and from when until when.
#[derive(Clone, Copy)]
struct Look {
    who: WorkerId,
    since: Moment,
    until: Moment,
}

/// Returns the values that a place may have for somebody who looks at it.
fn could_be<T>(
    operations: &[Operation],
    place: u64,
    Look { who, since, until }: Look,
    at: impl Fn(&Operation) -> Option<T>,
) -> Vec<T> {
    let there = || operations.iter().filter(|operation| operation.begun < until);
    let there = || there().filter_map(|operation| at(operation).map(|value| (operation, value)));
    let certain = |operation: &&Operation| operation.certain_at(place, who.mount).is_some_and(|at| at < since);
    let latest = there().map(|(operation, _)| operation).filter(certain).map(|operation| operation.begun).max();
    let is_covered = |operation: &Operation| operation.ended.is_some_and(|ended| Some(ended) < latest);
    there().filter(|(operation, _)| !is_covered(operation)).map(|(_, value)| value).collect()
}

/// Compares all reads and sizes of a history with its writes.
pub fn check(history: &History) -> Result<(), Wrong> {
    let mut files = operations(history);
    let mut observers: Vec<&Record> =
        history.effective().filter(|record| record.is_done() && !record.is_stale).collect();
    observers.sort_by_key(|record| record.ended);
    for record in observers {
        let look = Look { who: record.who, since: record.begun, until: record.ended };
        let result = match (&record.call, &record.outcome, &record.handle) {
            (Call::ReadAt { offset, bytes, .. }, Outcome::Bytes(runs), Some(Opened { inode, .. })) => files
                .get_mut(inode)
                .map(|file| read(file, *offset, runs, look).and_then(|()| ends(file, *offset, *bytes, runs, look))),
            // The last page of a mapping has zeros after the end of the file.
            (Call::MapRead { offset, .. }, Outcome::Bytes(runs), Some(Opened { inode, .. })) => {
                files.get_mut(inode).map(|file| read(file, *offset, runs, look))
            }
            (Call::StatHandle { .. } | Call::Stat { .. }, Outcome::Attributes(got), _) if !got.is_directory => {
                files.get(&got.inode).map(|file| size(file, got.size, look))
            }
            _ => None,
        };
        if let Some(Err(text)) = result {
            return Err(record.wrong(Rule::Bytes, &text));
        }
    }
    Ok(())
}

fn operations(history: &History) -> BTreeMap<u64, Vec<Operation>> {
    let mut files: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    let mut cuts = Vec::new();
    for record in history.effective() {
        // Refused before anything was done.
        let is_refused =
            matches!(record.outcome.errno(), Some(Errno::BADF | Errno::INVAL | Errno::NOENT | Errno::EXIST));
        if is_refused {
            continue;
        }
        let effect = match &record.call {
            Call::WriteAt { offset, bytes, value, .. } | Call::MapWrite { offset, bytes, value, .. } => {
                Some(Effect::Write { offset: *offset, bytes: *bytes, value: *value })
            }
            Call::TruncateHandle { size, .. } => Some(Effect::Cut { size: *size }),
            Call::Open { flags: OpenFlags { truncate: true, .. }, .. } => Some(Effect::Cut { size: 0 }),
            _ => None,
        };
        let inode = match (&record.outcome, &record.handle) {
            (Outcome::Opened(inode), _) => Some(*inode),
            (_, handle) => handle.as_ref().map(|opened| opened.inode),
        };
        let made = Operation {
            effect: Effect::Cut { size: 0 },
            by: None,
            begun: 0,
            ended: Some(0),
            is_doubtful: false,
            seen: Vec::new(),
        };
        match (inode, effect) {
            (Some(inode), effect) => {
                let file = files.entry(inode).or_insert_with(|| vec![made]);
                file.extend(effect.map(|effect| Operation::new(effect, record)));
            }
            // An open that failed: which file it cut, if any, is unknown.
            (None, Some(effect)) => cuts.push(Operation::new(effect, record)),
            (None, None) => {}
        }
    }
    for (inode, file) in &mut files {
        file.extend(cuts.iter().cloned());
        history.faults.iter().for_each(|fault| doubt(history, *inode, file, fault));
    }
    files
}

/// What a faulty mount had not flushed may be lost.
fn doubt(history: &History, inode: u64, file: &mut [Operation], fault: &Fault) {
    let of_mount = |who: WorkerId| who.mount == fault.mount;
    let flushes: Vec<(Moment, Moment)> = history
        .records
        .iter()
        .filter(|record| of_mount(record.who) && record.is_done())
        .filter(|record| {
            record.handle.as_ref().filter(|opened| opened.inode == inode).is_some_and(|opened| match record.call {
                Call::Sync { .. } => true,
                Call::Close { .. } => opened.may_write,
                _ => false,
            })
        })
        .map(|record| (record.begun, record.ended))
        .collect();
    for operation in file.iter_mut().filter(|operation| operation.by.is_some_and(of_mount)) {
        let Some(ended) = operation.ended.filter(|_| operation.begun < fault.ended) else { continue };
        let is_flushed = flushes.iter().any(|(begun, flushed)| *begun > ended && *flushed < fault.begun);
        // The server cuts before it answers.
        let is_cut = matches!(operation.effect, Effect::Cut { .. });
        if !is_flushed && !is_cut {
            operation.is_doubtful = true;
            operation.ended = None;
        }
    }
}

/// Compares the bytes that a read returned.
fn read(file: &mut [Operation], offset: u64, told: &Runs, look: Look) -> Result<(), String> {
    let mut runs = Vec::new();
    let mut at = offset;
    for (value, count) in &told.0 {
        runs.push((at, at + count, *value));
        at += count;
    }
    for (start, stop, value) in runs {
        for (from, to) in pieces(file, start, stop) {
            let possible = could_be(file, from, look, |operation| operation.value_at(from));
            if !possible.contains(&value) {
                let possible: BTreeSet<u8> = possible.into_iter().collect();
                return Err(format!("byte {from} was read as {value}, it can only be {possible:?}"));
            }
            for operation in file.iter_mut().filter(|operation| operation.by.is_some() && !operation.is_doubtful) {
                if value != 0 && operation.value_at(from) == Some(value) {
                    let only_by = operation.shown_only_by(look.who, look.until);
                    operation.seen.push(Seen { start: from, end: to, at: look.until, only_by });
                }
            }
        }
    }
    Ok(())
}

/// Compares how many bytes a read returned: fewer than wanted only at the end of the file.
fn ends(file: &[Operation], offset: u64, wanted: u64, told: &Runs, look: Look) -> Result<(), String> {
    let end = offset + told.len();
    if !told.is_empty() {
        present(file, end - 1, look, true)?;
    }
    if told.len() < wanted { present(file, end, look, false) } else { Ok(()) }
}

/// Cuts a range where an operation begins or ends, so that all bytes of a piece have the same history.
fn pieces(file: &[Operation], start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut places = BTreeSet::from([start, end]);
    for operation in file {
        match operation.effect {
            Effect::Write { offset, bytes, .. } => places.extend([offset, offset + bytes]),
            Effect::Cut { size } => places.extend([size]),
        }
        places.extend(operation.seen.iter().flat_map(|seen| [seen.start, seen.end]));
    }
    let places: Vec<u64> = places.into_iter().filter(|place| start <= *place && *place <= end).collect();
    places.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn size(file: &[Operation], size: u64, look: Look) -> Result<(), String> {
    if let Some(last) = size.checked_sub(1) {
        present(file, last, look, true)?;
    }
    present(file, size, look, false)
}

fn present(file: &[Operation], place: u64, look: Look, told: bool) -> Result<(), String> {
    // That a byte was read shows the write, whatever the size was before: no `seen` counts here.
    let bare: Vec<Operation> =
        file.iter().map(|operation| Operation { seen: Vec::new(), ..operation.clone() }).collect();
    let possible = could_be(&bare, place, look, |operation| operation.presence_at(place));
    match possible.contains(&told) {
        true => Ok(()),
        false if told => Err(format!("byte {place} is in the file, which must be shorter")),
        false => Err(format!("byte {place} is not in the file, which must be longer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Attributes, Reply};

    /// Lines `a0 CALL`, each with begin, end and outcome.
    fn history(lines: &[(&str, Moment, Moment, Outcome)], faults: &[Fault]) -> History {
        let done = lines.iter().map(|(line, begun, ended, outcome)| {
            let (who, call) = line.split_once(' ').expect("a worker and a call");
            let (outcome, begun, ended) = (outcome.clone(), *begun, *ended);
            let reply = Reply { outcome, begun, ended, wall_begun: 0, wall_ended: 0 };
            (who.parse().expect(who), call.parse().expect(call), reply)
        });
        History::new(done.collect(), faults.to_vec())
    }

    fn bytes(bytes: &[u8]) -> Outcome {
        Outcome::Bytes(Runs::of(bytes))
    }

    fn begin() -> Vec<(&'static str, Moment, Moment, Outcome)> {
        vec![
            ("a0 open h0 f rdwr creat", 1, 2, Outcome::Opened(5)),
            ("b0 open h0 f rdwr", 3, 4, Outcome::Opened(5)),
            ("a0 pwrite h0 0 4 7", 10, 20, Outcome::Count(4)),
        ]
    }

    fn holds(more: &[(&'static str, Moment, Moment, Outcome)], faults: &[Fault]) -> bool {
        check(&history(&[begin(), more.to_vec()].concat(), faults)).is_ok()
    }

    #[test]
    fn what_overlaps_may_be_seen_or_not_and_the_rest_has_one_answer() {
        assert!(holds(&[("b0 pread h0 0 8", 15, 16, bytes(&[]))], &[]));
        assert!(holds(&[("b0 pread h0 0 8", 15, 16, bytes(&[7, 7, 7, 7]))], &[]));
        assert!(holds(&[("b0 pread h0 0 8", 21, 22, bytes(&[7, 7, 7, 7]))], &[]));
        assert!(!holds(&[("b0 pread h0 0 8", 21, 22, bytes(&[7, 7, 7]))], &[]));
        assert!(!holds(&[("b0 pread h0 0 8", 21, 22, bytes(&[7, 0, 7, 7]))], &[]));
        assert!(!holds(&[("b0 pread h0 0 8", 21, 22, bytes(&[7, 7, 7, 7, 0]))], &[]));
        let attributes =
            |size| Outcome::Attributes(Attributes { inode: 5, is_directory: false, mode: 0, links: 1, size, mtime: 0 });
        assert!(holds(&[("b0 stat f", 21, 22, attributes(4))], &[]));
        assert!(!holds(&[("b0 stat f", 21, 22, attributes(3))], &[]));
    }

    #[test]
    fn what_was_read_once_is_not_unread() {
        let later = |second: &[u8]| {
            [
                ("b0 pwrite h0 0 4 8", 30, 60, Outcome::Count(4)),
                ("a0 pread h0 0 4", 40, 42, bytes(&[8, 8, 7, 7])),
                ("a0 pread h0 0 4", 50, 52, bytes(second)),
            ]
        };
        assert!(holds(&later(&[8, 8, 8, 7]), &[]));
        assert!(!holds(&later(&[7, 8, 7, 7]), &[]));
    }

    #[test]
    fn until_a_write_returns_its_own_mount_may_show_it_before_others_do() {
        let history = |first: &'static str, second: &'static str, begun: Moment| {
            [
                ("b0 pwrite h0 0 4 8", 30, 60, Outcome::Count(4)),
                ("b1 open h0 f rdonly", 21, 22, Outcome::Opened(5)),
                (first, 40, 42, bytes(&[8; 4])),
                (second, begun, begun + 2, bytes(&[7; 4])),
            ]
        };
        assert!(holds(&history("b1 pread h0 0 4", "a0 pread h0 0 4", 50), &[]));
        assert!(!holds(&history("b1 pread h0 0 4", "a0 pread h0 0 4", 61), &[]), "it has returned");
        assert!(!holds(&history("b1 pread h0 0 4", "b1 pread h0 0 4", 50), &[]), "the same mount");
        assert!(!holds(&history("a0 pread h0 0 4", "b1 pread h0 0 4", 50), &[]), "the node has it");
    }

    #[test]
    fn a_handle_from_before_a_fault_may_show_what_was_there_before() {
        let write = ("b0 pwrite h0 0 4 8", 30, 60, Outcome::Count(4));
        let old = ("a0 pread h0 0 4", 150, 152, bytes(&[7; 4]));
        let sync = ("a0 fsync h0", 21, 25, Outcome::Done);
        let anew = [sync.clone(), write.clone(), ("a0 open h0 f rdonly", 120, 122, Outcome::Opened(5)), old.clone()];
        for is_kill in [true, false] {
            let faults = [Fault { mount: 'a', begun: 28, ended: 110, is_kill }];
            assert!(holds(&[sync.clone(), write.clone(), old.clone()], &faults));
            assert!(!holds(&anew, &faults), "opened after the fault");
        }
        assert!(!holds(&[sync, write, old], &[]));
    }

    #[test]
    fn what_a_killed_mount_had_not_flushed_may_be_lost() {
        let kill = [Fault { mount: 'a', begun: 100, ended: 110, is_kill: true }];
        let sync = ("a0 fsync h0", 30, 40, Outcome::Done);
        let empty = ("b0 pread h0 0 4", 200, 210, bytes(&[]));
        assert!(!holds(std::slice::from_ref(&empty), &[]));
        assert!(holds(std::slice::from_ref(&empty), &kill));
        assert!(!holds(&[sync, empty.clone()], &kill));
        let open = |line| (line, 21, 22, Outcome::Opened(5));
        let close = ("a1 close h1", 30, 40, Outcome::Done);
        assert!(!holds(&[open("a1 open h1 f rdwr"), close.clone(), empty.clone()], &kill));
        assert!(
            holds(&[open("a1 open h1 f rdonly"), close, empty], &kill),
            "a close flushes what its handle may write"
        );
    }
}
