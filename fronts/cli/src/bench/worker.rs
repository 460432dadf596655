//! One process of a benchmark.

use super::handle::{Handle, Times};
use super::phase::{Done, Names, Phase, Setup, Transfer, Word};
use super::stamps::{PAGE_BYTES, Stamps};
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output;
use crate::session::{self, Session};
use crate::target::WeftPath;
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, BufRead};
use weft_client::{ClientOptions, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{InodeNumber, Name};

/// Contents of pages beside their stamps.
const FILLING: u8 = 0x5a;

/// A worker and its client.
struct Worker {
    setup: Setup,
    session: Session,
}

/// What a phase has prepared.
enum Prepared {
    Write(Handle, Transfer, Memory),
    Read(Handle, Transfer, Memory),
    /// Directory and names of files in it.
    Create(InodeNumber, Vec<Name>),
    Stat(InodeNumber, Vec<Name>),
    Unlink(InodeNumber, Vec<Name>),
    Ping(u64),
}

/// Memory of one request. It begins at a page, as that of the programs does which this is compared with, and is there
/// before anything is measured.
struct Memory {
    bytes: Vec<u8>,
    begin: usize,
    length: usize,
}

impl Memory {
    fn of(transfer: &Transfer) -> Self {
        let length = usize::try_from(transfer.request.min(transfer.size)).unwrap_or(usize::MAX);
        let page = PAGE_BYTES as usize;
        let bytes = vec![FILLING; length + page];
        Self { begin: bytes.as_ptr().align_offset(page).min(page), bytes, length }
    }

    /// The whole of it, or as much as is left of the file.
    fn piece(&mut self, left: u64) -> &mut [u8] {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(self.length);
        &mut self.bytes[self.begin..self.begin + length]
    }
}

/// Does what standard input says, until it ends.
pub fn run() -> Outcome {
    let mut lines = io::stdin().lock().lines();
    let mut next = || lines.next().transpose().explain(|| "read what to do");
    let Some(setup) = next()? else { return Ok(Ending::Done) };
    let mut worker = match parse::<Setup>(&setup).and_then(|setup| Worker::new(&setup)) {
        Ok(worker) => worker,
        Err(failure) => return give_up(&failure),
    };
    while let Some(line) = next()? {
        let prepared = match parse::<Phase>(&line).and_then(|phase| worker.prepare(phase)) {
            Ok(prepared) => prepared,
            Err(failure) => return give_up(&failure),
        };
        say(&Word::Ready)?;
        if next()?.is_none() {
            break;
        }
        match worker.perform(prepared) {
            Ok(done) => say(&Word::Done(done))?,
            Err(failure) => return give_up(&failure),
        }
    }
    worker.session.close()?;
    Ok(Ending::Done)
}

fn parse<T: serde::de::DeserializeOwned>(line: &str) -> Outcome<T> {
    serde_json::from_str(line).map_err(|error| Failure::new(format!("worker: {error}")))
}

fn say(word: &Word) -> Outcome<()> {
    let line = serde_json::to_string(word).map_err(|error| Failure::new(format!("worker: {error}")))?;
    output::print(&format!("{line}\n"))
}

fn give_up(failure: &Failure) -> Outcome {
    let (text, remedy) = (failure.text().to_owned(), failure.remedy_text().map(str::to_owned));
    say(&Word::Failed { text, remedy })?;
    Ok(Ending::No)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Worker {
    fn new(setup: &Setup) -> Outcome<Self> {
        let mut options = ClientOptions { way: setup.way.into(), ..session::options()? };
        options.rdma.registration = setup.registration.unwrap_or(options.rdma.registration);
        options.rdma.rpc = setup.rpc.unwrap_or(options.rdma.rpc);
        let session = Session::open_with(session::find(Some(&setup.name))?, &options)?;
        Ok(Self { setup: setup.clone(), session })
    }

    fn path(&self, name: &str) -> WeftPath {
        let directory = WeftPath { file_system: None, path: self.setup.directory.clone().into_bytes() };
        if name.is_empty() { directory } else { directory.join(name.as_bytes()) }
    }

    fn prepare(&mut self, phase: Phase) -> Outcome<Prepared> {
        match phase {
            Phase::Write(transfer) => {
                let memory = Memory::of(&transfer);
                Ok(Prepared::Write(self.open(&transfer, true)?, transfer, memory))
            }
            Phase::Read(transfer) => {
                let memory = Memory::of(&transfer);
                Ok(Prepared::Read(self.open(&transfer, false)?, transfer, memory))
            }
            Phase::Create(names) => self.names(&names, self.setup.index).map(|(at, names)| Prepared::Create(at, names)),
            Phase::Unlink(names) => {
                // The clients that looked the files up are gone with their leases: what is measured is the removal
                // alone.
                self.renew_client()?;
                self.names(&names, self.setup.index).map(|(at, names)| Prepared::Unlink(at, names))
            }
            Phase::Stat(names) => {
                // A new client knows nothing yet; with several workers it asks for what another one made.
                self.renew_client()?;
                let next = (self.setup.index + 1) % names.directories.len().max(1);
                self.names(&names, next).map(|(at, names)| Prepared::Stat(at, names))
            }
            Phase::Ping { count } => Ok(Prepared::Ping(count)),
        }
    }

    /// Ends the session, and begins another that knows nothing.
    fn renew_client(&mut self) -> Outcome<()> {
        self.session.close()?;
        *self = Worker::new(&self.setup)?;
        Ok(())
    }

    fn open(&self, transfer: &Transfer, write: bool) -> Outcome<Handle> {
        let name = if transfer.turns > 1 { "data".to_owned() } else { format!("data-{}", self.setup.index) };
        if let Some(mounted) = &self.setup.mounted {
            return Handle::in_mount(mounted, &format!("{}/{name}", self.setup.directory), write, transfer.direct);
        }
        let path = self.path(&name);
        let (parent, name) = self.session.parent(&path, "open")?;
        let access = if write { Access::Write } else { Access::Read };
        let options = OpenOptions { truncate: write, direct: transfer.direct, ..OpenOptions::of(access) };
        let create = write.then_some(CreateFile { mode: 0o600, exclusive: false, plan: None });
        let opened = self.session.client.open_at(&self.session.who, parent, &name, options, create);
        opened.explain(|| format!("open {path}")).map(|(file, _)| Handle::Native(file))
    }

    /// Directory and names of the files of a worker.
    fn names(&self, names: &Names, worker: usize) -> Outcome<(InodeNumber, Vec<Name>)> {
        let (directory, prefix) = match (names.directories.get(worker), names.prefixes.get(worker)) {
            (Some(directory), Some(prefix)) => (directory, prefix),
            _ => return Err(Failure::new(format!("worker {worker} has no directory"))),
        };
        let path = self.path(directory);
        let inode = self.session.walk(&path, true, "find")?.attributes.inode;
        let name =
            |file: u64| Name::new(format!("{prefix}{file:08}").as_bytes()).explain(|| format!("name of file {file}"));
        Ok((inode, (0..names.files).map(name).collect::<Outcome<_>>()?))
    }

    /// What is measured.
    fn perform(&self, prepared: Prepared) -> Outcome<Done> {
        let (before, cpu_before) = (self.session.client.counters(), cpu_seconds());
        let mut times =
            Times::new(matches!(&prepared, Prepared::Write(_, of, _) | Prepared::Read(_, of, _) if of.timed));
        let (operations, bytes) = match prepared {
            Prepared::Write(file, transfer, memory) => self.write(file, &transfer, memory, &mut times)?,
            Prepared::Read(file, transfer, memory) => self.read(file, &transfer, memory, &mut times)?,
            Prepared::Create(directory, names) => self.create(directory, &names)?,
            Prepared::Stat(directory, names) => self.stat(directory, &names)?,
            Prepared::Unlink(directory, names) => self.unlink(directory, &names)?,
            Prepared::Ping(count) => self.ping(count)?,
        };
        let done = Done::between(&before, &self.session.client.counters());
        let cpu_seconds = cpu_seconds() - cpu_before;
        let (p50_us, p99_us) = (times.percentile(50), times.percentile(99));
        Ok(Done { operations, bytes, cpu_seconds, p50_us, p99_us, ..done })
    }

    fn write(&self, file: Handle, transfer: &Transfer, mut memory: Memory, times: &mut Times) -> Outcome<(u64, u64)> {
        let stamps = Stamps::new(transfer.seed, self.setup.index);
        let (mut done, mut operations) = (0, 0);
        while done < transfer.size {
            let piece = memory.piece(transfer.size - done);
            let offset = transfer.offset(self.setup.index, operations);
            stamps.put(piece, offset);
            times.of(|| file.write_at(piece, offset))?;
            done += piece.len() as u64;
            operations += 1;
        }
        file.close()?;
        Ok((operations, done))
    }

    fn read(&self, file: Handle, transfer: &Transfer, mut memory: Memory, times: &mut Times) -> Outcome<(u64, u64)> {
        let stamps = Stamps::new(transfer.seed, self.setup.index);
        let (mut done, mut operations) = (0, 0);
        while done < transfer.size {
            let piece = memory.piece(transfer.size - done);
            let offset = transfer.offset(self.setup.index, operations);
            let count = times.of(|| file.read_at(piece, offset))?;
            if count != piece.len() {
                return Err(Failure::new(format!("read {count} of {} bytes at offset {offset}", piece.len())));
            }
            if let Some(wrong) = stamps.first_wrong(piece, offset) {
                return Err(Failure::new(format!("what was read at offset {wrong} is not what was written"))
                    .remedy("this is a bug of Weft: keep the logs and report it"));
            }
            done += count as u64;
            operations += 1;
        }
        file.close()?;
        Ok((operations, done))
    }

    fn create(&self, directory: InodeNumber, names: &[Name]) -> Outcome<(u64, u64)> {
        let options = OpenOptions::of(Access::Write);
        let create = Some(CreateFile { mode: 0o600, exclusive: true, plan: None });
        for name in names {
            let made = self.session.client.open_at(&self.session.who, directory, name, options, create);
            made.and_then(|(file, _)| file.close()).explain(|| format!("create {name}"))?;
        }
        Ok((names.len() as u64, 0))
    }

    fn stat(&self, directory: InodeNumber, names: &[Name]) -> Outcome<(u64, u64)> {
        for name in names {
            self.session.client.lookup(&self.session.who, directory, name).explain(|| format!("stat {name}"))?;
        }
        Ok((names.len() as u64, 0))
    }

    fn unlink(&self, directory: InodeNumber, names: &[Name]) -> Outcome<(u64, u64)> {
        for name in names {
            self.session.client.unlink(&self.session.who, directory, name).explain(|| format!("unlink {name}"))?;
        }
        Ok((names.len() as u64, 0))
    }

    fn ping(&self, count: u64) -> Outcome<(u64, u64)> {
        for _ in 0..count {
            self.session.client.ping().explain(|| "ping")?;
        }
        Ok((count, 0))
    }
}
