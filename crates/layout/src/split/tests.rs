use super::*;
use proptest::prelude::*;
use weft_protocol::Extent;

/// Bytes of the files of these tests.
const BYTES: u64 = 200;

fn pattern() -> impl Strategy<Value = Pattern> {
    let any = (0..BYTES / 2, 1u64..12, 1u64..9, prop_oneof![1u64..7, STRIDED_RUNS_MIN..STRIDED_RUNS_MIN + 8]);
    any.prop_filter_map("runs touch", |(start, bytes, gap, count)| Pattern::new(start, bytes, bytes + gap, count))
        .prop_filter("too long", |pattern| pattern.end() <= BYTES)
}

fn bytes_of(pattern: &Pattern) -> impl Iterator<Item = usize> {
    let starts = (0..pattern.count()).map(|index| pattern.start() + index * pattern.stride());
    let bytes = pattern.bytes();
    starts.flat_map(move |start| start..start + bytes).map(|byte| usize::try_from(byte).expect("small"))
}

/// The file, byte by byte: whose it is.
type Model = Vec<Option<u8>>;

fn pieces_of_model(model: &Model, offset: usize, bytes: usize) -> Vec<SplitPiece<u8>> {
    let mut pieces: Vec<SplitPiece<u8>> = Vec::new();
    for start in 0..bytes {
        let part = model[offset + start];
        match pieces.last_mut() {
            Some(last) if last.part == part => last.bytes += 1,
            _ => pieces.push(SplitPiece { part, start, bytes: 1 }),
        }
    }
    pieces
}

proptest! {
    #[test]
    fn the_latest_publication_has_a_byte(
        written in prop::collection::vec((0u8..3, pattern()), 0..12), own in prop::collection::vec(pattern(), 0..3),
        offset in 0..BYTES, bytes in 0..BYTES,
    ) {
        let (mut index, mut model) = (SplitIndex::default(), vec![None; 2 * BYTES as usize]);
        for (epoch, (part, pattern)) in written.iter().enumerate() {
            index.add(*part, &[Extent { pattern: *pattern, epoch: epoch as u64 + 1 }]);
            bytes_of(pattern).for_each(|byte| model[byte] = Some(*part));
        }
        let mut unpublished = Unpublished::default();
        for pattern in &own {
            for run in 0..pattern.count() {
                unpublished.add(pattern.start() + run * pattern.stride(), pattern.bytes());
            }
            bytes_of(pattern).for_each(|byte| model[byte] = Some(1));
        }
        let (at, length) = (usize::try_from(offset).expect("small"), usize::try_from(bytes).expect("small"));
        let found = index.pieces(offset, length, Some((1, &unpublished)));
        prop_assert_eq!(found, pieces_of_model(&model, at, length));
    }

    /// Readers are told of ranges, some of them again, so that extents come in any order.
    #[test]
    fn extents_may_come_in_any_order_and_again(
        (written, order) in prop::collection::vec((0u8..3, pattern()), 1..12)
            .prop_flat_map(|written| (Just(written.clone()), prop::collection::vec(0..written.len(), 0..12))),
        offset in 0..BYTES, bytes in 0..BYTES,
    ) {
        let (mut index, mut model) = (SplitIndex::default(), vec![None; 2 * BYTES as usize]);
        for (part, pattern) in &written {
            bytes_of(pattern).for_each(|byte| model[byte] = Some(*part));
        }
        for at in order.into_iter().chain((0..written.len()).rev()) {
            let (part, pattern) = written[at];
            index.add(part, &[Extent { pattern, epoch: at as u64 + 1 }]);
        }
        let (at, length) = (usize::try_from(offset).expect("small"), usize::try_from(bytes).expect("small"));
        prop_assert_eq!(index.pieces(offset, length, None), pieces_of_model(&model, at, length));
    }

    #[test]
    fn what_is_published_is_what_was_written(writes in prop::collection::vec((0..BYTES, 1u64..20), 0..40)) {
        let (mut unpublished, mut model) = (Unpublished::default(), vec![false; BYTES as usize + 20]);
        for (offset, bytes) in &writes {
            unpublished.add(*offset, *bytes);
            (*offset..offset + bytes).for_each(|byte| model[usize::try_from(byte).expect("small")] = true);
        }
        prop_assert!(unpublished.count() <= writes.len());
        let mut told = vec![false; model.len()];
        unpublished.take().iter().flat_map(bytes_of).for_each(|byte| told[byte] = true);
        prop_assert_eq!(told, model);
        prop_assert!(unpublished.is_empty());
    }

    #[test]
    fn what_lies_below_a_size_is_what_the_model_has_there(pattern in pattern(), size in 0..BYTES + 10) {
        let expected: Vec<_> = bytes_of(&pattern).filter(|byte| (*byte as u64) < size).collect();
        let kept: Vec<_> = below(&pattern, size).iter().flat_map(bytes_of).collect();
        prop_assert_eq!(kept, expected);
    }
}

/// Patterns whose strides have divisors in common, as often as not.
fn in_step() -> impl Strategy<Value = Pattern> {
    let any = (0..BYTES, 1u64..20, prop_oneof![Just(6u64), Just(12), Just(18), 2..30u64], 1u64..14);
    any.prop_filter_map("runs touch", |(start, bytes, stride, count)| Pattern::new(start, bytes, stride, count))
}

proptest! {
    /// Also a pattern that is not decided exactly is never left out.
    #[test]
    fn patterns_that_have_a_byte_in_common_meet(one in in_step(), other in in_step()) {
        let bytes: std::collections::BTreeSet<_> = bytes_of(&one).collect();
        let has_common = bytes_of(&other).any(|byte| bytes.contains(&byte));
        let is_exact = one.stride() == other.stride() || one.count() == 1 || other.count() == 1;
        prop_assert!(meets(&one, &other) || !has_common);
        prop_assert!(has_common || !is_exact || !meets(&one, &other));
        prop_assert_eq!(meets(&one, &other), meets(&other, &one));
    }

    /// A walk through patterns that are alike meets all that have bytes in one, from wherever it begins.
    #[test]
    fn a_walk_by_ends_leaves_out_no_pattern_that_meets(
        one in in_step(), other in prop_oneof![in_step(), pattern()], before in 0u64..200,
    ) {
        if meets(&one, &other) {
            let from = other.end().saturating_sub(before);
            let next = Alike::of(&other).next_end(&one, from);
            prop_assert!(next.is_some_and(|next| from <= next && next <= other.end()), "{next:?}");
            prop_assert_eq!(Alike::of(&other).next_end(&one, other.end()), Some(other.end()));
        }
    }
}

/// Of writers in turns, each is found between two that have no byte in common with it.
#[test]
fn one_of_many_writers_is_found_by_its_place() {
    const RANKS: u64 = 4096;
    let of = |rank: u64| Pattern::new(rank * 4096, 4096, RANKS * 4096, 32).expect("a pattern");
    let own = of(77);
    for rank in 0..RANKS {
        assert_eq!(meets(&own, &of(rank)), rank == 77);
        // From those before it the next that may meet it is itself, from those behind it one that ends a stride later.
        let next = Alike::of(&own).next_end(&own, of(rank).end());
        let first = own.end() - 4095;
        let expected = match rank {
            0..77 => first,
            77 => own.end(),
            _ => first + RANKS * 4096,
        };
        assert_eq!(next, Some(expected));
    }
    let twice = Pattern::new(77 * 4096, 4096, 2 * RANKS * 4096, 16).expect("every other run");
    assert!(meets(&own, &twice) && !meets(&of(78), &twice), "their strides have the shorter one in common");
    assert!(meets(&Pattern::WHOLE_FILE, &own));
    assert_eq!(Alike::of(&own).next_end(&Pattern::WHOLE_FILE, own.end()), Some(own.end()));
}

#[test]
fn strides_are_one_pattern_however_many_runs_they_have() {
    let mut unpublished = Unpublished::default();
    for run in 0..100_000 {
        unpublished.add(1000 + run * 4096, 47);
    }
    assert_eq!(unpublished.take(), [Pattern::new(1000, 47, 4096, 100_000).unwrap()]);
    // Three things in turns, one of them in two writes.
    for turn in 0..1000 {
        unpublished.add(turn * 64, 8);
        unpublished.add(turn * 64 + 8, 8);
        unpublished.add((1 << 20) + turn * 3, 1);
        unpublished.add((1 << 30) + turn * 100, 7);
    }
    let patterns = unpublished.take();
    let counts: Vec<_> = patterns.iter().map(|pattern| (pattern.bytes(), pattern.count())).collect();
    assert_eq!(counts, [(16, 1000), (1, 1000), (7, 1000)]);
}

#[test]
fn the_same_written_again_takes_no_more_room() {
    let mut index = SplitIndex::default();
    let patterns = [Pattern::run(0, 100), Pattern::new(200, 10, 50, 20), Pattern::run(5000, 10)].map(Option::unwrap);
    for epoch in 1..1000 {
        for pattern in patterns {
            index.add(0, &[Extent { pattern, epoch }]);
        }
        // One run of the strided ones alone, which the next round covers.
        index.add(0, &[Extent { pattern: Pattern::run(250, 10).unwrap(), epoch }]);
        assert!(index.count() <= 4, "{index:?}");
    }
}

#[test]
fn a_pattern_that_grows_stays_one() {
    let mut index = SplitIndex::default();
    for epoch in 1..1000 {
        // Many that interleave, of several writers, each told again and longer.
        for part in 0..100 {
            let pattern = Pattern::new(part * 10, 10, 1000, STRIDED_RUNS_MIN + epoch).unwrap();
            index.add(part, &[Extent { pattern, epoch }]);
        }
        assert_eq!(index.count(), 100);
    }
}

/// A lookup visits what is in the range, and not the rest: a hundred thousand runs cost it nothing.
#[test]
fn irregular_runs_are_found_by_range() {
    let mut index = SplitIndex::default();
    for run in 0..100_000 {
        index.add(run % 7, &[Extent { pattern: Pattern::run(run * 100, 1 + run % 90).unwrap(), epoch: run + 1 }]);
    }
    assert_eq!(index.count(), 100_000);
    for run in 0..100_000u64 {
        let pieces = index.pieces(run * 100, 100, None);
        assert_eq!(
            pieces[0],
            SplitPiece { part: Some(run % 7), start: 0, bytes: usize::try_from(1 + run % 90).unwrap() }
        );
        assert_eq!(pieces.len(), 2);
    }
}
