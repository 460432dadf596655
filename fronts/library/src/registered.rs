//! Memory that is registered for RDMA.

use crate::failure::{Failure, Outcome};
use crate::file_system::FileSystem;
use std::sync::Arc;
use weft_client::{LastingMemory, RegisteredMemory};

/// Memory that is registered as long as this is there.
pub struct Registered {
    pub fs: Arc<FileSystem>,
    _memory: RegisteredMemory,
}

impl Registered {
    /// Registers memory for all reads and writes of a file system.
    pub fn new(fs: &Arc<FileSystem>, memory: Box<dyn LastingMemory>) -> Outcome<Self> {
        let bytes = memory.bytes();
        let refusal = |error| {
            let text = format!("register {bytes} bytes for RDMA: {error} (`ulimit -l` tells how many may be locked)");
            Failure::new(libc::ENOMEM, text)
        };
        let memory = fs.client.register_memory(memory).map_err(refusal)?;
        Ok(Self { fs: Arc::clone(fs), _memory: memory })
    }
}
