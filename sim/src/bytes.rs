//! What a read of a file may return: the plain model of its bytes.
//!
//! Each byte of a file is a register, and so is whether the file is that long. A write or a cut is an operation with a
//! beginning and an end. A read may return what an operation put there, unless another one began after that had ended,
//! and ended itself before the read began. So what overlaps in time may be seen or not, byte by byte, and everything
//! else has one answer.
//!
//! What the promises allow to be lost is *doubtful* from then on: it may be there or not, and what it was written over
//! may show again. That is what failed (and said so), and what a client that died had in its buffers (SEMANTICS,
//! section 1: "write, buffered: client killed: no"). What was written directly, flushed or closed never is. Once
//! nothing is on its way and somebody has seen what became of it, everybody sees that.
//!
//! Not here: the bytes of a file of which a part was at a node that crashed: nothing is said of it any more.

mod members;

pub use members::{MemberId, View};
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_protocol::{InodeNumber, ShardId, routing};

/// A place in the order of all that happened.
pub type Moment = u64;
/// One run of a client's process.
pub type ProcessId = u64;

/// Names an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationId {
    inode: InodeNumber,
    index: usize,
}

/// What it does.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Deed {
    /// `offset` is `None` until an append has been given one.
    Write { offset: Option<u64>, bytes: u64, value: u8 },
    /// The file has this size.
    Cut { size: u64 },
    /// No operation: these bytes were read at an offset when some were doubtful.
    Seen { offset: u64, bytes: Rc<[u8]> },
}

#[derive(Clone, Debug)]
struct Operation {
    deed: Deed,
    /// `None`: nobody's whose death would matter.
    by: Option<ProcessId>,
    /// The process whose open with O_TRUNC it is part of, once that is known.
    open_by: Option<ProcessId>,
    begun: Moment,
    /// When it was acknowledged, or can have no effect any more.
    ended: Option<Moment>,
    /// Its program waits for it: what is lost of it by the end of a session may be sent again by the next one.
    running: bool,
    /// It may not be lost by the death of who did it.
    safe: bool,
    /// It may be lost, or have been.
    doubtful: bool,
    /// Of what is doubtful: its client has not flushed since, and may hold it, or the object that it went to is not
    /// known to the shard. What somebody has seen of it is lost with the client's session.
    is_held: bool,
    /// Of what is held: its program was told that it could not be reported, and it may be later.
    may_appear: bool,
    /// Of what was seen: whose changes were held then.
    held_by: Vec<ProcessId>,
    /// It ends when a member synchronizes.
    unpublished: Option<members::Unpublished>,
    /// Of an append to a split file: the places where its bytes were written.
    tried: Vec<u64>,
}

impl Operation {
    /// One that begins.
    fn new(deed: Deed, by: Option<ProcessId>, begun: Moment) -> Self {
        Self {
            deed,
            by,
            open_by: None,
            begun,
            ended: None,
            running: by.is_some(),
            safe: false,
            doubtful: false,
            is_held: false,
            may_appear: false,
            held_by: Vec::new(),
            unpublished: None,
            tried: Vec::new(),
        }
    }

    /// What it makes of the byte at `place`; `None`: it leaves it as it was.
    fn value_at(&self, place: u64) -> Option<u8> {
        match &self.deed {
            Deed::Write { offset: Some(offset), bytes, value } => {
                (*offset <= place && place < offset + bytes).then_some(*value)
            }
            // An append on its way may be anywhere.
            Deed::Write { offset: None, value, .. } => Some(*value),
            Deed::Cut { size } => (place >= *size).then_some(0),
            Deed::Seen { offset, bytes } => {
                place.checked_sub(*offset).and_then(|at| bytes.get(usize::try_from(at).ok()?)).copied()
            }
        }
    }

    /// What it makes of whether the file has a byte at `place`.
    fn presence_at(&self, place: u64) -> Option<bool> {
        match &self.deed {
            Deed::Write { offset: Some(offset), bytes, .. } => (place < offset + bytes).then_some(true),
            Deed::Write { offset: None, .. } => Some(true),
            Deed::Cut { size } => Some(place < *size),
            Deed::Seen { offset, bytes } => (place < offset + bytes.len() as u64).then_some(true),
        }
    }
}

/// A file.
#[derive(Debug)]
struct File {
    operations: Vec<Operation>,
    writes: u64,
    lost: bool,
    /// When an operation last became doubtful, or a client showed the file without knowing what is there.
    disturbed: Moment,
}

impl File {
    /// One that was just made.
    fn empty() -> Self {
        let made = Operation { ended: Some(0), safe: true, ..Operation::new(Deed::Cut { size: 0 }, None, 0) };
        Self { operations: vec![made], writes: 0, lost: false, disturbed: 0 }
    }
}

/// What could be at one place.
fn could_be<T: PartialEq>(
    operations: &[Operation],
    View { since, member }: View,
    at: impl Fn(&Operation) -> Option<T>,
) -> Vec<T> {
    let is_own = |operation: &Operation| operation.acked_to(member).is_some();
    let certain = |operation: &Operation| {
        is_own(operation) || !operation.doubtful && operation.ended.is_some_and(|ended| ended < since)
    };
    let there = || operations.iter().filter_map(|operation| at(operation).map(|value| (operation, value)));
    let latest_of = |is_it: &dyn Fn(&Operation) -> bool| {
        there().map(|(operation, _)| operation).filter(|operation| is_it(operation)).map(|other| other.begun).max()
    };
    let (latest, latest_own) = (latest_of(&certain), latest_of(&is_own));
    let covered = |operation: &Operation| {
        let by_own = operation.acked_to(member).is_some_and(|acked| Some(acked) < latest_own);
        by_own || operation.ended.is_some_and(|ended| Some(ended) < latest)
    };
    there().filter(|(operation, _)| !covered(operation)).map(|(_, value)| value).collect()
}

/// All files.
#[derive(Debug, Default)]
pub struct Files {
    files: BTreeMap<InodeNumber, File>,
    now: Moment,
    /// Processes and files whose loss has not been told to a program yet, and when the first byte was lost.
    untold: BTreeMap<(ProcessId, InodeNumber), Moment>,
    /// Reads that were compared, and operations that became doubtful.
    pub compared: u64,
    pub doubts: u64,
    /// Looks that settled what became of doubtful operations.
    pub seen: u64,
    /// Members whose loss has not been told to them yet.
    untold_members: BTreeMap<MemberId, Moment>,
    /// Writes that were acknowledged to members before they were published, and those that were lost.
    pub held_back: u64,
    /// Writes to split files that were acknowledged under a range lease, and recalls of those.
    pub within_ranges: u64,
    pub ranges_recalled: u64,
    pub lost_of_members: u64,
    /// Writes that went on at another node.
    pub spilled: u64,
}

impl Files {
    /// The next moment.
    pub fn moment(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn file(&mut self, inode: InodeNumber) -> &mut File {
        self.files.entry(inode).or_insert_with(File::empty)
    }

    fn begin(&mut self, inode: InodeNumber, by: Option<ProcessId>, deed: Deed) -> OperationId {
        let begun = self.moment();
        let file = self.file(inode);
        file.operations.push(Operation::new(deed, by, begun));
        OperationId { inode, index: file.operations.len() - 1 }
    }

    /// A byte value that no other write to the file had lately; 0 is what was never written.
    pub fn next_value(&mut self, inode: InodeNumber) -> u8 {
        let file = self.file(inode);
        file.writes += 1;
        u8::try_from((file.writes - 1) % 255 + 1).unwrap_or(1)
    }

    /// A program writes. `offset` `None`: it appends.
    pub fn write(
        &mut self,
        by: ProcessId,
        inode: InodeNumber,
        offset: Option<u64>,
        bytes: u64,
        value: u8,
    ) -> OperationId {
        self.begin(inode, Some(by), Deed::Write { offset, bytes, value })
    }

    /// A program cuts the file, or extends it.
    pub fn cut(&mut self, by: ProcessId, inode: InodeNumber, size: u64) -> OperationId {
        self.begin(inode, Some(by), Deed::Cut { size })
    }

    /// An object is being cut on behalf of a call that the storage server does not know.
    pub fn cut_seen(&mut self, inode: InodeNumber, size: u64) {
        let in_flight = |operation: &Operation| operation.ended.is_none() && operation.deed == Deed::Cut { size };
        if !self.file(inode).operations.iter().any(in_flight) {
            self.begin(inode, None, Deed::Cut { size });
        }
    }

    /// A shard has cut a file by a call of this process. What is not known as the process's own operation is part of an
    /// open with O_TRUNC: that learns which file it is with its reply.
    pub fn cut_done(&mut self, by: ProcessId, inode: InodeNumber, size: u64) {
        let in_flight = |operation: &Operation| operation.ended.is_none() && operation.deed == Deed::Cut { size };
        let operations = &mut self.file(inode).operations;
        let is_known = |operation: &Operation| operation.by == Some(by) || operation.open_by == Some(by);
        if operations.iter().any(|operation| in_flight(operation) && is_known(operation)) {
            return;
        }
        let is_seen =
            |operation: &&mut Operation| in_flight(operation) && operation.by.is_none() && operation.open_by.is_none();
        if let Some(seen) = operations.iter_mut().find(is_seen) {
            seen.open_by = Some(by);
            return;
        }
        let OperationId { index, .. } = self.begin(inode, None, Deed::Cut { size });
        self.file(inode).operations[index].open_by = Some(by);
    }

    /// An open with O_TRUNC of this process that began at `since` has returned.
    pub fn open_cut_ended(&mut self, by: ProcessId, inode: InodeNumber, since: Moment) {
        let ended = self.moment();
        for operation in &mut self.file(inode).operations {
            if operation.ended.is_none() && operation.open_by == Some(by) {
                operation.begun = operation.begun.min(since);
                operation.ended = Some(ended);
            }
        }
    }

    /// An append was given its place. It counts when the append is acknowledged: one that went to an object that did
    /// not become the file's is made again.
    pub fn append_placed(&mut self, id: OperationId, at: u64) {
        if let Deed::Write { offset, .. } = &mut self.file(id.inode).operations[id.index].deed {
            *offset = Some(at);
        }
    }

    /// An append was acknowledged. `Err`: it is not at the end of the file.
    pub fn append_ended(&mut self, id: OperationId, safe: bool) -> Result<(), String> {
        let mut others = self.file(id.inode).operations.clone();
        let Operation { deed, begun, .. } = others.remove(id.index);
        self.ended(id, safe);
        match deed {
            Deed::Write { offset: Some(offset), .. } => self.compare_end(id.inode, &others, offset, begun.into()),
            _ => Err(format!("{deed:?} of inode {} was acknowledged before it was done", id.inode)),
        }
    }

    /// An operation was acknowledged. `safe`: and is not lost with the client.
    pub fn ended(&mut self, id: OperationId, safe: bool) {
        let ended = self.moment();
        let operation = &mut self.file(id.inode).operations[id.index];
        operation.ended = Some(ended);
        operation.running = false;
        operation.unpublished = None;
        operation.safe = safe && !operation.doubtful;
        // Its session has ended; the client holds the bytes in buffers of its next session.
        operation.is_held |= operation.doubtful && !safe;
    }

    /// An operation failed, and its program knows. `refused`: for want of space, so that nothing of it appears after
    /// somebody has seen the file without.
    pub fn failed(&mut self, id: OperationId, refused: bool) {
        let now = self.moment();
        let file = self.file(id.inode);
        let operation = &mut file.operations[id.index];
        (operation.doubtful, operation.is_held, operation.may_appear) = (true, true, !refused);
        operation.running = false;
        operation.unpublished = None;
        file.disturbed = now;
        self.doubts += 1;
    }

    /// A program's flush or close that began at `since` went well. `Err`: bytes were lost before, and no program was
    /// told.
    pub fn flush_went_well(&mut self, by: ProcessId, inode: InodeNumber, since: Moment) -> Result<(), String> {
        if self.untold.get(&(by, inode)).is_some_and(|lost| *lost < since) {
            return Err(format!("a flush of inode {inode} went well, but bytes were lost before and nobody was told"));
        }
        Ok(())
    }

    /// Everything acknowledged before `since` was flushed by this process: it is safe.
    pub fn flushed(&mut self, by: ProcessId, inode: InodeNumber, since: Moment) {
        for operation in &mut self.file(inode).operations {
            let before = operation.ended.is_some_and(|ended| ended < since);
            operation.safe |= before && operation.by == Some(by) && !operation.doubtful;
            operation.is_held &= operation.by != Some(by) || operation.begun >= since;
            operation.held_by.retain(|holder| *holder != by);
        }
    }

    /// What this process has not flushed of the file is lost. It must tell a program.
    pub fn lost_buffers(&mut self, by: ProcessId, inode: InodeNumber) {
        let before = self.doubts;
        self.gave_up_buffers(by, inode);
        if self.doubts > before {
            let now = self.moment();
            self.untold.entry((by, inode)).or_insert(now);
        }
    }

    /// Some of what this process has not flushed of the file is lost, of which it has told a program before.
    pub fn gave_up_buffers(&mut self, by: ProcessId, inode: InodeNumber) {
        self.doubt(|of, operation| of == inode && operation.by == Some(by));
        let now = self.moment();
        let file = self.file(inode);
        for operation in file.operations.iter_mut().filter(|operation| operation.held_by.contains(&by)) {
            operation.doubtful = true;
            operation.held_by.clear();
            file.disturbed = now;
        }
    }

    /// The process told a program that something went wrong with the file.
    pub fn told(&mut self, by: ProcessId, inode: InodeNumber) {
        self.untold.remove(&(by, inode));
    }

    /// A session of the process was ended: its leases are others' now. Nothing of it is on its way. `until`: when the
    /// process began another one; `None`: it has not.
    pub fn fenced(&mut self, by: ProcessId, shard: ShardId, until: Option<Moment>) {
        let now = self.moment();
        for (_, file) in self.files.iter_mut().filter(|(inode, _)| routing::of_inode(**inode) == shard) {
            for operation in &mut file.operations {
                operation.is_held &= operation.by != Some(by) || until.is_some_and(|until| operation.begun >= until);
                if operation.held_by.contains(&by) {
                    operation.doubtful = true;
                    operation.held_by.clear();
                    file.disturbed = now;
                }
                let is_of = until.is_none_or(|until| operation.ended.is_some_and(|ended| ended < until));
                if operation.by == Some(by) && is_of && !operation.safe && !operation.doubtful {
                    operation.doubtful = true;
                    file.disturbed = now;
                    self.doubts += 1;
                }
            }
        }
    }

    /// The process is dead.
    pub fn died(&mut self, by: ProcessId) {
        self.untold.retain(|(of, _), _| *of != by);
        for operation in self.files.values_mut().flat_map(|file| &mut file.operations) {
            operation.running &= operation.by != Some(by);
        }
        let is_of = |operation: &Operation| {
            operation.by == Some(by) || (operation.open_by == Some(by) && operation.ended.is_none())
        };
        self.doubt(|_, operation| is_of(operation));
        for operation in self.files.values_mut().flat_map(|file| &mut file.operations) {
            operation.is_held &= !is_of(operation);
            if operation.held_by.contains(&by) {
                operation.doubtful = true;
                operation.held_by.clear();
            }
        }
    }

    fn doubt(&mut self, is_it: impl Fn(InodeNumber, &Operation) -> bool) {
        let now = self.moment();
        for (inode, file) in &mut self.files {
            for operation in file.operations.iter_mut().filter(|operation| !operation.safe) {
                if is_it(*inode, operation) && !operation.doubtful {
                    (operation.doubtful, operation.is_held) = (true, true);
                    operation.ended = None;
                    file.disturbed = now;
                    self.doubts += 1;
                }
            }
        }
    }

    /// Nothing that was doubtful at `since`, and is not done still, is on its way any more.
    pub fn settled(&mut self, since: Moment) {
        let now = self.moment();
        for operation in self.files.values_mut().flat_map(|file| &mut file.operations) {
            if operation.doubtful && operation.ended.is_none() && !operation.running && operation.begun < since {
                operation.ended = Some(now);
            }
        }
    }

    /// Nothing is said of this file any more: a part of it was at a node that is gone.
    pub fn forget(&mut self, inode: InodeNumber) {
        self.file(inode).lost = true;
    }

    /// All files that something is said of.
    pub fn known(&self) -> Vec<InodeNumber> {
        self.files.iter().filter(|(_, file)| !file.lost).map(|(inode, _)| *inode).collect()
    }

    /// A read that began at `since` told these bytes, of `wanted` that it asked for.
    pub fn compare_read(
        &mut self,
        inode: InodeNumber,
        (offset, wanted): (u64, u64),
        told: &[u8],
        view: impl Into<View>,
    ) -> Result<(), String> {
        let view = view.into();
        let since = view.since;
        let operations = std::mem::take(&mut self.file(inode).operations);
        let result = self.compare_bytes(inode, &operations, (offset, told), view).and_then(|()| {
            let end = offset + told.len() as u64;
            if (told.len() as u64) < wanted { compare_presence(inode, &operations, end, view, false) } else { Ok(()) }
        });
        self.file(inode).operations = operations;
        if self.file(inode).lost {
            return Ok(());
        }
        result?;
        if told.is_empty() {
            return Ok(());
        }
        self.saw(inode, since, || Deed::Seen { offset, bytes: told.into() });
        if (told.len() as u64) < wanted {
            self.saw(inode, since, || Deed::Cut { size: offset + told.len() as u64 });
        }
        Ok(())
    }

    /// What became of doubtful operations was seen by a look that began at `since`. It stays so, if nothing was in
    /// flight.
    fn saw(&mut self, inode: InodeNumber, since: Moment, deed: impl FnOnce() -> Deed) {
        let ended = self.moment();
        let File { operations, disturbed, .. } = self.file(inode);
        // What is gathered may still be lost, and told.
        let rests = operations.iter().all(|operation| {
            let may_appear = operation.is_held && operation.may_appear;
            let is_settled = operation.safe || (operation.doubtful && !may_appear);
            operation.ended.is_some_and(|ended| ended < since) && is_settled
        });
        if rests && *disturbed < since && operations.iter().any(|operation| operation.doubtful) {
            let held = operations.iter().filter(|operation| operation.is_held);
            let held_by = held.filter_map(|operation| operation.by).collect();
            let seen = Operation::new(deed(), None, since);
            operations.push(Operation { ended: Some(ended), safe: true, held_by, ..seen });
            self.seen += 1;
        }
    }

    fn compare_bytes(
        &mut self,
        inode: InodeNumber,
        operations: &[Operation],
        (offset, told): (u64, &[u8]),
        view: View,
    ) -> Result<(), String> {
        self.compared += 1;
        for (place, byte) in (offset..).zip(told) {
            let possible = could_be(operations, view, |operation| operation.value_at(place));
            if !possible.contains(byte) && !members::may_see_tried(operations, view, (place, *byte)) {
                return Err(format!(
                    "byte {place} of inode {inode} was read as {byte}, it can only be {possible:?}; {}",
                    describe(operations)
                ));
            }
        }
        match told.len() {
            0 => Ok(()),
            count => compare_presence(inode, operations, offset + count as u64 - 1, view, true),
        }
    }

    /// A client could not find out what became of a file's bytes before it showed the file.
    pub fn not_settled(&mut self, inode: InodeNumber) {
        let now = self.moment();
        self.file(inode).disturbed = now;
    }

    /// Whether everything that was done to the file has ended.
    pub fn rests(&mut self, inode: InodeNumber) -> bool {
        self.file(inode).operations.iter().all(|operation| operation.ended.is_some())
    }

    /// What was done to a file, for people.
    pub fn describe(&mut self, inode: InodeNumber) -> String {
        describe(&self.file(inode).operations)
    }

    /// A size was told by a call that began at `since`.
    pub fn compare_size(&mut self, inode: InodeNumber, size: u64, view: impl Into<View>) -> Result<(), String> {
        let view = view.into();
        let operations = std::mem::take(&mut self.file(inode).operations);
        let result = self.compare_end(inode, &operations, size, view);
        self.file(inode).operations = operations;
        result?;
        self.saw(inode, view.since, || Deed::Cut { size });
        Ok(())
    }

    fn compare_end(
        &mut self,
        inode: InodeNumber,
        operations: &[Operation],
        size: u64,
        view: View,
    ) -> Result<(), String> {
        self.compared += 1;
        let last = size.checked_sub(1);
        let result = last.map_or(Ok(()), |last| compare_presence(inode, operations, last, view, true));
        let result = result.and_then(|()| compare_presence(inode, operations, size, view, false));
        if self.file(inode).lost { Ok(()) } else { result }
    }
}

fn compare_presence(
    inode: InodeNumber,
    operations: &[Operation],
    place: u64,
    view: View,
    told: bool,
) -> Result<(), String> {
    if could_be(operations, view, |operation| operation.presence_at(place)).contains(&told) {
        return Ok(());
    }
    let (has, must) = if told { ("has", "not") } else { ("has no", "") };
    let list = describe(operations);
    Err(format!("inode {inode} was told to be one that {has} byte {place}, which it must {must} have; {list}"))
}

/// The operations on a file, one a line.
fn describe(operations: &[Operation]) -> String {
    let line = |operation: &Operation| {
        let Operation { deed, by, open_by, begun, ended, safe, doubtful, running, .. } = operation;
        let ended = ended.map_or("...".to_owned(), |ended| ended.to_string());
        let by = by.map_or(String::new(), |by| format!(" by process {by}"));
        let by = open_by.map_or(by, |open_by| format!(" by an open of process {open_by}"));
        let notes = [(*safe, ", safe"), (*doubtful, ", doubtful"), (*running, ", under way")];
        let notes: String = notes.iter().filter(|(holds, _)| *holds).map(|(_, note)| *note).collect();
        match deed {
            Deed::Write { offset, bytes, value } => {
                let at = offset.map_or("the end".to_owned(), |offset| offset.to_string());
                format!("  {begun}..{ended}: {bytes} bytes {value} at {at}{by}{notes}")
            }
            Deed::Cut { size } => format!("  {begun}..{ended}: size {size}{by}{notes}"),
            Deed::Seen { offset, bytes } => format!("  {begun}..{ended}: read {bytes:?} at {offset}"),
        }
    };
    format!("what was done to it:\n{}", operations.iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests;
