//! Moving the bytes of files to other nodes, and from one layout to another.
//!
//! A copy is made under an exclusive lease on the file: nobody else has it open, or has opened it since the copy began.
//! Nor has anybody a descriptor of an object's file, or a mapping of it, which would stay with the old object.
//! Then the shard gives the file the new objects, and has the old ones removed. Other clients see the same bytes before
//! and after; they learn of the objects when they open the file. A file that is in use is left alone.
//!
//! Nodes keep nothing of a file but its objects, so that a copy of these is all there is to do; holes stay holes.

use crate::file_objects::{FileObjects, Held};
use crate::files::Files;
use crate::handle::Handle;
use crate::objects::{ObjectWrite, Objects, request};
use crate::open_inode::{Copied, CopySource};
use crate::open_options::OpenOptions;
use crate::shell::Shell;
use std::collections::BTreeSet;
use weft_layout::Piece;
use weft_protocol::data::DataOperation;
use weft_protocol::message::shard::Access;
use weft_protocol::{Credentials, Error, InodeNumber, Layout, NodeId, Plan, Result, StripePlan, Timestamp};

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 4 << 20;
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

impl<S: Shell> Files<S> {
    /// Moves a file's bytes. Returns how many were copied; 0 if they are where they are to be. `pace` is called after
    /// each piece with its length.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: the file is in use; nothing has changed. [`Error::NotEmpty`]: others have written first.
    pub async fn relocate(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        destination: &Destination,
        pace: &mut impl FnMut(usize),
    ) -> Result<u64> {
        let handle = self.open(who, inode, OpenOptions::of(Access::ReadWrite)).await?;
        let io = &self.objects;
        let moved = async {
            let Some(source) = handle.open.begin_copy(io).await? else {
                if let Some(layout) = &destination.layout {
                    handle.open.set_plan(io, who, layout.plan()).await?;
                }
                return Ok(0);
            };
            if io.is_held(inode, &source).await? {
                return Err(Error::WouldBlock);
            }
            let Some(target) = self.target(inode, &source, destination).await? else { return Ok(0) };
            let copied = io.copy(&handle, &source, &target, pace).await;
            let plan = destination.plan(&source);
            let objects = target.objects.iter().map(|held| held.object).collect();
            match copied {
                Ok((bytes, mtime)) => {
                    let copied = Copied { plan, objects, mtime };
                    handle.open.end_copy(io, who, &source, copied).await.map(|()| bytes)
                }
                Err(error) => {
                    let copied = Copied { plan, objects, mtime: Timestamp::default() };
                    handle.open.drop_copy(io, who, &source, copied).await;
                    Err(error)
                }
            }
        };
        let moved = moved.await;
        self.close_handle(&handle).await;
        // Others are alone with the file again.
        self.calls().shell.release_soon();
        moved
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

    /// Copies a file's bytes to those of the target's objects that are new. Returns how many, and the modification time
    /// of the target's objects.
    async fn copy(
        &self,
        handle: &Handle<S>,
        source: &CopySource,
        target: &Target,
        pace: &mut impl FnMut(usize),
    ) -> Result<(u64, Timestamp)> {
        let inode = handle.open.inode;
        for held in source.objects.iter().flat_map(FileObjects::iter) {
            // None of our own writes that were given up lands in what is copied.
            self.settle_node(held.object.node()).await?;
        }
        let stripes = target.objects.stripes();
        let (mut offset, mut bytes, mut memory) = (0, 0, Vec::new());
        while offset < source.size {
            let length = usize::try_from(source.size - offset).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            for piece in stripes.pieces(offset, length).filter(|piece| target.is_new[piece.index]) {
                memory.resize(piece.bytes, 0);
                let from = offset + piece.start as u64;
                match &source.objects {
                    Some(objects) => self.read_within((inode, objects), &mut memory, from, None).await?,
                    None if handle.read_at(self, &mut memory, from).await? == piece.bytes => {}
                    // It was cut meanwhile.
                    None => return Err(Error::WouldBlock),
                }
                let is_last = from + piece.bytes as u64 == source.size;
                self.write_copy(inode, target, piece, &memory, is_last).await?;
                bytes += piece.bytes as u64;
                pace(piece.bytes);
            }
            offset += length as u64;
        }
        self.sync_objects(inode, &target.objects).await?;
        let copy = self.stat_objects(inode, &target.objects).await?;
        // The shard, or a client, has not told of the objects what they are.
        if copy.size != source.size { Err(Error::WouldBlock) } else { Ok((bytes, copy.mtime)) }
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
