//! What errors, ended sessions and the death of clients leave open.

use super::Recorded;
use super::mtime::Mtime;
use super::posix::{Id, Mapped, Open, State};
use crate::kernel::calls::mapping::BUS_ERROR;
use crate::kernel::requests::Errno;
use crate::kernel::{Call, CallResult, Handle, Value};
use crate::system_calls::NATIVE;

/// A call that may be, or have been, carried out though nobody was told so.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Maybe {
    id: Id,
    client: usize,
    /// It changes names.
    call: Call,
    /// Of a `link`: the inode that it has found, and links whatever becomes of the name.
    linked: Option<Id>,
    loss: u64,
}

/// Whether a call changes names, and may do so without its result.
fn changes_names(call: &Call) -> bool {
    match call {
        Call::Open { flags, .. } => flags.create || flags.truncate,
        Call::Mkdir { .. } | Call::Unlink { .. } | Call::Rmdir { .. } | Call::Link { .. } | Call::Rename { .. } => true,
        _ => false,
    }
}

impl State {
    /// Whether the call failed, as a whole or in part, and may: what it changes may be done or not.
    pub(super) fn has_failed(&mut self, recorded: &Recorded, told: &CallResult) -> bool {
        let Recorded { call, client, .. } = recorded;
        let data = match call {
            Call::Write { data, .. } | Call::Pwrite { data, .. } => data.len() as u64,
            _ => 0,
        };
        let may = match told {
            Ok(Value::Count(count)) if *count < data => recorded.fate.may_fail || recorded.fate.may_be_full,
            Err(errno) => self.may_be_told(recorded, *errno),
            Ok(_) => false,
        };
        if !may {
            return false;
        }
        let arrived = if let Ok(Value::Count(count)) = told { *count } else { 0 };
        // A close that fails closes, and does not use the file any more.
        let used = self.used_by(call);
        let is_known = self.fails(recorded, arrived);
        let used = used.filter(|_| told.is_err());
        if let Some(inode) = used.and_then(|id| self.inodes.get_mut(&id)) {
            inode.untold.remove(client);
            inode.content.told(*client);
        }
        if let Some(mapped) =
            mapping_of(call).and_then(|mapping| self.mapped.get_mut(&mapping)).filter(|_| told.is_err())
        {
            mapped.flush_owes = false;
        }
        if let Some(open) = handle_of(call).and_then(|handle| self.open.get_mut(&handle)) {
            match (call, told) {
                // A flush reports the error again; after a short count it reports it for the first time.
                (Call::Write { .. } | Call::Pwrite { .. }, Err(_)) => {
                    (open.write_owes, open.flush_owes) = (false, true);
                }
                (Call::Write { .. } | Call::Pwrite { .. }, Ok(_)) => open.flush_owes = true,
                (_, Err(Errno::EIO)) => open.flush_owes = false,
                // An error of its own.
                _ => {}
            }
        }
        is_known
    }

    /// Whether the program may be told of this error, whatever it asked for.
    pub(super) fn may_be_told(&self, recorded: &Recorded, errno: Errno) -> bool {
        let fate = &recorded.fate;
        let open = handle_of(&recorded.call).and_then(|handle| self.open.get(&handle));
        let mapped = mapping_of(&recorded.call).and_then(|mapping| self.mapped.get(&mapping));
        let of_open = |open: &Open| (open.inode, open.is_old, open.write_owes || open.flush_owes);
        let of_mapped = |mapped: &Mapped| (mapped.inode, mapped.is_old, mapped.flush_owes);
        let used = open.map(of_open).or_else(|| mapped.map(of_mapped));
        let (is_gone, is_owed) =
            used.map_or((false, false), |(inode, is_old, is_owed)| (is_old && self.inode(inode).links == 0, is_owed));
        match errno {
            Errno::EIO => fate.may_fail || is_gone || is_owed,
            Errno::ENOSPC => fate.may_be_full,
            // SIGBUS, whatever the error was for which the page could not be read.
            BUS_ERROR => {
                let accesses = matches!(recorded.call, Call::Load { .. } | Call::Store { .. });
                accesses && (fate.may_fail || fate.may_be_full || is_gone)
            }
            Errno::ESTALE | Errno::EBADF => is_gone,
            _ => false,
        }
    }

    fn used_by(&self, call: &Call) -> Option<Id> {
        match call {
            Call::Truncate { path, .. } | Call::Open { path, .. } => self.find(path).ok(),
            _ => {
                let open = handle_of(call).and_then(|handle| self.open.get(&handle)).map(|open| open.inode);
                let mapped = || mapping_of(call).and_then(|mapping| self.mapped.get(&mapping));
                open.or_else(|| mapped().map(|mapped| mapped.inode))
            }
        }
    }

    /// A call fails of which so many bytes were told to have arrived. `false`: it is none that may.
    fn fails(&mut self, recorded: &Recorded, arrived: u64) -> bool {
        let Recorded { id: new, call, client, .. } = recorded;
        let (client, loss) = (*client, self.loss);
        let Some(id) = self.used_by(call) else {
            // The file may be there all the same.
            let makes = matches!(call, Call::Open { flags, .. } if flags.create);
            if makes {
                self.add_maybe(*new, client, call.clone());
            }
            return makes;
        };
        match call {
            Call::Read { .. } | Call::Pread { .. } | Call::Load { .. } | Call::Fstat { .. } => {}
            Call::Write { handle, data } => {
                let Some(open) = self.open.get_mut(handle) else { return false };
                let (position, append) = (open.position, open.flags.append);
                open.position += arrived;
                self.write_fails((client, id), (!append).then_some(position), data, arrived);
            }
            Call::Pwrite { handle, offset, data } => {
                let append = self.open.get(handle).is_some_and(|open| open.flags.append);
                self.write_fails((client, id), (!append).then_some(*offset), data, arrived);
            }
            Call::Store { offset, data, .. } => self.write_fails((client, id), Some(*offset), data, 0),
            Call::Truncate { size, .. } | Call::Ftruncate { size, .. } => {
                self.inode_mut(id).content.fail_cut(*size, loss);
                self.inode_mut(id).mtime = Mtime::Unknown;
            }
            Call::Open { flags, .. } => {
                if flags.truncate {
                    self.inode_mut(id).content.fail_cut(0, loss);
                    self.inode_mut(id).mtime = Mtime::Unknown;
                }
            }
            Call::Fsync { .. } | Call::Msync { .. } => self.unflushed_is_lost(client, id),
            Call::Close { handle } => {
                self.unflushed_is_lost(client, id);
                return self.close(*handle).is_ok();
            }
            Call::Unmap { mapping } => {
                self.unflushed_is_lost(client, id);
                self.mapped.remove(mapping);
                self.drop_unused(id);
            }
            _ => return false,
        }
        true
    }

    fn write_fails(&mut self, (client, id): (usize, Id), offset: Option<u64>, data: &[u8], arrived: u64) {
        let loss = self.loss;
        let (came, failed) = data.split_at(usize::try_from(arrived).expect("writes are short"));
        let inode = self.inode_mut(id);
        inode.mtime = Mtime::Unknown;
        match offset {
            Some(offset) => {
                inode.content.write(client, offset, came, false);
                inode.content.fail_write(Some(offset + arrived), failed, loss);
            }
            None => {
                inode.content.append(client, came, false);
                inode.content.fail_write(None, failed, loss);
            }
        }
    }

    fn unflushed_is_lost(&mut self, client: usize, id: Id) {
        let loss = self.loss;
        let inode = self.inode_mut(id);
        if inode.content.lose(client, loss) {
            inode.mtime = Mtime::Unknown;
        }
    }

    /// What a client has not flushed may be lost: of one inode (by its number, which is known of all that was ever
    /// open), or all with its session.
    pub fn lose(&mut self, client: usize, of: Option<u64>, loss: u64) {
        self.loss = loss;
        let is_meant = |number: Option<u64>| of.is_none() || number == of;
        for inode in self.inodes.values_mut() {
            let number = inode.number;
            if is_meant(number) || number.is_none() {
                inode.lossy.insert(client);
            }
            if is_meant(number) && inode.content.lose(client, loss) {
                inode.untold.insert(client);
                inode.mtime = Mtime::Unknown;
            }
        }
        for open in self.open.values_mut().filter(|open| open.client == client) {
            let number = self.inodes.get(&open.inode).and_then(|inode| inode.number);
            open.is_old |= of.is_none();
            if is_meant(number) {
                (open.write_owes, open.flush_owes) = (true, true);
            }
        }
        for mapped in self.mapped.values_mut().filter(|mapped| mapped.client == client) {
            let number = self.inodes.get(&mapped.inode).and_then(|inode| inode.number);
            mapped.is_old |= of.is_none();
            mapped.flush_owes |= is_meant(number);
        }
    }

    /// Whether a call of a mount's program uses what it had open when its client's session ended, other than to close
    /// it: a kernel that was passed a descriptor may go on with a file that is no object's any more.
    pub(super) fn is_of_ended_session(&self, call: &Call) -> bool {
        let handle = match call {
            Call::Close { .. } | Call::Unmap { .. } => return false,
            Call::Map { handle, .. } => Some(*handle),
            _ => handle_of(call),
        };
        let open = handle.and_then(|handle| self.open.get(&handle)).map(|open| (open.client, open.is_old));
        let mapped = mapping_of(call).and_then(|mapping| self.mapped.get(&mapping));
        let used = open.or_else(|| mapped.map(|mapped| (mapped.client, mapped.is_old)));
        used.is_some_and(|(client, is_old)| is_old && client != NATIVE)
    }

    /// A session of the client has ended, under which it opened what it has open: files without a name are gone for it.
    pub fn session_over(&mut self, client: usize) {
        self.open.values_mut().filter(|open| open.client == client).for_each(|open| open.is_old = true);
        self.mapped.values_mut().filter(|mapped| mapped.client == client).for_each(|mapped| mapped.is_old = true);
    }

    /// A client has died, and its session will end.
    pub fn died(&mut self, client: usize, loss: u64) {
        self.lose(client, None, loss);
        let mapped = self.mapped.extract_if(.., |_, mapped| mapped.client == client).map(|(_, mapped)| mapped.inode);
        let mut used: Vec<Id> = mapped.collect();
        used.extend(self.open.extract_if(.., |_, open| open.client == client).map(|(_, open)| open.inode));
        used.sort_unstable();
        used.dedup();
        used.into_iter().for_each(|id| self.drop_unused(id));
        for inode in self.inodes.values_mut() {
            inode.untold.remove(&client);
            inode.lossy.remove(&client);
            inode.content.told(client);
        }
    }

    /// What a client has not flushed of an inode, or of all, may be lost, of what this round has written too.
    pub fn lose_unflushed(&mut self, client: usize, of: Option<u64>) {
        let loss = self.loss;
        for inode in self.inodes.values_mut().filter(|inode| of.is_none() || inode.number == of) {
            if inode.content.lose(client, loss) {
                inode.untold.insert(client);
                inode.mtime = Mtime::Unknown;
            }
        }
    }

    /// A call that nobody was told the result of.
    pub fn may_have_made(&mut self, recorded: &Recorded) {
        let Recorded { id: new, call, client, .. } = recorded;
        if changes_names(call) {
            return self.add_maybe(*new, *client, call.clone());
        }
        // As one that fails: a descriptor is closed all the same.
        let used = self.used_by(call);
        self.fails(recorded, 0);
        // Its program got an error, unless it died: of a loss from before, it may be.
        if let Some(inode) = used.and_then(|id| self.inodes.get_mut(&id)) {
            inode.untold.remove(client);
            inode.content.told(*client);
        }
    }

    /// An open whose session has ended may have made, or cut, a file that was gone when the next one opened it: then it
    /// has opened what its name meant.
    pub fn may_make_twice(&mut self, recorded: &Recorded) {
        let has_opened = matches!(recorded.returned, Some((_, Ok(_))));
        if has_opened && matches!(recorded.call, Call::Open { .. }) && changes_names(&recorded.call) {
            self.add_maybe(recorded.id, recorded.client, recorded.call.clone());
        }
    }

    fn add_maybe(&mut self, id: Id, client: usize, call: Call) {
        let linked = match &call {
            Call::Link { from, .. } => match self.find(from) {
                Ok(id) => Some(id),
                Err(_) => return,
            },
            _ => None,
        };
        self.maybe.push(Maybe { id, client, call, linked, loss: self.loss });
    }

    /// How many calls may be carried out at any time.
    pub fn maybe_count(&self) -> usize {
        self.maybe.len()
    }

    /// Calls on names of which nobody knows whether they were made.
    pub fn maybe_calls(&self) -> impl Iterator<Item = &Call> {
        self.maybe.iter().map(|maybe| &maybe.call)
    }

    /// One of these is carried out. `false`: it would do nothing.
    pub fn carry_out(&mut self, at: usize) -> bool {
        let Maybe { id, client, call, linked, .. } = self.maybe.remove(at);
        let new = self.unused(id);
        match call {
            Call::Open { path, flags, .. } => {
                let was_there = self.find(&path).is_ok();
                let Ok(of) = self.make_or_find(new, &path, flags) else { return false };
                if flags.truncate {
                    self.cut(of, 0);
                }
                flags.truncate || !was_there
            }
            Call::Link { to, .. } => linked.is_some_and(|id| self.link_found(id, &to).is_ok()),
            call => self.change((new, client), &call, true).is_ok(),
        }
    }

    /// Nothing of these losses is on its way any more.
    pub fn settle(&mut self, is_settled: impl Fn(u64) -> bool) {
        self.maybe.retain(|maybe| !is_settled(maybe.loss));
        for inode in self.inodes.values_mut() {
            inode.content.settle(&is_settled);
        }
    }
}

/// The open regular file that a call is about.
pub(super) fn handle_of(call: &Call) -> Option<Handle> {
    match call {
        Call::Close { handle }
        | Call::Read { handle, .. }
        | Call::Pread { handle, .. }
        | Call::Write { handle, .. }
        | Call::Pwrite { handle, .. }
        | Call::Ftruncate { handle, .. }
        | Call::Fsync { handle, .. }
        | Call::Fstat { handle } => Some(*handle),
        _ => None,
    }
}

/// The mapping that a call is about.
pub(super) fn mapping_of(call: &Call) -> Option<Handle> {
    match call {
        Call::Load { mapping, .. }
        | Call::Store { mapping, .. }
        | Call::Msync { mapping }
        | Call::Unmap { mapping } => Some(*mapping),
        _ => None,
    }
}
