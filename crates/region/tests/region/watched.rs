//! The cleaner of versions, seen from the device: what is written meanwhile, and how much room it takes.

use crate::recorder::{Image, Random, Recorder};
use crate::together::{block_of, is_in_order, mapped};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_region::testing::Watched;
use weft_region::{Device, Format, Keep, SendOptions, Store, Versioned};

const BLOCK: u64 = 4096;

fn write(object: &Versioned, block: u64, count: usize, tag: u64) {
    object.write(block * BLOCK, &block_of(tag).repeat(count)).unwrap();
}

type AtFlush = Box<dyn FnOnce() + Send>;

/// The next cleaner takes it away.
#[test]
fn what_is_written_while_a_cleaner_looks_is_not_passed_over_by_the_next() {
    let work: Arc<Mutex<Option<AtFlush>>> = Arc::default();
    let next = Arc::clone(&work);
    let at_flush = move || {
        let work = next.lock().unwrap().take();
        work.into_iter().for_each(|work| work());
    };
    let device = Watched::new(Recorder::new(32 << 20), at_flush);
    let store = Store::format(device, Format { region_shift: 20, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    write(&object, 0, 1, 1);
    let writer = object.clone();
    // While what the index is to have is brought there.
    let write = move || std::thread::spawn(move || write(&writer, 0, 1, 2)).join().unwrap();
    *work.lock().unwrap() = Some(Box::new(write));
    assert_eq!(object.clean(&Keep::default()).unwrap().versions, 0);
    assert_eq!(object.newest().unwrap().version, 2);
    assert_eq!(store.clean(&Keep::default()).unwrap().versions, 1);
    assert_eq!(mapped(&store, object.id()), 1 + 2);
    is_in_order(&store);
}

const COMMITS: u64 = 2000;

fn blocks_free(store: &Store) -> u64 {
    store.usage().free / BLOCK
}

/// The fewest bytes that were free at a flush.
type LeastFree = Arc<AtomicU64>;

/// Small commits, and something that leaves so many blocks free.
fn nearly_full(free: u64) -> (LeastFree, Store, Versioned, u64) {
    let (least_free, recorder) = (LeastFree::default(), Recorder::sparse(64 << 20, Image::new()));
    let (least, device) = (Arc::clone(&least_free), Arc::clone(&recorder));
    let at_flush = move || {
        let free = device.host_space().unwrap().free;
        least.fetch_min(free, Ordering::Relaxed);
    };
    let device = Watched::new(recorder, at_flush);
    let store = Store::format_sparse(device, Format { region_shift: 30, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    let mut random = Random::new(3);
    let mut blocks: Vec<u64> = (0..COMMITS).collect();
    blocks.sort_by_cached_key(|_| random.next());
    blocks.into_iter().for_each(|block| write(&object, block, 1, block));
    let filler = store.create_versioned().unwrap();
    // What is mapped ahead is free then, and the index is there.
    store.clean(&Keep { newest: u64::MAX, ..Keep::default() }).unwrap();
    while blocks_free(&store) > free {
        let count = (blocks_free(&store) - free).min(1000);
        write(&filler, filler.newest().unwrap().size / BLOCK, usize::try_from(count).unwrap(), 7);
        store.clean(&Keep { newest: u64::MAX, ..Keep::default() }).unwrap();
    }
    (least_free, store, object, filler.id())
}

/// What is moved takes room before it gives any: it leaves most of what is free.
#[test]
fn small_commits_are_put_together_where_little_is_free() {
    let (least_free, store, object, _) = nearly_full(800);
    let before = blocks_free(&store);
    least_free.store(u64::MAX, Ordering::Relaxed);
    store.clean(&Keep::default()).unwrap();
    let least = least_free.load(Ordering::Relaxed) / BLOCK;
    assert!(least > before / 3, "{least} blocks of {before} were free");
    assert!(blocks_free(&store) > before + COMMITS / 4 * 3, "{} after {before}", blocks_free(&store));
    check(&store, &object);
}

fn check(store: &Store, object: &Versioned) {
    let mut found = vec![0; usize::try_from(COMMITS * BLOCK).unwrap()];
    object.read(0, &mut found).unwrap();
    assert!((0..).zip(found.chunks(BLOCK as usize)).all(|(block, bytes)| bytes == block_of(block)));
    is_in_order(store);
}

/// What there was no room for is done when there is.
#[test]
fn small_commits_that_there_was_no_room_for_are_put_together_later() {
    let (_, store, object, filler) = nearly_full(110);
    store.clean(&Keep::default()).unwrap();
    assert!(blocks_free(&store) < COMMITS / 2, "{}", blocks_free(&store));
    assert!(store.remove(filler).unwrap());
    store.sync().unwrap();
    let before = blocks_free(&store);
    for _ in 0..2 {
        store.clean(&Keep::default()).unwrap();
    }
    assert!(blocks_free(&store) > before + COMMITS / 4 * 3, "{} after {before}", blocks_free(&store));
    check(&store, &object);
}

/// An age that goes back before all time is that of all versions.
#[test]
fn what_is_younger_than_any_age_is_kept() {
    let store = Store::format(Recorder::new(32 << 20), Format { region_shift: 20, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    (0..3).for_each(|tag| write(&object, 0, 1, tag));
    let versions = |age| object.clean(&Keep { younger_than: Some(age), ..Keep::default() }).unwrap().versions;
    assert_eq!(versions(Duration::MAX), 0);
    assert_eq!(versions(Duration::ZERO), 2);
}

/// A commit that cannot be read stays as it is, and the others need not.
#[test]
fn small_commits_are_put_together_beside_one_that_cannot_be_read() {
    let device = Recorder::sparse(64 << 20, Image::new());
    let store = Store::format_sparse(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    (0..100).for_each(|block| write(&object, block, 1, block));
    // Behind the object's own block and one that is not used; in a sparse file a byte lies at its address.
    device.lose((object.id() << 30) / BLOCK + 2 + 3 * 2);
    let cleaned = store.clean(&Keep::default()).unwrap();
    assert_eq!((cleaned.versions, cleaned.moved_blocks), (99, 98));
    device.repair();
    let mut found = vec![0; 100 * BLOCK as usize];
    object.read(0, &mut found).unwrap();
    assert!((0..).zip(found.chunks(BLOCK as usize)).all(|(block, bytes)| bytes == block_of(block)));
    is_in_order(&store);
}

/// Cleans while it is written to, after something new.
struct Cleaning<'a> {
    store: &'a Store,
    objects: &'a [Versioned],
    freed: Vec<u64>,
}

impl io::Write for Cleaning<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.objects.iter().for_each(|object| write(object, 0, 1, 1));
        let cleaned = self.store.clean_some(&Keep::default(), u64::MAX).unwrap();
        self.freed.push(cleaned.freed_blocks);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The cleaner of an object waits while it is sent; who works ahead cleans the others.
#[test]
fn who_works_ahead_does_not_wait_for_what_is_sent() {
    let store = Store::format(Recorder::new(32 << 20), Format { region_shift: 20, ..Format::default() }).unwrap();
    let objects: Vec<Versioned> = (0..2).map(|_| store.create_versioned().unwrap()).collect();
    objects.iter().for_each(|object| write(object, 0, 10, 0));
    store.clean(&Keep::default()).unwrap();
    let mut into = Cleaning { store: &store, objects: &objects, freed: Vec::new() };
    let options = SendOptions { objects: vec![objects[0].id()], ..SendOptions::default() };
    store.send(&options, &mut into, &mut |_| {}).unwrap();
    let freed = into.freed;
    // A version of one of them each time; in the end, of both, and those that were passed over.
    assert!(freed.iter().filter(|freed| **freed == 2).count() > 5, "{freed:?}");
    assert_eq!(freed.iter().sum::<u64>(), 4 * freed.len() as u64, "{freed:?}");
    is_in_order(&store);
}
