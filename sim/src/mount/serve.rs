//! The kernel's requests as procedures of the mount machine, and their results as replies.

use super::{SimBacking, SimKernel, SimMount, THREAD_MS_MAX};
use crate::kernel::requests::{
    self, Access as KernelAccess, Answer as KernelAnswer, Change, Entry as KernelEntry, Errno, Kind, Listed, OpenFlags,
    Operation, RenameMode as KernelRenameMode, Reply, Request,
};
use crate::object_file::Descriptor;
use crate::process::{Ask, Process};
use crate::random::Random;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weft_client_core::{Entry, OpenOptions};
use weft_mount_core::{Found, Make, Mode, Mount, NotTaken, OpenOptionsOf, Opened, ReadBy, Shown, WrittenBy};
use weft_protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_protocol::{
    AttributeChanges, Attributes, Credentials, Error, FileKind, InodeNumber, LockKind, LockOwner, Name, Result,
    TimeChange, Timestamp,
};

/// Owner of a program's locks: the modelled programs lock nothing.
const NOBODY: LockOwner = LockOwner { kind: LockKind::Process, number: 0 };

/// A name of the file system as the kernel model has it.
pub fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).expect("programs of the simulation make names of letters")
}

fn name(text: &str) -> Result<Name> {
    Name::new(text.as_bytes())
}

/// The error number that the kernel is told.
pub fn errno(error: &Error) -> Errno {
    Errno(error.to_errno())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("nothing is valid for longer than a term")
}

fn time(time: Timestamp) -> u64 {
    u64::try_from(time.0).expect("virtual time begins at zero")
}

/// Attributes as the kernel model has them.
pub fn attributes(attributes: &Attributes) -> requests::Attributes {
    requests::Attributes {
        ino: attributes.inode.raw(),
        kind: kind(attributes.kind),
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        blocks: attributes.size.div_ceil(512),
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
    }
}

fn no_attributes(inode: u64, kind: Kind) -> requests::Attributes {
    let (mode, nlink, uid, gid, size, blocks) = (0, 1, 0, 0, 0, 0);
    requests::Attributes { ino: inode, kind, mode, nlink, uid, gid, size, blocks, atime: 0, mtime: 0, ctime: 0 }
}

/// Directory or not: programs make nothing else.
pub fn kind(kind: FileKind) -> Kind {
    if kind == FileKind::Directory { Kind::Directory } else { Kind::Regular }
}

fn entry(entry: &Entry) -> KernelEntry {
    KernelEntry {
        node: entry.attributes.inode.raw(),
        generation: 1,
        entry_ms: millis(entry.name_valid),
        attributes_ms: millis(entry.attributes_valid),
        attributes: attributes(&entry.attributes),
    }
}

/// How a file is opened.
pub fn options<R>(flags: OpenFlags) -> OpenOptions<R> {
    let access = match flags.access {
        KernelAccess::Read => Access::Read,
        KernelAccess::Write => Access::Write,
        KernelAccess::ReadWrite => Access::ReadWrite,
    };
    let OpenFlags { truncate, append, direct, .. } = flags;
    OpenOptions { truncate, append, direct, ..OpenOptions::of(access) }
}

/// What a rename may replace.
pub fn rename_mode(mode: KernelRenameMode) -> RenameMode {
    match mode {
        KernelRenameMode::Replace => RenameMode::Replace,
        KernelRenameMode::NoReplace => RenameMode::NoReplace,
        KernelRenameMode::Exchange => RenameMode::Exchange,
    }
}

fn opened(opened: &Opened<SimBacking>) -> requests::Opened {
    let is_direct = matches!(opened.mode, Mode::Direct);
    requests::Opened {
        fh: opened.handle,
        direct_io: is_direct || matches!(opened.mode, Mode::Joined(_)),
        passthrough: match &opened.mode {
            Mode::Passthrough(backing) | Mode::Joined(backing) => Some(backing.id),
            Mode::Direct | Mode::Cached { .. } => None,
        },
        keep_cache: matches!(opened.mode, Mode::Cached { keep: true }),
        no_flush: !opened.access.writes(),
        parallel_direct_writes: is_direct,
        ..requests::Opened::default()
    }
}

/// A request that is served.
pub struct Served {
    process: Rc<Process>,
    kernel: Arc<SimKernel>,
    mount: Rc<Mount<SimMount>>,
    unique: u64,
    /// The kernel processes the reply while it is written.
    is_background: bool,
    begun_ms: u64,
    who: Credentials,
}

impl Served {
    pub fn new(process: &Rc<Process>, kernel: &Arc<SimKernel>, mount: &Rc<Mount<SimMount>>, unique: u64) -> Self {
        let (process, kernel, mount) = (Rc::clone(process), Arc::clone(kernel), Rc::clone(mount));
        let (begun_ms, is_background) = (process.now_ms(), kernel.model.borrow().is_background(unique));
        Self { process, kernel, mount, unique, is_background, begun_ms, who: Credentials::default() }
    }

    /// Serves it when a thread is free.
    pub async fn serve(self, request: Request) {
        if let Operation::Forget { lookups } = request.operation {
            return self.mount.forget(InodeNumber::from_raw(request.node), lookups);
        }
        self.sometimes_wait().await;
        let node = InodeNumber::from_raw(request.node);
        match request.operation {
            Operation::Read { .. } | Operation::Write { .. } => self.transfer(request.operation).await,
            Operation::Open { .. }
            | Operation::Create { .. }
            | Operation::Flush { .. }
            | Operation::Release { .. }
            | Operation::Fsync { .. } => self.use_file(node, request.operation).await,
            Operation::Opendir | Operation::Readdir { .. } | Operation::Releasedir { .. } => {
                self.list(node, request.operation).await;
            }
            operation => self.use_names(node, operation).await,
        }
    }

    async fn sometimes_wait(&self) {
        let what = format_args!("request client{}", self.process.index);
        let ms =
            self.process.decide(what, 0, |random| if random.one_in(2) { 1 + random.below(THREAD_MS_MAX) } else { 0 });
        if ms > 0 {
            let ticket = self.process.ask(Ask::Sleep(ms));
            self.process.told(ticket).await;
        }
    }

    /// Writes the reply; the kernel processes it soon, or at once if nobody has to be woken for it.
    fn reply(&self, answer: KernelAnswer) {
        let (process, kernel, unique) = (Rc::clone(&self.process), Arc::clone(&self.kernel), self.unique);
        if let Ok(Reply::Entry(entry) | Reply::Created(entry, _)) = &answer {
            kernel.told.borrow_mut().insert(entry.node, self.begun_ms);
        }
        let is_late = |random: &mut Random| !random.one_in(2);
        if self.is_background || !process.decide(format_args!("reply-late client{}", process.index), false, is_late) {
            return kernel.reply(unique, answer);
        }
        self.process.spawn(async move {
            let what = format_args!("reply client{}", process.index);
            let ticket = process.ask(Ask::Sleep(process.decide(what, 1, |random| 1 + random.below(THREAD_MS_MAX))));
            process.told(ticket).await;
            kernel.reply(unique, answer);
        });
    }

    fn reply_with<T>(&self, result: Result<T>, reply: impl FnOnce(T) -> Reply) {
        self.reply(result.map(reply).map_err(|error| errno(&error)));
    }

    fn attributes_reply(entry: &Entry) -> Reply {
        Reply::Attributes { attributes: attributes(&entry.attributes), valid_ms: millis(entry.attributes_valid) }
    }

    async fn use_names(&self, node: InodeNumber, operation: Operation) {
        let (mount, who) = (&self.mount, &self.who);
        match operation {
            Operation::Lookup { name: text } => match name(&text) {
                Ok(name) => {
                    let answer = mount.lookup(who, node, &name).await;
                    self.reply_with(answer.result, |found| Reply::Entry(found_entry(&found)));
                }
                Err(error) => self.reply(Err(errno(&error))),
            },
            Operation::Getattr { .. } => {
                let answer = mount.get_attributes(who, node).await;
                self.reply_with(answer.result, |entry| Self::attributes_reply(&entry));
            }
            Operation::Setattr(change) => {
                let changed = mount.set_attributes(who, node, &changes(&change)).await;
                self.reply_with(changed, |entry| Self::attributes_reply(&entry));
            }
            Operation::Mkdir { name, mode } => self.make(node, &name, Make::Directory(mode)).await,
            Operation::Link { inode, new_name } => {
                self.make(node, &new_name, Make::Link(InodeNumber::from_raw(inode))).await;
            }
            Operation::Unlink { name } => self.remove(node, &name, false).await,
            Operation::Rmdir { name } => self.remove(node, &name, true).await,
            Operation::Rename { name: from, new_parent, new_name, mode } => {
                let names = name(&from).and_then(|from| Ok((from, name(&new_name)?)));
                let (from, to) = match names {
                    Ok(names) => names,
                    Err(error) => return self.reply(Err(errno(&error))),
                };
                let to = (InodeNumber::from_raw(new_parent), &to);
                let answer = mount.rename(who, (node, &from), to, rename_mode(mode)).await;
                self.reply_with(answer.result, |()| Reply::Done);
            }
            other => unreachable!("{other:?} is served elsewhere"),
        }
    }

    async fn make(&self, parent: InodeNumber, new_name: &str, what: Make) {
        match name(new_name) {
            Ok(name) => {
                let answer = self.mount.make(&self.who, parent, &name, &what).await;
                self.reply_with(answer.result, |made| Reply::Entry(entry(&made)));
            }
            Err(error) => self.reply(Err(errno(&error))),
        }
    }

    async fn remove(&self, parent: InodeNumber, old_name: &str, is_directory: bool) {
        match name(old_name) {
            Ok(name) => {
                let answer = self.mount.remove(&self.who, parent, &name, is_directory).await;
                self.reply_with(answer.result, |()| Reply::Done);
            }
            Err(error) => self.reply(Err(errno(&error))),
        }
    }

    async fn use_file(&self, node: InodeNumber, operation: Operation) {
        let (mount, who) = (&self.mount, self.who.clone());
        let register = |file: &Descriptor| -> std::result::Result<SimBacking, NotTaken> { Ok(self.kernel.back(file)) };
        match operation {
            Operation::Open { flags } => {
                let asked: OpenOptionsOf<SimMount> = options(flags);
                let result = mount.open(who, node, asked, register).await;
                self.kernel.check_opened(node.raw(), &result);
                self.reply_with(result, |file| Reply::Opened(opened(&file)));
            }
            Operation::Create { name: text, mode, flags } => match name(&text) {
                Ok(name) => {
                    let create = CreateFile { mode, exclusive: flags.exclusive, plan: None };
                    let answer = mount.create(who, (node, &name), options(flags), create, register).await;
                    self.reply_with(answer.result, |(made, file)| {
                        // The kernel takes one term for both here.
                        let valid = made.name_valid.min(made.attributes_valid);
                        let made = Entry { name_valid: valid, attributes_valid: valid, ..made };
                        Reply::Created(entry(&made), opened(&file))
                    });
                }
                Err(error) => self.reply(Err(errno(&error))),
            },
            Operation::Flush { fh } => self.reply_with(mount.flush(fh, NOBODY).await, |()| Reply::Done),
            Operation::Fsync { fh, .. } => self.reply_with(mount.sync(fh).await, |()| Reply::Done),
            Operation::Release { fh } => self.reply_with(mount.release(fh).await, |()| Reply::Done),
            other => unreachable!("{other:?} is served elsewhere"),
        }
    }

    async fn transfer(&self, operation: Operation) {
        let mount = &self.mount;
        match operation {
            Operation::Read { fh, offset, size, has_owner } => {
                let reply = |read: Result<&[u8]>| self.reply_with(read, |bytes| Reply::Data(bytes.to_vec()));
                let by = ReadBy { pages: !has_owner, thread: None };
                mount.read(fh, (offset, size), by, &mut Vec::new(), reply).await;
            }
            Operation::Write { fh, offset, data, cached, has_owner, kill_privileges, .. } => {
                let by = match cached {
                    true => WrittenBy::PageCache,
                    false => {
                        let clears_set_id = kill_privileges;
                        WrittenBy::Program { pages: !has_owner, synced: false, clears_set_id, thread: None }
                    }
                };
                let written = mount.write(fh, offset, &data, by).await;
                let count = u32::try_from(data.len()).expect("a write is short");
                self.reply_with(written, |()| Reply::Written(count));
            }
            other => unreachable!("{other:?} is served elsewhere"),
        }
    }

    async fn list(&self, node: InodeNumber, operation: Operation) {
        let mount = &self.mount;
        match operation {
            Operation::Opendir => self.reply_with(mount.open_directory(self.who.clone(), node), |(fh, kept)| {
                let (cache_dir, keep_cache) = (kept.is_used, kept.is_kept);
                Reply::Opened(requests::Opened { fh, keep_cache, cache_dir, ..requests::Opened::default() })
            }),
            Operation::Readdir { fh, offset, size, plus: false } => {
                let mut listing = Filling::new(size);
                let result = mount.list(fh, offset, |shown| listing.add(shown, false)).await;
                self.reply_with(result, |()| Reply::Listing(listing.entries));
            }
            Operation::Readdir { fh, offset, size, plus: true } => {
                let mut listing = Filling::new(size);
                let answer = mount.list_with_attributes(node, fh, offset, |shown| listing.add(shown, true)).await;
                self.reply_with(answer.result, |()| Reply::Listing(listing.entries));
            }
            Operation::Releasedir { fh } => self.reply_with(mount.close_directory(fh), |()| Reply::Done),
            other => unreachable!("{other:?} is served elsewhere"),
        }
    }
}

fn found_entry(found: &Found) -> KernelEntry {
    match found {
        Found::Entry(found) => entry(found),
        Found::Absent(valid) => KernelEntry {
            node: 0,
            generation: 1,
            entry_ms: millis(*valid),
            attributes_ms: 0,
            attributes: no_attributes(0, Kind::Regular),
        },
    }
}

fn changes(change: &Change) -> AttributeChanges {
    let stamp = |time: u64| i64::try_from(time).map_or(TimeChange::Now, |time| TimeChange::To(Timestamp(time)));
    AttributeChanges {
        mode: change.mode,
        size: change.size,
        mtime: change.mtime.map(stamp),
        ..AttributeChanges::default()
    }
}

/// A reply to a listing while it is filled.
struct Filling {
    entries: Vec<Listed>,
    left: usize,
}

impl Filling {
    fn new(size: u32) -> Self {
        Self { entries: Vec::new(), left: size as usize }
    }

    /// `true`: it is full, and this was not added.
    fn add(&mut self, shown: &Shown<'_>, plus: bool) -> bool {
        let length = shown.name.len();
        let bytes = if plus { requests::entry_plus_bytes(length) } else { requests::entry_bytes(length) };
        if bytes > self.left {
            return true;
        }
        self.left -= bytes;
        let (ino, kind) = (shown.inode.raw(), kind(shown.kind));
        let known = shown.attributes.map_or_else(|| no_attributes(ino, kind), attributes);
        let valid = millis(shown.valid);
        let entry = KernelEntry { node: ino, generation: 1, entry_ms: valid, attributes_ms: valid, attributes: known };
        let entry = plus.then_some(entry);
        self.entries.push(Listed { ino, next: shown.next, kind, name: text(shown.name), entry });
        false
    }
}
