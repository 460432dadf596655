//! `bench-ucx`: what UCX allows between two processes of this machine when nothing else is done: pages of a mapped
//! tmpfs file put into the other's memory, and got from there. No requests, no replies.
//!
//! Sketch, per request: one put (or get) of the whole and a flush, into memory that is used again and again. *First*:
//! the pages of a file that was just mapped, to be read for the first time, or to be made; *again*: the same pages
//! once more.

use clap::Parser;
use rustix::fs::ftruncate;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_bench::{Explain, Outcome, conclude, quantity};
use weft_ucx::{FileWindow, Liveness, Mover, Receiver, Region};

/// How long a transfer is looked at before its thread sleeps: as nodes and clients do.
const LOOK: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(10);
/// Numbers of the other's memory: its own, and what UCX made for it.
const OWN: u32 = 1;
const MADE: u32 = 2;

/// Move a tmpfs file by UCX alone; prints JSON
#[derive(Parser)]
struct Args {
    /// Directory on tmpfs for the file
    #[arg(long, default_value = "/dev/shm")]
    directory: PathBuf,
    #[arg(long, value_parser = quantity::bytes, value_delimiter = ',', default_value = "1MiB,4MiB")]
    request: Vec<u64>,
    #[arg(long, value_parser = quantity::bytes, default_value = "1GiB")]
    size: u64,
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The process whose memory it is; standard input is a socket
    #[arg(long, hide = true)]
    receiver: bool,
}

/// One measurement.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    /// The other's memory: `own`, or `made` by UCX, which both share.
    memory: &'static str,
    /// Pages of the file: `first` used by this mapping, or `again`.
    pages: &'static str,
    request: u64,
    run: usize,
    bytes_per_second: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    conclude("bench-ucx", if args.receiver { receive(&args) } else { lead(&args) })
}

fn send(mut socket: &UnixStream, bytes: &[u8]) -> Outcome {
    let length = u32::try_from(bytes.len()).explain("length")?;
    socket.write_all(&[&length.to_le_bytes()[..], bytes].concat()).explain("send")
}

fn hear(mut socket: &UnixStream) -> Outcome<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).explain("receive")?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes).explain("receive")?;
    Ok(bytes)
}

fn largest(args: &Args) -> Outcome<usize> {
    let largest = args.request.iter().copied().max().filter(|bytes| *bytes > 0 && *bytes <= args.size);
    usize::try_from(largest.ok_or("--request: nothing, or more than --size")?).explain("--request")
}

/// The other side: shows its memory, and lets transfers go on until it hears something.
fn receive(args: &Args) -> Outcome {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().explain("standard input")?);
    let mut receiver = Receiver::new().explain("UCX")?;
    send(&socket, &receiver.address().explain("address")?)?;
    receiver.connect(&hear(&socket)?, Liveness::Caller).explain("connect")?;
    let bytes = largest(args)?;
    let made = Region::allocate(bytes).explain("memory")?;
    let mut own = vec![1; bytes];
    let show = |address: u64, key: &[u8]| send(&socket, &[&address.to_le_bytes()[..], key].concat());
    show(made.address(), &made.packed_key().explain("key")?)?;
    let lent = receiver.lend(&mut own, |receiver, lent| {
        show(lent.address(), &lent.packed_key().explain("key")?)?;
        let heard = receiver.next(socket.as_fd(), LOOK, || Ok(())).explain("wait")?;
        heard.map_or(Ok(()), |_| Err("a message that nobody sends".into()))
    });
    lent.explain("lend")?
}

/// The side that moves.
struct Side {
    mover: Mover,
    socket: UnixStream,
    /// Where the other's memory is.
    own: u64,
    made: u64,
    child: Child,
}

impl Side {
    fn start(args: &Args) -> Outcome<Self> {
        let (socket, theirs) = UnixStream::pair().explain("socket")?;
        let mut command = Command::new(std::env::current_exe().explain("find this program")?);
        command.args(std::env::args_os().skip(1)).arg("--receiver").stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().explain("start the other side")?;
        let mut mover = Mover::connect(&hear(&socket)?, Liveness::Caller).explain("connect")?;
        send(&socket, &mover.address().explain("address")?)?;
        let bytes = largest(args)? as u64;
        let mut learn = |number| {
            let shown = hear(&socket)?;
            let (address, key) = shown.split_first_chunk().ok_or("no address")?;
            let address = u64::from_le_bytes(*address);
            mover.learn(socket.as_fd(), (number, address, bytes), key).explain("learn")?;
            Ok::<_, String>(address)
        };
        let (made, own) = (learn(MADE)?, learn(OWN)?);
        mover.probe(OWN, own, socket.as_fd(), LOOK, PATIENCE).explain("probe")?;
        Ok(Self { mover, socket, own, made, child })
    }

    /// All of a slot, in requests of so many bytes.
    fn move_all(&mut self, slot: usize, size: u64, request: u64, puts: bool, number: u32) -> weft_ucx::Result<f64> {
        let address = if number == OWN { self.own } else { self.made };
        let begun = Instant::now();
        let mut at = 0;
        while at < size {
            let end = size.min(at + request);
            let range = usize::try_from(at).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX);
            if puts {
                self.mover.put(slot, range, number, address)?;
                self.mover.flush(self.socket.as_fd(), LOOK)?;
            } else {
                self.mover.get(slot, range, number, address)?;
            }
            self.mover.wait(slot, self.socket.as_fd(), LOOK)?;
            at = end;
        }
        Ok(size as f64 / begun.elapsed().as_secs_f64().max(1e-9))
    }

    fn end(mut self) -> Outcome {
        send(&self.socket, b"end")?;
        self.child
            .wait()
            .explain("wait for the other side")?
            .success()
            .then_some(())
            .ok_or("the other side failed".into())
    }
}

/// A file of so many bytes, removed at once: with pages, or without.
fn file(args: &Args, with_pages: bool) -> Outcome<File> {
    let path = args.directory.join(format!("bench-ucx-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).explain("make a file")?;
    std::fs::remove_file(&path).explain("remove it")?;
    ftruncate(&file, args.size).explain("make it long")?;
    if with_pages {
        let piece = vec![7; 1 << 20];
        let mut left = args.size;
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            file.write_all(&piece[..count]).explain("write")?;
            left -= count as u64;
        }
    }
    Ok(file)
}

fn lead(args: &Args) -> Outcome {
    let bytes = usize::try_from(args.size).explain("--size")?;
    let mut side = Side::start(args)?;
    for &request in &args.request {
        for run in 1..=args.runs {
            for (operation, puts) in [("write", false), ("read", true)] {
                for (memory, number) in [("own", OWN), ("made", MADE)] {
                    let file = file(args, puts)?;
                    let window = Arc::new(FileWindow::new(file.as_fd(), 0, bytes).explain("map")?);
                    let slot = side.mover.add_file_slots(1, &window);
                    for pages in ["first", "again"] {
                        let rate = side.move_all(slot, args.size, request, puts, number).explain(operation)?;
                        let row = Row { operation, memory, pages, request, run, bytes_per_second: rate };
                        println!("{}", serde_json::to_string(&row).explain("JSON")?);
                    }
                    side.mover.remove_file_slots().explain("unmap")?;
                }
            }
        }
    }
    side.end()
}
