//! Objects: bytes of one region.

use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::sealed::{seal, seal_of, u32_at, u64_at};
use crate::store::Kind;
use crate::{BLOCK, BLOCK_BYTES, lock};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC: &[u8; 8] = b"WEFTOBJ\0";
const BYTES: usize = 64;
const CHECKSUM_AT: usize = 8;
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
    layer: Arc<Layer>,
    id: u64,
    /// Of objects with a super block; whether it is as the device has it.
    stat: Option<Mutex<(ObjectStat, bool)>>,
    /// Not any more when it was removed: the region may be another object's then. Held to write.
    is_there: RwLock<bool>,
}

impl Object {
    /// Makes it: with its first block it is there.
    pub(crate) fn make(layer: &Arc<Layer>, id: u64, kind: Kind) -> Result<Self> {
        let address = id << layer.region_shift();
        let stat = match kind {
            Kind::Plain => {
                layer.write_new(address, &[0; BLOCK_BYTES])?;
                None
            }
            Kind::Direct => {
                let now = SystemTime::now();
                let stat = ObjectStat { size: 0, modified: now, made: now };
                layer.write_new(address, &encode(id, stat))?;
                Some(Mutex::new((stat, true)))
            }
        };
        Ok(Self(Arc::new(Shared { layer: Arc::clone(layer), id, stat, is_there: RwLock::new(true) })))
    }

    /// One that is there.
    pub(crate) fn open(layer: &Arc<Layer>, id: u64, kind: Kind) -> Result<Self> {
        let address = id << layer.region_shift();
        if !layer.is_mapped(address)? {
            return Err(Error::NoObject);
        }
        let stat = match kind {
            Kind::Plain => None,
            Kind::Direct => {
                let mut block = vec![0; BLOCK_BYTES];
                layer.read(address, &mut block)?;
                let stat =
                    decode(&block, id).ok_or_else(|| Error::Damaged(format!("the super block of object {id}")))?;
                Some(Mutex::new((stat, true)))
            }
        };
        Ok(Self(Arc::new(Shared { layer: Arc::clone(layer), id, stat, is_there: RwLock::new(true) })))
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

    /// Size and times. `None`: whoever uses the store keeps them.
    pub fn stat(&self) -> Option<ObjectStat> {
        self.0.stat.as_ref().map(|stat| lock(stat).0)
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> u64 {
        (1u64 << self.0.layer.region_shift()) - self.data_start()
    }

    fn data_start(&self) -> u64 {
        if self.0.stat.is_some() { BLOCK } else { 0 }
    }

    /// The address of a range of its bytes.
    fn address(&self, offset: u64, bytes: usize) -> Result<u64> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.capacity()) {
            return Err(Error::Beyond);
        }
        Ok((self.0.id << self.0.layer.region_shift()) + self.data_start() + offset)
    }

    /// Reads bytes; zeros where none were written. Returns how many the object has there, all of `into` where it does
    /// not keep its size.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let have = match self.stat() {
            Some(stat) => usize::try_from(stat.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len()),
            None => into.len(),
        };
        let into = into.get_mut(..have).unwrap_or_default();
        self.0.layer.read(self.address(offset, have)?, into)?;
        Ok(have)
    }

    /// Writes bytes. Safe after [`Object::sync`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let _there = self.0.there()?;
        self.0.layer.write(self.address(offset, from.len())?, from)?;
        self.note_written(offset, from.len());
        Ok(())
    }

    /// Writes bytes that are safe when this returns, with a larger size if the object keeps one. Whole blocks that were
    /// written before cost the device's own call, and no more.
    pub fn write_durable(&self, offset: u64, from: &[u8]) -> Result<()> {
        let end = offset.saturating_add(from.len() as u64);
        if self.stat().is_some_and(|stat| end > stat.size) {
            self.write(offset, from)?;
            return self.sync();
        }
        let _there = self.0.there()?;
        self.0.layer.write_durable(self.address(offset, from.len())?, from)?;
        self.note_written(offset, from.len());
        Ok(())
    }

    fn note_written(&self, offset: u64, bytes: usize) {
        if let Some(stat) = &self.0.stat {
            let mut stat = lock(stat);
            stat.0.size = stat.0.size.max(offset + bytes as u64);
            stat.0.modified = SystemTime::now();
            stat.1 = false;
        }
    }

    /// Cuts an object that keeps its size, or makes it longer by zeros.
    pub fn truncate(&self, size: u64) -> Result<()> {
        let Some(stat) = &self.0.stat else { return Err(Error::Setting("this object keeps no size".to_owned())) };
        if size > self.capacity() {
            return Err(Error::Beyond);
        }
        let _there = self.0.there()?;
        let mut stat = lock(stat);
        if size < stat.0.size {
            let first = self.address(size, 0)?;
            self.0.layer.trim(first..first + (stat.0.size - size))?;
        }
        stat.0.size = size;
        stat.0.modified = SystemTime::now();
        stat.1 = false;
        Ok(())
    }

    /// Its bytes, size and times are safe when this returns.
    pub fn sync(&self) -> Result<()> {
        {
            let _there = self.0.there()?;
            self.0.write_stat()?;
        }
        self.0.layer.sync()
    }
}

impl Shared {
    /// An error: the object was removed.
    fn there(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let there = self.is_there.read().unwrap_or_else(PoisonError::into_inner);
        if *there { Ok(there) } else { Err(Error::NoObject) }
    }

    /// Nobody writes to it any more.
    pub fn remove(&self) {
        *self.is_there.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Has the device know size and times.
    pub fn write_stat(&self) -> Result<()> {
        let Some(stat) = &self.stat else { return Ok(()) };
        let mut stat = lock(stat);
        if !stat.1 {
            self.layer.write(self.id << self.layer.region_shift(), &encode(self.id, stat.0))?;
            stat.1 = true;
        }
        Ok(())
    }
}

fn encode(id: u64, stat: ObjectStat) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&DIRECT.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&stat.size.to_le_bytes());
    for time in [stat.modified, stat.made] {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        bytes.extend_from_slice(&since.as_secs().to_le_bytes());
        bytes.extend_from_slice(&since.subsec_nanos().to_le_bytes());
    }
    bytes.resize(BYTES, 0);
    seal(&mut bytes, CHECKSUM_AT);
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}

/// Whether the first block of an object is a whole super block, or none.
pub(crate) fn is_whole(layer: &Layer, id: u64) -> Result<bool> {
    let mut block = vec![0; BLOCK_BYTES];
    layer.read(id << layer.region_shift(), &mut block)?;
    Ok(!block.starts_with(MAGIC) || decode(&block, id).is_some() || crate::versions::is_super_block(&block, id))
}

/// What a block says if it is the super block of an object that keeps its size.
pub(crate) fn describe(block: &[u8]) -> Option<String> {
    let id = u64_at(block, 16)?;
    let stat = decode(block, id)?;
    Some(format!("object {id}, {} bytes", stat.size))
}

fn decode(block: &[u8], id: u64) -> Option<ObjectStat> {
    let bytes = block.first_chunk::<BYTES>()?;
    let is_ours = bytes.starts_with(MAGIC) && u32_at(bytes, 12)? == DIRECT && u64_at(bytes, 16)? == id;
    let time = |at: usize| {
        let since = Duration::new(u64_at(bytes, at)?, u32_at(bytes, at + 8)?.min(999_999_999));
        UNIX_EPOCH.checked_add(since)
    };
    let stat = ObjectStat { size: u64_at(bytes, 24)?, modified: time(32)?, made: time(44)? };
    (is_ours && seal_of(bytes, CHECKSUM_AT).is_some()).then_some(stat)
}
