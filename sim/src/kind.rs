//! Kinds of runs: what programs do, and which faults there are.

use crate::Faults;
use std::fmt;
use std::str::FromStr;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Programs that use the client machine.
    Native,
    /// The same, without drifting clocks.
    Plain,
    /// The same, with clients that are cut off from nodes.
    Partitions,
    /// The same, with nodes that exchange nothing at all for a while.
    Split,
    /// The same, with requests between shards that do not arrive for a while.
    Peers,
    /// The same, with programs that lock files, and with clients that are cut off from nodes.
    Locks,
    /// Programs that make system calls through mounts.
    Mounts,
    /// The same, with a node that is gone for good.
    Gone,
    /// Mounts that get descriptors of objects on their own machine, and pass them to their kernels.
    Passthrough,
    /// Programs that use the client machine, some of them for extended attributes.
    Xattrs,
    /// Programs that use the client machine, while nodes join.
    Joins,
    /// Programs that use the client machine, for files that are striped.
    Striped,
    /// Programs that make system calls through mounts, for files that are striped.
    StripedMounts,
    /// Programs that use the client machine, for files of which each writer has a part.
    Parts,
    /// Programs that make system calls through mounts, for files of which each writer has a part.
    PartsMounts,
    /// Programs that use the client machine, while nodes join and shards move.
    Moves,
    /// Programs that make system calls through mounts, while nodes join and shards move.
    MoveMounts,
    /// Programs that use the client machine, while the bytes of files move.
    Relocations,
    /// Programs that make system calls through mounts as in `Passthrough`, while the bytes of files move.
    RelocationMounts,
    /// Programs that use the client machine, while directories are spread over shards.
    Spreads,
    /// Programs that make system calls through mounts, while directories are spread over shards.
    SpreadMounts,
    /// Programs that use the client machine, some of them by groups.
    Groups,
    /// The same, while nodes join and shards move.
    GroupMoves,
    /// Programs that use the client machine, some of them by groups, for files of which each writer has a part.
    PartGroups,
}

const WORDS: [(&str, Kind); 24] = [
    ("native", Kind::Native),
    ("plain", Kind::Plain),
    ("partitions", Kind::Partitions),
    ("split", Kind::Split),
    ("peers", Kind::Peers),
    ("locks", Kind::Locks),
    ("mounts", Kind::Mounts),
    ("gone", Kind::Gone),
    ("passthrough", Kind::Passthrough),
    ("xattrs", Kind::Xattrs),
    ("joins", Kind::Joins),
    ("striped", Kind::Striped),
    ("striped-mounts", Kind::StripedMounts),
    ("parts", Kind::Parts),
    ("parts-mounts", Kind::PartsMounts),
    ("moves", Kind::Moves),
    ("move-mounts", Kind::MoveMounts),
    ("relocations", Kind::Relocations),
    ("relocation-mounts", Kind::RelocationMounts),
    ("spreads", Kind::Spreads),
    ("spread-mounts", Kind::SpreadMounts),
    ("groups", Kind::Groups),
    ("group-moves", Kind::GroupMoves),
    ("part-groups", Kind::PartGroups),
];

impl Kind {
    /// The faults of a seed's run.
    pub(crate) fn faults(self, seed: u64) -> Faults {
        let faults = match self {
            Self::Native | Self::Xattrs | Self::Striped | Self::Parts | Self::Relocations => Faults::NOW,
            Self::Plain => return Faults::NONE,
            Self::Partitions | Self::Locks | Self::Spreads => Faults { partitions: true, ..Faults::NOW },
            Self::Joins => Faults { joins: true, ..Faults::NOW },
            Self::Groups | Self::PartGroups => Faults { partitions: !seed.is_multiple_of(3), ..Faults::NOW },
            Self::Moves | Self::GroupMoves => Faults { joins: true, moves: true, ..Faults::NOW },
            Self::Split => Faults { peers_cut: true, all_cut: true, ..Faults::NOW },
            Self::Peers => Faults { peers_cut: true, ..Faults::NOW },
            // Nodes that have not heard of each other for a term serve nothing, and end most runs without a verdict.
            Self::Mounts | Self::Gone | Self::StripedMounts | Self::PartsMounts => {
                Faults { fences_cut: seed.is_multiple_of(4), peers_cut: true, ..Faults::NOW }
            }
            Self::MoveMounts => Faults { fences_cut: seed.is_multiple_of(4), joins: true, moves: true, ..Faults::NOW },
            // Calls that a node did not make for another, of which nobody knows the result, are too many for the check.
            Self::SpreadMounts => Faults { fences_cut: seed.is_multiple_of(4), ..Faults::NOW },
            Self::Passthrough | Self::RelocationMounts => {
                Faults { fences_cut: seed.is_multiple_of(4), descriptors: true, ..Faults::NOW }
            }
        };
        let faults = faults.with_some(seed);
        // Who writes past the server does not meet them.
        Faults { bad_sectors: faults.bad_sectors && !faults.descriptors, ..faults }
    }

    /// Whether programs make system calls through mounts.
    pub fn has_mounts(self) -> bool {
        let plain = matches!(self, Self::Mounts | Self::Gone | Self::Passthrough);
        let beside = matches!(self, Self::RelocationMounts | Self::SpreadMounts);
        plain || beside || matches!(self, Self::StripedMounts | Self::PartsMounts | Self::MoveMounts)
    }

    /// Whether directories are spread over shards.
    pub(crate) fn spreads(self) -> bool {
        matches!(self, Self::Spreads | Self::SpreadMounts)
    }

    /// Whether files are exported to groups.
    pub(crate) fn has_groups(self) -> bool {
        matches!(self, Self::Groups | Self::GroupMoves | Self::PartGroups)
    }

    /// Whether the bytes of files move.
    pub(crate) fn relocates(self) -> bool {
        matches!(self, Self::Relocations | Self::RelocationMounts)
    }

    /// Whether new files are striped.
    pub(crate) fn stripes(self) -> bool {
        matches!(self, Self::Striped | Self::StripedMounts)
    }

    /// Whether each writer of a new file has a part of it.
    pub(crate) fn splits(self) -> bool {
        matches!(self, Self::Parts | Self::PartsMounts | Self::PartGroups)
    }

    /// What a run may have that does what a script says: nothing comes by itself.
    pub(crate) fn faults_to_play(self) -> Faults {
        let Faults { peers_cut, all_cut, descriptors, joins, moves, .. } = self.faults(0);
        Faults { drift: true, small_buffers: true, peers_cut, all_cut, descriptors, joins, moves, ..Faults::NONE }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, kind)| kind == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        WORDS.iter().find(|(word, _)| *word == text).map(|(_, kind)| *kind).ok_or(())
    }
}
