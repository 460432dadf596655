//! The context: UCX's devices and settings, once for each process.

use crate::ffi::{
    ContextHandle, Functions, UCP_FEATURE_AM, UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP, UCP_PARAM_FIELD_FEATURES,
    UCP_PARAM_FIELD_MT_WORKERS_SHARED, ucp_params,
};
use crate::{Library, Result, adapters, transports};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Variables with this in front of UCX's own names are ours: `WEFT_UCX_TLS`.
const VARIABLES: &CStr = c"WEFT";

/// What we set before the user's variables do. UCX 1.13 reads `UCX_TLS` before `WEFT_UCX_TLS`: a choice that was made
/// for another library in this process is not ours.
///
/// Memory that it makes is never of the heap (its methods `thp` and `heap`): for the address of such memory the
/// registration cache of UCX 1.13 may still have a longer piece, which somebody registered and gave back to the heap
/// since. UCX then takes that for its own memory, and at the end frees what was never allocated.
const SETTINGS: &[(&str, &str)] =
    &[("NET_DEVICES", "all"), ("SHM_DEVICES", "all"), ("ALLOC_PRIO", "md:sysv,md:posix,huge,mmap")];
/// The same where there are adapters: queues for messages that we hardly use, for whose buffers UCX would take 40 MiB
/// of locked memory, per connection (the default limit of Debian is 8 MiB); and that a link that is down is noticed: to
/// soft-RoCE the usual count of 7 means to try for ever.
const ADAPTER_SETTINGS: &[(&str, &str)] =
    &[("RC_RX_QUEUE_LEN", "128"), ("RC_RX_BUFS_GROW", "64"), ("RC_TX_BUFS_GROW", "64"), ("RC_RETRY_COUNT", "6")];
/// Variables with our prefix that are not UCX's, or that [`transports`] reads.
const NOT_SETTINGS: &[&str] = &["LIBRARY", "LOG_LEVEL", TRANSPORTS];
const TRANSPORTS: &str = "TLS";

#[derive(Debug)]
pub(crate) struct Context {
    pub library: &'static Library,
    pub handle: *mut ContextHandle,
}

// SAFETY: the context is made for workers of several threads (`mt_workers_shared`), and UCX locks it then.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of this process, made by the first call, and left to the end of the process.
    pub fn get() -> Result<&'static Self> {
        static CONTEXT: OnceLock<Result<Context>> = OnceLock::new();
        let library = Library::get()?;
        CONTEXT.get_or_init(|| Self::new(library)).as_ref().map_err(Clone::clone)
    }

    fn new(library: &'static Library) -> Result<Self> {
        adapters::check_locked_memory()?;
        let functions = &library.functions;
        let mut config = null_mut();
        // SAFETY: a constant text, and a place for the pointer.
        let status = unsafe { (functions.ucp_config_read)(VARIABLES.as_ptr(), null(), &raw mut config) };
        library.result("ucp_config_read", status)?;
        for (name, value) in settings() {
            // SAFETY: the configuration just read, and two texts that live for the call. UCX itself reads our
            // variables, but not those of its transports; one that it does not know it ignores.
            unsafe { (functions.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
        }
        let params = ucp_params {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            features: UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP | UCP_FEATURE_AM,
            request_size: 0,
            request_init: null(),
            request_cleanup: null(),
            tag_sender_mask: 0,
            mt_workers_shared: 1,
            estimated_num_eps: 0,
            estimated_num_ppn: 0,
            name: null(),
        };
        let crate::Version { major, minor, .. } = crate::library::OLDEST;
        let mut handle = null_mut();
        // SAFETY: parameters of the version named, whose mask says which count; `config` is the one just read.
        let status = unsafe { (functions.ucp_init_version)(major, minor, &raw const params, config, &raw mut handle) };
        // SAFETY: it was read above and is not used any more.
        unsafe { (functions.ucp_config_release)(config) };
        library.result("ucp_init", status)?;
        Ok(Self { library, handle })
    }

    pub fn functions(&self) -> &'static Functions {
        &self.library.functions
    }
}

/// Names and values, the last of a name counts.
fn settings() -> Vec<(CString, CString)> {
    let ours = SETTINGS.iter().chain(if adapters::adapters().is_empty() { &[] } else { ADAPTER_SETTINGS });
    let ours = ours.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let prefix = format!("{}_UCX_", VARIABLES.to_string_lossy());
    let said = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.strip_prefix(&prefix)?.to_owned();
        Some((name, value.into_string().ok()?))
    });
    let said = said.filter(|(name, _)| !NOT_SETTINGS.contains(&name.as_str()));
    let transports = [(TRANSPORTS.to_owned(), transports::chosen())];
    ours.chain(said)
        .chain(transports)
        .filter_map(|(name, value)| Some((CString::new(name).ok()?, CString::new(value).ok()?)))
        .collect()
}
