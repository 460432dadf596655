//! Blocks that cannot be read, and devices that fail at any call: what is there is read right or not at all, nothing
//! that was acknowledged is lost, and all of it is there when the device works again.

use crate::recorder::{Image, Recorder};
use std::collections::{BTreeMap, BTreeSet};
use weft_region::{BLOCK_BYTES, Error, Format, Keep, Kind, Result, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where the parts of this store begin, blocks: see `Geometry::of`.
const LOG_START: u64 = 16;
const MAP_START: u64 = LOG_START + 256;
const DATA_START: u64 = MAP_START + 1024;
/// All of each object, and of each version of it.
const BYTES: usize = 10_000;

/// What was acknowledged: a number that all bytes are made of.
#[derive(Clone, Default)]
struct Expected {
    direct: BTreeMap<u64, u64>,
    /// By object, by version.
    versions: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Writes failed: there may be more versions.
    may_be_more: bool,
}

fn bytes_of(number: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| u8::try_from((at / 512 + number * 31) % 251 + 1).unwrap()).collect()
}

fn add_direct(store: &Store, expected: &mut Expected, number: u64) -> Result<()> {
    let object = store.create(Kind::Direct)?;
    object.write(0, &bytes_of(number))?;
    object.sync()?;
    expected.direct.insert(object.id(), number);
    Ok(())
}

fn add_version(object: &Versioned, expected: &mut Expected, number: u64) -> Result<()> {
    expected.may_be_more = true;
    let version = object.write_durable(0, &bytes_of(number))?;
    expected.may_be_more = false;
    expected.versions.entry(object.id()).or_default().insert(version, number);
    Ok(())
}

/// A store with objects of both kinds, left without being closed: some of them are in the log, and in commits that the
/// index does not have.
fn image() -> (Image, Expected) {
    let (device, mut expected) = (Recorder::new(DEVICE_BYTES), Expected::default());
    let store = Store::format(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap();
    let objects = [(); 2].map(|()| store.create_versioned().unwrap());
    let mut fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            add_direct(&store, &mut expected, number).unwrap();
            objects.iter().for_each(|object| add_version(object, &mut expected, number).unwrap());
        }
    };
    fill(0..5);
    store.close().unwrap();
    fill(5..8);
    store.sync().unwrap();
    (device.image(), expected)
}

/// Reads everything. How many answers were errors; all others are right.
fn errors_of(store: &Store, expected: &Expected, text: &str) -> usize {
    let mut errors = 0;
    let mut answer = |got: Result<(usize, Vec<u8>)>, number: u64, what: &str| match got {
        Ok((count, found)) => assert!(count == BYTES && found == bytes_of(number), "{text}: {what} is wrong"),
        Err(Error::Device { .. } | Error::Damaged(_)) => errors += 1,
        Err(error) => panic!("{text}: {what}: {error}"),
    };
    for (id, number) in &expected.direct {
        let read = || {
            let mut found = vec![0; BYTES];
            Ok((store.object(*id, Kind::Direct)?.read(0, &mut found)?, found))
        };
        answer(read(), *number, &format!("object {id}"));
    }
    for (id, versions) in &expected.versions {
        for (version, number) in versions {
            let read = || {
                let mut found = vec![0; BYTES];
                Ok((store.versioned(*id)?.at(*version)?.read(0, &mut found)?, found))
            };
            answer(read(), *number, &format!("object {id}, version {version}"));
        }
        let listed = store.versioned(*id).and_then(|object| object.versions(0, usize::MAX));
        let Ok(listed) = listed else { continue };
        let listed: Vec<u64> = listed.iter().map(|stat| stat.version).collect();
        let all: Vec<u64> = versions.keys().copied().collect();
        assert!(listed == all || expected.may_be_more && listed.starts_with(&all), "{text}: {listed:?} of {id}");
    }
    errors
}

/// What can be done is done and noted.
fn work(store: &Store, expected: &mut Expected) -> usize {
    let mut failed = 0;
    let mut note = |done: Result<()>| failed += usize::from(done.is_err());
    note(add_direct(store, expected, 90));
    let ids: Vec<u64> = expected.versions.keys().copied().collect();
    for id in ids {
        note(store.versioned(id).and_then(|object| add_version(&object, expected, 91)));
    }
    note(store.close());
    failed
}

/// Of what a block is that somebody may miss.
fn part_of(block: u64, bytes: &[u8]) -> &'static str {
    match block {
        0 | 1 => "super block",
        LOG_START..MAP_START => "log",
        MAP_START..DATA_START => "map",
        _ if bytes.starts_with(b"WEFTOBJ\0") => "super block of an object",
        _ if bytes[16..].starts_with(b"WEFTCMT\0") => "commit",
        _ if bytes.starts_with(b"WEFTIDS\0") => "identifiers",
        _ if bytes.starts_with(b"WEFTIDX\0") => "index",
        _ => "data",
    }
}

/// Each block that is in use, and those that the log, the map and new data take next, one at a time. How many errors
/// there were, by part.
fn without_each_block(lose: impl Fn(&Recorder, u64)) -> BTreeMap<&'static str, usize> {
    let (image, acknowledged) = image();
    let mut errors_by_part: BTreeMap<&str, usize> = BTreeMap::new();
    let empty: Box<[u8]> = vec![0; BLOCK_BYTES].into();
    let next = image.keys().flat_map(|block| [block + 1, block + 2]);
    let blocks: BTreeSet<u64> = image.keys().copied().chain(next).collect();
    for block in blocks {
        let (device, mut expected) = (Recorder::from(DEVICE_BYTES, image.clone()), acknowledged.clone());
        let part = part_of(block, image.get(&block).unwrap_or(&empty));
        let text = format!("without block {block} ({part})");
        lose(&device, block);
        let errors = match Store::open(device.clone()) {
            Ok(store) => errors_of(&store, &expected, &text) + work(&store, &mut expected),
            Err(Error::Device { .. } | Error::Damaged(_)) => 1,
            Err(error) => panic!("{text}: {error}"),
        };
        *errors_by_part.entry(part).or_default() += errors;
        device.repair();
        let store = Store::open(device).unwrap_or_else(|error| panic!("{text}, found again: {error}"));
        assert_eq!(errors_of(&store, &expected, &format!("{text}, found again")), 0);
        assert!(store.check().unwrap().is_clean(), "{text}");
    }
    errors_by_part
}

#[test]
fn a_block_that_cannot_be_read_costs_an_error_and_nothing_else() {
    let errors = without_each_block(Recorder::lose);
    for part in ["log", "map", "super block of an object", "commit", "identifiers", "index", "data"] {
        assert!(errors.get(part).is_some_and(|errors| *errors > 0), "{part}: {errors:?}");
    }
    assert_eq!(errors.get("super block"), Some(&0), "the other one says the same");
}

#[test]
fn a_block_that_cannot_be_written_costs_an_error_and_nothing_else() {
    let errors = without_each_block(Recorder::stick);
    for part in ["log", "map", "data"] {
        assert!(errors.get(part).is_some_and(|errors| *errors > 0), "{part}: {errors:?}");
    }
}

#[test]
fn without_both_super_blocks_there_is_an_error() {
    let device = Recorder::from(DEVICE_BYTES, image().0);
    device.lose(0);
    device.lose(1);
    assert!(matches!(Store::open(device), Err(Error::Device { .. })));
}

/// A part of a block is written that cannot be read: what would be the rest of it is not known.
#[test]
fn a_write_into_a_block_that_cannot_be_read_changes_nothing() {
    let (image, mut expected) = image();
    let holds = |number: u64| {
        let bytes = bytes_of(number);
        let found = image.iter().filter(|(block, found)| **block >= DATA_START && bytes.starts_with(found));
        found.map(|(block, _)| *block).collect::<Vec<_>>()
    };
    let device = Recorder::from(DEVICE_BYTES, image.clone());
    // The first block of the data, in a direct object and in two commits.
    let lost = holds(3);
    assert_eq!(lost.len(), 3);
    lost.iter().for_each(|block| device.lose(*block));
    let store = Store::open(device.clone()).unwrap();
    let id = *expected.direct.iter().find(|(_, number)| **number == 3).unwrap().0;
    let object = store.object(id, Kind::Direct).unwrap();
    assert!(matches!(object.write(100, &[9; 100]), Err(Error::Device { .. })));
    // All of it can be written, and read from then on.
    object.write(4096, &bytes_of(3)[4096..]).unwrap();
    assert!(object.read(0, &mut [0; 100]).is_err());
    store.sync().unwrap();
    device.repair();
    assert_eq!(errors_of(&store, &expected, "found again"), 0);
    assert_eq!(work(&store, &mut expected), 0);
}

/// The device stops working at any call, and works again after the store was opened anew.
#[test]
fn a_device_that_fails_at_any_call_loses_nothing_that_was_acknowledged() {
    let (image, acknowledged) = image();
    let mut calls = 0;
    loop {
        let (device, mut expected) = (Recorder::from(DEVICE_BYTES, image.clone()), acknowledged.clone());
        let text = format!("after {calls} calls");
        device.fail_in(Some(calls));
        let failed = match Store::open(device.clone()) {
            Ok(store) => {
                let failed = errors_of(&store, &expected, &text) + work(&store, &mut expected);
                // What it would take away is acknowledged.
                let cleaned = store.clean(&Keep { newest: 1000, ..Keep::default() });
                failed + usize::from(cleaned.is_err())
            }
            Err(Error::Device { .. } | Error::Damaged(_)) => 1,
            Err(error) => panic!("{text}: {error}"),
        };
        device.fail_in(None);
        let store = Store::open(device).unwrap_or_else(|error| panic!("{text}, works again: {error}"));
        assert_eq!(errors_of(&store, &expected, &format!("{text}, works again")), 0);
        assert!(store.check().unwrap().is_clean(), "{text}");
        if failed == 0 {
            break;
        }
        calls += 1;
    }
    assert!(calls > 100, "{calls}");
}

/// A cleaner meets what cannot be read: whatever it did of its work, the versions that are kept are there.
#[test]
fn a_cleaner_that_fails_at_any_call_takes_nothing_that_is_kept() {
    let (image, mut kept) = image();
    for versions in kept.versions.values_mut() {
        let newest = versions.keys().rev().nth(1).copied().unwrap();
        *versions = versions.split_off(&newest);
    }
    let mut calls = 0;
    loop {
        let device = Recorder::from(DEVICE_BYTES, image.clone());
        let store = Store::open(device.clone()).unwrap();
        device.fail_in(Some(calls));
        let cleaned = store.clean(&Keep { newest: 2, ..Keep::default() });
        device.fail_in(None);
        drop(store);
        let store = Store::open(device).unwrap();
        for (id, versions) in &kept.versions {
            for (version, number) in versions {
                let mut found = vec![0; BYTES];
                store.versioned(*id).unwrap().at(*version).unwrap().read(0, &mut found).unwrap();
                assert!(found == bytes_of(*number), "{calls}: version {version} of {id}");
            }
        }
        store.clean(&Keep { newest: 2, ..Keep::default() }).unwrap();
        assert_eq!(errors_of(&store, &kept, &format!("cleaned, {calls}")), 0);
        assert!(store.check().unwrap().is_clean(), "{calls}");
        if cleaned.is_ok() {
            break;
        }
        calls += 1;
    }
    assert!(calls > 20, "{calls}");
}
