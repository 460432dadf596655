//! The store: a region of the address space for each object.

use crate::address_space::AddressSpace;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::geometry::{Checksums, Format};
use crate::ids::{Ids, RANGE};
use crate::layer::{Findings, Layer, Usage};
use crate::object::{Object, ObjectKind, Shared, nature};
use crate::owner::Owner;
use crate::reuse::InMemory;
use crate::shadow::Shadow;
use crate::sparse::Sparse;
use crate::stream::Stream;
use crate::versions::{Cleaned, Keep, Versioned, Versions};
use crate::{BLOCK, lock};
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
///
/// What is safe after a power failure:
///
/// | call | what is safe when it returns |
/// | --- | --- |
/// | [`Object::sync`] | bytes, size and times of this object; also that it is there, and bytes of all others |
/// | [`Store::sync`] | bytes of all objects, and which were made and removed; **not** sizes and times |
/// | [`Object::write_stat`], then [`Store::sync`] | the same, with size and times of this object |
/// | [`Object::write_durable`] | these bytes, and the size if they made the object longer |
/// | [`Store::create_durable`] | that the object is there |
/// | [`Versioned::sync`] | all versions of this object, with their sizes |
/// | [`Store::close`] | everything, with all sizes |
///
/// So after a crash, an object whose bytes were synced and whose size was not has the size of its last
/// [`Object::sync`]. Bytes behind that are lost: they are cut off before the object becomes longer again.
///
/// ```
/// use std::sync::Arc;
/// use weft_region::{FileDevice, Format, Kind, ObjectKind, Store};
///
/// # fn main() -> weft_region::Result<()> {
/// # let path = std::env::temp_dir().join(format!("weft-region-doc-{}", std::process::id()));
/// let store = Store::format(Arc::new(FileDevice::create(&path, 64 << 20)?), Format::default())?;
/// let (one, other) = (store.create(Kind::Direct)?, store.create(Kind::Direct)?);
/// one.write(0, b"bytes and size are safe after sync")?;
/// one.sync()?;
/// // For many objects: the sizes of each, and one sync for all.
/// other.write(0, b"these, too")?;
/// other.write_stat()?;
/// store.sync()?;
/// store.create_versioned()?.write_durable(0, b"a version")?;
///
/// for id in store.list()? {
///     match store.kind_of(id)? {
///         Some(ObjectKind::Direct) => println!("{id}: {:?}", store.object(id, Kind::Direct)?.stat()),
///         Some(ObjectKind::Versioned) => println!("{id}: {:?}", store.versioned(id)?.newest()?),
///         Some(ObjectKind::Plain) => println!("{id}: keeps no size"),
///         Some(ObjectKind::Damaged) => println!("{id}: its super block is damaged"),
///         None => println!("{id}: was removed meanwhile"),
///     }
/// }
/// # std::fs::remove_file(&path).map_err(weft_region::Error::Pipe)
/// # }
/// ```
pub struct Store {
    layer: Arc<dyn AddressSpace>,
    ids: Ids,
    versions: Versions,
    /// Objects at hand: each of them is one for all who open it, and kept, since the device may not know its size.
    open: [Mutex<Open>; SHARDS],
}

/// Held while an object is opened or removed: whoever has it at hand knows of its removal.
#[derive(Default)]
struct Open {
    objects: HashMap<u64, Arc<Shared>>,
    /// When there are so many, those that nobody uses are let go.
    sweep_at: usize,
}

impl Store {
    /// Makes an empty store on a device.
    pub fn format(device: Arc<dyn Device>, format: Format) -> Result<Self> {
        Self::of(Arc::new(Layer::format(device, format)?), RANGE, false)
    }

    /// Makes an empty store in a sparse file of a host file system, which is as long as the host lets it be
    /// ([`FileDevice::create_sparse`](crate::FileDevice::create_sparse)). The host maps its blocks: what that promises,
    /// and what not, is in docs/region.md.
    pub fn format_sparse(file: Arc<dyn Device>, format: Format) -> Result<Self> {
        Self::of(Arc::new(Sparse::format(file, format)?), RANGE, false)
    }

    /// Opens the store on a device, of either form, as the last sync left it, or later.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_as(device, false)
    }

    /// The same, after the store has taken over what its device has become larger by: see [`Layer::grow`].
    pub fn grow(device: Arc<dyn Device>) -> Result<Self> {
        if Sparse::is_on(&*device) {
            let text = "a store in a sparse file has the space of its host: it is not made larger";
            return Err(Error::Setting(text.to_owned()));
        }
        Self::of(Arc::new(Layer::grow(device)?), RANGE, false)
    }

    /// Cuts off what is damaged so that everything else can be opened and written: the log before its first damaged
    /// record, and the versions of an object from a damaged commit on. `tell` is told what is damaged and what the
    /// repair costs, before anything is written. Nothing is written unless `done` is true, and nothing is told of a
    /// store that needs no repair.
    pub fn repair(device: Arc<dyn Device>, done: bool, tell: &mut dyn FnMut(String)) -> Result<()> {
        let mut is_needed = false;
        Self::repair_on(Shadow::new(Arc::clone(&device)), &mut |line| {
            is_needed = true;
            tell(line);
        })?;
        if done && is_needed { Self::repair_on(device, &mut |_| {}) } else { Ok(()) }
    }

    fn repair_on(device: Arc<dyn Device>, tell: &mut dyn FnMut(String)) -> Result<()> {
        if !Sparse::is_on(&*device) {
            Layer::repair(Arc::clone(&device), tell)?;
        }
        let layer = space_on(Arc::clone(&device), false)?;
        let mut ids = Vec::new();
        layer.each_region(&mut |id| {
            ids.push(id);
            Ok(())
        })?;
        if Ids::repair(&*layer, ids.last().copied().unwrap_or(0))? {
            tell(
                "damaged: what says which identifiers were given out: it is made anew, and nothing is lost".to_owned(),
            );
            layer.close()?;
        }
        drop(layer);
        let store = Self::open(device)?;
        for id in ids {
            match store.versions.repair(id, tell) {
                // Not of its commits: nothing that a repair can do.
                Err(Error::Damaged(_)) => {}
                repaired => drop(repaired?),
            }
        }
        store.close()
    }

    pub(crate) fn open_as(device: Arc<dyn Device>, verified: bool) -> Result<Self> {
        Self::of(space_on(device, verified)?, RANGE, verified)
    }

    /// The same, with ranges of so many identifiers: the store's own record is written once for each.
    pub fn open_with_range(device: Arc<dyn Device>, range: u64) -> Result<Self> {
        if range == 0 {
            return Err(Error::Setting("a range of no identifiers".to_owned()));
        }
        Self::of(space_on(device, false)?, range, false)
    }

    fn of(layer: Arc<dyn AddressSpace>, range: u64, verified: bool) -> Result<Self> {
        let ids = Ids::open(&*layer, range)?;
        let versions = Versions::open(&layer, verified)?;
        Ok(Self { layer, ids, versions, open: Default::default() })
    }

    /// Makes an object. It is there for certain after a sync.
    pub fn create(&self, kind: Kind) -> Result<Object> {
        self.make(kind, Owner::default(), false)
    }

    /// Makes one that keeps its size and times, and whose it is.
    pub fn create_for(&self, owner: Owner) -> Result<Object> {
        self.make(Kind::Direct, owner, false)
    }

    /// The same; it is there for certain when this returns. That costs one durable write, and no waiting for others who
    /// sync.
    pub fn create_durable(&self, owner: Owner) -> Result<Object> {
        self.make(Kind::Direct, owner, true)
    }

    fn make(&self, kind: Kind, owner: Owner, is_durable: bool) -> Result<Object> {
        if kind == Kind::Plain {
            self.ids.note_plain(&*self.layer)?;
        }
        let identity = self.ids.take(&*self.layer)?;
        if identity.generation > 0 {
            self.versions.forget_removed(identity.id).inspect_err(|_| self.ids.note_removed(identity.id))?;
        }
        let made = Object::make(&self.layer, identity, kind, owner, is_durable);
        // What cannot be taken away again keeps its identifier.
        let is_there = || self.exists(identity.id).unwrap_or(true);
        let object = made.inspect_err(|_| {
            if !is_there() {
                self.ids.note_removed(identity.id);
            }
        })?;
        Self::keep(&mut lock(self.open_of(object.id())), object)
    }

    /// An object that is there.
    pub fn object(&self, id: u64, kind: Kind) -> Result<Object> {
        self.address(id).ok_or(Error::NoObject)?;
        let mut open = lock(self.open_of(id));
        if let Some(shared) = open.objects.get(&id) {
            return Ok(Object::of_shared(Arc::clone(shared)));
        }
        Self::keep(&mut open, Object::open(&self.layer, id, kind)?)
    }

    /// Makes an object that keeps versions. It is there for certain after a sync.
    pub fn create_versioned(&self) -> Result<Versioned> {
        let identity = self.ids.take(&*self.layer)?;
        let made = self.versions.create(identity.id, identity.generation > 0);
        made.inspect_err(|_| self.ids.note_removed(identity.id))
    }

    /// An object that keeps versions, and is there.
    pub fn versioned(&self, id: u64) -> Result<Versioned> {
        self.address(id).ok_or(Error::NoObject)?;
        self.versions.object(id)
    }

    /// Takes away the versions of all objects that are not to be kept, and frees what only they have.
    pub fn clean(&self, keep: &Keep) -> Result<Cleaned> {
        self.versions.note_clean(self.versions.clean(keep))
    }

    /// The same for some objects, by turns, until so many bytes were freed or there is nothing to do: a step of who
    /// works ahead while there is room.
    pub fn clean_some(&self, keep: &Keep, bytes: u64) -> Result<Cleaned> {
        self.versions.note_clean(self.versions.clean_some(keep, bytes.div_ceil(BLOCK)))
    }

    /// Reads bytes of an object of this store piece by piece, the next of them on their way while one is used; zeros
    /// where none were written, and behind its end. `None`: the device reads only when it is waited for.
    pub fn stream(&self, object: &Object, offset: u64, bytes: u64) -> Option<Stream<'_>> {
        Stream::new(self.layer.mapped()?, object.clone(), offset..offset.saturating_add(bytes))
    }

    /// Whether [`Store::stream`] gives one, as far as is known without making it.
    pub fn streams(&self) -> bool {
        self.layer.mapped().is_some_and(Layer::has_slots)
    }

    /// Where bytes of an object of this store lie in memory of this process, up to its capacity. `None`: not all of
    /// them lie there, or some have to be compared or are to be written first.
    pub fn in_memory(&self, object: &Object, offset: u64, bytes: usize) -> Option<InMemory<'_>> {
        let layer = self.layer.mapped()?;
        let _there = object.shared().there().ok()?;
        layer.in_memory(object.address(offset, bytes).ok()?, bytes)
    }

    fn open_of(&self, id: u64) -> &Mutex<Open> {
        let [first, ..] = &self.open;
        // Threads work on batches of identifiers.
        self.open.get((id / RANGE) as usize % SHARDS).unwrap_or(first)
    }

    /// Has it at hand, if nobody was faster: then that one counts.
    fn keep(open: &mut Open, object: Object) -> Result<Object> {
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

    /// Kind of an object. `None`: there is no such object.
    pub fn kind_of(&self, id: u64) -> Result<Option<ObjectKind>> {
        if self.exists(id)? { nature(&*self.layer, id).map(Some) } else { Ok(None) }
    }

    /// Identifiers of all objects, ascending. Syncs the store first, so that all of them are there after a crash, too.
    /// Objects that others make or remove meanwhile may be among them or not.
    pub fn list(&self) -> Result<Vec<u64>> {
        self.sync()?;
        let mut ids = Vec::new();
        self.layer.each_region(&mut |id| {
            ids.push(id);
            Ok(())
        })?;
        Ok(ids)
    }

    /// Where its region begins. `None`: no object can have this identifier.
    fn address(&self, id: u64) -> Option<u64> {
        let shift = self.layer.region_shift();
        (id != 0 && id < self.layer.own().regions_end >> shift).then(|| id << shift)
    }

    /// Removes an object; its space is free after the next sync, and its identifier may be another's then. `false`: it
    /// was not there.
    pub fn remove(&self, id: u64) -> Result<bool> {
        let Some(first) = self.address(id) else { return Ok(false) };
        let mut open = lock(self.open_of(id));
        if !self.layer.is_mapped(first)? {
            return Ok(false);
        }
        if let Some(shared) = open.objects.remove(&id) {
            shared.remove();
        }
        let is_known = self.ids.is_known(id);
        self.versions.remove(id, || self.layer.trim(first..first.saturating_add(self.region_bytes())))?;
        if is_known {
            self.ids.note_removed(id);
        }
        Ok(true)
    }

    /// Removes all objects, for certain when this returns. Those without versions go at once: after a power failure all
    /// of them are there, or none (in a sparse file: any of them). Nobody should make objects meanwhile.
    pub fn remove_all(&self) -> Result<()> {
        self.versions.checkpoint()?;
        for id in self.versions.known_ids()? {
            self.remove(id)?;
        }
        let mut all: Vec<_> = self.open.iter().map(lock).collect();
        all.iter_mut().flat_map(|open| open.objects.drain()).for_each(|(_, shared)| shared.remove());
        self.layer.sweep()?;
        self.ids.forget_all();
        Ok(())
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> Result<bool> {
        self.layer.is_empty()
    }

    /// All that was written, made and removed before is safe when this returns, but no sizes and times: those are when
    /// their object is synced, or after [`Object::write_stat`] before this. The device then also knows of the newest
    /// versions that they are safe: damaged ones are no longer taken for torn ones.
    pub fn sync(&self) -> Result<()> {
        self.layer.want_confirmed();
        self.ids.sync(&*self.layer)
    }

    /// Syncs everything, also sizes and times, and leaves the store so that it is opened fast.
    pub fn close(&self) -> Result<()> {
        self.versions.checkpoint()?;
        for open in &self.open {
            lock(open).objects.values().try_for_each(|shared| shared.write_stat())?;
        }
        self.layer.close()
    }

    /// Looks through the whole store for what contradicts itself. Others should not write meanwhile.
    pub fn check(&self) -> Result<Findings> {
        let has_plain = self.ids.has_plain();
        self.layer.check(&mut |id| match nature(&*self.layer, id)? {
            ObjectKind::Damaged => Ok(false),
            // Where no such object was ever made it is one whose superblock is other bytes altogether.
            ObjectKind::Plain => Ok(has_plain),
            _ => Ok(true),
        })
    }

    /// How often work in the background has failed since the store was opened. Each failure is logged, too
    /// (`tracing`).
    pub fn failures(&self) -> Failures {
        self.versions.failures()
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        1 << self.layer.region_shift()
    }

    /// What has checksums.
    pub fn checksums(&self) -> Checksums {
        self.layer.checksums()
    }

    /// Space on the device.
    pub fn usage(&self) -> Usage {
        self.layer.usage()
    }

    /// Has an identifier that was given elsewhere for an object, with a generation: nobody is given it here. Where its
    /// region begins, in which nothing is any more. Nobody should make objects meanwhile.
    pub(crate) fn reserve(&self, id: u64, generation: u64) -> Result<u64> {
        let too_large =
            || Error::OtherObject(format!("this store has no region for object {id}: its regions are too large"));
        let address = self.address(id).ok_or_else(too_large)?;
        self.ids.reserve(&*self.layer, id, generation)?;
        self.layer.trim(address..address.saturating_add(self.region_bytes()))?;
        self.versions.forget_removed(id)?;
        Ok(address)
    }

    /// An object without a superblock comes.
    pub(crate) fn note_plain(&self) -> Result<()> {
        self.ids.note_plain(&*self.layer)
    }

    /// The objects that keep versions.
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The address space below.
    pub fn layer(&self) -> &dyn AddressSpace {
        &*self.layer
    }
}

/// What is on a device: the mapped layer, or a sparse file.
fn space_on(device: Arc<dyn Device>, verified: bool) -> Result<Arc<dyn AddressSpace>> {
    Ok(if Sparse::is_on(&*device) {
        Arc::new(Sparse::open(device)?)
    } else {
        Arc::new(Layer::open_as(device, verified)?)
    })
}

/// Tables of objects at hand, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// Objects kept at hand in each. Beyond it those that nobody uses are let go.
const OPEN_MAX: usize = 256;
