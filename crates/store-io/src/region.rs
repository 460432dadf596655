//! The region store behind a node: an object is a region of a block device, or of a file that was set aside for it, or
//! several regions (`object.rs`).
//!
//! Objects have names that others choose; which region has which is kept in memory, as all metadata is, and stands in
//! the super block of each ([`weft_region::Owner`]). Bytes never go through the page cache: the object reads and writes
//! whole blocks itself, and no descriptor is passed.
//!
//! Invariant: what an earlier node left is not touched. A store that holds objects is refused, with what to do; a node
//! that ends in order leaves its store empty.
//! On a crash: the store is whole, with objects that nobody knows the files of.

mod object;

use crate::ring_pages::RingPages;
use crate::store::{ObjectHandle, ObjectStore, is_listed, lock};
use object::RegionObject;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, InodeNumber, ObjectId, Result};
use weft_region::{FileDevice, Format, Store};
use weft_sys::own_directory::OwnDirectory;

/// Regions of stores that are made here are 2 to this bytes, 1 TiB: longer files have several. There are 16 million of
/// them, and so many objects. With 64 GiB files of large devices would have many; 16 TiB leave a million objects, too
/// few for small files.
pub const REGION_SHIFT: u8 = 40;
/// Tables of names, so that threads seldom wait for each other.
const SHARDS: usize = 16;

type Name = (InodeNumber, ObjectId);
type Names = HashMap<Name, Arc<RegionObject>>;

/// Objects as regions.
pub struct RegionStore {
    /// Where it is, for people.
    place: String,
    /// Number of the device; one of its own for a file, which has its space set aside.
    device: u64,
    regions: Arc<Regions>,
    /// Held while an object is made or removed. All are at hand, with their sizes: the device is told when one is
    /// synced, and not each time that one is let go.
    names: [Mutex<Names>; SHARDS],
    objects: AtomicU64,
}

/// Where objects get their regions.
struct Regions {
    store: Store,
    ring_pages: RingPages,
    /// Space was given up since the last sync.
    is_unsettled: AtomicBool,
    /// No more are given.
    is_closed: AtomicBool,
    /// Syncs that nobody waited for and that failed, and why the last one did.
    unsynced: Mutex<(u64, String)>,
}

impl RegionStore {
    /// The store on a block device, or whatever else has one. An error names the place, and what to do.
    pub fn on_device(path: &Path) -> io::Result<Self> {
        Self::open(path, path, format!("device:{}", path.display()))
    }

    /// The store in a file, which is made with so many bytes when it is not there.
    pub fn in_file(path: &Path, size: Option<u64>) -> io::Result<Self> {
        Self::in_file_at(path, path, size)
    }

    /// As [`RegionStore::in_file`]; the file is in a directory that this process has open.
    pub fn in_directory(directory: &OwnDirectory, name: &OsStr, size: Option<u64>) -> io::Result<Self> {
        Self::in_file_at(&directory.reach(name), &directory.path().join(name), size)
    }

    /// `path` reaches the file, `shown` is its path for people.
    fn in_file_at(path: &Path, shown: &Path, size: Option<u64>) -> io::Result<Self> {
        if !path.try_exists()? {
            let size = size.ok_or_else(|| {
                explain(shown, "is not there, and no size is given", "give the size of the file: --store file:DIR:SIZE")
            })?;
            // Nothing is left of a file that could not become a store.
            Self::make(path, shown, size).inspect_err(|_| drop(std::fs::remove_file(path)))?;
        }
        Self::open(path, shown, format!("file:{}", shown.display()))
    }

    fn make(path: &Path, shown: &Path, size: u64) -> io::Result<()> {
        let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
        let made = FileDevice::create(path, size).and_then(|device| Store::format(Arc::new(device), format));
        made.and_then(|store| store.close()).map_err(|error| explain_error(shown, &error))
    }

    fn open(path: &Path, shown: &Path, place: String) -> io::Result<Self> {
        let opened = FileDevice::open(path).and_then(|device| Store::open(Arc::new(device)));
        let store = opened.map_err(|error| explain_error(shown, &error))?;
        if !store.is_empty().map_err(|error| explain_error(shown, &error))? {
            let remedy = format!("when nobody misses them: weft store format --overwrite {}", shown.display());
            return Err(explain(shown, "holds objects of an earlier run", &remedy));
        }
        let unused = store.usage().unused;
        if unused > 0 {
            tracing::info!("{place} is {unused} bytes larger than its store: `weft store grow` takes them in");
        }
        let file = std::fs::metadata(path)?;
        let is_device = file.file_type().is_block_device();
        // Of a file, one that no device has: those are of 32 bits.
        let device = if is_device { file.rdev() } else { file.dev().rotate_left(32) ^ file.ino() | 1 << 63 };
        Ok(Self::of(store, place, device))
    }

    fn of(store: Store, place: String, device: u64) -> Self {
        Self {
            place,
            device,
            regions: Arc::new(Regions {
                store,
                ring_pages: RingPages::default(),
                is_unsettled: AtomicBool::new(false),
                is_closed: AtomicBool::new(false),
                unsynced: Mutex::default(),
            }),
            names: Default::default(),
            objects: AtomicU64::new(0),
        }
    }

    fn names_with(&self, object: ObjectId) -> &Mutex<Names> {
        let [first, ..] = &self.names;
        self.names.get(object.sequence() as usize % SHARDS).unwrap_or(first)
    }
}

impl ObjectStore for RegionStore {
    fn open(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<dyn ObjectHandle>> {
        let mut names = lock(self.names_with(object));
        if let Some(found) = names.get(&(inode, object)) {
            return Ok(Arc::<RegionObject>::clone(found));
        }
        if !create || self.regions.is_closed.load(Ordering::Acquire) {
            return Err(Error::NoObject);
        }
        let made = Arc::new(RegionObject::create(&self.regions, (inode, object))?);
        names.insert((inode, object), Arc::clone(&made));
        self.objects.fetch_add(1, Ordering::Relaxed);
        Ok(made)
    }

    fn lends(&self) -> bool {
        true
    }

    fn remove(&self, inode: InodeNumber, object: ObjectId) -> Result<bool> {
        let mut names = lock(self.names_with(object));
        let Some(found) = names.get(&(inode, object)) else { return Ok(false) };
        found.remove()?;
        names.remove(&(inode, object));
        self.objects.fetch_sub(1, Ordering::Relaxed);
        Ok(true)
    }

    fn list(&self, runs: &[(ObjectId, u32)]) -> Result<Vec<(InodeNumber, ObjectId)>> {
        let listed = |names: &Mutex<Names>| -> Vec<Name> {
            lock(names).keys().filter(|(_, object)| is_listed(runs, *object)).copied().collect()
        };
        Ok(self.names.iter().flat_map(listed).collect())
    }

    fn space(&self) -> Result<Space> {
        let usage = self.regions.store.usage();
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
        if self.regions.is_unsettled.swap(false, Ordering::AcqRel)
            && let Err(error) = self.regions.store.sync()
        {
            // Whoever needs the space tries again, and is told.
            tracing::warn!(%error, "{}: what was removed is not free yet", self.place);
            let mut unsynced = lock(&self.regions.unsynced);
            *unsynced = (unsynced.0 + 1, format!("sync: {error}"));
            self.regions.is_unsettled.store(true, Ordering::Release);
        }
    }

    fn close(&self) -> Result<()> {
        self.regions.is_closed.store(true, Ordering::Release);
        for names in &self.names {
            std::mem::take(&mut *lock(names)).values().for_each(|object| object.end());
        }
        let removed = self.regions.store.remove_all();
        removed.and_then(|()| self.regions.store.close()).map_err(refused)
    }

    fn describe(&self) -> String {
        self.place.clone()
    }

    fn failures(&self) -> Option<String> {
        let (syncs, last_sync) = lock(&self.regions.unsynced).clone();
        let others = self.regions.store.failures();
        let last = others.last.clone().filter(|_| syncs == 0).unwrap_or(last_sync);
        let count = syncs + others.total();
        (count > 0).then(|| format!("{count} failures in the background, the last: {last}"))
    }
}

/// What a client is told.
pub(crate) fn refused(error: weft_region::Error) -> Error {
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
        Region::OldFormat(_) => format!(
            "bring its objects to a new store with `weft store send {there}` of the Weft that made it and `weft store \
             receive` of this one, or destroy them with `weft store format --overwrite {there}`"
        ),
        Region::InUse => format!("a store is one node's: end the process that has it (`fuser {there}` names it)"),
        Region::TooSmall(..) | Region::NoSpace => "give another size, or another place".to_owned(),
        Region::Damaged(_) => format!("`weft store check {there}` says more"),
        Region::LogDamaged { .. } => format!("`weft store repair {there}` says what a repair costs"),
        Region::Shrunk(_, bytes) => format!("make it as large as it was, {bytes} bytes"),
        _ => "give a device or file that you may read and write".to_owned(),
    };
    explain(path, &error.to_string(), &remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Segment, WritePlan};
    use std::path::PathBuf;
    use weft_protocol::limits::FILE_BYTES_MAX;
    use weft_protocol::{NodeId, Timestamp};
    use weft_region::Kind;
    use weft_region::testing::Watched;

    pub(super) const BYTES: u64 = 32 << 20;

    pub(super) struct Ground(pub PathBuf);

    impl Ground {
        pub fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weft-store-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Self(path)
        }

        pub fn store(&self) -> RegionStore {
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

    pub(super) fn object(sequence: u64) -> ObjectId {
        ObjectId::new(NodeId(2), sequence)
    }

    pub(super) fn write(handle: &dyn ObjectHandle, offset: u64, bytes: &[u8]) -> Result<()> {
        match handle.write_plan(offset, u32::try_from(bytes.len()).unwrap())? {
            WritePlan::Blocks { object, offset } => object.write_at(offset.unwrap(), bytes),
            WritePlan::File(_) => panic!("a file"),
        }
    }

    pub(super) fn read(handle: &dyn ObjectHandle, offset: u64, bytes: u32) -> Vec<u8> {
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
        assert_eq!(write(&*again, FILE_BYTES_MAX - 4, &[1; 5]), Err(Error::FileTooLarge));
        assert_eq!(again.truncate(FILE_BYTES_MAX + 1).err(), Some(Error::FileTooLarge));
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
        assert_eq!((now.objects, now.free), (0, empty.free));
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
    fn a_sync_that_fails_when_nobody_waits_is_counted() {
        let ground = Ground::new("unsettled");
        let device = Watched::new(Arc::new(FileDevice::create(&ground.0, BYTES).unwrap()), || {});
        let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
        let store = Store::format(device.clone(), format).unwrap();
        let store = RegionStore::of(store, "there".to_owned(), 1);
        store.open(InodeNumber::ROOT, object(1), true).unwrap();
        store.open(InodeNumber::ROOT, object(2), true).unwrap();
        assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
        store.settle();
        assert_eq!(store.failures(), None);
        assert_eq!(store.remove(InodeNumber::ROOT, object(2)), Ok(true));
        device.set_fails(true);
        store.settle();
        let said = store.failures().unwrap();
        assert!(said.contains("1 failures in the background, the last: sync: ") && said.contains("no flush"), "{said}");
        device.set_fails(false);
        store.settle();
        assert_eq!(store.failures().unwrap(), said, "it is made up for, and still counted");
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
        assert_eq!(left.owner(), object::part_of((InodeNumber::ROOT, object(1)), 0).owner());
        assert_eq!((left.read(0, &mut found).unwrap(), &found), (17, b"of an earlier run"));
        drop((left, store));
        let device = FileDevice::open(&ground.0).unwrap();
        drop(
            Store::format(
                Arc::new(device),
                Format { region_shift: REGION_SHIFT, overwrite: true, ..Format::default() },
            )
            .unwrap(),
        );

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

    /// Writes of the device for each of a few records that a writer appends to its part, one after the other.
    fn device_writes(record: u32) -> Vec<u64> {
        let ground = Ground::new(&format!("records-{record}"));
        let device = Arc::new(FileDevice::create(&ground.0, BYTES).unwrap());
        let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
        let store = Store::format(device.clone(), format).unwrap();
        let store = RegionStore::of(store, "records".to_owned(), 1);
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        let counted = (0..8).map(|index| {
            let before = device.operations().writes;
            let WritePlan::Blocks { object, offset } = handle.write_plan(index * u64::from(record), record).unwrap()
            else {
                panic!("a file")
            };
            let range = (offset.unwrap(), record);
            let fill = |memory: &mut [u8]| -> weft_transport::Result<()> {
                memory.fill(7);
                Ok(())
            };
            crate::blocks::write(object, range, &crate::guard::Unguarded, fill).unwrap().unwrap();
            device.operations().writes - before
        });
        counted.collect()
    }

    #[test]
    fn a_record_is_one_write_of_the_device() {
        // Single blocks wait for others.
        assert_eq!(device_writes(4 << 10), [0; 8]);
        for record in [8 << 10, 64 << 10, 384 << 10, 512 << 10, 1 << 20] {
            assert_eq!(device_writes(record), [1; 8], "{record} bytes");
        }
        // The block that a record shares with the one before is read, and written again together with the new ones.
        assert_eq!(device_writes(47_008), [1; 8]);
    }
}
