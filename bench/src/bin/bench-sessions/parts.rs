//! `--parts`: each session writes a part of one split file.
//!
//! A session costs its process some seven descriptors and three threads, and a process may often have no more than
//! 20,000 descriptors. So this program starts itself, once for each thousand sessions, and says by lines of JSON what
//! they do, one process after the other.

use super::{Args, connect, name, tell};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weft_bench::cost::{Cost, batches};
use weft_bench::{Explain, Outcome};
use weft_client::{Client, File, Instance, JoinOptions, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{InodeNumber, Plan};

/// Bytes that each session writes.
const PART_BYTES: usize = 4096;
/// Sessions of one process.
const SESSIONS_PER_PROCESS: usize = 1024;

/// All have imported the file, have written and synchronized.
#[derive(Serialize)]
struct Written {
    sessions: usize,
    connect: Cost,
    import: Cost,
    /// The first write, for which the part is made.
    write: Cost,
    sync: Cost,
    ping: Cost,
}

/// All have closed the file.
#[derive(Serialize)]
struct Closed {
    sessions: usize,
    close: Cost,
}

/// What all sessions of a process do, one after the other. Answered by a [`Cost`], or by nothing if it fails.
#[derive(Clone, Serialize, Deserialize)]
enum Order {
    /// So many more sessions begin.
    Connect(usize),
    Import(Vec<u8>),
    /// Each writes a part, the first of them this one.
    Write(usize),
    Sync,
    Close,
    /// They end.
    End,
}

/// A process that holds sessions, which ends when its input does.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    sessions: usize,
}

impl Worker {
    fn start(args: &Args) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe().explain("find this program")?);
        command.args(["--name", &args.name, "--worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().explain("start a worker")?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, input, output: BufReader::new(output), sessions: 0 }),
            _ => Err("a worker without pipes".into()),
        }
    }

    fn obey(&mut self, order: &Order) -> Outcome<Cost> {
        let text = serde_json::to_string(order).explain("print")?;
        writeln!(self.input, "{text}").explain("tell a worker")?;
        let mut line = String::new();
        match self.output.read_line(&mut line).explain("hear a worker")? {
            0 => Err("a worker has failed".into()),
            _ => serde_json::from_str(&line).explain("hear a worker"),
        }
    }
}

/// All processes with sessions, each with a thousand but for the last.
struct Crew<'a> {
    args: &'a Args,
    workers: Vec<Worker>,
}

impl Crew<'_> {
    /// Begins sessions until there are so many.
    fn grow(&mut self, sessions: usize) -> Outcome<Cost> {
        let mut costs = Vec::new();
        loop {
            let left = sessions - self.workers.iter().map(|worker| worker.sessions).sum::<usize>();
            if left == 0 {
                return Cost::of_all(costs).ok_or_else(|| "each step needs more sessions".into());
            }
            if self.workers.last().is_none_or(|worker| worker.sessions == SESSIONS_PER_PROCESS) {
                self.workers.push(Worker::start(self.args)?);
            }
            let worker = self.workers.last_mut().ok_or("a worker was started")?;
            let more = left.min(SESSIONS_PER_PROCESS - worker.sessions);
            costs.push(worker.obey(&Order::Connect(more))?);
            worker.sessions += more;
        }
    }

    /// Gives each worker an order. `order` gets the number of sessions that the workers before it hold.
    fn obey(&mut self, order: impl Fn(usize) -> Order) -> Outcome<Cost> {
        let (mut costs, mut before) = (Vec::new(), 0);
        for worker in &mut self.workers {
            costs.push(worker.obey(&order(before))?);
            before += worker.sessions;
        }
        Cost::of_all(costs).ok_or_else(|| "there is no session".into())
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for Worker { mut child, input, .. } in self.workers.drain(..) {
            drop(input);
            // It ends with its input; nobody is left to be told why it does not.
            let _ = child.wait();
        }
    }
}

pub fn run(args: &Args, instance: &Instance) -> Outcome {
    let (opener, who) = connect(instance)?;
    opener.set_directory_plan(&who, InodeNumber::ROOT, Plan::Split).explain("split files")?;
    let mut crew = Crew { args, workers: Vec::new() };
    for &sessions in &args.sizes {
        let connect = crew.grow(sessions)?;
        let (options, create) =
            (OpenOptions::of(Access::ReadWrite), CreateFile { mode: 0o600, exclusive: true, plan: None });
        let made = opener.open_at(&who, InodeNumber::ROOT, &name()?, options, Some(create));
        let opened = made.explain("make the file")?.0;
        let exported = opened.export(false).explain("export the file")?;
        let import = crew.obey(|_| Order::Import(exported.clone()))?;
        let write = crew.obey(Order::Write)?;
        let sync = crew.obey(|_| Order::Sync)?;
        let ping = batches(&[(); 500], |()| opener.ping().explain("ping"))?;
        tell(args, &Written { sessions, connect, import, write, sync, ping })?;
        let close = crew.obey(|_| Order::Close)?;
        opened.close().explain("close")?;
        opener.unlink(&who, InodeNumber::ROOT, &name()?).explain("remove the file")?;
        tell(args, &Closed { sessions, close })?;
    }
    crew.obey(|_| Order::End)?;
    opener.close().explain("end a session")
}

/// The side of a process that holds sessions.
pub fn work(instance: &Instance) -> Outcome {
    let (mut clients, mut files): (Vec<Client>, Vec<File>) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lines() {
        let order: Order = serde_json::from_str(&line.explain("hear an order")?).explain("hear an order")?;
        let cost = match order {
            Order::Connect(more) => batches(&vec![(); more], |()| {
                clients.push(connect(instance)?.0);
                Ok(())
            })?,
            Order::Import(exported) => batches(&clients, |client| {
                let imported = client.import(&client.credentials(), &exported, JoinOptions::default());
                files.push(imported.explain("import the file")?.0);
                Ok(())
            })?,
            Order::Write(first) => {
                let numbered: Vec<(u64, &File)> = (first as u64..).zip(&files).collect();
                batches(&numbered, |(number, file)| {
                    let written = file.write_at(&[7; PART_BYTES], number * PART_BYTES as u64);
                    written.explain("write a part")
                })?
            }
            Order::Sync => batches(&files, |file| file.flush().explain("publish a part"))?,
            Order::Close => {
                let mut open = files.drain(..);
                batches(&clients, |_| open.next().ok_or("a file for each client")?.close().explain("close"))?
            }
            Order::End => batches(&clients, |client| client.close().explain("end a session"))?,
        };
        println!("{}", serde_json::to_string(&cost).explain("print")?);
    }
    Ok(())
}
