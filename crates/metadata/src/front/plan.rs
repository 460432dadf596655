//! What a change touches: the keys on which other sessions may hold no lease, or a weaker one, when it is applied.
//!
//! Not here: the requester's own leases. They are not in its way.

use super::leases::Holder;
use super::park::{Call, Wait};
use super::{Pause, Shard};
use crate::kv::KeyValue;
use weft_protocol::message::peer::{Fate, Lock};
use weft_protocol::message::shard::{OpenFlags, RenameMode, ShardRequest};
use weft_protocol::{AttributeChanges, FileKind, InodeNumber, LeaseKey, LeaseMode, Name, SessionId};

/// Most keys that one change touches: a rename over a file (two names, two directories, two inodes, data).
const TOUCHED_MAX: usize = 11;

/// A key, and what others may hold on it.
#[derive(Clone, Copy, Debug)]
struct Touch {
    key: LeaseKey,
    /// Strongest mode that is not in the way.
    allowed: LeaseMode,
    /// What those who hold more may keep.
    to: LeaseMode,
    /// Who is asked once nevertheless: what they keep open they keep.
    asks: Asks,
}

/// Holders that are asked, though what they hold is not in the way.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Nobody,
    All,
    /// Those whose kernels may have pages of the file.
    WithPages,
}

impl Asks {
    fn includes(self, holder: &Holder) -> bool {
        match self {
            Self::Nobody => false,
            Self::All => true,
            Self::WithPages => holder.pages,
        }
    }
}

/// The keys that a change touches, and the inode that may lose its last name by it.
#[derive(Clone, Debug)]
pub struct Plan {
    touches: [Touch; TOUCHED_MAX],
    count: usize,
    /// Inode whose name goes.
    pub target: Option<InodeNumber>,
    /// The group that the file is opened for. What the caller's session holds is in its way as well.
    pub group: Option<SessionId>,
    /// It opens a file.
    pub opens: bool,
    /// The split file that it publishes a part of, and whose ranges that overlaps.
    pub publishes: Option<(InodeNumber, Vec<SessionId>)>,
}

impl Plan {
    pub fn new() -> Self {
        let none = Touch {
            key: LeaseKey::Attributes(InodeNumber::ROOT),
            allowed: LeaseMode::None,
            to: LeaseMode::None,
            asks: Asks::Nobody,
        };
        Self { touches: [none; TOUCHED_MAX], count: 0, target: None, group: None, opens: false, publishes: None }
    }

    fn add(&mut self, touch: Touch) {
        if !self.touches[..self.count].iter().any(|other| other.key == touch.key) {
            self.touches[self.count] = touch;
            self.count += 1;
        }
    }

    /// Nobody else may hold the key.
    pub fn alone(&mut self, key: LeaseKey) {
        self.add(Touch { key, allowed: LeaseMode::None, to: LeaseMode::None, asks: Asks::Nobody });
    }

    /// Others may hold no more than `allowed` on the contents; who does may keep `to`.
    fn data(&mut self, inode: InodeNumber, allowed: LeaseMode, to: LeaseMode) {
        self.add(Touch { key: LeaseKey::Data(inode), allowed, to, asks: Asks::Nobody });
    }

    /// A file gets its first object: pages of zeros that kernels have read before are noted by no storage server.
    fn first_object(&mut self, inode: InodeNumber) {
        let (key, asks) = (LeaseKey::Data(inode), Asks::WithPages);
        self.add(Touch { key, allowed: LeaseMode::Exclusive, to: LeaseMode::Open, asks });
    }

    /// A name comes or goes.
    pub fn name(&mut self, parent: InodeNumber, name: &Name) {
        self.alone(LeaseKey::Entry(parent, name.hash64()));
        self.alone(LeaseKey::Directory(parent));
        self.alone(LeaseKey::Attributes(parent));
    }

    /// A directory, with all that is known of it.
    pub fn directory_goes(&mut self, inode: InodeNumber) {
        self.target = Some(inode);
        self.alone(LeaseKey::Attributes(inode));
        self.alone(LeaseKey::Directory(inode));
        self.alone(LeaseKey::Permissions(inode));
    }

    /// Those that nobody else may hold.
    pub fn keys_alone(&self) -> impl Iterator<Item = LeaseKey> {
        let alone = self.touches[..self.count].iter().filter(|touch| touch.allowed == LeaseMode::None);
        alone.map(|touch| touch.key)
    }

    /// The keys.
    pub fn keys(&self) -> Vec<LeaseKey> {
        self.touches[..self.count].iter().map(|touch| touch.key).collect()
    }
}

impl<K: KeyValue> Shard<K> {
    /// What is to be recalled before a plan can be carried out. `requester`: `None` for another shard.
    pub(super) fn conflicts(
        &self,
        plan: &Plan,
        requester: Option<SessionId>,
        asked: &[(LeaseKey, SessionId)],
    ) -> Option<Pause> {
        let ranges = self.ranges_in_the_way(plan, requester);
        if ranges.is_empty() && self.leases.are_all_of(requester) {
            return None;
        }
        let mut recalls: Vec<_> = ranges.into_iter().map(|(key, holder)| (key, holder, LeaseMode::None)).collect();
        for touch in &plan.touches[..plan.count] {
            for holder in self.leases.holders(&touch.key) {
                let others = Some(holder.session) != requester;
                let stronger = holder.mode > touch.allowed;
                // Nobody answers for a group, which has the file open for as long as it lives.
                let unasked = touch.asks.includes(holder)
                    && !holder.session.is_group()
                    && !asked.contains(&(touch.key, holder.session));
                let is_data = matches!(touch.key, LeaseKey::Data(_));
                if others && (stronger || unasked || (is_data && self.is_being_fenced(holder))) {
                    recalls.push((touch.key, holder.session, touch.to));
                }
            }
        }
        if recalls.is_empty() {
            return None;
        }
        let mut claims = plan.keys();
        claims.extend(recalls.iter().map(|(key, ..)| *key).filter(|key| matches!(key, LeaseKey::Ranges(_))));
        Some(Pause { recalls, ..Pause::until(Wait::Recalls, claims) })
    }

    /// Makes the plan of a change. What will surely be refused touches nothing. `Err`: it has to wait for a locked
    /// name.
    pub(super) fn plan(&self, call: &Call, plan: &mut Plan) -> Result<(), Pause> {
        match &call.request {
            ShardRequest::OpenAt { parent, name, flags, create, .. } => match self.back.dentry(*parent, name) {
                Some(dentry) => {
                    let exclusive = create.is_some_and(|create| create.exclusive);
                    if dentry.kind == FileKind::Regular && !exclusive {
                        self.plan_open_of(plan, call.session(), dentry.inode, *flags);
                    }
                }
                None if create.is_some() => {
                    self.check_lock(*parent, name)?;
                    plan.name(*parent, name);
                }
                None => {}
            },
            ShardRequest::Open { inode, flags } => self.plan_open_of(plan, call.session(), *inode, *flags),
            ShardRequest::SetAttributes { inode, changes } => self.plan_attributes(call, plan, *inode, changes)?,
            ShardRequest::Commit { inode, object, .. } => {
                plan.alone(LeaseKey::Attributes(*inode));
                // Who is being asked has to report before it answers.
                let is_asked = self.recalls.find(LeaseKey::Data(*inode), call.session()).is_some();
                let has_object = self.back.inode(*inode).is_none_or(|record| record.layout.object().is_some());
                if object.is_some() && !has_object && !is_asked {
                    plan.first_object(*inode);
                }
            }
            ShardRequest::SetInherited { inode, .. } => {
                self.check_lock_as_a_whole(*inode)?;
                plan.alone(LeaseKey::Attributes(*inode));
            }
            ShardRequest::SetXattr { inode, .. } | ShardRequest::RemoveXattr { inode, .. } => {
                plan.alone(LeaseKey::Attributes(*inode));
            }
            ShardRequest::Publish { inode, .. } | ShardRequest::Relocate { inode, .. } => {
                if self.may_publish(call) || self.is_alone(call) {
                    plan.alone(LeaseKey::Attributes(*inode));
                    plan.publishes = self.overlapped_by(call).map(|overlapped| (*inode, overlapped));
                }
            }
            ShardRequest::MakeDirectory { parent, name, .. } | ShardRequest::MakeSymlink { parent, name, .. } => {
                self.plan_new_name(plan, *parent, name)?;
            }
            ShardRequest::Link { inode, parent, name } => {
                self.plan_new_name(plan, *parent, name)?;
                self.check_inode_lock(*inode)?;
                plan.alone(LeaseKey::Attributes(*inode));
            }
            ShardRequest::Unlink { parent, name } => self.plan_unlink(plan, *parent, name)?,
            // The others are planned once nothing is in the way of the first.
            ShardRequest::UnlinkBatch { parent, names } => {
                if let Some(first) = names.first() {
                    self.plan_unlink(plan, *parent, first)?;
                }
            }
            ShardRequest::RemoveDirectory { parent, name } => self.plan_remove_directory(plan, *parent, name)?,
            ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } => {
                self.check_lock(*parent, name)?;
                self.check_lock(*new_parent, new_name)?;
                for (parent, name) in [(parent, name), (new_parent, new_name)] {
                    if let Some(dentry) = self.back.dentry(*parent, name) {
                        self.check_inode_lock(dentry.inode)?;
                    }
                }
                self.check_locks_above((*parent, name), *new_parent)?;
                if *mode == RenameMode::Exchange {
                    self.check_locks_above((*new_parent, new_name), *parent)?;
                }
                self.plan_rename(plan, (*parent, name), (*new_parent, new_name), *mode);
            }
            ShardRequest::Lookup { .. }
            | ShardRequest::ReadBelow { .. }
            | ShardRequest::NoteBelow { .. }
            | ShardRequest::GetAttributes { .. }
            | ShardRequest::ReadLink { .. }
            | ShardRequest::ReadDirectory { .. }
            | ShardRequest::HoldDirectory { .. }
            | ShardRequest::OpenGroup { .. }
            | ShardRequest::GetParts { .. }
            | ShardRequest::Lock { .. }
            | ShardRequest::Unlock { .. }
            | ShardRequest::TakeLocks { .. }
            | ShardRequest::CancelLock { .. }
            | ShardRequest::TestLock { .. }
            | ShardRequest::GetXattrs { .. }
            | ShardRequest::Spread { .. }
            | ShardRequest::Release { .. }
            | ShardRequest::EndSession
            | ShardRequest::Ping => {}
        }
        Ok(())
    }

    fn plan_attributes(
        &self,
        call: &Call,
        plan: &mut Plan,
        inode: InodeNumber,
        changes: &AttributeChanges,
    ) -> Result<(), Pause> {
        // What storage servers have cut already has the size that they say.
        if call.answers.is_none() {
            self.check_lock_as_a_whole(inode)?;
        }
        plan.alone(LeaseKey::Attributes(inode));
        if changes.change_rights() {
            plan.alone(LeaseKey::Permissions(inode));
        }
        if changes.size.is_some() || changes.mtime.is_some() {
            plan.data(inode, LeaseMode::Open, LeaseMode::Open);
        }
        Ok(())
    }

    fn plan_new_name(&self, plan: &mut Plan, parent: InodeNumber, name: &Name) -> Result<(), Pause> {
        self.check_lock(parent, name)?;
        if self.back.dentry(parent, name).is_none() {
            plan.name(parent, name);
        }
        Ok(())
    }

    pub(super) fn plan_unlink(&self, plan: &mut Plan, parent: InodeNumber, name: &Name) -> Result<(), Pause> {
        self.check_lock(parent, name)?;
        if let Some(dentry) = self.back.dentry(parent, name)
            && dentry.kind != FileKind::Directory
        {
            self.check_inode_lock(dentry.inode)?;
            plan.name(parent, name);
            self.plan_lost_name(plan, dentry.inode);
        }
        Ok(())
    }

    fn plan_remove_directory(&self, plan: &mut Plan, parent: InodeNumber, name: &Name) -> Result<(), Pause> {
        self.check_lock(parent, name)?;
        if let Some(dentry) = self.back.dentry(parent, name)
            && dentry.kind == FileKind::Directory
        {
            self.check_inode_lock(dentry.inode)?;
            if let Some(intent) = self.back.lock_within(dentry.inode) {
                return Err(Pause::until(Wait::Lock(intent), Vec::new()));
            }
            plan.name(parent, name);
            plan.directory_goes(dentry.inode);
        }
        Ok(())
    }

    /// A name of this inode goes, and perhaps the inode with it.
    fn plan_lost_name(&self, plan: &mut Plan, inode: InodeNumber) {
        plan.alone(LeaseKey::Attributes(inode));
        plan.target = Some(inode);
        if let Some(record) = self.back.inode(inode)
            && record.kind == FileKind::Regular
            && record.links == 1
        {
            let key = LeaseKey::Data(inode);
            plan.add(Touch { key, allowed: LeaseMode::Open, to: LeaseMode::None, asks: Asks::All });
        }
    }

    fn plan_rename(&self, plan: &mut Plan, from: (InodeNumber, &Name), to: (InodeNumber, &Name), mode: RenameMode) {
        let Some(source) = self.back.dentry(from.0, from.1) else {
            return;
        };
        let target = self.back.dentry(to.0, to.1);
        if mode == RenameMode::NoReplace && target.is_some() {
            return;
        }
        plan.name(from.0, from.1);
        plan.name(to.0, to.1);
        plan.alone(LeaseKey::Attributes(source.inode));
        match target {
            Some(target) if mode == RenameMode::Exchange || target.inode == source.inode => {
                plan.alone(LeaseKey::Attributes(target.inode));
            }
            Some(target) if target.kind == FileKind::Directory => {
                plan.directory_goes(target.inode);
            }
            Some(target) => self.plan_lost_name(plan, target.inode),
            None => {}
        }
    }

    /// What is to be recalled before this is locked.
    pub(super) fn plan_locks(&self, plan: &mut Plan, locks: &[Lock]) {
        let of_inode = |plan: &mut Plan, inode: InodeNumber, fate: Fate| match fate {
            Fate::Stays => plan.alone(LeaseKey::Attributes(inode)),
            Fate::Loses => self.plan_loss(plan, inode),
        };
        for lock in locks {
            match lock {
                Lock::Inode { inode, fate } => of_inode(plan, *inode, *fate),
                Lock::Tree => {}
                Lock::Name { directory, name, fate } => {
                    plan.name(*directory, name);
                    let dentry = self.back.dentry(*directory, name);
                    if let Some(dentry) = dentry.filter(|dentry| self.back.is_here(dentry.inode)) {
                        of_inode(plan, dentry.inode, *fate);
                    }
                }
            }
        }
    }

    /// An inode loses a name; a directory goes with it.
    pub(super) fn plan_loss(&self, plan: &mut Plan, inode: InodeNumber) {
        match self.back.inode(inode) {
            Some(record) if record.kind == FileKind::Directory => plan.directory_goes(inode),
            Some(_) => self.plan_lost_name(plan, inode),
            None => {}
        }
    }

    /// A directory that gets another parent waits for others that do.
    fn check_locks_above(&self, (parent, name): (InodeNumber, &Name), under: InodeNumber) -> Result<(), Pause> {
        let moved = self.back.dentry(parent, name).filter(|moved| moved.kind == FileKind::Directory);
        let Some(moved) = moved.filter(|_| parent != under) else { return Ok(()) };
        match self.back.lock_above(moved.inode, under) {
            None => Ok(()),
            Some(intent) => Err(Pause::until(Wait::Lock(intent), Vec::new())),
        }
    }

    fn check_lock_as_a_whole(&self, inode: InodeNumber) -> Result<(), Pause> {
        match self.back.locked_as_a_whole(inode) {
            None => Ok(()),
            Some(intent) => Err(Pause::until(Wait::Lock(intent), Vec::new())),
        }
    }

    fn check_inode_lock(&self, inode: InodeNumber) -> Result<(), Pause> {
        match self.back.locked_inode(inode) {
            None => Ok(()),
            Some(intent) => Err(Pause::until(Wait::Lock(intent), Vec::new())),
        }
    }

    fn check_lock(&self, parent: InodeNumber, name: &Name) -> Result<(), Pause> {
        match self.back.locked(parent, name) {
            None => Ok(()),
            Some(intent) => Err(Pause::until(Wait::Lock(intent), Vec::new())),
        }
    }
}

/// Readers may share; a writer caches alone. Who writes makes size and time uncertain for all others.
pub(super) fn plan_open(plan: &mut Plan, inode: InodeNumber, flags: OpenFlags) {
    if flags.access.writes() || flags.truncate {
        plan.alone(LeaseKey::Attributes(inode));
        let to = if flags.direct { LeaseMode::Open } else { LeaseMode::None };
        plan.data(inode, LeaseMode::Open, to);
    } else {
        plan.data(inode, LeaseMode::Shared, LeaseMode::Open);
    }
}
