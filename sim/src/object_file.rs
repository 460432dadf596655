//! The file of an object, and descriptors of it: who has one reads and writes past the storage server, its check of
//! rights and its fences.
//!
//! A descriptor ends when it is dropped, and not before: of a session that has ended the storage server moves the
//! objects to other files (`Storage::abandon`), so that what is written late is in no object.

use crate::store::index;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use weft_metadata::Now;
use weft_protocol::{Error, Result, Timestamp};

/// The device of a node, as far as descriptors meet it.
#[derive(Default)]
pub struct Device {
    /// By the node's clock: no file becomes longer until then.
    pub full_until_ms: Cell<u64>,
    /// Writes refused since it was full.
    pub refused: Cell<u64>,
    /// Descriptors that were passed; reads and writes through them; of the writes, those of files that are no
    /// object's any more; objects that have another file.
    pub passed: Cell<u64>,
    pub through: Cell<u64>,
    pub late: Cell<u64>,
    pub abandoned: Cell<u64>,
}

/// Counts one more.
pub fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

#[derive(Clone)]
struct Contents {
    bytes: Vec<u8>,
    mtime: Timestamp,
}

/// The file of an object.
pub struct ObjectFile {
    device: Rc<Device>,
    contents: RefCell<Contents>,
    /// The object has it.
    has_name: Cell<bool>,
}

/// A descriptor.
#[derive(Clone)]
pub struct Descriptor {
    pub file: Rc<ObjectFile>,
    for_writing: bool,
}

impl fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor of {:?}", self.file)
    }
}

impl ObjectFile {
    pub fn new(device: &Rc<Device>, mtime: Timestamp) -> Rc<Self> {
        let contents = RefCell::new(Contents { bytes: Vec::new(), mtime });
        Rc::new(Self { device: Rc::clone(device), contents, has_name: Cell::new(true) })
    }

    /// Returns a copy that has the object's name from now on.
    pub fn replace(&self) -> Rc<Self> {
        self.has_name.set(false);
        let (device, contents) = (Rc::clone(&self.device), self.contents.clone());
        Rc::new(Self { device, contents, has_name: Cell::new(true) })
    }

    /// The object is removed: only descriptors keep it.
    pub fn unlink(&self) {
        self.has_name.set(false);
    }

    pub fn has_name(&self) -> bool {
        self.has_name.get()
    }

    pub fn len(&self) -> usize {
        self.contents.borrow().bytes.len()
    }

    /// Size and modification time.
    pub fn stat(&self) -> (u64, Timestamp) {
        let contents = self.contents.borrow();
        (contents.bytes.len() as u64, contents.mtime)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.contents.borrow().bytes.clone()
    }

    /// The bytes of a range, up to the end.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        let contents = self.contents.borrow();
        let end = contents.bytes.len();
        contents.bytes[range.start.min(end)..range.end.min(end)].to_vec()
    }

    /// Writes bytes, on a full device those before the end alone. Returns how many.
    pub fn write(&self, offset: usize, bytes: &[u8], now: Now) -> usize {
        let is_full = self.device.full_until_ms.get() > now.boot_ms;
        let mut contents = self.contents.borrow_mut();
        let room = if is_full { contents.bytes.len().saturating_sub(offset) } else { usize::MAX };
        let taken = bytes.get(..room).unwrap_or(bytes);
        if taken.len() < bytes.len() {
            count(&self.device.refused);
        }
        if !taken.is_empty() {
            let end = offset + taken.len();
            let length = contents.bytes.len().max(end);
            contents.bytes.resize(length, 0);
            contents.bytes[offset..end].copy_from_slice(taken);
            // As on a file system with multigrain timestamps: what was told is never told of a later change.
            contents.mtime = now.wall.after(contents.mtime);
        }
        taken.len()
    }

    /// Writes as who has it open, whether or not the object has it still. A kernel that was passed a descriptor opens
    /// the file again, as the program has opened its own (`backing_file_open`).
    pub fn write_past(&self, offset: u64, bytes: &[u8], now: Now) -> usize {
        count(&self.device.through);
        if !self.has_name() {
            count(&self.device.late);
        }
        self.write(index(offset), bytes, now)
    }

    /// Gives it a length, unless the device is full and it would become longer.
    pub fn truncate(&self, length: usize, now: Now) -> Result<()> {
        let mut contents = self.contents.borrow_mut();
        if self.device.full_until_ms.get() > now.boot_ms && length > contents.bytes.len() {
            count(&self.device.refused);
            return Err(Error::NoSpace);
        }
        contents.bytes.resize(length, 0);
        contents.mtime = now.wall.after(contents.mtime);
        Ok(())
    }
}

impl Descriptor {
    pub fn new(file: &Rc<ObjectFile>, for_writing: bool) -> Self {
        count(&file.device.passed);
        Self { file: Rc::clone(file), for_writing }
    }

    /// Reads up to the end.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        count(&self.file.device.through);
        let offset = index(offset);
        self.file.read(offset..offset.saturating_add(bytes))
    }

    /// Writes. Returns how many bytes there was space for.
    pub fn write(&self, offset: u64, bytes: &[u8], now: Now) -> Result<usize> {
        if self.for_writing { Ok(self.file.write_past(offset, bytes, now)) } else { Err(Error::BadHandle) }
    }
}
