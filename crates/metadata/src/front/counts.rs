//! What a shard counts for `weft status`.
//!
//! Not here: on a move to another node, counting begins anew.

use weft_protocol::FileKind;
use weft_protocol::message::shard::ShardAnswer;

/// Since the shard is at this node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Calls received.
    pub calls: u64,
    /// Renames of files that this shard has made alone.
    pub renames: u64,
    /// Those that it has coordinated, with other shards.
    pub renames_across: u64,
}

impl Counts {
    /// Counts the answer to a call, if that is the rename of a file.
    pub fn renamed(&mut self, answer: &ShardAnswer, is_across: bool) {
        if matches!(answer, ShardAnswer::Renamed { kind, .. } if *kind != FileKind::Directory) {
            *(if is_across { &mut self.renames_across } else { &mut self.renames }) += 1;
        }
    }
}
