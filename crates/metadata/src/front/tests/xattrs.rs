//! Extended attributes: under the lease on attributes, exactly once.

use super::harness::*;
use weft_protocol::message::shard::*;
use weft_protocol::*;

/// Name, and value as far as it may be read.
type Told = (String, Option<Vec<u8>>);

fn told(answer: ShardAnswer) -> (Vec<Told>, Option<Attributes>) {
    let ShardAnswer::Xattrs { xattrs, attributes, .. } = answer else { panic!("{answer:?}") };
    let told = xattrs.into_iter().map(|xattr| {
        let value = xattr.value.map(|value| value.as_bytes().to_vec());
        (String::from_utf8_lossy(xattr.name.as_bytes()).into_owned(), value)
    });
    (told.collect(), attributes)
}

#[test]
fn a_change_recalls_the_attributes_of_others_and_is_told_with_them() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let (none, attributes) = told(world.ok(B, ShardRequest::GetXattrs { inode }));
    assert!(none.is_empty());
    let before = attributes.expect("a lease was granted");
    assert!(!before.has_xattrs());
    let token = world.waits(A, set_xattr(inode, "user.a", b"one"));
    assert_eq!(world.recalled(), [(B, LeaseKey::Attributes(inode), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::Open);
    let answer = world.done(token);
    let changed = super::harness::attributes(&answer);
    assert!(changed.has_xattrs() && changed.ctime > before.ctime && changed.mtime == before.mtime);
    let (now, _) = told(world.ok(B, ShardRequest::GetXattrs { inode }));
    assert_eq!(now, [("user.a".to_owned(), Some(b"one".to_vec()))]);
}

#[test]
fn no_attributes_are_told_beside_them_while_another_session_writes_the_file() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    world.ok(A, open(inode, Access::ReadWrite));
    world.ok(A, set_xattr(inode, "user.a", b"one"));
    let (xattrs, attributes) = told(world.ok(B, ShardRequest::GetXattrs { inode }));
    assert_eq!((xattrs.len(), attributes), (1, None), "nobody is asked, and nothing is granted");
}

#[test]
fn a_repeated_change_of_an_attribute_is_made_once() {
    let mut world = World::new();
    let inode = world.file("f", 1);
    let create = |bytes: &[u8]| {
        let ShardRequest::SetXattr { inode, name, value, .. } = set_xattr(inode, "user.a", bytes) else { panic!() };
        let expects = XattrExpectation { absent: true, present: false };
        ShardRequest::SetXattr { inode, name, value, expects }
    };
    let slot = |sequence| (SlotIndex(3), sequence);
    let first = world.call_in(A, user(0), slot(1), create(b"one"));
    let again = world.call_in(A, user(0), slot(1), create(b"one"));
    assert!(matches!(world.done(first), ShardAnswer::Entry { .. }));
    assert!(matches!(world.done(again), ShardAnswer::Entry { .. }), "not that it is there");
    let removed = world.call_in(A, user(0), slot(2), remove_xattr(inode, "user.a"));
    let again = world.call_in(A, user(0), slot(2), remove_xattr(inode, "user.a"));
    assert!(matches!((world.done(removed), world.done(again)), (ShardAnswer::Entry { .. }, ShardAnswer::Entry { .. })));
    let third = world.call_in(A, user(0), slot(3), remove_xattr(inode, "user.a"));
    assert_eq!(world.result(third), Some(Err(Error::NoXattr)));
}
