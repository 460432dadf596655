//! A script against the real kernel: a mount whose requests this process answers, and programs as threads.
//!
//! The model's events say what to wait for at each step. When they have come, and whoever is still in a call sleeps,
//! nothing else may have come.

use crate::programs::Programs;
use crate::script::{Script, Step};
use crate::server::{Outcome, Server};
use crate::trace::{Events, comparable};
use crate::wire::{Incoming, decode, encode, encode_error, encode_init, encode_notification};
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_sim::kernel::requests::{Answer, Errno, NodeId, Notification, Reply, Request};
use weft_sim::kernel::{CallId, CallResult};

/// How long an event may take to come.
const PATIENCE: Duration = Duration::from_secs(15);
/// Buffer for one request; the kernel wants room for the largest write.
const REQUEST_BYTES_MAX: usize = (1 << 20) + 4096;

/// What comes from threads.
pub enum Event {
    Incoming(Incoming),
    Returned(CallId, CallResult),
    Notified(CallId, Result<(), Errno>),
}

/// Where a run differs from what was expected.
pub struct Difference {
    pub step: usize,
    pub expected: Events,
    pub found: Events,
}

static MOUNTS: AtomicU64 = AtomicU64::new(0);

/// Aborts the mounts of a process once it exits, however that comes about.
///
/// A process that is killed closes its files of a mount before it lets go of the device (`fput` is deferred until all
/// are closed): each close sends FLUSH, which nobody but that process would answer, and it cannot be killed again.
const GUARD: &str = r#"
while read -r _ _ state _ _ _ _ _ flags _ 2>/dev/null < "/proc/$1/stat"; do
    [ "$state" = Z ] && break
    [ $((flags & 4)) -ne 0 ] && break # PF_EXITING
    sleep 0.5
done
for point in "$2-$1"-*; do
    umount -f -l "$point"
    rmdir "$point"
done
"#;

/// Starts the guard of this process.
fn begin_guard() {
    static GUARDED: OnceLock<()> = OnceLock::new();
    GUARDED.get_or_init(|| {
        let points = std::env::temp_dir().join("weft-kernel-model");
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(std::process::id().to_string()).arg(points).process_group(0);
        guard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(guard.spawn().expect("sh starts"));
    });
}

/// A mounted file system.
struct Mounted {
    point: PathBuf,
    device: Arc<File>,
    reader: Option<JoinHandle<()>>,
}

impl Mounted {
    fn new(events: Sender<Event>) -> std::io::Result<Self> {
        begin_guard();
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let point = std::env::temp_dir().join(format!("weft-kernel-model-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&point)?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let mounted = rustix::mount::mount("weft-kernel-model", &point, "fuse", flags, CString::new(data)?.as_c_str());
        if let Err(error) = mounted {
            let _ = std::fs::remove_dir(&point);
            return Err(error.into());
        }
        let device = Arc::new(device);
        let from = device.clone();
        let reader = std::thread::spawn(move || {
            // Touched here: a munmap that waits for its pages to be written holds the lock that page faults take.
            let mut buffer = vec![1; REQUEST_BYTES_MAX];
            loop {
                match (&*from).read(&mut buffer) {
                    Ok(bytes) => {
                        if events.send(Event::Incoming(decode(&buffer[..bytes]))).is_err() {
                            return;
                        }
                    }
                    // Interrupted, or a request that was taken back.
                    Err(error) if matches!(error.raw_os_error(), Some(2 | 4)) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(Self { point, device, reader: Some(reader) })
    }

    /// Ends the connection: whoever waits for an answer gets an error.
    fn abort(&self) {
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.abort();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let _ = std::fs::remove_dir(&self.point);
    }
}

/// Why the real kernel cannot be asked here.
pub fn unavailable() -> Option<String> {
    let (sender, events) = channel();
    match Mounted::new(sender) {
        Err(error) => Some(format!("cannot mount /dev/fuse: {error}")),
        Ok(mounted) => {
            drop(mounted);
            drop(events);
            None
        }
    }
}

/// Runs a script and compares it step by step with what may happen: the model's runs, of which those that agree with
/// the kernel so far stay in the comparison.
pub fn run(script: &Script, possible: &[Vec<Events>]) -> Result<(), Box<Difference>> {
    let (sender, events) = channel();
    let mounted = Mounted::new(sender.clone()).expect("mounting worked before");
    let mut run = Run {
        script,
        server: Server::new(),
        held: VecDeque::new(),
        found: Events::default(),
        backing: BTreeMap::new(),
        programs: Programs::new(&mounted.point, sender.clone(), script.config.kills_privileges),
        device: mounted.device.clone(),
        events,
    };
    run.wait_for_init();
    let result = run.compare(possible);
    mounted.abort();
    run.programs.end();
    drop(run);
    result
}

struct Run<'a> {
    script: &'a Script,
    server: Server,
    held: VecDeque<(Request, Option<Answer>)>,
    found: Events,
    /// Files that the kernel reads and writes itself, with its numbers of them.
    backing: BTreeMap<NodeId, (File, u32)>,
    programs: Programs,
    device: Arc<File>,
    events: Receiver<Event>,
}

impl Run<'_> {
    fn wait_for_init(&mut self) {
        while let Ok(event) = self.events.recv_timeout(PATIENCE) {
            if let Event::Incoming(Incoming::Init { unique }) = event {
                self.send(&encode_init(unique, &self.script.config));
                return;
            }
        }
        panic!("the kernel did not begin");
    }

    fn compare(&mut self, possible: &[Vec<Events>]) -> Result<(), Box<Difference>> {
        let mut possible: Vec<&[Events]> = possible.iter().map(Vec::as_slice).collect();
        for number in 0.. {
            match self.script.steps.get(number) {
                Some(step) => self.step(CallId(number as u64), step),
                None if self.held.is_empty() && possible.iter().any(|run| run.len() == number) => break,
                None => self.release(),
            }
            let expected: Vec<&Events> = possible.iter().filter_map(|run| run.get(number)).collect();
            self.wait_for(&expected);
            let mut found = std::mem::take(&mut self.found);
            found.sort();
            let first = expected.first().map(|&events| events.clone());
            possible.retain(|run| run.get(number) == Some(&found));
            if possible.is_empty() {
                return Err(Box::new(Difference { step: number, expected: first.unwrap_or_default(), found }));
            }
        }
        Ok(())
    }

    fn send(&self, message: &[u8]) {
        // The request may be gone, or the mount.
        let _ = (&*self.device).write(message);
    }

    fn step(&mut self, id: CallId, step: &Step) {
        match step {
            Step::Call { program, call } => self.programs.begin(*program, id, call.clone()),
            Step::Notify(notification) => {
                let faults = matches!(notification, Notification::Grow { .. });
                self.programs.notify(id, self.device.clone(), encode_notification(notification), faults);
            }
            Step::Fate { kind, fate } => self.server.set_fate(kind, fate.clone()),
            Step::Outside(change) => {
                self.take_backing_files();
                self.server.change(change);
            }
            Step::Release => self.release(),
        }
    }

    fn release(&mut self) {
        if let Some((request, answer)) = self.held.pop_front() {
            self.take_backing_files();
            let answer = answer.unwrap_or_else(|| self.server.answer(&request));
            self.answer(&request, answer);
        }
    }

    /// Serves until the events of one of the possible runs have come and all who are in a call sleep.
    fn wait_for(&mut self, possible: &[&Events]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let wanted = self.is_waiting_for_one_of(possible);
            let quiet = !wanted && self.programs.all_asleep();
            let wait = if wanted { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            match self.events.recv_timeout(wait) {
                Ok(event) => self.take(event),
                Err(_) if quiet || Instant::now() >= deadline => return,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Whether more has to come: none of the possible events has come whole, and one of them has more than have come.
    fn is_waiting_for_one_of(&self, possible: &[&Events]) -> bool {
        let mut found = self.found.clone();
        found.sort();
        !possible.contains(&&found) && possible.iter().any(|events| found.count() < events.count())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Returned(id, result) => {
                self.programs.returned(id);
                self.found.returned.push((id, comparable(result, &self.script.config)));
            }
            Event::Notified(id, result) => {
                self.programs.returned(id);
                self.found.notified.push((id, result));
            }
            Event::Incoming(Incoming::Request(request)) => self.serve(request),
            Event::Incoming(Incoming::Forgets(forgets)) => {
                for (node, lookups) in forgets {
                    *self.found.forgets.entry(node).or_default() += lookups;
                }
            }
            Event::Incoming(Incoming::Unknown { unique }) => self.send(&encode_error(unique, 38)),
            Event::Incoming(Incoming::Init { .. } | Incoming::Ignored) => {}
        }
    }

    fn serve(&mut self, request: Request) {
        self.found.add_request(&request);
        self.take_backing_files();
        match self.server.receive(&request) {
            Outcome::Answer(answer) => self.answer(&request, answer),
            Outcome::HoldReply(answer) => self.held.push_back((request, Some(answer))),
            Outcome::HoldRequest => self.held.push_back((request, None)),
        }
    }

    fn answer(&mut self, request: &Request, answer: Answer) {
        match answer {
            Err(error) => self.send(&encode_error(request.unique, error.0)),
            Ok(reply) => {
                let backing = match &reply {
                    Reply::Opened(opened) | Reply::Created(_, opened) => opened.passthrough,
                    _ => None,
                };
                let backing = backing.map_or(0, |node| self.backing_file(u64::from(node)));
                self.send(&encode(request.unique, &reply, backing));
            }
        }
    }

    /// The kernel's number of a node's backing file.
    fn backing_file(&mut self, node: NodeId) -> u32 {
        if let Some((_, number)) = self.backing.get(&node) {
            return *number;
        }
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-kernel-model-{}-backing-{number}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let _ = std::fs::remove_file(&path);
        file.write_all(&self.server.content(node)).unwrap();
        let number = fuser::BackingId::create_raw(&*self.device, &file).unwrap_or(0);
        self.backing.insert(node, (file, number));
        number
    }

    /// What the kernel wrote to backing files is the server's content.
    fn take_backing_files(&mut self) {
        for (node, (file, _)) in &self.backing {
            let mut content = vec![0; file.metadata().map_or(0, |metadata| metadata.len() as usize)];
            let read = std::os::unix::fs::FileExt::read_at(file, &mut content, 0).unwrap_or(0);
            content.truncate(read);
            self.server.set_content(*node, content);
        }
    }
}
