//! Leases on names and attributes.

use super::harness::*;
use crate::front::Event;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const ENTRY_AND_ATTRIBUTES: Grants = Grants::ENTRY.union(Grants::ATTRIBUTES);

#[test]
fn a_lookup_grants_name_and_attributes() {
    let mut world = World::new();
    world.file("f", 1);
    let answer = world.ok(A, lookup("f"));
    assert_eq!(grants(&answer), ENTRY_AND_ATTRIBUTES);
    assert_eq!(grants(&world.ok(A, lookup("g"))), Grants::ENTRY);
}

#[test]
fn a_create_recalls_the_negative_name_the_listing_and_the_directory_attributes() {
    let mut world = World::new();
    world.ok(A, lookup("f"));
    world.ok(A, stat(ROOT));
    let ShardAnswer::Page(page) = world.ok(A, list(ROOT, None, 100)) else { panic!("a page") };
    assert_eq!(page.grants, Grants::DIRECTORY);
    let token = world.waits(B, create("f"));
    let mut recalled = world.recalled();
    recalled.sort_unstable();
    let hash = name("f").hash64();
    assert_eq!(
        recalled,
        [LeaseKey::Attributes(ROOT), LeaseKey::Entry(ROOT, hash), LeaseKey::Directory(ROOT)].map(|key| (
            A,
            key,
            LeaseMode::None
        ))
    );
    // Reads go on, with nothing granted on what is under recall.
    assert_eq!(grants(&world.ok(C, lookup("f"))), Grants::SHARED_DIRECTORY);
    assert_eq!(grants(&world.ok(C, stat(ROOT))), Grants::PERMISSIONS);
    // The holder's own changes go on too.
    world.ok(A, create("g"));
    world.answer_recalls(LeaseMode::None);
    assert!(matches!(world.done(token), ShardAnswer::Opened { created: true, .. }));
}

#[test]
fn nobody_waits_for_his_own_leases() {
    let mut world = World::new();
    world.ok(A, lookup("f"));
    world.ok(A, list(ROOT, None, 100));
    world.ok(A, stat(ROOT));
    world.ok(A, create("f"));
    world.ok(A, rename("f", "g"));
    world.ok(A, unlink("g"));
    assert_eq!(world.recalls, []);
}

/// Whether the session is granted the names of the root by a listing.
fn lists_with_lease(world: &mut World, session: SessionId) -> bool {
    let ShardAnswer::Page(page) = world.ok(session, list(ROOT, None, 100)) else { panic!("a page") };
    page.grants.contains(Grants::DIRECTORY)
}

#[test]
fn what_was_changed_once_is_granted_again_soon() {
    let mut world = World::new();
    assert!(lists_with_lease(&mut world, A));
    let token = world.waits(B, create("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert!(!lists_with_lease(&mut world, A));
    world.pass(100, &[A, B]);
    assert!(lists_with_lease(&mut world, A));
}

#[test]
fn what_is_changed_again_and_again_is_granted_to_nobody_who_looks_in_between() {
    let mut world = World::new();
    assert!(lists_with_lease(&mut world, A));
    let mut waited = 0;
    for number in 0..50 {
        let token = world.call(B, create(&format!("f{number}")));
        if !world.recalls.is_empty() {
            waited += 1;
            world.answer_recalls(LeaseMode::None);
        }
        world.done(token);
        world.pass(100, &[A, B]);
        lists_with_lease(&mut world, A);
    }
    assert!((1..5).contains(&waited), "{waited} of 50 creates waited for a recall");
    world.pass(1000, &[A, B]);
    assert!(lists_with_lease(&mut world, A), "nobody changes it any more");
}

#[test]
fn a_listing_of_a_directory_that_others_change_grants_its_names_one_by_one() {
    let mut world = World::new();
    world.ok(A, list(ROOT, None, 100));
    let token = world.waits(B, create("f"));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    world.ok(B, create("g"));
    world.ok(B, ShardRequest::EndSession);
    let ShardAnswer::Page(page) = world.ok(A, list(ROOT, None, 100)) else { panic!("a page") };
    assert_eq!(page.entries.len(), 2);
    assert_eq!(page.grants, ENTRY_AND_ATTRIBUTES);
    let token = world.waits(C, unlink("g"));
    let recalled = world.recalled();
    assert!(recalled.contains(&(A, LeaseKey::Entry(ROOT, name("g").hash64()), LeaseMode::None)), "{recalled:?}");
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn permissions_of_a_directory_are_recalled_by_a_change_of_them_alone() {
    let mut world = World::new();
    let held = Grants::ATTRIBUTES | Grants::PERMISSIONS;
    assert_eq!(grants(&world.ok(A, stat(ROOT))), held);
    let token = world.waits(B, create("f"));
    assert_eq!(world.recalled(), [(A, LeaseKey::Attributes(ROOT), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert_eq!(grants(&world.ok(A, stat(ROOT))), Grants::PERMISSIONS);
    let token = world.waits(B, chmod(ROOT, 0o700));
    assert_eq!(world.recalled(), [(A, LeaseKey::Permissions(ROOT), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn names_in_a_directory_that_is_held_need_no_lease_of_their_own() {
    let mut world = World::new();
    world.ok(A, list(ROOT, None, 100));
    assert!(!grants(&world.ok(A, create("f"))).contains(Grants::ENTRY));
    assert_eq!(grants(&world.ok(A, lookup("g"))), Grants::empty());
    let token = world.waits(B, unlink("f"));
    let recalled = world.recalled();
    assert!(recalled.contains(&(A, LeaseKey::Directory(ROOT), LeaseMode::None)), "{recalled:?}");
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn a_listing_keeps_its_grant_until_it_is_recalled() {
    let mut world = World::new();
    for text in ["a", "b", "c", "d"] {
        world.file(text, 1);
    }
    let page = |world: &mut World, after: Option<&str>| match world.ok(A, list(ROOT, after, 2)) {
        ShardAnswer::Page(page) => page,
        other => panic!("{other:?}"),
    };
    let first = page(&mut world, None);
    assert_eq!(first.grants, Grants::DIRECTORY | Grants::ATTRIBUTES);
    let second = &first.entries[1];
    assert_eq!((first.next, first.entries.len()), (Some(second.cookie), 2));
    let second = second.name.to_string();
    let last = page(&mut world, Some(&second));
    assert!(last.grants.contains(Grants::DIRECTORY) && last.next.is_none());
    let token = world.waits(B, create("e"));
    assert!(!page(&mut world, Some(&second)).grants.contains(Grants::DIRECTORY));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    assert!(!page(&mut world, Some(&second)).grants.contains(Grants::DIRECTORY));
}

#[test]
fn whoever_makes_a_directory_knows_all_of_it() {
    let mut world = World::new();
    let answer = world.ok(A, mkdir(ROOT, "d"));
    assert_eq!(grants(&answer), ENTRY_AND_ATTRIBUTES | Grants::DIRECTORY | Grants::PERMISSIONS);
    let inode = attributes(&answer).inode;
    let request = ShardRequest::MakeSymlink { parent: inode, name: name("s"), target: SymlinkTarget(b"t".to_vec()) };
    let token = world.waits(B, request);
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn rename_and_chmod_recall_the_attributes_of_the_inode() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    let token = world.waits(B, rename("f", "g"));
    assert_eq!(world.recalled(), [(A, LeaseKey::Attributes(inode), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    world.pass(1500, &[A, B]);
    world.ok(A, stat(inode));
    let token = world.waits(B, chmod(inode, 0o600));
    world.answer_recalls(LeaseMode::None);
    assert_eq!(attributes(&world.done(token)).mode, 0o600);
}

#[test]
fn changes_that_wait_go_in_order_and_none_starves() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    let first = world.waits(B, chmod(inode, 0o600));
    let second = world.waits(C, chmod(inode, 0o640));
    assert_eq!(world.recalls.len(), 1, "one recall serves both");
    world.answer_recalls(LeaseMode::None);
    world.done(first);
    assert_eq!(attributes(&world.done(second)).mode, 0o640);
}

#[test]
fn a_lost_recall_is_sent_again_and_a_late_answer_does_nothing() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    let token = world.waits(B, chmod(inode, 0o600));
    let lost = std::mem::take(&mut world.recalls);
    world.pass(1000, &[A, B]);
    assert_eq!(world.recalls, lost, "the same recall, with the same number and stamp");
    world.answer_recalls(LeaseMode::None);
    world.done(token);
    world.pass(1500, &[A, B]);
    world.ok(A, stat(inode));
    // The answer again, after the lease was granted anew: it is not taken for an answer to anything.
    world.event(Event::RecallAnswer { session: A, number: lost[0].1.number, kept: LeaseMode::None });
    world.waits(B, chmod(inode, 0o644));
}

#[test]
fn who_renews_but_never_answers_is_refused_and_ended_with_the_term_it_has_left() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    world.ok(C, lookup("g"));
    let token = world.waits(B, chmod(inode, 0o600));
    let recall = world.recalls[0].1;
    world.pass(9_500, &[A, B, C]);
    let waiting = world.waits(A, create("g"));
    assert!(!world.shard.refuses(A));
    // Its last message that counts comes just before its time is over.
    world.pass(500, &[A, B, C]);
    assert!(world.shard.refuses(A) && !world.shard.refuses(B));
    assert_eq!(world.result(waiting), Some(Err(Error::SessionEnded)), "what it asked for it does not get");
    // It may believe for a term from then: nobody else gets what it has, whatever it still says.
    assert_eq!(world.refused(A, stat(inode)), Error::SessionEnded);
    assert_eq!(world.refused(A, create("h")), Error::SessionEnded);
    world.event(Event::RecallAnswer { session: A, number: recall.number, kept: LeaseMode::None });
    world.pass(9_500, &[A, B, C]);
    assert_eq!((world.result(token), world.ended.as_slice()), (None, [].as_slice()));
    world.pass(500, &[A, B, C]);
    world.done(token);
    assert_eq!(world.ended, [A]);
    assert!(world.shard.refuses(A));
    assert_eq!(world.refused(A, stat(inode)), Error::SessionEnded);
    world.ok(SessionId(1001), lookup("h"));
}

#[test]
fn a_refused_writer_that_says_goodbye_leaves_its_size_to_the_storage_server() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::Write));
    let token = world.waits(B, open(inode, Access::Read));
    world.pass(10_000, &[A, B]);
    assert_eq!(world.refused(A, commit(inode, 1, 300)), Error::SessionEnded);
    assert!(world.storage.is_empty());
    world.ok(A, ShardRequest::EndSession);
    world.done(token);
    let (asked, _) = world.asked_storage();
    world.storage_answers(asked, 300, 5);
    assert_eq!((attributes(&world.ok(C, stat(inode))).size, world.ended.as_slice()), (300, [A].as_slice()));
}

#[test]
fn a_silent_client_is_ended_with_its_term() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    world.pass(6_000, &[B]);
    let token = world.waits(B, chmod(inode, 0o600));
    world.pass(3_500, &[B]);
    assert_eq!(world.result(token), None);
    world.pass(1_000, &[B]);
    world.done(token);
    assert_eq!((world.ended.as_slice(), world.shard.status().leases), ([A].as_slice(), 0));
}

#[test]
fn a_released_lease_answers_its_recall_and_a_newer_grant_survives_an_older_release() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let key = LeaseKey::Attributes(inode);
    let old = world.call(A, stat(inode));
    let old_stamp = world.replies[&old].stamp;
    let new = world.call(A, stat(inode));
    let new_stamp = world.replies[&new].stamp;
    assert!(new_stamp > old_stamp);
    world.ok(A, ShardRequest::Release { leases: vec![(key, old_stamp)] });
    let token = world.waits(B, chmod(inode, 0o600));
    world.ok(A, ShardRequest::Release { leases: vec![(key, new_stamp)] });
    world.done(token);
    assert_eq!(world.shard.status().recalls, 0);
}

#[test]
fn what_is_granted_after_a_recall_that_nobody_waits_for_survives_its_answer() {
    let mut world = World::new();
    assert!(grants(&world.ok(A, lookup("f"))).contains(Grants::ENTRY));
    world.waits(B, create("f"));
    let recalls = std::mem::take(&mut world.recalls);
    // Its mount was killed.
    world.ok(B, ShardRequest::EndSession);
    // The client has dropped the name, but still waits for its kernel before it answers.
    assert!(grants(&world.ok(A, lookup("f"))).contains(Grants::ENTRY));
    for (session, recall) in recalls {
        world.event(Event::RecallAnswer { session, number: recall.number, kept: LeaseMode::None });
    }
    let token = world.waits(C, create("f"));
    assert!(world.recalled().contains(&(A, LeaseKey::Entry(ROOT, name("f").hash64()), LeaseMode::None)));
    world.answer_recalls(LeaseMode::None);
    world.done(token);
}

#[test]
fn a_recall_has_a_higher_stamp_than_the_grant_before_it() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let token = world.call(A, stat(inode));
    world.waits(B, chmod(inode, 0o600));
    assert!(world.recalls[0].1.stamp > world.replies[&token].stamp);
}

#[test]
fn an_end_of_session_gives_all_back_at_once() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, stat(inode));
    world.ok(A, list(ROOT, None, 10));
    let token = world.waits(B, create("g"));
    world.ok(A, ShardRequest::EndSession);
    world.done(token);
    // Repeated, it is answered alike; and the client may come back with the same session if it likes.
    world.ok(A, ShardRequest::EndSession);
    assert_eq!(world.ended, []);
}
