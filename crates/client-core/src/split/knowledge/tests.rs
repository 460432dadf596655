use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use weft_layout::{below, covers, is_strided, meets, runs};

proptest! {
    #[test]
    fn ranges_are_known_as_of_what_was_told_last(
        told in prop::collection::vec((0u64..50, 0u64..20), 0..20), start in 0u64..60, bytes in 0u64..20,
    ) {
        let (mut knowledge, mut model) = (Knowledge::default(), vec![0; 100]);
        for (index, (from, bytes)) in told.iter().enumerate() {
            let epoch = 1 + index as u64 / 2;
            prop_assert!(knowledge.add(*from..from + bytes, 0, (epoch, 0), Vec::new()));
            let range = usize::try_from(*from).expect("small")..usize::try_from(from + bytes).expect("small");
            model[range].fill(epoch);
        }
        let range = usize::try_from(start).expect("small")..usize::try_from(start + bytes).expect("small");
        let least = model[range.clone()].iter().min().copied().unwrap_or(0);
        prop_assert_eq!(knowledge.since(&(start..start + bytes)), least);
        for epoch in 1..12 {
            let unknown = range.clone().find(|at| model[*at] < epoch).map(|at| at as u64);
            prop_assert_eq!(knowledge.first_unknown_run(&(start..start + bytes), epoch), unknown);
        }
    }
}

#[test]
fn a_cut_is_the_end_of_what_was_known() {
    let mut knowledge = Knowledge::default();
    assert!(knowledge.add(0..10, 0, (7, 3), Vec::new()), "nothing was known");
    assert!(knowledge.add(10..20, 0, (8, 3), Vec::new()));
    assert!(!knowledge.add(10..20, 8, (9, 9), Vec::new()));
    assert_eq!((knowledge.since(&(0..10)), knowledge.since(&(10..20))), (0, 9));
    knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 10);
    assert_eq!((knowledge.since(&(10..20)), knowledge.index().count()), (10, 1));
    knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 12);
    assert_eq!(knowledge.since(&(10..20)), 10, "somebody else has published");
}

/// Bytes of the files of these tests.
const BYTES: u64 = 60;

/// A file as its shard stores it: for each byte of a run, its part and epoch; and strided extents. Newer extents of
/// either kind delete those that they cover.
struct Model {
    runs: Vec<Option<(u64, u64)>>,
    strided: Vec<(Pattern, u64, u64)>,
    epoch: u64,
    cut: u64,
}

fn bytes_of(pattern: &Pattern) -> impl Iterator<Item = usize> + use<> {
    runs(pattern).flat_map(|(start, end)| start..end).map(|at| usize::try_from(at).expect("small"))
}

impl Model {
    fn publish(&mut self, part: u64, pattern: &Pattern) {
        self.epoch += 1;
        self.strided.retain(|(old, ..)| !covers(pattern, old));
        for at in bytes_of(pattern) {
            self.runs[at] = if is_strided(pattern) { None } else { Some((part, self.epoch)) };
        }
        if is_strided(pattern) {
            self.strided.push((*pattern, part, self.epoch));
        }
    }

    /// Runs of the part that was published become one of its strided extents.
    fn join(&mut self, part: u64, pattern: &Pattern) {
        let is_run_of_part = |at: usize| self.runs[at].is_some_and(|(of, _)| of == part);
        let has_strided = |at| self.strided.iter().any(|(other, ..)| bytes_of(other).any(|byte| byte == at));
        if bytes_of(pattern).all(|at| is_run_of_part(at) && !has_strided(at)) {
            bytes_of(pattern).for_each(|at| self.runs[at] = None);
            self.strided.push((*pattern, part, self.epoch));
        }
    }

    fn cut(&mut self, size: u64) {
        self.epoch += 1;
        self.cut = self.epoch;
        self.runs[usize::try_from(size).expect("small")..].fill(None);
        let strided = std::mem::take(&mut self.strided);
        let clipped = strided.into_iter().flat_map(|(pattern, part, epoch)| {
            below(&pattern, size).into_iter().map(move |pattern| (pattern, part, epoch))
        });
        self.strided = clipped.collect();
        // A part has a pattern once.
        self.strided.sort_unstable_by_key(|(pattern, part, epoch)| (*pattern, *part, Reverse(*epoch)));
        self.strided.dedup_by_key(|(pattern, part, _)| (*pattern, *part));
    }

    /// Whose part has a byte.
    fn part(&self, at: usize) -> Option<ObjectId> {
        let strided = self.strided.iter().filter(|(pattern, ..)| bytes_of(pattern).any(|byte| byte == at));
        let extents =
            strided.map(|(_, part, epoch)| (*epoch, *part)).chain(self.runs[at].map(|(part, epoch)| (epoch, part)));
        extents.max().map(|(_, part)| ObjectId::from_raw(part))
    }

    /// The runs after an epoch within a range, as a shard tells them that goes on beyond it.
    fn runs(&self, since: u64, range: &Range<u64>, beyond: u64) -> (u64, Vec<SplitPart>) {
        let since = if self.cut > since { 0 } else { since };
        let end = (range.end + beyond).min(BYTES);
        let mut parts = Vec::new();
        for at in range.start..end {
            let Some((part, epoch)) = self.runs[usize::try_from(at).expect("small")].filter(|of| of.1 > since) else {
                continue;
            };
            parts.push(split_part(part, Pattern::run(at, 1).expect("a byte"), epoch));
        }
        (end, parts)
    }

    /// The strided extents that are asked for, at most so many.
    fn strided(&self, question: &StridedQuestion, most: usize) -> (bool, Option<StridedCursor>, Vec<SplitPart>) {
        let since = if self.cut > question.since { 0 } else { question.since };
        let is_new = |epoch: u64| epoch > since;
        let has_new = self.strided.iter().any(|(.., epoch)| is_new(*epoch));
        let few = usize::try_from(question.few).expect("small");
        let whole = question.after.is_none() && (!has_new || self.strided.len() <= few.min(most));
        if !has_new {
            return (whole, None, Vec::new());
        }
        let mut strided = self.strided.clone();
        strided.sort_unstable();
        let after =
            |of: &(Pattern, u64, u64)| question.after.is_none_or(|after| (of.0, ObjectId::from_raw(of.1)) > after);
        let mut asked = strided.into_iter().filter(|of| whole || meets(&question.within, &of.0)).filter(after);
        let told: Vec<_> = asked.by_ref().take(most).collect();
        let next = asked.next().and(told.last()).map(|(pattern, part, _)| (*pattern, ObjectId::from_raw(*part)));
        let told = told.into_iter().filter(|(.., epoch)| is_new(*epoch));
        (whole, next, told.map(|(pattern, part, epoch)| split_part(part, pattern, epoch)).collect())
    }
}

fn split_part(part: u64, pattern: Pattern, epoch: u64) -> SplitPart {
    let extents = vec![Extent { pattern, epoch }];
    SplitPart { object: ObjectId::from_raw(part), capability: capability(), extents }
}

fn capability() -> Capability {
    weft_protocol::NodeKey::new([7; 32]).sign(&weft_protocol::capability::CapabilityClaims {
        object: ObjectId::from_raw(1),
        count: 1,
        inode: weft_protocol::InodeNumber::ROOT,
        generation: weft_protocol::Generation(1),
        epoch: weft_protocol::MapEpoch(1),
        expires_seconds: 1,
        owner_uid: 0,
        rights: weft_protocol::Rights::READ,
        session: weft_protocol::SessionId(1),
    })
}

#[derive(Clone, Debug)]
enum Deed {
    Publish { part: u64, pattern: Pattern, own: bool, joined: Option<Pattern> },
    Cut { size: u64 },
    Read { start: u64, bytes: u64, beyond: u64, expected: Option<Pattern>, most: usize },
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let stride = prop_oneof![Just(4u64), Just(6), 2u64..8];
    (0..BYTES - 10, 1u64..40, stride, prop_oneof![Just(1u64), 8u64..14]).prop_map(|(start, bytes, stride, count)| {
        let strided =
            Pattern::new(start, bytes.min(stride - 1), stride, count).filter(|of| count > 1 && of.end() <= BYTES);
        strided.unwrap_or_else(|| Pattern::run(start, bytes.min(BYTES - start)).expect("a run"))
    })
}

/// A read, often of a run of a pattern in which it expects to read on.
fn read() -> impl Strategy<Value = Deed> {
    (0..BYTES - 10, 1u64..10, 0u64..30, prop::option::of(pattern()), 0u64..14, 1usize..6).prop_map(
        |(start, bytes, beyond, expected, run, most)| {
            let of = |pattern: &Pattern| pattern.start() + pattern.stride() * (run % pattern.count());
            let (start, bytes) = expected.map_or((start, bytes), |pattern| (of(&pattern), pattern.bytes()));
            Deed::Read { start, bytes, beyond, expected, most }
        },
    )
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (0u64..3, pattern(), any::<bool>(), prop::option::of((0..BYTES - 23, 8u64..12)))
            .prop_map(|(part, pattern, own, joined)| {
                let joined = joined.and_then(|(start, count)| Pattern::new(start, 1, 2, count));
                Deed::Publish { part, pattern, own, joined }
            }),
        1 => (0..BYTES).prop_map(|size| Deed::Cut { size }),
        6 => read(),
    ]
}

/// A reader that asks for what it does not know reads what is there, whatever it has read before, and in whichever
/// patterns.
fn check(deeds: Vec<Deed>) -> Result<(), TestCaseError> {
    let mut knowledge = Knowledge::default();
    let mut model = Model { runs: vec![None; 60], strided: Vec::new(), epoch: 1, cut: 1 };
    for deed in deeds {
        match deed {
            Deed::Publish { part, pattern, own, joined } => {
                model.publish(part, &pattern);
                joined.iter().for_each(|joined| model.join(part, joined));
                if own {
                    knowledge.published(ObjectId::from_raw(part), &[pattern], model.epoch);
                } else {
                    knowledge.begin_questions();
                }
            }
            Deed::Cut { size } => model.cut(size),
            Deed::Read { start, bytes, beyond, expected, most } => {
                let range = start..start + bytes;
                let within = knowledge.to_ask_within(expected);
                let mut questions = 0;
                while let Some(at) = knowledge.first_unknown(&range, model.epoch) {
                    let wanted = at..range.end;
                    let (since, (_, question)) = (knowledge.since(&wanted), knowledge.next_question(within, 0));
                    let (end, mut parts) = model.runs(since, &wanted, beyond);
                    let (whole, next, strided) = model.strided(&question, most);
                    parts.extend(strided);
                    let is_kept = knowledge.add(at..end, since, (model.epoch, model.cut), parts);
                    let question = StridedQuestion { since: if is_kept { question.since } else { 0 }, ..question };
                    // If answers of several moments were needed, the next question tells what they have missed.
                    knowledge.add_strided(&question, model.epoch, whole, next);
                    questions += 1;
                    prop_assert!(questions < 200, "{range:?} {question:?}");
                }
                for piece in knowledge.index().pieces(start, usize::try_from(bytes).expect("small"), None) {
                    let from = usize::try_from(start).expect("small") + piece.start;
                    for byte in from..from + piece.bytes {
                        prop_assert_eq!(piece.part, model.part(byte));
                    }
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_range_that_is_known_is_that_of_the_model(deeds in prop::collection::vec(deed(), 0..60)) {
        check(deeds)?;
    }
}

/// The shard joins runs of a part to a strided extent as they are published. A client that knew that there are no
/// strided extents, but not those runs, asks for it.
#[test]
fn what_a_publication_makes_of_runs_that_are_not_known_is_asked_for() {
    let (own, mut knowledge) = (ObjectId::from_raw(7), Knowledge::default());
    let (_, question) = knowledge.next_question(Pattern::WHOLE_FILE, 0);
    assert!(knowledge.add(700..800, 0, (32, 1), Vec::new()));
    assert!(knowledge.add_strided(&question, 32, true, None));
    knowledge.published(own, &[Pattern::run(700, 10).expect("a run")], 33);
    assert_eq!(knowledge.first_unknown(&(700..800), 33), None);
    assert_eq!(knowledge.first_unknown(&(0..10), 33), Some(0));
    let (_, question) = knowledge.next_question(Pattern::WHOLE_FILE, 0);
    assert_eq!(question.since, 32);
    let told = split_part(7, Pattern::new(0, 10, 100, 8).expect("a pattern"), 33);
    assert!(knowledge.add(0..10, 0, (33, 1), vec![told]));
    assert!(knowledge.add_strided(&question, 33, true, None));
    assert_eq!(knowledge.index().pieces(0, 10, None)[0].part, Some(own));
}

/// A client that reads its own bytes asks for its own pattern only, and for other patterns when it needs them.
#[test]
fn a_reader_of_its_own_pattern_asks_for_that() {
    let own = |rank: u64| Pattern::new(rank * 10, 10, 1000, 50).expect("a pattern");
    let answer = |question: &StridedQuestion, epoch| {
        let ranks = (0..100).filter(|rank| meets(&question.within, &own(*rank)));
        ranks.map(|rank| split_part(rank, own(rank), epoch)).collect::<Vec<_>>()
    };
    let mut knowledge = Knowledge::default();
    let within = knowledge.to_ask_within(Some(own(7)));
    let (_, question) = knowledge.next_question(within, 0);
    assert_eq!(question, StridedQuestion { within: own(7), since: 0, after: None, few: 0 });
    assert!(knowledge.add(0..u64::MAX, 0, (100, 1), answer(&question, 100)));
    assert!(knowledge.add_strided(&question, 100, false, None));
    assert_eq!(knowledge.index().count(), 1);
    for run in 0..50 {
        let start = 70 + run * 1000;
        assert_eq!(knowledge.first_unknown(&(start..start + 10), 100), None);
        assert_eq!(knowledge.first_unknown(&(start..start + 11), 100), Some(start), "a byte of another pattern");
        assert_eq!(knowledge.first_unknown(&(start..start + 10), 101), Some(start), "a later moment");
    }
    // Its own publication is the next one: it knows its pattern as of that one.
    knowledge.published(ObjectId::from_raw(7), &[own(7)], 101);
    assert_eq!(knowledge.first_unknown(&(70..80), 101), None);
    let (_, question) = knowledge.next_question(own(7), 0);
    assert_eq!((question.since, question.few > 0), (100, true), "the shard may have made more of it");
    // What it knows of a pattern is nothing about the file, until an answer has all of it.
    let (_, question) = knowledge.next_question(own(8), 0);
    assert_eq!(question.since, 0);
    assert!(knowledge.add(0..u64::MAX, 101, (101, 1), answer(&question, 101)));
    assert!(knowledge.add_strided(&question, 101, true, None));
    assert_eq!(knowledge.first_unknown(&(0..50_000), 101), None);
    for _ in 0..PATTERN_QUESTIONS_MAX {
        let within = knowledge.to_ask_within(Some(own(7)));
        knowledge.next_question(within, 0);
    }
    assert_eq!(knowledge.to_ask_within(Some(own(7))), Pattern::WHOLE_FILE, "it reads in many patterns");
    let question = knowledge.strided.question(own(7), 0);
    assert!(knowledge.add_strided(&question, 102, false, None));
    assert_eq!(knowledge.to_ask_within(Some(own(7))), own(7), "what it knows of one costs no more");
    knowledge.begin_questions();
    assert_eq!(knowledge.to_ask_within(Some(own(7))), own(7));
    assert!(!knowledge.add(0..10, 101, (102, 102), Vec::new()), "the file was cut");
    assert_eq!(knowledge.next_question(own(7), 0).1.since, 0);
}
