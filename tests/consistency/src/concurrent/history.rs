//! What happened in a concurrent run.

use crate::call::{Access, Call, HandleId, WorkerId};
use crate::outcome::{Outcome, Reply};
use crate::violation::{Rule, Wrong};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Nanoseconds of CLOCK_MONOTONIC.
pub type Moment = u64;

/// A mount's process was paused long enough for its session to end, or killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    pub mount: char,
    pub begun: Moment,
    /// When the mount worked again.
    pub ended: Moment,
    pub is_kill: bool,
}

/// How the handle that a call uses was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    pub inode: u64,
    pub path: String,
    pub may_write: bool,
    /// The begin of the open.
    begun: Moment,
}

/// A call and its outcome.
#[derive(Clone, Debug)]
pub struct Record {
    pub who: WorkerId,
    pub call: Call,
    pub outcome: Outcome,
    pub begun: Moment,
    pub ended: Moment,
    /// The handle that the call uses.
    pub handle: Option<Opened>,
    /// Whether the call failed as calls of a faulty mount do: what it would have done may have happened, or still may.
    pub is_lost: bool,
    /// Whether it uses a handle from before a fault of its mount. The kernel answers reads of such a handle from the
    /// pages and descriptors that it has, and what is written to it may reach nobody (docs/guide/consistency.md). Or
    /// the kernel of a killed mount may have answered by the names that it knew.
    pub is_stale: bool,
}

impl Record {
    /// Returns true unless the call failed.
    pub fn is_done(&self) -> bool {
        self.outcome.errno().is_none() && self.outcome != Outcome::Skipped
    }

    /// What it returned breaks a rule.
    pub fn wrong(&self, rule: Rule, text: &str) -> Wrong {
        Wrong::of(rule, &self.call, &self.outcome, format!("{} {}: {text}", self.who, self.call))
    }
}

/// Calls in the order of their begin.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub records: Vec<Record>,
    pub faults: Vec<Fault>,
}

/// How long calls of a mount may still fail, or find what was there before, after a fault: a client learns of its
/// session's end by a message.
const AFTERMATH_NS: u64 = 15_000_000_000;

impl History {
    /// Sorts what each worker did into one history, and finds the inodes of handles.
    pub fn new(done: Vec<(WorkerId, Call, Reply)>, faults: Vec<Fault>) -> Self {
        let mut history = Self { records: Vec::new(), faults };
        let mut handles: BTreeMap<(WorkerId, HandleId), Opened> = BTreeMap::new();
        // Per worker, calls are in order already; between workers handles have nothing in common.
        for (who, call, reply) in done {
            let handle = call.uses().and_then(|id| handles.get(&(who, id)).cloned());
            let begun = reply.begun;
            match (&call, &reply.outcome) {
                (Call::Open { handle, path, access, .. }, Outcome::Opened(inode)) => {
                    let may_write = *access != Access::Read;
                    handles.insert((who, *handle), Opened { inode: *inode, path: path.clone(), may_write, begun });
                }
                (Call::OpenDirectory { handle, path }, Outcome::Opened(inode)) => {
                    let opened = Opened { inode: *inode, path: path.clone(), may_write: false, begun };
                    handles.insert((who, *handle), opened);
                }
                (Call::Close { handle }, _) => {
                    handles.remove(&(who, *handle));
                }
                _ => {}
            }
            let opened = handle.as_ref().map(|handle| handle.begun);
            let is_lost = history.is_lost(who, &reply, opened);
            let has_stale_handle = opened.is_some_and(|opened| history.is_stale(who, &reply, opened));
            let is_stale = has_stale_handle || history.is_of_dead_kernel(who, &call, &reply);
            let Reply { outcome, begun, ended, .. } = reply;
            history.records.push(Record { who, call, outcome, begun, ended, handle, is_lost, is_stale });
        }
        history.records.sort_by_key(|record| record.begun);
        history
    }

    /// Returns true for a failure that a fault of the worker's mount explains.
    fn is_lost(&self, who: WorkerId, reply: &Reply, opened: Option<Moment>) -> bool {
        let errnos = [Errno::NOTCONN, Errno::CONNABORTED, Errno::IO, Errno::STALE, Errno::INTR, Errno::NODEV];
        if !reply.outcome.errno().is_some_and(|errno| errnos.contains(&errno)) {
            return false;
        }
        self.faults.iter().filter(|fault| fault.mount == who.mount).any(|fault| {
            let is_near = fault.begun <= reply.ended && reply.begun <= fault.ended + AFTERMATH_NS;
            let has_dead_handle = fault.is_kill && opened.is_some_and(|opened| opened < fault.ended);
            is_near || has_dead_handle
        })
    }

    fn is_stale(&self, who: WorkerId, reply: &Reply, opened: Moment) -> bool {
        self.faults.iter().filter(|fault| fault.mount == who.mount).any(|fault| {
            let is_after = fault.begun <= reply.ended && opened < fault.ended;
            is_after && (fault.is_kill || reply.begun <= fault.ended + AFTERMATH_NS)
        })
    }

    /// Returns true for what the kernel of a killed mount may have answered by itself, until its guard has made it
    /// forget what it knew.
    fn is_of_dead_kernel(&self, who: WorkerId, call: &Call, reply: &Reply) -> bool {
        let changed_nothing = matches!(call, Call::Stat { .. }) || reply.outcome.errno().is_some();
        let mut kills = self.faults.iter().filter(|fault| fault.mount == who.mount && fault.is_kill);
        changed_nothing && kills.any(|kill| kill.begun <= reply.ended && reply.begun <= kill.ended)
    }

    /// The calls that may explain or contradict others: none that did nothing.
    pub fn effective(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.outcome != Outcome::Skipped)
    }

    /// One line for each call.
    pub fn describe(&self) -> Vec<String> {
        let first = self.records.first().map_or(0, |record| record.begun);
        let micros = |moment: Moment| moment.saturating_sub(first) / 1000;
        let line = |record: &Record| {
            let Record { who, call, outcome, begun, ended, is_lost, .. } = record;
            let note = if *is_lost { " (lost)" } else { "" };
            format!("{who} {call}    # {}..{} us: {outcome}{note}", micros(*begun), micros(*ended))
        };
        let of_fault = |fault: &Fault| {
            let Fault { mount, begun, ended, is_kill } = fault;
            let what = if *is_kill { "killed" } else { "paused" };
            format!("# {}..{} us: mount {mount} {what}", micros(*begun), micros(*ended))
        };
        self.records.iter().map(line).chain(self.faults.iter().map(of_fault)).collect()
    }
}
