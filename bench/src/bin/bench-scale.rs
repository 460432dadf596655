//! `bench-scale`: what an operation costs when a file system or a directory has many files.
//!
//! Fills it in steps; at each step a new client makes, looks up and removes a sample, in batches, so that a spread can
//! be shown. After each step it prints a line of JSON, and with `--pause` waits for a line, so that the nodes can be
//! looked at.

use clap::Parser;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use weft_bench::cost::{Cost, batches};
use weft_bench::{Explain, Outcome, clock, conclude};
use weft_client::{Client, ClientOptions, Instance, OpenOptions};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Credentials, InodeNumber, Name};

/// Fill a file system in steps and measure at each; prints a line of JSON per step
#[derive(Parser)]
struct Args {
    /// Name of the file system
    #[arg(long)]
    name: String,
    /// Files at each step, rising
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
    sizes: Vec<u64>,
    /// Files per directory; 0: all in one
    #[arg(long, default_value_t = 1000)]
    per_directory: u64,
    /// Files of a sample
    #[arg(long, default_value_t = 2000)]
    sample: u64,
    /// Wait for a line on standard input after each step
    #[arg(long)]
    pause: bool,
}

#[derive(Serialize)]
struct Step {
    files: u64,
    /// Mean while this step was filled.
    fill_per_second: f64,
    create: Cost,
    stat: Cost,
    unlink: Cost,
    /// An empty call: what else the machine does shows here too.
    ping: Cost,
}

fn main() -> ExitCode {
    conclude("bench-scale", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome {
    let instance = Instance::find(Some(&args.name)).explain("find the file system")?;
    let mut filling = Session::new(&instance)?;
    let mut fill = Fill { per_directory: args.per_directory, made: 0, directory: None };
    for size in &args.sizes {
        let (begin, before) = (clock::now(), fill.made);
        fill.up_to(&mut filling, *size)?;
        let fill_per_second = (fill.made - before) as f64 / (clock::now() - begin).max(1e-9);
        let mut session = Session::new(&instance)?;
        let step = fill.sample(&mut session, args.sample, fill_per_second)?;
        session.client.close().explain("close")?;
        println!("{}", serde_json::to_string(&step).explain("print")?);
        std::io::stdout().flush().explain("print")?;
        if args.pause && std::io::stdin().read_line(&mut String::new()).explain("wait")? == 0 {
            break;
        }
    }
    filling.client.close().explain("close")
}

/// A client and on whose behalf it works.
struct Session {
    client: Client,
    who: Credentials,
}

impl Session {
    fn new(instance: &Instance) -> Outcome<Self> {
        let client = Client::connect(instance, &ClientOptions::default()).explain("connect")?;
        let who = client.credentials();
        Ok(Self { client, who })
    }

    fn create(&self, directory: InodeNumber, name: &Name) -> Outcome {
        let options = OpenOptions::of(Access::Write);
        let create = Some(CreateFile { mode: 0o600, exclusive: true, plan: None });
        let made = self.client.open_at(&self.who, directory, name, options, create);
        made.and_then(|(file, _)| file.close()).explain(format_args!("create {name}"))
    }
}

fn name(text: String) -> Outcome<Name> {
    Name::new(text.as_bytes()).explain(text)
}

/// What is there already.
struct Fill {
    per_directory: u64,
    made: u64,
    /// The one that is being filled.
    directory: Option<InodeNumber>,
}

impl Fill {
    fn directory_name(&self, file: u64) -> Outcome<Name> {
        name(format!("d{:06}", file.checked_div(self.per_directory).unwrap_or(0)))
    }

    fn up_to(&mut self, session: &mut Session, size: u64) -> Outcome {
        while self.made < size {
            let begins = self.made.checked_rem(self.per_directory).unwrap_or(self.made) == 0;
            if begins || self.directory.is_none() {
                let directory = self.directory_name(self.made)?;
                let made = session.client.make_directory(&session.who, InodeNumber::ROOT, &directory, 0o700);
                self.directory = Some(made.explain(format_args!("make {directory}"))?.attributes.inode);
            }
            let directory = self.directory.ok_or("no directory")?;
            session.create(directory, &name(format!("f{:08}", self.made))?)?;
            self.made += 1;
        }
        Ok(())
    }

    /// Files of a sample are made in the directory that is being filled; looked up are files all over.
    fn sample(&self, session: &mut Session, count: u64, fill_per_second: f64) -> Outcome<Step> {
        let directory = self.directory.ok_or("nothing was made")?;
        let new = (0..count).map(|file| name(format!("sample-{file:06}"))).collect::<Outcome<Vec<_>>>()?;
        let create = batches(&new, |name| session.create(directory, name))?;
        let count = count.min(self.made);
        // Steps of a fixed stride visit files of all directories; directories are found before the clock runs.
        let stride = (self.made / count.max(1)).max(1);
        let mut old = Vec::new();
        let mut found: Option<(Name, InodeNumber)> = None;
        for file in (0..count).map(|index| index * stride) {
            let wanted = self.directory_name(file)?;
            let inode = match &found {
                Some((name, inode)) if *name == wanted => *inode,
                _ => session.client.lookup(&session.who, InodeNumber::ROOT, &wanted).explain(&wanted)?.attributes.inode,
            };
            found = Some((wanted, inode));
            old.push((inode, name(format!("f{file:08}"))?));
        }
        let stat = batches(&old, |(directory, name)| {
            session.client.lookup(&session.who, *directory, name).map(drop).explain(format_args!("look up {name}"))
        })?;
        let unlink = batches(&new, |name| {
            session.client.unlink(&session.who, directory, name).explain(format_args!("remove {name}"))
        })?;
        let ping = batches(&new, |_| session.client.ping().explain("ping"))?;
        Ok(Step { files: self.made, fill_per_second, create, stat, unlink, ping })
    }
}
