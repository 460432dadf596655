//! Permissions and names as Linux has them, for native clients.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{AttributeChanges, Credentials, Error, InodeNumber, Name};
use weft_client::{Client, OpenOptions, Way};
use weft_tests::{FileSystem, Wanted, open};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn me() -> Credentials {
    FileSystem::me()
}

/// Somebody without privileges who owns nothing.
fn stranger() -> Credentials {
    Credentials { uid: 4321, gid: 4321, groups: Box::default() }
}

/// A closed file with this mode.
fn make(client: &Client, text: &str, mode: u16) -> InodeNumber {
    let file = open(client, text, OpenOptions::WRITE);
    file.write_at(b"program", 0).unwrap();
    let inode = file.inode();
    file.close().unwrap();
    let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
    client.set_attributes(&me(), inode, &changes).unwrap();
    inode
}

#[test]
fn a_users_write_clears_set_id_bits_before_it_returns() {
    let fs = FileSystem::start(Wanted::default());
    let (owner, writer) = (fs.client(Way::Auto), fs.client(Way::Auto));
    for direct in [false, true] {
        for (mode, cleared) in [(0o4777, 0o777), (0o6777, 0o777), (0o6767, 0o2767)] {
            let inode = make(&owner, &format!("f{mode:o}-{direct}"), mode);
            let options = OpenOptions { direct, ..OpenOptions::of(Access::ReadWrite) };
            let file = writer.open(&stranger(), inode, options).unwrap();
            let seen = |client: &Client| client.attributes(&me(), inode).unwrap().attributes.mode;
            assert_eq!((seen(&owner), seen(&writer)), (mode, mode), "nothing is written yet");
            file.write_at(b"P", 0).unwrap();
            assert_eq!((seen(&writer), seen(&owner)), (cleared, cleared), "{mode:o}, direct {direct}");
            // Set again by the owner: the next report of a write clears them.
            let again = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
            owner.set_attributes(&me(), inode, &again).unwrap();
            file.write_at(b"Q", 100).unwrap();
            file.close().unwrap();
            assert_eq!(seen(&owner), cleared, "{mode:o}, direct {direct}");
        }
    }
    let root = Credentials { uid: 0, gid: 0, groups: Box::default() };
    let inode = make(&owner, "root", 0o6777);
    let file = writer.open(&root, inode, OpenOptions::of(Access::Write)).unwrap();
    file.write_at(b"P", 0).unwrap();
    file.close().unwrap();
    assert_eq!(owner.attributes(&me(), inode).unwrap().attributes.mode, 0o6777, "root's write clears nothing");
}

#[test]
fn a_program_that_cannot_be_read_is_opened_to_be_run() {
    let fs = FileSystem::start(Wanted::default());
    let (owner, runner) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let inode = make(&owner, "program", 0o711);
    let run = OpenOptions::of(Access::Execute);
    for _ in 0..2 {
        let file = runner.open(&stranger(), inode, run).unwrap();
        let mut bytes = [0; 7];
        assert_eq!(file.read_at(&mut bytes, 0), Ok(7), "the handle reads");
        assert_eq!(file.write_at(b"x", 0), Err(Error::BadHandle));
        file.close().unwrap();
        // Not even under the lease that the run has left.
        assert_eq!(runner.open(&stranger(), inode, OpenOptions::READ).err(), Some(Error::AccessDenied));
    }
    let unlike = make(&owner, "text", 0o744);
    assert_eq!(runner.open(&stranger(), unlike, run).err(), Some(Error::AccessDenied));
    assert_eq!(runner.lookup(&stranger(), ROOT, &name("text")).unwrap().attributes.mode, 0o744);
}
