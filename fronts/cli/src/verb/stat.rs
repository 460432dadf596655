//! `weft stat`: what is known of a file or directory.

use crate::accounts::Accounts;
use crate::calendar;
use crate::failure::{Ending, Explain, Outcome};
use crate::output::{self, Answer, JsonName, printable};
use crate::quantity::bytes_text;
use crate::session::{Session, Sessions, node_name};
use crate::target::{Target, WeftPath};
use crate::verb::layout::{plan_text, striped_text};
use crate::verb::ls::mode_text;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use weft_client::PartUse;
use weft_protocol::{Attributes, Error, FileKind, Layout, Plan, routing};

const HELP: &str = "\
--json prints an array with an object per path:
  path, path_hex, kind (\"regular\", \"directory\", \"symlink\"), size, mode (octal
    text), links, uid, gid,
  inode (number), shard, atime, mtime, ctime (RFC 3339, UTC), link (of a
    symlink, else null), link_hex,
  shards (of a directory: those that have its names),
  object (\"NODE:SEQUENCE\", null while nothing was written; of a striped file
    the first one), node (that holds it, or null),
  parts (of a split file: object, node, bytes and pieces of each writer's)
Names are bytes. path_hex and link_hex are null where the text is exact; else
they have the bytes in hexadecimal, and the text has U+FFFD for what is not
UTF-8.
Exit code 1: a path is not there.

Examples:
  weft stat weft:/data.h5
  weft stat --json job42:/a job42:/b";

/// Show attributes of files and directories
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// What to look at: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// What a symbolic link points to, not the link
    #[arg(short = 'L')]
    follow: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints per path.
#[derive(Serialize)]
struct Described {
    path: String,
    path_hex: Option<String>,
    kind: &'static str,
    size: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    inode: u64,
    shard: u16,
    atime: String,
    mtime: String,
    ctime: String,
    link: Option<String>,
    link_hex: Option<String>,
    shards: Vec<u16>,
    object: Option<String>,
    node: Option<u16>,
    parts: Vec<DescribedPart>,
}

/// A part of a split file, there.
#[derive(Serialize)]
struct DescribedPart {
    object: String,
    node: u16,
    bytes: u64,
    pieces: u64,
}

/// What was found of a path.
struct Found {
    attributes: Attributes,
    /// What a symbolic link points to.
    link: Option<Vec<u8>>,
    /// Of a split file.
    parts: Vec<PartUse>,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "stat")).collect::<Outcome<_>>()?;
    let mut sessions = Sessions::default();
    let accounts = Accounts::read();
    let mut answer = Answer::new();
    let mut described = Vec::new();
    let mut failed = None;
    for path in &paths {
        let found = sessions.of(path).and_then(|session| look(args, &session, path));
        match found {
            Ok(found) if args.json => described.push(describe(path, found)),
            Ok(found) => answer.bytes(text(path, &found, &accounts).as_bytes())?,
            Err(failure) => failed.replace(failure).iter().for_each(output::warn),
        }
    }
    if args.json {
        answer.json(&described)?;
    }
    answer.finish()?;
    sessions.close()?;
    failed.map_or(Ok(Ending::Done), Err)
}

fn look(args: &Args, session: &Session, path: &WeftPath) -> Outcome<Found> {
    let entry = session.walk(path, args.follow, "stat")?;
    let attributes = entry.with_size().explain(|| format!("stat {path}"))?.attributes;
    let link = match attributes.kind {
        FileKind::Symlink => {
            let link = session.client.read_link(&session.who, attributes.inode);
            Some(link.explain(|| format!("stat {path}"))?)
        }
        FileKind::Regular | FileKind::Directory => None,
    };
    let parts = match attributes.layout.epoch().filter(|_| attributes.kind == FileKind::Regular) {
        None => Vec::new(),
        Some(_) => match session.client.parts(&session.who, attributes.inode) {
            // Its layout has changed just now, or it is not for this user to read.
            Err(Error::Invalid | Error::NotPermitted | Error::AccessDenied) => Vec::new(),
            parts => parts.explain(|| format!("stat {path}"))?,
        },
    };
    Ok(Found { attributes, link, parts })
}

fn kind_text(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
    }
}

fn describe(path: &WeftPath, Found { attributes, link, parts }: Found) -> Described {
    let object = attributes.layout.object();
    let name = JsonName::new(path.to_os_string().as_bytes());
    let link = link.map(|link| JsonName::new(&link));
    let (link, link_hex) = link.map_or((None, None), |link| (Some(link.text), link.hex));
    Described {
        path: name.text,
        path_hex: name.hex,
        kind: kind_text(attributes.kind),
        size: attributes.size,
        mode: format!("{:04o}", attributes.mode),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        inode: attributes.inode.raw(),
        shard: routing::of_inode(attributes.inode).0,
        atime: calendar::rfc3339(attributes.atime),
        mtime: calendar::rfc3339(attributes.mtime),
        ctime: calendar::rfc3339(attributes.ctime),
        link,
        link_hex,
        shards: name_shards(&attributes),
        object: object.map(|object| object.to_string()),
        node: object.map(|object| object.node().0),
        parts: parts.iter().map(describe_part).collect(),
    }
}

fn describe_part(part: &PartUse) -> DescribedPart {
    let PartUse { object, pieces, bytes } = *part;
    DescribedPart { object: object.to_string(), node: object.node().0, bytes, pieces }
}

/// The shards that have the names of a directory.
fn name_shards(attributes: &Attributes) -> Vec<u16> {
    let parts = match (&attributes.parts, attributes.kind) {
        (Some(parts), _) => parts.all(),
        (None, FileKind::Directory) => std::slice::from_ref(&attributes.inode),
        (None, _) => &[],
    };
    parts.iter().map(|part| routing::of_inode(*part).0).collect()
}

/// The line about the layout, of a striped file with those of its objects.
fn layout_text(attributes: &Attributes) -> String {
    let layout = match (&attributes.layout, attributes.kind) {
        (layout, FileKind::Directory) if layout.plan() != Plan::Whole => {
            return format!("  new files {}\n", plan_text(layout.plan()));
        }
        (_, FileKind::Directory | FileKind::Symlink) => return String::new(),
        (Layout::Empty, _) => "none yet".to_owned(),
        (Layout::Whole { object, .. }, _) => format!("whole, object {object} on {}", node_name(object.node())),
        (Layout::Planned(plan), _) => format!("none yet, {}", striped_text(*plan)),
        (Layout::Split { epoch: 0 }, _) => format!("none yet, {}", plan_text(Plan::Split)),
        (Layout::Split { .. }, _) => plan_text(Plan::Split),
        (Layout::Striped(of), _) => {
            let objects = attributes.layout.objects().iter();
            let lines = objects.map(|object| format!("\n    object {object} on {}", node_name(object.node())));
            format!("{}{}", striped_text(of.plan()), lines.collect::<String>())
        }
    };
    format!("  layout {layout}\n")
}

fn text(path: &WeftPath, Found { attributes, link, parts }: &Found, accounts: &Accounts) -> String {
    let link = link.as_ref().map(|link| format!(" -> {}", printable(link))).unwrap_or_default();
    let mode = attributes.mode;
    let mut layout = layout_text(attributes);
    for PartUse { object, pieces, bytes } in parts {
        let (size, node) = (bytes_text(*bytes), node_name(object.node()));
        layout.push_str(&format!("    object {object} on {node}: {size} in {pieces} pieces\n"));
    }
    if attributes.parts.is_some() {
        layout.push_str(&format!("  names on {} shards\n", name_shards(attributes).len()));
    }
    format!(
        "{path}{link}\n  {}, {} bytes ({}), {} links\n  mode {mode:04o} {}, owner {} ({}), group {} ({})\n  \
         inode {} on shard {}\n{layout}  modified {} UTC\n  changed  {} UTC\n  accessed {} UTC\n",
        kind_text(attributes.kind),
        attributes.size,
        bytes_text(attributes.size),
        attributes.links,
        mode_text(attributes.kind, mode),
        accounts.user(attributes.uid),
        attributes.uid,
        accounts.group(attributes.gid),
        attributes.gid,
        attributes.inode,
        routing::of_inode(attributes.inode),
        calendar::date_time(attributes.mtime),
        calendar::date_time(attributes.ctime),
        calendar::date_time(attributes.atime),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{Generation, InodeFlags, InodeNumber, NodeId, ObjectId, ShardId, Timestamp};

    fn attributes() -> Attributes {
        let layout = Layout::Whole { object: ObjectId::new(NodeId(3), 7), generation: Generation(1) };
        let time = Timestamp::from_parts(0, 0);
        Attributes {
            inode: InodeNumber::new(ShardId(2), 5),
            kind: FileKind::Regular,
            mode: 0o640,
            links: 1,
            uid: 0,
            gid: 0,
            size: 2048,
            atime: time,
            mtime: time,
            ctime: time,
            layout,
            flags: InodeFlags::empty(),
            parts: None,
        }
    }

    #[test]
    fn every_field_of_the_json_is_in_the_help() {
        let path = WeftPath { file_system: Some("w".into()), path: b"/a".to_vec() };
        let part = PartUse { object: ObjectId::new(NodeId(1), 9), pieces: 2, bytes: 1000 };
        let found = || Found { attributes: attributes(), link: None, parts: vec![part] };
        let value = serde_json::to_value(describe(&path, found())).expect("JSON");
        for (field, _) in value.as_object().expect("an object") {
            assert!(HELP.contains(field.as_str()), "{field}");
        }
        assert_eq!((value["node"].as_u64(), value["object"].as_str()), (Some(3), Some("3:7")));
        for (field, _) in value["parts"][0].as_object().expect("an object") {
            assert!(HELP.contains(field.as_str()), "{field}");
        }
        let text = text(&path, &found(), &Accounts::read());
        assert!(text.starts_with("w:/a\n  regular, 2048 bytes (2.0 KiB), 1 links\n  mode 0640 -rw-r-----,"), "{text}");
        assert!(text.contains("object 3:7 on n03"), "{text}");
        assert!(text.contains("object 1:9 on n01: 1000 B in 2 pieces"), "{text}");
    }
}
