//! What the check allows, and what it does not.

use super::*;
use crate::kernel::requests::{Access, Attributes, OpenFlags};
use crate::kernel::{Call, Handle, Value};

const UNLINK_ID: u64 = 10;

fn path(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

fn call(id: u64, call: Call, (begun_ms, ended_ms): (u64, u64), result: CallResult) -> Recorded {
    Recorded { returned: Some((ended_ms, result)), ..Recorded::begun(id, 0, call, begun_ms) }
}

fn made(id: u64, name: &str) -> [Recorded; 2] {
    let flags = OpenFlags { access: Access::Write, create: true, ..OpenFlags::default() };
    let handle = Handle(id);
    let open = Call::Open { path: path(name), flags, mode: 0o644, handle };
    [call(id, open, (0, 1), Ok(Value::Done)), call(id + 1, Call::Close { handle }, (2, 3), Ok(Value::Done))]
}

/// `stat` of a name, which tells of inode 2 with so many links.
fn stat(name: &str, times: (u64, u64), nlink: u32) -> Recorded {
    call(100, Call::Stat { path: path(name) }, times, Ok(Value::Attributes(told_of(nlink))))
}

fn told_of(nlink: u32) -> Attributes {
    Attributes {
        ino: 2,
        kind: Kind::Regular,
        mode: 0o644,
        nlink,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        atime: 7,
        mtime: 7,
        ctime: 7,
    }
}

/// Two files `f` (inode 2) and `g`.
fn two_files() -> History {
    let mut history = History::default();
    for recorded in made(1, "f").into_iter().chain(made(3, "g")) {
        history.check_round(&[recorded]).expect("files are made");
    }
    history.check_round(&[stat("f", (4, 5), 1)]).expect("it has one link");
    history
}

fn unlink(name: &str, times: (u64, u64)) -> Recorded {
    call(UNLINK_ID, Call::Unlink { path: path(name) }, times, Ok(Value::Done))
}

fn rename(from: &str, to: &str, times: (u64, u64)) -> Recorded {
    let call_ = Call::Rename { from: path(from), to: path(to), mode: RenameMode::Replace };
    call(UNLINK_ID, call_, times, Ok(Value::Done))
}

/// A directory `d` that client 0 has made, and that `by` has renamed to `e`. `is_open`: client 0 has `e/f` open.
fn renamed_directory(by: usize, is_open: bool) -> History {
    let mut history = History::default();
    let of = |client, recorded| Recorded { client, ..recorded };
    let mkdir = |id, name: &str| call(id, Call::Mkdir { path: path(name), mode: 0o755 }, (0, 1), Ok(Value::Done));
    let flags = OpenFlags { access: Access::Write, create: true, ..OpenFlags::default() };
    let file = vec!["d".to_owned(), "f".to_owned()];
    let open = Call::Open { path: file, flags, mode: 0o644, handle: Handle(3) };
    let close = Call::Close { handle: Handle(3) };
    let mut calls = vec![mkdir(1, "d"), mkdir(2, "a"), call(3, open, (2, 3), Ok(Value::Done))];
    calls.extend((!is_open).then(|| call(4, close, (4, 5), Ok(Value::Done))));
    calls.push(of(by, rename("d", "e", (11_000, 11_001))));
    for recorded in calls {
        history.check_round(&[recorded]).expect("the directory is made and renamed");
    }
    history
}

#[test]
fn the_kernel_refuses_a_rename_that_finds_a_directory_which_it_knows_by_its_former_name() {
    let stale = |client, from: &str, to: &[&str], begun_ms: u64| {
        let to = to.iter().map(|name| (*name).to_owned()).collect();
        let call_ = Call::Rename { from: path(from), to, mode: RenameMode::Replace };
        let stale = call(20, call_, (begun_ms, begun_ms + 1), Err(Errno::ESTALE));
        [Recorded { client, ..stale }]
    };
    let is_allowed = |mut history: History, round: [Recorded; 1]| history.check_round(&round).is_ok();
    let (late, early) = (11_010, 9_000);
    assert!(is_allowed(renamed_directory(1, false), stale(0, "e", &["a", "x"], late)));
    assert!(is_allowed(renamed_directory(1, true), stale(0, "e", &["a", "x"], early)), "something is open below");
    assert!(!is_allowed(renamed_directory(1, false), stale(0, "e", &["a", "x"], early)), "it holds a lease");
    assert!(!is_allowed(renamed_directory(0, false), stale(0, "e", &["a", "x"], late)), "its own rename");
    assert!(!is_allowed(renamed_directory(1, false), stale(0, "e", &["x"], late)), "within one directory");
    assert!(!is_allowed(renamed_directory(1, false), stale(0, "a", &["e", "x"], late)), "none of its names");
    assert!(!is_allowed(renamed_directory(1, false), stale(2, "e", &["a", "x"], late)), "that has not known it");
    let native = crate::system_calls::NATIVE;
    assert!(!is_allowed(renamed_directory(1, false), stale(native, "e", &["a", "x"], late)), "no kernel");
    let mut looked_at = renamed_directory(1, false);
    let told = Attributes { ino: 9, kind: Kind::Directory, ..told_of(2) };
    let stat = call(19, Call::Stat { path: path("e") }, (11_005, 11_006), Ok(Value::Attributes(told)));
    looked_at.check_round(&[stat]).expect("it is there");
    assert!(!is_allowed(looked_at, stale(0, "e", &["a", "x"], late)), "it knows it by its new name");
}

#[test]
fn a_stat_tells_of_no_link_beside_what_takes_the_last_name_away() {
    for takes_it in [unlink("f", (12, 18)), rename("g", "f", (12, 18)), unlink("f", (2, 30))] {
        two_files().check_round(&[takes_it.clone(), stat("f", (10, 20), 0)]).expect("its last name goes meanwhile");
        two_files().check_round(&[takes_it.clone(), stat("f", (10, 20), 1)]).expect("before it went");
        let mut history = two_files();
        history.check_round(&[takes_it, stat("f", (10, 20), 0)]).expect("its last name goes meanwhile");
        assert!(history.check_round(&[stat("f", (40, 50), 0)]).is_err(), "it is gone");
    }
}

#[test]
fn a_stat_tells_of_one_link_less_beside_what_takes_its_name_away() {
    let link = || call(11, Call::Link { from: path("f"), to: path("h") }, (6, 8), Ok(Value::Done));
    for takes_it in [unlink("f", (12, 18)), rename("g", "f", (12, 18))] {
        for nlink in [1, 2] {
            let round = [link(), takes_it.clone(), stat("f", (10, 20), nlink)];
            two_files().check_round(&round).expect("before it went, or after");
        }
        two_files().check_round(&[link(), takes_it, stat("f", (10, 20), 0)]).expect_err("it has the other name");
    }
    two_files().check_round(&[link(), unlink("h", (12, 18)), stat("f", (22, 24), 2)]).expect_err("h is gone");
}

/// Many calls that change nothing, of which any order leads to the same.
#[test]
fn orders_that_lead_to_the_same_are_tried_once() {
    let round: Vec<Recorded> = (0..8).map(|id| Recorded { id: 200 + id, ..stat("f", (10, 20), 1) }).collect();
    two_files().check_round(&round).expect("it has one link");
}

/// Of 14 calls that overlap with a wrong one there are 16,384 sets that may have been made before it.
#[test]
fn nothing_is_said_of_a_round_with_more_orders_than_are_tried() {
    let mut round: Vec<Recorded> = (0..14).map(|id| Recorded { id: 200 + id, ..stat("f", (10, 20), 1) }).collect();
    round.push(stat("f", (10, 20), 3));
    assert_eq!(two_files().check_round(&round), Ok(false));
}

#[test]
fn a_stat_tells_of_no_link_in_no_other_case() {
    let refused = |round: &[Recorded]| assert!(two_files().check_round(round).is_err(), "{round:?}");
    // Nothing takes a name away; it is another file's name; this one has another name by then; it gets one only.
    refused(&[stat("f", (10, 20), 0)]);
    refused(&[unlink("g", (12, 18)), stat("f", (10, 20), 0)]);
    refused(&[rename("f", "h", (12, 18)), stat("f", (10, 20), 0)]);
    refused(&[rename("f", "g", (12, 18)), stat("f", (10, 20), 0)]);
    let link = call(11, Call::Link { from: path("f"), to: path("h") }, (6, 8), Ok(Value::Done));
    refused(&[link, unlink("f", (12, 18)), stat("f", (10, 20), 0)]);
    // The removal had returned, or begins when the answer is there.
    refused(&[unlink("f", (6, 8)), stat("f", (10, 20), 0)]);
    refused(&[unlink("f", (22, 24)), stat("f", (10, 20), 0)]);
}

#[test]
fn a_stat_tells_of_no_link_beside_a_removal_of_which_nobody_knows_the_result() {
    let mut unknown = unlink("f", (6, 8));
    unknown.fate.is_unknown = true;
    let mut history = two_files();
    history.begin_loss(1);
    history.check_round(&[unknown]).expect("it may be made later");
    let mut settled = two_files();
    settled.states.clone_from(&history.states);
    history.check_round(&[stat("f", (10, 20), 0)]).expect("it is made meanwhile");
    assert!(history.check_round(&[stat("f", (30, 40), 0)]).is_err(), "it is gone");
    settled.settle(1, &BTreeSet::new());
    assert!(settled.check_round(&[stat("f", (10, 20), 0)]).is_err(), "it was made before, or never is");
}

#[test]
fn a_loss_that_settles_leaves_those_before_it_open_that_have_not() {
    let unknown = || {
        let mut history = two_files();
        let mut unknown = unlink("f", (6, 8));
        unknown.fate.is_unknown = true;
        history.begin_loss(1);
        history.check_round(&[unknown]).expect("its client has died");
        history
    };
    let stat = || [stat("f", (1000, 1010), 1)];
    let gone = || [call(101, Call::Stat { path: path("f") }, (2000, 2010), Err(Errno::ENOENT))];
    // Another client has lost bytes meanwhile.
    let mut history = unknown();
    history.settle(2, &BTreeSet::from([1]));
    history.check_round(&stat()).expect("it was not made yet");
    history.check_round(&gone()).expect("it is made now");
    let mut history = unknown();
    history.settle(2, &BTreeSet::new());
    history.check_round(&stat()).expect("it was not made");
    assert!(history.check_round(&gone()).is_err(), "and never is");
}

#[test]
fn a_program_that_was_told_of_a_failed_flush_is_not_told_by_the_next() {
    let mut history = two_files();
    let flags = OpenFlags { access: Access::Write, ..OpenFlags::default() };
    let handle = Handle(20);
    let open = Call::Open { path: path("f"), flags, mode: 0o644, handle };
    history.check_round(&[call(20, open, (6, 7), Ok(Value::Done))]).expect("it is there");
    let write = Call::Write { handle, data: vec![1; 5] };
    history.check_round(&[call(21, write, (8, 9), Ok(Value::Count(5)))]).expect("it is open");
    history.lose(0, None, 1);
    let fsync = || Call::Fsync { handle, data_only: false };
    // Its client has given it up, so that nobody knows what became of it.
    let mut failed = call(22, fsync(), (10, 11), Err(Errno::EIO));
    failed.fate.is_unknown = true;
    history.check_round(&[failed]).expect("it may fail");
    history.check_round(&[call(23, fsync(), (12, 13), Ok(Value::Done))]).expect("it was told");
    history.settle(9, &BTreeSet::new());
    history.check_round(&[stat("f", (14, 15), 1)]).expect("the bytes are lost");
}

#[test]
fn a_file_that_was_opened_before_its_session_ended_in_one_round_is_gone_without_a_name() {
    let opened = || {
        let mut history = two_files();
        let flags = OpenFlags { access: Access::Read, ..OpenFlags::default() };
        let open = Call::Open { path: path("f"), flags, mode: 0, handle: Handle(20) };
        let round = [call(20, open, (6, 7), Ok(Value::Done)), unlink("f", (8, 30))];
        history.check_round(&round).expect("it is opened, and removed");
        history
    };
    let fstat = || [call(21, Call::Fstat { handle: Handle(20) }, (40, 41), Err(Errno::ESTALE))];
    assert!(opened().check_round(&fstat()).is_err(), "it is open");
    let mut history = opened();
    history.session_over(0);
    history.check_round(&fstat()).expect("it is gone");
}

#[test]
fn bytes_that_are_lost_of_one_file_are_those_of_no_other() {
    // Nobody has told the number of `f` yet but the open.
    let mut history = History::default();
    for recorded in made(1, "f").into_iter().chain(made(3, "g")) {
        history.check_round(&[recorded]).expect("files are made");
    }
    let flags = OpenFlags { access: Access::Write, ..OpenFlags::default() };
    let handle = Handle(20);
    let open = Call::Open { path: path("f"), flags, mode: 0o644, handle };
    let opened = Recorded { opened: Some(2), ..call(20, open, (6, 7), Ok(Value::Done)) };
    history.check_round(&[opened]).expect("it is there");
    let write = Call::Write { handle, data: vec![1; 5] };
    history.check_round(&[call(21, write, (8, 9), Ok(Value::Count(5)))]).expect("it is open");
    history.lose(0, Some(3), 1);
    let other = Recorded { lost: vec![Some(3)], ..stat("f", (10, 11), 1) };
    assert!(history.check_round(&[other]).is_err(), "its bytes are not lost");
}

#[test]
fn an_open_opens_the_file_that_has_the_name() {
    let open = |number| {
        let call_ = Call::Open { path: path("f"), flags: OpenFlags::default(), mode: 0, handle: Handle(20) };
        Recorded { opened: Some(number), ..call(20, call_, (6, 7), Ok(Value::Done)) }
    };
    two_files().check_round(&[open(2)]).expect("that is its number");
    assert!(two_files().check_round(&[open(3)]).is_err(), "it is another file's");
}

/// Nine calls of which nobody knows the result lead to 512 states: what is left of these explains nothing for sure.
#[test]
fn nothing_is_said_once_more_states_were_possible_than_are_kept() {
    let wrong = || [stat("f", (90, 95), 3)];
    assert!(two_files().check_round(&wrong()).is_err(), "it has one link");
    let mut history = two_files();
    for file in 0..9 {
        let name = format!("x{file}");
        for recorded in made(10 + 2 * file, &name) {
            history.check_round(&[recorded]).expect("files are made");
        }
        let mut unknown = Recorded { id: 200 + file, ..unlink(&name, (6, 7)) };
        unknown.fate.is_unknown = true;
        assert_eq!(history.check_round(&[unknown]), Ok(true), "it may be made later");
    }
    history.settle(0, &BTreeSet::new());
    assert_eq!(history.check_round(&[stat("f", (10, 20), 1)]), Ok(true), "some state explains it");
    assert_eq!(history.check_round(&wrong()), Ok(false));
}

#[test]
fn a_stat_beside_a_write_that_makes_the_file_longer_may_tell_a_size_in_between() {
    let flags = OpenFlags { access: Access::Write, create: true, ..OpenFlags::default() };
    let open = Call::Open { path: path("f"), flags, mode: 0o644, handle: Handle(1) };
    let data = vec![7; 22];
    let write = Call::Pwrite { handle: Handle(1), offset: 4, data };
    let is_allowed = |(begun_ms, ended_ms), size| {
        let mut history = History::default();
        history.check_round(&[call(1, open.clone(), (0, 1), Ok(Value::Done))]).expect("it is made");
        let told = Attributes { size, ..told_of(1) };
        let stat = call(3, Call::Stat { path: path("f") }, (begun_ms, ended_ms), Ok(Value::Attributes(told)));
        let written = call(2, write.clone(), (10, 20), Ok(Value::Count(22)));
        history.check_round(&[written, stat]).is_ok()
    };
    for size in [0, 15, 26] {
        assert!(is_allowed((12, 15), size), "{size} while it is written");
    }
    assert!(!is_allowed((12, 15), 3) && !is_allowed((12, 15), 27), "no size on the way");
    assert!(!is_allowed((21, 22), 15) && !is_allowed((2, 3), 15), "it is not being written");
}

/// Its client's session ends, and the next one begins, beside a write of five bytes to `f`, an append or not.
fn written_beside_a_loss(append: bool) -> History {
    let mut history = two_files();
    let flags = OpenFlags { access: Access::Write, append, ..OpenFlags::default() };
    let handle = Handle(20);
    let open = Call::Open { path: path("f"), flags, mode: 0o644, handle };
    history.check_round(&[call(20, open, (6, 7), Ok(Value::Done))]).expect("it is there");
    history.lose(0, None, 1);
    history.begin_loss(2);
    let write = Call::Pwrite { handle, offset: 0, data: vec![1; 5] };
    let written = Recorded { lost: vec![None], ..call(21, write, (8, 9), Ok(Value::Count(5))) };
    history.check_round(&[written]).expect("it is open");
    history.settle(2, &BTreeSet::new());
    history
}

fn sees_size(history: &mut History, size: u64) -> bool {
    let told = Attributes { size, mtime: 9, ..told_of(1) };
    history.check_round(&[call(22, Call::Stat { path: path("f") }, (20, 21), Ok(Value::Attributes(told)))]).is_ok()
}

#[test]
fn what_is_written_in_the_round_of_a_loss_may_be_lost_by_it_or_by_the_next() {
    for append in [false, true] {
        let mut history = written_beside_a_loss(append);
        assert!(sees_size(&mut history, 0), "it is lost");
        assert!(!sees_size(&mut history, 5), "and stays so");
        let mut history = written_beside_a_loss(append);
        assert!(sees_size(&mut history, 5), "it came after the loss, or was not lost by that");
        assert!(!sees_size(&mut history, 0), "it is there");
        history.lose(0, None, 3);
        history.settle(3, &BTreeSet::new());
        assert!(sees_size(&mut history, 0), "it has come after the first loss, and is lost by the second");
    }
}

/// `link` of `f`, or of another name of it, to `z`.
fn link(to: &str, times: (u64, u64), result: CallResult) -> Recorded {
    call(11, Call::Link { from: path("f"), to: path(to) }, times, result)
}

fn ended(result: Result<(), Errno>) -> CallResult {
    result.map(|()| Value::Done)
}

#[test]
fn a_link_is_made_of_a_file_that_has_lost_the_name_meanwhile_if_it_has_another() {
    for takes_it in [unlink("f", (12, 18)), rename("g", "f", (12, 18))] {
        let linked = |result| {
            let mut history = two_files();
            history.check_round(&[link("h", (6, 8), ended(Ok(())))]).expect("it has two names");
            let taken = Recorded { id: 12, ..takes_it.clone() };
            history.check_round(&[taken, link("z", (10, 20), ended(result))]).map(|_| history)
        };
        let mut history = linked(Ok(())).expect("it is made, before or after");
        history.check_round(&[stat("z", (30, 40), 2)]).expect("of the file that had the name");
        assert!(linked(Err(Errno::EEXIST)).is_err(), "nothing has the name");
        let alone = |result| {
            let mut history = two_files();
            history.check_round(&[takes_it.clone(), link("z", (10, 20), ended(result))]).map(|_| history)
        };
        alone(Err(Errno::ENOENT)).expect("it is not made of a file without a name");
        alone(Ok(()))
            .expect("it was made before")
            .check_round(&[stat("z", (30, 40), 1)])
            .expect("that is its only name");
    }
    let refused = |round: &[Recorded]| assert!(two_files().check_round(round).is_err(), "{round:?}");
    refused(&[link("z", (10, 20), ended(Err(Errno::ENOENT)))]);
    refused(&[rename("f", "h", (12, 18)), unlink("g", (12, 18)), link("g", (10, 20), ended(Err(Errno::EPERM)))]);
    refused(&[unlink("f", (2, 8)), link("z", (10, 20), ended(Ok(())))]);
}

#[test]
fn a_kernel_may_count_the_name_out_by_which_it_has_found_what_another_client_links() {
    let other = |by| Recorded { id: 12, client: by, ..link("h", (9, 14), ended(Ok(()))) };
    let is_allowed = |by, takes_it: Recorded| {
        let round = [other(by), takes_it, link("z", (10, 20), ended(Err(Errno::ENOENT)))];
        let mut history = two_files();
        history.check_round(&round).is_ok_and(|_| history.check_round(&[stat("h", (30, 40), 1)]).is_ok())
    };
    assert!(is_allowed(1, rename("g", "f", (12, 18))));
    assert!(!is_allowed(0, rename("g", "f", (12, 18))), "it knows of its own link");
    assert!(!is_allowed(1, Recorded { client: 1, ..rename("g", "f", (12, 18)) }), "it counts none of another's out");
    assert!(!is_allowed(1, unlink("g", (12, 18))), "no name of it goes");
}

#[test]
fn a_name_is_found_as_it_was_while_a_change_of_its_client_has_not_returned() {
    let is_allowed = |by| {
        let gone = call(13, Call::Stat { path: path("f") }, (6, 8), Err(Errno::ENOENT));
        let taken = Recorded { id: 12, client: by, ..unlink("f", (4, 30)) };
        let mut history = two_files();
        history.check_round(&[link("h", (2, 3), ended(Ok(())))]).expect("it has two names");
        history.check_round(&[taken, gone, Recorded { id: 14, ..link("z", (10, 20), ended(Ok(()))) }]).is_ok()
    };
    assert!(is_allowed(0), "its kernel has not processed the reply");
    assert!(!is_allowed(1), "another client has seen that it is gone");
}

#[test]
fn a_link_of_which_nobody_knows_the_result_is_of_the_file_that_it_has_found() {
    let mut unknown = link("z", (6, 12), Err(Errno::EIO));
    unknown.fate.is_unknown = true;
    let mut history = two_files();
    history.begin_loss(1);
    history.check_round(&[link("h", (2, 3), ended(Ok(())))]).expect("it has two names");
    history.check_round(&[Recorded { id: 12, ..unlink("f", (7, 9)) }, Recorded { id: 13, ..unknown }]).expect("either");
    history.check_round(&[stat("h", (20, 21), 1)]).expect("it is not made yet");
    history.check_round(&[stat("z", (30, 31), 2)]).expect("it is made");
}
