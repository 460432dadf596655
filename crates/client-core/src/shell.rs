//! What a client machine needs of the outside: connections, a clock, locks, descriptors.
//!
//! Every procedure of the client (a call, a write, the answer to a recall) is an `async fn` over this trait: the
//! compiler makes a state machine of it that stops at each effect and goes on with the effect's result. The client
//! library's shell blocks inside each effect, so that a procedure ends at its first poll, on its caller's thread,
//! without an allocation or a switch (docs/decisions/0015). The simulation's shell suspends the procedure and resumes
//! it when virtual time and network have produced the result.
//!
//! Invariant: a procedure that was begun is polled until it ends, except when its whole client dies. So no buffer
//! under transfer outlives its owner.

use crate::notice::Notice;
use std::future::Future;
use std::ops::DerefMut;
use weft_protocol::data::{DataReply, DataRequest};
use weft_protocol::message::Message;
use weft_protocol::{ConnectionId, NodeId, NodeRecord, Result, SessionId, Timestamp};

/// A lock that procedures may hold across effects, with a condition to wait for.
pub trait Monitor<T> {
    /// Releases the lock when dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;

    /// An unlocked value.
    fn new(value: T) -> Self;

    /// Locks.
    fn lock<'a>(&'a self) -> impl Future<Output = Self::Guard<'a>>
    where
        T: 'a;

    /// Locks if nobody holds the lock.
    fn try_lock<'a>(&'a self) -> Option<Self::Guard<'a>>
    where
        T: 'a;

    /// Releases the lock, and takes it again after a notification. May return without one.
    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> impl Future<Output = Self::Guard<'a>>
    where
        T: 'a;

    /// Wakes all waiters.
    fn notify_all(&self);
}

/// A control connection: one call at a time.
pub trait ControlConnection {
    /// Sends a message and receives its reply. After an error the connection is of no more use.
    fn call(&mut self, message: &Message) -> impl Future<Output = Result<Message>> {
        async move {
            self.start(message).await?;
            self.finish().await
        }
    }

    /// Sends a message, whose reply [`ControlConnection::finish`] receives. Other connections may be used meanwhile.
    fn start(&mut self, message: &Message) -> impl Future<Output = Result<()>>;

    /// Receives the reply to the message that was started.
    fn finish(&mut self) -> impl Future<Output = Result<Message>>;

    /// Whether the peer closed it while it was idle. Sends nothing.
    fn is_closed(&self) -> bool;
}

/// A connection that carries data requests, one user at a time. Replies come in the order of the requests. After an
/// error the connection is of no more use; a request that the server refused is a reply, not an error.
pub trait DataConnection {
    /// Whose memory an RDMA transfer registers; the shell's business.
    type Registration: Copy;

    /// Reads into lent memory. Returns when the memory is the caller's again.
    fn read(
        &mut self,
        request: &DataRequest,
        into: &mut [u8],
        registration: Option<Self::Registration>,
    ) -> impl Future<Output = Result<DataReply>>;

    /// Writes from lent memory, likewise. Also for requests without bulk.
    fn write(
        &mut self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Self::Registration>,
    ) -> impl Future<Output = Result<DataReply>>;

    /// Starts a write from given memory, which comes back from [`DataConnection::finish`]. An error returns the memory;
    /// writes that were started before can still be finished, each with an error.
    fn start_write(
        &mut self,
        request: &DataRequest,
        from: Vec<u8>,
    ) -> impl Future<Output = std::result::Result<(), Vec<u8>>>;

    /// As [`DataConnection::start_write`], from lent memory, which has to stay as it is until the write is finished.
    /// Of such a write no memory comes back.
    fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> impl Future<Output = Result<()>>;

    /// Waits for the oldest write that was started. `None`: there is none.
    fn finish(&mut self) -> impl Future<Output = Option<(Vec<u8>, Result<DataReply>)>>;

    /// Prefetches a range: the reply's bytes stay in the connection until [`DataConnection::receive`].
    fn ask(&mut self, request: &DataRequest) -> impl Future<Output = Result<()>>;

    /// Takes the next prefetched bytes, in order; zeros where the object has ended. 0: nothing was prefetched.
    fn receive(&mut self, into: &mut [u8]) -> impl Future<Output = Result<usize>>;

    /// Whether what [`DataConnection::receive`] took last lay behind the object's end.
    fn met_end(&self) -> bool;

    /// Passes the next `bytes` prefetched bytes to `give` where they lie in the connection's own memory. `false`:
    /// they do not lie there in one piece, and nothing was taken. After an error `give` was not called.
    fn receive_in_place(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> impl Future<Output = Result<bool>>;

    /// Takes all prefetched bytes and forgets them.
    fn discard(&mut self) -> impl Future<Output = Result<()>>;

    /// Bytes of one prefetch request, and of all that were not taken yet.
    fn prefetch_window(&self) -> (u32, u64);

    /// Whether a write of so many bytes may be started before a reply is read: requests and bytes in flight are
    /// bounded, so that neither end blocks in a send while the other one does.
    fn may_start(&self, bytes: usize) -> bool;

    /// Whether the memory of writes is registered, and therefore reused rather than copied.
    fn registers_memory(&self) -> bool;

    /// Whether so many connections are in use that none should be kept from call to call.
    fn is_crowded(&self) -> bool;

    /// The connection's name at the node.
    fn id(&self) -> ConnectionId;
}

/// The node's answer to a request for a descriptor.
pub type PassedDescriptor<D> = (DataReply, Option<D>);

/// The outside of one client process.
pub trait Shell: Sized {
    type Monitor<T>: Monitor<T>;
    type Control: ControlConnection;
    type Data: DataConnection;
    /// The object's own file, passed by a node of the same machine.
    type Descriptor;
    /// Who waits for a lock.
    type LockWaiter;

    /// Milliseconds since boot, sleep included (CLOCK_BOOTTIME): what lease terms count on.
    fn now_ms(&self) -> u64;

    /// Wall-clock time, for the times of files and the terms of capabilities.
    fn wall(&self) -> Timestamp;

    /// An identifier that no other session has.
    fn new_session(&self) -> SessionId;

    /// A random number, for placement.
    fn random(&self) -> u64;

    /// Sleeps.
    fn sleep_us(&self, time_us: u64) -> impl Future<Output = ()>;

    /// Connects to a node for calls.
    fn connect(&self, node: &NodeRecord, session: SessionId) -> impl Future<Output = Result<Self::Control>>;

    /// Makes sure that recalls of a node reach this session, before anything is asked that may grant a lease.
    fn attend_recalls(&self, node: &NodeRecord, session: SessionId) -> impl Future<Output = Result<()>>;

    /// A session has ended, and with it every lease: its connections are of no more use, and caches above have to drop
    /// everything. Returns at once; the caches above are told on a thread of their own.
    fn session_ended(&self, ended: SessionId, dropped: crate::cache::Dropped);

    /// Wakes whoever gives leases back, because a batch of them has gathered.
    fn wake_release(&self);

    /// Has leases given back within milliseconds: somebody's space waits for them.
    fn release_soon(&self);

    /// Has the session renewed at once, everywhere: the groups that it names are others than before.
    fn renew_soon(&self);

    /// Whether the cache above (the kernel's) may still use an inode's number, or may be told of it by a reply that is
    /// on its way. If so, it says when it has forgotten it (`Files::forgotten`), or was not told after all
    /// (`Files::number_unused`, with this stamp).
    fn knows_number(&self, inode: weft_protocol::InodeNumber, stamp: u64) -> bool;

    /// Takes a connection for file data; waits when as many as allowed are in use.
    fn take_data(&self, node: &NodeRecord, session: SessionId) -> impl Future<Output = Result<Self::Data>>;

    /// As [`Shell::take_data`], for a connection that is kept from call to call. `None`: too many are in use.
    fn take_data_to_keep(
        &self,
        node: &NodeRecord,
        session: SessionId,
    ) -> impl Future<Output = Result<Option<Self::Data>>>;

    /// Another connection for one that turned out to be dead, and with it most likely all idle ones.
    fn replace_data(&self, dead: Self::Data) -> impl Future<Output = Result<Self::Data>>;

    /// Returns a connection with nothing outstanding to the pool.
    fn return_data(&self, connection: Self::Data);

    /// Whether reads into this memory, the caller's, should go straight there, without prefetching.
    fn reads_directly(&self, into: &[u8], registration: Option<<Self::Data as DataConnection>::Registration>) -> bool;

    /// Whether descriptors may be asked for at all: the client's settings do not forbid it.
    fn uses_descriptors(&self) -> bool;

    /// Asks for a descriptor of an object's file over a data connection.
    fn ask_descriptor(
        &self,
        connection: &mut Self::Data,
        request: &DataRequest,
    ) -> impl Future<Output = Result<PassedDescriptor<Self::Descriptor>>>;

    /// Reads through a descriptor, up to the file's end.
    fn read_file(&self, file: &Self::Descriptor, into: &mut [u8], offset: u64) -> impl Future<Output = Result<usize>>;

    /// Writes all bytes through a descriptor, at most `call_bytes` with each system call.
    fn write_file(
        &self,
        file: &Self::Descriptor,
        bytes: &[u8],
        offset: u64,
        call_bytes: usize,
    ) -> impl Future<Output = Result<()>>;

    /// Brings the file's data to its device.
    fn sync_file(&self, file: &Self::Descriptor) -> impl Future<Output = Result<()>>;

    /// Size and modification time of the file.
    fn stat_file(&self, file: &Self::Descriptor) -> Result<(u64, Timestamp)>;

    /// Whether the object has another file by now: the storage server abandons a file when a session has ended with a
    /// descriptor of it.
    fn is_abandoned(&self, file: &Self::Descriptor) -> bool;

    /// A wait for a lock is over. Returns at once: locks may be held.
    fn lock_ended(&self, waiter: Self::LockWaiter, result: Result<()>);

    /// Tells the cache above (the kernel's) to drop an inode's attributes and, with `data`, its pages; it writes dirty
    /// pages back to this client first.
    fn invalidate_inode(&self, inode: weft_protocol::InodeNumber, data: bool) -> impl Future<Output = ()>;

    /// Bytes of an inode that the cache above may have are lost: it has to drop them. Returns at once, since the cache
    /// above may be waiting for the caller; it is told on a thread of its own.
    fn contents_lost(&self, inode: weft_protocol::InodeNumber);

    /// Tells the cache above (the kernel's) to drop its pages of a range (`bytes` `u64::MAX`: to the end). Returns when
    /// none is left that was there before; waits for reads of these pages that are being served.
    fn invalidate_pages(&self, inode: weft_protocol::InodeNumber, offset: u64, bytes: u64) -> impl Future<Output = ()>;

    /// Tells the cache above to drop what a recall or an eviction took.
    fn invalidate(&self, dropped: &crate::cache::Dropped) -> impl Future<Output = ()>;

    /// Something worth a line in a log, a counter, or a checker's attention.
    fn notice(&self, notice: Notice);

    /// The node is on this machine (and reachable by this client's key without TCP).
    fn is_local(&self, node: &NodeRecord) -> bool;
}

/// A node that a message named and the map knows.
pub(crate) fn node_of(map: &weft_protocol::ClusterMap, node: NodeId) -> Result<&NodeRecord> {
    map.node(node).ok_or(weft_protocol::Error::Unreachable)
}
