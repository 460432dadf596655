//! An open file of a group, in one of the processes that use it.
//!
//! Bytes go by the group's rights, without a word to the shard. When these turn out to be void, because the group has
//! ended or the file's objects have moved, the file is opened as any other is, and used so from then on. That also
//! serves what a group has no handle for: locks.

use crate::block_on::block_on;
use crate::file::OpenOptions;
use crate::native::NativeShell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_client_core::{Files, FlushFor, GroupHandle, Handle, ReadList};
use weft_protocol::{Credentials, Error, GroupOpen, InodeNumber, Result};
use weft_transport::Registration;

/// See the module.
pub(crate) struct Member {
    pub inode: InodeNumber,
    pub options: OpenOptions,
    pub who: Credentials,
    /// `None`: there were no rights to begin with.
    group: Option<GroupHandle<NativeShell>>,
    /// The rights are void.
    is_over: AtomicBool,
    own: OnceLock<Handle<NativeShell>>,
}

impl Member {
    /// Joins a group.
    pub fn join(
        files: &Files<NativeShell>,
        who: &Credentials,
        open: GroupOpen,
        registration: Option<Registration>,
    ) -> Result<Self> {
        let (inode, append) = (open.inode, open.append);
        let options = OpenOptions { append, registration, ..OpenOptions::of(open.access) };
        let group = files.join_group(open, registration)?;
        let (is_over, own) = (AtomicBool::new(group.is_none()), OnceLock::new());
        let member = Self { inode, options, who: who.clone(), group, is_over, own };
        match member.group {
            Some(_) => block_on(files.attend_groups()),
            None => drop(member.own(files)?),
        }
        Ok(member)
    }

    /// The open that others may join.
    pub fn exported(&self) -> Option<&GroupOpen> {
        self.in_use().map(|group| &group.open)
    }

    fn in_use(&self) -> Option<&GroupHandle<NativeShell>> {
        self.group.as_ref().filter(|_| !self.is_over.load(Ordering::Acquire))
    }

    /// Whether the error says that the rights are void: then they are not used again.
    fn ends_with(&self, error: &Error) -> bool {
        let is_over = matches!(error, Error::NoObject | Error::CapabilityRejected);
        if is_over {
            self.is_over.store(true, Ordering::Release);
        }
        is_over
    }

    /// The file as this process has opened it itself; it does so now, if it has not before.
    pub fn own(&self, files: &Files<NativeShell>) -> Result<&Handle<NativeShell>> {
        if let Some(own) = self.own.get() {
            return Ok(own);
        }
        let opened = block_on(files.open(&self.who, self.inode, self.options))?;
        if let Err(second) = self.own.set(opened) {
            block_on(files.close_handle(&second));
        }
        Ok(self.own.get().expect("it was set above, by this thread or another"))
    }

    pub fn read_at(&self, files: &Files<NativeShell>, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(group) = self.in_use() {
            match block_on(group.read_at(&files.objects, buffer, offset)) {
                Err(error) if self.ends_with(&error) => {}
                result => return result,
            }
        }
        block_on(self.own(files)?.read_at(&files.objects, buffer, offset))
    }

    pub fn write_at(&self, files: &Files<NativeShell>, bytes: &[u8], offset: u64) -> Result<()> {
        if let Some(group) = self.in_use() {
            match block_on(group.write_at(&files.objects, bytes, offset)) {
                Err(error) if self.ends_with(&error) => {}
                result => return result,
            }
        }
        block_on(self.own(files)?.write_at(&files.objects, bytes, offset)).map(drop)
    }

    pub fn read_list(&self, files: &Files<NativeShell>, list: &mut dyn ReadList) -> Result<usize> {
        if let Some(group) = self.in_use() {
            match block_on(group.read_list(&files.objects, list)) {
                Err(error) if self.ends_with(&error) => {}
                result => return result,
            }
        }
        block_on(self.own(files)?.read_list(&files.objects, list))
    }

    pub fn write_list(&self, files: &Files<NativeShell>, list: &[(&[u8], u64)]) -> Result<()> {
        if let Some(group) = self.in_use() {
            match block_on(group.write_list(&files.objects, list)) {
                Err(error) if self.ends_with(&error) => {}
                result => return result,
            }
        }
        let own = self.own(files)?;
        for (bytes, offset) in list {
            block_on(own.write_at(&files.objects, bytes, *offset))?;
        }
        Ok(())
    }

    pub fn size(&self, files: &Files<NativeShell>) -> Result<u64> {
        if let Some(group) = self.in_use() {
            match block_on(group.size(&files.objects)) {
                Err(error) if self.ends_with(&error) => {}
                result => return result,
            }
        }
        block_on(self.own(files)?.size(&files.objects))
    }

    /// What is written by the group's rights is at the servers already.
    pub fn flush(&self, files: &Files<NativeShell>) -> Result<()> {
        self.own.get().map_or(Ok(()), |own| block_on(own.open.flush(&files.objects, FlushFor::Program)))
    }

    pub fn sync(&self, files: &Files<NativeShell>) -> Result<()> {
        if let Some(group) = self.in_use() {
            match block_on(group.sync(&files.objects)) {
                Err(error) if self.ends_with(&error) => {}
                result => result?,
            }
        }
        // Also what was written by the group's rights, where these have become void since.
        let own = if self.in_use().is_some() { self.own.get() } else { Some(self.own(files)?) };
        own.map_or(Ok(()), |own| block_on(own.open.sync(&files.objects)))
    }

    pub fn close(&self, files: &Files<NativeShell>) {
        if let Some(own) = self.own.get() {
            block_on(files.close_handle(own));
        }
        if let Some(group) = &self.group {
            files.leave_group(group.open.group);
        }
    }
}
