//! POSIX, as one process on a local file system of Linux sees it: the answer of every call, given one after another.
//!
//! [`Model::check`] applies a call and compares what it must return with what it returned. Freedom that POSIX leaves is
//! settled by what is observed first (inode numbers, modification times inside the call's interval) and fixed from then
//! on. Not here: permissions (all callers own all files, and no mode denies them anything), atime, ctime, the size of a
//! directory.

mod data;
mod listing;
mod names;
#[cfg(test)]
mod tests;

use crate::call::{Access, Call, HandleId, LockHow, Whence, WorkerId};
use crate::outcome::{Attributes, Outcome, Reply, Runs};
use listing::Listing;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Number of an inode in the model.
type Id = u64;

/// The directory of the run.
const ROOT: Id = 1;

/// Freedom that the file system under test has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowances {
    /// Mappings may fail with ENODEV: files opened past the page cache have none.
    pub no_mappings: bool,
    /// Calls may fail with ENOSPC. The content of the file is then what all workers agree on.
    pub no_space: bool,
    /// The position of a handle after an append is undefined until the next seek: the kernel adds to the size that it
    /// knew, whatever others have appended.
    pub append_positions: bool,
    /// A rename through a mount may fail with ESTALE by a directory that another client has renamed: its kernel knows
    /// it under its former name, and does not move it while the rename holds the lock for that.
    pub stale_renames: bool,
    /// mtime is not compared.
    pub any_mtime: bool,
    /// A listing may miss or repeat lasting entries once its directory has changed. On tmpfs of Linux 6.18 it does: its
    /// position is the offset of the next entry; a lookup of one that was removed finds an entry told before, and a
    /// rename moves the name that it replaces.
    pub unstable_listings: bool,
}

#[derive(Clone, Debug)]
struct Inode {
    kind: Kind,
    mode: u16,
    links: u64,
    mtime: Mtime,
    /// `st_ino`, once it was seen.
    number: Option<u64>,
    /// A write failed: content and size are unknown until [`Model::adopt`].
    is_doubtful: bool,
    /// Letter of the mount whose program renamed it last.
    renamed_by: Option<char>,
    locks: BTreeMap<(WorkerId, HandleId), LockHow>,
}

#[derive(Clone, Debug)]
enum Kind {
    File(Vec<u8>),
    Directory(BTreeMap<String, Id>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mtime {
    /// It must be exactly this.
    Is(i64),
    /// A change at this wall clock time set it.
    Since(i64),
    /// Nothing is known: the next observation counts.
    Any,
}

#[derive(Clone, Debug)]
struct Handle {
    inode: Id,
    access: Access,
    append: bool,
    direct: bool,
    /// `None`: not defined.
    position: Option<u64>,
    /// Bytes of its mapping.
    mapped: Option<u64>,
    /// Only of directories.
    listing: Option<Listing>,
}

/// What a call must return.
#[derive(Clone, PartialEq, Debug)]
enum Expected {
    Fails(Errno),
    Done,
    Count(u64),
    Bytes(Vec<u8>),
    /// An open of this inode.
    Opened(Id),
    Stat(Id),
}

type Answer = Result<Expected, Errno>;

/// When a call was made, by the wall clock.
#[derive(Clone, Copy, Debug)]
struct Interval {
    begun: i64,
    ended: i64,
}

/// The file system and all handles.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Id, Inode>,
    next: Id,
    handles: BTreeMap<(WorkerId, HandleId), Handle>,
    allowances: Allowances,
    /// Calls whose outcome was compared.
    pub compared: u64,
}

impl Model {
    /// An empty directory.
    pub fn new(allowances: Allowances) -> Self {
        let root = Inode::new(Kind::Directory(BTreeMap::new()), 0o755, Mtime::Any);
        Self { inodes: [(ROOT, root)].into(), next: ROOT + 1, handles: BTreeMap::new(), allowances, compared: 0 }
    }

    /// Returns false for calls that a script, shortened or made for another state, must skip: their handle is not open,
    /// or POSIX leaves their result undefined.
    pub fn is_defined(&self, who: WorkerId, call: &Call) -> bool {
        if call.opens().is_some_and(|id| self.handles.contains_key(&(who, id))) {
            return false;
        }
        if let Call::Open { path, access, flags, .. } = call {
            // O_TRUNC without write access, and O_DIRECT of a directory, are undefined; the library opens files only.
            let is_directory = || self.find(path).is_ok_and(|id| self.is_directory(id));
            let is_undefined =
                flags.truncate && *access == Access::Read || (flags.direct || who.is_native()) && is_directory();
            return !is_undefined;
        }
        let Some(id) = call.uses() else { return true };
        let Some(handle) = self.handles.get(&(who, id)) else { return false };
        let size = match &self.inodes[&handle.inode].kind {
            Kind::Directory(_) => {
                let is_for_directories = matches!(
                    call,
                    Call::Close { .. }
                        | Call::StatHandle { .. }
                        | Call::ReadDirectory { .. }
                        | Call::Rewind { .. }
                        | Call::Sync { .. }
                );
                // The library has no open directories: it reads them by number, which a removed one has no more.
                let is_gone = who.is_native() && self.inodes[&handle.inode].links == 0;
                let is_usable = handle.listing.is_some() && !is_gone;
                return is_for_directories && (is_usable || matches!(call, Call::Close { .. }));
            }
            Kind::File(bytes) => bytes.len() as u64,
        };
        let is_aligned = |number: u64| !handle.direct || number.is_multiple_of(4096);
        match call {
            Call::ReadDirectory { .. } | Call::Rewind { .. } => false,
            Call::Write { bytes, .. } | Call::WriteAt { bytes, .. } if handle.append => {
                is_aligned(*bytes) && is_aligned(size)
            }
            Call::Read { bytes, .. } | Call::Write { bytes, .. } => {
                is_aligned(*bytes) && handle.position.is_some_and(is_aligned)
            }
            Call::Seek { whence: Whence::Current, .. } => handle.position.is_some(),
            Call::ReadAt { offset, bytes, .. } | Call::WriteAt { offset, bytes, .. } => {
                is_aligned(*bytes) && is_aligned(*offset)
            }
            // Beyond the end of the file, a mapping is a SIGBUS or whatever the last page has.
            Call::MapRead { offset, bytes, .. } | Call::MapWrite { offset, bytes, .. } => {
                *bytes > 0 && offset + bytes <= size
            }
            Call::Map { bytes, .. } => *bytes > 0 && handle.access != Access::Write,
            Call::Load { offset, bytes, .. } => {
                handle.mapped.is_some_and(|mapped| *bytes > 0 && offset + bytes <= size.min(mapped))
            }
            Call::Unmap { .. } => handle.mapped.is_some(),
            // POSIX allows EBADF and EINVAL: the library has the one, Linux the other.
            Call::TruncateHandle { .. } => !who.is_native() || handle.access != Access::Read,
            _ => true,
        }
    }

    /// Applies a call and compares its outcome with what it must be. `Err`: what is wrong.
    pub fn check(&mut self, who: WorkerId, call: &Call, reply: &Reply) -> Result<(), String> {
        self.compared += 1;
        if let Call::ReadDirectory { handle, .. } = call {
            return self.check_listing((who, *handle), &reply.outcome);
        }
        if self.is_allowed_failure(who, call, &reply.outcome) {
            return Ok(());
        }
        let at = Interval { begun: reply.wall_begun, ended: reply.wall_ended };
        let expected = self.apply(who, call, at).unwrap_or_else(Expected::Fails);
        self.compare(&expected, &reply.outcome, at)
    }

    /// Returns true for a failure that the file system may answer with. The call then had no effect.
    fn is_allowed_failure(&mut self, who: WorkerId, call: &Call, outcome: &Outcome) -> bool {
        let Some(errno) = outcome.errno() else { return false };
        let Allowances { no_mappings, no_space, stale_renames, .. } = self.allowances;
        match call {
            Call::Rename { from, to, .. } if errno == Errno::STALE => {
                stale_renames && !who.is_native() && self.may_be_stale(who.mount, from, to)
            }
            Call::MapRead { .. } | Call::MapWrite { .. } | Call::Map { .. } => errno == Errno::NODEV && no_mappings,
            _ if errno == Errno::NOSPC && no_space => {
                self.doubt(who, call);
                true
            }
            _ => false,
        }
    }

    /// A call failed for lack of space: the file that it was for has unknown content until all workers agree on it.
    fn doubt(&mut self, who: WorkerId, call: &Call) {
        let inode = match (call, call.uses()) {
            (Call::Close { handle }, _) => self.close((who, *handle)),
            (_, Some(handle)) => self.handles.get(&(who, handle)).map(|handle| handle.inode),
            (Call::Truncate { path, .. }, None) => self.find(path).ok(),
            _ => None,
        };
        if let Some(inode) = inode.and_then(|inode| self.inodes.get_mut(&inode)) {
            inode.is_doubtful = true;
            inode.mtime = Mtime::Any;
        }
    }

    /// Returns paths of files whose content is unknown since a call on them failed.
    pub fn doubtful(&self) -> Vec<String> {
        self.paths().into_iter().filter(|(_, id)| self.inodes[id].is_doubtful).map(|(path, _)| path).collect()
    }

    /// The content of a doubtful file is this, from now on.
    pub fn adopt(&mut self, path: &str, content: Vec<u8>) {
        if let Some(inode) = self.find(path).ok().and_then(|id| self.inodes.get_mut(&id)) {
            inode.kind = Kind::File(content);
            inode.is_doubtful = false;
            inode.mtime = Mtime::Any;
        }
    }

    /// All paths with their inodes, the root's excluded.
    fn paths(&self) -> Vec<(String, Id)> {
        let mut found = Vec::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((above, id)) = left.pop() {
            if let Kind::Directory(entries) = &self.inodes[&id].kind {
                for (name, entry) in entries {
                    found.push((format!("{above}{name}"), *entry));
                    left.push((format!("{above}{name}/"), *entry));
                }
            }
        }
        found
    }

    /// Returns the paths of all files (`false`) or directories (`true`).
    pub fn paths_of(&self, directories: bool) -> Vec<String> {
        let is_wanted = |id: &Id| matches!(self.inodes[id].kind, Kind::Directory(_)) == directories;
        self.paths().into_iter().filter(|(_, id)| is_wanted(id)).map(|(path, _)| path).collect()
    }

    /// Returns a worker's open handles: number, size of the file (`None`: a directory), whether it is direct, and the
    /// bytes mapped.
    pub fn handles_of(&self, who: WorkerId) -> Vec<(HandleId, Option<u64>, bool, Option<u64>)> {
        let of_worker = self.handles.iter().filter(|((worker, _), _)| *worker == who);
        let describe = |(key, handle): (&(WorkerId, HandleId), &Handle)| {
            let size = match &self.inodes[&handle.inode].kind {
                Kind::File(bytes) => Some(bytes.len() as u64),
                Kind::Directory(_) => None,
            };
            (key.1, size, handle.direct, handle.mapped)
        };
        of_worker.map(describe).collect()
    }

    fn apply(&mut self, who: WorkerId, call: &Call, at: Interval) -> Answer {
        match call {
            Call::Open { handle, path, access, flags } => self.open((who, *handle), path, *access, *flags, at),
            Call::OpenDirectory { handle, path } => self.open_directory((who, *handle), path),
            Call::Stat { path } => self.find(path).map(Expected::Stat),
            Call::Truncate { path, size } => {
                let id = self.find(path)?;
                self.resize(id, *size, at)
            }
            Call::Rename { from, to, how } => self.rename(who.mount, (from, to), *how, at),
            Call::Link { from, to } => self.link(from, to, at),
            Call::Unlink { path } => self.unlink(path, at),
            Call::MakeDirectory { path } => self.make_directory(path, at),
            Call::RemoveDirectory { path } => self.remove_directory(path, at),
            Call::ChangeMode { path, mode } => {
                let id = self.find(path)?;
                self.inode(id).mode = *mode;
                Ok(Expected::Done)
            }
            Call::SetTime { path, seconds } => {
                let id = self.find(path)?;
                self.inode(id).mtime = Mtime::Is((*seconds * 1_000_000_000).cast_signed());
                Ok(Expected::Done)
            }
            _ => {
                let Some(id) = call.uses() else { return Err(Errno::NOSYS) };
                self.apply_to_handle((who, id), call, at)
            }
        }
    }

    fn inode(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("handles and entries refer to inodes that exist")
    }

    fn compare(&mut self, expected: &Expected, outcome: &Outcome, at: Interval) -> Result<(), String> {
        let is_as_expected = match (expected, outcome) {
            (Expected::Fails(errno), Outcome::Failed(got)) => errno.raw_os_error() == *got,
            (Expected::Done, Outcome::Done) => true,
            (Expected::Count(count), Outcome::Count(got)) => count == got,
            (Expected::Bytes(bytes), Outcome::Bytes(got)) => return compare_bytes(bytes, got),
            (Expected::Opened(id), Outcome::Opened(number)) => return self.compare_number(*id, *number),
            (Expected::Stat(id), Outcome::Attributes(got)) => return self.compare_attributes(*id, got, at),
            _ => false,
        };
        if is_as_expected { Ok(()) } else { Err(format!("got {outcome}, expected {}", self.describe(expected))) }
    }

    fn describe(&self, expected: &Expected) -> String {
        match expected {
            Expected::Fails(errno) => Outcome::Failed(errno.raw_os_error()).to_string(),
            Expected::Done => Outcome::Done.to_string(),
            Expected::Count(count) => Outcome::Count(*count).to_string(),
            Expected::Bytes(bytes) => Outcome::Bytes(Runs::of(bytes)).to_string(),
            Expected::Opened(_) => "success".to_owned(),
            Expected::Stat(id) => match &self.inodes[id].kind {
                Kind::File(bytes) => format!("attributes of a file of {} bytes", bytes.len()),
                Kind::Directory(_) => "attributes of a directory".to_owned(),
            },
        }
    }

    fn compare_number(&mut self, id: Id, number: u64) -> Result<(), String> {
        let expected = *self.inode(id).number.get_or_insert(number);
        if expected != number {
            return Err(format!("got inode {number:x}, expected {expected:x}"));
        }
        let of_another = |(other, inode): (&Id, &Inode)| *other != id && inode.number == Some(number);
        match self.inodes.iter().any(of_another) {
            true => Err(format!("got inode {number:x}, which is another file's")),
            false => Ok(()),
        }
    }

    fn compare_attributes(&mut self, id: Id, got: &Attributes, at: Interval) -> Result<(), String> {
        self.compare_number(id, got.inode)?;
        let any_mtime = self.allowances.any_mtime;
        let inode = self.inode(id);
        let (is_directory, size) = match &inode.kind {
            Kind::File(bytes) if !inode.is_doubtful => (false, bytes.len() as u64),
            Kind::File(_) => (false, got.size),
            Kind::Directory(_) => (true, got.size),
        };
        let differ = |what: &str, got: String, expected: String| Err(format!("got {what} {got}, expected {expected}"));
        if got.is_directory != is_directory {
            return differ("directory", got.is_directory.to_string(), is_directory.to_string());
        }
        if got.size != size {
            return differ("size", got.size.to_string(), size.to_string());
        }
        if got.links != inode.links {
            return differ("link count", got.links.to_string(), inode.links.to_string());
        }
        if got.mode != inode.mode {
            return differ("mode", format!("0{:o}", got.mode), format!("0{:o}", inode.mode));
        }
        let is_right = match inode.mtime {
            Mtime::Is(time) => got.mtime == time,
            Mtime::Since(begun) => begun <= got.mtime && got.mtime <= at.ended,
            Mtime::Any => true,
        };
        if !is_right && !any_mtime {
            let expected = match inode.mtime {
                Mtime::Since(begun) => format!("{begun} to {}, when it was modified", at.ended),
                Mtime::Is(time) => format!("{time}: it was not modified since that was seen or set"),
                Mtime::Any => "any".to_owned(),
            };
            return differ("mtime", got.mtime.to_string(), expected);
        }
        inode.mtime = Mtime::Is(got.mtime);
        Ok(())
    }

    /// Forgets inodes that have neither name nor handle: their numbers may be used again.
    fn collect(&mut self) {
        let open: BTreeSet<Id> = self.handles.values().map(|handle| handle.inode).collect();
        self.inodes.retain(|id, inode| *id == ROOT || inode.links > 0 || open.contains(id));
    }
}

impl Inode {
    fn new(kind: Kind, mode: u16, mtime: Mtime) -> Self {
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        Self { kind, mode, links, mtime, number: None, is_doubtful: false, renamed_by: None, locks: BTreeMap::new() }
    }
}

fn compare_bytes(expected: &[u8], got: &Runs) -> Result<(), String> {
    let bytes = got.bytes();
    if bytes == expected {
        return Ok(());
    }
    let text = Runs::of(expected);
    if bytes.len() != expected.len() {
        return Err(format!("got {got}, expected {text}"));
    }
    let first = bytes.iter().zip(expected).position(|(got, expected)| got != expected).unwrap_or_default();
    Err(format!("got {got}, expected {text}; the first difference is at byte {first} of the range"))
}
