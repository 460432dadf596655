//! What a reader is told of a split file: runs of a range and strided extents, as many as one answer takes.
//!
//! Runs are complete from the beginning of the range up to a position that the answer names, and the next one goes on
//! there. Strided extents have bytes all over the file. A reader is told of those that may have bytes in the runs of a
//! pattern, which it names, in the order of their keys; of all of the file, if there are few.
//! What is published between two answers has a higher epoch than the first names.

use super::Part;
use super::extents::{Look, scan_runs, scan_strided};
use crate::back::Back;
use crate::back::keys::Key;
use crate::kv::KeyValue;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weft_protocol::limits::SPLIT_ANSWER_EXTENTS_MAX;
use weft_protocol::message::shard::{StridedCursor, StridedQuestion};
use weft_protocol::{Extent, InodeNumber, ObjectId, Pattern};

/// Room of an answer for runs, and as much for strided extents, in extents. A part that is named takes that of two
/// more.
const ROOM: usize = SPLIT_ANSWER_EXTENTS_MAX / 2;
const PART_ROOM: usize = 2;
/// Extents of each kind that are looked at for one answer: those that the reader knows are left out of it.
const LOOKS_MAX: usize = 8 * SPLIT_ANSWER_EXTENTS_MAX;
/// A file with more strided extents has not few: those of parts of their own fit in an answer.
const FEW_MAX: u64 = (ROOM / (1 + PART_ROOM)) as u64;

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
    /// Which strided extents.
    pub strided: StridedQuestion,
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
    /// The strided extents are those of the whole file, also where the question was for fewer.
    pub strided_whole: bool,
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
    /// The extents that a reader asks for, as many as one answer takes. Costs a search, the runs of the range, and, if
    /// strided extents are newer than the reader knows, what [`scan_strided`] does.
    pub fn extents_within(&self, number: InodeNumber, wanted: &Wanted) -> Page {
        let common = self.common(number);
        let after_cut = |since: u64| if common.cut > since { 0 } else { since };
        let (mut told, end) = self.runs_of_page(number, wanted, after_cut(wanted.since));
        let mut strided = StridedQuestion { since: after_cut(wanted.strided.since), ..wanted.strided };
        let has_new = common.strided > 0 && common.history.strided() > strided.since;
        let few = u64::from(strided.few).min(FEW_MAX);
        // An answer that goes on is about the pattern of the one before.
        let strided_whole = strided.after.is_none() && (!has_new || common.strided <= few);
        if strided_whole {
            strided.within = Pattern::WHOLE_FILE;
        }
        let strided_next = if has_new { self.add_strided(number, &strided, &mut told) } else { None };
        let part = |(object, extents)| Some((self.split_part(number, object)?, extents));
        let parts = told.parts.into_iter().filter_map(part).collect();
        Page { parts, cut: common.cut, end, strided_whole, strided_next }
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
    fn add_strided(&self, number: InodeNumber, question: &StridedQuestion, told: &mut Told) -> Option<StridedCursor> {
        let from = match &question.after {
            Some((pattern, object)) => Key::strided(number, pattern, *object),
            None => Key::first_strided(number),
        };
        let (mut looks, mut last, mut next) = (0, None, None);
        told.room = 0;
        scan_strided(&self.store, number, &question.within, from, |Look { strided, meets }| {
            let here = Some((strided.pattern, strided.object));
            if question.after == here {
                return ControlFlow::Continue(());
            }
            if looks >= LOOKS_MAX || told.room >= ROOM {
                next = last;
                return ControlFlow::Break(());
            }
            (looks, last) = (looks + 1, here);
            if meets && strided.epoch > question.since {
                told.add(strided.object, Extent { pattern: strided.pattern, epoch: strided.epoch });
            }
            ControlFlow::Continue(())
        });
        next
    }
}
