//! A relay between a client and a node, which loses a reply when it is told to.
//!
//! The client's connection then breaks after the node has done what was asked: the client sends it again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Longest message that is not a call: renewals and answers to recalls.
const NO_CALL_BYTES: usize = 40;

/// A relay. Its threads end with their connections.
pub struct Proxy {
    pub address: SocketAddr,
    armed: Arc<AtomicBool>,
    held: Mutex<Receiver<TcpStream>>,
}

impl Proxy {
    /// A relay to this address.
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let armed = Arc::new(AtomicBool::new(false));
        let (sender, held) = channel();
        let is_armed = Arc::clone(&armed);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { return };
                relay(client, server, Arc::clone(&is_armed), sender.clone());
            }
        });
        Self { address, armed, held: Mutex::new(held) }
    }

    /// From the next call on, its connection answers no more.
    pub fn hold_next_reply(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Waits until the node has answered that call. The connection breaks when the result is dropped.
    pub fn held(&self) -> Held {
        let held = self.held.lock().expect("no test panicked with it");
        Held(held.recv().expect("the relay runs"))
    }
}

/// A connection whose reply is held.
pub struct Held(TcpStream);

impl Drop for Held {
    fn drop(&mut self) {
        // The other end may be gone already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn relay(client: TcpStream, server: TcpStream, armed: Arc<AtomicBool>, held: Sender<TcpStream>) {
    let holds = Arc::new(AtomicBool::new(false));
    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    let (mut from, mut to, marks) = (copy(&client), copy(&server), Arc::clone(&holds));
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            if count > NO_CALL_BYTES && armed.swap(false, Ordering::SeqCst) {
                marks.store(true, Ordering::SeqCst);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (server, client);
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            if holds.load(Ordering::SeqCst) {
                // A test that has ended waits for nothing.
                let _ = held.send(to);
                return;
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
