//! `weft store get`: the bytes of one object.

use super::{failed, open_shadow};
use crate::failure::{Ending, Failure, Outcome};
use crate::quantity::ByteSize;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use weft_region::{Error, Kind, Object, ObjectKind, Store, Version};

/// Bytes that are read and written at once.
const PIECE_BYTES: usize = 1 << 20;

const GET_HELP: &str = "\
Of an object that keeps versions, the newest one is written, or the one that
--version names; of one that keeps no size, all up to the last block that was
written. Nothing in the store is changed.

--offset and --bytes: a range of the bytes, of objects without versions, and
whatever the object's size is: a node that was killed has left the size of the
last sync, and perhaps bytes behind it (`weft store parts` lists them). What
was never written reads zeros.

Bytes that are damaged, or cannot be read, end it: the error says where they
are, and how many bytes came before. Then the exit code is 2, and a file that
was begun with --output is removed.

Examples:
  weft store get /dev/nvme1n1 7 --output seven
  weft store get /scratch/objects 7 >seven
  weft store get /scratch/objects 7 --offset 1MiB --bytes 47008 >lost
  weft store get /scratch/objects 9 --version 3 | sha256sum";

/// Write the bytes of an object to standard output or to a file
#[derive(clap::Args, Debug)]
#[command(after_long_help = GET_HELP)]
pub struct Get {
    /// Block device or file
    place: PathBuf,
    /// Number of the object
    object: u64,
    /// File to make [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Version of an object that keeps versions [default: the newest]
    #[arg(long, value_name = "VERSION")]
    version: Option<u64>,
    /// Where a range of bytes begins
    #[arg(long, requires = "bytes", conflicts_with = "version")]
    offset: Option<ByteSize>,
    /// How many bytes the range has
    #[arg(long, requires = "offset")]
    bytes: Option<ByteSize>,
}

impl Get {
    /// The range of bytes that is asked for, if not all are.
    fn range(&self) -> Option<Range<u64>> {
        let (offset, bytes) = (self.offset?.0, self.bytes?.0);
        Some(offset..offset.saturating_add(bytes))
    }
}

/// What is read.
enum Source {
    Object(Object),
    /// Whatever its size is.
    Unsized(Object),
    Version(Version),
}

impl Source {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Object(object) => object.read(offset, into),
            Self::Unsized(object) => object.read_unsized(offset, into).map(|()| into.len()),
            Self::Version(version) => version.read(offset, into),
        }
    }
}

pub fn get(args: &Get) -> Outcome {
    if args.output.is_none() && io::stdout().is_terminal() {
        let failure = Failure::new("refusing to write binary data to a terminal");
        return Err(failure.remedy("`--output FILE`, or `>FILE`"));
    }
    let store = open_shadow(&args.place)?;
    let (source, range) = source_of(&store, args)?;
    match &args.output {
        None => write_all(args, &source, range, "standard output", &mut io::stdout().lock())?,
        Some(path) => write_file(args, &source, range, path)?,
    }
    Ok(Ending::Done)
}

fn source_of(store: &Store, args: &Get) -> Outcome<(Source, Range<u64>)> {
    let (explain, id) = (failed(&args.place), args.object);
    let place = args.place.display();
    let no_versions = || Failure::new(format!("{place}: object {id}: keeps no versions")).remedy("leave --version out");
    match store.kind_of(id).map_err(&explain)? {
        None => {
            let failure = Failure::no(format!("{place}: object {id}: no such object"));
            Err(failure.remedy(format!("`weft store dump {place}` lists what is there")))
        }
        Some(ObjectKind::Damaged) => {
            let failure = Failure::new(format!("{place}: damaged: the super block of object {id}"));
            Err(failure.remedy(format!("`weft store dump --scan {place}` says what is there still")))
        }
        Some(ObjectKind::Versioned) if args.range().is_some() => {
            let failure = Failure::new(format!("{place}: object {id}: keeps versions"));
            Err(failure.remedy("leave --offset and --bytes out"))
        }
        Some(ObjectKind::Versioned) => {
            let object = store.versioned(id).map_err(&explain)?;
            let newest = object.newest().map_err(&explain)?.version;
            let version = object.at(args.version.unwrap_or(newest));
            if newest == 0 && args.version.is_none() {
                return Err(Failure::no(format!("{place}: object {id}: has no version yet")));
            }
            let version = version.map_err(explain)?;
            let size = version.stat().size;
            Ok((Source::Version(version), 0..size))
        }
        Some(ObjectKind::Direct | ObjectKind::Plain) if args.version.is_some() => Err(no_versions()),
        Some(ObjectKind::Direct) => {
            let object = store.object(id, Kind::Direct).map_err(explain)?;
            let size = object.stat().map_or(0, |stat| stat.size);
            Ok(match args.range() {
                Some(range) => (Source::Unsized(object), range),
                None => (Source::Object(object), 0..size),
            })
        }
        Some(ObjectKind::Plain) => {
            let object = store.object(id, Kind::Plain).map_err(&explain)?;
            let size = object.data_end().map_err(explain)?;
            Ok((Source::Object(object), args.range().unwrap_or(0..size)))
        }
    }
}

fn write_file(args: &Get, source: &Source, range: Range<u64>, path: &Path) -> Outcome<()> {
    let shown = path.display().to_string();
    let mut file = File::create_new(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(format!("{shown}: file exists")).remedy("choose another name, or remove it")
        }
        _ => Failure::of_io(&shown, &error).failed(),
    })?;
    let written = write_all(args, source, range, &shown, &mut file);
    let written = written.and_then(|()| file.sync_all().map_err(|error| Failure::of_io(&shown, &error).failed()));
    // Nobody is to take a part for the whole.
    written.inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Writes all bytes, or says how many came before what went wrong.
fn write_all(args: &Get, source: &Source, range: Range<u64>, shown: &str, into: &mut dyn Write) -> Outcome<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let Range { start, end } = range;
    let mut offset = start;
    let came = |offset: u64| format!("{} of {} bytes were written", offset - start, end - start);
    while offset < end {
        let bytes = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let piece = buffer.get_mut(..bytes).unwrap_or_default();
        let read = match source.read(offset, piece) {
            Ok(read) if read == bytes => Ok(()),
            Ok(_) => Err(Error::Damaged(format!("object {} ends before its size", args.object))),
            Err(error) => Err(error),
        };
        if let Err(error) = read {
            let failure = failed(&args.place)(error);
            let named = Failure::new(format!("{}; object {}: {}", failure.text(), args.object, came(offset)));
            return Err(match failure.remedy_text() {
                Some(remedy) => named.remedy(remedy),
                None => named,
            });
        }
        // Also when nobody reads any more: what went is not all.
        into.write_all(piece).map_err(|error| Failure::new(format!("{shown}: {error}; {}", came(offset))))?;
        offset += bytes as u64;
    }
    into.flush().map_err(|error| Failure::new(format!("{shown}: {error}")))
}
