//! `bench-library`: the native client's side of the suite's part `libraries`.
//!
//! `bench/libraries/client.c` and `client.py` do the same with the C library and the Python package: passes over one
//! large file in requests of the caller's own memory, then batches of small calls that the client answers out of its
//! caches. The files stay, so that all three find the same pages. Prints JSON: bytes per second of each pass,
//! nanoseconds per call of each batch.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use weft_bench::{Explain, Outcome, clock, conclude, stamps};
use weft_client::{Client, ClientOptions, File, Instance, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{InodeNumber, Name};

/// Contents of requests beside their offsets.
const FILLING: u8 = 0x5a;
const PASSES: usize = 3;
const BATCHES: usize = 5;
/// Bytes of a small read, and of the file that it is of.
const SMALL_BYTES: usize = 4096;
/// From a small read's memory to the next one's: in turn at all multiples of 16 in a page. A copy takes a fifth longer
/// at some than at others, and where the programs that are compared have their memory is chance.
const STEP: usize = 272;

/// Measure the native client; prints JSON
#[derive(Parser)]
struct Args {
    /// Name of the file system
    name: String,
    /// Bytes of the large file, a multiple of a request
    size: u64,
    /// Bytes of a request
    request: usize,
    /// Small calls of a batch
    calls: u32,
}

#[derive(Serialize, Default)]
struct Found {
    write: Vec<f64>,
    read: Vec<f64>,
    stat: Vec<f64>,
    pread: Vec<f64>,
}

fn main() -> ExitCode {
    conclude("bench-library", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome {
    let instance = Instance::find(Some(&args.name)).explain("find the file system")?;
    let client = Client::connect(&instance, &ClientOptions::from_environment()?).explain("connect")?;
    let mut found = Found::default();
    large(&client, args, &mut found)?;
    small(&client, args, &mut found)?;
    client.close().explain("close")?;
    println!("{}", serde_json::to_string(&found).explain("print")?);
    Ok(())
}

/// Opens a file to read and write, and makes it if it is not there.
fn open(client: &Client, name: &str) -> Outcome<File> {
    let create = Some(CreateFile { mode: 0o600, exclusive: false, plan: None });
    let options = OpenOptions::of(Access::ReadWrite);
    let parsed = Name::new(name.as_bytes()).explain(name)?;
    let opened = client.open_at(&client.credentials(), InodeNumber::ROOT, &parsed, options, create);
    Ok(opened.explain(format_args!("open {name}"))?.0)
}

fn large(client: &Client, args: &Args, found: &mut Found) -> Outcome {
    let file = open(client, "large")?;
    let page = stamps::PAGE_BYTES as usize;
    let mut memory = vec![FILLING; args.request + page];
    let begin = memory.as_ptr().align_offset(page);
    let buffer = &mut memory[begin..begin + args.request];
    let offsets = || (0..args.size).step_by(args.request);
    for pass in 0..=PASSES {
        let before = clock::now();
        for offset in offsets() {
            buffer[..8].copy_from_slice(&offset.to_le_bytes());
            file.write_at(buffer, offset).explain("write")?;
        }
        let written = clock::now();
        for offset in offsets() {
            let count = file.read_at(buffer, offset).explain("read")?;
            if count != buffer.len() || buffer[..8] != offset.to_le_bytes() {
                return Err(format!("wrong contents at offset {offset}"));
            }
        }
        // The first pass makes the file and its connections, and is not told.
        if pass > 0 {
            found.write.push(args.size as f64 / (written - before));
            found.read.push(args.size as f64 / (clock::now() - written));
        }
    }
    file.close().explain("close")
}

fn small(client: &Client, args: &Args, found: &mut Found) -> Outcome {
    let file = open(client, "small")?;
    let page = stamps::PAGE_BYTES as usize;
    let mut memory = vec![FILLING; page + SMALL_BYTES];
    file.write_at(&memory[..SMALL_BYTES], 0).explain("write")?;
    file.flush().explain("flush")?;
    let who = client.credentials();
    for _ in 0..BATCHES {
        found.stat.push(nanoseconds(args.calls, || client.walk(&who, b"/small", true).map(drop).explain("stat"))?);
        let mut begin = 0;
        found.pread.push(nanoseconds(args.calls, || {
            begin = (begin + STEP) % page;
            match file.read_at(&mut memory[begin..begin + SMALL_BYTES], 0).explain("read")? {
                SMALL_BYTES => Ok(()),
                short => Err(format!("{short} bytes were read")),
            }
        })?);
    }
    file.close().explain("close")
}

/// Of one call, the mean of many.
fn nanoseconds(calls: u32, mut call: impl FnMut() -> Outcome) -> Outcome<f64> {
    let before = clock::now();
    (0..calls).try_for_each(|_| call())?;
    Ok((clock::now() - before) * 1e9 / f64::from(calls))
}
