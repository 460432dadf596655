//! Which RDMA adapters the machine has.

use crate::Result;
use crate::context::Context;

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
