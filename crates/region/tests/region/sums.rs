//! Checksums of data: what is wrong is found, and nothing is where nothing is wrong.

use crate::recorder::{Image, Random, Recorder};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_region::{BLOCK_BYTES, Checksums, Device, DumpOptions, Error, Format, Keep, Kind, SendOptions, Store, dump};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where data begin, blocks: see `Geometry::of`.
const DATA_START: u64 = 16 + 256 + 1024;
const BLOCK: u64 = BLOCK_BYTES as u64;

fn format(device: &Arc<Recorder>) -> Store {
    let format = Format { region_shift: 30, checksums: Checksums::All, ..Format::default() };
    Store::format(device.clone(), format).unwrap()
}

fn open(image: Image) -> Store {
    Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap()
}

/// What a scrub says, and of how many blocks.
fn scrub(store: &Store) -> (Vec<String>, u64) {
    let scrubbed = store.scrub(&mut |_, _| {}).unwrap();
    assert_eq!(scrubbed.damaged, scrubbed.told.len() as u64);
    (scrubbed.told, scrubbed.compared)
}

/// What is damaged of the blocks of some objects without super block, as reading says.
fn damage_of(store: &Store, objects: &[(u64, u64)]) -> Vec<String> {
    let (mut told, mut bytes) = (Vec::new(), vec![0; BLOCK_BYTES]);
    for (id, blocks) in objects {
        for block in 0..*blocks {
            match store.object(*id, Kind::Plain).and_then(|object| object.read(block * BLOCK, &mut bytes)) {
                Ok(_) => {}
                Err(Error::Damaged(text)) => told.push(text),
                Err(error) => panic!("{error}"),
            }
        }
    }
    told
}

/// Writes objects in every way there is; which ones have how many blocks.
fn write_in_all_ways(store: &Store, random: &mut Random) -> Vec<(u64, u64)> {
    let mut objects = Vec::new();
    for number in 0..8 {
        let object = store.create(Kind::Plain).unwrap();
        let byte = |random: &mut Random| u8::try_from(random.below(255) + 1).unwrap();
        for _ in 0..6 {
            let bytes = vec![byte(random); usize::try_from(random.below(30_000) + 1).unwrap()];
            object.write(random.below(10_000), &bytes).unwrap();
            object.write(random.below(8) * BLOCK, &[byte(random); 2 * BLOCK_BYTES]).unwrap();
            object.write_durable(random.below(40_000), &[byte(random)]).unwrap();
            match random.below(4) {
                0 => store.sync().unwrap(),
                1 => store.close().unwrap(),
                _ => {}
            }
        }
        if number % 3 == 0 {
            assert!(store.remove(object.id()).unwrap());
        } else {
            objects.push((object.id(), 10));
        }
    }
    // Blocks that are free now are some other object's, and have no checksum, or another one.
    let versioned = store.create_versioned().unwrap();
    for _ in 0..10 {
        versioned.write(random.below(50_000), &[7; 9000]).unwrap();
    }
    store.sync().unwrap();
    objects
}

/// Any bit that is wrong in the data of an object is found by a scrub, and by reading: each in its own place, and in no
/// other.
#[test]
fn a_wrong_bit_of_any_block_is_found() {
    for seed in 0..4 {
        let (device, mut random) = (Recorder::new(DEVICE_BYTES), Random::new(seed));
        let store = format(&device);
        let objects = write_in_all_ways(&store, &mut random);
        if seed % 2 == 0 {
            // The map only: an index of versions has checksums of its own.
            store.layer().close().unwrap();
        }
        drop(store);
        let image = device.image();
        let (told, compared) = scrub(&open(image.clone()));
        assert_eq!((told, damage_of(&open(image.clone()), &objects)), (Vec::new(), Vec::new()));
        let mut found = BTreeSet::new();
        let mut data: Vec<u64> = image.keys().copied().filter(|block| *block >= DATA_START).collect();
        data.sort_unstable();
        for block in data {
            let mut image = image.clone();
            let bit = usize::try_from(random.below(8 * BLOCK)).unwrap();
            image.get_mut(&block).unwrap()[bit / 8] ^= 1 << (bit % 8);
            if let Err(Error::Damaged(text)) = Store::open(Recorder::from(DEVICE_BYTES, image.clone())) {
                assert!(text.contains("identifiers") && found.insert(format!("{text}, block {block}")), "{text}");
                continue;
            }
            let (by_scrub, _) = scrub(&open(image.clone()));
            let is_of_block = |text: &String| text.contains("their checksum") && !text.contains("version");
            let by_scrub: Vec<String> = by_scrub.into_iter().filter(is_of_block).collect();
            let mut by_read = damage_of(&open(image), &objects);
            // Of region 0, and the super block of the object with versions.
            let has_other_reader =
                by_scrub.iter().any(|text| !objects.iter().any(|(id, _)| text.starts_with(&format!("object {id}, "))));
            if has_other_reader {
                by_read.extend(by_scrub.iter().cloned());
            }
            assert_eq!(by_scrub, by_read, "seed {seed}, block {block}");
            assert!(by_scrub.len() <= 1 && by_scrub.into_iter().all(|text| found.insert(text)), "block {block}");
        }
        assert_eq!(found.len() as u64, compared, "seed {seed}");
        let mapped: u64 = objects.iter().map(|(id, _)| blocks_of(&open(image.clone()), *id)).sum();
        // Those, two of region 0 or one, a superblock, and ten commits of four or five blocks.
        assert!((42..=53).contains(&(compared - mapped)) && mapped > 20, "seed {seed}: {compared} of {mapped}");
    }
}

/// Blocks of an object that are mapped.
fn blocks_of(store: &Store, id: u64) -> u64 {
    let ranges = store.layer().mapped_ranges(id << 30..(id + 1) << 30).unwrap();
    ranges.iter().map(|range| (range.end - range.start) / BLOCK).sum()
}

/// Blocks are written again, trimmed, removed, used for something else, and a power failure comes at any call: what is
/// read fits its checksum.
#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut compared_in_all = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let device = Recorder::new(DEVICE_BYTES);
        drop(format(&device));
        let mut image = device.image();
        for failure in 0..6 {
            let device = Recorder::from(DEVICE_BYTES, image);
            let store = Store::open(device.clone()).unwrap();
            let (told, compared) = scrub(&store);
            assert_eq!(told, [""; 0], "seed {seed}, failure {failure}");
            compared_in_all += compared;
            use_it(&store, &mut random);
            drop(store);
            let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
        }
    }
    assert!(compared_in_all > 2000, "{compared_in_all}");
}

fn use_it(store: &Store, random: &mut Random) {
    let ids: Vec<u64> = (1..40).filter(|id| store.exists(*id).unwrap()).collect();
    let (mut direct, mut versioned) = (Vec::new(), Vec::new());
    for id in ids {
        match store.object(id, Kind::Direct) {
            Ok(object) => direct.push(object),
            Err(_) => versioned.extend(store.versioned(id)),
        }
    }
    for step in 0..random.below(60) + 10 {
        let bytes = vec![u8::try_from(step + 1).unwrap(); usize::try_from(random.below(40_000) + 1).unwrap()];
        let offset = random.below(60_000);
        let any = usize::try_from(random.next() >> 32).unwrap();
        match random.below(14) {
            0 | 1 => direct.push(store.create(Kind::Direct).unwrap()),
            2 => versioned.push(store.create_versioned().unwrap()),
            3 if !direct.is_empty() => {
                let object = direct.swap_remove(any % direct.len());
                assert!(store.remove(object.id()).unwrap());
            }
            4 if !versioned.is_empty() => {
                let object = versioned.swap_remove(any % versioned.len());
                assert!(store.remove(object.id()).unwrap());
            }
            5 | 6 if !versioned.is_empty() => {
                let object = &versioned[any % versioned.len()];
                object.write(offset, &bytes).unwrap();
                if any % 5 == 0 {
                    object.clean(&Keep::default()).unwrap();
                }
            }
            7 if !direct.is_empty() => direct[any % direct.len()].truncate(offset).unwrap(),
            8 => store.sync().unwrap(),
            9 if any % 3 == 0 => store.close().unwrap(),
            _ if direct.is_empty() => {}
            10 => direct[any % direct.len()].write_durable(offset, &bytes).unwrap(),
            11 => direct[any % direct.len()].sync().unwrap(),
            _ => direct[any % direct.len()].write(offset, &bytes).unwrap(),
        }
        for object in &direct {
            object.read(random.below(50_000), &mut vec![0; 20_000]).unwrap();
        }
    }
}

/// A device that is slow, so that others do much meanwhile.
struct Slow(Arc<Recorder>, AtomicU64);

impl Slow {
    fn new(device: Arc<Recorder>) -> Arc<Self> {
        Arc::new(Self(device, AtomicU64::new(0)))
    }

    /// Some calls take long.
    fn wait(&self) {
        let is_long = self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(8);
        (0..if is_long { 400 } else { 5 }).for_each(|_| std::thread::yield_now());
    }
}

impl Device for Slow {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        self.wait();
        self.0.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        self.wait();
        self.0.write_at(place, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, place: u64, bytes: u64) -> io::Result<()> {
        self.0.discard(place, bytes)
    }
}

/// Writers write over the same blocks, also such as wait for their first sync, and few others are free; whoever reads
/// meanwhile, and a scrub, sees what one of them wrote.
#[test]
fn no_reader_meets_a_checksum_of_other_bytes() {
    let device = Recorder::new(16 << 20);
    let format = Format { region_shift: 30, checksums: Checksums::All, ..Format::default() };
    let store = Store::format(Slow::new(device), format).unwrap();
    let (shared, rest) = (store.create(Kind::Plain).unwrap(), store.create(Kind::Plain).unwrap());
    shared.write(0, &[1; 8 * BLOCK_BYTES]).unwrap();
    let blocks = store.usage().free / BLOCK - 16;
    (0..blocks).for_each(|block| rest.write(block * BLOCK, &[9; BLOCK_BYTES]).unwrap());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, shared, rest, is_over) = (&store, &shared, &rest, &is_over);
        for thread in 0..2u64 {
            scope.spawn(move || {
                let mut random = Random::new(thread);
                while !is_over.load(Ordering::Relaxed) {
                    if thread == 0 {
                        assert_eq!(scrub(store).0, [""; 0]);
                        continue;
                    }
                    let mut found = vec![0; 8 * BLOCK_BYTES - 100];
                    shared.read(random.below(100), &mut found).unwrap();
                    assert!(found.iter().all(|byte| *byte != 0));
                }
            });
        }
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random::new(thread + 100);
                    for step in 0..300u64 {
                        let byte = u8::try_from(step % 200 + 1).unwrap();
                        let block = random.below(6);
                        shared.write(block * BLOCK + random.below(3) * 40, &[byte; BLOCK_BYTES]).unwrap();
                        shared.write(block * BLOCK, &[byte; 2 * BLOCK_BYTES]).unwrap();
                        // So much that blocks that became free are soon used again.
                        rest.write(random.below(blocks - 64) * BLOCK, &[9; 64 * BLOCK_BYTES]).unwrap();
                        // Single blocks that wait, and are written again while they are on their way.
                        let object = match store.create(Kind::Plain) {
                            // What is free is being written over.
                            Err(Error::NoSpace) => continue,
                            object => object.unwrap(),
                        };
                        for part in 0..6 {
                            object.write(part * 500, &[byte; 500]).unwrap();
                        }
                        let mut found = [0; 3000];
                        object.read(0, &mut found).unwrap();
                        assert!(found == [byte; 3000]);
                        if step % 2 == 0 {
                            store.sync().unwrap();
                        }
                        store.remove(object.id()).unwrap();
                    }
                })
            })
            .collect();
        let done: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        done.into_iter().for_each(|done| done.unwrap());
    });
    store.sync().unwrap();
    assert_eq!(scrub(&store).0, [""; 0]);
    assert!(store.check().unwrap().is_clean());
}

/// A store with an object in direct mode of four blocks, the second of which is damaged.
fn damaged() -> (Image, u64) {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device);
    let object = store.create(Kind::Direct).unwrap();
    (1..=4u8).for_each(|byte| object.write(u64::from(byte - 1) * BLOCK, &[byte; BLOCK_BYTES]).unwrap());
    object.sync().unwrap();
    let mut image = device.image();
    let data = image.iter().find(|(block, bytes)| **block >= DATA_START && bytes[..] == [2; 4096]);
    let block = data.map(|(block, _)| *block).unwrap();
    image.get_mut(&block).unwrap()[4000] ^= 8;
    (image, object.id())
}

#[test]
fn what_is_damaged_is_read_by_nobody_and_can_be_written_anew() {
    let (image, id) = damaged();
    let store = open(image);
    let object = store.object(id, Kind::Direct).unwrap();
    let text = format!("object {id}, byte 8192 of its region: its data do not fit their checksum");
    let is_told = |done: weft_region::Result<usize>| matches!(done, Err(Error::Damaged(told)) if told == text);
    assert_eq!(object.read(0, &mut [0; BLOCK_BYTES]).unwrap(), BLOCK_BYTES);
    // The byte that is asked for need not be the one that is wrong.
    for (offset, count) in [(4096, 4096), (4096, 1), (8191, 1), (0, 16_384), (1, 5000), (5000, 9000)] {
        assert!(is_told(object.read(offset, &mut vec![0; count])), "{count} at {offset}");
    }
    assert!(is_told(object.write(5000, &[9; 10]).map(|()| 0)), "the rest of the block would seem to be right");
    assert!(is_told(object.truncate(5000).map(|()| 0)));
    let mut stream = Vec::new();
    let sent = store.send(&SendOptions::default(), &mut stream, &mut |_| {});
    assert!(is_told(sent.map(|_| 0)));
    assert_eq!(scrub(&store).0, std::slice::from_ref(&text));
    object.write(4096, &[9; 4096]).unwrap();
    object.write(5000, &[8; 10]).unwrap();
    object.sync().unwrap();
    assert_eq!(scrub(&store).0, [""; 0]);
    store.send(&SendOptions::default(), &mut Vec::new(), &mut |_| {}).unwrap();
}

#[test]
fn a_damaged_super_block_is_counted_and_named() {
    let (mut image, id) = damaged();
    let super_block = image.iter().find(|(_, bytes)| bytes.starts_with(b"WEFTOBJ\0")).map(|(block, _)| *block);
    // Not a byte that its own checksum is of.
    image.get_mut(&super_block.unwrap()).unwrap()[4095] ^= 1;
    let store = open(image.clone());
    assert!(matches!(store.object(id, Kind::Direct), Err(Error::Damaged(_))));
    assert_eq!((scrub(&store).0.len(), store.check().unwrap().damaged_objects), (2, 1));
    assert!(store.remove(id).unwrap());
    assert_eq!(scrub(&store).0, [""; 0]);
    let mut lines = Vec::new();
    let device: Arc<dyn Device> = Recorder::from(DEVICE_BYTES, image);
    dump(&device, DumpOptions { entries: true, scan: false }, &mut |line| lines.push(line)).unwrap();
    for text in ["checksums: all", "checksums of 5 blocks from block", "5 with checksums", "do not fit their checksum"]
    {
        assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
    }
}

/// The store's own record lies in two blocks in turns: with a damaged one nobody knows how far identifiers were given
/// out, and a repair goes by the objects that are there.
#[test]
fn no_identifier_is_given_twice_after_one_record_is_damaged() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device);
    // Two batches, so that each of the two has been written.
    (0..1500).for_each(|_| drop(store.create(Kind::Plain).unwrap()));
    store.close().unwrap();
    drop(store);
    let image = device.image();
    let records: Vec<u64> =
        image.iter().filter(|(_, bytes)| bytes.starts_with(b"WEFTIDS\0")).map(|(block, _)| *block).collect();
    assert!(records.len() >= 2);
    let mut refused = 0;
    for block in records {
        let mut image = image.clone();
        image.get_mut(&block).unwrap()[4000] ^= 1;
        let device = Recorder::from(DEVICE_BYTES, image);
        let is_refused = matches!(Store::open(device.clone()), Err(Error::Damaged(_)));
        let mut told = Vec::new();
        Store::repair(device.clone(), true, &mut |line| told.push(line)).unwrap();
        assert_eq!(told.len(), usize::from(is_refused), "{told:?}");
        refused += told.len();
        let id = Store::open(device).unwrap().create(Kind::Plain).unwrap().id();
        assert!(id > 1500, "{id}");
    }
    assert_eq!(refused, 2, "others are of before");
}

/// The map grows by what is written, not by how often.
#[test]
fn the_map_has_room_for_a_checksum_of_each_block() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = format(&device);
    let object = store.create(Kind::Plain).unwrap();
    let blocks = store.usage().free / BLOCK - 64;
    let mut random = Random::new(3);
    // Each block lies alone.
    for block in 0..blocks {
        object
            .write((block * 7919 % blocks) * 2 * BLOCK, &[u8::try_from(block % 255 + 1).unwrap(); BLOCK_BYTES])
            .unwrap();
    }
    for round in 0..20 {
        for _ in 0..300 {
            object.write(random.below(blocks) * 2 * BLOCK, &[round + 1; BLOCK_BYTES]).unwrap();
        }
        if round % 2 == 0 { store.sync().unwrap() } else { store.close().unwrap() }
    }
    drop(object);
    drop(store);
    let (told, compared) = scrub(&Store::open(device).unwrap());
    // And the two that say which identifiers were given out.
    assert_eq!((told, compared), (Vec::new(), blocks + 2));
}

/// Many changes of one sync: their checksums count in what a record holds.
#[test]
fn no_record_is_larger_than_it_can_be() {
    const BLOCKS: u64 = 15_000;
    let device = Recorder::new(128 << 20);
    let store = format(&device);
    let object = store.create(Kind::Plain).unwrap();
    store.sync().unwrap();
    // A checkpoint would take them without a record.
    for block in 0..BLOCKS {
        object.write(block * 2 * BLOCK, &[u8::try_from(block % 255 + 1).unwrap(); BLOCK_BYTES]).unwrap();
    }
    store.sync().unwrap();
    drop((object, store));
    let store = Store::open(device).unwrap();
    // And the two that say which identifiers were given out: both are there from the beginning.
    assert_eq!(scrub(&store), (Vec::new(), BLOCKS + 2));
}

/// A device fails at any call, and works again: no checksum is lost, and none is of other bytes.
#[test]
fn a_device_that_fails_loses_no_checksum() {
    for calls in 0..150 {
        let device = Recorder::new(DEVICE_BYTES);
        let store = format(&device);
        let object = store.create(Kind::Plain).unwrap();
        object.write(0, &[1; 20 * BLOCK_BYTES]).unwrap();
        store.close().unwrap();
        device.fail_in(Some(calls));
        let failed = (0..60u64).any(|number| {
            let byte = u8::try_from(number + 2).unwrap();
            let done = object.write(number % 18 * BLOCK, &[byte; 2 * BLOCK_BYTES]);
            let done = done.and_then(|()| object.write((30 + number) * 2 * BLOCK + 9, &[byte; 50]));
            let done = done.and_then(|()| if number % 3 == 0 { store.layer().close() } else { store.sync() });
            done.and_then(|()| object.write((30 + number) * 2 * BLOCK, &[byte; 70])).is_err()
        });
        assert!(failed, "{calls}");
        device.fail_in(None);
        object.write(0, &[3; 9]).unwrap();
        store.sync().unwrap();
        let mapped = |store: &Store| blocks_of(store, 1) + blocks_of(store, 0);
        assert_eq!(scrub(&store), (Vec::new(), mapped(&store)), "{calls}");
        drop((object, store));
        let store = Store::open(device).unwrap();
        assert_eq!(scrub(&store), (Vec::new(), mapped(&store)), "{calls}, opened again");
        assert!(store.check().unwrap().is_clean(), "{calls}");
    }
}

/// Of what is written over data, or beside them, a power failure leaves all or nothing, up to 4 MiB.
#[test]
fn a_write_over_data_is_there_wholly_or_not_at_all() {
    const BYTES: usize = 6 << 20;
    let (mut old, mut new) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let device = Recorder::new(32 << 20);
        let store = format(&device);
        let object = store.create(Kind::Direct).unwrap();
        object.write(0, &vec![1; BYTES]).unwrap();
        object.truncate(BYTES as u64 + (2 << 20)).unwrap();
        object.sync().unwrap();
        let before = device.asked();
        let start = usize::try_from(random.below(BYTES as u64)).unwrap();
        let most = (4 << 20) - start % BLOCK_BYTES;
        let end = start + 1 + usize::try_from(random.below(most as u64)).unwrap();
        object.write(start as u64, &vec![2; end - start]).unwrap();
        if random.below(2) == 0 {
            object.sync().unwrap();
        }
        let calls = before + usize::try_from(random.below((device.asked() - before) as u64 + 1)).unwrap();
        let id = object.id();
        drop((object, store));
        let store = Store::open(Recorder::from(32 << 20, device.crash(calls, &mut random))).unwrap();
        let mut found = vec![9; BYTES + (2 << 20)];
        store.object(id, Kind::Direct).unwrap().read(0, &mut found).unwrap();
        let is_new = found[start] == 2;
        let mut expected = [vec![1; BYTES], vec![0; 2 << 20]].concat();
        if is_new {
            expected[start..end].fill(2);
        }
        assert!(found == expected, "seed {seed}: {start} to {end}, {is_new}");
        *(if is_new { &mut new } else { &mut old }) += 1;
    }
    assert!(old > 10 && new > 5, "{old} as before, {new} as written");
}

/// A block is written again and again, or trimmed and written, while it is on its way to the device for the first time:
/// a sync has what was there when it began, or later; and a power failure leaves no other bytes than those of the
/// checksum.
#[test]
fn what_is_written_again_on_its_way_is_synced_all_the_same() {
    for seed in 0..150 {
        let (recorder, mut random) = (Recorder::new(16 << 20), Random::new(seed));
        let format = Format { region_shift: 30, checksums: Checksums::All, ..Format::default() };
        let store = Store::format(Slow::new(recorder.clone()), format).unwrap();
        let object = store.create(Kind::Plain).unwrap();
        let trims = seed % 2 == 0;
        let is_over = AtomicBool::new(false);
        object.write(0, &[1; BLOCK_BYTES]).unwrap();
        let calls = std::thread::scope(|scope| {
            let again = scope.spawn(|| {
                let mut byte = 1;
                while !is_over.load(Ordering::Relaxed) {
                    byte = byte % 200 + 1;
                    if trims {
                        store.layer().trim(1 << 30..(1 << 30) + BLOCK).unwrap();
                        object.write(0, &[byte; BLOCK_BYTES]).unwrap();
                    } else {
                        object.write(100, &[byte; 100]).unwrap();
                    }
                }
            });
            store.sync().unwrap();
            let calls = recorder.asked();
            (0..random.below(4)).for_each(|_| store.sync().unwrap());
            is_over.store(true, Ordering::Relaxed);
            again.join().unwrap();
            calls
        });
        let calls = if trims { calls + usize::try_from(random.below(6)).unwrap() } else { calls };
        let image = recorder.crash(calls, &mut random);
        let store = Store::open(Recorder::from(16 << 20, image)).unwrap();
        assert_eq!(scrub(&store).0, [""; 0], "seed {seed}");
        let mut found = [0; BLOCK_BYTES];
        if !trims {
            store.object(object.id(), Kind::Plain).unwrap().read(0, &mut found).unwrap();
            assert!(found[..100] == [1; 100] && found[200..] == [1; BLOCK_BYTES - 200], "seed {seed}");
        }
    }
}
