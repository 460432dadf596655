//! The region store behind a node: an object is a region of a block device, or of a file that was set aside for it.
//!
//! Objects have names that others choose; which region has which is kept in memory, as all metadata is, and stands in
//! the super block of each ([`weft_region::Owner`]). Bytes never go through the page cache: the object reads and writes
//! whole blocks itself, and no descriptor is passed.
//!
//! Invariant: what an earlier node left is not touched. A store that holds objects is refused, with what to do; a node
//! that ends in order leaves its store empty.
//! On a crash: the store is whole, with objects that nobody knows the files of.

use crate::store::{BlockObject, ObjectHandle, ObjectStat, ObjectStore, Segment, WritePlan, is_listed, lock};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, InodeNumber, ObjectId, Result, Timestamp};
use weft_region::{FileDevice, Format, Object, Owner, Store};

/// Regions of stores that are made here are 2 to this bytes, 1 TiB: so long can a file be. There are 16 million of
/// them, and so many objects. 64 GiB would be too short for files of large devices; 16 TiB leave a million objects,
/// too few for small files.
pub const REGION_SHIFT: u8 = 40;
/// Tables of names, so that threads seldom wait for each other.
const SHARDS: usize = 16;

type Name = (InodeNumber, ObjectId);
type Names = HashMap<Name, Object>;

/// Objects as regions.
pub struct RegionStore {
    /// Where it is, for people.
    place: String,
    /// Number of the device; one of its own for a file, which has its space set aside.
    device: u64,
    store: Store,
    /// Held while an object is made or removed. All are at hand, with their sizes: the device is told when one is
    /// synced, and not each time that one is let go.
    names: [Mutex<Names>; SHARDS],
    objects: AtomicU64,
    /// Space was given up since the last sync.
    is_unsettled: Arc<AtomicBool>,
    is_closed: AtomicBool,
}

impl RegionStore {
    /// The store on a block device, or whatever else has one. An error names the place, and what to do.
    pub fn on_device(path: &Path) -> io::Result<Self> {
        Self::open(path, format!("device:{}", path.display()))
    }

    /// The store in a file, which is made with so many bytes when it is not there.
    pub fn in_file(path: &Path, size: Option<u64>) -> io::Result<Self> {
        if !path.try_exists()? {
            let size = size.ok_or_else(|| {
                explain(path, "is not there, and no size is given", "give the size of the file: --store file:DIR:SIZE")
            })?;
            // Nothing is left of a file that could not become a store.
            Self::make(path, size).inspect_err(|_| drop(std::fs::remove_file(path)))?;
        }
        Self::open(path, format!("file:{}", path.display()))
    }

    fn make(path: &Path, size: u64) -> io::Result<()> {
        let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
        let made = FileDevice::create(path, size).and_then(|device| Store::format(Arc::new(device), format));
        made.and_then(|store| store.close()).map_err(|error| explain_error(path, &error))
    }

    fn open(path: &Path, place: String) -> io::Result<Self> {
        let opened = FileDevice::open(path).and_then(|device| Store::open(Arc::new(device)));
        let store = opened.map_err(|error| explain_error(path, &error))?;
        if !store.is_empty().map_err(|error| explain_error(path, &error))? {
            let remedy = format!("when nobody misses them: weft store format --overwrite {}", path.display());
            return Err(explain(path, "holds objects of an earlier run", &remedy));
        }
        let unused = store.usage().unused;
        if unused > 0 {
            tracing::info!("{place} is {unused} bytes larger than its store: `weft store grow` takes them in");
        }
        let file = std::fs::metadata(path)?;
        let is_device = file.file_type().is_block_device();
        // Of a file, one that no device has: those are of 32 bits.
        let device = if is_device { file.rdev() } else { file.dev().rotate_left(32) ^ file.ino() | 1 << 63 };
        Ok(Self {
            place,
            device,
            store,
            names: Default::default(),
            objects: AtomicU64::new(0),
            is_unsettled: Arc::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    fn names_with(&self, object: ObjectId) -> &Mutex<Names> {
        let [first, ..] = &self.names;
        self.names.get(object.sequence() as usize % SHARDS).unwrap_or(first)
    }

    fn object(&self, name: Name, create: bool) -> Result<Object> {
        let mut names = lock(self.names_with(name.1));
        if let Some(object) = names.get(&name) {
            return Ok(object.clone());
        }
        if !create || self.is_closed.load(Ordering::Acquire) {
            return Err(Error::NoObject);
        }
        let object = self.store.create_for(owner_of(name)).map_err(refused)?;
        names.insert(name, object.clone());
        self.objects.fetch_add(1, Ordering::Relaxed);
        Ok(object)
    }
}

impl ObjectStore for RegionStore {
    fn open(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<dyn ObjectHandle>> {
        let object = self.object((inode, object), create)?;
        Ok(Arc::new(RegionObject { object, is_unsettled: Arc::clone(&self.is_unsettled) }))
    }

    fn remove(&self, inode: InodeNumber, object: ObjectId) -> Result<bool> {
        let mut names = lock(self.names_with(object));
        let Some(found) = names.get(&(inode, object)) else { return Ok(false) };
        let was_there = self.store.remove(found.id()).map_err(refused)?;
        names.remove(&(inode, object));
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.is_unsettled.store(true, Ordering::Release);
        Ok(was_there)
    }

    fn list(&self, runs: &[(ObjectId, u32)]) -> Result<Vec<(InodeNumber, ObjectId)>> {
        let listed = |names: &Mutex<Names>| -> Vec<Name> {
            lock(names).keys().filter(|(_, object)| is_listed(runs, *object)).copied().collect()
        };
        Ok(self.names.iter().flat_map(listed).collect())
    }

    fn space(&self) -> Result<Space> {
        let usage = self.store.usage();
        let objects = self.objects.load(Ordering::Relaxed);
        Ok(Space {
            total: usage.total,
            free: usage.free,
            reserve: 0,
            objects,
            device: self.device,
            device_free: usage.free,
        })
    }

    fn settle(&self) {
        if self.is_unsettled.swap(false, Ordering::AcqRel)
            && let Err(error) = self.store.sync()
        {
            // Whoever needs the space tries again, and is told.
            tracing::warn!(%error, "{}: what was removed is not free yet", self.place);
            self.is_unsettled.store(true, Ordering::Release);
        }
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        let mut objects: Vec<u64> =
            self.names.iter().flat_map(|names| std::mem::take(&mut *lock(names))).map(|(_, one)| one.id()).collect();
        // In the order in which the map has them.
        objects.sort_unstable();
        objects.into_iter().try_for_each(|id| self.store.remove(id).map(|_| ())).map_err(refused)?;
        self.store.close().map_err(refused)
    }

    fn describe(&self) -> String {
        self.place.clone()
    }
}

/// An object at hand.
struct RegionObject {
    object: Object,
    /// Of its store.
    is_unsettled: Arc<AtomicBool>,
}

impl RegionObject {
    fn there(&self) -> Result<&Object> {
        if self.object.is_there() { Ok(&self.object) } else { Err(Error::NoObject) }
    }
}

impl ObjectHandle for RegionObject {
    fn stat(&self) -> Result<ObjectStat> {
        let stat = self.there()?.stat().ok_or(Error::NoObject)?;
        let since = stat.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Ok(ObjectStat { size: stat.size, mtime: Timestamp::from_parts(seconds, since.subsec_nanos()) })
    }

    fn read_plan(&self, offset: u64, bytes: u32) -> Result<(Segment<'_>, ObjectStat)> {
        let stat = self.stat()?;
        let bytes = u64::from(bytes).min(stat.size.saturating_sub(offset));
        Ok((Segment::Blocks { object: self, offset, bytes }, stat))
    }

    fn write_plan(&self, offset: u64, bytes: u32) -> Result<WritePlan<'_>> {
        let end = offset.checked_add(u64::from(bytes)).ok_or(Error::FileTooLarge)?;
        if end > self.there()?.capacity() {
            return Err(Error::FileTooLarge);
        }
        Ok(WritePlan::Blocks { object: self, offset: Some(offset) })
    }

    fn append_plan(&self, _bytes: u32) -> Result<WritePlan<'_>> {
        self.there()?;
        Ok(WritePlan::Blocks { object: self, offset: None })
    }

    fn truncate(&self, size: u64) -> Result<ObjectStat> {
        self.object.truncate(size).map_err(refused)?;
        self.is_unsettled.store(true, Ordering::Release);
        self.stat()
    }

    fn sync(&self) -> Result<()> {
        self.object.sync().map_err(refused)
    }
}

impl BlockObject for RegionObject {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let have = self.object.read(offset, into).map_err(refused)?;
        into.get_mut(have..).unwrap_or_default().fill(0);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.object.write(offset, from).map_err(refused)
    }

    fn append(&self, from: &[u8]) -> Result<()> {
        self.object.append(from).map(|_| ()).map_err(refused)
    }
}

fn owner_of((inode, object): Name) -> Owner {
    let mut owner = Owner::default();
    let (first, second) = owner.split_at_mut(size_of::<u64>());
    first.copy_from_slice(&inode.raw().to_le_bytes());
    second.copy_from_slice(&object.raw().to_le_bytes());
    owner
}

/// What a client is told.
fn refused(error: weft_region::Error) -> Error {
    use weft_region::Error as Region;
    match error {
        Region::NoSpace | Region::MapFull => Error::NoSpace,
        Region::Beyond => Error::FileTooLarge,
        Region::NoObject => Error::NoObject,
        error => {
            tracing::error!(%error, "the region store");
            let errno = if let Region::Device { source, .. } = &error { source.raw_os_error() } else { None };
            Error::Device(errno.unwrap_or(weft_protocol::error::errno::EIO))
        }
    }
}

fn explain(path: &Path, what: &str, remedy: &str) -> io::Error {
    io::Error::other(format!("{}: {what}\n  remedy: {remedy}", path.display()))
}

fn explain_error(path: &Path, error: &weft_region::Error) -> io::Error {
    use weft_region::Error as Region;
    let there = path.display();
    let remedy = match error {
        Region::NoStore(_) => format!("`weft store format {there}` makes one, when nothing is on it"),
        Region::InUse => format!("a store is one node's: end the process that has it (`fuser {there}` names it)"),
        Region::TooSmall(..) | Region::NoSpace => "give another size, or another place".to_owned(),
        Region::Damaged(_) => format!("`weft store check {there}` says more"),
        Region::Shrunk(_, bytes) => format!("make it as large as it was, {bytes} bytes"),
        _ => "give a device or file that you may read and write".to_owned(),
    };
    explain(path, &error.to_string(), &remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use weft_protocol::NodeId;
    use weft_region::Kind;

    const BYTES: u64 = 32 << 20;

    struct Ground(PathBuf);

    impl Ground {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weft-store-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Self(path)
        }

        fn store(&self) -> RegionStore {
            RegionStore::in_file(&self.0, Some(BYTES)).unwrap()
        }

        fn refused(&self) -> String {
            RegionStore::in_file(&self.0, Some(BYTES)).err().unwrap().to_string()
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn object(sequence: u64) -> ObjectId {
        ObjectId::new(NodeId(2), sequence)
    }

    fn write(handle: &dyn ObjectHandle, offset: u64, bytes: &[u8]) -> Result<()> {
        match handle.write_plan(offset, u32::try_from(bytes.len()).unwrap())? {
            WritePlan::Blocks { object, offset } => object.write_at(offset.unwrap(), bytes),
            WritePlan::File(_) => panic!("a file"),
        }
    }

    fn read(handle: &dyn ObjectHandle, offset: u64, bytes: u32) -> Vec<u8> {
        let Segment::Blocks { object, offset, bytes } = handle.read_plan(offset, bytes).unwrap().0 else {
            panic!("no blocks")
        };
        let mut into = vec![9; usize::try_from(bytes).unwrap()];
        object.read_at(offset, &mut into).unwrap();
        into
    }

    #[test]
    fn an_object_is_what_was_written_with_zeros_between() {
        let ground = Ground::new("object");
        let store = ground.store();
        assert_eq!(store.open(InodeNumber::ROOT, object(1), false).err(), Some(Error::NoObject));
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        let before = handle.stat().unwrap();
        write(&*handle, 10_000, &[7; 5000]).unwrap();
        let again = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        assert_eq!(again.stat().unwrap().size, 15_000);
        assert!(again.stat().unwrap().mtime >= before.mtime && before.mtime > Timestamp::from_parts(1 << 30, 0));
        assert!(read(&*again, 0, 20_000) == [vec![0; 10_000], vec![7; 5000]].concat());
        assert_eq!(again.truncate(12_000).unwrap().size, 12_000);
        assert_eq!(again.truncate(14_000).unwrap().size, 14_000);
        assert!(read(&*again, 11_000, 5000) == [vec![7; 1000], vec![0; 2000]].concat());
        let (planned, _) = again.read_plan(10_000, 4000).unwrap();
        again.truncate(10_100).unwrap();
        let Segment::Blocks { object, offset, .. } = planned else { panic!("no blocks") };
        let mut into = [9; 4000];
        object.read_at(offset, &mut into).unwrap();
        assert!(into == *[vec![7; 100], vec![0; 3900]].concat(), "cut since it was planned");
        assert_eq!(write(&*again, (1 << REGION_SHIFT) - 4, &[1; 5000]), Err(Error::FileTooLarge));
        assert_eq!(again.truncate(1 << REGION_SHIFT).err(), Some(Error::FileTooLarge));
        assert!(again.descriptor(false).is_none() && again.windows().is_none());
        handle.sync().unwrap();
    }

    #[test]
    fn objects_are_counted_listed_and_removed_and_their_space_is_free_when_it_settles() {
        let ground = Ground::new("removed");
        let store = ground.store();
        let empty = store.space().unwrap();
        for sequence in [1, 4, 5, 6, 300] {
            let handle = store.open(InodeNumber::ROOT, object(sequence), true).unwrap();
            write(&*handle, 0, &[1; 1 << 20]).unwrap();
        }
        let full = store.space().unwrap();
        assert!(full.free <= empty.free - (5 << 20) && full.objects == 5 && full.total == empty.total);
        let mut listed = store.list(&[(object(4), 2), (object(300), 7)]).unwrap();
        listed.sort_unstable();
        assert_eq!(listed, [4, 5, 300].map(|sequence| (InodeNumber::ROOT, object(sequence))));
        let handle = store.open(InodeNumber::ROOT, object(4), false).unwrap();
        for sequence in [1, 4, 5, 6, 300] {
            assert_eq!(store.remove(InodeNumber::ROOT, object(sequence)), Ok(true));
            assert_eq!(store.remove(InodeNumber::ROOT, object(sequence)), Ok(false));
        }
        assert_eq!(handle.stat().err(), Some(Error::NoObject));
        assert_eq!(write(&*handle, 0, b"late"), Err(Error::NoObject));
        store.settle();
        let now = store.space().unwrap();
        assert_eq!((now.objects, empty.free - now.free), (0, 4096), "but for the store's own record");
    }

    #[test]
    fn a_full_store_says_so_and_has_room_after_a_removal() {
        let ground = Ground::new("full");
        let store = ground.store();
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        let piece = vec![3; 1 << 20];
        let written = (0..64).take_while(|number| write(&*handle, number << 20, &piece).is_ok()).count();
        assert!((10..32).contains(&written), "{written}");
        assert_eq!(write(&*handle, 40 << 20, &piece), Err(Error::NoSpace));
        assert_eq!(handle.stat().unwrap().size, (written as u64) << 20, "what was refused is not counted");
        assert!(read(&*handle, 0, 1 << 20) == piece);
        let other = store.open(InodeNumber::ROOT, object(2), true);
        assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
        drop(other);
        let other = store.open(InodeNumber::ROOT, object(2), true).unwrap();
        write(&*other, 0, &piece).unwrap();
    }

    #[test]
    fn what_is_there_is_not_touched() {
        let ground = Ground::new("there");
        std::fs::write(&ground.0, vec![5; usize::try_from(BYTES).unwrap()]).unwrap();
        assert!(ground.refused().contains("weft store format"), "{}", ground.refused());
        assert!(std::fs::read(&ground.0).unwrap().iter().all(|byte| *byte == 5));
        std::fs::remove_file(&ground.0).unwrap();
        let none = RegionStore::in_file(&ground.0, None).err().unwrap().to_string();
        assert!(none.contains("no size") && none.contains("remedy: "), "{none}");
        let store = ground.store();
        drop(store);
        let resize = |bytes| std::fs::File::options().write(true).open(&ground.0)?.set_len(bytes);
        resize(BYTES / 2).unwrap();
        assert!(
            ground.refused().contains(&format!("make it as large as it was, {BYTES} bytes")),
            "{}",
            ground.refused()
        );
        resize(BYTES * 2).unwrap();
        drop(ground.store());
        std::fs::remove_file(&ground.0).unwrap();
        let small = RegionStore::in_file(&ground.0, Some(1 << 20)).err().unwrap().to_string();
        assert!(small.contains("too few") && !ground.0.exists(), "{small}");

        let store = ground.store();
        assert!(ground.refused().contains("another process has it"), "{}", ground.refused());
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        write(&*handle, 0, b"of an earlier run").unwrap();
        handle.sync().unwrap();
        drop((handle, store));
        assert!(ground.refused().contains("holds objects of an earlier run"), "{}", ground.refused());
        let store = Store::open(Arc::new(FileDevice::open(&ground.0).unwrap())).unwrap();
        let mut found = [0; 17];
        let left = store.object(1, Kind::Direct).unwrap();
        assert_eq!(left.owner(), owner_of((InodeNumber::ROOT, object(1))));
        assert_eq!((left.read(0, &mut found).unwrap(), &found), (17, b"of an earlier run"));
        drop((left, store));
        let device = FileDevice::open(&ground.0).unwrap();
        drop(Store::format(Arc::new(device), Format { region_shift: REGION_SHIFT, overwrite: true }).unwrap());

        // One that ends in order leaves nothing, and refuses what comes late.
        let store = ground.store();
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        write(&*handle, 0, &[1; 12_288]).unwrap();
        store.close().unwrap();
        assert_eq!(write(&*handle, 0, b"late"), Err(Error::NoObject));
        assert_eq!(store.open(InodeNumber::ROOT, object(2), true).err(), Some(Error::NoObject));
        drop((handle, store));
        assert_eq!(ground.store().space().unwrap().objects, 0);
    }
}
