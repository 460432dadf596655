//! System calls as values, and as the lines of a script.
//!
//! A script, the pipe to a worker and every report use the same text: `pwrite h0 4096 100 7` writes 100 bytes of value
//! 7 at offset 4096 of handle 0. Paths are relative to the directory of the run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A handle's number, chosen by the caller of open.
pub type HandleId = u8;

/// A process that issues calls through the mount with this letter. Mount `n` stands for native clients: each of their
/// workers is a client of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WorkerId {
    pub mount: char,
    pub number: u8,
}

/// The letter of native clients.
pub const NATIVE: char = 'n';

impl WorkerId {
    /// Returns true for a worker that calls the client library instead of the kernel.
    pub fn is_native(self) -> bool {
        self.mount == NATIVE
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.mount, self.number)
    }
}

impl FromStr for WorkerId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut chars = text.chars();
        let mount = chars.next().filter(char::is_ascii_lowercase);
        match (mount, chars.as_str().parse()) {
            (Some(mount), Ok(number)) => Ok(Self { mount, number }),
            _ => Err(format!("'{text}' is no worker: a letter for the mount and a number, such as a0")),
        }
    }
}

/// Access mode of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// Flags of an open, beside the access mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub direct: bool,
    pub sync: bool,
    pub dsync: bool,
}

/// Finds a flag.
type FlagOf = fn(&mut OpenFlags) -> &mut bool;

impl OpenFlags {
    /// The flags with their words in scripts.
    pub const WORDS: [(&str, FlagOf); 7] = [
        ("creat", |flags| &mut flags.create),
        ("excl", |flags| &mut flags.exclusive),
        ("trunc", |flags| &mut flags.truncate),
        ("append", |flags| &mut flags.append),
        ("direct", |flags| &mut flags.direct),
        ("sync", |flags| &mut flags.sync),
        ("dsync", |flags| &mut flags.dsync),
    ];
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
}

/// Whence of a seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    Set,
    Current,
    End,
}

/// A call of flock, never blocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockHow {
    Shared,
    Exclusive,
    Unlock,
}

/// A system call, or two or three that belong together (`mapwrite` maps, stores, syncs and unmaps).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    Open {
        handle: HandleId,
        path: String,
        access: Access,
        flags: OpenFlags,
    },
    OpenDirectory {
        handle: HandleId,
        path: String,
    },
    Close {
        handle: HandleId,
    },
    Read {
        handle: HandleId,
        bytes: u64,
    },
    Write {
        handle: HandleId,
        bytes: u64,
        value: u8,
    },
    ReadAt {
        handle: HandleId,
        offset: u64,
        bytes: u64,
    },
    WriteAt {
        handle: HandleId,
        offset: u64,
        bytes: u64,
        value: u8,
    },
    Seek {
        handle: HandleId,
        whence: Whence,
        offset: i64,
    },
    Truncate {
        path: String,
        size: u64,
    },
    TruncateHandle {
        handle: HandleId,
        size: u64,
    },
    Stat {
        path: String,
    },
    StatHandle {
        handle: HandleId,
    },
    Rename {
        from: String,
        to: String,
        how: RenameHow,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    MakeDirectory {
        path: String,
    },
    RemoveDirectory {
        path: String,
    },
    ChangeMode {
        path: String,
        mode: u16,
    },
    ChangeModeHandle {
        handle: HandleId,
        mode: u16,
    },
    /// Sets mtime to this number of seconds since 1970.
    SetTime {
        path: String,
        seconds: u64,
    },
    /// One getdents64 with a buffer of this size.
    ReadDirectory {
        handle: HandleId,
        bytes: u64,
    },
    Rewind {
        handle: HandleId,
    },
    Sync {
        handle: HandleId,
    },
    /// Maps the file, loads, and unmaps.
    MapRead {
        handle: HandleId,
        offset: u64,
        bytes: u64,
    },
    /// Maps the file, stores, syncs, and unmaps.
    MapWrite {
        handle: HandleId,
        offset: u64,
        bytes: u64,
        value: u8,
    },
    /// Maps the first bytes of the file until `unmap` or `close`, for loads.
    Map {
        handle: HandleId,
        bytes: u64,
    },
    Load {
        handle: HandleId,
        offset: u64,
        bytes: u64,
    },
    Unmap {
        handle: HandleId,
    },
    Lock {
        handle: HandleId,
        how: LockHow,
    },
}

impl Call {
    /// Returns the handle that the call uses. An open's is not yet in use.
    pub fn uses(&self) -> Option<HandleId> {
        match self {
            Call::Close { handle }
            | Call::Read { handle, .. }
            | Call::Write { handle, .. }
            | Call::ReadAt { handle, .. }
            | Call::WriteAt { handle, .. }
            | Call::Seek { handle, .. }
            | Call::TruncateHandle { handle, .. }
            | Call::StatHandle { handle }
            | Call::ChangeModeHandle { handle, .. }
            | Call::ReadDirectory { handle, .. }
            | Call::Rewind { handle }
            | Call::Sync { handle }
            | Call::MapRead { handle, .. }
            | Call::MapWrite { handle, .. }
            | Call::Map { handle, .. }
            | Call::Load { handle, .. }
            | Call::Unmap { handle }
            | Call::Lock { handle, .. } => Some(*handle),
            _ => None,
        }
    }

    /// Returns the handle that the call opens if it succeeds.
    pub fn opens(&self) -> Option<HandleId> {
        match self {
            Call::Open { handle, .. } | Call::OpenDirectory { handle, .. } => Some(*handle),
            _ => None,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Open { handle, path, access, flags } => {
                let access = match access {
                    Access::Read => "rdonly",
                    Access::Write => "wronly",
                    Access::ReadWrite => "rdwr",
                };
                write!(f, "open h{handle} {path} {access}")?;
                let mut flags = *flags;
                OpenFlags::WORDS.iter().filter(|(_, flag)| *flag(&mut flags)).try_for_each(|(w, _)| write!(f, " {w}"))
            }
            Call::OpenDirectory { handle, path } => write!(f, "opendir h{handle} {path}"),
            Call::Close { handle } => write!(f, "close h{handle}"),
            Call::Read { handle, bytes } => write!(f, "read h{handle} {bytes}"),
            Call::Write { handle, bytes, value } => write!(f, "write h{handle} {bytes} {value}"),
            Call::ReadAt { handle, offset, bytes } => write!(f, "pread h{handle} {offset} {bytes}"),
            Call::WriteAt { handle, offset, bytes, value } => write!(f, "pwrite h{handle} {offset} {bytes} {value}"),
            Call::Seek { handle, whence, offset } => {
                let whence = match whence {
                    Whence::Set => "set",
                    Whence::Current => "cur",
                    Whence::End => "end",
                };
                write!(f, "lseek h{handle} {whence} {offset}")
            }
            Call::Truncate { path, size } => write!(f, "truncate {path} {size}"),
            Call::TruncateHandle { handle, size } => write!(f, "ftruncate h{handle} {size}"),
            Call::Stat { path } => write!(f, "stat {path}"),
            Call::StatHandle { handle } => write!(f, "fstat h{handle}"),
            Call::Rename { from, to, how } => {
                write!(f, "rename {from} {to}")?;
                f.write_str(match how {
                    RenameHow::Replace => "",
                    RenameHow::NoReplace => " noreplace",
                    RenameHow::Exchange => " exchange",
                })
            }
            Call::Link { from, to } => write!(f, "link {from} {to}"),
            Call::Unlink { path } => write!(f, "unlink {path}"),
            Call::MakeDirectory { path } => write!(f, "mkdir {path}"),
            Call::RemoveDirectory { path } => write!(f, "rmdir {path}"),
            Call::ChangeMode { path, mode } => write!(f, "chmod {path} 0{mode:o}"),
            Call::ChangeModeHandle { handle, mode } => write!(f, "fchmod h{handle} 0{mode:o}"),
            Call::SetTime { path, seconds } => write!(f, "utimens {path} {seconds}"),
            Call::ReadDirectory { handle, bytes } => write!(f, "readdir h{handle} {bytes}"),
            Call::Rewind { handle } => write!(f, "rewinddir h{handle}"),
            Call::Sync { handle } => write!(f, "fsync h{handle}"),
            Call::MapRead { handle, offset, bytes } => write!(f, "mapread h{handle} {offset} {bytes}"),
            Call::MapWrite { handle, offset, bytes, value } => write!(f, "mapwrite h{handle} {offset} {bytes} {value}"),
            Call::Map { handle, bytes } => write!(f, "map h{handle} {bytes}"),
            Call::Load { handle, offset, bytes } => write!(f, "load h{handle} {offset} {bytes}"),
            Call::Unmap { handle } => write!(f, "unmap h{handle}"),
            Call::Lock { handle, how } => {
                let how = match how {
                    LockHow::Shared => "shared",
                    LockHow::Exclusive => "exclusive",
                    LockHow::Unlock => "unlock",
                };
                write!(f, "flock h{handle} {how}")
            }
        }
    }
}

/// The words of a line that are not read yet.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn path(&mut self) -> Result<String, String> {
        self.word("a path").map(str::to_owned)
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("'{word}' is no {what}"))
    }

    fn handle(&mut self) -> Result<HandleId, String> {
        let word = self.word("a handle")?;
        let number = word.strip_prefix('h').and_then(|number| number.parse().ok());
        number.ok_or_else(|| format!("'{word}' is no handle, such as h0"))
    }

    fn mode(&mut self) -> Result<u16, String> {
        let word = self.word("a mode")?;
        u16::from_str_radix(word, 8).map_err(|_| format!("'{word}' is no octal mode"))
    }

    fn open_flags(&mut self) -> Result<(Access, OpenFlags), String> {
        let access = match self.word("an access mode")? {
            "rdonly" => Access::Read,
            "wronly" => Access::Write,
            "rdwr" => Access::ReadWrite,
            word => return Err(format!("'{word}' is not rdonly, wronly or rdwr")),
        };
        let mut flags = OpenFlags::default();
        for word in self.0.by_ref() {
            let known = OpenFlags::WORDS.iter().find(|(known, _)| *known == word);
            let (_, flag) = known.ok_or_else(|| format!("'{word}' is no flag of open"))?;
            *flag(&mut flags) = true;
        }
        Ok((access, flags))
    }

    fn whence(&mut self) -> Result<Whence, String> {
        match self.word("a whence")? {
            "set" => Ok(Whence::Set),
            "cur" => Ok(Whence::Current),
            "end" => Ok(Whence::End),
            word => Err(format!("'{word}' is not set, cur or end")),
        }
    }

    fn rename_how(&mut self) -> Result<RenameHow, String> {
        match self.0.next() {
            None => Ok(RenameHow::Replace),
            Some("noreplace") => Ok(RenameHow::NoReplace),
            Some("exchange") => Ok(RenameHow::Exchange),
            Some(word) => Err(format!("'{word}' is not noreplace or exchange")),
        }
    }

    fn lock_how(&mut self) -> Result<LockHow, String> {
        match self.word("a lock")? {
            "shared" => Ok(LockHow::Shared),
            "exclusive" => Ok(LockHow::Exclusive),
            "unlock" => Ok(LockHow::Unlock),
            word => Err(format!("'{word}' is not shared, exclusive or unlock")),
        }
    }
}

impl FromStr for Call {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = Words(text.split_whitespace());
        let w = &mut words;
        let call = match w.word("a call")? {
            "open" => {
                let (handle, path) = (w.handle()?, w.path()?);
                let (access, flags) = w.open_flags()?;
                Call::Open { handle, path, access, flags }
            }
            "opendir" => Call::OpenDirectory { handle: w.handle()?, path: w.path()? },
            "close" => Call::Close { handle: w.handle()? },
            "read" => Call::Read { handle: w.handle()?, bytes: w.number("count")? },
            "write" => Call::Write { handle: w.handle()?, bytes: w.number("count")?, value: w.number("value")? },
            "pread" => Call::ReadAt { handle: w.handle()?, offset: w.number("offset")?, bytes: w.number("count")? },
            "pwrite" => Call::WriteAt {
                handle: w.handle()?,
                offset: w.number("offset")?,
                bytes: w.number("count")?,
                value: w.number("value")?,
            },
            "lseek" => Call::Seek { handle: w.handle()?, whence: w.whence()?, offset: w.number("offset")? },
            "truncate" => Call::Truncate { path: w.path()?, size: w.number("size")? },
            "ftruncate" => Call::TruncateHandle { handle: w.handle()?, size: w.number("size")? },
            "stat" => Call::Stat { path: w.path()? },
            "fstat" => Call::StatHandle { handle: w.handle()? },
            "rename" => Call::Rename { from: w.path()?, to: w.path()?, how: w.rename_how()? },
            "link" => Call::Link { from: w.path()?, to: w.path()? },
            "unlink" => Call::Unlink { path: w.path()? },
            "mkdir" => Call::MakeDirectory { path: w.path()? },
            "rmdir" => Call::RemoveDirectory { path: w.path()? },
            "chmod" => Call::ChangeMode { path: w.path()?, mode: w.mode()? },
            "fchmod" => Call::ChangeModeHandle { handle: w.handle()?, mode: w.mode()? },
            "utimens" => Call::SetTime { path: w.path()?, seconds: w.number("time")? },
            "readdir" => Call::ReadDirectory { handle: w.handle()?, bytes: w.number("count")? },
            "rewinddir" => Call::Rewind { handle: w.handle()? },
            "fsync" => Call::Sync { handle: w.handle()? },
            "mapread" => Call::MapRead { handle: w.handle()?, offset: w.number("offset")?, bytes: w.number("count")? },
            "mapwrite" => Call::MapWrite {
                handle: w.handle()?,
                offset: w.number("offset")?,
                bytes: w.number("count")?,
                value: w.number("value")?,
            },
            "map" => Call::Map { handle: w.handle()?, bytes: w.number("count")? },
            "load" => Call::Load { handle: w.handle()?, offset: w.number("offset")?, bytes: w.number("count")? },
            "unmap" => Call::Unmap { handle: w.handle()? },
            "flock" => Call::Lock { handle: w.handle()?, how: w.lock_how()? },
            word => return Err(format!("'{word}' is no call")),
        };
        match words.0.next() {
            None => Ok(call),
            Some(word) => Err(format!("'{word}' does not belong to this call")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_call_gives_the_call_again() {
        for text in [
            "open h0 d/a rdwr creat excl trunc append direct sync dsync",
            "opendir h1 .",
            "close h0",
            "read h0 10",
            "write h0 10 7",
            "pread h0 4096 10",
            "pwrite h0 0 10 255",
            "lseek h0 end -3",
            "truncate a 5",
            "ftruncate h2 0",
            "stat d",
            "fstat h0",
            "rename a b",
            "rename a b noreplace",
            "rename a b exchange",
            "link a b",
            "unlink a",
            "mkdir d",
            "rmdir d",
            "chmod a 0640",
            "fchmod h0 0600",
            "utimens a 1000",
            "readdir h0 64",
            "rewinddir h0",
            "fsync h0",
            "mapread h0 0 10",
            "mapwrite h0 0 10 3",
            "map h0 8192",
            "load h0 1 2",
            "unmap h0",
            "flock h0 exclusive",
        ] {
            let call: Call = text.parse().expect(text);
            assert_eq!(call.to_string(), text);
        }
        for text in ["", "fly h0", "read h0", "read x 1", "open h0 a", "open h0 a rdwr fast", "stat a b"] {
            assert!(text.parse::<Call>().is_err(), "{text}");
        }
    }
}
