//! Opens that are for a group by the call that opens the name, and perhaps makes the file: one message, where an open
//! and an [`Files::open_group`] are two, and no lease that has to be given back.
//!
//! Which files are opened so the caller wishes by their layout, which only the shard knows yet. Others are opened as
//! ever.

use crate::cache::Cached;
use crate::file_state::Opened;
use crate::files::Files;
use crate::handle::Handle;
use crate::member::Member;
use crate::objects::Registration;
use crate::open_options::{JoinOptions, OpenOptions};
use crate::shell::Shell;
use weft_protocol::message::shard::{CreateFile, FirstObjects, ForGroup, GroupLayouts};
use weft_protocol::{Credentials, GroupOpen, InodeNumber, Name, Plan, Result, SessionId, ShardId};

/// Which files an open is to open for a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupWish {
    pub layouts: GroupLayouts,
    /// See [`GroupOpen::synced`].
    pub synced: bool,
}

impl GroupWish {
    /// Returns true if a lease that is still held may answer the open. There is none on the contents of a split file.
    pub(crate) fn may_reopen(wish: Option<Self>) -> bool {
        wish.is_none_or(|wish| wish.layouts == GroupLayouts::Split)
    }
}

/// A file that was opened by its name, or by its inode. `T`: what else the open told of it.
pub enum OpenedFile<S: Shell, T> {
    Own(Handle<S>, T),
    /// For a group, which this client has joined.
    OfGroup(Box<Member<S>>),
}

impl<S: Shell, T> OpenedFile<S, T> {
    /// Returns the handle of an open without a wish.
    pub(crate) fn own(self) -> (Handle<S>, T) {
        match self {
            Self::Own(handle, told) => (handle, told),
            Self::OfGroup(_) => unreachable!("it is opened for a group only if that was wished"),
        }
    }
}

/// An open in flight with a wish. Renewals name the group from before the call is sent: one that does not would tell
/// the shard that this client has left it.
pub(crate) struct ForOthers<'a, S: Shell> {
    files: &'a Files<S>,
    group: SessionId,
    wish: GroupWish,
}

impl<'a, S: Shell> ForOthers<'a, S> {
    /// `None`: there is no wish, or no room for one more group.
    pub fn begin(files: &'a Files<S>, shard: ShardId, wish: Option<GroupWish>) -> Option<Self> {
        let wish = wish?;
        let calls = files.calls();
        let group = SessionId::of_group(calls.shell.random());
        calls.groups.join(group, shard).ok()?;
        Some(Self { files, group, wish })
    }

    pub fn flag(&self) -> ForGroup {
        ForGroup { group: self.group, layouts: self.wish.layouts }
    }

    /// Joins the group that the file was opened for. No message is awaited: the shard knows.
    pub fn join(
        self,
        who: &Credentials,
        opened: Opened,
        options: OpenOptions<Registration<S>>,
    ) -> Result<Box<Member<S>>> {
        let OpenOptions { access, append, registration, spill, spread, .. } = options;
        let Opened { attributes, capability, others, .. } = opened;
        let open = GroupOpen {
            inode: attributes.inode,
            group: self.group,
            access,
            append,
            synced: self.wish.synced,
            layout: attributes.layout,
            rights: capability.into_iter().chain(others).collect(),
        };
        Member::new(self.files, who, open, JoinOptions { registration, spill, spread }).map(Box::new)
    }
}

impl<S: Shell> Files<S> {
    /// Objects for the file that an open makes for a group, if it may make one that has some: the call that makes it
    /// gives it these.
    pub(crate) async fn first_objects(
        &self,
        who: &Credentials,
        (parent, name): (InodeNumber, &Name),
        options: &OpenOptions<Registration<S>>,
        create: Option<CreateFile>,
        wish: Option<GroupWish>,
    ) -> Option<FirstObjects> {
        let (create, wish) = (create?, wish?);
        // What the directory hands down may be another layout by now: then the file gets its objects as any other.
        let handed_down = || self.calls().session.cache().latest_plan(parent).unwrap_or_default();
        let plan = create.plan.unwrap_or_else(handed_down);
        let may_have_some = plan != Plan::Split && wish.layouts != GroupLayouts::Split;
        let is_there = matches!(self.cached(who, parent, name), Cached::Found(..));
        if !may_have_some || is_there || options.truncate || !options.access.writes() {
            return None;
        }
        self.objects.first_objects(plan).await
    }
}

impl<S: Shell> Drop for ForOthers<'_, S> {
    fn drop(&mut self) {
        self.files.calls().groups.leave(self.group);
    }
}
