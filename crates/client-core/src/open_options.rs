//! How a file is opened.

use weft_protocol::message::shard::{Access, ForGroup, OpenFlags, PageCache};

/// How a file is opened. `R`: what memory RDMA transfers register, in the shell's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions<R> {
    pub access: Access,
    pub truncate: bool,
    /// Each write goes to the end of the file.
    pub append: bool,
    /// No buffering: each call goes to the storage server.
    pub direct: bool,
    /// Whether a kernel above may keep pages of the file.
    pub page_cache: PageCache,
    /// Whose memory is registered for this handle's reads, and for its writes that are not buffered, where they go by
    /// RDMA; `None`: the client's setting.
    pub registration: Option<R>,
    /// Of a split file: a write for which the own part's node has no space goes on at another node.
    pub spill: bool,
    /// Of a split file: a part that a write makes goes to one node after the other, not to the client's own.
    pub spread: bool,
}

/// What is chosen for a handle that joins a group: the rest is as the group has the file open. `R`: as of
/// [`OpenOptions`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinOptions<R> {
    /// See [`OpenOptions::registration`].
    pub registration: Option<R>,
    /// See [`OpenOptions::spill`].
    pub spill: bool,
    /// See [`OpenOptions::spread`].
    pub spread: bool,
}

impl<R> Default for JoinOptions<R> {
    fn default() -> Self {
        Self { registration: None, spill: false, spread: false }
    }
}

impl<R> OpenOptions<R> {
    /// Open for reading.
    pub const READ: Self = Self::of(Access::Read);
    /// Open for writing, truncated.
    pub const WRITE: Self = Self {
        access: Access::Write,
        truncate: true,
        append: false,
        direct: false,
        page_cache: PageCache::None,
        registration: None,
        spill: false,
        spread: false,
    };

    /// Open with nothing special.
    pub const fn of(access: Access) -> Self {
        let (truncate, append, direct, page_cache) = (false, false, false, PageCache::None);
        Self { access, truncate, append, direct, page_cache, registration: None, spill: false, spread: false }
    }

    /// What the shard is told of them.
    pub(crate) fn flags(&self, group: Option<ForGroup>) -> OpenFlags {
        let Self { access, truncate, direct, page_cache, .. } = *self;
        OpenFlags { access, truncate, direct, page_cache, group }
    }
}
