//! Opens that are for a group by the call that opens the name, or makes it.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const GROUP: SessionId = SessionId::of_group(0x6000);
const SLOT: SlotIndex = SlotIndex(3);
/// The next session of the client of `A`.
const NEXT: SessionId = SessionId(11);

fn for_group(layouts: GroupLayouts) -> OpenFlags {
    OpenFlags { group: Some(ForGroup { group: GROUP, layouts }), ..flags(Access::ReadWrite) }
}

/// Opens a name for the group, and makes it with this layout if it is not there.
fn open_at(text: &str, flags: OpenFlags, plan: Option<Plan>) -> ShardRequest {
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan });
    ShardRequest::OpenAt { parent: ROOT, name: name(text), flags, create, objects: None }
}

fn make_split(text: &str) -> ShardRequest {
    open_at(text, for_group(GroupLayouts::All), Some(Plan::Split))
}

fn heard(world: &mut World, session: SessionId, groups: &[SessionId]) {
    world.event(Event::Heard { session, groups: groups.iter().copied().collect() });
}

fn is_for_group(answer: &ShardAnswer) -> bool {
    grants(answer).contains(Grants::OPEN | Grants::FOR_GROUP)
}

/// The session and the rights of the first capability.
fn right(answer: &ShardAnswer) -> (SessionId, Rights) {
    match answer {
        ShardAnswer::Opened { capability: Some(capability), .. } => (capability.session, capability.rights),
        other => panic!("no right in {other:?}"),
    }
}

#[test]
fn one_call_makes_a_split_file_and_opens_it_for_a_group() {
    let mut world = World::with_twin();
    let made = world.ok(A, make_split("f"));
    assert!(is_for_group(&made) && matches!(made, ShardAnswer::Opened { created: true, .. }), "{made:?}");
    let inode = attributes(&made).inode;
    // The opener has joined: it publishes, though no renewal has named the group yet.
    let patterns = vec![Pattern::run(0, 10).expect("a run")];
    let parts = vec![PublishedPart { writer: A, object: object(1), number: 1, patterns }];
    let told = world.ok(
        A,
        ShardRequest::Publish { inode, group: Some(GROUP), parts, appends_to: None, range: RangeUse::default() },
    );
    assert_eq!(attributes(&told).size, 10);
    // It is the group that has the file open, and not the session, which has nothing to give back.
    world.ok(B, stat(ROOT));
    heard(&mut world, B, &[GROUP]);
    world.ok(A, ShardRequest::EndSession);
    let token = world.call(C, unlink("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert_eq!(world.removed_objects(), []);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
}

#[test]
fn one_call_opens_a_file_that_is_there_for_a_group() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    let opened = world.ok(A, open_at("f", for_group(GroupLayouts::Unsplit), None));
    assert!(is_for_group(&opened) && attributes(&opened).inode == inode, "{opened:?}");
    assert_eq!(right(&opened), (GROUP, Rights::READ | Rights::WRITE | Rights::GROUP));
    let caching = Grants::DATA_SHARED | Grants::DATA_EXCLUSIVE;
    assert_eq!(grants(&world.ok(B, open(inode, Access::Read))) & caching, Grants::empty());
    // By its number, as a name of another shard is opened.
    let by_number = OpenFlags {
        group: Some(ForGroup { group: SessionId::of_group(7), layouts: GroupLayouts::All }),
        ..flags(Access::Read)
    };
    let opened = world.ok(B, ShardRequest::Open { inode, flags: by_number });
    assert_eq!(right(&opened), (SessionId::of_group(7), Rights::READ | Rights::GROUP));
}

#[test]
fn it_recalls_what_the_opener_itself_holds() {
    let mut world = World::with_twin();
    let inode = world.file("f", 1);
    assert!(grants(&world.ok(A, open(inode, Access::ReadWrite))).contains(Grants::DATA_EXCLUSIVE));
    let token = world.waits(A, open_at("f", for_group(GroupLayouts::All), None));
    assert!(world.recalled().contains(&(A, LeaseKey::Data(inode), LeaseMode::Open)), "{:?}", world.recalls);
    world.answer_recalls(LeaseMode::Open);
    assert!(is_for_group(&world.done(token)));
}

#[test]
fn what_cannot_be_for_the_group_is_opened_for_the_session() {
    let mut world = World::with_twin();
    let inode = world.file("whole", 1);
    let of_session = |world: &mut World, request: ShardRequest| {
        let token = world.call(A, request.clone());
        world.answer_recalls(LeaseMode::Open);
        let opened = world.done(token);
        assert!(!is_for_group(&opened) && grants(&opened).contains(Grants::OPEN), "{request:?}: {opened:?}");
        assert!(!world.shard.merely_open(GROUP).contains(&attributes(&opened).inode));
        opened
    };
    let opened = of_session(&mut world, open_at("whole", for_group(GroupLayouts::Split), None));
    assert!(grants(&opened).contains(Grants::DATA_EXCLUSIVE) && right(&opened).0 == A);
    of_session(&mut world, open_at("split", for_group(GroupLayouts::Unsplit), Some(Plan::Split)));
    let made = of_session(&mut world, open_at("new", for_group(GroupLayouts::All), None));
    assert!(grants(&made).contains(Grants::DATA_EXCLUSIVE), "it has no objects");
    let cut = OpenFlags { truncate: true, ..for_group(GroupLayouts::All) };
    of_session(&mut world, open_at("split", cut, None));
    // Set-id bits go before somebody writes; a reader leaves them.
    world.ok(A, chmod(inode, 0o4755));
    of_session(&mut world, open_at("whole", for_group(GroupLayouts::All), None));
    let reads = OpenFlags { access: Access::Read, ..for_group(GroupLayouts::All) };
    let token = world.call(A, open_at("whole", reads, None));
    world.answer_recalls(LeaseMode::Open);
    assert!(is_for_group(&world.done(token)));
    // Its number is used up.
    world.ok(B, stat(ROOT));
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
    of_session(&mut world, open_at("split", for_group(GroupLayouts::All), None));
}

#[test]
fn a_duplicate_request_is_answered_for_the_group_as_long_as_that_lives() {
    let mut world = World::with_twin();
    let send = |world: &mut World| {
        let token = world.call_in(A, user(0), (SLOT, 1), make_split("f"));
        world.done(token)
    };
    let made = send(&mut world);
    let inode = attributes(&made).inode;
    let again = send(&mut world);
    assert!(is_for_group(&again) && attributes(&again).inode == inode, "{again:?}");
    assert!(world.shard.merely_open(A).is_empty(), "the session has it open by neither");
    world.ok(B, stat(ROOT));
    heard(&mut world, B, &[GROUP]);
    heard(&mut world, A, &[]);
    heard(&mut world, B, &[]);
    assert_eq!(world.ended, [GROUP]);
    let late = send(&mut world);
    assert!(!is_for_group(&late) && grants(&late).contains(Grants::OPEN), "{late:?}");
}

#[test]
fn the_next_session_of_an_opener_opens_for_the_same_group() {
    let mut world = World::new();
    let origin = |session| Origin { session, slot: Slot { of: NodeId(1), index: SLOT }, sequence: 1 };
    let made = world.call_of(origin(A), user(0), make_split("f"));
    let made = world.done(made);
    // A group that nobody has joined lasts for a term from its open on, a session from its latest call.
    world.event(Event::Lost { session: A });
    let repeated = world.repeat(origin(NEXT), user(0), make_split("f"), &[origin(A)]);
    let repeated = world.done(repeated);
    assert!(is_for_group(&repeated) && matches!(repeated, ShardAnswer::Opened { created: true, .. }), "{repeated:?}");
    assert_eq!(attributes(&repeated).inode, attributes(&made).inode);
    heard(&mut world, NEXT, &[]);
    assert_eq!(world.ended, [A], "another session may be about to join");
}
