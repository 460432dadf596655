//! What publications and questions cost: keys that are visited and changed, and bytes of the store.

use super::operations::create;
use crate::back::split::{Page, Wanted};
use crate::back::*;
use crate::kv::{KeyValue, MemoryStore};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use weft_protocol::limits::SPLIT_ANSWER_EXTENTS_MAX;
use weft_protocol::message::shard::{RangeUse, StridedQuestion};
use weft_protocol::*;

/// A store that counts the keys that are read, visited and changed.
struct Counting {
    store: MemoryStore,
    count: Cell<u64>,
}

impl Counting {
    fn one(&self) {
        self.count.set(self.count.get() + 1);
    }
}

impl KeyValue for Counting {
    fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.one();
        self.store.get(key, read)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.one();
        self.store.put(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.one();
        self.store.insert(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.one();
        self.store.delete(key)
    }

    fn scan(&self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        self.one();
        self.store.scan(from, |key, value| {
            self.one();
            visit(key, value)
        });
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}

/// A split file that any session may write.
struct SplitFile {
    back: Back<Counting>,
    inode: InodeNumber,
    sequence: u32,
}

impl SplitFile {
    fn new() -> Self {
        let root = RootDirectory { mode: 0o755, uid: 0, gid: 0 };
        let store = Counting { store: MemoryStore::new(), count: Cell::new(0) };
        let mut file =
            Self { back: Back::new(ShardId(0), store, Timestamp(1), root), inode: InodeNumber::ROOT, sequence: 0 };
        let change = InheritedChange::Plan(Plan::Split);
        file.change(1, ShardRequest::SetInherited { inode: InodeNumber::ROOT, change });
        file.inode = match file.change(1, create(InodeNumber::ROOT, "f", 0o644)) {
            ShardAnswer::Entry { attributes, .. } | ShardAnswer::Opened { attributes, .. } => attributes.inode,
            other => panic!("{other:?}"),
        };
        file
    }

    fn change(&mut self, session: u64, request: ShardRequest) -> ShardAnswer {
        self.sequence += 1;
        let slot = Slot { of: NodeId(0), index: SlotIndex(0) };
        let origin = Origin { session: SessionId(session), slot, sequence: self.sequence };
        let context = Context { is_writer: true, ..Context::default() };
        let command = Command::Change { origin, credentials: Credentials::default(), request, context };
        match self.back.apply(Timestamp(2), &command).answer {
            Answer::Client(Ok(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// A session publishes its part. Returns how many keys that took.
    fn publish(&mut self, session: u64, patterns: &[Pattern]) -> u64 {
        let before = self.back.store.count.get();
        let (inode, object) = (self.inode, ObjectId::new(NodeId(1), session));
        let (writer, number, patterns) = (SessionId(session), u64::from(self.sequence) + 1, patterns.to_vec());
        let parts = vec![PublishedPart { writer, object, number, patterns }];
        let request = ShardRequest::Publish { inode, group: None, parts, appends_to: None, range: RangeUse::default() };
        self.change(session, request);
        self.back.store.count.get() - before
    }

    fn wanted(&self, since: u64, (start, end): (u64, u64), extra: usize) -> Wanted {
        let strided = StridedQuestion { within: Pattern::WHOLE_FILE, since, after: None, few: 0 };
        Wanted { since, start, end, extra, strided }
    }

    /// What a reader is told, and how many keys that took.
    fn ask(&self, since: u64, (start, end): (u64, u64), extra: usize) -> (Page, u64) {
        let before = self.back.store.count.get();
        let page = self.back.extents_within(self.inode, &self.wanted(since, (start, end), extra));
        (page, self.back.store.count.get() - before)
    }
}

fn run(start: u64, bytes: u64) -> Pattern {
    Pattern::run(start, bytes).expect("a run")
}

/// A number without order.
fn scattered(index: u64, below: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % below
}

#[test]
fn a_publication_costs_what_it_overlaps_however_many_extents_there_are() {
    const BLOCK: u64 = 4096;
    let mut file = SplitFile::new();
    let (mut most, mut early) = (0, 0);
    for index in 0..100_000 {
        // Two writers, each with blocks of its own here and there, and never two side by side.
        let keys = file.publish(1 + index % 2, &[run(2 * BLOCK * scattered(index, 1 << 40), BLOCK)]);
        most = most.max(keys);
        if index == 1000 {
            early = most;
        }
    }
    println!("keys for a publication of one run: {early} of the first 1,000, {most} of 100,000");
    assert!(most <= early + 2 && most < 40, "{early} {most}");
    let extents: u64 = file.back.split_parts(file.inode).iter().map(|part| part.extents).sum();
    assert!(extents > 99_000);
    // What overlaps k runs costs k.
    let (page, _) = file.ask(0, (0, u64::MAX), 0);
    let runs: Vec<_> = page.parts.iter().flat_map(|(_, extents)| extents).map(|extent| extent.pattern).collect();
    let mut ends: Vec<_> = runs.iter().map(Pattern::end).collect();
    ends.sort_unstable();
    for count in [1, 10, 100, 1000] {
        let keys = file.publish(3, &[run(0, ends[count - 1])]);
        assert!(keys < 10 * count as u64 + 60, "{keys} for {count}");
    }
}

/// Each of many ranks reads its own segment back after all have written: it is told of its neighbours at most.
#[test]
fn a_reader_of_a_range_is_told_of_that_range() {
    const RANKS: u64 = 4096;
    const SEGMENT: u64 = 1 << 24;
    let mut file = SplitFile::new();
    for rank in 0..RANKS {
        file.publish(1 + rank, &[run(rank * SEGMENT, SEGMENT)]);
    }
    for rank in [0, 7, RANKS / 2, RANKS - 1] {
        let (page, keys) = file.ask(rank, (rank * SEGMENT, (rank + 1) * SEGMENT), 64);
        assert!(page.parts.len() <= 65 && keys < 200, "{} parts, {keys} keys", page.parts.len());
        assert!(page.end >= (rank + 1) * SEGMENT);
        assert!(page.parts.iter().any(|(part, _)| part.writer == SessionId(1 + rank)));
    }
    // A reader that knows all of them is not told of strided extents again.
    let mut file = SplitFile::new();
    for rank in 0..RANKS {
        file.publish(1 + rank, &[Pattern::new(rank * 47_008, 47_008, RANKS * 47_008, 1000).expect("a pattern")]);
    }
    let (page, keys) = file.ask(RANKS, (0, 1000), 64);
    assert!(page.parts.is_empty() && keys < 10, "{keys} keys");
}

/// Each of many ranks reads the records back that it has written in turns with the others.
#[test]
fn a_reader_of_strides_is_told_of_its_own_pattern() {
    const RANKS: u64 = 4096;
    const RECORD: u64 = 47_008;
    let own =
        |rank: u64, records: u64| Pattern::new(rank * RECORD, RECORD, RANKS * RECORD, records).expect("a pattern");
    let mut file = SplitFile::new();
    for rank in 0..RANKS {
        file.publish(1 + rank, &[own(rank, 100)]);
        // Some have other patterns, too, in another place of the file.
        let far = Pattern::new((1 << 50) + rank * RECORD, RECORD, RANKS * RECORD, 100).expect("a pattern");
        file.publish(1 + rank, &[far]);
    }
    for rank in [0, 7, RANKS / 2, RANKS - 1] {
        let mut wanted = file.wanted(0, (rank * RECORD, (rank + 1) * RECORD), 4);
        wanted.strided.within = own(rank, 100);
        let before = file.back.store.count.get();
        let page = file.back.extents_within(file.inode, &wanted);
        let keys = file.back.store.count.get() - before;
        assert!(page.strided_next.is_none() && !page.strided_whole && keys < 40, "{keys} keys");
        let told: Vec<_> = page.parts.iter().map(|(part, extents)| (part.writer, extents.len())).collect();
        assert_eq!(told, [(SessionId(1 + rank), 1)]);
        // Half of it, and what has every other run of it, have bytes of that alone, too.
        for within in [own(rank, 50), Pattern::new(rank * RECORD, RECORD, 2 * RANKS * RECORD, 50).expect("a pattern")] {
            wanted.strided.within = within;
            assert_eq!(file.back.extents_within(file.inode, &wanted).parts.len(), 1);
        }
        // Up to `few` strided extents, the answer has all of them.
        wanted.strided.few = u32::MAX;
        assert!(!file.back.extents_within(file.inode, &wanted).strided_whole, "no answer takes as many");
    }
    let mut file = SplitFile::new();
    for rank in 0..30 {
        file.publish(1 + rank, &[own(rank, 100)]);
    }
    let mut wanted = file.wanted(0, (0, RECORD), 4);
    (wanted.strided.within, wanted.strided.few) = (own(3, 100), 29);
    let page = file.back.extents_within(file.inode, &wanted);
    assert_eq!((page.parts.len(), page.strided_whole), (1, false));
    wanted.strided.few = 30;
    let page = file.back.extents_within(file.inode, &wanted);
    assert_eq!((page.parts.len(), page.strided_whole), (30, true));
}

/// A reader is told of the strided extents that may have bytes in its pattern, and of no others, whatever the file has.
#[test]
fn what_is_told_of_a_pattern_is_what_meets_it() {
    let mut random = 0;
    let mut below = |limit: u64| {
        random += 1;
        scattered(random, 1 << 40) % limit
    };
    let mut any = |runs_min: u64| {
        let (start, bytes, runs) = (below(4000), 1 + below(20), runs_min + below(20));
        let stride = bytes + 1 + [0, 11, 23, 47, below(50)][usize::try_from(below(5)).expect("small")];
        Pattern::new(start, bytes, stride, runs).expect("a pattern")
    };
    for _ in 0..20 {
        let mut file = SplitFile::new();
        for writer in 0..300 {
            file.publish(1 + writer % 7, &[any(8)]);
        }
        let (whole, _) = file.ask(0, (0, 0), 0);
        let stored: Vec<_> = whole
            .parts
            .iter()
            .flat_map(|(part, extents)| extents.iter().map(|extent| (part.object, extent.pattern, extent.epoch)))
            .filter(|(_, pattern, _)| weft_layout::is_strided(pattern))
            .collect();
        assert!(stored.len() > 50, "{}", stored.len());
        for since in [0, 100, 250] {
            let within = any(1);
            let mut wanted = file.wanted(since, (0, 0), 0);
            wanted.strided.within = within;
            let page = file.back.extents_within(file.inode, &wanted);
            let told: BTreeSet<_> = page
                .parts
                .iter()
                .flat_map(|(part, extents)| extents.iter().map(|extent| (part.object, extent.pattern, extent.epoch)))
                .filter(|(_, pattern, _)| weft_layout::is_strided(pattern))
                .collect();
            let meeting = stored.iter().filter(|(_, of, epoch)| *epoch > since && weft_layout::meets(&within, of));
            assert_eq!(told, meeting.copied().collect());
        }
    }
}

#[test]
fn an_answer_has_a_limit_also_within_one_part() {
    let mut file = SplitFile::new();
    for index in 0..20 {
        let runs: Vec<_> = (0..1000).map(|run_index| run((index * 1000 + run_index) * 100, 7)).collect();
        // Out of order, so that they are no pattern.
        let runs: Vec<_> = runs.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
        file.publish(1, &runs);
    }
    let (mut start, mut pages, mut told) = (0, 0, 0);
    while start < 2_000_000 {
        let (page, _) = file.ask(0, (start, 2_000_000), 0);
        let count: usize = page.parts.iter().map(|(_, extents)| extents.len()).sum();
        assert!(count <= SPLIT_ANSWER_EXTENTS_MAX && page.end > start);
        (start, pages, told) = (page.end, pages + 1, told + count);
    }
    assert!((told, pages) == (20_000, 5), "{told} {pages}");
    // Strided ones come in pages, too.
    let mut file = SplitFile::new();
    let writers = 3 * SPLIT_ANSWER_EXTENTS_MAX as u64 / 2;
    for writer in 0..writers {
        // None covers an older one.
        file.publish(1 + writer, &[Pattern::new(0, 1, 2, 20 + writers - writer).expect("a pattern")]);
    }
    let (mut wanted, mut told, mut pages) = (file.wanted(0, (0, 20), 0), BTreeSet::new(), 0);
    loop {
        let page = file.back.extents_within(file.inode, &wanted);
        let count: usize = page.parts.iter().map(|(_, extents)| extents.len()).sum();
        assert!(3 * count <= SPLIT_ANSWER_EXTENTS_MAX);
        told.extend(page.parts.iter().map(|(part, _)| part.writer));
        (wanted.strided.after, pages) = (page.strided_next, pages + 1);
        if wanted.strided.after.is_none() {
            break;
        }
    }
    assert_eq!((told.len() as u64, pages), (writers, 9));
}

#[test]
fn an_extent_takes_less_than_a_hundred_bytes() {
    let mut file = SplitFile::new();
    let before = file.back.store.bytes();
    let (mut count, mut patterns) = (200_000, Vec::new());
    for index in 0..count {
        patterns.push(run(8192 * scattered(index, 1 << 40), 4096));
        if patterns.len() == 1000 {
            file.publish(1, &patterns);
            patterns.clear();
        }
    }
    count = file.back.split_parts(file.inode)[0].extents;
    let per_run = (file.back.store.bytes() - before) / count;
    println!("{per_run} bytes for a run");
    assert!(per_run < 100, "{per_run} bytes for a run");
    let mut file = SplitFile::new();
    let before = file.back.store.bytes();
    for index in 0..20_000 {
        let start = (1 << 20) * scattered(index, 1 << 40);
        file.publish(1, &[Pattern::new(start, 100 + index % 77, 1000, 8 + index % 5).expect("a pattern")]);
    }
    let per_strided = (file.back.store.bytes() - before) / file.back.split_parts(file.inode)[0].extents;
    println!("{per_strided} bytes for a strided extent");
    assert!(per_strided < 150, "{per_strided} bytes for a strided extent");
}
