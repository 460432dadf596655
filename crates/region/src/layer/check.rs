//! Looks through the whole mapping for what contradicts itself.

use super::{Layer, read};
use crate::error::{Error, Result};
use crate::geometry::{COPIES, Geometry};
use crate::overlay::Piece;
use crate::space::Space;
use crate::{BLOCK, OWN_START, lock};

/// Pieces looked at in one go.
const SOME: usize = 32 << 10;

/// What a check has found. A store is in order when nothing is shared and nothing outside, nothing lost and no object
/// damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Pieces that the mapping is in, and their blocks.
    pub pieces: u64,
    pub mapped_blocks: u64,
    /// Blocks that are in use by the count of free ones, and mapped nowhere.
    pub lost_blocks: u64,
    /// Blocks that are mapped more than once, or lie outside the device.
    pub shared_blocks: u64,
    pub outside_blocks: u64,
    /// Regions whose first block is mapped, and of them those whose super block is not whole. (An object may have none:
    /// then its first bytes are not those of a super block.)
    pub objects: u64,
    pub damaged_objects: u64,
}

impl Findings {
    /// Whether all is in order.
    pub fn is_clean(&self) -> bool {
        self.told().is_empty()
    }

    /// What is not in order, as sentences.
    pub fn told(&self) -> Vec<String> {
        let all = [
            (self.lost_blocks, "blocks are in use and mapped nowhere"),
            (self.shared_blocks, "blocks are mapped more than once"),
            (self.outside_blocks, "blocks are mapped outside the device"),
            (self.damaged_objects, "objects have a damaged super block"),
        ];
        all.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl Layer {
    /// Looks through the mapping; `of_region` is told of each region whose first block is mapped, and says whether it
    /// is whole. Nothing is written. Others should not write meanwhile: what is in use would not fit what is mapped.
    pub fn check(&self, mut of_region: impl FnMut(&Self, u64) -> Result<bool>) -> Result<Findings> {
        self.bring_all_gathered();
        let mut findings = Findings::default();
        let mut seen = Space::new(self.geometry.data_blocks());
        seen.keep_away(self.geometry.not_for_data());
        self.each_piece(|piece| {
            Self::count(&mut findings, &mut seen, piece);
            for region in self.regions_begun(piece) {
                findings.objects += 1;
                let is_whole = match of_region(self, region) {
                    Err(Error::Damaged(_)) => false,
                    is_whole => is_whole?,
                };
                findings.damaged_objects += u64::from(!is_whole);
            }
            Ok(())
        })?;
        let in_use = {
            let state = read(&self.state);
            self.geometry.data_blocks() - state.space.free() - lock(&self.ready).blocks()
        };
        let mapped = self.geometry.data_blocks() - seen.free();
        findings.lost_blocks = in_use.saturating_sub(mapped);
        Ok(findings)
    }

    /// Verifies the superblocks and all pages of the map on the device, past those in memory. Damage is told of.
    /// Returns false if the map is damaged, so that nothing can be said of the rest.
    pub(crate) fn verify_own(&self, tell: &mut dyn FnMut(String)) -> Result<bool> {
        self.verify_superblocks(tell);
        self.base.verify(&mut |text| tell(format!("the map: {text}")))
    }

    /// Tells of superblocks that are damaged. The store opens with one of the two.
    fn verify_superblocks(&self, tell: &mut dyn FnMut(String)) {
        for copy in COPIES {
            match Geometry::read_copy(&*self.device, copy) {
                Ok(found) if found == self.geometry => {}
                Ok(_) => tell(format!("superblock {copy} is of another store")),
                Err(Error::Device { what, source }) => tell(format!("superblock {copy}: {what}: {source}")),
                Err(error) => tell(format!("superblock {copy}: {error}")),
            }
        }
    }

    /// The regions whose first block a piece has.
    pub(crate) fn regions_begun(&self, piece: Piece) -> impl Iterator<Item = u64> + use<> {
        let shift = self.geometry.region_shift;
        let blocks = (1u64 << shift) / BLOCK;
        (piece.first.div_ceil(blocks)..piece.end().div_ceil(blocks))
            .filter(move |id| *id > 0 && *id < OWN_START >> shift)
    }

    /// Tells of all that is mapped, in order.
    pub(crate) fn each_piece(&self, mut tell: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let mut from = 0;
        while from < u64::MAX {
            let end = self.base.end_of_some(from, SOME)?;
            let pieces = self.mapped(&read(&self.state), from..end)?;
            pieces.into_iter().try_for_each(&mut tell)?;
            from = end;
        }
        Ok(())
    }

    fn count(findings: &mut Findings, seen: &mut Space, piece: Piece) {
        let block = piece.mapped_at();
        findings.pieces += 1;
        findings.mapped_blocks += piece.count;
        if !seen.has(block, piece.count) {
            findings.outside_blocks += piece.count;
            return;
        }
        let before = seen.free();
        seen.restore(block, piece.count, true);
        findings.shared_blocks += piece.count - (before - seen.free());
    }
}
