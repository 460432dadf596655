//! Contents, positions, mappings and locks of open files.

use super::{Answer, Expected, Id, Interval, Kind, Model, Mtime};
use crate::call::{Access, Call, HandleId, LockHow, Whence, WorkerId};
use rustix::io::Errno;

impl Model {
    /// Closes a handle and returns its inode.
    pub(super) fn close(&mut self, key: (WorkerId, HandleId)) -> Option<Id> {
        let id = self.handles.remove(&key)?.inode;
        self.inode(id).locks.remove(&key);
        self.collect();
        Some(id)
    }

    pub(super) fn apply_to_handle(&mut self, key: (WorkerId, HandleId), call: &Call, at: Interval) -> Answer {
        let handle = self.handles.get(&key).ok_or(Errno::BADF)?.clone();
        let id = handle.inode;
        match call {
            Call::Close { .. } => {
                self.close(key);
            }
            Call::Read { bytes, .. } => {
                let position = handle.position.ok_or(Errno::SPIPE)?;
                let read = self.read(&handle, position, *bytes)?;
                self.move_to(key, Some(position + read.len() as u64));
                return Ok(Expected::Bytes(read));
            }
            Call::ReadAt { offset, bytes, .. } => return self.read(&handle, *offset, *bytes).map(Expected::Bytes),
            Call::Write { bytes, value, .. } => {
                // Of an append handle it does not matter where it is.
                let end = self.write(&handle, handle.position.unwrap_or(0), (*bytes, *value), at)?;
                let is_guessed = handle.append && self.allowances.append_positions;
                self.move_to(key, (!is_guessed).then_some(end));
                return Ok(Expected::Count(*bytes));
            }
            Call::WriteAt { offset, bytes, value, .. } => {
                self.write(&handle, *offset, (*bytes, *value), at)?;
                return Ok(Expected::Count(*bytes));
            }
            Call::Seek { whence, offset, .. } => {
                let from = match whence {
                    Whence::Set => 0,
                    Whence::Current => handle.position.ok_or(Errno::SPIPE)?,
                    Whence::End => self.contents(id).len() as u64,
                };
                let to = from.checked_add_signed(*offset).ok_or(Errno::INVAL)?;
                self.move_to(key, Some(to));
                return Ok(Expected::Count(to));
            }
            Call::TruncateHandle { size, .. } => {
                if handle.access == Access::Read {
                    return Err(Errno::INVAL);
                }
                return self.resize(id, *size, at);
            }
            Call::StatHandle { .. } => return Ok(Expected::Stat(id)),
            Call::ChangeModeHandle { mode, .. } => self.inode(id).mode = *mode,
            Call::Rewind { .. } => {
                let listing = Some(self.begin_listing(id)?);
                self.handles.entry(key).and_modify(|handle| handle.listing = listing);
            }
            Call::MapRead { offset, bytes, .. } => {
                if handle.access == Access::Write {
                    return Err(Errno::ACCESS);
                }
                return self.read(&handle, *offset, *bytes).map(Expected::Bytes);
            }
            Call::MapWrite { offset, bytes, value, .. } => {
                if handle.access != Access::ReadWrite {
                    return Err(Errno::ACCESS);
                }
                self.store(id, *offset, (*bytes, *value));
                // When a store counts as a modification is open between the fault and msync.
                self.inode(id).mtime = Mtime::Any;
            }
            Call::Map { bytes, .. } => {
                self.handles.entry(key).and_modify(|handle| handle.mapped = Some(*bytes));
            }
            Call::Load { offset, bytes, .. } => return self.read(&handle, *offset, *bytes).map(Expected::Bytes),
            Call::Unmap { .. } => {
                self.handles.entry(key).and_modify(|handle| handle.mapped = None);
            }
            Call::Lock { how, .. } => return self.lock(key, id, *how),
            _ => {}
        }
        Ok(Expected::Done)
    }

    fn contents(&self, id: Id) -> &[u8] {
        match &self.inodes[&id].kind {
            Kind::File(bytes) => bytes,
            Kind::Directory(_) => &[],
        }
    }

    fn move_to(&mut self, key: (WorkerId, HandleId), position: Option<u64>) {
        self.handles.entry(key).and_modify(|handle| handle.position = position);
    }

    fn read(&self, handle: &super::Handle, offset: u64, bytes: u64) -> Result<Vec<u8>, Errno> {
        if handle.access == Access::Write {
            return Err(Errno::BADF);
        }
        let contents = self.contents(handle.inode);
        let start = contents.len().min(offset as usize);
        let end = contents.len().min(offset.saturating_add(bytes) as usize);
        Ok(contents[start..end].to_vec())
    }

    /// Writes and returns the position after it. Of an append handle, pwrite appends too (a bug of Linux by its own
    /// manual, which programs have come to rely on).
    fn write(
        &mut self,
        handle: &super::Handle,
        offset: u64,
        (bytes, value): (u64, u8),
        at: Interval,
    ) -> Result<u64, Errno> {
        if handle.access == Access::Read {
            return Err(Errno::BADF);
        }
        let offset = if handle.append { self.contents(handle.inode).len() as u64 } else { offset };
        if bytes > 0 {
            self.store(handle.inode, offset, (bytes, value));
            self.inode(handle.inode).mtime = Mtime::Since(at.begun);
        }
        Ok(offset + bytes)
    }

    fn store(&mut self, id: Id, offset: u64, (bytes, value): (u64, u8)) {
        if let Kind::File(contents) = &mut self.inode(id).kind {
            let (start, end) = (offset as usize, (offset + bytes) as usize);
            contents.resize(contents.len().max(end), 0);
            contents[start..end].fill(value);
        }
    }

    /// Sets a file's size.
    pub(super) fn resize(&mut self, id: Id, size: u64, at: Interval) -> Answer {
        let inode = self.inode(id);
        let Kind::File(contents) = &mut inode.kind else { return Err(Errno::ISDIR) };
        // Whether setting the size that a file has modifies it differs between calls and file systems.
        inode.mtime = if contents.len() as u64 == size { Mtime::Any } else { Mtime::Since(at.begun) };
        contents.resize(size as usize, 0);
        Ok(Expected::Done)
    }

    fn lock(&mut self, key: (WorkerId, HandleId), id: Id, how: LockHow) -> Answer {
        let locks = &mut self.inode(id).locks;
        if how == LockHow::Unlock {
            locks.remove(&key);
            return Ok(Expected::Done);
        }
        let conflicts = |(other, held): (&(WorkerId, HandleId), &LockHow)| {
            *other != key && (how == LockHow::Exclusive || *held == LockHow::Exclusive)
        };
        if locks.iter().any(conflicts) {
            // Linux gives up a lock before it converts it.
            locks.remove(&key);
            return Err(Errno::AGAIN);
        }
        locks.insert(key, how);
        Ok(Expected::Done)
    }
}
