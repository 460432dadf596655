//! A run as a text: what its programs do, which faults happen, and how long messages are under way.
//!
//! A seed means a run only for as long as nobody draws another number. A script means it by itself: each *decision* of
//! a run has a line, which says where it belongs (the round of calls of mounts, or a part of the virtual time), what
//! it is about, and what was decided. Where a script says nothing the *usual* happens: no fault, and a message is
//! under way for some milliseconds. So a line that is left out changes nothing else, and a script can be shortened
//! (`shorten.rs`) until it says only what matters. A line that fits nothing any more is passed over, and counted.
//!
//!     run: mounts
//!     round 12
//!       call: client 1 +0 open /f0 rw+create 644 h3
//!       call #2: client 2 +4 stat /f0
//!       recall node0>client2 #3: lost
//!
//! The third message of this kind between these two in this round is lost.
//!
//! Not here: who decides what (`choices.rs`); the words for calls (`script/calls.rs`) and of programs of native runs
//! (`script/programs.rs`).

pub mod calls;
pub mod programs;

use crate::Kind;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Virtual time that belongs together in a native run, milliseconds.
pub const WINDOW_MS: u64 = 200;

/// Where a decision belongs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The round of calls, or the window of time.
    pub step: u64,
    /// What it is about, without a colon.
    pub what: String,
    /// Of the decisions of this step about this, from 1 on.
    pub number: u32,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub kind: Kind,
    /// Names may be used by a call while another one of its round changes them.
    pub races: bool,
    pub entries: BTreeMap<Key, String>,
}

impl Script {
    pub fn new(kind: Kind) -> Self {
        Self { kind, races: false, entries: BTreeMap::new() }
    }

    /// What was decided about this, in the order of their steps.
    pub fn about<'a>(&'a self, what: &'a str) -> impl Iterator<Item = (&'a Key, &'a str)> {
        self.entries.iter().filter(move |(key, _)| key.what == what).map(|(key, value)| (key, value.as_str()))
    }

    /// The numbers of lines of its text.
    pub fn lines(&self) -> usize {
        self.to_string().lines().count()
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run: {}{}", self.kind, if self.races { " races" } else { "" })?;
        let mut latest = None;
        for (Key { step, what, number }, value) in &self.entries {
            if latest != Some(step) {
                if self.kind.has_mounts() {
                    writeln!(f, "round {step}")?;
                } else {
                    writeln!(f, "from {} ms", step * WINDOW_MS)?;
                }
                latest = Some(step);
            }
            match number {
                1 => writeln!(f, "  {what}: {value}")?,
                _ => writeln!(f, "  {what} #{number}: {value}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut script: Option<Self> = None;
        let mut step = 0;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            read_line(line, &mut script, &mut step).map_err(|what| format!("line {}: {what}", index + 1))?;
        }
        script.ok_or_else(|| "it has no line `run: KIND`".to_owned())
    }
}

fn read_line(line: &str, script: &mut Option<Script>, step: &mut u64) -> Result<(), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is not a number"));
    let Some(known) = script else {
        let words: Vec<&str> = line.strip_prefix("run: ").unwrap_or_default().split(' ').collect();
        let kind = words[0].parse::<Kind>().map_err(|()| "a script begins with `run: KIND`".to_owned())?;
        *script = Some(Script { races: words.contains(&"races"), ..Script::new(kind) });
        return Ok(());
    };
    let Some((about, value)) = line.split_once(": ") else {
        *step = if let Some(round) = line.strip_prefix("round ") {
            number(round)?
        } else if let Some(ms) = line.strip_prefix("from ").and_then(|line| line.strip_suffix(" ms")) {
            number(ms)? / WINDOW_MS
        } else {
            return Err(format!("`{line}` is neither `round N`, `from MS ms` nor `WHAT: DECISION`"));
        };
        return Ok(());
    };
    let (what, ordinal) = match about.split_once(" #") {
        None => (about, 1),
        Some((what, ordinal)) => (what, u32::try_from(number(ordinal)?).map_err(|error| error.to_string())?),
    };
    known.entries.insert(Key { step: *step, what: what.to_owned(), number: ordinal }, value.to_owned());
    Ok(())
}

/// What can be decided, as words of a line.
pub trait Word: Sized + PartialEq {
    fn write(&self) -> String;
    /// `None`: these are not such words.
    fn read(text: &str) -> Option<Self>;
}

impl Word for u64 {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Word for bool {
    fn write(&self) -> String {
        if *self { "yes" } else { "no" }.to_owned()
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        }
    }
}

impl Word for Vec<u64> {
    fn write(&self) -> String {
        self.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }

    fn read(text: &str) -> Option<Self> {
        text.split_whitespace().map(|word| word.parse().ok()).collect()
    }
}

/// So many numbers, after a word.
pub fn numbers<const COUNT: usize>(text: &str, word: &str) -> Option<[u64; COUNT]> {
    let rest = text.strip_prefix(word)?;
    Vec::read(rest)?.try_into().ok()
}
