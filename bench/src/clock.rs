//! Times that can be compared between processes of one machine.

use rustix::time::{ClockId, Timespec, clock_gettime};

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds since some moment that is the same for all processes.
pub fn now() -> f64 {
    seconds(clock_gettime(ClockId::Monotonic))
}

/// CPU time of this process, seconds.
pub fn cpu() -> f64 {
    seconds(clock_gettime(ClockId::ProcessCPUTime))
}
