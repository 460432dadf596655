//! Decoders of on-device structures as functions over arbitrary bytes, for fuzzing (`make fuzz`).

pub use crate::decoder::Decoder;
use crate::{area, base, geometry, ids, log, object, sparse, versions};

/// All of them.
pub const DECODERS: &[Decoder] = &[
    geometry::DECODER,
    sparse::DECODER,
    area::DECODER,
    ids::DECODER,
    log::DECODER,
    object::DECODER,
    versions::SUPER_DECODER,
    versions::COMMIT_DECODER,
    area::TABLE_DECODER,
    base::DECODER,
    versions::INDEX_DECODERS[0],
    versions::INDEX_DECODERS[1],
    versions::INDEX_DECODERS[2],
];
