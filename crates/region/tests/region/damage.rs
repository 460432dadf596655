//! Damage on the device: what is read is right or an error.

use crate::recorder::{BOTH, Image, Random, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_region::{
    BLOCK_BYTES, Checksums, Device, DumpOptions, Error, Format, Keep, Kind, Result, Shadow, Store, dump,
};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where the parts of this store begin, blocks: see `Geometry::of`.
const LOG_START: u64 = 16;
const MAP_START: u64 = LOG_START + 256;
const DATA_START: u64 = MAP_START + 1024;
const OBJECTS: u8 = 40;
const BYTES: usize = 3 * BLOCK_BYTES;

/// A store of objects whose bytes are all their number, closed.
fn numbered(checksums: Checksums) -> Image {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    for number in 1..=OBJECTS {
        let object = store.create(Kind::Direct).unwrap();
        assert_eq!(object.id(), u64::from(number));
        object.write(0, &[number; BYTES]).unwrap();
        object.sync().unwrap();
    }
    store.close().unwrap();
    device.image()
}

/// Reads all objects. Returns the number of errors; everything else is right.
fn read_numbered(store: &Store, text: &str) -> usize {
    let mut errors = 0;
    for number in 1..=OBJECTS {
        let mut found = vec![0; BYTES];
        let read = store.object(u64::from(number), Kind::Direct).and_then(|object| object.read(0, &mut found));
        match read {
            Ok(count) => assert!(count == BYTES && found.iter().all(|byte| *byte == number), "{text}: object {number}"),
            Err(Error::Damaged(_)) => errors += 1,
            Err(error) => panic!("{text}: object {number}: {error}"),
        }
    }
    errors
}

#[test]
fn no_wrong_bit_in_the_map_is_served() {
    for checksums in BOTH {
        let whole = numbered(checksums);
        let mut map: Vec<u64> = whole.keys().copied().filter(|block| (MAP_START..DATA_START).contains(block)).collect();
        map.sort_unstable();
        map.retain(|block| whole[block].iter().any(|byte| *byte != 0));
        let (mut errors, mut found) = (0, 0);
        for block in &map {
            for at in (0..BLOCK_BYTES).step_by(97) {
                let mut image = whole.clone();
                image.get_mut(block).unwrap()[at] ^= 1 << (at % 8);
                let text = format!("{checksums}, block {block}, byte {at}");
                let device = Recorder::from(DEVICE_BYTES, image);
                let failed = match Store::open(Shadow::new(device.clone())) {
                    Ok(store) => {
                        let failed = read_numbered(&store, &text);
                        let scrubbed = store.scrub(&mut |_, _| {});
                        let is_told = !scrubbed.is_ok_and(|scrubbed| scrubbed.damaged == 0);
                        assert!(failed == 0 || is_told, "{text}: a scrub finds it");
                        found += usize::from(is_told);
                        failed
                    }
                    Err(Error::Damaged(_)) => 1,
                    Err(error) => panic!("{text}: {error}"),
                };
                errors += usize::from(failed > 0);
            }
        }
        assert!(errors > 50 && found > 0, "{checksums}: {errors} errors, {found} found");
    }
}

/// Data blocks of two objects, each in place of the other.
#[test]
fn data_in_the_wrong_place_do_not_match_their_checksum() {
    let mut image = numbered(Checksums::All);
    let block_of = |image: &Image, number: u8| {
        let found =
            image.iter().filter(|(block, bytes)| **block >= DATA_START && bytes.iter().all(|one| *one == number));
        found.map(|(block, _)| *block).min().unwrap()
    };
    let (one, other) = (block_of(&image, 3), block_of(&image, 4));
    let bytes = image[&one].clone();
    image.insert(one, image[&other].clone());
    image.insert(other, bytes);
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    assert_eq!(read_numbered(&store, "exchanged"), 2);
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().damaged, 2);
}

/// Superblocks are two, and the store opens with one.
#[test]
fn a_damaged_superblock_is_found_by_a_scrub() {
    for copy in 0..2 {
        let mut image = numbered(Checksums::Metadata);
        image.get_mut(&copy).unwrap()[70] ^= 2;
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        assert_eq!(read_numbered(&store, "one superblock"), 0);
        let told = store.scrub(&mut |_, _| {}).unwrap().told;
        assert_eq!(told, [format!("superblock {copy}: damaged: the checksum of a super block")]);
    }
}

#[test]
fn a_store_of_an_earlier_format_is_refused() {
    let mut image = numbered(Checksums::Metadata);
    for copy in 0..2 {
        let block = image.get_mut(&copy).unwrap();
        block[8..12].copy_from_slice(&3u32.to_le_bytes());
        block[12..16].fill(0);
        let checksum = crc32c::crc32c(&block[..512]);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    assert!(matches!(Store::open(Recorder::from(DEVICE_BYTES, image)), Err(Error::OldFormat(3))));
}

/// A store with so many records in its log, an object each, left without being closed.
fn logged(checksums: Checksums, records: u8) -> Image {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    for number in 1..=records {
        let object = store.create(Kind::Direct).unwrap();
        object.write(0, &[number; BYTES]).unwrap();
        object.sync().unwrap();
    }
    device.image()
}

/// Blocks of the log that have a record, by its sequence, as the stamps of their sectors say.
fn records_of(image: &Image) -> BTreeMap<u64, u64> {
    let stamp = |block: u64| Some(u64::from_le_bytes(image.get(&block)?[8..16].try_into().unwrap()));
    (LOG_START..MAP_START).filter_map(|block| Some((stamp(block).filter(|stamp| *stamp > 0)? - 1, block))).collect()
}

#[test]
fn a_damaged_log_record_is_named_and_nothing_is_lost_silently() {
    for checksums in BOTH {
        let whole = logged(checksums, 12);
        let records = records_of(&whole);
        assert!(records.len() >= 12, "{records:?}");
        let first_replayed = *records.keys().nth(records.len() - 12).unwrap();
        for (sequence, block) in records.iter().filter(|(sequence, _)| **sequence >= first_replayed) {
            // Sectors without entries, too.
            for bit in (0..BLOCK_BYTES * 8).step_by(331) {
                let mut image = whole.clone();
                image.get_mut(block).unwrap()[bit / 8] ^= 1 << (bit % 8);
                let opened = Store::open(Recorder::from(DEVICE_BYTES, image));
                let is_named = matches!(&opened, Err(Error::LogDamaged { record, block: at, .. })
                    if (record, at) == (sequence, block));
                assert!(is_named, "record {sequence}, bit {bit}: {:?}", opened.err());
            }
            // Bytes of nothing, and of other blocks of the log.
            for other in [None, Some(block - 1), Some(block + 1)] {
                let mut image = whole.clone();
                let bytes = other.map_or_else(|| vec![0; BLOCK_BYTES].into(), |other| whole[&other].clone());
                image.insert(*block, bytes);
                let opened = Store::open(Recorder::from(DEVICE_BYTES, image));
                assert!(matches!(opened, Err(Error::LogDamaged { .. })), "record {sequence} as {other:?}");
            }
        }
    }
}

/// An earlier write of the same block, as a device leaves it that has lost one: what comes later tells.
#[test]
fn a_lost_write_of_a_record_is_damage_if_there_is_a_later_one() {
    let (whole, blank) = (logged(Checksums::Metadata, 12), logged(Checksums::Metadata, 0));
    let records = records_of(&whole);
    let (last, _) = records.last_key_value().unwrap();
    let block = records[&(last - 3)];
    let mut image = whole.clone();
    image.insert(block, blank[&block].clone());
    let opened = Store::open(Recorder::from(DEVICE_BYTES, image));
    assert!(matches!(opened, Err(Error::LogDamaged { record, .. }) if record == last - 3));
}

#[test]
fn a_repair_says_what_it_costs_and_leaves_what_was_before() {
    for checksums in BOTH {
        let mut image = logged(checksums, 12);
        let records = records_of(&image);
        let (last, _) = records.last_key_value().unwrap();
        // That of object 9.
        image.get_mut(&records[&(last - 3)]).unwrap()[600] ^= 8;
        let device = Recorder::from(DEVICE_BYTES, image.clone());
        let asked = device.asked();
        let mut told = Vec::new();
        Store::repair(device.clone(), false, &mut |line| told.push(line)).unwrap();
        assert_eq!(device.asked(), asked, "nothing was written");
        assert!(told[0].starts_with(&format!("damaged: log record {}", last - 3)), "{told:?}");
        assert!(told[1].contains("4 records") && told[2].contains("10, 11, 12"), "{told:?}");
        assert!(matches!(Store::open(device.clone()), Err(Error::LogDamaged { .. })));
        let mut lines = Vec::new();
        dump(&(device.clone() as Arc<dyn Device>), DumpOptions::default(), &mut |line| lines.push(line)).unwrap();
        assert!(lines.iter().any(|line| line.contains("1 sectors do not match")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("object 8, ")), "{lines:?}");

        let mut again = Vec::new();
        Store::repair(device.clone(), true, &mut |line| again.push(line)).unwrap();
        assert_eq!(again, told);
        for _ in 0..2 {
            let store = Store::open(device.clone()).unwrap();
            for number in 1..=12u8 {
                let mut found = vec![0; BYTES];
                let read = store.object(u64::from(number), Kind::Direct).and_then(|object| object.read(0, &mut found));
                match read {
                    Ok(count) => assert!(number < 9 && count == BYTES && found == [number; BYTES], "{number}"),
                    Err(error) => assert!(number >= 9 && matches!(error, Error::NoObject), "{number}: {error}"),
                }
            }
            assert!(store.check().unwrap().is_clean());
            let object = store.create(Kind::Direct).unwrap();
            object.write(0, &[99; BYTES]).unwrap();
            object.sync().unwrap();
            assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, Vec::<String>::new());
        }
        Store::repair(device, true, &mut |line| panic!("{line}")).unwrap();
    }
}

/// Of what the lost records gave to others, nothing is read.
#[test]
fn a_repair_brings_back_no_block_that_another_object_has() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = Store::format(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap();
    let (large, _) = (store.create(Kind::Direct).unwrap(), store.create(Kind::Direct).unwrap());
    let free = store.usage().free as usize - (1 << 20);
    large.write(0, &vec![1; free]).unwrap();
    large.sync().unwrap();
    store.close().unwrap();
    let before = records_of(&device.image());
    large.truncate(0).unwrap();
    large.sync().unwrap();
    let other = store.create(Kind::Direct).unwrap();
    other.write(0, &vec![2; free]).unwrap();
    other.sync().unwrap();
    let mut image = device.image();
    let (_, block) = records_of(&image).into_iter().find(|(sequence, _)| !before.contains_key(sequence)).unwrap();
    image.get_mut(&block).unwrap()[20] ^= 1;
    let device = Recorder::from(DEVICE_BYTES, image);
    let mut told = Vec::new();
    Store::repair(device.clone(), true, &mut |line| told.push(line)).unwrap();
    assert!(told.iter().any(|line| line.starts_with("object 1: ") && line.contains("read zeros")), "{told:?}");
    let store = Store::open(device).unwrap();
    // Its size was written over in place.
    let mut found = vec![9; free];
    store.layer().read((1 << 30) + BLOCK_BYTES as u64, &mut found).unwrap();
    // The last is what the device has of blocks that were discarded, and are nobody's.
    assert!(found.iter().all(|byte| matches!(byte, 0 | 1 | 0xdb)));
    assert!(found.contains(&0));
    // The superblock of before is discarded, too: that is told.
    assert_eq!(store.check().unwrap().told(), ["1 objects have a damaged super block"]);
    assert!(matches!(store.object(1, Kind::Direct), Err(Error::Damaged(_))));
}

const VERSIONS: u8 = 20;

/// A store with an object of which each version is safe before the next one, left without being closed.
fn versioned(checksums: Checksums) -> (Image, u64) {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    let object = store.create_versioned().unwrap();
    for version in 1..=VERSIONS {
        assert_eq!(object.write_durable(0, &[version; BYTES]).unwrap(), u64::from(version));
    }
    (device.image(), object.id())
}

/// Reads all versions that are there. Each that is read is right.
fn read_versions(store: &Store, id: u64, text: &str) -> Result<Vec<u64>> {
    let object = store.versioned(id)?;
    let mut found = Vec::new();
    for stat in object.versions(0, usize::MAX)? {
        let mut bytes = vec![0; BYTES];
        let count = object.at(stat.version)?.read(0, &mut bytes)?;
        let right = u8::try_from(stat.version).unwrap();
        assert!(count == BYTES && bytes.iter().all(|byte| *byte == right), "{text}: version {}", stat.version);
        found.push(stat.version);
    }
    Ok(found)
}

fn commits_of(image: &Image) -> Vec<u64> {
    let is_commit = |bytes: &[u8]| bytes[16..].starts_with(b"WEFTCMT\0");
    let mut found: Vec<u64> = image.iter().filter(|(_, bytes)| is_commit(bytes)).map(|(block, _)| *block).collect();
    // In the order of their positions.
    found.sort_unstable_by_key(|block| u64::from_le_bytes(image[block][16 + 88..][..8].try_into().unwrap()));
    found
}

#[test]
fn no_wrong_bit_of_a_commit_shortens_the_list_of_versions() {
    for checksums in BOTH {
        let (whole, id) = versioned(checksums);
        let commits = commits_of(&whole);
        assert_eq!(commits.len(), usize::from(VERSIONS));
        for (number, block) in (1u64..).zip(&commits) {
            for bit in (0..BLOCK_BYTES * 8).step_by(977) {
                let mut image = whole.clone();
                image.get_mut(block).unwrap()[bit / 8] ^= 1 << (bit % 8);
                let text = format!("{checksums}, version {number}, bit {bit}");
                let device = Recorder::from(DEVICE_BYTES, image);
                let store = Store::open(device.clone()).unwrap();
                let read = read_versions(&store, id, &text);
                assert!(matches!(read, Err(Error::Damaged(_))), "{text}: {read:?}");
                assert!(store.check().unwrap().is_clean(), "{text}: not what a check looks at");
                assert!(store.scrub(&mut |_, _| {}).unwrap().damaged > 0, "{text}: a scrub finds it");
                drop(store);
                if bit > 977 {
                    continue;
                }
                let mut told = Vec::new();
                Store::repair(device.clone(), true, &mut |line| told.push(line)).unwrap();
                assert!(told.iter().any(|line| line.contains("are lost")), "{text}: {told:?}");
                for _ in 0..2 {
                    let store = Store::open(device.clone()).unwrap();
                    let expected: Vec<u64> = (1..number).collect();
                    assert_eq!(read_versions(&store, id, &text).unwrap(), expected, "{text}");
                }
                let store = Store::open(device).unwrap();
                let next = store.versioned(id).unwrap().write_durable(0, &[u8::try_from(number).unwrap(); BYTES]);
                assert_eq!(next.unwrap(), number, "{text}");
                assert_eq!(read_versions(&store, id, &text).unwrap().len() as u64, number);
            }
            // Other bytes altogether; of the last one nobody knows that it was there.
            let mut image = whole.clone();
            image.insert(*block, vec![7; BLOCK_BYTES].into());
            let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
            let read = read_versions(&store, id, "other bytes");
            let is_last = number == u64::from(VERSIONS);
            assert!(matches!(read, Err(Error::Damaged(_))) || is_last, "{checksums}, version {number}: {read:?}");
        }
    }
}

#[test]
fn wrong_data_of_versions_are_an_error_where_data_have_checksums() {
    let (whole, id) = versioned(Checksums::All);
    for version in 1..=VERSIONS {
        let mut image = whole.clone();
        let is_data = |bytes: &[u8]| bytes.iter().all(|byte| *byte == version);
        let block = *image.iter().find(|(block, bytes)| **block >= DATA_START && is_data(bytes)).unwrap().0;
        image.get_mut(&block).unwrap()[1000] ^= 4;
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        let read = read_versions(&store, id, &format!("version {version}"));
        assert!(matches!(read, Err(Error::Damaged(_))), "version {version}: {read:?}");
        assert!(store.scrub(&mut |_, _| {}).unwrap().damaged > 0);
    }
}

/// The last version was synced, and nothing that was written after it says so.
#[test]
fn a_wrong_bit_in_the_data_of_the_last_version_is_not_taken_for_a_power_failure() {
    for checksums in BOTH {
        let (mut image, id) = versioned(checksums);
        let is_data = |bytes: &[u8]| bytes.iter().all(|byte| *byte == VERSIONS);
        let block = *image.iter().find(|(block, bytes)| **block >= DATA_START && is_data(bytes)).unwrap().0;
        image.get_mut(&block).unwrap()[1000] ^= 4;
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        assert!(matches!(read_versions(&store, id, "last"), Err(Error::Damaged(_))), "{checksums}");
    }
}

/// The same store, with a sync of it after the last version; `is_in_map`: and a log that was brought to the map since.
fn synced(checksums: Checksums, is_in_map: bool) -> (Image, u64) {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    let object = store.create_versioned().unwrap();
    for version in 1..=VERSIONS {
        object.write_durable(0, &[version; BYTES]).unwrap();
    }
    store.sync().unwrap();
    let records = if is_in_map { MAP_START - LOG_START } else { 0 };
    for number in 0..records {
        let other = store.create(Kind::Direct).unwrap();
        other.write(0, &number.to_le_bytes()).unwrap();
        other.sync().unwrap();
    }
    (device.image(), object.id())
}

/// No later commit says that the last version was safe: the log does, and then the map.
#[test]
fn a_synced_version_that_is_other_bytes_is_damage() {
    for (checksums, is_in_map) in BOTH.into_iter().flat_map(|checksums| [(checksums, false), (checksums, true)]) {
        let (whole, id) = synced(checksums, is_in_map);
        let commits = commits_of(&whole);
        let commit = *commits.last().unwrap();
        let is_data = |bytes: &[u8]| bytes.iter().all(|byte| *byte == VERSIONS);
        let data = *whole.iter().find(|(block, bytes)| **block >= DATA_START && is_data(bytes)).unwrap().0;
        for block in [commit, data] {
            for other in [vec![7; BLOCK_BYTES], vec![0; BLOCK_BYTES], whole[&commits[3]].to_vec()] {
                let text = format!("{checksums}, in the map: {is_in_map}, block {block}, {}", other[0]);
                let mut image = whole.clone();
                image.insert(block, other.into());
                let device = Recorder::from(DEVICE_BYTES, image);
                let store = Store::open(device.clone()).unwrap();
                let read = read_versions(&store, id, &text);
                assert!(matches!(read, Err(Error::Damaged(_))), "{text}: {read:?}");
                assert!(store.scrub(&mut |_, _| {}).unwrap().damaged > 0, "{text}: a scrub finds it");
                drop(store);
                let mut told = Vec::new();
                Store::repair(device.clone(), true, &mut |line| told.push(line)).unwrap();
                assert!(told.iter().any(|line| line.contains("up to version 20 as far as")), "{text}: {told:?}");
                for _ in 0..2 {
                    let store = Store::open(device.clone()).unwrap();
                    let expected: Vec<u64> = (1..u64::from(VERSIONS)).collect();
                    assert_eq!(read_versions(&store, id, &text).unwrap(), expected, "{text}");
                }
                let store = Store::open(device).unwrap();
                let next = store.versioned(id).unwrap().write_durable(0, &[VERSIONS; BYTES]);
                assert_eq!(next.unwrap(), u64::from(VERSIONS), "{text}");
                assert_eq!(read_versions(&store, id, &text).unwrap().len(), usize::from(VERSIONS));
            }
        }
    }
}

/// Neither a durable version nor a sync of an object writes more than it did; a sync of the store writes a record.
#[test]
fn marks_of_safe_commits_cost_no_write_but_in_a_sync_of_the_store() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = Store::format(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    object.write_durable(0, &[1; BYTES]).unwrap();
    let cost = |work: &dyn Fn()| {
        let before = device.counts();
        work();
        (device.counts().0 - before.0, device.counts().1 - before.1)
    };
    assert_eq!(cost(&|| assert_eq!(object.write_durable(0, &[2; BYTES]).unwrap(), 2)), (1, 1));
    assert_eq!(cost(&|| assert_eq!(object.write(0, &[3; BYTES]).unwrap(), 3)), (1, 0));
    assert_eq!(cost(&|| object.sync().unwrap()), (0, 1));
    assert_eq!(cost(&|| store.sync().unwrap()), (1, 2));
    assert_eq!(cost(&|| store.sync().unwrap()), (0, 1));
}

/// What a power failure cut off is no damage, wherever the marks of earlier commits are.
#[test]
fn no_torn_commit_is_called_damaged() {
    let seeds: u64 = std::env::var("WEFT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let random = &mut Random::new(seed + 1);
        let device = Recorder::new(DEVICE_BYTES);
        let format = Format { region_shift: 22, checksums: BOTH[random.below(2) as usize], ..Format::default() };
        let mut store = Store::format(device.clone(), format).unwrap();
        // The number of each object's last version, and when calls had ended that made it safe.
        let mut ids: Vec<u64> = Vec::new();
        let mut safe: Vec<(usize, u64, u64)> = Vec::new();
        let begin = device.asked();
        for _ in 0..60 {
            if ids.is_empty() || random.below(12) == 0 {
                ids.push(store.create_versioned().unwrap().id());
            }
            let object = store.versioned(ids[random.below(ids.len() as u64) as usize]).unwrap();
            let newest = object.newest().unwrap().version;
            let bytes = vec![random.next() as u8; BLOCK_BYTES * (1 + random.below(4) as usize)];
            match random.below(12) {
                0..5 => drop(object.write(random.below(9000), &bytes).unwrap()),
                5..8 => {
                    let version = object.write_durable(random.below(9000), &bytes).unwrap();
                    safe.push((device.asked(), object.id(), version));
                }
                8 => {
                    object.sync().unwrap();
                    safe.push((device.asked(), object.id(), newest));
                }
                9 => store.sync().unwrap(),
                10 => {
                    let other = store.create(Kind::Direct).unwrap();
                    other.write(0, &bytes).unwrap();
                    other.sync().unwrap();
                }
                _ if random.below(4) == 0 => {
                    // As a process leaves it that was killed.
                    store.sync().unwrap();
                    drop((object, store));
                    store = Store::open(device.clone()).unwrap();
                }
                _ => drop(store.clean(&Keep { newest: 3, ..Keep::default() }).unwrap()),
            }
        }
        for _ in 0..8 {
            let calls = begin + random.below((device.asked() - begin) as u64 + 1) as usize;
            let text = format!("seed {seed}, call {calls}");
            let crashed = Recorder::from(DEVICE_BYTES, device.crash(calls, random));
            let again = Store::open(crashed).unwrap();
            for id in &ids {
                let expected = safe.iter().filter(|(call, of, _)| call <= &calls && of == id).map(|safe| safe.2).max();
                match again.versioned(*id).and_then(|object| object.newest()) {
                    Ok(newest) => assert!(Some(newest.version) >= expected, "{text}, object {id}: {newest:?}"),
                    Err(Error::NoObject) if expected.is_none() => {}
                    Err(error) => panic!("{text}, object {id}: {error}"),
                }
            }
        }
    }
}

/// The same, where some commit while others sync.
#[test]
fn no_torn_commit_is_called_damaged_beside_syncs() {
    let seeds: u64 = std::env::var("WEFT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let random = &mut Random::new(seed + 1);
        let device = Recorder::new(DEVICE_BYTES);
        let checksums = BOTH[random.below(2) as usize];
        let store = Store::format(device.clone(), Format { region_shift: 22, checksums, ..Format::default() }).unwrap();
        let begin = device.asked();
        let ids = [(); 3].map(|()| store.create_versioned().unwrap().id());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers = ids.map(|id| {
                let (store, seed) = (&store, random.next());
                scope.spawn(move || {
                    let (object, random) = (store.versioned(id).unwrap(), &mut Random::new(seed));
                    for number in 0..25 {
                        let bytes = vec![number; BLOCK_BYTES * (1 + random.below(4) as usize)];
                        object.write(random.below(9000), &bytes).unwrap();
                    }
                })
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    store.sync().unwrap();
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
        });
        for _ in 0..12 {
            let calls = begin + random.below((device.asked() - begin) as u64 + 1) as usize;
            let again = Store::open(Recorder::from(DEVICE_BYTES, device.crash(calls, random))).unwrap();
            for id in ids {
                let read = again.versioned(id).and_then(|object| object.newest());
                assert!(matches!(read, Ok(_) | Err(Error::NoObject)), "seed {seed}, call {calls}, {id}: {read:?}");
            }
        }
    }
}
