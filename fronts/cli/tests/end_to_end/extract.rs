//! Bytes of objects in region stores: extracted, and deleted by name.

use super::{Ground, runs, wait_until};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use weft_region::{FileDevice, FilePart, Kind, Store};

/// Changes a bit of the block that begins with these bytes.
fn damage(path: &Path, begin: &[u8]) {
    let bytes = fs::read(path).expect("read");
    let at = bytes.chunks(4096).position(|block| block.starts_with(begin)).expect("it is there") * 4096;
    let mut file = fs::File::options().read(true).write(true).open(path).expect("opened");
    let mut byte = [0];
    file.seek(SeekFrom::Start(at as u64 + 9)).and_then(|_| file.read_exact(&mut byte)).expect("read");
    file.seek(SeekFrom::Start(at as u64 + 9)).and_then(|_| file.write_all(&[byte[0] ^ 4])).expect("written");
}

/// Pieces of 4 KiB, each with its number in front.
fn numbered(count: u64) -> Vec<u8> {
    (0..count).flat_map(|number| [&number.to_le_bytes()[..], b"extract", &[7; 4081]].concat()).collect()
}

#[test]
fn an_object_is_extracted_whole_or_not_at_all() {
    let ground = Ground::new("extract");
    ground.weft(&["store", "format", "store", "--size", "64MiB", "--region", "1GiB", "--checksums", "all"]);
    let store = Store::open(Arc::new(FileDevice::open(&ground.path("store")).expect("there"))).expect("a store");
    let (direct, plain) = (store.create(Kind::Direct).expect("made"), store.create(Kind::Plain).expect("made"));
    let versioned = store.create_versioned().expect("made");
    direct.write(0, &numbered(600)).expect("written");
    direct.write(5 << 20, b"behind a hole").expect("written");
    plain.write(4096, b"of an object without a size").expect("written");
    versioned.write(0, b"the first").expect("written");
    versioned.write(4, b"second").expect("written");
    store.close().expect("closed");
    let (id, plain_id, versions) = (direct.id().to_string(), plain.id().to_string(), versioned.id().to_string());
    drop((direct, plain, versioned, store));

    let get = |words: &[&str]| ground.command(&[&["store", "get", "store"], words].concat()).output().expect("weft");
    let mut expected = numbered(600);
    expected.resize(5 << 20, 0);
    expected.extend_from_slice(b"behind a hole");
    assert!(get(&[&id]).stdout == expected);
    ground.weft(&["store", "get", "store", &id, "--output", "out"]);
    assert!(fs::read(ground.path("out")).expect("read") == expected);
    let said = ground.weft_fails(2, &["store", "get", "store", &id, "--output", "out"]);
    assert!(said.contains("out: file exists") && said.contains("remedy"), "{said}");
    let found = get(&[&plain_id]).stdout;
    assert!(found.len() == 8192 && found[4096..].starts_with(b"of an object without a size"));
    assert_eq!(get(&[&versions]).stdout, b"the second");
    assert_eq!(get(&[&versions, "--version", "1"]).stdout, b"the first");
    assert!(ground.weft_fails(2, &["store", "get", "store", &versions, "--version", "9"]).contains("no such version"));
    assert!(ground.weft_fails(2, &["store", "get", "store", &id, "--version", "1"]).contains("keeps no versions"));
    let said = ground.weft_fails(1, &["store", "get", "store", "99"]);
    assert!(said.contains("object 99: no such object") && said.contains("weft store dump"), "{said}");

    // In the second piece that is read.
    damage(&ground.path("store"), &numbered(301)[300 * 4096..]);
    let done = get(&[&id]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    let place = format!("object {id}, byte {} of its region", 301 * 4096);
    assert!(said.contains(&place) && said.contains("1048576 of 5242893 bytes were written"), "{said}");
    assert!(done.stdout == expected[..1 << 20], "what came is right");
    let said = ground.weft_fails(2, &["store", "get", "store", &id, "-o", "other"]);
    assert!(said.contains(&place) && !ground.path("other").exists(), "{said}");
    // A reader that goes away has not got all.
    let mut child = ground.command(&["store", "get", "store", &plain_id]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ended").code(), Some(2));
}

/// Of a split file whose writers' node was killed: what was published, and what was written and synced since.
#[test]
fn parts_of_files_are_listed_and_their_ranges_extracted() {
    const RECORD: usize = 47_008;
    let ground = Ground::new("parts");
    ground.weft(&["store", "format", "store", "--size", "64MiB", "--region", "1GiB"]);
    let store = Store::open(Arc::new(FileDevice::open(&ground.path("store")).expect("there"))).expect("a store");
    let part =
        |inode: u64, object: u64| FilePart { inode: 2 << 48 | inode, object: 1 << 48 | object, start: 0 }.owner();
    let records = numbered(30);
    let (published, rest) = (&records[..RECORD], &records[RECORD..2 * RECORD]);
    let first = store.create_for(part(17, 5)).expect("made");
    first.write(1 << 20, published).expect("written");
    first.sync().expect("synced");
    first.write(3 << 20, rest).expect("written");
    let second = store.create_for(part(17, 6)).expect("made");
    second.write(2 << 20, &records[..8192]).expect("written");
    let other = store.create_for(FilePart { start: 1 << 30, ..FilePart::of(part(18, 7)).expect("a node's") }.owner());
    let anonymous = store.create(Kind::Direct).expect("made");
    store.sync().expect("synced");
    let ids = [first.id(), second.id(), other.expect("made").id()];
    drop((first, second, anonymous, store));

    let listed = ground.json(&["store", "parts", "store", "--json"]);
    let lines = listed.as_array().expect("a list");
    assert_eq!(lines.iter().map(|line| line["object"].as_u64().expect("a number")).collect::<Vec<_>>(), ids);
    let ranges = |line: &serde_json::Value| {
        let ranges = line["ranges"].as_array().expect("ranges").iter();
        ranges.map(|range| (range["offset"].as_u64(), range["bytes"].as_u64())).collect::<Vec<_>>()
    };
    // In whole blocks.
    assert_eq!(ranges(&lines[0]), [(Some(1 << 20), Some(49_152)), (Some(3 << 20), Some(49_152))]);
    assert_eq!(lines[0]["size"].as_u64(), Some((1 << 20) + RECORD as u64), "as of its last sync");
    assert_eq!((ranges(&lines[1]), lines[1]["size"].as_u64()), (vec![(Some(2 << 20), Some(8192))], Some(0)));
    assert_eq!((lines[2]["start"].as_u64(), ranges(&lines[2])), (Some(1 << 30), Vec::new()));
    let one = ground.json(&["store", "parts", "store", "--inode", "2:18", "--json"]);
    assert_eq!((one.as_array().map(Vec::len), one[0]["file_object"].as_str()), (Some(1), Some("1:7")));
    let text = ground.weft(&["store", "parts", "store", "--inode", "2:17"]);
    assert!(
        text.contains("inode 2:17, file object 1:6: object") && text.contains("offset 2097152: 8192 bytes"),
        "{text}"
    );
    let none = ground.command(&["store", "parts", "store", "--inode", "2:19"]).output().expect("weft");
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0));
    assert!(ground.weft_fails(2, &["store", "parts", "store", "--inode", "17"]).contains("SHARD:NUMBER"));

    let get = |words: &[&str]| ground.command(&[&["store", "get", "store"], words].concat()).output().expect("weft");
    let id = ids[0].to_string();
    let bytes = RECORD.to_string();
    assert!(get(&[&id, "--offset", "3MiB", "--bytes", &bytes]).stdout == rest, "behind the size");
    ground.weft(&["store", "get", "store", &id, "--offset", "1MiB", "--bytes", &bytes, "-o", "out"]);
    assert!(fs::read(ground.path("out")).expect("read") == published);
    let whole = get(&[&id]).stdout;
    assert!(whole.len() == (1 << 20) + RECORD && whole[1 << 20..] == *published, "up to the size");
}

#[test]
fn data_of_a_killed_run_are_deleted_by_name() {
    let ground = Ground::new("held");
    ground.weft(&["up", "e2e", "--nodes", "1", "--store", "file:spool:64MiB"]);
    ground.weft(&["down", "e2e"]);
    let ended = ground.command(&["up", "e2e", "--nodes", "1", "--store", "file:spool:64MiB"]).status().expect("weft");
    assert!(ended.success());
    let ended = ground.command(&["down", "e2e"]).output().expect("weft");
    assert!(!String::from_utf8_lossy(&ended.stderr).contains("data"), "one that ends in order leaves none: {ended:?}");

    ground.weft(&["up", "e2e", "--nodes", "1", "--store", "file:spool:64MiB"]);
    fs::write(ground.path("file"), numbered(100)).expect("written");
    let used = || ground.json(&["df", "e2e", "--json"])["free"].as_u64().expect("a number");
    let empty = used();
    for name in ["e2e:/file", "e2e:/gone"] {
        ground.weft(&["cp", "-q", "file", name]);
    }
    ground.weft(&["rm", "e2e:/gone"]);
    let inode = ground.json(&["stat", "--json", "e2e:/file"])[0]["inode"].as_u64().expect("a number");
    // Freed by a sync, so that the other is in the file, too.
    wait_until("free space", || used() + (600 << 10) > empty);
    let pid = ground.status()["nodes"][0]["pid"].as_u64().expect("a number");
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    wait_until("the end of the node", || !runs(pid));
    let uid = rustix::process::getuid().as_raw();
    let regions = format!("{}/weft-{uid}/e2e/store/n00/regions", ground.path("spool").display());
    let said = ground.weft_fails(2, &["down", "e2e"]);
    assert!(said.contains(&format!("it left data in {regions}: 1 object,")), "{said}");
    assert!(said.contains("weft store get") && said.contains("weft down --force e2e"), "{said}");
    let said = ground.weft(&["down", "--force", "--dry-run", "e2e"]);
    assert!(said.contains(&format!("delete data of a run that was killed: {regions}: 1 object,")), "{said}");
    assert!(Path::new(&regions).exists(), "nothing was deleted yet");

    // The data can be had before that.
    let dumped = ground.weft(&["store", "dump", &regions]);
    let id = dumped.split("object ").nth(1).and_then(|text| text.split([',', ':', ' ']).next()).expect("an object");
    let found = ground.command(&["store", "get", &regions, id]).output().expect("weft").stdout;
    assert!(numbered(100).starts_with(&found), "{} bytes", found.len());
    // Also what no sync of the file has told the size of.
    let parts = ground.json(&["store", "parts", &regions, "--json"]);
    assert_eq!((parts[0]["inode"].as_u64(), parts[0]["object"].to_string().as_str()), (Some(inode), id), "{parts}");
    let bytes = (100 * 4096).to_string();
    assert_eq!(parts[0]["ranges"][0]["bytes"].to_string(), bytes, "{parts}");
    let found = ground.command(&["store", "get", &regions, id, "--offset", "0", "--bytes", &bytes]).output();
    assert!(found.expect("weft").stdout == numbered(100));
    let ended = ground.command(&["down", "--force", "e2e"]).output().expect("weft");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && said.contains(&format!("run that was killed: {regions}: 1 object,")), "{said}");
    assert!(!Path::new(&regions).exists());
}
