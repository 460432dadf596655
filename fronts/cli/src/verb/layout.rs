//! `weft layout`: on which nodes the bytes of files are.

use crate::failure::{Ending, Failure, Outcome};
use crate::output::{self, JsonName};
use crate::quantity::{ByteSize, bytes_text};
use crate::session::{Session, Sessions, node_name};
use crate::target::{Target, WeftPath};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use weft_client::STRIPE_BYTES_UNIT;
use weft_protocol::limits::{STRIPE_BYTES_MAX, STRIPE_WIDTH_MAX};
use weft_protocol::{Attributes, Error, FileKind, InodeNumber, Layout, Plan, StripePlan};

const HELP: &str = "\
The layout of a directory is that of files and directories that are made in it
from then on; what is there keeps its own. A whole file is on one node, near
the client that wrote it first. A striped file is on several nodes in turns, so
that it is not bound to the space of one; its bytes are lost with any of them.
A split file has a part for each program that writes it, on its own node: for
files that many processes of a job write at the same time.
A file has its own from when it is made, and can get another one until it is
written; `weft convert` copies what is in a file to another layout. Programs
and tools set both as an extended attribute, here and through mounts:
  setfattr -n weft.layout -v 'width=4 stripe=1MiB' FILE   (or 'whole', 'split')

--json prints an array with an object per path:
  path, path_hex (null, or the bytes of a path that is not UTF-8), layout
  (\"whole\", \"striped\" or \"split\"), width and stripe_bytes (null unless it is
  striped), nodes (numbers, in the order of their stripes; empty while nothing
  was written, and if split)

Examples:
  weft layout weft:/data.h5
  weft layout --width 4 --stripe 1MiB job42:/checkpoints
  weft layout --whole job42:/checkpoints
  weft layout --split job42:/restart";

/// Show or set on which nodes the bytes of files are
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files and directories, to show or to set: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    striping: Striping,
    /// Let new files be on one node each
    #[arg(long, conflicts_with_all = ["width", "split"])]
    whole: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The layout of new files.
#[derive(clap::Args, Debug)]
pub struct Striping {
    /// Stripe new files over this many nodes (2 to 64), or all if there are fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=i64::from(STRIPE_WIDTH_MAX)))]
    width: Option<u16>,
    /// Bytes on one node before the next has its turn [default: 1MiB]
    #[arg(long, value_name = "SIZE", requires = "width")]
    stripe: Option<ByteSize>,
    /// Let new files have a part for each writer, on its own node
    #[arg(long, conflicts_with = "width")]
    split: bool,
}

impl Striping {
    /// `None`: none is asked for.
    pub fn plan(&self) -> Outcome<Option<Plan>> {
        if self.split {
            return Ok(Some(Plan::Split));
        }
        let Some(width) = self.width else { return Ok(None) };
        let stripes = weft_client::stripe_plan(width, self.stripe.map(|stripe| stripe.0));
        stripes.map(|stripes| Some(Plan::Striped(stripes))).ok_or_else(|| {
            let (least, most) = (bytes_text(u64::from(STRIPE_BYTES_UNIT)), bytes_text(u64::from(STRIPE_BYTES_MAX)));
            Failure::new("--stripe: not a size that stripes may have")
                .remedy(format!("give a multiple of {least}, {most} at most"))
        })
    }
}

/// Sets what files made in a directory get, or a file in which nothing was written yet.
pub fn set(
    session: &Session,
    path: &WeftPath,
    (inode, kind): (InodeNumber, FileKind),
    plan: Plan,
) -> Outcome<Attributes> {
    let (client, who) = (&session.client, &session.who);
    let set = match kind {
        FileKind::Regular => client.set_file_plan(who, inode, plan).and_then(|()| client.attributes(who, inode)),
        _ => client.set_directory_plan(who, inode, plan),
    };
    set.map(|entry| entry.attributes).map_err(|error| {
        let failure = Failure::of_weft(format_args!("layout {path}"), &error);
        match error {
            Error::NotEmpty => failure.remedy("`weft convert` gives another layout to files that have bytes"),
            Error::InUse => failure.remedy("close it where it is open, and try again some seconds later"),
            Error::NotPermitted => failure.remedy("only the directory's owner may set it"),
            _ => failure,
        }
    })
}

/// What `--json` prints per path.
#[derive(Serialize)]
struct Described {
    path: String,
    path_hex: Option<String>,
    layout: &'static str,
    width: Option<u16>,
    stripe_bytes: Option<u32>,
    nodes: Vec<u16>,
    /// For people.
    #[serde(skip)]
    text: String,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "layout")).collect::<Outcome<_>>()?;
    let plan = args.striping.plan()?;
    let mut sessions = Sessions::default();
    let mut described = Vec::new();
    for path in &paths {
        let session = sessions.of(path)?;
        let mut attributes = session.walk(path, true, "layout")?.attributes;
        if let Some(plan) = plan.or(args.whole.then_some(Plan::Whole)) {
            attributes = set(&session, path, (attributes.inode, attributes.kind), plan)?;
        }
        described.push(describe(path, &attributes));
    }
    output::print_either(args.json, &described, || described.iter().map(|file| file.text.as_str()).collect())?;
    sessions.close()?;
    Ok(Ending::Done)
}

fn describe(path: &WeftPath, attributes: &Attributes) -> Described {
    let JsonName { text, hex } = JsonName::new(path.to_os_string().as_bytes());
    let stripes = attributes.layout.stripes();
    Described {
        path: text,
        path_hex: hex,
        layout: match attributes.layout.plan() {
            Plan::Whole => "whole",
            Plan::Striped(_) => "striped",
            Plan::Split => "split",
        },
        width: stripes.map(StripePlan::width),
        stripe_bytes: stripes.map(StripePlan::stripe_bytes),
        nodes: attributes.layout.objects().iter().map(|object| object.node().0).collect(),
        text: format!("{path}: {}\n", layout_text(attributes)),
    }
}

/// A plan in words.
pub fn plan_text(plan: Plan) -> String {
    match plan {
        Plan::Whole => "whole".to_owned(),
        Plan::Striped(stripes) => striped_text(stripes),
        Plan::Split => "split into a part for each writer".to_owned(),
    }
}

/// How a file is striped, in words.
pub fn striped_text(plan: StripePlan) -> String {
    format!("striped over {} nodes, {} in turns", plan.width(), bytes_text(u64::from(plan.stripe_bytes())))
}

/// The layout in words.
fn layout_text(attributes: &Attributes) -> String {
    let nodes: Vec<String> = attributes.layout.objects().iter().map(|object| node_name(object.node())).collect();
    match (&attributes.layout, attributes.kind) {
        (layout, FileKind::Directory) => {
            format!("new files are {}", plan_text(layout.plan()))
        }
        (Layout::Empty, _) => "nothing written yet".to_owned(),
        (Layout::Planned(plan), _) => format!("{}; nothing written yet", striped_text(*plan)),
        (Layout::Whole { .. }, _) => format!("whole, on {}", nodes.concat()),
        (Layout::Split { epoch: 0 }, _) => format!("{}; nothing written yet", plan_text(Plan::Split)),
        (Layout::Split { .. }, _) => plan_text(Plan::Split),
        (Layout::Striped(of), _) => format!("{}: {}", striped_text(of.plan()), nodes.join(", ")),
    }
}
