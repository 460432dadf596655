//! Operations on names and inodes.
//!
//! Answered from the lease cache where it holds; otherwise one message to the shard of the directory or inode.

use crate::calls::Answer;
use crate::client::{Client, Inner};
use crate::link::{SlotFor, lock};
use crate::open_inode::OpenInode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weft_client_core::{Cached, DirectoryChange, PageAhead};
use weft_protocol::message::shard::{
    DirectoryCursor, DirectoryEntry, RenameMode, ShardAnswer, ShardRequest, SymlinkTarget,
};
use weft_protocol::message::storage::{Space, StorageAnswer, StorageRequest};
use weft_protocol::{
    AttributeChanges, Attributes, Credentials, Error, FileKind, Grants, InodeNumber, Layout, Name, NodeId,
    NodeIdentity, Result, SessionId,
};

/// An inode, and how long a cache above may keep what is told of it (zero: not at all).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub attributes: Attributes,
    /// How long the name may be taken for this inode.
    pub name_valid: Duration,
    /// How long the attributes may be used.
    pub attributes_valid: Duration,
}

impl Entry {
    /// What was told, and how long name and attributes hold, milliseconds.
    pub(crate) fn of(attributes: Attributes, (name_ms, attributes_ms): (u64, u64)) -> Self {
        let (name_valid, attributes_valid) = (Duration::from_millis(name_ms), Duration::from_millis(attributes_ms));
        Self { attributes, name_valid, attributes_valid }
    }
}

/// How attributes came to be told.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    /// The shard was asked for them just now.
    pub asked: bool,
    /// How many reports this client had made before that ([`Inner::reports`]).
    pub since: u64,
}

impl Told {
    /// By this client itself just now: all that it knows is in them.
    pub const HERE: Self = Self { asked: true, since: u64::MAX };
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryListing {
    /// Attributes are there where they were asked for and cost no further message.
    pub entries: Vec<DirectoryEntry>,
    /// Where to go on; `None`: the end.
    pub next: Option<DirectoryCursor>,
    /// The directory's `..`.
    pub parent: InodeNumber,
    /// How long a cache above may keep the names and attributes of this page.
    pub valid: Duration,
}

/// Where bytes of a file live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    pub offset: u64,
    pub bytes: u64,
    /// `None`: a hole, or an empty file.
    pub node: Option<NodeId>,
    pub host: String,
    pub site: String,
}

/// Space of the whole file system: the sum, and each storage server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSystemSpace {
    pub total: u64,
    pub free: u64,
    /// Files that have an object.
    pub files: u64,
    pub nodes: Vec<(NodeId, Result<Space>)>,
}

impl Inner {
    /// Remembers that a name is not there, as an answer told: of which session, with which stamp, and whether it may be
    /// of the first of several times that it was asked for.
    pub fn learn_absent(&self, parent: InodeNumber, name: &Name, grants: Grants, of: (SessionId, u64, bool)) {
        let (session, stamp, resent) = of;
        let Some(mut cache) = self.cache_for(session) else { return };
        if resent {
            cache.forget_name(parent, name, stamp);
        } else {
            cache.learn_name(parent, name, None, grants, stamp);
        }
    }

    /// What a cache above may know of a name and its inode.
    pub fn entry(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        attributes: &Attributes,
        told: Told,
    ) -> Result<Entry> {
        let valid = self.valid(Some((parent, name)), attributes.inode);
        let open = self.open_file(attributes);
        self.laid_over(who, attributes, open.as_deref(), told, valid)
    }

    /// As [`Inner::entry`], of a file that the caller has open.
    pub fn entry_of_open(
        &self,
        who: &Credentials,
        place: (InodeNumber, &Name),
        attributes: &Attributes,
        open: &OpenInode,
        told: Told,
    ) -> Result<Entry> {
        let valid = self.valid(Some(place), attributes.inode);
        self.laid_over(who, attributes, Some(open), told, valid)
    }

    /// As [`Inner::entry`], of no name.
    fn inode_entry(&self, who: &Credentials, attributes: &Attributes, told: Told) -> Result<Entry> {
        let valid = self.valid(None, attributes.inode);
        let open = self.open_file(attributes);
        self.laid_over(who, attributes, open.as_deref(), told, valid)
    }

    /// How long it may be believed that the name is this inode's, and what is known of the inode, milliseconds.
    fn valid(&self, place: Option<(InodeNumber, &Name)>, inode: InodeNumber) -> (u64, u64) {
        let now = self.clock_ms();
        let cache = lock(&self.cache);
        let name_ms = match place {
            Some((parent, name)) if matches!(cache.lookup(parent, name, now), Cached::Found(at, _) if at == inode) => {
                cache.holds_ms(parent.shard(), now)
            }
            _ => 0,
        };
        let known = cache.attributes(inode, now).is_some();
        (name_ms, if known { cache.holds_ms(inode.shard(), now) } else { 0 })
    }

    /// Attributes with what this client has made of them, and how long they hold. No message, unless a report of its
    /// own has passed what was told.
    fn laid_over(
        &self,
        who: &Credentials,
        attributes: &Attributes,
        open: Option<&OpenInode>,
        told: Told,
        (name_ms, attributes_ms): (u64, u64),
    ) -> Result<Entry> {
        let mut attributes = attributes.clone();
        let mut unseen = false;
        if let Some(open) = open {
            match open.overlay(self, &mut attributes, told.asked, told.since) {
                Some(changes) => unseen = changes,
                None => (attributes, unseen) = open.ask_attributes(self, who)?,
            }
        }
        Ok(Entry::of(attributes, (name_ms, if unseen { 0 } else { attributes_ms })))
    }

    /// The open file that these are the attributes of, if there is one.
    fn open_file(&self, attributes: &Attributes) -> Option<Arc<OpenInode>> {
        if attributes.kind != FileKind::Regular {
            return None;
        }
        lock(&self.open).get(attributes.inode).cloned()
    }

    /// Attributes from the shard.
    pub fn ask_attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Attributes> {
        let request = ShardRequest::GetAttributes { inode };
        self.call_for_attributes(SlotFor::Caller, who, inode, request).map(|(attributes, _)| attributes)
    }

    /// A call about an inode that is answered with its attributes: these, and the answer's stamp. What it grants of
    /// them is learnt.
    pub fn call_for_attributes(
        &self,
        slot: SlotFor,
        who: &Credentials,
        inode: InodeNumber,
        request: ShardRequest,
    ) -> Result<(Attributes, u64)> {
        let Answer { answer, stamp, session, .. } = self.call_in(slot, who, inode.shard(), request)?;
        let ShardAnswer::Entry { attributes, grants } = answer else { return Err(Error::Malformed) };
        if let Some(mut cache) = self.cache_for(session) {
            cache.learn_attributes(&attributes, grants, stamp);
        }
        Ok((attributes, stamp))
    }

    /// A name from the cache, if this user may look into the directory as far as is known here.
    pub fn cached(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Cached {
        let now = self.clock_ms();
        let cache = lock(&self.cache);
        match cache.permissions(parent, now) {
            Some(directory) if may_search(who, directory) => cache.lookup(parent, name, now),
            _ => Cached::Unknown,
        }
    }

    /// A name of a file is gone. With the last one its lease is given back, unless it is open: it keeps the file.
    fn name_gone(&self, inode: InodeNumber, links: u32) {
        if links == 0
            && let Some(open) = lock(&self.open).drop_idle(inode)
        {
            self.give_back(inode, open.stamp());
        }
    }

    /// A change whose answer is the inode of a name.
    fn change_name(&self, who: &Credentials, parent: InodeNumber, name: &Name, request: ShardRequest) -> Result<Entry> {
        let makes_directory = matches!(request, ShardRequest::MakeDirectory { .. });
        let since = self.reports();
        let Answer { answer, stamp, session, resent, .. } = self.call(who, parent.shard(), request)?;
        let ShardAnswer::Entry { attributes, grants } = answer else { return Err(Error::Malformed) };
        if let Some(mut cache) = self.cache_for(session) {
            if resent {
                cache.forget_attributes(attributes.inode, stamp);
                cache.doubt_name(parent, name, stamp);
            } else {
                let directories = i32::from(attributes.kind == FileKind::Directory);
                let change = DirectoryChange { entries: 1, directories, time: attributes.ctime };
                cache.directory_became(parent, change, stamp);
                if makes_directory && grants.contains(Grants::DIRECTORY) {
                    cache.learn_complete(attributes.inode, stamp);
                }
                cache.learn_name(parent, name, Some((attributes.inode, attributes.kind)), grants, stamp);
                cache.learn_attributes(&attributes, grants, stamp);
            }
        }
        self.entry(who, parent, name, &attributes, Told { asked: false, since })
    }
}

/// Whether the user may look names up in a directory: its execute bit for him.
fn may_search(who: &Credentials, directory: &Attributes) -> bool {
    let shift = if who.uid == directory.uid {
        6
    } else if who.in_group(directory.gid) {
        3
    } else {
        0
    };
    who.uid == 0 || directory.mode >> shift & 1 != 0
}

impl Client {
    /// The inode of a name. `Error::NotFound` when it is not there; see [`Client::absent_valid`].
    pub fn lookup(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<Entry> {
        let inner = &self.0;
        match inner.cached(who, parent, name) {
            Cached::Absent => return Err(Error::NotFound),
            Cached::Found(inode, _) => {
                let attributes = self.attributes(who, inode)?.attributes;
                return inner.entry(who, parent, name, &attributes, Told::HERE);
            }
            Cached::Unknown => {}
        }
        if let Some(entry) = self.look_ahead(who, parent, name) {
            return Ok(entry);
        }
        let since = inner.reports();
        let told = Told { asked: true, since };
        let request = ShardRequest::Lookup { parent, name: name.clone() };
        let Answer { answer, stamp, session, .. } = inner.call(who, parent.shard(), request)?;
        match answer {
            ShardAnswer::Entry { attributes, grants } => {
                if let Some(mut cache) = inner.cache_for(session) {
                    cache.learn_name(parent, name, Some((attributes.inode, attributes.kind)), grants, stamp);
                    cache.learn_attributes(&attributes, grants, stamp);
                }
                inner.entry(who, parent, name, &attributes, told)
            }
            ShardAnswer::RemoteDirectory { inode, grants } => {
                let target = Some((inode, FileKind::Directory));
                if let Some(mut cache) = inner.cache_for(session) {
                    cache.learn_name(parent, name, target, grants, stamp);
                }
                let attributes = inner.ask_attributes(who, inode)?;
                inner.entry(who, parent, name, &attributes, told)
            }
            ShardAnswer::Absent { grants } => {
                // A read is asked anew each time: the answer is of the last.
                inner.learn_absent(parent, name, grants, (session, stamp, false));
                Err(Error::NotFound)
            }
            _ => Err(Error::Malformed),
        }
    }

    /// A look-up that follows others in the order of names: asks for a page that begins with it. `None`: it does not
    /// follow others, or the page has no answer.
    fn look_ahead(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Option<Entry> {
        let inner = &self.0;
        let PageAhead { after, entries } = lock(&inner.look_ahead).missed(parent, name)?;
        // Without the directory's permissions, names cannot be used however many are known.
        if lock(&inner.cache).permissions(parent, inner.clock_ms()).is_none() {
            inner.ask_attributes(who, parent).ok()?;
        }
        let cursor = DirectoryCursor { bucket: 0, after: Some(after) };
        let Ok(page) = self.read_directory(who, parent, &cursor, entries, true) else {
            lock(&inner.look_ahead).refused(parent);
            return None;
        };
        let since = inner.reports();
        let known = match inner.cached(who, parent, name) {
            Cached::Found(inode, _) => lock(&inner.cache).attributes(inode, inner.clock_ms()).cloned(),
            Cached::Absent | Cached::Unknown => None,
        };
        let last = page.entries.last().map(|entry| &entry.name);
        lock(&inner.look_ahead).page_came(parent, last, known.is_some());
        known.and_then(|attributes| inner.entry(who, parent, name, &attributes, Told { asked: false, since }).ok())
    }

    /// How long a cache above may keep that this name is not there. Asked after a lookup that found nothing.
    pub fn absent_valid(&self, parent: InodeNumber, name: &Name) -> Duration {
        let now = self.0.clock_ms();
        let cache = lock(&self.0.cache);
        let known = cache.is_absent_by_name(parent, name, now);
        Duration::from_millis(if known { cache.holds_ms(parent.shard(), now) } else { 0 })
    }

    /// Attributes of an inode.
    pub fn attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        let since = self.0.reports();
        let known = lock(&self.0.cache).attributes(inode, self.0.clock_ms()).cloned();
        let asked = known.is_none();
        let attributes = known.map_or_else(|| self.0.ask_attributes(who, inode), Ok)?;
        self.0.inode_entry(who, &attributes, Told { asked, since })
    }

    /// Changes attributes; with a size: `truncate`. What is buffered of an open file is written first.
    pub fn set_attributes(&self, who: &Credentials, inode: InodeNumber, changes: &AttributeChanges) -> Result<Entry> {
        let inner = &self.0;
        let open = lock(&inner.open).get(inode).cloned();
        let attributes = match &open {
            Some(open) => open.set_attributes(inner, who, changes)?,
            None => {
                let request = ShardRequest::SetAttributes { inode, changes: changes.clone() };
                inner.call_for_attributes(SlotFor::Caller, who, inode, request)?.0
            }
        };
        inner.inode_entry(who, &attributes, Told::HERE)
    }

    /// Makes a directory. `mode` with the umask applied. Its inode is made on a shard of this client's own node.
    pub fn make_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        self.0.at_home(|home| {
            let request = ShardRequest::MakeDirectory { parent, name: name.clone(), mode, home: Some(home) };
            self.0.change_name(who, parent, name, request)
        })
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, who: &Credentials, parent: InodeNumber, name: &Name, target: &[u8]) -> Result<Entry> {
        let target = SymlinkTarget(target.to_vec());
        self.0.change_name(who, parent, name, ShardRequest::MakeSymlink { parent, name: name.clone(), target })
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<u8>> {
        match self.0.call(who, inode.shard(), ShardRequest::ReadLink { inode })?.answer {
            ShardAnswer::Target(target) => Ok(target.0),
            _ => Err(Error::Malformed),
        }
    }

    /// Gives an inode one more name.
    pub fn link(&self, who: &Credentials, inode: InodeNumber, parent: InodeNumber, name: &Name) -> Result<Entry> {
        if inode.shard() != parent.shard() {
            return Err(Error::CrossShard);
        }
        self.0.change_name(who, parent, name, ShardRequest::Link { inode, parent, name: name.clone() })
    }

    /// Removes a name of a file or symbolic link.
    pub fn unlink(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        self.remove(who, parent, name, ShardRequest::Unlink { parent, name: name.clone() })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        self.remove(who, parent, name, ShardRequest::RemoveDirectory { parent, name: name.clone() })
    }

    fn remove(&self, who: &Credentials, parent: InodeNumber, name: &Name, request: ShardRequest) -> Result<()> {
        let directories = -i32::from(matches!(request, ShardRequest::RemoveDirectory { .. }));
        let answer = self.0.call(who, parent.shard(), request)?;
        let ShardAnswer::Removed { time, inode, links } = answer.answer else { return Err(Error::Malformed) };
        self.0.name_gone(inode, links);
        let Some(mut cache) = self.0.cache_for(answer.session) else { return Ok(()) };
        if answer.resent {
            cache.doubt_name(parent, name, answer.stamp);
        } else {
            cache.directory_became(parent, DirectoryChange { entries: -1, directories, time }, answer.stamp);
            cache.name_removed(parent, name, answer.stamp);
        }
        cache.forget_attributes(inode, answer.stamp);
        Ok(())
    }

    /// Gives what has one name another.
    pub fn rename(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        new_parent: InodeNumber,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        if parent.shard() != new_parent.shard() {
            return Err(Error::CrossShard);
        }
        let (from, to) = (name.clone(), new_name.clone());
        let request = ShardRequest::Rename { parent, name: from, new_parent, new_name: to, mode };
        let answer = self.0.call(who, parent.shard(), request)?;
        let ShardAnswer::Renamed { inode, replaced } = answer.answer else { return Err(Error::Malformed) };
        if let Some((replaced, links)) = replaced {
            self.0.name_gone(replaced, links);
        }
        let Some(mut cache) = self.0.cache_for(answer.session) else { return Ok(()) };
        for directory in [parent, new_parent] {
            cache.directory_changed(directory, answer.stamp);
        }
        cache.forget_name(parent, name, answer.stamp);
        cache.forget_name(new_parent, new_name, answer.stamp);
        for changed in [Some(inode), replaced.map(|(inode, _)| inode)].into_iter().flatten() {
            cache.forget_attributes(changed, answer.stamp);
        }
        Ok(())
    }

    /// One page of a directory listing.
    pub fn read_directory(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        cursor: &DirectoryCursor,
        entries_max: u32,
        with_attributes: bool,
    ) -> Result<DirectoryListing> {
        let inner = &self.0;
        let request = ShardRequest::ReadDirectory { inode, cursor: cursor.clone(), entries_max, with_attributes };
        let since = inner.reports();
        let answer = inner.call(who, inode.shard(), request)?;
        let ShardAnswer::Page(mut page) = answer.answer else { return Err(Error::Malformed) };
        let now = inner.clock_ms();
        let (mut all_known, mut holds) = (false, Duration::ZERO);
        if let Some(mut cache) = inner.cache_for(answer.session) {
            all_known = cache.learn_page(inode, cursor, &page, answer.stamp);
            holds = Duration::from_millis(cache.holds_ms(inode.shard(), now));
        }
        for entry in &mut page.entries {
            let open = entry.attributes.as_ref().and_then(|attributes| inner.open_file(attributes));
            if let (Some(open), Some(attributes)) = (open, &mut entry.attributes)
                && open.overlay(inner, attributes, false, since) != Some(false)
            {
                // Not to be kept like the rest of the page.
                entry.attributes = None;
            }
        }
        let valid = if all_known { holds } else { Duration::ZERO };
        Ok(DirectoryListing { next: page.next, parent: page.parent, valid, entries: page.entries })
    }

    /// Whether this client holds the directory as a whole, and would be told before a name in it changes: a number of
    /// this hold. Two listings that saw the same number at their beginning and end are the same, but for own changes.
    pub fn directory_hold(&self, inode: InodeNumber) -> Option<u64> {
        lock(&self.0.cache).directory_held_since(inode, self.0.clock_ms())
    }

    /// Where the bytes of a file live.
    pub fn locate(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<Location>> {
        let attributes = self.attributes(who, inode)?.attributes;
        if attributes.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        let map: Arc<_> = self.map();
        let record = match attributes.layout {
            Layout::Empty => None,
            Layout::Whole { object, .. } => map.node(object.node()),
        };
        Ok(vec![Location {
            offset: 0,
            bytes: attributes.size,
            node: record.map(|record| record.id),
            host: record.map(|record| record.host.clone()).unwrap_or_default(),
            site: record.map(|record| record.site.clone()).unwrap_or_default(),
        }])
    }

    /// Space of the file system. What several storage servers of one machine have on one device counts once in the
    /// sums.
    pub fn space(&self) -> Result<FileSystemSpace> {
        let mut nodes = BTreeMap::new();
        let mut devices: BTreeMap<(u64, NodeIdentity), Vec<Space>> = BTreeMap::new();
        for record in self.map().nodes.iter().filter(|record| record.stores) {
            let space = match self.0.storage_call(record.id, StorageRequest::Space) {
                Ok(StorageAnswer::Space(space)) => Ok(space),
                Ok(_) => Err(Error::Malformed),
                Err(error) => Err(error),
            };
            if let Ok(space) = &space {
                devices.entry((space.device, record.identity)).or_default().push(*space);
            }
            nodes.insert(record.id, space);
        }
        let sums: Vec<(u64, u64)> = devices.values().map(|stores| on_one_device(stores)).collect();
        Ok(FileSystemSpace {
            total: sums.iter().map(|(total, _)| *total).fold(0, u64::saturating_add),
            free: sums.iter().map(|(_, free)| *free).fold(0, u64::saturating_add),
            files: nodes.values().flatten().map(|space| space.objects).sum(),
            nodes: nodes.into_iter().collect(),
        })
    }
}

/// What stores on one device have together, in all and free: not more than the device has.
fn on_one_device(stores: &[Space]) -> (u64, u64) {
    if let Some(whole) = stores.iter().find(|space| space.reserve == 0) {
        // One without a cap may take all of it.
        return (whole.total, whole.free);
    }
    let sum = |field: fn(&Space) -> u64| stores.iter().map(field).fold(0, u64::saturating_add);
    let device_free = stores.iter().map(|space| space.device_free).min().unwrap_or(0);
    let free = sum(|space| space.free).min(device_free);
    (sum(|space| space.total.saturating_sub(space.free)).saturating_add(free), free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_on_one_device_have_not_more_than_it_has() {
        let capped = |used: u64, free: u64| Space {
            total: used + 1 + free,
            free,
            reserve: 1,
            objects: 0,
            device: 5,
            device_free: 1000,
        };
        assert_eq!(on_one_device(&[capped(10, 300), capped(0, 300)]), (612, 600), "the caps fit");
        assert_eq!(on_one_device(&[capped(10, 700), capped(0, 700)]), (1012, 1000), "they promise more than is there");
        let whole = Space { total: 5000, free: 1000, reserve: 0, ..capped(0, 1000) };
        assert_eq!(on_one_device(&[whole, whole, capped(0, 300)]), (5000, 1000), "one without a cap");
    }
}
