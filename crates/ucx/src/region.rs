//! Memory that UCX knows.

use crate::Result;
use crate::context::Context;
use crate::ffi::{
    MemoryHandle, UCP_MEM_ATTR_FIELD_ADDRESS, UCP_MEM_ATTR_FIELD_LENGTH, UCP_MEM_MAP_ALLOCATE,
    UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_FLAGS, UCP_MEM_MAP_PARAM_FIELD_LENGTH, ucp_mem_attr,
    ucp_mem_map_params,
};
use std::ptr::null_mut;

/// Registered memory. One that [`Region::allocate`] made is its own memory; the other side may read and write it at any
/// time once it has its key, so bytes are copied in and out; [`Region::hand_out`] is the one exception.
#[derive(Debug)]
pub struct Region {
    context: &'static Context,
    handle: *mut MemoryHandle,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: memory and its registration belong to the process, not to a thread, and the context is made for several.
unsafe impl Send for Region {}

impl Region {
    /// Makes memory of so many bytes and registers it. UCX chooses its kind: where it can, one that a process of the
    /// same machine can map, so that bytes get there by a single copy.
    pub fn allocate(bytes: usize) -> Result<Self> {
        let context = Context::get()?;
        let params = ucp_mem_map_params {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
            address: null_mut(),
            length: bytes,
            flags: UCP_MEM_MAP_ALLOCATE,
            prot: 0,
            memory_type: 0,
        };
        let handle = Self::map(context, &params)?;
        let mut attributes = ucp_mem_attr {
            field_mask: UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH,
            address: null_mut(),
            length: 0,
            mem_type: 0,
        };
        // SAFETY: a handle that was just made, and a place for what the mask asks for.
        let status = unsafe { (context.functions().ucp_mem_query)(handle, &raw mut attributes) };
        let region = Self { context, handle, address: attributes.address.cast(), bytes };
        context.library.result("ucp_mem_query", status)?;
        Ok(region)
    }

    /// Registers memory of somebody else.
    ///
    /// # Safety
    ///
    /// The memory is mapped, and nobody uses it in a way that its being read or written by the other side would break,
    /// until the region is dropped and the other side's access has ended.
    pub(crate) unsafe fn of_memory(address: *mut u8, bytes: usize) -> Result<Self> {
        let context = Context::get()?;
        let params = ucp_mem_map_params {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
            address: address.cast(),
            length: bytes,
            flags: 0,
            prot: 0,
            memory_type: 0,
        };
        let handle = Self::map(context, &params)?;
        Ok(Self { context, handle, address, bytes })
    }

    fn map(context: &'static Context, params: &ucp_mem_map_params) -> Result<*mut MemoryHandle> {
        context.library.check_process()?;
        let mut handle = null_mut();
        // SAFETY: the context lives as long as the process; memory that is named is mapped, as the callers say, and
        // UCX only looks at it, or makes memory of its own.
        let status = unsafe { (context.functions().ucp_mem_map)(context.handle, params, &raw mut handle) };
        context.library.result("ucp_mem_map", status)?;
        Ok(handle)
    }

    /// What the other side needs to reach the memory.
    pub fn packed_key(&self) -> Result<Vec<u8>> {
        let functions = self.context.functions();
        self.context.library.check_process()?;
        let (mut buffer, mut bytes) = (null_mut(), 0);
        // SAFETY: a handle of this context that is still registered; places for pointer and length.
        let status =
            unsafe { (functions.ucp_rkey_pack)(self.context.handle, self.handle, &raw mut buffer, &raw mut bytes) };
        self.context.library.result("ucp_rkey_pack", status)?;
        // SAFETY: the call filled `bytes` bytes at `buffer`.
        let packed = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: from the call above, not used any more.
        unsafe { (functions.ucp_rkey_buffer_release)(buffer) };
        Ok(packed)
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes to `at`. `false`: they do not fit, and nothing was done.
    #[must_use]
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> bool {
        let fits = at.checked_add(from.len()).is_some_and(|end| end <= self.bytes);
        if fits {
            // SAFETY: the range lies in the region, which is mapped as long as it is there; `from` is other memory,
            // since nobody has a reference to this one now: whom bytes are handed out to has them while `self` is lent.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address.add(at), from.len()) };
        }
        fits
    }

    /// Copies bytes from `at`. `false`: there are not so many, and nothing was done.
    #[must_use]
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> bool {
        let fits = at.checked_add(into.len()).is_some_and(|end| end <= self.bytes);
        if fits {
            // SAFETY: as in `copy_in`. Bytes that the other side changes meanwhile are read as they happen to be: they
            // are only copied, never looked at.
            unsafe { std::ptr::copy_nonoverlapping(self.address.add(at), into.as_mut_ptr(), into.len()) };
        }
        fits
    }

    /// Hands bytes to `give` where they lie, from `at` on: for bytes that have come, and to a call that hands them on
    /// (`writev`). `false`: there are not so many, and nothing was done.
    #[must_use]
    pub fn hand_out(&self, at: usize, bytes: usize, give: impl FnOnce(&[u8])) -> bool {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if fits {
            // SAFETY: the range lies in the region, which is mapped and initialized as long as it is there, and nobody
            // here writes to it meanwhile (`copy_in` wants the region to itself). The other side writes only for
            // requests that it has not answered: whoever hands bytes out has its answer. One that broke this rule
            // could as well end the process (UCX believes it); all bytes are valid, whatever it writes.
            give(unsafe { std::slice::from_raw_parts(self.address.add(at), bytes) });
        }
        fits
    }

    pub(crate) fn handle(&self) -> *mut MemoryHandle {
        self.handle
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.address
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.context.library.may_release() {
            // SAFETY: registered by `map`, released once. Whoever gave transfers the region keeps it until they ended.
            unsafe { (self.context.functions().ucp_mem_unmap)(self.context.handle, self.handle) };
        }
    }
}
