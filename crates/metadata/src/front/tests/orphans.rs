//! Inodes without a name: who may still open them, and for how long.

use super::harness::*;
use crate::front::Event;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::shard::*;
use weft_protocol::*;

/// What a kernel above that has forgotten an inode has its client send.
fn number_back(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Inode(inode), u64::MAX)] }
}

fn close(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Release { leases: vec![(LeaseKey::Data(inode), u64::MAX)] }
}

/// A mount looked a file up, and another session removes it.
fn removed_after_a_lookup(world: &mut World) -> InodeNumber {
    let inode = world.file("f", 1);
    world.ok(A, lookup("f"));
    let token = world.waits(B, unlink("f"));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    inode
}

#[test]
fn an_inode_that_was_looked_up_can_be_opened_for_a_term_after_its_last_name_is_gone() {
    let mut world = World::new();
    let inode = removed_after_a_lookup(&mut world);
    world.pass(SESSION_TERM_MS - 500, &[A, B]);
    assert_eq!(attributes(&world.ok(A, stat(inode))).links, 0);
    world.ok(A, open(inode, Access::Read));
    world.pass(SESSION_TERM_MS, &[A, B]);
    assert_eq!(world.removed_objects(), [], "it is open");
    world.ok(A, close(inode));
    assert_eq!(world.removed_objects(), [object(1)]);

    let mut world = World::new();
    let inode = removed_after_a_lookup(&mut world);
    world.pass(SESSION_TERM_MS, &[A, B]);
    assert_eq!(world.removed_objects(), [object(1)], "the term is over");
    assert_eq!(world.refused(A, open(inode, Access::Read)), Error::Stale);
    assert_eq!(world.shard.back().orphans(), []);
}

#[test]
fn permissions_count_for_an_inode_without_a_name_too() {
    let mut world = World::new();
    let inode = removed_after_a_lookup(&mut world);
    let token = world.call_as(A, user(7), open(inode, Access::Write));
    assert_eq!(world.result(token), Some(Err(Error::AccessDenied)));
    let token = world.call_as(A, user(7), open(inode, Access::Read));
    assert!(matches!(world.result(token), Some(Ok(_))));
}

#[test]
fn a_rename_over_a_name_keeps_what_it_replaces() {
    let mut world = World::new();
    let (old, new) = (world.file("f", 1), world.file("g", 2));
    world.ok(A, lookup("f"));
    let token = world.waits(B, rename("g", "f"));
    world.answer_recalls(LeaseMode::Open);
    let ShardAnswer::Renamed { inode, replaced, .. } = world.done(token) else { panic!("a rename is answered so") };
    assert_eq!((inode, replaced), (new, Some((old, 0))));
    world.ok(A, open(old, Access::Read));
    world.ok(A, close(old));
    world.ok(A, number_back(old));
    assert_eq!(world.removed_objects(), [object(1)]);
}

#[test]
fn a_file_is_removed_at_once_when_nobody_can_open_it() {
    // Nobody was told of it.
    let mut world = World::new();
    world.file("f", 1);
    world.ok(B, unlink("f"));
    assert_eq!(world.removed_objects(), [object(1)]);
    // Whoever was told has no kernel above.
    let mut world = World::new();
    world.file("f", 1);
    world.ok(A, lookup("f"));
    let token = world.waits(B, unlink("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert_eq!(world.removed_objects(), [object(1)]);
    // All kernels have forgotten it.
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, lookup("f"));
    world.ok(B, lookup("f"));
    let token = world.waits(B, unlink("f"));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    world.ok(B, number_back(inode));
    assert_eq!(world.removed_objects(), []);
    world.ok(A, number_back(inode));
    assert_eq!(world.removed_objects(), [object(1)]);
    // The session of the only one that was told has ended.
    let mut world = World::new();
    removed_after_a_lookup(&mut world);
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.removed_objects(), [object(1)]);
}

#[test]
fn a_lookup_without_a_lease_counts_for_a_term() {
    for (pause_ms, kept) in [(0, true), (SESSION_TERM_MS - 1000, true), (3 * SESSION_TERM_MS, false)] {
        let mut world = World::new();
        let inode = unleased_lookup(&mut world);
        world.pass(pause_ms, &[A, B]);
        let token = world.waits(C, unlink("f"));
        world.answer_recalls(LeaseMode::None);
        world.done(token);
        assert_eq!(world.removed_objects().is_empty(), kept, "after {pause_ms} ms");
        // B made the change, and was told what came of it.
        for session in [A, B] {
            world.ok(session, number_back(inode));
        }
        assert_eq!(world.removed_objects().is_empty(), !kept, "after {pause_ms} ms");
    }
}

#[test]
fn a_number_that_is_given_back_stays_with_whoever_was_told_of_it_since() {
    for again_after_removal in [false, true] {
        let mut world = World::new();
        let inode = world.file("f", 1);
        world.ok(A, lookup("f"));
        let chmod = world.waits(B, chmod(inode, 0o600));
        world.answer_recalls(LeaseMode::Open);
        world.done(chmod);
        let back = |stamp| ShardRequest::Release { leases: vec![(LeaseKey::Inode(inode), stamp)] };
        world.ok(B, back(world.stamp()));
        // A's kernel has forgotten the number, and asks for the inode once more: that overtakes what is given back.
        let seen = world.stamp();
        if !again_after_removal {
            world.ok(A, lookup("f"));
            world.ok(A, back(seen));
        }
        let token = world.call(C, unlink("f"));
        world.answer_recalls(LeaseMode::None);
        world.done(token);
        if again_after_removal {
            world.ok(A, stat(inode));
            world.ok(A, back(seen));
        }
        world.ok(A, open(inode, Access::Read));
        world.ok(A, close(inode));
        world.ok(A, back(world.stamp()));
        assert_eq!(world.removed_objects(), [object(1)]);
    }
}

#[test]
fn a_symbolic_link_is_read_after_it_was_replaced() {
    let mut world = World::new();
    let link = |text: &str, target: &[u8]| ShardRequest::MakeSymlink {
        parent: ROOT,
        name: name(text),
        target: SymlinkTarget(target.to_vec()),
    };
    let inode = attributes(&world.ok(A, link("current", b"one"))).inode;
    world.ok(B, link("next", b"two"));
    let token = world.waits(B, rename("next", "current"));
    world.answer_recalls(LeaseMode::Open);
    world.done(token);
    let target = world.ok(A, ShardRequest::ReadLink { inode });
    assert_eq!(target, ShardAnswer::Target(SymlinkTarget(b"one".to_vec())));
    world.ok(A, number_back(inode));
    assert_eq!(world.refused(A, ShardRequest::ReadLink { inode }), Error::Stale);
}

/// What an open directory without a name answers.
fn check_dead(world: &mut World, session: SessionId, directory: InodeNumber) {
    let answer = world.ok(session, stat(directory));
    assert_eq!((attributes(&answer).links, attributes(&answer).size), (0, 0));
    match world.ok(session, list(directory, None, 10)) {
        ShardAnswer::Page(page) => assert_eq!((page.entries.len(), page.next), (0, None)),
        other => panic!("{other:?}"),
    }
    world.ok(session, chmod(directory, 0o500));
    assert_eq!(attributes(&world.ok(session, stat(directory))).mode, 0o500);
    let absent = world.ok(session, ShardRequest::Lookup { parent: directory, name: name("x") });
    assert!(matches!(absent, ShardAnswer::Absent { .. }), "{absent:?}");
    let file = ShardRequest::OpenAt {
        parent: directory,
        name: name("x"),
        flags: flags(Access::Write),
        create: Some(CreateFile { mode: 0o644, exclusive: false, plan: None }),
        objects: None,
    };
    let symlink =
        ShardRequest::MakeSymlink { parent: directory, name: name("x"), target: SymlinkTarget(b"t".to_vec()) };
    for make in [file, symlink, mkdir(directory, "x")] {
        assert_eq!(world.refused(session, make), Error::NotFound, "nothing is made in it");
    }
    world.ok(session, create("other"));
    let (mode, guess) = (RenameMode::Replace, None);
    let (new_parent, new_name) = (directory, name("x"));
    let into = ShardRequest::Rename { parent: ROOT, name: name("other"), new_parent, new_name, mode, guess };
    assert_eq!(world.refused(session, into), Error::NotFound);
}

#[test]
fn a_removed_directory_stays_while_it_is_open() {
    for by_rename in [false, true] {
        let mut world = World::new();
        let directory = attributes(&world.ok(A, mkdir(ROOT, "d"))).inode;
        let answer = world.ok(A, ShardRequest::HoldDirectory { inode: directory });
        assert!(grants(&answer).contains(Grants::OPEN));
        world.ok(B, mkdir(ROOT, "e"));
        let change = if by_rename { rename("e", "d") } else { rmdir(ROOT, "d") };
        let token = world.waits(B, change);
        world.answer_recalls(LeaseMode::None);
        world.done(token);
        world.pass(2 * SESSION_TERM_MS, &[A, B]);
        check_dead(&mut world, A, directory);
        world.ok(A, number_back(directory));
        assert_eq!(attributes(&world.ok(A, stat(directory))).links, 0, "it is open");
        world.ok(A, number_back(directory));
        world.ok(A, close(directory));
        assert_eq!(world.refused(A, stat(directory)), Error::Stale);
    }
}

#[test]
fn a_removed_directory_can_be_held_by_whoever_opened_it_before() {
    let mut world = World::new();
    let directory = attributes(&world.ok(A, mkdir(ROOT, "d"))).inode;
    world.ok(A, rmdir(ROOT, "d"));
    world.ok(A, ShardRequest::HoldDirectory { inode: directory });
    world.pass(2 * SESSION_TERM_MS, &[A]);
    check_dead(&mut world, A, directory);
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.refused(B, stat(directory)), Error::Stale, "it ends with the session");
}

#[test]
fn only_directories_are_held_as_directories() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    assert_eq!(world.refused(A, ShardRequest::HoldDirectory { inode }), Error::NotDirectory);
    let gone = InodeNumber::new(ShardId(0), 999);
    assert_eq!(world.refused(A, ShardRequest::HoldDirectory { inode: gone }), Error::Stale);
    world.event(Event::Tick);
}

/// Names that a batch has removed.
fn batch_removed(answer: &ShardAnswer) -> usize {
    match answer {
        ShardAnswer::RemovedBatch { removed, .. } => removed.len(),
        other => panic!("a batch is answered by {other:?}"),
    }
}

#[test]
fn a_batch_of_removals_ends_before_a_name_that_needs_a_recall_or_is_refused() {
    let mut world = World::new();
    let names = ["a", "b", "c", "d", "e"];
    for (number, text) in (1..).zip(names) {
        world.file(text, number);
    }
    world.ok(A, mkdir(ROOT, "directory"));
    world.ok(C, lookup("c"));
    let removed = batch_removed(&world.ok(B, unlink_batch(&names)));
    assert_eq!(removed, 2, "another client knows the third name");
    let token = world.waits(B, unlink_batch(&names[2..]));
    world.answer_recalls(LeaseMode::Open);
    assert_eq!(batch_removed(&world.done(token)), 3, "only the first one is waited for");
    assert_eq!(world.refused(B, unlink_batch(&names)), Error::NotFound);
    assert_eq!(world.refused(B, unlink_batch(&["directory", "a"])), Error::IsDirectory);
    assert_eq!(world.refused(B, unlink_batch(&[])), Error::Invalid);
    world.file("f", 7);
    assert_eq!(batch_removed(&world.ok(B, unlink_batch(&["f", "directory"]))), 1);
    assert_eq!(world.removed_objects(), [1, 2, 4, 5, 7].map(object), "the third one may be opened for a term");
    world.pass(SESSION_TERM_MS, &[A, B, C]);
    assert_eq!(world.removed_objects(), [object(3)]);
}

/// Makes a file `f`, whose attributes A is told without a lease. Returns the inode.
fn unleased_lookup(world: &mut World) -> InodeNumber {
    let inode = world.file("f", 1);
    world.ok(A, lookup("f"));
    let token = world.waits(B, chmod(inode, 0o600));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert!(!grants(&world.ok(A, lookup("f"))).contains(Grants::ATTRIBUTES), "recalled a moment ago");
    inode
}

/// A was told of a file without a lease, and B removes it. Returns the inode.
fn removed_after_an_unleased_lookup(world: &mut World) -> InodeNumber {
    let inode = unleased_lookup(world);
    let token = world.call(B, unlink("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    world.ok(B, number_back(inode));
    inode
}

#[test]
fn whoever_was_told_of_a_removed_file_without_a_lease_is_asked_whether_it_uses_it() {
    let mut world = World::new();
    let inode = removed_after_an_unleased_lookup(&mut world);
    let asked = (A, LeaseKey::Inode(inode), LeaseMode::None);
    assert_eq!(world.recalled(), [asked], "and not who removed it");
    assert_eq!(world.removed_objects(), []);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(world.removed_objects(), [], "an answer does not say what it had been told");
    world.ok(A, number_back(inode));
    assert_eq!(world.removed_objects(), [object(1)]);
}

#[test]
fn nobody_is_refused_who_does_not_say_whether_it_uses_a_removed_file() {
    let mut world = World::new();
    let inode = removed_after_an_unleased_lookup(&mut world);
    let count = |world: &World| world.recalls.iter().filter(|(_, recall)| recall.key == LeaseKey::Inode(inode)).count();
    world.pass(2500, &[A, B]);
    assert_eq!(count(&world), 3, "it is asked again");
    world.pass(2 * SESSION_TERM_MS, &[A, B]);
    assert_eq!(world.removed_objects(), [object(1)], "the term is over");
    assert!(!world.shard.refuses(A));
    let asked = count(&world);
    world.pass(SESSION_TERM_MS, &[A, B]);
    assert_eq!(count(&world), asked, "nobody is asked any more");
}
