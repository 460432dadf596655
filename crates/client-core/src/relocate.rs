//! Moving the bytes of files to other nodes, and from one layout to another.
//!
//! A copy is made under an exclusive lease on the file: nobody else has it open, or has opened it since the copy began.
//! Nor has anybody a descriptor of an object's file, or a mapping of it, which would stay with the old object.
//! Then the shard gives the file the new objects, and has the old ones removed. Other clients see the same bytes before
//! and after; they learn of the objects when they open the file. A file that is in use is left alone.
//!
//! No lease covers a split file. Others may read it all the time: they ask for its parts again once it has other ones
//! (`split.rs`). The shard refuses what was copied if somebody has the file open for writing, or has changed it since.
//!
//! Nodes keep nothing of a file but its objects, so that a copy of these is all there is to do; holes stay holes.
//!
//! A large file is copied by several callers at once, each of which takes one piece after the other
//! ([`Relocation::copy_pieces`]). The pieces of one moment lie far apart: those of a file with parts are at several
//! nodes, also where each part is a long range.

use crate::file_objects::{FileObjects, Held};
use crate::files::Files;
use crate::handle::Handle;
use crate::objects::{ObjectWrite, Objects, request};
use crate::open_inode::{Copied, CopySource};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_layout::Piece;
use weft_protocol::data::DataOperation;
use weft_protocol::message::shard::Access;
use weft_protocol::{Credentials, Error, InodeNumber, Layout, NodeId, Plan, Result, StripePlan, Timestamp};

/// Ranges of a file that are copied side by side, each in order.
const LANES: u64 = 4;
/// Bytes of zeros, where a copy is looked through for them, that are not written.
const HOLE_BYTES: usize = 64 << 10;

/// How often, and after what time, it is looked again whether a file was closed.
const CLOSE_ATTEMPTS: u32 = 10;
const CLOSE_WAIT_US: u64 = 10_000;

/// Where a file's bytes are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The layout that it is to have, without objects. `None`: the one that it has.
    pub layout: Option<Layout>,
    /// Nodes from which objects move away.
    pub from: BTreeSet<NodeId>,
    /// Nodes that get them, the first one first. With several objects, each gets one before any gets two.
    pub to: Vec<NodeId>,
}

impl Destination {
    fn plan(&self, source: &CopySource) -> Plan {
        self.layout.as_ref().map_or(source.plan, Layout::plan)
    }
}

/// The objects that a file is to have: those that it keeps, and new ones.
struct Target {
    objects: FileObjects,
    /// Of each, whether it is new.
    is_new: Vec<bool>,
}

/// The pieces of a file, each of which is taken once. Several ranges of the file are gone through side by side.
struct Pieces {
    size: u64,
    /// Of a piece, but for the last one.
    bytes: u64,
    /// Pieces of a range.
    in_lane: u64,
    /// Number of the next one, in the order in which they are taken.
    next: AtomicU64,
}

impl Pieces {
    fn new(size: u64, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { size, bytes, in_lane: size.div_ceil(bytes).div_ceil(LANES), next: AtomicU64::new(0) }
    }

    fn count(&self) -> u64 {
        self.size.div_ceil(self.bytes)
    }

    /// The next piece that nobody has taken.
    fn take(&self) -> Option<Range<u64>> {
        loop {
            let number = self.next.fetch_add(1, Ordering::AcqRel);
            if number >= self.in_lane * LANES {
                return None;
            }
            let piece = number % LANES * self.in_lane + number / LANES;
            // The last range may be shorter than others.
            if piece < self.count() {
                let start = piece * self.bytes;
                return Some(start..self.size.min(start + self.bytes));
            }
        }
    }

    /// Nobody gets another piece.
    fn stop(&self) {
        self.next.store(self.in_lane * LANES, Ordering::Release);
    }
}

/// A file whose bytes are being moved. To be ended with [`Files::end_relocation`].
pub struct Relocation<S: Shell> {
    handle: Handle<S>,
    source: CopySource,
    plan: Plan,
    target: Target,
    pieces: Pieces,
    /// Bytes that were copied.
    copied: AtomicU64,
}

impl<S: Shell> Relocation<S> {
    /// Number of pieces: as many callers may copy at once.
    pub fn count(&self) -> u64 {
        self.pieces.count()
    }

    /// Copies one piece after the other until none is left, or another caller has failed. Several may do so at the same
    /// time. `pace` is called after each part of a piece with its length.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: the file is in use.
    pub async fn copy_pieces(&self, files: &Files<S>, pace: &mut impl FnMut(usize)) -> Result<()> {
        let mut memory = Vec::new();
        while let Some(range) = self.pieces.take() {
            let copied = files.objects.copy(self, range, &mut memory, pace).await;
            if copied.is_err() {
                self.pieces.stop();
                return copied;
            }
        }
        Ok(())
    }
}

impl<S: Shell> Files<S> {
    /// Begins to move a file's bytes. `None`: they are where they are to be.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: the file is in use. [`Error::NotEmpty`]: others have written first.
    pub async fn begin_relocation(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        destination: &Destination,
    ) -> Result<Option<Relocation<S>>> {
        let handle = self.open(who, inode, OpenOptions::of(Access::ReadWrite)).await?;
        let begun = self.make_target(who, &handle, destination).await;
        match begun {
            Ok(Some((source, target))) => {
                let plan = destination.plan(&source);
                let pieces = Pieces::new(source.size, self.objects.tuning.copy_bytes);
                Ok(Some(Relocation { handle, source, plan, target, pieces, copied: AtomicU64::new(0) }))
            }
            other => {
                self.let_go(&handle).await;
                other.map(|_| None)
            }
        }
    }

    /// What is to be copied, and to which objects.
    async fn make_target(
        &self,
        who: &Credentials,
        handle: &Handle<S>,
        destination: &Destination,
    ) -> Result<Option<(CopySource, Target)>> {
        let (inode, io) = (handle.open.inode, &self.objects);
        let Some(source) = handle.open.begin_copy(io).await? else {
            if let Some(layout) = &destination.layout {
                handle.open.set_plan(io, who, layout.plan()).await?;
            }
            return Ok(None);
        };
        if io.is_held(inode, &source).await? {
            return Err(Error::WouldBlock);
        }
        for held in source.objects.iter().flat_map(FileObjects::iter) {
            // None of our own writes that were given up lands in what is copied.
            io.settle_node(held.object.node()).await?;
        }
        let target = self.target(inode, &source, destination).await?;
        Ok(target.map(|target| (source, target)))
    }

    /// Gives the file what was copied. `made`: what has become of the copy. Returns how many bytes were moved.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: the file was used meanwhile. With any error it has what it had before.
    pub async fn end_relocation(&self, who: &Credentials, relocation: Relocation<S>, made: Result<()>) -> Result<u64> {
        let Relocation { handle, source, plan, target, copied, .. } = relocation;
        let (io, open) = (&self.objects, &handle.open);
        let objects = target.objects.iter().map(|held| held.object).collect();
        let mtime = match made {
            Ok(()) => io.check_copy(open.inode, &source, &target).await,
            Err(error) => Err(error),
        };
        let ended = match mtime {
            Ok(mtime) => {
                let ended = open.end_copy(io, who, &source, Copied { plan, objects, mtime }).await;
                ended.map(|()| copied.into_inner())
            }
            Err(error) => {
                open.drop_copy(io, who, &source, Copied { plan, objects, mtime: Timestamp::default() }).await;
                Err(error)
            }
        };
        self.let_go(&handle).await;
        ended
    }

    /// Closes a file that was opened to be moved: others are alone with it again.
    async fn let_go(&self, handle: &Handle<S>) {
        self.close_handle(handle).await;
        self.calls().shell.release_soon();
    }

    /// Sets the layout that an empty file is to have. An object that it has already, for a kernel, goes.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]: it has bytes; [`Error::InUse`]: another client has it open, or a kernel that reads and
    /// writes the object itself.
    pub async fn set_file_plan(&self, who: &Credentials, inode: InodeNumber, plan: Plan) -> Result<()> {
        let mut attempts = 0;
        loop {
            match self.try_set_file_plan(who, inode, plan).await {
                // A file that was closed just now is let go of a moment later.
                Err(Error::WouldBlock) if attempts < CLOSE_ATTEMPTS => attempts += 1,
                Err(Error::WouldBlock) => return Err(Error::InUse),
                set => return set,
            }
            self.calls().shell.sleep_us(CLOSE_WAIT_US).await;
        }
    }

    async fn try_set_file_plan(&self, who: &Credentials, inode: InodeNumber, plan: Plan) -> Result<()> {
        let handle = self.open(who, inode, OpenOptions::of(Access::ReadWrite)).await?;
        let io = &self.objects;
        let set = async {
            match handle.open.set_plan(io, who, plan).await {
                Err(Error::NotEmpty) => {}
                set => return set,
            }
            if self.attributes(who, inode).await?.attributes.size > 0 {
                return Err(Error::NotEmpty);
            }
            let Some(source) = handle.open.begin_copy(io).await?.filter(|source| source.size == 0) else {
                return Err(Error::WouldBlock);
            };
            if io.is_held(inode, &source).await? {
                return Err(Error::WouldBlock);
            }
            let nothing = Copied { plan, objects: Vec::new(), mtime: Timestamp::default() };
            handle.open.end_copy(io, who, &source, nothing).await
        };
        let set = set.await;
        self.close_handle(&handle).await;
        set
    }

    /// `None`: nothing is to be moved.
    async fn target(
        &self,
        inode: InodeNumber,
        source: &CopySource,
        destination: &Destination,
    ) -> Result<Option<Target>> {
        let plan = destination.plan(source);
        let stays = |held: &Held| !destination.from.contains(&held.object.node());
        let width = plan.stripes().map_or(1, StripePlan::width);
        let slots: Vec<Option<Held>> = match &source.objects {
            Some(objects) if plan == source.plan => objects.iter().map(|held| Some(held).filter(stays)).collect(),
            // All parts become one.
            _ => vec![None; usize::from(width).min(destination.to.len()).max(1)],
        };
        if slots.iter().all(Option::is_some) {
            return Ok(None);
        }
        let (mut objects, is_new) = (Vec::new(), slots.iter().map(Option::is_none).collect());
        let mut used: BTreeSet<NodeId> = slots.iter().flatten().map(|held| held.object.node()).collect();
        for slot in &slots {
            let held = match slot {
                Some(kept) => *kept,
                None => {
                    let free = destination.to.iter().find(|node| !used.contains(node));
                    let Some(node) = free.or(destination.to.first()) else { return Err(Error::NoSpace) };
                    used.insert(*node);
                    self.objects.make_at(inode, *node).await?.0
                }
            };
            objects.push(held);
        }
        let objects = FileObjects::made(&Layout::planned(plan.of_objects()), &objects).ok_or(Error::Invalid)?;
        Ok(Some(Target { objects, is_new }))
    }
}

impl<S: Shell> Objects<S> {
    /// Whether anybody has one of the objects' files: a mapping by a kernel that reads and writes the object itself
    /// outlives the handle that it was made by.
    async fn is_held(&self, inode: InodeNumber, source: &CopySource) -> Result<bool> {
        for held in source.objects.iter().flat_map(FileObjects::iter) {
            let look = request(inode, DataOperation::IsHeld, held, 0, 0);
            if self.data_write(&look, &[], None).await?.written_bytes > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies a range to those of the target's objects that are new.
    async fn copy(
        &self,
        relocation: &Relocation<S>,
        range: Range<u64>,
        memory: &mut Vec<u8>,
        pace: &mut impl FnMut(usize),
    ) -> Result<()> {
        let Relocation { handle, source, target, copied, .. } = relocation;
        let inode = handle.open.inode;
        let (offset, length) = (range.start, usize::try_from(range.end - range.start).expect("a piece is short"));
        let stripes = target.objects.stripes();
        for piece in stripes.pieces(offset, length).filter(|piece| target.is_new[piece.index]) {
            memory.resize(piece.bytes, 0);
            let from = offset + piece.start as u64;
            match &source.objects {
                Some(objects) => self.read_within((inode, objects), memory, from, None).await?,
                None if handle.read_at(self, memory, from).await? == piece.bytes => {}
                // It was cut meanwhile.
                None => return Err(Error::WouldBlock),
            }
            let is_last = from + piece.bytes as u64 == source.size;
            self.write_copy(inode, target, piece, memory, is_last).await?;
            copied.fetch_add(piece.bytes as u64, Ordering::AcqRel);
            pace(piece.bytes);
        }
        Ok(())
    }

    /// Brings a copy to its devices. Returns the modification time of the target's objects.
    async fn check_copy(&self, inode: InodeNumber, source: &CopySource, target: &Target) -> Result<Timestamp> {
        self.sync_objects(inode, &target.objects).await?;
        let copy = self.stat_objects(inode, &target.objects).await?;
        // The shard, or a client, has not told of the objects what they are.
        if copy.size == source.size { Ok(copy.mtime) } else { Err(Error::WouldBlock) }
    }

    /// Writes what is not a hole. Of the file's last piece the last byte is written in any case: it makes the file as
    /// long as it is.
    async fn write_copy(
        &self,
        inode: InodeNumber,
        target: &Target,
        piece: Piece,
        bytes: &[u8],
        is_last: bool,
    ) -> Result<()> {
        let held = target.objects.at(piece.index);
        let mut write = ObjectWrite::new((inode, target.objects.clone()), DataOperation::Write, false);
        for run in runs(bytes, is_last) {
            let at = piece.object_offset + run.start as u64;
            self.write_part(&mut write, held, &bytes[run], at, None).await?;
        }
        Ok(())
    }
}

/// Ranges that are to be written: all that is not zero, in units of [`HOLE_BYTES`].
fn runs(bytes: &[u8], is_last: bool) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, unit) in bytes.chunks(HOLE_BYTES).enumerate() {
        let range = index * HOLE_BYTES..index * HOLE_BYTES + unit.len();
        let ends_file = is_last && range.end == bytes.len();
        if !ends_file && unit.iter().all(|byte| *byte == 0) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_is_taken_once_from_several_ranges_in_turns() {
        for size in 0..60 {
            let pieces = Pieces::new(size, 5);
            let mut taken: Vec<Range<u64>> = std::iter::from_fn(|| pieces.take()).collect();
            assert_eq!(taken.len() as u64, pieces.count());
            assert_eq!(pieces.take(), None);
            taken.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in taken {
                assert_eq!(range.start, end, "of {size} bytes");
                end = range.end;
            }
            assert_eq!(end, size);
        }
        let pieces = Pieces::new(59, 5);
        let first: Vec<u64> = std::iter::from_fn(|| pieces.take()).take(5).map(|range| range.start).collect();
        assert_eq!(first, [0, 15, 30, 45, 5]);
        pieces.stop();
        assert_eq!(pieces.take(), None);
    }

    #[test]
    fn holes_are_not_written_but_for_the_end_of_the_file() {
        let mut bytes = vec![0; 4 * HOLE_BYTES + 10];
        assert!(runs(&bytes, false).is_empty());
        let end = 4 * HOLE_BYTES..4 * HOLE_BYTES + 10;
        assert_eq!(runs(&bytes, true), std::slice::from_ref(&end));
        (bytes[HOLE_BYTES], bytes[3 * HOLE_BYTES - 1]) = (1, 1);
        let middle = HOLE_BYTES..3 * HOLE_BYTES;
        assert_eq!(runs(&bytes, false), std::slice::from_ref(&middle), "what lies side by side is one run");
        assert_eq!(runs(&bytes, true), [middle, end]);
        assert!(runs(&[], true).is_empty());
    }
}
