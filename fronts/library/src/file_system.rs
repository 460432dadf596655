//! Connecting to file systems.

use crate::failure::{Explain, Failure, Outcome};
use crate::forks::{self, Process};
use crate::mode::permission_bits;
use crate::signals;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;
use weft_client::{Client, ClientOptions, FindError, Instance, StatFs, Way};
use weft_protocol::hash::spread;
use weft_protocol::{Credentials, Error};

/// Permissions that nobody gets where it is not known what the process takes from others.
const UMASK_DEFAULT: u16 = 0o022;

/// A file system that is connected.
pub struct FileSystem {
    pub client: Client,
    /// As whom the process works.
    pub who: Credentials,
    /// Permissions that what is made here does not get.
    umask: u16,
    /// Tells the files of several file systems apart, as a device does: the same for all that connect to one.
    pub number: u32,
    made_in: Process,
}

/// How to connect, apart from the name.
pub struct Settings {
    /// A user's key; `None`: what the environment names, or what is kept for the user.
    pub key_file: Option<PathBuf>,
    pub client: ClientOptions,
}

impl Settings {
    /// What the environment says.
    pub fn new() -> Outcome<Self> {
        Ok(Self { key_file: None, client: ClientOptions::from_environment().map_err(Failure::invalid)? })
    }

    /// By what file data goes.
    pub fn set_transport(&mut self, text: &str) -> Outcome {
        let refusal = || Failure::invalid(format!("transport is '{text}', not auto, sockets, tcp or ucx"));
        self.client.way = Way::of_transport(text).ok_or_else(refusal)?;
        Ok(())
    }

    /// How long a call waits for a node that does not answer.
    pub fn set_waits(&mut self, soft: Option<Duration>, hard: bool) -> Outcome {
        match (hard, soft) {
            (true, None) => self.client.soft = None,
            (true, Some(_)) => return Err(Failure::invalid("soft (soft_ms) and hard cannot both be set")),
            (false, None) => {}
            (false, soft) => self.client.soft = soft,
        }
        Ok(())
    }
}

/// File systems that are connected, for the end of the process.
static CONNECTED: Mutex<Vec<(Process, Weak<FileSystem>)>> = Mutex::new(Vec::new());

impl FileSystem {
    /// Connects as the user of this process. `None` is the only file system that there is.
    pub fn connect(name: Option<&str>, settings: Settings) -> Outcome<Arc<Self>> {
        let given = settings.key_file.or_else(weft_client::find::key_of_environment);
        let instance = Instance::find_for_user(name, given.as_deref()).map_err(|error| not_found(&error))?;
        let name = &instance.map.name;
        if instance.user_key.is_none() && !instance.is_alive() {
            let text = format!("connect to \"{name}\": it does not run (any more): `weft status` shows what does");
            return Err(Failure::new(libc::ECONNREFUSED, text));
        }
        Self::connect_to(&instance, &settings.client)
    }

    /// Connects to a file system that runs, as the user of this process.
    pub fn connect_to(instance: &Instance, options: &ClientOptions) -> Outcome<Arc<Self>> {
        let name = &instance.map.name;
        forks::watch();
        let client =
            signals::blocked(|| Client::connect(instance, options)).explain(|| format!("connect to \"{name}\""))?;
        client.require_ucx().map_err(|reason| {
            Failure::new(libc::EIO, format!("connect to \"{name}\": file data cannot go by UCX: {reason}"))
        })?;
        let who = client.credentials();
        let mut connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|(_, fs)| fs.strong_count() > 0);
        let number = number_of(name);
        let fs = Arc::new(FileSystem { client, who, umask: umask(), number, made_in: forks::this_process() });
        connected.push((fs.made_in, Arc::downgrade(&fs)));
        drop(connected);
        disconnect_at_exit();
        Ok(fs)
    }

    /// Writes back and disconnects. What is open fails from now on.
    pub fn disconnect(&self) -> Outcome {
        self.client.close().explain(|| "disconnect")
    }

    /// Permissions of what is made with this mode.
    pub fn permissions(&self, mode: libc::mode_t) -> u16 {
        permission_bits(mode) & !self.umask
    }

    /// The process that connected.
    #[inline]
    pub fn made_in(&self) -> Process {
        self.made_in
    }

    /// Space of the storage servers that answer; a failure if none does.
    pub fn statfs(&self) -> Outcome<StatFs> {
        let told = self.client.space().explain(|| "statvfs")?;
        if told.nodes.iter().all(|(_, answer)| answer.is_err()) {
            return Err(Error::Unreachable).explain(|| "statvfs");
        }
        Ok(told.statfs())
    }
}

/// From its name, which no other has that this user can connect to by name.
fn number_of(name: &str) -> u32 {
    let hash = name.bytes().fold(0, |hash: u64, byte| spread(hash ^ u64::from(byte)));
    u32::try_from(hash >> 32).expect("32 bits are left")
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
