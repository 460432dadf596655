//! Last replies of ended sessions.

use super::operations::{Bench, name};
use crate::back::*;
use weft_protocol::limits::{ENDED_REPLIES_MAX, SLOTS_MAX};
use weft_protocol::message::shard::*;
use weft_protocol::*;

/// The call in a slot of a session.
fn call_in(session: u64, slot: u16) -> Origin {
    let slot = Slot { of: NodeId(1), index: SlotIndex(slot) };
    Origin { session: SessionId(session), slot, sequence: 1 }
}

/// A session makes a symbolic link in each of its slots, if a name is free.
fn link_in_all_slots(bench: &mut Bench, session: u64) {
    for slot in 0..SLOTS_MAX {
        let origin = call_in(session, slot);
        let (parent, target) = (InodeNumber::ROOT, SymlinkTarget(b"t".to_vec()));
        let request = ShardRequest::MakeSymlink { parent, name: name(&format!("{session}.{}", slot / 2)), target };
        let (credentials, context) = (Credentials::default(), Context::default());
        bench.back.apply(bench.time, &Command::Change { origin, credentials, request, context });
    }
    bench.back.apply(bench.time, &Command::EndSession { session: SessionId(session) });
}

#[test]
fn the_changes_of_the_sessions_that_ended_last_are_kept() {
    let mut bench = Bench::new();
    let each = usize::from(SLOTS_MAX) / 2;
    let fit = (ENDED_REPLIES_MAX / each) as u64;
    for session in 0..=fit {
        link_in_all_slots(&mut bench, session);
    }
    let kept = |session, slot| matches!(bench.back.seen(call_in(session, slot)), Seen::Again(_));
    assert_eq!([kept(0, 0), kept(1, 0), kept(fit, 0)], [false, true, true]);
    assert!(!kept(fit, 1), "an error has changed nothing");
}
