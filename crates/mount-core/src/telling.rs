//! What a reply tells the kernel of names and attributes, and for how long.
//!
//! A [`Telling`] lives from before the client is asked until the reply has been written. All that is told goes through
//! it into the record (`weft_client_core::KernelView`), which takes back what was recalled meanwhile.

use crate::invalidate::KernelCaches;
use crate::shell::MountShell;
use std::time::Duration;
use weft_client_core::{Entry, Files, LostName, Renamed, Ticket};
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{Attributes, InodeNumber, Name};

/// A request whose reply tells something.
pub struct Telling<'a, M: MountShell> {
    client: &'a Files<M::Client>,
    caches: &'a KernelCaches<M>,
    /// It may take a name from an inode that has others.
    removes: bool,
    received: Duration,
    /// There until it is dropped.
    ticket: Option<Ticket>,
}

impl<M: MountShell> Drop for Telling<'_, M> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if self.removes {
            self.caches.view().link_counts.end();
        }
        // Bound first: the record is not locked while numbers are given back.
        let settled = self.caches.view().end(ticket);
        for (inode, stamp) in settled {
            if !self.caches.was_told(inode) {
                self.client.number_unused(inode, stamp);
            }
        }
    }
}

impl<'a, M: MountShell> Telling<'a, M> {
    /// A request begins. `ticket`: of the record of `caches`.
    pub fn new(client: &'a Files<M::Client>, caches: &'a KernelCaches<M>, ticket: Ticket) -> Self {
        Self::begin(client, caches, ticket, false)
    }

    /// As [`Telling::new`], of a request that may take a name from an inode that has others.
    pub fn of_removal(client: &'a Files<M::Client>, caches: &'a KernelCaches<M>, ticket: Ticket) -> Self {
        caches.view().link_counts.begin();
        Self::begin(client, caches, ticket, true)
    }

    fn begin(client: &'a Files<M::Client>, caches: &'a KernelCaches<M>, ticket: Ticket, removes: bool) -> Self {
        Self { client, caches, removes, received: caches.shell.now(), ticket: Some(ticket) }
    }

    /// A kernel without epochs keeps no names of directories that others use.
    fn name_valid(&self, parent: InodeNumber, valid: Duration) -> u64 {
        let keeps = self.caches.has_epoch() || !self.client.is_shared_directory(parent);
        if keeps { millis(valid) } else { 0 }
    }

    /// A name and its inode. What is not to be believed any more is told with no time.
    pub fn entry(&self, parent: InodeNumber, name: &Name, entry: Entry) -> Entry {
        let Some(ticket) = &self.ticket else { return entry };
        let now_ms = self.caches.now_ms();
        let name_ms = self.name_valid(parent, entry.name_valid);
        let (inode, place) = (entry.attributes.inode, Some((parent, name)));
        self.caches.told_size(inode, entry.attributes.size);
        let mut view = self.caches.view();
        let name_ms = view.link_counts.name_valid(inode, name_ms, now_ms);
        let name_valid = Duration::from_millis(view.tell_name(ticket, parent, name, name_ms, now_ms));
        view.name_is_of((parent, name), inode);
        self.caches.inodes.told(inode, name_valid.is_zero().then_some((parent, name)));
        self.caches.inodes.told_links(inode, entry.attributes.links, self.received);
        let attributes_ms = view.tell_attributes(ticket, inode, place, millis(entry.attributes_valid), now_ms);
        Entry { name_valid, attributes_valid: Duration::from_millis(attributes_ms), ..entry }
    }

    /// A name that is not there.
    pub fn absent(&self, parent: InodeNumber, name: &Name, valid: Duration) -> Duration {
        let Some(ticket) = &self.ticket else { return Duration::ZERO };
        let valid_ms = self.name_valid(parent, valid);
        let told = self.caches.view().tell_name(ticket, parent, name, valid_ms, self.caches.now_ms());
        Duration::from_millis(told)
    }

    /// Attributes alone.
    pub fn attributes(&self, entry: Entry) -> Entry {
        let Some(ticket) = &self.ticket else { return entry };
        let (inode, valid_ms) = (entry.attributes.inode, millis(entry.attributes_valid));
        self.caches.told_size(inode, entry.attributes.size);
        self.caches.inodes.told_links(inode, entry.attributes.links, self.received);
        let told = self.caches.view().tell_attributes(ticket, inode, None, valid_ms, self.caches.now_ms());
        Entry { attributes_valid: Duration::from_millis(told), ..entry }
    }

    /// A name of a listing with its attributes: the time for both. To be undone by [`Telling::not_listed`] where there
    /// is no room for it in the reply.
    pub fn listed(&self, parent: InodeNumber, name: &Name, inode: InodeNumber, valid: Duration) -> Duration {
        let Some(ticket) = &self.ticket else { return Duration::ZERO };
        let now_ms = self.caches.now_ms();
        let valid_ms = self.name_valid(parent, valid);
        let mut view = self.caches.view();
        let valid_ms = view.link_counts.name_valid(inode, valid_ms, now_ms);
        let name_ms = view.tell_listed(ticket, parent, name, valid_ms, now_ms);
        view.name_is_of((parent, name), inode);
        self.caches.inodes.told(inode, (name_ms == 0).then_some((parent, name)));
        Duration::from_millis(view.tell_attributes(ticket, inode, Some((parent, name)), name_ms, now_ms))
    }

    /// The attributes of a name of a listing. To follow [`Telling::listed`].
    pub fn listed_attributes(&self, attributes: &Attributes) {
        self.caches.told_size(attributes.inode, attributes.size);
        self.caches.inodes.told_links(attributes.inode, attributes.links, self.received);
    }

    /// What [`Telling::listed`] took for told is not in the reply.
    pub fn not_listed(&self, inode: InodeNumber) {
        self.caches.inodes.forgotten(inode, 1);
    }

    /// A name was removed.
    pub fn removed(&self, parent: InodeNumber, name: &Name) {
        self.caches.view().removed(parent, name);
    }

    /// A name was removed or replaced. If its inode has others, the kernel is about to take one from the count of links
    /// that it knows.
    pub async fn name_lost(&self, lost: Option<LostName>, place: (InodeNumber, &Name)) {
        if let Some(LostName { inode, links: 1.. }) = lost {
            self.caches.name_lost(inode, place).await;
        }
    }

    /// The kernel is about to move a dentry. Where no lease covers what the names are now, the kernel drops the dentry
    /// before it moves it.
    pub async fn renamed(
        &self,
        from: (InodeNumber, &Name),
        to: (InodeNumber, &Name),
        mode: RenameMode,
        Renamed { valid, moved, .. }: Renamed,
    ) {
        let Some(ticket) = &self.ticket else { return };
        let exchange = mode == RenameMode::Exchange;
        let uncovered = self.caches.view().renamed(ticket, from, to, exchange, !valid.is_zero());
        self.caches.inodes.moved(moved.0, from, to, uncovered);
        if let Some(back) = moved.1 {
            self.caches.inodes.moved(back, to, from, uncovered);
        }
        if uncovered {
            self.caches.drop_moved(&[to, from]).await;
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
