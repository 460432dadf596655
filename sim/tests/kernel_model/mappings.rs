//! Rules of shared mappings.

use crate::check;
use crate::script::{BOTH, Builder, CONFIG, Change, Fate, LONG};
use weft_sim::kernel::requests::Errno;
use weft_sim::kernel::{Call, Config, Handle};

const PAGE: u64 = 4096;

fn bytes(count: u64, value: u8) -> Vec<u8> {
    vec![value; count as usize]
}

fn mapped(size: u64) -> Builder {
    Builder::new().timeouts(LONG, LONG).create_outside("a", bytes(size, 1)).open(0, "a", BOTH, 1).map(0, 1, 1)
}

fn unmap(script: Builder) -> Builder {
    script.call(0, Call::Unmap { mapping: Handle(1) })
}

fn msync(script: Builder) -> Builder {
    script.call(0, Call::Msync { mapping: Handle(1) })
}

#[test]
fn a_load_reads_around_it() {
    let mut script = mapped(20 * PAGE);
    for at in [10, 11, 12, 13, 0, 19, 5, 6] {
        script = script.load(0, 1, at * PAGE, 10);
    }
    check(&script.load(0, 1, 20 * PAGE, 10).load(0, 1, 20 * PAGE - 5, 5).build());
}

#[test]
fn a_store_is_told_at_msync_munmap_or_close() {
    for end in 0..3 {
        let script = mapped(10 * PAGE)
            .store(0, 1, 10, bytes(5, 2))
            .store(0, 1, PAGE, bytes(PAGE, 3))
            .store(0, 1, 5 * PAGE, bytes(10, 4))
            .pread(0, 1, 0, 100)
            .fstat(0, 1);
        let script = match end {
            0 => unmap(script),
            1 => msync(script),
            _ => script.close(0, 1),
        };
        check(&unmap(script.stat(0, "a").stat(0, "a")).stat(0, "a").build());
    }
}

#[test]
fn an_invalidation_writes_stores_back_first() {
    check(
        &mapped(10 * PAGE)
            .load(0, 1, 0, 10)
            .store(0, 1, 0, bytes(10, 2))
            .store(0, 1, PAGE, bytes(10, 3))
            .outside(Change::Write { node: 2, offset: 100, data: bytes(100, 4) })
            .invalidate(2, 0, PAGE as i64)
            .load(0, 1, 0, 200)
            .invalidate(2, 0, 0)
            .load(0, 1, PAGE, 100)
            .build(),
    );
}

#[test]
fn a_store_while_its_page_is_written_back_waits() {
    check(
        &mapped(4 * PAGE)
            .store(0, 1, 0, bytes(10, 2))
            .hold("write")
            .invalidate(2, 0, 0)
            .store(1, 1, 5, bytes(10, 3))
            .load(2, 1, 2 * PAGE, 10)
            .release()
            .load(0, 1, 0, 20)
            .build(),
    );
}

#[test]
fn stores_behind_the_end_are_cut_off() {
    let script = mapped(PAGE + 100).store(0, 1, PAGE + 90, bytes(50, 2)).store(0, 1, 2 * PAGE, bytes(10, 2));
    check(&msync(script).pread(0, 1, PAGE, 500).pwrite(0, 1, PAGE + 200, bytes(10, 3)).pread(0, 1, PAGE, 500).build());
}

#[test]
fn a_truncation_drops_stores() {
    let script = mapped(5 * PAGE)
        .store(0, 1, 0, bytes(10, 2))
        .store(0, 1, 3 * PAGE, bytes(10, 2))
        .call(0, Call::Ftruncate { handle: Handle(1), size: 2 * PAGE })
        .load(0, 1, 3 * PAGE, 10)
        .load(0, 1, 0, 20);
    check(&unmap(script).pread(0, 1, 0, 20).build());
}

#[test]
fn a_store_that_the_server_refuses_is_lost_and_told_once() {
    let script = mapped(5 * PAGE).store(0, 1, 0, bytes(10, 2)).fate("write", Fate::Fail(Errno::ENOSPC));
    let script = msync(script).load(0, 1, 0, 20);
    check(&msync(script).load(0, 1, 0, 20).build());
}

#[test]
fn writes_and_stores_share_pages() {
    let script = mapped(5 * PAGE)
        .store(0, 1, 0, bytes(10, 2))
        .pwrite(0, 1, 5, bytes(10, 3))
        .load(0, 1, 0, 20)
        .pwrite(0, 1, 5 * PAGE, bytes(10, 4))
        .load(0, 1, 5 * PAGE, 20);
    check(&unmap(script).build());
}

#[test]
fn a_mapping_of_a_direct_file_makes_it_a_cached_one() {
    for allowed in [false, true] {
        let direct =
            Change::Opens { direct_io: true, keep_cache: false, cache_dir: false, parallel: true, passthrough: false };
        let script = Builder::with(Config { direct_io_allow_mmap: allowed, ..CONFIG })
            .timeouts(LONG, LONG)
            .create_outside("a", bytes(5 * PAGE, 1))
            .outside(direct)
            .open(0, "a", BOTH, 1)
            .map(0, 1, 1)
            .load(0, 1, 0, 10)
            .store(0, 1, 0, bytes(10, 2))
            .pread(0, 1, 0, 100)
            .store(0, 1, 0, bytes(10, 3))
            .pwrite(0, 1, 5, bytes(10, 4))
            .load(0, 1, 0, 30)
            .hold("write")
            .pwrite(1, 1, 2 * PAGE, bytes(10, 5))
            .pwrite(2, 1, 3 * PAGE, bytes(10, 6))
            .release();
        check(&unmap(script).build());
    }
}

#[test]
fn a_file_stays_open_while_it_is_mapped() {
    let script = mapped(5 * PAGE).close(0, 1).store(0, 1, 0, bytes(10, 2)).stat(0, "a");
    check(&unmap(script).stat(0, "a").build());
}
