//! Why a run ends before its script does.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Why a run ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// SIGINT or SIGTERM.
    Interrupted,
    /// A call did not return in time, or killed its worker: a violation.
    Violated(String),
    /// Something that the checker needs failed.
    CannotRun(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Interrupted => f.write_str("interrupted"),
            Stop::Violated(text) | Stop::CannotRun(text) => f.write_str(text),
        }
    }
}

static SIGNALLED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Notes SIGINT and SIGTERM from now on, so that what was started is ended in order.
pub fn note_signals() -> Result<(), Stop> {
    let flag = SIGNALLED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .map_err(|error| Stop::CannotRun(format!("listen for signals: {error}")))?;
    }
    Ok(())
}

/// Returns true after one of those signals.
pub fn is_interrupted() -> bool {
    SIGNALLED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
