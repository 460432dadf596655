//! Contents that tell where they belong: each page of 4 KiB begins with a mix of its offset and the file's seed.
//!
//! As much work per byte as `weft bench data` and `peers/gfarm/native.c` do, so that their figures can be compared.

/// Bytes from one stamp to the next.
pub const PAGE_BYTES: u64 = 4096;

fn stamp(seed: u64, page: u64) -> [u8; 8] {
    (page ^ seed).wrapping_mul(0xd6e8_feb8_6659_fd93).to_le_bytes()
}

/// Stamps a buffer that begins at this offset, a multiple of a page; a part of a page at its end gets a part of a
/// stamp.
pub fn put(seed: u64, buffer: &mut [u8], offset: u64) {
    for (page, bytes) in (offset / PAGE_BYTES..).zip(buffer.chunks_mut(PAGE_BYTES as usize)) {
        let length = bytes.len().min(8);
        bytes[..length].copy_from_slice(&stamp(seed, page)[..length]);
    }
}

/// The offset of the first page that does not have its stamp.
pub fn first_wrong(seed: u64, buffer: &[u8], offset: u64) -> Option<u64> {
    let pages = (offset / PAGE_BYTES..).zip(buffer.chunks(PAGE_BYTES as usize));
    let is_wrong = |(page, bytes): &(u64, &[u8])| {
        let length = bytes.len().min(8);
        bytes[..length] != stamp(seed, *page)[..length]
    };
    pages.into_iter().find(is_wrong).map(|(page, _)| page * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_page_is_named() {
        let mut buffer = vec![0; 4096 * 3 + 5];
        put(7, &mut buffer, 8192);
        assert_eq!(first_wrong(7, &buffer, 8192), None);
        assert_eq!(first_wrong(8, &buffer, 8192), Some(8192), "of another file");
        assert_eq!(first_wrong(7, &buffer, 4096), Some(4096), "of another place");
        buffer[4096] ^= 1;
        assert_eq!(first_wrong(7, &buffer, 8192), Some(12288));
    }
}
