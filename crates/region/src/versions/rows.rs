//! Rows of the index: what they say, and which numbers are impossible in them.

use super::pieces::{HOLE, Key, LEAF_BLOCKS, LEAF_LEVEL};
use crate::decoder::{Decoder, decode_row, encode_row};
use crate::tree::guarded;

/// The errors of the tree.
pub(super) type TreeResult<T> = std::result::Result<T, redb::Error>;
pub(super) type StateRow = (u64, u64, u64, u64, u32, u64, u64, u64, u64, u64, u64, u64);
pub(super) type VersionRow = (u64, u64, u64, u64, bool, u64);
pub(super) type PieceKey = (u64, u64, u8, u64, u64);

/// Size of a version: none is as large.
const NO_BLOCK: u64 = u64::MAX;
/// No object has so many positions, blocks or bytes.
const COUNTED_MAX: u64 = 1 << 62;

/// What an object is like after one of its commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub nonce: u64,
    /// Behind that commit.
    pub position: u64,
    pub sequence: u64,
    /// Where that commit is, and the checksum of its block.
    pub parent: u64,
    pub chain: u32,
    pub size: u64,
    pub time: u64,
    /// Levels that pieces have, a bit each.
    pub levels: u64,
    /// The first position that is in use.
    pub tail: u64,
    /// Commits before this sequence have nothing in the ring any more.
    pub oldest: u64,
    /// Version (as its sequence) and block that the parts go up to which came of a version that is not there yet. 0:
    /// none did.
    pub parts: (u64, u64),
}

impl State {
    /// Of an object that nobody wrote to.
    pub fn new(nonce: u64, made: u64) -> Self {
        let (position, sequence, parent, chain, size, levels) = (0, 0, 0, 0, 0, 0);
        Self { nonce, position, sequence, parent, chain, size, time: made, levels, tail: 0, oldest: 0, parts: (0, 0) }
    }

    pub fn row(&self) -> StateRow {
        let Self { nonce, position, sequence, parent, chain, size, time, levels, tail, oldest, parts } = *self;
        (nonce, position, sequence, parent, chain, size, time, levels, tail, oldest, parts.0, parts.1)
    }

    pub fn of_row(row: StateRow) -> TreeResult<Self> {
        let (nonce, position, sequence, parent, chain, size, time, levels, tail, oldest, version, block) = row;
        let parts = (version, block);
        let numbers = [position, parent, size, block];
        let is_possible = numbers.iter().all(|number| *number < COUNTED_MAX)
            && tail <= position
            && sequence.max(oldest) < u64::MAX
            && levels < 2 << LEAF_LEVEL;
        let state = Self { nonce, position, sequence, parent, chain, size, time, levels, tail, oldest, parts };
        possible(is_possible, "an object", state)
    }
}

/// What is known of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub position: u64,
    /// With the commit's own. 0: nothing of it is in the ring any more.
    pub blocks: u64,
    /// [`NO_BLOCK`]: the commit's own block is not in the ring any more.
    pub size: u64,
    pub time: u64,
    /// It is a version that can be read.
    pub is_listed: bool,
    /// Blocks of its data that pieces are in.
    pub live: u64,
}

impl Row {
    /// Whether the commit's own block is in the ring.
    pub fn has_block(&self) -> bool {
        self.blocks > 0 && self.size != NO_BLOCK
    }

    /// Whether all data are there that the commit was written with, and what says so.
    pub fn is_whole(&self) -> bool {
        self.has_block() && self.live == self.blocks - 1
    }

    /// The same, without the commit's own block. Nobody reads it as a version.
    pub fn without_block(self) -> Self {
        Self { size: NO_BLOCK, ..self }
    }

    pub fn row(&self) -> VersionRow {
        (self.position, self.blocks, self.size, self.time, self.is_listed, self.live)
    }

    pub fn of_row((position, blocks, size, time, is_listed, live): VersionRow) -> TreeResult<Self> {
        let is_possible = [position, blocks, live].iter().all(|number| *number < COUNTED_MAX);
        possible(is_possible, "a version", Self { position, blocks, size, time, is_listed, live })
    }
}

/// What a row says, if it can be so. Pages have checksums, so another one was written wrong.
fn possible<T>(is_possible: bool, what: &str, row: T) -> TreeResult<T> {
    let error = || redb::Error::Corrupted(format!("impossible numbers of {what} in the index of versions"));
    if is_possible { Ok(row) } else { Err(error()) }
}

/// A piece's key in the table.
pub(super) fn piece_key(id: u64, key: Key) -> PieceKey {
    (id, key.leaf, key.level, key.slot, key.age)
}

/// Decodes a piece and its position from a row of the table.
pub(super) fn piece_of((_, leaf, level, slot, age): PieceKey, position: u64) -> TreeResult<(Key, u64)> {
    let is_possible = leaf < COUNTED_MAX >> LEAF_LEVEL
        && level <= LEAF_LEVEL
        && slot < LEAF_BLOCKS >> level
        && (position < COUNTED_MAX || position == HOLE);
    possible(is_possible, "a piece", (Key { leaf, level, slot, age }, position))
}

/// Decodes a commit and its sequence from a row of the table.
pub(super) fn commit_of_row((_, sequence): (u64, u64), row: VersionRow) -> TreeResult<(u64, Row)> {
    possible(sequence < u64::MAX, "a version", (sequence, Row::of_row(row)?))
}

pub(super) fn trim_of((_, position): (u64, u64), blocks: u64) -> TreeResult<(u64, u64)> {
    possible(position.max(blocks) < COUNTED_MAX, "a trim", (position, blocks))
}

/// See [`crate::decoders`]. The pages of a tree have the checksums, not its rows.
pub(crate) const DECODERS: [Decoder; 3] = [
    Decoder {
        name: "region_index_object",
        example: || {
            let state = State { position: 9, parent: 8, tail: 3, levels: 5, ..State::new(6, 5) };
            encode_row::<u64, StateRow>(&7, &state.row())
        },
        seal: <[u8]>::to_vec,
        decode: |bytes| {
            let decoded = guarded(|| {
                let (id, row) = decode_row::<u64, StateRow>(bytes);
                Ok((id, State::of_row(row)?.row()))
            });
            decoded.ok().map(|(id, row)| encode_row::<u64, StateRow>(&id, &row))
        },
    },
    Decoder {
        name: "region_index_version",
        example: || encode_row::<(u64, u64), VersionRow>(&(7, 1 << 20), &(3, 4, 20_000, 5, true, 2)),
        seal: <[u8]>::to_vec,
        decode: |bytes| {
            let decoded = guarded(|| {
                let (key, row) = decode_row::<(u64, u64), VersionRow>(bytes);
                let (sequence, row) = commit_of_row(key, row)?;
                let _ = (row.is_whole(), row.position..row.position + row.blocks);
                Ok(((key.0, sequence), row.row()))
            });
            decoded.ok().map(|(key, row)| encode_row::<(u64, u64), VersionRow>(&key, &row))
        },
    },
    Decoder {
        name: "region_index_piece",
        example: || encode_row::<PieceKey, u64>(&(7, 8, 3, 5, !(1 << 20)), &77),
        seal: <[u8]>::to_vec,
        decode: |bytes| {
            let decoded = guarded(|| {
                let (key, position) = decode_row::<PieceKey, u64>(bytes);
                let (piece, position) = piece_of(key, position)?;
                Ok((key.0, piece, position))
            });
            let (id, piece, position) = decoded.ok()?;
            // Readers compute with these: it must not overflow.
            let _ = piece.blocks();
            Some(encode_row::<PieceKey, u64>(&piece_key(id, piece), &position))
        },
    },
];
