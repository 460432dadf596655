//! Writes of versions that fail partway, and power failures after them: what is not damaged is not taken for damage.

use crate::recorder::{BOTH, Image, Random, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_region::{BLOCK_BYTES, Checksums, Format, Keep, Kind, Store};

const DEVICE_BYTES: u64 = 32 << 20;
/// Regions of so few blocks that the ring of commits begins again now and then.
const REGION_SHIFT: u8 = 20;
const SEEDS: u64 = 40;
const CRASHES: usize = 3;

/// What may be read after a crash.
#[derive(Default)]
struct Model {
    /// All that was ever written as a version: a write that failed may be there.
    tags: BTreeMap<u64, Vec<u8>>,
    /// What was said to be safe, and how many calls of the device there were then.
    safe: Vec<(u64, u8, usize)>,
    /// Writes that were not said to be safe yet.
    written: Vec<(u64, u8)>,
    tag: u8,
}

impl Model {
    fn next(&mut self, version: u64) -> u8 {
        self.tag = self.tag % 250 + 1;
        self.tags.entry(version).or_default().push(self.tag);
        self.tag
    }

    fn note_safe(&mut self, calls: usize) {
        let safe = self.written.drain(..).map(|(version, tag)| (version, tag, calls));
        self.safe.extend(safe);
    }
}

/// Writes versions and other objects, some of it to a device that fails at some call.
fn step(store: &Store, id: u64, device: &Recorder, random: &mut Random, model: &mut Model) {
    let Ok(object) = store.versioned(id) else { return };
    let fails = random.below(3) == 0;
    match random.below(8) {
        0 => {
            let other = store.create(Kind::Direct).and_then(|other| other.write(0, &[9; 5000]).map(|()| other));
            let _ = other.and_then(|other| other.sync());
        }
        1 => {
            if object.sync().is_ok() {
                model.note_safe(device.asked());
            }
        }
        2 => drop(store.clean(&Keep::default())),
        _ => {
            let version = object.newest().map_or(0, |stat| stat.version) + 1;
            let tag = model.next(version);
            let blocks = 1 + usize::try_from(random.below(5)).unwrap();
            let bytes = vec![tag; blocks * BLOCK_BYTES];
            let is_durable = random.below(2) == 0;
            device.lie_in((fails && random.below(2) == 0).then(|| random.below(3)));
            device.fail_in(fails.then(|| random.below(6)));
            let write = || {
                if is_durable { object.write_durable(0, &bytes) } else { object.write(0, &bytes) }
            };
            if let Ok(written) = write() {
                assert_eq!(written, version);
                model.written.push((version, tag));
                if is_durable {
                    model.note_safe(device.asked());
                }
            }
            device.lie_in(None);
            device.fail_in(None);
        }
    }
}

/// Opens what a crash has left, which has to be what was safe, or later, and in order.
fn look(image: Image, id: u64, model: &mut Model, calls: usize, text: &str) -> (Arc<Recorder>, Store) {
    let device = Recorder::from(DEVICE_BYTES, image);
    let store = Store::open(device.clone()).unwrap_or_else(|error| panic!("{text}: {error}"));
    let object = store.versioned(id).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut found = BTreeMap::new();
    for stat in object.versions(0, usize::MAX).unwrap_or_else(|error| panic!("{text}: {error}")) {
        let mut first = [0; BLOCK_BYTES];
        let read = object.at(stat.version).and_then(|at| at.read(0, &mut first));
        read.unwrap_or_else(|error| panic!("{text}, version {}: {error}", stat.version));
        let tags = model.tags.get(&stat.version).map_or(&[][..], |tags| tags);
        assert!(tags.contains(&first[0]) && first == [first[0]; BLOCK_BYTES], "{text}, version {}", stat.version);
        found.insert(stat.version, first[0]);
    }
    let newest = found.keys().next_back().copied().unwrap_or(0);
    for (version, tag, _) in model.safe.iter().filter(|(.., asked)| *asked <= calls) {
        assert!(*version <= newest, "{text}: version {version} was safe, and {newest} is the newest");
        assert!(found.get(version).is_none_or(|found| found == tag), "{text}: version {version} is another one");
    }
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, Vec::<String>::new(), "{text}");
    // From here on, what was found is what is there.
    model.tags = found.iter().map(|(version, tag)| (*version, vec![*tag])).collect();
    model.safe.clear();
    model.written.clear();
    (device, store)
}

fn run(checksums: Checksums, seed: u64) {
    let mut random = Random::new(seed);
    let mut device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: REGION_SHIFT, checksums, ..Format::default() };
    let mut store = Store::format(device.clone(), format).unwrap();
    let id = store.create_versioned().unwrap().id();
    store.close().unwrap();
    let mut model = Model::default();
    for crash in 0..CRASHES {
        let begin = device.asked();
        for _ in 0..5 + random.below(60) {
            step(&store, id, &device, &mut random, &mut model);
        }
        drop(store);
        let calls = begin + usize::try_from(random.below((device.asked() - begin + 1) as u64)).unwrap();
        let image = device.crash(calls, &mut random);
        let text = format!("{checksums}, seed {seed}, crash {crash}");
        (device, store) = look(image, id, &mut model, calls, &text);
    }
}

#[test]
fn a_write_that_failed_is_not_taken_for_damage() {
    let seeds = std::env::var("WEFT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    for checksums in BOTH {
        (0..seeds).for_each(|seed| run(checksums, seed));
    }
}
