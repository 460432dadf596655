//! `weft store parts`: which bytes of which files a store has, as its own log and map tell.

use super::{failed, open_shadow};
use crate::failure::{Ending, Outcome};
use crate::output;
use crate::quantity::bytes_text;
use serde::Serialize;
use std::path::PathBuf;
use weft_protocol::ids::SEQUENCE_MAX;
use weft_protocol::{InodeNumber, ObjectId, ShardId};
use weft_region::{FilePart, Kind, ObjectKind, Store};

const PARTS_HELP: &str = "\
For a store whose node was killed: a file's whole object, or the parts that
processes have written of a split file, published or not. Each line of a part
is a range in which something was written, in whole blocks of 4 KiB: what was
not written of such a block reads zeros. Size and time are as of the object's
last sync; ranges go beyond the size where more was written since, and the
store was synced for another file. Of the order in which parts were published
the store knows nothing. `weft store get --offset --bytes` extracts a range.
Objects that are damaged are left out (`weft store check` counts them). Exit
code 1: there is none.

--json prints a list of objects:
  object (its number in the store), inode, file_object (as `weft stat` names
  it), start (the file's byte at offset 0), size, time (RFC 3339, UTC),
  ranges (a list of offset and bytes)

Examples:
  weft store parts /dev/nvme1n1
  weft store parts /scratch/objects --inode 0:17
  weft store get /scratch/objects 7 --offset 1MiB --bytes 47008 >lost";

/// List which bytes of which files are in a store
#[derive(clap::Args, Debug)]
#[command(after_long_help = PARTS_HELP)]
pub struct Parts {
    /// Block device or file
    place: PathBuf,
    /// Inode of one file, as `weft stat` prints it: SHARD:NUMBER
    #[arg(long, value_name = "INODE", value_parser = inode_of)]
    inode: Option<InodeNumber>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn inode_of(text: &str) -> Result<InodeNumber, String> {
    let found = text.split_once(':').and_then(|(shard, sequence)| {
        let (shard, sequence) = (shard.parse().ok()?, sequence.parse().ok()?);
        let inode = (sequence <= SEQUENCE_MAX).then(|| InodeNumber::new(ShardId(shard), sequence))?;
        (inode.to_string() == text).then_some(inode)
    });
    found.ok_or_else(|| format!("\"{text}\" is not an inode: write SHARD:NUMBER, such as 0:17"))
}

#[derive(Serialize)]
struct Line {
    object: u64,
    inode: u64,
    file_object: String,
    start: u64,
    size: u64,
    time: String,
    ranges: Vec<Range>,
}

#[derive(Serialize)]
struct Range {
    offset: u64,
    bytes: u64,
}

pub fn list(args: &Parts) -> Outcome {
    let store = open_shadow(&args.place)?;
    let mut lines = Vec::new();
    for id in store.list().map_err(failed(&args.place))? {
        lines.extend(line_of(&store, id, args.inode).map_err(failed(&args.place))?);
    }
    lines.sort_by_key(|line| (line.inode, line.start, line.object));
    output::print_either(args.json, &lines, || lines.iter().map(text).collect())?;
    Ok(if lines.is_empty() { Ending::No } else { Ending::Done })
}

/// What a store has of a file, if the object is a node's, and of the file that is asked for.
fn line_of(store: &Store, id: u64, inode: Option<InodeNumber>) -> weft_region::Result<Option<Line>> {
    if store.kind_of(id)? != Some(ObjectKind::Direct) {
        return Ok(None);
    }
    let object = store.object(id, Kind::Direct)?;
    let asked = |part: &FilePart| inode.is_none_or(|inode| inode.raw() == part.inode);
    let (Some(part), Some(stat)) = (FilePart::of(object.owner()).filter(asked), object.stat()) else { return Ok(None) };
    let ranges = object.data_ranges()?;
    let ranges = ranges.into_iter().map(|range| Range { offset: range.start, bytes: range.end - range.start });
    Ok(Some(Line {
        object: id,
        inode: part.inode,
        file_object: ObjectId::from_raw(part.object).to_string(),
        start: part.start,
        size: stat.size,
        time: super::rfc3339(stat.modified),
        ranges: ranges.collect(),
    }))
}

fn text(line: &Line) -> String {
    let Line { object, file_object, start, size, time, ranges, .. } = line;
    let inode = InodeNumber::from_raw(line.inode);
    let from = if *start > 0 { format!(" from byte {start} on") } else { String::new() };
    let mut text = format!("inode {inode}{from}, file object {file_object}: object {object}, {size} bytes at {time}\n");
    for Range { offset, bytes } in ranges {
        text.push_str(&format!("  offset {offset}: {bytes} bytes ({})\n", bytes_text(*bytes)));
    }
    text
}
