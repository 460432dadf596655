//! Split files: where their bytes are, and what they are at the end.
//!
//! What programs are told of them is held against the same model as of any other file (`bytes.rs`).

use super::World;
use weft_layout::{SplitIndex, is_strided};
use weft_metadata::back::Inode;
use weft_metadata::back::split::Wanted;
use weft_protocol::message::shard::{ShardAnswer, StridedQuestion};
use weft_protocol::{InodeNumber, ObjectId, Pattern, routing};

/// Returns true if an answer has strided extents of a pattern that a reader has asked for, and not of the whole file.
pub(super) fn is_of_pattern(question: &StridedQuestion, answer: &ShardAnswer) -> bool {
    let ShardAnswer::Parts { parts, strided_whole: false, .. } = answer else { return false };
    let mut extents = parts.iter().flat_map(|part| &part.extents);
    question.within != Pattern::WHOLE_FILE && extents.any(|extent| is_strided(&extent.pattern))
}

impl World {
    /// The objects of a file, as its shard knows them: those of its layout, or its parts.
    pub(super) fn objects_of(&self, inode: InodeNumber) -> Vec<ObjectId> {
        let Some(shard) = self.shards.get(&routing::of_inode(inode)) else { return Vec::new() };
        let parts = shard.back().split_parts(inode).into_iter().map(|part| part.object);
        let record = shard.back().inode(inode);
        let objects = record.as_ref().map_or(&[][..], |record| record.layout.objects());
        objects.iter().copied().chain(parts).collect()
    }

    /// A file's writer has published bytes of a part. If its node is gone, so are they.
    pub(super) fn published(&self, inode: InodeNumber, object: ObjectId) {
        if self.is_lost_with(object.node()) {
            self.files.borrow_mut().forget(inode);
        }
    }

    /// What the parts of a split file have. `None`: some are gone with their node.
    pub(super) fn stored_parts(&self, inode: InodeNumber, record: &Inode) -> Option<Vec<u8>> {
        let back = self.shards.get(&routing::of_inode(inode))?.back();
        let mut index = SplitIndex::default();
        let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since: 0, after: None, few: 0 };
        let mut wanted = Wanted { since: 0, start: 0, end: record.size, extra: 0, strided };
        loop {
            let told = back.extents_within(inode, &wanted);
            told.parts.iter().for_each(|(part, extents)| index.add(part.object, extents));
            (wanted.start, wanted.strided.after) = (told.end, told.strided_next);
            if told.end >= record.size && told.strided_next.is_none() {
                break;
            }
        }
        let mut bytes = vec![0; usize::try_from(record.size).expect("files are small here")];
        for piece in index.pieces(0, bytes.len(), None) {
            let Some(object) = piece.part else { continue };
            let range = piece.start..piece.start + piece.bytes;
            match self.storage.get(&object.node())?.bytes(object) {
                Some(part) if part.len() >= range.end => bytes[range.clone()].copy_from_slice(&part[range]),
                part => self.fail(&format!(
                    "at the end: part {object} of inode {inode} has {:?} bytes, and {range:?} are published",
                    part.map(|part| part.len())
                )),
            }
        }
        Some(bytes)
    }
}
