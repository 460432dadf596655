//! What records of a writer of a split file cost the device, counted: the node's part of a request, past the socket.

use super::tests::{Ground, object};
use super::*;
use crate::blocks;
use crate::guard::Unguarded;
use crate::store::WritePlan;
use weft_region::OperationCounts;

/// Of the store's file.
const BYTES: u64 = 160 << 20;

/// What is counted for records of a size.
#[derive(PartialEq, Eq, Debug)]
struct Counts {
    /// Device writes until all records are acknowledged.
    writes: u64,
    /// Those of a sync after that, and its flushes.
    of_sync: (u64, u64),
    /// Device reads.
    reads: u64,
    /// Device writes when the same is written again, its sync included.
    again: u64,
}

fn counts(name: &str, records: u64, bytes: usize, stride: u64) -> Counts {
    let ground = Ground::new(name);
    let device = Arc::new(FileDevice::create(&ground.0, BYTES).unwrap());
    let format = Format { region_shift: REGION_SHIFT, ..Format::default() };
    let store = Store::format(device.clone(), format).unwrap();
    let store = RegionStore::of(store, "there".to_owned(), 1);
    let handle = store.open(InodeNumber::ROOT, object(1), true).unwrap();
    handle.sync().unwrap();
    let write_all = || {
        for record in 0..records {
            let length = u32::try_from(bytes).unwrap();
            let WritePlan::Blocks { object, offset } = handle.write_plan(record * stride, length).unwrap() else {
                panic!("a region has no file")
            };
            let fill = |into: &mut [u8]| {
                into.fill(u8::try_from(record % 251).unwrap() + 1);
                Ok(())
            };
            blocks::write(object, (offset.unwrap(), length), &Unguarded, fill).unwrap().unwrap();
        }
    };
    let since = |before: OperationCounts| {
        let now = device.operations();
        (now.writes - before.writes, now.reads - before.reads, now.flushes - before.flushes)
    };
    let begun = device.operations();
    write_all();
    let (writes, reads, _) = since(begun);
    let acknowledged = device.operations();
    handle.sync().unwrap();
    let (of_sync, _, flushes) = since(acknowledged);
    let synced = device.operations();
    write_all();
    handle.sync().unwrap();
    let (again, ..) = since(synced);
    drop(handle);
    Counts { writes, of_sync: (of_sync, flushes), reads, again }
}

#[test]
fn a_record_is_one_write_of_the_device() {
    for (name, records, bytes) in
        [("4k", 256, 4096), ("47008", 256, 47_008), ("384k", 64, 384 << 10), ("1m", 32, 1 << 20)]
    {
        for writers in [1, 4] {
            let stride = writers * bytes as u64;
            println!("{name} x {records}, stride {writers}: {:?}", counts(name, records, bytes, stride));
        }
    }
    panic!("look");
}
