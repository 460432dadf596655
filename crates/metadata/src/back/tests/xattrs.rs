//! Extended attributes: who may use which, and their limits.

use super::operations::{Bench, create, set, unlink};
use weft_protocol::limits::{XATTRS_BYTES_MAX, XATTRS_MAX};
use weft_protocol::message::shard::{ShardRequest, SymlinkTarget};
use weft_protocol::*;

const ROOT: InodeNumber = InodeNumber::ROOT;

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("a valid name")
}

fn set_xattr(inode: InodeNumber, text: &str, bytes: &[u8]) -> ShardRequest {
    let value = XattrValue::new(bytes).expect("a short value");
    ShardRequest::SetXattr { inode, name: xattr(text), value, expects: XattrExpectation::default() }
}

fn names(bench: &Bench, inode: InodeNumber) -> Vec<String> {
    let told = bench.back.xattrs(&bench.user, inode).expect("an inode");
    told.into_iter().map(|xattr| String::from_utf8_lossy(xattr.name.as_bytes()).into_owned()).collect()
}

#[test]
fn attributes_of_users_are_of_files_and_directories_and_trusted_ones_are_roots() {
    let mut bench = Bench::new();
    let (file, directory) = (bench.create("f"), bench.mkdir(ROOT, "d", 0o1777));
    let link = ShardRequest::MakeSymlink {
        parent: ROOT,
        name: super::operations::name("l"),
        target: SymlinkTarget(b"f".to_vec()),
    };
    let link = Bench::inode_of(bench.change(link));
    assert_eq!(bench.change(set_xattr(link, "user.a", b"1")).err(), Some(Error::NotPermitted));
    for inode in [file, directory, link] {
        assert!(bench.change(set_xattr(inode, "trusted.a", b"1")).is_ok());
    }
    bench.chmod(file, 0o666).expect("root may");
    bench.as_user(7, &[]);
    assert!(bench.change(set_xattr(file, "user.a", b"1")).is_ok());
    // In a sticky directory only its owner may set attributes, even if others may write to it.
    assert_eq!(bench.change(set_xattr(directory, "user.a", b"1")).err(), Some(Error::NotPermitted));
    assert_eq!(bench.change(set_xattr(file, "trusted.a", b"2")).err(), Some(Error::NotPermitted));
    let remove = ShardRequest::RemoveXattr { inode: file, name: xattr("trusted.a") };
    assert_eq!(bench.change(remove).err(), Some(Error::NotPermitted));
    assert_eq!(names(&bench, file), ["user.a"], "those of root are not shown to others");
    bench.as_user(0, &[]).chmod(file, 0o600).expect("root may");
    bench.as_user(7, &[]);
    assert_eq!(bench.change(set_xattr(file, "user.a", b"1")).err(), Some(Error::AccessDenied));
    let told = bench.back.xattrs(&bench.user, file).expect("there");
    assert_eq!((told.len(), &told[0].value), (1, &None), "the name, not the value");
    bench.as_user(0, &[]);
    assert_eq!(names(&bench, file), ["trusted.a", "user.a"]);
}

#[test]
fn an_inode_has_as_many_attributes_and_bytes_as_it_may() {
    let mut bench = Bench::new();
    let inode = bench.create("f");
    for name in ["user.a", "trusted.a"] {
        assert!(bench.change(set_xattr(inode, name, &[7; 60 << 10])).is_ok());
    }
    let left = XATTRS_BYTES_MAX - (120 << 10) - "user.atrusted.auser.b".len();
    assert_eq!(bench.change(set_xattr(inode, "user.b", &vec![7; left + 1])).err(), Some(Error::NoXattrSpace));
    assert!(bench.change(set_xattr(inode, "user.b", &vec![7; left])).is_ok());
    // What is replaced makes room for what replaces it.
    assert!(bench.change(set_xattr(inode, "user.b", &vec![8; left])).is_ok());
    assert_eq!(bench.get(inode).xattr_bytes as usize, XATTRS_BYTES_MAX);
    bench.change(unlink(ROOT, "f")).expect("removed");
    assert_eq!(bench.back.xattr_keys(), 0);
    let inode = Bench::inode_of(bench.change(create(ROOT, "g", 0o644)));
    for number in 0..XATTRS_MAX {
        assert!(bench.change(set_xattr(inode, &format!("user.{number}"), b"")).is_ok());
    }
    assert_eq!(bench.change(set_xattr(inode, "user.more", b"")).err(), Some(Error::NoXattrSpace));
    assert!(bench.change(set_xattr(inode, "user.0", b"again")).is_ok());
}

#[test]
fn each_change_has_a_later_time_and_leaves_the_contents_theirs() {
    let mut bench = Bench::new();
    let inode = bench.create("f");
    let late = TimeChange::To(Timestamp(i64::MAX / 2));
    bench.change(set(inode, AttributeChanges { mtime: Some(late), ..AttributeChanges::default() })).expect("set");
    let before = bench.get(inode);
    bench.change(set_xattr(inode, "user.a", b"1")).expect("set");
    let after = bench.get(inode);
    assert!(after.ctime > before.ctime);
    bench.change(ShardRequest::RemoveXattr { inode, name: xattr("user.a") }).expect("removed");
    assert!(bench.get(inode).ctime > after.ctime);
    assert_eq!((after.mtime, bench.get(inode).xattr_bytes), (before.mtime, 0));
}
