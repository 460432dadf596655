//! What we use of UCP's C interface, as its header of version 1.13 declares it. Later versions add behind the end of
//! these structures, and say by `field_mask` which members count.

use crate::Error;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

pub type Status = i8;
/// Null: done. A small negative number: a [`Status`] that says why not. Else a request on its way.
pub type StatusPointer = *mut c_void;

pub const UCS_OK: Status = 0;
pub const UCS_INPROGRESS: Status = 1;
pub const UCS_ERR_BUSY: Status = -15;
/// Statuses lie above this one.
const UCS_ERR_LAST: isize = -100;

pub const UCP_PARAM_FIELD_FEATURES: u64 = 1 << 0;
pub const UCP_PARAM_FIELD_MT_WORKERS_SHARED: u64 = 1 << 5;
pub const UCP_FEATURE_RMA: u64 = 1 << 1;
pub const UCP_FEATURE_WAKEUP: u64 = 1 << 4;
pub const UCP_FEATURE_AM: u64 = 1 << 6;

pub const UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1 << 0;
pub const UCS_THREAD_MODE_SERIALIZED: c_uint = 1;

pub const UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1 << 0;
pub const UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
pub const UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2;
pub const UCP_ERR_HANDLING_MODE_NONE: c_uint = 0;
pub const UCP_ERR_HANDLING_MODE_PEER: c_uint = 1;

pub const UCP_MEM_MAP_PARAM_FIELD_ADDRESS: u64 = 1 << 0;
pub const UCP_MEM_MAP_PARAM_FIELD_LENGTH: u64 = 1 << 1;
pub const UCP_MEM_MAP_PARAM_FIELD_FLAGS: u64 = 1 << 2;
pub const UCP_MEM_MAP_ALLOCATE: c_uint = 1 << 1;
pub const UCP_MEM_ATTR_FIELD_ADDRESS: u64 = 1 << 0;
pub const UCP_MEM_ATTR_FIELD_LENGTH: u64 = 1 << 1;

pub const UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;
pub const UCP_OP_ATTR_FIELD_MEMH: u32 = 1 << 8;

pub const UCP_AM_HANDLER_PARAM_FIELD_ID: u64 = 1 << 0;
pub const UCP_AM_HANDLER_PARAM_FIELD_FLAGS: u64 = 1 << 1;
pub const UCP_AM_HANDLER_PARAM_FIELD_CB: u64 = 1 << 2;
pub const UCP_AM_HANDLER_PARAM_FIELD_ARG: u64 = 1 << 3;
pub const UCP_AM_FLAG_WHOLE_MSG: u32 = 1 << 0;
pub const UCP_AM_SEND_FLAG_EAGER: u32 = 1 << 1;
pub const UCP_AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17;

macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name { _opaque: [u8; 0] }
    )* };
}

opaque! { Config ContextHandle WorkerHandle EndpointHandle MemoryHandle RemoteKeyHandle }

#[repr(C)]
pub struct ucp_params {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: *const c_void,
    pub request_cleanup: *const c_void,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: *const c_char,
}

#[repr(C)]
pub struct ucp_worker_params {
    pub field_mask: u64,
    pub thread_mode: c_uint,
    pub cpu_mask: [u64; 16],
    pub events: c_uint,
    pub user_data: *mut c_void,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: *const c_char,
    pub am_alignment: usize,
    pub client_id: u64,
}

#[repr(C)]
pub struct ucp_err_handler {
    pub cb: Option<unsafe extern "C" fn(*mut c_void, *mut EndpointHandle, Status)>,
    pub arg: *mut c_void,
}

#[repr(C)]
pub struct ucs_sock_addr {
    pub addr: *const c_void,
    pub addrlen: u32,
}

#[repr(C)]
pub struct ucp_ep_params {
    pub field_mask: u64,
    pub address: *const c_void,
    pub err_mode: c_uint,
    pub err_handler: ucp_err_handler,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub sockaddr: ucs_sock_addr,
    pub conn_request: *mut c_void,
    pub name: *const c_char,
    pub local_sockaddr: ucs_sock_addr,
}

#[repr(C)]
pub struct ucp_mem_map_params {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub flags: c_uint,
    pub prot: c_uint,
    pub memory_type: c_uint,
}

#[repr(C)]
pub struct ucp_mem_attr {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub mem_type: c_uint,
}

#[repr(C)]
pub struct ucp_request_param {
    pub op_attr_mask: u32,
    pub flags: u32,
    pub request: *mut c_void,
    pub cb: *const c_void,
    pub datatype: u64,
    pub user_data: *mut c_void,
    pub reply_buffer: *mut c_void,
    pub memory_type: c_uint,
    pub recv_info: *mut c_void,
    pub memh: *mut MemoryHandle,
}

impl ucp_request_param {
    /// No parameter counts.
    pub const NONE: Self = Self {
        op_attr_mask: 0,
        flags: 0,
        request: null_mut(),
        cb: null(),
        datatype: 0,
        user_data: null_mut(),
        reply_buffer: null_mut(),
        memory_type: 0,
        recv_info: null_mut(),
        memh: null_mut(),
    };
}

#[repr(C)]
pub struct ucp_am_recv_param {
    pub recv_attr: u64,
    pub reply_ep: *mut EndpointHandle,
}

/// Argument, header and its length, data and their length, what the message is. Returns [`UCS_OK`] unless the data are
/// to stay.
pub type MessageCallback =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *const ucp_am_recv_param) -> Status;

#[repr(C)]
pub struct ucp_am_handler_param {
    pub field_mask: u64,
    pub id: c_uint,
    pub flags: u32,
    pub cb: Option<MessageCallback>,
    pub arg: *mut c_void,
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libucp that we call.
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            /// Finds them all in a loaded libucp.
            pub fn find(library: &libloading::Library) -> Result<Self, Error> {
                let missing = |error: libloading::Error| Error::Unusable(error.to_string());
                Ok(Self { $(
                    // SAFETY: the library is UCP's by its name, in which a function of this name has this type since
                    // the version that `Library` asks for; the header promises that later ones keep it.
                    $name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes()).map_err(missing)? },
                )* })
            }
        }
    };
}

functions! {
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_config_read: fn(*const c_char, *const c_char, *mut *mut Config) -> Status;
    ucp_config_release: fn(*mut Config);
    ucp_config_modify: fn(*mut Config, *const c_char, *const c_char) -> Status;
    ucp_init_version: fn(c_uint, c_uint, *const ucp_params, *const Config, *mut *mut ContextHandle) -> Status;
    ucp_worker_create: fn(*mut ContextHandle, *const ucp_worker_params, *mut *mut WorkerHandle) -> Status;
    ucp_worker_destroy: fn(*mut WorkerHandle);
    ucp_worker_get_address: fn(*mut WorkerHandle, *mut *mut c_void, *mut usize) -> Status;
    ucp_worker_release_address: fn(*mut WorkerHandle, *mut c_void);
    ucp_worker_progress: fn(*mut WorkerHandle) -> c_uint;
    ucp_worker_get_efd: fn(*mut WorkerHandle, *mut c_int) -> Status;
    ucp_worker_arm: fn(*mut WorkerHandle) -> Status;
    ucp_ep_create: fn(*mut WorkerHandle, *const ucp_ep_params, *mut *mut EndpointHandle) -> Status;
    ucp_ep_flush_nbx: fn(*mut EndpointHandle, *const ucp_request_param) -> StatusPointer;
    ucp_put_nbx: fn(
        *mut EndpointHandle, *const c_void, usize, u64, *mut RemoteKeyHandle, *const ucp_request_param
    ) -> StatusPointer;
    ucp_get_nbx: fn(
        *mut EndpointHandle, *mut c_void, usize, u64, *mut RemoteKeyHandle, *const ucp_request_param
    ) -> StatusPointer;
    ucp_worker_set_am_recv_handler: fn(*mut WorkerHandle, *const ucp_am_handler_param) -> Status;
    ucp_am_send_nbx: fn(
        *mut EndpointHandle, c_uint, *const c_void, usize, *const c_void, usize, *const ucp_request_param
    ) -> StatusPointer;
    ucp_request_check_status: fn(*mut c_void) -> Status;
    ucp_request_free: fn(*mut c_void);
    ucp_mem_map: fn(*mut ContextHandle, *const ucp_mem_map_params, *mut *mut MemoryHandle) -> Status;
    ucp_mem_unmap: fn(*mut ContextHandle, *mut MemoryHandle) -> Status;
    ucp_mem_query: fn(*mut MemoryHandle, *mut ucp_mem_attr) -> Status;
    ucp_rkey_pack: fn(*mut ContextHandle, *mut MemoryHandle, *mut *mut c_void, *mut usize) -> Status;
    ucp_rkey_buffer_release: fn(*mut c_void);
    ucp_ep_rkey_unpack: fn(*mut EndpointHandle, *const c_void, *mut *mut RemoteKeyHandle) -> Status;
    ucp_rkey_ptr: fn(*mut RemoteKeyHandle, u64, *mut *mut c_void) -> Status;
    ucp_rkey_destroy: fn(*mut RemoteKeyHandle);
}

/// What a status pointer says: done, refused with a status, or a request on its way.
pub fn outcome(pointer: StatusPointer) -> Result<Option<StatusPointer>, Status> {
    let value = pointer as isize;
    if value == 0 {
        Ok(None)
    } else if (UCS_ERR_LAST..0).contains(&value) {
        Err(Status::try_from(value).unwrap_or(Status::MIN))
    } else {
        Ok(Some(pointer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Sizes and places as a C compiler has them for the header of 1.13 on 64-bit Linux.
    #[test]
    fn the_structures_are_laid_out_as_in_c() {
        assert_eq!((size_of::<ucp_params>(), offset_of!(ucp_params, name)), (80, 72));
        assert_eq!((size_of::<ucp_worker_params>(), offset_of!(ucp_worker_params, events)), (200, 144));
        assert_eq!((size_of::<ucp_ep_params>(), offset_of!(ucp_ep_params, err_handler)), (104, 24));
        assert_eq!((size_of::<ucp_mem_map_params>(), offset_of!(ucp_mem_map_params, flags)), (40, 24));
        assert_eq!((size_of::<ucp_mem_attr>(), offset_of!(ucp_mem_attr, mem_type)), (32, 24));
        assert_eq!((size_of::<ucp_am_handler_param>(), offset_of!(ucp_am_handler_param, cb)), (32, 16));
        assert_eq!((size_of::<ucp_request_param>(), offset_of!(ucp_request_param, memh)), (72, 64));
    }

    #[test]
    fn a_status_pointer_is_a_status_or_a_request() {
        assert_eq!(outcome(std::ptr::null_mut()), Ok(None));
        assert_eq!(outcome(usize::MAX as StatusPointer), Err(-1));
        let mut request = 0u64;
        let pointer: StatusPointer = (&raw mut request).cast();
        assert_eq!(outcome(pointer), Ok(Some(pointer)));
    }
}
