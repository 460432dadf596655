//! `weft convert`: files get another layout.

use super::layout::Striping;
use crate::failure::{Ending, Explain, Outcome};
use crate::relocation::{self, Outcomes, Relocation, Room, Share};
use crate::session::Sessions;
use crate::target::{Target, WeftPath};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Instant;
use weft_client::Destination;
use weft_protocol::{Attributes, Layout, Plan, StripePlan};

const HELP: &str = "\
Copies the bytes of files to new objects, on the nodes with the most room, and
gives the files these. Of a directory, all files below it. Several threads copy
each file. Files can be read and written as ever: one that somebody has open,
or opens meanwhile, keeps its layout, and is named if it is in use for some
seconds; a split file may be open for reading. Of a file that becomes a split
one, and of one that was, all bytes are in one part at first.

What directories give to new files is `weft layout`'s.

Examples:
  weft convert --width 4 job42:/checkpoints/last
  weft convert --width 4 --stripe 4MiB job42:/checkpoints
  weft convert --whole job42:/checkpoints";

/// Give files that are there another layout
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files, and directories with files: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    striping: Striping,
    /// Have files on one node each
    #[arg(long, conflicts_with_all = ["width", "split"], required_unless_present_any = ["width", "split"])]
    whole: bool,
    #[command(flatten)]
    share: Share,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> =
        args.paths.iter().map(|path| Target::in_weft(path, "convert")).collect::<Outcome<_>>()?;
    let (plan, begun) = (args.striping.plan()?.unwrap_or_default(), Instant::now());
    let mut sessions = Sessions::default();
    let mut all = Outcomes::default();
    for path in &paths {
        let session = sessions.of(path)?;
        let attributes = session.walk(path, true, "convert")?.attributes;
        let spaces = session.client.space().explain(|| format!("convert {path}"))?;
        let room = Room::beside(&session, &spaces, &BTreeSet::new());
        let concerns = |attributes: &Attributes| is_other(&attributes.layout, plan, room.count());
        let choose = |attributes: &Attributes| {
            let to = room.take(attributes.size, plan.stripes().map_or(1, |stripes| usize::from(stripes.width())));
            Destination { layout: Some(Layout::planned(plan)), from: BTreeSet::new(), to }
        };
        let (concerns, choose, who) = (&concerns, &choose, session.who.clone());
        let relocation = Relocation { session: &session, who, share: args.share, concerns, choose, verb: "convert" };
        all.add(relocation.run(path, &attributes));
    }
    let told = relocation::tell(&all, begun.elapsed(), "converted");
    sessions.close()?;
    told.map(|()| Ending::Done)
}

/// Whether a file with this layout gets another one by this plan, where so many nodes store.
fn is_other(layout: &Layout, plan: Plan, nodes: usize) -> bool {
    let as_many = |plan: StripePlan| usize::from(plan.width()).min(nodes);
    match (layout.plan(), plan) {
        (Plan::Whole, Plan::Whole) | (Plan::Split, Plan::Split) => false,
        (Plan::Striped(has), Plan::Striped(wanted)) => {
            has.stripe_bytes() != wanted.stripe_bytes() || usize::from(has.width()) != as_many(wanted)
        }
        (Plan::Whole, Plan::Striped(wanted)) => as_many(wanted) > 1,
        (_, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::{Generation, NodeId, ObjectId};

    #[test]
    fn files_that_have_the_layout_are_left_alone() {
        let object = |node| ObjectId::new(NodeId(node), 7);
        let whole = Layout::Whole { object: object(0), generation: Generation(1) };
        let plan = |width| Plan::Striped(StripePlan::new(width, 1 << 20).expect("a plan"));
        let striped = Layout::planned(plan(2)).given(object(0), &[object(1)]).expect("as planned");
        assert!(!is_other(&whole, Plan::Whole, 3) && is_other(&striped, Plan::Whole, 3));
        assert!(is_other(&whole, plan(4), 3) && !is_other(&whole, plan(4), 1), "one node has all");
        assert!(!is_other(&striped, plan(2), 3) && is_other(&striped, plan(3), 3));
        assert!(!is_other(&striped, plan(3), 2), "there are two nodes");
        assert!(is_other(&striped, Plan::Striped(StripePlan::new(2, 2 << 20).expect("a plan")), 3));
    }
}
