//! The store: a region of the address space for each object.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::Format;
use crate::ids::{Ids, RANGE};
use crate::layer::{Layer, Usage};
use crate::lock;
use crate::object::{Object, Shared};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

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
    /// Objects at hand: each of them is one for all who open it.
    open: Mutex<HashMap<u64, Weak<Shared>>>,
}

impl Store {
    /// Makes an empty store on a device.
    pub fn format(device: Arc<dyn Device>, format: Format) -> Result<Self> {
        Self::of(Layer::format(device, format)?, RANGE)
    }

    /// Opens the store on a device, as the last sync left it, or later.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::of(Layer::open(device)?, RANGE)
    }

    /// The same, with ranges of so many identifiers: the store's own record is written once for each.
    pub fn open_with_range(device: Arc<dyn Device>, range: u64) -> Result<Self> {
        if range == 0 {
            return Err(Error::Setting("a range of no identifiers".to_owned()));
        }
        Self::of(Layer::open(device)?, range)
    }

    fn of(layer: Layer, range: u64) -> Result<Self> {
        let ids = Ids::open(&layer, range)?;
        Ok(Self { layer: Arc::new(layer), ids, open: Mutex::default() })
    }

    /// Makes an object. It is there for certain after a sync.
    pub fn create(&self, kind: Kind) -> Result<Object> {
        let id = self.ids.take(&self.layer)?;
        let object = Object::make(&self.layer, id, kind)?;
        self.note(&object);
        Ok(object)
    }

    /// An object that is there.
    pub fn object(&self, id: u64, kind: Kind) -> Result<Object> {
        if id == 0 || id >> (64 - u32::from(self.layer.region_shift())) != 0 {
            return Err(Error::NoObject);
        }
        if let Some(shared) = lock(&self.open).get(&id).and_then(Weak::upgrade) {
            return Ok(Object::of_shared(shared));
        }
        let object = Object::open(&self.layer, id, kind)?;
        // Another thread may have been faster: then its object is the one.
        let mut open = lock(&self.open);
        if let Some(shared) = open.get(&id).and_then(Weak::upgrade) {
            return Ok(Object::of_shared(shared));
        }
        open.insert(id, Arc::downgrade(object.shared()));
        Ok(object)
    }

    fn note(&self, object: &Object) {
        let mut open = lock(&self.open);
        if open.len() >= OPEN_SWEPT && open.len().is_power_of_two() {
            open.retain(|_, shared| shared.strong_count() > 0);
        }
        open.insert(object.id(), Arc::downgrade(object.shared()));
    }

    /// Whether there is such an object.
    pub fn exists(&self, id: u64) -> Result<bool> {
        if id == 0 || id >> (64 - u32::from(self.layer.region_shift())) != 0 {
            return Ok(false);
        }
        self.layer.is_mapped(id << self.layer.region_shift())
    }

    /// Removes an object; its space is free after the next sync. `false`: it was not there.
    pub fn remove(&self, id: u64) -> Result<bool> {
        if !self.exists(id)? {
            return Ok(false);
        }
        lock(&self.open).remove(&id);
        let (first, bytes) = (id << self.layer.region_shift(), 1u64 << self.layer.region_shift());
        self.layer.trim(first..first.saturating_add(bytes))?;
        Ok(true)
    }

    /// All that was done before is safe when this returns.
    pub fn sync(&self) -> Result<()> {
        self.layer.sync()
    }

    /// Syncs, and leaves the store so that it is opened fast.
    pub fn close(&self) -> Result<()> {
        self.layer.close()
    }

    /// Space on the device.
    pub fn usage(&self) -> Usage {
        self.layer.usage()
    }

    /// The address space below.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }
}

/// So many entries of objects at hand are looked through for those that nobody has any more.
const OPEN_SWEPT: usize = 4096;
