//! Directories with parts: operations on a name go to the part that serves it, and what is told of the directory is
//! gathered from all.
//!
//! Which parts a directory has is told with its attributes. A client that does not know is told `Split` by the shard
//! that it asks, asks for the attributes, and makes its call again: nothing was done.
//!
//! What is gathered is of several shards, each of which was asked, or vouches for it by a lease, at a moment of its
//! own.

use crate::entry::Entry;
use crate::files::Files;
use crate::shell::Shell;
use weft_protocol::{Attributes, Cookie, Credentials, Error, InodeNumber, Name, Parts, Result, routing};

impl<S: Shell> Files<S> {
    /// The part of a directory that serves a name, as far as is known.
    pub(crate) fn part(&self, directory: InodeNumber, name: &Name) -> InodeNumber {
        self.calls().session.cache().part(directory, name)
    }

    /// The parts that a directory is known to have; one without has itself.
    pub(crate) fn all_parts(&self, directory: InodeNumber) -> Vec<InodeNumber> {
        let cache = self.calls().session.cache();
        cache.parts(directory).map_or_else(|| vec![directory], |parts| parts.all().to_vec())
    }

    /// Does something in the part of a directory that serves a name.
    pub(crate) async fn in_part<T>(
        &self,
        who: &Credentials,
        directory: InodeNumber,
        name: &Name,
        operation: impl AsyncFn(InodeNumber) -> Result<T>,
    ) -> Result<T> {
        let part = self.part(directory, name);
        match operation(part).await {
            Err(Error::Split) => {
                self.ask_parts(who, directory).await?;
                operation(self.part(directory, name)).await
            }
            result => result,
        }
    }

    /// Learns which parts a directory has. It keeps them: nobody need ask twice.
    pub(crate) async fn ask_parts(&self, who: &Credentials, directory: InodeNumber) -> Result<()> {
        let attributes = self.calls().ask_attributes(who, directory).await?;
        self.calls().session.cache().learn_parts(&attributes);
        Ok(())
    }

    /// Has the permissions of a part known, so that names of it can be answered from the cache. Those of other
    /// directories are learnt on the way to them.
    pub(crate) async fn know_permissions(&self, who: &Credentials, directory: InodeNumber, part: InodeNumber) {
        let calls = self.calls();
        let is_known = part == directory || calls.session.cache().permissions(part, calls.shell.now_ms()).is_some();
        if !is_known {
            // Without them the shard is asked for each name.
            drop(calls.ask_attributes(who, part).await);
        }
    }

    /// Where the listing of a directory goes on after a cookie: in which part, and after which cookie there. `None`: at
    /// the end.
    pub(crate) fn place_in_listing(&self, directory: InodeNumber, after: Cookie) -> Option<(InodeNumber, Cookie)> {
        match self.calls().session.cache().parts(directory) {
            Some(parts) => parts.after(after),
            None => Some((directory, after)),
        }
    }

    /// Attributes of a directory with those of its parts, and how long all of them hold.
    pub(crate) async fn gathered(
        &self,
        who: &Credentials,
        mut attributes: Attributes,
        parts: &Parts,
        (name_ms, mut valid_ms): (u64, u64),
    ) -> Result<Entry> {
        for (part, told) in parts.others().iter().zip(self.attributes_of_parts(who, parts.others()).await) {
            let (of_part, part_ms) = match told {
                // What was learnt since holds as long as its lease.
                Ok(told) => self.leased_attributes(*part).unwrap_or((told, 0)),
                // The directory went meanwhile, with its parts.
                Err(Error::Stale) => continue,
                Err(error) => return Err(error),
            };
            // A directory without a name has no links.
            attributes.links += of_part.links.saturating_sub(EMPTY_DIRECTORY_LINKS);
            attributes.size += of_part.size;
            attributes.mtime = attributes.mtime.max(of_part.mtime);
            attributes.ctime = attributes.ctime.max(of_part.ctime);
            valid_ms = valid_ms.min(part_ms);
        }
        Ok(Entry::of(attributes, (name_ms, valid_ms)))
    }

    /// Attributes of each part, from the cache where a lease vouches for them. The shards of the others are asked at
    /// once.
    async fn attributes_of_parts(&self, who: &Credentials, parts: &[InodeNumber]) -> Vec<Result<Attributes>> {
        let known: Vec<_> = parts.iter().map(|part| self.leased_attributes(*part)).collect();
        let unknown = parts.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(part, _)| *part);
        let unknown: Vec<_> = unknown.collect();
        let mut told = self.calls().ask_all_attributes(who, &unknown).await.into_iter();
        let mut all = Vec::with_capacity(parts.len());
        for known in known {
            all.push(match known {
                Some((attributes, _)) => Ok(attributes),
                None => told.next().expect("each part that is not known was asked for"),
            });
        }
        all
    }

    /// Attributes that a lease vouches for, and how long, milliseconds.
    fn leased_attributes(&self, inode: InodeNumber) -> Option<(Attributes, u64)> {
        let (cache, now_ms) = (self.calls().session.cache(), self.calls().shell.now_ms());
        let attributes = cache.attributes(inode, now_ms)?.clone();
        Some((attributes, cache.holds_ms(routing::of_inode(inode), now_ms)))
    }
}

/// Links of a directory without directories in it.
const EMPTY_DIRECTORY_LINKS: u32 = 2;
