//! Directories whose names are spread over shards.

use super::across::{Several, make_directory, mv, rm};
use super::harness::*;
use crate::Growth;
use std::collections::BTreeMap;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::PeerStep;
use weft_protocol::message::shard::*;
use weft_protocol::*;

fn spread(inode: InodeNumber) -> ShardRequest {
    ShardRequest::Spread { inode }
}

fn text(number: u32) -> String {
    format!("n{number:03}")
}

fn parts_of(several: &mut Several, directory: InodeNumber) -> Parts {
    attributes(&several.ok(B, stat(directory))).parts.clone().expect("it has parts")
}

/// What a client does that knows the parts.
fn part_for(parts: &Parts, text: &str) -> InodeNumber {
    parts.of(Cookie::of(&name(text)))
}

/// All names after this cookie, with their cookies, gone through in pages of some entries as a client does.
fn listed_after(
    several: &mut Several,
    parts: Option<&Parts>,
    directory: InodeNumber,
    after: Cookie,
) -> Vec<(Cookie, String)> {
    let (mut names, mut after) = (Vec::new(), after);
    loop {
        let (inode, from) = parts.map_or(Some((directory, after)), |parts| parts.after(after)).expect("it went on");
        let request = ShardRequest::ReadDirectory { inode, after: from, entries_max: 7, with_attributes: false };
        let ShardAnswer::Page(page) = several.ok(B, request) else { panic!("a page") };
        names.extend(page.entries.iter().map(|entry| (entry.cookie, entry.name.to_string())));
        match page.next {
            Some(next) => after = next,
            None => return names,
        }
    }
}

/// A directory of the second shard with so many files and a few directories.
fn filled(several: &mut Several, files: u32) -> (InodeNumber, BTreeMap<String, InodeNumber>) {
    let d1 = several.directories[1];
    let directory = make_directory(several, (d1, "many"), 1);
    let mut names: BTreeMap<String, InodeNumber> =
        (0..files).map(|number| (text(number), several.make((directory, &text(number))))).collect();
    for shard in 0..4 {
        let text = format!("d{shard}");
        let inode = make_directory(several, (directory, &text), shard);
        names.insert(text, inode);
    }
    (directory, names)
}

#[test]
fn a_directory_keeps_its_names_and_their_places_when_it_is_spread() {
    let mut several = Several::new();
    let (directory, names) = filled(&mut several, 200);
    let before = listed_after(&mut several, None, directory, Cookie::START);
    let (of_names, of_inodes) = counts(&several);
    several.ok(A, spread(directory));
    let parts = parts_of(&mut several, directory);
    assert_eq!((parts.all().len(), parts.directory()), (4, directory));
    assert_eq!(listed_after(&mut several, Some(&parts), directory, Cookie::START), before);
    for index in [0, 50, 203] {
        let rest = listed_after(&mut several, Some(&parts), directory, before[index].0);
        assert_eq!(rest, before[index + 1..], "a listing that was at entry {index}");
    }
    let mut at = BTreeMap::new();
    for (text, inode) in &names {
        let part = part_for(&parts, text);
        *at.entry(part).or_insert(0) += 1;
        assert_eq!(several.names((part, text)), Some(*inode), "{text}");
        let elsewhere = parts.all().iter().find(|other| **other != part).expect("another part");
        for request in [
            ShardRequest::Lookup { parent: *elsewhere, name: name(text) },
            rm((*elsewhere, text)),
            ShardRequest::MakeDirectory { parent: *elsewhere, name: name(text), mode: 0o755, home: None },
            mv((part, text), (*elsewhere, text), RenameMode::Replace),
            mv((*elsewhere, text), (part, text), RenameMode::Exchange),
        ] {
            assert_eq!(several.call(A, request), Err(Error::Split), "{text}");
        }
    }
    let sizes: Vec<_> = parts.all().iter().map(|part| attributes(&several.ok(B, stat(*part))).size).collect();
    assert_eq!(sizes, parts.all().iter().map(|part| at[part]).collect::<Vec<u64>>());
    let links: u32 = parts.all().iter().map(|part| several.links(*part) - 2).sum();
    assert_eq!(links, 4);
    assert_eq!(counts(&several), (of_names, of_inodes + 3));
    assert!(several.has_no_locks());
    // Once is enough.
    several.ok(A, spread(directory));
    assert_eq!(parts_of(&mut several, directory), parts);
}

/// Names and inodes of all shards.
fn counts(several: &Several) -> (u64, u64) {
    let backs = several.worlds.iter().map(|world| world.shard.back());
    backs.fold((0, 0), |(names, inodes), back| (names + back.dentries(), inodes + back.inodes()))
}

#[test]
fn more_names_than_one_message_has_go_to_their_parts() {
    let mut several = Several::new();
    let d1 = several.directories[1];
    for number in 0..6000 {
        several.make((d1, &text(number)));
    }
    let before = listed_after(&mut several, None, d1, Cookie::START);
    several.ok(A, spread(d1));
    let parts = parts_of(&mut several, d1);
    assert_eq!(listed_after(&mut several, Some(&parts), d1, Cookie::START), before);
}

#[test]
fn what_is_known_of_names_is_recalled_first_and_nothing_more_is_granted() {
    let mut several = Several::new();
    let (directory, _) = filled(&mut several, 20);
    let find = |text: &str| ShardRequest::Lookup { parent: directory, name: name(text) };
    // The one that asks knows names, too, and that others are not there.
    for (session, text) in [(A, "n001"), (B, "n002"), (B, "nothing")] {
        assert!(grants(&several.ok(session, find(text))).contains(Grants::ENTRY), "{text}");
    }
    let call = several.begin(A, spread(directory));
    let recalled: Vec<_> = several.worlds[1].recalls.iter().map(|(session, recall)| (*session, recall.key)).collect();
    for known in [(A, LeaseKey::Names(directory)), (B, LeaseKey::Names(directory))] {
        assert!(recalled.contains(&known), "{known:?}");
    }
    let told = several.begin(B, find("n003"));
    assert!(
        !grants(&several.result(told).expect("a look-up does not wait").expect("it is there")).contains(Grants::ENTRY)
    );
    several.settle();
    assert!(several.result(call).is_some_and(|result| result.is_ok()));
}

#[test]
fn all_known_names_are_recalled_with_one_message_to_each_client() {
    let counted = |files: u32| {
        let mut several = Several::new();
        let (directory, names) = filled(&mut several, files);
        for text in names.keys() {
            for session in [A, B] {
                let find = ShardRequest::Lookup { parent: directory, name: name(text) };
                assert!(grants(&several.ok(session, find)).contains(Grants::ENTRY), "{text}");
            }
        }
        let held = several.worlds[1].shard.status().leases;
        let call = several.begin(A, spread(directory));
        let recalls = several.worlds[1].recalls.len();
        several.settle();
        assert!(several.result(call).is_some_and(|result| result.is_ok()));
        let dropped = held - several.worlds[1].shard.status().leases;
        assert!(dropped > u64::from(2 * files), "A and B knew {files} names, {dropped} leases are gone");
        recalls
    };
    // A and B have to give up their names, and what else they know of the directory.
    let few = counted(3);
    assert!(few <= 8, "{few} messages");
    assert_eq!(counted(300), few);
}

#[test]
fn names_are_made_and_moved_in_parts_as_in_any_directory() {
    let mut several = Several::new();
    let (directory, _) = filled(&mut several, 0);
    several.ok(A, spread(directory));
    let parts = parts_of(&mut several, directory);
    let root = several.directories[0];
    for number in 0..40 {
        let (old, new) = (text(number), text(number + 100));
        let file = several.make((part_for(&parts, &old), &old));
        assert_eq!(routing::of_inode(file), routing::of_inode(part_for(&parts, &old)));
        several.ok(A, mv((part_for(&parts, &old), &old), (part_for(&parts, &new), &new), RenameMode::Replace));
        assert_eq!(several.names((part_for(&parts, &new), &new)), Some(file));
        assert_eq!(several.names((part_for(&parts, &old), &old)), None);
    }
    // A directory in it is in the directory, not in a part.
    for number in 0..8 {
        let text = format!("sub{number}");
        let below = make_directory(&mut several, (part_for(&parts, &text), &text), number % 4);
        let moved = make_directory(&mut several, (root, &text), 2);
        several.ok(A, mv((root, &text), (part_for(&parts, &text), &text), RenameMode::Exchange));
        several.ok(A, mv((root, &text), (moved, "x"), RenameMode::Replace));
        for (inode, parent) in [(moved, directory), (below, moved)] {
            let request =
                ShardRequest::ReadDirectory { inode, after: Cookie::START, entries_max: 9, with_attributes: false };
            let ShardAnswer::Page(page) = several.ok(B, request) else { panic!("a page") };
            assert_eq!(page.parent, parent, "{text}");
        }
        let cycle = mv((several.directories[1], "many"), (below, "cycle"), RenameMode::Replace);
        assert_eq!(several.call(A, cycle), Err(Error::Invalid));
    }
    assert!(several.has_no_locks());
}

#[test]
fn it_goes_with_all_of_its_parts_once_they_are_empty() {
    for replaces in [false, true] {
        let mut several = Several::new();
        let d1 = several.directories[1];
        let empty = counts(&several);
        let directory = make_directory(&mut several, (d1, "many"), 1);
        several.ok(A, spread(directory));
        let parts = parts_of(&mut several, directory);
        let other = make_directory(&mut several, (d1, "other"), 2);
        let goes = || if replaces { mv((d1, "other"), (d1, "many"), RenameMode::Replace) } else { rmdir(d1, "many") };
        for part in parts.all() {
            let text = (0..).map(text).find(|text| part_for(&parts, text) == *part).expect("each part has names");
            several.make((*part, &text));
            assert_eq!(several.call(A, goes()), Err(Error::NotEmpty));
            several.ok(A, rm((*part, &text)));
        }
        several.ok(A, goes());
        assert_eq!(several.names((d1, "many")), replaces.then_some(other));
        if !replaces {
            several.ok(A, rmdir(d1, "other"));
        } else {
            several.ok(A, rmdir(d1, "many"));
        }
        // What clients have seen of it is kept for a term.
        several.worlds.iter_mut().for_each(|world| world.pass(2 * SESSION_TERM_MS, &[A, B]));
        several.settle();
        assert_eq!(counts(&several), empty, "{replaces}");
    }
}

#[test]
fn a_change_of_it_is_one_of_all_parts() {
    let mut several = Several::new();
    let (directory, _) = filled(&mut several, 10);
    several.ok(A, spread(directory));
    let parts = parts_of(&mut several, directory);
    several.ok(A, chmod(directory, 0o711));
    let mtime = Some(TimeChange::To(Timestamp(5)));
    let changes = AttributeChanges { uid: Some(7), mtime, ..AttributeChanges::default() };
    several.ok(A, ShardRequest::SetAttributes { inode: directory, changes });
    let plan = stripes(2, 1 << 20);
    several.ok(A, ShardRequest::SetInherited { inode: directory, change: InheritedChange::Plan(plan) });
    for part in parts.all() {
        let told = several.ok(B, stat(*part));
        let Attributes { mode, uid, mtime, layout, .. } = attributes(&told);
        assert_eq!((*mode, *uid, *mtime, layout.plan()), (0o711, 7, Timestamp(5), plan));
    }
    assert_eq!(several.call(A, chmod(parts.others()[0], 0o700)), Err(Error::Invalid), "not a part alone");
    let size = AttributeChanges { size: Some(1), ..AttributeChanges::default() };
    let refused = several.call(A, ShardRequest::SetAttributes { inode: directory, changes: size });
    assert_eq!(refused, Err(Error::IsDirectory));
    let others = several.at(routing::of_inode(directory)).call_as(A, user(5), chmod(directory, 0o777));
    several.settle();
    assert_eq!(several.result((routing::of_inode(directory), others)), Some(Err(Error::NotPermitted)));
    assert!(several.has_no_locks());
}

#[test]
fn a_spread_that_a_shard_takes_no_part_in_leaves_all_as_it_was() {
    // The first shard makes its part, or takes names, and is away then.
    for steps in [0, 1, 2] {
        let mut several = Several::new();
        let (directory, _) = filled(&mut several, 100);
        let before = (listed_after(&mut several, None, directory, Cookie::START), counts(&several));
        let call = several.begin(A, spread(directory));
        several.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
        for _ in 0..steps {
            several.take_calls().into_iter().for_each(|call| several.deliver(call));
            several.deliver_replies();
        }
        let calls = several.take_calls();
        assert!(!calls.is_empty() && calls.iter().all(|call| !matches!(call.step, PeerStep::Forget)));
        several.unreachable(&calls[0]);
        assert_eq!(several.result(call), Some(Err(Error::Unreachable)), "after {steps} steps");
        // What was on its way comes late.
        calls.into_iter().for_each(|call| several.deliver(call));
        several.settle();
        let after = (listed_after(&mut several, None, directory, Cookie::START), counts(&several));
        assert_eq!(after, before, "after {steps} steps");
        assert!(several.has_no_locks());
        several.ok(A, spread(directory));
    }
}

#[test]
fn only_its_owner_spreads_a_directory() {
    let mut several = Several::new();
    let (directory, names) = filled(&mut several, 1);
    let others = several.worlds[1].call_as(A, user(5), spread(directory));
    several.settle();
    assert_eq!(several.result((ShardId(1), others)), Some(Err(Error::NotPermitted)));
    assert_eq!(several.call(A, spread(names["n000"])), Err(Error::NotDirectory));
    assert_eq!(several.call(A, spread(InodeNumber::new(ShardId(1), 999))), Err(Error::Stale));
    assert!(several.has_no_locks());
}

#[test]
fn a_large_directory_is_spread_by_itself() {
    let mut several = Several::new();
    let d1 = several.directories[1];
    let growth = Growth::USUAL;
    // One user: not before it is very large.
    for number in 0..growth.entries_shared {
        several.make((d1, &format!("f{number}")));
    }
    assert_eq!(attributes(&several.ok(A, stat(d1))).parts, None);
    let sessions = (100..100 + growth.users as u64).map(SessionId);
    for session in sessions {
        several.ok(session, stat(d1));
    }
    for number in 0..growth.step {
        several.make((d1, &format!("g{number}")));
    }
    let parts = parts_of(&mut several, d1);
    let entries: u64 = parts.all().iter().map(|part| attributes(&several.ok(B, stat(*part))).size).sum();
    assert_eq!(entries, growth.entries_shared + growth.step);
    assert!(several.has_no_locks());
}

#[test]
fn directories_inherit_that_they_are_spread_once_they_have_a_few_names() {
    let mut several = Several::new();
    let (directory, _) = filled(&mut several, 1);
    let change = InheritedChange::Spreads(true);
    several.ok(A, ShardRequest::SetInherited { inode: directory, change });
    several.ok(A, spread(directory));
    let parts = parts_of(&mut several, directory);
    // Made where its name belongs, or at another shard.
    let make = |several: &mut Several, text: &str, home| {
        let name = name(text);
        let parent = parts.of(Cookie::of(&name));
        attributes(&several.ok(A, ShardRequest::MakeDirectory { parent, name, mode: 0o755, home })).inode
    };
    let below = [make(&mut several, "here", None), make(&mut several, "there", Some(NodeId(2)))];
    for made in below {
        for number in 0..Growth::USUAL.entries_inherited {
            assert_eq!(attributes(&several.ok(A, stat(made))).parts, None, "{number} names");
            several.make((made, &format!("f{number}")));
        }
        assert!(parts_of(&mut several, made).all().len() > 1);
    }
    let change = InheritedChange::Spreads(false);
    several.ok(A, ShardRequest::SetInherited { inode: directory, change });
    let last = make(&mut several, "last", None);
    for number in 0..Growth::USUAL.entries_inherited {
        several.make((last, &format!("f{number}")));
    }
    assert_eq!(attributes(&several.ok(A, stat(last))).parts, None);
}

/// What it is to be like is not changed while its parts are made.
#[test]
fn a_change_of_a_directory_waits_while_it_is_spread() {
    let mut several = Several::new();
    let (directory, _) = filled(&mut several, 10);
    several.begin(A, spread(directory));
    several.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
    let calls = several.take_calls();
    assert_eq!(calls.len(), 3, "each other shard makes a part");
    let (mode, plan) = (several.begin(B, chmod(directory, 0o700)), stripes(2, 1 << 20));
    let striped =
        several.begin(B, ShardRequest::SetInherited { inode: directory, change: InheritedChange::Plan(plan) });
    assert_eq!((several.result(mode), several.result(striped)), (None, None));
    calls.into_iter().for_each(|call| several.deliver(call));
    several.settle();
    assert!(several.result(mode).is_some_and(|result| result.is_ok()));
    assert!(several.result(striped).is_some_and(|result| result.is_ok()));
    for part in parts_of(&mut several, directory).all() {
        let told = several.ok(B, stat(*part));
        assert_eq!((attributes(&told).mode, attributes(&told).layout.plan()), (0o700, plan));
    }
}
