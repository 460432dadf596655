//! Limits, and what people see.

use super::harness::*;
use weft_protocol::limits::PARKED_REQUESTS_MAX;
use weft_protocol::*;

#[test]
fn too_many_waiting_calls_are_answered_busy() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, stat(inode));
    for number in 0..PARKED_REQUESTS_MAX {
        let session = SessionId(1000 + number as u64 / 64);
        world.waits(session, chmod(inode, 0o600));
    }
    assert_eq!(world.refused(A, chmod(inode, 0o644)), Error::Busy);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(world.shard.status().parked, 0);
}

#[test]
fn what_waits_is_described() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(B, stat(inode));
    world.waits(A, chmod(inode, 0o600));
    let stuck = world.shard.stuck();
    assert_eq!(stuck.len(), 1);
    assert_eq!((stuck[0].session, stuck[0].since_ms), (Some(A), 1000));
    assert!(stuck[0].request.starts_with("SetAttributes"), "{}", stuck[0].request);
    assert_eq!(stuck[0].waits_for, "recall of Attributes(InodeNumber(2)) of session 0000000000000002");
}
