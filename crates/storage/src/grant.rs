//! The check that every access to an object passes.

use weft_protocol::data::{DataOperation, DataRequest};
use weft_protocol::{Capability, Error, MapEpoch, NodeId, NodeKey, Result, Rights, SessionId};

/// What a checked request may do beside what it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The object is made when it is not there.
    pub create: bool,
    /// A descriptor may allow writing.
    pub write: bool,
}

/// Checks a request against its capability: signature, term, node, object, session, epoch and right.
///
/// `epoch_min`: capabilities from before this epoch of the map are refused (a shard that has moved may have fenced
/// their holder). Cost: one keyed hash of 48 bytes, about 100 ns.
pub fn check_access(
    request: &DataRequest,
    session: SessionId,
    node: NodeId,
    key: &NodeKey,
    now_seconds: u32,
    epoch_min: MapEpoch,
) -> Result<Grant> {
    let capability = &request.capability;
    key.verify(capability, now_seconds)?;
    let needed = match request.operation {
        DataOperation::Read | DataOperation::Stat | DataOperation::IsHeld => Rights::READ | Rights::WRITE,
        DataOperation::Write | DataOperation::Append | DataOperation::Sync => Rights::WRITE,
        DataOperation::Descriptor if request.bytes == 1 => Rights::WRITE,
        DataOperation::Descriptor => Rights::READ | Rights::WRITE,
        DataOperation::Share
        | DataOperation::Lend
        | DataOperation::OpenRdma
        | DataOperation::ShowMemory
        | DataOperation::ProbeMemory
        | DataOperation::Revoke => return Err(Error::CapabilityRejected),
    };
    // Whoever may write a file also learns its size, and may read back what his buffer covers in part.
    let allowed = capability.rights.intersects(needed)
        && capability.covers(request.inode, request.object)
        && request.object.node() == node
        && is_held_by(session, capability, request.operation)
        && capability.epoch >= epoch_min;
    if !allowed {
        return Err(Error::CapabilityRejected);
    }
    let makes = matches!(request.operation, DataOperation::Write | DataOperation::Append | DataOperation::Descriptor);
    // Any access of a group makes the object: its members cannot tell whether another one has written.
    let create = capability.rights.contains(Rights::CREATE) && (makes || capability.rights.contains(Rights::GROUP));
    Ok(Grant { create, write: capability.rights.contains(Rights::WRITE) })
}

/// Whether a session may use a right: its own, or that of a group. A group's is for bytes alone: what is passed to a
/// process cannot be taken back when the group ends.
fn is_held_by(session: SessionId, capability: &Capability, operation: DataOperation) -> bool {
    let is_of_group = capability.rights.contains(Rights::GROUP) && operation != DataOperation::Descriptor;
    capability.session == session || is_of_group
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::capability::CapabilityClaims;
    use weft_protocol::data::BulkDescriptor;
    use weft_protocol::{Generation, InodeNumber, ObjectId};

    const KEY: [u8; 32] = [3; 32];

    fn request(operation: DataOperation, rights: Rights) -> DataRequest {
        let object = ObjectId::new(NodeId(1), 10);
        let capability = NodeKey::new(KEY).sign(&CapabilityClaims {
            object,
            count: 1,
            inode: InodeNumber::ROOT,
            generation: Generation(1),
            epoch: MapEpoch(5),
            expires_seconds: 100,
            owner_uid: 0,
            rights,
            session: SessionId(9),
        });
        let inode = InodeNumber::ROOT;
        DataRequest {
            operation,
            pages: false,
            bytes: 1,
            id: 0,
            object,
            inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability,
        }
    }

    fn check(request: &DataRequest, session: u64, node: u16, now: u32, epoch: u32) -> Result<Grant> {
        check_access(request, SessionId(session), NodeId(node), &NodeKey::new(KEY), now, MapEpoch(epoch))
    }

    #[test]
    fn a_right_holds_for_its_session_node_object_term_and_epoch() {
        let read = request(DataOperation::Read, Rights::READ);
        assert!(check(&read, 9, 1, 100, 5).is_ok());
        for (session, node, now, epoch) in [(8, 1, 100, 5), (9, 2, 100, 5), (9, 1, 101, 5), (9, 1, 100, 6)] {
            assert_eq!(check(&read, session, node, now, epoch), Err(Error::CapabilityRejected));
        }
        let other_object = DataRequest { object: ObjectId::new(NodeId(1), 11), ..read };
        assert_eq!(check(&other_object, 9, 1, 1, 5), Err(Error::CapabilityRejected));
        let other_file = DataRequest { inode: InodeNumber::from_raw(2), ..read };
        assert_eq!(check(&other_file, 9, 1, 1, 5), Err(Error::CapabilityRejected));
    }

    #[test]
    fn a_right_of_a_group_holds_for_any_session_but_passes_no_descriptor() {
        let check_from = |operation, session| {
            check(&request(operation, Rights::READ | Rights::WRITE | Rights::GROUP), session, 1, 100, 5)
        };
        for operation in [DataOperation::Read, DataOperation::Write, DataOperation::Append, DataOperation::Sync] {
            assert!(check_from(operation, 8).is_ok(), "{operation:?}");
        }
        assert_eq!(check_from(DataOperation::Descriptor, 8), Err(Error::CapabilityRejected));
        let read_only = request(DataOperation::Write, Rights::READ | Rights::GROUP);
        assert_eq!(check(&read_only, 8, 1, 100, 5), Err(Error::CapabilityRejected));
    }

    #[test]
    fn writes_make_an_object_and_of_a_group_any_access_does() {
        let makes =
            |operation, rights| check(&request(operation, rights | Rights::CREATE), 9, 1, 100, 5).map(|it| it.create);
        let own = Rights::READ | Rights::WRITE;
        for (operation, by_own) in [
            (DataOperation::Write, true),
            (DataOperation::Append, true),
            (DataOperation::Read, false),
            (DataOperation::Stat, false),
            (DataOperation::Sync, false),
        ] {
            assert_eq!(makes(operation, own), Ok(by_own), "{operation:?}");
            assert_eq!(makes(operation, own | Rights::GROUP), Ok(true), "{operation:?}");
            let without = check(&request(operation, own | Rights::GROUP), 9, 1, 100, 5);
            assert_eq!(without.map(|grant| grant.create), Ok(false), "{operation:?}");
        }
    }

    #[test]
    fn a_reader_cannot_write_or_get_a_writable_descriptor() {
        for operation in [DataOperation::Write, DataOperation::Append, DataOperation::Sync, DataOperation::Descriptor] {
            assert!(check(&request(operation, Rights::READ), 9, 1, 1, 0).is_err(), "{operation:?}");
            assert!(check(&request(operation, Rights::WRITE), 9, 1, 1, 0).is_ok(), "{operation:?}");
        }
    }
}
