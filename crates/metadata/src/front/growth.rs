//! Directories that get parts by themselves.
//!
//! Spread over shards, a directory takes more names a second from many clients. It costs: who lists it, or looks at
//! its size, asks all shards, and what is made in it is made where its name belongs. So a directory of a few users has
//! to be far larger than one of many.
//!
//! Not here: how it gets them (`back/spread.rs`).

use super::Shard;
use crate::back::{Answer, Command};
use crate::kv::KeyValue;
use crate::placement;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, InodeNumber, LeaseKey};

/// When a directory gets parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Entries, whoever uses it.
    pub entries: u64,
    /// Entries of one that many sessions use.
    pub entries_shared: u64,
    /// How many these are.
    pub users: usize,
    /// It is looked at once in so many entries.
    pub step: u64,
    /// Entries of one that has inherited that it gets parts: so many that directories of a few names, which a tree has
    /// most of, are not spread.
    pub entries_inherited: u64,
}

impl Growth {
    /// What nodes use.
    pub const USUAL: Self = Self { entries: 65_536, entries_shared: 4096, users: 8, step: 1024, entries_inherited: 32 };

    fn is_due(&self, (entries, inherits): (u64, bool), users: impl FnOnce() -> usize) -> bool {
        if inherits && entries.is_multiple_of(self.entries_inherited) {
            return true;
        }
        entries.is_multiple_of(self.step)
            && entries >= self.entries_shared
            && (entries >= self.entries || users() >= self.users)
    }
}

impl<K: KeyValue> Shard<K> {
    /// A change has been made: its directory gets parts if it has grown enough.
    pub(super) fn grow(&mut self, request: &ShardRequest, answer: &ShardAnswer) {
        let (directory, is_made) = match request {
            ShardRequest::OpenAt { parent, .. } => {
                (*parent, matches!(answer, ShardAnswer::Opened { created: true, .. }))
            }
            ShardRequest::MakeDirectory { parent, .. }
            | ShardRequest::MakeSymlink { parent, .. }
            | ShardRequest::Link { parent, .. } => (*parent, true),
            _ => return,
        };
        if is_made && self.map.shards.len() > 1 && self.is_due(directory) {
            let shards = placement::shards_for_parts(&self.map, self.back.shard());
            let credentials = Credentials::default();
            match self.apply(&Command::BeginSpread { origin: None, credentials, directory, shards }).answer {
                Answer::Intent(number) => self.intents.begin(number),
                other => panic!("a spread is begun, not {other:?}"),
            }
        }
    }

    fn is_due(&self, directory: InodeNumber) -> bool {
        let users = || self.leases.holders(&LeaseKey::Permissions(directory)).count();
        let entries = self.back.entries_of_whole(directory);
        entries.is_some_and(|entries| self.growth.is_due(entries, users))
    }
}
