//! Finding where bytes lie in memory, for who copies them without the gate (`reuse.rs`).

use super::reading::Extent;
use super::{Layer, blocks_of, read};
use crate::BLOCK;
use crate::reuse::InMemory;

impl Layer {
    /// Where so many bytes from an address on lie. `None`: the device is not in memory, or some of the bytes are
    /// nowhere on it, have checksums to compare, or wait to be written.
    pub(crate) fn in_memory(&self, address: u64, bytes: usize) -> Option<InMemory<'_>> {
        let start = self.device.address()?;
        let blocks = blocks_of(address, bytes).ok()?;
        let found = |value, parts| Some(InMemory { parts, word: self.reuses.word(), value });
        let gate = read(&self.gate);
        let value = self.reuses.now(&gate);
        if let Some(piece) = self.epochs.recent(&blocks, false) {
            return found(value, vec![(start + self.place(piece) + address % BLOCK, bytes)]);
        }
        drop(gate);
        self.bring_gathered(&blocks);
        let gate = read(&self.gate);
        let value = self.reuses.now(&gate);
        let one = self.look_up(&read(&self.state), &blocks, false);
        if let Some(piece) = one {
            return found(value, vec![(start + self.place(piece) + address % BLOCK, bytes)]);
        }
        // An error is for who reads the bytes.
        let all = self.find(blocks).ok()?;
        if !all.sums.is_empty() || !all.waiting.is_empty() {
            return None;
        }
        let extents = self.extents(address, bytes, &all.pieces);
        let part = |extent: &Extent| Some((start + extent.place?, extent.bytes.len()));
        found(value, extents.iter().map(part).collect::<Option<_>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Format;
    use crate::{BLOCK_BYTES, Checksums, FileDevice, as_index};
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use weft_sys::{RemoteBytes, read_process_memory};

    const REGION: u64 = 1 << 40;
    const BYTES: u64 = 32 << 20;

    /// A layer in memory; the file is kept by its descriptor.
    fn layer(checksums: Checksums) -> (Layer, std::os::fd::OwnedFd) {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let file = memfd_create("weft-in-memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let device = Arc::new(FileDevice::open(path.as_ref()).unwrap());
        let format = Format { region_shift: 40, checksums, ..Format::default() };
        (Layer::format(device, format).unwrap(), file)
    }

    fn copied(found: &InMemory<'_>) -> (Vec<u8>, bool) {
        let own = i32::try_from(std::process::id()).unwrap();
        let from: Vec<_> = found.parts.iter().map(|&(address, bytes)| RemoteBytes::at(address, bytes)).collect();
        let mut bytes = vec![0; found.parts.iter().map(|(_, bytes)| bytes).sum()];
        assert_eq!(read_process_memory(own, &from, &mut [IoSliceMut::new(&mut bytes)]).unwrap(), bytes.len());
        (bytes, found.word.load(Ordering::SeqCst) == found.value)
    }

    fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|at| u8::try_from((at * 7 + at / 4096 + seed * 13) % 251).unwrap()).collect()
    }

    #[test]
    fn what_is_written_is_found_also_where_it_begins_inside_a_block_and_lies_apart() {
        let (layer, _file) = layer(Checksums::Metadata);
        let bytes = pattern(100_000, 1);
        layer.write(REGION, &bytes).unwrap();
        // Others lie between.
        layer.write(REGION * 2, &pattern(50_000, 2)).unwrap();
        let more = pattern(40 * BLOCK_BYTES, 3);
        layer.write(REGION + 25 * BLOCK, &more).unwrap();
        let all = [&bytes[..], &vec![0; 25 * BLOCK_BYTES - 100_000], &more].concat();
        for (offset, count) in [(0, 100_000), (5, 1), (4095, 50_000), (90_000, 60_000), (0, all.len())] {
            let found = layer.in_memory(REGION + offset as u64, count).unwrap();
            assert_eq!(copied(&found), (all[offset..offset + count].to_vec(), true), "{count} bytes at {offset}");
        }
        assert!(layer.in_memory(REGION, all.len() + 1).is_none(), "the last byte is nowhere");
    }

    #[test]
    fn the_word_changes_before_a_block_is_anybody_elses() {
        let (layer, _file) = layer(Checksums::Metadata);
        let bytes = pattern(20 * BLOCK_BYTES, 1);
        layer.write(REGION, &bytes).unwrap();
        layer.sync().unwrap();
        let found = layer.in_memory(REGION, bytes.len()).unwrap();
        layer.trim(REGION..REGION + bytes.len() as u64).unwrap();
        assert_eq!(copied(&found), (bytes.clone(), true), "no block is free yet");
        layer.sync().unwrap();
        assert!(!copied(&found).1, "they are free now");
        assert!(layer.in_memory(REGION, bytes.len()).is_none());
        layer.write(REGION, &bytes).unwrap();
        layer.sync().unwrap();
        let found = layer.in_memory(REGION, bytes.len()).unwrap();
        layer.sweep(&(0..u64::MAX / BLOCK)).unwrap();
        assert!(!copied(&found).1, "all went at once");
    }

    #[test]
    fn what_waits_or_is_compared_is_read() {
        let (layer_without, _file) = layer(Checksums::Metadata);
        layer_without.write(REGION, &[1; BLOCK_BYTES]).unwrap();
        assert!(layer_without.in_memory(REGION, BLOCK_BYTES).is_none(), "a single block waits");
        layer_without.sync().unwrap();
        assert!(layer_without.in_memory(REGION, BLOCK_BYTES).is_some());
        let (layer_with, _file) = layer(Checksums::All);
        layer_with.write(REGION, &pattern(100_000, 1)).unwrap();
        layer_with.sync().unwrap();
        assert!(layer_with.in_memory(REGION, 100_000).is_none());
    }

    /// Writers that take away what they wrote, on a device with so little room that each gets the blocks of another at
    /// once, beside a reader who copies without a lock: what he has copied is of the object if the word says so.
    #[test]
    fn no_reader_has_blocks_of_another_object() {
        let (layer, _file) = layer(Checksums::Metadata);
        let room = layer.usage().free / BLOCK;
        layer.write(REGION * 9, &vec![9; as_index(room - 12) * BLOCK_BYTES]).unwrap();
        let writing = std::sync::atomic::AtomicUsize::new(3);
        std::thread::scope(|scope| {
            for object in 1..=3_u64 {
                let (layer, writing) = (&layer, &writing);
                scope.spawn(move || {
                    let at = REGION * object;
                    let bytes = vec![u8::try_from(object).unwrap(); 4 * BLOCK_BYTES];
                    for _ in 0..300 {
                        match layer.write(at, &bytes) {
                            Err(crate::Error::NoSpace) => continue,
                            written => written.unwrap(),
                        }
                        std::thread::yield_now();
                        layer.trim(at..at + bytes.len() as u64).unwrap();
                        layer.sync().unwrap();
                    }
                    writing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while writing.load(Ordering::Relaxed) > 0 {
                    let of = |object| Some((object, layer.in_memory(REGION * object, 4 * BLOCK_BYTES)?));
                    let found: Vec<_> = (1..=3).filter_map(of).collect();
                    (0..10).for_each(|_| std::thread::yield_now());
                    for (object, found) in found {
                        let (bytes, is_right) = copied(&found);
                        assert!(!is_right || bytes.iter().all(|byte| u64::from(*byte) == object), "of {object}");
                    }
                }
            });
        });
    }
}
