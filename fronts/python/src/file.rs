//! Open files.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 passes what it extracted by value")]

use crate::lock_request::{PyLockRequest, lock_ranges, locks};
use crate::memory::Memory;
use crate::ours::Ours;
use crate::raise::raise;
use crate::stat::stat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::sync::Arc;
use weft_library::{Explain, OpenFile, ReadList};

/// Longest read that is made room for before the size of the file is known, bytes.
const ROOM_UNASKED: usize = 128 << 10;
/// An open file.
#[pyclass(frozen, module = "weft._native", name = "File")]
pub struct PyFile {
    file: Ours<OpenFile>,
    readable: bool,
    writable: bool,
}

impl PyFile {
    /// Of a file that was opened with these flags.
    pub fn new(file: OpenFile, flags: i32) -> Self {
        let access = flags & libc::O_ACCMODE;
        let (readable, writable) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        Self { file: Ours::new(Arc::new(file)), readable, writable }
    }

    fn check_readable(&self, py: Python<'_>) -> PyResult<()> {
        if self.readable { Ok(()) } else { self.unsupported(py, "not readable") }
    }

    /// Fails as Python's own files do.
    #[cold]
    fn unsupported(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        static UNSUPPORTED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        self.file.get()?;
        Err(PyErr::from_value(UNSUPPORTED.import(py, "io", "UnsupportedOperation")?.call1((text,))?))
    }

    fn check_writable(&self, py: Python<'_>) -> PyResult<()> {
        if self.writable { Ok(()) } else { self.unsupported(py, "not writable") }
    }

    /// Reads into new `bytes`: `length`, or all up to the end of the file; at an offset, or else at the position.
    fn bytes<'py>(&self, py: Python<'py>, length: Option<usize>, at: Option<u64>) -> PyResult<Bound<'py, PyBytes>> {
        let room = match length {
            Some(length) if length <= ROOM_UNASKED => length,
            _ => {
                let left = |file: &Arc<OpenFile>| {
                    let offset = at.unwrap_or_else(|| file.position());
                    Ok(usize::try_from(file.size()?.saturating_sub(offset)).expect("memory and files have 64 bits"))
                };
                let left = self.file.call(py, left)?;
                length.map_or(left, |length| length.min(left))
            }
        };
        let mut count = 0;
        let bytes = PyBytes::new_with(py, room, |memory| {
            count = self.file.call(py, |file| match at {
                Some(offset) => file.read(memory, offset),
                None => file.read_on(memory),
            })?;
            Ok(())
        })?;
        Ok(if count == room { bytes } else { PyBytes::new(py, &bytes.as_bytes()[..count]) })
    }
}

/// Memory, and the offset at which it is filled.
struct Reads(Vec<(Memory, u64)>);

impl ReadList for Reads {
    fn ranges(&self) -> Vec<(u64, usize)> {
        self.0.iter().map(|(memory, offset)| (*offset, memory.bytes().len())).collect()
    }

    fn memory(&mut self, index: usize) -> &mut [u8] {
        self.0[index].0.bytes_mut()
    }
}

/// What Python passes as an offset or a length.
fn unsigned(number: i64, what: &str) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| PyValueError::new_err(format!("negative {what}: {number}")))
}

#[pymethods]
impl PyFile {
    #[getter]
    fn closed(&self) -> bool {
        self.file.is_closed()
    }

    /// Writes back and closes; an error of an earlier write shows here.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        py.detach(|| {
            let flushed = file.flush("close");
            drop(file);
            flushed
        })
        .map_err(raise)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.file.call(py, |file| file.flush("flush"))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.file.call(py, |file| file.file()?.sync().explain(|| "sync"))
    }

    /// Access and `O_APPEND`, as flags of `os.open`.
    #[getter]
    fn flags(&self, py: Python<'_>) -> PyResult<i32> {
        self.file.call(py, |file| Ok(file.flags()))
    }

    fn export<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.file.call(py, |file| file.export()).map(|handle| PyBytes::new(py, &handle))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.call(py, |file| file.size())
    }

    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        self.check_writable(py)?;
        let size = unsigned(size, "size")?;
        self.file.call(py, |file| file.file()?.truncate(size).explain(|| format!("truncate to {size}")))
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (device, attributes) = self.file.call(py, |file| Ok((file.fs.number, file.attributes()?)))?;
        stat(py, device, &attributes)
    }

    /// Reads at the position, and moves it.
    fn readinto(&self, py: Python<'_>, mut memory: Memory) -> PyResult<usize> {
        self.check_readable(py)?;
        memory.check_writable()?;
        self.file.call(py, |file| file.read_on(memory.bytes_mut()))
    }

    /// Reads `length` bytes at the position, or all that is left, and moves it.
    fn read<'py>(&self, py: Python<'py>, length: Option<usize>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_readable(py)?;
        self.bytes(py, length, None)
    }

    /// Writes at the position (of a file that appends at the end), and moves it.
    fn write(&self, py: Python<'_>, memory: Memory) -> PyResult<usize> {
        self.check_writable(py)?;
        let bytes = memory.bytes();
        self.file.call(py, |file| file.write_on(bytes))?;
        Ok(bytes.len())
    }

    /// Moves the position. Returns it.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        if !(libc::SEEK_SET..=libc::SEEK_END).contains(&whence) {
            return Err(PyValueError::new_err(format!("invalid whence ({whence}, should be 0, 1 or 2)")));
        }
        self.file.call(py, |file| file.seek(offset, whence))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.call(py, |file| Ok(file.position()))
    }

    fn pread<'py>(&self, py: Python<'py>, length: usize, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.check_readable(py)?;
        self.bytes(py, Some(length), Some(unsigned(offset, "offset")?))
    }

    fn pread_into(&self, py: Python<'_>, mut memory: Memory, offset: i64) -> PyResult<usize> {
        self.check_readable(py)?;
        memory.check_writable()?;
        let offset = unsigned(offset, "offset")?;
        self.file.call(py, |file| file.read(memory.bytes_mut(), offset))
    }

    fn pwrite(&self, py: Python<'_>, memory: Memory, offset: i64) -> PyResult<usize> {
        self.check_writable(py)?;
        let (bytes, offset) = (memory.bytes(), unsigned(offset, "offset")?);
        self.file.call(py, |file| file.write(bytes, offset))?;
        Ok(bytes.len())
    }

    /// Reads each piece to its memory; ends early at the end of the file. Returns the sum of bytes.
    fn read_list(&self, py: Python<'_>, pieces: Vec<(Memory, i64)>) -> PyResult<usize> {
        self.check_readable(py)?;
        let mut places = Reads(Vec::with_capacity(pieces.len()));
        for (memory, offset) in pieces {
            memory.check_writable()?;
            places.0.push((memory, unsigned(offset, "offset")?));
        }
        self.file.call(py, |file| file.read_list(&mut places))
    }

    /// Writes each piece from its memory. Returns the sum of bytes.
    fn write_list(&self, py: Python<'_>, pieces: Vec<(Memory, i64)>) -> PyResult<usize> {
        self.check_writable(py)?;
        let mut places = Vec::new();
        for (memory, offset) in &pieces {
            places.push((memory.bytes(), unsigned(*offset, "offset")?));
        }
        self.file.call(py, |file| file.write_list(&places))
    }

    /// Locks ranges, each a start and a length (0: to the end of all offsets), all or none, if nothing is in the way.
    fn try_lock(&self, py: Python<'_>, ranges: Vec<(u64, u64)>, exclusive: bool) -> PyResult<()> {
        let locks = locks(&ranges, exclusive)?;
        self.file.call(py, |file| file.file()?.try_lock(&locks).explain(|| format!("lock {} ranges", locks.len())))
    }

    /// As `try_lock`, but asks to be granted them as soon as nothing is in the way any more.
    fn begin_lock(&self, py: Python<'_>, ranges: Vec<(u64, u64)>, exclusive: bool) -> PyResult<PyLockRequest> {
        let locks = locks(&ranges, exclusive)?;
        self.file.call(py, |file| PyLockRequest::begin(file, locks))
    }

    fn unlock(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<()> {
        let ranges = lock_ranges(&ranges)?;
        self.file.call(py, |file| file.file()?.unlock(&ranges).explain(|| format!("unlock {} ranges", ranges.len())))
    }
}
