//! What the tasks of a simulated client do: programs that use files, and the thread that answers recalls of contents.
//!
//! The steps of open, read, write, truncate and close are those of `crates/client/src/file.rs`, `names.rs` and
//! `recalls.rs`. Each is told to the plain model ([`crate::bytes`]) before it begins and when it has ended, and each
//! read is compared with it.

use crate::bytes::OperationId;
use crate::file::{OpenFile, Options, ReadVia, request};
use crate::process::{Ask, Io};
use crate::reader::{Reader, Source};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use weft_client_core::{Cached, DirectoryChange, Opened};
use weft_protocol::data::DataOperation;
use weft_protocol::message::recall::Recall;
use weft_protocol::message::shard::{Access, CreateFile, OpenFlags, ShardAnswer, ShardRequest};
use weft_protocol::{Attributes, Error, FileKind, InodeNumber, LeaseKey, LeaseMode, Name, Result, SessionId};

/// Behind this no program writes.
const FILE_BYTES: u64 = 240;
/// Longest read or write.
const REQUEST_BYTES: u64 = 90;
/// Most that one program does with a file.
const STEPS: u64 = 12;
/// Longest wait between two of these, milliseconds.
const THINK_MS: u64 = 120;
/// Closed files whose lease is kept.
const IDLE_MAX: usize = 3;

/// An open file of one program.
struct Handle {
    io: Io,
    file: Rc<OpenFile>,
    options: Options,
    reader: Reader,
    /// Where it goes on, as long as it reads and writes in order.
    position: u64,
}

/// Opens a name (and makes it), uses the file for a while, closes it.
pub async fn use_file(io: Io, parent: InodeNumber, name: Name) {
    let process = Rc::clone(&io.process);
    let options = choose_options(&io);
    let opened = open(&io, parent, &name, options).await;
    let mut handle = match opened {
        Ok(handle) => handle,
        Err(error) => return process.note(|| format!("open {name} in {parent} {options:?}: {error:?}")),
    };
    let inode = handle.file.inode;
    process.note(|| format!("open {name} in {parent} {options:?}: inode {inode}"));
    for _ in 0..1 + below(&io, STEPS) {
        if process.ending.get() {
            break;
        }
        io.sleep(below(&io, THINK_MS)).await;
        handle.step().await;
    }
    let result = handle.file.flush(&io, true).await;
    handle.told_of(&result);
    process.note(|| format!("close inode {inode}: {result:?}"));
    handle.close().await;
}

fn below(io: &Io, bound: u64) -> u64 {
    io.process.random.borrow_mut().below(bound)
}

fn choose_options(io: &Io) -> Options {
    let access = match below(io, 4) {
        0 => Access::Read,
        1 => Access::Write,
        _ => Access::ReadWrite,
    };
    let writes = access.writes();
    Options {
        access,
        truncate: writes && below(io, 8) == 0,
        append: writes && below(io, 5) == 0,
        direct: below(io, 6) == 0,
    }
}

async fn open(io: &Io, parent: InodeNumber, name: &Name, options: Options) -> Result<Handle> {
    let process = &io.process;
    let known = process.cache.borrow().lookup(parent, name, process.now_ms.get());
    if let Cached::Found(inode, FileKind::Regular) = known
        && !options.truncate
        && !options.direct
        && let Some(file) = reopen(io, inode, options).await?
    {
        return Ok(Handle::new(io, file, options));
    }
    process.opening.set(process.opening.get() + 1);
    let opened = ask_to_open(io, parent, name, options).await;
    process.opening.set(process.opening.get() - 1);
    if process.opening.get() == 0 {
        process.reported.borrow_mut().clear();
    }
    opened
}

/// Opens under a lease that is still held: no message.
async fn reopen(io: &Io, inode: InodeNumber, options: Options) -> Result<Option<Rc<OpenFile>>> {
    let Some(file) = io.process.open.borrow().get(&inode).cloned() else { return Ok(None) };
    file.handles.set(file.handles.get() + 1);
    let allowed = file.reopen(io, options.access).await;
    if !matches!(allowed, Ok(true)) {
        closed(io, &file).await;
    }
    allowed.map(|allowed| allowed.then_some(file))
}

async fn ask_to_open(io: &Io, parent: InodeNumber, name: &Name, options: Options) -> Result<Handle> {
    let process = &io.process;
    let flags = OpenFlags { access: options.access, truncate: options.truncate, direct: options.direct };
    let create = (below(io, 4) > 0).then_some(CreateFile { mode: 0o644, exclusive: below(io, 4) == 0 });
    let request = ShardRequest::OpenAt { parent, name: name.clone(), flags, create };
    let since = process.files.borrow_mut().moment();
    let answer = io.call(parent.shard(), request).await?;
    let (stamp, session) = (answer.stamp, answer.session);
    let (attributes, capability, created, grants) = match answer.answer {
        ShardAnswer::Opened { attributes, capability, created, grants } => (attributes, capability, created, grants),
        ShardAnswer::Absent { grants } => {
            if let Some(mut cache) = process.cache_for(session) {
                if answer.resent {
                    cache.forget_name(parent, name, stamp);
                } else {
                    cache.learn_name(parent, name, None, grants, stamp);
                }
            }
            return Err(Error::NotFound);
        }
        _ => return Err(Error::IsDirectory),
    };
    let inode = attributes.inode;
    if let Some(mut cache) = process.cache_for(session) {
        if answer.resent {
            cache.directory_changed(parent, stamp);
            cache.forget_name(parent, name, stamp);
        } else if created {
            let change = DirectoryChange { entries: 1, directories: 0, time: attributes.ctime };
            cache.directory_became(parent, change, stamp);
        }
        if !answer.resent {
            cache.learn_name(parent, name, Some((inode, FileKind::Regular)), grants, stamp);
        }
        cache.learn_attributes(&attributes, grants, stamp);
    }
    let (file, in_use) = {
        let mut open = process.open.borrow_mut();
        let file = open.entry(inode).or_insert_with(|| Rc::new(OpenFile::new(&attributes, process.session.get())));
        file.handles.set(file.handles.get() + 1);
        (Rc::clone(file), file.handles.get() > 1)
    };
    let handle = Handle::new(io, Rc::clone(&file), options);
    let learnt = async {
        file.opened(io, options, &Opened { attributes, capability, grants, stamp, session }).await?;
        file.leased_size(io).await
    };
    let mut learnt = learnt.await;
    if learnt.is_ok() && options.truncate && (in_use || process.reported.borrow().contains_key(&inode)) {
        // What others of this process had gathered, and reported, may have passed the cut of the open.
        learnt = handle.truncate(0).await.map(|()| None);
    }
    if options.truncate {
        process.files.borrow_mut().open_cut_ended(inode, since, learnt.is_ok());
        process.ask(Ask::Settle);
    }
    match learnt {
        Ok(Some(size)) if !options.truncate => {
            process.check(process.files.borrow_mut().compare_size(inode, size, since));
        }
        Ok(_) => {}
        Err(error) => {
            handle.close().await;
            return Err(error);
        }
    }
    Ok(handle)
}

/// A handle is closed. The lease is kept for a while, if it is worth it.
async fn closed(io: &Io, file: &Rc<OpenFile>) {
    let process = &io.process;
    file.handles.set(file.handles.get() - 1);
    if file.handles.get() > 0 {
        return;
    }
    let keep = file.lock(io).await.map_or_else(|_| file.dirty.get(), |state| state.known.is_kept());
    if !keep {
        process.give_back_idle(file.inode, file.stamp.get());
    }
    let idle: Vec<Rc<OpenFile>> =
        process.open.borrow().values().filter(|file| file.handles.get() == 0 && !file.dirty.get()).cloned().collect();
    if idle.len() > IDLE_MAX
        && let Some(oldest) = idle.first()
    {
        process.give_back_idle(oldest.inode, oldest.stamp.get());
    }
}

impl Handle {
    fn new(io: &Io, file: Rc<OpenFile>, options: Options) -> Self {
        Self { io: io.clone(), file, options, reader: Reader::default(), position: 0 }
    }

    async fn close(mut self) {
        self.reader.end_stream(&self.io).await;
        closed(&self.io, &self.file).await;
    }

    /// One thing that a program does with a file.
    async fn step(&mut self) {
        let choice = below(&self.io, 16);
        let (reads, writes) = (self.options.access.reads(), self.options.access.writes());
        if below(&self.io, 3) == 0 {
            self.position = below(&self.io, FILE_BYTES);
        }
        let bytes = 1 + below(&self.io, if below(&self.io, 4) == 0 { REQUEST_BYTES } else { 24 });
        match choice {
            0 => self.flush().await,
            1 if writes && self.file.has_object.get() => {
                let _told = self.truncate(below(&self.io, FILE_BYTES)).await;
            }
            2 | 3 => self.stat().await,
            4..=9 if writes => self.write(bytes).await,
            _ if reads => self.read(bytes).await,
            _ => self.write(bytes).await,
        }
    }

    /// A program was told of an error.
    fn told_of<T>(&self, result: &Result<T>) {
        if result.is_err() {
            self.io.process.files.borrow_mut().told(self.io.process.id, self.file.inode);
        }
    }

    /// The outcome of an operation that changes the file. `Ok(true)`: it is not lost with the client.
    fn done(&self, operation: OperationId, append: bool, result: &Result<bool>) {
        let process = &self.io.process;
        let mut files = process.files.borrow_mut();
        match result {
            Ok(safe) if append => process.check(files.append_ended(operation, *safe)),
            Ok(safe) => files.ended(operation, *safe),
            Err(_) => {
                files.failed(operation);
                process.ask(Ask::Settle);
            }
        }
        drop(files);
        self.told_of(result);
    }

    async fn flush(&self) {
        let result = self.file.flush(&self.io, true).await;
        self.told_of(&result);
        self.io.process.note(|| format!("flush inode {}: {result:?}", self.file.inode));
    }

    async fn write(&mut self, bytes: u64) {
        let (process, inode, append) = (Rc::clone(&self.io.process), self.file.inode, self.options.append);
        let offset = self.position;
        let (value, operation) = {
            let mut files = process.files.borrow_mut();
            let value = files.next_value(inode);
            (value, files.write(process.id, inode, (!append).then_some(offset), bytes, value))
        };
        let what = format!("{bytes} bytes {value} at {offset} of inode {inode} {:?}", self.options);
        process.note(|| format!("write {what}"));
        let data = vec![value; usize::try_from(bytes).unwrap_or(0)];
        let mut result = self.file.write(&self.io, operation, (&data, offset), self.options).await;
        if matches!(result, Err(Error::NoObject | Error::CapabilityRejected))
            && self.file.right_is_void(&self.io).await.is_ok()
        {
            result = self.file.write(&self.io, operation, (&data, offset), self.options).await;
        }
        process.note(|| format!("wrote {what}: {result:?}"));
        self.done(operation, append, &result);
        self.position = (offset + bytes) % FILE_BYTES;
    }

    async fn read(&mut self, bytes: u64) {
        let (process, inode) = (Rc::clone(&self.io.process), self.file.inode);
        let offset = self.position;
        let since = process.files.borrow_mut().moment();
        let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let mut result = self.read_at(&mut buffer, offset).await;
        if matches!(result, Err(Error::NoObject | Error::CapabilityRejected))
            && self.file.right_is_void(&self.io).await.is_ok()
        {
            result = self.read_at(&mut buffer, offset).await;
        }
        let told = buffer.get(..*result.as_ref().unwrap_or(&0)).unwrap_or_default();
        process.note(|| format!("read {bytes} at {offset} of inode {inode}: {result:?}, since {since}"));
        if result.is_ok() {
            process.check(process.files.borrow_mut().compare_read(inode, (offset, bytes), told, since));
        }
        self.told_of(&result);
        self.position = (offset + bytes) % FILE_BYTES;
    }

    async fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let Self { io, file, options, reader, .. } = self;
        let via = file.read_via(io, buffer, offset).await?;
        let version = file.data_version.get();
        match via {
            ReadVia::Done(count) => Ok(count),
            ReadVia::Zeros { size } => {
                let count = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
                buffer[..count].fill(0);
                Ok(count)
            }
            ReadVia::Server { held, size } => {
                let vouched = size.map_or(u64::MAX, |size| size.saturating_sub(offset));
                let wanted = usize::try_from(vouched).unwrap_or(usize::MAX).min(buffer.len());
                let buffer = &mut buffer[..wanted];
                let mut have = 0;
                if let Some(size) = size.filter(|_| !options.direct) {
                    have = reader.read(io, &Source { inode: file.inode, held, size, version }, buffer, offset).await?;
                }
                if have == wanted {
                    return Ok(wanted);
                }
                let read = request(file.inode, DataOperation::Read, held, offset + have as u64, wanted - have);
                let (_, bytes) = io.data(read, &[], None).await?;
                let (came, hole) = buffer[have..].split_at_mut(bytes.len());
                came.copy_from_slice(&bytes);
                hole.fill(0);
                Ok(if size.is_some() { wanted } else { bytes.len() })
            }
        }
    }

    async fn stat(&self) {
        let (process, inode) = (&self.io.process, self.file.inode);
        let since = process.files.borrow_mut().moment();
        let result = self.attributes().await;
        process.note(|| format!("size of inode {inode}: {:?}", result.as_ref().map(|attributes| attributes.size)));
        if let Ok(attributes) = &result {
            process.check(process.files.borrow_mut().compare_size(inode, attributes.size, since));
        }
    }

    async fn attributes(&self) -> Result<Attributes> {
        let (process, inode) = (&self.io.process, self.file.inode);
        loop {
            let since = process.reports.get();
            let known = process.cache.borrow().attributes(inode, process.now_ms.get()).cloned();
            let (asked, mut attributes) = match known {
                Some(known) => (false, known),
                None => {
                    let answer = self.io.call(inode.shard(), ShardRequest::GetAttributes { inode }).await?;
                    let ShardAnswer::Entry { attributes, grants } = answer.answer else { return Err(Error::Malformed) };
                    if let Some(mut cache) = process.cache_for(answer.session) {
                        cache.learn_attributes(&attributes, grants, answer.stamp);
                    }
                    (true, attributes)
                }
            };
            if self.file.overlay(&self.io, &mut attributes, asked, since).await? {
                return Ok(attributes);
            }
        }
    }

    async fn truncate(&self, size: u64) -> Result<()> {
        let (process, inode) = (&self.io.process, self.file.inode);
        let operation = process.files.borrow_mut().cut(process.id, inode, size);
        process.note(|| format!("truncate inode {inode} to {size}"));
        let result = self.file.set_size(&self.io, size).await.map(|()| true);
        process.note(|| format!("truncated inode {inode} to {size}: {result:?}"));
        self.done(operation, false, &result);
        result.map(|_| ())
    }
}

/// Answers recalls of contents, one after another.
pub async fn answer_recalls(io: Io) {
    let process = Rc::clone(&io.process);
    loop {
        let next = poll_fn(|_| process.recalls.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready));
        let (session, recall) = next.await;
        let kept = give_up(&io, session, &recall).await;
        process.recall_done(session, &recall, kept);
    }
}

/// Drops what the recall takes, after writing back what must not be lost with it. Returns what is kept.
async fn give_up(io: &Io, session: SessionId, recall: &Recall) -> LeaseMode {
    let (process, LeaseKey::Data(inode)) = (&io.process, recall.key) else { return LeaseMode::None };
    process.cache.borrow_mut().note_data_recall(inode, recall.stamp);
    let open = process.open.borrow().get(&inode).cloned();
    match open {
        Some(file) => {
            let weakened = file.weaken(io, session, recall.stamp).await;
            let flushed = if weakened.is_ok() { file.flush(io, false).await } else { weakened };
            process.note(|| format!("gave up inode {inode} on recall: {flushed:?}"));
            if !file.dirty.get() {
                process.drop_idle(inode);
            }
            kept(io, session, file.dirty.get() || file.handles.get() > 0)
        }
        None => kept(io, session, false),
    }
}

/// What is kept of a lease on contents: a reply that opens this file may be on its way. Of a session that is over here
/// the shard is to ask the storage server what was written, now and at its end.
fn kept(io: &Io, session: SessionId, is_open: bool) -> LeaseMode {
    let is_open = is_open || io.process.opening.get() > 0 || session != io.process.session.get();
    if is_open { LeaseMode::Open } else { LeaseMode::None }
}
