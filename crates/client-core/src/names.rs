//! Changes of names: made by one message to the shard of the directory, and learnt from its reply.

use crate::cache::{Cached, Changing, DirectoryChange};
use crate::calls::Answer;
use crate::entry::Entry;
use crate::files::Files;
use crate::lookup::Told;
use crate::shell::Shell;
use std::time::Duration;
use weft_protocol::message::shard::{RenameMode, ShardAnswer, ShardRequest, SymlinkTarget};
use weft_protocol::{Credentials, Error, FileKind, Grants, InodeNumber, Name, Result, Timestamp, routing};

/// An inode that has lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostName {
    pub inode: InodeNumber,
    /// Names that it has left.
    pub links: u32,
}

/// What a rename did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// How long a cache above that moves its own record of the name may go on using it: zero where no lease covers the
    /// new name (after an exchange: both).
    pub valid: Duration,
    /// What the new name stood for.
    pub replaced: Option<LostName>,
    /// What the new name stands for, and after an exchange the old one.
    pub moved: (InodeNumber, Option<InodeNumber>),
}

impl<S: Shell> Files<S> {
    /// A change whose reply is the inode of a name. `request`: for the part of the directory with this number.
    async fn change_name(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        name: &Name,
        request: impl Fn(InodeNumber) -> ShardRequest,
    ) -> Result<Entry> {
        self.in_part(who, directory, name, async |part| self.change_name_in(who, part, name, request(part)).await).await
    }

    async fn change_name_in(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        request: ShardRequest,
    ) -> Result<Entry> {
        let makes_directory = matches!(request, ShardRequest::MakeDirectory { .. });
        let since = self.calls().session.reports();
        let in_flight = self.calls().begin_change_of_names([(parent, name)]);
        let linked = match request {
            ShardRequest::Link { inode, .. } => Some(self.calls().begin_change(Changing::Attributes(inode))),
            _ => None,
        };
        let told = self.calls().call(who, routing::of_name(parent, name), request).await?;
        let ShardAnswer::Entry { attributes, grants } = &told.answer else { return Err(Error::Malformed) };
        let (grants, stamp) = (*grants, told.stamp);
        if let Some(mut cache) = self.calls().session.cache_for(told.session) {
            let of_inode = told.stamp_at(routing::of_inode(attributes.inode), &cache);
            if told.resent {
                cache.forget_attributes(attributes.inode, of_inode);
                cache.doubt_name(parent, name, stamp);
            } else {
                let directories = i32::from(attributes.kind == FileKind::Directory);
                let is_beside = routing::of_inode(attributes.inode) == routing::of_name(parent, name);
                if is_beside && (attributes.kind == FileKind::Directory || attributes.links == 1) {
                    let change = DirectoryChange { entries: 1, directories, time: attributes.ctime };
                    cache.directory_became(parent, change, stamp);
                } else {
                    // The time of a file's change may be later than that of the directory's. And that of an inode
                    // that another shard has made is by the clock of its node.
                    cache.directory_changed(parent, stamp);
                }
                if makes_directory && grants.contains(Grants::DIRECTORY) {
                    cache.learn_complete(attributes.inode, stamp);
                }
                cache.name_made(parent, name, (attributes.inode, attributes.kind), grants, stamp);
                cache.learn_attributes(attributes, grants, of_inode);
            }
        }
        drop((in_flight, linked));
        match self.entry(who, parent, name, attributes, Told { asked: false, since }).await {
            // Others have removed it since; the change was made all the same, and a kernel would make it once more.
            Err(Error::Stale) => Ok(Entry::of(attributes.clone(), (0, 0))),
            told => told,
        }
    }

    /// Makes a directory. `mode` with the umask applied. Its inode is made on a shard of this client's home node if
    /// that is on this machine, else on any shard; where that is away, on one of the next home that answers.
    pub async fn make_directory(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        mode: u16,
    ) -> Result<Entry> {
        let mut home = Some(self.objects.home()).filter(|home| self.objects.is_on_this_machine(*home));
        // Each change of home goes to a node that has just answered, so that few follow one another.
        let mut changes_left = self.calls().map().nodes.len();
        loop {
            let request = |parent| ShardRequest::MakeDirectory { parent, name: name.clone(), mode, home };
            match self.change_name(who, parent, name, request).await {
                Err(Error::Unreachable) if changes_left > 0 => {
                    changes_left -= 1;
                    home = Some(match home {
                        Some(away) => self.objects.next_home(away).await.ok_or(Error::Unreachable)?,
                        None => self.objects.home(),
                    });
                }
                made => return made,
            }
        }
    }

    /// Makes a symbolic link.
    pub async fn make_symlink(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        target: &[u8],
    ) -> Result<Entry> {
        let target = SymlinkTarget(target.to_vec());
        let request = |parent| ShardRequest::MakeSymlink { parent, name: name.clone(), target: target.clone() };
        self.change_name(who, parent, name, request).await
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<u8>> {
        match self.calls().call(who, routing::of_inode(inode), ShardRequest::ReadLink { inode }).await?.answer {
            ShardAnswer::Target(target) => Ok(target.0),
            _ => Err(Error::Malformed),
        }
    }

    /// Gives an inode one more name.
    pub async fn link(&self, who: &Credentials, inode: InodeNumber, parent: InodeNumber, name: &Name) -> Result<Entry> {
        let request = |parent| ShardRequest::Link { inode, parent, name: name.clone() };
        self.change_name(who, parent, name, request).await
    }

    /// Removes a name of a file or symbolic link.
    pub async fn unlink(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<LostName> {
        let request = |parent| ShardRequest::Unlink { parent, name: name.clone() };
        self.in_part(who, parent, name, async |part| self.remove(who, part, name, request(part)).await).await
    }

    /// Removes names of files or symbolic links in one directory with one message, in their order, and tells how many:
    /// it ends before one that cannot be removed, or not without a recall, or that another part of the directory
    /// serves. An error is that of the first one. At most
    /// [`UNLINK_NAMES_MAX`](weft_protocol::limits::UNLINK_NAMES_MAX) names are removed.
    pub async fn unlink_batch(&self, who: &Credentials, directory: InodeNumber, names: &[Name]) -> Result<usize> {
        let first = names.first().ok_or(Error::Invalid)?;
        let of_one_part = async |part| {
            let is_there = |name: &&Name| self.part(directory, name) == part;
            let count = names.iter().take_while(is_there).count();
            // If the parts were learnt right now, the shard says so of the first one.
            self.unlink_batch_in(who, part, &names[..count.max(1)]).await
        };
        self.in_part(who, directory, first, of_one_part).await
    }

    /// As [`Files::unlink_batch`], of names that one part of the directory serves.
    async fn unlink_batch_in(&self, who: &Credentials, parent: InodeNumber, names: &[Name]) -> Result<usize> {
        let shard = routing::of_name(parent, names.first().ok_or(Error::Invalid)?);
        let request = ShardRequest::UnlinkBatch { parent, names: names.to_vec() };
        let _in_flight = self.calls().begin_change_of_names(names.iter().map(|name| (parent, name)));
        let answer = self.calls().call(who, shard, request).await?;
        let ShardAnswer::RemovedBatch { time, ref removed } = answer.answer else { return Err(Error::Malformed) };
        if removed.len() > names.len() || removed.is_empty() {
            return Err(Error::Malformed);
        }
        for (name, (inode, links)) in names.iter().zip(removed) {
            self.name_removed(&answer, (parent, name), (*inode, *links), (time, 0)).await;
        }
        Ok(removed.len())
    }

    /// Removes an empty directory.
    pub async fn remove_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        let request = |parent| ShardRequest::RemoveDirectory { parent, name: name.clone() };
        self.in_part(who, parent, name, async |part| self.remove(who, part, name, request(part)).await).await.map(drop)
    }

    async fn remove(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        request: ShardRequest,
    ) -> Result<LostName> {
        let directories = -i32::from(matches!(request, ShardRequest::RemoveDirectory { .. }));
        let _in_flight = self.calls().begin_change_of_names([(parent, name)]);
        let answer = self.calls().call(who, routing::of_name(parent, name), request).await?;
        let ShardAnswer::Removed { time, inode, links } = answer.answer else { return Err(Error::Malformed) };
        self.name_removed(&answer, (parent, name), (inode, links), (time, directories)).await;
        Ok(LostName { inode, links })
    }

    /// Learns that a name is gone. `links`: names left of what it named; `directories`: as in [`DirectoryChange`].
    async fn name_removed(
        &self,
        answer: &Answer,
        (parent, name): (InodeNumber, &Name),
        (inode, links): (InodeNumber, u32),
        (time, directories): (Timestamp, i32),
    ) {
        self.name_gone(inode, links).await;
        let Some(mut cache) = self.calls().session.cache_for(answer.session) else { return };
        if answer.resent {
            cache.doubt_name(parent, name, answer.stamp);
        } else {
            cache.directory_became(parent, DirectoryChange { entries: -1, directories, time }, answer.stamp);
            cache.name_removed(parent, name, answer.stamp);
        }
        let of_inode = answer.stamp_at(routing::of_inode(inode), &cache);
        cache.forget_attributes(inode, of_inode);
    }

    /// What the new name of a rename may name, where the shard of the old one does not know.
    fn guess(&self, from: (InodeNumber, &Name), to: (InodeNumber, &Name)) -> Option<(InodeNumber, FileKind)> {
        if routing::of_name(from.0, from.1) == routing::of_name(to.0, to.1) {
            return None;
        }
        self.calls().session.cache().latest_known(to.0, to.1)
    }

    /// Gives what has one name another.
    pub async fn rename(
        &self,
        who: &Credentials,
        from: (InodeNumber, &Name),
        to: (InodeNumber, &Name),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let rename = async || {
            let (part, new_part) = (self.part(from.0, from.1), self.part(to.0, to.1));
            self.rename_in(who, (part, from.1), (new_part, to.1), mode).await
        };
        // Each of the two directories may get parts meanwhile.
        for _ in 0..2 {
            match rename().await {
                Err(Error::Split) => {
                    self.ask_parts(who, from.0).await?;
                    self.ask_parts(who, to.0).await?;
                }
                result => return result,
            }
        }
        rename().await
    }

    async fn rename_in(
        &self,
        who: &Credentials,
        (parent, name): (InodeNumber, &Name),
        (new_parent, new_name): (InodeNumber, &Name),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (from, to) = (name.clone(), new_name.clone());
        let guess = self.guess((parent, name), (new_parent, new_name));
        let request = ShardRequest::Rename { parent, name: from, new_parent, new_name: to, mode, guess };
        let in_flight = self.calls().begin_change_of_names([(parent, name), (new_parent, new_name)]);
        let answer = self.calls().call(who, routing::of_name(parent, name), request).await?;
        let ShardAnswer::Renamed { inode, kind, replaced, exchanged, grants } = answer.answer else {
            return Err(Error::Malformed);
        };
        if let Some((replaced, links)) = replaced {
            self.name_gone(replaced, links).await;
        }
        let lost = replaced.map(|(inode, links)| LostName { inode, links });
        let moved = (inode, exchanged.map(|(other, _)| other));
        let renamed = |valid_ms| Ok(Renamed { valid: Duration::from_millis(valid_ms), replaced: lost, moved });
        let Some(mut cache) = self.calls().session.cache_for(answer.session) else { return renamed(0) };
        let of_new = answer.stamp_at(routing::of_name(new_parent, new_name), &cache);
        cache.directory_changed(parent, answer.stamp);
        cache.directory_changed(new_parent, of_new);
        // The reply to a resent call may be of the first time: others may have changed the names since.
        match exchanged.filter(|_| !answer.resent) {
            Some(other) => cache.learn_renamed(parent, name, other, grants, answer.stamp),
            None => cache.forget_name(parent, name, answer.stamp),
        }
        if answer.resent {
            cache.forget_name(new_parent, new_name, of_new);
        } else {
            cache.learn_renamed(new_parent, new_name, (inode, kind), grants, of_new);
        }
        let changed = [Some(inode), replaced.map(|(inode, _)| inode), exchanged.map(|(inode, _)| inode)];
        for changed in changed.into_iter().flatten() {
            let of_inode = answer.stamp_at(routing::of_inode(changed), &cache);
            cache.forget_attributes(changed, of_inode);
        }
        in_flight.end(&mut cache);
        let now = self.calls().shell.now_ms();
        let covers = |parent: InodeNumber, name, inode| {
            let is_known = matches!(cache.lookup(parent, name, now), Cached::Found(at, _) if at == inode);
            if is_known { cache.holds_ms(routing::of_name(parent, name), now) } else { 0 }
        };
        let new_ms = covers(new_parent, new_name, inode);
        let old_ms = exchanged.map_or(new_ms, |(other, _)| covers(parent, name, other));
        renamed(new_ms.min(old_ms))
    }
}
