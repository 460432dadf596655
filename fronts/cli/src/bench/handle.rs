//! The file that a worker of a benchmark reads or writes: by the client library, or by system calls in a mount.

use super::phase::Mounted;
use crate::failure::{Explain, Outcome};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
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

/// How long requests took.
#[derive(Default)]
pub struct Times(Vec<u32>);

impl Times {
    /// Notes one.
    pub fn add(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Microseconds that so many of 100 requests took at most.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).map_or(0.0, |nanos| f64::from(*nanos) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_requests_that_were_made() {
        let mut times = Times::default();
        assert_eq!(times.percentile(50), 0.0);
        (1..=200).rev().for_each(|micros| times.add(Duration::from_micros(micros)));
        assert_eq!((times.percentile(50), times.percentile(99), times.percentile(100)), (100.0, 198.0, 200.0));
    }
}
