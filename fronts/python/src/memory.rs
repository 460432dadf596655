//! Memory that a Python object lends.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// The memory of an object with the buffer interface, in one piece. The object keeps it as long as this lives.
pub struct Memory(PyUntypedBuffer);

impl FromPyObject<'_, '_> for Memory {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        Ok(Self(buffer))
    }
}

impl Memory {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Where it begins.
    pub fn pointer(&self) -> *mut u8 {
        self.0.buf_ptr().cast()
    }

    /// Its bytes, to read from.
    pub fn bytes(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps that many bytes at this address until the buffer is released, and they are in one
        // piece. Whether another thread of the program stores to them meanwhile cannot be told: as for `os.write`, it
        // spoils what is written.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.len()) }
    }

    /// Of memory that can only be read a `TypeError`.
    pub fn check_writable(&self) -> PyResult<()> {
        if self.0.readonly() {
            return Err(PyTypeError::new_err("a read-write bytes-like object is needed, not a read-only one"));
        }
        Ok(())
    }

    /// To store to. Two of them may lend the same bytes: only one is to be stored to at a time.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.0.readonly(), "it was checked");
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as above, and it may be stored to. Whether another thread of the program uses it meanwhile cannot be
        // told: as for `readinto`, it finds some of what is being read.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.len()) }
    }
}
