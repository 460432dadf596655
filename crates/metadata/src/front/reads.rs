//! Calls that only read: lookup, getattr, readlink, listing.
//!
//! They are answered at once from the back, leased or not; only the size and time of a file that another session is
//! writing have to be asked for. A listing never waits: it leaves the attributes of such files out.

use super::data::{Answered, Knowledge, may_change};
use super::park::Call;
use super::{Shard, Verdict};
use crate::back::split::Wanted;
use crate::back::{Dentry, Listed};
use crate::kv::KeyValue;
use weft_protocol::message::shard::{DirectoryEntry, DirectoryPage, ShardAnswer, ShardRequest};
use weft_protocol::{Attributes, Cookie, Error, FileKind, Grants, InodeNumber, LeaseKey, Name, SessionId};

impl<K: KeyValue> Shard<K> {
    pub(super) fn read(&mut self, call: &Call) -> Verdict {
        let result = match &call.request {
            ShardRequest::Lookup { parent, name } => return self.look_up(call, *parent, name),
            ShardRequest::GetAttributes { inode } => return self.entry(call, *inode, Grants::empty()),
            ShardRequest::HoldDirectory { inode } => return self.hold_directory(call, *inode),
            ShardRequest::OpenGroup { inode, access, group } => {
                return self.open_group(call, (*inode, *access, *group));
            }
            ShardRequest::GetParts { inode, group, since, start, end, extra, strided, own } => {
                let extra = usize::try_from(*extra).expect("usize has 32 bits or more");
                let wanted = Wanted { since: *since, start: *start, end: *end, extra, strided: *strided };
                // Who asks for its own parts only does not look at size and epoch.
                let is_watching = !*own || start < end;
                if is_watching && let Some(pause) = self.watch(call.session(), *inode) {
                    return Verdict::Park(pause);
                }
                self.parts(call, (*inode, *group), &wanted, *own)
            }
            ShardRequest::ReadBelow { directory, after } => {
                Ok(ShardAnswer::Below(self.back.read_below(*directory, after.as_ref())))
            }
            ShardRequest::GetXattrs { inode } => self.xattrs(call, *inode),
            ShardRequest::ReadLink { inode } => self.back.read_link(*inode).map(ShardAnswer::Target),
            ShardRequest::ReadDirectory { inode, after, entries_max, with_attributes } => {
                self.list(call, *inode, *after, (*entries_max, *with_attributes))
            }
            other => unreachable!("{other:?} is no read of the namespace"),
        };
        Verdict::Reply(result)
    }

    fn look_up(&mut self, call: &Call, parent: InodeNumber, name: &Name) -> Verdict {
        let session = call.session();
        match self.back.lookup(&call.credentials, parent, name) {
            Err(error) => Verdict::Reply(Err(error)),
            Ok(None) => {
                let grants = self.grant_entry(session, parent, name);
                Verdict::Reply(Ok(ShardAnswer::Absent { grants }))
            }
            Ok(Some(dentry)) if !self.back.is_here(dentry.inode) => {
                let grants = self.grant_entry(session, parent, name);
                Verdict::Reply(Ok(ShardAnswer::Remote { inode: dentry.inode, kind: dentry.kind, grants }))
            }
            Ok(Some(dentry)) => match self.true_attributes(call, dentry.inode) {
                Ok((attributes, knowledge)) => {
                    let grants = self.grant_entry(session, parent, name);
                    Verdict::Reply(Ok(self.entry_with(session, attributes, knowledge, grants)))
                }
                Err(Answered::Error(error)) => Verdict::Reply(Err(error)),
                Err(Answered::Park(pause)) => Verdict::Park(pause),
            },
        }
    }

    fn entry(&mut self, call: &Call, inode: InodeNumber, grants: Grants) -> Verdict {
        match self.true_attributes(call, inode) {
            Ok((attributes, knowledge)) => {
                Verdict::Reply(Ok(self.entry_with(call.session(), attributes, knowledge, grants)))
            }
            Err(Answered::Error(error)) => Verdict::Reply(Err(error)),
            Err(Answered::Park(pause)) => Verdict::Park(pause),
        }
    }

    fn entry_with(
        &mut self,
        session: SessionId,
        attributes: Attributes,
        knowledge: Knowledge,
        mut grants: Grants,
    ) -> ShardAnswer {
        // Names are found, and removed, whatever is known of the size.
        grants.set(Grants::SIZE_IN_DOUBT, knowledge == Knowledge::InDoubt);
        if knowledge == Knowledge::Lasting {
            grants |= self.grant_attributes(session, &attributes);
        } else {
            self.note_told(attributes.inode, session, self.next_grant_stamp());
        }
        ShardAnswer::Entry { attributes, grants }
    }

    /// Extended attributes; with the attributes, which say whether there are any, where a lease can be had on them at
    /// once.
    fn xattrs(&mut self, call: &Call, inode: InodeNumber) -> Result<ShardAnswer, Error> {
        let xattrs = self.back.xattrs(&call.credentials, inode)?;
        let mut of_directory = None;
        let attributes = self.listed(call.session(), inode, &mut of_directory);
        let mut grants = of_directory.unwrap_or_default() & Grants::PERMISSIONS;
        grants.set(Grants::ATTRIBUTES, attributes.is_some());
        Ok(ShardAnswer::Xattrs { xattrs, attributes, grants })
    }

    /// A directory is open: it stays without a name, as a file does.
    fn hold_directory(&mut self, call: &Call, inode: InodeNumber) -> Verdict {
        match self.back.inode(inode) {
            None => return Verdict::Reply(Err(Error::Stale)),
            Some(record) if record.kind != FileKind::Directory => {
                return Verdict::Reply(Err(Error::NotDirectory));
            }
            Some(_) => {}
        }
        let grants = self.grant_open_directory(call.session(), inode);
        self.entry(call, inode, grants)
    }

    fn list(
        &mut self,
        call: &Call,
        number: InodeNumber,
        after: Cookie,
        (entries_max, with_attributes): (u32, bool),
    ) -> Result<ShardAnswer, Error> {
        let session = call.session();
        let listing = self.back.list(&call.credentials, number, after, entries_max)?;
        let key = LeaseKey::Directory(number);
        let mut grants = self.grant(session, key, Grants::DIRECTORY);
        // Others are making names there: what would be granted of each if it was looked up.
        let one_by_one = grants.is_empty() && with_attributes && !listing.entries.is_empty();
        if one_by_one && self.grant_each(session, number, &listing.entries) {
            grants |= Grants::ENTRY;
        }
        let mut of_directories = None;
        let attributes = match with_attributes {
            true => self.all_listed(session, &listing.entries, &mut of_directories),
            false => vec![None; listing.entries.len()],
        };
        if attributes.iter().any(Option::is_some) {
            grants |= Grants::ATTRIBUTES;
        }
        let entry = |(listed, attributes)| {
            let Listed { cookie, name, dentry: Dentry { inode, kind } } = listed;
            DirectoryEntry { name, cookie, inode, kind, attributes }
        };
        let entries: Vec<_> = listing.entries.into_iter().zip(attributes).map(entry).collect();
        grants |= of_directories.unwrap_or_default() & Grants::PERMISSIONS;
        grants |= self.shared_directory(session, number);
        Ok(ShardAnswer::Page(DirectoryPage { entries, next: listing.next, grants, parent: listing.parent }))
    }

    /// Grants each of these names, up to the first that cannot be; whether all were.
    fn grant_each(&mut self, session: SessionId, parent: InodeNumber, entries: &[Listed]) -> bool {
        entries.iter().all(|entry| self.grant_entry(session, parent, &entry.name).contains(Grants::ENTRY))
    }

    /// Attributes of each entry, see [`Shard::listed`]. They are visited in the order of inodes, in which those of
    /// files made one after the other lie together, and not in that of cookies.
    fn all_listed(
        &mut self,
        session: SessionId,
        entries: &[Listed],
        of_directories: &mut Option<Grants>,
    ) -> Vec<Option<Attributes>> {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_unstable_by_key(|index| entries[*index].dentry.inode);
        let mut attributes = vec![None; entries.len()];
        for index in order {
            attributes[index] = self.listed(session, entries[index].dentry.inode, of_directories);
        }
        attributes
    }

    /// Attributes beside a name in a listing: given only together with a lease on them. `of_directories`: what was
    /// granted of every directory.
    fn listed(
        &mut self,
        session: SessionId,
        inode: InodeNumber,
        of_directories: &mut Option<Grants>,
    ) -> Option<Attributes> {
        if !self.back.is_here(inode) {
            return None;
        }
        let attributes = self.back.inode(inode)?.attributes(inode);
        if attributes.kind == FileKind::Regular
            && self.leases.holders(&LeaseKey::Data(inode)).any(|holder| {
                may_change(*holder) && (holder.session != session || holder.mode != weft_protocol::LeaseMode::Exclusive)
            })
        {
            return None;
        }
        let granted = self.grant_attributes(session, &attributes);
        if !granted.contains(Grants::ATTRIBUTES) {
            return None;
        }
        if attributes.kind == FileKind::Directory {
            *of_directories = Some(of_directories.map_or(granted, |others| others & granted));
        }
        Some(attributes)
    }
}
