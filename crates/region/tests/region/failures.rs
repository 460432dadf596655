//! Work in the background that fails is counted, and made up for when the device works again.

use crate::recorder::Recorder;
use std::time::{Duration, Instant};
use weft_region::testing::Watched;
use weft_region::{BLOCK_BYTES, Format, Keep, Store};

const DEVICE_BYTES: u64 = 32 << 20;
/// A version in which so much is cut out has more pieces than wait for a checkpoint.
const PUNCHED: u64 = 300 << 30;

#[test]
fn a_checkpoint_that_fails_in_the_background_is_counted() {
    let device = Watched::new(Recorder::new(DEVICE_BYTES), || {});
    let store = Store::format(device.clone(), Format { region_shift: 40, ..Format::default() }).unwrap();
    let object = store.create_versioned().unwrap();
    object.write(0, &[1; BLOCK_BYTES]).unwrap();
    object.truncate(PUNCHED + (1 << 30)).unwrap();
    store.close().unwrap();
    assert_eq!(store.failures().total(), 0);

    device.set_fails(true);
    object.punch(0..PUNCHED).unwrap();
    let patience = Instant::now() + Duration::from_mins(1);
    while store.failures().checkpoints == 0 {
        assert!(Instant::now() < patience, "{:?}", store.failures());
        object.write(PUNCHED, &[2; BLOCK_BYTES]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let failures = store.failures();
    let last = failures.last.unwrap();
    assert!(last.contains("checkpoint") && last.contains("no flush"), "{last}");
    assert!(object.clean(&Keep { newest: 1, younger_than: None, share: 1.0 }).is_err());
    assert_eq!(store.failures().cleanings, 1);

    // Nothing is lost, and it is made up for.
    device.set_fails(false);
    store.close().unwrap();
    let before = store.failures();
    let newest = object.write_durable(PUNCHED, &[3; BLOCK_BYTES]).unwrap();
    drop((object, store));
    let store = Store::open(device).unwrap();
    let object = store.versioned(store.list().unwrap()[0]).unwrap();
    assert_eq!(object.newest().unwrap().version, newest);
    let mut found = [9; BLOCK_BYTES];
    object.read(0, &mut found).unwrap();
    assert_eq!(found, [0; BLOCK_BYTES], "it was cut out");
    object.read(PUNCHED, &mut found).unwrap();
    assert!(found == [3; BLOCK_BYTES] && before.checkpoints >= 1);
    assert!(store.scrub(&mut |_, _| {}).unwrap().told.is_empty());
}
