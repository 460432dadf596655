//! Gathered runs of written bytes on their way to the server: `crates/client/src/open_inode/runs.rs`.

use super::{RUNS_OUTSTANDING_MAX, State, request};
use crate::process::Io;
use weft_client_core::Taken;
use weft_protocol::data::{DataOperation, DataReply};
use weft_protocol::{Error, Result};

impl State {
    /// Adds bytes to the run, and sends it when it is full or they do not continue it.
    pub(super) async fn gather(&mut self, io: &Io, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            self.hold(io).await?;
            let taken = match self.run.take(offset, bytes, Vec::new) {
                Taken::All => bytes.len(),
                Taken::Part(count) => count,
                Taken::None => 0,
            };
            offset += taken as u64;
            bytes = &bytes[taken..];
            self.note_written(&io.process, offset);
            if self.run.is_full() || !bytes.is_empty() {
                self.send_run(io).await?;
            }
        }
        Ok(())
    }

    /// Sends the run, without waiting for its reply.
    async fn send_run(&mut self, io: &Io) -> Result<()> {
        if self.run.is_empty() {
            return Ok(());
        }
        while self.sending.len() >= RUNS_OUTSTANDING_MAX {
            self.finish_one(io).await;
        }
        self.hold(io).await?;
        let (Some(held), Some((offset, bytes))) = (self.known.held(), self.run.take_run()) else {
            return Err(Error::NoObject);
        };
        if self.sending.is_empty() {
            self.connection = io.new_connection();
        }
        let request = request(self.known.inode(), DataOperation::Write, held, offset, bytes.len());
        let ticket = io.start_data(self.connection, request, bytes.clone());
        self.sending.push_back((ticket, request, bytes));
        Ok(())
    }

    /// Waits for the oldest run on its way. When its connection broke, it and those behind it are written again.
    async fn finish_one(&mut self, io: &Io) {
        let Some((ticket, request, bytes)) = self.sending.pop_front() else { return };
        match io.finish_data(ticket).await {
            Some(result) => self.finished(io, result),
            None => {
                let behind = std::mem::take(&mut self.sending);
                for (request, bytes) in std::iter::once((request, bytes))
                    .chain(behind.into_iter().map(|(_, request, bytes)| (request, bytes)))
                {
                    let result = io.data(request, &bytes, None).await;
                    self.finished(io, result);
                }
            }
        }
    }

    fn finished(&mut self, io: &Io, result: Result<(DataReply, Vec<u8>)>) {
        match result {
            Ok((reply, _)) => self.known.written_at(reply.mtime),
            Err(error) => self.fail(&io.process, error),
        }
    }

    /// Sends the run and waits for everything on its way.
    pub(super) async fn send_all(&mut self, io: &Io) -> Result<()> {
        self.send_run(io).await?;
        while !self.sending.is_empty() {
            self.finish_one(io).await;
        }
        Ok(())
    }
}
