//! `bench-sessions`: what one file costs its shard when very many clients have it open.
//!
//! In steps, each with more clients than the one before: all of them open the file for reading, one more opens it for
//! writing, for which the shard recalls the leases of all others, and all close it. With `--parts` it is a file of an
//! MPI program: one client opens it, all others import that handle, and each writes a part of its own, publishes it
//! and closes (`parts.rs`). Prints a line of JSON when all have it open, and one when all have closed it; `--pause`
//! waits for a line after each, so that the node can be looked at.

mod parts;

use clap::Parser;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use weft_bench::cost::{Cost, batches};
use weft_bench::{Explain, Outcome, clock, conclude};
use weft_client::{Client, ClientOptions, File, Instance, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Credentials, InodeNumber, Name};

/// Have many clients open and close one file; prints two lines of JSON per step
#[derive(Parser)]
struct Args {
    /// Name of the file system
    #[arg(long)]
    name: String,
    /// Clients at each step, rising
    #[arg(long, value_delimiter = ',', default_value = "1,64,512,4096")]
    sizes: Vec<usize>,
    /// Have each client write a part of a split file
    #[arg(long)]
    parts: bool,
    /// Wait for a line on standard input after each line
    #[arg(long)]
    pause: bool,
    /// Hold sessions for another process, which says on standard input what they do
    #[arg(long, hide = true)]
    worker: bool,
}

/// All have the file open.
#[derive(Serialize)]
struct Opened {
    sessions: usize,
    connect: Cost,
    open: Cost,
    /// Until one more had it open for writing.
    recall_milliseconds: f64,
    /// An empty call: what else the machine does shows here too.
    ping: Cost,
}

/// All have closed the file.
#[derive(Serialize)]
struct Closed {
    sessions: usize,
    close: Cost,
}

fn main() -> ExitCode {
    conclude("bench-sessions", run(&Args::parse()))
}

fn connect(instance: &Instance) -> Outcome<(Client, Credentials)> {
    let client = Client::connect(instance, &ClientOptions::default()).explain("connect")?;
    let who = client.credentials();
    Ok((client, who))
}

fn run(args: &Args) -> Outcome {
    let instance = Instance::find(Some(&args.name)).explain("find the file system")?;
    if args.worker {
        return parts::work(&instance);
    }
    if args.parts {
        return parts::run(args, &instance);
    }
    let (writer, who) = connect(&instance)?;
    let mut clients: Vec<Client> = Vec::new();
    for &sessions in &args.sizes {
        let inode = make(&instance)?;
        let new: Vec<usize> = (clients.len()..sessions).collect();
        let connect = batches(&new, |_| {
            clients.push(connect(&instance)?.0);
            Ok(())
        })?;
        let mut files: Vec<File> = Vec::new();
        let open = batches(&clients, |client| {
            files.push(client.open(&who, inode, OpenOptions::of(Access::Read)).explain("open")?);
            Ok(())
        })?;
        let begin = clock::now();
        let written = writer.open(&who, inode, OpenOptions::of(Access::Write)).explain("open for writing")?;
        let recall_milliseconds = (clock::now() - begin) * 1e3;
        let ping = batches(&[(); 500], |()| writer.ping().explain("ping"))?;
        tell(args, &Opened { sessions, connect, open, recall_milliseconds, ping })?;
        let mut files = files.into_iter();
        let close = batches(&clients, |_| files.next().ok_or("a file for each client")?.close().explain("close"))?;
        written.close().explain("close")?;
        writer.unlink(&who, InodeNumber::ROOT, &name()?).explain("remove the file")?;
        tell(args, &Closed { sessions, close })?;
    }
    for client in clients {
        client.close().explain("end a session")?;
    }
    writer.close().explain("end a session")
}

fn name() -> Outcome<Name> {
    Name::new(b"bench-sessions").explain("the file's name")
}

/// A file of which nobody holds a lease: the session that makes it is over.
fn make(instance: &Instance) -> Outcome<InodeNumber> {
    let (client, who) = connect(instance)?;
    let create = Some(CreateFile { mode: 0o600, exclusive: false, plan: None });
    let options = OpenOptions::of(Access::Write);
    let (file, entry) = client.open_at(&who, InodeNumber::ROOT, &name()?, options, create).explain("make the file")?;
    file.write_at(b"one file for all", 0).explain("write the file")?;
    file.close().explain("close the file")?;
    client.close().explain("end a session")?;
    Ok(entry.attributes.inode)
}

fn tell(args: &Args, step: &impl Serialize) -> Outcome {
    println!("{}", serde_json::to_string(step).explain("print")?);
    std::io::stdout().flush().explain("print")?;
    if args.pause && std::io::stdin().read_line(&mut String::new()).explain("wait")? == 0 {
        return Err("whoever looks at the node is gone".to_owned());
    }
    Ok(())
}
