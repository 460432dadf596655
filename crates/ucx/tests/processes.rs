//! Two processes of this machine: one shows memory, the other puts into it and gets from it.
//!
//! UCX takes its settings once for each process, so each case is a pair of children of the test: this program again,
//! with a role. Where there is no UCX the tests say so and pass.

#![expect(unsafe_code, reason = "a test forks")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use rustix::fd::AsFd;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;
use weft_ucx::{Error, Library, Liveness, Mover, Receiver, Region};

const LOOK: Duration = Duration::from_micros(50);
const SIZES: &[usize] = &[1, 8, 4095, 65_536, 1_048_579];
const MEMORY_BYTES: usize = 2 << 20;

fn byte(at: usize, seed: usize) -> u8 {
    u8::try_from((at * 7 + at / 253 + seed) % 251).unwrap()
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| byte(at, seed)).collect()
}

fn liveness() -> Liveness {
    if std::env::var_os("WEFT_TEST_ENDPOINT").is_some() { Liveness::Endpoint } else { Liveness::Caller }
}

/// A message: its length and its bytes.
fn send(mut socket: &UnixStream, bytes: &[u8]) {
    socket.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).unwrap();
    socket.write_all(bytes).unwrap();
}

fn receive(mut socket: &UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Waits for the server's next word while its transfers go on.
fn next_word(receiver: &Receiver, socket: &UnixStream) -> Vec<u8> {
    socket.set_nonblocking(true).unwrap();
    let mut first = [0];
    let woken = receiver.until(socket.as_fd(), LOOK, || match (&mut &*socket).read(&mut first) {
        Ok(1) => Ok(Some(())),
        Ok(_) => Err(Error::PeerGone),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(_) => Err(Error::PeerGone),
    });
    woken.unwrap();
    socket.set_nonblocking(false).unwrap();
    let mut rest = [0; 3];
    (&mut &*socket).read_exact(&mut rest).unwrap();
    let bytes = u32::from_le_bytes([first[0], rest[0], rest[1], rest[2]]);
    let mut word = vec![0; bytes as usize];
    (&mut &*socket).read_exact(&mut word).unwrap();
    word
}

/// Tells the server of memory.
fn show(socket: &UnixStream, address: u64, bytes: usize, key: &[u8]) {
    send(socket, &[&address.to_le_bytes()[..], &(bytes as u64).to_le_bytes(), key].concat());
}

fn client(path: &str) {
    let socket = UnixStream::connect(path).unwrap();
    let mut receiver = Receiver::new().unwrap();
    send(&socket, &receiver.address().unwrap());
    receiver.connect(&receive(&socket), liveness()).unwrap();
    // Memory of UCX's own.
    let mut region = Region::allocate(MEMORY_BYTES).unwrap();
    assert!(region.copy_in(0, &0x0123_4567_89ab_cdef_u64.to_le_bytes()));
    show(&socket, region.address(), region.bytes(), &region.packed_key().unwrap());
    assert_eq!(next_word(&receiver, &socket), b"probed");
    let mut memory = vec![0; MEMORY_BYTES];
    for &bytes in SIZES {
        assert_eq!(next_word(&receiver, &socket), b"put");
        assert!(region.copy_out(3, &mut memory[..bytes]));
        assert!(memory[..bytes] == pattern(bytes, 1), "{bytes} bytes were put");
        assert!(region.copy_in(3, &pattern(bytes, 2)));
        send(&socket, b"get");
        assert_eq!(next_word(&receiver, &socket), b"got");
    }
    // Memory that is lent.
    for &bytes in SIZES {
        memory[..bytes].fill(0);
        receiver
            .lend(&mut memory[..bytes], |receiver, lent| {
                show(&socket, lent.address(), bytes, &lent.packed_key().unwrap());
                assert_eq!(next_word(receiver, &socket), b"put");
                Ok::<_, Error>(())
            })
            .unwrap()
            .unwrap();
        assert!(memory[..bytes] == pattern(bytes, 1), "{bytes} bytes were put into lent memory");
        memory[..bytes].copy_from_slice(&pattern(bytes, 2));
        receiver
            .lend_to_read(&memory[..bytes], |receiver, _| {
                send(&socket, b"get");
                assert_eq!(next_word(receiver, &socket), b"got");
                Ok::<_, Error>(())
            })
            .unwrap()
            .unwrap();
    }
    // Memory that comes back with an error can no more be reached.
    let revoked = receiver.lend(&mut memory, |_, _| Err::<(), _>(Error::Foreign)).unwrap();
    assert_eq!(revoked, Err(Error::Foreign));
    assert_eq!(receiver.address(), Err(Error::PeerGone));
}

fn learn(mover: &mut Mover, socket: &UnixStream, number: u32) -> u64 {
    let shown = receive(socket);
    let word = |at: usize| u64::from_le_bytes(shown[at..at + 8].try_into().unwrap());
    mover.learn(socket.as_fd(), (number, word(0), word(8)), &shown[16..]).unwrap();
    word(0)
}

fn exchange(mover: &mut Mover, socket: &UnixStream, number: u32, address: u64, bytes: usize) {
    mover.slot(0).unwrap()[..bytes].copy_from_slice(&pattern(bytes, 1));
    mover.put(0, 0..bytes, number, address).unwrap();
    mover.wait(0, socket.as_fd(), LOOK).unwrap();
    mover.flush(socket.as_fd(), LOOK).unwrap();
    send(socket, b"put");
    assert_eq!(receive(socket), b"get");
    mover.slot(0).unwrap().fill(0);
    mover.get(0, 0..bytes, number, address).unwrap();
    mover.wait(0, socket.as_fd(), LOOK).unwrap();
    assert!(mover.slot(0).unwrap()[..bytes] == pattern(bytes, 2), "{bytes} bytes were got");
    send(socket, b"got");
}

fn server(path: &str) {
    let (socket, _) = UnixListener::bind(path).unwrap().accept().unwrap();
    let mut mover = Mover::connect(&receive(&socket), liveness()).unwrap();
    send(&socket, &mover.address().unwrap());
    let address = learn(&mut mover, &socket, 7);
    let number = mover.probe(7, address, socket.as_fd(), LOOK, Duration::from_secs(20)).unwrap();
    assert_eq!(number, 0x0123_4567_89ab_cdef);
    send(&socket, b"probed");
    mover.reserve_slots(1, MEMORY_BYTES).unwrap();
    for &bytes in SIZES {
        exchange(&mut mover, &socket, 7, address + 3, bytes);
    }
    assert_eq!(mover.put(0, 0..1, 8, address), Err(Error::Foreign), "a number that was never shown");
    assert_eq!(mover.put(0, 0..2, 7, address + MEMORY_BYTES as u64 - 1), Err(Error::Foreign), "beyond its end");
    assert_eq!(mover.get(0, 0..1, 7, address - 1), Err(Error::Foreign), "before its start");
    assert_eq!(mover.get(0, 0..2, 7, u64::MAX), Err(Error::Foreign), "an end that overflows");
    for &bytes in SIZES {
        let address = learn(&mut mover, &socket, 8);
        exchange(&mut mover, &socket, 8, address, bytes);
    }
    let gone = mover.learn(socket.as_fd(), (9, u64::MAX, 2), &[]);
    assert_eq!(gone, Err(Error::Foreign), "a length that overflows");
}

/// This program again, in a role, with a choice of transports for UCX.
fn child(role: &str, path: &Path, settings: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "bytes_are_put_and_got_between_processes", "--nocapture"]);
    command.env("WEFT_TEST_ROLE", role).env("WEFT_TEST_SOCKET", path);
    command.envs(settings.iter().copied()).spawn().unwrap()
}

#[test]
fn bytes_are_put_and_got_between_processes() {
    let path = std::env::var("WEFT_TEST_SOCKET");
    match (std::env::var("WEFT_TEST_ROLE").as_deref(), path) {
        (Ok("client"), Ok(path)) => return client(&path),
        (Ok("server"), Ok(path)) => return server(&path),
        _ => {}
    }
    if let Err(error) = Library::get() {
        println!("skipped: {error}");
        return;
    }
    let shared: &[_] = &[("WEFT_UCX_TLS", "posix,sysv,self")];
    let tcp: &[_] = &[("WEFT_UCX_TLS", "tcp"), ("WEFT_UCX_NET_DEVICES", "lo"), ("WEFT_TEST_ENDPOINT", "1")];
    // Variables of other programs are theirs: this one would leave no transport.
    let theirs: &[_] = &[("UCX_TLS", "self"), ("UCX_NET_DEVICES", "none0")];
    // A variable of a transport, which UCX 1.13 itself reads without our prefix only.
    let own: &[_] = &[("WEFT_UCX_TLS", "posix,self"), ("WEFT_UCX_MM_FIFO_SIZE", "128")];
    for (number, settings) in [shared, tcp, theirs, own].into_iter().enumerate() {
        let path = std::env::temp_dir().join(format!("weft-ucx-{}-{number}", std::process::id()));
        let mut server = child("server", &path, settings);
        while !path.exists() && server.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut client = child("client", &path, settings);
        let ended = [client.wait().unwrap(), server.wait().unwrap()];
        std::fs::remove_file(&path).unwrap();
        assert!(ended.iter().all(std::process::ExitStatus::success), "{settings:?}: {ended:?}");
    }
}

#[test]
fn a_library_that_is_not_there_is_named_with_the_remedy() {
    if std::env::var_os("WEFT_UCX_LIBRARY").is_some() {
        let error = Library::get().unwrap_err().to_string();
        assert!(error.contains("/nowhere/libucp.so") && error.contains("libucx0"), "{error}");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_library_that_is_not_there_is_named_with_the_remedy"]);
    assert!(command.env("WEFT_UCX_LIBRARY", "/nowhere/libucp.so").status().unwrap().success());
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_parent_what_it_has() {
    let mut region = match Region::allocate(8192) {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    assert!(region.copy_in(0, b"ours"));
    let receiver = Receiver::new().unwrap();
    // SAFETY: the child only asks the library and ends without running what the parent's threads might have locked.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [
            Receiver::new().err(),
            Region::allocate(1).err(),
            region.packed_key().err(),
            receiver.until(std::io::stdin().as_fd(), LOOK, || Ok(Some(()))).err(),
        ];
        let all = refused.iter().all(|error| *error == Some(Error::Forked));
        drop((region, receiver));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, with a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let mut found = [0; 4];
    assert!(region.copy_out(0, &mut found));
    assert_eq!(&found, b"ours");
    assert!(receiver.address().is_ok() && region.packed_key().is_ok());
}
