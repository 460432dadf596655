//! Sizes by which the client machine chooses its ways. The simulation's are small, so that short files meet every
//! limit.

use weft_protocol::limits::HANDLE_BUFFER_BYTES;

/// How many closed inodes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdleLimits {
    /// Without a descriptor.
    pub inodes: usize,
    /// With a descriptor of the process's own.
    pub descriptors: usize,
}

/// See the module. All in bytes, where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Sequential writes of fewer bytes are gathered.
    pub buffer_bytes: usize,
    /// Writes of fewer bytes are gathered wherever they are.
    pub gathered_below: usize,
    /// Longest run of gathered bytes. Each run costs both ends a wake-up; those in flight and the one that is being
    /// gathered should still fit the processor's cache.
    pub run_bytes: usize,
    /// Requests up to this are small: a call costs more than copying them once more.
    pub small_bytes: usize,
    /// What small sequential requests read or write at once.
    pub block_bytes: usize,
    /// The first prefetch of a sequential reader.
    pub first_bytes: u64,
    /// The prefetch of a sequential reader when too many connections are in use to keep one for the handle.
    pub alone_bytes: usize,
    /// What is copied at a time of a file that moves.
    pub copy_bytes: usize,
    /// A reader that asks for a pattern is told of all strided extents of the file if there are no more than this.
    pub few_strided: u32,
    /// How many closed inodes are kept.
    pub idle: IdleLimits,
}

impl Tuning {
    /// The native client's, measured (docs/performance.md).
    pub const NATIVE: Self = Self {
        buffer_bytes: HANDLE_BUFFER_BYTES,
        gathered_below: HANDLE_BUFFER_BYTES,
        run_bytes: 384 << 10,
        small_bytes: 16 << 10,
        block_bytes: 128 << 10,
        first_bytes: 256 << 10,
        alone_bytes: 1 << 20,
        copy_bytes: 4 << 20,
        few_strided: 4,
        idle: IdleLimits { inodes: 16_384, descriptors: 4096 },
    };
}
