//! Rules of names and attributes.

use crate::check;
use crate::script::{BOTH, Builder, CREATE, Change, LONG, READ, path};
use weft_sim::kernel::Call;
use weft_sim::kernel::requests::{Notification, RenameMode};

#[test]
fn a_name_is_asked_for_while_it_is_not_valid() {
    check(&Builder::new().create_outside("a", vec![1; 10]).stat(0, "a").stat(0, "a").stat(0, "b").build());
    check(
        &Builder::new()
            .create_outside("a", vec![1; 10])
            .timeouts(LONG, LONG)
            .stat(0, "a")
            .stat(0, "a")
            .outside(Change::Unlink { parent: 1, name: "a".into() })
            .stat(0, "a")
            .build(),
    );
}

#[test]
fn a_timeout_moves_with_its_name() {
    // Only `a` is valid for long when it is renamed over `b`, which was not.
    let events = check(
        &Builder::new()
            .create_outside("a", vec![1; 10])
            .create_outside("b", vec![2; 20])
            .stat(0, "b")
            .timeouts(LONG, LONG)
            .stat(0, "a")
            .timeouts(0, 0)
            .rename(0, "a", "b", RenameMode::Replace)
            .outside(Change::Unlink { parent: 1, name: "b".into() })
            .stat(0, "b")
            .build(),
    );
    let last = events.last().unwrap();
    assert!(last.requests.iter().all(|request| !request.contains("Lookup")), "the stale name is not asked for");
}

#[test]
fn three_modes_of_rename() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        for timeout in [0, LONG] {
            check(
                &Builder::new()
                    .timeouts(timeout, timeout)
                    .create_outside("a", vec![1; 10])
                    .create_outside("b", vec![2; 20])
                    .outside(Change::Mkdir { parent: 1, name: "d".into() })
                    .stat(0, "a")
                    .stat(0, "b")
                    .rename(0, "a", "b", mode)
                    .stat(0, "a")
                    .stat(0, "b")
                    .rename(0, "b", "d/c", mode)
                    .stat(0, "d/c")
                    .rename(0, "d/c", "d/c", mode)
                    .stat(0, "d/c")
                    .rename(0, "d", "e", mode)
                    .stat(0, "e/c")
                    .rename(0, "e", "e/f", mode)
                    .build(),
            );
        }
    }
}

#[test]
fn a_removal_takes_one_link_also_from_a_count_that_was_told_after_it() {
    for by_rename in [false, true] {
        let link = |from: &str, to: &str| Call::Link { from: path(from), to: path(to) };
        let script = Builder::new()
            .create_outside("a", vec![1; 10])
            .create_outside("other", vec![2; 10])
            .timeouts(LONG, 0)
            .stat(0, "other")
            .call(0, link("a", "b"))
            .timeouts(LONG, LONG)
            .stat(0, "b")
            .timeouts(LONG, 0)
            .invalidate(2, -1, 0);
        // The server has removed the name when it is asked for the attributes.
        let script = if by_rename {
            script.hold("rename").rename(0, "other", "a", RenameMode::Replace)
        } else {
            script.hold("unlink").call(0, Call::Unlink { path: path("a") })
        };
        let script = script
            .timeouts(LONG, LONG)
            .stat(1, "b")
            .release()
            .call(1, Call::CountLinks { path: path("b") })
            .call(1, link("b", "c"))
            .stat(1, "b")
            .call(1, Call::CountLinks { path: path("b") })
            .call(1, link("b", "c"));
        check(&script.build());
    }
}

#[test]
fn negative_names_have_a_timeout_of_their_own() {
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .outside(Change::Negative { entry_ms: Some(LONG) })
            .stat(0, "a")
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .open(0, "a", READ, 1)
            .open(0, "a", CREATE, 1)
            .stat(0, "b")
            .open(0, "b", CREATE, 2)
            .stat(0, "b")
            .call(0, Call::Mkdir { path: path("c"), mode: 0o755 })
            .stat(0, "c/x")
            .stat(0, "c/x")
            .build(),
    );
}

#[test]
fn changes_of_names() {
    for timeout in [0, LONG] {
        check(
            &Builder::new()
                .timeouts(timeout, timeout)
                .call(0, Call::Mkdir { path: path("d"), mode: 0o755 })
                .call(0, Call::Mkdir { path: path("d"), mode: 0o755 })
                .open(0, "d/a", CREATE, 1)
                .call(0, Call::Link { from: path("d/a"), to: path("b") })
                .stat(0, "b")
                .call(0, Call::Unlink { path: path("d/a") })
                .stat(0, "d/a")
                .fstat(0, 1)
                .stat(0, "b")
                .call(0, Call::Rmdir { path: path("b") })
                .call(0, Call::Unlink { path: path("d") })
                .call(0, Call::Rmdir { path: path("d") })
                .stat(0, "d")
                .call(0, Call::Unlink { path: path("b") })
                .fstat(0, 1)
                .close(0, 1)
                .stat(0, "b")
                .build(),
        );
    }
}

#[test]
fn an_unlink_that_finds_nothing_drops_the_name() {
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .create_outside("b", vec![1; 10])
            .stat(0, "a")
            .stat(0, "b")
            .outside(Change::Unlink { parent: 1, name: "a".into() })
            .call(0, Call::Unlink { path: path("a") })
            .stat(0, "a")
            .outside(Change::Unlink { parent: 1, name: "b".into() })
            .rename(0, "b", "c", RenameMode::Replace)
            .stat(0, "b")
            .build(),
    );
}

#[test]
fn an_open_that_is_stale_is_repeated_once() {
    use crate::script::Fate;
    use weft_sim::kernel::requests::Errno;
    for twice in [false, true] {
        let mut script = Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .outside(Change::Unlink { parent: 1, name: "a".into() })
            .create_outside("a", vec![2; 10])
            .fate("open", Fate::Fail(Errno::ESTALE));
        if twice {
            script = script.fate("open", Fate::Fail(Errno::ESTALE));
        }
        check(&script.open(0, "a", READ, 1).stat(0, "a").build());
    }
}

#[test]
fn an_open_carries_only_the_inode() {
    // The name is another file's by now; the kernel does not see it.
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .outside(Change::Unlink { parent: 1, name: "a".into() })
            .create_outside("a", vec![2; 10])
            .open(0, "a", READ, 1)
            .pread(0, 1, 0, 5)
            .build(),
    );
}

#[test]
fn an_invalidated_name_is_looked_up_and_an_expired_one_asked_for() {
    for expire_only in [false, true] {
        for negative in [false, true] {
            let mut script = Builder::new().timeouts(LONG, LONG).outside(Change::Negative { entry_ms: Some(LONG) });
            if !negative {
                script = script.create_outside("a", vec![1; 10]);
            }
            check(
                &script
                    .stat(0, "a")
                    .invalidate_entry(1, "a", expire_only)
                    .stat(0, "a")
                    .stat(0, "a")
                    .invalidate_entry(1, "b", expire_only)
                    .invalidate_entry(7, "a", expire_only)
                    .build(),
            );
        }
    }
}

#[test]
fn the_epoch_makes_all_names_old_and_covers_lookups_in_flight() {
    let events = check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .notify(Notification::IncrementEpoch)
            .stat(0, "a")
            .stat(0, "a")
            .create_outside("b", vec![1; 10])
            .hold("lookup")
            .stat(0, "b")
            .notify(Notification::IncrementEpoch)
            .release()
            .stat(0, "b")
            .build(),
    );
    assert!(events.last().unwrap().requests.iter().any(|request| request.contains("Lookup")));
}

#[test]
fn an_invalidation_waits_for_a_lookup_in_flight() {
    let events = check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .hold("lookup")
            .stat(0, "a")
            .outside(Change::Unlink { parent: 1, name: "a".into() })
            .invalidate_entry(1, "a", false)
            .release()
            .stat(0, "a")
            .build(),
    );
    assert!(events[5].notified.is_empty() && !events[6].notified.is_empty(), "it waits for the lookup's lock");
    assert!(!events[7].requests.is_empty(), "and then drops what the lookup found");
}

/// The name is asked for, and the answer is on its way, when it is invalidated.
fn revalidation_in_flight(expire_only: bool) -> Builder {
    Builder::new()
        .create_outside("a", vec![1; 10])
        .stat(0, "a")
        .timeouts(LONG, LONG)
        .hold("lookup")
        .stat(0, "a")
        .outside(Change::Unlink { parent: 1, name: "a".into() })
        .invalidate_entry(1, "a", expire_only)
        .release()
        .stat(0, "a")
}

#[test]
fn a_revalidation_in_flight_revives_a_name_that_was_only_expired() {
    let asks_again = |expire_only| {
        let events = check(&revalidation_in_flight(expire_only).build());
        assert!(!events[6].notified.is_empty(), "a revalidation holds no lock");
        !events.last().unwrap().requests.is_empty()
    };
    assert!(asks_again(false) && !asks_again(true));
}

#[test]
fn an_invalidation_waits_for_the_lock_of_the_directory() {
    let events = check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .hold("create")
            .open(0, "b", CREATE, 1)
            .invalidate_entry(1, "a", false)
            .stat(1, "a")
            .stat(2, "c")
            .notify(Notification::IncrementEpoch)
            .release()
            .stat(0, "a")
            .build(),
    );
    let waits = events.iter().position(|events| !events.notified.is_empty());
    assert_eq!(waits, Some(8), "only the epoch does not wait");
}

#[test]
fn a_name_that_is_deleted_is_gone_also_for_who_has_it_open() {
    let delete = |child| Notification::Delete { parent: 1, child, name: "a".into() };
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", vec![1; 10])
            .open(0, "a", READ, 1)
            .notify(delete(9))
            .stat(0, "a")
            .notify(delete(2))
            .fstat(0, 1)
            .stat(0, "a")
            .close(0, 1)
            .build(),
    );
}

#[test]
fn attributes_in_flight_do_not_count_after_an_invalidation() {
    let events = check(
        &Builder::new()
            .timeouts(LONG, 0)
            .create_outside("a", vec![1; 10])
            .stat(0, "a")
            .timeouts(LONG, LONG)
            .hold("getattr")
            .stat(0, "a")
            .outside(Change::Write { node: 2, offset: 0, data: vec![2; 100] })
            .invalidate(2, -1, 0)
            .release()
            .stat(0, "a")
            .stat(0, "a")
            .build(),
    );
    let asked = |events: &crate::trace::Events| events.requests.len();
    assert_eq!(events.iter().rev().take(2).map(asked).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn chmod_and_truncate() {
    for timeout in [0, LONG] {
        check(
            &Builder::new()
                .timeouts(timeout, timeout)
                .create_outside("a", vec![1; 100])
                .outside(Change::Mkdir { parent: 1, name: "d".into() })
                .call(0, Call::Chmod { path: path("a"), mode: 0o600 })
                .stat(0, "a")
                .call(0, Call::Chmod { path: path("d"), mode: 0o700 })
                .stat(0, "d")
                .call(0, Call::Truncate { path: path("a"), size: 50 })
                .stat(0, "a")
                .open(0, "a", BOTH, 1)
                .call(0, Call::Ftruncate { handle: weft_sim::kernel::Handle(1), size: 5000 })
                .fstat(0, 1)
                .close(0, 1)
                .build(),
        );
    }
}

#[test]
fn a_directory_that_moved_outside_is_found_under_its_new_name() {
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .outside(Change::Mkdir { parent: 1, name: "d".into() })
            .outside(Change::Mkdir { parent: 1, name: "e".into() })
            .outside(Change::Create { parent: 2, name: "x".into(), content: vec![1] })
            .stat(0, "d/x")
            .outside(Change::Rename { parent: 1, name: "d".into(), new_parent: 3, new_name: "f".into() })
            .stat(0, "e/f/x")
            .stat(0, "d")
            .build(),
    );
}
