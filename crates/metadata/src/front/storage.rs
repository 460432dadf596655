//! Answers of storage servers.

use super::Shard;
use super::park::{Wait, Work};
use crate::back::Command;
use crate::kv::KeyValue;
use weft_protocol::message::shard::ShardRequest;
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
        let object = match result {
            Ok(StorageAnswer::Object { size, mtime }) => Ok((size, mtime)),
            Ok(_) => Err(Error::Malformed),
            Err(error) => Err(error),
        };
        match wait {
            StorageWait::Work(number) => {
                let objects = self.parking.get_mut(number).filter(|parked| parked.wait == Wait::Storage);
                if let Some(parked) = objects
                    && let Work::Call(call) = &mut parked.work
                {
                    // Cut to nothing meanwhile: then there is no object to be cut, and it is judged anew.
                    let lost = object == Err(Error::NoObject);
                    let still_there = match &call.request {
                        ShardRequest::SetAttributes { inode, .. } => {
                            self.back.inode(*inode).is_some_and(|record| record.layout.object().is_some())
                        }
                        _ => true,
                    };
                    call.object = if lost && !still_there { None } else { Some(object) };
                    self.ready.push_back(number);
                }
            }
            StorageWait::Recovery { inode, object: asked } => self.recovered(inode, asked, object.ok()),
        }
    }

    fn recovered(&mut self, inode: InodeNumber, asked: ObjectId, found: Option<(u64, weft_protocol::Timestamp)>) {
        if let Some(count) = self.recovering.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.recovering.remove(&inode);
            }
        }
        // Cut to nothing meanwhile: the object is no longer the file's.
        let is_same = self.back.inode(inode).is_some_and(|record| record.layout.object() == Some(asked));
        if let (true, Some((size, mtime))) = (is_same, found) {
            self.apply(&Command::Recover { inode, size, mtime });
        }
    }
}
