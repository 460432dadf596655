//! What can be done about a damaged log: it is cut before the damage.
//!
//! Blocks that a lost record freed may have been given to others before the damage was found. Those that a readable
//! record behind the damage maps are known: they are unmapped where they were before, so that they read zeros and not
//! another object's bytes.

use super::{Layer, write};
use crate::base::Base;
use crate::device::Device;
use crate::error::{Error, Result, at};
use crate::geometry::Geometry;
use crate::overlay::{Overlay, Piece};
use crate::record::{Entry, Record};
use crate::{BLOCK, OWN_START, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Objects that are named.
const NAMED_MAX: usize = 20;

impl Layer {
    /// Opens what the records before the first damaged one say, for looking at; and what is wrong with the log.
    pub(crate) fn open_before_damage(device: Arc<dyn Device>) -> Result<(Self, Option<Error>)> {
        let geometry = Geometry::open(&*device)?;
        let base = Base::open(Arc::clone(&device), &geometry, false)?;
        let layer = Self::with(device, geometry, base)?;
        match layer.replay() {
            Ok(()) => Ok((layer, None)),
            Err(error @ Error::LogDamaged { .. }) => Ok((layer, Some(error))),
            Err(error) => Err(error),
        }
    }

    /// Cuts the log before its first damaged record. Tells what that costs. Nothing is told of a log that is in order.
    pub(crate) fn repair(device: Arc<dyn Device>, tell: &mut dyn FnMut(String)) -> Result<()> {
        let (layer, damage) = Self::open_before_damage(device)?;
        let Some(damage) = damage else { return Ok(()) };
        let (records, highest) = lock(&layer.turns.log).survey(&*layer.device)?;
        let reused = layer.mapped_again(&records)?;
        tell(damage.to_string());
        layer.tell_cost(&records, highest, &reused, tell);
        layer.cut_log(highest, &reused)
    }

    fn tell_cost(&self, records: &[Record], highest: u64, reused: &[Range<u64>], tell: &mut dyn FnMut(String)) {
        let first = lock(&self.turns.log).head().sequence;
        let lost = highest.saturating_add(1).saturating_sub(first);
        tell(format!(
            "all that was synced with log record {first} and later ones is lost, {lost} records as far as is known"
        ));
        let mut objects: BTreeSet<u64> = BTreeSet::new();
        for entry in records.iter().flat_map(|record| &record.entries) {
            if let Entry::Map { first, count, .. } | Entry::Unmap { first, count } = entry {
                objects.extend(self.objects_in(&(*first..first + u64::from(*count))));
            }
        }
        if !objects.is_empty() {
            let named: Vec<String> = objects.iter().take(NAMED_MAX).map(u64::to_string).collect();
            let more = objects.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            tell(format!(
                "objects that are as they were before, or gone: {}{more}, and others that no readable record names",
                named.join(", ")
            ));
        }
        if self.sums_end() == 0 {
            let what = "objects that these records removed or cut may be damaged, or read as anything";
            tell(format!("{what}: this store has no checksums of data"));
        }
        let mut zeros: BTreeMap<u64, u64> = BTreeMap::new();
        for blocks in reused {
            let object = (blocks.start * BLOCK) >> self.geometry.region_shift;
            *zeros.entry(object).or_default() += blocks.end - blocks.start;
        }
        for (object, blocks) in zeros {
            tell(format!("object {object}: {blocks} blocks were given to other objects since, and read zeros"));
        }
    }

    /// The regions that a range of virtual blocks is in.
    fn objects_in(&self, blocks: &Range<u64>) -> Range<u64> {
        let of = |block: u64| (block.min(OWN_START / BLOCK) * BLOCK) >> self.geometry.region_shift;
        of(blocks.start)..of(blocks.end.saturating_sub(1)) + 1
    }

    /// Virtual blocks that are mapped where these records map others.
    fn mapped_again(&self, records: &[Record]) -> Result<Vec<Range<u64>>> {
        let mut taken = Overlay::default();
        for entry in records.iter().flat_map(|record| &record.entries) {
            if let Entry::Map { first, block, count } = *entry {
                taken.set(Piece { first: block, count: u64::from(count), block: Some(first) });
            }
        }
        let mut found = Vec::new();
        self.each_piece(|piece| {
            let block = piece.mapped_at();
            for other in taken.within(block..block + piece.count) {
                let first = piece.first + (other.first - block);
                // Mapped there before, too.
                let same = other.block == Some(first);
                found.extend((!same).then(|| first..first + other.count));
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn cut_log(&self, highest: u64, reused: &[Range<u64>]) -> Result<()> {
        {
            let mut state = write(&self.state);
            for blocks in reused {
                let count = u32::try_from(blocks.end - blocks.start).map_err(|_| Error::TooManyPieces)?;
                self.change(&mut state, vec![Entry::Unmap { first: blocks.start, count }])?;
            }
        }
        self.in_turn(|log| {
            // Later than all that is in the ring, so that nothing of it is taken for a record to come.
            log.skip_to(highest.saturating_add(1));
            self.checkpoint(log)?;
            log.blank(&*self.device)?;
            self.device.flush().map_err(at("flush the log"))
        })
    }
}
