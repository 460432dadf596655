//! Handles: numbers that C holds, and what they stand for.
//!
//! A number has the kind of the thing, its place in the table and the place's generation. So a handle that was closed,
//! one of another kind and one that was made up are told from those that are open.

use crate::border::check_not_forked;
use sharded_slab::{Config, Entry, Slab};
use std::sync::{Arc, LazyLock};
use weft_library::{Failure, OpenFile, Outcome, Process};

/// Leaves the lower bits of a handle to its kind.
pub struct Keys;

/// Bits of a handle that tell its kind.
const KIND_BITS: usize = 3;

impl Config for Keys {
    const RESERVED_BITS: usize = KIND_BITS;
}

/// Something that C has handles of.
pub trait Kind: Sized + Send + Sync + 'static {
    /// Not 0, so that no handle is.
    const NUMBER: usize;
    /// What it is called in C.
    const NAME: &str;

    /// The handles of this kind.
    fn table() -> &'static Table<Self>;

    /// The process that made it.
    fn made_in(&self) -> Process;
}

/// The handles of a kind.
pub struct Table<T>(Slab<Arc<T>, Keys>);

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> LazyLock<Self> {
        LazyLock::new(|| Self(Slab::new_with_config::<Keys>()))
    }
}

/// Keeps what a handle stands for.
pub type Held<T> = Entry<'static, Arc<T>, Keys>;

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
        let key = T::table().0.insert(value).ok_or_else(full)?;
        Ok(Self(key << KIND_BITS | T::NUMBER, std::marker::PhantomData))
    }

    /// What it stands for, for the length of a call.
    #[inline]
    pub fn get(self) -> Outcome<Held<T>> {
        let value = self.key().and_then(|key| T::table().0.get(key)).ok_or_else(|| self.bad())?;
        check_not_forked(value.made_in())?;
        Ok(value)
    }

    /// Ends it. What it stands for lives on as long as somebody uses it.
    pub fn take(self) -> Outcome<Arc<T>> {
        let value = Arc::clone(&*self.get()?);
        let is_ours = self.key().is_some_and(|key| T::table().0.remove(key));
        if is_ours { Ok(value) } else { Err(self.bad()) }
    }

    fn key(self) -> Option<usize> {
        (self.0 & ((1 << KIND_BITS) - 1) == T::NUMBER).then_some(self.0 >> KIND_BITS)
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
        static TABLE: LazyLock<Table<OpenFile>> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

/// A handle of an open file or directory.
pub type FileHandle = Handle<OpenFile>;
