//! What makes inodes and names: create, mkdir, symlink, link; and open, which may create.

use super::inode::{EMPTY_DIRECTORY_LINKS, GROUP_EXECUTE, Inode, MODE_BITS, NO_OBJECT_MTIME, SET_GID};
use super::keys::Key;
use super::permission::{EXECUTE, READ, WRITE, check_access, check_change_names};
use super::{Aftermath, Back, Context, Dentry};
use crate::kv::KeyValue;
use weft_protocol::limits::SYMLINK_BYTES_MAX;
use weft_protocol::message::shard::{Access, CreateFile, FirstObjects, OpenFlags, ShardAnswer, SymlinkTarget};
use weft_protocol::{Attributes, Credentials, Error, FileKind, Grants, InodeNumber, Layout, Name, Result, Timestamp};

/// Owner, group and mode of what a caller makes in a directory.
pub(super) struct NewOwner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
}

impl NewOwner {
    /// A set-group-id directory gives its group, and to directories the bit too.
    pub fn of(directory: &Inode, caller: &Credentials, kind: FileKind, mode: u16) -> Self {
        let mut mode = mode & MODE_BITS;
        let mut gid = caller.gid;
        if directory.mode & SET_GID != 0 {
            gid = directory.gid;
            if kind == FileKind::Directory {
                mode |= SET_GID;
            }
        }
        let stranger = caller.uid != 0 && !caller.in_group(gid);
        if kind == FileKind::Regular && stranger && mode & GROUP_EXECUTE != 0 {
            mode &= !SET_GID;
        }
        Self { uid: caller.uid, gid, mode }
    }
}

impl Inode {
    /// A new inode with one name (a directory: with itself and its name), all times now.
    pub(super) fn new(kind: FileKind, owner: &NewOwner, parent: InodeNumber, time: Timestamp) -> Self {
        let is_directory = kind == FileKind::Directory;
        Self {
            kind,
            mode: owner.mode,
            links: if is_directory { EMPTY_DIRECTORY_LINKS } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Layout::Empty,
            object_mtime: NO_OBJECT_MTIME,
            parent: if is_directory { parent } else { InodeNumber::from_raw(0) },
            xattr_bytes: 0,
            spreads: false,
            parts: None,
        }
    }
}

impl<K: KeyValue> Back<K> {
    /// Makes an inode with a name; the caller puts it into the store. `None`: the name is there already.
    fn make(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        place: (InodeNumber, &mut Inode, &Name),
        kind: FileKind,
        mode: u16,
    ) -> Option<(InodeNumber, Inode)> {
        let (parent, directory, name) = place;
        let owner = NewOwner::of(directory, caller, kind, mode);
        let mut inode = Inode::new(kind, &owner, directory.directory_of(parent), time);
        match kind {
            FileKind::Directory => inode.inherit(directory.inherited()),
            FileKind::Regular => inode.layout = directory.layout.clone(),
            FileKind::Symlink => {}
        }
        let number = InodeNumber::new(self.shard, self.next_sequence);
        if !self.add_free_dentry(time, (parent, directory), name, Dentry { inode: number, kind }) {
            return None;
        }
        self.next_sequence += 1;
        self.inodes += 1;
        self.put_inode(parent, directory);
        Some((number, inode))
    }

    pub(super) fn open_at(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        place: (InodeNumber, &Name),
        (flags, create, objects): (OpenFlags, Option<CreateFile>, Option<&FirstObjects>),
        context: &Context,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let (parent, name) = place;
        let mut directory = self.searched(caller, place)?;
        directory.check_has_name()?;
        let grants = Grants::empty();
        // Made without a look for the name first: most names that may be made are not there.
        if let Some(CreateFile { mode, plan, .. }) = create
            && check_change_names(&directory, caller).is_ok()
            && let place = (parent, &mut directory, name)
            && let Some((number, mut inode)) = self.make(time, caller, place, FileKind::Regular, mode)
        {
            if let Some(plan) = plan {
                inode.layout = Layout::planned(plan);
            }
            if let Some(layout) = objects.and_then(|objects| with_objects(&inode.layout, objects)) {
                inode.will_have(layout);
            }
            self.put_inode(number, &inode);
            let attributes = inode.attributes(number);
            return Ok(opened(attributes, true));
        }
        match (self.dentry(parent, name), create) {
            (Some(_), Some(CreateFile { exclusive: true, .. })) => Err(Error::Exists),
            (Some(dentry), _) if !self.is_here(dentry.inode) => {
                Ok(ShardAnswer::Remote { inode: dentry.inode, kind: dentry.kind, grants })
            }
            (Some(dentry), _) if dentry.kind != FileKind::Regular => {
                let attributes = self.present(dentry.inode)?.attributes(dentry.inode);
                Ok(ShardAnswer::Entry { attributes, grants })
            }
            (Some(dentry), _) => self.open(time, caller, dentry.inode, flags, context, aftermath),
            (None, None) => Ok(ShardAnswer::Absent { grants }),
            // It was not made above.
            (None, Some(_)) => Err(Error::AccessDenied),
        }
    }

    /// Whether [`weft_protocol::message::shard::ShardRequest::Open`] would succeed; changes nothing. The inode as it is
    /// now.
    pub fn check_open(&self, caller: &Credentials, number: InodeNumber, flags: OpenFlags) -> Result<Inode> {
        let inode = self.present(number)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            FileKind::Symlink => return Err(Error::SymlinkLoop),
        }
        let read = match flags.access {
            Access::Read | Access::ReadWrite => READ,
            Access::Execute => EXECUTE,
            Access::Write => 0,
        };
        let write = if flags.access.writes() || flags.truncate { WRITE } else { 0 };
        check_access(&inode, caller, read | write)?;
        Ok(inode)
    }

    pub(super) fn open(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        flags: OpenFlags,
        context: &Context,
        aftermath: &mut Aftermath,
    ) -> Result<ShardAnswer> {
        let mut inode = if context.made { self.present(number) } else { self.check_open(caller, number, flags) }?;
        if flags.truncate {
            self.cut_to_nothing(time, caller, number, &mut inode, context, aftermath);
            self.put_inode(number, &inode);
        }
        let attributes = inode.attributes(number);
        Ok(opened(attributes, context.made))
    }

    pub(super) fn make_directory(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        parent: InodeNumber,
        name: &Name,
        mode: u16,
    ) -> Result<ShardAnswer> {
        let mut directory = self.free_place(caller, parent, name)?;
        let place = (parent, &mut directory, name);
        let (number, inode) = self.make(time, caller, place, FileKind::Directory, mode).ok_or(Error::Exists)?;
        self.put_inode(number, &inode);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    pub(super) fn make_symlink(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        parent: InodeNumber,
        name: &Name,
        target: &SymlinkTarget,
    ) -> Result<ShardAnswer> {
        let bytes = &target.0;
        if bytes.len() > SYMLINK_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(Error::Invalid);
        }
        let mut directory = self.free_place(caller, parent, name)?;
        let place = (parent, &mut directory, name);
        let (number, mut inode) = self.make(time, caller, place, FileKind::Symlink, 0o777).ok_or(Error::Exists)?;
        inode.size = bytes.len() as u64;
        self.put_inode(number, &inode);
        self.store.put(&Key::symlink(number), bytes);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    pub(super) fn link(
        &mut self,
        time: Timestamp,
        caller: &Credentials,
        number: InodeNumber,
        parent: InodeNumber,
        name: &Name,
    ) -> Result<ShardAnswer> {
        if !self.is_here(number) {
            return Err(Error::CrossShard);
        }
        let mut inode = self.present(number)?;
        let mut directory = self.free_place(caller, parent, name)?;
        // After the place, as on Linux.
        inode.check_another_link()?;
        inode.links += 1;
        inode.ctime = time.after(inode.ctime);
        self.put_inode(number, &inode);
        self.add_dentry(time, (parent, &mut directory), name, Dentry { inode: number, kind: inode.kind });
        self.put_inode(parent, &directory);
        Ok(ShardAnswer::Entry { attributes: inode.attributes(number), grants: Grants::empty() })
    }

    /// The directory, if the caller may make this name in it and it is not there.
    pub(super) fn free_place(&self, caller: &Credentials, parent: InodeNumber, name: &Name) -> Result<Inode> {
        let directory = self.searched(caller, (parent, name))?;
        directory.check_has_name()?;
        if self.dentry(parent, name).is_some() {
            return Err(Error::Exists);
        }
        check_change_names(&directory, caller)?;
        Ok(directory)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, number: InodeNumber) -> Result<SymlinkTarget> {
        if self.present(number)?.kind != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        self.store.get(&Key::symlink(number), |bytes| SymlinkTarget(bytes.to_vec())).ok_or(Error::Stale)
    }
}

/// The layout of a new file with these objects; `None`: they are for another one.
fn with_objects(layout: &Layout, objects: &FirstObjects) -> Option<Layout> {
    let (first, others) = objects.objects.split_first().filter(|_| objects.plan == layout.plan())?;
    let others: Vec<_> = others.iter().map(|leased| leased.object).collect();
    layout.given(first.object, &others)
}

/// An open, without what the front grants and signs.
fn opened(attributes: Attributes, created: bool) -> ShardAnswer {
    ShardAnswer::Opened { attributes, capability: None, others: Vec::new(), created, grants: Grants::empty() }
}
