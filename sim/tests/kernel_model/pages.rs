//! Rules of pages: reads, readahead, writes, sizes.

use crate::script::{BOTH, Builder, CONFIG, CREATE, Change, Fate, LONG, READ, path};
use crate::{check, possible_runs};
use weft_sim::kernel::requests::{Access, Errno, OpenFlags};
use weft_sim::kernel::{Call, Config, Handle, Value};

const PAGE: u64 = 4096;

fn bytes(count: u64, value: u8) -> Vec<u8> {
    vec![value; count as usize]
}

/// A file `a` of this size, open for both, with everything valid for long.
fn opened(size: u64) -> Builder {
    opened_with(CONFIG, size)
}

fn opened_with(config: Config, size: u64) -> Builder {
    Builder::with(config).timeouts(LONG, LONG).create_outside("a", bytes(size, 1)).open(0, "a", BOTH, 1)
}

fn opens(direct_io: bool, keep_cache: bool) -> Change {
    Change::Opens { direct_io, keep_cache, cache_dir: false, parallel: false, passthrough: false }
}

#[test]
fn a_sequential_reader_is_read_ahead_for() {
    for step in [1000, PAGE, 3 * PAGE] {
        let mut script = opened(30 * PAGE);
        for at in 0..30 * PAGE / step {
            script = script.pread(0, 1, at * step, step);
        }
        check(&script.pread(0, 1, 30 * PAGE, 10).build());
    }
}

#[test]
fn a_reader_that_jumps_gets_what_it_asks_for() {
    let mut script = opened(64 * PAGE);
    for at in [40, 3, 20, 21, 5, 6, 7, 8, 60, 63, 0, 33] {
        script = script.pread(0, 1, at * PAGE + 100, PAGE);
    }
    check(&script.build());
}

#[test]
fn all_pages_are_read_without_background_requests_and_readahead() {
    for (async_read, readahead) in [(false, 4 * 4096), (true, 0), (false, 0)] {
        let config = Config { async_read, max_readahead_bytes: readahead, ..CONFIG };
        check(&opened_with(config, 10 * PAGE).pread(0, 1, 0, 6 * PAGE).pread(0, 1, 100, 10 * PAGE).build());
    }
}

#[test]
fn an_open_drops_pages_or_keeps_them() {
    for keep in [false, true] {
        check(
            &opened(3 * PAGE)
                .pread(0, 1, 0, 3 * PAGE)
                .outside(Change::Write { node: 2, offset: 0, data: bytes(3 * PAGE, 2) })
                .outside(opens(false, keep))
                .open(0, "a", READ, 2)
                .pread(0, 2, 0, 100)
                .close(0, 2)
                .build(),
        );
    }
}

#[test]
fn a_short_reply_shrinks_the_file() {
    let events = check(
        &opened(6 * PAGE)
            .fate("read", Fate::Short(5000))
            .pread(0, 1, 0, 2 * PAGE)
            .fstat(0, 1)
            .pread(0, 1, 0, 6 * PAGE)
            .pread(0, 1, 5 * PAGE, 100)
            .fstat(0, 1)
            .build(),
    );
    assert_eq!(events[4].returned[0].1, Ok(Value::Data(bytes(5000, 1))));
}

#[test]
fn a_short_reply_does_not_count_after_a_change() {
    // The size was told anew while the reply was on its way.
    for offset in [-1, 10 * PAGE as i64] {
        check(
            &opened(6 * PAGE)
                .fate("read", Fate::Short(5000))
                .pread(0, 1, 0, PAGE)
                .outside(Change::Truncate { node: 2, size: 5000 })
                .hold("read")
                .pread(0, 1, 0, 6 * PAGE)
                .outside(Change::Truncate { node: 2, size: 6 * PAGE })
                .invalidate(2, offset, 0)
                .release()
                .release()
                .fstat(0, 1)
                .pread(0, 1, 0, 6 * PAGE)
                .build(),
        );
    }
}

#[test]
fn an_invalidation_waits_for_pages_that_are_being_read() {
    let script = opened(8 * PAGE)
        .hold("read")
        .pread(0, 1, 0, 100)
        .invalidate(2, -1, 0)
        .invalidate(2, 6 * PAGE as i64, 100)
        .invalidate(2, 0, 0)
        .outside(Change::Write { node: 2, offset: 0, data: bytes(8 * PAGE, 2) })
        .release()
        .pread(0, 1, 0, 100)
        .build();
    let events = check(&script);
    let count = |step: usize| events[step].notified.len();
    assert_eq!([count(5), count(6), count(7), count(9)], [1, 1, 0, 1]);
    // The notification may get the page first; the reader then asks for it again.
    let requests: Vec<usize> = possible_runs(&script).iter().map(|run| run[9].requests.len()).collect();
    assert!(requests.contains(&0) && requests.contains(&1), "{requests:?}");
}

#[test]
fn several_readers_wait_for_one_request() {
    check(
        &opened(8 * PAGE)
            .hold("read")
            .pread(0, 1, 0, 100)
            .pread(1, 1, 50, 100)
            .pread(2, 1, PAGE, 100)
            .release()
            .build(),
    );
}

#[test]
fn a_page_whose_readahead_failed_is_read_alone() {
    for both in [false, true] {
        let mut script = opened(8 * PAGE).fate("read", Fate::Fail(Errno::EIO));
        if both {
            script = script.fate("read", Fate::Fail(Errno::ENOENT));
        }
        check(&script.pread(0, 1, 0, 2 * PAGE).pread(0, 1, 0, 2 * PAGE).fstat(0, 1).build());
    }
}

#[test]
fn writes_go_through() {
    check(
        &opened(3 * PAGE)
            .pwrite(0, 1, 0, bytes(100, 2))
            .pread(0, 1, 0, 200)
            .pwrite(0, 1, PAGE - 10, bytes(3 * PAGE, 3))
            .fstat(0, 1)
            .pread(0, 1, 0, 5 * PAGE)
            .pwrite(0, 1, 10 * PAGE, bytes(10 * PAGE, 4))
            .pread(0, 1, 9 * PAGE, 3 * PAGE)
            .fstat(0, 1)
            .pwrite(0, 1, 0, Vec::new())
            .build(),
    );
}

#[test]
fn a_write_is_seen_while_it_is_in_flight_if_its_page_is_uptodate() {
    for cached in [false, true] {
        let mut script = opened(2 * PAGE);
        if cached {
            script = script.pread(0, 1, 0, 100);
        }
        check(
            &script
                .hold("write")
                .pwrite(0, 1, 10, bytes(20, 2))
                .pread(1, 1, 0, 100)
                .pwrite(2, 1, 100, bytes(10, 3))
                .fstat(3, 1)
                .release()
                .pread(0, 1, 0, 200)
                .build(),
        );
    }
}

#[test]
fn a_write_that_fails_or_is_short_leaves_no_good_pages() {
    for fate in [Fate::Fail(Errno::ENOSPC), Fate::Short(5000), Fate::Short(0)] {
        check(
            &opened(2 * PAGE)
                .pread(0, 1, 0, 2 * PAGE)
                .fate("write", fate)
                .pwrite(0, 1, 100, bytes(3 * PAGE, 2))
                .fstat(0, 1)
                .pread(0, 1, 0, 5 * PAGE)
                .build(),
        );
    }
}

#[test]
fn sizes_told_while_a_file_grows_do_not_count() {
    check(
        &Builder::new()
            .timeouts(LONG, 0)
            .create_outside("a", bytes(100, 1))
            .open(0, "a", BOTH, 1)
            .hold("getattr")
            .fstat(1, 1)
            .hold("write")
            .pwrite(0, 1, 100, bytes(PAGE, 2))
            .fstat(2, 1)
            .release()
            .release()
            .pread(0, 1, 0, 5000)
            .build(),
    );
}

#[test]
fn appends_take_the_size_that_is_known_here() {
    let append = OpenFlags { append: true, ..BOTH };
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", bytes(100, 1))
            .open(0, "a", append, 1)
            .outside(Change::Write { node: 2, offset: 100, data: bytes(50, 2) })
            .call(0, Call::Write { handle: Handle(1), data: bytes(10, 3) })
            .call(0, Call::Write { handle: Handle(1), data: bytes(10, 4) })
            .pwrite(0, 1, 0, bytes(10, 5))
            .fstat(0, 1)
            .call(0, Call::Read { handle: Handle(1), size: 10 })
            .pread(0, 1, 0, 500)
            .build(),
    );
}

#[test]
fn truncations_drop_what_is_cut() {
    for truncate in [100, PAGE + 100, 5 * PAGE] {
        check(
            &opened(3 * PAGE)
                .pread(0, 1, 0, 3 * PAGE)
                .call(0, Call::Ftruncate { handle: Handle(1), size: truncate })
                .pread(0, 1, 0, 6 * PAGE)
                .call(0, Call::Truncate { path: path("a"), size: 3 * PAGE })
                .pread(0, 1, 0, 6 * PAGE)
                .fstat(0, 1)
                .build(),
        );
    }
}

#[test]
fn a_truncating_open() {
    for atomic_o_trunc in [false, true] {
        let truncate = OpenFlags { truncate: true, ..BOTH };
        check(
            &opened_with(Config { atomic_o_trunc, ..CONFIG }, 3 * PAGE)
                .pread(0, 1, 0, 3 * PAGE)
                .open(0, "a", truncate, 2)
                .fstat(0, 1)
                .pread(0, 1, 0, 100)
                .open(0, "b", OpenFlags { truncate: true, ..CREATE }, 3)
                .open(0, "b", OpenFlags { truncate: true, ..CREATE }, 4)
                .build(),
        );
    }
}

#[test]
fn another_size_or_time_drops_pages_if_agreed() {
    for (auto, explicit) in [(true, false), (false, true), (false, false)] {
        let config = Config { auto_inval_data: auto, explicit_inval_data: explicit, ..CONFIG };
        for grow in [false, true] {
            let change = if grow {
                Change::Truncate { node: 2, size: 4 * PAGE }
            } else {
                Change::Write { node: 2, offset: 0, data: bytes(10, 2) }
            };
            check(
                &Builder::with(config)
                    .timeouts(LONG, 0)
                    .create_outside("a", bytes(3 * PAGE, 1))
                    .open(0, "a", BOTH, 1)
                    .pread(0, 1, 0, 3 * PAGE)
                    .outside(change)
                    .fstat(0, 1)
                    .pread(0, 1, 0, 100)
                    .build(),
            );
        }
    }
}

#[test]
fn a_size_that_shrinks_outside_waits_for_pages_in_flight() {
    check(
        &Builder::new()
            .timeouts(LONG, 0)
            .create_outside("a", bytes(4 * PAGE, 1))
            .open(0, "a", BOTH, 1)
            .hold("read")
            .pread(0, 1, 0, 100)
            .outside(Change::Truncate { node: 2, size: 100 })
            .fstat(1, 1)
            .release()
            .pread(0, 1, 0, 4 * PAGE)
            .build(),
    );
}

#[test]
fn direct_files_keep_no_pages() {
    check(
        &Builder::new()
            .timeouts(LONG, LONG)
            .create_outside("a", bytes(20 * PAGE, 1))
            .outside(opens(true, false))
            .open(0, "a", BOTH, 1)
            .pread(0, 1, 0, 100)
            .pread(0, 1, 0, 18 * PAGE)
            .pwrite(0, 1, 50, bytes(100, 2))
            .pwrite(0, 1, 19 * PAGE, bytes(10 * PAGE, 3))
            .fstat(0, 1)
            .pread(0, 1, 40 * PAGE, 10)
            .fate("read", Fate::Short(10))
            .pread(0, 1, 0, 100)
            .fstat(0, 1)
            .build(),
    );
}

#[test]
fn a_direct_and_a_cached_file_share_the_pages() {
    check(
        &opened(4 * PAGE)
            .pread(0, 1, 0, 4 * PAGE)
            .outside(opens(true, true))
            .open(0, "a", BOTH, 2)
            .pwrite(0, 2, 10, bytes(20, 2))
            .pread(0, 1, 0, 100)
            .pread(0, 1, PAGE, 100)
            .hold("read")
            .outside(Change::Write { node: 2, offset: 0, data: bytes(4 * PAGE, 3) })
            .invalidate(2, 0, 0)
            .pread(0, 1, 0, 100)
            .release()
            .pwrite(1, 2, 0, bytes(10, 4))
            .pread(0, 1, 0, 100)
            .build(),
    );
}

#[test]
fn parallel_direct_writes() {
    for parallel in [false, true] {
        for cached in [false, true] {
            let mut script = Builder::new().timeouts(LONG, LONG).create_outside("a", bytes(4 * PAGE, 1));
            if cached {
                script = script.open(0, "a", READ, 2);
            }
            check(
                &script
                    .outside(Change::Opens {
                        direct_io: true,
                        keep_cache: false,
                        cache_dir: false,
                        parallel,
                        passthrough: false,
                    })
                    .open(0, "a", BOTH, 1)
                    .hold("write")
                    .hold("write")
                    .pwrite(0, 1, 0, bytes(10, 2))
                    .pwrite(1, 1, PAGE, bytes(10, 3))
                    .pwrite(2, 1, 4 * PAGE, bytes(10, 4))
                    .outside(opens(false, false))
                    .open(3, "a", READ, 3)
                    .release()
                    .release()
                    .build(),
            );
        }
    }
}

#[test]
fn o_direct_on_a_cached_file() {
    let direct = OpenFlags { direct: true, ..BOTH };
    for async_dio in [false, true] {
        check(
            &Builder::with(Config { async_dio, ..CONFIG })
                .timeouts(LONG, LONG)
                .create_outside("a", bytes(20 * PAGE, 1))
                .open(0, "a", direct, 1)
                .outside(opens(false, true))
                .open(0, "a", BOTH, 2)
                .pread(0, 2, 0, 2 * PAGE)
                .pwrite(0, 1, 0, bytes(PAGE, 2))
                .pread(0, 2, 0, 100)
                .pread(0, 1, 0, 18 * PAGE)
                .pread(0, 1, 19 * PAGE, 10 * PAGE)
                .pwrite(0, 1, 19 * PAGE, bytes(9 * PAGE, 3))
                .fstat(0, 1)
                .pread(0, 1, 40 * PAGE, PAGE)
                .build(),
        );
    }
}

#[test]
fn a_release_waits_for_pages_in_flight() {
    check(
        &opened(8 * PAGE)
            .hold("read")
            .pread(0, 1, 0, 100)
            .release()
            .hold("read")
            .pread(0, 1, PAGE, 100)
            .close(0, 1)
            .release()
            .stat(0, "a")
            .build(),
    );
}

#[test]
fn an_fsync_is_told_of_a_page_that_an_invalidation_could_not_write_back() {
    for call in [Call::Msync { mapping: Handle(1) }, Call::Fsync { handle: Handle(1), data_only: false }] {
        let events = check(
            &opened(PAGE)
                .map(0, 1, 1)
                .store(0, 1, 0, bytes(10, 2))
                .fate("write", Fate::HoldFailure(Errno::EIO))
                .invalidate(2, 0, 0)
                .call(0, call.clone())
                .release()
                .call(0, call)
                .build(),
        );
        let told: Vec<_> =
            events.iter().flat_map(|events| &events.returned).map(|(_, result)| result.is_err()).collect();
        assert_eq!(told[told.len() - 2..], [true, false]);
    }
}

#[test]
fn only_a_reader_may_read() {
    let write_only = OpenFlags { access: Access::Write, ..READ };
    check(
        &opened(100)
            .open(0, "a", write_only, 2)
            .pread(0, 2, 0, 10)
            .open(0, "a", READ, 3)
            .pwrite(0, 3, 0, bytes(10, 2))
            .call(0, Call::Ftruncate { handle: Handle(3), size: 0 })
            .call(0, Call::Fsync { handle: Handle(2), data_only: true })
            .build(),
    );
}

#[test]
fn a_write_clears_set_user_id_bits() {
    for handle_killpriv_v2 in [false, true] {
        let config = Config { kills_privileges: true, handle_killpriv_v2, ..CONFIG };
        check(
            &opened_with(config, 100)
                .outside(Change::Chmod { node: 2, mode: 0o6755 })
                .invalidate(2, -1, 0)
                .stat(0, "a")
                .pwrite(0, 1, 0, bytes(10, 2))
                .stat(0, "a")
                .outside(Change::Chmod { node: 2, mode: 0o4711 })
                .invalidate(2, -1, 0)
                .stat(0, "a")
                .call(0, Call::Ftruncate { handle: Handle(1), size: 10 })
                .stat(0, "a")
                .build(),
        );
    }
}

/// A program extends a file of 100 bytes while it has three pages, and its WRITE is held; another one has the file
/// open.
fn extended_while_another_client_has() -> Builder {
    opened(100)
        .open(1, "a", READ, 2)
        .pread(1, 2, 0, 100)
        .outside(Change::Write { node: 2, offset: 100, data: bytes(3 * PAGE - 100, 2) })
        .hold("write")
        .pwrite(0, 1, 100, bytes(50, 3))
}

#[test]
fn a_size_is_not_taken_while_the_file_grows_here() {
    let events = check(
        &extended_while_another_client_has()
            .pread(1, 2, 2 * PAGE, 100)
            .release()
            .pread(1, 2, 2 * PAGE, 100)
            .fstat(1, 2)
            .build(),
    );
    let read = |step: usize| events[step].returned.iter().map(|(_, result)| result.clone()).collect::<Vec<_>>();
    let last = events.len() - 1;
    assert_eq!(read(last - 3), [Ok(Value::Data(Vec::new()))], "the size was asked for, and not believed");
    assert_eq!(read(last - 1), [Ok(Value::Data(bytes(100, 2)))]);
}

#[test]
fn a_stored_byte_raises_the_size_while_the_file_grows_here() {
    let events = check(
        &extended_while_another_client_has()
            .store_in_pages(2, 3 * PAGE - 1, vec![2])
            .pread(1, 2, 2 * PAGE, 100)
            .release()
            .pread(1, 2, 0, 3 * PAGE)
            .fstat(1, 2)
            .build(),
    );
    let last = events.len() - 1;
    assert_eq!(events[last - 3].returned[0].1, Ok(Value::Data(bytes(100, 2))));
}

/// A store whose byte cannot be copied raises the size and leaves the pages alone.
#[test]
fn a_store_that_fails_raises_the_size_while_the_file_grows_here() {
    let events = check(
        &extended_while_another_client_has()
            .grow(2, 3 * PAGE)
            .pread(1, 2, 2 * PAGE, 100)
            .release()
            .pread(1, 2, 0, 3 * PAGE)
            .fstat(1, 2)
            .build(),
    );
    let last = events.len() - 1;
    assert_eq!(events[last - 3].returned[0].1, Ok(Value::Data(bytes(100, 2))));
}

/// If the file is that large for the kernel, it changes nothing: a smaller size in a reply to a request from before
/// counts.
#[test]
fn a_store_that_fails_within_the_file_lets_a_reply_count() {
    let events = check(
        &opened(300)
            .pread(0, 1, 0, 300)
            .outside(Change::Truncate { node: 2, size: 100 })
            .invalidate(2, -1, 0)
            .hold("getattr")
            .pread(0, 1, 50, 400)
            .grow(2, 100)
            .release()
            .fstat(0, 1)
            .build(),
    );
    assert_eq!(events[events.len() - 2].returned[0].1, Ok(Value::Data(bytes(50, 1))));
}

#[test]
fn pages_stay_when_a_store_fails() {
    for size in [100, PAGE, PAGE + 1, 4 * PAGE + 7] {
        for known in [100, 3 * PAGE] {
            check(
                &opened(known)
                    .open(0, "a", BOTH, 2)
                    .map(0, 2, 3)
                    .pread(0, 1, 0, known)
                    .store(0, 3, 0, vec![9; 20])
                    .grow(2, size)
                    .load(0, 3, 0, 30)
                    .pread(0, 1, 0, 6 * PAGE)
                    .fstat(0, 1)
                    .build(),
            );
        }
    }
}

#[test]
fn a_reply_from_before_a_stored_byte_does_not_count() {
    check(
        &opened(100)
            .outside(Change::Write { node: 2, offset: 100, data: bytes(100, 2) })
            .invalidate(2, -1, 0)
            .hold("getattr")
            .pread(0, 1, 0, 300)
            .outside(Change::Write { node: 2, offset: 200, data: bytes(PAGE, 3) })
            .store_in_pages(2, PAGE + 199, vec![3])
            .release()
            .pread(0, 1, PAGE, 300)
            .fstat(0, 1)
            .build(),
    );
}

#[test]
fn stored_pages_are_read_unless_all_of_them_was_stored() {
    for (offset, count) in [(0, 100), (0, PAGE), (PAGE, 1), (PAGE - 1, 1), (PAGE - 1, 2), (100, 3 * PAGE)] {
        for size in [100, PAGE + 1, 5 * PAGE] {
            check(
                &opened(size)
                    .store_in_pages(2, offset, bytes(count, 7))
                    .pread(0, 1, 0, 6 * PAGE)
                    .fstat(0, 1)
                    .pread(0, 1, offset, count)
                    .build(),
            );
        }
    }
}

#[test]
fn a_store_waits_for_pages_that_are_being_read_and_written() {
    for kind in ["read", "write"] {
        let script = opened(3 * PAGE).hold(kind);
        let script = if kind == "read" { script.pread(0, 1, 0, 100) } else { script.pwrite(0, 1, 10, bytes(100, 2)) };
        check(
            &script
                .store_in_pages(2, 5, vec![7])
                .store_in_pages(9, 5, vec![7])
                .release()
                .pread(0, 1, 0, 3 * PAGE)
                .build(),
        );
    }
}

/// Readahead of a fault, and how many READs of its page alone fail after it.
fn fault_whose_reads_fail(alone: usize, store: bool) -> Result<Value, Errno> {
    let mut script = opened(PAGE).map(0, 1, 1);
    for _ in 0..=alone {
        script = script.fate("read", Fate::Fail(Errno::EIO));
    }
    let script = if store { script.store(0, 1, 0, bytes(10, 2)) } else { script.load(0, 1, 0, 10) };
    let events = check(&script.pread(0, 1, 0, 10).build());
    events[events.len() - 2].returned[0].1.clone()
}

#[test]
fn a_fault_reads_its_page_alone_twice_after_readahead_has_failed() {
    for store in [false, true] {
        for alone in [0, 1] {
            let returned = fault_whose_reads_fail(alone, store);
            assert!(returned.is_ok(), "{alone}: {returned:?}");
        }
        assert!(fault_whose_reads_fail(2, store).is_err());
    }
}

#[test]
fn a_reader_that_jumps_behind_a_window_of_pages_is_no_sequential_one() {
    for cached in [3, 4, 5] {
        check(
            &opened(16 * PAGE)
                .store_in_pages(2, 0, bytes(cached * PAGE, 2))
                .pread(0, 1, 0, 10)
                .pread(0, 1, cached * PAGE, 3 * PAGE)
                .build(),
        );
    }
}
