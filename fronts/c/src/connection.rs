//! Connecting to file systems.

use crate::border::{Explain, Failure, Outcome, status};
use crate::forks::{self, Process};
use crate::handles::{Handle, Kind, Table};
use crate::raw::{self, Extensible};
use crate::signals;
use std::ffi::{OsStr, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError, Weak};
use std::time::Duration;
use weft_client::{Client, ClientOptions, FindError, Instance, Way};
use weft_protocol::limits::NAME_BYTES_MAX;
use weft_protocol::{Credentials, Error};

/// Blocks of `weft_statvfs`, bytes.
const BLOCK_BYTES: u64 = 4096;
/// Permissions that nobody gets where it is not known what the process takes from others.
const UMASK_DEFAULT: u16 = 0o022;

/// A file system that is connected.
pub struct FileSystem {
    pub client: Client,
    /// As whom the process works.
    pub who: Credentials,
    /// Permissions that what is made here does not get.
    pub umask: u16,
    /// Tells the files of several file systems apart: `stx_dev_minor`.
    pub number: u32,
    made_in: Process,
}

impl FileSystem {
    /// Permissions of what is made.
    pub fn permissions(&self, mode: libc::mode_t) -> u16 {
        let mode = u16::try_from(mode & 0o7777).expect("12 bits");
        mode & !self.umask
    }
}

impl Kind for FileSystem {
    const NUMBER: usize = 1;
    const NAME: &str = "weft_t";

    fn table() -> &'static Table<Self> {
        static TABLE: LazyLock<Table<FileSystem>> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        self.made_in
    }
}

/// A handle of one.
pub type FsHandle = Handle<FileSystem>;

/// `struct weft_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    key_file: *const c_char,
    transport: *const c_char,
    soft_ms: u32,
    hard: u32,
    write_buffer: u64,
}

// SAFETY: integers and pointers, which are looked at only as `weft.h` says; the size is the first.
unsafe impl Extensible for Options {
    const FIRST_BYTES: usize = size_of::<Options>();
    const NAME: &str = "weft_options";
}

/// What connects, apart from the name.
struct Settings<'a> {
    key_file: Option<&'a [u8]>,
    client: ClientOptions,
}

impl<'a> Settings<'a> {
    /// # Safety
    /// `options` is NULL, or as `weft.h` says.
    unsafe fn of(options: *const Options) -> Outcome<Settings<'a>> {
        let mut client = ClientOptions::from_environment().map_err(Failure::invalid)?;
        if options.is_null() {
            return Ok(Settings { key_file: None, client });
        }
        // SAFETY: as above.
        let options = unsafe { raw::sized(options, "options") }?;
        // SAFETY: as above.
        let (key_file, transport) =
            unsafe { (raw::optional_text(options.key_file), raw::optional_text(options.transport)) };
        if let Some(text) = transport {
            let text = String::from_utf8_lossy(text);
            let refusal = || Failure::invalid(format!("transport is '{text}', not auto, sockets, tcp or ucx"));
            client.way = Way::of_transport(&text).ok_or_else(refusal)?;
        }
        match (options.hard != 0, options.soft_ms) {
            (true, 0) => client.soft = None,
            (true, _) => return Err(Failure::invalid("soft_ms and hard cannot both be set")),
            (false, 0) => {}
            (false, time) => client.soft = Some(Duration::from_millis(time.into())),
        }
        client.buffer_bytes = usize::try_from(options.write_buffer)
            .map_err(|_| Failure::invalid("write_buffer is more than memory has"))?;
        Ok(Settings { key_file, client })
    }
}

/// The next file system's number.
static NUMBERS: AtomicU32 = AtomicU32::new(1);
/// File systems that are connected, for the end of the process.
static CONNECTED: Mutex<Vec<(Process, Weak<FileSystem>)>> = Mutex::new(Vec::new());

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_connect(name: *const c_char, options: *const Options, fs: Option<&mut FsHandle>) -> c_int {
    status(|| {
        let fs = raw::required(fs, "fs")?;
        *fs = FsHandle::NONE;
        // SAFETY: both are as `weft.h` says.
        let (name, settings) = unsafe { (raw::optional_text(name), Settings::of(options)?) };
        let name = name.map(|name| std::str::from_utf8(name).map_err(|_| Failure::invalid("the name is not text")));
        *fs = FsHandle::new(connect(name.transpose()?, &settings)?)?;
        Ok(())
    })
}

fn connect(name: Option<&str>, settings: &Settings<'_>) -> Outcome<Arc<FileSystem>> {
    let given = settings.key_file.map(|path| Path::new(OsStr::from_bytes(path)).to_owned());
    let given = given.or_else(weft_client::find::key_of_environment);
    let instance = Instance::find_for_user(name, given.as_deref()).map_err(|error| not_found(&error))?;
    let name = &instance.map.name;
    if instance.user_key.is_none() && !instance.is_alive() {
        let text = format!("connect to \"{name}\": it does not run (any more): `weft status` shows what does");
        return Err(Failure::new(libc::ECONNREFUSED, text));
    }
    forks::watch();
    let client = signals::blocked(|| Client::connect(&instance, &settings.client))
        .explain(|| format!("connect to \"{name}\""))?;
    client.require_ucx().map_err(|reason| {
        Failure::new(libc::EIO, format!("connect to \"{name}\": file data cannot go by UCX: {reason}"))
    })?;
    let who = client.credentials();
    let mut connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
    connected.retain(|(_, fs)| fs.strong_count() > 0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let fs = Arc::new(FileSystem { client, who, umask: umask(), number, made_in: forks::this_process() });
    connected.push((fs.made_in, Arc::downgrade(&fs)));
    drop(connected);
    disconnect_at_exit();
    Ok(fs)
}

fn not_found(error: &FindError) -> Failure {
    let errno = match error {
        FindError::NotFound(_) => libc::ENOENT,
        FindError::Several(_) => libc::EINVAL,
        FindError::Key { error, .. } | FindError::Runtime(error) => match error.kind() {
            io::ErrorKind::NotFound => libc::ENOENT,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            io::ErrorKind::InvalidData => libc::EINVAL,
            _ => libc::EIO,
        },
    };
    let remedy = error.remedy().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
    Failure::new(errno, format!("connect: {error}{remedy}"))
}

/// The process's umask, which can only be read by setting it, or here.
fn umask() -> u16 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(UMASK_DEFAULT)
}

/// Has the end of the process disconnect, so that what was written survives it as in any other file system.
fn disconnect_at_exit() {
    static REGISTERED: Once = Once::new();
    extern "C" fn at_exit() {
        let connected = std::mem::take(&mut *CONNECTED.lock().unwrap_or_else(PoisonError::into_inner));
        for (made_in, fs) in connected {
            if let Some(fs) = fs.upgrade().filter(|_| made_in == forks::this_process()) {
                // Nobody is left to be told.
                let _ = fs.client.close();
            }
        }
    }
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded: its threads run in it.
        let error = unsafe { libc::atexit(at_exit) };
        assert!(error == 0, "atexit takes no more handlers");
    });
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_disconnect(fs: FsHandle) -> c_int {
    status(|| fs.take()?.client.close().explain(|| "disconnect"))
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_statvfs(fs: FsHandle, space: Option<&mut libc::statvfs>) -> c_int {
    status(|| {
        let (fs, space) = (fs.get()?, raw::required(space, "space")?);
        let told = fs.client.space().explain(|| "statvfs")?;
        if told.nodes.iter().all(|(_, answer)| answer.is_err()) {
            return Err(Error::Unreachable).explain(|| "statvfs");
        }
        // SAFETY: integers, of which any are values.
        *space = unsafe { std::mem::zeroed() };
        (space.f_bsize, space.f_frsize) = (BLOCK_BYTES, BLOCK_BYTES);
        space.f_blocks = told.total / BLOCK_BYTES;
        (space.f_bfree, space.f_bavail) = (told.free / BLOCK_BYTES, told.free / BLOCK_BYTES);
        space.f_files = told.files;
        space.f_namemax = NAME_BYTES_MAX as u64;
        Ok(())
    })
}
