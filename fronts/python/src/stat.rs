//! Attributes as `os.stat_result`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use weft_library::{BLOCK_BYTES, PREFERRED_IO_BYTES, mode};
use weft_protocol::{Attributes, Timestamp};

/// As `os.stat` tells them. `device`: the number of the file system.
pub fn stat<'py>(py: Python<'py>, device: u32, attributes: &Attributes) -> PyResult<Bound<'py, PyAny>> {
    static STAT_RESULT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let unsigned = |number: u64| number.into_pyobject(py).map(Bound::into_any);
    let signed = |number: i64| number.into_pyobject(py).map(Bound::into_any);
    // Rounded as Python does.
    let real = |time: Timestamp| {
        let (seconds, nanoseconds) = time.parts();
        (seconds as f64 + 1e-9 * f64::from(nanoseconds)).into_pyobject(py).map(Bound::into_any)
    };
    let Attributes { atime, mtime, ctime, .. } = *attributes;
    // In the order of its fields: those of a tuple, then those that have names only.
    let fields = [
        unsigned(mode(attributes).into())?,
        unsigned(attributes.inode.raw())?,
        unsigned(device.into())?,
        unsigned(attributes.links.into())?,
        unsigned(attributes.uid.into())?,
        unsigned(attributes.gid.into())?,
        unsigned(attributes.size)?,
        signed(atime.parts().0)?,
        signed(mtime.parts().0)?,
        signed(ctime.parts().0)?,
        real(atime)?,
        real(mtime)?,
        real(ctime)?,
        signed(atime.0)?,
        signed(mtime.0)?,
        signed(ctime.0)?,
        unsigned(PREFERRED_IO_BYTES.into())?,
        unsigned(attributes.size.div_ceil(BLOCK_BYTES))?,
        unsigned(0)?,
    ];
    STAT_RESULT.import(py, "os", "stat_result")?.call1((PyTuple::new(py, fields)?,))
}
