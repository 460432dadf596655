//! A shard over a directory of another file system, which the test has in memory.

use super::harness::*;
use crate::front::Event;
use std::collections::BTreeMap;
use weft_protocol::message::shard::*;
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::*;

/// Names and bytes of one answer: few, so that there are several.
const NAMES_MAX: usize = 2;
const BYTES_MAX: u64 = 40;

/// The directory below: paths with their stamps; `None`: a directory.
type Below = BTreeMap<Vec<Name>, Option<BelowStamp>>;

fn stamp(size: u64, mtime: i64) -> BelowStamp {
    BelowStamp { size, mtime: Timestamp(mtime), inode: 1000 + size }
}

fn path(text: &str) -> Vec<Name> {
    text.split('/').filter(|part| !part.is_empty()).map(name).collect()
}

fn below(entries: &[(&str, Option<u64>)]) -> Below {
    let entry = |(text, size): &(&str, Option<u64>)| (path(text), size.map(|size| stamp(size, 50)));
    entries.iter().map(entry).collect()
}

/// A shard over a directory, with two storage servers.
fn world_over() -> World {
    let mut world = World::new();
    world.shard.lie_over();
    world.event(Event::SetMap(map_of_two()));
    world
}

/// One shard, and two nodes that store.
fn map_of_two() -> ClusterMap {
    let mut map = map_of(1);
    let mut second = map.nodes[0].clone();
    second.id = NodeId(2);
    map.nodes.push(second);
    map
}

fn answer(below: &Below, node: NodeId, request: &StorageRequest) -> weft_protocol::Result<StorageAnswer> {
    match request {
        StorageRequest::ListBelow { path, after } => {
            let inner = |(other, stamp): (&Vec<Name>, &Option<BelowStamp>)| {
                let (last, parent) = other.split_last()?;
                let is_wanted = parent == path.as_slice() && after.as_ref().is_none_or(|after| last > after);
                is_wanted.then(|| BelowName {
                    name: last.clone(),
                    kind: if stamp.is_some() { FileKind::Regular } else { FileKind::Directory },
                    mode: 0o777,
                    uid: 0,
                    gid: 0,
                    stamp: stamp.unwrap_or_default(),
                    target: None,
                })
            };
            let mut names: Vec<BelowName> = below.iter().filter_map(inner).collect();
            names.sort_by(|a, b| a.name.cmp(&b.name));
            let is_more = names.len() > NAMES_MAX;
            names.truncate(NAMES_MAX);
            Ok(StorageAnswer::NamesBelow { names, is_more })
        }
        StorageRequest::FillFromBelow { inode, object, path, offset } => {
            let stamp = below.get(path).copied().flatten().ok_or(Error::Device(116))?;
            let object = object.unwrap_or(ObjectId::new(node, inode.raw() & 0xffff));
            let end = stamp.size.min(offset + BYTES_MAX);
            Ok(StorageAnswer::Filled { object, end, stamp, object_mtime: Timestamp(9) })
        }
        StorageRequest::Stat { .. } => Ok(StorageAnswer::Object { size: 0, mtime: Timestamp(9) }),
        StorageRequest::Truncate { size, .. } => Ok(StorageAnswer::Object { size: *size, mtime: Timestamp(9) }),
        _ => Ok(StorageAnswer::Done),
    }
}

/// Answers all questions, and those that follow.
fn serve(world: &mut World, below: &Below) {
    while let Some((token, node, request)) = world.storage.pop() {
        if let Some(token) = token {
            let result = answer(below, node, &request);
            world.event(Event::StorageAnswer { token, result });
        }
    }
}

/// As [`serve`], and everybody gives up what is recalled.
fn serve_and_yield(world: &mut World, below: &Below) {
    serve(world, below);
    while !world.recalls.is_empty() {
        world.answer_recalls(LeaseMode::None);
        serve(world, below);
    }
}

fn open_read(inode: InodeNumber) -> ShardRequest {
    open(inode, Access::Read)
}

#[test]
fn names_and_contents_are_read_before_the_first_call_that_needs_them() {
    let below = below(&[("a", Some(100)), ("b", Some(0)), ("d", None), ("d/x", Some(7))]);
    let mut world = world_over();
    let first = world.waits(A, lookup("a"));
    let second = world.waits(B, list(ROOT, None, 10));
    assert_eq!(world.storage.len(), 1, "it is read once");
    serve(&mut world, &below);
    let found = attributes(&world.done(first)).clone();
    assert_eq!((found.size, found.mtime, found.layout), (100, Timestamp(50), Layout::Empty));
    assert!(matches!(world.done(second), ShardAnswer::Page(page) if page.entries.len() == 3));
    // Attributes need nothing more; contents do, once.
    world.ok(A, stat(found.inode));
    let opened = world.waits(A, open_read(found.inode));
    serve(&mut world, &below);
    let opened = attributes(&world.done(opened)).clone();
    assert!(matches!(opened.layout, Layout::Whole { .. }) && opened.ctime == found.ctime, "{opened:?}");
    world.ok(B, open_read(found.inode));
    // An empty file, and one that is cut, have nothing to be read.
    let empty = attributes(&world.ok(A, lookup("b"))).inode;
    world.ok(A, open_read(empty));
    let directory = attributes(&world.ok(A, lookup("d"))).inode;
    let inner = world.waits(A, ShardRequest::Lookup { parent: directory, name: name("x") });
    serve(&mut world, &below);
    let size = [B, A].map(|session| (session, LeaseKey::Attributes(directory), LeaseMode::None));
    assert_eq!(world.recalled(), size, "also from who asks");
    serve_and_yield(&mut world, &below);
    let inner = attributes(&world.done(inner)).inode;
    let flags = OpenFlags { truncate: true, ..flags(Access::Write) };
    world.ok(A, ShardRequest::Open { inode: inner, flags });
    assert!(!world.shard.back().has_unread());
}

#[test]
fn a_file_goes_to_a_node_of_the_machine_that_opens_it_first() {
    let below = below(&[("a", Some(10)), ("b", Some(10)), ("c", Some(10)), ("d", Some(10))]);
    let machines = [NodeIdentity(1), NodeIdentity(2)];
    let mut map = map_of_two();
    for (node, machine) in map.nodes.iter_mut().zip(machines) {
        node.identity = machine;
    }
    let nodes: Vec<NodeId> = map.nodes.iter().map(|node| node.id).collect();
    let mut world = world_over();
    map.epoch.0 += 1;
    world.event(Event::SetMap(map));
    let page = world.waits(A, list(ROOT, None, 10));
    serve(&mut world, &below);
    world.done(page);
    for (session, machine) in [(A, machines[0]), (B, machines[1])] {
        world.event(Event::Located { session, machine });
    }
    for (file, session, place) in [("a", A, nodes[0]), ("b", A, nodes[0]), ("c", B, nodes[1]), ("d", B, nodes[1])] {
        let inode = attributes(&world.ok(session, lookup(file))).inode;
        let opened = world.waits(session, open_read(inode));
        let full = world.storage.len() == 1 && file == "b";
        if full {
            // A full node leaves the file to another one.
            let (token, node, _) = world.storage.pop().expect("asked");
            assert_eq!(node, place);
            world.event(Event::StorageAnswer { token: token.expect("awaited"), result: Err(Error::NoSpace) });
        }
        serve(&mut world, &below);
        let Layout::Whole { object, .. } = attributes(&world.done(opened)).layout else {
            panic!("{file} has no object")
        };
        assert_eq!(object.node() == place, !full, "{file}");
    }
}

#[test]
fn who_waits_for_what_cannot_be_read_is_told_and_the_next_one_tries_again() {
    let all = below(&[("a", Some(100))]);
    let mut world = world_over();
    let waiting = [world.waits(A, lookup("a")), world.waits(B, lookup("b"))];
    let (token, first, _) = world.storage.pop().expect("a question");
    world.event(Event::StorageAnswer { token: token.expect("a token"), result: Err(Error::Unreachable) });
    let (token, second, _) = world.storage.pop().expect("asked elsewhere");
    assert_ne!(first, second);
    world.event(Event::StorageAnswer { token: token.expect("a token"), result: Err(Error::AccessDenied) });
    assert!(waiting.iter().all(|token| world.result(*token) == Some(Err(Error::AccessDenied))));
    let again = world.waits(A, lookup("a"));
    serve(&mut world, &all);
    let inode = attributes(&world.done(again)).inode;
    // A file that is gone below.
    let opened = world.waits(A, open_read(inode));
    serve(&mut world, &Below::new());
    assert_eq!(world.result(opened), Some(Err(Error::Device(116))));
}

#[test]
fn attributes_that_change_with_what_is_read_are_recalled_first() {
    let mut below = below(&[("a", Some(100)), ("d", None), ("d/e", None)]);
    let mut world = world_over();
    let found = world.waits(A, lookup("a"));
    serve(&mut world, &below);
    let inode = attributes(&world.done(found)).inode;
    below.insert(path("a"), Some(stamp(60, 70)));
    let opened = world.waits(B, open_read(inode));
    serve(&mut world, &below);
    assert_eq!(world.recalled(), [(A, LeaseKey::Attributes(inode), LeaseMode::None)]);
    world.answer_recalls(LeaseMode::None);
    let opened = attributes(&world.done(opened)).clone();
    assert_eq!((opened.size, opened.mtime), (60, Timestamp(70)));
    // What is known is what was read: nothing has changed here.
    let ShardAnswer::Below(page) = world.ok(A, ShardRequest::ReadBelow { directory: ROOT, after: None }) else {
        panic!("a page");
    };
    let entry = page.entries.iter().find(|(other, _)| *other == name("a")).expect("known").1;
    assert_eq!((entry.stamp, entry.ctime, entry.inode), (stamp(60, 70), opened.ctime, inode));
    let directory = attributes(&world.ok(A, lookup("d"))).inode;
    let removed = world.waits(B, rmdir(ROOT, "d"));
    serve(&mut world, &below);
    assert_eq!(world.recalled(), [(A, LeaseKey::Attributes(directory), LeaseMode::None)]);
    serve_and_yield(&mut world, &below);
    assert_eq!(world.result(removed), Some(Err(Error::NotEmpty)));
}

#[test]
fn what_was_below_is_known_when_it_is_gone_here() {
    let below = below(&[("a", Some(100)), ("d", None), ("d/x", Some(7))]);
    let mut world = world_over();
    let directory = world.waits(A, lookup("d"));
    serve(&mut world, &below);
    let directory = attributes(&world.done(directory)).inode;
    let removed = world.waits(A, ShardRequest::Unlink { parent: directory, name: name("x") });
    serve_and_yield(&mut world, &below);
    world.done(removed);
    world.ok(A, rmdir(ROOT, "d"));
    world.ok(A, unlink("a"));
    let known = |world: &mut World, directory| {
        let ShardAnswer::Below(page) = world.ok(A, ShardRequest::ReadBelow { directory, after: None }) else {
            panic!("a page");
        };
        let names: Vec<String> = page.entries.iter().map(|(name, _)| name.to_string()).collect();
        (page.is_unread, names.join(" "))
    };
    assert_eq!(known(&mut world, ROOT), (false, "a d".to_owned()));
    assert_eq!(known(&mut world, directory), (false, "x".to_owned()));
    let notes = vec![BelowNote { name: name("x"), entry: None }];
    world.ok(A, ShardRequest::NoteBelow { directory, notes });
    assert_eq!(known(&mut world, directory), (false, String::new()));
    assert!(!world.shard.back().has_unread(), "what goes needs not to be read");
}

/// A small generator of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

/// Makes a call, with all that it waits for; now and then the shard moves meanwhile.
fn run(
    world: &mut World,
    below: &Below,
    choices: &mut Choices,
    request: &ShardRequest,
) -> weft_protocol::Result<ShardAnswer> {
    let mut token = world.call([A, B][choices.below(2)], request.clone());
    for _ in 0..100 {
        if let Some(result) = world.result(token) {
            return result;
        }
        if choices.below(4) == 0 {
            let waiting = world.move_shard();
            world.event(Event::SetMap(map_of_two()));
            if waiting.contains(&token) {
                let (origin, credentials) = world.callers[&token].clone();
                token = world.call_of(origin, credentials, request.clone());
            }
        } else if !world.recalls.is_empty() {
            world.answer_recalls(LeaseMode::None);
        } else if let Some((asked, node, request)) = world.storage.pop()
            && let Some(asked) = asked
        {
            let result = answer(below, node, &request);
            world.event(Event::StorageAnswer { token: asked, result });
        }
    }
    panic!("{request:?} is not answered: {:?}", world.shard.stuck());
}

/// The inode of a path.
fn walk(world: &mut World, below: &Below, choices: &mut Choices, path: &[Name]) -> Option<Attributes> {
    let mut parent = ROOT;
    let mut found = None;
    for name in path {
        match run(world, below, choices, &ShardRequest::Lookup { parent, name: name.clone() }) {
            Ok(ShardAnswer::Entry { attributes, .. }) => {
                parent = attributes.inode;
                found = Some(attributes);
            }
            _ => return None,
        }
    }
    found
}

/// All names here, with the sizes of files.
fn all(world: &mut World, below: &Below, choices: &mut Choices) -> BTreeMap<Vec<Name>, Option<u64>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(Vec::new(), ROOT)];
    while let Some((path, inode)) = directories.pop() {
        let ShardAnswer::Page(page) = run(world, below, choices, &list(inode, None, 100)).expect("listed") else {
            panic!("a page");
        };
        for entry in page.entries {
            let path = [&path[..], &[entry.name]].concat();
            if entry.kind == FileKind::Directory {
                found.insert(path.clone(), None);
                directories.push((path, entry.inode));
            } else {
                let answer = run(world, below, choices, &stat(entry.inode)).expect("there");
                found.insert(path, Some(attributes(&answer).size));
            }
        }
    }
    found
}

/// Moves what has this path, with what is in it.
fn rename_in_model(model: &mut BTreeMap<Vec<Name>, Option<u64>>, from: &[Name], to: &[Name]) {
    let moved: Vec<_> = model.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in moved {
        let entry = model.remove(&path).expect("it is there");
        model.insert([to, &path[from.len()..]].concat(), entry);
    }
}

#[test]
fn whatever_is_read_when_a_shard_over_a_directory_is_one_that_has_its_names() {
    let below = below(&[
        ("a", Some(100)),
        ("b", Some(1)),
        ("d", None),
        ("d/a", Some(90)),
        ("d/x", Some(7)),
        ("d/e", None),
        ("d/e/y", Some(3)),
        ("f", None),
    ]);
    let paths: Vec<Vec<Name>> = ["a", "b", "c", "d", "f", "d/a", "d/x", "d/e", "d/e/y", "f/a", "f/d", "f/d/x", "c/y"]
        .into_iter()
        .map(path)
        .collect();
    for seed in 0..200 {
        let mut choices = Choices(seed);
        let mut world = world_over();
        let mut model: BTreeMap<Vec<Name>, Option<u64>> =
            below.iter().map(|(path, stamp)| (path.clone(), stamp.map(|stamp| stamp.size))).collect();
        for step in 0..30 {
            let (one, other) = (&paths[choices.below(paths.len())], &paths[choices.below(paths.len())]);
            let what = choices.below(6);
            let parent_of = |world: &mut World, choices: &mut Choices, path: &[Name]| match path.len() {
                1 => Some(ROOT),
                count => walk(world, &below, choices, &path[..count - 1])
                    .filter(|found| found.kind == FileKind::Directory)
                    .map(|found| found.inode),
            };
            let Some(parent) = parent_of(&mut world, &mut choices, one) else { continue };
            let name = one.last().expect("a name").clone();
            let known = model.get(one).copied();
            let is_empty = |path: &Vec<Name>| model.keys().all(|other| other == path || !other.starts_with(path));
            let request = match what {
                0 => ShardRequest::Lookup { parent, name },
                1 => ShardRequest::Unlink { parent, name },
                2 => ShardRequest::RemoveDirectory { parent, name },
                3 => ShardRequest::MakeDirectory { parent, name, mode: 0o755, home: None },
                4 => ShardRequest::OpenAt { parent, name, flags: flags(Access::Read), create: None, objects: None },
                _ => {
                    let Some(new_parent) = parent_of(&mut world, &mut choices, other) else { continue };
                    let new_name = other.last().expect("a name").clone();
                    let (mode, guess) = (RenameMode::Replace, None);
                    ShardRequest::Rename { parent, name, new_parent, new_name, mode, guess }
                }
            };
            let result = run(&mut world, &below, &mut choices, &request);
            let context = format!("seed {seed}, step {step}: {request:?}: {result:?}");
            match what {
                0 | 4 => match (known, &result) {
                    (Some(size), Ok(answer @ (ShardAnswer::Entry { .. } | ShardAnswer::Opened { .. }))) => {
                        let found = attributes(answer);
                        assert_eq!(size, (found.kind != FileKind::Directory).then_some(found.size), "{context}");
                        let has_bytes = found.layout.object().is_some();
                        assert!(what == 0 || size.is_none_or(|size| has_bytes == (size > 0)), "{context}");
                    }
                    (None, Ok(ShardAnswer::Absent { .. })) => {}
                    _ => panic!("{context}"),
                },
                1 => {
                    assert_eq!(result.is_ok(), matches!(known, Some(Some(_))), "{context}");
                    result.is_ok().then(|| model.remove(one));
                }
                2 => {
                    assert_eq!(result.is_ok(), known == Some(None) && is_empty(one), "{context}");
                    result.is_ok().then(|| model.remove(one));
                }
                3 => {
                    assert_eq!(result.is_ok(), known.is_none(), "{context}");
                    result.is_ok().then(|| model.insert(one.clone(), None));
                }
                _ => {
                    let target = model.get(other).copied();
                    let may = match (known, target) {
                        (None, _) => false,
                        (Some(_), _) if one == other => true,
                        (Some(None), _) if other.starts_with(one) => false,
                        (Some(_), None) => true,
                        (Some(None), Some(None)) => is_empty(other),
                        (Some(Some(_)), Some(Some(_))) => true,
                        _ => false,
                    };
                    assert_eq!(result.is_ok(), may, "{context}");
                    if may && one != other {
                        model.remove(other);
                        rename_in_model(&mut model, one, other);
                    }
                }
            }
        }
        assert_eq!(all(&mut world, &below, &mut choices), model, "seed {seed}");
    }
}
