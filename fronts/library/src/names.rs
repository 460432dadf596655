//! Making, removing and renaming.

use crate::failure::{Explain, Failure, Outcome};
use crate::place::Place;
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{Error, FileKind, InodeNumber, Name};

impl Place<'_> {
    /// The directory and the name in it. `root`: the error where there is none, of `/`, `.` and `..`.
    fn parent(&self, verb: &str, root: Error) -> Outcome<(InodeNumber, Name)> {
        self.check(verb)?;
        let name = self.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        if matches!(name, None | Some(b"." | b"..")) {
            return Err(root).explain(|| format!("{verb} {self}"));
        }
        self.fs.client.walk_to_parent_from(&self.fs.who, self.directory, self.path).explain(|| format!("{verb} {self}"))
    }

    /// As [`Place::parent`], for what is not a directory. With `/` at its end it could only be one.
    fn parent_of_file(&self, verb: &str, root: Error) -> Outcome<(InodeNumber, Name)> {
        if self.path.ends_with(b"/") {
            self.found(true, verb)?;
            return Err(root).explain(|| format!("{verb} {self}"));
        }
        self.parent(verb, root)
    }

    /// Makes a directory.
    pub fn make_directory(&self, mode: libc::mode_t) -> Outcome {
        let (parent, name) = self.parent("mkdir", Error::Exists)?;
        let made = self.fs.client.make_directory(&self.fs.who, parent, &name, self.fs.permissions(mode));
        made.map(drop).explain(|| format!("mkdir {self}"))
    }

    /// Removes what is not a directory.
    pub fn unlink(&self) -> Outcome {
        let (parent, name) = self.parent_of_file("unlink", Error::IsDirectory)?;
        self.fs.client.unlink(&self.fs.who, parent, &name).explain(|| format!("unlink {self}"))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self) -> Outcome {
        let (parent, name) = self.parent("rmdir", Error::Invalid)?;
        self.fs.client.remove_directory(&self.fs.who, parent, &name).explain(|| format!("rmdir {self}"))
    }

    /// Gives it another place.
    pub fn rename(&self, to: &Place<'_>, mode: RenameMode) -> Outcome {
        self.check_same_file_system(to, "rename")?;
        if self.path.ends_with(b"/") || to.path.ends_with(b"/") {
            let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(self.path.len(), |last| last + 1);
            let from = Place { path: &self.path[..end], ..*self };
            if from.found(false, "rename")?.kind != FileKind::Directory {
                return Err(Error::NotDirectory).explain(|| format!("rename {self} to {to}"));
            }
        }
        let (parent, name) = self.parent("rename", Error::Invalid)?;
        let (new_parent, new_name) = to.parent("rename to", Error::Invalid)?;
        let renamed = self.fs.client.rename(&self.fs.who, parent, &name, new_parent, &new_name, mode);
        renamed.explain(|| format!("rename {self} to {to}"))
    }

    /// Gives it another name. As on Linux, of a symbolic link the link itself.
    pub fn link(&self, to: &Place<'_>) -> Outcome {
        self.check_same_file_system(to, "link")?;
        let inode = self.found(false, "link")?.inode;
        let (parent, name) = to.parent_of_file("link to", Error::Exists)?;
        self.fs.client.link(&self.fs.who, inode, parent, &name).map(drop).explain(|| format!("link {self} as {to}"))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, target: &[u8]) -> Outcome {
        if target.is_empty() {
            return Err(Error::NotFound).explain(|| format!("symlink {self} to an empty path"));
        }
        let (parent, name) = self.parent_of_file("symlink", Error::Exists)?;
        let made = self.fs.client.make_symlink(&self.fs.who, parent, &name, target);
        made.map(drop).explain(|| format!("symlink {self}"))
    }

    /// Where the symbolic link leads.
    pub fn read_link(&self) -> Outcome<Vec<u8>> {
        let inode = self.found(false, "readlink")?.inode;
        self.fs.client.read_link(&self.fs.who, inode).explain(|| format!("readlink {self}"))
    }

    fn check_same_file_system(&self, to: &Place<'_>, verb: &str) -> Outcome {
        if std::ptr::eq(&**self.fs, &**to.fs) {
            return Ok(());
        }
        Err(Failure::new(libc::EXDEV, format!("{verb} {self} to {to}: they are in two file systems")))
    }
}
