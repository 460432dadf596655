//! Pieces of a file, read with several requests under way: also one piece, where several objects have parts of it.

use crate::file_objects::FileObjects;
use crate::lines::Lines;
use crate::objects::Objects;
use crate::shell::Shell;
use crate::transfers::within;
use std::collections::VecDeque;
use weft_layout::{Piece, Stripes};
use weft_protocol::{InodeNumber, Result};

/// Requests for each object that are asked for ahead. A connection has no more in flight (`weft_protocol::window`), and
/// more would take memory, however small the pieces are.
pub(crate) const REQUESTS_MAX: usize = 32;

/// Pieces of memory, each with a place in the file, that are filled in their order.
pub trait ReadList {
    /// Offset in the file and length of each.
    fn ranges(&self) -> Vec<(u64, usize)>;

    /// The memory of the piece with this index. Pieces may share memory: one is used at a time.
    fn memory(&mut self, index: usize) -> &mut [u8];
}

/// One range.
struct Whole<'a> {
    offset: u64,
    memory: &'a mut [u8],
}

impl ReadList for Whole<'_> {
    fn ranges(&self) -> Vec<(u64, usize)> {
        vec![(self.offset, self.memory.len())]
    }

    fn memory(&mut self, _index: usize) -> &mut [u8] {
        self.memory
    }
}

/// Reads the pieces one after the other, until the end of the file cuts one. Returns the sum of bytes.
pub(crate) async fn read_one_by_one(
    ranges: &[(u64, usize)],
    list: &mut dyn ReadList,
    mut read: impl AsyncFnMut(&mut [u8], u64) -> Result<usize>,
) -> Result<usize> {
    let mut sum = 0;
    for (index, (offset, bytes)) in ranges.iter().enumerate() {
        let count = read(list.memory(index), *offset).await?;
        sum += count;
        if count < *bytes {
            break;
        }
    }
    Ok(sum)
}

/// The ranges up to the first that the end of a file of this size cuts, as far as they lie within it.
fn within_file(ranges: &[(u64, usize)], size: u64) -> Vec<(u64, usize)> {
    let mut kept = Vec::with_capacity(ranges.len());
    for (offset, bytes) in ranges {
        let have = within(size, *offset, *bytes);
        kept.push((*offset, have));
        if have < *bytes {
            break;
        }
    }
    kept
}

/// What is asked for next.
struct Ahead<'a> {
    ranges: std::slice::Iter<'a, (u64, usize)>,
    /// What is left of the present one.
    offset: u64,
    left: usize,
}

impl<'a> Ahead<'a> {
    fn new(ranges: &'a [(u64, usize)]) -> Self {
        Self { ranges: ranges.iter(), offset: 0, left: 0 }
    }

    /// The next piece of an object, at most so many bytes. `None`: all was asked for.
    fn next(&mut self, stripes: Stripes, bytes_max: usize) -> Option<Piece> {
        while self.left == 0 {
            (self.offset, self.left) = *self.ranges.next()?;
        }
        Some(stripes.piece_at(self.offset, 0, self.left.min(bytes_max)))
    }

    fn asked(&mut self, piece: &Piece) {
        self.offset += piece.bytes as u64;
        self.left -= piece.bytes;
    }
}

impl<S: Shell> Objects<S> {
    /// Reads pieces of a file of this size, in their order, until its end cuts one. Returns the sum of bytes. `None`: a
    /// connection failed or was not to be had, or a request was refused. They have to be read otherwise, which also
    /// tells why.
    pub(crate) async fn read_list(
        &self,
        of: (InodeNumber, &FileObjects),
        size: u64,
        ranges: &[(u64, usize)],
        list: &mut dyn ReadList,
    ) -> Option<usize> {
        let ranges = within_file(ranges, size);
        let Some((first, _)) = ranges.iter().find(|(_, bytes)| *bytes > 0) else { return Some(0) };
        let index = of.1.stripes().piece_at(*first, 0, 1).index;
        let mut lines = Lines::open(self, of.1.iter().count(), (index, of.1.at(index))).await.ok().flatten()?;
        // After an error nothing is known of what is outstanding.
        self.take_list(of, &mut lines, &ranges, list).await.ok()?;
        lines.end(self).await;
        Some(ranges.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Reads a range that lies within the file from several objects at a time. `false`: it lies in one, or has to be
    /// read otherwise, which also tells why.
    pub(crate) async fn read_together(&self, of: (InodeNumber, &FileObjects), memory: &mut [u8], offset: u64) -> bool {
        if of.1.stripes().pieces(offset, memory.len()).nth(1).is_none() {
            return false;
        }
        let mut whole = Whole { offset, memory };
        let ranges = whole.ranges();
        self.read_list(of, u64::MAX, &ranges, &mut whole).await.is_some()
    }

    /// Fills the pieces, with zeros where an object has ended.
    async fn take_list(
        &self,
        of: (InodeNumber, &FileObjects),
        lines: &mut Lines<S>,
        ranges: &[(u64, usize)],
        list: &mut dyn ReadList,
    ) -> Result<()> {
        let (stripes, turn_bytes) = (of.1.stripes(), lines.window().0 as usize);
        let requests_max = REQUESTS_MAX * stripes.width();
        let mut ahead = Ahead::new(ranges);
        // Bytes to come of each request.
        let mut requests = VecDeque::new();
        for (index, (_, bytes)) in ranges.iter().enumerate() {
            let mut have = 0;
            while have < *bytes {
                while requests.len() < requests_max
                    && let Some(piece) = ahead.next(stripes, turn_bytes)
                    && lines.ask(self, (of.0, of.1.at(piece.index)), &piece).await?
                {
                    ahead.asked(&piece);
                    requests.push_back(piece.bytes);
                }
                let mut taken = lines.take(&mut list.memory(index)[have..*bytes]).await?;
                have += taken;
                while taken > 0 {
                    let front = requests.front_mut().expect("bytes come of requests");
                    let part = taken.min(*front);
                    (*front, taken) = (*front - part, taken - part);
                    if *front == 0 {
                        requests.pop_front();
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_with_the_piece_that_the_end_of_the_file_cuts() {
        let ranges = [(10, 5), (0, 3), (18, 4), (0, 9)];
        assert_eq!(within_file(&ranges, 20), [(10, 5), (0, 3), (18, 2)]);
        assert_eq!(within_file(&ranges, 100), ranges);
        assert_eq!(within_file(&ranges, 0), [(10, 0)]);
    }
}
