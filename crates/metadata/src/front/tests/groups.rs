//! Group opens: who keeps a group, what it holds, and what ends with it.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const GROUP: SessionId = SessionId::of_group(0x6000);

fn open_group(inode: InodeNumber, access: Access) -> ShardRequest {
    ShardRequest::OpenGroup { inode, access, group: GROUP }
}

fn heard(world: &mut World, session: SessionId, groups: &[SessionId]) {
    world.event(Event::Heard { session, groups: groups.iter().copied().collect() });
}

/// Lets time pass, while these sessions are heard as members of the group.
fn pass(world: &mut World, ms: u64, members: &[SessionId], others: &[SessionId]) {
    for _ in 0..ms / 1000 {
        members.iter().for_each(|member| heard(world, *member, &[GROUP]));
        world.pass(1000, others);
    }
}

fn capability(answer: &ShardAnswer) -> Capability {
    match answer {
        ShardAnswer::Opened { capability: Some(capability), .. } => *capability,
        other => panic!("no right in {other:?}"),
    }
}

#[test]
fn a_group_has_rights_of_its_own_and_keeps_others_from_caching() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    let right = capability(&world.ok(A, open_group(inode, Access::ReadWrite)));
    assert_eq!((right.session, right.rights), (GROUP, Rights::READ | Rights::WRITE | Rights::GROUP));
    let own = capability(&world.ok(A, open(inode, Access::ReadWrite)));
    assert_eq!((own.session, own.rights), (A, Rights::READ | Rights::WRITE));
    let granted = grants(&world.ok(B, open(inode, Access::Read)));
    assert_eq!(granted & (Grants::DATA_SHARED | Grants::DATA_EXCLUSIVE), Grants::empty());
    // What others see of its size, the storage server tells.
    let token = world.waits(B, stat(inode));
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 4321, 80);
    assert_eq!(attributes(&world.done(token)).size, 4321);
}

#[test]
fn opening_for_a_group_recalls_what_anybody_holds_the_opener_too() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::ReadWrite));
    let token = world.waits(A, open_group(inode, Access::Read));
    let (session, recall) = world.recalls.pop().expect("a recall");
    assert_eq!((session, recall.key), (A, LeaseKey::Data(inode)));
    world.event(Event::RecallAnswer { session, number: recall.number, kept: LeaseMode::Open });
    assert_eq!(capability(&world.done(token)).rights, Rights::READ | Rights::GROUP);
}

#[test]
fn it_outlives_its_opener_and_ends_with_its_last_member() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::ReadWrite));
    heard(&mut world, B, &[GROUP]);
    world.ok(C, stat(ROOT));
    heard(&mut world, C, &[GROUP]);
    world.event(Event::Lost { session: A });
    assert_eq!(world.ended, [A]);
    pass(&mut world, 60_000, &[B, C], &[]);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [A], "one is left");
    // The last one goes without a word.
    pass(&mut world, 12_000, &[], &[B]);
    assert!(world.ended.contains(&GROUP) && world.ended.contains(&C), "{:?}", world.ended);
    assert!(grants(&world.ok(B, open(inode, Access::Read))).contains(Grants::OPEN));
}

#[test]
fn the_last_member_that_leaves_ends_it_at_once() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::ReadWrite));
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    assert_eq!(world.ended, []);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
    heard(&mut world, B, &[GROUP]);
    assert!(world.shard.refuses(GROUP), "it does not come back");
}

#[test]
fn a_group_that_nobody_has_joined_yet_stays_for_a_term() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::Read));
    heard(&mut world, A, &[]);
    assert_eq!(world.ended, []);
    pass(&mut world, 8_000, &[], &[A, B]);
    heard(&mut world, B, &[GROUP]);
    pass(&mut world, 30_000, &[B], &[A]);
    assert_eq!(world.ended, [], "B was told in time");
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::Read));
    heard(&mut world, A, &[]);
    pass(&mut world, 12_000, &[], &[A]);
    assert_eq!(world.ended, [GROUP]);
}

#[test]
fn a_file_without_a_name_stays_as_long_as_its_group() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::ReadWrite));
    heard(&mut world, B, &[GROUP]);
    world.ok(C, unlink("f"));
    assert_eq!(world.recalls, [], "nobody answers for a group");
    pass(&mut world, 30_000, &[B], &[A, C]);
    assert_eq!(world.removed_objects(), []);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
    pass(&mut world, 30_000, &[], &[A, B, C]);
    assert_eq!(world.removed_objects(), [object(1)]);
}

#[test]
fn set_id_bits_do_not_outlast_writes_that_nobody_reports() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::ReadWrite));
    heard(&mut world, B, &[GROUP]);
    world.ok(A, chmod(inode, 0o4755));
    heard(&mut world, A, &[]);
    heard(&mut world, B, &[]);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 100, 5_000_000_000_000_000);
    assert_eq!(attributes(&world.ok(C, stat(inode))).mode, 0o755);
}

#[test]
fn what_may_not_be_opened_is_opened_for_no_group() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(B, stat(ROOT));
    let of_session = ShardRequest::OpenGroup { inode, access: Access::Read, group: B };
    assert_eq!(world.refused(A, of_session), Error::Invalid);
    assert_eq!(world.refused(A, open_group(ROOT, Access::Read)), Error::IsDirectory);
    let gone = InodeNumber::new(ShardId(0), 999_999);
    assert_eq!(world.refused(A, open_group(gone, Access::Read)), Error::Stale);
    world.ok(A, open_group(inode, Access::Read));
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    heard(&mut world, B, &[]);
    assert_eq!(world.refused(A, open_group(inode, Access::Read)), Error::Invalid, "its number is used up");
}

#[test]
fn a_group_moves_with_its_shard() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::ReadWrite));
    heard(&mut world, B, &[GROUP]);
    world.move_shard();
    heard(&mut world, A, &[]);
    assert_eq!(world.ended, []);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
}

#[test]
fn nobody_caches_a_file_before_servers_refuse_the_rights_of_a_group_that_read_it() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    world.ok(A, open_group(inode, Access::Read));
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    world.keeps_fences = true;
    heard(&mut world, B, &[]);
    assert_eq!((&*world.ended, &*world.fences), (&[GROUP][..], &[(GROUP, object(1).node())][..]));
    assert!(world.abandoned.is_empty(), "nobody has a descriptor by it");
    let caching = Grants::DATA_SHARED | Grants::DATA_EXCLUSIVE;
    assert_eq!(grants(&world.ok(A, open(inode, Access::ReadWrite))) & caching, Grants::empty());
    world.confirm_fences();
    assert!(grants(&world.ok(A, open(inode, Access::ReadWrite))).contains(Grants::DATA_EXCLUSIVE));
}
