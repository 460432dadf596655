//! Objects of a store, their identifiers, and what a power failure leaves of both.

#[path = "../../examples/objects.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod example;

use crate::recorder::{Form, Image, Random, Recorder};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_region::{BLOCK_BYTES, Checksums, Error, Kind, Object, ObjectKind, Owner, Store};

const DEVICE_BYTES: u64 = 32 << 20;

fn format(device: &Arc<Recorder>) -> Store {
    Form::Mapped(Checksums::Metadata).format(device, 30).unwrap()
}

/// What has room for so much, and an empty store of this form on it.
fn formatted(form: Form) -> (Arc<Recorder>, Store) {
    let device = form.device(DEVICE_BYTES, Image::new());
    let store = form.format(&device, 30).unwrap();
    (device, store)
}

#[test]
fn the_example_runs() {
    let path = std::env::temp_dir().join(format!("weft-region-example-{}", std::process::id()));
    let said = example::keep_and_find(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(said.unwrap(), "object 1: \"what is written here\", 1073741833 bytes; 20480 in use");
}

/// As the documentation of `Store` says: which objects there are, of what kind, and which sync has sizes.
#[test]
fn objects_are_listed_with_their_kinds_and_sizes_are_safe_as_documented() {
    for form in Form::ALL {
        let (device, store) = formatted(form);
        let made: Vec<Object> = (0..4).map(|_| store.create(Kind::Direct).unwrap()).collect();
        made.iter().for_each(|object| object.write(0, &[1; 9000]).unwrap());
        let (plain, versioned) = (store.create(Kind::Plain).unwrap(), store.create_versioned().unwrap());
        plain.write(5000, &[2; 100]).unwrap();
        versioned.write_durable(0, &[3; 10]).unwrap();
        let [only_store, own, stat_first, durable] = made.as_slice() else { panic!("four") };
        own.sync().unwrap();
        stat_first.write_stat().unwrap();
        store.sync().unwrap();
        durable.write_durable(9000, &[1; 1]).unwrap();
        let mut all: Vec<u64> = made.iter().map(Object::id).chain([plain.id(), versioned.id()]).collect();
        all.sort_unstable();
        assert_eq!(store.list().unwrap(), all);
        let calls = device.asked();
        let store = Store::open(form.device(DEVICE_BYTES, device.crash(calls, &mut Random::new(1)))).unwrap();
        assert_eq!(store.list().unwrap(), all);
        for (object, size) in [(only_store, 0), (own, 9000), (stat_first, 9000), (durable, 9001)] {
            assert_eq!(store.kind_of(object.id()).unwrap(), Some(ObjectKind::Direct));
            let found = store.object(object.id(), Kind::Direct).unwrap().stat().unwrap();
            assert_eq!(found.size, size, "{form:?}");
        }
        assert_eq!(store.kind_of(plain.id()).unwrap(), Some(ObjectKind::Plain));
        let plain = store.object(plain.id(), Kind::Plain).unwrap();
        assert_eq!((plain.stat(), plain.data_end().unwrap()), (None, 8192), "{form:?}");
        assert_eq!(store.kind_of(versioned.id()).unwrap(), Some(ObjectKind::Versioned));
        assert_eq!(store.kind_of(1000).unwrap(), None);
    }
}

#[test]
fn objects_are_as_a_model_has_them() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (device, mut store) = formatted(Form::of(seed));
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for step in 0..150u64 {
            let some = usize::try_from(random.below(model.len().max(1) as u64)).unwrap();
            let some = model.keys().nth(some).copied();
            match (random.below(8), some) {
                (0, _) | (_, None) => {
                    let object = store.create(Kind::Direct).unwrap();
                    assert!(model.insert(object.id(), Vec::new()).is_none());
                }
                (1, Some(id)) => {
                    assert!(store.remove(id).unwrap());
                    assert!(!store.exists(id).unwrap() && !store.remove(id).unwrap());
                    assert!(matches!(store.object(id, Kind::Direct), Err(Error::NoObject)));
                    model.remove(&id);
                }
                (2, Some(id)) => {
                    let size = usize::try_from(random.below(60_000)).unwrap();
                    store.object(id, Kind::Direct).unwrap().truncate(size as u64).unwrap();
                    model.get_mut(&id).unwrap().resize(size, 0);
                }
                (3, Some(id)) => {
                    store.object(id, Kind::Direct).unwrap().sync().unwrap();
                }
                (4, _) if step % 10 == 0 => {
                    model.keys().for_each(|id| store.object(*id, Kind::Direct).unwrap().sync().unwrap());
                    drop(store);
                    store = Store::open(device.clone()).unwrap();
                }
                (_, Some(id)) => {
                    let (offset, count) = (random.below(50_000), random.below(20_000));
                    let (start, count) = (usize::try_from(offset).unwrap(), usize::try_from(count).unwrap());
                    let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); count];
                    // At hand as long as it is not synced.
                    let object = store.object(id, Kind::Direct).unwrap();
                    object.write(offset, &bytes).unwrap();
                    object.sync().unwrap();
                    let expected = model.get_mut(&id).unwrap();
                    if expected.len() < start + count {
                        expected.resize(start + count, 0);
                    }
                    expected[start..start + count].copy_from_slice(&bytes);
                }
            }
            for (id, expected) in &model {
                let object = store.object(*id, Kind::Direct).unwrap();
                let mut found = vec![9; 100_000];
                let count = object.read(0, &mut found).unwrap();
                assert!(found[..count] == expected[..], "seed {seed}, step {step}, object {id}");
            }
        }
    }
}

/// Whoever was told of an identifier is the only one, and what was synced is there.
#[test]
fn a_power_failure_hands_out_no_identifier_twice() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let form = Form::of(seed);
        let (device, _) = formatted(form);
        let (mut image, mut told, mut safe) = (device.image(), BTreeSet::new(), BTreeSet::new());
        for failure in 0..5 {
            let device = form.device(DEVICE_BYTES, image);
            let store = Store::open_with_range(device.clone(), 1 + random.below(3)).unwrap();
            for id in &safe {
                assert!(store.exists(*id).unwrap(), "seed {seed}, failure {failure}: object {id} is lost");
            }
            let mut history = Vec::new();
            for _ in 0..random.below(30) + 1 {
                if random.below(3) == 0 {
                    store.sync().unwrap();
                    history.push((device.asked(), None));
                } else {
                    let id = store.create(if random.below(2) == 0 { Kind::Direct } else { Kind::Plain }).unwrap().id();
                    history.push((device.asked(), Some(id)));
                }
            }
            drop(store);
            let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
            let mut made = Vec::new();
            for (_, id) in history.into_iter().filter(|(end, _)| *end <= calls) {
                match id {
                    Some(id) => {
                        assert!(told.insert(id), "seed {seed}, failure {failure}: {id} was handed out before");
                        made.push(id);
                    }
                    None => safe.extend(made.drain(..)),
                }
            }
        }
    }
}

fn owner(tag: u64) -> Owner {
    let mut owner = Owner::default();
    owner[..8].copy_from_slice(&tag.to_le_bytes());
    owner
}

fn tag_of(object: &Object) -> u64 {
    u64::from_le_bytes(*object.owner().first_chunk().unwrap())
}

/// Nothing of another object is in it: each writes its tag and nothing else.
fn has_own_bytes_only(object: &Object, size: usize) -> bool {
    let mut found = vec![0; size];
    let have = match object.read(0, &mut found) {
        Err(Error::NoObject) => return !object.is_there(),
        have => have.unwrap(),
    };
    let byte = u8::try_from(tag_of(object) % 251 + 1).unwrap();
    found[..have].iter().all(|found| *found == 0 || *found == byte)
}

/// What was told of an identifier: the newest object that had it, and its generation.
type Told = BTreeMap<u64, (u64, u64)>;

/// Makes, writes, removes and syncs objects, and tells after how many calls of the device each was told of.
fn churn(store: &Store, device: &Recorder, random: &mut Random, tags: &mut u64) -> Vec<(usize, u64, (u64, u64))> {
    let (mut history, mut alive): (Vec<_>, Vec<Object>) = (Vec::new(), Vec::new());
    for _ in 0..random.below(60) + 20 {
        match random.below(6) {
            0 => store.sync().unwrap(),
            1 | 2 if !alive.is_empty() => {
                let object = alive.swap_remove(usize::try_from(random.below(alive.len() as u64)).unwrap());
                assert!(store.remove(object.id()).unwrap() && !object.is_there());
                assert!(matches!(object.read(0, &mut [0; 9]), Err(Error::NoObject)), "nor is it another's");
            }
            _ => {
                *tags += 1;
                let object = store.create_for(owner(*tags)).unwrap();
                assert!(alive.iter().all(|other| other.id() != object.id()));
                history.push((device.asked(), object.id(), (*tags, object.generation())));
                let bytes = vec![u8::try_from(*tags % 251 + 1).unwrap(); 3000];
                (0..2).for_each(|_| object.write(random.below(20_000), &bytes).unwrap());
                if random.below(3) == 0 {
                    object.sync().unwrap();
                }
                assert!(has_own_bytes_only(&object, 30_000));
                alive.push(object);
            }
        }
    }
    history
}

/// An identifier is given again when no crash can bring the earlier object back, and its region shows nothing of that.
#[test]
fn a_power_failure_leaves_no_identifier_with_two_objects() {
    let mut given_again = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let form = Form::of(seed);
        let (device, _) = formatted(form);
        let (mut image, mut told, mut tags) = (device.image(), Told::new(), 0);
        for failure in 0..6 {
            let device = form.device(DEVICE_BYTES, image);
            let store = Store::open_with_range(device.clone(), 1 + random.below(4)).unwrap();
            for (id, (tag, _)) in &told {
                if let Ok(object) = store.object(*id, Kind::Direct) {
                    let found = tag_of(&object);
                    assert!(found >= *tag, "seed {seed}, failure {failure}: {found} is back, and {tag} had {id}");
                    assert!(has_own_bytes_only(&object, 30_000), "seed {seed}, failure {failure}: object {id}");
                    store.remove(*id).unwrap();
                }
            }
            let history = churn(&store, &device, &mut random, &mut tags);
            drop(store);
            let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
            for (_, id, (tag, generation)) in history.into_iter().filter(|(end, ..)| *end <= calls) {
                let before = told.insert(id, (tag, generation));
                given_again += u64::from(before.is_some());
                assert!(before.is_none_or(|(_, before)| before < generation), "seed {seed}: the generation of {id}");
            }
        }
    }
    assert!(given_again > 500, "{given_again}");
}

/// The fewest identifiers that there can be are 65,535.
#[test]
fn a_store_that_has_given_out_all_identifiers_finds_the_free_ones() {
    Form::ALL.iter().for_each(|form| give_out_all(*form));
}

fn give_out_all(form: Form) {
    let device = form.device(DEVICE_BYTES, Image::new());
    let store = form.format(&device, 48).unwrap();
    let kept: BTreeSet<u64> = (0..10).map(|tag| store.create_for(owner(tag)).unwrap().id()).collect();
    // Not synced by the store, so that none is given again.
    for _ in 10..65_535 {
        let id = store.create(Kind::Plain).unwrap().id();
        assert!(store.remove(id).unwrap() && !kept.contains(&id));
    }
    let again = store.create(Kind::Direct).unwrap();
    assert!(again.generation() > 0 && !kept.contains(&again.id()));
    store.remove(again.id()).unwrap();
    store.sync().unwrap();
    drop(store);
    for _ in 0..2 {
        let store = Store::open(device.clone()).unwrap();
        let mut made: BTreeSet<u64> = kept.clone();
        for _ in 0..3000 {
            let object = store.create(Kind::Direct).unwrap();
            assert!(object.generation() > again.generation() && made.insert(object.id()), "{}", object.id());
        }
        made.difference(&kept).for_each(|id| assert!(store.remove(*id).unwrap()));
        assert!(!store.is_empty().unwrap());
        store.close().unwrap();
    }
    let store = Store::open(device).unwrap();
    kept.iter().for_each(|id| assert!(store.remove(*id).unwrap()));
    store.sync().unwrap();
    assert!(store.is_empty().unwrap());
}

/// A thread that ends, also by an assertion, is counted.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whoever has an object at hand sees its bytes, or that it was removed, whatever becomes of its region.
#[test]
fn threads_remove_and_make_objects_side_by_side() {
    Form::ALL.iter().for_each(|form| remove_and_make(*form));
}

fn remove_and_make(form: Form) {
    let store = form.format(&form.device(DEVICE_BYTES, Image::new()), 48).unwrap();
    let working = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for start in 0..2u64 {
            let (store, working) = (&store, &working);
            scope.spawn(move || {
                let (mut random, mut at_hand) = (Random::new(start), Vec::new());
                while working.load(Ordering::Relaxed) > 0 {
                    let batch = random.below(4) * 128;
                    at_hand.extend((1..40).filter_map(|id| store.object(batch + id, Kind::Direct).ok()));
                    assert!(at_hand.iter().all(|object| has_own_bytes_only(object, 10_000)));
                    at_hand.truncate(random.below(8).try_into().unwrap());
                }
            });
        }
        for thread in 0..4u64 {
            let (store, working) = (&store, &working);
            scope.spawn(move || {
                let _ended = Ended(working);
                let mut random = Random::new(thread);
                let mut alive: Vec<Object> = Vec::new();
                for step in 0..3000 {
                    if random.below(2) == 0 || alive.is_empty() {
                        let object = store.create_for(owner(thread * 100_000 + step)).unwrap();
                        assert_eq!(tag_of(&object), thread * 100_000 + step);
                        object.write(random.below(9000), &[u8::try_from(tag_of(&object) % 251 + 1).unwrap()]).unwrap();
                        alive.push(object);
                    } else {
                        let object = alive.swap_remove(usize::try_from(random.below(alive.len() as u64)).unwrap());
                        assert!(has_own_bytes_only(&object, 10_000));
                        assert!(store.remove(object.id()).unwrap());
                    }
                    if step % 10 == 0 {
                        store.sync().unwrap();
                    }
                }
                alive.iter().for_each(|object| assert!(has_own_bytes_only(object, 10_000)));
                alive.iter().for_each(|object| assert!(store.remove(object.id()).unwrap()));
            });
        }
    });
    store.sync().unwrap();
    assert!(store.is_empty().unwrap() && store.check().unwrap().is_clean());
}

#[test]
fn what_a_write_left_that_failed_is_never_seen() {
    Form::ALL.iter().for_each(|form| write_too_much(*form));
}

fn write_too_much(form: Form) {
    let (_, store) = formatted(form);
    let [full, object] = [(); 2].map(|()| store.create(Kind::Direct).unwrap());
    object.write(0, &[7; 100]).unwrap();
    object.sync().unwrap();
    let piece = vec![1; 1 << 20];
    let fills = (0..32).take_while(|number| full.write(number << 20, &piece).is_ok()).count();
    assert!((10..32).contains(&fills));
    assert!(matches!(object.write(100, &vec![9; 4 << 20]), Err(Error::NoSpace)));
    assert_eq!(object.stat().unwrap().size, 100);
    object.truncate(8 << 20).unwrap();
    let mut found = vec![5; 8 << 20];
    assert_eq!(object.read(0, &mut found).unwrap(), 8 << 20);
    assert!(found[..100] == [7; 100] && found[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn appends_follow_each_other() {
    Form::ALL.iter().for_each(|form| append_side_by_side(*form));
}

fn append_side_by_side(form: Form) {
    let (_, store) = formatted(form);
    let object = store.create(Kind::Direct).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let object = &object;
            scope.spawn(move || {
                (0..50).for_each(|_| assert!(object.append(&[thread; 777]).unwrap().is_multiple_of(777)));
            });
        }
    });
    let mut found = vec![0; 4 * 50 * 777];
    assert_eq!(object.read(0, &mut found).unwrap(), found.len());
    assert!(found.chunks(777).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0] && *byte > 0)));
    assert!(store.create(Kind::Plain).unwrap().append(&[1]).is_err());
}

#[test]
fn threads_make_objects_side_by_side() {
    Form::ALL.iter().for_each(|form| make_side_by_side(*form));
}

fn make_side_by_side(form: Form) {
    const THREADS: u64 = 8;
    const OBJECTS: u64 = 100;
    let (device, store) = formatted(form);
    let made: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let make = |number: u64| {
                        let object = store.create(Kind::Direct).unwrap();
                        let tag = thread * OBJECTS + number;
                        object.write(tag * 7, &tag.to_le_bytes()).unwrap();
                        if number.is_multiple_of(5) {
                            store.remove(object.id()).unwrap()
                        } else {
                            object.sync().is_ok()
                        };
                        (object.id(), tag)
                    };
                    (0..OBJECTS).map(make).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let ids: BTreeSet<u64> = made.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len() as u64, THREADS * OBJECTS);
    store.close().unwrap();
    drop(store);
    let store = Store::open(device).unwrap();
    let findings = store.check().unwrap();
    assert!(findings.is_clean() && findings.objects == THREADS * OBJECTS * 4 / 5, "{findings:?}");
    for (id, tag) in made {
        if (tag % OBJECTS).is_multiple_of(5) {
            assert!(!store.exists(id).unwrap());
        } else {
            let mut found = [0; 8];
            assert_eq!(store.object(id, Kind::Direct).unwrap().read(tag * 7, &mut found).unwrap(), 8);
            assert_eq!(u64::from_le_bytes(found), tag);
        }
    }
}

/// The paper counts a write for each object, and one for each range of identifiers. Here objects that are not synced
/// one by one share writes, too.
#[test]
fn creations_share_writes() {
    const OBJECTS: u64 = 2048;
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device);
    let before = device.counts();
    for _ in 0..OBJECTS {
        store.create(Kind::Direct).unwrap();
    }
    store.sync().unwrap();
    let after = device.counts();
    // A durable write for each range; what was gathered, 256 objects at most and fewer on so small a device; what is
    // left at the sync; the log.
    let (writes, flushes) = (after.0 - before.0, after.1 - before.1);
    assert!(writes <= OBJECTS as usize / 64 && flushes == 4, "{writes} writes, {flushes} flushes");
    for _ in 0..100 {
        store.create(Kind::Direct).unwrap();
        store.sync().unwrap();
    }
    // Synced one by one: the object, and its share of the log is a write.
    let one_by_one = device.counts().0 - after.0;
    assert!((200..=204).contains(&one_by_one), "{one_by_one}");
}

/// What was gathered of new objects is neither lost nor counted twice when the device fails, or is full.
#[test]
fn objects_that_were_gathered_survive_failures_and_fill_the_device() {
    for calls in 0..40 {
        let device = Recorder::new(DEVICE_BYTES);
        let store = format(&device);
        store.sync().unwrap();
        let free = store.usage().free;
        device.fail_in(Some(calls));
        let mut made = Vec::new();
        let mut failures = 0;
        // In the order in which identifiers are given, and of what an earlier one left.
        while made.len() < 3000 && failures < 20 {
            match store.create(Kind::Plain) {
                Ok(object) => made.push(object.id()),
                Err(_) => failures += 1,
            }
            if made.len() % 700 == 699 && store.sync().is_err() {
                failures += 1;
            }
        }
        device.fail_in(None);
        store.sync().unwrap();
        assert_eq!((free - store.usage().free) / BLOCK_BYTES as u64, made.len() as u64, "{calls}");
        for id in made.iter().step_by(3) {
            assert!(store.remove(*id).unwrap(), "{calls}");
        }
        store.sync().unwrap();
        assert_eq!((free - store.usage().free) / BLOCK_BYTES as u64, (made.len() - made.len().div_ceil(3)) as u64);
        let mut more = 0;
        while store.create(Kind::Plain).is_ok() {
            more += 1;
        }
        store.sync().unwrap();
        assert_eq!(store.usage().free, 0, "{calls}: {more} more");
        drop(store);
        let store = Store::open(device).unwrap();
        assert!(store.check().unwrap().is_clean());
        let is_as_expected = |(index, id): (usize, &u64)| store.exists(*id).unwrap() || index.is_multiple_of(3);
        assert!(made.iter().enumerate().all(is_as_expected), "{calls}");
    }
}
