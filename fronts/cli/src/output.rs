//! Where words go: the answer to standard output, the story to standard error.

use crate::failure::{Failure, Outcome};
use crate::interrupt;
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// The answer of a command. Buffered; [`Answer::finish`] sends it.
pub struct Answer(BufWriter<Stdout>);

impl Answer {
    /// The answer on standard output.
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout()))
    }

    /// One line.
    pub fn line(&mut self, text: Arguments<'_>) -> Outcome<()> {
        self.bytes(text.to_string().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.0.write_all(bytes).map_err(|error| Failure::of_output(&error))
    }

    /// A value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Outcome<()> {
        let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(format!("as JSON: {error}")))?;
        self.line(format_args!("{text}"))
    }

    /// Sends what is buffered.
    pub fn finish(mut self) -> Outcome<()> {
        self.0.flush().map_err(|error| Failure::of_output(&error))
    }
}

/// Prints a whole answer at once.
pub fn print(text: &str) -> Outcome<()> {
    let mut answer = Answer::new();
    answer.bytes(text.as_bytes())?;
    answer.finish()
}

/// Prints a value as the JSON answer.
pub fn print_json(value: &impl Serialize) -> Outcome<()> {
    let mut answer = Answer::new();
    answer.json(value)?;
    answer.finish()
}

/// Prints the answer as JSON or as text for people.
pub fn print_either(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// A sentence of the story. Nobody reading it is no reason to stop.
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "weft: {text}");
}

/// A failure that does not end the command.
pub fn warn(failure: &Failure) {
    if interrupt::happened() {
        return;
    }
    let _ = writeln!(io::stderr().lock(), "{failure}");
}

/// Whether a person sees the story as it goes.
pub fn story_is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Bytes of a path or name for people: control characters escaped, so that a name cannot play with the terminal.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.into_owned() }
}

/// Bytes of a path or name in JSON: as text, and in hexadecimal where no text is the same bytes.
pub struct JsonName {
    /// With U+FFFD in place of bytes that are not UTF-8.
    pub text: String,
    /// `None`: `text` is exact.
    pub hex: Option<String>,
}

impl JsonName {
    /// As JSON has it.
    pub fn new(bytes: &[u8]) -> Self {
        let hex = std::str::from_utf8(bytes).is_err().then(|| hexadecimal(bytes));
        Self { text: String::from_utf8_lossy(bytes).into_owned(), hex }
    }
}

/// Bytes as hexadecimal text.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_json_is_the_name() {
        let name = JsonName::new(b"a\"b\n\x1b");
        assert_eq!((name.text.as_bytes(), name.hex), (&b"a\"b\n\x1b"[..], None));
        let name = JsonName::new(b"a\xff");
        assert_eq!((name.text.as_str(), name.hex.as_deref()), ("a\u{fffd}", Some("61ff")));
    }

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(printable("straße".as_bytes()), "straße");
        assert_eq!(printable(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }
}
