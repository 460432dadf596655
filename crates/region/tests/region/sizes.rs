//! Sizes of objects and what lies behind them: what was never written, or was cut off, reads zeros, also after a power
//! failure.

use crate::recorder::{Form, Image, Random, Recorder};
use weft_region::{BLOCK_BYTES, Error, Kind, Object, Store};

const DEVICE_BYTES: u64 = 32 << 20;
const BYTES_MAX: u64 = 40_000;

/// An object at one time: its bytes, and how often it was cut before.
#[derive(Clone)]
struct Past {
    bytes: Vec<u8>,
    cuts: usize,
    /// Calls of the device until then, and whether it was synced with the last of them.
    calls: usize,
    is_safe: bool,
}

/// What an object was like since its last sync, and where it was cut.
struct Model {
    past: Vec<Past>,
    cuts: Vec<usize>,
}

impl Model {
    fn new(bytes: Vec<u8>) -> Self {
        Self { past: vec![Past { bytes, cuts: 0, calls: 0, is_safe: true }], cuts: Vec::new() }
    }

    fn now(&self) -> &Past {
        self.past.last().unwrap()
    }

    fn size(&self) -> usize {
        self.now().bytes.len()
    }

    fn write(&mut self, offset: usize, bytes: &[u8], calls: usize) {
        let mut next = Past { calls, is_safe: false, ..self.now().clone() };
        next.bytes.resize(next.bytes.len().max(offset + bytes.len()), 0);
        next.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.past.push(next);
    }

    fn truncate(&mut self, size: usize, calls: usize) {
        let mut next = Past { calls, is_safe: false, ..self.now().clone() };
        if size < next.bytes.len() {
            self.cuts.push(size);
            next.cuts += 1;
        }
        next.bytes.resize(size, 0);
        self.past.push(next);
    }

    /// The first byte that was cut off between two times.
    fn first_cut(&self, one: &Past, other: &Past) -> usize {
        let between = one.cuts.min(other.cuts)..one.cuts.max(other.cuts);
        self.cuts[between].iter().copied().min().unwrap_or(usize::MAX)
    }

    /// Whether a power failure may leave this: the size of some time, and in each byte what it had at some time between
    /// the same cuts. What was written later may be in place of zeros that were cut off; in a sparse file, in place of
    /// anything.
    fn may_be(&self, found: &[u8], form: Form) -> bool {
        let fits = |time: &Past| {
            found.iter().enumerate().all(|(at, byte)| {
                let had = |other: &Past| other.bytes.get(at).copied().unwrap_or(0) == *byte;
                let goes_over = form == Form::Sparse || time.bytes.get(at) == Some(&0);
                let is_later = |other: &Past| goes_over && other.cuts > time.cuts;
                let may_be = |other: &Past| is_later(other) || at < self.first_cut(time, other);
                self.past.iter().any(|other| may_be(other) && had(other))
            })
        };
        self.past.iter().filter(|time| time.bytes.len() == found.len()).any(fits)
    }
}

fn read(object: &Object) -> Vec<u8> {
    let mut bytes = vec![9; usize::try_from(object.stat().unwrap().size).unwrap()];
    assert_eq!(object.read(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn below(random: &mut Random, end: u64) -> usize {
    usize::try_from(random.below(end)).unwrap()
}

/// Writes, cuts, makes longer and syncs an object, or all that the store has.
fn churn(store: &Store, object: &Object, device: &Recorder, model: &mut Model, random: &mut Random) {
    for step in 0..random.below(25) {
        match random.below(8) {
            0 => {
                object.sync().unwrap();
                let now = Past { calls: device.asked(), is_safe: true, ..model.now().clone() };
                model.past.push(now);
            }
            // Data, and the mapping, without the size.
            1 => store.sync().unwrap(),
            2 | 3 => {
                let size = random.below(BYTES_MAX);
                object.truncate(size).unwrap();
                model.truncate(usize::try_from(size).unwrap(), device.asked());
            }
            4 => {
                let size = below(random, model.size() as u64 + 1);
                object.truncate(size as u64).unwrap();
                model.truncate(size, device.asked());
            }
            _ => {
                let byte = u8::try_from(step % 200 + 1).unwrap();
                let (offset, bytes) = (below(random, BYTES_MAX), vec![byte; below(random, 9000) + 1]);
                match object.write(offset as u64, &bytes) {
                    Err(Error::NoSpace) => {}
                    written => {
                        written.unwrap();
                        model.write(offset, &bytes, device.asked());
                    }
                }
            }
        }
        assert!(read(object) == model.now().bytes, "step {step}");
    }
}

/// Makes an object longer by zeros, or by a write with a gap before it: nothing that it had ever had is there.
fn extend(object: &Object, random: &mut Random) {
    let before = read(object);
    let end = before.len() as u64 + random.below(60_000);
    if random.below(2) == 0 || matches!(object.write(end, &[0]), Err(Error::NoSpace)) {
        object.truncate(end).unwrap();
    }
    let after = read(object);
    assert!(after[..before.len()] == before, "what was there");
    let old = after[before.len()..].iter().position(|byte| *byte != 0);
    assert_eq!(old, None, "behind {} bytes, of {}", before.len(), after.len());
}

/// Leaves no space but for so many blocks. To cut an object needs none.
fn fill(store: &Store, blocks: u64) {
    let object = store.create(Kind::Plain).unwrap();
    let block_bytes = BLOCK_BYTES as u64;
    let end = (0..).find(|block| object.write(block * block_bytes, &[7; BLOCK_BYTES]).is_err()).unwrap();
    let start = object.id() * store.region_bytes();
    store.layer().trim(start + (end - blocks) * block_bytes..start + end * block_bytes).unwrap();
}

#[test]
fn what_was_cut_or_never_written_is_zeros_after_any_power_failure() {
    for seed in 0..400 {
        survive(seed);
    }
}

fn survive(seed: u64) {
    let (mut random, form) = (Random::new(seed), Form::of(seed));
    let device = form.device(DEVICE_BYTES, Image::new());
    let store = form.format(&device, 30).unwrap();
    let id = store.create(Kind::Direct).unwrap().id();
    if form != Form::Sparse && random.below(3) == 0 {
        fill(&store, random.below(20));
    }
    store.sync().unwrap();
    drop(store);
    let (mut image, mut bytes) = (device.image(), Vec::new());
    for failure in 0..4 {
        let device = form.device(DEVICE_BYTES, image);
        let store = Store::open(device.clone()).unwrap();
        let object = store.object(id, Kind::Direct).unwrap();
        let mut model = Model::new(bytes);
        churn(&store, &object, &device, &mut model, &mut random);
        drop((object, store));
        let calls = below(&mut random, device.asked() as u64 + 1);
        image = device.crash(calls, &mut random);
        // What a sync has confirmed before the failure counts, and what came later.
        let safe = model.past.iter().rposition(|past| past.is_safe && past.calls <= calls).unwrap();
        model.past.drain(..safe);

        let device = form.device(DEVICE_BYTES, image);
        let store = Store::open(device.clone()).unwrap();
        let object = store.object(id, Kind::Direct).unwrap();
        let found = read(&object);
        assert!(model.may_be(&found, form), "seed {seed}, failure {failure}, {form:?}: {} bytes", found.len());
        extend(&object, &mut random);
        bytes = read(&object);
        object.sync().unwrap();
        assert!(store.check().unwrap().is_clean(), "seed {seed}");
        drop((object, store));
        image = device.image();
    }
}
