//! Inputs to begin with.

use std::io;
use std::path::{Path, PathBuf};
use weft_region::decoders::DECODERS;

/// Golden bytes with the names of their lines, from `crates/protocol/golden`.
const GOLDEN: &[&str] = &[
    include_str!("../../crates/protocol/golden/message.txt"),
    include_str!("../../crates/protocol/golden/handshake.txt"),
    include_str!("../../crates/protocol/golden/data.txt"),
    include_str!("../../crates/protocol/golden/capability.txt"),
    include_str!("../../crates/protocol/golden/frame.txt"),
];
const NODE_CONFIG: &str = r#"{"name":"w","node":1,"identity":5,
    "node_key":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f","owner_uid":0,"owner_gid":0,
    "store":{"directory":"/s","size":null},"runtime_directory":"/r","listen":"127.0.0.1:0"}"#;
const INSTANCE: &str = r#"{"map":{"name":"w","epoch":1,"nodes":[{"id":0,"host":"h","site":"s","identity":5,
    "address":{"tcp":"127.0.0.1:1","unix":"/r/0.sock"},"stores":true}],"shards":[0,0]},"processes":[],
    "directory":"/r"}"#;

const USER_KEY: &str = r#"{"weft_user_key":1,"file_system":"w","user":"u","id":"0123456789abcdef","uid":1,"gid":2,
    "groups":[3,4],"key":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    "addresses":["127.0.0.1:1"]}"#;

/// What every target begins with: all golden bytes (the wrong kind is as good as any other input), and a little text.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = golden().map(|(_, bytes)| bytes).collect();
    seeds.extend(DECODERS.iter().map(|decoder| (decoder.example)()));
    seeds.extend([NODE_CONFIG.into(), INSTANCE.into(), USER_KEY.into(), b"name".to_vec(), Vec::new()]);
    seeds
}

/// Names and bytes of all golden lines.
pub fn golden() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    GOLDEN.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let (name, hex) = line.split_once(' ')?;
        Some((name, from_hex(hex)?))
    })
}

/// Inputs that once broke this target, with their files.
pub fn kept(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let bytes = from_hex(std::fs::read_to_string(&path)?.trim())
            .ok_or_else(|| io::Error::other(format!("{}: not hexadecimal", path.display())))?;
        kept.push((path, bytes));
    }
    kept.sort();
    Ok(kept)
}

/// Bytes as they are written into `corpus/`.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.len();
    (0..digits).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
