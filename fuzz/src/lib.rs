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
pub mod store;
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
    ("lent_bytes", targets::lent_bytes),
    ("capability", targets::capability),
    ("group_open", targets::group_open),
    ("name", targets::name),
    ("map", targets::map),
    ("node_config", targets::node_config),
    ("instance", targets::instance),
    ("user_key", targets::user_key),
    ("inode", targets::inode),
    ("region_superblock", targets::on_device::<0>),
    ("region_sparse_header", targets::on_device::<1>),
    ("region_tree_head", targets::on_device::<2>),
    ("region_identifiers", targets::on_device::<3>),
    ("region_log_record", targets::on_device::<4>),
    ("region_object", targets::on_device::<5>),
    ("region_versioned", targets::on_device::<6>),
    ("region_commit", targets::on_device::<7>),
    ("region_tree_table", targets::on_device::<8>),
    ("region_map_extent", targets::on_device::<9>),
    ("region_index_object", targets::on_device::<10>),
    ("region_index_version", targets::on_device::<11>),
    ("region_index_piece", targets::on_device::<12>),
    ("region_store", store::run),
    ("shard", program::run),
];

/// Those that run a whole shard or store: what these allocate is not bounded by the bytes.
pub const PROGRAMS: &[&str] = &["region_store", "shard"];
