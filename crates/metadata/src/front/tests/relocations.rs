//! Files that get other objects, and kernels that have pages of a file without one.

use super::harness::*;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const THERE: u64 = 30;

/// Gives a file these objects, as of a grant with this stamp.
fn relocate(inode: InodeNumber, granted: u64, objects: &[u64]) -> ShardRequest {
    let objects: Vec<ObjectId> = objects.iter().copied().map(object).collect();
    let plan = if objects.len() > 1 { stripes(2, 100) } else { Plan::Whole };
    ShardRequest::Relocate { inode, granted, plan, objects, object_mtime: Timestamp(500) }
}

/// A file that nobody has open, and one that A has opened alone; with the stamp of what that granted.
fn opened_alone() -> (World, InodeNumber, u64) {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.removed_objects();
    let opened = world.ok(A, open(inode, Access::ReadWrite));
    assert!(grants(&opened).contains(Grants::DATA_EXCLUSIVE));
    let granted = world.stamp();
    (world, inode, granted)
}

#[test]
fn a_file_that_one_session_alone_uses_gets_other_objects_and_nothing_else_changes() {
    let (mut world, inode, granted) = opened_alone();
    let before = attributes(&world.ok(A, stat(inode))).clone();
    let after = attributes(&world.ok(A, relocate(inode, granted, &[THERE]))).clone();
    assert_eq!(after.layout.objects(), [object(THERE)]);
    assert_eq!((after.size, after.mtime, after.ctime), (before.size, before.mtime, before.ctime));
    assert_eq!(world.removed_objects(), [object(1)]);
    // A second one keeps an object.
    let after = attributes(&world.ok(A, relocate(inode, granted, &[THERE, 31]))).clone();
    assert_eq!(after.layout.plan(), stripes(2, 100));
    assert_eq!(world.removed_objects(), [], "it has both");
    world.ok(A, relocate(inode, granted, &[31]));
    assert_eq!(world.removed_objects(), [object(THERE)]);
    // The time of the new object is none of the file's.
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(attributes(&world.ok(B, stat(inode))).mtime, before.mtime);
}

/// A way to use a file.
type Use = fn(&mut World, InodeNumber);

#[test]
fn objects_for_a_file_that_was_used_since_are_removed() {
    let used: [(&str, Use); 4] = [
        ("opened by another session", |world, inode| {
            let token = world.waits(B, open(inode, Access::Read));
            world.answer_recalls(LeaseMode::Open);
            world.done(token);
        }),
        ("another session waits for it", |world, inode| {
            world.waits(B, open(inode, Access::Write));
        }),
        ("opened again by the same session", |world, inode| {
            world.ok(A, open(inode, Access::ReadWrite));
        }),
        ("cut by the same session", |world, inode| {
            let token = world.waits(A, resize(inode, 3));
            let (asked, _) = world.asked_storage();
            world.storage_answers(asked, 3, 90);
            world.done(token);
        }),
    ];
    for (how, uses) in used {
        let (mut world, inode, granted) = opened_alone();
        uses(&mut world, inode);
        assert_eq!(world.refused(A, relocate(inode, granted, &[THERE])), Error::WouldBlock, "{how}");
        assert_eq!(world.removed_objects(), [object(THERE)], "{how}");
    }
    let (mut world, inode, granted) = opened_alone();
    assert_eq!(world.refused(A, relocate(inode, granted - 1, &[1, THERE])), Error::WouldBlock);
    assert_eq!(world.removed_objects(), [object(THERE)], "the other one is the file's");
    assert_eq!(world.refused(B, relocate(inode, granted, &[THERE])), Error::WouldBlock);
    assert_eq!(world.refused(A, relocate(inode, granted, &[])), Error::NotEmpty);
}

#[test]
fn a_file_without_an_object_gets_another_plan_from_whoever_is_alone_with_it() {
    let mut world = World::new();
    let inode = attributes(&world.ok(A, create("f"))).inode;
    let granted = world.stamp();
    let plan = stripes(2, 1 << 20);
    let planned = |granted, plan| ShardRequest::Relocate {
        inode,
        granted,
        plan,
        objects: Vec::new(),
        object_mtime: Timestamp::default(),
    };
    assert_eq!(attributes(&world.ok(A, planned(granted, plan))).layout.plan(), plan);
    assert_eq!(attributes(&world.ok(A, planned(granted, Plan::Whole))).layout, Layout::Empty);
    assert_eq!(world.refused(B, planned(granted, plan)), Error::WouldBlock);
    let token = world.waits(B, open(inode, Access::Write));
    assert_eq!(world.refused(A, planned(granted, plan)), Error::WouldBlock, "another one waits for it");
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    assert_eq!(world.refused(A, planned(granted, plan)), Error::WouldBlock, "another one has it open");
    assert_eq!(attributes(&world.ok(A, stat(inode))).layout, Layout::Empty);
}

/// A split file to which C has written a part before closing it, and which A has opened to move it. Returns the stamp
/// of A's grant, too.
fn split_file() -> (World, InodeNumber, u64) {
    let mut world = World::new();
    world.ok(C, ShardRequest::SetInherited { inode: ROOT, change: InheritedChange::Plan(Plan::Split) });
    let inode = attributes(&world.ok(C, create("f"))).inode;
    publish(&mut world, C, inode, 1);
    close(&mut world, C, inode);
    done(&mut world, A, open(inode, Access::ReadWrite));
    let granted = world.stamp();
    (world, inode, granted)
}

fn publish(world: &mut World, writer: SessionId, inode: InodeNumber, number: u64) {
    let patterns = vec![Pattern::run(0, 10).expect("a run")];
    let parts = vec![PublishedPart { writer, object: object(number), number, patterns }];
    let request = ShardRequest::Publish { inode, group: None, parts, appends_to: None, range: RangeUse::default() };
    done(world, writer, request);
}

/// A call for which others give up what they know of the file.
fn done(world: &mut World, session: SessionId, request: ShardRequest) -> ShardAnswer {
    let token = world.call(session, request);
    world.answer_recalls(LeaseMode::Open);
    world.done(token)
}

fn close(world: &mut World, session: SessionId, inode: InodeNumber) {
    let stamp = world.stamp();
    world.ok(session, ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), stamp)] });
}

#[test]
fn a_split_file_gets_one_object_beside_its_readers_and_not_beside_its_writers() {
    let readers: [(&str, Use); 2] = [
        ("read by another session", |world, inode| {
            done(world, B, open(inode, Access::Read));
        }),
        ("read by a group", |world, inode| {
            let group = SessionId::of_group(0x6000);
            done(world, B, ShardRequest::OpenGroup { inode, access: Access::Read, group });
        }),
    ];
    for (how, reads) in readers {
        let (mut world, inode, granted) = split_file();
        reads(&mut world, inode);
        let moved = done(&mut world, A, relocate(inode, granted, &[THERE]));
        assert_eq!(attributes(&moved).layout.objects(), [object(THERE)], "{how}");
        assert_eq!(world.removed_objects(), [object(1)], "{how}");
        // A session that has the file open learns of it when it asks for parts again.
        let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since: 0, after: None, few: 0 };
        let question =
            ShardRequest::GetParts { inode, group: None, since: 0, start: 0, end: 10, extra: 0, strided, own: false };
        assert_eq!(world.refused(B, question), Error::Invalid, "{how}");
    }
    let writers: [(&str, Use); 3] = [
        ("open for writing", |world, inode| {
            done(world, B, open(inode, Access::ReadWrite));
        }),
        ("open for writing by a group", |world, inode| {
            let group = SessionId::of_group(0x6000);
            done(world, B, ShardRequest::OpenGroup { inode, access: Access::ReadWrite, group });
        }),
        ("written, and closed", |world, inode| {
            done(world, B, open(inode, Access::ReadWrite));
            publish(world, B, inode, 2);
            close(world, B, inode);
        }),
    ];
    for (how, writes) in writers {
        let (mut world, inode, granted) = split_file();
        writes(&mut world, inode);
        assert_eq!(world.refused(A, relocate(inode, granted, &[THERE])), Error::WouldBlock, "{how}");
        assert_eq!(world.removed_objects(), [object(THERE)], "{how}");
    }
}

#[test]
fn kernels_that_may_have_zeros_of_a_file_are_asked_before_it_has_its_first_object() {
    let mut world = World::new();
    let cached = OpenFlags { page_cache: PageCache::All, ..flags(Access::Read) };
    let made = world.ok(A, create("f"));
    let inode = attributes(&made).inode;
    for session in [B, C] {
        let page_cache = if session == B { cached.page_cache } else { PageCache::None };
        let request = ShardRequest::Open { inode, flags: OpenFlags { page_cache, ..cached } };
        let token = world.call(session, request);
        world.answer_recalls(LeaseMode::Open);
        world.done(token);
    }
    let token = world.call(A, commit(inode, 1, 50));
    let asked = world.recalled();
    assert!(asked.contains(&(B, LeaseKey::Data(inode), LeaseMode::Open)), "{asked:?}");
    assert!(!asked.iter().any(|(session, key, _)| *session == C && *key == LeaseKey::Data(inode)), "{asked:?}");
    assert_eq!(world.result(token), None);
    world.answer_recalls(LeaseMode::Open);
    assert_eq!(attributes(&world.done(token)).layout.objects(), [object(1)]);
    world.waits(A, commit(inode, 1, 70));
    assert_eq!(
        (world.recalled(), world.storage.len()),
        (vec![], 1),
        "the storage server alone is asked for later ones"
    );
}

/// Sessions A and B have pages of a file without an object.
fn with_pages() -> (World, InodeNumber) {
    let mut world = World::new();
    let inode = attributes(&world.ok(C, create("f"))).inode;
    let cached = OpenFlags { page_cache: PageCache::All, ..flags(Access::ReadWrite) };
    for session in [A, B] {
        let token = world.call(session, ShardRequest::Open { inode, flags: cached });
        world.answer_recalls(LeaseMode::Open);
        world.done(token);
    }
    (world, inode)
}

#[test]
fn a_writer_whose_time_is_up_while_its_first_report_waits_for_a_silent_session_has_another_term() {
    for answers in [true, false] {
        let (mut world, inode) = with_pages();
        let first = world.waits(A, commit(inode, 1, 50));
        world.pass(500, &[A, B, C]);
        let second = world.waits(C, commit(inode, 2, 70));
        // B is heard a second longer, so that its session ends after A was to answer.
        world.pass(1000, &[A, B, C]);
        world.expire(&[A, C]);
        assert_eq!(attributes(&world.done(first)).layout.objects(), [object(1)]);
        assert_eq!(world.ok(A, ShardRequest::Ping), ShardAnswer::Done, "its session goes on");
        if answers {
            world.answer_recalls(LeaseMode::Open);
            let (asked, _) = world.asked_storage();
            world.storage_answers(asked, 50, 90);
            assert_eq!(attributes(&world.done(second)).layout.objects(), [object(1)], "the first one's");
        } else {
            world.expire(&[A, C]);
            assert!(world.shard.refuses(A), "no third term");
        }
    }
}

#[test]
fn a_writer_whose_first_report_waits_for_a_silent_session_has_time_to_answer_afterwards() {
    let (mut world, inode) = with_pages();
    // B is silent. A's report waits for it, and so A answers nothing about the file.
    let first = world.waits(A, commit(inode, 1, 50));
    let second = world.waits(C, commit(inode, 2, 70));
    let asked = world.recalled();
    assert!([A, B].iter().all(|session| asked.contains(&(*session, LeaseKey::Data(inode), LeaseMode::Open))));
    world.expire(&[A, C]);
    assert_eq!(attributes(&world.done(first)).layout.objects(), [object(1)]);
    assert_eq!(world.ok(A, ShardRequest::Ping), ShardAnswer::Done, "its session goes on");
    world.answer_recalls(LeaseMode::Open);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 50, 90);
    assert_eq!(attributes(&world.done(second)).layout.objects(), [object(1)], "the first one's");
}
