//! Memory that is registered for RDMA.

use crate::memory::Memory;
use crate::ours::{Made, Ours};
use pyo3::prelude::*;
use std::sync::Arc;
use weft_library::{LastingMemory, Process, Registered};

// SAFETY: the exporter keeps so many bytes at this address until the buffer is released, and they may be stored to (it
// is checked before). That the program leaves them alone during transfers is its own concern, as of `readinto`.
unsafe impl LastingMemory for Memory {
    fn address(&self) -> *mut u8 {
        self.pointer()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Made for Registered {
    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

/// Memory that is registered until it is closed.
#[pyclass(frozen, module = "weft._native", name = "RegisteredMemory")]
pub struct PyRegisteredMemory(Ours<Registered>);

impl PyRegisteredMemory {
    pub fn new(registered: Registered) -> Self {
        Self(Ours::new(Arc::new(registered)))
    }
}

#[pymethods]
impl PyRegisteredMemory {
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the registration.
    fn close(&self, py: Python<'_>) {
        let registered = self.0.take();
        py.detach(|| drop(registered));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}
