//! Operations one by one.

use crate::back::*;
use crate::kv::MemoryStore;
use weft_protocol::limits::{DIRECTORY_PAGE_ENTRIES_MAX, LINKS_MAX, STRIPE_BYTES_MIN};
use weft_protocol::message::shard::*;
use weft_protocol::*;

const ROOT: InodeNumber = InodeNumber::ROOT;

/// A back machine, a clock, and a user.
pub struct Bench {
    pub back: Back<MemoryStore>,
    pub user: Credentials,
    pub time: Timestamp,
    pub aftermath: Aftermath,
    sequence: u32,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a valid name")
}

impl Bench {
    pub fn new() -> Self {
        let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
        Self {
            back: Back::new(ShardId(0), MemoryStore::new(), Timestamp(1), root),
            user: Credentials::default(),
            time: Timestamp(1_700_000_000_000_000_000),
            aftermath: Aftermath::default(),
            sequence: 0,
        }
    }

    pub fn with_context(&mut self, request: ShardRequest, context: Context) -> Result<ShardAnswer> {
        self.sequence += 1;
        self.time.0 += 1;
        let slot = Slot { of: NodeId(0), index: SlotIndex(0) };
        let origin = Origin { session: SessionId(1), slot, sequence: self.sequence };
        let credentials = self.user.clone();
        let command = match request {
            ShardRequest::UnlinkBatch { parent, names } => {
                let names = names.into_iter().map(|name| (name, context.keep)).collect();
                Command::UnlinkBatch { origin, credentials, parent, names }
            }
            request => Command::Change { origin, credentials, request, context },
        };
        let outcome = self.back.apply(self.time, &command);
        self.aftermath = outcome.aftermath;
        match outcome.answer {
            Answer::Client(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub fn change(&mut self, request: ShardRequest) -> Result<ShardAnswer> {
        self.with_context(request, Context::default())
    }

    pub fn as_user(&mut self, uid: u32, groups: &[u32]) -> &mut Self {
        self.user = Credentials { uid, gid: uid, groups: groups.into() };
        self
    }

    pub fn inode_of(answer: Result<ShardAnswer>) -> InodeNumber {
        match answer {
            Ok(ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. }) => attributes.inode,
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&mut self, text: &str) -> InodeNumber {
        Self::inode_of(self.change(create(ROOT, text, 0o644)))
    }

    pub fn mkdir(&mut self, parent: InodeNumber, text: &str, mode: u16) -> InodeNumber {
        Self::inode_of(self.change(mkdir(parent, text, mode)))
    }

    pub fn chmod(&mut self, inode: InodeNumber, mode: u16) -> Result<ShardAnswer> {
        self.change(set(inode, AttributeChanges { mode: Some(mode), ..AttributeChanges::default() }))
    }

    pub fn get(&self, inode: InodeNumber) -> Inode {
        self.back.inode(inode).expect("an inode that is there")
    }
}

pub fn create(parent: InodeNumber, text: &str, mode: u16) -> ShardRequest {
    let flags = OpenFlags {
        access: Access::ReadWrite,
        truncate: false,
        direct: false,
        page_cache: PageCache::None,
        group: None,
    };
    let create = CreateFile { mode, exclusive: true, plan: None };
    ShardRequest::OpenAt { parent, name: name(text), flags, create: Some(create), objects: None }
}

pub fn mkdir(parent: InodeNumber, text: &str, mode: u16) -> ShardRequest {
    ShardRequest::MakeDirectory { parent, name: name(text), mode, home: None }
}

pub fn unlink(parent: InodeNumber, text: &str) -> ShardRequest {
    ShardRequest::Unlink { parent, name: name(text) }
}

pub fn rmdir(parent: InodeNumber, text: &str) -> ShardRequest {
    ShardRequest::RemoveDirectory { parent, name: name(text) }
}

pub fn set(inode: InodeNumber, changes: AttributeChanges) -> ShardRequest {
    ShardRequest::SetAttributes { inode, changes }
}

pub fn rename(from: (InodeNumber, &str), to: (InodeNumber, &str), mode: RenameMode) -> ShardRequest {
    let guess = None;
    ShardRequest::Rename { parent: from.0, name: name(from.1), new_parent: to.0, new_name: name(to.1), mode, guess }
}

fn open(inode: InodeNumber, access: Access) -> ShardRequest {
    ShardRequest::Open {
        inode,
        flags: OpenFlags { access, truncate: false, direct: false, page_cache: PageCache::None, group: None },
    }
}

#[test]
fn a_new_shard_has_a_root_only_if_it_is_the_root_shard() {
    let bench = Bench::new();
    assert_eq!((bench.get(ROOT).mode, bench.get(ROOT).links, bench.back.inodes()), (0o755, 2, 1));
    let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
    let other = Back::new(ShardId(3), MemoryStore::new(), Timestamp(1), root);
    assert_eq!((other.inode(ROOT), other.inodes()), (None, 0));
}

#[test]
fn modes_decide_by_the_first_class_that_fits() {
    let mut bench = Bench::new();
    bench.chmod(ROOT, 0o777).expect("root may");
    bench.as_user(5, &[]);
    let inode = Bench::inode_of(bench.change(create(ROOT, "f", 0o047)));
    assert_eq!(bench.change(open(inode, Access::Read)), Err(Error::AccessDenied), "the owner has no right");
    bench.as_user(6, &[5]);
    assert!(bench.change(open(inode, Access::Read)).is_ok(), "the group may read");
    assert_eq!(bench.change(open(inode, Access::Write)), Err(Error::AccessDenied));
    bench.as_user(7, &[]);
    assert!(bench.change(open(inode, Access::ReadWrite)).is_ok(), "others may all");
    bench.as_user(0, &[]);
    assert!(bench.change(open(inode, Access::ReadWrite)).is_ok(), "user 0 may all");
}

#[test]
fn names_need_search_and_write_on_the_directory() {
    let mut bench = Bench::new();
    let directory = bench.mkdir(ROOT, "d", 0o744);
    bench.change(create(directory, "f", 0o644)).expect("root may");
    bench.as_user(5, &[]);
    let user = bench.user.clone();
    assert_eq!(bench.back.lookup(&user, directory, &name("f")), Err(Error::AccessDenied));
    assert!(bench.back.list(&user, directory, Cookie::START, 10).is_ok(), "reading is enough to list");
    assert_eq!(bench.change(unlink(directory, "f")), Err(Error::AccessDenied));
    bench.as_user(0, &[]).chmod(directory, 0o755).expect("root may");
    bench.as_user(5, &[]);
    assert!(bench.back.lookup(&user, directory, &name("f")).is_ok());
    assert_eq!(bench.change(unlink(directory, "f")), Err(Error::AccessDenied));
    assert_eq!(bench.change(unlink(directory, "g")), Err(Error::NotFound));
}

#[test]
fn a_sticky_directory_protects_names_of_others() {
    let mut bench = Bench::new();
    let directory = bench.mkdir(ROOT, "tmp", 0o1777);
    bench.as_user(5, &[]).change(create(directory, "f", 0o666)).expect("all may create");
    bench.as_user(6, &[]);
    assert_eq!(bench.change(unlink(directory, "f")), Err(Error::NotPermitted));
    let away = rename((directory, "f"), (directory, "g"), RenameMode::Replace);
    assert_eq!(bench.change(away.clone()), Err(Error::NotPermitted));
    bench.change(create(directory, "h", 0o666)).expect("all may create");
    let over = rename((directory, "h"), (directory, "f"), RenameMode::Replace);
    assert_eq!(bench.change(over), Err(Error::NotPermitted));
    bench.as_user(5, &[]).change(away).expect("its owner may");
    bench.change(unlink(directory, "g")).expect("its owner may");
}

#[test]
fn a_set_group_id_directory_gives_its_group() {
    let mut bench = Bench::new();
    let directory = bench.mkdir(ROOT, "d", 0o777);
    let changes = AttributeChanges { gid: Some(50), ..AttributeChanges::default() };
    bench.change(set(directory, changes)).expect("root may");
    bench.chmod(directory, 0o2777).expect("root may");
    bench.as_user(5, &[]);
    let file = Bench::inode_of(bench.change(create(directory, "f", 0o2755)));
    assert_eq!((bench.get(file).gid, bench.get(file).mode), (50, 0o755), "not a member: no set-group-id");
    let below = bench.mkdir(directory, "below", 0o755);
    assert_eq!((bench.get(below).gid, bench.get(below).mode), (50, 0o2755));
}

#[test]
fn a_file_is_made_with_its_layout() {
    let mut bench = Bench::new();
    let directory = bench.mkdir(ROOT, "d", 0o755);
    let split = InheritedChange::Plan(Plan::Split);
    bench.change(ShardRequest::SetInherited { inode: directory, change: split }).expect("set");
    let mut open = |text: &str, plan| {
        let mut request = create(directory, text, 0o644);
        let ShardRequest::OpenAt { create, .. } = &mut request else { unreachable!("create() opens") };
        *create = Some(CreateFile { mode: 0o644, exclusive: false, plan });
        let inode = Bench::inode_of(bench.change(request));
        bench.get(inode).layout
    };
    let striped = StripePlan::new(2, STRIPE_BYTES_MIN).expect("a plan");
    assert_eq!(open("inherits", None), Layout::Split { epoch: 0 });
    assert_eq!(open("whole", Some(Plan::Whole)), Layout::Empty);
    assert_eq!(open("striped", Some(Plan::Striped(striped))), Layout::Planned(striped));
    // What is there keeps its own.
    assert_eq!(open("whole", Some(Plan::Striped(striped))), Layout::Empty);
    assert_eq!(open("inherits", Some(Plan::Whole)), Layout::Split { epoch: 0 });
}

#[test]
fn chown_and_writing_drop_set_user_id() {
    let mut bench = Bench::new();
    bench.chmod(ROOT, 0o777).expect("root may");
    bench.as_user(5, &[50]);
    let file = bench.create("f");
    bench.chmod(file, 0o6755).expect("the owner may");
    let to_group = |gid| AttributeChanges { gid: Some(gid), ..AttributeChanges::default() };
    assert_eq!(bench.change(set(file, to_group(51))), Err(Error::NotPermitted));
    bench.change(set(file, to_group(50))).expect("a member may give to his group");
    assert_eq!(bench.get(file).mode, 0o755);
    let give = AttributeChanges { uid: Some(6), ..AttributeChanges::default() };
    assert_eq!(bench.change(set(file, give)), Err(Error::NotPermitted));
    bench.chmod(file, 0o4777).expect("the owner may");
    bench.as_user(6, &[]);
    let cut = AttributeChanges { size: Some(10), ..AttributeChanges::default() };
    bench.change(set(file, cut)).expect("writing is allowed to all");
    assert_eq!((bench.get(file).mode, bench.get(file).size), (0o777, 10));
    assert_eq!(bench.chmod(file, 0o644), Err(Error::NotPermitted));
}

#[test]
fn times_are_set_by_the_owner_and_touched_by_writers() {
    let mut bench = Bench::new();
    bench.chmod(ROOT, 0o777).expect("root may");
    bench.as_user(5, &[]);
    let file = Bench::inode_of(bench.change(create(ROOT, "f", 0o606)));
    let to = |change| AttributeChanges { atime: Some(change), mtime: Some(change), ..AttributeChanges::default() };
    bench.change(set(file, to(TimeChange::To(Timestamp(-5))))).expect("the owner may");
    assert_eq!(
        (bench.get(file).atime, bench.get(file).mtime, bench.get(file).ctime),
        (Timestamp(-5), Timestamp(-5), bench.time)
    );
    bench.as_user(6, &[]);
    assert_eq!(bench.change(set(file, to(TimeChange::To(Timestamp(9))))), Err(Error::NotPermitted));
    bench.change(set(file, to(TimeChange::Now))).expect("who may write may touch");
    assert_eq!(bench.get(file).mtime, bench.time);
    bench.as_user(5, &[]).chmod(file, 0o600).expect("the owner may");
    bench.as_user(6, &[]);
    assert_eq!(bench.change(set(file, to(TimeChange::Now))), Err(Error::AccessDenied));
}

#[test]
fn an_open_handle_cuts_what_its_owner_may_no_longer_write() {
    let mut bench = Bench::new();
    bench.chmod(ROOT, 0o777).expect("root may");
    bench.as_user(5, &[]);
    let file = Bench::inode_of(bench.change(create(ROOT, "f", 0o444)));
    let cut = set(file, AttributeChanges { size: Some(7), ..AttributeChanges::default() });
    assert_eq!(bench.change(cut.clone()), Err(Error::AccessDenied));
    let writer = Context { is_writer: true, ..Context::default() };
    bench.with_context(cut.clone(), writer).expect("its handle was opened for writing");
    bench.as_user(6, &[]);
    assert_eq!(bench.with_context(cut, writer), Err(Error::AccessDenied), "another user of the same session");
}

#[test]
fn sizes_of_what_is_no_file() {
    let mut bench = Bench::new();
    let cut = |inode| set(inode, AttributeChanges { size: Some(7), ..AttributeChanges::default() });
    assert_eq!(bench.change(cut(ROOT)), Err(Error::IsDirectory));
    let target = SymlinkTarget(b"a/b".to_vec());
    let link = Bench::inode_of(bench.change(ShardRequest::MakeSymlink { parent: ROOT, name: name("s"), target }));
    assert_eq!(bench.change(cut(link)), Err(Error::Invalid));
    let file = bench.create("f");
    let huge = AttributeChanges { size: Some(1 << 63), ..AttributeChanges::default() };
    assert_eq!(bench.change(set(file, huge)), Err(Error::FileTooLarge));
}

#[test]
fn symbolic_links_keep_their_target() {
    let mut bench = Bench::new();
    let make = |text: &str, target: &[u8]| ShardRequest::MakeSymlink {
        parent: ROOT,
        name: name(text),
        target: SymlinkTarget(target.to_vec()),
    };
    let link = Bench::inode_of(bench.change(make("s", &[b'x'; 4095])));
    assert_eq!((bench.get(link).size, bench.get(link).mode), (4095, 0o777));
    assert_eq!(bench.back.read_link(link).map(|target| target.0.len()), Ok(4095));
    assert_eq!(bench.back.read_link(ROOT), Err(Error::Invalid));
    for bad in [&b""[..], b"a\0b"] {
        assert_eq!(bench.change(make("t", bad)), Err(Error::Invalid));
    }
    assert_eq!(bench.change(make("t", &[b'x'; 4096])), Err(Error::NameTooLong));
    bench.change(unlink(ROOT, "s")).expect("it is there");
    assert_eq!(bench.back.read_link(link), Err(Error::Stale));
    assert_eq!(bench.back.store.keys(), 1, "nothing is left but the root");
}

#[test]
fn hard_links_count() {
    let mut bench = Bench::new();
    let file = bench.create("f");
    let link = |inode, text: &str| ShardRequest::Link { inode, parent: ROOT, name: name(text) };
    bench.change(link(file, "g")).expect("a new name");
    assert_eq!(bench.change(link(file, "g")), Err(Error::Exists));
    assert_eq!(bench.change(link(ROOT, "r")), Err(Error::NotPermitted));
    assert_eq!(bench.get(file).links, 2);
    let removed = bench.change(unlink(ROOT, "f"));
    assert!(matches!(removed, Ok(ShardAnswer::Removed { inode, links: 1, .. }) if inode == file), "{removed:?}");
    // Both names are of one inode: nothing happens, both stay.
    bench.change(link(file, "f")).expect("a new name");
    let same = bench.change(rename((ROOT, "f"), (ROOT, "g"), RenameMode::Replace));
    assert!(matches!(same, Ok(ShardAnswer::Renamed { inode, replaced: None, .. }) if inode == file), "{same:?}");
    assert_eq!(bench.back.dentries(), 2);
    let mut inode = bench.get(file);
    inode.links = LINKS_MAX;
    bench.back.put_inode(file, &inode);
    assert_eq!(bench.change(link(file, "h")), Err(Error::TooManyLinks));
}

#[test]
fn an_orphan_gets_no_new_name_and_is_reaped() {
    let mut bench = Bench::new();
    let file = bench.create("f");
    let keep = Context { keep: true, ..Context::default() };
    bench.with_context(unlink(ROOT, "f"), keep).expect("it is there");
    assert_eq!((bench.aftermath.orphaned, bench.aftermath.gone), (Some(file), None));
    assert_eq!(bench.back.orphans(), [file]);
    let link = ShardRequest::Link { inode: file, parent: ROOT, name: name("g") };
    assert_eq!(bench.change(link), Err(Error::NotFound));
    let time = bench.time;
    let reaped = bench.back.apply(time, &Command::Reap { inode: file });
    assert_eq!(reaped.aftermath.gone, Some(file));
    assert_eq!(bench.back.apply(time, &Command::Reap { inode: file }).aftermath, Aftermath::default());
    assert_eq!((bench.back.orphans(), bench.back.inodes()), (vec![], 1));
}

#[test]
fn a_directory_is_not_moved_below_itself() {
    let mut bench = Bench::new();
    let a = bench.mkdir(ROOT, "a", 0o755);
    let b = bench.mkdir(a, "b", 0o755);
    let c = bench.mkdir(b, "c", 0o755);
    for (parent, text) in [(a, "x"), (c, "x"), (c, "c")] {
        let below = rename((ROOT, "a"), (parent, text), RenameMode::Replace);
        assert_eq!(bench.change(below), Err(Error::Invalid));
    }
    let up = rename((b, "c"), (ROOT, "a"), RenameMode::Replace);
    assert_eq!(bench.change(up), Err(Error::NotEmpty));
    let exchange = rename((b, "c"), (ROOT, "a"), RenameMode::Exchange);
    assert_eq!(bench.change(exchange), Err(Error::Invalid));
    bench.change(rename((b, "c"), (ROOT, "c"), RenameMode::Replace)).expect("up is fine");
    assert_eq!((bench.get(c).parent, bench.get(b).links, bench.get(ROOT).links), (ROOT, 2, 4));
}

#[test]
fn a_directory_moves_where_no_cycle_can_come_of_it() {
    // A shard whose directories hang below a directory of another shard.
    let root = RootDirectory { mode: 0o777, uid: 0, gid: 0 };
    let mut bench = Bench { back: Back::new(ShardId(3), MemoryStore::new(), Timestamp(1), root), ..Bench::new() };
    let mut directories = Vec::new();
    let parent = InodeNumber::new(ShardId(0), 44);
    for number in 1..=2 {
        let intent = IntentId { shard: ShardId(0), number };
        let inherited = Inherited::default();
        let step = PeerStep::MakeDirectoryInode { parent, mode: 0o777, uid: 0, gid: 0, time: Timestamp(5), inherited };
        match bench.back.apply(Timestamp(5), &Command::PeerStep { intent, step, keep: false }).answer {
            Answer::Peer(Ok(PeerAnswer::Made(attributes))) => directories.push(attributes.inode),
            other => panic!("{other:?}"),
        }
    }
    let [p, q] = directories[..] else { panic!("two directories") };
    let d = bench.mkdir(p, "d", 0o755);
    bench.mkdir(d, "below", 0o755);
    assert_eq!(bench.change(rename((p, "d"), (q, "d"), RenameMode::Replace)), Err(Error::CrossShard));
    bench.change(rename((p, "d"), (p, "e"), RenameMode::Replace)).expect("the same parent");
    bench.change(rename((d, "below"), (q, "d"), RenameMode::Replace)).expect("nothing is below it");
    bench.change(rename((p, "e"), (q, "e"), RenameMode::Replace)).expect("nothing is below it any more");
    assert_eq!((bench.get(d).parent, bench.get(p).links, bench.get(q).links), (q, 2, 4));
}

#[test]
fn a_listing_comes_in_pages_of_bounded_size() {
    let mut bench = Bench::new();
    for number in 0..5000 {
        bench.create(&format!("{number:04}"));
    }
    let user = Credentials::default();
    let page = bench.back.list(&user, ROOT, Cookie::START, u32::MAX).expect("a page");
    assert_eq!((page.entries.len(), page.next.is_some()), (DIRECTORY_PAGE_ENTRIES_MAX as usize, true));
    assert!(page.entries.is_sorted_by_key(|listed| listed.cookie));
    let last = page.entries.last().expect("a full page");
    // The last name is gone meanwhile: the listing goes on after where it was.
    bench.change(unlink(ROOT, &last.name.to_string())).expect("it is there");
    let rest = bench.back.list(&user, ROOT, last.cookie, u32::MAX).expect("a page");
    assert_eq!((rest.entries.len(), rest.next.is_some()), (904, false));
    assert!(rest.entries[0].cookie > last.cookie);
    for end in [rest.entries[903].cookie, Cookie::from_raw(u64::MAX)] {
        let nothing = bench.back.list(&user, ROOT, end, u32::MAX).expect("a page");
        assert!(nothing.entries.is_empty() && nothing.next.is_none());
    }
    assert_eq!(bench.back.list(&user, ROOT, Cookie::START, 0).expect("a page").entries.len(), 1);
    let long = bench.mkdir(ROOT, "long", 0o755);
    for number in 0..2000 {
        bench.change(create(long, &format!("{number:0255}"), 0o644)).expect("a new name");
    }
    let page = bench.back.list(&user, long, Cookie::START, u32::MAX).expect("a page");
    assert_eq!((page.entries.len(), page.next.is_some()), (1028, true), "256 KiB of names");
}

#[test]
fn what_is_gone_is_stale_and_what_is_no_directory_says_so() {
    let mut bench = Bench::new();
    let file = bench.create("f");
    let gone = InodeNumber::new(ShardId(0), 999);
    assert_eq!(bench.change(create(gone, "x", 0o644)), Err(Error::Stale));
    assert_eq!(bench.change(create(file, "x", 0o644)), Err(Error::NotDirectory));
    assert_eq!(bench.change(rmdir(ROOT, "f")), Err(Error::NotDirectory));
    bench.mkdir(ROOT, "d", 0o755);
    assert_eq!(bench.change(unlink(ROOT, "d")), Err(Error::IsDirectory));
    assert_eq!(bench.change(open(ROOT, Access::Read)), Err(Error::IsDirectory));
    assert_eq!(bench.change(ShardRequest::Ping), Err(Error::Invalid), "no change");
}
