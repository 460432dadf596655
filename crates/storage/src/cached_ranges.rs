//! Ranges of objects that kernels cache without a lease, and the changes that have to wait for them.
//!
//! A file that a mount's kernel has open cached stays so until it is closed, also when its lease was recalled. What it
//! reads and writes then comes to the storage server, marked ([`weft_protocol::data::DataRequest::pages`]), and is
//! noted here. A change (a write, an append, a cut) of another session waits until the pages of its range are dropped.
//!
//! - A change that meets noted ranges of other sessions has them dropped ([`RangesEffect::Drop`]) and waits.
//! - When all have answered, the change is *admitted*: it lands. Reads into pages that overlap it wait until it has
//!   landed, so that no page gets a part of it.
//! - A read into pages that overlaps a waiting change waits too if the change waits for nothing of its session: so
//!   readers in a loop do not hold up a writer for ever.
//! - Two kernels that write pages back which both have (stores through mappings) would wait for each other: neither
//!   drops a page that it is writing. So a change does not wait for pages that their session writes itself by a change
//!   that waits: these are overwritten by it, after this one has landed. The first of two such changes goes.
//! - Whoever waits holds up others of its own client: a change that is not admitted in time is given up by its caller
//!   ([`CachedRanges::end`]), and sent again by its client.
//!
//! A drop that is not answered is sent again. After one term its session is *overdue*: the node refuses to renew it
//! ([`CachedRanges::is_overdue`]), so that its client gives up all it has. After two the range counts as dropped.
//!
//! Of at most [`OBJECTS_MAX`] objects something is noted; beyond it the pages of the object that was noted first are
//! dropped.
//!
//! Invariant: when a change is admitted, no other session has a noted range or a drop outstanding that overlaps it, but
//! for pages that it is writing itself; and none is noted until it has landed.
//! Invariant: nothing is kept of an object of which nothing is noted, dropped or in flight.
//! Not here: file data, connections, clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::recall::DropPages;
use weft_protocol::{InodeNumber, ObjectId, SessionId, ShardId, routing};

/// Ranges noted for one session and object. Beyond it they are taken for one that covers them all.
const RANGES_MAX: usize = 128;
/// Objects of which something is noted at most, in one machine.
const OBJECTS_MAX: usize = 4096;
/// How often a drop is sent again that was not answered, milliseconds.
const RESEND_MS: u64 = 1000;

/// A request to an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeRequest {
    pub object: ObjectId,
    pub inode: InodeNumber,
    /// Whose kernel keeps what is read or written, or does not have to be told of the change; `None`: nobody's.
    pub session: Option<SessionId>,
    /// Of an append or a cut it ends at `u64::MAX`.
    pub range: Range<u64>,
    pub changes: bool,
    /// The session's kernel keeps pages of it.
    pub pages: bool,
}

impl RangeRequest {
    /// Of a data request; `None`: it may go at once. `object_bytes`: the object's size.
    pub fn of_data<E>(
        session: SessionId,
        request: &DataRequest,
        object_bytes: impl FnOnce() -> std::result::Result<u64, E>,
    ) -> std::result::Result<Option<Self>, E> {
        let DataRequest { operation, object, inode, offset, bytes, pages, .. } = *request;
        let changes = operation != DataOperation::Read;
        let range = match operation {
            DataOperation::Read if pages => offset..offset.saturating_add(bytes.into()),
            DataOperation::Write if bytes > 0 => offset..offset.saturating_add(bytes.into()),
            DataOperation::Append if bytes > 0 => object_bytes()?..u64::MAX,
            _ => return Ok(None),
        };
        Ok(Some(Self { object, inode, session: Some(session), range, changes, pages }))
    }

    /// Of a cut of the object to a size, which a session asked for.
    pub fn of_cut(session: SessionId, (object, inode): (ObjectId, InodeNumber), size: u64) -> Self {
        Self { object, inode, session: Some(session), range: size..u64::MAX, changes: true, pages: false }
    }
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangesEffect {
    /// Tell the session.
    Drop { session: SessionId, drop: DropPages },
    /// The request of this number, which waited, is admitted.
    Admit(u64),
}

/// See the module.
#[derive(Debug)]
pub struct CachedRanges {
    page_bytes: u64,
    objects: BTreeMap<ObjectId, Object>,
    /// Those of the objects that have drops outstanding.
    dropping: BTreeSet<ObjectId>,
    /// When each of the objects was noted of which something is, in the order of requests; and the reverse.
    noted_at: BTreeMap<ObjectId, u64>,
    by_age: BTreeMap<u64, ObjectId>,
    /// Number of the next request or drop, and the distance between two.
    next: u64,
    step: u64,
}

#[derive(Debug)]
struct Object {
    inode: InodeNumber,
    noted: BTreeMap<SessionId, Ranges>,
    drops: BTreeMap<u64, Drop>,
    /// In flight, in the order of their arrival. A read is not, once it is admitted.
    requests: BTreeMap<u64, InFlight>,
}

#[derive(Debug)]
struct InFlight {
    request: RangeRequest,
    is_admitted: bool,
}

#[derive(Debug)]
struct Drop {
    session: SessionId,
    range: Range<u64>,
    since_ms: u64,
    sent_ms: u64,
}

/// Disjoint ranges by their beginnings, none of which touches another.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ranges {
    fn add(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.0.range(..=range.end).next_back().map(|(start, end)| (*start, *end))
            && end >= range.start
        {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
        if self.0.len() > RANGES_MAX
            && let (Some((start, _)), Some((_, end))) = (self.0.first_key_value(), self.0.last_key_value())
        {
            self.0 = BTreeMap::from([(*start, *end)]);
        }
    }

    fn all(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Takes out what lies in a range. Returns the smallest range that covers it.
    fn take(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut taken: Option<Range<u64>> = None;
        while let Some((start, end)) = self.0.range(..range.end).next_back().map(|(start, end)| (*start, *end))
            && end > range.start
        {
            self.0.remove(&start);
            for rest in [start..range.start, range.end..end] {
                if !rest.is_empty() {
                    self.0.insert(rest.start, rest.end);
                }
            }
            let part = start.max(range.start)..end.min(range.end);
            taken = Some(taken.map_or(part.clone(), |taken| taken.start.min(part.start)..taken.end.max(part.end)));
        }
        taken
    }
}

impl Object {
    fn new(inode: InodeNumber) -> Self {
        Self { inode, noted: BTreeMap::new(), drops: BTreeMap::new(), requests: BTreeMap::new() }
    }

    fn is_idle(&self) -> bool {
        self.noted.is_empty() && self.drops.is_empty() && self.requests.is_empty()
    }

    /// Whether a change waits, or would wait, for pages of this session.
    fn awaits(&self, change: &RangeRequest, session: SessionId) -> bool {
        self.noted.get(&session).is_some_and(|ranges| ranges.overlaps(&change.range))
            || self.drops.values().any(|drop| drop.session == session && overlap(&drop.range, &change.range))
    }

    /// Whether a request whose pages are kept has to wait for a change of another session.
    fn waits_for_change(&self, number: u64, request: &RangeRequest) -> bool {
        self.requests.iter().any(|(other_number, InFlight { request: other, is_admitted })| {
            let comes_first = || {
                *is_admitted
                    || (*other_number < number && request.session.is_some_and(|session| !self.awaits(other, session)))
            };
            other.changes && other.session != request.session && overlap(&other.range, &request.range) && comes_first()
        })
    }

    /// Whether a change has to wait for pages of other sessions. `written`: those that they write back themselves, by
    /// changes that wait, do not count.
    fn waits_for_pages(&self, request: &RangeRequest, written: bool) -> bool {
        let is_other = |session: SessionId| Some(session) != request.session;
        let waits_for = |session: SessionId, range: Range<u64>| {
            let range = range.start.max(request.range.start)..range.end.min(request.range.end);
            is_other(session) && !range.is_empty() && !(written && self.is_writing(session, range))
        };
        let ranges_of = |(session, ranges): (&SessionId, &Ranges)| ranges.all().any(|range| waits_for(*session, range));
        self.noted.iter().any(ranges_of) || self.drops.values().any(|drop| waits_for(drop.session, drop.range.clone()))
    }

    /// Whether changes that wait write all of a range back from the session's pages.
    fn is_writing(&self, session: SessionId, range: Range<u64>) -> bool {
        let mut rest = Ranges::default();
        rest.add(range.clone());
        let waiting = self.requests.values().filter(|other| !other.is_admitted);
        let own = waiting.map(|other| &other.request).filter(|other| other.session == Some(session));
        for change in own.filter(|other| other.changes && other.pages) {
            rest.take(&change.range);
        }
        !rest.overlaps(&range)
    }

    /// Whether a request may go at once, or, when it has waited (`waited`), before changes that wait for it.
    fn may_go(&self, number: u64, request: &RangeRequest, waited: bool) -> bool {
        let waits = (request.pages && self.waits_for_change(number, request))
            || (request.changes && self.waits_for_pages(request, request.pages && waited));
        !waits
    }

    /// A request goes on. Only a change stays in flight.
    fn admit(&mut self, number: u64, request: RangeRequest) {
        if let (true, Some(session)) = (request.pages, request.session) {
            self.noted.entry(session).or_default().add(request.range.clone());
        }
        if !request.changes {
            return;
        }
        if request.range.end == u64::MAX {
            // A cut may make an append land before the end that was known when it came.
            for other in self.requests.values_mut().filter(|other| other.request.range.end == u64::MAX) {
                other.request.range.start = other.request.range.start.min(request.range.start);
            }
        }
        self.requests.insert(number, InFlight { request, is_admitted: true });
    }
}

impl CachedRanges {
    /// Nothing is cached. Kernels drop pages of `page_bytes`. Numbers are `first` plus multiples of `step`.
    pub fn new(page_bytes: u64, first: u64, step: u64) -> Self {
        let (objects, dropping) = (BTreeMap::new(), BTreeSet::new());
        let (noted_at, by_age) = (BTreeMap::new(), BTreeMap::new());
        Self { page_bytes, objects, dropping, noted_at, by_age, next: first, step }
    }

    /// A request arrives. Returns its number, and whether it is admitted at once. A change has to be ended with
    /// [`CachedRanges::end`], and so has a request that waits and is given up.
    pub fn begin(&mut self, request: RangeRequest, now_ms: u64, out: &mut Vec<RangesEffect>) -> (u64, bool) {
        let number = self.next;
        self.next += self.step;
        let id = request.object;
        let object = self.objects.entry(id).or_insert_with(|| Object::new(request.inode));
        let may_go = object.may_go(number, &request, false);
        if may_go {
            object.admit(number, request);
            if object.is_idle() {
                self.objects.remove(&id);
            }
            self.bound_noted(id, now_ms, out);
        } else {
            object.requests.insert(number, InFlight { request, is_admitted: false });
            self.go_on(id, now_ms, out);
        }
        let others = out.len();
        out.retain(|effect| *effect != RangesEffect::Admit(number));
        (number, may_go || out.len() < others)
    }

    /// A change has landed, or failed; or a request that waited is given up.
    pub fn end(&mut self, object: ObjectId, number: u64, now_ms: u64, out: &mut Vec<RangesEffect>) {
        if let Some(record) = self.objects.get_mut(&object)
            && record.requests.remove(&number).is_some()
        {
            self.go_on(object, now_ms, out);
        }
    }

    /// A session has dropped its pages. A late or repeated answer finds no drop and does nothing.
    pub fn dropped(
        &mut self,
        session: SessionId,
        (object, number): (ObjectId, u64),
        now_ms: u64,
        out: &mut Vec<RangesEffect>,
    ) {
        let Some(record) = self.objects.get_mut(&object) else { return };
        if record.drops.get(&number).is_some_and(|drop| drop.session == session) {
            record.drops.remove(&number);
            self.go_on(object, now_ms, out);
        }
    }

    /// A session is over, at one shard or (`None`) altogether: its client caches nothing of these files.
    pub fn session_over(
        &mut self,
        session: SessionId,
        shard: Option<ShardId>,
        now_ms: u64,
        out: &mut Vec<RangesEffect>,
    ) {
        let of_shard = |object: &Object| shard.is_none_or(|shard| routing::of_inode(object.inode) == shard);
        let mut changed = Vec::new();
        for (id, object) in self.objects.iter_mut().filter(|(_, object)| of_shard(object)) {
            object.noted.remove(&session);
            object.drops.retain(|_, drop| drop.session != session);
            changed.push(*id);
        }
        changed.into_iter().for_each(|id| self.go_on(id, now_ms, out));
    }

    /// An object was removed.
    pub fn removed(&mut self, object: ObjectId, now_ms: u64, out: &mut Vec<RangesEffect>) {
        if let Some(record) = self.objects.get_mut(&object) {
            record.noted.clear();
            record.drops.clear();
            self.go_on(object, now_ms, out);
        }
    }

    /// Returns true if nothing is noted, and nothing in flight.
    pub fn is_idle(&self) -> bool {
        self.objects.is_empty()
    }

    /// When [`CachedRanges::tick`] is due; `None`: nothing is outstanding.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.drops().map(|drop| drop.sent_ms + RESEND_MS).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<RangesEffect>) {
        let mut changed = Vec::new();
        for id in &self.dropping {
            let object = self.objects.get_mut(id).expect("an object with drops is not idle");
            let drops = object.drops.len();
            object.drops.retain(|_, drop| now_ms < drop.since_ms + 2 * SESSION_TERM_MS);
            if object.drops.len() < drops {
                changed.push(*id);
            }
            for (number, drop) in object.drops.iter_mut().filter(|(_, drop)| now_ms >= drop.sent_ms + RESEND_MS) {
                drop.sent_ms = now_ms;
                out.push(drop.message((*id, object.inode), *number));
            }
        }
        changed.into_iter().for_each(|id| self.go_on(id, now_ms, out));
    }

    /// Returns true if a session has not answered a drop for a term.
    pub fn is_overdue(&self, session: SessionId, now_ms: u64) -> bool {
        self.drops().filter(|drop| drop.session == session).any(|drop| now_ms >= drop.since_ms + SESSION_TERM_MS)
    }

    fn drops(&self) -> impl Iterator<Item = &Drop> {
        self.dropping.iter().flat_map(|id| self.objects[id].drops.values())
    }

    /// Admits what may go, and has dropped what the others wait for.
    fn go_on(&mut self, id: ObjectId, now_ms: u64, out: &mut Vec<RangesEffect>) {
        self.admit_waiting(id, out);
        self.drop_awaited(id, now_ms, out);
        self.tidy(id);
        self.bound_noted(id, now_ms, out);
    }

    fn admit_waiting(&mut self, id: ObjectId, out: &mut Vec<RangesEffect>) {
        loop {
            let Some(object) = self.objects.get_mut(&id) else { return };
            let waits = |(_, other): &(&u64, &InFlight)| !other.is_admitted;
            let next = object
                .requests
                .iter()
                .filter(waits)
                .find(|(number, other)| object.may_go(**number, &other.request, true));
            let Some((number, _)) = next else { break };
            let number = *number;
            if let Some(InFlight { request, .. }) = object.requests.remove(&number) {
                object.admit(number, request);
                out.push(RangesEffect::Admit(number));
            }
        }
    }

    /// Keeps what is known of the object as a whole up to date.
    fn tidy(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get(&id) else { return };
        if object.drops.is_empty() {
            self.dropping.remove(&id);
        } else {
            self.dropping.insert(id);
        }
        if object.is_idle() {
            self.objects.remove(&id);
        }
    }

    /// Something was noted of an object, or is no more. Beyond the bound the pages of the oldest are dropped.
    fn bound_noted(&mut self, id: ObjectId, now_ms: u64, out: &mut Vec<RangesEffect>) {
        let is_noted = self.objects.get(&id).is_some_and(|object| !object.noted.is_empty());
        if !is_noted {
            self.forget_age(id);
        } else if !self.noted_at.contains_key(&id) {
            self.noted_at.insert(id, self.next);
            self.by_age.insert(self.next, id);
            self.next += self.step;
        }
        while self.by_age.len() > OBJECTS_MAX
            && let Some((_, oldest)) = self.by_age.first_key_value().map(|(age, id)| (*age, *id))
        {
            self.forget_age(oldest);
            self.drop_pages(oldest, None, 0..u64::MAX, now_ms, out);
            self.tidy(oldest);
        }
    }

    fn forget_age(&mut self, id: ObjectId) {
        if let Some(age) = self.noted_at.remove(&id) {
            self.by_age.remove(&age);
        }
    }

    /// Has noted ranges dropped that a change waits for.
    fn drop_awaited(&mut self, id: ObjectId, now_ms: u64, out: &mut Vec<RangesEffect>) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let changes = object.requests.values().filter(|other| other.request.changes && !other.is_admitted);
        let changes: Vec<_> = changes.map(|other| (other.request.session, other.request.range.clone())).collect();
        for (by, range) in changes {
            let end = range.end.checked_next_multiple_of(self.page_bytes).unwrap_or(u64::MAX);
            let range = range.start - range.start % self.page_bytes..end;
            self.drop_pages(id, by, range, now_ms, out);
        }
    }

    /// Has all sessions but `by` drop what is noted of a range.
    fn drop_pages(
        &mut self,
        id: ObjectId,
        by: Option<SessionId>,
        range: Range<u64>,
        now_ms: u64,
        out: &mut Vec<RangesEffect>,
    ) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let others = object.noted.iter_mut().filter(|(session, _)| by != Some(**session));
        let taken: Vec<_> = others.filter_map(|(session, noted)| Some((*session, noted.take(&range)?))).collect();
        object.noted.retain(|_, noted| !noted.0.is_empty());
        for (session, range) in taken {
            let number = self.next;
            self.next += self.step;
            let drop = Drop { session, range, since_ms: now_ms, sent_ms: now_ms };
            out.push(drop.message((id, object.inode), number));
            object.drops.insert(number, drop);
        }
    }
}

impl Drop {
    fn message(&self, (object, inode): (ObjectId, InodeNumber), number: u64) -> RangesEffect {
        let Range { start: offset, end } = self.range;
        let bytes = if end == u64::MAX { end } else { end - offset };
        RangesEffect::Drop { session: self.session, drop: DropPages { inode, object, number, offset, bytes } }
    }
}

#[cfg(test)]
mod tests;
