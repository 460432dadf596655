//! Random operations against a plain model of a POSIX tree: names in ordered maps, ids for inodes, permissions spelled
//! out once more. Results, and now and then the whole tree, must be alike.

use super::operations::{Bench, create, mkdir, name, rename, rmdir, set, unlink};
use crate::back::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weft_protocol::message::shard::*;
use weft_protocol::*;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub is_directory: bool,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub names: BTreeMap<String, usize>,
    pub parent: usize,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// The model. Node 0 is `/`; nodes are never used again.
pub struct Model {
    pub nodes: BTreeMap<usize, Node>,
    next: usize,
}

#[derive(Clone, Debug)]
pub enum Step {
    Create(usize, String, u16),
    Mkdir(usize, String, u16),
    Unlink(usize, String),
    UnlinkBatch(usize, Vec<String>),
    Rmdir(usize, String),
    Rename(usize, String, usize, String, RenameMode),
    Link(usize, usize, String),
    Chmod(usize, u16),
    Chown(usize, u32),
    /// Name, bytes of the value, whether it has to be absent, whether it has to be present.
    SetXattr(usize, &'static str, usize, (bool, bool)),
    RemoveXattr(usize, &'static str),
}

type Done = std::result::Result<(), Error>;

impl Model {
    /// `/`, which everybody may change.
    pub fn new() -> Self {
        let (names, xattrs) = (BTreeMap::new(), BTreeMap::new());
        let root = Node { is_directory: true, mode: 0o777, uid: 0, gid: 0, links: 2, names, parent: 0, xattrs };
        Self { nodes: BTreeMap::from([(0, root)]), next: 1 }
    }

    fn may(&self, node: usize, uid: u32, bits: u16) -> Done {
        let node = &self.nodes[&node];
        let shift = if uid == node.uid {
            6
        } else if uid == node.gid {
            3
        } else {
            0
        };
        if uid == 0 || (node.mode >> shift) & bits == bits { Ok(()) } else { Err(Error::AccessDenied) }
    }

    fn directory(&self, node: usize) -> Done {
        match self.nodes.get(&node) {
            None => Err(Error::Stale),
            Some(node) if !node.is_directory => Err(Error::NotDirectory),
            Some(_) => Ok(()),
        }
    }

    fn sticky(&self, directory: usize, target: usize, uid: u32) -> Done {
        let owners = [0, self.nodes[&directory].uid, self.nodes[&target].uid];
        let free = self.nodes[&directory].mode & 0o1000 == 0 || owners.contains(&uid);
        if free { Ok(()) } else { Err(Error::NotPermitted) }
    }

    fn get(&self, directory: usize, text: &str) -> Option<usize> {
        self.nodes[&directory].names.get(text).copied()
    }

    fn make(&mut self, directory: usize, text: &str, uid: u32, (mode, is_directory): (u16, bool)) -> Done {
        self.directory(directory)?;
        self.may(directory, uid, 1)?;
        if self.get(directory, text).is_some() {
            return Err(Error::Exists);
        }
        self.may(directory, uid, 3)?;
        let parent = &self.nodes[&directory];
        let inherits = parent.mode & 0o2000 != 0;
        let gid = if inherits { parent.gid } else { uid };
        let stranger = uid != 0 && uid != gid;
        let mode = match is_directory {
            true if inherits => mode | 0o2000,
            false if stranger && mode & 0o010 != 0 => mode & !0o2000,
            _ => mode,
        };
        let links = if is_directory { 2 } else { 1 };
        let node = Node {
            is_directory,
            mode,
            uid,
            gid,
            links,
            names: BTreeMap::new(),
            parent: directory,
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(self.next, node);
        self.put(directory, text, self.next);
        self.next += 1;
        Ok(())
    }

    fn put(&mut self, directory: usize, text: &str, node: usize) {
        let is_directory = self.nodes[&node].is_directory;
        let parent = self.nodes.get_mut(&directory).expect("there");
        parent.names.insert(text.to_owned(), node);
        parent.links += u32::from(is_directory);
        if is_directory {
            self.nodes.get_mut(&node).expect("there").parent = directory;
        }
    }

    fn take(&mut self, directory: usize, text: &str) -> usize {
        let node = self.nodes.get_mut(&directory).expect("there").names.remove(text).expect("there");
        let is_directory = self.nodes[&node].is_directory;
        self.nodes.get_mut(&directory).expect("there").links -= u32::from(is_directory);
        node
    }

    fn drop_link(&mut self, node: usize) {
        let entry = self.nodes.get_mut(&node).expect("there");
        entry.links -= 1;
        if entry.links == 0 || entry.is_directory {
            self.nodes.remove(&node);
        }
    }

    fn remove(&mut self, directory: usize, text: &str, uid: u32, wants_directory: bool) -> Done {
        self.directory(directory)?;
        self.may(directory, uid, 1)?;
        let target = self.get(directory, text).ok_or(Error::NotFound)?;
        self.may(directory, uid, 3)?;
        match (self.nodes[&target].is_directory, wants_directory) {
            (true, false) => return Err(Error::IsDirectory),
            (false, true) => return Err(Error::NotDirectory),
            _ => {}
        }
        self.sticky(directory, target, uid)?;
        if !self.nodes[&target].names.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.take(directory, text);
        self.drop_link(target);
        Ok(())
    }

    fn is_above(&self, above: usize, mut node: usize) -> bool {
        while node != above && node != 0 {
            node = self.nodes[&node].parent;
        }
        node == above
    }

    fn may_leave(&self, directory: usize, node: usize, uid: u32) -> Done {
        self.may(directory, uid, 3)?;
        self.sticky(directory, node, uid)
    }

    fn may_move(&self, node: usize, uid: u32) -> Done {
        if self.nodes[&node].is_directory { self.may(node, uid, 2) } else { Ok(()) }
    }

    fn rename(&mut self, from: (usize, &str), to: (usize, &str), mode: RenameMode, uid: u32) -> Done {
        self.directory(from.0)?;
        self.directory(to.0)?;
        self.may(from.0, uid, 1)?;
        self.may(to.0, uid, 1)?;
        let source = self.get(from.0, from.1).ok_or(Error::NotFound)?;
        let target = self.get(to.0, to.1);
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Error::Exists),
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            _ => {}
        }
        let moves = from.0 != to.0;
        let is_directory = |model: &Self, node: usize| model.nodes[&node].is_directory;
        if is_directory(self, source) && moves && self.is_above(source, to.0) {
            return Err(Error::Invalid);
        }
        if let Some(target) = target
            && is_directory(self, target)
            && moves
            && self.is_above(target, from.0)
        {
            return Err(if mode == RenameMode::Exchange { Error::Invalid } else { Error::NotEmpty });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_leave(from.0, source, uid)?;
        match target {
            None => self.may(to.0, uid, 3)?,
            Some(target) => self.may_leave(to.0, target, uid)?,
        }
        if moves {
            self.may_move(source, uid)?;
            if let (Some(target), RenameMode::Exchange) = (target, mode) {
                self.may_move(target, uid)?;
            }
        }
        if let (Some(target), RenameMode::Exchange) = (target, mode) {
            self.take(from.0, from.1);
            self.take(to.0, to.1);
            self.put(from.0, from.1, target);
            self.put(to.0, to.1, source);
            return Ok(());
        }
        if let Some(target) = target {
            match (is_directory(self, source), is_directory(self, target)) {
                (true, true) if !self.nodes[&target].names.is_empty() => return Err(Error::NotEmpty),
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                _ => {}
            }
            self.take(to.0, to.1);
            self.drop_link(target);
        }
        self.take(from.0, from.1);
        self.put(to.0, to.1, source);
        Ok(())
    }

    fn link(&mut self, node: usize, directory: usize, text: &str, uid: u32) -> Done {
        if !self.nodes.contains_key(&node) {
            return Err(Error::Stale);
        }
        self.directory(directory)?;
        self.may(directory, uid, 1)?;
        if self.get(directory, text).is_some() {
            return Err(Error::Exists);
        }
        self.may(directory, uid, 3)?;
        if self.nodes[&node].is_directory {
            return Err(Error::NotPermitted);
        }
        self.nodes.get_mut(&node).expect("there").links += 1;
        self.put(directory, text, node);
        Ok(())
    }

    fn owned(&mut self, node: usize, uid: u32) -> std::result::Result<&mut Node, Error> {
        let node = self.nodes.get_mut(&node).ok_or(Error::Stale)?;
        if uid == 0 || uid == node.uid { Ok(node) } else { Err(Error::NotPermitted) }
    }

    pub fn apply(&mut self, step: &Step, uid: u32) -> Done {
        match step {
            Step::Create(directory, text, mode) => self.make(*directory, text, uid, (*mode, false)),
            Step::Mkdir(directory, text, mode) => self.make(*directory, text, uid, (*mode, true)),
            Step::Unlink(directory, text) => self.remove(*directory, text, uid, false),
            Step::UnlinkBatch(directory, texts) => {
                let mut results = texts.iter().map(|text| self.remove(*directory, text, uid, false));
                let first = results.next().expect("a batch has names");
                // The lazy iterator removes as many as follow the first one without a refusal.
                first.map(|()| {
                    let _refused = results.find(Result::is_err);
                })
            }
            Step::Rmdir(directory, text) => self.remove(*directory, text, uid, true),
            Step::Rename(from, text, to, new_text, mode) => self.rename((*from, text), (*to, new_text), *mode, uid),
            Step::Link(node, directory, text) => self.link(*node, *directory, text, uid),
            Step::Chmod(node, mode) => {
                let clears_set_id = |file: &Node| !file.is_directory && without_set_id(file.mode) == *mode;
                let owns = self.owned(*node, uid).is_ok();
                let writer =
                    !owns && self.nodes.get(node).is_some_and(clears_set_id) && self.may(*node, uid, 2).is_ok();
                let node = self.owned(*node, if writer { 0 } else { uid })?;
                let member = writer || uid == 0 || uid == node.gid;
                node.mode = if member { *mode } else { *mode & !0o2000 };
                Ok(())
            }
            Step::Chown(node, to) => {
                let node = self.owned(*node, uid)?;
                if uid != 0 && *to != node.uid {
                    return Err(Error::NotPermitted);
                }
                node.uid = *to;
                if !node.is_directory {
                    node.mode = without_set_id(node.mode);
                }
                Ok(())
            }
            Step::SetXattr(node, text, bytes, (absent, present)) => {
                let xattrs = self.xattrs(*node, text, uid)?;
                match xattrs.get(*text) {
                    Some(_) if *absent => return Err(Error::Exists),
                    None if *present => return Err(Error::NoXattr),
                    _ => {}
                }
                let others = xattrs.iter().filter(|(name, _)| name != text);
                if others.map(|(name, value)| name.len() + value.len()).sum::<usize>() + text.len() + bytes > 128 << 10
                {
                    return Err(Error::NoXattrSpace);
                }
                xattrs.insert((*text).to_owned(), vec![b'v'; *bytes]);
                Ok(())
            }
            Step::RemoveXattr(node, text) => {
                self.xattrs(*node, text, uid)?.remove(*text).map(drop).ok_or(Error::NoXattr)
            }
        }
    }

    /// The attributes of a node, for a user who may change this one.
    fn xattrs(
        &mut self,
        number: usize,
        text: &str,
        uid: u32,
    ) -> std::result::Result<&mut BTreeMap<String, Vec<u8>>, Error> {
        let node = self.nodes.get(&number).ok_or(Error::Stale)?;
        if text.starts_with("trusted.") {
            if uid != 0 {
                return Err(Error::NotPermitted);
            }
        } else {
            if node.is_directory && node.mode & 0o1000 != 0 && ![0, node.uid].contains(&uid) {
                return Err(Error::NotPermitted);
            }
            self.may(number, uid, 2)?;
        }
        Ok(&mut self.nodes.get_mut(&number).expect("there").xattrs)
    }
}

/// A mode after a write or `chown` by a user.
fn without_set_id(mode: u16) -> u16 {
    mode & if mode & 0o010 != 0 { !0o6000 } else { !0o4000 }
}

/// Node `n` of the model is inode `n + 1`: the root is 1, and both count up.
fn inode(node: usize) -> InodeNumber {
    InodeNumber::new(ShardId(0), node as u64 + 1)
}

/// The request of a step.
pub fn request(step: &Step, inode: impl Fn(usize) -> InodeNumber) -> ShardRequest {
    match step {
        Step::Create(directory, text, mode) => create(inode(*directory), text, *mode),
        Step::Mkdir(directory, text, mode) => mkdir(inode(*directory), text, *mode),
        Step::Unlink(directory, text) => unlink(inode(*directory), text),
        Step::UnlinkBatch(directory, texts) => {
            let names = texts.iter().map(|text| name(text)).collect();
            ShardRequest::UnlinkBatch { parent: inode(*directory), names }
        }
        Step::Rmdir(directory, text) => rmdir(inode(*directory), text),
        Step::Rename(from, text, to, new_text, mode) => rename((inode(*from), text), (inode(*to), new_text), *mode),
        Step::Link(node, directory, text) => {
            ShardRequest::Link { inode: inode(*node), parent: inode(*directory), name: name(text) }
        }
        Step::Chmod(node, mode) => {
            set(inode(*node), AttributeChanges { mode: Some(*mode), ..AttributeChanges::default() })
        }
        Step::Chown(node, to) => set(inode(*node), AttributeChanges { uid: Some(*to), ..AttributeChanges::default() }),
        Step::SetXattr(node, text, bytes, (absent, present)) => ShardRequest::SetXattr {
            inode: inode(*node),
            name: xattr_name(text),
            value: XattrValue::new(&vec![b'v'; *bytes]).expect("short"),
            expects: XattrExpectation { absent: *absent, present: *present },
        },
        Step::RemoveXattr(node, text) => ShardRequest::RemoveXattr { inode: inode(*node), name: xattr_name(text) },
    }
}

fn xattr_name(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("a valid name")
}

/// The whole tree, as the back has it.
fn tree(bench: &Bench) -> BTreeMap<usize, Node> {
    let mut nodes = BTreeMap::new();
    let mut open = vec![0];
    while let Some(number) = open.pop() {
        let record = bench.get(inode(number));
        let mut names = BTreeMap::new();
        if record.kind == FileKind::Directory {
            let listing =
                bench.back.list(&Credentials::default(), inode(number), Cookie::START, 4096).expect("a directory");
            assert_eq!(listing.entries.len() as u64, record.size);
            for listed in listing.entries {
                let child = usize::try_from(listed.dentry.inode.sequence() - 1).expect("small");
                names.insert(listed.name.to_string(), child);
                open.push(child);
            }
        }
        let is_directory = record.kind == FileKind::Directory;
        let parent = if is_directory { usize::try_from(record.parent.sequence() - 1).expect("small") } else { 0 };
        let Inode { mode, uid, gid, links, .. } = record;
        let told = bench.back.xattrs(&Credentials::default(), inode(number)).expect("an inode");
        let told = told.into_iter().map(|xattr| {
            let text = String::from_utf8_lossy(xattr.name.as_bytes()).into_owned();
            (text, xattr.value.expect("root may read it").as_bytes().to_vec())
        });
        let xattrs: BTreeMap<_, _> = told.collect();
        let bytes = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        assert_eq!(record.xattr_bytes as usize, bytes);
        nodes.insert(number, Node { is_directory, mode, uid, gid, links, names, parent, xattrs });
    }
    nodes
}

fn step(texts: &'static [&'static str]) -> impl Strategy<Value = Step> {
    let node = || prop_oneof![3 => Just(0usize), 5 => 0usize..12];
    let text = move || prop::sample::select(texts).prop_map(str::to_owned);
    let mode = || prop::sample::select(vec![0o755, 0o777, 0o1777, 0o2777, 0o700, 0o070, 0o2755, 0o6711, 0o666]);
    let xattr = || prop::sample::select(vec!["user.a", "user.b", "user.bb", "trusted.a"]);
    let bytes = prop::sample::select(vec![0usize, 5, 1024, 1025, 3000, 65_536]);
    let how = prop::sample::select(vec![
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    prop_oneof![
        4 => (node(), text(), mode()).prop_map(|(directory, text, mode)| Step::Create(directory, text, mode)),
        6 => (node(), text(), mode()).prop_map(|(directory, text, mode)| Step::Mkdir(directory, text, mode)),
        2 => (node(), text()).prop_map(|(directory, text)| Step::Unlink(directory, text)),
        1 => (node(), prop::collection::vec(text(), 1..4))
            .prop_map(|(directory, texts)| Step::UnlinkBatch(directory, texts)),
        2 => (node(), text()).prop_map(|(directory, text)| Step::Rmdir(directory, text)),
        8 => (node(), text(), node(), text(), how).prop_map(|(a, b, c, d, e)| Step::Rename(a, b, c, d, e)),
        2 => (node(), node(), text()).prop_map(|(node, directory, text)| Step::Link(node, directory, text)),
        1 => (node(), mode()).prop_map(|(node, mode)| Step::Chmod(node, mode)),
        1 => (node(), 0u32..3).prop_map(|(node, uid)| Step::Chown(node, uid)),
        3 => (node(), xattr(), bytes, any::<(bool, bool)>())
            .prop_map(|(node, text, bytes, expects)| Step::SetXattr(node, text, bytes, expects)),
        1 => (node(), xattr()).prop_map(|(node, text)| Step::RemoveXattr(node, text)),
    ]
}

/// Steps, each with the user who makes it.
pub fn steps(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<(Step, u32)>> {
    prop::collection::vec((step(texts), prop::sample::select(vec![0u32, 0, 1, 2])), 1..80)
}

/// Applies steps to a back machine and to the model; `after_each` sees the machine after each step.
pub fn compare(bench: &mut Bench, steps: Vec<(Step, u32)>, mut after_each: impl FnMut(&Bench)) {
    bench.chmod(InodeNumber::ROOT, 0o777).expect("root may");
    let mut model = Model::new();
    for (step, uid) in steps {
        let expected = model.apply(&step, uid);
        let found = bench.as_user(uid, &[]).change(request(&step, inode)).map(|_| ());
        assert_eq!(found, expected, "{step:?} by {uid}");
        after_each(bench);
    }
    let mut nodes = model.nodes;
    for node in nodes.values_mut().filter(|node| !node.is_directory) {
        node.parent = 0;
    }
    assert_eq!(tree(bench), nodes);
    let parts = |value: &Vec<u8>| value.len().div_ceil(1024).max(1);
    let expected: usize = nodes.values().flat_map(|node| node.xattrs.values().map(parts)).sum();
    assert_eq!(bench.back.xattr_keys(), expected, "attributes go with their inode");
    assert_eq!(bench.back.inodes(), nodes.len() as u64);
    assert_eq!(bench.back.dentries(), nodes.values().map(|node| node.names.len() as u64).sum::<u64>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn behaves_as_a_posix_tree(steps in steps(&["a", "b", "c"])) {
        compare(&mut Bench::new(), steps, |_| ());
    }
}
