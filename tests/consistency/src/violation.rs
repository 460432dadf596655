//! What a run has shown that a POSIX file system never does.

use crate::call::Call;
use crate::outcome::Outcome;
use std::mem::{Discriminant, discriminant};

/// The step of a script that shows something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Number of steps up to the one that shows it.
    pub steps: usize,
    pub wrong: Wrong,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    pub kind: Kind,
    pub text: String,
}

/// Which promise a call broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The model of calls made one after another.
    Sequence,
    /// A call fails only for a reason.
    Failures,
    /// Contents and sizes under concurrent calls.
    Bytes,
    /// Names under concurrent calls.
    Names,
    /// Listings under concurrent calls.
    Listings,
}

/// A kind of violation. A shorter script shows the same defect only if it shows the same kind: another call, or another
/// kind of outcome, has a cause of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call did not return in time, or killed its worker.
    Hang,
    /// Workers see different contents of a file after a write that failed.
    Disagreement,
    /// The space of removed files is not free.
    SpaceInUse,
    Call {
        rule: Rule,
        call: Discriminant<Call>,
        outcome: Discriminant<Outcome>,
        errno: Option<i32>,
    },
}

impl Wrong {
    /// What a call returned is wrong by a rule.
    pub fn of(rule: Rule, call: &Call, outcome: &Outcome, text: String) -> Self {
        let errno = outcome.errno().map(rustix::io::Errno::raw_os_error);
        Self { kind: Kind::Call { rule, call: discriminant(call), outcome: discriminant(outcome), errno }, text }
    }

    /// The space of removed files is not free.
    pub fn space_in_use(text: String) -> Self {
        Self { kind: Kind::SpaceInUse, text }
    }

    /// A call did not return.
    pub fn hang(text: String) -> Self {
        Self { kind: Kind::Hang, text }
    }
}
