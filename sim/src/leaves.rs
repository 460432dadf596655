//! A program that has a node leave, as `weft node remove` does: what it does next the production machine says
//! ([`Leaving`]). It finds files by their names, and moves those that are there.
//!
//! Nobody is to see anything of it. The program gives up where the command does: a file that is in use for too long, or
//! an object that no file with a name has.

use crate::process::Process;
use crate::relocations::{UnderWay, relocate};
use crate::shell::SimShell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Destination, Files, LeaveStep, Leaving, Shell};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    ClusterMap, Cookie, Credentials, Error, FileKind, InodeNumber, NodeId, NodeRecord, Result, ShardId,
};

/// Names of a page of a listing.
const PAGE_ENTRIES: u32 = 8;
/// How often a change of the map is asked for again while it changes otherwise, and after how long.
const BUSY_ATTEMPTS: u32 = 100;
const BUSY_PAUSE_US: u64 = 200_000;
/// How often a file that is in use is tried again, and after how long.
const IN_USE_ATTEMPTS: u32 = 10;
const IN_USE_PAUSE_US: u64 = 1_000_000;

/// See the module.
pub struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    pub node: NodeId,
}

impl Program {
    /// Has the node leave, unless the run ends before.
    pub async fn run(self, _until_done: [UnderWay; 2]) {
        let left = self.leave().await;
        self.process.note(|| format!("node {} was to leave: {left:?}", self.node));
    }

    async fn leave(&self) -> Result<()> {
        let mut leaving = Leaving::remove(self.node);
        let mut map = self.newest_map(self.root_node()?).await?;
        while !self.process.ending.get() {
            let Ok(step) = leaving.next(self.process.now_ms(), &map) else { return Err(Error::InUse) };
            self.process.note(|| format!("for node {} to leave: {step:?}", self.node));
            match step {
                LeaveStep::Change(change) => {
                    map = self.change(&map, NodeRequest::Change { node: self.node, change }).await?;
                }
                LeaveStep::MoveShard { shard, to } => {
                    map = self.change(&map, NodeRequest::Move { shard, to }).await?;
                }
                LeaveStep::MoveFiles => {
                    self.move_files(&map).await?;
                    leaving.files_moved();
                }
                LeaveStep::AwaitClients(ms) | LeaveStep::LookAgain(ms) => self.sleep_us(ms * 1000).await,
                LeaveStep::Count => leaving.counted(self.objects().await?),
                LeaveStep::Done => return Ok(()),
            }
        }
        Ok(())
    }

    async fn sleep_us(&self, time_us: u64) {
        self.machine.calls().shell.sleep_us(time_us).await;
    }

    fn root_node(&self) -> Result<NodeId> {
        self.machine.calls().map().node_of(ShardId::ROOT).ok_or(Error::WrongShard(ShardId::ROOT))
    }

    async fn newest_map(&self, node: NodeId) -> Result<ClusterMap> {
        match self.machine.calls().node_call(node, NodeRequest::GetMap).await? {
            NodeAnswer::Map(map) => Ok(map),
            _ => Err(Error::Malformed),
        }
    }

    /// Has the root shard's node change the map.
    async fn change(&self, map: &ClusterMap, request: NodeRequest) -> Result<ClusterMap> {
        let mut root = map.node_of(ShardId::ROOT).ok_or(Error::WrongShard(ShardId::ROOT))?;
        for _ in 0..BUSY_ATTEMPTS {
            match self.machine.calls().node_call(root, request.clone()).await {
                Ok(NodeAnswer::Map(map)) => return Ok(map),
                Ok(_) => return Err(Error::Malformed),
                Err(Error::Busy) => self.sleep_us(BUSY_PAUSE_US).await,
                Err(Error::WrongShard(_)) => {
                    let newer = self.newest_map(root).await?;
                    root = newer.node_of(ShardId::ROOT).ok_or(Error::WrongShard(ShardId::ROOT))?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy)
    }

    /// How many objects are at the node.
    async fn objects(&self) -> Result<u64> {
        match self.machine.calls().storage_call(self.node, StorageRequest::Space).await? {
            StorageAnswer::Space(space) => Ok(space.objects),
            _ => Err(Error::Malformed),
        }
    }

    async fn move_files(&self, map: &ClusterMap) -> Result<()> {
        let mut in_use = self.files().await?;
        for _ in 0..IN_USE_ATTEMPTS {
            let mut left = Vec::new();
            for inode in in_use {
                match self.move_file(map, inode).await {
                    Ok(()) | Err(Error::NotFound | Error::Stale) => {}
                    Err(Error::WouldBlock) => left.push(inode),
                    Err(error) => return Err(error),
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            in_use = left;
            self.sleep_us(IN_USE_PAUSE_US).await;
        }
        Err(Error::WouldBlock)
    }

    async fn move_file(&self, map: &ClusterMap, inode: InodeNumber) -> Result<()> {
        let who = Credentials::default();
        let layout = self.machine.attributes(&who, inode).await?.attributes.layout;
        if layout.objects().iter().all(|object| object.node() != self.node) {
            return Ok(());
        }
        let others = map.nodes.iter().filter(|node| node.takes_files() && node.id != self.node);
        let (from, to) = (BTreeSet::from([self.node]), others.map(|node: &NodeRecord| node.id).collect());
        let destination = Destination { layout: None, from, to };
        let moved = relocate(&self.machine, inode, &destination).await;
        self.process.note(|| format!("moves {inode} to {:?}: {moved:?}", destination.to));
        moved.map(|_| ())
    }

    /// All files that have a name.
    async fn files(&self) -> Result<Vec<InodeNumber>> {
        let (mut files, mut directories) = (BTreeSet::new(), vec![InodeNumber::ROOT]);
        while let Some(directory) = directories.pop() {
            let mut after = Some(Cookie::START);
            while let Some(cookie) = after {
                let who = Credentials::default();
                let page = match self.machine.read_directory(&who, directory, cookie, PAGE_ENTRIES, true).await {
                    // It was removed meanwhile.
                    Err(Error::NotFound | Error::Stale) => break,
                    page => page?,
                };
                for entry in page.entries {
                    match entry.kind {
                        FileKind::Directory => directories.push(entry.inode),
                        FileKind::Regular => _ = files.insert(entry.inode),
                        FileKind::Symlink => {}
                    }
                }
                after = page.next;
            }
        }
        Ok(files.into_iter().collect())
    }
}
