//! Programs of a script as threads that make real system calls.

use crate::linux::Event;
use rustix::fs::{Mode, OFlags, RawDir, RenameFlags, Stat, StatxFlags};
use rustix::io::Errno as SystemError;
use rustix::thread::{CapabilitySet, Pid};
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use weft_sim::kernel::directory_stream::DirectoryEntry;
use weft_sim::kernel::requests::{Access, Attributes, Errno, Kind, OpenFlags, RenameMode};
use weft_sim::kernel::{Call, CallId, Handle, Value};
use weft_sys::mapped::MappedFile;
use weft_sys::plain_calls::write_with_fault;

/// How much of a file a mapping covers.
const MAPPING_BYTES: usize = 64 * 4096;

/// What all programs share, as threads of one process do.
struct Shared {
    point: PathBuf,
    files: Mutex<BTreeMap<Handle, Arc<OwnedFd>>>,
    mappings: Mutex<BTreeMap<Handle, Arc<MappedFile>>>,
}

struct Program {
    calls: Sender<(CallId, Call)>,
    thread: Pid,
    handle: JoinHandle<()>,
}

/// All programs of a run.
pub struct Programs {
    shared: Arc<Shared>,
    programs: BTreeMap<usize, Program>,
    events: Sender<Event>,
    unprivileged: bool,
    /// Threads that are in a call.
    busy: BTreeMap<CallId, Pid>,
    notifiers: Vec<JoinHandle<()>>,
}

impl Programs {
    pub fn new(point: &Path, events: Sender<Event>, unprivileged: bool) -> Self {
        let shared = Shared { point: point.to_owned(), files: Mutex::default(), mappings: Mutex::default() };
        Self {
            shared: Arc::new(shared),
            programs: BTreeMap::new(),
            events,
            unprivileged,
            busy: BTreeMap::new(),
            notifiers: Vec::new(),
        }
    }

    pub fn begin(&mut self, program: usize, id: CallId, call: Call) {
        let (shared, events, unprivileged) = (self.shared.clone(), self.events.clone(), self.unprivileged);
        let program = self.programs.entry(program).or_insert_with(|| start(shared, events, unprivileged));
        self.busy.insert(id, program.thread);
        program.calls.send((id, call)).unwrap();
    }

    /// Writes a notification to the device from a thread of its own: it may have to wait. `faults`: its last byte is
    /// in unreadable memory.
    pub fn notify(&mut self, id: CallId, device: Arc<File>, message: Vec<u8>, faults: bool) {
        let (started, thread) = channel();
        let events = self.events.clone();
        self.notifiers.push(std::thread::spawn(move || {
            started.send(rustix::thread::gettid()).unwrap();
            let result = match (faults, message.split_last()) {
                (true, Some((_, readable))) => write_with_fault(&*device, readable),
                _ => rustix::io::write(&*device, &message).map(|_| ()),
            };
            let result = result.map_err(|error| Errno(error.raw_os_error()));
            let _ = events.send(Event::Notified(id, result));
        }));
        self.busy.insert(id, thread.recv().unwrap());
    }

    pub fn returned(&mut self, id: CallId) {
        self.busy.remove(&id);
    }

    /// Whether every thread that is in a call waits in the kernel.
    pub fn all_asleep(&self) -> bool {
        self.busy.values().all(|thread| {
            let file = |name: &str| {
                std::fs::read_to_string(format!("/proc/self/task/{}/{name}", thread.as_raw_nonzero()))
                    .unwrap_or_default()
            };
            let state = file("stat");
            let asleep = state.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S") || rest.starts_with(" D"));
            // Not for the next call.
            asleep && !file("wchan").starts_with("futex")
        })
    }

    /// Ends all threads, after the connection was aborted.
    pub fn end(&mut self) {
        for (_, program) in std::mem::take(&mut self.programs) {
            drop(program.calls);
            let _ = program.handle.join();
        }
        for notifier in self.notifiers.drain(..) {
            let _ = notifier.join();
        }
    }
}

fn start(shared: Arc<Shared>, events: Sender<Event>, unprivileged: bool) -> Program {
    let (calls, receiver) = channel::<(CallId, Call)>();
    let (started, thread) = channel();
    let handle = std::thread::spawn(move || {
        if unprivileged {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::FSETID);
            rustix::thread::set_capabilities(None, sets).unwrap();
        }
        started.send(rustix::thread::gettid()).unwrap();
        serve(&shared, &receiver, &events);
    });
    Program { calls, thread: thread.recv().unwrap(), handle }
}

fn serve(shared: &Shared, calls: &Receiver<(CallId, Call)>, events: &Sender<Event>) {
    while let Ok((id, call)) = calls.recv() {
        let result = shared.execute(&call).map_err(|error| Errno(error.raw_os_error()));
        if events.send(Event::Returned(id, result)).is_err() {
            return;
        }
    }
}

fn system_flags(flags: OpenFlags) -> OFlags {
    let access = match flags.access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::WRONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let given = |set: bool, flag| if set { flag } else { OFlags::empty() };
    access
        | given(flags.create, OFlags::CREATE)
        | given(flags.exclusive, OFlags::EXCL)
        | given(flags.truncate, OFlags::TRUNC)
        | given(flags.append, OFlags::APPEND)
        | given(flags.direct, OFlags::DIRECT)
}

fn attributes(stat: &Stat) -> Attributes {
    let is_directory = stat.st_mode & 0o170_000 == 0o040_000;
    Attributes {
        ino: stat.st_ino,
        kind: if is_directory { Kind::Directory } else { Kind::Regular },
        mode: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: stat.st_atime as u64,
        mtime: stat.st_mtime as u64,
        ctime: stat.st_ctime as u64,
    }
}

/// A buffer that begins with a page: direct I/O counts the pages of its buffer.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, bytes }
    }

    fn with(data: &[u8]) -> Self {
        let mut buffer = Self::new(data.len());
        buffer.bytes().copy_from_slice(data);
        buffer
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

type Outcome = Result<Value, SystemError>;

fn done(result: Result<(), SystemError>) -> Outcome {
    result.map(|()| Value::Done)
}

impl Shared {
    fn path(&self, path: &[String]) -> PathBuf {
        path.iter().fold(self.point.clone(), |path, name| path.join(name))
    }

    fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>, SystemError> {
        self.files.lock().unwrap().get(&handle).cloned().ok_or(SystemError::BADF)
    }

    fn mapping(&self, mapping: Handle) -> Result<Arc<MappedFile>, SystemError> {
        self.mappings.lock().unwrap().get(&mapping).cloned().ok_or(SystemError::BADF)
    }

    fn execute(&self, call: &Call) -> Outcome {
        match call {
            Call::Stat { path } => rustix::fs::stat(self.path(path)).map(|stat| Value::Attributes(attributes(&stat))),
            Call::CountLinks { path } => {
                let flags = rustix::fs::AtFlags::empty();
                let told = rustix::fs::statx(rustix::fs::CWD, self.path(path), flags, StatxFlags::NLINK)?;
                Ok(Value::Count(told.stx_nlink.into()))
            }
            Call::Open { path, flags, mode, handle } => {
                let file =
                    rustix::fs::open(self.path(path), system_flags(*flags), Mode::from_bits_retain((*mode).into()))?;
                let old = self.files.lock().unwrap().insert(*handle, Arc::new(file));
                drop(old);
                Ok(Value::Done)
            }
            Call::Truncate { path, size } => {
                let truncated = nix::unistd::truncate(&self.path(path), *size as i64);
                done(truncated.map_err(|error| SystemError::from_raw_os_error(error as i32)))
            }
            Call::Chmod { path, mode } => {
                done(rustix::fs::chmod(self.path(path), Mode::from_bits_retain((*mode).into())))
            }
            Call::Mkdir { path, mode } => {
                done(rustix::fs::mkdir(self.path(path), Mode::from_bits_retain((*mode).into())))
            }
            Call::Unlink { path } => done(rustix::fs::unlink(self.path(path))),
            Call::Rmdir { path } => done(rustix::fs::rmdir(self.path(path))),
            Call::Link { from, to } => done(rustix::fs::link(self.path(from), self.path(to))),
            Call::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                let here = rustix::fs::CWD;
                done(rustix::fs::renameat_with(here, self.path(from), here, self.path(to), flags))
            }
            _ => self.execute_on_file(call),
        }
    }

    fn execute_on_file(&self, call: &Call) -> Outcome {
        match call {
            Call::Close { handle } => {
                let file = self.files.lock().unwrap().remove(handle).ok_or(SystemError::BADF)?;
                drop(file);
                Ok(Value::Done)
            }
            Call::Read { handle, size } => {
                let mut buffer = Aligned::new(*size as usize);
                let count = rustix::io::read(&*self.file(*handle)?, buffer.bytes())?;
                Ok(Value::Data(buffer.bytes()[..count].to_vec()))
            }
            Call::Pread { handle, offset, size } => {
                let mut buffer = Aligned::new(*size as usize);
                let count = rustix::io::pread(&*self.file(*handle)?, buffer.bytes(), *offset)?;
                Ok(Value::Data(buffer.bytes()[..count].to_vec()))
            }
            Call::Write { handle, data } => {
                let mut buffer = Aligned::with(data);
                rustix::io::write(&*self.file(*handle)?, buffer.bytes()).map(|count| Value::Count(count as u64))
            }
            Call::Pwrite { handle, offset, data } => {
                let mut buffer = Aligned::with(data);
                let count = rustix::io::pwrite(&*self.file(*handle)?, buffer.bytes(), *offset)?;
                Ok(Value::Count(count as u64))
            }
            Call::Fstat { handle } => {
                rustix::fs::fstat(&*self.file(*handle)?).map(|stat| Value::Attributes(attributes(&stat)))
            }
            Call::Ftruncate { handle, size } => done(rustix::fs::ftruncate(&*self.file(*handle)?, *size)),
            Call::Fsync { handle, data_only } => {
                let file = self.file(*handle)?;
                done(if *data_only { rustix::fs::fdatasync(&*file) } else { rustix::fs::fsync(&*file) })
            }
            Call::Getdents { handle, bytes } => list(&*self.file(*handle)?, *bytes).map(Value::Entries),
            Call::Seekdir { handle, position } => {
                let to = rustix::fs::SeekFrom::Start(*position);
                rustix::fs::seek(&*self.file(*handle)?, to).map(|_| Value::Done)
            }
            _ => self.execute_on_mapping(call),
        }
    }

    fn execute_on_mapping(&self, call: &Call) -> Outcome {
        match call {
            Call::Map { handle, mapping, .. } => {
                let made = MappedFile::new(self.file(*handle)?.as_fd(), 0, MAPPING_BYTES)?;
                let old = self.mappings.lock().unwrap().insert(*mapping, Arc::new(made));
                drop(old);
                Ok(Value::Done)
            }
            Call::Load { mapping, offset, size } => {
                let mut data = vec![0; *size as usize];
                self.mapping(*mapping)?.read_at(*offset as usize, &mut data)?;
                Ok(Value::Data(data))
            }
            Call::Store { mapping, offset, data } => done(self.mapping(*mapping)?.write_at(*offset as usize, data)),
            Call::Msync { mapping } => done(self.mapping(*mapping)?.sync()),
            Call::Unmap { mapping } => {
                let mapping = self.mappings.lock().unwrap().remove(mapping).ok_or(SystemError::BADF)?;
                drop(mapping);
                Ok(Value::Done)
            }
            _ => Err(SystemError::INVAL),
        }
    }
}

/// One getdents64.
fn list(directory: &OwnedFd, bytes: usize) -> Result<Vec<DirectoryEntry>, SystemError> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let mut reader = RawDir::new(directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let is_directory = entry.file_type() == rustix::fs::FileType::Directory;
        entries.push(DirectoryEntry {
            ino: entry.ino(),
            kind: if is_directory { Kind::Directory } else { Kind::Regular },
            name: entry.file_name().to_string_lossy().into_owned(),
            next: entry.next_entry_cookie(),
        });
        if reader.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}
