//! Bytes with a checksum among them, and numbers in bytes.

/// Bytes of a checksum.
const BYTES: usize = 4;

/// The checksum of bytes, that at `at` being zero.
fn checksum_of(bytes: &[u8], at: usize) -> Option<u32> {
    let before = crc32c::crc32c(bytes.get(..at)?);
    let zeros = crc32c::crc32c_append(before, &[0; BYTES]);
    Some(crc32c::crc32c_append(zeros, bytes.get(at + BYTES..)?))
}

/// Writes the checksum of bytes at `at`, and returns it.
pub(crate) fn seal(bytes: &mut [u8], at: usize) -> u32 {
    let checksum = checksum_of(bytes, at).expect("what is sealed has room for its checksum");
    bytes[at..at + BYTES].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The checksum that stands at `at`, if it is that of the bytes.
pub(crate) fn seal_of(bytes: &[u8], at: usize) -> Option<u32> {
    let checksum = u32_at(bytes, at)?;
    (checksum_of(bytes, at)? == checksum).then_some(checksum)
}

/// The number at a place.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The number at a place.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
