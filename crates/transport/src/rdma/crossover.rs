//! From how many bytes on it pays to move the caller's own memory.
//!
//! A copy costs so much per byte; a registration so much per call and so much per byte, little where UCX has it in its
//! cache. Both are measured once in a process, on memory that is used again and again, as a program's buffers are.
//! Where the server shares the connection's buffer (same machine) nothing is gained by leaving it: the server's own
//! copy goes straight there, while UCX's shared memory copies twice.

use super::{DIRECT_FROM_BYTES, REGISTERED_FROM_BYTES, RdmaSettings, Registration};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use weft_ucx::{Receiver, Region};

/// What is measured with.
const SAMPLE_BYTES: usize = 1 << 20;
const SMALL_SAMPLE_BYTES: usize = 64 << 10;
const REPEATS: usize = 5;
/// Below, a request's message costs more than either.
const FROM_BYTES_MIN: usize = REGISTERED_FROM_BYTES;

/// The caller's memory is moved in requests of so many bytes or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossover {
    pub read_from: usize,
    pub write_from: usize,
    /// The same of memory that the program has registered.
    pub registered_from: usize,
}

impl Crossover {
    const NEVER: Self = Self { read_from: usize::MAX, write_from: usize::MAX, registered_from: usize::MAX };
    /// Memory cannot be registered, or it does not pay.
    const REGISTERED_ONLY: Self = Self { registered_from: REGISTERED_FROM_BYTES, ..Self::NEVER };

    /// As the settings say, or as is measured. `is_shared`: the server shares the connection's buffer.
    pub fn of(settings: &RdmaSettings, is_shared: bool, receiver: &mut Receiver) -> Self {
        let from = |bytes| Self { read_from: bytes, write_from: bytes, registered_from: bytes };
        match settings.registration {
            Registration::Static if settings.dynamic_beyond => from(settings.buffer_bytes_max.saturating_add(1)),
            Registration::Static => Self::NEVER,
            Registration::Dynamic => Self { registered_from: REGISTERED_FROM_BYTES, ..from(DIRECT_FROM_BYTES) },
            Registration::Auto if is_shared => Self::NEVER,
            Registration::Auto => {
                static MEASURED: OnceLock<Crossover> = OnceLock::new();
                *MEASURED
                    .get_or_init(|| Costs::measure(receiver).map_or(Self::REGISTERED_ONLY, |costs| costs.crossover()))
            }
        }
    }
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Of copying the sample out of a registered buffer, and into it.
    copy_out: f64,
    copy_in: f64,
    /// Of registering the two samples.
    register_small: f64,
    register: f64,
}

impl Costs {
    /// `None`: the caller's memory cannot be registered.
    fn measure(receiver: &mut Receiver) -> Option<Self> {
        let mut region = Region::allocate(SAMPLE_BYTES).ok()?;
        let mut memory = vec![1; SAMPLE_BYTES];
        let mut fits = true;
        let copy_in = shortest(|| fits &= region.copy_in(0, &memory));
        let copy_out = shortest(|| fits &= region.copy_out(0, &mut memory));
        let mut register = |bytes| {
            let memory = memory.get_mut(..bytes)?;
            let mut is_possible = true;
            let time = shortest(|| {
                let lent = receiver.lend(memory, |_, lent| lent.packed_key().map(drop));
                is_possible &= matches!(lent, Ok(Ok(())));
            });
            is_possible.then_some(time)
        };
        let (register_small, register) = (register(SMALL_SAMPLE_BYTES)?, register(SAMPLE_BYTES)?);
        fits.then_some(Self { copy_out, copy_in, register_small, register })
    }

    /// Where the two lines cross.
    fn crossover(&self) -> Crossover {
        let (small, large) = (SMALL_SAMPLE_BYTES as f64, SAMPLE_BYTES as f64);
        let per_byte = ((self.register - self.register_small) / (large - small)).max(0.0);
        let per_call = (self.register_small - per_byte * small).max(0.0);
        let from = |copy: f64| {
            let gain = copy / large - per_byte;
            let bytes = if gain > 0.0 { per_call / gain } else { f64::INFINITY };
            if bytes < FROM_BYTES_MIN as f64 {
                FROM_BYTES_MIN
            } else if bytes.is_finite() && bytes < usize::MAX as f64 {
                bytes.ceil() as usize
            } else {
                usize::MAX
            }
        };
        let (read_from, write_from) = (from(self.copy_out), from(self.copy_in));
        Crossover { read_from, write_from, ..Crossover::REGISTERED_ONLY }
    }
}

/// The shortest time of several, in nanoseconds: what else the machine does makes it longer only.
fn shortest(mut call: impl FnMut()) -> f64 {
    let times = (0..REPEATS).map(|_| {
        let start = Instant::now();
        call();
        start.elapsed()
    });
    times.min().unwrap_or(Duration::MAX).as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(copy: f64, register_small: f64, register: f64) -> Crossover {
        Costs { copy_out: copy, copy_in: 2.0 * copy, register_small, register }.crossover()
    }

    #[test]
    fn the_lines_cross_where_both_cost_the_same() {
        // A copy of 100 us per MiB; a registration of 20 us whatever its length.
        let Crossover { read_from, write_from, .. } = costs(100e3, 20e3, 20e3);
        assert!(read_from.abs_diff(SAMPLE_BYTES / 5) < 2 && write_from.abs_diff(SAMPLE_BYTES / 10) < 2);
        assert_eq!(costs(100e3, 500.0, 500.0).read_from, FROM_BYTES_MIN, "next to nothing");
        assert_eq!(costs(100e3, 10e3, 150e3).read_from, usize::MAX, "pages cost more than bytes");
        assert_eq!(costs(0.0, 10e3, 10e3), Crossover::REGISTERED_ONLY);
    }

    #[test]
    fn settings_come_before_measurements() {
        let Ok(mut receiver) = Receiver::new() else { return println!("skipped: there is no UCX") };
        let of = |registration, dynamic_beyond, is_shared, receiver: &mut Receiver| {
            let settings = RdmaSettings { registration, dynamic_beyond, ..RdmaSettings::default() };
            Crossover::of(&settings, is_shared, receiver)
        };
        assert_eq!(of(Registration::Static, false, false, &mut receiver), Crossover::NEVER);
        assert_eq!(of(Registration::Static, true, false, &mut receiver).read_from, (16 << 20) + 1);
        let dynamic = of(Registration::Dynamic, false, true, &mut receiver);
        assert_eq!((dynamic.write_from, dynamic.registered_from), (DIRECT_FROM_BYTES, REGISTERED_FROM_BYTES));
        assert_eq!(of(Registration::Auto, false, true, &mut receiver), Crossover::NEVER);
        assert!(of(Registration::Auto, false, false, &mut receiver).read_from >= FROM_BYTES_MIN);
    }
}
