//! Calls of a script: which of them still fit.
//!
//! A call may have lost what it needs, since others before it were left out or did something else: a descriptor that
//! was not opened, a mapping of a file that is shorter now. And what POSIX leaves open for calls of one round may meet
//! now, since a file has another name or size. Such calls are passed over.

use super::{CLIENTS, Kind, NATIVE, Programs, may_meet};
use crate::history::{Id, State};
use crate::kernel::requests::{Access, OpenFlags};
use crate::kernel::{Call, Handle};
use crate::script::calls::Timed;

impl Programs {
    /// Looks at everything (`look_at_all`): the next call, if one is left.
    pub fn next_looks(&mut self) -> Vec<(usize, Call)> {
        self.next.pop_front().into_iter().collect()
    }

    /// A mapping that is there, if these calls of a script do not use it: it goes away first, as it would have.
    pub fn unmap_before(&mut self, calls: &[Timed]) -> Option<Timed> {
        let (client, mapping) = self.mapped?;
        let uses = |timed: &Timed| match &timed.call {
            Call::Load { mapping: of, .. } | Call::Store { mapping: of, .. } => *of == mapping,
            Call::Msync { mapping: of } | Call::Unmap { mapping: of } => *of == mapping,
            _ => false,
        };
        if calls.iter().any(uses) {
            return None;
        }
        self.mapped = None;
        Some(Timed { client, delay_ms: 0, call: Call::Unmap { mapping } })
    }

    /// Whether a call of a script can be made beside the others of its round; it will be, then.
    pub fn fits(&mut self, state: &State, others: &[Timed], timed: &Timed) -> bool {
        let Timed { client, call, .. } = timed;
        if *client >= CLIENTS
            || !state.may_be_made(call)
            || !self.has_what_it_needs(state, *client, call)
            || !self.goes_with(state, others, call)
        {
            return false;
        }
        self.note(*client, call);
        match call {
            Call::Open { handle, .. } => self.handles = self.handles.max(handle.0),
            Call::Map { mapping, .. } => {
                self.handles = self.handles.max(mapping.0);
                self.mapped = Some((*client, *mapping));
            }
            Call::Unmap { .. } => self.mapped = None,
            _ => {}
        }
        self.latest = others.is_empty().then(|| (*client, call.clone()));
        true
    }

    fn has_what_it_needs(&self, state: &State, client: usize, call: &Call) -> bool {
        let is_open = |handle: &Handle| state.opened(*handle).is_some() && self.owners.get(handle) == Some(&client);
        match call {
            Call::Read { handle, .. }
            | Call::Pread { handle, .. }
            | Call::Write { handle, .. }
            | Call::Pwrite { handle, .. }
            | Call::Fstat { handle }
            | Call::Ftruncate { handle, .. }
            | Call::Fsync { handle, .. } => is_open(handle) && state.opened(*handle).is_some_and(is_file),
            Call::Getdents { handle, .. } | Call::Seekdir { handle, .. } => {
                is_open(handle) && !state.opened(*handle).is_some_and(is_file)
            }
            Call::Close { handle } => is_open(handle),
            Call::Open { handle, .. } => state.opened(*handle).is_none(),
            // A store behind the end that the kernel knows is a fault: the size was asked for just before.
            Call::Map { handle, .. } => {
                let asked =
                    matches!(&self.latest, Some((by, Call::Fstat { handle: of })) if (by, of) == (&client, handle));
                let fits = state.opened(*handle).is_some_and(|(_, flags, _)| {
                    flags.access == Access::ReadWrite && !flags.append && !flags.direct && state.size(*handle) > 0
                });
                asked && fits && is_open(handle) && client != NATIVE
            }
            Call::Load { mapping, .. }
            | Call::Store { mapping, .. }
            | Call::Msync { mapping }
            | Call::Unmap { mapping } => self.mapped == Some((client, *mapping)) && state.is_mapped_to_end_of(call),
            _ => true,
        }
    }

    /// Whether a call may be made while others are.
    fn goes_with(&self, state: &State, others: &[Timed], call: &Call) -> bool {
        // What is mapped is used and goes away, with nothing else between.
        let is_of_mapping = match call {
            Call::Load { .. } | Call::Store { .. } | Call::Msync { .. } | Call::Unmap { .. } => true,
            _ => self.mapped.is_none(),
        };
        let races = |other: &Timed| self.races_allowed && is_of_race(call) && is_of_race(&other.call);
        is_of_mapping && others.iter().all(|other| races(other) || may_meet(state, &other.call, call))
    }
}

fn is_file((_, _, kind): (Id, OpenFlags, Kind)) -> bool {
    kind == Kind::Regular
}

fn is_of_race(call: &Call) -> bool {
    matches!(call, Call::Open { .. } | Call::Rename { .. } | Call::Fstat { .. } | Call::Close { .. })
}
