//! Objects that keep versions against a plain model, also after power failures.

use crate::recorder::{Image, Random, Recorder};
use std::sync::Arc;
use weft_region::{BLOCK_BYTES, Error, Format, Kind, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
const SPAN: u64 = 150_000;

fn format(device: &Arc<Recorder>) -> Store {
    Store::format(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap()
}

/// What an object read after each of its commits, by version: 0 first.
#[derive(Clone, Default)]
struct Model {
    versions: Vec<(u64, Vec<u8>)>,
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
        let (device, mut random) = (Recorder::new(DEVICE_BYTES), Random::new(seed));
        let mut store = format(&device);
        let mut objects: Vec<(u64, Model)> =
            (0..2).map(|_| (store.create_versioned().unwrap().id(), Model::default())).collect();
        for tag in 1..120 {
            let (id, model) = &mut objects[usize::try_from(random.below(2)).unwrap()];
            let object = store.versioned(*id).unwrap();
            match step(&object, model, &mut random, tag) {
                Err(Error::NoSpace) => break,
                done => done.unwrap(),
            }
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

/// A power failure at any call leaves all versions that were safe, and of later ones those up to some one.
#[test]
fn a_power_failure_leaves_the_first_versions() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let device = Recorder::new(DEVICE_BYTES);
        let store = format(&device);
        let id = store.create_versioned().unwrap().id();
        store.sync().unwrap();
        drop(store);
        let (mut image, mut model) = (device.image(), Model::default());
        for failure in 0..8 {
            let text = format!("seed {seed}, failure {failure}");
            (image, model) = fail_once(image, id, model, &mut random, &text);
        }
    }
}

fn fail_once(image: Image, id: u64, mut model: Model, random: &mut Random, text: &str) -> (Image, Model) {
    let device = Recorder::from(DEVICE_BYTES, image);
    let store = Store::open(device.clone()).unwrap();
    let object = store.versioned(id).unwrap();
    check(&object, &model, random, text);
    // After so many of the device's calls, so many versions are safe.
    let mut safe = vec![(0, model.versions.len())];
    for tag in 0..random.below(12) + 1 {
        match random.below(8) {
            0 => object.sync().unwrap(),
            1 => store.close().unwrap(),
            2 => {
                let bytes = bytes_of(random.below(3) * 4096 + 4096, tag);
                model.write(object.write_durable(tag * 4096, &bytes).unwrap(), tag * 4096, &bytes);
            }
            _ => {
                match step(&object, &mut model, random, tag) {
                    Err(Error::NoSpace) => break,
                    done => done.unwrap(),
                }
                continue;
            }
        }
        safe.push((device.asked(), model.versions.len()));
    }
    drop((object, store));
    let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
    let image = device.crash(calls, random);
    let safe = safe.iter().rev().find(|(asked, _)| *asked <= calls).map_or(0, |(_, count)| *count);
    let store = Store::open(Recorder::from(DEVICE_BYTES, image.clone())).unwrap();
    let found = store.versioned(id).unwrap().versions(0, usize::MAX).unwrap().len();
    assert!(found >= safe && found <= model.versions.len(), "{text}: {found} versions, {safe} were safe");
    model.versions.truncate(found);
    (image, model)
}

#[test]
fn an_object_of_one_kind_is_no_object_of_another() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device);
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
    let store = format(&device);
    let object = store.create_versioned().unwrap();
    object.write_durable(0, &[1; BLOCK_BYTES]).unwrap();
    let before = device.counts();
    for number in 0..1000 {
        object.write_durable(number % 50 * BLOCK_BYTES as u64, &[2; BLOCK_BYTES]).unwrap();
    }
    let (writes, flushes) = (device.counts().0 - before.0, device.counts().1 - before.1);
    // 2000 blocks: mapped in 8 steps, each of which is a record and its flush.
    assert!((1000..1012).contains(&writes) && (1000..1020).contains(&flushes), "{writes}, {flushes}");
}
