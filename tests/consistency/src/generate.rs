//! Random calls: few names, few files, small and page-sized ranges, so that workers meet.

use crate::call::{Access, Call, HandleId, LockHow, OpenFlags, RenameHow, Whence, WorkerId};
use crate::model::Model;
use crate::random::Random;
use crate::script::Step;
use std::collections::BTreeSet;

/// Groups of calls that a run can be told to leave out.
pub const GROUPS: [&str; 12] =
    ["names", "listings", "sizes", "mmap", "direct", "sync", "append", "times", "modes", "waits", "large", "locks"];

/// Which calls are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    groups: BTreeSet<&'static str>,
    /// Workers that make them.
    pub workers: Vec<WorkerId>,
}

/// Handles of each worker.
const HANDLES: u64 = 3;
const FILES: [&str; 3] = ["f", "g", "h"];
const DIRECTORIES: [&str; 2] = ["d", "e"];
const PAGE: u64 = 4096;

impl Choice {
    /// All groups of calls but locks, which no mount shares with others, and those left out.
    pub fn without(left_out: &[String], locks: bool, workers: Vec<WorkerId>) -> Result<Self, String> {
        if let Some(unknown) = left_out.iter().find(|group| !GROUPS.contains(&group.as_str())) {
            return Err(format!("'{unknown}' is no group of calls: {}", GROUPS.join(", ")));
        }
        let is_in = |group: &&str| !left_out.iter().any(|out| out == group) && (*group != "locks" || locks);
        Ok(Self { groups: GROUPS.into_iter().filter(is_in).collect(), workers })
    }

    /// Returns true if calls of this group are made.
    pub fn has(&self, group: &str) -> bool {
        self.groups.contains(group)
    }
}

/// Makes the steps of one run.
pub struct Generator<'c> {
    choice: &'c Choice,
    random: Random,
    values: u8,
}

impl<'c> Generator<'c> {
    /// Starts at a seed.
    pub fn new(choice: &'c Choice, seed: u64) -> Self {
        Self { choice, random: Random::new(seed), values: 0 }
    }

    /// Returns a step that is defined where the model is.
    pub fn step(&mut self, model: &Model) -> Step {
        if self.choice.has("waits") && self.random.one_in(400) {
            return Step::Wait { milliseconds: 1 + self.random.below(60) };
        }
        loop {
            let who = *self.random.choose(&self.choice.workers);
            let handles = model.handles_of(who);
            let call = match self.random.below(10) {
                0..3 => self.on_names(),
                3 if handles.len() < HANDLES as usize => self.open(),
                _ if handles.is_empty() => self.open(),
                _ => {
                    let (handle, size, direct, mapped) = *self.random.choose(&handles);
                    match size {
                        None => self.on_directory(handle),
                        Some(size) => self.on_file(handle, size, direct, mapped),
                    }
                }
            };
            let Some(call) = call else { continue };
            if !(who.is_native() && is_beyond_native(&call)) && model.is_defined(who, &call) {
                return Step::Call(who, call);
            }
        }
    }

    fn value(&mut self) -> u8 {
        self.values = self.values % 255 + 1;
        self.values
    }

    fn handle(&mut self) -> HandleId {
        self.random.below(HANDLES) as HandleId
    }

    fn file(&mut self) -> String {
        let name = *self.random.choose(&FILES);
        match self.random.below(4) {
            0 => format!("{}/{name}", self.random.choose(&DIRECTORIES)),
            _ => name.to_owned(),
        }
    }

    fn directory(&mut self) -> String {
        match self.random.below(6) {
            0 => "d/e".to_owned(),
            1..4 => "d".to_owned(),
            _ => "e".to_owned(),
        }
    }

    /// Mostly a file; errors of directories belong to it too.
    fn any_path(&mut self) -> String {
        if self.random.one_in(5) { self.directory() } else { self.file() }
    }

    fn open(&mut self) -> Option<Call> {
        let handle = self.handle();
        if self.choice.has("listings") && self.random.one_in(6) {
            let path = if self.random.one_in(3) { self.directory() } else { ".".to_owned() };
            return Some(Call::OpenDirectory { handle, path });
        }
        let access = *self.random.choose(&[Access::Read, Access::Write, Access::ReadWrite, Access::ReadWrite]);
        let flags = OpenFlags {
            create: self.random.below(3) > 0,
            exclusive: self.random.one_in(8),
            truncate: self.random.one_in(8),
            append: self.choice.has("append") && self.random.one_in(8),
            direct: self.choice.has("direct") && self.random.one_in(6),
            sync: self.choice.has("sync") && self.random.one_in(12),
            dsync: self.choice.has("sync") && self.random.one_in(12),
        };
        // O_EXCL without O_CREAT is undefined.
        let flags = OpenFlags { exclusive: flags.exclusive && flags.create, ..flags };
        let path = if self.random.one_in(12) { self.directory() } else { self.file() };
        // The root of the run is not part of what is named.
        Some(Call::Open { handle, path, access, flags })
    }

    fn on_names(&mut self) -> Option<Call> {
        let how =
            *self.random.choose(&[RenameHow::Replace, RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange]);
        let call = match self.random.below(16) {
            0..4 => Call::Stat { path: self.any_path() },
            4..7 => Call::Rename { from: self.file(), to: self.file(), how },
            7 => Call::Rename { from: self.any_path(), to: self.any_path(), how },
            8 => Call::Link { from: self.file(), to: self.file() },
            9..11 => Call::Unlink { path: self.file() },
            11 => Call::MakeDirectory { path: self.directory() },
            12 => Call::RemoveDirectory { path: self.any_path() },
            13 => Call::ChangeMode { path: self.file(), mode: self.mode() },
            14 => Call::SetTime { path: self.any_path(), seconds: 1000 + self.random.below(1000) },
            _ => Call::Truncate { path: self.any_path(), size: self.offset(PAGE, false) },
        };
        let is_left_out = match &call {
            Call::ChangeMode { .. } => !self.choice.has("modes"),
            Call::SetTime { .. } => !self.choice.has("times"),
            Call::Truncate { .. } => !self.choice.has("sizes"),
            Call::Stat { .. } => false,
            _ => !self.choice.has("names"),
        };
        (!is_left_out).then_some(call)
    }

    fn mode(&mut self) -> u16 {
        *self.random.choose(&[0o600, 0o640, 0o644, 0o666, 0o755])
    }

    fn on_directory(&mut self, handle: HandleId) -> Option<Call> {
        Some(match self.random.below(10) {
            0 => Call::Close { handle },
            1 => Call::Rewind { handle },
            2 => Call::StatHandle { handle },
            // Room for two or three entries, or for all.
            3..8 => Call::ReadDirectory { handle, bytes: 64 + self.random.below(64) },
            _ => Call::ReadDirectory { handle, bytes: 4096 },
        })
    }

    fn on_file(&mut self, handle: HandleId, size: u64, direct: bool, mapped: Option<u64>) -> Option<Call> {
        let (offset, bytes) = (self.offset(size, direct), self.bytes(direct));
        if self.choice.has("mmap") && self.random.one_in(6) {
            return self.on_mapping(handle, size, mapped);
        }
        let call = match self.random.below(20) {
            0..2 => Call::Close { handle },
            2..8 => Call::ReadAt { handle, offset: if self.random.one_in(2) { 0 } else { offset }, bytes },
            8..13 => Call::WriteAt { handle, offset, bytes, value: self.value() },
            13 => Call::Read { handle, bytes },
            14 => Call::Write { handle, bytes, value: self.value() },
            15 => match self.random.below(3) {
                0 => Call::Seek { handle, whence: Whence::End, offset: 0 },
                1 => Call::Seek { handle, whence: Whence::Current, offset: 0 },
                _ => Call::Seek { handle, whence: Whence::Set, offset: offset.cast_signed() },
            },
            16 => Call::TruncateHandle { handle, size: offset },
            17 => Call::Sync { handle },
            18 if self.choice.has("locks") => {
                let how = *self.random.choose(&[LockHow::Shared, LockHow::Exclusive, LockHow::Unlock]);
                Call::Lock { handle, how }
            }
            18 => Call::ChangeModeHandle { handle, mode: self.mode() },
            _ => Call::StatHandle { handle },
        };
        let is_left_out = match &call {
            Call::TruncateHandle { .. } => !self.choice.has("sizes"),
            Call::ChangeModeHandle { .. } => !self.choice.has("modes"),
            Call::Sync { .. } => !self.choice.has("sync"),
            _ => false,
        };
        (!is_left_out).then_some(call)
    }

    fn on_mapping(&mut self, handle: HandleId, size: u64, mapped: Option<u64>) -> Option<Call> {
        let offset = self.random.below(size.max(1));
        let bytes = 1 + self.random.below((size - size.min(offset)).clamp(1, 3 * PAGE));
        Some(match (self.random.below(5), mapped) {
            (0, None) => Call::Map { handle, bytes: size.max(1).next_multiple_of(PAGE) },
            (0, Some(_)) if self.random.one_in(3) => Call::Unmap { handle },
            (1..3, Some(_)) => Call::Load { handle, offset, bytes },
            (3, _) => Call::MapRead { handle, offset, bytes },
            _ => Call::MapWrite { handle, offset, bytes, value: self.value() },
        })
    }

    fn offset(&mut self, size: u64, direct: bool) -> u64 {
        let pages = if self.choice.has("large") && self.random.one_in(8) { 200 } else { 8 };
        let page = self.random.below(pages) * PAGE;
        match self.random.below(5) {
            _ if direct => page,
            0 => self.random.below(64),
            1 => size,
            2 => page,
            3 => page + self.random.below(PAGE),
            _ => self.random.below(size + 100),
        }
    }

    fn bytes(&mut self, direct: bool) -> u64 {
        let pages = if self.choice.has("large") && self.random.one_in(8) { 300 } else { 4 };
        let pages = (1 + self.random.below(pages)) * PAGE;
        match self.random.below(4) {
            _ if direct => pages,
            0 => 1 + self.random.below(100),
            1 => 1 + self.random.below(pages),
            _ => pages,
        }
    }
}

/// What the client library does not have.
fn is_beyond_native(call: &Call) -> bool {
    matches!(
        call,
        Call::Read { .. }
            | Call::Write { .. }
            | Call::Seek { .. }
            | Call::MapRead { .. }
            | Call::MapWrite { .. }
            | Call::Map { .. }
            | Call::Load { .. }
            | Call::Unmap { .. }
            | Call::Lock { .. }
    )
}
