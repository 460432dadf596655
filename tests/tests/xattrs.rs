//! Extended attributes between clients of real nodes: what they cost, and who sees what.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::{Credentials, Error, InodeNumber, Name, XattrExpectation, XattrName, XattrValue};
use weft_client::{OpenOptions, Way};
use weft_tests::{FileSystem, Wanted, open};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn me() -> Credentials {
    FileSystem::me()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).unwrap()
}

fn value(text: &str) -> XattrValue {
    XattrValue::new(text.as_bytes()).unwrap()
}

/// Attributes that a client holds say whether an inode has any: most have none.
#[test]
fn files_without_extended_attributes_cost_no_message_and_others_one() {
    let fs = FileSystem::start(Wanted::default());
    let (maker, client) = (fs.client(Way::Auto), fs.client(Way::Auto));
    open(&maker, "plain", OpenOptions::WRITE).close().unwrap();
    open(&maker, "with", OpenOptions::WRITE).close().unwrap();
    let any = XattrExpectation::default();
    let inode = maker.lookup(&me(), ROOT, &name("with")).unwrap().attributes.inode;
    let calls = maker.counters().shard_calls;
    maker.set_xattr(&me(), inode, &xattr("user.a"), &value("1"), any).unwrap();
    assert_eq!(maker.counters().shard_calls, calls + 1);
    maker.close().unwrap();

    let plain = client.lookup(&me(), ROOT, &name("plain")).unwrap().attributes.inode;
    let with = client.lookup(&me(), ROOT, &name("with")).unwrap().attributes.inode;
    let calls = client.counters().shard_calls;
    for _ in 0..3 {
        assert_eq!(client.get_xattr(&me(), plain, &xattr("user.a")), Err(Error::NoXattr));
        assert_eq!(client.list_xattrs(&me(), plain).unwrap(), []);
    }
    assert_eq!(client.counters().shard_calls, calls, "it is known that there are none");
    for _ in 0..3 {
        assert_eq!(client.get_xattr(&me(), with, &xattr("user.a")), Ok(value("1")));
        assert_eq!(client.get_xattr(&me(), with, &xattr("user.b")), Err(Error::NoXattr));
        assert_eq!(client.list_xattrs(&me(), with).unwrap(), [xattr("user.a")]);
    }
    assert_eq!(client.counters().shard_calls, calls + 1, "one message tells of all");
}

#[test]
fn a_change_of_extended_attributes_is_seen_at_once_and_leaves_what_is_buffered() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&a, "f", OpenOptions::WRITE);
    file.write_at(b"buffered", 0).unwrap();
    let inode = b.lookup(&me(), ROOT, &name("f")).unwrap().attributes.inode;
    for (number, (from, to)) in [(&a, &b), (&b, &a), (&a, &b)].into_iter().enumerate() {
        let text = number.to_string();
        from.set_xattr(&me(), inode, &xattr("user.a"), &value(&text), XattrExpectation::default()).unwrap();
        assert_eq!(to.get_xattr(&me(), inode, &xattr("user.a")), Ok(value(&text)));
        assert_eq!(to.attributes(&me(), inode).unwrap().attributes.size, 8);
    }
    let only_new = XattrExpectation { absent: true, present: false };
    assert_eq!(b.set_xattr(&me(), inode, &xattr("user.a"), &value(""), only_new), Err(Error::Exists));
    b.remove_xattr(&me(), inode, &xattr("user.a")).unwrap();
    assert_eq!(a.get_xattr(&me(), inode, &xattr("user.a")), Err(Error::NoXattr));
    assert_eq!(a.remove_xattr(&me(), inode, &xattr("user.a")), Err(Error::NoXattr));
    file.close().unwrap();
}
