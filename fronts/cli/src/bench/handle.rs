//! The file that a worker of a benchmark reads or writes: by the client library, or by system calls in a mount.

use super::phase::Mounted;
use crate::failure::{Explain, Outcome};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;
use weft_client::File;

/// See the module.
pub enum Handle {
    Native(File),
    Mounted(std::fs::File),
}

impl Handle {
    /// Opens a file in a mount; to write, it is made or cut to nothing. `direct`: past all buffers.
    pub fn in_mount(mounted: &Mounted, path: &str, write: bool, direct: bool) -> Outcome<Self> {
        let base = if write { &mounted.writes } else { &mounted.reads };
        let path = base.join(Path::new(path.trim_start_matches('/')));
        let mut options = OpenOptions::new();
        if write {
            options.write(true).create(true).truncate(true).mode(0o600);
        } else {
            options.read(true);
        }
        if direct {
            // The kernel's numbers of flags are small.
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        Ok(Self::Mounted(options.open(&path).explain(|| format!("open {}", path.display()))?))
    }

    /// Writes all bytes.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Outcome<()> {
        match self {
            Self::Native(file) => file.write_at(bytes, offset).explain(|| "write").map(|_| ()),
            Self::Mounted(file) => file.write_all_at(bytes, offset).explain(|| "write"),
        }
    }

    /// Reads as many bytes as there are, and says how many.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Outcome<usize> {
        match self {
            Self::Native(file) => file.read_at(into, offset).explain(|| "read"),
            Self::Mounted(file) => {
                let mut done = 0;
                while done < into.len() {
                    match file.read_at(into.get_mut(done..).unwrap_or_default(), offset + done as u64) {
                        Ok(0) => break,
                        Ok(count) => done += count,
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error).explain(|| "read"),
                    }
                }
                Ok(done)
            }
        }
    }

    /// What was written is at the nodes when this returns.
    pub fn close(self) -> Outcome<()> {
        match self {
            Self::Native(file) => file.close().explain(|| "close"),
            // A mount may write only now. The end of a `File` has no answer.
            Self::Mounted(file) => nix::unistd::close(file).map_err(std::io::Error::from).explain(|| "close"),
        }
    }
}

/// How long requests took, where that is wanted: reading the clock takes a tenth of what 4 KiB take.
pub struct Times(Option<Vec<u32>>);

impl Times {
    /// None yet.
    pub fn new(wanted: bool) -> Self {
        Self(wanted.then(Vec::new))
    }

    /// Makes a request, and notes how long it took.
    pub fn of<T>(&mut self, request: impl FnOnce() -> T) -> T {
        let Some(times) = &mut self.0 else { return request() };
        let begun = Instant::now();
        let done = request();
        times.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
        done
    }

    /// Microseconds that so many of 100 requests took at most.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        let Some(times) = &mut self.0 else { return 0.0 };
        times.sort_unstable();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).map_or(0.0, |nanos| f64::from(*nanos) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_requests_that_were_made() {
        let mut times = Times::new(true);
        assert_eq!((times.percentile(50), times.of(|| 7)), (0.0, 7));
        assert_eq!(times.0.as_deref().map(<[_]>::len), Some(1));
        times.0 = Some((1..=200).rev().map(|micros| micros * 1000).collect());
        assert_eq!((times.percentile(50), times.percentile(99), times.percentile(100)), (100.0, 198.0, 200.0));
        let mut unwanted = Times::new(false);
        assert_eq!((unwanted.of(|| 7), unwanted.percentile(50)), (7, 0.0));
    }
}
