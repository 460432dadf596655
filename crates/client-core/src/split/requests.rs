//! Pieces of a split file that nodes have to be asked for, with several requests under way: each node has a connection,
//! over which its pieces come in their order.
//!
//! A reader of what others have written in strides gets as many pieces as there are records in the range. One after the
//! other, each would cost a round trip.

use crate::file_objects::Held;
use crate::lines::Lines;
use crate::lists::REQUESTS_MAX;
use crate::objects::Objects;
use crate::shell::Shell;
use std::collections::VecDeque;
use weft_layout::{Piece, SplitPiece};
use weft_protocol::{Error, InodeNumber, NodeId, ObjectId, Result};

/// What is asked for next.
struct Ahead<'a> {
    pieces: std::slice::Iter<'a, (Held, SplitPiece<ObjectId>)>,
    nodes: &'a [NodeId],
    /// Of the range in the file.
    offset: u64,
    /// What is left of the present piece.
    left: Option<(Held, Piece)>,
}

impl Ahead<'_> {
    /// The next request, of at most so many bytes. `None`: all was asked for.
    fn next(&mut self, bytes_max: usize) -> Option<(Held, Piece)> {
        let (held, piece) = match self.left {
            Some(left) => left,
            None => {
                let (held, SplitPiece { start, bytes, .. }) = *self.pieces.next()?;
                let index = self.nodes.binary_search(&held.object.node()).expect("the nodes are those of the pieces");
                (held, Piece { index, object_offset: self.offset + start as u64, start, bytes })
            }
        };
        self.left = Some((held, piece));
        Some((held, Piece { bytes: piece.bytes.min(bytes_max), ..piece }))
    }

    fn asked(&mut self, bytes: usize) {
        let (held, piece) = self.left.take().expect("some of it was asked for");
        let (start, object_offset) = (piece.start + bytes, piece.object_offset + bytes as u64);
        let left = Piece { start, object_offset, bytes: piece.bytes - bytes, ..piece };
        self.left = (left.bytes > 0).then_some((held, left));
    }
}

/// Reads pieces of a range that begins at `offset` of the file. [`Error::NoObject`]: a part has not all that was
/// published of it. [`Error::Busy`]: there is no connection to be had without waiting for it.
pub async fn read<S: Shell>(
    io: &Objects<S>,
    inode: InodeNumber,
    pieces: &[(Held, SplitPiece<ObjectId>)],
    into: &mut [u8],
    offset: u64,
) -> Result<()> {
    let mut nodes: Vec<_> = pieces.iter().map(|(held, _)| held.object.node()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut ahead = Ahead { pieces: pieces.iter(), nodes: &nodes, offset, left: None };
    let Some((held, first)) = ahead.next(1) else { return Ok(()) };
    let mut lines = Lines::open(io, nodes.len(), (first.index, held)).await?.ok_or(Error::Busy)?;
    let request_bytes = lines.window().0 as usize;
    let mut under_way = VecDeque::new();
    loop {
        while under_way.len() < REQUESTS_MAX * nodes.len()
            && let Some((held, piece)) = ahead.next(request_bytes)
            && lines.ask(io, (inode, held), &piece).await?
        {
            ahead.asked(piece.bytes);
            under_way.push_back(piece);
        }
        let Some(piece) = under_way.pop_front() else { break };
        lines.take_all_of(&mut into[piece.start..piece.end()]).await?;
    }
    lines.end(io).await;
    if ahead.next(request_bytes).is_some() { Err(Error::Busy) } else { Ok(()) }
}
