//! What can go wrong.

use std::io;

/// Why something could not be done. What was there before is there still.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused.
    #[error("{what}: {source}")]
    Device { what: &'static str, source: io::Error },
    /// No block is free.
    #[error("no space left on the device")]
    NoSpace,
    /// What maps blocks has no room for more pieces.
    #[error("the map is full: the data are in too many pieces for this store")]
    MapFull,
    /// The device is too small for a store.
    #[error("{0} bytes are too few for a store: at least {1} are needed")]
    TooSmall(u64, u64),
    /// The host file system takes no file that is large enough for a store in a sparse one.
    #[error("the host lets a file have {bytes} bytes, and 1024 regions of this size need {needed}")]
    HostLimit { bytes: u64, needed: u64 },
    /// The device has become smaller than the store on it.
    #[error("it has {0} bytes, and the store on it has {1}: what lay in the rest is not there")]
    Shrunk(u64, u64),
    /// The device has grown too often for one map.
    #[error("the map is in {0} parts, and cannot have more: it has grown too often")]
    MapInParts(usize),
    /// A region size, or another setting, that cannot be.
    #[error("{0}")]
    Setting(String),
    /// There is no store on the device.
    #[error("there is no region store: {0}")]
    NoStore(String),
    /// The store has an earlier format.
    #[error("it has format version {0}, which only earlier versions of Weft read")]
    OldFormat(u32),
    /// There is something else on the device.
    #[error("{0} is on it")]
    NotEmpty(&'static str),
    /// What is on the device contradicts itself.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A record of the log is damaged, so that what was synced with it and after it cannot be replayed.
    #[error("damaged: log record {record}, at block {block} of the device, {what}")]
    LogDamaged { record: u64, block: u64, what: &'static str },
    /// An address that no object has.
    #[error("beyond the end of what an object can hold")]
    Beyond,
    /// One update with more pieces than a record holds.
    #[error("too many pieces for one update")]
    TooManyPieces,
    /// Another process has the device.
    #[error("another process has it")]
    InUse,
    /// An object's region is full of versions.
    #[error("the region of object {0} is full of versions: clean some away, or format with larger regions")]
    RingFull(u64),
    /// One version with more data than there can be room to move.
    #[error("one version can have {0} bytes of new data, a sixteenth of a region: write it in parts")]
    TooLarge(u64),
    /// No such version: it was never there, or was cleaned away.
    #[error("no such version: it was never there, or was cleaned away")]
    NoVersion,
    /// No such object.
    #[error("no such object")]
    NoObject,
    /// An object of which a version has come in part.
    #[error("a part of the next version of object {0} has come: receive the rest, then it can be written to")]
    PartOfVersion(u64),
    /// What is received is not of the object that is there, or does not go on from it.
    #[error("{0}")]
    OtherObject(String),
    /// A stream of objects that is not whole, or contradicts itself.
    #[error("frame {frame} of the stream: {what}")]
    Stream { frame: u64, what: String },
    /// What a stream goes to, or comes from, failed.
    #[error("the stream: {0}")]
    Pipe(#[source] io::Error),
}

/// Result of a call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Says which call on the device failed.
pub(crate) fn at(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| {
        match source.kind() {
            // Of a host file system a user may have a part only.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace,
            _ => Error::Device { what, source },
        }
    }
}
