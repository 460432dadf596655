//! Answers of storage servers.

use super::Shard;
use super::park::{Wait, Work};
use crate::back::Command;
use crate::kv::KeyValue;
use weft_protocol::message::storage::StorageAnswer;
use weft_protocol::{Error, InodeNumber, ObjectId};

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageWait {
    /// Parked work of this number.
    Work(u64),
    /// The shard itself: the file's writer is gone.
    Recovery { inode: InodeNumber, object: ObjectId },
}

impl<K: KeyValue> Shard<K> {
    /// A token for a question.
    pub(super) fn ask_storage(&mut self, wait: StorageWait) -> u64 {
        self.latest_storage_token += 1;
        self.storage_waits.insert(self.latest_storage_token, wait);
        self.latest_storage_token
    }

    pub(super) fn storage_answered(&mut self, token: u64, result: Result<StorageAnswer, Error>) {
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
            StorageWait::Recovery { inode, object: asked } => self.recovered(inode, asked, answer.ok()),
        }
    }

    fn recovered(&mut self, inode: InodeNumber, asked: ObjectId, found: Option<(u64, weft_protocol::Timestamp)>) {
        let cut_since = self.cut_since.contains(&inode);
        if let Some(count) = self.recovering.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.recovering.remove(&inode);
                self.cut_since.remove(&inode);
            }
        }
        // Cut meanwhile: the size is that of the cut. Cut to nothing: the object may be no longer the file's.
        let is_same = self.back.inode(inode).is_some_and(|record| record.layout.object() == Some(asked));
        if let (true, Some((size, object_mtime))) = (is_same && !cut_since, found) {
            self.apply(&Command::Observe { inode, size, object_mtime });
        }
    }
}
