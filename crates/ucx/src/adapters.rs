//! Which RDMA adapters the machine has.

use crate::context::Context;
use crate::{Error, Result, transports};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Where the kernel lists them.
const DIRECTORY: &str = "/sys/class/infiniband";

/// Their names, in order; none where there is none.
pub fn adapters() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return Vec::new() };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Loads the library and opens the devices now. For a process that will most likely need them, before it has threads:
/// UCX then changes functions of the C library in place, to notice memory that is unmapped.
pub fn prepare() -> Result<()> {
    Context::get().map(|_| ())
}

/// With less UCX 1.13 may find no room for its own queues, and asks again without an end: with 4 MiB now and then. This
/// is Debian's limit.
pub(crate) const LOCKED_BYTES_MIN: u64 = 8 << 20;

/// An error where there are adapters that would be used, and too little memory may be locked for them.
pub(crate) fn check_locked_memory() -> Result<()> {
    if adapters().is_empty() || !use_adapters(&transports::chosen()) || may_exceed_limits() {
        return Ok(());
    }
    match getrlimit(Resource::Memlock).current {
        Some(bytes) if bytes < LOCKED_BYTES_MIN => Err(Error::LockedMemory(bytes >> 10)),
        _ => Ok(()),
    }
}

/// Whether whole files may be locked in memory, or nothing here would: it takes a process without a limit.
pub fn may_lock_files() -> bool {
    let is_unlimited = || getrlimit(Resource::Memlock).current.is_none();
    adapters().is_empty() || may_exceed_limits() || is_unlimited()
}

fn may_exceed_limits() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Whether some of these transports, as `UCX_TLS` names them, are an adapter's.
fn use_adapters(transports: &str) -> bool {
    let is_adapters = |name: &str| ["all", "ib", "rc", "ud", "dc"].iter().any(|known| name.starts_with(known));
    transports.starts_with('^') || transports.split(',').any(is_adapters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_of_adapters_are_known() {
        for (transports, expected) in [
            ("all", true),
            ("rc_verbs,tcp:aux", true),
            ("posix,self,ud", true),
            ("^cma", true),
            ("tcp,posix,self", false),
        ] {
            assert_eq!(use_adapters(transports), expected, "{transports}");
        }
    }
}
