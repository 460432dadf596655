//! What is known of the modification time of a file.

/// What is known of a modification time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mtime {
    Is(u64),
    /// The file was modified since this was seen.
    After(u64),
    /// It may have been.
    Since(u64),
    /// Bytes of it were lost, and perhaps with them the time at which they were written.
    Unknown,
}

impl Mtime {
    /// The latest time that was told.
    pub fn seen(self) -> u64 {
        match self {
            Self::Is(time) | Self::After(time) | Self::Since(time) => time,
            Self::Unknown => 0,
        }
    }

    /// Whether this may be told.
    pub fn holds(self, told: u64) -> bool {
        match self {
            Self::Is(time) => told == time,
            Self::After(time) => told > time,
            Self::Since(time) => told >= time,
            Self::Unknown => true,
        }
    }
}
