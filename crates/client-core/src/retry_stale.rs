//! Calls by paths.

use weft_protocol::{Error, Result};

/// Makes a call by a path, from the walk on, and once more if what the path led to was gone by the time it was used:
/// the path may lead to something else by then, or nowhere. So does Linux (`retry_estale`).
///
/// Not for opens that may make a file: what they have made they would make once more. They look at the name again by
/// themselves (`open.rs`).
pub async fn retry_stale<T>(mut call: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    match call().await {
        Err(Error::Stale) => call().await,
        result => result,
    }
}
