//! `bench-pump`: what a socket allows when nothing else is done: bytes of tmpfs files through a socket, no protocol.
//!
//! Sketch, per MiB: read: `sendfile` (TCP: one copy, at the receiver; Unix: pages go by reference) or `pread` + `send`
//! (three copies); write: `splice` in and out of a pipe (one copy) or `recv` + `pwrite` (two copies), behind the copy
//! of the sender's `send`. The servers' ends are threads, one per stream, and so are the clients', or one thread serves
//! all of them in turn, as a client that uses several servers for one caller does.

use clap::{Parser, ValueEnum};
use rustix::fs::sendfile;
use rustix::io::{pread, pwrite};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, connect as connect_to, recv, send, socket, sockopt,
};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use weft_bench::{Explain, Outcome, clock, conclude, quantity, stamps};

/// A congestion control that sends whatever there is.
const UNPACED: &str = "reno";

/// Pump a tmpfs file through a socket; prints JSON
#[derive(Parser)]
struct Args {
    /// Directory on tmpfs for the files
    #[arg(long)]
    directory: PathBuf,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,unix")]
    socket: Vec<SocketKind>,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sendfile,pread-send,splice,recv-pwrite")]
    way: Vec<Way>,
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Threads of the client
    #[arg(long, value_enum, value_delimiter = ',', default_value = "each")]
    client: Vec<Threads>,
    /// Bytes of all streams together
    #[arg(long, value_parser = quantity::bytes, default_value = "1GiB")]
    size: u64,
    /// BUFFER:AHEAD: memory of each end, and how many buffers the client asks for (reading) or sends unanswered
    /// (writing) at a time; 0: both just go on. Little in flight stays in the processor's cache: that doubles what TCP
    /// reaches here
    #[arg(
        long,
        value_name = "BUFFER:AHEAD,...",
        value_parser = turns,
        value_delimiter = ',',
        default_value = "1MiB:0,256KiB:1,256KiB:2"
    )]
    turns: Vec<Turns>,
    /// Send buffer asked for on Unix sockets
    #[arg(long, value_parser = quantity::bytes, default_value = "1MiB")]
    unix_buffer: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum SocketKind {
    Tcp,
    Unix,
}

/// How the server's side moves bytes between socket and file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// Out of the file
    Sendfile,
    /// Out of the file
    PreadSend,
    /// Into the file
    Splice,
    /// Into the file
    RecvPwrite,
}

impl Way {
    fn reads(self) -> bool {
        matches!(self, Way::Sendfile | Way::PreadSend)
    }
}

/// Which threads the client's ends of the streams have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Threads {
    /// One each
    Each,
    /// One for all
    One,
}

#[derive(Clone, Copy, Debug)]
struct Turns {
    buffer: u64,
    ahead: u64,
}

fn turns(text: &str) -> Result<Turns, String> {
    let (buffer, ahead) = text.split_once(':').ok_or_else(|| format!("{text:?} is not BUFFER:AHEAD"))?;
    Ok(Turns { buffer: quantity::bytes(buffer)?, ahead: ahead.parse().explain(text)? })
}

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    socket: SocketKind,
    way: Way,
    buffer: u64,
    ahead: u64,
    streams: usize,
    client: Threads,
    bytes: u64,
    seconds: f64,
    per_second: f64,
}

fn main() -> ExitCode {
    conclude("bench-pump", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome {
    let directory = args.directory.join(format!("bench-pump-{}", std::process::id()));
    fs::create_dir_all(&directory).explain(directory.display())?;
    let rows = measure(args, &directory);
    fs::remove_dir_all(&directory).explain(directory.display())?;
    println!("{}", serde_json::to_string(&rows?).explain("print")?);
    Ok(())
}

fn measure(args: &Args, directory: &Path) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for way in &args.way {
        for socket in &args.socket {
            for turns in &args.turns {
                for client in &args.client {
                    rows.push(measure_one(args, directory, *way, *socket, *turns, *client)?);
                }
            }
        }
    }
    Ok(rows)
}

fn measure_one(
    args: &Args,
    directory: &Path,
    way: Way,
    socket: SocketKind,
    Turns { buffer, ahead }: Turns,
    client: Threads,
) -> Outcome<Row> {
    let share = args.size / args.streams.max(1) as u64;
    let streams = (0..args.streams).map(|stream| {
        let file = prepare(&directory.join(stream.to_string()), way, share)?;
        Ok(Stream { file, ends: connect(socket, args)?, bytes: share, way, ahead })
    });
    let seconds = pump(streams.collect::<Outcome<_>>()?, usize::try_from(buffer).explain("buffer")?, client)?;
    let bytes = share * args.streams as u64;
    Ok(Row {
        operation: if way.reads() { "read" } else { "write" },
        socket,
        way,
        buffer,
        ahead,
        streams: args.streams,
        client,
        bytes,
        seconds,
        per_second: bytes as f64 / seconds,
    })
}

/// A new file: empty for writing, full for reading. One that was read before is not the same: the kernel marks pages as
/// used when they are read for the first time, which costs a fifth of the reading.
fn prepare(path: &Path, way: Way, bytes: u64) -> Outcome<File> {
    let _ = fs::remove_file(path);
    if way.reads() {
        fill(path, bytes)?;
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).explain(path.display())
}

fn fill(path: &Path, bytes: u64) -> Outcome {
    let file = File::create(path).explain(path.display())?;
    let mut offset = 0;
    while offset < bytes {
        let mut piece = vec![0x5a; usize::try_from((1 << 20).min(bytes - offset)).explain("buffer")?];
        stamps::put(0, &mut piece, offset);
        offset += pwrite(&file, &piece, offset).explain(path.display())? as u64;
    }
    Ok(())
}

/// The server's end and the client's.
fn connect(kind: SocketKind, args: &Args) -> Outcome<(OwnedFd, OwnedFd)> {
    match kind {
        SocketKind::Unix => {
            let (server, client) = UnixStream::pair().explain("Unix sockets")?;
            for end in [&server, &client] {
                sockopt::set_socket_send_buffer_size(end, usize::try_from(args.unix_buffer).explain("buffer")?)
                    .explain("send buffer")?;
            }
            Ok((server.into(), client.into()))
        }
        SocketKind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").explain("listen")?;
            let client = socket(AddressFamily::INET, SocketType::STREAM, None).explain("socket")?;
            // Nothing paces the pump, as nothing paces Weft: where the system chooses BBR, that is three times as fast.
            sockopt::set_tcp_congestion(&listener, UNPACED).explain("congestion control")?;
            sockopt::set_tcp_congestion(&client, UNPACED).explain("congestion control")?;
            connect_to(&client, &listener.local_addr().explain("listen")?).explain("connect")?;
            let client = TcpStream::from(client);
            let (server, _) = listener.accept().explain("accept")?;
            for end in [&server, &client] {
                end.set_nodelay(true).explain("no delay")?;
            }
            Ok((server.into(), client.into()))
        }
    }
}

struct Stream {
    file: File,
    ends: (OwnedFd, OwnedFd),
    bytes: u64,
    way: Way,
    ahead: u64,
}

/// Runs all streams at the same time; seconds from the first begin to the last end.
fn pump(streams: Vec<Stream>, buffer: usize, threads: Threads) -> Outcome<f64> {
    let clients = match threads {
        Threads::Each => streams.len(),
        Threads::One => 1,
    };
    let start = Barrier::new(streams.len() + clients);
    let timed = |work: &mut dyn FnMut() -> Outcome| {
        start.wait();
        let begin = clock::now();
        work().map(|()| (begin, clock::now()))
    };
    let times = thread::scope(|scope| {
        let (mut ends, mut clients) = (Vec::new(), Vec::from_iter((0..clients).map(|_| Vec::new())));
        for (stream, turn) in streams.into_iter().zip((0..clients.len()).cycle()) {
            let Stream { file, ends: (server, client), bytes, way, ahead } = stream;
            clients[turn].push(Client { socket: client, bytes, way, ahead });
            let timed = &timed;
            ends.push(scope.spawn(move || {
                let mut server = Server { socket: server, file, way, pipe: pipe(buffer)?, memory: vec![0; buffer] };
                timed(&mut || server.serve(bytes, ahead))
            }));
        }
        for clients in clients {
            let timed = &timed;
            ends.push(scope.spawn(move || {
                let mut memory = vec![0x5a; buffer];
                timed(&mut || use_servers(&clients, &mut memory))
            }));
        }
        let join = |end: thread::ScopedJoinHandle<'_, Outcome<(f64, f64)>>| {
            end.join().unwrap_or_else(|_| Err("a thread has failed".into()))
        };
        ends.into_iter().map(join).collect::<Outcome<Vec<_>>>()
    })?;
    let begin = times.iter().map(|(begin, _)| *begin).fold(f64::INFINITY, f64::min);
    let end = times.iter().map(|(_, end)| *end).fold(f64::NEG_INFINITY, f64::max);
    Ok((end - begin).max(1e-9))
}

fn pipe(bytes: usize) -> Outcome<(OwnedFd, OwnedFd)> {
    let pipe = pipe_with(PipeFlags::CLOEXEC).explain("pipe")?;
    // A smaller pipe works as well, slower.
    let _ = fcntl_setpipe_size(&pipe.0, bytes);
    Ok(pipe)
}

/// Lengths of the pieces that a stream is moved in.
fn pieces(bytes: u64, buffer: usize) -> impl Iterator<Item = (u64, usize)> {
    let length = move |offset| usize::try_from(bytes - offset).unwrap_or(usize::MAX).min(buffer);
    (0..bytes).step_by(buffer).zip(0..).map(move |(offset, index)| (index, length(offset)))
}

struct Server {
    socket: OwnedFd,
    file: File,
    way: Way,
    pipe: (OwnedFd, OwnedFd),
    memory: Vec<u8>,
}

impl Server {
    fn serve(&mut self, bytes: u64, ahead: u64) -> Outcome {
        let mut offset = 0;
        for (_, length) in pieces(bytes, self.memory.len()) {
            if self.way.reads() && ahead > 0 {
                receive_all(&self.socket, &mut [0])?;
            }
            let end = offset + length as u64;
            while offset < end {
                offset += self.step(offset, usize::try_from(end - offset).unwrap_or(length))? as u64;
            }
            if !self.way.reads() && ahead > 0 {
                send_all(&self.socket, &[1])?;
            }
        }
        // As a file server does: the writer knows that all has arrived.
        if !self.way.reads() { send_all(&self.socket, &[1]) } else { Ok(()) }
    }

    /// Moves up to this much, and says how much.
    fn step(&mut self, offset: u64, length: usize) -> Outcome<usize> {
        let Self { socket, file, way, pipe: (output, input), memory } = self;
        let memory = &mut memory[..length];
        let moved = match way {
            Way::Sendfile => {
                let mut from = offset;
                sendfile(socket, file, Some(&mut from), length).explain("sendfile")?
            }
            Way::PreadSend => {
                let length = pread(file, &mut *memory, offset).explain("pread")?;
                send_all(socket, &memory[..length])?;
                length
            }
            Way::Splice => {
                let length =
                    splice(socket, None, input, None, length, SpliceFlags::MOVE).explain("splice from the socket")?;
                let (mut to, end) = (offset, offset + length as u64);
                while to < end {
                    let left = usize::try_from(end - to).unwrap_or(length);
                    // The kernel moves the offset on.
                    splice(&*output, None, &*file, Some(&mut to), left, SpliceFlags::MOVE)
                        .explain("splice to the file")?;
                }
                length
            }
            Way::RecvPwrite => {
                let (length, _) = recv(&*socket, &mut *memory, RecvFlags::empty()).explain("receive")?;
                let mut done = 0;
                while done < length {
                    done += pwrite(&*file, &memory[done..length], offset + done as u64).explain("pwrite")?;
                }
                length
            }
        };
        if moved == 0 { Err(format!("ended at offset {offset}")) } else { Ok(moved) }
    }
}

/// The client's end of a stream.
struct Client {
    socket: OwnedFd,
    bytes: u64,
    way: Way,
    ahead: u64,
}

/// Reads or writes some streams, all of which have as many bytes, a buffer of each in turn.
fn use_servers(clients: &[Client], memory: &mut [u8]) -> Outcome {
    let bytes = clients.first().map_or(0, |client| client.bytes);
    let count = bytes.div_ceil(memory.len() as u64);
    for client in clients {
        client.begin(count)?;
    }
    for (index, length) in pieces(bytes, memory.len()) {
        for client in clients {
            client.turn(index, count, &mut memory[..length])?;
        }
    }
    clients.iter().try_for_each(|client| client.end(count))
}

impl Client {
    fn begin(&self, count: u64) -> Outcome {
        let asked = if self.way.reads() { self.ahead.min(count) } else { 0 };
        send_all(&self.socket, &vec![1; usize::try_from(asked).explain("ahead")?])
    }

    fn turn(&self, index: u64, count: u64, piece: &mut [u8]) -> Outcome {
        let Self { socket, way, ahead, .. } = self;
        if way.reads() {
            receive_all(socket, piece)?;
            if *ahead > 0 && index + ahead < count {
                send_all(socket, &[1])?;
            }
        } else {
            if *ahead > 0 && index >= *ahead {
                receive_all(socket, &mut [0])?;
            }
            send_all(socket, piece)?;
        }
        Ok(())
    }

    fn end(&self, count: u64) -> Outcome {
        if self.way.reads() {
            return Ok(());
        }
        // The answers that are left, and the last word.
        receive_all(&self.socket, &mut vec![0; usize::try_from(self.ahead.min(count) + 1).explain("ahead")?])
    }
}

fn receive_all(socket: &OwnedFd, mut bytes: &mut [u8]) -> Outcome {
    while !bytes.is_empty() {
        match recv(socket, &mut *bytes, RecvFlags::empty()).explain("receive")?.0 {
            0 => return Err("the other end is gone".into()),
            length => bytes = &mut bytes[length..],
        }
    }
    Ok(())
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Outcome {
    while !bytes.is_empty() {
        let sent = send(socket, bytes, SendFlags::NOSIGNAL).explain("send")?;
        bytes = &bytes[sent..];
    }
    Ok(())
}
