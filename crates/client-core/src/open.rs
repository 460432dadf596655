//! Opening and closing files.

use crate::cache::{Cached, Changing};
use crate::calls::Answer;
use crate::entry::Entry;
use crate::file_state::Opened;
use crate::files::Files;
use crate::handle::Handle;
use crate::lock::lock;
use crate::lookup::Told;
use crate::objects::Registration;
use crate::open_for_group::{ForOthers, GroupWish, OpenedFile};
use crate::open_inode::OpenInode;
use crate::open_options::OpenOptions;
use crate::opens::Doubtful;
use crate::shell::{Monitor, Shell};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_protocol::message::shard::{CreateFile, ShardAnswer, ShardRequest};
use weft_protocol::{
    AttributeChanges, Attributes, Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, ShardId, routing,
};

/// An open in flight; it ends when this is dropped.
struct Opening<'a, S: Shell> {
    files: &'a Files<S>,
    number: u64,
}

impl<'a, S: Shell> Opening<'a, S> {
    fn begin(files: &'a Files<S>) -> Self {
        Self { files, number: files.calls().session.opens.begin() }
    }

    /// Whether the file was reported since this open began.
    fn was_reported(&self, inode: InodeNumber) -> bool {
        self.files.calls().session.opens.was_reported_since(inode, self.number)
    }
}

/// What became of the open of a name: the file is open, or why not.
type OpenedName<S> = ControlFlow<OpenedFile<S, Entry>, Unopened>;

/// Why an open of a name has opened nothing.
enum Unopened {
    /// The name means this file of another shard.
    Elsewhere(InodeNumber),
    /// The shard opened this file, but the session ended before that was known here, and the file has gone with it.
    Lost(InodeNumber),
}

fn opened_by_itself<S: Shell>((handle, entry): (Handle<S>, Entry)) -> OpenedName<S> {
    ControlFlow::Break(OpenedFile::Own(handle, entry))
}

impl<S: Shell> Drop for Opening<'_, S> {
    fn drop(&mut self) {
        for doubtful in self.files.calls().session.opens.end(self.number) {
            self.files.certain_of(doubtful);
        }
    }
}

impl<S: Shell> Files<S> {
    /// No reply that opens the file is on its way any more of those that may have been.
    fn certain_of(&self, doubtful: Doubtful) {
        let open = {
            let mut table = lock(&self.open);
            if table.get(doubtful.inode).is_some_and(|open| open.is_nameless()) {
                table.drop_idle(doubtful.inode);
            }
            table.get(doubtful.inode).cloned()
        };
        let calls = self.calls();
        let Some(open) = open else {
            return calls.give_back_now(doubtful.inode, doubtful.stamp, doubtful.at_once);
        };
        // Replies to two opens passed each other, or a lease of before is kept.
        if doubtful.is_unawaited || open.is_open() {
            return open.note_grant(doubtful.stamp);
        }
        match open.is_dirty_now() {
            // As long as the file counts as open, the shard asks the storage server what was written.
            Some(true) => open.note_grant(doubtful.stamp),
            Some(false) => calls.give_back_now(doubtful.inode, doubtful.stamp, doubtful.at_once),
            // The state is in use, perhaps by a recall that writes back, and may be left dirty.
            None => {
                calls.session.opens.decide_later(doubtful);
                calls.shell.release_soon();
            }
        }
    }

    /// Gives back leases that are of no use any more.
    pub async fn release_surplus(&self) {
        self.calls().settle_given_up().await;
        for doubtful in self.calls().session.opens.certain() {
            self.certain_of(doubtful);
        }
        self.calls().release_surplus().await;
    }

    /// Opens an inode. One message.
    pub async fn open(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        options: OpenOptions<Registration<S>>,
    ) -> Result<Handle<S>> {
        self.open_known(who, inode, options, None).await.map(|opened| opened.own().0)
    }

    async fn open_known(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        options: OpenOptions<Registration<S>>,
        wish: Option<GroupWish>,
    ) -> Result<OpenedFile<S, Attributes>> {
        if GroupWish::may_reopen(wish)
            && let Some((handle, attributes)) = self.reopen(who, inode, options).await
        {
            return Ok(OpenedFile::Own(handle, attributes));
        }
        let opening = Opening::begin(self);
        let for_others = ForOthers::begin(self, routing::of_inode(inode), wish);
        let in_flight = options.truncate.then(|| self.calls().begin_change(Changing::Attributes(inode)));
        let flags = options.flags(for_others.as_ref().map(ForOthers::flag));
        let request = ShardRequest::Open { inode, flags };
        let called = self.calls().call_past_pages(who, routing::of_inode(inode), request).await;
        if called.is_err() && options.truncate {
            self.doubt_cut(routing::of_inode(inode), Some(inode)).await;
        }
        let Answer { answer, stamp, session, now_ms, .. } = called?;
        let ShardAnswer::Opened { attributes, capability, others, grants, .. } = answer else {
            return Err(Error::Malformed);
        };
        if let Some(mut cache) = self.calls().session.cache_for(session) {
            cache.learn_attributes(&attributes, grants, stamp);
        }
        drop(in_flight);
        let opened = Opened { attributes, capability, others, grants, stamp, session, access: options.access };
        if grants.contains(Grants::FOR_GROUP) {
            let for_others = for_others.ok_or(Error::Malformed)?;
            return for_others.join(who, opened, options).map(OpenedFile::OfGroup);
        }
        let (handle, _) = self.opened(who, &opened, now_ms, options, &opening).await?;
        Ok(OpenedFile::Own(handle, opened.attributes))
    }

    /// Opens a name, and makes it when it is not there and `create` says how. One message for both, and one more to
    /// open an inode of another shard.
    pub async fn open_at(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        options: OpenOptions<Registration<S>>,
        create: Option<CreateFile>,
    ) -> Result<(Handle<S>, Entry)> {
        let open_in = async |part| self.open_in(who, (part, name), options, create, None).await;
        self.in_part(who, parent, name, open_in).await.map(OpenedFile::own)
    }

    /// As [`Files::open_at`], for a group if the file is one that `wish` is about: by the same message, and without a
    /// lease on its contents.
    pub async fn open_for_group(
        &self,
        who: &Credentials,
        (parent, name): (InodeNumber, &Name),
        options: OpenOptions<Registration<S>>,
        create: Option<CreateFile>,
        wish: GroupWish,
    ) -> Result<OpenedFile<S, Entry>> {
        let open_in = async |part| self.open_in(who, (part, name), options, create, Some(wish)).await;
        self.in_part(who, parent, name, open_in).await
    }

    async fn open_in(
        &self,
        who: &Credentials,
        place: (InodeNumber, &Name),
        options: OpenOptions<Registration<S>>,
        create: Option<CreateFile>,
        wish: Option<GroupWish>,
    ) -> Result<OpenedFile<S, Entry>> {
        let mut gone = None;
        loop {
            match self.open_name(who, place, options, create, wish).await? {
                ControlFlow::Break(opened) => return Ok(opened),
                ControlFlow::Continue(Unopened::Elsewhere(inode)) => {
                    match self.open_at_its_shard(who, place, inode, options, wish).await {
                        // It meant another inode by then, or is about to go.
                        Err(Error::Stale) if gone == Some(inode) => return Err(Error::NotFound),
                        Err(Error::Stale) => gone = Some(inode),
                        opened => return opened,
                    }
                }
                ControlFlow::Continue(Unopened::Lost(inode)) if gone == Some(inode) => return Err(Error::NotFound),
                ControlFlow::Continue(Unopened::Lost(inode)) => gone = Some(inode),
            }
        }
    }

    async fn open_at_its_shard(
        &self,
        who: &Credentials,
        place: (InodeNumber, &Name),
        inode: InodeNumber,
        options: OpenOptions<Registration<S>>,
        wish: Option<GroupWish>,
    ) -> Result<OpenedFile<S, Entry>> {
        let since = self.calls().session.reports();
        let (handle, attributes) = match self.open_known(who, inode, options, wish).await? {
            OpenedFile::Own(handle, attributes) => (handle, attributes),
            OpenedFile::OfGroup(member) => return Ok(OpenedFile::OfGroup(member)),
        };
        let told = Told { asked: false, since };
        let entry = self.entry_of_open(who, place, &attributes, &handle.open, told).await;
        let (handle, entry) = self.handle_or_close(handle, entry).await?;
        Ok(OpenedFile::Own(handle, entry))
    }

    async fn open_name(
        &self,
        who: &Credentials,
        (parent, name): (InodeNumber, &Name),
        options: OpenOptions<Registration<S>>,
        create: Option<CreateFile>,
        wish: Option<GroupWish>,
    ) -> Result<OpenedName<S>> {
        let may_be_there = create.is_none_or(|create| !create.exclusive);
        if may_be_there
            && GroupWish::may_reopen(wish)
            && let Cached::Found(inode, FileKind::Regular) = self.cached(who, parent, name)
            && let Some((handle, attributes)) = self.reopen(who, inode, options).await
        {
            let entry = self.entry_of_open(who, (parent, name), &attributes, &handle.open, Told::HERE).await;
            return self.handle_or_close(handle, entry).await.map(opened_by_itself);
        }
        let objects = self.first_objects(who, (parent, name), &options, create, wish).await;
        let opening = Opening::begin(self);
        let session = &self.calls().session;
        let since = session.reports();
        let for_others = ForOthers::begin(self, routing::of_name(parent, name), wish);
        let flags = options.flags(for_others.as_ref().map(ForOthers::flag));
        let request = ShardRequest::OpenAt { parent, name: name.clone(), flags, create, objects: objects.clone() };
        let changes = create.is_some() || options.truncate;
        let in_flight = self.calls().begin_change_of_names(changes.then_some((parent, name)));
        let called = self.calls().call_past_pages(who, routing::of_name(parent, name), request).await;
        if called.is_err() && options.truncate {
            self.doubt_cut(routing::of_name(parent, name), None).await;
        }
        let Answer { answer, stamp, session: asked_by, resent, now_ms, .. } = called?;
        objects.iter().for_each(|objects| self.objects.take_back(objects, &answer));
        let (attributes, (capability, others), created, grants) = match answer {
            ShardAnswer::Opened { attributes, capability, others, created, grants } => {
                (attributes, (capability, others), created, grants)
            }
            ShardAnswer::Absent { grants } => {
                self.learn_absent(parent, name, grants, (asked_by, stamp, resent));
                return Err(Error::NotFound);
            }
            ShardAnswer::Remote { inode, kind, grants } => {
                if let Some(mut cache) = session.cache_for(asked_by) {
                    if resent {
                        cache.doubt_name(parent, name, stamp);
                    } else {
                        cache.learn_name(parent, name, Some((inode, kind)), grants, stamp);
                    }
                }
                return match kind {
                    FileKind::Regular => Ok(ControlFlow::Continue(Unopened::Elsewhere(inode))),
                    FileKind::Directory => Err(Error::IsDirectory),
                    FileKind::Symlink => Err(Error::SymlinkLoop),
                };
            }
            ShardAnswer::Entry { attributes, .. } => {
                let directory = attributes.kind == FileKind::Directory;
                return Err(if directory { Error::IsDirectory } else { Error::SymlinkLoop });
            }
            _ => return Err(Error::Malformed),
        };
        let is_new = created && !resent;
        let mut valid = (0, 0);
        if let Some(mut cache) = session.cache_for(asked_by) {
            if is_new {
                valid = cache.learn_made((parent, name), &attributes, grants, stamp, now_ms);
            } else {
                if resent {
                    cache.doubt_name(parent, name, stamp);
                } else if !options.truncate || grants.contains(Grants::ENTRY) {
                    // A file that was cut is opened, whatever has become of its name meanwhile: then there is no lease.
                    cache.learn_name(parent, name, Some((attributes.inode, attributes.kind)), grants, stamp);
                }
                cache.learn_attributes(&attributes, grants, stamp);
            }
        }
        drop(in_flight);
        let access = options.access;
        let opened = Opened { attributes, capability, others, grants, stamp, session: asked_by, access };
        if grants.contains(Grants::FOR_GROUP) {
            let member = for_others.ok_or(Error::Malformed)?.join(who, opened, options)?;
            return Ok(ControlFlow::Break(OpenedFile::OfGroup(member)));
        }
        let here = async {
            let (handle, in_use) = self.opened(who, &opened, now_ms, options, &opening).await?;
            if is_new && !in_use {
                // Nobody here has made anything of it that the shard does not know.
                return Ok((handle, Entry::of(opened.attributes.clone(), valid)));
            }
            let told = Told { asked: false, since };
            let entry = self.entry_of_open(who, (parent, name), &opened.attributes, &handle.open, told).await;
            self.handle_or_close(handle, entry).await
        };
        match here.await {
            // What this call has made, it would make once more.
            Err(Error::Stale) if !created && session.id() != asked_by => {
                Ok(ControlFlow::Continue(Unopened::Lost(opened.attributes.inode)))
            }
            here => here.map(opened_by_itself),
        }
    }

    /// An open that cuts a file has failed. If its call has no answer, it may take effect later: files of the shard
    /// that are open here (that one, if it is known) are not believed before.
    async fn doubt_cut(&self, shard: ShardId, inode: Option<InodeNumber>) {
        if !self.calls().is_in_doubt(shard) {
            return;
        }
        let is_it = |open: &OpenInode<S>| {
            routing::of_inode(open.inode) == shard && inode.is_none_or(|inode| open.inode == inode)
        };
        let open: Vec<_> = lock(&self.open).all().into_iter().filter(|open| is_it(open)).collect();
        for open in open {
            open.cut_in_doubt().await;
        }
    }

    async fn handle_or_close(&self, handle: Handle<S>, entry: Result<Entry>) -> Result<(Handle<S>, Entry)> {
        match entry {
            Ok(entry) => Ok((handle, entry)),
            Err(error) => {
                self.close_handle(&handle).await;
                Err(error)
            }
        }
    }

    /// Opens an inode that was closed a while ago, or is open, under the lease that is still held: no message.
    async fn reopen(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        options: OpenOptions<Registration<S>>,
    ) -> Option<(Handle<S>, Attributes)> {
        let now_ms = self.calls().shell.now_ms();
        let holds = self.calls().session.cache().holds_ms(routing::of_inode(inode), now_ms) > 0;
        if options.truncate || options.direct || !holds {
            return None;
        }
        let open = {
            let table = lock(&self.open);
            let open = Arc::clone(table.get(inode)?);
            open.handles.fetch_add(1, Ordering::AcqRel);
            open
        };
        let handle = Handle::new(open, options, self.kept(who));
        // A lease that is being recalled was weakened before this is asked.
        let Some(attributes) = handle.open.reopen(&self.objects, who, &options).await else {
            self.close_handle(&handle).await;
            return None;
        };
        Some((handle, attributes))
    }

    /// A handle of what an open told, by a reply that arrived at `now_ms`; and whether the inode had handles before.
    async fn opened(
        &self,
        who: &Credentials,
        opened: &Opened,
        now_ms: u64,
        options: OpenOptions<Registration<S>>,
        opening: &Opening<'_, S>,
    ) -> Result<(Handle<S>, bool)> {
        let attributes = &opened.attributes;
        let make = || {
            let session = &self.calls().session;
            OpenInode::new(
                attributes,
                &self.objects.tuning,
                session.id(),
                session.term(routing::of_inode(attributes.inode)),
            )
        };
        let (open, in_use) = lock(&self.open).take(attributes.inode, make);
        open.note_grant(opened.stamp);
        let handle = Handle::new(open, options, self.kept(who));
        if options.truncate {
            handle.open.cut_by_open(in_use).await;
        }
        let mut result = handle.open.opened(&self.objects, &handle.who, &options, opened, now_ms).await;
        let is_cut = result.is_ok() && options.truncate;
        let cut_again = in_use || opening.was_reported(attributes.inode);
        if is_cut && (cut_again || handle.open.awaits_revocation(&self.objects).await) {
            // What other handles of this client had gathered, and reported, may have overtaken the truncation of the
            // open, and a write that was given up may land behind it.
            let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
            result = handle.open.set_attributes(&self.objects, who, &nothing).await.map(|_| ());
        }
        match result {
            Ok(()) => Ok((handle, in_use)),
            Err(error) => {
                self.close_handle(&handle).await;
                Err(error)
            }
        }
    }

    /// Closes a handle: writes back what is buffered, and keeps the inode with its lease for the next open.
    pub async fn close_handle(&self, handle: &Handle<S>) {
        handle.reader.lock().await.end_stream(&self.objects).await;
        self.flush_dropped(&handle.open).await;
        self.unlock_closed(handle).await;
        let keep = handle.open.handle_closed(&self.objects).await;
        let oldest = lock(&self.open).closed(&handle.open, keep);
        let Some(open) = oldest else { return };
        // What could not be reported is tried once more.
        self.flush_dropped(&open).await;
        if open.is_nameless() {
            self.drop_nameless(&open).await;
        } else if self.drop_if_done(&open).await {
            self.calls().give_back(open.inode, open.stamp().await, false);
            if open.is_unlinked().await {
                self.calls().shell.release_soon();
            }
        } else {
            self.used(&open).await;
        }
    }
}
