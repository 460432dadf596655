//! Records that follow one another, and end inside a block: one write of the device each, and nothing that was safe
//! is lost with the block that two of them share.

use crate::recorder::{BOTH, Random, Recorder};
use weft_region::{BLOCK_BYTES, Checksums, Format, Layer};

const DEVICE_BYTES: u64 = 16 << 20;
const BASE: u64 = 1 << 36;
/// What HACC-IO's and other programs' records have: no multiple of a block.
const RECORD: usize = 47_008;
const SEEDS: u64 = 40;

fn format(device: &std::sync::Arc<Recorder>, checksums: Checksums) -> Layer {
    Layer::format(device.clone(), Format { checksums, ..Format::default() }).unwrap()
}

/// The bytes from one place of what is written to another.
fn bytes(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| u8::try_from(at * 7 / 3 % 250 + 1).unwrap()).collect()
}

fn append(layer: &Layer, from: usize, count: usize) {
    layer.write(BASE + from as u64, &bytes(from, from + count)).unwrap();
}

fn is_there(layer: &Layer, count: usize, text: &str) {
    let mut found = vec![0; count];
    layer.read(BASE, &mut found).unwrap();
    assert!(found == bytes(0, count), "{text}");
}

#[test]
fn a_record_that_begins_where_another_has_ended_is_one_write() {
    for checksums in BOTH {
        let device = Recorder::new(DEVICE_BYTES);
        let layer = format(&device, checksums);
        for number in 0..20 {
            let before = device.counts().0;
            append(&layer, number * RECORD, RECORD);
            assert_eq!(device.counts().0 - before, 1, "{checksums}, record {number}");
        }
        is_there(&layer, 20 * RECORD, "written");
        layer.sync().unwrap();
        drop(layer);
        let layer = Layer::open(device).unwrap();
        is_there(&layer, 20 * RECORD, "opened again");
        assert!(layer.check(|_, _| Ok(true)).unwrap().is_clean());
    }
}

/// What lies elsewhere on the device is a write of its own, and stays where it is.
#[test]
fn records_of_two_writers_by_turns_are_two_writes_at_most() {
    let device = Recorder::new(DEVICE_BYTES);
    let layer = format(&device, Checksums::Metadata);
    for number in 0..10 {
        for base in [0, 4 << 20] {
            let before = device.counts().0;
            layer
                .write(BASE + base + (number * RECORD) as u64, &bytes(number * RECORD, (number + 1) * RECORD))
                .unwrap();
            assert!(device.counts().0 - before <= 2, "record {number}");
        }
    }
    is_there(&layer, 10 * RECORD, "by turns");
}

#[test]
fn what_was_synced_is_there_after_a_power_failure_in_the_record_behind_it() {
    for checksums in BOTH {
        for seed in 0..SEEDS {
            let mut random = Random::new(seed);
            let device = Recorder::new(DEVICE_BYTES);
            let layer = format(&device, checksums);
            let (mut end, mut safe) = (0, vec![(0, 0)]);
            let begin = device.asked();
            for _ in 0..4 + random.below(20) {
                let count = 1 + usize::try_from(random.below(6 * BLOCK_BYTES as u64)).unwrap();
                append(&layer, end, count);
                end += count;
                if random.below(2) == 0 {
                    layer.sync().unwrap();
                    safe.push((device.asked(), end));
                }
            }
            drop(layer);
            let calls = begin + usize::try_from(random.below((device.asked() - begin + 1) as u64)).unwrap();
            let layer = Layer::open(Recorder::from(DEVICE_BYTES, device.crash(calls, &mut random))).unwrap();
            let synced = safe.iter().filter(|(asked, _)| *asked <= calls).map(|(_, end)| *end).max().unwrap_or(0);
            is_there(&layer, synced, &format!("{checksums}, seed {seed}"));
            assert!(layer.check(|_, _| Ok(true)).unwrap().is_clean());
        }
    }
}
