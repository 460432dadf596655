//! Lists of pieces, read and written with several requests under way, against the bytes of a plain file.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use weft_client::protocol::message::shard::{Access, CreateFile};
use weft_client::protocol::{InodeNumber, Name, StripePlan};
use weft_client::{Client, File, JoinOptions, OpenOptions, ReadList, Way};
use weft_tests::{FileSystem, Stored, Wanted, pattern, with_each_store};

with_each_store! {
    lists_are_their_pieces_one_after_the_other,
    pieces_that_share_memory_or_bytes_are_used_in_their_order,
}

const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const FILE_BYTES: u64 = 300_000;

/// Pieces of one buffer.
struct Pieces<'a> {
    buffer: &'a mut [u8],
    /// Where each begins in the buffer, its offset in the file, and its length.
    pieces: Vec<(usize, u64, usize)>,
}

impl ReadList for Pieces<'_> {
    fn ranges(&self) -> Vec<(u64, usize)> {
        self.pieces.iter().map(|(_, offset, bytes)| (*offset, *bytes)).collect()
    }

    fn memory(&mut self, index: usize) -> &mut [u8] {
        let (start, _, bytes) = self.pieces[index];
        &mut self.buffer[start..start + bytes]
    }
}

/// Pieces at these places, one behind the other in memory. What was read of each, as far as it was.
fn read_list(file: &File, places: &[(u64, usize)]) -> Vec<u8> {
    let mut start = 0;
    let mut place = |(offset, bytes): &(u64, usize)| {
        start += bytes;
        (start - bytes, *offset, *bytes)
    };
    let pieces = places.iter().map(&mut place).collect();
    let mut buffer = vec![0xee; places.iter().map(|(_, bytes)| bytes).sum()];
    let count = file.read_list(&mut Pieces { buffer: &mut buffer, pieces }).unwrap();
    buffer.truncate(count);
    buffer
}

/// What a plain file with these bytes has at these places.
fn expected(bytes: &[u8], places: &[(u64, usize)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (offset, wanted) in places {
        let start = usize::try_from(*offset).unwrap().min(bytes.len());
        let have = &bytes[start..bytes.len().min(start + wanted)];
        all.extend(have);
        if have.len() < *wanted {
            break;
        }
    }
    all
}

/// A file, striped or not, as its maker has it open, direct, and by a handle that another client has imported.
fn handles(fs: &FileSystem, way: Way, is_striped: bool) -> (Vec<File>, [Client; 2]) {
    let clients = [fs.client(way), fs.client(way)];
    let (client, me) = (&clients[0], FileSystem::me());
    let directory = client.make_directory(&me, InodeNumber::ROOT, &Name::new(b"d").unwrap(), 0o755).unwrap();
    let directory = directory.attributes.inode;
    if is_striped {
        client.set_directory_plan(&me, directory, StripePlan::new(3, 64 << 10).unwrap().into()).unwrap();
    }
    let create = Some(CreateFile { mode: 0o644, exclusive: false, plan: None });
    let open = |options| client.open_at(&me, directory, &Name::new(b"f").unwrap(), options, create).unwrap().0;
    let (own, direct) = (open(BOTH), open(OpenOptions { direct: true, ..BOTH }));
    let imported = clients[1].import(&me, &own.export(false).unwrap(), JoinOptions::default()).unwrap().0;
    (vec![own, direct, imported], clients)
}

fn places(count: usize) -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..FILE_BYTES, prop_oneof![4 => 0..6000usize, 1 => 0..100_000usize]), 0..count)
}

fn lists_are_their_pieces_one_after_the_other(stored: Stored) {
    for (way, is_striped) in [(Way::Tcp, false), (Way::Tcp, true), (Way::Unix, false), (Way::Auto, true)] {
        let fs = FileSystem::start(Wanted { nodes: 3, stored, ..Wanted::default() });
        let (files, _clients) = handles(&fs, way, is_striped);
        let model = RefCell::new(pattern(1000, 1));
        files[0].write_at(&model.borrow(), 0).unwrap();
        let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
        let rounds = prop::collection::vec((any::<bool>(), 0..3usize, places(80)), 1..6);
        let checked = runner.run(&rounds, |rounds| {
            let mut model = model.borrow_mut();
            for (writes, file, places) in rounds {
                let file = &files[file];
                if writes {
                    let parts: Vec<_> =
                        places.iter().map(|(offset, bytes)| pattern(*bytes, *offset as usize)).collect();
                    let list: Vec<_> = parts.iter().zip(&places).map(|(part, (at, _))| (&part[..], *at)).collect();
                    file.write_list(&list).unwrap();
                    for (part, offset) in list.iter().filter(|(part, _)| !part.is_empty()) {
                        let (start, end) = (*offset as usize, *offset as usize + part.len());
                        let size = model.len().max(end);
                        model.resize(size, 0);
                        model[start..end].copy_from_slice(part);
                    }
                }
                let read = read_list(file, &places);
                prop_assert!(read == expected(&model, &places), "{} bytes of {places:?}", read.len());
            }
            Ok(())
        });
        checked.unwrap_or_else(|error| panic!("{way:?}, striped {is_striped}: {error}"));
    }
}

fn pieces_that_share_memory_or_bytes_are_used_in_their_order(stored: Stored) {
    let fs = FileSystem::start(Wanted { nodes: 3, stored, ..Wanted::default() });
    for (way, is_striped) in [(Way::Tcp, false), (Way::Unix, true)] {
        let (files, clients) = handles(&fs, way, is_striped);
        for file in &files {
            // The later of two writes of a byte stays.
            let layers: Vec<_> = (0..50u8).map(|number| vec![number; 9000]).collect();
            let list: Vec<_> = layers.iter().zip(0..).map(|(layer, number)| (&layer[..], number * 1000)).collect();
            file.write_list(&list).unwrap();
            let mut bytes = vec![0; 58_000];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == (at / 1000).min(49)));
            // All to the same memory: the last one stays.
            let mut buffer = vec![0; 100];
            let pieces = (0..50).map(|number| (0, number * 1000, 100)).collect();
            assert_eq!(file.read_list(&mut Pieces { buffer: &mut buffer, pieces }).unwrap(), 5000);
            assert_eq!(buffer, [49; 100]);
        }
        drop(files);
        let me = FileSystem::me();
        let directory = clients[0].lookup(&me, InodeNumber::ROOT, &Name::new(b"d").unwrap()).unwrap().attributes.inode;
        clients[0].unlink(&me, directory, &Name::new(b"f").unwrap()).unwrap();
        clients[0].remove_directory(&me, InodeNumber::ROOT, &Name::new(b"d").unwrap()).unwrap();
    }
}
