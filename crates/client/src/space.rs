//! Space of the file system: what its storage servers have, added up.
//!
//! All servers are asked at the same time, each by a thread of its own, and one deadline holds for all of them. A
//! server that hangs has at most one thread: later calls wait for the same answer.

use crate::block_on::{block_on, lock};
use crate::client::Client;
use crate::native::NativeShell;
use crate::space_questions::Question;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_client_core::Files;
use weft_protocol::limits::NAME_BYTES_MAX;
use weft_protocol::message::storage::{Space, StorageAnswer, StorageRequest};
use weft_protocol::{Error, NodeId, NodeIdentity, Result};

/// How long all servers together may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Space of the whole file system: the sum, and each storage server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSystemSpace {
    pub total: u64,
    pub free: u64,
    /// Objects: one of each file that was written, several of a striped one.
    pub files: u64,
    pub nodes: Vec<(NodeId, Result<Space>)>,
}

/// Space as `statfs` and `statvfs` report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Unit of `blocks` and `blocks_free`.
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub name_bytes_max: u32,
}

impl FileSystemSpace {
    /// Unit in which `statfs` reports space.
    const BLOCK_BYTES: u32 = 4096;
    /// Inodes that `statfs` reports as free: nothing limits them, each shard has numbers for 2^48.
    const INODES_FREE: u64 = 1 << 32;

    /// The fields of `statfs` and `statvfs`.
    pub fn statfs(&self) -> StatFs {
        let blocks = |bytes: u64| bytes / u64::from(Self::BLOCK_BYTES);
        StatFs {
            block_bytes: Self::BLOCK_BYTES,
            blocks: blocks(self.total),
            blocks_free: blocks(self.free),
            inodes: self.files.saturating_add(Self::INODES_FREE),
            inodes_free: Self::INODES_FREE,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }
}

impl Client {
    /// Space of the file system. What several storage servers of one machine have on one device counts once in the
    /// sums. A server that does not answer within three seconds is [`Error::Unreachable`], and missing in the sums.
    pub fn space(&self) -> Result<FileSystemSpace> {
        let deadline = Instant::now() + PATIENCE;
        let map = self.map();
        let asked: Vec<_> =
            map.nodes.iter().filter(|record| record.stores).map(|record| (record, self.ask_space(record.id))).collect();
        let mut nodes = BTreeMap::new();
        let mut devices: BTreeMap<(u64, NodeIdentity), Vec<Space>> = BTreeMap::new();
        for (record, question) in asked {
            let space = question.wait(deadline);
            if let Ok(space) = &space {
                devices.entry((space.device, record.identity)).or_default().push(*space);
            }
            nodes.insert(record.id, space);
        }
        let sums: Vec<(u64, u64)> = devices.values().map(|stores| on_one_device(stores)).collect();
        Ok(FileSystemSpace {
            total: sums.iter().map(|(total, _)| *total).fold(0, u64::saturating_add),
            free: sums.iter().map(|(_, free)| *free).fold(0, u64::saturating_add),
            files: nodes.values().flatten().map(|space| space.objects).sum(),
            nodes: nodes.into_iter().collect(),
        })
    }

    /// Asks a server, unless a question to it is in flight.
    fn ask_space(&self, node: NodeId) -> Arc<Question> {
        let question = {
            let mut questions = lock(&self.0.shell().space);
            if let Some(question) = questions.get(&node) {
                return Arc::clone(question);
            }
            let question = Arc::new(Question::default());
            questions.insert(node, Arc::clone(&question));
            question
        };
        // Not the client itself: its session may end before the answer comes.
        let files = Arc::clone(&self.0.0);
        let asked = Arc::clone(&question);
        let ask = move || {
            let answer = ask(&files, node);
            lock(&files.calls().shell.space).remove(&node);
            asked.answer(answer);
        };
        if let Err(error) = std::thread::Builder::new().name("weft-space".to_owned()).spawn(ask) {
            tracing::warn!("no thread to ask node {node} for its space: {error}");
            lock(&self.0.shell().space).remove(&node);
            question.answer(Err(Error::Busy));
        }
        question
    }
}

fn ask(files: &Files<NativeShell>, node: NodeId) -> Result<Space> {
    match block_on(files.calls().storage_call(node, StorageRequest::Space))? {
        StorageAnswer::Space(space) => Ok(space),
        _ => Err(Error::Malformed),
    }
}

/// What stores on one device have together, in all and free: not more than the device has.
fn on_one_device(stores: &[Space]) -> (u64, u64) {
    if let Some(whole) = stores.iter().find(|space| space.reserve == 0) {
        // One without a cap may take all of it.
        return (whole.total, whole.free);
    }
    let sum = |field: fn(&Space) -> u64| stores.iter().map(field).fold(0, u64::saturating_add);
    let device_free = stores.iter().map(|space| space.device_free).min().unwrap_or(0);
    let free = sum(|space| space.free).min(device_free);
    (sum(|space| space.total.saturating_sub(space.free)).saturating_add(free), free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_its_answer_or_the_deadline() {
        let question = Question::default();
        assert_eq!(question.wait(Instant::now()), Err(Error::Unreachable));
        let space = Space { total: 3, free: 2, reserve: 0, objects: 1, device: 5, device_free: 2 };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| question.wait(Instant::now() + Duration::from_secs(60)));
            question.answer(Ok(space));
            assert_eq!(waiting.join().expect("ended"), Ok(space));
        });
        assert_eq!(question.wait(Instant::now()), Ok(space), "for those who come later, too");
    }

    #[test]
    fn statfs_counts_whole_blocks_and_always_has_free_inodes() {
        let told = FileSystemSpace { total: 3 * 4096, free: 4095, files: 7, nodes: Vec::new() }.statfs();
        assert_eq!((told.block_bytes, told.blocks, told.blocks_free), (4096, 3, 0));
        assert_eq!(told.inodes - told.inodes_free, 7, "those in use");
        let full = FileSystemSpace { files: u64::MAX, ..FileSystemSpace::default() }.statfs();
        assert_eq!((full.inodes, full.inodes_free), (u64::MAX, 1 << 32));
    }

    #[test]
    fn stores_on_one_device_have_not_more_than_it_has() {
        let capped = |used: u64, free: u64| Space {
            total: used + 1 + free,
            free,
            reserve: 1,
            objects: 0,
            device: 5,
            device_free: 1000,
        };
        assert_eq!(on_one_device(&[capped(10, 300), capped(0, 300)]), (612, 600), "the caps fit");
        assert_eq!(on_one_device(&[capped(10, 700), capped(0, 700)]), (1012, 1000), "they promise more than is there");
        let whole = Space { total: 5000, free: 1000, reserve: 0, ..capped(0, 1000) };
        assert_eq!(on_one_device(&[whole, whole, capped(0, 300)]), (5000, 1000), "one without a cap");
    }
}
