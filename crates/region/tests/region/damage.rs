//! Damage on the device: what is read is right or an error.

use crate::recorder::{BOTH, Image, Recorder};
use weft_region::{BLOCK_BYTES, Checksums, Error, Format, Kind, Shadow, Store};

const DEVICE_BYTES: u64 = 32 << 20;
/// Where the parts of this store begin, blocks: see `Geometry::of`.
const MAP_START: u64 = 16 + 256;
const DATA_START: u64 = MAP_START + 1024;
const OBJECTS: u8 = 40;
const BYTES: usize = 3 * BLOCK_BYTES;

/// A store of objects whose bytes are all their number, closed.
fn numbered(checksums: Checksums) -> Image {
    let device = Recorder::new(DEVICE_BYTES);
    let format = Format { region_shift: 30, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    for number in 1..=OBJECTS {
        let object = store.create(Kind::Direct).unwrap();
        assert_eq!(object.id(), u64::from(number));
        object.write(0, &[number; BYTES]).unwrap();
        object.sync().unwrap();
    }
    store.close().unwrap();
    device.image()
}

/// Reads all objects. Returns the number of errors; everything else is right.
fn read_numbered(store: &Store, text: &str) -> usize {
    let mut errors = 0;
    for number in 1..=OBJECTS {
        let mut found = vec![0; BYTES];
        let read = store.object(u64::from(number), Kind::Direct).and_then(|object| object.read(0, &mut found));
        match read {
            Ok(count) => assert!(count == BYTES && found.iter().all(|byte| *byte == number), "{text}: object {number}"),
            Err(Error::Damaged(_)) => errors += 1,
            Err(error) => panic!("{text}: object {number}: {error}"),
        }
    }
    errors
}

#[test]
fn no_wrong_bit_in_the_map_is_served() {
    for checksums in BOTH {
        let whole = numbered(checksums);
        let mut map: Vec<u64> = whole.keys().copied().filter(|block| (MAP_START..DATA_START).contains(block)).collect();
        map.sort_unstable();
        map.retain(|block| whole[block].iter().any(|byte| *byte != 0));
        let (mut errors, mut found) = (0, 0);
        for block in &map {
            for at in (0..BLOCK_BYTES).step_by(97) {
                let mut image = whole.clone();
                image.get_mut(block).unwrap()[at] ^= 1 << (at % 8);
                let text = format!("{checksums}, block {block}, byte {at}");
                let device = Recorder::from(DEVICE_BYTES, image);
                let failed = match Store::open(Shadow::new(device.clone())) {
                    Ok(store) => {
                        let failed = read_numbered(&store, &text);
                        let scrubbed = store.scrub(&mut |_, _| {});
                        let is_told = !scrubbed.is_ok_and(|scrubbed| scrubbed.damaged == 0);
                        assert!(failed == 0 || is_told, "{text}: a scrub finds it");
                        found += usize::from(is_told);
                        failed
                    }
                    Err(Error::Damaged(_)) => 1,
                    Err(error) => panic!("{text}: {error}"),
                };
                errors += usize::from(failed > 0);
            }
        }
        assert!(errors > 50 && found > 0, "{checksums}: {errors} errors, {found} found");
    }
}

/// Data blocks of two objects, each in place of the other.
#[test]
fn data_in_the_wrong_place_do_not_match_their_checksum() {
    let mut image = numbered(Checksums::All);
    let block_of = |image: &Image, number: u8| {
        let found =
            image.iter().filter(|(block, bytes)| **block >= DATA_START && bytes.iter().all(|one| *one == number));
        found.map(|(block, _)| *block).min().unwrap()
    };
    let (one, other) = (block_of(&image, 3), block_of(&image, 4));
    let bytes = image[&one].clone();
    image.insert(one, image[&other].clone());
    image.insert(other, bytes);
    let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
    assert_eq!(read_numbered(&store, "exchanged"), 2);
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().damaged, 2);
}

/// Superblocks are two, and the store opens with one.
#[test]
fn a_damaged_superblock_is_found_by_a_scrub() {
    for copy in 0..2 {
        let mut image = numbered(Checksums::Metadata);
        image.get_mut(&copy).unwrap()[70] ^= 2;
        let store = Store::open(Recorder::from(DEVICE_BYTES, image)).unwrap();
        assert_eq!(read_numbered(&store, "one superblock"), 0);
        let told = store.scrub(&mut |_, _| {}).unwrap().told;
        assert_eq!(told, [format!("superblock {copy}: damaged: the checksum of a super block")]);
    }
}

#[test]
fn a_store_of_an_earlier_format_is_refused() {
    let mut image = numbered(Checksums::Metadata);
    for copy in 0..2 {
        let block = image.get_mut(&copy).unwrap();
        block[8..12].copy_from_slice(&2u32.to_le_bytes());
        block[12..16].fill(0);
        let checksum = crc32c::crc32c(&block[..512]);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    assert!(matches!(Store::open(Recorder::from(DEVICE_BYTES, image)), Err(Error::OldFormat(2))));
}
