//! Requests in flight, and what was recalled since each began.
//!
//! A reply tells of what was leased while its request was served; a recall that comes before it is told takes that
//! away. So every recall is kept for as long as a request is in flight that began before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_protocol::{InodeNumber, LeaseKey};

/// Recalls kept. Requests that began before the oldest tell of nothing.
const RECALLS_MAX: usize = 4096;

/// A request in flight: its number, and the latest recall before it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket {
    since: u64,
    number: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Requests {
    in_flight: BTreeSet<(u64, u64)>,
    /// Ascending by their numbers.
    recalls: VecDeque<(u64, LeaseKey)>,
    latest_recall: u64,
    /// Recalls up to this one are kept no more.
    forgotten: u64,
    latest_request: u64,
    unsure: Unsure,
}

/// Inodes that replies to requests in flight may tell of.
#[derive(Debug, Default)]
struct Unsure {
    /// Up to which request, and the stamp with which it was asked first.
    inodes: BTreeMap<InodeNumber, (u64, u64)>,
    /// The same in the order of requests.
    order: BTreeSet<(u64, InodeNumber)>,
}

impl Unsure {
    fn insert(&mut self, inode: InodeNumber, until: u64, stamp: u64) {
        let mut first = stamp;
        if let Some((before, earlier)) = self.inodes.remove(&inode) {
            self.order.remove(&(before, inode));
            first = first.min(earlier);
        }
        self.inodes.insert(inode, (until, first));
        self.order.insert((until, inode));
    }

    /// Takes out those of which no request from this number on may tell.
    fn settle(&mut self, oldest: u64) -> Vec<(InodeNumber, u64)> {
        let mut settled = Vec::new();
        while let Some((_, inode)) = self.order.first().copied().filter(|(until, _)| *until < oldest) {
            self.order.pop_first();
            let (_, stamp) = self.inodes.remove(&inode).expect("what is in the order is there");
            settled.push((inode, stamp));
        }
        settled
    }
}

impl Requests {
    pub fn begin(&mut self) -> Ticket {
        self.latest_request += 1;
        let ticket = Ticket { since: self.latest_recall, number: self.latest_request };
        self.in_flight.insert((ticket.since, ticket.number));
        ticket
    }

    /// Returns the inodes of which no reply can tell any more, see [`Requests::may_tell`].
    pub fn end(&mut self, ticket: &Ticket) -> Vec<(InodeNumber, u64)> {
        self.in_flight.remove(&(ticket.since, ticket.number));
        let first = self.in_flight.first().copied();
        let oldest = first.map_or(self.latest_recall, |(since, _)| since);
        while self.recalls.front().is_some_and(|(number, _)| *number <= oldest) {
            self.recalls.pop_front();
        }
        self.unsure.settle(first.map_or(u64::MAX, |(_, number)| number))
    }

    /// Whether replies to requests in flight may tell of the inode. If so, it is returned with the stamp when the last
    /// of them has ended.
    pub fn may_tell(&mut self, inode: InodeNumber, stamp: u64) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        self.unsure.insert(inode, self.latest_request, stamp);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub fn recall(&mut self, key: LeaseKey) {
        self.latest_recall += 1;
        if self.in_flight.is_empty() {
            return;
        }
        self.recalls.push_back((self.latest_recall, key));
        if self.recalls.len() > RECALLS_MAX
            && let Some((number, _)) = self.recalls.pop_front()
        {
            self.forgotten = number;
        }
    }

    /// An own change of what the name stands for: as if it had been recalled.
    pub fn change_name(&mut self, parent: InodeNumber, hash: u64) {
        self.recall(LeaseKey::Entry(parent, hash));
    }

    /// Whether a lease on the name, or on its directory, was recalled since the request began.
    pub fn name_recalled(&self, ticket: &Ticket, parent: InodeNumber, hash: u64) -> bool {
        self.any_since(ticket, |key| {
            [LeaseKey::Entry(parent, hash), LeaseKey::Directory(parent), LeaseKey::Names(parent)].contains(&key)
        })
    }

    /// Whether a lease on which attributes depend was recalled since the request began.
    pub fn attributes_recalled(&self, ticket: &Ticket, inode: InodeNumber) -> bool {
        self.any_since(ticket, |key| {
            [LeaseKey::Attributes(inode), LeaseKey::Permissions(inode), LeaseKey::Data(inode)].contains(&key)
        })
    }

    fn any_since(&self, ticket: &Ticket, is_it: impl Fn(LeaseKey) -> bool) -> bool {
        let since = self.recalls.iter().rev().take_while(|(number, _)| *number > ticket.since);
        ticket.since < self.forgotten || { since }.any(|(_, key)| is_it(*key))
    }
}
