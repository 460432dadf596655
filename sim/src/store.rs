//! A simulated storage server: the production collector and the production check of rights, over objects in memory.
//!
//! The bytes of a write come in pieces, and the production gate admits each of them.
//!
//! Faults: the disk is *full* for a while (a write that would make an object longer is cut off at its end and refused),
//! and a write may be *torn*: its connection broke, or its client died, while the bytes came in, and only the first of
//! them are there.
//!
//! A device may have *bad sectors* for a while: a read of them fails, and of a write only what lies before them lands.
//!
//! A descriptor of an object is passed over the connection on which it was asked for (`object_file.rs`).

use crate::bytes::{Moment, OperationId};
use crate::object_file::{Descriptor, Device, ObjectFile, count};
use crate::wire::Wire;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use weft_metadata::Now;
use weft_protocol::capability::seconds_of;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::error::errno;
use weft_protocol::map::FIRST_EPOCH;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Error, InodeNumber, NodeId, NodeKey, ObjectId, Result, SessionId, ShardId, Timestamp, routing,
};
use weft_storage::{CachedRanges, Collector, FenceTable, Gate, RangeRequest, ServingTerms, check_access};

/// Bytes of the pages in which ranges that kernels cache are counted.
const RANGE_PAGE_BYTES: u64 = 16;

/// Bytes, shown as runs of equal ones.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a == b);
        let runs: Vec<String> = runs.map(|run| format!("{} x {}", run.len(), run[0])).collect();
        write!(f, "[{}]", runs.join(", "))
    }
}

/// A data request and the bytes behind it, as they come in on a connection.
#[derive(Clone)]
pub struct DataMessage {
    pub session: SessionId,
    /// Requests on one connection come in order.
    pub connection: u64,
    pub wire: Rc<Wire>,
    pub request: DataRequest,
    pub bytes: Bytes,
    /// The append that it carries.
    pub append: Option<OperationId>,
    /// When the bytes come that do not come with the header.
    pub pieces_ms: Vec<u64>,
    /// Its client sent it then, perhaps the last thing that it did.
    pub sent: Moment,
}

impl fmt::Debug for DataMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DataRequest { operation, object, inode, offset, bytes, .. } = &self.request;
        write!(f, "{operation:?} of {bytes} at {offset} of object {object} of inode {inode}, {:?}", self.bytes)
    }
}

#[derive(Debug)]
struct Object {
    inode: InodeNumber,
    file: Rc<ObjectFile>,
}

/// One storage server.
pub struct Storage {
    node: NodeId,
    pub collector: Collector,
    fences: FenceTable,
    pub terms: ServingTerms,
    /// The node's.
    pub map: ClusterMap,
    objects: BTreeMap<ObjectId, Object>,
    /// What kernels cache without a lease, in small pages.
    pub ranges: CachedRanges,
    /// When the next tick of the ranges is due.
    pub tick_ms: Option<u64>,
    pub device: Rc<Device>,
    /// Bytes of objects that cannot be read or written, and until when.
    bad_sectors: (Range<usize>, u64),
    /// Reads and writes that failed there.
    pub failed_reads: u64,
    pub failed_writes: u64,
}

impl Storage {
    pub fn new(node: NodeId, map: ClusterMap) -> Self {
        let (collector, fences) = (Collector::new(node, 1), FenceTable::default());
        let (terms, objects, ranges) =
            (ServingTerms::default(), BTreeMap::new(), CachedRanges::new(RANGE_PAGE_BYTES, 1, 1));
        Self {
            node,
            collector,
            fences,
            terms,
            map,
            objects,
            ranges,
            tick_ms: None,
            device: Rc::default(),
            bad_sectors: (0..0, 0),
            failed_reads: 0,
            failed_writes: 0,
        }
    }

    /// Until then the device cannot read or write these bytes of any object.
    pub fn set_bad_sectors(&mut self, bytes: Range<usize>, until_ms: u64) {
        self.bad_sectors = (bytes, until_ms);
    }

    /// The first byte of a range that cannot be read or written.
    fn bad_byte(&self, range: &Range<usize>, now_ms: u64) -> Option<usize> {
        let (bad, until_ms) = &self.bad_sectors;
        let is_bad = now_ms < *until_ms && range.start < bad.end && bad.start < range.end;
        is_bad.then(|| bad.start.max(range.start))
    }

    /// All objects, with the files they are of.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, InodeNumber)> {
        self.objects.iter().map(|(object, record)| (*object, record.inode))
    }

    pub fn remove(&mut self, object: ObjectId) {
        if let Some(removed) = self.objects.remove(&object) {
            removed.file.unlink();
        }
    }

    /// The bytes of an object.
    pub fn bytes(&self, object: ObjectId) -> Option<Vec<u8>> {
        self.objects.get(&object).map(|object| object.file.bytes())
    }

    /// The length of an object; 0: it is not there.
    pub fn length(&self, object: ObjectId) -> u64 {
        self.objects.get(&object).map_or(0, |object| object.file.len()) as u64
    }

    /// Moves an object to another file if anybody has a descriptor of the present one.
    pub fn abandon(&mut self, inode: InodeNumber, object: ObjectId) {
        let device = Rc::clone(&self.device);
        let Ok(object) = self.object(inode, object) else { return };
        if Rc::strong_count(&object.file) > 1 {
            object.file = object.file.replace();
            count(&device.abandoned);
        }
    }

    /// An object by both of its numbers: what another file claims is not there.
    fn object(&mut self, inode: InodeNumber, object: ObjectId) -> Result<&mut Object> {
        self.objects.get_mut(&object).filter(|object| object.inode == inode).ok_or(Error::NoObject)
    }

    /// The header of a client's request has come: may it be served? Makes the object that it may make.
    pub fn begin(&mut self, message: &DataMessage, key: &NodeKey, wall: Timestamp) -> Result<()> {
        let DataMessage { session, request, .. } = message;
        let seconds = seconds_of(wall);
        let grant = check_access(request, *session, self.node, key, seconds, FIRST_EPOCH)?;
        if self.gate_of(request).is_fenced() {
            return Err(Error::SessionEnded);
        }
        if grant.create {
            self.make(request.inode, request.object, wall);
        }
        self.object(request.inode, request.object)?;
        Ok(())
    }

    /// Makes an object if there is none of its number.
    fn make(&mut self, inode: InodeNumber, object: ObjectId, wall: Timestamp) {
        let device = Rc::clone(&self.device);
        self.objects.entry(object).or_insert_with(|| Object { inode, file: ObjectFile::new(&device, wall) });
    }

    /// What a request is to the ranges that kernels cache; `None`: it may go at once.
    pub fn range_of(&self, message: &DataMessage) -> Option<RangeRequest> {
        let DataMessage { session, request, .. } = message;
        let object_bytes = || Ok::<_, Infallible>(self.length(request.object));
        let Ok(range) = RangeRequest::of_data(*session, request, object_bytes);
        range
    }

    /// The gate of the session, or of the group, that the request's right is of.
    fn gate_of(&mut self, request: &DataRequest) -> Arc<Gate> {
        let (session, shard) = (request.capability.session, routing::of_inode(request.inode));
        let of = self.map.node_of(shard).expect("the map has all shards");
        let term = self.terms.term(shard, of == self.node);
        self.fences.gate(session, shard, &term)
    }

    /// A piece of a write has come: those bytes of it, counted from its beginning. Passes the session's gate.
    pub fn piece(&mut self, message: &DataMessage, range: Range<usize>, now: Now) -> Result<()> {
        let DataMessage { request, bytes, .. } = message;
        let gate = self.gate_of(request);
        gate.enter(|| now.boot_ms)?;
        let append = request.operation == DataOperation::Append;
        let end = self.object(request.inode, request.object).map_or(0, |object| object.file.len());
        let offset = if append { end } else { index(request.offset) + range.start };
        let came = &bytes.0[range];
        let bad = self.bad_byte(&(offset..offset + came.len()), now.boot_ms);
        let came = bad.map_or(came, |bad| &came[..bad - offset]);
        let object = self.object(request.inode, request.object);
        let taken = object.map(|object| object.file.write(offset, came, now) == came.len());
        gate.leave();
        if !taken? {
            return Err(Error::NoSpace);
        }
        if bad.is_some() {
            self.failed_writes += 1;
            return Err(Error::Device(errno::EIO));
        }
        Ok(())
    }

    /// What a client's request is answered, when all its bytes have come.
    pub fn end(&mut self, message: &DataMessage, now_ms: u64) -> Result<(DataReply, Bytes)> {
        let request = &message.request;
        if request.operation == DataOperation::Descriptor {
            self.pass(message, now_ms)?;
        }
        let object = self.object(request.inode, request.object)?;
        let mut told = Bytes::default();
        if request.operation == DataOperation::Read {
            let from = index(request.offset).min(object.file.len());
            let to = (from + request.bytes as usize).min(object.file.len());
            told = Bytes(object.file.read(from..to));
            if self.bad_byte(&(from..to), now_ms).is_some() {
                self.failed_reads += 1;
                return Err(Error::Device(errno::EIO));
            }
        }
        let object = self.object(request.inode, request.object)?;
        let (size, mtime) = object.file.stat();
        let bulk_bytes = u32::try_from(told.0.len()).unwrap_or(u32::MAX);
        let is_held = request.operation == DataOperation::IsHeld && Rc::strong_count(&object.file) > 1;
        let written_bytes = u32::from(is_held);
        Ok((DataReply { size, mtime, bulk_bytes, written_bytes, ..DataReply::default() }, told))
    }

    /// Passes a descriptor with the reply. A fence that comes later finds the file open elsewhere.
    fn pass(&mut self, message: &DataMessage, now_ms: u64) -> Result<()> {
        let DataMessage { request, wire, .. } = message;
        let gate = self.gate_of(request);
        gate.enter(|| now_ms)?;
        let object = self.object(request.inode, request.object);
        let passed = object.map(|object| wire.pass(Descriptor::new(&object.file, request.bytes == 1)));
        gate.leave();
        passed
    }

    /// A shard has ended a session.
    pub fn fence(&mut self, session: SessionId, shard: ShardId, now: Now) {
        self.fences.add(session, shard, seconds_of(now.wall));
    }

    /// A shard's request.
    pub fn perform(&mut self, request: &StorageRequest, now: Now) -> Result<StorageAnswer> {
        match request {
            StorageRequest::Stat { inode, object } => self.object(*inode, *object)?.stat(),
            StorageRequest::Make { inode, object } => {
                self.make(*inode, *object, now.wall);
                self.object(*inode, *object)?.stat()
            }
            StorageRequest::Truncate { inode, object, size, .. } => {
                let object = self.object(*inode, *object)?;
                object.file.truncate(index(*size), now)?;
                object.stat()
            }
            StorageRequest::Remove { objects } => {
                objects.iter().for_each(|(_, object)| self.remove(*object));
                Ok(StorageAnswer::Done)
            }
            StorageRequest::Fence { .. }
            | StorageRequest::LeaseObjects { .. }
            | StorageRequest::Space
            | StorageRequest::ListBelow { .. }
            | StorageRequest::FillFromBelow { .. } => Err(Error::Invalid),
        }
    }
}

impl Object {
    fn stat(&self) -> Result<StorageAnswer> {
        let (size, mtime) = self.file.stat();
        Ok(StorageAnswer::Object { size, mtime })
    }
}

/// A place in a file, which is in memory here.
pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("the simulation runs where an address has 64 bits")
}
