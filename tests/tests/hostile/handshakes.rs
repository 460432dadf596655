//! Peers that do not get past the handshake.

use crate::scene::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weft_protocol::Credentials;
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::{CONTROL_BODY_BYTES_MAX, HANDSHAKE_MS_MAX};
use weft_protocol::message::Message;
use weft_protocol::message::node::NodeRequest;

/// Things that are no handshake.
fn noises() -> Vec<Vec<u8>> {
    let whole = hello(KeyName::Owner);
    let mut noises: Vec<Vec<u8>> = [1, 15, 16, 17, 112, 4000, 70_000].into_iter().map(random).collect();
    noises.push(vec![0; 5000]);
    noises.push(b"GET / HTTP/1.1\r\nHost: weft\r\n\r\n".to_vec());
    // Cut at places where a field begins or not.
    noises.extend([1, 8, 16, 17, 30, whole.len() - 1].map(|end| whole[..end].to_vec()));
    // A length of a body that never comes, and one that no body may have.
    for body_bytes in [4096, 4097, u32::try_from(CONTROL_BODY_BYTES_MAX).expect("a length"), u32::MAX] {
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&body_bytes.to_le_bytes());
        noises.push(bytes);
    }
    // A control message instead of a hello; a hello, then nonsense instead of a proof; the hello twice.
    noises.push(framed(&Message::Node(NodeRequest::Shutdown)));
    noises.push([whole.clone(), random(200)].concat());
    noises.push([whole.clone(), whole].concat());
    // More groups than a user can have.
    let groups = (0..1000).collect();
    noises.push(hello(user_name(1, Credentials { uid: 0, gid: 0, groups })));
    noises
}

#[test]
fn noise_instead_of_a_handshake() {
    let mut scene = Scene::new();
    let mut count = 0;
    for noise in noises() {
        // The node may close before it has all of it.
        let mut tcp = TcpStream::connect(scene.tcp()).expect("connected");
        let _ = tcp.write_all(&noise);
        let mut unix = UnixStream::connect(&scene.fs.instance.map.nodes[0].address.unix).expect("connected");
        let _ = unix.write_all(&noise);
        for stream in [&mut tcp as &mut dyn Read, &mut unix] {
            // Nothing but a hello is ever answered to a stranger.
            let mut answer = [0; 256];
            let _ = (noise.len() < 112).then_some(0).map_or_else(|| stream.read(&mut answer), Ok);
        }
        count += 2;
    }
    scene.has_rejected(count, 0);
    scene.is_unharmed("noise");
}

#[test]
fn silence_of_many_keeps_nobody_out() {
    let mut scene = Scene::new();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(scene.tcp()).expect("connected")).collect();
    let begin = Instant::now();
    scene.is_unharmed("300 silent connections");
    assert!(begin.elapsed() < Duration::from_millis(HANDSHAKE_MS_MAX), "it was served after {:?}", begin.elapsed());
    scene.has_rejected(300, 0);
    drop(silent);
}

#[test]
fn a_handshake_byte_by_byte_ends_in_time() {
    let mut scene = Scene::new();
    let mut slow = TcpStream::connect(scene.tcp()).expect("connected");
    slow.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let begin = Instant::now();
    let bytes = hello(KeyName::Owner);
    let mut next = bytes.iter();
    let closed = loop {
        // A byte each time that nothing has come for a tenth of a second: a read never waits as long as a handshake may
        // take.
        if let Some(byte) = next.next()
            && slow.write_all(&[*byte]).is_err()
        {
            break begin.elapsed();
        }
        match slow.read(&mut [0; 64]) {
            Ok(0) => break begin.elapsed(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break begin.elapsed(),
            _ => assert!(begin.elapsed() < PATIENCE, "the node still listens to a handshake of {PATIENCE:?}"),
        }
    };
    assert!(closed < Duration::from_millis(HANDSHAKE_MS_MAX * 2), "closed after {closed:?}");
    scene.has_rejected(1, 0);
    scene.is_unharmed("a slow handshake");
}
