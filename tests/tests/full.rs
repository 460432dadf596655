//! A full store: what it refused is kept, written later, or told of; and what is seen is the same for all.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::time::{Duration, Instant};
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{AttributeChanges, Error, InodeNumber, Name, Result};
use weft_client::{Client, File, OpenOptions, Way};
use weft_tests::{FileSystem, Stored, Wanted, open, pattern};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);
const MIB: usize = 1 << 20;
const PIECE: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// A store with room for some 20 MiB, of which a file `big` has a half.
fn in_each_way(check: impl Fn(&FileSystem, &Client, &Client)) {
    for stored in [Stored::Files, Stored::Regions] {
        let fs = FileSystem::start(Wanted { nodes: 1, stored, store_bytes: Some(32 << 20), ..Wanted::default() });
        for way in [Way::Auto, Way::Unix, Way::Tcp] {
            eprintln!("{stored:?} {way:?}");
            let (client, other) = (fs.client(way), fs.client(way));
            let big = open(&client, "big", BOTH);
            big.write_at(&pattern(10 * MIB, 1), 0).unwrap();
            big.close().unwrap();
            check(&fs, &client, &other);
            for name in ["big", "file"] {
                drop(client.unlink(&FileSystem::me(), ROOT, &Name::new(name.as_bytes()).unwrap()));
            }
            client.close().unwrap();
            other.close().unwrap();
            let (client, start) = (fs.client(way), Instant::now());
            while client.space().unwrap().free < 22 << 20 {
                assert!(start.elapsed() < PATIENCE, "{:?}", client.space());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn write(file: &File, number: usize) -> Result<()> {
    file.write_at(&pattern(PIECE, number), (number * PIECE) as u64)
}

/// Writes pieces until one is refused. Returns its number.
fn fill(file: &File) -> usize {
    let failed = (0..200).find_map(|number| write(file, number).err().map(|error| (number, error)));
    let (number, error) = failed.unwrap();
    assert_eq!(error, Error::NoSpace);
    number
}

/// What a client sees of the file: all that can be read, which is as much as its size says.
fn seen(client: &Client, name: &str) -> Vec<u8> {
    let file = open(client, name, OpenOptions::READ);
    let size = client.attributes(&FileSystem::me(), file.inode()).unwrap().attributes.size;
    let mut bytes = vec![0; usize::try_from(size).unwrap() + PIECE];
    let mut have = 0;
    loop {
        match file.read_at(&mut bytes[have..], have as u64).unwrap() {
            0 => break,
            count => have += count,
        }
    }
    assert_eq!(have as u64, size, "as many bytes as the size says");
    bytes.truncate(have);
    bytes
}

fn begins_with_pieces(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE).enumerate().all(|(number, piece)| *piece == pattern(PIECE, number)[..piece.len()])
}

/// What was written keeps the time that somebody was told, also if the store refuses it at first.
#[test]
fn a_write_that_was_refused_at_first_has_one_time() {
    in_each_way(|_, client, _| {
        let mtime = |file: &File| client.attributes(&FileSystem::me(), file.inode()).unwrap().attributes.mtime;
        let page = pattern(4096, 3);
        let file = open(client, "file", BOTH);
        file.write_at(&page, 0).unwrap();
        file.sync().unwrap();
        let filler = open(client, "filler", OpenOptions { direct: true, ..BOTH });
        let failed = fill(&filler) * PIECE;
        assert!((0..).find_map(|number| filler.write_at(&page, (failed + number * page.len()) as u64).err()).is_some());
        file.write_at(&page, page.len() as u64).unwrap();
        let told = mtime(&file);
        assert_eq!(file.sync(), Err(Error::NoSpace));
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"big").unwrap()).unwrap();
        let start = Instant::now();
        while file.sync() == Err(Error::NoSpace) {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(mtime(&file), told);
        filler.close().unwrap();
        file.close().unwrap();
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"filler").unwrap()).unwrap();
    });
}

#[test]
fn what_was_accepted_is_written_when_there_is_space() {
    in_each_way(|_, client, other| {
        let file = open(client, "file", BOTH);
        let failed = fill(&file);
        assert_eq!(file.sync(), Err(Error::NoSpace), "told as often as it is asked");
        assert_eq!([write(&file, failed), write(&file, failed)], [Err(Error::NoSpace), Err(Error::NoSpace)]);
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"big").unwrap()).unwrap();
        let start = Instant::now();
        while write(&file, failed) == Err(Error::NoSpace) {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        write(&file, failed + 1).unwrap();
        file.sync().unwrap();
        for client in [client, other] {
            let seen = seen(client, "file");
            assert_eq!((seen.len(), begins_with_pieces(&seen)), ((failed + 2) * PIECE, true));
        }
        file.close().unwrap();
    });
}

#[test]
fn what_is_seen_after_enospc_is_the_same_for_all_and_stays() {
    in_each_way(|_, client, other| {
        let file = open(client, "file", BOTH);
        let failed = fill(&file);
        let here = seen(client, "file");
        assert!(here.len() <= failed * PIECE && begins_with_pieces(&here));
        assert_eq!(file.size(), Ok(here.len() as u64));
        assert!(seen(other, "file") == here);
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"big").unwrap()).unwrap();
        // Unless all that was accepted is there, the program is told once more.
        let is_whole = here.len() == failed * PIECE;
        let told = [file.flush(), file.flush()];
        assert_eq!(told, [if is_whole { Ok(()) } else { Err(Error::NoSpace) }, Ok(())], "{} of {failed}", here.len());
        for client in [client, other] {
            assert!(seen(client, "file") == here);
        }
        file.close().unwrap();
        assert!(seen(client, "file") == here && seen(other, "file") == here);
    });
}

/// Leaves no space for anything.
fn fill_up(client: &Client, name: &str) {
    let (file, mut end) = (open(client, name, BOTH), 0);
    for bytes in [MIB, 64 << 10, 4 << 10] {
        while file.write_at(&vec![1; bytes], end).and_then(|()| file.flush()).is_ok() {
            end += bytes as u64;
        }
    }
    let _ = file.close();
}

#[test]
fn what_is_lost_with_the_last_handle_is_told_to_the_next() {
    in_each_way(|_, client, other| {
        fill_up(client, "filler");
        let file = open(client, "file", BOTH);
        file.write_at(&[7; 64 << 10], 0).unwrap();
        drop(file);
        let again = open(client, "file", BOTH);
        assert_eq!([again.flush(), again.flush()], [Err(Error::NoSpace), Ok(())]);
        assert!(seen(client, "file").len() < 64 << 10 && seen(client, "file") == seen(other, "file"));
        again.close().unwrap();
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"filler").unwrap()).unwrap();
    });
}

#[test]
fn a_file_without_an_object_keeps_its_size() {
    in_each_way(|_, client, other| {
        fill_up(client, "filler");
        let file = open(client, "file", BOTH);
        let longer = AttributeChanges { size: Some(5000), ..AttributeChanges::default() };
        client.set_attributes(&FileSystem::me(), file.inode(), &longer).unwrap();
        let written = file.write_at(&vec![7; 2 * MIB], 0).and_then(|()| file.flush());
        assert_eq!(written, Err(Error::NoSpace));
        let (here, there) = (seen(client, "file"), seen(other, "file"));
        assert!(here.len() >= 5000 && here == there, "{} and {} bytes", here.len(), there.len());
        let _ = file.close();
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"filler").unwrap()).unwrap();
    });
}
