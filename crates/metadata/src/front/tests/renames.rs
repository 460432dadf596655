//! What a rename grants: the new name is covered by a lease, or its session is told that it is not.

use super::harness::*;
use weft_protocol::message::shard::*;
use weft_protocol::*;

fn exchange(from: &str, to: &str) -> ShardRequest {
    let mode = RenameMode::Exchange;
    let guess = None;
    ShardRequest::Rename { parent: ROOT, name: name(from), new_parent: ROOT, new_name: name(to), mode, guess }
}

#[test]
fn a_rename_grants_its_new_name_also_soon_after_a_recall() {
    let mut world = World::new();
    for text in ["r", "one", "two"] {
        world.file(text, 1);
    }
    assert_eq!(grants(&world.ok(A, rename("one", "r"))), Grants::ENTRY);
    let token = world.waits(B, rename("two", "r"));
    assert_eq!(world.recalled(), [(A, LeaseKey::Entry(ROOT, name("r").hash64()), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    assert_eq!(grants(&world.done(token)), Grants::ENTRY, "a kernel has moved its dentry there");
    assert_eq!(grants(&world.ok(A, lookup("r"))) & Grants::ENTRY, Grants::empty(), "a look-up waits for a second");
}

#[test]
fn an_exchange_grants_both_names() {
    let mut world = World::new();
    let (x, y) = (world.file("x", 1), world.file("y", 2));
    let answer = world.ok(A, exchange("x", "y"));
    assert!(
        matches!(answer, ShardAnswer::Renamed { inode, exchanged: Some((other, FileKind::Regular)), replaced: None, .. }
            if (inode, other) == (x, y)),
        "{answer:?}"
    );
    assert_eq!(grants(&answer), Grants::ENTRY);
    for text in ["x", "y"] {
        world.file(&format!("new-{text}"), 3);
        let token = world.waits(B, rename(&format!("new-{text}"), text));
        assert_eq!(world.recalled(), [(A, LeaseKey::Entry(ROOT, name(text).hash64()), LeaseMode::None)]);
        world.answer_recalls(LeaseMode::None);
        world.done(token);
    }
}

#[test]
fn a_name_that_another_session_waits_for_is_not_granted() {
    let mut world = World::new();
    for text in ["r", "one", "two"] {
        world.file(text, 1);
    }
    world.ok(A, lookup("r"));
    let token = world.waits(B, rename("two", "r"));
    assert_eq!(grants(&world.ok(A, rename("one", "r"))), Grants::empty());
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn answers_about_a_name_tell_whether_others_use_its_directory() {
    let mut world = World::new();
    world.file("f", 1);
    world.ok(A, stat(ROOT));
    assert!(!grants(&world.ok(A, lookup("f"))).contains(Grants::SHARED_DIRECTORY));
    for request in [lookup("f"), lookup("absent"), rename("f", "g"), create("h"), list(ROOT, None, 10)] {
        let token = world.call(B, request);
        world.answer_recalls(LeaseMode::None);
        assert!(grants(&world.done(token)).contains(Grants::SHARED_DIRECTORY));
    }
    world.ok(B, stat(ROOT));
    assert!(grants(&world.ok(A, lookup("g"))).contains(Grants::SHARED_DIRECTORY));
}
