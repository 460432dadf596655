//! Frames of a stream: docs/formats/feed.md.
//!
//! Each has a checksum that goes on from the one before, so that none can be wrong, missing, or at another place. A
//! frame is looked at only after that fits. Lengths are checked before anything is read, and memory grows with what
//! comes, not with what is promised.

use crate::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::object::ObjectStat;
use crate::owner::Owner;
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::versions::feed::{DATA_MAX, EXTENTS_MAX, Extent, Origin};
use crate::versions::{VersionStat, nanoseconds, time_of};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC: &[u8; 8] = b"WEFTFEED";
const VERSION: u32 = 2;
const START_BYTES: usize = 40;
const SCOPE_AT: usize = 32;
const START_CHECKSUM_AT: usize = 12;
/// Kind, length, checksum.
const HEADER_BYTES: usize = 12;
const EXTENT_BYTES: usize = 32;
/// Bytes of data that a frame has at most.
pub(super) const FRAME_DATA_MAX: usize = DATA_MAX as usize * BLOCK_BYTES;
/// What a frame can have behind its header.
const LENGTH_MAX: usize = 4 + EXTENTS_MAX * EXTENT_BYTES + FRAME_DATA_MAX;

/// An object without versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Whole {
    pub id: u64,
    /// Generation, owner, and what it keeps about itself. `None`: it keeps nothing.
    pub about: Option<(u64, Owner, ObjectStat)>,
}

/// See the format's description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    Object(Whole),
    /// Bytes from an offset of the region on.
    Bytes(u64, Vec<u8>),
    Versions(u64, Origin),
    Pieces(Vec<Extent>, Vec<u8>),
    Version(VersionStat),
    /// Of the version that came last.
    Name(String, u64),
    /// One of all names of the object.
    HasName(String, u64),
    /// Of an object.
    Done,
    /// Of the stream: so many frames were before.
    End(u64),
}

impl Frame {
    /// Kind, and what is behind the header.
    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Object(whole) => (1, encode_whole(whole)),
            Self::Bytes(offset, data) => (2, [&offset.to_le_bytes()[..], data].concat()),
            Self::Versions(id, origin) => {
                let base = stat_numbers(&origin.base);
                let numbers = [*id, origin.lineage, nanoseconds(origin.made), origin.from.0, origin.from.1];
                (3, numbers_of(&[&numbers[..], &base].concat()))
            }
            Self::Pieces(extents, data) => {
                let count = u32::try_from(extents.len()).expect("a frame is short");
                let mut bytes = Vec::with_capacity(4 + extents.len() * EXTENT_BYTES + data.len());
                bytes.extend_from_slice(&count.to_le_bytes());
                for Extent { version, first, count, has_data } in extents {
                    bytes.extend(numbers_of(&[*version, *first, *count, u64::from(*has_data)]));
                }
                bytes.extend_from_slice(data);
                (4, bytes)
            }
            Self::Version(stat) => (5, numbers_of(&stat_numbers(stat))),
            Self::Name(name, version) => (6, [&version.to_le_bytes()[..], name.as_bytes()].concat()),
            Self::HasName(name, version) => (7, [&version.to_le_bytes()[..], name.as_bytes()].concat()),
            Self::Done => (8, Vec::new()),
            Self::End(count) => (9, numbers_of(&[*count])),
        }
    }

    /// `None`: these bytes are none.
    fn decode(kind: u32, bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u64_at(bytes, at * 8);
        let whole = |numbers: usize| (bytes.len() == numbers * 8).then_some(());
        let stat = |at: usize| {
            Some(VersionStat { version: number(at)?, size: number(at + 1)?, time: time_of(number(at + 2)?) })
        };
        let name = || std::str::from_utf8(bytes.get(8..)?).ok().map(str::to_owned);
        Some(match kind {
            1 => Self::Object(decode_whole(bytes)?),
            2 => Self::Bytes(number(0)?, bytes.get(8..)?.to_vec()),
            3 => {
                whole(8)?;
                let (lineage, made, from) = (number(1)?, time_of(number(2)?), (number(3)?, number(4)?));
                Self::Versions(number(0)?, Origin { lineage, made, from, base: stat(5)? })
            }
            4 => decode_pieces(bytes)?,
            5 => whole(3).and_then(|()| stat(0)).map(Self::Version)?,
            6 => Self::Name(name()?, number(0)?),
            7 => Self::HasName(name()?, number(0)?),
            8 => whole(0).map(|()| Self::Done)?,
            9 => whole(1).and_then(|()| number(0)).map(Self::End)?,
            _ => return None,
        })
    }

    /// For people.
    fn kind_text(kind: u32) -> &'static str {
        let names = [
            "an object",
            "bytes",
            "an object with versions",
            "pieces",
            "a version",
            "a name",
            "one of the names",
            "an end",
            "the end",
        ];
        let found = usize::try_from(kind).ok().and_then(|kind| names.get(kind.checked_sub(1)?));
        found.copied().unwrap_or("of unknown kind")
    }
}

fn numbers_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn stat_numbers(stat: &VersionStat) -> [u64; 3] {
    [stat.version, stat.size, nanoseconds(stat.time)]
}

/// Identifier; then of one that keeps something about itself generation, owner, size, and two times of 12 bytes.
fn encode_whole(whole: &Whole) -> Vec<u8> {
    let mut bytes = whole.id.to_le_bytes().to_vec();
    if let Some((generation, owner, stat)) = &whole.about {
        bytes.extend_from_slice(&generation.to_le_bytes());
        bytes.extend_from_slice(owner);
        bytes.extend_from_slice(&stat.size.to_le_bytes());
        for time in [stat.modified, stat.made] {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            bytes.extend_from_slice(&since.as_secs().to_le_bytes());
            bytes.extend_from_slice(&since.subsec_nanos().to_le_bytes());
        }
    }
    bytes
}

fn decode_whole(bytes: &[u8]) -> Option<Whole> {
    let id = u64_at(bytes, 0)?;
    if bytes.len() == 8 {
        return Some(Whole { id, about: None });
    }
    let time = |at: usize| -> Option<SystemTime> {
        let nanoseconds = u32_at(bytes, at + 8).filter(|part| *part < 1_000_000_000)?;
        UNIX_EPOCH.checked_add(Duration::new(u64_at(bytes, at)?, nanoseconds))
    };
    let owner = *bytes.get(16..)?.first_chunk()?;
    let stat = ObjectStat { size: u64_at(bytes, 40)?, modified: time(48)?, made: time(60)? };
    (bytes.len() == 72).then_some(Whole { id, about: Some((u64_at(bytes, 8)?, owner, stat)) })
}

fn decode_pieces(bytes: &[u8]) -> Option<Frame> {
    let count = usize::try_from(u32_at(bytes, 0)?).ok().filter(|count| *count <= EXTENTS_MAX)?;
    let (extents, data) = bytes.get(4..)?.split_at_checked(count * EXTENT_BYTES)?;
    let extent = |bytes: &[u8]| {
        let has_data = u64_at(bytes, 24).filter(|has| *has < 2)? == 1;
        Some(Extent { version: u64_at(bytes, 0)?, first: u64_at(bytes, 8)?, count: u64_at(bytes, 16)?, has_data })
    };
    let extents: Vec<Extent> = extents.chunks(EXTENT_BYTES).map(extent).collect::<Option<_>>()?;
    let sum = extents.iter().try_fold(0u64, |sum, extent| sum.checked_add(extent.bytes()))?;
    (sum == data.len() as u64).then(|| Frame::Pieces(extents, data.to_vec()))
}

/// The beginning of a stream: magic, version, checksum, whose it is, and whether it has all objects.
fn start(identity: [u8; 16], is_whole: bool) -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    let scope = u32::from(is_whole).to_le_bytes();
    let parts = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &identity, &scope].concat();
    bytes.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    seal(&mut bytes, START_CHECKSUM_AT);
    bytes
}

/// Writes frames.
pub(super) struct Writer<'a> {
    into: &'a mut dyn Write,
    count: u64,
    checksum: u32,
    pub bytes: u64,
}

impl<'a> Writer<'a> {
    /// Begins a stream of a store, of all its objects or of some.
    pub fn new(into: &'a mut dyn Write, identity: [u8; 16], is_whole: bool) -> Result<Self> {
        let start = start(identity, is_whole);
        into.write_all(&start).map_err(Error::Pipe)?;
        Ok(Self { into, count: 0, checksum: crc32c::crc32c(&start), bytes: START_BYTES as u64 })
    }

    /// How many frames there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn write(&mut self, frame: &Frame) -> Result<()> {
        let (kind, payload) = frame.encode();
        let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= LENGTH_MAX);
        let too_long = || Error::Setting("a name that is too long for a stream".to_owned());
        let what = [kind.to_le_bytes(), length.ok_or_else(too_long)?.to_le_bytes()].concat();
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &what), &payload);
        let header = [&what[..], &self.checksum.to_le_bytes()].concat();
        self.into.write_all(&header).and_then(|()| self.into.write_all(&payload)).map_err(Error::Pipe)?;
        self.count += 1;
        self.bytes += (header.len() + payload.len()) as u64;
        Ok(())
    }
}

/// Reads frames.
pub(super) struct Reader<'a> {
    from: &'a mut dyn Read,
    /// Of the frame that comes next; the beginning is 0.
    number: u64,
    checksum: u32,
    /// All objects of a store come, in order.
    pub is_whole: bool,
    pub bytes: u64,
}

impl<'a> Reader<'a> {
    /// An error: this is no stream, or of a version that this program does not know.
    pub fn new(from: &'a mut dyn Read) -> Result<Self> {
        let mut reader = Self { from, number: 0, checksum: 0, is_whole: false, bytes: 0 };
        let start = reader.take(START_BYTES)?;
        if !start.starts_with(MAGIC) {
            return Err(reader.wrong("these are no objects of a region store"));
        }
        match u32_at(&start, MAGIC.len()) {
            Some(VERSION) if seal_of(&start, START_CHECKSUM_AT).is_some() => {}
            Some(VERSION) => return Err(reader.wrong("the checksum")),
            version => {
                let version = version.expect("a start is whole");
                return Err(reader.wrong(&format!("it has version {version}, and this program knows {VERSION}")));
            }
        }
        reader.checksum = crc32c::crc32c(&start);
        reader.is_whole = match u32_at(&start, SCOPE_AT) {
            Some(0) => false,
            Some(1) => true,
            _ => return Err(reader.wrong("which objects it has")),
        };
        Ok(reader)
    }

    /// An error about the frame that was read last.
    pub fn wrong(&self, what: &str) -> Error {
        Error::Stream { frame: self.number, what: what.to_owned() }
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.from).take(count as u64).read_to_end(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.broken_off(),
            _ => Error::Pipe(error),
        })?;
        self.bytes += bytes.len() as u64;
        if bytes.len() < count { Err(self.broken_off()) } else { Ok(bytes) }
    }

    fn broken_off(&self) -> Error {
        self.wrong("the stream breaks off; what came is kept, and the rest can be sent")
    }

    /// The next frame.
    pub fn read(&mut self) -> Result<Frame> {
        self.number += 1;
        let header = self.take(HEADER_BYTES)?;
        let field = |at: usize| u32_at(&header, at).expect("a header is whole");
        let (kind, length) = (field(0), field(4) as usize);
        if length > LENGTH_MAX {
            return Err(self.wrong(&format!("a length of {length} bytes: {LENGTH_MAX} at most are possible")));
        }
        let payload = self.take(length)?;
        let checksum = crc32c::crc32c_append(self.checksum, &header[..8]);
        self.checksum = crc32c::crc32c_append(checksum, &payload);
        if self.checksum != field(8) {
            return Err(self.wrong(&format!("the checksum ({})", Frame::kind_text(kind))));
        }
        match Frame::decode(kind, &payload) {
            Some(Frame::End(count)) if count + 1 != self.number => Err(self.wrong("frames are missing")),
            Some(frame) => Ok(frame),
            None => Err(self.wrong(&format!("what it says ({})", Frame::kind_text(kind)))),
        }
    }
}

#[cfg(test)]
mod tests;
