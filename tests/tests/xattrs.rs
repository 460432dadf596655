//! Extended attributes between clients of real nodes: what they cost, and who sees what.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::limits::XATTR_VALUE_BYTES_MAX;
use weft_client::protocol::{Credentials, Error, InodeNumber, Name, XattrExpectation, XattrName, XattrValue};
use weft_client::{OpenOptions, Way, XattrKey};
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

fn key(text: &str) -> XattrKey {
    XattrKey::new(text.as_bytes()).unwrap()
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
    maker.set_value(&me(), inode, (&key("user.a"), &value("1")), any).unwrap();
    assert_eq!(maker.counters().shard_calls, calls + 1);
    maker.close().unwrap();

    let plain = client.lookup(&me(), ROOT, &name("plain")).unwrap().attributes.inode;
    let with = client.lookup(&me(), ROOT, &name("with")).unwrap().attributes.inode;
    let calls = client.counters().shard_calls;
    for _ in 0..3 {
        assert_eq!(client.value_of(&me(), plain, &key("user.a")), Err(Error::NoXattr));
        assert_eq!(client.list_xattrs(&me(), plain).unwrap(), []);
    }
    assert_eq!(client.counters().shard_calls, calls, "it is known that there are none");
    for _ in 0..3 {
        assert_eq!(client.value_of(&me(), with, &key("user.a")), Ok(b"1".to_vec()));
        assert_eq!(client.value_of(&me(), with, &key("user.b")), Err(Error::NoXattr));
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
        from.set_value(&me(), inode, (&key("user.a"), &value(&text)), XattrExpectation::default()).unwrap();
        assert_eq!(to.value_of(&me(), inode, &key("user.a")), Ok(text.into_bytes()));
        assert_eq!(to.attributes(&me(), inode).unwrap().attributes.size, 8);
    }
    let only_new = XattrExpectation { absent: true, present: false };
    assert_eq!(b.set_value(&me(), inode, (&key("user.a"), &value("")), only_new), Err(Error::Exists));
    b.remove_value(&me(), inode, &key("user.a")).unwrap();
    assert_eq!(a.value_of(&me(), inode, &key("user.a")), Err(Error::NoXattr));
    assert_eq!(a.remove_value(&me(), inode, &key("user.a")), Err(Error::NoXattr));
    file.close().unwrap();
}

#[test]
fn settings_are_there_always_and_cannot_be_removed() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Auto);
    open(&client, "f", OpenOptions::WRITE).close().unwrap();
    let inode = client.lookup(&me(), ROOT, &name("f")).unwrap().attributes.inode;
    let (layout, any) = (key("weft.layout"), XattrExpectation::default());
    assert_eq!(client.value_of(&me(), inode, &layout), Ok(b"whole".to_vec()));
    assert_eq!(client.value_of(&me(), ROOT, &key("weft.placement")), Ok(b"home".to_vec()));
    assert_eq!(client.list_xattrs(&me(), inode).unwrap(), []);
    let longest = value(&" ".repeat(XATTR_VALUE_BYTES_MAX));
    assert_eq!(client.set_value(&me(), inode, (&layout, &longest), any), Err(Error::Invalid));
    let only_new = XattrExpectation { absent: true, present: false };
    assert_eq!(client.set_value(&me(), inode, (&layout, &value("whole")), only_new), Err(Error::Exists));
    client.set_value(&me(), inode, (&layout, &value("whole")), any).unwrap();
    assert_eq!(client.remove_value(&me(), inode, &layout), Err(Error::NotPermitted));
}
