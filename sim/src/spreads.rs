//! Programs that spread the names of directories over shards, beside those that use files and names.
//!
//! What programs see of a directory is to be the same before and after. The model of shards' answers knows the parts,
//! by whose numbers shards are asked; that of system calls knows nothing of them.

use crate::process::Process;
use crate::random::Random;
use crate::shell::SimShell;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Files, Placement};
use weft_protocol::{AttributeChanges, Credentials, FileKind, InodeNumber, Name};

/// Longest wait between two calls of a program, milliseconds.
const THINK_MS: u64 = 3000;

/// One program.
pub struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    /// Its own numbers: what other programs decide stays as it is.
    pub random: Random,
    /// Others make system calls, and see who changes the mode of a directory.
    pub through_mounts: bool,
    /// Directories that were spread.
    pub spread: Rc<Cell<u64>>,
}

impl Program {
    /// Spreads directories, and changes the modes of some, until the run ends.
    pub async fn run(mut self) {
        let who = Credentials::default();
        while self.process.thinks(&self.machine, &mut self.random, THINK_MS).await {
            let Some(directory) = self.directory(&who).await else { continue };
            if !self.through_mounts && self.random.one_in(3) {
                let mode = Some(if self.random.one_in(2) { 0o711 } else { 0o755 });
                let changes = AttributeChanges { mode, ..AttributeChanges::default() };
                let changed = self.machine.set_attributes(&who, directory, &changes).await;
                self.process.note(|| format!("chmod of {directory}: {changed:?}"));
                continue;
            }
            // Those that are made in it are spread, too, or only itself; or those no more.
            let spread = match self.random.below(4) {
                0 => self.machine.set_placement(&who, directory, Placement::Hash).await,
                1 => self.machine.set_placement(&who, directory, Placement::Home).await,
                _ => self.machine.spread(&who, directory).await.map(drop),
            };
            self.process.note(|| format!("spreads {directory}: {spread:?}"));
            self.spread.set(self.spread.get() + u64::from(spread.is_ok()));
        }
    }

    async fn directory(&mut self, who: &Credentials) -> Option<InodeNumber> {
        if self.random.one_in(4) {
            return Some(InodeNumber::ROOT);
        }
        if !self.through_mounts {
            let known = self.process.directories.borrow();
            let index = usize::try_from(self.random.below(known.len() as u64)).expect("few");
            return Some(known[index]);
        }
        let name = Name::new(if self.random.one_in(2) { b"d0" } else { b"d1" }).expect("a valid name");
        let found = self.machine.lookup(who, InodeNumber::ROOT, &name).await.ok()?;
        (found.attributes.kind == FileKind::Directory).then_some(found.attributes.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::{Choices, Tape};
    use crate::clock::Clock;
    use crate::process::{Ask, Told};
    use crate::script::Script;
    use crate::shell::TUNING;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use weft_client_core::{Caller, Calls};
    use weft_protocol::message::Message;
    use weft_protocol::message::shard::{ShardAnswer, ShardCall, ShardReply, ShardRequest};
    use weft_protocol::{
        Attributes, ClusterMap, Error, Grants, InodeFlags, Layout, MapEpoch, NodeAddress, NodeId, NodeIdentity,
        NodeRecord, Parts, ShardId, ShardRecord, Timestamp, routing,
    };

    const SHARDS: u16 = 8;

    /// A file system with a shard on each node.
    fn map(nodes: u16) -> ClusterMap {
        let record = |id| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(u64::from(id) + 1),
            address: NodeAddress::default(),
            stores: true,
            drains: false,
        };
        let epoch = MapEpoch(1);
        ClusterMap {
            name: "rounds".to_owned(),
            epoch,
            nodes: (0..nodes).map(record).collect(),
            shards: (0..SHARDS).map(|shard| ShardRecord::new(NodeId(shard % nodes), epoch)).collect(),
            removed_max: None,
        }
    }

    /// Attributes of a part: as many names as its shard's number.
    fn part(inode: InodeNumber, parts: &Parts) -> Attributes {
        let time = Timestamp(1 + i64::from(routing::of_inode(inode).0));
        Attributes {
            inode,
            kind: FileKind::Directory,
            mode: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size: u64::from(routing::of_inode(inode).0),
            atime: time,
            mtime: time,
            ctime: time,
            layout: Layout::Empty,
            flags: InodeFlags::empty(),
            parts: Some(parts.clone()),
        }
    }

    /// Messages in each round trip of the last of some `stat`s of a directory with parts. `answer`: what a shard
    /// answers instead of the attributes.
    fn rounds(
        nodes: u16,
        (stats, grants): (u32, Grants),
        mut answer: impl FnMut(&ShardCall) -> Option<Told>,
    ) -> Vec<usize> {
        let choices = Choices::new(1, &Tape::new(Script::new(crate::Kind::Native), true));
        let process = Rc::new(Process::new((0, NodeId(0)), choices, Clock::EXACT, &Rc::default(), &Rc::default()));
        let caller = Caller { credentials: Credentials::default(), is_fixed: false };
        let calls = Calls::new(SimShell(Rc::clone(&process)), caller, map(nodes));
        let files = Files::new(calls, TUNING).expect("all nodes have storage");
        let parts =
            Parts::new((0..SHARDS).map(|shard| InodeNumber::new(ShardId(shard), 7)).collect()).expect("8 parts");
        let mut rounds = Vec::new();
        for _ in 0..stats {
            rounds.clear();
            let who = Credentials::default();
            let mut stat = pin!(files.attributes(&who, parts.directory()));
            let told = loop {
                if let Poll::Ready(told) = stat.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    break told;
                }
                let asked = process.take_asked();
                rounds.push(asked.len());
                for (ticket, ask) in asked {
                    let Ask::Send { message, .. } = ask else { panic!("attributes are asked for") };
                    let Message::Shard(call) = *message else { panic!("shards are asked: {message:?}") };
                    let ShardRequest::GetAttributes { inode } = call.request else { panic!("{call:?}") };
                    let entry = ShardAnswer::Entry { attributes: part(inode, &parts), grants };
                    let reply = ShardReply { stamp: 5, result: Ok(entry), others: Vec::new() };
                    let reply = answer(&call).unwrap_or(Told::Reply(Box::new(Message::ShardReply(reply))));
                    process.tell(ticket, reply);
                }
            };
            let all = told.expect("it is told").attributes;
            assert_eq!((all.size, all.mtime), (28, Timestamp(8)), "of all parts");
        }
        rounds
    }

    #[test]
    fn the_parts_of_a_directory_are_asked_in_one_round() {
        let none = |_: &ShardCall| None;
        assert_eq!(rounds(SHARDS, (1, Grants::empty()), none), [1, 7]);
        assert_eq!(rounds(SHARDS, (2, Grants::empty()), none), [1, 7]);
        // What leases vouch for is not asked for again.
        assert_eq!(rounds(SHARDS, (2, Grants::ATTRIBUTES), none), [0; 0]);
        // A client with one thread has one connection to each node.
        assert_eq!(rounds(4, (1, Grants::empty()), none), [1, 4, 3]);
    }

    #[test]
    fn what_is_not_answered_in_a_round_is_asked_again() {
        let refused = |error: Error| {
            let reply = ShardReply { stamp: 0, result: Err(error), others: Vec::new() };
            Told::Reply(Box::new(Message::ShardReply(reply)))
        };
        for fails in [0, 1] {
            let mut failed = false;
            let rounds = rounds(SHARDS, (1, Grants::empty()), |call| {
                if call.shard != ShardId(3) || std::mem::replace(&mut failed, true) {
                    return None;
                }
                Some(if fails == 0 { Told::Broken } else { refused(Error::SessionEnded) })
            });
            assert_eq!(rounds, [1, 7, 1]);
        }
    }
}
