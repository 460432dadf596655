//! `bench-moves`: for how long calls wait while their shard moves to another node.
//!
//! Fills directories of one shard, which is not the root shard, and has that shard move between two nodes in turns
//! while a client creates and removes a file there, as fast as it can. The pause of a move is the longest time between
//! two replies from its beginning until a moment after its end. The client that has filled the directories keeps its
//! leases, of each file some, unless told otherwise. Prints a line of JSON per size.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_bench::{Explain, Outcome, clock, conclude};
use weft_client::{Client, ClientOptions, Instance, OpenOptions};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{Access, CreateFile};
use weft_protocol::{Credentials, InodeNumber, Name, NodeId, ShardId, routing};

/// Directories that are made for each one of the shard, at most.
const TRIES_MAX: u64 = 100;
/// Files per directory: few enough that it is not spread over the shards.
const PER_DIRECTORY: u64 = 500;
/// How long after the answer to a move calls belong to it, seconds: clients learn the map meanwhile. As long before a
/// move, the same is measured without one.
const AFTER_SECONDS: f64 = 0.1;

/// Move a shard between two nodes while a client uses it; prints a line of JSON per size
#[derive(Parser)]
struct Args {
    /// Name of the file system, which has two nodes with two shards each
    #[arg(long)]
    name: String,
    /// Files of the shard at each step, rising
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
    sizes: Vec<u64>,
    /// Moves at each step
    #[arg(long, default_value_t = 100)]
    moves: usize,
    /// End the client that has made the files before the shard moves, and with it its leases
    #[arg(long)]
    without_leases: bool,
}

#[derive(Serialize)]
struct Step {
    files: u64,
    moves: usize,
    /// Milliseconds from the request to the answer.
    move_p50: f64,
    move_p99: f64,
    /// Milliseconds in which no call was answered.
    pause_p50: f64,
    pause_p99: f64,
    pause_max: f64,
    /// The same in a moment before the move.
    rest_p50: f64,
    rest_p99: f64,
    calls: usize,
}

fn main() -> ExitCode {
    conclude("bench-moves", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome {
    let instance = Instance::find(Some(&args.name)).explain("find the file system")?;
    let mut client = Client::connect(&instance, &ClientOptions::default()).explain("connect")?;
    let who = client.credentials();
    // Before the first move: new directories are of the shards that are at this client's home node then.
    let directories = directories(&client, &who, args.sizes.iter().copied().max().unwrap_or(0))?;
    let (used, filled) = directories.split_first().ok_or("no directory was made")?;
    let mut made = 0;
    for size in &args.sizes {
        while made < *size {
            let index = usize::try_from(made / PER_DIRECTORY).explain("count directories")?;
            let directory = filled.get(index).ok_or("sizes that do not rise")?;
            create(&client, &who, *directory, &name(format!("f{made:08}"))?)?;
            made += 1;
        }
        if args.without_leases {
            client.close().explain("close")?;
            client = Client::connect(&instance, &ClientOptions::default()).explain("connect")?;
        }
        let step = measure(&instance, &client, *used, made, args.moves)?;
        println!("{}", serde_json::to_string(&step).explain("print")?);
    }
    client.close().explain("close")
}

fn name(text: String) -> Outcome<Name> {
    Name::new(text.as_bytes()).explain(text)
}

fn create(client: &Client, who: &Credentials, directory: InodeNumber, name: &Name) -> Outcome {
    let create = Some(CreateFile { mode: 0o600, exclusive: true, plan: None });
    let made = client.open_at(who, directory, name, OpenOptions::of(Access::Write), create);
    made.and_then(|(file, _)| file.close()).explain(format_args!("create {name}"))
}

/// Makes directories of one shard, which is not the root shard: one to use, and as many as so many files need.
fn directories(client: &Client, who: &Credentials, files: u64) -> Outcome<Vec<InodeNumber>> {
    let (mut made, mut shard) = (Vec::new(), None);
    let count = 1 + files.div_ceil(PER_DIRECTORY);
    for number in 0..TRIES_MAX * count {
        let directory = name(format!("d{number:06}"))?;
        let entry = client.make_directory(who, InodeNumber::ROOT, &directory, 0o700);
        let inode = entry.explain(format_args!("make {directory}"))?.attributes.inode;
        let of = routing::of_inode(inode);
        if shard.map_or(of != ShardId::ROOT, |shard| shard == of) {
            shard = Some(of);
            made.push(inode);
        }
        if made.len() as u64 == count {
            return Ok(made);
        }
    }
    Err("no shard but the root shard: start the file system with --shards-per-node 2".to_owned())
}

fn measure(instance: &Instance, owner: &Client, directory: InodeNumber, files: u64, moves: usize) -> Outcome<Step> {
    let (is_over, replies) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let shard = routing::of_inode(directory);
    let mut spans = Vec::new();
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| call_on(instance, directory, &is_over, &replies));
        let moved = (0..moves).try_for_each(|_| {
            sleep(2.0 * AFTER_SECONDS);
            spans.push(move_on(owner, shard)?);
            sleep(AFTER_SECONDS);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        moved.and(calling.join().map_err(|_| "the calling thread has ended")?)
    })?;
    let replies = replies.into_inner().map_err(|_| "the calling thread has ended")?;
    let milliseconds = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds.into_iter().map(|seconds| seconds * 1000.0).collect::<Vec<f64>>()
    };
    let takes = milliseconds(spans.iter().map(|(begin, end)| end - begin).collect());
    let pauses = spans.iter().map(|(begin, end)| longest_gap(&replies, *begin, end + AFTER_SECONDS));
    let pauses = milliseconds(pauses.collect());
    let before = |(begin, _): &(f64, f64)| {
        let replies = replies.get(..replies.partition_point(|reply| reply < begin)).unwrap_or_default();
        longest_gap(replies, begin - AFTER_SECONDS, *begin)
    };
    let rests = milliseconds(spans.iter().map(before).collect());
    Ok(Step {
        files,
        moves,
        move_p50: at(&takes, 50),
        move_p99: at(&takes, 99),
        pause_p50: at(&pauses, 50),
        pause_p99: at(&pauses, 99),
        pause_max: at(&pauses, 100),
        rest_p50: at(&rests, 50),
        rest_p99: at(&rests, 99),
        calls: replies.len(),
    })
}

fn sleep(seconds: f64) {
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}

/// A percentile of sorted figures: the smallest that so many percent do not exceed.
fn at(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Creates and removes a file until it is over, and notes when each reply came.
fn call_on(instance: &Instance, directory: InodeNumber, is_over: &AtomicBool, replies: &Mutex<Vec<f64>>) -> Outcome {
    let client = Client::connect(instance, &ClientOptions::default()).explain("connect")?;
    let (who, file) = (client.credentials(), name("used".to_owned())?);
    while !is_over.load(Ordering::Relaxed) {
        create(&client, &who, directory, &file)?;
        client.unlink(&who, directory, &file).explain("remove")?;
        replies.lock().map_err(|_| "the measuring thread has ended")?.push(clock::now());
    }
    client.close().explain("close")
}

/// Has the shard move to the other node. Returns when that began and ended.
fn move_on(owner: &Client, shard: ShardId) -> Outcome<(f64, f64)> {
    let NodeAnswer::Map(map) = owner.node_request(NodeId(0), NodeRequest::GetMap).explain("get the map")? else {
        return Err("no map".to_owned());
    };
    let root = map.node_of(ShardId::ROOT).ok_or("no root shard")?;
    let to = map.nodes.iter().map(|node| node.id).find(|node| Some(*node) != map.node_of(shard)).ok_or("one node")?;
    let begin = clock::now();
    owner.node_request(root, NodeRequest::Move { shard, to }).explain(format_args!("move shard {shard}"))?;
    Ok((begin, clock::now()))
}

/// The longest time between two replies of which one came after `begin` and the other before `end`.
fn longest_gap(replies: &[f64], begin: f64, end: f64) -> f64 {
    let gaps = replies.windows(2).filter_map(|pair| match pair {
        [one, other] if *other > begin && *one < end => Some(other - one),
        _ => None,
    });
    gaps.fold(0.0, f64::max)
}
