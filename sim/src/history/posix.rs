//! A file system without caches, mounts or time: what each call returns and does.
//!
//! Not here: listings (`listings.rs`), access and change times, times of directories, permissions.

use super::Recorded;
use super::content::Content;
use super::gone::Gone;
use super::lookups::may_take_two_steps;
use super::losses::Maybe;
use super::mtime::Mtime;
use crate::kernel::requests::{Attributes, Errno, OpenFlags, RenameMode};
use crate::kernel::{Call, CallResult, Handle, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Names an inode of the model: the number of the call that made it, so that it is the same in whatever order calls
/// are tried.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 0;
/// Added to the number of a call that makes a second inode.
const SECOND: Id = 1 << 40;
/// Names one component longer than a path.
pub(super) type Place<'a> = (Id, &'a str);

pub use crate::kernel::requests::Kind;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Inode {
    kind: Kind,
    pub links: u32,
    pub content: Content,
    pub entries: BTreeMap<String, Id>,
    /// Of a directory: the client that has renamed it last.
    pub renamed_by: Option<usize>,
    /// The number that programs were told.
    pub number: Option<u64>,
    pub mtime: Mtime,
    /// Somebody has stored into a mapping: when that counts as a modification is open.
    is_stored: bool,
    /// Clients whose programs were not told yet of bytes that they have lost.
    pub untold: BTreeSet<usize>,
    /// Clients that have lost bytes since they flushed them last.
    pub lossy: BTreeSet<usize>,
    /// What is gone with a node.
    pub gone: Gone,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Open {
    pub client: usize,
    pub inode: Id,
    pub position: u64,
    pub flags: OpenFlags,
    /// The session under which it was opened has ended: a file that has no name any more is gone.
    pub is_old: bool,
    /// Bytes of the file were lost, or may have been: the next write is told so, and the next flush.
    pub write_owes: bool,
    pub flush_owes: bool,
}

/// A mapping, which keeps its file open.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Mapped {
    pub client: usize,
    pub inode: Id,
    /// As of [`Open`].
    pub is_old: bool,
    pub flush_owes: bool,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) inodes: BTreeMap<Id, Inode>,
    pub(super) open: BTreeMap<Handle, Open>,
    pub(super) mapped: BTreeMap<Handle, Mapped>,
    /// What was found by calls that have not told of it yet, by their numbers.
    pub(super) looked_up: BTreeMap<u64, Id>,
    /// When programs of a client have walked a directory last.
    pub(super) walked: BTreeMap<(usize, Id), u64>,
    /// Calls of which nobody knows whether they have been, or will be, carried out.
    pub(super) maybe: Vec<Maybe>,
    /// The number of the latest loss.
    pub(super) loss: u64,
    /// Programs of mounts only close what they had open when their client's session ended.
    pub(super) reopens: bool,
    /// Files are striped.
    pub(super) stripes: bool,
}

pub(super) type Expected = Result<(), Errno>;

pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, told: &T, expected: &T) -> Result<(), String> {
    if told == expected { Ok(()) } else { Err(format!("{what} {told:?}, not {expected:?}")) }
}

impl Inode {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            links: if kind == Kind::Directory { 2 } else { 1 },
            content: Content::default(),
            entries: BTreeMap::new(),
            renamed_by: None,
            number: None,
            mtime: Mtime::Since(0),
            is_stored: false,
            untold: BTreeSet::new(),
            lossy: BTreeSet::new(),
            gone: Gone::Nothing,
        }
    }

    /// A modification time was told.
    fn see_mtime(&mut self, told: u64) -> Result<(), String> {
        if self.is_stored {
            return Ok(());
        }
        if !self.mtime.holds(told) {
            return Err(format!("mtime {told}, not {:?}", self.mtime));
        }
        if self.mtime != Mtime::Unknown {
            self.mtime = Mtime::Is(told);
        }
        Ok(())
    }
}

impl State {
    /// An empty root.
    pub fn new() -> Self {
        let root = Inode::new(Kind::Directory);
        let inodes = BTreeMap::from([(ROOT, root)]);
        let (open, mapped, looked_up, walked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { inodes, open, mapped, looked_up, walked, maybe: Vec::new(), loss: 0, reopens: false, stripes: false }
    }

    pub(super) fn inode(&self, id: Id) -> &Inode {
        self.inodes.get(&id).expect("an inode that is named or open is there")
    }

    pub(super) fn inode_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("an inode that is named or open is there")
    }

    /// The inode of a path.
    pub fn find(&self, path: &[String]) -> Result<Id, Errno> {
        path.iter().try_fold(ROOT, |id, name| {
            let directory = self.inode(id);
            if directory.kind != Kind::Directory {
                return Err(Errno::ENOTDIR);
            }
            directory.entries.get(name).copied().ok_or(Errno::ENOENT)
        })
    }

    pub(super) fn place<'a>(&self, path: &'a [String]) -> Result<Place<'a>, Errno> {
        let (name, parent) = path.split_last().ok_or(Errno::EBUSY)?;
        let parent = self.find(parent)?;
        if self.inode(parent).kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok((parent, name))
    }

    pub(super) fn entry(&self, (parent, name): Place<'_>) -> Option<Id> {
        self.inode(parent).entries.get(name).copied()
    }

    pub(super) fn is_directory(&self, id: Id) -> bool {
        self.inode(id).kind == Kind::Directory
    }

    /// Names of a directory; none if it is gone.
    pub fn names(&self, directory: Id) -> BTreeSet<String> {
        self.inodes.get(&directory).map(|inode| inode.entries.keys().cloned().collect()).unwrap_or_default()
    }

    /// Whether the directory has a name.
    pub fn is_there(&self, directory: Id) -> bool {
        self.inodes.get(&directory).is_some_and(|inode| inode.links > 0)
    }

    /// The inode that is open under this name, and how.
    pub fn opened(&self, handle: Handle) -> Option<(Id, OpenFlags, Kind)> {
        let open = self.open.get(&handle)?;
        Some((open.inode, open.flags, self.inode(open.inode).kind))
    }

    /// The size of an open file, as far as it is known.
    pub fn size(&self, handle: Handle) -> u64 {
        let inode = self.open.get(&handle).map(|open| self.inode(open.inode));
        inode.map_or(0, |inode| inode.content.sizes().0)
    }

    /// Whether a mapping reaches as far as the call uses it, if it uses one.
    pub fn is_mapped_to_end_of(&self, call: &Call) -> bool {
        let (mapping, end) = match call {
            Call::Load { mapping, offset, size } => (mapping, offset + size),
            Call::Store { mapping, offset, data } => (mapping, offset + data.len() as u64),
            _ => return true,
        };
        self.mapped.get(mapping).is_some_and(|mapped| end <= self.inode(mapped.inode).content.sizes().0)
    }

    /// All that is open, and whose it is.
    pub fn handles(&self) -> impl Iterator<Item = (usize, Handle)> {
        self.open.iter().map(|(handle, open)| (open.client, *handle))
    }

    /// Paths of all files and directories, the root without.
    pub fn paths(&self) -> Vec<(Vec<String>, Kind)> {
        let mut found = Vec::new();
        let mut left = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = left.pop() {
            for (name, child) in &self.inode(id).entries {
                let mut path: Vec<String> = path.clone();
                path.push(name.clone());
                found.push((path.clone(), self.inode(*child).kind));
                left.push((path, *child));
            }
        }
        found
    }

    /// Does what the call does. `Err`: it would not have returned this. `times`: modification times are compared, too.
    /// `taken`: bytes of a write that [`State::write_piece`] has put there; above 0 for a `stat` or `link` whose name
    /// was found by [`State::look_up`].
    pub fn apply(&mut self, (recorded, taken): (&Recorded, u64), told: &CallResult, times: bool) -> Result<(), String> {
        let Recorded { id, call, client, fate, .. } = recorded;
        if taken > 0 && may_take_two_steps(call, told) {
            return self.end_without_name(recorded, told, times);
        }
        if self.is_about_gone(recorded, told) || self.has_failed(recorded, told) || self.may_be_stale(recorded, told) {
            return Ok(());
        }
        let expected = match call {
            Call::Stat { path } => self.find(path).map(Some),
            Call::CountLinks { path } => return self.count_links(path, told),
            Call::Fstat { handle } => self.opened_file(*handle).map(Some),
            Call::Read { .. } | Call::Pread { .. } | Call::Load { .. } => return self.read(recorded, told),
            Call::Write { handle, data } => return self.write((*client, *handle), None, (data, taken), told),
            Call::Pwrite { handle, offset, data } => {
                return self.write((*client, *handle), Some(*offset), (data, taken), told);
            }
            // Held against what lasted, elsewhere.
            Call::Getdents { .. } | Call::Seekdir { .. } => return Ok(()),
            _ => self.change((self.unused(*id), *client), call, fate.loses_session).map(|()| None),
        };
        match (expected, told) {
            (Err(expected), Err(told)) => same("error", told, &expected),
            (Ok(Some(id)), Ok(Value::Attributes(told))) => self.compare(id, told, times),
            (Ok(None), Ok(Value::Done)) => self.note_opened(recorded),
            (expected, told) => Err(format!("told {told:?}, expected {expected:?}")),
        }
    }

    /// An open tells which inode it has opened.
    fn note_opened(&mut self, recorded: &Recorded) -> Result<(), String> {
        let Call::Open { handle, .. } = &recorded.call else { return Ok(()) };
        let (Some(told), Some((id, ..))) = (recorded.opened, self.opened(*handle)) else { return Ok(()) };
        self.number_is(id, told)
    }

    /// The inode has this number, and no other one has.
    fn number_is(&mut self, id: Id, told: u64) -> Result<(), String> {
        let number = *self.inode_mut(id).number.get_or_insert(told);
        same("inode", &told, &number)?;
        let twice = self.inodes.iter().any(|(other, inode)| *other != id && inode.number == Some(number));
        same("another inode with this number", &twice, &false)
    }

    /// The number of an inode that a call makes: it may have made one before.
    pub(super) fn unused(&self, id: Id) -> Id {
        if self.inodes.contains_key(&id) { id | SECOND } else { id }
    }

    pub(super) fn compare(&mut self, id: Id, told: &Attributes, times: bool) -> Result<(), String> {
        self.number_is(id, told.ino)?;
        let inode = self.inode_mut(id);
        same("kind", &told.kind, &inode.kind)?;
        if inode.kind == Kind::Regular {
            same("links", &told.nlink, &inode.links)?;
        }
        if inode.kind == Kind::Regular && inode.gone == Gone::Nothing {
            inode.content.see_size(told.size)?;
            // Lost writes may or may not have changed it.
            if times && !inode.content.has_losses() {
                inode.see_mtime(told.mtime)?;
            }
        }
        Ok(())
    }

    pub(super) fn change(&mut self, (new, client): (Id, usize), call: &Call, loses_session: bool) -> Expected {
        match call {
            Call::Open { path, flags, handle, .. } => self.open((new, client), path, *flags, *handle),
            Call::Close { handle } => {
                let writes = |open: &&Open| open.flags.access.writes() && !loses_session;
                if let Some(id) = self.open.get(handle).filter(writes).map(|open| open.inode) {
                    self.flushed(client, id);
                }
                self.close(*handle)
            }
            Call::Truncate { path, size } => {
                let id = self.find(path)?;
                if self.is_directory(id) {
                    return Err(Errno::EISDIR);
                }
                self.cut(id, *size);
                Ok(())
            }
            Call::Ftruncate { handle, size } => {
                let id = self.opened_file(*handle)?;
                self.cut(id, *size);
                Ok(())
            }
            Call::Fsync { handle, .. } => {
                let id = self.opened_file(*handle)?;
                if !loses_session {
                    self.flushed(client, id);
                }
                Ok(())
            }
            Call::Mkdir { path, .. } => self.make_directory(new, path),
            Call::Unlink { path } => self.unlink(path),
            Call::Rmdir { path } => self.remove_directory(path),
            Call::Link { from, to } => self.link(from, to),
            Call::Rename { from, to, mode } => self.rename(client, (from, to), *mode),
            Call::Map { handle, mapping, .. } => {
                let open = self.open.get(handle).ok_or(Errno::EBADF)?;
                let Open { inode, is_old, flush_owes, .. } = *open;
                self.mapped.insert(*mapping, Mapped { client, inode, is_old, flush_owes });
                Ok(())
            }
            Call::Store { mapping, offset, data } => {
                let id = self.mapped.get(mapping).ok_or(Errno::EBADF)?.inode;
                let inode = self.inode_mut(id);
                inode.content.write(client, *offset, data, false);
                inode.is_stored = true;
                Ok(())
            }
            Call::Msync { mapping } => {
                let id = self.mapped.get(mapping).ok_or(Errno::EBADF)?.inode;
                if !loses_session {
                    self.flushed(client, id);
                }
                Ok(())
            }
            Call::Unmap { mapping } => {
                let id = self.mapped.remove(mapping).ok_or(Errno::EBADF)?.inode;
                self.drop_unused(id);
                Ok(())
            }
            other => unreachable!("{other:?} changes nothing"),
        }
    }

    fn opened_file(&self, handle: Handle) -> Result<Id, Errno> {
        self.open.get(&handle).map(|open| open.inode).ok_or(Errno::EBADF)
    }

    fn add(&mut self, id: Id, (parent, name): Place<'_>, kind: Kind) {
        self.inodes.insert(id, Inode::new(kind));
        self.inode_mut(parent).entries.insert(name.to_owned(), id);
    }

    pub(super) fn close(&mut self, handle: Handle) -> Expected {
        let open = self.open.remove(&handle).ok_or(Errno::EBADF)?;
        self.drop_unused(open.inode);
        Ok(())
    }

    /// A flush of a file went well: what its client has written is there, and if something is lost all the same,
    /// somebody was told.
    fn flushed(&mut self, client: usize, id: Id) {
        let inode = self.inode_mut(id);
        let all = inode.untold.remove(&client);
        inode.lossy.remove(&client);
        inode.content.flush(client, all);
    }

    fn open(&mut self, (new, client): (Id, usize), path: &[String], flags: OpenFlags, handle: Handle) -> Expected {
        let id = self.make_or_find(new, path, flags)?;
        if flags.truncate {
            self.cut(id, 0);
        }
        let owes = self.inode(id).lossy.contains(&client);
        self.open.insert(
            handle,
            Open { client, inode: id, position: 0, flags, is_old: false, write_owes: owes, flush_owes: owes },
        );
        Ok(())
    }

    pub(super) fn make_or_find(&mut self, new: Id, path: &[String], flags: OpenFlags) -> Result<Id, Errno> {
        let id = if flags.create {
            let place = self.place(path)?;
            match self.entry(place) {
                Some(_) if flags.exclusive => return Err(Errno::EEXIST),
                Some(id) => id,
                None => {
                    self.add(new, place, Kind::Regular);
                    new
                }
            }
        } else {
            self.find(path)?
        };
        if self.is_directory(id) && (flags.access.writes() || flags.create || flags.truncate) {
            return Err(Errno::EISDIR);
        }
        Ok(id)
    }

    pub(super) fn cut(&mut self, id: Id, size: u64) {
        let inode = self.inode_mut(id);
        // Whether setting the size that a file has modifies it differs between calls.
        let is_same = inode.content.size() == Some(size) && !matches!(inode.mtime, Mtime::After(_));
        inode.mtime = if is_same { Mtime::Since(inode.mtime.seen()) } else { Mtime::After(inode.mtime.seen()) };
        inode.content.cut(size);
    }

    fn read(&mut self, recorded: &Recorded, told: &CallResult) -> Result<(), String> {
        let call = &recorded.call;
        if let Call::Read { handle, .. } | Call::Pread { handle, .. } = call
            && !self.open.contains_key(handle)
        {
            return same("result", told, &Err(Errno::EBADF));
        }
        let Ok(Value::Data(told)) = told else { return Err(format!("told {told:?}, expected bytes")) };
        let (id, offset, size) = match call {
            Call::Read { handle, size } => {
                let open = self.open.get_mut(handle).ok_or("not open")?;
                let offset = open.position;
                open.position += told.len() as u64;
                (open.inode, offset, *size)
            }
            Call::Pread { handle, offset, size } => (self.open.get(handle).ok_or("not open")?.inode, *offset, *size),
            Call::Load { mapping, offset, size } => {
                (self.mapped.get(mapping).ok_or("not mapped")?.inode, *offset, *size)
            }
            other => unreachable!("{other:?} reads nothing"),
        };
        // What came before an error is told, and the error to the next read (`filemap_read`).
        let may_be_part = !told.is_empty() && self.may_be_told(recorded, Errno::EIO);
        self.inode_mut(id).content.see(offset, if may_be_part { told.len() as u64 } else { size }, told)
    }

    fn write(
        &mut self,
        (client, handle): (usize, Handle),
        offset: Option<u64>,
        (data, taken): (&[u8], u64),
        told: &CallResult,
    ) -> Result<(), String> {
        let open = self.open.get(&handle).ok_or("not open")?;
        let (id, flags, position) = (open.inode, open.flags, open.position);
        same("count", told, &Ok(Value::Count(data.len() as u64)))?;
        let content = &mut self.inode_mut(id).content;
        let at = match offset {
            // Linux appends also what has an offset.
            _ if flags.append => None,
            Some(offset) => Some(offset),
            None => Some(position),
        };
        // What is written directly is there when the call returns.
        let end = match at {
            Some(at) => {
                let rest = &data[usize::try_from(taken).expect("writes are short")..];
                content.write(client, at + taken, rest, flags.direct);
                at
            }
            None => {
                let end = content.sizes().0;
                content.append(client, data, flags.direct);
                end
            }
        };
        if !data.is_empty() {
            self.modified(id);
        }
        if offset.is_none()
            && let Some(open) = self.open.get_mut(&handle)
        {
            open.position = end + data.len() as u64;
        }
        Ok(())
    }

    fn count_links(&self, path: &[String], told: &CallResult) -> Result<(), String> {
        let links = self.find(path).map(|id| Value::Count(self.inode(id).links.into()));
        same("links", told, &links)
    }

    /// Does a part of a write but the last, which [`State::apply`] does.
    pub fn write_piece(&mut self, recorded: &Recorded, part: Range<u64>) -> Result<(), String> {
        let (handle, offset, data) = match &recorded.call {
            Call::Pwrite { handle, offset, data } => (*handle, Some(*offset), data),
            Call::Write { handle, data } => (*handle, None, data),
            other => return Err(format!("{other:?} has no pieces")),
        };
        let open = self.open.get(&handle).ok_or("not open")?;
        let (id, at, kept) = (open.inode, offset.unwrap_or(open.position), open.flags.direct);
        let index = |end: u64| usize::try_from(end).expect("writes are short");
        let content = &mut self.inode_mut(id).content;
        content.write(recorded.client, at + part.start, &data[index(part.start)..index(part.end)], kept);
        self.modified(id);
        Ok(())
    }

    /// Bytes of a file were written. Who writes a striped file without a lease, since others use it or have used it,
    /// may leave the time as it was, at a node whose clock is behind (docs/decisions/0024, "Price").
    fn modified(&mut self, id: Id) {
        let stripes = self.stripes;
        let inode = self.inode_mut(id);
        let may_stay = stripes && !matches!(inode.mtime, Mtime::After(_));
        let seen = inode.mtime.seen();
        inode.mtime = if may_stay { Mtime::Since(seen) } else { Mtime::After(seen) };
    }

    fn make_directory(&mut self, new: Id, path: &[String]) -> Expected {
        let place = self.place(path)?;
        if self.entry(place).is_some() {
            return Err(Errno::EEXIST);
        }
        self.add(new, place, Kind::Directory);
        self.inode_mut(place.0).links += 1;
        Ok(())
    }

    /// Takes a name away; with the last one an inode that nobody has open goes.
    fn take(&mut self, (parent, name): Place<'_>) {
        let Some(id) = self.inode_mut(parent).entries.remove(name) else { return };
        if self.is_directory(id) {
            self.inode_mut(id).links = 0;
            self.inode_mut(parent).links -= 1;
        } else {
            self.inode_mut(id).links -= 1;
        }
        self.drop_unused(id);
    }

    pub(super) fn drop_unused(&mut self, id: Id) {
        let in_use = self.in_use().any(|used| used == id);
        if self.inode(id).links == 0 && !in_use {
            self.inodes.remove(&id);
        }
    }

    fn unlink(&mut self, path: &[String]) -> Expected {
        let place = self.place(path)?;
        let id = self.entry(place).ok_or(Errno::ENOENT)?;
        if self.is_directory(id) {
            return Err(Errno::EISDIR);
        }
        self.take(place);
        Ok(())
    }

    fn remove_directory(&mut self, path: &[String]) -> Expected {
        let place = self.place(path)?;
        let id = self.entry(place).ok_or(Errno::ENOENT)?;
        if !self.is_directory(id) {
            return Err(Errno::ENOTDIR);
        }
        if !self.inode(id).entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(place);
        Ok(())
    }

    /// Whether a directory is another one, or below it.
    pub(super) fn is_within(&self, directory: Id, above: Id) -> bool {
        let children = self.inode(above).entries.values();
        directory == above || children.into_iter().any(|child| self.is_within(directory, *child))
    }

    fn rename(&mut self, client: usize, (from, to): (&[String], &[String]), mode: RenameMode) -> Expected {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let id = self.entry(from).ok_or(Errno::ENOENT)?;
        let replaced = self.entry(to);
        if self.is_within(to.0, id) {
            return Err(Errno::EINVAL);
        }
        match (mode, replaced) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some(other)) => {
                self.inode_mut(from.0).entries.insert(from.1.to_owned(), other);
                self.inode_mut(to.0).entries.insert(to.1.to_owned(), id);
                self.note_renamed(client, &[id, other]);
                return Ok(());
            }
            _ => {}
        }
        if replaced == Some(id) {
            return Ok(());
        }
        if let Some(other) = replaced {
            match (self.is_directory(id), self.is_directory(other)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.inode(other).entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            self.take(to);
        }
        self.inode_mut(from.0).entries.remove(from.1);
        self.inode_mut(to.0).entries.insert(to.1.to_owned(), id);
        self.note_renamed(client, &[id]);
        if self.is_directory(id) {
            self.inode_mut(from.0).links -= 1;
            self.inode_mut(to.0).links += 1;
        }
        Ok(())
    }
}
