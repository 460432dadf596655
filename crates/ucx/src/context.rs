//! The context: UCX's devices and settings, once for each process.

use crate::ffi::{
    ContextHandle, Functions, UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP, UCP_PARAM_FIELD_FEATURES,
    UCP_PARAM_FIELD_MT_WORKERS_SHARED, ucp_params,
};
use crate::{Library, Result};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Variables with this in front of UCX's own names are ours: `WEFT_UCX_TLS`.
const VARIABLES: &std::ffi::CStr = c"WEFT";

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
        let functions = &library.functions;
        let mut config = null_mut();
        // SAFETY: a constant text, and a place for the pointer.
        let status = unsafe { (functions.ucp_config_read)(VARIABLES.as_ptr(), null(), &raw mut config) };
        library.result("ucp_config_read", status)?;
        let params = ucp_params {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            features: UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
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
