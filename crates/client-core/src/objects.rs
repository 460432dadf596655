//! Requests to storage servers: file data over pooled connections.
//!
//! Not here: where new objects are made (`new_objects.rs`).

use crate::calls::Calls;
use crate::data_line::DataLine;
use crate::file_objects::{FileObjects, Held};
use crate::home::candidates;
use crate::link::Link;
use crate::lock::lock;
use crate::new_objects::NewObjects;
use crate::notice::Notice;
use crate::parts_in_use::PartsInUse;
use crate::shell::{DataConnection, Shell};
use crate::tuning::Tuning;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest};
use weft_protocol::{Error, InodeNumber, NodeId, Result};

/// What memory a transfer registers, in the shell's terms.
pub type Registration<S> = <<S as Shell>::Data as DataConnection>::Registration;

/// See the module.
pub struct Objects<S: Shell> {
    pub calls: Calls<S>,
    pub tuning: Tuning,
    home: AtomicU16,
    /// Epoch of the map by which the home was chosen.
    home_epoch: AtomicU32,
    /// Identifier of the latest pipelined writes.
    pipelined: AtomicU64,
    pub(crate) new_objects: NewObjects,
    pub(crate) parts_in_use: PartsInUse,
    /// A home has refused to pass the descriptor of a new object: its store has a size limit.
    pub(crate) home_passes_none: AtomicBool,
    /// Nodes of this machine that pass no descriptors, for writing (`true`) or at all.
    passes_none: Mutex<BTreeSet<(NodeId, bool)>>,
}

/// A data request over sockets.
pub(crate) fn request(
    inode: InodeNumber,
    operation: DataOperation,
    held: Held,
    offset: u64,
    bytes: usize,
) -> DataRequest {
    DataRequest {
        operation,
        pages: false,
        bytes: u32::try_from(bytes).expect("callers cut transfers into pieces of BULK_BYTES_MAX"),
        id: 0,
        object: held.object,
        inode,
        offset,
        memory: BulkDescriptor::default(),
        capability: held.capability,
    }
}

/// A write straight to the objects of a file.
pub(crate) struct ObjectWrite {
    pub inode: InodeNumber,
    pub objects: FileObjects,
    pub operation: DataOperation,
    /// The bytes stay in pages of a kernel that no lease covers.
    pub pages: bool,
    /// Some of its bytes may be in the file, though it has failed. It stays so when the write is made again.
    pub may_have_landed: bool,
}

impl ObjectWrite {
    /// A write that has not begun.
    pub fn new((inode, objects): (InodeNumber, FileObjects), operation: DataOperation, pages: bool) -> Self {
        Self { inode, objects, operation, pages, may_have_landed: false }
    }
}

/// A capability that is void because its session has ended is asked for again like any other: the shard then says that
/// the session has ended, and a new one is begun.
pub(crate) fn void_with_session(error: Error) -> Error {
    if error == Error::SessionEnded { Error::CapabilityRejected } else { error }
}

impl<S: Shell> Objects<S> {
    /// [`Error::Unreachable`]: no node of the map has storage.
    pub fn new(calls: Calls<S>, tuning: Tuning) -> Result<Self> {
        let home_epoch = AtomicU32::new(calls.map_epoch().0);
        let home = *candidates(&calls.shell, &calls.map()).first().ok_or(Error::Unreachable)?;
        let new_objects = NewObjects::new(calls.shell.random());
        Ok(Self {
            calls,
            tuning,
            home: AtomicU16::new(home.0),
            home_epoch,
            pipelined: AtomicU64::new(0),
            new_objects,
            parts_in_use: PartsInUse::default(),
            home_passes_none: AtomicBool::new(false),
            passes_none: Mutex::default(),
        })
    }

    /// Returns an identifier for writes that are pipelined on one connection: the server refuses those that follow one
    /// for which it has no space.
    pub(crate) fn next_pipelined(&self) -> u64 {
        self.pipelined.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes a data connection to a node. What was given up before has been revoked there.
    pub async fn data_connection(&self, node: NodeId) -> Result<DataLine<S>> {
        let link = self.calls.link_without_recalls(node)?;
        self.settle_given_up(&link).await?;
        let connection = self.calls.shell.take_data(&link.record, link.session).await;
        link.note_connect(!matches!(connection, Err(Error::Unreachable)));
        connection.map(|connection| DataLine::new(link, connection))
    }

    /// Has the node revoke all connections on which writes were given up: none of their bytes lands any more.
    pub(crate) async fn settle_given_up(&self, link: &Link<S>) -> Result<()> {
        while let Some((session, given_up)) = link.given_up() {
            let shell = &self.calls.shell;
            let revoke = DataRequest::revoke(session, given_up);
            let mut connection = shell.take_data(&link.record, link.session).await?;
            let mut reply = connection.write(&revoke, &[], None).await;
            if reply.is_err() {
                connection = shell.replace_data(connection).await?;
                reply = connection.write(&revoke, &[], None).await;
            }
            let reply = reply?;
            shell.return_data(connection);
            reply.result()?;
            link.revoked(session, given_up);
        }
        Ok(())
    }

    /// Returns true if connections to the node are given up and not revoked.
    pub(crate) fn has_given_up(&self, node: NodeId) -> bool {
        self.calls.link_without_recalls(node).is_ok_and(|link| link.given_up().is_some())
    }

    /// As [`Objects::settle_given_up`], for a node. Before a change that reaches the node's objects by another way.
    pub(crate) async fn settle_node(&self, node: NodeId) -> Result<()> {
        let link = self.calls.link_without_recalls(node)?;
        self.settle_given_up(&link).await
    }

    /// A connection for a request. The node of pages that a kernel keeps has to reach this session.
    async fn connection_for(&self, request: &DataRequest) -> Result<DataLine<S>> {
        let node = request.object.node();
        if request.pages {
            self.calls.link(node).await?;
            self.calls.session.noted_pages.note(node, request.inode, self.calls.shell.now_ms());
        }
        self.data_connection(node).await
    }

    /// Takes a data connection to a home that answers.
    pub async fn data_connection_at_home(&self) -> Result<DataLine<S>> {
        let mut home = self.home();
        // Each change of home goes to a node that has just answered, so that few follow one another.
        for _ in 0..=self.calls.map().nodes.len() {
            match self.data_connection(home).await {
                Err(Error::Unreachable) => home = self.next_home(home).await.ok_or(Error::Unreachable)?,
                taken => return taken,
            }
        }
        Err(Error::Unreachable)
    }

    /// Takes a data connection to keep it from call to call. `None`: too many are in use.
    pub(crate) async fn data_connection_to_keep(&self, node: NodeId) -> Result<Option<DataLine<S>>> {
        let link = self.calls.link_without_recalls(node)?;
        self.settle_given_up(&link).await?;
        let connection = self.calls.shell.take_data_to_keep(&link.record, link.session).await;
        link.note_connect(!matches!(connection, Err(Error::Unreachable)));
        Ok(connection?.map(|connection| DataLine::new(link, connection)))
    }

    /// Reads into the caller's memory, again on a new connection when the first one turns out to be dead.
    pub(crate) async fn data_read(
        &self,
        request: &DataRequest,
        into: &mut [u8],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        let mut connection = self.connection_for(request).await?;
        let shell = &self.calls.shell;
        shell.notice(Notice::DataRequest);
        let mut reply = connection.read(request, into, registration).await;
        if reply.is_err() {
            connection = connection.replace(self).await?;
            reply = connection.read(request, into, registration).await;
        }
        let reply = reply?;
        connection.give_back(shell);
        reply.result().copied().map_err(void_with_session)
    }

    /// Writes from the caller's memory, likewise; an append only once. Also requests without bulk.
    pub(crate) async fn data_write(
        &self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        self.data_write_once(request, from, registration, &mut false).await
    }

    /// As [`Objects::data_write`]. Sets `may_have_landed` if it fails and bytes may be in the object: the server says
    /// so, or a connection broke.
    pub(crate) async fn data_write_once(
        &self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Registration<S>>,
        may_have_landed: &mut bool,
    ) -> Result<DataReply> {
        let mut connection = self.connection_for(request).await?;
        let shell = &self.calls.shell;
        shell.notice(Notice::DataRequest);
        let mut reply = connection.write(request, from, registration).await;
        *may_have_landed |= reply.is_err();
        if reply.is_err() && request.operation != DataOperation::Append {
            connection = connection.replace(self).await?;
            reply = connection.write(request, from, registration).await;
        }
        let reply = reply?;
        connection.give_back(shell);
        *may_have_landed |= reply.is_torn();
        reply.result().copied().map_err(void_with_session)
    }

    /// A descriptor of the object's file, and how many bytes to write through it with one system call. `None`: the node
    /// passes none.
    pub(crate) async fn ask_descriptor(
        &self,
        inode: InodeNumber,
        held: Held,
        for_writing: bool,
    ) -> Option<(S::Descriptor, usize)> {
        let node = held.object.node();
        if !self.may_pass(node, for_writing) {
            return None;
        }
        let operation = request(inode, DataOperation::Descriptor, held, 0, usize::from(for_writing));
        let mut connection = self.data_connection(node).await.ok()?;
        let shell = &self.calls.shell;
        shell.notice(Notice::DataRequest);
        let mut asked = connection.ask_descriptor(shell, &operation).await;
        if asked.is_err() {
            connection = connection.replace(self).await.ok()?;
            asked = connection.ask_descriptor(shell, &operation).await;
        }
        let (reply, passed) = asked.ok()?;
        connection.give_back(shell);
        // To the owner's key that is so for all objects of the node: its store has none to pass, or counts every write.
        if reply.result().err() == Some(Error::NotSupported) && !self.calls.caller.is_fixed {
            lock(&self.passes_none).insert((node, for_writing));
        }
        let call_bytes = if reply.written_bytes == 0 { usize::MAX } else { reply.written_bytes as usize };
        passed.filter(|_| reply.status == 0).map(|file| (file, call_bytes))
    }

    /// Whether a node may pass descriptors: it is on this machine.
    pub(crate) fn is_near(&self, node: NodeId) -> bool {
        self.calls.shell.uses_descriptors() && self.is_on_this_machine(node)
    }

    /// Whether a node runs on this machine.
    pub(crate) fn is_on_this_machine(&self, node: NodeId) -> bool {
        self.calls.map().node(node).is_some_and(|node| self.calls.shell.is_local(node))
    }

    fn may_pass(&self, node: NodeId, for_writing: bool) -> bool {
        self.is_near(node) && !lock(&self.passes_none).contains(&(node, for_writing))
    }

    /// The current home node, alive or not. Each new map chooses it again: a node may have joined on this machine.
    pub fn home(&self) -> NodeId {
        let epoch = self.calls.map_epoch().0;
        if self.home_epoch.load(Ordering::Relaxed) != epoch
            && self.home_epoch.swap(epoch, Ordering::Relaxed) != epoch
            && let Some(home) = candidates(&self.calls.shell, &self.calls.map()).first()
        {
            self.home.store(home.0, Ordering::Relaxed);
            self.home_passes_none.store(false, Ordering::Relaxed);
        }
        NodeId(self.home.load(Ordering::Relaxed))
    }

    /// The home after one that was just found away; `None`: that one answers after all, or no other does.
    pub(crate) async fn next_home(&self, away: NodeId) -> Option<NodeId> {
        if self.calls.answers(away).await {
            return None;
        }
        let current = self.home();
        if current != away {
            // Another thread was here first.
            return Some(current);
        }
        for home in candidates(&self.calls.shell, &self.calls.map()) {
            if home != away && self.calls.answers(home).await {
                self.calls.shell.notice(Notice::HomeMoved { away, home });
                self.home.store(home.0, Ordering::Relaxed);
                self.new_objects.drop_batch(away);
                return Some(home);
            }
        }
        None
    }
}
