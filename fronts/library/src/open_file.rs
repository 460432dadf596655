//! Open files and directories.

use crate::failure::{Explain, Failure, Outcome};
use crate::file_system::FileSystem;
use crate::hints::Hints;
use crate::place::Place;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_client::{File, GroupWish, JoinOptions, OpenOptions, ReadList, layout_text};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Attributes, Error, FileKind, GroupOpen, InodeNumber};

/// Flags that say nothing here.
const IGNORED: c_int = libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOCTTY | libc::O_NOATIME | libc::O_NONBLOCK;
/// Flags that do.
const KNOWN: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_SYNC
    | libc::O_DSYNC;

/// An open file or directory.
pub struct OpenFile {
    pub fs: Arc<FileSystem>,
    what: What,
    access: Access,
    /// Each write is on the device before it returns.
    synced: bool,
    pub appends: bool,
    position: Mutex<u64>,
}

enum What {
    File(File),
    Directory(InodeNumber),
}

/// How a file is opened, checked.
struct Flags {
    options: OpenOptions,
    create: Option<CreateFile>,
    follows: bool,
    only_directory: bool,
    synced: bool,
}

impl Flags {
    fn new(flags: c_int, permissions: u16, hints: &Hints) -> Outcome<Self> {
        let has = |flag| flags & flag == flag;
        if flags & !(KNOWN | IGNORED) != 0 {
            return Err(Failure::invalid(format!("flags {:#o} are not supported", flags & !(KNOWN | IGNORED))));
        }
        let access = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => Access::Read,
            libc::O_WRONLY => Access::Write,
            libc::O_RDWR => Access::ReadWrite,
            _ => return Err(Failure::invalid("O_WRONLY and O_RDWR at once")),
        };
        if has(libc::O_TRUNC) && !access.writes() {
            return Err(Failure::invalid("O_TRUNC without O_WRONLY or O_RDWR"));
        }
        let options = OpenOptions {
            truncate: has(libc::O_TRUNC),
            append: has(libc::O_APPEND),
            direct: has(libc::O_DIRECT),
            registration: hints.registration,
            spill: hints.spill,
            spread: hints.spread,
            ..OpenOptions::of(access)
        };
        let exclusive = has(libc::O_EXCL);
        let create = has(libc::O_CREAT).then_some(CreateFile { mode: permissions, exclusive, plan: hints.layout });
        let (follows, only_directory) = (!has(libc::O_NOFOLLOW), has(libc::O_DIRECTORY));
        if only_directory && create.is_some() {
            return Err(Failure::invalid("O_CREAT makes no directory: mkdir does"));
        }
        Ok(Self { options, create, follows, only_directory, synced: flags & libc::O_SYNC != 0 })
    }
}

impl OpenFile {
    /// Opens what is at a place.
    pub fn open(place: &Place<'_>, flags: c_int, mode: libc::mode_t, hints: &Hints) -> Outcome<Self> {
        place.check("open")?;
        let flags = Flags::new(flags, place.fs.permissions(mode), hints)?;
        if flags.only_directory || place.is_of_directory() {
            return Self::open_directory(place, &flags);
        }
        let FileSystem { client, who, .. } = &**place.fs;
        let Flags { options, create, follows, synced, .. } = flags;
        let at = (place.directory, place.path);
        let opened = match hints.group {
            Some(layouts) => {
                client.open_path_for_group(who, at, options, create, follows, GroupWish { layouts, synced })
            }
            None => client.open_path(who, at, options, create, follows).map(|(file, _)| file),
        };
        match opened {
            Ok(file) => Ok(Self::new(place.fs, What::File(file), &flags)),
            Err(Error::IsDirectory) if flags.create.is_none() => Self::open_directory(place, &flags),
            Err(error) => Err(error).explain(|| format!("open {place}")),
        }
    }

    fn open_directory(place: &Place<'_>, flags: &Flags) -> Outcome<Self> {
        let directory = place.call("open", || match place.entry(flags.follows)?.attributes {
            Attributes { kind, .. } if kind != FileKind::Directory => Err(Error::NotDirectory),
            _ if flags.options.access.writes() || flags.create.is_some() => Err(Error::IsDirectory),
            Attributes { inode, .. } => Ok(inode),
        })?;
        Ok(Self::new(place.fs, What::Directory(directory), flags))
    }

    /// The root directory.
    pub fn root(fs: &Arc<FileSystem>) -> Self {
        let flags = Flags::new(libc::O_RDONLY, 0, &Hints::default()).expect("O_RDONLY is a flag");
        Self::new(fs, What::Directory(InodeNumber::ROOT), &flags)
    }

    fn new(fs: &Arc<FileSystem>, what: What, flags: &Flags) -> Self {
        let Flags { options, synced, .. } = flags;
        let (access, appends, position) = (options.access, options.append, Mutex::new(0));
        Self { fs: Arc::clone(fs), what, access, synced: *synced, appends, position }
    }

    /// Opens the file for other processes, and returns the bytes that [`OpenFile::import`] takes: a right to the file
    /// for any process with the same key.
    pub fn export(&self) -> Outcome<Vec<u8>> {
        self.file()?.export(self.synced).explain(|| "export")
    }

    /// Opens what another process has exported, as it is open there.
    pub fn import(fs: &Arc<FileSystem>, exported: &[u8], hints: &Hints) -> Outcome<Self> {
        if hints.layout.is_some() {
            return Err(Failure::invalid("a layout is for files that are made"));
        }
        if hints.group.is_some() {
            return Err(Failure::invalid("group= is for files that are opened by their names"));
        }
        let options = JoinOptions { registration: hints.registration, spill: hints.spill, spread: hints.spread };
        let imported = fs.client.import(&fs.who, exported, options);
        if imported.as_ref().err() == Some(&Error::Malformed) {
            return Err(Failure::invalid("these are no bytes of a handle that this version of Weft has exported"));
        }
        if imported.as_ref().err() == Some(&Error::CapabilityRejected) {
            let name = &fs.client.map().name;
            let text = format!("the handle was not exported from '{name}', as it is now, with this key, or is damaged");
            return Err(Failure::invalid(text));
        }
        let (file, open) = imported.explain(|| "import")?;
        let GroupOpen { access, synced, append: appends, .. } = open;
        let (fs, what, position) = (Arc::clone(fs), What::File(file), Mutex::new(0));
        Ok(Self { fs, what, access, synced, appends, position })
    }

    /// Layout of the file in the words of `weft.layout`, without a message.
    pub fn layout(&self) -> Outcome<String> {
        Ok(layout_text(self.file()?.plan()))
    }

    /// What this handle has written to a split file since its last publication, for [`OpenFile::publish_for`] in
    /// another process; no bytes if there is nothing, or if the handle was not imported.
    pub fn hand_out(&self) -> Outcome<Vec<u8>> {
        self.file()?.hand_out().explain(|| "hand out what is to be published")
    }

    /// Publishes what was handed out by handles of the same import, one behind the other. Returns for each whether it
    /// was published.
    pub fn publish_for(&self, handed_out: &[u8]) -> Outcome<Vec<Result<(), Error>>> {
        let told = self.file()?.publish_for(handed_out);
        if told.as_ref().err() == Some(&Error::Malformed) {
            return Err(Failure::invalid("these are no bytes that this version of Weft has handed out"));
        }
        told.explain(|| "publish for others")
    }

    /// What was handed out was published; if not, it is now.
    pub fn published(&self, by_other: bool) -> Outcome {
        let file = self.file()?;
        if by_other {
            file.published_by_other();
        }
        file.flush().explain(|| "publish")
    }

    /// Access, `O_APPEND` and `O_SYNC`, as the flags of an open say them.
    pub fn flags(&self) -> c_int {
        let access = match (self.access.reads(), self.access.writes()) {
            (true, true) => libc::O_RDWR,
            (_, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
        };
        let appends = if self.appends { libc::O_APPEND } else { 0 };
        access | appends | if self.synced { libc::O_SYNC } else { 0 }
    }

    /// The inode that is open.
    pub fn inode(&self) -> InodeNumber {
        match &self.what {
            What::File(file) => file.inode(),
            What::Directory(inode) => *inode,
        }
    }

    /// The file; of a directory a failure.
    #[inline]
    pub fn file(&self) -> Outcome<&File> {
        match &self.what {
            What::File(file) => Ok(file),
            What::Directory(_) => Err(is_directory()),
        }
    }

    /// The directory; of a file a failure.
    pub fn directory(&self) -> Outcome<InodeNumber> {
        match &self.what {
            What::File(_) => Err(Failure::new(libc::ENOTDIR, "the handle is of a file")),
            What::Directory(inode) => Ok(*inode),
        }
    }

    /// Writes all, at the end if it appends.
    #[inline]
    pub fn write(&self, bytes: &[u8], offset: u64) -> Outcome {
        let offset = checked_range(offset, bytes.len())?;
        let file = self.file()?;
        file.write_at(bytes, offset).explain(|| format!("write {} bytes at offset {offset}", bytes.len()))?;
        if self.synced { file.sync().explain(|| "write through to the device") } else { Ok(()) }
    }

    /// Reads, fewer bytes at the end of the file only.
    #[inline]
    pub fn read(&self, memory: &mut [u8], offset: u64) -> Outcome<usize> {
        let length = memory.len();
        let offset = checked_range(offset, length)?;
        self.file()?.read_at(memory, offset).explain(|| format!("read {length} bytes at offset {offset}"))
    }

    /// Reads pieces, in order until the end of the file cuts one. Returns the sum of bytes.
    pub fn read_list(&self, list: &mut dyn ReadList) -> Outcome<usize> {
        let ranges = list.ranges();
        ranges.iter().try_for_each(|(offset, length)| checked_range(*offset, *length).map(drop))?;
        self.file()?.read_list(list).explain(|| format!("read {} pieces", ranges.len()))
    }

    /// Writes pieces, each its bytes and an offset, in order. Returns the sum of bytes.
    pub fn write_list(&self, list: &[(&[u8], u64)]) -> Outcome<usize> {
        list.iter().try_for_each(|(bytes, offset)| checked_range(*offset, bytes.len()).map(drop))?;
        let file = self.file()?;
        file.write_list(list).explain(|| format!("write {} pieces", list.len()))?;
        if self.synced {
            file.sync().explain(|| "write through to the device")?;
        }
        Ok(list.iter().map(|(bytes, _)| bytes.len()).sum())
    }

    fn lock_position(&self) -> MutexGuard<'_, u64> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position.
    pub fn position(&self) -> u64 {
        *self.lock_position()
    }

    /// Reads at the position, and moves it behind what was read.
    pub fn read_on(&self, memory: &mut [u8]) -> Outcome<usize> {
        let mut position = self.lock_position();
        let count = self.read(memory, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Writes all at the position, or at the end if it appends, and moves the position behind it.
    pub fn write_on(&self, bytes: &[u8]) -> Outcome {
        let mut position = self.lock_position();
        self.write(bytes, *position)?;
        if self.appends && !bytes.is_empty() {
            *position = self.size()?;
        } else {
            *position += bytes.len() as u64;
        }
        Ok(())
    }

    /// Moves the position as lseek(2) does, without `SEEK_DATA` and `SEEK_HOLE`. Returns it.
    pub fn seek(&self, offset: i64, whence: c_int) -> Outcome<u64> {
        let mut position = self.lock_position();
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => self.size()?,
            _ => return Err(Failure::invalid(format!("whence is {whence}, not SEEK_SET, SEEK_CUR or SEEK_END"))),
        };
        let to = from.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok());
        *position = to.ok_or_else(|| Failure::invalid(format!("{offset} from {from} is no offset")))?;
        Ok(*position)
    }

    /// Size of the file.
    pub fn size(&self) -> Outcome<u64> {
        self.file()?.size().explain(|| "size")
    }

    /// Writes back; errors of earlier writes show here.
    pub fn flush(&self, verb: &str) -> Outcome {
        match &self.what {
            What::File(file) => file.flush().explain(|| verb),
            What::Directory(_) => Ok(()),
        }
    }
}

/// An offset, if so many bytes from it on are within what offsets can tell.
#[inline]
pub fn checked_range(offset: u64, bytes: usize) -> Outcome<u64> {
    let end = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
    match end {
        Some(end) if i64::try_from(end).is_ok() => Ok(offset),
        _ => Err(beyond(offset, bytes)),
    }
}

#[cold]
fn beyond(offset: u64, bytes: usize) -> Failure {
    Failure::invalid(format!("{bytes} bytes at offset {offset} end beyond what an offset can tell"))
}

#[cold]
fn is_directory() -> Failure {
    Failure::new(libc::EISDIR, "the handle is of a directory")
}
