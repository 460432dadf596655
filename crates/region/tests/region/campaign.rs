//! Random damage to everything that is on the device: what is read is right or an error, nothing that was synced is
//! lost silently, and a scrub names what was found.
//!
//! `WEFT_DAMAGE` is the number of bit flips, and of block corruptions (100 by default; `make test-long` takes 10,000).
//! docs/formats/region-damage.md has the table that it prints.

use crate::recorder::{BOTH, Image, Random, Recorder};
use std::collections::BTreeMap;
use weft_region::{BLOCK_BYTES, Checksums, Error, Format, Kind, Result, Shadow, Store};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where the parts of this store begin, blocks: see `Geometry::of`.
const LOG_START: u64 = 16;
const MAP_START: u64 = LOG_START + 256;
const DATA_START: u64 = MAP_START + 1024;
const BLOCKS: usize = 3;

/// A store, and what it has for certain.
struct World {
    checksums: Checksums,
    is_closed: bool,
    image: Image,
    /// Objects in direct mode, and those that keep versions: identifiers, and tags of contents.
    direct: BTreeMap<u64, u64>,
    versions: BTreeMap<u64, Vec<(u64, u64)>>,
    parts: BTreeMap<&'static str, Vec<u64>>,
}

/// Bytes of which each block says what it is of.
fn bytes_of(tag: u64) -> Vec<u8> {
    let word = |at: u64| ((0xda7a << 48) | (tag << 16) | (at / 512)).to_le_bytes();
    (0..(BLOCKS * BLOCK_BYTES / 8) as u64).flat_map(word).collect()
}

fn world(checksums: Checksums, is_closed: bool) -> World {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    let mut direct: BTreeMap<u64, u64> = BTreeMap::new();
    let mut versions: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let kept = [(); 3].map(|()| store.create_versioned().unwrap());
    let mut tag = 0;
    let mut fill = |count: u64| {
        for _ in 0..count {
            tag += 1;
            let object = store.create(Kind::Direct).unwrap();
            object.write(0, &bytes_of(tag)).unwrap();
            object.sync().unwrap();
            direct.insert(object.id(), tag);
            for object in &kept {
                tag += 1;
                let version = object.write_durable(0, &bytes_of(tag)).unwrap();
                versions.entry(object.id()).or_default().push((version, tag));
            }
        }
    };
    fill(20);
    store.close().unwrap();
    fill(15);
    store.remove(*direct.keys().nth(3).unwrap()).unwrap();
    direct.pop_first_at(3);
    store.sync().unwrap();
    if is_closed {
        store.close().unwrap();
    }
    let image = device.image();
    let mut parts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut blocks: Vec<u64> = image.keys().copied().collect();
    blocks.sort_unstable();
    for block in blocks {
        let bytes = &image[&block];
        if block >= LOG_START && bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        parts.entry(part_of(block, bytes, &direct)).or_default().push(block);
    }
    World { checksums, is_closed, image, direct, versions, parts }
}

trait PopAt {
    fn pop_first_at(&mut self, number: usize);
}

impl PopAt for BTreeMap<u64, u64> {
    fn pop_first_at(&mut self, number: usize) {
        let key = self.keys().nth(number).copied().unwrap();
        self.remove(&key);
    }
}

fn part_of(block: u64, bytes: &[u8], direct: &BTreeMap<u64, u64>) -> &'static str {
    let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    match block {
        0 | 1 => "superblock",
        LOG_START..MAP_START if bytes[8..16] == [0; 8] => "log, blank",
        LOG_START..MAP_START => "log, records",
        MAP_START..DATA_START => "map",
        _ if bytes.starts_with(b"WEFTOBJ\0") => "superblock of an object",
        _ if bytes[16..].starts_with(b"WEFTCMT\0") => "commit",
        _ if bytes.starts_with(b"WEFTIDS\0") => "identifiers",
        _ if word >> 48 == 0xda7a && direct.values().any(|tag| *tag == word >> 16 & 0xffff_ffff) => "data",
        _ if word >> 48 == 0xda7a => "data of versions",
        _ => "index",
    }
}

/// What damage did, by the worst of what was read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    /// All is right.
    Nothing,
    /// Bytes of the object's own block are wrong, in a store without checksums of data.
    OwnBytes,
    Error,
    Refused,
}

/// A bit or a block, of what part, in which mode, live or closed.
type Row = (bool, &'static str, String, &'static str);

struct Case<'a> {
    world: &'a World,
    part: &'static str,
    /// What was in the block before.
    before: &'a [u8],
    text: String,
}

impl Case<'_> {
    /// Compares what was read. In a store without checksums of data the damaged block itself may be wrong.
    fn compare(&self, found: &[u8], tag: u64, what: &str) -> Outcome {
        let expected = bytes_of(tag);
        if found == expected {
            return Outcome::Nothing;
        }
        let wrong = found.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES)).filter(|(one, other)| one != other);
        let is_own = wrong.map(|(_, expected)| expected).all(|expected| expected == self.before);
        assert!(
            is_own && self.world.checksums == Checksums::Metadata && self.part.starts_with("data"),
            "{}: {what} is wrong",
            self.text
        );
        Outcome::OwnBytes
    }

    fn answer(&self, read: Result<Outcome>, what: &str) -> Outcome {
        match read {
            Ok(outcome) => outcome,
            Err(Error::Damaged(_) | Error::Device { .. }) => Outcome::Error,
            Err(error) => panic!("{}: {what}: {error}", self.text),
        }
    }

    fn read_all(&self, store: &Store) -> Outcome {
        let mut worst = Outcome::Nothing;
        for (id, tag) in &self.world.direct {
            let what = format!("object {id}");
            let read = || {
                let mut found = vec![0; BLOCKS * BLOCK_BYTES];
                let count = store.object(*id, Kind::Direct)?.read(0, &mut found)?;
                assert_eq!(count, found.len(), "{}: size of {what}", self.text);
                Ok(self.compare(&found, *tag, &what))
            };
            worst = worst.max(self.answer(read(), &what));
        }
        for (id, versions) in &self.world.versions {
            worst = worst.max(self.answer(self.read_versions(store, *id, versions), &format!("object {id}")));
        }
        worst
    }

    fn read_versions(&self, store: &Store, id: u64, versions: &[(u64, u64)]) -> Result<Outcome> {
        let object = store.versioned(id)?;
        let listed: Vec<u64> = object.versions(0, usize::MAX)?.iter().map(|stat| stat.version).collect();
        let mut worst = Outcome::Nothing;
        // Also the last one: the store was synced after it.
        let expected: Vec<u64> = versions.iter().map(|(version, _)| *version).collect();
        assert_eq!(listed, expected, "{}: versions of {id}", self.text);
        for (version, tag) in versions {
            let what = format!("object {id}, version {version}");
            let read = || {
                let mut found = vec![0; BLOCKS * BLOCK_BYTES];
                object.at(*version)?.read(0, &mut found)?;
                Ok(self.compare(&found, *tag, &what))
            };
            worst = worst.max(self.answer(read(), &what));
        }
        Ok(worst)
    }
}

fn is_found_by_scrub(device: &std::sync::Arc<Recorder>) -> bool {
    let scrubbed = Store::open_verified(Shadow::new(device.clone())).and_then(|store| {
        let mut scrubbed = store.scrub(&mut |_, _| {})?;
        store.check()?.told().into_iter().for_each(|text| scrubbed.tell(text));
        Ok(scrubbed)
    });
    !scrubbed.is_ok_and(|scrubbed| scrubbed.damaged == 0)
}

/// Damages one block, and looks at what comes of it: that, and whether a scrub finds it.
fn damage(world: &World, is_flip: bool, random: &mut Random) -> (&'static str, Outcome, bool) {
    let pick = |random: &mut Random, count: usize| usize::try_from(random.below(count as u64)).unwrap();
    let (part, blocks) = world.parts.iter().nth(pick(random, world.parts.len())).unwrap();
    let block = blocks[pick(random, blocks.len())];
    let (before, mut image) = (world.image[&block].clone(), world.image.clone());
    let mut after = before.clone();
    let what = if is_flip {
        let bit = pick(random, BLOCK_BYTES * 8);
        after[bit / 8] ^= 1 << (bit % 8);
        format!("bit {bit}")
    } else {
        match random.below(3) {
            0 => {
                after.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
                "other bytes".to_owned()
            }
            1 => {
                after.fill(0);
                "zeros".to_owned()
            }
            _ => {
                let (_, blocks) = world.parts.iter().nth(pick(random, world.parts.len())).unwrap();
                let other = blocks[pick(random, blocks.len())];
                after = world.image[&other].clone();
                format!("block {other}")
            }
        }
    };
    let is_changed = after != before;
    image.insert(block, after);
    let (mode, state) = (world.checksums, if world.is_closed { "closed" } else { "live" });
    let text = format!("{mode}, {state}, {part}, block {block}, {what}");
    let case = Case { world, part, before: &before, text: text.clone() };
    let device = Recorder::from(DEVICE_BYTES, image);
    let is_found = is_found_by_scrub(&device);
    let outcome = match Store::open(device.clone()) {
        Ok(store) => {
            let outcome = case.read_all(&store);
            if outcome == Outcome::Nothing {
                // What is written next makes nothing worse.
                let write = || {
                    let object = store.create(Kind::Direct)?;
                    let is_new = !world.direct.contains_key(&object.id()) && !world.versions.contains_key(&object.id());
                    assert!(is_new, "{text}: object {}", object.id());
                    object.write(0, &bytes_of(9999))?;
                    store.close()
                };
                let written = case.answer(write().map(|()| outcome), "write");
                drop(store);
                assert_eq!(case.read_all(&Store::open(device).unwrap()), outcome, "{text}: written to");
                written
            } else {
                outcome
            }
        }
        Err(Error::Damaged(_) | Error::LogDamaged { .. } | Error::NoStore(_) | Error::OldFormat(_)) => Outcome::Refused,
        Err(error) => panic!("{text}: {error}"),
    };
    let is_documented = match outcome {
        Outcome::Error | Outcome::Refused => true,
        // Data of versions have checksums of their commits.
        Outcome::OwnBytes => *part == "data of versions",
        // In a store with checksums of data some blocks are of before, and nobody's.
        Outcome::Nothing => {
            let is_in_use = *part == "superblock" || world.checksums == Checksums::Metadata;
            let parts = ["superblock", "superblock of an object", "identifiers", "commit"];
            is_changed && !is_flip && is_in_use && parts.contains(part)
        }
    };
    assert!(is_found || !is_documented, "{text}: {outcome:?}, and a scrub does not find it");
    (part, outcome, is_found)
}

#[test]
fn damage_is_an_error_and_never_something_else() {
    let count: u64 = std::env::var("WEFT_DAMAGE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let seed: u64 = std::env::var("WEFT_DAMAGE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let worlds: Vec<World> =
        BOTH.iter().flat_map(|checksums| [false, true].map(|is_closed| world(*checksums, is_closed))).collect();
    let mut table: BTreeMap<Row, BTreeMap<(Outcome, bool), u64>> = BTreeMap::new();
    let mut random = Random::new(seed);
    for is_flip in [true, false] {
        for number in 0..count {
            let world = &worlds[usize::try_from(number).unwrap() % worlds.len()];
            let (part, outcome, is_found) = damage(world, is_flip, &mut random);
            let state = if world.is_closed { "closed" } else { "live" };
            let row = table.entry((is_flip, part, world.checksums.to_string(), state)).or_default();
            *row.entry((outcome, is_found)).or_default() += 1;
        }
    }
    for ((is_flip, part, mode, state), row) in &table {
        let kind = if *is_flip { "flip" } else { "block" };
        let cells: Vec<String> = row
            .iter()
            .map(|((outcome, is_found), count)| {
                format!("{outcome:?}{} {count}", if *is_found { " (scrub)" } else { "" })
            })
            .collect();
        println!("| {kind} | {part} | {mode} | {state} | {} |", cells.join(", "));
    }
}
