//! Names and attributes as this client sees them: from the lease cache where it holds, else by one message to the
//! shard of the directory or inode; and under what the client itself has changed.

use crate::cache::{Cached, Changing};
use crate::calls::Answer;
use crate::entry::{DirectoryListing, Entry, Location, PartUse};
use crate::files::Files;
use crate::lock::lock;
use crate::look_ahead::PageAhead;
use crate::open_inode::{AskedAttributes, OpenInode};
use crate::shell::Shell;
use crate::split::SplitFile;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weft_layout::{SplitPiece, Stripes};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{
    AttributeChanges, Attributes, Cookie, Credentials, Error, FileKind, Grants, InheritedChange, InodeNumber, LeaseKey,
    Name, ObjectId, Result, SessionId, routing,
};

/// Bit of a directory's permissions: to look names up in it.
const SEARCH: u16 = 0o1;

/// How attributes came to be told.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    /// The shard was asked for them just now.
    pub asked: bool,
    /// How many reports this client had made before that.
    pub since: u64,
}

impl Told {
    /// By this client itself just now: they include all that it knows.
    pub const HERE: Self = Self { asked: true, since: u64::MAX };
}

/// What a shard said of a name.
enum Asked {
    Entry(Entry),
    /// It means this inode, which is gone at its own shard.
    Gone(InodeNumber),
}

/// The mode's bits for the class of users that this one is in: owner, group or others.
fn class_of(who: &Credentials, attributes: &Attributes) -> u16 {
    let shift = if who.uid == attributes.uid {
        6
    } else if who.in_group(attributes.gid) {
        3
    } else {
        0
    };
    attributes.mode >> shift & 0o7
}

/// Whether the user may do all that the bits say: 4 read, 2 write, 1 execute or search. The superuser may, but for
/// running a file that nobody may run.
pub fn may(who: &Credentials, attributes: &Attributes, bits: u16) -> bool {
    if who.uid == 0 {
        let runs = bits & 1 != 0 && attributes.kind == FileKind::Regular;
        return !runs || attributes.mode & 0o111 != 0;
    }
    class_of(who, attributes) & bits == bits
}

impl<S: Shell> Files<S> {
    /// Learns that a name is not there, as an answer told: by which session's request, with which stamp, and whether
    /// it may be the first of several answers.
    pub(crate) fn learn_absent(&self, parent: InodeNumber, name: &Name, grants: Grants, of: (SessionId, u64, bool)) {
        let (session, stamp, resent) = of;
        let Some(mut cache) = self.calls().session.cache_for(session) else { return };
        if resent {
            cache.forget_name(parent, name, stamp);
        } else {
            cache.learn_name(parent, name, None, grants, stamp);
        }
    }

    /// What a cache above may know of a name and its inode.
    pub(crate) async fn entry(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        attributes: &Attributes,
        told: Told,
    ) -> Result<Entry> {
        let valid = self.valid(Some((parent, name)), attributes.inode);
        self.laid_over_open(who, attributes, told, valid).await
    }

    /// As [`Files::entry`], of a file that the caller has open.
    pub(crate) async fn entry_of_open(
        &self,
        who: &Credentials,
        place: (InodeNumber, &Name),
        attributes: &Attributes,
        open: &OpenInode<S>,
        told: Told,
    ) -> Result<Entry> {
        let valid = self.valid(Some(place), attributes.inode);
        self.laid_over(who, attributes, Some(open), told, valid).await
    }

    /// As [`Files::entry`], of no name.
    async fn inode_entry(&self, who: &Credentials, attributes: &Attributes, told: Told) -> Result<Entry> {
        let valid = self.valid(None, attributes.inode);
        self.laid_over_open(who, attributes, told, valid).await
    }

    /// As [`Files::laid_over`], of a file that this client may have open, without a handle of the caller's.
    async fn laid_over_open(
        &self,
        who: &Credentials,
        attributes: &Attributes,
        told: Told,
        valid: (u64, u64),
    ) -> Result<Entry> {
        let open = self.open_file(attributes);
        let entry = self.laid_over(who, attributes, open.as_deref(), told, valid).await;
        if let Some(open) = open {
            self.used(&open).await;
        }
        entry
    }

    /// How long leases vouch for the name meaning this inode, and for the inode's attributes, milliseconds.
    fn valid(&self, place: Option<(InodeNumber, &Name)>, inode: InodeNumber) -> (u64, u64) {
        let now = self.calls().shell.now_ms();
        let cache = self.calls().session.cache();
        let name_ms = match place {
            Some((parent, name)) if matches!(cache.lookup(parent, name, now), Cached::Found(at, _) if at == inode) => {
                cache.holds_ms(routing::of_name(parent, name), now)
            }
            _ => 0,
        };
        let known = cache.attributes(inode, now).is_some();
        (name_ms, if known { cache.holds_ms(routing::of_inode(inode), now) } else { 0 })
    }

    /// Attributes under what this client has made of them, and how long they hold. Sends nothing, unless a report of
    /// its own has overtaken them, or they are of a directory with parts.
    async fn laid_over(
        &self,
        who: &Credentials,
        attributes: &Attributes,
        open: Option<&OpenInode<S>>,
        told: Told,
        (name_ms, attributes_ms): (u64, u64),
    ) -> Result<Entry> {
        if let Some(parts) = attributes.parts.as_ref().filter(|_| attributes.links > 0) {
            return self.gathered(who, attributes.clone(), parts, (name_ms, attributes_ms)).await;
        }
        let mut attributes = attributes.clone();
        let (mut unseen, mut size_in_doubt) = (false, false);
        if let Some(open) = open {
            match open.overlay(&self.objects, &mut attributes, told.asked, told.since).await {
                Some(changes) => unseen = changes,
                None => {
                    AskedAttributes { attributes, unseen, size_in_doubt } =
                        open.ask_attributes(&self.objects, who).await?;
                }
            }
        }
        let entry = Entry::of(attributes, (name_ms, if unseen { 0 } else { attributes_ms }));
        Ok(Entry { size_in_doubt, ..entry })
    }

    /// The open file that these are the attributes of, if there is one.
    fn open_file(&self, attributes: &Attributes) -> Option<Arc<OpenInode<S>>> {
        if attributes.kind != FileKind::Regular {
            return None;
        }
        lock(&self.open).get(attributes.inode).cloned()
    }

    /// A name from the cache, if this user may look into the directory as far as is known here.
    pub(crate) fn cached(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Cached {
        let now = self.calls().shell.now_ms();
        let cache = self.calls().session.cache();
        match cache.permissions(parent, now) {
            Some(directory) if may(who, directory, SEARCH) => cache.lookup(parent, name, now),
            _ => Cached::Unknown,
        }
    }

    /// The inode of a name. `Error::NotFound` when it is not there; see [`Files::absent_valid`].
    pub async fn lookup(&self, who: &Credentials, directory: InodeNumber, name: &Name) -> Result<Entry> {
        self.in_part(who, directory, name, async |part| {
            self.know_permissions(who, directory, part).await;
            self.lookup_in(who, (directory, part), name).await
        })
        .await
    }

    async fn lookup_in(
        &self,
        who: &Credentials,
        (directory, parent): (InodeNumber, InodeNumber),
        name: &Name,
    ) -> Result<Entry> {
        match self.cached(who, parent, name) {
            Cached::Absent => return Err(Error::NotFound),
            Cached::Found(inode, _) => match self.known_attributes(who, inode).await {
                // Replaced or removed since, and the recall of the name is in flight: the shard knows what it names.
                Err(Error::Stale) => {}
                // What a session learns of an inode without a name does not keep it openable.
                Ok(found) if found.attributes.links == 0 => {}
                // What was gathered of a directory is not to be gathered again.
                Ok(found) if found.attributes.kind == FileKind::Directory => {
                    let (name_ms, _) = self.valid(Some((parent, name)), inode);
                    return Ok(Entry { name_valid: Duration::from_millis(name_ms), ..found });
                }
                found => {
                    let Entry { attributes, size_in_doubt, .. } = found?;
                    let entry = self.entry(who, parent, name, &attributes, Told::HERE).await?;
                    return Ok(entry.or_in_doubt(size_in_doubt));
                }
            },
            Cached::Unknown => {}
        }
        if let Some(entry) = self.look_ahead(who, (directory, parent), name).await {
            return Ok(entry);
        }
        let mut gone = None;
        loop {
            let asked = self.ask_name(who, parent, name).await;
            if asked.as_ref().is_err_and(|error| *error == Error::NotFound) {
                lock(&self.calls().session.look_ahead).not_there(directory);
            }
            match asked? {
                Asked::Entry(entry) => return Ok(entry),
                // Its inode is gone at another shard: it meant another one by then, or is about to go.
                Asked::Gone(inode) if gone == Some(inode) => return Err(Error::NotFound),
                Asked::Gone(inode) => gone = Some(inode),
            }
        }
    }

    async fn ask_name(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<Asked> {
        let session = &self.calls().session;
        let told = Told { asked: true, since: session.reports() };
        let request = ShardRequest::Lookup { parent, name: name.clone() };
        let Answer { answer, stamp, session: asked_by, .. } =
            self.calls().call(who, routing::of_name(parent, name), request).await?;
        match answer {
            ShardAnswer::Entry { attributes, grants } => {
                if let Some(mut cache) = session.cache_for(asked_by) {
                    cache.learn_name(parent, name, Some((attributes.inode, attributes.kind)), grants, stamp);
                    cache.learn_attributes(&attributes, grants, stamp);
                }
                let size_in_doubt = grants.contains(Grants::SIZE_IN_DOUBT);
                let entry = self.entry(who, parent, name, &attributes, told).await?;
                Ok(Asked::Entry(entry.or_in_doubt(size_in_doubt)))
            }
            ShardAnswer::Remote { inode, kind, grants } => {
                if let Some(mut cache) = session.cache_for(asked_by) {
                    cache.learn_name(parent, name, Some((inode, kind)), grants, stamp);
                }
                match self.calls().ask_known_attributes(who, inode).await {
                    Err(Error::Stale) => Ok(Asked::Gone(inode)),
                    Ok((attributes, _)) if attributes.links == 0 => Ok(Asked::Gone(inode)),
                    attributes => {
                        let (attributes, size_in_doubt) = attributes?;
                        let entry = self.entry(who, parent, name, &attributes, told).await?;
                        Ok(Asked::Entry(entry.or_in_doubt(size_in_doubt)))
                    }
                }
            }
            ShardAnswer::Absent { grants } => {
                // A read is executed anew each time it is sent: the answer is the last one's.
                self.learn_absent(parent, name, grants, (asked_by, stamp, false));
                Err(Error::NotFound)
            }
            _ => Err(Error::Malformed),
        }
    }

    /// A lookup that follows others in order: lists some of the directory, which may answer it. `None`: it does not
    /// follow others, or the page has no answer.
    async fn look_ahead(
        &self,
        who: &Credentials,
        (directory, parent): (InodeNumber, InodeNumber),
        name: &Name,
    ) -> Option<Entry> {
        let (shell, session) = (&self.calls().shell, &self.calls().session);
        let PageAhead { after, entries } = lock(&session.look_ahead).missed(directory, name)?;
        // Without the directory's permissions, names cannot be used however many are known.
        let permissions_known = session.cache().permissions(parent, shell.now_ms()).is_some();
        if !permissions_known {
            self.calls().ask_attributes(who, parent).await.ok()?;
        }
        let Ok(page) = self.read_directory(who, directory, after, entries, true).await else {
            lock(&session.look_ahead).refused(directory);
            return None;
        };
        let since = session.reports();
        lock(&session.look_ahead).page_came(directory, page.entries.len(), page.next, !page.valid.is_zero());
        let known = match self.cached(who, parent, name) {
            Cached::Found(inode, _) => session.cache().attributes(inode, shell.now_ms()).cloned(),
            Cached::Absent | Cached::Unknown => None,
        };
        self.entry(who, parent, name, &known?, Told { asked: false, since }).await.ok()
    }

    /// How long a cache above may keep that this name is not there. Asked after a lookup that found nothing.
    pub fn absent_valid(&self, directory: InodeNumber, name: &Name) -> Duration {
        let now = self.calls().shell.now_ms();
        let cache = self.calls().session.cache();
        let parent = cache.part(directory, name);
        let known = cache.is_absent_by_name(parent, name, now);
        Duration::from_millis(if known { cache.holds_ms(routing::of_name(parent, name), now) } else { 0 })
    }

    /// Attributes of an inode. [`Error::Unreachable`]: its shard is away, or its size is in doubt.
    pub async fn attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        self.known_attributes(who, inode).await?.with_size()
    }

    /// As [`Files::attributes`], also with a size in doubt.
    async fn known_attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        let calls = self.calls();
        let since = calls.session.reports();
        let known = calls.session.cache().attributes(inode, calls.shell.now_ms()).cloned();
        let asked = known.is_none();
        let (attributes, size_in_doubt) = match known {
            Some(attributes) => (attributes, false),
            None => calls.ask_known_attributes(who, inode).await?,
        };
        let entry = self.inode_entry(who, &attributes, Told { asked, since }).await?;
        Ok(entry.or_in_doubt(size_in_doubt))
    }

    /// Changes attributes; with a size: `truncate`. What is buffered of an open file is written first.
    pub async fn set_attributes(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        changes: &AttributeChanges,
    ) -> Result<Entry> {
        let request = ShardRequest::SetAttributes { inode, changes: changes.clone() };
        let attributes = self.change_inode(who, inode, &request).await?;
        self.entry_of_changed(who, &attributes).await
    }

    /// Changes what is handed down to what is made in a directory from now on. One message.
    pub async fn set_inherited(&self, who: &Credentials, inode: InodeNumber, change: InheritedChange) -> Result<Entry> {
        let attributes = self.change_inode(who, inode, &ShardRequest::SetInherited { inode, change }).await?;
        self.entry_of_changed(who, &attributes).await
    }

    /// Spreads the names of a directory over all shards. It keeps its names, and may be in use.
    pub async fn spread(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        let attributes = self.change_inode(who, inode, &ShardRequest::Spread { inode }).await?;
        self.calls().session.cache().learn_parts(&attributes);
        self.entry_of_changed(who, &attributes).await
    }

    /// The answer to a change of an inode. That others have removed it since is no error: the caller, or the kernel,
    /// would make the change once more, of what has the name by now.
    async fn entry_of_changed(&self, who: &Credentials, attributes: &Attributes) -> Result<Entry> {
        match self.inode_entry(who, attributes, Told::HERE).await {
            Err(Error::Stale) => Ok(Entry::of(attributes.clone(), (0, 0))),
            told => told,
        }
    }

    /// A change of an inode whose reply is its attributes. What is buffered of an open file is written first.
    pub(crate) async fn change_inode(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        request: &ShardRequest,
    ) -> Result<Attributes> {
        let _in_flight = self.calls().begin_change(Changing::Attributes(inode));
        let open = lock(&self.open).get(inode).cloned();
        let changed = match open {
            Some(open) => {
                let changed = open.change(&self.objects, who, request).await;
                self.used(&open).await;
                changed
            }
            None => self.change_closed(who, inode, request).await,
        };
        let cuts = matches!(request, ShardRequest::SetAttributes { changes, .. } if changes.size.is_some());
        if changed.is_err() && cuts {
            // A striped file may be cut in part. All that know its size were asked to forget it, but for this client.
            let dropped = {
                let mut cache = self.calls().session.cache();
                let stamp = cache.latest_stamp(routing::of_inode(inode));
                cache.recall(LeaseKey::Attributes(inode), stamp)
            };
            self.calls().shell.invalidate(&dropped).await;
        }
        changed
    }

    async fn change_closed(&self, who: &Credentials, inode: InodeNumber, request: &ShardRequest) -> Result<Attributes> {
        loop {
            match self.calls().change_for_attributes(who, inode, request.clone()).await {
                Err(Error::PagesCached) => self.calls().wait_for_pages().await,
                result => return result.map(|(attributes, _)| attributes),
            }
        }
    }

    /// One page of a directory listing: the entries after a cookie, in the order of cookies. Only the last page is
    /// empty.
    pub async fn read_directory(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        after: Cookie,
        entries_max: u32,
        with_attributes: bool,
    ) -> Result<DirectoryListing> {
        let how = (entries_max, with_attributes);
        let (mut after, mut parent) = (after, None);
        loop {
            let listing = match self.read_part(who, directory, after, how).await {
                Err(Error::Split) => {
                    self.ask_parts(who, directory).await?;
                    self.read_part(who, directory, after, how).await
                }
                listing => listing,
            };
            let listing = listing?;
            parent = parent.or(listing.parent);
            match listing.next {
                // This part of the directory has no more.
                Some(next) if listing.entries.is_empty() => after = next,
                _ => return Ok(DirectoryListing { parent, ..listing }),
            }
        }
    }

    async fn read_part(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        after: Cookie,
        (entries_max, with_attributes): (u32, bool),
    ) -> Result<DirectoryListing> {
        let calls = self.calls();
        let Some((inode, after)) = self.place_in_listing(directory, after) else {
            let (valid, seen) = (Duration::ZERO, self.changes());
            return Ok(DirectoryListing { entries: Vec::new(), next: None, parent: None, valid, seen });
        };
        let request = ShardRequest::ReadDirectory { inode, after, entries_max, with_attributes };
        let since = calls.session.reports();
        let answer = match calls.call(who, routing::of_inode(inode), request).await {
            // The directory went meanwhile, with its parts.
            Err(Error::Stale) if inode != directory => {
                let (valid, seen) = (Duration::ZERO, self.changes());
                return Ok(DirectoryListing { entries: Vec::new(), next: None, parent: None, valid, seen });
            }
            answer => answer?,
        };
        let ShardAnswer::Page(mut page) = answer.answer else { return Err(Error::Malformed) };
        let now = calls.shell.now_ms();
        let (mut all_known, mut holds, mut seen) = (false, Duration::ZERO, 0);
        if let Some(mut cache) = calls.session.cache_for(answer.session) {
            all_known = cache.learn_page(inode, after, &page, answer.stamp);
            holds = Duration::from_millis(cache.holds_ms(routing::of_inode(inode), now));
            seen = cache.changes();
        }
        for entry in &mut page.entries {
            if entry.attributes.as_ref().is_some_and(|attributes| attributes.parts.is_some()) {
                // They are to be gathered.
                entry.attributes = None;
            }
            let open = entry.attributes.as_ref().and_then(|attributes| self.open_file(attributes));
            if let (Some(open), Some(attributes)) = (open, &mut entry.attributes) {
                let is_seen = open.overlay(&self.objects, attributes, false, since).await == Some(false);
                self.used(&open).await;
                if !is_seen {
                    // Not to be kept like the rest of the page.
                    entry.attributes = None;
                }
            }
        }
        let valid = if all_known { holds } else { Duration::ZERO };
        let parent = (inode == directory).then_some(page.parent);
        Ok(DirectoryListing { next: page.next, parent, valid, seen, entries: page.entries })
    }

    /// A number that grows with all that is learnt, changed or lost of names and attributes.
    pub fn changes(&self) -> u64 {
        self.calls().session.cache().changes()
    }

    /// What is known of a listed entry without a message: its name still means this inode, whose attributes are known
    /// and are not those of an open file.
    pub fn known_entry(&self, directory: InodeNumber, name: &Name, inode: InodeNumber) -> Option<Entry> {
        let now = self.calls().shell.now_ms();
        let known = {
            let cache = self.calls().session.cache();
            let parent = cache.part(directory, name);
            let is_named = matches!(cache.lookup(parent, name, now), Cached::Found(at, _) if at == inode);
            // Those of a directory with parts are to be gathered.
            let attributes = cache.attributes(inode, now).filter(|known| is_named && known.parts.is_none())?.clone();
            let holds =
                (cache.holds_ms(routing::of_name(parent, name), now), cache.holds_ms(routing::of_inode(inode), now));
            Entry::of(attributes, holds)
        };
        let is_open = self.open_file(&known.attributes).is_some();
        (!is_open).then_some(known)
    }

    /// Whether this client has the file open, or closed it just now: it may know more of it than a listing told.
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        lock(&self.open).get(inode).is_some()
    }

    /// Whether this client holds the directory as a whole, and would be asked before a name in it changes: a number
    /// of this hold. Two listings that saw the same number at their beginning and end are the same, but for own
    /// changes.
    pub fn directory_hold(&self, inode: InodeNumber) -> Option<u64> {
        let cache = self.calls().session.cache();
        // No lease covers all parts.
        let has_parts = cache.parts(inode).is_some();
        cache.directory_held_since(inode, self.calls().shell.now_ms()).filter(|_| !has_parts)
    }

    /// Holds the directory's permissions from now on, by which other sessions are told that this one uses it. Call it
    /// before the names whose replies [`Files::is_shared_directory`] is asked of.
    pub async fn use_directory(&self, who: &Credentials, inode: InodeNumber) {
        let calls = self.calls();
        let is_held = |part: &InodeNumber| calls.session.cache().permissions(*part, calls.shell.now_ms()).is_some();
        let parts: Vec<_> = self.all_parts(inode).into_iter().filter(|part| !is_held(part)).collect();
        // If one cannot be, the directory counts as shared.
        drop(calls.ask_all_attributes(who, &parts).await);
    }

    /// Whether other sessions use the directory, as far as replies and recalls have told, or may use it without knowing
    /// that this one does.
    pub fn is_shared_directory(&self, inode: InodeNumber) -> bool {
        let (parts, now_ms) = (self.all_parts(inode), self.calls().shell.now_ms());
        let cache = self.calls().session.cache();
        parts.iter().any(|part| cache.is_shared(*part) || cache.permissions(*part, now_ms).is_none())
    }

    async fn split_pieces(&self, who: &Credentials, attributes: &Attributes) -> Result<Vec<SplitPiece<ObjectId>>> {
        let of = (attributes.inode, &attributes.layout);
        SplitFile::new(&self.objects, of, None, Arc::new(who.clone())).pieces(&self.objects).await
    }

    /// The parts of a split file, by object, and what each has of it. [`Error::Invalid`]: the file is not split.
    pub async fn parts(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<PartUse>> {
        let attributes = self.attributes(who, inode).await?.attributes;
        if attributes.layout.epoch().is_none() {
            return Err(Error::Invalid);
        }
        let mut parts = BTreeMap::new();
        for piece in self.split_pieces(who, &attributes).await? {
            let Some(object) = piece.part else { continue };
            let part = parts.entry(object).or_insert(PartUse { object, pieces: 0, bytes: 0 });
            (part.pieces, part.bytes) = (part.pieces + 1, part.bytes + piece.bytes as u64);
        }
        Ok(parts.into_values().collect())
    }

    /// Where the bytes of a file live.
    pub async fn locate(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<Location>> {
        let attributes = self.attributes(who, inode).await?.attributes;
        if attributes.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        let map = self.calls().map();
        let location = |offset, bytes, object: Option<&ObjectId>| {
            let record = object.and_then(|object| map.node(object.node()));
            Location {
                offset,
                bytes,
                node: record.map(|record| record.id),
                host: record.map(|record| record.host.clone()).unwrap_or_default(),
                site: record.map(|record| record.site.clone()).unwrap_or_default(),
            }
        };
        if attributes.layout.epoch().is_some() {
            let pieces = self.split_pieces(who, &attributes).await?;
            let of =
                |piece: &SplitPiece<ObjectId>| location(piece.start as u64, piece.bytes as u64, piece.part.as_ref());
            return Ok(pieces.iter().map(of).collect());
        }
        let objects = attributes.layout.objects();
        if objects.len() < 2 {
            return Ok(vec![location(0, attributes.size, objects.first())]);
        }
        let stripes = Stripes::of(&attributes.layout);
        let bytes = usize::try_from(attributes.size).map_err(|_| Error::FileTooLarge)?;
        let pieces = stripes.pieces(0, bytes);
        Ok(pieces.map(|piece| location(piece.start as u64, piece.bytes as u64, objects.get(piece.index))).collect())
    }
}
