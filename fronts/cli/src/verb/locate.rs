//! `weft locate`: where the bytes of a file live.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::{self, JsonName};
use crate::session::{Sessions, node_name};
use crate::table::Table;
use crate::target::{Target, WeftPath};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use weft_client::Location;
use weft_protocol::{Error, FileKind};

const HELP: &str = "\
--json prints an array with an object per path:
  path, path_hex (null, or the bytes of a path that is not UTF-8), ranges:
    [{offset, bytes, node (number, null: a hole), host, site}]
A path below a mount of this user's file systems is translated.

Examples:
  weft locate weft:/data.h5
  weft locate --json job42:/part-*";

/// Show on which node, host and site the bytes of files live
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints per path.
#[derive(Serialize)]
struct Located {
    path: String,
    path_hex: Option<String>,
    /// For people.
    #[serde(skip)]
    shown: String,
    ranges: Vec<Range>,
}

#[derive(Serialize)]
struct Range {
    offset: u64,
    bytes: u64,
    node: Option<u16>,
    host: String,
    site: String,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "locate")).collect::<Outcome<_>>()?;
    let mut sessions = Sessions::default();
    let mut located = Vec::new();
    for path in &paths {
        let session = sessions.of(path)?;
        let found = session.walk(path, true, "locate")?.attributes;
        if found.kind == FileKind::Directory {
            let failure = Failure::of_weft(format_args!("locate {path}"), &Error::IsDirectory);
            return Err(failure.remedy("name files: only they have bytes on nodes"));
        }
        let locations = session.client.locate(&session.who, found.inode).explain(|| format!("locate {path}"))?;
        let JsonName { text, hex } = JsonName::new(path.to_os_string().as_bytes());
        let ranges = locations.into_iter().map(Range::from).collect();
        located.push(Located { path: text, path_hex: hex, shown: path.to_string(), ranges });
    }
    output::print_either(args.json, &located, || table(&located).to_string())?;
    sessions.close()?;
    Ok(Ending::Done)
}

impl From<Location> for Range {
    fn from(location: Location) -> Self {
        let Location { offset, bytes, node, host, site } = location;
        Self { offset, bytes, node: node.map(|node| node.0), host, site }
    }
}

fn table(located: &[Located]) -> Table {
    let mut table = Table::new(&["FILE", ">OFFSET", ">BYTES", "NODE", "HOST", "SITE"]);
    for file in located {
        for range in &file.ranges {
            let node = range.node.map_or("(hole)".to_owned(), |node| node_name(weft_protocol::NodeId(node)));
            let (offset, bytes) = (range.offset.to_string(), range.bytes.to_string());
            table.row([file.shown.clone(), offset, bytes, node, range.host.clone(), range.site.clone()]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_a_table() {
        let range = |offset, node| Range { offset, bytes: 10, node, host: "h".into(), site: "s".into() };
        let ranges = vec![range(0, Some(1)), range(10, None)];
        let located = [Located { path: String::new(), path_hex: None, shown: "w:/a".into(), ranges }];
        assert_eq!(
            table(&located).to_string(),
            "FILE  OFFSET  BYTES  NODE    HOST  SITE\n\
             w:/a       0     10  n01     h     s\n\
             w:/a      10     10  (hole)  h     s\n"
        );
    }
}
