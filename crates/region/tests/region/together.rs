//! Versions that are put together: nothing that can be read changes, and their former places are free.

use crate::recorder::{Image, Random, Recorder};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_region::{Device, Error, FileDevice, Format, Keep, Store, Versioned};

const DEVICE_BYTES: u64 = 32 << 20;
const BLOCK: usize = 4096;

fn format(device: Arc<dyn Device>) -> Store {
    Store::format(device, Format { region_shift: 30, ..Format::default() }).unwrap()
}

pub fn block_of(tag: u64) -> [u8; BLOCK] {
    [u8::try_from(tag % 251 + 1).unwrap(); BLOCK]
}

/// What an object reads in each of its versions.
pub struct Model(pub Vec<(u64, Vec<u8>)>);

impl Model {
    pub fn compare(&self, object: &Versioned, text: &str) {
        let listed: Vec<u64> = object.versions(0, usize::MAX).unwrap().iter().map(|stat| stat.version).collect();
        assert!(listed.iter().eq(self.0.iter().map(|(version, _)| version)), "{text}: {listed:?}");
        for (version, expected) in &self.0 {
            let mut found = vec![0; expected.len() + 1];
            assert_eq!(object.at(*version).unwrap().read(0, &mut found).unwrap(), expected.len());
            assert!(found[..expected.len()] == expected[..], "{text}: version {version}");
        }
        let (_, newest) = self.0.last().unwrap();
        let mut found = vec![0; newest.len()];
        object.read(0, &mut found).unwrap();
        assert!(found == *newest, "{text}: the newest");
    }
}

/// All blocks at once, then single ones in no order.
fn written_at_random(object: &Versioned, blocks: u64, writes: u64) -> Model {
    let (mut random, mut bytes) = (Random::new(7), Vec::new());
    (0..blocks).for_each(|block| bytes.extend(block_of(block)));
    let mut model = Model(vec![(object.write(0, &bytes).unwrap(), bytes.clone())]);
    for tag in 0..writes {
        let at = usize::try_from(random.below(blocks)).unwrap() * BLOCK;
        bytes[at..at + BLOCK].copy_from_slice(&block_of(tag));
        model.0.push((object.write(at as u64, &block_of(tag)).unwrap(), bytes.clone()));
    }
    model
}

/// Blocks that an object has in its region.
pub fn mapped(store: &Store, id: u64) -> u64 {
    let (start, bytes) = (id * store.region_bytes(), store.region_bytes());
    let ranges = store.layer().mapped_ranges(start..start + bytes).unwrap();
    ranges.iter().map(|range| (range.end - range.start) / BLOCK as u64).sum()
}

pub fn is_in_order(store: &Store) {
    // What was freed is counted as free then.
    store.sync().unwrap();
    let findings = store.check().unwrap();
    assert!(findings.is_clean(), "{findings:?}");
    let scrubbed = store.scrub(&mut |_, _| {}).unwrap();
    assert_eq!((scrubbed.damaged, scrubbed.told), (0, Vec::new()));
}

#[test]
fn what_was_moved_leaves_nothing_where_it_was() {
    let store = format(Recorder::new(DEVICE_BYTES));
    let object = store.create_versioned().unwrap();
    let mut model = written_at_random(&object, 40, 300);
    object.clean(&Keep { newest: u64::MAX, ..Keep::default() }).unwrap();
    let before = mapped(&store, object.id());
    let moved = object.put_together().unwrap();
    assert!((39..=40).contains(&moved), "{moved}");
    assert_eq!(object.put_together().unwrap(), 0, "it is");
    model.compare(&object, "put together");
    is_in_order(&store);
    object.clean(&Keep { newest: u64::MAX, ..Keep::default() }).unwrap();
    assert_eq!(mapped(&store, object.id()), before + 1, "the commit's own block is new");
    // What is left: the object's own block, the data, and blocks of the newest version and of what was moved.
    object.clean(&Keep::default()).unwrap();
    assert_eq!(mapped(&store, object.id()), 1 + 40 + 2);
    model.0.drain(..model.0.len() - 1);
    model.compare(&object, "cleaned");
    is_in_order(&store);
}

/// A power failure at any call leaves all versions, and nothing that only a half-done step has.
#[test]
fn a_power_failure_loses_nothing_and_leaves_nothing() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(device.clone());
    let object = store.create_versioned().unwrap();
    let (id, model) = (object.id(), written_at_random(&object, 40, 60));
    store.close().unwrap();
    drop((object, store));
    let device = Recorder::from(DEVICE_BYTES, device.image());
    let store = Store::open(device.clone()).unwrap();
    let moved = store.versioned(id).unwrap().put_together().unwrap();
    assert!(moved > 30, "{moved}");
    drop(store);
    let mut random = Random::new(8);
    for calls in 0..=device.asked() {
        for round in 0..3 {
            let text = format!("after {calls} of {} calls, round {round}", device.asked());
            check_after_crash(device.crash(calls, &mut random), id, &model, &text);
        }
    }
}

fn check_after_crash(image: Image, id: u64, model: &Model, text: &str) {
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    let object = store.versioned(id).unwrap();
    model.compare(&object, text);
    is_in_order(&store);
    object.put_together().unwrap();
    model.compare(&object, text);
    object.clean(&Keep::default()).unwrap();
    assert!(mapped(&store, id) <= 1 + 40 + 2, "{text}: {} blocks", mapped(&store, id));
    let last = Model(vec![model.0.last().unwrap().clone()]);
    last.compare(&object, text);
    is_in_order(&store);
}

/// What is moved gets a new checksum, so what is wrong stays where it is.
#[test]
fn wrong_bytes_are_not_moved() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(device.clone());
    let object = store.create_versioned().unwrap();
    let (id, tag) = (object.id(), 200);
    for block in 0..10 {
        object.write(block * 8192, &block_of(block + tag)).unwrap();
    }
    store.close().unwrap();
    drop((object, store));
    let mut image = device.image();
    let wrong = image.iter_mut().find(|(_, bytes)| ***bytes == block_of(5 + tag)).unwrap();
    wrong.1[77] ^= 1;
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    assert!(matches!(store.versioned(id).unwrap().put_together(), Err(Error::Damaged(_))));
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, [format!("object {id}, version 6: its data")]);
}

/// Reads that meet many places have it done, and nobody asks for it.
#[test]
fn what_reads_find_in_many_places_is_put_together() {
    let path = std::env::temp_dir().join(format!("weft-region-together-{}", std::process::id()));
    let device = Arc::new(FileDevice::create(&path, 128 << 20).unwrap());
    let store = format(device.clone());
    let object = store.create_versioned().unwrap();
    let mut bytes = vec![1; 8 << 20];
    object.write(0, &bytes).unwrap();
    let mut random = Random::new(9);
    for tag in 0..3000 {
        let at = usize::try_from(random.below(2048)).unwrap() * BLOCK;
        bytes[at..at + BLOCK].copy_from_slice(&block_of(tag));
        object.write(at as u64, &block_of(tag)).unwrap();
    }
    let pass = || {
        let (before, mut found) = (device.operations().reads, vec![0; 1 << 20]);
        for (expected, offset) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            object.read(offset, &mut found).unwrap();
            assert!(found == expected, "at {offset}");
        }
        device.operations().reads - before
    };
    assert!(pass() > 1500);
    let deadline = Instant::now() + Duration::from_secs(60);
    // What it reads itself counts, too, while it is at it.
    while pass() > 40 {
        assert!(Instant::now() < deadline);
    }
    let mut found = vec![0; 8 << 20];
    object.at(1).unwrap().read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 1));
    drop((object, store));
    assert_eq!(Arc::strong_count(&device), 1, "the thread has ended");
    is_in_order(&Store::open(device).unwrap());
    std::fs::remove_file(&path).unwrap();
}
