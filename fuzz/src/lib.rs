//! Random bytes for every decoder, and random clients for the shard.
//!
//! A *target* is a function over bytes that panics when something is wrong, and tells whether the bytes meant anything
//! to it. The loop mutates what is known to mean something: the golden bytes of `crates/protocol/golden`, and the
//! inputs that once broke something, in `fuzz/corpus/TARGET/*.hex`. It runs on a stable compiler for a bounded time.
//!
//! Not here: coverage. The decoders are small and their inputs short; the golden bytes reach every variant.

pub mod corpus;
pub mod mutate;
pub mod program;
pub mod random;
pub mod targets;

/// A function that looks for trouble in bytes: panics when it finds it, `true` when the bytes meant something.
pub type Target = fn(&[u8]) -> bool;

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("message", targets::message),
    ("frames", targets::frames),
    ("client_hello", targets::client_hello),
    ("server_hello", targets::server_hello),
    ("client_proof", targets::client_proof),
    ("welcome", targets::welcome),
    ("data_request", targets::data_request),
    ("data_reply", targets::data_reply),
    ("shared_memory", targets::shared_memory),
    ("capability", targets::capability),
    ("name", targets::name),
    ("map", targets::map),
    ("node_config", targets::node_config),
    ("instance", targets::instance),
    ("user_key", targets::user_key),
    ("inode", targets::inode),
    ("shard", program::run),
];
