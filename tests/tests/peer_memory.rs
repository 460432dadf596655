//! Writes whose bytes a server takes out of the memory of its client, and reads whose bytes a client copies out of the
//! memory of its server.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use weft_client::protocol::capability::CapabilityClaims;
use weft_client::protocol::data::{
    BulkDescriptor, DataOperation, DataReply, DataRequest, LentBytes, REPLY_BYTES, SHARED_MEMORY_BYTES, SharedMemory,
};
use weft_client::protocol::handshake::{KeyName, Purpose};
use weft_client::protocol::message::shard::Access;
use weft_client::protocol::{
    Error, Generation, InodeNumber, MapEpoch, Name, NodeIdentity, ObjectId, Rights, SessionId, UserKey,
};
use weft_client::{Client, OpenOptions, Way};
use weft_tests::{FileSystem, Random, Stored, Wanted, eventually, open, pattern, status};
use weft_transport::{Peer, PeerMemory, Socket, connect};

const ROOT: InodeNumber = InodeNumber::ROOT;
const APPEND: OpenOptions = OpenOptions { append: true, ..OpenOptions::of(Access::ReadWrite) };
const LARGE: usize = (3 << 20) + 17;

weft_tests::with_each_store!(
    large_writes_are_taken_from_memory_and_small_ones_come_through_the_socket,
    reads_are_right_whatever_carries_them,
    memory_that_is_not_lent_is_not_written_to_files,
);

fn contents(client: &Client, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes + 1];
    let count = open(client, "file", OpenOptions::READ).read_at(&mut all, 0).unwrap();
    all.truncate(count);
    all
}

fn one_node(stored: Stored, store_bytes: Option<u64>) -> FileSystem {
    FileSystem::start(Wanted { stored, nodes: 1, store_bytes, ..Wanted::default() })
}

fn large_writes_are_taken_from_memory_and_small_ones_come_through_the_socket(stored: Stored) {
    for (way, taken) in [(Way::Unix, true), (Way::Stream, false)] {
        let fs = one_node(stored, None);
        let client = fs.client(way);
        let (large, gathered, small) = (pattern(LARGE, 1), pattern(LARGE, 2), pattern(1000, 3));
        let file = open(&client, "file", OpenOptions::WRITE);
        file.write_at(&large, 0).unwrap();
        for (number, piece) in gathered.chunks(5000).enumerate() {
            file.write_at(piece, (LARGE + number * 5000) as u64).unwrap();
        }
        file.flush().unwrap();
        let before = status(&client).counters;
        file.write_at(&small, 2 * LARGE as u64).unwrap();
        file.close().unwrap();
        let end = open(&client, "file", APPEND);
        end.write_at(&large, 0).unwrap();
        end.close().unwrap();
        let after = status(&client).counters;
        assert_eq!(contents(&client, 3 * LARGE + 1000), [&large[..], &gathered, &small, &large].concat());
        let all = (3 * LARGE + 1000) as u64;
        assert_eq!(after.write_memory_bytes + after.write_unix_bytes, all, "{way:?}");
        if taken {
            // The last run that was gathered may be small.
            assert!(before.write_unix_bytes < 64 << 10, "{before:?}");
            assert_eq!(after.write_unix_bytes - before.write_unix_bytes, 1000);
        } else {
            assert_eq!(after.write_memory_bytes, 0);
        }
        client.close().unwrap();
    }
}

#[test]
fn a_full_store_refuses_what_it_would_take_and_loses_nothing() {
    let fs = one_node(Stored::Files, Some(2 << 20));
    let client = fs.client(Way::Unix);
    let file = open(&client, "file", OpenOptions::WRITE);
    file.write_at(&pattern(1 << 20, 1), 0).unwrap();
    assert_eq!(file.write_at(&pattern(LARGE, 2), 1 << 20), Err(Error::NoSpace));
    // The connection is in order: nothing of the refused write is left on it.
    file.write_at(&pattern(100, 3), 0).unwrap();
    file.flush().unwrap();
    let found = contents(&client, 1 << 20);
    assert_eq!((&found[..100], &found[100..1 << 20]), (&pattern(100, 3)[..], &pattern(1 << 20, 1)[100..]));
    drop(file);
    client.close().unwrap();
}

/// Several clients take turns writing, truncating and reading one file with direct requests, against a model.
fn reads_are_right_whatever_carries_them(stored: Stored) {
    const FILE: usize = 6 << 20;
    for way in [Way::Unix, Way::Stream] {
        let fs = one_node(stored, None);
        let clients = [fs.client(way), fs.client(way), fs.client(way)];
        open(&clients[0], "file", OpenOptions::WRITE).close().unwrap();
        let direct = OpenOptions { direct: true, ..OpenOptions::of(Access::ReadWrite) };
        let files = clients.each_ref().map(|client| open(client, "file", direct));
        let (mut model, mut random) = (Vec::new(), Random(11));
        for step in 0..300 {
            let file = &files[random.below(files.len())];
            let (offset, bytes) = (random.below(FILE), 1 + random.below(if step % 5 == 0 { FILE } else { 100_000 }));
            match random.below(10) {
                0 => {
                    model.resize(offset, 0);
                    file.truncate(offset as u64).unwrap();
                }
                1..=4 => {
                    let written = pattern(bytes, step);
                    let end = offset + bytes;
                    model.resize(end.max(model.len()), 0);
                    model[offset..end].copy_from_slice(&written);
                    file.write_at(&written, offset as u64).unwrap();
                }
                _ => {
                    let mut found = vec![9; bytes];
                    let count = file.read_at(&mut found, offset as u64).unwrap();
                    let expected = model.get(offset..).unwrap_or_default();
                    let expected = &expected[..expected.len().min(bytes)];
                    assert!(found[..count] == *expected, "{way:?}, step {step}: {bytes} bytes at {offset}");
                }
            }
        }
        let counters = status(&clients[0]).counters;
        let is_lent = stored == Stored::Regions && way == Way::Unix;
        assert_eq!(counters.read_memory_bytes > 0, is_lent, "{counters:?}");
        drop(files);
        for client in clients {
            client.close().unwrap();
        }
    }
}

/// A data connection with a capability, and no client library.
struct Raw {
    socket: Socket,
    request: DataRequest,
}

impl Raw {
    /// To the object that `victim` has.
    fn new(fs: &FileSystem, victim: &Client) -> Self {
        let attributes = victim.lookup(&FileSystem::me(), ROOT, &Name::new(b"file").unwrap()).unwrap().attributes;
        let object: ObjectId = attributes.layout.object().unwrap();
        let session = SessionId(77);
        let capability = fs.key.sign(&CapabilityClaims {
            object,
            count: 1,
            generation: Generation(0),
            epoch: MapEpoch(1),
            rights: Rights::READ | Rights::WRITE,
            inode: attributes.inode,
            session,
            expires_seconds: u32::MAX,
            owner_uid: attributes.uid,
        });
        let socket = Socket::connect_unix(fs.instance.map.nodes[0].address.unix.as_ref()).unwrap();
        let peer = Peer { key_name: KeyName::Owner, purpose: Purpose::Data, session, identity: NodeIdentity(0) };
        connect(&socket, &peer, &UserKey::derive(&fs.key, &KeyName::Owner)).unwrap();
        let request = DataRequest {
            operation: DataOperation::Write,
            pages: false,
            bytes: 100_000,
            id: 1,
            object,
            inode: attributes.inode,
            offset: 0,
            memory: BulkDescriptor::default(),
            capability,
        };
        Self { socket, request }
    }

    fn share(&self, shared: SharedMemory) -> Option<DataReply> {
        let bytes = u32::try_from(SHARED_MEMORY_BYTES).unwrap();
        let request = DataRequest { operation: DataOperation::Share, bytes, ..self.request };
        self.socket.send_all_with(&request.encode(), &shared.encode()).unwrap();
        self.reply()
    }

    fn write_from(&self, address: u64) -> Option<DataReply> {
        let memory = BulkDescriptor { address, ..BulkDescriptor::default() };
        self.socket.send_all(&DataRequest { memory, ..self.request }.encode()).unwrap();
        self.reply()
    }

    /// The server's memory, as this process sees it.
    fn borrow(&self) -> Option<PeerMemory> {
        self.socket
            .send_all(&DataRequest { operation: DataOperation::Lend, bytes: 0, ..self.request }.encode())
            .unwrap();
        self.reply()?.result().ok()?;
        let mut shared = [0; SHARED_MEMORY_BYTES];
        self.socket.receive_exact(&mut shared).unwrap();
        PeerMemory::open(&self.socket, SharedMemory::decode(&shared))
    }

    /// Asks for bytes, which the server lends.
    fn lent(&self, offset: u64, bytes: u32) -> LentBytes {
        let memory = BulkDescriptor { address: 1, ..BulkDescriptor::default() };
        let request = DataRequest { operation: DataOperation::Read, offset, bytes, memory, ..self.request };
        self.socket.send_all(&request.encode()).unwrap();
        let reply = self.reply().unwrap();
        let mut lent = vec![0; reply.lent_bytes_length()];
        self.socket.receive_exact(&mut lent).unwrap();
        LentBytes::decode(&lent, bytes).unwrap()
    }

    /// `None`: the server has closed the connection.
    fn reply(&self) -> Option<DataReply> {
        let mut header = [0; REPLY_BYTES];
        self.socket.receive_exact(&mut header).ok().map(|()| DataReply::decode(&header).unwrap())
    }
}

fn memory_that_is_not_lent_is_not_written_to_files(stored: Stored) {
    let fs = one_node(stored, None);
    let client = fs.client(Way::Unix);
    let before = pattern(200_000, 1);
    let file = open(&client, "file", OpenOptions::WRITE);
    file.write_at(&before, 0).unwrap();
    file.close().unwrap();
    let after = pattern(100_000, 2);
    let address = after.as_ptr() as u64;
    let seal = vec![9_u8; 16];
    let shared = SharedMemory { seal: [9; 16], seal_address: seal.as_ptr() as u64 };

    assert!(Raw::new(&fs, &client).write_from(address).is_none(), "no memory was shared");
    let raw = Raw::new(&fs, &client);
    let refused = raw.share(SharedMemory { seal: [8; 16], ..shared }).unwrap();
    assert_eq!(refused.result().err(), Some(Error::NotSupported), "another seal stands there");
    assert!(raw.write_from(address).is_none());
    let raw = Raw::new(&fs, &client);
    assert!(raw.share(shared).unwrap().result().is_ok());
    assert!(raw.write_from(4096).is_none(), "nothing is mapped there");
    let raw = Raw::new(&fs, &client);
    assert!(raw.share(shared).unwrap().result().is_ok());
    assert!(raw.write_from(u64::MAX - 10).is_none(), "nor there");
    assert_eq!(contents(&client, before.len()), before);

    let raw = Raw::new(&fs, &client);
    assert!(raw.share(shared).unwrap().result().is_ok());
    assert_eq!(raw.write_from(address).unwrap().written_bytes, 100_000);
    let mut seal = seal;
    seal.fill(0);
    std::hint::black_box(&seal);
    assert!(raw.write_from(before.as_ptr() as u64).is_none(), "the seal is broken");
    assert_eq!(contents(&client, before.len())[..100_000], after);
    client.close().unwrap();
}

/// A client that has stopped keeps what it was lent as long as it likes, and nobody waits for it: blocks of a file that
/// was removed become those of another one, of which it sees nothing.
#[test]
fn a_client_that_stops_while_memory_is_lent_keeps_nobody_from_it() {
    for on_disk in [false, true] {
        let bytes = Some(64 << 20);
        let fs = FileSystem::start(Wanted {
            stored: Stored::Regions,
            nodes: 1,
            store_bytes: bytes,
            on_disk,
            ..Wanted::default()
        });
        let client = fs.client(Way::Unix);
        let (first, count) = (pattern(200_000, 1), 200_000);
        let write = |name: &str, bytes: &[u8]| {
            let file = open(&client, name, OpenOptions::WRITE);
            file.write_at(bytes, 0).unwrap();
            file.sync().unwrap();
            file.close().unwrap();
        };
        write("file", &first);
        let (raw, killed) = (Raw::new(&fs, &client), Raw::new(&fs, &client));
        let [memory, of_killed] = [&raw, &killed].map(|raw| raw.borrow().unwrap());
        let [lent, lost] = [&raw, &killed].map(|raw| raw.lent(0, count));
        let mut found = vec![0; first.len()];
        assert!(memory.read_lent(&lent, &mut found).is_ok_and(|is_lent| !is_lent || found == first));
        drop(killed);
        eventually("the memory of a connection that has ended is lent", 60, || {
            of_killed.read_lent(&lost, &mut found).is_err()
        });
        client.unlink(&FileSystem::me(), ROOT, &Name::new(b"file").unwrap()).unwrap();
        // More than there is room for beside what was removed: its blocks are used again.
        let other = pattern(16 << 20, 2);
        for number in 0..3 {
            write(&format!("other{number}"), &other);
        }
        eventually("a stopped client is lent blocks of others", 60, || {
            let is_lent = memory.read_lent(&lent, &mut found).unwrap();
            assert!(!is_lent || found == first);
            !is_lent
        });
        client.close().unwrap();
    }
}
