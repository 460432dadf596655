//! The store: a region of the address space for each object.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::Format;
use crate::ids::{Ids, RANGE};
use crate::layer::{Findings, Layer, Usage};
use crate::lock;
use crate::object::{Object, Shared, is_whole};
use crate::versions::{Cleaned, Keep, Versioned, Versions};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What an object keeps about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Its size and times, in a super block.
    Direct,
    /// Nothing: whoever uses the store knows.
    Plain,
}

/// Objects on a device. Shared by threads.
pub struct Store {
    layer: Arc<Layer>,
    ids: Ids,
    versions: Versions,
    /// Objects at hand: each of them is one for all who open it, and kept, since the device may not know its size.
    open: [Mutex<Open>; SHARDS],
}

#[derive(Default)]
struct Open {
    objects: HashMap<u64, Arc<Shared>>,
    /// When there are so many, those that nobody uses are let go.
    sweep_at: usize,
}

impl Store {
    /// Makes an empty store on a device.
    pub fn format(device: Arc<dyn Device>, format: Format) -> Result<Self> {
        Self::of(Layer::format(device, format)?, RANGE, false)
    }

    /// Opens the store on a device, as the last sync left it, or later.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_as(device, false)
    }

    pub(crate) fn open_as(device: Arc<dyn Device>, verified: bool) -> Result<Self> {
        Self::of(Layer::open_as(device, verified)?, RANGE, verified)
    }

    /// The same, with ranges of so many identifiers: the store's own record is written once for each.
    pub fn open_with_range(device: Arc<dyn Device>, range: u64) -> Result<Self> {
        if range == 0 {
            return Err(Error::Setting("a range of no identifiers".to_owned()));
        }
        Self::of(Layer::open(device)?, range, false)
    }

    fn of(layer: Layer, range: u64, verified: bool) -> Result<Self> {
        let ids = Ids::open(&layer, range)?;
        let layer = Arc::new(layer);
        let versions = Versions::open(&layer, verified)?;
        Ok(Self { layer, ids, versions, open: Default::default() })
    }

    /// Makes an object. It is there for certain after a sync.
    pub fn create(&self, kind: Kind) -> Result<Object> {
        let id = self.ids.take(&self.layer)?;
        self.keep(Object::make(&self.layer, id, kind)?)
    }

    /// An object that is there.
    pub fn object(&self, id: u64, kind: Kind) -> Result<Object> {
        self.address(id).ok_or(Error::NoObject)?;
        if let Some(shared) = lock(self.open_of(id)).objects.get(&id) {
            return Ok(Object::of_shared(Arc::clone(shared)));
        }
        let object = Object::open(&self.layer, id, kind)?;
        self.keep(object)
    }

    /// Makes an object that keeps versions. It is there for certain after a sync.
    pub fn create_versioned(&self) -> Result<Versioned> {
        self.versions.create(self.ids.take(&self.layer)?)
    }

    /// An object that keeps versions, and is there.
    pub fn versioned(&self, id: u64) -> Result<Versioned> {
        self.address(id).ok_or(Error::NoObject)?;
        self.versions.object(id)
    }

    /// Takes away the versions of all objects that are not to be kept, and frees what only they have.
    pub fn clean(&self, keep: &Keep) -> Result<Cleaned> {
        self.versions.clean(keep)
    }

    fn open_of(&self, id: u64) -> &Mutex<Open> {
        let [first, ..] = &self.open;
        // Threads work on ranges of identifiers.
        self.open.get((id / RANGE) as usize % SHARDS).unwrap_or(first)
    }

    /// Has it at hand, if nobody was faster: then that one counts.
    fn keep(&self, object: Object) -> Result<Object> {
        let mut open = lock(self.open_of(object.id()));
        if let Some(shared) = open.objects.get(&object.id()) {
            return Ok(Object::of_shared(Arc::clone(shared)));
        }
        if open.objects.len() >= open.sweep_at.max(OPEN_MAX) {
            let unused = |shared: &Arc<Shared>| Arc::strong_count(shared) == 1;
            for shared in open.objects.values().filter(|shared| unused(shared)) {
                shared.write_stat()?;
            }
            open.objects.retain(|_, shared| !unused(shared));
            open.sweep_at = open.objects.len() * 2;
        }
        open.objects.insert(object.id(), Arc::clone(object.shared()));
        Ok(object)
    }

    /// Whether there is such an object.
    pub fn exists(&self, id: u64) -> Result<bool> {
        self.address(id).map_or(Ok(false), |address| self.layer.is_mapped(address))
    }

    /// Where its region begins. `None`: no object can have this identifier.
    fn address(&self, id: u64) -> Option<u64> {
        let shift = u32::from(self.layer.region_shift());
        // The upper half of the addresses is the store's own.
        (id != 0 && id >> (63 - shift) == 0).then(|| id << shift)
    }

    /// Removes an object; its space is free after the next sync. `false`: it was not there.
    pub fn remove(&self, id: u64) -> Result<bool> {
        if !self.exists(id)? {
            return Ok(false);
        }
        if let Some(shared) = lock(self.open_of(id)).objects.remove(&id) {
            shared.remove();
        }
        self.versions.remove(id);
        let first = self.address(id).ok_or(Error::NoObject)?;
        self.layer.trim(first..first.saturating_add(self.region_bytes()))?;
        Ok(true)
    }

    /// All that was written, made and removed before is safe when this returns; sizes and times are when their object
    /// is synced.
    pub fn sync(&self) -> Result<()> {
        self.layer.sync()
    }

    /// Syncs everything, and leaves the store so that it is opened fast.
    pub fn close(&self) -> Result<()> {
        self.versions.checkpoint()?;
        for open in &self.open {
            lock(open).objects.values().try_for_each(|shared| shared.write_stat())?;
        }
        self.layer.close()
    }

    /// Looks through the whole store for what contradicts itself. Others should not write meanwhile.
    pub fn check(&self) -> Result<Findings> {
        self.layer.check(is_whole)
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        1 << self.layer.region_shift()
    }

    /// Space on the device.
    pub fn usage(&self) -> Usage {
        self.layer.usage()
    }

    /// The objects that keep versions.
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The object that a virtual block is of, and where in its region.
    pub(crate) fn where_is(&self, block: u64) -> (u64, u64) {
        let address = block * crate::BLOCK;
        let object = address >> self.layer.region_shift();
        (object, address - (object << self.layer.region_shift()))
    }

    /// The address space below.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }
}

/// Tables of objects at hand, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// Objects kept at hand in each. Beyond it those that nobody uses are let go.
const OPEN_MAX: usize = 256;
