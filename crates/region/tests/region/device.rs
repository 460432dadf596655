//! Files as devices.

use crate::recorder::Random;
use std::path::Path;
use weft_region::device::Read;
use weft_region::{AlignedBuffer, BLOCK_BYTES, Device, FileDevice};

const BLOCKS: u64 = 4096;

/// Whatever the file system of `directory` does with reads past its page cache.
fn reads_of_many_places(directory: &Path) {
    let path = directory.join(format!("weft-region-device-{}", std::process::id()));
    let device = FileDevice::create(&path, BLOCKS * BLOCK_BYTES as u64).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut random = Random::new(5);
    let mut bytes = AlignedBuffer::new(BLOCKS as usize * BLOCK_BYTES);
    bytes.iter_mut().for_each(|byte| *byte = (random.next() >> 32) as u8);
    device.write_at(0, &bytes).unwrap();
    for count in [1, 2, 63, 64, 65, 300] {
        // Whole blocks into aligned memory, and anything.
        for unit in [BLOCK_BYTES, 1] {
            let mut memory = AlignedBuffer::new(count * 3 * BLOCK_BYTES);
            let mut rest = &mut memory[..];
            let mut reads: Vec<Read<'_>> = Vec::new();
            for _ in 0..count {
                let length = if unit == 1 { random.below(9000) as usize } else { BLOCK_BYTES << random.below(2) };
                let (into, behind) = rest.split_at_mut(length);
                let place = random.below(BLOCKS - 3) * BLOCK_BYTES as u64;
                reads.push((if unit == 1 { place + random.below(4096) } else { place }, into));
                rest = behind;
            }
            device.read_all(&mut reads).unwrap();
            for (place, found) in &reads {
                assert!(found[..] == bytes[*place as usize..][..found.len()], "{count} reads, of {unit}, at {place}");
            }
        }
    }
    let mut memory = AlignedBuffer::new(2 * BLOCK_BYTES);
    let (one, two) = memory.split_at_mut(BLOCK_BYTES);
    let behind = BLOCKS * BLOCK_BYTES as u64;
    assert!(device.read_all(&mut [(0, one), (behind, two)]).is_err(), "what is behind the end");
}

#[test]
fn many_places_are_read_at_a_time() {
    reads_of_many_places(&std::env::temp_dir());
    reads_of_many_places(Path::new("/dev/shm"));
}

/// Also one that was read by a ring of the kernel, which may keep files for a while.
#[test]
fn a_device_that_was_closed_can_be_opened_at_once() {
    let path = std::env::temp_dir().join(format!("weft-region-again-{}", std::process::id()));
    drop(FileDevice::create(&path, BLOCKS * BLOCK_BYTES as u64).unwrap());
    for _ in 0..20 {
        let device = FileDevice::open(&path).unwrap();
        let mut memory = AlignedBuffer::new(2 * BLOCK_BYTES);
        let (one, two) = memory.split_at_mut(BLOCK_BYTES);
        device.read_all(&mut [(0, one), (1 << 20, two)]).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}

/// Whether a ring of the kernel reads it or not.
#[test]
fn what_lies_behind_the_end_of_a_device_that_shrank_is_said_of_many_places_too() {
    for directory in [&std::env::temp_dir(), Path::new("/dev/shm")] {
        let path = directory.join(format!("weft-region-shrunk-{}", std::process::id()));
        let device = FileDevice::create(&path, 4 << 20).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(2 << 20)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut memory = AlignedBuffer::new(2 * BLOCK_BYTES);
        for (behind, is_there) in [(1 << 20, true), (2 << 20, false), (3 << 20, false), (5 << 20, false)] {
            let (one, two) = memory.split_at_mut(BLOCK_BYTES);
            let said = device.read_all(&mut [(0, one), (behind, two)]).map_err(|error| error.to_string());
            let text = "the device had 4194304 bytes, and has 2097152: it has become smaller";
            assert_eq!(said, if is_there { Ok(()) } else { Err(text.to_owned()) }, "{behind}");
        }
    }
}
