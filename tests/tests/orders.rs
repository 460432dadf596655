//! What a client has gathered, reported or been told of a file meets recalls, cuts and other handles: nothing is lost.
//!
//! The rare orders of messages are in the simulation and in the tests of weft-client-core; here are those that two
//! clients and a few threads bring about.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::protocol::{AttributeChanges, Error, InodeNumber, Name};
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Held, Link, Proxy, Wanted, open};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);

fn size(client: &Client, file: &File) -> u64 {
    client.attributes(&FileSystem::me(), file.inode()).unwrap().attributes.size
}

#[test]
fn what_a_recall_could_not_write_is_told_to_the_next_program() {
    let fs = FileSystem::start(Wanted { nodes: 1, store_bytes: Some(4 << 20), ..Wanted::default() });
    let (writer, other) = (fs.client(Way::Unix), fs.client(Way::Unix));
    let filler = open(&writer, "filler", BOTH);
    let mut filled = 0;
    while filler.write_at(&vec![1; 64 << 10], filled).and_then(|()| filler.flush()).is_ok() {
        filled += 64 << 10;
    }
    let file = open(&writer, "file", BOTH);
    file.write_at(&vec![2; 512 << 10], 0).unwrap();
    // The open of the other one has it written back, for which there is no room.
    let there = open(&other, "file", BOTH);
    assert_eq!(file.flush(), Err(Error::NoSpace));
    assert_eq!(file.flush(), Ok(()), "told once");
    there.close().unwrap();
}

#[test]
fn a_loss_hinders_no_truncation() {
    let fs = FileSystem::start(Wanted { nodes: 1, store_bytes: Some(4 << 20), ..Wanted::default() });
    let (client, other) = (fs.client(Way::Tcp), fs.client(Way::Tcp));
    let filler = open(&client, "filler", BOTH);
    let mut filled = 0;
    while filler.write_at(&vec![1; 64 << 10], filled).and_then(|()| filler.flush()).is_ok() {
        filled += 64 << 10;
    }
    let file = open(&client, "file", BOTH);
    file.write_at(&vec![2; 512 << 10], 0).unwrap();
    // The open of the other one has it written back, for which there is no room.
    open(&other, "file", OpenOptions::READ).close().unwrap();
    let cut = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
    client.set_attributes(&FileSystem::me(), file.inode(), &cut).unwrap();
    let cutting = open(&client, "file", OpenOptions { truncate: true, ..OpenOptions::WRITE });
    assert_eq!(file.flush(), Err(Error::NoSpace), "it is told by a flush");
    assert_eq!(file.flush(), Ok(()), "told once");
    file.close().unwrap();
    cutting.close().unwrap();
}

#[test]
fn an_open_that_cuts_a_file_cuts_what_others_here_have_gathered() {
    for way in [Way::Auto, Way::Unix] {
        let fs = FileSystem::start(Wanted::default());
        // Nothing is known of `/`, so which file is cut is known only when it is.
        let (client, other) = (fs.client(way), fs.client(way));
        let file = open(&client, "file", BOTH);
        file.write_at(&[1; 5000], 0).unwrap();
        let cutting = open(&client, "file", OpenOptions::WRITE);
        assert_eq!((size(&client, &file), file.size()), (0, Ok(0)), "{way:?}");
        file.flush().unwrap();
        assert_eq!(size(&other, &file), 0, "{way:?}");
        cutting.write_at(b"new", 0).unwrap();
        cutting.close().unwrap();
        file.close().unwrap();
        assert_eq!(size(&other, &open(&other, "file", OpenOptions::READ)), 3);
    }
}

#[test]
fn an_append_goes_behind_a_hole_that_another_client_made_in_a_file_without_an_object() {
    let fs = FileSystem::start(Wanted::default());
    let (client, other) = (fs.client(Way::Unix), fs.client(Way::Unix));
    let append = open(&client, "file", OpenOptions { append: true, ..BOTH });
    let there = open(&other, "file", BOTH);
    there.truncate(179).unwrap();
    append.write_at(b"end", 0).unwrap();
    let mut bytes = [1; 200];
    assert_eq!(there.read_at(&mut bytes, 0), Ok(182));
    assert_eq!((bytes[178], &bytes[179..182]), (0, &b"end"[..]));
    assert_eq!((size(&client, &append), size(&other, &there)), (182, 182));
}

#[test]
fn what_is_written_directly_has_its_object_known_when_it_returns() {
    for way in [Way::Auto, Way::Unix] {
        let fs = FileSystem::start(Wanted::default());
        let client = fs.client(way);
        // The lease of the first handle is exclusive, and the second one's writes go by it.
        let file = open(&client, "file", BOTH);
        let direct = open(&client, "file", OpenOptions { direct: true, ..BOTH });
        let before = client.counters().shard_calls;
        direct.write_at(b"survives", 0).unwrap();
        assert_eq!(client.counters().shard_calls - before, 1, "{way:?}: the shard is told of the object");
        direct.write_at(b"survives", 8).unwrap();
        assert_eq!(client.counters().shard_calls - before, 1, "{way:?}: once");
        drop((file, direct));
    }
}

#[test]
fn a_recall_waits_for_writes_in_flight() {
    const LARGE: usize = 4 << 20;
    let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
    let append = OpenOptions { append: true, ..BOTH };
    for way in [Way::Auto, Way::Unix, Way::Tcp] {
        let (writer, other) = (fs.client(way), fs.client(way));
        for round in 0..30 {
            // Alone: an exclusive lease, under which this client says where the end is.
            let file_name = format!("{way:?}-{round}");
            let file = open(&writer, &file_name, append);
            file.write_at(b"begin", 0).unwrap();
            file.flush().unwrap();
            let begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    file.write_at(&vec![1; LARGE], 0).unwrap();
                });
                while !begun.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let there = open(&other, &file_name, append);
                there.write_at(b"end", 0).unwrap();
                there.close().unwrap();
            });
            file.close().unwrap();
            assert_eq!(size(&other, &open(&other, &file_name, OpenOptions::READ)), 5 + LARGE as u64 + 3, "{way:?}");
        }
    }
}

#[test]
fn a_report_has_what_was_gathered_meanwhile() {
    const LARGE: usize = 8 << 20;
    let fs = FileSystem::start(Wanted { nodes: 1, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    for round in 0..40 {
        // The shard is told of the new object when the direct write has landed, while others go on.
        let file_name = format!("{round}");
        let file = open(&client, &file_name, BOTH);
        let direct = open(&client, &file_name, OpenOptions { direct: true, ..BOTH });
        let begun = AtomicBool::new(false);
        let end = std::thread::scope(|scope| {
            let large = scope.spawn(|| {
                begun.store(true, Ordering::Release);
                direct.write_at(&vec![1; LARGE], 0).unwrap();
            });
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let mut end = LARGE as u64;
            while !large.is_finished() {
                file.write_at(b"more", end).unwrap();
                end += 4;
                std::thread::yield_now();
            }
            end
        });
        assert_eq!(file.size(), Ok(end), "round {round}");
        file.close().unwrap();
        direct.close().unwrap();
    }
}

#[test]
fn cuts_of_two_clients_do_not_wait_for_each_other() {
    let fs = FileSystem::start(Wanted::default());
    let clients = [fs.client(Way::Auto), fs.client(Way::Tcp)];
    let made = open(&clients[0], "file", BOTH);
    made.write_at(&[1; 1000], 0).unwrap();
    made.close().unwrap();
    let began = Instant::now();
    for access in [Access::Read, Access::ReadWrite] {
        let files = clients.each_ref().map(|client| open(client, "file", OpenOptions { access, ..OpenOptions::READ }));
        std::thread::scope(|scope| {
            for (client, file) in clients.iter().zip(&files) {
                scope.spawn(move || {
                    for size in 0..50 {
                        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
                        client.set_attributes(&FileSystem::me(), file.inode(), &changes).unwrap();
                        file.read_at(&mut [0; 10], 0).unwrap();
                    }
                });
            }
        });
    }
    assert!(began.elapsed() < Duration::from_secs(5), "a session was ended over it");
}

/// A name is removed, and made again before its removal is answered: `let_go` gets that answer.
fn made_again_before_its_removal_is_answered(let_go: impl FnOnce(Held)) {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
    let (client, me) = (fs.client_behind(&proxy), FileSystem::me());
    // So long that the relay knows a call by it.
    let text = "file".repeat(25);
    let name = Name::new(text.as_bytes()).unwrap();
    // So that names are kept here at all.
    client.attributes(&me, ROOT).unwrap();
    open(&client, &text, BOTH).close().unwrap();
    std::thread::scope(|scope| {
        proxy.hold_next_reply();
        let removal = scope.spawn(|| client.unlink(&me, ROOT, &name));
        let held = proxy.held();
        let anew = Some(CreateFile { mode: 0o644, exclusive: true, plan: None });
        let (again, _) = client.open_at(&me, ROOT, &name, BOTH, anew).unwrap();
        let_go(held);
        removal.join().unwrap().unwrap();
        assert_eq!(client.lookup(&me, ROOT, &name).unwrap().attributes.inode, again.inode());
        let root = client.attributes(&me, ROOT).unwrap().attributes;
        assert_eq!(root.size, 1, "each is counted once");
        again.close().unwrap();
    });
}

#[test]
fn what_a_call_did_that_was_sent_again_is_not_learnt_over_what_came_after() {
    made_again_before_its_removal_is_answered(drop);
}

#[test]
fn a_removal_that_is_answered_late_is_not_learnt_over_what_came_after() {
    made_again_before_its_removal_is_answered(Held::pass_on);
}

#[test]
fn a_link_made_in_an_ended_session_is_told_also_when_its_file_is_gone() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let link = Link::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
    let proxy = Proxy::start(link.address);
    let (client, other, me) = (fs.client_behind(&proxy), fs.client(Way::Tcp), FileSystem::me());
    // So long that the relay knows a call by them.
    let [text, second] = ["file", "link"].map(|text| text.repeat(25));
    let [name, linked] = [&text, &second].map(|text| Name::new(text.as_bytes()).unwrap());
    let file = open(&client, &text, BOTH);
    std::thread::scope(|scope| {
        proxy.hold_next_reply();
        let linking = scope.spawn(|| client.link(&me, file.inode(), ROOT, &linked));
        let held = proxy.held();
        // Its session ends, others remove both names, and one of them means another file.
        link.cut(true);
        other.unlink(&me, ROOT, &linked).unwrap();
        other.unlink(&me, ROOT, &name).unwrap();
        open(&other, &text, BOTH).close().unwrap();
        link.cut(false);
        drop(held);
        // After ESTALE a kernel looks the old name up again, and would link the other file.
        assert_eq!(linking.join().unwrap().map(|entry| entry.attributes.inode), Ok(file.inode()));
    });
    assert_eq!(other.lookup(&me, ROOT, &linked).map(drop), Err(Error::NotFound));
}

#[test]
fn an_append_whose_connection_breaks_while_it_makes_the_object_is_done_once() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let proxy = Proxy::start(fs.instance.map.nodes[0].address.tcp.parse().unwrap());
    let (client, other) = (fs.client_behind(&proxy), fs.client(Way::Tcp));
    // Identifiers of objects are at hand, and a connection for data.
    let first = open(&client, "first", BOTH);
    first.write_at(b"bytes", 0).unwrap();
    first.close().unwrap();
    // Both have the file open, which has no object. The connection breaks after the append has made one, empty.
    let file = open(&client, "file", OpenOptions { append: true, ..BOTH });
    let there = open(&other, "file", BOTH);
    std::thread::scope(|scope| {
        proxy.hold_next_reply();
        let append = scope.spawn(|| file.write_at(&[1; 100], 0));
        drop(proxy.held());
        assert_eq!(append.join().unwrap(), Ok(()));
    });
    // The other one writes the same object. Then we have it alone.
    there.write_at(b"theirs", 0).unwrap();
    there.close().unwrap();
    other.close().unwrap();
    let again = open(&client, "file", BOTH);
    again.write_at(b"ours", 0).unwrap();
    assert_eq!(again.flush(), Ok(()));
    let mut bytes = [0; 10];
    let reader = open(&fs.client(Way::Tcp), "file", OpenOptions::READ);
    assert_eq!((reader.read_at(&mut bytes, 0), &bytes), (Ok(10), b"oursrs\x01\x01\x01\x01"));
    assert_eq!(size(&client, &again), 100);
    again.close().unwrap();
    file.close().unwrap();
}
