//! Words of rounds of system calls, and of faults of mounts.

use super::{Word, numbers};
use crate::kernel::requests::{Access, OpenFlags, RenameMode};
use crate::kernel::{Call, Handle};

/// A call of a round: whose it is, and how long after the first one it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timed {
    pub client: usize,
    pub delay_ms: u64,
    pub call: Call,
}

impl Word for Timed {
    fn write(&self) -> String {
        format!("client {} +{} {}", self.client, self.delay_ms, write(&self.call))
    }

    fn read(text: &str) -> Option<Self> {
        let (client, rest) = text.strip_prefix("client ")?.split_once(" +")?;
        let (delay_ms, call) = rest.split_once(' ')?;
        Some(Self { client: client.parse().ok()?, delay_ms: delay_ms.parse().ok()?, call: read(call)? })
    }
}

/// Each flag with its word.
type Flag = (&'static str, fn(&mut OpenFlags) -> &mut bool);
const FLAGS: [Flag; 5] = [
    ("create", |flags| &mut flags.create),
    ("excl", |flags| &mut flags.exclusive),
    ("trunc", |flags| &mut flags.truncate),
    ("append", |flags| &mut flags.append),
    ("direct", |flags| &mut flags.direct),
];
const ACCESS: [(&str, Access); 3] = [("r", Access::Read), ("w", Access::Write), ("rw", Access::ReadWrite)];
const RENAMES: [(&str, RenameMode); 3] =
    [("replace", RenameMode::Replace), ("noreplace", RenameMode::NoReplace), ("exchange", RenameMode::Exchange)];

fn word_of<T: PartialEq>(words: &[(&'static str, T)], of: &T) -> &'static str {
    words.iter().find(|(_, value)| value == of).map_or("", |(word, _)| word)
}

fn path(path: &[String]) -> String {
    format!("/{}", path.join("/"))
}

/// The bytes of a write, as runs of one value: `7x30`.
fn data(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|one, next| one == next).map(|run| format!("{}x{}", run[0], run.len()));
    let runs = runs.collect::<Vec<_>>().join(",");
    if runs.is_empty() { "none".to_owned() } else { runs }
}

fn flags(mut flags: OpenFlags) -> String {
    let set = FLAGS.iter().filter(|(_, flag)| *flag(&mut flags)).map(|(word, _)| *word);
    let set: Vec<&str> = set.collect();
    [word_of(&ACCESS, &flags.access)].into_iter().chain(set).collect::<Vec<_>>().join("+")
}

/// A call as words.
pub fn write(call: &Call) -> String {
    match call {
        Call::Stat { path: of } => format!("stat {}", path(of)),
        Call::CountLinks { path: of } => format!("links {}", path(of)),
        Call::Open { path: of, flags: how, mode, handle } => {
            format!("open {} {} {mode:o} h{}", path(of), flags(*how), handle.0)
        }
        Call::Close { handle } => format!("close h{}", handle.0),
        Call::Read { handle, size } => format!("read h{} {size}", handle.0),
        Call::Pread { handle, offset, size } => format!("pread h{} {offset} {size}", handle.0),
        Call::Write { handle, data: bytes } => format!("write h{} {}", handle.0, data(bytes)),
        Call::Pwrite { handle, offset, data: bytes } => format!("pwrite h{} {offset} {}", handle.0, data(bytes)),
        Call::Fstat { handle } => format!("fstat h{}", handle.0),
        Call::Truncate { path: of, size } => format!("truncate {} {size}", path(of)),
        Call::Ftruncate { handle, size } => format!("ftruncate h{} {size}", handle.0),
        Call::Fsync { handle, data_only } => {
            format!("{} h{}", if *data_only { "fdatasync" } else { "fsync" }, handle.0)
        }
        Call::Chmod { path: of, mode } => format!("chmod {} {mode:o}", path(of)),
        Call::Mkdir { path: of, mode } => format!("mkdir {} {mode:o}", path(of)),
        Call::Unlink { path: of } => format!("unlink {}", path(of)),
        Call::Rmdir { path: of } => format!("rmdir {}", path(of)),
        Call::Link { from, to } => format!("link {} {}", path(from), path(to)),
        Call::Rename { from, to, mode } => format!("rename {} {} {}", path(from), path(to), word_of(&RENAMES, mode)),
        Call::Getdents { handle, bytes } => format!("getdents h{} {bytes}", handle.0),
        Call::Seekdir { handle, position } => format!("seekdir h{} {position}", handle.0),
        Call::Map { handle, mapping, writable } => {
            format!("map h{} h{} {}", handle.0, mapping.0, if *writable { "rw" } else { "r" })
        }
        Call::Load { mapping, offset, size } => format!("load h{} {offset} {size}", mapping.0),
        Call::Store { mapping, offset, data: bytes } => format!("store h{} {offset} {}", mapping.0, data(bytes)),
        Call::Msync { mapping } => format!("msync h{}", mapping.0),
        Call::Unmap { mapping } => format!("unmap h{}", mapping.0),
    }
}

/// The words of a call, one after the other.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn octal(&mut self) -> Option<u16> {
        u16::from_str_radix(self.word()?, 8).ok()
    }

    fn handle(&mut self) -> Option<Handle> {
        self.word()?.strip_prefix('h')?.parse().ok().map(Handle)
    }

    fn path(&mut self) -> Option<Vec<String>> {
        let names = self.word()?.strip_prefix('/')?.split('/');
        Some(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    fn one_of<T: Copy>(&mut self, words: &[(&str, T)]) -> Option<T> {
        let word = self.word()?;
        words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        let word = self.word()?;
        let mut bytes = Vec::new();
        for run in word.split(',').filter(|run| *run != "none") {
            let (value, count) = run.split_once('x')?;
            bytes.extend(std::iter::repeat_n(value.parse::<u8>().ok()?, count.parse().ok()?));
        }
        Some(bytes)
    }

    fn flags(&mut self) -> Option<OpenFlags> {
        let mut words = self.word()?.split('+');
        let access = words.next()?;
        let (_, access) = ACCESS.iter().find(|(word, _)| *word == access)?;
        let mut flags = OpenFlags { access: *access, ..OpenFlags::default() };
        for word in words {
            let (_, flag) = FLAGS.iter().find(|(known, _)| *known == word)?;
            *flag(&mut flags) = true;
        }
        Some(flags)
    }
}

/// A call from its words.
pub fn read(text: &str) -> Option<Call> {
    let mut words = Words(text.split_whitespace());
    let w = &mut words;
    let call = match w.word()? {
        "stat" => Call::Stat { path: w.path()? },
        "links" => Call::CountLinks { path: w.path()? },
        "open" => Call::Open { path: w.path()?, flags: w.flags()?, mode: w.octal()?, handle: w.handle()? },
        "close" => Call::Close { handle: w.handle()? },
        "read" => Call::Read { handle: w.handle()?, size: w.number()? },
        "pread" => Call::Pread { handle: w.handle()?, offset: w.number()?, size: w.number()? },
        "write" => Call::Write { handle: w.handle()?, data: w.data()? },
        "pwrite" => Call::Pwrite { handle: w.handle()?, offset: w.number()?, data: w.data()? },
        "fstat" => Call::Fstat { handle: w.handle()? },
        "truncate" => Call::Truncate { path: w.path()?, size: w.number()? },
        "ftruncate" => Call::Ftruncate { handle: w.handle()?, size: w.number()? },
        "fsync" => Call::Fsync { handle: w.handle()?, data_only: false },
        "fdatasync" => Call::Fsync { handle: w.handle()?, data_only: true },
        "chmod" => Call::Chmod { path: w.path()?, mode: w.octal()? },
        "mkdir" => Call::Mkdir { path: w.path()?, mode: w.octal()? },
        "unlink" => Call::Unlink { path: w.path()? },
        "rmdir" => Call::Rmdir { path: w.path()? },
        "link" => Call::Link { from: w.path()?, to: w.path()? },
        "rename" => Call::Rename { from: w.path()?, to: w.path()?, mode: w.one_of(&RENAMES)? },
        "getdents" => Call::Getdents { handle: w.handle()?, bytes: w.number()? },
        "seekdir" => Call::Seekdir { handle: w.handle()?, position: w.number()? },
        "map" => Call::Map { handle: w.handle()?, mapping: w.handle()?, writable: w.word()? == "rw" },
        "load" => Call::Load { mapping: w.handle()?, offset: w.number()?, size: w.number()? },
        "store" => Call::Store { mapping: w.handle()?, offset: w.number()?, data: w.data()? },
        "msync" => Call::Msync { mapping: w.handle()? },
        "unmap" => Call::Unmap { mapping: w.handle()? },
        _ => return None,
    };
    words.word().is_none().then_some(call)
}

/// What happens to a mount before a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disturbance {
    None,
    /// Its kernel loses clean pages, or names.
    Shrink {
        client: usize,
        pages: bool,
    },
    Pause {
        client: usize,
        ms: u64,
    },
    /// Its process dies after this time.
    Dies {
        client: usize,
        in_ms: u64,
    },
    /// The disk of its machine is full for so long.
    Full {
        client: usize,
        ms: u64,
    },
}

impl Word for Disturbance {
    fn write(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Shrink { client, pages: true } => format!("drop-pages {client}"),
            Self::Shrink { client, pages: false } => format!("drop-names {client}"),
            Self::Pause { client, ms } => format!("pause {client} {ms}"),
            Self::Dies { client, in_ms } => format!("die {client} {in_ms}"),
            Self::Full { client, ms } => format!("full {client} {ms}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let client = |number: u64| usize::try_from(number).ok().filter(|client| *client < crate::system_calls::CLIENTS);
        let shrink = |word, pages| {
            let [of] = numbers(text, word)?;
            Some(Self::Shrink { client: client(of)?, pages })
        };
        let timed = |word, make: fn(usize, u64) -> Self| {
            let [of, ms] = numbers(text, word)?;
            Some(make(client(of)?, ms))
        };
        match text.split(' ').next()? {
            "none" => Some(Self::None),
            "drop-pages" => shrink("drop-pages", true),
            "drop-names" => shrink("drop-names", false),
            "pause" => timed("pause", |client, ms| Self::Pause { client, ms }),
            "die" => timed("die", |client, in_ms| Self::Dies { client, in_ms }),
            "full" => timed("full", |client, ms| Self::Full { client, ms }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_calls_are_read_as_they_were_written() {
        for text in [
            "stat /",
            "links /d0/f1",
            "open /f0 rw+create+excl+trunc+append+direct 644 h3",
            "open /d0 r 0 h4",
            "read h3 7",
            "pwrite h3 12 7x30,8x2",
            "write h3 none",
            "rename /f0 /d0/f1 exchange",
            "map h3 h9 rw",
            "store h9 0 1x1",
            "fdatasync h3",
        ] {
            assert_eq!(read(text).map(|call| write(&call)).as_deref(), Some(text));
        }
        assert_eq!((read("stat"), read("close 3"), read("close h3 4"), read("sleep 3")), (None, None, None, None));
    }
}
