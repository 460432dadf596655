//! Memory for RDMA, and what went which way.

use crate::border::status;
use crate::connection::FsHandle;
use crate::handles::{Handle, Kind};
use crate::raw::{self, Extensible};
use crate::table::Table;
use std::ffi::{c_int, c_void};
use weft_library::{ClientCounters, Failure, LastingMemory, Outcome, Process, Registered};

impl Kind for Registered {
    const NUMBER: usize = 4;
    const NAME: &str = "weft_memory_t";

    fn table() -> &'static Table<Self> {
        static TABLE: Table<Registered> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        self.fs.made_in()
    }
}

/// A handle of one.
type MemoryHandle = Handle<Registered>;

/// Memory of the caller.
struct Lasting {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: that the memory stays until it is unregistered, and is of no other use during transfers, is the caller's
// promise, in `weft.h`; nothing here refers to it.
unsafe impl LastingMemory for Lasting {
    fn address(&self) -> *mut u8 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: an address and a length, which are only told.
unsafe impl Send for Lasting {}
// SAFETY: as above.
unsafe impl Sync for Lasting {}

impl Lasting {
    fn new(memory: *mut c_void, length: usize) -> Outcome<Self> {
        if memory.is_null() {
            return Err(Failure::new(libc::EFAULT, "memory is NULL"));
        }
        if length == 0 || isize::try_from(length).is_err() {
            return Err(Failure::invalid(format!("memory of {length} bytes")));
        }
        Ok(Self { address: memory.cast(), bytes: length })
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_memory_register(
    fs: FsHandle,
    memory: *mut c_void,
    length: usize,
    registered: Option<&mut MemoryHandle>,
) -> c_int {
    status(|| {
        let (fs, registered) = (fs.get()?, raw::required(registered, "registered")?);
        *registered = MemoryHandle::NONE;
        let memory = Registered::new(&fs, Box::new(Lasting::new(memory, length)?))?;
        *registered = MemoryHandle::new(memory.into())?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_memory_unregister(registered: MemoryHandle) -> c_int {
    status(|| registered.take().map(drop))
}

/// `struct weft_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Counters {
    size: usize,
    metadata_calls: u64,
    data_requests: u64,
    descriptor_read: u64,
    descriptor_written: u64,
    unix_read: u64,
    unix_written: u64,
    tcp_read: u64,
    tcp_written: u64,
    rdma_read: u64,
    rdma_written: u64,
    rdma_copied: u64,
    rdma_registrations: u64,
}

// SAFETY: integers; the size is the first.
unsafe impl Extensible for Counters {
    const FIRST_BYTES: usize = size_of::<Counters>();
    const NAME: &str = "weft_counters";
}

impl From<ClientCounters> for Counters {
    fn from(told: ClientCounters) -> Self {
        Self {
            size: size_of::<Self>(),
            metadata_calls: told.shard_calls,
            data_requests: told.data_requests,
            descriptor_read: told.descriptor_read_bytes,
            descriptor_written: told.descriptor_write_bytes,
            unix_read: told.unix_read_bytes,
            unix_written: told.unix_write_bytes,
            tcp_read: told.tcp_read_bytes,
            tcp_written: told.tcp_write_bytes,
            rdma_read: told.rdma_read_bytes,
            rdma_written: told.rdma_write_bytes,
            rdma_copied: told.rdma_copied_bytes,
            rdma_registrations: told.rdma_registrations,
        }
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_get_counters(fs: FsHandle, counters: *mut Counters) -> c_int {
    status(|| {
        let told = fs.get()?.client.counters().into();
        // SAFETY: NULL, or a structure as `weft.h` says.
        unsafe { raw::store_sized(&told, counters, "counters") }
    })
}
