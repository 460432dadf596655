//! How a command ends, and what it says when it does not end well.
//!
//! An error names what was tried, on which thing, why it failed, and what to do:
//! ```text
//! weft: mount /mnt/w: not an empty directory
//!   remedy: choose another mount point, or empty this one
//! ```

use std::fmt::{self, Display};
use std::io;
use weft_client::FindError;
use weft_protocol::Error;
use weft_protocol::error::errno;
use weft_sys::own_directory;

/// The end of a command that did what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Exit code 0.
    Done,
    /// Exit code 1: the answer is no (differs, not running, not healthy). The answer itself was printed.
    No,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    text: String,
    remedy: Option<String>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// What was asked for is not there. Exit code 1.
    No,
    /// Exit code 2.
    Failed,
    /// Another machine could not be asked. Exit code 2.
    Unreachable,
    /// Nobody reads the answer any more. Exit code 0, nothing is said.
    ClosedPipe,
}

/// Result of a command or of a step of it.
pub type Outcome<T = Ending> = Result<T, Failure>;

impl Failure {
    /// A failure with exit code 2.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), remedy: None, kind: Kind::Failed }
    }

    /// What was named is not there: exit code 1.
    pub fn no(text: impl Into<String>) -> Self {
        Self { kind: Kind::No, ..Self::new(text) }
    }

    /// A machine that could not be asked.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self { kind: Kind::Unreachable, ..Self::new(text) }
    }

    /// What the user can do about it.
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// An error of writing the answer. That the reader has gone is no error.
    pub fn of_output(error: &io::Error) -> Self {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { Kind::ClosedPipe } else { Kind::Failed };
        Self { kind, ..Self::new(format!("standard output: {error}")) }
    }

    /// An error of the file system, met while doing `what`.
    pub fn of_weft(what: impl Display, error: &Error) -> Self {
        let failure = Self::new(format!("{what}: {error}"));
        match error {
            Error::Device(errno::EMFILE | errno::ENFILE) => Self::new(format!("{what}: too many open files"))
                .remedy("raise the limit of open files (`ulimit -n`); `weft doctor` shows it"),
            Error::NotFound => Self { kind: Kind::No, ..failure },
            Error::NoSpace => failure.remedy("`weft df` shows the free space of each node"),
            Error::Unreachable => failure.remedy("`weft status` shows which nodes answer"),
            Error::Busy => {
                failure.remedy("try again; `weft status -v` shows its connections, `weft debug stuck` its requests")
            }
            Error::AccessDenied => failure.remedy("`weft stat` shows owner and permissions"),
            Error::NotPermitted => failure.remedy("only its owner may do that: `weft stat` shows who it is"),
            Error::Device(_) => failure.remedy("the logs of the nodes say more: `weft status -v` shows where they are"),
            Error::SessionEnded => failure.remedy("the connection was lost for too long: run the command again"),
            _ => failure,
        }
    }

    /// An error of this machine, met while doing `what`.
    pub fn of_io(what: impl Display, error: &io::Error) -> Self {
        let failure = Self::new(format!("{what}: {}", without_errno(error)));
        let not_own = error.get_ref().and_then(|inner| inner.downcast_ref::<own_directory::Error>());
        let failure = not_own.and_then(own_directory::Error::remedy).into_iter().fold(failure, Self::remedy);
        if error.kind() == io::ErrorKind::NotFound { Self { kind: Kind::No, ..failure } } else { failure }
    }

    /// Puts the node, host or path before the text.
    pub fn within(self, place: impl Display) -> Self {
        Self { text: format!("{place}: {}", self.text), ..self }
    }

    /// The text without the remedy.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What to do, when something is known to help.
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The same as exit code 2: used where one thing of several is not there.
    pub fn failed(self) -> Self {
        if self.kind == Kind::No { Self { kind: Kind::Failed, ..self } } else { self }
    }

    /// Whether the answer is just "no".
    pub fn is_no(&self) -> bool {
        self.kind == Kind::No
    }

    /// Whether another machine could not be asked.
    pub fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
    }

    /// Whether to stop in silence.
    pub fn is_closed_pipe(&self) -> bool {
        self.kind == Kind::ClosedPipe
    }

    /// The exit code of a command that fails so.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::ClosedPipe => 0,
            Kind::No => 1,
            Kind::Failed | Kind::Unreachable => 2,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weft: {}", self.text)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n  remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        let remedy = error.remedy();
        let failure = match &error {
            FindError::NotFound(error) => Failure::no(error.to_string()),
            FindError::Several(text) => Failure::new(text.as_str()),
            FindError::Key { error, .. } => Failure::of_io("key", error).failed(),
            FindError::Runtime(error) => Failure::of_io("runtime directory", error),
        };
        remedy.into_iter().fold(failure, Failure::remedy)
    }
}

/// Adds to an error what was being done.
pub trait Explain<T> {
    /// `what` names the operation and its object: `read /a/b`.
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T> Explain<T> for Result<T, Error> {
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| Failure::of_weft(what(), &error))
    }
}

impl<T> Explain<T> for io::Result<T> {
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| Failure::of_io(what(), &error))
    }
}

impl<T> Explain<T> for rustix::io::Result<T> {
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| Failure::of_io(what(), &error.into()))
    }
}

/// The text of an error as people know it: "No such file or directory (os error 2)" without the number, which says no
/// more.
fn without_errno(error: &io::Error) -> String {
    let text = error.to_string();
    let Some(end) = text.rfind(" (os error ") else { return text };
    // What stands before the system's own words, such as a path, stays as it is.
    let (before, words) = text[..end].rsplit_once(": ").map_or(("", &text[..end]), |(before, words)| (before, words));
    let colon = if before.is_empty() { "" } else { ": " };
    format!("{before}{colon}{}", words.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_no_from_failed() {
        let not_found = io::Error::from_raw_os_error(2);
        assert_eq!(Failure::of_weft("stat /a", &Error::NotFound).exit_code(), 1);
        assert_eq!(Failure::of_io("stat /a", &not_found).exit_code(), 1);
        assert_eq!(Failure::of_io("stat /a", &not_found).failed().exit_code(), 2);
        assert_eq!(Failure::of_weft("stat /a", &Error::AccessDenied).exit_code(), 2);
        assert_eq!(Failure::of_output(&io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
        assert_eq!(Failure::of_output(&io::Error::from_raw_os_error(28)).exit_code(), 2);
    }

    #[test]
    fn a_failure_says_what_where_and_what_to_do() {
        let failure = Failure::of_io("read x", &io::Error::from_raw_os_error(13)).within("n03").remedy("ask");
        assert_eq!(failure.to_string(), "weft: n03: read x: permission denied\n  remedy: ask");
        let error = io::Error::new(io::ErrorKind::NotFound, format!("/A/B: {}", io::Error::from_raw_os_error(2)));
        assert_eq!(Failure::of_io("list", &error).text(), "list: /A/B: no such file or directory");
    }
}
