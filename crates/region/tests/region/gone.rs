//! Copies of stores from which objects are removed, and whose identifiers are given again.

use crate::feed::{DEVICE_BYTES, change, compare, compare_whole, receiver, send};
use crate::recorder::{Random, Recorder};
use std::collections::{BTreeMap, HashSet};
use weft_region::{Error, Fed, Format, Kind, ReceiveOptions, SendOptions, Store};

type Held = BTreeMap<u64, (u64, Option<Kind>)>;

/// How many of these the source has not any more. One that keeps nothing may be the same as another.
fn count_gone(held: &Held, source: &Held) -> u64 {
    let is_same = |(id, one): &(&u64, &(u64, Option<Kind>))| {
        source.get(id).is_some_and(|other| *one == other || (one.1, other.1) == (Some(Kind::Plain), Some(Kind::Plain)))
    };
    held.iter().filter(|one| !is_same(one)).count() as u64
}

/// A store, and what its objects are; `None`: they keep versions.
struct Source {
    store: Store,
    objects: BTreeMap<u64, Option<Kind>>,
    /// How many objects each identifier has had.
    made: BTreeMap<u64, u64>,
}

impl Source {
    fn new() -> Self {
        let device = Recorder::new(DEVICE_BYTES);
        drop(Store::format(device.clone(), Format { region_shift: 24, ..Format::default() }).unwrap());
        // So that an identifier is given again soon.
        Self { store: Store::open_with_range(device, 1).unwrap(), objects: BTreeMap::new(), made: BTreeMap::new() }
    }

    fn work(&mut self, random: &mut Random) {
        for _ in 0..random.below(8) + 1 {
            let some = usize::try_from(random.below(self.objects.len() as u64 + 3)).unwrap();
            match self.objects.iter().nth(some).map(|(id, kind)| (*id, *kind)) {
                Some((id, None)) if random.below(2) == 0 => change(&self.store.versioned(id).unwrap(), random, 3),
                Some((id, _)) => {
                    assert!(self.store.remove(id).unwrap());
                    self.store.sync().unwrap();
                    self.objects.remove(&id);
                }
                None => self.make(random),
            }
        }
        self.store.sync().unwrap();
    }

    fn make(&mut self, random: &mut Random) {
        let kind = [None, Some(Kind::Direct), Some(Kind::Plain)][usize::try_from(random.below(3)).unwrap()];
        let id = match kind {
            None => {
                let object = self.store.create_versioned().unwrap();
                change(&object, random, 2);
                object.id()
            }
            Some(kind) => {
                let object = self.store.create(kind).unwrap();
                let tag = u8::try_from(random.below(250) + 1).unwrap();
                object.write(random.below(50_000), &[tag; 9000]).unwrap();
                object.sync().unwrap();
                object.id()
            }
        };
        assert!(self.objects.insert(id, kind).is_none());
        *self.made.entry(id).or_default() += 1;
    }

    /// Its objects, of those under an identifier which, and what.
    fn all(&self) -> Held {
        self.objects.iter().map(|(id, kind)| (*id, (self.made[id], *kind))).collect()
    }

    /// A copy has these objects, as they are.
    fn compare(&self, copy: &Store, text: &str) {
        for (id, kind) in &self.objects {
            match kind {
                None => compare(&self.store, copy, *id, &HashSet::new(), text),
                Some(kind) => compare_whole(&self.store, copy, (*id, *kind)),
            }
        }
        assert!(copy.check().unwrap().is_clean(), "{text}");
    }
}

fn ids(store: &Store) -> Vec<u64> {
    (1..500).filter(|id| store.exists(*id).unwrap()).collect()
}

fn receive(store: &Store, mut stream: &[u8], remove: bool) -> weft_region::Result<Fed> {
    store.receive(ReceiveOptions { replace_plain: true, remove }, &mut stream, &mut |_| {})
}

#[test]
fn what_was_removed_is_counted_and_goes_when_that_is_asked_for() {
    let (mut kept, mut replaced, mut removed) = (0, 0, 0);
    for seed in 0..20 {
        let (mut random, mut source) = (Random::new(seed), Source::new());
        let copy = Store::open(Recorder::from(DEVICE_BYTES, receiver(24))).unwrap();
        let mut held = Held::new();
        for round in 0..8 {
            let text = format!("seed {seed}, round {round}");
            source.work(&mut random);
            let stream = send(&source.store, copy.have().unwrap(), 1000);
            let (before, now) = (ids(&copy), source.all());
            let (all_gone, gone) = (count_gone(&held, &now), held.keys().filter(|id| !now.contains_key(id)).count());
            if random.below(2) == 0 && all_gone == gone as u64 {
                assert_eq!(receive(&copy, &stream, false).unwrap().gone, Some(all_gone), "{text}");
                assert!(before.iter().all(|id| copy.exists(*id).unwrap()), "{text}: they are kept");
                source.compare(&copy, &text);
                kept += gone;
                held.extend(now);
                continue;
            }
            if all_gone > gone as u64 && random.below(2) == 0 {
                let refused = receive(&copy, &stream[..stream.len() / 2], false);
                assert!(matches!(refused, Err(Error::OtherObject(_) | Error::Stream { .. })), "{text}: {refused:?}");
                let refused = receive(&copy, &stream, false).unwrap_err();
                assert!(matches!(refused, Error::OtherObject(_)), "{text}: {refused}");
                assert!(receive(&copy, &stream, true).is_ok(), "{text}");
            } else {
                assert_eq!(receive(&copy, &stream, true).unwrap().gone, Some(all_gone), "{text}");
            }
            assert!(ids(&copy).iter().eq(now.keys()), "{text}");
            source.compare(&copy, &text);
            replaced += all_gone - gone as u64;
            removed += gone;
            held = now;
        }
    }
    assert!(kept > 10 && replaced > 10 && removed > 10, "{kept}, {replaced}, {removed}");
}

/// Of what keeps versions and the source has, nothing goes; nor what the source has not, before all came. (Other
/// objects that it has come anew, each time, and are there when they came.)
#[test]
fn a_stream_that_breaks_off_removes_nothing() {
    let mut gone = 0;
    for seed in 100..130 {
        let (mut random, mut source) = (Random::new(seed), Source::new());
        let copy = Store::open(Recorder::from(DEVICE_BYTES, receiver(24))).unwrap();
        source.work(&mut random);
        source.work(&mut random);
        receive(&copy, &send(&source.store, Vec::new(), 1000), true).unwrap();
        let before = source.objects.clone();
        source.work(&mut random);
        for _ in 0..4 {
            let stream = send(&source.store, copy.have().unwrap(), 1000);
            let mut cut = stream[..usize::try_from(random.below(stream.len() as u64)).unwrap()].to_vec();
            if random.below(3) == 0 {
                // All is there, and the end is wrong.
                cut = stream.clone();
                *cut.last_mut().unwrap() ^= 1;
            }
            receive(&copy, &cut, true).unwrap_err();
            for (id, kind) in &before {
                let is_gone = !source.objects.contains_key(id);
                gone += u64::from(is_gone);
                let is_kept = is_gone || kind.is_none() && source.objects[id].is_none();
                assert!(!is_kept || copy.exists(*id).unwrap(), "seed {seed}: object {id}");
            }
        }
        receive(&copy, &send(&source.store, copy.have().unwrap(), 1000), true).unwrap();
        assert!(ids(&copy).iter().eq(source.objects.keys()), "seed {seed}");
        source.compare(&copy, &format!("seed {seed}"));
    }
    assert!(gone > 10, "{gone}");
}

#[test]
fn a_power_failure_while_objects_are_removed_is_gone_on_from() {
    for seed in 200..240 {
        let (mut random, mut source) = (Random::new(seed), Source::new());
        let mut image = receiver(24);
        for round in 0..5 {
            let text = format!("seed {seed}, round {round}");
            let device = Recorder::from(DEVICE_BYTES, image);
            let copy = Store::open(device.clone()).unwrap();
            let versioned: Vec<(u64, u64)> = copy.have().unwrap().iter().map(|have| (have.id, have.lineage)).collect();
            source.work(&mut random);
            receive(&copy, &send(&source.store, copy.have().unwrap(), 1000), true).unwrap();
            assert!(ids(&copy).iter().eq(source.objects.keys()), "{text}");
            drop(copy);
            let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
            let copy = Store::open(Recorder::from(DEVICE_BYTES, image.clone())).unwrap();
            assert!(copy.check().unwrap().is_clean(), "{text}");
            let now: HashSet<(u64, u64)> = source.store.have().unwrap().iter().map(|h| (h.id, h.lineage)).collect();
            for (id, lineage) in versioned.into_iter().filter(|object| now.contains(object)) {
                assert!(
                    copy.have().unwrap().iter().any(|have| (have.id, have.lineage) == (id, lineage)),
                    "{text}: {id}"
                );
            }
        }
        let copy = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        receive(&copy, &send(&source.store, copy.have().unwrap(), 1000), true).unwrap();
        assert!(ids(&copy).iter().eq(source.objects.keys()), "seed {seed}");
        source.compare(&copy, &format!("seed {seed}"));
    }
}

#[test]
fn a_stream_of_some_objects_does_not_tell_what_is_gone() {
    let mut source = Source::new();
    (0..3).for_each(|seed| source.make(&mut Random::new(seed)));
    let copy = Store::open(Recorder::from(DEVICE_BYTES, receiver(24))).unwrap();
    receive(&copy, &send(&source.store, Vec::new(), 1000), false).unwrap();
    let mut stream = Vec::new();
    let options = SendOptions { objects: vec![2], ..SendOptions::default() };
    source.store.send(&options, &mut stream, &mut |_| {}).unwrap();
    assert_eq!(receive(&copy, &stream, false).unwrap().gone, None);
    let refused = receive(&copy, &stream, true).unwrap_err().to_string();
    assert!(refused.contains("some objects"), "{refused}");
    assert_eq!(ids(&copy), [1, 2, 3]);
}

/// What the index has of an object is not taken for what the next one in its region is.
#[test]
fn where_versions_were_kept_another_object_is_in_order_after_a_power_failure() {
    for kind in [Kind::Direct, Kind::Plain] {
        let (mut random, device) = (Random::new(7), Recorder::new(DEVICE_BYTES));
        drop(Store::format(device.clone(), Format { region_shift: 24, ..Format::default() }).unwrap());
        let store = Store::open_with_range(device.clone(), 1).unwrap();
        let object = store.create_versioned().unwrap();
        change(&object, &mut random, 5);
        assert_eq!(store.have().unwrap().len(), 1, "the index has it");
        let begin = device.asked();
        store.remove(object.id()).unwrap();
        store.sync().unwrap();
        assert_eq!(store.create(kind).unwrap().id(), object.id());
        store.sync().unwrap();
        for calls in begin..=device.asked() {
            let store = Store::open(Recorder::from(DEVICE_BYTES, device.crash(calls, &mut random))).unwrap();
            let has = store.have().unwrap().len();
            assert!(has == 1 || has == 0 && calls > begin, "{calls}");
            store.clean(&Default::default()).unwrap();
            assert_eq!(store.scrub(&mut |_, _| {}).unwrap().told, Vec::<String>::new(), "{calls}");
            assert!(has == 0 || store.versioned(object.id()).unwrap().newest().unwrap().version > 0, "{calls}");
        }
    }
}
