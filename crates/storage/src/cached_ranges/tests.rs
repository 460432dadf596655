//! Cases by hand, and random requests of several kernels against plain bytes.

use super::*;
use weft_protocol::NodeId;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);
const PAGE: u64 = 8;

fn object() -> ObjectId {
    ObjectId::new(NodeId(1), 10)
}

fn request(session: SessionId, range: Range<u64>, changes: bool, pages: bool) -> RangeRequest {
    let inode = InodeNumber::new(ShardId(3), 5);
    RangeRequest { object: object(), inode, session: Some(session), range, changes, pages }
}

fn read(session: SessionId, range: Range<u64>) -> RangeRequest {
    request(session, range, false, true)
}

fn write(session: SessionId, range: Range<u64>) -> RangeRequest {
    request(session, range, true, false)
}

/// A drop: of whom, its number, its range.
type Told = (SessionId, u64, Range<u64>);

/// The machine with its effects.
struct World {
    ranges: CachedRanges,
    out: Vec<RangesEffect>,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        Self { ranges: CachedRanges::new(PAGE, 1, 1), out: Vec::new(), now_ms: 1000 }
    }

    fn begin(&mut self, request: RangeRequest) -> (u64, bool) {
        self.ranges.begin(request, self.now_ms, &mut self.out)
    }

    fn admitted(&mut self, request: RangeRequest) -> u64 {
        let (number, is_admitted) = self.begin(request);
        assert!(is_admitted);
        number
    }

    fn waits(&mut self, request: RangeRequest) -> u64 {
        let (number, is_admitted) = self.begin(request);
        assert!(!is_admitted);
        number
    }

    fn end(&mut self, number: u64) {
        self.ranges.end(object(), number, self.now_ms, &mut self.out);
    }

    fn dropped(&mut self, session: SessionId, number: u64) {
        self.ranges.dropped(session, (object(), number), self.now_ms, &mut self.out);
    }

    fn tick(&mut self, later_ms: u64) {
        self.now_ms += later_ms;
        self.ranges.tick(self.now_ms, &mut self.out);
    }

    /// The drops that were sent, with their ranges, and the requests that were admitted.
    fn effects(&mut self) -> (Vec<Told>, Vec<u64>) {
        let (mut drops, mut admitted) = (Vec::new(), Vec::new());
        for effect in self.out.drain(..) {
            match effect {
                RangesEffect::Drop { session, drop } => {
                    assert_eq!(drop.object, object());
                    drops.push((session, drop.number, drop.offset..drop.offset.saturating_add(drop.bytes)));
                }
                RangesEffect::Admit(number) => admitted.push(number),
            }
        }
        (drops, admitted)
    }

    fn one_drop(&mut self) -> Told {
        let (drops, admitted) = self.effects();
        assert_eq!((drops.len(), admitted.len()), (1, 0), "{drops:?} {admitted:?}");
        drops[0].clone()
    }
}

#[test]
fn a_write_waits_until_other_kernels_have_dropped_its_range() {
    let mut world = World::new();
    for session in [A, B] {
        world.admitted(read(session, 0..16));
    }
    let own = world.admitted(write(A, 40..50));
    world.end(own);
    let waiting = world.waits(write(A, 3..5));
    let (session, number, range) = world.one_drop();
    assert_eq!((session, range), (B, 0..8), "whole pages, and not its own");
    world.dropped(A, number);
    assert_eq!(world.effects(), (vec![], vec![]), "that is not A's to answer");
    world.dropped(B, number);
    assert_eq!(world.effects(), (vec![], vec![waiting]));
    world.end(waiting);
    let second = world.admitted(write(A, 0..8));
    world.end(second);
    world.waits(write(A, 0..9));
    assert_eq!(world.one_drop().2, 8..16, "the rest was still noted");
}

#[test]
fn reads_into_pages_wait_for_changes_that_land_and_for_those_that_do_not_wait_for_them() {
    let mut world = World::new();
    world.admitted(read(A, 0..8));
    let change = world.waits(write(B, 0..8));
    let (_, drop_a, _) = world.one_drop();
    world.admitted(read(A, 0..8));
    let held = world.waits(read(C, 0..8));
    world.admitted(read(C, 8..16));
    world.dropped(A, drop_a);
    let (_, again, _) = world.one_drop();
    world.dropped(A, again);
    assert_eq!(world.effects(), (vec![], vec![change]));
    let late = world.waits(read(A, 0..8));
    world.admitted(read(B, 0..8));
    world.end(change);
    assert_eq!(world.effects(), (vec![], vec![held, late]));
}

#[test]
fn a_change_that_is_given_up_holds_up_nobody() {
    let mut world = World::new();
    world.admitted(read(A, 0..8));
    let change = world.waits(write(B, 0..8));
    let (_, number, _) = world.one_drop();
    let held = world.waits(read(C, 0..8));
    world.end(change);
    assert_eq!(world.effects(), (vec![], vec![held]));
    let again = world.waits(write(B, 0..8));
    assert_eq!(world.one_drop().0, C, "what A was told before is not told again");
    world.dropped(A, number);
    assert_eq!(world.effects().1, []);
    world.ranges.session_over(C, Some(ShardId(4)), 0, &mut world.out);
    assert_eq!(world.effects().1, [], "another shard's session");
    world.ranges.session_over(C, Some(ShardId(3)), 0, &mut world.out);
    assert_eq!(world.effects().1, [again]);
}

#[test]
fn written_pages_are_noted_and_a_cut_takes_all_behind_it() {
    let mut world = World::new();
    let own = world.admitted(request(A, 4..20, true, true));
    world.end(own);
    let cut = world.waits(write(B, 18..u64::MAX));
    let (session, number, range) = world.one_drop();
    assert_eq!((session, range), (A, 16..20));
    world.dropped(A, number);
    world.end(cut);
    world.effects();
    let append = world.admitted(write(B, 18..u64::MAX));
    let shorter = world.admitted(write(C, 16..u64::MAX));
    world.end(shorter);
    world.waits(read(A, 16..18));
    world.end(append);
    assert_eq!(world.effects().1.len(), 1, "it landed where the cut had left the end");
}

#[test]
fn a_session_that_does_not_answer_is_overdue_after_a_term_and_over_after_two() {
    let mut world = World::new();
    world.admitted(read(A, 0..8));
    let change = world.waits(write(B, 0..8));
    let first = world.one_drop();
    assert_eq!(world.ranges.deadline_ms(), Some(2000));
    world.tick(999);
    assert_eq!(world.effects().0, []);
    world.tick(1);
    assert_eq!(world.one_drop(), first, "it is told again");
    assert!(!world.ranges.is_overdue(A, world.now_ms));
    world.tick(SESSION_TERM_MS);
    assert!(world.ranges.is_overdue(A, world.now_ms) && !world.ranges.is_overdue(B, world.now_ms));
    world.effects();
    world.tick(SESSION_TERM_MS);
    assert_eq!(world.effects().1, [change]);
    world.end(change);
    assert_eq!((world.ranges.objects.len(), world.ranges.deadline_ms()), (0, None));
}

#[test]
fn of_two_kernels_that_write_one_page_back_the_first_goes() {
    let mut world = World::new();
    for session in [A, B] {
        world.admitted(read(session, 0..16));
    }
    // Both have stored into the first page; neither drops it while its write is in flight.
    let first = world.waits(request(A, 0..8, true, true));
    let (session, drop_b, range) = world.one_drop();
    assert_eq!((session, range), (B, 0..8));
    let second = world.waits(request(B, 0..8, true, true));
    let (drops, admitted) = world.effects();
    assert_eq!(admitted, [first]);
    let [(A, drop_a, range)] = &drops[..] else { panic!("{drops:?}") };
    assert_eq!(*range, 0..8);
    let third = world.waits(read(C, 0..8));
    world.end(first);
    assert_eq!(world.effects(), (vec![], vec![]), "A has its page still");
    world.dropped(A, *drop_a);
    assert_eq!(world.effects().1, [second]);
    world.dropped(B, drop_b);
    world.end(second);
    assert_eq!(world.effects().1, [third]);
}

#[test]
fn a_change_waits_for_pages_that_are_not_being_written() {
    let mut world = World::new();
    for session in [A, B] {
        world.admitted(read(session, 0..24));
    }
    let larger = world.waits(request(A, 0..24, true, true));
    let (_, drop_b, _) = world.one_drop();
    // B writes its first page before it drops the others: of it A is known to write all, and so it is B that goes.
    let part = world.admitted(request(B, 0..8, true, true));
    let (_, again, range) = world.one_drop();
    assert_eq!(range, 0..8, "it has written its page, and keeps it");
    let direct = world.waits(write(C, 0..8));
    world.effects();
    world.end(part);
    world.dropped(B, drop_b);
    assert_eq!(world.effects().1, []);
    world.dropped(B, again);
    assert_eq!(world.effects().1, [larger], "nobody else has pages of it");
    world.end(larger);
    assert!(!world.effects().1.contains(&direct), "A has written its pages, and keeps them");
}

#[test]
fn pages_of_many_objects_are_bounded_and_the_oldest_go() {
    let mut world = World::new();
    let of = |number: u64| RangeRequest { object: ObjectId::new(NodeId(1), number), ..read(A, 0..8) };
    for number in 0..OBJECTS_MAX as u64 {
        world.admitted(of(number));
    }
    world.admitted(of(0));
    assert_eq!(world.out, []);
    world.admitted(of(OBJECTS_MAX as u64));
    let [RangesEffect::Drop { session: A, drop }] = &world.out[..] else { panic!("{:?}", world.out) };
    assert_eq!((drop.object, drop.offset, drop.bytes), (of(0).object, 0, 8));
    assert_eq!(world.ranges.deadline_ms(), Some(2000), "it is told again until it is answered");
    let number = drop.number;
    world.ranges.dropped(A, (of(0).object, number), 0, &mut Vec::new());
    assert_eq!(world.ranges.objects.len(), OBJECTS_MAX);
    for number in 0..=OBJECTS_MAX as u64 {
        world.ranges.removed(of(number).object, 0, &mut Vec::new());
    }
    assert!(world.ranges.is_idle() && world.ranges.by_age.is_empty() && world.ranges.noted_at.is_empty());
}

#[test]
fn many_ranges_become_one() {
    let mut world = World::new();
    for page in 0..10 * RANGES_MAX as u64 {
        world.admitted(read(A, 2 * page..2 * page + 1));
    }
    let noted = &world.ranges.objects[&object()].noted[&A];
    assert!(noted.0.len() <= RANGES_MAX);
    world.ranges.removed(object(), 0, &mut world.out);
    assert_eq!(world.ranges.objects.len(), 0);
}

/// Random numbers of one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const FILE: u64 = 48;
const SESSIONS: u64 = 3;

/// A request of the random test.
struct Asked {
    request: RangeRequest,
    value: u8,
    is_admitted: bool,
    /// Of a read: what its pages get; of a change: how many bytes have landed.
    came: Option<Vec<u8>>,
    landed: u64,
}

impl Asked {
    fn is_by(&self, session: SessionId, range: &Range<u64>) -> bool {
        self.request.session == Some(session) && overlap(&self.request.range, range)
    }
}

/// Several kernels and one object.
struct Kernels {
    world: World,
    random: Random,
    bytes: Vec<u8>,
    /// Pages by session and index.
    pages: BTreeMap<(SessionId, u64), Vec<u8>>,
    asked: BTreeMap<u64, Asked>,
    drops: Vec<Told>,
}

impl Kernels {
    fn range(&mut self) -> Range<u64> {
        let start = self.random.below(FILE);
        start..(start + 1 + self.random.below(2 * PAGE)).min(FILE)
    }

    fn page_range(&mut self) -> Range<u64> {
        let start = self.random.below(FILE / PAGE);
        start * PAGE..(start + 1 + self.random.below(2)).min(FILE / PAGE) * PAGE
    }

    /// Whether the session's kernel reads pages of the range now.
    fn locked(&self, session: SessionId, range: &Range<u64>) -> bool {
        self.asked.values().any(|asked| !asked.request.changes && asked.is_by(session, range))
    }

    fn forget(&mut self, session: SessionId, range: &Range<u64>) {
        self.pages.retain(|(of, page), _| *of != session || !overlap(range, &(page * PAGE..(page + 1) * PAGE)));
    }

    fn ask(&mut self) {
        let session = SessionId(1 + self.random.below(SESSIONS));
        let value = 1 + self.random.below(250) as u8;
        let kind = self.random.below(5);
        let range = if kind < 3 { self.page_range() } else { self.range() };
        // A kernel reads no page, and writes none, of which it has a read or write in flight.
        let whole = if kind == 4 { range.start..u64::MAX } else { range.clone() };
        if self.asked.values().any(|asked| asked.is_by(session, &whole)) {
            return;
        }
        let request = match kind {
            0 | 1 => read(session, range),
            2 => request(session, range, true, true),
            3 => write(session, range),
            _ => write(session, range.start..u64::MAX),
        };
        if request.changes {
            self.forget(session, &request.range);
        }
        if request.changes && request.pages {
            for page in request.range.start / PAGE..request.range.end / PAGE {
                self.pages.insert((session, page), vec![value; PAGE as usize]);
            }
        }
        let (number, is_admitted) = self.world.begin(request.clone());
        self.asked.insert(number, Asked { request, value, is_admitted: false, came: None, landed: 0 });
        if is_admitted {
            self.admit(number);
        }
    }

    fn admit(&mut self, number: u64) {
        let asked = self.asked.get_mut(&number).unwrap();
        assert!(!asked.is_admitted, "admitted once");
        asked.is_admitted = true;
        if !asked.request.changes {
            let Range { start, end } = asked.request.range;
            asked.came = Some(self.bytes[start as usize..end as usize].to_vec());
        }
    }

    /// Something in flight goes on.
    fn go_on(&mut self) {
        let Some(number) = self.asked.keys().nth(self.random.below(self.asked.len().max(1) as u64) as usize).copied()
        else {
            return;
        };
        let asked = self.asked.get_mut(&number).unwrap();
        let Range { start, end } = asked.request.range.clone();
        let end = end.min(FILE);
        let session = asked.request.session.unwrap();
        if let Some(came) = asked.came.take() {
            for page in start / PAGE..end / PAGE {
                let at = (page * PAGE - start) as usize;
                self.pages.insert((session, page), came[at..at + PAGE as usize].to_vec());
            }
            self.asked.remove(&number);
        } else if !asked.is_admitted && asked.request.changes && self.random.below(4) == 0 {
            // Given up: nothing has landed, and the kernel keeps nothing of it.
            let range = asked.request.range.clone();
            self.asked.remove(&number);
            self.forget(session, &range);
            self.world.end(number);
        } else if asked.is_admitted && asked.request.changes {
            let piece = asked.landed..(asked.landed + 1 + self.random.below(10)).min(end - start);
            for place in piece.clone() {
                self.bytes[(start + place) as usize] = asked.value;
            }
            asked.landed = piece.end;
            if piece.end == end - start {
                let is_written_through = asked.request.pages;
                let range = asked.request.range.clone();
                self.asked.remove(&number);
                self.world.end(number);
                if !is_written_through {
                    self.forget(session, &range);
                }
            }
        }
    }

    fn answer_a_drop(&mut self) {
        if self.drops.is_empty() {
            return;
        }
        let index = self.random.below(self.drops.len() as u64) as usize;
        let (session, number, range) = self.drops[index].clone();
        // Dropping waits for pages that are being read.
        if !self.locked(session, &range) {
            self.drops.remove(index);
            self.forget(session, &range);
            self.world.dropped(session, number);
        }
    }

    fn take_effects(&mut self) {
        loop {
            let (drops, admitted) = self.world.effects();
            if drops.is_empty() && admitted.is_empty() {
                return;
            }
            self.drops.extend(drops);
            admitted.into_iter().for_each(|number| self.admit(number));
        }
    }

    /// No page differs from the object where no change is in flight.
    fn check(&self, seed: u64) {
        for ((session, page), bytes) in &self.pages {
            for (index, byte) in bytes.iter().enumerate() {
                let place = page * PAGE + index as u64;
                let in_flight =
                    self.asked.values().any(|asked| asked.request.changes && asked.request.range.contains(&place));
                let is = self.bytes[place as usize];
                assert!(in_flight || *byte == is, "seed {seed}: {session} has {byte} at {place}, where {is} is");
            }
        }
    }
}

#[test]
fn no_page_is_stale_once_a_change_has_ended() {
    for seed in 0..400 {
        let (bytes, pages, asked) = (vec![0; FILE as usize], BTreeMap::new(), BTreeMap::new());
        let mut kernels = Kernels { world: World::new(), random: Random(seed), bytes, pages, asked, drops: Vec::new() };
        for step in 0..600 {
            match kernels.random.below(6) {
                0 | 1 if step < 500 => kernels.ask(),
                2 => kernels.answer_a_drop(),
                _ => kernels.go_on(),
            }
            kernels.take_effects();
            kernels.check(seed);
        }
        for _ in 0..20_000 {
            if kernels.asked.is_empty() {
                break;
            }
            kernels.answer_a_drop();
            kernels.go_on();
            kernels.take_effects();
            kernels.check(seed);
        }
        assert!(kernels.asked.is_empty(), "seed {seed}: {} requests wait for ever", kernels.asked.len());
    }
}
