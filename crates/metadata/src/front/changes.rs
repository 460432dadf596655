//! Calls that change something: judged, applied, answered with what they grant.

use super::data::stat_of;
use super::park::{Call, Wait};
use super::plan::Plan;
use super::storage::{Answers, Questions};
use super::{Pause, Shard, Verdict};
use crate::back::{Aftermath, Answer, Command, Context, NO_OBJECT_MTIME, Outcome};
use crate::kv::KeyValue;
use crate::placement;
use serde::{Deserialize, Serialize};
use weft_protocol::limits::UNLINK_NAMES_MAX;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{
    Error, Grants, InodeNumber, Layout, LeaseKey, LeaseMode, Name, ObjectId, SessionId, ShardId, Timestamp,
};

use super::leases::{Holder, Leases};

/// A file whose objects are cut, or extended, before the change of its size is applied.
#[derive(Debug)]
struct Cut {
    inode: InodeNumber,
    /// The first one.
    object: ObjectId,
    layout: Layout,
    size: u64,
}

impl Cut {
    /// `None`: the layout has no object.
    fn of(inode: InodeNumber, layout: Layout, size: u64) -> Option<Self> {
        let object = layout.object()?;
        Some(Self { inode, object, layout, size })
    }
}

/// A cut that storage servers were asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cutting {
    /// The parked work that has asked for it.
    pub by: u64,
    /// A report of the file was taken meanwhile. It may be of bytes that were written since the object was cut.
    is_reported: bool,
}

impl Cutting {
    pub fn new(by: u64) -> Self {
        Self { by, is_reported: false }
    }
}

/// Whether a report with this time tells of writes beside others. They may be reported late, when the session is alone:
/// then their size may be from before a cut, or an extension, by another that is gone.
fn is_beside_others(own: Holder, mtime: Option<Timestamp>) -> bool {
    own.mode != LeaseMode::Exclusive || (own.wrote_through && mtime.is_none())
}

impl<K: KeyValue> Shard<K> {
    /// What storage servers have answered before a change.
    pub(super) fn take_answers(&mut self, call: &mut Call) {
        if call.request.is_read() {
            return;
        }
        if self.objects_were_made(call) {
            // What the call asks them next is another question.
            (call.asked, call.answers) = (None, None);
        }
        self.keep_to_the_file_that_was_cut(call);
    }

    pub(super) fn change(&mut self, call: &mut Call, asked: &[(LeaseKey, SessionId)], number: Option<u64>) -> Verdict {
        self.check_first_objects(call);
        let is_spread = matches!(call.request, ShardRequest::Spread { .. });
        if is_spread || self.back.crosses(&call.credentials, &call.request) {
            return self.begin_intent(call, None, Vec::new());
        }
        let mut plan = Plan::new();
        if let Err(pause) = self.plan(call, &mut plan) {
            return Verdict::Park(pause);
        }
        if let Some(pause) = self.conflicts(&plan, Some(plan.group.unwrap_or(call.session())), asked) {
            return Verdict::Park(pause);
        }
        if let Some(pause) = self.objects_to_make(call, &plan) {
            return Verdict::Park(pause);
        }
        let cut = self.cut(call);
        if let Some(pause) = self.storage_first(call, cut.as_ref(), &plan, number) {
            return Verdict::Park(pause);
        }
        if let Some(cut) = &cut
            && let Some(Err(error)) = call.told(cut.inode, cut.object)
            && (cut.size > 0 || *error == Error::PagesCached || self.others_would_keep_objects(call, cut, error))
        {
            let error = error.clone();
            // Objects that the file was to get first are none of its own: its size is what it was.
            let is_its_own = self.back.inode(cut.inode).and_then(|record| record.layout.object()) == Some(cut.object);
            let may_be_cut = error == Error::Unreachable || call.answers.as_ref().is_some_and(Answers::are_mixed);
            if is_its_own && may_be_cut {
                self.doubt_cut(cut.inode, cut.object);
            }
            return Verdict::Reply(Err(error));
        }
        if let ShardRequest::UnlinkBatch { parent, names } = &call.request {
            if names.is_empty() {
                return Verdict::Reply(Err(Error::Invalid));
            }
            let (parent, names) = (*parent, self.free_names(call.session(), *parent, names, &plan));
            self.contention.changed(plan.keys_alone(), Some(call.session()), self.now.boot_ms);
            let command =
                Command::UnlinkBatch { origin: call.origin, credentials: call.credentials.clone(), parent, names };
            return Verdict::Reply(client_answer(self.apply(&command)));
        }
        if let Some(to) = self.home_of_new(call) {
            return self.begin_intent(call, Some(to), plan.keys());
        }
        Verdict::Reply(self.carry_out(call, cut.as_ref(), &plan))
    }

    /// Whether other sessions would go on with the objects of a file if it got others in place of a cut to nothing:
    /// they reach the storage server that this shard does not reach.
    fn others_would_keep_objects(&self, call: &Call, cut: &Cut, error: &Error) -> bool {
        let key = LeaseKey::Data(cut.inode);
        *error == Error::Unreachable && self.leases.holders(&key).any(|holder| holder.session != call.session())
    }

    /// Applies a change that nothing is in the way of.
    fn carry_out(&mut self, call: &mut Call, cut: Option<&Cut>, plan: &Plan) -> Result<ShardAnswer, Error> {
        self.contention.changed(plan.keys_alone(), Some(call.session()), self.now.boot_ms);
        let context = self.context(call, cut, plan);
        // The command borrows what the call is made of for a moment.
        let credentials = std::mem::take(&mut call.credentials);
        let request = std::mem::replace(&mut call.request, ShardRequest::Ping);
        let command = Command::Change { origin: call.origin, credentials, request, context };
        let outcome = self.apply(&command);
        let Command::Change { credentials, request, .. } = command else {
            unreachable!("it was made a change above");
        };
        call.credentials = credentials;
        call.request = request;
        let mut result = client_answer(outcome);
        if let Ok(answer) = &mut result {
            if let (Some(cut), false) = (cut, matches!(call.request, ShardRequest::Commit { .. })) {
                // That of the reply, if not a later one, is higher than all before.
                self.cut_at.insert(cut.inode, self.stamp + 1);
                if self.cuts.get(&cut.inode).is_some_and(|cutting| cutting.is_reported) {
                    self.doubt_size(cut.inode, cut.object);
                }
            }
            self.note_report(call);
            self.note_unanswered(call);
            self.note_split(call, answer);
            self.note_overtaken(call, answer);
            self.note_watched(call, plan);
            self.counts.renamed(answer, false);
            self.grant_all(call, answer);
            self.grow(&call.request, answer);
        }
        result
    }

    /// A file that has become a split one is cached by nobody, its maker included.
    fn note_split(&mut self, call: &Call, answer: &ShardAnswer) {
        if let (ShardRequest::Relocate { inode, .. }, ShardAnswer::Entry { attributes, .. }) = (&call.request, answer)
            && attributes.layout.epoch().is_some()
        {
            self.weaken(call.session(), LeaseKey::Data(*inode), LeaseMode::Open);
        }
    }

    /// Nobody is asked before a split file changes. A copy that another session is making of it does not become the
    /// file's.
    fn note_overtaken(&mut self, call: &Call, answer: &ShardAnswer) {
        let attributes = match (&call.request, answer) {
            (ShardRequest::Publish { .. }, ShardAnswer::Entry { attributes, .. }) => attributes,
            (ShardRequest::SetAttributes { changes, .. }, ShardAnswer::Entry { attributes, .. })
                if changes.size.is_some() =>
            {
                attributes
            }
            (
                ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. },
                ShardAnswer::Opened { attributes, .. },
            ) if flags.truncate => attributes,
            _ => return,
        };
        let key = LeaseKey::Data(attributes.inode);
        if attributes.layout.epoch().is_some() {
            let others = self.leases.holders(&key).filter(|holder| holder.session != call.session());
            for holder in others.copied().collect::<Vec<_>>() {
                self.leases.set(key, Holder { overtaken: true, ..holder });
            }
        }
    }

    fn note_report(&mut self, call: &Call) {
        if let ShardRequest::Commit { inode, number, passed, .. } = call.request {
            self.cuts.entry(inode).and_modify(|cutting| cutting.is_reported = true);
            let key = LeaseKey::Data(inode);
            if let Some(holder) = self.leases.holder(&key, call.session()) {
                let (reported, pages) = (holder.reported.max(number), holder.pages && !passed);
                self.leases.set(key, Holder { reported, pages, ..holder });
            }
        }
    }

    /// A report has told what its client knows of the size, since the storage server did not answer. Others may have
    /// written more.
    fn note_unanswered(&mut self, call: &Call) {
        if let ShardRequest::Commit { inode, .. } = call.request
            && let Some(object) = self.back.inode(inode).and_then(|record| record.layout.object())
            && call.told(inode, object) == Some(&Err(Error::Unreachable))
        {
            self.doubt_size(inode, object);
        }
    }

    /// Whether this is a report by a session that has cut the file by another call since, and did not know it: of the
    /// two, the report was sent first, and its size is not the file's any more.
    fn is_from_before_a_cut(&self, request: &ShardRequest) -> bool {
        match request {
            ShardRequest::Commit { inode, object: None, known, .. } => {
                self.cut_at.get(inode).is_some_and(|cut_at| known < cut_at)
            }
            _ => false,
        }
    }

    /// The first of the names, whose removal `plan` is about, and those after it that can be removed without a recall;
    /// of each whether its inode has to stay.
    fn free_names(&self, session: SessionId, parent: InodeNumber, names: &[Name], plan: &Plan) -> Vec<(Name, bool)> {
        let mut free = Vec::with_capacity(names.len());
        for name in names.iter().take(UNLINK_NAMES_MAX) {
            let keep = if free.is_empty() {
                self.keeps_target(plan)
            } else {
                let mut plan = Plan::new();
                if self.back.dentry(parent, name).is_some_and(|dentry| !self.back.is_here(dentry.inode)) {
                    break;
                }
                let planned = self.plan_unlink(&mut plan, parent, name);
                if planned.is_err() || self.conflicts(&plan, Some(session), &[]).is_some() {
                    break;
                }
                self.keeps_target(&plan)
            };
            free.push((name.clone(), keep));
        }
        free
    }

    fn context(&self, call: &Call, cut: Option<&Cut>, plan: &Plan) -> Context {
        let keep = self.keeps_target(plan);
        let own = match &call.request {
            ShardRequest::Commit { inode, .. } | ShardRequest::SetAttributes { inode, .. } => {
                self.leases.holder(&LeaseKey::Data(*inode), call.session())
            }
            _ => None,
        };
        let actual = match &call.request {
            ShardRequest::Commit { inode, size, mtime, object_mtime, number, .. } => {
                match self.told_of_file(call, *inode) {
                    Some(Ok(actual)) => Some(*actual),
                    // Nothing that it tells counts. Of two reports the first may come last: the answer to a recall does
                    // not wait for a change that has no reply.
                    _ if self.is_from_before_a_cut(&call.request) => Some((0, NO_OBJECT_MTIME)),
                    _ if own.is_some_and(|own| *number < own.reported) => Some((0, NO_OBJECT_MTIME)),
                    // The server did not answer: the client's word, which can only be too small.
                    Some(Err(_)) => Some((*size, *object_mtime)),
                    // The first object of a file that others may have extended meanwhile.
                    None if own.is_some_and(|own| is_beside_others(own, *mtime)) => Some((*size, *object_mtime)),
                    None => None,
                }
            }
            _ => None,
        };
        // Where the server is away, the file gets another object: better than a cut that waits for it.
        let cut_in_place = cut.is_some_and(|cut| matches!(call.told(cut.inode, cut.object), Some(Ok(_))));
        let told = match (cut, &call.request) {
            (Some(cut), _) => call.told(cut.inode, cut.object),
            (None, ShardRequest::SetAttributes { inode, .. }) => self.told_of_file(call, *inode),
            (None, _) => None,
        };
        let object_mtime = told.and_then(|told| told.as_ref().ok()).map(|(_, object_mtime)| *object_mtime);
        let is_writer = own.is_some_and(|own| own.writing) || self.may_publish(call);
        let is_open = self.resized(&call.request).is_some_and(|inode| self.is_open(inode));
        let (is_alone, made) = (self.is_alone(call), call.made);
        Context { keep, is_writer, is_alone, actual, object_mtime, cut_in_place, is_open, made }
    }

    /// Whether nobody else has used the file of a change of objects since the session was granted the lease that it
    /// names, and the session has not cut it by another call. Of a split file others may read: what they know of its
    /// parts they believe for as long as they hold its attributes, or, in a group, until they synchronize.
    pub(super) fn is_alone(&self, call: &Call) -> bool {
        let ShardRequest::Relocate { inode, granted, .. } = call.request else { return false };
        let key = LeaseKey::Data(inode);
        let own = self.leases.holder(&key, call.session());
        let is_split = self.back.inode(inode).is_some_and(|record| record.layout.epoch().is_some());
        // Nobody has more than a split file open.
        let may_stay =
            |holder: &Holder| if holder.session == call.session() { !holder.overtaken } else { !holder.writing };
        let is_only = is_split && self.leases.holders(&key).all(may_stay);
        let holds = |own: &Holder| (own.mode == LeaseMode::Exclusive || is_only) && own.writing && own.stamp == granted;
        let is_cut = self.cuts.contains_key(&inode) || self.cut_at.get(&inode).is_some_and(|cut| *cut > granted);
        own.as_ref().is_some_and(holds) && self.recalls.find(key, call.session()).is_none() && !is_cut
    }

    /// Fills in what an answer grants, each on the key that follows from the request.
    fn grant_all(&mut self, call: &Call, answer: &mut ShardAnswer) {
        let session = call.session();
        match answer {
            ShardAnswer::Entry { attributes, grants } => {
                let range = self.use_range(call);
                *grants = self.grant_name(call) | range;
                if self.publishes_beside_others(call) {
                    self.note_told(attributes.inode, session, self.next_grant_stamp());
                } else {
                    *grants |= self.grant_attributes(session, attributes);
                }
                if let ShardRequest::MakeDirectory { .. } = call.request {
                    // It is empty, and that is all there is to know of it.
                    *grants |= self.grant(session, LeaseKey::Directory(attributes.inode), Grants::DIRECTORY);
                }
            }
            ShardAnswer::Remote { grants, .. } | ShardAnswer::Absent { grants } => {
                *grants = self.grant_name(call);
            }
            ShardAnswer::Opened { .. } => self.grant_open(call, answer),
            ShardAnswer::Renamed { exchanged, grants, .. } => {
                if let ShardRequest::Rename { parent, name, new_parent, new_name, .. } = &call.request {
                    *grants = self.grant_both(session, (*parent, name), (*new_parent, new_name), exchanged.is_some());
                }
            }
            ShardAnswer::Done
            | ShardAnswer::Target(_)
            | ShardAnswer::Page(_)
            | ShardAnswer::Removed { .. }
            | ShardAnswer::RemovedBatch { .. }
            | ShardAnswer::Lock(_)
            | ShardAnswer::LockTested(_)
            | ShardAnswer::Parts { .. }
            | ShardAnswer::Below(_)
            | ShardAnswer::Xattrs { .. } => {}
        }
    }

    fn grant_open(&mut self, call: &Call, answer: &mut ShardAnswer) {
        let Some(flags) = call.request.open_flags() else { return };
        if self.grant_for_group(call, &flags, answer) {
            return;
        }
        let ShardAnswer::Opened { attributes, capability, others, created, grants } = answer else { return };
        let session = call.session();
        if *created && !call.made {
            assert!(attributes.layout.object().is_none(), "{} has objects, and is for no group", attributes.inode);
            *grants = self.grant_name(call) | self.grant_new_file(session, attributes, flags);
            return;
        }
        *grants = self.grant_name(call)
            | self.grant_data(session, attributes.inode, flags)
            | self.grant_attributes(session, attributes);
        (*capability, *others) = self.capabilities(attributes, flags.access, session);
    }

    /// The new name of a rename, and after an exchange the old one, both or none.
    pub(super) fn grant_both(
        &mut self,
        session: SessionId,
        (parent, name): (InodeNumber, &Name),
        (new_parent, new_name): (InodeNumber, &Name),
        is_exchange: bool,
    ) -> Grants {
        let mut grants = self.grant_renamed(session, new_parent, new_name);
        if is_exchange {
            let other = self.grant_renamed(session, parent, name);
            grants.set(Grants::ENTRY, grants.contains(Grants::ENTRY) && other.contains(Grants::ENTRY));
            grants |= other & Grants::SHARED_DIRECTORY;
        }
        grants
    }

    pub(super) fn grant_name(&mut self, call: &Call) -> Grants {
        match &call.request {
            ShardRequest::OpenAt { parent, name, .. }
            | ShardRequest::MakeDirectory { parent, name, .. }
            | ShardRequest::MakeSymlink { parent, name, .. }
            | ShardRequest::Link { parent, name, .. } => self.grant_entry(call.session(), *parent, name),
            _ => Grants::empty(),
        }
    }

    /// The cut of an object that this change asks for. What will be refused cuts nothing. A cut to nothing takes the
    /// object from a file that nobody has open; while somebody has, it stays, since a kernel may be reading and writing
    /// it by itself and would not notice another.
    fn cut(&self, call: &Call) -> Option<Cut> {
        let who = &call.credentials;
        let (inode, record, size) = match &call.request {
            ShardRequest::SetAttributes { inode, changes } => {
                let own = self.leases.holder(&LeaseKey::Data(*inode), call.session());
                let is_writer = own.is_some_and(|own| own.writing);
                let size = changes.size?;
                (*inode, self.back.check_set_attributes(who, *inode, changes, is_writer).ok()?, size)
            }
            ShardRequest::Open { inode, flags } if flags.truncate => {
                (*inode, self.back.check_open(who, *inode, *flags).ok()?, 0)
            }
            ShardRequest::OpenAt { parent, name, flags, create, .. }
                if flags.truncate && !create.is_some_and(|create| create.exclusive) =>
            {
                let inode = self.back.lookup(who, *parent, name).ok()??.inode;
                (inode, self.back.check_open(who, inode, *flags).ok()?, 0)
            }
            ShardRequest::Commit { inode, object: Some(object), others, size, .. } => {
                // The first object of a file that was extended before it had one: it gets the file's size before others
                // are told of it. A writer whose exclusive lease is being recalled leaves that to us, too.
                let own = self.leases.holder(&LeaseKey::Data(*inode), call.session())?;
                let record = self.back.inode(*inode).filter(|record| record.layout.object().is_none())?;
                let extends = own.writing && record.size > *size;
                let layout = record.layout.given(*object, others).filter(|_| extends)?;
                return Cut::of(*inode, layout, record.size);
            }
            _ => return None,
        };
        let is_open = self.leases.holders(&LeaseKey::Data(inode)).next().is_some();
        Cut::of(inode, record.layout, size).filter(|_| size > 0 || is_open)
    }

    /// The file without an object whose size the change sets.
    fn resized(&self, request: &ShardRequest) -> Option<InodeNumber> {
        let inode = match request {
            ShardRequest::SetAttributes { inode, changes } if changes.size.is_some() => *inode,
            ShardRequest::Open { inode, flags } if flags.truncate => *inode,
            ShardRequest::OpenAt { parent, name, flags, .. } if flags.truncate => {
                self.back.dentry(*parent, name)?.inode
            }
            _ => return None,
        };
        self.back.inode(inode).is_some_and(|record| record.layout.object().is_none()).then_some(inode)
    }

    /// An open has found its file when this was cut. By now the name may be another file's, or gone: opening that
    /// one, or failing, would leave behind a file that lost its bytes to an open that never was. The name may also be
    /// locked: an open that waited for it would set the size over what others have written and reported since the cut.
    /// Once that file is gone altogether, nobody can tell, and the name counts again. So does an open that repeats one
    /// of an ended session.
    fn keep_to_the_file_that_was_cut(&self, call: &mut Call) {
        if let ShardRequest::Open { inode, .. } = call.request
            && self.back.inode(inode).is_none()
            && let Some(by_name) = call.by_name.take()
        {
            call.request = by_name;
            call.made = false;
        } else if let ShardRequest::OpenAt { flags, .. } = &call.request
            && let Some((inode, object)) = call.asked
            && let Some(Ok(_)) = call.told(inode, object)
            && self.back.inode(inode).is_some()
        {
            let by_inode = ShardRequest::Open { inode, flags: *flags };
            call.by_name = Some(std::mem::replace(&mut call.request, by_inode));
        }
    }

    /// What the storage server said of the object that the file has now.
    fn told_of_file<'a>(&self, call: &'a Call, inode: InodeNumber) -> Option<&'a Result<(u64, Timestamp), Error>> {
        call.told(inode, self.back.inode(inode)?.layout.object()?)
    }

    /// What a storage server must do, or tell, before the change.
    fn storage_first(&self, call: &Call, cut: Option<&Cut>, plan: &Plan, number: Option<u64>) -> Option<Pause> {
        // Who may open the file was judged when the cut was asked for: a change of that waits, too. And while the first
        // object of a file is being extended, another size has no object yet to be set in.
        let touched = match (cut, &call.request) {
            (Some(cut), _) => Some(cut.inode),
            (None, ShardRequest::SetAttributes { inode, changes }) if changes.change_rights() => Some(*inode),
            (None, request) => self.resized(request),
        };
        if let Some(inode) = touched
            && self.cuts.get(&inode).is_some_and(|cutting| Some(cutting.by) != number)
        {
            return Some(Pause::until(Wait::Cut(inode), plan.keys()));
        }
        if let Some(Cut { inode, object, layout, size }) = cut {
            if call.told(*inode, *object).is_some() {
                return None;
            }
            let mut claims = plan.keys();
            claims.push(LeaseKey::Data(*inode));
            let questions = Questions::truncate(*inode, layout, *size, call.session());
            return Some(Pause { storage: Some(Box::new(questions)), ..Pause::until(Wait::Storage, claims) });
        }
        let (inode, asks) = match &call.request {
            ShardRequest::Commit { inode, mtime, .. } => {
                let own = self.leases.holder(&LeaseKey::Data(*inode), call.session())?;
                let asks = is_beside_others(own, *mtime) || self.is_from_before_a_cut(&call.request);
                (inode, own.writing && asks)
            }
            // A write that was not reported comes before the time that is set now.
            ShardRequest::SetAttributes { inode, changes } => {
                (inode, changes.mtime.is_some() && self.storage_knows_better(*inode))
            }
            _ => return None,
        };
        if !asks || self.told_of_file(call, *inode).is_some() {
            return None;
        }
        let record = self.back.inode(*inode)?;
        record.layout.object().map(|_| stat_of(*inode, &record, plan.keys()))
    }

    /// The cuts that this work has asked for are over, whatever came of them: the next ones may go, and sizes that were
    /// asked for before are old.
    pub(super) fn end_cuts(&mut self, number: u64) {
        let ended: Vec<_> =
            self.cuts.iter().filter(|(_, cutting)| cutting.by == number).map(|(inode, _)| *inode).collect();
        for inode in ended {
            self.cuts.remove(&inode);
            self.parking.ask_anew(inode);
            self.sizes_are_stale(inode);
            self.wake(Wait::Cut(inode));
        }
    }

    /// The shard that gets the inode of a new directory, when it is another one.
    fn home_of_new(&self, call: &Call) -> Option<ShardId> {
        let ShardRequest::MakeDirectory { parent, name, home, .. } = &call.request else { return None };
        let here = self.back.shard();
        let shard = placement::shard_for(&self.map, here, *home, *parent, name);
        (shard != here).then_some(shard)
    }

    /// What a command did beside its answer. `by`: the session whose call it was.
    pub(super) fn take_aftermath(&mut self, aftermath: &Aftermath, by: Option<SessionId>) {
        for (inode, object) in aftermath.removed.iter().copied() {
            self.removals.entry(object.node()).or_default().push((inode, object));
        }
        if let Some(inode) = aftermath.orphaned {
            self.orphaned(inode, by);
        }
        if let Some(inode) = aftermath.gone {
            self.drop_keys_of(inode);
        }
    }

    /// The leases on an inode end with it.
    fn drop_keys_of(&mut self, inode: InodeNumber) {
        for key in Leases::keys_of(inode) {
            loop {
                let holder = self.leases.holders(&key).next().map(|holder| holder.session);
                let Some(session) = holder else { break };
                self.weaken(session, key, LeaseMode::None);
            }
        }
    }
}

/// The answer to a client's command that is carried out here.
pub(super) fn client_answer(outcome: Outcome) -> Result<ShardAnswer, Error> {
    match outcome.answer {
        Answer::Client(result) => result,
        other => panic!("a change is answered to the client, not by {other:?}"),
    }
}
