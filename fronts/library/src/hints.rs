//! Hints: words that say how a file is opened and made.

use crate::failure::{Failure, Outcome};
use weft_client::{Registration, parse_layout};
use weft_protocol::Plan;
use weft_protocol::message::shard::GroupLayouts;

const REGISTRATION: &str = "rdma=";
const SPILL: &str = "spill";
const GROUP: &str = "group=";
const PLACEMENT: &str = "placement=";

/// What a caller asks of an open beyond its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    /// Layout of a file that it makes; `None`: what the directory hands down.
    pub layout: Option<Plan>,
    pub registration: Option<Registration>,
    /// Of a split file: writes go on at another node when the caller's own is full.
    pub spill: bool,
    /// Of a split file: a part that the caller's writes make goes to one node after the other, not to its own.
    pub spread: bool,
    /// Files of these layouts are opened for others to import.
    pub group: Option<GroupLayouts>,
}

impl Hints {
    /// From their text.
    pub fn parse(text: &[u8]) -> Outcome<Self> {
        let text = std::str::from_utf8(text).map_err(|_| Failure::invalid("the hints are not text"))?;
        let mut hints = Hints::default();
        let mut layout = Vec::new();
        for word in text.split_ascii_whitespace() {
            if let Some(value) = word.strip_prefix(GROUP) {
                let refusal = || Failure::invalid(format!("hint '{word}': not all, split or unsplit"));
                hints.group = Some(group_layouts(value).ok_or_else(refusal)?);
                continue;
            }
            if let Some(value) = word.strip_prefix(PLACEMENT) {
                hints.spread = match value {
                    "own" => false,
                    "spread" => true,
                    _ => return Err(Failure::invalid(format!("hint '{word}': not own or spread"))),
                };
                continue;
            }
            match word.strip_prefix(REGISTRATION) {
                Some(value) => {
                    let refusal = || Failure::invalid(format!("hint '{word}': not static, dynamic or auto"));
                    hints.registration = Some(Registration::parse(value).ok_or_else(refusal)?);
                }
                None if ["width=", "stripe="].iter().any(|key| word.starts_with(key)) => layout.push(word),
                None if ["whole", "split"].contains(&word) => layout.push(word),
                None if word == SPILL => hints.spill = true,
                None => {
                    let known = "whole, split, spill, width=N, stripe=SIZE, placement=NODES, group=LAYOUTS and \
                                 rdma=MODE are known";
                    return Err(Failure::invalid(format!("unknown hint '{word}': {known}")));
                }
            }
        }
        if !layout.is_empty() {
            let words = layout.join(" ");
            let refusal =
                || Failure::invalid(format!("hints '{words}': not a layout; say whole, split, or width=4 stripe=1MiB"));
            hints.layout = Some(parse_layout(&words).ok_or_else(refusal)?);
        }
        Ok(hints)
    }
}

fn group_layouts(text: &str) -> Option<GroupLayouts> {
    match text {
        "all" => Some(GroupLayouts::All),
        "split" => Some(GroupLayouts::Split),
        "unsplit" => Some(GroupLayouts::Unsplit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_words_and_each_is_checked() {
        let hints = Hints::parse(b" rdma=static  stripe=64KiB width=2 ").unwrap();
        assert_eq!(hints.registration, Some(Registration::Static));
        assert_eq!(hints.layout, weft_client::stripe_plan(2, Some(64 << 10)).map(Plan::Striped));
        assert_eq!(Hints::parse(b"").unwrap(), Hints::default());
        assert_eq!(Hints::parse(b"whole").unwrap().layout, Some(Plan::Whole));
        assert_eq!(Hints::parse(b"split").unwrap(), Hints { layout: Some(Plan::Split), ..Hints::default() });
        assert_eq!(Hints::parse(b"spill").unwrap(), Hints { spill: true, ..Hints::default() });
        assert_eq!(Hints::parse(b"split spill").unwrap().layout, Some(Plan::Split));
        assert!(Hints::parse(b"placement=spread").unwrap().spread);
        assert_eq!(Hints::parse(b"placement=own").unwrap(), Hints::default());
        assert_eq!(Hints::parse(b"group=unsplit").unwrap().group, Some(GroupLayouts::Unsplit));
        for (bad, named) in [
            ("widht=2", "widht=2"),
            ("rdma=fast", "rdma=fast"),
            ("group=some", "group=some"),
            ("placement=far", "placement=far"),
            ("stripe=64KiB", "stripe"),
            ("width=2 whole", "whole"),
        ] {
            let failure = Hints::parse(bad.as_bytes()).unwrap_err();
            assert!(failure.errno() == libc::EINVAL && failure.text().contains(named), "{bad}: {failure:?}");
        }
        assert_eq!(Hints::parse(b"\xff").unwrap_err().errno(), libc::EINVAL);
    }
}
