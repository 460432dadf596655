//! Damaged region stores: what `weft store check`, `scrub`, `dump` and `repair` say, and what a repair leaves.

use super::Ground;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use weft_region::{FileDevice, Kind, Store};

const BLOCK: usize = 4096;
const VERSIONS: u8 = 6;
/// Objects in direct mode, each synced by itself. The first ones are in the map, the others in the log.
const OBJECTS: u8 = 8;
const IN_MAP: u8 = 4;

/// A store file that was not closed, and what is in it.
struct Damaged {
    ground: Ground,
    whole: Vec<u8>,
    /// Objects in direct mode; the bytes of each are all its number here, from 1 on.
    objects: Vec<String>,
    /// An object with versions; the bytes of each are all its number.
    versioned: String,
}

impl Damaged {
    fn new() -> Self {
        let ground = Ground::new("damage");
        ground.weft(&["store", "format", "store", "--size", "32MiB", "--region", "1GiB", "--checksums", "all"]);
        let store = Store::open(Arc::new(FileDevice::open(&ground.path("store")).expect("there"))).expect("a store");
        let make = |number: u8| {
            let object = store.create(Kind::Direct).expect("made");
            object.write(0, &[number; 2 * BLOCK]).and_then(|()| object.sync()).expect("written");
            object.id().to_string()
        };
        let mut objects: Vec<String> = (1..=IN_MAP).map(make).collect();
        store.close().expect("closed");
        let versioned = store.create_versioned().expect("made");
        for version in 1..=VERSIONS {
            versioned.write_durable(0, &[100 + version; BLOCK]).expect("written");
        }
        objects.extend((IN_MAP + 1..=OBJECTS).map(make));
        let versioned = versioned.id().to_string();
        // Not closed, as after a crash.
        drop(store);
        let whole = fs::read(ground.path("store")).expect("read");
        Self { ground, whole, objects, versioned }
    }

    /// Blocks that fit.
    fn blocks(&self, fits: impl Fn(&[u8]) -> bool) -> Vec<usize> {
        let blocks = self.whole.chunks(BLOCK).enumerate();
        blocks.filter(|(_, bytes)| fits(bytes)).map(|(block, _)| block).collect()
    }

    fn word(&self, at: usize) -> u64 {
        self.whole[at..at + 8].try_into().map(u64::from_le_bytes).expect("eight bytes")
    }

    /// Blocks of the log with records, in the order of these.
    fn records(&self) -> Vec<usize> {
        let block = |at: usize| usize::try_from(self.word(at)).expect("a block");
        let (start, count) = (block(48), block(56));
        let stamp = |block: &usize| self.word(block * BLOCK + 8);
        let mut found: Vec<usize> = (start..start + count).filter(|block| stamp(block) > 0).collect();
        found.sort_unstable_by_key(stamp);
        found
    }

    /// The store with one wrong bit.
    fn flip(&self, block: usize, byte: usize) {
        let mut bytes = self.whole.clone();
        bytes[block * BLOCK + byte] ^= 4;
        fs::write(self.ground.path("store"), bytes).expect("written");
    }

    /// All that a command about the store says, which ends with this code.
    fn says(&self, code: i32, verb: &str, options: &[&str]) -> String {
        let done = self.ground.weft_code(code, &[&["store", verb, "store"], options].concat());
        String::from_utf8([done.stdout, done.stderr].concat()).expect("text")
    }

    fn assert_says(&self, code: i32, verb: &str, options: &[&str], parts: &[&str]) {
        let said = self.says(code, verb, options);
        assert!(parts.iter().all(|part| said.contains(part)), "{verb}: {said}, without one of {parts:?}");
    }

    /// A repair costs this, is done, and leaves a store in order.
    fn repair(&self, cost: &[&str]) {
        let before = fs::read(self.ground.path("store")).expect("read");
        let (asked, done) = ("nothing was changed (repair it with --yes)", "repaired");
        self.assert_says(1, "repair", &[], &[cost, &[asked]].concat());
        assert!(fs::read(self.ground.path("store")).expect("read") == before, "without --yes nothing is written");
        self.assert_says(0, "repair", &["--yes"], &[cost, &[done]].concat());
        self.assert_says(0, "check", &[], &["in order"]);
        self.assert_says(0, "scrub", &[], &["in order"]);
        self.assert_says(0, "repair", &[], &["needs no repair"]);
    }

    /// These objects and versions are as they were written, and the others are not there.
    fn has(&self, objects: Range<u8>, versions: Range<u8>) {
        let get = |id: &str, options: &[&str]| {
            self.ground.command(&[&["store", "get", "store", id], options].concat()).output().expect("weft")
        };
        for (number, id) in (1u8..).zip(&self.objects) {
            let found = get(id, &[]);
            let is_there = objects.contains(&number);
            assert_eq!(found.status.code(), Some(i32::from(!is_there)), "object {number}: {found:?}");
            assert!(found.stdout == [number; 2 * BLOCK] || !is_there, "object {number}");
        }
        for version in 1..=VERSIONS {
            let found = get(&self.versioned, &["--version", &version.to_string()]);
            let is_there = versions.contains(&version);
            assert_eq!(found.status.success(), is_there, "version {version}: {found:?}");
            assert!(found.stdout == [100 + version; BLOCK] || !is_there, "version {version}");
        }
    }
}

#[test]
fn damage_is_named_and_a_repair_loses_what_it_says() {
    let store = Damaged::new();
    store.has(1..OBJECTS + 1, 1..VERSIONS + 1);
    store.assert_says(0, "scrub", &[], &["in order"]);

    // The record of the last object but one.
    let records = store.records();
    let record = records[records.len() - 2];
    let (name, block) = ("damaged: log record ", format!("block {record}"));
    store.flip(record, 600);
    for verb in ["check", "scrub"] {
        store.assert_says(2, verb, &[], &[name, &block, "`weft store repair` says what a repair costs"]);
    }
    store.assert_says(0, "dump", &[], &["1 sectors do not match", "objects as they were before this: damaged: log"]);
    let last = &store.objects[usize::from(OBJECTS) - 1];
    store.repair(&[name, "is lost, 2 records", &format!("or gone: {last}, and others that no readable record names")]);
    store.has(1..OBJECTS - 1, 1..VERSIONS + 1);

    let commits = store.blocks(|bytes| bytes[16..].starts_with(b"WEFTCMT\0"));
    assert_eq!(commits.len(), usize::from(VERSIONS));
    store.flip(commits[3], 700);
    let object = format!("object {}, behind version 3: ", store.versioned);
    store.assert_says(0, "check", &[], &["in order"]);
    store.assert_says(1, "scrub", &[], &["damaged", &object]);
    store.assert_says(0, "dump", &["--scan"], &[&format!("block {}: a super block or commit that is not", commits[3])]);
    let lost = format!("object {}: versions from there on are lost, up to version {VERSIONS}", store.versioned);
    store.repair(&[&object, &lost]);
    store.has(1..OBJECTS + 1, 1..4);

    // The two that were written last: with checksums each writing goes to a new block.
    let mut identifiers = store.blocks(|bytes| bytes.starts_with(b"WEFTIDS\0"));
    identifiers.sort_unstable_by_key(|block| std::cmp::Reverse(store.word(block * BLOCK + 24)));
    for block in identifiers.into_iter().take(2) {
        store.flip(block, 20);
        for verb in ["check", "scrub"] {
            store.assert_says(2, verb, &[], &["damaged: one of the two blocks that say which identifiers"]);
        }
        store.assert_says(0, "dump", &[], &["region 0: "]);
        store.repair(&["which identifiers were given out: it is made anew, and nothing is lost"]);
        store.has(1..OBJECTS + 1, 1..VERSIONS + 1);
    }

    // Of data there is nothing that a repair could do.
    store.flip(store.blocks(|bytes| bytes == [2; BLOCK])[0], 50);
    let place = format!("object {}, byte ", store.objects[1]);
    store.assert_says(0, "check", &[], &["in order"]);
    store.assert_says(1, "scrub", &[], &["damaged", &place]);
    store.assert_says(0, "dump", &[], &[&format!("object {}, ", store.objects[1])]);
    store.assert_says(0, "repair", &["--yes"], &["needs no repair"]);
    assert!(store.ground.weft_fails(2, &["store", "get", "store", &store.objects[1]]).contains(&place));
    store.assert_says(0, "get", &[&store.objects[2], "--output", "third"], &[]);
}
