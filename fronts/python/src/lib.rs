//! The native module of the Python package: files and names, for the classes in `python/weft`.
//!
//! Each call gives up the interpreter's lock before it asks anybody, and takes it back for its result. What Python
//! lends ([`memory`], [`path`]) is checked, failures become `OSError` ([`raise`]).
//!
//! Not here: what Python does as well by itself (modes of `open`, buffering, text, `asyncio`, fsspec), and what an
//! operation does (`weft-library`, and `weft-client` below it).
#![expect(unsafe_code, reason = "memory of Python's objects: each block says why it is sound")]

mod file;
mod file_system;
mod listing;
mod lock_request;
mod memory;
mod ours;
mod path;
mod raise;
mod registered;
mod stat;

use pyo3::prelude::*;

/// Files and names of Weft; use the package `weft`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<file_system::PyFileSystem>()?;
    module.add_class::<file::PyFile>()?;
    module.add_class::<listing::PyListing>()?;
    module.add_class::<lock_request::PyLockRequest>()?;
    module.add_class::<registered::PyRegisteredMemory>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
