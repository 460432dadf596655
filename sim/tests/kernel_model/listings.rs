//! Rules of listings.

use crate::check;
use crate::script::{Builder, CONFIG, CREATE, Change, LONG, READ, path};
use weft_sim::kernel::{Call, Config, Handle};

/// A directory `d`, inode 2, with files.
fn directory(config: Config, count: u64) -> Builder {
    let mut script = Builder::with(config).outside(Change::Mkdir { parent: 1, name: "d".into() });
    for number in 0..count {
        script = script.outside(Change::Create { parent: 2, name: format!("file{number:03}"), content: vec![1; 10] });
    }
    script
}

fn cached(keep_cache: bool) -> Change {
    Change::Opens { direct_io: false, keep_cache, cache_dir: true, parallel: false, passthrough: false }
}

fn add(name: &str) -> Change {
    Change::Create { parent: 2, name: name.to_owned(), content: vec![1; 10] }
}

fn seek(script: Builder, position: u64) -> Builder {
    script.call(0, Call::Seekdir { handle: Handle(1), position })
}

#[test]
fn a_listing_is_read_in_pieces() {
    for (plus, auto) in [(false, false), (true, false), (true, true)] {
        for bytes in [40, 200, 4096, 32768] {
            let config = Config { readdirplus: plus, readdirplus_auto: auto, ..CONFIG };
            let mut script = directory(config, 60).timeouts(LONG, LONG).open(0, "d", READ, 1);
            for _ in 0..6 {
                script = script.list(0, 1, bytes);
            }
            let script = seek(script.stat(0, "d/file003").list(0, 1, bytes), 10);
            check(&script.list(0, 1, bytes).stat(0, "d/file020").close(0, 1).build());
        }
    }
}

#[test]
fn a_buffer_that_is_too_small_is_refused() {
    check(&directory(CONFIG, 3).open(0, "d", READ, 1).list(0, 1, 24).list(0, 1, 100).build());
}

#[test]
fn a_listing_with_attributes_makes_names_and_counts_lookups() {
    let config = Config { readdirplus_auto: false, ..CONFIG };
    for timeout in [0, LONG] {
        check(
            &directory(config, 5)
                .timeouts(timeout, timeout)
                .stat(0, "d/file001")
                .open(0, "d", READ, 1)
                .list(0, 1, 4096)
                .stat(0, "d/file001")
                .stat(0, "d/file002")
                .list(0, 1, 4096)
                .invalidate_entry(2, "file001", false)
                .invalidate_entry(2, "file002", false)
                .close(0, 1)
                .build(),
        );
    }
}

#[test]
fn a_listing_with_attributes_replaces_a_name_that_is_another_file() {
    let config = Config { readdirplus_auto: false, ..CONFIG };
    check(
        &directory(config, 3)
            .timeouts(LONG, LONG)
            .stat(0, "d/file001")
            .stat(0, "d/none")
            .outside(Change::Unlink { parent: 2, name: "file001".into() })
            .outside(add("file001"))
            .outside(add("none"))
            .open(0, "d", READ, 1)
            .list(0, 1, 4096)
            .stat(0, "d/file001")
            .stat(0, "d/none")
            .build(),
    );
}

#[test]
fn lookups_wait_for_entries_that_a_listing_makes() {
    let config = Config { readdirplus_auto: false, ..CONFIG };
    check(
        &directory(config, 3)
            .timeouts(LONG, LONG)
            .open(0, "d", READ, 1)
            .hold("readdir")
            .list(0, 1, 4096)
            .stat(1, "d/file001")
            .open(2, "d/new", CREATE, 2)
            .invalidate_entry(2, "file001", false)
            .release()
            .stat(0, "d/file001")
            .build(),
    );
}

#[test]
fn a_listing_in_flight_tells_old_attributes() {
    let config = Config { readdirplus_auto: false, ..CONFIG };
    for expire in [false, true] {
        let mut script = directory(config, 3)
            .timeouts(LONG, LONG)
            .stat(0, "d/file001")
            .open(0, "d", READ, 1)
            .hold("readdir")
            .list(0, 1, 4096)
            .outside(Change::Write { node: 4, offset: 0, data: vec![2; 100] });
        script = if expire {
            script.notify(weft_sim::kernel::requests::Notification::IncrementEpoch)
        } else {
            script.invalidate(4, -1, 0)
        };
        check(&script.release().stat(0, "d/file001").stat(0, "d/file002").build());
    }
}

#[test]
fn a_directory_that_was_removed_lists_nothing() {
    check(
        &directory(CONFIG, 0)
            .timeouts(LONG, LONG)
            .open(0, "d", READ, 1)
            .call(0, Call::Rmdir { path: path("d") })
            .list(0, 1, 4096)
            .fstat(0, 1)
            .open(0, "d/x", CREATE, 2)
            .close(0, 1)
            .build(),
    );
}

#[test]
fn a_listing_is_kept_if_the_server_says_so() {
    for keep in [false, true] {
        for plus in [false, true] {
            let config = Config { readdirplus: plus, ..CONFIG };
            let script = directory(config, 200).timeouts(LONG, LONG).outside(cached(keep)).open(0, "d", READ, 1);
            let read = |mut script: Builder, handle| {
                for _ in 0..4 {
                    script = script.list(0, handle, 4096);
                }
                script
            };
            let script = read(script, 1).open(0, "d", READ, 2);
            let script = seek(read(script, 2), 0);
            let script = seek(read(script, 1).outside(add("more")).list(0, 2, 4096), 100);
            check(&script.list(0, 1, 300).build());
        }
    }
}

#[test]
fn a_kept_listing_ends_with_a_change_here_an_invalidation_or_another_time() {
    for auto_inval_data in [false, true] {
        for change in 0..4 {
            let config = Config { readdirplus: false, auto_inval_data, ..CONFIG };
            let mut script = directory(config, 5)
                .timeouts(LONG, LONG)
                .outside(cached(true))
                .open(0, "d", READ, 1)
                .list(0, 1, 4096)
                .list(0, 1, 4096)
                .outside(add("more"));
            script = match change {
                0 => script.open(0, "d/here", CREATE, 3),
                1 => script.invalidate(2, 0, 0),
                2 => script.invalidate(2, -1, 0).stat(0, "d"),
                _ => script.call(0, Call::Unlink { path: path("d/file001") }),
            };
            let script = seek(script, 0).list(0, 1, 4096).list(0, 1, 4096);
            check(&seek(script, 3).list(0, 1, 4096).open(0, "d", READ, 2).list(0, 2, 4096).build());
        }
    }
}

#[test]
fn two_readers_fill_one_listing() {
    let config = Config { readdirplus: false, ..CONFIG };
    check(
        &directory(config, 30)
            .timeouts(LONG, LONG)
            .outside(cached(true))
            .open(0, "d", READ, 1)
            .open(0, "d", READ, 2)
            .list(0, 1, 400)
            .list(0, 2, 400)
            .list(0, 2, 4096)
            .list(0, 1, 4096)
            .list(0, 1, 4096)
            .list(0, 2, 4096)
            .open(0, "d", READ, 3)
            .list(0, 3, 500)
            .list(0, 3, 4096)
            .list(0, 3, 4096)
            .build(),
    );
}
