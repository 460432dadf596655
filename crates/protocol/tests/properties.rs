//! What is encoded comes back, whatever the values; what is decoded keeps within the limits.

use proptest::collection::vec;
use proptest::prelude::*;
use weft_protocol::capability::{CAPABILITY_BYTES, CapabilityClaims};
use weft_protocol::data::{
    BulkDescriptor, DataOperation, DataReply, DataRequest, LentBytes, LentPart, REPLY_BYTES, REQUEST_BYTES,
    SHARED_MEMORY_BYTES,
};
use weft_protocol::frame::{self, HEADER_BYTES, Header};
use weft_protocol::limits::{
    BULK_BYTES_MAX, CONTROL_BODY_BYTES_MAX, FILE_BYTES_MAX, LENT_PARTS_MAX, RDMA_ADDRESS_BYTES_MAX, RDMA_KEY_BYTES_MAX,
    STRIPE_BYTES_MIN,
};
use weft_protocol::message::Message;
use weft_protocol::message::shard::{CreateFile, Origin, ShardCall, ShardRequest, Slot, SymlinkTarget};
use weft_protocol::{
    AttributeChanges, Capability, ClusterMap, Credentials, Error, Generation, InodeNumber, LeaseKey, MapEpoch, Name,
    NodeAddress, NodeId, NodeIdentity, NodeKey, NodeRecord, ObjectId, Plan, Rights, SessionId, ShardId, ShardRecord,
    SlotIndex, StripePlan, TimeChange, Timestamp, codec,
};

fn any_name() -> impl Strategy<Value = Name> {
    vec(any::<u8>(), 1..=255).prop_filter_map("no name", |bytes| Name::new(&bytes).ok())
}

fn any_inode() -> impl Strategy<Value = InodeNumber> {
    any::<u64>().prop_map(InodeNumber::from_raw)
}

fn any_capability() -> impl Strategy<Value = Capability> {
    let ids = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>());
    (ids, any::<u32>(), any::<u32>(), 0u8..8, any::<u64>(), any::<[u8; 32]>()).prop_map(
        |((object, count, generation, epoch), expires_seconds, owner_uid, rights, session, key)| {
            NodeKey::new(key).sign(&CapabilityClaims {
                object: ObjectId::from_raw(object),
                count,
                inode: InodeNumber::from_raw(object ^ session),
                generation: Generation(generation),
                epoch: MapEpoch(epoch),
                expires_seconds,
                owner_uid,
                rights: Rights::from_bits_truncate(rights),
                session: SessionId(session),
            })
        },
    )
}

fn any_credentials() -> impl Strategy<Value = Credentials> {
    (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..300)).prop_map(|(uid, gid, groups)| Credentials {
        uid,
        gid,
        groups: groups.into(),
    })
}

fn any_time_change() -> impl Strategy<Value = TimeChange> {
    prop_oneof![Just(TimeChange::Now), any::<i64>().prop_map(|time| TimeChange::To(Timestamp(time)))]
}

fn any_changes() -> impl Strategy<Value = AttributeChanges> {
    let times =
        (any::<Option<u64>>(), proptest::option::of(any_time_change()), proptest::option::of(any_time_change()));
    (any::<(Option<u16>, Option<u32>, Option<u32>)>(), times)
        .prop_map(|((mode, uid, gid), (size, atime, mtime))| AttributeChanges { mode, uid, gid, size, atime, mtime })
}

fn any_request() -> impl Strategy<Value = ShardRequest> {
    let key = prop_oneof![
        any_inode().prop_map(LeaseKey::Attributes),
        (any_inode(), any::<u64>()).prop_map(|(inode, hash)| LeaseKey::Entry(inode, hash)),
        any_inode().prop_map(LeaseKey::Directory),
        any_inode().prop_map(LeaseKey::Data),
        any_inode().prop_map(LeaseKey::Permissions),
        any_inode().prop_map(LeaseKey::Names),
        any_inode().prop_map(LeaseKey::Ranges),
    ];
    prop_oneof![
        (any_inode(), any_name()).prop_map(|(parent, name)| ShardRequest::Lookup { parent, name }),
        (any_inode(), any_changes()).prop_map(|(inode, changes)| ShardRequest::SetAttributes { inode, changes }),
        (any_inode(), any_name(), any::<(u16, bool, u16)>()).prop_map(|(parent, name, (mode, exclusive, width))| {
            let flags = weft_protocol::message::shard::OpenFlags {
                access: weft_protocol::message::shard::Access::Write,
                truncate: exclusive,
                direct: !exclusive,
                page_cache: weft_protocol::message::shard::PageCache::All,
                group: None,
            };
            let plan = StripePlan::new(width, STRIPE_BYTES_MIN).map(Plan::Striped);
            let create = Some(CreateFile { mode, exclusive, plan });
            ShardRequest::OpenAt { parent, name, flags, create, objects: None }
        }),
        (any_inode(), any_name(), vec(any::<u8>(), 0..5000)).prop_map(|(parent, name, target)| {
            ShardRequest::MakeSymlink { parent, name, target: SymlinkTarget(target) }
        }),
        vec((key, any::<u64>()), 0..200).prop_map(|leases| ShardRequest::Release { leases }),
    ]
}

fn any_map() -> impl Strategy<Value = ClusterMap> {
    let node =
        (any::<u16>(), ".{0,20}", any::<u64>(), any::<bool>()).prop_map(|(id, text, identity, stores)| NodeRecord {
            id: NodeId(id),
            host: text.clone(),
            site: text.clone(),
            identity: NodeIdentity(identity),
            address: NodeAddress { tcp: text.clone(), unix: text },
            stores,
            drains: !stores,
        });
    let shard = any::<(u16, u32, u32)>().prop_map(|(node, born, arrived)| ShardRecord {
        node: NodeId(node),
        born: MapEpoch(born),
        arrived: MapEpoch(arrived),
    });
    (".{0,30}", any::<u32>(), vec(node, 0..8), vec(shard, 0..40)).prop_map(|(name, epoch, nodes, shards)| ClusterMap {
        name,
        epoch: MapEpoch(epoch),
        nodes,
        shards,
        removed_max: None,
    })
}

fn any_origin() -> impl Strategy<Value = Origin> {
    any::<(u64, u16, u16, u32)>().prop_map(|(session, of, index, sequence)| {
        let slot = Slot { of: NodeId(of), index: SlotIndex(index) };
        Origin { session: SessionId(session), slot, sequence }
    })
}

proptest! {
    #[test]
    fn calls_come_back_from_their_frames(
        request in any_request(),
        credentials in proptest::option::of(any_credentials()),
        (shard, epoch, node, slot, sequence, id) in any::<(u16, u32, u16, u16, u32, u64)>(),
        repeats in vec(any_origin(), 0..4),
    ) {
        let message = Message::Shard(ShardCall {
            shard: ShardId(shard),
            epoch: MapEpoch(epoch),
            slots_of: NodeId(node),
            slot: SlotIndex(slot),
            sequence,
            credentials,
            request,
            repeats,
        });
        let mut bytes = Vec::new();
        frame::append(&mut bytes, id, &message);
        let split = frame::split(&bytes).unwrap().unwrap();
        prop_assert_eq!((split.id, split.bytes()), (id, bytes.len()));
        prop_assert_eq!(codec::from_bytes(split.body), Ok(message));
    }

    #[test]
    fn maps_come_back_and_a_map_that_passes_knows_every_holder(map in any_map()) {
        prop_assert_eq!(codec::from_bytes(&codec::to_bytes(&map)), Ok(map.clone()));
        if map.check() {
            for shard in &map.shards {
                prop_assert!(map.node(shard.node).is_some());
            }
        }
    }

    #[test]
    fn capabilities_come_back(capability in any_capability()) {
        prop_assert_eq!(Capability::from_bytes(&capability.to_bytes()), Ok(capability));
        prop_assert_eq!(codec::from_bytes(&codec::to_bytes(&capability)), Ok(capability));
    }

    #[test]
    fn data_requests_come_back_or_are_beyond_the_limits(
        capability in any_capability(),
        (id, object, inode, address) in any::<(u64, u64, u64, u64)>(),
        (key, memory_type) in any::<(u32, u32)>(),
        bytes in prop_oneof![0..=BULK_BYTES_MAX, 0..=20_000u32, any::<u32>()],
        offset in prop_oneof![0..=1u64 << 40, any::<u64>(), FILE_BYTES_MAX - 20..=FILE_BYTES_MAX],
        (operation, pages) in (1u8..=13, any::<bool>()),
    ) {
        let operation = match operation {
            1 => DataOperation::Read,
            2 => DataOperation::Write,
            3 => DataOperation::Append,
            4 => DataOperation::Sync,
            5 => DataOperation::Stat,
            6 => DataOperation::Descriptor,
            7 => DataOperation::Share,
            10 => DataOperation::OpenRdma,
            11 => DataOperation::ShowMemory,
            12 => DataOperation::ProbeMemory,
            14 => DataOperation::IsHeld,
            15 => DataOperation::Lend,
            _ => DataOperation::Revoke,
        };
        let memory = BulkDescriptor { address, key, memory_type };
        let (object, inode) = (ObjectId::from_raw(object), InodeNumber::from_raw(inode));
        let request = DataRequest { operation, pages, bytes, id, object, inode, offset, memory, capability };
        let end = offset.checked_add(u64::from(bytes));
        let within = bytes <= BULK_BYTES_MAX
            && end.is_some_and(|end| end <= FILE_BYTES_MAX)
            && (!pages || matches!(operation, DataOperation::Read | DataOperation::Write))
            && match operation {
                DataOperation::Share => bytes as usize == SHARED_MEMORY_BYTES,
                DataOperation::ProbeMemory => bytes == 16,
                DataOperation::Revoke | DataOperation::Lend => bytes == 0,
                DataOperation::OpenRdma => (6..=5 + RDMA_ADDRESS_BYTES_MAX).contains(&(bytes as usize)),
                DataOperation::ShowMemory => bytes == 0 || (8..=8 + RDMA_KEY_BYTES_MAX).contains(&(bytes as usize)),
                _ => true,
            };
        let decoded = DataRequest::decode(&request.encode());
        prop_assert_eq!(decoded.ok(), within.then_some(request));
    }

    #[test]
    fn data_replies_come_back(
        (status, id, written_bytes, size, mtime) in any::<(u16, u64, u32, u64, i64)>(),
        lent_parts in prop_oneof![Just(0), any::<u8>()],
        bulk_bytes in prop_oneof![0..=BULK_BYTES_MAX, any::<u32>()],
    ) {
        let reply = DataReply { status, id, lent_parts, bulk_bytes, written_bytes, size, mtime: Timestamp(mtime) };
        let decoded = DataReply::decode(&reply.encode());
        let may_lend = lent_parts == 0 || status == 0 && usize::from(lent_parts) <= LENT_PARTS_MAX;
        prop_assert_eq!(decoded.ok(), (bulk_bytes <= BULK_BYTES_MAX && may_lend).then_some(reply));
    }

    #[test]
    fn lent_bytes_come_back(
        (word_address, word) in any::<(u64, u64)>(),
        parts in vec((any::<u64>(), prop_oneof![0..=u64::from(BULK_BYTES_MAX) / 4, any::<u64>()]), 0..20),
        is_right in any::<bool>(),
    ) {
        let parts: Vec<LentPart> = parts.into_iter().map(|(address, bytes)| LentPart { address, bytes }).collect();
        let all = parts.iter().fold(0_u64, |all, part| all.saturating_add(part.bytes));
        let may_be = (1..=LENT_PARTS_MAX).contains(&parts.len())
            && parts.iter().all(|part| (1..=u64::from(BULK_BYTES_MAX)).contains(&part.bytes))
            && all <= u64::from(u32::MAX) && is_right;
        let lent = LentBytes { word_address, word, parts };
        let told = u32::try_from(all).unwrap_or(0).wrapping_add(u32::from(!is_right));
        let encoded = lent.encode();
        prop_assert_eq!(LentBytes::decode(&encoded[..encoded.len() - 1], told), Err(Error::Malformed));
        prop_assert_eq!(LentBytes::decode(&encoded, told).ok(), may_be.then_some(lent));
    }

    #[test]
    fn random_headers_are_refused_or_within_the_limits(
        header in any::<[u8; HEADER_BYTES]>(),
        request in vec(any::<u8>(), REQUEST_BYTES),
        reply in vec(any::<u8>(), REPLY_BYTES),
        capability in vec(any::<u8>(), CAPABILITY_BYTES),
    ) {
        if let Ok(header) = Header::decode(&header) {
            prop_assert!(header.body_bytes <= CONTROL_BODY_BYTES_MAX);
        }
        if let Ok(request) = DataRequest::decode(&request.try_into().unwrap()) {
            prop_assert!(request.bytes <= BULK_BYTES_MAX);
        }
        if let Ok(reply) = DataReply::decode(&reply.try_into().unwrap()) {
            prop_assert!(reply.bulk_bytes <= BULK_BYTES_MAX);
        }
        let capability = capability.try_into().unwrap();
        if let Ok(decoded) = Capability::from_bytes(&capability) {
            prop_assert_eq!(decoded.to_bytes(), capability);
            prop_assert!(NodeKey::new([1; 32]).verify(&decoded, 0).is_err());
        }
    }
}
