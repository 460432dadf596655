//! Random operations over several shards, one after the other, against the model of a POSIX tree: results, errors and
//! the tree are those of one shard.

use super::model::{Model, Step, request, steps};
use crate::back::*;
use crate::kv::MemoryStore;
use proptest::prelude::*;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const SHARDS: u16 = 3;

/// Shards whose messages arrive at once.
struct Several {
    backs: Vec<Back<MemoryStore>>,
    /// Inodes by their number in the model.
    inodes: Vec<InodeNumber>,
    time: Timestamp,
    sequence: u32,
}

impl Several {
    fn new() -> Self {
        let root = RootDirectory { mode: 0o777, uid: 0, gid: 0 };
        let back = |shard| Back::new(ShardId(shard), MemoryStore::new(), Timestamp(1), root);
        let backs = (0..SHARDS).map(back).collect();
        Self { backs, inodes: vec![InodeNumber::ROOT], time: Timestamp(1_700_000_000_000_000_000), sequence: 0 }
    }

    fn at(&mut self, shard: ShardId) -> &mut Back<MemoryStore> {
        &mut self.backs[usize::from(shard.0)]
    }

    /// The inode of a node; a number that is never given out, if there is none yet.
    fn inode(&self, node: usize) -> InodeNumber {
        self.inodes.get(node).copied().unwrap_or_else(|| InodeNumber::new(ShardId(1), 1 << 40))
    }

    /// A step, of a new directory at this shard.
    fn apply(&mut self, step: &Step, uid: u32, home: ShardId) -> Result<()> {
        self.sequence += 1;
        let request = request(step, |node| self.inode(node));
        let slot = Slot { of: NodeId(0), index: SlotIndex(0) };
        let origin = Origin { session: SessionId(1), slot, sequence: self.sequence };
        let credentials = Credentials { uid, gid: uid, groups: Box::default() };
        let shard = routing::of_request(&request).expect("a request about something");
        let command = if self.at(shard).crosses(&credentials, &request) {
            Command::BeginAcross { origin, credentials, request }
        } else if matches!(request, ShardRequest::MakeDirectory { .. }) && home != shard {
            Command::BeginMake { origin, credentials, request, to: home }
        } else {
            Command::Change { origin, credentials, request, context: Context::default() }
        };
        let answer = match self.command(shard, &command) {
            Answer::Client(result) => result?,
            Answer::Intent(number) => self.carry_through(shard, number)?,
            other => panic!("{other:?}"),
        };
        if let (Step::Create(..) | Step::Mkdir(..), ShardAnswer::Entry { attributes, .. })
        | (Step::Create(..), ShardAnswer::Opened { attributes, .. }) = (step, answer)
        {
            self.inodes.push(attributes.inode);
        }
        Ok(())
    }

    fn command(&mut self, shard: ShardId, command: &Command) -> Answer {
        self.time.0 += 1;
        let time = self.time;
        self.at(shard).apply(time, command).answer
    }

    /// Asks for the steps of an intent until nothing is left to do.
    fn carry_through(&mut self, shard: ShardId, mut number: u64) -> Result<ShardAnswer> {
        let mut result = None;
        while let Some((to, intent, step)) = self.at(shard).questions(number).into_iter().next() {
            let Answer::Peer(answer) = self.command(to, &Command::PeerStep { intent, step, keep: false }) else {
                panic!("a step is answered to its shard");
            };
            match self.command(shard, &Command::AnswerIntent { number, answer }) {
                Answer::Client(told) => result = Some(told),
                Answer::Intent(next) => number = next,
                _ => {}
            }
        }
        result.expect("an intent that is over was answered")
    }

    fn check(&self, model: &Model) {
        for (node, expected) in &model.nodes {
            let number = self.inode(*node);
            let back = &self.backs[usize::from(routing::of_inode(number).0)];
            let record = back.inode(number).expect("an inode that the model has");
            let Inode { mode, uid, gid, links, .. } = record;
            let told = (record.kind == FileKind::Directory, mode, uid, gid, links);
            assert_eq!(told, (expected.is_directory, expected.mode, expected.uid, expected.gid, expected.links));
            if expected.is_directory {
                assert_eq!(record.parent, self.inode(expected.parent), "what node {node} is in");
                let listing = back.list(&Credentials::default(), number, Cookie::START, 4096).expect("a directory");
                let mut found: Vec<_> =
                    listing.entries.into_iter().map(|listed| (listed.name.to_string(), listed.dentry.inode)).collect();
                found.sort();
                let names = expected.names.iter().map(|(text, node)| (text.clone(), self.inode(*node)));
                assert_eq!(found, names.collect::<Vec<_>>(), "names in node {node}");
            }
        }
        assert_eq!(self.backs.iter().map(Back::inodes).sum::<u64>(), model.nodes.len() as u64);
        assert!(self.backs.iter().all(Back::has_no_locks));
    }
}

fn has_no_parent(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Stale | Error::NotDirectory))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn several_shards_behave_as_one_posix_tree(
        steps in steps(&["a", "b", "c"]),
        homes in prop::collection::vec(0..SHARDS, 80),
    ) {
        let (mut several, mut model) = (Several::new(), Model::new());
        for ((step, uid), home) in steps.into_iter().zip(homes) {
            // A batch ends before a name whose inode is elsewhere.
            if let Step::UnlinkBatch(..) = step {
                continue;
            }
            let expected = model.apply(&step, uid);
            let found = several.apply(&step, uid, ShardId(home));
            // Of two parents that are no directories either may be told of: their shards are asked at once.
            let is_alike = found == expected || (has_no_parent(&found) && has_no_parent(&expected));
            assert!(is_alike, "{step:?} by {uid}: {found:?}, not {expected:?}");
        }
        several.check(&model);
    }
}
