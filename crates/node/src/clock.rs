//! The two clocks of a node. The only place that reads them.

use rustix::time::{ClockId, clock_gettime};
use weft_metadata::Now;
use weft_protocol::Timestamp;
use weft_protocol::capability::seconds_of;

/// Milliseconds since boot, sleep included: leases count on it.
pub fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
}

/// Milliseconds of a clock that costs next to nothing and is a few of them late: for the age of requests.
pub fn coarse_ms() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
}

/// Time of day, as files carry it.
pub fn wall() -> Timestamp {
    let time = clock_gettime(ClockId::Realtime);
    Timestamp::from_parts(time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time of day, as capabilities carry it.
pub fn wall_seconds() -> u32 {
    seconds_of(wall())
}

/// What a shard's step is given.
pub fn now() -> Now {
    Now { boot_ms: boot_ms(), wall: wall() }
}
