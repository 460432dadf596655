//! Objects that keep versions against a plain model, also after power failures.

use crate::recorder::{BOTH, Form, Image, Random, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_region::{BLOCK_BYTES, Checksums, Error, FileDevice, Format, Keep, Kind, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
const SPAN: u64 = 150_000;

fn format(device: &Arc<Recorder>, region_shift: u8) -> Store {
    Form::Mapped(Checksums::Metadata).format(device, region_shift).unwrap()
}

/// What an object reads in each of its versions, ascending.
#[derive(Clone, Default)]
struct Model {
    versions: Vec<(u64, Vec<u8>)>,
    names: BTreeMap<String, u64>,
    /// A crash may leave these, or not.
    gone: Vec<(u64, Vec<u8>)>,
}

impl Model {
    fn newest(&self) -> &[u8] {
        self.versions.last().map_or(&[], |(_, bytes)| bytes)
    }

    fn write(&mut self, version: u64, offset: u64, from: &[u8]) {
        let mut bytes = self.newest().to_vec();
        let start = usize::try_from(offset).unwrap();
        bytes.resize(bytes.len().max(start + from.len()), 0);
        bytes[start..start + from.len()].copy_from_slice(from);
        self.versions.push((version, bytes));
    }
}

impl Model {
    fn clean(&mut self, newest: u64) {
        let from = self.versions.len().saturating_sub(usize::try_from(newest).unwrap());
        let from = self.versions.get(from).map_or(0, |(version, _)| *version);
        let is_kept = |version: &u64| *version >= from || self.names.values().any(|named| named == version);
        let (kept, gone) = std::mem::take(&mut self.versions).into_iter().partition(|(version, _)| is_kept(version));
        self.versions = kept;
        self.gone.extend::<Vec<_>>(gone);
    }

    /// Those that are listed, which may be some that are gone.
    fn become_listed(&mut self, listed: &[u64]) {
        self.versions.append(&mut self.gone);
        self.versions.sort();
        self.versions.retain(|(version, _)| listed.contains(version));
    }
}

fn bytes_of(count: u64, tag: u64) -> Vec<u8> {
    (0..count).map(|at| u8::try_from((at / 64 + tag * 7) % 255 + 1).unwrap()).collect()
}

/// One change of an object; the model has it, too.
fn step(object: &Versioned, model: &mut Model, random: &mut Random, tag: u64) -> weft_region::Result<()> {
    let start = random.below(SPAN);
    let count =
        if random.below(3) == 0 { random.below(SPAN - start) } else { random.below(9000).min(SPAN - start) } + 1;
    let align = |number: u64| number / 4096 * 4096;
    let (start, count) = if random.below(2) == 0 { (align(start), align(count).max(4096)) } else { (start, count) };
    match random.below(12) {
        0 => {
            let size = random.below(SPAN);
            let version = object.truncate(size)?;
            let mut bytes = model.newest().to_vec();
            bytes.resize(usize::try_from(size).unwrap(), 0);
            model.versions.push((version, bytes));
        }
        1 => {
            let version = object.punch(start..start + count)?;
            let mut bytes = model.newest().to_vec();
            let end = usize::try_from(start + count).unwrap().min(bytes.len());
            bytes[usize::try_from(start).unwrap().min(end)..end].fill(0);
            model.versions.push((version, bytes));
        }
        2 => {
            let parts = [(start, bytes_of(700, tag)), (start + 20_000, bytes_of(9000, tag))];
            let slices: Vec<(u64, &[u8])> = parts.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
            let version = object.write_many(&slices)?;
            model.write(version, parts[0].0, &parts[0].1);
            let (_, bytes) = model.versions.pop().unwrap();
            model.versions.push((version, bytes));
            model.write(version, parts[1].0, &parts[1].1);
            model.versions.swap_remove(model.versions.len() - 2);
        }
        3..=5 => {
            let bytes = bytes_of(count, tag);
            model.write(object.write_durable(start, &bytes)?, start, &bytes);
        }
        _ => {
            let bytes = bytes_of(count, tag);
            model.write(object.write(start, &bytes)?, start, &bytes);
        }
    }
    Ok(())
}

fn clean(object: &Versioned, model: &mut Model, random: &mut Random) {
    let newest = random.below(4) + 1;
    let before = model.versions.len();
    model.clean(newest);
    let cleaned = object.clean(&Keep { newest, ..Keep::default() }).unwrap();
    assert_eq!(cleaned.versions, (before - model.versions.len()) as u64);
}

/// Changes nothing that can be read.
fn put_together(object: &Versioned) {
    match object.put_together() {
        Err(Error::NoSpace | Error::RingFull(_)) => {}
        done => drop(done.unwrap()),
    }
}

/// Names a version, or takes a name away.
fn name(object: &Versioned, model: &mut Model, random: &mut Random) {
    let name = format!("name {}", random.below(3));
    if random.below(2) == 0 || model.versions.is_empty() {
        assert_eq!(object.remove_name(&name).unwrap(), model.names.remove(&name).is_some());
    } else {
        let (version, _) = model.versions[usize::try_from(random.below(model.versions.len() as u64)).unwrap()];
        object.set_name(&name, version).unwrap();
        model.names.insert(name, version);
    }
    let expected: Vec<(String, u64)> = model.names.clone().into_iter().collect();
    assert_eq!(object.names().unwrap(), expected);
}

fn check(object: &Versioned, model: &Model, random: &mut Random, text: &str) {
    let mut found = vec![9; 400_000];
    let count = object.read(0, &mut found).unwrap();
    assert!(found[..count] == *model.newest(), "{text}: the newest of {} versions", model.versions.len());
    let listed: Vec<(u64, u64)> =
        object.versions(0, usize::MAX).unwrap().iter().map(|stat| (stat.version, stat.size)).collect();
    let expected: Vec<(u64, u64)> =
        model.versions.iter().map(|(version, bytes)| (*version, bytes.len() as u64)).collect();
    assert_eq!(listed, expected, "{text}");
    for _ in 0..model.versions.len().min(4) {
        let (version, expected) = &model.versions[usize::try_from(random.below(model.versions.len() as u64)).unwrap()];
        let at = object.at(*version).unwrap();
        let from = random.below(expected.len() as u64 + 1);
        let mut found = vec![9; usize::try_from(random.below(50_000)).unwrap()];
        let count = at.read(from, &mut found).unwrap();
        let from = usize::try_from(from).unwrap();
        let end = (from + found.len()).min(expected.len());
        assert!(found[..count] == expected[from..end], "{text}: {from}.. of version {version}");
        let by_time = object.at_time(at.stat().time).unwrap().stat();
        assert!(by_time.time == at.stat().time && by_time.version >= *version, "{text}");
    }
}

#[test]
fn versions_are_as_a_model_has_them() {
    for seed in 0..12 {
        let (form, mut random) = (Form::of(seed / 2), Random::new(seed));
        let device = form.device(DEVICE_BYTES, Image::new());
        let mut store = form.format(&device, if seed % 2 == 0 { 20 } else { 30 }).unwrap();
        let mut objects: Vec<(u64, Model)> =
            (0..2).map(|_| (store.create_versioned().unwrap().id(), Model::default())).collect();
        for tag in 1..200 {
            let (id, model) = &mut objects[usize::try_from(random.below(2)).unwrap()];
            let object = store.versioned(*id).unwrap();
            match random.below(12) {
                0 => clean(&object, model, &mut random),
                1 => name(&object, model, &mut random),
                2 => put_together(&object),
                _ => match step(&object, model, &mut random, tag) {
                    // Full of versions, of a small region or the device.
                    Err(Error::NoSpace | Error::RingFull(_)) => clean(&object, model, &mut random),
                    Err(Error::TooLarge(_)) if seed % 2 == 0 => {}
                    done => done.unwrap(),
                },
            }
            model.gone.clear();
            check(&object, model, &mut random, &format!("seed {seed}, step {tag}"));
            if random.below(20) == 0 {
                drop(object);
                if random.below(2) == 0 {
                    store.close().unwrap();
                } else {
                    store.sync().unwrap();
                }
                drop(store);
                store = Store::open(device.clone()).unwrap();
                assert!(store.check().unwrap().is_clean());
            }
        }
    }
}

/// A power failure at any call leaves all versions that were safe, and of later ones those up to some one; what a
/// cleaner was taking away is there wholly, or not.
#[test]
fn a_power_failure_leaves_the_first_versions() {
    for seed in 0..80 {
        let (form, mut random) = (Form::of(seed / 2), Random::new(seed));
        let device = form.device(DEVICE_BYTES, Image::new());
        let store = form.format(&device, if seed % 2 == 0 { 20 } else { 30 }).unwrap();
        let id = store.create_versioned().unwrap().id();
        store.sync().unwrap();
        drop(store);
        let (mut image, mut model) = (device.image(), Model::default());
        for failure in 0..8 {
            let text = format!("seed {seed}, failure {failure}");
            (image, model) = fail_once(form, image, id, model, &mut random, &text);
        }
    }
}

fn fail_once(form: Form, image: Image, id: u64, mut model: Model, random: &mut Random, text: &str) -> (Image, Model) {
    let device = form.device(DEVICE_BYTES, image);
    let store = Store::open(device.clone()).unwrap();
    let object = store.versioned(id).unwrap();
    check(&object, &model, random, text);
    // After so many of the device's calls, versions up to this one are safe.
    let newest = |model: &Model| model.versions.last().map_or(0, |(version, _)| *version);
    let mut safe = vec![(0, newest(&model))];
    for tag in 0..random.below(12) + 1 {
        match random.below(10) {
            0 => object.sync().unwrap(),
            1 => store.close().unwrap(),
            2 => {
                let bytes = bytes_of(random.below(3) * 4096 + 4096, tag);
                match object.write_durable(tag * 4096, &bytes) {
                    Err(Error::RingFull(_)) => clean(&object, &mut model, random),
                    done => model.write(done.unwrap(), tag * 4096, &bytes),
                }
            }
            3 => clean(&object, &mut model, random),
            4 => put_together(&object),
            _ => {
                match step(&object, &mut model, random, tag) {
                    Err(Error::NoSpace | Error::RingFull(_)) => clean(&object, &mut model, random),
                    Err(Error::TooLarge(_)) => {}
                    done => done.unwrap(),
                }
                continue;
            }
        }
        safe.push((device.asked(), newest(&model)));
    }
    drop((object, store));
    let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
    let image = device.crash(calls, random);
    let safe = safe.iter().rev().find(|(asked, _)| *asked <= calls).map_or(0, |(_, version)| *version);
    let store = Store::open(form.device(DEVICE_BYTES, image.clone())).unwrap();
    let listed = store.versioned(id).unwrap().versions(0, usize::MAX).unwrap();
    let listed: Vec<u64> = listed.iter().map(|stat| stat.version).collect();
    let last = listed.last().copied().unwrap_or(0);
    assert!(last >= safe, "{text}: version {last} is the last, {safe} was safe");
    for (version, _) in model.versions.iter().filter(|(version, _)| *version <= last) {
        assert!(listed.contains(version), "{text}: version {version} is lost");
    }
    model.become_listed(&listed);
    assert_eq!(model.versions.len(), listed.len(), "{text}");
    (image, model)
}

#[test]
fn an_object_of_one_kind_is_no_object_of_another() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device, 30);
    let (versioned, direct) = (store.create_versioned().unwrap().id(), store.create(Kind::Direct).unwrap().id());
    store.close().unwrap();
    drop(store);
    let store = Store::open(device).unwrap();
    assert!(matches!(store.versioned(direct), Err(Error::Damaged(_))));
    assert!(matches!(store.object(versioned, Kind::Direct), Err(Error::Damaged(_))));
    assert!(matches!(store.versioned(direct + 1), Err(Error::NoObject)));
    let object = store.versioned(versioned).unwrap();
    object.write(0, &[1; 5]).unwrap();
    assert!(store.remove(versioned).unwrap());
    assert!(matches!(object.write(0, &[1]), Err(Error::NoObject)));
    assert!(matches!(object.read(0, &mut [1]), Err(Error::NoObject)));
}

/// A commit is a write, and durable ones are a flush more; blocks are mapped ahead now and then.
#[test]
fn a_commit_is_one_write() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device, 30);
    let object = store.create_versioned().unwrap();
    object.write_durable(0, &[1; BLOCK_BYTES]).unwrap();
    let before = device.counts();
    for number in 0..1000 {
        object.write_durable(number % 50 * BLOCK_BYTES as u64, &[2; BLOCK_BYTES]).unwrap();
    }
    let (writes, flushes) = (device.counts().0 - before.0, device.counts().1 - before.1);
    // 2000 blocks: mapped in steps of a part of what is free, each of which is a record and its flush.
    assert!((1000..1040).contains(&writes) && (1000..1080).contains(&flushes), "{writes}, {flushes}");
}

/// What is superseded goes, what versions have in common stays, and the ring goes around for as long as one likes.
#[test]
fn a_small_region_is_written_without_end() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device, 20);
    let object = store.create_versioned().unwrap();
    let free = store.usage().free;
    object.write(0, &[9; 40_000]).unwrap();
    object.set_name("first", 1).unwrap();
    let (mut moved, mut last) = (0, Vec::new());
    for round in 0..400u64 {
        last = bytes_of(4096 * (round % 7 + 1), round);
        match object.write(round % 5 * 8192, &last) {
            Err(Error::RingFull(_)) => {
                let cleaned = object.clean(&Keep { newest: 3, ..Keep::default() }).unwrap();
                assert!(cleaned.freed_blocks > 50, "{cleaned:?}");
                moved += cleaned.moved_blocks;
                object.write(round % 5 * 8192, &last).unwrap();
            }
            done => drop(done.unwrap()),
        }
    }
    assert!(moved > 20, "{moved}");
    object.clean(&Keep::default()).unwrap();
    let mut found = vec![0; 50_000];
    assert_eq!(object.at(1).unwrap().read(0, &mut found).unwrap(), 40_000);
    assert!(found[..40_000] == [9; 40_000]);
    object.read(399 % 5 * 8192, &mut found).unwrap();
    assert!(found[..last.len()] == last[..]);
    // The newest, at most 45 blocks, what the first version has of its own, and the index.
    let in_use = (free - store.usage().free) / BLOCK_BYTES as u64;
    assert!(in_use < 200, "{in_use}");
    assert!(store.check().unwrap().is_clean());
}

/// All that only versions have that are not kept is free again, to the block.
#[test]
fn what_is_not_kept_takes_no_space() {
    let store = format(&Recorder::new(DEVICE_BYTES), 30);
    let object = store.create_versioned().unwrap();
    for number in 0..100u64 {
        object.write(number % 10 * 4096, &[u8::try_from(number).unwrap(); 4096]).unwrap();
    }
    object.truncate(5 * 4096).unwrap();
    object.set_name("short", 101).unwrap();
    let last = object.write(0, &[7; 10 * 4096]).unwrap();
    let cleaned = object.clean(&Keep::default()).unwrap();
    // The named one has five blocks of five commits, and its own.
    assert_eq!((cleaned.versions, cleaned.freed_blocks, cleaned.moved_blocks), (100, 2 * 95, 0));
    assert!(object.remove_name("short").unwrap());
    let cleaned = object.clean(&Keep::default()).unwrap();
    assert_eq!((cleaned.versions, cleaned.freed_blocks), (1, 2 * 5 + 1));
    assert_eq!(object.clean(&Keep::default()).unwrap(), Default::default());
    assert_eq!(object.newest().unwrap().version, last);
    assert!(matches!(object.at(101), Err(Error::NoVersion)));
    assert!(matches!(object.clean(&Keep { share: 0.0, ..Keep::default() }), Err(Error::Setting(_))));
}

/// Versions that could be read some time ago are kept.
#[test]
fn versions_are_kept_by_their_age() {
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(200));
    let store = format(&Recorder::new(DEVICE_BYTES), 30);
    loop {
        let object = store.create_versioned().unwrap();
        for number in 0..20u8 {
            object.write(0, &[number; 10]).unwrap();
        }
        let keep = Keep { younger_than: Some(hour), ..Keep::default() };
        assert_eq!(object.clean(&keep).unwrap().versions, 0);
        std::thread::sleep(moment * 3 / 2);
        object.write(0, &[99; 10]).unwrap();
        let keep = Keep { younger_than: Some(moment), share: 0.5, ..Keep::default() };
        let cleaned = object.clean(&keep).unwrap();
        if object.newest().unwrap().time.elapsed().unwrap() < moment {
            // The last before was the newest a moment ago.
            assert_eq!((cleaned.versions, object.versions(0, 10).unwrap().len()), (19, 2));
            break;
        }
    }
}

/// What is new is brought to the index in the background, and by whoever writes when that is too slow.
#[test]
fn much_that_is_new_does_not_stay_in_memory() {
    let device = Recorder::new(8 * DEVICE_BYTES);
    let store = format(&device, 36);
    let object = store.create_versioned().unwrap();
    let end = 40 << 30;
    object.truncate(end).unwrap();
    let free = store.usage().free;
    for number in 0..20u8 {
        // Ten thousand pieces each.
        object.punch(0..end).unwrap();
        object.write_durable(u64::from(number) << 30, &[number + 1; 100]).unwrap();
    }
    assert!(free - store.usage().free > 1 << 20, "the index has not been written");
    // Also when the store itself is not used any more.
    let (id, free) = (object.id(), store.usage().free);
    drop(store);
    for _ in 0..20 {
        object.punch(0..end).unwrap();
        object.write_durable(19 << 30, &[20; 100]).unwrap();
    }
    drop(object);
    let store = Store::open(device).unwrap();
    assert!(free - store.usage().free > 1 << 20, "the index has not been written");
    let object = store.versioned(id).unwrap();
    let mut found = [0; 1];
    object.read(19 << 30, &mut found).unwrap();
    assert_eq!(found, [20]);
    object.read(18 << 30, &mut found).unwrap();
    assert_eq!(found, [0]);
    // The 12th write, before the punch that followed.
    assert_eq!(object.at(25).unwrap().read(11 << 30, &mut found).unwrap(), 1);
    assert_eq!(found, [12]);
}

/// A reader of any version sees it, or that it is gone, while others write and clean.
#[test]
fn versions_are_read_whole_beside_a_cleaner() {
    const BLOCKS: u64 = 8;
    let store = format(&Recorder::new(DEVICE_BYTES), 30);
    let object = store.create_versioned().unwrap();
    let is_done = AtomicBool::new(false);
    // Version v has written block v % 8.
    let byte_of = |version: u64, block: u64| {
        let writer = version.saturating_sub((version + BLOCKS - block) % BLOCKS);
        u8::try_from(writer % 251).unwrap()
    };
    for version in 1..=BLOCKS {
        let block = version % BLOCKS;
        assert_eq!(object.write(block * 4096, &[byte_of(version, block); 4096]).unwrap(), version);
    }
    let read = |from: u64| {
        let (mut seen, mut before) = (0, BLOCKS);
        let mut random = Random::new(from);
        while !is_done.load(Ordering::Relaxed) {
            let newest = object.newest().unwrap().version;
            assert!(newest >= before, "the newest version was {before}, and is {newest}");
            before = newest;
            let version = newest - random.below(4).min(newest - BLOCKS);
            let mut found = vec![0; usize::try_from(BLOCKS).unwrap() * 4096];
            match object.at(version).and_then(|version| version.read(0, &mut found)) {
                Err(Error::NoVersion) => continue,
                done => assert_eq!(done.unwrap(), found.len()),
            }
            seen += 1;
            for (block, bytes) in (0..BLOCKS).zip(found.chunks(4096)) {
                let byte = byte_of(version, block);
                assert!(bytes.iter().all(|found| *found == byte), "version {version}, block {block}: {}", bytes[0]);
            }
        }
        seen
    };
    std::thread::scope(|scope| {
        let readers = [1, 2].map(|seed| scope.spawn(move || read(seed)));
        let cleaner = scope.spawn(|| {
            let mut cleaned = 0;
            while !is_done.load(Ordering::Relaxed) {
                cleaned += object.clean(&Keep { newest: 2, ..Keep::default() }).unwrap().versions;
            }
            cleaned
        });
        for version in BLOCKS + 1..2000 {
            let block = version % BLOCKS;
            object.write(block * 4096, &[byte_of(version, block); 4096]).unwrap();
            std::thread::yield_now();
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(cleaner.join().unwrap() > 100);
        assert!(readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>() > 10);
    });
}

/// What is cleaned is never the object that got the identifier next.
#[test]
fn objects_come_and_go_beside_a_cleaner() {
    let store = format(&Recorder::new(DEVICE_BYTES), 36);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store.clean(&Keep { share: 0.3, ..Keep::default() }).unwrap();
            }
        });
        for round in 1..150u64 {
            let object = store.create_versioned().unwrap();
            let byte = u8::try_from(round).unwrap();
            for block in 0..5 {
                object.write(block * 4096, &[byte; 4096]).unwrap();
            }
            object.set_name("all", 5).unwrap();
            object.write(0, &[0; 4096]).unwrap();
            let mut found = vec![9; 5 * 4096];
            object.at(5).unwrap().read(0, &mut found).unwrap();
            assert!(found.iter().all(|found| *found == byte), "round {round}");
            object.read(0, &mut found).unwrap();
            assert!(found[4096..].iter().all(|found| *found == byte), "round {round}");
            assert!(store.remove(object.id()).unwrap());
            store.sync().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(store.check().unwrap().is_clean());
}

/// A store that is full of versions can be cleaned, and one that is dropped lets its device go.
#[test]
fn a_store_that_is_full_of_versions_can_be_cleaned() {
    BOTH.iter().for_each(|checksums| fill_and_clean(*checksums));
}

fn fill_and_clean(checksums: Checksums) {
    let path = std::env::temp_dir().join(format!("weft-region-full-{}", std::process::id()));
    let device = Arc::new(FileDevice::create(&path, DEVICE_BYTES).unwrap());
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device, format).unwrap();
    let object = store.create_versioned().unwrap();
    let mut random = Random::new(7);
    for round in 0..5 {
        let (mut written, mut last) = (0, 0);
        loop {
            let block = random.below(500);
            match object.write(block * 4096, &[u8::try_from(block % 251 + round).unwrap(); 4096]) {
                Ok(_) => (written, last) = (written + 1, block),
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(written > 500, "{written} in round {round}");
        let cleaned = store.clean(&Keep::default()).unwrap();
        assert!(cleaned.freed_blocks > 1000, "{cleaned:?}");
        store.sync().unwrap();
        let mut found = [0];
        object.read(last * 4096, &mut found).unwrap();
        assert_eq!(found[0], u8::try_from(last % 251 + round).unwrap());
    }
    drop((object, store));
    let reopened = FileDevice::open(&path).and_then(|device| Store::open(Arc::new(device)));
    std::fs::remove_file(&path).unwrap();
    assert!(reopened.unwrap().check().unwrap().is_clean());
}

#[test]
fn a_store_lets_go_of_its_device() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device, 30);
    store.create_versioned().unwrap().write(0, &[1; 10]).unwrap();
    store.close().unwrap();
    drop(store);
    assert_eq!(Arc::strong_count(&device), 1);
}
