//! Finding and loading libucp.

use crate::ffi::{Functions, Status};
use crate::{Error, Result};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::os::raw::c_uint;
use std::sync::OnceLock;

/// A version of UCX.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub release: u32,
}

/// The oldest that has all we use: memory handles given with a transfer.
pub(crate) const OLDEST: Version = Version { major: 1, minor: 13, release: 0 };
/// What the dynamic loader looks for, unless `WEFT_UCX_LIBRARY` names another.
const NAME: &str = "libucp.so.0";
/// The part of UCX that has its settings and messages.
const SERVICES_NAME: &str = "libucs.so.0";

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

/// libucp in this process.
pub struct Library {
    pub(crate) functions: Functions,
    version: Version,
    process: u32,
    status_string: Option<unsafe extern "C" fn(Status) -> *const c_char>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Library {
    /// The library, loaded by the first call and never unloaded: it has threads and hooks of its own.
    pub fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
        let library = LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)?;
        library.check_process()?;
        Ok(library)
    }

    fn load() -> Result<Self> {
        let name = std::env::var_os("WEFT_UCX_LIBRARY").unwrap_or_else(|| NAME.into());
        let absent = |error: libloading::Error| Error::Absent(error.to_string());
        let is_ours_alone = !is_loaded(NAME);
        // SAFETY: the library's initialisers run. They are UCX's, made to be run when it is loaded into any program.
        let library = unsafe { libloading::Library::new(name) }.map_err(absent)?;
        let functions = Functions::find(&library)?;
        let (mut major, mut minor, mut release): (c_uint, c_uint, c_uint) = (0, 0, 0);
        // SAFETY: three places for numbers, alive until the call returns.
        unsafe { (functions.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        let version = Version { major, minor, release };
        if version < OLDEST {
            return Err(Error::TooOld(version));
        }
        // It stays in the process until that ends, so functions found in it can be called as long.
        std::mem::forget(library);
        let status_string = services(is_ours_alone);
        Ok(Self { functions, version, process: std::process::id(), status_string })
    }

    /// Which version it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What the other side has to have too: major and minor number, as bytes of a message.
    pub fn wire_version(&self) -> [u8; 4] {
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
        let ([a, b], [c, d]) = (short(self.version.major), short(self.version.minor));
        [a, b, c, d]
    }

    /// Fails in a child of the process that loaded the library.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether what the library made may be released here: not in a forked child.
    pub(crate) fn may_release(&self) -> bool {
        self.check_process().is_ok()
    }

    /// A status as a result.
    pub(crate) fn result(&self, call: &'static str, status: Status) -> Result<()> {
        if status == crate::ffi::UCS_OK { Ok(()) } else { Err(self.failed(call, status)) }
    }

    pub(crate) fn failed(&self, call: &'static str, status: Status) -> Error {
        let text = self.status_string.map(|function| {
            // SAFETY: the function returns a constant text for every number.
            unsafe { CStr::from_ptr(function(status)) }.to_string_lossy().into_owned()
        });
        Error::Failed { call, reason: text.unwrap_or_else(|| format!("status {status}")) }
    }
}

/// Whether a library of this name is in the process already.
fn is_loaded(name: &str) -> bool {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
    // SAFETY: nothing is loaded with this flag; where the library is there, its count goes up and down again.
    unsafe { libloading::os::unix::Library::open(Some(name), flags) }.is_ok()
}

/// Finds UCX's texts of errors. Where nobody else in this process uses UCX, it shall not write to the program's output
/// (unless `WEFT_UCX_LOG_LEVEL` says so) nor take its signals.
fn services(is_ours_alone: bool) -> Option<unsafe extern "C" fn(Status) -> *const c_char> {
    type SetOption = unsafe extern "C" fn(*const c_char, *const c_char) -> Status;
    // SAFETY: libucp depends on this library, so it is loaded already.
    let services = unsafe { libloading::Library::new(SERVICES_NAME) }.ok()?;
    if is_ours_alone {
        let said = std::env::var("WEFT_UCX_LOG_LEVEL").ok().and_then(|text| CString::new(text).ok());
        let level = said.unwrap_or_else(|| c"fatal".to_owned());
        // SAFETY: of libucs, these functions have had these types since 1.6; they take texts that live for the call.
        unsafe {
            if let Ok(set) = services.get::<SetOption>(b"ucs_global_opts_set_value\0") {
                set(c"LOG_LEVEL".as_ptr(), level.as_ptr());
            }
            if let Ok(leave_signals) = services.get::<unsafe extern "C" fn()>(b"ucs_debug_disable_signals\0") {
                leave_signals();
            }
        }
    }
    // SAFETY: as above; the function belongs to a library that stays.
    let found = unsafe { services.get(b"ucs_status_string\0") }.ok().map(|symbol| *symbol);
    std::mem::forget(services);
    found
}
