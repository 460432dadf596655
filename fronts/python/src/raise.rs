//! Failures as exceptions.

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use weft_library::Failure;

/// An `OSError`, of the subclass that belongs to its errno.
pub fn raise(failure: Failure) -> PyErr {
    PyOSError::new_err((failure.errno, failure.text))
}
