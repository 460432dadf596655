//! Wire types to bytes and back.
//!
//! The encoding is postcard (<https://postcard.jamesmunns.com/wire-format>): fields in order, integers as varints,
//! lengths before sequences. What a decoder allocates grows with the bytes it was given; a sequence that claims more
//! elements than come has at most a megabyte set aside before they turn out to be missing.

use crate::error::Error;
use serde::{Serialize, de::DeserializeOwned};

/// Encodes a value. Cannot fail: the wire types have no maps and no unsized sequences.
pub fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    append(value, Vec::with_capacity(64))
}

/// Encodes a value behind what `buffer` holds already.
pub fn append<T: Serialize>(value: &T, buffer: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, buffer)
        .expect("wire types hold only what postcard can encode, and a Vec does not run out")
}

/// Decodes a value from the beginning of `bytes`, and leaves what is behind it there.
pub fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> Result<T, Error> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|_| Error::Malformed)?;
    *bytes = rest;
    Ok(value)
}

/// Decodes exactly these bytes: a remainder is an error.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Error::Malformed),
    }
}
