//! A split file as one client uses it: the client's own part, and what other clients have published.
//!
//! Each writing client has a part on its own node, an object that no other client writes. Bytes go there at the file's
//! own offsets, on the same machine through the object's file. They become visible to others once they are *published*:
//! reported to the shard as extents. Members of a group publish on sync and close, as MPI requires, and buffer small
//! writes until then where their part has no file on this machine; all other handles publish before a write returns, as
//! POSIX requires. If the node is full, a writer that has chosen so goes on with another part at another node.
//!
//! A reader asks the shard for the extents of the ranges that it reads (`split/knowledge.rs`), and only for changes
//! after that. As long as it holds a lease on the file's attributes nothing has changed, because each publication
//! changes them; a member of a group asks anew after each sync.
//!
//! Lock order: as that of an open inode's state; held across calls about this inode, which recall nothing of their own
//! session, across data requests of buffered writes, and while the own part is left for another one, but not while
//! other bytes move.

mod behind;
mod expected;
mod knowledge;
mod part_files;
mod ranges;
mod requests;
mod sources;
mod spilling;
mod together;
mod writing;

use crate::calls::AttributesAnswer;
use crate::file_objects::Held;
use crate::new_objects::BATCH_MARGIN_SECONDS;
use crate::objects::{Objects, Registration};
use crate::parts_in_use::PartInUse;
use crate::shell::{Monitor, Shell};
use crate::transfers::within;
use behind::Behind;
use expected::Expected;
use knowledge::Knowledge;
use part_files::PartFiles;
use ranges::{HeldRange, Pace};
use sources::{Source, read};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use weft_layout::{SplitPiece, Unpublished};
use weft_protocol::error::errno;
use weft_protocol::limits::{CAPABILITY_TERM_SECONDS, SPLIT_PATTERNS_MAX};
use weft_protocol::message::shard::{ShardAnswer, ShardRequest, StridedCursor, StridedQuestion};
use weft_protocol::{
    Credentials, Error, InodeNumber, Layout, ObjectId, Pattern, PublishedPart, Result, Rights, SessionId, SplitPart,
    routing,
};

/// How long rights that the shard has told are used, by our own clock.
const RIGHTS_MS: u64 = CAPABILITY_TERM_SECONDS as u64 * 500;
/// How long the right to a new object is used: it comes with a batch that is used until so long before its end.
const NEW_RIGHTS_MS: u64 = BATCH_MARGIN_SECONDS as u64 * 500;
/// As many unpublished patterns are published without being asked to: a fraction of what one message may have, so that
/// what fails can be told again with more.
const UNPUBLISHED_MAX: usize = SPLIT_PATTERNS_MAX / 2;
/// How often a read is made again that finds rights void or parts gone.
const ATTEMPTS: usize = 3;
/// How often a reader that needs several answers begins again because others publish meanwhile. After that it reads a
/// range of which not all is of one moment.
const MOMENTS_MAX: usize = 3;

/// See the module.
pub struct SplitFile<S: Shell> {
    inode: InodeNumber,
    /// The group whose lease holds the file open, if not the session's own.
    group: Option<SessionId>,
    /// The user on whose behalf calls are made.
    who: Arc<Credentials>,
    state: S::Monitor<State<S>>,
    /// Of an opened handle. Changed with `state` locked; a leaf.
    range: Mutex<Option<HeldRange>>,
    /// Number among all reports of this client, when what was written under a range was published last.
    reported: AtomicU64,
}

/// The client's own part.
struct OwnPart<S: Shell> {
    held: Held,
    /// Its file, and how many bytes to write with one system call; on another machine it has none here.
    file: Option<(Arc<S::Descriptor>, usize)>,
    /// Until when its right is used.
    until_ms: u64,
    /// It may have bytes that count. The node makes a part with the first write that it takes.
    has_bytes: bool,
    in_use: Arc<PartInUse>,
}

impl<S: Shell> Clone for OwnPart<S> {
    fn clone(&self) -> Self {
        let Self { held, until_ms, has_bytes, .. } = *self;
        Self { held, file: self.file.clone(), until_ms, has_bytes, in_use: Arc::clone(&self.in_use) }
    }
}

struct State<S: Shell> {
    inode: InodeNumber,
    /// Of a member of a group.
    is_members: bool,
    /// Under which all of this was learnt.
    session: SessionId,
    own: Option<OwnPart<S>>,
    /// Of what is in the part.
    unpublished: Unpublished,
    /// Of what was in the part, what may be published by now: by another member of the group, or by a call of this
    /// client without an answer.
    handed_out: Option<PublishedPart>,
    /// Stamp of the latest grant of a range.
    range_stamp: Option<u64>,
    pace: Pace,
    /// What is not in the part yet.
    behind: Behind<S>,
    /// Bytes were lost that a program takes for written: nothing is buffered until it was told.
    error: Option<Error>,
    knowledge: Knowledge,
    expected: Expected,
    files: PartFiles<S>,
    /// A range is read as of this epoch or a later one. `None`: as of the next answer.
    epoch: Option<u64>,
    size: u64,
    /// When the first of the rights was asked for.
    told_ms: Option<u64>,
    /// Of a member: others' publications since do not concern it.
    is_fresh: bool,
    /// Nothing was published when the file was opened: no part can be this session's from before.
    is_new: bool,
    /// Of a member: the session with which it has joined the group has ended, or the group.
    is_over: bool,
    /// Of the latest write: a new part is made at any node, not at the own one.
    spreads: bool,
    /// Ranges of the own part that are being written: what is published of them is one write's.
    claimed: Vec<Range<u64>>,
}

/// An answer of the shard: the extents of a range.
struct Told {
    epoch: u64,
    size: u64,
    cut: u64,
    parts: Vec<SplitPart>,
    /// The runs are complete up to here.
    end: u64,
    /// The strided extents are those of the whole file.
    strided_whole: bool,
    /// After which strided extent to go on.
    strided_next: Option<StridedCursor>,
}

impl<S: Shell> State<S> {
    /// A session that has ended took the rights with it, and what was not published.
    fn notice_session(&mut self, io: &Objects<S>) {
        let session = io.calls.session.id();
        if self.session == session {
            return;
        }
        if self.drop_unpublished(io) {
            self.error.get_or_insert(Error::SessionEnded);
        }
        (self.session, self.own, self.is_over, self.range_stamp) = (session, None, true, None);
        // Parts of the session before are nobody's.
        self.forget();
    }

    /// What was lost, and whether a member's rights are void: then it opens the file by itself.
    fn check(&self, group: Option<SessionId>) -> Result<()> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None if self.is_over && group.is_some() => Err(Error::CapabilityRejected),
            None => Ok(()),
        }
    }

    /// Whether a write is under way to any of these bytes of the own part.
    fn is_claimed(&self, range: &Range<u64>) -> bool {
        self.claimed.iter().any(|claimed| claimed.start < range.end && range.start < claimed.end)
    }

    fn has_own(&self, own: &OwnPart<S>) -> bool {
        self.own.as_ref().is_some_and(|present| present.held.object == own.held.object)
    }

    fn forget(&mut self) {
        (self.knowledge, self.epoch, self.is_fresh, self.told_ms) = (Knowledge::default(), None, false, None);
        self.files = PartFiles::default();
    }

    /// What is known is of no more use if the file was converted to a layout without parts: should it have parts once
    /// more, their epochs begin anew.
    fn refused(&mut self, error: Error) -> Error {
        if error == Error::CapabilityRejected {
            self.forget();
        }
        error
    }

    /// The shard has answered a publication. If nobody else has published meanwhile, what is known stays so.
    fn published(&mut self, answer: Option<&AttributesAnswer>, object: ObjectId, patterns: &[Pattern]) {
        self.expected.published(patterns);
        let Some(AttributesAnswer { attributes, .. }) = answer else {
            self.is_fresh = false;
            return;
        };
        self.size = self.size.max(attributes.size);
        let Some(epoch) = attributes.layout.epoch() else { return };
        if !patterns.is_empty() {
            self.knowledge.published(object, patterns, epoch);
        }
        if self.epoch.is_some_and(|known| known + 1 == epoch) {
            self.epoch = Some(epoch);
        } else {
            // The next answer has these together with what others published before them.
            self.is_fresh = false;
        }
    }

    /// The first position of a range, within the file, that is not known as it is to be read.
    fn first_unknown(&self, range: &Range<u64>) -> Option<u64> {
        match self.epoch {
            Some(epoch) => self.knowledge.first_unknown(&(range.start..range.end.min(self.size)), epoch),
            None => Some(range.start),
        }
    }

    /// What a range of the file consists of, as far as it lies within it.
    fn sources(&self, offset: u64, bytes: usize) -> (usize, Vec<Source<S>>) {
        let own = self.own.as_ref();
        let size = self.size.max(self.unpublished.end());
        let bytes = within(size, offset, bytes);
        let unpublished = own.map(|own| (own.held.object, &self.unpublished));
        let pieces = self.knowledge.index().pieces(offset, bytes, unpublished).into_iter();
        let source = |piece: SplitPiece<ObjectId>| {
            let is_own = |own: &&OwnPart<S>| Some(own.held.object) == piece.part;
            let own = own.filter(is_own);
            let told = |object| self.knowledge.right(object).map(|capability| Held { object, capability });
            let held = own.map(|own| own.held).or_else(|| piece.part.and_then(told));
            let own_file = own.and_then(|own| own.file.as_ref()).map(|(file, _)| file);
            let other = || held.and_then(|held| self.files.get(held.object));
            Source { piece, held, file: own_file.or_else(other).map(Arc::clone) }
        };
        (bytes, pieces.map(source).collect())
    }
}

impl<S: Shell> SplitFile<S> {
    /// A file that the session has open, or a group that it has joined.
    pub(crate) fn new(
        io: &Objects<S>,
        (inode, layout): (InodeNumber, &Layout),
        group: Option<SessionId>,
        who: Arc<Credentials>,
    ) -> Self {
        let state = State {
            inode,
            is_members: group.is_some(),
            session: io.calls.session.id(),
            own: None,
            unpublished: Unpublished::default(),
            handed_out: None,
            range_stamp: None,
            pace: Pace::new(),
            behind: Behind::new(&io.tuning),
            error: None,
            knowledge: Knowledge::default(),
            expected: Expected::default(),
            files: PartFiles::default(),
            epoch: None,
            size: 0,
            told_ms: None,
            is_fresh: false,
            is_new: layout.epoch() == Some(0),
            is_over: false,
            spreads: false,
            claimed: Vec::new(),
        };
        Self { inode, group, who, state: S::Monitor::new(state), range: Mutex::default(), reported: AtomicU64::new(0) }
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    pub(crate) async fn read_at(
        &self,
        io: &Objects<S>,
        buffer: &mut [u8],
        offset: u64,
        registration: Option<Registration<S>>,
    ) -> Result<usize> {
        let mut attempts = 1;
        loop {
            let (bytes, sources) = {
                let mut state = self.state.lock().await;
                state.notice_session(io);
                if state.behind.read(offset, buffer) {
                    return Ok(buffer.len());
                }
                self.land(io, &mut state).await?;
                self.refresh(io, &mut state, offset..offset.saturating_add(buffer.len() as u64)).await?;
                let (bytes, sources) = state.sources(offset, buffer.len());
                let unasked = sources.iter().filter(|source| source.file.is_none()).filter_map(|source| source.held);
                match state.files.ask(io, self.inode, unasked).await {
                    true => state.sources(offset, buffer.len()),
                    false => (bytes, sources),
                }
            };
            match read(io, self.inode, &sources, &mut buffer[..bytes], offset, registration).await {
                Ok(()) => return Ok(bytes),
                Err(Error::NoObject | Error::CapabilityRejected) if attempts < ATTEMPTS => {
                    attempts += 1;
                    self.state.lock().await.forget();
                }
                // The part is gone with its node's memory, or the like.
                Err(Error::NoObject) => return Err(Error::Device(errno::EIO)),
                Err(error) => return Err(error),
            }
        }
    }

    /// A list of ranges will be read.
    pub(crate) async fn expect(&self, list: &[(u64, usize)]) {
        self.state.lock().await.expected.reads(list);
    }

    /// Learns the size of the file, and what others have published in a range, if it may matter.
    async fn refresh(&self, io: &Objects<S>, state: &mut State<S>, range: Range<u64>) -> Result<()> {
        state.notice_session(io);
        state.check(self.group)?;
        let now_ms = io.calls.shell.now_ms();
        let has_rights = state.told_ms.is_none_or(|told_ms| now_ms < told_ms + RIGHTS_MS);
        if has_rights && self.reads_held(io, state, &range) {
            return Ok(());
        }
        self.give_up_to_ask(io, state).await;
        state.check(self.group)?;
        self.settle_handed_out(io, state).await?;
        if !has_rights {
            state.forget();
        }
        state.knowledge.limit();
        let epoch = match self.group {
            Some(_) => state.epoch.filter(|_| state.is_fresh),
            None => {
                let known = io.calls.session.cache().attributes(self.inode, now_ms).cloned();
                let attributes = match known {
                    Some(attributes) => attributes,
                    // Most often grants a lease, so that the next read needs no message.
                    None => io.calls.ask_attributes(&self.who, self.inode).await?,
                };
                state.notice_session(io);
                state.size = attributes.size;
                // A file that was converted to a layout without parts is opened again by its reader.
                Some(attributes.layout.epoch().ok_or(Error::CapabilityRejected).map_err(|error| state.refused(error))?)
            }
        };
        // Attributes may be of a moment before the latest answer.
        let epoch = epoch.map(|epoch| epoch.max(state.knowledge.latest()));
        if epoch.is_none() || epoch != state.epoch {
            state.knowledge.begin_questions();
        }
        state.epoch = epoch;
        match state.first_unknown(&range) {
            Some(_) => self.ask_range(io, state, range).await,
            None => Ok(()),
        }
    }

    /// Asks for the extents of a range until all of them are known as of one moment.
    async fn ask_range(&self, io: &Objects<S>, state: &mut State<S>, range: Range<u64>) -> Result<()> {
        let within = state.knowledge.to_ask_within(state.expected.around(&range));
        let (mut at, mut moments) = (range.start, 0);
        loop {
            let wanted = at..range.end;
            let since = state.knowledge.since(&wanted);
            let (extra, mut strided) = state.knowledge.next_question(within, io.tuning.few_strided);
            let (session, asked_ms) = (state.session, io.calls.shell.now_ms());
            let told = self.ask_parts(io, (since, wanted), extra, strided, false).await;
            let told = told.map_err(|error| state.refused(error))?;
            state.notice_session(io);
            state.check(self.group)?;
            if told.end <= at && at < range.end || told.strided_next.is_some() && told.strided_next == strided.after {
                return Err(Error::Malformed);
            }
            if state.session == session {
                let epoch = told.epoch;
                state.size = told.size;
                state.told_ms.get_or_insert(asked_ms);
                let is_cut = !state.knowledge.add(at..told.end, since, (epoch, told.cut), told.parts);
                if is_cut {
                    (state.told_ms, state.files) = (Some(asked_ms), PartFiles::default());
                    // The answer has all strided extents, unless earlier ones had some: these are forgotten.
                    strided.since = 0;
                }
                let is_rest = is_cut && strided.after.is_some();
                let is_one_moment =
                    is_rest || state.knowledge.add_strided(&strided, epoch, told.strided_whole, told.strided_next);
                let is_later = state.epoch.is_none_or(|known| known < epoch);
                if is_later && (moments < MOMENTS_MAX || !is_one_moment) {
                    (state.epoch, moments) = (Some(epoch), moments + 1);
                }
                state.is_fresh = true;
            }
            match state.first_unknown(&range) {
                Some(unknown) => at = unknown,
                None => return Ok(()),
            }
        }
    }

    async fn ask_parts(
        &self,
        io: &Objects<S>,
        (since, range): (u64, Range<u64>),
        extra: u32,
        strided: StridedQuestion,
        own: bool,
    ) -> Result<Told> {
        let (inode, group, Range { start, end }) = (self.inode, self.group, range);
        let request = ShardRequest::GetParts { inode, group, since, start, end, extra, strided, own };
        let answer = match io.calls.call(&self.who, routing::of_inode(inode), request).await {
            // The file was converted to a layout without parts: the reader opens it again.
            Err(Error::Invalid) => return Err(Error::CapabilityRejected),
            answer => answer?.answer,
        };
        match answer {
            ShardAnswer::Parts { epoch, size, cut, parts, end, strided_whole, strided_next } => {
                Ok(Told { epoch, size, cut, parts, end, strided_whole, strided_next })
            }
            _ => Err(Error::Malformed),
        }
    }

    async fn ensure_own(&self, io: &Objects<S>, state: &mut State<S>) -> Result<OwnPart<S>> {
        state.notice_session(io);
        state.check(self.group)?;
        let now_ms = io.calls.shell.now_ms();
        if let Some(own) = state.own.as_ref().filter(|own| now_ms < own.until_ms) {
            return Ok(own.clone());
        }
        self.land_in_flight(io, state).await;
        state.check(self.group)?;
        self.publish_unpublished(io, state).await?;
        if let Some(own) = self.known_own(io, state).await? {
            return Ok(own);
        }
        let session = state.session;
        let held = io.new_object(state.spreads).await?;
        let file = self.own_file(io, held).await;
        state.notice_session(io);
        if state.session != session {
            // The right to the object is of the session that has ended.
            return Err(Error::SessionEnded);
        }
        let in_use = io.parts_in_use.take(held.object).expect("a new object is nobody's part");
        let (until_ms, has_bytes) = (now_ms + NEW_RIGHTS_MS, false);
        let own = OwnPart { held, file, until_ms, has_bytes, in_use: Arc::new(in_use) };
        state.own = Some(own.clone());
        Ok(own)
    }

    /// A part that this session has published before, by this handle or another one that has none any more, with a new
    /// right to it. `None`: the shard knows none.
    async fn known_own(&self, io: &Objects<S>, state: &mut State<S>) -> Result<Option<OwnPart<S>>> {
        if state.is_new && state.own.is_none() {
            return Ok(None);
        }
        let (before, session, asked_ms) = (state.own.take(), state.session, io.calls.shell.now_ms());
        let mut parts = self.ask_own_parts(io).await.map_err(|error| state.refused(error))?;
        let is_kept = |held: &Held| before.as_ref().is_some_and(|before| before.held.object == held.object);
        let own = |held: &Held| match before.as_ref().filter(|_| is_kept(held)) {
            Some(before) => Some(Arc::clone(&before.in_use)),
            None => io.parts_in_use.take(held.object).map(Arc::new),
        };
        // A handle goes on with its part. Another one of the session may be at a node that is full.
        parts.sort_by_key(|held| !is_kept(held));
        let Some((held, in_use)) = parts.into_iter().find_map(|held| Some((held, own(&held)?))) else {
            return Ok(None);
        };
        let (file, has_bytes) = match before.filter(|before| before.held.object == held.object) {
            Some(before) => (before.file, before.has_bytes),
            None => (self.own_file(io, held).await, true),
        };
        let own = OwnPart { held, file, until_ms: asked_ms + RIGHTS_MS, has_bytes, in_use };
        state.notice_session(io);
        if state.session != session {
            return Err(Error::SessionEnded);
        }
        state.own = Some(own.clone());
        Ok(Some(own))
    }

    /// The parts that this session has published, by whichever handle, with new rights to write them.
    async fn ask_own_parts(&self, io: &Objects<S>) -> Result<Vec<Held>> {
        let none = StridedQuestion { within: Pattern::WHOLE_FILE, since: u64::MAX, after: None, few: 0 };
        let told = self.ask_parts(io, (u64::MAX, 0..0), 0, none, true).await?;
        let parts = told.parts.into_iter().filter(|part| part.capability.rights.contains(Rights::WRITE));
        Ok(parts.map(|SplitPart { object, capability, .. }| Held { object, capability }).collect())
    }

    async fn own_file(&self, io: &Objects<S>, held: Held) -> Option<(Arc<S::Descriptor>, usize)> {
        let passed = io.ask_descriptor(self.inode, held, true).await;
        passed.map(|(file, call_bytes)| (Arc::new(file), call_bytes))
    }

    /// The file has other parts now, with the same bytes.
    pub(crate) async fn parts_replaced(&self) {
        let mut state = self.state.lock().await;
        state.own = None;
        state.forget();
    }

    /// Size of the file: as of the latest publications, and with what was written here.
    pub(crate) async fn size(&self, io: &Objects<S>) -> Result<u64> {
        let mut state = self.state.lock().await;
        self.land(io, &mut state).await?;
        self.refresh(io, &mut state, 0..0).await?;
        Ok(state.size.max(state.unpublished.end()))
    }

    /// What the whole file consists of: pieces with the object of a part, and holes.
    pub(crate) async fn pieces(&self, io: &Objects<S>) -> Result<Vec<SplitPiece<ObjectId>>> {
        let mut state = self.state.lock().await;
        self.refresh(io, &mut state, 0..u64::MAX).await?;
        let bytes = usize::try_from(state.size).map_err(|_| Error::FileTooLarge)?;
        Ok(state.knowledge.index().pieces(0, bytes, None))
    }
}
