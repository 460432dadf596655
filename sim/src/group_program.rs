//! Programs that use files by groups: they export files that they have open, and join what others have exported.
//!
//! What one of them reads and writes is held against the same model as what other programs do. What an exporter tells
//! the others is in their hands at once, by whatever way, and for as long as they like: some of it is of groups that
//! have ended.

use crate::bytes::OperationId;
use crate::handed_out::Board;
use crate::opened::Opened;
use crate::process::{Ask, Process};
use crate::program::{Program, ProgramId, choose_opening, opened_by_itself, options_of};
use crate::random::Random;
use crate::script::programs::Opening;
use crate::shell::SimShell;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::{Entry, Files, GroupWish, JoinOptions, Member, OpenOptions, OpenedFile, Shell};
use weft_protocol::capability::KEY_BYTES;
use weft_protocol::message::shard::{CreateFile, GroupLayouts};
use weft_protocol::{Credentials, GroupOpen, InodeNumber, Layout, Name, Plan, Publication, Result, SessionId, UserKey};

/// All clients have one key.
fn key() -> UserKey {
    UserKey::new([7; KEY_BYTES])
}

/// Exports that programs know.
const OFFERS_MAX: usize = 4;
/// Most that a program does with one handle, after it has exported it or with what it has joined.
const STEPS: u64 = 14;
/// Longest wait between two programs, and between two steps; one step in so many comes after a long wait, which may be
/// beyond a term. Milliseconds.
const IDLE_MS: u64 = 900;
const THINK_MS: u64 = 300;
const LONG: u64 = 16;
const LONG_MS: u64 = 14_000;
/// How often a member looks at most whether what it has handed out was published.
const PATIENCE: u64 = 30;
/// For which layouts a program may have a file opened for a group by the call that opens its name.
const WISHES: [GroupLayouts; 3] = [GroupLayouts::All, GroupLayouts::Split, GroupLayouts::Unsplit];
/// How often a program that waits looks whether the run ends, milliseconds.
const LOOK_MS: u64 = 500;

/// What the programs of a run know of each other, and counts of what happened.
#[derive(Default)]
pub struct Offers {
    exported: RefCell<Vec<Vec<u8>>>,
    /// Programs that go on.
    running: Cell<u64>,
    /// What members have handed out, if they do.
    pub board: Option<Board>,
    /// Groups that were opened, handles that joined one, and those of which the right was void.
    pub opened: Cell<u64>,
    /// Groups that were opened by the call that opened the name.
    pub by_name: Cell<u64>,
    pub joined: Cell<u64>,
    pub void: Cell<u64>,
}

/// A program that goes on, until it ends or its client dies.
struct Running(Rc<Offers>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

fn count(of: &Cell<u64>) {
    of.set(of.get() + 1);
}

impl Offers {
    /// Of programs that publish for each other.
    pub fn with_board() -> Self {
        Self { board: Some(Board::default()), ..Self::default() }
    }

    /// Whether a program goes on.
    pub fn is_running(&self) -> bool {
        self.running.get() > 0
    }

    fn begin(self: &Rc<Self>) -> Running {
        count(&self.running);
        Running(Rc::clone(self))
    }

    fn add(&self, open: &GroupOpen) {
        let mut exported = self.exported.borrow_mut();
        exported.push(open.to_bytes(&key()));
        if exported.len() > OFFERS_MAX {
            exported.remove(0);
        }
    }

    fn get(&self, place: u64) -> Option<GroupOpen> {
        let exported = self.exported.borrow();
        let bytes = exported.get(usize::try_from(place).ok()?)?;
        Some(GroupOpen::from_bytes(bytes, &key()).expect("the bytes of an export"))
    }
}

/// One program.
pub struct GroupProgram {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    pub offers: Rc<Offers>,
    /// Files that are exported.
    pub names: Vec<Name>,
    /// Of those of its client.
    pub number: u64,
}

impl GroupProgram {
    /// Uses files until the run ends.
    pub async fn run(self) {
        let _running = self.offers.begin();
        loop {
            let id = ProgramId::new(&self.process);
            let number = self.number;
            let idle_ms = id.decide(&self.process, &format!("group program {number} waits"), IDLE_MS, |random| {
                1 + random.below(IDLE_MS)
            });
            self.wait(idle_ms.max(1)).await;
            if self.process.ending.get() {
                return;
            }
            let known = self.offers.exported.borrow().len() as u64;
            // 0: nothing; 1: exports; from 2 on: joins one of those that are known.
            let what = id.decide(&self.process, &format!("group program {number}"), 0, |random| {
                if random.one_in(3) { 1 } else { 2 + random.below(known + 1) }
            });
            match what {
                0 => {}
                1 => self.export(id).await,
                _ => self.join(what - 2, id).await,
            }
        }
    }

    /// Waits, unless the run ends.
    async fn wait(&self, mut ms: u64) {
        while ms > 0 && !self.process.ending.get() {
            let now_ms = ms.min(LOOK_MS);
            self.machine.calls().shell.sleep_us(now_ms * 1000).await;
            ms -= now_ms;
        }
    }

    async fn export(&self, id: ProgramId) {
        let Self { process, machine, .. } = self;
        let place = id.decide(process, "name", 0, |random| random.below(self.names.len() as u64));
        let Some(name) = usize::try_from(place).ok().and_then(|place| self.names.get(place)) else { return };
        let known = process.directories.borrow().clone();
        let directory =
            id.decide(
                process,
                "directory",
                0,
                |random| {
                    if random.one_in(2) { 0 } else { random.below(known.len() as u64) }
                },
            );
        let parent = usize::try_from(directory).ok().and_then(|directory| known.get(directory)).copied();
        let parent = parent.unwrap_or(InodeNumber::ROOT);
        let opening = id.decide(process, "open", Opening::USUAL, choose_opening);
        let options = options_of(&opening, process);
        let create = opening.create.then_some(CreateFile { mode: 0o644, exclusive: opening.exclusive, plan: None });
        // From 1 on: by the call that opens the name.
        let wished = id.decide(process, "opens for a group", 0, |random| random.below(2 * WISHES.len() as u64));
        let wish = usize::try_from(wished).ok().and_then(|wished| WISHES.get(wished.checked_sub(1)?)).copied();
        let since = process.files.borrow_mut().moment();
        let opened = self.open((parent, name), options, create, wish).await;
        let opened = match opened {
            Ok(OpenedFile::OfGroup(member)) => {
                count(&self.offers.by_name);
                count(&self.offers.opened);
                member.exported().into_iter().for_each(|open| self.offers.add(open));
                return self.use_as_member(*member, id).await;
            }
            Ok(OpenedFile::Own(handle, _)) => Ok(handle),
            Err(error) => Err(error),
        };
        let handle = match opened_by_itself(machine, process, options, (opened, since)).await {
            Ok(handle) => handle,
            Err(error) => {
                return process.note(|| format!("open {name} in {parent} to export it {options:?}: {error:?}"));
            }
        };
        process.note(|| format!("open {name} in {parent} to export it {options:?}: inode {}", handle.open.inode));
        let mut program = Program::new(Arc::clone(machine), Rc::clone(process), Opened::Own(handle), id);
        self.use_for(&mut program, 3).await;
        let exported = machine.open_group(program.handle.own()).await;
        // It writes back first, as a flush does.
        program.told_of(&exported);
        let told = exported.as_ref().map(|open| (open.group, open.rights.len()));
        process.note(|| format!("exports inode {}: {told:?}", program.inode()));
        if let Ok(open) = &exported {
            count(&self.offers.opened);
            self.offers.add(open);
        }
        self.use_for(&mut program, STEPS).await;
        program.close().await;
        if let Ok(open) = exported {
            process.note(|| format!("leaves group {}, which it has made", open.group));
            machine.leave_group(open.group);
        }
    }

    async fn open(
        &self,
        (parent, name): (InodeNumber, &Name),
        options: OpenOptions<OperationId>,
        create: Option<CreateFile>,
        wish: Option<GroupLayouts>,
    ) -> Result<OpenedFile<SimShell, Entry>> {
        let (machine, who) = (&self.machine, Credentials::default());
        match wish {
            Some(layouts) => {
                let wish = GroupWish { layouts, synced: false };
                machine.open_for_group(&who, (parent, name), options, create, wish).await
            }
            None => {
                let opened = machine.open_at(&who, parent, name, options, create).await;
                opened.map(|(handle, entry)| OpenedFile::Own(handle, entry))
            }
        }
    }

    async fn join(&self, place: u64, id: ProgramId) {
        let Self { process, machine, .. } = self;
        let Some(open) = self.offers.get(place) else { return };
        let (group, inode) = (open.group, open.inode);
        let options =
            JoinOptions { spill: process.spills.get(), spread: process.spills.get(), ..JoinOptions::default() };
        match Member::join(machine, &Credentials::default(), open, options).await {
            Ok(member) => self.use_as_member(member, id).await,
            Err(error) => process.note(|| format!("joins group {group} of inode {inode}: {error:?}")),
        }
    }

    async fn use_as_member(&self, member: Member<SimShell>, id: ProgramId) {
        let Self { process, machine, .. } = self;
        let inode = member.inode;
        let group = member.exported().map(|open| open.group);
        // A client has one part of a file, whose loss is told to the member that has written it.
        let is_split = member.plan == Plan::Split;
        if is_split && !process.member_of.borrow_mut().insert(inode) {
            return member.close(machine).await;
        }
        process.note(|| format!("joins group {group:?} of inode {inode}: {:?}", member.options));
        count(&self.offers.joined);
        if member.exported().is_some() && id.decide(process, "tells others", false, |random| random.one_in(4)) {
            self.offers.add(member.exported().expect("it is there"));
        }
        let mut program = Program::new(Arc::clone(machine), Rc::clone(process), Opened::OfGroup(Box::new(member)), id);
        if is_split {
            let now = process.files.borrow_mut().moment();
            program.member = Some((self.offers.joined.get(), now));
        }
        self.use_for(&mut program, STEPS).await;
        process.note(|| format!("leaves group {group:?}"));
        program.close().await;
        process.member_of.borrow_mut().remove(&inode);
    }

    /// Does something with a file, up to so many times.
    async fn use_for(&self, program: &mut Program, most: u64) {
        let process = &self.process;
        let steps = program.id.decide(process, "steps", 0, |random| random.below(most + 1));
        for _ in 0..steps {
            let think_ms = program.id.decide(process, "pause", THINK_MS / 2, |random: &mut Random| {
                if random.one_in(LONG) { random.below(LONG_MS) } else { random.below(THINK_MS) }
            });
            self.wait(think_ms).await;
            if process.ending.get() {
                return;
            }
            let open = program.handle.member().and_then(Member::exported).cloned();
            if let (Some(board), Some(open)) = (&self.offers.board, &open) {
                let is_asked = board.has(open.group);
                // 0: nothing; 1: hands out; 2: publishes for others.
                let what = program.id.decide(process, "together", 0, |random| match is_asked {
                    true => 2 * u64::from(random.one_in(2)),
                    false => u64::from(random.one_in(3)),
                });
                match what {
                    1 => self.hand_out(program, board).await,
                    2 => self.publish_for(program, board, open.group).await,
                    _ => {}
                }
            }
            let what = program.id.decide(process, "member", 0, |random| random.below(8));
            match what {
                1 if open.is_some() => program.size().await,
                2 if open.is_some() => program.sync().await,
                _ => program.step().await,
            }
            // An append to a striped file has the process open it itself.
            let open = open.filter(|open| !(open.append && matches!(open.layout, Layout::Striped(_))));
            if let (Some(open), Some(None)) = (open, program.handle.member().map(Member::exported)) {
                count(&self.offers.void);
                process.note(|| format!("the rights of group {} are void", open.group));
                process.ask(Ask::RightsVoid(Box::new(open)));
            }
        }
    }

    /// Has another member publish. Waits for a while whether one takes what there is, and then what becomes of it.
    async fn hand_out(&self, program: &mut Program, board: &Board) {
        let process = &self.process;
        let Some(publication) = program.hand_out().await else { return };
        process.note(|| format!("hands out {publication:?}"));
        let standing = board.add(publication);
        let patience = program.id.decide(process, "patience", 0, |random| random.below(PATIENCE));
        let mut looks = 0;
        while standing.is_decided_by_others() || (looks < patience && !process.ending.get() && standing.stands()) {
            looks += 1;
            self.machine.calls().shell.sleep_us(THINK_MS * 1000).await;
        }
        let made = standing.made();
        drop(standing);
        process.note(|| format!("handed out, and made: {made:?}"));
        if let (Some(true), Some(member)) = (made, program.handle.member()) {
            member.published_by_other().await;
        }
        program.sync().await;
    }

    /// Publishes what members have handed out, and what this one has written itself.
    async fn publish_for(&self, program: &mut Program, board: &Board, group: SessionId) {
        let own = program.hand_out().await;
        let Some(member) = program.handle.member() else { return };
        let taken = board.take(group);
        let others = taken.iter().map(|handed_out| handed_out.publication.clone());
        let is_own = |other: &Publication| own.as_ref().is_some_and(|own| own.part.object == other.part.object);
        let publications: Vec<_> = others.filter(|other| !is_own(other)).chain(own.clone()).collect();
        let results = member.publish_for(&self.machine, publications.clone()).await;
        self.process.note(|| format!("publishes {publications:?} for group {group}: {results:?}"));
        for (publication, result) in publications.iter().zip(results) {
            if is_own(publication) && result.is_ok() {
                member.published_by_other().await;
            }
            let handed_out = taken.iter().find(|handed_out| handed_out.publication == *publication);
            if let Some(handed_out) = handed_out {
                board.tried(handed_out, result.is_ok());
            }
        }
    }
}
