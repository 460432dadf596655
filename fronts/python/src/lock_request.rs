//! Waits for locks.

use crate::ours::{Made, Ours};
use crate::raise::raise;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::LockWait;
use weft_library::{Explain, OpenFile, Outcome, Process, lock_range, range_lock};
use weft_protocol::{LockRange, RangeLock};

/// How often a wait looks whether the program was interrupted.
const SIGNALS_LATENCY: Duration = Duration::from_millis(100);

/// Locks of these ranges, each a start and a length.
pub fn locks(ranges: &[(u64, u64)], exclusive: bool) -> PyResult<Vec<RangeLock>> {
    let locks = ranges.iter().map(|(start, length)| range_lock(*start, *length, exclusive));
    locks.collect::<Outcome<_>>().map_err(raise)
}

/// These ranges, each a start and a length.
pub fn lock_ranges(ranges: &[(u64, u64)]) -> PyResult<Vec<LockRange>> {
    let ranges = ranges.iter().map(|(start, length)| lock_range(*start, *length));
    ranges.collect::<Outcome<_>>().map_err(raise)
}

/// A request for locks, which waits for its turn.
pub struct LockRequest {
    wait: LockWait,
    file: Arc<OpenFile>,
    locks: Vec<RangeLock>,
    /// Somebody was told that the locks were granted, or it was given up.
    is_settled: AtomicBool,
}

impl Drop for LockRequest {
    fn drop(&mut self) {
        if !self.is_settled.load(Ordering::Relaxed) {
            self.give_up();
        }
    }
}

impl Made for LockRequest {
    fn made_in(&self) -> Process {
        self.file.made_in()
    }
}

impl LockRequest {
    fn begin(file: &Arc<OpenFile>, locks: Vec<RangeLock>) -> Outcome<Self> {
        let wait = file.file()?.begin_lock(&locks).explain(|| "lock")?;
        Ok(Self { wait, file: Arc::clone(file), locks, is_settled: AtomicBool::new(false) })
    }

    /// Gives it up; what was granted meanwhile is unlocked.
    fn give_up(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
        self.wait.cancel();
        if self.wait.wait().is_ok()
            && let Ok(file) = self.file.file()
        {
            let ranges: Vec<_> = self.locks.iter().map(|lock| lock.range).collect();
            // A session that has ended has no locks.
            let _ = file.unlock(&ranges);
        }
    }
}

/// See [`LockRequest`]. It is given up when nobody has it any more.
#[pyclass(frozen, module = "weft._native", name = "LockRequest")]
pub struct PyLockRequest(Ours<LockRequest>);

impl PyLockRequest {
    /// Asks for locks.
    pub fn begin(file: &Arc<OpenFile>, locks: Vec<RangeLock>) -> Outcome<Self> {
        Ok(Self(Ours::new(Arc::new(LockRequest::begin(file, locks)?))))
    }
}

#[pymethods]
impl PyLockRequest {
    /// Waits until it is granted. If the program is interrupted meanwhile, it is given up.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let request = self.0.get()?;
        loop {
            let result = py.detach(|| request.wait.wait_for(SIGNALS_LATENCY));
            if let Some(Err(error)) = result {
                return Err(error).explain(|| format!("lock {} ranges", request.locks.len())).map_err(raise);
            }
            if let Err(interrupted) = py.check_signals() {
                py.detach(|| request.give_up());
                return Err(interrupted);
            }
            if result.is_some() {
                request.is_settled.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Gives it up; what was granted meanwhile is unlocked. Then `wait` fails with `EINTR`, or it had ended before.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let request = self.0.get()?;
        py.detach(|| request.give_up());
        Ok(())
    }
}
