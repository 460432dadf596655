//! The FUSE protocol's bytes (`include/uapi/linux/fuse.h`, version 7.44): requests decoded, replies encoded.

use weft_sim::kernel::Config;
use weft_sim::kernel::requests::{
    Access, Attributes, Change, Entry, Kind, Listed, NodeId, Notification, OpenFlags, Opened, Operation, RenameMode,
    Reply, Request,
};

/// What the reader of the device got.
#[derive(Debug)]
pub enum Incoming {
    Request(Request),
    Forgets(Vec<(NodeId, u64)>),
    Init {
        unique: u64,
    },
    /// Answered with ENOSYS; no part of the comparison.
    Unknown {
        unique: u64,
    },
    /// Not answered.
    Ignored,
}

const HEADER: usize = 40;

/// Reads little-endian fields one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u32(&mut self) -> u32 {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_le_bytes(head.try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        let (head, rest) = self.0.split_at(8);
        self.0 = rest;
        u64::from_le_bytes(head.try_into().unwrap())
    }

    fn skip(&mut self, bytes: usize) -> &mut Self {
        self.0 = &self.0[bytes..];
        self
    }

    fn name(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap();
        let name = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        name
    }

    fn rest(&self) -> &'a [u8] {
        self.0
    }
}

fn open_flags(bits: u32) -> OpenFlags {
    let access = match bits & 3 {
        0 => Access::Read,
        1 => Access::Write,
        _ => Access::ReadWrite,
    };
    OpenFlags {
        access,
        create: bits & 0o100 != 0,
        exclusive: bits & 0o200 != 0,
        truncate: bits & 0o1000 != 0,
        append: bits & 0o2000 != 0,
        direct: bits & 0o40000 != 0,
    }
}

/// Decodes one message of the kernel.
pub fn decode(message: &[u8]) -> Incoming {
    let mut header = Fields(message);
    let (_, opcode, unique, node) = (header.u32(), header.u32(), header.u64(), header.u64());
    let mut body = Fields(&message[HEADER..]);
    let operation = match opcode {
        1 => Operation::Lookup { name: body.name() },
        2 => return Incoming::Forgets(vec![(node, body.u64())]),
        3 => {
            let flags = body.u32();
            Operation::Getattr { fh: (flags & 1 != 0).then(|| body.skip(4).u64()) }
        }
        4 => setattr(&mut body),
        9 => {
            let mode = body.u32();
            Operation::Mkdir { mode: (mode & 0o7777) as u16, name: body.skip(4).name() }
        }
        10 => Operation::Unlink { name: body.name() },
        11 => Operation::Rmdir { name: body.name() },
        12 | 45 => {
            let new_parent = body.u64();
            let flags = if opcode == 45 { body.u32() } else { 0 };
            if opcode == 45 {
                body.skip(4);
            }
            let mode = match flags {
                0 => RenameMode::Replace,
                1 => RenameMode::NoReplace,
                _ => RenameMode::Exchange,
            };
            Operation::Rename { name: body.name(), new_parent, new_name: body.name(), mode }
        }
        13 => Operation::Link { inode: body.u64(), new_name: body.name() },
        14 => Operation::Open { flags: open_flags(body.u32()) },
        15 => {
            let (fh, offset, size, flags) = (body.u64(), body.u64(), body.u32(), body.u32());
            Operation::Read { fh, offset, size, has_owner: flags & 2 != 0 }
        }
        16 => {
            let (fh, offset, _, flags) = (body.u64(), body.u64(), body.u32(), body.u32());
            let data = body.skip(16).rest().to_vec();
            let [cached, has_owner, kill_privileges] = [1, 2, 4].map(|flag| flags & flag != 0);
            Operation::Write { fh, offset, data, cached, has_owner, kill_privileges }
        }
        18 => Operation::Release { fh: body.u64() },
        20 => Operation::Fsync { fh: body.u64(), data_only: body.u32() & 1 != 0 },
        25 => Operation::Flush { fh: body.u64() },
        26 => return Incoming::Init { unique },
        27 => Operation::Opendir,
        28 | 44 => Operation::Readdir { fh: body.u64(), offset: body.u64(), size: body.u32(), plus: opcode == 44 },
        29 => Operation::Releasedir { fh: body.u64() },
        35 => {
            let (flags, mode) = (body.u32(), body.u32());
            let name = body.skip(8).name();
            Operation::Create { flags: open_flags(flags), mode: (mode & 0o7777) as u16, name }
        }
        36 | 38 => return Incoming::Ignored,
        42 => {
            let count = body.u32();
            body.skip(4);
            return Incoming::Forgets((0..count).map(|_| (body.u64(), body.u64())).collect());
        }
        _ => return Incoming::Unknown { unique },
    };
    Incoming::Request(Request { unique, node, operation })
}

fn setattr(body: &mut Fields<'_>) -> Operation {
    let valid = body.u32();
    let (fh, size) = (body.skip(4).u64(), body.u64());
    let (mtime, ctime) = (body.skip(16).u64(), body.u64());
    let mode = body.skip(12).u32();
    let given = |bit: u32| valid & (1 << bit) != 0;
    Operation::Setattr(Change {
        fh: given(6).then_some(fh),
        mode: given(0).then_some((mode & 0o7777) as u16),
        size: given(3).then_some(size),
        mtime: given(5).then_some(mtime),
        ctime: given(10).then_some(ctime),
        kill_privileges: given(11),
    })
}

/// Writes little-endian fields.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn attributes(&mut self, attributes: &Attributes) -> &mut Self {
        let kind = if attributes.kind == Kind::Directory { 0o040_000 } else { 0o100_000 };
        for field in [attributes.ino, attributes.size, attributes.blocks] {
            self.u64(field);
        }
        for time in [attributes.atime, attributes.mtime, attributes.ctime] {
            self.u64(time);
        }
        for _ in 0..3 {
            self.u32(0);
        }
        self.u32(kind | u32::from(attributes.mode)).u32(attributes.nlink);
        self.u32(attributes.uid).u32(attributes.gid).u32(0).u32(4096).u32(0)
    }

    fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.u64(entry.node).u64(entry.generation);
        self.u64(entry.entry_ms / 1000).u64(entry.attributes_ms / 1000);
        self.u32(nanoseconds(entry.entry_ms)).u32(nanoseconds(entry.attributes_ms));
        self.attributes(&entry.attributes)
    }

    fn opened(&mut self, opened: &Opened, backing: u32) -> &mut Self {
        let flags = u32::from(opened.direct_io)
            | u32::from(opened.keep_cache) << 1
            | u32::from(opened.cache_dir) << 3
            | u32::from(opened.no_flush) << 5
            | u32::from(opened.parallel_direct_writes) << 6
            | u32::from(opened.passthrough.is_some()) << 7;
        self.u64(opened.fh).u32(flags).u32(backing)
    }

    fn listed(&mut self, listed: &Listed) {
        if let Some(entry) = &listed.entry {
            self.entry(entry);
        }
        let kind = if listed.kind == Kind::Directory { 4 } else { 8 };
        self.u64(listed.ino).u64(listed.next).u32(listed.name.len() as u32).u32(kind);
        self.0.extend(listed.name.as_bytes());
        while !self.0.len().is_multiple_of(8) {
            self.0.push(0);
        }
    }
}

fn nanoseconds(ms: u64) -> u32 {
    (ms % 1000) as u32 * 1_000_000
}

fn message(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let mut out = Out::default();
    out.u32(16 + body.len() as u32).u32(error as u32).u64(unique);
    out.0.extend(body);
    out.0
}

/// Encodes an error; 0 is success without a body.
pub fn encode_error(unique: u64, error: i32) -> Vec<u8> {
    message(unique, -error, &[])
}

/// Encodes a reply. `backing` is the kernel's number of a backing file.
pub fn encode(unique: u64, reply: &Reply, backing: u32) -> Vec<u8> {
    let mut out = Out::default();
    match reply {
        Reply::Done | Reply::Size(_) => {}
        Reply::Entry(entry) => {
            out.entry(entry);
        }
        Reply::Attributes { attributes, valid_ms } => {
            out.u64(valid_ms / 1000).u32(nanoseconds(*valid_ms)).u32(0).attributes(attributes);
        }
        Reply::Opened(opened) => {
            out.opened(opened, backing);
        }
        Reply::Created(entry, opened) => {
            out.entry(entry).opened(opened, backing);
        }
        Reply::Data(data) => out.0.extend(data),
        Reply::Written(count) => {
            out.u32(*count).u32(0);
        }
        Reply::Listing(entries) => entries.iter().for_each(|entry| out.listed(entry)),
    }
    message(unique, 0, &out.0)
}

/// Encodes a notification.
pub fn encode_notification(notification: &Notification) -> Vec<u8> {
    let mut out = Out::default();
    let code = match notification {
        Notification::InvalidateInode { node, offset, bytes } => {
            out.u64(*node).u64(*offset as u64).u64(*bytes as u64);
            2
        }
        Notification::InvalidateEntry { parent, name, expire_only } => {
            out.u64(*parent).u32(name.len() as u32).u32(u32::from(*expire_only));
            out.0.extend(name.as_bytes());
            out.0.push(0);
            3
        }
        Notification::Delete { parent, child, name } => {
            out.u64(*parent).u64(*child).u32(name.len() as u32).u32(0);
            out.0.extend(name.as_bytes());
            out.0.push(0);
            6
        }
        Notification::IncrementEpoch => 8,
        Notification::Store { node, offset, data } => {
            out.u64(*node).u64(*offset).u32(data.len() as u32).u32(0);
            out.0.extend(data);
            4
        }
        Notification::Grow { node, size } => {
            out.u64(*node).u64(*size - 1).u32(1).u32(0);
            out.0.push(0);
            4
        }
    };
    message(0, code, &out.0)
}

/// Encodes the answer to INIT.
pub fn encode_init(unique: u64, config: &Config) -> Vec<u8> {
    let flag = |set: bool, bit: u32| if set { 1_u64 << bit } else { 0 };
    let flags = flag(config.async_read, 0)
        | flag(config.atomic_o_trunc, 3)
        | flag(true, 5)
        | flag(config.auto_inval_data, 12)
        | flag(config.readdirplus, 13)
        | flag(config.readdirplus_auto, 14)
        | flag(config.async_dio, 15)
        | flag(config.writeback_cache, 16)
        | flag(config.parallel_dirops, 18)
        | flag(true, 22)
        | flag(config.explicit_inval_data, 25)
        | flag(config.handle_killpriv_v2, 28)
        | flag(true, 30)
        | flag(config.direct_io_allow_mmap, 36)
        | flag(config.passthrough, 37);
    let mut out = Out::default();
    out.u32(7).u32(44).u32(config.max_readahead_bytes).u32(flags as u32).u16(128).u16(96);
    out.u32(config.max_write_bytes).u32(1).u16((config.max_read_bytes / config.page_bytes) as u16).u16(0);
    out.u32((flags >> 32) as u32).u32(u32::from(config.passthrough));
    out.0.resize(64, 0);
    message(unique, 0, &out.0)
}
