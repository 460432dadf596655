//! Directories of this user below one that others may write, such as `/tmp`.
//!
//! Another user may put a directory or a symbolic link at a name that this user is about to use, and replace it later.
//! Therefore only the base is taken as its path says: whoever names it chooses it. Each component below the base is
//! opened relative to the descriptor of the one above it, without following symbolic links, and must belong to this
//! user and be writable by nobody else. What is below such a directory only this user can replace. Entries are removed
//! relative to the same descriptors.
//!
//! Not here: which directories these are.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, open, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Deepest tree that is removed: stores have two levels.
const DEPTH_MAX: usize = 16;
/// Write permission of anybody but the owner.
const OTHERS_WRITE: u32 = 0o022;
/// Entries belong to their owners: others neither remove nor rename them.
const STICKY: u32 = 0o1000;

/// An open directory that belongs to this user and that nobody else may write.
#[derive(Debug)]
pub struct OwnDirectory {
    descriptor: OwnedFd,
    /// The directory that it stands in, of which nothing is known.
    above: OwnedFd,
    path: PathBuf,
}

/// Why a directory cannot be used.
#[derive(Debug)]
pub struct Error {
    pub path: PathBuf,
    pub cause: Cause,
}

/// See [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It belongs to another user.
    Foreign {
        owner: u32,
    },
    /// A symbolic link, which is not followed.
    Link {
        owner: u32,
    },
    /// Neither a directory nor a symbolic link.
    NotDirectory {
        owner: u32,
    },
    /// Others may write it: permission bits.
    Writable {
        mode: u32,
    },
    /// In a directory whose owner or writers may replace it.
    Replaceable {
        owner: u32,
        mode: u32,
    },
    System(Errno),
}

type Result<T> = std::result::Result<T, Error>;

/// This user, as the owner of what it makes.
fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Error {
    fn new(path: &Path, cause: Cause) -> Self {
        Self { path: path.to_owned(), cause }
    }

    fn system(path: &Path) -> impl FnOnce(Errno) -> Error {
        move |errno| Self::new(path, Cause::System(errno))
    }

    /// Whether it is not there.
    pub fn is_not_found(&self) -> bool {
        self.cause == Cause::System(Errno::NOENT)
    }

    /// What the user can do so that the path can be used.
    pub fn remedy(&self) -> Option<String> {
        let path = self.path.display();
        match self.cause {
            Cause::Foreign { .. } | Cause::Link { .. } => {
                Some(format!("have {path} removed by its owner, or choose another directory"))
            }
            Cause::NotDirectory { .. } => Some(format!("remove {path}, or choose another directory")),
            Cause::Writable { .. } => Some(format!("if its content is yours: chmod go-w {path}")),
            Cause::Replaceable { .. } => Some("choose a directory that only you may write".to_owned()),
            Cause::System(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, own) = (self.path.display(), own_uid());
        match self.cause {
            Cause::Foreign { owner } => write!(f, "{path}: belongs to uid {owner}, not to this user (uid {own})"),
            Cause::Link { owner } => write!(f, "{path}: a symbolic link of uid {owner}, not a directory"),
            Cause::NotDirectory { owner } => write!(f, "{path}: a file of uid {owner}, not a directory"),
            Cause::Writable { mode } => write!(f, "{path}: others may write it (mode {:o})", mode & 0o7777),
            Cause::Replaceable { owner, mode } => {
                write!(f, "{path}: others may replace what is in it (owner uid {owner}, mode {:o})", mode & 0o7777)
            }
            Cause::System(errno) => write!(f, "{path}: {}", io::Error::from(errno)),
        }
    }
}

impl std::error::Error for Error {}

impl AsFd for OwnDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.cause {
            Cause::System(errno) => io::Error::from(errno).kind(),
            Cause::NotDirectory { .. } | Cause::Link { .. } => io::ErrorKind::NotADirectory,
            Cause::Foreign { .. } | Cause::Writable { .. } | Cause::Replaceable { .. } => {
                io::ErrorKind::PermissionDenied
            }
        };
        io::Error::new(kind, error)
    }
}

impl OwnDirectory {
    /// Opens `path`, a directory below `base`; it and all between them must be this user's own.
    pub fn open(base: &Path, path: &Path) -> Result<Self> {
        Self::walk(base, path, &mut Vec::new(), false)
    }

    /// As [`OwnDirectory::open`]; makes the directories that are missing, mode 0700, and returns the highest one that
    /// it made. When it fails, none of them is left.
    pub fn make(base: &Path, path: &Path) -> Result<(Self, Option<PathBuf>)> {
        let mut made = Vec::new();
        match Self::walk(base, path, &mut made, true) {
            Ok(own) => Ok((own, made.into_iter().next().map(|(_, path)| path))),
            Err(error) => {
                for (above, path) in made.into_iter().rev() {
                    // One that somebody uses already is not empty, and stays.
                    let _ = unlinkat(&above, path.file_name().unwrap_or_default(), AtFlags::REMOVEDIR);
                }
                Err(error)
            }
        }
    }

    fn walk(base: &Path, path: &Path, made: &mut Vec<(OwnedFd, PathBuf)>, make: bool) -> Result<Self> {
        let below = path.strip_prefix(base).map_err(|_| Error::new(path, Cause::System(Errno::INVAL)))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = open(base, flags, Mode::empty()).map_err(Error::system(base))?;
        let mut walked = base.to_owned();
        let mut found = None;
        for component in below.components() {
            let Component::Normal(name) = component else {
                return Err(Error::new(path, Cause::System(Errno::INVAL)));
            };
            walked.push(name);
            if make {
                match mkdirat(&at, name, Mode::RWXU) {
                    Ok(()) => made.push((again(&at, &walked)?, walked.clone())),
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(Error::system(&walked)(errno)),
                }
            }
            let own = Self::child(at.as_fd(), name, &walked)?;
            at = again(&own.descriptor, &walked)?;
            found = Some(own);
        }
        found.ok_or_else(|| Error::new(path, Cause::System(Errno::INVAL)))
    }

    /// Opens an entry of a directory, which must be a directory of this user's own.
    fn child(above: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<Self> {
        let fail = |errno| Error::system(path)(errno);
        // As a path at first: also what may not be read has an owner, who is named.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = openat(above, name, flags, Mode::empty()).map_err(fail)?;
        check(&fstat(&entry).map_err(fail)?).map_err(|cause| Error::new(path, cause))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&entry, ".", flags, Mode::empty()).map_err(fail)?;
        Ok(Self { descriptor, above: again(above, path)?, path: path.to_owned() })
    }

    /// A directory in this one.
    pub fn entry(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        let name = name.as_ref();
        Self::child(self.descriptor.as_fd(), name, &self.path.join(name))
    }

    /// The path with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that reaches an entry of this directory whatever its own path says by now, for interfaces that take
    /// paths. Valid as long as this is open.
    pub fn reach(&self, name: impl AsRef<Path>) -> PathBuf {
        path_in(&self.descriptor, name)
    }

    /// Names of the entries.
    pub fn names(&self) -> Result<Vec<OsString>> {
        names(self.descriptor.as_fd()).map_err(Error::system(&self.path))
    }

    /// Removes a file, or whatever else is not a directory. One that is not there is as good as removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref();
        gone(unlinkat(&self.descriptor, name, AtFlags::empty())).map_err(Error::system(&self.path.join(name)))
    }

    /// Removes all entries that are not directories.
    pub fn remove_files(&self) -> Result<()> {
        for name in self.names()? {
            match statat(&self.descriptor, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if file_type(&stat) == FileType::Directory => {}
                Ok(_) => self.remove_file(&name)?,
                Err(errno) => gone(Err(errno)).map_err(Error::system(&self.path.join(&name)))?,
            }
        }
        Ok(())
    }

    /// Removes a directory in this one with all that is below it. One that is not there is as good as removed; a
    /// symbolic link is removed itself.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref();
        remove_tree(self.descriptor.as_fd(), name, DEPTH_MAX).map_err(Error::system(&self.path.join(name)))
    }

    /// Removes this directory if it is empty; false: it is not. What another user has put at its name stays.
    pub fn remove(self) -> Result<bool> {
        let fail = |errno| Error::system(&self.path)(errno);
        let name = self.path.file_name().unwrap_or_default();
        let found = match statat(&self.above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(true),
            Err(errno) => return Err(fail(errno)),
        };
        let own = fstat(&self.descriptor).map_err(fail)?;
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
            let cause = check(&found).err().unwrap_or(Cause::Foreign { owner: found.st_uid });
            return Err(Error::new(&self.path, cause));
        }
        match unlinkat(&self.above, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(fail(errno)),
        }
    }
}

/// Checks a directory that stands for long and is used by its path: that it is this user's own, and that nobody else
/// can replace it. The directory above it must belong to this user or to root, and be writable by nobody else unless
/// it is sticky.
pub fn check_path(path: &Path) -> Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::new(path, Cause::System(Errno::INVAL)));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = openat(CWD, above, flags, Mode::empty()).map_err(Error::system(above))?;
    OwnDirectory::child(base.as_fd(), name, path)?;
    let stat = fstat(&base).map_err(Error::system(above))?;
    let (owner, mode) = (stat.st_uid, stat.st_mode);
    if mode & STICKY == 0 && (mode & OTHERS_WRITE != 0 || (owner != 0 && owner != own_uid())) {
        return Err(Error::new(above, Cause::Replaceable { owner, mode }));
    }
    Ok(())
}

/// A path that reaches an entry of an open directory, for interfaces that take paths. Valid as long as `directory` is
/// open.
pub fn path_in(directory: impl AsFd, name: impl AsRef<Path>) -> PathBuf {
    let number = directory.as_fd().as_raw_fd();
    Path::new("/proc/self/fd").join(number.to_string()).join(name)
}

/// Whether a directory is this user's own.
fn check(stat: &Stat) -> std::result::Result<(), Cause> {
    let (owner, mode) = (stat.st_uid, stat.st_mode);
    match file_type(stat) {
        FileType::Directory if owner != own_uid() => Err(Cause::Foreign { owner }),
        FileType::Directory if mode & OTHERS_WRITE != 0 => Err(Cause::Writable { mode }),
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(Cause::Link { owner }),
        _ => Err(Cause::NotDirectory { owner }),
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A second descriptor.
fn again(descriptor: impl AsFd, path: &Path) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 3).map_err(Error::system(path))
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let entries = Dir::read_from(directory)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let names = entries.map(|name| name.map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()));
    let is_entry = |name: &rustix::io::Result<OsString>| !name.as_ref().is_ok_and(|name| name == "." || name == "..");
    names.filter(is_entry).collect()
}

/// Removes an entry, and below a directory everything. The directory above is this user's own.
fn remove_tree(above: BorrowedFd<'_>, name: &OsStr, depth: usize) -> rustix::io::Result<()> {
    match unlinkat(above, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        removed => return gone(removed),
    }
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(above, name, flags, Mode::empty())?;
    for entry in names(directory.as_fd())? {
        remove_tree(directory.as_fd(), &entry, depth)?;
    }
    gone(unlinkat(above, name, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests;
