//! The cleaner of many objects at a time: what is kept is there, and what is not takes no space, whatever happens.

use crate::recorder::{Image, Random, Recorder};
use crate::together::{Model, block_of, is_in_order, mapped};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_region::{Cleaned, Error, FileDevice, Format, Keep, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
const BLOCK: usize = 4096;
const ALL: Keep = Keep { newest: u64::MAX, younger_than: None, share: 1.0 };

fn format(device: Arc<Recorder>, region_shift: u8) -> Store {
    Store::format(device, Format { region_shift, ..Format::default() }).unwrap()
}

/// Writes blocks that are all the same.
fn write(object: &Versioned, first: u64, count: usize, tag: u64) -> u64 {
    object.write(first * BLOCK as u64, &block_of(tag).repeat(count)).unwrap()
}

/// Two commits of which the middle is never written over, and many that are small, in rings that are more than half
/// full then.
fn written(store: &Store, number: u64) -> (Versioned, Model) {
    let object = store.create_versioned().unwrap();
    let (mut random, mut bytes, mut model) = (Random::new(number + 1), vec![0; 24 * BLOCK], Model(Vec::new()));
    let mut add = |first: u64, count: usize, tag: u64| {
        let at = usize::try_from(first).unwrap() * BLOCK;
        bytes[at..at + count * BLOCK].copy_from_slice(&block_of(tag).repeat(count));
        let end = bytes.len().min(if tag == 0 { 12 * BLOCK } else { usize::MAX });
        model.0.push((write(&object, first, count, tag), bytes[..end].to_vec()));
    };
    add(0, 12, 0);
    add(12, 12, 1);
    for tag in 2..50 {
        let count = usize::try_from(random.below(4)).unwrap() + 1;
        add(random.below(2) * 12 + random.below(3), count, tag);
    }
    object.set_name("early", model.0[3].0).unwrap();
    (object, model)
}

/// Which of the versions of [`written`] are kept.
const KEEP: Keep = Keep { newest: 2, ..ALL };

fn kept(model: &Model) -> Model {
    let count = model.0.len();
    Model([3, count - 2, count - 1].map(|at| model.0[at].clone()).into())
}

/// A power failure at any call leaves what is kept, and another cleaning what the first one would have left.
#[test]
fn a_power_failure_while_many_objects_are_cleaned_loses_nothing_and_leaves_nothing() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(device.clone(), 20);
    let models: Vec<(u64, Model)> = (0..4)
        .map(|number| {
            let (object, model) = written(&store, number);
            (object.id(), model)
        })
        .collect();
    store.close().unwrap();
    drop(store);
    let device = Recorder::from(DEVICE_BYTES, device.image());
    let store = Store::open(device.clone()).unwrap();
    let cleaned = store.clean(&KEEP).unwrap();
    assert_eq!(cleaned.versions, 4 * 47);
    assert!(cleaned.moved_blocks > 4 * 12, "{cleaned:?}");
    let counts: Vec<u64> = models.iter().map(|(id, _)| mapped(&store, *id)).collect();
    // The object's own block, 24 of data, and of the named version; their commits.
    assert!(counts.iter().all(|count| *count < 1 + 24 + 24 + 8), "{counts:?}");
    drop(store);
    let mut random = Random::new(8);
    for calls in 0..=device.asked() {
        let text = format!("after {calls} of {} calls", device.asked());
        check_after_crash(device.crash(calls, &mut random), &models, &counts, &text);
    }
}

fn check_after_crash(image: Image, models: &[(u64, Model)], counts: &[u64], text: &str) {
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    for (id, model) in models {
        let object = store.versioned(*id).unwrap();
        let listed: Vec<u64> = object.versions(0, usize::MAX).unwrap().iter().map(|stat| stat.version).collect();
        let there: Vec<_> = model.0.iter().filter(|(version, _)| listed.contains(version)).cloned().collect();
        assert!(kept(model).0.iter().all(|one| there.contains(one)), "{text}: {listed:?}");
        Model(there).compare(&object, text);
    }
    store.clean(&KEEP).unwrap();
    for ((id, model), count) in models.iter().zip(counts) {
        kept(model).compare(&store.versioned(*id).unwrap(), text);
        // What was moved may be in one commit more, or in fewer.
        let found = mapped(&store, *id);
        assert!(found <= count + 1, "{text}: {found} blocks instead of {count}");
    }
    is_in_order(&store);
}

/// The index is not written for each object, and where nothing is new, nothing is done.
#[test]
fn many_objects_are_cleaned_at_once() {
    let device = Recorder::new(2 * DEVICE_BYTES);
    let store = format(device.clone(), 20);
    let objects: Vec<Versioned> = (0..300).map(|_| store.create_versioned().unwrap()).collect();
    let write_all = |objects: &[Versioned]| {
        objects.iter().for_each(|object| {
            (0..4).for_each(|tag| {
                write(object, 0, 3, tag);
            });
        });
    };
    let clean = || {
        let before = device.counts();
        let cleaned = store.clean(&Keep::default()).unwrap();
        let (writes, flushes) = device.counts();
        (cleaned, writes - before.0, flushes - before.1)
    };
    write_all(&objects);
    let (cleaned, _, flushes) = clean();
    let expected = |objects: u64| Cleaned { versions: 3 * objects, freed_blocks: 12 * objects, moved_blocks: 0 };
    assert_eq!(cleaned, expected(300));
    assert!(flushes < 60, "{flushes}");
    assert_eq!(clean(), (Cleaned::default(), 0, 0));
    write_all(&objects[77..78]);
    // With the version of before.
    let (cleaned, writes, flushes) = clean();
    assert_eq!(cleaned, Cleaned { versions: 4, freed_blocks: 16, moved_blocks: 0 });
    assert!(writes < 200 && flushes < 30, "{writes}, {flushes}");
    assert_eq!(clean(), (Cleaned::default(), 0, 0));
    is_in_order(&store);
}

/// What is not at hand any more needs not be opened to see that nothing is new.
#[test]
fn objects_that_were_let_go_are_not_looked_at() {
    let path = std::env::temp_dir().join(format!("weft-region-cleaner-{}", std::process::id()));
    let device = Arc::new(FileDevice::create(&path, 1 << 30).unwrap());
    let store = Store::format(device.clone(), Format { region_shift: 20, ..Format::default() }).unwrap();
    let clean = |keep: &Keep| {
        let before = device.operations().reads;
        let cleaned = store.clean(keep).unwrap();
        (cleaned.versions, device.operations().reads - before)
    };
    let ids: Vec<u64> = (0..4000)
        .map(|_| {
            let object = store.create_versioned().unwrap();
            write(&object, 0, 1, 1);
            object.id()
        })
        .collect();
    write(&store.versioned(ids[7]).unwrap(), 0, 1, 2);
    assert_eq!(clean(&Keep { newest: 2, ..ALL }).0, 0);
    // Then nobody has those of before at hand.
    let more: Vec<Versioned> = (0..200).map(|_| store.create_versioned().unwrap()).collect();
    let (versions, reads) = clean(&Keep { newest: 2, ..ALL });
    assert_eq!(versions, 0);
    assert!(reads < 1000, "{reads}");
    // One that is removed, and one that has its identifier then.
    assert!(store.remove(ids[3]).unwrap());
    store.sync().unwrap();
    let again = std::iter::repeat_with(|| store.create_versioned().unwrap()).find(|object| object.id() == ids[3]);
    (0..2).for_each(|tag| {
        write(again.as_ref().unwrap(), 0, 1, tag);
    });
    write(&store.versioned(ids[9]).unwrap(), 0, 1, 2);
    write(&store.versioned(ids[9]).unwrap(), 0, 1, 3);
    assert_eq!(clean(&Keep { newest: 2, ..ALL }).0, 1);
    assert_eq!(clean(&Keep::default()).0, 3);
    drop((more, again));
    is_in_order(&store);
    std::fs::remove_file(&path).unwrap();
}

/// Who makes an object where one was finds that the index has forgotten it, with others that were removed meanwhile.
#[test]
fn what_was_removed_is_forgotten_at_once() {
    let device = Recorder::new(2 * DEVICE_BYTES);
    format(device.clone(), 20).close().unwrap();
    let store = Store::open_with_range(device.clone(), 8).unwrap();
    let make = || {
        let object = store.create_versioned().unwrap();
        write(&object, 0, 2, 1);
        object.id()
    };
    let ids: Vec<u64> = std::iter::repeat_with(make).take(200).collect();
    let before = device.counts().1;
    store.clean(&ALL).unwrap();
    // Of one transaction, and some.
    let flushes = device.counts().1 - before;
    ids.iter().for_each(|id| assert!(store.remove(*id).unwrap()));
    store.sync().unwrap();
    let before = device.counts().1;
    let again = std::iter::repeat_with(|| store.create_versioned().unwrap().id()).take(200);
    assert!(again.filter(|id| ids.contains(id)).count() > 150);
    let its = device.counts().1 - before;
    assert!(its < 100 + 2 * flushes, "{its}, {flushes}");
    is_in_order(&store);
}

/// After a power failure an object whose removal was not safe is there with all that the index had of it, or is not.
#[test]
fn what_comes_back_is_not_forgotten() {
    let device = Recorder::new(DEVICE_BYTES);
    format(device.clone(), 20).close().unwrap();
    let store = Store::open_with_range(device.clone(), 2).unwrap();
    // The index does not know it.
    let unwritten = store.create_versioned().unwrap().id();
    let [known, id] = [0, 1].map(|number| written(&store, number).0.id());
    let model = kept(&written(&store, 1).1);
    store.clean(&KEEP).unwrap();
    model.compare(&store.versioned(id).unwrap(), "before");
    assert!(store.remove(unwritten).unwrap() && store.remove(known).unwrap());
    store.sync().unwrap();
    // Identifiers of before come last.
    while store.create_versioned().unwrap().id() != unwritten {}
    assert!(store.remove(id).unwrap());
    let from = device.asked();
    assert_eq!(store.create_versioned().unwrap().id(), known);
    drop(store);
    let (mut random, mut found) = (Random::new(9), 0);
    for calls in (from..=device.asked()).flat_map(|calls| [calls; 5]) {
        let store = Store::open(Recorder::from(DEVICE_BYTES, device.crash(calls, &mut random))).unwrap();
        match store.versioned(id) {
            Err(Error::NoObject) => {}
            object => {
                model.compare(&object.unwrap(), &format!("after {calls} of {} calls", device.asked()));
                found += 1;
            }
        }
    }
    assert!(found > 0);
}

/// A step cleans some objects, and the next one those behind them.
#[test]
fn who_works_ahead_does_so_in_steps() {
    let store = format(Recorder::new(DEVICE_BYTES), 20);
    let objects: Vec<Versioned> = (0..100).map(|_| store.create_versioned().unwrap()).collect();
    let write_all = || {
        for object in &objects {
            (0..3).for_each(|tag| {
                write(object, 0, 3, tag);
            });
        }
    };
    let step = |blocks: u64| store.clean_some(&Keep::default(), blocks * BLOCK as u64).unwrap().freed_blocks;
    write_all();
    let steps: Vec<u64> = std::iter::repeat_with(|| step(1)).take_while(|freed| *freed > 0).collect();
    assert!(steps.len() > 2 && steps.iter().all(|freed| *freed < 400), "{steps:?}");
    assert_eq!(steps.iter().sum::<u64>(), 100 * 8);
    write_all();
    let half = step(600);
    assert!((600..1000).contains(&half), "{half}");
    assert_eq!(half + step(u64::from(u32::MAX)), 100 * 12);
    assert!(objects.iter().all(|object| mapped(&store, object.id()) == 1 + 4));
    is_in_order(&store);
}

/// What was enough for one cleaner need not be for the next.
#[test]
fn what_one_cleaner_keeps_another_takes_away() {
    let store = format(Recorder::new(DEVICE_BYTES), 20);
    let objects: Vec<Versioned> = (0..3).map(|_| store.create_versioned().unwrap()).collect();
    objects.iter().for_each(|object| {
        (0..6).for_each(|tag| {
            write(object, 0, 1, tag);
        });
    });
    objects[0].set_name("first", 1).unwrap();
    let versions = |keep: Keep| store.clean(&keep).unwrap().versions;
    let young = Some(Duration::from_secs(3600));
    assert_eq!(versions(Keep { newest: 1, younger_than: young, ..ALL }), 0);
    // All but the one with a name.
    assert_eq!(versions(Keep { newest: 4, ..ALL }), 5);
    assert_eq!(versions(Keep { newest: 4, ..ALL }), 0);
    assert_eq!(versions(Keep { newest: 3, ..ALL }), 3);
    assert_eq!(versions(Keep { newest: 5, ..ALL }), 0);
    assert!(objects[0].remove_name("first").unwrap());
    assert_eq!(versions(Keep { newest: 3, ..ALL }), 1);
    assert_eq!(versions(Keep { newest: 0, ..ALL }), 6);
    assert_eq!(versions(Keep::default()), 0);
}

/// What is left of a commit has no block of its own, unless it can be compared or is a version.
#[test]
fn what_is_left_of_a_commit_takes_its_blocks_only() {
    let store = format(Recorder::new(DEVICE_BYTES), 30);
    let object = store.create_versioned().unwrap();
    let cleaned = |versions, freed_blocks| Cleaned { versions, freed_blocks, moved_blocks: 0 };
    let clean = || object.clean(&Keep::default()).unwrap();
    write(&object, 0, 40, 1);
    write(&object, 0, 30, 2);
    assert_eq!(clean(), cleaned(1, 30 + 1));
    assert_eq!(mapped(&store, object.id()), 1 + 10 + 31);
    is_in_order(&store);
    write(&object, 30, 9, 3);
    // The second one is no version any more, but whole.
    assert_eq!(clean(), cleaned(1, 9));
    object.set_name("third", 3).unwrap();
    write(&object, 29, 11, 4);
    // The last block of the first; what the third has stays.
    assert_eq!(clean(), cleaned(0, 0));
    assert_eq!(mapped(&store, object.id()), 1 + 1 + 31 + 10 + 12);
    assert!(object.remove_name("third").unwrap());
    assert_eq!(clean(), cleaned(1, 1 + (1 + 1) + (9 + 1)));
    assert_eq!(mapped(&store, object.id()), 1 + 29 + 12);
    let mut found = vec![0; 40 * BLOCK];
    assert_eq!(object.read(0, &mut found).unwrap(), found.len());
    assert!(found == [block_of(2).repeat(29), block_of(4).repeat(11)].concat());
    is_in_order(&store);
}

/// Small commits that are whole have a block each for few of data: they become one.
#[test]
fn small_commits_are_put_together() {
    let store = format(Recorder::new(DEVICE_BYTES), 30);
    let object = store.create_versioned().unwrap();
    write(&object, 0, 40, 0);
    (0..30).for_each(|block| {
        write(&object, block, 1, block + 1);
    });
    // Of the first 30 blocks and its own, and of 29 single ones their places and commits.
    let cleaned = object.clean(&Keep::default()).unwrap();
    assert_eq!(cleaned, Cleaned { versions: 30, freed_blocks: 30 + 1 + 2 * 29, moved_blocks: 29 });
    assert_eq!(mapped(&store, object.id()), 1 + 10 + (29 + 1) + (1 + 1));
    assert_eq!(object.clean(&Keep::default()).unwrap(), Cleaned::default());
    // Seven stay as they are, with the newest of before.
    (0..7).for_each(|number| {
        write(&object, 3 * number, 3, number + 50);
    });
    assert_eq!(object.clean(&Keep::default()).unwrap().moved_blocks, 0);
    let mut found = vec![0; 40 * BLOCK];
    object.read(0, &mut found).unwrap();
    for (block, bytes) in (0u64..).zip(found.chunks(BLOCK)) {
        let tag = if block < 21 { block / 3 + 50 } else { (block + 1) * u64::from(block < 30) };
        assert!(bytes == block_of(tag), "block {block}");
    }
    is_in_order(&store);
}

/// Cleaners of all objects and of one, beside writers, readers, names and removals: nobody waits for ever, and nothing
/// is lost.
#[test]
fn cleaners_do_not_get_in_each_others_way() {
    let store = format(Recorder::new(2 * DEVICE_BYTES), 24);
    let objects: Vec<Versioned> = (0..12).map(|_| store.create_versioned().unwrap()).collect();
    // What was written in the first block of each, at least.
    let written: Vec<AtomicU64> = objects.iter().map(|object| AtomicU64::new(write(object, 0, 2, 0))).collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clean_all = || {
            while !is_done.load(Ordering::Relaxed) {
                store.clean(&Keep { newest: 2, share: 0.5, ..ALL }).unwrap();
            }
        };
        scope.spawn(clean_all);
        scope.spawn(clean_all);
        scope.spawn(|| {
            let mut random = Random::new(3);
            while !is_done.load(Ordering::Relaxed) {
                let object = &objects[usize::try_from(random.below(12)).unwrap()];
                object.clean(&Keep { newest: 3, ..ALL }).unwrap();
                match object.set_name("a name", object.newest().unwrap().version) {
                    Err(Error::NoVersion) => {}
                    done => done.unwrap(),
                }
                object.remove_name("a name").unwrap();
            }
        });
        scope.spawn(|| {
            let mut random = Random::new(4);
            while !is_done.load(Ordering::Relaxed) {
                let at = usize::try_from(random.below(12)).unwrap();
                let before = written[at].load(Ordering::Acquire);
                let mut found = vec![0; 2 * BLOCK];
                objects[at].read(0, &mut found).unwrap();
                let number = u64::from_le_bytes(*found.first_chunk().unwrap());
                assert!(before <= 1 || number >= before, "object {at}: {number} after {before}");
                assert!(found[..8] == found[BLOCK..BLOCK + 8], "object {at}");
            }
        });
        let mut random = Random::new(5);
        for round in 0..600 {
            let at = usize::try_from(random.below(12)).unwrap();
            let mut bytes = vec![0; 2 * BLOCK];
            // Versions of one writer follow each other.
            let next = written[at].load(Ordering::Relaxed) + 1;
            bytes.chunks_mut(BLOCK).for_each(|block| block[..8].copy_from_slice(&next.to_le_bytes()));
            assert_eq!(objects[at].write(0, &bytes).unwrap(), next);
            written[at].store(next, Ordering::Release);
            let other = store.create_versioned().unwrap();
            (0..random.below(12)).for_each(|block| {
                write(&other, block, 1, round);
            });
            assert!(store.remove(other.id()).unwrap());
        }
        is_done.store(true, Ordering::Relaxed);
    });
    store.clean(&Keep::default()).unwrap();
    assert!(objects.iter().all(|object| mapped(&store, object.id()) == 1 + 3));
    is_in_order(&store);
}
