//! Paths: `str`, `bytes` or `os.PathLike`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The bytes of a path, or of another name of the file system.
pub struct Text(Vec<u8>);

impl Text {
    fn new(bytes: Vec<u8>) -> PyResult<Self> {
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromPyObject<'_, '_> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        static FSPATH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = object.py();
        let text = match object.cast::<PyString>() {
            Ok(text) => match text.to_str() {
                Ok(text) => return Self::new(text.as_bytes().to_vec()),
                // There are surrogates in it, which stand for what is not UTF-8.
                Err(_) => object.to_owned(),
            },
            Err(_) => FSPATH.import(py, "os", "fspath")?.call1((object,))?,
        };
        let bytes = match text.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes().to_vec(),
            Err(_) => text.extract::<OsString>()?.into_vec(),
        };
        Self::new(bytes)
    }
}

/// A name as `str`: what is not UTF-8 as surrogates, as `os.fsdecode` does.
pub fn decoded(name: &[u8]) -> Cow<'_, OsStr> {
    Cow::Borrowed(OsStr::from_bytes(name))
}
