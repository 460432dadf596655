//! Files written and read by one client and by two, each way that bytes can go. The way is asserted by counter.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::thread;
use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::{Access, CreateFile, RenameMode};
use weft_client::protocol::{AttributeChanges, Cookie, Credentials, Error, InodeNumber, Name, routing};
use weft_client::{Client, File, Lent, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, open, pattern};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: Option<CreateFile> = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);

weft_tests::with_each_store!(
    by_descriptor_if_there_is_one,
    by_unix_socket,
    by_tcp,
    other_nodes_are_reached_by_tcp_only,
    what_one_wrote_the_other_reads_while_both_have_it_open,
    appends_of_two_clients_all_arrive,
    truncate_cuts_and_extends_with_zeros,
    an_unlinked_file_lives_while_it_is_open,
    a_handle_cuts_and_extends_its_file,
    a_cut_in_place_and_a_write_behind_it_are_known_to_all,
    a_write_of_nothing_changes_nothing,
);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn me() -> Credentials {
    FileSystem::me()
}

fn read_all(file: &File, request: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; request];
    loop {
        let count = file.read_at(&mut buffer, all.len() as u64).unwrap();
        all.extend_from_slice(&buffer[..count]);
        if count < request {
            return all;
        }
    }
}

fn written_and_read(stored: Stored, way: Way, near: bool) {
    let fs = FileSystem::start(Wanted { stored, near, ..Wanted::default() });
    for (index, bytes) in [0usize, 1, 4095, 4096, 65_537, 1 << 20, (3 << 20) + 17].into_iter().enumerate() {
        for request in [1000, 65_536, 1 << 20, 4 << 20] {
            let data = pattern(bytes, index);
            let file_name = format!("f{bytes}-{request}");
            let writer = fs.client(way);
            let file = open(&writer, &file_name, OpenOptions::WRITE);
            for (number, piece) in data.chunks(request).enumerate() {
                file.write_at(piece, (number * request) as u64).unwrap();
            }
            file.close().unwrap();
            let reader = fs.client(way);
            let (file, entry) = reader.open_at(&me(), ROOT, &name(&file_name), OpenOptions::READ, None).unwrap();
            assert_eq!(entry.attributes.size, bytes as u64);
            assert_eq!(read_all(&file, request), data, "{bytes} bytes by {request}");
            let (out, back) = (writer.counters(), reader.counters());
            let written = [out.descriptor_write_bytes, out.unix_write_bytes, out.tcp_write_bytes];
            let read = [back.descriptor_read_bytes, back.unix_read_bytes, back.tcp_read_bytes];
            let expected = match (way, near) {
                (Way::Auto, true) if stored == Stored::Files => [bytes as u64, 0, 0],
                (Way::Auto | Way::Unix, true) => [0, bytes as u64, 0],
                _ => [0, 0, bytes as u64],
            };
            assert_eq!(written, expected, "written, {bytes} by {request}");
            assert_eq!(read, expected, "read, {bytes} by {request}");
            for client in [reader, writer] {
                client.close().unwrap();
            }
        }
    }
}

fn by_descriptor_if_there_is_one(stored: Stored) {
    written_and_read(stored, Way::Auto, true);
}

fn by_unix_socket(stored: Stored) {
    written_and_read(stored, Way::Unix, true);
}

fn by_tcp(stored: Stored) {
    written_and_read(stored, Way::Tcp, true);
}

fn other_nodes_are_reached_by_tcp_only(stored: Stored) {
    written_and_read(stored, Way::Auto, false);
}

fn what_one_wrote_the_other_reads_while_both_have_it_open(stored: Stored) {
    for way in [Way::Auto, Way::Unix, Way::Tcp] {
        let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
        let (a, b) = (fs.client(way), fs.client(way));
        let file_a = open(&a, "shared", BOTH);
        file_a.write_at(b"first", 0).unwrap();
        // Gathered at a: the open of b has it written back.
        let file_b = open(&b, "shared", BOTH);
        assert_eq!(read_all(&file_b, 100), b"first");
        file_b.write_at(b"second", 5).unwrap();
        assert_eq!(read_all(&file_a, 100), b"firstsecond");
        file_a.write_at(b"F", 0).unwrap();
        assert_eq!(read_all(&file_b, 100), b"Firstsecond");
        assert_eq!(a.attributes(&me(), file_a.inode()).unwrap().attributes.size, 11);
        file_a.close().unwrap();
        file_b.close().unwrap();
        assert_eq!(a.walk(&me(), b"/shared", true).unwrap().attributes.size, 11, "{way:?}");
    }
}

fn appends_of_two_clients_all_arrive(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
    let options = OpenOptions { append: true, ..BOTH };
    let clients: Vec<Client> = (0..2).map(|_| fs.client(Way::Unix)).collect();
    let files: Vec<File> = clients.iter().map(|client| open(client, "log", options)).collect();
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            scope.spawn(move || {
                for line in 0..200 {
                    file.write_at(format!("{number} {line:05}\n").as_bytes(), 0).unwrap();
                }
            });
        }
    });
    for file in files {
        file.close().unwrap();
    }
    let (file, _) = clients[0].open_at(&me(), ROOT, &name("log"), OpenOptions::READ, None).unwrap();
    let text = String::from_utf8(read_all(&file, 4096)).unwrap();
    for number in 0..2 {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{number} "))).collect();
        let expected: Vec<String> = (0..200).map(|line| format!("{number} {line:05}")).collect();
        assert_eq!(lines, expected);
    }
}

fn truncate_cuts_and_extends_with_zeros(stored: Stored) {
    for way in [Way::Auto, Way::Tcp] {
        let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
        let client = fs.client(way);
        let file = open(&client, "t", BOTH);
        file.write_at(&pattern(10_000, 0), 0).unwrap();
        let size = |size| AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        client.set_attributes(&me(), file.inode(), &size(100)).unwrap();
        assert_eq!(read_all(&file, 4096), pattern(10_000, 0)[..100]);
        client.set_attributes(&me(), file.inode(), &size(200)).unwrap();
        let mut expected = pattern(10_000, 0)[..100].to_vec();
        expected.resize(200, 0);
        assert_eq!(read_all(&file, 4096), expected);
        client.set_attributes(&me(), file.inode(), &size(0)).unwrap();
        assert_eq!(read_all(&file, 4096), b"");
        file.write_at(b"x", 5).unwrap();
        assert_eq!(read_all(&file, 4096), b"\0\0\0\0\0x", "{way:?}");
        file.close().unwrap();
        let other = fs.client(way);
        assert_eq!(other.walk(&me(), b"/t", true).unwrap().attributes.size, 6);
    }
}

fn an_unlinked_file_lives_while_it_is_open(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
    let (a, b) = (fs.client(Way::Unix), fs.client(Way::Unix));
    let file = open(&a, "gone", BOTH);
    file.write_at(b"still here", 0).unwrap();
    file.flush().unwrap();
    b.unlink(&me(), ROOT, &name("gone")).unwrap();
    assert_eq!(a.lookup(&me(), ROOT, &name("gone")).unwrap_err(), Error::NotFound);
    assert_eq!(read_all(&file, 100), b"still here");
    file.write_at(b"!", 10).unwrap();
    assert_eq!(read_all(&file, 100), b"still here!");
    file.close().unwrap();
}

#[test]
fn an_empty_file_has_no_object_and_costs_one_message() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Auto);
    open(&client, "warm", OpenOptions::WRITE).close().unwrap();
    let before = client.counters();
    open(&client, "empty", OpenOptions::WRITE).close().unwrap();
    let after = client.counters();
    assert_eq!(after.shard_calls - before.shard_calls, 1);
    assert_eq!(after.data_requests, before.data_requests);
    let inode = client.walk(&me(), b"/empty", true).unwrap().attributes.inode;
    assert_eq!(client.locate(&me(), inode).unwrap()[0].node, None);
}

#[test]
fn names_looked_up_in_their_order_cost_a_message_for_many() {
    let fs = FileSystem::start(Wanted::default());
    let maker = fs.client(Way::Auto);
    let names: Vec<_> = (0..600).map(|number| format!("file-{number:04}")).collect();
    for text in &names {
        open(&maker, text, OpenOptions::WRITE).close().unwrap();
    }
    // What it still held would be asked for first.
    maker.close().unwrap();
    let client = fs.client(Way::Auto);
    let before = client.counters().shard_calls;
    for text in &names {
        assert_eq!(client.lookup(&me(), ROOT, &name(text)).unwrap().attributes.size, 0);
    }
    let messages = client.counters().shard_calls - before;
    assert!(messages < 30, "{messages} messages for 600 names");
}

#[test]
fn small_reads_through_a_descriptor_see_every_write() {
    let fs = FileSystem::start(Wanted::default());
    let (client, other) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let both = OpenOptions { access: Access::ReadWrite, ..OpenOptions::WRITE };
    let file = open(&client, "small-reads", both);
    file.write_at(&[1; 1 << 20], 0).unwrap();
    let before = client.counters().descriptor_read_bytes;
    let mut piece = [0; 4096];
    for number in 0..64 {
        assert_eq!(file.read_at(&mut piece, number * 4096).unwrap(), 4096);
        assert_eq!(piece, [1; 4096]);
        // Just ahead of the reader, in what it has at hand.
        file.write_at(&[2; 8], (number + 1) * 4096).unwrap();
        assert_eq!(file.read_at(&mut piece[..8], (number + 1) * 4096).unwrap(), 8);
        assert_eq!(piece[..8], [2; 8]);
        file.write_at(&[1; 8], (number + 1) * 4096).unwrap();
    }
    assert!(client.counters().descriptor_read_bytes > before);
    let (second, _) = other.open_at(&me(), ROOT, &name("small-reads"), both_kept(both), None).unwrap();
    second.write_at(&[3; 1 << 20], 0).unwrap();
    for number in 0..256 {
        assert_eq!(file.read_at(&mut piece, number * 4096).unwrap(), 4096);
        assert_eq!(piece, [3; 4096], "{number}");
    }
    assert_eq!(file.read_at(&mut piece, 1 << 20).unwrap(), 0, "the end");
}

/// The same without cutting it.
fn both_kept(options: OpenOptions) -> OpenOptions {
    OpenOptions { truncate: false, ..options }
}

#[test]
fn a_small_file_is_opened_and_read_with_two_messages() {
    for way in [Way::Auto, Way::Unix, Way::Tcp] {
        let fs = FileSystem::start(Wanted::default());
        let file = open(&fs.client(way), "small", OpenOptions::WRITE);
        file.write_at(b"content", 0).unwrap();
        file.close().unwrap();
        drop(file_of_warm_client(&fs, way));
    }
}

fn file_of_warm_client(fs: &FileSystem, way: Way) -> File {
    let client = fs.client(way);
    let before = client.counters();
    let (file, _) = client.open_at(&me(), ROOT, &name("small"), OpenOptions::READ, None).unwrap();
    assert_eq!(read_all(&file, 4096), b"content");
    let after = client.counters();
    let messages = after.shard_calls + after.data_requests - before.shard_calls - before.data_requests;
    assert_eq!(messages, 2, "{way:?}");
    file
}

#[test]
fn a_full_store_says_so_and_loses_nothing() {
    let fs = FileSystem::start(Wanted { nodes: 1, store_bytes: Some(4 << 20), ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let first = open(&client, "first", OpenOptions::WRITE);
    first.write_at(&pattern(2 << 20, 1), 0).unwrap();
    first.close().unwrap();
    let second = open(&client, "second", OpenOptions::WRITE);
    let result = second.write_at(&pattern(3 << 20, 2), 0).and_then(|()| second.flush());
    assert_eq!(result, Err(Error::NoSpace));
    drop(second);
    let (first, _) = client.open_at(&me(), ROOT, &name("first"), OpenOptions::READ, None).unwrap();
    assert_eq!(read_all(&first, 1 << 20), pattern(2 << 20, 1));
    client.unlink(&me(), ROOT, &name("first")).unwrap();
    client.unlink(&me(), ROOT, &name("second")).unwrap();
    drop(first);
    // The node removes objects after it has answered: what is free later would make room for what is refused below.
    let end = Instant::now() + Duration::from_secs(20);
    while client.space().unwrap().files > 0 {
        assert!(Instant::now() < end, "{:?}", client.space());
        thread::sleep(Duration::from_millis(5));
    }

    // Whoever was told of what had been gathered may not have looked: the next write says so itself.
    let third = open(&client, "third", OpenOptions::WRITE);
    let bytes = pattern(256 << 10, 3);
    let write = |number: u64| third.write_at(&bytes, number * bytes.len() as u64);
    let failed = (0..100).find(|number| write(*number) == Err(Error::NoSpace)).unwrap();
    assert_eq!([(); 5].map(|()| write(failed)), [(); 5].map(|()| Err(Error::NoSpace)));
    third.truncate(0).unwrap();
    write(0).unwrap();
    assert_eq!(third.flush(), Ok(()), "what there was no space for was cut");
    third.close().unwrap();
}

#[test]
fn directories_live_on_several_shards() {
    let fs = FileSystem::start(Wanted { nodes: 3, ..Wanted::default() });
    let clients: Vec<Client> = (0..6).map(|_| fs.client(Way::Auto)).collect();
    let mut shards = std::collections::BTreeSet::new();
    for (number, client) in clients.iter().enumerate() {
        let made = client.make_directory(&me(), ROOT, &name(&format!("d{number}")), 0o755).unwrap();
        shards.insert(routing::of_inode(made.attributes.inode));
        let inside = client.make_directory(&me(), made.attributes.inode, &name("inside"), 0o755).unwrap();
        let options = OpenOptions::WRITE;
        client.open_at(&me(), inside.attributes.inode, &name("file"), options, NEW).unwrap().0.close().unwrap();
    }
    assert!(shards.len() > 1, "all on {shards:?}");
    for number in 0..clients.len() {
        let client = &clients[(number + 1) % clients.len()];
        let path = format!("/d{number}/inside/../inside/file");
        assert!(client.walk(&me(), path.as_bytes(), true).is_ok());
        let parent = client.walk(&me(), format!("/d{number}").as_bytes(), true).unwrap().attributes;
        assert_eq!((parent.size, parent.links), (1, 3));
        assert_eq!(client.remove_directory(&me(), ROOT, &name(&format!("d{number}"))), Err(Error::NotEmpty));
        let inside = client.walk(&me(), format!("/d{number}/inside").as_bytes(), true).unwrap().attributes.inode;
        client.unlink(&me(), inside, &name("file")).unwrap();
        client.remove_directory(&me(), parent.inode, &name("inside")).unwrap();
        client.remove_directory(&me(), ROOT, &name(&format!("d{number}"))).unwrap();
    }
    let root = clients[0].attributes(&me(), ROOT).unwrap().attributes;
    assert_eq!((root.size, root.links), (0, 2));
}

#[test]
fn a_listing_of_any_size_comes_whole() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Auto);
    for number in 0..3000 {
        open(&client, &format!("file-{number:05}"), OpenOptions::WRITE);
    }
    let other = fs.client(Way::Auto);
    let (mut names, mut after) = (Vec::new(), Cookie::START);
    loop {
        let page = other.read_directory(&me(), ROOT, after, 700, true).unwrap();
        names.extend(page.entries.iter().map(|entry| (entry.cookie, entry.name.to_string())));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert!(names.is_sorted(), "in the order of cookies");
    let mut names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
    names.sort();
    assert_eq!(names, (0..3000).map(|number| format!("file-{number:05}")).collect::<Vec<_>>());
}

#[test]
fn rename_replaces_and_what_others_cached_is_recalled() {
    let fs = FileSystem::start(Wanted::default());
    let (a, b) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&a, "old", OpenOptions::WRITE);
    file.write_at(b"content", 0).unwrap();
    file.close().unwrap();
    assert_eq!(b.walk(&me(), b"/old", true).unwrap().attributes.size, 7);
    assert_eq!(b.walk(&me(), b"/new", true).unwrap_err(), Error::NotFound);
    a.rename(&me(), ROOT, &name("old"), ROOT, &name("new"), RenameMode::Replace).unwrap();
    assert_eq!(b.walk(&me(), b"/old", true).unwrap_err(), Error::NotFound);
    assert_eq!(b.walk(&me(), b"/new", true).unwrap().attributes.size, 7);
}

#[test]
fn what_was_just_closed_is_opened_again_without_a_message() {
    for way in [Way::Auto, Way::Unix] {
        let fs = FileSystem::start(Wanted::default());
        let client = fs.client(way);
        // The directory's permissions are known from here on.
        client.attributes(&me(), ROOT).unwrap();
        let file = open(&client, "again", BOTH);
        file.write_at(b"content", 0).unwrap();
        file.close().unwrap();
        let before = client.counters();
        let file = client.open(&me(), file_inode(&client, "again"), OpenOptions::READ).unwrap();
        assert_eq!(client.counters().shard_calls, before.shard_calls, "{way:?}");
        assert_eq!(read_all(&file, 4096), b"content");
        file.close().unwrap();
        // Another client's write is seen: the kept lease is recalled.
        let other = fs.client(way);
        let file = open(&other, "again", BOTH);
        file.write_at(b"changed", 0).unwrap();
        file.close().unwrap();
        let (file, _) = client.open_at(&me(), ROOT, &name("again"), OpenOptions::READ, None).unwrap();
        assert_eq!(read_all(&file, 4096), b"changed", "{way:?}");
    }
}

fn file_inode(client: &Client, text: &str) -> InodeNumber {
    client.lookup(&me(), ROOT, &name(text)).unwrap().attributes.inode
}

#[test]
fn space_of_a_device_counts_once() {
    let fs = FileSystem::start(Wanted { nodes: 3, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let space = client.space().unwrap();
    let one = space.nodes[0].1.clone().unwrap();
    assert_eq!(space.total, one.total);
    let fs = FileSystem::start(Wanted { nodes: 3, store_bytes: Some(1 << 20), ..Wanted::default() });
    assert_eq!(fs.client(Way::Auto).space().unwrap().total, 3 << 20);
}

#[test]
fn a_directory_is_known_after_own_changes_without_asking() {
    let fs = FileSystem::start(Wanted { nodes: 1, shards_per_node: 1, ..Wanted::default() });
    let (client, other) = (fs.client(Way::Auto), fs.client(Way::Auto));
    client.attributes(&me(), ROOT).unwrap();
    let same = |what: &str| {
        let before = client.counters().shard_calls;
        let known = client.attributes(&me(), ROOT).unwrap().attributes;
        assert_eq!(client.counters().shard_calls, before, "asked after {what}");
        assert_eq!(known, other.attributes(&me(), ROOT).unwrap().attributes, "after {what}");
        // The other's question may have made the lease a shared one, no more.
        client.attributes(&me(), ROOT).unwrap();
    };
    open(&client, "file", OpenOptions::WRITE).close().unwrap();
    same("create");
    client.make_directory(&me(), ROOT, &name("directory"), 0o755).unwrap();
    same("mkdir");
    client.make_symlink(&me(), ROOT, &name("link"), b"file").unwrap();
    same("symlink");
    client.unlink(&me(), ROOT, &name("file")).unwrap();
    same("unlink");
    client.remove_directory(&me(), ROOT, &name("directory")).unwrap();
    same("rmdir");
}

#[test]
fn a_client_that_was_away_for_a_term_says_what_it_lost_and_goes_on() {
    let fs = FileSystem::start(Wanted::default());
    let client = fs.client(Way::Unix);
    let (written, read) = (open(&client, "written", BOTH), open(&client, "read", BOTH));
    read.write_at(b"kept", 0).unwrap();
    read.flush().unwrap();
    written.write_at(b"gathered, and never sent", 0).unwrap();
    client.forget_session();
    // What was gathered under the lost lease is refused, once, and without waiting for ever.
    assert!(written.flush().is_err());
    assert_eq!(read_all(&read, 100), b"kept");
    written.write_at(b"again", 0).unwrap();
    written.close().unwrap();
    read.close().unwrap();
    let other = fs.client(Way::Unix);
    let (file, _) = other.open_at(&me(), ROOT, &name("written"), OpenOptions::READ, None).unwrap();
    assert_eq!(read_all(&file, 100), b"again");
}

fn a_handle_cuts_and_extends_its_file(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, near: false, ..Wanted::default() });
    for (way, direct) in [(Way::Auto, false), (Way::Tcp, false), (Way::Tcp, true)] {
        let (client, other) = (fs.client(way), fs.client(way));
        let file_name = format!("cut-{way:?}-{direct}");
        let file = open(&client, &file_name, OpenOptions { direct, ..BOTH });
        let data = pattern(100_000, 3);
        file.write_at(&data, 0).unwrap();
        // What is gathered counts as written before the cut.
        file.truncate(10).unwrap();
        assert_eq!(read_all(&file, 65_536), data[..10]);
        file.truncate(20).unwrap();
        file.write_at(b"end", 20).unwrap();
        let expected = [&data[..10], &[0; 10], b"end"].concat();
        assert_eq!(read_all(&file, 65_536), expected);
        let (reader, _) = other.open_at(&me(), ROOT, &name(&file_name), OpenOptions::READ, None).unwrap();
        assert_eq!((reader.size().unwrap(), read_all(&reader, 65_536)), (23, expected), "{way:?} {direct}");
        assert_eq!(reader.truncate(0), Err(Error::BadHandle));
        reader.close().unwrap();
        file.truncate(0).unwrap();
        assert_eq!((file.size().unwrap(), read_all(&file, 100).len()), (0, 0));
        file.write_at(b"anew", 0).unwrap();
        let (reader, _) = other.open_at(&me(), ROOT, &name(&file_name), OpenOptions::READ, None).unwrap();
        assert_eq!((read_all(&file, 100), read_all(&reader, 100)), (b"anew".to_vec(), b"anew".to_vec()));
    }
}

fn a_cut_in_place_and_a_write_behind_it_are_known_to_all(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, ..Wanted::default() });
    for (a, b) in [(Way::Auto, Way::Auto), (Way::Unix, Way::Auto), (Way::Tcp, Way::Tcp)] {
        let (a, b) = (fs.client(a), fs.client(b));
        for direct in [true, false] {
            let file_name = format!("f{direct}-{}", a.counters().shard_calls);
            let file = open(&a, &file_name, OpenOptions { direct, ..BOTH });
            file.write_at(&[b'a'; 10_000], 0).unwrap();
            let reader = a.open(&me(), file.inode(), OpenOptions { direct, ..OpenOptions::READ }).unwrap();
            reader.close().unwrap();
            let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
            a.set_attributes(&me(), file.inode(), &nothing).unwrap();
            file.write_at(b"bbbbb", 3).unwrap();
            let reader = a.open(&me(), file.inode(), OpenOptions { direct, ..OpenOptions::READ }).unwrap();
            assert_eq!(read_all(&reader, 100), b"\0\0\0bbbbb");
            reader.close().unwrap();
            assert_eq!(a.attributes(&me(), file.inode()).unwrap().attributes.size, 8, "direct: {direct}");
            assert_eq!(b.attributes(&me(), file.inode()).unwrap().attributes.size, 8);
        }
    }
}

/// What a kernel does with a file that was lent to it.
fn kernel_writes(lent: &Lent, bytes: &[u8], offset: u64) {
    assert!(lent.may_write());
    assert_eq!(rustix::io::pwrite(lent.descriptor(), bytes, offset).unwrap(), bytes.len());
}

#[test]
fn an_object_lent_to_a_kernel_is_the_files_whoever_else_writes() {
    for direct in [false, true] {
        let fs = FileSystem::start(Wanted::default());
        let (mount, other) = (fs.client(Way::Auto), fs.client(Way::Tcp));
        let file = open(&mount, "f", OpenOptions { direct, ..BOTH });
        let inode = file.inode();
        let lent = file.lend().unwrap();
        let size = |client: &Client| client.attributes(&me(), inode).unwrap().attributes.size;
        kernel_writes(&lent, b"kernel", 0);
        assert_eq!((size(&mount), size(&other)), (6, 6), "direct: {direct}");
        let there = open(&other, "f", BOTH);
        assert_eq!(read_all(&there, 100), b"kernel");
        there.write_at(b"K", 0).unwrap();
        assert_eq!(read_all(&file, 100), b"Kernel");
        // Cut by the other one, by ourselves, and by an open, while the kernel goes on.
        let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
        other.set_attributes(&me(), inode, &nothing).unwrap();
        assert_eq!((size(&mount), size(&other)), (0, 0));
        kernel_writes(&lent, b"again", 0);
        mount.set_attributes(&me(), inode, &nothing).unwrap();
        kernel_writes(&lent, b"more", 2);
        drop(open(&other, "f", OpenOptions::WRITE));
        kernel_writes(&lent, b"last", 1);
        assert_eq!((read_all(&there, 100), size(&mount), size(&other)), (b"\0last".to_vec(), 5, 5));
        // What this client writes beside its kernel.
        file.write_at(b"!", 5).unwrap();
        assert_eq!(read_all(&there, 100), b"\0last!");
        drop(lent);
        file.close().unwrap();
        there.close().unwrap();
        assert_eq!((size(&mount), size(&other)), (6, 6));
    }
}

#[test]
fn two_kernels_with_one_new_file_have_one_object() {
    let fs = FileSystem::start(Wanted::default());
    let clients = [fs.client(Way::Auto), fs.client(Way::Auto)];
    let files = clients.each_ref().map(|client| open(client, "f", OpenOptions { direct: true, ..BOTH }));
    let lent = files.each_ref().map(|file| file.lend().unwrap());
    kernel_writes(&lent[0], b"one", 0);
    kernel_writes(&lent[1], b"two", 3);
    drop(lent);
    for file in &files {
        assert_eq!(read_all(file, 100), b"onetwo");
    }
}

#[test]
fn nothing_is_lent_that_is_not_here_or_counted() {
    let reader = |client: &Client| client.open_at(&me(), ROOT, &name("f"), OpenOptions::READ, None).unwrap().0;
    let fs = FileSystem::start(Wanted { near: false, ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let file = open(&client, "f", BOTH);
    assert!(file.lend().is_none() && !file.has_object(), "no object for nothing");
    drop(file);
    let fs = FileSystem::start(Wanted { store_bytes: Some(64 << 20), ..Wanted::default() });
    let client = fs.client(Way::Auto);
    let file = open(&client, "f", BOTH);
    assert!(file.lend().is_none());
    file.write_at(b"counted", 0).unwrap();
    file.close().unwrap();
    let empty = open(&client, "empty", BOTH);
    assert!(empty.lend().is_none() && !empty.has_object(), "a store that refused one is not asked for others");
    // For reading it is; a handle that writes has to come here.
    let other = fs.client(Way::Auto);
    let file = reader(&other);
    let lent = file.lend().unwrap();
    assert!(!lent.may_write());
    let writer = other.open(&me(), file.inode(), BOTH).unwrap();
    assert!(writer.lend().is_some_and(|lent| !lent.may_write()));
    writer.write_at(b"C", 0).unwrap();
    let mut bytes = [0; 7];
    assert_eq!(rustix::io::pread(lent.descriptor(), &mut bytes[..], 0).unwrap(), 7);
    assert_eq!(&bytes, b"Counted");
}

#[test]
fn an_object_that_is_extended_as_it_is_made_is_the_files_though_it_is_not_lent() {
    let fs = FileSystem::start(Wanted { store_bytes: Some(64 << 20), ..Wanted::default() });
    let other = fs.client(Way::Auto);
    let extended = open(&other, "f", BOTH);
    extended.truncate(50_000).unwrap();
    extended.close().unwrap();
    let client = fs.client(Way::Auto);
    let file = open(&client, "f", BOTH);
    assert!(file.lend().is_none());
    file.close().unwrap();
    other.unlink(&me(), ROOT, &name("f")).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while client.space().unwrap().files > 0 {
        assert!(Instant::now() < end, "{:?}", client.space());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kernel_that_is_left_with_an_old_object_is_told() {
    let fs = FileSystem::start(Wanted::default());
    let (mount, other) = (fs.client(Way::Auto), fs.client(Way::Auto));
    let file = open(&mount, "f", BOTH);
    let lent = file.lend().unwrap();
    kernel_writes(&lent, b"kept", 0);
    file.flush().unwrap();
    // The session ends and begins anew: the same object is found again.
    mount.forget_session();
    kernel_writes(&lent, b"more", 4);
    file.flush().unwrap();
    assert_eq!(other.attributes(&me(), file.inode()).unwrap().attributes.size, 8);
    // Nobody has it open at the shard while it is cut.
    mount.forget_session();
    let nothing = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
    other.set_attributes(&me(), file.inode(), &nothing).unwrap();
    kernel_writes(&lent, b"lost", 8);
    assert_eq!(file.flush(), Err(Error::SessionEnded));
}

fn a_write_of_nothing_changes_nothing(stored: Stored) {
    let fs = FileSystem::start(Wanted { stored, nodes: 1, ..Wanted::default() });
    for (number, way) in [Way::Auto, Way::Unix, Way::Tcp].into_iter().enumerate() {
        let client = fs.client(way);
        for direct in [true, false] {
            let file = open(&client, &format!("empty-{number}-{direct}"), OpenOptions { direct, ..OpenOptions::WRITE });
            file.write_at(&[], 0).unwrap();
            file.write_at(&[], 1 << 30).unwrap();
            assert_eq!(file.size().unwrap(), 0);
            file.close().unwrap();
        }
    }
}
