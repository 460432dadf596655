//! What a reader is told of a split file: the extents of a range, as many as one answer takes.
//!
//! An answer is complete from the beginning of the range up to a position that it names, so that the next one goes on
//! there: there is no other cursor, and what is published between two answers has a higher epoch than the first names.

use super::Part;
use super::extents::{Strided, scan_runs, scan_strided};
use crate::back::Back;
use crate::kv::KeyValue;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weft_layout::first_from;
use weft_protocol::limits::SPLIT_ANSWER_EXTENTS_MAX;
use weft_protocol::{Extent, InodeNumber, ObjectId};

/// Room of an answer for runs, and as much for strided extents, in extents. A part that is named takes that of two more.
const ROOM: usize = SPLIT_ANSWER_EXTENTS_MAX / 2;
const PART_ROOM: usize = 2;
/// Runs that are looked at for one answer: those that the reader knows are left out of it.
const LOOKS_MAX: usize = 8 * SPLIT_ANSWER_EXTENTS_MAX;

/// A question for extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// With a higher epoch than this.
    pub since: u64,
    /// With bytes in this range.
    pub start: u64,
    pub end: u64,
    /// The answer goes on beyond the range for about as many extents.
    pub extra: usize,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Of each part its extents, those of runs first.
    pub parts: Vec<(Part, Vec<Extent>)>,
    /// Epoch of the latest cut. If it is after the question's epoch, these are all extents of the range.
    pub cut: u64,
    /// The answer is complete from the beginning of the range up to here.
    pub end: u64,
}

/// Extents by parts, and the room that they take.
#[derive(Default)]
struct Told {
    parts: BTreeMap<ObjectId, Vec<Extent>>,
    room: usize,
}

impl Told {
    fn add(&mut self, object: ObjectId, extent: Extent) {
        let extents = self.parts.entry(object).or_default();
        self.room += if extents.is_empty() { 1 + PART_ROOM } else { 1 };
        extents.push(extent);
    }
}

impl<K: KeyValue> Back<K> {
    /// The extents of a range, as many as one answer takes. Costs a search, the runs of the range, and the strided extents
    /// whose bounds overlap it.
    pub fn extents_within(&self, number: InodeNumber, wanted: &Wanted) -> Page {
        let common = self.common(number);
        let since = if common.cut > wanted.since { 0 } else { wanted.since };
        let (mut told, mut end) = self.runs_of_page(number, wanted, since);
        if common.strided > 0 {
            end = self.add_strided(number, wanted, (since, end), &mut told);
        }
        let part = |(object, extents)| Some((self.split_part(number, object)?, extents));
        Page { parts: told.parts.into_iter().filter_map(part).collect(), cut: common.cut, end }
    }

    /// The runs of a page, and where it ends for them.
    fn runs_of_page(&self, number: InodeNumber, wanted: &Wanted, since: u64) -> (Told, u64) {
        let (mut told, mut looks, mut end) = (Told::default(), 0, u64::MAX);
        scan_runs(&self.store, number, wanted.start.saturating_add(1), |run| {
            let is_enough = run.start >= wanted.end && looks >= wanted.extra;
            if is_enough || looks >= LOOKS_MAX || told.room >= ROOM {
                // Runs do not overlap, so this one begins behind the range's start.
                end = run.start.max(wanted.start);
                return ControlFlow::Break(());
            }
            looks += 1;
            if run.epoch > since {
                told.add(run.object, run.extent());
            }
            ControlFlow::Continue(())
        });
        (told, end)
    }

    /// Adds the strided extents of a page that ends at `end` for runs. Returns where it ends for both.
    fn add_strided(&self, number: InodeNumber, wanted: &Wanted, (since, end): (u64, u64), told: &mut Told) -> u64 {
        let mut found: Vec<(u64, Strided)> = Vec::new();
        scan_strided(&self.store, number, (wanted.start, end), |strided| {
            let first = first_from(&strided.pattern, wanted.start).filter(|first| *first < end);
            found.extend(first.filter(|_| strided.epoch > since).map(|first| (first, strided)));
            ControlFlow::Continue(())
        });
        found.sort_unstable_by_key(|(first, strided)| (*first, strided.epoch));
        let in_range = found.partition_point(|(first, _)| *first < wanted.end);
        let count = in_range.max(wanted.extra).min(ROOM / (1 + PART_ROOM));
        let Some((next, _)) = found.get(count) else {
            found.iter().for_each(|(_, of)| told.add(of.object, Extent { pattern: of.pattern, epoch: of.epoch }));
            return end;
        };
        let mut end = *next;
        if end > wanted.start {
            found.truncate(count);
        } else if wanted.start < wanted.end {
            // More patterns than an answer takes have the first byte. The newest of them has it, up to where one ends or
            // another one begins.
            let here = found.partition_point(|(first, _)| *first == wanted.start);
            let ends = found[..here].iter().map(|(first, of)| {
                let within = (first - of.pattern.start()) % of.pattern.stride();
                first + of.pattern.bytes() - within
            });
            let begins = found.get(here).map(|(first, _)| *first);
            end = ends.chain(begins).min().expect("some have the first byte");
            found.drain(..here - 1);
            found.truncate(1);
        } else {
            found.clear();
        }
        found.iter().for_each(|(_, of)| told.add(of.object, Extent { pattern: of.pattern, epoch: of.epoch }));
        end
    }
}
