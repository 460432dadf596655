//! Two shards.
