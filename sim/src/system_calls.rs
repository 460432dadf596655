//! What programs do next: rounds of system calls, chosen by what a file system without caches would hold now.
//!
//! The calls of a round overlap in time. What POSIX leaves open for those is not mixed in one round: a directory is
//! removed or renamed alone, a file's bytes are used by one call only, or by several each of which leaves alone what
//! the others write. All else may meet: a file is linked while others remove the name by which it is found. In some
//! runs files are opened while others are renamed over them.
//!
//! Not here: when rounds begin, and faults (`world/mounts.rs`); what must hold (`history.rs`).

mod cuts;
mod growth;
mod played;

use crate::history::{Kind, State};
use crate::kernel::requests::{Access, OpenFlags, RenameMode};
use crate::kernel::{Call, Handle};
use crate::random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Clients, the last of which has no mount.
pub const CLIENTS: usize = 4;
/// The native client.
pub const NATIVE: usize = CLIENTS - 1;
/// What the programs of one run do most.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Names of files and of directories, in each directory.
    files: u64,
    directories: u64,
    /// How often a file or directory is used that is open, a file is opened, a directory, a file mapped, a name looked
    /// at, a file cut, a name changed, a file replaced by several in turn.
    weights: [u64; 8],
    /// Instead, one client gives a file another name and takes the first one away, while its links are counted.
    links: bool,
    /// Instead, a name is replaced by two clients while others open it, again and again.
    races: bool,
    /// Instead, a file is made longer by a client while another one uses what is new.
    grows: bool,
    /// Instead, a file is cut by a client while another one reads behind the cut.
    cuts: bool,
}

/// A little of everything; few files that all write; names that go about; long listings; files of several names.
pub const THEMES: [Theme; 5] = [
    Theme { files: 4, directories: 2, weights: [9, 3, 1, 1, 2, 1, 3, 1], ..NONE },
    Theme { files: 1, directories: 0, weights: [20, 3, 0, 1, 1, 1, 0, 0], ..NONE },
    Theme { files: 3, directories: 1, weights: [4, 3, 1, 0, 5, 0, 7, 1], ..NONE },
    Theme { files: 12, directories: 1, weights: [9, 1, 3, 0, 1, 0, 4, 0], ..NONE },
    Theme { links: true, ..NONE },
];
/// One name that is opened while others are renamed over it.
pub const RACES: Theme = Theme { races: true, ..NONE };
/// One file that becomes longer while it is used.
pub const GROWS: Theme = Theme { grows: true, ..NONE };
/// One file that is cut while it is used.
pub const CUTS: Theme = Theme { cuts: true, ..NONE };
const NONE: Theme =
    Theme { files: 0, directories: 0, weights: [0; 8], links: false, races: false, grows: false, cuts: false };
/// No file is longer than this and a write.
const FILE_BYTES: u64 = 160;
const WRITE_BYTES: u64 = 60;
/// Files and directories that are open in one client at most.
const OPEN_MAX: usize = 6;
/// A round has so many calls at most.
const CALLS_MAX: u64 = 4;
/// Bytes of a program's buffer for a listing: one to some names, with attributes.
const BUFFER_BYTES: [usize; 3] = [200, 400, 1200];

/// The programs.
pub struct Programs {
    theme: Theme,
    handles: u64,
    /// Whose handles are whose.
    owners: BTreeMap<Handle, usize>,
    /// Calls that follow one another, of one client, with no other between.
    next: VecDeque<(usize, Call)>,
    race: Race,
    value: u8,
    /// Names may be used while they are changed.
    races_allowed: bool,
    /// The latest round of a script that had one call, and a mapping that is there.
    latest: Option<(usize, Call)>,
    mapped: Option<(usize, Handle)>,
}

/// How far a race is: two clients replace a name while others open it.
#[derive(Default)]
struct Race {
    step: u64,
    /// Who makes and removes links.
    client: usize,
    /// What was opened for it, by whom.
    open: Vec<(usize, Handle)>,
    /// The size that was seen.
    known: u64,
}

fn file_flags(access: Access) -> OpenFlags {
    OpenFlags { access, ..OpenFlags::default() }
}

impl Programs {
    /// `races`: names may be used by a call while another one of its round changes them, as in a script of such a run.
    pub fn new(theme: Theme, races: bool) -> Self {
        let (owners, next, race) = (BTreeMap::new(), VecDeque::new(), Race::default());
        Self { theme, handles: 0, owners, next, race, value: 0, races_allowed: races, latest: None, mapped: None }
    }

    /// The calls of the next round, each with its client.
    pub fn next_round(&mut self, random: &mut Random, state: &State) -> Vec<(usize, Call)> {
        while let Some(next) = self.next.pop_front() {
            // Of a file that turned out to be shorter no more is mapped than there is.
            if state.is_mapped_to_end_of(&next.1) && state.may_be_made(&next.1) {
                return vec![next];
            }
        }
        let scripted = match self.theme {
            Theme { races: true, .. } => Some(self.race(random, state)),
            Theme { links: true, .. } => Some(self.link(random)),
            Theme { grows: true, .. } => Some(self.grow(random, state)),
            Theme { cuts: true, .. } => Some(self.cut(random, state)),
            _ => None,
        };
        if let Some(mut round) = scripted {
            round.retain(|(_, call)| state.may_be_made(call));
            round.iter().for_each(|(client, call)| self.note(*client, call));
            return round;
        }
        let alone = random.one_in(2);
        let count = if alone { 1 } else { 2 + random.below(CALLS_MAX - 1) };
        let mut round: Vec<(usize, Call)> = Vec::new();
        for _ in 0..count {
            let client = usize::try_from(random.below(CLIENTS as u64)).expect("there are few clients");
            let call = self.choose(random, state, client, count == 1);
            if state.may_be_made(&call) && round.iter().all(|(_, other)| may_meet(state, other, &call)) {
                self.note(client, &call);
                round.push((client, call));
            }
        }
        round
    }

    /// The next step of a file with two names: one of them is removed while a client counts its links by the other.
    fn link(&mut self, random: &mut Random) -> Vec<(usize, Call)> {
        let step = self.race.step;
        self.race.step = (step + 1) % 9;
        if step == 0 {
            self.race.client = pick(random, NATIVE);
        }
        let path = |name: u64| vec![format!("f{name}")];
        let count = |name| Call::CountLinks { path: path(name) };
        let stat = |name| Call::Stat { path: path(name) };
        let client = self.race.client;
        let mut calls = match step {
            0 => {
                let (handle, flags) = (self.new_handle(), file_flags(Access::Write));
                self.race.open = vec![(client, handle)];
                vec![Call::Open { path: path(0), flags: OpenFlags { create: true, ..flags }, mode: 0o644, handle }]
            }
            1 => self.race.open.drain(..).map(|(_, handle)| Call::Close { handle }).collect(),
            2 | 5 => vec![Call::Link { from: path(step / 5), to: path(step / 5 + 1) }],
            3 | 6 => vec![Call::Unlink { path: path(step / 6) }, stat(step / 6 + 1), stat(step / 6 + 1)],
            4 | 7 => vec![count(step / 7 + 1)],
            _ => vec![Call::Rename { from: path(2), to: path(0), mode: RenameMode::Replace }],
        };
        if calls.len() > 1 && random.one_in(2) {
            calls.rotate_left(1);
        }
        calls.into_iter().map(|call| (client, call)).collect()
    }

    /// The next step of a race: two clients make a file each, look at it, close it, and rename it over the name that
    /// the others open; then these look at what they have opened, and close it, and one looks at the name. So it is
    /// known in the end in which order it all was.
    fn race(&mut self, random: &mut Random, state: &State) -> Vec<(usize, Call)> {
        let step = self.race.step;
        self.race.step = (step + 1) % 7;
        let first = pick(random, CLIENTS);
        let replaced = vec!["f0".to_owned()];
        let made = |client: usize| vec![format!("new{client}")];
        let mut round = Vec::new();
        match step {
            0 => {
                for client in [first, (first + 1 + pick(random, CLIENTS - 1)) % CLIENTS] {
                    let handle = self.new_handle();
                    let flags = OpenFlags { create: true, ..file_flags(Access::Write) };
                    round.push((client, Call::Open { path: made(client), flags, mode: 0o644, handle }));
                    self.race.open.push((client, handle));
                }
            }
            1 | 4 => {
                self.race.open.retain(|(_, handle)| state.opened(*handle).is_some());
                let look = |(client, handle): &(usize, Handle)| (*client, Call::Fstat { handle: *handle });
                round.extend(self.race.open.iter().map(look));
            }
            2 | 5 => {
                let close = |(client, handle): (usize, Handle)| (client, Call::Close { handle });
                round.extend(self.race.open.drain(..).map(close));
            }
            3 => {
                for client in 0..CLIENTS {
                    if state.find(&made(client)).is_ok() {
                        let (from, to) = (made(client), replaced.clone());
                        round.push((client, Call::Rename { from, to, mode: RenameMode::Replace }));
                    } else {
                        let (flags, handle) = (file_flags(Access::Read), self.new_handle());
                        round.push((client, Call::Open { path: replaced.clone(), flags, mode: 0, handle }));
                        self.race.open.push((client, handle));
                    }
                }
                let at = pick(random, round.len());
                round.rotate_left(at);
            }
            _ => {}
        }
        if round.is_empty() { vec![(first, Call::Stat { path: replaced })] } else { round }
    }

    /// Closes what is open, then looks at everything through every client. Calls for `next_round`.
    pub fn look_at_all(&mut self, state: &State) {
        self.next.clear();
        self.next.extend(state.handles().map(|(client, handle)| (client, Call::Close { handle })));
        let mut paths = state.reachable_paths();
        paths.push((Vec::new(), Kind::Directory));
        for client in 0..CLIENTS {
            for (path, kind) in &paths {
                self.look_at(client, path, *kind, state);
            }
        }
    }

    fn look_at(&mut self, client: usize, path: &[String], kind: Kind, state: &State) {
        let handle = self.new_handle();
        let path = path.to_vec();
        let mut calls = vec![
            Call::Stat { path: path.clone() },
            Call::Open { path: path.clone(), flags: file_flags(Access::Read), mode: 0, handle },
        ];
        if kind == Kind::Directory {
            let names = state.find(&path).map_or(0, |id| state.names(id).len());
            // With `.` and `..`, and once more for the end.
            calls.extend((0..names + 3).map(|_| Call::Getdents { handle, bytes: BUFFER_BYTES[2] }));
        } else {
            calls.push(Call::Pread { handle, offset: 0, size: 2 * FILE_BYTES });
        }
        calls.push(Call::Close { handle });
        self.next.extend(calls.into_iter().map(|call| (client, call)));
    }

    /// A client has died, and with it what its programs had open.
    pub fn died(&mut self, client: usize) {
        self.owners.retain(|_, owner| *owner != client);
        self.race.open.retain(|(owner, _)| *owner != client);
        self.next.clear();
        self.mapped.take_if(|(owner, _)| *owner == client);
    }

    /// Whether calls that belong together are left.
    pub fn is_in_the_middle(&self) -> bool {
        !self.next.is_empty()
    }

    fn new_handle(&mut self) -> Handle {
        self.handles += 1;
        Handle(self.handles)
    }

    fn note(&mut self, client: usize, call: &Call) {
        match call {
            Call::Open { handle, .. } => {
                self.owners.insert(*handle, client);
            }
            Call::Close { handle } => {
                self.owners.remove(handle);
            }
            _ => {}
        }
    }

    /// What is open in a client, of a kind.
    fn open_of(&self, state: &State, client: usize, wanted: Kind) -> Vec<(Handle, OpenFlags)> {
        let of_client = self.owners.iter().filter(|(_, owner)| **owner == client);
        of_client
            .filter_map(|(handle, _)| {
                let (_, flags, kind) = state.opened(*handle)?;
                (kind == wanted).then_some((*handle, flags))
            })
            .collect()
    }

    fn choose(&mut self, random: &mut Random, state: &State, client: usize, alone: bool) -> Call {
        let is_full = self.owners.values().filter(|owner| **owner == client).count() >= OPEN_MAX;
        let theme = self.theme;
        let mut choice = random.below(theme.weights.iter().sum());
        let kind = theme.weights.iter().position(|weight| {
            let is_this = choice < *weight;
            choice = choice.saturating_sub(*weight);
            is_this
        });
        match kind {
            Some(0) => self.use_open(random, state, client),
            Some(1) if !is_full => self.open(random, state),
            Some(2) if !is_full => self.open_directory(random, state),
            Some(3) if alone && client != NATIVE => self.map(random, state, client),
            Some(5) => Call::Truncate { path: theme.file_path(random, state), size: random.below(FILE_BYTES) },
            Some(6) => theme.change_names(random, state, alone),
            Some(7) if alone => self.replace_in_turn(random, client),
            _ if random.one_in(3) => Call::CountLinks { path: theme.any_path(random, state) },
            _ => Call::Stat { path: theme.any_path(random, state) },
        }
    }

    fn open(&mut self, random: &mut Random, state: &State) -> Call {
        let access = [Access::Read, Access::Write, Access::ReadWrite, Access::ReadWrite];
        let access = access[usize::try_from(random.below(4)).expect("it is below four")];
        let create = random.one_in(2);
        let flags = OpenFlags {
            access,
            create,
            exclusive: create && random.one_in(4),
            truncate: access.writes() && random.one_in(5),
            append: access.writes() && random.one_in(6),
            direct: random.one_in(8),
        };
        Call::Open { path: self.theme.file_path(random, state), flags, mode: 0o644, handle: self.new_handle() }
    }

    fn open_directory(&mut self, random: &mut Random, state: &State) -> Call {
        let path = directory_path(random, state);
        Call::Open { path, flags: file_flags(Access::Read), mode: 0, handle: self.new_handle() }
    }

    /// Something with what the client has open, or a look at a name.
    fn use_open(&mut self, random: &mut Random, state: &State, client: usize) -> Call {
        let files = self.open_of(state, client, Kind::Regular);
        let directories = self.open_of(state, client, Kind::Directory);
        if !directories.is_empty() && (files.is_empty() || random.one_in(3)) {
            let (handle, _) = directories[pick(random, directories.len())];
            return match random.below(10) {
                0 => Call::Close { handle },
                1 => Call::Seekdir { handle, position: 0 },
                _ => Call::Getdents { handle, bytes: BUFFER_BYTES[pick(random, BUFFER_BYTES.len())] },
            };
        }
        if files.is_empty() {
            return Call::Stat { path: self.theme.any_path(random, state) };
        }
        let (handle, flags) = files[pick(random, files.len())];
        let (offset, size) = (random.below(FILE_BYTES), 1 + random.below(WRITE_BYTES));
        let data = |programs: &mut Self| {
            programs.value = programs.value % 250 + 1;
            vec![programs.value; usize::try_from(size).expect("writes are short")]
        };
        match random.below(16) {
            0 | 1 => Call::Close { handle },
            2..=4 if flags.access.reads() => Call::Pread { handle, offset, size: 1 + random.below(FILE_BYTES) },
            5 if flags.access.reads() && !flags.append => Call::Read { handle, size },
            6..=8 if flags.access.writes() => Call::Pwrite { handle, offset, data: data(self) },
            9 | 10 if flags.access.writes() => Call::Write { handle, data: data(self) },
            11 if flags.access.writes() => Call::Ftruncate { handle, size: random.below(FILE_BYTES) },
            12 => Call::Fsync { handle, data_only: false },
            _ => Call::Fstat { handle },
        }
    }

    /// Two clients save a file in turn, as editors do: each makes another one and renames it over the first, and looks
    /// at it before and after.
    fn replace_in_turn(&mut self, random: &mut Random, first: usize) -> Call {
        let second = (first + 1 + pick(random, CLIENTS - 1)) % CLIENTS;
        let (path, made) = (vec!["f0".to_owned()], vec!["new".to_owned()]);
        let mut calls = Vec::new();
        for client in [first, second, first, second] {
            let handle = self.new_handle();
            self.value = self.value % 250 + 1;
            let data = vec![self.value; 1 + pick(random, usize::from(self.value))];
            let flags = OpenFlags { create: true, truncate: true, ..file_flags(Access::Write) };
            let mode = RenameMode::Replace;
            calls.extend(
                [
                    Call::Stat { path: path.clone() },
                    Call::Open { path: made.clone(), flags, mode: 0o644, handle },
                    Call::Write { handle, data },
                    Call::Close { handle },
                    Call::Rename { from: made.clone(), to: path.clone(), mode },
                    Call::Stat { path: path.clone() },
                ]
                .map(|call| (client, call)),
            );
        }
        self.next.extend(calls);
        Call::Stat { path }
    }

    /// A mapping that is used and goes away again, with nothing else between.
    fn map(&mut self, random: &mut Random, state: &State, client: usize) -> Call {
        let files = self.open_of(state, client, Kind::Regular);
        let fits = |(handle, flags): &&(Handle, OpenFlags)| {
            flags.access == Access::ReadWrite && !flags.append && !flags.direct && state.size(*handle) > 0
        };
        let Some((handle, _)) = files.iter().find(fits).copied() else {
            return Call::Stat { path: self.theme.any_path(random, state) };
        };
        let mapping = self.new_handle();
        // A store behind the end that the kernel knows is a fault: programs ask for the size first.
        self.next.push_back((client, Call::Map { handle, mapping, writable: true }));
        let size = state.size(handle);
        let offset = random.below(size);
        let length = 1 + random.below(size - offset);
        if random.one_in(2) {
            self.value = self.value % 250 + 1;
            let data = vec![self.value; usize::try_from(length).expect("writes are short")];
            self.next.push_back((client, Call::Store { mapping, offset, data }));
            self.next.push_back((client, Call::Msync { mapping }));
        }
        self.next.push_back((client, Call::Load { mapping, offset, size: length }));
        self.next.push_back((client, Call::Unmap { mapping }));
        Call::Fstat { handle }
    }
}

pub fn pick(random: &mut Random, count: usize) -> usize {
    usize::try_from(random.below(count as u64)).expect("there are few")
}

/// A directory that is there, more often the root.
fn directory_path(random: &mut Random, state: &State) -> Vec<String> {
    let mut paths: Vec<_> = state.paths().into_iter().filter(|(_, kind)| *kind == Kind::Directory).collect();
    if paths.is_empty() || random.one_in(2) {
        return Vec::new();
    }
    let index = pick(random, paths.len());
    paths.swap_remove(index).0
}

fn below(mut directory: Vec<String>, name: String) -> Vec<String> {
    directory.push(name);
    directory
}

impl Theme {
    /// Whether names are used by calls while others of their round change them.
    pub fn has_races(self) -> bool {
        self.races
    }

    fn file_path(self, random: &mut Random, state: &State) -> Vec<String> {
        below(directory_path(random, state), format!("f{}", random.below(self.files)))
    }

    fn sub_directory_path(self, random: &mut Random, state: &State) -> Vec<String> {
        // Not deeper than two.
        let mut parent = directory_path(random, state);
        parent.truncate(1);
        below(parent, format!("d{}", random.below(self.directories.max(1))))
    }

    fn any_path(self, random: &mut Random, state: &State) -> Vec<String> {
        if self.directories > 0 && random.one_in(4) {
            self.sub_directory_path(random, state)
        } else {
            self.file_path(random, state)
        }
    }

    fn change_names(self, random: &mut Random, state: &State, alone: bool) -> Call {
        match random.below(10) {
            0 | 1 => Call::Unlink { path: self.file_path(random, state) },
            2 => Call::Mkdir { path: self.sub_directory_path(random, state), mode: 0o755 },
            3 => Call::Link { from: self.file_path(random, state), to: self.file_path(random, state) },
            4 if alone => Call::Rmdir { path: self.sub_directory_path(random, state) },
            5 if alone => {
                let (from, to) = (self.sub_directory_path(random, state), self.sub_directory_path(random, state));
                Call::Rename { from, to, mode: RenameMode::Replace }
            }
            _ => {
                let mode = match random.below(8) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                Call::Rename { from: self.file_path(random, state), to: self.file_path(random, state), mode }
            }
        }
    }
}

/// What of a call excludes others of its round.
struct Touches {
    /// Names that it makes or removes, that it uses, and by which it finds a file that it links.
    changed: Vec<Vec<String>>,
    used: Vec<Vec<String>>,
    linked: Option<Vec<String>>,
    handle: Option<Handle>,
    /// It uses a file's bytes or size.
    bytes: bool,
}

fn touches(call: &Call) -> Touches {
    let (mut changed, mut used, mut linked, mut handle, mut bytes) = (Vec::new(), Vec::new(), None, None, false);
    match call {
        Call::Stat { path } | Call::CountLinks { path } => used.push(path.clone()),
        Call::Open { path, flags, .. } => {
            bytes = flags.truncate;
            if flags.create { changed.push(path.clone()) } else { used.push(path.clone()) }
        }
        Call::Truncate { path, .. } => {
            bytes = true;
            used.push(path.clone());
        }
        Call::Mkdir { path, .. } | Call::Unlink { path } | Call::Rmdir { path } => changed.push(path.clone()),
        Call::Link { from, to } => {
            linked = Some(from.clone());
            changed.push(to.clone());
        }
        Call::Rename { from, to, .. } => changed.extend([from.clone(), to.clone()]),
        Call::Close { handle: of } | Call::Getdents { handle: of, .. } | Call::Seekdir { handle: of, .. } => {
            handle = Some(*of);
        }
        Call::Fsync { handle: of, .. } | Call::Fstat { handle: of } => (handle, bytes) = (Some(*of), true),
        Call::Read { handle: of, .. }
        | Call::Pread { handle: of, .. }
        | Call::Write { handle: of, .. }
        | Call::Pwrite { handle: of, .. }
        | Call::Ftruncate { handle: of, .. } => (handle, bytes) = (Some(*of), true),
        Call::Chmod { .. }
        | Call::Map { .. }
        | Call::Load { .. }
        | Call::Store { .. }
        | Call::Msync { .. }
        | Call::Unmap { .. } => {}
    }
    Touches { changed, used, linked, handle, bytes }
}

/// Whether two calls may be made at the same time.
fn may_meet(state: &State, one: &Call, other: &Call) -> bool {
    let (a, b) = (touches(one), touches(other));
    if a.handle.is_some() && a.handle == b.handle {
        return false;
    }
    // What is looked up and then used is not one step. The check knows both of a link (`history/lookups.rs`).
    let uses_changed = |a: &Touches, b: &Touches| a.used.iter().any(|path| b.changed.contains(path));
    if uses_changed(&a, &b) || uses_changed(&b, &a) {
        return false;
    }
    let files = |touched: &Touches| {
        let named =
            touched.used.iter().chain(&touched.linked).chain(&touched.changed).filter_map(|path| state.find(path).ok());
        let open = touched.handle.and_then(|handle| state.opened(handle)).map(|(id, ..)| id);
        named.chain(open).collect::<Vec<_>>()
    };
    let same_file = files(&a).iter().any(|id| files(&b).contains(id));
    !same_file || !(a.bytes || b.bytes) || leave_each_other_alone(state, one, other)
}

/// A part of a file's bytes that a call reads or writes.
struct Part {
    range: Range<u64>,
    writes: bool,
}

/// The part that a call reads, or writes within the file, so that the size stays.
fn part_within(state: &State, call: &Call) -> Option<Part> {
    match call {
        Call::Pread { offset, size, .. } => Some(Part { range: *offset..offset + size, writes: false }),
        Call::Pwrite { handle, offset, data } => {
            let (_, flags, _) = state.opened(*handle)?;
            let range = *offset..offset + data.len() as u64;
            (!flags.append && range.end <= state.size(*handle)).then_some(Part { range, writes: true })
        }
        _ => None,
    }
}

/// Whether neither of two calls changes what the other one reads or writes of a file, nor its size. To the kernel a
/// write may make the file longer all the same: another client has made it longer before.
fn leave_each_other_alone(state: &State, one: &Call, other: &Call) -> bool {
    let (Some(a), Some(b)) = (part_within(state, one), part_within(state, other)) else { return false };
    !(a.writes || b.writes) || a.range.start >= b.range.end || b.range.start >= a.range.end
}
