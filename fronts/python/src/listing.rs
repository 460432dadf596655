//! Listings.

use crate::ours::Ours;
use crate::path::decoded;
use crate::stat::stat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use weft_library::{Cursor, OpenFile, file_type};

/// The names of a directory, or a part of them.
#[pyclass(frozen, module = "weft._native", name = "Listing")]
pub struct PyListing {
    directory: Ours<OpenFile>,
    cursor: Mutex<Cursor>,
}

/// Name, inode, type and, if asked for, attributes.
type Entry<'py> = (Cow<'py, OsStr>, u64, u32, Option<Bound<'py, PyAny>>);

impl PyListing {
    /// All names.
    pub fn new(directory: Arc<OpenFile>) -> Self {
        Self { directory: Ours::new(directory), cursor: Mutex::new(Cursor::ALL) }
    }
}

#[pymethods]
impl PyListing {
    /// The next entries, none at the end.
    fn read<'py>(&self, py: Python<'py>, count: usize, with_stat: bool) -> PyResult<Vec<Entry<'py>>> {
        if count == 0 {
            return Err(PyValueError::new_err("a count of 0 entries"));
        }
        let (device, entries) = self.directory.call(py, |directory| {
            let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
            let mut entries = Vec::new();
            cursor.read(directory, with_stat, count, &mut |entry| entries.push(entry))?;
            Ok((directory.fs.number, entries))
        })?;
        let told = entries.into_iter().map(|entry| {
            let attributes = entry.attributes.map(|attributes| stat(py, device, &attributes)).transpose()?;
            let name = decoded(entry.name.as_bytes()).into_owned();
            Ok((Cow::Owned(name), entry.inode.raw(), file_type(entry.kind), attributes))
        });
        told.collect()
    }

    /// What was not read yet, in so many parts, each with names of its own. This has none left.
    fn split(&self, py: Python<'_>, parts: usize) -> PyResult<Vec<Self>> {
        if parts == 0 {
            return Err(PyValueError::new_err("0 parts"));
        }
        let directory = self.directory.get()?;
        let mut cursors = vec![Cursor::NONE; parts];
        // Another thread may have it for the length of a call to the shard.
        py.detach(|| {
            let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
            cursor.split(&mut cursors);
            *cursor = Cursor::NONE;
        });
        let part = |cursor| Self { directory: Ours::new(Arc::clone(&directory)), cursor: Mutex::new(cursor) };
        Ok(cursors.into_iter().map(part).collect())
    }
}
