//! Stores that are sent, whole and in part, against those that they come from.

use crate::recorder::{Image, Random, Recorder};
use std::collections::{HashMap, HashSet};
use std::io::Read;
use weft_region::{
    BLOCK_BYTES, Error, Fed, Format, Have, Keep, Kind, ReceiveOptions, SendOptions, Store, VersionStat, Versioned,
};

pub const DEVICE_BYTES: u64 = 32 << 20;
/// Of a stream, before its frames.
const START_BYTES: usize = 40;
const SPAN: u64 = 300_000;

fn format(region_shift: u8) -> Store {
    Store::format(Recorder::new(DEVICE_BYTES), Format { region_shift, ..Format::default() }).unwrap()
}

/// A receiver, on a device that remembers.
pub fn receiver(region_shift: u8) -> Image {
    let device = Recorder::new(DEVICE_BYTES);
    drop(Store::format(device.clone(), Format { region_shift, ..Format::default() }).unwrap());
    device.image()
}

pub fn send(store: &Store, have: Vec<Have>, pieces: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    let fed = store.send(&SendOptions { have, pieces, ..SendOptions::default() }, &mut stream, &mut |_| {}).unwrap();
    assert_eq!(fed.bytes, stream.len() as u64);
    stream
}

fn receive(store: &Store, mut stream: &[u8]) -> weft_region::Result<Fed> {
    store.receive(ReceiveOptions { replace_plain: true, ..ReceiveOptions::default() }, &mut stream, &mut |_| {})
}

/// Some changes of an object that keeps versions.
pub fn change(object: &Versioned, random: &mut Random, count: u64) {
    for _ in 0..count {
        let (start, tag) = (random.below(SPAN), u8::try_from(random.below(255) + 1).unwrap());
        let bytes = vec![tag; usize::try_from(random.below(50_000) + 1).unwrap()];
        let newest = object.newest().unwrap().version;
        let done = match random.below(10) {
            0 => object.truncate(random.below(SPAN)),
            1 => object.punch(start..start + bytes.len() as u64),
            2 if newest > 0 => object.set_name(&format!("name {}", random.below(4)), newest).map(|()| 0),
            3 => object.remove_name(&format!("name {}", random.below(4))).map(|_| 0),
            4 => object.clean(&Keep { newest: random.below(6) + 1, ..Keep::default() }).map(|_| 0),
            6 => object.put_together(),
            5 => object.write_many(&[(start, &bytes), (start + 90_000, &bytes[..1])]),
            _ => object.write(start / 4096 * 4096, &bytes),
        };
        match done {
            Err(Error::RingFull(_)) => drop(object.clean(&Keep::default()).unwrap()),
            done => drop(done.unwrap()),
        }
    }
}

/// A store with objects of all kinds; their identifiers, those that keep versions first.
fn source(random: &mut Random, region_shift: u8) -> (Store, [u64; 2], [(u64, Kind); 3]) {
    let store = format(region_shift);
    let versioned = [0; 2].map(|_| store.create_versioned().unwrap().id());
    let whole = [Kind::Direct, Kind::Plain, Kind::Direct].map(|kind| {
        let object = store.create(kind).unwrap();
        for _ in 0..3 {
            object.write(random.below(600_000), &vec![7; usize::try_from(random.below(9000)).unwrap()]).unwrap();
        }
        object.sync().unwrap();
        (object.id(), kind)
    });
    versioned.iter().for_each(|id| change(&store.versioned(*id).unwrap(), random, 30));
    (store, versioned, whole)
}

fn all_of(object: &Versioned, version: u64) -> Vec<u8> {
    let mut bytes = vec![9; 400_000];
    let count = object.at(version).unwrap().read(0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

/// Each version that the source has is there, with all that it has, but for those that the copy's cleaner took.
pub fn compare(source: &Store, copy: &Store, id: u64, gone: &HashSet<VersionStat>, text: &str) {
    let (one, other) = (source.versioned(id).unwrap(), copy.versioned(id).unwrap());
    let listed = one.versions(0, usize::MAX).unwrap();
    let copied = other.versions(0, usize::MAX).unwrap();
    let mut names = one.names().unwrap();
    names.retain(|(_, version)| copied.iter().any(|stat| stat.version == *version));
    assert_eq!((one.made(), names), (other.made(), other.names().unwrap()), "{text}");
    assert_eq!((listed.last(), one.newest().unwrap()), (copied.last(), other.newest().unwrap()), "{text}");
    for stat in listed.into_iter().filter(|stat| !gone.contains(stat)) {
        assert!(copied.contains(&stat), "{text}: version {stat:?}");
        assert!(all_of(&one, stat.version) == all_of(&other, stat.version), "{text}: version {}", stat.version);
        assert_eq!(other.at_time(stat.time).unwrap().stat().time, stat.time, "{text}");
    }
    let mut found = [vec![1; 400_000], vec![2; 400_000]];
    let counts = [one.read(0, &mut found[0]).unwrap(), other.read(0, &mut found[1]).unwrap()];
    assert_eq!(counts[0], counts[1], "{text}");
    assert!(found[0][..counts[0]] == found[1][..counts[1]], "{text}: the newest");
}

pub fn compare_whole(source: &Store, copy: &Store, (id, kind): (u64, Kind)) {
    let (one, other) = (source.object(id, kind).unwrap(), copy.object(id, kind).unwrap());
    assert_eq!((one.stat(), one.owner()), (other.stat(), other.owner()));
    assert!(one.generation() == other.generation() || kind == Kind::Plain, "those do not keep it");
    let mut found = [vec![0; 700_000], vec![0; 700_000]];
    let counts = [one.read(0, &mut found[0]).unwrap(), other.read(0, &mut found[1]).unwrap()];
    assert!(counts[0] == counts[1] && found[0] == found[1], "object {id}");
    let shift = |store: &Store| store.region_bytes().ilog2();
    let mapped = |store: &Store| {
        let region = id << shift(store);
        let ranges = store.layer().mapped_ranges(region..region + 700_000).unwrap();
        ranges.into_iter().map(|range| range.start - region..range.end - region).collect::<Vec<_>>()
    };
    assert_eq!(mapped(source), mapped(copy), "object {id}: holes are holes");
}

#[test]
fn a_copy_has_all_versions_and_is_brought_up_to_date() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let small = seed % 2 == 0;
        let (store, versioned, whole) = source(&mut random, if small { 20 } else { 30 });
        let device = Recorder::from(DEVICE_BYTES, receiver(21));
        let (mut copy, mut gone) = (Store::open(device.clone()).unwrap(), HashSet::new());
        for round in 0..6 {
            let text = format!("seed {seed}, round {round}");
            let pieces = if round % 2 == 0 { 5 } else { 1 << 20 };
            let stream = send(&store, copy.have().unwrap(), pieces);
            receive(&copy, &stream).unwrap();
            versioned.iter().for_each(|id| compare(&store, &copy, *id, &gone, &text));
            whole.iter().for_each(|object| compare_whole(&store, &copy, *object));
            assert!(copy.check().unwrap().is_clean(), "{text}");
            // The copy has a cleaner of its own, and is opened again.
            for id in versioned {
                let object = copy.versioned(id).unwrap();
                gone.extend(object.versions(0, usize::MAX).unwrap());
                object.clean(&Keep { newest: random.below(4) + 1, ..Keep::default() }).unwrap();
                object.versions(0, usize::MAX).unwrap().iter().for_each(|stat| assert!(gone.remove(stat)));
            }
            if random.below(2) == 0 {
                copy.sync().unwrap();
                drop(copy);
                copy = Store::open(device.clone()).unwrap();
            }
            versioned.iter().for_each(|id| change(&store.versioned(*id).unwrap(), &mut random, 12));
            copy.sync().unwrap();
            let scrubbed = copy.scrub(&mut |_, _| {}).unwrap();
            assert_eq!(scrubbed.told, Vec::<String>::new(), "{text}");
        }
    }
}

/// What objects read in each of their versions.
type Contents = HashMap<(u64, u64), Vec<u8>>;

fn contents(store: &Store, objects: &[u64]) -> Contents {
    let of_object = |id: &u64| {
        let object = store.versioned(*id).unwrap();
        let versions = object.versions(0, usize::MAX).unwrap().into_iter().map(|stat| stat.version);
        versions.map(|version| ((*id, version), all_of(&object, version))).collect::<Vec<_>>()
    };
    objects.iter().flat_map(of_object).collect()
}

/// What is whole after a stream broke off: each version that the copy has.
fn compare_part(contents: &Contents, copy: &Store, id: u64, text: &str) {
    let Ok(other) = copy.versioned(id) else { return };
    for stat in other.versions(0, usize::MAX).unwrap() {
        assert!(contents[&(id, stat.version)] == all_of(&other, stat.version), "{text}: version {}", stat.version);
    }
    let newest = other.newest().unwrap();
    let mut found = vec![1; 400_000];
    let count = other.read(0, &mut found).unwrap();
    let expected = contents.get(&(id, newest.version)).map_or(&[][..], Vec::as_slice);
    assert!(found[..count] == *expected, "{text}: the newest");
}

/// Where frames end.
fn frame_ends(stream: &[u8]) -> Vec<usize> {
    let mut ends = vec![START_BYTES];
    while let Some(length) = stream.get(ends[ends.len() - 1] + 4..).and_then(|rest| rest.first_chunk()) {
        ends.push(ends[ends.len() - 1] + 12 + usize::try_from(u32::from_le_bytes(*length)).unwrap());
    }
    ends
}

#[test]
fn a_stream_that_breaks_off_is_gone_on_with() {
    let mut resumed = 0;
    for seed in 100..190 {
        let mut random = Random::new(seed);
        let (store, versioned, whole) = source(&mut random, 30);
        let copy = Store::open(Recorder::from(DEVICE_BYTES, receiver(if seed % 2 == 0 { 20 } else { 21 }))).unwrap();
        let (mut gone, before) = (HashSet::new(), contents(&store, &versioned));
        if seed % 2 == 0 {
            // All that is there is of one version then, which comes in parts.
            store.clean(&Keep::default()).unwrap();
        }
        for round in 0..8 {
            let text = format!("seed {seed}, round {round}");
            let stream = send(&store, copy.have().unwrap(), 7);
            let mut end = usize::try_from(random.below(stream.len() as u64)).unwrap();
            if random.below(2) == 0 {
                let ends = frame_ends(&stream);
                end = ends[end % (ends.len() - 1)];
            }
            let broken = receive(&copy, &stream[..end]).unwrap_err();
            assert!(matches!(broken, Error::Stream { .. }), "{text}: {broken}");
            versioned.iter().for_each(|id| compare_part(&before, &copy, *id, &text));
            let have = copy.have().unwrap();
            resumed += have.iter().filter(|have| have.block > 0).count();
            if random.below(3) == 0 {
                // Neither cleaner is in the way.
                let keep = Keep { newest: random.below(3) + 1, ..Keep::default() };
                store.clean(&keep).unwrap();
                for id in versioned {
                    let Ok(object) = copy.versioned(id) else { continue };
                    gone.extend(object.versions(0, usize::MAX).unwrap());
                    object.clean(&keep).unwrap();
                }
            }
        }
        receive(&copy, &send(&store, copy.have().unwrap(), 7)).unwrap();
        versioned.iter().for_each(|id| compare(&store, &copy, *id, &gone, &format!("seed {seed}")));
        whole.iter().for_each(|object| compare_whole(&store, &copy, *object));
        assert!(copy.check().unwrap().is_clean());
    }
    assert!(resumed > 2, "inside a version, too: {resumed}");
}

#[test]
fn a_power_failure_of_the_receiver_is_gone_on_from() {
    for seed in 200..240 {
        let mut random = Random::new(seed);
        let (store, versioned, whole) = source(&mut random, 30);
        let (mut image, before, gone) = (receiver(21), contents(&store, &versioned), HashSet::new());
        for round in 0..4 {
            let text = format!("seed {seed}, round {round}");
            let device = Recorder::from(DEVICE_BYTES, image);
            let copy = Store::open(device.clone()).unwrap();
            receive(&copy, &send(&store, copy.have().unwrap(), 100)).unwrap();
            drop(copy);
            let calls = usize::try_from(random.below(device.asked() as u64 + 1)).unwrap();
            image = device.crash(calls, &mut random);
            let copy = Store::open(Recorder::from(DEVICE_BYTES, image.clone())).unwrap();
            versioned.iter().for_each(|id| compare_part(&before, &copy, *id, &text));
            for (id, kind) in whole {
                // It is there wholly, or not.
                if copy.exists(id).unwrap() {
                    compare_whole(&store, &copy, (id, kind));
                }
            }
            assert!(copy.check().unwrap().is_clean(), "{text}");
        }
        let copy = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        receive(&copy, &send(&store, copy.have().unwrap(), 100)).unwrap();
        versioned.iter().for_each(|id| compare(&store, &copy, *id, &gone, &format!("seed {seed}")));
        whole.iter().for_each(|object| compare_whole(&store, &copy, *object));
    }
}

#[test]
fn a_wrong_bit_is_refused_and_what_came_before_is_whole() {
    let mut random = Random::new(7);
    let (store, versioned, _) = source(&mut random, 30);
    let stream = send(&store, Vec::new(), 1000);
    let (empty, before, gone) = (receiver(21), contents(&store, &versioned), HashSet::new());
    for _ in 0..40 {
        let mut wrong = stream.clone();
        let at = usize::try_from(random.below(wrong.len() as u64)).unwrap();
        wrong[at] ^= 1 << random.below(8);
        let copy = Store::open(Recorder::from(DEVICE_BYTES, empty.clone())).unwrap();
        let Err(Error::Stream { frame, what }) = receive(&copy, &wrong) else { panic!("byte {at}") };
        assert!(frame > 0 || at < START_BYTES, "byte {at}: frame {frame}: {what}");
        versioned.iter().for_each(|id| compare_part(&before, &copy, *id, "a wrong bit"));
        receive(&copy, &send(&store, copy.have().unwrap(), 1000)).unwrap();
        versioned.iter().for_each(|id| compare(&store, &copy, *id, &gone, "after a wrong bit"));
    }
}

#[test]
fn another_object_is_not_written_over() {
    let (store, copy) = (format(30), format(30));
    let id = store.create_versioned().unwrap().id();
    store.versioned(id).unwrap().write(0, &[1; 10]).unwrap();
    let direct = store.create(Kind::Direct).unwrap();
    let only = |objects: &[u64]| {
        let mut stream = Vec::new();
        let options = SendOptions { objects: objects.to_vec(), ..SendOptions::default() };
        store.send(&options, &mut stream, &mut |_| {}).map(|_| stream)
    };
    let other = copy.create_versioned().unwrap();
    other.write(0, &[2; 10]).unwrap();
    copy.create(Kind::Direct).unwrap().write(0, &[3; 10]).unwrap();
    for (object, text) in [(id, "is another one than"), (direct.id(), "another one")] {
        let error = receive(&copy, &only(&[object]).unwrap()).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::OtherObject(_)) && said.contains(text), "{said}");
        assert!(said.contains(&format!("object {object} ")), "{said}");
    }
    assert_eq!((other.newest().unwrap().version, copy.object(2, Kind::Direct).unwrap().stat().unwrap().size), (1, 10));
    assert!(only(&[9]).unwrap_err().to_string().contains("no object 9"));
    // A plain one is written over only when that is asked for.
    let plain = store.create(Kind::Plain).unwrap().id();
    let stream = only(&[plain]).unwrap();
    receive(&copy, &stream).unwrap();
    let again = copy.receive(ReceiveOptions::default(), &mut &stream[..], &mut |_| {}).unwrap_err().to_string();
    assert!(again.contains("nothing says whether it is the same one"), "{again}");
}

#[test]
fn a_copy_refuses_what_does_not_go_on_from_it() {
    let (store, copy) = (format(30), format(30));
    let object = store.create_versioned().unwrap();
    object.write(0, &[1; 10]).unwrap();
    receive(&copy, &send(&store, Vec::new(), 10)).unwrap();
    let before = copy.have().unwrap();
    object.write(0, &[2; 10]).unwrap();
    let later = store.have().unwrap();
    object.write(0, &[3; 10]).unwrap();
    let gap = receive(&copy, &send(&store, later, 10)).unwrap_err().to_string();
    assert!(gap.contains("begins at version 3") && gap.contains("ends at 1"), "{gap}");
    // One that was written to has other versions.
    let copied = copy.versioned(object.id()).unwrap();
    copied.write(0, &[9; 10]).unwrap();
    for have in [before, copy.have().unwrap()] {
        let said = receive(&copy, &send(&store, have, 10)).unwrap_err().to_string();
        assert!(said.contains("version 2 of object 1: here it is another one"), "{said}");
    }
    assert_eq!(copied.newest().unwrap().version, 2);
}

#[test]
fn identifiers_that_were_received_are_given_to_nobody() {
    let (store, device) = (format(30), Recorder::from(DEVICE_BYTES, receiver(21)));
    let kept: Vec<u64> = (0..5).map(|_| store.create(Kind::Direct).unwrap().id()).collect();
    for opened in 0..3 {
        let copy = Store::open(device.clone()).unwrap();
        let own = copy.create(Kind::Direct).unwrap();
        if opened == 0 {
            assert!(copy.remove(own.id()).unwrap());
            copy.sync().unwrap();
            receive(&copy, &send(&store, Vec::new(), 10)).unwrap();
        }
        for _ in 0..3000 {
            let made = copy.create(Kind::Plain).unwrap().id();
            assert!(!kept.contains(&made), "{made}");
            copy.remove(made).unwrap();
        }
        kept.iter().for_each(|id| compare_whole(&store, &copy, (*id, Kind::Direct)));
        copy.close().unwrap();
    }
}

#[test]
fn an_object_that_came_in_part_leaves_nothing_in_its_region() {
    let store = format(30);
    store.create(Kind::Direct).unwrap().write(0, &[7; 3 << 20]).unwrap();
    let stream = send(&store, Vec::new(), 10);
    let device = Recorder::new(DEVICE_BYTES);
    // So few regions that identifiers are looked for where earlier ones were.
    let copy = Store::format(device.clone(), Format { region_shift: 48, ..Format::default() }).unwrap();
    assert!(receive(&copy, &stream[..2 << 20]).is_err());
    assert!(!copy.exists(1).unwrap());
    let last = (15 << 60 >> 48) - 1;
    while {
        let made = copy.create(Kind::Plain).unwrap().id();
        assert!(made != 1 && copy.remove(made).unwrap());
        made < last
    } {}
    copy.close().unwrap();
    drop(copy);
    let copy = Store::open(device).unwrap();
    let mut again = (0..1024).map(|_| copy.create(Kind::Plain).unwrap());
    let made = again.find(|made| made.id() == 1).unwrap();
    let mut found = vec![9; 3 << 20];
    made.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
}

/// A reader that gives little at a time, as a pipe may.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = into.len().min(777);
        self.0.read(&mut into[..count])
    }
}

/// A version whose blocks lie in more pieces than one commit can name, with most of them written over later.
#[test]
fn a_version_in_many_pieces_comes_in_parts() {
    let store = format(30);
    let object = store.create_versioned().unwrap();
    let blocks = 2000;
    object.write(0, &vec![1; blocks * BLOCK_BYTES]).unwrap();
    let copy = format(30);
    receive(&copy, &send(&store, Vec::new(), 300)).unwrap();
    for block in (0..blocks).step_by(2) {
        object.write((block * BLOCK_BYTES) as u64, &[2; BLOCK_BYTES]).unwrap();
    }
    object.clean(&Keep::default()).unwrap();
    let stream = send(&store, copy.have().unwrap(), 300);
    let mut found = vec![0; blocks * BLOCK_BYTES];
    for end in (0..stream.len()).step_by(1_500_000) {
        receive(&copy, &stream[..end]).unwrap_err();
        let copied = copy.versioned(object.id()).unwrap();
        assert_eq!(copied.newest().unwrap().version, 1);
        copied.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 1), "nothing of it is to be seen yet");
    }
    let refused = copy.versioned(object.id()).unwrap().write(0, &[5; 10]).unwrap_err();
    assert!(matches!(refused, Error::PartOfVersion(_)), "{refused}");
    let rest = send(&store, copy.have().unwrap(), 300);
    assert!(rest.len() < stream.len() / 4 * 3, "{} of {}", rest.len(), stream.len());
    copy.receive(ReceiveOptions::default(), &mut Slow(&rest), &mut |_| {}).unwrap();
    let mut expected = found.clone();
    copy.versioned(object.id()).unwrap().read(0, &mut found).unwrap();
    object.read(0, &mut expected).unwrap();
    assert!(found == expected);
    let cleaned = copy.versioned(object.id()).unwrap().clean(&Keep::default()).unwrap();
    assert_eq!(cleaned.versions, 1);
}

/// What the copy's cleaner moves has neither numbers nor times that a later version has.
#[test]
fn a_copy_that_was_cleaned_takes_what_was_written_before() {
    let (store, copy) = (format(30), format(20));
    let object = store.create_versioned().unwrap();
    object.write(0, &[1; 10 * BLOCK_BYTES]).unwrap();
    (0..90).for_each(|tag| assert_eq!(object.write(0, &[tag; BLOCK_BYTES]).unwrap(), u64::from(tag) + 2));
    let first = send(&store, Vec::new(), 1000);
    let have = store.have().unwrap();
    (0..5).for_each(|tag| assert_eq!(object.write(0, &[tag; 9]).unwrap(), u64::from(tag) + 92));
    let second = send(&store, have, 1000);
    receive(&copy, &first).unwrap();
    let copied = copy.versioned(object.id()).unwrap();
    assert!(copied.clean(&Keep::default()).unwrap().moved_blocks > 0);
    assert_eq!(receive(&copy, &second).unwrap().versions, 5);
    let gone = object.versions(0, 90).unwrap().into_iter().collect();
    compare(&store, &copy, object.id(), &gone, "after both");
    assert_eq!(copied.versions(0, usize::MAX).unwrap().len(), 6);
}
