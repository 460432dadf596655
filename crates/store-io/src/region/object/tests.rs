//! Files over several small regions, against a plain model, on devices that become full.

mod put;
mod sent;

use super::*;
use crate::region::RegionStore;
use crate::region::tests::{BYTES, Ground, object, read, write};
use crate::store::ObjectStore;
use weft_protocol::InodeNumber;
use weft_region::{FileDevice, Format, Kind, Store};

const KIB: u64 = 1 << 10;
/// More than there are objects.
const IDS: u64 = 5000;

fn format(ground: &Ground, region_shift: u8) {
    std::fs::File::create(&ground.0).unwrap().set_len(BYTES).unwrap();
    let device = Arc::new(FileDevice::open(&ground.0).unwrap());
    Store::format(device, Format { region_shift, ..Format::default() }).unwrap().close().unwrap();
}

/// What the device has now, were the power to fail.
fn as_it_is(ground: &Ground, look: impl FnOnce(&Store)) {
    let copy = ground.0.with_extension("copy");
    std::fs::copy(&ground.0, &copy).unwrap();
    let store = Store::open(Arc::new(FileDevice::open(&copy).unwrap())).unwrap();
    assert_eq!(store.check().unwrap().told(), Vec::<String>::new());
    look(&store);
    drop(store);
    std::fs::remove_file(&copy).unwrap();
}

/// A file as its parts' super blocks tell it: where each begins, and their bytes.
fn told(store: &Store, name: Name) -> BTreeMap<u64, Vec<u8>> {
    let objects = (1..IDS).filter(|id| store.exists(*id).unwrap()).map(|id| store.object(id, Kind::Direct).unwrap());
    let parts = objects.map(|object| (FilePart::of(object.owner()).unwrap(), object));
    parts
        .filter(|(part, _)| *part == part_of(name, part.start))
        .map(|(part, object)| {
            let mut bytes = vec![0; usize::try_from(object.stat().unwrap().size).unwrap()];
            assert_eq!(object.read(0, &mut bytes).unwrap(), bytes.len());
            (part.start, bytes)
        })
        .collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// A place in the first regions, now and then at the end of one, or next to it.
    fn place(&mut self, region: u64) -> u64 {
        let any = self.below(7 * region);
        if self.below(2) == 0 {
            return any;
        }
        let end = (self.below(6) + 1) * (region - 4 * KIB);
        [end, end - 1, end + 1, end - 4 * KIB, end + 4 * KIB][usize::try_from(self.below(5)).unwrap()]
    }
}

/// A write that found no room did a part of it: what is there is taken over, if it can have been that.
fn take_over(handle: &RegionObject, model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let length = usize::try_from(handle.stat().unwrap().size).unwrap();
    assert!(length == model.len() || (model.len().max(at)..at + bytes.len()).contains(&length));
    let found = read(handle, 0, u32::try_from(length).unwrap());
    model.resize(length, 0);
    for (place, (was, is)) in model.iter().zip(&found).enumerate() {
        let new = place.checked_sub(at).and_then(|place| bytes.get(place));
        assert!(was == is || new == Some(is), "byte {place}");
    }
    *model = found;
}

/// On a device with so much room. How many writes found none.
fn check_model(seed: u64, shift: u8, room: u64) -> u64 {
    let (ground, mut random) = (Ground::new(&format!("parts-{seed}")), Random(seed * 77 + 5));
    format(&ground, shift);
    let (store, region) = (ground.store(), 1u64 << shift);
    let empty = store.space().unwrap().free;
    let full = store.open(InodeNumber::ROOT, object(0), true).unwrap();
    (0..(empty.saturating_sub(room)) >> 16).for_each(|part| write(&*full, part << 16, &[1; 1 << 16]).unwrap());
    let mut models: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut refused = 0;
    for step in 0..120u64 {
        let which = random.below(3) + 1;
        let name = (InodeNumber::ROOT, object(which));
        let opened = store.open(name.0, name.1, true).unwrap();
        let handle: &RegionObject = &store.object_at_hand(name);
        let model = models.entry(which).or_default();
        let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); usize::try_from(random.below(2 * region)).unwrap()];
        let mut wrote = |done: Result<()>, model: &mut Vec<u8>, at: usize| match done {
            Ok(()) => {
                model.resize(model.len().max(if bytes.is_empty() { 0 } else { at + bytes.len() }), 0);
                let end = (at + bytes.len()).min(model.len());
                model[at.min(end)..end].copy_from_slice(&bytes);
            }
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                refused += 1;
                take_over(handle, model, at, &bytes);
            }
        };
        match random.below(8) {
            0 | 1 => {
                let length = random.place(region);
                assert_eq!(opened.truncate(length).unwrap().size, length);
                model.resize(usize::try_from(length).unwrap(), 0);
            }
            2 => wrote(handle.append(&bytes), model, model.len()),
            3 if random.below(4) == 0 => {
                assert_eq!(store.remove(name.0, name.1), Ok(true));
                assert_eq!(write(&*opened, 0, b"late"), Err(Error::NoObject));
                assert_eq!(write(&*opened, 3 * region, b"late"), Err(Error::NoObject));
                assert_eq!(opened.truncate(3 * region).err(), Some(Error::NoObject));
                assert_eq!(opened.sync().err(), Some(Error::NoObject));
                models.remove(&which);
            }
            4 if random.below(4) == 0 && opened.sync().is_ok() => as_it_is(&ground, |copy| {
                let told = told(copy, name);
                let (last, bytes) = told.last_key_value().unwrap();
                assert_eq!(last + bytes.len() as u64, model.len() as u64, "where the last part ends");
                let mut found = vec![0; model.len()];
                for (start, bytes) in &told {
                    let start = usize::try_from(*start).unwrap();
                    found[start..start + bytes.len()].copy_from_slice(bytes);
                }
                assert!(found == *model, "seed {seed}, step {step}");
            }),
            _ => {
                let place = random.place(region);
                wrote(write(&*opened, place, &bytes), model, usize::try_from(place).unwrap());
            }
        }
        if let Some(model) = models.get(&which) {
            let handle = store.open(name.0, name.1, false).unwrap();
            assert_eq!(handle.stat().unwrap().size, model.len() as u64, "seed {seed}, step {step}");
            let some = usize::try_from(random.below(model.len() as u64 + 1)).unwrap();
            let found = read(&*handle, some as u64, u32::MAX);
            assert!(found == model[some..], "seed {seed}, step {step}");
        }
        assert_eq!(store.space().unwrap().objects, models.len() as u64 + 1);
    }
    as_it_is(&ground, |_| {});
    for which in models.keys().chain(&[0]) {
        assert_eq!(store.remove(InodeNumber::ROOT, object(*which)), Ok(true));
    }
    store.settle();
    assert!(empty - store.space().unwrap().free <= 8 * KIB, "but for the store's own record");
    store.close().unwrap();
    refused
}

impl RegionStore {
    fn object_at_hand(&self, name: Name) -> Arc<RegionObject> {
        Arc::clone(&lock(self.names_with(name.1))[&name])
    }
}

#[test]
fn a_file_over_several_regions_is_as_a_model_has_it() {
    assert_eq!((0..4).map(|seed| check_model(seed, 16, u64::MAX)).sum::<u64>(), 0);
    assert!((10..14).map(|seed| check_model(seed, 18, 2 << 20)).sum::<u64>() > 50, "a full device");
    assert_eq!(check_model(20, 20, u64::MAX), 0);
}

#[test]
fn appends_of_several_threads_go_over_parts_whole() {
    const RECORD: usize = 5000;
    let ground = Ground::new("appends");
    format(&ground, 16);
    let store = ground.store();
    let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
    let appended = |thread: u8| {
        for number in 0..50u8 {
            let WritePlan::Blocks { object, offset: None } = handle.append_plan(RECORD as u32).unwrap() else {
                panic!("not at the end")
            };
            object.append(&[thread * 50 + number; RECORD]).unwrap();
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || appended(thread)))));
    assert_eq!(handle.stat().unwrap().size, 200 * RECORD as u64);
    let found = read(&*handle, 0, u32::MAX);
    let mut records: Vec<u8> = found.chunks(RECORD).map(|record| record[0]).collect();
    assert!(found.chunks(RECORD).zip(&records).all(|(record, first)| record.iter().all(|byte| byte == first)));
    records.sort_unstable();
    assert!(records.into_iter().eq(0..200));
}

#[test]
fn what_is_written_while_a_file_goes_leaves_nothing() {
    let ground = Ground::new("goes");
    format(&ground, 16);
    let store = ground.store();
    let empty = store.space().unwrap().free;
    for _ in 0..50 {
        let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
        let written = || (0..100u64).take_while(|part| write(&*handle, part << 16, &[1; 9]).is_ok()).count();
        let [one, other] = std::thread::scope(|scope| {
            let writing = [scope.spawn(written), scope.spawn(written)];
            std::thread::yield_now();
            assert_eq!(store.remove(InodeNumber::ROOT, object(1)), Ok(true));
            writing.map(|thread| thread.join().unwrap())
        });
        assert!(one <= 100 && other <= 100);
        assert_eq!(handle.stat().err(), Some(Error::NoObject));
    }
    store.settle();
    assert!(empty - store.space().unwrap().free <= 8 * KIB);
    assert!((1..IDS).all(|id| !store.regions.store.exists(id).unwrap()));
}

#[test]
fn a_part_is_made_when_it_is_written_and_at_a_sync_the_last_one() {
    let ground = Ground::new("made");
    format(&ground, 16);
    let store = ground.store();
    let (name, capacity) = ((InodeNumber::ROOT, object(1)), 60 * KIB);
    let handle = store.open(name.0, name.1, true).unwrap();
    let parts = |expected: &[u64]| {
        store.regions.store.sync().unwrap();
        as_it_is(&ground, |copy| assert!(told(copy, name).into_keys().eq(expected.iter().map(|part| part * capacity))));
    };
    handle.truncate(1 << 50).unwrap();
    assert_eq!(read(&*handle, 1 << 49, 5000), [0; 5000]);
    parts(&[0]);
    handle.truncate(9 * capacity).unwrap();
    write(&*handle, 4 * capacity - 1, b"ab").unwrap();
    parts(&[0, 3, 4]);
    handle.sync().unwrap();
    parts(&[0, 3, 4, 8]);
    handle.truncate(4 * capacity).unwrap();
    parts(&[0, 3]);
    handle.truncate(2 * capacity + 1).unwrap();
    handle.sync().unwrap();
    parts(&[0, 2]);
    handle.truncate(capacity).unwrap();
    parts(&[0]);
}
