//! A path of this machine or of a file system, and what copying does with it.

use crate::failure::{Explain, Failure, Outcome};
use crate::output::printable;
use crate::session::{Session, Sessions};
use crate::target::{self, Target, WeftPath};
use crate::tree;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_client::{Entry, OpenOptions};
use weft_protocol::message::shard::{CreateFile, RenameMode};
use weft_protocol::{
    AttributeChanges, Attributes, BelowStamp, Error, FileKind, Name, NodeId, Plan, TimeChange, Timestamp,
};

/// Permissions that a copy keeps: without set-user-id and set-group-id, whose owner may be another one than the
/// source's.
const MODE_KEPT: u16 = 0o1777;
/// Permissions of what is not finished yet.
const MODE_UNFINISHED: u16 = 0o600;
/// Permissions of a directory until its own are set at the end: everything can be made in it.
const MODE_DIRECTORY: u16 = 0o700;

/// Where something is.
#[derive(Clone)]
pub enum Place {
    Local(PathBuf),
    /// A path in a connected file system.
    Weft(Arc<Session>, Vec<u8>),
}

/// Kinds of what can be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// What is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Item {
    pub kind: Kind,
    pub size: u64,
    pub mode: u16,
    pub mtime: Timestamp,
    /// Device and inode number; in a file system zero and its inode number.
    pub identity: (u64, u64),
    /// The node that holds a file of a file system, the first of several.
    pub holder: Option<NodeId>,
}

/// A file open for reading.
pub enum Reader {
    Local(fs::File),
    Weft(weft_client::File),
}

/// A file open for writing.
pub enum Writer {
    Local(fs::File),
    Weft(weft_client::File),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Local(path) => f.write_str(&printable(path.as_os_str().as_bytes())),
            Place::Weft(session, path) => write!(f, "{}:{}", session.instance.map.name, printable(path)),
        }
    }
}

impl From<&Attributes> for Item {
    fn from(attributes: &Attributes) -> Self {
        let kind = match attributes.kind {
            FileKind::Regular => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
        };
        let Attributes { size, mode, mtime, inode, .. } = *attributes;
        let holder = attributes.layout.objects().first().map(|object| object.node());
        Self { kind, size, mode, mtime, identity: (0, inode.raw()), holder }
    }
}

impl From<&fs::Metadata> for Item {
    fn from(metadata: &fs::Metadata) -> Self {
        let kind = match metadata.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        let mtime = Timestamp::from_parts(metadata.mtime(), nanoseconds);
        let mode = u16::try_from(metadata.mode() & 0o7777).unwrap_or(0);
        let identity = (metadata.dev(), metadata.ino());
        Self { kind, size: metadata.len(), mode, mtime, identity, holder: None }
    }
}

impl Item {
    /// By which it is known to be the same later.
    pub fn stamp(&self) -> BelowStamp {
        BelowStamp { size: self.size, mtime: self.mtime, inode: self.identity.1 }
    }
}

impl Place {
    /// The place that a path on the command line names.
    pub fn parse(text: &OsStr, sessions: &mut Sessions) -> Outcome<Place> {
        match Target::parse(text) {
            Target::Local(path) => Ok(Place::Local(path)),
            Target::Weft(path) => Ok(Place::Weft(sessions.of(&path)?, path.path)),
        }
    }

    /// The path.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Place::Local(path) => path.as_os_str().as_bytes(),
            Place::Weft(_, path) => path,
        }
    }

    fn with_bytes(&self, bytes: Vec<u8>) -> Place {
        match self {
            Place::Local(_) => Place::Local(PathBuf::from(OsString::from_vec(bytes))),
            Place::Weft(session, _) => Place::Weft(Arc::clone(session), bytes),
        }
    }

    /// Something in this directory.
    pub fn join(&self, name: &[u8]) -> Place {
        self.with_bytes(target::join(self.bytes(), name))
    }

    /// Something in the same directory as this.
    pub fn beside(&self, name: &[u8]) -> Place {
        let bytes = self.bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let directory = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        self.with_bytes([&bytes[..directory], name].concat())
    }

    /// The last component.
    pub fn base_name(&self) -> Option<Vec<u8>> {
        target::base_name(self.bytes()).map(<[u8]>::to_vec)
    }

    /// Whether it was written so that only a directory can be meant.
    pub fn ends_with_slash(&self) -> bool {
        self.bytes().ends_with(b"/")
    }

    /// Whether inode numbers of the two can be compared.
    pub fn same_tree(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Local(_), Place::Local(_)) => true,
            (Place::Weft(a, _), Place::Weft(b, _)) => a.instance.map.name == b.instance.map.name,
            _ => false,
        }
    }

    /// Whether this is in the tree below the other.
    pub fn is_below(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Local(inner), Place::Local(outer)) => {
                // The last component need not be there yet.
                let parent = inner.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let (inner, outer) = (parent.canonicalize(), outer.canonicalize());
                matches!((inner, outer), (Ok(inner), Ok(outer)) if inner.starts_with(&outer))
            }
            (Place::Weft(_, inner), Place::Weft(_, outer)) if self.same_tree(other) => {
                // Lexical: a symbolic link on the way may deceive it, and the copy then ends at the longest path.
                let [inner, outer] = [inner, outer].map(|path| components(path));
                inner.len() > outer.len() && inner.starts_with(&outer)
            }
            _ => false,
        }
    }

    /// What is there; `None`: nothing.
    pub fn look(&self, follow: bool) -> Outcome<Option<Item>> {
        match self {
            Place::Local(path) => {
                let found = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
                match found {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    found => found.explain(|| self).map(|metadata| Some(Item::from(&metadata))),
                }
            }
            Place::Weft(session, path) => match session.client.walk(&session.who, path, follow) {
                Err(Error::NotFound) => Ok(None),
                found => {
                    found.and_then(Entry::with_size).explain(|| self).map(|entry| Some(Item::from(&entry.attributes)))
                }
            },
        }
    }

    /// Names in a directory and what they name. What vanishes meanwhile is left out.
    pub fn list(&self) -> Outcome<Vec<(Vec<u8>, Item)>> {
        match self {
            Place::Local(path) => {
                let mut found = Vec::new();
                for entry in fs::read_dir(path).explain(|| format!("list {self}"))? {
                    let entry = entry.explain(|| format!("list {self}"))?;
                    match entry.metadata() {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        metadata => {
                            let metadata = metadata.explain(|| entry.path().display().to_string())?;
                            found.push((entry.file_name().into_vec(), Item::from(&metadata)));
                        }
                    }
                }
                Ok(found)
            }
            Place::Weft(session, path) => {
                let place = || format!("list {self}");
                let inode = session.client.walk(&session.who, path, true).explain(place)?.attributes.inode;
                let mut found = Vec::new();
                for entry in tree::list(session, inode, true).explain(place)? {
                    match tree::attributes_of(session, &entry) {
                        Err(Error::NotFound | Error::Stale) => {}
                        attributes => {
                            let item = Item::from(&attributes.explain(|| self.join(entry.name.as_bytes()))?);
                            found.push((entry.name.as_bytes().to_vec(), item));
                        }
                    }
                }
                Ok(found)
            }
        }
    }

    /// Target of a symbolic link.
    pub fn read_link(&self) -> Outcome<Vec<u8>> {
        match self {
            Place::Local(path) => fs::read_link(path).explain(|| self).map(|link| link.into_os_string().into_vec()),
            Place::Weft(session, path) => {
                let inode = session.client.walk(&session.who, path, false).explain(|| self)?.attributes.inode;
                session.client.read_link(&session.who, inode).explain(|| self)
            }
        }
    }

    /// Makes a symbolic link, in place of a file or link that is there.
    pub fn make_symlink(&self, link: &[u8]) -> Outcome<()> {
        if self.look(false)?.is_some_and(|found| matches!(found.kind, Kind::File | Kind::Symlink)) {
            self.remove()?;
        }
        match self {
            Place::Local(path) => std::os::unix::fs::symlink(OsStr::from_bytes(link), path).explain(|| self),
            Place::Weft(session, path) => {
                let (parent, name) = session.client.walk_to_parent(&session.who, path).explain(|| self)?;
                session.client.make_symlink(&session.who, parent, &name, link).explain(|| self).map(|_| ())
            }
        }
    }

    /// Makes a directory, unless there is one.
    pub fn make_directory(&self) -> Outcome<()> {
        match self {
            Place::Local(path) => match fs::DirBuilder::new().mode(u32::from(MODE_DIRECTORY)).create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.require_directory(),
                made => made.explain(|| format!("make directory {self}")),
            },
            Place::Weft(session, path) => {
                // `/` has no name to be made, and is there.
                if components(path).is_empty() {
                    return Ok(());
                }
                let place = || format!("make directory {self}");
                let (parent, name) = session.client.walk_to_parent(&session.who, path).explain(place)?;
                match session.client.make_directory(&session.who, parent, &name, MODE_DIRECTORY) {
                    Err(Error::Exists) => self.require_directory(),
                    made => made.explain(place).map(|_| ()),
                }
            }
        }
    }

    /// Makes a directory and those above it, unless they are there.
    pub fn make_directories(&self) -> Outcome<()> {
        match self {
            Place::Local(path) => fs::create_dir_all(path).explain(|| format!("make directory {self}")),
            Place::Weft(session, path) => {
                let path = WeftPath { file_system: Some(session.instance.map.name.clone()), path: path.clone() };
                tree::make_directories(session, &path, tree::with_umask(0o777)).map(|_| ())
            }
        }
    }

    /// Has the file system of this machine below a directory write to its device what it has; one of Weft has its data
    /// at the nodes already.
    pub fn sync(&self) -> Outcome<()> {
        let Place::Local(path) = self else { return Ok(()) };
        let synced = fs::File::open(path).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
        synced.explain(|| format!("write {self} to its device"))
    }

    fn require_directory(&self) -> Outcome<()> {
        match self.look(true)? {
            Some(Item { kind: Kind::Directory, .. }) => Ok(()),
            _ => Err(Failure::new(format!("{self}: is there, and is not a directory"))),
        }
    }

    /// Opens for reading.
    pub fn open(&self) -> Outcome<Reader> {
        match self {
            Place::Local(path) => fs::File::open(path).explain(|| format!("open {self}")).map(Reader::Local),
            Place::Weft(session, path) => {
                let place = || format!("open {self}");
                let inode = session.client.walk(&session.who, path, true).explain(place)?.attributes.inode;
                let options = OpenOptions::READ;
                session.client.open(&session.who, inode, options).explain(place).map(Reader::Weft)
            }
        }
    }

    /// Opens for writing: `truncate` makes an empty file, in place of one that is there. What has this name was chosen
    /// by us and not by the user: what others have put there is not written to. `plan`: the layout of an empty file in
    /// a file system; `None`: as its directory says.
    pub fn create(&self, truncate: bool, plan: Option<Plan>) -> Outcome<Writer> {
        let place = || format!("make {self}");
        let plan = plan.filter(|_| truncate);
        if plan.is_some() {
            // What an interrupted copy has left has bytes, and so a layout.
            let _ = self.remove();
        }
        let made = match self {
            Place::Local(path) => create_local(path, truncate).explain(place).map(Writer::Local),
            Place::Weft(session, path) => {
                let options = OpenOptions { truncate, ..OpenOptions::WRITE };
                let create = CreateFile { mode: MODE_UNFINISHED, exclusive: false, plan };
                let parent = session.client.walk_to_parent(&session.who, path);
                let opened = parent.and_then(|(parent, name)| {
                    session.client.open_at(&session.who, parent, &name, options, Some(create))
                });
                let (file, entry) = opened.explain(place)?;
                // What was not removed above keeps its layout.
                if let Some(plan) = plan.filter(|plan| *plan != entry.attributes.layout.plan()) {
                    session.client.set_file_plan(&session.who, entry.attributes.inode, plan).explain(place)?;
                }
                Ok(Writer::Weft(file))
            }
        };
        made.map_err(|failure| match failure.is_no() {
            true => failure.remedy("the directory that it is to be in is not there: make it first"),
            false => failure,
        })
    }

    /// Gives it permissions and modification time; `follow`: what a symbolic link there points to.
    pub fn set_mode_and_time(&self, mode: u16, mtime: Timestamp, follow: bool) -> Outcome<()> {
        let (place, mode) = (|| format!("set attributes of {self}"), mode & MODE_KEPT);
        match self {
            Place::Local(path) => set_local(path, mode, mtime, follow).explain(place),
            Place::Weft(session, path) => {
                let inode = session.client.walk(&session.who, path, follow).explain(place)?.attributes.inode;
                let mtime = Some(TimeChange::To(mtime));
                let changes = AttributeChanges { mode: Some(mode), mtime, ..AttributeChanges::default() };
                session.client.set_attributes(&session.who, inode, &changes).explain(place).map(|_| ())
            }
        }
    }

    /// Gives it another name in the same tree, in place of what has that name.
    pub fn rename_to(&self, new: &Place) -> Outcome<()> {
        let place = || format!("rename {self} to {new}");
        match (self, new) {
            (Place::Local(old), Place::Local(new)) => fs::rename(old, new).explain(place),
            (Place::Weft(session, old), Place::Weft(_, new)) => {
                let (client, who) = (&session.client, &session.who);
                let (parent, name) = client.walk_to_parent(who, old).explain(place)?;
                let (new_parent, new_name) = client.walk_to_parent(who, new).explain(place)?;
                client.rename(who, parent, &name, new_parent, &new_name, RenameMode::Replace).explain(place)
            }
            _ => Err(Failure::new(format!("{}: are in two trees", place()))),
        }
    }

    /// Removes a file or symbolic link; one that is not there is as good as removed.
    pub fn remove(&self) -> Outcome<()> {
        let place = || format!("remove {self}");
        match self {
            Place::Local(path) => match fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed.explain(place),
            },
            Place::Weft(session, path) => {
                let (parent, name): (_, Name) = session.client.walk_to_parent(&session.who, path).explain(place)?;
                match session.client.unlink(&session.who, parent, &name) {
                    Err(Error::NotFound) => Ok(()),
                    removed => removed.explain(place),
                }
            }
        }
    }

    /// Contents of a file of at most a few kilobytes.
    pub fn read_small(&self) -> Outcome<Vec<u8>> {
        let reader = self.open()?;
        let mut bytes = vec![0; 4096];
        let count = reader.read_at(self, &mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Writes such a file.
    pub fn write_small(&self, bytes: &[u8]) -> Outcome<()> {
        let writer = self.create(true, None)?;
        writer.write_at(self, bytes, 0)?;
        writer.close(self)
    }
}

impl Reader {
    /// Reads at an offset until the buffer is full or the file ends. `place` is for errors.
    pub fn read_at(&self, place: &Place, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        let what = || format!("read {place}");
        match self {
            Reader::Weft(file) => file.read_at(buffer, offset).explain(what),
            Reader::Local(file) => {
                let mut filled = 0;
                while filled < buffer.len() {
                    match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        read => match read.explain(what)? {
                            0 => break,
                            count => filled += count,
                        },
                    }
                }
                Ok(filled)
            }
        }
    }
}

impl Writer {
    /// Writes all bytes at an offset.
    pub fn write_at(&self, place: &Place, bytes: &[u8], offset: u64) -> Outcome<()> {
        let what = || format!("write {place}");
        match self {
            Writer::Local(file) => file.write_all_at(bytes, offset).explain(what),
            Writer::Weft(file) => file.write_at(bytes, offset).explain(what),
        }
    }

    /// Sends what is buffered, so that it survives this process.
    pub fn flush(&self, place: &Place) -> Outcome<()> {
        match self {
            Writer::Local(_) => Ok(()),
            Writer::Weft(file) => file.flush().explain(|| format!("write {place}")),
        }
    }

    /// Shows errors of earlier writes. Nothing is written after it.
    pub fn close(&self, place: &Place) -> Outcome<()> {
        match self {
            Writer::Local(_) => Ok(()),
            Writer::Weft(file) => file.clone().close().explain(|| format!("close {place}")),
        }
    }
}

/// Opens an unfinished file of this machine for writing. Where others may write the directory, they may have put a link
/// there to a file that only this user may write.
fn create_local(path: &Path, truncate: bool) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(u32::from(MODE_UNFINISHED)).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    if truncate {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return options.create_new(true).open(path),
        }
    }
    let file = options.create(true).open(path)?;
    let found = file.metadata()?;
    let own = found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw();
    if own { Ok(file) } else { Err(io::Error::other("is not an unfinished copy of this user")) }
}

fn set_local(path: &Path, mode: u16, mtime: Timestamp, follow: bool) -> io::Result<()> {
    let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
    let found = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_symlink() {
        return Err(Errno::LOOP.into());
    }
    let reached = Path::new("/proc/self/fd").join(found.as_raw_fd().to_string());
    fs::set_permissions(&reached, fs::Permissions::from_mode(u32::from(mode)))?;
    let (seconds, nanoseconds) = mtime.parts();
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, &reached, &times, AtFlags::empty())?)
}

/// The components of a path.
fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".").collect()
}
