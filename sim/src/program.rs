//! What the tasks of a simulated client do: programs that use files and names, and the answers to recalls.
//!
//! All of it goes through the production client machine. Each operation on a file is told to the plain model
//! ([`crate::bytes`]) before it begins and when it has ended, and each read is compared with it.

use crate::bytes::{MemberId, Moment, OperationId, View};
use crate::lanes::LANES;
use crate::opened::Opened;
use crate::process::{Ask, Drops, Process};
use crate::random::Random;
use crate::script::programs::{Kind, Opening, Step};
use crate::script::{WINDOW_MS, Word};
use crate::shell::SimShell;
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Files, Handle, OpenOptions, Shell};
use weft_protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_protocol::{AttributeChanges, Cookie, Credentials, Error, FileKind, InodeNumber, Name, Publication, Result};

/// Behind this no program writes.
pub(crate) const FILE_BYTES: u64 = 240;
/// Longest read or write.
const REQUEST_BYTES: u64 = 90;
/// Longest request of a program that writes here and there.
const SCATTERED_BYTES: u64 = 6;
/// Most that one program does with a file.
pub(crate) const STEPS: u64 = 12;
/// Longest wait between two of these, milliseconds.
const THINK_MS: u64 = 120;
/// How long it waits where a script says nothing.
const USUAL_THINK_MS: u64 = 60;

/// What a process does with names.
#[derive(Clone, Debug)]
pub enum NamesOperation {
    Lookup { parent: InodeNumber, name: Name },
    Attributes { inode: InodeNumber },
    MakeDirectory { parent: InodeNumber, name: Name },
    Unlink { parent: InodeNumber, name: Name },
    UnlinkBatch { parent: InodeNumber, names: Vec<Name> },
    RemoveDirectory { parent: InodeNumber, name: Name },
    Rename { from: (InodeNumber, Name), to: (InodeNumber, Name), mode: RenameMode },
    Link { from: (InodeNumber, Name), to: (InodeNumber, Name) },
    List { inode: InodeNumber, with_attributes: bool },
    Release,
}

impl NamesOperation {
    /// The inode that a shard is asked about.
    pub fn target(&self) -> InodeNumber {
        match self {
            Self::Lookup { parent, .. }
            | Self::MakeDirectory { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::UnlinkBatch { parent, .. }
            | Self::RemoveDirectory { parent, .. }
            | Self::Rename { from: (parent, _), .. }
            | Self::Link { to: (parent, _), .. } => *parent,
            Self::Attributes { inode } | Self::List { inode, .. } => *inode,
            Self::Release => InodeNumber::ROOT,
        }
    }
}

/// One operation on names.
pub async fn use_names(machine: Arc<Files<SimShell>>, process: Rc<Process>, operation: NamesOperation) {
    let who = Credentials::default();
    let target = operation.target();
    let result = match &operation {
        NamesOperation::Lookup { parent, name } => match machine.lookup(&who, *parent, name).await {
            Ok(entry) => {
                if entry.attributes.kind == FileKind::Directory {
                    process.learn_directory(entry.attributes.inode);
                }
                Ok(())
            }
            Err(error) => Err(error),
        },
        NamesOperation::Attributes { inode } => machine.attributes(&who, *inode).await.map(|_| ()),
        NamesOperation::MakeDirectory { parent, name } => {
            let made = machine.make_directory(&who, *parent, name, 0o755).await;
            made.map(|entry| process.learn_directory(entry.attributes.inode))
        }
        NamesOperation::Unlink { parent, name } => machine.unlink(&who, *parent, name).await.map(|_| ()),
        NamesOperation::UnlinkBatch { parent, names } => machine.unlink_batch(&who, *parent, names).await.map(|_| ()),
        NamesOperation::RemoveDirectory { parent, name } => machine.remove_directory(&who, *parent, name).await,
        NamesOperation::Rename { from: (parent, name), to: (new_parent, new_name), mode } => {
            machine.rename(&who, (*parent, name), (*new_parent, new_name), *mode).await.map(|_| ())
        }
        NamesOperation::Link { from: (parent, name), to: (new_parent, new_name) } => {
            match machine.lookup(&who, *parent, name).await {
                Ok(found) => machine.link(&who, found.attributes.inode, *new_parent, new_name).await.map(|_| ()),
                Err(error) => Err(error),
            }
        }
        NamesOperation::List { inode, with_attributes } => {
            machine.read_directory(&who, *inode, Cookie::START, 100, *with_attributes).await.map(|_| ())
        }
        NamesOperation::Release => {
            machine.release_surplus().await;
            Ok(())
        }
    };
    if let Err(Error::Stale | Error::Unreachable) = result {
        process.forget_directory(target);
    }
    process.note(|| format!("{operation:?}: {result:?}"));
}

/// Answers recalls, one after another.
pub async fn answer_recalls(machine: Arc<Files<SimShell>>, process: Rc<Process>) {
    loop {
        let (session, recall) = process.next_recall().await;
        let kept = machine.answer_recall(&recall, session).await;
        match kept {
            Some(kept) => process.note(|| format!("gave up {:?} on recall, kept {kept:?}", recall.key)),
            None => process.note(|| format!("does not answer the recall of {:?} yet", recall.key)),
        }
        process.recall_done(session, &recall, kept);
    }
}

/// Drops pages that other clients are about to change, one range after another.
pub async fn answer_drops(machine: Arc<Files<SimShell>>, process: Rc<Process>) {
    loop {
        let (session, drop) = match process.next_drop().await {
            Drops::Asked(session, drop) => (session, drop),
            Drops::Unheard => {
                for (_, inodes) in machine.take_unheard() {
                    process.note(|| format!("drops all pages of {inodes:?}"));
                    machine.drop_unheard(&inodes).await;
                }
                continue;
            }
        };
        let dropped = machine.drop_pages(&drop).await;
        process.note(|| format!("dropped {drop:?}"));
        process.ask(Ask::PagesDropped { session, dropped });
    }
}

/// Names a program in the script of a run: by its client, and when it began.
pub(crate) struct ProgramId {
    client: usize,
    since_ms: u64,
}

impl ProgramId {
    pub fn new(process: &Process) -> Self {
        Self { client: process.index, since_ms: process.true_ms.get() }
    }

    /// A decision of the program.
    pub fn decide<T: Word>(&self, process: &Process, what: &str, usual: T, choose: impl FnOnce(&mut Random) -> T) -> T {
        let Self { client, since_ms } = self;
        let what = format_args!("client{client} since {since_ms}, {what}");
        process.choices.borrow_mut().decide_in(Some(since_ms / WINDOW_MS), what, usual, choose)
    }
}

/// An open file of one program.
pub(crate) struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    pub handle: Opened,
    /// Where it goes on, as long as it reads and writes in order.
    pub(crate) position: u64,
    pub id: ProgramId,
    /// As a member of a group: which one it is, and when it last synchronized, or joined.
    pub member: Option<(MemberId, Moment)>,
}

/// Opens a name (and makes it), uses the file for a while, closes it.
pub async fn use_file(machine: Arc<Files<SimShell>>, process: Rc<Process>, parent: InodeNumber, name: Name) {
    let id = ProgramId::new(&process);
    let opening = id.decide(&process, "open", Opening::USUAL, choose_opening);
    let options = options_of(&opening, &process);
    let create = opening.create.then_some(CreateFile { mode: 0o644, exclusive: opening.exclusive, plan: None });
    let opened = open(&machine, &process, parent, &name, options, create).await;
    let handle = match opened {
        Ok(handle) => handle,
        Err(error) => return process.note(|| format!("open {name} in {parent} {options:?}: {error:?}")),
    };
    process.note(|| format!("open {name} in {parent} {options:?}: inode {}", handle.open.inode));
    let mut program = Program::new(machine, Rc::clone(&process), Opened::Own(handle), id);
    let steps = program.id.decide(&process, "steps", 0, |random| 1 + random.below(STEPS));
    for _ in 0..steps {
        if process.ending.get() {
            break;
        }
        let think_ms = program.id.decide(&process, "pause", USUAL_THINK_MS, |random| random.below(THINK_MS));
        program.machine.calls().shell.sleep_us(think_ms * 1000).await;
        program.step().await;
    }
    program.close().await;
}

pub(crate) fn choose_opening(random: &mut Random) -> Opening {
    let access = match random.below(4) {
        0 => Access::Read,
        1 => Access::Write,
        _ => Access::ReadWrite,
    };
    let writes = access.writes();
    let (append, direct) = (writes && random.one_in(5), random.one_in(6));
    let truncate = writes && random.one_in(8);
    let create = !random.one_in(4);
    Opening { access, append, direct, truncate, create, exclusive: create && random.one_in(4) }
}

pub(crate) fn options_of(opening: &Opening, process: &Process) -> OpenOptions<OperationId> {
    let (Opening { access, truncate, append, direct, .. }, spill) = (*opening, process.spills.get());
    OpenOptions { truncate, append, direct, spill, spread: spill, ..OpenOptions::of(access) }
}

/// What a program does next. `scatters`: it often writes a few bytes anywhere, so that a file has many extents.
fn choose_step(random: &mut Random, scatters: bool) -> Option<Step> {
    if scatters && !random.one_in(3) {
        let kind = if random.one_in(4) { Kind::Read } else { Kind::Write };
        return Some(Step { kind, seek: Some(random.below(FILE_BYTES)), bytes: 1 + random.below(SCATTERED_BYTES) });
    }
    let kind = match random.below(16) {
        0 => Kind::Flush,
        1 => Kind::Cut,
        2 | 3 => Kind::Stat,
        4..=9 => Kind::Write,
        _ => Kind::Read,
    };
    let seek = random.one_in(3).then(|| random.below(FILE_BYTES));
    let longest = if random.one_in(4) { REQUEST_BYTES } else { 24 };
    Some(Step { kind, seek, bytes: 1 + random.below(longest) })
}

pub(crate) async fn open(
    machine: &Files<SimShell>,
    process: &Process,
    parent: InodeNumber,
    name: &Name,
    options: OpenOptions<OperationId>,
    create: Option<CreateFile>,
) -> Result<Handle<SimShell>> {
    let since = process.files.borrow_mut().moment();
    let opened = machine.open_at(&Credentials::default(), parent, name, options, create).await;
    opened_by_itself(machine, process, options, (opened.map(|(handle, _)| handle), since)).await
}

/// An open that began at `since` has ended, and was for no group.
pub(crate) async fn opened_by_itself(
    machine: &Files<SimShell>,
    process: &Process,
    options: OpenOptions<OperationId>,
    (opened, since): (Result<Handle<SimShell>>, Moment),
) -> Result<Handle<SimShell>> {
    if options.truncate {
        process.ask(Ask::Settle);
    }
    let handle = opened?;
    let inode = handle.open.inode;
    if options.truncate {
        process.files.borrow_mut().open_cut_ended(process.id.get(), inode, since);
    } else if let Some(size) = handle.open.known_size(&machine.objects).await {
        process.check(process.files.borrow_mut().compare_size(inode, size, since));
    }
    Ok(handle)
}

impl Program {
    /// A program that has just opened a file.
    pub fn new(machine: Arc<Files<SimShell>>, process: Rc<Process>, handle: Opened, id: ProgramId) -> Self {
        Self { machine, process, handle, position: 0, id, member: None }
    }

    /// One thing that a program does with a file.
    pub async fn step(&mut self) {
        let process = Rc::clone(&self.process);
        if process.takes_turns.get() {
            let lane = self.id.decide(
                &process,
                "lane",
                0,
                |random| {
                    if random.one_in(3) { 1 + random.below(LANES) } else { 0 }
                },
            );
            if (1..=LANES).contains(&lane) {
                return self.use_lane(lane - 1).await;
            }
        }
        let scatters = process.scatters.get();
        let step = self.id.decide(&process, "step", None, |random| choose_step(random, scatters));
        let Some(Step { kind, seek, bytes }) = step else { return };
        let access = self.handle.options().access;
        let (reads, writes) = (access.reads(), access.writes());
        self.position = seek.unwrap_or(self.position);
        match kind {
            Kind::Flush => self.flush().await,
            Kind::Cut if writes && self.handle.has_object(&self.machine).await => {
                let size = self.id.decide(&process, "cut", 0, |random| random.below(FILE_BYTES));
                self.truncate(size).await;
            }
            Kind::Stat => self.stat().await,
            Kind::Write if writes => self.write(bytes).await,
            _ if reads => self.read(bytes).await,
            _ => self.write(bytes).await,
        }
    }

    pub fn inode(&self) -> InodeNumber {
        self.handle.inode()
    }

    /// A program was told of an error.
    pub fn told_of<T>(&self, result: &Result<T>) {
        if result.is_err() {
            self.process.files.borrow_mut().told(self.process.id.get(), self.inode());
        }
    }

    /// What a read or a look at the size that begins now may tell.
    fn view(&self) -> View {
        let now = self.process.files.borrow_mut().moment();
        match self.member {
            Some((member, synced)) => View { since: synced, member: Some(member) },
            None => now.into(),
        }
    }

    /// A synchronization that began at `since` has ended; also tells what was written before.
    fn synced(&mut self, since: Moment, result: &Result<()>) {
        let inode = self.inode();
        let Some((member, synced)) = &mut self.member else { return };
        let mut files = self.process.files.borrow_mut();
        if result.is_ok() {
            *synced = since;
            self.process.check(files.member_synced(*member, inode, since));
        } else {
            files.member_told(*member);
        }
    }

    /// The outcome of an operation that changes the file. `Ok(true)`: it is not lost with the client.
    fn done(&self, operation: OperationId, append: bool, result: &Result<bool>) {
        let process = &self.process;
        let mut files = process.files.borrow_mut();
        if let (Some((member, _)), Err(_)) = (self.member, result) {
            files.member_told(member);
        }
        match result {
            Ok(false) if self.member.is_some() => files.acked_to_member(operation),
            Ok(safe) if append => process.check(files.append_ended(operation, *safe)),
            Ok(safe) => files.ended(operation, *safe),
            Err(error) => {
                files.failed(operation, *error == Error::NoSpace);
                process.ask(Ask::Settle);
            }
        }
        drop(files);
        self.told_of(result);
    }

    pub async fn flush_all(&mut self) -> Result<()> {
        let (process, inode) = (Rc::clone(&self.process), self.inode());
        let since = process.files.borrow_mut().moment();
        let result = self.handle.flush(&self.machine).await;
        self.synced(since, &result);
        if result.is_ok() && self.handle.tells_losses() {
            process.check(process.files.borrow_mut().flush_went_well(process.id.get(), inode, since));
        }
        self.told_of(&result);
        result
    }

    /// Flushes and closes.
    pub async fn close(&mut self) {
        let result = self.flush_all().await;
        self.process.note(|| format!("close inode {}: {result:?}", self.inode()));
        self.handle.close(&self.machine).await;
        if let Some((member, _)) = self.member {
            self.process.files.borrow_mut().member_left(member, self.inode());
            self.process.ask(Ask::Settle);
        }
    }

    async fn flush(&mut self) {
        let result = self.flush_all().await;
        self.process.note(|| format!("flush inode {}: {result:?}", self.inode()));
    }

    pub async fn write(&mut self, bytes: u64) {
        let (process, inode) = (Rc::clone(&self.process), self.inode());
        let append = self.handle.options().append;
        let offset = self.position;
        let (value, operation) = {
            let mut files = process.files.borrow_mut();
            let value = files.next_value(inode);
            let operation = files.write(process.id.get(), inode, (!append).then_some(offset), bytes, value);
            if let Some((member, _)) = self.member.filter(|_| self.handle.holds_back()) {
                files.begun_by_member(operation, member);
            }
            (value, operation)
        };
        let what = format!("{bytes} bytes {value} at {offset} of inode {inode} {:?}", self.handle.options());
        process.note(|| format!("write {what}"));
        let data = vec![value; usize::try_from(bytes).expect("writes here are short")];
        let tagged = append.then_some(operation);
        let result = self.handle.write_at(&self.machine, &data, offset, tagged).await;
        process.note(|| format!("wrote {what}: {result:?}"));
        if let (true, Ok(placed)) = (append, &result) {
            process.files.borrow_mut().append_placed(operation, placed.offset);
        }
        self.done(operation, append, &result.map(|placed| placed.is_safe));
        self.position = (offset + bytes) % FILE_BYTES;
    }

    pub async fn read(&mut self, bytes: u64) {
        let (process, inode) = (Rc::clone(&self.process), self.inode());
        let offset = self.position;
        let view = self.view();
        let result = self.read_here(bytes).await;
        let told = result.as_deref().unwrap_or_default();
        let count = result.as_ref().map(Vec::len);
        process.note(|| format!("read {bytes} at {offset} of inode {inode}: {count:?}, since {}", view.since));
        if result.is_ok() {
            process.check(process.files.borrow_mut().compare_read(inode, (offset, bytes), told, view));
        }
        self.told_of(&result);
        self.position = (offset + bytes) % FILE_BYTES;
    }

    async fn read_here(&self, bytes: u64) -> Result<Vec<u8>> {
        let mut buffer = vec![0; usize::try_from(bytes).expect("reads here are short")];
        let count = self.handle.read_at(&self.machine, &mut buffer, self.position).await?;
        buffer.truncate(count);
        Ok(buffer)
    }

    async fn stat(&self) {
        let (process, inode) = (&self.process, self.inode());
        let since = process.files.borrow_mut().moment();
        let result = self.machine.attributes(&Credentials::default(), inode).await;
        let size = result.map(|entry| entry.attributes.size);
        process.note(|| format!("size of inode {inode}: {size:?}, since {since}"));
        if let Ok(size) = size {
            process.check(process.files.borrow_mut().compare_size(inode, size, since));
        }
    }

    /// The size, as the handle of a group's member tells it.
    pub async fn size(&self) {
        let Some(member) = self.handle.member() else { return };
        let (process, inode) = (&self.process, self.inode());
        let view = self.view();
        let size = member.size(&self.machine).await;
        process.note(|| format!("size of inode {inode} by a handle: {size:?}, since {}", view.since));
        if let Ok(size) = size {
            process.check(process.files.borrow_mut().compare_size(inode, size, view));
        }
    }

    /// Has what a group's member has written brought to the devices.
    pub async fn sync(&mut self) {
        let (process, inode) = (Rc::clone(&self.process), self.inode());
        let since = process.files.borrow_mut().moment();
        let Some(member) = self.handle.member() else { return };
        let result = member.sync(&self.machine).await;
        self.synced(since, &result);
        process.note(|| format!("sync inode {inode}: {result:?}"));
        if result.is_ok() && self.handle.tells_losses() {
            process.check(process.files.borrow_mut().flush_went_well(process.id.get(), inode, since));
        }
        self.told_of(&result);
    }

    /// What another member is to publish of what a group's member has written, if there is anything.
    pub async fn hand_out(&mut self) -> Option<Publication> {
        let process = Rc::clone(&self.process);
        let since = process.files.borrow_mut().moment();
        match self.handle.member()?.hand_out(&self.machine).await {
            Ok(publication) => publication,
            Err(error) => {
                process.note(|| format!("hand out inode {}: {error:?}", self.inode()));
                let result = Err(error);
                self.synced(since, &result);
                self.told_of(&result);
                None
            }
        }
    }

    async fn truncate(&self, size: u64) {
        let (process, inode) = (&self.process, self.inode());
        let operation = process.files.borrow_mut().cut(process.id.get(), inode, size);
        process.note(|| format!("truncate inode {inode} to {size}"));
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        let result = self.machine.set_attributes(&Credentials::default(), inode, &changes).await.map(|_| true);
        process.note(|| format!("truncated inode {inode} to {size}: {result:?}"));
        self.done(operation, false, &result);
    }
}
