//! Modes: what is mounted, and how.

use crate::model::Allowances;
use std::path::PathBuf;
use std::str::FromStr;

/// Bytes of a store with a limit, over all nodes: a few large writes fill it.
const LIMIT: &str = "32MiB";

/// Where nodes keep objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    Directory,
    /// A directory of which this much may be used.
    Limited(&'static str),
    Memory,
}

/// What is under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mode {
    pub name: String,
    /// `None`: a plain directory of this machine instead of Weft, which shows that model and checker are right.
    pub weft: Option<WeftMode>,
    /// Directory in which the private directory of a run is made.
    pub above: PathBuf,
}

/// A file system and its mounts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeftMode {
    pub nodes: u16,
    pub store: Store,
    /// Of `weft mount -o`.
    pub options: &'static str,
    /// No node counts as this machine: data go by TCP.
    pub identity_per_node: bool,
    /// The names that programs use are spread over several shards.
    pub spread: bool,
}

/// The kinds of modes of Weft; each is run with 1 node, and with 4 nodes as NAME-4.
const KINDS: [&str; 7] = ["default", "direct", "nopassthrough", "tcp", "limited", "memory", "spread"];

/// Without Weft: a directory on a tmpfs.
const TMPFS: &str = "tmpfs";
/// Without Weft: a directory of temporary files.
pub const LOCAL: &str = "local";

impl Mode {
    /// Returns the modes that a word stands for: one, or `all` of Weft's.
    pub fn of_word(word: &str) -> Result<Vec<Mode>, String> {
        if word != "all" {
            return word.split(',').map(str::parse).collect();
        }
        KINDS.iter().flat_map(|kind| [(*kind).to_owned(), format!("{kind}-4")]).map(|name| name.parse()).collect()
    }

    /// Returns the freedom that the mode leaves.
    pub fn allowances(&self) -> Allowances {
        let Some(weft) = &self.weft else {
            return Allowances { unstable_listings: self.name == TMPFS, ..Allowances::default() };
        };
        Allowances {
            append_positions: true,
            stale_renames: true,
            no_mappings: true,
            no_space: matches!(weft.store, Store::Limited(_)),
            ..Allowances::default()
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let above = if name == TMPFS { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        if [TMPFS, LOCAL].contains(&name) {
            return Ok(Self { name: name.to_owned(), weft: None, above });
        }
        let (kind, nodes) = name.strip_suffix("-4").map_or((name, 1), |kind| (kind, 4));
        let (options, identity_per_node, spread) = ("rw", false, false);
        let mut weft = WeftMode { nodes, store: Store::Directory, options, identity_per_node, spread };
        match kind {
            "default" => {}
            "direct" => weft.options = "direct",
            "nopassthrough" => weft.options = "nopassthrough",
            "tcp" => weft.identity_per_node = true,
            "limited" => weft.store = Store::Limited(LIMIT),
            "memory" => weft.store = Store::Memory,
            "spread" => weft.spread = true,
            _ => {
                return Err(format!(
                    "'{name}' is no mode: {}, each also with -4, {TMPFS}, {LOCAL}, or all",
                    KINDS.join(", ")
                ));
            }
        }
        Ok(Self { name: name.to_owned(), weft: Some(weft), above })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_modes_have_one_node_and_four() {
        let modes = Mode::of_word("all").expect("modes");
        assert_eq!(modes.len(), 2 * KINDS.len());
        let nodes = |name: &str| {
            modes.iter().find(|mode| mode.name == name).and_then(|mode| mode.weft.as_ref()).map(|weft| weft.nodes)
        };
        assert_eq!((nodes("tcp"), nodes("tcp-4")), (Some(1), Some(4)));
        assert!(Mode::of_word("tcp,tmpfs").is_ok_and(|modes| modes.len() == 2));
        assert!("tcp-5".parse::<Mode>().is_err());
    }
}
