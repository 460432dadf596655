//! Decoders of on-device structures as functions over bytes, for whoever feeds them any bytes (`make fuzz`).

pub use crate::decoder::Decoder;
use crate::{area, geometry, ids, log, object, sparse, versions};

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
];
