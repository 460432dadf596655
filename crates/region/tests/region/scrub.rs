//! What is said of stores, whole and damaged ones.

use crate::recorder::{BOTH, Image, Random, Recorder};
use std::sync::Arc;
use weft_region::{BLOCK_BYTES, Checksums, Device, DumpOptions, Error, Format, Kind, Scrubbed, Shadow, Store, dump};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where this store's map and data begin, blocks: see `Geometry::of`.
const MAP_START: u64 = 16 + 256;
const DATA_START: u64 = MAP_START + 1024;

/// A store with two objects in direct mode and one that keeps versions, left without being closed.
fn image(checksums: Checksums) -> Image {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    for tag in [1, 2] {
        store.create(Kind::Direct).unwrap().write(0, &[tag; 20_000]).unwrap();
    }
    let object = store.create_versioned().unwrap();
    for tag in 1..=10 {
        object.write(0, &[tag * 16; 10_000]).unwrap();
    }
    store.close().unwrap();
    store.create(Kind::Direct).unwrap();
    store.sync().unwrap();
    device.image()
}

fn scrub(device: Arc<Recorder>) -> weft_region::Result<Scrubbed> {
    let mut told = Vec::new();
    let store = Store::open_verified(Shadow::new(device))?;
    let mut scrubbed = store.scrub(&mut |done, of| told.push((done, of)))?;
    store.check()?.told().into_iter().for_each(|text| scrubbed.tell(text));
    assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "it goes on");
    assert_eq!(told.last().map(|(done, _)| *done), Some(scrubbed.blocks));
    Ok(scrubbed)
}

fn dumped(device: Arc<Recorder>, options: DumpOptions) -> Vec<String> {
    let mut lines = Vec::new();
    dump(&(device as Arc<dyn Device>), options, &mut |line| lines.push(line)).unwrap();
    lines
}

/// The data block whose bytes are all this.
fn block_of(image: &Image, byte: u8) -> u64 {
    let found = image.iter().filter(|(block, bytes)| **block >= DATA_START && bytes.iter().all(|one| *one == byte));
    *found.map(|(block, _)| block).min().unwrap()
}

#[test]
fn a_whole_store_is_in_order_and_is_not_changed() {
    for checksums in BOTH {
        let device = Recorder::from(DEVICE_BYTES, image(checksums));
        let asked = device.asked();
        let scrubbed = scrub(device.clone()).unwrap();
        assert_eq!((scrubbed.commits, scrubbed.commits_in_part, scrubbed.damaged), (10, 0, 0));
        dumped(device.clone(), DumpOptions { entries: true, scan: true });
        assert_eq!(device.asked(), asked, "nothing was written");
    }
}

#[test]
fn wrong_bytes_of_a_version_are_found() {
    let mut image = image(Checksums::Metadata);
    let block = block_of(&image, 80);
    image.get_mut(&block).unwrap()[77] ^= 1;
    let scrubbed = scrub(Recorder::from(DEVICE_BYTES, image)).unwrap();
    assert_eq!((scrubbed.commits, scrubbed.told), (9, vec!["object 3, version 5: its data".to_owned()]));
}

#[test]
fn blocks_that_cannot_be_read_are_named_and_passed() {
    let image = image(Checksums::All);
    let block = block_of(&image, 2);
    let device = Recorder::from(DEVICE_BYTES, image);
    device.lose(block);
    let scrubbed = scrub(device.clone()).unwrap();
    assert_eq!(scrubbed.told, ["object 2, byte 4096 of its region: a medium error"]);
    assert_eq!(scrubbed.commits, 10);
    // Who reads there is told, others read on.
    let store = Store::open(device).unwrap();
    let object = store.object(2, Kind::Direct).unwrap();
    assert!(matches!(object.read(0, &mut [0; 10]), Err(Error::Device { .. })));
    assert_eq!(object.read(4096, &mut [0; 10]).unwrap(), 10);
}

#[test]
fn pages_of_the_map_are_compared_with_their_checksums() {
    let whole = image(Checksums::All);
    let mut found = 0;
    let mut map: Vec<u64> = whole.keys().copied().filter(|block| (MAP_START + 1..DATA_START).contains(block)).collect();
    map.sort_unstable();
    for block in &map {
        let mut image = whole.clone();
        let bytes = image.get_mut(block).unwrap();
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        bytes[9] ^= 4;
        // Pages that are in no tree any more are in nobody's way.
        match Store::open_verified(Shadow::new(Recorder::from(DEVICE_BYTES, image))) {
            Err(Error::Damaged(_)) => found += 1,
            Err(error) => panic!("block {block}: {error}"),
            Ok(_) => {}
        }
    }
    assert!(found > 4, "{found} of {}", map.len());
}

#[test]
fn a_dump_says_what_is_there_and_goes_on_past_damage() {
    let mut image = image(Checksums::Metadata);
    let whole = dumped(Recorder::from(DEVICE_BYTES, image.clone()), DumpOptions::default());
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
    for text in [
        "super block 1: store",
        "map: it has the records before",
        "region 1: object 1, 20000 bytes; 6 blocks in",
        "region 3: object 3, which keeps versions",
        "region 4: object 4, 0 bytes; 1 blocks",
        "changes, ",
    ] {
        assert!(has(&whole, text), "{text}: {whole:#?}");
    }
    image.insert(0, vec![0; BLOCK_BYTES].into());
    image.insert(1, vec![0; BLOCK_BYTES].into());
    let scanned = dumped(Recorder::from(DEVICE_BYTES, image), DumpOptions { scan: true, entries: true });
    for text in [
        "super block 0: there is no region store",
        "as if it were a store of this size",
        "virtual blocks from 0x100000 on are",
        ": object 2, 20000 bytes",
        ": object 3, which keeps versions",
        ": version 10 of an object with nonce",
    ] {
        assert!(has(&scanned, text), "{text}: {scanned:#?}");
    }
}

#[test]
fn a_dump_says_whose_objects_are_and_from_which_byte_on() {
    let device = Recorder::new(DEVICE_BYTES);
    let store = Store::format(device.clone(), Format { region_shift: 30, ..Format::default() }).unwrap();
    for start in [0, 1 << 40] {
        let numbers = [0x1_0000_0000_0005_u64, 0x2a, start].map(u64::to_le_bytes);
        let owner = numbers.as_flattened().try_into().unwrap();
        store.create_for(owner).unwrap().write(0, &[1; 7]).unwrap();
    }
    store.close().unwrap();
    let lines = dumped(device, DumpOptions::default());
    let has = |text: &str| assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
    has("object 1, 7 bytes of 1000000000005/2a;");
    has("object 2, 7 bytes of 1000000000005/2a from byte 1099511627776 on;");
}

#[test]
fn no_damage_makes_a_scrub_or_a_dump_panic() {
    let whole = BOTH.map(image);
    for seed in 0..300 {
        let (mut random, mut image) = (Random::new(seed), whole[usize::try_from(seed % 2).unwrap()].clone());
        let mut used: Vec<u64> = image.keys().copied().collect();
        used.sort_unstable();
        for _ in 0..random.below(6) + 1 {
            let block = used[usize::try_from(random.below(used.len() as u64)).unwrap()];
            let bytes = image.get_mut(&block).unwrap();
            let at = usize::try_from(random.below(BLOCK_BYTES as u64)).unwrap();
            match random.below(3) {
                0 => bytes.iter_mut().skip(at).for_each(|byte| *byte = u8::try_from(random.next() & 0xff).unwrap()),
                1 => bytes[at % 128] ^= 1 << random.below(8),
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        let device = Recorder::from(DEVICE_BYTES, image);
        if random.below(3) == 0 {
            device.lose(used[usize::try_from(random.below(used.len() as u64)).unwrap()]);
        }
        let store = Store::open_verified(Shadow::new(device.clone()));
        let _ = store.and_then(|store| store.scrub(&mut |_, _| {}).and_then(|_| store.check()));
        let _ = dump(&(device as Arc<dyn Device>), DumpOptions { entries: true, scan: true }, &mut |_| {});
    }
}

/// Blocks of pages, of the map and of the index, by what a scrub says of each when it alone is damaged.
#[test]
fn a_scrub_names_each_damaged_page() {
    let whole = image(Checksums::Metadata);
    let damaged = |blocks: &[u64]| {
        let mut image = whole.clone();
        blocks.iter().for_each(|block| image.get_mut(block).unwrap()[9] ^= 4);
        Recorder::from(DEVICE_BYTES, image)
    };
    let told = |blocks: &[u64]| {
        Store::open(damaged(blocks)).and_then(|store| store.scrub(&mut |_, _| {})).map(|found| found.told)
    };
    let mut blocks: Vec<u64> = whole.keys().copied().filter(|block| *block > MAP_START).collect();
    blocks.sort_unstable();
    for tree in ["the map: a tree: block ", "the index of versions: a tree: block "] {
        let alone = |block: &&u64| told(&[**block]).is_ok_and(|told| told.len() == 1 && told[0].starts_with(tree));
        let pages: Vec<u64> = blocks.iter().filter(alone).copied().take(3).collect();
        let expected: Vec<String> = pages.iter().flat_map(|page| told(&[*page]).unwrap()).collect();
        assert!(pages.len() > 1, "{tree}: {pages:?}");
        let mut found = told(&pages).unwrap();
        found.sort_unstable_by_key(|line| expected.iter().position(|expected| expected == line));
        assert_eq!(found, expected, "{tree}: {pages:?}");
        if tree.starts_with("the map") {
            let opened = Store::open_verified(Shadow::new(damaged(&pages)));
            let said = opened.err().unwrap().to_string();
            assert!(expected.iter().all(|line| said.contains(line.trim_start_matches("the map: "))), "{said}");
        }
    }
}
