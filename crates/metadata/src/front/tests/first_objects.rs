//! Files that are made with their objects, by the call that opens them for a group.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

const GROUP: SessionId = SessionId::of_group(0x6000);
const SLOT: SlotIndex = SlotIndex(3);
/// The next session of the client of `A`.
const NEXT: SessionId = SessionId(11);
const FOR_SESSION: Grants = Grants::OPEN.union(Grants::DATA_EXCLUSIVE);

fn objects(count: u16) -> Vec<ObjectId> {
    (0..count).map(|index| ObjectId::new(NodeId(4 + index), 7)).collect()
}

/// An object of a batch that the session has leased.
fn leased(object: ObjectId, session: SessionId) -> LeasedObject {
    let claims = capability::CapabilityClaims {
        object: ObjectId::new(object.node(), object.sequence() - 5),
        count: 8,
        inode: InodeNumber::from_raw(0),
        generation: Generation(1),
        epoch: map::FIRST_EPOCH,
        expires_seconds: 1_000_100,
        owner_uid: 0,
        rights: Rights::READ | Rights::WRITE | Rights::CREATE,
        session,
    };
    LeasedObject { object, capability: config_of(0).node_key.sign(&claims) }
}

fn first(plan: Plan, count: u16) -> FirstObjects {
    FirstObjects { plan, objects: objects(count).into_iter().map(|object| leased(object, A)).collect() }
}

fn for_group() -> OpenFlags {
    let group = Some(ForGroup { group: GROUP, layouts: GroupLayouts::Unsplit });
    OpenFlags { group, ..flags(Access::ReadWrite) }
}

fn make(flags: OpenFlags, mode: u16, plan: Plan, objects: FirstObjects) -> ShardRequest {
    let create = Some(CreateFile { mode, exclusive: false, plan: Some(plan) });
    ShardRequest::OpenAt { parent: ROOT, name: name("f"), flags, create, objects: Some(objects) }
}

fn make_whole() -> ShardRequest {
    make(for_group(), 0o644, Plan::Whole, first(Plan::Whole, 1))
}

/// The session and the rights of the capabilities.
fn rights(answer: &ShardAnswer) -> Vec<(ObjectId, SessionId, Rights)> {
    let ShardAnswer::Opened { capability, others, .. } = answer else { panic!("{answer:?}") };
    capability.iter().chain(others).map(|it| (it.object, it.session, it.rights)).collect()
}

fn is_made_for_group(answer: &ShardAnswer) -> bool {
    matches!(answer, ShardAnswer::Opened { created: true, .. })
        && grants(answer).contains(Grants::OPEN | Grants::FOR_GROUP)
}

/// The questions to storage servers that are open, each with the token of its answer.
fn asked(world: &mut World) -> (Vec<u64>, Vec<StorageRequest>) {
    let asked = std::mem::take(&mut world.storage).into_iter();
    asked.map(|(token, _, request)| (token.expect("a question with a token"), request)).unzip()
}

fn makes(inode: InodeNumber, count: u16) -> Vec<StorageRequest> {
    objects(count).into_iter().map(|object| StorageRequest::Make { inode, object }).collect()
}

/// Has storage servers make the objects of a file, which nobody has written, and tell this time.
fn answer_makes(world: &mut World, inode: InodeNumber, count: u16, mtime: i64) {
    let (tokens, requests) = asked(world);
    assert_eq!(requests, makes(inode, count));
    tokens.into_iter().for_each(|token| world.storage_answers(token, 0, mtime));
}

fn heard(world: &mut World, session: SessionId, groups: &[SessionId]) {
    world.event(Event::Heard { session, groups: groups.iter().copied().collect() });
}

#[test]
fn one_call_makes_a_file_with_objects_and_opens_it_for_a_group() {
    for (plan, count) in [(Plan::Whole, 1), (stripes(3, 1 << 16), 3), (stripes(5, 1 << 16), 3)] {
        let mut world = World::with_twin();
        let made = world.ok(A, make(for_group(), 0o644, plan, first(plan, count)));
        assert!(is_made_for_group(&made), "{made:?}");
        assert_eq!(attributes(&made).layout.objects(), objects(count));
        let all = Rights::READ | Rights::WRITE | Rights::GROUP | Rights::CREATE;
        let expected: Vec<_> = objects(count).into_iter().map(|object| (object, GROUP, all)).collect();
        assert_eq!(rights(&made), expected);
        assert_eq!(asked(&mut world).1, [], "no storage server is asked");
    }
}

#[test]
fn objects_are_made_before_anybody_else_has_rights_to_them() {
    let plan = stripes(3, 1 << 16);
    for by_group in [false, true] {
        let mut world = World::with_twin();
        let made = world.ok(A, make(for_group(), 0o644, plan, first(plan, 3)));
        let before = attributes(&made).clone();
        let request = match by_group {
            false => open(before.inode, Access::Read),
            true => ShardRequest::OpenGroup {
                inode: before.inode,
                access: Access::ReadWrite,
                group: SessionId::of_group(8),
            },
        };
        let token = world.waits(B, request);
        answer_makes(&mut world, before.inode, 3, 2_000_000_000);
        let opened = world.done(token);
        assert_eq!(rights(&opened).len(), 3);
        assert!(rights(&opened).iter().all(|(.., rights)| !rights.contains(Rights::CREATE)), "{opened:?}");
        let after = attributes(&opened);
        assert_eq!((after.size, after.mtime, after.ctime), (0, before.mtime, before.ctime), "nobody has written");
        // Once is enough.
        world.ok(C, open(before.inode, Access::ReadWrite));
        assert_eq!(asked(&mut world).1, []);
    }
}

#[test]
fn what_members_write_counts_though_nobody_has_asked_before() {
    let mut world = World::with_twin();
    let made = world.ok(A, make_whole());
    let inode = attributes(&made).inode;
    let later = attributes(&made).mtime.0 + 5;
    for (size, mtime) in [(0, later), (10, later + 5), (10, later + 5)] {
        let token = world.waits(B, stat(inode));
        let (tokens, _) = asked(&mut world);
        world.storage_answers(tokens[0], size, mtime);
        let told = world.done(token);
        let expected = if size == 0 { attributes(&made).mtime } else { Timestamp(mtime) };
        assert_eq!((attributes(&told).size, attributes(&told).mtime), (size, expected));
    }
    // The same with the first question.
    let mut world = World::with_twin();
    let inode = attributes(&world.ok(A, make_whole())).inode;
    for _ in 0..2 {
        let token = world.waits(B, stat(inode));
        let (tokens, _) = asked(&mut world);
        world.storage_answers(tokens[0], 10, later);
        let told = world.done(token);
        assert_eq!((attributes(&told).size, attributes(&told).mtime), (10, Timestamp(later)));
    }
}

#[test]
fn the_objects_of_a_client_that_is_gone_are_made_when_its_group_ends() {
    let plan = stripes(3, 1 << 16);
    let mut world = World::with_twin();
    let inode = attributes(&world.ok(A, make(for_group(), 0o644, plan, first(plan, 3)))).inode;
    world.ok(B, stat(ROOT));
    world.expire(&[B]);
    world.expire(&[B]);
    assert!(world.ended.contains(&GROUP), "{:?}", world.ended);
    for object in objects(3) {
        let (tokens, requests) = asked(&mut world);
        assert_eq!(requests, [StorageRequest::Make { inode, object }]);
        world.storage_answers(tokens[0], 0, 80);
    }
    let told = world.ok(B, open(inode, Access::ReadWrite));
    assert_eq!((attributes(&told).size, rights(&told).len()), (0, 3));
    assert_eq!(asked(&mut world).1, []);
}

#[test]
fn no_group_is_opened_for_a_session_that_has_ended_while_objects_were_made() {
    const OTHER: SessionId = SessionId::of_group(0x7000);
    for is_lost in [false, true] {
        let mut world = World::with_twin();
        let inode = attributes(&world.ok(A, make_whole())).inode;
        world.ok(B, stat(ROOT));
        let opens = world.waits(B, ShardRequest::OpenGroup { inode, access: Access::Read, group: OTHER });
        if is_lost {
            world.event(Event::Lost { session: B });
        } else {
            world.ok(B, ShardRequest::EndSession);
        }
        answer_makes(&mut world, inode, 1, 70);
        assert_eq!(world.result(opens), Some(Err(Error::SessionEnded)));
        assert!(world.shard.merely_open(OTHER).is_empty() && !world.shard.merely_open(GROUP).is_empty());
        // The objects that were made for it stay with the file.
        let told = world.ok(C, ShardRequest::OpenGroup { inode, access: Access::Read, group: OTHER });
        assert_eq!((grants(&told), rights(&told).len()), (Grants::OPEN, 1));
    }
}

#[test]
fn a_size_is_set_in_objects_that_are_there() {
    let mut world = World::with_twin();
    let inode = attributes(&world.ok(A, make_whole())).inode;
    let token = world.waits(A, resize(inode, 300));
    answer_makes(&mut world, inode, 1, 80);
    let (tokens, requests) = asked(&mut world);
    assert_eq!(requests, [StorageRequest::Truncate { inode, object: objects(1)[0], size: 300, by: A }]);
    world.storage_answers(tokens[0], 300, 90);
    assert_eq!(attributes(&world.done(token)).size, 300);
    // An open by name that cuts the file opens that which has the name when it is cut.
    let mut world = World::with_twin();
    let made = attributes(&world.ok(A, make_whole())).inode;
    let cut = OpenFlags { truncate: true, ..flags(Access::Write) };
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    let request = ShardRequest::OpenAt { parent: ROOT, name: name("f"), flags: cut, create, objects: None };
    let token = world.waits(B, request);
    let (tokens, _) = asked(&mut world);
    world.ok(A, rename("f", "g"));
    world.storage_answers(tokens[0], 0, 80);
    world.answer_recalls(LeaseMode::None);
    let opened = world.done(token);
    assert!(attributes(&opened).inode != made, "it has made another one: {opened:?}");
}

#[test]
fn a_file_whose_storage_server_is_away_is_opened_all_the_same() {
    let mut world = World::with_twin();
    let inode = attributes(&world.ok(A, make_whole())).inode;
    for error in [Error::Unreachable, Error::NoSpace] {
        let token = world.waits(B, open(inode, Access::ReadWrite));
        let (tokens, requests) = asked(&mut world);
        assert_eq!(requests, makes(inode, 1));
        world.event(Event::StorageAnswer { token: tokens[0], result: Err(error) });
        assert_eq!(rights(&world.done(token)), [(objects(1)[0], B, Rights::READ | Rights::WRITE)]);
    }
    // The next one may find it there.
    let token = world.waits(C, open(inode, Access::Read));
    answer_makes(&mut world, inode, 1, 80);
    world.done(token);
}

#[test]
fn objects_that_the_session_may_not_give_are_not_taken() {
    let wrong = |change: &dyn Fn(&mut LeasedObject)| {
        let mut first = first(Plan::Whole, 1);
        change(&mut first.objects[0]);
        make(for_group(), 0o644, Plan::Whole, first)
    };
    let of_file = capability::CapabilityClaims {
        object: objects(1)[0],
        count: 1,
        inode: InodeNumber::new(ShardId(0), 77),
        generation: Generation(1),
        epoch: map::FIRST_EPOCH,
        expires_seconds: 1_000_100,
        owner_uid: 0,
        rights: Rights::READ | Rights::WRITE | Rights::CREATE | Rights::GROUP,
        session: A,
    };
    let of_file = config_of(0).node_key.sign(&of_file);
    let striped = stripes(3, 1 << 16);
    let split = Some(ForGroup { group: GROUP, layouts: GroupLayouts::Split });
    for request in [
        wrong(&|it| *it = leased(it.object, B)),
        wrong(&|it| it.object = ObjectId::new(it.object.node(), 100)),
        wrong(&|it| it.capability.count = 1000),
        wrong(&|it| it.capability = of_file),
        make(for_group(), 0o644, striped, first(Plan::Whole, 1)),
        make(for_group(), 0o644, Plan::Whole, first(striped, 1)),
        make(for_group(), 0o644, striped, first(striped, 4)),
        make(for_group(), 0o644, Plan::Whole, first(Plan::Whole, 0)),
        make(for_group(), 0o4755, Plan::Whole, first(Plan::Whole, 1)),
        make(OpenFlags { truncate: true, ..for_group() }, 0o644, Plan::Whole, first(Plan::Whole, 1)),
        make(OpenFlags { group: None, ..for_group() }, 0o644, Plan::Whole, first(Plan::Whole, 1)),
        make(OpenFlags { group: split, ..for_group() }, 0o644, Plan::Whole, first(Plan::Whole, 1)),
    ] {
        let mut world = World::with_twin();
        let made = world.ok(A, request.clone());
        let is_made = matches!(made, ShardAnswer::Opened { created: true, .. });
        assert!(is_made && grants(&made).contains(FOR_SESSION), "{request:?}: {made:?}");
        assert_eq!((attributes(&made).layout.objects(), rights(&made)), (&[][..], Vec::new()), "{request:?}");
    }
    let mut world = World::with_twin();
    world.now.wall = Timestamp::from_parts(1_000_101, 0);
    assert!(grants(&world.ok(A, make_whole())).contains(FOR_SESSION), "the lease of the identifiers has expired");
    // A file that is there keeps what it has.
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    let opened = world.ok(A, make_whole());
    assert_eq!((attributes(&opened).inode, attributes(&opened).layout.objects()), (inode, &[object(1)][..]));
    assert_eq!(rights(&opened), [(object(1), GROUP, Rights::READ | Rights::WRITE | Rights::GROUP)]);
}

#[test]
fn a_duplicate_request_gets_the_same_rights() {
    let mut world = World::with_twin();
    let send = |world: &mut World| {
        let token = world.call_in(A, user(0), (SLOT, 1), make_whole());
        world.done(token)
    };
    let (made, again) = (send(&mut world), send(&mut world));
    assert!(is_made_for_group(&made) && is_made_for_group(&again), "{again:?}");
    assert_eq!((attributes(&made), rights(&made)), (attributes(&again), rights(&again)));
}

#[test]
fn the_next_session_of_a_client_opens_what_it_has_made() {
    let mut world = World::new();
    let origin = |session| Origin { session, slot: Slot { of: NodeId(1), index: SLOT }, sequence: 1 };
    let made = world.call_of(origin(A), user(0), make_whole());
    let inode = attributes(&world.done(made)).inode;
    world.event(Event::Lost { session: A });
    let repeated = world.repeat(origin(NEXT), user(0), make_whole(), &[origin(A)]);
    answer_makes(&mut world, inode, 1, 80);
    let repeated = world.done(repeated);
    assert!(is_made_for_group(&repeated) && attributes(&repeated).inode == inode, "{repeated:?}");
}

#[test]
fn objects_of_a_file_that_is_removed_are_removed_whether_they_are_there_or_not() {
    let mut world = World::with_twin();
    world.ok(A, make_whole());
    world.ok(B, stat(ROOT));
    let token = world.call(B, unlink("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    world.ok(A, ShardRequest::EndSession);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
    assert_eq!(world.fences, []);
    world.expire(&[B]);
    assert_eq!(world.removed_objects(), objects(1));
    // A question that was on its way finds nobody.
    let late = Ok(StorageAnswer::Object { size: 0, mtime: Timestamp(9) });
    asked(&mut world).0.into_iter().for_each(|token| world.event(Event::StorageAnswer { token, result: late.clone() }));
}
