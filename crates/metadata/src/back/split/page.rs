//! What a reader is told of a split file: runs of a range and strided extents, as many as one answer takes.
//!
//! Runs are complete from the beginning of the range up to a position that the answer names, and the next one goes on
//! there. Strided extents have bytes all over the file, so a reader is told of all of them, in the order of their keys.
//! What is published between two answers has a higher epoch than the first names.

use super::Part;
use super::extents::{scan_runs, scan_strided_from};
use crate::back::Back;
use crate::back::keys::Key;
use crate::kv::KeyValue;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weft_protocol::limits::SPLIT_ANSWER_EXTENTS_MAX;
use weft_protocol::message::shard::StridedCursor;
use weft_protocol::{Extent, InodeNumber, ObjectId};

/// Room of an answer for runs, and as much for strided extents, in extents. A part that is named takes that of two
/// more.
const ROOM: usize = SPLIT_ANSWER_EXTENTS_MAX / 2;
const PART_ROOM: usize = 2;
/// Extents of each kind that are looked at for one answer: those that the reader knows are left out of it.
const LOOKS_MAX: usize = 8 * SPLIT_ANSWER_EXTENTS_MAX;

/// A question for extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// With a higher epoch than this.
    pub since: u64,
    /// With bytes in this range.
    pub start: u64,
    pub end: u64,
    /// The answer goes on beyond the range for about as many runs.
    pub extra: usize,
    /// Strided extents with a higher epoch than this.
    pub strided_since: u64,
    /// After this one.
    pub strided_after: Option<StridedCursor>,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Of each part its extents, those of runs first.
    pub parts: Vec<(Part, Vec<Extent>)>,
    /// Epoch of the latest cut. If it is after the question's epoch, these are all extents of the range.
    pub cut: u64,
    /// The runs are complete from the beginning of the range up to here.
    pub end: u64,
    /// After which strided extent to go on; `None`: there are no more.
    pub strided_next: Option<StridedCursor>,
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
    /// The extents that a reader asks for, as many as one answer takes. Costs a search, the runs of the range, and the
    /// strided extents of the file if some are newer than the reader knows.
    pub fn extents_within(&self, number: InodeNumber, wanted: &Wanted) -> Page {
        let common = self.common(number);
        let after_cut = |since: u64| if common.cut > since { 0 } else { since };
        let (mut told, end) = self.runs_of_page(number, wanted, after_cut(wanted.since));
        let strided_since = after_cut(wanted.strided_since);
        let strided_next = match common.strided > 0 && common.history.strided() > strided_since {
            true => self.add_strided(number, wanted.strided_after.as_ref(), strided_since, &mut told),
            false => None,
        };
        let part = |(object, extents)| Some((self.split_part(number, object)?, extents));
        let parts = told.parts.into_iter().filter_map(part).collect();
        Page { parts, cut: common.cut, end, strided_next }
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

    /// Adds the strided extents of a page. Returns after which one to go on.
    fn add_strided(
        &self,
        number: InodeNumber,
        after: Option<&StridedCursor>,
        since: u64,
        told: &mut Told,
    ) -> Option<StridedCursor> {
        let from = match after {
            Some((pattern, object)) => Key::strided(number, pattern, *object).to_vec(),
            None => Key::strided_from(number, 0, 0).to_vec(),
        };
        let (mut looks, mut last, mut next) = (0, None, None);
        told.room = 0;
        scan_strided_from(&self.store, number, &from, |strided| {
            let here = (strided.pattern, strided.object);
            if after == Some(&here) {
                return ControlFlow::Continue(());
            }
            if looks >= LOOKS_MAX || told.room >= ROOM {
                next = last;
                return ControlFlow::Break(());
            }
            (looks, last) = (looks + 1, Some(here));
            if strided.epoch > since {
                told.add(strided.object, Extent { pattern: strided.pattern, epoch: strided.epoch });
            }
            ControlFlow::Continue(())
        });
        next
    }
}
