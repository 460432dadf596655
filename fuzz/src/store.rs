//! A region store with damaged blocks, also with blocks whose checksums are right: opened, looked through and read.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use weft_region::decoders::{DECODERS, Decoder};
use weft_region::{BLOCK_BYTES, Checksums, Device, DumpOptions, Format, Kind, ObjectKind, Shadow, Store, dump};

/// The least that a store can have.
const DEVICE_BYTES: u64 = 16 << 20;
/// Bytes that tell of one damaged block, at least.
const CHANGE_BYTES: usize = 8;
/// Bytes read of an object at a time.
const READ_BYTES: usize = 16 << 10;

type Image = BTreeMap<u64, Vec<u8>>;

/// Blocks of a store, and those that were written since.
struct Memory {
    image: Arc<Image>,
    written: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Memory {
    fn new(image: Arc<Image>) -> Arc<Self> {
        Arc::new(Self { image, written: Mutex::default() })
    }

    /// All blocks as they are now.
    fn image(&self) -> Image {
        let mut image = (*self.image).clone();
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        image.extend(written.iter().map(|(block, bytes)| (*block, bytes.clone())));
        image
    }
}

fn blocks(place: u64, bytes: usize) -> io::Result<std::ops::Range<u64>> {
    let is_inside = place.checked_add(bytes as u64).is_some_and(|end| end <= DEVICE_BYTES);
    let first = place / BLOCK_BYTES as u64;
    is_inside.then(|| first..first + (bytes / BLOCK_BYTES) as u64).ok_or(io::ErrorKind::UnexpectedEof.into())
}

impl Device for Memory {
    fn bytes(&self) -> u64 {
        DEVICE_BYTES
    }

    fn read_at(&self, place: u64, into: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (block, into) in blocks(place, into.len())?.zip(into.chunks_mut(BLOCK_BYTES)) {
            match written.get(&block).or_else(|| self.image.get(&block)) {
                Some(found) => into.copy_from_slice(found),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, place: u64, from: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = blocks(place, from.len())?.zip(from.chunks(BLOCK_BYTES));
        written.extend(blocks.map(|(block, bytes)| (block, bytes.to_vec())));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _place: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Stores in both modes, with objects of all kinds, in the map and in the log; and their blocks that say something.
fn stores() -> &'static [(Image, Vec<u64>); 2] {
    static STORES: OnceLock<[(Image, Vec<u64>); 2]> = OnceLock::new();
    STORES.get_or_init(|| {
        [Checksums::Metadata, Checksums::All].map(|checksums| {
            let image = made(checksums);
            // Blank sectors of the log have nothing behind their frames.
            let says = |bytes: &[u8]| bytes.chunks(512).any(|sector| sector[16..].iter().any(|byte| *byte != 0));
            let blocks = image.iter().filter(|(_, bytes)| says(bytes)).map(|(block, _)| *block).collect();
            (image, blocks)
        })
    })
}

fn made(checksums: Checksums) -> Image {
    let device = Memory::new(Arc::default());
    let format = Format { region_shift: 24, checksums, ..Format::default() };
    let store = Store::format(device.clone(), format).expect("a store");
    let versioned = store.create_versioned().expect("made");
    let fill = |number: u8| {
        let object = store.create(Kind::Direct).expect("made");
        object.write(0, &[number; 3 * BLOCK_BYTES]).and_then(|()| object.sync()).expect("written");
        versioned.write_durable(u64::from(number) << 10, &[number; 5000]).expect("written");
    };
    (1..8).for_each(fill);
    store.close().expect("closed");
    (8..16).for_each(fill);
    store.create(Kind::Plain).and_then(|plain| plain.write(0, &[7; BLOCK_BYTES])).expect("made");
    store.sync().expect("synced");
    // Not closed: what is in the log is replayed.
    device.image().into_iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect()
}

/// Any bytes say which blocks are damaged, and how: see [`change`].
pub fn run(bytes: &[u8]) -> bool {
    let (whole, blocks) = &stores()[usize::from(bytes.first().copied().unwrap_or(0) & 1)];
    let mut image = whole.clone();
    let mut rest = bytes.get(1..).unwrap_or_default();
    for _ in 0..4 {
        let Some((head, behind)) = rest.split_first_chunk::<CHANGE_BYTES>() else { break };
        let some;
        (some, rest) = behind.split_at(behind.len().min(usize::from(head[3]) * 4));
        change(&mut image, blocks, *head, some);
    }
    let device = Memory::new(Arc::new(image));
    let mut count = 0;
    let device: Arc<dyn Device> = device;
    let _ = dump(&device, DumpOptions { entries: true, scan: true }, &mut |_| count += 1);
    let _ = Store::repair(Arc::clone(&device), false, &mut |_| count += 1);
    let _ = Store::open_verified(Shadow::new(Arc::clone(&device))).and_then(|store| store.scrub(&mut |_, _| {}));
    let opened = Store::open(device);
    if let Ok(store) = &opened {
        let _ = store.check();
        read_all(store);
        let _ = store.create(Kind::Direct).and_then(|object| object.write(0, b"new")).and_then(|()| store.close());
    }
    opened.is_ok()
}

/// Damages a block in use: bits, other bytes, or another block; or what it says, with the right checksum.
fn change(image: &mut Image, blocks: &[u64], head: [u8; CHANGE_BYTES], some: &[u8]) {
    let [low, high, how, _, at_low, at_high, from_low, from_high] = head;
    let nth = |image: &Image, low, high| {
        let block = blocks.get(usize::from(u16::from_le_bytes([low, high])) % blocks.len())?;
        Some((*block, image.get(block)?.clone()))
    };
    let Some((block, before)) = nth(image, low, high) else { return };
    let at = usize::from(u16::from_le_bytes([at_low, at_high])) % BLOCK_BYTES;
    let mut after = before.clone();
    match how % 4 {
        0 => after[at] ^= 1 << (from_low % 8),
        1 => after.iter_mut().skip(at).zip(some).for_each(|(place, byte)| *place = *byte),
        2 => after = nth(image, from_low, from_high).map_or_else(|| vec![0; BLOCK_BYTES], |(_, bytes)| bytes),
        _ => {
            if let Some(said) = said_anew(&before, at % 128, some) {
                after = said;
            }
        }
    }
    after.resize(BLOCK_BYTES, 0);
    image.insert(block, after);
}

/// What a block says, with other bytes at a place, and with the checksums of that.
fn said_anew(before: &[u8], at: usize, some: &[u8]) -> Option<Vec<u8>> {
    let Decoder { name, seal, .. } = DECODERS.iter().find(|decoder| (decoder.decode)(before).is_some())?;
    let mut said = before.to_vec();
    if ["region_log_record", "region_commit"].contains(name) {
        // Without the frames of its sectors.
        said = before.chunks(512).flat_map(|sector| &sector[16..]).copied().collect();
    }
    said.iter_mut().skip(at).zip(some.iter().take(8)).for_each(|(place, byte)| *place = *byte);
    Some(seal(&said))
}

fn read_all(store: &Store) {
    let mut into = vec![0; READ_BYTES];
    for id in store.list().unwrap_or_default().into_iter().take(64) {
        match store.kind_of(id) {
            Ok(Some(ObjectKind::Direct)) => {
                let _ = store.object(id, Kind::Direct).and_then(|object| object.read(0, &mut into));
            }
            Ok(Some(ObjectKind::Plain)) => {
                let _ = store.object(id, Kind::Plain).and_then(|object| object.read(0, &mut into));
            }
            Ok(Some(ObjectKind::Versioned)) => {
                let Ok(object) = store.versioned(id) else { continue };
                for stat in object.versions(0, 64).unwrap_or_default() {
                    let _ = object.at(stat.version).and_then(|at| at.read(0, &mut into));
                }
            }
            _ => {}
        }
    }
}
