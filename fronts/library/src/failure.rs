//! Why calls fail, as a program is told.

use std::fmt::Display;
use weft_protocol::Error;

/// Why a call fails. Behind a pointer, so that results of calls that succeed are passed in registers.
#[derive(Debug)]
pub struct Failure(Box<(i32, String)>);

/// Result of a call, or of a step of it.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this text.
    #[cold]
    pub fn new(errno: i32, text: impl Into<String>) -> Self {
        Self(Box::new((errno, text.into())))
    }

    /// As of errno(3).
    pub fn errno(&self) -> i32 {
        self.0.0
    }

    /// What was tried, on what, why it failed.
    pub fn text(&self) -> &str {
        &self.0.1
    }

    /// An argument that cannot be.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }
}

/// Adds to an error what was being done.
pub trait Explain<T> {
    /// `what` names the operation and its object: `open /a/b`.
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T> Explain<T> for weft_protocol::Result<T> {
    #[inline]
    fn explain<D: Display>(self, what: impl FnOnce() -> D) -> Outcome<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(explained(&error, what)),
        }
    }
}

#[cold]
fn explained<D: Display>(error: &Error, what: impl FnOnce() -> D) -> Failure {
    Failure::new(error.to_errno(), format!("{}: {error}", what()))
}
