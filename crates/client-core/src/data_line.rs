//! A data connection in use, and what becomes of its writes when it fails.
//!
//! A connection that fails with a write outstanding is *given up*: the node may have the bytes in a socket, and may
//! write them whenever it goes on, also behind a later write. So before anything else goes to that node for this
//! session, the node is told to revoke the connection ([`Objects::settle_given_up`]), and answers when no further byte
//! of it lands. The link to the node keeps the connections that are given up and not revoked.

use crate::link::Link;
use crate::objects::{Objects, Registration};
use crate::shell::{DataConnection, PassedDescriptor, Shell};
use std::sync::Arc;
use weft_protocol::Result;
use weft_protocol::data::{DataOperation, DataReply, DataRequest};

/// See the module.
pub struct DataLine<S: Shell> {
    connection: S::Data,
    link: Arc<Link<S>>,
    outstanding: Outstanding<S>,
}

/// Writes without a reply. Those that are left when it is dropped are given up.
struct Outstanding<S: Shell> {
    link: Arc<Link<S>>,
    connection: weft_protocol::ConnectionId,
    writes: usize,
    is_given_up: bool,
}

impl<S: Shell> Outstanding<S> {
    /// The outcome of a write is unknown.
    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.is_given_up, true) {
            self.link.give_up(self.connection);
        }
    }
}

impl<S: Shell> Drop for Outstanding<S> {
    fn drop(&mut self) {
        if self.writes > 0 {
            self.give_up();
        }
    }
}

impl<S: Shell> DataLine<S> {
    /// A connection with nothing outstanding.
    pub(crate) fn new(link: Arc<Link<S>>, connection: S::Data) -> Self {
        let id = connection.id();
        let outstanding = Outstanding { link: Arc::clone(&link), connection: id, writes: 0, is_given_up: false };
        Self { connection, link, outstanding }
    }

    /// Returns the connection, with nothing outstanding, to the pool.
    pub fn give_back(self, shell: &S) {
        shell.return_data(self.connection);
    }

    /// Another connection for one that turned out to be dead.
    pub(crate) async fn replace(self, io: &Objects<S>) -> Result<Self> {
        let Self { connection, link, outstanding } = self;
        drop(outstanding);
        let connection = io.calls.shell.replace_data(connection).await?;
        io.settle_given_up(&link).await?;
        Ok(Self::new(link, connection))
    }

    /// Has the node revoke what was given up since the connection was taken. For a connection that is kept from call
    /// to call, before each request.
    pub(crate) async fn settle(&self, io: &Objects<S>) -> Result<()> {
        io.settle_given_up(&self.link).await
    }

    pub(crate) async fn read(
        &mut self,
        request: &DataRequest,
        into: &mut [u8],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        self.connection.read(request, into, registration).await
    }

    pub(crate) async fn write(
        &mut self,
        request: &DataRequest,
        from: &[u8],
        registration: Option<Registration<S>>,
    ) -> Result<DataReply> {
        let writes = matches!(request.operation, DataOperation::Write | DataOperation::Append);
        self.outstanding.writes += usize::from(writes);
        let reply = self.connection.write(request, from, registration).await;
        match &reply {
            Ok(_) => self.outstanding.writes -= usize::from(writes),
            Err(_) if writes => self.outstanding.give_up(),
            Err(_) => {}
        }
        reply
    }

    pub(crate) async fn start_write(
        &mut self,
        request: &DataRequest,
        from: Vec<u8>,
    ) -> std::result::Result<(), Vec<u8>> {
        self.outstanding.writes += 1;
        let started = self.connection.start_write(request, from).await;
        if started.is_err() {
            self.outstanding.give_up();
        }
        started
    }

    pub(crate) async fn start_lent(&mut self, request: &DataRequest, from: &[u8]) -> Result<()> {
        self.outstanding.writes += 1;
        let started = self.connection.start_lent(request, from).await;
        if started.is_err() {
            self.outstanding.give_up();
        }
        started
    }

    pub(crate) async fn finish(&mut self) -> Option<(Vec<u8>, Result<DataReply>)> {
        let finished = self.connection.finish().await;
        match &finished {
            Some((_, Ok(_))) => self.outstanding.writes -= 1,
            Some((_, Err(_))) => self.outstanding.give_up(),
            None => {}
        }
        finished
    }

    pub(crate) async fn ask(&mut self, request: &DataRequest) -> Result<()> {
        self.connection.ask(request).await
    }

    pub(crate) async fn receive(&mut self, into: &mut [u8]) -> Result<usize> {
        self.connection.receive(into).await
    }

    pub(crate) fn met_end(&self) -> bool {
        self.connection.met_end()
    }

    pub(crate) async fn receive_in_place(&mut self, bytes: usize, give: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.connection.receive_in_place(bytes, give).await
    }

    pub(crate) async fn discard(&mut self) -> Result<()> {
        self.connection.discard().await
    }

    pub(crate) async fn ask_descriptor(
        &mut self,
        shell: &S,
        request: &DataRequest,
    ) -> Result<PassedDescriptor<S::Descriptor>> {
        shell.ask_descriptor(&mut self.connection, request).await
    }

    pub(crate) fn prefetch_window(&self) -> (u32, u64) {
        self.connection.prefetch_window()
    }

    pub(crate) fn may_start(&self, bytes: usize) -> bool {
        self.connection.may_start(bytes)
    }

    pub(crate) fn registers_memory(&self) -> bool {
        self.connection.registers_memory()
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.connection.is_crowded()
    }
}
