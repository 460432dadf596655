//! Devices that become larger, or smaller. (Power failures in the midst of that, with a model: see `layer`.)

use crate::recorder::{BOTH, Image, Random, Recorder};
use std::sync::Arc;
use weft_region::{BLOCK_BYTES, Checksums, Error, FileDevice, Format, Kind, Layer, Store};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// So large a device has a map that fits it, with no room to spare.
const BEFORE: u64 = 256 * MIB;
const AFTER: u64 = 300 * MIB;

/// A store with something in it, some of it in the log only.
fn image(checksums: Checksums) -> Image {
    let device = Recorder::new(BEFORE);
    let layer = Layer::format(device.clone(), Format { checksums, ..Format::default() }).unwrap();
    (0..50u64).for_each(|number| layer.write(number << 30, &[1; 5000]).unwrap());
    layer.close().unwrap();
    (50..60u64).for_each(|number| layer.write(number << 30, &[1; 5000]).unwrap());
    layer.sync().unwrap();
    drop(layer);
    device.image()
}

fn check(layer: &Layer, text: &str) {
    for number in 0..60u64 {
        let mut found = [9; 5000];
        layer.read(number << 30, &mut found).unwrap();
        assert!(found == [1; 5000], "{text}: {number}");
    }
    let findings = layer.check(|_, _| Ok(true)).unwrap();
    assert!(findings.is_clean() && findings.mapped_blocks >= 120, "{text}: {findings:?}");
}

#[test]
fn a_larger_device_is_used_as_before_until_the_store_grows() {
    BOTH.iter().for_each(|checksums| use_and_grow(*checksums));
}

fn use_and_grow(checksums: Checksums) {
    let device = Recorder::from(AFTER, image(checksums));
    let layer = Layer::open(device.clone()).unwrap();
    let before = layer.usage();
    assert_eq!(before.unused, AFTER - BEFORE);
    check(&layer, "larger");
    drop(layer);

    let layer = Layer::grow(device.clone()).unwrap();
    let after = layer.usage();
    let gained = after.total - before.total;
    assert!(gained < AFTER - BEFORE && gained * 4 >= (AFTER - BEFORE) * 3, "{before:?} {after:?}");
    assert_eq!((after.unused, after.free - before.free), (0, gained));
    check(&layer, "grown");
    drop(layer);

    // There is nothing more to take.
    let layer = Layer::grow(device.clone()).unwrap();
    assert_eq!(layer.usage(), after);

    // All of the new space can be written, and nothing of the map with it.
    let bytes = usize::try_from(after.free).unwrap();
    layer.write(1 << 40, &vec![7; bytes]).unwrap();
    layer.sync().unwrap();
    assert!(matches!(layer.write(0, &[7; 4096]).and_then(|()| layer.write(1 << 50, &[7])), Err(Error::NoSpace)));
    drop(layer);
    let layer = Layer::open(device).unwrap();
    assert_eq!((layer.usage().free, layer.usage().total), (0, after.total));
    layer.write(0, &[1; 5000]).unwrap();
    // Where data have checksums, that went to new blocks: the old ones are free after it.
    layer.sync().unwrap();
    check(&layer, "full");
}

/// At each call of the growing, with any sectors of what was not flushed.
#[test]
fn a_power_failure_leaves_the_old_size_or_the_new_one() {
    BOTH.iter().for_each(|checksums| fail_while_growing(*checksums));
}

fn fail_while_growing(checksums: Checksums) {
    let image = image(checksums);
    let device = Recorder::from(AFTER, image.clone());
    let before = Layer::open(device.clone()).unwrap().usage().total;
    let after = Layer::grow(device.clone()).unwrap().usage().total;
    let mut seen = [0, 0];
    for calls in 0..=device.asked() {
        for seed in 0..4 {
            let text = format!("after {calls} calls, seed {seed}");
            let left = Recorder::from(AFTER, device.crash(calls, &mut Random::new(seed)));
            let layer = Layer::open(left.clone()).unwrap();
            let total = layer.usage().total;
            seen[[before, after]
                .iter()
                .position(|size| *size == total)
                .unwrap_or_else(|| panic!("{text}: {total}"))] += 1;
            check(&layer, &text);
            drop(layer);
            // Each of the super blocks says the same now.
            for copy in [0, 1] {
                let mut image = left.image();
                image.insert(copy, vec![0; BLOCK_BYTES].into());
                let layer = Layer::open(Recorder::from(AFTER, image)).unwrap();
                assert_eq!(layer.usage().total, total, "{text}: without copy {copy}");
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 1), "{seen:?}");
}

/// One super block is damaged, and power fails while the store grows: the other one is not touched before.
#[test]
fn a_store_with_one_super_block_grows_safely() {
    for copy in [0, 1] {
        let mut image = image(Checksums::Metadata);
        image.insert(copy, vec![0; BLOCK_BYTES].into());
        let device = Recorder::from(AFTER, image);
        drop(Layer::grow(device.clone()).unwrap());
        for call in 0..device.asked() {
            let mut left = device.crash(call, &mut Random::new(0));
            // A device of large sectors: what is being written is lost as a whole.
            if let Some(block) = device.writes_at(call).filter(|block| *block < 2) {
                left.insert(block, vec![0; BLOCK_BYTES].into());
            }
            check(&Layer::open(Recorder::from(AFTER, left)).unwrap(), &format!("copy {copy}, call {call}"));
        }
    }
}

#[test]
fn a_smaller_device_is_refused_with_both_sizes() {
    for bytes in [BEFORE - 4096, MIB] {
        let device = Recorder::from(bytes, image(Checksums::Metadata));
        for opened in [Layer::open(device.clone()), Layer::grow(device.clone())] {
            let Err(error) = opened else { panic!("{bytes} bytes were enough") };
            let text =
                format!("it has {bytes} bytes, and the store on it has {BEFORE}: what lay in the rest is not there");
            assert!(matches!(error, Error::Shrunk(..)) && error.to_string() == text, "{error}");
        }
        assert_eq!(device.asked(), 0, "nothing is written");
    }
}

/// The map has room for each block by itself, however the device came to its size.
#[test]
fn a_map_of_several_parts_carries_what_its_device_can_hold() {
    BOTH.iter().for_each(|checksums| fill_twice(*checksums));
}

fn fill_twice(checksums: Checksums) {
    let path = std::env::temp_dir().join(format!("weft-grow-{}", std::process::id()));
    let mut bytes = 16 * MIB;
    let device = FileDevice::create(&path, bytes).unwrap();
    let store = Store::format(Arc::new(device), Format { region_shift: 40, checksums, ..Format::default() }).unwrap();
    let id = store.create(Kind::Plain).unwrap().id();
    store.close().unwrap();
    drop(store);
    let mut next = 0;
    for _ in 0..2 {
        bytes += 100 * MIB;
        std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(bytes)).unwrap();
        let store = Store::grow(Arc::new(FileDevice::open(&path).unwrap())).unwrap();
        assert_eq!(store.usage().unused, 0);
        let object = store.object(id, Kind::Plain).unwrap();
        let full = loop {
            // No two blocks side by side.
            match object.write(next * 2 * BLOCK_BYTES as u64, &next.to_le_bytes()) {
                Ok(()) => next += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
        store.close().unwrap();
        assert!(next * BLOCK_BYTES as u64 > bytes / 10 * 8, "{next} of {bytes}");
    }
    let store = Store::open_verified(Arc::new(FileDevice::open(&path).unwrap())).unwrap();
    std::fs::remove_file(&path).unwrap();
    let object = store.object(id, Kind::Plain).unwrap();
    for number in 0..next {
        let mut found = [0; 8];
        assert_eq!(object.read(number * 2 * BLOCK_BYTES as u64, &mut found).unwrap(), 8);
        assert_eq!(u64::from_le_bytes(found), number);
    }
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn what_lies_behind_the_end_of_a_device_is_an_error_that_says_so() {
    let path = std::env::temp_dir().join(format!("weft-shrunk-{}", std::process::id()));
    let store = Store::format(Arc::new(FileDevice::create(&path, 16 * MIB).unwrap()), Format::default()).unwrap();
    let object = store.create(Kind::Plain).unwrap();
    object.write(0, &vec![7; 8 << 20]).unwrap();
    store.sync().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8 * MIB)).unwrap();
    let mut found = vec![0; 8 << 20];
    let error = object.read(0, &mut found).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    let text = "read the device: the device had 16777216 bytes, and has 8388608: it has become smaller";
    assert_eq!(error.to_string(), text);
    assert_eq!(object.read(0, &mut found[..4096]).unwrap(), 4096);
}

#[test]
fn a_full_store_has_room_after_it_has_grown() {
    BOTH.iter().for_each(|checksums| fill_and_grow(*checksums));
}

fn fill_and_grow(checksums: Checksums) {
    let device = Recorder::new(16 * MIB);
    let store = Store::format(device.clone(), Format { region_shift: 30, checksums, ..Format::default() }).unwrap();
    let (object, kept) = (store.create(Kind::Direct).unwrap(), store.create_versioned().unwrap());
    let mut versions = Vec::new();
    let full = loop {
        let tag = u8::try_from(versions.len()).unwrap();
        match kept.write(0, &vec![tag; 100_000]).and_then(|version| {
            versions.push((version, tag));
            object.write(u64::from(tag) << 20, &vec![tag; 100_000])
        }) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace) && versions.len() > 20, "{full}, {versions:?}");
    let (id, kept_id) = (object.id(), kept.id());
    object.sync().unwrap();
    drop((object, kept, store));

    let store = Store::grow(Recorder::from(24 * MIB, device.image())).unwrap();
    let (object, kept) = (store.object(id, Kind::Direct).unwrap(), store.versioned(kept_id).unwrap());
    object.write(200 << 20, &vec![1; 3 << 20]).unwrap();
    versions.push((kept.write(0, &vec![200; 100_000]).unwrap(), 200));
    store.close().unwrap();
    for (version, tag) in versions {
        let mut found = vec![0; 100_000];
        assert_eq!(kept.at(version).unwrap().read(0, &mut found).unwrap(), 100_000);
        assert!(found.iter().all(|byte| *byte == tag), "{version}");
    }
    assert!(store.check().unwrap().is_clean());
}

/// A power failure at any call of the removal; then others have all of the space, and nothing of the map.
#[test]
fn all_objects_of_a_store_that_has_grown_are_removed_at_once() {
    BOTH.iter().for_each(|checksums| grow_and_remove_all(*checksums));
}

fn grow_and_remove_all(checksums: Checksums) {
    let before = Recorder::new(BEFORE);
    drop(Store::format(before.clone(), Format { region_shift: 30, checksums, ..Format::default() }).unwrap());
    let device = Recorder::from(AFTER, before.image());
    let store = Store::grow(device.clone()).unwrap();
    let empty = store.usage();
    assert!(store.is_empty().unwrap());
    let make = |store: &Store| {
        let object = store.create(Kind::Plain).unwrap();
        object.write(0, &[7; 10 * BLOCK_BYTES]).unwrap();
        object.id()
    };
    let ids = [(); 30].map(|()| make(&store));
    store.sync().unwrap();
    let begin = device.asked();
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap() && store.usage() == empty, "{:?} {empty:?}", store.usage());
    let mut seen = [0, 0];
    for calls in begin..=device.asked() {
        let text = format!("{checksums}, {calls} calls");
        let left = device.crash(calls, &mut Random::new(calls as u64));
        let store = Store::open(Recorder::from(AFTER, left)).unwrap();
        let there = ids.iter().filter(|id| store.exists(**id).unwrap()).count();
        assert!(there == 0 || there == ids.len(), "{text}: {there}");
        seen[usize::from(there == 0)] += 1;
        assert_eq!(store.is_empty().unwrap(), there == 0, "{text}");
        assert_eq!(store.check().unwrap().told(), [""; 0], "{text}");
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");

    let object = store.create(Kind::Plain).unwrap();
    // Its first block is there already.
    let blocks = store.usage().free / BLOCK + 1;
    (0..blocks).for_each(|block| object.write(block * BLOCK, &[9; BLOCK_BYTES]).unwrap());
    assert!(matches!(object.write(blocks * BLOCK, &[9]), Err(Error::NoSpace)));
    store.close().unwrap();
    drop((object, store));
    let store = Store::open_verified(device).unwrap();
    assert_eq!(store.check().unwrap().told(), [""; 0]);
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, [""; 0]);
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap() && store.usage() == empty);
}
