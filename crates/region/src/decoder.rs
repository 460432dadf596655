//! A decoder of an on-device structure, and what its checksums are made with.

/// A decoder of one kind of block. Whether what it decodes makes sense beside other blocks is not its business.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    pub name: &'static str,
    /// Bytes of an example, as far as its checksums leave them free: `seal` makes a block of them.
    pub example: fn() -> Vec<u8>,
    /// Adds checksums and frames, so that what is behind them is reached. What does not fit is left out.
    pub seal: fn(&[u8]) -> Vec<u8>,
    /// Decodes a block and encodes it again. `None`: a named error, or not such a block.
    pub decode: fn(&[u8]) -> Option<Vec<u8>>,
}

/// Bytes of a fixed length with their checksum at a place.
pub(crate) fn sealed_block(bytes: &[u8], checked: usize, checksum_at: usize) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(crate::BLOCK_BYTES, 0);
    crate::sealed::seal(&mut block[..checked], checksum_at);
    block
}

/// Concatenates the key and the value of a tree's row.
pub(crate) fn encode_row<K, V>(key: &K, value: &V) -> Vec<u8>
where
    for<'a> K: redb::Value<SelfType<'a> = K> + 'static,
    for<'a> V: redb::Value<SelfType<'a> = V> + 'static,
{
    [K::as_bytes(key).as_ref(), V::as_bytes(value).as_ref()].concat()
}

/// The row that these bytes begin with; zeros where there are none. For use in `guarded`, as in a tree.
pub(crate) fn decode_row<K, V>(bytes: &[u8]) -> (K, V)
where
    for<'a> K: redb::Value<SelfType<'a> = K> + 'static,
    for<'a> V: redb::Value<SelfType<'a> = V> + 'static,
{
    let widths = [K::fixed_width(), V::fixed_width()].map(|width| width.expect("rows of numbers have a fixed width"));
    let mut row = bytes.to_vec();
    row.resize(widths[0] + widths[1], 0);
    (K::from_bytes(&row[..widths[0]]), V::from_bytes(&row[widths[0]..]))
}

/// The blocks whose sectors hold a payload.
pub(crate) fn framed(payload: &[u8], salt: u64, stamp: u64, place_of: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut blocks = vec![0; crate::sectors::framed_bytes(payload.len())];
    crate::sectors::frame(&mut blocks, payload, salt, stamp, place_of);
    blocks
}
