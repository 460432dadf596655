//! Making, removing and renaming.

use crate::failure::{Explain, Failure, Outcome};
use crate::file_system::FileSystem;
use crate::place::Place;
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{Error, FileKind, InodeNumber, Name, Result};

impl Place<'_> {
    /// The directory and the name in it. `root`: the error where there is none, of `/`, `.` and `..`.
    fn parent(&self, root: Error) -> Result<(InodeNumber, Name)> {
        let name = self.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        if matches!(name, None | Some(b"." | b"..")) {
            return Err(root);
        }
        self.fs.client.walk_to_parent_from(&self.fs.who, self.directory, self.path)
    }

    /// As [`Place::parent`], for what is not a directory. With `/` at its end it could only be one.
    fn parent_of_file(&self, root: Error) -> Result<(InodeNumber, Name)> {
        if self.path.ends_with(b"/") {
            self.entry(true)?;
            return Err(root);
        }
        self.parent(root)
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: libc::mode_t) -> Outcome {
        let FileSystem { client, who, .. } = &**self.fs;
        self.call("mkdir", || {
            let (parent, name) = self.parent(Error::Exists)?;
            client.make_directory(who, parent, &name, self.fs.permissions(mode)).map(drop)
        })
    }

    /// Removes what is not a directory.
    pub fn unlink(&self) -> Outcome {
        self.call("unlink", || {
            let (parent, name) = self.parent_of_file(Error::IsDirectory)?;
            self.fs.client.unlink(&self.fs.who, parent, &name)
        })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self) -> Outcome {
        self.call("rmdir", || {
            let (parent, name) = self.parent(Error::Invalid)?;
            self.fs.client.remove_directory(&self.fs.who, parent, &name)
        })
    }

    /// Gives it another place.
    pub fn rename(&self, to: &Place<'_>, mode: RenameMode) -> Outcome {
        self.check_same_file_system(to, "rename")?;
        let FileSystem { client, who, .. } = &**self.fs;
        let renames = || {
            if self.path.ends_with(b"/") || to.path.ends_with(b"/") {
                let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(self.path.len(), |last| last + 1);
                let from = Place { path: &self.path[..end], ..*self };
                if from.entry(false)?.attributes.kind != FileKind::Directory {
                    return Err(Error::NotDirectory);
                }
            }
            let (parent, name) = self.parent(Error::Invalid)?;
            let (new_parent, new_name) = to.parent(Error::Invalid)?;
            client.rename(who, parent, &name, new_parent, &new_name, mode)
        };
        self.check("rename")?;
        to.check("rename to")?;
        client.by_path(renames).explain(|| format!("rename {self} to {to}"))
    }

    /// Gives it another name. As on Linux, of a symbolic link the link itself.
    pub fn link(&self, to: &Place<'_>) -> Outcome {
        self.check_same_file_system(to, "link")?;
        let FileSystem { client, who, .. } = &**self.fs;
        let links = || {
            let inode = self.inode(false)?;
            let (parent, name) = to.parent_of_file(Error::Exists)?;
            client.link(who, inode, parent, &name).map(drop)
        };
        self.check("link")?;
        to.check("link to")?;
        client.by_path(links).explain(|| format!("link {self} as {to}"))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, target: &[u8]) -> Outcome {
        if target.is_empty() {
            return Err(Error::NotFound).explain(|| format!("symlink {self} to an empty path"));
        }
        self.call("symlink", || {
            let (parent, name) = self.parent_of_file(Error::Exists)?;
            self.fs.client.make_symlink(&self.fs.who, parent, &name, target).map(drop)
        })
    }

    /// Where the symbolic link leads.
    pub fn read_link(&self) -> Outcome<Vec<u8>> {
        self.call("readlink", || self.fs.client.read_link(&self.fs.who, self.inode(false)?))
    }

    fn check_same_file_system(&self, to: &Place<'_>, verb: &str) -> Outcome {
        if std::ptr::eq(&**self.fs, &**to.fs) {
            return Ok(());
        }
        Err(Failure::new(libc::EXDEV, format!("{verb} {self} to {to}: they are in two file systems")))
    }
}
