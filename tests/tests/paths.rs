//! Calls by paths, as the C library and the Python package make them: what a path leads to is replaced between the walk
//! and the call. The call is made of what has the name by then, as on any Linux file system.

use std::sync::Arc;
use weft_client::{Client, ClientOptions, OpenOptions, Way, XattrKey};
use weft_library::{FileSystem as Library, Outcome, Place};
use weft_protocol::message::shard::RenameMode;
use weft_protocol::{AttributeChanges, Attributes, FileKind, InodeNumber, Name, XattrExpectation, XattrValue};
use weft_tests::{FileSystem, Proxy, Wanted, eventually, open};

const ROOT: InodeNumber = InodeNumber::ROOT;
/// Longest time that a test waits for what has to happen.
const SECONDS_MAX: u64 = 60;
/// So long that the relay knows a call by it.
const WALKED: &str = "a name that is walked while something else takes the place of what it means";
const NEXT: &str = "what takes its place";

/// A library that reaches the only node through a relay.
struct Scene {
    fs: FileSystem,
    proxy: Proxy,
    library: Arc<Library>,
    other: Client,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

impl Scene {
    /// Both names mean something of this kind: a file whose bytes are its name, or a symbolic link to its name.
    fn new(kind: FileKind) -> Self {
        let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
        let me = FileSystem::me();
        let maker = fs.client(Way::Tcp);
        open(&maker, "known", OpenOptions::WRITE).close().expect("closed");
        for text in [WALKED, NEXT] {
            match kind {
                FileKind::Regular => {
                    let file = open(&maker, text, OpenOptions::WRITE);
                    file.write_at(text.as_bytes(), 0).expect("written");
                    file.close().expect("closed");
                }
                FileKind::Directory => drop(maker.make_directory(&me, ROOT, &name(text), 0o755).expect("made")),
                FileKind::Symlink => {
                    drop(maker.make_symlink(&me, ROOT, &name(text), text.as_bytes()).expect("made"));
                }
            }
        }
        maker.close().expect("closed");
        let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().expect("an address"));
        let options = ClientOptions { way: Way::Tcp, ..ClientOptions::default() };
        let library = Library::connect_to(&fs.instance_behind(&proxy), &options).expect("connected");
        let other = fs.client(Way::Tcp);
        Self { fs, proxy, library, other }
    }

    fn place<'a>(&'a self, path: &'a str) -> Place<'a> {
        Place::new(&self.library, path.as_bytes())
    }

    /// Makes a call by a path whose first name means something else before the library has the reply to its question
    /// what that means.
    fn while_replaced<T: Send>(&self, call: impl FnOnce() -> Outcome<T> + Send) -> T {
        let me = FileSystem::me();
        // The name is all that it asks for.
        eventually("the library knows the root directory", SECONDS_MAX, || {
            let calls = || self.library.client.counters().shard_calls;
            let before = calls();
            self.place("/known").attributes(true, "stat").expect("it is there");
            calls() == before
        });
        std::thread::scope(|scope| {
            self.proxy.hold_next_reply();
            let called = scope.spawn(call);
            let held = self.proxy.held();
            let (from, to) = (name(NEXT), name(WALKED));
            self.other.rename(&me, ROOT, &from, ROOT, &to, RenameMode::Replace).expect("renamed");
            held.pass_on();
            called.join().expect("no panic").unwrap_or_else(|failure| panic!("{failure:?}"))
        })
    }

    /// What the first name means in the end.
    fn found(&self) -> Attributes {
        self.fs.client(Way::Tcp).lookup(&FileSystem::me(), ROOT, &name(WALKED)).expect("it is there").attributes
    }
}

const XATTR: &[u8] = b"user.color";

#[test]
fn a_change_of_attributes_by_a_path_is_of_what_has_the_name() {
    let changes = |changes: AttributeChanges| {
        let scene = Scene::new(FileKind::Regular);
        let place = scene.place(WALKED);
        scene.while_replaced(|| place.change(true, "change", &changes));
        scene.found()
    };
    let none = AttributeChanges::default();
    assert_eq!(changes(AttributeChanges { size: Some(3), ..none.clone() }).size, 3);
    assert_eq!(changes(AttributeChanges { mode: Some(0o640), ..none }).mode, 0o640);
}

#[test]
fn extended_attributes_by_a_path_are_those_of_what_has_the_name() {
    let scene = Scene::new(FileKind::Regular);
    let place = scene.place(WALKED);
    scene.while_replaced(|| place.set_xattr(XATTR, b"blue", XattrExpectation::default()));
    assert_eq!(place.xattr(XATTR).expect("a value"), b"blue");

    let with_value = || {
        let scene = Scene::new(FileKind::Regular);
        let next = scene.other.lookup(&FileSystem::me(), ROOT, &name(NEXT)).expect("it is there").attributes.inode;
        let (key, value) = (XattrKey::new(XATTR).expect("a name"), XattrValue::new(b"blue").expect("a value"));
        let set = scene.other.set_value(&FileSystem::me(), next, (&key, &value), XattrExpectation::default());
        set.expect("set");
        scene
    };
    let scene = with_value();
    assert_eq!(scene.while_replaced(|| scene.place(WALKED).xattr(XATTR)), b"blue");
    let scene = with_value();
    assert_eq!(scene.while_replaced(|| scene.place(WALKED).xattrs()), [XATTR.to_vec()]);
    let scene = with_value();
    scene.while_replaced(|| scene.place(WALKED).remove_xattr(XATTR));
    assert_eq!(scene.place(WALKED).xattrs().expect("names").len(), 0);
}

#[test]
fn a_link_by_a_path_is_to_what_has_the_name() {
    let scene = Scene::new(FileKind::Regular);
    scene.while_replaced(|| scene.place(WALKED).link(&scene.place("/linked")));
    let linked = scene.other.lookup(&FileSystem::me(), ROOT, &name("linked")).expect("it is there");
    assert_eq!((linked.attributes.inode, linked.attributes.links), (scene.found().inode, 2));
}

#[test]
fn a_look_at_what_a_path_leads_to_is_at_what_has_the_name() {
    let scene = Scene::new(FileKind::Symlink);
    assert_eq!(scene.while_replaced(|| scene.place(WALKED).read_link()), NEXT.as_bytes());
    let scene = Scene::new(FileKind::Regular);
    let located = scene.while_replaced(|| scene.place(WALKED).locate());
    assert_eq!(located.iter().map(|piece| piece.location.bytes).sum::<u64>(), NEXT.len() as u64);
}

/// The directory that the walk has found is gone.
#[test]
fn a_change_of_names_by_a_path_is_in_the_directory_that_has_the_name() {
    let below = format!("{WALKED}/below");
    let scene = Scene::new(FileKind::Directory);
    scene.while_replaced(|| scene.place(&below).make_directory(0o755));
    assert_eq!(scene.found().links, 3);

    let scene = Scene::new(FileKind::Directory);
    scene.while_replaced(|| scene.place(&below).make_symlink(b"target"));
    assert_eq!(scene.place(&below).read_link().expect("it is there"), b"target");

    let with_below = || {
        let scene = Scene::new(FileKind::Directory);
        let next = scene.other.lookup(&FileSystem::me(), ROOT, &name(NEXT)).expect("it is there").attributes.inode;
        (scene, next)
    };
    let (scene, next) = with_below();
    scene.other.make_directory(&FileSystem::me(), next, &name("below"), 0o755).expect("made");
    scene.while_replaced(|| scene.place(&below).remove_directory());
    assert_eq!(scene.found().size, 0);
    let (scene, next) = with_below();
    scene.other.make_symlink(&FileSystem::me(), next, &name("below"), b"target").expect("made");
    scene.while_replaced(|| scene.place(&below).unlink());
    assert_eq!(scene.found().size, 0);
    let (scene, next) = with_below();
    scene.other.make_symlink(&FileSystem::me(), next, &name("below"), b"target").expect("made");
    scene.while_replaced(|| scene.place(&below).rename(&scene.place("/moved"), RenameMode::Replace));
    assert_eq!(scene.place("/moved").read_link().expect("it is there"), b"target");
}
