//! Writes of a group's members to split files, which others see once the member has synchronized.
//!
//! Such a write lasts until its member has synchronized: others may see it from the beginning, and have to from then
//! on. The member itself sees it once it is acknowledged. What the member sees of others is as of its last
//! synchronization: a read of it began then.

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
}

impl Operation {
    /// When a write was acknowledged to this member, which has not published it.
    pub(super) fn acked_to(&self, member: Option<MemberId>) -> Option<Moment> {
        let unpublished = self.unpublished.filter(|of| Some(of.member) == member && !self.doubtful);
        unpublished.and_then(|of| of.acked)
    }
}

/// Whether a member may see this value at this place because an append was written there before others made the file
/// longer. What the member knows of the place is from before a cut (docs/decisions/0028, "Price").
pub(super) fn may_see_tried(operations: &[Operation], view: View, (place, value): (u64, u8)) -> bool {
    let is_since = |operation: &&Operation| operation.ended.is_none_or(|ended| ended >= view.since);
    let is_cut = |operation: &Operation| matches!(operation.deed, Deed::Cut { .. });
    let is_tried = |operation: &Operation| match operation.deed {
        Deed::Write { bytes, value: written, .. } => {
            written == value && operation.tried.iter().any(|at| (*at..at + bytes).contains(&place))
        }
        Deed::Cut { .. } | Deed::Seen { .. } => false,
    };
    let since = || operations.iter().filter(is_since);
    view.member.is_some() && since().any(is_cut) && since().any(is_tried)
}

impl Files {
    /// An append is written at this place of its part. If others make the file longer before it is published, it is
    /// written once more.
    pub fn append_tried(&mut self, id: OperationId, at: u64) {
        let tried = &mut self.file(id.inode).operations[id.index].tried;
        if !tried.contains(&at) {
            tried.push(at);
        }
    }

    /// A member has begun a write that it does not publish by itself.
    pub fn begun_by_member(&mut self, id: OperationId, member: MemberId) {
        let operation = &mut self.file(id.inode).operations[id.index];
        operation.unpublished = Some(Unpublished { member, acked: None });
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

    /// A synchronization that began at `since` went well. `Err`: bytes were lost before, and the member was not told.
    pub fn member_synced(&mut self, member: MemberId, inode: InodeNumber, since: Moment) -> Result<(), String> {
        let now = self.moment();
        let is_of = |of: Unpublished| of.member == member && of.acked.is_some_and(|acked| acked < since);
        let operations = self.file(inode).operations.iter_mut();
        for operation in operations.filter(|operation| operation.unpublished.is_some_and(is_of)) {
            operation.unpublished = None;
            operation.ended = Some(now);
            (operation.safe, operation.is_held, operation.running) = (!operation.doubtful, false, false);
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
            let Some(Unpublished { member, .. }) = operation.unpublished else { continue };
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
        let file = self.file(inode);
        let is_of = |operation: &&mut Operation| operation.unpublished.is_some_and(|of| of.member == member);
        for operation in file.operations.iter_mut().filter(is_of) {
            operation.unpublished = None;
            (operation.doubtful, operation.is_held, operation.running) = (true, false, false);
            file.disturbed = now;
        }
        self.untold_members.remove(&member);
    }
}
