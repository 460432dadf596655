//! The virtual storage layer against a plain model, also after power failures.

use crate::recorder::{BOTH, Random, Recorder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use weft_region::{BLOCK_BYTES, Checksums, Device, Error, Format, Layer};

const DEVICE_BYTES: u64 = 16 << 20;
const SECTOR: u64 = 512;
/// Where the virtual ranges begin that are used, and their length.
const BASES: [u64; 3] = [0, 1 << 36, (7 << 40) + (1 << 20)];
const SPAN: u64 = 96 * BLOCK_BYTES as u64;

fn format(device: &Arc<Recorder>, checksums: Checksums) -> Layer {
    Layer::format(device.clone(), Format { checksums, ..Format::default() }).unwrap()
}

/// One sector: all that it may read after a power failure, the last one what it reads without.
type Candidates = Vec<u64>;

#[derive(Clone, Default)]
struct Model {
    sectors: BTreeMap<u64, Candidates>,
    /// Updates that belong together: tag, and sectors; kept as long as nobody wrote there again, or synced.
    atomic: Vec<(u64, Vec<u64>)>,
}

impl Model {
    fn set(&mut self, sector: u64, tag: u64) {
        self.sectors.entry(sector).or_insert_with(|| vec![0]).push(tag);
        self.atomic.retain(|(_, sectors)| !sectors.contains(&sector));
    }

    fn synced(&mut self) {
        for candidates in self.sectors.values_mut() {
            candidates.drain(..candidates.len() - 1);
        }
        self.atomic.clear();
    }

    fn now(&self, sector: u64) -> u64 {
        self.sectors.get(&sector).and_then(|candidates| candidates.last()).copied().unwrap_or(0)
    }
}

/// A sector's bytes say where it is and what was written, so that no other sector's can be taken for it.
fn bytes_of(sector: u64, tag: u64) -> Vec<u8> {
    if tag == 0 {
        return vec![0; 512];
    }
    let mut bytes = Vec::with_capacity(512);
    while bytes.len() < 512 {
        bytes.extend_from_slice(&sector.to_le_bytes());
        bytes.extend_from_slice(&tag.to_le_bytes());
    }
    bytes
}

fn tag_of(sector: u64, bytes: &[u8]) -> Option<u64> {
    let tag = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (bytes == bytes_of(sector, tag)).then_some(tag)
}

fn range(random: &mut Random) -> std::ops::Range<u64> {
    let base = BASES[usize::try_from(random.below(3)).unwrap()];
    let start = random.below(SPAN / SECTOR);
    let count = if random.below(4) == 0 { random.below(80) + 1 } else { random.below(9) + 1 };
    let end = (start + count).min(SPAN / SECTOR);
    let whole = BLOCK_BYTES as u64 / SECTOR;
    let round = |sector: u64| sector / whole * whole;
    let (start, end) =
        if random.below(2) == 0 { (round(start), round(end).max(round(start) + whole)) } else { (start, end) };
    base / SECTOR + start..base / SECTOR + end
}

/// What was done, between which of the device's calls.
struct Done {
    from: usize,
    to: usize,
    what: What,
}

enum What {
    Written(Vec<(u64, u64)>, bool),
    Synced,
}

fn step(layer: &Layer, random: &mut Random, tag: u64, closes: bool) -> weft_region::Result<What> {
    match random.below(10) {
        0..=4 => {
            let range = range(random);
            let bytes: Vec<u8> = range.clone().flat_map(|sector| bytes_of(sector, tag)).collect();
            layer.write(range.start * SECTOR, &bytes)?;
            // With checksums a write is one change, if it is not too long.
            let is_atomic = layer.checksums() == Checksums::All;
            Ok(What::Written(range.map(|sector| (sector, tag)).collect(), is_atomic))
        }
        5 => {
            // Several blocks, some of them of each range.
            let whole = BLOCK_BYTES as u64 / SECTOR;
            let ranges: Vec<_> = BASES
                .iter()
                .map(|base| {
                    let start = base / SECTOR + random.below(SPAN / SECTOR / whole - 2) * whole;
                    start..start + whole * (random.below(2) + 1)
                })
                .collect();
            let bytes: Vec<Vec<u8>> =
                ranges.iter().map(|range| range.clone().flat_map(|sector| bytes_of(sector, tag)).collect()).collect();
            let parts: Vec<(u64, &[u8])> =
                ranges.iter().zip(&bytes).map(|(range, bytes)| (range.start * SECTOR, bytes.as_slice())).collect();
            layer.write_atomic(&parts)?;
            Ok(What::Written(ranges.into_iter().flatten().map(|sector| (sector, tag)).collect(), true))
        }
        6 => {
            let range = range(random);
            layer.trim(range.start * SECTOR..range.end * SECTOR)?;
            Ok(What::Written(range.map(|sector| (sector, 0)).collect(), false))
        }
        7 if closes && random.below(4) == 0 => layer.close().map(|()| What::Synced),
        _ => layer.sync().map(|()| What::Synced),
    }
}

fn apply(model: &mut Model, what: &What, tag: u64) {
    match what {
        What::Written(sectors, atomic) => {
            sectors.iter().for_each(|(sector, tag)| model.set(*sector, *tag));
            if *atomic {
                model.atomic.push((tag, sectors.iter().map(|(sector, _)| *sector).collect()));
            }
        }
        What::Synced => model.synced(),
    }
}

/// Checks all that can be read; the model knows it for sure then.
fn check(layer: &Layer, model: &mut Model, text: &str) {
    for base in BASES {
        let mut bytes = vec![1; usize::try_from(SPAN).unwrap()];
        layer.read(base, &mut bytes).unwrap();
        for (sector, bytes) in (base / SECTOR..).zip(bytes.chunks(512)) {
            let tag = tag_of(sector, bytes)
                .unwrap_or_else(|| panic!("{text}: sector {sector:x} is of another: {:?}", &bytes[..32]));
            let candidates = model.sectors.entry(sector).or_insert_with(|| vec![0]);
            assert!(candidates.contains(&tag), "{text}: sector {sector:x} is {tag}, and may be {candidates:?}");
            *candidates = vec![tag];
        }
    }
    for (tag, sectors) in std::mem::take(&mut model.atomic) {
        let have = sectors.iter().filter(|sector| model.now(**sector) == tag).count();
        assert!(have == 0 || have == sectors.len(), "{text}: update {tag} is there with {have} of {}", sectors.len());
    }
}

#[test]
fn reads_are_as_a_model_has_them() {
    for (seed, checksums) in (0..20).flat_map(|seed| BOTH.map(|checksums| (seed, checksums))) {
        let (device, mut random, mut model) = (Recorder::new(DEVICE_BYTES), Random::new(seed), Model::default());
        let mut layer = format(&device, checksums);
        for tag in 1..400 {
            let what = step(&layer, &mut random, tag, true).unwrap();
            apply(&mut model, &what, tag);
            if tag % 50 == 0 {
                let now = model.sectors.iter().map(|(sector, tags)| (*sector, vec![*tags.last().unwrap()]));
                check(
                    &layer,
                    &mut Model { sectors: now.collect(), atomic: Vec::new() },
                    &format!("seed {seed}, step {tag}"),
                );
            }
            if tag % 120 == 0 {
                layer.sync().unwrap();
                model.synced();
                drop(layer);
                layer = Layer::open(device.clone()).unwrap();
            }
        }
    }
}

/// The device stops at any of its calls, with any sectors of what was not flushed; the store goes on from there, and
/// so again and again.
#[test]
fn what_was_synced_is_there_after_any_power_failure() {
    for seed in 0..60 {
        BOTH.iter().for_each(|checksums| survive(seed, *checksums, 8, 60, true, &|_| DEVICE_BYTES));
    }
}

/// The same on a device that is larger each time, at calls of the growing, too. The map has room for the first five
/// sizes (where data have checksums, for two), and gets further parts for the others.
#[test]
fn what_was_synced_is_there_after_any_power_failure_while_the_store_grows() {
    let bytes = |failure| (150 + failure * 10) << 20;
    for seed in 2000..2040 {
        BOTH.iter().for_each(|checksums| survive(seed, *checksums, 8, 10, true, &bytes));
    }
}

/// As above with so many syncs that the log goes around.
#[test]
fn the_log_goes_around() {
    for seed in 1000..1003 {
        BOTH.iter().for_each(|checksums| survive(seed, *checksums, 6, 2500, false, &|_| DEVICE_BYTES));
    }
}

/// Each record is durable before the next one is begun: of two of which the first is torn, it is damage; the last one
/// may be torn.
#[test]
fn a_record_may_be_torn_only_if_it_is_the_last() {
    const BYTES: u64 = 256 << 20;
    const LOG_START: u64 = 16;
    let device = Recorder::new(BYTES);
    let layer = format(&device, Checksums::Metadata);
    let blank = device.image();
    // Each is an entry of its own: more than a record has.
    for number in 0..15_000u64 {
        layer.write((1 << 40) + number * 8192, &[1; 4096]).unwrap();
    }
    layer.sync().unwrap();
    drop(layer);
    let whole = device.image();
    let written: Vec<u64> = (LOG_START..LOG_START + 256).filter(|block| whole[block] != blank[block]).collect();
    assert!(written.len() > 64, "two records");
    for (number, block) in written.iter().enumerate() {
        let mut image = whole.clone();
        // As it was before, but for a sector.
        image.get_mut(block).unwrap()[512..].copy_from_slice(&blank[block][512..]);
        let opened = Layer::open(Recorder::from(BYTES, image));
        if number < 64 {
            assert!(matches!(opened, Err(Error::LogDamaged { .. })), "block {block}");
        } else {
            let is_mapped = |number: u64| opened.as_ref().unwrap().is_mapped((1 << 40) + number * 8192).unwrap();
            assert_eq!([0, 14_999].map(is_mapped), [true, false], "block {block}");
        }
    }
}

/// `bytes`: of the device, before the first failure and from each one on.
fn survive(seed: u64, checksums: Checksums, failures: u64, steps: u64, closes: bool, bytes: &dyn Fn(u64) -> u64) {
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let device = Recorder::new(bytes(0));
    drop(format(&device, checksums));
    let (mut image, mut tag) = (device.image(), 0);
    for failure in 0..failures {
        let device = Recorder::from(bytes(failure), image);
        let layer = Layer::grow(device.clone()).unwrap();
        check(&layer, &mut model, &format!("seed {seed}, failure {failure}"));
        let free = layer.usage().free;
        let mut history = Vec::new();
        let first_tag = tag + 1;
        for _ in 0..random.below(steps) + 1 {
            tag += 1;
            let from = device.asked();
            let what = step(&layer, &mut random, tag, closes).unwrap();
            history.push(Done { from, to: device.asked(), what });
        }
        drop(layer);
        let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
        image = device.crash(calls, &mut random);
        for (tag, done) in (first_tag..).zip(&history) {
            let counts = match done.what {
                What::Synced => done.to <= calls,
                What::Written(..) => done.from <= calls,
            };
            if counts {
                apply(&mut model, &done.what, tag);
            }
        }
        let left = Layer::open(Recorder::from(bytes(failure), image.clone())).unwrap().usage();
        assert!(free <= left.total + left.unused);
    }
    // No block was lost on the way.
    let layer = Layer::open(Recorder::from(bytes(failures), image)).unwrap();
    let mapped: u64 = BASES
        .iter()
        .flat_map(|base| layer.mapped_ranges(*base..base + SPAN).unwrap())
        .map(|range| range.end - range.start)
        .sum();
    let usage = layer.usage();
    assert_eq!(usage.total - usage.free, mapped, "seed {seed}");
    let findings = layer.check(|_, _| Ok(true)).unwrap();
    assert!(findings.is_clean() && findings.mapped_blocks * BLOCK_BYTES as u64 == mapped, "seed {seed}: {findings:?}");
}

#[test]
fn a_full_device_says_so_and_goes_on() {
    BOTH.iter().for_each(|checksums| fill(*checksums));
}

fn fill(checksums: Checksums) {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, checksums);
    let total = layer.usage().total;
    let mut written = 0;
    let block = vec![7; 64 << 10];
    let full = loop {
        match layer.write(written, &block) {
            Ok(()) => written += block.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    assert!(written + 64 * 1024 > total && layer.usage().free < 64 << 10);
    let free = layer.usage().free;
    let parts: Vec<(u64, &[u8])> = vec![(1 << 40, &block[..4096]), (2 << 40, &block)];
    assert!(matches!(layer.write_atomic(&parts), Err(Error::NoSpace)));
    assert_eq!((layer.usage().free, layer.is_mapped(1 << 40).unwrap()), (free, false), "nothing of it is there");
    // What is there can be written again, in parts and as a whole, as often as one likes.
    for byte in 1..40 {
        layer.write(1 << 20, &vec![byte; 256 << 10]).unwrap();
        layer.write((2 << 20) + 5, &[byte; 9000]).unwrap();
        if checksums == Checksums::All {
            layer.write_atomic(&[(3 << 20, &[byte; 4096]), (4 << 20, &[byte; 4096])]).unwrap();
        }
    }
    layer.trim(0..1 << 20).unwrap();
    // It needs no sync of the caller's to have the space again.
    layer.write_atomic(&parts).unwrap();
    layer.write(0, &block).unwrap();
    layer.sync().unwrap();
    drop(layer);
    let mut found = vec![0; block.len()];
    Layer::open(device).unwrap().read(2 << 40, &mut found).unwrap();
    assert!(found == block);
}

/// A write that does not fit changes nothing, also where a part of it lies over what is mapped.
#[test]
fn no_space_leaves_everything_as_it_was() {
    for (seed, checksums) in (0..20).flat_map(|seed| BOTH.map(|checksums| (seed, checksums))) {
        let device = Recorder::new(DEVICE_BYTES);
        let layer = format(&device, checksums);
        let mut random = Random::new(seed);
        // Blocks of one object with holes between them, and another object that takes what is left.
        for block in 0..64 {
            if random.below(2) == 0 {
                layer.write(BASES[1] + block * BLOCK_BYTES as u64, &[1; BLOCK_BYTES]).unwrap();
            }
        }
        let mut end = BASES[2];
        while layer.write(end, &[2; BLOCK_BYTES]).is_ok() {
            end += BLOCK_BYTES as u64;
        }
        layer.sync().unwrap();
        let image = || {
            let mut bytes = vec![0; 66 * BLOCK_BYTES];
            layer.read(BASES[1], &mut bytes).unwrap();
            bytes
        };
        let (mut before, mut refused) = (image(), 0);
        for _ in 0..200 {
            let offset = random.below(64 * BLOCK_BYTES as u64);
            let bytes = vec![3; usize::try_from(random.below(64 * BLOCK_BYTES as u64 - offset)).unwrap() + 1];
            let (from, to) = (usize::try_from(offset).unwrap(), usize::try_from(offset).unwrap() + bytes.len());
            let done = match random.below(3) {
                0 => layer.write(BASES[1] + offset, &bytes),
                1 => layer.write_durable(BASES[1] + offset, &bytes),
                _ => layer.write_atomic(&[(BASES[1] + offset, &bytes)]),
            };
            match done {
                Ok(()) => before[from..to].fill(3),
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            assert!(image() == before, "seed {seed}, {offset}, {} bytes", bytes.len());
        }
        assert!(refused > 20, "seed {seed}: {refused} were refused");
        assert!(layer.check(|_, _| Ok(true)).unwrap().is_clean(), "seed {seed}");
    }
}

#[test]
fn what_was_never_written_is_zeros_also_in_blocks_that_others_had() {
    BOTH.iter().for_each(|checksums| write_a_part_of_a_used_block(*checksums));
}

fn write_a_part_of_a_used_block(checksums: Checksums) {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, checksums);
    let total = usize::try_from(layer.usage().total).unwrap();
    layer.write(0, &vec![9; total]).unwrap();
    layer.trim(0..total as u64).unwrap();
    layer.sync().unwrap();
    assert_eq!(layer.usage().free, layer.usage().total);
    layer.write((1 << 40) + 100, &[1; 10]).unwrap();
    let mut found = vec![5; 8192];
    layer.read(1 << 40, &mut found).unwrap();
    let expected = [&[0; 100][..], &[1; 10], &[0; 8192 - 110]].concat();
    assert!(found == expected);
    // The same with several blocks, of which the first and the last are written in part.
    layer.write((2 << 40) + 100, &[1; 9000]).unwrap();
    let mut found = vec![5; 12_288];
    layer.read(2 << 40, &mut found).unwrap();
    assert!(found == [&[0; 100][..], &[1; 9000], &[0; 12_288 - 9100]].concat());
}

#[test]
fn a_device_that_fails_loses_nothing_that_was_synced() {
    for (calls, checksums) in (0..200).flat_map(|calls| BOTH.map(|checksums| (calls, checksums))) {
        let device = Recorder::new(DEVICE_BYTES);
        let layer = format(&device, checksums);
        layer.write(4096, &[1; 8192]).unwrap();
        layer.sync().unwrap();
        device.fail_in(Some(calls));
        let failed = (0..60u64).any(|number| {
            let address = (number % 20 + 10) << 20;
            let done = layer.write(address, &[2; 5000]).and_then(|()| layer.write(address + 8192, &[2; 50]));
            let done = done.and_then(|()| if number % 5 == 0 { layer.close() } else { layer.sync() });
            done.and_then(|()| layer.trim(address..address + 4096)).is_err()
        });
        assert!(failed, "{calls}");
        device.fail_in(None);
        // What was asked for can be done when it works again, and no block was lost.
        layer.write(1 << 30, &[3; 4096]).unwrap();
        layer.sync().unwrap();
        let findings = layer.check(|_, _| Ok(true)).unwrap();
        assert!(findings.is_clean(), "{calls}: {findings:?}");
        drop(layer);
        let layer = Layer::open(device).unwrap();
        let mut found = [0; 8192];
        layer.read(4096, &mut found).unwrap();
        assert_eq!(found, [1; 8192]);
        layer.read(1 << 30, &mut found).unwrap();
        assert_eq!(found[..4096], [3; 4096]);
    }
}

#[test]
fn writes_over_what_is_mapped_are_the_devices_own() {
    // With checksums they go to new blocks: then the sync has a record.
    for (checksums, calls) in BOTH.into_iter().zip([(16, 1), (17, 2)]) {
        assert_eq!(calls_of_writes_over(checksums), calls);
    }
}

fn calls_of_writes_over(checksums: Checksums) -> (usize, usize) {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, checksums);
    layer.write(1 << 36, &vec![1; 1 << 20]).unwrap();
    layer.sync().unwrap();
    let before = device.counts();
    for offset in (0..1 << 20).step_by(64 << 10) {
        layer.write((1 << 36) + offset, &vec![2; 64 << 10]).unwrap();
    }
    layer.sync().unwrap();
    let after = device.counts();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn what_is_no_store_is_refused_by_name() {
    let device = Recorder::new(DEVICE_BYTES);
    let Err(error) = Layer::open(device.clone()) else { panic!("an empty device was opened") };
    assert!(matches!(error, Error::NoStore(_)), "{error}");
    drop(format(&device, Checksums::Metadata));
    let Err(error) = Layer::format(device.clone(), Format::default()) else { panic!("a store was overwritten") };
    assert!(matches!(error, Error::NotEmpty("a region store")), "{error}");
    Layer::format(device, Format { overwrite: true, ..Format::default() }).unwrap();
    let small = Recorder::new(1 << 20);
    assert!(matches!(Layer::format(small, Format::default()), Err(Error::TooSmall(..))));
}

/// Whatever stands on a device, opening it is an answer or an error, and so is reading it.
#[test]
fn damage_is_an_error_and_no_panic() {
    BOTH.iter().for_each(|checksums| damage(*checksums));
}

fn damage(checksums: Checksums) {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, checksums);
    for number in 0..300u64 {
        layer.write((number % 40) << 20, &bytes_of(number, number + 1)).unwrap();
        layer.write((number << 30) + 8192, &[7; 9000]).unwrap();
        if number % 50 == 0 {
            layer.close().unwrap();
        } else {
            layer.sync().unwrap();
        }
    }
    drop(layer);
    let whole = device.image();
    // Super blocks, log and map; what is behind them is data.
    let mut used: Vec<u64> = whole.keys().copied().filter(|block| *block < 16 + 256 + 1024).collect();
    used.sort_unstable();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..400 {
        let (mut random, mut image) = (Random::new(seed), whole.clone());
        for _ in 0..random.below(4) + 1 {
            let block = used[usize::try_from(random.below(used.len() as u64)).unwrap()];
            let bytes = image.get_mut(&block).unwrap();
            let at = usize::try_from(random.below(BLOCK_BYTES as u64)).unwrap();
            match random.below(4) {
                0 => bytes.fill(0),
                1 => bytes.iter_mut().skip(at).for_each(|byte| *byte = u8::try_from(random.next() & 0xff).unwrap()),
                // Most of what is there stands at a block's begin.
                2 => bytes[at % 64] ^= 1 << random.below(8),
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        match Layer::open(Recorder::from(DEVICE_BYTES, image)) {
            Ok(layer) => {
                opened += 1;
                let mut found = vec![0; 20_000];
                for number in 0..300u64 {
                    let _ = layer.read((number << 30) + 8192, &mut found);
                }
                let _ = layer.check(|_, _| Ok(true));
                let _ = layer.write(5 << 40, &[1; 5000]).and_then(|()| layer.close());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 50 && refused >= 5, "{opened} opened, {refused} refused");
}

/// What is safe by itself lies where the mapping is safe, too: also if that was made without a sync a moment ago.
#[test]
fn a_durable_write_over_what_was_just_mapped_is_there_after_a_power_failure() {
    for seed in 0..20 {
        let device = Recorder::new(DEVICE_BYTES);
        let layer = format(&device, Checksums::Metadata);
        layer.write(BASES[1], &[1; 2 * BLOCK_BYTES]).unwrap();
        layer.write_durable(BASES[1], &[2; 2 * BLOCK_BYTES]).unwrap();
        let calls = device.asked();
        layer.write_durable(BASES[1], &[2; 2 * BLOCK_BYTES]).unwrap();
        assert_eq!(device.asked() - calls, 1, "one call, once the mapping is safe");
        let layer = Layer::open(Recorder::from(DEVICE_BYTES, device.crash(calls, &mut Random::new(seed)))).unwrap();
        let mut found = [0; 2 * BLOCK_BYTES];
        layer.read(BASES[1], &mut found).unwrap();
        assert!(found == [2; 2 * BLOCK_BYTES], "seed {seed}");
    }
}

/// What an update of several extents writes lies side by side where there is room, and is one write.
#[test]
fn an_update_of_several_extents_is_one_write() {
    for checksums in BOTH {
        let device = Recorder::new(DEVICE_BYTES);
        let layer = format(&device, checksums);
        let old = vec![1; 12 * BLOCK_BYTES];
        layer.write(1 << 30, &old).unwrap();
        layer.sync().unwrap();
        let before = device.counts();
        let new: Vec<Vec<u8>> = (0..700usize).map(|number| vec![2; (number % 3 + 1) * BLOCK_BYTES]).collect();
        // More than one call takes, and one part that begins and ends inside a block.
        let mut parts: Vec<(u64, &[u8])> =
            (2u64..).zip(&new).map(|(number, bytes)| (number << 30, &bytes[..])).collect();
        parts.push(((1 << 30) + 100, &[3; 2 * BLOCK_BYTES]));
        layer.write_atomic(&parts).unwrap();
        assert_eq!((device.counts().0 - before.0, device.counts().1), (2, before.1));
        layer.sync().unwrap();
        drop(layer);
        let layer = Layer::open(device).unwrap();
        for (address, bytes) in &parts {
            let mut found = vec![0; bytes.len()];
            layer.read(*address, &mut found).unwrap();
            assert!(found[..] == **bytes, "{address:x}");
        }
        let mut found = vec![0; old.len()];
        layer.read(1 << 30, &mut found).unwrap();
        assert!(found[..100] == old[..100] && found[100 + 2 * BLOCK_BYTES..] == old[100 + 2 * BLOCK_BYTES..]);
        assert!(layer.check(|_, _| Ok(true)).unwrap().is_clean());
    }
}

/// Blocks go from one address to another and back, and readers look them up each for itself.
#[test]
fn no_reader_sees_a_block_that_is_anothers_by_now() {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, Checksums::Metadata);
    const BYTES: usize = 16 * BLOCK_BYTES;
    let [_, first, second] = BASES;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = |address: u64, byte: u8| {
            let (layer, is_over) = (&layer, &is_over);
            move || {
                let mut found = vec![0; BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    layer.read(address, &mut found).unwrap();
                    let wrong = found.iter().find(|found| **found != 0 && **found != byte);
                    assert_eq!(wrong, None, "at {address:#x}");
                }
            }
        };
        let readers = [scope.spawn(read(first, 1)), scope.spawn(read(second, 2))];
        for _ in 0..400 {
            for (address, byte) in [(first, 1), (second, 2)] {
                layer.write(address, &[byte; BYTES]).unwrap();
                // Over what is mapped, for certain.
                layer.write_durable(address, &[byte; BYTES]).unwrap();
                layer.trim(address..address + BYTES as u64).unwrap();
                layer.sync().unwrap();
                assert!(layer.mapped_ranges(address..address + 1).unwrap().is_empty());
            }
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A device of which every third flush fails.
struct Flaky {
    device: Arc<Recorder>,
    flushes: AtomicU64,
}

impl Device for Flaky {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> std::io::Result<()> {
        self.device.write_at(place, from)
    }

    fn write_durable_at(&self, place: u64, from: &[u8]) -> std::io::Result<()> {
        self.device.write_durable_at(place, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        // So that others come meanwhile.
        std::thread::sleep(Duration::from_micros(50));
        match self.flushes.fetch_add(1, Ordering::Relaxed) % 3 {
            2 => Err(std::io::Error::other("not now")),
            _ => self.device.flush(),
        }
    }

    fn discard(&self, place: u64, bytes: u64) -> std::io::Result<()> {
        self.device.discard(place, bytes)
    }
}

/// Some wait for a sync that has failed, and some for the next one.
#[test]
fn nobody_waits_for_ever_for_a_sync() {
    let device = Recorder::new(DEVICE_BYTES);
    drop(format(&device, Checksums::Metadata));
    let layer = Arc::new(Layer::open(Arc::new(Flaky { device, flushes: AtomicU64::new(0) })).unwrap());
    for _ in 0..1500 {
        let (tell, told) = mpsc::channel();
        for thread in 0..8 {
            let (layer, tell) = (Arc::clone(&layer), tell.clone());
            std::thread::spawn(move || {
                layer.write(thread << 40, &[1; BLOCK_BYTES]).unwrap();
                let _ = layer.sync();
                tell.send(()).unwrap();
            });
        }
        // Nobody comes any more who would wake those that sleep.
        (0..8).for_each(|_| told.recv_timeout(Duration::from_mins(1)).unwrap());
    }
}
