//! Failures as exceptions.

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use weft_library::Failure;

/// An `OSError`, of the subclass that belongs to its errno.
#[expect(clippy::needless_pass_by_value, reason = "so that it can be given to map_err")]
pub fn raise(failure: Failure) -> PyErr {
    PyOSError::new_err((failure.errno(), failure.text().to_owned()))
}
