//! A target for each decoder: what decodes must encode to something that decodes to the same, and keep within the
//! limits.

use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use weft_client::{Instance, KeyFile};
use weft_metadata::back::Inode;
use weft_node::NodeConfig;
use weft_protocol::UserKey;
use weft_protocol::capability::CAPABILITY_BYTES;
use weft_protocol::data::{
    DataReply, DataRequest, LentBytes, REPLY_BYTES, REQUEST_BYTES, SHARED_MEMORY_BYTES, SharedMemory,
};
use weft_protocol::handshake::{ClientHello, ClientProof, ServerHello, Welcome};
use weft_protocol::limits::{BULK_BYTES_MAX, CONTROL_BODY_BYTES_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX};
use weft_protocol::message::Message;
use weft_protocol::{Capability, ClusterMap, Error, GroupOpen, InodeNumber, Name, NodeKey, ShardId, codec, frame};
use weft_region::decoders::{DECODERS, Decoder};

/// Decodes, and if that works, encodes and decodes again.
fn decoded<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = codec::from_bytes(bytes).ok()?;
    let again = codec::to_bytes(&value);
    assert_eq!(codec::from_bytes::<T>(&again).as_ref(), Ok(&value), "what was decoded does not come back");
    Some(value)
}

/// As many bytes as a fixed header has; zeros where there are none.
fn padded<const COUNT: usize>(bytes: &[u8]) -> [u8; COUNT] {
    let mut header = [0; COUNT];
    for (place, byte) in header.iter_mut().zip(bytes) {
        *place = *byte;
    }
    header
}

/// The body of a control frame.
pub fn message(bytes: &[u8]) -> bool {
    decoded::<Message>(bytes).is_some()
}

/// A stream of control frames.
pub fn frames(bytes: &[u8]) -> bool {
    let (mut rest, mut count) = (bytes, 0);
    while let Ok(Some(frame)) = frame::split(rest) {
        assert!(frame.body.len() <= CONTROL_BODY_BYTES_MAX);
        decoded::<Message>(frame.body);
        rest = rest.get(frame.bytes()..).expect("a frame lies within the bytes it was split from");
        count += 1;
    }
    count > 0
}

/// First message of a handshake.
pub fn client_hello(bytes: &[u8]) -> bool {
    decoded::<ClientHello>(bytes).is_some()
}

/// Second message of a handshake.
pub fn server_hello(bytes: &[u8]) -> bool {
    decoded::<ServerHello>(bytes).is_some()
}

/// Third message of a handshake.
pub fn client_proof(bytes: &[u8]) -> bool {
    decoded::<ClientProof>(bytes).is_some()
}

/// Last message of a handshake.
pub fn welcome(bytes: &[u8]) -> bool {
    decoded::<Welcome>(bytes).is_some()
}

/// The header of a data request.
pub fn data_request(bytes: &[u8]) -> bool {
    let header: [u8; REQUEST_BYTES] = padded(bytes);
    let Ok(request) = DataRequest::decode(&header) else { return false };
    assert_eq!(request.encode(), header);
    assert!(request.bytes <= BULK_BYTES_MAX && request.bulk_bytes() <= request.bytes);
    assert!(request.offset.checked_add(u64::from(request.bytes)).is_some_and(|end| end <= FILE_BYTES_MAX));
    true
}

/// The header of a data reply.
pub fn data_reply(bytes: &[u8]) -> bool {
    let header: [u8; REPLY_BYTES] = padded(bytes);
    let Ok(reply) = DataReply::decode(&header) else { return false };
    assert_eq!(reply.encode(), header);
    if let Err(error) = reply.result() {
        let status = error.to_data_status();
        assert_eq!(Error::from_data_status(status), error, "status {:#x} becomes {status:#x}", reply.status);
    }
    true
}

/// What a client says of the memory that it lends.
pub fn shared_memory(bytes: &[u8]) -> bool {
    let bytes: [u8; SHARED_MEMORY_BYTES] = padded(bytes);
    SharedMemory::decode(&bytes).encode() == bytes
}

/// Where lent bytes lie: behind a reply that lends as many as they say.
pub fn lent_bytes(bytes: &[u8]) -> bool {
    let of_parts = bytes.get(16..).unwrap_or_default().as_chunks::<16>().0;
    let told = of_parts.iter().fold(0, |all: u64, [.., a, b, c, d, e, f, g, h]| {
        all.saturating_add(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]))
    });
    let Ok(lent) = LentBytes::decode(bytes, u32::try_from(told).unwrap_or(u32::MAX)) else { return false };
    assert_eq!(lent.encode(), bytes);
    assert_eq!(LentBytes::decode(bytes, u32::try_from(told).unwrap_or(u32::MAX) ^ 1), Err(Error::Malformed));
    true
}

/// A capability, in a data header and in a message.
pub fn capability(bytes: &[u8]) -> bool {
    decoded::<Capability>(bytes);
    let header: [u8; CAPABILITY_BYTES] = padded(bytes);
    let Ok(capability) = Capability::from_bytes(&header) else { return false };
    assert_eq!(capability.to_bytes(), header);
    assert_eq!(NodeKey::new([0x11; 32]).verify(&capability, 0), Err(Error::CapabilityRejected));
    true
}

/// An exported handle.
pub fn group_open(bytes: &[u8]) -> bool {
    let key = UserKey::new([7; 32]);
    match GroupOpen::from_bytes(bytes, &key) {
        Ok(open) => assert_eq!(GroupOpen::from_bytes(&open.to_bytes(&key), &key).as_ref(), Ok(&open)),
        // It was decoded.
        Err(error) => return error == Error::CapabilityRejected,
    }
    true
}

/// A name.
pub fn name(bytes: &[u8]) -> bool {
    if let Some(name) = decoded::<Name>(bytes) {
        assert!(Name::new(name.as_bytes()).is_ok(), "{name:?} is no name");
    }
    let Ok(name) = Name::new(bytes) else { return false };
    assert!((1..=NAME_BYTES_MAX).contains(&bytes.len()) && !bytes.contains(&b'/') && !bytes.contains(&0));
    assert_eq!(decoded::<Name>(&codec::to_bytes(&name)), Some(name));
    true
}

/// A map, as `SetMap` and its check see it.
pub fn map(bytes: &[u8]) -> bool {
    let Some(map) = decoded::<ClusterMap>(bytes) else { return false };
    if map.check() {
        for shard in 0..map.shards.len() {
            let shard = ShardId(u16::try_from(shard).expect("checked against the limit"));
            let holder = map.node_of(shard).and_then(|node| map.node(node)).expect("checked");
            assert!(map.shards_at(holder.id).any(|held| held == shard));
        }
    }
    true
}

/// What a node is told at its start.
pub fn node_config(bytes: &[u8]) -> bool {
    json::<NodeConfig>(bytes)
}

/// The runtime file of a file system.
pub fn instance(bytes: &[u8]) -> bool {
    let Ok(instance) = serde_json::from_slice::<Instance>(bytes) else { return false };
    let text = serde_json::to_vec(&instance).expect("JSON of a value that came from JSON");
    assert!(serde_json::from_slice::<Instance>(&text).is_ok());
    true
}

/// The key of a user.
pub fn user_key(bytes: &[u8]) -> bool {
    json::<KeyFile>(bytes)
}

fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return false };
    let text = serde_json::to_vec(&value).expect("JSON of a value that came from JSON");
    assert_eq!(serde_json::from_slice::<T>(&text).ok().as_ref(), Some(&value));
    true
}

/// The decoder with this number of what is on a device, of bytes as they are and with right checksums.
pub fn on_device<const NUMBER: usize>(bytes: &[u8]) -> bool {
    let Decoder { seal, decode, .. } = DECODERS[NUMBER];
    let decoded = |bytes: &[u8]| {
        let Some(again) = decode(bytes) else { return false };
        assert_eq!(decode(&again).as_ref(), Some(&again), "what was decoded does not come back");
        true
    };
    decoded(bytes) | decoded(&seal(bytes))
}

/// The record of an inode in a shard's store.
pub fn inode(bytes: &[u8]) -> bool {
    let Some(inode) = Inode::decode(bytes) else { return false };
    assert_eq!(inode.attributes(InodeNumber::ROOT).mode, inode.mode);
    true
}
