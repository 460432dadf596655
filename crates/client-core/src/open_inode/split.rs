//! An open inode whose file is split.

use super::in_flight::Flight;
use super::{FlushFor, Guard, OpenInode, State, Written};
use crate::objects::{Objects, Registration};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use crate::split::SplitFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::{Credentials, Layout, Result};

impl<S: Shell> OpenInode<S> {
    /// The file as a split one, with this layout when it was opened.
    pub(crate) fn split(&self, io: &Objects<S>, layout: &Layout, who: &Arc<Credentials>) -> &SplitFile<S> {
        self.split.get_or_init(|| Box::new(SplitFile::new(io, (self.inode, layout), None, Arc::clone(who))))
    }

    /// A copy that somebody here makes of the file waits until what is written now is published, or comes before it.
    fn begin_write(&self, io: &Objects<S>, state: &State<S>) -> (&SplitFile<S>, Flight<'_, S>) {
        let who = state.opener.clone().expect("an inode that is written was opened");
        let split = self.split(io, &state.known.attributes().layout, &who);
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        (split, Flight(self))
    }

    /// A write to a split file, which is known to be one.
    pub(super) async fn write_split(
        &self,
        io: &Objects<S>,
        state: Guard<'_, S>,
        list: &[(&[u8], u64)],
        options: &OpenOptions<Registration<S>>,
    ) -> Result<Written> {
        let (split, flight) = self.begin_write(io, &state);
        drop(state);
        let written = match list {
            [(bytes, offset)] => split.write(io, bytes, *offset, options).await,
            list => split.write_list(io, list, options).await.map(|is_safe| Written { offset: list[0].1, is_safe }),
        };
        self.changed();
        drop(flight);
        written
    }

    /// The shard recalls what it has granted of a split file before this stamp. Returns false if what was written there
    /// cannot be published now.
    pub(crate) async fn give_up_range(&self, io: &Objects<S>, stamp: u64) -> bool {
        match self.split.get() {
            Some(split) => split.give_up_recalled(io, stamp).await,
            None => true,
        }
    }

    /// Publishes what was written to a split file under its range, for this client, which asks about the file or
    /// changes it. Returns whether anything was published since so many reports had been made. `Err`: something is not
    /// published.
    pub(super) async fn publish_held_back(&self, io: &Objects<S>, since: u64) -> Result<bool> {
        match self.split.get() {
            Some(split) => split.give_up_unpublished(io, since).await,
            None => Ok(false),
        }
    }

    /// As a flush does: publishes what was written to a split file.
    pub(super) async fn flush_split(&self, io: &Objects<S>, by: FlushFor) -> Result<()> {
        match (self.split.get(), by) {
            (Some(split), FlushFor::Program) => split.publish(io).await,
            (Some(split), FlushFor::Drop | FlushFor::Recall) => split.give_up_unpublished(io, 0).await.map(drop),
            (None, _) => Ok(()),
        }
    }
}
