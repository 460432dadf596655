//! What is changed under an open inode's lock, and how it is kept true: session, right to the object, descriptor.

use super::refused_runs::Refused;
use crate::file_objects::FileObjects;
use crate::file_state::{FileState, Opened};
use crate::link::SlotFor;
use crate::notice::Notice;
use crate::objects::Objects;
use crate::sending::Sending;
use crate::session::Term;
use crate::shell::Shell;
use crate::tuning::Tuning;
use crate::write_behind::WriteBehind;
use std::sync::Arc;
use weft_protocol::limits::CAPABILITY_TERM_SECONDS;
use weft_protocol::message::shard::{Access, OpenFlags, PageCache, ShardAnswer, ShardRequest};
use weft_protocol::{Attributes, Credentials, Error, ObjectId, Result, SessionId, Timestamp, routing};

/// How long before its end a right is renewed, milliseconds: longer than anything that is done with it takes.
pub(super) const RIGHT_MARGIN_MS: u64 = 300_000;
/// How long a right that an open granted is used, by our own clock.
pub(super) const RIGHT_MS: u64 = CAPABILITY_TERM_SECONDS as u64 * 1000 - RIGHT_MARGIN_MS;

/// The object's own file, where the node is on this machine.
pub(super) enum Descriptor<D> {
    NotAsked,
    Passed { file: Arc<D>, for_writing: bool },
    Refused,
}

/// A kernel's use of an inode's object (`kernel_use.rs`).
pub(super) struct KernelUse<S: Shell> {
    pub file: Arc<S::Descriptor>,
    pub number: u64,
    pub object: ObjectId,
    /// The descriptor was passed for writing too.
    pub writable: bool,
    pub handles: u32,
    /// Those of the handles that write.
    pub writers: u32,
    /// The object's modification time when it was last looked up.
    pub seen: Timestamp,
    /// The lease was granted anew since then: others may have written the object, and reported that.
    pub others_may_have_written: bool,
    /// The object has another file: what the kernel writes is lost.
    pub abandoned: bool,
    /// The kernel has taken it: while it has, it keeps no pages of the file.
    pub passed: bool,
}

/// See the module.
pub(super) struct State<S: Shell> {
    pub known: FileState,
    /// The last to open it through the shard, who may open it again under the lease without asking.
    pub opener: Option<Arc<Credentials>>,
    /// The opener opened it to run it, and may be forbidden to read it.
    pub runs: bool,
    /// What the shard was told of a kernel's pages.
    pub page_cache: PageCache,
    /// In whose slot the current holder of the lock makes calls.
    pub slot: SlotFor,
    pub term: Term,
    /// When the lock was last taken, milliseconds since boot.
    pub now_ms: u64,
    /// When the right to the object is to be renewed.
    pub right_until_ms: u64,
    /// Gathered bytes that the server does not have yet.
    pub run: WriteBehind,
    pub sending: Option<Box<Sending<S>>>,
    /// Runs for which there was no space.
    pub refused: Refused,
    /// Writes that are made without the lock.
    pub in_flight: u32,
    /// Bytes were lost, or may be: the size may be beyond what is there.
    pub is_unsettled: bool,
    /// The size is not the one that the lease vouches for: a cut of the file has no answer, and may take effect as long
    /// as the file is not opened again; or the shard granted the lease with a size from before what was written here.
    pub size_in_doubt: bool,
    /// The last report was sent, and is not answered: the shard may know what it told.
    pub may_be_reported: bool,
    /// Memory of runs that were sent.
    pub spare: Vec<Vec<u8>>,
    pub descriptor: Descriptor<S::Descriptor>,
    /// Most bytes to write through the descriptor with one system call.
    pub call_bytes: usize,
    /// There while a kernel has the object's file.
    pub kernel: Option<Box<KernelUse<S>>>,
    /// How many there have been.
    pub kernel_uses: u64,
    /// Where a program that writes sequentially writes next.
    pub next_write: u64,
    /// Those who wait until no write is in flight: none begins meanwhile.
    pub draining: u32,
}

impl<S: Shell> State<S> {
    pub fn new(attributes: &Attributes, tuning: &Tuning, session: SessionId, term: Term) -> Self {
        Self {
            known: FileState::new(attributes, session),
            opener: None,
            runs: false,
            page_cache: PageCache::None,
            slot: SlotFor::Caller,
            term,
            now_ms: 0,
            right_until_ms: 0,
            run: WriteBehind::new(tuning.buffer_bytes.min(tuning.run_bytes)),
            sending: None,
            refused: Refused::default(),
            in_flight: 0,
            is_unsettled: false,
            size_in_doubt: false,
            may_be_reported: false,
            spare: Vec::new(),
            descriptor: Descriptor::NotAsked,
            call_bytes: usize::MAX,
            kernel: None,
            kernel_uses: 0,
            next_write: 0,
            draining: 0,
        }
    }

    /// Takes note of a session that has ended since the state was last used. Returns whether one has.
    pub fn notice_session(&mut self, io: &Objects<S>) -> bool {
        let has_ended = self.known.session() != io.calls.session.id();
        if has_ended {
            self.lose_session(io);
        }
        has_ended
    }

    /// The session has ended, and what was gathered under its lease is lost.
    fn lose_session(&mut self, io: &Objects<S>) {
        let unsent = (self.run.take_run().is_some(), self.sending.take().is_some(), self.refused.clear());
        (self.is_unsettled, self.size_in_doubt, self.may_be_reported) = (false, false, false);
        let gathered = unsent != (false, false, false);
        let session = &io.calls.session;
        if self.known.lose_session(session.id(), gathered, session.next_report()) {
            io.calls.shell.notice(Notice::BytesLost(self.known.inode()));
        }
        self.descriptor = Descriptor::NotAsked;
    }

    /// Written bytes are lost, or a part of them: the next program is told, and nobody sees them any more.
    pub fn fail(&mut self, io: &Objects<S>, error: Error) {
        self.known.fail(self.cause_of_loss(io, error));
        self.is_unsettled = true;
        io.calls.shell.notice(Notice::BytesLost(self.known.inode()));
        io.calls.shell.contents_lost(self.known.inode());
    }

    /// What was just learnt may mean that the file has another object than the one that was written.
    pub fn note_error(&self, io: &Objects<S>) {
        if self.known.error().is_some() {
            io.calls.shell.notice(Notice::BytesLost(self.known.inode()));
        }
    }

    /// After an effect: lease and right still hold, or the caller learns that they do not.
    pub async fn hold(&mut self, io: &Objects<S>) -> Result<()> {
        io.calls.ensure_term(self.known.shard(), &self.term, self.slot).await?;
        if self.notice_session(io) {
            return Err(self.known.error().cloned().unwrap_or(Error::SessionEnded));
        }
        Ok(())
    }

    /// As [`State::hold`], after an effect without the lock that was begun in this session: what was done under its
    /// lease is of none that holds now.
    pub async fn hold_since(&mut self, io: &Objects<S>, session: SessionId) -> Result<()> {
        self.hold(io).await?;
        if self.known.session() == session {
            return Ok(());
        }
        Err(self.known.error().cloned().unwrap_or(Error::SessionEnded))
    }

    /// On whose behalf the file is opened again.
    pub fn who(&self, io: &Objects<S>) -> Credentials {
        self.opener.as_deref().unwrap_or(&io.calls.caller.credentials).clone()
    }

    /// Whether a recall of what an open granted came before its reply. Asked under this lock: a later recall weakens
    /// the state afterwards.
    pub fn was_recalled(&self, io: &Objects<S>, opened: &Opened) -> bool {
        io.calls.session.cache().data_recalled(self.known.inode(), opened.stamp)
    }

    /// The object and the right to it, asked for again when they are not known any more, or when the right ends soon:
    /// then it is still good for what has to be written and reported before.
    pub async fn regain(&mut self, io: &Objects<S>) -> Result<()> {
        if self.known.held().is_some() && self.now_ms >= self.right_until_ms {
            self.send_all(io).await?;
            if self.known.object_is_new() || self.known.reports_before_lease() {
                self.commit(io).await?;
            }
            let opened = self.open_again(io, self.known.access()).await?;
            self.take_opened(io, &opened, FileState::opened);
        }
        while let Some(access) = self.known.to_open() {
            let opened = self.open_again(io, access).await?;
            self.take_opened(io, &opened, FileState::opened_again);
        }
        if self.size_in_doubt {
            // The call had a cut done first. What was not reported before has the object's size.
            self.is_unsettled |= self.known.is_dirty();
            self.settle_size(io).await?;
            self.size_in_doubt = false;
        }
        Ok(())
    }

    /// Takes over what an open told. The lease that it grants may come with a size from before what this client has
    /// written through the server and not reported. And where this client's word stays that of the size, another open
    /// of it, whose reply comes later, may have cut the file: the next report tells what the object has.
    pub fn take_opened(
        &mut self,
        io: &Objects<S>,
        opened: &Opened,
        take: impl FnOnce(&mut FileState, &Opened, SessionId, bool) -> bool,
    ) {
        let unreported = self.known.has_unreported_through_server();
        let recalled = self.was_recalled(io, opened);
        let kept_others_out = self.known.keeps_others_out();
        if take(&mut self.known, opened, io.calls.session.id(), recalled) {
            self.descriptor = Descriptor::NotAsked;
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.others_may_have_written |= self.known.is_exclusive() && !kept_others_out;
        }
        self.note_error(io);
        self.is_unsettled |= self.known.is_dirty() && self.known.size() != opened.attributes.size;
        if unreported && self.known.is_leased() {
            (self.is_unsettled, self.size_in_doubt) = (true, true);
        }
    }

    /// As [`State::regain`], before something is written.
    pub async fn regain_to_write(&mut self, io: &Objects<S>) -> Result<()> {
        self.known.doubt_open_to_write();
        self.regain(io).await
    }

    /// The file may be cut later by a call that has no answer: it is opened again before it is used or told of next.
    pub fn doubt_cut(&mut self) {
        self.size_in_doubt = true;
        self.known.cut_in_doubt();
    }

    /// Before size and time are told: the size is made certain. While the shard is away, what was known before is told.
    pub async fn settle_doubt(&mut self, io: &Objects<S>) {
        if self.size_in_doubt
            && let Err(error) = self.regain(io).await
        {
            io.calls.shell.notice(Notice::NotSettled(self.known.inode(), error));
        }
    }

    async fn open_again(&mut self, io: &Objects<S>, access: Access) -> Result<Opened> {
        let access = if self.runs && access == Access::Read { Access::Execute } else { access };
        let flags = OpenFlags { access, truncate: false, direct: false, page_cache: self.page_cache, group: None };
        let inode = self.known.inode();
        let sent_ms = io.calls.shell.now_ms();
        let request = ShardRequest::Open { inode, flags };
        let answer = io.calls.call_in(self.slot, &self.who(io), routing::of_inode(inode), request).await?;
        let ShardAnswer::Opened { attributes, capability, others, grants, .. } = answer.answer else {
            return Err(Error::Malformed);
        };
        self.right_until_ms = sent_ms + RIGHT_MS;
        self.notice_session(io);
        let (stamp, session) = (answer.stamp, answer.session);
        Ok(Opened { attributes, capability, others, grants, stamp, session, access })
    }

    /// A descriptor of the object's file, if its node is on this machine and passes one.
    pub async fn descriptor(&mut self, io: &Objects<S>, write: bool) -> Result<Option<Arc<S::Descriptor>>> {
        match &self.descriptor {
            Descriptor::Passed { file, for_writing } if *for_writing || !write => return Ok(Some(Arc::clone(file))),
            Descriptor::Refused => return Ok(None),
            Descriptor::Passed { .. } | Descriptor::NotAsked => {}
        }
        let Some(held) = self.known.held() else { return Ok(None) };
        let for_writing = self.known.writes();
        // A striped file is no file of any store.
        if self.known.is_striped() || !io.is_near(held.object.node()) {
            self.descriptor = Descriptor::Refused;
            return Ok(None);
        }
        let passed = io.ask_descriptor(self.known.inode(), held, for_writing).await;
        self.hold(io).await?;
        let Some((file, call_bytes)) = passed else {
            self.descriptor = Descriptor::Refused;
            return Ok(None);
        };
        self.call_bytes = call_bytes;
        let file = Arc::new(file);
        self.descriptor = Descriptor::Passed { file: Arc::clone(&file), for_writing };
        Ok(Some(file))
    }

    /// The object's file, if it was passed for writing: then runs go there.
    pub fn descriptor_to_write(&self) -> Option<&Arc<S::Descriptor>> {
        match &self.descriptor {
            Descriptor::Passed { file, for_writing: true } => Some(file),
            _ => None,
        }
    }

    /// The object's file, where somebody here may be writing it.
    pub fn own_file(&self) -> Option<&Arc<S::Descriptor>> {
        self.descriptor_to_write().or_else(|| self.kernel_file())
    }

    /// Bytes were written, or gathered, up to here.
    pub fn note_written(&mut self, io: &Objects<S>, end: u64) {
        self.known.written(end, io.calls.shell.wall());
    }

    /// The objects and the rights to them, which are known after [`State::regain`] found an object.
    pub fn objects(&self) -> Result<FileObjects> {
        self.known.objects().cloned().ok_or(Error::NoObject)
    }
}
