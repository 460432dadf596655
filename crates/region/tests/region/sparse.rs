//! Stores in sparse files: what only they have. (`store.rs` and `versions.rs` run over them, too.)

use crate::recorder::{Form, Image, Random, Recorder, SPARSE_BYTES};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weft_region::device::HostSpace;
use weft_region::{
    BLOCK_BYTES, Checksums, Device, DumpOptions, Error, FileDevice, Format, Kind, ReceiveOptions, SendOptions, Store,
    dump,
};

const ROOM: u64 = 32 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const SHIFT: u8 = 40;

fn formatted() -> (Arc<Recorder>, Store) {
    let file = Recorder::sparse(ROOM, Image::new());
    let store = Form::Sparse.format(&file, SHIFT).unwrap();
    (file, store)
}

fn open(image: Image) -> (Arc<Recorder>, Store) {
    let file = Recorder::sparse(ROOM, image);
    (file.clone(), Store::open(file).unwrap())
}

/// A host's file with a length of its own.
struct Host(Arc<Recorder>, u64);

impl Device for Host {
    fn bytes(&self) -> u64 {
        self.1
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(place, into)
    }

    fn write_at(&self, place: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write_at(place, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, place: u64, bytes: u64) -> std::io::Result<()> {
        self.0.discard(place, bytes)
    }

    fn punch(&self, place: u64, bytes: u64) -> std::io::Result<()> {
        self.0.punch(place, bytes)
    }
}

#[test]
fn a_host_is_refused_that_lets_no_file_be_long_enough() {
    const EXT4: u64 = (16 << 40) - BLOCK;
    let file = Recorder::sparse(ROOM, Image::new());
    let format = |bytes, region_shift| {
        let host = Arc::new(Host(file.clone(), bytes));
        Store::format_sparse(host, Format { region_shift, overwrite: true, ..Format::default() })
    };
    let Err(error) = format(EXT4, 40) else { panic!("16 regions") };
    assert_eq!(
        error.to_string(),
        "the host lets a file have 17592186040320 bytes, and 1024 regions of this size need 1200959900635136"
    );
    assert_eq!(file.asked(), 0, "it is not touched");
    let store = format(EXT4, 30).unwrap();
    let id = store.create(Kind::Direct).unwrap().id();
    store.sync().unwrap();
    drop(store);
    let Err(Error::Shrunk(bytes, needed)) = Store::open(Arc::new(Host(file.clone(), 1 << 40))) else {
        panic!("a file that was cut was opened")
    };
    assert_eq!((bytes, needed), (1 << 40, EXT4));
    // A longer one is no other store.
    assert!(Store::open(file).unwrap().exists(id).unwrap());
}

#[test]
fn what_it_cannot_do_is_refused() {
    let (file, store) = formatted();
    let parts: [(u64, &[u8]); 2] = [(1 << SHIFT, &[1; 100]), (2 << SHIFT, &[2; 100])];
    let said = store.layer().write_atomic(&parts).unwrap_err().to_string();
    assert!(said.contains("several extents") && store.is_empty().unwrap(), "{said}");
    assert!(matches!(store.layer().write(SPARSE_BYTES - 1, &[1; 100]), Err(Error::Beyond)));
    let over_two = (5 << SHIFT) - 10..(5 << SHIFT) + 10;
    assert!(matches!(store.layer().write(over_two.start, &[1; 20]), Err(Error::Beyond)));
    assert!(matches!(store.layer().trim(over_two), Err(Error::Beyond)));
    drop(store);
    let said = Store::grow(file.clone()).err().unwrap().to_string();
    assert!(said.contains("sparse file"), "{said}");
    let format = Format { checksums: Checksums::All, overwrite: true, ..Format::default() };
    let said = Store::format_sparse(file.clone(), format).err().unwrap().to_string();
    assert!(said.contains("cannot have checksums"), "{said}");
    for format in [Store::format, Store::format_sparse] {
        let error = format(file.clone(), Format::default()).err().unwrap();
        assert_eq!(error.to_string(), "a region store in a sparse file is on it");
    }
    Store::open(file).unwrap();
    // A host without holes.
    let said = Store::format_sparse(Arc::new(Host(Recorder::new(1 << 60), 1 << 40)), Format::default());
    assert!(said.is_err());
}

#[test]
fn one_of_two_headers_may_be_lost() {
    let (file, store) = formatted();
    let id = store.create(Kind::Plain).unwrap().id();
    store.close().unwrap();
    drop(store);
    for copy in [0, 1] {
        for lose in [true, false] {
            let mut image = file.image();
            image.get_mut(&copy).unwrap()[if lose { 3 } else { 40 }] ^= 1;
            assert!(open(image).1.exists(id).unwrap(), "copy {copy}");
        }
    }
    let mut image = file.image();
    [0, 1].iter().for_each(|copy| image.get_mut(copy).unwrap()[40] ^= 1);
    assert!(matches!(Store::open(Recorder::sparse(ROOM, image)), Err(Error::Damaged(_))));
}

/// Data in a direct object are where the host has them: reads and writes are its own calls.
#[test]
fn calls_of_the_host() {
    let (file, store) = formatted();
    let counted = |work: &dyn Fn()| {
        let before = file.counts();
        work();
        (file.counts().0 - before.0, file.counts().1 - before.1)
    };
    let object = store.create(Kind::Direct).unwrap();
    object.write(0, &[1; 10 * BLOCK_BYTES]).unwrap();
    // Data; the bits; the size.
    assert_eq!(counted(&|| object.sync().unwrap()), (2, 2));
    assert_eq!(counted(&|| object.sync().unwrap()), (0, 1));
    assert_eq!(counted(&|| object.write_durable(BLOCK, &[2; BLOCK_BYTES]).unwrap()), (1, 1));
    assert_eq!(counted(&|| object.write(3 * BLOCK, &[2; 2 * BLOCK_BYTES]).unwrap()), (1, 0));
    // Identifiers are at hand. Of one that nobody finds after a crash a durable write makes it safe, too.
    let new = store.create(Kind::Plain).unwrap();
    assert_eq!(counted(&|| new.write_durable(BLOCK, &[3; BLOCK_BYTES]).unwrap()), (2, 2));
    assert_eq!(counted(&|| assert!(store.remove(object.id()).unwrap())), (0, 0));
    assert_eq!(counted(&|| store.sync().unwrap()), (1, 3));
    assert_eq!(counted(&|| (0..500).for_each(|_| drop(store.create(Kind::Plain).unwrap()))), (0, 0));
    assert_eq!(counted(&|| store.sync().unwrap()), (1, 2));
}

/// What became of an object.
struct Life {
    id: u64,
    /// All of it was written.
    is_whole: bool,
    /// After so many calls of the host: a sync had confirmed it; somebody began to remove it.
    confirmed: Option<usize>,
    removed: Option<usize>,
}

/// By the tag that is in an object.
type Lives = BTreeMap<u64, Life>;

const SPAN: usize = 20_000;

/// The bytes of the object with this tag.
fn bytes_of(tag: u64) -> Vec<u8> {
    let start = usize::try_from(tag % 7 * 1000).unwrap();
    let mut bytes = vec![0; SPAN];
    bytes[start..start + 9000].fill(u8::try_from(tag % 255 + 1).unwrap());
    bytes
}

fn make(store: &Store, tag: u64) -> weft_region::Result<Life> {
    let mut owner = [0; 24];
    owner[..8].copy_from_slice(&tag.to_le_bytes());
    let object = store.create_for(owner)?;
    let written = object.write(0, &bytes_of(tag)).and_then(|()| object.write_stat());
    Ok(Life { id: object.id(), is_whole: written.is_ok(), confirmed: None, removed: None })
}

/// Makes one, and writes a part of it again durably: that makes a new object safe, with all that it has.
fn make_one(store: &Store, file: &Recorder, tag: u64, durable: bool) -> weft_region::Result<Life> {
    let mut life = make(store, tag)?;
    if durable {
        let written = store.object(life.id, Kind::Direct)?.write_durable(0, &bytes_of(tag)[..BLOCK_BYTES]);
        life.confirmed = written.is_ok().then(|| file.asked());
    }
    Ok(life)
}

/// Makes, removes and syncs objects on a host that fails now and then.
fn churn(store: &Store, file: &Recorder, lives: &mut Lives, tags: &mut u64, random: &mut Random) {
    for _ in 0..random.below(40) + 1 {
        if random.below(8) == 0 {
            file.fail_in(Some(random.below(6)));
        }
        let there: Vec<u64> = lives.iter().filter(|(_, life)| life.removed.is_none()).map(|(tag, _)| *tag).collect();
        match random.below(5) {
            0 => {
                let synced = if random.below(4) == 0 { store.close() } else { store.sync() };
                let unconfirmed = lives.values_mut().filter(|life| life.removed.is_none() && life.confirmed.is_none());
                if synced.is_ok() {
                    unconfirmed.for_each(|life| life.confirmed = Some(file.asked()));
                }
            }
            1 | 2 if !there.is_empty() => {
                let tag = there[usize::try_from(random.below(there.len() as u64)).unwrap()];
                let (life, begun) = (lives.get_mut(&tag).unwrap(), file.asked());
                if store.remove(life.id).is_ok() {
                    life.removed = Some(begun);
                }
            }
            _ => {
                *tags += 1;
                lives.extend(make_one(store, file, *tags, random.below(4) == 0).ok().map(|life| (*tags, life)));
            }
        }
        file.fail_in(None);
    }
}

/// Each object that is there is whole in its first block and one of these, and all whole if it is to be; nothing else
/// takes space. The ones that are there.
fn look(store: &Store, file: &Recorder, lives: &Lives, calls: usize, text: &str) -> Lives {
    let findings = store.check().unwrap();
    assert!(findings.is_clean(), "{text}: {findings:?}");
    let mut found = Lives::new();
    let mut is_there = |id| {
        let object = match store.object(id, Kind::Direct) {
            Err(Error::NoObject) => return false,
            object => object.unwrap(),
        };
        let tag = u64::from_le_bytes(*object.owner().first_chunk().unwrap());
        let life = lives.get(&tag).unwrap_or_else(|| panic!("{text}: object {id} has tag {tag}"));
        let is_safe = life.confirmed.is_some_and(|confirmed| confirmed <= calls);
        let mut bytes = vec![0; SPAN];
        store.layer().read((id << SHIFT) + BLOCK, &mut bytes).unwrap();
        let is_own = bytes.iter().zip(bytes_of(tag)).all(|(found, own)| *found == 0 || *found == own);
        assert!(life.id == id && is_own, "{text}: object {id}");
        let is_whole = life.is_whole && is_safe;
        assert!(!is_whole || bytes == bytes_of(tag) && object.stat().unwrap().size == SPAN as u64, "{text}: {id}");
        found.insert(tag, Life { id, is_whole, confirmed: Some(0), removed: None });
        true
    };
    for life in lives.values() {
        let is_safe = life.confirmed.is_some_and(|confirmed| confirmed <= calls);
        let was_there = is_safe && life.removed.is_none_or(|removed| removed >= calls);
        assert!(is_there(life.id) || !was_there, "{text}: object {} is lost", life.id);
    }
    let has_bytes = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let image = file.image();
    let regions = image.iter().filter(|(_, bytes)| has_bytes(bytes)).map(|(block, _)| (block * BLOCK) >> SHIFT);
    let end = store.layer().own().regions_end >> SHIFT;
    let nobody = regions.filter(|id| (1..end).contains(id)).find(|id| found.values().all(|life| life.id != *id));
    assert_eq!(nobody, None, "{text}: it has bytes, and no object");
    found
}

/// Whatever fails, and whenever the host loses power.
#[test]
fn an_object_is_there_with_what_it_begins_with_or_leaves_nothing() {
    let (mut lost, mut kept, mut came_back) = (0, 0, 0);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (file, store) = formatted();
        drop(store);
        let (mut image, mut lives, mut tags) = (file.image(), Lives::new(), seed);
        for failure in 0..6 {
            let (file, store) = open(image);
            churn(&store, &file, &mut lives, &mut tags, &mut random);
            drop(store);
            let calls = usize::try_from(random.below(file.asked() as u64 + 1)).unwrap();
            image = file.crash(calls, &mut random);
            let (file, store) = open(image);
            let found = look(&store, &file, &lives, calls, &format!("seed {seed}, failure {failure}"));
            kept += found.len();
            lost += lives.len() - found.len();
            came_back += found.keys().filter(|tag| lives[tag].removed.is_some_and(|removed| removed < calls)).count();
            (lives, image) = (found, file.image());
        }
    }
    assert!(lost > 1000 && kept > 1000 && came_back > 100, "{lost} {kept} {came_back}");
}

/// What was written fails nothing that was there, and what is removed makes room.
#[test]
fn a_full_host_loses_nothing() {
    let (file, store) = formatted();
    let empty = store.usage();
    assert!(empty.free <= ROOM && empty.free > ROOM - 20 * BLOCK, "{empty:?}");
    let mut lives = Lives::new();
    let full = loop {
        let tag = lives.len() as u64;
        match make(&store, tag) {
            Ok(life) if life.is_whole => drop(lives.insert(tag, life)),
            Ok(life) => break life,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(lives.len() > 1000, "{}", lives.len());
    let some = store.object(lives[&7].id, Kind::Direct).unwrap();
    assert!(matches!(some.write(1 << 20, &[1; 200_000]), Err(Error::NoSpace)));
    some.write(0, &bytes_of(7)).unwrap();
    store.sync().unwrap();
    assert!(matches!(store.create_versioned().unwrap().write(0, &[1; 200_000]), Err(Error::NoSpace)));
    assert!(store.remove(full.id).unwrap());
    lives.values().take(500).for_each(|life| assert!(store.remove(life.id).unwrap()));
    let kept = lives.split_off(&500);
    store.sync().unwrap();
    assert!(store.usage().free > 500 * 3 * BLOCK);
    make(&store, 5000).unwrap();
    for (tag, life) in &kept {
        let mut found = vec![0; SPAN];
        assert_eq!(store.object(life.id, Kind::Direct).unwrap().read(0, &mut found).unwrap(), SPAN);
        assert!(found == bytes_of(*tag), "{tag}");
    }
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap() && store.usage().free >= empty.free - 2 * BLOCK, "{:?}", store.usage());
    assert_eq!(file.image().keys().filter(|block| **block > 4 && (**block * BLOCK) >> SHIFT < 1000).count(), 0);
}

/// Of all objects that are removed at once any may come back, whole.
#[test]
fn a_power_failure_while_all_are_removed_leaves_whole_objects() {
    let (file, store) = formatted();
    let mut lives: Lives = (0..40).map(|tag| (tag, make(&store, tag).unwrap())).collect();
    store.sync().unwrap();
    lives.values_mut().for_each(|life| life.confirmed = Some(0));
    drop(store);
    let (file, store) = open(file.image());
    store.remove_all().unwrap();
    assert!(store.is_empty().unwrap());
    for calls in 0..=file.asked() {
        for seed in 0..5 {
            let (left, store) = open(file.crash(calls, &mut Random::new(seed)));
            lives.values_mut().for_each(|life| life.removed = Some(0));
            let found = look(&store, &left, &lives, calls, &format!("after {calls} calls"));
            assert!(calls > 1 || found.len() == 40);
            assert!(calls < file.asked() || found.is_empty());
        }
    }
}

/// A host's own files: those of a disk's file system, mostly past the page cache, and of one in memory.
fn on_a_host(directory: &Path) {
    let path = directory.join(format!("weft-region-sparse-{}", std::process::id()));
    let format = Format { region_shift: 32, ..Format::default() };
    let file = FileDevice::create_sparse(&path).unwrap();
    assert!(file.bytes() > 1 << 43, "{}", file.bytes());
    let store = Store::format_sparse(Arc::new(file), format).unwrap();
    let taken = || {
        let HostSpace { taken, .. } = FileDevice::open(&path).unwrap().host_space().unwrap();
        taken
    };
    let object = store.create(Kind::Direct).unwrap();
    let end = object.capacity();
    for offset in [0, 5000, 1 << 30, end - 10_000] {
        object.write(offset, &[7; 10_000]).unwrap();
        object.write_durable(offset, &[8; 5000]).unwrap();
    }
    let versioned = store.create_versioned().unwrap();
    for version in 1..=20 {
        // Zeros, which some hosts do not keep.
        versioned.write(0, &[if version == 13 { 0 } else { version }; 20_000]).unwrap();
    }
    let (id, of_versions, gone) = (object.id(), versioned.id(), store.create(Kind::Direct).unwrap());
    gone.write(0, &vec![1; 8 << 20]).unwrap();
    store.sync().unwrap();
    assert!(store.remove(gone.id()).unwrap());
    store.close().unwrap();
    drop((object, versioned, gone, store));
    assert!(taken() < 6 << 20, "{}", taken());

    let store = Store::open(Arc::new(FileDevice::open(&path).unwrap())).unwrap();
    let object = store.object(id, Kind::Direct).unwrap();
    for offset in [5000, 1 << 30, end - 10_000] {
        let mut found = vec![0; 10_000];
        assert_eq!(object.read(offset, &mut found).unwrap(), 10_000);
        assert!(found == [[8; 5000], [7; 5000]].concat(), "{offset}");
    }
    let mut found = vec![0; 20_000];
    for (stat, version) in store.versioned(of_versions).unwrap().versions(0, 100).unwrap().iter().zip(1..) {
        store.versioned(of_versions).unwrap().at(stat.version).unwrap().read(0, &mut found).unwrap();
        assert!(found == vec![if version == 13 { 0 } else { version }; 20_000], "{version}");
    }
    let scrubbed = store.scrub(&mut |_, _| {}).unwrap();
    assert_eq!((scrubbed.commits, scrubbed.damaged), (20, 0));
    assert!(store.check().unwrap().is_clean());
    store.remove_all().unwrap();
    store.close().unwrap();
    drop((object, store));
    assert!(taken() < 3 << 20, "{}", taken());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn files_of_hosts() {
    on_a_host(&std::env::temp_dir());
    on_a_host(Path::new("/dev/shm"));
    let said = FileDevice::create_sparse(Path::new("/dev/zero")).err().unwrap().to_string();
    assert!(said.contains("only a file"), "{said}");
}

/// Streams say nothing of what maps the blocks.
#[test]
fn objects_go_from_one_form_to_the_other() {
    let (file, store) = formatted();
    let direct = make(&store, 3).unwrap().id;
    let plain = store.create(Kind::Plain).unwrap();
    plain.write(1 << 20, &[5; 5000]).unwrap();
    let versioned = store.create_versioned().unwrap();
    for number in 1..=5 {
        versioned.write(0, &[number; 9000]).unwrap();
    }
    let mut from: Store = store;
    for form in [Form::Mapped(Checksums::All), Form::Sparse] {
        let mut stream = Vec::new();
        from.send(&SendOptions::default(), &mut stream, &mut |_| {}).unwrap();
        assert!(stream.len() < 1 << 20, "holes are not sent");
        let to = form.format(&form.device(ROOM, Image::new()), SHIFT).unwrap();
        for _ in 0..2 {
            // The second time they take the place of those that are there.
            let options = ReceiveOptions { remove: true, ..ReceiveOptions::default() };
            to.receive(options, &mut &stream[..], &mut |_| {}).unwrap();
            let mut found = vec![0; SPAN];
            assert_eq!(to.object(direct, Kind::Direct).unwrap().read(0, &mut found).unwrap(), SPAN);
            assert!(found == bytes_of(3), "{form:?}");
            to.object(plain.id(), Kind::Plain).unwrap().read(1 << 20, &mut found[..5001]).unwrap();
            assert!(found[..5000] == [5; 5000] && found[5000] == 0, "{form:?}");
            assert_eq!(to.versioned(versioned.id()).unwrap().versions(0, 9).unwrap().len(), 5);
        }
        assert!(to.check().unwrap().is_clean());
        from = to;
    }
    drop(file);
}

#[test]
fn a_dump_tells_of_what_is_there_and_of_what_was_left() {
    let (file, store) = formatted();
    make(&store, 3).unwrap();
    store.sync().unwrap();
    make(&store, 4).unwrap();
    drop(store);
    let mut lines = Vec::new();
    let device: Arc<dyn Device> = file.clone();
    let asked = file.asked();
    dump(&device, DumpOptions { scan: true, ..DumpOptions::default() }, &mut |line| lines.push(line)).unwrap();
    assert_eq!(file.asked(), asked, "nothing was written");
    let [first, second, rest @ ..] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(first.starts_with("header 0: store ") && second.starts_with("header 1: store "), "{lines:?}");
    assert_eq!(
        rest,
        [
            "region 1: object 1, 20000 bytes of 3/0; 4 blocks in 1 pieces",
            "not there: region 2: object 2, 20000 bytes of 4/0; 5 blocks in 1 pieces"
        ]
    );
}
