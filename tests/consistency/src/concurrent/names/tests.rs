//! Histories, and whether some order of their calls explains them.

use super::*;
use crate::concurrent::history::Fault;
use crate::outcome::{Attributes, Reply};

fn holds(lines: &[(&str, u64, u64, Outcome)], faults: &[Fault]) -> bool {
    let done = lines.iter().map(|(line, begun, ended, outcome)| {
        let (who, call) = line.split_once(' ').expect("a worker and a call");
        let reply = Reply { outcome: outcome.clone(), begun: *begun, ended: *ended, wall_begun: 0, wall_ended: 0 };
        (who.parse().expect(who), call.parse().expect(call), reply)
    });
    check(&History::new(done.collect(), faults.to_vec())) == Ok(true)
}

fn failed(errno: Errno) -> Outcome {
    Outcome::Failed(errno.raw_os_error())
}

fn stat(inode: u64, links: u64) -> Outcome {
    Outcome::Attributes(Attributes { inode, is_directory: false, mode: 0, links, size: 0, mtime: 0 })
}

#[test]
fn a_name_that_always_exists_is_found() {
    let history = |found: Outcome| {
        vec![
            ("a0 open h0 r wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 open h1 t wronly creat", 3, 4, Outcome::Opened(2)),
            ("a0 rename t r", 10, 20, Outcome::Done),
            ("b0 open h0 r rdonly", 15, 25, found),
        ]
    };
    assert!(holds(&history(Outcome::Opened(1)), &[]) && holds(&history(Outcome::Opened(2)), &[]));
    assert!(!holds(&history(failed(Errno::NOENT)), &[]) && !holds(&history(failed(Errno::STALE)), &[]));
    let mut later = history(Outcome::Opened(2));
    later.push(("a1 open h0 r rdonly", 30, 35, Outcome::Opened(1)));
    assert!(!holds(&later, &[]));
}

#[test]
fn a_mount_looks_the_names_of_a_rename_up_one_after_the_other() {
    let history = |first: &'static str, told: Outcome| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 open h1 g wronly creat", 3, 4, Outcome::Opened(2)),
            (first, 10, 20, told),
            ("b0 rename f g", 12, 15, Outcome::Done),
            ("b0 stat g", 30, 31, stat(1, 1)),
        ]
    };
    // The file is found under its old name, then under the new one.
    assert!(holds(&history("a0 rename f g", Outcome::Done), &[]));
    assert!(holds(&history("a0 rename f g noreplace", failed(Errno::EXIST)), &[]));
    let mut native = history("n0 rename f g", Outcome::Done);
    assert!(holds(&native, &[]), "the one of the mount did nothing");
    native[3].0 = "n1 rename f g";
    assert!(!holds(&native, &[]), "a native client asks once");
    assert!(!holds(&history("a0 rename g f", Outcome::Done), &[]), "then the other rename found nothing");
    let mut apart = history("a0 rename f g", Outcome::Done);
    apart[3].1 = 21;
    apart[3].2 = 22;
    assert!(!holds(&apart, &[]), "they do not overlap");
}

#[test]
fn until_a_rename_returns_programs_of_its_mount_may_find_the_old_file() {
    let history = |who: &'static str, begun: u64, told: Outcome| {
        [
            ("a0 open h0 r wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 open h1 t wronly creat", 3, 4, Outcome::Opened(2)),
            ("a0 rename t r", 10, 20, Outcome::Done),
            ("b0 open h0 r rdonly", 11, 13, Outcome::Opened(2)),
            (who, begun, begun + 2, told),
        ]
    };
    for (call, told) in [
        ("a1 open h0 r rdonly", Outcome::Opened(1)),
        ("a1 stat r", stat(1, 1)),
        ("a1 stat t", stat(2, 1)),
        ("a1 open h0 t rdonly", Outcome::Opened(2)),
    ] {
        assert!(holds(&history(call, 15, told.clone()), &[]), "{call}");
        assert!(holds(&history(call, 19, told.clone()), &[]), "{call} as it returns");
        assert!(!holds(&history(call, 21, told.clone()), &[]), "{call} after the rename");
        let elsewhere = ["b1 open h0 r rdonly", "b1 stat r", "b1 stat t", "b1 open h0 t rdonly"];
        let elsewhere = elsewhere.into_iter().find(|other| other[2..] == call[2..]).expect("the same call");
        assert!(!holds(&history(elsewhere, 15, told), &[]), "{elsewhere}");
    }
    let late = history("a1 stat r", 15, stat(3, 1));
    assert!(!holds(&late, &[]), "no file that was never there");
    let mut again = history("a1 stat r", 17, stat(1, 1)).to_vec();
    again.insert(1, ("b0 open h1 u wronly creat", 2, 3, Outcome::Opened(3)));
    assert!(holds(&again, &[]));
    again.insert(5, ("b0 rename u r", 14, 15, Outcome::Done));
    assert!(!holds(&again, &[]), "its lease was recalled");
}

#[test]
fn until_a_removal_returns_programs_of_its_mount_may_find_the_name() {
    let history = |begun: u64, told: Outcome| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a1 open h1 f rdonly", 3, 4, Outcome::Opened(1)),
            ("a0 unlink f", 10, 20, Outcome::Done),
            ("b0 stat f", 11, 13, failed(Errno::NOENT)),
            ("a1 fstat h1", begun, begun + 2, told.clone()),
            ("a1 stat f", begun + 2, begun + 4, told),
        ]
    };
    assert!(holds(&history(14, stat(1, 1)), &[]));
    assert!(!holds(&history(21, stat(1, 1)), &[]));
}

#[test]
fn until_a_new_name_is_returned_programs_of_its_mount_may_not_find_it() {
    let history = |call: &'static str, told: Outcome, begun: u64| {
        [
            ("b0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            (call, 10, 20, told),
            ("b0 mkdir n", 11, 13, failed(Errno::EXIST)),
            ("a1 stat n", begun, begun + 2, failed(Errno::NOENT)),
            ("a1 open h0 n rdwr", begun + 3, begun + 5, failed(Errno::NOENT)),
        ]
    };
    for (call, told) in
        [("a0 mkdir n", Outcome::Done), ("a0 link f n", Outcome::Done), ("a0 open h0 n rdwr creat", Outcome::Opened(2))]
    {
        assert!(holds(&history(call, told.clone(), 14), &[]), "{call}");
        assert!(!holds(&history(call, told.clone(), 21), &[]), "{call} after it");
    }
}

#[test]
fn beside_a_rename_over_its_name_a_file_may_count_as_having_no_link() {
    let history = |linker: &'static str, renamer: &'static str, (begun, ended): (u64, u64)| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 open h1 t wronly creat", 3, 4, Outcome::Opened(2)),
            (linker, 5, 6, Outcome::Done),
            (renamer, begun, ended, Outcome::Done),
            ("a1 link f m", 15, 25, failed(Errno::NOENT)),
            ("a1 stat g", 30, 31, stat(1, 1)),
        ]
    };
    assert!(holds(&history("b0 link f g", "a0 rename t f", (10, 20)), &[]));
    assert!(holds(&history("n0 link f g", "a0 unlink f", (20, 28)), &[]));
    assert!(!holds(&history("a0 link f g", "a0 rename t f", (10, 20)), &[]), "this kernel knows of the other name");
    assert!(!holds(&history("b0 link f g", "b0 rename t f", (10, 20)), &[]), "it counts nothing");
    assert!(!holds(&history("b0 link f g", "a0 rename t f", (26, 28)), &[]), "they do not overlap");
    let mut native = history("b0 link f g", "a0 rename t f", (10, 20));
    native[4].0 = "n1 link f m";
    assert!(!holds(&native, &[]), "a native client asks");
}

#[test]
fn beside_a_removal_of_its_second_name_a_file_may_count_as_having_no_link() {
    let history = |linker: &'static str, remover: &'static str, (begun, ended): (u64, u64)| {
        vec![
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 open h1 t wronly creat", 3, 4, Outcome::Opened(2)),
            ("a0 link f g", 5, 6, Outcome::Done),
            (remover, begun, ended, Outcome::Done),
            (linker, 15, 25, failed(Errno::NOENT)),
            ("a1 stat f", 30, 31, stat(1, 1)),
        ]
    };
    for remover in ["a0 unlink g", "a0 rename t g"] {
        for (begun, ended) in [(10, 20), (20, 28), (16, 17)] {
            assert!(holds(&history("a1 link f m", remover, (begun, ended)), &[]), "{remover} {begun} to {ended}");
        }
        for (begun, ended) in [(10, 14), (26, 28)] {
            assert!(!holds(&history("a1 link f m", remover, (begun, ended)), &[]), "they do not overlap");
        }
        assert!(!holds(&history("n1 link f m", remover, (10, 20)), &[]), "a native client asks");
    }
    assert!(!holds(&history("a1 link f m", "b0 unlink g", (10, 20)), &[]), "this kernel counts nothing");
    assert!(!holds(&history("a1 link f m", "n0 unlink g", (10, 20)), &[]), "this kernel counts nothing");
    assert!(!holds(&history("a1 link f m", "a0 unlink t", (10, 20)), &[]), "a name of another file");
    assert!(!holds(&history("a1 link t m", "a0 unlink g", (10, 20)), &[]), "of another file than the link's");
    let mut moved = history("a1 link f m", "a0 rename g h", (10, 20));
    moved[5].3 = stat(1, 2);
    assert!(!holds(&moved, &[]), "it keeps two names");
    let mut third = history("a1 link f m", "a0 unlink g", (10, 20));
    third.insert(3, ("a0 link f h", 7, 8, Outcome::Done));
    third[6].3 = stat(1, 2);
    assert!(!holds(&third, &[]), "one more name is left than counted out");
    third.insert(4, ("a0 link f i", 8, 9, Outcome::Done));
    third.insert(6, ("a2 unlink h", 11, 21, Outcome::Done));
    assert!(holds(&third, &[]), "two are left, and two counted out");
    let mut failed_removal = history("a1 link f m", "a0 unlink g", (10, 20));
    failed_removal[3].3 = failed(Errno::NOENT);
    failed_removal.insert(4, ("b0 unlink g", 12, 13, Outcome::Done));
    assert!(!holds(&failed_removal, &[]), "the kernel counts none out for a removal that failed");
}

#[test]
fn the_number_of_an_inode_is_not_used_again() {
    let history = [
        ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
        ("a0 unlink f", 3, 4, Outcome::Done),
        ("b0 open h0 f wronly creat", 5, 6, Outcome::Opened(1)),
    ];
    assert!(!holds(&history, &[]));
}

#[test]
fn one_of_two_exclusive_creates_makes_the_file() {
    let history = |second: Outcome| {
        [
            ("a0 open h0 f wronly creat excl", 1, 10, Outcome::Opened(1)),
            ("b0 open h0 f wronly creat excl", 2, 9, second),
        ]
    };
    assert!(holds(&history(failed(Errno::EXIST)), &[]) && !holds(&history(Outcome::Opened(2)), &[]));
}

#[test]
fn the_kernel_of_a_killed_mount_may_show_what_was_there_until_it_is_mounted_again() {
    let kill = [Fault { mount: 'a', begun: 10, ended: 20, is_kill: true }];
    let history = |begun: u64, told: Outcome| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("b0 unlink f", 11, 12, Outcome::Done),
            ("a0 stat f", begun, begun + 1, told),
        ]
    };
    assert!(holds(&history(14, stat(1, 1)), &kill));
    assert!(!holds(&history(21, stat(1, 1)), &kill) && !holds(&history(14, stat(1, 1)), &[]));
    assert!(!holds(&history(8, failed(Errno::NOENT)), &kill), "before");
}

#[test]
fn stat_looks_up_first_and_asks_later() {
    let history = |told: Outcome| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 unlink f", 10, 20, Outcome::Done),
            ("b0 stat f", 5, 25, told),
        ]
    };
    for told in [stat(1, 1), stat(1, 0), failed(Errno::NOENT)] {
        assert!(holds(&history(told.clone()), &[]), "{told}");
    }
    assert!(!holds(&history(stat(2, 1)), &[]) && !holds(&history(stat(1, 2)), &[]));
}

#[test]
fn a_call_that_died_with_its_mount_may_have_been_made_or_not() {
    let kill = [Fault { mount: 'a', begun: 10, ended: 20, is_kill: true }];
    let history = |told: Outcome| {
        [
            ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
            ("a0 unlink f", 9, 11, failed(Errno::NOTCONN)),
            ("b0 stat f", 30, 35, told),
        ]
    };
    for told in [stat(1, 1), failed(Errno::NOENT)] {
        assert!(holds(&history(told.clone()), &kill), "{told}");
    }
    assert!(!holds(&history(stat(1, 1)), &[]));
}
