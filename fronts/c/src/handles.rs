//! Handles: numbers that C holds, and what they stand for.
//!
//! A handle that was closed, one of another kind and one that was made up are told from those that are open
//! ([`crate::table`]).

use crate::border::check_not_forked;
use crate::table::{Held, Table};
use std::sync::Arc;
use weft_library::{Failure, OpenFile, Outcome, Process};

/// Something that C has handles of.
pub trait Kind: Sized + Send + Sync + 'static {
    /// Not 0, so that no handle is; below 8.
    const NUMBER: usize;
    /// What it is called in C.
    const NAME: &str;

    /// The handles of this kind.
    fn table() -> &'static Table<Self>;

    /// The process that made it.
    fn made_in(&self) -> Process;
}

/// What C calls a pointer and never follows.
#[repr(transparent)]
pub struct Handle<T>(usize, std::marker::PhantomData<fn() -> T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T: Kind> Handle<T> {
    /// No handle.
    pub const NONE: Self = Self(0, std::marker::PhantomData);

    /// Makes a handle.
    pub fn new(value: Arc<T>) -> Outcome<Self> {
        let full = || Failure::new(libc::EMFILE, format!("there are too many of {}", T::NAME));
        Ok(Self(T::table().insert(value).ok_or_else(full)?, std::marker::PhantomData))
    }

    /// What it stands for, for the length of a call.
    #[inline(always)]
    pub fn get(self) -> Outcome<Held<T>> {
        let value = T::table().get(self.0).ok_or_else(|| self.bad())?;
        check_not_forked(value.made_in())?;
        Ok(value)
    }

    /// Closes it. What it stands for lives on until the last call that uses it returns.
    pub fn take(self) -> Outcome<Arc<T>> {
        // A forked child may not.
        drop(self.get()?);
        T::table().take(self.0).ok_or_else(|| self.bad())
    }

    #[cold]
    fn bad(self) -> Failure {
        let what =
            if self.0 == 0 { "none was given".to_owned() } else { format!("{:#x} is closed, or no such", self.0) };
        Failure::new(libc::EBADF, format!("bad handle, where a {} is needed: {what}", T::NAME))
    }
}

impl Kind for OpenFile {
    const NUMBER: usize = 2;
    const NAME: &str = "weft_file_t";

    fn table() -> &'static Table<Self> {
        static TABLE: Table<OpenFile> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

/// A handle of an open file or directory.
pub type FileHandle = Handle<OpenFile>;
