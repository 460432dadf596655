//! The header before each control message.
//!
//! | offset | width | meaning |
//! | --- | --- | --- |
//! | 0 | 2 | magic `57 46` ("WF") |
//! | 2 | 1 | protocol version |
//! | 3 | 1 | zero |
//! | 4 | 4 | bytes of the body, little-endian, at most [`CONTROL_BODY_BYTES_MAX`] |
//! | 8 | 8 | identifier: a reply carries that of its request |
//!
//! Behind it stands the body, one [`Message`] in the encoding of [`crate::codec`].

use crate::PROTOCOL_VERSION;
use crate::codec;
use crate::error::Error;
use crate::limits::CONTROL_BODY_BYTES_MAX;
use crate::message::Message;
use serde::Serialize;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
/// First bytes of every control frame.
const MAGIC: [u8; 2] = *b"WF";

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the body.
    pub body_bytes: usize,
    /// Correlates reply and request.
    pub id: u64,
}

impl Header {
    /// Checks magic, version and length before anything is allocated.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let [m0, m1, version, zero, l0, l1, l2, l3, i0, i1, i2, i3, i4, i5, i6, i7] = *bytes;
        let body_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if [m0, m1] != MAGIC || version != PROTOCOL_VERSION || zero != 0 || body_bytes > CONTROL_BODY_BYTES_MAX {
            return Err(Error::Malformed);
        }
        Ok(Self { body_bytes, id: u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]) })
    }
}

/// Appends one frame with any serializable body to `out`: header and body, ready to send.
pub fn append_body<T: Serialize>(out: &mut Vec<u8>, id: u64, body: &T) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[PROTOCOL_VERSION, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&id.to_le_bytes());
    *out = codec::append(body, std::mem::take(out));
    let body_bytes = out.len() - start - HEADER_BYTES;
    // Our own messages are built within the limits; a longer one would be refused by every peer.
    assert!(body_bytes <= CONTROL_BODY_BYTES_MAX, "a message of {body_bytes} bytes was built");
    let length = u32::try_from(body_bytes).expect("checked against the limit just above");
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
}

/// Appends one message as a frame.
pub fn append(out: &mut Vec<u8>, id: u64, message: &Message) {
    append_body(out, id, message);
}

/// One whole frame at the beginning of received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Correlates reply and request.
    pub id: u64,
    /// The encoded message.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes of header and body.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// Takes the first frame off `bytes`. `None`: more bytes are needed.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, Error> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let header = Header::decode(header)?;
    Ok(rest.get(..header.body_bytes).map(|body| Frame { id: header.id, body }))
}
