//! `weft store send`, `receive` and `have`: objects from one store to another.

use super::{failed, open, open_shadow, output};
use crate::failure::{Ending, Failure, Outcome};
use crate::output::story_is_watched;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::io::{self, BufReader, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use weft_region::{Error, Fed, Have, ReceiveOptions, SendOptions};

/// Bytes of a pipe that are read or written at once.
const PIPE_BYTES: usize = 256 << 10;

const SEND_HELP: &str = "\
Versions that the receiver does not have, or all; other objects are sent whole,
by what is written of them. A stream that breaks off is gone on with: what came
is kept, and `weft store have` says what that is.

Examples:
  weft store send A | weft store receive B
  weft store send A | ssh host weft store receive B
  weft store have B >have
  weft store send A --have have | weft store receive B
  weft store send /dev/nvme1n1 7 9 >two-objects";

const RECEIVE_HELP: &str = "\
What is there under an identifier is gone on with if it is a copy of the object
that comes, and refused if it is another one. Copies are not to be written to:
then they take no more.

Objects that were removed from the source are counted, and kept. With --remove
they go when all has come; and where the source has made another object under
the same identifier, that takes the place of the one that is there.

Examples:
  weft store send A | weft store receive B
  weft store send A --have have | weft store receive --remove B
  weft store receive /dev/nvme1n1 <two-objects";

const HAVE_HELP: &str = "\
Prints JSON for `weft store send --have`, an array of objects:
  object, lineage, version (all before it are there), block (likewise, of it)

Examples:
  weft store have B >have
  weft store send A --have have | weft store receive B
  ssh host weft store have B | weft store send A --have /dev/stdin >news";

/// Send the objects of a store to standard output
#[derive(clap::Args, Debug)]
#[command(after_long_help = SEND_HELP)]
pub struct Send {
    /// Block device or file
    place: PathBuf,
    /// Numbers of objects; none: all
    #[arg(value_name = "OBJECT")]
    objects: Vec<u64>,
    /// What `weft store have` says of the receiver
    #[arg(long, value_name = "FILE")]
    have: Option<PathBuf>,
}

/// Receive objects of another store from standard input
#[derive(clap::Args, Debug)]
#[command(after_long_help = RECEIVE_HELP)]
pub struct Receive {
    /// Block device or file
    place: PathBuf,
    /// Replace objects of which nothing says whether they are the same
    #[arg(long)]
    replace_plain: bool,
    /// Remove objects that the source has not any more
    #[arg(long)]
    remove: bool,
}

/// Print how far the versions of a store's objects go
#[derive(clap::Args, Debug)]
#[command(after_long_help = HAVE_HELP)]
pub struct HaveArgs {
    /// Block device or file
    place: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    object: u64,
    /// Hexadecimal: numbers in JSON are not sure to keep 64 bits.
    lineage: String,
    version: u64,
    block: u64,
}

impl Line {
    fn of(have: &Have) -> Self {
        let Have { id, lineage, version, block } = *have;
        Self { object: id, lineage: format!("{lineage:016x}"), version, block }
    }

    fn have(&self) -> Option<Have> {
        let Self { object: id, version, block, .. } = *self;
        Some(Have { id, lineage: u64::from_str_radix(&self.lineage, 16).ok()?, version, block })
    }
}

pub fn have(args: &HaveArgs) -> Outcome {
    let found = open_shadow(&args.place)?.have().map_err(failed(&args.place))?;
    output::print_json(&found.iter().map(Line::of).collect::<Vec<_>>())?;
    Ok(Ending::Done)
}

fn read_have(file: &Path) -> Outcome<Vec<Have>> {
    let wrong =
        |why: String| Failure::new(format!("{}: {why}", file.display())).remedy("`weft store have` makes such a file");
    let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let lines: Vec<Line> = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let found = lines.iter().map(Line::have).collect::<Option<_>>();
    found.ok_or_else(|| wrong("a lineage is no hexadecimal number".to_owned()))
}

/// Shows how many bytes went, if somebody looks.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new() -> Self {
        Self(story_is_watched().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            match ProgressStyle::with_template("{binary_bytes}  {binary_bytes_per_sec}  {elapsed}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        }))
    }

    fn at(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

pub fn send(args: &Send) -> Outcome {
    if io::stdout().is_terminal() {
        let failure = Failure::new("a stream of objects is nothing for a terminal".to_owned());
        return Err(failure.remedy("`| weft store receive PLACE`, or `>FILE`"));
    }
    let have = args.have.as_deref().map_or(Ok(Vec::new()), read_have)?;
    let store = open_shadow(&args.place)?;
    let options = SendOptions { objects: args.objects.clone(), have, ..SendOptions::default() };
    let progress = Progress::new();
    let mut pipe = BufWriter::with_capacity(PIPE_BYTES, io::stdout().lock());
    match store.send(&options, &mut pipe, &mut |bytes| progress.at(bytes)) {
        Ok(_) => Ok(Ending::Done),
        // Also when nobody reads: what went is not all.
        Err(Error::Pipe(error)) => Err(Failure::new(format!("standard output: {error}"))),
        Err(error) => Err(failed(&args.place)(error)),
    }
}

pub fn receive(args: &Receive) -> Outcome {
    if io::stdin().is_terminal() {
        let failure = Failure::new("a stream of objects does not come from a terminal".to_owned());
        return Err(failure.remedy("`weft store send PLACE |`, or `<FILE`"));
    }
    let store = open(&args.place)?;
    let progress = Progress::new();
    let mut pipe = BufReader::with_capacity(PIPE_BYTES, io::stdin().lock());
    let options = ReceiveOptions { replace_plain: args.replace_plain, remove: args.remove };
    let received = store.receive(options, &mut pipe, &mut |bytes| progress.at(bytes));
    drop(progress);
    // What came is kept, whatever happened then.
    let closed = store.close();
    let Fed { objects, versions, gone, .. } = received.map_err(failed(&args.place))?;
    closed.map_err(failed(&args.place))?;
    let gone = match gone.unwrap_or(0) {
        0 => String::new(),
        gone if args.remove => format!("; {gone} removed"),
        gone => format!("; {gone} that the source has not (--remove takes them away)"),
    };
    output::note(format_args!("{}: {objects} objects, {versions} new versions{gone}", args.place.display()));
    Ok(Ending::Done)
}
