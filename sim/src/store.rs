//! A simulated storage server: the production collector and the production check of rights, over objects in memory.
//!
//! The bytes of a write come in pieces, and the production gate admits each of them.
//!
//! Faults: the disk is *full* for a while (a write that would make an object longer is cut off at its end and refused),
//! and a write may be *torn*: its connection broke, or its client died, while the bytes came in, and only the first of
//! them are there.
//!
//! Not here: descriptors of objects passed to clients, which write past the server.

use crate::bytes::{Moment, OperationId};
use crate::pages::PAGE_BYTES;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use weft_metadata::Now;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Error, InodeNumber, MapEpoch, NodeId, NodeKey, ObjectId, Result, SessionId, ShardId, Timestamp,
};
use weft_storage::{CachedRanges, Collector, FenceTable, Gate, RangeRequest, ServingTerm, ServingTerms, check_access};

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
    bytes: Vec<u8>,
    mtime: Timestamp,
}

/// One storage server.
pub struct Storage {
    node: NodeId,
    pub collector: Collector,
    fences: FenceTable,
    /// For the shards of this node, and for those of others.
    own_term: Arc<ServingTerm>,
    pub terms: ServingTerms,
    map: ClusterMap,
    objects: BTreeMap<ObjectId, Object>,
    /// What kernels cache without a lease, in pages as small as the programs'.
    pub ranges: CachedRanges,
    /// When the next tick of the ranges is due.
    pub tick_ms: Option<u64>,
    pub full_until_ms: u64,
    /// Writes refused since the disk was full.
    pub refused: u64,
}

impl Storage {
    pub fn new(node: NodeId, map: ClusterMap) -> Self {
        let (collector, fences) = (Collector::new(node, 1), FenceTable::default());
        let (own_term, terms) = (Arc::new(ServingTerm::unlimited()), ServingTerms::default());
        let (objects, ranges) = (BTreeMap::new(), CachedRanges::new(PAGE_BYTES, 1, 1));
        let (tick_ms, full_until_ms, refused) = (None, 0, 0);
        Self { node, collector, fences, own_term, terms, map, objects, ranges, tick_ms, full_until_ms, refused }
    }

    /// All objects, with the files they are of.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, InodeNumber)> {
        self.objects.iter().map(|(object, record)| (*object, record.inode))
    }

    pub fn remove(&mut self, object: ObjectId) {
        self.objects.remove(&object);
    }

    /// The bytes of an object.
    pub fn bytes(&self, object: ObjectId) -> Option<&[u8]> {
        self.objects.get(&object).map(|object| object.bytes.as_slice())
    }

    /// An object by both of its numbers: what another file claims is not there.
    fn object(&mut self, inode: InodeNumber, object: ObjectId) -> Result<&mut Object> {
        self.objects.get_mut(&object).filter(|object| object.inode == inode).ok_or(Error::NoObject)
    }

    /// The header of a client's request has come: may it be served? Makes the object that it may make.
    pub fn begin(&mut self, message: &DataMessage, key: &NodeKey, wall: Timestamp) -> Result<()> {
        let DataMessage { session, request, .. } = message;
        let seconds = u32::try_from(wall.parts().0).unwrap_or(u32::MAX);
        if self.gate(*session, request.inode.shard()).is_fenced() {
            return Err(Error::SessionEnded);
        }
        let grant = check_access(request, *session, self.node, key, seconds, MapEpoch(0))?;
        let writes = matches!(request.operation, DataOperation::Write | DataOperation::Append);
        if writes && grant.create {
            let made = || Object { inode: request.inode, bytes: Vec::new(), mtime: wall };
            self.objects.entry(request.object).or_insert_with(made);
        }
        self.object(request.inode, request.object)?;
        Ok(())
    }

    /// What a request is to the ranges that kernels cache; `None`: it may go at once.
    pub fn range_of(&self, message: &DataMessage) -> Option<RangeRequest> {
        let DataMessage { session, request, .. } = message;
        let object_bytes = || Ok::<_, Infallible>(self.bytes(request.object).map_or(0, <[u8]>::len) as u64);
        let Ok(range) = RangeRequest::of_data(*session, request, object_bytes);
        range
    }

    fn gate(&mut self, session: SessionId, shard: ShardId) -> Arc<Gate> {
        let of = self.map.node_of(shard).expect("the map has all shards");
        let term = if of == self.node { Arc::clone(&self.own_term) } else { self.terms.term(of) };
        self.fences.gate(session, shard, &term)
    }

    /// A piece of a write has come: those bytes of it, counted from its beginning. Passes the session's gate.
    pub fn piece(&mut self, message: &DataMessage, range: Range<usize>, now: Now) -> Result<()> {
        let DataMessage { session, request, bytes, .. } = message;
        let gate = self.gate(*session, request.inode.shard());
        gate.enter(|| now.boot_ms)?;
        let is_full = self.full_until_ms > now.boot_ms;
        let object = self.object(request.inode, request.object);
        let taken = object.map(|object| {
            let append = request.operation == DataOperation::Append;
            let offset = if append { object.bytes.len() } else { index(request.offset) + range.start };
            let came = bytes.0.get(range).unwrap_or_default();
            let room = if is_full { object.bytes.len().saturating_sub(offset) } else { usize::MAX };
            let taken = came.get(..room).unwrap_or(came);
            object.put(offset, taken, now.wall);
            taken.len() == came.len()
        });
        gate.leave();
        if !taken? {
            self.refused += 1;
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// What a client's request is answered, when all its bytes have come.
    pub fn end(&mut self, message: &DataMessage) -> Result<(DataReply, Bytes)> {
        let request = &message.request;
        let object = self.object(request.inode, request.object)?;
        let mut told = Bytes::default();
        if request.operation == DataOperation::Read {
            let from = index(request.offset).min(object.bytes.len());
            let to = (from + request.bytes as usize).min(object.bytes.len());
            told = Bytes(object.bytes[from..to].to_vec());
        }
        let (size, mtime) = (object.bytes.len() as u64, object.mtime);
        let bulk_bytes = u32::try_from(told.0.len()).unwrap_or(u32::MAX);
        Ok((DataReply { size, mtime, bulk_bytes, ..DataReply::default() }, told))
    }

    /// A shard has ended a session.
    pub fn fence(&mut self, session: SessionId, shard: ShardId, now: Now) {
        self.fences.add(session, shard, u32::try_from(now.wall.parts().0).unwrap_or(u32::MAX));
    }

    /// A shard's request.
    pub fn perform(&mut self, request: &StorageRequest, now: Now) -> Result<StorageAnswer> {
        let is_full = self.full_until_ms > now.boot_ms;
        match request {
            StorageRequest::Stat { inode, object } => self.object(*inode, *object)?.stat(),
            StorageRequest::Truncate { inode, object, size, .. } => {
                let object = self.object(*inode, *object)?;
                if is_full && index(*size) > object.bytes.len() {
                    self.refused += 1;
                    return Err(Error::NoSpace);
                }
                object.bytes.resize(index(*size), 0);
                object.mtime = now.wall.after(object.mtime);
                object.stat()
            }
            StorageRequest::Remove { objects } => {
                for (_, object) in objects {
                    self.objects.remove(object);
                }
                Ok(StorageAnswer::Done)
            }
            StorageRequest::Fence { .. } | StorageRequest::LeaseObjects { .. } | StorageRequest::Space => {
                Err(Error::Invalid)
            }
        }
    }
}

impl Object {
    fn put(&mut self, offset: usize, bytes: &[u8], wall: Timestamp) {
        if !bytes.is_empty() {
            let end = offset + bytes.len();
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[offset..end].copy_from_slice(bytes);
            // As on a file system with multigrain timestamps: what was told is never told of a later change.
            self.mtime = wall.after(self.mtime);
        }
    }

    fn stat(&self) -> Result<StorageAnswer> {
        Ok(StorageAnswer::Object { size: self.bytes.len() as u64, mtime: self.mtime })
    }
}

/// Files here are small.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
