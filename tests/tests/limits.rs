//! Bounds on what one client may take of a node, and clients that come up against them and go on.

use weft_client::protocol::message::shard::Access;
use weft_client::{Client, ClientOptions, File, OpenOptions, Way};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::limits::{DATA_CONNECTIONS_PER_SESSION_MAX, SLOTS_MAX};
use weft_protocol::{Credentials, Error, KeyId, SessionId, UserKey};
use weft_tests::{FileSystem, Wanted, open, status};
use weft_transport::{Peer, Socket, TransportError, connect};

const BOTH: OpenOptions = OpenOptions::of(Access::ReadWrite);

fn one_node() -> FileSystem {
    FileSystem::start(Wanted { nodes: 1, near: false, ..Wanted::default() })
}

fn connections(fs: &FileSystem) -> usize {
    status(&fs.client(Way::Tcp)).connections as usize
}

/// A connection of somebody with a user's key.
fn enter(fs: &FileSystem, uid: u32, session: u64, purpose: Purpose) -> Result<Socket, TransportError> {
    let key_name = KeyName::User { key: KeyId(1), credentials: Credentials { uid, gid: uid, groups: Box::default() } };
    let key = UserKey::derive(&fs.key, &key_name);
    let record = &fs.instance.map.nodes[0];
    let socket = Socket::connect_tcp(&record.address.tcp)?;
    let peer = Peer { key_name, purpose, session: SessionId(session), identity: record.identity };
    connect(&socket, &peer, &key).map(|_| socket)
}

/// Takes what the key gives, and says how much that was.
fn take_all(fs: &FileSystem, uid: u32, sessions: impl Iterator<Item = u64>, purpose: Purpose) -> Vec<Socket> {
    let mut taken = Vec::new();
    for session in sessions {
        match enter(fs, uid, session, purpose) {
            Ok(socket) => taken.push(socket),
            Err(TransportError::Refused(Error::Busy)) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
    taken
}

#[test]
fn nobody_with_a_key_takes_all_connections() {
    let fs = one_node();
    let of_session = |purpose| take_all(&fs, 7, std::iter::repeat_n(1, 1000), purpose);
    let taken = [of_session(Purpose::Data), of_session(Purpose::Control)];
    assert_eq!(taken[0].len(), DATA_CONNECTIONS_PER_SESSION_MAX);
    assert!(taken[1].len() <= 2 * usize::from(SLOTS_MAX) + 2, "{}", taken[1].len());
    // With many sessions, he gets a part of all and leaves the rest to others.
    let more = take_all(&fs, 7, 2..100_000, Purpose::Data);
    assert!(more.len() < 100_000, "there is a bound");
    assert!(enter(&fs, 8, 5, Purpose::Data).is_ok(), "another user is served");
    let file = open(&fs.client(Way::Tcp), "f", BOTH);
    file.write_at(b"hello", 0).unwrap();
    file.close().unwrap();
    // What he gives back is there again, for him too.
    drop((taken, more));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while enter(&fs, 7, 1, Purpose::Data).is_err() {
        assert!(std::time::Instant::now() < end, "the node gives no place again");
        std::thread::yield_now();
    }
}

#[test]
fn many_files_under_way_share_the_connections() {
    let fs = one_node();
    let options = ClientOptions { way: Way::Tcp, buffer_bytes: 64 << 10, ..ClientOptions::default() };
    let client = Client::connect(&fs.instance, &options).unwrap();
    let piece = vec![7; (64 << 10) + 4096];
    let files: Vec<File> = (0..400).map(|number| open(&client, &format!("f{number}"), BOTH)).collect();
    for file in &files {
        // A whole run goes on its way, and the rest stays gathered.
        file.write_at(&piece, 0).unwrap();
    }
    let most = DATA_CONNECTIONS_PER_SESSION_MAX + 2 * usize::from(SLOTS_MAX);
    assert!(connections(&fs) <= most);
    for file in &files {
        file.flush().unwrap();
        // The next window is on its way when this returns.
        file.read_at(&mut [0; 4096], 0).unwrap();
    }
    assert!(connections(&fs) <= most);
    for file in files {
        let mut buffer = vec![0; piece.len() + 1];
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), piece.len());
        assert!(buffer[..piece.len()] == piece);
    }
}

#[test]
fn readers_who_jump_about_keep_no_connection() {
    let fs = one_node();
    let client = fs.client(Way::Tcp);
    let piece = vec![7; 2 << 20];
    open(&client, "f", BOTH).write_at(&piece, 0).unwrap();
    let before = connections(&fs);
    let files: Vec<File> = (0..20).map(|_| open(&client, "f", BOTH)).collect();
    let mut buffer = [0; 4096];
    for file in &files {
        // Who begins at the beginning may go on.
        file.read_at(&mut buffer, 0).unwrap();
    }
    assert!(connections(&fs) >= before + files.len() - 1);
    for file in &files {
        for offset in (1..20).rev() {
            assert_eq!(file.read_at(&mut buffer, offset * 100_000).unwrap(), buffer.len());
            assert!(buffer == [7; 4096]);
        }
    }
    // Those that nobody uses are kept for a while, but few.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while connections(&fs) > before + 8 {
        assert!(std::time::Instant::now() < end, "{} connections", connections(&fs));
    }
}

#[test]
fn many_threads_share_the_connections() {
    let fs = one_node();
    let client = fs.client(Way::Tcp);
    let direct = OpenOptions { direct: true, ..BOTH };
    std::thread::scope(|scope| {
        for number in 0..3 * DATA_CONNECTIONS_PER_SESSION_MAX {
            let client = &client;
            scope.spawn(move || {
                let file = open(client, &format!("f{number}"), direct);
                let bytes = vec![u8::try_from(number).unwrap(); 300_000];
                let mut buffer = vec![0; bytes.len()];
                for round in 0..3 {
                    file.write_at(&bytes, round * 300_000).unwrap();
                    assert_eq!(file.read_at(&mut buffer, round * 300_000).unwrap(), bytes.len());
                    assert!(buffer == bytes);
                }
            });
        }
    });
}
