//! Sparse files: as long as the host file system lets a file be, with holes where nothing was written.

use super::{FileDevice, HostSpace, length_of};
use crate::BLOCK;
use crate::error::{Error, Result, at};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom, fallocate, fstat, fstatvfs, ftruncate, open, seek};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

/// What file systems of Linux let a file have at most.
const BYTES_MAX: u64 = i64::MAX as u64 / BLOCK * BLOCK;

impl FileDevice {
    /// Opens a file and makes it as long as its file system, and the limit of this process, let it be. It is made if it
    /// is not there; what is in it stays.
    pub fn create_sparse(path: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let made = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| at("make the file")(errno.into()))?;
        drop(made);
        let mut file = Self::open(path)?;
        file.bytes = lengthen(&file.file)?;
        Ok(file)
    }
}

/// Makes a file as long as it can be. File systems have limits near powers of two.
fn lengthen(file: &File) -> Result<u64> {
    let stat = fstat(file).map_err(|errno| at("look at the file")(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::Setting("only a file of a file system can be sparse".to_owned()));
    }
    let start = length_of(file).map_err(at("measure the file"))?;
    // Beyond the limit of the process it would be killed.
    let limit = getrlimit(Resource::Fsize).current.map_or(BYTES_MAX, |limit| limit.min(BYTES_MAX) / BLOCK * BLOCK);
    let powers = (20..63).rev().map(|power| (1 << power) - BLOCK).filter(|bytes| *bytes < limit);
    for bytes in std::iter::once(limit).chain(powers).take_while(|bytes| *bytes > start) {
        match ftruncate(file, bytes) {
            Err(Errno::FBIG | Errno::INVAL | Errno::OVERFLOW) => {}
            done => return done.map(|()| bytes).map_err(|errno| at("make the file longer")(errno.into())),
        }
    }
    Ok(start)
}

/// An error: the host makes no holes.
pub(super) fn punch(file: &impl AsFd, place: u64, bytes: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, place, bytes)?)
}

/// The first part of a range that is no hole, in whole blocks.
pub(super) fn data_within(file: &impl AsFd, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Err(Errno::NXIO) => return Ok(None),
        // It does not know.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => range.start,
        start => (start? / BLOCK * BLOCK).max(range.start),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
    Ok(Some(start..end.checked_next_multiple_of(BLOCK).unwrap_or(range.end).min(range.end)))
}

/// What the file takes, and what a user of its file system can have.
pub(super) fn space(file: &impl AsFd) -> io::Result<HostSpace> {
    let (stat, host) = (fstat(file)?, fstatvfs(file)?);
    let taken = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    Ok(HostSpace { taken, free: host.f_bavail.saturating_mul(host.f_frsize) })
}
