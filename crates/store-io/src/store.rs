//! The object store trait.

use crate::windows::Windows;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_protocol::data::LentBytes;
use weft_protocol::message::storage::Space;
use weft_protocol::{Error, InodeNumber, ObjectId, Result, Timestamp};
use weft_region::Stream;
use weft_sys::huge::HugePage;
use weft_ucx::PageWindow;

/// Size and time of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectStat {
    pub size: u64,
    pub mtime: Timestamp,
}

/// A piece of an object, in order, as the executor is to send it.
#[derive(Clone, Copy)]
pub enum Segment<'a> {
    /// Bytes of a file.
    File { file: BorrowedFd<'a>, offset: u64, bytes: u64 },
    /// Bytes that the object itself reads.
    Blocks { object: &'a dyn BlockObject, offset: u64, bytes: u64 },
    /// Bytes that were never written: zeros.
    Hole { bytes: u64 },
}

impl Segment<'_> {
    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        match *self {
            Segment::File { bytes, .. } | Segment::Blocks { bytes, .. } | Segment::Hole { bytes } => bytes,
        }
    }
}

/// Where a write goes.
#[derive(Clone, Copy)]
pub enum WritePlan<'a> {
    /// Into a file.
    File(FilePlan<'a>),
    /// The object itself writes; `None`: at the end that it has then, all bytes in one call.
    Blocks { object: &'a dyn BlockObject, offset: Option<u64> },
}

impl WritePlan<'_> {
    /// Where its first byte goes. `None`: at the end.
    pub fn offset(&self) -> Option<u64> {
        match self {
            WritePlan::File(plan) => plan.offset,
            WritePlan::Blocks { offset, .. } => *offset,
        }
    }
}

/// Where in a file.
#[derive(Clone, Copy, Debug)]
pub struct FilePlan<'a> {
    pub file: BorrowedFd<'a>,
    /// `None`: at the end that the file has when the bytes are written, all of them in one call. Others may append to
    /// the same file past this store: a kernel that was passed its descriptor.
    pub offset: Option<u64>,
    /// Bytes that one call should write at most: see [`ObjectHandle::call_bytes`].
    pub call_bytes: usize,
}

/// An object without a file: its bytes go through memory. Of whole blocks, in memory that begins at a block's boundary,
/// no copy is made. Used by several threads at once.
pub trait BlockObject: Send + Sync {
    /// Fills `into`; zeros where nothing was written, and behind the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Reads what is planned piece by piece, the next of them on their way while one is sent. `None`: it cannot.
    fn stream(&self, _offset: u64, _bytes: u64) -> Option<Stream<'_>> {
        None
    }

    /// Whether [`BlockObject::stream`] gives one, as far as is known without making it.
    fn streams(&self, _offset: u64, _bytes: u64) -> bool {
        false
    }

    /// Where its bytes lie in memory of this process, and what vouches for that. `None`: they have to be read.
    fn in_memory(&self, _offset: u64, _bytes: u64) -> Option<LentBytes> {
        None
    }

    /// The memory of such a stream as transfers know it. `None`: they do not.
    fn window(&self, _page: &HugePage) -> Option<Arc<PageWindow>> {
        None
    }

    /// Writes all bytes.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;

    /// Writes all bytes at the end, with none of another append between them.
    fn append(&self, from: &[u8]) -> Result<()>;
}

/// Objects by identifier. Called from many threads.
pub trait ObjectStore: Send + Sync {
    /// An object that is there; with `create`, it is made when it is not. `NoObject` otherwise.
    fn open(&self, inode: InodeNumber, object: ObjectId, create: bool) -> Result<Arc<dyn ObjectHandle>>;

    /// Whether descriptors of its objects may be passed to be written through ([`ObjectHandle::descriptor`]).
    fn passes_to_write(&self) -> bool {
        false
    }

    /// Whether bytes of its objects may be lent to clients of the same node: they are in no file that they could be
    /// sent from.
    fn lends(&self) -> bool {
        false
    }

    /// Removes an object. `false`: it was not there.
    fn remove(&self, inode: InodeNumber, object: ObjectId) -> Result<bool>;

    /// Moves an object to a new file if anybody else has a descriptor of its present one: what is written there from
    /// now on is in no object. Nobody writes it through this store meanwhile. Returns whether it was moved. Costs a
    /// copy where the file system does not share blocks between files (`FICLONE`), and the space of both until the last
    /// descriptor is closed.
    fn abandon(&self, _inode: InodeNumber, _object: ObjectId) -> Result<bool> {
        Ok(false)
    }

    /// The objects in these runs of identifiers (the first one and their number, ascending), for the collection of
    /// orphans. Costs a walk over the store.
    fn list(&self, runs: &[(ObjectId, u32)]) -> Result<Vec<(InodeNumber, ObjectId)>>;

    /// Space and number of objects.
    fn space(&self) -> Result<Space>;

    /// What was removed since it was called last is free now, where that needs anything. May take as long as a sync.
    fn settle(&self) {}

    /// The node ends, and with it whoever knows what the objects are of. A store that nobody else clears is empty
    /// after this; what is asked of it later is refused.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Where it is, for people.
    fn describe(&self) -> String;

    /// How often work that nobody waits for has failed, and the last failure, for people. `None`: never.
    fn failures(&self) -> Option<String> {
        None
    }
}

/// An object at hand. Used by several threads at once; what is read while it is written may be old or new, byte by
/// byte.
pub trait ObjectHandle: Send + Sync {
    /// Whether it is still the object's: a handle may be left with what was removed or abandoned.
    fn is_current(&self) -> bool {
        true
    }

    /// Size and time now.
    fn stat(&self) -> Result<ObjectStat>;

    /// The segments of a range, cut at the object's end; and the object's size.
    fn read_plan(&self, offset: u64, bytes: u32) -> Result<(Segment<'_>, ObjectStat)>;

    /// Makes room for a write, or says why there is none; the write itself is the executor's.
    fn write_plan(&self, offset: u64, bytes: u32) -> Result<WritePlan<'_>>;

    /// Picks the end of the object for a write and keeps others from picking the same.
    fn append_plan(&self, bytes: u32) -> Result<WritePlan<'_>>;

    /// Cuts or extends; an extension reads zeros.
    fn truncate(&self, size: u64) -> Result<ObjectStat>;

    /// Where its bytes may be moved from its own pages, and into them.
    fn windows(&self) -> Option<&Windows> {
        None
    }

    /// What was written is on the device.
    fn sync(&self) -> Result<()>;

    /// Bytes that one call should write to its file at most.
    fn call_bytes(&self) -> usize {
        usize::MAX
    }

    /// Whether anybody has its file open or mapped, by a descriptor that was passed.
    fn is_held(&self) -> bool {
        false
    }

    /// A descriptor for a process of the same node, where the store has one to give; `write`: for writing too.
    fn descriptor(&self, _write: bool) -> Option<Result<std::os::fd::OwnedFd>> {
        None
    }
}

/// What a device or file system said.
pub(crate) fn device_error(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::NoSpace,
        Errno::FBIG => Error::FileTooLarge,
        other => Error::Device(other.raw_os_error()),
    }
}

/// Whether an object is in one of these runs: see [`ObjectStore::list`].
pub(crate) fn is_listed(runs: &[(ObjectId, u32)], object: ObjectId) -> bool {
    let after = runs.partition_point(|(first, _)| *first <= object);
    let run = after.checked_sub(1).and_then(|index| runs.get(index));
    run.is_some_and(|(first, count)| object.raw() - first.raw() < u64::from(*count))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is changed in single steps: a thread that panicked elsewhere left it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
