//! Passed-through files and write-back mode.

use crate::check;
use crate::script::{BOTH, Builder, CONFIG, CREATE, Change, Fate, LONG, READ, path};
use weft_sim::kernel::requests::{Errno, OpenFlags};
use weft_sim::kernel::{Call, Config, Handle};

const PAGE: u64 = 4096;

fn bytes(count: u64, value: u8) -> Vec<u8> {
    vec![value; count as usize]
}

fn opens(direct_io: bool, passthrough: bool) -> Change {
    Change::Opens { direct_io, keep_cache: false, cache_dir: false, parallel: false, passthrough }
}

fn passing() -> Builder {
    Builder::with(Config { passthrough: true, ..CONFIG }).timeouts(LONG, LONG)
}

#[test]
fn a_passed_through_file_is_read_and_written_without_the_server() {
    for timeout in [0, LONG] {
        check(
            &passing()
                .timeouts(timeout, timeout)
                .create_outside("a", bytes(100, 1))
                .outside(opens(false, true))
                .open(0, "a", BOTH, 1)
                .pread(0, 1, 0, 50)
                .pwrite(0, 1, 90, bytes(5000, 2))
                .fstat(0, 1)
                .pread(0, 1, 80, 50)
                .open(0, "a", OpenFlags { append: true, ..BOTH }, 2)
                .call(0, Call::Write { handle: Handle(2), data: bytes(10, 3) })
                .pread(0, 1, 5080, 50)
                .map(0, 1, 1)
                .load(0, 1, 0, 100)
                .store(0, 1, 0, bytes(10, 4))
                .pread(0, 2, 0, 20)
                .call(0, Call::Unmap { mapping: Handle(1) })
                .call(0, Call::Fsync { handle: Handle(1), data_only: false })
                .close(0, 1)
                .close(0, 2)
                .stat(0, "a")
                .build(),
        );
    }
}

#[test]
fn cached_and_passed_through_files_exclude_each_other() {
    for first in [opens(false, true), opens(false, false), opens(true, false), opens(true, true)] {
        for second in [opens(false, true), opens(false, false), opens(true, false), opens(true, true)] {
            check(
                &passing()
                    .create_outside("a", bytes(100, 1))
                    .outside(first.clone())
                    .open(0, "a", BOTH, 1)
                    .outside(second.clone())
                    .open(0, "a", BOTH, 2)
                    .pread(0, 2, 0, 10)
                    .pwrite(0, 1, 0, bytes(10, 2))
                    .close(0, 1)
                    .outside(opens(false, false))
                    .open(0, "a", READ, 3)
                    .close(0, 2)
                    .open(0, "a", READ, 5)
                    .open(0, "b", CREATE, 4)
                    .build(),
            );
        }
    }
}

#[test]
fn a_direct_file_can_be_mapped_until_passthrough_begins() {
    check(
        &passing()
            .create_outside("a", bytes(100, 1))
            .outside(opens(true, false))
            .open(0, "a", BOTH, 1)
            .outside(opens(false, true))
            .open(0, "a", BOTH, 2)
            .map(0, 1, 1)
            .close(0, 2)
            .map(0, 1, 1)
            .open(0, "a", BOTH, 3)
            .build(),
    );
}

fn writing_back() -> Builder {
    Builder::with(Config { writeback_cache: true, ..CONFIG }).timeouts(LONG, LONG)
}

#[test]
fn with_write_back_the_kernel_owns_the_size() {
    check(
        &writing_back()
            .create_outside("a", bytes(100, 1))
            .open(0, "a", BOTH, 1)
            .pwrite(0, 1, 100, bytes(5000, 2))
            .fstat(0, 1)
            .outside(Change::Truncate { node: 2, size: 10 })
            .invalidate(2, -1, 0)
            .fstat(0, 1)
            .pread(0, 1, 0, 6000)
            .call(0, Call::Fsync { handle: Handle(1), data_only: false })
            .fstat(0, 1)
            .pread(0, 1, 0, 6000)
            .close(0, 1)
            .stat(0, "a")
            .build(),
    );
}

#[test]
fn with_write_back_a_part_of_a_page_is_read_first() {
    check(
        &writing_back()
            .create_outside("a", bytes(3 * PAGE, 1))
            .open(0, "a", BOTH, 1)
            .pwrite(0, 1, 10, bytes(10, 2))
            .pwrite(0, 1, PAGE, bytes(PAGE, 3))
            .pwrite(0, 1, 3 * PAGE + 5, bytes(10, 4))
            .pread(0, 1, 0, 5 * PAGE)
            .invalidate(2, 0, 0)
            .pread(0, 1, 0, 100)
            .pwrite(0, 1, 20, bytes(10, 5))
            .call(0, Call::Ftruncate { handle: Handle(1), size: 15 })
            .close(0, 1)
            .stat(0, "a")
            .build(),
    );
}

#[test]
fn with_write_back_an_error_is_told_later() {
    check(
        &writing_back()
            .create_outside("a", bytes(100, 1))
            .open(0, "a", BOTH, 1)
            .pwrite(0, 1, 0, bytes(10, 2))
            .fate("write", Fate::Fail(Errno::ENOSPC))
            .call(0, Call::Fsync { handle: Handle(1), data_only: false })
            .call(0, Call::Fsync { handle: Handle(1), data_only: false })
            .pread(0, 1, 0, 20)
            .build(),
    );
}

#[test]
fn with_write_back_names_and_modes() {
    check(
        &writing_back()
            .open(0, "a", CREATE, 1)
            .pwrite(0, 1, 0, bytes(10, 2))
            .call(0, Call::Chmod { path: path("a"), mode: 0o600 })
            .call(0, Call::Link { from: path("a"), to: path("b") })
            .pwrite(0, 1, 0, bytes(10, 3))
            .rename(0, "a", "c", weft_sim::kernel::requests::RenameMode::Replace)
            .call(0, Call::Unlink { path: path("b") })
            .pwrite(0, 1, 0, bytes(10, 4))
            .open(0, "c", OpenFlags { truncate: true, ..BOTH }, 2)
            .close(0, 1)
            .close(0, 2)
            .build(),
    );
}
