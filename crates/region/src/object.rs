//! Objects: bytes of one region.

use crate::address_space::AddressSpace;
use crate::decoder::{Decoder, sealed_block};
use crate::error::{Error, Result};
use crate::ids::Identity;
use crate::owner::{FilePart, Owner};
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::store::Kind;
use crate::{BLOCK, BLOCK_BYTES, as_index, lock};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC: &[u8; 8] = b"WEFTOBJ\0";
const BYTES: usize = 96;
const CHECKSUM_AT: usize = 8;
const MARK_AT: usize = 88;
const DIRECT: u32 = 1;

/// Size and times of an object that keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectStat {
    pub size: u64,
    pub modified: SystemTime,
    pub made: SystemTime,
}

/// An object at hand; clones are the same one.
#[derive(Clone)]
pub struct Object(Arc<Shared>);

pub(crate) struct Shared {
    layer: Arc<dyn AddressSpace>,
    id: u64,
    generation: u64,
    owner: Owner,
    mark: u64,
    /// Held by whoever appends.
    appending: Mutex<()>,
    /// Of objects with a super block.
    stat: Option<Mutex<Stat>>,
    /// Whether all bytes behind its size are zeros. Of an object that was opened nobody knows: after a crash, bytes
    /// that were written or cut without a sync of the object may be there. They are cut before it becomes longer.
    ends_in_zeros: AtomicBool,
    /// Not any more when it was removed: the region may be another object's then. Held to write.
    is_there: RwLock<bool>,
}

/// Size and times, and how far the device has them.
struct Stat {
    now: ObjectStat,
    /// Whether the super block on the device says the same.
    is_written: bool,
    /// Whether a sync has to come before the super block is written: bytes were cut off that a crash may bring back,
    /// and a larger size would show them.
    is_cut: bool,
}

impl Object {
    /// Makes it: with its first block it is there. `is_durable`: for certain when this returns, if it keeps its size.
    pub(crate) fn make(
        layer: &Arc<dyn AddressSpace>,
        new: Identity,
        kind: Kind,
        owner: Owner,
        is_durable: bool,
    ) -> Result<Self> {
        let now = SystemTime::now();
        let stat = ObjectStat { size: 0, modified: now, made: now };
        let mut first = SuperBlock { identity: new, owner, stat, mark: 0 };
        let address = new.id << layer.region_shift();
        if new.generation > 0 {
            layer.clear_region(new.id)?;
        }
        match kind {
            Kind::Direct if is_durable => {
                first.mark = layer.make_marked_block(address, &|mark| SuperBlock { mark, ..first }.encode())?;
            }
            Kind::Direct => layer.make_block(address, &first.encode())?,
            // A block of zeros.
            Kind::Plain => layer.make_block(address, &[])?,
        }
        Ok(Self(Arc::new(Shared::new(layer, first, kind, true))))
    }

    /// One that is there.
    pub(crate) fn open(layer: &Arc<dyn AddressSpace>, id: u64, kind: Kind) -> Result<Self> {
        let address = id << layer.region_shift();
        if !layer.is_mapped(address)? {
            return Err(Error::NoObject);
        }
        let found = match kind {
            Kind::Plain => SuperBlock::of_nothing(id),
            Kind::Direct => {
                let mut block = vec![0; BLOCK_BYTES];
                layer.read(address, &mut block)?;
                SuperBlock::decode(&block, id)
                    .ok_or_else(|| Error::Damaged(format!("the super block of object {id}")))?
            }
        };
        Ok(Self(Arc::new(Shared::new(layer, found, kind, false))))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    pub(crate) fn of_shared(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Its identifier, which is the number of its region.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Higher than of any object that had this identifier before; 0 also of one that keeps nothing about itself and was
    /// opened anew.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.0.owner
    }

    /// Whether it was not removed.
    pub fn is_there(&self) -> bool {
        self.0.there().is_ok()
    }

    /// Size and times. `None`: whoever uses the store keeps them.
    pub fn stat(&self) -> Option<ObjectStat> {
        self.0.stat.as_ref().map(|stat| lock(stat).now)
    }

    /// Where the last block ends that was written, as an offset: of an object that does not keep its size, nothing but
    /// zeros is behind it.
    pub fn data_end(&self) -> Result<u64> {
        let _there = self.0.there()?;
        let start = self.0.end(0);
        Ok(self.0.data_end(start, start)? - start)
    }

    /// The ranges of its bytes in which something was written, by whole blocks, in order: also behind its size, which
    /// the device knows as of the object's last sync.
    pub fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let _there = self.0.there()?;
        let start = self.0.end(0);
        let ranges = self.0.layer.data_ranges(start..self.0.region_end())?;
        Ok(ranges.into_iter().map(|range| range.start - start..range.end - start).collect())
    }

    /// Reads bytes whatever the object's size is: also what was written and not synced before a crash, as far as the
    /// log has it. Zeros where nothing was written.
    pub fn read_unsized(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let _there = self.0.there()?;
        self.0.layer.read(self.address(offset, into.len())?, into)
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> u64 {
        (1u64 << self.0.layer.region_shift()) - self.0.data_start()
    }

    /// The address of a range of its bytes.
    pub(crate) fn address(&self, offset: u64, bytes: usize) -> Result<u64> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.capacity()) {
            return Err(Error::Beyond);
        }
        Ok(self.0.first() + self.0.data_start() + offset)
    }

    /// Reads bytes; zeros where none were written. Returns how many the object has there, all of `into` where it does
    /// not keep its size. What of `into` is behind them is anything.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let _there = self.0.there()?;
        let have = match self.stat() {
            Some(stat) => as_index(stat.size.saturating_sub(offset)).min(into.len()),
            None => into.len(),
        };
        if have == 0 {
            return Ok(0);
        }
        // The device gives whole blocks: one that is the object's last is not copied, if there is room for all of it.
        let end = offset.saturating_add(have as u64);
        let whole = end.checked_next_multiple_of(BLOCK).unwrap_or(end) - offset;
        let whole = as_index(whole).min(into.len());
        let into = &mut into[..whole];
        self.0.layer.read(self.address(offset, into.len())?, into)?;
        Ok(have)
    }

    /// Writes bytes. Safe after [`Object::sync`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let address = self.address(offset, from.len())?;
        self.write_by(offset, from.len(), |layer| layer.write(address, from))
    }

    /// Does a write of so many bytes, and takes note of it.
    fn write_by(&self, offset: u64, bytes: usize, write: impl FnOnce(&dyn AddressSpace) -> Result<()>) -> Result<()> {
        let end = offset + bytes as u64;
        let there = self.0.there()?;
        self.0.prepare_end(end)?;
        let written = write(&*self.0.layer);
        if written.is_ok() {
            self.note_written(end);
        }
        drop(there);
        written.inspect_err(|_| self.0.forget_behind_end(end))
    }

    /// Writes bytes behind the last one of an object that keeps its size; returns where. Of several that append none
    /// comes between the bytes of another.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        let _alone = lock(&self.0.appending);
        let offset = self.stat().ok_or_else(keeps_no_size)?.size;
        self.write(offset, from)?;
        Ok(offset)
    }

    /// Writes bytes that are safe when this returns, with a larger size if the object keeps one. Whole blocks that were
    /// written before cost the device's own call, and no more.
    pub fn write_durable(&self, offset: u64, from: &[u8]) -> Result<()> {
        let end = offset.saturating_add(from.len() as u64);
        if self.stat().is_some_and(|stat| end > stat.size) {
            self.write(offset, from)?;
            return self.sync();
        }
        let address = self.address(offset, from.len())?;
        self.write_by(offset, from.len(), |layer| layer.write_durable(address, from))
    }

    fn note_written(&self, end: u64) {
        if let Some(stat) = &self.0.stat {
            let mut stat = lock(stat);
            stat.now.size = stat.now.size.max(end);
            stat.now.modified = SystemTime::now();
            stat.is_written = false;
        }
    }

    /// Cuts an object that keeps its size, or makes it longer by zeros. What was cut off never comes back: bytes that
    /// become part of the object again read zeros, also after a crash. A crash before the next sync leaves the earlier
    /// size with all that was there, or the new one (in a sparse file, the earlier size may be there with zeros).
    pub fn truncate(&self, size: u64) -> Result<()> {
        let stat = self.0.stat.as_ref().ok_or_else(keeps_no_size)?;
        if size > self.capacity() {
            return Err(Error::Beyond);
        }
        let _there = self.0.there()?;
        let mut stat = lock(stat);
        let now = ObjectStat { size, modified: SystemTime::now(), ..stat.now };
        if size < stat.now.size {
            // What may be behind the earlier size is looked for when the object becomes longer.
            let range = self.0.end(size)..self.0.end(stat.now.size);
            return self.0.cut(&mut stat, now, range);
        }
        if size > stat.now.size {
            self.0.cut_end(&mut stat, 0)?;
        }
        *stat = Stat { now, is_written: false, ..*stat };
        Ok(())
    }

    /// Its bytes, size and times are safe when this returns.
    pub fn sync(&self) -> Result<()> {
        self.write_stat()?;
        self.0.layer.sync()
    }

    /// Its size and times are safe with the next sync, of whatever.
    pub fn write_stat(&self) -> Result<()> {
        let _there = self.0.there()?;
        self.0.write_stat()
    }
}

impl Shared {
    fn new(layer: &Arc<dyn AddressSpace>, found: SuperBlock, kind: Kind, is_new: bool) -> Self {
        let SuperBlock { identity: Identity { id, generation }, owner, stat, mark } = found;
        let stat = Stat { now: stat, is_written: true, is_cut: false };
        let stat = (kind == Kind::Direct).then(|| Mutex::new(stat));
        let (appending, is_there, ends_in_zeros) = (Mutex::default(), RwLock::new(true), AtomicBool::new(is_new));
        Self { layer: Arc::clone(layer), id, generation, owner, mark, appending, stat, ends_in_zeros, is_there }
    }

    /// The address of its region.
    fn first(&self) -> u64 {
        self.id << self.layer.region_shift()
    }

    /// The address behind its region.
    fn region_end(&self) -> u64 {
        self.first() + (1u64 << self.layer.region_shift())
    }

    fn data_start(&self) -> u64 {
        if self.stat.is_some() { BLOCK } else { 0 }
    }

    /// The address of the byte behind so many.
    fn end(&self, size: u64) -> u64 {
        self.first() + self.data_start() + size
    }

    /// The super block, all of it.
    fn super_block(&self, stat: ObjectStat) -> Vec<u8> {
        let identity = Identity { id: self.id, generation: self.generation };
        let mut block = SuperBlock { identity, owner: self.owner, stat, mark: self.mark }.encode();
        block.resize(BLOCK_BYTES, 0);
        block
    }

    /// Nobody removes it as long as what this returns is there. An error: it was removed.
    pub fn there(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let there = self.is_there.read().unwrap_or_else(PoisonError::into_inner);
        if *there { Ok(there) } else { Err(Error::NoObject) }
    }

    /// Nobody reads or writes it any more.
    pub fn remove(&self) {
        *self.is_there.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Bytes of a write that failed may stand behind the end: they are not to be seen when the object becomes longer.
    fn forget_behind_end(&self, end: u64) {
        // Alone: what others have written there counts when they have taken note of it.
        let there = self.is_there.write().unwrap_or_else(PoisonError::into_inner);
        let Some(stat) = self.stat.as_ref().filter(|_| *there) else { return };
        let mut stat = lock(stat);
        if stat.now.size < end {
            // A device that fails here, too, has been told of already. It is tried again before the object is longer.
            self.ends_in_zeros.store(false, Ordering::Release);
            let _ = self.cut_end(&mut stat, end);
        }
    }

    /// Before bytes up to `end` become the object's: those behind its size are zeros.
    fn prepare_end(&self, end: u64) -> Result<()> {
        if self.ends_in_zeros.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(stat) = &self.stat else { return Ok(()) };
        let mut stat = lock(stat);
        if end > stat.now.size { self.cut_end(&mut stat, 0) } else { Ok(()) }
    }

    /// Cuts off what is behind the size, unless that is known to be zeros; also zeros that a write up to `written`
    /// left.
    fn cut_end(&self, stat: &mut Stat, written: u64) -> Result<()> {
        let (end, size) = (self.end(stat.now.size), stat.now.size);
        if !self.ends_in_zeros.load(Ordering::Acquire) {
            let edge_end = end.next_multiple_of(BLOCK);
            let data_end = self.data_end(edge_end, self.end(written))?;
            let start = if self.has_bytes_at_edge(end)? { end } else { edge_end };
            if start < data_end {
                self.cut(stat, ObjectStat { size, ..stat.now }, start..data_end)?;
            }
            self.ends_in_zeros.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Where the last byte of the region ends, from the beginning of a block on, that may not be zero, or that a write
    /// up to `written` left.
    fn data_end(&self, start: u64, written: u64) -> Result<u64> {
        let (data, written) = (self.layer.data_ranges(start..self.region_end())?, start..written.max(start));
        let written = self.layer.mapped_ranges(written)?;
        Ok([data.last(), written.last()].into_iter().flatten().map(|range| range.end).max().unwrap_or(start))
    }

    /// Whether there are bytes that are not zero from an address on, in the block that it is in, but not the first one.
    fn has_bytes_at_edge(&self, address: u64) -> Result<bool> {
        let mut rest = [0; BLOCK_BYTES];
        let bytes = as_index(address.next_multiple_of(BLOCK) - address);
        let rest = &mut rest[..bytes];
        match self.layer.read(address, rest) {
            // Nobody reads a block that does not fit its checksum, until all of it is written anew.
            Err(Error::Damaged(_)) => Ok(false),
            read => read.map(|()| rest.iter().any(|byte| *byte != 0)),
        }
    }

    /// Cuts off a range of addresses, and gives the object a size that does not reach behind its begin.
    fn cut(&self, stat: &mut Stat, now: ObjectStat, range: Range<u64>) -> Result<()> {
        let is_ordered = self.layer.cut((self.first(), &self.super_block(now)), &range)?;
        *stat = Stat { now, is_written: is_ordered, is_cut: stat.is_cut || !is_ordered };
        Ok(())
    }

    /// Has the device know size and times.
    pub fn write_stat(&self) -> Result<()> {
        let Some(stat) = &self.stat else { return Ok(()) };
        let mut stat = lock(stat);
        if !stat.is_written {
            if stat.is_cut {
                self.layer.sync()?;
                stat.is_cut = false;
            }
            self.layer.write(self.first(), &self.super_block(stat.now))?;
            stat.is_written = true;
        }
        Ok(())
    }
}

fn keeps_no_size() -> Error {
    Error::Setting("this object keeps no size".to_owned())
}

/// The first block of an object that keeps its size and times.
pub(crate) fn first_block(identity: Identity, owner: Owner, stat: ObjectStat) -> Vec<u8> {
    SuperBlock { identity, owner, stat, mark: 0 }.encode()
}

/// What an object keeps about itself.
#[derive(Clone, Copy)]
struct SuperBlock {
    identity: Identity,
    owner: Owner,
    stat: ObjectStat,
    /// Of a block that was written before the log said what it is ([`crate::layer`]); else 0.
    mark: u64,
}

impl SuperBlock {
    /// In place of one that is not there.
    fn of_nothing(id: u64) -> Self {
        let stat = ObjectStat { size: 0, modified: UNIX_EPOCH, made: UNIX_EPOCH };
        Self { identity: Identity { id, generation: 0 }, owner: Owner::default(), stat, mark: 0 }
    }

    /// The bytes that the block begins with; the rest is zeros.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&DIRECT.to_le_bytes());
        bytes.extend_from_slice(&self.identity.id.to_le_bytes());
        bytes.extend_from_slice(&self.stat.size.to_le_bytes());
        for time in [self.stat.modified, self.stat.made] {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            bytes.extend_from_slice(&since.as_secs().to_le_bytes());
            bytes.extend_from_slice(&since.subsec_nanos().to_le_bytes());
        }
        bytes.extend_from_slice(&self.identity.generation.to_le_bytes());
        bytes.extend_from_slice(&self.owner);
        bytes.extend_from_slice(&self.mark.to_le_bytes());
        seal(&mut bytes, CHECKSUM_AT);
        bytes
    }

    /// `None`: it is damaged, or of another object.
    fn decode(block: &[u8], id: u64) -> Option<Self> {
        let bytes = block.first_chunk::<BYTES>()?;
        let is_ours = bytes.starts_with(MAGIC) && u32_at(bytes, 12)? == DIRECT && u64_at(bytes, 16)? == id;
        let time = |at: usize| {
            let since = Duration::new(u64_at(bytes, at)?, u32_at(bytes, at + 8)?.min(999_999_999));
            UNIX_EPOCH.checked_add(since)
        };
        let stat = ObjectStat { size: u64_at(bytes, 24)?, modified: time(32)?, made: time(44)? };
        let identity = Identity { id, generation: u64_at(bytes, 56)? };
        let (owner, mark) = (bytes.get(64..)?.first_chunk().copied()?, u64_at(bytes, MARK_AT)?);
        (is_ours && seal_of(bytes, CHECKSUM_AT).is_some()).then_some(Self { identity, owner, stat, mark })
    }
}

/// The identifier of the object that begins with this block, if it has this mark.
pub(crate) fn marked(block: &[u8], mark: u64) -> Option<u64> {
    // Most blocks are something else.
    let id = u64_at(block, 16).filter(|_| u64_at(block, MARK_AT) == Some(mark))?;
    SuperBlock::decode(block, id).map(|found| found.identity.id)
}

/// Kind of an object, as its first block tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectKind {
    /// Keeps versions: [`Store::versioned`](crate::Store::versioned) opens it.
    Versioned,
    /// Keeps its size and times: [`Store::object`](crate::Store::object) opens it, as [`Kind::Direct`].
    Direct,
    /// Keeps nothing about itself: [`Kind::Plain`].
    Plain,
    /// Its super block is damaged: nobody opens it.
    Damaged,
}

/// Of what kind an object is that is there.
pub(crate) fn nature(layer: &dyn AddressSpace, id: u64) -> Result<ObjectKind> {
    let mut block = vec![0; BLOCK_BYTES];
    layer.read(id << layer.region_shift(), &mut block)?;
    Ok(if SuperBlock::decode(&block, id).is_some() {
        ObjectKind::Direct
    } else if crate::versions::is_super_block(&block, id) {
        ObjectKind::Versioned
    } else if block.starts_with(MAGIC) {
        ObjectKind::Damaged
    } else {
        ObjectKind::Plain
    })
}

/// What a block says if it is the super block of an object that keeps its size.
pub(crate) fn describe(block: &[u8]) -> Option<String> {
    let id = u64_at(block, 16)?;
    let SuperBlock { stat, owner, .. } = SuperBlock::decode(block, id)?;
    let owner = FilePart::of(owner).map_or(String::new(), |part| format!(" {part}"));
    Some(format!("object {id}, {} bytes{owner}", stat.size))
}

/// See [`crate::decoders`].
pub(crate) const DECODER: Decoder = Decoder {
    name: "region_object",
    example: || {
        let stat = ObjectStat { size: 5000, modified: UNIX_EPOCH, made: UNIX_EPOCH };
        first_block(Identity { id: 7, generation: 0 }, Owner::default(), stat)
    },
    seal: |bytes| sealed_block(bytes, BYTES, CHECKSUM_AT),
    decode: |block| {
        let _ = describe(block);
        SuperBlock::decode(block, u64_at(block, 16)?).map(|found| found.encode())
    },
};
