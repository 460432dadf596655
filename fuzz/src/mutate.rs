//! Changes of bytes that decoders stumble over: flipped bits, wrong lengths, integers at their edges, halves of two
//! inputs.

use crate::random::Random;

/// Longest input, bytes: beyond it nothing new happens.
const INPUT_BYTES_MAX: usize = 8192;
/// Values at which lengths and numbers turn.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65_535,
    65_536,
    (1 << 20) - 1,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 48) - 1,
    1 << 48,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A changed copy of `input`, perhaps with a piece of `other` in it.
pub fn mutated(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(random, &mut bytes, other);
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(bytes.len());
    match random.below(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            let value = random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'"', b'-', b'9', b'/']);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        2 => bytes.truncate(at),
        3 => {
            let end = at + random.below(bytes.len() - at + 1);
            bytes.drain(at..end);
        }
        4 => {
            let end = at + random.below((bytes.len() - at + 1).min(64));
            let piece = bytes.get(at..end).unwrap_or_default().to_vec();
            bytes.splice(at..at, piece);
        }
        5 => {
            let count = random.below(16);
            let piece = random.bytes(count);
            bytes.splice(at..at, piece);
        }
        6 => {
            let edge = random.pick(EDGES).to_le_bytes();
            let width = random.pick(&[1, 2, 4, 8]);
            for (place, value) in bytes.iter_mut().skip(at).zip(edge.iter().take(width)) {
                *place = *value;
            }
        }
        7 => {
            let replaced = random.below(3).min(bytes.len() - at);
            bytes.splice(at..at + replaced, varint(random.pick(EDGES)));
        }
        _ => {
            let from = random.below(other.len());
            let end = from + random.below(other.len() - from + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(other.get(from..end).unwrap_or_default());
        }
    }
}

/// As the codec writes numbers.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}
