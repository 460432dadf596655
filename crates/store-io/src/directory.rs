//! The directory store: an object is a file below a spool directory, on any file system; or in one that was made for it
//! in memory.
//!
//! An object's file is `objects/XX/OBJECT.INODE` (in memory `XX/OBJECT.INODE`): `XX` spreads them over 256 directories
//! by the low byte of the sequence, `OBJECT` and `INODE` are hexadecimal. The inode in the name lets the collection of
//! orphans ask the right shard.
//!
//! Invariant: identifiers are not used again, so whoever still has a removed object's file open reads or writes a file
//! without a name, and harms nobody.
//! On a crash: nothing is to be repaired; objects that no shard knows are collected as orphans.

mod abandon;

use crate::space::{Account, Charge, Charged};
use crate::store::{
    FilePlan, ObjectHandle, ObjectStat, ObjectStore, Segment, WritePlan, device_error, is_listed, lock,
};
use crate::windows::Windows;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, SeekFrom, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, InodeNumber, ObjectId, Result, Timestamp};
use weft_sys::opened::is_open_elsewhere;

/// Objects kept open. Beyond it the table is emptied of those nobody uses: a file is opened again in microseconds.
const OPEN_OBJECTS_MAX: usize = 512;
/// Bytes of a call that writes to a store in memory: as much as the kernel then takes at once. Measured: larger pieces
/// are faster only where the machine has them at hand; in a virtual machine its host often has to find them first, and
/// they are ten times slower than these.
const MEMORY_CALL_BYTES: usize = 64 << 10;
/// The directory that objects are below.
const OBJECTS: &str = "objects";
/// How directories are opened: a symbolic link is none.
const DIRECTORY_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Directories below `objects`.
const FAN_OUT: u64 = 256;

/// Objects as files.
pub struct DirectoryStore {
    /// Where it is, for people.
    place: String,
    root: OwnedFd,
    account: Arc<Account>,
    call_bytes: usize,
    /// Whether files may be mapped for transfers.
    has_windows: bool,
    objects: AtomicU64,
    /// Open objects, by file and object as their files are named: an object that another file claims is not found
    /// here either. Held for a look-up, never across I/O on file data.
    open: Mutex<HashMap<(InodeNumber, ObjectId), Arc<FileObject>>>,
    /// Under a cap: of objects with holes that are not open, what is charged. A leaf.
    closed: Mutex<HashMap<(InodeNumber, ObjectId), Charged>>,
    /// Removed files of which a program has a descriptor, or a mapping, and a connection of the node one, too.
    lingering: Mutex<Vec<Arc<FileObject>>>,
}

/// An object's open file.
struct FileObject {
    file: OwnedFd,
    account: Arc<Account>,
    call_bytes: usize,
    charge: Charge,
    /// Under a cap: guards the choice of an end for appends.
    end: Mutex<u64>,
    removed: AtomicBool,
    /// The object has another file.
    replaced: AtomicBool,
    windows: Option<Windows>,
}

impl DirectoryStore {
    /// Opens the spool directory, and makes it and its sub-directories when they are not there. `size`: cap in bytes.
    /// Refuses a directory that holds anything but a store of ours.
    pub fn open(path: &Path, size: Option<u64>) -> std::io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let directory = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty())?;
        Self::in_directory(directory, path, size)
    }

    /// As [`DirectoryStore::open`], of a directory that is open already; `path` is for people.
    pub fn in_directory(directory: impl AsFd, path: &Path, size: Option<u64>) -> std::io::Result<Self> {
        for name in names(directory.as_fd())? {
            if name.as_slice() != OBJECTS.as_bytes() {
                return Err(std::io::Error::other(format!(
                    "{}: holds \"{}\", which is not of a Weft store\n  remedy: give an empty directory with --store",
                    path.display(),
                    name.escape_ascii()
                )));
            }
        }
        match mkdirat(&directory, OBJECTS, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let root = openat(&directory, OBJECTS, DIRECTORY_FLAGS, Mode::empty())?;
        let store = Self::below(path.display().to_string(), root, size);
        store.count_what_is_there()?;
        Ok(store)
    }

    /// A store in memory, which is gone when nobody has it or an object of it open; `size`: bytes that fit in, by
    /// default half of the memory. The kernel keeps to it, whoever writes.
    pub fn in_memory(size: Option<u64>) -> std::io::Result<Self> {
        let root = weft_sys::tmpfs::mount_private(size).map_err(|error| {
            let text = format!(
                "a store in memory: {error}\n  remedy: it needs Linux 5.2 and user namespaces, which some machines \
                 refuse; a directory there: --store /dev/shm"
            );
            std::io::Error::new(error.kind(), text)
        })?;
        Ok(Self { call_bytes: MEMORY_CALL_BYTES, ..Self::below("memory".to_owned(), root, None) })
    }

    fn below(place: String, root: OwnedFd, size: Option<u64>) -> Self {
        let account = Arc::new(Account::new(size.unwrap_or(u64::MAX)));
        let (objects, open) = (AtomicU64::new(0), Mutex::new(HashMap::new()));
        let has_windows = Windows::are_for(root.as_fd());
        let (closed, lingering) = (Mutex::default(), Mutex::default());
        Self { place, root, account, call_bytes: usize::MAX, has_windows, objects, open, closed, lingering }
    }

    /// Charges what an earlier run left.
    fn count_what_is_there(&self) -> std::io::Result<()> {
        for name in names(self.root.as_fd())? {
            let directory = openat(&self.root, name, DIRECTORY_FLAGS, Mode::empty())?;
            for name in names(directory.as_fd())? {
                let found = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                self.objects.fetch_add(1, Ordering::Relaxed);
                let mut charged = Charged::dense(found.st_size.cast_unsigned());
                if self.account.is_capped() && found.st_blocks.cast_unsigned().saturating_mul(512) < charged.bytes() {
                    charged = charged_of(&openat(&directory, &name, OFlags::CLOEXEC, Mode::empty())?)?;
                }
                let bytes = charged.bytes();
                if let Some(number) = Self::parse_file_name(&name).filter(|_| charged.has_holes()) {
                    lock(&self.closed).insert(number, charged);
                }
                // More than the cap may be there after the cap was lowered: then nothing more can be written.
                if self.account.charge(bytes).is_err() {
                    return Err(std::io::Error::other(format!(
                        "{}: holds more than the size given\n  remedy: give a larger size with --store DIR:SIZE",
                        self.place
                    )));
                }
            }
        }
        Ok(())
    }

    fn file_name(inode: InodeNumber, object: ObjectId) -> String {
        let mut name = String::with_capacity(40);
        // Writing to a string cannot fail.
        let _ = write!(name, "{:02x}/{:016x}.{:016x}", object.sequence() % FAN_OUT, object.raw(), inode.raw());
        name
    }

    fn parse_file_name(name: &[u8]) -> Option<(InodeNumber, ObjectId)> {
        let (object, inode) = std::str::from_utf8(name).ok()?.split_once('.')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((InodeNumber::from_raw(number(inode)?), ObjectId::from_raw(number(object)?)))
    }

    /// Makes an object's file, and the directory that it stands in when it is the first there.
    fn make_file(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        let make = || openat(&self.root, name, flags, Mode::RUSR | Mode::WUSR);
        match make() {
            Err(Errno::NOENT) => {
                let directory = name.split('/').next().unwrap_or_default();
                match mkdirat(&self.root, directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => make().map_err(device_error),
                    Err(errno) => Err(device_error(errno)),
                }
            }
            result => result.map_err(device_error),
        }
    }

    fn file_object(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<FileObject>> {
        let mut open = lock(&self.open);
        if let Some(found) = open.get(&(inode, object)) {
            return Ok(Arc::clone(found));
        }
        // Opened under the lock: two handles of one object would each count its bytes.
        let file = self.open_file(inode, object, create)?;
        if open.len() >= OPEN_OBJECTS_MAX {
            open.retain(|number, object| Arc::strong_count(object) > 1 || !self.leave(*number, object));
        }
        open.insert((inode, object), Arc::clone(&file));
        Ok(file)
    }

    /// An object that nobody uses is closed: what the file has stays charged, which is what it is opened with the next
    /// time. Returns false where that is not known.
    fn leave(&self, number: (InodeNumber, ObjectId), object: &FileObject) -> bool {
        let Ok(stat) = size_of(&object.file) else { return false };
        self.keep_charged(number, object.charge.leave(stat.size));
        true
    }

    fn keep_charged(&self, number: (InodeNumber, ObjectId), charged: Option<Charged>) {
        if let Some(charged) = charged {
            lock(&self.closed).insert(number, charged);
        }
    }

    fn open_file(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<FileObject>> {
        let name = Self::file_name(inode, object);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = match openat(&self.root, &name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) if create => {
                let file = self.make_file(&name, flags | OFlags::CREATE)?;
                self.objects.fetch_add(1, Ordering::Relaxed);
                file
            }
            Err(Errno::NOENT) => return Err(Error::NoObject),
            Err(errno) => return Err(device_error(errno)),
        };
        let size = size_of(&file)?.size;
        let charged = lock(&self.closed).remove(&(inode, object)).unwrap_or_else(|| Charged::dense(size));
        Ok(Arc::new(FileObject {
            file,
            account: Arc::clone(&self.account),
            call_bytes: self.call_bytes,
            charge: Charge::new(Arc::clone(&self.account), charged),
            end: Mutex::new(size),
            removed: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            windows: self.has_windows.then(Windows::default),
        }))
    }
}

impl ObjectStore for DirectoryStore {
    fn open(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<dyn ObjectHandle>> {
        Ok(self.file_object(inode, object, create)?)
    }

    fn passes_to_write(&self) -> bool {
        // Writes through a descriptor are not counted: under a cap they go through the server.
        !self.account.is_capped()
    }

    fn abandon(&self, inode: InodeNumber, object: ObjectId) -> Result<bool> {
        self.move_object(inode, object)
    }

    fn remove(&self, inode: InodeNumber, object: ObjectId) -> Result<bool> {
        let mut open = lock(&self.open);
        let file = match open.remove(&(inode, object)) {
            Some(file) => file,
            None => match self.open_file(inode, object, false) {
                Ok(file) => file,
                Err(Error::NoObject) => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        file.removed.store(true, Ordering::Release);
        unlinkat(&self.root, Self::file_name(inode, object), AtFlags::empty()).map_err(device_error)?;
        file.charge.end();
        // To free the space of a large one takes a while.
        drop(open);
        if file.is_given_up() {
            drop(file);
        } else {
            lock(&self.lingering).push(file);
        }
        // Last: the count falls only when the space is free.
        self.objects.fetch_sub(1, Ordering::Relaxed);
        Ok(true)
    }

    fn list(&self, runs: &[(ObjectId, u32)]) -> Result<Vec<(InodeNumber, ObjectId)>> {
        let mut found = Vec::new();
        for directory in 0..FAN_OUT {
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            let directory = match openat(&self.root, format!("{directory:02x}"), flags, Mode::empty()) {
                Ok(directory) => directory,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(device_error(errno)),
            };
            for entry in Dir::new(directory).map_err(device_error)? {
                let entry = entry.map_err(device_error)?;
                let Some((inode, object)) = Self::parse_file_name(entry.file_name().to_bytes()) else { continue };
                if is_listed(runs, object) {
                    found.push((inode, object));
                }
            }
        }
        Ok(found)
    }

    fn settle(&self) {
        lock(&self.lingering).retain(|file| !file.is_given_up());
    }

    fn space(&self) -> Result<Space> {
        self.settle();
        let below = rustix::fs::fstatvfs(&self.root).map_err(device_error)?;
        let device_free = below.f_bavail.saturating_mul(below.f_frsize);
        let device = rustix::fs::fstat(&self.root).map_err(device_error)?.st_dev;
        let account = &self.account;
        let (used, reserve) = (account.used(), account.reserve());
        let (total, free) = if account.is_capped() {
            // A cap beyond what the device has left promises nothing.
            let free = account.free().min(device_free);
            (used.saturating_add(reserve).saturating_add(free), free)
        } else {
            (below.f_blocks.saturating_mul(below.f_frsize), device_free)
        };
        let objects = self.objects.load(Ordering::Relaxed);
        Ok(Space { total, free, reserve, objects, device, device_free })
    }

    fn describe(&self) -> String {
        self.place.clone()
    }
}

/// Names of the entries of a directory.
fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let entries = Dir::read_from(directory)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
    names.filter(|name| !name.as_ref().is_ok_and(|name| name == b"." || name == b"..")).collect()
}

fn size_of(file: impl AsFd) -> Result<ObjectStat> {
    let stat = rustix::fs::fstat(file).map_err(device_error)?;
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Ok(ObjectStat { size: stat.st_size.cast_unsigned(), mtime: Timestamp::from_parts(stat.st_mtime, nanoseconds) })
}

/// What is charged for a file with holes.
fn charged_of(file: &OwnedFd) -> std::io::Result<Charged> {
    let (mut charged, mut at) = (Charged::default(), 0);
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // A hole up to the end.
            Err(Errno::NXIO) => return Ok(charged),
            Err(errno) => return Err(errno.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        charged.add(start, at);
    }
}

impl FileObject {
    /// Whether the space of a removed file is free, or will be when whoever has it open closes it. A connection that
    /// has it at hand may be idle for long: then the file is cut. Not while a program has it open, or mapped: it would
    /// find the end of its file, or get SIGBUS.
    fn is_given_up(self: &Arc<Self>) -> bool {
        if Arc::strong_count(self) == 1 {
            return true;
        }
        let is_unused = !is_open_elsewhere(self.file.as_fd());
        if is_unused {
            // No more than the space is lost where it fails.
            let _ = rustix::fs::ftruncate(&self.file, 0);
            self.close_windows();
        }
        is_unused
    }

    fn check(&self) -> Result<()> {
        if self.removed.load(Ordering::Acquire) || self.replaced.load(Ordering::Acquire) {
            return Err(Error::NoObject);
        }
        Ok(())
    }

    fn close_windows(&self) {
        if let Some(windows) = &self.windows {
            windows.close();
        }
    }

    fn plan(&self, offset: Option<u64>) -> WritePlan<'_> {
        WritePlan::File(FilePlan { file: self.file.as_fd(), offset, call_bytes: self.call_bytes })
    }
}

impl ObjectHandle for FileObject {
    fn is_current(&self) -> bool {
        self.check().is_ok()
    }

    fn stat(&self) -> Result<ObjectStat> {
        self.check()?;
        size_of(&self.file)
    }

    fn read_plan(&self, offset: u64, bytes: u32) -> Result<(Segment<'_>, ObjectStat)> {
        self.check()?;
        let stat = size_of(&self.file)?;
        let bytes = u64::from(bytes).min(stat.size.saturating_sub(offset));
        Ok((Segment::File { file: self.file.as_fd(), offset, bytes }, stat))
    }

    fn write_plan(&self, offset: u64, bytes: u32) -> Result<WritePlan<'_>> {
        self.check()?;
        self.charge.grow(offset, offset + u64::from(bytes))?;
        Ok(self.plan(Some(offset)))
    }

    fn append_plan(&self, bytes: u32) -> Result<WritePlan<'_>> {
        self.check()?;
        if !self.account.is_capped() {
            return Ok(self.plan(None));
        }
        // The bytes are counted first, behind those of appends in flight. Where they go is decided when they are
        // written: one that fails leaves no hole.
        let mut end = lock(&self.end);
        let start = size_of(&self.file)?.size.max(*end);
        let new_end = start.checked_add(u64::from(bytes)).ok_or(Error::FileTooLarge)?;
        self.charge.grow(start, new_end)?;
        *end = new_end;
        Ok(self.plan(None))
    }

    fn truncate(&self, size: u64) -> Result<ObjectStat> {
        let mut end = lock(&self.end);
        self.check()?;
        if size > size_of(&self.file)?.size {
            self.charge.grow(0, size)?;
        }
        rustix::fs::ftruncate(&self.file, size).map_err(device_error)?;
        self.close_windows();
        *end = size;
        self.charge.settle(size);
        size_of(&self.file)
    }

    fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    fn sync(&self) -> Result<()> {
        self.check()?;
        rustix::fs::fdatasync(&self.file).map_err(device_error)
    }

    fn call_bytes(&self) -> usize {
        self.call_bytes
    }

    fn is_held(&self) -> bool {
        is_open_elsewhere(self.file.as_fd())
    }

    fn descriptor(&self, write: bool) -> Option<Result<OwnedFd>> {
        if write && self.account.is_capped() {
            return None;
        }
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        // A descriptor of its own (own flags), read-only where that is all that is asked for.
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
        Some(rustix::fs::open(path, flags, Mode::empty()).map_err(device_error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use weft_protocol::NodeId;

    struct Ground(PathBuf);

    impl Ground {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("weft-directory-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_cap_beyond_the_device_shows_what_the_device_has() {
        let ground = Ground::new("cap");
        let store = DirectoryStore::open(&ground.0, Some(1 << 60)).unwrap();
        let space = store.space().unwrap();
        assert!(space.free <= space.device_free && space.total == space.free + space.reserve, "{space:?}");
        assert!(space.device != 0 && space.total < 1 << 60, "{space:?}");
        drop(store);
        let small = DirectoryStore::open(&ground.0, Some(6400)).unwrap().space().unwrap();
        assert_eq!((small.total, small.free, small.reserve), (6400, 6300, 100), "a cap that fits holds");
    }

    #[test]
    fn a_listing_has_the_objects_of_all_runs_and_no_others() {
        let ground = Ground::new("list");
        let store = DirectoryStore::open(&ground.0, None).unwrap();
        let object = |sequence| ObjectId::new(NodeId(2), sequence);
        for sequence in [1, 4, 5, 6, 7, 300, 301] {
            store.open(InodeNumber::ROOT, object(sequence), true).unwrap();
        }
        let mut listed = store.list(&[(object(2), 3), (object(6), 1), (object(300), 512)]).unwrap();
        listed.sort_unstable();
        assert_eq!(listed, [4, 6, 300, 301].map(|sequence| (InodeNumber::ROOT, object(sequence))));
        assert_eq!(store.list(&[]).unwrap(), []);
    }

    #[test]
    fn a_store_in_memory_holds_what_fits_and_lets_descriptors_out() {
        let store = match DirectoryStore::in_memory(Some(4 << 20)) {
            Ok(store) => store,
            Err(error) => return println!("skipped: {error}"),
        };
        let object = ObjectId::new(NodeId(1), 9);
        let handle = store.open(InodeNumber::ROOT, object, true).unwrap();
        let file = handle.descriptor(true).unwrap().unwrap();
        let written =
            std::iter::repeat_with(|| rustix::io::write(&file, &[7; 1 << 16])).take_while(std::result::Result::is_ok);
        assert!((1..=64).contains(&written.count()), "the kernel keeps to the size");
        assert_eq!(store.space().unwrap().free, 0);
        assert_eq!(store.list(&[(object, 1)]).unwrap(), [(InodeNumber::ROOT, object)]);
        drop((handle, file));
        assert_eq!(store.remove(InodeNumber::ROOT, object), Ok(true));
        assert!(store.space().unwrap().free > 3 << 20);
    }

    #[test]
    fn a_removed_object_keeps_its_bytes_while_a_program_has_its_file() {
        let ground = Ground::new("lingering");
        let store = DirectoryStore::open(&ground.0, None).unwrap();
        let object = ObjectId::new(NodeId(1), 9);
        let at_hand = store.open(InodeNumber::ROOT, object, true).unwrap();
        assert!(!at_hand.is_held());
        let passed = at_hand.descriptor(true).unwrap().unwrap();
        rustix::io::pwrite(&passed, b"bytes", 0).unwrap();
        assert!(at_hand.is_held());
        assert_eq!(store.remove(InodeNumber::ROOT, object), Ok(true));
        store.settle();
        let mut found = [0; 5];
        rustix::io::pread(&passed, &mut found[..], 0).unwrap();
        assert_eq!(&found, b"bytes");
        assert_eq!(lock(&store.lingering).len(), 1);
        drop(passed);
        store.settle();
        assert_eq!(lock(&store.lingering).len(), 0, "its space is free, though a connection has it at hand");
    }

    #[test]
    fn the_space_of_a_removed_object_is_free_while_somebody_has_it_at_hand() {
        let ground = Ground::new("removed");
        let store = DirectoryStore::open(&ground.0, None).unwrap();
        let object = ObjectId::new(NodeId(1), 9);
        let handle = store.file_object(InodeNumber::ROOT, object, true).unwrap();
        assert_eq!(rustix::io::write(&handle.file, &[7; 1 << 16]), Ok(1 << 16));
        assert_eq!(store.remove(InodeNumber::ROOT, object), Ok(true));
        assert_eq!(rustix::fs::fstat(&handle.file).unwrap().st_blocks, 0);
        assert_eq!(handle.stat().err(), Some(Error::NoObject));
    }

    #[test]
    fn holes_are_not_charged() {
        let ground = Ground::new("holes");
        let size = Some(1 << 20);
        let object = |sequence| ObjectId::new(NodeId(1), sequence);
        let store = DirectoryStore::open(&ground.0, size).unwrap();
        let handle = store.file_object(InodeNumber::ROOT, object(1), true).unwrap();
        for at in [1 << 30, 1 << 20, 0] {
            handle.write_plan(at, 100_000).unwrap();
            rustix::io::pwrite(&handle.file, &[7; 100_000], at).unwrap();
        }
        let used = store.account.used();
        assert!((300_000..500_000).contains(&used), "{used}");
        assert_eq!(handle.write_plan(2 << 30, 1 << 20).err(), Some(Error::NoSpace));
        drop(handle);
        for sequence in 2..=OPEN_OBJECTS_MAX as u64 + 1 {
            drop(store.open(InodeNumber::ROOT, object(sequence), true).unwrap());
        }
        assert!(!store.open.lock().unwrap().contains_key(&(InodeNumber::ROOT, object(1))));
        assert_eq!(store.account.used(), used);
        drop(store);
        let store = DirectoryStore::open(&ground.0, size).unwrap();
        // Data lies in whole pages.
        assert!((300_000..=used + 4096).contains(&store.account.used()), "{} after {used}", store.account.used());
        assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
        assert_eq!(store.account.used(), 0);
    }

    #[test]
    fn what_is_charged_for_a_write_that_is_never_made_is_given_back() {
        let ground = Ground::new("charged");
        let store = DirectoryStore::open(&ground.0, Some(1 << 20)).unwrap();
        let object = |sequence| ObjectId::new(NodeId(1), sequence);
        let handle = store.file_object(InodeNumber::ROOT, object(1), true).unwrap();
        // Its writer dies before it has sent the bytes.
        handle.write_plan(0, 8192).unwrap();
        drop(handle);
        for sequence in 2..=OPEN_OBJECTS_MAX as u64 + 1 {
            drop(store.open(InodeNumber::ROOT, object(sequence), true).unwrap());
        }
        assert!(!store.open.lock().unwrap().contains_key(&(InodeNumber::ROOT, object(1))));
        assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
        assert_eq!(store.account.used(), 0);
        let handle = store.file_object(InodeNumber::ROOT, object(2), true).unwrap();
        assert_eq!(store.remove(InodeNumber::ROOT, object(2)), Ok(true));
        // A writer that has looked whether it is there, before it was removed.
        assert_eq!(handle.charge.grow(0, 8192), Err(Error::NoObject));
        assert_eq!(store.account.used(), 0);
    }
}
