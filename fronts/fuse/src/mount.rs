//! A mount, from attaching to its end; what is agreed with the kernel.
//!
//! [`Mounted::attach`] mounts and agrees, [`Mounted::serve`] serves until somebody unmounts ([`crate::unmount()`], from
//! any process) and then closes what is still open. [`mount`] is both.
//!
//! Invariant: when `serve` returns, no thread of this mount uses the client any more (unless one waits for a server
//! that is away for longer than [`END_WAIT`]), and the kernel's connection is closed.
//! Not here: signals. Whoever wants SIGTERM to end the mount calls `unmount` from its signal thread.

use crate::attach::{Attachment, attach};
use crate::filesystem::MountedFilesystem;
use crate::front::Front;
use crate::guard::{Guard, Watched};
use crate::notify::Device;
use crate::shell::Recalls;
use crate::turns::Turns;
use crate::workers::Workers;
use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};
use weft_client::{Client, block_on};
use weft_mount_core::Settings;
use weft_protocol::NodeIdentity;

/// Largest read or write in one request of the kernel, bytes. What Linux allows without a change of its settings.
pub const TRANSFER_BYTES_DEFAULT: u32 = 1 << 20;
/// Limits of [`MountOptions::max_transfer_bytes`]: a page, and the buffer of a thread that reads requests.
const TRANSFER_BYTES_RANGE: (u32, u32) = (4096, 16 << 20);
/// Reads ahead and asynchronous writes that the kernel may have outstanding. Its default of 12 leaves a long link idle.
const BACKGROUND_REQUESTS_MAX: u16 = 128;
/// Bounds of the default number of threads: one request per core and one that waits, and not so few that several
/// programs keep the last free thread busy with handing requests on; more only when asked for.
const THREADS_RANGE: (usize, usize) = (8, 16);
/// Most threads that can be asked for: each has a buffer of 16 MiB, of which it touches what requests fill.
const THREADS_MAX: usize = 128;
/// How deep file systems may be stacked below a file that the kernel passes through. With more, a spool on an overlay
/// would do too, but no overlay could be made over this mount.
const STACK_DEPTH: u32 = 1;
/// How long the end of a mount waits for requests that are still under way.
pub const END_WAIT: Duration = Duration::from_secs(30);
/// What Linux allows in one request where it does not say, pages.
const PAGES_MAX_DEFAULT: u32 = 256;
const PAGE_BYTES: u32 = 4096;

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// All reads and writes bypass the kernel's page cache. The client library reads ahead and gathers as ever, under
    /// leases; not so for files that a program opens with O_DIRECT.
    pub direct: bool,
    /// Threads that take requests; 0: the default, by the number of cores. Slow requests get further ones.
    pub threads: usize,
    /// Lets the kernel read and write objects of this node itself, where it allows that (CAP_SYS_ADMIN) and the client
    /// is passed their descriptors; other files go the other way. The default.
    pub passthrough: bool,
    /// Users other than the one who mounts may use it too. Needs root, or `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// Largest read or write in one request, bytes; 0: the default, 1 MiB. The kernel may give less.
    pub max_transfer_bytes: u32,
    /// Programs may use extended attributes. Without them the kernel asks once, and then no more.
    pub xattrs: bool,
    /// Writes to split files go on at another node when that of this machine is full.
    pub spill: bool,
    /// The kernel keeps the locks of files itself: programs of other mounts do not see them.
    pub local_lock: bool,
    /// Does without the epoch of names, as on a kernel before Linux 6.16. For tests.
    pub no_epoch: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            direct: false,
            threads: 0,
            passthrough: true,
            allow_other: false,
            read_only: false,
            max_transfer_bytes: 0,
            xattrs: true,
            spill: false,
            local_lock: false,
            no_epoch: false,
        }
    }
}

/// What was agreed with the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Negotiated {
    /// Largest write in one request.
    pub max_write_bytes: u32,
    /// How far the kernel reads ahead of a sequential reader.
    pub max_readahead_bytes: u32,
    /// Threads that take requests.
    pub threads: usize,
    /// Listings carry attributes.
    pub readdirplus: bool,
    /// The kernel may read and write objects of this node itself.
    pub passthrough: bool,
    /// All files bypass the kernel's page cache.
    pub direct: bool,
    /// Files that bypass the page cache can be mapped too.
    pub direct_mmap: bool,
    /// The kernel can drop all names at once, without the lock of a directory.
    pub epoch: bool,
    /// Programs may use extended attributes.
    #[serde(default)]
    pub xattrs: bool,
    /// Version of the kernel's FUSE protocol, as `7.44`.
    pub kernel_abi: String,
}

/// What is asked of the kernel, and where its answer is put.
pub struct Agreement {
    options: MountOptions,
    threads: usize,
    identity: NodeIdentity,
    result: Arc<Mutex<Negotiated>>,
}

impl Agreement {
    /// Whether programs may use extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.options.xattrs
    }

    /// Asks for what the kernel has. Called once, when it introduces itself.
    pub fn negotiate(&self, config: &mut KernelConfig) -> Settings {
        let offered = config.capabilities();
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            // Leases say when pages are old; the kernel is not to guess it from sizes that the own writes change.
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        if !self.options.local_lock {
            wanted |= InitFlags::FUSE_FLOCK_LOCKS | InitFlags::FUSE_POSIX_LOCKS;
        }
        if self.options.xattrs {
            // Without it the kernel would ask for `security.capability` before each write, passed-through ones
            // included; with it, once after it was told attributes. What it then leaves to this side: `set_id.rs` in
            // weft-client-core.
            wanted |= InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        }
        let mode = self.options.mode(offered, may_pass_through().then_some(self.identity));
        if mode.passthrough.is_some() {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
            let _ = config.set_max_stack_depth(STACK_DEPTH);
        }
        let agreed = wanted & offered;
        // Only what is offered is asked for, and the limits are within range: none of these can be refused.
        let _ = config.add_capabilities(agreed);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let transfer_bytes = self.options.transfer_bytes();
        let _ = config.set_max_write(transfer_bytes);
        let readahead_bytes = match config.set_max_readahead(transfer_bytes) {
            Ok(_) => transfer_bytes,
            Err(most) => config.set_max_readahead(most).map_or(0, |_| most),
        };
        let abi = config.kernel_abi();
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Negotiated {
            max_write_bytes: transfer_bytes.min(request_pages_max().saturating_mul(PAGE_BYTES)),
            max_readahead_bytes: readahead_bytes,
            threads: self.threads,
            readdirplus: agreed.contains(InitFlags::FUSE_DO_READDIRPLUS),
            passthrough: mode.passthrough.is_some(),
            direct: mode.direct,
            direct_mmap: agreed.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP),
            epoch: false,
            xattrs: self.options.xattrs,
            kernel_abi: format!("{}.{}", abi.0, abi.1),
        };
        mode
    }
}

impl MountOptions {
    fn transfer_bytes(&self) -> u32 {
        let (least, most) = TRANSFER_BYTES_RANGE;
        if self.max_transfer_bytes == 0 { TRANSFER_BYTES_DEFAULT } else { self.max_transfer_bytes.clamp(least, most) }
    }

    fn thread_count(&self) -> usize {
        let (least, most) = THREADS_RANGE;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.threads == 0 { (cores * 2).clamp(least, most) } else { self.threads.min(THREADS_MAX) }
    }

    /// The way files are treated. `machine`: this one, if the kernel may use its files.
    fn mode(&self, offered: InitFlags, machine: Option<NodeIdentity>) -> Settings {
        let passes = self.passthrough && offered.contains(InitFlags::FUSE_PASSTHROUGH);
        Settings { direct: self.direct, passthrough: machine.filter(|_| passes) }
    }
}

/// Whether this process may hand files to the kernel: CAP_SYS_ADMIN. In a user namespace the kernel may refuse
/// nevertheless; that is noticed at the first file.
fn may_pass_through() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Pages that Linux allows in one request of any FUSE file system.
fn request_pages_max() -> u32 {
    let text = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").unwrap_or_default();
    text.trim().parse().unwrap_or(PAGES_MAX_DEFAULT)
}

/// Raises the read-ahead of a mount, which the kernel offers at 128 KiB only: by its file in /sys, which root may
/// write. Answers what holds now, where that can be read.
fn raise_readahead(device: (u32, u32), bytes: u32) -> Option<u32> {
    let (major, minor) = device;
    let name = format!("{major}:{minor}");
    let directory = ["", "-fuse"].map(|suffix| format!("/sys/class/bdi/{name}{suffix}"));
    let file =
        directory.iter().map(|path| format!("{path}/read_ahead_kb")).find(|path| fs::exists(path).unwrap_or(false))?;
    if let Err(error) = fs::write(&file, (bytes / 1024).to_string()) {
        tracing::debug!("read-ahead stays as it is: {file}: {error}");
    }
    let kibibytes: u32 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// A mounted file system that waits to be served.
pub struct Mounted {
    /// Before the attachment: a mount that is given up is taken away first, while the connection still lives.
    attachment: Attachment,
    /// In which requests are looked for.
    polled: Option<Arc<OwnedFd>>,
    /// For the guard, until it is started.
    connection: Option<OwnedFd>,
    guard: Option<Guard>,
    session: Option<Session<MountedFilesystem>>,
    front: Arc<Front>,
    workers: Arc<Workers>,
    turns: Arc<Turns>,
    negotiated: Negotiated,
}

impl Mounted {
    /// Mounts the file system at a directory and agrees with the kernel. Nothing is answered yet: a program that looks
    /// below the mount point waits for [`Mounted::serve`]. `name` is shown in the list of mounts.
    ///
    /// To be called before the first operation of the client: it is told of recalls from here on.
    pub fn attach(client: Client, name: &str, mount_point: &Path, options: &MountOptions) -> io::Result<Mounted> {
        let threads = options.thread_count();
        let (front, workers) = (Arc::new(Front::new(client, options.spill)), Arc::new(Workers::new(threads)));
        front.client.set_invalidator(Arc::new(Recalls(front.mount.caches.clone())));
        let result = Arc::new(Mutex::new(Negotiated::default()));
        let identity = front.client.identity();
        let agreement = Agreement { options: options.clone(), threads, identity, result: result.clone() };
        let turns = Turns::new(threads);
        let filesystem =
            MountedFilesystem { front: front.clone(), workers: workers.clone(), turns: turns.clone(), agreement };
        let mut config = Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let (connection, attachment) = attach(mount_point, name, options)?;
        let clone = || connection.try_clone();
        let clones = clone().and_then(|device| Ok((device, clone()?, clone()?)));
        // Who may use the mount is checked by the kernel (`allow_other`); a second check here would refuse root's own
        // write-back.
        let session = Session::from_fd(filesystem, connection, SessionACL::All, config);
        let (session, (device, polled, connection)) = match session.and_then(|session| Ok((session, clones?))) {
            Ok(all) => all,
            Err(error) => {
                // The connection is closed already, but the mount was made a moment ago: its number is still its own.
                attachment.detach();
                return Err(error);
            }
        };
        let epoch = block_on(front.mount.caches.connect(Arc::new(Device::new(device)), !options.no_epoch));
        let mut negotiated = result.lock().unwrap_or_else(PoisonError::into_inner).clone();
        negotiated.epoch = epoch;
        if let Some(bytes) = raise_readahead(attachment.device, options.transfer_bytes()) {
            negotiated.max_readahead_bytes = bytes;
        }
        tracing::debug!(mount_point = %attachment.mount_point.display(), ?negotiated, "mounted");
        let polled = Arc::new(polled);
        turns.begin(&polled);
        let (polled, connection, session) = (Some(polled), Some(connection), Some(session));
        Ok(Mounted { attachment, polled, connection, guard: None, session, front, workers, turns, negotiated })
    }

    /// Starts the guard, a process that waits for [`Watched::has_ended`] and then calls [`Watched::abort`]. Called
    /// once.
    pub fn start_guard(&mut self, command: impl FnOnce(&Watched) -> Command + Send + 'static) -> io::Result<()> {
        let connection = self.connection.take().expect("a mount has one guard, started before it is served");
        let (mount_point, device) = (self.attachment.mount_point.clone(), self.attachment.device);
        self.guard = Some(Guard::start(mount_point, device, connection, command)?);
        Ok(())
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Where it is mounted: absolute, without symbolic links.
    pub fn mount_point(&self) -> &Path {
        &self.attachment.mount_point
    }

    /// Serves until it is unmounted. Then all files are closed, which reports what was written; the client stays open.
    pub fn serve(mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        self.connection = None;
        let served = session.run();
        // It has a descriptor of the connection.
        self.guard = None;
        if served.is_err() {
            // Not unmounted by anybody: programs would wait for answers that nobody gives.
            self.attachment.detach();
        }
        self.turns.close();
        self.polled = None;
        // From here on nothing of this process keeps the connection.
        self.front.client.machine().give_up_locks();
        self.front.mount.caches.disconnect();
        if !self.workers.wait_until_done(Instant::now() + END_WAIT) {
            tracing::warn!("some requests are still waiting for a server; the mount ends without them");
        }
        block_on(self.front.mount.release_all());
        tracing::info!(mount_point = %self.attachment.mount_point.display(), "unmounted");
        served
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Never served.
        if self.session.is_some() {
            self.turns.close();
            self.attachment.detach();
            self.front.mount.caches.disconnect();
        }
    }
}

/// Mounts a file system and serves it until it is unmounted. `ready` is called once, when programs can use it.
pub fn mount(
    client: Client,
    name: &str,
    mount_point: &Path,
    options: &MountOptions,
    ready: impl FnOnce(&mut Mounted),
) -> io::Result<()> {
    let mut mounted = Mounted::attach(client, name, mount_point, options)?;
    ready(&mut mounted);
    mounted.serve()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_passed_through_where_kernel_and_rights_allow_it() {
        let check = |direct, passthrough, offered: InitFlags, expected: bool| {
            let options = MountOptions { direct, passthrough, ..MountOptions::default() };
            let mode = options.mode(offered, Some(NodeIdentity(1)));
            assert_eq!((mode.direct, mode.passthrough.is_some()), (direct, expected), "{options:?}");
            assert_eq!(options.mode(offered, None).passthrough, None, "not without the right");
        };
        for direct in [false, true] {
            check(direct, false, InitFlags::FUSE_PASSTHROUGH, false);
            check(direct, true, InitFlags::FUSE_PASSTHROUGH, true);
            check(direct, true, InitFlags::empty(), false);
        }
    }

    #[test]
    fn sizes_and_threads_have_limits() {
        let transfer =
            |max_transfer_bytes| MountOptions { max_transfer_bytes, ..MountOptions::default() }.transfer_bytes();
        assert_eq!([0, 1, 65536, u32::MAX].map(transfer), [1 << 20, 4096, 65536, 16 << 20]);
        let threads = |threads| MountOptions { threads, ..MountOptions::default() }.thread_count();
        assert!((4..=16).contains(&threads(0)));
        assert_eq!([1, 7, 10_000].map(threads), [1, 7, 128]);
    }

    #[test]
    fn what_was_agreed_can_be_written_down() {
        let negotiated = Negotiated { kernel_abi: "7.44".into(), threads: 4, ..Negotiated::default() };
        let text = serde_json::to_string(&negotiated).unwrap();
        assert_eq!(serde_json::from_str::<Negotiated>(&text).unwrap(), negotiated);
    }
}
