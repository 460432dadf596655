//! Writes of a group's members to split files, which others see once the member has synchronized.
//!
//! Such a write lasts until its member has synchronized: others may see it from the beginning, and have to from then
//! on. The member itself sees it once it is acknowledged. What the member sees of others is as of its last
//! synchronization: a read of it began then.
//!
//! The part of a client is one object, whichever handle writes it. If another handle of the member's client writes the
//! bytes that the member is about to publish, those of either are published then: so that write lasts as long.

use super::{Deed, Files, Moment, Operation, OperationId, ProcessId};
use weft_protocol::InodeNumber;

/// A handle of a member.
pub type MemberId = u64;

/// Who reads, and since when.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub since: Moment,
    pub member: Option<MemberId>,
}

impl From<Moment> for View {
    fn from(since: Moment) -> Self {
        Self { since, member: None }
    }
}

/// What a member's synchronization ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unpublished {
    member: MemberId,
    /// When it was acknowledged.
    acked: Option<Moment>,
    /// It is a write of another handle.
    is_others: bool,
}

impl Operation {
    /// When a write was acknowledged to this member, which has not published it.
    pub(super) fn acked_to(&self, member: Option<MemberId>) -> Option<Moment> {
        let unpublished = self.unpublished.filter(|of| !of.is_others && Some(of.member) == member && !self.doubtful);
        unpublished.and_then(|of| of.acked)
    }

    fn range(&self) -> Option<(u64, u64)> {
        match self.deed {
            Deed::Write { offset: Some(offset), bytes, .. } => Some((offset, offset + bytes)),
            Deed::Write { offset: None, .. } => Some((0, u64::MAX)),
            Deed::Cut { .. } | Deed::Seen { .. } => None,
        }
    }

    /// The member whose write this one is, and that has not published it.
    fn writer(&self) -> Option<MemberId> {
        self.unpublished.filter(|of| !of.is_others).map(|of| of.member)
    }
}

/// The member of the same client, and not this one, that is about to publish bytes of an operation.
fn publisher(operations: &[Operation], index: usize, not: Option<MemberId>) -> Option<MemberId> {
    let operation = &operations[index];
    let (start, end) = operation.range()?;
    let is_over = |other: &&Operation| {
        let is_same = other.by.is_some() && other.by == operation.by;
        is_same && other.range().is_some_and(|(from, to)| from < end && start < to)
    };
    operations.iter().filter(is_over).filter_map(Operation::writer).find(|member| Some(*member) != not)
}

impl Files {
    /// A member has begun a write that it does not publish by itself.
    pub fn begun_by_member(&mut self, id: OperationId, member: MemberId) {
        let operation = &mut self.file(id.inode).operations[id.index];
        operation.unpublished = Some(Unpublished { member, acked: None, is_others: false });
    }

    /// It was acknowledged, and is not published.
    pub fn acked_to_member(&mut self, id: OperationId) {
        let now = self.moment();
        let operation = &mut self.file(id.inode).operations[id.index];
        if let Some(unpublished) = &mut operation.unpublished {
            unpublished.acked = Some(now);
        }
        self.held_back += 1;
    }

    /// An operation has ended, unless a member is about to publish the same bytes of the same part.
    pub(super) fn end(&mut self, id: OperationId, ended: Moment) {
        let operations = &mut self.file(id.inode).operations;
        let not = operations[id.index].writer();
        operations[id.index].unpublished = None;
        match publisher(operations, id.index, not) {
            Some(member) => {
                let others = Unpublished { member, acked: Some(ended), is_others: true };
                operations[id.index].unpublished = Some(others);
            }
            None => {
                operations[id.index].ended = Some(ended);
                operations[id.index].running = false;
            }
        }
    }

    /// A synchronization that began at `since` went well. `Err`: bytes were lost before, and the member was not told.
    pub fn member_synced(&mut self, member: MemberId, inode: InodeNumber, since: Moment) -> Result<(), String> {
        let now = self.moment();
        let count = self.file(inode).operations.len();
        for index in 0..count {
            let operation = &mut self.file(inode).operations[index];
            let is_of = |of: &Unpublished| of.member == member && of.acked.is_some_and(|acked| acked < since);
            let Some(unpublished) = operation.unpublished.filter(is_of) else { continue };
            if !unpublished.is_others {
                operation.safe = !operation.doubtful;
                operation.is_held = false;
            }
            self.end(OperationId { inode, index }, now);
        }
        match self.untold_members.get(&member) {
            Some(lost) if *lost < since => {
                Err(format!("a member synchronized inode {inode}, but bytes were lost before and it was not told"))
            }
            _ => Ok(()),
        }
    }

    /// What members of this process have not published of the file is lost. They must be told.
    pub fn lost_unpublished(&mut self, by: ProcessId, inode: InodeNumber) {
        let now = self.moment();
        let file = self.files.entry(inode).or_insert_with(super::File::empty);
        for operation in file.operations.iter_mut().filter(|operation| operation.by == Some(by)) {
            let Some(member) = operation.writer() else { continue };
            operation.doubtful = true;
            operation.is_held = true;
            file.disturbed = now;
            self.untold_members.entry(member).or_insert(now);
            self.lost_of_members += 1;
        }
    }

    /// A write, sync or flush of a member has failed.
    pub fn member_told(&mut self, member: MemberId) {
        self.untold_members.remove(&member);
    }

    /// A member has closed its handle: what it has not published is nobody's.
    pub fn member_left(&mut self, member: MemberId, inode: InodeNumber) {
        let now = self.moment();
        for index in 0..self.file(inode).operations.len() {
            let file = self.file(inode);
            let operation = &mut file.operations[index];
            match operation.unpublished.filter(|of| of.member == member) {
                Some(Unpublished { is_others: true, .. }) => self.end(OperationId { inode, index }, now),
                Some(_) => {
                    operation.unpublished = None;
                    (operation.doubtful, operation.is_held, operation.running) = (true, false, false);
                    file.disturbed = now;
                }
                None => {}
            }
        }
        self.untold_members.remove(&member);
    }

    /// The members of a process are dead.
    pub(super) fn members_died(&mut self, by: ProcessId) {
        let now = self.moment();
        for operation in self.files.values_mut().flat_map(|file| &mut file.operations) {
            if operation.by == Some(by)
                && let Some(unpublished) = operation.unpublished.take()
                && unpublished.is_others
            {
                operation.ended = Some(now);
                operation.running = false;
            }
        }
    }
}
