//! File systems and their names.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 passes what it extracted by value")]

use crate::file::PyFile;
use crate::listing::PyListing;
use crate::memory::Memory;
use crate::ours::Ours;
use crate::path::{Text, decoded};
use crate::raise::raise;
use crate::registered::PyRegisteredMemory;
use crate::stat::stat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weft_library::{
    Failure, FileSystem, Hints, Located, OpenFile, Outcome, Place, Registered, Settings, expectation, locate,
    permission_bits,
};
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{AttributeChanges, InodeNumber, TimeChange, Timestamp};

/// Offset, length, node, host, site, and whether it is this machine.
type Piece = (u64, u64, Option<u16>, String, String, bool);
/// The fields of `os.statvfs_result`.
type StatVfs = (u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

/// A file system that is connected, or a directory of one.
#[pyclass(frozen, subclass, module = "weft._native", name = "FileSystem")]
pub struct PyFileSystem {
    fs: Ours<FileSystem>,
    name: String,
    /// The directory at which paths without a `/` in front begin; `None`: the root.
    directory: Option<Ours<OpenFile>>,
}

/// Where paths without a `/` in front begin.
struct Below<'a> {
    fs: &'a Arc<FileSystem>,
    directory: InodeNumber,
}

impl<'a> Below<'a> {
    fn place(&self, path: &'a Text) -> Place<'a> {
        Place { fs: self.fs, directory: self.directory, path: path.bytes() }
    }
}

impl PyFileSystem {
    /// A directory that is open.
    fn open_directory(&self, py: Python<'_>, path: &Text) -> PyResult<Self> {
        let directory = self.at(py, path, |place| {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            Ok(Arc::new(OpenFile::open(&place, flags, 0, &Hints::default())?))
        })?;
        let fs = Ours::new(Arc::clone(&directory.fs));
        Ok(Self { fs, name: self.name.clone(), directory: Some(Ours::new(directory)) })
    }

    /// Calls with a path, without the interpreter's lock.
    fn at<R: Send>(
        &self,
        py: Python<'_>,
        path: &Text,
        call: impl FnOnce(Place<'_>) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        self.below(py, |below| call(below.place(path)))
    }

    /// As [`PyFileSystem::at`], with any number.
    fn below<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&Below<'_>) -> Outcome<R> + Send) -> PyResult<R> {
        match &self.directory {
            None => self.fs.call(py, |fs| call(&Below { fs, directory: InodeNumber::ROOT })),
            Some(directory) => directory.call(py, |open| call(&Below { fs: &open.fs, directory: open.directory()? })),
        }
    }

    /// As [`PyFileSystem::at`], with two.
    fn at_both<R: Send>(
        &self,
        py: Python<'_>,
        paths: (&Text, &Text),
        call: impl FnOnce(Place<'_>, Place<'_>) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        self.below(py, |below| call(below.place(paths.0), below.place(paths.1)))
    }

    fn change(
        &self,
        py: Python<'_>,
        path: &Text,
        (follows, verb): (bool, &str),
        changes: &AttributeChanges,
    ) -> PyResult<()> {
        self.at(py, path, |place| place.change(follows, verb, changes))
    }
}

fn piece(located: Located) -> Piece {
    let Located { location, is_local } = located;
    (location.offset, location.bytes, location.node.map(|node| node.0), location.host, location.site, is_local)
}

#[pymethods]
impl PyFileSystem {
    #[new]
    #[pyo3(signature = (
        name=None, *, key_file=None, transport=None, soft=None, hard=false, write_buffer=None, directory=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        name: Option<&str>,
        key_file: Option<Text>,
        transport: Option<&str>,
        soft: Option<f64>,
        hard: bool,
        write_buffer: Option<usize>,
        directory: Option<(PyRef<'_, PyFileSystem>, Text)>,
    ) -> PyResult<Self> {
        if let Some((above, path)) = directory {
            return above.open_directory(py, &path);
        }
        let mut settings = Settings::new().map_err(raise)?;
        settings.key_file = key_file.map(|path| Path::new(OsStr::from_bytes(path.bytes())).to_owned());
        if let Some(transport) = transport {
            settings.set_transport(transport).map_err(raise)?;
        }
        let duration = |seconds: f64| {
            let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
            duration.ok_or_else(|| PyValueError::new_err(format!("soft is {seconds} seconds")))
        };
        settings.set_waits(soft.map(duration).transpose()?, hard).map_err(raise)?;
        if let Some(bytes) = write_buffer {
            settings.client.buffer_bytes = bytes;
        }
        if name.is_some_and(|name| name.contains('\0')) {
            return Err(PyValueError::new_err("embedded null character"));
        }
        let fs = py.detach(|| FileSystem::connect(name, settings)).map_err(raise)?;
        let name = fs.client.map().name.clone();
        Ok(Self { fs: Ours::new(fs), name, directory: None })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn closed(&self) -> bool {
        self.directory.as_ref().map_or_else(|| self.fs.is_closed(), Ours::is_closed)
    }

    /// Writes back and disconnects; a directory is only closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(directory) = &self.directory {
            drop(directory.take());
            return Ok(());
        }
        let Some(fs) = self.fs.take() else { return Ok(()) };
        py.detach(|| fs.disconnect()).map_err(raise)
    }

    /// `flags` are those of `os.open`, `hints` as in the guide.
    fn open_file(&self, py: Python<'_>, path: Text, flags: i32, mode: u32, hints: &str) -> PyResult<PyFile> {
        let hints = Hints::parse(hints.as_bytes()).map_err(raise)?;
        self.at(py, &path, |place| {
            let file = OpenFile::open(&place, flags, mode, &hints)?;
            if file.file().is_err() {
                return Err(Failure::new(libc::EISDIR, format!("open {place}: is a directory")));
            }
            Ok(PyFile::new(file, flags))
        })
    }

    /// Opens what another process has exported.
    fn import_file(&self, py: Python<'_>, handle: &[u8], hints: &str) -> PyResult<PyFile> {
        let hints = Hints::parse(hints.as_bytes()).map_err(raise)?;
        self.below(py, |below| {
            let file = OpenFile::import(below.fs, handle, &hints)?;
            let flags = file.flags();
            Ok(PyFile::new(file, flags))
        })
    }

    /// Registers memory for RDMA.
    fn register(&self, py: Python<'_>, memory: Memory) -> PyResult<PyRegisteredMemory> {
        memory.check_writable()?;
        self.below(py, |below| Ok(PyRegisteredMemory::new(Registered::new(below.fs, Box::new(memory))?)))
    }

    /// What was done since it connected.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let told = self.below(py, |below| Ok(below.fs.client.counters()))?;
        [
            ("metadata_calls", told.shard_calls),
            ("data_requests", told.data_requests),
            ("descriptor_read", told.descriptor_read_bytes),
            ("descriptor_written", told.descriptor_write_bytes),
            ("unix_read", told.unix_read_bytes),
            ("unix_written", told.unix_write_bytes),
            ("tcp_read", told.tcp_read_bytes),
            ("tcp_written", told.tcp_write_bytes),
            ("rdma_read", told.rdma_read_bytes),
            ("rdma_written", told.rdma_write_bytes),
            ("rdma_copied", told.rdma_copied_bytes),
            ("rdma_registrations", told.rdma_registrations),
        ]
        .into_py_dict(py)
    }

    fn open_listing(&self, py: Python<'_>, path: Text) -> PyResult<PyListing> {
        self.at(py, &path, |place| {
            let directory = OpenFile::open(&place, libc::O_RDONLY | libc::O_DIRECTORY, 0, &Hints::default())?;
            Ok(PyListing::new(Arc::new(directory)))
        })
    }

    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat<'py>(&self, py: Python<'py>, path: Text, follow_symlinks: bool) -> PyResult<Bound<'py, PyAny>> {
        let call = |place: Place<'_>| Ok((place.fs.number, place.attributes(follow_symlinks, "stat")?));
        let (device, attributes) = self.at(py, &path, call)?;
        stat(py, device, &attributes)
    }

    fn check_access(&self, py: Python<'_>, path: Text, mode: u16) -> PyResult<()> {
        if mode & !0o7 != 0 {
            return Err(PyValueError::new_err(format!("mode is {mode}")));
        }
        self.at(py, &path, |place| place.check_access(mode))
    }

    #[pyo3(signature = (path, mode))]
    fn chmod(&self, py: Python<'_>, path: Text, mode: u32) -> PyResult<()> {
        let changes = AttributeChanges { mode: Some(permission_bits(mode)), ..AttributeChanges::default() };
        self.change(py, &path, (true, "chmod"), &changes)
    }

    /// -1 leaves the owner or the group as it is.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks=true))]
    fn chown(&self, py: Python<'_>, path: Text, uid: i64, gid: i64, follow_symlinks: bool) -> PyResult<()> {
        let id = |id: i64| match id {
            -1 => Ok(None),
            id => u32::try_from(id)
                .map(Some)
                .map_err(|_| PyValueError::new_err(format!("there is no user or group {id}"))),
        };
        let changes = AttributeChanges { uid: id(uid)?, gid: id(gid)?, ..AttributeChanges::default() };
        self.change(py, &path, (follow_symlinks, "chown"), &changes)
    }

    /// Nanoseconds since 1970; `None` is now.
    fn set_times(&self, py: Python<'_>, path: Text, times: Option<(i64, i64)>, follow_symlinks: bool) -> PyResult<()> {
        let time = |time: Option<i64>| Some(time.map_or(TimeChange::Now, |ns| TimeChange::To(Timestamp(ns))));
        let (atime, mtime) = (time(times.map(|times| times.0)), time(times.map(|times| times.1)));
        let changes = AttributeChanges { atime, mtime, ..AttributeChanges::default() };
        self.change(py, &path, (follow_symlinks, "utime"), &changes)
    }

    fn truncate(&self, py: Python<'_>, path: Text, length: i64) -> PyResult<()> {
        let size = u64::try_from(length).map_err(|_| PyValueError::new_err(format!("negative length: {length}")))?;
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        self.change(py, &path, (true, "truncate"), &changes)
    }

    #[pyo3(signature = (path, mode=0o777))]
    fn mkdir(&self, py: Python<'_>, path: Text, mode: u32) -> PyResult<()> {
        self.at(py, &path, |place| place.make_directory(mode))
    }

    fn rmdir(&self, py: Python<'_>, path: Text) -> PyResult<()> {
        self.at(py, &path, |place| place.remove_directory())
    }

    fn unlink(&self, py: Python<'_>, path: Text) -> PyResult<()> {
        self.at(py, &path, |place| place.unlink())
    }

    #[pyo3(signature = (src, dst, *, replace=true))]
    fn rename(&self, py: Python<'_>, src: Text, dst: Text, replace: bool) -> PyResult<()> {
        let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
        self.at_both(py, (&src, &dst), |from, to| from.rename(&to, mode))
    }

    fn exchange(&self, py: Python<'_>, src: Text, dst: Text) -> PyResult<()> {
        self.at_both(py, (&src, &dst), |from, to| from.rename(&to, RenameMode::Exchange))
    }

    fn link(&self, py: Python<'_>, src: Text, dst: Text) -> PyResult<()> {
        self.at_both(py, (&src, &dst), |from, to| from.link(&to))
    }

    fn symlink(&self, py: Python<'_>, src: Text, dst: Text) -> PyResult<()> {
        self.at(py, &dst, |place| place.make_symlink(src.bytes()))
    }

    fn readlink(&self, py: Python<'_>, path: Text) -> PyResult<OsString> {
        Ok(OsString::from_vec(self.at(py, &path, |place| place.read_link())?))
    }

    fn getxattr<'py>(&self, py: Python<'py>, path: Text, attribute: Text) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.at(py, &path, |place| place.xattr(attribute.bytes()))?))
    }

    /// `flags` are 0, `os.XATTR_CREATE` or `os.XATTR_REPLACE`.
    #[pyo3(signature = (path, attribute, value, flags=0))]
    fn setxattr(&self, py: Python<'_>, path: Text, attribute: Text, value: Memory, flags: i32) -> PyResult<()> {
        let expects = expectation(flags).map_err(|failure| PyValueError::new_err(failure.text().to_owned()))?;
        let value = value.bytes();
        self.at(py, &path, |place| place.set_xattr(attribute.bytes(), value, expects))
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: Text) -> PyResult<Vec<Cow<'py, OsStr>>> {
        let names = self.at(py, &path, |place| place.xattrs())?;
        Ok(names.iter().map(|name| Cow::Owned(decoded(name).into_owned())).collect())
    }

    fn removexattr(&self, py: Python<'_>, path: Text, attribute: Text) -> PyResult<()> {
        self.at(py, &path, |place| place.remove_xattr(attribute.bytes()))
    }

    /// The pieces of each file.
    fn locate_files(&self, py: Python<'_>, paths: Vec<Text>) -> PyResult<Vec<Vec<Piece>>> {
        let located = self.below(py, |below| {
            let places: Vec<_> = paths.iter().map(|path| below.place(path)).collect();
            locate(&places)
        })?;
        Ok(located.into_iter().map(|pieces| pieces.into_iter().map(piece).collect()).collect())
    }

    /// The fields of `os.statvfs_result`.
    fn space(&self, py: Python<'_>) -> PyResult<StatVfs> {
        let told = self.below(py, |below| below.fs.statfs())?;
        let (block, name_max) = (told.block_bytes.into(), told.name_bytes_max.into());
        let (free, inodes_free) = (told.blocks_free, told.inodes_free);
        Ok((block, block, told.blocks, free, free, told.inodes, inodes_free, inodes_free, 0, name_max))
    }
}
