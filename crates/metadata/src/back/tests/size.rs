//! What a file costs in memory.

use super::operations::Bench;
use crate::kv::KeyValue;

#[test]
fn a_file_takes_less_than_300_bytes() {
    let mut bench = Bench::new();
    let before = bench.back.store.bytes();
    let files = 200_000_u64;
    // Names of 12 bytes in an order that is not theirs.
    for number in 0..files {
        bench.create(&format!("{:012}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_000_000));
    }
    let per_file = (bench.back.store.bytes() - before) / files;
    println!("{per_file} bytes per file with names in random order");
    assert!(per_file < 300, "{per_file} bytes per file");
    let mut bench = Bench::new();
    for number in 0..files {
        bench.create(&format!("{number:012}"));
    }
    let per_file = bench.back.store.bytes() / files;
    println!("{per_file} bytes per file with names in order");
    assert!(per_file < 120, "{per_file} bytes per file");
}
