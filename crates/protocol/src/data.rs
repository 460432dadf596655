//! Headers of the data connections.
//!
//! File data never passes a serializer: a data request is a fixed header of 120 bytes, behind which a write's bytes
//! follow; a reply is a fixed header of 40 bytes, behind which a read's bytes follow. A receiver gives the kernel
//! header and destination in one call, so the bytes land where they belong.
//!
//! Requests of one connection are served in order, and many may be sent before the first is answered. A writer that got
//! an error reply goes on to get the replies of what it had sent behind. Of `Write`s with one identifier, not 0, those
//! behind one for which there was no space are refused likewise: a store that has space for some of them would leave a
//! hole between bytes that a program wrote in order.
//!
//! Request (little-endian):
//!
//! | offset | width | meaning |
//! | --- | --- | --- |
//! | 0 | 2 | magic `57 44` ("WD") |
//! | 2 | 1 | protocol version |
//! | 3 | 1 | operation; 128 more: the bytes stay in pages of the client's kernel, and no lease covers them |
//! | 4 | 4 | bytes to read, or bytes that follow, at most [`BULK_BYTES_MAX`] |
//! | 8 | 8 | identifier, given back in the reply; of writes that were sent ahead, the same for all of them |
//! | 16 | 8 | object |
//! | 24 | 8 | inode that the object belongs to |
//! | 32 | 8 | offset |
//! | 40 | 16 | descriptor of the memory: address, key, memory type; zero: the bytes follow on the stream |
//! | 56 | 64 | capability |
//!
//! Over a Unix socket, a server that may read the client's memory (`Share`) takes the bytes of a large write there: the
//! address says where, and nothing stands behind the header. A client that may read the server's memory (`Lend`) names
//! the place of a large read likewise: the server may then lend the bytes instead of sending them. The reply says so,
//! and [`LentBytes`] behind it say where the client copies them from. They are lent until the next request at most.
//!
//! A server that can move the bytes itself (`OpenRdma`) puts those of a read where the descriptor says, and gets those
//! of a write from there: the key is the number of memory that `ShowMemory` has told of before, and nothing stands
//! behind either header. A server that cannot reach that memory answers [`Error::NotSupported`].
//!
//! Reply:
//!
//! | offset | width | meaning |
//! | --- | --- | --- |
//! | 0 | 2 | magic `57 64` ("Wd") |
//! | 2 | 1 | protocol version |
//! | 3 | 1 | parts of the server's memory in which the bytes are lent; 0: they follow |
//! | 4 | 2 | status: 0, or as [`Error::to_data_status`] |
//! | 6 | 2 | zero |
//! | 8 | 8 | identifier of the request |
//! | 16 | 4 | bytes that follow, or are lent (read) |
//! | 20 | 4 | bytes written; of a failed write not 0 if some of its bytes may be in the object |
//! | 24 | 8 | size of the object after the operation |
//! | 32 | 8 | modification time of the object, nanoseconds since 1970 |

use crate::PROTOCOL_VERSION;
use crate::capability::{CAPABILITY_BYTES, Capability};
use crate::error::Error;
use crate::ids::{ConnectionId, InodeNumber, ObjectId, SessionId};
use crate::limits::{BULK_BYTES_MAX, FILE_BYTES_MAX, LENT_PARTS_MAX, RDMA_ADDRESS_BYTES_MAX, RDMA_KEY_BYTES_MAX};
use crate::time::Timestamp;

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 120;
/// Bytes of a reply's header.
pub const REPLY_BYTES: usize = 40;
/// Bytes of [`SharedMemory`].
pub const SHARED_MEMORY_BYTES: usize = 24;
/// Bytes of [`LentBytes`] before its parts, and of each part.
const LENT_HEAD_BYTES: usize = 16;
const LENT_PART_BYTES: usize = 16;
/// Most bytes of encoded [`LentBytes`].
pub const LENT_BYTES_LENGTH_MAX: usize = LENT_HEAD_BYTES + LENT_PARTS_MAX * LENT_PART_BYTES;
/// Bytes before the address that stands behind an `OpenRdma`: the library's version, major and minor, 16 bits each
/// (both sides take each other's addresses and keys as they are, so both have the same), and 1 if requests will come
/// as the library's messages, else 0.
pub const RDMA_PREFACE_BYTES: usize = 5;
/// Bytes that the server gets for a `ProbeMemory`: a number, little-endian.
pub const PROBE_BYTES: u32 = 8;
/// Bytes that stand behind a `ProbeMemory`: from how many bytes on requests will be about the caller's memory, and not
/// the connection's: reads, and writes; for people.
pub const PROBE_TOLD_BYTES: usize = 16;
/// Bytes before the key that stands behind a `ShowMemory`: how long the memory is.
pub const SHOWN_LENGTH_BYTES: usize = 8;
/// Set in the operation's byte for [`DataRequest::pages`].
const PAGES_BIT: u8 = 0x80;
const REQUEST_MAGIC: [u8; 2] = *b"WD";
const REPLY_MAGIC: [u8; 2] = *b"Wd";

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DataOperation {
    /// Bytes of the object follow the reply; fewer than asked for only at its end.
    Read = 1,
    /// The bytes behind the header go to the offset. Safe to repeat.
    Write = 2,
    /// As `Write`, at the object's end; the reply's size tells where that is then. *Not* safe to repeat.
    Append = 3,
    /// The object's bytes are on the device.
    Sync = 4,
    /// Size and time only.
    Stat = 5,
    /// Pass a descriptor of the object's file with the reply (Unix sockets of one node). `bytes`: 1 for writing too.
    Descriptor = 6,
    /// The client lets the server read its memory: [`SharedMemory`] stands behind the request. Refused where the server
    /// cannot.
    Share = 7,
    // 8 and 9 were used by versions 6 to 10.
    /// The client's address for transfers that the server makes, and before it [`RDMA_PREFACE_BYTES`], stand behind the
    /// request; the server's address behind the reply, whose `size` is 0 where nobody but the sockets notices that the
    /// other side is gone. Refused where it cannot.
    OpenRdma = 10,
    /// Memory that the server may reach: `memory` has its address and number; its length ([`SHOWN_LENGTH_BYTES`]) and
    /// packed key stand behind the request. Without bytes behind it: it may not any more. Has no reply.
    ShowMemory = 11,
    /// The server gets the first 8 bytes of the memory that is named, and answers with them as the reply's `size`: what
    /// it got can be compared with what stands there. `written_bytes` is 1 where both share such memory.
    /// [`PROBE_TOLD_BYTES`] stand behind the request. Refused where it gets nothing.
    ProbeMemory = 12,
    /// The client has given up the connection that `id` names ([`crate::ConnectionId`]), of the session whose number
    /// stands for the inode, be it an earlier one of the client's: when this is answered, no further byte of a write on
    /// that connection lands. A connection that is unknown has ended.
    Revoke = 13,
    /// As `Stat`. The reply has 1 as bytes written if anybody has the object's file open or mapped, by a descriptor
    /// that was passed.
    IsHeld = 14,
    /// The client wants to read what the server lends: the server's [`SharedMemory`] stands behind the reply. Refused
    /// where it lends nothing.
    Lend = 15,
}

impl DataOperation {
    /// Returns the operation with this number on the wire.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::Append,
            4 => Self::Sync,
            5 => Self::Stat,
            6 => Self::Descriptor,
            7 => Self::Share,
            10 => Self::OpenRdma,
            11 => Self::ShowMemory,
            12 => Self::ProbeMemory,
            13 => Self::Revoke,
            14 => Self::IsHeld,
            15 => Self::Lend,
            _ => return None,
        })
    }

    /// Whether bytes of the object come back.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read)
    }

    /// Whether it is about the connection, and not about an object.
    pub fn is_about_connection(self) -> bool {
        matches!(self, Self::Share | Self::Lend | Self::OpenRdma | Self::ShowMemory | Self::ProbeMemory | Self::Revoke)
    }
}

/// Where memory is, for transports in which the server moves the data itself. All zero: the bytes are on the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BulkDescriptor {
    /// Virtual address at the client.
    pub address: u64,
    /// Number of the memory in this connection, as shown; 0: memory of a process on the server's machine.
    pub key: u32,
    /// Kind of memory: 0 main memory; others are for accelerators.
    pub memory_type: u32,
}

/// A data request's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRequest {
    pub operation: DataOperation,
    /// What is read or written stays in pages of the client's kernel, and no lease covers it: the server has them
    /// dropped before another client changes that range ([`crate::message::recall::DropPages`]).
    pub pages: bool,
    pub bytes: u32,
    pub id: u64,
    pub object: ObjectId,
    pub inode: InodeNumber,
    pub offset: u64,
    pub memory: BulkDescriptor,
    pub capability: Capability,
}

impl DataRequest {
    /// A request about the connection, with so many bytes behind it.
    pub fn about_nothing(operation: DataOperation, bytes: u32) -> Self {
        Self {
            operation,
            pages: false,
            bytes,
            id: 0,
            object: ObjectId::from_raw(0),
            inode: InodeNumber::from_raw(0),
            offset: 0,
            memory: BulkDescriptor::default(),
            capability: Capability::void(),
        }
    }

    /// A [`DataOperation::Revoke`] of a connection of this session.
    pub fn revoke(session: SessionId, connection: ConnectionId) -> Self {
        let inode = InodeNumber::from_raw(session.0);
        Self { id: connection.0, inode, ..Self::about_nothing(DataOperation::Revoke, 0) }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0u8; REQUEST_BYTES];
        out[0..2].copy_from_slice(&REQUEST_MAGIC);
        out[2] = PROTOCOL_VERSION;
        out[3] = self.operation as u8 | if self.pages { PAGES_BIT } else { 0 };
        out[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..24].copy_from_slice(&self.object.raw().to_le_bytes());
        out[24..32].copy_from_slice(&self.inode.raw().to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.memory.address.to_le_bytes());
        out[48..52].copy_from_slice(&self.memory.key.to_le_bytes());
        out[52..56].copy_from_slice(&self.memory.memory_type.to_le_bytes());
        out[56..120].copy_from_slice(&self.capability.to_bytes());
        out
    }

    /// Decodes and checks the header: lengths and offsets are within the limits afterwards.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Error> {
        let operation = DataOperation::from_number(bytes[3] & !PAGES_BIT).ok_or(Error::Malformed)?;
        let mut capability = [0u8; CAPABILITY_BYTES];
        capability.copy_from_slice(&bytes[56..120]);
        let request = Self {
            operation,
            pages: bytes[3] & PAGES_BIT != 0,
            bytes: u32_at(bytes, 4),
            id: u64_at(bytes, 8),
            object: ObjectId::from_raw(u64_at(bytes, 16)),
            inode: InodeNumber::from_raw(u64_at(bytes, 24)),
            offset: u64_at(bytes, 32),
            memory: BulkDescriptor {
                address: u64_at(bytes, 40),
                key: u32_at(bytes, 48),
                memory_type: u32_at(bytes, 52),
            },
            capability: Capability::from_bytes(&capability)?,
        };
        let end = request.offset.checked_add(u64::from(request.bytes)).ok_or(Error::Malformed)?;
        if bytes[0..2] != REQUEST_MAGIC || bytes[2] != PROTOCOL_VERSION {
            return Err(Error::Malformed);
        }
        if request.bytes > BULK_BYTES_MAX || end > FILE_BYTES_MAX {
            return Err(Error::Malformed);
        }
        if request.pages && !matches!(operation, DataOperation::Read | DataOperation::Write) {
            return Err(Error::Malformed);
        }
        if !request.announces_what_it_may() {
            return Err(Error::Malformed);
        }
        Ok(request)
    }

    /// Whether as many bytes stand behind a request about the connection as there may.
    fn announces_what_it_may(&self) -> bool {
        let bytes = self.bytes as usize;
        match self.operation {
            DataOperation::Share => bytes == SHARED_MEMORY_BYTES,
            DataOperation::ProbeMemory => bytes == PROBE_TOLD_BYTES,
            DataOperation::Revoke | DataOperation::Lend => bytes == 0,
            DataOperation::OpenRdma => {
                (RDMA_PREFACE_BYTES + 1..=RDMA_PREFACE_BYTES + RDMA_ADDRESS_BYTES_MAX).contains(&bytes)
            }
            DataOperation::ShowMemory => {
                bytes == 0 || (SHOWN_LENGTH_BYTES..=SHOWN_LENGTH_BYTES + RDMA_KEY_BYTES_MAX).contains(&bytes)
            }
            _ => true,
        }
    }

    /// Bytes that stand on the stream behind the header.
    pub fn bulk_bytes(&self) -> u32 {
        match self.operation {
            DataOperation::Share | DataOperation::OpenRdma | DataOperation::ShowMemory | DataOperation::ProbeMemory => {
                self.bytes
            }
            _ if self.memory.address == 0 => self.written_bytes(),
            _ => 0,
        }
    }

    /// Whether it may come as a message of the library that moves the bytes: nothing of it or of its reply is a stream.
    pub fn may_be_message(&self) -> bool {
        match self.operation {
            DataOperation::ShowMemory | DataOperation::ProbeMemory => true,
            DataOperation::Read | DataOperation::Write | DataOperation::Append => self.memory.key != 0,
            _ => false,
        }
    }

    /// Bytes that are to be written.
    pub fn written_bytes(&self) -> u32 {
        match self.operation {
            DataOperation::Write | DataOperation::Append => self.bytes,
            _ => 0,
        }
    }
}

/// What a process says of memory that it lets its peer read.
///
/// | offset | width | meaning |
/// | --- | --- | --- |
/// | 0 | 16 | seal: random bytes |
/// | 16 | 8 | address of the seal |
///
/// Whoever reads reads the seal too, after the rest: as long as it is in its place, what was read was lent. Its owner
/// breaks it before the memory becomes something else; a process that ended, or runs another program, has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedMemory {
    pub seal: [u8; 16],
    pub seal_address: u64,
}

impl SharedMemory {
    /// Encodes.
    pub fn encode(&self) -> [u8; SHARED_MEMORY_BYTES] {
        let mut out = [0u8; SHARED_MEMORY_BYTES];
        out[..16].copy_from_slice(&self.seal);
        out[16..].copy_from_slice(&self.seal_address.to_le_bytes());
        out
    }

    /// Decodes: any bytes are a value.
    pub fn decode(bytes: &[u8; SHARED_MEMORY_BYTES]) -> Self {
        let mut seal = [0; 16];
        seal.copy_from_slice(&bytes[..16]);
        Self { seal, seal_address: u64_at(bytes, 16) }
    }
}

/// Where the bytes of a read lie that the server lends.
///
/// | offset | width | meaning |
/// | --- | --- | --- |
/// | 0 | 8 | address of a word |
/// | 8 | 8 | what stands there as long as the bytes are lent |
/// | 16 | 16 each | a part: address, bytes |
///
/// The client copies the word behind the bytes, and behind it the seal of [`SharedMemory`]. The server changes the word
/// before the memory becomes something else; then the client asks again, without a place for lent bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LentBytes {
    pub word_address: u64,
    pub word: u64,
    /// In order; 1 to [`LENT_PARTS_MAX`], none of them empty.
    pub parts: Vec<LentPart>,
}

/// A part of lent bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentPart {
    pub address: u64,
    pub bytes: u64,
}

impl LentBytes {
    /// Bytes that all of them have.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Encodes.
    pub fn encode(&self) -> Vec<u8> {
        let parts = self.parts.iter().flat_map(|part| [part.address, part.bytes]);
        [self.word_address, self.word].into_iter().chain(parts).flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes what stands behind a reply that lends so many bytes.
    pub fn decode(encoded: &[u8], bulk_bytes: u32) -> Result<Self, Error> {
        let (head, parts) = encoded.split_at_checked(LENT_HEAD_BYTES).ok_or(Error::Malformed)?;
        let (parts, rest) = parts.as_chunks::<LENT_PART_BYTES>();
        let of = |part: &[u8; LENT_PART_BYTES]| LentPart { address: u64_at(part, 0), bytes: u64_at(part, 8) };
        if !rest.is_empty() || !(1..=LENT_PARTS_MAX).contains(&parts.len()) {
            return Err(Error::Malformed);
        }
        let parts: Vec<LentPart> = parts.iter().map(of).collect();
        if parts.iter().any(|part| part.bytes == 0 || part.bytes > u64::from(BULK_BYTES_MAX)) {
            return Err(Error::Malformed);
        }
        let lent = Self { word_address: u64_at(head, 0), word: u64_at(head, 8), parts };
        if lent.bytes() == u64::from(bulk_bytes) { Ok(lent) } else { Err(Error::Malformed) }
    }
}

/// A data reply's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataReply {
    /// 0: done; else as [`Error::to_data_status`].
    pub status: u16,
    pub id: u64,
    /// Parts in which the bytes are lent: [`LentBytes`] stand behind the header. 0: none are.
    pub lent_parts: u8,
    /// Bytes that stand on the stream behind the header, were put into the client's memory, or are lent.
    pub bulk_bytes: u32,
    /// With a descriptor: how much one call should write through it at most; 0: as much as it likes. Of a failed write:
    /// 0 if nothing of it is in the object.
    pub written_bytes: u32,
    pub size: u64,
    pub mtime: Timestamp,
}

impl DataReply {
    /// A reply that says why not.
    pub fn failed(id: u64, error: &Error) -> Self {
        Self { status: error.to_data_status(), id, ..Self::default() }
    }

    /// A reply to a write that failed after up to so many of its bytes had been written.
    pub fn torn(id: u64, error: &Error, written_bytes: u32) -> Self {
        Self { written_bytes, ..Self::failed(id, error) }
    }

    /// Returns true if the request failed and some bytes of it may be in the object.
    pub fn is_torn(&self) -> bool {
        self.status != 0 && self.written_bytes > 0
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0u8; REPLY_BYTES];
        out[0..2].copy_from_slice(&REPLY_MAGIC);
        out[2] = PROTOCOL_VERSION;
        out[3] = self.lent_parts;
        out[4..6].copy_from_slice(&self.status.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.bulk_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.written_bytes.to_le_bytes());
        out[24..32].copy_from_slice(&self.size.to_le_bytes());
        out[32..40].copy_from_slice(&self.mtime.0.to_le_bytes());
        out
    }

    /// Decodes and checks the header.
    pub fn decode(bytes: &[u8; REPLY_BYTES]) -> Result<Self, Error> {
        let reply = Self {
            status: u16::from_le_bytes([bytes[4], bytes[5]]),
            id: u64_at(bytes, 8),
            lent_parts: bytes[3],
            bulk_bytes: u32_at(bytes, 16),
            written_bytes: u32_at(bytes, 20),
            size: u64_at(bytes, 24),
            mtime: Timestamp(i64::from_le_bytes(u64_at(bytes, 32).to_le_bytes())),
        };
        let zeros = [bytes[6], bytes[7]];
        let is_lent = reply.lent_parts > 0;
        if bytes[0..2] != REPLY_MAGIC
            || bytes[2] != PROTOCOL_VERSION
            || zeros != [0; 2]
            || is_lent && (reply.status != 0 || usize::from(reply.lent_parts) > LENT_PARTS_MAX)
            || reply.bulk_bytes > BULK_BYTES_MAX
        {
            return Err(Error::Malformed);
        }
        Ok(reply)
    }

    /// Bytes of the [`LentBytes`] that stand behind the header; 0: none do.
    pub fn lent_bytes_length(&self) -> usize {
        match self.lent_parts {
            0 => 0,
            parts => LENT_HEAD_BYTES + usize::from(parts) * LENT_PART_BYTES,
        }
    }

    /// The reply as a result.
    pub fn result(&self) -> Result<&Self, Error> {
        if self.status == 0 { Ok(self) } else { Err(Error::from_data_status(self.status)) }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
