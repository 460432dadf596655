//! Objects that are safe with one write each, and what a power failure leaves of them.

use crate::recorder::{BOTH, Form, Image, Random, Recorder};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weft_region::{BLOCK_BYTES, Checksums, Device, Error, Format, Kind, Object, Owner, Store};

const DEVICE_BYTES: u64 = 32 << 20;

fn format(device: &Arc<Recorder>, checksums: Checksums) -> Store {
    Store::format(device.clone(), Format { region_shift: 30, checksums, ..Format::default() }).unwrap()
}

fn owner(tag: u64) -> Owner {
    let mut owner = Owner::default();
    owner[..8].copy_from_slice(&tag.to_le_bytes());
    owner
}

fn tag_of(store: &Store, id: u64) -> Option<u64> {
    match store.object(id, Kind::Direct) {
        Err(Error::NoObject) => None,
        object => Some(u64::from_le_bytes(*object.unwrap().owner().first_chunk().unwrap())),
    }
}

#[test]
fn a_durable_creation_is_one_write() {
    for checksums in BOTH {
        let device = Recorder::new(DEVICE_BYTES);
        let store = format(&device, checksums);
        store.create_durable(owner(1)).unwrap();
        let (writes, flushes) = device.counts();
        (0..50).for_each(|tag| drop(store.create_durable(owner(tag)).unwrap()));
        assert_eq!(device.counts(), (writes + 50, flushes + 50));
        // Nor has a sync to write anything that would be lost without it, but what is there is found faster.
        let lost = Recorder::from(DEVICE_BYTES, device.crash(device.asked(), &mut Random::new(1)));
        let store = Store::open(lost.clone()).unwrap();
        assert!((1..=51).all(|id| store.exists(id).unwrap()));
        // What has checksums has one from the beginning.
        store.close().unwrap();
        let mut image = lost.image();
        let firsts = image.values_mut().filter(|block| block.starts_with(b"WEFTOBJ"));
        firsts.for_each(|block| block[BLOCK_BYTES - 1] ^= 1);
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        let is_seen = |id| matches!(store.object(id, Kind::Direct), Err(Error::Damaged(_)));
        assert!((1..=51).all(|id| is_seen(id) == (checksums == Checksums::All)));
    }
}

#[test]
fn what_no_object_has_got_is_free() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device, Checksums::Metadata);
    assert!(store.is_empty().unwrap());
    let before = store.usage().free;
    let object = store.create_durable(owner(1)).unwrap();
    assert_eq!(store.usage().free, before - BLOCK_BYTES as u64);
    assert!(store.check().unwrap().is_clean());
    // All of it can be used, by whomever.
    let fill = |object: &Object| {
        let mut written = 0;
        while object.write(written, &[7; BLOCK_BYTES]).is_ok() {
            written += BLOCK_BYTES as u64;
        }
        assert_eq!((written, store.usage().free), (before - BLOCK_BYTES as u64, 0));
        assert!(store.check().unwrap().is_clean());
    };
    fill(&object);
    assert!(matches!(store.create_durable(owner(2)), Err(Error::NoSpace)));
    object.truncate(0).unwrap();
    store.create_durable(owner(3)).unwrap();
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap() && store.check().unwrap().is_clean());
    fill(&store.create_durable(owner(4)).unwrap());
}

/// The store as a program left it that knew of no such blocks.
fn of_before(image: &mut Image) {
    for copy in 0..2 {
        let block = image.get_mut(&copy).unwrap();
        block[92..96].fill(0);
        block[12..16].fill(0);
        let checksum = crc32c::crc32c(&block[..512]);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[test]
fn a_store_that_knows_nothing_of_it_has_durable_creations_all_the_same() {
    let device = Recorder::new(DEVICE_BYTES);
    format(&device, Checksums::Metadata).close().unwrap();
    let mut image = device.image();
    of_before(&mut image);
    let device = Recorder::from(DEVICE_BYTES, image);
    let store = Store::open(device.clone()).unwrap();
    let ids: Vec<u64> = (0..20).map(|tag| store.create_durable(owner(tag)).unwrap().id()).collect();
    let lost = Recorder::from(DEVICE_BYTES, device.crash(device.asked(), &mut Random::new(1)));
    let store = Store::open(lost.clone()).unwrap();
    assert!(ids.iter().all(|id| store.exists(*id).unwrap()));
    // A record of the log says where each of them is.
    let mut told = Vec::new();
    let options = weft_region::DumpOptions { entries: true, scan: false };
    weft_region::dump(&(lost as Arc<dyn weft_region::Device>), options, &mut |line| told.push(line)).unwrap();
    assert!(!told.iter().any(|line| line.contains("may begin")), "{told:#?}");
}

/// Whatever of it fails: its identifier may be another's soon.
#[test]
fn an_object_that_could_not_be_made_safe_is_not_there() {
    let mut failed = 0;
    let all = Form::ALL.map(|form| (form, false));
    // The last one as a program made it that knew of no runs.
    for (form, is_before) in all.into_iter().chain([(Form::Mapped(Checksums::Metadata), true)]) {
        for write in 0..7 {
            let device = form.device(DEVICE_BYTES, Image::new());
            form.format(&device, 30).unwrap().close().unwrap();
            let mut image = device.image();
            if is_before {
                of_before(&mut image);
            }
            let device = form.device(DEVICE_BYTES, image);
            let store = Store::open(device.clone()).unwrap();
            device.lie_in(Some(write));
            let made = store.create_durable(owner(1));
            device.lie_in(None);
            failed += usize::from(made.is_err());
            store.sync().unwrap();
            assert_eq!(made.is_err(), store.is_empty().unwrap(), "{form:?}, write {write}");
            let again: Vec<u64> = (0..3).map(|tag| store.create_durable(owner(tag)).unwrap().id()).collect();
            let image = device.crash(device.asked(), &mut Random::new(write));
            let store = Store::open(form.device(DEVICE_BYTES, image)).unwrap();
            assert!(again.iter().zip(0..).all(|(id, tag)| tag_of(&store, *id) == Some(tag)), "{form:?}, write {write}");
        }
    }
    assert!(failed > 6, "{failed}");
}

/// A record that is on the device, although the device said that it is not, says nothing any more when the map has
/// what came later.
#[test]
fn a_record_that_was_said_to_have_failed_brings_nothing_back() {
    let mut failed = 0;
    for checksums in BOTH {
        for (write, is_swept) in (0..4).flat_map(|write| [(write, false), (write, true)]) {
            let device = Recorder::new(DEVICE_BYTES);
            let store = format(&device, checksums);
            let kept = store.create_for(owner(1)).unwrap().id();
            store.sync().unwrap();
            let gone = store.create_for(owner(2)).unwrap().id();
            device.lie_in(Some(write));
            failed += usize::from(store.sync().is_err());
            device.lie_in(None);
            if is_swept {
                store.remove_all().unwrap();
            } else {
                assert!(store.remove(gone).unwrap());
                store.close().unwrap();
            }
            let store = Store::open(Recorder::from(DEVICE_BYTES, device.image())).unwrap();
            assert_eq!([kept, gone].map(|id| store.exists(id).unwrap()), [!is_swept, false], "{write}");
            assert!(store.check().unwrap().is_clean());
        }
    }
    assert!(failed >= 4, "{failed}");
}

/// What is known of an identifier's object after a crash: there with this tag, or not, or one of several.
type Known = BTreeMap<u64, HashSet<Option<u64>>>;

enum Done {
    Made(u64, u64),
    /// Without a sync.
    MadeUnsafe(u64, u64),
    Removed(u64),
    /// The device said so, but it may be there all the same.
    Failed(u64),
    Written,
    Synced,
}

/// What is known after what was done, of which the last one may have been cut off.
fn know(known: &mut Known, history: Vec<(usize, Done)>, calls: usize) {
    let (mut is_over, mut newest) = (false, BTreeMap::new());
    for (end, done) in history {
        if is_over {
            return;
        }
        // What was not told of may be so or not.
        is_over = end > calls;
        let (id, tag) = match done {
            Done::Made(id, tag) | Done::MadeUnsafe(id, tag) => (id, Some(tag)),
            Done::Removed(id) => (id, None),
            Done::Synced if !is_over => {
                known.extend(newest.iter().map(|(id, tag)| (*id, HashSet::from([*tag]))));
                continue;
            }
            Done::Synced | Done::Written | Done::Failed(_) => continue,
        };
        newest.insert(id, tag);
        known.entry(id).or_insert_with(|| HashSet::from([None])).insert(tag);
        if let (Done::Made(..), false) = (done, is_over) {
            known.insert(id, HashSet::from([tag]));
        }
    }
}

/// Makes objects, writes to them, removes them, syncs and brings the log to the map.
fn churn(
    store: &Store,
    device: &Recorder,
    (random, tags): (&mut Random, &mut u64),
    mut alive: Vec<u64>,
) -> Vec<(usize, Done)> {
    let mut history = Vec::new();
    for _ in 0..random.below(80) + 10 {
        let done = match random.below(12) {
            0 => store.sync().map(|()| Done::Synced),
            1 => store.layer().close().map(|()| Done::Synced),
            2..=4 if !alive.is_empty() => {
                let id = alive.swap_remove(usize::try_from(random.below(alive.len() as u64)).unwrap());
                store.remove(id).map(|_| Done::Removed(id))
            }
            // Its super block is written anew where it is.
            5 | 6 if !alive.is_empty() => {
                let id = alive[usize::try_from(random.below(alive.len() as u64)).unwrap()];
                let object = store.object(id, Kind::Direct).unwrap();
                let written = object.write(random.below(9000), &[1; 5000]);
                written.and_then(|()| object.write_stat()).map(|()| Done::Written)
            }
            7 => {
                *tags += 1;
                store.create_for(owner(*tags)).map(|object| Done::MadeUnsafe(object.id(), *tags))
            }
            _ => {
                *tags += 1;
                device.lie_in((random.below(8) == 0).then_some(0));
                let made = store.create_durable(owner(*tags));
                device.lie_in(None);
                Ok(made.map_or(Done::Failed(*tags), |object| Done::Made(object.id(), *tags)))
            }
        };
        match done {
            Ok(done) => {
                if let Done::Made(id, _) | Done::MadeUnsafe(id, _) = done {
                    alive.push(id);
                }
                history.push((device.asked(), done));
            }
            // The device fails from now on.
            Err(_) => break,
        }
    }
    history
}

#[test]
fn a_power_failure_takes_no_durable_object_and_brings_none_back() {
    let mut found = 0;
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let device = Recorder::new(DEVICE_BYTES);
        drop(format(&device, BOTH[usize::try_from(seed % 2).unwrap()]));
        let (mut image, mut known, mut tags, mut failed) = (device.image(), Known::new(), 0, HashSet::new());
        for failure in 0..6 {
            let device = Recorder::from(DEVICE_BYTES, image);
            let store = Store::open_with_range(device.clone(), 1 + random.below(6)).unwrap();
            for (id, tags) in &mut known {
                let tag = tag_of(&store, *id);
                let is_known = tags.contains(&tag) || tag.is_some_and(|tag| failed.contains(&tag));
                assert!(is_known, "seed {seed}, failure {failure}: object {id} is {tag:?}, not {tags:?}");
                // From now on it is so: who has seen it, was told. A sync makes it safe.
                *tags = HashSet::from([tag]);
                found += usize::from(tag.is_some());
            }
            assert!(store.check().unwrap().is_clean(), "seed {seed}, failure {failure}");
            store.sync().unwrap();
            let synced = device.asked();
            device.fail_in((random.below(4) == 0).then(|| random.below(150)));
            let alive = known.iter().filter(|(_, tags)| !tags.contains(&None)).map(|(id, _)| *id).collect();
            let history = churn(&store, &device, (&mut random, &mut tags), alive);
            drop(store);
            let calls = synced + usize::try_from(random.below((device.asked() - synced) as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
            failed.extend(history.iter().filter_map(|(_, done)| match done {
                Done::Failed(tag) => Some(*tag),
                _ => None,
            }));
            know(&mut known, history, calls);
        }
    }
    assert!(found > 1000, "{found}");
}

/// A device that does something else before a write.
struct Meanwhile {
    device: Arc<Recorder>,
    work: Mutex<Option<Work>>,
}

/// What is done before the first write that is durable, or is not.
type Work = (bool, Box<dyn FnOnce() + Send>);

impl Meanwhile {
    fn before(&self, is_durable: bool) {
        let work = self.work.lock().unwrap().take_if(|(of_durable, _)| *of_durable == is_durable);
        // By another thread, as if it had come between.
        work.into_iter().for_each(|(_, work)| std::thread::spawn(work).join().unwrap());
    }
}

impl Device for Meanwhile {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> std::io::Result<()> {
        self.before(false);
        self.device.write_at(place, from)
    }

    fn write_durable_at(&self, place: u64, from: &[u8]) -> std::io::Result<()> {
        self.before(true);
        self.device.write_durable_at(place, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, place: u64, bytes: u64) -> std::io::Result<()> {
        self.device.discard(place, bytes)
    }
}

/// The log is brought to the map just when an object is written, and an object is written just when that has begun.
#[test]
fn a_checkpoint_that_comes_between_loses_no_object() {
    for is_durable in [true, false] {
        let recorder = Recorder::new(DEVICE_BYTES);
        drop(format(&recorder, Checksums::Metadata));
        let device = Arc::new(Meanwhile { device: recorder.clone(), work: Mutex::default() });
        let store = Arc::new(Store::open_with_range(device.clone(), 2).unwrap());
        store.create_durable(owner(1)).unwrap();
        let beside = Arc::clone(&store);
        let work: Box<dyn FnOnce() + Send> = if is_durable {
            Box::new(move || beside.layer().close().unwrap())
        } else {
            // It waits to be written.
            store.create_for(owner(2)).unwrap();
            Box::new(move || drop(beside.create_durable(owner(3)).unwrap()))
        };
        *device.work.lock().unwrap() = Some((is_durable, work));
        if is_durable {
            store.create_durable(owner(3)).unwrap();
        } else {
            store.layer().close().unwrap();
        }
        assert!(device.work.lock().unwrap().is_none());
        let image = recorder.crash(recorder.asked(), &mut Random::new(1));
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        let tags: HashSet<_> = (1..10).map(|id| tag_of(&store, id)).collect();
        assert!(tags.contains(&Some(1)) && tags.contains(&Some(3)), "{tags:?}");
    }
}

/// Whoever makes an object while the log is brought to the map has it all the same.
#[test]
fn creations_beside_checkpoints_are_safe() {
    for seed in 0..20 {
        let device = Recorder::new(DEVICE_BYTES);
        let store = format(&device, BOTH[usize::try_from(seed % 2).unwrap()]);
        let is_over = AtomicBool::new(false);
        let told: Vec<u64> = std::thread::scope(|scope| {
            let make = || (0..150).map(|tag| store.create_durable(owner(tag)).unwrap().id()).collect::<Vec<_>>();
            let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    store.layer().close().unwrap();
                }
            });
            let told = makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect();
            is_over.store(true, Ordering::Relaxed);
            told
        });
        let image = device.crash(device.asked(), &mut Random::new(seed));
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        let lost: Vec<_> = told.iter().filter(|id| !store.exists(**id).unwrap()).collect();
        assert!(lost.is_empty() && told.len() == 600, "seed {seed}: {lost:?}");
    }
}
