//! Answers of storage servers.
//!
//! The size of a file whose writer is gone is asked for until its storage server answers: one that cannot be reached
//! now may have bytes that the shard has not heard of.

use super::park::{Wait, Work};
use super::{Effect, Shard};
use crate::back::Command;
use crate::kv::KeyValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{Error, InodeNumber, ObjectId};

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageWait {
    /// Parked work of this number.
    Work(u64),
    /// The shard itself: the file's writer is gone. `stale`: a cut of the file has ended since.
    Recovery { inode: InodeNumber, object: ObjectId, attempts: u32, stale: bool },
}

/// Time after which a storage server that could not be reached is asked again, milliseconds: doubled with each attempt,
/// so many times at most.
const RETRY_MS: u64 = 1_000;
const DOUBLINGS_MAX: u32 = 6;

/// Sizes to be asked for again.
#[derive(Default, Serialize, Deserialize)]
pub struct Retries(BTreeSet<(u64, InodeNumber, ObjectId, u32)>);

impl Retries {
    /// When the next one is due.
    pub fn next_due(&self) -> Option<u64> {
        self.0.first().map(|(due_ms, ..)| *due_ms)
    }
}

impl<K: KeyValue> Shard<K> {
    /// A token for a question.
    pub(super) fn ask_storage(&mut self, wait: StorageWait) -> u64 {
        self.latest_storage_token += 1;
        self.storage_waits.insert(self.latest_storage_token, wait);
        self.latest_storage_token
    }

    pub(super) fn storage_answered(&mut self, token: u64, result: Result<StorageAnswer, Error>, out: &mut Vec<Effect>) {
        let Some(wait) = self.storage_waits.remove(&token) else {
            return;
        };
        let answer = match result {
            Ok(StorageAnswer::Object { size, mtime }) => Ok((size, mtime)),
            Ok(_) => Err(Error::Malformed),
            Err(error) => Err(error),
        };
        match wait {
            StorageWait::Work(number) => {
                let waiting = self.parking.get_mut(number).filter(|parked| parked.wait == Wait::Storage);
                if let Some(parked) = waiting
                    && let Work::Call(call) = &mut parked.work
                {
                    call.answer = Some(answer);
                    self.ready.push_back(number);
                }
            }
            StorageWait::Recovery { inode, object, attempts, .. } if answer == Err(Error::Unreachable) => {
                let due_ms = self.now.boot_ms + (RETRY_MS << attempts.min(DOUBLINGS_MAX));
                self.retries.0.insert((due_ms, inode, object, attempts + 1));
            }
            StorageWait::Recovery { inode, object, stale: true, .. } => {
                self.retries.0.insert((self.now.boot_ms, inode, object, 0));
                self.ask_sizes_again(out);
            }
            StorageWait::Recovery { inode, object: asked, .. } => self.recovered(inode, asked, answer.ok()),
        }
    }

    /// Asks for the size of a file whose writer is gone.
    pub(super) fn ask_size(&mut self, inode: InodeNumber, object: ObjectId, attempts: u32, out: &mut Vec<Effect>) {
        let token = self.ask_storage(StorageWait::Recovery { inode, object, attempts, stale: false });
        let request = StorageRequest::Stat { inode, object };
        out.push(Effect::Storage { token: Some(token), node: object.node(), request });
    }

    /// A cut of the file has ended: sizes that were asked for before may be from before it.
    pub(super) fn sizes_are_stale(&mut self, of: InodeNumber) {
        for wait in self.storage_waits.values_mut() {
            if let StorageWait::Recovery { inode, stale, .. } = wait {
                *stale |= *inode == of;
            }
        }
    }

    /// Asks again for the sizes that are due.
    pub(super) fn ask_sizes_again(&mut self, out: &mut Vec<Effect>) {
        while let Some(first) = self.retries.0.first().copied().filter(|first| first.0 <= self.now.boot_ms) {
            self.retries.0.remove(&first);
            let (_, inode, object, attempts) = first;
            if self.back.inode(inode).is_some_and(|record| record.layout.object() == Some(object)) {
                self.ask_size(inode, object, attempts, out);
            } else {
                self.recovered(inode, object, None);
            }
        }
    }

    fn recovered(&mut self, inode: InodeNumber, asked: ObjectId, found: Option<(u64, weft_protocol::Timestamp)>) {
        if let Some(count) = self.recovering.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.recovering.remove(&inode);
            }
        }
        // Cut to nothing meanwhile: the object may be no longer the file's.
        let is_same = self.back.inode(inode).is_some_and(|record| record.layout.object() == Some(asked));
        if let (true, Some((size, object_mtime))) = (is_same, found) {
            self.apply(&Command::Observe { inode, size, object_mtime });
        }
    }
}
