//! Objects of a large store are found at random: its map is larger than what the store keeps of it in memory.

use crate::{Args, Memory, Random, measured};
use std::sync::Arc;
use weft_bench::{Explain, Outcome};
use weft_region::{BLOCK_BYTES, Device, FileDevice, Store};

/// Reads the first blocks of so many objects, those of the store that is there.
pub fn find(args: &Args, reads: u64) -> Outcome {
    let device = Arc::new(FileDevice::open(&args.place).explain(args.place.display())?);
    let store = Store::open(Arc::clone(&device) as Arc<dyn Device>).explain("open")?;
    let usage = store.usage();
    let objects = (usage.total - usage.free) / BLOCK_BYTES as u64;
    let mut random = Random::default();
    let mut memory = Memory::new(BLOCK_BYTES as u64, &mut random)?;
    measured(args.on.name(), "find", (objects, reads, 1.0), Some(&device), || {
        (0..reads).try_for_each(|_| {
            // The last few may not be there, and read zeros.
            let address = (random.next() % objects + 1) * store.region_bytes();
            store.layer().read(address, memory.bytes()).explain("read")
        })
    })
}
