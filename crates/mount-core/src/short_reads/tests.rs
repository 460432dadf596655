//! What READs do to a record, and how they are answered.

use super::*;

const INODE: InodeNumber = InodeNumber::from_raw(7);
const PAGE: u64 = 4096;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An inode of whose pages all is known.
fn recorded() -> ShortReads<()> {
    let reads = ShortReads::default();
    reads.begin(INODE, ms(0));
    let dropping = reads.drop_begins(INODE, 0..u64::MAX, ms(0));
    reads.drop_ends(INODE, dropping);
    reads
}

fn ends_at(at: u64) -> End {
    End { at, is_empty: false, is_cut: false }
}

/// A READ that is received, and answered short.
fn read(reads: &ShortReads<()>, pages: Range<u64>, end: u64, times: (u64, u64)) -> ShortRead {
    let is_empty = end <= pages.start * PAGE;
    read_to(reads, pages, End { is_empty, ..ends_at(end) }, times)
}

fn read_to(reads: &ShortReads<()>, pages: Range<u64>, end: End, (received, answered): (u64, u64)) -> ShortRead {
    let begun = reads.read_begins(INODE, pages.clone(), None, ms(received));
    let begun = begun.map(|(_, begun)| begun);
    let times = ((ms(received), ms(answered)), begun.as_ref());
    let decided = reads.answer(INODE, pages, Some(end), times, |_| {});
    begun.inspect(|begun| reads.read_ends(INODE, begun));
    decided
}

fn wait(reads: &ShortReads<()>, began: Option<Began>, now: u64) -> Option<Unsettled<()>> {
    reads.unsettled(INODE, &(0..0), began, ms(now))
}

#[test]
fn a_short_read_that_a_change_crosses_is_asked_again_page_by_page() {
    let reads = recorded();
    assert_eq!(read(&reads, 0..4, 3 * PAGE, (100, 110)), ShortRead::Taken, "nothing has happened");
    reads.told(INODE, 4 * PAGE, ms(200));
    let begun = reads.read_begins(INODE, 0..4, None, ms(300));
    reads.changed(INODE, ms(305));
    let begun = begun.map(|(_, begun)| begun);
    let times = ((ms(300), ms(310)), begun.as_ref());
    assert_eq!(reads.answer(INODE, 0..4, Some(ends_at(PAGE + 5)), times, |_| {}), ShortRead::AskedAgain);
    reads.read_whole(INODE, 0..1, None, ms(312));
    assert_eq!(read(&reads, 1..2, PAGE + 5, (313, 320)), ShortRead::Taken, "it was sent after that change");
    reads.changed(INODE, ms(400));
    assert_eq!(read(&reads, 0..4, PAGE + 5, (400, 410)), ShortRead::Taken, "the kernel knows of no more");
}

#[test]
fn the_error_of_a_page_that_is_asked_for_alone_would_be_the_programs() {
    let reads = recorded();
    reads.changed(INODE, ms(100));
    assert_eq!(read(&reads, 0..1, 25, (101, 102)), ShortRead::Taken);
}

#[test]
fn a_page_behind_the_end_is_asked_for_again() {
    let reads = recorded();
    reads.changed(INODE, ms(100));
    assert_eq!(read(&reads, 2..3, 2 * PAGE, (101, 102)), ShortRead::AskedAgain, "in readahead");
    assert_eq!(read(&reads, 2..3, 2 * PAGE, (102, 103)), ShortRead::Taken, "it was sent after that change");
}

#[test]
fn an_empty_reply_does_not_cross_the_read_of_an_earlier_page() {
    let reads = recorded();
    let begun = reads.read_begins(INODE, 0..2, None, ms(100)).map(|(_, begun)| begun);
    assert_eq!(read(&reads, 2..4, 2 * PAGE, (101, 102)), ShortRead::AskedAgain, "it is in flight");
    let times = ((ms(100), ms(103)), begun.as_ref());
    assert_eq!(reads.answer(INODE, 0..2, Some(ends_at(PAGE + 5)), times, |_| {}), ShortRead::Taken);
    begun.inspect(|begun| reads.read_ends(INODE, begun));
    reads.told(INODE, 8 * PAGE, ms(200));
    assert_eq!(read(&reads, 0..2, PAGE + 5, (201, 202)), ShortRead::AskedAgain);
    assert_eq!(read(&reads, 8..9, 8 * PAGE, (300, 301)), ShortRead::Taken, "the kernel knows of no more");
    assert_eq!(read(&reads, 5..6, 5 * PAGE, (300, 301)), ShortRead::AskedAgain, "it is asked for again");
    assert_eq!(read(&reads, 1..2, PAGE + 5, (302, 303)), ShortRead::Taken);
}

#[test]
fn what_may_have_waited_for_a_thread_counts_as_crossed() {
    let reads = recorded();
    reads.changed(INODE, ms(100));
    assert_eq!(read(&reads, 0..2, 5, (110, 120)), ShortRead::AskedAgain);
    assert_eq!(read(&reads, 4..6, 4 * PAGE + 5, (200, 210)), ShortRead::Taken);
}

#[test]
fn the_error_of_a_page_that_is_not_up_to_date_would_be_the_programs() {
    let reads = recorded();
    let begun = reads.write_begins(INODE, PAGE + 5, (0..0, [None, Some(1)]), ms(100)).expect("it is recorded");
    reads.write_ends(INODE, begun, (None, None), ms(110));
    assert_eq!(read(&reads, 1..2, PAGE + 5, (111, 120)), ShortRead::Dropped { all: false });
    assert_eq!(read(&reads, 2..4, PAGE + 5, (121, 125)), ShortRead::AskedAgain, "readahead");
    reads.changed(INODE, ms(130));
    assert_eq!(read(&reads, 2..3, PAGE + 5, (128, 135)), ShortRead::AskedAgain, "crossed again: the file was cut");
    let unknown = ShortReads::<()>::default();
    unknown.begin(INODE, ms(0));
    assert_eq!(read(&unknown, 0..1, 5, (1, 2)), ShortRead::Dropped { all: true });
    let dropping = unknown.drop_begins(INODE, 0..u64::MAX, ms(3));
    unknown.drop_ends(INODE, dropping);
    assert_eq!(read(&unknown, 0..2, 5, (4, 5)), ShortRead::AskedAgain);
}

#[test]
fn readahead_asks_for_no_page_that_is_in_memory() {
    let reads = recorded();
    let begun = reads.write_begins(INODE, PAGE + 5, (0..0, [None, Some(1)]), ms(100)).expect("it is recorded");
    reads.write_ends(INODE, begun, (None, None), ms(110));
    assert_eq!(read(&reads, 1..4, 2 * PAGE + 5, (111, 120)), ShortRead::AskedAgain, "memory pressure took the page");
}

#[test]
fn a_page_of_a_file_that_was_cut_is_asked_for_again_once() {
    let reads = recorded();
    let begun = reads.write_begins(INODE, PAGE + 5, (0..0, [None, Some(1)]), ms(100)).expect("it is recorded");
    reads.write_ends(INODE, begun, (None, None), ms(110));
    let cut = End { is_cut: true, ..ends_at(PAGE + 9) };
    assert_eq!(read_to(&reads, 1..2, cut, (111, 120)), ShortRead::AskedAgain);
    reads.changed(INODE, ms(121));
    assert_eq!(read_to(&reads, 1..2, cut, (122, 123)), ShortRead::Dropped { all: false }, "or a mapping gets SIGBUS");
}

#[test]
fn a_change_waits_for_reads_in_flight_and_for_what_is_asked_again() {
    let reads = recorded();
    reads.changed(INODE, ms(100));
    let begun = reads.read_begins(INODE, 0..2, None, ms(101)).map(|(_, begun)| begun);
    let waits = wait(&reads, None, 102).expect("a READ is in flight");
    let began = Some(waits.began);
    assert!(waits.time.is_none());
    let times = ((ms(101), ms(110)), begun.as_ref());
    assert_eq!(reads.answer(INODE, 0..2, Some(ends_at(5)), times, |_| {}), ShortRead::AskedAgain);
    begun.inspect(|begun| reads.read_ends(INODE, begun));
    assert!(wait(&reads, began, 111).is_some_and(|read| read.time.is_some()), "it will be asked again");
    let again = reads.read_begins(INODE, 0..1, None, ms(112)).map(|(_, begun)| begun);
    let later = reads.read_begins(INODE, 8..9, None, ms(112)).map(|(_, begun)| begun);
    assert!(wait(&reads, began, 200).is_some_and(|read| read.time.is_none()), "it was");
    let times = ((ms(112), ms(210)), again.as_ref());
    assert_eq!(reads.answer(INODE, 0..1, Some(ends_at(5)), times, |_| {}), ShortRead::Taken);
    again.inspect(|again| reads.read_ends(INODE, again));
    assert!(wait(&reads, began, 211).is_some(), "the reader has to wake up");
    assert!(wait(&reads, began, 300).is_none(), "what came later is not waited for");
    assert!(later.is_some() && wait(&reads, None, 300).is_some());
}

#[test]
fn nothing_is_recorded_of_what_nobody_else_changes() {
    let reads = ShortReads::<()>::default();
    reads.changed(INODE, ms(1));
    assert!(!reads.is_used() && reads.read_begins(INODE, 0..1, None, ms(1)).is_none());
    assert!(reads.write_begins(INODE, 5, (0..1, [Some(0), None]), ms(1)).is_none());
    reads.begin(INODE, ms(1));
    reads.forget(INODE);
    assert!(!reads.is_used());
}

#[test]
fn pages_that_are_read_beside_a_write_are_known() {
    let reads = recorded();
    let begin = |pages: Range<u64>| reads.write_begins(INODE, pages.end * PAGE, (pages, [None, None]), ms(100));
    assert_eq!(read(&reads, 0..8, 8 * PAGE - 1, (90, 95)), ShortRead::Taken);
    let (one, other) = (begin(1..4).expect("it is recorded"), begin(3..5).expect("it is recorded"));
    reads.read_whole(INODE, 2..4, None, ms(110));
    assert_eq!(reads.overtaken(INODE, one), BTreeSet::from([2, 3]));
    reads.write_ends(INODE, one, (None, None), ms(120));
    reads.read_whole(INODE, 0..5, None, ms(130));
    assert_eq!(reads.overtaken(INODE, other), BTreeSet::from([3, 4]));
    assert!(reads.overtaken(INODE, one).is_empty());
}

#[test]
fn a_thread_reads_after_its_own_write_of_pages() {
    let thread = Thread::new(1);
    let cut = End { is_cut: true, ..ends_at(PAGE + 9) };
    let asked = |reader: Option<Thread>, change: fn(&ShortReads<()>)| {
        let reads = recorded();
        reads.changed(INODE, ms(99));
        let begun = reads.write_begins(INODE, PAGE + 9, (0..0, [None, Some(1)]), ms(100)).expect("it is recorded");
        reads.write_ends(INODE, begun, (thread, None), ms(110));
        change(&reads);
        let begun = reads.read_begins(INODE, 1..2, reader, ms(112)).map(|(_, begun)| begun);
        reads.answer(INODE, 1..2, Some(cut), ((ms(112), ms(113)), begun.as_ref()), |_| {})
    };
    assert_eq!(asked(thread, |_| {}), ShortRead::Taken, "the kernel has processed the reply before");
    assert_eq!(asked(Thread::new(2), |_| {}), ShortRead::AskedAgain, "it may not have");
    assert_eq!(asked(None, |_| {}), ShortRead::AskedAgain, "it may not have");
    assert_eq!(asked(thread, |reads| reads.changed(INODE, ms(111))), ShortRead::AskedAgain, "crossed since");
    assert_eq!(asked(thread, |reads| reads.changed(INODE, ms(112))), ShortRead::AskedAgain, "crossed since");
}
