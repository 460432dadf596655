//! Open files.

use crate::block_on::{block_on, lock};
use crate::client::{Client, Connected};
use crate::native::NativeShell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft_client_core::{Entry, FlushFor, GroupWish, Handle, Member, Objects, OpenedFile, ReadList};
use weft_protocol::limits::CAPABILITY_TERM_SECONDS;
use weft_protocol::message::shard::CreateFile;
use weft_protocol::{
    AttributeChanges, Credentials, Error, GroupOpen, InodeNumber, Name, Plan, Publication, Result, routing,
};
use weft_transport::Registration;

/// After this time a handle is exported for another group: the rights of one end with an hour.
const EXPORTED_ANEW_AFTER: Duration = Duration::from_secs(CAPABILITY_TERM_SECONDS as u64 / 2);

/// How a file is opened.
pub type OpenOptions = weft_client_core::OpenOptions<Registration>;

/// What is chosen for a file that is imported.
pub type JoinOptions = weft_client_core::JoinOptions<Registration>;

/// An open file. Shared by any number of threads. Dropping it without [`File::close`] loses errors of buffered writes.
#[derive(Clone)]
pub struct File(pub(crate) Arc<OpenFile>);

pub(crate) struct OpenFile {
    pub client: Arc<Connected>,
    opened: Opened,
    /// What other processes were told, and since when, once they were.
    exported: Mutex<Option<(GroupOpen, Instant)>>,
}

#[expect(clippy::large_enum_variant, reason = "the small one is rare, and boxed for that")]
enum Opened {
    /// By this client.
    Own(Handle<NativeShell>),
    /// By a group that it has joined.
    OfGroup(Box<Member<NativeShell>>),
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let files = &self.client.0;
        match &self.opened {
            Opened::Own(handle) => block_on(files.close_handle(handle)),
            Opened::OfGroup(member) => block_on(member.close(files)),
        }
        if let Some((exported, _)) = &*lock(&self.exported) {
            files.leave_group(exported.group);
        }
    }
}

impl OpenFile {
    fn objects(&self) -> &Objects<NativeShell> {
        &self.client.0.objects
    }

    /// The handle of this client itself, which a member of a group opens when it first needs it.
    pub fn own(&self) -> Result<&Handle<NativeShell>> {
        match &self.opened {
            Opened::Own(handle) => Ok(handle),
            Opened::OfGroup(member) => block_on(member.own(&self.client.0)),
        }
    }

    fn inode(&self) -> InodeNumber {
        match &self.opened {
            Opened::Own(handle) => handle.open.inode,
            Opened::OfGroup(member) => member.inode,
        }
    }
}

/// A file in the hands of a kernel. To be dropped when the kernel has closed it.
pub struct Lent {
    file: Arc<OpenFile>,
    descriptor: Arc<OwnedFd>,
    may_write: bool,
}

impl Lent {
    /// Of the object's file.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether the kernel may write through it, if the handle writes at all. Otherwise writes have to come here.
    pub fn may_write(&self) -> bool {
        self.may_write
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Opened::Own(handle) = &self.file.opened {
            block_on(handle.open.lent_back(self.file.objects(), self.may_write));
        }
    }
}

impl Client {
    /// Opens an inode. One message.
    pub fn open(&self, who: &Credentials, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        let handle = block_on(self.0.0.open(who, inode, options))?;
        Ok(self.file(handle))
    }

    /// Opens a name, and makes it when it is not there and `create` says how. One message for both.
    pub fn open_at(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        options: OpenOptions,
        create: Option<CreateFile>,
    ) -> Result<(File, Entry)> {
        let (handle, entry) = block_on(self.0.0.open_at(who, parent, name, options, create))?;
        Ok((self.file(handle), entry))
    }

    /// As [`Client::open_at`], for a group if the file is one that `wish` is about: by the same message. Then
    /// [`File::export`] costs none, and the file is open as an imported one is.
    pub fn open_for_group(
        &self,
        who: &Credentials,
        place: (InodeNumber, &Name),
        options: OpenOptions,
        create: Option<CreateFile>,
        wish: GroupWish,
    ) -> Result<File> {
        Ok(match block_on(self.0.0.open_for_group(who, place, options, create, wish))? {
            OpenedFile::Own(handle, _) => self.file(handle),
            OpenedFile::OfGroup(member) => self.opened(Opened::OfGroup(member)),
        })
    }

    fn file(&self, handle: Handle<NativeShell>) -> File {
        self.opened(Opened::Own(handle))
    }

    fn opened(&self, opened: Opened) -> File {
        File(Arc::new(OpenFile { client: Arc::clone(&self.0), opened, exported: Mutex::default() }))
    }

    /// Opens a file that another process has exported ([`File::export`]), with the access of that handle. The shard
    /// knows when this returns, and was not asked for anything: one message, to its node. Also returns how it is open.
    ///
    /// # Errors
    /// [`Error::Malformed`]: these are no bytes of a handle of this version; [`Error::CapabilityRejected`]: they were
    /// made with the key of another user or file system, or are damaged.
    pub fn import(&self, who: &Credentials, exported: &[u8], options: JoinOptions) -> Result<(File, GroupOpen)> {
        let open = GroupOpen::from_bytes(exported, &self.0.shell().identity.key)?;
        let files = &self.0.0;
        let member = block_on(Member::join(files, who, open.clone(), options))?;
        // Where the shard is away the rights may be good all the same.
        drop(block_on(files.calls().renew_at(routing::of_inode(open.inode))));
        Ok((self.opened(Opened::OfGroup(Box::new(member))), open))
    }
}

impl File {
    /// The inode that is open.
    pub fn inode(&self) -> InodeNumber {
        self.0.inode()
    }

    /// How the file is laid out, as of its open or what was heard since. No message.
    pub fn plan(&self) -> Plan {
        match &self.0.opened {
            Opened::Own(handle) => block_on(handle.open.plan()),
            Opened::OfGroup(member) => member.plan,
        }
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let handle = match &self.0.opened {
            Opened::Own(handle) => handle,
            Opened::OfGroup(member) => return block_on(member.read_at(&self.0.client.0, buffer, offset)),
        };
        if handle.read_at_hand(self.0.objects(), buffer, offset) {
            return Ok(buffer.len());
        }
        block_on(handle.read_at(self.0.objects(), buffer, offset))
    }

    /// Passes bytes at an offset to `give` where they lie: in memory of a connection, to which they were prefetched;
    /// waits for those in flight. As many as [`File::read_at`] would read. `false`: they lie nowhere in one piece;
    /// `give` was not called, and `read_at` has to get them. `give` must not use this file.
    pub fn read_in_place(&self, bytes: usize, offset: u64, give: &mut dyn FnMut(&[u8])) -> bool {
        let Opened::Own(handle) = &self.0.opened else { return false };
        block_on(handle.read_in_place(self.0.objects(), bytes, offset, give))
    }

    /// Writes all bytes at an offset (of an append handle: at the end). Errors of earlier buffered writes may show
    /// here.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let handle = match &self.0.opened {
            Opened::Own(handle) => handle,
            Opened::OfGroup(member) => return block_on(member.write_at(&self.0.client.0, bytes, offset)).map(drop),
        };
        if handle.write_at_hand(self.0.objects(), bytes, offset) {
            return Ok(());
        }
        block_on(handle.write_at(self.0.objects(), bytes, offset)).map(|_| ())
    }

    /// Reads pieces, in their order, until the end of the file cuts one. Returns the sum of bytes. What comes from a
    /// storage server is read with several requests under way.
    pub fn read_list(&self, list: &mut dyn ReadList) -> Result<usize> {
        match &self.0.opened {
            Opened::Own(handle) => block_on(handle.read_list(self.0.objects(), list)),
            Opened::OfGroup(member) => block_on(member.read_list(&self.0.client.0, list)),
        }
    }

    /// Writes pieces, each its bytes and an offset, in their order.
    pub fn write_list(&self, list: &[(&[u8], u64)]) -> Result<()> {
        match &self.0.opened {
            Opened::Own(handle) => block_on(handle.write_list(self.0.objects(), list)),
            Opened::OfGroup(member) => block_on(member.write_list(&self.0.client.0, list)),
        }
    }

    /// Cuts the file, or extends it with zeros: `ftruncate`. On behalf of the user who opened this handle; the user's
    /// own file also when its mode forbids writing by now.
    pub fn truncate(&self, size: u64) -> Result<()> {
        let (who, options) = match &self.0.opened {
            Opened::Own(handle) => (&*handle.who, &handle.options),
            Opened::OfGroup(member) => (&member.who, &member.options),
        };
        if !options.access.writes() {
            return Err(Error::BadHandle);
        }
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        block_on(self.0.client.0.set_attributes(who, self.inode(), &changes)).map(|_| ())
    }

    /// Current size of the file, as this handle sees it.
    pub fn size(&self) -> Result<u64> {
        match &self.0.opened {
            Opened::Own(handle) => block_on(handle.size(self.0.objects())),
            Opened::OfGroup(member) => block_on(member.size(&self.0.client.0)),
        }
    }

    /// Sends what is buffered and reports size and time to the shard: what `close` does, without closing.
    pub fn flush(&self) -> Result<()> {
        match &self.0.opened {
            Opened::Own(handle) => {
                block_on(handle.open.flush(self.0.objects(), FlushFor::Program))?;
                handle.check_locks(&self.0.objects().calls)
            }
            Opened::OfGroup(member) => block_on(member.flush(&self.0.client.0)),
        }
    }

    /// What this handle, which was imported, has written to a split file and not published, as bytes that
    /// [`File::publish_for`] takes; empty if there is nothing. Once it is published, tell this handle
    /// ([`File::published_by_other`]). Until then it counts as unpublished, and `flush`, `sync` and reads publish it.
    pub fn hand_out(&self) -> Result<Vec<u8>> {
        let Opened::OfGroup(member) = &self.0.opened else { return Ok(Vec::new()) };
        let handed_out = block_on(member.hand_out(&self.0.client.0))?;
        Ok(handed_out.map_or_else(Vec::new, |publication| publication.to_bytes()))
    }

    /// Publishes what handles of the same export have handed out, concatenated, in as few messages as it fits into.
    /// Returns the result for each of them.
    ///
    /// # Errors
    /// [`Error::Malformed`]: these are no such bytes of this version.
    pub fn publish_for(&self, handed_out: &[u8]) -> Result<Vec<Result<()>>> {
        let publications = Publication::all_from_bytes(handed_out)?;
        Ok(match &self.0.opened {
            Opened::OfGroup(member) => block_on(member.publish_for(&self.0.client.0, publications)),
            Opened::Own(_) => vec![Err(Error::BadHandle); publications.len()],
        })
    }

    /// What was handed out is published by another process.
    pub fn published_by_other(&self) {
        if let Opened::OfGroup(member) = &self.0.opened {
            block_on(member.published_by_other());
        }
    }

    /// As `flush`, and the data is on the storage server's device.
    pub fn sync(&self) -> Result<()> {
        match &self.0.opened {
            Opened::Own(handle) => {
                block_on(handle.open.sync(self.0.objects()))?;
                handle.check_locks(&self.0.objects().calls)
            }
            Opened::OfGroup(member) => block_on(member.sync(&self.0.client.0)),
        }
    }

    /// Whether the file has an object already, as far as is known without a message.
    pub fn has_object(&self) -> bool {
        match &self.0.opened {
            Opened::Own(handle) => block_on(handle.open.has_object(self.0.objects())),
            Opened::OfGroup(_) => true,
        }
    }

    /// Lends the object's file to a kernel that reads and writes it by itself from now on, where a descriptor of it
    /// is passed to this process. A file without an object gets one if the handle writes.
    pub fn lend(&self) -> Option<Lent> {
        let Opened::Own(Handle { open, options, .. }) = &self.0.opened else { return None };
        let lent = block_on(open.lend(self.0.objects(), options.access.writes(), options.direct))?;
        Some(Lent { file: Arc::clone(&self.0), descriptor: lent.file, may_write: lent.may_write })
    }

    /// Opens the file for a group of processes, and returns the bytes that [`Client::import`] takes: a right to the
    /// file, with this handle's access, for any process with the same key. `synced`: each write is on the device before
    /// it returns. The group lasts until this process and all that have imported the handle have closed it; meanwhile
    /// no client caches the file. The rights expire after an hour.
    pub fn export(&self, synced: bool) -> Result<Vec<u8>> {
        let key = &self.0.client.shell().identity.key;
        if let Opened::OfGroup(member) = &self.0.opened
            && let Some(open) = member.exported()
        {
            return Ok(open.to_bytes(key));
        }
        let handle = self.0.own()?;
        let (files, now) = (&self.0.client.0, Instant::now());
        // Held meanwhile, so that a file is open for one group: no recall needs it.
        let mut exported = lock(&self.0.exported);
        if exported.as_ref().is_none_or(|(_, since)| now - *since >= EXPORTED_ANEW_AFTER) {
            let open = GroupOpen { synced, ..block_on(files.open_group(handle))? };
            if let Some((former, _)) = exported.replace((open, now)) {
                files.leave_group(former.group);
            }
        }
        let (open, _) = exported.as_ref().expect("it was put there above");
        Ok(open.to_bytes(key))
    }

    /// Flushes and closes: the handle counts as closed when its last clone is gone.
    pub fn close(self) -> Result<()> {
        self.flush()
    }
}
