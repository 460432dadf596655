//! All objects go at once: power failures at any call, devices that fail, and what the store is good for afterwards.

use crate::recorder::{Image, Random, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_region::{Error, FileDevice, Format, Keep, Kind, Object, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
const END: usize = 110_000;
/// More than are given.
const IDS: u64 = 6000;
const SHIFT: u8 = 30;

/// What regions of objects begin with.
type Contents = BTreeMap<u64, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    let there = (1..IDS).filter(|id| store.exists(*id).unwrap());
    there
        .map(|id| {
            let mut bytes = vec![0; END];
            store.layer().read(id << SHIFT, &mut bytes).unwrap();
            (id, bytes)
        })
        .collect()
}

fn change(store: &Store, random: &mut Random, made: &mut Vec<Object>) {
    for _ in 0..random.below(40) {
        match random.below(8) {
            0 => store.sync().unwrap(),
            1 if !made.is_empty() => {
                let object = made.swap_remove(usize::try_from(random.below(made.len() as u64)).unwrap());
                assert!(store.remove(object.id()).unwrap());
            }
            _ => {
                let object = store.create(if random.below(2) == 0 { Kind::Direct } else { Kind::Plain }).unwrap();
                let bytes = vec![u8::try_from(random.below(250) + 1).unwrap(); 5000];
                object.write(random.below(100_000), &bytes).unwrap();
                made.push(object);
            }
        }
    }
}

/// A store with objects, some of which were removed, after some checkpoints; not all of it is synced.
fn full(device: &Arc<Recorder>, random: &mut Random) -> (Store, Vec<Object>) {
    let mut store = Store::format(device.clone(), Format { region_shift: SHIFT, ..Format::default() }).unwrap();
    let mut made = Vec::new();
    for _ in 0..random.below(3) + 1 {
        change(&store, random, &mut made);
        if random.below(2) == 0 {
            made.clear();
            store.close().unwrap();
            drop(store);
            store = Store::open(device.clone()).unwrap();
        }
    }
    (store, made)
}

fn is_in_order(image: Image, text: &str) -> Store {
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    assert_eq!(store.check().unwrap().told(), Vec::<String>::new(), "{text}");
    store
}

#[test]
fn a_power_failure_leaves_all_objects_or_none_and_nothing_of_them_in_later_ones() {
    let (mut all, mut none) = (0, 0);
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let device = Recorder::new(DEVICE_BYTES);
        let (store, made) = full(&device, &mut random);
        store.sync().unwrap();
        let (before, begin) = (contents(&store), device.asked());
        store.remove_all().unwrap();
        let end = device.asked();
        assert!(made.iter().all(|object| matches!(object.read(0, &mut [0]), Err(Error::NoObject))));
        assert!(store.is_empty().unwrap() && contents(&store).is_empty());
        let usage = store.usage();
        assert!(usage.total - usage.free <= 8192, "but for the store's own record");

        // The same blocks are other objects' now.
        let mut made = Vec::new();
        change(&store, &mut random, &mut made);
        made.iter().for_each(|object| object.sync().unwrap());
        store.sync().unwrap();
        let (after, safe) = (contents(&store), device.asked());
        store.close().unwrap();
        for calls in (begin..=end).chain([safe, device.asked()]) {
            let text = format!("seed {seed}, {calls} of {begin}..{end}, {safe}");
            let store = is_in_order(device.crash(calls, &mut random), &text);
            let found = contents(&store);
            let (is_all, is_none) = (found == before, found.is_empty());
            assert!(if calls < safe { is_all || is_none } else { found == after }, "{text}");
            assert!(calls != end || is_none, "{text}");
            (all, none) = (all + u64::from(is_all), none + u64::from(is_none));
        }
    }
    assert!(all > 50 && none > 12, "{all}, {none}");
}

#[test]
fn a_device_that_fails_leaves_all_objects_or_none() {
    for seed in 0..4 {
        let mut failures = 0;
        for calls in 0.. {
            let mut random = Random::new(seed);
            let device = Recorder::new(DEVICE_BYTES);
            let (store, made) = full(&device, &mut random);
            store.sync().unwrap();
            let before = contents(&store);
            device.fail_in(Some(calls));
            let removed = store.remove_all();
            device.fail_in(None);
            let text = format!("seed {seed}, {calls} calls: {removed:?}");
            assert!(made.iter().all(|object| matches!(object.read(0, &mut [0]), Err(Error::NoObject))), "{text}");
            drop(store);
            let found = contents(&is_in_order(device.image(), &text));
            assert!(found.is_empty() || removed.is_err() && found == before, "{text}");
            if removed.is_ok() {
                break;
            }
            failures += 1;
        }
        assert!(failures > 3, "{failures}");
    }
}

#[test]
fn objects_with_versions_go_too() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let device = Recorder::new(DEVICE_BYTES);
        let (store, _made) = full(&device, &mut random);
        let versioned = [(); 3].map(|()| store.create_versioned().unwrap());
        let unwritten = store.create_versioned().unwrap();
        let write = |object: &Versioned| object.write(4096, &[7; 20_000]).unwrap();
        versioned.iter().for_each(|object| (0..5).for_each(|_| assert!(write(object) > 0)));
        if seed % 2 == 0 {
            store.clean(&Keep { newest: 2, ..Keep::default() }).unwrap();
        }
        store.remove_all().unwrap();
        assert!(versioned.iter().all(|object| object.read(0, &mut [0]).is_err()));
        assert!(matches!(store.versioned(unwritten.id()), Err(Error::NoObject)));
        assert!(store.is_empty().unwrap());
        let [object, other] = [(); 2].map(|()| store.create_versioned().unwrap());
        assert_eq!((write(&object), write(&other)), (1, 1));
        store.close().unwrap();
        let store = is_in_order(device.image(), &format!("seed {seed}"));
        assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, Vec::<String>::new());
        let object = store.versioned(object.id()).unwrap();
        assert_eq!(object.versions(0, 9).unwrap().len(), 1);
        let mut found = [0; 20_000];
        assert_eq!((object.read(4096, &mut found).unwrap(), found), (20_000, [7; 20_000]));
    }
}

/// The fewest identifiers that there can be are 61,439.
#[test]
fn identifiers_are_given_again_with_other_generations() {
    let path = std::env::temp_dir().join(format!("weft-region-sweep-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(400 << 20).unwrap();
    let device = Arc::new(FileDevice::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let store = Store::format(device.clone(), Format { region_shift: 48, ..Format::default() }).unwrap();
    let first: Vec<u64> = (0..500).map(|_| store.create(Kind::Plain).unwrap().id()).collect();
    store.remove_all().unwrap();
    let made = std::iter::from_fn(|| store.create(Kind::Plain).ok());
    let given: BTreeMap<u64, u64> = made.map(|object| (object.id(), object.generation())).collect();
    assert_eq!(given.len(), 61_439);
    assert!(first.iter().all(|id| given[id] > 0));
    // Several groups of blocks were in use.
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap() && store.check().unwrap().is_clean());
    drop(store);
    let store = Store::open(device).unwrap();
    assert!(store.is_empty().unwrap() && store.check().unwrap().is_clean());
}
