//! Names that collide: the tree of `model.rs` with a hash of few values, and what holds of cookies and tombstones after
//! each step.

use super::model::{compare, steps};
use super::operations::{Bench, create, name, rename, unlink};
use crate::back::probe::Record;
use crate::back::*;
use crate::kv::KeyValue;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weft_protocol::message::shard::RenameMode;
use weft_protocol::*;

const ROOT: InodeNumber = InodeNumber::ROOT;
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// The last two cookies of the first two buckets: runs go on at the bucket's beginning.
fn few_values(name: &Name) -> Cookie {
    let hash = Cookie::of(name).raw();
    let bucket = hash >> 1 & 1;
    Cookie::from_raw(((bucket + 1) << 51) - 1 - (hash & 1))
}

fn one_value(_: &Name) -> Cookie {
    Cookie::from_raw(1 << 51)
}

fn colliding(cookie_of: fn(&Name) -> Cookie) -> Bench {
    let mut bench = Bench::new();
    bench.back.cookie_of = cookie_of;
    bench
}

type Places = BTreeMap<(InodeNumber, Box<[u8]>), Cookie>;

/// Where each name stands; checks the invariant of `probe.rs`, and that listings show the same.
fn places(back: &Back<crate::MemoryStore>) -> Places {
    let (mut places, mut slots) = (Places::new(), BTreeMap::new());
    back.store.scan(b"d", |key, value| {
        let Some((b'd', numbers)) = key.split_first() else { return ControlFlow::Break(()) };
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let directory = InodeNumber::from_raw(number(&numbers[..8]));
        let cookie = Cookie::from_raw(number(&numbers[8..]));
        let record = Record::decode(value);
        assert!(record.dentry.is_some() || record.continued, "a tombstone is continued");
        slots.insert((directory, cookie), record.continued);
        if record.dentry.is_some() {
            let before = places.insert((directory, record.name.into()), cookie);
            assert_eq!(before, None, "{:?} stands twice", record.name.escape_ascii().to_string());
        }
        ControlFlow::Continue(())
    });
    for ((directory, bytes), cookie) in &places {
        let name = Name::new(bytes).expect("a valid name");
        let mut passed = (back.cookie_of)(&name);
        while passed != *cookie {
            assert_eq!(slots.get(&(*directory, passed)), Some(&true), "a probe for {name:?} ends at {passed}");
            passed = passed.next_in_bucket();
        }
        assert_eq!(cookie.bucket(), (back.cookie_of)(&name).bucket());
    }
    let continued: Vec<_> = slots.iter().filter(|(_, continued)| **continued).map(|(slot, _)| *slot).collect();
    assert_eq!(continued.len() as u64, back.continued);
    for (directory, cookie) in continued {
        assert!(slots.contains_key(&(directory, cookie.next_in_bucket())), "nothing follows {cookie}");
    }
    places
}

/// Reads a directory in pages of one entry.
fn listed(back: &Back<crate::MemoryStore>) -> Vec<(Cookie, String)> {
    let (mut entries, mut after) = (Vec::new(), Cookie::START);
    loop {
        let page = back.list(&Credentials::default(), ROOT, after, 1).expect("a page");
        entries.extend(page.entries.iter().map(|listed| (listed.cookie, listed.name.to_string())));
        match page.entries.last() {
            Some(last) if page.next.is_some() => after = last.cookie,
            _ => return entries,
        }
    }
}

/// Names that outlast a step keep their cookies, also those that it gives another inode.
fn check_each_step() -> impl FnMut(&Bench) {
    let mut before = Places::new();
    move |bench| {
        let now = places(&bench.back);
        for (place, cookie) in &now {
            assert!(before.get(place).is_none_or(|before| before == cookie), "{place:?} has moved");
        }
        let in_root = now.iter().filter(|((directory, _), _)| *directory == ROOT);
        let mut expected: Vec<_> =
            in_root.map(|((_, name), cookie)| (*cookie, String::from_utf8_lossy(name).into_owned())).collect();
        expected.sort();
        assert_eq!(listed(&bench.back), expected);
        before = now;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]
    #[test]
    fn colliding_names_behave_as_a_posix_tree(steps in steps(NAMES)) {
        compare(&mut colliding(few_values), steps.clone(), check_each_step());
        compare(&mut colliding(one_value), steps, check_each_step());
    }

    /// Creates, removals and renames in one directory only, so that runs are long and have holes.
    #[test]
    fn a_long_run_keeps_its_names(
        steps in prop::collection::vec((0_usize..5, 0_usize..24, 0_usize..24), 1..150),
    ) {
        for hash in [few_values, one_value] {
            let mut bench = colliding(hash);
            let mut model = BTreeMap::new();
            let mut check = check_each_step();
            for (what, first, second) in &steps {
                let (first, second) = (format!("n{first}"), format!("n{second}"));
                let found = match what {
                    0..2 => bench.change(create(ROOT, &first, 0o644)).map(|_| ()),
                    2..4 => bench.change(unlink(ROOT, &first)).map(|_| ()),
                    _ => bench.change(rename((ROOT, &first), (ROOT, &second), RenameMode::Replace)).map(|_| ()),
                };
                let expected = match what {
                    0..2 if model.contains_key(&first) => Err(Error::Exists),
                    0..2 => { model.insert(first, ()); Ok(()) }
                    2..4 => model.remove(&first).ok_or(Error::NotFound),
                    _ => model.remove(&first).map(|()| { model.insert(second, ()); }).ok_or(Error::NotFound),
                };
                prop_assert_eq!(found, expected);
                check(&bench);
                prop_assert!(model.keys().all(|text| bench.back.dentry(ROOT, &name(text)).is_some()));
                prop_assert_eq!(places(&bench.back).len(), model.len());
            }
        }
    }
}

#[test]
fn a_removed_name_hides_none_after_it_and_its_cookie_is_used_again() {
    let mut bench = colliding(one_value);
    for text in ["a", "b", "c", "d"] {
        bench.create(text);
    }
    let places = |bench: &Bench| places(&bench.back);
    let at =
        |bench: &Bench, text: &str| places(bench).get(&(ROOT, text.as_bytes().into())).map(|at| at.raw() - (1 << 51));
    assert_eq!(["a", "b", "c", "d"].map(|text| at(&bench, text)), [Some(0), Some(1), Some(2), Some(3)]);
    bench.change(unlink(ROOT, "b")).expect("there");
    bench.change(unlink(ROOT, "a")).expect("there");
    assert_eq!(["c", "d"].map(|text| at(&bench, text)), [Some(2), Some(3)]);
    bench.create("e");
    assert_eq!(at(&bench, "e"), Some(0));
    assert_eq!(bench.change(create(ROOT, "d", 0o644)), Err(Error::Exists));
    bench.change(unlink(ROOT, "d")).expect("there");
    bench.change(unlink(ROOT, "c")).expect("there");
    assert_eq!(bench.back.continued, 0, "the tombstone at 1 is gone");
    bench.change(unlink(ROOT, "e")).expect("there");
    assert!(places(&bench).is_empty());
}
