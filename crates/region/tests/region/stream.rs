//! Reads that come piece by piece, from files that the kernel can read without waiting for them.

use crate::recorder::{BOTH, Random};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_region::{Checksums, Error, FileDevice, Format, Kind, Object, Store};
use weft_sys::ring::SharedSlot;

const DEVICE_BYTES: u64 = 64 << 20;
const OBJECT_BYTES: u64 = 3 << 20;
/// More than there are slots of one device.
const MANY: usize = 40;

/// A store in a file of which nothing is left afterwards, and the file.
fn store(name: &str, checksums: Checksums) -> (Store, std::fs::File) {
    let path = std::env::temp_dir().join(format!("weft-region-stream-{name}-{}", std::process::id()));
    let device = FileDevice::create(&path, DEVICE_BYTES).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (Store::format(Arc::new(device), Format { region_shift: 30, checksums, ..Format::default() }).unwrap(), file)
}

/// Whether the kernel can begin reads of such files.
fn can_stream(store: &Store, object: &Object) -> bool {
    let can = store.stream(object, 0, 1).is_some();
    if !can {
        println!("skipped: the kernel reads this file only when it is waited for");
    }
    can
}

/// All that a stream has, settled now and then.
fn streamed(store: &Store, object: &Object, offset: u64, bytes: u64, random: &mut Random) -> Result<Vec<u8>, Error> {
    let (mut stream, mut found) = (store.stream(object, offset, bytes).unwrap(), Vec::new());
    while stream.advance()? {
        found.extend_from_slice(stream.bytes());
        if random.below(3) == 0 {
            stream.settle();
            assert!(found.ends_with(stream.bytes()) && !stream.bytes().is_empty());
        }
    }
    assert!(stream.bytes().is_empty() && !stream.advance().unwrap());
    Ok(found)
}

#[test]
fn a_stream_has_what_the_object_has() {
    for (seed, checksums) in (0..6).flat_map(|seed| BOTH.map(|checksums| (seed, checksums))) {
        let ((store, _), mut random) = (store("model", checksums), Random::new(seed + 7));
        let object = store.create(Kind::Direct).unwrap();
        if !can_stream(&store, &object) {
            return;
        }
        let mut model = Vec::new();
        for step in 0..40u64 {
            let offset = usize::try_from(random.below(OBJECT_BYTES)).unwrap();
            // Blocks that lie apart, now and then so many that a slot is filled from more places than a ring takes.
            let (count, bytes) = if random.below(3) == 0 { (30, 4096) } else { (1, random.below(600_000)) };
            for number in 0..count {
                let offset = if count > 1 { (offset / 4096 + number * 2) * 4096 } else { offset };
                let bytes = vec![u8::try_from(step % 250 + 1).unwrap(); usize::try_from(bytes).unwrap()];
                object.write(offset as u64, &bytes).unwrap();
                model.resize(model.len().max(offset + bytes.len()), 0);
                model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            match random.below(6) {
                0 => {
                    let size = random.below(OBJECT_BYTES);
                    object.truncate(size).unwrap();
                    model.resize(usize::try_from(size).unwrap(), 0);
                }
                1 => object.sync().unwrap(),
                _ => {}
            }
            let (from, count) = (random.below(OBJECT_BYTES), random.below(OBJECT_BYTES));
            let found = streamed(&store, &object, from, count, &mut random).unwrap();
            let at = |place: u64| model.get(usize::try_from(place).unwrap()).copied().unwrap_or(0);
            let wrong = (from..from + count).zip(&found).find(|(place, byte)| at(*place) != **byte);
            assert_eq!((found.len() as u64, wrong), (count, None), "{checksums:?}, seed {seed}, step {step}");
        }
    }
}

/// Blocks that are on their way to a reader are nobody else's before they have come, and then at once.
#[test]
fn what_is_read_is_given_to_nobody_until_it_was_and_no_longer() {
    let (store, _) = store("gate", Checksums::Metadata);
    let object = store.create(Kind::Direct).unwrap();
    if !can_stream(&store, &object) {
        return;
    }
    object.write(0, &vec![7; OBJECT_BYTES as usize]).unwrap();
    store.sync().unwrap();
    let mut stream = store.stream(&object, 0, OBJECT_BYTES).unwrap();
    assert!(stream.advance().unwrap());
    let is_free = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.remove(object.id()).unwrap();
            store.sync().unwrap();
            is_free.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!is_free.load(Ordering::Acquire), "while others may be on their way");
        stream.settle();
        while !is_free.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    assert!(stream.bytes().iter().all(|byte| *byte == 7), "what has come stays");
    let rest = std::iter::repeat_with(|| stream.advance()).find(|more| !matches!(more, Ok(true)));
    assert!(matches!(rest, Some(Err(Error::NoObject))), "no more is read of an object that was removed");
}

/// A device that has no bytes any more from the middle of an object on.
#[test]
fn an_error_in_the_middle_comes_behind_what_was_read_and_takes_no_slot() {
    let (store, file) = store("shrunk", Checksums::Metadata);
    let object = store.create(Kind::Direct).unwrap();
    if !can_stream(&store, &object) {
        return;
    }
    // The middle of the device is in the middle of it.
    let bytes = DEVICE_BYTES / 4 * 3;
    let piece = vec![3; 1 << 20];
    (0..bytes >> 20).for_each(|number| object.write(number << 20, &piece).unwrap());
    store.sync().unwrap();
    file.set_len(DEVICE_BYTES / 2).unwrap();
    for round in 0..MANY {
        // Of what is begun together, all fails, or the last alone.
        let (first, mut count) = (round as u64 % 2 * (256 << 10), 0);
        let mut stream = store.stream(&object, first, bytes - first).unwrap();
        let error = loop {
            match stream.advance() {
                Ok(true) => count += stream.bytes().len(),
                Ok(false) => panic!("all of it"),
                Err(error) => break error,
            }
            assert!(stream.bytes().iter().all(|byte| *byte == 3), "round {round}");
        };
        assert!(count > 8 << 20 && error.to_string().contains("it has become smaller"), "{count}, {error}");
    }
    // Nobody who gives up in the middle has any for good.
    (0..MANY).for_each(|_| assert!(store.stream(&object, 0, 4 << 20).unwrap().advance().unwrap()));
    let found = streamed(&store, &object, 0, 4 << 20, &mut Random::new(1)).unwrap();
    assert!(found == vec![3; 4 << 20], "and no error of another");
    file.set_len(DEVICE_BYTES).unwrap();
}

#[test]
fn readers_that_stay_have_a_bounded_number_of_slots() {
    let (store, _) = store("many", Checksums::Metadata);
    let object = store.create(Kind::Direct).unwrap();
    if !can_stream(&store, &object) {
        return;
    }
    let streams: Vec<_> = (0..MANY).map_while(|_| store.stream(&object, 0, 1)).collect();
    assert!((1..MANY).contains(&streams.len()), "{}", streams.len());
    drop(streams);
    assert!(store.stream(&object, 0, 1).is_some());
}

/// As what moves pieces on has them, a while after the stream has gone on.
#[test]
fn pieces_that_are_shared_are_nobody_elses_for_so_long() {
    let (store, _) = store("shared", Checksums::Metadata);
    let object = store.create(Kind::Direct).unwrap();
    if !can_stream(&store, &object) {
        return;
    }
    object.write(0, &vec![7; OBJECT_BYTES as usize]).unwrap();
    store.sync().unwrap();
    let free = || (0..MANY).map_while(|_| store.stream(&object, 0, 1)).collect::<Vec<_>>().len();
    let all = free();
    for (first, bytes) in [(0, OBJECT_BYTES), (4097, OBJECT_BYTES - 5000)] {
        let (mut stream, mut kept, mut count) = (store.stream(&object, first, bytes).unwrap(), VecDeque::new(), 0);
        while stream.advance().unwrap() {
            let length = stream.bytes().len();
            assert!(stream.bytes().iter().all(|byte| *byte == 7));
            let (slot, range) = stream.share().unwrap();
            assert!(range.len() == length && range.end <= slot.range().len());
            assert!(Some(slot.page()) == stream.page().as_ref());
            assert!(stream.bytes().is_empty() && kept.iter().all(|other: &SharedSlot| other.range() != slot.range()));
            count += length;
            kept.push_back(slot);
            kept.drain(..kept.len().saturating_sub(stream.shared_max()));
        }
        assert_eq!(count as u64, bytes);
        // It goes, and what is shared of it stays.
        drop(stream);
        assert!(!kept.is_empty());
        assert_eq!(free(), all - 1, "its ring is lent to nobody");
        drop(kept);
        assert_eq!(free(), all);
    }
    let mut stream = store.stream(&object, 0, OBJECT_BYTES).unwrap();
    let kept = stream.advance().unwrap().then(|| stream.share()).flatten();
    stream.settle();
    store.remove(object.id()).unwrap();
    store.sync().unwrap();
    assert!(kept.is_some(), "who shares a piece keeps nobody from blocks");
}

/// Readers beside others who remove objects and write new ones over their blocks.
#[test]
fn a_stream_never_has_what_another_object_had() {
    let (store, _) = store("churn", Checksums::Metadata);
    let is_done = AtomicBool::new(false);
    let first = store.create(Kind::Direct).unwrap();
    if !can_stream(&store, &first) {
        return;
    }
    let current = std::sync::Mutex::new((1u8, first));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 2..200u8 {
                let object = store.create(Kind::Direct).unwrap();
                object.write(0, &vec![number; OBJECT_BYTES as usize]).unwrap();
                let (_, old) = std::mem::replace(&mut *current.lock().unwrap(), (number, object));
                store.remove(old.id()).unwrap();
                store.sync().unwrap();
            }
            is_done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            let (number, object) = current.lock().unwrap().clone();
            let Some(mut stream) = store.stream(&object, 0, OBJECT_BYTES) else { continue };
            while let Ok(true) = stream.advance() {
                let other = stream.bytes().iter().find(|byte| **byte != number && **byte != 0);
                assert_eq!(other, None, "of object {number}");
            }
        }
    });
}
