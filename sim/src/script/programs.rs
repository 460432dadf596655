//! Words of native runs: operations on names, programs that use a file, faults.

use super::{Word, numbers};
use weft_protocol::message::shard::{Access, RenameMode};

/// What a client does at a wake. Directories are named by their place in the list of those that it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It has no time.
    Nothing,
    /// A program uses a file.
    Use {
        directory: Option<u64>,
        name: u64,
    },
    Lookup {
        directory: u64,
        name: u64,
    },
    Attributes {
        directory: u64,
    },
    MakeDirectory {
        directory: u64,
        name: u64,
    },
    Unlink {
        directory: u64,
        name: u64,
    },
    UnlinkBatch {
        directory: u64,
        names: [u64; 3],
    },
    RemoveDirectory {
        directory: u64,
        name: u64,
    },
    Rename {
        from: (u64, u64),
        to: (u64, u64),
        mode: RenameMode,
    },
    Link {
        from: (u64, u64),
        to: (u64, u64),
    },
    List {
        directory: u64,
        with_attributes: bool,
    },
    Release,
}

impl Word for Doing {
    fn write(&self) -> String {
        match self {
            Self::Nothing => "nothing".to_owned(),
            Self::Use { directory: None, name } => format!("use-in-root {name}"),
            Self::Use { directory: Some(directory), name } => format!("use {directory} {name}"),
            Self::Lookup { directory, name } => format!("lookup {directory} {name}"),
            Self::Attributes { directory } => format!("attributes {directory}"),
            Self::MakeDirectory { directory, name } => format!("mkdir {directory} {name}"),
            Self::Unlink { directory, name } => format!("unlink {directory} {name}"),
            Self::UnlinkBatch { directory, names: [a, b, c] } => format!("unlink-all {directory} {a} {b} {c}"),
            Self::RemoveDirectory { directory, name } => format!("rmdir {directory} {name}"),
            Self::Rename { from: (a, b), to: (c, d), mode } => format!("{} {a} {b} {c} {d}", word_of(*mode)),
            Self::Link { from: (a, b), to: (c, d) } => format!("link {a} {b} {c} {d}"),
            Self::List { directory, with_attributes: false } => format!("list {directory}"),
            Self::List { directory, with_attributes: true } => format!("list-all {directory}"),
            Self::Release => "release".to_owned(),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let one = |word| numbers::<1>(text, word).map(|[directory]| directory);
        let two = |word| numbers::<2>(text, word);
        Some(match text.split(' ').next()? {
            "nothing" => Self::Nothing,
            "use-in-root" => Self::Use { directory: None, name: one("use-in-root")? },
            "use" => two("use").map(|[of, name]| Self::Use { directory: Some(of), name })?,
            "lookup" => two("lookup").map(|[directory, name]| Self::Lookup { directory, name })?,
            "attributes" => Self::Attributes { directory: one("attributes")? },
            "mkdir" => two("mkdir").map(|[directory, name]| Self::MakeDirectory { directory, name })?,
            "unlink" => two("unlink").map(|[directory, name]| Self::Unlink { directory, name })?,
            "unlink-all" => {
                let [directory, names @ ..] = numbers::<4>(text, "unlink-all")?;
                Self::UnlinkBatch { directory, names }
            }
            "rmdir" => two("rmdir").map(|[directory, name]| Self::RemoveDirectory { directory, name })?,
            "link" => numbers(text, "link").map(|[a, b, c, d]| Self::Link { from: (a, b), to: (c, d) })?,
            word if MODES.iter().any(|mode| word_of(*mode) == word) => {
                let mode = MODES.into_iter().find(|mode| word_of(*mode) == word)?;
                numbers(text, word).map(|[a, b, c, d]| Self::Rename { from: (a, b), to: (c, d), mode })?
            }
            "list" => Self::List { directory: one("list")?, with_attributes: false },
            "list-all" => Self::List { directory: one("list-all")?, with_attributes: true },
            "release" => Self::Release,
            _ => return None,
        })
    }
}

const MODES: [RenameMode; 3] = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];

fn word_of(mode: RenameMode) -> &'static str {
    match mode {
        RenameMode::Replace => "rename",
        RenameMode::NoReplace => "rename-new",
        RenameMode::Exchange => "exchange",
    }
}

/// A fault of a process or disk, at a wake of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    Dies,
    Pause(u64),
    /// A node is gone for good.
    NodeDies(u64),
    /// The disk of the client's node is full for so long.
    Full(u64),
    Deaf(u64),
    /// Of this node these many bytes, from the second on, for the third long.
    BadSectors([u64; 4]),
}

impl Word for Fault {
    fn write(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Dies => "die".to_owned(),
            Self::Pause(ms) => format!("pause {ms}"),
            Self::NodeDies(node) => format!("node-dies {node}"),
            Self::Full(ms) => format!("full {ms}"),
            Self::Deaf(ms) => format!("deaf {ms}"),
            Self::BadSectors([node, first, bytes, ms]) => format!("bad-bytes {node} {first} {bytes} {ms}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let one = |word| numbers::<1>(text, word).map(|[number]| number);
        Some(match text.split(' ').next()? {
            "none" => Self::None,
            "die" => Self::Dies,
            "pause" => Self::Pause(one("pause")?),
            "node-dies" => Self::NodeDies(one("node-dies")?),
            "full" => Self::Full(one("full")?),
            "deaf" => Self::Deaf(one("deaf")?),
            "bad-bytes" => Self::BadSectors(numbers(text, "bad-bytes")?),
            _ => return None,
        })
    }
}

/// How a program opens its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    pub access: Access,
    pub append: bool,
    pub direct: bool,
    pub truncate: bool,
    pub create: bool,
    pub exclusive: bool,
}

impl Opening {
    pub const USUAL: Self = Self {
        access: Access::ReadWrite,
        append: false,
        direct: false,
        truncate: false,
        create: true,
        exclusive: false,
    };
}

impl Word for Opening {
    fn write(&self) -> String {
        let access = match self.access {
            Access::Read => "r",
            Access::Write => "w",
            Access::ReadWrite => "rw",
            other => unreachable!("no program opens a file with {other:?}"),
        };
        let set = [
            (self.append, "append"),
            (self.direct, "direct"),
            (self.truncate, "trunc"),
            (self.create, "create"),
            (self.exclusive, "excl"),
        ];
        let set = set.into_iter().filter_map(|(is_set, word)| is_set.then_some(word));
        [access].into_iter().chain(set).collect::<Vec<_>>().join("+")
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split('+');
        let access = match words.next()? {
            "r" => Access::Read,
            "w" => Access::Write,
            "rw" => Access::ReadWrite,
            _ => return None,
        };
        let (append, direct, truncate, create, exclusive) = (false, false, false, false, false);
        let mut opening = Self { access, append, direct, truncate, create, exclusive };
        for word in words {
            let flag = match word {
                "append" => &mut opening.append,
                "direct" => &mut opening.direct,
                "trunc" => &mut opening.truncate,
                "create" => &mut opening.create,
                "excl" => &mut opening.exclusive,
                _ => return None,
            };
            *flag = true;
        }
        Some(opening)
    }
}

/// What a program does with its file next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Flush,
    Cut,
    Stat,
    Write,
    Read,
}

const KINDS: [(&str, Kind); 5] =
    [("flush", Kind::Flush), ("cut", Kind::Cut), ("stat", Kind::Stat), ("write", Kind::Write), ("read", Kind::Read)];

/// A step of a program: what, where if it goes elsewhere first, and how many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub kind: Kind,
    pub seek: Option<u64>,
    pub bytes: u64,
}

impl Word for Option<Step> {
    fn write(&self) -> String {
        let Some(Step { kind, seek, bytes }) = self else { return "nothing".to_owned() };
        let word = KINDS.iter().find(|(_, known)| known == kind).map_or("", |(word, _)| word);
        seek.map_or_else(|| format!("{word} {bytes}"), |seek| format!("{word} {bytes} at {seek}"))
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let kind = |word: &str| KINDS.iter().find(|(known, _)| *known == word).map(|(_, kind)| *kind);
        match words[..] {
            ["nothing"] => Some(None),
            [word, bytes] => Some(Some(Step { kind: kind(word)?, seek: None, bytes: bytes.parse().ok()? })),
            [word, bytes, "at", seek] => {
                Some(Some(Step { kind: kind(word)?, seek: Some(seek.parse().ok()?), bytes: bytes.parse().ok()? }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_kept<T: Word>(text: &str) {
        assert_eq!(T::read(text).map(|word| word.write()).as_deref(), Some(text));
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let doings =
            ["nothing", "use-in-root 3", "use 2 3", "unlink-all 0 1 2 3", "rename 0 1 2 3", "list-all 4", "release"];
        doings.into_iter().for_each(is_kept::<Doing>);
        ["die", "pause 3", "bad-bytes 1 2 3 4", "node-dies 1"].into_iter().for_each(is_kept::<Fault>);
        ["r", "rw+append+create+excl", "w+trunc"].into_iter().for_each(is_kept::<Opening>);
        ["nothing", "write 3", "read 8 at 100"].into_iter().for_each(is_kept::<Option<Step>>);
        assert_eq!((Doing::read("use 1"), Fault::read("pause"), Opening::read("x")), (None, None, None));
    }
}
